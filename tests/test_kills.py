"""A short run of ``scripts/kills.py`` on the case that needs nothing but the core; all of them: ``make kills``."""

import importlib.util
import random
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "kills.py"


@pytest.fixture(scope="module")
def killer(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("kills", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["kills"] = module  # the process that is killed finds its function there
    before, sys.path[:] = sys.path[:], [str(SCRIPT.parent), *sys.path]
    spec.loader.exec_module(module)
    yield module.Killer("tabular", tmp_path_factory.mktemp("kills"), rng=random.Random(0), seeds=10)
    sys.path[:] = before
    del sys.modules["kills"]


def test_a_sweep_that_was_killed_ends_as_one_that_was_not(killer):
    compared, wrong = killer.kills(2)
    assert compared > 0
    assert wrong == []


@pytest.mark.parametrize("resume", [False, True])
def test_of_two_writers_exactly_one_goes_on(killer, resume):
    assert killer.pair(resume=resume) == ""
