"""Trainers that grew out of verl: EasyR1 with names of its own, rLLM with verl's (read at b44b311 and 9beb6e0)."""

from __future__ import annotations

from dataclasses import replace

from kleash.trainers.columns import PER_TOKEN, kl
from kleash.trainers.facts import Shows, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Target, gradient_of, value_of
from kleash.trainers.verl import VERL, loss_leash, reward_leash

__all__ = ["EASYR1", "RLLM"]

_OPTIONS = {
    "disable_kl": Option(default=False),
    "use_kl_loss": Option(default=False),
    "kl_coef": Option(default=0.001),
    "kl_penalty": Option(default="kl", choices=("kl", "abs", "mse", "low_var_kl", "full")),
    "kl_type": Option(default="fixed", choices=("fixed", "adaptive"), printed=False),
    "kl_target": Option(default=0.1, printed=False),
    "adv_estimator": replace(VERL.options["adv_estimator"], default="grpo"),
}
_VERLS = {"norm_adv_by_std_in_grpo": True, "loss_agg_mode": "token-mean", "ppo_epochs": 1, "gamma": 1.0}


def _penalty(o: Options) -> Penalty:
    off, in_loss, coefficient = o["disable_kl"], o["use_kl_loss"], o["kl_coef"]
    known = in_loss is not None or off
    adaptive = o["kl_type"] == "adaptive" if o["kl_type"] is not None and not in_loss else None
    return Penalty(
        coefficient="kl_coef",
        in_loss=bool(in_loss and not off) if known else None,
        in_reward=bool(not in_loss and not off) if known else None,
        estimator=(gradient_of if in_loss else value_of)(o["kl_penalty"]),
        named=f"kl_penalty {o['kl_penalty']}",
        adaptive=adaptive,
        target=o["kl_target"] if adaptive else None,
        inert=f"kl_coef {coefficient:g} acts on nothing: disable_kl is on" if off and coefficient else None,
    )


def _leash(o: Options) -> Leash:
    verl = loss_leash if o["use_kl_loss"] else reward_leash
    return replace(
        verl({**_VERLS, **o}),
        parameter="algorithm.kl_coef",
        group_option="worker.rollout.n",
        instead="kl_penalty mse",
    )


EASYR1 = replace(
    VERL,
    name="easyr1",
    project="EasyR1",
    marks=("actor/kl_penalty", "actor/kl_coef reward/overall", "actor.kl_coef", "reward/overall actor/pg_loss"),
    columns=replace(
        VERL.columns,
        reward=("reward/overall", "critic/score/mean"),
        coefficient=("actor/kl_coef", "critic/kl_coef"),
        kl=(
            kl("actor/kl_loss", estimator="k3", unit=PER_TOKEN, placement="loss", named_by="kl_penalty"),
            kl("actor/kl_penalty", "critic/kl", estimator="k1", unit=PER_TOKEN, placement="reward",
               named_by="kl_penalty"),
            VERL.columns.kl[-1],
        ),
    ),
    options=_OPTIONS,
    penalty=_penalty,
    targets=(
        Target(name="easyr1-reward", settable=("kl_penalty", "kl_type", "adv_estimator"), leash=_leash),
        Target(name="easyr1-loss", settable=("kl_penalty", "adv_estimator"), leash=_leash, fixed={"use_kl_loss": True}),
    ),
    switches=("use_kl_loss",),
    history={},
    shows=Shows(kl_in_loss="actor/kl_loss", shaped=("critic/score/mean", "critic/rewards/mean"),
                words="scores and rewards"),
    first_steps=None,
    changes=(),
)  # fmt: skip


def _beta(o: Options) -> Penalty:
    inert = None
    if o["kl_beta"] and o["use_kl_loss"] is False and o["use_kl_in_reward"] is False:
        inert = f"kl_beta {o['kl_beta']:g} acts on nothing: both of verl's switches are off"
    return replace(VERL.penalty(o), inert=inert)


RLLM: Trainer = replace(
    VERL,
    name="rllm",
    project="rLLM",
    marks=(),
    options={**VERL.options, "kl_beta": Option(default=0.0)},
    penalty=_beta,
    targets=(),
    history={},
    first_steps=None,
    changes=(),
)
"""rLLM trains with verl, whose log and options it has (`convert --to verl-loss`); ``kl_beta`` is for other backends."""
