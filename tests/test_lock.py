"""One writer of a run folder: who is refused, what is stale, what is left behind."""

import contextlib
import errno
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import warnings
from datetime import UTC, datetime

import pytest

from kleash import _lock, sweep
from kleash._lock import Lock
from kleash.errors import KleashError, OptionError
from kleash.frontier import exact_frontier
from kleash.runs import open_run, read_run, written_alone
from kleash.worlds import two_arm

HOLDER = """
import sys
from pathlib import Path
from kleash._lock import Lock
lock = Lock(Path(sys.argv[1]), what="run")
lock.take()
print("held", flush=True)
sys.stdin.read()
"""


def lock(path):
    return Lock(path, what="run")


@contextlib.contextmanager
def held_by_another(path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def in_a_thread(call):
    found = []

    def go():
        try:
            call()
        except KleashError as error:
            found.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    return found


def test_another_process_is_refused_with_the_owners_number_host_and_time_and_its_death_frees(tmp_path):
    path = tmp_path / "run.lock"
    with held_by_another(path) as process:
        with pytest.raises(OptionError, match="expected nobody else writing it") as caught:
            lock(path).take()
        owner = json.loads(path.read_text())
        assert (owner["pid"], owner["host"]) == (process.pid, socket.gethostname())
        assert 0 <= (datetime.now(UTC) - datetime.fromisoformat(owner["since"])).total_seconds() < 60
        assert f"process {process.pid} on {socket.gethostname()}, since {owner['since']}; wait" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "delete" not in str(caught.value)
        assert json.loads(path.read_text()) == owner
    assert path.exists()  # a kill removes nothing
    mine = lock(path)
    mine.take()
    assert json.loads(path.read_text())["pid"] == os.getpid()
    mine.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"pid": "x"}', '{"pid": 1, "host": "elsewhere"}', "[" * 5000])
def test_a_file_without_a_lock_is_stale_whatever_it_holds(tmp_path, content):
    (tmp_path / "run.lock").write_text(content)
    mine = lock(tmp_path / "run.lock")
    mine.take()
    assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()
    mine.release()


def test_a_second_lock_takes_over_within_a_thread_and_not_from_another(tmp_path):
    first, second = lock(tmp_path / "run.lock"), lock(tmp_path / "run.lock")
    first.take()
    first.take()
    assert in_a_thread(second.take)
    assert first.held
    second.take()
    assert (first.held, second.held) == (False, True)
    first.release()
    assert (tmp_path / "run.lock").exists()
    second.release()


def test_the_lock_of_a_thread_that_ended_is_taken_over_and_one_forgotten_is_let_go(tmp_path):
    left, mine = lock(tmp_path / "run.lock"), lock(tmp_path / "run.lock")
    assert in_a_thread(left.take) == []
    assert left.held
    mine.take()
    del mine
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_removed_while_waiting_is_no_lock(tmp_path, monkeypatch):
    path, locked = tmp_path / "run.lock", _lock._locked
    looks = 0

    def removed_first(handle):
        nonlocal looks
        looks += 1
        if looks == 1:
            path.unlink()
        return locked(handle)

    monkeypatch.setattr(_lock, "_locked", removed_first)
    mine = lock(path)
    mine.take()
    assert looks == 2
    assert os.path.samestat(os.stat(path), os.fstat(mine._handle))
    mine.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_keeps_no_lock_alive(tmp_path):
    path = tmp_path / "run.lock"
    mine, context = lock(path), multiprocessing.get_context("fork")
    mine.take()
    go, ready = context.Event(), context.Event()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = context.Process(target=lambda: (ready.set(), go.wait()))
        child.start()
    assert ready.wait(10)
    os.close(mine._handle)  # what a kill does
    mine._handle = -1
    mine.held = False
    try:
        with held_by_another(path):
            pass
    finally:
        go.set()
        child.join()
    assert child.exitcode == 0


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "run.lock").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(KleashError, match=r"run\.lock: cannot be written"):
        lock(tmp_path / "run.lock").take()
    assert (tmp_path / "mine.txt").read_text() == "mine"


# ------------------------------------------------------------------------------- file systems that know no locks


@pytest.fixture
def no_locks(monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(_lock, "_SETTLED", 0.01)


def owner(**changes):
    return json.dumps({**_lock._myself(), "since": "2026-01-01T00:00:00+00:00", **changes})


@pytest.mark.usefixtures("no_locks")
def test_where_nothing_locks_the_owner_decides(tmp_path):
    path = tmp_path / "run.lock"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for stale in (owner(pid=ended.pid), owner(started="another boot 1"), owner(pid=-1), owner(pid=True), "{}", ""):
        path.write_text(stale)
        mine = lock(path)
        mine.take()
        mine.release()
        assert not path.exists()
    for alive, said in ((owner(), f"process {os.getpid()}"), (owner(host="other", pid=ended.pid), "delete run.lock")):
        path.write_text(alive)
        with pytest.raises(OptionError, match=said):
            lock(path).take()
        assert path.read_text() == alive


@pytest.mark.usefixtures("no_locks")
def test_where_nothing_locks_the_later_of_two_at_once_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "run.lock"
    monkeypatch.setattr(_lock.time, "sleep", lambda _: path.write_text(owner(host="other")))
    with pytest.raises(OptionError, match="on other"):
        lock(path).take()


# ------------------------------------------------------------------------------------------------------ run folders


def begun(path):
    run = open_run(path, kind="sweep", config={"a": 1})
    run.begin(seed=0)
    return run


def test_a_run_is_locked_from_its_beginning_to_its_end(tmp_path):
    run = begun(tmp_path / "r")
    for resume, said in ((True, "expected nobody else writing it"), (False, "--resume goes on")):
        found = in_a_thread(lambda r=resume: open_run(tmp_path / "r", kind="sweep", config={"a": 1}, resume=r))
        assert said in str(found[0])
    run.finish(seed=0, results={}, metrics=[], frontier=exact_frontier(two_arm(), 1.0))
    assert not (tmp_path / "r" / "run.lock").exists()
    (tmp_path / "r" / "run.lock").touch()  # a kill just before the lock was let go
    assert open_run(tmp_path / "r", kind="sweep", config={"a": 1}, resume=True).state == "finished"
    assert not (tmp_path / "r" / "run.lock").exists()


def test_of_two_that_begin_at_once_one_goes_on(tmp_path):
    both = [open_run(tmp_path / "r", kind="sweep", config={"a": 1}) for _ in range(2)]
    both[0].begin(seed=0)
    assert "nobody else" in str(in_a_thread(lambda: both[1].begin(seed=0))[0])
    both[0].lock.release()
    with pytest.raises(OptionError, match="got a run"):
        both[1].begin(seed=0)
    assert not (tmp_path / "r" / "run.lock").exists()


def test_a_folder_with_nothing_but_a_lock_left_is_new(tmp_path):
    (tmp_path / "run.lock").touch()
    assert open_run(tmp_path, kind="sweep", config={}).state == "new"


def test_a_run_that_another_finished_meanwhile_is_read_back(tmp_path, monkeypatch):
    run = begun(tmp_path / "r")
    take = Lock.take

    def meanwhile(self):
        run.finish(seed=0, results={}, metrics=[], frontier=exact_frontier(two_arm(), 1.0))
        take(self)

    monkeypatch.setattr(Lock, "take", meanwhile)
    assert open_run(tmp_path / "r", kind="sweep", config={"a": 1}, resume=True).state == "finished"
    assert not (tmp_path / "r" / "run.lock").exists()


def test_who_only_reads_a_running_run_changes_nothing(tmp_path):
    pytest.importorskip("safetensors")
    run = begun(tmp_path / "r")
    run.append_metrics([{"step": 0}])
    run.save_checkpoint(step=1, arrays={})
    run.append_metrics([{"step": 1}])
    before = (tmp_path / "r" / "metrics.jsonl").read_bytes()
    assert read_run(tmp_path / "r").load_checkpoint().step == 1
    assert (tmp_path / "r" / "metrics.jsonl").read_bytes() == before
    assert run.load_checkpoint().step == 1
    assert (tmp_path / "r" / "metrics.jsonl").read_bytes() != before
    run.lock.release()


@pytest.mark.parametrize("further", [False, True])
def test_the_lock_goes_at_the_end_of_the_block_or_with_a_failure(tmp_path, further):
    run = begun(tmp_path / "r")
    with written_alone(run, further=further):
        pass
    assert run.lock.held is further
    run.lock.take()
    with pytest.raises(KeyboardInterrupt), written_alone(run, further=further):
        raise KeyboardInterrupt
    assert not run.lock.held


def test_a_sweep_that_fails_leaves_no_lock(tmp_path):
    def stop(done, of):
        if done:
            raise KeyboardInterrupt

    asked = {"beta": [1.0], "steps": 20, "seeds": 1, "out": tmp_path / "r"}
    with pytest.raises(KeyboardInterrupt) as kept:  # with the frames of the failure, as a notebook keeps them
        sweep("kitchen", progress=stop, **asked)
    assert kept.tb is not None
    assert not (tmp_path / "r" / "run.lock").exists()
    assert sweep("kitchen", resume=True, **asked).origin == "trained-again"
