"""Dumps of the kinds that once passed, each with a healthy twin: what hid the fault hides it no longer."""

from dataclasses import replace

import numpy as np
import pytest
from simulated_dumps import changed, check_rollouts, honest, joined, log_softmax, models, sample, scored, tempered

from kleash.audit.findings import Finding

V, M = 64, 48


def of(*chunks) -> dict[str, Finding]:
    return {finding.code: finding for finding in check_rollouts(chunks)}


def problems(chunk):
    return [code for code, finding in of(chunk).items() if finding.status == "problem"]


def lowered(chunk, nats, share, seed=0):
    """The trainer gives a share of the tokens so many nats too few; the sampler's numbers are right."""
    logp = chunk.tokens["logp"]
    hit = np.random.default_rng(seed).random(logp.size) < share
    return changed(chunk, tokens={"behavior_logp": logp, "logp": logp - nats * hit})


@pytest.mark.parametrize(("nats", "share"), [(50, 0.005), (15, 0.01), (25, 2e-4), (95, 2e-4)])
def test_behavior_logp_hides_nothing_that_shows_without_it(nats, share):
    _, _, chunk = honest(np.random.default_rng(1), drift=0.05)
    bad = lowered(chunk, nats, share)
    assert "SAMPLER" in problems(bad)
    assert problems(lowered(chunk, 0, share)) == []
    bare = replace(bad, tokens={k: v for k, v in bad.tokens.items() if k != "behavior_logp"},
                   columns=tuple(c for c in bad.columns if c != "behavior_logp"))  # fmt: skip
    shown, hidden = of(bare), of(bad)
    for code, finding in shown.items():
        if finding.status == "problem":
            assert hidden[code].status != "ok", code


@pytest.mark.parametrize("fill", ["both", "logp", "ref_logp"])
@pytest.mark.parametrize("drift", [0.1, 0.5])
def test_a_filled_end_token_is_padding(fill, drift):
    _, _, good = honest(np.random.default_rng(2), answers=320, length=30, drift=drift)
    tokens = {name: x.copy() for name, x in good.tokens.items()}
    for name in tokens if fill == "both" else (fill,):
        tokens[name][good.offsets[1:] - 1] = 0.0
    found = problems(changed(good, tokens=tokens))
    assert "PADDING" in found
    assert fill == "ref_logp" or found == ["PADDING"]
    assert of(good)["PADDING"].status == "ok"
    sure = {name: np.where(np.arange(x.size) % 9 == 0, 0.0, x) for name, x in tokens.items()}
    assert "PADDING" not in problems(changed(good, tokens=sure))  # certain elsewhere too: a sure policy
    tokens = {name: x.copy() for name, x in good.tokens.items()}
    for x in tokens.values():
        x[good.offsets[:-1]] = 0.0
    assert of(changed(good, tokens=tokens))["PADDING"].status == "cannot-tell"


@pytest.mark.parametrize("heat", [0.6, 0.8, 1.3])
def test_the_temperature_of_a_reference_that_was_not_compared(heat):
    pair, _, _ = honest(np.random.default_rng(3), drift=0.2)
    warm = tempered(pair.policy, heat)
    drawn = sample(np.random.default_rng(4), warm, pair.follow, 320, longest=241)
    both = scored(drawn, pair, policy=warm)
    both = changed(both, tokens={"behavior_logp": both.tokens["logp"]})
    found = of(both)["TEMPERATURE"]
    assert found.status == "cannot-tell"
    assert found.message.startswith("behavior_logp and logp are at one temperature; the reference")
    start = pair.at(0.0)
    drawn = sample(np.random.default_rng(4), start.policy, pair.follow, 320, longest=241)
    first = scored(drawn, start, numbers={"step": np.zeros(320)})
    found = of(changed(first, tokens={"behavior_logp": first.tokens["logp"]}))["TEMPERATURE"]
    assert (found.status, "ref_logp at step 0" in found.message) == ("ok", True)
    other = changed(first, tokens=dict.fromkeys(("logp", "behavior_logp"), first.tokens["logp"] / heat))
    assert "TEMPERATURE" in problems(other)


def checkpoints(rng, shares, references=None, prompts=12):
    """Answers to the same prompts at several steps; ``references``: the share of training of the one scored against."""
    pair = models(rng, drift=0.5)
    parts = []
    for i, share in enumerate(shares):
        model, other = pair.at(share), pair.at(0.0 if references is None else references[i])
        drawn = sample(rng, model.policy, model.follow, 8 * prompts, longest=160)
        more = {
            "numbers": {"step": np.full(8 * prompts, 10.0 * i)},
            "labels": {"prompt_id": np.arange(8 * prompts) // 8},
        }
        noisy = log_softmax(other.policy + 0.005 * rng.normal(size=(M, V)))
        parts.append(scored(drawn, model, reference=noisy, **more))
    return joined(*parts)


UP = [0.0, 0.3, 0.6, 0.9]


@pytest.mark.parametrize(
    "references",
    [
        [0.0, 0, 0, 0, 0.9, 0.9, 0.9, 0.9, 1.8, 1.8, 1.8, 1.8],
        [0.0, 0.0, 0.6, 0.6, 1.2, 1.2, 1.8, 1.8],
        [0.0, 0, 0, 0, 0, 0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9],
    ],
    ids=["every fourth", "every other", "once"],
)
def test_a_reference_that_is_reloaded_again_and_again(references):
    if len(references) == 8:
        shares = [0.02 + 0.3 * i for i in range(8)]
    else:
        climb = UP if len(set(references)) == 3 else [0.0, 0.18, 0.36, 0.54, 0.72, 0.9]
        shares = [0.02 + r + s for r, s in zip(references, climb * (12 // len(climb)), strict=True)]
    rng = np.random.default_rng(5)
    finding = of(checkpoints(rng, shares, references))["RESUME"]
    assert finding.status == "problem", finding.message
    assert "synchroni" in " ".join(finding.causes)
    honest_run = of(checkpoints(np.random.default_rng(5), shares))["RESUME"]
    assert honest_run.status == "ok", honest_run.message


def test_one_step_near_the_reference_is_no_verdict():
    shares = [0.0, 0.4, 0.6, 0.8, 0.02, 0.9, 1.0]
    finding = of(checkpoints(np.random.default_rng(6), shares))["RESUME"]
    assert (finding.status, "comes back" in finding.message) == ("cannot-tell", True)


@pytest.mark.parametrize("apart", [0.2, 0.35, 0.6])
def test_nothing_is_stale_at_step_0(apart):
    """An engine with other weights at step 0; the same engine some updates later may be old; noise of .05 is none."""
    rng = np.random.default_rng(7)
    pair = models(rng).at(0.0)
    law = log_softmax(pair.policy + apart * rng.normal(size=(M, V)))
    drawn = sample(rng, law, pair.follow, 320, longest=241)
    later = changed(scored(drawn, pair), tokens={"behavior_logp": law[drawn[1], drawn[2]]})
    first = changed(later, numbers={"step": np.zeros(320)})
    assert problems(first) == ["SAMPLER"]
    assert problems(changed(later, numbers={"step": np.full(320, 5.0)})) == []
    own = sample(rng, pair.policy, pair.follow, 320, longest=241)
    near = scored(own, pair, numbers={"step": np.zeros(320)})
    noise = 0.05 * rng.normal(size=near.tokens["logp"].size)
    assert problems(changed(near, tokens={"behavior_logp": np.minimum(near.tokens["logp"] + noise, 0.0)})) == []


@pytest.mark.parametrize("cold", [0.6, 0.8, 1.4])
def test_a_policy_scored_wrongly_at_step_0_is_no_exchange(cold):
    """The tokens are the reference's too at step 0, so the exchanged identity holds: the fault is in the scoring."""
    rng = np.random.default_rng(8)
    pair = models(rng).at(0.0)
    drawn = sample(rng, pair.policy, pair.follow, 512, longest=241)
    chunk = scored(drawn, pair, policy=tempered(pair.policy, cold), numbers={"step": np.zeros(512)})
    found = of(chunk)
    assert found["STEP0_KL"].status == "problem"
    assert found["SIGN"].status == "cannot-tell"
    assert "STEP0_KL" in found["SIGN"].fix
    late = of(changed(chunk, numbers={"step": np.full(512, 9.0)}))
    assert late["SIGN"].status in ("problem", "cannot-tell")


@pytest.mark.parametrize(("first", "tokens"), [(10, 6), (0, 4), (25, 12)])
def test_tool_tokens_that_are_counted_are_named(first, tokens):
    """Tool output within answers: the engine reports 0 for it, the trainer scores it."""
    _, _, good = honest(np.random.default_rng(9), answers=320)
    logp = good.tokens["logp"]
    place = np.arange(logp.size) - np.repeat(good.offsets[:-1], np.diff(good.offsets))
    tool = (place >= first) & (place < first + tokens)
    bad = changed(good, tokens={"behavior_logp": np.where(tool, 0.0, logp)})
    finding = of(bad)["TRUNCATION"]
    assert finding.status == "problem"
    assert finding.causes[0].startswith("tool output")
    whole = np.bincount(np.repeat(np.arange(np.diff(good.offsets).size), np.diff(good.offsets)), weights=~tool) > 0
    assert not whole.all() or problems(changed(bad, mask=~tool)) == []
