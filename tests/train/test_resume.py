"""A run that was killed, interrupted or stopped by a fault goes on as if nothing had been."""

import contextlib
import errno
import multiprocessing
import os
import random
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_run import STEPS, in_another_process, judge, run  # noqa: E402

from kleash.errors import ConfigError, DataError, KleashError, OptionError  # noqa: E402
from kleash.frontier import exact_frontier  # noqa: E402
from kleash.runs import read_run  # noqa: E402
from kleash.worlds import two_arm  # noqa: E402

CONTEXT = multiprocessing.get_context("forkserver")
# a server that has imported what takes seconds, once, and done nothing with it
CONTEXT.set_forkserver_preload(
    ["kleash.train.lm", *(f"transformers.models.{kind}.modeling_{kind}" for kind in ("llama", "qwen2", "gpt2"))]
)


def contents(folder):
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def go(folder, *options, until=None, patience=None):
    """A run in a process of its own, killed at the judge's call of that number or so long after it; its exit code."""
    listening, calls = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=in_another_process, args=(folder, options, calls))
    process.start()
    calls.close()
    count = 0
    with contextlib.suppress(EOFError):
        while count != until:
            count = listening.recv()
    process.join(timeout=patience)
    process.kill()
    process.join()
    return process.exitcode, count


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "r"
    run(out=folder, steps=STEPS)
    return contents(folder)


def test_after_three_kills_the_run_ends_as_the_unbroken_one(unbroken, tmp_path):
    folder, draw = tmp_path / "r", random.Random(0)
    for number in range(3):
        code, _ = go(folder, *["resume"] * bool(number), until=draw.randint(2, 11), patience=draw.uniform(0.0, 0.03))
        assert code == -signal.SIGKILL
    assert go(folder, "resume")[0] == 0
    assert contents(folder) == unbroken


@pytest.mark.slow
def test_after_ten_kills_at_any_time_too(unbroken, tmp_path):
    folder, draw, killed = tmp_path / "r", random.Random(1), 0
    for number in range(10):
        patience = draw.uniform(0.0, 0.2)
        killed += go(folder, *["resume"] * bool(number), until=1, patience=patience)[0] == -signal.SIGKILL
    assert killed > 5
    assert go(folder, "resume")[0] == 0
    assert contents(folder) == unbroken


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_keeps_the_steps_done(unbroken, tmp_path, name):
    assert go(tmp_path / "r", name) == (128 + getattr(signal, name), 7)
    assert not (tmp_path / "r" / "run.lock").exists()
    assert read_run(tmp_path / "r").load_checkpoint().step == 7  # the eighth was under way; every third is kept anyway
    assert go(tmp_path / "r", "resume") == (0, STEPS - 7 + 2)
    assert contents(tmp_path / "r") == unbroken


def test_a_judge_that_fails_leaves_a_run_to_go_on_with(tmp_path):
    calls = 0

    def failing(**columns):
        nonlocal calls
        calls += 1
        if calls == 5:
            raise DataError("the judge's own trouble")
        return judge(**columns)

    with pytest.raises(DataError, match="own trouble"):
        run(out=tmp_path / "r", judge=failing)
    assert read_run(tmp_path / "r").load_checkpoint().step == 4
    run(out=tmp_path / "r", resume=True)
    run(out=tmp_path / "whole")
    assert contents(tmp_path / "r") == contents(tmp_path / "whole")


@pytest.mark.parametrize("moment", ["checkpoint", "metrics"])
def test_a_full_disk_is_said_and_the_checkpoint_before_is_whole(tmp_path, monkeypatch, moment):
    room = 2

    def full(*_):
        nonlocal room
        room -= 1
        if room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if moment == "checkpoint":
        write = os.fsync

        def fsync(handle):
            if os.fstat(handle).st_size > 10_000:  # of the files here only checkpoints are as large
                full()
            write(handle)

        monkeypatch.setattr(os, "fsync", fsync)
    else:
        import kleash.runs

        room = 10

        def failing(path, mode):
            full()
            return open(path, mode)

        monkeypatch.setattr(kleash.runs, "open", failing, raising=False)
    with pytest.raises(KleashError, match="No space left on device") as caught:
        run(out=tmp_path / "r")
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    assert not list((tmp_path / "r").glob(".*tmp"))
    assert read_run(tmp_path / "r").load_checkpoint().step > 0
    run(out=tmp_path / "r", resume=True)
    run(out=tmp_path / "whole")
    assert contents(tmp_path / "r") == contents(tmp_path / "whole")


def test_an_interruption_within_an_update_falls_back_to_the_checkpoint(tmp_path, monkeypatch):
    from kleash.train.optimiser import GroupedAdam

    step, calls = GroupedAdam.step, 0

    def torn(self, rate):
        nonlocal calls
        calls += 1
        norm = step(self, rate)
        if calls == 5:
            raise KeyboardInterrupt
        return norm

    monkeypatch.setattr(GroupedAdam, "step", torn)
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "r")
    monkeypatch.undo()
    assert read_run(tmp_path / "r").load_checkpoint().step == 3
    run(out=tmp_path / "r", resume=True)
    run(out=tmp_path / "whole")
    assert contents(tmp_path / "r") == contents(tmp_path / "whole")


def test_a_finished_run_is_read_back_without_asking_anybody(tmp_path):
    first = run(out=tmp_path / "r", steps=3)
    first.run.finish(seed=0, results={}, metrics=None, frontier=exact_frontier(two_arm(), [1.0]))
    before = contents(tmp_path / "r")
    again = run(out=tmp_path / "r", steps=3, resume=True, judge=None, gold=None)
    assert again.origin == "read-back"
    assert again.metrics == first.metrics
    assert torch.equal(again.adapters.values, first.adapters.values)
    assert contents(tmp_path / "r") == before
    with pytest.raises(OptionError, match="--resume"):
        run(out=tmp_path / "r", steps=3)


@pytest.mark.parametrize(
    "changes", [{"steps": 4}, {"kind": "gpt2"}, {"learning_rate": 0.1}, {"samples": 5}, {"objective": "grpo"}], ids=str
)
def test_another_configuration_is_not_gone_on_with(tmp_path, changes):
    run(out=tmp_path / "r", steps=3)
    with pytest.raises(ConfigError, match="as in its run"):
        run(**({"out": tmp_path / "r", "steps": 3, "resume": True} | changes))


@pytest.mark.parametrize("trouble", ["empty", "foreign", "short"])
def test_a_checkpoint_that_cannot_be_used_is_named(tmp_path, trouble):
    from safetensors.numpy import save

    run(out=tmp_path / "r", steps=3)
    path = tmp_path / "r" / "checkpoint.safetensors"
    if trouble == "short":
        (tmp_path / "r" / "metrics.jsonl").write_text("")
    else:
        path.write_bytes(
            b"" if trouble == "empty" else save({}, metadata={"kleash": '{"step": 1, "metrics_bytes": 0}'})
        )
    with pytest.raises(DataError, match=r"metrics\.jsonl" if trouble == "short" else r"checkpoint\.safetensors"):
        run(out=tmp_path / "r", steps=3, resume=True)
