"""Judges by name and weight, and what they are told."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from pantry import LENGTH, PROMPTS, salt, save_model, variety  # noqa: E402

from kleash.errors import ConfigError, OptionError  # noqa: E402
from kleash.sampling.journal import Answer  # noqa: E402
from kleash.sampling.prompts import as_prompts  # noqa: E402
from kleash.sampling.run import sample  # noqa: E402
from kleash.sampling.scoring import load_scorers, parse_judge  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "small")


def test_the_reward_is_the_weighted_sum_and_every_judge_has_its_column(model, tmp_path, monkeypatch):
    (tmp_path / "my_judges.py").write_text("def dill(prompts, completions, **columns): return [2.0] * len(prompts)\n")
    monkeypatch.chdir(tmp_path)
    judges = ["my_judges:dill:-0.5", "words=length:2", "length"]
    frame = sample(PROMPTS, model=model, judge=judges, k=2, max_new_tokens=LENGTH).frame
    assert set(frame["dill"]) == {2.0}
    assert frame["words"].to_list() == frame["length"].to_list()
    assert frame["reward"].to_list() == (3 * frame["length"] - 1.0).to_list()


@pytest.mark.parametrize(
    ("text", "name", "use", "weight"),
    [
        ("a.b:c", "c", "a.b:c", 1.0),
        ("a.b:c:0.25", "c", "a.b:c", 0.25),
        ("n=a:c:-1e-3", "n", "a:c", -0.001),
        ("lexicon", "lexicon", "lexicon", 1.0),
        ("lexicon:3", "lexicon", "lexicon", 3.0),
        ("mood=lexicon", "mood", "lexicon", 1.0),
        ("reward-model:models/rm-2:.5", "rm-2", "reward-model", 0.5),
    ],
)
def test_forms_of_a_judge(text, name, use, weight):
    found = parse_judge(text)
    assert (found[0], found[1].use, found[2]) == (name, use, weight)


@pytest.mark.parametrize(
    ("judges", "kind", "match"),
    [
        ("lenght", ConfigError, "did you mean 'length'"),
        ("reward-model", ConfigError, "reward-model:FOLDER, got no folder"),
        ("nothing:here", ConfigError, "a module 'nothing'"),
        (["length", "length:2"], OptionError, "'length' twice; name them"),
        ("gold=length", OptionError, "a name of its own, got 'gold'"),
        ([], OptionError, "at least one, got none"),
    ],
)
def test_judges_that_cannot_be_used_are_refused_before_anything_is_drawn(judges, kind, match, model):
    with pytest.raises(kind, match=match) as caught:
        sample(PROMPTS, model=model, judge=judges)
    assert "\n" not in str(caught.value)


def test_a_judge_is_told_what_trl_would_tell_it():
    told = []

    def spy(prompts, completions, completion_ids, guest, **columns):
        told.append((prompts, completions, completion_ids, guest, columns))
        return [0.0] * len(prompts)

    chat = [{"role": "user", "content": "cook"}]
    text, talk = as_prompts([{"prompt": "cook", "guest": "a"}, {"prompt": chat, "guest": "b", "prompt_id": 7}])
    answers = [Answer(prompt="", draw=d, text=f"dill {d}", n_tokens=2, ids=[3, d]) for d in (4, 6)]
    scorer = load_scorers(spy, role="judge")[0]
    assert scorer.ask(text, answers) == {4: 0.0, 6: 0.0}
    assert told.pop() == (["cook"] * 2, ["dill 4", "dill 6"], [[3, 4], [3, 6]], ["a"] * 2, {})
    scorer.ask(talk, answers)
    messages = [[{"role": "assistant", "content": f"dill {d}"}] for d in (4, 6)]
    assert told.pop() == ([chat] * 2, messages, [[3, 4], [3, 6]], ["b"] * 2, {"prompt_id": [7] * 2})
    assert load_scorers("length", role="judge")[0].ask(talk, answers) == {4: 2.0, 6: 2.0}  # built in: texts


def test_a_judge_of_a_servers_answers_gets_no_token_ids():
    def plain(prompts, completions):
        return [1.0] * len(completions)

    answers = [Answer(prompt="", draw=0, text="dill", n_tokens=None)]
    assert load_scorers(plain, role="judge")[0].ask(as_prompts(["cook"])[0], answers) == {0: 1.0}


def test_gold_has_a_column_where_it_is_given(model):
    frame = sample(PROMPTS, model=model, judge=salt, gold=variety, k=2, max_new_tokens=LENGTH).frame
    assert frame["gold"].to_list() == [float(len(set(text.split()))) for text in frame["answer"]]
    assert "gold" not in sample(PROMPTS, model=model, judge=salt, k=2, max_new_tokens=LENGTH).frame.columns
