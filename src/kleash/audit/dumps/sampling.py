"""Is the sampler the policy? TRUNCATION, SAMPLER (with the sampler's log-probabilities), SURPRISAL (with entropies)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kleash.audit.chance import (
    CAP,
    KEPT_MASS_MARGIN,
    NOISE_MEAN,
    SCORING_NOISE,
    detectable,
    grouped_mean,
    mixture,
)
from kleash.audit.dumps.needs import BEHAVIOR_LOGP, ENTROPY, TOKENS
from kleash.audit.dumps.ratios import LOST, SUNK, SURPRISAL_MARGIN
from kleash.audit.dumps.scoring import differs_at_start
from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, number

if TYPE_CHECKING:
    from kleash.audit.dumps.statistics import Tally

__all__ = ["sampler", "surprisal", "truncation"]

SPREAD_LIMIT = 1.05
"""Mean of exp|logp - behavior_logp| above which two engines are called suspicious in NeMo-RL's guide, where it is
``token_mult_prob_error`` and about 1.0 is healthy (github.com/NVIDIA-NeMo/RL/issues/1330)."""

DETECTABLE = 0.05
"""Kept mass that TRUNCATION must be able to miss before it says ok: top_p = .95 keeps .95 to .98."""

STALE = 2 * math.sqrt(2) * SCORING_NOISE
"""Spread of logp - behavior_logp above which the sampler's weights are taken for older than the policy's. Ours: twice
what two kernels make of equal weights."""


@check(
    "TRUNCATION",
    TOKENS,
    BEHAVIOR_LOGP,
    problem="betting martingale against a kept mass of .99, and the plain mean below it",
    chance=True,
)
def truncation(tally: Tally, level: float) -> Finding:
    """How much of the policy's mass can the sampler reach?

    Mean exp(logp - behavior_logp) is the kept mass.

    ``problem``: bets that the mean of the ratio, cut off at 2, is below .99 multiply their stake by more than 1 / level
    (Ville; exact for weights of one age). A sampler some updates old spreads the ratio both ways, and the cut alone
    then lowers its mean; renormalising after top-p or top-k only lowers ratios. So the plain mean must be below .99
    too, by 3 standard errors, and less than 1 % of tokens may be raised by more than 0.2 nats; else ``cannot-tell``. A
    sampler that reports unfiltered log-probabilities hides all of it.
    """
    drawn = tally.sampler
    (plain, _), (cut, _) = drawn.ratio.mean(), drawn.capped.mean()
    mean, capped, raised = plain.value, cut.value, drawn.raised / drawn.tokens
    wealth = mixture(drawn.below)
    evidence = Evidence(
        mean_ratio=mean,
        se=plain.se,
        kept_mass=capped,
        cap=CAP,
        margin=KEPT_MASS_MARGIN,
        share_raised=raised,
        tokens=drawn.tokens,
        detectable=detectable(cut.se, level),
        p_value=math.exp(-max(wealth, 0.0)),
        level=level,
    )
    found = f"the sampler reaches {number(capped)} of the policy's mass"
    falls = mean + 3 * plain.se < 1 - KEPT_MASS_MARGIN
    if wealth > -math.log(level) and falls and drawn.forced >= 0.005 * drawn.tokens:
        return evidence.problem(
            f"{drawn.forced} counted tokens have behavior_logp 0 and are not certain: the sampler did not draw them",
            "tool output or prompt tokens are counted as the policy's own",
            "behavior_logp is filled with 0 where the engine gave none",
            fix="mask every token that the policy did not draw; then read the kept mass",
        )
    if wealth > -math.log(level) and falls and raised < 0.01:
        return evidence.problem(
            f"{found}: mean exp(logp - behavior_logp) is below 1",
            "top-p, top-k or min-p sampling, with log-probabilities renormalised over the kept tokens",
            "tokens are forbidden or forced at sampling and not at scoring",
            "the policy has moved to tokens that an older sampler hardly ever drew",
            fix="sample from the full distribution, or divide the importance ratio by the kept mass",
        )
    if raised >= 0.01 and capped < 1 - KEPT_MASS_MARGIN:
        message = f"{raised:.0%} of tokens are likelier now than when drawn: the sampler is older, or another engine"
        fix = "repeat on the first batch after a weight update, where the two must agree"
        return evidence.cannot_tell(message, fix=fix)
    if not detectable(cut.se, level) <= DETECTABLE or capped < 1 - KEPT_MASS_MARGIN:
        return evidence.cannot_tell(f"{found}, by {drawn.tokens} tokens", fix="give more answers")
    return evidence.ok(f"{found}, not below {1 - KEPT_MASS_MARGIN:g}")


@check(
    "SAMPLER",
    TOKENS,
    BEHAVIOR_LOGP,
    problem="betting martingale against a mean ratio of 1; at step 0 more than scoring noise; tokens 20 nats lower",
    chance=True,
)
def sampler(tally: Tally, level: float) -> Finding:
    """Do sampler and scorer agree on the tokens' probabilities?

    Mean exp(logp - behavior_logp), scoring noise granted, above 1 says no. Samples that are some updates old keep the
    mean at 1 if their own log-probabilities are given; they only spread the ratio, and a spread above 1.05 is
    ``cannot-tell``. Nothing is stale at step 0, where the spread must be scoring noise, as for STEP0_KL (level shared
    by the two); and no few updates take `SUNK` nats from one token in a thousand, or `LOST` from one.
    """
    drawn = tally.sampler
    ratio, _ = drawn.ratio.mean()
    mean, error, spread = ratio.value, ratio.se, drawn.spread / drawn.tokens
    wealth = mixture(drawn.above)
    evidence = Evidence(
        mean_ratio=mean,
        se=error,
        mean_exp_abs_difference=spread,
        rms_difference=drawn.rms,
        noise_mean=NOISE_MEAN,
        tokens_10_nats_lower=drawn.sunk,
        tokens_20_nats_lower=drawn.lost,
        detectable=detectable(error, level / 2),
        p_value=math.exp(-max(wealth, 0.0)),
        level=level,
    )
    found = f"mean exp(logp - behavior_logp) is {number(mean)} +- {number(error)}"
    causes = (
        "another engine, precision or routing of experts gives the same token another probability",
        "the sampler's weights are not the policy's: stale, or not handed over",
    )
    assert tally.sampler_square is not None
    if drawn.lost or drawn.sunk >= max(2, drawn.tokens / 1000):
        nats, tokens = (LOST, drawn.lost) if drawn.lost else (SUNK, drawn.sunk)
        return evidence.problem(
            f"logp is more than {nats:g} nats below behavior_logp on {tokens} of {drawn.tokens} tokens just drawn",
            "the trainer scores these tokens wrongly (a broken prefix, a fill value, a kernel, another routing)",
            "the answers are from another policy than the one that scored them",
            fix="look at these tokens; score their answers again with the sampler's own code",
        )
    if differs_at_start(tally, tally.sampler_square, level / 2):
        return evidence.problem(
            f"at step 0 logp and behavior_logp differ by more than scoring noise ({number(drawn.rms)} nats a token)",
            "the engine holds other weights than the trainer: nothing is stale before the first update",
            *causes[:1],
            fix="load the same checkpoint into both and score one batch: the two must agree",
        )
    if wealth > -math.log(level / 2):
        return evidence.problem(
            f"{found}: the sampler's log-probabilities are not those of the law it sampled",
            *causes,
            fix="score one batch with both engines at equal weights; the differences must average to nothing",
        )
    if not evidence["detectable"] <= 0.1:
        return evidence.cannot_tell(f"{found}, by {drawn.tokens} tokens", fix="give more answers")
    if spread > SPREAD_LIMIT:
        message = (
            f"{found}, and single tokens differ by a factor of {number(spread)} on average: stale, or another engine"
        )
        fix = "repeat on the first batch after a weight update, where the two must agree"
        return evidence.cannot_tell(message, *causes[::-1], fix=fix)
    return evidence.ok(f"{found}; single tokens differ by a factor of {number(spread)} on average")


@check(
    "SURPRISAL", TOKENS, ENTROPY, problem="betting martingale against +- 0.01 nats per token, exact level", chance=True
)
def surprisal(tally: Tally, level: float) -> Finding:
    """Is mean surprisal the mean entropy?

    Tokens drawn from a distribution surprise it by its entropy on average: this tells sharpened, truncated or hotter
    sampling from the policy's side alone. Exact for vocabularies of up to 262,144 tokens: surprisal is cut off at 18.4
    nats, which bounds the bets, and no variance is estimated. Where ``behavior_logp`` shows that the sampler is older
    than the policy (`STALE`), it is ``cannot-tell``.
    """
    assert tally.surprisal_gap is not None
    used = tally.n > 0
    gap = grouped_mean(tally.surprisal_gap[used], tally.n[used])
    tokens, wealth = tally.surprisal.tokens, mixture(tally.surprisal.wealth)
    least = max(detectable(gap.se, level), SURPRISAL_MARGIN + 20 * math.log(10 / level) / tokens)
    evidence = Evidence(
        gap=gap.value,
        se=gap.se,
        entropy=tally.surprisal.entropy / tokens,
        detectable=least,
        p_value=math.exp(-max(wealth, 0.0)),
        level=level,
    )
    found = f"mean surprisal minus entropy is {number(gap.value)} +- {number(gap.se)} nats per token"
    if wealth > -math.log(level):
        if tally.sampler.rms > STALE:
            message = f"{found}, and behavior_logp is not logp: the sampler is older, or another engine"
            fix = "repeat on the first batch after a weight update, where the two must agree"
            return evidence.cannot_tell(message, fix=fix)
        sharper = gap.value < 0
        likely = "a temperature below 1, top-p or top-k at sampling" if sharper else "a temperature above 1 at sampling"
        return evidence.problem(
            f"{found}: sampling is {'sharper' if sharper else 'flatter'} than the policy that scored it",
            likely,
            "the tokens were drawn by other weights than the ones that scored them",
            "the answers are a selection, or entropy is not that of the policy's full distribution",
            fix="score at the sampling temperature and sample from the full distribution",
        )
    if gap.n < 30 or not least <= 0.1:
        return evidence.cannot_tell(f"{found}, from {gap.n} answers", fix="give more answers, 30 at least")
    return evidence.ok(f"{found}: not off by more than {number(least)}")
