"""Copies of answers: found however they lie in the file, counted once, and never seen in honest ties."""

import dataclasses

import numpy as np
import pytest

from kleash import Samples, forecast
from kleash.samples._copies import counted_once

P, K = 40, 12
CHANCE = "which chance does not do"
ONCE = "they were counted once."


def drawn(seed, *, kinds=None):
    """Answers to P prompts: prompt, score, text; of each prompt only ``kinds`` different ones, unequally likely."""
    rng = np.random.default_rng([seed, 7])
    prompt = np.repeat(np.arange(P), K)
    if kinds is None:
        return prompt, rng.normal(size=P * K), [f"answer {i}" for i in rng.permutation(P * K)]
    share = rng.dirichlet(np.full(kinds, 0.5), P)
    code = np.concatenate([rng.choice(kinds, K, p=p) for p in share])
    return prompt, code * 1.0, [f"{c}" for c in code]


def samples_of(prompt, score, text=None, *, rows=None, gold=None):
    rows = np.arange(len(prompt)) if rows is None else rows
    answer = None if text is None else [text[i] for i in rows]
    return Samples.from_arrays(prompt[rows], score[rows], answer=answer, gold=None if gold is None else gold[rows])


ORDERS = {
    "side by side": lambda n, m, rng: np.repeat(np.arange(n), m),
    "one file after the other": lambda n, m, rng: np.tile(np.arange(n), m),
    "shuffled": lambda n, m, rng: rng.permutation(np.repeat(np.arange(n), m)),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("texts", [True, False])
def test_repeated_rows_are_counted_once(order, m, texts):
    prompt, score, text = drawn(1)
    rows = ORDERS[order](prompt.size, m, np.random.default_rng(0))
    once, told = counted_once(samples_of(prompt, score, text if texts else None, rows=rows))
    assert told == (f"Copies: to 40 of 40 prompts every answer came {m} times, or a multiple of it, {CHANCE}; {ONCE}",)
    assert once.counts.tolist() == [K] * P
    assert sorted(once.reward) == sorted(score)


def test_honest_ties_among_repeated_rows_stay():
    prompt, score, text = drawn(2, kinds=4)
    once, told = counted_once(samples_of(prompt, score, text, rows=np.tile(np.arange(prompt.size), 2)))
    assert len(told) == 1
    assert sorted(zip(once.prompts, np.add.reduceat(once.reward, once.offsets[:-1]), strict=True)) == sorted(
        zip(map(str, range(P)), np.add.reduceat(score, np.arange(0, P * K, K)), strict=True)
    )


def test_copies_of_a_different_number_each_are_known_by_their_place():
    prompt, score, text = drawn(3)
    times = np.where(prompt < 30, np.random.default_rng(0).integers(1, 5, prompt.size), 1)
    rows = np.repeat(np.arange(prompt.size), times)
    once, told = counted_once(samples_of(prompt, score, text, rows=rows))
    assert told == (f"Copies: to 30 of 40 prompts copies of an answer stand side by side, {CHANCE}; {ONCE}",)
    assert sorted(once.reward) == sorted(score)


def test_prompts_under_two_names_are_counted_once():
    prompt, score, text = drawn(4)
    some = np.flatnonzero(prompt < 5)
    twice = Samples.from_arrays(
        np.concatenate([prompt, prompt[some] + 100]),
        np.concatenate([score, score[some]]),
        answer=text + [text[i] for i in some],
    )
    once, told = counted_once(twice)
    assert told == (
        f"Copies: to 5 of 45 prompts the answers are exactly those of another prompt under another name; {ONCE}",
    )
    assert once.prompts == tuple(map(str, range(P)))


def test_of_copies_the_labelled_one_is_kept():
    prompt, score, _ = drawn(5)
    gold = np.tile([np.nan, 1.0], prompt.size)
    rows = np.repeat(np.arange(prompt.size), 2)
    once, _ = counted_once(Samples.from_arrays(prompt[rows], score[rows], gold=gold))
    assert once.n_gold == once.n_samples == prompt.size


def test_copies_within_one_source_of_several():
    prompt, score, _ = drawn(6)
    source = np.where(np.arange(prompt.size) % 2, "reference", "policy")
    ratio = np.where(source == "policy", 0.1, 0.0)
    rows = np.tile(np.arange(prompt.size), 2)
    once, told = counted_once(
        Samples.from_arrays(prompt[rows], score[rows], source=source[rows], log_ratio=ratio[rows])
    )
    assert len(told) == 1
    assert once.n_samples == prompt.size
    assert np.bincount(once.sources.code).tolist() == [P * K // 2] * 2


def test_the_same_answer_of_two_sources_is_no_copy():
    """Each answer came once from each of two sources, and every row is there twice: one of each is kept."""
    prompt, score, text = drawn(6)
    rows = np.tile(np.arange(prompt.size), 4)
    source = np.repeat(["reference", "policy"] * 2, prompt.size)
    ratio = np.where(source == "policy", 0.1, 0.0)
    answers = [text[i] for i in rows]
    once, _ = counted_once(
        Samples.from_arrays(prompt[rows], score[rows], answer=answers, source=source, log_ratio=ratio)
    )
    assert np.bincount(once.sources.code).tolist() == [prompt.size] * 2


def test_groups_of_prompts_go_with_the_prompts_that_are_left():
    prompt, score, _ = drawn(9)
    grouped = dataclasses.replace(samples_of(prompt, score), clusters=np.arange(P) // 2)
    assert grouped.keeping(~np.isin(prompt, [0, 1, 5])).clusters.tolist() == [
        n // 2 for n in range(P) if n not in (0, 1, 5)
    ]


@pytest.mark.parametrize("kinds", [None, 2, 6])
@pytest.mark.parametrize("arranged", ["as drawn", "sorted"])
def test_honest_answers_are_left_alone(kinds, arranged):
    """The chance of a false alarm is below 3 in 1,000 in each of 120 sets; sorted ones fail without the guard."""
    for seed in range(20):
        prompt, score, text = drawn(seed, kinds=kinds)
        rows = np.lexsort((score, prompt)) if arranged == "sorted" else None
        given = samples_of(prompt, score, text, rows=rows)
        assert counted_once(given) == (given, ())


def test_the_forecast_says_so_and_is_that_of_the_rows_counted_once():
    prompt, score, _ = drawn(8)
    gold = 1.0 * (score > 0)
    rows = np.tile(np.arange(prompt.size), 2)
    single = forecast(samples_of(prompt, score, gold=gold), beta=[1.0])
    double = forecast(samples_of(prompt, score, gold=gold, rows=rows), beta=[1.0])
    assert double.frontier.kl.value == pytest.approx(single.frontier.kl.value)
    assert double.frontier.kl.hi == pytest.approx(single.frontier.kl.hi, rel=1e-6)
    assert double.n_samples == prompt.size
    assert any(reason.startswith("Copies: to 40 of 40") for reason in double.to_dict()["verdict"]["reasons"])
