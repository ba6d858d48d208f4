"""Controllers: published steps, units, settings that must be refused, and what a trace does to a coefficient."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kleash.controllers import AdaptiveController, FixedController, init, simulate, update
from kleash.errors import OptionError

ZIEGLER = AdaptiveController(coefficient=0.2, target=6.0, horizon=10_000, unit="nats per answer")
VERL = AdaptiveController(coefficient=0.001, target=0.1, horizon=10_000, unit="nats per token")


def test_one_published_step():
    assert update(ZIEGLER, init(ZIEGLER), kl=12.0, n=256).coefficient == pytest.approx(0.201024, abs=1e-12)
    small = AdaptiveController(coefficient=0.1, target=1.0, horizon=100, unit="nats per token")
    assert update(small, init(small), kl=5.0, n=10).coefficient == pytest.approx(0.102, abs=1e-12)


def test_published_paths():
    below, above = simulate(VERL, np.full(500, 0.02), n=1024), simulate(VERL, np.full(500, 50.0), n=1024)
    assert below[[10, 100, 500]] == pytest.approx([8.13e-4, 1.26e-4, 3.2e-8], rel=0.01)
    assert above[[10, 100, 500]] == pytest.approx([0.00122, 0.0076, 25.2], rel=0.01)
    assert above[1] / above[0] == pytest.approx(1.02048, abs=1e-9)


def test_on_target_nothing_moves_and_fixed_never_does():
    assert simulate(ZIEGLER, [6.0] * 5, n=512) == pytest.approx(np.full(6, 0.2), abs=1e-15)
    fixed = FixedController(coefficient=0.05)
    assert simulate(fixed, [0.0, 100.0], n=1).tolist() == [0.05] * 3
    assert update(fixed, init(fixed), kl=1.0, n=1).updates == 1


def test_the_same_number_in_another_unit_is_refused():
    with pytest.raises(OptionError, match="multiply by the mean number of tokens"):
        update(ZIEGLER, init(ZIEGLER), kl=0.1, n=256, unit="nats per token")
    with pytest.raises(OptionError, match="divide by the mean number of tokens"):
        simulate(VERL, [6.0], n=256, unit="nats per answer")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"target": 0.0}, "target: expected a .*number above 0"),
        ({"horizon": 0.0}, "horizon: expected a .*number above 0"),
        ({"coefficient": 0.0}, "coefficient: expected a .*number above 0"),
        ({"target": float("nan")}, "target"),
        ({"clip": 0.0}, "clip"),
        ({"unit": "nats per batch"}, "unit: expected one of"),
    ],
)
def test_settings_are_validated(change, word):
    with pytest.raises(OptionError, match=word):
        AdaptiveController(**{"coefficient": 0.2, "target": 6.0, "horizon": 100.0, "unit": "nats per answer", **change})


def test_a_step_that_could_turn_the_penalty_around_is_refused():
    with pytest.raises(OptionError, match="horizon: expected a horizon above 2000"):
        update(AdaptiveController(coefficient=0.1, target=1.0, horizon=2000, unit="nats per token"),
               init(VERL), kl=0.0, n=10_000)  # fmt: skip
    with pytest.raises(OptionError, match="coefficient"):
        FixedController(coefficient=-0.1)
    for bad in (float("nan"), float("inf")):
        with pytest.raises(OptionError, match="kl"):
            update(ZIEGLER, init(ZIEGLER), kl=bad, n=1)
    with pytest.raises(OptionError, match="one number per batch"):
        simulate(ZIEGLER, [[1.0]], n=1)


@given(st.lists(st.floats(-100, 1000), max_size=30), st.integers(1, 9_999))
def test_the_coefficient_stays_positive_and_follows_the_error(trace, n):
    controller = AdaptiveController(coefficient=0.2, target=6.0, horizon=2000, unit="nats per answer")
    path = simulate(controller, trace, n=n)
    assert (path > 0).all()
    for kl, before, after in zip(trace, path[:-1], path[1:], strict=True):
        assert (after > before) == (kl > 6.0 and after != before)
