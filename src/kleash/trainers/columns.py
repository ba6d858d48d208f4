"""What a trainer logs: which key holds what, and what each KL among them is.

The keys were read in the trainers' sources. A number called ``kl`` is a mean per token for one trainer and a sum over
the answer for the next, and a third logs its square root.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kleash.kl import KLSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Raw = Mapping[str, Array]

__all__ = [
    "PER_ANSWER",
    "PER_TOKEN",
    "Against",
    "Columns",
    "FirstSteps",
    "KLRule",
    "Rival",
    "Tensors",
    "bare",
    "kl",
    "old",
]

Against = Literal["reference", "old-policy", "unknown"]
PER_TOKEN, PER_ANSWER = "nats per token", "nats per answer"


def bare(key: str) -> str:
    """A key without the ``train/`` of wandb and TensorBoard."""
    return key.removeprefix("train/")


@dataclass(frozen=True, kw_only=True)
class KLRule:
    """Which KL stands under a key.

    ``keys``: The first that the log has counts. ``spec``, ``against``: What the number is. ``squared``: The log holds
    its square root. ``zero_is_off``: An all-zero column is what the trainer writes when it computes no KL.
    ``named_by``: The option that names the estimator of the number. ``answers``: Over how many answers, at least, a
    number is the mean.
    """

    keys: tuple[str, ...]
    spec: KLSpec
    against: Against = "reference"
    squared: bool = False
    zero_is_off: bool = False
    named_by: str = ""
    answers: int = 1


def kl(
    *keys: str,
    estimator: Any,
    unit: Any,
    placement: Any,
    clamp: tuple[float, float] | None = None,
    sampler: Any = "policy",
    **rule: Any,
) -> KLRule:
    """A KL against the reference; further options are those of `KLRule`."""
    spec = KLSpec(estimator=estimator, unit=unit, placement=placement, clamp=clamp, sampler=sampler)
    return KLRule(keys=keys, spec=spec, **rule)


def old(*keys: str, estimator: Any = "k2") -> KLRule:
    """The policy after against before an update; the rollout policy drew the tokens."""
    spec = KLSpec(estimator=estimator, unit="nats per token", sampler="behavior", placement="none")
    return KLRule(keys=keys, spec=spec, against="old-policy")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The keys of one trainer, without the ``train/`` that wandb and TensorBoard put in front.

    ``reward``, ``length``, ``entropy``, ``coefficient``: The first that the log has counts. ``losses``: By part:
    ``loss`` (the whole), ``policy``, ``value``, ``kl``. ``component``: A reward function's key, with a group ``name``.
    ``kl``: Every KL of the log. ``earlier``: A key, and every KL of a log that lacks it: an older release gave the same
    names other meanings.
    """

    reward: tuple[str, ...] = ()
    length: tuple[str, ...] = ()
    entropy: tuple[str, ...] = ()
    coefficient: tuple[str, ...] = ()
    losses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    component: re.Pattern[str] | None = None
    kl: tuple[KLRule, ...] = ()
    earlier: tuple[str, tuple[KLRule, ...]] | None = None


@dataclass(frozen=True, kw_only=True)
class Rival:
    """Another trainer that writes the same keys, and how the two are told apart.

    ``name``: The other trainer. ``shows``, ``why``: Whether the columns show that it is the other, and what to say
    then. ``sure``, ``note``, ``question``: Whether the columns show that it is this one; what a reader and a check say
    where they do not.
    """

    name: str
    shows: Callable[[Raw], bool]
    why: str
    sure: Callable[[Raw], bool]
    note: str
    question: str


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Dumps of tensors, a file per rollout: the folders they lie in and the names of what they hold per sample."""

    folders: tuple[str, ...]
    reward: tuple[str, ...]
    length: tuple[str, ...]
    policy: str
    reference: str
    mask: str


@dataclass(frozen=True, kw_only=True)
class FirstSteps:
    """The trainer's file of answers: known by its columns, with the part that each plays.

    ``name``: In messages. ``columns``: All of them are there in this file, and in no other. ``prompt``, ``answer``:
    Default columns. ``reward``: Default column of the judge's score; None where every reward function has a column of
    its own. ``first``, ``last``: Steps whose answers were drawn before the first update. ``how``: What to set so that
    the first step is written.
    """

    name: str
    columns: frozenset[str]
    prompt: str
    answer: str
    reward: str | None
    first: int
    last: int
    how: str
