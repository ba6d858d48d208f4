"""verl: the penalty in the reward or in the loss, or in both; docs/convert.md names the version."""

from __future__ import annotations

from dataclasses import replace

from kleash.trainers._common import ALARM, EPOCHS, FROZEN, ONE_LENGTH, PLAIN, SAME_LENGTH, clipping, whole
from kleash.trainers.columns import PER_TOKEN, Columns, FirstSteps, kl, old
from kleash.trainers.facts import Change, Shows, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Scale, Target, gradient_of, value_of

__all__ = ["VERL", "loss_leash", "reward_leash"]

_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "k3+")
_OPTIONS = {
    "use_kl_loss": Option(default=False, path="actor_rollout_ref.actor.use_kl_loss"),
    "use_kl_in_reward": Option(default=False, path="algorithm.use_kl_in_reward"),
    "kl_loss_coef": Option(default=0.001),
    "kl_coef": Option(names=("kl_ctrl.kl_coef", "algorithm.kl_coef"), default=0.001),
    "kl_loss_type": Option(default="low_var_kl", choices=_KL, path="actor_rollout_ref.actor.kl_loss_type"),
    "kl_penalty": Option(names=("algorithm.kl_penalty", "kl_penalty"), default="kl", choices=_KL),
    "type": Option(
        names=("kl_ctrl.type",),
        default="fixed",
        choices=("fixed", "adaptive"),
        printed=False,
        path="algorithm.kl_ctrl.type",
    ),
    "target_kl": Option(),
    "horizon": Option(),
    "adv_estimator": Option(
        default="gae",
        choices=("gae", "grpo", "rloo", "remax", "reinforce_plus_plus"),
        path="algorithm.adv_estimator",
    ),
    "norm_adv_by_std_in_grpo": Option(default=True, path="algorithm.norm_adv_by_std_in_grpo"),
    "gamma": Option(default=1.0, above=0, printed=False, path="algorithm.gamma"),
    "loss_agg_mode": Option(
        default="token-mean",
        choices=("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
        path="actor_rollout_ref.actor.loss_agg_mode",
    ),
    "ppo_epochs": replace(EPOCHS, path="actor_rollout_ref.actor.ppo_epochs"),
}


def _penalty(o: Options) -> Penalty:
    in_loss, in_reward = o["use_kl_loss"], o["use_kl_in_reward"]
    if in_loss is not None and in_reward is None:
        in_reward = False  # its default since PR 644; before that the key did not exist
    open_ = in_loss is None and in_reward is None
    as_loss = in_loss or (open_ and o["kl_loss_coef"] is not None)
    named = "kl_loss_type" if in_loss else "kl_penalty"
    return Penalty(
        coefficient="kl_loss_coef" if as_loss else "kl_coef" if in_reward or open_ else None,
        in_loss=in_loss,
        in_reward=in_reward,
        estimator=(gradient_of if in_loss else value_of)(o[named]),
        named=f"{named} {o[named]}",
        adaptive=None if o["type"] is None else o["type"] == "adaptive",
        target=o["target_kl"],
        horizon=o["horizon"],
        iterations=whole(o["ppo_epochs"]),
        loss_type=o["loss_agg_mode"],
    )


def _averaged(o: Options) -> tuple[str, ...]:
    """What is assumed because of how the loss averages, and of updates per batch."""
    lengths = ONE_LENGTH if o["adv_estimator"] in {"remax", "reinforce_plus_plus"} else SAME_LENGTH
    return (*((lengths,) if o["loss_agg_mode"] == "seq-mean-token-mean" else ()), clipping(o["ppo_epochs"]))


def reward_leash(o: Options) -> Leash:
    """With the penalty in the reward."""
    assumes = [PLAIN, FROZEN, "no token's k1 is clamped"]
    if o["adv_estimator"] == "gae":
        assumes.append("lam 1, or a critic that has learnt the returns")
    if o["adv_estimator"] in {"gae", "grpo", "reinforce_plus_plus"}:
        assumes.append("standardised returns contain the penalty: only the step changes")
    discounts = "gamma below 1 discounts the penalty of a token by its place; use gamma 1"
    return Leash(
        parameter="algorithm.kl_ctrl.kl_coef",
        assumes=(*assumes, *_averaged(o)),
        refused=discounts if o["gamma"] != 1 else None,
    )


def loss_leash(o: Options) -> Leash:
    """With the penalty in the loss."""
    estimator = o["adv_estimator"]
    whitened, grouped = estimator in {"gae", "reinforce_plus_plus"}, estimator == "grpo"
    scale: Scale | None = "log" if whitened else "group" if grouped and o["norm_adv_by_std_in_grpo"] else None
    assumes = [PLAIN, FROZEN, "no token's KL is clamped"]
    if whitened:
        assumes.append(
            f"{estimator} divides advantages by their SD over the batch: reward SD is that of the advantages"
        )
    return Leash(
        parameter="actor_rollout_ref.actor.kl_loss_coef",
        group_mean=grouped,
        scale=scale,
        group_option="actor_rollout_ref.rollout.n",
        instead="k3+ (the gradient of k2)",
        assumes=(*assumes, *_averaged(o)),
    )


VERL = Trainer(
    name="verl",
    project="verl",
    marks=("critic/score/*", "actor/pg_loss*", "actor/kl_loss*"),
    columns=Columns(
        reward=("critic/score/mean",),
        length=("response_length/mean",),
        entropy=("actor/entropy", "actor/entropy_loss"),
        coefficient=("actor/kl_coef", "actor/reward_kl_penalty_coeff", "critic/kl_coeff"),
        losses={"loss": ("actor/loss",), "policy": ("actor/pg_loss",), "value": ("critic/vf_loss",)},
        kl=(
            kl(
                "actor/kl_loss",
                estimator="k3",
                unit=PER_TOKEN,
                placement="loss",
                clamp=(-20.0, 20.0),
                named_by="kl_loss_type",
            ),
            kl(
                "actor/reward_kl_penalty",
                "critic/kl",
                estimator="k1",
                unit=PER_TOKEN,
                placement="reward",
                named_by="kl_penalty",
            ),
            old("actor/ppo_kl", estimator="k1"),
        ),
    ),
    options=_OPTIONS,
    penalty=_penalty,
    targets=(
        Target(
            name="verl-reward",
            settable=("kl_penalty", "type", "adv_estimator", "use_kl_loss", "gamma", "loss_agg_mode", "ppo_epochs"),
            leash=reward_leash,
            fixed={"use_kl_in_reward": True},
        ),
        Target(
            name="verl-loss",
            settable=(
                "kl_loss_type", "adv_estimator", "norm_adv_by_std_in_grpo", "use_kl_in_reward", "loss_agg_mode",
                "ppo_epochs",
            ),
            leash=loss_leash,
            fixed={"use_kl_loss": True},
        ),
    ),
    switches=("use_kl_loss", "use_kl_in_reward"),
    history={
        "switch": "verl before PR 644",
        "sign": "verl before commit a65c9157, and forks taken earlier",
        "overlogged": "verl 0.5 to 0.7 log kl_loss times the number of micro-batches (PR 4711)",
    },
    shows=Shows(
        kl_in_loss="actor/kl_loss",
        shaped=("critic/score/mean", "critic/rewards/mean"),
        words="scores and rewards",
        paid=("actor/reward_kl_penalty", "critic/kl"),
        paid_by=("actor/reward_kl_penalty_coeff", "critic/kl_coeff"),
    ),
    controller="nats per token (the KL per answer divided by the mean length)",
    mismatch={"rollout_corr/kl": ALARM, "rollout_correction/kl": ALARM},
    cut=("response_length/clip_ratio",),
    sampling={"actor_rollout_ref.rollout.temperature": 1.0},
    first_steps=FirstSteps(
        name="verl's rollouts",
        columns=frozenset({"step", "input", "output", "score"}),
        prompt="input",
        answer="output",
        reward="score",
        first=1,  # step 0 is a validation, which verl samples greedily unless told otherwise
        last=1,
        how="trainer.rollout_data_dir, whose first file is 1.jsonl",
    ),
    changes=(
        Change(
            version=(0, 3),
            key=("use_kl_in_reward", "use_kl_loss"),
            visible="kl-gone",
            what="use_kl_loss False means no penalty; before, it meant one in the reward with kl_coef 0.001",
            source="verl PR 644 (March 2025)",
        ),
        Change(
            version=(0, 5),
            key=(),
            what="kl_loss is logged times the number of micro-batches (until 0.7): the log's KL is too large, the "
            "penalty is not",
            source="verl PRs 4711, 4778",
        ),
    ),
)  # fmt: skip
