"""``kleash report`` at the command line."""

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kleash.cli import cli


def run(*arguments):
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


@pytest.mark.usefixtures("no_charts")
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
    assert (content["schema"], content["kind"]) == (2, "report")
    assert [row["gold"] for row in content["sources"][0]["rows"]] == sweep.frontier.gold.value.tolist()
    assert content["sources"][1]["findings"][0]["code"] == "IDENTITY"
    rows = list(csv.DictReader(io.StringIO(run(files["run"], "--format", "csv").stdout)))
    assert [float(row["kl"]) for row in rows] == sweep.frontier.kl.value.tolist()


@pytest.mark.usefixtures("no_charts")
def test_no_path_of_this_machine_is_on_the_page(files, tmp_path):
    """The sources, the samples behind a forecast and the page itself were all named by absolute paths here."""
    out = tmp_path / "page.html"
    assert run(files["run"], files["forecast_json"], "-o", out).exit_code == 0
    page = out.read_text(encoding="utf-8")
    for folder in (out.parent, files["run"].parent, Path(__file__).parents[2]):
        assert str(folder) not in page
    assert "kleash report run forecast.json -o page.html" in page
    assert "word_problems.csv, 2,880 rows" in page


@pytest.mark.usefixtures("no_charts")
def test_relative_paths_are_shown_as_they_were_given(files, tmp_path, monkeypatch):
    monkeypatch.chdir(files["run"].parent)
    assert run("./run", "-o", tmp_path / "page.html").exit_code == 0
    assert "kleash report ./run -o page.html" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_charts")
def test_from_stdin_to_stdout(files):
    result = CliRunner().invoke(cli, ["report", "-", "-o", "-"], input=files["sweep_json"].read_text())
    assert result.exit_code == 0
    assert result.stdout.startswith("<!doctype html>")
    assert "kleash report - -o -" in result.stdout
    assert not Path("-").exists()


def test_an_escape_in_a_path_does_not_reach_the_terminal(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["report", "no\x1b[31mway.json"])
    assert "\x1b" not in capsys.readouterr().err


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
