"""The recipes world: enumeration against the model itself, the story it has to tell, and training that arrives."""

import copy
import itertools
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kleash import exact_frontier, find_window, forecast, moments  # noqa: E402
from kleash.errors import OptionError  # noqa: E402
from kleash.train import recipes as house  # noqa: E402
from kleash.train.adapters import attach  # noqa: E402
from kleash.train.objectives import Scores, rloo_loss, score  # noqa: E402
from kleash.train.result import SweepResult  # noqa: E402
from kleash.train.sweep import sweep  # noqa: E402


@pytest.fixture(scope="session")
def cellar(tmp_path_factory):
    """A cache shared by all workers: the reference is made once."""
    return tmp_path_factory.getbasetemp().parent / "kleash-recipes"


@pytest.fixture(scope="session")
def kitchen(cellar):
    return house.recipes(cache=cellar)


@pytest.fixture
def cached(monkeypatch, cellar, kitchen):
    monkeypatch.setattr(house, "_cache_folder", lambda given: cellar)


# ------------------------------------------------------------------------------------------------------ enumeration


def test_every_answer_once():
    ids = house.answer_ids()
    assert len(ids) == len(set(ids)) == 19_608
    assert all(len(answer) <= house.LENGTH for answer in ids)
    assert all((0 in answer) == (answer[-1] == 0) for answer in ids)
    assert all(len(answer) == house.LENGTH for answer in ids if 0 not in answer)


def test_probabilities_are_the_models_own(kitchen):
    ids, log_p = house.answer_ids(), house.policy_log_probs(kitchen.model)[0]
    np.testing.assert_allclose(np.logaddexp.reduce(log_p, axis=1), 0.0, atol=1e-12)
    rng = np.random.default_rng(0)
    for row, prompt in enumerate(kitchen.prompt_ids):
        for y in rng.integers(len(ids), size=20):
            whole = torch.tensor([[*prompt, *ids[y]]])
            with torch.no_grad():
                logits = kitchen.model(input_ids=whole, use_cache=False).logits[0].double().log_softmax(-1)
            n = len(prompt)
            direct = sum(logits[n - 1 + t, token].item() for t, token in enumerate(ids[y]))
            assert log_p[row, y] == pytest.approx(direct, abs=2e-5)


def test_groups_are_told_apart(kitchen):
    model = copy.deepcopy(kitchen.model)
    adapters = attach(model, groups=2, rank=2)
    with torch.no_grad():
        adapters.values[1] += 0.05 * torch.randn(adapters.values[1].shape, generator=torch.Generator().manual_seed(0))
    first, second = house.policy_log_probs(model, groups=2)
    np.testing.assert_allclose(first, kitchen.world.log_reference, atol=1e-4)
    assert np.abs(second - first).max() > 0.01
    with adapters.reference():
        np.testing.assert_allclose(house.policy_log_probs(model)[0], kitchen.world.log_reference, atol=1e-4)


# --------------------------------------------------------------------------------------------------------- the story


def test_critic_and_taste():
    orders = ["fish"] * 4
    answers = ["salt dill serve", "salt salt salt salt salt", "thyme serve", "butter"]
    assert house.judge(orders, answers) == pytest.approx([3.7, 3.0, 1.2, 0.0])
    assert house.judge(orders, answers, love=2.0) == pytest.approx([4.7, 6.0, 1.2, 0.0])
    assert house.gold(orders, answers) == pytest.approx([2.0, -5.0, -0.2, -0.8])


def test_the_default_dial_covers_what_it_promises(kitchen):
    assert kitchen.betas[0] == 0.0
    kl = moments(kitchen.world, kitchen.betas[1:]).kl
    assert len(kl) == 7
    assert (np.diff(kl) < 0).all()
    assert 0.03 < kl[-1] < 0.07
    assert 5.0 < kl[0] < 6.2
    assert (kl[:-1] / kl[1:] < 4.5).all()  # spread, not bunched


def test_an_interior_peak_a_hacked_end_and_a_tight_end_that_changes_nothing(kitchen):
    world = kitchen.world
    at, reference = moments(world, kitchen.betas), moments(world, np.inf)
    policy = np.exp(world.log_reference)
    sd = np.sqrt((policy * (world.gold - (policy * world.gold).sum(1, keepdims=True)) ** 2).sum(1).mean())
    best = int(at.gold.argmax())
    assert 0 < best < len(at.gold) - 1
    assert at.gold[best] > max(at.gold[0], at.gold[-1], reference.gold[0]) + 0.1 * sd
    assert at.gold[0] < reference.gold[0] - 0.5 * sd  # hacked: worse than untouched
    assert at.reward[0] == pytest.approx(world.reward.max())
    far = moments(world, 100.0)
    assert abs(far.gold[0] - reference.gold[0]) < 0.02 * sd
    assert far.kl[0] < 1e-4


def test_the_exact_verdict_is_a_useful_range(kitchen):
    verdict = find_window(exact_frontier(kitchen.world, [0.0, *np.geomspace(0.1, 20.0, 40)]))
    assert verdict.kind == "useful-range"
    assert 0.3 < verdict.best_beta < 0.9


def test_a_critic_of_one_mind_and_another(cellar):
    indifferent = house.recipes(love=0.0, cache=cellar)
    assert moments(indifferent.world, 0.0).gold[0] > moments(indifferent.world, np.inf).gold[0]
    with pytest.raises(OptionError, match="love"):
        house.recipes(love=-1.0)


# --------------------------------------------------------------------------------------------- making the reference


def test_the_reference_is_made_the_same_way_each_time(monkeypatch):
    monkeypatch.setattr(house, "_STEPS", 3)
    one, two = house._train(0.02), house._train(0.02)
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = house._train(0.3)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_over_salting_is_in_the_book():
    few, many = (house.house_recipes(oversalt=share) for share in (0.0, 0.3))
    bombs = [((book[:, 2:] == house.WORDS.index("salt")).sum(1) >= 3).mean() for book in (few, many)]
    assert bombs[0] < 0.02
    assert 0.28 < bombs[1] < 0.34


def test_the_cache_is_only_a_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(house, "_STEPS", 1)
    first = house._cached(tmp_path / "c", 0.004)
    (file,) = (tmp_path / "c").iterdir()
    made = []
    train = house._train
    monkeypatch.setattr(house, "_train", lambda oversalt: made.append(oversalt) or train(oversalt))
    again = house._cached(tmp_path / "c", 0.004)
    assert not made
    assert all(torch.equal(first[name], again[name]) for name in first)
    house._cached(tmp_path / "c", 0.005)  # another book, another file
    file.write_bytes(b"not weights")
    house._cached(tmp_path / "c", 0.004)
    (tmp_path / "blocked").write_text("a file where the folder should be")
    house._cached(tmp_path / "blocked", 0.004)
    assert made == [0.005, 0.004, 0.004]
    assert file.read_bytes() != b"not weights"


# ---------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("penalty", ["k1", "own-k1", "full"])
def test_expected_rloo_gradient_on_a_recipe_of_two_words(kitchen, penalty):
    reference = copy.deepcopy(kitchen.model).double()
    policy = copy.deepcopy(reference).requires_grad_()
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.03 * torch.randn(weight.shape, generator=rng, dtype=weight.dtype)
    rest = range(1, len(house.WORDS))
    rows = [(0, 0)] + [(word, 0) for word in rest] + list(itertools.product(rest, repeat=2))
    tokens = torch.tensor(rows)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, 1] = False
    prompt = torch.tensor(kitchen.prompt_ids[:1]).repeat(len(rows), 1)
    whole = torch.cat([prompt, tokens[:, :1]], dim=1)

    def states(model):
        return model.model(input_ids=whole, use_cache=False).last_hidden_state[None, :, -2:]

    with torch.no_grad():
        ref_hidden = states(reference)
    scores = score(
        states(policy), policy.lm_head, tokens[None], ref_hidden=ref_hidden, ref_head=reference.lm_head, chunk=50
    )
    log_p, log_q = ((part[0] * mask).sum(1) for part in (scores.logp, scores.ref_logp))
    assert log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-12)
    reward = torch.tensor(
        kitchen.judge(["fish"] * len(rows), [kitchen.decode(row) for row in rows]), dtype=torch.float64
    )
    pairs = torch.cartesian_prod(torch.arange(len(rows)), torch.arange(len(rows)))
    picked = Scores(**{name: getattr(scores, name)[0][pairs] for name in ("logp", "ref_logp", "kl")})
    loss = rloo_loss(
        picked,
        mask[pairs],
        reward[pairs],
        torch.zeros(2, dtype=torch.long),
        torch.full((len(pairs),), 0.6, dtype=torch.float64),
        penalty=penalty,
    )
    weight = (log_p[pairs[:, 0]] + log_p[pairs[:, 1]]).exp().detach()
    objective = (log_p.exp() * (reward - 0.6 * (log_p - log_q))).sum()
    parameters = list(policy.parameters())
    mine = torch.autograd.grad((weight * loss).sum(), parameters, retain_graph=True)
    exact = torch.autograd.grad(-objective / 1.6, parameters)
    largest = max(part.abs().max().item() for part in exact)
    assert largest > 0.01
    for one, two in zip(mine, exact, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6 * largest)


def test_a_short_sweep_moves_towards_the_optimum(cached, kitchen, tmp_path):
    options = {"beta": [0.6, 3.0], "seeds": 2, "steps": 40, "out": tmp_path / "run"}
    result = sweep("recipes", **options)
    reference = moments(kitchen.world, np.inf)
    start = moments(kitchen.world, [0.6, 3.0])
    way = (start.reward - np.array([0.6, 3.0]) * start.kl) - reference.reward[0]
    gap = result.frontier.diagnostics["objective_gap"]
    assert (gap < 0.6 * way).all()
    content = result.to_dict()
    assert content["world"] == "recipes"
    assert [row["beta"] for row in content["optimum"]] == [0.6, 3.0]
    assert {row["prompt"] for row in content["answers"]} <= set(house.DISHES)
    assert [row["beta"] for row in content["forecast"]] == [0.6, 3.0]
    own = content["between"]
    names = ["reference", *(f"beta {b} seed {j}" for b in ("0.6", "3") for j in (0, 1))]
    assert [source["name"] for source in own["sources"]] == names
    assert own["n_samples"] == 5 * 3 * 64
    assert sum(0.6 < row["beta"] < 3.0 and row["status"] == "ok" for row in own["rows"]) >= 5
    ends = {"reward_max": kitchen.world.reward.max(), "gold_min": kitchen.world.gold.min()}
    assert forecast(tmp_path / "run", prompts="fixed", **ends).rows() == own["rows"]
    text = str(result)
    assert max(map(len, text.splitlines())) <= 80
    for words in ("The recipes: a language model", "Best possible", "Forecast", "Between the trained betas, from 960"):
        assert words in text
    again = sweep("recipes", **options, resume=True)
    assert again.origin == "read-back"
    assert json.dumps(again.to_dict()) == json.dumps(content)
    assert json.dumps(SweepResult.load(tmp_path / "run").to_dict()) == json.dumps(content)


def test_unknown_settings_are_named(cached):
    with pytest.raises(OptionError, match="unknown setting 'lov' of the recipes; did you mean 'love'"):
        sweep("recipes", settings={"lov": 1.0})


@pytest.mark.slow
def test_trained_policies_arrive(cached, kitchen):
    result = sweep("recipes", seeds=4)
    world, betas = kitchen.world, np.array(kitchen.betas)
    exact, reference = moments(world, betas), moments(world, np.inf)
    policy = np.exp(world.log_reference)
    sd = np.sqrt((policy * (world.reward - (policy * world.reward).sum(1, keepdims=True)) ** 2).sum(1).mean())
    way = exact.reward - betas * exact.kl - reference.reward[0]
    gap = result.frontier.diagnostics["objective_gap"]
    assert (gap <= np.maximum(0.03 * way, 0.005 * sd)).all(), (gap / way).round(4)
    assert result.frontier.reward.value[0] >= 0.97 * exact.reward[0]
    best = (exact.gold.argmax(), result.frontier.gold.value.argmax())
    assert abs(int(best[0]) - int(best[1])) <= 1
    assert result.verdict.kind == find_window(exact_frontier(world, betas)).kind == "useful-range"
    forecast = result.forecast
    for row in np.flatnonzero(forecast.status == "ok"):
        at = moments(world, forecast.beta[row])
        for name in ("reward", "gold", "kl"):
            part = getattr(forecast, name)
            assert part.lo[row] <= getattr(at, name)[0] <= part.hi[row], (forecast.beta[row], name)
