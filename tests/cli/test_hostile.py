"""Whole kinds of hostile input, through every command that reads files: one line and exit 2, or shown without harm."""

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import polars as pl
import pytest

import kleash
from kleash.cli import cli
from kleash.errors import DataError, KleashError, OptionError
from kleash.logs import _lines
from kleash.rows import _csv, _source, opened

COMMANDS = ("forecast", "check", "report", "sweep")
STEERING = "\x1b[31mRED\x1b]0;pwn\x07\x9b\u202e"


class Done:
    """What a command left behind, on the file descriptors themselves."""

    def __init__(self, code, captured):
        self.returncode, self.stdout, self.stderr = code, captured.out.encode(), captured.err.encode()


@pytest.fixture
def run(capfd):
    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            cli.main([str(argument) for argument in arguments])
        return Done(left.value.code, capfd.readouterr())

    return run


def refused(done, *words):
    """One line on stderr, which blames the input and not kleash."""
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (2, b""), said
    assert said.count("\n") == 1, said
    assert said.startswith("kleash: ")
    assert "fault of kleash" not in said
    assert len(said) < 1_000
    for word in words:
        assert word in said, said


@pytest.mark.parametrize("command", COMMANDS)
def test_pipes_and_devices_are_not_opened(run, tmp_path, command):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        refused(run(command, path), "a pipe or device")


def test_a_stream_without_end_or_sense_is_left_at_its_beginning():
    with open("/dev/zero", "rb") as zero:
        command = [sys.executable, "-c", "from kleash.cli import main; main()", "forecast", "-"]
        done = subprocess.run(command, stdin=zero, capture_output=True, timeout=60, check=False)
    refused(done, "stdin", "binary data")


def test_letters_of_patterns_in_a_name_are_letters(run, tmp_path):
    rows = "prompt,reward\na,1\na,2\n"
    for name in ("s[1].csv", "s1.csv", "s*.csv"):
        (tmp_path / name).write_text(rows if name == "s[1].csv" else rows + "b,1\nb,9\n")
    done = json.loads(run("forecast", tmp_path / "s[1].csv", "--format", "json").stdout)
    assert [(item["path"], item["rows"]) for item in done["inputs"]] == [(str(tmp_path / "s[1].csv"), 2)]
    frame = pl.DataFrame({"logp": [[-1.0]], "ref_logp": [[-1.0]]})
    for name, times in (("d[1].parquet", 1), ("d1.parquet", 3), ("d*.parquet", 5)):
        pl.concat([frame] * times).write_parquet(tmp_path / name)
    for name, times in (("d[1].parquet", 1), ("d*.parquet", 5)):
        found = json.loads(run("check", tmp_path / name, "--format", "json").stdout)
        assert [item["rows"] for item in found["inputs"]] == [times]


@pytest.mark.parametrize("command", ["forecast", "check"])
@pytest.mark.parametrize("start", ['{"prompt": "', '{"logp": [-1.0], "ref_logp": [', "prompt,reward\na,"])
def test_a_line_without_end_is_left(run, tmp_path, monkeypatch, command, start):
    for module in (_source, _csv):
        monkeypatch.setattr(module, "LONGEST", 1 << 16)
    monkeypatch.setattr(_source, "_BLOCK", 1 << 15)
    path = tmp_path / ("s.csv" if start[0] == "p" else "s.jsonl")
    path.write_text(start + "1," * (1 << 18))
    refused(run(command, path))


def test_an_archive_that_unpacks_without_end_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(_source, "_ROOM", 1 << 22)
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a", "reward": 1}\n' * (1 << 19), 9))
    with pytest.raises(DataError, match="unpacks to more than 200 times its size"), opened(path) as source:
        for _ in source.chunks():
            pass


def test_a_reader_that_dies_says_so_in_one_line(run, tmp_path):
    path = tmp_path / "s.parquet"
    pl.DataFrame({"logp": [[-1.0, -2.0]] * 900, "ref_logp": [[-1.0, -2.0]] * 900}).write_parquet(path)
    whole = path.read_bytes()
    for at in range(40, 600, 80):
        path.write_bytes(whole[:at] + bytes(byte ^ 0x55 for byte in whole[at : at + 8]) + whole[at + 8 :])
        done = run("check", path)
        if done.returncode == 2:
            refused(done)
        assert b"panicked" not in done.stderr


@pytest.mark.parametrize("scale", ["1e200", "1" + "0" * 400])
def test_numbers_beyond_the_range_of_floats(run, tmp_path, scale):
    path = tmp_path / "s.jsonl"
    path.write_text("".join(f'{{"prompt": "a", "reward": {value}}}\n' for value in (scale, "1", "2", "-1")))
    refused(run("forecast", path), "reward")


def test_text_of_a_file_neither_steers_the_terminal_nor_is_markup(run, tmp_path):
    name = f"rewards/[/x]{STEERING}"
    log = tmp_path / "log.jsonl"
    log.write_text(
        "".join(json.dumps({"step": i, "reward": 1, "kl": 0.1, "loss": 0.1, name: i}) + "\n" for i in range(3))
    )
    samples = tmp_path / "s.csv"
    samples.write_text("".join(["prompt,reward,answer\n", *(f"a,{i},[red]x[/red]{STEERING}\n" for i in range(9))]))
    done = run("forecast", samples, "--format", "json", "--out", tmp_path / "f.json")
    assert done.returncode == 0, done.stderr
    for found in (run("check", log), run("forecast", samples), run("report", tmp_path / "f.json")):
        shown = (found.stdout + found.stderr).decode()
        assert "fault of kleash" not in shown
        assert not set(shown) & set("\x1b\x07\x9b\u202e")
    assert "[/x]␛[31mRED" in run("check", log).stdout.decode()


def test_a_broken_run_folder_is_one_line_that_names_the_file(run, tmp_path):
    (tmp_path / "c.toml").write_text("steps = 5\nbeta = [1, 15]\n")
    assert run("sweep", tmp_path / "c.toml", "--out", tmp_path / "run").returncode == 0
    for name, content in {
        "run.json": ["{", "[]", '{"kind": "sweep"}', "[" * 100_000],
        "frontier.parquet": ["", "PAR1"],
        "metrics.jsonl": ["{", "[1]\n", '{"step": 0, "reward": 1.0}\n', '{"step": "a", "beta": 1.0, "kl": 0.1}\n'],
        "optimum.json": ["{", "3", "{}"],
    }.items():
        path = tmp_path / "run" / name
        before = path.read_bytes()
        for text in content:
            path.write_text(text)
            done = run("report", tmp_path / "run", "-o", tmp_path / "page.html")
            if done.returncode != 0 or name == "metrics.jsonl":
                refused(done, name)
        path.write_bytes(before)


def test_texts_that_a_spreadsheet_would_run_are_texts(run, tmp_path):
    log = tmp_path / "=cmd.jsonl"
    log.write_text("".join(json.dumps({"step": i, "reward": 1, "kl": 0.1, "loss": 0.1}) + "\n" for i in range(9)))
    os.chdir(tmp_path)
    found = run("check", "=cmd.jsonl", "--format", "csv").stdout.decode()
    (tmp_path / "b.jsonl").write_bytes((tmp_path / "=cmd.jsonl").read_bytes().replace(b"loss", b"loss\\u001b[1m"))
    assert "\x1b" not in run("check", "b.jsonl", "--format", "csv").stdout.decode()
    assert "'=cmd.jsonl" in found
    assert not [cell for line in found.splitlines() for cell in line.split(",") if cell.startswith(("=", "@"))]


def test_an_archive_may_be_let_in(tmp_path, monkeypatch):
    path = tmp_path / "dense.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a", "reward": 1}\n' * (1 << 19), 9))
    with pytest.raises(DataError, match="unpack it yourself, or set KLEASH_UNPACK_RATIO"), opened(path) as source:
        for _ in source.chunks():
            pass
    monkeypatch.setenv("KLEASH_UNPACK_RATIO", "2000")
    with opened(path) as source:
        assert sum(len(rows) for _, rows in source.chunks()) == 1 << 19


@pytest.mark.parametrize("command", ["report", "check"])
def test_a_file_that_is_read_as_a_whole_has_an_end(run, tmp_path, command):
    path = tmp_path / ("r.json" if command == "report" else "c.sh")
    with open(path, "wb") as file:
        file.truncate(2_000_000_000)
    refused(run(command, path), "MB" if command == "report" else "")


def in_a_shell(text, **more):
    command = f"{sys.executable} -c 'from kleash.cli import main; main()' {text}"
    return subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False, **more)


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_what_the_system_refuses_is_no_fault_of_kleash(tmp_path, form):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    path = tmp_path / "s.csv"
    path.write_text("prompt,reward\n" + "".join(f"{i % 9},{i % 7}\n" for i in range(90)))
    refused(in_a_shell(f"forecast {path} --format {form} > /dev/full"), "stdout: No space left on device")
    refused(in_a_shell(f"forecast {path} --format {form} >&-"), "stdout: closed")
    silent = in_a_shell(f"forecast {path} --format {form} > /dev/full 2>&-")
    assert (silent.returncode, silent.stdout) == (2, b"")


def test_a_folder_for_temporary_files_without_room(monkeypatch, tmp_path):
    class Full:
        name = str(tmp_path / "spool")

        def write(self, _):
            raise OSError(28, "No space left on device")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(_source.tempfile, "NamedTemporaryFile", lambda **_: Full())
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "s.csv.gz"
    path.write_bytes(gzip.compress(b"prompt,reward\na,1\n"))
    full = "cannot hold what is read: No space left on device; set TMPDIR"
    with pytest.raises(KleashError, match=full), opened(path) as source:
        assert source.plain


def test_ten_thousand_betas_stay_small(tmp_path):
    """Draws times betas are bounded: 32 MB a quantity; of fixed prompts, whose covariance is squared, it is said."""
    rng = np.random.default_rng(0)
    samples = kleash.Samples.from_arrays(np.repeat(np.arange(20), 6), rng.normal(size=120), gold=rng.normal(size=120))
    beta = np.geomspace(0.01, 100, 10_000)
    table = kleash.forecast(samples, beta=beta).frontier
    assert table.replicates.reward.shape == (400, 10_000)
    samples = kleash.Samples.from_arrays(np.repeat(np.arange(5), 24), rng.normal(size=120), gold=rng.normal(size=120))
    with pytest.raises(OptionError, match="at most 1250 at a time with fixed prompts, got 10000"):
        kleash.forecast(samples, beta=beta, prompts="fixed")


def test_a_result_of_other_types_is_one_line(run, tmp_path):
    rows = "".join(f"{i % 9},{(7 * i) % 11},{i % 2}\n" for i in range(270))
    (tmp_path / "s.csv").write_text("prompt,reward,gold\n" + rows)
    told = ("--format", "json", "--trainer", "trl-rloo", "--out", tmp_path / "f.json")
    assert run("forecast", tmp_path / "s.csv", *told).returncode == 0
    content = json.loads((tmp_path / "f.json").read_text())
    for trainer in ("x", [1], {"value": "x"}, {"assumes": 3}):
        (tmp_path / "f.json").write_text(json.dumps(content | {"trainer": trainer}))
        refused(run("report", tmp_path / "f.json", "-o", tmp_path / "p.html"), "is not whole")
    whole = json.dumps(content)
    at = whole.index('"reward":', whole.index('"frontier"')) + 9
    (tmp_path / "f.json").write_text(whole[:at] + " 1e400" + whole[whole.index(",", at) :])
    refused(run("report", tmp_path / "f.json"), "a larger one")


def test_what_is_held_meanwhile_goes_with_sigterm(tmp_path):
    command = [sys.executable, "-c", "from kleash.cli import main; main()", "forecast", "-"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    process.stdin.write(b"prompt,reward\n" + b"a,1\n" * 2_000_000)
    process.stdin.flush()
    for _ in range(500):
        if list(tmp_path.iterdir()):
            break
        time.sleep(0.02)
    assert list(tmp_path.iterdir())
    process.terminate()
    said = process.communicate(timeout=30)[1].decode()
    assert (process.returncode, said.count("\n")) == (143, 1), said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["bomb.jsonl.gz", "bomb.csv.gz", "bomb.log.gz"])
@pytest.mark.parametrize("command", ["forecast", "check"])
def test_an_archive_is_weighed_before_its_rows_are_read(run, tmp_path, monkeypatch, name, command):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    row = {"j": b'{"prompt": "a", "reward": 1, "step": 1}\n', "c": b"a,1\n", "l": b"{'loss': 0.1, 'step': 1}\n"}[
        name[5]
    ]
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"prompt,reward\n" * (name[5] == "c") + row * ((40 << 20) // len(row)), 9))
    refused(run(command, path), name, "unpacks to more than 200 times its size")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("command", ["forecast", "check"])
@pytest.mark.parametrize("fill", ["x\n", "\n", '"\n'])
def test_a_record_of_lines_without_end_is_left(run, tmp_path, monkeypatch, command, fill):
    monkeypatch.setattr(_csv, "_LINES", 1 << 12)
    monkeypatch.setattr(_lines, "_PROLOGUE", (1 << 16, 1 << 12))
    path = tmp_path / "s.csv"
    path.write_text('prompt,reward\n"' + fill * (1 << 15))
    refused(run(command, path), *(["million lines"] if (command, fill) == ("forecast", "x\n") else []))


def test_a_text_without_rows_is_left_and_one_whose_rows_come_late_is_read(run, tmp_path, monkeypatch):
    monkeypatch.setattr(_lines, "_BYTES", 1 << 10)
    monkeypatch.setattr(_lines, "_PROLOGUE", (1 << 16, 1 << 12))
    path, row = tmp_path / "run.log", "{'loss': 0.1, 'kl': 0.01, 'reward': 0.5, 'learning_rate': 1e-06, 'epoch': 0.1}\n"
    path.write_text("talk\n" * 5_000 + row * 3)
    refused(run("check", path), "expected rows of metrics, got none in the first")
    path.write_text("talk\n" * 3_000 + row * 3 + "talk\n" * 9_000)
    assert run("check", path).returncode in {0, 1}


@pytest.mark.parametrize("name", ["s.json", "run/run.json", "run/metrics.jsonl", "run/frontier.parquet"])
def test_a_file_of_kleash_is_no_pipe(run, tmp_path, name):
    (tmp_path / "c.toml").write_text("steps = 5\nbeta = [1, 15]\n")
    assert run("sweep", tmp_path / "c.toml", "--out", tmp_path / "run").returncode == 0
    path = tmp_path / name
    for make in (lambda: os.mkfifo(path), path.mkdir):
        path.unlink(missing_ok=True)
        make()
        refused(run("report", path.parent if name.startswith("run/") else path), path.name)


@pytest.mark.parametrize(("key", "most"), [("steps", "100000000"), ("seeds", "10000"), ("seed", "9223372036854775807")])
def test_whole_numbers_have_limits(run, tmp_path, key, most):
    (tmp_path / "c.toml").write_text(f"beta = [1]\n{key} = {'1' * 300}\n")
    refused(run("sweep", tmp_path / "c.toml"), key, "a whole number")
    (tmp_path / "c.toml").write_text(f"beta = [1]\n{key} = {most}1\n")
    refused(run("sweep", tmp_path / "c.toml"), f"at most {most}")


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("forecast - <&-", "stdin: file: expected rows, got an empty file"),
        ("report - <&-", "is no JSON"),
        ("report - < /dev/zero", "is larger than 64 MB"),
        ("report loop", "loop: expected"),
        ("report /proc/self/mem", "/proc/self/mem: cannot be read"),
    ],
)
def test_inputs_that_the_system_keeps_back_are_one_line(tmp_path, ending, words):
    (tmp_path / "loop").symlink_to("loop")
    command = f"{sys.executable} -c 'from kleash.cli import main; main()' {ending}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, timeout=60, check=False)
    refused(done, words)
