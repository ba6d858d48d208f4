"""Files of schema 1 are read as they were when they were written."""

import json
import math
from pathlib import Path

import pytest

from kleash.frontier import Frontier
from kleash.reporting.sources import read_sources
from kleash.train.result import SweepResult

FILES = Path(__file__).parents[1] / "data" / "schema1"
EXPECTED = json.loads((FILES / "expected.json").read_text(encoding="utf-8"))


def table(frontier):
    return frontier and {
        "source": frontier.source,
        "rows": frontier.rows(),
        "reference": frontier.reference(),
        "gold_range": frontier.gold_range,
    }


def sums(exact):
    return [exact.reward.value.sum(), exact.kl.value.sum(), exact.gold.value.sum()]


def told(source):
    optimum, perfect = source.optimum, source.perfect
    return {
        "name": source.name,
        "kind": source.kind,
        "frontier": table(source.frontier),
        "verdict": source.verdict and source.verdict.to_dict(),
        "optimum": optimum and [optimum.beta.size, *sums(optimum)],
        "perfect": perfect and [perfect.beta.size, sums(perfect)[2]],
        "metrics": len(source.metrics),
        **{
            name: getattr(source, name)
            for name in (
                "reward_range",
                "best_of_n",
                "unseen",
                "trainer",
                "answers",
                "spread",
                "findings",
                "facts",
                "notes",
            )
        },
    }


def same(there, here, where):
    if isinstance(there, dict):
        assert there.keys() <= here.keys(), where  # names are only added
        for key in there:
            same(there[key], here[key], f"{where}/{key}")
    elif isinstance(there, list):
        assert len(there) == len(here), where
        for i, (one, two) in enumerate(zip(there, here, strict=True)):
            same(one, two, f"{where}/{i}")
    elif isinstance(there, float):
        # scipy 1.13 has Student's quantiles to ten digits
        assert math.isclose(there, here, rel_tol=1e-9, abs_tol=1e-14), where
    else:
        assert there == here, where


@pytest.mark.parametrize("name", EXPECTED)
def test_the_report_reads_what_it_read(name):
    (source,) = read_sources([FILES / name])
    same(EXPECTED[name], told(source), name)


@pytest.mark.parametrize("name", ["run", "recipes"])
def test_a_run_folder_is_loaded(name):
    result = SweepResult.load(FILES / name)
    assert (result.history is None) == (name == "recipes")
    same(EXPECTED[name]["verdict"], result.verdict.to_dict(), name)


@pytest.mark.parametrize("name", ["frontier.json", "frontier.parquet"])
def test_a_frontier_keeps_its_draws(name):
    assert Frontier.load(FILES / name).replicates.reward.shape == (3, 4)
