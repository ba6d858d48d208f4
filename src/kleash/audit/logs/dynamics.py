"""Does the update itself go wild? EXPLOSION, ENTROPY and GAIN_BOUND of a log."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.chance import t_limit
from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, cannot_tell, number
from kleash.audit.logs.needs import ENTROPY, KL, REWARD, UPDATES
from kleash.audit.logs.view import Series, series

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["entropy", "explosion", "gain_bound"]

WILD = 100.0
LIMITS = (
    (re.compile(r"(?:^|[/_])(?:ppo_kl|approx_?kl\w*|policykl\w*)$"), 1.0),
    (re.compile(r"(?:^|/)(?:probs_)?ratio(?:_mean|/mean|_avg)?$"), 10.0),
    (re.compile(r"(?:^|/)grad_norm$"), 10.0),
    (re.compile(r"(?:^|[/_])loss(?:_avg)?$"), 10.0),
)
"""Columns of an update, and how large the median of three rows must be to be called wild: old-policy KL in nats (a
trust region is some hundredths), the ratio at which TRL skips a batch, gradients and losses, which must also be `WILD`
times what they were. Ours but for the ratio."""
HOT = 3.0
"""Times its first fifth, and nats per token, that the last fifth of the entropy must pass. Ours: a uniform law over a
vocabulary of 32,000 has 10.4 nats."""
SPARE = 10.0
"""GAIN_BOUND grants this many times the logged KL. Ours: a log's KL is one estimate, its unit one label."""


@check("EXPLOSION", UPDATES, problem="old-policy KL above 1, ratio above 10, gradient or loss above 10 and 100-fold")
def explosion(view: LogView, level: float) -> Finding:
    """Do old-policy KL, ratios, losses or gradients explode?

    In the median of three neighbouring rows, so that one row is none; against the median of the rows before. What the
    trainer itself has warned of is judged row by row.
    """
    worst = ("", 0.0, 0.0, 0.0, 1.0)
    for key, values in view.log.raw.items():
        limit = next((limit for name, limit in LIMITS if name.search(key.lower())), None)
        x = series(view.log, np.abs(values))
        rows = 1 if key.startswith("warned/") else 3
        if limit is None or x.size < (1 if rows == 1 else 6):
            continue
        three = np.median(np.lib.stride_tricks.sliding_window_view(x.values, rows), axis=1)
        at = int(np.argmax(three))
        before = float(np.median(x.values[: max(at, 3)]))
        least = limit if limit != 10.0 or "ratio" in key else max(limit, WILD * before)
        if three[at] / least > worst[1]:
            worst = (key, float(three[at]) / least, float(three[at]), float(x.step[at]), before)
    key, share, value, step, before = worst
    if not key:
        return cannot_tell("fewer than six rows of them", fix="give six rows or more")
    evidence = Evidence(key=key, largest=value, step=step, before=before, of_limit=share)
    text = f"{key} reaches {number(value)} from step {step:g}, {number(before)} before"
    if share > 1:
        return evidence.problem(
            text,
            "the learning rate is too large, or too many updates are made of one batch",
            "samples are too old for the policy that learns from them",
            "a loss summed over tokens, or an advantage divided by a spread near 0",
            fix=f"go back before step {step:g}; clip gradients, lower the learning rate",
        )
    return evidence.ok(f"{text}: nothing explodes (old-policy KL, ratios, losses, gradients)")


@check("ENTROPY", ENTROPY, problem="below 0; or threefold and above 3 nats per token at the end")
def entropy(view: LogView, level: float) -> Finding:
    """Is the entropy one, and does it stay?

    An entropy over tokens cannot be below 0. No chance is involved in that; rounding is granted.
    """
    x = series(view.log, view.log.entropy)
    first, last = float(np.median(x.window(0.0, 0.2))), float(np.median(x.window(0.8, 1.0)))
    evidence = Evidence(first=first, last=last, least=float(x.values.min()), rows=x.size)
    text = f"entropy {number(first)} at the start, {number(last)} at the end"
    if last < -1e-3 or first < -1e-3:
        return evidence.problem(
            f"{text}: an entropy of tokens is not below 0",
            "it is logged as a loss, with the sign turned, or is that of a density",
            "log-probabilities above 0: the logits are not normalised",
            fix="compute it from the whole next-token distribution, in float32",
        )
    if x.size >= 10 and last > max(HOT, HOT * first):
        return evidence.problem(
            f"{text}: the policy dissolves",
            "an entropy bonus that is too large, or of the wrong sign",
            "answers that few tokens of the policy support: off-policy samples, a negative advantage on most",
            fix="go back to where it rose; lower the bonus, watch the KL there",
        )
    return evidence.ok(f"{text}: neither below 0 nor threefold and above {HOT:g}")


@check("GAIN_BOUND", KL, REWARD, problem="gain above (range / 2) sqrt(2 KL) at ten times the KL, t limit", chance=True)
def gain_bound(view: LogView, level: float) -> Finding:
    """Can so little KL have bought this much reward?

    As of dumps, from the first row to the last fifth. The range is the declared one, else 1 where all scores lie
    between 0 and 1. Mroueh 2024, arXiv 2406.05883.
    """
    r, x = view.reward, view.per_answer
    width = view.declared.reward_range or (1.0 if r.values.min() >= 0 and r.values.max() <= 1 else None)
    if width is None or r.size < 10 or x.size < 10:
        missing = "the range of the judge" if width is None else "ten rows of reward and KL per answer"
        return cannot_tell(f"needs {missing}", fix="say reward_min and reward_max in --config; log the length")
    gain, error = _gain(r)
    kl = float(np.mean(x.window(0.8, 1.0))) + 3 * x.error(max(1, x.size // 5)) * view.signed
    if kl <= 0 and bool((x.values < 0).any()):
        return cannot_tell(f"the logged KL is {number(kl)} nats an answer: no estimate to hold a gain against")
    kl += view.kl_grain * (float(np.median(view.length.values)) if view.length.size else 1.0)
    bound = width / 2 * math.sqrt(2 * SPARE * max(kl, 0.0))
    least = gain - t_limit(level, max(2, r.size // 2)) * error
    evidence = Evidence(gain=gain, gain_lo=least, kl_per_answer=kl, bound=bound, reward_range=width, level=level)
    text = f"the score gained {number(gain)} with a KL of {number(kl)} nats an answer"
    if least > bound:
        return evidence.problem(
            f"{text}: ten times that buys {number(bound)} at most",
            "the KL is to another reference than the start: the policy itself, synchronised or sharing its weights",
            "the logged KL is of one token, of one batch's updates, or has the coefficient in it",
            "the prompts became easier",
            fix="score answers of the last step with the model the run started from",
        )
    return evidence.ok(f"{text}: not above what ten times that could buy ({number(bound)})")


def _gain(r: Series) -> tuple[float, float]:
    """Mean of the last fifth minus that of the first, with its standard error."""
    first, last = r.window(0.0, 0.2), r.window(0.8, 1.0)
    return float(last.mean() - first.mean()), math.hypot(r.error(first.size), r.error(last.size))
