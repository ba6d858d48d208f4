"""``kleash check`` on the command line: exit codes, JSON as promised, a table of 80 columns, one line for bad input."""

import csv
import io
import json

import numpy as np
import pytest
from simulated_dumps import FAULTS, _tilted, write_jsonl, write_parquet

from kleash import cli
from kleash.audit import CHECKS, check


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    bad, good = FAULTS["sampler has other weights"].make(np.random.default_rng(0), 256)
    write_jsonl(bad, folder / "bad.jsonl")
    write_parquet(good, folder / "good.parquet")
    return folder


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.setitem(cli.COMMANDS, "check", ("kleash.cli.check", "Is the leash attached?"))

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            cli.cli.main(["check", *map(str, arguments)])
        out = capsys.readouterr()
        return stop.value.code or 0, out.out, out.err

    return call


def test_exit_codes(run, files):
    assert run(files / "good.parquet")[0] == 0
    assert run(files / "bad.jsonl")[0] == 1
    assert run(files / "good.parquet", files / "bad.jsonl")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected a rollout dump"),
        (("nothing.jsonl",), "nothing.jsonl: expected a file, got nothing there"),
        (("--list", "x.jsonl"), "--list takes no PATH"),
        (("GOOD", "--beta", "-1"), "number at least 0, got -1"),
        (("GOOD", "--beta", "nan"), "number at least 0, got nan"),
        (("GOOD", "--reward-range", "1", "0"), "reward_min below reward_max"),
        (("GOOD", "--bta", "1"), "did you mean --beta?"),
        (("GOOD", "--format", "jsn"), "did you mean json?"),
        (("GOOD", "--config", "none.toml"), "none.toml: expected a TOML, YAML or JSON file"),
    ],
)
def test_bad_use_is_one_line_and_exit_2(run, files, arguments, words):
    code, out, err = run(*(files / "good.parquet" if a == "GOOD" else a for a in arguments))
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_fault_of_kleash_itself_is_never_exit_1(run, files, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("kleash.audit.check", broken)
    code, out, err = run(files / "good.parquet")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "unexpected error, a fault of kleash: ZeroDivisionError: division by zero; --debug" in err
    code, _, err = run(files / "good.parquet", "--debug")
    assert code == 2
    assert "Traceback" in err


def test_numbers_past_every_float_are_null_in_json(run, tmp_path):
    path = tmp_path / "huge.jsonl"
    path.write_text('{"logp": [-1e308, -1], "ref_logp": [1e308, -1]}\n' * 3)
    code, out, err = run(path, "--format", "json")
    assert (code, err) == (1, "")
    assert json.loads(out)["inputs"][0]["facts"]["kl_per_answer"] is None


def test_a_loose_effective_beta_is_null_with_its_reason(run, tmp_path):
    for noise in (0.0, 3.0):
        chunk = _tilted(np.random.default_rng(1), beta=0.5, answers=800, noise=noise)
        write_jsonl(chunk, tmp_path / "tilt.jsonl")
        facts = json.loads(run(tmp_path / "tilt.jsonl", "--format", "json")[1])["inputs"][0]["facts"]
        assert (facts["effective_beta"] is None) == (noise > 0)
        assert (facts["effective_beta_reason"] is not None) == (noise > 0)
        assert facts["kl_spec"]["kl_per_token"]["unit"] == "nats per token"


def test_configuration_files(run, files, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('beta = 0.1\nestimator = "k3"\nplacement = "reward"\n')
    code, out, _ = run(files / "good.parquet", "--config", config)
    assert code == 1
    assert "GRADIENT" in out
    config.write_text("betta = 0.1\n")
    code, _, err = run(files / "good.parquet", "--config", config)
    assert code == 2
    assert "did you mean 'beta'?" in err
    config.write_text("beta = = 1\n")
    assert run(files / "good.parquet", "--config", config)[0] == 2


def test_json_is_the_contract(run, files):
    code, out, err = run(files / "bad.jsonl", files / "good.parquet", "--beta", "0.1", "--format", "json")

    def no_constants(name):
        raise AssertionError(name)

    data = json.loads(out, parse_constant=no_constants)
    assert (code, err) == (1, "")
    assert (data["schema"], data["kind"]) == (2, "check")
    assert {"version", "source", "seed", "inputs", "findings", "frontier"} <= set(data)
    assert data["frontier"] is None
    for item in data["inputs"]:
        assert {"path", "sha256", "kind", "trainer", "rows", "facts"} <= set(item)
        assert item["kind"] == "rollouts"
        assert len(item["sha256"]) == 64
        assert set(item["facts"]) >= {
            "placement", "estimator", "coefficient", "logged_kl_unit", "penalty_kl_unit", "effective_beta"
        }  # fmt: skip
        assert item["facts"]["coefficient"] == {"value": 0.1, "lo": 0.1, "hi": 0.1, "from": "declared"}
    for found in data["findings"]:
        assert set(found) == {"code", "input", "status", "message", "evidence", "causes", "fix"}
        assert found["status"] in ("ok", "problem", "cannot-tell", "not-run")
    assert len(data["findings"]) == 2 * len(CHECKS)
    assert run(files / "bad.jsonl", files / "good.parquet", "--beta", "0.1", "--format", "json")[1] == out


def test_csv_has_a_row_per_finding(run, files):
    rows = list(csv.DictReader(io.StringIO(run(files / "bad.jsonl", "--format", "csv")[1])))
    assert [row["code"] for row in rows] == [check.code for check in CHECKS]


def test_the_table_fits_and_promises_nothing(run, files):
    _, out, _ = run(files / "bad.jsonl", files / "good.parquet")
    assert max(map(len, out.splitlines())) <= 80
    report = check([files / "bad.jsonl", files / "good.parquet"])
    not_run, total = report.count("not-run"), len(report.findings)
    assert out.rstrip().endswith(f"{not_run} could not run.")
    assert f"{total - not_run} checks ran: {len(report.problems)} problem" in out
    for word in ("healthy", "clean", "all good", "passed"):
        assert word not in out.lower()
    assert out.count("likely: ") <= len(report.problems)
    assert "not run: needs" in out


def test_list_prints_every_check_with_its_needs(run):
    code, out, _ = run("--list")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for entry in CHECKS:
        assert entry.code in out
    data = json.loads(run("--list", "--format", "json")[1])
    assert [row["code"] for row in data["checks"]] == [entry.code for entry in CHECKS]
    assert all({"asks", "needs", "problem"} <= set(row) for row in data["checks"])


def test_out_writes_the_same(run, files, tmp_path):
    code, out, _ = run(files / "bad.jsonl", "--format", "json", "--out", tmp_path / "answer.json")
    assert (code, out) == (1, "")
    assert json.loads((tmp_path / "answer.json").read_text())["source"] == "check"


def test_text_and_frame(files):
    report = check(files / "bad.jsonl")
    assert str(report).splitlines()[0].startswith("IDENTITY")
    assert str(report).endswith(report.summary())
    frame = report.to_frame()
    assert frame.columns == ["input", "code", "status", "message", "fix"]
    assert frame.height == len(CHECKS)
