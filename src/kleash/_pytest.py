"""The plugin that pytest loads: a fixture, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["leash"]


@pytest.fixture
def leash() -> Callable[..., Any]:
    """:func:`kleash.testing.assert_leash`."""
    from kleash.testing import assert_leash

    return assert_leash
