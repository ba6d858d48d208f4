"""AReaL: the penalty in the reward, token by token; without a reference model an entropy bonus (read at cbff54d)."""

from __future__ import annotations

from kleash.trainers._common import FROZEN, NO_CLIP, ONE_LENGTH, PLAIN
from kleash.trainers.columns import Columns
from kleash.trainers.facts import Identity, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Target, value_of

__all__ = ["AREAL"]

_BONUS = (
    "without a reference model (ref) AReaL takes 0 for every reference log-probability: kl_ctl then pays for unlikely "
    "tokens, an entropy bonus and no leash"
)
_OPTIONS = {
    "kl_ctl": Option(names=("actor.kl_ctl", "kl_ctl"), default=0.1),
    "kl_estimator": Option(names=("actor.kl_estimator", "kl_estimator"), default="k1", choices=("k1", "k2", "k3")),
    "ref": Option(
        names=("ref.path", "ref.backend", "ref.experiment_name", "ref.trial_name"),
        default="none", choices=("none", "given"), printed=False,
    ),
    "mean_level": Option(names=("reward_norm.mean_level",), default="none", choices=("none", "group", "batch"),
                         printed=False),
    "std_level": Option(names=("reward_norm.std_level",), default="none", choices=("none", "group", "batch"),
                        printed=False),
    "discount": Option(names=("actor.discount", "discount"), default=1.0, above=0, printed=False),
}  # fmt: skip


def _penalty(o: Options) -> Penalty:
    missing = o["ref"] == "none"
    return Penalty(
        coefficient="kl_ctl",
        in_reward=None if o["kl_ctl"] is None else o["kl_ctl"] > 0,
        in_loss=None if o["kl_ctl"] is None else False,
        estimator=value_of(o["kl_estimator"]),
        named=f"kl_estimator {o['kl_estimator']}",
        against="nothing" if missing else None,
        inert=_BONUS if missing and o["kl_ctl"] else None,
    )


def _leash(o: Options) -> Leash:
    centred, batch = o["mean_level"] == "group", "batch" in (o["mean_level"], o["std_level"])
    discounts = "discount below 1 discounts the penalty of a token by its place; use 1"
    refused = _BONUS if o["ref"] == "none" else discounts if o["discount"] != 1 else None
    return Leash(
        parameter="actor.kl_ctl",
        group_mean=centred,
        scale="batch" if o["std_level"] == "batch" else "group" if o["std_level"] == "group" else None,
        sd_of="group",
        group_option="gconfig.n_samples",
        assumes=(
            PLAIN,
            FROZEN,
            "reward_scaling 1, no reward clipped; adv_norm only changes the step",
            *(("batches so large that their mean hardly varies",) if batch else ()),
            *(() if centred else (ONE_LENGTH,)),
            NO_CLIP,
        ),
        refused=refused,
    )


AREAL = Trainer(
    name="areal",
    project="AReaL",
    marks=("ppo_actor/kl_rewards/avg", "kl_rewards/avg task_reward/avg", "ppo_actor/task_reward/avg"),
    columns=Columns(
        reward=("ppo_actor/task_reward/avg", "task_reward/avg"),
        length=("ppo_actor/seq_len/avg", "seq_len/avg"),
        entropy=("ppo_actor/update/entropy/avg", "update/entropy/avg"),
        losses={"policy": ("ppo_actor/update/actor_loss/avg",)},
    ),
    options=_OPTIONS,
    penalty=_penalty,
    targets=(
        Target(
            name="areal",
            settable=("kl_estimator", "ref", "mean_level", "std_level", "discount"),
            leash=_leash,
            fixed={"ref": "given"},
        ),
    ),
    place="reward",
    estimator="k1",
    identity=Identity(kind="none", reason="AReaL logs the penalty with its coefficient and no KL beside it"),
    note_without="AReaL logs no KL, only the penalty with its coefficient (ppo_actor/kl_rewards/avg, per token)",
)
