"""Trainers that run TRL's: unsloth, axolotl and ms-swift with other defaults and names, and LLaMA-Factory.

Read in unsloth 015bdef, axolotl 067b021, ms-swift 3602360 and LLaMA-Factory ff6d4d1 (July and August 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kleash.trainers._common import ALARM
from kleash.trainers.columns import PER_TOKEN, kl
from kleash.trainers.facts import Identity, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Target
from kleash.trainers.trl import GRPO, grpo_leash, trl_penalty
from kleash.trainers.trl_dpo import DPO, KTO, dpo_leash
from kleash.trainers.trl_ppo import LEGACY_PPO

__all__ = ["AXOLOTL", "LLAMA_FACTORY", "LLAMA_FACTORY_DPO", "MS_SWIFT", "UNSLOTH"]

_UNMARKED: dict[str, Any] = {
    "marks": (),
    "card": "",
    "command": "",
    "classes": None,
    "rival": None,
    "trial": None,
    "first_steps": None,
    "changes": (),
    "eras": (),
}
"""What is TRL's alone. Its keys stand in the logs of all of them, so such a log is called TRL's unless it is said."""


def _on_grpo(
    name: str,
    parameter: str,
    changed: Mapping[str, Option],
    *,
    leash: Callable[[Options], Leash] = grpo_leash,
    **more: Any,
) -> Trainer:
    """TRL's GRPO under other defaults and names."""
    options = {**GRPO.options, **changed}
    settable = GRPO.targets[0].settable
    target = Target(name=name, settable=settable, leash=lambda o: replace(leash(o), parameter=parameter))
    return replace(GRPO, **{**_UNMARKED, **more}, name=name, project=name, options=options, targets=(target,))


UNSLOTH = _on_grpo(
    "unsloth",
    "beta",
    {
        "beta": Option(names=("beta",), default=0.001),
        "loss_type": replace(GRPO.options["loss_type"], default="bnpo"),
    },
)
AXOLOTL = _on_grpo("axolotl", "trl.beta", {"beta": Option(names=("trl.beta", "rl_beta"), default=0.0)})


def _swift(o: Options) -> Penalty:
    paid, kind = o["kl_in_reward"], o["advantage_estimator"]
    if paid is None and kind not in (None, "grpo"):
        paid = True  # the default of these
    in_loss = None if paid is None else not paid
    return replace(trl_penalty(o), in_reward=paid, in_loss=in_loss, estimator="k1" if paid else None)


def _swift_leash(o: Options) -> Leash:
    leash = grpo_leash({**o, "multi_objective_aggregation": "sum_then_normalize"})
    own = "scale_rewards gdpo standardises every reward function on its own, which no beta undoes"
    return replace(leash, refused=own) if o["scale_rewards"] == "gdpo" else leash


MS_SWIFT = _on_grpo(
    "ms-swift",
    "beta",
    {
        "beta": Option(names=("beta",), default=0.04),
        "use_bias_correction_kl": Option(default=False, printed=False),
        "loss_type": replace(GRPO.options["loss_type"], default="grpo"),
        "scale_rewards": Option(default="group", choices=("group", "batch", "none", "gdpo")),
        "advantage_estimator": Option(default="grpo", choices=("grpo", "rloo", "reinforce_plus_plus"), printed=False),
        "kl_in_reward": Option(default=False),
    },
    leash=_swift_leash,
    penalty=_swift,
    marks=("memory(GiB) reward_std", "train_speed(iter/s) reward_std"),
    ratio_option=None,
    movable=True,
    columns=replace(
        GRPO.columns,
        entropy=("entropy/mean", "entropy"),
        kl=(kl("kl", "eval_kl", estimator="k3", unit=PER_TOKEN, placement="loss", clamp=(-20.0, 20.0)),),
    ),
    mismatch={**GRPO.mismatch, "rollout_correction/kl": ALARM},
)

# ------------------------------------------------------------------------------------------------- LLaMA-Factory


def _to_a_target(o: Options) -> Penalty:
    stated = True if o["ppo_target"] is not None else None
    return Penalty(in_reward=stated, adaptive=stated, target=o["ppo_target"])


LLAMA_FACTORY = Trainer(
    name="llama-factory",
    project="LLaMA-Factory",
    marks=("current_steps total_steps percentage",),
    columns=replace(LEGACY_PPO.columns, reward=("reward",), losses={"loss": ("loss",)}),
    options={"ppo_target": Option(default=6.0)},
    penalty=_to_a_target,
    place="reward",
    estimator="k1",
    controller=LEGACY_PPO.controller,
    identity=Identity(
        kind="none", reason="trainer_log.jsonl holds loss and score, and neither the KL nor a coefficient"
    ),
    targets=(Target(name="llama-factory-ppo", settable=(), leash=lambda o: Leash(parameter="ppo_target")),),
    note_without="LLaMA-Factory writes its KL (objective/kl) to a tracker, not to trainer_log.jsonl",
)
"""PPO: it has no beta, only a target for an adaptive controller that begins at 0.2."""

LLAMA_FACTORY_DPO = replace(
    DPO,
    **_UNMARKED,
    name="llama-factory-dpo",
    project="LLaMA-Factory",
    columns=KTO.columns,  # its KTO has the same options, and logs a KL
    options={
        **DPO.options,
        "beta": Option(names=("pref_beta",), default=0.1),
        "loss_type": replace(DPO.options["loss_type"], names=("pref_loss",)),
    },
    targets=(
        Target(
            name="llama-factory-dpo",
            settable=("labels", "label_scale", "label_smoothing", "loss_type"),
            leash=lambda o: replace(dpo_leash(o), parameter="pref_beta"),
        ),
    ),
)
