"""What can a check of a log not do without? Each need with its words and whether a log meets it."""

from __future__ import annotations

import re

import numpy as np

from kleash.audit.engine import Need
from kleash.audit.logs.view import LogView
from kleash.trainers import TRAINERS

AGREEMENT_NAMES = re.compile(r"(within|agreement|auroc|spearman|kendall|rank_corr|judge_gold_corr)", re.IGNORECASE)


def _columns(words: str, *names: str) -> Need[LogView]:
    return Need(words=words, met=lambda v: v.key(*names) is not None)


def agreements(view: LogView) -> list[str]:
    """Columns with the agreement of judge and gold within prompts; pooled over prompts it is no substitute."""
    return [key for key in view.log.raw if AGREEMENT_NAMES.search(key) and "pooled" not in key.lower()]


def _components(view: LogView) -> str:
    return f"; the log has {', '.join(sorted(view.log.components))}" if view.reward.size and view.log.components else ""


CUT = tuple(dict.fromkeys(key for trainer in TRAINERS.values() for key in trainer.cut))
"""Share of answers cut at the limit, under every trainer's name."""

MISMATCH = {key: limit for trainer in TRAINERS.values() for key, limit in trainer.mismatch.items()}
"""Engine against trainer: what the median row may show, and who says so."""

KL: Need[LogView] = Need(
    words="a KL against the reference",
    met=lambda v: v.kl is not None and v.kl_series.size > 0 and v.per_token.size > 0,
)
LOSS: Need[LogView] = Need(words="a loss", met=lambda v: v.loss_key is not None)
REWARD: Need[LogView] = Need(words="a reward", met=lambda v: v.reward.size > 0)
GOLD: Need[LogView] = Need(words="gold (--gold NAME)", met=lambda v: v.gold.size > 0, hint=_components)
VERSION: Need[LogView] = Need(words="the trainer's version", met=lambda v: v.version is not None)
RATIO = _columns("importance ratios of the sampler", "sampling/importance_sampling_ratio/mean")
ENGINE = _columns("a measure of sampler against trainer", *MISMATCH)
ADVANTAGES = _columns(
    "advantages, or the share of groups without spread",
    "frac_reward_zero_std",
    "baseline_reward/pct_mixed",
    "critic/advantages/max",
    "advantages/max",
    "critic/advantages/mean",
    "advantages/mean",
)
UPDATES: Need[LogView] = Need(
    words="a loss, gradient, ratio or old-policy KL",
    met=lambda v: any(re.search(r"loss|grad_norm|ratio|ppo_kl|approx_?kl", key.lower()) for key in v.log.raw),
)
ENTROPY: Need[LogView] = Need(
    words="an entropy", met=lambda v: v.log.entropy is not None and bool(np.isfinite(v.log.entropy).any())
)
ENDINGS = _columns("a count of end tokens or of cut answers", "val/num_eos_tokens", *CUT)
AGREEMENT: Need[LogView] = Need(
    words="a column with the agreement of judge and gold within prompts", met=lambda v: bool(agreements(v))
)
STARTS: Need[LogView] = Need(
    words="a KL against the reference, or DPO's rewards",
    met=lambda v: KL.met(v) or (v.trainer.logs_no_kl and v.key("rewards/chosen", "rewards/margins") is not None),
)
MOVES: Need[LogView] = Need(words="a KL, or a DPO loss", met=lambda v: v.kl is not None or v.trainer.logs_no_kl)
