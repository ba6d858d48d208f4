"""The published runs in examples/dpo_beta_sweeps: their table, and the report that lays them over each other."""

import runpy
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kleash.cli import cli

HERE = Path(__file__).parent.parent / "examples" / "dpo_beta_sweeps"
PAGE = Path(__file__).parent.parent / "docs" / "real-model.md"


def test_three_references_in_one_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["frontiers.py", "--out", str(tmp_path)])
    runpy.run_path(str(HERE / "frontiers.py"), run_name="__main__")
    printed = capsys.readouterr().out.strip()
    assert printed in PAGE.read_text("utf-8")
    assert "| 0.05 | 0.71 (17.6) | 1.39 (20.1) | 1.42 (29.9) |" in printed
    tables = sorted(map(str, tmp_path.glob("*.json")))
    assert len(tables) == 3
    page = tmp_path / "page.html"
    result = CliRunner().invoke(cli, ["report", *tables, "-o", str(page)])
    assert result.exit_code == 0, result.output
    shown = page.read_text("utf-8")
    assert all(name in shown for name in ("sft", "step-32400", "step-72000"))
