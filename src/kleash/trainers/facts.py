"""What there is to know about a trainer and its KL: one record, all of it data and a few small functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kleash.trainers.columns import PER_ANSWER, Columns, FirstSteps, Rival, Tensors, bare
from kleash.trainers.options import dotted
from kleash.trainers.penalty import Penalty, Target

if TYPE_CHECKING:
    from kleash.trainers.options import Option, Options, Version
    from kleash.trainers.trial import Trial

__all__ = [
    "Averages",
    "Change",
    "Identity",
    "Shows",
    "Trainer",
]

Place = Literal["loss", "reward"]


# ------------------------------------------------------------------------------------------------ what its log obeys


@dataclass(frozen=True, kw_only=True)
class Shows:
    """Which columns show where the penalty is, for a trainer that can put it in more than one place.

    ``kl_in_loss``: A KL that is logged only where it is in the loss. ``zero_outside``: A KL that is 0 in every row
    where it is not in the loss. ``shaped``, ``words``, ``differ``: The score before and after a penalty in the reward,
    what people call the two, and what to say if they differ. ``paid``, ``paid_by``: The KL of a penalty in the reward,
    logged only with one, and its coefficient. ``silent_in_reward``: Nothing of a penalty in the reward is logged.
    """

    kl_in_loss: str = ""
    zero_outside: str = ""
    shaped: tuple[str, ...] = ()
    words: str = ""
    differ: str = "{} and {} differ"
    paid: tuple[str, ...] = ()
    paid_by: tuple[str, ...] = ()
    silent_in_reward: bool = False


@dataclass(frozen=True, kw_only=True)
class Averages:
    """What the kinds of a trainer's loss leave beside beta * kl.

    ``alike``: The kind in which every answer counts alike, so that centred advantages sum to 0. ``tokens``: Kinds in
    which every token counts alike: a policy term weighted by length is left. ``others``: Kinds whose policy term is not
    0 in the mean, or whose loss is not in nats per token. ``default``: The kind of a release that is not known, in
    words. ``drawn``: Kinds divided by the tokens of all answers drawn at once, where an update takes only some of them.
    ``mended``: The releases between which that came and went: kept from the first, gone by the second, open between.
    """

    alike: str
    tokens: tuple[str, ...]
    others: tuple[str, ...]
    default: str
    drawn: tuple[str, ...] = ()
    mended: tuple[tuple[int, ...], tuple[int, ...]] = ((0,), (0,))


@dataclass(frozen=True, kw_only=True)
class Identity:
    """How the log's own columns hold the coefficient.

    ``kind``: ``parts``: the loss with and without the penalty, or the score before and after it. ``shaped``: that score
    only. ``difference``: two columns differ by the penalty. ``penalty``: the penalty has a column, per answer or per
    token beside a length. ``loss``: the loss is beta * KL where the policy term vanishes. ``evaluations``: changes
    between evaluations. ``proportional``: one column is the coefficient times one of several KLs. ``none``. ``keys``:
    The columns, in the order that the kind asks for. ``terms``: Of ``proportional``: estimator of each KL, and whether
    the ratio multiplies it. ``averages``: Of ``loss``. ``reason``: Why there is none.
    """

    kind: str = "parts"
    keys: tuple[str, ...] = ()
    terms: tuple[tuple[str, bool | None], ...] = ()
    averages: Averages | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One release that gives the same settings another KL.

    ``version``: The first version with the new behaviour. ``key``: Settings, any of which, if stated, make the change
    harmless. ``what``: Old and new behaviour. ``source``: Where it was read. ``visible``: Whether the change removes
    the KL from the log (``kl-gone``) or moves numbers only.
    """

    version: Version
    key: tuple[str, ...]
    what: str
    source: str
    visible: str = "numbers"


# ------------------------------------------------------------------------------------------------------- the trainer


def _says_nothing(options: Options) -> Penalty:
    return Penalty(coefficient="beta")


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A trainer: everything that is particular to it.

    Parameters
    ----------
    name, project
        Its name here, and what people call the project (model cards and messages).
    marks
        Sets of keys by any of which its logs are known, words in a string: ``key``, ``start*``, ``!absent``;
        ``train/key`` with that prefix only.
    columns
        What its keys mean.
    options, penalty
        Its options with their defaults, and what they do with the KL: with ``None`` for what is not stated, or with
        defaults for that.
    switches
        Options that put the penalty into the loss and into the reward, where they are two.
    targets
        The names under which its coefficient is translated.
    place, implicit, unleashed, movable, estimator
        What it cannot do otherwise: the only place of its penalty; a loss that is a function of beta times the log
        ratio of whole answers; why its penalty is no leash to a reference, if it is none; its only estimator.
        ``movable``: an option can put the penalty elsewhere.
    ratio_option, eras
        The option that multiplies a KL in the loss by the ratio; and keys that date a log, with their version.
    controller
        The unit of the KL that its controller is fed, as words.
    shows, identity, changes
        Where its log shows the penalty, what it obeys, which releases changed the KL of an unchanged script.
    token_means
        A KL per token is a mean over all tokens of a batch, not one over answers of their own means.
    loss_places
        Decimals to which the loss was rounded before it was logged.
    mismatch, cut
        Measures of engine against trainer with the largest healthy value and its source; the share of cut answers.
    sampling
        Options of its sampler that make answers the policy's own, with their values.
    card, command, classes
        The tag of its model cards; its program on a command line; the classes of its configuration and of itself, where
        kleash runs them or runs inside them.
    rival, console, tensors, first_steps, trial
        See there; ``console``: labels of console bullets and the keys they stand for.
    warnings
        Keys of numbers that only its warnings show, each with a pattern that finds the number and a note of how many
        there were (``{}``) and the largest (``{:g}``), empty for none.
    doubt
        What to say of an estimator (``{}``) in the loss that has no pull, where some releases correct its gradient; and
        what to do.
    history
        Releases in which something was otherwise, as a cause to name: of the ``switch``, of the ``sign``, of the
        logged KL against the penalty's (``overlogged``).
    note, note_without
        What to say of any log with a KL, and of one without.
    """

    name: str
    project: str
    marks: tuple[str, ...] = ()
    columns: Columns = field(default_factory=Columns)
    options: Mapping[str, Option] = field(default_factory=dict)
    penalty: Callable[[Options], Penalty] = _says_nothing
    switches: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    place: Place | None = None
    implicit: bool = False
    unleashed: str = ""
    movable: bool = False
    estimator: str | None = None
    ratio_option: str | None = None
    eras: tuple[tuple[str, Version], ...] = ()
    controller: str = PER_ANSWER
    shows: Shows = field(default_factory=Shows)
    identity: Identity = field(default_factory=Identity)
    changes: tuple[Change, ...] = ()
    token_means: bool = False
    loss_places: int | None = None
    mismatch: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    cut: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    card: str = ""
    command: str = ""
    classes: tuple[str, str] | None = None
    rival: Rival | None = None
    console: Mapping[str, str] = field(default_factory=dict)
    warnings: Mapping[str, tuple[re.Pattern[str], str]] = field(default_factory=dict)
    tensors: Tensors | None = None
    first_steps: FirstSteps | None = None
    trial: Trial | None = None
    doubt: tuple[str, str] | None = None
    history: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    note_without: str = ""

    @property
    def logs_no_kl(self) -> bool:
        """Whether even a healthy log has no KL: the loss itself is the penalty."""
        return self.implicit and not self.columns.kl

    def knows(self, keys: set[str]) -> bool:
        """Whether a log with these keys is this trainer's."""
        names = {bare(key) for key in keys}
        return any(all(_there(word, keys, names) for word in mark.split()) for mark in self.marks)

    def with_ratio(self, stated: bool | None, version: Version | None, keys: set[str]) -> tuple[bool | None, bool]:
        """Whether a KL in the loss is multiplied by the ratio, None if that is open; and if by default only.

        ``stated``: What the configuration says. ``version``: The trainer's, if known. ``keys``: Of the log, which date
        it where the version is not known.

        Returns
        -------
        The answer, and whether it rests on the version's default.
        """
        if stated is not None or self.ratio_option is None:
            return stated, False
        dated = version or next((v for key, v in self.eras if key in keys or f"train/{key}" in keys), None)
        return self.options[self.ratio_option].at(dated), True

    @property
    def ratio_since(self) -> str:
        """The release since which the ratio is the default."""
        assert self.ratio_option is not None
        return f"{self.project} {dotted(self.options[self.ratio_option].history[-1][0])}"

    def ratio_note(self, version: Version | None) -> str:
        """What is not known where neither the settings nor the version say whether the ratio is there."""
        what = f"version of {self.project} not known"
        if version is not None:
            what = f"the default of {self.ratio_option} in {self.project} {dotted(version)} is not known"
        since = self.ratio_since.removeprefix(f"{self.project} ")
        return f"{what}: k3 stands as a plain loss; since {since} it is multiplied by the ratio"


def _there(word: str, keys: set[str], names: set[str]) -> bool:
    if word.startswith("!"):
        return word[1:] not in names
    if word.endswith("*"):
        return any(name.startswith(word[:-1]) for name in names)
    return word in (keys if word.startswith("train/") else names)
