"""A report in words: what was found, what to set, how sure and why. Also: how foreign text is shown."""

from __future__ import annotations

import importlib.util
import math

import numpy as np

from kleash.reporting.sources import ReportSource
from kleash.terminal import verdict_text

__all__ = ["advice", "how_sure", "shown", "verdict_lines"]

_HIDDEN = {0x7F: "␡", **{code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}}
_BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}
"""Marks that turn the direction of what follows: shown, for they could make a page say what its text does not."""
_UNSEEN = {0x00AD, 0x200B, *range(0x2060, 0x2065), 0xFEFF, 0xFFFE, 0xFFFF, 0x2028, 0x2029, *range(0xE0000, 0xE0080)}
"""Characters that take no room: shown, for an answer may carry in them what only the judge reads."""


def shown(text: object) -> str:
    r"""Foreign text as a page may show it: control, invisible and direction characters visible, nothing left out.

    Examples
    --------
    >>> shown("bell\x07, turned \u202e, half \ud800 a pair")
    'bell␇, turned <U+202E>, half <U+D800> a pair'
    """
    out = []
    for character in str(text).replace("\r\n", "\n"):
        code = ord(character)
        if code in _HIDDEN:
            out.append(_HIDDEN[code])
        elif code in _BIDI or code in _UNSEEN or 0x80 <= code < 0xA0 or 0xD800 <= code < 0xE000:
            out.append(f"<U+{code:04X}>")
        else:
            out.append(character)
    return "".join(out)


def verdict_lines(source: ReportSource) -> list[str]:
    """The verdict in sentences, the headline first; what the checks said where there is no table."""
    if source.verdict is not None:
        return [line for line in verdict_text(source.verdict).plain.splitlines() if line]
    counts = {
        status: sum(row["status"] == status for row in source.findings) for status in ("problem", "ok", "cannot-tell")
    }
    n = counts["problem"]
    head = "No problem found." if n == 0 else f"{n} problem{'s' * (n != 1)} found."
    rest = f"{counts['ok']} checks ok, {counts['cannot-tell']} cannot tell, {_left(source)} could not run."
    return [f"{head} {rest}", "No table: it takes a sweep, a forecast, or logs of several betas."]


def advice(source: ReportSource) -> list[str]:
    """What to set in the reader's trainer, as far as it is known."""
    verdict, trainer = source.verdict, source.trainer
    if verdict is None:
        fixes = list(
            dict.fromkeys(str(row["fix"]) for row in source.findings if row["status"] == "problem" and row["fix"])
        )
        return [fix[:1].upper() + fix[1:].rstrip(".") + "." for fix in fixes[:3]]
    if not verdict.gain_shown:
        if verdict.kind == "no-useful-range":
            return [
                "Set nothing: at no beta does this judge help. Mend the judge or the reference, then measure again."
            ]
        return ["Nothing to set yet."]
    if verdict.safe_beta is None:
        return ["No beta can be recommended: where a gain is shown, an unseen cheat could cost more."]
    if trainer is not None:
        if trainer.get("refused"):
            return [f"{trainer.get('name')}: no coefficient translates this beta. {trainer['refused']}"]
        value = trainer.get("value")
        said = "" if value is None else f" = {float(value):.4g}"
        lines = [f"In {trainer.get('name')}, set {trainer.get('parameter')}{said}."]
        assumes = [str(item) for item in trainer.get("assumes") or ()]
        return lines + ([f"This assumes {'; '.join(assumes)}."] if assumes else [])
    beta = f"{verdict.safe_beta:.3g}"
    facts = dict(source.facts)
    if facts.get("objective", "tilt") != "tilt" or (source.frontier is not None and source.frontier.source == "log"):
        return [f"Set the trainer's own coefficient to {beta}."]
    lines = [f"Set beta to {beta}, in reward units per nat of KL per answer, as in E[reward] - beta KL."]
    if importlib.util.find_spec("kleash.translate") is not None:
        return [
            *lines,
            f"Trainers mean other things by their beta: kleash convert {beta} --from tilt --to TRAINER translates.",
        ]
    return [*lines, "Trainers that standardise rewards or average over tokens mean another thing by their beta."]


def how_sure(source: ReportSource) -> list[str]:
    """How sure the table is, and why."""
    frontier = source.frontier
    if frontier is None:
        return [*source.notes]
    lines = []
    n = int(frontier.n.max(initial=0))
    if frontier.source == "exact":
        lines.append("Every number is exact: the world is known.")
    elif frontier.source == "forecast":
        lines.append(
            "Intervals are at 95 %, over prompts. Each row is reweighted from answers of the untouched reference."
        )
    elif frontier.source == "sweep" and n > 1:
        lines.append(f"Intervals are at 95 % (Student's t) over {n} independent training runs per beta.")
    elif frontier.source == "sweep":
        lines.append("One training run per beta: how much another would differ is not known.")
    elif frontier.source == "log":
        lines.append("From training logs: means over the end of each run. Whether a run had converged is not known.")
    counts = {status: int((frontier.status == status).sum()) for status in ("ok", "weak", "beyond")}
    size = frontier.beta.size
    if counts["beyond"] == size:
        lines.append("Every beta is beyond what the data can say: nothing is estimated, nothing is judged.")
    elif counts["ok"] < size:
        lines.append(
            f"Of {size} betas {counts['ok']} are ok, {counts['weak']} weak (read with care), "
            f"{counts['beyond']} beyond what the data can say (no estimate)."
        )
    usable = np.flatnonzero(frontier.usable)
    if counts["beyond"] and usable.size:
        i = usable[0]
        lines.append(f"The data reach to beta {frontier.beta[i]:.3g}, a KL of {frontier.kl.value[i]:.3g} nats.")
    if frontier.gold is None:
        lines.append(
            "True quality was not measured: a judge's score alone cannot tell whether the judge is being cheated."
        )
    if source.unseen is not None:
        lines.append(_unseen(source))
    if source.frontier is not None and source.verdict is not None and size == 1:
        lines.append("One beta says nothing about where quality turns: several would.")
    return [*lines, *source.notes]


def _unseen(source: ReportSource) -> str:
    unseen = source.unseen
    assert unseen is not None
    mass, floor, tolerance = unseen["mass_below"], unseen["beta_floor"], unseen["tolerance"]
    where = "at any beta it could cost more" if floor is None else f"from beta {floor:.3g} up it cannot cost more"
    if floor == 0:
        where = "at no beta can it cost more"
    limit = "the tolerance" if tolerance is None or not math.isfinite(tolerance) else f"{tolerance:.3g}"
    share = "" if mass is None else f" may have a mass of up to {mass:.2g} in the reference;"
    return f"A kind of cheat that no sample shows{share} {where} than {limit} of true quality (95 %)."


def _left(source: ReportSource) -> int:
    return sum(row["status"] == "not-run" for row in source.findings)
