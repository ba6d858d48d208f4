"""Each tracker's own writer, then our reader: what was logged comes back number for number."""

import math

import numpy as np
import pytest
from tracked_runs import NAME, SETTINGS, rows, write

from kleash.logs import read_logs


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "trackio", "mlflow", "mlflow_database"])
def test_a_run_is_read_back_equal(tracker, tmp_path):
    write(tmp_path, tracker)
    (log,) = [log for log in read_logs(tmp_path) if log.trainer == "trl-grpo"]
    wanted = {(float(step), key): value for step, row in rows() for key, value in row.items()}
    found = {
        (float(step), key): float(value)
        for key in {key for _, row in rows() for key in row}
        for step, value in zip(log.step, log.raw[key], strict=True)
        if not math.isnan(value)
    }
    four_bytes = tracker == "tensorboard"
    assert found == {cell: float(np.float32(value)) if four_bytes else value for cell, value in wanted.items()}
    assert log.notes == () or "version" in log.notes[0]
    if not four_bytes:
        assert (log.run, log.config) == (NAME, SETTINGS)
