"""The worlds that a sweep knows by name: how each is made, and what is said of it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping

from kleash.worlds import World, kitchen

__all__ = ["WORLDS", "KnownWorld", "needs_a_model"]

_STORY = {
    "useful-range": "This house rarely over-salts: a little of the critic's praise makes better dishes.",
    "no-overoptimisation-seen": "So far the critic's praise makes better dishes, not salt bombs.",
    "no-useful-range": "Here praise is bought with salt: teach the critic, or steady the cook.",
    "cannot-tell": "Taste more dishes before turning the dial.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownWorld:
    """A world with a name.

    ``title``: What stands above its table. ``story``: A sentence for each kind of verdict. ``make``: The world of its
    settings, its keyword arguments; None where a language model is trained in it (with torch). ``options``: The
    settings' names where ``make`` cannot be asked.
    """

    title: str
    story: Mapping[str, str]
    make: Callable[..., World] | None = None
    options: tuple[str, ...] = ()

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings."""
        return self.options if self.make is None else tuple(inspect.signature(self.make).parameters)


WORLDS: Mapping[str, KnownWorld] = {
    "kitchen": KnownWorld(
        title="The kitchen: a chef trained to please a critic who loves salt", story=_STORY, make=kitchen
    ),
    "recipes": KnownWorld(
        title="The recipes: a language model cooks for a critic who loves salt",
        story=_STORY,
        options=("oversalt", "love"),
    ),
}


def needs_a_model(world: object) -> bool:
    """Whether this is the name of a world in which a language model is trained.

    Examples
    --------
    >>> needs_a_model("recipes"), needs_a_model("kitchen"), needs_a_model("soup")
    (True, False, False)
    """
    return isinstance(world, str) and world in WORLDS and WORLDS[world].make is None
