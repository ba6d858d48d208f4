"""A sweep spread over the workers of a Ray cluster: some betas to each, in folders of their own, joined in the end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from kleash import _checks, _files
from kleash.errors import ConfigError, DependencyError, KleashError, OptionError
from kleash.estimates import Estimates
from kleash.frontier import Frontier, Gold, Replicates
from kleash.known_worlds import needs_a_model
from kleash.runs import Run, open_run, read_run
from kleash.train.config import DEFAULT_BETAS, SweepConfig
from kleash.train.result import SweepResult, read_back, write
from kleash.train.tabular import Progress
from kleash.window import find_window

__all__ = ["LOCAL", "spread_sweep"]

LOCAL = "local"
"""The address that starts a cluster on this machine, for this one sweep."""
_PARTS, _CUT = "parts", "cut.json"
_WAIT = 60.0  # seconds in which a part's folder that a dying worker still holds is asked for again
Sweep = Callable[..., SweepResult]
AnyEstimates = TypeVar("AnyEstimates", Estimates, Gold)


def spread_sweep(
    sweep: Sweep,
    asked: Any,
    *,
    address: str,
    settings: Mapping[str, float],
    said: Mapping[str, Any],
    out: str | Path,
    resume: bool = False,
    progress: Progress | None = None,
) -> SweepResult:
    """A sweep on the workers of a Ray cluster: the same table as on one machine.

    Parameters
    ----------
    sweep
        :func:`kleash.sweep`.
    asked
        A configuration.
    address
        Of the cluster's head, as Ray writes it (``auto``, ``ray://host:10001``); ``local``: one is started here.
    settings, said
        Settings of the world; what wins over the configuration.
    out
        The run folder, on storage that all workers see under one path.
    resume
        Go on with what is there, on whichever cluster.
    progress
        Called with parts done and parts.

    Returns
    -------
    SweepResult

    Raises
    ------
    DependencyError
        Ray is not installed.
    OptionError
        The folder holds something else, or the cluster cannot be reached.
    ConfigError
        ``resume``, and the betas there are others.

    Notes
    -----
    The betas are cut once, into as many parts of neighbours as there are workers, and the cut is kept. Each part is a
    run folder of its own under ``parts``; a part whose worker is lost is begun again by another and goes on from its
    last checkpoint. Policies at different betas share no random numbers and no parameters, so that a part does not
    depend on the others. In the end the trained adapters are put together and measured as on one machine; tables of
    worlds are put side by side.
    """
    ray = _ray()
    folder = Path(out).absolute()
    betas = _betas(asked, said)
    how = {"settings": dict(settings), "said": dict(said)}
    _must_fit(folder, resume=resume)
    with contextlib.redirect_stdout(sys.stderr):  # Ray tells of lost workers there, where the answer goes
        _start(ray, address)
        try:
            parts = _trained(ray, sweep, asked, folder, betas, how, progress)
        finally:
            ray.shutdown()
    return _joined(sweep, asked, folder, parts, betas, how)


def _trained(
    ray: Any,
    sweep: Sweep,
    asked: Any,
    folder: Path,
    betas: list[float],
    how: Mapping[str, Any],
    progress: Progress | None,
) -> list[Path]:
    """The folders of the parts, all of them finished."""
    cut = _cut(folder, betas, workers=_workers(ray))
    parts = [folder / _PARTS / f"{number:03d}" for number in range(len(cut))]
    gpus = 1 if not isinstance(asked, SweepConfig) and ray.cluster_resources().get("GPU", 0) >= 1 else 0
    remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=-1)(_part)
    waiting = [
        remote.remote(sweep, asked, beta=beta, out=str(path), **how)
        for beta, path in zip(cut, parts, strict=True)
        if not _finished(path)
    ]
    while waiting:
        if progress is not None:
            progress(len(parts) - len(waiting), len(parts))
        ready, waiting = ray.wait(waiting, num_returns=1)
        _result(ray, ready[0])
    return parts


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        fix = "pip install 'kleash[ray]'"
        raise DependencyError(_checks.message("--ray", expected="ray", got=f"no {error.name}", fix=fix)) from error
    return ray


def _start(ray: Any, address: str) -> None:
    quiet: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        text = str(error).strip().splitlines()[0]
        raise OptionError(
            _checks.message("--ray", expected="the address of a cluster", got=f"{address} ({text})")
        ) from error


def _result(ray: Any, reference: Any) -> None:
    """What a part came to: nothing, or its error as one of kleash's own."""
    try:
        said = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise KleashError(f"a part of the sweep was lost: {str(error).strip().splitlines()[-1]}") from error
    if said is not None:
        raise KleashError(said)


def _part(sweep: Sweep, asked: Any, *, beta: list[float], out: str, settings: Any, said: Any) -> str | None:
    """Train some betas in a folder of their own; runs on a worker, again and again until it comes to its end."""
    until = time.monotonic() + _WAIT
    while True:
        try:
            sweep(asked, settings=settings or None, **{**said, "beta": beta}, out=out, resume=True)
            return None
        except OptionError as error:
            if "nobody else writing it" not in str(error) or time.monotonic() > until:
                return str(error)
            time.sleep(1.0)
        except KleashError as error:
            return str(error)


def _betas(asked: Any, said: Mapping[str, Any]) -> list[float]:
    given = said.get("beta")
    if given is None and isinstance(asked, SweepConfig) and asked.beta is None and needs_a_model(asked.world):
        raise OptionError(_checks.message("--ray", expected="the betas of this world (--beta)", got="none"))
    if given is None:
        given = asked.beta if isinstance(asked, SweepConfig) else asked.training.beta
    return [float(beta) for beta in np.unique(_checks.betas(DEFAULT_BETAS if given is None else given, infinite=False))]


def _must_fit(folder: Path, *, resume: bool) -> None:
    if (folder / _PARTS / _CUT).exists():
        if not resume:
            fix = "--resume goes on with it, another --out starts afresh"
            raise OptionError(_checks.message(f"{folder}", expected="a new or empty folder", got="a run", fix=fix))
        return
    open_run(folder, kind="sweep", config={})  # refuses anything but a new or empty folder


def _workers(ray: Any) -> int:
    found = ray.cluster_resources()
    return max(1, int(found.get("GPU", 0) or found.get("CPU", 1)))


def _cut(folder: Path, betas: list[float], *, workers: int) -> list[list[float]]:
    """The betas of each part: as they were cut when the run began."""
    path = folder / _PARTS / _CUT
    if path.exists():
        there: list[list[float]] = json.loads(path.read_text(encoding="utf-8"))
        before = [beta for part in there for beta in part]
        if before != betas:
            got = ", ".join(f"{beta:g}" for beta in betas)
            expected = "betas " + ", ".join(f"{beta:g}" for beta in before) + " as in its parts"
            raise ConfigError(_checks.message(f"{folder}", expected=expected, got=got, fix="name another --out"))
        return there
    cut = [part.tolist() for part in np.array_split(betas, min(workers, len(betas)))]
    _files.make_folder(path.parent)
    _files.write_atomic(path, _files.dump_json(cut) + "\n")
    return cut


def _finished(path: Path) -> bool:
    return (path / "run.json").exists() and read_run(path).state == "finished"


def _joined(
    sweep: Sweep, asked: Any, folder: Path, parts: Sequence[Path], betas: list[float], how: Mapping[str, Any]
) -> SweepResult:
    """One run folder from the parts' folders."""
    if _finished(folder):
        return read_back(read_run(folder))
    runs = [read_run(path) for path in parts]
    first = runs[0]
    whole = {**first.config, "beta": betas}
    seed = int(first.config["seed"])
    state: Literal["new", "interrupted"] = "interrupted" if (folder / "run.json").exists() else "new"
    run = Run(path=folder, kind="sweep", config=whole, state=state, versions=first.versions)
    run.begin(seed=seed, inputs=first.record["inputs"])
    try:
        if (parts[0] / "checkpoint.safetensors").exists():
            _join_checkpoints(run, runs)
        else:
            results = [read_back(part) for part in runs]
            write(run, _side_by_side(results, whole))
            return dataclasses.replace(read_back(read_run(folder)), origin="trained")
    finally:
        run.lock.release()
    said = {**how["said"], "beta": betas}
    result = sweep(asked, settings=how["settings"] or None, **said, out=folder, resume=True)
    return dataclasses.replace(result, origin="trained")


def _join_checkpoints(run: Run, parts: Sequence[Run]) -> None:
    """The trained adapters of all parts as the last checkpoint of one run, and their rows up to the last evaluation."""
    found = [part.load_checkpoint() for part in parts]
    there = [checkpoint for checkpoint in found if checkpoint is not None]
    steps = int(parts[0].config["steps"])
    if len(there) < len(parts) or any(checkpoint.step != steps for checkpoint in there):
        raise KleashError(f"{run.path}: a part ended without its last checkpoint")
    (run.path / "metrics.jsonl").unlink(missing_ok=True)
    rows = [row for part in parts for row in part.metrics() if row["step"] < steps]
    run.append_metrics(sorted(rows, key=lambda row: (row["step"], row["beta"], row["seed"])))
    names = there[0].arrays
    arrays = {name: np.concatenate([checkpoint.arrays[name] for checkpoint in there]) for name in names}
    run.save_checkpoint(step=steps, arrays=arrays)


def _side_by_side(results: Sequence[SweepResult], config: Mapping[str, Any]) -> SweepResult:
    """The result of all betas from those of some, where all is exact."""
    frontier = _beside([result.frontier for result in results])
    frontier = dataclasses.replace(frontier, provenance={**frontier.provenance, "config": dict(config)})
    history = [result.history for result in results if result.history is not None]
    joined = {
        name: np.concatenate([getattr(part, name) for part in history], axis=1)
        for name in ("reward", "gold", "kl", "objective")
    }
    optima = [result.optimum for result in results if result.optimum is not None]
    return dataclasses.replace(
        results[0],
        frontier=frontier,
        optimum=_beside(optima),
        verdict=find_window(frontier),
        answers=tuple(answer for result in results for answer in result.answers),
        history=dataclasses.replace(history[0], **joined),
        config=config,
    )


def _beside(tables: Sequence[Frontier]) -> Frontier:
    """The rows of several tables of one world as one table."""
    first = tables[0]
    gold = [table.gold for table in tables if table.gold is not None]
    draws = [table.replicates for table in tables if table.replicates is not None]
    return dataclasses.replace(
        first,
        beta=np.concatenate([table.beta for table in tables]),
        reward=_of_all([table.reward for table in tables]),
        kl=_of_all([table.kl for table in tables]),
        gold=_of_all(gold) if gold else None,
        n=np.concatenate([table.n for table in tables]),
        status=np.concatenate([table.status for table in tables]),
        diagnostics={name: np.concatenate([table.diagnostics[name] for table in tables]) for name in first.diagnostics},
        replicates=_draws_of_all(draws) if draws else None,
    )


def _of_all(parts: Sequence[AnyEstimates]) -> AnyEstimates:
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ("value", "se", "lo", "hi")
    }
    if isinstance(parts[0], Gold):
        columns["gain"] = _of_all([part.gain for part in parts])  # type: ignore[attr-defined]  # all are of one kind
    return dataclasses.replace(parts[0], **columns)


def _draws_of_all(parts: Sequence[Replicates]) -> Replicates:
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=1)
        for name in ("reward", "kl", "gold")
        if getattr(parts[0], name) is not None
    }
    return dataclasses.replace(parts[0], **columns)
