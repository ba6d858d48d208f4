"""What options of a trainer do with the KL: where it goes, what it pulls at, which tilt its coefficient leads to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from kleash.trainers.options import Options

__all__ = [
    "ESTIMATORS",
    "Estimator",
    "Leash",
    "Penalty",
    "Pull",
    "Scale",
    "Target",
    "gradient_of",
    "pull_of",
    "value_of",
]

Scale = Literal["group", "batch", "log"]
Pull = Literal["answer", "token", "forward", "none", "other"]


class Estimator(NamedTuple):
    """A name's estimator: whose ``value`` is logged or paid, and whose ``gradient`` the loss descends."""

    value: str
    gradient: str


ESTIMATORS: dict[str, Estimator] = {
    **{name: Estimator("k1", "k1") for name in ("k1", "kl", "kl1")},
    **{name: Estimator("k2", "k2") for name in ("k2", "mse", "kl2")},
    **{name: Estimator("k3", "k3") for name in ("k3", "low_var_kl", "kl3")},
    "abs": Estimator("abs", "abs"),
    "k1+": Estimator("k1", "k2"),
    "k3+": Estimator("k3", "k2"),
}
"""Every name that a trainer gives to an estimator: the only table of them."""

_IN_LOSS: dict[str, Pull] = {"k1": "none", "k2": "token", "k3": "forward", "abs": "other"}
_WITH_RATIO: dict[str, Pull] = {"k1": "token", "k2": "other", "k3": "token", "abs": "other"}


def value_of(name: str | None) -> str | None:
    """The estimator that an option's word pays or logs; None for no word, or one that is not known."""
    found = ESTIMATORS.get((name or "").lower())
    return None if found is None else found.value


def gradient_of(name: str | None) -> str | None:
    """The estimator whose gradient an option's word descends in the loss; None for no word, or one not known."""
    found = ESTIMATORS.get((name or "").lower())
    return None if found is None else found.gradient


def pull_of(estimator: str, *, with_ratio: bool | None) -> Pull:
    """What the expected update of an estimator in the loss descends."""
    return (_WITH_RATIO if with_ratio else _IN_LOSS)[estimator]


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """What a trainer does with its KL under some of its options; None where they leave it open.

    Parameters
    ----------
    coefficient
        The option that holds the coefficient.
    in_loss, in_reward
        Where the options put the penalty.
    estimator
        In the loss the one whose gradient is descended, in the reward the one that is paid: k1, k2, k3 or abs.
    named
        The options' own words for it.
    with_ratio
        Whether a KL in the loss is multiplied by the importance ratio.
    adaptive, target, horizon
        Of a controller.
    loss_type, iterations
        How the loss averages, and updates per batch.
    inert
        Why the coefficient has no effect with the other options.
    against
        What it ties to where that is no reference: the ``sampler``, which bounds a step and never the drift, or
        ``nothing``.
    """

    coefficient: str | None = None
    in_loss: bool | None = None
    in_reward: bool | None = None
    estimator: str | None = None
    named: str = ""
    with_ratio: bool | None = None
    adaptive: bool | None = None
    target: float | None = None
    horizon: float | None = None
    loss_type: str | None = None
    iterations: int | None = None
    inert: str | None = None
    against: Literal["sampler", "nothing"] | None = None

    @property
    def where(self) -> str | None:
        """``loss``, ``reward``, ``both`` or ``none`` as the options say."""
        if self.in_loss is None and self.in_reward is None:
            return None
        if self.in_loss and self.in_reward:
            return "both"
        return "loss" if self.in_loss else "reward" if self.in_reward else "none"


@dataclass(frozen=True, kw_only=True)
class Leash:
    """What decides which tilt a trainer's coefficient leads to, under one set of options.

    Parameters
    ----------
    parameter
        The option that holds the coefficient, as the trainer spells it.
    pull
        What the expected update of the KL term descends. ``answer``: KL(policy || reference) of whole answers.
        ``token``: the same of each token at its own prefix, blind to later tokens. ``forward``:
        KL(reference || policy) of each token. ``none``: nothing. ``other``: no divergence of the two.
    group_mean
        The baseline is the mean of the group with the answer itself in it, which shrinks the reward's part of the
        update by (G - 1) / G and leaves the penalty alone.
    scale
        By what the rewards (not the penalty) are divided: nothing, each ``group``'s SD, the SD of the judge's score
        over the ``batch``, or one number that only the run's own ``log`` shows (the SD of advantages, a running
        SD).
    sd_of
        What a ``group`` scale is the SD of: the ``group``, with G - 1 in its denominator; ``group-n``, with G in it; or
        the ``others``, G - 1 answers without the one that is scaled.
    factor
        Any other factor on the reward's part.
    per_length
        The coefficient multiplies a mean over the answer's tokens, not their sum.
    group_option, group_size
        The trainer's name for the group size, and its default where it has one.
    instead
        What to take where the estimator pulls nowhere.
    assumes
        What must hold besides.
    refused
        Why there is no translation, if there is none whatever else is known.
    """

    parameter: str
    pull: Pull = "answer"
    group_mean: bool = False
    scale: Scale | None = None
    sd_of: Literal["group", "group-n", "others"] = "group"
    factor: float = 1.0
    per_length: bool = False
    group_option: str = "the group size"
    group_size: int | None = None
    instead: str = ""
    assumes: tuple[str, ...] = ()
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """A name under which a trainer's coefficient is translated.

    ``name``: The trainer's, or one of its ways to place the penalty. ``settable``: Options that matter here. ``leash``:
    The reward's side of the update under all options; the KL's side comes from the trainer's penalty. ``fixed``:
    Options that the name itself settles, over the trainer's defaults.
    """

    name: str
    settable: tuple[str, ...]
    leash: Callable[[Options], Leash]
    fixed: Mapping[str, Any] = field(default_factory=dict)
