"""Were policy and reference scored alike? STEP0_KL, TEMPERATURE, SHIFT, KL_ZERO."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.chance import SCORING_NOISE, grouped_mean, sign_test, slope_bounds
from kleash.audit.dumps.needs import COUNTED, STEP_0, TOKENS, TWO_SIDES
from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, cannot_tell, number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.audit.dumps.statistics import Tally

    Floats = NDArray[np.float64]

__all__ = ["NOISE_GRANTED", "differs_at_start", "kl_zero", "shifted", "step0_kl", "temperature"]

SLOPE_MARGIN = 0.03
"""TEMPERATURE tolerates a slope within 3 % of 1. Ours: a temperature of .97 for 1 moves no conclusion."""

STALE_MARGIN = 0.2
"""Against behavior_logp a slope within 20 % of 1 may be honest: a few updates sharpen a policy by some per cent.
Ours."""

NOISE_GRANTED = 2 * SCORING_NOISE**2
"""Mean squared log ratio at step 0 that is granted: each of the two passes may be off by `SCORING_NOISE`."""

WIDEST = 0.25
"""TEMPERATURE says ok only if the slope is known to lie within this of 1."""

WARM_UP = 5
"""KL_ZERO waits for this many updates: a learning rate that warms up from 0 leaves the first updates without effect
(in the log of github.com/unslothai/unsloth/issues/2291 KL is 0 at the first two steps and not after)."""


@check("SHIFT", TOKENS, COUNTED, problem="exact sign test over answers", chance=True)
def shifted(tally: Tally, level: float) -> Finding:
    """Does one list fit the other better one position away?

    For each answer with five neighbouring tokens, and lists that both vary, the sum of absolute differences (cut off at
    1 nat) of the inner tokens is compared with that of all neighbours after moving one list by one. ``problem``: moving
    brings it nearer by a quarter or more in more answers than a fair coin gives (level shared by two directions and the
    lists compared). The quarter is ours: lists that belong together are not brought nearer by moving. ``ok``: nine
    answers in ten would have been enough for that, in every list.
    """
    pairs = {"ref_logp": tally.shift}
    if "behavior_logp" in tally.columns:
        pairs["behavior_logp"] = tally.sampler.shift
    evidence = Evidence(level=level)
    found, powered = "", True
    for name, shift in pairs.items():
        judged, distance = shift.judged, shift.distance / max(1, shift.inner)
        powered = powered and sign_test(math.ceil(0.9 * judged), judged) < level / (2 * len(pairs))
        evidence[name] = {"answers": judged, "distance": distance}
        for direction, moved in (("later", shift.later), ("earlier", shift.earlier)):
            p, apart = sign_test(moved.nearer, judged), moved.distance / max(1, shift.pairs)
            evidence[name][direction] = {"nearer_in": moved.nearer, "distance": apart, "p_value": p}
            if p < level / (2 * len(pairs)):
                better = f"{name} fits better one position {direction}: nearer in {moved.nearer} of {judged} answers"
                found = f"{better}, distance {number(apart)} for {number(distance)} nats"
    if found:
        return evidence.problem(
            found,
            "logits and labels are off by one on one of the two sides",
            "left padding moves the positions of one model, or a begin token is counted on one side only",
            fix="logits at position t score the token at t + 1: compare how each side is cut",
        )
    if not powered:
        message = "too few different answers with five tokens in a row and lists that vary"
        return evidence.cannot_tell(message, fix="give more answers")
    return evidence.ok("no list fits better one position later or earlier")


@check("KL_ZERO", COUNTED, problem="every log ratio exactly 0 after five updates; no chance involved")
def kl_zero(tally: Tally, level: float) -> Finding:
    """Has the policy moved at all?

    Every counted token, in every digit, at all steps; the last step is at least the fifth (see `WARM_UP`).
    """
    counted, zero = tally.ratios.finite, tally.ratios.equal
    last = None if tally.step is None or not np.isfinite(tally.step).any() else int(np.nanmax(tally.step))
    reward = tally.numbers.get("reward")
    evidence = Evidence(
        share_exactly_zero=zero / counted if counted else None,
        last_step=last,
        reward_sd=float(np.nanstd(reward)) if reward is not None and np.isfinite(reward).any() else None,
    )
    if counted and zero == counted:
        if last is None or last < WARM_UP:
            when = "no step is given" if last is None else f"the last step is {last}"
            message = f"logp and ref_logp agree in every digit; {when}, so the policy may not have been updated yet"
            return evidence.cannot_tell(message, fix="give a dump of a later step, with step")
        return evidence.problem(
            f"after {last} updates logp and ref_logp still agree in every digit: the policy is its reference",
            "the weights do not change: no gradient reaches them, or the learning rate is 0",
            "the reference shares its weights with the policy, or both scores come from one model",
            "the sampling engine was never given the new weights",
            fix="compare a checksum of the weights before and after an update, for policy and reference",
        )
    share = f"{zero / counted:.0%}" if counted else "none"
    return evidence.ok(f"policy and reference differ ({share} of the values agree in every digit)")


def differs_at_start(tally: Tally, square: Floats, level: float) -> bool:
    """Whether sums of squared log ratios of two scorings at step 0 are above the noise granted, beyond chance."""
    rows = tally.at_start
    return bool(rows.any()) and grouped_mean(square[rows], tally.n[rows]).limits(2 * level)[0] > NOISE_GRANTED


@check(
    "STEP0_KL",
    TOKENS,
    COUNTED,
    STEP_0,
    problem="t test of the squared log ratio against scoring noise (0.05 on each side)",
    chance=True,
)
def step0_kl(tally: Tally, level: float) -> Finding:
    """Is the policy its reference before the first update?

    The lower limit of the mean squared log ratio per token must be above the noise granted (0.05 squared for each pass;
    github.com/huggingface/trl/issues/6789). Over answers; the mean of a right-skewed quantity errs to the safe side.
    """
    rows = tally.at_start
    square = grouped_mean(tally.square[rows], tally.n[rows])
    drift = grouped_mean(tally.delta[rows], tally.n[rows])
    ratio = grouped_mean(tally.ratio[rows], tally.n[rows])
    spread = math.sqrt(square.value)
    evidence = Evidence(
        rms_log_ratio=spread,
        kl_per_token=drift.value,
        kl_se=drift.se,
        mean_exp_minus_delta=ratio.value,
        kl_spec=tally.kl_specs(kl_per_token="nats per token"),
        noise_granted=math.sqrt(NOISE_GRANTED),
        answers=int(rows.sum()),
        level=level,
    )
    if square.value == 0:
        return evidence.ok("at step 0 policy and reference agree in every digit")
    found = f"log ratios at step 0 spread by {number(spread)} nats per token, KL per token {number(drift.value)}"
    if differs_at_start(tally, tally.square, level):
        noisy = ratio.value - 1 > 0.25 * square.value  # noise: exp of it has mean 1 + variance / 2; other weights: 1
        dropout = "dropout was on in one of the two passes (scoring the same tokens twice then differs too)"
        weights = (
            "the reference is another model: the base instead of the fine-tuned start, an adapter not switched off"
        )
        rest = (
            "one side is shifted by a position, or scored at another temperature or precision",
            "step does not count updates: these answers were drawn after training began",
        )
        return evidence.problem(
            f"{found}: more than scoring noise ({math.sqrt(NOISE_GRANTED):.2g})",
            *((dropout, weights, *rest) if noisy else (weights, dropout, *rest)),
            fix="before training score one batch twice with the policy, once with the reference: all three must agree",
        )
    if rows.sum() < 8 or not square.limits(2 * level)[1] < 5 * NOISE_GRANTED:
        return evidence.cannot_tell(f"{found}, from {rows.sum()} answers", fix="give more answers")
    return evidence.ok(f"{found}: within scoring noise")


@check(
    "TEMPERATURE",
    TOKENS,
    COUNTED,
    TWO_SIDES,
    problem="slope between two regressions outside 1 +- 0.03 (sampler: 0.2), jackknife",
    chance=True,
)
def temperature(tally: Tally, level: float) -> Finding:
    """Are both sides scored at one temperature?

    At temperature T log-probabilities are divided by T, up to a constant. Compared: the sampler's against the policy's,
    and the reference's against the policy's at step 0; level shared. The slope that noise on either side allows is the
    one between the two regressions. The sampler's weights may be some updates older: between the two margins it is
    ``cannot-tell``. ``ok``: the slope is within 0.25 of 1, and the reference was among what was compared.
    """
    sources = {"behavior_logp": tally.sampler.slope, "ref_logp at step 0": tally.start}
    present = {name: moments for name, moments in sources.items() if (moments[:, 0] > 0).sum() >= 16}
    if not present:
        message = "too few answers at step 0 and no behavior_logp to compare temperatures"
        return cannot_tell(message, fix="give behavior_logp, or at least 16 answers at step 0")
    evidence = Evidence(level=level)
    worst, doubtful, wide = None, None, False
    for name, moments in present.items():
        forward, reverse, low, high = slope_bounds(moments, level=level / len(present))
        evidence[name] = {"slope": forward, "reverse_slope": reverse, "lo": low, "hi": high}
        margin = STALE_MARGIN if name == "behavior_logp" else SLOPE_MARGIN
        if low > 1 + margin or high < 1 - margin:
            worst = (name, math.sqrt(forward * reverse))
        elif low > 1 + SLOPE_MARGIN or high < 1 - SLOPE_MARGIN:
            doubtful = (name, math.sqrt(forward * reverse))
        wide = wide or not (low > 1 - WIDEST and high < 1 + WIDEST)
    if worst:
        name, slope = worst
        return evidence.problem(
            f"{name} moves {number(slope)} times as much as logp: temperatures differ about {1 / slope:.2g}-fold",
            "the sampling temperature is not applied when the policy is scored",
            "it is applied to the policy and not to the reference, or the other way round",
            fix="divide the logits of both models by the sampling temperature before log-softmax",
        )
    if doubtful:
        message = f"{doubtful[0]} moves {number(doubtful[1])} times as much as logp: older weights, or a temperature"
        fix = "repeat on the first batch after a weight update, where the two must agree"
        return evidence.cannot_tell(message, fix=fix)
    if wide:
        message = f"the slope is not known to within {WIDEST:g}"
        return evidence.cannot_tell(message, fix="give more answers")
    compared = " and ".join(present)
    if "ref_logp at step 0" not in present:
        message = f"{compared} and logp are at one temperature; the reference may be at another"
        return evidence.cannot_tell(message, fix="give answers of step 0, where ref_logp must be logp")
    return evidence.ok(f"{compared} against logp: no slope that another temperature would give")
