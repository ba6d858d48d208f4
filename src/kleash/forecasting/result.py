"""The result of a forecast: a Frontier with everything that belongs beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash import _files
from kleash.envelope import envelope
from kleash.forecasting.best_of_n import BestOfNRow
from kleash.forecasting.have import Have
from kleash.forecasting.onward import Onward
from kleash.forecasting.plan import Plan
from kleash.forecasting.sourced import Sourced
from kleash.forecasting.survey import SourceReport
from kleash.forecasting.trainer import TrainerSetting
from kleash.forecasting.unseen import Unseen
from kleash.frontier import Frontier
from kleash.window import Verdict

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

__all__ = ["Forecast"]

_SHOWN_SOURCES = 4  # in the small print: the first and the last ones
_SHOWN_ROWS = 14  # of the table on a terminal: it fits a screen with the verdict below it


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Forecast:
    """What scored reference samples say about every beta.

    ``frontier`` is the table, ``verdict`` what it means, ``unseen`` what a cheat nobody has seen could cost (None
    where the top of the judge's scale or the worst gold is unknown), ``best_of_n`` the same samples used without
    training, ``answers`` a few drawn from the policy at each beta, ``notes`` sentences about the data and the method.
    """

    frontier: Frontier
    verdict: Verdict
    best_of_n: tuple[BestOfNRow, ...]
    unseen: Unseen | None
    answers: tuple[Mapping[str, Any], ...]
    objective: str
    n_prompts: int
    n_samples: int
    n_gold: int
    seed: int
    notes: tuple[str, ...]
    trainer: TrainerSetting | None = None
    """The safe beta as a trainer's option, where a trainer was named."""
    plan: Plan | None = None
    """What more prompts, answers or labels would tell; of the tilt, from the reference's answers to sampled prompts."""
    have: Have | None = None
    """The setting in use today, where it was given."""
    sourced: Sourced | None = None
    """Reach and origin of each row, where not only the reference drew answers."""
    reports: tuple[SourceReport, ...] = ()
    """The sources there were, where rows named any."""
    onward: Onward | None = None
    """From the loosest source on, its drift kept."""

    @property
    def horizon(self) -> tuple[float, float] | None:
        """The smallest beta that the samples can speak about, and its KL in nats; None if there is none."""
        usable = np.flatnonzero(self.frontier.usable)
        return (float(self.frontier.beta[usable[0]]), float(self.frontier.kl.value[usable[0]])) if usable.size else None

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per beta; with several sources also its ``reach`` and who it comes from."""
        rows = self.frontier.rows()
        return rows if self.sourced is None else self.sourced.rows(rows)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data with the keys of ``kleash forecast --format json``."""
        horizon = self.horizon
        return {
            **envelope("forecast", seed=self.seed, inputs=self.frontier.provenance.get("inputs", ())),
            "n_prompts": self.n_prompts,
            "n_samples": self.n_samples,
            "n_gold": self.n_gold,
            "objective": self.objective,
            "rows": self.rows(),
            "reference": self.frontier.reference(),
            "sources": [report.to_dict() for report in self.reports],
            "onward": None if self.onward is None else self.onward.to_dict(),
            "best_of_n": [dataclasses.asdict(row) for row in self.best_of_n],
            "horizon": None if horizon is None else {"beta": horizon[0], "kl": horizon[1]},
            "unseen": None if self.unseen is None else self.unseen.to_dict(),
            "answers": [dict(answer) for answer in self.answers],
            "verdict": self.verdict.to_dict(),
            "trainer": None if self.trainer is None else self.trainer.to_dict(),
            "settings": None if self.trainer is None else dict(self.trainer.settings) or None,
            "plan": None if self.plan is None else self.plan.to_dict(),
            "have": None if self.have is None else self.have.to_dict(),
            "notes": list(self.notes),
            "frontier": self.frontier.to_dict(),
        }

    def __rich__(self) -> RenderableType:
        from kleash.terminal import page

        labels = f", {self.n_gold:,} with gold" if 0 < self.n_gold < self.n_samples else ""
        whose = _listed(self.reports)
        title = f"Forecast from {self.n_samples:,} answers of {whose} to {self.n_prompts:,} prompts{labels}"
        title += "" if self.objective == "tilt" else f" ({self.objective}: beta is the trainer's)"
        caption = self._small_print()
        return page(
            self.frontier,
            self.verdict,
            title=title,
            caption=caption,
            story="\n".join(str(part) for part in (self.have, self.trainer) if part is not None) or None,
            yours=None if self.have is None else self.have.beta,
            intervals=True,
            status=True,
            max_rows=_SHOWN_ROWS,
        )

    def __str__(self) -> str:
        from kleash.terminal import to_text

        return to_text(self)

    def _small_print(self) -> list[str]:
        size = self.frontier.beta.size
        lines = [f"{_SHOWN_ROWS} of {size} betas; all of them with --format csv."] if size > _SHOWN_ROWS else []
        for best in [row for row in self.best_of_n if row.status == "ok" and row.n > 1][-1:]:  # none from few samples
            gold = "" if best.gold is None else f", quality {best.gold:.3g}"
            lines.append(f"Best of {best.n} without training: judge {best.reward:.4g}{gold}, KL {best.kl:.3g}.")
        if self.unseen is not None:
            floor, limit = self.unseen.beta_floor, f"{self.unseen.tolerance:.3g} (95 %)."
            where = f"from beta {floor:.3g} up it cannot cost more than {limit}"
            if floor == 0:
                where = f"at no beta can it cost more than {limit}"
            if not np.isfinite(floor):
                where = f"at any beta it could cost more than {limit}"
            mass = self.unseen.mass_below
            lines.append(f"A kind of cheat no sample shows may have a mass of up to {mass:.2g}; {where}")
        some = (
            self.reports
            if len(self.reports) <= _SHOWN_SOURCES
            else (self.reports[0], *self.reports[1 - _SHOWN_SOURCES :])
        )
        lines += [f"{report}" for report in some]
        if len(some) < len(self.reports):
            lines.append(f"{len(some)} of {len(self.reports)} sources; all of them with --format json.")
        if self.onward is not None:
            lines.append(str(self.onward))
        return lines + list(self.notes)

    def to_frame(self) -> pl.DataFrame:
        """The table as a polars frame, a row per beta."""
        return self.frontier.to_frame()

    def save(self, path: str | Path) -> None:
        """Write :meth:`to_dict` as JSON, atomically."""
        _files.write_atomic(path, _files.dump_json(self.to_dict()) + "\n")


def _listed(reports: tuple[SourceReport, ...]) -> str:
    """Who drew the answers."""
    if not reports:
        return "the reference"
    if len(reports) <= _SHOWN_SOURCES:
        return " and ".join(report.name for report in reports)
    return f"{reports[0].name} and {len(reports) - 1} policies"
