"""``kleash play``: the dial to be turned by hand, and the animation of it."""

from __future__ import annotations

from pathlib import Path

import click

from kleash.cli._output import debug_option, note


@click.command(short_help="Write the kitchen's dial page: turn the leash by hand.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="page.html",
    help="Where to write the page; default kleash-play.html, unless only an animation is asked for.",
)
@click.option(
    "--animate", "animation", type=click.Path(path_type=Path), metavar="FILE", help="Write leash.gif or leash.webp."
)
@debug_option
def play(out: Path | None, animation: Path | None) -> None:
    """Write a page with the kitchen in it: three dials, the chef on the leash, a guess first and six things to try.

    The page is one file, needs no network, and opens in any browser. The animation shows the dial turning from loose
    to tight and back, as GIF or WebP.
    """
    if out is None and animation is None:
        out = Path("kleash-play.html")
    if animation is not None:
        from kleash.playground.animation import animate

        animate(animation)
        note(f"{animation}: the dial turning")
    if out is not None:
        from kleash import _files
        from kleash.playground import page

        _files.write_atomic(out, page.play())
        note(f"{out}: open it in a browser")
