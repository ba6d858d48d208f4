"""Texts that no trainer's shape fits: pairs, tables, warnings, steps as 1/120, printed configurations."""

import json
from pathlib import Path

import numpy as np
import pytest

from kleash.audit import check
from kleash.errors import DataError
from kleash.logs import read_logs

STEPS = range(1, 13)
REWARD = [round(0.3 + 0.01 * step, 3) for step in STEPS]
KL = [round(0.001 * (step - 1), 4) for step in STEPS]
ROWS = list(zip(STEPS, REWARD, KL, strict=True))
DICT = "{'loss': 0.0001, 'reward': %s, 'kl': %s, 'frac_reward_zero_std': 0.1, 'epoch': %s}\n"
VERL = "critic/score/mean:%s - critic/rewards/mean:0.3 - actor/kl_loss:%s - actor/pg_loss:0.01"
WARNING = "x.py:1194: UserWarning: KL divergence is starting to become negative: %s - this might be a precursor\n"
RATIO = "x.py:1314: UserWarning: The average ratio of batch (%s) exceeds threshold 10.00. Skipping batch.\n"


def put(folder: Path, text: str, name: str = "run.log") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "shape",
    [
        "Iter {s}: Train loss 0.5, reward {r}, KL {k}, lr 1e-06, It/sec 0.31\n",
        "[12:00:07] step: {s} | reward: {r} | kl: {k} | loss: 0.01\n",
        "INFO 2026-01-02 step {s}/12 loss=0.01 avg reward={r} mean kl={k}\n",
        "step {s} reward {r}\nstep {s} kl {k}\nstep {s} loss 0.01\n",
        "Update #{s} (KL: {k}; average reward: {r})\n",
        "iteration {s}   reward_mean: {r}   kl_mean: {k}   time: 3.5s\n",
    ],
)
def test_lines_of_names_and_numbers(shape, tmp_path):
    text = (
        "Loading the model of 7 layers\n" + "".join(shape.format(s=s, r=r, k=k) for s, r, k in ROWS) + "Done in 9 s\n"
    )
    (log,) = read_logs(put(tmp_path, text))
    assert log.trainer == "table"
    np.testing.assert_array_equal(log.step, STEPS)
    np.testing.assert_array_equal(log.reward, REWARD)
    np.testing.assert_array_equal(log.kl[0].values, KL)


@pytest.mark.parametrize(
    "text",
    [
        "At step 3 the reward of work is rest. Reward 5 of them.\n",  # prose with one number: no run of steps
        "step 1 took 3 s\nstep 2 took 4 s\n",
        "Iter one: KL 0.1\nIter two: KL 0.2\n",
    ],
)
def test_prose_is_no_log(text, tmp_path):
    try:
        logs = read_logs(put(tmp_path, text))
    except DataError:
        return
    assert sum(log.rows for log in logs) < 2


def test_rows_of_a_trainer_come_before_pairs(tmp_path):
    text = "".join(f"step {s} reward 9 kl 9\n" + DICT % (r, k, s) for s, r, k in ROWS)
    (log,) = read_logs(put(tmp_path, text))
    np.testing.assert_array_equal(log.reward, REWARD)


@pytest.mark.parametrize("title", ["", "# Runs\n\nsome | words\n\n", "| a |\n|---|\n| 1 |\n\n"])
def test_a_table_of_markdown(title, tmp_path):
    rows = "".join(f"| {s} | **{r}** | {k} | - |\n" for s, r, k in ROWS)
    (log,) = read_logs(
        put(tmp_path, f"{title}| step | reward | kl | gold |\n|---:|:---:|---|---|\n{rows}\nend\n", "run.md")
    )
    np.testing.assert_array_equal(log.step, STEPS)
    np.testing.assert_array_equal(log.reward, REWARD)
    assert log.gold is None or np.isnan(log.gold).all()


def test_json_keyed_by_step(tmp_path):
    rows = {str(s): {"reward": r, "kl": k} for s, r, k in ROWS}
    (log,) = read_logs(put(tmp_path, json.dumps(rows), "run.json"))
    np.testing.assert_array_equal(log.step, STEPS)
    np.testing.assert_array_equal(log.kl[0].values, KL)


@pytest.mark.parametrize("quote", ["json", "python"])
@pytest.mark.parametrize("key", ["global_step/max_steps", "step", "global_step"])
def test_a_step_may_say_of_how_many(key, quote, tmp_path):
    """ms-swift writes 1/120; a first row at the level of the run is then judged at its step."""
    every = [{"reward": r, "kl": 0.4 + k, "frac_reward_zero_std": 0.1, key: f"{3 * s}/120"} for s, r, k in ROWS]
    text = "".join((json.dumps(row) if quote == "json" else str(row)) + "\n" for row in every)
    (log,) = read_logs(put(tmp_path, text, "run.jsonl"))
    assert not log.numbered
    np.testing.assert_array_equal(log.step, [3.0 * s for s in STEPS])


def test_the_global_step_of_a_line_is_no_second_line(tmp_path):
    line = "step:{s} - " + VERL + " - training/global_step:{s} - training/epoch:0\n"
    text = "".join(line.replace("{s}", str(s)) % (r, k) for s, r, k in ROWS)
    (log,) = read_logs(put(tmp_path, text))
    assert log.notes == ()
    np.testing.assert_array_equal(log.raw["training/epoch"], 0.0)
    crashed = text.replace(" - training/global_step:5 - training/epoch:0\n", "")
    (log,) = read_logs(put(tmp_path, crashed))
    assert log.notes[0].startswith("line 5 is cut off")


def test_a_line_may_begin_with_the_global_step(tmp_path):
    text = "".join(f"training/global_step:{s} - training/epoch:0 - " + VERL % (r, k) + "\n" for s, r, k in ROWS)
    (log,) = read_logs(put(tmp_path, text))
    np.testing.assert_array_equal(log.step, STEPS)
    assert log.notes == ()


@pytest.mark.parametrize(
    ("printed", "broken"),
    [
        ("{'actor': {'use_kl_loss': True,\n 'strategy': 'fsdp'},\n 'nnodes': 1}\n", False),
        ("{'beta': 0.04, 'learning_rate': 1e-06,\n 'output_dir': 'out'}\n", False),
        ("{'_name_or_path': 'model',\n", False),
        ("{'loss': 0.1, 'kl': 0.2, 'rewa\n", True),
        ("{'reward': 0.3, 'kl'\n", True),
    ],
)
def test_a_printed_configuration_is_no_broken_row(printed, broken, tmp_path):
    (log,) = read_logs(put(tmp_path, printed + "".join(DICT % (r, k, s) for s, r, k in ROWS)))
    assert any("broken line" in note for note in log.notes) == broken


def test_warnings_are_all_that_some_consoles_show(tmp_path):
    """Huggingface/trl 1857: progress bars and warnings, nothing else; the step is that of the bar before."""
    text = "".join(f"{s}it [{s}:33, 93.1s/it]\n" + (WARNING % "-2.44" if s in (4, 9) else "") for s in STEPS)
    (log,) = read_logs(put(tmp_path, text + RATIO % "12.26" + "13it [9:33, 93.1s/it]\n" + RATIO % "15.5"))
    assert log.trainer == "trl-legacy-ppo"
    np.testing.assert_array_equal(log.step, [4, 9, 12, 13])
    np.testing.assert_array_equal(log.kl[0].values[:2], [-2.44, -2.44])
    assert "TRL skipped 2 batches whose mean ratio was above its ratio_threshold: up to 15.5" in log.notes
    assert "KL_NEGATIVE" in [finding.code for finding in check(log.path).problems]


def test_a_warning_goes_with_the_row_behind_it(tmp_path):
    """hiyouga/LlamaFactory 664: rows without a KL, the KL in warnings between them."""
    rows = [str({"loss": 0.3, "reward": r, "learning_rate": 1e-05, "epoch": s / 10}) + "\n" for s, r, _ in ROWS]
    text = "".join((WARNING % f"-{s}.5" if s % 3 == 0 else "") + row for s, row in zip(STEPS, rows, strict=True))
    file = put(tmp_path, text)
    (log,) = read_logs(file)
    assert log.rows == 12
    assert {int(s): v for s, v in zip(log.step, log.kl[0].values, strict=True) if not np.isnan(v)} == {
        3: -3.5, 6: -6.5, 9: -9.5, 12: -12.5,
    }  # fmt: skip
    assert "KL_NEGATIVE" in [finding.code for finding in check(file).problems]


def test_a_console_without_warnings_has_no_negative_kl(tmp_path):
    """The healthy twin: the same rows with a KL above 0."""
    every = [{"ppo/mean_scores": r, "objective/kl": k, "objective/kl_coef": 0.2, "epoch": s} for s, r, k in ROWS]
    rows = [f"{row}\n" for row in every]
    assert "KL_NEGATIVE" not in [finding.code for finding in check(put(tmp_path, "".join(rows))).problems]
