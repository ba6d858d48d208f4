"""The version of the installed package, for provenance."""

from __future__ import annotations


def version() -> str:
    """The installed version, or ``0+unknown`` where kleash runs from a source tree that was never installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("kleash")
    except PackageNotFoundError:
        return "0+unknown"
