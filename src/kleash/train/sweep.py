"""Sweep: turn the dial. Train at several betas at once and lay the result beside the exact optimum."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from kleash import _checks
from kleash.errors import DependencyError, OptionError
from kleash.frontier import exact_frontier
from kleash.known_worlds import WORLDS, needs_a_model
from kleash.runs import open_run, written_alone
from kleash.train.config import DEFAULT_BETAS, SweepConfig, read_config
from kleash.train.options import Dial
from kleash.train.result import SweepResult, read_back, shown_answers, world_frontier, write
from kleash.train.tabular import DEFAULT_SAMPLES, DEFAULT_STEPS, Progress, train_tabular
from kleash.window import find_window
from kleash.worlds import World

if TYPE_CHECKING:
    from kleash.train.ladder import Ladder
    from kleash.train.language import LanguageConfig
    from kleash.train.lm_sweep import Watch
    from kleash.world_files import WorldFile

__all__ = ["SweepResult", "sweep"]

_DIAL = Dial(beta=DEFAULT_BETAS, seeds=3, steps=DEFAULT_STEPS, samples=DEFAULT_SAMPLES)


def sweep(
    world: str | Path | World | WorldFile | SweepConfig | LanguageConfig = "kitchen",
    *,
    settings: Mapping[str, float] | None = None,
    beta: ArrayLike | None = None,
    seeds: int | None = None,
    seed: int | None = None,
    steps: int | None = None,
    samples: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> SweepResult:
    """Train policies against the judge at several betas and seeds at once, and say what the dial does.

    Use it to see, in a world where the truth is known, what a KL penalty does to the judge's score and to the true
    quality; or, with ``"recipes"``, what it does to a real language model, small enough that the truth is still known.
    A configuration that names a model, a judge and prompts trains a language model of your own; for those,
    :func:`kleash.forecast` reads the same table off scored samples without training.

    Parameters
    ----------
    world
        ``"kitchen"``, ``"recipes"`` (needs ``kleash[train]``), a :class:`~kleash.worlds.World`, the path of a world
        file (:func:`kleash.load_world`), or a configuration: the path of a TOML or YAML file as ``kleash sweep`` takes
        it, or what :func:`kleash.train.config.read_config` gave. What is said below wins over it.
    settings
        Settings of a world known by name: its keyword arguments, numbers.
    beta
        Finite coefficients in reward units per nat, in any order; default: the world's own.
    seeds
        Independent runs per beta; default 3. With one there are no standard errors, and nothing can be shown to be a
        gain.
    seed
        Start of all randomness, default 0; the same seed gives the same bytes.
    steps, samples
        Gradient steps, and answers drawn per prompt and step; defaults 1500 and 256 (recipes: 300 and 21).
    out
        A folder to keep the run in, new or empty.
    resume
        With ``out``: a finished run of the same configuration is read back instead of trained; an interrupted one
        is trained again.
    progress
        Called with (steps done, steps).
    watch
        For a language model: called with each step and its rows.

    Returns
    -------
    SweepResult

    Raises
    ------
    OptionError
        An unknown world or setting, a value out of its range, a folder with something else in it.
    ConfigError
        ``resume``, and the run in the folder has another configuration.
    DependencyError
        The recipes or a model, and torch or transformers is not installed.

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
    how: dict[str, Any] = {"out": out, "resume": resume, "progress": progress, "watch": watch}
    given: dict[str, Any] = {"beta": beta, "seeds": seeds, "seed": seed, "steps": steps, "samples": samples}
    said = {name: value for name, value in given.items() if value is not None}
    asked = _configured(world)
    if asked is not None:
        return _sweep_configured(asked, settings or {}, said, how)
    if needs_a_model(world):
        return _with_torch("the recipes").sweep_recipes(settings, said, **how)  # type: ignore[no-any-return]
    known, inputs = _resolve(world, settings)
    dial = dataclasses.replace(_DIAL, **said)
    if resume and out is None:
        raise OptionError(_checks.message("resume", expected="a folder (out) to go on with", got="none"))
    config = {
        "world": known.name,
        "settings": {name: float(value) for name, value in (settings or {}).items()},
        "world_sha256": fingerprint(known),
        **dial.settled(),
    }
    run = None if out is None else open_run(out, kind="sweep", config=config, resume=resume)
    if run is not None and run.state == "finished":
        return read_back(run)
    with written_alone(run):
        if run is not None:
            run.begin(seed=dial.seed, inputs=inputs)
        trained = train_tabular(known, **vars(dial), progress=progress)
        frontier = world_frontier(known, trained.beta, trained.log_policy, config=config)
        result = SweepResult(
            world=known.name,
            frontier=frontier,
            optimum=exact_frontier(known, trained.beta),
            verdict=find_window(frontier),
            answers=shown_answers(known, trained.beta, trained.log_policy, seed=dial.seed),
            history=trained.history,
            config=config,
            inputs=inputs,
            origin="trained" if run is None or run.state == "new" else "trained-again",
        )
        if run is not None:
            write(run, result)
    return result


def _resolve(world: Any, settings: Mapping[str, float] | None) -> tuple[World, tuple[Mapping[str, Any], ...]]:
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
    known = WORLDS[_checks.choice(world, [*WORLDS], name="world")]
    for name in settings or {}:
        if name not in known.settings:
            raise OptionError(f"unknown setting {name!r} of the {world}; {_checks.nearest(name, known.settings)}")
    assert known.make is not None  # sweep() has seen to the worlds of language models
    return known.make(**(settings or {})), ()


def fingerprint(world: World) -> str:
    """SHA-256 over everything a world says, so that a run is never taken for that of another world."""
    digest = hashlib.sha256(repr((world.name, world.prompts, world.answers)).encode())
    for array in (world.log_reference, world.reward, world.gold, world.prompt_weight):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def climb(
    world: str | Path | LanguageConfig = "recipes",
    *,
    settings: Mapping[str, float] | None = None,
    answers: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Ladder:
    """The ladder: forecast, train where it is sure, draw, forecast again; two policies at most.

    Parameters
    ----------
    world
        ``recipes``, or the configuration of a language model or its path.
    settings
        Of the recipes.
    answers, seed, out, resume, progress
        See :func:`kleash.train.ladder.ladder_recipes` and :func:`kleash.train.ladder_model.ladder_model`.

    Returns
    -------
    Ladder

    Raises
    ------
    OptionError
        Another world.
    DependencyError
        torch or transformers is not installed.
    """
    asked = _configured(world)
    if isinstance(asked, SweepConfig) or (asked is None and world != "recipes"):
        raise OptionError(_checks.message("ladder", expected="the recipes, or a model of your own", got="a table"))
    _with_torch("the ladder")
    how: dict[str, Any] = {"out": out, "resume": resume, "progress": progress}
    if asked is not None:
        from kleash.train.ladder_model import ladder_model

        return ladder_model(asked, answers=answers, seed=seed, **how)
    from kleash.train.ladder import ANSWERS, ladder_recipes

    size = ANSWERS if answers is None else answers
    return ladder_recipes(settings=settings, answers=size, seed=seed or 0, **how)


def _with_torch(what: str) -> Any:
    try:
        from kleash.train import lm_sweep
    except ImportError as error:
        fix = "pip install 'kleash[train]'"
        said = _checks.message(what, expected="torch and transformers", got=f"no {error.name}", fix=fix)
        raise DependencyError(said) from error
    return lm_sweep


def _configured(world: Any) -> SweepConfig | LanguageConfig | None:
    """The configuration that this is or is the path of, if any."""
    if isinstance(world, str | Path):
        return read_config(world) if Path(world).suffix in (".toml", ".yaml", ".yml") else None
    return world if isinstance(world, SweepConfig) or hasattr(world, "training") else None


def _sweep_configured(
    asked: SweepConfig | LanguageConfig, settings: Mapping[str, float], said: Mapping[str, Any], how: Mapping[str, Any]
) -> SweepResult:
    if not isinstance(asked, SweepConfig):
        if settings:
            raise OptionError(_checks.message("settings", expected="a world known by name", got="a model"))
        asked = dataclasses.replace(asked, training=dataclasses.replace(asked.training, **said))
        return _with_torch("a language model").sweep_model(asked, **how)  # type: ignore[no-any-return]
    world: str | WorldFile
    if isinstance(asked.world, str):
        world = asked.world
    else:
        from kleash.world_files import read_world_file

        world = read_world_file(asked.world.file, normalise=asked.world.normalise)
    whole = {name: getattr(asked, name) for name in ("beta", "seeds", "seed", "steps", "samples")} | dict(said)
    return sweep(world, settings={**asked.settings, **settings}, **whole, **how)
