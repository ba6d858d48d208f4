"""Reading scored samples: the same samples whatever the file looks like, and errors that name the line."""

import datetime
import gzip
import io
import json
import math
from contextlib import suppress

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kleash import rows as reading
from kleash.errors import DataError, KleashError, MissingColumnError, MissingFileError, OptionError, ShapeError
from kleash.rows import _csv, _json
from kleash.samples import Samples, _table, read_samples

CSV = "prompt,reward,gold\na,1,0\na,2,1\nb,3,\nb,4,1\n"


@pytest.fixture
def write(tmp_path):
    def write(content, name="s.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def same(a, b):
    """Equal to the last bit, provenance aside."""
    assert a.prompts == b.prompts
    for name in ("reward", "gold", "offsets", "label_probability"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        if x is not None:
            np.testing.assert_array_equal(x, y)
            np.testing.assert_array_equal(np.signbit(x), np.signbit(y))
    assert (a.answers is None) == (b.answers is None)
    assert a.answers is None or a.answers.to_list() == b.answers.to_list()


# --------------------------------------------------------------------------------------------------- what it returns


def test_groups_scattered_rows_in_order_of_first_appearance(write):
    path = write("prompt,reward,gold,answer\nb,1,,x\na,2,1,y\nb,3,0,z\na,4,true,\n")
    samples = read_samples(path)
    assert samples.prompts == ("b", "a")
    assert samples.offsets.tolist() == [0, 2, 4]
    assert samples.counts.tolist() == [2, 2]
    assert samples.reward.tolist() == [1, 3, 2, 4]
    np.testing.assert_array_equal(samples.gold, [np.nan, 0, 1, 1])
    assert samples.answers.to_list() == ["x", "z", "y", None]
    assert (samples.n_prompts, samples.n_samples, samples.n_gold) == (2, 4, 3)
    assert samples.inputs == ({"path": str(path), "sha256": samples.inputs[0]["sha256"], "rows": 4},)
    assert samples.notes == ()
    assert samples.to_frame().to_dict(as_series=False) == {
        "prompt": ["b", "b", "a", "a"],
        "reward": [1.0, 3.0, 2.0, 4.0],
        "gold": [None, 0.0, 1.0, 1.0],
        "answer": ["x", "z", "y", None],
    }


def test_arrays_cannot_be_changed(write):
    samples = read_samples(write(CSV))
    for array in (samples.reward, samples.gold, samples.offsets):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_several_files_are_one(write):
    one = write("prompt,reward\na,1\nb,2\n", "one.csv")
    two = write(
        jsonl([{"prompt": "b", "reward": 3, "gold": 1, "answer": "x"}, {"prompt": "a", "reward": 4}]), "two.jsonl"
    )
    samples = read_samples([one, str(two)])
    assert samples.prompts == ("a", "b")
    assert samples.reward.tolist() == [1, 4, 2, 3]
    np.testing.assert_array_equal(samples.gold, [np.nan, np.nan, np.nan, 1])
    assert samples.answers.to_list() == [None, None, None, "x"]
    assert [item["rows"] for item in samples.inputs] == [2, 2]


def test_prompt_numbers_are_their_digits_in_every_format(write, tmp_path):
    paths = [
        write("prompt,reward\n1,1\n2,1\n"),
        write('{"prompt": 1, "reward": 2}\n{"prompt": 2.0, "reward": 2}\n', "j"),
    ]
    for name, values in {"i": [1, 2], "f": [1.0, 2.0], "s": ["1", "2"]}.items():
        pl.DataFrame({"prompt": values, "reward": [3.0, 4.0]}).write_parquet(tmp_path / f"{name}.parquet")
        paths.append(tmp_path / f"{name}.parquet")
    pl.DataFrame({"prompt": ["1", "2"], "reward": [3, 5]}).with_columns(
        pl.col("prompt").cast(pl.Categorical)
    ).write_parquet(tmp_path / "c.parquet")
    samples = read_samples([*paths, tmp_path / "c.parquet"])
    assert samples.prompts == ("1", "2")
    assert samples.counts.tolist() == [6, 6]


@pytest.mark.parametrize(
    ("cell", "label"),
    [
        (1.5, "1.5"),
        (10**30, "1" + "0" * 30),
        (True, "true"),
        ("1.0", "1.0"),
        ({"b": [1, None], "a": None}, '{"b":[1,null]}'),
    ],
)
def test_label_of_a_prompt_cell(write, cell, label):
    path = write(jsonl([{"prompt": cell, "reward": 1}, {"prompt": cell, "reward": 2}]), "s.jsonl")
    assert read_samples(path).prompts == (label,)


def test_chat_prompts_are_canonical_json_in_jsonl_and_parquet(write, tmp_path):
    chat = [{"role": "system", "content": "ü"}, {"role": "user", "content": "hi", "name": "x"}]
    turned = [dict(reversed(message.items())) for message in chat]
    path = write(jsonl([{"prompt": chat, "reward": 1}, {"prompt": turned, "reward": 2}]), "s.jsonl")
    pl.DataFrame({"prompt": [chat], "reward": [3.0]}).write_parquet(tmp_path / "s.parquet")
    samples = read_samples([path, tmp_path / "s.parquet"])
    assert samples.prompts == ('[{"content":"ü","role":"system"},{"content":"hi","name":"x","role":"user"}]',)
    assert samples.reward.tolist() == [1, 2, 3]


def test_chat_answers_are_their_text(write):
    rows = [
        {"prompt": "a", "reward": 1, "completion": [{"role": "assistant", "content": "hi"}]},
        {"prompt": "a", "reward": [2, 3], "completion": [[{"role": "assistant", "content": "yo"}], {"content": "so"}]},
    ]
    assert read_samples(write(jsonl(rows), "s.jsonl")).answers.to_list() == ["hi", "yo", "so"]


# ------------------------------------------------------------------------------------------------------------ columns


def test_named_columns_and_weighted_rewards(write):
    path = write("id,help,short,ok,text,pi\nx,1,10,1,t,0.5\nx,2,20,,u,\n")
    samples = read_samples(
        path,
        prompt_column="id",
        reward_columns=["help:2", ("short", -0.5)],
        gold_column="ok",
        answer_column="text",
        label_probability_column="pi",
    )
    assert samples.reward.tolist() == [2 * 1 - 5, 2 * 2 - 10]
    np.testing.assert_array_equal(samples.label_probability, [0.5, np.nan])
    assert samples.answers.to_list() == ["t", "u"]
    assert samples.notes == ("reward is 2 x help + -0.5 x short",)


def test_a_column_name_with_a_colon_is_a_name_first(write):
    path = write("prompt,r:2,r\na,1,5\na,2,6\n")
    assert read_samples(path, reward_columns="r:2").reward.tolist() == [1, 2]
    assert read_samples(path, reward_columns="r:3").reward.tolist() == [15, 18]


def test_default_columns(write):
    path = write("prompt,prompt_id,reward,response,completion\nx,a,1,r,c\ny,a,2,s,d\n")
    samples = read_samples(path)
    assert samples.prompts == ("a",)
    assert samples.answers.to_list() == ["c", "d"]
    assert samples.gold is None
    assert samples.n_gold == 0
    assert read_samples(path, keep_answers=False).answers is None


def test_jsonl_keys_that_first_appear_late(write):
    rows = [{"prompt": "p", "reward": i} for i in range(200_000)]
    rows[-1] |= {"gold": 1, "answer": "late"}
    samples = read_samples(write(jsonl(rows), "s.jsonl"))
    assert samples.n_gold == 1
    assert samples.answers[-1] == "late"
    assert samples.reward.tolist() == list(range(200_000))


def test_jsonl_types_that_change_late(write):
    rows = [{"prompt": "p", "reward": i, "gold": i} for i in range(12_000)]
    rows[10_000] |= {"gold": "nan", "prompt": ["p"]}
    rows[10_001] |= {"gold": True, "reward": 0.5, "prompt": ["p"]}
    rows[11_000] |= {"gold": " 7 "}
    samples = read_samples(write(jsonl(rows), "s.jsonl"))
    assert samples.prompts == ("p", '["p"]')
    assert samples.gold[10_998] == 7
    np.testing.assert_array_equal(samples.gold[-2:], [np.nan, 1])


@pytest.mark.parametrize("word", ["", "nan", "NaN", "null", "NULL", "None", "NA"])
def test_words_for_no_label(write, word):
    samples = read_samples(write(f"prompt,reward,gold,answer\na,1,{word},x\na,2,1,y\n"))
    np.testing.assert_array_equal(samples.gold, [np.nan, 1])
    rows = [{"prompt": "a", "reward": 1, "gold": word}, {"prompt": "a", "reward": 2, "gold": 1}]
    np.testing.assert_array_equal(read_samples(write(jsonl(rows), "s.jsonl")).gold, [np.nan, 1])


@pytest.mark.parametrize("oddity", ["", "\n"])
def test_a_csv_cannot_tell_an_empty_answer_from_none(write, oddity):
    rows = 'prompt,reward,answer\na,1,""\na,2,\na,3,y\n' + oddity
    assert read_samples(write(rows)).answers.to_list() == [None, None, "y"]
    rows = [{"prompt": "a", "reward": 1, "answer": answer} for answer in ("", None)]
    assert read_samples(write(jsonl(rows), "s.jsonl")).answers.to_list() == ["", None]


def test_all_rewards_equal_is_allowed(write):
    assert read_samples(write("prompt,reward\na,1\na,1\n")).reward.tolist() == [1, 1]


def test_single_samples_are_left_out_and_said(write):
    samples = read_samples(write("prompt,reward,answer\nx,1,s\na,2,t\ny,3,u\na,4,v\n"))
    assert samples.prompts == ("a",)
    assert samples.answers.to_list() == ["t", "v"]
    assert samples.notes == ("2 prompts with a single sample were left out (x, y)",)


def test_probability_without_gold_is_said(write):
    samples = read_samples(write("prompt,reward,label_probability\na,1,0.5\na,2,0.5\n"))
    assert samples.label_probability is None
    assert samples.notes == ("label_probability is not used: there is no gold",)


# ---------------------------------------------------------------------------------------------------------- formats


def test_stdin_is_sniffed(write, tmp_path):
    pl.read_csv(io.StringIO(CSV)).write_parquet(tmp_path / "s.parquet")
    contents = [
        CSV.encode(),
        b"\xef\xbb\xbf\n" + CSV.encode(),
        gzip.compress(CSV.encode(), mtime=0),
        b'\n {"prompt": "a", "reward": [1, 2], "gold": [0, 1]}\n\n{"prompt": "b", "reward": [3, 4], "gold": [null, 1]}',
        (tmp_path / "s.parquet").read_bytes(),
    ]
    expected = read_samples(write(CSV))
    for content in contents:
        samples = read_samples("-", stdin=io.BytesIO(content))
        same(samples, expected)
        assert samples.inputs[0]["path"] == "-"


def test_content_beats_the_extension(write):
    expected = read_samples(write(CSV))
    same(read_samples(write(CSV, "data.txt")), expected)
    same(read_samples(write(gzip.compress(CSV.encode(), mtime=0), "data.csv")), expected)
    rows = [
        {"prompt": p, "reward": r, "gold": g} for p, r, g in zip("aabb", (1, 2, 3, 4), (0, 1, None, 1), strict=True)
    ]
    same(read_samples(write(jsonl(rows), "data.csv")), expected)


@pytest.mark.parametrize("block", [1, 2, 7, 1 << 22])
def test_an_array_is_its_items_on_lines(write, monkeypatch, block):
    monkeypatch.setattr(_json, "BYTES", block)
    rows = [
        {"prompt": p, "reward": [r, -r], "answer": ["ü,]}", '"["'], "x": {"y": [{}]}} for p, r in (("a", 1), ("b", 2))
    ]
    expected = read_samples(write(jsonl(rows), "s.jsonl"))
    for text in (
        json.dumps(rows),
        json.dumps(rows, indent=2, ensure_ascii=False),
        f"\ufeff [ {json.dumps(rows)[1:-1]}]\n\n",
    ):
        same(read_samples(write(text, "s.json")), expected)


def test_names_with_wildcards(write):
    same(read_samples(write(CSV, "s[1]*.csv")), read_samples(write(CSV)))


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffprompt,reward,gold\na,1,0\na,2,1\nb,3,\nb,4,1\n",
        CSV.replace("\n", "\r\n"),
        CSV.replace("\n", "\r"),
        CSV.rstrip("\n"),
        CSV.replace("\n", "\n\n"),
        "\n\n" + CSV + "\n  \n",
        "prompt,reward,gold,\na,1,0,\na,2,1,\nb,3,,\nb,4,1,\n",
        "prompt,reward,gold\na,1,0,\na,2,1,,\nb,3,\nb,4,1\n",
        'prompt, reward , "gold"\na,1,0\na,2,1\nb,3,\nb,4,1\n'.replace(' "gold"', '"gold"'),
        '"prompt","reward","gold"\n"a","1","0"\n"a","2","1"\n"b","3",""\n"b","4","1"\n',
        "prompt,reward,gold\na, 1,false\na,2 ,True\nb,3.0,nan\nb,4e0,TRUE\n",
        'extra,gold,reward,prompt\n"x, ""y""\n",0,1,a\n5" tall,1,2,a\n,,3,b\nü,1,4,b\n',
    ],
)
def test_csv_dialects(write, content):
    same(read_samples(write(content)), read_samples(write(CSV, "plain.csv")))


def test_quotes_in_unquoted_fields_do_not_merge_rows(write):
    # A parser that toggles at every quote sees two rows here.
    samples = read_samples(write('prompt,reward,answer\na,1,x"y\na,2,y"\na,3,z\n'))
    assert samples.answers.to_list() == ['x"y', 'y"', "z"]


@pytest.mark.parametrize(
    "body",
    [
        'a,1,x"y\na,1,y"\n',
        'a,1,"x"y\n',
        "a,1,x\ra,1,x\n",
        "a,1,x\r",
        "a,1\n",
        "a,1",
        "a,1,x,\n",
        "\na,1,x\n",
        'a,1,"x\n',
    ],
)
@pytest.mark.parametrize("block", [1, 2, 1 << 22])
def test_an_odd_csv_is_not_for_the_fast_way(write, monkeypatch, body, block):
    monkeypatch.setattr(_csv, "BYTES", block)

    def fast(text):
        with reading.opened(write(text)) as source:
            return source.batches(["prompt", "reward"]) is not None

    start = 'prompt,reward,answer\na,1,"x ""y"",\nz"\r\n'
    assert fast(start)
    assert not fast(start + body)


def test_long_fields(write):
    text = "x" * 300_000
    samples = read_samples(write(f'prompt,reward,answer\n\na,1,"{text}"\na,2,y"\n'))
    assert samples.answers[0] == text


def test_huge_integers(write):
    rows = [{"prompt": "a", "reward": 10**20}, {"prompt": "a", "reward": -(2**63)}]
    expected = [1e20, -(2.0**63)]
    assert read_samples(write(jsonl(rows), "s.jsonl")).reward.tolist() == expected
    assert read_samples(write(f"prompt,reward\na,{10**20}\na,{-(2**63)}\n")).reward.tolist() == expected


def test_parquet_number_types(tmp_path):
    frame = pl.DataFrame({"prompt": ["a"] * 3, "reward": ["1", "0", "2.5"], "gold": ["1", "0", None]})
    path = tmp_path / "s.parquet"
    for dtype, gold in ((pl.Float32, pl.Int8), (pl.String, pl.String), (pl.Decimal(10, 2), pl.UInt64)):
        frame.with_columns(pl.col("reward").cast(dtype), pl.col("gold").cast(gold)).write_parquet(path)
        samples = read_samples(path)
        assert samples.reward.tolist() == [1, 0, 2.5]
        np.testing.assert_array_equal(samples.gold, [1, 0, np.nan])
    frame.with_columns(gold=pl.col("gold").is_not_null(), reward=pl.lit(1)).write_parquet(path)
    assert read_samples(path).gold.tolist() == [1, 1, 0]


# -------------------------------------------------------------------------------------------------------- properties

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
floats = st.floats(allow_nan=False, allow_infinity=False)
rows_of = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", 'q"', "c,d", "e\nf", "é", "{}", " g "]),
        floats,
        st.none() | floats,
        st.none() | texts.filter(bool),
        st.floats(0, 1, exclude_min=True),
    ),
    min_size=1,
    max_size=12,
)


@given(rows=rows_of)
def test_write_then_read_is_identity(rows, tmp_path_factory):
    columns = ["prompt", "reward", "gold", "answer", "label_probability"]
    rows = [*rows, rows[0]]
    frame = pl.DataFrame(
        rows,
        schema=dict(zip(columns, (pl.String, pl.Float64, pl.Float64, pl.String, pl.Float64), strict=True)),
        orient="row",
    )
    expected = Samples.from_arrays(
        **{("answer" if name == "answer" else name): frame[name].to_list() for name in columns}
    )
    folder = tmp_path_factory.mktemp("round")
    frame.write_csv(folder / "s.csv")
    frame.write_ndjson(folder / "s.jsonl")
    frame.write_parquet(folder / "s.parquet")
    for name in ("s.csv", "s.jsonl"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    for name in ("s.csv", "s.jsonl", "s.parquet", "s.csv.gz", "s.jsonl.gz"):
        same(read_samples(folder / name), expected)
    expected.to_frame().write_parquet(folder / "again.parquet")
    same(read_samples(folder / "again.parquet"), expected)


cells = st.one_of(
    st.sampled_from(
        ["1", " 2.5 ", "+3", ".5", "1e3", "TRUE", "-0.0", "7", "", "nan", "inf", "x", "1_0", "0x1", "\u0663"]
    )
)


@given(
    rows=st.lists(st.tuples(st.sampled_from("ab"), cells, cells), min_size=1, max_size=6),
    end=st.sampled_from(["\n", ""]),
)
def test_fast_and_slow_ways_agree(rows, end, tmp_path_factory):
    """The two ways through a CSV: the same samples, or the same error."""
    folder = tmp_path_factory.mktemp("ways")
    lines = [",".join(row) for row in [("prompt", "reward", "gold"), *rows, ("a", "1", ""), ("a", "2", "")]]
    (folder / "fast.csv").write_text("\n".join(lines) + end, encoding="utf-8")
    (folder / "slow.jsonl").write_text(
        "\n" + jsonl(dict(zip(("prompt", "reward", "gold"), line.split(","), strict=True)) for line in lines[1:]),
        encoding="utf-8",
    )
    outcomes = []
    for name in ("fast.csv", "slow.jsonl"):
        try:
            outcomes.append(read_samples(folder / name))
        except DataError as error:
            outcomes.append(str(error).split(name)[1])
    if isinstance(outcomes[0], str) or isinstance(outcomes[1], str):
        assert outcomes[0] == outcomes[1]
    else:
        same(*outcomes)


csv_bytes = st.text(st.sampled_from(list('a1,"\n\r ')), max_size=24)


@given(body=csv_bytes, block=st.sampled_from([1, 2, 3, 7, 1 << 22]))
def test_fast_and_slow_ways_agree_on_any_csv(body, block, tmp_path_factory):
    """Whatever the file, what the fast way accepts the slow way reads alike."""
    path = tmp_path_factory.mktemp("any") / "s.csv"
    path.write_bytes(f"prompt,reward,answer\na,1,\na,1,\n{body}".encode())
    with pytest.MonkeyPatch.context() as patch, reading.opened(path) as source:
        regular = _csv._regular_records(path, 3)
        patch.setattr(_csv, "BYTES", block)
        assert _csv._regular_records(path, 3) == regular
        batches = source.batches(["prompt", "reward", "answer"])
        if batches is None:
            return
        fast = [row for batch in batches for row in batch.with_columns(pl.all().fill_null("")).to_dicts()]
        slow = [row for _, rows in source.chunks() for row in rows]
    assert fast == slow


@given(rows=rows_of, seed=st.integers(0, 2**32 - 1))
def test_order_of_rows_does_not_matter_for_grouping(rows, seed, tmp_path_factory):
    rows = [*rows, rows[0]]
    order = np.random.default_rng(seed).permutation(len(rows))
    path = tmp_path_factory.mktemp("order") / "s.jsonl"

    def groups(some):
        path.write_text(jsonl({"prompt": p, "reward": r} for p, r, *_ in some), encoding="utf-8")
        samples = read_samples(path)
        ends = zip(samples.offsets[:-1], samples.offsets[1:], strict=True)
        return {p: sorted(samples.reward[a:b]) for p, (a, b) in zip(samples.prompts, ends, strict=True)}

    assert groups(rows) == groups([rows[i] for i in order])


@given(
    groups=st.lists(
        st.lists(st.tuples(floats, st.none() | floats, st.none() | texts), min_size=2, max_size=4),
        min_size=1,
        max_size=4,
    ),
    mixed=st.booleans(),
)
def test_nested_is_flat(groups, mixed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nested")
    flat = [
        {"prompt": f"p{i}", "level": i, "reward": r, "gold": g, "answer": t}
        for i, group in enumerate(groups)
        for r, g, t in group
    ]
    nested = [
        dict(
            zip(
                ("prompt", "level", "reward", "gold", "answer"),
                (f"p{i}", i, *map(list, zip(*group, strict=True))),
                strict=True,
            )
        )
        for i, group in enumerate(groups)
    ]
    schema = {"prompt": pl.String, "level": pl.Int64, "reward": pl.Float64, "gold": pl.Float64, "answer": pl.String}
    inner = {k: pl.List(t) if k in {"reward", "gold", "answer"} else t for k, t in schema.items()}
    (folder / "flat.jsonl").write_text(jsonl(flat), encoding="utf-8")
    if mixed:
        nested = [*nested[:-1], *(row for row in flat if row["level"] == len(groups) - 1)]
    (folder / "nested.jsonl").write_text(jsonl(nested), encoding="utf-8")
    expected = read_samples(folder / "flat.jsonl")
    found = read_samples(folder / "nested.jsonl")
    same(found, expected)
    count = len(groups) - mixed
    assert (f"{count} row" in "".join(found.notes)) == (count > 0)
    if not mixed:
        pl.DataFrame(nested, schema=inner).write_parquet(folder / "nested.parquet")
        same(read_samples(folder / "nested.parquet"), expected)


def test_nested_rows_repeat_what_is_not_a_list(write, tmp_path):
    rows = [
        {"prompt": "a", "reward": [1, 2], "gold": 1, "answer": "t"},
        {"prompt": "b", "reward": [3, 4], "gold": None},
    ]
    samples = read_samples(write(jsonl(rows), "s.jsonl"))
    np.testing.assert_array_equal(samples.gold, [1, 1, np.nan, np.nan])
    assert samples.answers.to_list() == ["t", "t", None, None]
    pl.DataFrame(rows).write_parquet(tmp_path / "s.parquet")
    same(read_samples(tmp_path / "s.parquet"), samples)


def test_empty_lists_are_said(write, tmp_path):
    rows = [{"prompt": "a", "reward": [1, 2]}, {"prompt": "b", "reward": []}]
    notes = ("2 rows with lists were unrolled into 2 samples", "1 row with empty lists had no samples")
    assert read_samples(write(jsonl(rows), "s.jsonl")).notes == notes
    pl.DataFrame(rows).write_parquet(tmp_path / "s.parquet")
    assert read_samples(tmp_path / "s.parquet").notes == notes


# ------------------------------------------------------------------------------------------------------- from memory


def test_from_arrays():
    samples = Samples.from_arrays(
        np.array([2, 1, 2, 1]),
        [1, 2, 3, 4],
        gold=[None, 1, 0, float("nan")],
        answer=list("wxyz"),
        label_probability=[1, 0.5, 1, 1],
    )
    assert samples.prompts == ("2", "1")
    assert samples.reward.tolist() == [1, 3, 2, 4]
    np.testing.assert_array_equal(samples.gold, [np.nan, 0, 1, np.nan])
    assert samples.label_probability.tolist() == [1, 1, 0.5, 1]
    assert samples.answers.to_list() == ["w", "y", "x", "z"]
    assert samples.inputs == ()
    reward = np.zeros(2)
    Samples.from_arrays(["a", "a"], reward)
    reward[0] = 1  # the caller's array stays the caller's


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"reward": [1, 2, 3]}, ShapeError, "reward: expected shape (2,) as prompt, got (3,)"),
        ({"reward": [1, math.nan]}, DataError, "reward[1] is NaN"),
        ({"reward": [-math.inf, 1]}, DataError, "reward[0] is infinite"),
        ({"reward": ["x", 1]}, DataError, "reward: expected numbers"),
        ({"gold": [1, math.inf]}, DataError, "gold[1] is infinite"),
        ({"gold": [1]}, ShapeError, "gold: expected shape (2,)"),
        ({"gold": [1, None], "label_probability": [0, 1]}, DataError, "label_probability[0]: expected a probability"),
        (
            {"gold": [1, None], "label_probability": [None, 1]},
            DataError,
            "label_probability[0] is missing on a labelled",
        ),
        ({"prompt": ["a", None]}, DataError, "prompt[1] is missing"),
        ({"prompt": ["a", "b"]}, DataError, "a forecast needs at least two answers to the same prompt"),
        ({"prompt": [], "reward": []}, DataError, "got no samples"),
        ({"answer": ["x"]}, ShapeError, "answer: expected 2"),
        ({"prompt": ["\ud800", "\ud800"]}, DataError, "prompt[0]: expected Unicode text"),
        ({"answer": ["\ud800", "x"]}, DataError, "answer[0]: expected Unicode text"),
    ],
)
def test_from_arrays_errors(change, kind, text):
    arguments = {"prompt": ["a", "a"], "reward": [1.0, 2.0]} | change
    with pytest.raises(kind) as caught:
        Samples.from_arrays(arguments.pop("prompt"), arguments.pop("reward"), **arguments)
    assert text in str(caught.value)


# ------------------------------------------------------------------------------------------------------------ errors

HEAD = "prompt,reward,gold,label_probability,answer\n"
FINE = "a,1,1,0.5,x\na,2,,,y\n"


def row(**cells):
    return json.dumps({"prompt": "a", "reward": 1} | cells) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "line", "text"),
    [
        # numbers
        ("s.csv", HEAD + FINE + "a,good,1,1,x\n", 4, "reward: expected a number, got 'good'; mend or drop the row"),
        ("s.csv", HEAD + FINE + "a," + "z" * 99 + ",1,1,x\n", 4, "got '" + "z" * 39 + "…'"),
        ("s.csv", HEAD + FINE + "a,1,yes,1,x\n", 4, "gold: expected a number, got 'yes'"),
        ("s.csv", HEAD + FINE + 'a,"1,5",1,1,x\n', 4, "reward: expected a number, got '1,5'"),
        ("s.csv", HEAD + FINE + "a,1_0,1,1,x\n", 4, "reward: expected a number, got '1_0'"),
        ("s.csv", HEAD + FINE + "a,\u0663,1,1,x\n", 4, "reward: expected a number, got '\u0663'"),
        ("s.csv", HEAD + FINE + "a,nan,1,1,x\n", 4, "reward is NaN, expected a finite number; drop the row"),
        ("s.csv", HEAD + FINE + "a,-inf,1,1,x\n", 4, "reward is infinite"),
        ("s.csv", HEAD + FINE + "a,1e999,1,1,x\n", 4, "reward is infinite"),
        ("s.csv", HEAD + FINE + "a,,1,1,x\n", 4, "reward is missing; drop the row or fill it in"),
        ("s.csv", HEAD + FINE + "a,1,inf,1,x\n", 4, "gold is infinite, expected a finite number; leave the cell empty"),
        (
            "s.csv",
            HEAD + FINE + "a,1,1,0,x\n",
            4,
            "label_probability: expected a probability above 0 and at most 1, got 0",
        ),
        ("s.csv", HEAD + FINE + "a,1,,1.5,x\n", 4, "label_probability: expected a probability above 0 and at most 1"),
        ("s.csv", HEAD + FINE + "a,1,1,,x\n", 4, "label_probability is missing on a labelled answer"),
        ("s.csv", HEAD + FINE + ",1,1,1,x\n", 4, "prompt is missing"),
        # the line is the one on the screen
        (
            "s.csv",
            "\ufeff\n" + HEAD + '\na,1,1,1,"two\nlines, ""quoted"""\n\na,oops,1,1,"more\nlines"\na,1,1,1,x\n',
            7,
            "'oops'",
        ),
        ("s.csv", (HEAD + FINE + "a,oops,1,1,x\n").replace("\n", "\r\n"), 4, "'oops'"),
        ("s.csv", (HEAD + FINE + "a,oops,1,1,x\n").replace("\n", "\r"), 4, "'oops'"),
        # structure
        (
            "s.csv",
            HEAD + FINE + "a,1,1,1\n",
            4,
            "fields: expected 5 as in the header, got 4; the file may be cut off here",
        ),
        (
            "s.csv",
            HEAD + FINE + "a,1,1,1,x,y\n",
            4,
            "fields: expected 5 as in the header, got 6; quote texts with commas",
        ),
        ("s.csv", HEAD + FINE + 'a,1,1,1,"open\na,1,1,1,x\n', 4, "broken CSV from this line on"),
        ("s.csv", HEAD + FINE + 'a,1,1,1,"x"y\n', 4, "broken CSV from this line on"),
        ("s.csv", "prompt,reward,reward\na,1,2\n", 1, "header: expected column names that differ, got 'reward' twice"),
        (
            "s.csv",
            (HEAD + FINE).encode() + b"a,1,1,1,caf\xe9\n",
            4,
            "not UTF-8 text: expected UTF-8, got byte 0xe9 at column 12",
        ),
        ("s.csv", HEAD, None, "file: expected rows, got none"),
        ("s.csv", "", None, "file: expected rows, got an empty file (0 bytes)"),
        ("s.csv", "\n \n", None, "file: expected rows, got an empty file (blank lines)"),
        ("s.csv.gz", gzip.compress(b"", mtime=0), None, "got an empty file (0 bytes)"),
        ("s.csv.gz", gzip.compress(CSV.encode() * 99, mtime=0)[:-20], None, "broken or truncated gzip"),
        ("s.csv.gz", gzip.compress((HEAD + FINE + "a,good,1,1,x\n").encode(), mtime=0), 4, "got 'good'"),
        # JSONL
        (
            "s.jsonl",
            row() + "\n" + row() + '{"prompt": "a", "rew',
            4,
            "line: expected one JSON object, got broken or truncated JSON",
        ),
        ("s.jsonl", row() + '{"prompt": "a"\n, "reward": 1}\n', 2, "broken or truncated JSON"),
        ("s.jsonl", row() + row().strip() + row(), 2, "broken or truncated JSON (Extra data"),
        ("s.jsonl", row() + "[1, 2]\n", 2, "line: expected one JSON object, got an array"),
        ("s.jsonl", row() + "null\n", 2, "got null"),
        ("s.jsonl", "1\n", 1, "got a number"),
        ("s.jsonl", row() + '{"a":' + "[" * 100_000 + "\n", 2, "line: expected one JSON object, got"),
        (
            "s.jsonl",
            row() + '{"reward": ' + "1" * 5000 + "}\n",
            2,
            "line: expected one JSON object, got JSON out of bounds",
        ),
        ("s.jsonl", row().encode() + b'{"prompt": "\xff"}\n', 2, "not UTF-8 text"),
        ("s.jsonl", row() + row(reward="x"), 2, "reward: expected a number, got 'x'"),
        ("s.jsonl", row() + row(reward={"a": 1}), 2, "reward: expected a number, got {'a': 1}"),
        ("s.jsonl", row() + row(reward=None), 2, "reward is missing"),
        ("s.jsonl", row() + '{"prompt": "a"}\n', 2, "reward is missing"),
        ("s.jsonl", row() + row(reward=math.nan), 2, "reward is NaN"),
        ("s.jsonl", row() + row(reward=10**400), 2, "reward is infinite"),
        ("s.jsonl", row() + row(gold=-math.inf), 2, "gold is infinite"),
        ("s.jsonl", row() + row(prompt=None), 2, "prompt is missing"),
        (
            "s.jsonl",
            row() + '{"prompt": "\\ud800", "reward": 1}\n',
            2,
            "prompt: expected Unicode text, got half a surrogate pair",
        ),
        ("s.jsonl", row() + row(answer="\ud800"), 2, "answer: expected Unicode text"),
        # a JSON array
        ("s.json", "[\n" + row() + ",\n" + row(reward="x") + "]", 4, "reward: expected a number, got 'x'"),
        ("s.json", "[" + row() + row() + "]", 2, "a comma or the closing bracket behind an object, got '{'"),
        ("s.json", "[" + row() + ",]", 2, "broken or truncated JSON (Expecting value"),
        ("s.json", "[" + row() + ",\n" + row()[:9], 3, "broken or truncated JSON"),
        ("s.json", "[" + row(), 2, "got the end of the file"),
        ("s.json", "[\n1]", 2, "line: expected one JSON object, got a number"),
        ("s.json", "[" + '{"a":' + "[" * 100_000, 1, "JSON out of bounds (nested too deep)"),
        ("s.json", ("[" + row()).encode() + b', {"prompt": "\xff"}]', 2, "not UTF-8 text"),
        ("s.json", "[]", None, "prompt column: expected prompt_id or prompt, got no columns"),
        # lists
        (
            "s.jsonl",
            row() + row(reward=[1, 2], gold=[1]),
            2,
            "lists in one row: expected equal lengths, got reward 2, gold 1",
        ),
        ("s.jsonl", row() + row(reward=[1, 2], answer=["x"] * 3), 2, "equal lengths, got reward 2, answer 3"),
        ("s.jsonl", row(reward=[1, 2]) + row(reward=[1, "x"]), 2, "reward: expected a number, got 'x'"),
        ("s.jsonl", row(reward=[1, 2]) + row(reward=[1, None]), 2, "reward is missing"),
        ("s.jsonl", row(reward=[1, 2]) + row(reward=[[1], [2]]), 2, "reward: expected a number, got [1]"),
        (
            "s.jsonl",
            row() + row(answer=["x", "y"]),
            2,
            "list in 'answer': expected a list of rewards too, got one reward beside 2",
        ),
        ("s.jsonl", row() + row(gold=[1, 2]), 2, "list in 'gold'"),
        (
            "s.jsonl",
            row() + row(prompt=["p", "q"], reward=[1, 2]),
            2,
            "prompt: expected one prompt per row, got a list of 2",
        ),
        # other files
        ("s.json", "[" + row() + "]", None, "got 1 prompt with a single answer"),
        (
            "s.txt",
            "once upon a time\n",
            None,
            "file: expected Parquet, JSONL, JSON, CSV (also gzipped), got text that is none of the 4",
        ),
        ("s.bin", b"\0\1\2,\n", None, "got binary data"),
        ("s.csv", "a,b\n".encode("utf-16-le"), None, "got binary data"),
        ("s.parquet", b"not parquet", None, "unreadable Parquet (parquet: File out of specification"),
        ("s.parquet", b"PAR1 cut off", None, "unreadable Parquet ("),
        # too few answers
        (
            "s.csv",
            "prompt,reward\na,1\nb,2\n",
            None,
            "a forecast needs at least two answers to the same prompt: got 2 prompts",
        ),
    ],
)
def test_bad_data_is_one_line_that_says_where(write, tmp_path, name, content, line, text):
    path = write(content, name)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError) as caught:
        read_samples(path)
    said = str(caught.value)
    assert text in said
    assert said.startswith(f"{path}: " if line is None else f"{path}:{line}: ")
    assert caught.value.line == line
    assert len(said.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"reward": ["1", "x"]}, "row 2: reward: expected a number, got 'x'"),
        ({"reward": [1.0, None]}, "row 2: reward is missing"),
        ({"reward": [1.0, math.inf]}, "row 2: reward is infinite"),
        (
            {"reward": [datetime.date(2020, 1, 1)] * 2},
            "row 1: reward: expected a number, got datetime.date(2020, 1, 1)",
        ),
        (
            {"reward": [[1.0, 2.0], [1.0]], "gold": [[1.0, 2.0], [1.0, 2.0]]},
            "row 2: lists in one row: expected equal lengths",
        ),
        ({"reward": [[1.0, 2.0], None]}, "row 2: reward is missing"),
        ({"reward": [1.0, 2.0], "prompt": ["a", None]}, "row 2: prompt is missing"),
    ],
)
def test_bad_parquet_rows(tmp_path, columns, text):
    path = tmp_path / "s.parquet"
    pl.DataFrame({"prompt": ["a", "a"]} | columns).write_parquet(path)
    with pytest.raises(DataError) as caught:
        read_samples(path)
    assert str(caught.value).startswith(f"{path}: {text}")


def test_bad_cell_deep_in_a_large_file(write, tmp_path):
    lines = [f"p{i % 7},{i}" for i in range(150_000)]
    lines[140_000] = "p1,oops"
    with pytest.raises(DataError, match=r":140002: reward: expected a number, got 'oops'"):
        read_samples(write("prompt,reward\n" + "\n".join(lines)))
    rows = [{"prompt": f"p{i % 7}", "reward": i} for i in range(150_000)]
    rows[145_000]["reward"] = "oops"
    with pytest.raises(DataError, match=r":145002: reward: expected a number, got 'oops'"):
        read_samples(write("\n" + jsonl(rows), "s.jsonl"))
    path = tmp_path / "s.parquet"
    pl.DataFrame({"prompt": ["p"] * 150_000, "reward": [1.0] * 140_000 + [math.nan] * 10_000}).write_parquet(path)
    with pytest.raises(DataError, match=r"row 140001: reward is NaN"):
        read_samples(path)


def test_bytes_that_are_not_utf8_in_a_column_nobody_needs(write):
    content = "prompt,reward,x\n" + "a,1,y\n" * 20_000
    with pytest.raises(DataError, match=r":20002: not UTF-8 text: expected UTF-8, got byte 0xe9 at column 5"):
        read_samples(write(content.encode() + b"a,1,\xe9\n"))


def test_errors_of_stdin_name_it():
    with pytest.raises(DataError, match=r"^stdin:2: reward: expected a number, got 'x'"):
        read_samples("-", stdin=io.BytesIO(b"prompt,reward\na,x\n"))


def test_missing_file_names_the_nearest(write):
    path = write(CSV, "pilot_scores.csv")
    with pytest.raises(
        MissingFileError, match=r"pilot_score.csv: expected a file, got nothing there; did you mean .*scores.csv"
    ):
        read_samples(path.with_name("pilot_score.csv"))
    with pytest.raises(MissingFileError, match="check the path"):
        read_samples(path.parent / "no" / "such.csv")


def test_folder_instead_of_a_file(tmp_path):
    with pytest.raises(DataError, match="got a folder"):
        read_samples(tmp_path)


@pytest.mark.parametrize("name", ["s.csv", "s.jsonl", "s.parquet"])
def test_missing_column_names_the_columns_there(tmp_path, name):
    path = tmp_path / name
    frame = pl.DataFrame({"prompt": ["a", "a"], "judge_score": [1, 2]})
    {"s.csv": frame.write_csv, "s.jsonl": frame.write_ndjson, "s.parquet": frame.write_parquet}[name](path)
    with pytest.raises(MissingColumnError) as caught:
        read_samples(path)
    assert str(caught.value) == (
        f"{path}: reward column: expected reward, got the columns prompt, judge_score; name it with --reward-column"
    )
    with pytest.raises(MissingColumnError) as caught:
        read_samples(path, reward_columns="judgescore")
    assert str(caught.value) == (
        f"{path}: column 'judgescore': expected in the file, got the columns prompt, judge_score; "
        "did you mean 'judge_score'?"
    )
    for flag in ("prompt_column", "gold_column", "answer_column", "label_probability_column"):
        with pytest.raises(MissingColumnError, match="column 'nope': expected in the file"):
            read_samples(path, reward_columns="judge_score", **{flag: "nope"})


def test_file_without_a_probability_beside_one_that_has_it(write):
    one = write("prompt,reward,gold,label_probability\na,1,1,0.5\na,2,,\n", "one.csv")
    two = write("prompt,reward,gold\na,1,1\n", "two.csv")
    with pytest.raises(DataError, match=r"two.csv: label_probability column: expected in every file"):
        read_samples([one, two])
    read_samples([one, write("prompt,reward,gold\na,1,\n", "three.csv")])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"reward_columns": []}, "reward columns: expected at least one"),
        ({"reward_columns": ["reward", ("reward", 2)]}, "reward columns: expected each once, got 'reward' twice"),
        ({"reward_columns": ("reward:nan",)}, "weight of reward column 'reward': expected a finite number, got nan"),
        ({"reward_columns": [("reward", "x")]}, "weight of reward column 'reward': expected a finite number, got x"),
    ],
)
def test_bad_options(write, options, text):
    with pytest.raises(OptionError) as caught:
        read_samples(write(CSV), **options)
    assert text in str(caught.value)


def test_no_file_and_the_same_file_twice(write):
    with pytest.raises(OptionError, match="expected at least one file"):
        read_samples([])
    with pytest.raises(OptionError, match=r"copy.csv: expected other samples, got the content of .*s.csv again"):
        read_samples([write(CSV), write(CSV, "copy.csv")])


def test_weighted_sum_that_overflows(write):
    with pytest.raises(DataError, match=r":3: weighted sum of the rewards is infinite"):
        read_samples(write("prompt,reward\na,1\na,1e308\n"), reward_columns="reward:100")


def test_flipped_bytes_never_escape_as_another_error(write, tmp_path):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"prompt": ["a", "b"] * 20, "reward": rng.normal(size=40), "answer": ["x", 'y"\n'] * 20})
    for name, writer in (("s.csv", frame.write_csv), ("s.jsonl", frame.write_ndjson)):
        writer(tmp_path / name)
        for kind in (name, name + ".gz"):
            content = (tmp_path / name).read_bytes()
            content = gzip.compress(content) if kind.endswith(".gz") else content
            for _ in range(40):
                hurt = bytearray(content)
                for at in rng.integers(len(hurt), size=rng.integers(1, 4)):
                    hurt[at] = rng.integers(256)
                path = write(bytes(hurt), "hurt-" + kind)
                with suppress(KleashError):
                    read_samples(path)


def test_reading_needs_little_more_than_the_numbers(write, monkeypatch):
    """Batches are small and none is kept: the largest frame seen is a batch."""
    seen = []
    add = _table.Table.add_frame
    monkeypatch.setattr(_table.Table, "add_frame", lambda self, frame: seen.append(frame.height) or add(self, frame))
    read_samples(write("prompt,reward\n" + "p,1\n" * 300_000))
    assert sum(seen) == 300_000
    assert max(seen) < 100_000
