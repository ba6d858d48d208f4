"""slime: the penalty in the loss, or in the reward of some advantage estimators."""

from __future__ import annotations

from dataclasses import replace

from kleash.trainers._common import FROZEN, NO_CLIP, ONE_LENGTH, PLAIN, SAME_LENGTH
from kleash.trainers.columns import PER_TOKEN, Columns, Tensors, kl, old
from kleash.trainers.facts import Shows, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Scale, Target, gradient_of, pull_of, value_of

__all__ = ["MILES", "SLIME"]

_GROUPED = ("grpo", "gspo", "cispo")
_BASELINE = "reinforce_plus_plus_baseline"
_OPTIONS = {
    "use_kl_loss": Option(default=False),
    "kl_loss_coef": Option(default=0.0),
    "kl_coef": Option(default=0.0),
    "kl_loss_type": Option(default="k1", choices=("k1", "k2", "k3", "low_var_kl")),
    "use_unbiased_kl": Option(default=False),
    "advantage_estimator": Option(default="grpo", choices=(*_GROUPED, "ppo", "reinforce_plus_plus", _BASELINE)),
    "rewards_normalization": Option(default=True, printed=False, off="--disable-rewards-normalization"),
    "grpo_std_normalization": Option(default=True, printed=False, off="--disable-grpo-std-normalization"),
    "normalize_advantages": Option(default=False, printed=False),
}


def _penalty(o: Options) -> Penalty:
    in_loss, paid, kind = o["use_kl_loss"], o["kl_coef"], o["advantage_estimator"]
    inert = f"kl_coef {paid:g} has no effect with the advantage estimator {kind}" if paid and kind in _GROUPED else None
    return Penalty(
        coefficient="kl_loss_coef" if in_loss else "kl_coef",
        in_loss=in_loss,
        in_reward=None if paid is None else paid > 0 and kind not in (None, *_GROUPED),
        estimator=(value_of if in_loss is False else gradient_of)(o["kl_loss_type"]),
        named=f"--kl-loss-type {o['kl_loss_type']}",
        with_ratio=o["use_unbiased_kl"],
        inert=inert,
    )


def _leash(o: Options) -> Leash:
    estimator, in_loss, ratio = o["advantage_estimator"], o["use_kl_loss"], o["use_unbiased_kl"]
    grouped, centred = estimator in _GROUPED, _centred(o)
    k1_with_ratio = in_loss and ratio and o["kl_loss_type"] == "k1"
    no_baseline = estimator == "reinforce_plus_plus" and not centred
    scale: Scale | None = "group" if centred and grouped and o["grpo_std_normalization"] else None
    return Leash(
        parameter="--kl-loss-coef" if in_loss else "--kl-coef",
        group_mean=centred,
        scale=scale or ("log" if o["normalize_advantages"] and in_loss else None),
        group_option="--n-samples-per-prompt",
        instead="k1 or k3" if ratio else "--kl-loss-type k2, or --use-unbiased-kl",
        assumes=(
            PLAIN,
            FROZEN,
            "no token's KL is clamped",
            ONE_LENGTH if k1_with_ratio or no_baseline else SAME_LENGTH,
            NO_CLIP,
        ),
        refused=_refused(o),
    )


def _centred(o: Options) -> bool:
    return bool(o["rewards_normalization"] and o["advantage_estimator"] in (*_GROUPED, _BASELINE))


def _refused(o: Options) -> str | None:
    estimator = o["advantage_estimator"]
    if o["use_kl_loss"]:
        pulls = pull_of(gradient_of(o["kl_loss_type"]) or "", with_ratio=o["use_unbiased_kl"]) in ("token", "forward")
        sequences = "gspo takes ratios of whole sequences: not covered; use grpo"
        return sequences if estimator == "gspo" and pulls else None
    if estimator in _GROUPED:
        return f"--kl-coef has no effect with --advantage-estimator {estimator}; use --use-kl-loss"
    if estimator == _BASELINE:
        return f"{_BASELINE} charges every token with its own KL only; use ppo or --use-kl-loss"
    return None


SLIME = Trainer(
    name="slime",
    project="slime",
    marks=("rollout/raw_reward", "train/pg_loss train/loss"),
    columns=Columns(
        reward=("rollout/raw_reward",),
        length=("rollout/response_lengths", "rollout/response_len/mean"),
        entropy=("entropy_loss",),
        losses={"loss": ("loss",), "policy": ("pg_loss",)},
        kl=(
            kl("kl_loss", estimator="k1", unit=PER_TOKEN, placement="loss", named_by="kl_loss_type"),
            kl("rollout/kl", estimator="k1", unit=PER_TOKEN, placement="reward", zero_is_off=True),
            old("ppo_kl", estimator="k1"),
        ),
    ),
    options=_OPTIONS,
    penalty=_penalty,
    targets=(
        Target(
            name="slime",
            settable=(
                "use_kl_loss", "kl_loss_type", "use_unbiased_kl", "advantage_estimator", "rewards_normalization",
                "grpo_std_normalization", "normalize_advantages",
            ),
            leash=_leash,
            fixed={"use_kl_loss": True},
        ),
    ),
    shows=Shows(kl_in_loss="kl_loss", silent_in_reward=True),
    mismatch={
        "train_rollout_logprob_abs_diff": (0.1, "twice the .0499 of bfloat16 kernels (trl issue 6789)"),
    },
    cut=("rollout/truncated_ratio",),
    sampling={"--rollout-temperature": 1.0},
    tensors=Tensors(
        folders=("train_data", "rollout_data"),
        reward=("raw_reward", "rewards", "reward"),
        length=("response_lengths", "response_length"),
        policy="log_probs",
        reference="ref_log_probs",
        mask="loss_masks",
    ),
)  # fmt: skip
MILES = replace(
    SLIME,
    name="miles",
    project="miles",
    marks=(),
    targets=(replace(SLIME.targets[0], name="miles"),),
    tensors=None,
)
"""A fork of slime (read at 31f1ca9) with its flags, defaults and keys: a log of miles is called slime's."""
