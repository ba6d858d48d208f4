"""Logs as they really are: cut off, resumed, mixed, coloured, packed, and files that are no logs."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from kleash.errors import DataError, DependencyError, KleashError, MissingColumnError, MissingFileError, OptionError
from kleash.logs import RunLog, read_logs

DATA = Path(__file__).parents[1] / "data" / "logs"


def verl(step: int, kl: float = 0.01, score: float = 0.5) -> str:
    row = {"actor/pg_loss": 0.1, "actor/kl_loss": kl, "critic/score/mean": score}
    return json.dumps({"step": step, "data": row}) + "\n"


def console(step: int, kl: float = 0.01, pid: int = 1) -> str:
    return f"(TaskRunner pid={pid}) step:{step} - actor/pg_loss:0.1 - actor/kl_loss:{kl} - critic/score/mean:0.5\n"


def put(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read_or_refused(path: Path) -> list[RunLog]:
    """The runs; none where the file is refused, which is always with a `DataError` of one line."""
    try:
        return read_logs(path)
    except DataError as error:
        message = str(error)
    assert "\n" not in message
    return []


# --------------------------------------------------------------------------------------------------------- cut off


def test_a_jsonl_row_cut_off_is_left_out(tmp_path: Path) -> None:
    (log,) = read_logs(put(tmp_path / "a.jsonl", verl(1) + verl(2) + verl(3)[:40]))
    assert log.step.tolist() == [1, 2]
    assert log.notes == ("line 3 is cut off: its last number or row is left out",)


def test_a_jsonl_row_cut_off_inside_its_last_brace_does_not_lose_its_step(tmp_path: Path) -> None:
    (log,) = read_logs(put(tmp_path / "a.jsonl", verl(1) + verl(2).strip()[:-1]))
    assert log.step.tolist() == [1]


def test_the_row_behind_a_row_that_a_crash_cut_off_is_kept(tmp_path: Path) -> None:
    (log,) = read_logs(put(tmp_path / "a.jsonl", verl(1) + verl(2)[:40] + verl(2, kl=0.5) + verl(3)))
    assert log.step.tolist() == [1, 2, 3]
    assert log.raw["actor/kl_loss"].tolist() == [0.01, 0.5, 0.01]
    (log,) = read_logs(put(tmp_path / "b.txt", console(1) + console(2)[:45] + console(2, kl=0.5) + console(3)))
    assert log.step.tolist() == [1, 2, 3]


def test_a_printed_dictionary_cut_off_is_left_out(tmp_path: Path) -> None:
    text = (
        "{'loss': 0.1, 'kl': 0.01, 'reward': 1.0, 'completions/mean_length': 3.0, 'epoch': 0.1}\n{'loss': 0.1, 'kl': 0."
    )
    (log,) = read_logs(put(tmp_path / "a.log", text))
    assert log.rows == 1
    assert any("cut off" in note for note in log.notes)


def test_a_trainer_state_cut_off_gives_the_rows_before(tmp_path: Path) -> None:
    text = (DATA / "trl_grpo_old.json").read_text(encoding="utf-8")
    cut = text[: text.index('"kl": 0.0229734') + 10]
    (log,) = read_logs(put(tmp_path / "trainer_state.json", cut))
    assert log.step.tolist() == [100]
    assert any("cut off" in note for note in log.notes)
    with pytest.raises(DataError, match="cut off before its first row"):
        read_logs(put(tmp_path / "trainer_state.json", text[: text.index("211.4")]))


def test_a_csv_row_cut_off_is_left_out(tmp_path: Path) -> None:
    (log,) = read_logs(put(tmp_path / "a.csv", "step,reward,kl\n1,0.5,0.1\n2,0.6,0.2\n3,0."))
    assert log.step.tolist() == [1, 2]


def test_a_csv_whose_last_number_may_be_cut_leaves_it_out(tmp_path: Path) -> None:
    (log,) = read_logs(put(tmp_path / "a.csv", "step,reward,kl\n1,0.5,0.1\n2,0.6,0.2"))
    assert log.raw["reward"].tolist() == [0.5, 0.6]
    assert np.isnan(log.raw["kl"][1])
    assert any("cut off" in note for note in log.notes)


_NO_LOG = {"README.md", "args.json", "plain.csv", "config.yaml"}
_FILES = [p for p in sorted(DATA.rglob("*")) if p.is_file() and p.name not in _NO_LOG and "mlflow_run" not in p.parts]


@pytest.mark.parametrize("source", _FILES, ids=lambda path: path.name)
def test_wherever_a_log_is_cut_off_it_says_nothing_wrong(source: Path, tmp_path: Path) -> None:
    data = source.read_bytes()
    whole = {log.run: log for log in read_logs(source)}
    for cut in np.linspace(1, len(data) - 1, 60).astype(int):
        path = put(tmp_path / source.name, data[:cut])
        for log in read_or_refused(path):
            full = whole.get(log.run, next(iter(whole.values())))
            for key in log.raw.keys() & full.raw.keys():
                for step, value in zip(log.step, log.raw[key], strict=True):
                    assert np.isnan(value) or value in full.raw[key][full.step == step], (cut, key, step)


@pytest.mark.parametrize("source", _FILES, ids=lambda path: path.name)
def test_damaged_bytes_are_read_or_refused(source: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    data = np.frombuffer(source.read_bytes(), dtype=np.uint8)
    for _ in range(25):
        hurt = data.copy()
        at = rng.integers(0, data.size, size=rng.integers(1, 12))
        hurt[at] = rng.integers(0, 256, size=at.size)
        read_or_refused(put(tmp_path / source.name, hurt.tobytes()))


def test_broken_lines_in_the_middle_are_counted(tmp_path: Path) -> None:
    (log,) = read_logs(put(tmp_path / "a.jsonl", verl(1) + '{"step": 2, "da\n' + verl(3)))
    assert log.step.tolist() == [1, 3]
    assert log.notes == ("1 broken line left out, the first is line 2",)


# ---------------------------------------------------------------------------------------------- numbers and no numbers


def test_nan_none_and_missing_are_told_apart(tmp_path: Path) -> None:
    rows = [
        '{"step": 1, "actor/kl_loss": NaN, "critic/score/mean": 0.1}',
        '{"step": 2, "actor/kl_loss": "nan", "critic/score/mean": 0.1}',
        '{"step": 3, "actor/kl_loss": null, "critic/score/mean": 0.1}',
        '{"step": 4, "actor/kl_loss": "None", "critic/score/mean": 0.1}',
        '{"step": 5, "critic/score/mean": 0.1}',
        '{"step": 6, "actor/kl_loss": Infinity, "critic/score/mean": 0.1}',
    ]
    (log,) = read_logs(put(tmp_path / "a.jsonl", "\n".join(rows) + "\n"))
    kl = log.raw["actor/kl_loss"]
    assert np.isnan(kl[:5]).all()
    assert kl[5] == np.inf
    assert log.undefined == {"actor/kl_loss": (0, 1)}


def test_a_kl_that_is_never_recorded_is_no_kl(tmp_path: Path) -> None:
    none = "".join(
        json.dumps({"step": s, "reward": 0.1, "kl": None, "completions/mean_length": 3}) + "\n" for s in (1, 2)
    )
    assert read_logs(put(tmp_path / "a.jsonl", none))[0].kl == ()
    zero = none.replace("null", "0.0")
    assert read_logs(put(tmp_path / "b.jsonl", zero))[0].kl[0].values.tolist() == [0, 0]  # logged as 0: a finding


def test_prefixes_do_not_matter(tmp_path: Path) -> None:
    row = {"step": 1, "kl": 0.1, "reward": 0.5, "loss": 0.2, "completions/mean_length": 7.0, "rewards/a/mean": 0.5}
    with_prefix = {key if key == "step" else f"train/{key}": value for key, value in row.items()}
    (plain,) = read_logs(put(tmp_path / "a.jsonl", json.dumps(row) + "\n"))
    (prefixed,) = read_logs(put(tmp_path / "b.jsonl", json.dumps(with_prefix) + "\n"))
    assert plain.trainer == prefixed.trainer == "trl-grpo"
    for log in (plain, prefixed):
        assert (log.kl[0].values[0], log.reward[0], log.losses["loss"][0], log.length[0]) == (0.1, 0.5, 0.2, 7.0)
        assert list(log.components) == ["a"]


# ------------------------------------------------------------------------------------------------- resumes and runs


def test_steps_again_after_a_resume_are_kept_as_a_segment(tmp_path: Path) -> None:
    steps = [1, 2, 3, 4, 5, 4, 5, 6]
    text = "".join(verl(s, kl=0.01 * i) for i, s in enumerate(steps))
    (log,) = read_logs(put(tmp_path / "a.jsonl", text))
    assert log.step.tolist() == steps
    assert log.segment.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert log.raw["actor/kl_loss"].tolist() == [0.01 * i for i in range(8)]
    assert any("from 5 to 4" in note for note in log.notes)


def test_a_resume_at_the_very_step_of_the_crash_is_a_segment(tmp_path: Path) -> None:
    (log,) = read_logs(put(tmp_path / "a.jsonl", verl(1) + verl(2) + verl(3, kl=0.3) + verl(3, kl=0.31)))
    assert log.segment.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("first", [0, 1, 7])
@pytest.mark.parametrize("each", [2, 3, 8])
def test_several_rows_per_step_are_no_resume(tmp_path: Path, first: int, each: int) -> None:
    """A row per minibatch; a step back among them is one."""
    steps = [step for step in range(first, first + 6) for _ in range(each)]
    text = "".join(verl(step, kl=0.001 * i) for i, step in enumerate(steps))
    (log,) = read_logs(put(tmp_path / "a.jsonl", text))
    assert log.step.tolist() == steps
    assert set(log.segment) == {0}
    assert any("several a step" in note for note in log.notes)
    again = "".join(verl(step, kl=0.5 + 0.001 * i) for i, step in enumerate(steps[3 * each :]))
    (log,) = read_logs(put(tmp_path / "b.jsonl", text + again))
    assert log.segment.tolist() == [0] * len(steps) + [1] * (3 * each)


def test_one_step_twice_among_two_is_a_resume(tmp_path: Path) -> None:
    (log,) = read_logs(put(tmp_path / "a.jsonl", verl(1) + verl(2, kl=0.3) + verl(2, kl=0.31)))
    assert log.segment.tolist() == [0, 0, 1]


def test_a_line_printed_twice_is_one_row(tmp_path: Path) -> None:
    (log,) = read_logs(put(tmp_path / "a.txt", console(1) * 2 + console(2) * 2))
    assert log.step.tolist() == [1, 2]
    assert any("printed twice" in note for note in log.notes)


def test_a_log_that_starts_late_and_resumes_is_one_run(tmp_path: Path) -> None:
    (log,) = read_logs(
        put(tmp_path / "a.jsonl", "".join(verl(s, kl=i) for i, s in enumerate((500, 501, 502, 500, 501))))
    )
    assert log.segment.tolist() == [0, 0, 0, 1, 1]


def test_runs_one_after_the_other_in_one_file_come_apart(tmp_path: Path) -> None:
    text = "".join(verl(s, kl=0.1) for s in (1, 2, 3)) + "".join(verl(s, kl=0.2) for s in (1, 2))
    first, second = read_logs(put(tmp_path / "mix.jsonl", text))
    assert (first.run, second.run) == ("mix", "mix#2")
    assert first.raw["actor/kl_loss"].tolist() == [0.1] * 3
    assert second.raw["actor/kl_loss"].tolist() == [0.2] * 2


def test_interleaved_runs_with_ids_come_apart(tmp_path: Path) -> None:
    rows = [{"step": s, "run_id": run, "reward": s + 10 * (run == "b"), "kl": 0.1} for s in (1, 2, 3) for run in "ab"]
    first, second = read_logs(put(tmp_path / "mix.jsonl", "".join(json.dumps(r) + "\n" for r in rows)))
    assert (first.run, second.run) == ("a", "b")
    assert first.reward.tolist() == [1, 2, 3]
    assert second.reward.tolist() == [11, 12, 13]


def test_a_run_with_an_id_that_starts_again_is_not_split(tmp_path: Path) -> None:
    rows = [{"step": s, "run": "a", "reward": float(i), "kl": 0.1} for i, s in enumerate((0, 1, 2, 0, 1))]
    (log,) = read_logs(put(tmp_path / "a.jsonl", "".join(json.dumps(r) + "\n" for r in rows)))
    assert log.segment.tolist() == [0, 0, 0, 1, 1]


def test_two_processes_at_once_are_two_runs_and_one_after_the_other_is_a_restart(tmp_path: Path) -> None:
    both = "".join(console(s, pid=p, kl=p / 100) for s in (1, 2, 3) for p in (7, 8))
    first, second = read_logs(put(tmp_path / "both.txt", both))
    assert first.raw["actor/kl_loss"].tolist() == [0.07] * 3
    assert second.raw["actor/kl_loss"].tolist() == [0.08] * 3
    after = "".join(console(s, pid=7) for s in (1, 2, 3, 4)) + "".join(console(s, pid=8) for s in (4, 5))
    (log,) = read_logs(put(tmp_path / "after.txt", after))
    assert log.step.tolist() == [1, 2, 3, 4, 4, 5]
    assert log.segment.tolist() == [0, 0, 0, 0, 1, 1]


def test_a_folder_gives_every_run_and_ignores_what_is_no_log(tmp_path: Path) -> None:
    put(tmp_path / "a" / "metrics.jsonl", verl(1) + verl(2))
    put(tmp_path / "b" / "console.log", console(1) + console(2))
    put(tmp_path / "b" / "config.json", '{"hidden_size": 64, "vocab_size": 100}')
    put(tmp_path / "b" / "notes.txt", "do not forget the milk\n")
    put(tmp_path / "b" / "empty.log", "")
    put(tmp_path / ".git" / "x.jsonl", verl(1))
    for count in (10, 20):
        rows = [{"step": step, "loss": 0.1, "kl": 0.1, "completion_length": 5.0} for step in range(5, count, 5)]
        state = json.dumps({"global_step": count, "log_history": rows})
        put(tmp_path / "c" / f"checkpoint-{count}" / "trainer_state.json", state)
    logs = read_logs(tmp_path)
    assert [Path(log.path).relative_to(tmp_path).parts[0] for log in logs] == ["a", "b", "c"]
    assert logs[2].step.tolist() == [5, 10, 15]
    assert logs[2].run == "c"


# ------------------------------------------------------------------------------------------------------------ bytes


def test_gzip_utf16_and_wrong_bytes(tmp_path: Path) -> None:
    text = "".join(console(s) for s in range(1, 200))
    for path in (
        put(tmp_path / "a.log.gz", gzip.compress(text.encode())),
        put(tmp_path / "b.log", text.encode("utf-16")),
        put(tmp_path / "c.log", text.replace("\n", "\r\n").encode("utf-8-sig")),
    ):
        (log,) = read_logs(path)
        assert log.step.tolist() == list(range(1, 200))
        assert log.notes == ()
    (log,) = read_logs(put(tmp_path / "d.log", b"caf\xe9\n" + text.encode()))
    assert log.rows == 199
    assert log.notes == ("1 bytes are not UTF-8 and were replaced",)


def test_a_gzip_that_ends_too_early_gives_what_it_has(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    packed = gzip.compress("".join(console(s, kl=float(rng.random())) for s in range(1, 25_000)).encode())
    (log,) = read_logs(put(tmp_path / "a.log.gz", packed[: len(packed) - 1000]))
    assert 1000 < log.rows < 25_000
    assert any("gzip" in note for note in log.notes)


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    (log,) = read_logs(put(tmp_path / "a.log", console(1) + "x" * (9 << 20) + "\n" + console(2)))
    assert log.step.tolist() == [1, 2]
    assert any("4 million" in note for note in log.notes)


# ------------------------------------------------------------------------------------------------------- not a log


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b"", "got an empty file"),
        ("a.jsonl", b"\n \n", "got blank lines only"),
        ("a.log", b"hello\nworld\n", "expected rows of metrics"),
        ("a.parquet", b"PAR1\0\0\0", "got a Parquet file"),
        ("a.bin", b"\x7fELF\0\0", "got binary data"),
        ("a.json", b'{"hidden_size": 64,\n "layers": [1]}', "expected log_history"),
        ("a.json", b'{"log_history": [], "global_step": 0}', "got an empty list"),
        ("a.jsonl", b'{"step": 1, "x": 2.0}\n{"step": 2, "x": 3.0}\n', "got keys step, x"),
        ("a.csv", b"step,x\n1,2\n", "got keys step, x"),
        ("a.jsonl", b'{"step": 1, "x\n{"step"\n', "2 broken lines and no row"),
        ("a.log.gz", b"\x1f\x8b\x08\x00junk", "gzip"),
        ("a.jsonl", b"".join(b'{"step": 0, "reward": %d}\n' % i for i in range(9)), "or map them"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = put(tmp_path / name, content)
    with pytest.raises(DataError, match=says) as caught:
        read_logs(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_wrong_arguments(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "step,reward,kl\n1,0.5,0.1\n2,0.6,0.2\n")
    with pytest.raises(MissingFileError, match="nothing there"):
        read_logs(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="none in 1 file"):
        read_logs(put(tmp_path / "empty" / "a.log", "hello\n").parent)
    with pytest.raises(OptionError, match="did you mean 'trl-grpo'"):
        read_logs(path, trainer="trl_grpo")
    with pytest.raises(MissingColumnError, match="did you mean 'reward'"):
        read_logs(path, gold="rewards")
    with pytest.raises(MissingColumnError, match="did you mean 'kl'"):
        read_logs(path, mapping={"kl": "kll"})
    with pytest.raises(OptionError, match="did you mean 'reward'"):
        read_logs(path, mapping={"rewards": "reward"})


def test_a_row_of_settings_in_front_is_configuration(tmp_path: Path) -> None:
    (log,) = read_logs(put(tmp_path / "a.jsonl", '{"kl_loss_coef": 0.002, "lr": 1e-6}\n' + verl(1) + verl(2)))
    assert log.step.tolist() == [1, 2]
    assert log.config == {"kl_loss_coef": 0.002}


@pytest.mark.parametrize(("megabytes", "beta"), [(3, 0.25), (5, None)])
def test_settings_beside_a_log_are_read_up_to_four_megabytes(
    tmp_path: Path, megabytes: int, beta: float | None
) -> None:
    put(tmp_path / "args.json", json.dumps({"beta": 0.25, "prompt": "x" * (megabytes << 20)}))
    (log,) = read_logs(put(tmp_path / "a.jsonl", verl(1) + verl(2)))
    assert log.config.get("beta") == beta


def test_a_trainer_that_the_keys_contradict_is_noted(tmp_path: Path) -> None:
    state = (DATA / "trl_grpo_old.json").read_text(encoding="utf-8")
    (log,) = read_logs(put(tmp_path / "a.json", state), trainer="openrlhf")
    assert log.trainer == "openrlhf"
    assert "read as openrlhf, as asked; the keys look like those of trl-grpo" in log.notes


@pytest.mark.parametrize("trainer", ["verl", "slime", "trl-ppo", "trl-dpo", "trlx"])
def test_a_trainer_of_whose_keys_the_log_has_none_is_refused(tmp_path: Path, trainer: str) -> None:
    state = (DATA / "trl_grpo_old.json").read_text(encoding="utf-8")
    with pytest.raises(DataError, match=f"expected keys of {trainer}, got those of trl-grpo; leave --trainer out"):
        read_logs(put(tmp_path / "a.json", state), trainer=trainer)
    put(tmp_path / "b.jsonl", verl(1) + verl(2))  # in a folder the others are read as what they are
    assert "verl" in [log.trainer for log in read_logs(tmp_path, trainer=trainer)]


def test_the_first_row_of_counted_steps_need_not_be_the_first_of_the_run(tmp_path: Path) -> None:
    rows = "".join(f"{{'loss': 0.1, 'kl': {0.1 + i}, 'reward': 1.0, 'epoch': {0.5 + i / 10}}}\n" for i in range(4))
    (log,) = read_logs(put(tmp_path / "a.log", rows))
    assert log.numbered
    (log,) = read_logs(put(tmp_path / "b.jsonl", verl(1) + verl(2)))
    assert not log.numbered


@pytest.mark.parametrize(
    "answer",
    ["Let alpha=3, beta=4.", "with beta=2,", "try --beta 3", "'beta': 0.5 is the slope", "target=6, horizon=10 in kl"],
)
def test_printed_answers_are_no_configuration(tmp_path: Path, answer: str) -> None:
    (log,) = read_logs(put(tmp_path / "a.log", f"{answer}\n{console(1)}{console(2)}"))
    assert log.config == {}


@pytest.mark.parametrize(
    ("line", "config"),
    [
        ("  beta=0.04,", {"beta": 0.04}),
        ("    'beta': 0.04,", {"beta": 0.04}),
        ("GRPOConfig(beta=0.04)", {"beta": 0.04}),
        ("python train.py --beta 0.04 \\", {"beta": 0.04}),
        ("    --beta 0.04 \\", {"beta": 0.04}),
        ("{'beta': 0.04, 'loss_type': 'grpo', 'horizon': 9}", {"beta": 0.04, "loss_type": "grpo", "horizon": 9}),
        ("use_kl_loss=True kl_loss_coef=0.002", {"use_kl_loss": True, "kl_loss_coef": 0.002}),
    ],
)  # fmt: skip
def test_printed_settings_are(tmp_path: Path, line: str, config: dict[str, object]) -> None:
    (log,) = read_logs(put(tmp_path / "a.log", f"{line}\n{console(1)}{console(2)}"))
    assert log.config == config


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "sep=;\nstep;reward;kl\n1;0,5;0,1\n2;0,25;1,5e-1\n"),
        ("a.csv", "Results of run 3, as exported\n\nstep,reward,kl\n1,0.5,0.1\n2,0.25,0.15\n"),
        ("a.txt", "# exported\n# twice\nstep,reward,kl\n1,0.5,0.1\n2,0.25,0.15\n"),
        ("a.tsv", "Exported\n\nstep\treward\tkl\n1\t0.5\t0.1\n2\t0.25\t0.15\n"),
    ],
)
def test_lines_before_a_header_and_decimal_commas(tmp_path: Path, name: str, text: str) -> None:
    (log,) = read_logs(put(tmp_path / name, text))
    assert log.raw["reward"].tolist() == [0.5, 0.25]
    assert log.raw["kl"].tolist() == [0.1, 0.15]


def test_an_integer_past_every_float_is_infinite(tmp_path: Path) -> None:
    big = "9" * 400
    (log,) = read_logs(put(tmp_path / "a.jsonl", f'{{"step": 1, "reward": {big}, "kl": -{big}}}\n' * 2))
    assert log.raw["reward"][0] == np.inf
    assert log.raw["kl"][0] == -np.inf


def test_k3_a_hair_below_zero_does_not_make_a_run_rloos(tmp_path: Path) -> None:
    def state(least: float) -> str:
        rows = [{"step": i, "loss": 0.1, "kl": 1e-3 * i or least, "reward": 0.1, "reward_std": 0.1} for i in range(5)]
        return json.dumps({"log_history": rows})

    for least, trainer in ((-7e-10, "trl-grpo"), (-6e-5, "trl-grpo"), (-2e-3, "trl-rloo")):
        (log,) = read_logs(put(tmp_path / "trainer_state.json", state(least)))
        assert log.trainer == trainer


def test_digits_of_four_significant_places_and_of_a_rounded_loss(tmp_path: Path) -> None:
    rows = "".join(
        f"{{'loss': '{loss}', 'kl': '{kl}', 'reward': '1', 'epoch': '0.{i}'}}\n"
        for i, (loss, kl) in enumerate((("0.0412", "0.1234"), ("0.05", "0.01234"), ("0.04", "1.234")), 1)
    )
    (log,) = read_logs(put(tmp_path / "a.log", rows))
    assert log.decimals["kl"] == 3  # the least: 1.234 is known to half a thousandth only
    history = [{"step": i, "loss": 0.01 * i, "kl": 0.1234567891 * i, "reward_std": 0.1} for i in range(1, 5)]
    (log,) = read_logs(put(tmp_path / "b.json", json.dumps({"log_history": history})))
    assert (log.decimals["loss"], log.decimals["kl"]) == (4, -1)  # the Trainer rounds to four, whatever is printed


def test_the_extremes_beside_a_mean_in_a_chart_of_wandb_are_no_values(tmp_path: Path) -> None:
    text = (
        '"Step","a - train/kl","a - train/kl__MIN","a - train/kl__MAX"\n"1","0.2","0.1","0.4"\n"2","0.3","0.1","0.5"\n'
    )
    (log,) = read_logs(put(tmp_path / "chart.csv", text), trainer="trl-grpo")
    assert log.raw["train/kl"].tolist() == [0.2, 0.3]


def test_slime_dumps_ask_for_torch(tmp_path: Path) -> None:
    path = put(tmp_path / "train_data" / "0.pt", b"PK\x03\x04")
    try:
        import torch  # noqa: F401
    except ImportError:
        with pytest.raises(DependencyError, match=r"kleash\[train\]"):
            read_logs(path)
    else:
        with pytest.raises(KleashError):
            read_logs(path)


class _Tensor:
    """As much of a tensor as a dump's reader asks for."""

    def __init__(self, values: list[float]) -> None:
        self._values = values

    def tolist(self) -> list[float]:
        return self._values


def test_slime_dumps_give_rewards_lengths_and_k1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def load(file: Path, *, map_location: str, weights_only: bool) -> dict[str, object]:
        asked.append(weights_only)
        up = float(Path(file).stem)
        return {
            "rollout_id": int(up),
            "rollout_data": {
                "raw_reward": [0.0, 1.0],
                "response_lengths": [2, 1],
                "log_probs": [_Tensor([-1.0 + up, -2.0]), _Tensor([-1.0])],
                "ref_log_probs": [_Tensor([-1.0, -2.0]), _Tensor([-1.5])],
                "loss_masks": [_Tensor([1, 0]), _Tensor([1])],
            },
        }

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load))
    for name in ("0.pt", "2.pt", "10.pt"):
        put(tmp_path / "train_data" / name, b"x")
    (log,) = read_logs(tmp_path)
    assert asked == [True] * 3
    assert log.trainer == "slime"
    assert log.step.tolist() == [0, 2, 10]
    assert log.reward.tolist() == [0.5] * 3
    assert log.length.tolist() == [1.5] * 3
    assert log.kl[0].values.tolist() == [0.25, 1.25, 5.25]
    assert log.kl[0].spec.unit == "nats per token"


# ------------------------------------------------------------------------------------------------------------ large

_READ = """
import resource, sys
from kleash.logs import read_logs
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(log,) = read_logs(sys.argv[1])
print(log.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_200_megabytes_of_console_text_in_bounded_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path, size, step = tmp_path / "big.log", 0, 0
    with open(path, "w", encoding="utf-8") as file:
        while size < 200 << 20:
            step += 1
            row = console(step).strip() + "".join(f" - timing_s/x{i}:{x}" for i, x in enumerate(rng.random(60)))
            noise = f"(WorkerDict pid=9) INFO {{'a': 1}} {'x' * 120}\n" * 40
            bars = "".join(f"\r {i}%|###   | {i}/100 [00:10<00:10, 1.0it/s]" for i in range(100))
            size += file.write(row + "\n" + noise + bars + "\n")
    done = subprocess.run([sys.executable, "-c", _READ, str(path)], capture_output=True, text=True, check=True)
    rows, kilobytes = map(int, done.stdout.split())
    assert rows == step
    assert kilobytes < 60_000  # of which the numbers themselves are 8 bytes * 63 keys * 15,000 rows = 8 MB
