"""Answers of a model on this machine: each from seed, prompt and draw alone, exactly as likely as the model says."""

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from pantry import LENGTH, PROMPTS, salt, save_adapter, save_model  # noqa: E402

from kleash.errors import ConfigError, MissingFileError, OptionError  # noqa: E402
from kleash.sampling import local  # noqa: E402
from kleash.sampling.local import LocalModel  # noqa: E402
from kleash.sampling.prompts import as_prompts  # noqa: E402
from kleash.sampling.run import sample  # noqa: E402
from kleash.train.language import ModelSource  # noqa: E402

READ = as_prompts(PROMPTS)
WORK = [(prompt, draw) for prompt in READ for draw in range(6)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def adapter(model, tmp_path_factory):
    return save_adapter(tmp_path_factory.mktemp("models") / "spicy", model)


def loaded(model, *, adapter=None, seed=0, length=LENGTH):
    return LocalModel(ModelSource(path=model, device="cpu"), adapter=adapter, max_new_tokens=length, seed=seed)


def drawn(answering, work=WORK):
    found = [answer for batch in answering.draw(work, stopped=lambda: False) for answer in batch]
    return {(answer.prompt, answer.draw): answer for answer in found}


def tokens(answers):
    return {key: list(answer.ids) for key, answer in answers.items()}


class Shaky(torch.nn.Module):
    """A head whose logits depend on the batch, as those of a real one do, only forty times as much."""

    def __init__(self, head):
        super().__init__()
        self.head, self.calls = head, 0

    def forward(self, hidden):
        logits = self.head(hidden)
        if hidden.shape[0] == 1:
            return logits
        self.calls += 1
        noise = torch.Generator().manual_seed(self.calls * 1000 + hidden.shape[0])
        return logits + (torch.rand(logits.shape, generator=noise) - 0.5) * 9e-4


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_answers_do_not_depend_on_the_batch(model, monkeypatch, rows):
    expected = drawn(loaded(model))
    monkeypatch.setattr(local, "_ROWS", rows)
    found = drawn(loaded(model), WORK[::-1])
    assert tokens(found) == tokens(expected)
    for key, answer in found.items():
        assert answer.logp == pytest.approx(expected[key].logp, abs=1e-5)
    assert len({tuple(ids) for ids in tokens(found).values()}) > 30  # and they are different answers


def test_numbers_that_a_batch_changes_do_not_decide(model):
    """Without the choice alone some of the 1,200 answers differ (of about 10,000 tokens)."""
    work = [(prompt, draw) for prompt in READ for draw in range(200)]
    expected = tokens(drawn(loaded(model), work))
    shaken = loaded(model)
    shaken.decoder.model.set_output_embeddings(Shaky(shaken.decoder.head))
    assert tokens(drawn(shaken, work)) == expected


def test_a_prompts_answers_stay_when_others_come_or_go(model):
    expected = tokens(drawn(loaded(model)))
    other = as_prompts([{"prompt": "cook dill dill"}, *PROMPTS[::-1], PROMPTS[0] | {"guest": "z"}])
    found = tokens(drawn(loaded(model), [(prompt, draw) for prompt in other for draw in range(6)]))
    assert {key: found[key] for key in expected} == expected
    again = other[-1]  # a prompt that comes twice is answered twice
    assert [found[again.key, d] for d in range(6)] != [found[READ[0].key, d] for d in range(6)]
    assert tokens(drawn(loaded(model, seed=1))) != expected


def test_answers_are_as_likely_as_the_model_says(model):
    """Chi-squared over the first two tokens of 6,000 answers; one honest run in a thousand fails."""
    answering = loaded(model, length=2)
    prompt = READ[1]
    answers = list(drawn(answering, [(prompt, draw) for draw in range(6000)]).values())
    ids = answering.prompt_ids(prompt)
    with torch.no_grad():
        first = torch.softmax(answering.decoder.model(torch.tensor([ids])).logits[0, -1].double(), 0).numpy()
        then = answering.decoder.model(torch.tensor([[*ids, t] for t in range(1, len(first))])).logits[:, -1]
        second = torch.softmax(then.double(), 1).numpy()
    expected = np.concatenate([first[:1], (first[1:, None] * second).ravel()]) * len(answers)
    seen = np.zeros(expected.size)
    for answer in answers:
        head, *rest = answer.ids
        seen[0 if head == 0 else 1 + (head - 1) * first.size + rest[0]] += 1
    rare = expected < 5
    f_exp = np.append(expected[~rare], expected[rare].sum())
    f_obs = np.append(seen[~rare], seen[rare].sum())
    assert f_exp.size > 30
    assert stats.chisquare(f_obs, f_exp * f_obs.sum() / f_exp.sum()).pvalue > 1e-3


def test_log_probabilities_are_the_models(model):
    answering = loaded(model)
    for (key, _), answer in list(drawn(answering).items())[:12]:
        ids = answering.prompt_ids(next(prompt for prompt in READ if prompt.key == key))
        with torch.no_grad():
            logits = answering.decoder.model(torch.tensor([[*ids, *answer.ids]])).logits[0].double()
        whole = torch.log_softmax(logits, -1)[len(ids) - 1 : -1]
        expected = whole.gather(1, torch.tensor(answer.ids)[:, None])[:, 0].tolist()
        assert answer.logp == pytest.approx(expected, abs=1e-5)
        assert answer.n_tokens == len(answer.ids) <= LENGTH
        assert answer.finished == (answer.ids[-1] == 0)
        assert 0 not in answer.ids[:-1]


def test_with_an_adapter_the_policy_answers_and_the_reference_is_asked(model, adapter):
    work = [(prompt, draw) for prompt in READ for draw in range(100)]
    answers = drawn(loaded(model, adapter=adapter), work)
    reference = loaded(model)
    assert tokens(drawn(reference)) != {key: list(answers[key].ids) for key in tokens(drawn(reference))}
    some = next(iter(answers.values()))
    ids = reference.prompt_ids(READ[0])
    with torch.no_grad():
        logits = reference.decoder.model(torch.tensor([[*ids, *some.ids]])).logits[0].double()
    expected = torch.log_softmax(logits, -1)[len(ids) - 1 : -1].gather(1, torch.tensor(some.ids)[:, None])[:, 0]
    assert some.ref_logp == pytest.approx(expected.tolist(), abs=1e-5)
    ratio = np.array([sum(a.ref_logp) - sum(a.logp) for a in answers.values()])
    assert ratio.std() > 0.1
    error = np.exp(ratio).std() / np.sqrt(ratio.size)
    assert np.exp(ratio).mean() == pytest.approx(1.0, abs=4 * error)  # the mean of p_ref / p_policy is 1


def test_columns_of_reference_and_policy(model, adapter):
    untouched = sample(PROMPTS, model=model, judge=salt, k=3, max_new_tokens=LENGTH).frame
    assert set(untouched["source"]) == {"reference"}
    assert set(untouched["log_ratio"]) == {0.0}
    assert "ref_logp" not in untouched.columns
    policy = sample(PROMPTS, model=model, adapter=adapter, judge=salt, k=3, max_new_tokens=LENGTH).frame
    assert set(policy["source"]) == {"spicy"}
    for row in policy.iter_rows(named=True):
        assert row["log_ratio"] == pytest.approx(sum(row["logp"]) - sum(row["ref_logp"]))
        assert len(row["logp"]) == len(row["ref_logp"]) == row["n_tokens"]


def test_chats_go_through_the_template_and_texts_too(model, tmp_path):
    answering = loaded(model)
    chat = as_prompts([{"prompt": [{"role": "user", "content": "cook fish"}]}])[0]
    assert answering.prompt_ids(chat) == answering.prompt_ids(READ[0])
    plain = loaded(save_model(tmp_path / "plain", chat=False))
    assert plain.prompt_ids(READ[0]) == answering.prompt_ids(READ[0])[1:-1]
    with pytest.raises(OptionError, match="a chat template for chats"):
        plain.prompt_ids(chat)


def test_a_batch_that_does_not_fit_into_memory_is_halved(model, monkeypatch):
    answering = loaded(model)
    expected = tokens(drawn(answering))
    inner, sizes = answering.decoder.prefill, []

    def small(prompts):
        if len(prompts) > 2:
            raise torch.OutOfMemoryError
        sizes.append(len(prompts))
        return inner(prompts)

    monkeypatch.setattr(answering.decoder, "prefill", small)
    assert tokens(drawn(answering)) == expected
    assert len(sizes) > 2


def test_what_cannot_be_asked_is_one_line(model, tmp_path):
    with pytest.raises(MissingFileError, match="model: expected a model on disk"):
        sample(PROMPTS, model=tmp_path / "none", judge=salt)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        sample(PROMPTS, model=tmp_path / "empty", judge=salt)
    with pytest.raises(ConfigError, match="a folder of PEFT"):
        sample(PROMPTS, model=model, adapter=tmp_path / "empty", judge=salt)
    with pytest.raises(OptionError, match=r"prompt '0': expected at most 64 tokens, got 4 of the prompt and 61 of the"):
        sample(PROMPTS, model=model, judge=salt, max_new_tokens=61)
