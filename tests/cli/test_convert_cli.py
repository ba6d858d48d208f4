"""``kleash convert`` and ``kleash forecast --trainer``: keys, exit codes, one line for what is wrong."""

import csv
import io
import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from kleash.cli import cli
from kleash.trainers import TARGETS
from kleash.translate import convert


@pytest.fixture
def run(capsys):
    def call(*args):
        with pytest.raises(SystemExit) as done:
            cli.main(list(map(str, args)))
        out, err = capsys.readouterr()
        return done.value.code, out, err

    return call


@pytest.fixture
def scored(tmp_path):
    """Forty prompts of one SD, the judge agreeing with the truth."""
    rng = np.random.default_rng(3)
    path = tmp_path / "samples.csv"
    lines = ["prompt,reward,gold"]
    grid = [(p, v) for p in range(40) for v in rng.permutation(np.linspace(-1, 1, 24))]
    lines += [f"p{prompt},{value:.6f},{value + 0.01 * prompt:.6f}" for prompt, value in grid]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_json_has_the_promised_keys(run):
    code, out, err = run("convert", "0.5", "--from", "tilt", "--to", "trl-rloo", "--format", "json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert {"schema", "version", "source", "seed", "inputs"} <= told.keys()
    wanted = {"from": "tilt", "to": "trl-rloo", "parameter": "beta", "value": 0.5, "exact": True, "refused": None}
    assert wanted.items() <= told.items()
    assert all(isinstance(line, str) for line in told["assumes"])


def test_flags_reach_the_function(run):
    code, out, _ = run(
        "convert", "2", "--to", "verl-loss", "--reward-sd", "0.5", "--reward-sd-spread", "0.01", "--group-size", "4",
        "--length", "1", "--set", "kl_loss_type=k2", "--set", "adv_estimator=grpo", "--format", "json",
    )  # fmt: skip
    same = convert(
        2.0, target="verl-loss", reward_sd=0.5, reward_sd_spread=0.01, group_size=4, length=1,
        settings={"kl_loss_type": "k2", "adv_estimator": "grpo"},
    )  # fmt: skip
    assert code == 0
    assert json.loads(out) == same.to_dict()


def test_no_translation_is_1_and_says_why_on_stdout(run):
    code, out, err = run("convert", "0.1", "--to", "slime", "--format", "json")
    told = json.loads(out)
    assert (code, err, told["value"]) == (1, "", None)
    assert "no gradient" in told["refused"]
    code, out, _ = run("convert", "0.1", "--to", "slime")
    assert code == 1
    assert out.startswith("No translation")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["0.1", "--to", "trl-grpo"], "--reward-sd"),
        (["nan", "--to", "trlx"], "expected a finite number above 0, got nan"),
        (["0", "--to", "trlx"], "above 0, got 0"),
        (["-1", "--to", "trlx"], "above 0, got -1"),
        (["-inf", "--to", "trlx"], "above 0, got -inf"),
        (["soup", "--to", "trlx"], "soup"),
        (["1", "--to", "trl-gpro"], "did you mean 'trl-grpo'"),
        (["1"], "the tilt and one trainer"),
        (["1", "--to", "trlx", "--set", "target"], "expected NAME=VALUE"),
        (["1", "--to", "trlx", "--set", "target=6", "--set", "target=7"], "got it twice"),
        (["1", "--to", "trlx", "--set", "targt=6"], "did you mean 'target'"),
        (["1", "--to", "trlx", "--lenght", "6"], "did you mean --length"),
    ],
)
def test_wrong_use_is_2_and_one_line(run, args, told):
    code, out, err = run("convert", *args)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_the_example_names_something_to_set_for_every_trainer(capsys):
    example = Path(__file__).parents[2] / "examples" / "to_your_trainer.py"
    runpy.run_path(str(example))["main"]()
    told = capsys.readouterr().out
    for name in TARGETS:
        assert f"\n{name}" in told
    assert told.count("exactly\n") == 10
    assert told.count("approximately\n") == 10


def test_csv_is_one_row(run):
    code, out, _ = run("convert", "0.5", "--from", "trlx", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert (len(rows), rows[0]["to"], float(rows[0]["value"])) == (1, "tilt", 0.5)


def test_out_writes_a_file(run, tmp_path):
    code, out, _ = run("convert", "0.5", "--to", "trlx", "--format", "json", "--out", tmp_path / "a.json")
    assert (code, out) == (0, "")
    assert json.loads((tmp_path / "a.json").read_text())["value"] == 0.5


def test_a_forecast_says_what_to_set(run, scored):
    code, out, _ = run("forecast", scored, "--trainer", "trl-rloo", "--format", "json")
    told = json.loads(out)
    assert code == 0
    assert told["verdict"]["safe_beta"] is not None
    assert told["trainer"] == {
        "name": "trl-rloo",
        "parameter": "beta",
        "value": told["verdict"]["safe_beta"],
        "translates": "safe_beta",
        "exact": True,
        "assumes": told["trainer"]["assumes"],
        "refused": None,
        "snippet": told["trainer"]["snippet"],
    }
    _, table, _ = run("forecast", scored, "--trainer", "trl-rloo")
    assert f"Set beta = {told['verdict']['safe_beta']:.4g} in trl-rloo, for the safe beta." in table


def test_without_a_trainer_there_is_no_trainer(run, scored):
    _, out, _ = run("forecast", scored, "--format", "json", "--beta", "1", "--beta", "3")
    assert json.loads(out)["trainer"] is None


def test_the_sds_come_from_the_samples_at_the_safe_beta(run, scored):
    _, out, _ = run(
        "forecast", scored, "--trainer", "trl-grpo", "--objective", "tilt", "--length", "1", "--format", "json"
    )
    told = json.loads(out)
    beta = told["verdict"]["safe_beta"]
    grid = np.linspace(-1, 1, 24)
    weight = np.exp(grid / beta) / np.exp(grid / beta).sum()
    sd = np.sqrt(weight @ grid**2 - (weight @ grid) ** 2)
    assert told["trainer"]["value"] == pytest.approx(beta / sd * 7 / 8 * 0.9650, rel=1e-4)  # c4(8)
    assert not told["trainer"]["exact"]


def test_a_spread_of_sds_is_refused_and_the_other_objective_offered(run, tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "samples.csv"
    rows = [f"p{p},{(1 + p % 3) * v:.5f},{(1 + p % 3) * v:.5f}" for p in range(40) for v in rng.uniform(size=24)]
    path.write_text("prompt,reward,gold\n" + "\n".join(rows) + "\n")
    _, out, _ = run("forecast", path, "--trainer", "trl-grpo", "--objective", "tilt", "--format", "json")
    told = json.loads(out)["trainer"]
    assert told["value"] is None
    assert "group-standardised" in told["refused"]
    _, out, _ = run("forecast", path, "--trainer", "trl-grpo", "--objective", "group-standardised", "--format", "json")
    told = json.loads(out)
    assert told["trainer"]["value"] == told["verdict"]["safe_beta"]


def test_an_sd_that_only_the_run_knows_is_not_guessed(run, scored):
    flags = ["--trainer", "verl-loss", "--set", "kl_loss_type=k2", "--format", "json"]
    _, out, _ = run("forecast", scored, *flags)
    told = json.loads(out)["trainer"]
    assert told["value"] is None
    assert "only its own log shows" in told["refused"]
    assert told["refused"].endswith("with adv_estimator=grpo there is a number")


def test_the_sd_over_the_batch_has_the_prompts_means_in_it(run, tmp_path):
    path = tmp_path / "samples.csv"
    score = np.linspace(0.8, 1.2, 40)[:, None] * np.linspace(-1, 1, 24)
    rows = [f"p{p},{5 * p + v:.6f},{v:.6f}" for p in range(40) for v in score[p]]
    path.write_text("prompt,reward,gold\n" + "\n".join(rows) + "\n")
    flags = ["--trainer", "trl-grpo", "--set", "scale_rewards=batch", "--group-size", "4", "--format", "json"]
    _, out, _ = run("forecast", path, *flags)
    told = json.loads(out)
    beta = told["verdict"]["safe_beta"]
    weight = np.exp(score / beta) / np.exp(score / beta).sum(axis=1, keepdims=True)
    mean = (weight * score).sum(axis=1)
    variance = ((weight * score**2).sum(axis=1) - mean**2).mean() + np.var(5.0 * np.arange(40) + mean)
    assert told["trainer"]["value"] == pytest.approx(beta / np.sqrt(variance) * 3 / 4, rel=1e-4)


def test_no_safe_beta_is_nothing_to_set(run, tmp_path):
    path = tmp_path / "samples.csv"
    path.write_text("prompt,reward\n" + "\n".join(f"p{p},{k % 5}" for p in range(10) for k in range(8)) + "\n")
    code, out, _ = run("forecast", path, "--trainer", "trl-rloo", "--format", "json")
    told = json.loads(out)["trainer"]
    assert (code, told["value"]) == (0, None)
    assert told["refused"] == "the forecast has no safe beta to translate"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--trainer", "trl-gpro"], "did you mean 'trl-grpo'"),
        (["--trainer", "tilt"], "trainer: expected one of trl-grpo"),
        (["--length", "3"], "expected together with a trainer"),
        (["--set", "beta=3"], "expected together with a trainer"),
        (["--trainer", "open-instruct", "--set", "kl_estimator=1"], "give --group-size"),
        (["--trainer", "trl-rloo", "--length", "0"], "length: expected a finite number at least 1"),
        (["--group-size", "8"], "group-standardised or a trainer"),
    ],
)
def test_a_trainer_that_cannot_be_served_is_said_before_the_work(run, scored, args, told):
    code, out, err = run("forecast", scored, *args)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_list_names_every_trainer(run):
    code, out, _ = run("convert", "--list")
    assert (code, out.split()) == (0, list(TARGETS))
    code, _, err = run("convert", "--to", "trlx")
    assert (code, "Missing argument 'BETA'" in err) == (2, True)


def test_a_trainers_name_is_known_in_letters_of_any_size(run):
    assert run("convert", "0.5", "--to", "TRL-RLOO")[:2] == run("convert", "0.5", "--to", "trl-rloo")[:2]
    code, _, err = run("convert", "0.5", "--to", "quux")
    assert (code, err.count("trl-rloo")) == (2, 1)
