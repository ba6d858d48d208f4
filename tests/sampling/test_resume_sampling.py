"""What was drawn and judged is kept, whatever ends the process; nothing is drawn or asked twice."""

import json
import multiprocessing
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from pantry import LENGTH, PROMPTS, in_another_process, salt, save_model, variety  # noqa: E402

from kleash.errors import DataError, OptionError  # noqa: E402
from kleash.sampling.journal import Answer, Journal  # noqa: E402
from kleash.sampling.run import sample  # noqa: E402

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["kleash.sampling.local", "transformers.models.llama.modeling_llama"])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "small")


def go(model, out, *, resume, until, patience):
    """A run in a process of its own, killed so long after that many calls of the judge; its exit code and the calls."""
    listening, calls = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=in_another_process, args=(model, out, resume, calls))
    process.start()
    calls.close()
    told = []
    try:
        while len(told) != until:
            told.append(listening.recv())
    except EOFError:
        pass
    process.join(timeout=patience)
    process.kill()
    process.join()
    return process.exitcode, told


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def compare(frame, expected):
    """The same but for the last digits of the log-probabilities."""
    assert frame.drop("logp").equals(expected.drop("logp"))
    assert frame["logp"].explode().to_list() == pytest.approx(expected["logp"].explode().to_list(), abs=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_after_kills_at_any_moment_the_samples_are_those_of_one_run(model, tmp_path, seed):
    expected = sample(PROMPTS, model=model, judge={"salt": salt}, gold=variety, k=5, max_new_tokens=LENGTH).frame
    out, draw, calls, killed = tmp_path / "samples.parquet", random.Random(seed), [], 0
    for number in range(4):
        until = draw.randint(1, 3)
        code, told = go(model, out, resume=number > 0, until=until, patience=draw.uniform(0, 0.02))
        killed += code == -signal.SIGKILL
        calls += told
    code, told = go(model, out, resume=True, until=None, patience=60)
    assert killed >= 2
    assert code == 0
    compare(pl.read_parquet(out), expected)
    records = [line for line in read(tmp_path / "samples.parquet.journal") if "answer" in line]
    places = [(line["answer"]["prompt"], line["answer"]["draw"]) for line in records]
    assert len(places) == len(set(places)) == len(PROMPTS) * 5
    assert len(calls + told) <= len(PROMPTS) + killed  # what was under way at a kill is asked again, nothing else


def test_a_torn_line_is_cut_off_wherever_it_is_torn(tmp_path):
    path, asked = tmp_path / "j", {"seed": 0}
    journal = Journal.opened(path, asked=asked, resume=False)
    journal.add([Answer(prompt="a", draw=d, text=f"salt\n{d}", n_tokens=2, logp=[-0.5, -1.5]) for d in range(2)])
    journal.judged("salt", "a", {0: 1.0, 1: 2.0})
    journal.close()
    whole = path.read_bytes()
    ends = [i for i, byte in enumerate(whole) if byte == 10]
    for size in sorted({*range(0, len(whole), 40), *ends, *(end + 1 for end in ends)}):
        path.write_bytes(whole[:size])
        journal = Journal.opened(path, asked=asked, resume=True)
        lines = sum(end < size for end in ends)
        assert len(journal.answers) == max(0, min(lines, 3) - 1)
        assert len(journal.scores) == 2 * (lines == 4)
        journal.add([Answer(prompt="b", draw=0, text="", n_tokens=1)])
        journal.close()
        assert list(read(path)[0]) == ["schema", "asked"]


def test_a_finished_run_is_read_back_and_more_can_be_asked_of_it(model, tmp_path, monkeypatch):
    out = tmp_path / "samples.jsonl"
    first = sample(PROMPTS, model=model, judge=salt, k=3, max_new_tokens=LENGTH, out=out)
    with pytest.raises(OptionError, match="expected no journal yet, got one; go on with it by --resume"):
        sample(PROMPTS, model=model, judge=salt, k=3, max_new_tokens=LENGTH, out=out)
    monkeypatch.setattr("kleash.sampling.local.load_model", pytest.fail)
    again = sample(PROMPTS, model=model, judge=salt, k=3, max_new_tokens=LENGTH, out=out, resume=True)
    assert again.drawn == 0
    assert again.frame.equals(first.frame)
    more = sample(
        PROMPTS[:4], model=model, judge=[salt, "length"], gold=variety, k=2, max_new_tokens=LENGTH, out=out, resume=True
    )
    assert more.frame.height == len(read(out)) == 8
    assert more.frame["reward"].to_list() == (more.frame["salt"] + more.frame["length"]).to_list()
    monkeypatch.undo()
    larger = sample(PROMPTS, model=model, judge=salt, k=4, max_new_tokens=LENGTH, out=out, resume=True)
    assert larger.drawn == len(PROMPTS)
    afresh = sample(PROMPTS, model=model, judge=salt, k=4, max_new_tokens=LENGTH)
    compare(larger.frame, afresh.frame)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"seed": 1}, "seed: expected 0 as in .*journal, got 1"),
        ({"max_new_tokens": 5}, "max_new_tokens: expected 12"),
        ({"model": "other"}, "model: expected 'small"),
    ],
)
def test_draws_of_other_settings_are_not_mixed(model, tmp_path, changes, match):
    asked = {"model": model, "judge": salt, "k": 2, "max_new_tokens": LENGTH, "out": tmp_path / "samples.parquet"}
    sample(PROMPTS, **asked)
    if "model" in changes:
        changes = {"model": save_model(tmp_path / "other", spread=0.5)}
    with pytest.raises(OptionError, match=match):
        sample(PROMPTS, **asked | changes, resume=True)


def test_two_at_one_journal_are_one_too_many(tmp_path):
    journal = Journal.opened(tmp_path / "j", asked={}, resume=False)
    with ThreadPoolExecutor(1) as pool:
        for resume in (True, False):
            second = pool.submit(Journal.opened, tmp_path / "j", asked={}, resume=resume)
            with pytest.raises(OptionError, match=f"got process {os.getpid()} on "):
                second.result()
    journal.close()
    assert [path.name for path in tmp_path.iterdir()] == ["j"]


def raises(prompts, completions, **columns):
    if prompts[0] == "cook salt":
        raise RuntimeError("no more\nsalt")
    return salt(prompts, completions)


def short(prompts, completions, **columns):
    return salt(prompts, completions)[1:]


def undefined(prompts, completions, **columns):
    return [float("nan") for _ in completions]


@pytest.mark.parametrize(
    ("judge", "match"),
    [
        (raises, "taste: expected a score, got RuntimeError: no more salt for the answer"),
        (short, "taste: expected 3 scores, one per answer, got 2"),
        (undefined, "taste: expected finite scores, got nan"),
    ],
)
def test_a_judge_that_fails_loses_nothing(model, tmp_path, monkeypatch, judge, match):
    monkeypatch.setattr("kleash.sampling.local._ROWS", 4)  # so that the judge is asked while answers are drawn
    asked = {"model": model, "k": 3, "max_new_tokens": LENGTH, "out": tmp_path / "samples.parquet"}
    with pytest.raises(DataError, match=match) as caught:
        sample(PROMPTS, judge={"taste": judge}, **asked)
    assert "mend the judge, then --resume" in str(caught.value)
    assert "\n" not in str(caught.value)
    kept = [line for line in read(tmp_path / "samples.parquet.journal") if "answer" in line]
    assert kept
    mended = sample(PROMPTS, judge={"taste": salt}, **asked, resume=True)
    assert mended.drawn == 3 * len(PROMPTS) - len(kept)
