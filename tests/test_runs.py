"""Run folders: what may be written where, and what a folder says about its run."""

import json

import pytest

from kleash.errors import ConfigError, DataError, KleashError, MissingFileError, OptionError
from kleash.frontier import exact_frontier
from kleash.runs import open_run, read_run
from kleash.worlds import two_arm

CONFIG = {"beta": [0.1, 1.0], "seeds": 3, "settings": {}}


def opened(path, **kwargs):
    return open_run(path, **({"kind": "sweep", "config": CONFIG} | kwargs))


def finished(path):
    run = opened(path)
    frontier = exact_frontier(two_arm(), [0.1, 1.0])
    run.begin(seed=4, inputs=[{"path": "w.csv", "sha256": "0" * 64, "rows": 2}])
    run.finish(seed=4, results={"a": 1}, metrics=[{"step": 0, "kl": 0.1}, {"step": 1, "kl": 0.2}], frontier=frontier)
    return run


def test_looking_writes_nothing(tmp_path):
    assert opened(tmp_path / "a" / "b").state == "new"
    assert list(tmp_path.iterdir()) == []


def test_a_new_or_an_empty_folder_is_made_a_run(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("deep/new", "empty"):
        run = opened(tmp_path / name)
        assert run.state == "new"
        run.begin(seed=0)
        assert read_run(tmp_path / name).state == "interrupted"


def test_what_was_written_is_read_again(tmp_path):
    finished(tmp_path / "r")
    run = read_run(tmp_path / "r")
    assert (run.kind, run.state, run.config) == ("sweep", "finished", CONFIG)
    assert (run.record["seed"], run.record["results"], run.record["schema"]) == (4, {"a": 1}, 2)
    assert set(run.record["versions"]) == {"kleash", "python", "numpy"}
    assert run.metrics() == [{"step": 0, "kl": 0.1}, {"step": 1, "kl": 0.2}]
    assert run.frontier().beta.tolist() == [0.1, 1.0]
    assert run.optimum() is None


def test_a_run_is_only_finished_when_everything_is_there(tmp_path, monkeypatch):
    run = opened(tmp_path / "r")
    run.begin(seed=0)

    def full(self, path):
        raise KleashError("no space left")

    monkeypatch.setattr("kleash.frontier.Frontier.save", full)
    with pytest.raises(KleashError, match="no space"):
        run.finish(seed=0, results={}, metrics=[], frontier=exact_frontier(two_arm(), 1.0))
    assert read_run(tmp_path / "r").state == "interrupted"


@pytest.mark.parametrize("resume", [False, True])
def test_foreign_folders_and_files_are_refused_and_left_alone(tmp_path, resume):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OptionError, match="got other files"):
        opened(tmp_path, resume=resume)
    with pytest.raises(OptionError, match="got a file"):
        opened(tmp_path / "notes.txt", resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_is_gone_on_with_only_when_asked(tmp_path):
    finished(tmp_path / "r")
    with pytest.raises(OptionError, match="--resume"):
        opened(tmp_path / "r")
    assert opened(tmp_path / "r", resume=True).state == "finished"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (CONFIG | {"seeds": 4}, r"seeds 3 as in its run.json, got seeds 4"),
        (CONFIG | {"beta": [0.1, 1.0000000000000002]}, r"beta \[0.1, 1.0\] .* got beta \[0.1, 1.0000000000000002\]"),
        (CONFIG | {"more": 1}, "more null .* got more 1"),
        ({"beta": [0.1, 1.0], "seeds": 3}, r"settings \{\} .* got settings null"),
    ],
)
def test_another_configuration_is_refused_with_the_difference(tmp_path, config, named):
    finished(tmp_path / "r")
    with pytest.raises(ConfigError, match=named):
        opened(tmp_path / "r", config=config, resume=True)


def test_another_kind_of_run_is_refused(tmp_path):
    finished(tmp_path / "r")
    with pytest.raises(ConfigError, match="expected a lm, got a sweep"):
        opened(tmp_path / "r", kind="lm", resume=True)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"schema": 1}', '{"schema": 2}'])
def test_a_record_that_kleash_did_not_write_is_refused(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(DataError, match=r"run\.json: is"):
        read_run(tmp_path)


def test_a_run_of_a_newer_schema_is_refused(tmp_path):
    finished(tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(record | {"schema": 3}))
    with pytest.raises(DataError, match=r"run\.json: is of schema 3, this kleash reads 1 and 2"):
        read_run(tmp_path)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(MissingFileError, match=r"run\.json"):
        read_run(tmp_path / "none")
    finished(tmp_path / "r")
    (tmp_path / "r" / "frontier.parquet").unlink()
    with pytest.raises((MissingFileError, DataError), match=r"frontier\.parquet"):
        read_run(tmp_path / "r").frontier()


def test_a_broken_line_of_metrics_is_named(tmp_path):
    finished(tmp_path / "r")
    (tmp_path / "r" / "metrics.jsonl").write_text('{"step": 0}\n{"st')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: "):
        read_run(tmp_path / "r").metrics()


def test_the_record_is_strict_json(tmp_path):
    finished(tmp_path / "r")
    json.loads((tmp_path / "r" / "run.json").read_text(), parse_constant=pytest.fail)
    with pytest.raises(KleashError, match="beta"):
        opened(tmp_path / "other", config={"beta": float("nan")})
    assert not (tmp_path / "other").exists()


def test_what_a_killed_process_left_is_cleared_and_nothing_else(tmp_path):
    left, own = ".run.json.0123abcd.tmp", ".notes.tmp"
    for folder in (tmp_path / "new", tmp_path / "old", tmp_path / "foreign"):
        folder.mkdir()
    (tmp_path / "new" / left).touch()
    opened(tmp_path / "new").begin(seed=0)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run.json"]
    opened(tmp_path / "old").begin(seed=0)
    (tmp_path / "old" / "adapters").mkdir()
    for name in (left, own, f"adapters/{left}"):
        (tmp_path / "old" / name).touch()
    opened(tmp_path / "old", resume=True)
    assert sorted(path.name for path in (tmp_path / "old").rglob("*")) == [own, "adapters", "run.json"]
    for name in (left, own):
        (tmp_path / "foreign" / name).touch()
    with pytest.raises(OptionError):
        opened(tmp_path / "foreign", resume=True)
    assert len(list((tmp_path / "foreign").iterdir())) == 2
