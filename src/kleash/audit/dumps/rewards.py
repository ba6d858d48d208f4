"""What do the rewards say about the leash? COEFFICIENT, ZERO_VARIANCE, GAIN_BOUND, HACKING, and effective beta."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.audit.chance import Estimate, binomial_tail, grouped_mean, mean_and_se, t_limit, z_limit
from kleash.audit.dumps.needs import BETA, COUNTED, GOLD, PROMPT_ID, RANGE, REWARD, STEPS
from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, cannot_tell, number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.audit.dumps.statistics import Tally
    from kleash.estimates import Floats

__all__ = ["EffectiveBeta", "coefficient", "effective_beta", "gain_bound", "hacking", "zero_variance"]

R2_LEAST = 0.5
"""Below this share of explained variance a slope says nothing of a tilt: the policy is not (yet) one. Ours: at .5 the
two regressions differ by a factor of two, which is the precision a coefficient is argued about at."""

COEFFICIENT_MARGIN = 0.05
"""A declared beta within 5 % of the interval passes. Ours: finite training misses the optimum by more."""


@dataclass(frozen=True, kw_only=True)
class EffectiveBeta:
    """Slope of reward on the log ratio within prompts, in reward units per nat, and the reverse regression.

    At the tilt ``reward = beta * (logp - ref_logp) + constant of the prompt`` exactly, so both slopes are beta. Noise
    (a policy that is not the tilt, other rewards) puts beta between them. ``lo`` and ``hi`` are 95 % limits of the two
    ends, by a jackknife over prompts.
    """

    slope: float
    reverse: float
    r2: float
    lo: float
    hi: float
    slope_se: float
    reverse_se: float
    prompts: int
    answers: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data, the errors left out."""
        names = ("slope", "lo", "hi", "r2", "reverse", "prompts", "answers")
        return {"value" if name == "slope" else name: getattr(self, name) for name in names}

    def limits(self, level: float) -> tuple[float, float]:
        """Interval that misses a beta between the two slopes with probability ``level``."""
        t = t_limit(level / 2, self.prompts - 1)
        return self.slope - t * self.slope_se, self.reverse + t * self.reverse_se


def _groups(tally: Tally, *, last_step: bool) -> list[NDArray[np.int64]]:
    """Rows with a reward, by prompt and step; ``last_step`` keeps only the latest policy's answers."""
    prompt, reward = tally.prompt, tally.numbers["reward"]
    assert prompt is not None
    used = (prompt >= 0) & np.isfinite(reward)
    step = np.zeros(tally.rows) if tally.step is None else np.where(np.isfinite(tally.step), tally.step, -1.0)
    if last_step and used.any():
        used &= step == step[used].max()
    rows = np.flatnonzero(used)
    order = rows[np.lexsort((rows, step[rows], prompt[rows]))]
    if order.size == 0:
        return []
    new = (np.diff(prompt[order]) != 0) | (np.diff(step[order]) != 0)
    return [group for group in np.split(order, np.flatnonzero(new) + 1) if group.size >= 2]


def _units(tally: Tally, rows: NDArray[np.bool_]) -> int:
    return int(rows.sum()) if tally.prompt is None else int(np.unique(tally.prompt[rows]).size)


def _mean(tally: Tally, values: Floats, rows: NDArray[np.bool_]) -> Estimate:
    """Mean over answers; prompts are the independent units where they are known, answers where they are not."""
    if tally.prompt is None or (tally.prompt[rows] < 0).any():
        return mean_and_se(values[rows])
    _, prompt = np.unique(tally.prompt[rows], return_inverse=True)
    return grouped_mean(np.bincount(prompt, weights=values[rows]), np.bincount(prompt))


def effective_beta(tally: Tally) -> EffectiveBeta | None:
    """The beta that the last step's answers are consistent with; None where there are fewer than 5 usable prompts.

    Use it to see whether the trainer's coefficient means what its owner thinks. It needs a policy near its optimum.
    """
    if not {"prompt_id", "reward"} <= tally.columns:
        return None
    parts = []
    for rows in _groups(tally, last_step=True):
        x, y = tally.delta[rows], tally.numbers["reward"][rows]
        x, y = x - x.mean(), y - y.mean()
        parts.append((float(x @ x), float(x @ y), float(y @ y), rows.size))
    if len(parts) < 5:
        return None
    moments = np.array(parts)
    total = moments.sum(axis=0)
    if not total[1] > 0 or not total[0] > 0:
        return None
    left = total - moments
    g = len(parts)
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes, reverses = left[:, 1] / left[:, 0], left[:, 2] / left[:, 1]
    errors = [math.sqrt((g - 1) / g * float(np.square(s - s.mean()).sum())) for s in (slopes, reverses)]
    slope, reverse = float(total[1] / total[0]), float(total[2] / total[1])
    t = t_limit(0.025, g - 1)
    return EffectiveBeta(
        slope=slope,
        reverse=reverse,
        r2=slope / reverse,
        lo=slope - t * errors[0],
        hi=reverse + t * errors[1],
        slope_se=errors[0],
        reverse_se=errors[1],
        prompts=g,
        answers=int(total[3]),
    )


@check(
    "COEFFICIENT",
    COUNTED,
    REWARD,
    PROMPT_ID,
    BETA,
    problem="declared beta above the jackknife interval of the effective one",
    chance=True,
)
def coefficient(tally: Tally, level: float) -> Finding:
    """Is the leash as tight as declared, by the effective beta?

    Above the interval (by a 5 % margin) the policy has gone further than the declared leash lets any policy go. Below
    it is ``cannot-tell``: so far a training run may simply not have converged. Below R squared .5 it is ``cannot-tell``
    too.
    """
    found = effective_beta(tally)
    assert tally.declared.beta is not None
    if found is None:
        return cannot_tell(
            "rewards and log ratios do not move together within prompts, or fewer than 5 prompts have two answers",
            fix="give several answers per prompt of a trained policy",
        )
    low, high = found.limits(level)
    evidence = Evidence(
        declared=tally.declared.beta,
        effective=found.slope,
        reverse=found.reverse,
        lo=low,
        hi=high,
        r2=found.r2,
        prompts=found.prompts,
        answers=found.answers,
        level=level,
    )
    text = f"effective beta is {number(found.slope)} to {number(found.reverse)} (R2 {found.r2:.2f})"
    if found.r2 < R2_LEAST:
        message = f"{text}: too loose a relation to read a coefficient from"
        return evidence.cannot_tell(message, fix="use a later step: the policy is not near its optimum")
    if tally.declared.beta > high * (1 + COEFFICIENT_MARGIN):
        return evidence.problem(
            f"{text}, declared is {number(tally.declared.beta)}: the leash is looser than it says",
            "the coefficient does not reach the loss (an argument not passed on, a flag not read)",
            "the penalty is a mean over tokens where the reward counts once per answer: divide beta by the length",
            "rewards are divided by their spread in a group, which multiplies beta by it",
            "the KL term's gradient is not that of the KL (k3 or k1 in the loss)",
            fix="double beta for one batch and see whether the loss or the advantages change",
        )
    if tally.declared.beta < low * (1 - COEFFICIENT_MARGIN):
        message = (
            f"{text}, declared is {number(tally.declared.beta)}: not converged, or the penalty counts more than once"
        )
        return evidence.cannot_tell(message, fix="use a later step")
    if not 0 < high < 2 * low:
        message = f"{text} [{number(low)}, {number(high)}]: a leash half as tight could not be told from this one"
        return evidence.cannot_tell(message, fix="give more prompts with several answers")
    return evidence.ok(f"{text}, declared is {number(tally.declared.beta)}")


@check("ZERO_VARIANCE", REWARD, PROMPT_ID, problem="exact binomial limit of the share above one half", chance=True)
def zero_variance(tally: Tally, level: float) -> Finding:
    """In how many groups is the KL the only gradient?

    Equal rewards in a group give advantage 0, the penalty stays: most of the batch then only pulls the policy back to
    the reference. One half is ours.
    """
    groups = _groups(tally, last_step=False)
    if len(groups) < 5:
        message = f"{len(groups)} groups with two answers or more"
        return cannot_tell(message, fix="give several answers per prompt_id")
    reward = tally.numbers["reward"]
    flat = sum(bool(np.ptp(reward[rows]) == 0) for rows in groups)
    p = binomial_tail(flat, len(groups), 0.5)
    evidence = Evidence(groups=len(groups), equal_rewards=flat, share=flat / len(groups), p_value=p, level=level)
    found = f"{flat} of {len(groups)} groups have equal rewards, where the KL is the only gradient"
    if p < level:
        return evidence.problem(
            f"{found}: most groups",
            "the task is solved or hopeless for most prompts",
            "the judge gives few distinct scores",
            fix="drop such groups from the batch, penalty included, or mix in prompts of middling difficulty",
        )
    if binomial_tail(math.ceil(0.9 * len(groups)), len(groups), 0.5) >= level:
        return evidence.cannot_tell(f"{found}: too few groups", fix="give more groups")
    return evidence.ok(f"{found}: not most")


@check(
    "GAIN_BOUND",
    COUNTED,
    REWARD,
    STEPS,
    RANGE,
    problem="gain above (range / 2) sqrt(2 KL), t limits on both",
    chance=True,
)
def gain_bound(tally: Tally, level: float) -> Finding:
    """Can this little KL have bought this much reward?

    A bounded judge gains at most (range / 2) sqrt(2 KL), whatever the policy (half the range is a sub-Gaussian constant
    of a bounded score; Mroueh 2024, arXiv 2406.05883); above it the KL or the range is wrong. From step 0 to the last
    step, over prompts, level shared.
    """
    assert tally.step is not None
    assert tally.declared.reward_range is not None
    reward, last = tally.numbers["reward"], np.nanmax(tally.step)
    scored = np.isfinite(reward)
    start, end = scored & (tally.step == 0), scored & (tally.step == last)
    if last == 0 or start.sum() < 30 or end.sum() < 30 or _units(tally, start) < 8 or _units(tally, end) < 8:
        message = f"{start.sum()} rewards at step 0 and {end.sum()} at step {last:.0f}"
        return cannot_tell(message, fix="give 30 scored answers to 8 prompts of step 0 and of a later one")
    first, final, moved = (_mean(tally, x, at) for x, at in ((reward, start), (reward, end), (tally.drawn, end)))
    gain = final - first
    grant = t_limit(level / 2, gain.n - 1) * gain.se
    upper = moved.value + t_limit(level / 2, moved.n - 1) * moved.se
    bound = tally.declared.reward_range / 2 * math.sqrt(2 * max(upper, 0.0))
    evidence = Evidence(
        gain=gain.value,
        gain_lo=gain.value - grant,
        kl_per_answer=moved.value,
        kl_hi=upper,
        kl_spec=tally.kl_specs(sampler=True, kl_per_answer="nats per answer", kl_hi="nats per answer"),
        bound=bound,
        reward_range=tally.declared.reward_range,
        level=level,
    )
    found = f"reward gained {number(gain.value)} for {number(moved.value)} nats; the bound is {number(bound)}"
    if gain.value - grant > bound:
        return evidence.problem(
            f"{found}: no policy can do that",
            "the KL is measured to another reference than the start: synchronised, reloaded, or the policy itself",
            "the KL is a mean per token and not the sum over the answer",
            "the judge leaves the declared range",
            fix="score the same answers with the model the run started from",
        )
    if not bound + grant < tally.declared.reward_range:
        message = f"{found}: at this KL no gain within the range could pass it"
        return evidence.cannot_tell(message, fix="check an earlier step, or give more answers")
    return evidence.ok(f"{found}: not passed")


@check(
    "HACKING",
    COUNTED,
    REWARD,
    GOLD,
    STEPS,
    problem="z tests of both, corrected for the choice of the best step",
    chance=True,
)
def hacking(tally: Tally, level: float) -> Finding:
    """Does the judge's score rise while true quality falls?

    From the step of best gold to the last one, each by a one-sided test over prompts; level shared by the two and by
    the steps the best was chosen from.
    """
    assert tally.step is not None
    reward, gold = tally.numbers["reward"], tally.numbers["gold"]
    both = np.isfinite(reward) & np.isfinite(gold) & np.isfinite(tally.step)
    steps = [s for s in np.unique(tally.step[both]) if _units(tally, both & (tally.step == s)) >= 30]
    if len(steps) < 2:
        return cannot_tell("fewer than two steps with gold on 30 prompts", fix="score gold at several steps")
    golds, rewards = ([_mean(tally, x, both & (tally.step == s)) for s in steps] for x in (gold, reward))
    best = int(np.argmax([g.value for g in golds[:-1]]))
    fall, rise = golds[best] - golds[-1], rewards[-1] - rewards[best]
    z = z_limit(level / (2 * (len(steps) - 1)))
    kl = float(tally.drawn[tally.step == steps[best]].mean())
    evidence = Evidence(
        best_step=int(steps[best]),
        last_step=int(steps[-1]),
        gold_fall=fall.value,
        gold_fall_se=fall.se,
        reward_rise=rise.value,
        reward_rise_se=rise.se,
        kl_at_best=kl,
        kl_spec=tally.kl_specs(sampler=True, kl_at_best="nats per answer"),
        detectable_gold_fall=2 * z * fall.se,
        level=level,
    )
    since = f"since step {int(steps[best])} gold moved by {number(-fall.value)} and reward by {number(rise.value)}"
    if all(moved.value > max(z * moved.se, 0.0) for moved in (fall, rise)):
        return evidence.problem(
            f"{since}: the judge is being gamed",
            "the leash is too long for this judge: beyond this KL its score no longer means quality",
            fix=f"go back to step {int(steps[best])} or hold its KL ({number(kl)} nats); fix the judge",
        )
    if not z * fall.se <= float(gold[both].std()):
        return evidence.cannot_tell(f"{since}, too noisy to tell", fix="score gold on more prompts")
    return evidence.ok(f"{since}: gold does not fall under the judge")
