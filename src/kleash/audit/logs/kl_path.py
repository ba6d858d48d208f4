"""How does the KL move from row to row? KL_JUMP, KL_SPIKE, KL_GROWTH, COLLAPSE and RESUME of a log.

Thresholds on factors (ten, a hundred) are ours: an honest run reaches any KL, but not in one row. They are measured by
bench/check_logs_power.py on simulated logs; tests that depend on noise are made at the level they are given.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.ndimage import minimum_filter1d

from kleash.audit.chance import z_limit
from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, cannot_tell, number
from kleash.audit.logs.needs import KL, REWARD
from kleash.audit.logs.view import Series

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView
    from kleash.estimates import Floats

    Share = tuple[float, float]

__all__ = ["collapse", "kl_growth", "kl_jump", "kl_spike", "resume"]

JUMP, SPIKE, FALL = 10.0, 100.0, 10.0
FLOOR_TOKEN, FLOOR_ANSWER = 0.02, 1.0
"""KL below this is early training: there any factor is a matter of course."""
FEW, GIVE = 6, "give six rows or more"
"""Rows that hold no fall, jump or spike say nothing if they are fewer: each is told from rows before and after it."""
IMPOSSIBLE = 20.0
"""Nats per token above which no mean of a language model's log ratios lies (exp(-20) is one token in 5e8)."""
CHEAP = 0.25
"""Share of the gain that the root of the KL would give, below which growth buys next to nothing. Ours."""
REFERENCE_LOST = (
    "the reference was loaded from the checkpoint that was resumed",
    "the reference was synchronised with the policy",
)
WEIGHTS_LOST = ("the resumed weights are not the saved ones (checkpoint conversion)", "another reference")


@check("RESUME", KL, problem="falls to a tenth and stays, or rises tenfold at a restart")
def resume(view: LogView, level: float) -> Finding:
    """Does the KL survive a restart?"""
    x = view.per_token
    segments = int(np.unique(x.segment).size)
    evidence = Evidence(segments=segments, limit=FALL)
    found = _first_break(view)
    zeros = int((x.values[x.size // 2 :] == 0).sum())
    if found is None and view.signed and zeros > max(2, 0.05 * x.size):
        cut = f"{view.kl.key if view.kl else 'kl'} is exactly 0 in {zeros} rows of the second half"
        text = f"{cut}: an estimate that is clamped at 0 says nothing of the distance there"
        return evidence.cannot_tell(text, fix="log the KL of sampled answers")
    if found is None and x.size < FEW and segments == 1:
        return evidence.cannot_tell(f"{x.size} rows with a KL", fix=GIVE)
    if found is None:
        return evidence.ok(
            f"no tenfold change of the KL at {segments - 1} restarts"
            if segments > 1
            else "no row's KL falls to a tenth"
        )
    row, before, now = found
    at, fell, moves = f"at step {x.step[row]:g}", now < before, view.settings.reference_moves
    evidence |= {"step": float(x.step[row]), "before": before, "after": now, "ratio": now / before}
    if fell and moves is not None:
        follows = f"{moves} lets the reference follow the policy, so the KL is no distance from the start"
        return evidence.ok(f"KL falls to {number(now)} {at}: {follows}")
    return evidence.problem(
        f"KL {'falls' if fell else 'rises'} from {number(before)} to {number(now)} {at}",
        *(REFERENCE_LOST if fell else WEIGHTS_LOST),
        fix="keep the reference's own weights apart from checkpoints, and load them from where the run began",
    )


def _first_break(view: LogView) -> tuple[int, float, float] | None:
    """The first row at which the KL falls to a tenth or rises tenfold, and the KL before and after it."""
    x = view.per_token
    floor, grain = max(view.level(0.001, 0.05), 5 * view.kl_noise), view.kl_grain
    moved = (FALL * x.values[1:] < x.values[:-1]) | (x.segment[1:] != x.segment[:-1])
    for i in np.flatnonzero(moved[1:]) + 2:
        restart = bool(x.segment[i] != x.segment[i - 1])
        if restart:
            earlier = np.flatnonzero((x.segment[:i] == x.segment[i - 1]) & (x.step[:i] <= x.step[i]))[-3:]
            past = x.values[earlier if earlier.size else np.array([i - 1])]
        else:
            past = x.values[max(0, i - 3) : i][x.segment[max(0, i - 3) : i] == x.segment[i]]
        after = x.values[i : i + 3][x.segment[i : i + 3] == x.segment[i]]
        if not restart and (past.size < 3 or after.size < 3):
            continue
        before, now = float(np.median(past)), float(np.median(after))
        least, most = before - grain, now + grain  # a KL of .01 that falls to .00 may have gone from .0051 to .0049
        lasting = restart or (float(after.max()) + grain) * FALL < float(past.min()) - grain
        if before > floor and most * FALL < least and lasting:
            return int(i), before, now
        risen = now - grain > FALL * max(before + grain, floor)
        if restart and now > view.level(FLOOR_TOKEN, FLOOR_ANSWER) and before > 0 and risen:
            return int(i), before, now
    return None


@check("KL_JUMP", KL, problem="ten times the rows before and their trend, and stays")
def kl_jump(view: LogView, level: float) -> Finding:
    """Does the KL jump in one row?

    ``problem``: at least ten times the largest of the eight rows before and of their own trend, and the next two rows
    stay above five times. With fewer than four rows before, or none after, only where answers became short as well.
    """
    x, floor = view.per_token, view.level(FLOOR_TOKEN, FLOOR_ANSWER)
    if x.size < 2:
        return cannot_tell(f"{x.size} rows with a KL", fix=GIVE)
    worst, at, before = 0.0, -1, 0.0
    for i in np.flatnonzero(x.values[1:] >= JUMP * x.values[:-1]) + 1:
        past = np.abs(x.values[max(0, i - 8) : i])
        past = past[x.segment[max(0, i - 8) : i] == x.segment[i]]
        if not past.size or x.values[i] < floor:
            continue
        base = max(float(past.max()) + view.kl_grain, 0.01 * floor)
        if x.values[i] < max(JUMP * base, 5 * view.kl_noise):
            continue
        base = max(base, _trend(past))
        after = x.values[i + 1 : i + 3]
        factor = float(x.values[i]) / base
        if (past.size < 4 or not after.size) and not _short_answers(view, int(x.rows[i])):
            continue  # the KL starts at 0 and its first rows rise by any factor; of the last nobody knows that it stays
        if after.size and float(np.median(after)) < 0.5 * JUMP * base:
            continue
        if at < 0 or factor > worst:
            worst, at, before = factor, int(i), base
    unit = "nats per token" if view.token_unit else "nats per answer"
    evidence = Evidence(factor=worst if at >= 0 else None, limit=JUMP, unit=unit)
    if at < 0 and x.size < FEW:
        return evidence.cannot_tell(f"{x.size} rows with a KL", fix=GIVE)
    if at < 0 or worst < JUMP:
        return evidence.ok(f"no row is {number(JUMP)} times the rows before it")
    evidence |= {"step": float(x.step[at]), "before": before, "kl": float(x.values[at])}
    good = float(x.step[at - 1])
    short = _short_answers(view, int(x.rows[at]))
    evidence |= short
    causes = ["the learning rate is too large for one update", "a batch of extreme rewards or advantages"]
    if short:
        causes.insert(0, f"answers collapsed to {number(short['length'])} tokens")
    return evidence.problem(
        f"KL jumps from {number(before)} to {number(x.values[at])} {unit} at step {x.step[at]:g}",
        *causes,
        fix=f"go back to step {good:g}; lower the learning rate, clip gradients",
    )


def _short_answers(view: LogView, row: int) -> dict[str, float]:
    """The mean length at a row where answers are of hardly any length, or half of what they were."""
    length = view.log.length
    if length is None or not np.isfinite(length[row]):
        return {}
    earlier = length[:row][np.isfinite(length[:row])]
    halved = earlier.size > 0 and length[row] < 0.5 * float(np.median(earlier))
    return {"length": float(length[row])} if halved or length[row] < 10 else {}


def _trend(past: Floats) -> float:
    """What the rows before lead one to expect: their log-linear trend one row on, if they rise."""
    if past.size < 4 or past.min() <= 0:
        return 0.0
    t = np.arange(past.size, dtype=np.float64)
    slope, start = np.polyfit(t, np.log(past), 1)
    return float(math.exp(min(700.0, start + max(slope, 0.0) * past.size))) if slope > 0 else 0.0


@check("KL_SPIKE", KL, problem="a hundred times the rows around it, or above 20 nats per token")
def kl_spike(view: LogView, level: float) -> Finding:
    """Do a few tokens carry a row's KL?

    A row a hundred times the median of the ten around it and above the floor, that does not last; or a mean that no
    language model has.
    """
    x, floor = view.per_token, view.level(FLOOR_TOKEN, FLOOR_ANSWER)
    causes = (
        "a few tokens with a large negative log ratio: k3 grows like its exponential",
        "sampler and trainer hold different weights in that step",
    )
    fix = "clamp the log ratio, watch the share of the largest tokens; a rollout dump of that step names them"
    top = int(np.argmax(x.values))
    evidence = Evidence(largest=float(x.values[top]), step=float(x.step[top]))
    if view.token_unit and x.values[top] > IMPOSSIBLE:
        text = f"KL {number(x.values[top])} nats per token at step {x.step[top]:g}: no mean of log ratios is that"
        return evidence.problem(text, *causes, fix=fix)
    if x.size < FEW:
        return evidence.cannot_tell(f"{x.size} rows with a KL", fix=GIVE)
    least = minimum_filter1d(x.values, 11, mode="nearest")
    for i in np.flatnonzero((x.values >= floor) & (x.values > SPIKE * least)):
        around = np.concatenate([x.values[max(0, i - 5) : i], x.values[i + 1 : i + 6]])
        base, after = float(np.median(around)), x.values[i + 1 : i + 3]
        if (
            0 < base < x.values[i] / SPIKE
            and x.values[i] > 8 * view.kl_noise
            and (not after.size or after.min() < 0.1 * x.values[i])
        ):
            evidence |= {"around": base, "step": float(x.step[i]), "largest": float(x.values[i])}
            text = f"KL {number(x.values[i])} at step {x.step[i]:g}, {number(x.values[i] / base)} times "
            return evidence.problem(text + "the rows around it", *causes, fix=fix)
    return evidence.ok(f"no row is {number(SPIKE)} times the rows around it")


@check("KL_GROWTH", KL, problem="doubles faster than linearly (z test) and buys next to nothing", chance=True)
def kl_growth(view: LogView, level: float) -> Finding:
    """Does the KL run away while the score stands?

    From the middle of the run to its end the KL at least doubles, faster than the steps to the power 1.5 (on its
    logarithm), and the judge's score does not measurably rise, or by less than `CHEAP` of what it rose before times
    ``sqrt(KL now / KL then) - 1``: a gain grows like the root of the KL at best (Gao et al. 2023, arXiv 2210.10760). Or
    it so runs past 1 nat per token (50 per answer) before the middle.
    """
    x = view.per_token
    positive = x.values > 0
    evidence = _shape(x)
    told = f"; {evidence['words']}" if evidence.get("words") else ""
    if positive.sum() < 20:
        return evidence.cannot_tell(
            f"{int(positive.sum())} rows with a KL above 0{told}", fix="give twenty rows or more"
        )
    if view.signed and positive[1:].mean() < 0.9:
        message = (
            f"{number(100 * (1 - positive.mean()))} % of rows are not above 0: chance moves the KL more than it grows"
        )
        return evidence.cannot_tell(message, fix="average several rows, or log k3")
    own = Series(
        rows=x.rows[positive], step=x.step[positive], segment=x.segment[positive], values=np.log(x.values[positive])
    )
    late = _stretch(view, own, (0.4, 0.6), (0.8, 1.0), level)
    before = [_stretch(view, own, *shares, level) for shares in (((0.1, 0.3), (0.4, 0.6)), ((0.0, 0.1), (0.25, 0.45)))]
    wild = [early for early in before if early["runs_away"] and early["kl_end"] > view.level(1.0, 50.0)]
    found, where = (wild[0], "before the middle") if wild else (late, "from the middle to the end")
    evidence |= {name: value for name, value in found.items() if name != "runs_away"} | {"level": level}
    judge, error = found["reward_gain"], found["reward_gain_se"]
    grew = f"KL grew {number(found['rise'])} times {where}{told}"
    if found["runs_away"] and (judge is None or error is None):
        return evidence.cannot_tell(f"{grew}; no reward to hold it against")
    if found["runs_away"] and judge < max(2 * error, found["reward_gain_due"]):
        return evidence.problem(
            f"{grew}, faster than linearly, and the judge's score moved by {number(judge)}",
            "past the frontier: drift that buys nothing",
            "one answer for every prompt (mode collapse)",
            f"the learning rate is too large{', beta too small' if view.settings.beta != 0 else ''}",
            fix="stop where the score stopped rising; raise beta or lower the learning rate",
        )
    worth = (
        "faster than linearly, and the judge's score pays for it" if found["runs_away"] else "not faster than linearly"
    )
    return evidence.ok(f"{grew}: {worth}")


def _stretch(view: LogView, logs: Series, before: Share, after: Share, level: float) -> dict[str, Any]:
    """How the logarithm of the KL moves between two shares of the run, whether it runs away, and what that bought."""
    (a, b), (c, d) = before, after
    rise = float(np.median(logs.window(c, d)) - np.median(logs.window(a, b)))
    error = 1.2533 * logs.lasting(max(1, int(0.2 * logs.size))) * math.sqrt(2)  # of two medians
    steps = [np.median(logs.step[int(p * logs.size) : max(int(q * logs.size), 1)]) for p, q in (before, after)]
    start = float(view.per_token.step[0])
    near, far = (max(float(step) - start + 1, 1.0) for step in steps)  # at least 1, unless steps go backwards
    power = 1.5 * math.log(far / near)
    end = float(math.exp(np.median(logs.window(c, d))))
    large = end > view.level(FLOOR_TOKEN, FLOOR_ANSWER)
    found: dict[str, Any] = {"rise": math.exp(rise), "superlinear_from": math.exp(power), "kl_end": end}
    found["runs_away"] = rise > math.log(2) and rise - z_limit(level / 4) * error > power and large
    r = view.reward
    if r.size < 10:
        return found | {"reward_gain": None, "reward_gain_se": None, "reward_gain_due": None}
    first, middle, last = r.window(0.0, a), r.window(a, b), r.window(c, d)
    earned = max(float(middle.mean() - first.mean()), 0.0) if a > 0 else 0.0  # one row earns nothing measurable
    return found | {
        "reward_gain": float(last.mean() - middle.mean()),
        "reward_gain_se": math.hypot(r.error(middle.size), r.error(last.size)),
        "reward_gain_due": CHEAP * earned * math.expm1(max(rise, 0.0) / 2),
    }


def _shape(x: Series) -> Evidence:
    """How the KL grows from its first value above 0: doubling time if it is near an exponential, else its power."""
    keep = x.values > 0
    if keep.sum() < 5:
        return Evidence()
    t, y = x.step[keep], np.log(x.values[keep])
    found = Evidence()
    straight = np.corrcoef(t, y)[0, 1] ** 2 if np.ptp(t) > 0 and np.ptp(y) > 0 else 0.0
    spread = float(np.square(t - t.mean()).sum())
    slope = float((t - t.mean()) @ y) / spread if math.isfinite(spread) and spread > 0 else 0.0
    late = t - t[0] + 1
    power_fit = np.corrcoef(np.log(late), y)[0, 1] ** 2 if np.ptp(y) > 0 else 0.0
    found |= {"exponential_r2": float(straight), "power_r2": float(power_fit), "rate": slope}
    if straight > 0.9 and slope > 0 and math.exp(np.ptp(y)) > 10:
        doubling = math.log(2) / slope
        found |= {"doubling_steps": doubling, "words": f"near-exponential, doubles every {number(doubling)} steps"}
    return found


@check(
    "COLLAPSE",
    REWARD,
    problem="half of the gain, or a tenth of the start, lost (z test); KL or length changed twofold",
    chance=True,
)
def collapse(view: LogView, level: float) -> Finding:
    """Does the score fall back as KL or length moves?

    From its best window to the end the score also loses a tenth of itself and four times its noise (corrected for the
    choice of the best). Where the score has fallen from the start by half of itself, nothing else must have moved.
    """
    r = view.reward
    if r.size < 10:
        return cannot_tell(f"{r.size} rows with a reward", fix="give ten rows or more")
    width = max(3, r.size // 20)
    means = np.convolve(r.values, np.ones(width) / width, mode="valid")
    best = int(np.argmax(means[:-width] if means.size > width else means))
    noise = r.error(width)
    drop, gain = float(means[best] - means[-1]), float(means[best] - means[0])
    z = z_limit(level / max(2, r.size // width)) * math.sqrt(2)
    evidence = Evidence(
        best=float(means[best]),
        end=float(means[-1]),
        best_step=float(r.step[best + width // 2]),
        noise=noise,
        level=level,
    )
    fallen = drop > max(0.5 * gain, z * noise, 4 * noise) and drop > 0
    moved: list[str] = []
    at, last = r.rows[best : best + width], r.rows[-width:]
    for name, values in (("KL", None if view.kl is None else view.kl.values), ("length", view.log.length)):
        if values is None:
            continue
        first, final = np.asarray(values)[at], np.asarray(values)[last]
        first, final = first[np.isfinite(first)], final[np.isfinite(final)]
        if not first.size or not final.size or np.median(first) <= 0 or np.median(final) <= 0:
            continue
        ratio = float(np.median(final) / np.median(first))
        evidence[f"{name.lower()}_ratio"] = ratio
        if ratio > 2 or (name == "length" and ratio < 0.5):
            moved.append(f"{name} {number(ratio)} times")
    text = f"reward {number(means[best])} at best, {number(means[-1])} at the end"
    since = float(means[0] - means[-1])
    lost = fallen and since > 0.5 * abs(float(means[0])) and since > max(z * noise, 4 * noise)
    leash = view.settings.beta != 0 and (view.kl is not None or view.trainer.implicit)
    if (fallen and moved and drop > 0.1 * abs(float(means[best]))) or lost:
        return evidence.problem(
            f"{text}, {' and '.join(moved)} meanwhile" if moved else f"{text}, below the start",
            "the policy has left what the judge can score: over-optimisation",
            "too long or too short answers",
            "learning rate or samples too old",
            fix=f"go back to step {evidence['best_step']:g}; {'raise beta' if leash else 'lower the learning rate'}",
        )
    if fallen:
        return evidence.cannot_tell(f"{text}: fallen, and neither KL nor length shows why", fix="log KL and length")
    return evidence.ok(f"{text}: no fall beyond half of the gain and its noise")
