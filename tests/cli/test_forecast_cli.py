"""``kleash forecast`` as users and scripts meet it: exit codes, one line of error, and nothing else on stdout."""

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from kleash.cli import cli

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "word_problems.csv"
COLUMNS = ["--prompt-column", "task_id", "--reward-column", "judge_score", "--gold-column", "correct"]
SHIPPED = [EXAMPLE, *COLUMNS]
LIMITS = ["--reward-max", "100", "--gold-min", "0"]
MAIN = [sys.executable, "-c", "from kleash.cli import main; main()"]


def run(*args, **kwargs):
    return CliRunner().invoke(cli, ["forecast", *map(str, args)], catch_exceptions=False, **kwargs)


def process(*args, **kwargs):
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    environment = os.environ | {"PYTHONPATH": path}
    command = [*MAIN, "forecast", *map(str, args)]
    return subprocess.run(command, capture_output=True, check=False, env=environment, **kwargs)


def rows_of(n_prompts=12, n_samples=8, gold=True):
    """Samples as rows of plain data."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=n_prompts * n_samples).round(4).tolist()
    return [
        {"prompt": f"p{i // n_samples}", "reward": score} | ({"gold": int(score > 0)} if gold else {})
        for i, score in enumerate(scores)
    ]


def csv_of(rows):
    lines = [",".join(rows[0])] + [",".join(str(cell) for cell in row.values()) for row in rows]
    return "\n".join(lines) + "\n"


def jsonl_of(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


# ----------------------------------------------------------------------------------------------------------- good input


def test_a_trainer_that_standardises_gets_its_own_objective_and_a_number_to_paste():
    """TRL's default GRPO: no one number translates from the tilt, and the command ends with one all the same."""
    content = json.loads(run(*SHIPPED, *LIMITS, "--trainer", "trl-grpo", "--format", "json").stdout)
    assert content["objective"] == "group-standardised"
    assert "groups of 8 (num_generations)" in content["notes"][0]
    assert content["frontier"]["provenance"]["group_size"] == 8
    value = content["trainer"]["value"]
    assert value == content["verdict"]["safe_beta"]
    assert content["settings"]["beta"] == pytest.approx(value, rel=1e-3)
    assert content["settings"]["scale_rewards"] == "group"
    assert f"    beta={content['settings']['beta']},\n" in content["trainer"]["snippet"]


def test_whoever_asks_for_the_tilt_gets_it_and_a_trainer_without_a_number_names_the_way():
    small = ["--beta", "11.5", "--beta", "15.9", "--format", "json"]
    asked = json.loads(run(*SHIPPED, *LIMITS, *small, "--trainer", "trl-grpo", "--objective", "tilt").stdout)
    assert (asked["objective"], asked["settings"]) == ("tilt", None)
    assert asked["trainer"]["refused"].endswith("; with scale_rewards=batch there is a number")
    plain = json.loads(run(*SHIPPED, *LIMITS, *small, "--trainer", "trl-grpo", "--set", "scale_rewards=none").stdout)
    assert plain["objective"] == "tilt"
    assert plain["settings"]["scale_rewards"] == "none"
    assert plain["trainer"]["value"] == pytest.approx(7 / 8 * plain["verdict"]["safe_beta"])
    fours = json.loads(
        run(*SHIPPED, "--beta", "2", "--format", "json", "--trainer", "trl-grpo", "--group-size", "4").stdout
    )
    assert fours["frontier"]["provenance"]["group_size"] == 4
    refused = json.loads(run(*SHIPPED, *LIMITS, *small, "--trainer", "slime").stdout)["trainer"]["refused"]
    assert "with kl_loss_type=k2 or use_unbiased_kl=true there is a number" in refused


def test_the_table_and_the_verdict():
    result = run(*SHIPPED, *LIMITS)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert max(map(len, result.stdout.splitlines())) <= 80
    for words in ("Forecast from 2,880 answers", "Judge's score", "True quality", "No over-optimisation seen."):
        assert words in result.stdout
    assert "\x1b" not in result.stdout


def test_plain_numbers_to_the_last_digit_alone_on_stdout():
    done = process(*SHIPPED, *LIMITS, "--no-correction", "--beta", "10", "--format", "json")
    assert (done.returncode, done.stderr) == (0, b"")
    content = json.loads(done.stdout, parse_constant=pytest.fail)
    (row,) = content["rows"]
    assert (round(row["reward"], 2), round(row["gold"], 4), round(row["kl"], 4)) == (95.56, 0.8403, 0.4074)
    assert (row["status"], content["verdict"]["kind"]) == ("weak", "cannot-tell")  # plain estimates advise nothing
    best = content["best_of_n"][-1]
    assert (best["n"], round(best["kl"], 3), round(best["kl_bound"], 3)) == (24, 1.216, 2.220)
    assert round(best["gold"], 3) == 0.828
    assert content["inputs"][0]["path"] == str(EXAMPLE)
    assert len(content["inputs"][0]["sha256"]) == 64


def test_the_same_seed_gives_the_same_bytes():
    first, again, other = (run(*SHIPPED, "--seed", seed, "--format", "json").stdout for seed in (3, 3, 4))
    assert first == again != other
    assert json.loads(first)["seed"] == 3


def test_csv_has_a_row_per_beta_and_full_precision():
    asked = [*SHIPPED, "--beta", "10", "--beta", "0.0001", "--beta", "1000"]
    table = list(csv.DictReader(io.StringIO(run(*asked, "--format", "csv").stdout)))
    rows = json.loads(run(*asked, "--format", "json").stdout)["rows"]
    assert [float(row["beta"]) for row in table] == [0.0001, 10.0, 1000.0]
    assert list(table[0]) == list(rows[0])
    for row, expected in zip(table, rows, strict=True):
        for name, value in expected.items():
            assert row[name] == ("" if value is None else str(value)), name


def test_an_answer_in_a_file(tmp_path):
    for form, name in (("json", "f.json"), ("csv", "f.csv"), ("table", "f.txt")):
        result = run(*SHIPPED, "--beta", "10", "--format", form, "--out", tmp_path / name)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
        assert (tmp_path / name).read_text() == run(*SHIPPED, "--beta", "10", "--format", form).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.csv", "f.json", "f.txt"]


def test_every_kind_of_file_gives_the_same_forecast(tmp_path):
    rows = rows_of()
    nested = [
        {"prompt": f"p{p}", **{name: [row[name] for row in rows[8 * p : 8 * p + 8]] for name in ("reward", "gold")}}
        for p in range(12)
    ]
    (tmp_path / "a.csv").write_text(csv_of(rows))
    (tmp_path / "b.jsonl").write_text(jsonl_of(rows))
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(csv_of(rows).encode()))
    (tmp_path / "d.jsonl").write_text(jsonl_of(nested))
    pl.DataFrame(rows).write_parquet(tmp_path / "e.parquet")
    answers = [json.loads(run(path, "--format", "json").stdout) for path in sorted(tmp_path.iterdir())]
    for answer in answers[1:]:
        assert answer["rows"] == answers[0]["rows"]
        assert answer["verdict"] == answers[0]["verdict"]
    assert answers[3]["notes"][0] == "12 rows with lists were unrolled into 96 samples"
    (tmp_path / "two.csv").write_text(
        csv_of([row | {"prompt": "q" + row["prompt"], "reward": 2 * row["reward"]} for row in rows])
    )
    both = json.loads(run(tmp_path / "a.csv", tmp_path / "two.csv", "--format", "json").stdout)
    assert (both["n_prompts"], [item["rows"] for item in both["inputs"]]) == (24, [96, 96])


def test_standard_input(tmp_path):
    text = csv_of(rows_of())
    (tmp_path / "s.csv").write_text(text)
    done = process("-", "--format", "json", input=text.encode())
    assert done.returncode == 0
    content = json.loads(done.stdout)
    assert content["inputs"][0]["path"] == "-"
    assert content["rows"] == json.loads(run(tmp_path / "s.csv", "--format", "json").stdout)["rows"]


def test_flags_reach_the_forecast(tmp_path):
    rows = [
        row | {"other": -row["reward"], "chance": 0.5, "text": f"answer {i}"}
        for i, row in enumerate(rows_of(gold=False))
    ]
    for i, row in enumerate(rows):
        row["good"] = int(row["reward"] > 0) if i % 2 else ""
    (tmp_path / "s.csv").write_text(csv_of(rows))
    args = [
        tmp_path / "s.csv", "--reward-column", "reward:3", "--reward-column", "other:1", "--gold-column", "good",
        "--label-probability-column", "chance", "--answer-column", "text", "--beta", "9", "--tolerance", "0.2",
        "--reward-max", "30", "--gold-min", "-1", "--prompts", "fixed", "--format", "json",
    ]  # fmt: skip
    content = json.loads(run(*args).stdout)
    assert content["notes"][0] == "reward is 3 x reward + 1 x other"
    assert content["reference"]["reward"] == pytest.approx(2 * np.mean([row["reward"] for row in rows]), abs=1e-12)
    assert content["n_gold"] == 48
    unseen = content["unseen"]
    assert (unseen["tolerance"], unseen["reward_max"], unseen["gold_min"]) == (0.2, 30.0, -1.0)
    assert {row["answer"].split()[0] for row in content["answers"]} == {"answer"}
    standardised = ["--objective", "group-standardised", "--beta", "5", "--format", "json"]
    large = json.loads(run(tmp_path / "s.csv", *standardised).stdout)
    small = json.loads(run(tmp_path / "s.csv", *standardised, "--group-size", "2").stdout)
    assert large["objective"] == small["objective"] == "group-standardised"
    assert large["rows"][0]["kl"] != small["rows"][0]["kl"]


def test_no_gold_and_equal_scores_are_allowed_and_said(tmp_path):
    (tmp_path / "a.csv").write_text(csv_of(rows_of(gold=False)))
    (tmp_path / "b.csv").write_text(csv_of([row | {"reward": 0.1} for row in rows_of()]))
    for name, said in (
        ("a.csv", "The true quality was not measured"),
        ("b.csv", "gives every answer to a prompt the same"),
    ):
        result = run(tmp_path / name)
        assert result.exit_code == 0
        assert "Cannot tell." in result.stdout
        assert said in " ".join(result.stdout.split())


def test_a_few_prompts_with_one_answer_are_left_out_and_said(tmp_path):
    rows = [*rows_of(), {"prompt": "lonely", "reward": 1.0, "gold": 1}]
    (tmp_path / "s.csv").write_text(csv_of(rows))
    result = run(tmp_path / "s.csv")
    assert result.exit_code == 0
    assert "1 prompt with a single sample was left out (lonely)" in " ".join(result.stdout.split())


def test_require_range():
    assert run(*SHIPPED, "--require-range").exit_code == 0
    opposed = [EXAMPLE, *COLUMNS[:2], "--reward-column", "judge_score:-1", *COLUMNS[4:], "--reward-max", "0"]
    refused = process(*opposed, "--require-range", "--format", "json")
    assert refused.returncode == 1
    assert refused.stderr == b""
    assert json.loads(refused.stdout)["verdict"]["kind"] == "no-useful-range"  # the answer is there all the same
    assert run(*opposed).exit_code == 0


def test_require_range_without_gold(tmp_path):
    (tmp_path / "s.csv").write_text(csv_of(rows_of(gold=False)))
    assert run(tmp_path / "s.csv", "--require-range").exit_code == 1
    assert run(tmp_path / "s.csv").exit_code == 0


# ------------------------------------------------------------------------------------------------------------ bad input


def file(name, content):
    def make(folder):
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def parquet_cut_short(folder):
    pl.DataFrame(rows_of()).write_parquet(folder / "whole.parquet")
    (folder / "s.parquet").write_bytes((folder / "whole.parquet").read_bytes()[:-30])
    return folder / "s.parquet"


GOOD = file("s.csv", csv_of(rows_of()))
LINE = '{"prompt": "a", "reward": 1}\n'
TEXT = file("s.csv", "prompt,reward\na,1\na,high\n")
UNEQUAL = file(
    "s.jsonl", '{"prompt": "a", "reward": [1, 2], "gold": [1, 0]}\n{"prompt": "b", "reward": [1, 2], "gold": [1]}\n'
)
BAD = {
    "no samples": ([], "Missing argument 'SAMPLES...'"),
    "missing file": (["none.csv"], "none.csv: expected a file, got nothing there"),
    "empty file": ([file("s.csv", "")], "s.csv: file: expected rows, got an empty file (0 bytes)"),
    "only a header": ([file("s.csv", "prompt,reward\n")], "s.csv: file: expected rows, got none"),
    "missing column": (
        [GOOD, "--reward-column", "score"],
        "column 'score': expected in the file, got the columns prompt, reward, gold",
    ),
    "missing gold column": ([GOOD, "--gold-column", "glod"], "did you mean 'gold'?"),
    "no default column": ([file("s.csv", "id,score\n1,2\n")], "the columns id, score; name it with --prompt-column"),
    "text in a number": ([TEXT], "s.csv:3: reward: expected a number, got 'high'; mend or drop the row"),
    "text in gold": ([file("s.csv", "prompt,reward,gold\na,1,1\na,2,yes\n")], "s.csv:3: gold: expected a number"),
    "NaN reward": ([file("s.csv", "prompt,reward\na,1\na,nan\n")], "s.csv:3: reward is NaN"),
    "infinite reward": ([file("s.jsonl", LINE + LINE.replace("1}", "1e999}"))], "s.jsonl:2: reward is infinite"),
    "missing reward": ([file("s.csv", "prompt,reward\na,1\na,\n")], "s.csv:3: reward is missing"),
    "one sample each": (
        [file("s.csv", "prompt,reward\na,1\nb,2\n")],
        "a forecast needs at least two answers to the same prompt: got 2 prompts with a single answer",
    ),
    "truncated JSONL": ([file("s.jsonl", LINE + LINE[:18])], "s.jsonl:2: line: expected one JSON object, got broken"),
    "unequal lists": ([UNEQUAL], "s.jsonl:2: lists in one row: expected equal lengths, got reward 2, gold 1"),
    "unreadable Parquet": ([parquet_cut_short], "s.parquet: unreadable Parquet"),
    "no Parquet at all": ([file("s.parquet", "prompt,reward\n")], "s.parquet: unreadable Parquet (parquet:"),
    "bad label probability": (
        [file("s.csv", "prompt,reward,gold,label_probability\na,1,1,0.5\na,2,1,0\n")],
        "s.csv:3: label_probability: expected a probability above 0",
    ),
    "unknown flag": ([GOOD, "--bta", "3"], "unknown option --bta; did you mean --beta?"),
    "unknown flag value": ([GOOD, "--objective", "group-standardized"], "did you mean group-standardised?"),
    "unknown prompts": ([GOOD, "--prompts", "fxed"], "did you mean fixed?"),
    "unknown format": ([GOOD, "--format", "jsn"], "did you mean json?"),
    "negative beta": ([GOOD, "--beta", "-1"], "beta: expected"),
    "zero beta": ([GOOD, "--beta", "0"], "beta: expected a finite number above 0, got 0"),
    "NaN beta": ([GOOD, "--beta", "nan"], "beta: expected"),
    "infinite beta": ([GOOD, "--beta", "inf"], "beta: expected"),
    "text as beta": ([GOOD, "--beta", "x"], "'x' is not a valid float"),
    "reward max below the data": ([GOOD, "--reward-max", "0"], "reward_max: expected at least"),
    "gold min above the data": ([GOOD, "--gold-min", "0.5"], "gold_min: expected at most 0"),
    "negative tolerance": ([GOOD, "--tolerance", "-1"], "tolerance: expected a finite number at least 0"),
    "group size without its objective": ([GOOD, "--group-size", "8"], "group_size: expected with objective"),
    "group of one": ([GOOD, "--objective", "group-standardised", "--group-size", "1"], "group_size: expected"),
    "negative seed": ([GOOD, "--seed", "-1"], "seed: expected"),
    "weight that is no number": ([GOOD, "--reward-column", "reward:inf"], "weight of reward column 'reward'"),
    "a file twice": ([GOOD, GOOD], "the content of"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_exit_2_and_nothing_written(case, tmp_path):
    args, said = BAD[case]
    args = [arg(tmp_path) if callable(arg) else arg for arg in args]
    before = sorted(tmp_path.iterdir())
    form = [] if case == "unknown format" else ["--format", "json"]
    result = run(*args, *form, "--out", tmp_path / "answer.json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("kleash: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_bad_input_in_a_process_of_its_own(tmp_path):
    (tmp_path / "s.csv").write_text("prompt,reward\na,1\na,high\n")
    done = process("s.csv", "--out", "answer.txt", cwd=tmp_path, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kleash: s.csv:3: reward: expected a number, got 'high'; mend or drop the row\n"
    assert [path.name for path in tmp_path.iterdir()] == ["s.csv"]


def test_an_answer_that_cannot_be_written(tmp_path):
    result = run(*SHIPPED, "--beta", "10", "--out", tmp_path / "no" / "folder.json")
    assert result.exit_code == 2
    assert "expected a folder that exists" in result.stderr


def test_debug_shows_where(tmp_path):
    result = run(tmp_path / "none.csv", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("kleash: ")


def test_help_names_every_flag_of_the_contract():
    text = run("--help").stdout
    flags = (
        "reward-column gold-column prompt-column answer-column label-probability-column beta reward-max gold-min "
        "tolerance objective group-size prompts seed no-correction require-range format out"
    )
    for flag in flags.split():
        assert f"--{flag}" in text


def test_the_samples_are_never_written_over(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text(csv_of(rows_of()))
    before = path.read_bytes()
    (tmp_path / "link.csv").symlink_to(path)
    for out in (path, tmp_path / "link.csv"):
        result = run(path, "--out", out)
        assert result.exit_code == 2
        assert "is one of the files to read" in result.stderr
    assert path.read_bytes() == before
