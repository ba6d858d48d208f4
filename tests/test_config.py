"""One reader of configuration: what the three formats may hold, and how annotations read it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from kleash.config import Within, fill, read_table
from kleash.errors import ConfigError, KleashError, MissingFileError, OptionError


@dataclass(frozen=True, kw_only=True)
class Judge:
    use: str
    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Everything:
    judge: Judge
    share: Annotated[float, Within(at_least=0, at_most=1)] | Path = 0.5
    kind: Literal["loss", "reward"] = "loss"
    count: Annotated[int, Within(at_least=1)] | None = None
    flag: bool = False
    targets: str | tuple[str, ...] = "all"
    beta: tuple[float, ...] = ()
    settings: Mapping[str, float] = None
    options: Mapping[str, Any] = None
    folder: Path = Path("here")


def filled(**content):
    return fill(Everything, {"judge": {"use": "length"}} | content, folder=Path("there"), given={"folder": Path("x")})


def test_annotations_say_how_a_value_is_read():
    read = filled(
        judge={"use": "a", "path": "m"}, share="held.csv", kind="reward", count=3, flag=True, targets=["q", "v"],
        beta=1, settings={"a": 2}, options={"b": [1, "x"]},
    )  # fmt: skip
    assert read == Everything(
        judge=Judge(use="a", path=Path("there/m")), share=Path("there/held.csv"), kind="reward", count=3, flag=True,
        targets=("q", "v"), beta=(1.0,), settings={"a": 2.0}, options={"b": [1, "x"]}, folder=Path("x"),
    )  # fmt: skip
    assert isinstance(read.beta[0], float)
    assert filled().targets == "all"
    assert filled(targets="all-linear", share=0.25).share == 0.25


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"kidn": "loss"}, "unknown key 'kidn'; did you mean 'kind'?"),
        ({"folder": "a"}, "unknown key 'folder'"),
        ({"judge": {"ues": "a"}}, "unknown key 'judge.ues'; did you mean 'use'?"),
        ({"judge": {}}, "judge.use: expected a text, got none"),
        ({"judge": 3}, "judge: expected a table, got 3"),
        ({"share": 1.5}, "share: expected a finite number at least 0 and at most 1, got 1.5"),
        ({"share": True}, "share: expected a number, got True"),
        ({"kind": "los"}, "kind: expected one of loss, reward, got 'los'; did you mean 'loss'?"),
        ({"count": 0}, "count: expected a whole number of at least 1, got 0"),
        ({"count": 1.5}, "count: expected a whole number of at least 1, got 1.5"),
        ({"flag": 1}, "flag: expected true or false, got 1"),
        ({"targets": [1]}, "targets: expected a text, got 1"),
        ({"beta": []}, "beta: expected at least one, got an empty list"),
        ({"beta": ["1"]}, "beta: expected a number, got '1'"),
        ({"settings": {"a": "x"}}, "settings.a: expected a number, got 'x'"),
        ({"settings": 3}, "settings: expected a table, got 3"),
    ],
)
def test_what_does_not_fit_is_named(content, says):
    with pytest.raises((ConfigError, OptionError)) as caught:
        filled(**content)
    assert says in str(caught.value)


def test_a_missing_table_is_described():
    with pytest.raises(ConfigError, match=r"judge: expected a table \[judge\] \(use, path\), got none"):
        fill(Everything, {})


# -------------------------------------------------------------------------------------------------------------- files

SAME = {"a.toml": "a = 0.001\n[b]\nc = 1\n", "a.yaml": "a: 1e-3\nb: {c: 1}\n", "a.json": '{"a": 1e-3, "b": {"c": 1}}'}


@pytest.mark.parametrize("name", SAME)
def test_one_table_in_three_formats(tmp_path, name):
    (tmp_path / name).write_text("\ufeff" + SAME[name])
    assert read_table(tmp_path / name) == {"a": 0.001, "b": {"c": 1}}


def test_aliases_that_people_write_are_followed(tmp_path):
    (tmp_path / "a.yaml").write_text("base: &base {lr: 1, beta: 2}\nrun: {<<: *base, beta: 3}\n")
    assert read_table(tmp_path / "a.yaml")["run"] == {"lr": 1, "beta": 3}


def bomb(line: str) -> str:
    return "a0: &a0 {x: 1}\n" + "\n".join(line.replace("A", f"a{i}").replace("B", f"a{i - 1}") for i in range(1, 30))


HOSTILE = {
    "aliases": ("a.yaml", bomb("A: &A [" + "*B, " * 9 + "]"), "aliases that stand for more than 100,000 values"),
    "aliases of tables": ("a.yaml", bomb("A: &A {a: *B, b: *B, c: *B, d: *B}"), "aliases that stand for"),
    "merged tables": ("a.yaml", bomb("A: &A {<<: [" + "*B, " * 9 + "]}"), "aliases that stand for"),
    "an alias of itself": ("a.yaml", "a: &a [*a]\n", "nested more than"),
    "deep TOML": ("a.toml", "a = " + "[" * 400 + "]" * 400, "nested"),
    "very deep TOML": ("a.toml", "a = " + "[" * 100_000, "nested"),
    "deep YAML": ("a.yaml", "a: " + "[" * 120 + "]" * 120, "nested"),
    "very deep YAML": ("a.yaml", "a: " + "[" * 10_000, "nested"),
    "deep JSON": ("a.json", '{"a": ' + "[" * 900 + "]" * 900 + "}", "nested"),
    "very deep JSON": ("a.json", '{"a": ' + "[" * 100_000, "nested"),
    "dotted TOML": ("a.toml", "a." * 2_000 + "a = 1", "nested"),
    "a huge integer in TOML": ("a.toml", "beta = " + "1" * 400, "more than 308 digits"),
    "a huge integer in YAML": ("a.yaml", "beta: " + "1" * 400, "more than 308 digits"),
    "a huge integer in JSON": ("a.json", '{"beta": -' + "1" * 400 + "}", "more than 308 digits"),
    "a huger integer": ("a.yaml", "beta: " + "1" * 5_000, "digits"),
    "a large file": ("a.toml", "#" * (1 << 20) + "\nbeta = 1", "more than a megabyte"),
    "other bytes": ("a.toml", b"\xff\xfe", "utf-8"),
    "a key that is a list": ("a.yaml", "? [1, 2]\n: 3\n", "YAML"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_one_short_line(tmp_path, case):
    name, content, says = HOSTILE[case]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        read_table(tmp_path / name)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / name}: ")
    assert says in said
    assert len(said) < len(str(tmp_path)) + 300
    assert said.isprintable()


def test_only_a_regular_file_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path / "pipe.toml", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="got a pipe or device"):
            read_table(path)
    with pytest.raises(ConfigError, match="got a folder"):
        read_table(tmp_path)
    (tmp_path / "sweep.toml").write_text("")
    with pytest.raises(MissingFileError, match=r"did you mean .*/sweep.toml\?"):
        read_table(tmp_path / "swep.toml")


def test_every_number_of_a_table_is_one(tmp_path):
    for digits in (300, 308, 309, 4_000):
        (tmp_path / "a.json").write_text(json.dumps({"a": 1}).replace("1", "9" * digits))
        try:
            value = read_table(tmp_path / "a.json")["a"]
        except KleashError:
            assert digits > 308
        else:
            assert float(value) > 0
