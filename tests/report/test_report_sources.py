"""What can be shown, and what is said of everything else."""

import dataclasses
import json

import numpy as np
import polars as pl
import pytest

import kleash
from kleash.errors import DataError, KleashError, MissingFileError, OptionError
from kleash.reporting.page import report
from kleash.reporting.sources import read_sources, source_of


@pytest.mark.parametrize("name", ["run", "frontier_json", "frontier_parquet", "sweep_json"])
def test_every_form_of_a_sweep_gives_its_table_back(name, files, sweep):
    (source,) = read_sources([files[name]])
    frontier = source.frontier
    for column in ("reward", "gold", "kl"):
        there, here = getattr(frontier, column), getattr(sweep.frontier, column)
        np.testing.assert_array_equal(there.value, here.value)
        np.testing.assert_array_equal(there.se, here.se)
        np.testing.assert_allclose(there.lo, here.lo, rtol=1e-12, atol=1e-14)  # from seeds, where JSON has none
        np.testing.assert_allclose(there.hi, here.hi, rtol=1e-12, atol=1e-14)
    assert frontier.gold.reference.value == sweep.frontier.gold.reference.value
    assert source.verdict.kind == sweep.verdict.kind == "useful-range"
    assert source.verdict.best_beta == sweep.verdict.best_beta


def test_a_forecast_brings_what_belongs_beside_it(files, forecast):
    (source,) = read_sources([files["forecast_json"]])
    assert [row["n"] for row in source.best_of_n] == [row.n for row in forecast.best_of_n]
    assert source.unseen["beta_floor"] == forecast.unseen.beta_floor
    assert source.verdict == forecast.verdict
    np.testing.assert_array_equal(source.frontier.gold.gain.lo, forecast.frontier.gold.gain.lo)
    assert ("prompts", "120") in source.facts


def test_a_run_brings_training_and_answers(files, sweep):
    (source,) = read_sources([files["run"]])
    assert len(source.metrics) == sweep.history.reward.size
    assert source.answers == tuple(dict(answer) for answer in sweep.answers)


def test_a_check_brings_its_findings(files):
    (source,) = read_sources([files["check_json"]])
    assert [row["code"] for row in source.findings] == ["IDENTITY", "PADDING"]
    assert source.frontier is None


def test_results_in_memory(sweep, forecast):
    assert source_of(sweep).frontier is sweep.frontier
    assert source_of(sweep).metrics
    assert source_of(forecast).frontier is forecast.frontier
    assert source_of(sweep.frontier, name="mine").name == "mine"


def test_names_are_as_short_as_keeps_them_apart(files, tmp_path, sweep):
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        sweep.frontier.save(tmp_path / part / "frontier.json")
    paths = [tmp_path / "a" / "frontier.json", tmp_path / "b" / "frontier.json"]
    assert [s.name for s in read_sources(paths)] == ["a/frontier.json", "b/frontier.json"]
    assert [s.name for s in read_sources([paths[0], paths[0]])] == ["frontier.json", "frontier.json (2)"]


def test_the_limits_of_a_known_world_are_on_a_fine_grid(files):
    (source,) = read_sources([files["run"]])
    assert source.optimum.beta.size > 100
    world = kleash.kitchen(oversalt=0.0005)
    at = kleash.moments(dataclasses.replace(world, reward=world.gold), source.perfect.beta[5])
    assert source.perfect.gold.value[5] == pytest.approx(float(at.gold[0]), rel=1e-12)


def test_a_world_that_does_not_reproduce_the_file_gives_no_fine_grid(files, tmp_path):
    content = json.loads(files["sweep_json"].read_text())
    content["config"]["settings"] = {"oversalt": 0.05}
    path = tmp_path / "s.json"
    path.write_text(json.dumps(content))
    (source,) = read_sources([path])
    assert source.perfect is None
    assert source.optimum.beta.size == 6


def test_spread_over_prompts_from_the_answers_of_a_run(files, tmp_path, sweep):
    sweep.save(tmp_path / "run")
    frame = pl.DataFrame(
        {"beta": [0.0] * 4, "prompt_id": [1, 1, 2, 2], "reward": [1.0, 3.0, 5.0, 7.0], "gold": [None, 2.0, None, None]}
    )
    frame.write_parquet(tmp_path / "run" / "rollouts.parquet")
    (source,) = read_sources([tmp_path / "run"])
    assert [(r["prompt"], r["reward"], r["gold"], r["n"]) for r in source.spread] == [
        ("1", 2.0, 2.0, 2),
        ("2", 6.0, None, 2),
    ]


@pytest.mark.usefixtures("no_charts")
def test_the_answers_of_a_run_of_language_models_are_shown_with_their_scores(tmp_path, sweep):
    """The layout that training writes; an earlier step and the lists of log-probabilities are left alone."""
    sweep.save(tmp_path / "run")
    betas, n = sweep.frontier.beta.tolist(), 40
    rows = [
        {
            "step": step,
            "beta": beta,
            "seed": i % 2,
            "prompt_id": i % 4,
            "prompt": f"cook {i % 4}",
            "answer": f"step {step}, dish {i}",
            "reward": 100.0 * step + i,
            "gold": i / n,
            "finished": True,
            "length": 2,
            "logp": [-1.0, -2.0],
            "ref_logp": [-1.0, -2.5],
            "behavior_logp": [-1.0, -2.0],
        }
        for step in (7, 8)
        for beta in betas
        for i in range(n)
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "run" / "rollouts.parquet")
    (source,) = read_sources([tmp_path / "run"])
    assert {row["beta"] for row in source.answers} == set(betas)
    for beta in betas:
        mine = [row for row in source.answers if row["beta"] == beta]
        assert len(mine) == 12
        assert len({row["prompt"] for row in mine}) == 4
        for row in mine:
            i = int(row["answer"].removeprefix("step 8, dish "))
            assert (row["reward"], row["gold"]) == (800.0 + i, i / n)
    assert dict(source.facts)["answers kept"].startswith(f"{n * len(betas)},")
    assert {row["reward"] for row in source.spread if row["prompt"] == "0"} == {818.0}
    page = report([source])
    assert "step 8, dish 0" in page
    assert "step 7" not in page
    assert "more are in the files" not in page


VERDICT = (
    '{"schema": 1, "source": "sweep", "rows": [{"beta": 1, "reward": 1, "gold": 1, "kl": 1}],'
    '"reference": {"reward": 1, "gold": 1}, "verdict": {"kind": "splendid"}}'
)
BAD = {
    "nothing": (None, MissingFileError, "nothing there"),
    "text": ("beta,reward\n1,2\n", DataError, "is no JSON"),
    "other": ("[1, 2]", DataError, "other JSON"),
    "source": ('{"schema": 1, "source": "swep"}', DataError, "did you mean 'sweep'"),
    "schema": ('{"schema": 9, "source": "sweep"}', DataError, "schema 9"),
    "torn": ('{"schema": 1, "source": "sweep", "rows": [{"beta": 1}]}', DataError, "not whole"),
    "kinds": (
        '{"schema": 1, "source": "sweep", "rows": [{"beta": "x"}], "reference": {}, "verdict": {}}',
        DataError,
        "not whole",
    ),
    "empty": ('{"schema": 1, "source": "sweep", "rows": [], "reference": {}, "verdict": {}}', DataError, "no rows"),
    "verdict": (VERDICT, DataError, "got 'splendid'"),
}


@pytest.mark.parametrize("name", BAD)
def test_everything_else_is_one_line_that_names_the_file(name, tmp_path):
    text, kind, words = BAD[name]
    path = tmp_path / f"{name}.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(kind, match=words) as caught:
        read_sources([path])
    assert isinstance(caught.value, KleashError)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_no_path_and_an_interrupted_run(tmp_path, files):
    with pytest.raises(OptionError, match="got nothing"):
        read_sources([])
    record = json.loads((files["run"] / "run.json").read_text()) | {"status": "running"}
    (tmp_path / "run.json").write_text(json.dumps(record))
    with pytest.raises(DataError, match="--resume"):
        read_sources([tmp_path])


@pytest.mark.parametrize("name", ["sweep", "forecast"])
def test_a_result_holds_its_table_whole(name, sweep, forecast, files):
    """Nothing of it is left out, and nothing is worked out again: rows, ranges, notes and the draws of seeds."""
    there = {"sweep": sweep, "forecast": forecast}[name].frontier
    (source,) = read_sources([files[f"{name}_json"]])
    here = source.frontier
    assert here.to_dict(replicates=name == "sweep") == there.to_dict(replicates=name == "sweep")
    assert here.gold_range == there.gold_range is not None
    assert here.diagnostics.keys() == there.diagnostics.keys()


def test_a_result_names_its_kind(files, tmp_path):
    """The file says what it is; keys that look like another kind's do not count."""
    content = json.loads(files["sweep_json"].read_text())
    assert (content["kind"], content["frontier"]["kind"]) == ("sweep", "frontier")
    path = tmp_path / "s.json"
    path.write_text(json.dumps(content | {"measured": [], "source": "forecast"}))
    (source,) = read_sources([path])
    assert source.kind == "sweep"
    path.write_text(json.dumps(content | {"kind": "swep"}))
    with pytest.raises(DataError, match="did you mean 'sweep'"):
        read_sources([path])
