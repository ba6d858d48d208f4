"""torchtune and torchforge: GRPO with k3 as a loss, the mean over each answer's tokens.

Read in torchtune bd2a0fc (dev/grpo/loss.py) and torchforge 6e77f0b (losses/grpo_loss.py).
"""

from __future__ import annotations

from kleash.trainers._common import FROZEN, NO_CLIP, PLAIN, SAME_LENGTH
from kleash.trainers.columns import PER_TOKEN, Columns, kl
from kleash.trainers.facts import Identity, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Target

__all__ = ["TORCHFORGE", "TORCHTUNE"]


def _leash(parameter: str, group: str) -> Target:
    def leash(o: Options) -> Leash:
        return Leash(
            parameter=parameter,
            group_mean=True,
            scale="group",
            group_option=group,
            instead="a trainer with the corrected gradient",
            assumes=(PLAIN, FROZEN, SAME_LENGTH, NO_CLIP),
        )

    return Target(name=group.partition(".")[0], settable=(), leash=leash)


TORCHTUNE = Trainer(
    name="torchtune",
    project="torchtune",
    marks=("kl_loss policy_loss clipfrac", "kl_loss successes rewards", "kl_loss ratios clipfrac"),
    columns=Columns(
        reward=("rewards", "successes"),
        length=("response_lengths",),
        losses={"loss": ("loss",), "policy": ("policy_loss",)},
        kl=(kl("kl_loss", estimator="k3", unit=PER_TOKEN, placement="loss"),),
    ),
    options={"kl_coeff": Option(names=("loss.kl_coeff", "kl_coeff"), default=0.1)},
    penalty=lambda o: Penalty(coefficient="kl_coeff"),
    targets=(_leash("kl_coeff", "torchtune.grpo_samples"),),
    place="loss",
    estimator="k3",
)
TORCHFORGE = Trainer(
    name="torchforge",
    project="torchforge",
    marks=("grpo_loss/kl_divergence_mean",),
    columns=Columns(
        kl=(kl("grpo_loss/kl_divergence_mean", estimator="k3", unit=PER_TOKEN, placement="loss"),),
    ),
    options={"beta": Option(default=0.1)},
    penalty=lambda o: Penalty(coefficient="beta"),
    targets=(_leash("beta", "torchforge.group_size"),),
    place="loss",
    estimator="k3",
    identity=Identity(kind="none", reason="torchforge logs the loss whole, with no part of it beside"),
)
