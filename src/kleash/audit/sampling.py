"""Is the sampler the policy? TRUNCATION, SAMPLER (with the sampler's log-probabilities), SURPRISAL (with entropies)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kleash.audit.evidence import CAP, KEPT_MASS_MARGIN, NOISE_MEAN, grouped_mean, mean_from_sums, mixture
from kleash.audit.findings import Finding, cannot_tell, number, ok, problem

if TYPE_CHECKING:
    from kleash.audit.declared import Declared
    from kleash.audit.tally import Tally

__all__ = ["sampler", "surprisal", "truncation"]

SPREAD_LIMIT = 1.05
"""Mean of exp|logp - behavior_logp| above which two engines are called suspicious in NeMo-RL's guide, where it is
``token_mult_prob_error`` and about 1.0 is healthy (github.com/NVIDIA-NeMo/RL/issues/1330)."""

SURPRISAL_MARGIN = 0.01
"""Nats per token by which mean surprisal may miss mean entropy: rounding of either; a temperature of .98 moves it more
on text of 1 nat per token. Ours."""


def truncation(tally: Tally, declared: Declared, level: float) -> Finding:
    """How much of the policy's mass can the sampler reach? Mean exp(logp - behavior_logp) is the kept mass.

    ``problem``: bets that the mean of the ratio, cut off at 2, is below .99 multiply their stake by more than
    1 / level (Ville; exact). A sampler that renormalises after top-p or top-k shows the mass it keeps; one that reports
    unfiltered log-probabilities hides it.
    """
    n = max(1.0, tally.counts["sampler"])
    mean, capped = tally.counts["sampler_ratio"] / n, tally.counts["sampler_capped"] / n
    wealth = mixture(tally.bets["sampler_below"])
    evidence = {
        "mean_ratio": mean,
        "kept_mass": capped,
        "cap": CAP,
        "margin": KEPT_MASS_MARGIN,
        "tokens": int(n),
        "p_value": math.exp(-max(wealth, 0.0)),
        "level": level,
    }
    found = f"the sampler reaches {number(capped)} of the policy's mass"
    if wealth > -math.log(level):
        return problem(
            "TRUNCATION",
            f"{found}: mean exp(logp - behavior_logp) is below 1",
            causes=(
                "top-p, top-k or min-p sampling, with log-probabilities renormalised over the kept tokens",
                "tokens are forbidden or forced at sampling and not at scoring",
            ),
            fix="sample from the full distribution, or divide the importance ratio by the kept mass",
            evidence=evidence,
        )
    if capped < 1 - KEPT_MASS_MARGIN:
        return cannot_tell("TRUNCATION", f"{found}, by {int(n)} tokens", fix="give more answers", evidence=evidence)
    return ok("TRUNCATION", found, evidence=evidence)


def sampler(tally: Tally, declared: Declared, level: float) -> Finding:
    """Do sampler and scorer give one token one probability? Mean exp(logp - behavior_logp) above 1 says no.

    ``problem``: bets that the mean is above 1, scoring noise granted, multiply their stake by more than 1 / level
    (Ville; exact). Samples that are some updates old keep the mean at 1 if their own log-probabilities are given; they
    only spread the ratio, and a spread above 1.05 is ``cannot-tell``.
    """
    n = max(1.0, tally.counts["sampler"])
    ratio, _ = mean_from_sums(tally.counts["sampler_ratio"], tally.counts["sampler_ratio2"], n)
    mean, error, spread = ratio.value, ratio.se, tally.counts["sampler_spread"] / n
    wealth = mixture(tally.bets["sampler_above"])
    evidence = {
        "mean_ratio": mean,
        "se": error,
        "mean_exp_abs_difference": spread,
        "rms_difference": math.sqrt(tally.counts["sampler_square"] / n),
        "noise_mean": NOISE_MEAN,
        "p_value": math.exp(-max(wealth, 0.0)),
        "level": level,
    }
    found = f"mean exp(logp - behavior_logp) is {number(mean)} +- {number(error)}"
    causes = (
        "another engine, precision or routing of experts gives the same token another probability",
        "the sampler's weights are not the policy's: stale, or not handed over",
    )
    if wealth > -math.log(level):
        return problem(
            "SAMPLER",
            f"{found}: the sampler's log-probabilities are not those of the law it sampled",
            causes=causes,
            fix="score one batch with both engines at equal weights; the differences must average to nothing",
            evidence=evidence,
        )
    if spread > SPREAD_LIMIT:
        message = (
            f"{found}, and single tokens differ by a factor of {number(spread)} on average: stale, or another engine"
        )
        fix = "repeat on the first batch after a weight update, where the two must agree"
        return cannot_tell("SAMPLER", message, causes=causes[::-1], fix=fix, evidence=evidence)
    return ok("SAMPLER", f"{found}; single tokens differ by a factor of {number(spread)} on average", evidence=evidence)


def surprisal(tally: Tally, declared: Declared, level: float) -> Finding:
    """Tokens drawn from a distribution surprise it by its entropy on average: mean(-logp) equals mean(entropy).

    Tells sharpened, truncated or hotter sampling from the policy's side alone. ``problem``: the two-sided t interval
    over answers at the check's level lies outside ``+- 0.01`` nats per token (asymptotic; answers are the units).
    """
    assert tally.surprisal_gap is not None
    used = tally.n > 0
    gap = grouped_mean(tally.surprisal_gap[used], tally.n[used])
    low, high = gap.limits(level)
    entropy = tally.counts["entropy"] / max(1.0, tally.counts["surprisal"])
    evidence = {"gap": gap.value, "se": gap.se, "entropy": entropy, "lo": low, "hi": high, "level": level}
    found = f"mean surprisal minus entropy is {number(gap.value)} +- {number(gap.se)} nats per token"
    if gap.n < 30:
        return cannot_tell(
            "SURPRISAL", f"{found}, from {gap.n} answers", fix="give at least 30 answers", evidence=evidence
        )
    if low > SURPRISAL_MARGIN or high < -SURPRISAL_MARGIN:
        sharper = gap.value < 0
        likely = "a temperature below 1, top-p or top-k at sampling" if sharper else "a temperature above 1 at sampling"
        return problem(
            "SURPRISAL",
            f"{found}: sampling is {'sharper' if sharper else 'flatter'} than the policy that scored it",
            causes=(likely, "the tokens were drawn by other weights than the ones that scored them"),
            fix="score at the sampling temperature and sample from the full distribution",
            evidence=evidence,
        )
    return ok("SURPRISAL", found, evidence=evidence)
