"""A sweep's own answers: each with its density under every policy, by the chain rule, against enumeration."""

import numpy as np
import pytest

pytest.importorskip("torch")

from dataclasses import replace

from kleash.train import lm_sweep
from kleash.train.lm import train_lm
from kleash.train.own import forecast_of, model_samples
from kleash.train.recipes import policy_log_probs, recipes
from kleash.train.reference import reference_answers


def trained(cellar, **how):
    """Policies at two betas and two seeds, the world, and their exact log ratios (G, P, Y)."""
    house = recipes(cache=cellar)
    world = house.world
    asked = {"beta": (0.3, 3.0), "seeds": 2, "forecast_samples": 24} | how
    run = train_lm(house.model, lm_sweep._cooking(house), replace(lm_sweep._COOKING, **asked))
    return run, world, policy_log_probs(house.model, groups=4) - world.log_reference


@pytest.fixture(scope="module")
def cellar(tmp_path_factory):
    return tmp_path_factory.getbasetemp().parent / "kleash-recipes"  # shared by all workers


@pytest.fixture(scope="module")
def swept(cellar):
    return trained(cellar, steps=12, learning_rate=0.03)


def test_log_ratios_under_every_policy_are_the_enumerated_ones(swept):
    """Sums over tokens of answers of one to five words; a policy's place or a prompt mistaken would show."""
    run, world, exact = swept
    samples = model_samples(run.sampler, reference_answers(run.sampler))
    assert samples.sources.names == (
        "reference",
        "beta 0.3 seed 0",
        "beta 0.3 seed 1",
        "beta 3 seed 0",
        "beta 3 seed 1",
    )
    assert np.bincount(samples.sources.code).tolist() == [3 * 24] + [3 * 6] * 4
    place = {answer: i for i, answer in enumerate(world.answers[0])}
    prompt = np.repeat([world.prompts.index(name) for name in samples.prompts], samples.counts)
    answer = np.array([place[text] for text in samples.answers])
    np.testing.assert_allclose(samples.sources.log_ratio[:, 1:], exact[:, prompt, answer].T, atol=2e-4)
    assert np.abs(exact[:, prompt, answer]).max() > 0.5
    np.testing.assert_allclose(samples.reward, world.reward[prompt, answer])
    np.testing.assert_allclose(samples.gold, world.gold[prompt, answer])


def test_no_two_policies_share_their_random_numbers(cellar):
    """Answers that do would count for more than they are: of policies that have hardly moved all would be the same."""
    run, _, _ = trained(cellar, steps=1, learning_rate=1e-5)
    samples = model_samples(run.sampler, reference_answers(run.sampler))
    texts = np.array(samples.answers.to_list())
    by_source = [texts[samples.sources.code == s].tolist() for s in range(1, 5)]
    same = [a == b for i in range(4) for j in range(i) for a, b in zip(by_source[i], by_source[j], strict=True)]
    assert np.mean(same) < 0.5


def test_without_answers_of_the_reference_or_at_another_temperature_there_are_none(swept):
    run, _, _ = swept
    assert model_samples(run.sampler, None) is None
    assert forecast_of(None, prompts="fixed", seed=0) is None
    warm = replace(run.sampler, training=replace(run.training, temperature=0.7))
    assert model_samples(warm, reference_answers(run.sampler)) is None
