"""``kleash sweep`` as users and scripts meet it: exit codes, one line of error, and nothing else on stdout."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from kleash.cli import COMMANDS, cli

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
MAIN = [sys.executable, "-c", "from kleash.cli import main; main()"]
QUICK = ["--beta", "5", "--beta", "60"]


def run(*args):
    return CliRunner().invoke(cli, list(map(str, args)), catch_exceptions=False)


def process(*args, **kwargs):
    return subprocess.run([*MAIN, *map(str, args)], capture_output=True, text=True, check=False, **kwargs)


def test_the_table_and_the_verdict():
    result = run("sweep")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "Beta   Judge's score   True quality   KL" in result.stdout
    assert "No useful range." in result.stdout
    assert "\x1b" not in result.stdout


def test_a_setting_turns_the_verdict():
    result = run("sweep", "--set", "oversalt=0.0005", "--format", "json")
    verdict = json.loads(result.stdout)["verdict"]
    assert verdict["kind"] == "useful-range"
    assert verdict["best_lo"] < 7.247 < verdict["best_hi"]


def test_json_is_alone_on_stdout_strict_and_reproducible():
    results = [process("sweep", "--format", "json", "--seeds", "1", "--seed", "3", *QUICK) for _ in range(2)]
    assert results[0].stdout == results[1].stdout
    assert results[0].stderr == ""
    content = json.loads(results[0].stdout, parse_constant=pytest.fail)
    assert content["seed"] == 3
    assert [row["beta"] for row in content["rows"]] == [5.0, 60.0]
    assert [row["n_seeds"] for row in content["rows"]] == [1, 1]
    assert content["rows"][0]["reward_se"] is None


def test_csv_has_a_row_per_beta_and_full_precision():
    table = list(csv.DictReader(io.StringIO(run("sweep", "--format", "csv", "--seeds", "1", *QUICK).stdout)))
    rows = json.loads(run("sweep", "--format", "json", "--seeds", "1", *QUICK).stdout)["rows"]
    assert [float(row["gold"]) for row in table] == [row["gold"] for row in rows]
    assert table[0]["gold_se"] == ""
    assert list(table[0]) == list(rows[0])


def test_a_configuration_file_and_flags_that_win(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('world = "kitchen"\nbeta = [5]\nseeds = 1\nsteps = 20\n[settings]\nlove = 2.0\noversalt = 0.01\n')
    content = json.loads(run("sweep", path, "--seed", "5", "--set", "love=1", "--format", "json").stdout)
    assert content["config"]["settings"] == {"love": 1.0, "oversalt": 0.01}
    assert (content["config"]["seeds"], content["config"]["steps"], content["seed"]) == (1, 20, 5)
    assert [row["beta"] for row in content["rows"]] == [5.0]


def test_the_example_from_another_folder(tmp_path):
    result = process("sweep", EXAMPLES / "small_world.toml", "--format", "json", cwd=tmp_path, env=source_env())
    content = json.loads(result.stdout)
    assert content["world"] == "small_world"
    assert content["inputs"][0]["rows"] == 8
    assert content["verdict"]["kind"] == "useful-range"


def source_env():
    """This environment, with relative entries of PYTHONPATH made absolute."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    return os.environ | {"PYTHONPATH": path}


def bad_file(name, text):
    return lambda folder: (folder / name).write_text(text) and str(folder / name)


def bad_world(text):
    def make(folder):
        (folder / "w.csv").write_text(text)
        (folder / "c.toml").write_text('[world]\nfile = "w.csv"\n')
        return str(folder / "c.toml")

    return make


BAD = {
    "unknown flag": (["--sed", "3"], "unknown option --sed; did you mean --seed?"),
    "unknown format": (["--format", "jsn"], "did you mean json?"),
    "unknown setting": (["--set", "oversal=1"], "did you mean 'oversalt'?"),
    "setting without value": (["--set", "oversalt"], "expected NAME=VALUE with a number, got 'oversalt'"),
    "setting out of range": (["--set", "oversalt=1.5"], "oversalt: expected"),
    "negative beta": (["--beta", "-1"], "beta: expected"),
    "NaN beta": (["--beta", "nan"], "beta: expected"),
    "infinite beta": (["--beta", "inf"], "beta: expected"),
    "text as beta": (["--beta", "x"], "'x' is not a valid float"),
    "betas without flags": (["--beta", "0", "1", "5"], "repeat the flag for each beta: --beta 1"),
    "no seeds": (["--seeds", "0"], "seeds: expected"),
    "unknown world": (["--world", "kitchn"], "did you mean 'kitchen'?"),
    "missing file": (["none.toml"], "none.toml: expected a TOML, YAML or JSON file"),
    "two files": (["a.toml", "b.toml"], "expected one CONFIG.toml"),
    "bad TOML": ([bad_file("c.toml", "beta = [1")], "c.toml: expected TOML, got"),
    "unknown key": ([bad_file("c.toml", "sedes = 3")], "unknown key 'sedes'; did you mean 'seeds'?"),
    "missing world file": ([bad_file("c.toml", '[world]\nfile = "w.csv"')], "w.csv"),
    "world without gold": ([bad_world("prompt,answer,reference,reward\np,a,1,1\n")], "gold missing"),
    "world with text": ([bad_world("prompt,answer,reference,reward,gold\np,a,1,hi,0\n")], "w.csv:2: column 'reward'"),
    "world that sums to 0.9": ([bad_world("prompt,answer,reference,reward,gold\np,a,0.9,1,0\n")], "a sum of 0.9"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_exit_2_and_nothing_written(case, tmp_path):
    args, said = BAD[case]
    args = [arg(tmp_path) if callable(arg) else arg for arg in args]
    before = sorted(tmp_path.iterdir())
    result = run("sweep", *args, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("kleash: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_bad_input_of_a_real_process():
    done = process("sweep", "--beta", "-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kleash: beta: expected a finite number at least 0, got -1\n"


@pytest.mark.parametrize("args", [["--debug", "sweep", "--seeds", "0"], ["sweep", "--seeds", "0", "--debug"]])
def test_debug_shows_the_traceback(args):
    result = run(*args)
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "OptionError" in result.stderr


def test_resume_needs_a_folder():
    assert run("sweep", "--resume").exit_code == 2


def test_a_run_folder_its_resumption_and_its_refusals(tmp_path):
    out = tmp_path / "run"
    first = run("sweep", *QUICK, "--format", "json", "--out", out)
    assert first.exit_code == 0
    assert first.stderr == ""
    again = run("sweep", *QUICK, "--format", "json", "--out", out, "--resume")
    assert again.stdout == first.stdout
    assert "read back without training" in again.stderr
    refused = run("sweep", *QUICK, "--out", out)
    assert refused.exit_code == 2
    assert "--resume" in refused.stderr
    other = run("sweep", *QUICK, "--seeds", "4", "--out", out, "--resume")
    assert other.exit_code == 2
    assert "expected seeds 3 as in its run.json, got seeds 4" in other.stderr
    assert other.stderr.count("\n") == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    foreign = run("sweep", "--out", tmp_path / "mine")
    assert foreign.exit_code == 2
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_control_c_is_130_and_the_run_can_be_taken_up(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("steps = 1000000\nbeta = [5]\nseeds = 1\n")
    args = [*MAIN, "sweep", str(config), "--out", str(tmp_path / "run")]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        deadline = time.monotonic() + 60
        while not (tmp_path / "run" / "run.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        stdout, stderr = child.communicate(timeout=60)
    assert (child.returncode, stdout) == (130, "")
    assert stderr.startswith("kleash: interrupted")
    assert stderr.count("\n") == 1
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "running"
    record["config"]["steps"] = 30  # the test need not wait for a million steps
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    config.write_text("steps = 30\nbeta = [5]\nseeds = 1\n")
    result = run("sweep", config, "--out", tmp_path / "run", "--resume")
    assert result.exit_code == 0
    assert "had been interrupted; trained again" in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_a_reader_that_leaves_is_no_error():
    args = [*MAIN, "sweep", "--format", "json"]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(timeout=60) == 141


def test_a_terminal_without_unicode_gets_ascii():
    done = process("sweep", "--set", "oversalt=0.0005", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "*o" in done.stdout
    assert "?" not in done.stdout


# ---------------------------------------------------------------------------------------------------------- the group


def test_help_lists_the_commands_and_tells_the_story():
    result = run("--help")
    assert result.exit_code == 0
    for name, (_, text) in COMMANDS.items():
        assert f"  {name}" in result.stdout
        assert text in result.stdout
    assert "chef" in result.stdout
    assert run().stdout == result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_says_what_the_table_says(name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert cli.get_command(None, name).get_short_help_str(100) == COMMANDS[name][1]


def test_unknown_commands_name_the_nearest():
    result = run("swep")
    assert result.exit_code == 2
    assert result.stderr == "kleash: unknown command 'swep'; did you mean sweep? (see kleash --help)\n"


def test_version():
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.split()[0] == "kleash"
    assert result.stdout.split()[1][0].isdigit()
