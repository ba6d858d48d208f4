"""What a reader says a number is, and the arithmetic behind it: each line here has killed a planted mistake."""

import json

import numpy as np
import pytest

import kleash
from kleash.logs import read_logs


def rows_of(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "key", "clamp"),
    [({"critic/score/mean": 0.1, "actor/kl_loss": 0.01, "actor/pg_loss": 0.0}, "actor/kl_loss", (-20.0, 20.0)),
     ({"critic/score/mean": 0.1, "actor/reward_kl_penalty": 0.01}, "actor/reward_kl_penalty", None),
     ({"train/kl_penalty": 0.01, "train/loss": 0.1, "train/reward": 0.5}, "train/kl_penalty", (-20.0, 20.0)),
     ({"objective/kl0_avg": 0.1, "objective/kl2_avg": 0.01, "loss/kl_avg": 0.1}, "objective/kl2_avg", (-40.0, 40.0)),
     ({"rollout/raw_reward": 0.1, "train/kl_loss": 0.01, "train/pg_loss": 0.1}, "train/kl_loss", None)],
)  # fmt: skip
def test_the_clamp_of_a_logged_kl_is_its_trainers(tmp_path, row, key, clamp):
    (log,) = read_logs(rows_of(tmp_path / "log.jsonl", [{"step": i, **row} for i in (1, 2, 3)]))
    assert {column.key: column.spec.clamp for column in log.kl}[key] == clamp


def test_a_negative_square_root_is_no_kl(tmp_path):
    roots = [0.5, -0.5, 1.5]
    rows = [{"step": i, "policy/sqrt_kl": root, "kl_ctl_value": 0.1} for i, root in enumerate(roots)]
    (column,) = read_logs(rows_of(tmp_path / "log.jsonl", rows))[0].kl
    np.testing.assert_array_equal(column.values, [0.25, np.nan, 2.25])


@pytest.mark.parametrize(("off", "known"), [(0.0, True), (0.001, True), (0.01, False)])
def test_weights_are_known_where_the_sum_fits_to_two_thousandths(tmp_path, off, known):
    rows = [{"step": i, "kl": 0.01, "rewards/a/mean": a, "rewards/b/mean": b, "reward": 2 * a + 0.5 * b + off}
            for i, (a, b) in enumerate([(0.1, 0.9), (0.4, 0.2), (0.7, 0.5)], start=1)]  # fmt: skip
    rows_of(tmp_path / "log.jsonl", rows)
    (tmp_path / "args.json").write_text(json.dumps({"reward_weights": [0.5, 2.0]}))
    (log,) = read_logs(tmp_path / "log.jsonl")
    assert log.component_weights == ({"a": 2.0, "b": 0.5} if known else None)


def test_tokens_whose_k3_an_output_clamp_cuts_off_are_counted(tmp_path):
    """k3 is 16.1 at a log ratio of -3, 9.86 at -2.6: four tokens of ten are past an output clamp at 10."""
    logp, reference = np.array([-6.0] * 4 + [-5.6] * 3 + [-2.0] * 3), np.array([-3.0] * 7 + [-2.0] * 3)
    rows = [{"prompt_id": i, "logp": (logp - i / 8).tolist(), "ref_logp": (reference - i / 8).tolist(), "reward": i % 2}
            for i in range(8)]  # fmt: skip
    report = kleash.check(rows_of(tmp_path / "rollouts.jsonl", rows))
    evidence = {finding.code: finding for finding in report.findings}["OVERFLOW"].evidence
    assert evidence["tokens_k3_above_10"] == 4 * 8
