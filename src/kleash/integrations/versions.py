"""Whether the installed TRL is one that was tested."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from kleash._checks import message
from kleash.errors import DependencyError

__all__ = ["TESTED", "require_trl"]

TESTED = ((1, 16), (1, 16))
"""First and last series (major, minor) of TRL that the tests and the conformance table were run with."""


def require_trl() -> dict[str, str]:
    """The versions of TRL, transformers and torch.

    Raises `DependencyError`: TRL is missing, or its version lies outside `TESTED`: what its settings mean has changed
    between releases more than once, so an untested one is not guessed about.
    """
    first, last = (".".join(map(str, series)) for series in TESTED)
    wanted = f"{first}.x" if first == last else f"{first} to {last}.x"
    fix = f"pip install 'trl~={last}.0'"
    try:
        found = {name: version(name) for name in ("trl", "transformers", "torch")}
    except PackageNotFoundError as error:
        raise DependencyError(message("TRL", expected=wanted, got=f"no {error.name}", fix=fix)) from None
    series = tuple(int(part) for part in found["trl"].split(".")[:2])
    if not TESTED[0] <= series <= TESTED[1]:
        raise DependencyError(message("TRL", expected=f"{wanted}, the tested range", got=found["trl"], fix=fix))
    return found
