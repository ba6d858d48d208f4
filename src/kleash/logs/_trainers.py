"""Whose keys are these, and what each of them means.

The keys are those read in the trainers' sources: a number called ``kl`` is a mean per token for one trainer and a sum
over the answer for the next, and a third logs its square root.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kleash.kl import KLSpec
from kleash.logs.table import KLColumn

if TYPE_CHECKING:
    from kleash.logs.table import Against, Array

__all__ = ["READERS", "Reader", "bare", "detect", "kl_columns"]

_PER_TOKEN, _PER_ANSWER = "nats per token", "nats per answer"


@dataclass(frozen=True, kw_only=True)
class KLRule:
    """Which KL stands under a key."""

    keys: tuple[str, ...]
    spec: KLSpec
    against: Against = "reference"
    squared: bool = False
    zero_is_off: bool = False
    """An all-zero column is what the trainer writes when it computes no KL."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """The keys of one trainer, without the ``train/`` that wandb and TensorBoard put in front."""

    reward: tuple[str, ...] = ()
    length: tuple[str, ...] = ()
    entropy: tuple[str, ...] = ()
    coefficient: tuple[str, ...] = ()
    losses: Mapping[str, tuple[str, ...]]
    component: re.Pattern[str] | None = None
    kl: tuple[KLRule, ...] = ()


def _old(*keys: str, estimator: Any = "k2") -> KLRule:
    """The policy after against before an update; the rollout policy drew the tokens."""
    spec = KLSpec(estimator=estimator, unit="nats per token", sampler="behavior", placement="none")
    return KLRule(keys=keys, spec=spec, against="old-policy")


def _kl(
    *keys: str,
    estimator: Any,
    unit: Any,
    placement: Any,
    clamp: tuple[float, float] | None = None,
    sampler: Any = "policy",
    squared: bool = False,
    zero_is_off: bool = False,
) -> KLRule:
    spec = KLSpec(estimator=estimator, unit=unit, placement=placement, clamp=clamp, sampler=sampler)
    return KLRule(keys=keys, spec=spec, squared=squared, zero_is_off=zero_is_off)


_GRPO: dict[str, Any] = {
    "reward": ("reward",),
    "length": ("completions/mean_length", "completion_length"),
    "entropy": ("entropy",),
    "losses": {"loss": ("loss",), "policy": ("policy_loss",)},
    "component": re.compile(r"rewards/(?P<name>.+?)(?:/mean)?"),
}
_PPO: dict[str, Any] = {
    "reward": ("objective/scores",),
    "entropy": ("policy/entropy_avg", "objective/entropy"),
    "losses": {"loss": ("loss",), "policy": ("loss/policy_avg",), "value": ("loss/value_avg",)},
}
_DPO: dict[str, Any] = {"reward": ("rewards/accuracies",), "entropy": ("entropy",), "losses": {"loss": ("loss",)}}
_ZIEGLER: dict[str, Any] = {
    "entropy": ("objective/entropy", "ppo/policy/entropy"),
    "coefficient": ("objective/kl_coef",),
    "losses": {"loss": ("ppo/loss/total",), "policy": ("ppo/loss/policy",), "value": ("ppo/loss/value",)},
    "length": ("tokens/responses_len_mean",),
}
_ANSWER_IN_REWARD: dict[str, Any] = {"estimator": "k1", "unit": _PER_ANSWER, "placement": "reward"}

READERS: dict[str, Reader] = {
    "trl-grpo": Reader(**_GRPO, kl=(_kl("kl", estimator="k3", unit=_PER_TOKEN, placement="loss"),)),
    "trl-rloo": Reader(
        **{**_GRPO, "reward": ("reward", "objective/scores"), "entropy": (*_GRPO["entropy"], *_PPO["entropy"])},
        kl=(
            _kl("kl", estimator="k1", unit=_PER_TOKEN, placement="reward"),
            _kl("objective/kl", **_ANSWER_IN_REWARD),
            _old("policy/approxkl_avg"),
        ),
    ),
    "trl-ppo": Reader(**_PPO, kl=(_kl("objective/kl", **_ANSWER_IN_REWARD), _old("policy/approxkl_avg"))),
    "trl-online-dpo": Reader(
        **_PPO,
        coefficient=("beta",),
        kl=(_kl("objective/kl", estimator="k1", unit=_PER_ANSWER, placement="none"),),
    ),
    "trl-dpo": Reader(**_DPO),
    "trl-kto": Reader(
        **_DPO, kl=(_kl("kl", estimator="k1", unit=_PER_ANSWER, placement="unknown", sampler="unknown"),)
    ),
    "trl-legacy-ppo": Reader(
        **_ZIEGLER,
        reward=("ppo/mean_scores", "env/reward_mean"),
        kl=(
            _kl("objective/kl", **_ANSWER_IN_REWARD),
            _old("ppo/policy/approxkl"),
            _old("ppo/policy/policykl", estimator="k1"),
        ),
    ),
    "lm-human-preferences": Reader(
        **_ZIEGLER,
        reward=("objective/score",),
        kl=(_kl("objective/kl", **_ANSWER_IN_REWARD), _old("ppo/policy/approxkl")),
    ),
    "verl": Reader(
        reward=("critic/score/mean",),
        length=("response_length/mean",),
        entropy=("actor/entropy", "actor/entropy_loss"),
        coefficient=("actor/kl_coef", "actor/reward_kl_penalty_coeff", "critic/kl_coeff"),
        losses={"loss": ("actor/loss",), "policy": ("actor/pg_loss",), "value": ("critic/vf_loss",)},
        kl=(
            _kl("actor/kl_loss", estimator="k3", unit=_PER_TOKEN, placement="loss", clamp=(-20.0, 20.0)),
            _kl("actor/reward_kl_penalty", "critic/kl", estimator="k1", unit=_PER_TOKEN, placement="reward"),
            _old("actor/ppo_kl", estimator="k1"),
        ),
    ),
    "openrlhf": Reader(
        reward=("reward", "rollout/reward_mean"),
        length=("response_length", "gen_len", "rollout/response_length_mean"),
        entropy=("entropy_loss",),
        losses={"policy": ("policy_loss", "act_loss"), "value": ("critic_loss",)},
        kl=(
            _kl("kl", estimator="k1", unit=_PER_TOKEN, placement="unknown"),
            _kl("logprobs_diff", estimator="k1", unit=_PER_TOKEN, placement="none", zero_is_off=True),
            _old("ppo_kl", estimator="k1"),
        ),
    ),
    "nemo-rl": Reader(
        reward=("reward", "total_reward"),
        length=("mean_gen_tokens_per_sample",),
        entropy=("approx_entropy",),
        losses={"loss": ("loss",)},
        kl=(
            _kl(
                "kl_penalty",
                estimator="k3",
                unit=_PER_TOKEN,
                placement="loss",
                clamp=(-20.0, 20.0),
                zero_is_off=True,
            ),
        ),
    ),
    "slime": Reader(
        reward=("rollout/raw_reward",),
        length=("rollout/response_lengths", "rollout/response_len/mean"),
        entropy=("entropy_loss",),
        losses={"loss": ("loss",), "policy": ("pg_loss",)},
        kl=(
            _kl("kl_loss", estimator="k1", unit=_PER_TOKEN, placement="loss"),
            _kl("rollout/kl", estimator="k1", unit=_PER_TOKEN, placement="reward", zero_is_off=True),
            _old("ppo_kl", estimator="k1"),
        ),
    ),
    "open-instruct": Reader(
        reward=("scores", "objective/scores"),
        length=("val/sequence_lengths",),
        entropy=("policy/entropy_avg",),
        losses={"loss": ("loss/total_avg",), "policy": ("loss/policy_avg",), "kl": ("loss/kl_avg",)},
        component=re.compile(r"objective/(?P<name>.+)_reward"),
        kl=(
            *(
                _kl(key, estimator=estimator, unit=_PER_TOKEN, placement="unknown", clamp=(-40.0, 40.0))
                for key, estimator in (
                    ("objective/kl0_avg", "k1"),
                    ("objective/kl1_avg", "k2"),
                    ("objective/kl2_avg", "k3"),
                    ("objective/kl3_avg", "k1"),
                )
            ),
            _old("policy/approxkl_avg"),
        ),
    ),
    "trlx": Reader(
        reward=("rollout_scores/mean", "reward/mean"),
        coefficient=("kl_ctl_value",),
        losses={"loss": ("losses/total_loss",), "policy": ("losses/policy_loss",), "value": ("losses/value_loss",)},
        kl=(
            _kl("policy/sqrt_kl", estimator="k3", unit=_PER_ANSWER, placement="none", squared=True),
            _kl("policy/kl_per_token", estimator="k3", unit=_PER_TOKEN, placement="none", squared=True),
            _old("policy/approx_kl"),
        ),
    ),
}

_OLD_INDEX = (  # open-instruct before the change of names: kl1 to kl4, the first without a number
    ("objective/kl_avg", "k1"),
    ("objective/kl2_avg", "k2"),
    ("objective/kl3_avg", "k3"),
    ("objective/kl4_avg", "k1"),
)
_CONFIGURED = {  # configuration that names the estimator of the logged number
    "verl": ("kl_loss_type", "actor/kl_loss"),
    "openrlhf": ("kl_estimator", "kl"),
    "slime": ("kl_loss_type", "kl_loss"),
    "nemo-rl": ("reference_policy_kl_type", "kl_penalty"),
}
_ESTIMATORS: dict[str, Literal["k1", "k2", "k3"]] = {
    "kl": "k1",
    "k1": "k1",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
}


def bare(key: str) -> str:
    """A key without the ``train/`` of wandb and TensorBoard."""
    return key.removeprefix("train/")


def detect(keys: Collection[str]) -> str | None:
    """The trainer whose keys these are, or None.

    TRL's GRPO and RLOO write the same keys since RLOO was rewritten; they come out as ``trl-grpo`` and are told apart
    elsewhere, by the model card or by a negative KL.
    """
    names = {bare(key) for key in keys}
    has = names.__contains__
    if "objective/kl0_avg" in names or {"objective/kl2_avg", "loss/kl_avg"} <= names or "loss/kl_avg" in names:
        return "open-instruct"
    if has("objective/kl_coef"):
        old_trl = has("ppo/mean_scores") or has("env/reward_mean") or has("ppo/mean_non_score_reward")
        return "trl-legacy-ppo" if old_trl or not has("objective/score") else "lm-human-preferences"
    if has("objective/rlhf_reward"):
        if has("rewards/margins") or has("beta") or has("logps/chosen"):
            return "trl-online-dpo"
        return "trl-ppo" if has("loss/value_avg") or not has("policy/approxkl_avg") else "trl-rloo"
    if has("policy/sqrt_kl") or has("kl_ctl_value") or (has("losses/total_loss") and has("rollout_scores/mean")):
        return "trlx"
    if any(name.startswith(("critic/score/", "actor/pg_loss", "actor/kl_loss")) for name in names):
        return "verl"
    if has("token_mult_prob_error") or has("gen_kl_error") or ("train/kl_penalty" in keys):
        return "nemo-rl"
    if has("rollout/raw_reward") or {"train/pg_loss", "train/loss"} <= set(keys):
        return "slime"
    if has("logprobs_diff") or has("vllm_kl") or has("act_loss") or {"policy_loss", "return"} <= names:
        return "openrlhf"
    if {"policy_loss", "actor_lr"} <= names:
        return "openrlhf"
    if has("rewards/margins") or {"rewards/chosen", "rewards/rejected"} <= names:
        return "trl-kto" if has("kl") else "trl-dpo"
    grpo = ("completions/", "rewards/", "clip_ratio", "eval_rewards/", "eval_completions/")
    if any(name.startswith(grpo) for name in names) or has("completion_length") or has("frac_reward_zero_std"):
        return "trl-grpo"
    if has("kl") and (has("reward_std") or (has("loss") and (has("epoch") or has("grad_norm")))):
        return "trl-grpo"
    if has("eval_kl") and has("eval_loss"):
        return "trl-grpo"
    return None


def kl_columns(trainer: str, raw: Mapping[str, Array], config: Mapping[str, Any], notes: list[str]) -> list[KLColumn]:
    """Every KL of a log with its meaning; a column without any number is no KL."""
    rules = READERS[trainer].kl
    if trainer == "open-instruct" and "objective/kl0_avg" not in {bare(key) for key in raw}:
        rules = (
            *(
                _kl(key, estimator=name, unit=_PER_TOKEN, placement="unknown", clamp=(-40.0, 40.0))
                for key, name in _OLD_INDEX
            ),
            rules[-1],
        )
    columns = []
    for rule in rules:
        for name in rule.keys:
            key = next((k for k in (name, f"train/{name}") if k in raw), None)
            if key is None or np.isnan(raw[key]).all():
                continue
            values = raw[key]
            if rule.zero_is_off and not np.any(values[~np.isnan(values)]):
                notes.append(f"{key} is 0 throughout: this trainer writes that where it computes no such KL; left out")
                continue
            spec = _configured(trainer, name, rule.spec, config)
            if rule.squared:
                negative = values < 0
                values = np.where(negative, np.nan, np.square(values))
            transform = "squared from a square root" if rule.squared else ""
            columns.append(KLColumn(key=key, values=values, spec=spec, against=rule.against, transform=transform))
            break
    return columns


def _configured(trainer: str, name: str, spec: KLSpec, config: Mapping[str, Any]) -> KLSpec:
    option, key = _CONFIGURED.get(trainer, ("", ""))
    value = str(config.get(option, "")).removesuffix("+")
    if name == key and value in _ESTIMATORS:
        spec = replace(spec, estimator=_ESTIMATORS[value])
        if spec.estimator != "k3":
            spec = replace(spec, clamp=None)
    if trainer == "verl" and spec.placement == "reward":
        shown = _ESTIMATORS.get(str(config.get("kl_penalty", "")), spec.estimator)
        spec = replace(spec, estimator=shown)
    if trainer == "openrlhf" and name == "kl" and isinstance(config.get("use_kl_loss"), bool):
        spec = replace(spec, placement="loss" if config["use_kl_loss"] else "reward")
    return spec
