"""The sweep as a whole: the mission's table, the verdict, and what a result says about itself."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from kleash import tilt
from kleash._files import dump_json
from kleash.errors import ConfigError, MissingFileError, OptionError
from kleash.train.config import SweepConfig, WorldSource, read_config
from kleash.train.sweep import SweepResult, sweep
from kleash.worlds import World, kitchen, two_arm

EXAMPLES = Path(__file__).parent.parent / "examples"
COURSE = {0.0: (31.7, 0.0), 1.0: (31.7, 0.0), 5.0: (28.3, 0.285), 15.0: (12.9, 1.542), 60.0: (9.6, 1.769)}


@pytest.fixture(scope="module")
def mission():
    return sweep()


def test_the_missions_table(mission):
    for row in mission.rows():
        judge, quality = COURSE[row["beta"]]
        assert row["reward"] == pytest.approx(judge, abs=0.15)
        assert row["gold"] == pytest.approx(quality, abs=0.015)
        assert 0 <= row["objective_gap"] < 0.02
        assert row["n_seeds"] == 3
    reference = mission.to_dict()["reference"]
    assert reference["reward"] == pytest.approx(9.2, abs=0.15)
    assert reference["gold"] == pytest.approx(1.791, abs=0.015)
    assert mission.verdict.kind == "no-useful-range"


def test_a_steadier_cook_has_a_useful_range_around_the_exact_best_beta():
    verdict = sweep(settings={"oversalt": 0.0005}).verdict
    assert verdict.kind == "useful-range"
    assert verdict.best_lo < 7.247 < verdict.best_hi


def test_rows_are_means_over_seeds_with_the_error_of_the_mean(mission):
    draws = mission.frontier.replicates
    assert draws.kind == "seeds"
    for name in ("reward", "gold", "kl"):
        values = getattr(draws, name)  # (seeds, betas)
        estimates = getattr(mission.frontier, name)
        np.testing.assert_allclose(estimates.value, values.mean(axis=0), rtol=1e-14)
        se = np.sqrt(((values - values.mean(axis=0)) ** 2).sum(axis=0) / 2 / 3)
        np.testing.assert_allclose(estimates.se, se, rtol=1e-9)
        half = 4.302652729911275 * se  # Student's t, 2 degrees of freedom
        np.testing.assert_allclose(estimates.hi - estimates.lo, 2 * half, rtol=1e-5, atol=1e-14)


def test_the_json_has_the_keys_of_the_contract(mission):
    content = json.loads(dump_json(mission.to_dict()))
    wanted = [
        "schema",
        "version",
        "source",
        "seed",
        "inputs",
        "world",
        "rows",
        "reference",
        "optimum",
        "answers",
        "verdict",
    ]
    assert set(wanted) <= set(content)
    row = ["beta", "reward", "reward_se", "gold", "gold_se", "kl", "kl_se", "objective_gap", "n_seeds"]
    assert list(content["rows"][0]) == row
    assert list(content["reference"]) == ["reward", "reward_se", "gold", "gold_se"]
    assert list(content["optimum"][0]) == ["beta", "reward", "gold", "kl"]
    assert list(content["answers"][0]) == ["beta", "prompt", "answer", "reward", "gold"]
    assert (content["schema"], content["source"], content["world"], content["seed"]) == (2, "sweep", "kitchen", 0)
    assert [r["beta"] for r in content["optimum"]] == [r["beta"] for r in content["rows"]] == list(COURSE)
    exact = tilt.moments(kitchen(), list(COURSE))
    for name in ("reward", "gold", "kl"):
        assert [r[name] for r in content["optimum"]] == pytest.approx(getattr(exact, name).tolist(), rel=1e-14)
    bombs = [a for a in content["answers"] if a["beta"] == 0.0]
    assert {a["answer"] for a in bombs} == {"a dish with salt 31.7"}


def test_one_seed_has_no_standard_error_and_shows_no_gain():
    result = sweep(seeds=1, settings={"oversalt": 0.0005}, steps=200)
    row = json.loads(dump_json(result.to_dict()))["rows"][0]
    assert row["reward_se"] is None
    assert row["gold_se"] is None
    assert row["reward"] is not None
    assert result.verdict.kind == "cannot-tell"
    assert "±" not in str(result)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    options = {"beta": [1.0, 5.0], "steps": 30}
    first, again, other = (dump_json(sweep(seed=seed, **options).to_dict()) for seed in (7, 7, 8))
    assert first == again
    assert json.loads(first)["rows"] != json.loads(other)["rows"]


def test_betas_in_any_order_and_twice():
    result = sweep(beta=[5.0, 1.0, 5.0], steps=5)
    assert result.frontier.beta.tolist() == [1.0, 5.0]


def test_a_world_of_ones_own():
    result = sweep(two_arm(0.2, gold=(0.0, 1.0)), beta=[0.5, 2.0, 8.0])
    assert result.world == "two-arm"
    assert result.frontier.reward.value[0] == pytest.approx(0.25 * math.exp(2) / (1 + 0.25 * math.exp(2)), abs=1e-3)
    assert result.verdict.kind == "no-overoptimisation-seen"
    assert "World: two-arm" in str(result)
    assert "critic" not in str(result)


def test_a_judge_that_likes_everything_alike_cannot_tell():
    flat = World(name="flat", log_reference=np.log([[0.2, 0.3, 0.5]]), reward=[[0.3] * 3], gold=[[0.0, 1.0, 2.0]])
    result = sweep(flat, steps=50)
    assert (result.frontier.kl.value == 0).all()
    assert (result.frontier.gold.gain.value == 0).all()
    assert result.verdict.kind == "cannot-tell"
    assert "same score" in result.verdict.reasons[0]


def test_the_example_file_is_a_world_with_its_hash():
    config = read_config(EXAMPLES / "small_world.toml")
    assert isinstance(config.world, WorldSource)
    result = sweep(config.world.file, beta=config.beta, steps=config.steps)
    assert result.inputs[0]["rows"] == 8
    assert len(result.inputs[0]["sha256"]) == 64
    assert result.verdict.kind == "useful-range"
    assert result.verdict.best_beta == 1.0


def test_training_that_did_not_arrive_says_so(mission):
    assert mission.notes == ()
    short = sweep(beta=[0.0, 60.0], steps=20)
    assert len(short.notes) == 1
    assert "at beta 0 (by" in short.notes[0]
    assert "60 (" not in short.notes[0]
    assert short.notes[0].split(":")[0] in " ".join(str(short).split())


def test_the_table_as_text(mission):
    lines = str(mission).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines[4:9]] == [
        ["0", "31.70", "0.000", "3.011"],
        ["1", "31.69", "0.000", "2.990"],
        ["5", "28.32", "0.290", "2.158"],
        ["15", "12.88", "1.541", "0.149"],
        ["60", "9.68", "1.766", "0.005"],
    ]
    assert lines[10].split() == ["reference,", "untouched", "9.12", "1.798", "0"]
    assert "No useful range." in str(mission)


def test_a_frame_has_the_rows(mission):
    frame = mission.to_frame()
    assert frame.rows(named=True) == mission.rows()


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"world": "kitchn"}, "did you mean 'kitchen'"),
        ({"settings": {"oversal": 0.1}}, "unknown setting 'oversal' of the kitchen; did you mean 'oversalt'"),
        ({"settings": {"oversalt": 2.0}}, "oversalt"),
        ({"world": two_arm(), "settings": {"oversalt": 0.1}}, "settings"),
        ({"beta": -1.0}, "beta"),
        ({"beta": [1.0, math.nan]}, "beta"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": 1.5}, "seeds"),
        ({"resume": True}, "resume"),
    ],
)
def test_bad_arguments_are_one_line_and_nothing_is_written(kwargs, match, tmp_path):
    out = tmp_path / "run"
    if "resume" not in kwargs:
        kwargs["out"] = out
    with pytest.raises(OptionError, match=match) as caught:
        sweep(**kwargs)
    assert "\n" not in str(caught.value)
    assert not out.exists()


def test_a_run_is_read_back_without_training(tmp_path, monkeypatch):
    options = {"beta": [0.0, 5.0], "steps": 40, "out": tmp_path / "run"}
    first = sweep(**options)
    assert first.origin == "trained"
    monkeypatch.setattr("kleash.train.sweep.train_tabular", None)  # calling it would fail
    again = sweep(**options, resume=True)
    assert again.origin == "read-back"
    assert dump_json(again.to_dict()) == dump_json(first.to_dict())
    assert str(again) == str(first)
    for name in ("step", "reward", "gold", "kl", "objective"):
        np.testing.assert_array_equal(getattr(again.history, name), getattr(first.history, name))
    loaded = SweepResult.load(tmp_path / "run")
    assert dump_json(loaded.to_dict()) == dump_json(first.to_dict())


@pytest.mark.parametrize("seeds", [1, 3])
def test_an_interrupted_run_trains_again_to_the_same_bytes(tmp_path, monkeypatch, seeds):
    options = {"beta": [0.0, 5.0], "steps": 40, "seeds": seeds}
    whole = sweep(**options, out=tmp_path / "whole")

    def stop(done, total):
        if done > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(**options, out=tmp_path / "cut", progress=stop)
    assert json.loads((tmp_path / "cut" / "run.json").read_text())["status"] == "running"
    with pytest.raises(OptionError, match="a finished sweep"):
        SweepResult.load(tmp_path / "cut")
    again = sweep(**options, out=tmp_path / "cut", resume=True)
    assert again.origin == "trained-again"
    assert dump_json(again.to_dict()) == dump_json(whole.to_dict())
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert files == ["frontier.parquet", "metrics.jsonl", "optimum.json", "run.json"]
    for name in files:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("change", "named"),
    [({"beta": [0.0, 6.0]}, "beta"), ({"steps": 41}, "steps"), ({"settings": {"love": 2.0}}, "settings")],
)
def test_a_run_of_another_configuration_is_refused(tmp_path, change, named):
    options = {"beta": [0.0, 5.0], "steps": 40, "out": tmp_path / "run"}
    sweep(**options)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(ConfigError, match=rf"expected {named} .* got {named} ") as caught:
        sweep(**(options | change), resume=True)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_world_that_changed_under_the_same_name_is_another_configuration(tmp_path):
    def world(top):
        return World(name="w", log_reference=np.log([[0.5, 0.5]]), reward=[[0.0, top]], gold=[[0.0, 1.0]])

    sweep(world(1.0), beta=1.0, steps=5, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="world_sha256"):
        sweep(world(2.0), beta=1.0, steps=5, out=tmp_path / "run", resume=True)


def test_save_and_load(tmp_path, mission):
    mission.save(tmp_path / "kept")
    assert dump_json(SweepResult.load(tmp_path / "kept").to_dict()) == dump_json(mission.to_dict())
    with pytest.raises(OptionError, match="a new or empty folder"):
        mission.save(tmp_path / "kept")
    with pytest.raises(MissingFileError):
        SweepResult.load(tmp_path / "none")


# ---------------------------------------------------------------------------------------------------- configuration


def config_file(tmp_path, text):
    path = tmp_path / "c.toml"
    path.write_text(text)
    return path


def test_a_configuration_is_read(tmp_path):
    text = 'world = "kitchen"\nbeta = [1, 2.5]\nseeds = 2\nseed = 9\nsteps = 10\nsamples = 8\n'
    text += "[settings]\noversalt = 0.001\n"
    config = read_config(config_file(tmp_path, text))
    assert config == SweepConfig(
        world="kitchen", beta=(1.0, 2.5), seeds=2, seed=9, steps=10, samples=8, settings={"oversalt": 0.001}
    )
    assert read_config(config_file(tmp_path, "")) == SweepConfig()
    assert read_config(config_file(tmp_path, "beta = 3")).beta == (3.0,)


def test_a_worlds_file_is_looked_for_beside_the_configuration(tmp_path):
    config = read_config(config_file(tmp_path, '[world]\nfile = "sub/w.csv"\nnormalise = true\n'))
    assert config.world == WorldSource(file=tmp_path / "sub" / "w.csv", normalise=True)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("sedes = 3", "unknown key 'sedes'; did you mean 'seeds'"),
        ('[world]\nfle = "w.csv"', "unknown key 'world.fle'; did you mean 'file'"),
        ("[world]\nnormalise = true", "world.file"),
        ('[world]\nfile = "w.csv"\nnormalise = 1', "world.normalise"),
        ("beta = [1, -2]", "beta"),
        ("beta = [nan]", "beta"),
        ("beta = [inf]", "beta"),
        ('beta = ["1"]', "beta"),
        ("beta = []", "beta"),
        ("seeds = 1.5", "seeds"),
        ("seeds = true", "seeds"),
        ("beta = true", "beta: expected a number, got True"),
        ("settings = 3", "settings: expected a table"),
        ('[settings]\noversalt = "much"', "settings.oversalt: expected a number"),
        ("beta = [1", "expected TOML, got"),
    ],
)
def test_bad_configurations_are_refused_with_the_files_name(tmp_path, text, match):
    with pytest.raises(ConfigError, match=match) as caught:
        read_config(config_file(tmp_path, text))
    assert str(caught.value).startswith(f"{tmp_path / 'c.toml'}: ")
    assert "\n" not in str(caught.value)


def test_configurations_that_are_not_there_or_not_text(tmp_path):
    with pytest.raises(MissingFileError, match=r"none\.toml"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="expected TOML, got"):
        read_config(tmp_path / "b.toml")
    with pytest.raises(ConfigError, match="got a folder"):
        read_config(tmp_path)


def test_a_configuration_is_swept_and_what_is_said_wins_over_it(tmp_path):
    path = tmp_path / "asked.toml"
    path.write_text("beta = [2.0, 15.0]\nseeds = 2\nsteps = 20\n[settings]\noversalt = 0.0005\nlove = 2.0\n")
    for given in (path, str(path), read_config(path)):
        result = sweep(given, seeds=1, settings={"love": 1.0})
        asked = {name: result.config[name] for name in ("beta", "seeds", "seed", "steps", "settings")}
        same = {"beta": [2.0, 15.0], "seeds": 1, "seed": 0, "steps": 20}
        assert asked == {**same, "settings": {"oversalt": 0.0005, "love": 1.0}}


def test_a_model_has_no_settings_of_a_world(tmp_path):
    path = tmp_path / "asked.toml"
    path.write_text('[model]\npath = "m"\n[judge]\nuse = "length"\n[prompts]\nfile = "p.csv"\n')
    with pytest.raises(OptionError, match="settings: expected a world known by name, got a model"):
        sweep(path, settings={"love": 1.0})
