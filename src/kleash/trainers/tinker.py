"""Tinker's cookbook and ART: the penalty in the advantages, centred over the batch.

Read in tinker-cookbook 9dfcc3a (rl/metrics.py, incorporate_kl_penalty) and ART's backends (August 2026).
"""

from __future__ import annotations

from kleash.trainers._common import ALARM, FROZEN, NO_CLIP, ONE_LENGTH, PLAIN
from kleash.trainers.columns import PER_TOKEN, Columns, kl, old
from kleash.trainers.facts import Identity, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Target

__all__ = ["ART", "TINKER"]

_OWN_TOKEN = (
    "{} charges every token with its own log ratio only, without a return-to-go: early tokens do not pay for the drift "
    "of later ones{}"
)


def _leash(o: Options) -> Leash:
    at_once = _OWN_TOKEN.format("kl_discount_factor 0", "; set kl_discount_factor 1")
    between = "kl_discount_factor below 1 discounts the penalty of a token by its place; use 1"
    discount = o["kl_discount_factor"]
    return Leash(
        parameter="kl_penalty_coef",
        group_mean=True,
        group_option="group_size",
        assumes=(
            PLAIN,
            FROZEN,
            ONE_LENGTH,
            NO_CLIP,
            "batches so large that the mean log ratio taken off hardly varies",
        ),
        refused=at_once if discount == 0 else between if discount < 1 else None,
    )


TINKER = Trainer(
    name="tinker",
    project="Tinker's cookbook",
    marks=("optim/kl_sample_train_v1", "kl_policy_base", "env/all/reward/total"),
    columns=Columns(
        reward=("env/all/reward/total",),
        length=("env/all/ac_tokens_per_turn",),
        entropy=("optim/entropy",),
        kl=(
            kl("kl_policy_base", estimator="k1", unit=PER_TOKEN, placement="reward"),
            old("optim/kl_sample_train_v2"),
        ),
    ),
    options={
        "kl_penalty_coef": Option(default=0.0),
        "kl_discount_factor": Option(default=0.0, at_least=0),
    },
    penalty=lambda o: Penalty(
        coefficient="kl_penalty_coef",
        in_reward=None if o["kl_penalty_coef"] is None else o["kl_penalty_coef"] > 0,
        in_loss=None if o["kl_penalty_coef"] is None else False,
    ),
    targets=(Target(name="tinker", settable=("kl_discount_factor",), leash=_leash, fixed={"kl_penalty_coef": 1.0}),),
    place="reward",
    estimator="k1",
    token_means=True,
    identity=Identity(kind="none", reason="the cookbook logs the score without the penalty, and no loss without it"),
    mismatch={"optim/kl_sample_train_v2": ALARM},
)
ART = Trainer(
    name="art",
    project="ART",
    marks=("loss/kl_policy_ref",),
    columns=Columns(
        reward=("train/reward", "reward"),
        entropy=("loss/entropy",),
        losses={"loss": ("loss/train",)},
        kl=(kl("loss/kl_policy_ref", estimator="k1", unit=PER_TOKEN, placement="reward"),),
    ),
    options={"kl_penalty_coef": Option(default=0.0)},
    penalty=lambda o: Penalty(coefficient="kl_penalty_coef"),
    targets=(
        Target(
            name="art",
            settable=(),
            leash=lambda o: Leash(parameter="kl_penalty_coef", refused=_OWN_TOKEN.format("kl_penalty_coef", "")),
        ),
    ),
    place="reward",
    estimator="k1",
    identity=Identity(kind="none", reason="ART logs the score without the penalty, and no loss without it"),
)
