"""Sampling is exact: every answer with the probability that enumeration gives it."""

import itertools

import numpy as np
import pytest
from scipy.stats import chi2

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny import KINDS, shake, tiny  # noqa: E402

from kleash.errors import OptionError  # noqa: E402
from kleash.train.adapters import attach  # noqa: E402
from kleash.train.decoder import Decoder, pad_left  # noqa: E402
from kleash.train.rollout import _pick, rollout, uniforms  # noqa: E402
from kleash.train.scoring import distinct, score_answers  # noqa: E402
from kleash.train.streams import Purpose  # noqa: E402

PROMPTS = [[1, 2, 3], [3], [2, 1, 2, 3, 1]]
EOS = 0


def policies(kind="llama", *, groups=2, vocabulary=11):
    model = tiny(kind, vocabulary=vocabulary)
    adapters = attach(model, groups=groups, rank=2)
    shake(adapters)
    return model, adapters, Decoder(model)


def plain_log_p(model, adapters, prompt, answer):
    """Log-probabilities of an answer's tokens under each policy, by one unpadded pass without a cache; (G, T)."""
    ids = torch.tensor([prompt + answer]).repeat(adapters.groups, 1)
    with torch.no_grad():
        log_p = model(input_ids=ids, use_cache=False).logits.double().log_softmax(-1)
    return log_p[:, len(prompt) - 1 : -1].gather(2, torch.tensor(answer).repeat(adapters.groups, 1)[..., None])[..., 0]


@pytest.mark.parametrize("kind", KINDS)
def test_behavior_log_probabilities_are_those_of_an_unpadded_uncached_pass(kind):
    model, adapters, decoder = policies(kind)
    uniform = uniforms(seed=1, index=[0, 0], step=0, rows=12, length=6)
    drawn = rollout(decoder, adapters, pad_left(PROMPTS), uniform=uniform, eos=[EOS])
    scores = score_answers(decoder, adapters, pad_left(PROMPTS), drawn)
    with adapters.merged():
        merged = score_answers(decoder, adapters, pad_left(PROMPTS), drawn)
    assert drawn.prompt.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    lengths = set()
    for row, group in itertools.product(range(12), range(2)):
        size = int(drawn.mask[group, row].sum())
        lengths.add(size)
        answer = drawn.tokens[group, row, :size].tolist()
        exact = plain_log_p(model, adapters, PROMPTS[int(drawn.prompt[row])], answer)[group]
        with adapters.reference():
            reference = plain_log_p(model, adapters, PROMPTS[int(drawn.prompt[row])], answer)[0]
        for name, found, right in (
            ("behavior", drawn.behavior_logp, exact),
            ("score", scores.logp, exact),
            ("merged", merged.logp, exact),
            ("reference", scores.ref_logp, reference),
        ):
            got = found[group, row, :size].detach().double()
            torch.testing.assert_close(got, right, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        assert drawn.mask[group, row, :size].all()
        assert drawn.finished[group, row] == (answer[-1] == EOS)
        assert EOS not in answer[:-1]
        assert drawn.tokens[group, row, size:].sum() == 0
        assert drawn.behavior_logp[group, row, size:].sum() == 0
    assert len(lengths) > 1


def test_any_of_several_ends_ends_an_answer():
    _, adapters, decoder = policies()
    uniform = uniforms(seed=1, index=[0, 0], step=0, rows=24, length=6)
    free = rollout(decoder, adapters, pad_left(PROMPTS), uniform=uniform, eos=[])
    ended = rollout(decoder, adapters, pad_left(PROMPTS), uniform=uniform, eos=[EOS, 4])
    last = set()
    for row, group in itertools.product(range(24), range(2)):
        words = free.tokens[group, row].tolist()
        stop = next((i + 1 for i, word in enumerate(words) if word in (EOS, 4)), 6)
        assert ended.tokens[group, row, : int(ended.mask[group, row].sum())].tolist() == words[:stop]
        assert bool(ended.finished[group, row]) == (words[stop - 1] in (EOS, 4))
        last.add(words[stop - 1])
    assert {EOS, 4} < last


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_answers_come_as_often_as_enumeration_says(temperature):
    """Chi-square over all answers to prompts of unequal length, 4 of 4 tests at a false-alarm rate of 1e-3 each.

    6,000 draws see a token's probability that is off by about 5 %; leaving out the padding's mask is off by far more.
    """
    model, adapters, decoder = policies(vocabulary=4)
    per_prompt, length = 6000, 3
    uniform = uniforms(seed=7, index=[0, 1], step=0, rows=2 * per_prompt, length=length)
    prompts = [[1, 2, 3, 1], [2]]
    drawn = rollout(decoder, adapters, pad_left(prompts), uniform=uniform, eos=[EOS], temperature=temperature)
    answers = [(*head, EOS) for n in range(length) for head in itertools.product((1, 2, 3), repeat=n)]
    answers += list(itertools.product((1, 2, 3), repeat=length))
    for number, prompt in enumerate(prompts):
        exact = np.array([_log_p(model, adapters, prompt, list(a), temperature) for a in answers])  # (Y, G)
        np.testing.assert_allclose(np.exp(exact).sum(0), 1.0, atol=1e-6)
        for group in range(2):
            rows = slice(number * per_prompt, (number + 1) * per_prompt)
            found = [
                tuple(tokens[:size])
                for tokens, size in zip(
                    drawn.tokens[group, rows].tolist(), drawn.mask[group, rows].sum(1).tolist(), strict=True
                )
            ]
            counts = np.array([found.count(answer) for answer in answers])
            assert counts.sum() == per_prompt
            expected = per_prompt * np.exp(exact[:, group])
            large = expected > 5
            observed = np.append(counts[large], counts[~large].sum())
            wanted = np.append(expected[large], expected[~large].sum())
            statistic = ((observed - wanted) ** 2 / np.maximum(wanted, 1e-9)).sum()
            assert statistic < chi2.isf(1e-3, len(wanted) - 1)


def _log_p(model, adapters, prompt, answer, temperature):
    ids = torch.tensor([prompt + answer]).repeat(adapters.groups, 1)
    with torch.no_grad():
        log_p = (model(input_ids=ids, use_cache=False).logits.double() / temperature).log_softmax(-1)
    chosen = log_p[:, len(prompt) - 1 : -1].gather(2, torch.tensor(answer).repeat(adapters.groups, 1)[..., None])
    return chosen.sum((1, 2)).tolist()


def test_betas_of_a_seed_share_their_uniform_numbers_and_nothing_else_does():
    one = uniforms(seed=0, index=[0, 1, 0], step=3, rows=4, length=5)
    assert torch.equal(one[0], one[2])
    assert not torch.equal(one[0], one[1])
    assert torch.equal(uniforms(seed=0, index=[1], step=3, rows=4, length=5)[0], one[1])
    for other in ({"step": 4}, {"seed": 1}, {"piece": 1}, {"purpose": Purpose.EVALUATION}):
        key = {"seed": 0, "step": 3} | other
        assert not torch.equal(uniforms(index=[0], rows=4, length=5, **key)[0], one[0])


def test_a_policy_beside_others_draws_what_it_draws_alone():
    _, many, decoder = policies(groups=3)
    prompts = pad_left(PROMPTS)
    together = rollout(
        decoder, many, prompts, uniform=uniforms(seed=2, index=[0, 0, 1], step=0, rows=6, length=6), eos=[EOS]
    )
    model = tiny()
    single = attach(model, groups=[1], rank=2)
    with torch.no_grad():
        single.values.copy_(many.values[2:])
    alone = rollout(
        Decoder(model), single, prompts, uniform=uniforms(seed=2, index=[1], step=0, rows=6, length=6), eos=[EOS]
    )
    size = min(alone.tokens.shape[2], together.tokens.shape[2])
    assert torch.equal(together.tokens[2, :, :size], alone.tokens[0, :, :size])


def test_a_token_without_probability_is_never_drawn():
    log_p = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.5, 0.0, 0.5, 0.0]], dtype=torch.float64).log()
    edge = float(np.nextafter(1.0, 0.0))
    for number, wanted in ((0.0, [1, 0]), (0.5, [1, 2]), (edge, [1, 2])):
        assert _pick(log_p, torch.full((2,), number, dtype=torch.float64)).tolist() == wanted
    third = torch.full((1, 3), 1 / 3, dtype=torch.float64).log()
    assert _pick(third, torch.tensor([edge], dtype=torch.float64)).tolist() == [2]


def test_answers_without_an_end_token_have_full_length():
    _, adapters, decoder = policies()
    drawn = rollout(
        decoder, adapters, pad_left(PROMPTS), uniform=uniforms(seed=0, index=[0, 0], step=0, rows=3, length=4), eos=[]
    )
    assert drawn.mask.all()
    assert not drawn.finished.any()


def test_the_same_answer_is_found_once():
    _, adapters, decoder = policies()
    drawn = rollout(
        decoder,
        adapters,
        pad_left(PROMPTS),
        uniform=uniforms(seed=0, index=[0, 0], step=0, rows=30, length=2),
        eos=[EOS],
    )
    same = distinct(drawn)
    rows = {
        (int(drawn.prompt[row]), tuple(drawn.tokens[group, row, : int(drawn.mask[group, row].sum())].tolist()))
        for group in range(2)
        for row in range(30)
    }
    assert len(rows) == len(same.first) < 60
    tokens, masks = drawn.tokens.reshape(60, -1), drawn.mask.reshape(60, -1)
    for flat, place in enumerate(same.place.reshape(-1).tolist()):
        first = int(same.first[place])
        assert torch.equal(tokens[flat], tokens[first])
        assert torch.equal(masks[flat], masks[first])
        assert flat % 30 // 10 == first % 30 // 10


def test_wrong_shapes_are_named():
    _, adapters, decoder = policies()
    uniform = uniforms(seed=0, index=[0, 0], step=0, rows=4, length=2)
    with pytest.raises(OptionError, match="multiple of 3 prompts"):
        rollout(decoder, adapters, pad_left(PROMPTS), uniform=uniform, eos=[EOS])
    with pytest.raises(OptionError, match="at least one token each"):
        pad_left([[1], []])
