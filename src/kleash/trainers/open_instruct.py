"""open-instruct: the penalty in the loss, one of four estimators by index, all of them logged."""

from __future__ import annotations

import re

from kleash.trainers._common import FROZEN, NO_CLIP, PLAIN
from kleash.trainers.columns import PER_TOKEN, Columns, KLRule, kl, old
from kleash.trainers.facts import Identity, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Target, gradient_of

__all__ = ["OPEN_INSTRUCT"]

_INDEX = {"0": "k1", "1": "k2", "2": "k3", "3": "k1"}
"""What its index stands for: 3 is the ratio times k1, differentiated through both."""


def _penalty(o: Options) -> Penalty:
    word = o["kl_estimator"]
    return Penalty(
        coefficient="beta",
        estimator=_INDEX.get(word) or gradient_of(word),
        named=f"kl_estimator {word}",
        with_ratio=True if word == "3" else None,
    )


def _leash(o: Options) -> Leash:
    return Leash(
        parameter="beta",
        group_mean=True,
        scale="group" if o["advantage_normalization_type"] == "standard" else None,
        sd_of="group-n",
        group_option="num_samples_per_prompt_rollout",
        instead="1 (k2) or 3 (ratio times k1)",
        assumes=(PLAIN, FROZEN, "no log ratio beyond 40", "loss_denominator token", NO_CLIP),
    )


def _logged(key: str, estimator: str) -> KLRule:
    return kl(key, estimator=estimator, unit=PER_TOKEN, placement="unknown", clamp=(-40.0, 40.0))


OPEN_INSTRUCT = Trainer(
    name="open-instruct",
    project="open-instruct",
    marks=("objective/kl0_avg", "loss/kl_avg"),
    columns=Columns(
        reward=("scores", "objective/scores"),
        length=("val/sequence_lengths",),
        entropy=("policy/entropy_avg",),
        losses={"loss": ("loss/total_avg",), "policy": ("loss/policy_avg",), "kl": ("loss/kl_avg",)},
        component=re.compile(r"objective/(?P<name>.+)_reward"),
        kl=(
            *(_logged(f"objective/kl{index}_avg", name) for index, name in _INDEX.items()),
            old("policy/approxkl_avg"),
        ),
        earlier=(
            "objective/kl0_avg",
            (
                _logged("objective/kl_avg", "k1"),
                _logged("objective/kl2_avg", "k2"),
                _logged("objective/kl3_avg", "k3"),
                _logged("objective/kl4_avg", "k1"),
                old("policy/approxkl_avg"),
            ),
        ),
    ),
    options={
        "beta": Option(default=0.05),
        "kl_estimator": Option(default="2", choices=tuple(_INDEX)),
        "advantage_normalization_type": Option(default="centered", choices=("centered", "standard")),
    },
    penalty=_penalty,
    targets=(Target(name="open-instruct", settable=("kl_estimator", "advantage_normalization_type"), leash=_leash),),
    place="loss",
    identity=Identity(
        kind="proportional",
        keys=("loss/kl_avg", *(f"objective/kl{index}_avg" for index in _INDEX)),
        terms=tuple((name, True if index == "3" else None) for index, name in _INDEX.items()),
    ),
    mismatch={
        "debug/vllm_vs_local_logprob_diff_mean": (0.1, "twice the .0499 of bfloat16 kernels (trl issue 6789)"),
    },
)
