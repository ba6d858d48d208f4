"""What came out of a sweep: one result for tables and language models, in memory, in a folder, on a screen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kleash import _checks, _files
from kleash._version import version
from kleash.envelope import envelope
from kleash.errors import DataError, KleashError, OptionError
from kleash.estimates import Floats
from kleash.frontier import Estimates, Frontier, Gold, Replicates
from kleash.known_worlds import WORLDS
from kleash.runs import Run, open_run, read_run, written_alone
from kleash.samples import DIAL
from kleash.train.tabular import History, draw_answers, expectations, objective_gap
from kleash.window import Verdict, find_window
from kleash.worlds import World

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

__all__ = ["SweepResult", "read_back", "shown_answers", "swept_frontier", "world_frontier", "write"]

_FORECAST = "forecast.json"
_SHOWN_ANSWERS = 3  # per beta: enough to see what a beta does to the answers
_NOTABLE_GAP = 0.01
"""A shortfall from the best objective worth a sentence, as a share of the reward's range: a hundredth is what a reader
of a table with three digits can see."""


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
        The exact table at the same betas; None where no world is known.
    verdict
        What the trained table means.
    answers
        A few answers per beta, drawn from the trained policies: ``beta``, ``prompt``, ``answer``, ``reward``, ``gold``.
    history
        How training of tabular policies went; None for language models, which have ``metrics``.
    config
        What was asked for, as plain data.
    inputs
        Files that were read: path, sha256, rows.
    origin
        Whether this was trained now, resumed from a checkpoint, read back from a finished run, or trained again where a
        run had been interrupted.
    metrics
        A row per recorded step, beta and seed of a language model's training (:class:`kleash.train.lm.LMRun`).
    forecast
        What samples of the reference said beforehand about the same betas (above 0): a table of source ``forecast``.
    between
        The forecast from the sweep's own answers, which speaks of the betas between the trained ones too: the JSON of
        :class:`kleash.forecasting.result.Forecast`.
    early_stopping
        The loosest beta, stopped where its gold was best, as plain data.
    remarks
        Further sentences on what the table does not show.
    """

    world: str
    frontier: Frontier
    optimum: Frontier | None
    verdict: Verdict
    answers: tuple[Mapping[str, Any], ...]
    history: History | None
    config: Mapping[str, Any]
    inputs: tuple[Mapping[str, Any], ...] = ()
    origin: Literal["trained", "resumed", "read-back", "trained-again"] = "trained"
    metrics: tuple[Mapping[str, Any], ...] = ()
    forecast: Frontier | None = None
    between: Mapping[str, Any] | None = None
    early_stopping: Mapping[str, Any] | None = None
    remarks: tuple[str, ...] = ()
    version: str = field(default_factory=version)

    @property
    def seed(self) -> int:
        """Start of all randomness."""
        return int(self.config["seed"])

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the table does not show: betas at which training did not arrive."""
        if "objective_gap" not in self.frontier.diagnostics:
            return self.remarks
        gap = self.frontier.diagnostics["objective_gap"]
        short = np.flatnonzero(gap > _NOTABLE_GAP * self.frontier.provenance["reward_range"])
        if not short.size:
            return self.remarks
        listed = ", ".join(f"{self.frontier.beta[i]:.3g} (by {gap[i]:.3g})" for i in short)
        why = "more steps may help; an answer that was never drawn cannot be learned"
        return (*self.remarks, f"Training stopped short of the best objective at beta {listed}: {why}.")

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per beta, with the keys of the command line's JSON."""
        keys = ("beta", "reward", "reward_se", "gold", "gold_se", "kl", "kl_se", "objective_gap")
        return [{key: row.get(key) for key in keys} | {"n_seeds": row["n"]} for row in self.frontier.rows()]

    def training(self) -> list[Mapping[str, Any]]:
        """How training went: a row per recorded step, beta and seed."""
        history = self.history
        if history is None:
            return list(self.metrics)
        names = ("reward", "gold", "kl", "objective")
        return [
            {"step": step, "beta": beta, "seed": s, **{name: float(getattr(history, name)[t, b, s]) for name in names}}
            for t, step in enumerate(history.step.tolist())
            for b, beta in enumerate(self.frontier.beta.tolist())
            for s in range(history.reward.shape[2])
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data, as ``kleash sweep --format json`` prints it."""
        reference = self.frontier.reference()
        return {
            **envelope("sweep", version=self.version, seed=self.seed, inputs=self.inputs),
            "world": self.world,
            "config": dict(self.config),
            "rows": self.rows(),
            "reference": {key: reference[key] for key in ("reward", "reward_se", "gold", "gold_se")},
            "optimum": None
            if self.optimum is None
            else [{k: row[k] for k in ("beta", "reward", "gold", "kl")} for row in self.optimum.rows()],
            "answers": [dict(row) for row in self.answers],
            "verdict": self.verdict.to_dict(),
            "notes": list(self.notes),
            "forecast": None if self.forecast is None else self.forecast.rows(),
            "between": None if self.between is None else dict(self.between),
            "early_stopping": None if self.early_stopping is None else dict(self.early_stopping),
            "frontier": self.frontier.to_dict(replicates=True),
            "optimum_frontier": None if self.optimum is None else self.optimum.to_dict(),
        }

    def to_frame(self) -> pl.DataFrame:
        """A polars frame with a row per beta and the columns of :meth:`rows`."""
        import polars as pl

        return pl.DataFrame(self.rows(), infer_schema_length=None)

    def save(self, path: str | Path) -> None:
        """Write a run folder (see :mod:`kleash.runs`); an existing one is refused."""
        run = open_run(path, kind="sweep", config=self.config)
        with written_alone(run):
            run.begin(seed=self.seed, inputs=self.inputs)
            write(run, self)

    @classmethod
    def load(cls, path: str | Path) -> SweepResult:
        """Read a finished run folder back.

        Raises `MissingFileError`, `DataError`: There is no such run, or it is not whole. `OptionError`: It is not a
        sweep, or it was interrupted.
        """
        run = read_run(path)
        if run.kind != "sweep" or run.state != "finished":
            got = f"a {run.kind} that was {run.state}"
            raise OptionError(_checks.message(f"{path}", expected="a finished sweep", got=got))
        return read_back(run)

    def __rich__(self) -> RenderableType:
        from kleash import terminal
        from kleash.train.comparison import with_comparison

        seeds, steps = self.config["seeds"], self.config["steps"]
        gap = self.frontier.diagnostics.get("objective_gap")
        short = any(note.startswith("Training stopped short") for note in self.notes)
        known = WORLDS.get(self.world)
        arrived = "" if gap is None or short else f" Within {gap.max():.2g} of the best objective at every beta."
        page = terminal.page(
            self.frontier,
            self.verdict,
            title=f"World: {self.world}" if known is None else known.title,
            caption=[f"Trained: {seeds} seed{'s' * (seeds != 1)}, {steps} steps.{arrived}", *self._read(), *self.notes],
            story=None if known is None else known.story[self.verdict.kind],
        )
        if not self.metrics:
            return page
        return with_comparison(page, self.frontier, optimum=self.optimum, forecast=self.forecast)

    def _read(self) -> list[str]:
        """What the own answers say of the best beta, in a sentence."""
        found = {} if self.between is None else self.between["verdict"]
        if found.get("best_beta") is None:
            return []
        ends = "" if found["best_lo"] is None else f" ({found['best_lo']:.3g} to {found['best_hi']:.3g})"
        size = self.between["n_samples"] if self.between else 0
        return [f"Between the trained betas, from {size:,} answers: best beta {found['best_beta']:.3g}{ends}."]

    def __str__(self) -> str:
        from kleash import terminal

        return terminal.to_text(self)


def world_frontier(world: World, beta: Floats, log_policy: Floats, *, config: Mapping[str, Any]) -> Frontier:
    """The table of policies in a world: exact expectations of ``log_policy`` (B, S, P, Y), mean over the seeds S."""
    reward, gold, kl = expectations(world, log_policy)  # (B, S) each
    # by the same sums as the rows, so that a policy that did not move has a gain of exactly 0
    reference = expectations(world, world.log_reference)[:2]
    reachable = np.isfinite(world.log_reference)
    table = swept_frontier(
        beta,
        (reward, gold, kl),
        reference=[np.full(reward.shape[1], float(value)) for value in reference],
        told=[Estimates.exact(value) for value in reference],
        gold_range=float(np.ptp(world.gold[reachable])),
        config=config,
    )
    return replace(
        table,
        diagnostics={"objective_gap": objective_gap(world, beta, log_policy).mean(axis=1)},
        provenance={**table.provenance, "reward_range": float(np.ptp(world.reward[reachable]))},
    )


def swept_frontier(
    beta: Floats,
    trained: tuple[Floats, Floats | None, Floats],
    *,
    reference: Sequence[Floats],
    told: Sequence[Estimates],
    gold_range: float | None,
    config: Mapping[str, Any],
) -> Frontier:
    """The table of ``trained`` reward, gold and KL (B, S), means over seeds.

    ``reference`` is its reward, and its gold where there is any, for each seed (S,), and ``told`` what is said of them.
    """
    reward, gold, kl = trained
    quality = None
    if gold is not None:
        quality = Gold.of(Estimates.of_means(gold), gain=Estimates.of_means(gold - reference[1]), reference=told[1])
    return Frontier(
        source="sweep",
        beta=beta,
        reward=Estimates.of_means(reward),
        gold=quality,
        kl=Estimates.of_means(kl),
        reference_reward=told[0],
        n=np.full(beta.size, reward.shape[1]),
        status=np.full(beta.size, "ok"),
        replicates=Replicates(
            kind="seeds",
            reward=reward.T,
            kl=kl.T,
            gold=None if gold is None else gold.T,
            reference_reward=reference[0],
            reference_gold=None if gold is None else reference[1],
        ),
        gold_range=gold_range,
        provenance={"version": version(), "config": dict(config)},
    )


def shown_answers(world: World, beta: Floats, log_policy: Floats, *, seed: int) -> tuple[Mapping[str, Any], ...]:
    """A few answers per beta, drawn from policies of shape (B, S, P, Y)."""
    rows = []
    for value, policies in zip(beta.tolist(), log_policy, strict=True):
        for prompt, answer in zip(*draw_answers(world, policies, beta=value, seed=seed, n=_SHOWN_ANSWERS), strict=True):
            rows.append(
                {
                    "beta": value,
                    "prompt": world.prompts[prompt],
                    "answer": world.answers[prompt][answer],
                    "reward": float(world.reward[prompt, answer]),
                    "gold": float(world.gold[prompt, answer]),
                }
            )
    return tuple(rows)


def write(run: Run, result: SweepResult) -> None:
    """Finish a run folder; rows of metrics that training has appended stay as they are."""
    results = {
        "world": result.world,
        "policies": "language" if result.history is None else "tabular",
        "answers": list(result.answers),
        "verdict": result.verdict.to_dict(),
        "early_stopping": None if result.early_stopping is None else dict(result.early_stopping),
        "remarks": list(result.remarks),
    }
    if result.forecast is not None:
        result.forecast.save(run.path / _FORECAST)
    if result.between is not None:
        _files.write_atomic(run.path / DIAL, _files.dump_json(result.between) + "\n")
    appended = result.history is None and (run.path / "metrics.jsonl").exists()
    run.finish(
        seed=result.seed,
        inputs=result.inputs,
        results=results,
        metrics=None if appended else result.training(),
        frontier=result.frontier,
        optimum=result.optimum,
    )


def read_back(run: Run) -> SweepResult:
    """The result in a finished run folder; a DataError where its files are not what a sweep wrote."""
    try:
        return _read_back(run)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        if isinstance(error, KleashError):
            raise
        got = f"{type(error).__name__} {_checks.short(str(error))}"
        raise DataError(f"is not the whole record of a sweep ({got})", path=run.path / "run.json") from error


def _read_back(run: Run) -> SweepResult:
    frontier, optimum, metrics = run.frontier(), run.optimum(), run.metrics()
    results = run.record["results"]
    seen = "language" if "kl_k1" in metrics[0] else "tabular"  # schema 1 did not name them
    language = results.get("policies", seen) == "language"
    if optimum is None and not language:
        raise OptionError(_checks.message(f"{run.path}", expected="a whole run", got="one without optimum.json"))
    return SweepResult(
        world=results["world"],
        frontier=frontier,
        optimum=optimum,
        verdict=find_window(frontier),
        answers=tuple(results["answers"]),
        history=None if language else _history(metrics, frontier.beta.size, int(run.config["seeds"])),
        config=run.config,
        inputs=tuple(run.record["inputs"]),
        origin="read-back",
        metrics=tuple(metrics) if language else (),
        forecast=Frontier.load(run.path / _FORECAST) if (run.path / _FORECAST).exists() else None,
        between=json.loads(_files.read_text(run.path / DIAL)) if (run.path / DIAL).exists() else None,
        early_stopping=results.get("early_stopping"),
        remarks=tuple(results.get("remarks", ())),
        version=run.record["versions"]["kleash"],
    )


def _history(metrics: list[dict[str, Any]], betas: int, seeds: int) -> History:
    columns = {
        name: np.asarray([row[name] for row in metrics]).reshape(-1, betas, seeds)
        for name in ("step", "reward", "gold", "kl", "objective")
    }
    return History(step=columns.pop("step")[:, 0, 0], **columns)
