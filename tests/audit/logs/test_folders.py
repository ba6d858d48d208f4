"""A folder of anything: what each file is, or why it is not checked, and every run once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from simulated_dumps import FAULTS, write_jsonl, write_parquet

from kleash.audit import check
from kleash.cli import cli
from kleash.errors import DataError
from kleash.terminal import to_text

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Path:
    """50 files and more: logs of every trainer, trackers' stores, dumps, configurations, answers, rubbish."""
    folder = tmp_path_factory.mktemp("mixed")
    for part in ("logs", "kinds", "first_steps"):
        shutil.copytree(DATA / part, folder / part)
    bad, good = FAULTS["sampler has other weights"].make(np.random.default_rng(0), 64)
    write_jsonl(good, folder / "good.jsonl")
    write_parquet(bad, folder / "bad.parquet")
    pl.DataFrame({"prompt": ["a"], "completion": ["b"], "reward": [1.0]}).write_parquet(folder / "scored.parquet")
    own = {"schema": 2, "kind": "sweep", "version": "0", "source": "sweep", "seed": 0, "inputs": [], "rows": []}
    texts = {
        "empty.log": "",
        "empty.jsonl": "",
        "milk.txt": "do not forget the milk\n",
        "own.json": json.dumps(own),
        "vocab.json": "{}",
        "model.yaml": "hidden_size: 64",
        "verl.yaml": "actor: {use_kl_loss: true, kl_loss_coef: 0.001}",
        "broken.jsonl": '{"logp": [0.1',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "chart.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00")
    (folder / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    (folder / "cut.parquet").write_bytes(b"PAR1\x00\x00")
    (folder / "packed.log.gz").write_bytes(b"\x1f\x8b\x08\x00rubbish")
    (folder / "zero.json").write_bytes(b"\x00" * 64)
    return folder


def test_of_each_file_it_is_said_what_it_is_or_why_not(mixed):
    report = check(mixed)
    files = {str(Path(row["path"]).relative_to(mixed)): row for row in report.files}
    assert len(files) >= 50
    on_disk = {p for p in mixed.rglob("*") if p.is_file() and "mlflow_run" not in p.parts}
    assert {mixed / name for name in files} == on_disk | {mixed / "logs" / "tracked" / "mlflow_run"}
    checked = {row["path"] for row in report.files if not row["why"]}
    assert {item.path.partition("#")[0] for item in report.inputs} == checked
    assert all(row["why"] or row["rows"] for row in report.files)
    assert (files["verl.yaml"]["kind"], files["verl.yaml"]["trainer"]) == ("config", "verl")
    assert files["good.jsonl"]["kind"] == files["bad.parquet"]["kind"] == "rollouts"
    said = {
        "empty.log": "an empty file",
        "empty.jsonl": "an empty file",
        "own.json": "what kleash sweep has printed: kleash report shows it",
        "chart.png": "a picture or page",
        "model.safetensors": "arrays, no table of numbers by step",
        "model.yaml": "a configuration without options of a trainer's KL",
    }
    assert {name: files[name]["why"] for name in said} == said
    assert "got columns prompt, completion, reward" in files["scored.parquet"]["why"]
    for name in ("milk.txt", "vocab.json", "broken.jsonl", "cut.parquet", "packed.log.gz", "zero.json"):
        assert (files[name]["kind"], files[name]["rows"]) == ("none", None)
        assert "\n" not in files[name]["why"]
    assert report.exit_code == 1


def test_the_table_is_on_the_terminal_and_in_the_json(mixed, capsys):
    report = check(mixed)
    out = to_text(report, width=100)
    assert "scored answers? kleash forecast" in out
    assert "chart.png" in out
    assert out.count("SIGN ") < 40  # in full are those with a problem
    with pytest.raises(SystemExit) as stop:
        cli.main(["check", str(mixed), "--format", "json"])
    assert stop.value.code == 1
    assert json.loads(capsys.readouterr().out)["files"] == list(report.files)


def test_a_run_in_several_trackers_counts_once(mixed):
    report = check(mixed / "logs" / "tracked")
    assert len(report.inputs) == 1
    same = [row for row in report.files if row["why"] and row["why"].startswith("the same run as run-leash01.wandb")]
    assert len(same) == 4


def test_runs_that_differ_in_one_number_are_two(tmp_path):
    rows = [{"step": i, "reward": 0.1 * i, "kl": 0.01 * i, "loss": 0.0, "completion_length": 5.0} for i in range(1, 9)]
    for name, more in (("a", 0.0), ("b", 0.0), ("c", 0.01)):
        (tmp_path / name).mkdir()
        changed = [*rows[:-1], {**rows[-1], "reward": 0.8 + more}]
        (tmp_path / name / "trainer_state.json").write_text(json.dumps({"log_history": changed}))
    assert len(check(tmp_path).inputs) == 2


def test_seeds_that_differ_below_the_digits_of_another_column_are_two(tmp_path):
    """TRL rounds the loss to 4 decimals, and no other number: KLs of 1e-5 are told apart."""
    for seed in (0, 1):
        kl = 1e-5 * (1 + np.random.default_rng(seed).random(12))
        rows = [
            {"step": i, "kl": float(x), "loss": 0.0001, "grad_norm": 1.0, "epoch": 0.1} for i, x in enumerate(kl, 1)
        ]
        (tmp_path / f"{seed}#a").mkdir()
        (tmp_path / f"{seed}#a" / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    report = check(tmp_path)
    assert len(report.inputs) == 2
    assert "trl-grpo, 12 rows: 0 ok" not in to_text(report, width=120)  # a # in a path is no run's name


def test_a_folder_of_rubbish_alone_is_refused(tmp_path):
    (tmp_path / "milk.txt").write_text("do not forget the milk\n")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1\x00\x00")
    with pytest.raises(DataError, match=r"cut\.parquet"):
        check(tmp_path)
    (tmp_path / "cut.parquet").unlink()
    with pytest.raises(DataError, match="expected rollout dumps or training logs, got none in 1 file; name the file"):
        check(tmp_path)


def test_an_output_folder_shows_its_one_run_in_full_and_its_checkpoints_in_a_line(tmp_path):
    shutil.copy(DATA / "logs" / "trl_kto.json", tmp_path / "trainer_state.json")
    for step in range(80):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_bytes(b"\x00")
    report = check(tmp_path)
    out = to_text(report, width=100)
    assert len(report.files) == 81
    assert out.count("model.safetensors") == 1
    assert "checkpoint-0/model.safetensors  and 79 more" in " ".join(out.split("\n"))
    assert out.count("COEFFICIENT") == 1
