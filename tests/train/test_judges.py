"""Judges that are named in a file, and judges that fail."""

import sys
import time

import pytest

torch = pytest.importorskip("torch")

from kitchen_hands import shape, tokenizer  # noqa: E402

from kleash.errors import ConfigError, DataError, MissingFileError  # noqa: E402
from kleash.train.judges import JudgeSource, guarded, length, load_judge, reward_model  # noqa: E402


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_critic.py").write_text(
        "def score(prompts, completions, **columns):\n    return [float(len(c)) for c in completions]\n\nsalt = 3\n"
    )
    (tmp_path / "my_broken.py").write_text("raise RuntimeError('no kitchen')\n")
    (tmp_path / "my_needy.py").write_text("import a_package_nobody_has\n")
    yield tmp_path
    for name in ("my_critic", "my_broken", "my_needy"):
        sys.modules.pop(name, None)


def test_a_function_beside_the_configuration(folder):
    judge = load_judge(JudgeSource(use="my_critic:score"), name="judge", folder=folder)
    assert judge(prompts=["a", "b"], completions=["x", "xyz"], guest=["1", "2"]) == [1.0, 3.0]
    assert str(folder) not in sys.path


@pytest.mark.parametrize(
    ("use", "match"),
    [
        ("my_critic:scor", "a function 'scor' in my_critic, got none; did you mean 'score'"),
        ("my_critic:salt", "got int"),
        ("my_critc:score", "a module 'my_critc' in .*, got none"),
        ("my_broken:score", "RuntimeError: no kitchen"),
        ("my_needy:score", "a_package_nobody_has.*install it"),
        ("lenght", "did you mean 'length'"),
        ("reward-model", "judge.path"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(folder, use, match):
    with pytest.raises(ConfigError, match=match) as caught:
        load_judge(JudgeSource(use=use), name="judge", folder=folder)
    assert "\n" not in str(caught.value)


def test_a_judge_that_raises_is_named_with_the_answer_that_it_was():
    def moody(prompts, completions, **columns):
        if "roast" in prompts:
            raise ValueError("no\nroast")
        return [0.0] * len(prompts)

    with pytest.raises(
        DataError, match="taste: expected a score, got ValueError: no roast for the answer 'b' to 'roast'"
    ):
        guarded(moody, name="taste")(["fish", "roast", "beans"], ["a", "b", "c"])


def test_a_judge_that_raises_only_on_the_whole_is_named_with_the_call():
    def crowded(prompts, completions, **columns):
        if len(prompts) > 1:
            raise ValueError("too many")
        return [0.0]

    with pytest.raises(DataError, match="too many in a call about 2 answers, the first to 'fish'"):
        guarded(crowded, name="judge")(["fish", "roast"], ["a", "b"])


def test_a_judge_that_hangs_is_left_behind():
    def slow(prompts, completions, **columns):
        time.sleep(20)
        return []

    start = time.monotonic()
    with pytest.raises(
        DataError, match=r"judge: expected an answer within 0.2 s, got none in a call about 2 .* 'fish'"
    ):
        guarded(slow, name="judge", seconds=0.2)(["fish", "roast"], ["a", "b"])
    assert time.monotonic() - start < 5


def test_a_judge_that_leaves_the_program_does_not_take_the_run_along():
    def leaves(prompts, completions, **columns):
        sys.exit(3)

    with pytest.raises(DataError, match="SystemExit: 3"):
        guarded(leaves, name="judge", seconds=0.5)(["fish"], ["a"])


def test_length_counts_words():
    assert length(["a", "b"], ["one two", ""]) == [2.0, 0.0]


def test_lexicon():
    pytest.importorskip("vaderSentiment")
    judge = load_judge(JudgeSource(use="lexicon"), name="judge")
    good, bad = judge(prompts=["", ""], completions=["a wonderful, delicious dish", "a horrible, disgusting dish"])
    assert good > 0.5
    assert bad < -0.5


@pytest.fixture
def reward_folder(tmp_path):
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(1)
    LlamaForSequenceClassification(LlamaConfig(**shape(num_labels=1))).save_pretrained(tmp_path / "rm")
    tokenizer().save_pretrained(tmp_path / "rm")
    return tmp_path / "rm"


def test_a_reward_model_in_a_folder(reward_folder):
    judge = reward_model(reward_folder)
    texts = ["salt", "dill thyme", "salt salt butter"] * 7
    scores = judge(["cook fish "] * 21, texts)
    assert len(scores) == 21
    assert len(set(scores[:3])) == 3
    alone = [judge(["cook fish "], [text])[0] for text in texts[:3]]
    assert scores[:3] == pytest.approx(alone, abs=1e-5)  # padding beside longer ones changes nothing


def test_a_folder_that_is_no_reward_model(tmp_path, reward_folder):
    with pytest.raises(MissingFileError):
        reward_model(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="is not a sequence classifier"):
        reward_model(tmp_path / "empty")
