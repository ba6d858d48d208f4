"""Does the sampler draw what the trainer scores? What trainers log of their engine: ends, kept mass, mismatch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.chance import mean_and_se, t_limit
from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, cannot_tell, number
from kleash.audit.logs.needs import CUT, ENDINGS, ENGINE, MISMATCH, RATIO
from kleash.audit.logs.view import series

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["endings", "kept_mass", "sampler"]

NEAR_CAP = 2.0
"""A largest ratio above this, in a tenth of the rows, means that the cap of 3 may have been reached. Ours: a token's
ratio is exp(.477) = 1.6 at most in trl issue 6789."""


TAIL = 5
"""Rows at the end of a log that decide alone whether answers still end. Ours."""


@check("ENDINGS", ENDINGS, problem="no end token; 95 % cut at the limit")
def endings(view: LogView, level: float) -> Finding:
    """Do answers end?

    In the median row, of the run or of its last fifth, and in the last five rows.
    """
    ends, cut = series(view.log, view.raw("val/num_eos_tokens")), series(view.log, view.raw(*CUT))
    if ends.size:
        evidence = Evidence(end_tokens=float(ends.values.sum()), rows=ends.size)
        last = ends.window(0.8, 1.0)
        tail = ends.values[-TAIL:]
        usual = float(ends.values[:-TAIL].mean()) if ends.size > TAIL else 0.0
        if usual * TAIL > 10 and not tail.any():  # by chance in exp(-10) of runs whose rows have as many as before
            last = tail
        if not last.any():
            return evidence.problem(
                f"no answer of the last {last.size} rows ends: num_eos_tokens is 0",
                "the end token is not the one the trainer looks for",
                "the response length is too short",
                fix="set the end token of tokenizer and generation; allow longer answers",
            )
        return evidence.ok(f"{number(ends.values.mean())} end tokens a row, not 0 in the last rows")
    if not cut.size:
        return cannot_tell("the log counts neither end tokens nor cut answers")
    share, late = float(np.median(cut.values)), float(np.median(cut.window(0.8, 1.0)))
    evidence, text = Evidence(cut=share, cut_late=late), f"{number(100 * share)} % of answers are cut at the limit"
    text += f", {number(100 * late)} % at the end" if abs(late - share) > 0.1 else ""
    if ends_cut := cut.size > TAIL and float(cut.values[-TAIL:].min()) > 0.95 >= late:
        text += f", more than 95 % in each of the last {TAIL} rows"
    if max(share, late) > 0.95 or ends_cut:
        return evidence.problem(
            text,
            "the limit is too short",
            "the end token is suppressed or unknown",
            fix="allow longer answers, check the end token",
        )
    return evidence.ok(f"{text}, not above 95 % in run, last fifth or each of the last {TAIL} rows")


@check("TRUNCATION", RATIO, problem="mean importance ratio below .99 (t limit), none near the cap", chance=True)
def kept_mass(view: LogView, level: float) -> Finding:
    """How much of the mass can the sampler reach?

    An engine that samples from a truncated distribution and reports it renormalised makes the mean of policy / sampler
    the kept mass. With fewer than 3 rows it must be below .9.

    Notes
    -----
    TRL logs the ratios after it has capped them (``vllm_importance_sampling_clip_max``, 3.0) or set those above to 0,
    by default for products over whole answers: with noise of .05 a token and 500 tokens a third of the mean is gone,
    and nothing is wrong. Only where the largest ratio stays away from the cap is the mean that of all ratios.
    """
    stem = "sampling/importance_sampling_ratio/"
    x = series(view.log, view.raw(f"{stem}mean")).values
    if not x.size:
        return cannot_tell(f"{view.key(f'{stem}mean')} has no number")
    estimate = mean_and_se(x)
    upper = estimate.value + t_limit(level, x.size - 1) * estimate.se if x.size > 2 else estimate.value + 0.09
    top = view.raw(f"{stem}max")
    near = None if top is None else float(np.mean(top[np.isfinite(top)] > NEAR_CAP))
    evidence = Evidence(kept_mass=estimate.value, upper=upper, rows=int(x.size), level=level, near_cap=near)
    if upper < 0.99 and not (near is not None and near < 0.1):
        seen = "and the log has no largest ratio" if near is None else "with ratios near the cap of 3"
        return evidence.cannot_tell(
            f"mean importance ratio {number(estimate.value)}, {seen}: those above are left out of the mean",
            fix="raise vllm_importance_sampling_clip_max, or use a token_* mode, where ratios stay near 1",
        )
    if upper < 0.99:
        return evidence.problem(
            f"mean importance ratio {number(estimate.value)}: the sampler keeps that share of the mass",
            "top-p, top-k or min-p while sampling, with renormalised log-probabilities",
            "ratios are cut off before they are averaged",
            fix="sample at top_p 1, top_k off; or score with the same truncation",
        )
    return evidence.ok(f"mean importance ratio {number(estimate.value)}, not below .99")


@check("SAMPLER", ENGINE, problem="median row above the source's limit")
def sampler(view: LogView, level: float) -> Finding:
    """Do sampler and trainer agree?"""
    found = []
    for name, (limit, source) in MISMATCH.items():
        x = series(view.log, view.raw(name))
        if x.size:
            found.append((float(np.median(np.abs(x.values))), limit, name, source))
    if not found:
        return cannot_tell("the log has no measure of it")
    value, limit, name, source = max(found, key=lambda row: row[0] / row[1])
    evidence = Evidence(key=name, median=value, limit=limit, limit_from=source)
    text = f"{name} is {number(value)} in the median row, limit {number(limit)}"
    if value > limit:
        return evidence.problem(
            text,
            "the engine holds other weights or another precision",
            "temperature or top-p on one side only",
            "routing of experts differs between engine and trainer",
            fix="score one batch with both at learning rate 0; correct with importance ratios until they agree",
        )
    return evidence.ok(text)
