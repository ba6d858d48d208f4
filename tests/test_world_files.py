"""World files: what is read, and one line for everything that cannot be."""

import gzip
import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kleash.errors import DataError, MissingColumnError, MissingFileError
from kleash.world_files import load_world, read_world_file

HEADER = "prompt,answer,reference,reward,gold\n"
GOOD = HEADER + "p,a,0.5,1,0.25\np,b,0.5,2,0.5\nq,a,1,-3,1\n"


def written(tmp_path, text, name="w.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_become_a_world(tmp_path):
    world = load_world(written(tmp_path, GOOD))
    assert world.name == "w"
    assert world.prompts == ("p", "q")
    assert world.answers == (("a", "b"), ("a", ""))
    np.testing.assert_array_equal(np.exp(world.log_reference), [[0.5, 0.5], [1.0, 0.0]])
    np.testing.assert_array_equal(world.reward, [[1.0, 2.0], [-3.0, 0.0]])
    np.testing.assert_array_equal(world.gold, [[0.25, 0.5], [1.0, 0.0]])
    np.testing.assert_array_equal(world.prompt_weight, [0.5, 0.5])


def test_prompts_may_be_mixed_columns_in_any_order_and_more_of_them(tmp_path):
    text = "gold,x,reward,answer,reference,prompt\n1,z,2,a,0.25,p\n3,z,4,a,1,q\n5,z,6,b,0.75,p\n"
    world = load_world(written(tmp_path, text), name="mine")
    assert world.name == "mine"
    np.testing.assert_array_equal(world.reward, [[2.0, 6.0], [4.0, 0.0]])
    np.testing.assert_allclose(np.exp(world.log_reference[0]), [0.25, 0.75], rtol=1e-15)


def test_every_format_says_the_same(tmp_path):
    lines = [dict(zip(HEADER.strip().split(","), row.split(","), strict=True)) for row in GOOD.splitlines()[1:]]
    for line in lines:
        line |= {key: float(line[key]) for key in ("reference", "reward", "gold")}
    jsonl = written(tmp_path, "".join(json.dumps(line) + "\n" for line in lines), "w.jsonl")
    packed = tmp_path / "w.csv.gz"
    packed.write_bytes(gzip.compress(GOOD.encode()))
    array = written(tmp_path, json.dumps(lines), "w.json")
    parquet = tmp_path / "w.parquet"
    pl.DataFrame(lines).write_parquet(parquet)
    worlds = [load_world(path) for path in (written(tmp_path, GOOD), jsonl, array, packed, parquet)]
    for world in worlds[1:]:
        assert world.name == worlds[0].name
        assert world.answers == worlds[0].answers
        for name in ("log_reference", "reward", "gold"):
            np.testing.assert_array_equal(getattr(world, name), getattr(worlds[0], name))


def test_a_quoted_answer_may_have_commas_and_lines_and_the_next_error_knows_its_line(tmp_path):
    text = HEADER + 'p,"one, two\nthree",0.5,1,0\np,b,x,2,0\n'
    with pytest.raises(DataError, match=r"w\.csv:4: column 'reference': expected a finite number, got 'x'"):
        load_world(written(tmp_path, text))


def test_inputs_name_the_file(tmp_path):
    path = written(tmp_path, GOOD)
    (entry,) = read_world_file(path).inputs
    assert entry["path"] == str(path)
    assert entry["rows"] == 3
    assert len(entry["sha256"]) == 64


def test_normalise_divides_by_the_sum_of_each_prompt(tmp_path):
    path = written(tmp_path, HEADER + "p,a,3,1,0\np,b,1,2,0\nq,a,0.2,1,0\n")
    world = load_world(path, normalise=True)
    np.testing.assert_allclose(np.exp(world.log_reference), [[0.75, 0.25], [1.0, 0.0]], rtol=1e-15)


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=6))
def test_written_and_read_a_world_is_the_same(tmp_path_factory, weights):
    total = sum(weights)
    rows = [f"p,{i},{w / total!r},{i},{-i}" for i, w in enumerate(weights)]
    path = tmp_path_factory.mktemp("w") / "w.csv"
    path.write_text(HEADER + "\n".join(rows))
    np.testing.assert_allclose(np.exp(load_world(path).log_reference[0]), np.array(weights) / total, rtol=1e-14)


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        (HEADER + "p,a,x,1,0\n", 2, "column 'reference': expected a finite number, got 'x'"),
        (HEADER + "p,a,1,nan,0\n", 2, "column 'reward': expected a finite number, got nan"),
        (HEADER + "p,a,1,1,inf\n", 2, "column 'gold': expected a finite number, got inf"),
        (HEADER + "p,a,1,,0\n", 2, "column 'reward': expected a finite number, got an empty cell"),
        (HEADER + "p,a,0.5,1,0\np,b,-0.5,1,0\n", 3, "expected a probability of at least 0, got -0.5"),
        (HEADER + "p,a,0.5,1,0\np,b,0.5,1,0\np,a,0,1,0\n", 4, "'a' to prompt 'p' again (first on line 2)"),
        (HEADER + "o,a,1,1,0\np,a,0.5,1,0\np,b,0.49,1,0\n", 3, "sum to 1, got a sum of 0.99"),
        (HEADER + "p,a,0.33333333,1,0\np,b,0.33333333,1,0\np,c,0.33333333,1,0\n", 2, "normalise = true"),
        (HEADER + "p,a,0,1,0\n", 2, "got a sum of 0"),
        (HEADER + "p,a,1,1\n", 2, "fields"),
    ],
)
def test_a_bad_row_is_one_line_with_the_files_line(tmp_path, text, where, said):
    path = written(tmp_path, text)
    with pytest.raises(DataError) as caught:
        load_world(path)
    assert str(caught.value).startswith(f"{path}:{where}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sum_of_zero_is_refused_even_when_normalising(tmp_path):
    with pytest.raises(DataError, match="got a sum of 0"):
        load_world(written(tmp_path, HEADER + "p,a,0,1,0\n"), normalise=True)


def test_a_missing_column_is_named_with_those_there(tmp_path):
    with pytest.raises(MissingColumnError) as caught:
        load_world(written(tmp_path, "prompt,answer,refrence,reward\np,a,1,1\n"))
    said = str(caught.value)
    assert "reference, gold missing" in said
    assert "got prompt, answer, refrence, reward" in said
    assert "rename 'refrence' to 'reference'" in said
    good = '{"prompt": "p", "answer": "a", "reference": 0.5, "reward": 1, "gold": 1}\n'
    path = written(tmp_path, good + '{"prompt": "p", "answer": "b", "reference": 0.5, "reward": 1}', "w.jsonl")
    with pytest.raises(MissingColumnError, match=r"w\.jsonl:2: gold missing"):
        load_world(path)


def test_null_texts_are_refused(tmp_path):
    line = '{"prompt": "p", "answer": null, "reference": 1, "reward": 1, "gold": 1}\n'
    with pytest.raises(DataError, match=r"w\.jsonl:1: column 'answer': expected a text, got null"):
        load_world(written(tmp_path, line, "w.jsonl"))


@pytest.mark.parametrize("text", ["", HEADER, "\n\n"])
def test_files_without_rows_are_refused(tmp_path, text):
    with pytest.raises(DataError, match=r"w\.csv"):
        load_world(written(tmp_path, text))


def test_a_truncated_line_is_named(tmp_path):
    with pytest.raises(DataError, match=r"w\.jsonl:1: "):
        load_world(written(tmp_path, '{"prompt": "p", "ans', "w.jsonl"))


def test_no_file_and_no_table(tmp_path):
    with pytest.raises(MissingFileError, match=r"none\.csv"):
        load_world(tmp_path / "none.csv")
    (tmp_path / "w.parquet").write_bytes(b"PAR1....PAR1")
    with pytest.raises(DataError, match="unreadable Parquet"):
        load_world(tmp_path / "w.parquet")
