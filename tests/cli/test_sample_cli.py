"""``kleash sample``: files and pipes, the line at the end, and what is refused."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parents[1] / "sampling"))
from pantry import save_model  # noqa: E402

from kleash.cli import cli  # noqa: E402


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kitchen")
    save_model(folder / "model")
    rows = [
        "prompt,guest",
        *(f"cook {word},{guest}" for guest, word in zip("abcd", ("fish", "roast", "dill", "me"), strict=True)),
    ]
    (folder / "prompts.csv").write_text("\n".join(rows) + "\n")
    return folder


def run(*args, stdin=None):
    return CliRunner().invoke(cli, list(map(str, args)), input=stdin, catch_exceptions=False)


def asked(kitchen, *more):
    return ["sample", kitchen / "prompts.csv", "--model", kitchen / "model", "--judge", "length", *more]


def test_samples_go_straight_into_a_forecast(kitchen):
    drawn = run(*asked(kitchen, "-k", 12, "--max-new-tokens", 8, "--gold", "length", "-o", "-"))
    assert drawn.exit_code == 0
    rows = [json.loads(line) for line in drawn.stdout.splitlines()]
    assert len(rows) == 48
    assert {
        "prompt_id",
        "prompt",
        "answer",
        "reward",
        "length",
        "gold",
        "logp",
        "n_tokens",
        "source",
        "log_ratio",
    } <= set(rows[0])
    assert drawn.stderr.startswith("kleash: 48 answers to 4 prompts: ")
    assert len(drawn.stderr.splitlines()) == 1
    table = run("forecast", "-", "--format", "json", stdin=drawn.stdout)
    assert table.exit_code == 0
    content = json.loads(table.stdout)
    assert (content["n_prompts"], content["n_samples"], content["n_gold"]) == (4, 48, 48)


def test_the_last_line_tells_cost_and_next_command(kitchen, tmp_path):
    out = tmp_path / "my samples.parquet"
    done = run(*asked(kitchen, "-k", 4, "--max-new-tokens", 8, "-o", out))
    assert done.stdout == ""
    assert "16 answers to 4 prompts" in done.stderr
    assert "tokens/s)" in done.stderr
    assert done.stderr.rstrip().endswith(f"Next: kleash forecast '{out}'")
    again = run(*asked(kitchen, "-k", 5, "--max-new-tokens", 8, "-o", out, "--resume"))
    assert "20 answers to 4 prompts, 4 of them drawn now" in again.stderr
    refused = run(*asked(kitchen, "-k", 5, "--max-new-tokens", 8, "-o", out))
    assert refused.exit_code == 2
    assert "--resume" in refused.stderr


def test_prompts_come_from_standard_input_too(kitchen):
    stdin = json.dumps({"prompt": [{"role": "user", "content": "cook fish"}], "prompt_id": 4})
    done = run(
        "sample",
        "-",
        "--model",
        kitchen / "model",
        "--judge",
        "length",
        "-k",
        2,
        "-o",
        "-",
        "--max-new-tokens",
        4,
        stdin=stdin,
    )
    assert [json.loads(line)["prompt_id"] for line in done.stdout.splitlines()] == ["4", "4"]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("promt\ncook", "prompts.csv:2: columns: expected 'prompt', got promt; call the prompt's column so"),
        ("prompt,guest\n,b", "prompts.csv:2: column 'prompt': expected a text, got nothing"),
        ("prompt,prompt_id\na,1\nb,1", "prompt_id: expected one prompt each, got '1' twice"),
        ("prompt,guest\n", "prompts: expected a row per prompt, got no rows"),
    ],
)
def test_prompts_that_cannot_be_read_are_one_line(kitchen, tmp_path, content, match):
    (tmp_path / "prompts.csv").write_text(content)
    done = run(
        "sample",
        tmp_path / "prompts.csv",
        "--model",
        kitchen / "model",
        "--judge",
        "length",
        "-o",
        tmp_path / "s.jsonl",
    )
    assert done.exit_code == 2
    assert match in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "s.jsonl.journal").exists()


def test_a_file_of_another_kind_is_refused_before_anything_is_drawn(kitchen, tmp_path):
    done = run(*asked(kitchen, "-o", tmp_path / "samples.csv"))
    assert done.exit_code == 2
    assert "out: expected .parquet or .jsonl, got 'samples.csv'; write to samples.parquet" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_labels_by_hand_from_the_sheet_to_the_forecast(kitchen, tmp_path):
    out, sheet = tmp_path / "samples.parquet", tmp_path / "sheet.csv"
    first = asked(kitchen, "-k", 12, "--max-new-tokens", 8, "-o", out)
    done = run(*first, "--label-sheet", sheet, "--labels", 20)
    assert done.exit_code == 0
    assert f"20 answers to label in {sheet}" in done.stderr
    assert done.stderr.rstrip().endswith(f"Next: kleash sample -o {out} --merge {sheet}")
    lines = sheet.read_text().splitlines()
    at = lines[0].split(",").index("gold")
    assert at == 4
    filled = [",".join([*line.rsplit(",", 2)[:1], str(len(line) % 3), line.rsplit(",", 1)[1]]) for line in lines[1:]]
    sheet.write_text("\n".join([lines[0], *filled]) + "\n")
    assert "20 labels in" in run("sample", "-o", out, "--merge", sheet).stderr
    content = json.loads(run("forecast", out, "--format", "json").stdout)
    assert (content["n_samples"], content["n_gold"]) == (48, 20)
    before = out.read_bytes()
    assert run(*first, "--resume").exit_code == 0  # labels by hand stay
    assert out.read_bytes() == before
    refused = run(*asked(kitchen, "-k", 13, "--max-new-tokens", 8, "-o", out, "--resume"))
    assert "expected the answers that were labelled, got others" in refused.stderr
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["-o", "s.parquet"], "Missing argument 'PROMPTS'"),
        (["p.csv", "-o", "s.parquet"], "Missing option '--model'"),
        (["p.csv", "--model", "m", "-o", "s.parquet"], "Missing option '--judge'"),
        (["-o", "-", "--merge", "sheet.csv"], "expected -o FILE, got -o -"),
    ],
)
def test_what_is_missing_is_named(args, match):
    done = run("sample", *args)
    assert done.exit_code == 2
    assert match in done.stderr
