"""``kleash sample``: draw answers of a model or a server and have them judged."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from kleash.cli._output import debug_option, note


@click.command(short_help="Draw answers, have them judged: samples for a forecast.")
@click.argument("prompts", metavar="PROMPTS")
@click.option("--model", metavar="SPEC", required=True, help="A folder, a .gguf, package:file.gguf; a name with --url.")
@click.option("--url", metavar="URL", help="A server with OpenAI's interface, such as http://localhost:8000/v1.")
@click.option("--adapter", type=click.Path(path_type=Path), metavar="DIR", help="PEFT's folder: sample the policy.")
@click.option("-k", "k", type=int, default=24, show_default=True, help="Answers to each prompt.")
@click.option("--max-new-tokens", type=int, default=256, show_default=True, metavar="N", help="Most tokens an answer.")
@click.option(
    "--judge",
    "judges",
    metavar="[NAME=]JUDGE[:WEIGHT]",
    multiple=True,
    required=True,
    help="MODULE:FUNCTION, length, lexicon or reward-model:FOLDER. Repeatable: summed.",
)
@click.option("--gold", metavar="JUDGE", help="True quality, named like a judge.")
@click.option("--seed", type=int, default=0, show_default=True, help="Start of all randomness.")
@click.option("--resume", is_flag=True, help="Go on where FILE's journal ends; nothing is drawn or judged twice.")
@click.option("-o", "--out", required=True, metavar="FILE", help="A .parquet or .jsonl file, - for stdout.")
@debug_option
def sample(
    prompts: str,
    model: str,
    url: str | None,
    adapter: Path | None,
    k: int,
    max_new_tokens: int,
    judges: tuple[str, ...],
    gold: str | None,
    seed: int,
    resume: bool,
    out: str,
) -> None:
    """Draw answers to PROMPTS at temperature 1 over the whole vocabulary, and score them with a judge.

    PROMPTS is a CSV, JSONL or Parquet file with a column prompt (a text or chat messages); - is standard input. Every
    answer and every score is kept as it comes, in FILE.journal: after a kill, --resume goes on.
    """
    from kleash.sampling.run import sample as run

    with _bar() as move:
        result = run(
            prompts,
            model=model,
            url=url,
            adapter=adapter,
            k=k,
            max_new_tokens=max_new_tokens,
            judge=judges,
            gold=gold,
            seed=seed,
            out=None if out == "-" else out,
            resume=resume,
            progress=move,
        )
    if out == "-":
        from kleash.sampling.result import as_text

        sys.stdout.write(as_text(result.frame))
    note(result.cost())


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[int, int, int], None] | None]:
    """A bar on stderr with answers, tokens per second and time left; None where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("answers, {task.fields[rate]:.0f} tokens/s,"))
    left = (TimeRemainingColumn(elapsed_when_finished=True), TextColumn("left"))
    with Progress(*columns, *left, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, rate=0.0)
        started = time.monotonic()

        def move(there: int, total: int, tokens: int) -> None:
            bar.update(task, completed=there, total=total, rate=tokens / max(time.monotonic() - started, 1e-9))

        yield move
