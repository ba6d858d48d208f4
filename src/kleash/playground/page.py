"""``kleash play``: the kitchen as a page with three dials, recomputed in the page, to be turned by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from kleash._version import version
from kleash.playground import drawing
from kleash.playground.kitchen import Reading, beta_words, read, verdict_words
from kleash.reporting.page_assets import asset, embed_json, palette, policy, tied_to_palette
from kleash.worlds import kitchen

__all__ = ["COURSE", "SCENES", "Scene", "play"]

COURSE: tuple[tuple[float, float, float], ...] = (
    (0.0, 31.7, 0.000),
    (1.0, 31.7, 0.000),
    (5.0, 28.3, 0.285),
    (15.0, 12.9, 1.542),
    (60.0, 9.6, 1.769),
    (math.inf, 9.2, 1.791),
)
"""A course's printed table: beta, judge's score, true quality; the last row is its untouched reference."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """A question, a setting of the dials that answers it, and the answer in words.

    ``options`` are the guesses a reader may make, ``right`` the index of the true one; ``betas`` are shown one after
    the other. ``told`` is filled with the exact numbers of the last beta: judge, quality, house, kl, best, safe, gain.
    """

    title: str
    asked: str
    options: tuple[str, ...]
    right: int
    told: str
    betas: tuple[float, ...]
    love: float = 1.0
    oversalt: float = 0.0505

    def answer(self) -> str:
        """What the page tells, with numbers."""
        now = read(self.betas[-1], love=self.love, oversalt=self.oversalt)
        best, safe = now.verdict.best_beta, now.verdict.safe_beta
        return self.told.format(
            judge=f"{now.reward:.2f}",
            quality=f"{now.gold:.3f}",
            house=f"{now.reference_gold:.3f}",
            kl=f"{now.kl:.2f}",
            best="-" if best is None else beta_words(best),
            safe="-" if safe is None else beta_words(safe),
            gain="-" if now.gain is None else f"{now.gain:.3f}",
        )


SCENES: tuple[Scene, ...] = (
    Scene(
        title="Let him loose",
        asked="Beta 0: no leash at all. What are the dishes worth to the guests?",
        options=("More than before", "As much as before", "Nothing"),
        right=2,
        told="Nothing. Every dish is a salt bomb. The critic gives {judge}, the best score there is, and the true "
        "quality is {quality}; the house had {house}. That is the cheating, given back in full.",
        betas=(0.0,),
    ),
    Scene(
        title="Forbid everything",
        asked="The other end: not one step away from the house recipes. What did hiring the chef buy?",
        options=("Better dishes", "Worse dishes", "Nothing at all"),
        right=2,
        told="Nothing at all. Judge {judge}, quality {quality}, KL 0: the house as it was before. The tightest leash "
        "gives the start back.",
        betas=(math.inf,),
    ),
    Scene(
        title="The course's five settings",
        asked="Beta 0, 1, 5, 15, 60, each printed in the course's table. Which serves the guests better than the "
        "untouched house?",
        options=("15", "60", "None of them"),
        right=2,
        told="None of them. Tightening brings quality back, to {quality} at beta 60, and never to more than the house "
        "had: {house}. The salt bombs are in the house's own recipes, and pulling towards this critic finds them "
        "first.",
        betas=(0.0, 1.0, 5.0, 15.0, 60.0),
    ),
    Scene(
        title="A steadier cook",
        asked="The house now over-salts one dish in 2,000, not one in 20. Same critic, same dial. Is there a beta that "
        "helps?",
        options=("Yes, now there is", "No, it is the critic that is wrong"),
        right=0,
        told="Yes. A better reference opens a useful range: at beta {best} quality gains {gain} over the house, and "
        "beta {safe} keeps 95 % of it on a tighter leash. The gain is small: long before the seasoning is right, the "
        "critic's praise finds the bombs that are left.",
        betas=(7.247281304729949,),
        oversalt=0.0005,
    ),
    Scene(
        title="A critic twice as fond of salt",
        asked="The steady cook stays; the critic now scores twice as high. Where does the useful range go?",
        options=("It stays", "To half the beta", "To twice the beta"),
        right=2,
        told="To twice the beta: the best is now {best}, and the quality reached there is exactly the same. A beta "
        "from another judge, a paper or another run means nothing by itself.",
        betas=(7.247281304729949, 14.494562609459898),
        love=2.0,
        oversalt=0.0005,
    ),
    Scene(
        title="Is the critic cured?",
        asked="A steady cook and a mild critic, a quarter as fond of salt. Let the chef loose once more: what comes?",
        options=("Good dishes: the critic is mild now", "Salt bombs again"),
        right=1,
        told="Salt bombs again: quality {quality}, {kl} nats from the house. The leash decides how far the chef goes "
        "to please the critic. It never repairs the critic.",
        betas=(0.0,),
        love=0.25,
        oversalt=0.0005,
    ),
)


def play() -> str:
    """The page: one HTML document that needs nothing else, and no network.

    Notes
    -----
    The page carries the salt levels, their quality and the two cooks' log probabilities as
    :func:`kleash.worlds.kitchen` gives them, and the closed form in JavaScript. Without JavaScript it shows the kitchen
    at beta 15, the table, and the six scenes with their answers. A content security policy in the page forbids
    everything but its own style and script.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kleash.playground"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    start = read(15.0)
    style = palette() + asset("base.css") + asset("play.css", room="playground") + tied_to_palette("svg")
    script = asset("kitchen.js", room="playground") + asset("play.js", room="playground")
    headline, detail = verdict_words(start)
    return environment.get_template("play.html.j2").render(
        version=version(),
        policy=policy(style=style, script=script),
        style=Markup(style),  # the package's own files; nothing of a user's is in the page
        script=Markup(script),
        data=Markup(embed_json(_data())),  # escaped there
        pictures={name: Markup(_picture(name, start)) for name in drawing.DRAW},
        now=start,
        gain=_signed(start.gold - start.reference_gold),
        headline=headline,
        detail=detail,
        table=_table(),
        scenes=[{"number": i, "answer": scene.answer(), "scene": scene} for i, scene in enumerate(SCENES, 1)],
    )


def _data() -> dict[str, Any]:
    """What the script needs: the world, the geometry of the drawings, the scenes."""
    plain = kitchen(oversalt=0.0)
    return {
        "world": {
            "salt": plain.reward[0],
            "gold": plain.gold[0],
            "house": plain.log_reference[0],
            "bomb": kitchen(oversalt=1.0).log_reference[0],
        },
        "geometry": drawing.geometry(),
        "start": {"beta": 15, "love": 1, "oversalt": 0.0505},
        "scenes": [
            {
                "betas": ["reference" if math.isinf(beta) else beta for beta in scene.betas],
                "love": scene.love,
                "oversalt": scene.oversalt,
                "right": scene.right,
            }
            for scene in SCENES
        ],
    }


def _table() -> list[dict[str, str]]:
    """The course's table beside the kitchen's exact numbers."""
    rows = []
    for beta, judge, quality in COURSE:
        now = read(beta)
        rows.append(
            {
                "beta": beta_words(beta),
                "course_judge": f"{judge:.1f}",
                "course_quality": f"{quality:.3f}",
                "judge": f"{now.reward:.2f}",
                "quality": f"{now.gold:.3f}",
                "kl": f"{now.kl:.3f}" if now.kl > 0 else "0",
            }
        )
    return rows


_LABELS = {
    "leash": "The chef on the leash, between the house and the salt",
    "knob": "The dial: beta",
    "judge": "Needle: judge's score",
    "quality": "Needle: true quality",
    "salt": "Share of the dishes at each level of salt, the chef's and the house's",
    "curves": "Judge's score and true quality along the dial",
}


def _picture(name: str, now: Reading) -> str:
    part = "gauge" if name in ("judge", "quality") else name
    drawn = drawing.svg(drawing.DRAW[name](now), part=part, label=_LABELS[name])
    return drawn.replace("<svg ", f'<svg id="picture-{name}" ', 1)


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")
