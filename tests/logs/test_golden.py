"""Every golden log, read and compared number by number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kleash.logs import TRAINERS, RunLog, read_logs

DATA = Path(__file__).parents[1] / "data" / "logs"


def one(name: str, **options: str) -> RunLog:
    (log,) = read_logs(DATA / name, **options)
    return log


def kls(log: RunLog) -> dict[str, tuple[str, str, str, str]]:
    return {c.key: (c.spec.estimator, c.spec.unit.split()[-1], c.spec.placement, c.against) for c in log.kl}


def column(log: RunLog, key: str) -> list[float]:
    return next(c for c in log.kl if c.key == key).values.tolist()


def same(values: object, expected: list[float]) -> None:
    np.testing.assert_array_equal(np.asarray(values), np.array(expected))


def test_every_golden_log_has_a_line_of_provenance() -> None:
    said = (DATA / "README.md").read_text(encoding="utf-8")
    for entry in DATA.iterdir():
        assert entry.name == "README.md" or entry.name in said, entry.name


@pytest.mark.parametrize("entry", sorted(p.name for p in DATA.iterdir() if p.name not in {"README.md", "plain.csv"}))
def test_every_log_is_well_formed(entry: str) -> None:
    for log in read_logs(DATA / entry):
        assert log.trainer in TRAINERS
        assert log.rows == log.step.size == log.segment.size > 0
        assert log.segment.dtype == np.int64
        assert len(log.sha256) == 64
        assert set(log.decimals) == set(log.raw)
        columns = [log.reward, log.gold, log.coefficient, log.length, log.entropy, *log.components.values()]
        columns += [*log.losses.values(), *log.raw.values(), *(c.values for c in log.kl)]
        for values in columns:
            assert values is None or (values.shape == (log.rows,) and values.dtype == np.float64)
        for part in np.unique(log.segment):
            assert (np.diff(log.step[log.segment == part]) > 0).all()


# -------------------------------------------------------------------------------------------------------------- TRL


def test_grpo_of_trl_1_16_reads_the_last_checkpoint_with_card_and_arguments() -> None:
    log = one("trl_grpo")
    assert (log.trainer, log.trainer_version, log.run) == ("trl-grpo", "1.16.0", "trl_grpo")
    assert log.path.endswith("checkpoint-30/trainer_state.json")
    same(log.step, [10, 20, 30])
    same(log.reward, [0.52, 0.58, 0.66])
    same(log.length, [31.5, 32.5, 33.5])
    same(log.entropy, [0.9, 0.88, 0.85])
    same(log.losses["loss"], [0.0000123, 0.0000402, 0.0000921])
    assert kls(log) == {"kl": ("k3", "token", "loss-with-ratio", "reference")}
    assert column(log, "kl") == [0.00031, 0.00101, 0.0023]
    assert log.config == {"beta": 0.04, "loss_type": "dapo", "reward_weights": [1.0, 0.0]}
    assert log.component_weights == {"judge": 1.0, "gold": 0.0}  # found by adding up: the file sorts its keys
    same(log.components["gold"], [0.25, 0.25, 0.24])
    assert log.gold is None
    assert log.coefficient is None


def test_gold_is_a_component_by_name() -> None:
    same(one("trl_grpo", gold="gold").gold, [0.25, 0.25, 0.24])
    same(one("trl_grpo", gold="rewards/gold/mean").gold, [0.25, 0.25, 0.24])


def test_evaluation_rows_stay_under_their_own_keys() -> None:
    log = one("trl_grpo")
    same(log.raw["eval_kl"], [np.nan, 0.00099, np.nan])
    assert set(log.components) == {"judge", "gold"}
    assert "eval_kl" not in kls(log)


def test_old_grpo_keys_and_rounding() -> None:
    log = one("trl_grpo_old.json")  # M6
    assert kls(log) == {"kl": ("k3", "token", "loss", "reference")}
    same(log.length, [211.4, 209.9])
    assert list(log.components) == ["accuracy_reward", "format_reward"]
    assert (log.decimals["loss"], log.decimals["kl"], log.decimals["eval_loss"]) == (4, 7, 9)
    assert log.raw["eval_loss"][1] / log.raw["eval_kl"][1] == pytest.approx(0.04005, abs=5e-6)


def test_printed_dictionaries_between_progress_bars() -> None:
    log = one("trl_grpo_console.txt")
    same(log.step, [1, 2, 3])
    assert any("no steps" in note for note in log.notes)
    same(log.reward, [1.872, 1.9, 2.013])
    same(log.kl[0].values, [0.01738, 0.04857, np.nan])  # None is not recorded
    assert log.undefined == {"grad_norm": (1,)}  # "nan" is
    same(log.raw["eval_kl"], [np.nan, 0.02801, np.nan])
    same(log.raw["train_loss"], [np.nan, np.nan, 0.0016])
    assert log.config["beta"] == 0.04
    assert log.decimals["loss"] == 4
    assert log.kl[0].spec.placement == "unknown"  # RLOO prints these keys too
    assert one("trl_grpo_console.txt", trainer="trl-grpo").kl[0].spec.placement == "loss"


def test_a_negative_kl_is_rloos() -> None:
    log = one("trl_rloo.json")
    assert log.trainer == "trl-rloo"
    assert kls(log) == {"kl": ("k1", "token", "reward", "reference")}
    assert column(log, "kl") == [-0.00012, 0.00204]


def test_ppo_console_to_the_last_digit() -> None:
    log = one("trl_ppo_console.txt")  # M1
    assert log.trainer == "trl-ppo"
    same(log.step, [240, 256])  # episodes: there is no other count
    assert kls(log) == {
        "objective/kl": ("k1", "answer", "reward", "reference"),
        "policy/approxkl_avg": ("k2", "token", "none", "old-policy"),
    }
    kl = log.raw["objective/kl"]
    same(kl, [10.948126792907715, 11.070764541625977])
    np.testing.assert_allclose(-log.raw["objective/non_score_reward"] / kl, 0.05, rtol=1e-7)
    np.testing.assert_allclose(
        log.raw["objective/rlhf_reward"], log.raw["objective/scores"] + log.raw["objective/non_score_reward"], rtol=1e-7
    )
    same(log.raw["val/num_eos_tokens"], [0, 0])
    assert log.decimals["objective/kl"] == -1
    assert log.coefficient is None  # never worked out here


def test_legacy_ppo_logs_its_coefficient() -> None:
    log = one("trl_legacy_ppo.jsonl")
    assert log.trainer == "trl-legacy-ppo"
    same(log.coefficient, [0.2, 0.19948])
    same(log.reward, [0.5, 0.7])
    same(log.length, [20, 21])
    assert [c.against for c in log.kl] == ["reference", "old-policy", "old-policy"]
    assert "objective/kl_dist" not in log.raw


def test_dpo_has_no_kl_and_kto_has_one_per_answer() -> None:
    dpo, kto, online = one("trl_dpo.json"), one("trl_kto.json"), one("trl_online_dpo.json")
    assert (dpo.trainer, dpo.kl, dpo.components) == ("trl-dpo", (), {})
    same(dpo.losses["loss"], [0.6931, 0.6812])
    assert kto.trainer == "trl-kto"
    assert kls(kto) == {"kl": ("k1", "answer", "unknown", "reference")}
    assert online.trainer == "trl-online-dpo"
    assert kls(online) == {"objective/kl": ("k1", "answer", "none", "reference")}
    same(online.coefficient, [0.1, 0.1])


# ------------------------------------------------------------------------------------------------------------- verl


def test_verl_file_logger() -> None:
    log = one("verl.jsonl")
    same(log.step, [0, 1, 2, 3])
    same(log.reward, [np.nan, 0.2, 0.25, 0.31])
    same(log.coefficient, [np.nan, 0.001, 0.001, 0.001])
    assert kls(log) == {
        "actor/kl_loss": ("k3", "token", "loss", "reference"),
        "actor/ppo_kl": ("k1", "token", "none", "old-policy"),
    }
    assert one("verl.jsonl", gold="val-core/gsm8k/reward/mean@1").gold is not None


def test_verl_with_both_penalties_says_so() -> None:
    log = one("verl_both.jsonl")
    assert {c.spec.placement for c in log.kl if c.against == "reference"} == {"loss", "reward"}
    assert any("one in the loss" in note for note in log.notes)


def test_verl_console_with_ray_colours_and_a_cut_line() -> None:
    log = one("verl_console.txt")  # M2
    same(log.step, [34, 35, 36])
    raw = {key: values[0] for key, values in log.raw.items()}
    assert raw["actor/pg_loss"] + raw["actor/kl_coef"] * raw["actor/kl_loss"] == pytest.approx(
        raw["actor/loss"], abs=1e-8
    )
    assert raw["critic/score/mean"] == raw["critic/rewards/mean"] == -0.0182796623557806
    assert raw["response_length/mean"] == 1267.024169921875
    same(log.entropy, [0.22266578674316406, 0.221, 0.2201])  # one of them printed as np.float64(0.221)
    same(log.kl[0].values, [0.0013280365410537343, 0.00141, np.nan])  # 0.001 at the cut end may be 0.0013
    assert any("cut off" in note for note in log.notes)
    assert log.undefined["actor/grad_norm"] == (1,)
    assert log.config == {
        "adv_estimator": "grpo",
        "use_kl_in_reward": False,
        "kl_loss_coef": 0.001,
        "kl_loss_type": "low_var_kl",
        "use_kl_loss": True,
    }


def test_old_verl_console_has_three_decimals() -> None:
    log = one("verl_console_old.txt")  # M3
    assert log.decimals["actor/kl_loss"] == log.decimals["actor/pg_loss"] == 3
    assert (log.kl[0].values[1], log.coefficient[1], log.losses["policy"][1]) == (0.024, 0.001, 0.0)
    assert log.reward[1] == 0.906


# ------------------------------------------------------------------------------------------------------- the others


def test_openrlhf_status_lines_win_over_progress_bars() -> None:
    log = one("openrlhf_console.txt")
    same(log.step, [1, 2])
    same(log.raw["return"], [0.48, 0.57])
    same(log.length, [120.5, 122.5])
    assert kls(log) == {
        "kl": ("k2", "token", "loss", "reference"),  # the command line says so
        "logprobs_diff": ("k1", "token", "none", "reference"),
        "ppo_kl": ("k1", "token", "none", "old-policy"),
    }
    assert log.config == {"init_kl_coef": 0.01, "kl_estimator": "k2", "use_kl_loss": True}


@pytest.mark.parametrize("shown", ["kl=0.02, vllm_kl=0.01", "act_loss=0.1, act_lr=5e-7", "act_loss=0.1, kl=0.02"])
def test_a_bar_is_read_for_a_kl_or_a_loss_of_the_policy(tmp_path: Path, shown: str) -> None:
    path = tmp_path / "bars.txt"
    path.write_text("".join(f"Episode [1/1]: 100%|###| 2/2 [00:20<00:00, {shown}, gen_len={n}]\n" for n in (90, 91)))
    (log,) = read_logs(path)
    same(log.raw["gen_len"], [90, 91])


def test_openrlhf_progress_bars_alone_give_their_last_state() -> None:
    log = one("openrlhf_bars.txt")
    same(log.reward, [0.5, 0.6])
    assert column(log, "kl") == [0.0011, 0.0042]
    assert log.kl[0].spec.placement == "unknown"


def test_nemo_rl_columns_and_console() -> None:
    log, console = one("nemo_rl_columns.json"), one("nemo_rl_console.txt")
    assert log.trainer == console.trainer == "nemo-rl"
    assert kls(log) == {"train/kl_penalty": ("k3", "token", "loss", "reference")}
    same(log.raw["validation/accuracy"], [np.nan, 0.4])
    same(console.reward, [0.31, 0.35])
    same(console.length, [512.25, 530.5])
    assert console.decimals["loss"] == 4
    assert console.kl == ()
    assert any("cannot tell" in note for note in console.notes)


def test_slime_joins_a_rollout_to_its_first_training_step() -> None:
    log = one("slime_console.txt")
    same(log.step, [0, 1, 2, 3])
    same(log.segment, [0, 0, 0, 0])
    same(log.reward, [0.41, np.nan, 0.45, np.nan])
    assert kls(log) == {
        "train/kl_loss": ("k3", "token", "loss", "reference"),
        "train/ppo_kl": ("k1", "token", "none", "old-policy"),
    }  # rollout/kl is 0 throughout: kl_coef is 0, and that is no KL
    same(log.raw["eval/aime"], [np.nan, 0.12, np.nan, np.nan])
    assert log.config["kl_loss_coef"] == 0.001


def test_open_instruct_index_is_not_the_name() -> None:
    log, box = one("open_instruct.jsonl"), one("open_instruct_box.txt")
    estimators = {c.key: c.spec.estimator for c in log.kl}
    assert estimators["objective/kl0_avg"] == "k1"
    assert estimators["objective/kl2_avg"] == "k3"
    np.testing.assert_allclose(log.losses["kl"] / column(log, "objective/kl2_avg"), 0.05)
    same(box.step, [1, 2])
    same(box.losses["kl"], [4.5e-06, 9e-05])
    same(box.reward, [0.41, 0.42])


def test_trlx_roots_are_squared_and_say_so() -> None:
    log = one("trlx.jsonl")
    first, second, third = log.kl
    assert first.values.tolist() == [0.25, 2.25]
    assert (first.spec.unit, first.transform) == ("nats per answer", "squared from a square root")
    np.testing.assert_allclose(second.values, [0.01, 0.09])
    assert (third.key, third.against) == ("policy/approx_kl", "old-policy")
    same(log.coefficient, [0.05, 0.0512])


def test_lm_human_preferences() -> None:
    log = one("lm_human_preferences.jsonl")
    assert log.trainer == "lm-human-preferences"
    same(log.coefficient, [0.15, 0.149])
    same(log.reward, [0.2, 0.6])


def test_wandb_exports() -> None:
    log = one("wandb_history.csv")
    same(log.step, [10, 20, 30, 40])
    same(log.raw["eval/kl"], [np.nan, 0.0191, np.nan, np.nan])
    assert log.kl[0].key == "train/kl"
    assert log.kl[0].spec.placement == "loss"  # the loss moves with it
    small, large = read_logs(DATA / "wandb_chart.csv")
    assert (small.run, large.run) == ("beta0.04", "beta0.1")
    same(small.reward, [0.5, 0.6])
    same(large.kl[0].values, [0.005])


def test_a_plain_table_with_a_mapping() -> None:
    mapping = {
        "step": "iteration_no",
        "reward": "judge_score",
        "gold": "humans",
        "kl": "kl_nats",
        "kl.unit": "nats per answer",
        "kl.estimator": "k1",
        "kl.against": "reference",
        "component:judge": "judge_score",
    }
    (log,) = read_logs(DATA / "plain.csv", mapping=mapping)
    assert log.trainer == "table"
    same(log.step, [1, 2, 3])
    same(log.gold, [0.4, 0.45, 0.3])
    assert kls(log) == {"kl_nats": ("k1", "answer", "unknown", "reference")}
    same(log.components["judge"], [0.5, 0.7, 0.9])
    assert log.notes == ()
