"""TRL's PPO: the class with a fixed coefficient since 0.12, and the older one with an adaptive one up to 0.11."""

from __future__ import annotations

import re
from typing import Any

from kleash.trainers.columns import PER_ANSWER, Columns, kl, old
from kleash.trainers.facts import Change, Identity, Trainer
from kleash.trainers.options import Option
from kleash.trainers.trl import BETA, OWN, trl_penalty

__all__ = ["LEGACY_PPO", "PPO", "PPO_KEYS", "ZIEGLER"]

PPO_KEYS: dict[str, Any] = {
    "reward": ("objective/scores",),
    "entropy": ("policy/entropy_avg", "objective/entropy"),
    "losses": {"loss": ("loss",), "policy": ("loss/policy_avg",), "value": ("loss/value_avg",)},
}
ZIEGLER: dict[str, Any] = {
    "entropy": ("objective/entropy", "ppo/policy/entropy"),
    "coefficient": ("objective/kl_coef",),
    "losses": {"loss": ("ppo/loss/total",), "policy": ("ppo/loss/policy",), "value": ("ppo/loss/value",)},
    "length": ("tokens/responses_len_mean",),
}
_PAID: dict[str, Any] = {"estimator": "k1", "unit": PER_ANSWER, "placement": "reward"}
_PPO_OPTIONS = {
    "beta": Option(names=BETA, default=0.05),
    "kl_estimator": Option(names=("kl_estimator", "kl_penalty"), default="k1"),
}
_LEGACY_OPTIONS = {
    "beta": Option(names=BETA, default=0.2),
    "kl_estimator": Option(names=("kl_estimator", "kl_penalty"), default="kl"),
    "adap_kl_ctrl": Option(default=True),
    "target": Option(default=6.0),
    "horizon": Option(default=10000.0),
}
_LEAST_BATCH = 4
"""Answers in a batch whose advantages are standardised; the default is 128."""
_PAID_OR_MEAN = ("objective/non_score_reward", "ppo/mean_non_score_reward", "tokens/responses_len_mean")
"""What the penalty took from the reward, per answer or (record_step_stats) per token beside a KL per answer."""

PPO = Trainer(
    **OWN,
    name="trl-ppo",
    card="ppo",
    marks=(
        "objective/rlhf_reward loss/value_avg !rewards/margins !beta !logps/chosen",
        "objective/rlhf_reward !policy/approxkl_avg !rewards/margins !beta !logps/chosen",
    ),
    columns=Columns(**PPO_KEYS, kl=(kl("objective/kl", **_PAID), old("policy/approxkl_avg"))),
    options=_PPO_OPTIONS,
    penalty=trl_penalty,
    place="reward",
    identity=Identity(kind="penalty", keys=("objective/non_score_reward",)),
    changes=(
        Change(
            version=(0, 12),
            key=("kl_coef",),
            what="a fixed kl_coef of 0.05 instead of an adaptive one from 0.2 to a target of 6 nats",
            source="trl PR 2480, ppo_trainer.py v0.11.4",
        ),
    ),
)
LEGACY_PPO = Trainer(
    **OWN,
    name="trl-legacy-ppo",
    marks=("objective/kl_coef", "warned/kl", "warned/ratio"),
    columns=Columns(
        **ZIEGLER,
        reward=("ppo/mean_scores", "env/reward_mean", "reward"),
        kl=(
            kl("objective/kl", **_PAID),
            kl("warned/kl", answers=_LEAST_BATCH, **_PAID),  # printed as a warning where it is below -1
            old("ppo/policy/approxkl"),
            old("ppo/policy/policykl", estimator="k1"),
        ),
    ),
    options=_LEGACY_OPTIONS,
    penalty=trl_penalty,
    place="reward",
    identity=Identity(kind="penalty", keys=_PAID_OR_MEAN),
    warnings={
        "warned/kl": (re.compile(r"KL divergence is starting to become negative: (-\d+\.\d+)"), ""),
        "warned/ratio": (
            re.compile(r"average ratio of batch \((\d+\.\d+|inf)\) exceeds threshold"),
            "TRL skipped {} batches whose mean ratio was above its ratio_threshold: up to {:g}",
        ),
    },
)
