"""What do the trainer's own settings say about the KL? One small vocabulary over the option names of eight trainers.

Only what a configuration states is used; a default of a version that nobody named is not a fact about a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kleash.audit.declared import Declared, flatten

__all__ = ["Settings", "settings_of"]

ESTIMATOR_NAMES = {
    "k1": "k1",
    "kl": "k1",
    "k2": "k2",
    "mse": "k2",
    "k3": "k3",
    "low_var_kl": "k3",
    "k1+": "k2",  # verl: the value of k1, the gradient of k2
    "k3+": "k2",
    "kl1": "k1",  # open-instruct, older releases
    "kl2": "k2",
    "kl3": "k3",
}
OPEN_INSTRUCT = {0: "k1", 1: "k2", 2: "k3"}  # its index; 3 is the ratio times k1

BETA = {
    "trl": ("beta", "kl_coef", "init_kl_coef"),
    "openrlhf": ("algo.kl.init_coef", "init_kl_coef"),
    "nemo": ("loss_fn.reference_policy_kl_penalty", "reference_policy_kl_penalty"),
    "open-instruct": ("beta",),
    "trlx": ("method.init_kl_coef", "init_kl_coef"),
    "lm-human-preferences": ("rewards.kl_coef", "kl_coef"),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the configuration states; None where it says nothing."""

    beta: float | None = None
    beta_key: str | None = None
    in_loss: bool | None = None
    in_reward: bool | None = None
    estimator: str | None = None
    placement: str | None = None
    with_ratio: bool | None = None
    loss_type: str | None = None
    iterations: int | None = None
    entropy_coefficient: float | None = None
    adaptive: bool | None = None
    target: float | None = None
    horizon: float | None = None
    batch: int | None = None
    inert: str | None = None
    reference_moves: str | None = None

    @property
    def where(self) -> str | None:
        """``loss``, ``reward``, ``both`` or ``none`` as configured."""
        if self.in_loss is None and self.in_reward is None:
            return None
        if self.in_loss and self.in_reward:
            return "both"
        return "loss" if self.in_loss else "reward" if self.in_reward else "none"


class _Reader:
    """Look-up by the end of a dotted name, so that ``--config`` may be a whole file or an excerpt."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = {str(k).lstrip("-").replace("-", "_"): v for k, v in flatten(table).items()}

    def get(self, *names: str) -> tuple[str | None, Any]:
        for name in names:
            for key, value in self.table.items():
                if value is not None and (key == name or key.endswith("." + name)):
                    return key, value
        return None, None

    def number(self, *names: str) -> float | None:
        try:
            value = self.get(*names)[1]
            return None if value is None or isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            return None

    def flag(self, *names: str) -> bool | None:
        value = self.get(*names)[1]
        if isinstance(value, str):
            return {"true": True, "false": False, "1": True, "0": False}.get(value.lower())
        return None if value is None else bool(value)

    def text(self, *names: str) -> str | None:
        value = self.get(*names)[1]
        return None if value is None else str(value)


def settings_of(trainer: str | None, config: Mapping[str, Any] | None, declared: Declared) -> Settings:
    """The settings of a run from its own configuration, with what the user declared on top.

    Parameters
    ----------
    trainer
        Name of the trainer, e.g. ``trl-grpo`` or ``verl``.
    config
        The trainer's configuration, nested or flat, or None.
    declared
        ``beta``, ``estimator`` and ``placement`` as the user gave them win over the configuration.

    Returns
    -------
    Settings
        What nobody stated is None.

    Examples
    --------
    >>> s = settings_of("verl", {"actor.use_kl_loss": True, "actor.kl_loss_coef": 0.001}, Declared())
    >>> s.where, s.beta
    ('loss', 0.001)
    """
    name = trainer or ""
    read = _Reader(config or {})
    found: dict[str, Any] = {}
    family = next((k for k in ("open-instruct", "openrlhf", "nemo", "verl", "slime", "trlx", "trl") if k in name), name)
    if family == "verl":
        found = _verl(read)
    elif family == "slime":
        found = _slime(read)
    elif family in BETA:
        key, value = read.get(*BETA[family])
        found = {"beta": _float(value), "beta_key": key} | _others(family, name, read)
    else:
        key, value = read.get("beta", "kl_coef", "kl_coefficient", "coefficient")
        found = {"beta": _float(value), "beta_key": key, "estimator": _estimator(read.text("estimator"))}
    found["entropy_coefficient"] = read.number("entropy_coeff", "entropy_coef", "entropy_loss_coef")
    found["reference_moves"] = _moving_reference(read)
    found["batch"] = _whole(read.number("train_batch_size", "rollout_batch_size", "batch_size"))
    if declared.beta is not None:
        found |= {"beta": float(declared.beta), "beta_key": "declared"}
    if declared.estimator is not None:
        found["estimator"] = declared.estimator
    if declared.placement is not None:
        place = declared.placement
        found |= {"placement": place, "in_loss": place.startswith("loss"), "in_reward": place.startswith("reward")}
        found["with_ratio"] = place == "loss-with-ratio"
    return Settings(**found)


def _float(value: Any) -> float | None:
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _moving_reference(read: _Reader) -> str | None:
    """The option that lets the reference follow the policy, if one is on."""
    for name in ("sync_ref_model", "ref_policy_update_freq", "ref_update_interval"):
        if read.flag(name):
            return name
    return None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _estimator(name: str | None) -> str | None:
    return None if name is None else ESTIMATOR_NAMES.get(name.lower())


def _verl(read: _Reader) -> dict[str, Any]:
    in_loss, in_reward = read.flag("use_kl_loss"), read.flag("use_kl_in_reward")
    if in_loss is not None and in_reward is None:
        in_reward = False  # its default since PR 644; before that the key did not exist
    loss_beta = read.number("kl_loss_coef")
    reward_beta = read.number("kl_ctrl.kl_coef", "algorithm.kl_coef")
    key, beta = (
        ("kl_loss_coef", loss_beta) if in_loss else ("kl_ctrl.kl_coef", reward_beta) if in_reward else (None, None)
    )
    if in_loss is None and in_reward is None:
        key, beta = ("kl_loss_coef", loss_beta) if loss_beta is not None else ("kl_ctrl.kl_coef", reward_beta)
    estimator = read.text("kl_loss_type") if in_loss else read.text("algorithm.kl_penalty", "kl_penalty")
    return {
        "in_loss": in_loss,
        "in_reward": in_reward,
        "beta": beta,
        "beta_key": key if beta is not None else None,
        "estimator": _estimator(estimator),
        "adaptive": None if (kind := read.text("kl_ctrl.type")) is None else kind == "adaptive",
        "target": read.number("target_kl"),
        "horizon": read.number("horizon"),
        "iterations": _whole(read.number("ppo_epochs")),
        "loss_type": read.text("loss_agg_mode"),
    }


def _slime(read: _Reader) -> dict[str, Any]:
    use_loss = read.flag("use_kl_loss")
    loss_beta, reward_beta = read.number("kl_loss_coef"), read.number("kl_coef")
    kind = read.text("advantage_estimator")
    in_reward = None if reward_beta is None else reward_beta > 0 and kind not in (None, "grpo", "gspo", "cispo")
    inert = None
    if reward_beta and kind in ("grpo", "gspo", "cispo"):
        inert = f"kl_coef {reward_beta:g} has no effect with the advantage estimator {kind}"
    beta = loss_beta if use_loss else reward_beta
    return {
        "in_loss": use_loss,
        "in_reward": in_reward,
        "beta": beta,
        "beta_key": "kl_loss_coef" if use_loss else "kl_coef" if beta is not None else None,
        "estimator": _estimator(read.text("kl_loss_type")),
        "with_ratio": read.flag("use_unbiased_kl"),
        "inert": inert,
    }


def _others(family: str, name: str, read: _Reader) -> dict[str, Any]:
    if family == "openrlhf":
        in_loss = read.flag("algo.kl.use_loss", "use_kl_loss")
        target = read.number("algo.kl.target", "kl_target")
        return {
            "in_loss": in_loss,
            "in_reward": None if in_loss is None else not in_loss,
            "estimator": _estimator(read.text("algo.kl.estimator", "kl_estimator")),
            "target": target,
            "adaptive": target is not None or None,
            "horizon": read.number("algo.kl.horizon", "kl_horizon"),
        }
    if family == "nemo":
        in_reward = read.flag("use_kl_in_reward")
        return {
            "in_reward": in_reward,
            "in_loss": None if in_reward is None else not in_reward,
            "estimator": _estimator(read.text("reference_policy_kl_type")),
        }
    if family == "open-instruct":
        index = read.get("kl_estimator")[1]
        whole = _whole(_float(index)) if not isinstance(index, str) or index.isdigit() else None
        estimator = OPEN_INSTRUCT.get(whole) if whole is not None else _estimator(read.text("kl_estimator"))
        return {"estimator": "k1" if whole == 3 else estimator, "with_ratio": True if whole == 3 else None}
    if family == "trl":
        adaptive = read.flag("adap_kl_ctrl")
        return {
            "loss_type": read.text("loss_type"),
            "iterations": _whole(read.number("num_iterations", "num_ppo_epochs", "ppo_epochs")),
            "with_ratio": read.flag("use_bias_correction_kl") if "grpo" in name else None,
            "estimator": _estimator(read.text("kl_estimator", "kl_penalty")) if "ppo" in name else None,
            "adaptive": adaptive,
            "target": read.number("target") if "legacy" in name or adaptive is not None else None,
            "horizon": read.number("horizon"),
        }
    return {
        "adaptive": (t := read.number("method.target", "target")) is not None or None,
        "target": t,
        "horizon": read.number("method.horizon", "horizon"),
    }
