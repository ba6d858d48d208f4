"""The one table: what it holds, what it refuses, and that a file gives back what was written."""

import dataclasses
import json
import re
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal

from exact_worlds import reward_range, small_worlds, some_world
from kleash import _files
from kleash.errors import DataError, KleashError, MissingFileError, OptionError, ShapeError
from kleash.frontier import Estimates, Frontier, Gold, Replicates, exact_frontier
from kleash.tilt import moments, stationary_betas
from kleash.worlds import heavy_tail, kitchen, two_arm

NAN = np.nan
COLUMNS = ["beta"] + [q + end for q in ("reward", "gold", "kl", "gold_gain") for end in ("", "_se", "_lo", "_hi")]


def frontier(**changes):
    """A forecast of three betas, the first one beyond, with one thing changed."""

    def known(*values):
        value = np.array(values)
        return Estimates(value=value, se=0.1 + 0 * value, lo=value - 0.2, hi=value + 0.2)

    rng = np.random.default_rng(0)
    given = {
        "source": "forecast",
        "beta": [0.1, 1.0, 10.0],
        "reward": known(NAN, 2.0, 1.0),
        "gold": Gold.of(known(NAN, 0.5, 0.4), gain=known(NAN, 0.2, 0.1), reference=known(0.3)[0]),
        "kl": known(NAN, 0.5, 0.1),
        "reference_reward": known(0.9)[0],
        "n": [30, 30, 30],
        "status": ["beyond", "weak", "ok"],
        "diagnostics": {"ess": np.array([1.5, 5.0, 20.0]), "khat": np.array([NAN, 0.4, 0.1])},
        "replicates": Replicates(
            kind="bootstrap",
            reward=np.where([True, False, False], NAN, rng.normal(size=(5, 3))),
            kl=np.where([True, False, False], NAN, rng.normal(size=(5, 3))),
            gold=np.where([True, False, False], NAN, rng.normal(size=(5, 3))),
            reference_reward=rng.normal(size=5),
            reference_gold=rng.normal(size=5),
        ),
        "gold_range": 1.0,
        "provenance": {"inputs": [{"path": "a.csv", "rows": 720}], "seed": 3, "note": "Größe", "none": None},
    }
    return Frontier(**{**given, **changes})


def same(a, b, path="frontier"):
    """Equal to the last bit, NaN equal to NaN, through dataclasses, arrays, mappings and plain data."""
    if dataclasses.is_dataclass(a):
        assert type(a) is type(b), path
        for field in dataclasses.fields(a):
            same(getattr(a, field.name), getattr(b, field.name), f"{path}.{field.name}")
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype, path
        assert_array_equal(a, b, err_msg=path)
    elif isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            same(a[key], b[key], f"{path}[{key}]")
    else:
        assert a == b, path


# --------------------------------------------------------------------------------------------------- Estimates


def test_exact_estimates_have_no_width():
    made = Estimates.exact([1, 2])
    assert made.value.dtype == np.float64
    assert made.se.tolist() == [0.0, 0.0]
    assert made.lo.tolist() == made.hi.tolist() == made.value.tolist() == [1.0, 2.0]


def test_estimates_by_index_and_by_condition():
    made = Estimates(value=[1, 2, 3], se=[4, 5, 6], lo=[7, 8, 9], hi=[10, 11, 12])
    assert [made[1:].value.tolist(), made[1:].se.tolist(), made[1:].lo.tolist(), made[1:].hi.tolist()] == [
        [2, 3], [5, 6], [8, 9], [11, 12],
    ]  # fmt: skip
    kept = made.where(np.array([True, False, True]))
    for name in ("value", "se", "lo", "hi"):
        assert_array_equal(getattr(kept, name), np.where([True, False, True], getattr(made, name), NAN))


def test_estimates_of_different_shapes_are_refused():
    with pytest.raises(ShapeError, match=r"value \(2,\), se \(1,\)"):
        Estimates(value=[1, 2], se=[1], lo=[1, 2], hi=[1, 2])


# ---------------------------------------------------------------------------------------------------- Frontier


def test_usable_is_all_but_beyond():
    assert frontier().usable.tolist() == [False, True, True]


GOLD_OF_ONE = Gold.of(Estimates.exact([1.0]), gain=Estimates.exact([1.0]), reference=Estimates.exact(1.0))
TWO_BETAS = Replicates(kind="seeds", reward=np.ones((4, 2)), kl=np.ones((4, 2)), reference_reward=np.ones(4))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"source": "guess"}, OptionError, "source: expected one of exact, forecast, sweep, log, got 'guess'"),
        ({"beta": [1.0, 0.1, 10.0]}, OptionError, "beta: expected ascending, distinct values, got [1.0, 0.1, 10.0]"),
        ({"beta": [1.0, 1.0, 10.0]}, OptionError, "ascending"),
        ({"beta": [0.1, 1.0, np.inf]}, OptionError, "got inf"),
        ({"beta": [-0.1, 1.0, 10.0]}, OptionError, "got -0.1"),
        ({"status": ["ok", "fine", "ok"]}, OptionError, "status: expected one of ok, weak, beyond, got 'fine'"),
        ({"status": ["ok", "ok"]}, ShapeError, "status (2,)"),
        ({"n": [1]}, ShapeError, "n (1,)"),
        ({"reward": Estimates.exact([1.0])}, ShapeError, "reward (1,)"),
        ({"gold": GOLD_OF_ONE}, ShapeError, "gold (1,)"),
        ({"diagnostics": {"ess": np.array([1.0])}}, ShapeError, "ess (1,)"),
        ({"diagnostics": {"kl_se": np.ones(3)}}, OptionError, "diagnostics: expected names of their own, got kl_se"),
        ({"replicates": TWO_BETAS}, ShapeError, "replicates (2,)"),
    ],
)
def test_what_is_refused(changes, error, text):
    with pytest.raises(error) as caught:
        frontier(**changes)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"kind": "guess"}, OptionError),
        ({"kl": np.ones((4, 2))}, ShapeError),
        ({"gold": np.ones((3, 3))}, ShapeError),
        ({"reference_reward": np.ones(3)}, ShapeError),
        ({"reference_gold": np.ones((4, 1))}, ShapeError),
        ({"reward": np.ones(4), "kl": np.ones(4)}, ShapeError),
    ],
)
def test_replicates_that_do_not_fit_are_refused(changes, error):
    given = {"kind": "seeds", "reward": np.ones((4, 3)), "kl": np.ones((4, 3)), "reference_reward": np.ones(4)}
    with pytest.raises(error, match="expected"):
        Replicates(**{**given, **changes})


def test_a_gain_of_another_size_than_its_gold_is_refused():
    with pytest.raises(ShapeError, match=re.escape("gold_gain (1,)")):
        Gold.of(Estimates.exact([1.0, 2.0]), gain=Estimates.exact([1.0]), reference=Estimates.exact(1.0))


def test_gold_gain_of_replicates_is_paired_within_the_draw():
    draws = frontier().replicates
    assert_array_equal(draws.gold_gain()[2], draws.gold[2] - draws.reference_gold[2])
    assert draws.gold_gain().shape == (5, 3)
    assert dataclasses.replace(draws, gold=None).gold_gain() is None
    assert dataclasses.replace(draws, reference_gold=None).gold_gain() is None


# --------------------------------------------------------------------------------------- rows, dict and frame


def test_rows_hold_none_where_there_is_no_value():
    rows = frontier().rows()
    assert list(rows[0]) == [*COLUMNS, "ess", "khat", "n", "status"]
    assert rows[0]["reward"] is rows[0]["gold_hi"] is rows[0]["khat"] is None
    assert (rows[0]["beta"], rows[0]["ess"], rows[0]["n"], rows[0]["status"]) == (0.1, 1.5, 30, "beyond")
    assert (rows[1]["reward"], rows[1]["kl_lo"], rows[2]["gold_gain_hi"]) == (2.0, 0.5 - 0.2, 0.1 + 0.2)
    assert all(type(value) in (float, int, str, type(None)) for row in rows for value in row.values())


def test_rows_without_gold_keep_the_columns():
    rows = frontier(gold=None, replicates=None).rows()
    assert list(rows[0]) == [*COLUMNS, "ess", "khat", "n", "status"]
    assert all(row[name] is None for row in rows for name in COLUMNS if name.startswith("gold"))


def test_to_dict_is_plain_data_without_replicates():
    content = frontier().to_dict()
    assert list(content) == ["schema", "kind", "source", "measured", "rows", "reference", "gold_range", "provenance"]
    assert (content["schema"], content["kind"]) == (2, "frontier")
    assert content["reference"] == {
        "reward": 0.9, "reward_se": 0.1, "reward_lo": 0.7, "reward_hi": 1.1,
        "gold": 0.3, "gold_se": 0.1, "gold_lo": 0.3 - 0.2, "gold_hi": 0.5,
    }  # fmt: skip
    assert json.loads(_files.dump_json(content)) == content
    assert content.keys() | {"replicates"} == frontier().to_dict(replicates=True).keys()
    without = frontier(gold=None, replicates=None).to_dict()
    assert without["reference"]["gold"] is None


def test_frame_has_the_same_types_whatever_is_missing():
    full, bare = (
        frontier().to_frame(),
        frontier(gold=None, replicates=None).to_frame(),
    )
    assert full.columns == [*COLUMNS, "ess", "khat", "n", "status"]
    assert full.schema == bare.schema
    assert set(full.schema.values()) == {pl.Float64, pl.Int64, pl.String}
    assert full["reward"].to_list() == [None, 2.0, 1.0]
    assert not full["khat"].is_nan().any()
    assert bare["gold"].null_count() == 3


# --------------------------------------------------------------------------------------------- exact_frontier


@given(small_worlds(), st.lists(st.floats(0.01, 100.0), min_size=1, max_size=5, unique=True))
@settings(max_examples=settings.default.max_examples // 3)
def test_exact_frontier_is_the_moments(world, scales):
    betas = reward_range(world) / np.array([*scales, np.inf])  # unsorted, and 0 for good measure
    table, at, start = exact_frontier(world, betas), moments(world, np.unique(betas)), moments(world, np.inf)
    assert_array_equal(table.beta, at.beta)
    assert_array_equal(table.reward.value, at.reward)
    assert_array_equal(table.gold.value, at.gold)
    assert_array_equal(table.kl.value, at.kl)
    assert_array_equal(table.diagnostics["chi2"], at.chi2)
    assert_array_equal(table.gold.gain.value, at.gold - start.gold)
    assert (table.reference_reward.value, table.gold.reference.value) == (start.reward[0], start.gold[0])
    assert (table.gold.se == 0).all()
    assert_array_equal(table.kl.lo, table.kl.hi)
    assert (table.source, table.replicates, set(table.status), set(table.n)) == ("exact", None, {"ok"}, {0})
    assert table.gold_range == np.ptp(world.gold[np.isfinite(world.log_reference)])


@pytest.mark.parametrize(
    "world",
    [kitchen(), kitchen(oversalt=0.0005, love=1e-4), some_world("mixed-prompts", 3), heavy_tail(), two_arm(1e-12)],
)
def test_default_grid_reaches_from_the_top_to_the_reference(world):
    """At the loose end nearly the reward of beta 0, at the tight end nearly the reference, the maxima in between."""
    table = exact_frontier(world)
    assert table.beta[0] == 0.0
    assert set(stationary_betas(world)) <= set(table.beta)
    top, start = moments(world, 0.0), moments(world, np.inf)
    lift = top.reward[0] - start.reward[0]
    assert table.reward.value[1] - start.reward[0] > 0.95 * lift
    assert table.reward.value[-1] - start.reward[0] < 0.05 * lift
    assert table.kl.value[-1] < 1e-2 * table.kl.value[0]
    assert table.beta.size == 201 + stationary_betas(world).size


def test_grid_of_an_indifferent_judge():
    table = exact_frontier(kitchen(oversalt=1e-3, love=1.0), n_grid=5)
    assert table.beta.size == 5 + 1 + stationary_betas(kitchen(oversalt=1e-3)).size
    flat = exact_frontier(dataclasses.replace(kitchen(), reward=np.ones((1, 41))))
    assert (flat.kl.value == 0).all()
    with pytest.raises(OptionError, match="n_grid"):
        exact_frontier(kitchen(), n_grid=1)
    with pytest.raises(OptionError, match="got inf"):
        exact_frontier(kitchen(), [1.0, np.inf])


def test_kitchen_as_a_frontier():
    table = exact_frontier(kitchen(), [0, 1, 5, 15, 60])
    assert table.reward.value.round(2).tolist() == [31.70, 31.69, 28.32, 12.88, 9.68]
    assert table.gold.value.round(3).tolist() == [0.0, 0.0, 0.29, 1.541, 1.766]
    assert (round(float(table.reference_reward.value), 2), round(float(table.gold.reference.value), 3)) == (9.12, 1.798)
    assert table.provenance["world"] == "kitchen"


# ------------------------------------------------------------------------------------------- write, then read

numbers = st.floats(-1e100, 1e100) | st.just(np.nan)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def frontiers(draw):
    """Any frontier: NaN anywhere, gold missing, measured or measured and nowhere known, with and without draws."""
    size, n_draws = draw(st.integers(1, 4)), draw(st.integers(1, 3))

    def estimates(shape):
        cells = st.just(NAN) if draw(st.booleans()) and draw(st.booleans()) else numbers
        return Estimates(
            **{name: draw(arrays(np.float64, shape, elements=cells)) for name in ("value", "se", "lo", "hi")}
        )

    def maybe(make):
        return make() if draw(st.booleans()) else None

    def cube(*shape):
        return draw(arrays(np.float64, shape, elements=numbers))

    def replicates():
        return Replicates(
            kind=draw(st.sampled_from(["bootstrap", "seeds"])),
            reward=cube(n_draws, size),
            kl=cube(n_draws, size),
            reference_reward=cube(n_draws),
            gold=maybe(lambda: cube(n_draws, size)),
            reference_gold=maybe(lambda: cube(n_draws)),
        )

    names = draw(
        st.lists(st.sampled_from(["chi2", "ess", "khat", "n_gold_eff", "Größe", "a b"]), unique=True, max_size=3)
    )
    betas = st.floats(0.0, 1e300, allow_subnormal=True)
    return Frontier(
        source=draw(st.sampled_from(["exact", "forecast", "sweep", "log"])),
        beta=np.sort(draw(st.lists(betas, min_size=size, max_size=size, unique=True))),
        reward=estimates(size),
        kl=estimates(size),
        reference_reward=estimates(()),
        gold=maybe(lambda: Gold.of(estimates(size), gain=estimates(size), reference=estimates(()))),
        n=draw(arrays(np.int64, size, elements=st.integers(0, 2**53))),
        status=draw(st.lists(st.sampled_from(["ok", "weak", "beyond"]), min_size=size, max_size=size)),
        diagnostics={name: cube(size) for name in names},
        replicates=maybe(replicates),
        gold_range=maybe(lambda: draw(st.floats(0, 1e300))),
        provenance=draw(st.dictionaries(st.text(max_size=5), plain, max_size=3)),
    )


@given(frontiers(), st.sampled_from(["table.json", "table.parquet"]))
@settings(max_examples=settings.default.max_examples // 2)
def test_what_is_written_is_what_is_read(table, name):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        table.save(path)
        same(table, Frontier.load(path))
        assert [file.name for file in Path(folder).iterdir()] == [name]


@pytest.mark.parametrize("name", ["table.json", "table.parquet"])
def test_an_example_written_and_read(tmp_path, name):
    frontier().save(str(tmp_path / name))
    same(frontier(), Frontier.load(str(tmp_path / name)))


@pytest.mark.parametrize("name", ["table.json", "table.parquet"])
def test_measured_but_nowhere_known_is_not_unmeasured(tmp_path, name):
    """All rows beyond: gold is null everywhere in the file, and still was measured (the verdict's reason differs)."""
    nowhere = Estimates(**dict.fromkeys(("value", "se", "lo", "hi"), np.full(3, NAN)))
    gold = Gold.of(nowhere, gain=nowhere, reference=Estimates.exact(0.5))
    written = frontier(gold=gold, replicates=None, status=["beyond"] * 3)
    written.save(tmp_path / name)
    same(written, Frontier.load(tmp_path / name))


def test_parquet_is_a_table_for_everybody(tmp_path):
    frontier().save(tmp_path / "t.parquet")
    read = pl.read_parquet(tmp_path / "t.parquet")
    assert read.equals(frontier().to_frame())
    assert read.schema == frontier().to_frame().schema


def test_json_is_accepted_by_strict_parsers(tmp_path):
    frontier().save(tmp_path / "t.json")

    def refuse(name):
        raise AssertionError(name)

    content = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert content["rows"] == frontier().rows()
    assert content["replicates"]["kind"] == "bootstrap"
    assert content["replicates"]["gold"][0][0] is None


@pytest.mark.parametrize("name", ["t.json", "t.parquet"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(KleashError, match="provenance"):
        frontier(provenance={"bad": NAN}).save(tmp_path / name)
    assert (tmp_path / name).read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["t.json", "t.parquet"])
def test_a_write_is_whole_or_not_at_all(tmp_path, monkeypatch, name):
    (tmp_path / name).write_text("mine")

    def killed(*_):
        raise OSError("power cut")

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KleashError, match="power cut"):
        frontier().save(tmp_path / name)
    assert (tmp_path / name).read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


# --------------------------------------------------------------------------------------------- what is refused


def refused(path, error=DataError):
    """Loading fails with the error, in one line that starts with the file's name; the line is returned."""
    with pytest.raises(error) as caught:
        Frontier.load(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    return line


FOREIGN = {
    "empty": b"",
    "not json": b"{'beta': 1}",
    "a list": b"[1, 2]",
    "a number": b"3",
    "another object": b'{"beta": [1, 2]}',
    "not text": b"\xff\xfe\x00\x01",
    "no rows": b'{"schema": 1, "source": "exact", "rows": [], "reference": {}, "gold_range": null, "provenance": {}}',
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("name", ["t.json", "t.parquet"])
def test_foreign_files(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    line = refused(tmp_path / name)
    assert any(words in line for words in ("is not a frontier written by kleash", "unreadable Parquet", "empty file"))


@pytest.mark.parametrize("name", ["t.json", "t.parquet"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.9, 0.99, 1.0])
def test_truncated_files(tmp_path, name, share):
    frontier().save(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: min(int(share * len(whole)), len(whole) - 3)])
    refused(tmp_path / name)


def test_parquet_of_somebody_else(tmp_path):
    pl.DataFrame({"beta": [1.0]}).write_parquet(tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet")
    pl.DataFrame({"beta": [1.0]}).write_parquet(tmp_path / "t.parquet", metadata={"kleash": "{"})
    refused(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c["rows"][0].update(beta=100.0),
        lambda c: c["rows"][0].update(beta="low"),
        lambda c: c["rows"][1].update(status="fine"),
        lambda c: c["rows"][1].pop("kl_se"),
        lambda c: c["replicates"].update(kind="guess"),
        lambda c: c["replicates"]["gold"].pop(),
        lambda c: c["replicates"].update(more=[1.0]),
        lambda c: c.update(source="guess"),
        lambda c: c.pop("reference"),
        lambda c: c.pop("measured"),
    ],
)
def test_damaged_content(tmp_path, damage):
    frontier().save(tmp_path / "t.json")
    content = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    damage(content)
    (tmp_path / "t.json").write_text(json.dumps(content))
    refused(tmp_path / "t.json")


def test_a_newer_schema_is_named(tmp_path):
    frontier().save(tmp_path / "t.json")
    content = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    (tmp_path / "t.json").write_text(json.dumps({**content, "schema": 3}))
    assert refused(tmp_path / "t.json").endswith("is of schema 3, this kleash reads 1 and 2")


@pytest.mark.parametrize("name", ["t.json", "t.parquet"])
def test_no_such_file(tmp_path, name):
    assert refused(tmp_path / name, MissingFileError).endswith("no such file")
    with pytest.raises(FileNotFoundError):
        Frontier.load(tmp_path / name)


@pytest.mark.parametrize("name", ["t.json", "t.parquet"])
def test_a_folder(tmp_path, name):
    (tmp_path / name).mkdir()
    line = refused(tmp_path / name)
    assert line.endswith("got a folder; name a file in it")


@pytest.mark.parametrize("name", ["t.csv", "t", "t.jsonl"])
def test_other_endings(tmp_path, name):
    for call in (frontier().save, Frontier.load):
        with pytest.raises(OptionError, match=r"frontier file: expected one of \.json, \.parquet"):
            call(tmp_path / name)
    assert not list(tmp_path.iterdir())
