"""What trackers keep on a disk: real files read back, cut off at any byte, with any bit turned."""

import math
import shutil
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

from kleash.errors import DataError
from kleash.logs import RunLog, read_logs, survey
from kleash.logs.stores import store_of
from kleash.logs.stores._events import crc32c
from kleash.logs.stores._held import rows_of
from kleash.logs.stores._wire import fields

ROOT = Path(__file__).parents[1]
DATA = ROOT / "data" / "logs" / "tracked"
sys.path.insert(0, str(ROOT / "with_trl"))
from tracked_runs import SETTINGS, rows  # noqa: E402

FILES = {
    "tensorboard": "events.out.tfevents.1796099761.host.1.0",
    "wandb": "run-leash01.wandb",
    "swanlab": "leash.swanlab",
    "trackio": "trackio.db",
    "mlflow": "mlflow_run",
}
CHECKED = ("tensorboard", "wandb", "swanlab")  # those with a checksum for each record


def same(log: RunLog, *, single: bool) -> bool:
    """Whether a log holds the run that was written, number for number."""
    table = {(float(step), key): value for step, row in rows() for key, value in row.items()}
    read = {
        (float(step), key): float(value)
        for key, column in log.raw.items()
        if key.startswith(("train/", "eval/")) and key != "train/global_step"
        for step, value in zip(log.step, column, strict=True)
        if not math.isnan(value)
    }
    return read == {cell: float(np.float32(value)) if single else value for cell, value in table.items()}


@pytest.mark.parametrize("tracker", FILES)
def test_a_real_run_is_read_back_number_for_number(tracker):
    (log,) = read_logs(DATA / FILES[tracker])
    assert same(log, single=tracker == "tensorboard")
    assert (log.trainer, log.rows) == ("trl-grpo", 20)
    assert log.reward is not None
    assert [column.key for column in log.kl] == ["train/kl"]
    if tracker != "tensorboard":
        assert log.run == "leash"
        assert log.config == SETTINGS
    assert log.decimals["train/loss"] == 4


def test_a_folder_of_them_gives_each_run_once():
    found = {entry.path.name: len(entry.logs) for entry in survey(DATA) if entry.logs}
    assert found == dict.fromkeys(FILES.values(), 1)


@pytest.mark.parametrize("tracker", CHECKED)
def test_a_file_cut_off_anywhere_is_read_up_to_there(tracker, tmp_path):
    data = (DATA / FILES[tracker]).read_bytes()
    written = {(float(step), key): value for step, row in rows() for key, value in row.items()}
    counts = []
    for size in range(len(data) // 3, len(data), 487):
        file = tmp_path / FILES[tracker]
        file.write_bytes(data[:size])
        (log,) = read_logs(file)
        cells = {(s, k): v for k in ("train/kl", "eval/kl") for s, v in zip(log.step, log.raw.get(k, []), strict=False)}
        known = {cell: value for cell, value in cells.items() if not math.isnan(value)}
        assert known == {cell: pytest.approx(written[cell], rel=1e-6) for cell in known}
        counts.append(len(known))
    assert counts == sorted(counts)
    assert counts[0] < 12 < counts[-1]
    assert log.notes[0].endswith("ends in mid-record: read up to there")


@pytest.mark.parametrize("tracker", CHECKED)
def test_a_turned_bit_is_noticed_and_only_its_record_or_block_lost(tracker, tmp_path):
    data = bytearray((DATA / FILES[tracker]).read_bytes())
    at = data.rindex(b"train/kl") + 1  # inside the last record with a KL
    data[at] ^= 1
    file = tmp_path / FILES[tracker]
    file.write_bytes(data)
    (log,) = read_logs(file)
    assert any("checksum is wrong" in note for note in log.notes)
    assert np.isfinite(log.raw["train/kl"][:18]).all()
    assert not any(key not in (DATA / FILES[tracker]).read_bytes().decode("latin-1") for key in log.raw)


@pytest.mark.parametrize(("tracker", "keep"), [("wandb", 7), ("swanlab", 7), ("tensorboard", 64), ("trackio", 100)])
def test_nothing_but_a_line_comes_of_noise_behind_a_right_beginning(tracker, keep, tmp_path):
    noise = np.random.default_rng(5).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    file = tmp_path / FILES[tracker]
    file.write_bytes((DATA / FILES[tracker]).read_bytes()[:keep] + noise)
    with pytest.raises(DataError) as caught:
        read_logs(file)
    assert "\n" not in str(caught.value)


def test_a_database_is_not_touched(tmp_path):
    file = tmp_path / "run#1 %41.db"
    shutil.copy(DATA / FILES["trackio"], file)
    before = file.read_bytes()
    read_logs(file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_rows_that_a_writer_has_not_yet_moved_into_its_database_are_read(tmp_path):
    file = tmp_path / "live.db"
    shutil.copy(DATA / FILES["trackio"], file)
    with sqlite3.connect(file) as base:
        base.execute("PRAGMA journal_mode = WAL")
        (run,) = base.execute("SELECT DISTINCT run_id FROM metrics").fetchone()
        cells = (run, "now", "leash", 21, '{"train/kl": "NaN", "train/reward": 0.6}')
        base.execute("INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)", cells)
        base.commit()
        (log,) = read_logs(file)
    base.close()
    assert log.step[-1] == 21
    assert log.undefined["train/kl"] == (20,)


def test_a_view_in_a_database_is_not_run(tmp_path):
    file = tmp_path / "trap.db"
    with sqlite3.connect(file) as base:
        base.execute(
            "CREATE VIEW metrics AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n)"
            " SELECT id, 'r' run_id, 'r' run_name, id step, '{}' metrics FROM n"
        )
    base.close()
    with pytest.raises(DataError):
        read_logs(file)


def test_two_runs_of_one_name_in_mlflow_s_database_stay_two(tmp_path):
    file = tmp_path / "mlflow.db"
    with sqlite3.connect(file) as base:
        base.execute("CREATE TABLE runs (run_uuid TEXT, name TEXT, start_time INTEGER)")
        base.execute("CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT)")
        base.execute(
            "CREATE TABLE metrics (key, value REAL, timestamp INTEGER, run_uuid, step INTEGER, is_nan INTEGER)"
        )
        for index, run in enumerate(("a1", "b2")):
            base.execute("INSERT INTO runs VALUES (?, 'salt', ?)", (run, index))
            base.execute("INSERT INTO params VALUES ('beta', ?, ?)", (str(0.1 + index), run))
            for step in range(5):
                for key, value, undefined in (("reward", step / 4 + index, 0), ("kl", 0.0, step == 3)):
                    base.execute("INSERT INTO metrics VALUES (?, ?, 9, ?, ?, ?)", (key, value, run, step, undefined))
            base.execute("INSERT INTO metrics VALUES ('loss', -1.7976931348623157e308, 9, ?, 1, 0)", (run,))
    base.close()
    logs = read_logs(file)
    assert [(log.run, log.config["beta"], log.reward[0]) for log in logs] == [
        ("salt-a1", 0.1, 0.0),
        ("salt-b2", 1.1, 1.0),
    ]
    assert logs[0].undefined == {"kl": (3,)}
    assert logs[0].raw["loss"][1] == -math.inf


def test_event_files_of_a_restarted_run_follow_each_other(tmp_path):
    """TensorBoard's files lie in one folder: a run that began anew is a run, one that went on is a resume."""
    source = DATA / FILES["tensorboard"]
    shutil.copy(source, tmp_path / "events.out.tfevents.20.host")
    shutil.copy(source, tmp_path / "events.out.tfevents.100.host")
    assert [log.rows for log in read_logs(tmp_path)] == [20, 20]


def test_points_become_rows_in_either_order():
    """Step by step, or one series behind the other; a series that goes back begins a new part."""
    points = [(name, float(step), step + shift) for step in (1, 2, 2, 3) for name, shift in (("a", 0.0), ("b", 9.0))]
    wanted = [(1, 1, 10), (2, 2, 11), (2, 2, 11), (3, 3, 12)]
    for order in (points, sorted(points, key=lambda point: point[0])):
        found = [(r.step, r.values["a"][0], r.values["b"][0]) for r in rows_of(order)]
        assert found == wanted
    back = [("a", 1.0, 0.5), ("a", 2.0, 0.5), ("e", 2.0, 7.0), ("a", 1.0, 0.5), ("e", 3.0, 7.0), ("a", 3.0, 0.5)]
    assert [(r.step, sorted(r.values)) for r in rows_of(back)] == [
        (1, ["a"]),
        (2, ["a", "e"]),
        (1, ["a"]),
        (3, ["a", "e"]),
    ]


def test_checksums_are_those_of_the_standard():
    """RFC 3720, B.4, and one that is longer than a block."""
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"1") == 0x90F599E3
    assert crc32c(bytes(range(256)) * 9) == _slowly(bytes(range(256)) * 9)


def _slowly(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05abc", b"\x80" * 11, b"\x0b", b"\x09abc"])
def test_what_is_no_message_is_refused(data):
    with pytest.raises(ValueError, match="no message"):
        list(fields(data))


def test_a_file_of_another_kind_is_no_store(tmp_path):
    assert store_of(tmp_path, b"") is None
    assert store_of(Path("a.csv"), b"step,kl\n1,0\n") is None
