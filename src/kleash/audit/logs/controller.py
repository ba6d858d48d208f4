"""Does an adaptive coefficient stay in reach? CONTROLLER of a log."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, number
from kleash.trainers.columns import PER_ANSWER, PER_TOKEN

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["controller"]

RUNAWAY = 100.0
"""Factor by which a coefficient may move in a run before it is called a runaway. Ours."""


@check("CONTROLLER", problem="target in the other unit; a hundredfold runaway; an update that breaks")
def controller(view: LogView, level: float) -> Finding:
    """Do target and horizon fit, does the coefficient stay in reach?

    ``problem``: target or horizon that break the rule; a coefficient that moved a hundredfold and still runs, or left
    the numbers; an adaptive one that never moved while the KL was off target; a target that only fits the KL of the
    other unit (per token, per answer). No chance is involved.
    """
    settings, c = view.settings, view.coefficient
    target, horizon = settings.target, settings.horizon
    evidence = Evidence(target=target, horizon=horizon, batch=settings.batch)
    fix_unit = "give the target in the unit of the KL that the controller is fed"
    adaptive = settings.adaptive is True
    if (adaptive or settings.adaptive is None) and (
        (target is not None and target <= 0 and adaptive) or (horizon is not None and horizon <= 0)
    ):
        return evidence.problem(
            f"target {target}, horizon {horizon}: the update divides by them",
            "no validation of the settings",
            fix="set both above 0",
        )
    if adaptive and horizon is not None and settings.batch is not None and 0.2 * settings.batch >= horizon:
        text = f"horizon {number(horizon)} with {settings.batch} answers a batch: one batch takes the coefficient to 0"
        return evidence.problem(
            text, "horizon counted in batches", fix=f"a horizon above {number(0.2 * settings.batch)}"
        )
    if adaptive and target is not None and view.kl is not None:
        finding = _target_unit(view, target, evidence, fix_unit)
        if finding is not None:
            return finding
    if not c.size:
        if adaptive:
            return evidence.cannot_tell("adaptive, and the coefficient is not logged")
        return evidence.ok("no adaptive controller is stated: nothing moves the coefficient")
    return _path(view, adaptive, target, evidence)


def _target_unit(view: LogView, target: float, evidence: Evidence, fix: str) -> Finding | None:
    """A target that no KL comes near in the controller's unit, and does in the other."""
    own_token = view.trainer.controller.startswith(PER_TOKEN)
    own = view.per_token if own_token and view.token_unit else view.per_answer if not own_token else None
    other = view.per_answer if own_token else view.per_token if view.token_unit else None
    if own is None or other is None or own.size < 5 or other.size < 5:
        return None
    level, elsewhere = (float(np.median(x.values[x.size // 2 :])) for x in (own, other))
    unit, wrong = (PER_TOKEN, PER_ANSWER) if own_token else (PER_ANSWER, PER_TOKEN)
    evidence |= {"kl": level, "unit": unit, "kl_in_other_unit": elsewhere}
    if level <= 0 or elsewhere <= 0:
        return None
    off, off_other = abs(math.log(target / level)), abs(math.log(target / elsewhere))
    if off > math.log(10) and off_other < math.log(4) and off_other < off / 2:
        way = "falls to 0" if target > level else "grows without end"
        return evidence.problem(
            f"target {number(target)} fits the KL in {wrong} ({number(elsewhere)}); the controller is fed {unit} "
            f"({number(level)}): the coefficient {way}",
            "a target from a trainer that counts in the other unit (6 nats per answer, 0.1 per token)",
            fix=fix,
        )
    return None


def _path(view: LogView, adaptive: bool, target: float | None, evidence: Evidence) -> Finding:
    values = view.coefficient.values
    raw = np.asarray(view.log.coefficient, dtype=np.float64)
    first, last = float(values[0]), float(values[-1])
    evidence |= {"first": first, "last": last, "rows": int(values.size)}
    path = f"the coefficient goes from {number(first)} to {number(last)}"
    if np.isinf(raw).any():
        return evidence.problem(
            "the coefficient becomes infinite",
            "a target that the KL cannot reach: the update multiplies for ever",
            fix="a target in reach, an upper limit on the coefficient",
        )
    if (values < 0).any():
        return evidence.problem(
            "the coefficient becomes negative: drift is paid for",
            "horizon too short for the batch",
            fix="a longer horizon",
        )
    if first > 0 and last > 0 and values.size >= 5:
        ratio, late = last / first, last / float(values[3 * values.size // 4])
        if (ratio >= RUNAWAY and late > 1.05) or (ratio <= 1 / RUNAWAY and late < 0.95):
            up = ratio > 1
            return evidence.problem(
                f"{path} and does not stop",
                "the target is in another unit than the KL it is fed",
                "the KL cannot reach the target" if up else "the KL never comes up to the target",
                fix="compare target and logged KL in one unit; simulate with kleash.controllers",
            )
    still = bool(np.ptp(values) == 0)
    if adaptive and still and values.size >= 10 and target is not None and view.kl is not None:
        x = view.per_token if view.trainer.controller.startswith(PER_TOKEN) else view.per_answer
        off = x.size >= 10 and float(np.mean(np.abs(x.values / target - 1) > 0.1)) > 0.9
        if off:
            return evidence.problem(
                f"the coefficient stays at {number(first)} with the KL off its target",
                "the option is not read: the controller is fixed",
                fix="check which controller is built",
            )
    return evidence.ok(f"the coefficient stays at {number(first)}" if still else f"{path}: it does not run away")
