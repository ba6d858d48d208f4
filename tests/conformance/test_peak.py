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
    assert fallen([1.0, 1.0], [0.0, 0.0]) == 0.25  # two equal signs by chance
    assert fallen(np.ones(30), np.zeros(30)) < 1e-8
    with pytest.raises(ShapeError):
        fallen([1.0], [0.0])
    with pytest.raises(OptionError, match="false_alarm"):
        GoldPeak(looks=5, false_alarm=0.0)


def test_prompts_without_gold_are_left_out_and_stop_nothing_being_seen():
    rng = np.random.default_rng(0)
    gone = np.where(np.arange(40) % 4 == 0, np.nan, 0.0)
    before, now = rng.normal(1.0, 0.1, 40) + gone, rng.normal(0.0, 0.1, 40)
    known = ~np.isnan(before)
    assert fallen(before, now) == fallen(before[known], now[known]) < 1e-10
    assert fallen(before, np.where(known, np.nan, now)) == 1.0  # no prompt has both
    watch = GoldPeak(looks=5, patience=1)
    found = [watch.update(i, rng.normal(m, 0.1, 40) + gone) for i, m in enumerate([0.0, 1.0, 0.2])]
    assert found == [False, False, True]
    assert watch.best_step == 1


def test_a_measurement_without_any_gold_is_none():
    watch = GoldPeak(looks=5, patience=2)
    high, low, none = np.ones(20), np.zeros(20), np.full(20, np.nan)
    assert [watch.update(i, g) for i, g in enumerate([high, low, none, low])] == [False, False, False, True]


def test_the_stated_power():
    """Of 400 falls of 0.7 standard deviations, half by the t distribution's own power; 5 standard errors either way."""
    rng = np.random.default_rng(2)
    level = GoldPeak(looks=20).level
    for size, share in ((0.7, 0.545), (1.0, 0.949)):
        seen = np.mean([fallen(rng.normal(size, 1.0, 32), np.zeros(32)) < level for _ in range(400)])
        assert abs(seen - share) < 5 * np.sqrt(share * (1 - share) / 400)
