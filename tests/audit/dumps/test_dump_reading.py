"""Reading dumps: every malformed one is a single clear line with its place; nulls are findings; memory is bounded."""

import datetime
import gzip
import io
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_dumps import FAULTS, check_rollouts, padded_dump, rows_of, write_jsonl

from kleash.audit import check
from kleash.audit.dumps import rollouts as reading
from kleash.errors import KleashError
from kleash.rows import opened

GOOD = '{"logp": [-1.0, -0.5], "ref_logp": [-1.1, -0.5]}\n'


def chunks_of(path):
    with opened(path) as source:
        return list(reading.read_chunks(source))


def status(findings, code):
    return next(f.status for f in findings if f.code == code)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["expected rows", "empty file"]),
        ("\n  \n", ["expected rows", "empty file"]),
        ("hello\n", [":1: line: expected one JSON object"]),
        (GOOD + '{"logp": [-1.0', [":2: line: expected one JSON object"]),
        (GOOD + "[1, 2]\n", [":2: line: expected one JSON object, got an array"]),
        ('{"loss": 1.0}\n', [":1:", "expected logp and ref_logp (or seq_logp and seq_ref_logp)", "columns loss"]),
        ('{"logp": [-1.0], "ref_logprob": [-1.0]}\n', ["column: expected ref_logp", "did you mean 'ref_logprob'"]),
        ('{"seq_logp": -1.0}\n', ["expected seq_ref_logp"]),
        (GOOD + '{"logp": [-1.0], "ref_logp": [-1.0, -2.0]}\n', [":2:", "lists of one length", "logp 1, ref_logp 2"]),
        (GOOD + '{"logp": [-1.0], "ref_logp": ["x"]}\n', [":2: ref_logp: expected a list of numbers, got 'x'"]),
        (GOOD + '{"logp": [-1.0], "ref_logp": [[-1.0]]}\n', [":2: ref_logp: expected a list of numbers, got [-1.0]"]),
        (GOOD + '{"logp": -1.0, "ref_logp": -1.0}\n', [":2: logp: expected a list of numbers, got a float"]),
        (GOOD + '{"ref_logp": [-1.0]}\n', [":2: logp: expected a list of numbers, got nothing"]),
        ('{"logp": [-1.0], "ref_logp": [-1.0], "mask": [2]}\n', [":1: mask: expected only 0 and 1, got 2"]),
        ('{"logp": [-1.0], "ref_logp": [-1.0], "mask": [null]}\n', [":1: mask: expected only 0 and 1"]),
        ('{"logp": [-1.0], "ref_logp": [-1.0], "reward": "good"}\n', [":1: reward: expected a number, got 'good'"]),
        ('{"logp": [-1.0], "ref_logp": [-1.0], "step": -1}\n', [":1: step: expected a whole number of updates"]),
        ('{"logp": [-1.0], "ref_logp": [-1.0], "step": 1.5}\n', [":1: step: expected a whole number of updates"]),
        ('{"logp": [-1.0, "-2"], "ref_logp": [-1.0, -2.0]}\n', [":1: logp: expected a list of numbers, got '-2'"]),
        ('{"logp": [true], "ref_logp": [-1.0]}\n', [":1: logp: expected a list of numbers, got True"]),
        ('{"logp": [%s], "ref_logp": [-1.0]}\n' % ("1" * 400), [":1: logp: expected a list", "past the float range"]),
        ('{"logp": [%s], "ref_logp": [-1.0]}\n' % ("1" * 5000), [":1: line: expected one JSON", "too many digits"]),
        ('{"logp": [-1], "ref_logp": [-1], "reward": %s}\n' % ("1" * 400), [":1: reward: expected a number"]),
        ('{"logp": [-1], "ref_logp": [-1], "step": %s}\n' % ("1" * 400), [":1: step: expected a number"]),
        ('{"logp": %s, "ref_logp": [-1]}\n' % ("[" * 100_000 + "]" * 100_000), [":1: line:", "nested too deep"]),
        ('{"seq_logp": -1, "seq_ref_logp": -1, "length": -4}\n', [":1: length: expected a number of tokens"]),
        (GOOD + GOOD.replace("}", ', "mask": [1, 0]}'), [":2: mask: expected in the first row too"]),
        (GOOD + GOOD.replace("}", ', "reward": 1}'), [":2: reward: expected in the first row too", "null"]),
        (GOOD + GOOD.replace("}", ', "step": 1}'), [":2: step: expected in the first row too"]),
        ("prompt,logp\n1,2\n", [":1: line: expected one JSON object"]),
        ("\x00\xff\xfe", ["not UTF-8 text: expected UTF-8, got byte 0xff"]),
    ],
)
def test_malformed_jsonl_is_one_line(tmp_path, text, words):
    path = tmp_path / "dump.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(KleashError) as caught:
        check(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"logp": [[-1.0], [-1.0, -2.0]], "ref_logp": [[-1.0], [-1.0]]},
            "row 2: row: expected lists of one length, got logp 2, ref_logp 1",
        ),
        (
            {"logp": [[-1.0], None], "ref_logp": [[-1.0], [-1.0]]},
            "row 2: logp: expected a list of numbers, got nothing",
        ),
        ({"logp": [-1.0], "ref_logp": [-1.0]}, "a column of lists of numbers, got a column of Float64"),
        ({"logp": [["a"]], "ref_logp": [[-1.0]]}, "got a column of List(String)"),
        ({"logp": [[-1.0]], "ref_logp": [[-1.0]], "reward": ["x"]}, "reward: expected numbers, got a column of String"),
        ({"logp": [[-1.0]], "ref_logp": [[-1.0]], "mask": [[3]]}, "mask: expected only 0 and 1, got 3"),
        (
            {"logp": [[-1.0]], "ref_logp": [[-1.0]], "step": [-2]},
            "row 1: step: expected a whole number of updates, at least 0, got -2",
        ),
        ({"seq_logp": [-1.0], "seq_ref_logp": [-1.0], "length": [-2]}, "length: expected a number of tokens"),
        ({"logp": [[True]], "ref_logp": [[-1.0]]}, "got a column of List(Boolean)"),
        ({"loss": [1.0]}, "columns loss"),
        ({"logp": [], "ref_logp": []}, "at least one row"),
    ],
)
def test_malformed_parquet_is_one_line(tmp_path, columns, words):
    path = tmp_path / "dump.parquet"
    pl.DataFrame(columns, strict=False).write_parquet(path)
    with pytest.raises(KleashError) as caught:
        check(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_broken(tmp_path):
    with pytest.raises(KleashError, match="nothing there"):
        check(tmp_path / "missing.jsonl")
    with pytest.raises(KleashError, match="a folder"):
        check(tmp_path)
    with pytest.raises(KleashError, match="at least one rollout dump"):
        check([])
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(KleashError, match="unreadable Parquet"):
        check(broken)
    packed = tmp_path / "cut.jsonl.gz"
    packed.write_bytes(gzip.compress(GOOD.encode() * 1000)[:-20])
    with pytest.raises(KleashError, match="broken or truncated gzip"):
        check(packed)
    flipped = bytearray(gzip.compress(GOOD.encode() * 1000))
    flipped[20] ^= 255
    flipped[30] ^= 255
    packed.write_bytes(bytes(flipped))
    with pytest.raises(KleashError, match="broken or truncated gzip"):
        check(packed)


@pytest.mark.parametrize(
    "labels", [[b"a", b"b"], [datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)], [Decimal("1.5"), Decimal("2.5")]]
)
def test_prompt_ids_of_any_type_are_labels(tmp_path, labels):
    path = tmp_path / "dump.parquet"
    pl.DataFrame({"logp": [[-1.0]] * 2, "ref_logp": [[-1.0]] * 2, "prompt_id": labels}).write_parquet(path)
    (chunk,) = chunks_of(path)
    assert len(set(chunk.labels["prompt_id"])) == 2
    assert check(path).inputs[0].rows == 2


def test_nothing_that_is_empty_is_ever_ok(tmp_path):
    path = tmp_path / "dump.jsonl"
    path.write_text('{"logp": [], "ref_logp": []}\n' * 3)
    findings = check(path).findings
    assert status(findings, "MASK") == "problem"
    for code in ("IDENTITY", "KL_NEGATIVE", "CONCENTRATION", "SHIFT", "KL_ZERO"):
        assert status(findings, code) == "not-run"


@pytest.mark.parametrize("bad", ["null", "NaN", "-Infinity", "Infinity"])
def test_bad_numbers_under_the_mask_are_a_finding_and_elsewhere_are_not(tmp_path, bad):
    path = tmp_path / "dump.jsonl"
    row = '{"logp": [-1.0, BAD], "ref_logp": [-1.0, -2.0], "mask": [1, M]}\n'.replace("BAD", bad)
    path.write_text(row.replace("M", "1"))
    (finding,) = [f for f in check(path).findings if f.code == "NON_FINITE"]
    assert finding.status == "problem"
    assert "1 in logp (first: row 1)" in finding.message
    path.write_text(row.replace("M", "0"))
    assert status(check(path).findings, "NON_FINITE") == "ok"


def test_nan_reward_is_a_finding_and_null_is_not_recorded(tmp_path):
    path = tmp_path / "dump.jsonl"
    path.write_text(GOOD.replace("}", ', "reward": null}') * 2)
    assert status(check(path).findings, "NON_FINITE") == "ok"
    path.write_text(GOOD.replace("}", ', "reward": NaN}') * 2)
    assert status(check(path).findings, "NON_FINITE") == "problem"


def test_gzip_and_stdin_read_the_same(tmp_path, monkeypatch):
    chunk, _ = FAULTS["columns exchanged"].make(np.random.default_rng(0), 64)
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    write_jsonl(chunk, plain)
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    expected = [f.message for f in check(plain).findings]
    assert [f.message for f in check(packed).findings] == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(plain.read_bytes())))
    report = check("-")
    assert [f.message for f in report.findings] == expected
    assert report.inputs[0].sha256 is None


@settings(max_examples=12)
@given(tokens=st.integers(1, 200), rows=st.integers(1, 7))
def test_the_cut_into_chunks_changes_nothing(tmp_path_factory, tokens, rows):
    folder = tmp_path_factory.mktemp("dump", numbered=True)
    chunk, _ = FAULTS["temperature not scored"].make(np.random.default_rng(1), 12)
    path, table = folder / "a.jsonl", folder / "a.parquet"
    write_jsonl(chunk, path)
    pl.DataFrame(list(rows_of(chunk))).write_parquet(table, row_group_size=5)
    whole = [(f.code, f.status) for f in check(path).findings]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "TOKENS_PER_CHUNK", tokens)
        patch.setattr(reading, "ROWS_PER_CHUNK", rows)
        for name in (path, table):
            assert [(f.code, f.status) for f in check(name).findings] == whole
        longest = int(np.diff(chunk.offsets).max())
        for name in (path, table):
            pieces = chunks_of(name)
            assert len(pieces) > 1
            assert max(piece.offsets[-1] for piece in pieces) <= tokens + longest
            assert [piece.first_row for piece in pieces] == list(np.cumsum([0] + [p.rows for p in pieces[:-1]]))


def test_probe_rows_are_rows_of_the_input(tmp_path):
    path = tmp_path / "dump.jsonl"
    path.write_text(GOOD + GOOD.replace("}", ', "probe_id": "a", "step": 0}').replace(GOOD[:1], "{", 1))
    with_probe = path.read_text().splitlines()
    path.write_text(with_probe[1] + "\n" + with_probe[0].replace("}", ', "probe_id": null, "step": 3}') + "\n")
    (item,) = check(path).inputs
    assert (item.rows, item.facts["answers"]) == (2, 1)


def test_padding_under_a_mask_changes_no_finding():
    for name in ("columns exchanged", "engine and trainer differ", "outlier tokens carry the KL"):
        for chunk in FAULTS[name].make(np.random.default_rng(2), 128):
            one, other = check_rollouts([chunk]), check_rollouts([padded_dump(chunk, fill=float("nan"))])
            assert [(f.code, f.status) for f in one] == [(f.code, f.status) for f in other]


def test_a_row_that_lacks_a_token_list_in_a_file_that_has_it(tmp_path):
    path = tmp_path / "dump.jsonl"
    path.write_text('{"logp": [-1.0], "ref_logp": [-1.0], "mask": [1]}\n' + GOOD)
    with pytest.raises(KleashError, match=":2: mask: expected a list of numbers, got nothing"):
        check(path)


PEAK = """
import resource, sys
sys.path.insert(0, {src!r})
from kleash.audit import check
print(check({path!r}).inputs[0].facts["tokens"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_ten_million_tokens_in_bounded_memory(tmp_path):
    """Ten times the tokens may cost at most 400 MiB more: one row group of the Parquet file, decoded."""
    rng, peaks = np.random.default_rng(0), []
    for answers in (2_000, 20_000):
        path = tmp_path / f"{answers}.parquet"
        logp = -rng.exponential(size=(answers, 500))
        table = {"logp": pl.Series(logp).arr.to_list(), "ref_logp": pl.Series(logp - 0.03).arr.to_list()}
        pl.DataFrame(table).write_parquet(path)
        code = PEAK.format(src=str(Path(reading.__file__).parents[3]), path=str(path))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        tokens, peak = map(int, done.stdout.split())
        assert tokens == answers * 500
        peaks.append(peak)
    assert peaks[1] < peaks[0] + 400
    assert peaks[1] < 1000


def test_rows_of_the_dumps_are_json(tmp_path):
    chunk, _ = FAULTS["resume reloads the reference"].make(np.random.default_rng(0), 32)
    assert json.loads(json.dumps(next(rows_of(chunk))))["step"] == 100
