"""``kleash sweep`` on a language model: what it prints, what it refuses, and what is left when a judge fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from kitchen_hands import WORDS, write_kitchen  # noqa: E402

from kleash.cli import cli  # noqa: E402
from kleash.cli._live import training_table  # noqa: E402
from kleash.errors import ConfigError  # noqa: E402
from kleash.train.config import read_config  # noqa: E402
from kleash.train.language import LanguageConfig  # noqa: E402


@pytest.fixture
def kitchen(tmp_path, monkeypatch):
    """Makes a configuration; the judges' module is imported afresh."""
    yield lambda **changes: write_kitchen(tmp_path / "kitchen", **changes)
    sys.modules.pop("kitchen_judges", None)


def run(*args):
    return CliRunner().invoke(cli, ["sweep", *map(str, args)], catch_exceptions=False)


def refused(*args):
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


def metrics(folder: Path) -> str:
    return (folder / "metrics.jsonl").read_text()


def test_json_rows_reference_forecast_and_answers(kitchen, tmp_path):
    result = run(kitchen(), "--format", "json", "--out", tmp_path / "run")
    content = json.loads(result.stdout, parse_constant=pytest.fail)
    assert content["optimum"] is None
    assert [row["beta"] for row in content["rows"]] == [0.0, 0.5]
    for row in content["rows"]:
        assert {"beta", "reward_se", "gold_se", "kl_se", "objective_gap", "n_seeds"} < set(row)
        assert row["objective_gap"] is None
        assert row["n_seeds"] == 2
        assert row["kl"] > 0
        assert row["gold"] is not None
    assert content["reference"]["gold_se"] is not None
    assert [row["beta"] for row in content["forecast"]] == [0.5]
    assert [answer["beta"] for answer in content["answers"]] == [0.0] * 2 + [0.5] * 2  # two prompts are held out
    for answer in content["answers"]:
        assert answer["reward"] == answer["answer"].split().count("salt")
        assert set(answer["answer"].split()) <= set(WORDS)
    assert content["inputs"][0]["rows"] == 8
    assert content["early_stopping"]["beta"] == 0.0
    for policy in ("beta-0-seed-1", "beta-0.5-seed-0"):
        assert (tmp_path / "run" / "adapters" / policy / "adapter_model.safetensors").exists()
    again = run(tmp_path / "kitchen" / "c.toml", "--format", "json", "--out", tmp_path / "run", "--resume")
    assert again.stdout == result.stdout
    assert "read back without training" in again.stderr
    afresh = run(tmp_path / "kitchen" / "c.toml", "--format", "json")
    assert afresh.stdout == result.stdout  # the same bytes


def test_table_and_flags_that_win(kitchen):
    result = run(kitchen(), "--beta", "0.3", "--seeds", "1", "--seed", "4")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "World: model" in result.stdout
    assert "Trained: 1 seed, 6 steps." in result.stdout
    assert "Forecast" in result.stdout
    assert "Best possible" not in result.stdout


def test_columns_reach_the_judge_and_gold_may_be_missing(kitchen):
    path = kitchen(gold="", judge='[judge]\nuse = "guests:score"')
    (path.parent / "guests.py").write_text(
        "def score(prompts, completions, guest, **columns):\n"
        "    assert all(g in 'abcd' for g in guest) and len(guest) == len(prompts)\n"
        "    return [float(len(c)) for c in completions]\n"
    )
    content = json.loads(run(path, "--format", "json").stdout)
    assert content["rows"][0]["gold"] is None
    assert content["early_stopping"] is None


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"steps": "stesp = 3"}, "unknown key 'stesp'; did you mean 'steps'"),
        ({"judge": '[judge]\nuse = "length"\nsecond = 3'}, "unknown key 'judge.second'; did you mean 'seconds'"),
        ({"training": "[training]\nlearning = 3"}, "unknown key 'training.learning'; did you mean 'learning_rate'"),
        ({"judge": ""}, "judge: expected a table"),
        ({"judge": '[judge]\nuse = "kitchen_judges:slat"'}, "did you mean 'salt'"),
        ({"model": '[model]\npath = "modle"'}, "nothing at"),
        ({"model": '[model]\ngguf = "a.gguf"\npath = "model"'}, "path or gguf, got both"),
        ({"model": '[model]\ngguf = "no_such_package:a.gguf"'}, "the package no_such_package"),
        ({"model": '[model]\npath = "model"\ndevice = "cuda"'}, "model.device: expected a device cuda, got none here"),
        ({"model": '[model]\npath = "model"\ndevice = "gpu"'}, "model.device: expected one of cpu, cuda, mps"),
        ({"model": '[model]\npath = "model"\ndtype = "int8"'}, "model.dtype"),
        ({"prompts": '[prompts]\nfile = "prompts.csv"\ncolumn = "promt"'}, "did you mean 'prompt'"),
        ({"prompts": '[prompts]\nfile = "prompts.csv"\nheld_out = 1.5'}, "prompts.held_out"),
        ({"training": "[training]\nmax_new_tokens = 40"}, "prompt 0 of prompts ('cook fish'): expected at most 16"),
        ({"training": '[training]\nmax_new_tokens = 4\ntargets = ["q_prj"]'}, "'q_prj'; did you mean 'q_proj'"),
        ({"training": '[training]\nobjective = "rlo"'}, "did you mean 'rloo'"),
        ({"training": '[training]\nmax_new_tokens = 4\nobjective = "dpo"'}, "above 0 for dpo"),
        ({"beta": "beta = [-1]"}, "beta"),
    ],
)
def test_one_line_says_what_is_wrong(kitchen, changes, match):
    if "cuda" in match and torch.cuda.is_available():
        pytest.skip("there is one")
    assert match in refused(kitchen(**changes))


def test_a_models_flags_are_not_a_worlds(kitchen):
    path = kitchen()
    assert "--set belongs to a world" in refused(path, "--set", "love=1")
    assert "--world belongs to a world" in refused(path, "--world", "kitchen")


def test_without_torch_one_line_names_the_extra(tmp_path):
    blocked = tmp_path / "torch.py"
    blocked.write_text("raise ImportError('blocked', name='torch')\n")
    here = str(Path(__file__).parents[2] / "src")
    code = "from kleash.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "sweep", "--world", "recipes"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{here}"},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "the recipes: expected torch and transformers, got no torch; pip install 'kleash[train]'" in done.stderr


# --------------------------------------------------------------------------------------------------- judges that fail


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        ("raise", "judge: expected a score, got RuntimeError: out of salt and pepper for the answer "),
        ("nan", "judge: expected finite scores, got nan for "),
        ("short", "judge: expected "),
        ("words", "judge: expected a list of numbers"),
        ("nothing", "judge: expected a list of numbers, got None"),
        ("hang", "judge: expected an answer within 1 s, got none in a call about "),
    ],
)
def test_a_failing_judge_is_named_and_the_run_goes_on_later(kitchen, tmp_path, fault, match):
    path = kitchen(judge='[judge]\nuse = "kitchen_judges:fault"\nseconds = 1', beta="beta = [0.5]", seeds="seeds = 1")
    folder = path.parent
    (folder / "fault").write_text("good")
    run(path, "--out", tmp_path / "whole")
    (folder / "calls").unlink()
    (folder / "fault").write_text(f"{fault} 3")
    said = refused(path, "--out", tmp_path / "cut")
    assert match in said
    if fault in ("raise", "nan", "hang"):
        assert "cook " in said  # the prompt
    assert json.loads((tmp_path / "cut" / "run.json").read_text())["status"] == "running"
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists()
    (folder / "fault").write_text("good")
    result = run(path, "--out", tmp_path / "cut", "--resume")
    assert result.exit_code == 0
    assert "went on from its last checkpoint" in result.stderr
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_a_constant_judge_is_said_to_teach_nothing(kitchen):
    path = kitchen(judge='[judge]\nuse = "kitchen_judges:constant"')
    content = json.loads(run(path, "--format", "json").stdout)
    assert any("same score" in note for note in content["notes"])
    assert all(row["kl"] < 1e-4 for row in content["rows"])  # rounding, no more
    assert content["rows"][0]["gold"] == content["reference"]["gold"]  # the same random numbers: not a word differs
    assert content["forecast"] is None


# -------------------------------------------------------------------------------------------------------- small parts


def test_configuration_values(kitchen):
    config = read_config(
        kitchen(
            training='[training]\ntargets = ["q_proj"]\nobjective = "grpo"\n[training.options]\nscale_rewards = "none"'
        )
    )
    assert isinstance(config, LanguageConfig)
    assert config.training.targets == ("q_proj",)
    assert config.training.options == {"scale_rewards": "none"}
    assert config.model.path == config.folder / "model"
    assert config.training.beta == (0.0, 0.5)
    with pytest.raises(ConfigError, match="rank"):
        read_config(kitchen(training='[training]\nrank = "four"'))


def test_the_live_table_averages_over_seeds():
    from kleash.terminal import to_text

    rows = [
        {"beta": beta, "seed": s, "reward": beta + s, "gold": None, "kl": 0.5 * s}
        for beta in (0.0, 1.0)
        for s in (0, 1)
    ]
    text = to_text(training_table(rows, done=3, total=10, gold={1.0: 0.25}))
    assert "0.500" in text
    assert "1.500" in text
    assert text.count("0.250") == 3  # KL of both, gold of one
    assert "step 3 of 10" in text


def test_a_rounding_below_zero_is_shown_as_zero():
    from kleash.train.comparison import _number

    assert [_number(value) for value in (-1e-9, -0.0, 0.0, -0.25, float("nan"))] == ["0.000"] * 3 + ["-0.250", "-"]
