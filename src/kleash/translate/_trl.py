"""How TRL's options make its leash; read in TRL 1.16."""

from __future__ import annotations

from typing import Any

from kleash.translate._leash import Leash, Setting, Trainer
from kleash.translate._penalties import EPOCHS, FROZEN, NO_CLIP, PLAIN, SAME_LENGTH, flag

__all__ = ["TRL"]


def _trl_grpo(s: dict[str, Any]) -> Leash:
    corrected = s["use_bias_correction_kl"] == "true"
    loss, refused, factor = s["loss_type"], None, 1.0
    assumes = [PLAIN, FROZEN, "reward_weights and entropy_coef as in the forecast: no other term in the reward"]
    if s["loss_type"] == "vespo":
        refused = "loss_type vespo weights answers by a function of their ratio that has no counterpart in the tilt"
    if loss == "luspo" or s["importance_sampling_level"] == "sequence":
        refused = refused or (
            "with ratios of whole sequences, which loss_type luspo is made for, the penalty's correction is shared out "
            "over the answer's tokens, and the root is that of no KL; use importance_sampling_level token and another "
            "loss_type"
        )
    if s["multi_objective_aggregation"] != "sum_then_normalize":
        refused = refused or "normalize_then_sum standardises every reward function on its own, which no beta undoes"
    if loss == "cispo":
        high = s["epsilon"] if s["epsilon_high"] is None else s["epsilon_high"]
        factor = min(1.0, high)
        assumes.append(f"cispo caps ratios at epsilon_high itself ({high:g}): rewards count {factor:g} times")
    if loss in {"grpo", "sapo"}:
        assumes.append(SAME_LENGTH)
    if loss in {"bnpo", "dapo", "cispo"}:
        assumes.append("batches large enough that their number of tokens hardly varies")
    assumes.append(NO_CLIP if s["num_iterations"] == 1 else "the root of the first update of each batch")
    if not corrected and refused is None:
        assumes.append("use_bias_correction_kl is off: k3 as a loss, whose root is that of the forward KL")
    scale = s["scale_rewards"]
    return Leash(
        parameter="beta",
        pull="token" if corrected else "forward",
        group_mean=True,
        scale=None if scale in {"none", "false"} else "batch" if scale == "batch" else "group",
        factor=factor,
        group_option="num_generations",
        group_size=8,
        assumes=tuple(assumes),
        refused=refused,
    )


def _trl_rloo(s: dict[str, Any]) -> Leash:
    assumes = [PLAIN, FROZEN, "no reward_clip_range", "rewards of all functions weighted as in the forecast"]
    if s["normalize_advantages"] == "true":
        assumes.append("normalize_advantages divides reward and penalty alike: only the step changes")
    assumes.append(NO_CLIP if s["num_iterations"] == 1 else "the root of the first update of each batch")
    return Leash(parameter="beta", pull="answer", assumes=tuple(assumes))


def _trl_dpo(s: dict[str, Any]) -> Leash:
    refused = None
    odds = "reward difference" if s["label_scale"] == 1 else f"reward difference / {s['label_scale']:g}"
    if s["labels"] == "hard":
        refused = (
            "with hard labels (the better-scored answer always wins) the loss has no finite optimum: what stops the "
            "policy is the number of steps, not beta; draw labels with probability sigmoid(reward difference)"
        )
    elif s["loss_type"] not in {"sigmoid", "sigmoid_norm"}:
        refused = f"loss_type {s['loss_type']}: its optimum is not the tilt of a Bradley-Terry reward"
    elif s["f_divergence_type"] != "reverse_kl":
        refused = f"f_divergence_type {s['f_divergence_type']}: the optimum is that of another divergence"
    elif s["label_smoothing"] > 0:
        refused = "label_smoothing flattens the labels' log odds unevenly: the optimum is no tilt of the reward"
    return Leash(
        parameter="beta",
        pull="answer",
        factor=1.0 / s["label_scale"],
        per_length=s["loss_type"] == "sigmoid_norm",
        assumes=(
            f"labels drawn anew for each pair with probability sigmoid({odds})",
            "pairs of answers of the reference that cover what the policy may say, trained to convergence",
            "dropout off",
        ),
        refused=refused,
    )


TRL: dict[str, Trainer] = {
    "trl-grpo": Trainer(
        leash=_trl_grpo,
        settings={
            "scale_rewards": Setting(default="group", choices=("group", "batch", "none", "true", "false")),
            "use_bias_correction_kl": flag(True),
            "loss_type": Setting(
                default="dapo",
                choices=("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"),
            ),
            "importance_sampling_level": Setting(default="token", choices=("token", "sequence")),
            "multi_objective_aggregation": Setting(
                default="sum_then_normalize", choices=("sum_then_normalize", "normalize_then_sum")
            ),
            "epsilon": Setting(default=0.2, above=0),
            "epsilon_high": Setting(default=None, above=0),
            "num_iterations": EPOCHS,
        },
    ),
    "trl-rloo": Trainer(leash=_trl_rloo, settings={"normalize_advantages": flag(False), "num_iterations": EPOCHS}),
    "trl-dpo": Trainer(
        leash=_trl_dpo,
        settings={
            "labels": Setting(default="bernoulli", choices=("bernoulli", "hard")),
            "label_scale": Setting(default=1.0, above=0),
            "label_smoothing": Setting(default=0.0, at_least=0),
            "loss_type": Setting(
                default="sigmoid",
                choices=(
                    "sigmoid",
                    "sigmoid_norm",
                    "hinge",
                    "ipo",
                    "exo_pair",
                    "nca_pair",
                    "robust",
                    "bco_pair",
                    "sppo_hard",
                    "aot",
                    "aot_unpaired",
                    "apo_zero",
                    "apo_down",
                    "discopop",
                    "sft",
                ),
            ),
            "f_divergence_type": Setting(
                default="reverse_kl", choices=("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence")
            ),
        },
    ),
}
