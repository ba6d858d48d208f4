"""The parts of a spread sweep joined, without a cluster; and what is refused before there is one."""

import sys

import pytest
from click.testing import CliRunner

from kleash import sweep
from kleash._files import dump_json
from kleash.cli import cli
from kleash.errors import ConfigError, OptionError
from kleash.runs import read_run
from kleash.train import spread
from kleash.train.config import SweepConfig
from kleash.train.result import read_back

SAID = {"seeds": 2, "seed": 3, "steps": 40}
CUT = [[0.0, 1.0], [5.0]]


def test_parts_of_a_world_join_to_the_run_of_one(tmp_path):
    parts = [tmp_path / "run" / "parts" / str(number) for number in range(2)]
    for beta, path in zip(CUT, parts, strict=True):
        assert spread._part(sweep, SweepConfig(), beta=beta, out=str(path), settings={}, said=SAID) is None
    joined = spread._joined(
        sweep, SweepConfig(), tmp_path / "run", parts, [0.0, 1.0, 5.0], {"settings": {}, "said": SAID}
    )
    one = sweep(beta=[0, 1, 5], out=tmp_path / "one", **SAID)
    assert dump_json(joined.to_dict()) == dump_json(one.to_dict())
    for file in ("metrics.jsonl", "optimum.json", "run.json"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "one" / file).read_bytes(), file
    assert read_back(read_run(tmp_path / "run")).to_dict() == one.to_dict()


def test_the_cut_stays_that_of_the_first_start(tmp_path):
    assert spread._cut(tmp_path, [0.0, 1.0, 5.0], workers=2) == CUT
    assert spread._cut(tmp_path, [0.0, 1.0, 5.0], workers=3) == CUT
    with pytest.raises(ConfigError, match="betas 0, 1, 5 as in its parts, got 0, 2"):
        spread._cut(tmp_path, [0.0, 2.0], workers=2)
    spread._must_fit(tmp_path, resume=True)
    with pytest.raises(OptionError, match="--resume goes on with it"):
        spread._must_fit(tmp_path, resume=False)


def test_an_error_of_a_part_is_its_line(tmp_path):
    said = spread._part(sweep, SweepConfig(world="kitchen"), beta=[1.0], out=str(tmp_path), settings={"x": 1}, said={})
    assert said is not None
    assert "unknown setting 'x'" in said


def test_without_a_folder_or_without_ray_it_is_one_line(monkeypatch, tmp_path):
    result = CliRunner().invoke(cli, ["sweep", "--ray"])
    assert result.exit_code == 2
    assert "expected together with --out" in result.stderr
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(cli, ["sweep", "--ray", "--out", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith("pip install 'kleash[ray]'")
    assert not (tmp_path / "run").exists()
