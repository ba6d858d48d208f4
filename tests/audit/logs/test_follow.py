"""A log that is still being written: findings as they appear, and when to stop."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kleash.audit.follow import Follower, events, run_command
from kleash.cli import cli
from kleash.errors import OptionError


def row(step, *, kl=0.001, reward=0.5, gold=0.4):
    keys = {"actor/pg_loss": 0.1, "actor/kl_loss": kl, "critic/score/mean": reward, "response_length/mean": 100.0}
    return json.dumps({"step": step, "data": {**keys, "gold": gold}}) + "\n"


def grown(path: Path, pieces, **options):
    """Follow while a writer appends a piece at every pause."""
    waiting = list(pieces)

    def pause(seconds):
        if waiting:
            with open(path, "a", encoding="utf-8") as file:
                file.write(waiting.pop(0))

    follower = Follower(path=path, **options)
    return follower, list(events(follower, idle=3, pause=pause, every=1))


def test_a_log_that_is_not_there_yet_and_a_half_written_line(tmp_path):
    path = tmp_path / "run.jsonl"
    text = "".join(row(i) for i in range(1, 9))
    follower, told = grown(path, [text[:30], text[30:200], text[200:]])
    assert [event.kind for event in told if event.kind != "wait"] == []
    assert told[0].text == "waiting for the log"
    assert (follower.stopped, follower.problems) == (None, set())


def test_a_problem_is_told_once_and_when_it_is_gone(tmp_path):
    path = tmp_path / "run.jsonl"
    bad = "".join(row(i, kl=float("nan")) for i in range(5, 8))
    follower, told = grown(path, ["".join(row(i) for i in range(1, 5)), bad, row(9, kl=0.002), row(10)])
    found = [event for event in told if event.kind == "finding" and event.code == "NON_FINITE"]
    assert len(found) == 1
    assert found[0].step == 7
    assert found[0].reward == 0.5
    assert "NON_FINITE" in follower.problems
    path.unlink()
    _, told = grown(path, ["".join(row(i) for i in range(1, 5))], problems={"NON_FINITE"})
    assert [(e.code, e.text) for e in told if e.kind == "finding"] == [("NON_FINITE", "no longer a problem")]


def test_a_budget_of_kl_is_in_nats_per_answer_and_one_row_is_no_reason(tmp_path):
    """100 tokens: .013 a token are 1.3 nats an answer; the median of three rows is held against the budget."""
    path = tmp_path / "run.jsonl"
    rows = [row(i, kl=0.0001 * i) for i in range(1, 9)]
    _, told = grown(path, ["".join(rows), row(9, kl=0.02), row(10, kl=0.001), row(11, kl=0.001)], kl_budget=1.3)
    assert [event.kind for event in told] == ["wait"]
    path.unlink()
    follower, told = grown(path, ["".join(rows), *(row(i, kl=0.0131) for i in (9, 10, 11))], kl_budget=1.3)
    assert (follower.stopped, told[-1].kind, told[-1].kl) == ("KL_BUDGET", "stop", pytest.approx(1.31))


def test_gold_below_its_best_stops_after_three_looks(tmp_path):
    rng = np.random.default_rng(0)
    gold = np.concatenate([np.linspace(0.3, 0.8, 30), np.linspace(0.8, 0.2, 40)]) + 0.01 * rng.normal(size=70)
    judge = np.linspace(0.2, 0.9, 70)
    pieces = [row(i + 1, kl=0.0001 * i, reward=judge[i], gold=gold[i]) for i in range(70)]
    path = tmp_path / "run.jsonl"
    follower, told = grown(path, ["".join(pieces[:30]), *pieces[30:]], options={"gold": "gold"})
    assert follower.stopped == "GOLD_PEAK"
    assert 35 < told[-1].step < 70
    path.unlink()
    rising = [row(i + 1, kl=0.0001 * i, reward=judge[i], gold=judge[i]) for i in range(70)]
    follower, _ = grown(path, ["".join(rising[:30]), *rising[30:]], options={"gold": "gold"})
    assert follower.stopped is None


def test_a_budget_without_a_kl_is_said_once(tmp_path):
    path = tmp_path / "run.jsonl"
    rows = [row(i).replace("actor/kl_loss", "actor/other") for i in range(1, 12)]
    follower, told = grown(path, ["".join(rows[:9]), *rows[9:]], kl_budget=1.0)
    assert [event.text for event in told if "budget" in event.text] == [
        "no KL in this log so far: the budget holds nothing"
    ]
    assert follower.stopped is None


def test_another_file_under_the_name_is_another_run(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text("".join(row(i, kl=float("nan")) for i in range(1, 5)))
    follower = Follower(path=path)
    assert [event.code for event in follower.look()] == ["NON_FINITE"]
    assert list(follower.look()) == []
    path.write_text(row(1) + row(2))
    assert [event.kind for event in follower.look()] == []
    assert follower.problems == set()


def test_what_cannot_be_followed(tmp_path):
    with pytest.raises(OptionError, match="got a folder"):
        Follower(path=tmp_path)
    with pytest.raises(OptionError, match="got standard input"):
        Follower(path=Path("-"))
    with pytest.raises(OptionError, match="kl_budget"):
        Follower(path=tmp_path / "a", kl_budget=0.0)
    path = tmp_path / "run.csv"
    path.write_text("step,reward,kl\n1,0.5,0.1\n2,0.5,0.1\n")
    with pytest.raises(OptionError, match="a KL per answer in the log, got a KL of no known unit"):
        list(Follower(path=path, kl_budget=1.0).look())


def test_the_command_prints_lines_runs_what_is_asked_and_ends_with_1(tmp_path, capsys):
    path, flag = tmp_path / "run.jsonl", tmp_path / "a flag; rm"
    path.write_text("".join(row(i, kl=0.02) for i in range(1, 9)))
    stop = ["--kl-budget", "1.3", "--on-stop", f"touch '{flag}'", "--idle", "0"]
    with pytest.raises(SystemExit) as end:
        cli.main(["check", str(path), "--follow", *stop])
    out = capsys.readouterr().out
    assert end.value.code == 1
    assert flag.exists()
    assert "step 8, judge 0.5, KL 2: KL_BUDGET: 2 nats an answer, of a budget of 1.3" in out
    with pytest.raises(SystemExit) as end:
        cli.main(
            ["check", str(path), "--follow", "--kl-budget", "1.3", "--on-stop", "no-such-program", "--format", "json"]
        )
    found = capsys.readouterr()
    assert json.loads(found.out.splitlines()[-1])["code"] == "KL_BUDGET"
    assert "on-stop: no-such-program" in found.err
    path.write_text("".join(row(i) for i in range(1, 9)))
    with pytest.raises(SystemExit) as end:
        cli.main(["check", str(path), "--follow", "--idle", "0"])
    assert (end.value.code or 0) == 0
    out = str(tmp_path / "o.json")
    for wrong in (["a", "b", "--follow"], ["a", "--kl-budget", "1"], [str(path), "--follow", "--out", out]):
        with pytest.raises(SystemExit) as end:
            cli.main(["check", *wrong])
        assert end.value.code == 2


def test_a_command_is_run_without_a_shell():
    assert run_command("true") is None
    assert run_command("false") == "on-stop: false: exit code 1"
    assert "No closing quotation" in run_command("touch 'a")
