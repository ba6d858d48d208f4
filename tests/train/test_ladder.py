"""The ladder: a rung at the loosest beta that is sure, fresh answers on it, and nothing trained twice."""

import numpy as np
import pytest
from click.testing import CliRunner

from kleash.errors import OptionError

pytest.importorskip("torch")

from kleash.cli import cli
from kleash.tilt import tilt_policy
from kleash.train import ladder as climbing
from kleash.train.recipes import recipes


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


def test_wrong_use_is_told():
    with pytest.raises(OptionError, match="resume: expected a folder"):
        climbing.ladder_recipes(resume=True)
    for wrong in (["--ladder"], ["--ladder-answers", "100"], ["--world", "recipes", "--ladder", "--beta", "1"]):
        result = CliRunner().invoke(cli, ["sweep", *wrong])
        assert result.exit_code == 2
        assert "--ladder: expected with --world recipes" in result.output
