"""Files that are written whole or not at all, and JSON without NaN."""

import hashlib
import json
import os

import numpy as np
import pytest

from kleash._files import dump_json, finite_or_none, sha256, write_atomic
from kleash.errors import KleashError, MissingFileError


def test_sha256(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"x" * 1_000_000)
    assert sha256(path) == hashlib.sha256(b"x" * 1_000_000).hexdigest()


def test_write_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "out.json"
    write_atomic(path, "é\n")
    write_atomic(path, b"\0new")
    assert path.read_bytes() == b"\0new"
    assert list(tmp_path.iterdir()) == [path]


def test_write_keeps_the_mode_and_follows_links(tmp_path):
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "out"
    path.write_text("old")

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KleashError, match="out: cannot be written: No space left on device"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_to_a_device():
    write_atomic(os.devnull, "x")
    assert os.path.exists(os.devnull)


def test_write_to_nowhere(tmp_path):
    with pytest.raises(MissingFileError, match="expected a folder that exists"):
        write_atomic(tmp_path / "no" / "out", "x")
    with pytest.raises(KleashError, match="expected a file to write, got a folder"):
        write_atomic(tmp_path, "x")


def test_json_of_numpy_is_exact():
    value = {"a": np.array([[0.1, 1e-300]]), "b": np.float64(2 / 3), "c": (np.int64(1), np.bool_(True), None), "d": "é"}
    assert json.loads(dump_json(value)) == {"a": [[0.1, 1e-300]], "b": 2 / 3, "c": [1, True, None], "d": "é"}
    assert dump_json({"a": [1]}, indent=1) == '{\n "a": [\n  1\n ]\n}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"rows": [{"kl": 1.0}, {"kl": float("nan")}]}, "rows[1].kl: expected a finite number or null, got nan"),
        ({"gold": np.array([0.0, -np.inf])}, "gold[1]: expected a finite number or null, got -inf"),
        (float("inf"), "value: expected a finite number or null, got inf"),
        ({"a": {1: 2}}, "a: expected text keys, got 1"),
        ({"a": {2}}, "a: expected JSON data, got set"),
    ],
)
def test_json_refuses_what_json_does_not_know(value, text):
    with pytest.raises(KleashError) as caught:
        dump_json(value)
    assert str(caught.value) == text


def test_finite_or_none():
    assert finite_or_none(np.array([[1.0, np.nan], [-np.inf, 0.5]])) == [1.0, None, None, 0.5]
