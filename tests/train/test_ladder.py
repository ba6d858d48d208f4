"""The ladder: a rung at the loosest beta that is sure, fresh answers on it, and nothing trained twice."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from kitchen_hands import write_kitchen

from kleash import forecast
from kleash.errors import OptionError

pytest.importorskip("torch")

from kleash.cli import cli
from kleash.tilt import tilt_policy
from kleash.train import ladder as climbing
from kleash.train import ladder_model
from kleash.train.recipes import recipes
from kleash.train.result import SweepResult
from kleash.train.sweep import climb


@pytest.fixture
def perfect(monkeypatch):
    """Training that gives the exact tilt at once, and a record of the betas asked for."""
    asked = []

    def trained(*, settings, beta, seed, steps=None, progress=None):
        asked.append(beta)
        return tilt_policy(recipes(**settings).world, [beta])[0]

    monkeypatch.setattr(climbing, "trained_recipes", trained)
    return asked


def test_the_ladder_finds_the_peak(perfect):
    """Exact best .74, loose edge .61 to .64: inside the interval, and within a step of the grid and a half."""
    found = climbing.ladder_recipes(seed=0)
    assert found.found
    assert 1 <= len(found.rungs) <= 2
    assert list(found.rungs) == perfect
    verdict = found.forecast.verdict
    assert verdict.best_lo <= 0.74 <= verdict.best_hi
    assert 0.5 < verdict.loose_edge[0] < 0.75
    assert found.forecast.n_samples <= 3 * 400
    gain = found.forecast.frontier.gold.gain
    row = int(np.flatnonzero(found.forecast.frontier.beta == verdict.best_beta)[0])
    assert abs(gain.value[row] - 0.36) < 3 * gain.se[row]


@pytest.mark.slow
def test_a_ladder_that_was_stopped_goes_on(perfect, tmp_path, monkeypatch):
    whole = climbing.ladder_recipes(seed=1, answers=90, out=tmp_path / "whole")
    calls = len(perfect)
    assert calls >= 1

    def killed(*arguments, **options):
        raise KeyboardInterrupt

    finish = climbing.Ladder
    monkeypatch.setattr(climbing, "Ladder", killed)
    with pytest.raises(KeyboardInterrupt):
        climbing.ladder_recipes(seed=1, answers=90, out=tmp_path / "cut")
    monkeypatch.setattr(climbing, "Ladder", finish)
    again = climbing.ladder_recipes(seed=1, answers=90, out=tmp_path / "cut", resume=True)
    assert len(perfect) == 2 * calls  # trained once for each folder, not again for the second half
    assert again.to_dict() == whole.to_dict()


@pytest.fixture
def kitchen(tmp_path):
    prompts = '[prompts]\nfile = "prompts.csv"\nheld_out = 0.75'
    return write_kitchen(tmp_path / "kitchen", prompts=prompts, steps="steps = 30")


def test_a_model_of_ones_own_climbs_and_goes_on_after_a_kill(kitchen, tmp_path, monkeypatch):
    """Every rung is a run of its own; all answers have their density under every rung, as the identities show."""
    monkeypatch.setattr(climbing, "_reached", lambda found: False)  # two rungs
    whole = CliRunner().invoke(
        cli,
        [
            "sweep",
            str(kitchen),
            "--ladder",
            "--ladder-answers",
            "120",
            "--out",
            str(tmp_path / "whole"),
            "--format",
            "json",
        ],
    )
    content = json.loads(whole.stdout)
    assert len(content["rungs"]) == 2
    names = [source["name"] for source in content["sources"]]
    assert names == ["reference", "rung 1", "rung 2"]
    for number, source in enumerate(content["sources"][1:], start=1):
        assert source["identity"]["test"] == "reference"
        assert source["identity"]["holds"]
        trained = SweepResult.load(tmp_path / "whole" / f"rung-{number}").frontier
        assert trained.beta.tolist() == [content["rungs"][number - 1]]
        assert source["kl"] == pytest.approx(trained.kl.value[0], rel=0.35)
    assert content["world"] == "model"
    assert forecast(tmp_path / "whole").rows() == content["rows"]

    def killed(*arguments, **options):
        raise KeyboardInterrupt

    finish = ladder_model.written
    monkeypatch.setattr(ladder_model, "written", killed)
    with pytest.raises(KeyboardInterrupt):
        climb(str(kitchen), answers=120, out=tmp_path / "cut")
    monkeypatch.setattr(ladder_model, "written", finish)
    again = climb(str(kitchen), answers=120, out=tmp_path / "cut", resume=True)
    assert again.to_dict()["rows"] == content["rows"]
    assert again.to_dict()["rungs"] == content["rungs"]


def test_where_nothing_is_sure_the_first_rung_is_near(perfect, monkeypatch):
    """A seed whose scores look heavy: the reference's forecast is refused, and the ladder climbs all the same."""
    found = climbing.ladder_recipes(seed=3)
    assert 0.6 < found.rungs[0] < 1.2
    assert found.found


def test_wrong_use_is_told():
    with pytest.raises(OptionError, match="resume: expected a folder"):
        climbing.ladder_recipes(resume=True)
    with pytest.raises(OptionError, match="ladder: expected the recipes, or a model of your own"):
        climb("kitchen")
    for wrong in (
        ["--ladder"],
        ["--ladder-answers", "100"],
        ["--world", "recipes", "--ladder", "--beta", "1"],
        ["--world", "recipes", "--ladder", "c.toml"],
        ["--set", "love=1", "--ladder"],
    ):
        result = CliRunner().invoke(cli, ["sweep", *wrong])
        assert result.exit_code == 2
        assert "--ladder: expected with --world recipes or the CONFIG of a model" in result.output
