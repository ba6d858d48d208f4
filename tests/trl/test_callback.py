"""The callback on real TRL runs: what it measures, and that it changes nothing."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")

import torch
from tiny_runs import Run

from kleash.errors import ConfigError, DependencyError, OptionError
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
    from kleash.conformance.roots import answer_kl

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
    for path in (tmp_path / "out", tmp_path / "out" / "kleash" / "rollouts"):
        report = kleash.check([path])
        assert report.inputs
        assert not [f for f in report.findings if f.status == "problem"]
    states = [i for i in kleash.check([tmp_path / "out"]).inputs if i.kind == "log"]
    assert any(i.trainer == "trl-grpo" for i in states)


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
    from kleash.conformance.cases import puzzle

    return puzzle(name).reward


def test_json_of_the_folder_is_plain(tmp_path: Path):
    Run(tmp_path, steps=3).trainer.train()
    record = json.loads((tmp_path / "out" / "kleash" / "run.json").read_text())
    assert record["results"]["trainer"] == "GRPOTrainer"
    assert record["config"]["beta"] == 0.0
