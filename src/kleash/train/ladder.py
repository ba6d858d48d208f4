"""The ladder: forecast, train at the loosest beta that is sure, draw, forecast again, until the peak lies in reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kleash import _checks, _files
from kleash.errors import OptionError
from kleash.estimates import Floats
from kleash.forecasting.forecast import forecast
from kleash.forecasting.result import Forecast
from kleash.runs import Run, open_run, written_alone
from kleash.samples import DIAL, REFERENCE, SAMPLES, Samples
from kleash.train.lm_sweep import trained_recipes
from kleash.train.own import world_samples
from kleash.train.recipes import recipes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kleash.train.tabular import Progress

__all__ = ["RUNGS", "Climber", "Ladder", "climbed", "ladder_recipes"]

ANSWERS = 399
"""Answers to each prompt in all, of the reference and of two policies."""
STEPS = 100
"""Gradient steps of a rung in the recipes: a source need not have arrived at its tilt, its densities are known."""
RUNGS = 2  # policies trained at most: from reach R each rung goes on by about as much, the j-th to (j + 1)^2 R
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
        return self.forecast.rows()

    def __rich__(self) -> RenderableType:
        from rich.console import Group

        steps = " and ".join(f"beta {beta:.3g}" for beta in self.rungs) or "none"
        end = "The peak and its loose edge lie in reach." if self.found else "The peak does not lie in reach yet."
        return Group(self.forecast, f"Ladder: policies trained at {steps}. {end}")


class Climber(Protocol):
    """What a ladder is climbed with: ``world`` is its name, ``options`` are those of its forecasts."""

    world: str
    options: Mapping[str, Any]

    def train(self, beta: float, number: int) -> float:
        """Train the policy of a rung, or take it from where it was kept; the beta that it has."""

    def samples(self) -> Samples:
        """Answers of the reference and of all policies so far, all densities known; the same on every rung."""


def climbed(climber: Climber, *, run: Run | None, seed: int) -> Ladder:
    """Climb until the peak lies in reach, or :data:`RUNGS` policies are trained.

    Parameters
    ----------
    climber
        Who trains and draws.
    run
        Where the end is kept; None: nowhere.
    seed
        Of the forecasts.

    Returns
    -------
    Ladder

    Notes
    -----
    A rung is trained at the smallest beta whose row is ``ok``. The ladder ends once the best beta and the loose edge
    lie in rows that are, with the second rung, or where no looser row is.
    """
    rungs: list[float] = []
    while True:
        samples = climber.samples()
        found = forecast(samples, seed=seed, **climber.options)
        done, rung = _reached(found), _next_rung(found, samples)
        if done or len(rungs) == RUNGS or (rungs and rung >= _NEARER * rungs[-1]):
            ladder = Ladder(world=climber.world, forecast=found, rungs=tuple(rungs), found=done)
            if run is not None and run.state != "finished":
                samples.save(run.path / SAMPLES)
                found.save(run.path / DIAL)
                run.finish(seed=seed, results=ladder.to_dict(), metrics=[], frontier=found.frontier)
            return ladder
        rungs.append(climber.train(rung, len(rungs) + 1))


def _reached(found: Forecast) -> bool:
    """Whether the best beta and the loss past it are seen in rows that are ``ok``."""
    verdict = found.verdict
    if verdict.loose_edge is None:
        return False
    sure = set(found.frontier.beta[found.frontier.status == "ok"].tolist())
    return {verdict.best_beta, *verdict.loose_edge} <= sure


def _next_rung(found: Forecast, samples: Samples) -> float:
    """The loosest beta that is ``ok``; where none is, the loosest that is shown up to a nat from the reference.

    Where nothing is shown, the SD of the scores within prompts: to second order half a nat from the reference.
    """
    table = found.frontier
    sure = table.status == "ok"
    near = table.usable & (table.kl.value <= _CAUTIOUS)
    some = np.flatnonzero(sure if sure.any() else near)
    if some.size:
        return float(table.beta[some[0]])
    mean = np.add.reduceat(samples.reward, samples.offsets[:-1]) / samples.counts
    return float(f"{np.std(samples.reward - np.repeat(mean, samples.counts)):.3g}")


def opened(
    out: str | Path | None, *, config: Mapping[str, Any], resume: bool, seed: int, inputs: Any = ()
) -> Run | None:
    """The folder that a ladder is kept in, marked as running; None without one."""
    if resume and out is None:
        raise OptionError(_checks.message("resume", expected="a folder (out) to go on with", got="none"))
    run = None if out is None else open_run(out, kind="ladder", config=config, resume=resume)
    if run is not None and run.state == "new":
        run.begin(seed=seed, inputs=inputs)
    return run


def ladder_recipes(
    *,
    settings: Mapping[str, float] | None = None,
    answers: int = ANSWERS,
    seed: int = 0,
    steps: int = STEPS,
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
        Gradient steps of each training.
    out, resume
        A folder that keeps every rung, so that a ladder that was stopped goes on.
    progress
        Called with (steps done, steps) of each training.

    Returns
    -------
    Ladder
    """
    each = _checks.integer(answers, name="answers", at_least=24) // (RUNGS + 1)
    given = dict(settings or {})
    config = {"world": "recipes", "settings": given, "answers": answers, "seed": seed, "steps": steps}
    run = opened(out, config=config, resume=resume, seed=seed)
    with written_alone(run):
        folder = None if run is None else run.path
        how = {"settings": given, "steps": steps, "progress": progress}
        return climbed(_Recipes(each=each, seed=seed, folder=folder, how=how), run=run, seed=seed)


class _Recipes:
    """The recipes: policies are their exact distributions."""

    world = "recipes"

    def __init__(self, *, each: int, seed: int, folder: Path | None, how: Mapping[str, Any]) -> None:
        self.each, self.seed, self.folder, self.how = each, seed, folder, how
        self.house = recipes(**how["settings"]).world
        self.policies: dict[str, Floats] = {REFERENCE: self.house.log_reference}
        ends = {"reward_max": float(self.house.reward.max()), "gold_min": float(self.house.gold.min())}
        self.options: Mapping[str, Any] = {"prompts": "fixed"} | ends

    def samples(self) -> Samples:
        """As many answers of every policy to every dish."""
        return world_samples(self.house, self.policies, self.each, self.seed)

    def train(self, beta: float, number: int) -> float:
        """Exact log probabilities (P, Y) of a policy trained at a beta, from its file where there is one."""
        kept = None if self.folder is None else self.folder / f"rung-{number}.npy"
        if kept is not None and kept.exists():
            self.policies[f"rung {number}"] = np.asarray(np.load(kept, allow_pickle=False))
            return beta
        log_policy = trained_recipes(beta=beta, seed=self.seed + number, **self.how)
        self.policies[f"rung {number}"] = log_policy
        if kept is not None:
            import io

            buffer = io.BytesIO()
            np.save(buffer, log_policy, allow_pickle=False)
            _files.write_atomic(kept, buffer.getvalue())
        return beta
