"""``kleash report`` at the command line."""

import csv
import io
import json

import pytest
from click.testing import CliRunner

from kleash.cli import cli


def run(*arguments):
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


def test_a_page(files, tmp_path):
    out = tmp_path / "page.html"
    result = run(files["sweep_json"], files["forecast_json"], "-o", out, "--title", "My 'leash'")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "open it in a browser" in result.stderr
    page = out.read_text(encoding="utf-8")
    assert "<title>My &#39;leash&#39;</title>" in page
    assert "kleash report" in page


def test_the_terminal_shows_table_verdict_and_chart(files):
    result = run(files["sweep_json"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(result.stdout.split())
    assert "Useful range." in text
    assert "J judge's score" in text
    assert any(line.split()[:1] == ["reference"] and "J" in line for line in lines)


def test_a_check_on_the_terminal(files):
    result = run(files["check_json"])
    assert "1 problem found." in result.stdout
    assert "IDENTITY: the mean is 1.4" in result.stdout


def test_json_and_csv(files, sweep):
    content = json.loads(run(files["run"], files["check_json"], "--format", "json").stdout)
    assert content["schema"] == 1
    assert [row["gold"] for row in content["sources"][0]["rows"]] == sweep.frontier.gold.value.tolist()
    assert content["sources"][1]["findings"][0]["code"] == "IDENTITY"
    rows = list(csv.DictReader(io.StringIO(run(files["run"], "--format", "csv").stdout)))
    assert [float(row["kl"]) for row in rows] == sweep.frontier.kl.value.tolist()


def test_plots(files, tmp_path):
    result = run(files["sweep_json"], "--save-plots", tmp_path / "plots")
    assert (result.exit_code, result.stdout) == (0, "")
    assert (tmp_path / "plots" / "dial.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.json"], "nothing there"),
        ([], "Missing argument"),
        (["{run}", "--format", "json", "-o", "x.html"], "give one of them"),
        (["{sweep_json}", "-o", "{sweep_json}"], "one of the files to read"),
        (["{check_json}", "--format", "csv"], "no source has a table"),
        (["{run}", "-o", "{run}"], "one of the files to read"),
    ],
)
def test_wrong_use_is_one_line_and_two(arguments, words, files):
    before = {name: path.read_bytes() for name, path in files.items() if path.is_file()}
    result = run(*(argument.format(**files) for argument in arguments))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert {name: path.read_bytes() for name, path in files.items() if path.is_file()} == before
