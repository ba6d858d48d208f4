"""A coefficient in another tongue, as a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kleash.envelope import envelope

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["TILT", "Translation"]

TILT = "tilt"


@dataclass(frozen=True, kw_only=True)
class Translation:
    """A coefficient in another tongue.

    ``source`` and ``target`` are ``tilt`` or a trainer; ``parameter`` is the option to set and ``value`` what to set
    it to, None where there is no translation and ``refused`` says why. ``exact``: the root of the trainer's expected
    update is the tilt, if what it ``assumes`` holds; otherwise near it.
    """

    source: str
    target: str
    beta: float
    parameter: str
    value: float | None
    exact: bool
    assumes: tuple[str, ...]
    refused: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data with the keys of ``kleash convert --format json``."""
        return {
            **envelope("convert"),
            "from": self.source,
            "to": self.target,
            "beta": self.beta,
            "parameter": self.parameter,
            "value": self.value,
            "exact": self.exact,
            "assumes": list(self.assumes),
            "refused": self.refused,
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row, for CSV."""
        row = {key: value for key, value in self.to_dict().items() if key not in envelope("convert")}
        return [{"seed": None, "inputs": None, **row, "assumes": "; ".join(self.assumes)}]

    def __rich__(self) -> RenderableType:
        from rich.text import Text

        text = Text()
        if self.refused is not None:
            text.append("No translation", style="bold red")
            return text.append(f" of {self.beta:g} from {self.source} to {self.target}.\n{self.refused}.")
        assert self.value is not None
        named = self.parameter if self.target != TILT else "beta of the tilt"
        text.append(f"{named} = {self.value:.6g}", style="bold")
        text.append(f"  in {self.target}" if self.target != TILT else f"  for {self.source} at {self.beta:g}")
        text.append(", exactly, if:" if self.exact else ", approximately, if:")
        for line in self.assumes:
            text.append(f"\n- {line}")
        return text

    def __str__(self) -> str:
        from kleash.terminal import to_text

        return to_text(self)
