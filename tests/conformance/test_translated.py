"""What `kleash convert` says, put into the trainer's settings, has the tilt as its root: the two parts agree."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from kleash import convert
from kleash.cli import cli
from kleash.integrations.versions import TESTED
from kleash.trials.cases import PUZZLES, TRIALS, built_in, case_of, puzzle, read_case
from kleash.trials.roots import Objective, root, tilt_logits
from kleash.trials.verdicts import predict

TRANSLATED = {
    "trl-rloo": {},
    "trl-dpo": {"label_scale": 3.0},
    "trl-grpo": {"scale_rewards": "none"},
}


@pytest.mark.parametrize("name", TRANSLATED)
@pytest.mark.parametrize(("world", "beta"), [("three", 0.5), ("three", 2.0), ("points", 15.0), ("points", 6.0)])
def test_the_root_at_the_translated_beta_is_the_tilt(name: str, world: str, beta: float):
    settings = TRANSLATED[name]
    told = convert(beta, target=name, length=1, settings=settings)
    assert told.exact
    case = case_of(name, {told.parameter: told.value, **settings}, world=world)
    assert case.objective.tilt_beta == pytest.approx(beta, rel=1e-12)
    there = puzzle(world)
    found = np.exp(root(there, case.objective))
    np.testing.assert_allclose(found, np.exp(tilt_logits(there, beta)), atol=1e-7)


@pytest.mark.parametrize("group", [2, 8, 32])
def test_the_group_size_is_in_both(group: int):
    settings = {"scale_rewards": "none", "num_generations": group}
    told = convert(0.5, target="trl-grpo", group_size=group, settings={"scale_rewards": "none"})
    case = case_of("trl-grpo", {"beta": told.value, **settings}, world="three")
    assert case.objective.tilt_beta == pytest.approx(0.5, rel=1e-12)


def test_cispo_is_in_both():
    told = convert(0.25, target="trl-grpo", settings={"scale_rewards": "none", "loss_type": "cispo"})
    case = case_of("trl-grpo", {"beta": told.value, "scale_rewards": "none", "loss_type": "cispo"}, world="three")
    assert case.objective.tilt_beta == pytest.approx(0.25, rel=1e-12)


@pytest.mark.parametrize("case", [c for n in TRANSLATED for c in built_in(n)], ids=lambda c: c.label)
def test_exact_translations_and_tilts_are_the_same_cases(case):
    """Of the table: what converts exactly has the tilt as its root, and what does not has another one."""
    there = puzzle(case.world)
    settings = dict(case.settings)
    beta, size = (
        settings.pop("beta"),
        settings.pop("num_generations", TRIALS[case.trainer].settings.get("num_generations")),
    )
    if settings.get("labels") == "larger-score":
        settings["labels"] = "hard"
    sd = {"reward_sd": 0.5, "reward_sd_spread": 0.0}  # only there to be given: standardised rewards are never exact
    told = convert(
        beta, source=case.trainer, length=1 if there.one_step else 2, group_size=size, settings=settings, **sd
    )
    found = predict(there, case.objective)
    assert told.exact == found.is_tilt
    if told.exact:
        assert told.value == pytest.approx(case.objective.tilt_beta, rel=1e-12)


def test_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    line = "convert 15 --to trl-grpo --set scale_rewards=none --group-size 8 --length 1 --format json"
    with pytest.raises(SystemExit) as done:
        cli.main(line.split())
    assert done.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["value"], told["exact"]) == (13.125, True)
    path = tmp_path / "mine.toml"
    path.write_text(f'world = "points"\nbeta = {told["value"]}\nscale_rewards = "none"\nnum_generations = 8\n')
    case = read_case("trl-grpo", path)
    prediction = predict(puzzle("points"), case.objective)
    assert prediction.is_tilt
    np.testing.assert_allclose(np.exp(prediction.root), np.exp(root(puzzle("points"), Objective(beta=15.0))), atol=1e-7)


def test_worlds_have_different_reward_scales():
    spans = [float(np.ptp(puzzle(name).reward)) for name in PUZZLES]
    assert max(spans) > 30 * min(spans)


def test_the_extra_installs_what_is_tested():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = next(line for line in project["project"]["optional-dependencies"]["trl"] if line.startswith("trl"))
    (first, last) = (".".join(map(str, series)) for series in TESTED)
    assert first == last
    assert wanted == f"trl~={first}.0"
