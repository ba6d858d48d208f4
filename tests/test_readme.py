"""What the README shows is what the commands print."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from kleash.cli import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FORECAST = (
    "forecast examples/word_problems.csv --prompt-column task_id "
    "--reward-column judge_score --gold-column correct --reward-max 100 --gold-min 0"
)


@pytest.mark.parametrize("command", ["sweep", FORECAST])
def test_the_tables_of_the_readme_are_what_the_commands_print(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(cli, command.split())
    assert result.exit_code == 0
    table = [line for line in result.stdout.splitlines() if any(sign in line for sign in ("  0.", "   ", "──"))]
    assert len(table) > 5
    for line in table:
        assert line.rstrip() in README


def test_the_commands_of_the_readme_are_the_ones_tested():
    assert " ".join(README.replace("\\\n", " ").split()).count(FORECAST) == 1
    assert "$ kleash sweep " in README
