"""Are the log's numbers numbers? NON_FINITE of a log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["non_finite"]

WATCHED = ("loss", "kl", "grad_norm", "reward", "score", "entropy", "ratio")
ONE_REWARD = re.compile(r"(?:train/|eval/|eval_)?rewards/(?!chosen|rejected|margins|accuracies)")
SPREADS = ("/std", "_std", "_var", "/var")
CLOCK = re.compile(r"(?:^|[/_])(?:epoch|(?:global_)?steps?|timestamp|runtime|time)$|^_")
"""Columns of any kind of row."""
KIND = re.compile(r"(?:eval|val|valid|validation|test|train)(?=[_/])")
"""What columns of one kind of row begin with."""

SKIPPED = 0.05
"""Share of rows in which a loss scaler may skip a step. Ours."""


@check("NON_FINITE", problem="one is not; no chance involved")
def non_finite(view: LogView, level: float) -> Finding:
    """Is every loss, KL, gradient and reward a number?

    A single reward function may be ``nan``: earlier TRL writes that where it applied to no answer of a batch. So may a
    spread, which one value does not have, and a cell that rows of this kind never fill: a table of training and
    evaluation rows pads each with the other's columns. A KL that never is a number beside a loss that always is was not
    computed. Single infinite gradients in float16 are steps that the loss scaler skips.
    """
    bad: dict[str, list[int]] = {}
    for key, values in view.log.raw.items():
        last = key.lower()
        if not any(word in last for word in WATCHED):
            continue
        if ONE_REWARD.match(last) or last.endswith(SPREADS):
            continue
        rows = {int(i) for i in np.flatnonzero(np.isinf(values))} | _missing(view, key)
        if rows:
            bad[key] = sorted(rows)
    skipped = [key for key in bad if _scaled(view, key, bad[key])]
    absent = [key for key in bad if _never_computed(view, key)]
    bad = {key: rows for key, rows in bad.items() if key not in (*skipped, *absent)}
    if not bad:
        text = f"{view.log.rows} rows, every watched value is a number"
        text += f", but {', '.join(absent)}: no KL in this run (beta is 0)" if absent else ""
        text += f", but {', '.join(skipped)} in single rows: steps that a loss scaler skips" if skipped else ""
        return Evidence(rows=0).ok(text)
    key = min(bad, key=lambda k: bad[k][0])
    step = float(view.log.step[bad[key][0]])
    evidence = Evidence(first_key=key, first_step=step, rows={k: len(v) for k, v in bad.items()})
    return evidence.problem(
        f"{key} is not a number at step {step:g}" + (f"; also in {len(bad) - 1} other keys" if len(bad) > 1 else ""),
        *_causes(view),
        fix=f"stop before step {step:g}; look at the tokens of that batch (a rollout dump says more)",
    )


def _causes(view: LogView) -> tuple[str, ...]:
    overflow = "exp(ref_logp - logp) overflows in k3, or its clamp leaves 0 times infinity in the gradient"
    penalised = not view.trainer.implicit and view.settings.beta != 0 and view.settings.where != "none"
    rest = ("a batch without a counted token: 0 / 0", "a low-precision kernel")
    return (overflow, *rest) if penalised else (*rest, "a learning rate that is too large")


def _missing(view: LogView, key: str) -> set[int]:
    """Rows in which a key is undefined, less those whose number is elsewhere or not due."""
    rows = view.log.undefined.get(key, ())
    if not rows:
        return set()
    values = {k: np.isfinite(x) for k, x in view.log.raw.items() if not CLOCK.search(k.lower())}
    there = values.get(key)
    if there is None or not there.any():
        return set(rows)
    beside = [x for k, x in values.items() if _kind(k) == _kind(key) and (x & there).any()]
    return {i for i in rows if not there[i] and any(x[i] for x in beside)}


def _kind(key: str) -> str:
    found = KIND.match(key.lower())
    return "" if found is None or found[0] == "train" else found[0]


def _never_computed(view: LogView, key: str) -> bool:
    """Whether a KL is no number in any row of a run whose loss always is one: it is not in the loss."""
    loss = view.raw("loss", "actor/loss", "policy_loss")
    stem = key.rpartition("/")[2].lower()
    known = loss is not None and bool(np.isfinite(loss).any()) and not view.log.undefined.get(view.key("loss") or "")
    return known and "kl" in stem.split("_") and not bool(np.isfinite(view.log.raw[key]).any())


def _scaled(view: LogView, key: str, rows: list[int]) -> bool:
    """Whether these are gradients of steps that float16's loss scaler skips: few, never in a row, infinite or said."""
    few = "grad" in key and len(rows) <= max(1, SKIPPED * view.log.rows) and bool((np.diff(rows) > 1).all())
    half = any(view.log.config.get(name) in (True, "True", "true", "fp16", "float16") for name in ("fp16", "precision"))
    return few and view.log.rows >= 10 and (half or bool(np.isinf(view.log.raw[key][rows]).all()))
