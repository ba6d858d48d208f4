"""``kleash conformance`` on the command line."""

import csv
import io
import json
from pathlib import Path

import pytest

from kleash.cli import cli


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["conformance", *arguments])
    out = capsys.readouterr()
    return int(left.value.code or 0), out.out, out.err


def test_table(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "kleash", "--quick")
    assert code == 0
    assert err == ""
    assert "predicted      0.4046, KL 0.1092" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_json_and_csv(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "kleash", "--quick", "--format", "json")
    content = json.loads(out)
    assert code == 0
    assert {"schema", "version", "source", "seed", "inputs", "name", "rows", "passed"} <= content.keys()
    assert content["rows"][0]["outcome"] == "tilt"
    _, out, _ = run(capsys, "kleash", "--quick", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["world"] for row in rows] == ["coin", "three"]


def test_a_failed_configuration_is_exit_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    import numpy as np

    from kleash.train import tabular

    honest = tabular.gradient
    monkeypatch.setattr(tabular, "gradient", lambda c, r: np.add(honest(c, 1.1 * np.asarray(r)), [[0.01, -0.01]]))
    code, out, _ = run(capsys, "kleash", "--config", str(_config("beta = 1.0")))
    assert code == 1
    assert "wrong fixed point" in out


def _config(text: str) -> Path:
    import tempfile

    path = Path(tempfile.mkdtemp()) / "own.toml"
    path.write_text(text)
    return path


def test_own_settings_are_an_input(capsys: pytest.CaptureFixture[str]):
    path = _config('world = "points"\nbeta = 20.0')
    code, out, _ = run(capsys, "kleash", "--config", str(path), "--format", "json")
    content = json.loads(out)
    assert code == 0
    assert content["rows"][0]["tilt_beta"] == 20.0
    assert content["inputs"][0]["path"] == str(path)
    assert len(content["inputs"][0]["sha256"]) == 64


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("beta = 0.0", "without a leash no root exists"),
        ("beat = 1.0", "did you mean 'beta'?"),
        ('world = "mars"', "expected one of coin, three, points, words"),
        ("beta =", "expected TOML, got"),
    ],
)
def test_wrong_settings_are_one_line(capsys: pytest.CaptureFixture[str], text: str, told: str):
    path = _config(text)
    code, out, err = run(capsys, "kleash", "--config", str(path))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert told in err
    assert str(path) in err


def test_no_such_file_and_no_such_name(capsys: pytest.CaptureFixture[str]):
    code, _, err = run(capsys, "kleash", "--config", "nowhere.toml")
    assert code == 2
    assert "nothing there" in err
    code, _, err = run(capsys, "trl-ppo")
    assert code == 2
    assert "did you mean trl-rloo" in err or "did you mean trl-dpo" in err or "did you mean trl-grpo" in err


def test_trl_of_another_version_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    from kleash.integrations import versions

    monkeypatch.setattr(versions, "version", lambda _: "1.17.0")
    code, out, err = run(capsys, "trl-grpo", "--quick")
    assert (code, out) == (2, "")
    assert err == "kleash: TRL: expected 1.16.x, the tested range, got 1.17.0; pip install 'trl~=1.16.0'\n"
