"""The dial turning, as a moving picture: leash, two needles, the table filling up. For a README and for teachers."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kleash import _checks, _files
from kleash.errors import OptionError
from kleash.playground import drawing
from kleash.playground.kitchen import Reading, beta_at, beta_words, position, read
from kleash.reporting.palette import COLOURS, FONT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from PIL.Image import Image as Picture

__all__ = ["animate", "frame_svg", "script"]

BETAS = (0.0, 1.0, 5.0, 15.0, 60.0, math.inf)
"""The rows of the table, from loose to tight."""
WIDTH, HEIGHT = 880, 410
_STEP = 80  # milliseconds of a frame in which the dial moves: 12.5 a second, and GIF counts in hundredths
_REST = 720  # milliseconds on a row of the table
_END = 2000  # milliseconds on the verdict, long enough to read it


def animate(path: str | Path) -> None:
    """Write the animation, by the file's ending as GIF or WebP; the same bytes each time on one machine.

    ``path``: ``.gif`` or ``.webp``. Raises `OptionError`: Another ending.

    Notes
    -----
    The first kitchen, exactly: the dial turns from beta 0 to the reference, resting at each row of the table, then
    back to 0. Pictures are drawn by :mod:`kleash.playground.drawing` and made into pixels by vl-convert. GIF frames
    share one palette: the colours of the drawing code, and what lies between each of them and its ground at the edge
    of a line. WebP is lossless.
    """
    form = _checks.choice(Path(path).suffix.lower(), (".gif", ".webp"), name="animation's ending")
    frames = list(_frames())
    images, spent = [image for image, _ in frames], [milliseconds for _, milliseconds in frames]
    buffer = io.BytesIO()
    if form == ".gif":
        plain = [_in_palette(image) for image in images]
        plain[0].save(
            buffer, format="GIF", save_all=True, append_images=plain[1:], duration=spent, loop=0, optimize=False
        )
    else:
        images[0].save(
            buffer,
            format="WEBP",
            save_all=True,
            append_images=images[1:],
            duration=spent,
            loop=0,
            lossless=True,
            method=2,
        )
    _files.write_atomic(path, buffer.getvalue())


def _in_palette(image: Picture) -> Picture:
    """The same picture in the palette's nearest colours; Pillow's own search is too coarse to keep white white."""
    from PIL import Image

    palette = _palette()
    pixels = np.asarray(image, dtype=np.int64)
    packed, where = np.unique(pixels @ [65536, 256, 1], return_inverse=True)
    there = np.stack([packed // 65536, packed // 256 % 256, packed % 256], axis=1)
    nearest = ((there[:, None] - palette) ** 2).sum(axis=2).argmin(axis=1).astype(np.uint8)
    plain = Image.fromarray(nearest[where].reshape(pixels.shape[:2]))
    plain.putpalette(palette.astype(np.uint8).tobytes())
    return plain


def _palette() -> NDArray[np.int64]:
    """Red, green and blue of at most 256 colours, shape (C, 3).

    Each colour of the drawings, in seven steps from each of two grounds, as they come at the edge of a line.
    """
    colours = {name: np.array([int(value[i : i + 2], 16) for i in (1, 3, 5)]) for name, value in COLOURS.items()}
    mixed = [
        np.rint(under + (over - under) * step / 7).astype(np.int64)
        for under in (colours["paper"], colours["good"])
        for over in colours.values()
        for step in range(1, 8)
    ]
    return np.unique(np.array(mixed), axis=0)


def _frames() -> Iterator[tuple[Picture, int]]:
    import vl_convert
    from PIL import Image

    for beta, filled, milliseconds in script():
        picture = vl_convert.svg_to_png(frame_svg(beta, filled=filled))
        yield Image.open(io.BytesIO(picture)).convert("RGB"), milliseconds


def script() -> list[tuple[float, int, int]]:
    """What each frame shows: beta, how many rows of the table are filled, and for how many milliseconds.

    Examples
    --------
    >>> frames = script()
    >>> sum(milliseconds for _, _, milliseconds in frames) < 15_000
    True
    """
    places = [position(beta) for beta in BETAS]
    frames = [(BETAS[0], 1, _REST)]
    for row in range(1, len(BETAS)):
        start, end = places[row - 1], places[row]
        moves = max(4, round(40 * (end - start)))
        frames += [(beta_at(start + (end - start) * _ease(i / moves)), row, _STEP) for i in range(1, moves)]
        frames.append((BETAS[row], row + 1, _REST if row + 1 < len(BETAS) else _END))
    moves = 20
    frames += [(beta_at(1.0 - _ease(i / moves)), len(BETAS), _STEP) for i in range(1, moves)]
    frames.append((BETAS[0], len(BETAS), _REST))
    return frames


def _ease(share: float) -> float:
    return share * share * (3.0 - 2.0 * share)


def frame_svg(beta: float, *, filled: int) -> str:
    """One picture of the first kitchen: the dial at ``beta``, the first ``filled`` rows of the table told.

    Raises `OptionError`: There are not so many rows.
    """
    if not 0 <= filled <= len(BETAS):
        raise OptionError(_checks.message("filled", expected=f"from 0 to {len(BETAS)}", got=filled))
    now = read(beta)
    inside = [
        _placed(drawing.leash(now), 16, 12, 1.0),
        _placed(drawing.knob(now), 2, 206, 0.84),
        _placed(drawing.gauge(now, "judge"), 178, 206, 0.84),
        _placed(drawing.gauge(now, "quality"), 356, 206, 0.84),
        _table(filled, now),
    ]
    words = "In this kitchen no beta beats the untouched house: fix the judge." if filled == len(BETAS) else ""
    inside.append(_words(WIDTH / 2, HEIGHT - 18, words, colour="ink", size=17, anchor="middle", bold=True))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{COLOURS["paper"]}"/>{"".join(inside)}</svg>'
    )


def _placed(inside: str, x: float, y: float, scale: float) -> str:
    return f'<g transform="translate({x:g} {y:g}) scale({scale:g})">{inside}</g>'


def _table(filled: int, now: Reading) -> str:
    left, top, step = 556.0, 50.0, 43.0
    columns = (("Beta", 70.0, "ink"), ("Judge", 140.0, "judge"), ("Quality", 218.0, "quality"), ("KL", 296.0, "accent"))
    parts = [_words(left + x, top, name, colour=colour, size=15, bold=True) for name, x, colour in columns]
    for row, beta in enumerate(BETAS):
        y = top + 40 + step * row
        if beta == now.beta:
            parts.append(
                f'<rect x="{left - 16:g}" y="{y - 27:g}" width="322" height="38" rx="6" fill="{COLOURS["good"]}"/>'
            )
        parts.append(_words(left + 70, y, "house" if math.isinf(beta) else beta_words(beta), colour="ink"))
        if row < filled:
            at = read(beta)
            cells = (f"{at.reward:.2f}", f"{at.gold:.3f}", f"{at.kl:.3f}" if at.kl > 0 else "0")
            parts += [
                _words(left + x, y, cell, colour=colour)
                for cell, (_, x, colour) in zip(cells, columns[1:], strict=True)
            ]
    return "".join(parts)


def _words(
    x: float, y: float, words: str, *, colour: str, size: float = 17, anchor: str = "end", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{COLOURS[colour]}" font-family="{FONT}" font-size="{size:g}" '
        f'text-anchor="{anchor}"{weight}>{words}</text>'
    )
