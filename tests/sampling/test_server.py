"""Answers of servers: what is asked of them, what they may not do, and what is kept when they fail."""

import json

import numpy as np
import polars as pl
import pytest

pytest.importorskip("openai")

from stub_server import LOG_P, serving

from kleash.errors import DataError, KleashError, OptionError
from kleash.sampling.model import Server
from kleash.sampling.run import sample
from kleash.sampling.verify import Calibration

PROMPTS = [f"cook {i}" for i in range(5)]


def go(stub, **changes):
    asked = {"model": "m", "judge": length, "k": 6, "max_new_tokens": 30, "url": stub.url}
    return sample(changes.pop("prompts", PROMPTS), **asked | changes)


def length(prompts, completions, **columns):
    return [float(len(text)) for text in completions]


def test_every_answer_is_asked_for_with_a_seed_of_its_own(tmp_path):
    with serving() as stub:
        done = go(stub, out=tmp_path / "samples.parquet")
    assert len(stub.requests) == 30
    assert len({body["seed"] for body in stub.requests}) == 30
    for body in stub.requests:
        assert (body["temperature"], body["top_p"], body["top_k"], body["max_tokens"]) == (1.0, 1.0, -1, 30)
        assert "n" not in body
    frame = pl.read_parquet(tmp_path / "samples.parquet")
    assert frame["answer"].n_unique() == 30
    assert (done.drawn, done.tokens, done.prompt_tokens) == (30, 900, 210)
    assert set(frame["finished"]) == {False}
    for row in frame.iter_rows(named=True):
        expected = [LOG_P[int(word[1:])] for word in row["answer"].split()]
        assert row["logp"] == pytest.approx(expected)
    assert (frame["source"][0], frame["log_ratio"][0]) == ("reference", 0.0)
    assert "verified on 900 tokens" in done.cost()


def test_the_same_seed_asks_for_the_same_answers():
    with serving() as stub:
        first, again, other = go(stub), go(stub), go(stub, seed=1)
    assert first.frame.equals(again.frame)
    assert not set(first.frame["answer"]) & set(other.frame["answer"])


def test_many_requests_are_on_their_way_at_once():
    with serving(seconds=0.3) as stub:
        go(stub, url=Server(url=stub.url, at_once=8))
    assert 4 <= stub.most_busy <= 8  # all eight, unless the machine is busy with other things


@pytest.mark.parametrize(
    ("behaviour", "field", "absent"),
    [
        ({"refuses": ("top_k",), "logprobs": False}, "generation_config", "top_k"),
        ({"refuses": ("top_k", "generation_config")}, "top_logprobs", "top_k"),
        ({"refuses": ("top_k", "generation_config"), "most_top": 5}, "top_logprobs", "top_k"),
        ({"refuses": ("top_k", "generation_config", "logprobs")}, "seed", "logprobs"),
    ],
)
def test_what_a_server_does_not_understand_is_left_out(behaviour, field, absent):
    with serving(**behaviour) as stub:
        done = go(stub)
    assert done.drawn == 30
    assert field in stub.requests[-1]
    assert absent not in stub.requests[-1]
    if field == "generation_config":
        config = json.loads(stub.requests[-1]["generation_config"])
        assert (config["do_sample"], config["top_k"], config["temperature"], config["top_p"]) == (True, 0, 1.0, 1.0)
    verified = "not verified" not in done.sampling
    assert verified == (field == "top_logprobs")


@pytest.mark.parametrize(
    "behaviour",
    [
        {"temperature": 0.7},
        {"temperature": 1.4},
        {"top_k": 50},
        {"top_k": 10, "reports_cut": True},
        {"greedy": True, "logprobs": False},
    ],
)
def test_a_server_that_samples_otherwise_is_refused(behaviour, tmp_path):
    out = tmp_path / "samples.parquet"
    prompts = [f"cook {i}" for i in range(40)]
    with serving(**behaviour) as stub, pytest.raises(DataError, match="sampling at temperature 1 from the whole"):
        go(stub, k=12, out=out, prompts=prompts)
    assert len(stub.requests) < 480
    assert [path.name for path in tmp_path.iterdir()] == ["samples.parquet.journal.refused"]


def test_an_honest_server_is_not_refused():
    """Both counts of 40 servers have the spread they claim; an honest implementation fails once in 10^4."""
    rng = np.random.default_rng(0)
    top, p = LOG_P[:20].tolist(), np.exp(LOG_P)
    z = []
    for _ in range(40):
        calibration = Calibration()
        for drawn in rng.choice(LOG_P.size, size=1000, p=p / p.sum()):
            calibration.add(LOG_P[drawn], top, asked=20)
        assert calibration.fault() == ""
        z.append([(seen - p) / v**0.5 for seen, p, v in (calibration.unlikely, calibration.outside)])
    assert (np.abs(np.mean(z, axis=0)) < 4.1 / 40**0.5).all()
    assert (np.abs(np.std(z, axis=0) - 1) < 4.1 / 80**0.5).all()


def test_a_busy_server_is_asked_again():
    with serving(fails=7) as stub:
        assert go(stub, url=Server(url=stub.url, at_once=4)).drawn == 30
    assert len(stub.requests) == 37


def test_what_came_before_a_fault_is_kept(tmp_path):
    out = tmp_path / "samples.parquet"
    with serving(fails_after=13) as stub:
        with pytest.raises(KleashError, match=r"expected an answer, got .*the model has left"):
            go(stub, out=out, url=Server(url=stub.url, at_once=4))
        stub.fails_after = None
        mended = go(stub, out=out, resume=True)
    assert mended.drawn == 30 - 13
    assert len({body["seed"] for body in stub.requests}) == 30


def test_what_is_on_its_way_when_a_judge_fails_is_kept(tmp_path):
    def fails(prompts, completions, **columns):
        raise RuntimeError("no")

    out = tmp_path / "samples.parquet"
    with serving(seconds=0.02) as stub:
        with pytest.raises(DataError, match="--resume"):
            go(stub, out=out, judge={"length": fails}, url=Server(url=stub.url, at_once=8))
        asked = len(stub.requests)
        assert asked < 30
        assert go(stub, out=out, judge={"length": length}, resume=True).drawn == 30 - asked


@pytest.mark.parametrize(
    ("behaviour", "match"),
    [({"no_choices": True}, "expected a choice, got none"), ({"fails": 99, "status": 401}, "set OPENAI_API_KEY")],
)
def test_answers_that_cannot_be_used_are_one_line(behaviour, match):
    with serving(**behaviour) as stub, pytest.raises(KleashError, match=match) as caught:
        go(stub)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_there():
    with pytest.raises(KleashError, match="is it running, and does its address end in /v1"):
        sample(PROMPTS, model="m", judge=length, url=Server(url="http://127.0.0.1:9/v1", tries=0))


def test_an_adapter_belongs_to_a_model_on_this_machine():
    with pytest.raises(OptionError, match="adapter: expected none with a server"):
        sample(PROMPTS, model="m", judge=length, url="http://127.0.0.1:9/v1", adapter="a")
