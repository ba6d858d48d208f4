"""OpenRLHF: the penalty in the reward, or with a switch in the loss."""

from __future__ import annotations

from kleash.trainers._common import ALARM, FROZEN, NO_CLIP, PLAIN
from kleash.trainers.columns import PER_TOKEN, Columns, kl, old
from kleash.trainers.facts import Change, Identity, Shows, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Scale, Target, gradient_of, value_of

__all__ = ["OPENRLHF"]

_OPTIONS = {
    "init_kl_coef": Option(names=("algo.kl.init_coef", "init_kl_coef"), default=0.01),
    "use_kl_loss": Option(names=("algo.kl.use_loss", "use_kl_loss"), default=False),
    "kl_estimator": Option(names=("algo.kl.estimator", "kl_estimator"), default="k1", choices=("k1", "k2", "k3")),
    "advantage_estimator": Option(
        names=("algo.advantage.estimator", "advantage_estimator"),
        default="gae",
        choices=("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo"),
    ),
    "kl_target": Option(names=("algo.kl.target", "kl_target"), above=0),
    "kl_horizon": Option(names=("algo.kl.horizon", "kl_horizon")),
}


def _penalty(o: Options) -> Penalty:
    in_loss = o["use_kl_loss"]
    return Penalty(
        coefficient="init_kl_coef",
        in_loss=in_loss,
        in_reward=None if in_loss is None else not in_loss,
        estimator=(gradient_of if in_loss else value_of)(o["kl_estimator"]),
        named=f"kl.estimator {o['kl_estimator']}",
        adaptive=True if o["kl_target"] is not None else None,
        target=o["kl_target"],
        horizon=o["kl_horizon"],
    )


def _leash(o: Options) -> Leash:
    estimator = o["advantage_estimator"]
    scale: Scale | None = "group" if estimator == "group_norm" else None
    standardised = "batches large enough that dividing all advantages by their SD only changes the step"
    if o["use_kl_loss"]:
        standardised = f"{estimator} divides advantages by their SD over the batch: reward SD is that of these"
        scale = "log" if estimator in {"gae", "reinforce", "reinforce_baseline"} else scale
    clipped = "raw rewards within reward_clip_range (10 either way), no token's KL beyond 10"
    said = () if o["use_kl_loss"] and scale != "log" else (standardised,)
    return Leash(
        parameter="algo.kl.init_coef",
        group_mean=estimator in {"reinforce_baseline", "dr_grpo", "group_norm"},
        scale=scale,
        group_option="n_samples_per_prompt",
        instead="k2",
        assumes=(PLAIN, FROZEN, clipped, *said, NO_CLIP),
    )


OPENRLHF = Trainer(
    name="openrlhf",
    project="OpenRLHF",
    marks=("logprobs_diff", "vllm_kl", "act_loss", "policy_loss return", "policy_loss actor_lr"),
    columns=Columns(
        reward=("reward", "rollout/reward_mean"),
        length=("response_length", "gen_len", "rollout/response_length_mean"),
        entropy=("entropy_loss",),
        losses={"policy": ("policy_loss", "act_loss"), "value": ("critic_loss",)},
        kl=(
            kl("kl", estimator="k1", unit=PER_TOKEN, placement="unknown", named_by="kl_estimator"),
            kl("logprobs_diff", estimator="k1", unit=PER_TOKEN, placement="none", zero_is_off=True),
            old("ppo_kl", estimator="k1"),
        ),
    ),
    options=_OPTIONS,
    penalty=_penalty,
    targets=(
        Target(
            name="openrlhf",
            settable=("kl_estimator", "use_kl_loss", "advantage_estimator", "kl_target"),
            leash=_leash,
        ),
    ),
    controller="nats per token (the KL per answer divided by the mean length)",
    shows=Shows(
        shaped=("reward", "return"),
        words="reward and return",
        differ="return is below reward by more than its digits",
    ),
    identity=Identity(kind="shaped"),
    mismatch={"vllm_kl": ALARM},
    cut=("rollout/truncated_rate",),
    changes=(
        Change(
            version=(0, 10, 2),
            key=("algo.kl.init_coef",),
            what="flags are renamed (--algo.kl.*): an old name in a launcher is not read",
            source="OpenRLHF cli, 0.10.2",
        ),
    ),
)
