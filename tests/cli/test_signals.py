"""A signal ends a command as Ctrl-C does: one line, the signal's exit code, nothing half written, no lock left."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from kleash.cli._signals import Ended, unwinding

COMMAND = [sys.executable, "-c", "from kleash.cli import main; main()"]
NAMES = ["SIGINT", "SIGTERM", "SIGHUP"]


def started(*arguments):
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends_as(process, number):
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("", 128 + number)
    return err


@pytest.mark.parametrize("name", NAMES)
def test_a_sweep_that_is_ended_can_be_taken_up(tmp_path, name):
    folder = tmp_path / "r"
    process = started("sweep", "--beta", "1", "--seeds", "200", "--out", str(folder))
    while not (folder / "run.json").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(getattr(signal, name))
    said = "interrupted" if name == "SIGINT" else f"ended by {name}"
    assert ends_as(process, getattr(signal, name)).splitlines()[-1] == (
        f"kleash: {said}; a run that was given --out can be taken up with --resume"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["run.json"]


def test_the_same_signal_twice_is_one_and_handlers_come_back():
    before, kept = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], []

    def work():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            kept.append(True)

    with pytest.raises(Ended) as caught, unwinding():
        work()
    assert (kept, caught.value.number) == ([True], signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_later_signal_ends_what_the_first_one_did_not(monkeypatch):
    monkeypatch.setattr("kleash.cli._signals._TWICE", 0.0)

    def deaf():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Ended:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Ended, match="SIGINT"), unwinding():
        deaf()


def test_what_somebody_else_does_with_a_signal_stays():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with unwinding():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


def test_in_another_thread_nothing_is_changed():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with unwinding():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_dies_of_it_as_usual():
    with unwinding():
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
