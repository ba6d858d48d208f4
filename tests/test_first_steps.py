"""Samples that a trainer wrote itself at its first step, when the policy still was the reference."""

import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import kleash
from kleash.errors import DataError, MissingColumnError, OptionError

DATA = Path(__file__).parent / "data" / "first_steps"
TRL = DATA / "trl_grpo" / "completions"
FIRST = TRL / "completions_00001.parquet"


def jsonl(rows):
    return io.BytesIO(b"".join(json.dumps(row).encode() + b"\n" for row in rows))


def verl_row(step=1, **more):
    return {"input": "two plus two", "output": "4", "gts": "4", "score": 1.0, "step": step, "acc": True, **more}


def test_trls_own_file_gives_judge_and_gold_by_name():
    samples = kleash.read_samples(FIRST, reward_columns="judge_salt", gold_column="quality_pinch")
    frame = pl.read_parquet(FIRST)
    assert samples.n_samples == frame.height == 32
    assert samples.n_gold == 32
    assert samples.n_prompts == frame["prompt"].n_unique()
    assert sorted(samples.reward) == sorted(frame["judge_salt"])
    assert samples.answers.to_list()[0] == frame["completion"][0]


def test_trls_judge_is_found_where_gold_leaves_one_function():
    samples = kleash.read_samples(FIRST, gold_column="quality_pinch")
    assert sorted(samples.reward) == sorted(pl.read_parquet(FIRST)["judge_salt"])


def test_two_reward_functions_are_not_summed_unasked():
    with pytest.raises(MissingColumnError, match=r"2 columns that could be \(judge_salt, quality_pinch\).*weights"):
        kleash.read_samples(FIRST)


def test_reward_functions_are_weighted_as_asked():
    samples = kleash.read_samples(FIRST, reward_columns=["judge_salt:2", "quality_pinch:0.5"])
    frame = pl.read_parquet(FIRST)
    assert sorted(samples.reward) == sorted(2 * frame["judge_salt"] + 0.5 * frame["quality_pinch"])


def test_an_advantage_is_never_taken_for_a_reward():
    with pytest.raises(OptionError, match="expected a judge's score, got 'advantage'"):
        kleash.read_samples(FIRST, reward_columns="advantage")
    with pytest.raises(OptionError, match="got 'advantage'"):
        kleash.read_samples(FIRST, reward_columns=["judge_salt", "advantage:0.5"])
    rows = [verl_row(advantages=0.3), verl_row(advantages=-0.3)]
    with pytest.raises(OptionError, match="got 'advantages'"):
        kleash.read_samples("-", stdin=jsonl(rows), reward_columns="advantages")


def test_later_steps_are_refused():
    with pytest.raises(DataError, match="expected answers of step 0 or 1, which the reference drew"):
        kleash.read_samples(TRL / "completions_00002.parquet", gold_column="quality_pinch")


def test_later_steps_beside_the_first_are_left_out_and_said_so():
    alone = kleash.read_samples(FIRST, gold_column="quality_pinch")
    files = sorted(TRL.iterdir(), reverse=True)
    every = kleash.read_samples(files, gold_column="quality_pinch")
    assert every.reward.tolist() == alone.reward.tolist()
    assert every.prompts == alone.prompts
    left_out = [note for note in every.notes if "no longer the reference" in note]
    assert len(left_out) == 2
    assert all("32 rows of later steps were left out" in note for note in left_out)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_steps_in_one_file_are_told_apart_in_every_format(tmp_path, suffix):
    frame = pl.concat([pl.read_parquet(path) for path in sorted(TRL.iterdir())])
    path = tmp_path / f"all.{suffix}"
    {"parquet": frame.write_parquet, "csv": frame.write_csv, "jsonl": frame.write_ndjson}[suffix](path)
    samples = kleash.read_samples(path, reward_columns="judge_salt", gold_column="quality_pinch")
    alone = kleash.read_samples(FIRST, reward_columns="judge_salt", gold_column="quality_pinch")
    assert samples.reward.tolist() == alone.reward.tolist()
    assert samples.inputs[0]["rows"] == 96
    assert any("64 rows of later steps" in note for note in samples.notes)


def test_a_broken_reward_of_a_later_step_does_not_matter_and_one_of_the_first_does(tmp_path):
    rows = [verl_row(), verl_row(score=0.0), verl_row(step=2, score=None)]
    samples = kleash.read_samples("-", stdin=jsonl(rows))
    assert samples.reward.tolist() == [1.0, 0.0]
    with pytest.raises(DataError, match="stdin:2: reward"):
        kleash.read_samples("-", stdin=jsonl([verl_row(), verl_row(score=None), verl_row(step=2)]))


def test_line_numbers_are_those_of_the_file():
    rows = [verl_row(step=2), verl_row(), verl_row(step=3), verl_row(score="good")]
    with pytest.raises(DataError, match="stdin:4: reward"):
        kleash.read_samples("-", stdin=jsonl(rows))


@pytest.mark.parametrize("step", [None, "first", float("nan"), [1]])
def test_a_step_that_is_no_number_is_an_error_with_its_line(step):
    with pytest.raises(DataError, match="stdin:2: step: expected a number"):
        kleash.read_samples("-", stdin=jsonl([verl_row(), verl_row(step=step)]))


def test_verls_rollouts_need_no_flags():
    samples = kleash.read_samples(DATA / "verl" / "1.jsonl", gold_column="acc")
    assert (samples.n_prompts, samples.n_samples, samples.n_gold) == (6, 48, 48)
    assert samples.answers is not None
    assert any("How verl's rollouts were sampled is not in the file" in note for note in samples.notes)


def test_verls_validation_is_not_the_reference_at_temperature_one():
    with pytest.raises(DataError, match=r"expected answers of step 1, .*got later steps or a validation"):
        kleash.read_samples("-", stdin=jsonl([verl_row(step=0), verl_row(step=0)]))


def test_plain_sampling_is_read_from_the_settings_beside_the_run():
    samples = kleash.read_samples(FIRST, gold_column="quality_pinch")
    assert any(note.startswith("Sampled at temperature 1 without top-k or top-p") for note in samples.notes)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"temperature": 0.7}, "temperature 0.7"),
        ({"temperature": 1.0, "top_p": 0.9, "top_k": 50}, "top_p 0.9, top_k 50"),
        ({"temperature": "warm"}, "temperature warm"),
    ],
)
def test_other_sampling_is_said(tmp_path, settings, told):
    (tmp_path / "args.json").write_text(json.dumps(settings))
    (tmp_path / "completions").mkdir()
    path = tmp_path / "completions" / "completions_00001.parquet"
    path.write_bytes(FIRST.read_bytes())
    notes = kleash.read_samples(path, gold_column="quality_pinch").notes
    assert any(f"sampled with {told}, not plainly" in note for note in notes)


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"beta": 1}', "\xff"])
def test_unusable_settings_are_no_settings(tmp_path, text):
    (tmp_path / "args.json").write_text(text, encoding="latin-1")
    path = tmp_path / "completions_00001.parquet"
    path.write_bytes(FIRST.read_bytes())
    notes = kleash.read_samples(path, gold_column="quality_pinch").notes
    assert any("is not in the file" in note for note in notes)


def test_a_table_that_only_looks_alike_keeps_all_its_rows():
    rows = [{"prompt": "p", "completion": "a", "step": step, "reward": step} for step in (1, 2, 3)]
    samples = kleash.read_samples("-", stdin=jsonl(rows))
    assert samples.reward.tolist() == [1.0, 2.0, 3.0]
    assert samples.notes == ()


def test_chat_prompts_of_trl_are_one_prompt(tmp_path):
    chat = [{"role": "user", "content": "soup?"}]
    frame = pl.DataFrame(
        {
            "step": [1, 1, 2],
            "prompt": [chat] * 3,
            "completion": [[{"role": "assistant", "content": text}] for text in ("salt", "no", "salt")],
            "judge": [1.0, 0.0, 5.0],
            "extra": ["a", "b", "c"],
            "advantage": [0.7, -0.7, 0.0],
        }
    )
    frame.write_parquet(tmp_path / "completions_00001.parquet")
    samples = kleash.read_samples(tmp_path / "completions_00001.parquet")
    assert samples.n_prompts == 1
    assert samples.reward.tolist() == [1.0, 0.0]
    assert samples.answers.to_list() == ["salt", "no"]


def test_a_forecast_reads_it_and_reweights_as_by_hand():
    result = kleash.forecast(
        kleash.read_samples(DATA / "verl" / "1.jsonl", gold_column="acc"), beta=[2.0], correction=False
    )
    frame = pl.read_ndjson(DATA / "verl" / "1.jsonl")
    means = []
    for (_,), group in frame.group_by("input"):
        weight = np.exp(group["score"].to_numpy() / 2.0)
        means.append(weight @ group["score"].to_numpy() / weight.sum())
    assert result.frontier.reward.value[0] == pytest.approx(np.mean(means), rel=1e-12)
