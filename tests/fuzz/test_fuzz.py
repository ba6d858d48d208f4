"""A few hundred mutated inputs on every run of the tests; `make fuzz` runs 20,000."""

import shutil
from pathlib import Path

import pytest

import fuzz

CORPUS = Path(__file__).parent / "corpus"
KEPT = {
    "1001030-recipes.json": "report",
    "1001938-check.json": "report",
    "3000861-slime_console.txt": "check",
    "3001147-trl_1_16_dapo_console.txt": "check",
    "3001556-c.sh": "check",
    "4000849-frontier.json": "report",
    "5000197-openrlhf_console.txt": "check",
    "5000469-forecast.json": "report",
    "6001923-wandb_history.csv": "check",
    "3003001425-p.parquet": "forecast",
    "3005001293-trlx.jsonl": "check",
    "507001219-open_instruct.jsonl": "check",
    "7000000278-d.jsonl": "forecast",
    "7004001463-p.jsonl": "forecast",
    "7009001236-frontier.json": "report",
    "902001935-wandb_chart.csv": "check",
    "905001647-recipes.json": "report",
    "908001319-healthy-nan-for-missing.csv": "check",
}
"""What failed once: the file that a mutation made, and the command that failed at it."""


def test_mutated_inputs_end_in_one_line_or_an_answer():
    outcomes, _ = fuzz.fuzz(400, seed=7)
    assert [one for one in outcomes if one.wrong] == []
    codes = [one.code for one in outcomes]
    assert min(codes.count(0), codes.count(2)) > 80, "the inputs are all broken, or none is"


@pytest.mark.parametrize("name", KEPT)
def test_what_failed_once(name, tmp_path):
    shutil.copy(CORPUS / name, tmp_path / name)
    one = fuzz.Input(name, (CORPUS / name).read_bytes(), ((KEPT[name], "{}"),))
    for form in ((), ("--format", "json"), ("--format", "csv")):
        outcome = fuzz.run_on(one.data, one, (KEPT[name], "{}", *form), tmp_path)
        assert outcome.wrong == ""


def test_the_judge_of_outcomes_sees_what_is_wrong():
    fault, warning = "kleash: unexpected error, a fault of kleash: x\n", "RuntimeWarning: x\n"
    two, one = "kleash: a\nkleash: b\n", "kleash: a\n"
    for said in [(2, "", two), (2, "x", one), (0, "\x1b[1m", ""), (3, "", ""), (2, "", fault), (0, "", warning)]:
        assert fuzz.judged(*said, set(), []), said
    assert fuzz.judged(2, "", "kleash: a\n", {"page.html"}, [])
    assert fuzz.judged(0, "x", "", set(), ["kleash-spool"])
    assert not fuzz.judged(2, "", "kleash: a\n", set(), [])
