"""The checks of a log: what each asks, what it needs, when it speaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.audit import (
    coefficient_log,
    dynamics,
    judged,
    linter,
    log_sampler,
    log_values,
    placement,
    units_log,
    upgrades,
)
from kleash.audit.evidence import FAMILY_LEVEL
from kleash.audit.findings import Finding, cannot_tell

if TYPE_CHECKING:
    from kleash.audit.declared import Declared
    from kleash.audit.logview import LogView

__all__ = ["LOG_CHECKS", "LOG_NEEDS", "SEVERAL_RUNS", "LogCheck", "facts_of", "run_log_checks"]


@dataclass(frozen=True, kw_only=True)
class LogCheck:
    """An entry of the catalogue of logs; the fields are those of `kleash.audit.findings.Check`."""

    code: str
    asks: str
    needs: tuple[str, ...]
    rule: str
    run: Callable[[LogView, Declared, float], Finding]
    chance: bool = False


LOG_NEEDS: dict[str, tuple[str, Callable[[LogView], bool]]] = {
    "kl": ("a KL against the reference", lambda v: v.kl is not None and v.kl_series.size > 0 and v.per_token.size > 0),
    "loss": ("a loss", lambda v: v.key("loss", "actor/loss") is not None),
    "reward": ("a reward", lambda v: v.reward.size > 0),
    "gold": ("gold (--gold NAME)", lambda v: v.gold.size > 0),
    "version": ("the trainer's version", lambda v: v.version is not None),
    "ratio": (
        "importance ratios of the sampler",
        lambda v: v.key("sampling/importance_sampling_ratio/mean") is not None,
    ),
    "mismatch": ("a measure of sampler against trainer", lambda v: v.key(*log_sampler.MISMATCH) is not None),
    "advantages": (
        "advantages, or the share of groups without spread",
        lambda v: (
            v.key(
                "frac_reward_zero_std",
                "baseline_reward/pct_mixed",
                "critic/advantages/max",
                "advantages/max",
                "critic/advantages/mean",
                "advantages/mean",
            )
            is not None
        ),
    ),
    "endings": (
        "a count of end tokens or of cut answers",
        lambda v: v.key("val/num_eos_tokens", *log_sampler.CUT) is not None,
    ),
    "agreement": (
        "a column with the agreement of judge and gold within prompts",
        lambda v: any(judged.AGREEMENT.search(k) and "pooled" not in k.lower() for k in v.log.raw),
    ),
    "runs": ("two runs of one trainer with known coefficients", lambda v: False),
    "moves": ("a KL, or a DPO loss", lambda v: v.kl is not None or v.trainer == "trl-dpo"),
}

LOG_CHECKS: tuple[LogCheck, ...] = (
    LogCheck(
        code="NON_FINITE",
        asks="Is every loss, KL, gradient and reward a number?",
        needs=(),
        rule="one is not; no chance involved",
        run=log_values.non_finite,
    ),
    LogCheck(
        code="COEFFICIENT",
        asks="Does the log's arithmetic give the stated coefficient?",
        needs=(),
        rule="stated value outside what the digits allow",
        run=coefficient_log.coefficient,
    ),
    LogCheck(
        code="PLACEMENT",
        asks="Is the penalty in the loss, the reward, both, nowhere?",
        needs=(),
        rule="both; nowhere though configured; elsewhere than configured",
        run=placement.placement,
    ),
    LogCheck(
        code="SIGN",
        asks="Is drift punished?",
        needs=("kl",),
        rule="the log's coefficient is below 0",
        run=placement.sign,
    ),
    LogCheck(
        code="KL_UNIT",
        asks="Is the logged KL in the penalty's unit, without the coefficient?",
        needs=("kl",),
        rule="the coefficient is off by the mean length, or is 1",
        run=units_log.kl_unit,
    ),
    LogCheck(
        code="LOSS",
        asks="Is the loss nothing but beta * KL?",
        needs=("kl", "loss"),
        rule="never; it explains",
        run=units_log.loss_explained,
    ),
    LogCheck(
        code="GRADIENT",
        asks="Does this estimator in this place pull back?",
        needs=("kl",),
        rule="exact gradient is 0 or points away",
        run=linter.gradient_of_log,
    ),
    LogCheck(
        code="CONTROLLER",
        asks="Do target and horizon fit, does the coefficient stay in reach?",
        needs=(),
        rule="target in the other unit; a hundredfold runaway; an update that breaks",
        run=linter.controller,
    ),
    LogCheck(
        code="KL_NEGATIVE",
        asks="Is the KL negative beyond chance?",
        needs=("kl",),
        rule="Markov bound on the sum over rows, exact level; k3 by more than rounding",
        run=log_values.kl_negative,
        chance=True,
    ),
    LogCheck(
        code="KL_ZERO",
        asks="Has the policy moved at all?",
        needs=("moves",),
        rule="KL exactly 0 after the first row; DPO's loss stays at ln 2",
        run=log_values.kl_zero,
    ),
    LogCheck(
        code="STEP0_KL",
        asks="Is the policy its reference at the start?",
        needs=("kl",),
        rule="first row, of step 0 or 1, above 0.02 nats per token",
        run=log_values.step0_kl,
    ),
    LogCheck(
        code="RESUME",
        asks="Does the KL survive a restart?",
        needs=("kl",),
        rule="falls to a tenth and stays, or rises tenfold at a restart",
        run=dynamics.resume,
    ),
    LogCheck(
        code="KL_JUMP",
        asks="Does the KL jump in one row?",
        needs=("kl",),
        rule="ten times the rows before and their trend, and stays",
        run=dynamics.kl_jump,
    ),
    LogCheck(
        code="KL_SPIKE",
        asks="Do a few tokens carry a row's KL?",
        needs=("kl",),
        rule="a hundred times the rows around it, or above 20 nats per token",
        run=dynamics.kl_spike,
    ),
    LogCheck(
        code="KL_GROWTH",
        asks="Does the KL run away while the score stands?",
        needs=("kl",),
        rule="doubles faster than linearly (z test) without gain",
        run=dynamics.kl_growth,
        chance=True,
    ),
    LogCheck(
        code="COLLAPSE",
        asks="Does the score fall back as KL or length moves?",
        needs=("reward",),
        rule="half of the gain lost (z test), KL or length changed twofold",
        run=dynamics.collapse,
        chance=True,
    ),
    LogCheck(
        code="HACKING",
        asks="Does the judge rise while true quality stands or falls?",
        needs=("reward", "gold"),
        rule="t limits over windows of rows",
        run=judged.hacking,
        chance=True,
    ),
    LogCheck(
        code="AGREEMENT",
        asks="Does the judge still rank answers as gold does?",
        needs=("agreement",),
        rule="falls by .03 and its noise (t limit)",
        run=judged.agreement,
        chance=True,
    ),
    LogCheck(
        code="ZERO_VARIANCE",
        asks="Is the KL the only gradient?",
        needs=("advantages",),
        rule="in most groups of the last half, where there is a KL",
        run=log_values.advantages,
    ),
    LogCheck(
        code="ENDINGS",
        asks="Do answers end?",
        needs=("endings",),
        rule="no end token; 95 % cut at the limit",
        run=log_sampler.endings,
    ),
    LogCheck(
        code="TRUNCATION",
        asks="How much of the mass can the sampler reach?",
        needs=("ratio",),
        rule="mean importance ratio below .99 (t limit), none near the cap",
        run=log_sampler.kept_mass,
        chance=True,
    ),
    LogCheck(
        code="SAMPLER",
        asks="Do sampler and trainer agree?",
        needs=("mismatch",),
        rule="median row above the source's limit",
        run=log_sampler.sampler,
    ),
    LogCheck(
        code="UPGRADE",
        asks="Did a release change the KL of this script?",
        needs=("version",),
        rule="two runs on both sides of a change, and the KL went missing",
        run=upgrades.upgrade,
    ),
)


SEVERAL_RUNS: tuple[LogCheck, ...] = (
    LogCheck(
        code="SWEEP",
        asks="Does the KL fall as the coefficient rises?",
        needs=("kl", "runs"),
        rule="it rises by half and four times its noise, up to the shorter run's last step",
        run=lambda view, declared, level: cannot_tell("SWEEP", "one run"),
    ),
)
"""Checks of several runs together (`kleash.audit.log_frontier`), here for the catalogue."""


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def run_log_checks(view: LogView) -> list[Finding]:
    """Every check of the catalogue; those that rest on chance at `FAMILY_LEVEL` divided by how many of them can run."""
    missing = {c.code: [LOG_NEEDS[name][0] for name in c.needs if not LOG_NEEDS[name][1](view)] for c in LOG_CHECKS}
    tests = sum(c.chance and not missing[c.code] for c in LOG_CHECKS)
    findings = []
    for check in LOG_CHECKS:
        lacking = missing[check.code]
        if lacking:
            reason = f"needs {' and '.join(lacking)}"
            if check.code == "HACKING" and view.reward.size and view.log.components:
                reason += f"; the log has {', '.join(sorted(view.log.components))}"
            findings.append(Finding(code=check.code, status="not-run", message=reason, evidence={"missing": lacking}))
        else:
            findings.append(check.run(view, view.declared, FAMILY_LEVEL / max(1, tests)))
    return findings


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def facts_of(view: LogView) -> dict[str, Any]:
    """What the log says without being judged; null where it says nothing."""
    estimator, _ = linter.known_term(view)
    where = placement.placed(view).where
    kl = view.kl
    end = view.kl_series.values[-max(1, view.kl_series.size // 5) :] if kl is not None else np.array([])
    return {
        "placement": where,
        "estimator": None if where == "none" else estimator,
        "coefficient": coefficient_log.facts_of_coefficient(view),
        "logged_kl_unit": kl.spec.unit if kl is not None and kl.unit_known else None,
        "penalty_kl_unit": units_log.penalty_unit(view),
        "effective_beta": None,
        "run": view.log.run,
        "trainer_version": view.log.trainer_version,
        "kl_column": None if kl is None else kl.key,
        "kl_spec": None if kl is None else kl.spec.to_dict(),
        "kl_transform": None if kl is None else kl.transform,
        "kl_last": float(end.mean()) if end.size else None,
        "kl_against_old_policy": [c.key for c in view.log.kl if c.against == "old-policy"],
        "gold": view.gold_name,
        "segments": int(np.unique(view.log.segment).size),
        "notes": list(view.log.notes),
    }
