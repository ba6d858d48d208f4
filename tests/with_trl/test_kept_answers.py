"""One TRL run gives the dial: its answers, with log ratios by the chain rule, forecast what the exact tilt is."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")

from tiny_runs import Run, gold_values

import kleash
from kleash.reporting.sources import read_sources
from kleash.runs import read_run

MANY = {"n_prompts": 16, "n_answers": 8, "batch": 256}


def lines(run: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def test_log_ratios_are_sums_over_tokens_as_enumeration_has_them(tmp_path: Path):
    """Answers of one to three tokens: a mean over tokens, or the first answers scored by another policy, would show."""
    run = Run(tmp_path, beta=0.3, rate=0.06, callback=MANY)
    run.trainer.train()
    folder = tmp_path / "out" / "kleash"
    exact = run.world.log_policy(run.policy.logits()) - run.world.log_policy(run.world.reference_logits)
    tokens = run.world.tokens
    of = {tuple(ids[mask].tolist()): value for ids, mask, value in zip(tokens.token, tokens.mask, exact, strict=True)}
    rows = lines(folder, "rollouts.jsonl")
    last = [row for row in rows if row["step"] == 6]
    assert {row["source"] for row in last} == {"step 6"}
    assert len({len(row["ids"]) for row in last}) > 1
    found = [sum(row["logp"]) - sum(row["ref_logp"]) for row in last]
    np.testing.assert_allclose(found, [of[tuple(row["ids"])] for row in last], atol=1e-5)
    first = [row for row in rows if row["source"] == "reference"]
    assert {row["step"] for row in first} == {0}
    scored = {row["step"]: row["log_ratio"] for row in lines(folder, "scored.jsonl")}
    assert list(scored) == [3, 6]
    np.testing.assert_allclose(scored[6], [of[tuple(row["ids"])] for row in first], atol=1e-5)
    assert np.abs(np.subtract(scored[3], scored[6])).max() > 0.05
    assert [row["ids"] for row in first] != [row["ids"] for row in last]


def test_the_dial_from_one_run(tmp_path: Path):
    """Rows that are ok hold the exact tilt's score and KL: 95 % each, a seed at which all but one do."""
    run = Run(tmp_path, beta=0.3, steps=15, rate=0.06, callback=MANY)
    run.trainer.train()
    folder = tmp_path / "out" / "kleash"
    result = kleash.forecast(folder, beta=[0.3, 0.4, 0.6, 1.0, 2.0])
    assert [report.name for report in result.reports] == ["reference", *(f"step {step}" for step in (3, 6, 9, 12, 15))]
    assert all(report.identity.holds for report in result.reports[1:])
    assert result.frontier.status.tolist() == ["ok"] * 5
    log_q = run.world.log_policy(run.world.reference_logits)
    inside = []
    for i, beta in enumerate(result.frontier.beta):
        p = np.exp(log_q + run.world.reward / beta)
        p /= p.sum()
        truth = {"reward": p @ run.world.reward, "kl": p @ (np.log(p) - log_q), "gold": p @ gold_values(run.world)}
        for name, value in truth.items():
            quantity = getattr(result.frontier, name)
            inside.append(quantity.lo[i] <= value <= quantity.hi[i])
    assert sum(inside) >= len(inside) - 1
    assert json.loads((folder / "dial.json").read_text())["sources"][0]["name"] == "reference"
    trained, dial = read_sources([folder])
    assert (trained.kind, dial.kind) == ("run", "forecast")
    assert trained.frontier.beta.tolist() == [0.3]
    assert dial.name == "kleash, forecast"
    page = kleash.report(folder)
    assert "kleash, forecast" in page


def test_a_resumed_run_scores_the_same_first_answers(tmp_path: Path):
    options = {"save_strategy": "steps", "save_steps": 6, "callback": MANY}
    Run(tmp_path / "whole", steps=9, **options).trainer.train()
    Run(tmp_path / "cut", steps=9, **options).trainer.train()
    folder = tmp_path / "cut" / "out" / "kleash"
    whole = (tmp_path / "whole" / "out" / "kleash" / "scored.jsonl").read_text()
    with open(folder / "scored.jsonl", "a") as file:
        file.write('{"step": 9, "sou')  # a kill
    again = Run(tmp_path / "cut", name="again", steps=9, **options)
    again.trainer.train(resume_from_checkpoint=str(tmp_path / "cut" / "out" / "checkpoint-6"))
    assert (folder / "scored.jsonl").read_text() == whole


def test_without_a_dump_nothing_is_kept_or_scored(tmp_path: Path):
    run = Run(tmp_path, steps=3, callback={"dump": False})
    run.trainer.train()
    folder = tmp_path / "out" / "kleash"
    assert sorted(file.name for file in folder.iterdir()) == [
        "frontier.parquet",
        "metrics.jsonl",
        "prompts.jsonl",
        "run.json",
    ]
    assert run.callback.measure()["first"] == [[]] * 8
    with pytest.raises(kleash.KleashError, match=r"answers in rollouts\.jsonl, got none; KleashCallback\(dump=True\)"):
        kleash.forecast(folder)


def test_a_run_whose_answers_cannot_be_forecast_says_why_and_ends_well(tmp_path: Path):
    run = Run(tmp_path, steps=3, kind="dpo", beta=0.1, rate=0.05)  # DPO has no judge: answers have no score
    run.trainer.train()
    record = read_run(tmp_path / "out" / "kleash").record
    assert record["status"] == "finished"
    assert any("no forecast from the answers" in note for note in record["results"]["notes"])
