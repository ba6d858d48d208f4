"""Sweep: turn the dial. Train at several betas at once and lay the result beside the exact optimum."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from kleash import _checks
from kleash._version import version
from kleash.errors import OptionError
from kleash.frontier import Estimates, Frontier, Replicates, exact_frontier
from kleash.runs import Run, open_run, read_run
from kleash.train.config import DEFAULT_BETAS
from kleash.train.tabular import (
    DEFAULT_SAMPLES,
    DEFAULT_STEPS,
    History,
    Progress,
    TabularRun,
    draw_answers,
    expectations,
    objective_gap,
    train_tabular,
)
from kleash.window import Verdict, VerdictKind, find_window
from kleash.worlds import World, kitchen

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

    from kleash.world_files import WorldFile

__all__ = ["WORLDS", "SweepResult", "sweep"]

Floats = NDArray[np.float64]

WORLDS: Mapping[str, Callable[..., World]] = {"kitchen": kitchen}
"""The worlds that are known by name; their keyword arguments are the settings."""

_SCHEMA = 1
_SHOWN_ANSWERS = 3  # per beta: enough to see what a beta does to the answers
_NOTABLE_GAP = 0.01
"""A shortfall from the best objective worth a sentence, as a share of the reward's range: a hundredth is what a reader
of a table with three digits can see."""

_STORY: Mapping[VerdictKind, str] = {
    "useful-range": "This house rarely over-salts: a little of the critic's praise makes better dishes.",
    "no-overoptimisation-seen": "So far the critic's praise makes better dishes, not salt bombs.",
    "no-useful-range": "Here praise is bought with salt: teach the critic, or steady the cook.",
    "cannot-tell": "Taste more dishes before turning the dial.",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepResult:
    """What came out of a sweep.

    Parameters
    ----------
    world
        The world's name.
    frontier
        The trained table, source ``sweep``: exact expectations under the trained policies, mean over seeds; ``se``
        and the 95 % interval (Student's t) are over seeds, NaN with one seed. Diagnostic ``objective_gap``, in
        reward units.
    optimum
        The exact table at the same betas.
    verdict
        What the trained table means.
    answers
        A few answers per beta, drawn from the trained policies: ``beta``, ``prompt``, ``answer``, ``reward``, ``gold``.
    history
        How training went.
    config
        What was asked for, as plain data.
    inputs
        Files that were read: path, sha256, rows.
    origin
        Whether this was trained now, read back from a finished run, or trained again where a run had been interrupted.
    """

    world: str
    frontier: Frontier
    optimum: Frontier
    verdict: Verdict
    answers: tuple[Mapping[str, Any], ...]
    history: History
    config: Mapping[str, Any]
    inputs: tuple[Mapping[str, Any], ...] = ()
    origin: Literal["trained", "read-back", "trained-again"] = "trained"
    version: str = field(default_factory=version)

    @property
    def seed(self) -> int:
        """Start of all randomness."""
        return int(self.config["seed"])

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the table does not show: betas at which training did not arrive."""
        gap = self.frontier.diagnostics["objective_gap"]
        short = np.flatnonzero(gap > _NOTABLE_GAP * self.frontier.provenance["reward_range"])
        if not short.size:
            return ()
        listed = ", ".join(f"{self.frontier.beta[i]:.3g} (by {gap[i]:.3g})" for i in short)
        why = "more steps may help; an answer that was never drawn cannot be learned"
        return (f"Training stopped short of the best objective at beta {listed}: {why}.",)

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per beta, with the keys of the command line's JSON."""
        keys = ("beta", "reward", "reward_se", "gold", "gold_se", "kl", "kl_se", "objective_gap")
        return [{key: row[key] for key in keys} | {"n_seeds": row["n"]} for row in self.frontier.rows()]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data, as ``kleash sweep --format json`` prints it."""
        reference = self.frontier.reference()
        return {
            "schema": _SCHEMA,
            "version": self.version,
            "source": "sweep",
            "seed": self.seed,
            "inputs": [dict(row) for row in self.inputs],
            "world": self.world,
            "config": dict(self.config),
            "rows": self.rows(),
            "reference": {key: reference[key] for key in ("reward", "reward_se", "gold", "gold_se")},
            "optimum": [{k: row[k] for k in ("beta", "reward", "gold", "kl")} for row in self.optimum.rows()],
            "answers": [dict(row) for row in self.answers],
            "verdict": self.verdict.to_dict(),
            "notes": list(self.notes),
        }

    def to_frame(self) -> pl.DataFrame:
        """A polars frame with a row per beta and the columns of :meth:`rows`."""
        import polars as pl

        return pl.DataFrame(self.rows(), infer_schema_length=None)

    def save(self, path: str | Path) -> None:
        """Write a run folder (see :mod:`kleash.runs`); an existing one is refused."""
        run = open_run(path, kind="sweep", config=self.config)
        run.begin(seed=self.seed, inputs=self.inputs)
        _write(run, self)

    @classmethod
    def load(cls, path: str | Path) -> SweepResult:
        """Read a finished run folder back.

        Raises
        ------
        MissingFileError, DataError
            There is no such run, or it is not whole.
        OptionError
            It is not a sweep, or it was interrupted.
        """
        run = read_run(path)
        if run.kind != "sweep" or run.state != "finished":
            got = f"a {run.kind} that was {run.state}"
            raise OptionError(_checks.message(f"{path}", expected="a finished sweep", got=got))
        return _read_back(run)

    def __rich__(self) -> RenderableType:
        from kleash import _table

        kitchen = self.world == "kitchen"
        seeds, steps = self.config["seeds"], self.config["steps"]
        gap = float(self.frontier.diagnostics["objective_gap"].max())
        arrived = "" if self.notes else f" Within {gap:.2g} of the best objective at every beta."
        return _table.page(
            self.frontier,
            self.verdict,
            title="The kitchen: a chef trained to please a critic who loves salt"
            if kitchen
            else f"World: {self.world}",
            caption=[f"Trained: {seeds} seed{'s' * (seeds != 1)}, {steps} steps.{arrived}", *self.notes],
            story=_STORY[self.verdict.kind] if kitchen else None,
        )

    def __str__(self) -> str:
        from kleash import _table

        return _table.to_text(self)


def sweep(
    world: str | Path | World | WorldFile = "kitchen",
    *,
    settings: Mapping[str, float] | None = None,
    beta: ArrayLike = DEFAULT_BETAS,
    seeds: int = 3,
    seed: int = 0,
    steps: int = DEFAULT_STEPS,
    samples: int = DEFAULT_SAMPLES,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> SweepResult:
    """Train tabular policies against the judge at several betas and seeds at once, and say what the dial does.

    Use it to see, in a world where the truth is known, what a KL penalty does to the judge's score and to the true
    quality. For a judge and a model of your own, :func:`kleash.forecast` reads the same table off scored samples
    without training.

    Parameters
    ----------
    world
        ``"kitchen"``, a :class:`~kleash.worlds.World`, or the path of a world file (:func:`kleash.load_world`).
    settings
        Settings of a world known by name: its keyword arguments, numbers.
    beta
        Finite coefficients in reward units per nat, in any order.
    seeds
        Independent runs per beta. With one there are no standard errors, and nothing can be shown to be a gain.
    seed
        Start of all randomness; the same seed gives the same bytes.
    steps, samples
        Gradient steps, and answers drawn per prompt and step.
    out
        A folder to keep the run in, new or empty.
    resume
        With ``out``: a finished run of the same configuration is read back instead of trained; an interrupted one
        is trained again.
    progress
        Called with (steps done, steps).

    Returns
    -------
    SweepResult

    Raises
    ------
    OptionError
        An unknown world or setting, a value out of its range, a folder with something else in it.
    ConfigError
        ``resume``, and the run in the folder has another configuration.

    Notes
    -----
    See :func:`kleash.train.tabular.train_tabular` for the training and :func:`kleash.window.find_window` for the
    verdict. The objective gap of a row is the exact optimum's ``E[reward] - beta KL`` minus the trained policies',
    mean over seeds.

    Examples
    --------
    >>> result = sweep(beta=[0, 15], steps=300)
    >>> result.verdict.kind
    'no-useful-range'
    >>> result.frontier.reward.value.round(1)
    array([31.4, 12.9])
    """
    known, inputs = _resolve(world, settings)
    betas = np.unique(_checks.betas(beta, infinite=False))
    if resume and out is None:
        raise OptionError(_checks.message("resume", expected="a folder (out) to go on with", got="none"))
    config = {
        "world": known.name,
        "settings": {name: float(value) for name, value in (settings or {}).items()},
        "world_sha256": _fingerprint(known),
        "beta": betas.tolist(),
        "seeds": _checks.integer(seeds, name="seeds", at_least=1),
        "seed": _checks.integer(seed, name="seed", at_least=0),
        "steps": _checks.integer(steps, name="steps", at_least=1),
        "samples": _checks.integer(samples, name="samples", at_least=2),
    }
    run = None if out is None else open_run(out, kind="sweep", config=config, resume=resume)
    if run is not None and run.state == "finished":
        return _read_back(run)
    if run is not None:
        run.begin(seed=seed, inputs=inputs)
    trained = train_tabular(known, betas, seeds=seeds, seed=seed, steps=steps, samples=samples, progress=progress)
    frontier = _frontier(known, trained, config)
    result = SweepResult(
        world=known.name,
        frontier=frontier,
        optimum=exact_frontier(known, betas),
        verdict=find_window(frontier),
        answers=_answers(known, trained, seed),
        history=trained.history,
        config=config,
        inputs=inputs,
        origin="trained" if run is None or run.state == "new" else "trained-again",
    )
    if run is not None:
        _write(run, result)
    return result


def _resolve(
    world: str | Path | World | WorldFile, settings: Mapping[str, float] | None
) -> tuple[World, tuple[Mapping[str, Any], ...]]:
    """The world, and the files it was read from."""
    if not isinstance(world, str):
        if settings:
            fix = "leave them out"
            raise OptionError(_checks.message("settings", expected="a world known by name", got="another", fix=fix))
        if isinstance(world, World):
            return world, ()
        from kleash.world_files import WorldFile, read_world_file

        file = world if isinstance(world, WorldFile) else read_world_file(world)
        return file.world, file.inputs
    make = WORLDS[_checks.choice(world, list(WORLDS), name="world")]
    names = list(inspect.signature(make).parameters)
    for name in settings or {}:
        if name not in names:
            raise OptionError(f"unknown setting {name!r} of the {world}; {_checks.nearest(name, names)}")
    return make(**(settings or {})), ()


def _fingerprint(world: World) -> str:
    """SHA-256 over everything a world says, so that a run is never taken for that of another world."""
    digest = hashlib.sha256(repr((world.name, world.prompts, world.answers)).encode())
    for array in (world.log_reference, world.reward, world.gold, world.prompt_weight):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _frontier(world: World, trained: TabularRun, config: Mapping[str, Any]) -> Frontier:
    reward, gold, kl = expectations(world, trained.log_policy)  # (B, S) each
    # by the same sums as the rows, so that a policy that did not move has a gain of exactly 0
    reference_reward, reference_gold, _ = expectations(world, world.log_reference)
    seeds = reward.shape[1]
    reachable = np.isfinite(world.log_reference)
    return Frontier(
        source="sweep",
        beta=trained.beta,
        reward=_over_seeds(reward),
        gold=_over_seeds(gold),
        kl=_over_seeds(kl),
        gold_gain=_over_seeds(gold - reference_gold),
        reference_reward=Estimates.exact(reference_reward),
        reference_gold=Estimates.exact(reference_gold),
        n=np.full(trained.beta.size, seeds),
        status=np.full(trained.beta.size, "ok"),
        diagnostics={"objective_gap": objective_gap(world, trained.beta, trained.log_policy).mean(axis=1)},
        replicates=Replicates(
            kind="seeds",
            reward=reward.T,
            kl=kl.T,
            gold=gold.T,
            reference_reward=np.full(seeds, float(reference_reward)),
            reference_gold=np.full(seeds, float(reference_gold)),
        ),
        gold_range=float(np.ptp(world.gold[reachable])),
        provenance={
            "version": version(),
            "config": dict(config),
            "reward_range": float(np.ptp(world.reward[reachable])),
        },
    )


def _over_seeds(values: Floats) -> Estimates:
    """Mean over seeds (the last axis), its standard error and Student's 95 % interval; NaN with one seed."""
    n = values.shape[-1]
    mean = values.mean(axis=-1)
    if n == 1:
        unknown = np.full_like(mean, np.nan)
        return Estimates(value=mean, se=unknown, lo=unknown, hi=unknown)
    se = values.std(axis=-1, ddof=1) / np.sqrt(n)
    half = stdtrit(n - 1, 0.975) * se
    return Estimates(value=mean, se=se, lo=mean - half, hi=mean + half)


def _answers(world: World, trained: TabularRun, seed: int) -> tuple[Mapping[str, Any], ...]:
    rows = []
    for beta, log_policy in zip(trained.beta.tolist(), trained.log_policy, strict=True):
        for prompt, answer in zip(
            *draw_answers(world, log_policy, beta=beta, seed=seed, n=_SHOWN_ANSWERS), strict=True
        ):
            rows.append(
                {
                    "beta": beta,
                    "prompt": world.prompts[prompt],
                    "answer": world.answers[prompt][answer],
                    "reward": float(world.reward[prompt, answer]),
                    "gold": float(world.gold[prompt, answer]),
                }
            )
    return tuple(rows)


def _write(run: Run, result: SweepResult) -> None:
    history = result.history
    metrics = [
        {
            "step": step,
            "beta": beta,
            "seed": s,
            "reward": history.reward[t, b, s],
            "gold": history.gold[t, b, s],
            "kl": history.kl[t, b, s],
            "objective": history.objective[t, b, s],
        }
        for t, step in enumerate(history.step.tolist())
        for b, beta in enumerate(result.frontier.beta.tolist())
        for s in range(history.reward.shape[2])
    ]
    run.finish(
        seed=result.seed,
        inputs=result.inputs,
        results={"world": result.world, "answers": list(result.answers), "verdict": result.verdict.to_dict()},
        metrics=metrics,
        frontier=result.frontier,
        optimum=result.optimum,
    )


def _read_back(run: Run) -> SweepResult:
    frontier, optimum, metrics = run.frontier(), run.optimum(), run.metrics()
    if optimum is None:
        raise OptionError(_checks.message(f"{run.path}", expected="a whole run", got="one without optimum.json"))
    shape = (-1, frontier.beta.size, int(run.config["seeds"]))
    columns = {
        k: np.asarray([row[k] for row in metrics]).reshape(shape) for k in metrics[0] if k not in ("beta", "seed")
    }
    return SweepResult(
        world=run.record["results"]["world"],
        frontier=frontier,
        optimum=optimum,
        verdict=find_window(frontier),
        answers=tuple(run.record["results"]["answers"]),
        history=History(step=columns.pop("step")[:, 0, 0], **columns),
        config=run.config,
        inputs=tuple(run.record["inputs"]),
        origin="read-back",
        version=run.record["versions"]["kleash"],
    )
