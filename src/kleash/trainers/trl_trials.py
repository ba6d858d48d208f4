"""TRL's GRPO, RLOO and DPO put to the trial: settings of TRL 1.16, and the objectives that its documents give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kleash import _checks
from kleash.trainers.trial import Divisor, Trial

__all__ = ["DPO_TRIAL", "GRPO_TRIAL", "RLOO_TRIAL"]

Value = Callable[[str], Any]
_ADVANTAGES = {"none": "centred", "group": "group-standardised", "batch": "batch-standardised"}
_MEAN = ("grpo", "sapo")
_SUM = ("dapo", "bnpo", "dr_grpo", "cispo", "luspo")
_NONE = {"scale_rewards": "none"}
_PLAIN = {**_NONE, "use_bias_correction_kl": False}


def _grpo(value: Value) -> dict[str, Any]:
    scale = _checks.choice(str(value("scale_rewards")), tuple(_ADVANTAGES), name="scale_rewards")
    return {
        "advantage": _ADVANTAGES[scale],
        "penalty": "k3-in-loss-with-ratio" if value("use_bias_correction_kl") else "k3-in-loss",
        "token_weight": "mean" if value("loss_type") in _MEAN else "sum",
        "beta": float(value("beta")),
        "group_size": value("num_generations"),
        "sd_floor": 1e-4,
        "policy_weight": _policy_weight(value),
    }


def _policy_weight(value: Value) -> float:
    """CISPO clamps the ratio at epsilon_high, not at 1 + epsilon_high: at the default 0.2 even a ratio of 1."""
    if value("loss_type") != "cispo":
        return 1.0
    high = value("epsilon_high")
    return min(1.0, float(value("epsilon") if high is None else high))


def _divided_by(value: Value) -> Divisor:
    if value("loss_type") in ("grpo", "sapo", "luspo"):
        return "one"
    return "longest" if value("loss_type") == "dr_grpo" else "mean"


def _rloo(value: Value) -> dict[str, Any]:
    return {"beta": float(value("beta")), "group_size": value("num_generations")}


def _dpo(value: Value) -> dict[str, Any]:
    return {"beta": float(value("beta")), "labels": value("labels"), "label_scale": float(value("label_scale"))}


GRPO_TRIAL = Trial(
    settings={
        "beta": 0.0,
        "num_generations": 8,
        "scale_rewards": "group",
        "loss_type": "dapo",
        "use_bias_correction_kl": True,
        "epsilon": 0.2,
        "epsilon_high": None,
    },
    objective=_grpo,
    predicted={"loss_type": (*_SUM, *_MEAN)},
    divisor=_divided_by,
    cases=(
        ("coin", {"beta": 1.0}),
        ("coin", {"beta": 1.0, "use_bias_correction_kl": False}),
        ("coin", {"beta": 1.0, **_NONE}),
        ("three", {"beta": 0.5, **_NONE}),
        ("points", {"beta": 15.0, **_NONE}),
        ("three", {"beta": 0.5, **_PLAIN}),
        ("coin", {"beta": 1.0, "num_generations": 2}),
        ("points", {"beta": 1.0}),
        ("coin", {"beta": 1.0, "scale_rewards": "batch"}),
        ("words", {"beta": 0.25, **_NONE}),
        ("words", {"beta": 0.25, **_PLAIN}),
        *(("words", {"beta": 0.25, **_NONE, "loss_type": kind}) for kind in ("grpo", "dr_grpo", "bnpo", "cispo")),
        ("words", {"beta": 1.0}),
    ),
)
RLOO_TRIAL = Trial(
    settings={"beta": 0.05, "num_generations": 2, "normalize_advantages": False},
    objective=_rloo,
    cases=(
        ("coin", {"beta": 1.0}),
        ("points", {"beta": 15.0}),
        ("three", {"beta": 0.5, "num_generations": 8}),
        ("words", {"beta": 0.25, "num_generations": 4}),
        ("three", {"beta": 0.5, "num_generations": 4, "normalize_advantages": True}),
    ),
)
DPO_TRIAL = Trial(
    settings={"beta": 0.1, "labels": "bernoulli", "label_scale": 1.0},
    objective=_dpo,
    cases=(
        ("coin", {"beta": 1.0}),
        ("points", {"beta": 0.5, "label_scale": 30.0}),
        ("three", {"beta": 0.5, "labels": "larger-score"}),
        ("words", {"beta": 0.5, "label_scale": 0.5}),
    ),
)
