"""The stop at the gold peak, without a trainer."""

import numpy as np
import pytest

from kleash.errors import OptionError, ShapeError
from kleash.integrations.peak import GoldPeak, fallen


def stops(means: np.ndarray, rng: np.random.Generator, *, patience: int = 1, prompts: int = 32) -> int | None:
    watch = GoldPeak(looks=len(means), patience=patience, false_alarm=0.05)
    own = rng.normal(size=prompts)
    for step, mean in enumerate(means):
        if watch.update(step, mean + own + 0.5 * rng.normal(size=prompts)):
            return step
    return None


def test_false_alarms_on_a_flat_run():
    """200 flat runs of 20 looks: at 5 % at most 21 alarms in 99.9 % of the times. Without the correction: most."""
    rng = np.random.default_rng(0)
    assert sum(stops(np.zeros(20), rng) is not None for _ in range(200)) <= 21


def test_a_rise_and_fall_is_seen_after_its_peak():
    rng = np.random.default_rng(1)
    means = np.concatenate([np.linspace(0, 2, 8), np.linspace(2, -1, 12)])
    found = [stops(means, rng, patience=3) for _ in range(50)]
    assert all(step is not None and 9 <= step <= 16 for step in found)


def test_patience_needs_a_row():
    watch = GoldPeak(looks=10, patience=2)
    high, low = np.ones(20), np.zeros(20)
    assert [watch.update(i, g) for i, g in enumerate([high, low, high, low, low])] == [False] * 4 + [True]
    assert watch.best_step == 0


def test_equal_and_missing():
    assert fallen([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert fallen([1.0, 1.0], [0.0, 0.0]) == 0.0
    with pytest.raises(ShapeError):
        fallen([1.0], [0.0])
    with pytest.raises(OptionError, match="false_alarm"):
        GoldPeak(looks=5, false_alarm=0.0)
