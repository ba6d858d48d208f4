"""What `check` and `convert` answer does not change by accident.

`python tests/frozen/freeze.py` writes the answers anew after a change that is meant; the commit says which and why.
"""

from __future__ import annotations

import json

import pytest
from cases import differences, dump_faults, golden, log_faults, translations
from freeze import read


@pytest.mark.parametrize(
    ("kind", "cases"), [("golden", golden), ("log_faults", log_faults), ("dump_faults", dump_faults)]
)
def test_check_answers_as_before(kind, cases):
    frozen = read(kind)
    now = {name: answer() for name, answer in cases()}
    assert now.keys() == frozen.keys()
    assert [line for name in now for line in differences(frozen[name], now[name], name)] == []


def test_convert_answers_as_before():
    frozen = read("translations")
    now = {name: answer() for name, answer in translations([json.loads(key) for key in frozen])}
    assert [line for name in now for line in differences(frozen[name], now[name], name)] == []


def test_a_difference_is_seen():
    was = {"a": [1.0, {"b": "x"}], "schema": 1}
    assert list(differences(was, {"a": [1.0 + 1e-12, {"b": "x"}], "schema": 2})) == []
    assert len(list(differences(was, {"a": [1.001, {"b": "y"}], "c": None}))) == 3
