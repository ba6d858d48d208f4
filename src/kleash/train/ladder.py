"""The ladder: forecast, train at the loosest beta that is sure, draw, forecast again, until the peak lies in reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kleash import _checks, _files
from kleash.errors import OptionError
from kleash.forecasting.forecast import forecast
from kleash.forecasting.result import Forecast
from kleash.runs import open_run
from kleash.train.lm_sweep import trained_recipes
from kleash.train.own import world_samples
from kleash.train.recipes import recipes
from kleash.worlds import World

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kleash.train.tabular import Progress

__all__ = ["Ladder", "ladder_recipes"]

Floats = NDArray[np.float64]

ANSWERS = 399
"""Answers to each prompt in all, of the reference and of two policies."""
_RUNGS = 2  # policies trained at most: from reach R each rung goes on by about as much, the j-th to (j + 1)^2 R
_CAUTIOUS = 1.0  # nats that the first rung is away where nothing is sure
_NEARER = 0.98  # of the last rung's beta: a rung that is no looser would teach nothing


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Ladder:
    """What a ladder found: the last ``forecast``, the betas of its ``rungs``, and whether the peak lies in reach."""

    world: str
    forecast: Forecast
    rungs: tuple[float, ...]
    found: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data: the forecast's, with ``world``, ``rungs`` and ``found``."""
        return self.forecast.to_dict() | {"world": self.world, "rungs": list(self.rungs), "found": self.found}

    def rows(self) -> list[dict[str, Any]]:
        """The last forecast's table, a plain dictionary per beta."""
        return self.forecast.frontier.rows()

    def __rich__(self) -> RenderableType:
        from rich.console import Group

        steps = " and ".join(f"beta {beta:.3g}" for beta in self.rungs) or "none"
        end = "The peak and its loose edge lie in reach." if self.found else "The peak does not lie in reach yet."
        return Group(self.forecast, f"Ladder: policies trained at {steps}. {end}")


def ladder_recipes(
    *,
    settings: Mapping[str, float] | None = None,
    answers: int = ANSWERS,
    seed: int = 0,
    steps: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Ladder:
    """Climb to the peak of the recipes' dial with at most two trained policies.

    Parameters
    ----------
    settings
        As in :func:`kleash.sweep`.
    answers
        Answers to each dish in all: a third from the reference, and from each policy.
    seed
        Start of all randomness.
    steps
        Gradient steps of each training; default 300.
    out, resume
        A folder that keeps every rung, so that a ladder that was stopped goes on.
    progress
        Called with (steps done, steps) of each training.

    Returns
    -------
    Ladder

    Notes
    -----
    A rung is trained at the smallest beta whose row is ``ok``. The ladder ends once the best beta and the loose edge
    lie in rows that are, with the second rung, or where no looser row is.
    """
    each = _checks.integer(answers, name="answers", at_least=24) // (_RUNGS + 1)
    given = dict(settings or {})
    config = {"world": "recipes", "settings": given, "answers": answers, "seed": seed, "steps": steps}
    if resume and out is None:
        raise OptionError(_checks.message("resume", expected="a folder (out) to go on with", got="none"))
    run = None if out is None else open_run(out, kind="ladder", config=config, resume=resume)
    if run is not None and run.state == "new":
        run.begin(seed=seed, inputs=())
    world = recipes(**given).world  # type: ignore[arg-type]
    policies: dict[str, Floats] = {"reference": world.log_reference}
    rungs: list[float] = []
    while True:
        found = _forecast(world, policies, each, seed)
        done, rung = _reached(found), _next_rung(found)
        if rung is not None and rungs and rung >= _NEARER * rungs[-1]:
            rung = None
        if done or len(rungs) == _RUNGS or rung is None:
            ladder = Ladder(world="recipes", forecast=found, rungs=tuple(rungs), found=done)
            if run is not None and run.state != "finished":
                run.finish(seed=seed, results=ladder.to_dict(), metrics=[], frontier=found.frontier)
            return ladder
        rungs.append(rung)
        kept = None if run is None else run.path / f"rung-{len(rungs)}.npy"
        policies[f"rung {len(rungs)}"] = _policy(rungs[-1], given, seed + len(rungs), steps, kept, progress)


def _reached(found: Forecast) -> bool:
    """Whether the best beta and the loss past it are seen in rows that are ``ok``, and a tight edge."""
    verdict = found.verdict
    if verdict.loose_edge is None or verdict.tight_edge is None:
        return False
    sure = set(found.frontier.beta[found.frontier.status == "ok"].tolist())
    return {verdict.best_beta, *verdict.loose_edge} <= sure


def _next_rung(found: Forecast) -> float | None:
    """The loosest beta that is ``ok``; where none is, the loosest that is shown up to a nat from the reference."""
    table = found.frontier
    sure = table.status == "ok"
    near = table.usable & (table.kl.value <= _CAUTIOUS)
    some = np.flatnonzero(sure if sure.any() else near)
    return float(table.beta[some[0]]) if some.size else None


def _policy(
    beta: float,
    settings: Mapping[str, float],
    seed: int,
    steps: int | None,
    kept: Path | None,
    progress: Progress | None,
) -> Floats:
    """Exact log probabilities (P, Y) of a policy trained at a beta, from its file where there is one."""
    if kept is not None and kept.exists():
        return np.asarray(np.load(kept, allow_pickle=False))
    log_policy = trained_recipes(settings=settings, beta=beta, seed=seed, steps=steps, progress=progress)
    if kept is not None:
        import io

        buffer = io.BytesIO()
        np.save(buffer, log_policy, allow_pickle=False)
        _files.write_atomic(kept, buffer.getvalue())
    return log_policy


def _forecast(world: World, policies: Mapping[str, Floats], each: int, seed: int) -> Forecast:
    """The forecast from ``each`` answers of every policy to every dish: the same answers on every rung."""
    samples = world_samples(world, policies, each, seed)
    return forecast(
        samples, prompts="fixed", seed=seed, reward_max=float(world.reward.max()), gold_min=float(world.gold.min())
    )
