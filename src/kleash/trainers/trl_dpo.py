"""TRL's DPO, KTO and Online DPO: losses that are functions of beta times the log ratio of whole answers."""

from __future__ import annotations

from typing import Any

from kleash.trainers.columns import PER_ANSWER, Columns, kl
from kleash.trainers.facts import Identity, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Target
from kleash.trainers.trl import OWN, trl_penalty
from kleash.trainers.trl_ppo import PPO_KEYS
from kleash.trainers.trl_trials import DPO_TRIAL

__all__ = ["DPO", "KTO", "LABELS", "ONLINE_DPO", "dpo_leash"]

_DPO: dict[str, Any] = {"reward": ("rewards/accuracies",), "entropy": ("entropy",), "losses": {"loss": ("loss",)}}


def dpo_leash(o: Options) -> Leash:
    """DPO's optimum, and which options have none."""
    refused = None
    odds = "reward difference" if o["label_scale"] == 1 else f"reward difference / {o['label_scale']:g}"
    if o["labels"] == "hard":
        refused = (
            "with hard labels (the better-scored answer always wins) the loss has no finite optimum: what stops the "
            "policy is the number of steps, not beta; draw labels with probability sigmoid(reward difference)"
        )
    elif o["loss_type"] not in {"sigmoid", "sigmoid_norm"}:
        refused = f"loss_type {o['loss_type']}: its optimum is not the tilt of a Bradley-Terry reward"
    elif o["f_divergence_type"] != "reverse_kl":
        refused = f"f_divergence_type {o['f_divergence_type']}: the optimum is that of another divergence"
    elif o["label_smoothing"] > 0:
        refused = "label_smoothing flattens the labels' log odds unevenly: the optimum is no tilt of the reward"
    return Leash(
        parameter="beta",
        factor=1.0 / o["label_scale"],
        per_length=o["loss_type"] == "sigmoid_norm",
        assumes=(
            f"labels drawn anew for each pair with probability sigmoid({odds})",
            "pairs of answers of the reference that cover what the policy may say, trained to convergence",
            "dropout off",
        ),
        refused=refused,
    )


LABELS = {
    "labels": Option(default="bernoulli", choices=("bernoulli", "hard"), printed=False, ours=True),
    "label_scale": Option(default=1.0, above=0, printed=False, ours=True),
}
"""How preferences were made from scores: ours, no option of the trainer."""
_DPO_OPTIONS = {
    "beta": Option(default=0.1),
    **LABELS,
    "label_smoothing": Option(default=0.0, at_least=0, printed=False),
    "loss_type": Option(
        default="sigmoid",
        choices=(
            "sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot",
            "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft",
        ),
    ),
    "f_divergence_type": Option(
        default="reverse_kl", choices=("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence")
    ),
}  # fmt: skip

DPO = Trainer(
    **OWN,
    name="trl-dpo",
    card="dpo",
    classes=("DPOConfig", "DPOTrainer"),
    marks=("rewards/margins", "rewards/chosen rewards/rejected"),
    columns=Columns(**_DPO),
    options=_DPO_OPTIONS,
    penalty=trl_penalty,
    targets=(Target(name="trl-dpo", settable=tuple(k for k in _DPO_OPTIONS if k != "beta"), leash=dpo_leash),),
    place="loss",
    trial=DPO_TRIAL,
    implicit=True,
    identity=Identity(kind="evaluations"),
)
KTO = Trainer(
    **OWN,
    name="trl-kto",
    card="kto",
    marks=("rewards/margins kl", "rewards/chosen rewards/rejected kl"),
    columns=Columns(**_DPO, kl=(kl("kl", estimator="k1", unit=PER_ANSWER, placement="unknown", sampler="unknown"),)),
    options={"beta": Option(default=0.1)},
    place="loss",
    implicit=True,
    identity=Identity(kind="evaluations"),
)
ONLINE_DPO = Trainer(
    **OWN,
    name="trl-online-dpo",
    card="online-dpo",
    classes=("OnlineDPOConfig", "OnlineDPOTrainer"),
    marks=tuple(f"objective/rlhf_reward {key}" for key in ("rewards/margins", "beta", "logps/chosen")),
    columns=Columns(
        **PPO_KEYS,
        coefficient=("beta",),
        kl=(kl("objective/kl", estimator="k1", unit=PER_ANSWER, placement="none"),),
    ),
    options={"beta": Option(default=0.1)},
    place="loss",
    implicit=True,
    identity=Identity(kind="penalty", keys=("objective/non_score_reward",)),
)
