"""What goes wrong in a measurement never ends the training: it is kept, told once, and the weights are the same."""

import dataclasses
import errno
import json
import logging
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("trl")

import torch
from tiny_runs import Run, gold_values, score_of

from kleash._lock import Lock
from kleash.errors import DataError, KleashError, OptionError
from kleash.integrations import folder, kept, probe
from kleash.integrations.trl import KleashCallback
from kleash.runs import read_run
from kleash.trials.cases import puzzle


def fails(**_):
    raise RuntimeError("no more\ngold" + " at all" * 100)


FAULTS = {
    "raises": (fails, "RuntimeError: no more gold"),
    "short": (lambda completions, **_: [0.0] * (len(completions) - 1), "got 15 scores for 16 answers"),
    "inf": (lambda completions, **_: [math.inf] * len(completions), "expected finite scores, or None, got inf"),
    "none": (lambda **_: None, "expected a score per answer, got NoneType"),
    "strings": (lambda completions, **_: ["0.5"] * len(completions), "expected finite scores, or None, got 0.5"),
    "text": (lambda completions, **_: "x" * len(completions), "expected a score per answer, got str"),
    "lists": (lambda completions, **_: [[1.0]] * len(completions), "expected finite scores, or None, got [1.0]"),
    "huge": (lambda completions, **_: [10**400] * len(completions), "expected finite scores"),
    "mapping": (lambda completions, **_: dict.fromkeys(range(len(completions)), 0.0), "got dict"),
    "generator": (lambda completions, **_: (0.0 for _ in completions), "got generator"),
    "unprintable": (lambda **_: (_ for _ in ()).throw(UnprintableError()), "UnprintableError"),
}


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError("not even this")


def watched(tmp_path: Path, gold=None, **options) -> Run:
    """A run that is watched with a gold function; by default the right one."""
    run = Run(tmp_path, with_callback=False)
    right = score_of(run.world, gold_values(run.world))
    run.callback = KleashCallback(run.trainer, gold=gold or right, every=3, n_prompts=8, n_answers=2, **options)
    run.trainer.add_callback(run.callback)
    return run


def weights(run: Run):
    return run.policy.model.lm_head.weight.detach().clone()


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory):
    run = watched(tmp_path_factory.mktemp("unharmed"))
    run.trainer.train()
    return run


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_of_gold_is_kept_told_once_and_no_end(tmp_path: Path, caplog, unharmed: Run, name: str):
    bad, said = FAULTS[name]
    right = score_of(puzzle("words"), gold_values(puzzle("words")))
    calls = 0

    def gold(**columns):
        nonlocal calls
        calls += 1
        return right(**columns) if calls == 1 else bad(**columns)

    run = watched(tmp_path, gold)
    with caplog.at_level(logging.WARNING, logger="kleash"):
        run.trainer.train()
    assert torch.equal(weights(run), weights(unharmed))
    assert [row["gold"] is None for row in run.callback.metrics] == [False, True, True]
    for ours, theirs in zip(run.callback.metrics, unharmed.callback.metrics, strict=True):
        assert {k: v for k, v in ours.items() if "gold" not in k} == {
            k: v for k, v in theirs.items() if "gold" not in k
        }
    told = [record.getMessage() for record in caplog.records if record.name == "kleash"]
    assert len(told) == 1
    assert told[0].startswith("kleash: gold failed at step 3 (")
    assert said in told[0]
    assert "\n" not in told[0]
    assert len(told[0]) < 500
    assert [(row["step"], row["doing"]) for row in run.callback.troubles.rows] == [(3, "gold"), (6, "gold")]
    there = read_run(tmp_path / "out" / "kleash")
    assert there.state == "finished"
    lines = (tmp_path / "out" / "kleash" / "troubles.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == run.callback.troubles.rows
    assert any(said in note and "1 more in troubles.jsonl" in note for note in there.record["results"]["notes"])


def test_strict_ends_the_training_with_the_functions_own_error(tmp_path: Path):
    run = watched(tmp_path, fails, strict=True)
    with pytest.raises(RuntimeError, match="no more\ngold at all"):
        run.trainer.train()


def test_an_interruption_in_gold_is_no_trouble(tmp_path: Path):
    def gold(**_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(tmp_path, gold).trainer.train()


def full(monkeypatch: pytest.MonkeyPatch, *, at: set[int]) -> None:
    """A disk that is full at some steps; -1 is the end of the run."""
    step, write = [0], folder._files.write_atomic
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Torn:
        """A file that takes half of what it is given."""

        def __init__(self, path, mode, **options):
            self.file = open(path, mode, **options)  # noqa: SIM115  closed by __exit__

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def seek(self, *where):
            return self.file.seek(*where)

        def write(self, data):
            if step[0] in at and len(data) > 1:
                self.file.write(data[: len(data) // 2])
                raise error
            return self.file.write(data)

    def failing(path, content):
        if step[0] in at:
            raise KleashError(f"{path}: cannot be written: {error.strerror}")
        write(path, content)

    monkeypatch.setattr(folder._files, "write_atomic", failing)
    monkeypatch.setattr(kept, "open", lambda p, m, **o: (Torn if "a" in m else open)(p, m, **o), raising=False)
    keep = folder.Watched.keep

    def keeping(self, now, found):
        step[0] = now
        keep(self, now, found)

    finish = folder.Watched.finish

    def finishing(self, *given, **options):
        step[0] = -1
        finish(self, *given, **options)

    monkeypatch.setattr(folder.Watched, "keep", keeping)
    monkeypatch.setattr(folder.Watched, "finish", finishing)


def contents(run: Run):
    names = ("metrics.jsonl", "prompts.jsonl", "rollouts.jsonl", "scored.jsonl")
    return {name: (run.callback.folder / name).read_bytes() for name in names}


@pytest.mark.parametrize("at", [{0}, {3}, {6}, {0, 3, 6}])
def test_what_a_full_disk_did_not_take_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch, caplog, unharmed: Run, at: set[int]
):
    full(monkeypatch, at=at)
    run = watched(tmp_path)
    with caplog.at_level(logging.WARNING, logger="kleash"):
        run.trainer.train()
    monkeypatch.undo()
    assert torch.equal(weights(run), weights(unharmed))
    assert contents(run) == contents(unharmed)
    assert (run.callback.folder / "dial.json").exists()
    assert read_run(run.callback.folder).state == "finished"
    assert sorted({row["step"] for row in run.callback.troubles.rows}) == sorted(at)
    told = [record.getMessage() for record in caplog.records if record.name == "kleash"]
    assert len(told) == len({text.split(" failed")[0] for text in told}) == 2
    assert all("No space left on device" in text for text in told)


def test_a_disk_that_stays_full_costs_the_folder_and_nothing_else(tmp_path: Path, monkeypatch, unharmed: Run):
    full(monkeypatch, at={0, 3, 6, -1})
    run = watched(tmp_path)
    run.trainer.train()
    assert torch.equal(weights(run), weights(unharmed))
    assert run.callback.metrics == unharmed.callback.metrics
    assert {row["doing"] for row in run.callback.troubles.rows} >= {"writing the run folder", "finishing the run"}
    assert not (run.callback.folder / "run.lock").exists()


def test_a_folder_that_is_taken_away_is_no_end(tmp_path: Path, unharmed: Run):
    import shutil

    right = score_of(puzzle("words"), gold_values(puzzle("words")))

    def gold(trainer_state, **columns):
        if trainer_state.global_step == 3:
            shutil.rmtree(tmp_path / "out" / "kleash")
        return right(**columns)

    run = watched(tmp_path, gold)
    run.trainer.train()
    assert torch.equal(weights(run), weights(unharmed))
    assert read_run(run.callback.folder).metrics() == unharmed.callback.metrics


@pytest.mark.parametrize("when", [0, 1])
def test_a_measurement_that_fails_leaves_a_gap(tmp_path: Path, monkeypatch, unharmed: Run, when: int):
    draw, calls = probe.sample_answers, 0

    def failing(*given, **options):
        nonlocal calls
        calls += 1
        if calls - 1 == when:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return draw(*given, **options)

    monkeypatch.setattr(probe, "sample_answers", failing)
    run = watched(tmp_path)
    run.trainer.train()
    assert torch.equal(weights(run), weights(unharmed))
    left = [row for row in unharmed.callback.metrics if row["step"] != 3 * when]
    assert run.callback.metrics == left
    there = read_run(run.callback.folder)
    assert "CUDA out of memory" in " ".join(there.record["results"]["notes"])
    assert there.state == ("finished" if when else "interrupted")  # without the reference there is no table
    assert there.metrics() == left
    if not when:
        lines = (run.callback.folder / "rollouts.jsonl").read_text().splitlines()
        assert {json.loads(line)["source"] for line in lines} == {"step 3", "step 6"}
        assert not (run.callback.folder / "scored.jsonl").exists()  # nobody is asked for answers of another policy


def test_a_fault_on_one_of_two_processes_is_a_fault_on_both(tmp_path: Path, monkeypatch):
    run, sent = watched(tmp_path), []
    monkeypatch.setattr("accelerate.utils.gather_object", lambda part: sent.extend(part) or list(sent))

    def process(index: int, **changes):
        where = SimpleNamespace(process_index=index, num_processes=2)
        trainer = SimpleNamespace(accelerator=where, state=run.trainer.state)
        functions = dataclasses.replace(run.callback.functions, **changes)
        return dataclasses.replace(run.callback.probe, trainer=trainer, functions=functions)

    with pytest.raises(KleashError, match="a process has no answers"):
        process(1, gold=fails).look(seed=0, strict=False)  # what the other has sent is not there yet
    found, faults = process(0).look(seed=0, strict=False)
    assert [doing for doing, _ in faults] == ["gold"]
    assert found["gold"] == [None] * 8
    assert None not in found["reward"] + found["kl"] + found["length"]


def test_weights_that_are_restored_and_cannot_be_measured_anew_have_their_first_numbers(tmp_path: Path):
    right, calls = score_of(puzzle("words"), gold_values(puzzle("words"))), 0

    def gold(**columns):
        nonlocal calls
        calls += 1
        return right(**columns)

    run = watched(tmp_path, gold, restore_best=True)
    look = run.callback.probe.look

    def failing(**options):
        if calls == 3:
            raise RuntimeError("gone")
        return look(**options)

    object.__setattr__(run.callback.probe, "look", failing)
    run.trainer.train()
    there = read_run(run.callback.folder)
    best = there.record["results"]["best_step"]
    assert "measuring them anew failed" in " ".join(there.record["results"]["notes"])
    row = next(row for row in run.callback.metrics if row["step"] == best)
    assert there.frontier().kl.value[0] == pytest.approx(row["kl"])


def test_troubles_up_to_the_checkpoint_are_kept_by_a_resume(tmp_path: Path):
    options = {"save_strategy": "steps", "save_steps": 3, "callback": {"gold": "quality"}}
    first = Run(tmp_path, steps=6, **options)
    first.callback.troubles.rows += [{"step": s, "doing": "gold", "error": "x"} for s in (3, 6)]
    first.trainer.train()
    again = Run(tmp_path, name="again", steps=9, **options)
    again.trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert [row["step"] for row in again.callback.troubles.rows] == [3]


def test_a_run_that_another_is_writing_is_refused_before_the_first_step_and_left_alone(tmp_path: Path):
    options = {"save_strategy": "steps", "save_steps": 3}
    first = Run(tmp_path, steps=6, **options)
    first.trainer.train()
    before = contents(first)
    other = Lock(first.callback.folder / "run.lock", what="the other")
    again = Run(tmp_path, name="again", steps=9, **options)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(other.take).result()
        with pytest.raises(OptionError, match="expected nobody else writing it"):
            again.trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    other.release()
    assert contents(first) == before


def test_a_broken_file_of_measurements_is_named_before_the_first_step(tmp_path: Path):
    options = {"save_strategy": "steps", "save_steps": 3}
    Run(tmp_path, steps=3, **options).trainer.train()
    (tmp_path / "out" / "kleash" / "prompts.jsonl").write_text("[1]\n")
    again = Run(tmp_path, name="again", steps=6, **options)
    with pytest.raises(DataError, match=r"prompts\.jsonl:1: is no measurement"):
        again.trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))


def test_gold_of_numpy_and_torch_are_numbers(tmp_path: Path):
    run = Run(tmp_path, with_callback=False)
    for values in (np.float32([0.5] * 8), torch.full((8,), 0.5), [np.int64(1)] * 8, [True] * 8):
        callback = KleashCallback(run.trainer, gold=lambda v=values, **_: v, n_prompts=4, n_answers=2)
        assert callback.measure()["gold"] == [float(values[0])] * 4
