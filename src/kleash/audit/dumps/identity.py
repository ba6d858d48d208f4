"""Did the policy that scored the tokens draw them? IDENTITY, KL_NEGATIVE, SIGN, CONCENTRATION, OVERFLOW.

Under honest sampling ``exp(ref_logp - logp)`` has mean 1 token by token, and so has its product over an answer,
whatever the drift. With ``behavior_logp`` the law that drew the tokens is the sampler's, and the same is asked of it:
samples some updates old are honest. The answers must be unselected, distinct draws. See `kleash.audit.chance` for the
tests and their false-alarm rates.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.chance import (
    NOISE_MEAN,
    SCORING_NOISE,
    detectable,
    mean_and_se,
    mean_of_exp,
    mixture,
    tail_p_value,
)
from kleash.audit.dumps.needs import COUNTED, TOKENS
from kleash.audit.dumps.ratios import HEIGHTS
from kleash.audit.dumps.scoring import differs_at_start
from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, number

if TYPE_CHECKING:
    from kleash.audit.dumps.statistics import Tally

__all__ = ["concentration", "identity", "kl_negative", "sign"]

DETECTABLE = 0.1  # IDENTITY says ok only if the bets would find a mean off by a tenth
FEWEST = 8  # answers below which no mean over answers is called ok

SAMPLING_CAUSES = (
    "sampling options (top-k, top-p, min length, suppressed end token, n-gram blocking) change the law that is sampled",
    "the tokens were drawn by other weights or another precision than the ones that scored them",
    "one side was scored with dropout on, at another temperature, or shifted by a position",
    "logp and ref_logp are exchanged, or a mask lets in tokens that the policy did not choose",
    "the answers are a selection: overlong ones dropped, filtered by reward, best of n, or copies of one another",
)
SAMPLING_FIX = (
    "score with dropout off and at the sampling temperature, sample without top-k/top-p/min-length, and give the "
    "sampler's own log-probabilities as behavior_logp to see which side is off"
)

BEHIND = "for behavior_logp, not for logp: logp is some updates newer, or wrong"
BEHIND_FIX = "read SAMPLER; repeat on the first batch after a weight update, where the two must agree"

MORE = "give the lists per token (or length beside the sums, so that less noise must be granted), or more answers"


@check("IDENTITY", COUNTED, problem="betting martingale (Ville), exact level, any tail", chance=True)
def identity(tally: Tally, level: float) -> Finding:
    """Is mean exp(ref_logp - logp) 1, as for the policy's own samples?

    ``exp(ref_logp - logp)`` per token and as a product over each answer, with effective sample sizes. Sums without
    ``length`` are granted the noise of one token per 0.1 nats of surprisal.

    ``problem``: bets that the mean is above 1 multiply their stake by more than 1 / level (exact false-alarm rate,
    heavy tails included). A mean below 1 is never a problem by itself: the reference may hold mass on tokens the policy
    no longer draws. ``ok``: within 3 standard errors of 1, and a mean off by `DETECTABLE` would have been found.
    """
    whole, ess_answers = mean_of_exp(-tally.drawn)
    evidence = Evidence(
        mean_per_answer=whole.value,
        ess_answers=ess_answers,
        answers=tally.rows,
        copies_left_out=tally.copies,
        drawn_by="behavior_logp" if tally.has_sampler else "logp",
    )
    if tally.has_tokens:
        unit, (found, ess) = "token", tally.ratios.identity.mean()
        evidence |= {"mean_per_token": found.value, "se_per_token": found.se, "ess_tokens": ess, "tokens": found.n}
    else:
        unit, found, ess = "answer", whole, ess_answers
    mean, se, wealth = found.value, found.se, mixture(tally.ratios.wealth)
    least = detectable(se, level)
    evidence |= {"p_value": math.exp(-max(wealth, 0.0)), "level": level, "detectable": least}
    said = f"mean exp(ref_logp - {evidence['drawn_by']}) per {unit} is {number(mean)} +- {number(se)}"
    said += f" (effective sample {ess:.0f})"
    if wealth > -math.log(level):
        return evidence.problem(f"{said}, not 1: not samples of this policy", *SAMPLING_CAUSES, fix=SAMPLING_FIX)
    if not least <= DETECTABLE or tally.rows < FEWEST:
        return evidence.cannot_tell(
            f"{said}: too few effective samples to see a deviation of {DETECTABLE:g}",
            fix="check an earlier step, where the policy is nearer to the reference, or give more answers",
        )
    if mean > 1 + 3 * se + (NOISE_MEAN - 1):
        message = f"{said}, above 1, and no more than scoring noise and chance could make it"
        return evidence.cannot_tell(message, *SAMPLING_CAUSES, fix=MORE)
    if mean < 1 - 3 * se - (NOISE_MEAN - 1):
        return evidence.cannot_tell(
            f"{said}, below 1",
            "the policy no longer draws tokens that the reference would: honest, and not visible in samples",
            "truncated or sharpened sampling (top-p, top-k, temperature below 1)",
            fix="give behavior_logp (then TRUNCATION decides), or entropy (then SURPRISAL does)",
        )
    if mixture(tally.ratios.own_wealth) > -math.log(level):
        return evidence.cannot_tell(f"{said}, {BEHIND}", fix=BEHIND_FIX)
    return evidence.ok(f"{said}: 1 within chance")


@check("KL_NEGATIVE", COUNTED, problem="Markov bound on exp(-sum of log ratios), exact level, any tail", chance=True)
def kl_negative(tally: Tally, level: float) -> Finding:
    """Is the KL negative beyond chance?

    By Markov the chance that ``sum(logp - ref_logp) <= -x`` over the whole dump is at most ``exp(-x)``, with the
    scoring noise granted per token. ``ok``: the mean is not negative, or negative by less than chance gives.
    """
    total, tokens = float(tally.drawn.sum()), tally.tokens if tally.has_tokens else 0
    per_answer = mean_and_se(tally.drawn)
    granted = tally.ratios.granted
    bound = -total - granted * math.log(NOISE_MEAN)
    evidence = Evidence(
        kl_per_answer=per_answer.value,
        se=per_answer.se,
        kl_per_token=total / tokens if tokens else None,
        kl_spec=tally.kl_specs(sampler=True, kl_per_answer="nats per answer", kl_per_token="nats per token"),
        noise_granted_to_tokens=granted,
        detectable_kl_per_answer=(math.log(level) - granted * math.log(NOISE_MEAN)) / tally.rows,
        p_value=math.exp(-max(bound, 0.0)),
        level=level,
    )
    found = f"KL per answer is {number(per_answer.value)} +- {number(per_answer.se)} nats"
    if any(tally.faults.counts[name] for name in ("logp", "ref_logp", "behavior_logp")):
        return evidence.cannot_tell(f"{found} without the non-finite values", fix="mend NON_FINITE first")
    if bound > -math.log(level):
        message = f"{found}, negative beyond chance: not samples of this policy"
        return evidence.problem(message, *SAMPLING_CAUSES, fix=SAMPLING_FIX)
    if per_answer.value + 3 * per_answer.se < 0:
        message = f"{found}: negative, and no more than scoring noise could make it"
        return evidence.cannot_tell(message, *SAMPLING_CAUSES, fix=MORE)
    if tally.rows < FEWEST:
        return evidence.cannot_tell(f"{found}, from {tally.rows} answers", fix="give more answers")
    if -float(tally.delta.sum()) - granted * math.log(NOISE_MEAN) > -math.log(level):
        return evidence.cannot_tell(f"{found} {BEHIND}", fix=BEHIND_FIX)
    return evidence.ok(f"{found}: not negative beyond chance")


@check("SIGN", COUNTED, problem="IDENTITY fails and the exchanged identity holds; at most IDENTITY's level")
def sign(tally: Tally, level: float) -> Finding:
    """Are policy and reference exchanged?

    Then exp(logp - ref_logp) has mean 1 and exp(ref_logp - logp) has not: the exchanged identity must hold within 3
    standard errors that are below `DETECTABLE`. ``ok``: had they been exchanged, IDENTITY would have said so; or, with
    ``behavior_logp``, the sampler agrees with ``logp`` far better.
    """
    forward, swapped = mixture(tally.ratios.wealth), mixture(tally.ratios.exchanged_wealth)
    exchanged, _ = tally.ratios.exchanged.mean() if tally.has_tokens else mean_of_exp(tally.delta)
    mean, se = exchanged.value, exchanged.se
    evidence = Evidence(mean_exchanged=mean, se=se, p_value=math.exp(-max(forward, 0.0)), level=level)
    found = f"mean exp(logp - ref_logp) is {number(mean)} +- {number(se)}"
    limit = -math.log(level)
    fits = abs(mean - 1) <= 3 * se + (NOISE_MEAN - 1) and 3 * se <= DETECTABLE
    if forward > limit and differs_at_start(tally, tally.square, level):
        return evidence.cannot_tell(f"{found}, and at step 0 it would be whichever is wrong", fix="mend STEP0_KL first")
    if forward > limit and swapped < limit and fits and float(tally.delta.sum()) < 0:
        return evidence.problem(
            f"{found} while the right way round it is not 1: the columns fit when exchanged",
            "logp and ref_logp are exchanged, or the KL is taken as ref - policy",
            "the answers were drawn from the reference, not from the policy",
            fix="exchange the columns, or score answers that the policy itself has drawn",
        )
    if forward > limit:
        return evidence.cannot_tell(f"{found}: neither way round is right", fix="mend IDENTITY first")
    if tally.has_sampler:
        near, far = tally.sampler.rms, math.sqrt(tally.ratios.squares / tally.sampler.tokens)
        evidence |= {"rms_sampler_to_logp": near, "rms_sampler_to_ref_logp": far}
        known = far > 2 * max(near, SCORING_NOISE) and tally.tokens >= 100
    else:
        known = swapped > limit
    if not known:
        return evidence.cannot_tell(
            f"the two columns are too much alike to tell which is which: exchanged, {found}",
            fix="give answers of a later step, or more of them",
        )
    return evidence.ok(f"policy minus reference, as it should be; exchanged, {found}")


@check(
    "CONCENTRATION", TOKENS, COUNTED, problem="binomial bound on the number of large ratios, exact level", chance=True
)
def concentration(tally: Tally, level: float) -> Finding:
    """Do a few tokens carry the KL, more than chance gives?

    Under honest sampling a token has ``ref_logp - logp >= h`` with probability at most ``exp(-h)``; the number of such
    tokens is held against the binomial at fifteen heights (corrected). The share of k3 in the top 0.1 % of tokens is
    reported and not judged: after much training it is high in honest runs too.
    """
    p, where = tail_p_value(tally.ratios.drawn_heights, HEIGHTS, tally.tokens)
    share, top = _top_share(tally)
    height, count = HEIGHTS[where], int(tally.ratios.drawn_heights[where])
    evidence = Evidence(
        top_share_k3=share,
        top_tokens=top,
        height=height,
        tokens_above=count,
        tokens_expected_at_most=tally.tokens * NOISE_MEAN * math.exp(-height),
        p_value=p,
        level=level,
    )
    carried = "no token differs" if share is None else f"the top 0.1 % of tokens carry {share:.0%} of k3"
    if p < level:
        expected = number(tally.tokens * NOISE_MEAN * math.exp(-height))
        return evidence.problem(
            f"{carried}; {count} tokens have ref_logp - logp above {height:g} where chance gives at most {expected}",
            "single tokens were not drawn from the scored policy (stale weights, another engine, a broken prefix)",
            "tokens forced by the format or a tool are counted as the policy's own",
            fix="look at these tokens first; mask forced ones, or clamp delta before k3 and say so",
        )
    if tally.tokens < 1000:
        message = f"{tally.tokens} tokens: the top 0.1 % is less than one"
        return evidence.cannot_tell(message, fix="give more answers")
    if tail_p_value(tally.ratios.heights, HEIGHTS, tally.tokens)[0] < level:
        return evidence.cannot_tell(f"{carried}; no more large ratios than chance gives {BEHIND}", fix=BEHIND_FIX)
    return evidence.ok(f"{carried}; no more large ratios than chance gives")


def _top_share(tally: Tally) -> tuple[float | None, int]:
    """Share of the sum of k3 in the largest 0.1 % of tokens, from a histogram with bins of 2.3 %."""
    counts, sums = tally.ratios.k3_counts, tally.ratios.k3_sums
    top = math.ceil(tally.tokens / 1000)
    total = float(sums.sum())
    if not total > 0 or not math.isfinite(total):
        return None, top
    above = np.cumsum(counts[::-1])
    full = int(np.searchsorted(above, top, side="left"))
    carried = float(sums[::-1][:full].sum())
    left = top - (int(above[full - 1]) if full else 0)
    if full < counts.size and counts[::-1][full]:
        carried += float(sums[::-1][full]) * left / int(counts[::-1][full])
    return carried / total, top


@check(
    "OVERFLOW",
    TOKENS,
    COUNTED,
    problem="a token past float32 (88.7), or past 20 against the binomial bound",
    chance=True,
)
def overflow(tally: Tally, level: float) -> Finding:
    """Does k3 overflow, or a clamp cut tokens off?

    Past 88.7 exp leaves float32 (ln of the largest float32 is 88.72); honest sampling gives a token above 20 with
    probability at most ``tokens * exp(-20)``. 20 is the input clamp of verl, NeMo-RL and slime; an output clamp at 10,
    which they and OpenRLHF use, also cuts the gradient of every token whose k3 reaches it: counted, not judged.
    """
    above_20, above_88 = int(tally.ratios.heights[HEIGHTS.index(20.0)]), int(tally.ratios.heights[HEIGHTS.index(88.7)])
    drawn = int(
        tally.ratios.drawn_heights[HEIGHTS.index(20.0)]
    )  # under the sampler's law where it is given: stale is honest
    chance = min(1.0, tally.tokens * NOISE_MEAN * math.exp(-20.0))
    clamped = tally.ratios.clamped
    evidence = Evidence(
        {
            "tokens_above_20": above_20,
            "tokens_above_88.7": above_88,
            "tokens_k3_above_10": clamped,
            "tokens": tally.tokens,
            "p_value": chance if drawn or tally.sampler.lost else 1.0,
            "level": level,
        }
    )
    if above_88 or ((drawn or (above_20 and tally.sampler.lost)) and chance < level):
        worst = f"{above_88} tokens past 88.7, where exp leaves float32" if above_88 else "none past 88.7"
        return evidence.problem(
            f"{above_20} tokens have ref_logp - logp above 20 ({worst})",
            "the policy gives almost no chance to tokens in the dump: they were not drawn from it",
            "k3 without a limit on its input: clamping the result leaves 0 * inf in the gradient",
            fix="find out who drew these tokens; in the trainer clamp delta (not the result), or use k1 in the reward",
        )
    if tally.tokens < 1000:
        message = f"{tally.tokens} tokens, none past float32: too few to speak for a run"
        return evidence.cannot_tell(message, fix="give more answers")
    if above_20 and chance < level:
        return evidence.cannot_tell(
            f"{above_20} tokens have ref_logp - logp above 20, and none has by behavior_logp: logp is newer, or wrong",
            fix=BEHIND_FIX,
        )
    note = f"; k3 reaches 10 on {clamped} of {tally.tokens} tokens, which an output clamp cuts off" if clamped else ""
    return evidence.ok(f"no token is past float32, and no more past 20 than chance gives{note}")
