"""A room for each trainer: what it logs, what its options do with the KL, what its log obeys.

Everything that is particular to a trainer stands in its file; the rooms above read its `Trainer` and name none. A new
trainer is a file, its place in `TRAINERS` and a golden log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from kleash.trainers.areal import AREAL
from kleash.trainers.columns import Columns
from kleash.trainers.facts import Shows, Trainer
from kleash.trainers.nemo_rl import NEMO_RL
from kleash.trainers.on_trl import AXOLOTL, LLAMA_FACTORY, LLAMA_FACTORY_DPO, MS_SWIFT, UNSLOTH
from kleash.trainers.on_verl import EASYR1, RLLM
from kleash.trainers.open_instruct import OPEN_INSTRUCT
from kleash.trainers.openrlhf import OPENRLHF
from kleash.trainers.options import Option, Options, stated
from kleash.trainers.penalty import ESTIMATORS, Penalty, Target, gradient_of
from kleash.trainers.prime_rl import PRIME_RL
from kleash.trainers.roll import ROLL
from kleash.trainers.skyrl import SKYRL
from kleash.trainers.slime import MILES, SLIME
from kleash.trainers.tinker import ART, TINKER
from kleash.trainers.torch_native import TORCHFORGE, TORCHTUNE
from kleash.trainers.trl import GRPO, RLOO
from kleash.trainers.trl_dpo import DPO, KTO, ONLINE_DPO
from kleash.trainers.trl_ppo import LEGACY_PPO, PPO
from kleash.trainers.trlx import TRLX
from kleash.trainers.verl import VERL
from kleash.trainers.ziegler import LM_HUMAN_PREFERENCES

__all__ = [
    "TABLE",
    "TARGETS",
    "TRAINERS",
    "Trainer",
    "detect",
    "history",
    "metric_names",
    "option_names",
    "projects",
    "trainer_named",
    "whose",
]


def _as_said(o: Options) -> Penalty:
    return Penalty(coefficient="beta", estimator=gradient_of(o["estimator"]))


TABLE = Trainer(
    name="table",
    project="a table",
    columns=Columns(
        losses={"loss": ("actor/loss", "loss", "total_loss"), "policy": ("actor/pg_loss", "pg_loss", "policy_loss")},
        entropy=("actor/entropy", "actor/entropy_loss", "entropy_loss"),
    ),
    shows=Shows(kl_in_loss="kl_loss"),
    options={
        "beta": Option(names=("beta", "kl_coef", "kl_coefficient", "coefficient")),
        "estimator": Option(choices=tuple(ESTIMATORS), printed=False),
    },
    penalty=_as_said,
)
"""Who wrote a plain table that was mapped by hand: nobody is known, and nothing but what is said."""

TRAINERS: dict[str, Trainer] = {
    trainer.name: trainer
    for trainer in (
        GRPO,
        RLOO,
        DPO,
        KTO,
        ONLINE_DPO,
        PPO,
        LEGACY_PPO,
        VERL,
        OPENRLHF,
        NEMO_RL,
        SLIME,
        OPEN_INSTRUCT,
        TRLX,
        LM_HUMAN_PREFERENCES,
        UNSLOTH,
        MS_SWIFT,
        LLAMA_FACTORY,
        LLAMA_FACTORY_DPO,
        AXOLOTL,
        EASYR1,
        SKYRL,
        TINKER,
        PRIME_RL,
        AREAL,
        ROLL,
        MILES,
        RLLM,
        TORCHTUNE,
        TORCHFORGE,
        ART,
    )
}
"""By name. `detect` asks from the last to the first: whose keys others write too stands before these."""

TARGETS: dict[str, tuple[Trainer, Target]] = {
    target.name: (trainer, target) for trainer in TRAINERS.values() for target in trainer.targets
}
"""The names under which a coefficient is translated, with their trainer."""


def trainer_named(name: str | None) -> Trainer:
    """The trainer of that name; `TABLE` where it is none."""
    return TRAINERS.get(name or "", TABLE)


def detect(keys: Collection[str]) -> str | None:
    """The trainer whose keys these are, or None.

    Two trainers may write the same keys, as TRL's GRPO and RLOO do since RLOO was rewritten: one of them comes out, and
    its `Rival` says how to tell.

    Examples
    --------
    >>> detect(["step", "critic/score/mean"]), detect(["step", "height"])
    ('verl', None)
    """
    known = set(keys)
    return next((name for name, trainer in reversed(TRAINERS.items()) if trainer.knows(known)), None)


def history(topic: str) -> str:
    """Releases of any trainer in which something was otherwise."""
    return "; ".join(trainer.history[topic] for trainer in TRAINERS.values() if topic in trainer.history)


def projects() -> list[str]:
    """What people call the projects."""
    return list(dict.fromkeys(trainer.project for trainer in TRAINERS.values()))


def option_names() -> tuple[dict[str, str], set[str]]:
    """Names of options as a log prints them: dotted ones with their key, and keys that stand for themselves."""
    options = [item for trainer in TRAINERS.values() for item in trainer.options.items()]
    dotted = {name: key for key, option in options for name in option.names if "." in name}
    return dotted, {key for key, option in options if option.printed}


def whose(config: Mapping[str, Any]) -> list[str]:
    """The trainers whose configuration this may be, the likeliest first; none where too little tells.

    More names of options win; of as many, those that fewer trainers have; of equals the one on which others build. Two
    names, one of them of a KL or a beta, are enough, or one that only one or two trainers have.

    ``config``: Nested or flat.

    Examples
    --------
    >>> whose({"actor": {"use_kl_loss": True}, "algorithm": {"kl_ctrl": {"kl_coef": 0.01}}})[0]
    'verl'
    >>> whose({"hidden_size": 64, "beta": 0.1})
    []
    """
    owners = Counter(name for trainer in TRAINERS.values() for name in _names(trainer))
    found = {}
    for name, trainer in TRAINERS.items():
        known = {key: option for key, option in trainer.options.items() if option.printed}
        used = stated(known, config)[1].values()
        own = sum(1 / owners[word] for word in used)
        if own >= 0.5 or (len(used) > 1 and any("kl" in word or "beta" in word for word in used)):
            found[name] = (len(used), own)
    return sorted(found, key=lambda name: found[name], reverse=True)


def _names(trainer: Trainer) -> set[str]:
    return {name for key, option in trainer.options.items() if option.printed for name in option.names or (key,)}


def metric_names() -> set[str]:
    """Keys by any of which a printed dictionary is one of metrics: rewards, losses, KLs, and what a log is known by."""
    found: set[str] = set()
    for trainer in TRAINERS.values():
        columns = trainer.columns
        found.update(*columns.losses.values(), columns.reward, *(rule.keys for rule in columns.kl))
        found.update(mark for mark in trainer.marks if " " not in mark and mark[-1] != "*")
    return found
