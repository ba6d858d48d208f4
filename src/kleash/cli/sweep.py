"""``kleash sweep``: the dial in a world where the truth is known."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kleash.cli._live import live_table
from kleash.cli._output import Format, debug_option, emit, format_option, note, progress
from kleash.known_worlds import WORLDS, needs_a_model

if TYPE_CHECKING:
    from kleash.train.result import SweepResult

_SETTINGS = "; ".join(f"of the {name}: {', '.join(world.settings)}" for name, world in WORLDS.items())


@click.command(short_help="Train at several betas at once and see what the dial does.")
@click.argument("configs", metavar="[CONFIG.toml]", nargs=-1)
@click.option("--world", metavar="NAME", help=f"A world known by name: {', '.join(WORLDS)}; default kitchen.")
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help=f"A setting of the world; {_SETTINGS}. Repeatable.",
)
@click.option(
    "--beta",
    "betas",
    type=float,
    multiple=True,
    help="A setting of the dial. Repeatable; default 0 1 5 15 60, or the world's own.",
)
@click.option("--ladder", is_flag=True, help="Recipes, or a model: train only where a forecast needs it, two at most.")
@click.option(
    "--ladder-answers",
    type=int,
    metavar="N",
    help="Answers to each prompt for the ladder; default 399, of a model 3 forecast_samples.",
)
@click.option("--seeds", type=int, help="Independent runs per beta; default 3.")
@click.option("--seed", type=int, help="Start of all randomness; default 0.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Keep the run in a new folder.")
@click.option("--resume", is_flag=True, help="With --out: go on with the run that is there.")
@click.option(
    "--ray",
    is_flag=False,
    flag_value="local",
    metavar="[ADDRESS]",
    help="With --out: some betas to each worker of a Ray cluster; without ADDRESS one on this machine.",
)
@format_option
@debug_option
def sweep(
    configs: tuple[str, ...],
    world: str | None,
    settings: tuple[str, ...],
    betas: tuple[float, ...],
    ladder: bool,
    ladder_answers: int | None,
    seeds: int | None,
    seed: int | None,
    out: Path | None,
    resume: bool,
    ray: str | None,
    form: Format,
) -> None:
    """Train against a judge at several betas at once and see what the dial does.

    Without arguments: the kitchen, a chef and a critic who loves salt, at betas 0 1 5 15 60. Each row is the
    judge's score, the true quality and the drift from the reference (KL) after training; the verdict says whether
    any beta helps.

    The recipes are the same story for a real language model, small enough that every answer can be listed.

    A CONFIG.toml may name a world of your own (examples/small_world.toml) or a model, a judge and prompts
    (examples/smollm2.toml). Flags win over the file.
    """
    from kleash.train import config as configuration
    from kleash.train import sweep as sweeping

    if ladder or ladder_answers is not None:
        fits = world is None and not settings if configs else world == "recipes"
        if not ladder or betas or seeds is not None or not fits:
            expected = "with --world recipes or the CONFIG of a model, without --beta and --seeds"
            raise click.UsageError(f"--ladder: expected {expected}")
        with progress("training") as move:
            climbed = sweeping.climb(
                _one_config(configs) if configs else "recipes",
                settings=_settings(settings),
                answers=ladder_answers,
                seed=seed,
                out=out,
                resume=resume,
                progress=move,
            )
        emit(form, data=climbed.to_dict, rows=climbed.rows, show=climbed)
        return
    asked: Any = configuration.read_config(_one_config(configs)) if configs else configuration.SweepConfig()
    a_model = not isinstance(asked, configuration.SweepConfig)
    wrong = "--world" if world is not None else "--set" if settings else ""
    if a_model and wrong:
        raise click.UsageError(f"{wrong} belongs to a world, and {configs[0]} trains a model")
    asked = asked if world is None else dataclasses.replace(asked, world=world)
    if ray is not None:
        given = {"beta": betas or None, "seeds": seeds, "seed": seed}
        _on_ray(asked, ray, settings=_settings(settings), given=given, out=out, resume=resume, form=form)
        return
    with live_table() if a_model or needs_a_model(asked.world) else progress("training") as shown:
        move, watch = shown if isinstance(shown, tuple) else (shown, None)
        result = sweeping.sweep(
            asked,
            settings=_settings(settings),
            beta=betas or None,
            seeds=seeds,
            seed=seed,
            out=out,
            resume=resume,
            progress=move,
            watch=watch,
        )
    _tell(result, out)
    emit(form, data=result.to_dict, rows=result.rows, show=result)


def _on_ray(
    asked: Any,
    address: str,
    *,
    settings: dict[str, float],
    given: dict[str, Any],
    out: Path | None,
    resume: bool,
    form: Format,
) -> None:
    from kleash.train.spread import spread_sweep
    from kleash.train.sweep import sweep as on_one

    if out is None:
        raise click.UsageError("--ray: expected together with --out, a folder that all workers see")
    said = {name: value for name, value in given.items() if value is not None}
    with progress("parts") as move:
        how: dict[str, Any] = {"settings": settings, "said": said, "out": out, "resume": resume, "progress": move}
        result = spread_sweep(on_one, asked, address=address, **how)
    emit(form, data=result.to_dict, rows=result.rows, show=result)


def _tell(result: SweepResult, out: Path | None) -> None:
    if result.origin == "read-back":
        note(f"{out}: a finished run, read back without training")
    elif result.origin == "trained-again":
        note(f"{out}: the run there had been interrupted; trained again from the start")
    elif result.origin == "resumed":
        note(f"{out}: the run there had been interrupted; went on from its last checkpoint")


def _one_config(configs: tuple[str, ...]) -> str:
    numbers = [text for text in configs if _is_number(text)]
    if numbers:
        raise click.UsageError(
            f"{numbers[0]!r} is no configuration file; repeat the flag for each beta: --beta {numbers[0]}"
        )
    if len(configs) > 1:
        raise click.UsageError(f"expected one CONFIG.toml, got {', '.join(configs)}")
    return configs[0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python reads 1_0 as 10, no data file does


def _settings(pairs: tuple[str, ...]) -> dict[str, float]:
    values = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not name or not _is_number(value):
            raise click.UsageError(f"--set: expected NAME=VALUE with a number, got {pair!r}")
        values[name.strip()] = float(value)
    return values
