"""The callback on real TRL runs: what it measures, and that it changes nothing."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")

import torch
from tiny_runs import Run

from kleash.errors import ConfigError, DataError, DependencyError, OptionError
from kleash.integrations import versions
from kleash.integrations.trl import KleashCallback
from kleash.runs import read_run


def check_against_enumeration(run: Run, *, atol: float) -> None:
    found = run.callback.measure()
    assert max(found["kl"]) > 0.01  # the policy has moved, so that nothing is compared with nothing
    for per_prompt, answers in zip(found["kl"], found["answers"], strict=True):
        sums = []
        for answer in answers:
            prefixes = [tuple(answer.ids[:t]) for t in range(len(answer.ids))]
            exact = run.enumerated_kl(prefixes)
            np.testing.assert_allclose(answer.kl, exact, rtol=1e-6, atol=atol)
            sums.append(exact.sum())
        assert per_prompt == pytest.approx(np.mean(sums), rel=1e-6, abs=3 * atol)


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
@pytest.mark.parametrize("beta", [0.0, 0.2])
def test_kl_equals_enumeration(tmp_path: Path, kind: str, beta: float):
    run = Run(tmp_path, kind=kind, beta=beta)
    run.trainer.train()
    check_against_enumeration(run, atol=1e-6)
    assert run.callback.metrics[0]["kl"] == 0.0
    assert [row["step"] for row in run.callback.metrics] == [0, 3, 6]


def test_one_token_kl_is_that_of_the_whole_policy(tmp_path: Path):
    from kleash.trials.roots import answer_kl

    run = Run(tmp_path, world="points", steps=10)
    run.trainer.train()
    exact = answer_kl(run.world, run.policy.logits())
    assert exact > 0.05
    assert run.callback.metrics[-1]["kl"] == pytest.approx(exact, abs=1e-6)
    assert run.callback.metrics[-1]["kl_se"] == pytest.approx(0.0, abs=1e-9)  # no part is due to the draw


@pytest.mark.parametrize("padding", ["left", "right"])
def test_padding_side_and_unequal_prompts(tmp_path: Path, padding: str):
    run = Run(tmp_path, padding=padding, prompts=["?", "?", "?a?", "?"] * 16)
    run.trainer.train()
    found = run.callback.measure()
    long = found["answers"][2][0]
    from kleash.integrations.measure import full_kl_of

    again = full_kl_of(
        run.callback.model, run.callback.reference, [run.callback.prompt_ids[2]], [long.ids],
        temperature=1.0, pad_id=run.policy.tokenizer.pad_token_id, batch=1,
    )[0]  # fmt: skip
    np.testing.assert_allclose(long.kl, again.kl, atol=1e-6)
    check = [i for i in range(8) if len(run.callback.prompt_ids[i]) == 1]
    kl = run.enumerated_kl([()])[0]
    for i in check:
        assert all(a.kl[0] == pytest.approx(kl, abs=1e-6) for a in found["answers"][i])


def test_peft_reference_is_the_model_without_its_new_adapter(tmp_path: Path):
    from peft import LoraConfig

    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    run = Run(tmp_path, peft=config, rate=2.5, steps=12)
    run.trainer.train()
    check_against_enumeration(run, atol=1e-6)


def test_peft_adapter_that_was_trained_before_is_the_reference(tmp_path: Path):
    from peft import LoraConfig

    config = LoraConfig(r=2, target_modules=["v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    run = Run(tmp_path, peft=config, steps=2, callback={"every": 1})
    run.trainer.train()
    assert run.callback.metrics[0]["kl"] == 0.0  # against the base model it would not be
    assert run.enumerated_kl([()])[0] > 1e-3


def test_bf16(tmp_path: Path):
    run = Run(tmp_path, dtype=torch.bfloat16, rate=0.5)
    run.trainer.train()
    check_against_enumeration(run, atol=1e-6)


@pytest.mark.parametrize("kind", ["dpo", "online-dpo"])
def test_preference_trainers(tmp_path: Path, kind: str):
    run = Run(tmp_path, kind=kind, beta=0.1, rate=0.05)
    run.trainer.train()
    check_against_enumeration(run, atol=1e-6)
    last = run.callback.metrics[-1]
    assert last["gold"] is not None
    assert (last["reward"] is None) == (kind == "dpo")  # DPO has no judge to ask


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 8}])
def test_training_is_the_same_with_and_without(tmp_path: Path, settings: dict):
    """To the last bit: the callback draws answers and swaps weights, and leaves no trace."""
    weights = []
    for with_callback in (False, True):
        run = Run(tmp_path / str(with_callback), with_callback=with_callback, **settings)
        run.trainer.train()
        weights.append(run.policy.model.lm_head.weight.detach().clone())
    assert torch.equal(*weights)


def test_run_folder_log_and_check(tmp_path: Path):
    import kleash

    run = Run(tmp_path, beta=0.2, steps=12, save_strategy="steps", save_steps=12)
    run.trainer.train()
    folder = read_run(tmp_path / "out" / "kleash")
    assert folder.state == "finished"
    assert [row["step"] for row in folder.metrics()] == [0, 3, 6, 9, 12]
    frontier = folder.frontier()
    assert frontier.beta.tolist() == [0.2]
    assert frontier.kl.value[0] == pytest.approx(run.callback.metrics[-1]["kl"])
    assert frontier.gold is not None
    assert kleash.find_window(frontier).kind  # a verdict can be made of it
    history = [row for row in run.trainer.state.log_history if "kleash/kl" in row]
    assert [row["step"] for row in history] == [0, 3, 6, 9, 12]
    for path in (tmp_path / "out", tmp_path / "out" / "kleash" / "rollouts.jsonl"):
        report = kleash.check([path])
        assert report.inputs
        assert not [f for f in report.findings if f.status == "problem"]
    states = [i for i in kleash.check([tmp_path / "out"]).inputs if i.kind == "log"]
    assert any(i.trainer == "trl-grpo" for i in states)


def test_the_trainers_own_log_is_not_lost(tmp_path: Path):
    """A log of ours at the same step must not count as the trainer's."""
    own = []
    for with_callback in (False, True):
        run = Run(tmp_path / str(with_callback), with_callback=with_callback, callback={"every": 2})
        run.trainer.train()
        rows = [row for row in run.trainer.state.log_history if "reward" in row]
        own.append([(row["step"], row["reward"], row["rewards/quality/mean"]) for row in rows])
    assert [row[0] for row in own[0]] == [2, 4, 6]
    assert own[0] == own[1]


def test_the_models_own_generation_settings_are_left_out_and_left_alone(tmp_path: Path):
    from peft import LoraConfig

    for peft in (None, LoraConfig(r=2, target_modules=["v_proj"], task_type="CAUSAL_LM")):
        run = Run(tmp_path / str(peft is None), steps=1, peft=peft, callback={"n_prompts": 16, "n_answers": 8})
        before = [[a.ids for a in answers] for answers in run.callback.measure()["answers"]]
        settings = run.callback.model.generation_config
        settings.repetition_penalty, settings.min_new_tokens, settings.top_k = 5.0, 3, 1
        after = [[a.ids for a in answers] for answers in run.callback.measure()["answers"]]
        assert after == before
        assert run.callback.model.generation_config is settings
        assert (settings.repetition_penalty, settings.min_new_tokens) == (5.0, 3)


def test_prompts_without_gold_are_no_numbers(tmp_path: Path):
    """Gold of every second prompt alone: means and the table are over those, and the stop still works."""
    values = np.array([0.0, 0.3, 1.0, -1.0])  # the judge's favourite is the worst

    def gold(prompts, completion_ids, known, **_):
        return [float(values[ids[0]]) if k else None for ids, k in zip(completion_ids, known, strict=True)]

    run = Run(tmp_path, world="points", with_callback=False, steps=60, rate=0.01, per_device_train_batch_size=64)
    rows = [{"prompt": "?", "known": i % 2 == 0} for i in range(64)]
    options = {"every": 4, "n_prompts": 64, "stop_at_gold_peak": True, "batch": 256}
    callback = KleashCallback(run.trainer, gold=gold, prompts=rows, **options)
    run.trainer.add_callback(callback)
    run.trainer.train()
    assert callback.stopped_at is not None
    assert 0 < callback._watch.best_step < callback.stopped_at < 60
    frontier = read_run(tmp_path / "out" / "kleash").frontier()
    last = [g for g in callback.by_prompt[-1]["gold"] if g is not None]
    assert len(last) == 32
    assert frontier.gold.value[0] == pytest.approx(np.mean(last))
    assert np.isfinite(frontier.gold.gain.se[0])
    assert np.isfinite(frontier.replicates.gold).all()


def test_scores_that_are_none_or_not_finite(tmp_path: Path):
    run = Run(tmp_path, with_callback=False)
    nothing = KleashCallback(run.trainer, gold=lambda completions, **_: [None] * len(completions), n_prompts=4)
    assert nothing.measure()["gold"] == [None] * 4
    for given, why in (([math.inf], "finite scores"), ([1.0, 2.0], "a score per answer, got 2 scores for 8 answers")):
        bad = KleashCallback(
            run.trainer, gold=lambda completions, v=given, **_: v * (len(completions) if len(v) == 1 else 1),
            n_prompts=4, n_answers=2,
        )  # fmt: skip
        with pytest.raises(DataError, match=why):
            bad.measure()


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"prompt": "?", "image": object()}] * 2, "expected text, got pictures"),
        ([{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}] * 2, "expected text, got pictures"),
        ([{"question": "?"}] * 2, "expected a column prompt, got question"),
        (["?"], "at least 2, got 1"),
        (["?", ""], "at least one token"),
    ],
)  # fmt: skip
def test_prompts_that_cannot_be_measured_on(tmp_path: Path, rows: list, why: str):
    run = Run(tmp_path, with_callback=False)
    with pytest.raises(OptionError, match=why):
        KleashCallback(run.trainer, prompts=rows)


def test_tools_and_models_as_gold_are_refused(tmp_path: Path):
    run = Run(tmp_path, with_callback=False)

    async def later(completions, **_):
        return [0.0] * len(completions)

    for gold in (later, run.policy.model):
        with pytest.raises(OptionError, match="a model or an async function"):
            KleashCallback(run.trainer, gold=gold)
    run.trainer.tools = [len]
    with pytest.raises(OptionError, match="one turn of the policy's own, got tools"):
        KleashCallback(run.trainer)


def test_conversations_and_their_columns(tmp_path: Path):
    """The prompt is what the trainer makes of it, and functions get messages and the data set's columns."""
    seen = {}

    def gold(prompts, completions, completion_ids, name, **_):
        seen.update(prompts=prompts, completions=completions, name=name)
        return [0.0] * len(completions)

    run = Run(tmp_path, with_callback=False)
    run.policy.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}?"
    rows = [{"prompt": [{"role": "user", "content": letter}], "name": letter} for letter in "ab"]
    callback = KleashCallback(run.trainer, gold=gold, prompts=rows, n_answers=1)
    assert callback.prompt_ids == run.trainer._tokenize_prompts([row["prompt"] for row in rows])[0]
    callback.measure()
    assert seen["prompts"] == [row["prompt"] for row in rows]
    assert seen["name"] == ["a", "b"]
    assert [set(turn[0]) for turn in seen["completions"]] == [{"role", "content"}] * 2


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_checkpointing": True},
        {"num_iterations": 2, "steps_per_generation": 2},
        {"eval_strategy": "steps", "eval_steps": 2},
        {"kind": "grpo", "beta": 0.2, "sync_ref_model": True, "ref_model_sync_steps": 1},
    ],
    ids=" ".join,
)
def test_ways_to_train(tmp_path: Path, settings: dict):
    extra = {"eval_dataset": 8} if "eval_strategy" in settings else {}
    run = Run(tmp_path, **settings, **extra)
    run.trainer.train()
    check_against_enumeration(run, atol=1e-6)
    assert [row["step"] for row in run.callback.metrics] == [0, 3, 6]


def test_a_stream_of_prompts(tmp_path: Path):
    from datasets import IterableDataset

    run = Run(tmp_path, with_callback=False)
    stream = IterableDataset.from_generator(lambda: iter([{"prompt": "?"}] * 5))
    assert len(KleashCallback(run.trainer, prompts=stream, n_prompts=32).rows) == 5


def test_a_resume_without_the_runs_beginning_is_refused(tmp_path: Path):
    first = Run(tmp_path, steps=6, save_strategy="steps", save_steps=6, with_callback=False)
    first.trainer.train()
    again = Run(tmp_path, name="again", steps=9)
    with pytest.raises(DataError, match="begin the run with the callback"):
        again.trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-6"))


def test_answers_of_later_steps_are_drawn_again_after_a_resume(tmp_path: Path):
    options = {"save_strategy": "steps", "save_steps": 6}
    Run(tmp_path, steps=9, **options).trainer.train()
    answers = tmp_path / "out" / "kleash" / "rollouts.jsonl"
    with open(answers, "a") as file:
        file.write('{"step": 9, "pro')  # a kill
    again = Run(tmp_path, name="again", steps=12, **options)
    again.trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-6"))
    steps = [json.loads(line)["step"] for line in answers.read_text().splitlines()]
    assert steps == [s for s in (0, 3, 6, 9, 12) for _ in range(16)]


def test_best_weights_from_before_a_resume_are_said_to_be_gone(tmp_path: Path):
    gold = -puzzle_reward("points")
    options = {"world": "points", "gold": gold, "save_strategy": "steps", "save_steps": 6}
    Run(tmp_path, steps=6, callback={"restore_best": True}, **options).trainer.train()
    again = Run(tmp_path, name="again", steps=9, callback={"restore_best": True}, **options)
    again.trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-6"))
    results = read_run(tmp_path / "out" / "kleash").record["results"]
    assert (results["best_step"], results["restored"]) == (0, None)
    assert "no weights were restored" in " ".join(results["notes"])


def test_resume_goes_on_where_the_checkpoint_was(tmp_path: Path):
    options = {"steps": 12, "save_strategy": "steps", "save_steps": 6}
    whole = Run(tmp_path / "whole", **options)
    whole.trainer.train()
    first = Run(tmp_path / "cut", **options | {"steps": 9})
    first.trainer.train()
    again = Run(tmp_path / "cut", name="again", **options)
    again.trainer.train(resume_from_checkpoint=str(tmp_path / "cut" / "out" / "checkpoint-6"))
    assert [row["step"] for row in again.callback.metrics] == [0, 3, 6, 9, 12]
    assert again.callback.metrics[0]["kl"] == 0.0
    check_against_enumeration(again, atol=1e-6)  # the reference is the model it began with, not the checkpoint
    for a, b in zip(whole.callback.metrics[:3], again.callback.metrics[:3], strict=True):
        assert a == b


def test_resume_with_another_reference_is_refused(tmp_path: Path):
    first = Run(tmp_path, steps=6, save_strategy="steps", save_steps=6)
    first.trainer.train()
    again = Run(tmp_path, name="again", steps=9, start=first.world.reference_logits + np.arange(3.0))
    with pytest.raises(ConfigError, match="another"):
        again.trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-6"))


def test_a_folder_with_a_run_is_not_written_over(tmp_path: Path):
    Run(tmp_path, steps=3).trainer.train()
    with pytest.raises(OptionError, match="expected a new folder, got a run"):
        Run(tmp_path, name="again", steps=3).trainer.train()


def test_restore_best_gives_back_the_weights_of_the_best_measurement(tmp_path: Path):
    gold = -puzzle_reward("points")
    run = Run(tmp_path, world="points", gold=gold, steps=9, callback={"restore_best": True})
    start = run.policy.model.lm_head.weight.detach().clone()
    run.trainer.train()
    assert run.callback._watch.best_step == 0  # gold only falls
    assert torch.equal(run.policy.model.lm_head.weight, start)
    found = read_run(tmp_path / "out" / "kleash")
    assert found.record["results"]["restored"] == 0
    frontier = found.frontier()  # of the policy that is handed over, on other answers than those it was chosen by
    assert frontier.kl.value[0] == pytest.approx(0.0, abs=1e-12)
    assert frontier.gold.value[0] != run.callback.metrics[0]["gold"]


def test_refusals(tmp_path: Path):
    run = Run(tmp_path, with_callback=False)
    with pytest.raises(OptionError, match="did you mean 'quality'"):
        KleashCallback(run.trainer, gold="qualty")
    with pytest.raises(OptionError, match="one of GRPOTrainer"):
        KleashCallback(object())
    run.trainer.reward_weights = torch.tensor([1.0, 1.0])
    with pytest.raises(OptionError, match="true quality to stop by"):
        KleashCallback(run.trainer, stop_at_gold_peak=True)


@pytest.mark.parametrize("found", ["1.15.2", "2.0.0"])
def test_other_versions_give_one_line(monkeypatch: pytest.MonkeyPatch, found: str):
    monkeypatch.setattr(versions, "version", lambda name: found if name == "trl" else "1")
    with pytest.raises(DependencyError) as caught:
        versions.require_trl()
    assert str(caught.value) == (f"TRL: expected 1.16.x, the tested range, got {found}; pip install 'trl~=1.16.0'")


def puzzle_reward(name: str) -> np.ndarray:
    from kleash.trials.cases import puzzle

    return puzzle(name).reward


def test_json_of_the_folder_is_plain(tmp_path: Path):
    Run(tmp_path, steps=3).trainer.train()
    record = json.loads((tmp_path / "out" / "kleash" / "run.json").read_text())
    assert record["results"]["trainer"] == "GRPOTrainer"
    assert record["config"]["beta"] == 0.0
