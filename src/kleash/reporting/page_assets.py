"""What every page shares: its assets, palette, content security policy, and data that cannot end its element."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from kleash import _files
from kleash.reporting.palette import COLOURS, DARK

__all__ = ["asset", "embed_json", "palette", "policy", "tied_to_palette"]


def asset(name: str, *, room: str = "reporting") -> str:
    """A template, style sheet or script of a room of the package."""
    return files(f"kleash.{room}").joinpath("templates", name).read_text(encoding="utf-8")


def policy(*, style: str, script: str) -> str:
    """A content security policy that allows this style sheet and this script, by their hashes, and nothing else."""
    return (
        f"default-src 'none'; style-src 'sha256-{_hash(style)}'; script-src 'sha256-{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def palette(light: dict[str, str] = COLOURS, dark: dict[str, str] = DARK) -> str:
    """Colours as variables of the page: the light ones, also on paper, and the dark ones where the reader has them."""
    first, second = ("".join(f"--{name}:{colour};" for name, colour in side.items()) for side in (light, dark))
    return f":root{{{first}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{second}}}}}\n"


def tied_to_palette(selector: str, light: dict[str, str] = COLOURS) -> str:
    """Rules by which drawings under ``selector`` take the page's colours: each colour is the variable of its name.

    Drawings keep the colours they were drawn in where no style sheet reaches. Of two names for one colour the first
    wins.
    """
    return "\n".join(
        f'{selector} [{kind}="{colour}"]{{{kind}:var(--{name})}}'
        for name, colour in reversed(light.items())
        for kind in ("fill", "stroke")
    )


def embed_json(value: Any) -> str:
    r"""JSON that may stand inside a ``<script>``: no character in it can end the element or be read as markup.

    Examples
    --------
    >>> embed_json({"a": "</script>&"})
    '{"a": "\\u003c/script\\u003e\\u0026"}'
    """
    text = _files.dump_json(value)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
