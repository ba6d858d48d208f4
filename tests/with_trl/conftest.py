"""Tests that train with TRL: left out of the default run, asked for with ``-m trl``."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.trl)
            # The trainers' own deprecations are not ours to fix.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
