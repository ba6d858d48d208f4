"""ROLL: the penalty in the loss or, token by token, in the reward; both off by default (read at 8eb27cc)."""

from __future__ import annotations

from kleash.trainers._common import FROZEN, NO_CLIP, PLAIN
from kleash.trainers.columns import PER_TOKEN, Columns, kl, old
from kleash.trainers.facts import Shows, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Target, value_of

__all__ = ["ROLL"]

_OPTIONS = {
    "use_kl_loss": Option(default=False),
    "kl_loss_coef": Option(default=0.0),
    "add_token_level_kl": Option(default=False),
    "init_kl_coef": Option(default=0.2),
    "kl_penalty": Option(default="kl", choices=("kl", "abs", "mse", "full")),
    "target_kl": Option(default=None, above=0),
    "norm_mean_type": Option(default="none", choices=("none", "group", "batch", "running"), printed=False),
    "norm_std_type": Option(default="none", choices=("none", "group", "batch", "running"), printed=False),
    "adv_estimator": Option(default="gae", choices=("gae", "reinforce", "grpo"), printed=False),
}


def _penalty(o: Options) -> Penalty:
    in_loss, paid = o["use_kl_loss"], o["add_token_level_kl"]
    unused = o["init_kl_coef"] and paid is False
    return Penalty(
        coefficient="kl_loss_coef" if in_loss else "init_kl_coef" if paid else None,
        in_loss=in_loss,
        in_reward=paid,
        estimator="k3" if in_loss else value_of(o["kl_penalty"]),
        named="k3" if in_loss else f"kl_penalty {o['kl_penalty']}",
        adaptive=True if paid and o["target_kl"] is not None else None,
        target=o["target_kl"],
        inert=f"init_kl_coef {o['init_kl_coef']:g} acts on nothing until add_token_level_kl is on" if unused else None,
    )


def _leash(o: Options) -> Leash:
    grouped, in_loss = o["norm_mean_type"] == "group", o["use_kl_loss"]
    kinds = {"group": "group", "batch": "batch", "running": "log"}
    whole = "norm_std_type and norm_mean_type none or group; a critic that has learnt the returns with gae"
    return Leash(
        parameter="kl_loss_coef" if in_loss else "init_kl_coef",
        group_mean=grouped,
        scale=kinds.get(o["norm_std_type"]),  # type: ignore[arg-type]
        group_option="num_return_sequences_in_group",
        instead="add_token_level_kl with kl_penalty kl",
        assumes=(PLAIN, FROZEN, whole, "reward_clip and advantage_clip are not reached", NO_CLIP),
    )


_MATTERS = ("kl_penalty", "target_kl", "norm_mean_type", "norm_std_type", "adv_estimator")
ROLL = Trainer(
    name="roll",
    project="ROLL",
    marks=("actor/kl_loss@sum", "actor/kl_loss actor/total_loss critic/score/mean", "actor/ppo_ratio_clipfrac"),
    columns=Columns(
        reward=("critic/score/mean",),
        length=("tokens/response_length/mean", "response_length/mean"),
        entropy=("actor/entropy@sum", "critic/entropy/mean"),
        coefficient=("critic/kl_coef",),
        losses={
            "loss": ("actor/total_loss@sum", "actor/total_loss"),
            "policy": ("actor/pg_loss@sum", "actor/pg_loss"),
        },
        kl=(
            kl("actor/kl_loss@sum", "actor/kl_loss", estimator="k3", unit=PER_TOKEN, placement="loss"),
            kl("critic/kl", estimator="k1", unit=PER_TOKEN, placement="reward", named_by="kl_penalty"),
            old("actor/approxkl@sum", "actor/approxkl"),
        ),
    ),
    options=_OPTIONS,
    penalty=_penalty,
    targets=(
        Target(name="roll-loss", settable=_MATTERS, leash=_leash, fixed={"use_kl_loss": True}),
        Target(name="roll-reward", settable=_MATTERS, leash=_leash, fixed={"add_token_level_kl": True}),
    ),
    switches=("use_kl_loss", "add_token_level_kl"),
    shows=Shows(shaped=("critic/score/mean", "critic/rewards/mean"), words="scores and rewards"),
    controller=PER_TOKEN,
)
