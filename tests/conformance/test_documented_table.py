"""The table in docs/conformance.md has a row per built-in configuration, with today's predictions and within 10 %."""

from pathlib import Path

import pytest

from kleash.trials.cases import NAMES, Case, built_in, puzzle
from kleash.trials.roots import answer_kl
from kleash.trials.verdicts import predict

TEXT = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text(encoding="utf-8")
TABLE = TEXT.split("<!-- table: begin -->")[1].split("<!-- table: end -->")[0]
ROWS = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in TABLE.strip().splitlines()[2:]]


def name_of(case: Case) -> str:
    return f"{case.trainer}: " + ", ".join(f"{key} {value}" for key, value in case.settings.items())


CASES = {(name_of(case), case.world): case for name in NAMES for case in built_in(name)}


def test_a_row_each():
    assert sorted((row[0], row[1]) for row in ROWS) == sorted(CASES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}, {row[1]}")
def test_predictions_and_outcome(row: list[str]):
    case = CASES[row[0], row[1]]
    there = puzzle(case.world)
    found = predict(there, case.objective)

    def told(logits) -> str:
        return f"{there.mean_reward(logits):.4g}, {answer_kl(there, logits):.4g}"

    assert row[2] == ("none" if found.root is None else told(found.root))
    assert row[5] == told(found.tilt)
    assert row[7] == ("tilt" if found.is_tilt else "another objective, as documented")
    if found.is_tilt:
        assert all(abs(float(share.strip("%+ "))) < 10 for share in row[6].split(","))
