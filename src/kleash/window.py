"""Window: what a Frontier means. Where the dial helps, where it stops helping, and when that cannot be told.

A verdict looks at nothing but gold: its gain over the untouched reference, with paired uncertainty. The
judge's score and the training loss never rank anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from kleash import _checks
from kleash.errors import DataError
from kleash.frontier import Frontier

__all__ = ["SEEN_KL", "Verdict", "VerdictKind", "find_window", "paired_differences"]

Floats = NDArray[np.float64]
VerdictKind = Literal["useful-range", "no-overoptimisation-seen", "no-useful-range", "cannot-tell"]

DEFAULT_TOLERANCE = 0.05
"""A loss or gain of less than this share of gold's range is of no practical weight (the default of ``--tolerance``)."""
_NEAR_BEST = 0.05  # 'as good as the best' for practical purposes: the last twentieth of the gain is not worth the drift
_SOME_GAIN = 0.10  # the tight edge: where a tenth of the best gain has arrived
SEEN_KL = 2 * (5 * DEFAULT_TOLERANCE) ** 2
"""How far along the dial one must have seen before 'no useful range' may be said, in nats (0.125).

By Pinsker's inequality gold cannot move by more than ``range * sqrt(KL / 2)``: nearer to the reference than this, even
a perfect judge could not have gained five times the default tolerance, and the absence of a gain would say nothing
about the judge.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the table means, with its reasons.

    Parameters
    ----------
    kind
        ``useful-range``: a gain in gold, and betas so loose that it is lost again. ``no-overoptimisation-seen``: a
        gain, and no loss at the loosest beta that could be seen. ``no-useful-range``: nothing to gain at any beta; fix
        the judge. ``cannot-tell``: the data do not settle it.
    best_beta, best_lo, best_hi, best_kl
        Where the largest gain is, its interval (None where the interval is open), and the KL there in nats.
    safe_beta, safe_kl
        The recommendation: the largest beta that gives as good as the best gain, measurably above 0; or, where that is
        larger, the smallest beta at which unseen cheats cannot cost more than the tolerance (``raised``). None where no
        gain is left to be shown there.
    raised
        Whether ``safe_beta`` was set by unseen cheats, not by the gain.
    breakdown_score
        Where the judge's top is unknown: the largest score at which a kind of cheat that no sample shows could not yet
        undo the gain at ``safe_beta``; None where that question does not arise, or no score could.
    tight_edge, loose_edge
        Brackets (bad, good): between them the gain becomes a tenth of the best, and the loss by cheating begins.
    reasons, needs
        Sentences: why, and what would settle an open question.
    """

    kind: VerdictKind
    best_beta: float | None = None
    best_lo: float | None = None
    best_hi: float | None = None
    best_kl: float | None = None
    safe_beta: float | None = None
    safe_kl: float | None = None
    tight_edge: tuple[float, float] | None = None
    loose_edge: tuple[float, float] | None = None
    raised: bool = False
    breakdown_score: float | None = None
    reasons: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def gain_shown(self) -> bool:
        """Whether some beta is shown to gain true quality."""
        return self.kind in ("useful-range", "no-overoptimisation-seen")

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the keys of the command line's VERDICT."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Verdict:
        """A verdict from what :meth:`to_dict` gave; keys that this kleash does not know are left."""
        _checks.choice(content["kind"], get_args(VerdictKind), name="verdict's kind")
        known = {field.name for field in dataclasses.fields(cls)} & content.keys()
        plain: dict[str, Any] = {name: tuple(x) if isinstance(x := content[name], list) else x for name in known}
        for name in known & {"best_beta", "best_lo", "best_hi", "best_kl", "safe_beta", "safe_kl", "breakdown_score"}:
            _must_be_numbers(name, (plain[name],), 1)
        for name in known & {"tight_edge", "loose_edge"}:
            _must_be_numbers(name, plain[name], 2)
        return cls(**plain)

    def __str__(self) -> str:
        lines = [self.kind.replace("-", " ") + ": " + " ".join(self.reasons)]
        return "\n".join(lines + [f"It would take {need}." for need in self.needs])


def _must_be_numbers(name: str, values: Any, n: int) -> None:
    """Pass so many numbers, or null in the place of all; else a DataError."""
    if values in (None, (None,)):
        return
    if not (isinstance(values, tuple) and len(values) == n and all(type(x) in (int, float) for x in values)):
        expected = "null or a number" if n == 1 else f"null or {n} numbers"
        raise DataError(_checks.message(f"verdict.{name}", expected=expected, got=_checks.short(values)))


def find_window(frontier: Frontier, *, tolerance: float | None = None, beta_floor: float | None = None) -> Verdict:
    """Read a Frontier: best beta, safe beta, edges, verdict.

    Parameters
    ----------
    frontier
        From any source; rows that are ``beyond`` are not looked at. Of a forecast, rows that are ``weak`` advise
        nothing: best, safe and gain are taken from those that are ``ok``; weak rows may set a loose edge, and must
        agree that there is nothing to gain.
    tolerance
        Gold units below which a gain has no practical weight; default 5 % of the frontier's ``gold_range``.
    beta_floor
        Smallest beta at which cheats that nobody has seen cannot cost more than the tolerance; ``safe_beta`` is never
        below it.

    Returns
    -------
    Verdict

    Notes
    -----
    With gain(beta) = gold(beta) - gold(reference) and G* the best gain among usable betas whose gain is measurably
    above 0, ``safe_beta`` is the largest beta with gain >= G* - max(one paired standard error, 5 % of G*) and a gain
    measurably above 0; the tight edge is where the gain passes 10 % of G*; the loose edge is where gold is measurably
    below the best's (exact tables: by more than 5 % of G*). 'Measurably' is a one-sided 97.5 % limit: for the gain the
    lower end of its interval (exact tables: more than rounding, 1e-12 of gold), for two betas that of the paired
    difference, from the frontier's replicates alone. Estimates that came without replicates are compared as if they
    were independent, which is on the safe side where errors go together.

    References
    ----------
    The one-standard-error rule: Breiman, Friedman, Olshen, Stone 1984 (CART). The rest is ours.

    Examples
    --------
    >>> from kleash.frontier import exact_frontier
    >>> from kleash.worlds import kitchen
    >>> find_window(exact_frontier(kitchen())).kind
    'no-useful-range'
    >>> verdict = find_window(exact_frontier(kitchen(oversalt=0.0005)))
    >>> verdict.kind, round(verdict.best_beta, 2)
    ('useful-range', 7.25)
    """
    if tolerance is not None:
        tolerance = _checks.number(tolerance, name="tolerance", at_least=0.0)
    elif frontier.gold_range is not None:
        tolerance = DEFAULT_TOLERANCE * frontier.gold_range
    if beta_floor is not None:
        beta_floor = _checks.number(beta_floor, name="beta_floor", at_least=0.0)
    cannot = _nothing_to_read(frontier)
    if cannot is not None:
        return cannot
    assert frontier.gold is not None  # for the type checker: _nothing_to_read has seen to it
    rows = np.flatnonzero(frontier.usable & np.isfinite(frontier.gold.gain.value))
    beta, kl = frontier.beta[rows], frontier.kl.value[rows]
    gain = frontier.gold.gain[rows]
    difference = paired_differences(frontier, rows)
    advises = _advises(frontier)[rows]
    measurable = (gain.lo > _rounding(frontier)) & advises
    if measurable.any():
        best = int(np.argmax(np.where(measurable, gain.value, -np.inf)))
        top = float(gain.value[best])
        loss, loss_se, loss_lo = difference(best)
        good_enough = (gain.value >= top - np.fmax(loss_se, _NEAR_BEST * top)) & measurable
        safe = int(np.flatnonzero(good_enough)[-1])
        lost = (loss > _NEAR_BEST * top) if frontier.source == "exact" else (loss_lo > 0)
        looser = np.flatnonzero(lost[:best])
        tighter = np.flatnonzero(gain.value >= _SOME_GAIN * top)[-1]
        lo, hi = _best_interval(frontier, rows, best)
        kind: VerdictKind = "useful-range" if looser.size else "no-overoptimisation-seen"
        safe_beta, safe_kl, floor_note = _not_below_floor(beta, kl, measurable, safe, beta_floor)
        reasons = [_gain_in_words(frontier, beta[best], gain[best])]
        if tolerance is not None and top < tolerance:
            reasons.append(f"That is measurable and small: {tolerance:.2g} would begin to matter.")
        if looser.size:
            worse = looser[-1]
            looser_still = " and looser" if lost[: worse + 1].all() and worse > 0 else ""
            reasons.append(f"At beta {beta[worse]:.3g}{looser_still}, quality is being lost again.")
        else:
            reasons.append(
                f"Looser than that, no loss shows down to beta {beta[advises][0]:.3g}, the loosest that could be read."
            )
        dips = np.flatnonzero(gain.hi[best:] < -_rounding(frontier)) + best
        if dips.size:
            reasons.append(f"On the way, at beta {beta[dips[0]]:.3g}, quality is below the untouched reference's.")
        return Verdict(
            kind=kind,
            best_beta=float(beta[best]),
            best_lo=lo,
            best_hi=hi,
            best_kl=float(kl[best]),
            safe_beta=safe_beta,
            safe_kl=safe_kl,
            tight_edge=None if tighter + 1 == beta.size else (float(beta[tighter + 1]), float(beta[tighter])),
            loose_edge=(float(beta[looser[-1]]), float(beta[looser[-1] + 1])) if looser.size else None,
            raised=bool(safe_beta is None or safe_beta > beta[safe]),
            reasons=tuple(reasons + floor_note),
            needs=("more answers in all, or a larger tolerance, for a safe beta",) if safe_beta is None else (),
        )
    return _no_gain(frontier, rows, gain, tolerance)


def _advises(frontier: Frontier) -> NDArray[np.bool_]:
    """Rows that best, safe and gain may be taken from: of a forecast only those that are ``ok``."""
    return np.asarray(frontier.status == "ok") if frontier.source == "forecast" else frontier.usable


def _nothing_to_read(frontier: Frontier) -> Verdict | None:
    """The cases in which there is no gain to look at."""
    if frontier.gold is None:
        return Verdict(
            kind="cannot-tell",
            reasons=("The true quality was not measured, and the judge's score alone cannot show cheating.",),
            needs=("gold labels on some of the answers, chosen at random",),
        )
    usable = frontier.usable & np.isfinite(frontier.gold.gain.value)
    if not usable.any():
        return Verdict(
            kind="cannot-tell",
            reasons=("At no beta do the data reach far enough to be read.",),
            needs=("more answers to each prompt", "more prompts"),
        )
    if frontier.gold_range == 0.0:
        return Verdict(
            kind="cannot-tell",
            reasons=("The true quality is the same for every answer, so there is nothing to gain or to lose.",),
            needs=("a measure of quality that tells answers apart",),
        )
    if frontier.source != "log" and not (frontier.kl.value[usable] > 0).any():
        return Verdict(
            kind="cannot-tell",
            reasons=("The judge gives every answer to a prompt the same score, so no beta moves the policy.",),
            needs=("a judge that tells answers to the same prompt apart",),
        )
    return None


def _rounding(frontier: Frontier) -> float:
    """What an exact table's gain must exceed to be more than rounding; 0 for other tables, which have an interval."""
    if frontier.source != "exact" or frontier.gold is None:
        return 0.0
    return 1e-12 * (abs(float(frontier.gold.reference.value)) + (frontier.gold_range or 0.0))


def paired_differences(frontier: Frontier, rows: NDArray[np.intp]) -> Callable[[int], tuple[Floats, Floats, Floats]]:
    """A function of a row that gives gold(row) - gold(every row): value, standard error, lower 97.5 % limit.

    ``frontier``: With gold. ``rows``: Which of its rows; the function counts among these.
    """
    assert frontier.gold is not None
    value, se = frontier.gold.value[rows], frontier.gold.se[rows]
    replicates = frontier.replicates

    def difference(row: int) -> tuple[Floats, Floats, Floats]:
        loss = value[row] - value
        if replicates is None or replicates.gold is None:
            spread = np.hypot(se[row], se)
            return loss, spread, loss - stdtrit(np.inf, 0.975) * spread
        draws = replicates.gold[:, rows]
        if draws.shape[0] < 2:  # one draw has no spread: nothing is known of the error
            return loss, np.full_like(loss, np.nan), np.full_like(loss, np.nan)
        paired = draws[:, [row]] - draws
        spread = paired.std(axis=0, ddof=1)
        if replicates.kind == "bootstrap":
            df = max(float(frontier.n[rows].min()) - 1, 1.0)
        else:
            spread = spread / np.sqrt(draws.shape[0])
            df = draws.shape[0] - 1
        return loss, spread, loss - stdtrit(df, 0.975) * spread

    return difference


def _best_interval(frontier: Frontier, rows: NDArray[np.intp], best: int) -> tuple[float | None, float | None]:
    """Where the best beta may be: 95 % of the draws' best (seeds: all), widened to the next betas that were read.

    The draws choose among rows that advise. At the loosest of these the interval is open: the best may lie beyond.
    """
    advises = _advises(frontier)[rows]
    advising = np.flatnonzero(advises)
    lowest = highest = best
    gains = None if frontier.replicates is None else frontier.replicates.gold_gain()
    if gains is not None:
        bests = advising[np.argmax(gains[:, rows[advises]], axis=1)]
        within = 2.5 if frontier.replicates is not None and frontier.replicates.kind == "bootstrap" else 0.0
        lowest = min(best, int(np.percentile(bests, within, method="lower")))
        highest = max(best, int(np.percentile(bests, 100 - within, method="higher")))
    beta = frontier.beta[rows]
    lo = float(beta[lowest - 1]) if lowest > advising[0] else (0.0 if beta[lowest] == 0.0 else None)
    hi = float(beta[highest + 1]) if highest + 1 < beta.size else None
    return lo, hi


def _not_below_floor(
    beta: Floats, kl: Floats, measurable: NDArray[np.bool_], safe: int, beta_floor: float | None
) -> tuple[float | None, float | None, list[str]]:
    """The safe beta, raised to the floor that unseen cheats set; its KL by interpolation between the rows around it."""
    if beta_floor is None or beta[safe] >= beta_floor:
        return float(beta[safe]), float(kl[safe]), []
    cheat = "below it a cheat nobody has seen could cost too much"
    at_or_above = np.flatnonzero(beta >= beta_floor)
    if not at_or_above.size or not measurable[at_or_above[0]]:
        note = f"No beta is safe: {beta_floor:.3g} is the smallest that would be ({cheat}), and no gain is shown there."
        return None, None, [note]
    known = (beta > 0) & (kl > 0)
    x, y = np.log(beta[known]), np.log(kl[known])
    at = np.interp(np.log(beta_floor), x, y, left=np.nan) if known.any() else np.nan
    return (
        beta_floor,
        None if np.isnan(at) else float(np.exp(at)),
        [f"The safe beta is raised from {beta[safe]:.3g} to {beta_floor:.3g}: {cheat}."],
    )


def _gain_in_words(frontier: Frontier, beta: float, gain: Any) -> str:
    sure = "" if frontier.source == "exact" else f" (95 %: {gain.lo:.3g} to {gain.hi:.3g})"
    return f"Quality gains {gain.value:.3g}{sure} over the reference at beta {beta:.3g}."


def _no_gain(frontier: Frontier, rows: NDArray[np.intp], gain: Any, tolerance: float | None) -> Verdict:
    """No measurable gain: either there is provably nothing to gain, or it cannot be told.

    That there is nothing to gain is said only where rows that advise reach far enough, and then of all rows.
    """
    advises = _advises(frontier)[rows]
    if not advises.any():
        reason = "No row is sure enough to advise: at every beta that can be read the forecast is weak."
        return Verdict(kind="cannot-tell", reasons=(reason,), needs=("more answers to each prompt", "more prompts"))
    beta = frontier.beta[rows]
    reached = float(np.max(frontier.kl.value[rows][advises]))
    widest = float(np.max(gain.hi))
    far_enough = bool(reached >= SEEN_KL or (frontier.beta[0] == 0.0 and frontier.usable[0]))
    if tolerance is not None and widest < max(tolerance, np.finfo(float).tiny) and far_enough:
        least = f"At no beta from {beta[0]:.3g} to {beta[-1]:.3g} does quality gain more than {max(widest, 0.0):.2g}"
        return Verdict(
            kind="no-useful-range",
            reasons=(least + " over the untouched reference.", "The dial cannot help here: fix the judge."),
        )
    if not far_enough:
        reason = f"The data reach only {reached:.2g} nats from the reference, too near to see gain or loss."
        return Verdict(kind="cannot-tell", reasons=(reason,), needs=("more answers to each prompt",))
    reason = f"A gain of up to {widest:.3g} can be neither shown nor ruled out."
    if np.isnan(widest):
        reason = "How sure the gain is cannot be said: at some betas it came without an interval."
    unit = "seeds and betas" if frontier.source == "sweep" else "prompts or gold labels"
    return Verdict(kind="cannot-tell", reasons=(reason,), needs=(f"more {unit}",))
