"""What every command does with its answer: table, JSON or CSV on stdout or in a file, and progress on stderr."""

from __future__ import annotations

import contextlib
import csv
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from kleash._checks import cell, printable

__all__ = [
    "Format",
    "debug_option",
    "emit",
    "format_option",
    "lowered",
    "must_not_be_read",
    "note",
    "out_option",
    "progress",
    "seed_option",
    "setting_option",
    "settings_of",
]

Format = Literal["table", "json", "csv"]

format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="How to print the answer; JSON and CSV have full precision.",
)


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(dict)["debug"] = True


debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_set_debug, help="Print the traceback of an error."
)


def lowered(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A trainer's name, given in letters of any size."""
    return None if value is None else value.lower()


setting_option = click.option(
    "--set", "given", metavar="NAME=VALUE", multiple=True, help="A setting of the trainer, by its own name. Repeatable."
)
out_option = click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the answer to a file, not to the terminal."
)
seed_option = click.option("--seed", type=int, default=0, show_default=True, help="Start of all randomness.")
_WIDTH = 80
_ASCII = str.maketrans("─★●◆±", "-*o+~")


def emit(
    form: Format,
    *,
    data: Callable[[], Mapping[str, Any]],
    rows: Callable[[], Sequence[Mapping[str, Any]]],
    show: object,
    out: Path | None = None,
) -> None:
    """Print the answer, or write it to a file, the table as plain text of 80 columns.

    ``data`` makes the plain data of the JSON, ``rows`` the rows of the CSV, all with the same keys (None is an empty
    cell); ``show`` is what rich prints as the table (anything with ``__rich__``).
    """
    from kleash import _files

    if form == "json":
        text = _files.dump_json(data(), indent=2) + "\n"
    elif form == "csv":
        text = _csv(rows())
    elif out is not None:
        from kleash.terminal import to_text

        text = to_text(show) + "\n"
    else:
        _print(show)
        return
    if out is not None:
        _files.write_atomic(out, text)
    else:
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def settings_of(given: Sequence[str]) -> dict[str, str]:
    """Settings given as NAME=VALUE, as texts by name."""
    found: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"--set: expected NAME=VALUE, got {item!r}")
        if name.strip() in found:
            raise click.UsageError(f"--set {name.strip()}: expected once, got it twice")
        found[name.strip()] = value.strip()
    return found


def must_not_be_read(out: Path | None, paths: Sequence[str], *, flag: str) -> None:
    """Refuse to write over one of the files that are read."""
    if out is not None and out.exists() and any(out.samefile(path) for path in paths if Path(path).exists()):
        raise click.UsageError(f"{flag} {out} is one of the files to read; name another")


def note(text: str) -> None:
    """A line for the person at the terminal, on stderr."""
    click.echo(f"kleash: {printable(text)}", err=True)


@contextlib.contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """A function of (done, total) that moves a bar on stderr and is gone at the end; None where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)

        def move(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield move


def _print(show: object) -> None:
    from rich.console import Console

    from kleash.terminal import Printable, to_text

    console = Console(highlight=False, markup=False, emoji=False)
    unicode = console.encoding.startswith("utf")
    if console.is_terminal and unicode:
        console.print(Printable(show), width=min(console.width, _WIDTH))
        return
    text = to_text(show) + "\n"
    sys.stdout.write(text if unicode else text.translate(_ASCII).encode("ascii", "replace").decode("ascii"))


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return file.getvalue()
