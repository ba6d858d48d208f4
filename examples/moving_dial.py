"""Where the useful range of beta lies in nine kitchens: three critics, three cooks, every number exact.

python examples/moving_dial.py               a table for the terminal
python examples/moving_dial.py --markdown    the table of docs/moving-dial.md
"""

from __future__ import annotations

import argparse

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kleash.frontier import exact_frontier
from kleash.window import find_window
from kleash.worlds import kitchen

OVERSALT = (0.05, 0.005, 0.0005)
LOVE = (0.5, 1.0, 2.0)
HEAD = ("oversalt", "love", "Verdict", "Best beta", "Safe beta", "Gain", "Loose edge", "Tight edge")


def rows() -> list[list[str]]:
    """One row for each kitchen, as text; edges are (last bad, first good) betas of the exact table's grid."""
    table = []
    for oversalt in OVERSALT:
        for love in LOVE:
            frontier = exact_frontier(kitchen(oversalt=oversalt, love=love))
            verdict = find_window(frontier)
            start = [f"{oversalt:g}", f"{love:g}", verdict.kind]
            if verdict.best_beta is None or frontier.gold is None:
                table.append([*start, "-", "-", "none", "-", "-"])
                continue
            gain = frontier.gold.gain.value.max()
            edges = (verdict.loose_edge, verdict.tight_edge)
            spans = ["open" if edge is None else f"{edge[0]:.3g}..{edge[1]:.3g}" for edge in edges]
            table.append([*start, f"{verdict.best_beta:.3g}", f"{verdict.safe_beta:.3g}", f"{gain:.3f}", *spans])
    return table


def markdown(table: list[list[str]]) -> str:
    """The table in Markdown, numbers to the right."""
    ruler = ["---" if name == "Verdict" else "---:" for name in HEAD]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (HEAD, ruler, *table))


def terminal(table: list[list[str]]) -> Table:
    """The table for a terminal of 80 columns."""
    drawn = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title="The best beta moves with the judge")
    for name in HEAD:
        drawn.add_column(name, justify="left" if name == "Verdict" else "right", no_wrap=name not in HEAD[3:5])
    for number, cells in enumerate(table):
        drawn.add_row(*cells, end_section=number % len(LOVE) == len(LOVE) - 1)
    return drawn


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/moving-dial.md")
    console = Console()
    if parser.parse_args().markdown:
        console.print(markdown(rows()), markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(terminal(rows()))


if __name__ == "__main__":
    main()
