"""What is seen while a language model trains: judge's score, true quality and KL for each beta, as they move."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["live_table", "training_table"]

Move = Callable[[int, int], None]
Watch = Callable[[int, Sequence[Mapping[str, Any]]], None]


def training_table(
    rows: Sequence[Mapping[str, Any]], *, done: int, total: int, gold: Mapping[float, float] | None = None
) -> Table:
    """One step's rows as a table: a line per beta, means over seeds; ``gold`` is what was last measured of it."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, caption=f"step {done} of {total}")
    for name in ("Beta", "Judge's score", "True quality", "KL (nats)"):
        table.add_column(name, justify="right", no_wrap=True)
    for beta in dict.fromkeys(row["beta"] for row in rows):
        mine = [row for row in rows if row["beta"] == beta]
        quality = (gold or {}).get(beta)
        table.add_row(
            f"{beta:.4g}",
            f"{_mean(mine, 'reward'):.3f}",
            "-" if quality is None else f"{quality:.3f}",
            f"{_mean(mine, 'kl'):.3f}",
        )
    return table


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows) / len(rows))


@contextlib.contextmanager
def live_table() -> Iterator[tuple[Move | None, Watch | None]]:
    """Functions for ``progress`` and ``watch`` that keep a table on stderr; None and None where that is no terminal."""
    if not sys.stderr.isatty():
        yield None, None
        return
    from rich.console import Console
    from rich.live import Live

    state: dict[str, int] = {"total": 0}
    gold: dict[float, float] = {}
    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:

        def move(done: int, total: int) -> None:
            state["total"] = total

        def watch(step: int, rows: Sequence[Mapping[str, Any]]) -> None:
            for beta in dict.fromkeys(row["beta"] for row in rows):
                mine = [row for row in rows if row["beta"] == beta and row["gold"] is not None]
                if mine:
                    gold[beta] = _mean(mine, "gold")
            live.update(training_table(rows, done=step, total=state["total"], gold=gold))

        yield move, watch
