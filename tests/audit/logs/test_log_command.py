"""``kleash check`` on logs: kinds told by content, flags, JSON as promised, exit 2 for what is neither dump nor log."""

import io
import json
import os
import string
from pathlib import Path

import numpy as np
import pytest
from simulated_dumps import FAULTS, write_jsonl

from kleash import check, cli
from kleash.audit.findings import CheckedInput, Finding
from kleash.audit.table import report_view
from kleash.errors import MissingColumnError
from kleash.logs import read_logs
from kleash.terminal import to_text

ROW = {"grad_norm": 1.0, "completion_length": 200.0, "rewards/judge": 0.4, "rewards/accuracy": 0.3, "reward": 0.7}


@pytest.fixture
def run(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            cli.cli.main(["check", *map(str, arguments)])
        out = capsys.readouterr()
        return stop.value.code or 0, out.out, out.err

    return call


def state(folder, beta, *, rows=40, seed=0, gold=0.2):
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    history = []
    for i in range(rows):
        kl = 0.2 * beta**0.2 * i / rows * (1 + 0.05 * rng.random())
        reward = 0.3 + 0.3 * i / rows + 0.01 * rng.normal() - beta
        more = {"rewards/accuracy": 0.3 + gold * i / rows + 0.004 * rng.normal(), "rewards/judge": reward}
        history.append({"step": i + 1, "loss": round(beta * kl, 4), "kl": kl, **ROW, **more, "reward": reward})
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    return folder / "trainer_state.json"


def answer(run, *arguments):
    code, out, err = run(*arguments, "--format", "json")
    return code, json.loads(out), err


def test_dumps_logs_and_folders_side_by_side(run, tmp_path):
    log = state(tmp_path / "a", 0.04)
    state(tmp_path / "b", 0.1, seed=1)
    _, good = FAULTS["sampler has other weights"].make(np.random.default_rng(0), 64)
    write_jsonl(good, tmp_path / "rollouts.jsonl")
    code, data, _ = answer(run, log)
    assert (code, data["frontier"]) == (0, None)
    assert [i["kind"] for i in data["inputs"]] == ["log"]
    facts = data["inputs"][0]["facts"]
    assert facts["placement"] == "loss"
    assert facts["coefficient"]["lo"] <= 0.04 <= facts["coefficient"]["hi"]
    assert {"value", "lo", "hi", "from"} == set(facts["coefficient"])
    code, data, _ = answer(run, tmp_path)
    assert sorted(i["kind"] for i in data["inputs"]) == ["log", "log", "rollouts"]
    assert [row["beta"] for row in data["frontier"]["rows"]] == pytest.approx([0.04, 0.1], rel=0.05)
    assert data["frontier"]["source"] == "log"
    assert {f["input"] for f in data["findings"]} == {i["path"] for i in data["inputs"]}


def test_gold_is_named_by_a_flag(run, tmp_path):
    log = state(tmp_path / "a", 0.001, gold=0.0)
    assert run(log)[0] == 0
    code, data, _ = answer(run, log, "--gold", "accuracy")
    assert code == 1
    assert [f["code"] for f in data["findings"] if f["status"] == "problem"] == ["HACKING"]
    code, out, err = run(log, "--gold", "helpfulness")
    assert (code, out) == (2, "")
    assert "gold: expected the name of one column" in err


def test_gold_is_one_column_whoever_asks(run, tmp_path):
    """The flag, `check` and `read_logs` take a name for the same column, and refuse what may be several."""
    log = state(tmp_path / "a", 0.001, gold=0.0)
    (read,) = read_logs(log, gold="accuracy")
    assert read.gold_key == answer(run, log, "--gold", "accuracy")[1]["inputs"][0]["facts"]["gold"]
    assert np.array_equal(read.gold, read.raw["rewards/accuracy"])
    assert read_logs(log, gold="ACCURACY")[0].gold_key == read.gold_key
    for name in ("helpfulness", "rewards"):
        said = []
        for ask in (read_logs, check):
            with pytest.raises(MissingColumnError, match="gold: expected the name of one column") as caught:
                ask(log, gold=name)
            said.append(str(caught.value))
        assert said[0] == said[1]


def test_a_declared_or_configured_coefficient_is_held_against_the_log(run, tmp_path):
    log = state(tmp_path / "a", 0.04)
    assert run(log, "--beta", "0.04")[0] == 0
    assert run(log, "--beta", "0.4")[0] == 1
    config = tmp_path / "grpo.toml"
    config.write_text("beta = 0.4\n")
    assert run(log, "--config", config)[0] == 1
    config.write_text('beta = 0.04\nloss_type = "grpo"\nnum_generations = 8\n')
    assert run(log, "--config", config)[0] == 0
    config.write_text("betta = 0.4\n")
    assert run(log, "--config", config)[0] == 2


def test_trainer_settles_what_keys_leave_open(run, tmp_path):
    path = tmp_path / "log.jsonl"
    rows = [{"step": i, "kl": 0.001 * i, "reward": 0.5, "completions/mean_length": 50.0} for i in range(1, 9)]
    path.write_text("\n".join(map(json.dumps, rows)))
    units = {name: answer(run, path, "--trainer", name)[1]["inputs"][0]["facts"] for name in ("trl-grpo", "trl-rloo")}
    assert units["trl-grpo"]["penalty_kl_unit"] == "nats per token"
    assert units["trl-rloo"]["penalty_kl_unit"] == "nats per answer"
    code, _, err = run(path, "--trainer", "trl-gpro")
    assert code == 2
    assert "trl-grpo" in err


@pytest.mark.parametrize("content", ["hello\n", "a,b\n1,2\n", '{"a": 1}\n', "\x00\x01"])
def test_what_is_neither_is_exit_2(run, tmp_path, content):
    for name in ("x.txt", "x.json", "x.csv"):
        path = tmp_path / name
        path.write_text(content)
        code, out, err = run(path)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert str(path) in err


def test_the_table_of_a_log_fits(run, tmp_path):
    code, out, _ = run(state(tmp_path / "a", 0.04), "--gold", "accuracy")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80 or str(tmp_path) in out
    assert "trl-grpo" in out
    assert "penalty: loss" in out


@pytest.mark.parametrize("first", ["", "x"])
def test_advice_over_many_lines_loses_no_letter(first):
    fix = " ".join([*first, *string.ascii_letters * 4])
    finding = Finding(status="problem", message="m", code="SIGN", fix=fix, input="a")
    item = CheckedInput(path="a", kind="dump", trainer=None, rows=1, sha256="")
    text = to_text(report_view([item], [finding], "1 problem"))
    assert max(map(len, text.splitlines())) <= 80
    assert ("do:" + fix).replace(" ", "") in "".join(text.split())


def test_a_log_on_stdin(run, tmp_path, monkeypatch):
    class Stdin:
        def __init__(self, data):
            self.buffer = io.BytesIO(data)

    monkeypatch.setattr("sys.stdin", Stdin(state(tmp_path / "a", 0.04).read_bytes()))
    code, data, _ = answer(run, "-")
    assert code == 0
    assert [(i["path"], i["kind"], i["trainer"], i["rows"]) for i in data["inputs"]] == [("-", "log", "trl-grpo", 40)]
    monkeypatch.setattr("sys.stdin", Stdin(b"no numbers here\n"))
    code, out, err = run("-")
    assert (code, out) == (2, "")
    assert err.startswith(
        "kleash: -: input: expected a rollout dump (logp and ref_logp) or a training log, got neither"
    )
    long = json.dumps({"prompt": "x" * (1 << 20), "logp": [-0.5] * 9, "ref_logp": [-0.6] * 9}).encode()
    monkeypatch.setattr("sys.stdin", Stdin(long + b"\n"))
    assert [i["kind"] for i in answer(run, "-")[1]["inputs"]] == ["rollouts"]


def test_a_pipe_and_what_cannot_be_read_are_said_in_one_line(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    code, _, err = run(tmp_path / "pipe")
    assert code == 2
    assert err.endswith("got a pipe or device; pipe it in as -\n")
    if Path("/proc/self/mem").exists():
        assert run("/proc/self/mem") == (2, "", "kleash: /proc/self/mem: cannot be read: Input/output error\n")


def test_columns_of_a_plain_table_are_mapped_in_the_configuration(run, tmp_path):
    rows = "".join(f"{i},{0.3 + 0.01 * i},{0.2 + 0.01 * i},{0.001 * i}\n" for i in range(20))
    log = tmp_path / "a.csv"
    log.write_text("round,judge_score,humans,drift\n" + rows)
    code, _, err = run(log)
    assert code == 2
    assert "map them (columns in --config)" in err
    config = tmp_path / "a.toml"
    config.write_text(
        '[columns]\nstep = "round"\nreward = "judge_score"\ngold = "humans"\nkl = "drift"\nkl_unit = "nats per token"\n'
    )
    code, data, _ = answer(run, log, "--config", config)
    assert code == 0
    assert data["inputs"][0]["facts"]["logged_kl_unit"] == "nats per token"
    status = {f["code"]: f["status"] for f in data["findings"]}
    assert (status["HACKING"], status["STEP0_KL"]) == ("ok", "ok")
    config.write_text('[columns]\nreward = "judge_scores"\n')
    code, _, err = run(log, "--config", config)
    assert code == 2
    assert "did you mean 'judge_score'" in err
    config.write_text("columns = 3\n")
    assert "columns: expected a table of column names" in run(log, "--config", config)[2]


def test_every_code_that_a_log_can_get_is_in_the_catalogue(run, tmp_path):
    listed = {row["code"] for row in answer(run, "--list")[1]["log_checks"]}
    state(tmp_path / "a", 0.04)
    state(tmp_path / "b", 0.1, seed=1)
    found = {f["code"] for f in answer(run, tmp_path)[1]["findings"]}
    assert "SWEEP" in found
    assert found <= listed


def test_the_last_kl_is_said_in_one_number(run, tmp_path):
    """KL .02 a token at 200 tokens: 4 nats an answer, exp(4) = 55 answers; .0002: .04 nats, sqrt(.02) = 14 %."""
    far = "0.02 a token x 200 tokens = 4 nats an answer: a judge may gain all of its range; at least 55"
    near = "0.04 nats an answer: no judge gains more than 14 % of its range; at least 2 "
    for kl, said in ((0.02, far), (0.0002, near)):
        rows = [{"step": i + 1, "loss": 0.0, "kl": kl, **ROW} for i in range(6)]
        path = tmp_path / "trainer_state.json"
        path.write_text(json.dumps({"log_history": rows}))
        _, out, _ = run(path)
        assert said in " ".join(out.split())
    facts = answer(run, path)[1]["inputs"][0]["facts"]
    assert facts["kl_last_per_answer"] == pytest.approx(0.04)
    assert facts["gain_at_most"] == pytest.approx(0.02**0.5)
    rows = [{name: value for name, value in row.items() if name != "completion_length"} for row in rows]
    path.write_text(json.dumps({"log_history": rows}))
    assert "cannot tell without the length of answers" in " ".join(run(path)[1].split())
