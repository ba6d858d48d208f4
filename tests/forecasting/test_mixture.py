"""Estimates from several sources, held against answers really left out and against enumeration."""

import numpy as np
import pytest

from kleash.forecasting.estimate import estimate_prompts
from kleash.forecasting.mixture import Drawn, estimate_mixture, log_mixture

LAMBDA = np.array([0.0, 0.7, 5.0])


def some(sizes, *, seed=0, anchored=True, prompts=4):
    rng = np.random.default_rng(seed)
    size = (prompts, sum(sizes))
    log_ratio = 0.5 * rng.normal(size=(*size, len(sizes)))
    log_ratio[..., 0] *= not anchored
    return Drawn(
        reward=rng.normal(size=size),
        marked=rng.normal(size=size),
        label_weight=np.ones(size),
        log_m=log_mixture(log_ratio, sizes),
        log_ratio=log_ratio,
        sizes=sizes,
        anchored=anchored,
        factor=np.ones(size[1]),
    )


def by_hand(drawn, prompt, lam, factor):
    r, x, m = drawn.reward[prompt], drawn.marked[prompt], np.exp(drawn.log_m[prompt])
    w = np.exp(lam * r) / m * factor
    mass = (factor / m).sum() if drawn.anchored else factor.sum()
    mean = (w * r).sum() / w.sum()
    return np.array([mean, lam * mean - np.log(w.sum() / mass), (w * x).sum() / w.sum()])


@pytest.mark.parametrize("anchored", [True, False])
def test_leaving_out_is_stratified(anchored):
    """Plain, corrected and deviations are those of answers really left out, the others of their source standing in."""
    sizes = (3, 5, 1)
    drawn = some(sizes, anchored=anchored)
    found = estimate_mixture(drawn, LAMBDA, keep_deviations=True)
    source = np.repeat(np.arange(3), sizes)
    for prompt in range(4):
        for b, lam in enumerate(LAMBDA):
            whole = by_hand(drawn, prompt, lam, np.ones(9))
            np.testing.assert_allclose(found.plain[:, prompt, b], whole, rtol=1e-12, atol=1e-12)
            corrected = whole.copy()
            for s in (0, 1):
                n, left = sizes[s], []
                for i in np.flatnonzero(source == s):
                    factor = np.where(source == s, n / (n - 1), 1.0)
                    factor[i] = 0.0
                    left.append(by_hand(drawn, prompt, lam, factor))
                corrected += (n - 1) * (whole - np.mean(left, axis=0))
                scale = np.sqrt((1 - 1 / n) / (1 - 1 / 9))
                np.testing.assert_allclose(
                    found.deviations[:, prompt, source == s, b].T, scale * (left - np.mean(left, axis=0)), atol=1e-11
                )
            np.testing.assert_allclose(found.corrected[:, prompt, b], corrected, atol=1e-11)


def test_the_reference_alone_is_the_forecast_of_old():
    rng = np.random.default_rng(1)
    reward, marked = rng.normal(size=(2, 6, 8))
    labelled = rng.random((6, 8)) < 0.5
    alone = Drawn(
        reward=reward,
        marked=marked,
        label_weight=labelled.astype(float),
        log_m=np.zeros((6, 8)),
        log_ratio=np.zeros((6, 8, 1)),
        sizes=(8,),
        anchored=True,
        factor=np.ones(8),
    )
    lam = np.array([0.0, 1e-3, 1.0, 30.0])
    found = estimate_mixture(alone, lam, keep_deviations=True)
    old = estimate_prompts(reward, marked, lam, labelled=labelled, keep_deviations=True)
    for name in ("plain", "corrected", "ess", "label_ess", "deviations"):
        np.testing.assert_allclose(getattr(found, name), getattr(old, name), rtol=1e-10, atol=1e-11, err_msg=name)
    np.testing.assert_allclose(found.spent, found.plain[1], atol=1e-12)


@pytest.mark.parametrize("anchored", [True, False])
def test_every_answer_once_for_each_of_its_chances_is_exact(anchored):
    """With counts in proportion to every source's probabilities the estimate is the enumeration, shares and KLs too."""
    q = np.array([4, 2, 1, 1]) / 8
    p = np.array([1, 1, 2, 4]) / 8
    s = np.array([2, 2, 2, 2]) / 8
    reward, gold = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 2.0, 1.0, -1.0])
    policies = [q, p] if anchored else [s, p]
    answers = np.concatenate([np.repeat(np.arange(4), (8 * policy).astype(int)) for policy in policies])
    log_ratio = np.stack([np.log(policy / q)[answers] for policy in policies], axis=1)[None]
    drawn = Drawn(
        reward=reward[answers][None],
        marked=gold[answers][None],
        label_weight=np.ones((1, 16)),
        log_m=log_mixture(log_ratio, (8, 8)),
        log_ratio=log_ratio,
        sizes=(8, 8),
        anchored=anchored,
        factor=np.ones(16),
    )
    found = estimate_mixture(drawn, LAMBDA)
    for b, lam in enumerate(LAMBDA):
        tilt = q * np.exp(lam * reward)
        tilt /= tilt.sum()
        mixture = (policies[0] + policies[1]) / 2
        kl = (tilt * np.log(tilt / q)).sum()
        np.testing.assert_allclose(found.plain[:, 0, b], [tilt @ reward, kl, tilt @ gold], atol=1e-12)
        np.testing.assert_allclose(found.spent[0, b], (tilt * np.log(tilt / mixture)).sum(), atol=1e-12)
        for n, policy in enumerate(policies):
            np.testing.assert_allclose(found.distance[n, 0, b], (tilt * np.log(tilt / policy)).sum(), atol=1e-12)
            np.testing.assert_allclose(found.share[n, 0, b], (tilt * policy / mixture).sum() / 2, atol=1e-12)


def test_halves_stand_for_the_whole():
    drawn = some((4, 9))
    assert some((3, 9)).halves(np.random.default_rng(0)) == []
    one, two = drawn.halves(np.random.default_rng(0))
    assert one.sizes == (2, 4)
    assert two.sizes == (2, 5)
    np.testing.assert_allclose(one.factor, [2.0] * 2 + [2.25] * 4)
    together = np.sort(np.concatenate([one.reward, two.reward], axis=1), axis=1)
    np.testing.assert_array_equal(together, np.sort(drawn.reward, axis=1))
