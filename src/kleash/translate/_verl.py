"""How verl's options make a leash, in the reward and in the loss; docs/convert.md names the version."""

from __future__ import annotations

from typing import Any

from kleash.translate._leash import Leash, Scale, Setting, Trainer
from kleash.translate._penalties import (
    ALIKE,
    EPOCHS,
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

__all__ = ["VERL"]

_VERL_ESTIMATORS = ("gae", "grpo", "rloo", "remax", "reinforce_plus_plus")
_VERL_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "k3+")


def _verl_reward(s: dict[str, Any]) -> Leash:
    kind = s["kl_penalty"].removesuffix("+")
    refused = k1_in_reward(ALIKE.get(kind, kind), f"kl_penalty {s['kl_penalty']}")
    if s["use_kl_loss"] == "true":
        refused = "use_kl_loss and use_kl_in_reward are both on: two penalties that add up; turn one off"
    if s["type"] == "adaptive":
        refused = MOVES.format(unit="nats per token (the KL per answer divided by the mean length)")
    if s["gamma"] != 1:
        refused = "gamma below 1 discounts the penalty of a token by its place; use gamma 1"
    assumes = [PLAIN, FROZEN, "no token's k1 is clamped"]
    if s["adv_estimator"] == "gae":
        assumes.append("lam 1, or a critic that has learnt the returns")
    if s["adv_estimator"] in {"gae", "grpo", "reinforce_plus_plus"}:
        assumes.append("standardised returns contain the penalty: only the step changes")
    if s["loss_agg_mode"] == "seq-mean-token-mean":
        assumes.append(ONE_LENGTH if s["adv_estimator"] in {"remax", "reinforce_plus_plus"} else SAME_LENGTH)
    assumes.append(NO_CLIP if s["ppo_epochs"] == 1 else "the root of the first update of each batch")
    return Leash(parameter="algorithm.kl_ctrl.kl_coef", pull="answer", assumes=tuple(assumes), refused=refused)


def _verl_loss(s: dict[str, Any]) -> Leash:
    kind = ALIKE.get(s["kl_loss_type"], s["kl_loss_type"])
    pull, refused = in_loss(kind, f"kl_loss_type {s['kl_loss_type']}", "k3+ (the gradient of k2)")
    if s["use_kl_in_reward"] == "true":
        refused = "use_kl_loss and use_kl_in_reward are both on: two penalties that add up; turn one off"
    estimator = s["adv_estimator"]
    grouped = estimator == "grpo"
    whitened = estimator in {"gae", "reinforce_plus_plus"}
    scale: Scale | None = "log" if whitened else None
    if grouped and s["norm_adv_by_std_in_grpo"] == "true":
        scale = "group"
    assumes = [PLAIN, FROZEN, "no token's KL is clamped"]
    if whitened:
        assumes.append(
            f"{estimator} divides advantages by their SD over the batch: reward SD is that of the advantages"
        )
    if s["loss_agg_mode"] == "seq-mean-token-mean":
        assumes.append(ONE_LENGTH if s["adv_estimator"] in {"remax", "reinforce_plus_plus"} else SAME_LENGTH)
    assumes.append(NO_CLIP if s["ppo_epochs"] == 1 else "the root of the first update of each batch")
    return Leash(
        parameter="actor_rollout_ref.actor.kl_loss_coef",
        pull=pull,
        group_mean=grouped,
        scale=scale,
        group_option="actor_rollout_ref.rollout.n",
        assumes=tuple(assumes),
        refused=refused,
    )


VERL: dict[str, Trainer] = {
    "verl-reward": Trainer(
        leash=_verl_reward,
        settings={
            "kl_penalty": Setting(default="kl", choices=_VERL_KL),
            "type": Setting(default="fixed", choices=("fixed", "adaptive")),
            "adv_estimator": Setting(default="gae", choices=_VERL_ESTIMATORS),
            "use_kl_loss": flag(False),
            "gamma": Setting(default=1.0, above=0),
            "loss_agg_mode": Setting(
                default="token-mean",
                choices=(
                    "token-mean",
                    "token-sum",
                    "seq-mean-token-sum",
                    "seq-mean-token-mean",
                    "seq-mean-token-sum-norm",
                ),
            ),
            "ppo_epochs": EPOCHS,
        },
    ),
    "verl-loss": Trainer(
        leash=_verl_loss,
        settings={
            "kl_loss_type": Setting(default="low_var_kl", choices=_VERL_KL),
            "adv_estimator": Setting(default="gae", choices=_VERL_ESTIMATORS),
            "norm_adv_by_std_in_grpo": flag(True),
            "use_kl_in_reward": flag(False),
            "loss_agg_mode": Setting(
                default="token-mean",
                choices=(
                    "token-mean",
                    "token-sum",
                    "seq-mean-token-sum",
                    "seq-mean-token-mean",
                    "seq-mean-token-sum-norm",
                ),
            ),
            "ppo_epochs": EPOCHS,
        },
    ),
}
