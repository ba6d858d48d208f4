"""How the dial is drawn: leash, knob, two needles, salt, curves. One drawing code for the play page and the animation.

Each part is a function of a :class:`~kleash.playground.kitchen.Reading` that gives the inside of an SVG. The play page
moves the same parts with the geometry of this module (:func:`geometry`); tests hold the two against each other.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from kleash.playground import shapes
from kleash.playground.kitchen import HIGHEST, LINE, LOWEST, MARGIN, Reading, beta_words, position
from kleash.reporting.palette import COLOURS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kleash.estimates import Floats
    from kleash.window import Verdict

__all__ = ["COLOURS", "DRAW", "PARTS", "curves", "gauge", "geometry", "knob", "leash", "salt", "svg"]

_TOP_QUALITY = 2.6
_KL_TICKS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
_ROOFS = (0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
PARTS = {"leash": (520, 178), "knob": (220, 176), "gauge": (220, 176), "salt": (400, 348), "curves": (400, 348)}
"""Name -> width and height of a part."""


def geometry() -> dict[str, Any]:
    """The numbers by which a script moves the parts that this module draws."""
    return {
        "lowest": LOWEST,
        "highest": HIGHEST,
        "margin": MARGIN,
        "line": list(LINE),
        "top_quality": _TOP_QUALITY,
        "kl_ticks": list(_KL_TICKS),
        "roofs": list(_ROOFS),
        "leash": _LEASH,
        "salt": _SALT,
        "curves": _CURVES,
    }


def svg(inside: str, *, part: str, label: str) -> str:
    """A part as an SVG of its own, to stand in a page; ``label`` is what a screen reader says."""
    width, height = PARTS[part]
    return (
        f'<svg class="part {part}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{inside}</svg>'
    )


# --------------------------------------------------------------------------------------------------- small pieces


_LEASH = {"near": 118.0, "far": 420.0, "post": 66.0, "ring": 88.0, "belt": 104.0, "ground": 136.0, "apart": 38.0}


def leash(now: Reading) -> str:
    """The house, the leash, the chef and the salt he is drawn to; the leash is as long as the root of the KL.

    The loosest leash of the kitchen at hand (beta 0) fills the picture; the ticks say how long it is.
    """
    g = _LEASH
    x = g["near"] + (g["far"] - g["near"]) * math.sqrt(now.kl / now.loosest_kl)
    ground = g["ground"]
    house = (
        shapes.path(f"M18 {ground}V80L42 58L66 80V{ground}Z", fill="good", stroke="ink", width=2)
        + shapes.path(f"M34 {ground}V108H50V{ground}", fill="paper", stroke="ink", width=2)
        + shapes.text(42, 48, "the house", colour="ink")
    )
    bombs = (
        shapes.path(f"M446 {ground}Q478 66 510 {ground}Z", fill="paper", stroke="judge", width=2)
        + "".join(
            shapes.circle(cx, cy, 1.6, fill="judge") for cx, cy in ((478, 116), (466, 126), (490, 127), (474, 104))
        )
        + shapes.text(478, 90, "salt", colour="judge")
    )
    floor = shapes.path(f"M10 {ground}H510", stroke="muted", width=2)
    strap = shapes.path(
        f"M{g['post']:.2f} {g['ring']:.2f}Q{(g['post'] + x - 14) / 2:.2f} {g['belt'] + 18:.2f} "
        f"{x - 14:.2f} {g['belt']:.2f}",
        stroke="accent",
        width=4,
        key="strap",
    )
    return (
        house
        + bombs
        + floor
        + f'<g data-part="kl-ticks">{_kl_ticks(now.loosest_kl)}</g>'
        + strap
        + shapes.circle(g["post"], g["ring"], 4, fill="accent")
        + f'<g data-part="chef" transform="translate({x:.2f} 0)">{_chef(now)}</g>'
        + shapes.text(268, 22, f"Leash out: KL {now.kl:.3f} nats", colour="accent", size=15, bold=True, key="kl-words")
    )


def _kl_ticks(loosest: float) -> str:
    g = _LEASH
    drawn, last = [], -math.inf
    for tick in _KL_TICKS:
        if tick > loosest:
            break
        x = g["near"] + (g["far"] - g["near"]) * math.sqrt(tick / loosest)
        if x - last >= g["apart"]:
            drawn.append(shapes.path(f"M{x:.2f} {g['ground']:.2f}v6", stroke="muted", width=2))
            drawn.append(shapes.text(x, g["ground"] + 20, f"{tick:g}"))
            last = x
    return "".join(drawn) + shapes.text(478, g["ground"] + 20, "KL, nats")


def _chef(now: Reading) -> str:
    share = now.reward / (float(now.levels.max()) * now.love)
    return (
        shapes.path("M-8 112V135M8 112V135", stroke="ink", width=6)
        + shapes.path("M-14 84Q0 76 14 84L16 114H-16Z", fill="paper", stroke="ink", width=2)
        + shapes.path("M-15.5 104H15.5", stroke="accent", width=5)
        + shapes.circle(0, 66, 12, fill="paper", stroke="ink", width=2)
        + shapes.path("M-11 58H11V48Q18 40 9 36Q0 28 -9 36Q-18 40 -11 48Z", fill="paper", stroke="ink", width=2)
        + shapes.circle(-4, 65, 1.6, fill="ink")
        + shapes.circle(5, 65, 1.6, fill="ink")
        + shapes.path("M-4 71Q1 74 6 71", stroke="ink", width=1.6)
        + shapes.path("M13 88Q22 92 26 98", stroke="ink", width=5)
        + shapes.path(_pile(share), fill="paper", stroke="judge", width=2, key="pile")
        + shapes.path("M18 99H46Q42 106 32 106Q22 106 18 99Z", fill="paper", stroke="ink", width=2)
    )


def _pile(share: float) -> str:
    return f"M{32 - 3 - 9 * share:.2f} 99Q32 {99 - 4 - 58 * share:.2f} {32 + 3 + 9 * share:.2f} 99Z"


# --------------------------------------------------------------------------------------------------- knob and needles


def _on_circle(cx: float, cy: float, r: float, degrees: float) -> tuple[float, float]:
    """A point at so many degrees clockwise from straight up."""
    turn = math.radians(degrees)
    return cx + r * math.sin(turn), cy - r * math.cos(turn)


def knob(now: Reading) -> str:
    """The dial itself: from loose (beta 0) to tight (the reference)."""
    cx, cy = 110.0, 96.0
    parts = [shapes.text(cx, 18, "The leash: beta", colour="ink", size=15, bold=True)]
    for beta, words in ((0.0, "0"), (1.0, "1"), (10.0, "10"), (100.0, "100"), (1000.0, "1000"), (math.inf, "house")):
        degrees = -135 + 270 * position(beta)
        (x1, y1), (x2, y2), (x3, y3) = (_on_circle(cx, cy, r, degrees) for r in (48, 54, 68))
        parts.append(shapes.path(f"M{x1:.2f} {y1:.2f}L{x2:.2f} {y2:.2f}", stroke="muted", width=2))
        anchor = "end" if x3 < cx - 20 else "start" if x3 > cx + 20 else "middle"
        nearer = 8 if anchor == "end" else -8 if anchor == "start" else 0
        parts.append(shapes.text(x3 + nearer, y3 + 5, words, anchor=anchor))
    parts.append(shapes.circle(cx, cy, 44, fill="paper", stroke="accent", width=5))
    parts.append(
        f'<g data-part="pointer" transform="rotate({-135 + 270 * position(now.beta):.2f} {cx:g} {cy:g})">'
        + shapes.path(f"M{cx} {cy - 16}V{cy - 36}", stroke="accent", width=7)
        + "</g>"
    )
    parts.append(shapes.text(cx, 170, beta_words(now.beta), colour="accent", size=19, bold=True, key="beta-words"))
    return "".join(parts)


def gauge(now: Reading, which: str) -> str:
    """One needle: ``judge`` (the critic's score) or ``quality`` (what the guests get), with the house's mark."""
    judge = which == "judge"
    top = float(now.levels.max()) * now.love if judge else _TOP_QUALITY
    value, house = (now.reward, now.reference_reward) if judge else (now.gold, now.reference_gold)
    cx, cy = 110.0, 122.0
    marked = f"{top:.3g}" if judge else f"{top:g}"
    parts = [
        shapes.text(cx, 18, "Judge's score" if judge else "True quality", colour="ink", size=15, bold=True),
        shapes.path(f"M{cx - 80} {cy}A80 80 0 0 1 {cx + 80} {cy}", stroke="grid", width=16),
        shapes.text(cx - 80, cy + 24, "0"),
        shapes.text(cx + 80, cy + 24, marked, key="top-words"),
        f'<g data-part="house-mark" transform="rotate({-90 + 180 * house / top:.2f} {cx:g} {cy:g})">'
        + shapes.path(f"M{cx} {cy - 90}V{cy - 68}", stroke="muted", width=3)
        + "</g>",
        f'<g data-part="needle" transform="rotate({-90 + 180 * value / top:.2f} {cx:g} {cy:g})">'
        + shapes.path(f"M{cx - 4} {cy - 20}L{cx} {cy - 84}L{cx + 4} {cy - 20}Z", fill=which, stroke=which, width=2)
        + "</g>",
        shapes.circle(cx, cy, 22, fill="paper", stroke=which, width=3),
        shapes.circle(cx - 7, cy - 5, 2.2, fill="ink"),
        shapes.circle(cx + 7, cy - 5, 2.2, fill="ink"),
        shapes.path(
            _mouth(value / top if judge else value / now.reference_gold / 1.15), stroke="ink", width=2.4, key="mouth"
        ),
        shapes.text(
            cx, 170, f"{value:.2f}" if judge else f"{value:.3f}", colour=which, size=19, bold=True, key="value"
        ),
    ]
    return "".join(parts)


def _mouth(share: float) -> str:
    """A mouth that turns from sad (0) to glad (1)."""
    return f"M101 130Q110 {120 + 20 * share:.2f} 119 130"


# ---------------------------------------------------------------------------------------------------------- the salt

_SALT = {"left": 44.0, "right": 388.0, "top": 42.0, "bottom": 288.0, "bar": 6.4}


def salt(now: Reading) -> str:
    """How salty the dishes are: the chef's (bars) against the house's (line), and what the guests like (behind)."""
    g = _SALT
    roof = _roof(now)
    heights = {"chef-bars": now.policy, "house-line": now.reference}
    liked = [
        (_salt_x(i), g["bottom"] - (g["bottom"] - g["top"]) * v / _TOP_QUALITY) for i, v in _numbered(now.level_gold)
    ]
    parts = [
        shapes.path(
            shapes.points([(liked[0][0], g["bottom"]), *liked, (liked[-1][0], g["bottom"])]) + "Z",
            fill="good",
        ),
        shapes.text(210, 18, "How salty are the dishes?", colour="ink", size=15, bold=True),
        shapes.text(_salt_x(16), g["top"] + 44, "what the guests like", colour="ink", anchor="start", size=12),
        shapes.path(_bars(heights["chef-bars"], roof), fill="judge", key="chef-bars"),
        shapes.path(_steps(heights["house-line"], roof), stroke="ink", width=1.6, key="house-line"),
        shapes.path(f"M{g['left']} {g['bottom']}H{g['right']}", stroke="muted", width=1.5),
    ]
    for share, key in ((1.0, "roof"), (0.5, "half-roof")):
        y = g["bottom"] - (g["bottom"] - g["top"]) * share
        parts.append(shapes.text(g["left"] - 4, y + 5, f"{roof * share:.3g}", anchor="end", size=12, key=key))
    step = float(now.levels[1])
    parts += [shapes.text(_salt_x(level / step), g["bottom"] + 17, f"{level}", size=12) for level in (0, 10, 20, 30)]
    parts.append(shapes.text(210, g["bottom"] + 34, "salt in a dish (bars: the chef, line: the house)", size=12))
    parts.append(shapes.text(210, g["bottom"] + 50, "height: share of the dishes", size=12))
    return "".join(parts)


def _numbered(values: Floats) -> list[tuple[int, float]]:
    return list(enumerate(values.tolist()))


def _roof(now: Reading) -> float:
    largest = max(float(now.policy.max()), float(now.reference.max()))
    return next(roof for roof in _ROOFS if roof >= largest - 1e-9)


def _salt_x(index: float) -> float:
    return _SALT["left"] + (index + 0.5) * (_SALT["right"] - _SALT["left"]) / 41


def _salt_y(share: float, roof: float) -> float:
    return _SALT["bottom"] - (_SALT["bottom"] - _SALT["top"]) * share / roof


def _bars(values: Floats, roof: float) -> str:
    half, bottom = _SALT["bar"] / 2, _SALT["bottom"]
    return "".join(
        f"M{_salt_x(i) - half:.2f} {bottom:.2f}V{_salt_y(v, roof):.2f}h{2 * half:.2f}V{bottom:.2f}Z"
        for i, v in _numbered(values)
    )


def _steps(values: Floats, roof: float) -> str:
    """The outline of the house's bars."""
    wide = (_SALT["right"] - _SALT["left"]) / 41
    return f"M{_SALT['left']:.2f} {_SALT['bottom']:.2f}" + "".join(
        f"V{_salt_y(v, roof):.2f}h{wide:.2f}" for _, v in _numbered(values)
    )


# -------------------------------------------------------------------------------------------------------- the curves

_CURVES = {
    "left": 44.0,
    "right": 378.0,
    "judge": [42.0, 118.0],
    "quality": [152.0, 300.0],
    "top_quality": 2.4,
}


def curves(now: Reading) -> str:
    """Judge's score and true quality along the whole dial, the useful range shaded, and where the dial stands."""
    g: Any = _CURVES
    parts = [shapes.text(210, 18, "Along the whole dial", colour="ink", size=15, bold=True)]
    low, high = _shaded(now.verdict)
    parts.append(
        f'<rect data-part="range" x="{low:.2f}" y="{g["judge"][0]:.2f}" width="{high - low:.2f}" '
        f'height="{g["quality"][1] - g["judge"][0]:.2f}" fill="{COLOURS["good"]}"/>'
    )
    for beta, words in ((0.0, "0"), (1.0, ""), (10.0, "10"), (100.0, ""), (1e3, "1000"), (math.inf, "house")):
        x = _dial_x(beta)
        parts.append(shapes.path(f"M{x:.2f} {g['judge'][0]}V{g['quality'][1]}", stroke="grid", width=1))
        parts.append(shapes.text(x, g["quality"][1] + 17, words or f"{beta:g}", size=12))
    parts.append(
        shapes.text(210, g["quality"][1] + 36, "loose   \N{LEFTWARDS ARROW}   beta   \N{RIGHTWARDS ARROW}   tight")
    )
    x = _dial_x(now.beta)
    parts.append(shapes.path(f"M{x:.2f} {g['judge'][0]}V{g['quality'][1]}", stroke="accent", width=2, key="here"))
    for which, words in (("judge", "Judge's score"), ("quality", "True quality")):
        line, value, house, top = _curve(now, which)
        upper, lower = g[which]
        parts.append(shapes.path(f"M{g['left']} {lower}H{g['right']}", stroke="muted", width=1.5))
        y = lower - (lower - upper) * house / top
        parts.append(
            shapes.path(
                f"M{g['left']} {y:.2f}H{g['right']}", stroke="muted", width=1.5, dash="4 4", key=f"{which}-house"
            )
        )
        parts.append(
            shapes.path(
                shapes.points(
                    [
                        (g["left"] + p * (g["right"] - g["left"]), lower - (lower - upper) * v / top)
                        for p, v in zip(LINE, line.tolist(), strict=True)
                    ]
                ),
                stroke=which,
                width=3,
                key=f"{which}-line",
            )
        )
        y = lower - (lower - upper) * value / top
        parts.append(shapes.circle(x, y, 6, fill=which, stroke="paper", width=2, key=f"{which}-dot"))
        parts.append(shapes.text(g["left"] - 4, upper + 8, f"{top:.3g}", anchor="end", size=12, key=f"{which}-top"))
        parts.append(shapes.text(g["left"] - 4, lower + 4, "0", anchor="end", size=12))
        parts.append(
            shapes.text(
                g["right"] if which == "judge" else g["left"] + 4,
                upper + 12,
                words,
                colour=which,
                anchor="end" if which == "judge" else "start",
                bold=True,
            )
        )
    parts.append(shapes.path("M0 0l-6 11h12Z", fill="ink", key="guess", extra=' visibility="hidden"'))
    return "".join(parts)


def _curve(now: Reading, which: str) -> tuple[Floats, float, float, float]:
    if which == "judge":
        return now.line_reward, now.reward, now.reference_reward, float(now.levels.max()) * now.love
    return now.line_gold, now.gold, now.reference_gold, float(_CURVES["top_quality"])  # type: ignore[arg-type]


def _dial_x(beta: float) -> float:
    left, right = float(_CURVES["left"]), float(_CURVES["right"])  # type: ignore[arg-type]
    return left + (right - left) * position(beta)


def _shaded(verdict: Verdict) -> tuple[float, float]:
    """Left and right end of the useful range; the same twice where there is none."""
    if not verdict.gain_shown:
        return _dial_x(0.0), _dial_x(0.0)
    low = _dial_x(0.0 if verdict.loose_edge is None else verdict.loose_edge[1])
    return low, _dial_x(math.inf if verdict.tight_edge is None else verdict.tight_edge[1])


DRAW: dict[str, Callable[[Reading], str]] = {
    "leash": leash,
    "knob": knob,
    "judge": lambda now: gauge(now, "judge"),
    "quality": lambda now: gauge(now, "quality"),
    "salt": salt,
    "curves": curves,
}
"""Name -> drawing of every part that the page shows."""
