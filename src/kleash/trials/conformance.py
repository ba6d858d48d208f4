"""Run a trainer's configurations, one after the other, and keep what is done: a result per configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash import _checks, _files
from kleash._version import version
from kleash.envelope import envelope
from kleash.errors import DataError, DependencyError
from kleash.trials.cases import NAMES, Case, built_in, needs_torch, puzzle
from kleash.trials.roots import Puzzle, visits
from kleash.trials.verdicts import Conformance, Prediction, judge, predict

if TYPE_CHECKING:
    from kleash.estimates import Floats
    from kleash.trials.loss_conformance import LossConformance
    from kleash.trials.trl_runs import Trace

__all__ = ["ConformanceResult", "conformance", "run_case"]

Progress = Callable[[int, int], None]

_BATCHES, _STEPS, _BATCH = 200, 150, 512
_QUICK = (60, 60, 256)


@dataclass(frozen=True, kw_only=True)
class ConformanceResult:
    """A row per configuration, and what they were made with."""

    name: str
    rows: tuple[Conformance, ...]
    versions: Mapping[str, str]
    seed: int
    inputs: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every configuration does what its settings say."""
        return all(row.passed for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return {
            **envelope("conformance", version=self.versions["kleash"], seed=self.seed, inputs=self.inputs),
            "name": self.name,
            "versions": dict(self.versions),
            "passed": self.passed,
            "notes": list(self.notes),
            "rows": [row.to_dict() for row in self.rows],
        }


def conformance(
    name: str | Callable[..., Any],
    *,
    cases: Sequence[Case] | None = None,
    quick: bool = False,
    seed: int = 0,
    folder: str | Path | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
    progress: Progress | None = None,
    beta: float = 0.5,
    group_size: int = 4,
    settings: Mapping[str, Any] | None = None,
    offline: bool = False,
) -> ConformanceResult | LossConformance:
    """Train in enumerable worlds, against the fixed point that the settings imply and against the tilt.

    Use it to learn what a trainer's beta means, or after an upgrade of the trainer. It says nothing about optimisation
    at scale: the policies are tiny and the optimiser is plain gradient descent.

    Parameters
    ----------
    name
        ``kleash``, ``trl-grpo``, ``trl-rloo`` or ``trl-dpo``. Or a loss of one's own, a function or
        ``module:function``: nothing is trained then, and ``beta``, ``group_size`` and ``settings`` are what it is asked
        with (:func:`kleash.trials.loss_conformance.loss_conformance`).
    cases
        What to run; default: the built-in configurations.
    quick
        Two configurations, with fewer and smaller batches.
    seed
        Start of all randomness.
    folder
        Where to keep a JSON per configuration; those that are there already (same versions, seed and sizes) are read
        instead of run.
    inputs
        Provenance of files that ``cases`` came from: path, sha256, rows.
    progress
        Called with (configurations done, all).
    beta, group_size, settings, offline
        Of a loss of one's own: the coefficient, answers to a prompt, further keywords, whether its answers are the
        reference's.

    Returns
    -------
    ConformanceResult or LossConformance
        A verdict per configuration; of a loss its faults, its gradient and where it comes to rest.

    Raises
    ------
    DependencyError
        TRL is missing, or of a version that was not tested; torch is missing and ``cases`` need it.
    """
    if not isinstance(name, str) or ":" in name:
        where = "." if folder is None else folder
        with_it = _loss_side()
        asked = {"beta": beta, "group_size": group_size, "settings": settings, "offline": offline}
        return with_it(name, folder=where, **asked)
    _checks.choice(name, NAMES, name="NAME")
    versions = {"kleash": version(), **({} if name == "kleash" else _trl_versions())}
    chosen = built_in(name, quick=quick) if cases is None else list(cases)
    notes: tuple[str, ...] = ()
    if any(map(needs_torch, chosen)) and find_spec("torch") is None:
        if cases is not None:
            fix = "pip install 'kleash[train]'"
            raise DependencyError(_checks.message("objective", expected="torch to run it", got="none", fix=fix))
        chosen = [case for case in chosen if not needs_torch(case)]
        notes = ("the language-model engine's objectives were left out: they need pip install 'kleash[train]'",)
    sizes = _QUICK if quick else (_BATCHES, _STEPS, _BATCH)
    rows = []
    for done, case in enumerate(chosen):
        if progress is not None:
            progress(done, len(chosen))
        stamp = {"versions": versions, "seed": seed, "sizes": list(sizes)}
        path = None if folder is None else Path(folder) / f"{_slug(case)}.json"
        kept = None if path is None else _kept(path, stamp)
        row = kept or run_case(case, sizes=sizes, seed=seed)
        if path is not None and kept is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            _files.write_atomic(path, _files.dump_json({**stamp, "row": row.to_dict()}, indent=2) + "\n")
        rows.append(row)
    if progress is not None:
        progress(len(chosen), len(chosen))
    return ConformanceResult(
        name=name, rows=tuple(rows), versions=versions, seed=seed, inputs=tuple(inputs), notes=notes
    )


def _loss_side() -> Callable[..., LossConformance]:
    if find_spec("torch") is None:
        fix = "pip install 'kleash[train]'"
        raise DependencyError(_checks.message("loss", expected="torch to ask it", got="none", fix=fix))
    from kleash.trials.loss_conformance import loss_conformance

    return loss_conformance


def run_case(case: Case, *, sizes: tuple[int, int, int] = (_BATCHES, _STEPS, _BATCH), seed: int = 0) -> Conformance:
    """One configuration: updates at the predicted root, then two runs from the reference.

    ``sizes``: batches at the root, steps of a run, answers (pairs) per batch.
    """
    world, objective = puzzle(case.world), case.objective
    prediction = predict(world, objective)
    batches, steps, batch = sizes
    if case.trainer == "kleash" and not needs_torch(case):
        held, paths, unit = _tabular(world, objective.beta, prediction, batches, batch, seed)
    else:
        run, unit = _runner(case, world, prediction)
        held = run(start=prediction.hold, steps=batches, rate=None, batch=batch, seed=seed).update
        rate = unit * _rate(case, world, prediction)
        paths = [
            run(start=world.reference_logits, steps=steps, rate=rate, batch=batch, seed=seed + 1 + i).logits
            for i in range(2)
        ]
    return judge(case, world, prediction, unit=unit, held=held, paths=paths, batch=batch)


def _trl_versions() -> dict[str, str]:
    from kleash.integrations.versions import require_trl

    return require_trl()


def _runner(case: Case, world: Puzzle, prediction: Prediction) -> tuple[Callable[..., Trace], float]:
    """What trains a case, and what its loss is divided by."""
    if case.trainer == "kleash":
        from kleash.trials.own_runs import own_unit, run_own

        return partial(run_own, case, world), own_unit(case)
    from kleash.trials.trl_runs import gradient_unit, run_trl

    return partial(run_trl, case, world), gradient_unit(case, world, prediction.hold)


def _rate(case: Case, world: Puzzle, prediction: Prediction) -> Floats:
    """A step per prefix that gets there in a few dozen steps: 2 over the curvature, more where few answers pass."""
    objective = case.objective
    if case.settings.get("normalize_advantages"):
        curvature = 20.0 * float(np.ptp(world.reward))  # steps of one size, however near the root: they must be small
        return np.full(world.tokens.n_prefixes, 2.0 / curvature)
    curvature = objective.beta**2 if objective.labels != "none" else objective.tilt_beta
    return np.asarray(
        2.0 / curvature / np.maximum(visits(world, prediction.hold), 0.1 if objective.labels == "none" else 0.25)
    )


def _tabular(
    world: Puzzle, beta: float, prediction: Prediction, batches: int, batch: int, seed: int
) -> tuple[Floats, list[Floats], float]:
    """kleash's own policy gradient: its gradient at the root, and two runs of `train_tabular`."""
    from kleash.train.tabular import gradient, train_tabular
    from kleash.worlds import World

    log_reference = world.log_policy(world.reference_logits)
    rng = np.random.default_rng(seed)
    log_policy = world.log_policy(prediction.hold)
    counts = rng.multinomial(batch, np.exp(log_policy), size=batches)
    slope = gradient(counts, world.reward - beta * (log_policy - log_reference))
    flat = World(name=world.name, log_reference=log_reference[None], reward=world.reward[None], gold=world.reward[None])
    run = train_tabular(flat, [beta], seeds=2, seed=seed)
    paths = [np.repeat(run.log_policy[0, i][None], 10, axis=0) for i in range(2)]
    return slope[:, None, :], paths, 1.0


def _slug(case: Case) -> str:
    kept = "".join(c if c.isalnum() or c in ".-" else "_" for c in case.label)
    return kept.replace("__", "_")


def _kept(path: Path, stamp: Mapping[str, Any]) -> Conformance | None:
    """A result that is already there and was made in the same way."""
    if not path.exists():
        return None
    try:
        content = json.loads(_files.read_text(path))
        if {key: content[key] for key in stamp} != stamp:
            return None
        return Conformance.from_dict(content["row"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError("is not a result of kleash conformance; remove it", path=path) from error
