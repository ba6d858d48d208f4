"""One pass over the weights finds what three calls of the estimate find."""

import numpy as np
import pytest

from kleash import _threads
from kleash.forecasting.estimate import estimate_prompts
from kleash.forecasting.fused import estimate_halved

BETAS = np.geomspace(0.01, 100.0, 33)


@pytest.mark.parametrize("n_samples", [4, 5, 9, 64])
@pytest.mark.parametrize("kind", ["normal", "levels", "alike", "cheat"])
def test_one_pass_is_three_estimates(n_samples, kind):
    rng = np.random.default_rng(n_samples)
    reward = 60 + rng.normal(size=(70, n_samples))
    if kind == "levels":
        reward = np.round(reward)
    elif kind == "alike":
        reward[:] = 3.0
    elif kind == "cheat":
        reward[:, 1] = 1e6
    known = rng.random(reward.shape) < 0.5
    marked = rng.normal(size=reward.shape) * known
    split = np.argsort(rng.random(reward.shape), axis=1)
    half = n_samples // 2
    whole, parts = estimate_halved(reward, marked, 1 / BETAS, split=split, labelled=known)
    sides = [whole, *parts]
    for side, rows in zip(sides, (np.arange(n_samples)[None], split[:, :half], split[:, half:]), strict=True):
        r, x = (
            np.take_along_axis(values, np.broadcast_to(rows, (70, rows.shape[1])), axis=1)
            for values in (reward, marked)
        )
        expected = estimate_prompts(r, x, 1 / BETAS, labelled=known if side is whole else None)
        for name in ("plain", "corrected", "ess", "label_ess"):
            if name == "label_ess" and side is not whole:
                continue
            scale = 1.0 if name != "corrected" or kind != "cheat" else 1e6
            np.testing.assert_allclose(
                getattr(side, name), getattr(expected, name), rtol=1e-12, atol=1e-12 * scale, err_msg=name
            )


@pytest.mark.parametrize("threads", ["1", "3"])
def test_results_come_in_the_order_of_their_arguments_however_many_threads(monkeypatch, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert _threads.n_threads() == int(threads)
    assert list(_threads.in_order(lambda n: n * n, iter(range(50)))) == [n * n for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        list(_threads.in_order(lambda n: 1 // (5 - n), iter(range(50))))
