"""The training loop: what it optimises, what it records, what it refuses."""

import json

import numpy as np
import polars as pl
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_run import PROMPTS, judge, run  # noqa: E402
from tiny import tiny  # noqa: E402

from kleash.errors import DataError, OptionError  # noqa: E402
from kleash.train.asking import PromptSet, Task  # noqa: E402
from kleash.train.early_stopping import early_stop  # noqa: E402
from kleash.train.lm import train_lm  # noqa: E402
from kleash.train.loop import _which  # noqa: E402
from kleash.train.optimiser import GroupedAdam  # noqa: E402
from kleash.train.options import Training  # noqa: E402
from kleash.train.streams import Purpose  # noqa: E402


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(out=tmp_path_factory.mktemp("run") / "r")


def test_looser_leashes_go_further_for_more():
    result = run(steps=60, samples=16, gold=None, final_samples=64)
    reward, kl = result.final("reward").mean(axis=1), result.final("kl").mean(axis=1)
    assert (np.diff(reward) < 0).all()
    assert (np.diff(kl) < 0).all()
    assert reward[0] > result.at(0, "reward").mean() + 0.5
    assert np.abs(result.at(0, "kl")).max() < 1e-8  # everyone starts as the reference


def test_rows_are_complete_and_null_where_nothing_was_asked(trained):
    rows = trained.metrics
    assert [(row["step"], row["beta"], row["seed"]) for row in rows] == [
        (step, beta, seed) for step in range(21) for beta in (0.0, 0.5, 4.0) for seed in (0, 1)
    ]
    for row in rows:
        assert (row["gold"] is not None) == (row["step"] % 5 == 0)
        assert (row["learning_rate"] is None) == (row["step"] == 20)
        assert row["objective"] == pytest.approx(row["reward"] - row["beta"] * row["kl"])
    assert rows[0]["learning_rate"] == pytest.approx(1e-2)
    assert rows[6 * 19]["learning_rate"] == pytest.approx(5e-4)
    lines = (trained.run.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == list(rows)


def test_a_beta_beside_others_ends_where_it_ends_alone(trained):
    alone = run(beta=[0.5])
    np.testing.assert_allclose(alone.adapters.values, trained.adapters.values[2:4], atol=1e-4)
    single = run(beta=[4.0], seeds=1)
    np.testing.assert_allclose(single.adapters.values, trained.adapters.values[4:5], atol=1e-4)
    moved = (trained.adapters.values[0] - trained.adapters.values[2]).abs().max()
    assert moved > 0.02  # the comparison is not one of starts


def test_the_same_configuration_gives_the_same_bytes(trained, tmp_path):
    again = run(out=tmp_path / "again")
    there = [path.relative_to(again.run.path) for path in again.run.path.rglob("*") if path.is_file()]
    files = sorted(name for name in there if name.name != "run.lock")  # held until the run is finished
    assert len(files) == 4 + 2 * 6
    for name in files:
        assert (again.run.path / name).read_bytes() == (trained.run.path / name).read_bytes(), name
    assert not torch.equal(run(seed=1).adapters.values, again.adapters.values)


def test_the_units_of_the_judge_do_not_matter():
    def in_cents(**columns):
        return [100.0 * score for score in judge(**columns)]

    once = run(steps=4, samples=16, beta=[0.0, 0.5, 4.0])
    cents = run(steps=4, samples=16, beta=[0.0, 50.0, 400.0], judge=in_cents)
    np.testing.assert_allclose(cents.final("reward"), 100 * once.final("reward"))
    np.testing.assert_allclose(cents.adapters.values, once.adapters.values, atol=2e-3)
    assert (once.adapters.values[0] - once.adapters.values[4]).abs().max() > 0.02


def test_rollouts_and_adapters_are_left_behind(trained):
    folder = trained.run.path
    frame = pl.read_parquet(folder / "rollouts.parquet")
    assert len(frame) == 6 * 2 * 8
    assert frame["logp"].list.len().to_list() == frame["length"].to_list()
    gaps = frame.select((pl.col("logp").explode() - pl.col("behavior_logp").explode()).abs().max())
    assert gaps.item() < 1e-5
    mean = frame.group_by("beta", "seed", maintain_order=True).agg(pl.col("reward").mean(), pl.col("gold").mean())
    np.testing.assert_allclose(mean["reward"], trained.final("reward").ravel())
    np.testing.assert_allclose(mean["gold"], trained.final("gold").ravel())
    names = {path.name for path in (folder / "adapters").iterdir()}
    assert names == {f"beta-{beta}-seed-{seed}" for beta in ("0", "0.5", "4") for seed in (0, 1)}


def test_the_dump_passes_the_projects_own_checks(trained):
    from kleash import check

    report = check([trained.run.path / "rollouts.parquet"])
    assert {finding.code for finding in report.findings if finding.status == "problem"} == set()


@pytest.mark.parametrize(
    "asked",
    [
        {"objective": "grpo", "beta": [0.05, 1.0]},
        {"objective": "grpo", "options": {"scale_rewards": "none", "kl_in_loss": "k3-corrected"}, "beta": [0.0, 1.0]},
        {"objective": "dpo", "beta": [0.5, 4.0]},
        {"objective": "rloo", "options": {"penalty": "k1"}},
        {"objective": "rloo", "epochs": 2},
        {"objective": "grpo", "epochs": 2, "clip": 0.1},
        {"prompts_per_step": 1, "schedule": "constant"},
        {"clip_above": None, "temperature": 1.5},
        {"chunk": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_every_objective_raises_the_judges_score(kind, asked):
    result = run(kind, seeds=1, steps=12, evaluate_every=6, **asked)
    assert result.final("reward")[0, 0] > result.at(0, "reward")[0, 0] + 0.1
    sampler = "policy" if asked.get("temperature", 1.0) == 1.0 else "behavior"
    assert result.kl_spec.sampler == sampler


def test_pieces_do_not_change_the_result():
    once, pieces = run(steps=4, samples=16), run(steps=4, samples=16, chunk=2)
    np.testing.assert_allclose(pieces.adapters.values, once.adapters.values, atol=1e-4)


def test_gold_is_measured_on_held_out_prompts_and_never_trained_on(trained):
    asked = []

    def watching(prompts, completions, liked, **columns):
        asked.append(set(prompts))
        return [1.0] * len(prompts)

    held_out = PromptSet(ids=[[7, 7]], texts=["cake"], columns={"liked": [7]})
    result = run(gold=watching, held_out=held_out)
    assert set().union(*asked) == {"cake"}
    assert torch.equal(result.adapters.values, trained.adapters.values)
    assert (result.final("gold") == 1.0).all()


def test_a_hook_is_recorded_beside_the_rest():
    seen = []

    def exact(step, adapters):
        seen.append(step)
        with adapters.reference(), torch.no_grad():
            adapters.model(input_ids=torch.tensor([[1]]))
        return {"exact_gold": np.arange(adapters.groups, dtype=float)}

    result = run(evaluate=exact, steps=7)
    assert seen == [0, 5, 7]
    assert result.final("exact_gold").ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert np.isnan(result.at(3, "exact_gold")).all()


def test_prompts_come_in_passes():
    class Asked:
        seed, prompts_per_step = 3, 2

    drawn = [_which(step, 5, Asked) for step in range(10)]
    flat = [i for pair in drawn for i in pair]
    assert all(sorted(flat[start : start + 5]) == list(range(5)) for start in range(0, 20, 5))
    assert flat[:5] != flat[5:10]


def test_stopping_early_is_an_arm_of_its_own(trained):
    arm = trained.early_stopping
    assert arm.beta == 0.0
    assert arm.chosen_apart
    assert run(gold=None, steps=2).early_stopping is None
    rows = [
        {"step": step, "beta": beta, "seed": seed, "reward": 0.0, "kl": 0.0, "gold": gold}
        for beta in (0.0, 1.0)
        for seed, golds in enumerate([[1.0, 5.0, 2.0], [1.0, 2.0, 3.0]])
        for step, gold in enumerate(golds)
    ]
    apart = early_stop(rows)  # seed 0 stops where seed 1 is best and the other way round
    assert (apart.gold, apart.step) == (2.0, 1.5)
    flattering = early_stop([row for row in rows if row["seed"] == 0])
    assert (flattering.gold, flattering.chosen_apart) == (5.0, False)
    assert "flatters" in str(flattering)


def test_a_constant_judge_moves_nobody_without_a_leash_and_is_named():
    result = run(judge=lambda prompts, **columns: [0.1] * len(prompts), steps=6)
    start = run(steps=1, learning_rate=1e-12).adapters.values
    assert torch.allclose(result.adapters.values[:2], start[:2], atol=1e-9)
    assert result.final("kl").max() < 1e-3
    assert "same score" in result.notes[0]


def test_a_head_that_cannot_follow_is_named():
    bounded = run(targets=["q_proj", "v_proj"], steps=1)
    assert "head has no adapter and the logits cannot leave +-6.3" in bounded.notes[0]
    assert run(steps=1).notes == ()


def test_a_groups_gradient_is_clipped_against_its_own_past():
    class Two:
        groups = 2
        values = torch.zeros(2, 3)
        gradients = torch.zeros(2, 3)

    adam = GroupedAdam(Two, clip_above=3.0)
    for scale in (1.0, 1.0, 100.0):
        Two.gradients[0], Two.gradients[1] = 1.0, scale
        before = Two.gradients.clone()
        norm = adam.step(0.0)
        torch.testing.assert_close(norm, before.norm(dim=1))
    assert Two.gradients[0].tolist() == [1.0, 1.0, 1.0]
    torch.testing.assert_close(Two.gradients[1], torch.full((3,), 3.0))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"targets": ["q_prj"]}, "did you mean 'q_proj'"),
        ({"max_new_tokens": 62}, r"prompt 0 of prompts \('soup'\): expected at most 64 positions, got 3 tokens and 62"),
        ({"prompts": PromptSet(ids=[[11]], texts=["x"])}, "expected token ids from 0 to 10, got 11 to 11"),
        ({"objective": "rlo"}, "did you mean 'rloo'"),
        ({"schedule": "cosine"}, "expected one of linear, constant"),
        ({"samples": 1}, "samples: expected a whole number of at least 2"),
        ({"prompts_per_step": 3}, "at most the 2 prompts"),
        ({"resume": True}, "resume: expected a folder"),
        ({"objective": "dpo"}, "train beta 0 with rloo"),
        ({"beta": [float("inf")]}, "beta: expected a finite number"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_in_one_line(changes, told):
    with pytest.raises(OptionError, match=told) as caught:
        run(**changes)
    assert "\n" not in str(caught.value)


def test_prompts_must_fit_together():
    with pytest.raises(OptionError, match="ids 2, texts 1"):
        PromptSet(ids=[[1], [2]], texts=["a"])
    assert PROMPTS.digest() != PromptSet(ids=PROMPTS.ids, texts=PROMPTS.texts).digest()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda n: [float("nan")] * n, "judge: expected finite scores, got nan for '.*' to 'soup'"),
        (
            lambda n: [1.0] * (n - 1),
            "scores, one per answer, got [0-9]+ in a call about [0-9]+ answers, the first to 'soup'",
        ),
        (lambda n: None, "expected a list of numbers, got None in a call about .* the first to 'soup'"),
        (lambda n: ["good"] * n, "expected a list of numbers"),
    ],
    ids=["nan", "short", "none", "text"],
)
def test_what_a_judge_says_is_checked(answer, told):
    with pytest.raises(DataError, match=told):
        run(judge=lambda prompts, **columns: answer(len(prompts)))


def test_half_precision_runs():
    result = run(seeds=1, steps=3)
    model = tiny().to(torch.bfloat16)
    half = train_lm(
        model,
        Task(prompts=PROMPTS, judge=judge, decode=str, eos=[0]),
        Training(beta=[1.0], max_new_tokens=3, steps=3, samples=4, final_samples=4),
    )
    assert half.config["dtype"] == "bfloat16"
    assert half.adapters.values.dtype == torch.float32
    assert np.isfinite(half.final("kl")).all()
    assert result.config["dtype"] == "float32"


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"objective": "grpo", "beta": [0.1, 1.0]},
        {"objective": "dpo", "beta": [0.5, 4.0]},
        {"epochs": 2},
        {"held_out": PromptSet(ids=[[7, 7], [2], [3]], texts=["cake", "pie", "tart"], columns={"liked": [7, 3, 5]})},
    ],
    ids=str,
)
def test_a_step_in_parts_is_the_same_step(asked):
    three = PromptSet(ids=[[1, 2, 3], [4], [5, 6]], texts=["soup", "stew", "pot"], columns={"liked": [3, 5, 7]})
    shared = {"prompts": three, "steps": 3, "epochs": 1} | asked
    whole = run(**shared)
    for size in (1, 2):
        parts = run(prompts_at_once=size, **shared)
        assert parts.config == whole.config
        np.testing.assert_allclose(parts.adapters.values, whole.adapters.values, atol=5e-4)  # of 0.01 and more
        for name in ("reward", "gold", "kl", "reward_sd", "grad_norm"):
            np.testing.assert_allclose(parts.at(2, name), whole.at(2, name), rtol=2e-3, atol=1e-6, err_msg=name)
            np.testing.assert_allclose(parts.final(name), whole.final(name), rtol=2e-3, atol=1e-6, err_msg=name)
    moved = (whole.adapters.values - run(**shared | {"steps": 1, "learning_rate": 1e-12}).adapters.values).abs().max()
    assert moved > 0.01


def test_the_reference_draws_what_policies_that_did_not_move_drew():
    from kleash.train.reference import answers_of

    still = run(steps=1, learning_rate=1e-12, samples=4, final_samples=6, gold=None)
    for seed in (0, 1):
        drawn = answers_of(
            still.sampler, PROMPTS, key=(Purpose.EVALUATION, 1, 0), index=[seed], samples=6, each=4
        ).samples()
        assert drawn.reward.size == 2 * 8
        np.testing.assert_allclose(still.final("reward")[:, seed], drawn.reward.mean())


def test_half_precision_keeps_adapters_apart():
    from kleash.train.adapters import attach

    assert not any(layer.small for layer in attach(tiny().to(torch.bfloat16), groups=2, rank=2).layers.values())
    assert all(layer.small for layer in attach(tiny(), groups=2, rank=2).layers.values())
