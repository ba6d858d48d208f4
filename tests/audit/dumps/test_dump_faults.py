"""Planted faults: each dump gives its code as a problem, its healthy twin gives none. Reports in `dumps.FAULTS`."""

import numpy as np
import pytest
from simulated_dumps import FAULTS, check_rollouts, sums_only, write_jsonl, write_parquet

from kleash.audit import CHECKS, Declared, check

ANSWERS = 512


def problems(chunk, declared=None):
    return [f.code for f in check_rollouts([chunk], declared=declared) if f.status == "problem"]


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_found_and_its_healthy_twin_is_left_alone(name):
    """False-alarm rate of a twin at most 1 %; power by bench/check_power.py at least 95 % (there 40 of 40)."""
    fault = FAULTS[name]
    assert fault.report.startswith("https://github.com/")
    bad, good = fault.make(np.random.default_rng(11), ANSWERS)
    assert fault.code in problems(bad, fault.declared)
    assert problems(good, fault.declared) == []


def test_enough_mechanisms_and_every_chance_check_has_one():
    assert len({(fault.code, fault.report) for fault in FAULTS.values()}) >= 16
    assert len({fault.report for fault in FAULTS.values()}) == len(FAULTS)
    found = {fault.code for fault in FAULTS.values()} | {"GRADIENT"}
    assert found == {check.code for check in CHECKS}


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
@pytest.mark.parametrize(
    "name", ["mask off by one", "filtered tokens at -inf", "temperature not scored", "judge is gamed"]
)
def test_the_same_findings_from_a_file(tmp_path, write, name):
    fault = FAULTS[name]
    bad, good = fault.make(np.random.default_rng(3), 256)
    for chunk in (bad, good):
        path = tmp_path / "dump"
        write(chunk, path)
        from_file, from_memory = check(path).findings, check_rollouts([chunk])
        assert [f.status for f in from_file] == [f.status for f in from_memory]
        assert [f.message for f in from_file] == [f.message for f in from_memory]


@pytest.mark.parametrize("name", ["columns exchanged", "sampler has other weights"])
def test_sums_alone_show_the_large_faults(name):
    """With the number of tokens; without it more scoring noise is granted, and the answer may be cannot-tell."""
    fault = FAULTS[name]
    bad, good = fault.make(np.random.default_rng(5), 2048)
    assert {"IDENTITY", "KL_NEGATIVE"} & set(problems(sums_only(bad, length=True)))
    assert problems(sums_only(good, length=True)) == []
    without = {f.code: f.status for f in check_rollouts([sums_only(bad)])}
    assert without["KL_NEGATIVE"] in ("problem", "cannot-tell")


@pytest.mark.parametrize(
    ("estimator", "placement", "status"),
    [
        ("k1", "loss", "problem"),
        ("k2", "reward", "problem"),
        ("k3", "reward", "problem"),
        ("k3", "reward-own-token", "problem"),
        ("k1", "reward", "ok"),
        ("k2", "loss", "ok"),
        ("k3", "loss", "ok"),
        ("k3", "loss-with-ratio", "ok"),
    ],
)
def test_gradient_of_the_declared_term(estimator, placement, status):
    _, good = FAULTS["columns exchanged"].make(np.random.default_rng(0), 64)
    declared = Declared(estimator=estimator, placement=placement)
    (finding,) = [f for f in check_rollouts([good], declared=declared) if f.code == "GRADIENT"]
    assert finding.status == status
    assert ("KL(reference || policy)" in finding.message) == (estimator == "k3" and placement == "loss")
