"""Rows that say who drew them: read alike from every kind of file, and refused where a log ratio is missing."""

import io
import json

import numpy as np
import polars as pl
import pytest

from kleash import Samples, read_samples
from kleash.errors import DataError

ROWS = [
    {"prompt": "soup", "reward": 1.0, "source": "reference", "log_ratio": None, "log_ratio[b]": 0.25},
    {"prompt": "soup", "reward": 2.0, "source": "b", "log_ratio": 0.5, "log_ratio[b]": None},
    {"prompt": "stew", "reward": 3.0, "source": "b", "log_ratio": None, "log_ratio[b]": -0.75},
    {"prompt": "stew", "reward": 4.0, "source": None, "log_ratio": 0.0, "log_ratio[b]": 1.0},
]


def read(text):
    return read_samples("-", stdin=io.BytesIO(text.encode()))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "lists"])
def test_every_format_gives_the_same_sources(tmp_path, kind):
    path = tmp_path / f"samples.{kind}"
    if kind == "parquet":
        pl.DataFrame(ROWS).write_parquet(path)
    elif kind == "csv":
        pl.DataFrame(ROWS).write_csv(path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        pairs = [ROWS[:2], ROWS[2:]]
        lines = [{"prompt": a["prompt"]} | {k: [a[k], b[k]] for k in a if k != "prompt"} for a, b in pairs]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sources = read_samples(path).sources
    assert sources.names == ("reference", "b")
    assert sources.code.tolist() == [0, 1, 1, 0]
    assert sources.log_ratio.tolist() == [[0.0, 0.25], [0.0, 0.5], [0.0, -0.75], [0.0, 1.0]]
    arrays = Samples.from_arrays(
        [row["prompt"] for row in ROWS],
        [row["reward"] for row in ROWS],
        source=[row["source"] for row in ROWS],
        log_ratio={"b": [0.25, 0.5, -0.75, 1.0]},
    )
    np.testing.assert_array_equal(arrays.sources.log_ratio, sources.log_ratio)
    again = tmp_path / "again.parquet"
    arrays.to_frame().write_parquet(again)
    np.testing.assert_array_equal(read_samples(again).sources.log_ratio, sources.log_ratio)


def test_a_dump_is_the_policys_by_sums_over_its_active_tokens(tmp_path):
    """Lists of tokens are summed, never averaged; the mask leaves tokens out; the sampler's own logp goes first."""
    dump = [
        {"prompt_id": 1, "reward": 0, "logp": [-1.0, -2.0, -9.0], "ref_logp": [-1.5, -4.0, 0.0], "mask": [1, 1, 0]},
        {"prompt_id": 1, "reward": 1, "logp": [-1.0, -2.0], "ref_logp": [-2.0, -2.0], "mask": [1, 1]},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in dump)
    assert read(lines).sources.log_ratio.tolist() == [[2.5], [1.0]]
    unmasked = [{k: row[k] for k in row if k != "mask"} for row in dump]
    path = tmp_path / "dump.parquet"
    pl.DataFrame(unmasked).write_parquet(path)
    found = read_samples(path)
    assert found.sources.names == ("policy",)
    assert found.sources.log_ratio.tolist() == [[-6.5], [1.0]]
    sampled = [{**row, "behavior_logp": [0.0] * len(row["logp"])} for row in unmasked]
    assert read("".join(json.dumps(row) + "\n" for row in sampled)).sources.log_ratio.tolist() == [[5.5], [4.0]]
    summed = '{"prompt_id": 1, "reward": [0, 1], "seq_logp": [-3, -3], "seq_ref_logp": [-5.5, -4]}\n'
    assert read(summed).sources.log_ratio.tolist() == [[2.5], [1.0]]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("prompt,reward,source\na,1,reference\na,2,b\n", "stdin:3: source 'b': expected a log_ratio"),
        ("prompt,reward,source,log_ratio\na,1,,\na,2,b,\n", "stdin:3: source 'b': expected a log_ratio"),
        ("prompt,reward,log_ratio\na,1,0.5\na,2,\n", "stdin:3: source 'policy': expected a log_ratio"),
        ("prompt,reward,source,log_ratio\na,1,reference,0.2\na,2,reference,0\n", "stdin:2: log_ratio of a reference"),
        ("prompt,reward,log_ratio[b]\na,1,0.1\na,2,0.2\n", "stdin:2: source: expected who drew each answer"),
        ("prompt,reward,log_ratio\na,1,inf\na,2,0.2\n", "stdin:2: log_ratio: expected a finite number"),
        ("prompt,reward,source,log_ratio,log_ratio[b]\na,1,b,.5,.5\na,2,b,.5,.6\n", "stdin:3: log_ratio: expected one"),
        (
            '{"prompt":"a","reward":1,"logp":[-1,null],"ref_logp":[-1,-1]}',
            "stdin:1: logp and ref_logp: expected a finite",
        ),
        (
            '{"prompt":"a","reward":1,"logp":[-1],"ref_logp":[-1,-1]}',
            "stdin:1: logp and ref_logp: expected a number for",
        ),
    ],
)
def test_what_is_not_known_is_refused(text, error):
    with pytest.raises(DataError) as caught:
        read(text)
    assert error in str(caught.value)


def test_rows_without_a_drift_are_the_references():
    assert read("prompt,reward,log_ratio\na,1,0\na,2,0\n").sources is None
    assert read("prompt,reward,source\na,1,reference\na,2,\n").sources is None
    assert read("prompt,reward,logp\na,1,-3\na,2,-4\n").sources is None  # the answer's own, without the reference's


def test_policies_of_two_files_stay_two_sources(tmp_path):
    for name, ratio in (("one", 0.5), ("two", 0.7)):
        (tmp_path / f"{name}.csv").write_text(f"prompt,reward,log_ratio\na,1,{ratio}\na,2,{ratio}\n")
    (tmp_path / "reference.csv").write_text("prompt,reward\na,1\na,2\n")
    paths = [tmp_path / f"{name}.csv" for name in ("one", "two", "reference")]
    sources = read_samples(paths).sources
    assert sources.names == ("reference", str(paths[0]), str(paths[1]))
    assert sources.code.tolist() == [1, 1, 2, 2, 0, 0]
    assert np.isnan(sources.log_ratio[0, 2])
    assert sources.log_ratio[4].tolist()[0] == 0.0
    assert len(read_samples(paths[:1]).sources.names) == 1


def kept_run(folder, *, scored):
    """A watched run's folder as the callback leaves it: two answers to each of two prompts, at step 0 and step 3."""
    folder.mkdir()
    record = {"schema": 2, "kind": "trl", "status": "running", "config": {}}
    (folder / "run.json").write_text(json.dumps(record))
    rows = [
        {
            "step": step,
            "prompt_id": prompt,
            "source": source,
            "reward": float(i),
            "logp": logp,
            "ref_logp": [-1.0, -1.0],
        }
        for step, source, logp in ((0, "reference", [-1.0, -1.0]), (3, "step 3", [-0.5, -0.75]))
        for prompt in (0, 1)
        for i in (0, 1)
    ]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "scored.jsonl").write_text("".join(json.dumps(line) + "\n" for line in scored))
    return folder


def test_a_run_folder_stands_for_the_answers_it_keeps(tmp_path):
    line = {"step": 3, "source": "step 3", "log_ratio": [0.1, 0.2, 0.3, 0.4]}
    drawn_again = {"step": 6, "source": "step 6", "log_ratio": [1.0] * 4}  # a kill before its answers were written
    samples = read_samples(kept_run(tmp_path / "run", scored=[line, drawn_again]))
    assert samples.sources.names == ("reference", "step 3")
    reference = samples.sources.code == 0
    assert samples.sources.log_ratio[reference].tolist() == [[0.0, 0.1], [0.0, 0.2], [0.0, 0.3], [0.0, 0.4]]
    assert samples.sources.log_ratio[~reference, 1].tolist() == [0.75] * 4
    assert samples.inputs[0]["path"].endswith("rollouts.jsonl")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"source": "step 3", "log_ratio": [0.1] * 3}, "expected 4, one for each answer of the reference, got 3"),
        ({"source": "step 3", "log_ratio": [0.1, 0.1, 0.1, None]}, "got one that is not finite"),
        ({"log_ratio": 1}, r"scored\.jsonl:1: is no line of log ratios"),
    ],
)
def test_log_ratios_that_do_not_fit_the_answers_are_refused(tmp_path, line, why):
    with pytest.raises(DataError, match=why):
        read_samples(kept_run(tmp_path / "run", scored=[line]))


def test_a_run_that_keeps_no_answers_is_refused_in_words(tmp_path):
    folder = kept_run(tmp_path / "run", scored=[])
    (folder / "rollouts.jsonl").unlink()
    with pytest.raises(DataError, match=r"trl run: expected answers in rollouts\.jsonl, got none"):
        read_samples(folder)
