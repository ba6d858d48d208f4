"""``kleash report``: one page that shows what was found."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from kleash.cli._output import Format, debug_option, emit, format_option, must_not_be_read, note


@click.command(short_help="One page to show: verdict, dial, charts, answers, table.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="PAGE.html", help="Write the page.")
@click.option(
    "--save-plots", type=click.Path(path_type=Path), metavar="DIR", help="Write every figure as SVG, PNG and its data."
)
@click.option("--title", metavar="TEXT", help="Title of the page.")
@format_option
@debug_option
def report(paths: tuple[str, ...], out: Path | None, save_plots: Path | None, title: str | None, form: Format) -> None:
    """Show runs, forecasts and checks: as one self-contained HTML page, or on the terminal.

    A PATH is a run folder, a frontier file (.json, .parquet), or the JSON of kleash sweep, forecast or check. Several
    are laid over each other; - is JSON from stdin. Without -o: the table, the verdict and a small chart; -o - prints
    the page. Of absolute paths a page shows the last part only.
    """
    from kleash.reporting.sources import given, read_sources

    if out is not None and form != "table":
        raise click.UsageError(f"--format {form} prints to stdout; -o writes a page: give one of them")
    must_not_be_read(out, paths, flag="-o")
    sources = read_sources(paths)
    if save_plots is not None:
        from kleash.reporting.plots import save_plots as draw

        written = draw(sources, save_plots)
        note(f"{save_plots}: {len(written)} files")
    if out is not None:
        from kleash import _files
        from kleash.reporting.page import report

        parts = ["kleash", "report", *map(given, paths), "-o", given(str(out))] + (["--title", title] if title else [])
        page = report(sources, title=title, command=shlex.join(parts))
        if str(out) == "-":
            click.echo(page)
            return
        _files.write_atomic(out, page)
        note(f"{out}: {len(page.encode()) / 1e6:.1f} MB; open it in a browser")
        return
    if save_plots is not None and form == "table":
        return
    from kleash.envelope import envelope
    from kleash.reporting.terminal import terminal_view

    def data() -> dict[str, Any]:
        return {
            **envelope("report", inputs=[{"path": s.path, "sha256": s.sha256, "rows": None} for s in sources]),
            "sources": [
                {
                    "name": s.name,
                    "kind": s.kind,
                    "rows": [] if s.frontier is None else s.frontier.rows(),
                    "reference": None if s.frontier is None else s.frontier.reference(),
                    "verdict": None if s.verdict is None else s.verdict.to_dict(),
                    "findings": [dict(row) for row in s.findings],
                }
                for s in sources
            ],
        }

    def rows() -> list[dict[str, Any]]:
        found = [{"source": s.name, **row} for s in sources if s.frontier is not None for row in s.frontier.rows()]
        if not found:
            raise click.UsageError("--format csv: no source has a table; --format json has the findings")
        names = list(dict.fromkeys(name for row in found for name in row))
        return [{name: row.get(name) for name in names} for row in found]

    emit(form, data=data, rows=rows, show=terminal_view(sources))
