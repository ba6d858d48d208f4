"""``kleash sample``: draw answers of a model or a server and have them judged."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from kleash.cli._output import debug_option, note, seed_option


@click.command(short_help="Draw answers, have them judged: samples for a forecast.")
@click.argument("prompts", metavar="[PROMPTS]", required=False)
@click.option("--model", metavar="SPEC", help="A folder, a .gguf, package:file.gguf; a name with --url.")
@click.option("--url", metavar="URL", help="A server with OpenAI's interface, such as http://localhost:8000/v1.")
@click.option("--adapter", type=click.Path(path_type=Path), metavar="DIR", help="PEFT's folder: sample the policy.")
@click.option("-k", "k", type=int, default=24, show_default=True, help="Answers to each prompt.")
@click.option("--max-new-tokens", type=int, default=256, show_default=True, metavar="N", help="Most tokens an answer.")
@click.option(
    "--judge",
    "judges",
    metavar="[NAME=]JUDGE[:WEIGHT]",
    multiple=True,
    help="MODULE:FUNCTION, length, lexicon or reward-model:FOLDER. Repeatable: summed.",
)
@click.option("--gold", metavar="JUDGE", help="True quality, named like a judge.")
@seed_option
@click.option("--resume", is_flag=True, help="Go on where FILE's journal ends; nothing is drawn or judged twice.")
@click.option("-o", "--out", required=True, metavar="FILE", help="A .parquet or .jsonl file, - for stdout.")
@click.option("--label-sheet", metavar="SHEET", help="Write a CSV of answers to be labelled by hand.")
@click.option("--labels", type=int, default=200, show_default=True, metavar="N", help="With --label-sheet: how many.")
@click.option(
    "--labels-for",
    type=click.Choice(["gain", "random"]),
    default="gain",
    show_default=True,
    help="With --label-sheet: mostly those that the gain hangs on, or all alike.",
)
@click.option("--merge", metavar="SHEET", help="Take the labels of a sheet back into FILE.")
@debug_option
def sample(
    prompts: str | None,
    model: str | None,
    url: str | None,
    adapter: Path | None,
    k: int,
    max_new_tokens: int,
    judges: tuple[str, ...],
    gold: str | None,
    seed: int,
    resume: bool,
    out: str,
    label_sheet: str | None,
    labels: int,
    labels_for: str,
    merge: str | None,
) -> None:
    """Draw answers to PROMPTS at temperature 1 over the whole vocabulary, and score them with a judge.

    PROMPTS is a CSV, JSONL or Parquet file with a column prompt (a text or chat messages); - is standard input. Every
    answer and every score is kept as it comes, in FILE.journal: after a kill, --resume goes on.

    With --label-sheet or --merge, PROMPTS, --model and --judge may be left out: then FILE is what was drawn before.
    """
    sheets = label_sheet is not None or merge is not None
    if sheets and out == "-":
        raise click.UsageError("labels need a file: expected -o FILE, got -o -")
    if prompts is None and not sheets:
        raise click.UsageError("Missing argument 'PROMPTS'")
    if prompts is not None:
        if model is None or not judges:
            raise click.UsageError(f"Missing option '{'--model' if model is None else '--judge'}'")
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
    if label_sheet is not None:
        _write_sheet(out, label_sheet, labels=labels, labels_for=labels_for, seed=seed)
    if merge is not None:
        _take_back(out, merge)


def _write_sheet(out: str, sheet: str, *, labels: int, labels_for: str, seed: int) -> None:
    from kleash.sampling.labels import label_sheet

    chosen = label_sheet(out, sheet, labels=labels, labels_for=labels_for, seed=seed)
    back = shlex.join(["kleash", "sample", "-o", out, "--merge", sheet])
    note(f"{chosen:,} answers to label in {sheet}, from the top, column gold. Next: {back}")


def _take_back(out: str, sheet: str) -> None:
    from kleash.sampling.labels import merge_labels

    found, rows = merge_labels(out, sheet)
    left = "" if found == rows else f" of {rows:,}, the others taken for left out by chance"
    note(f"{found:,} labels{left} in {out}. Next: {shlex.join(['kleash', 'forecast', out])}")


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
