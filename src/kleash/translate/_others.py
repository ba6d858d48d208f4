"""How options of OpenRLHF, NeMo-RL, slime, open-instruct and trlX make a leash; docs/convert.md names the versions."""

from __future__ import annotations

from typing import Any

from kleash.translate._leash import Leash, Pull, Scale, Setting, Trainer
from kleash.translate._penalties import (
    ALIKE,
    FROZEN,
    MOVES,
    NO_CLIP,
    ONE_LENGTH,
    PLAIN,
    SAME_LENGTH,
    flag,
    in_loss,
    k1_in_reward,
)

__all__ = ["OTHERS"]


def _openrlhf(s: dict[str, Any]) -> Leash:
    estimator, kind = s["advantage_estimator"], s["kl_estimator"]
    as_loss = s["use_kl_loss"] == "true"
    assumes = [PLAIN, FROZEN, "raw rewards within reward_clip_range (10 either way), no token's KL beyond 10"]
    scale: Scale | None = "group" if estimator == "group_norm" else None
    if as_loss:
        pull, refused = in_loss(kind, f"kl.estimator {kind}", "k2")
        if estimator in {"gae", "reinforce", "reinforce_baseline"}:
            scale = "log"
            assumes.append(f"{estimator} divides advantages by their SD over the batch: reward SD is that of these")
    else:
        pull, refused = "answer", k1_in_reward(kind, f"kl.estimator {kind}")
        assumes.append("batches large enough that dividing all advantages by their SD only changes the step")
    if s["kl_target"] is not None:
        refused = MOVES.format(unit="nats per token (the KL per answer divided by the mean length)")
    assumes.append(NO_CLIP)
    return Leash(
        parameter="algo.kl.init_coef",
        pull=pull,
        group_mean=estimator in {"reinforce_baseline", "dr_grpo", "group_norm"},
        scale=scale,
        group_option="n_samples_per_prompt",
        assumes=tuple(assumes),
        refused=refused,
    )


def _nemo_rl(s: dict[str, Any]) -> Leash:
    kind = s["reference_policy_kl_type"]
    ratio = s["kl_score_function"] == "true"
    pull, refused = in_loss(
        kind, f"reference_policy_kl_type {kind}", "k3" if ratio else "k2 (or a version with the corrected gradient)",
        ratio=ratio,
    )  # fmt: skip
    if s["use_kl_in_reward"] == "true":
        refused = (
            "use_kl_in_reward charges every token with its own KL before the advantages are normalised; use the loss"
        )
    loo = s["use_leave_one_out_baseline"] == "true"
    return Leash(
        parameter="loss_fn.reference_policy_kl_penalty",
        pull=pull,
        group_mean=not loo,
        scale="group" if s["normalize_rewards"] == "true" else None,
        sd_of="others" if loo else "group",
        group_option="grpo.num_generations_per_prompt",
        assumes=(
            PLAIN,
            FROZEN,
            "the KL gradient has its score-function term (since May 2026)" if ratio else "the KL gradient is plain",
            "no token's KL is clamped",
            NO_CLIP,
        ),
        refused=refused,
    )


def _slime(s: dict[str, Any]) -> Leash:
    kind, estimator = ALIKE.get(s["kl_loss_type"], s["kl_loss_type"]), s["advantage_estimator"]
    grouped = estimator in {"grpo", "gspo", "cispo"}
    centred = s["rewards_normalization"] == "true" and (grouped or estimator == "reinforce_plus_plus_baseline")
    standard = centred and grouped and s["grpo_std_normalization"] == "true"
    refused: str | None
    pull: Pull
    if s["use_kl_loss"] == "true":
        parameter = "--kl-loss-coef"
        ratio = s["use_unbiased_kl"] == "true"
        instead = "k1 or k3" if ratio else "--kl-loss-type k2, or --use-unbiased-kl"
        pull, refused = in_loss(kind, f"--kl-loss-type {s['kl_loss_type']}", instead, ratio=ratio)
        if estimator == "gspo":
            refused = refused or "gspo takes ratios of whole sequences: not covered; use grpo"
    else:
        parameter, pull = "--kl-coef", "answer"
        refused = k1_in_reward(kind, f"--kl-loss-type {s['kl_loss_type']}")
        if grouped:
            refused = f"--kl-coef has no effect with --advantage-estimator {estimator}; use --use-kl-loss"
        elif estimator == "reinforce_plus_plus_baseline":
            refused = "reinforce_plus_plus_baseline charges every token with its own KL only; use ppo or --use-kl-loss"
    batch = s["normalize_advantages"] == "true" and s["use_kl_loss"] == "true"
    k1_with_ratio = s["use_kl_loss"] == "true" and s["use_unbiased_kl"] == "true" and kind == "k1"
    no_baseline = estimator == "reinforce_plus_plus" and not centred
    lengths = ONE_LENGTH if k1_with_ratio or no_baseline else SAME_LENGTH
    return Leash(
        parameter=parameter,
        pull=pull,
        group_mean=centred,
        scale="group" if standard else "log" if batch else None,
        group_option="--n-samples-per-prompt",
        assumes=(PLAIN, FROZEN, "no token's KL is clamped", lengths, NO_CLIP),
        refused=refused,
    )


def _open_instruct(s: dict[str, Any]) -> Leash:
    index = int(s["kl_estimator"])
    if index == 3:  # the ratio times k1, differentiated through both
        pull, refused = in_loss("k1", "kl_estimator 3", "", ratio=True)
    else:
        pull, refused = in_loss(("k1", "k2", "k3")[index], f"kl_estimator {index}", "1 (k2) or 3 (ratio times k1)")
    return Leash(
        parameter="beta",
        pull=pull,
        group_mean=True,
        scale="group" if s["advantage_normalization_type"] == "standard" else None,
        sd_of="group-n",
        group_option="num_samples_per_prompt_rollout",
        assumes=(PLAIN, FROZEN, "no log ratio beyond 40", "loss_denominator token", NO_CLIP),
        refused=refused,
    )


def _trlx(s: dict[str, Any]) -> Leash:
    unit = "nats per answer (trlX feeds the square of its logged sqrt_kl, which is no estimate of the KL)"
    return Leash(
        parameter="method.init_kl_coef",
        pull="answer",
        scale=None if s["scale_reward"] == "ignored" else "log",
        assumes=(
            PLAIN,
            FROZEN,
            "rewards within cliprange_reward (10 either way)",
            "a critic that has learnt the returns (lam 0.95), gamma 1",
            NO_CLIP,
        ),
        refused=None if s["target"] is None else MOVES.format(unit=unit),
    )


OTHERS: dict[str, Trainer] = {
    "openrlhf": Trainer(
        leash=_openrlhf,
        settings={
            "kl_estimator": Setting(default="k1", choices=("k1", "k2", "k3")),
            "use_kl_loss": flag(False),
            "advantage_estimator": Setting(
                default="gae",
                choices=("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo"),
            ),
            "kl_target": Setting(default=None, above=0),
        },
    ),
    "nemo-rl": Trainer(
        leash=_nemo_rl,
        settings={
            "reference_policy_kl_type": Setting(default="k3", choices=("k1", "k2", "k3")),
            "kl_score_function": flag(True),
            "use_kl_in_reward": flag(False),
            "normalize_rewards": flag(True),
            "use_leave_one_out_baseline": flag(True),
        },
    ),
    "slime": Trainer(
        leash=_slime,
        settings={
            "use_kl_loss": flag(True),
            "kl_loss_type": Setting(default="k1", choices=("k1", "k2", "k3", "low_var_kl")),
            "use_unbiased_kl": flag(False),
            "advantage_estimator": Setting(
                default="grpo",
                choices=("grpo", "gspo", "cispo", "ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"),
            ),
            "rewards_normalization": flag(True),
            "grpo_std_normalization": flag(True),
            "normalize_advantages": flag(False),
        },
    ),
    "open-instruct": Trainer(
        leash=_open_instruct,
        settings={
            "kl_estimator": Setting(default="2", choices=("0", "1", "2", "3")),
            "advantage_normalization_type": Setting(default="centered", choices=("centered", "standard")),
        },
    ),
    "trlx": Trainer(
        leash=_trlx,
        settings={
            "target": Setting(default=None, above=0),
            "scale_reward": Setting(default="ignored", choices=("ignored", "running", "ref")),
        },
    ),
}
