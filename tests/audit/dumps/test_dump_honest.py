"""Honest dumps of kinds that once raised alarm, and faults that once passed: what a hostile review found."""

import math

import numpy as np
import pytest
from simulated_dumps import changed, check_rollouts, dump, honest, joined, log_softmax, sums_only

from kleash.audit import Declared


def problems(chunk, **declared):
    return [f.code for f in check_rollouts([chunk], declared=Declared(**declared)) if f.status == "problem"]


def finding(chunk, code, **declared):
    return next(f for f in check_rollouts([chunk], declared=Declared(**declared)) if f.code == code)


def table(logp, ref, *, tokens=None, **more):
    n, length = logp.shape
    flat = {"logp": logp.ravel(), "ref_logp": ref.ravel(), **{k: x.ravel() for k, x in (tokens or {}).items()}}
    return dump(np.arange(n + 1) * length, flat, **more)


def drawn(rng, n, length, *, drift=0.3, vocabulary=200, contexts=40, noise=0.0, moved=0.0):
    """Tokens of a sampler: its, the policy's (moved, scored with noise on every logit) and the reference's numbers."""
    ref = log_softmax(2 * rng.normal(size=(contexts, vocabulary)))
    law = log_softmax(ref + drift * rng.normal(size=ref.shape))
    policy = log_softmax(law + moved * rng.normal(size=ref.shape))
    at = rng.integers(contexts, size=n * length)
    token = (law[at] + rng.gumbel(size=(n * length, vocabulary))).argmax(axis=1)
    found = {"behavior_logp": law[at, token]}
    for name, scores in (("logp", policy), ("ref_logp", ref)):
        off = log_softmax(scores[at] + noise * rng.normal(size=(n * length, vocabulary))) if noise else scores[at]
        found[name] = off[np.arange(n * length), token]
    return {name: x.reshape(n, length) for name, x in found.items()}


@pytest.mark.parametrize("drift", [0.0, 0.1])
def test_scoring_noise_on_logits_is_honest(drift):
    """Spread .05 on every logit of both models, renormalised, at 51,200 tokens: no problem in any of 3."""
    for seed in range(3):
        x = drawn(np.random.default_rng(seed), 512, 100, drift=drift, noise=0.05, vocabulary=100)
        assert problems(table(x["logp"], x["ref_logp"])) == []


@pytest.mark.parametrize("value", [0.0, -1.1920929e-07])
def test_answers_that_end_in_certain_tokens_are_no_padding(value):
    rng = np.random.default_rng(0)
    x = drawn(rng, 256, 40)
    for row, k in enumerate(rng.integers(2, 5, size=256)):
        x["logp"][row, -k:] = x["ref_logp"][row, -k:] = value
    chunk = table(x["logp"], x["ref_logp"])
    assert problems(chunk) == []
    assert finding(chunk, "PADDING").status == "cannot-tell"
    assert finding(changed(chunk, numbers={"length": np.full(256, 40.0)}), "PADDING").status == "ok"
    assert finding(changed(chunk, numbers={"length": np.full(256, 38.0)}), "PADDING").status == "problem"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("fill", "columns", "status"),
    [
        (-100.0, ("logp", "ref_logp"), "problem"),
        (-100.0, ("logp",), "problem"),
        (-100.0, ("ref_logp",), "problem"),
        (0.0, ("logp", "ref_logp"), "cannot-tell"),
        (0.0, ("logp",), "cannot-tell"),
    ],
)
def test_padding_at_either_end_and_in_either_column(side, fill, columns, status):
    rng = np.random.default_rng(1)
    x = drawn(rng, 256, 40)
    for row, k in enumerate(rng.integers(2, 30, size=256)):
        part = slice(0, k) if side == "left" else slice(40 - k, 40)
        for name in columns:
            x[name][row, part] = fill
    assert finding(table(x["logp"], x["ref_logp"]), "PADDING").status == status


@pytest.mark.parametrize("length", [5, 8, 20])
@pytest.mark.parametrize("where", [0, -1, 1])
def test_drift_on_one_token_of_sure_answers_is_no_shift(length, where):
    """Nearly certain answers whose policy has learned one token: no problem in any of 5."""
    p, q = np.full(length, 0.999), np.full(length, 0.998)
    p[where], q[where] = 0.995, 0.05
    for seed in range(5):
        hit = np.random.default_rng(seed).random((256, length)) < p
        logp, ref = (np.where(hit, np.log(x), np.log1p(-x)) for x in (p, q))
        assert problems(table(logp, ref)) == []


@pytest.mark.parametrize("spread", [0.7, 1.0])
@pytest.mark.parametrize("answers", [2, 8])
def test_one_prompt_a_step_is_no_resume(spread, answers):
    """Sixty steps of one prompt each, whose drift varies by prompt: never a problem, and not ok either."""
    rng = np.random.default_rng(2)
    parts = [drawn(rng, answers, 40, drift=0.25 * math.exp(spread * rng.normal()), contexts=8) for _ in range(60)]
    step = np.repeat(np.arange(1, 61), answers)
    logp, ref = (np.concatenate([part[name] for part in parts]) for name in ("logp", "ref_logp"))
    chunk = table(logp, ref, numbers={"step": step}, labels={"prompt_id": step})
    assert finding(chunk, "RESUME").status == "cannot-tell"
    assert problems(chunk) == []


def scored_again(rng, *, sums, mean=-0.0015, spread=0.0499, texts=100, length=200):
    base = -rng.exponential(size=(texts, length))
    again = base + mean + spread * rng.normal(size=base.shape)
    chunk = table(
        np.vstack([base] * 3),
        np.vstack([base, base, again]),
        numbers={"step": np.repeat([0, 10, 20], texts)},
        labels={"probe_id": np.tile(np.arange(texts), 3)},
    )
    return sums_only(chunk, length=sums == "length") if sums else chunk


@pytest.mark.parametrize("sums", [None, "length", "bare"])
def test_another_kernel_at_the_last_step_is_no_drift(sums):
    """The figures of trl 6789 on 100 texts of 200 tokens; a mean of .02 nats per token is a drift."""
    for seed in range(3):
        answer = finding(scored_again(np.random.default_rng(seed), sums=sums), "REFERENCE_DRIFT")
        assert answer.status == "cannot-tell"
        assert ("length" in answer.fix) == (sums == "bare")
    far = finding(scored_again(np.random.default_rng(0), sums=sums, mean=-0.02), "REFERENCE_DRIFT")
    assert far.status == ("cannot-tell" if sums == "bare" else "problem")


def test_probe_scores_that_are_not_numbers_are_never_ok():
    chunk = scored_again(np.random.default_rng(0), sums=None, mean=0.0, spread=0.0)
    ref = chunk.tokens["ref_logp"].copy()
    ref[chunk.offsets[250]] = np.nan
    few = changed(chunk, tokens={"ref_logp": ref})
    assert finding(chunk, "REFERENCE_DRIFT").status == "ok"
    assert finding(few, "REFERENCE_DRIFT").status == "cannot-tell"
    assert finding(few, "NON_FINITE").status == "problem"
    gone = changed(chunk, tokens={"ref_logp": np.full(ref.size, np.nan)})
    assert finding(gone, "REFERENCE_DRIFT").status == "cannot-tell"


def test_low_entropy_is_no_sharp_sampling():
    """Sixty-four answers of five tokens that are all but certain: no rare one may be seen. No problem in any of 20."""
    for seed in range(20):
        hit = np.random.default_rng(seed).random((64, 5)) >= 0.003
        logp = np.where(hit, np.log1p(-0.003), np.log(0.003))
        entropy = np.full(logp.shape, -(0.997 * np.log1p(-0.003) + 0.003 * np.log(0.003)))
        assert "SURPRISAL" not in problems(table(logp, logp, tokens={"entropy": entropy}))


@pytest.mark.parametrize("moved", [0.05, 0.1, 0.3, 0.5])
def test_a_sampler_some_updates_old_is_honest(moved):
    """Tokens and behavior_logp are an older policy's: no problem in any of 2, whatever the policy has done since."""
    for seed in range(2):
        x = drawn(np.random.default_rng(seed), 256, 80, drift=0.2, moved=moved)
        assert problems(table(x["logp"], x["ref_logp"], tokens={"behavior_logp": x["behavior_logp"]})) == []


def test_a_policy_sharper_than_its_old_sampler_is_honest():
    for share in (1.05, 1.1):
        x = drawn(np.random.default_rng(0), 256, 80, drift=0.2)
        spread = x["behavior_logp"] * share
        chunk = table(spread, x["ref_logp"], tokens={"behavior_logp": x["behavior_logp"]})
        assert "TEMPERATURE" not in problems(chunk)
        assert finding(chunk, "TEMPERATURE").status == "cannot-tell"


def test_copies_are_counted_once():
    """Thirty-two copies of each answer say no more than one: the same numbers, and no alarm in any of 20."""
    for seed in range(20):
        x = drawn(np.random.default_rng(seed), 64, 40, drift=0.5, vocabulary=100, contexts=30)
        one = table(x["logp"], x["ref_logp"])
        many = joined(*[one] * 32)
        assert problems(many) == []
        same, other = finding(one, "IDENTITY"), finding(many, "IDENTITY")
        assert other.evidence["copies_left_out"] == 31 * 64
        assert other.evidence["p_value"] == same.evidence["p_value"]


def test_likely_answers_drawn_twice_are_no_copies():
    """Answers of probability .9 and .1: taking each once would make an honest mean of 1 look like 2."""
    rng = np.random.default_rng(0)
    first = rng.random(2000) < 0.9
    logp = np.where(first, np.log(0.9), np.log(0.1))[:, None]
    ref = np.where(first, np.log(0.5), np.log(0.5))[:, None]
    answer = finding(table(logp, ref), "IDENTITY")
    assert answer.evidence["copies_left_out"] == 0
    assert answer.evidence["mean_per_token"] == pytest.approx(1, abs=0.15)


def test_selection_is_named_among_the_causes():
    rng = np.random.default_rng(0)
    length = rng.geometric(0.03, size=1024)
    kept = length[length <= 60]
    logp, ref = ([np.log1p(-h)] * (n - 1) + [np.log(h)] for n in kept for h in (0.03, 0.05)), None
    flat = [np.array(x) for x in logp]
    logp, ref = np.concatenate(flat[::2]), np.concatenate(flat[1::2])
    answer = finding(dump(np.concatenate([[0], np.cumsum(kept)]), {"logp": logp, "ref_logp": ref}), "IDENTITY")
    assert answer.status == "problem"
    assert any("overlong" in cause for cause in answer.causes)


def test_every_kl_number_says_what_it_is():
    x = drawn(np.random.default_rng(0), 64, 40, moved=0.1)
    old = table(x["logp"], x["ref_logp"], tokens={"behavior_logp": x["behavior_logp"]})
    own = table(x["behavior_logp"], x["ref_logp"])
    for chunk in (old, own):
        for f in check_rollouts([chunk]):
            for name in f.evidence:
                if name.startswith("kl_") and name != "kl_spec":
                    assert f.evidence["kl_spec"][name]["unit"].startswith("nats per ")
    assert finding(own, "PADDING").evidence["kl_spec"]["kl_per_token"]["sampler"] == "policy"
    assert finding(old, "PADDING").evidence["kl_spec"]["kl_per_token"]["sampler"] == "behavior"


def test_exchanged_columns_must_be_excluded_before_sign_is_ok():
    _, _, near = honest(np.random.default_rng(0), answers=64, drift=0.01)
    _, _, far = honest(np.random.default_rng(0), answers=512, drift=0.4)
    assert finding(near, "SIGN").status == "cannot-tell"
    assert finding(far, "SIGN").status == "ok"
    sampled = changed(far, tokens={"behavior_logp": far.tokens["logp"]})
    assert finding(sampled, "SIGN").status == "ok"
    turned = changed(sampled, tokens={"logp": far.tokens["ref_logp"], "ref_logp": far.tokens["logp"]})
    assert finding(turned, "SIGN").status == "cannot-tell"


def test_exchanged_columns_that_do_not_fit_either_are_not_called_exchanged():
    _, _, far = honest(np.random.default_rng(0), answers=512, drift=0.4)
    turned = changed(far, tokens={"logp": far.tokens["ref_logp"], "ref_logp": far.tokens["logp"]})
    assert finding(turned, "SIGN").status == "problem"
    lowered = changed(far, tokens={"logp": far.tokens["ref_logp"] - 0.02, "ref_logp": far.tokens["logp"]})
    answer = finding(lowered, "SIGN")
    assert (answer.status, answer.message.split(": ")[-1]) == ("cannot-tell", "neither way round is right")


def test_a_sampler_without_a_single_number_lets_nothing_pass():
    x = drawn(np.random.default_rng(0), 64, 40)
    chunk = table(x["logp"], x["ref_logp"], tokens={"behavior_logp": np.full((64, 40), np.nan)})
    assert problems(chunk) == ["NON_FINITE"]
    for code in ("IDENTITY", "KL_NEGATIVE", "SIGN", "CONCENTRATION", "OVERFLOW"):
        assert finding(chunk, code).status == "not-run"


def test_equal_answers_in_two_pieces_are_judged_once():
    """Positions of equal answers say one thing, however the dump is cut."""
    logp = np.tile([-1.0, -3.0, -0.5, -2.0, -1.5, -4.0], (40, 1))
    chunk = table(logp, np.roll(logp, -1, axis=1))
    for chunks in ([chunk], [chunk, chunk]):
        answer = next(f for f in check_rollouts(chunks) if f.code == "SHIFT")
        assert answer.evidence["ref_logp"]["answers"] == 1
        assert answer.status == "cannot-tell"


def test_values_past_every_float_are_never_ok():
    huge = dump([0, 2, 4, 6], {"logp": [-1e308, -1.0] * 3, "ref_logp": [1e308, -1.0] * 3})
    assert "PADDING" in problems(huge)
    said = {f.code: f.status for f in check_rollouts([huge])}
    assert "ok" not in {said[code] for code in ("IDENTITY", "KL_NEGATIVE", "SIGN")}
