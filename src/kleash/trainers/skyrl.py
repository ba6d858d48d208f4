"""SkyRL: the penalty in the loss by default, or in the reward, never in both (read at a956457, August 2026)."""

from __future__ import annotations

from kleash.trainers._common import FROZEN, NO_CLIP, PLAIN
from kleash.trainers.columns import PER_TOKEN, Columns, kl
from kleash.trainers.facts import Shows, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Scale, Target, gradient_of, value_of

__all__ = ["SKYRL"]

_KL = ("k1", "k2", "k3", "abs")
_OPTIONS = {
    "use_kl_loss": Option(default=True),
    "use_kl_in_reward": Option(default=False),
    "kl_loss_coef": Option(default=0.001),
    "kl_estimator_type": Option(default="k3", choices=_KL),
    "type": Option(names=("kl_ctrl.type",), default="fixed", choices=("fixed", "adaptive"), printed=False),
    "kl_target": Option(names=("kl_ctrl.kl_target",), default=0.1, printed=False),
    "advantage_estimator": Option(default="grpo", choices=("grpo", "gae", "rloo", "reinforce++"), printed=False),
    "grpo_norm_by_std": Option(default=True, printed=False),
}


def _penalty(o: Options) -> Penalty:
    in_loss, in_reward = o["use_kl_loss"], o["use_kl_in_reward"]
    moved = bool(in_reward) and not in_loss and o["type"] is not None
    return Penalty(
        coefficient="kl_loss_coef",
        in_loss=in_loss,
        in_reward=in_reward,
        estimator=(value_of if in_reward else gradient_of)(o["kl_estimator_type"]),
        named=f"kl_estimator_type {o['kl_estimator_type']}",
        adaptive=o["type"] == "adaptive" if moved else None,
        target=o["kl_target"] if moved else None,
    )


def _leash(o: Options) -> Leash:
    grouped, in_loss = o["advantage_estimator"] == "grpo", o["use_kl_loss"]
    scale: Scale | None = "group" if grouped and o["grpo_norm_by_std"] and in_loss else None
    return Leash(
        parameter="trainer.algorithm.kl_loss_coef",
        group_mean=grouped and in_loss,
        scale=scale,
        group_option="generator.n_samples_per_prompt",
        instead="kl_estimator_type k2",
        assumes=(PLAIN, FROZEN, "no token's KL is clamped", NO_CLIP),
    )


SKYRL = Trainer(
    name="skyrl",
    project="SkyRL",
    marks=("policy/policy_kl", "loss/avg_kl", "reward/avg_raw_reward"),
    columns=Columns(
        reward=("reward/avg_raw_reward",),
        coefficient=("loss/kl_loss_coef",),
        losses={"loss": ("policy/final_loss",), "policy": ("policy/policy_loss",)},
        kl=(
            kl("policy/policy_kl", estimator="k3", unit=PER_TOKEN, placement="loss", named_by="kl_estimator_type"),
            kl("loss/avg_kl", estimator="k3", unit=PER_TOKEN, placement="reward", named_by="kl_estimator_type"),
        ),
    ),
    options=_OPTIONS,
    penalty=_penalty,
    targets=(
        Target(
            name="skyrl",
            settable=("use_kl_loss", "use_kl_in_reward", "kl_estimator_type", "type", "advantage_estimator",
                      "grpo_norm_by_std"),
            leash=_leash,
        ),
    ),
    switches=("use_kl_loss", "use_kl_in_reward"),
    shows=Shows(kl_in_loss="policy/policy_kl"),
    history={"switch": "SkyRL before 19 March 2026, whose KL loss carried no gradient (issue 1340)"},
    controller=PER_TOKEN,
)  # fmt: skip
