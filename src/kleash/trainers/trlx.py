"""trlX: PPO with the penalty in the reward, and square roots in the log."""

from __future__ import annotations

from kleash.trainers._common import FROZEN, NO_CLIP, PLAIN
from kleash.trainers.columns import PER_ANSWER, PER_TOKEN, Columns, kl, old
from kleash.trainers.facts import Identity, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Target

__all__ = ["TRLX"]


def _penalty(o: Options) -> Penalty:
    adaptive = True if o["target"] is not None else None
    return Penalty(
        coefficient="init_kl_coef", estimator=None, adaptive=adaptive, target=o["target"], horizon=o["horizon"]
    )


def _leash(o: Options) -> Leash:
    return Leash(
        parameter="method.init_kl_coef",
        scale=None if o["scale_reward"] == "ignored" else "log",
        assumes=(
            PLAIN,
            FROZEN,
            "rewards within cliprange_reward (10 either way)",
            "a critic that has learnt the returns (lam 0.95), gamma 1",
            NO_CLIP,
        ),
    )


TRLX = Trainer(
    name="trlx",
    project="trlX",
    marks=("policy/sqrt_kl", "kl_ctl_value", "losses/total_loss rollout_scores/mean"),
    columns=Columns(
        reward=("rollout_scores/mean", "reward/mean"),
        coefficient=("kl_ctl_value",),
        losses={"loss": ("losses/total_loss",), "policy": ("losses/policy_loss",), "value": ("losses/value_loss",)},
        kl=(
            kl("policy/sqrt_kl", estimator="k3", unit=PER_ANSWER, placement="none", squared=True),
            kl("policy/kl_per_token", estimator="k3", unit=PER_TOKEN, placement="none", squared=True),
            old("policy/approx_kl"),
        ),
    ),
    options={
        "init_kl_coef": Option(names=("method.init_kl_coef", "init_kl_coef"), default=0.001),
        "target": Option(names=("method.target", "target"), above=0),
        "horizon": Option(names=("method.horizon", "horizon"), default=10000.0),
        "scale_reward": Option(default="ignored", choices=("ignored", "running", "ref"), path="method.scale_reward"),
    },
    penalty=_penalty,
    targets=(Target(name="trlx", settable=("target", "scale_reward"), leash=_leash),),
    place="reward",
    estimator="k1",
    controller="nats per answer (trlX feeds the square of its logged sqrt_kl, which is no estimate of the KL)",
    identity=Identity(kind="none", reason="trlX logs kl_ctl_value and nothing to check it against"),
    note="trlX logs roots of k3 with the ratio inverted, prompt tokens included: squared back, it still estimates "
    "chi-square minus KL and not the KL of the penalty",
)
