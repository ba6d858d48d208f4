"""What does a training log hold, whoever wrote it? One table per run, with every KL column saying what it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kleash import trainers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kleash.kl import KLSpec
    from kleash.trainers.columns import Against

    Array = NDArray[np.float64]

__all__ = ["TRAINERS", "KLColumn", "RunLog"]

TRAINERS: tuple[str, ...] = (*trainers.TRAINERS, trainers.TABLE.name)


@dataclass(frozen=True, kw_only=True)
class KLColumn:
    """One KL of a log, as numbers and as words.

    ``key``: The key as it stands in the log. ``values``: Shape (T,), nats; NaN where the log has none. ``spec``:
    Estimator, unit, clamp, who drew the tokens, and where the number enters training. ``against``: From whom the
    distance is measured. Only ``reference`` is a distance from the reference: the KL between the policy before and
    after an update (``old-policy``) says nothing about the leash. ``transform``: What was done to the logged numbers,
    empty if nothing. ``unit_known``: False where the unit of ``spec`` is a guess: a plain table whose owner has not
    said it. ``answers``: Over how many answers, at least, each number is the mean.
    """

    key: str
    values: Array
    spec: KLSpec
    against: Against
    transform: str = ""
    unit_known: bool = True
    answers: int = 1


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """One run as its log tells it: a row per logged step, in the order of the log, nothing averaged.

    Parameters
    ----------
    path
        The file.
    trainer
        One of `TRAINERS`; ``table`` is a plain table that was mapped by hand.
    trainer_version
        Version of the trainer if the log or a file beside it says so.
    run
        Name of the run: an id from the log, else from the file.
    step
        Shape (T,). Steps of one segment rise.
    segment
        Shape (T,), int64: 0, 1, ...; a new one starts where the steps go back, which is a resume.
    reward, gold, coefficient, length, entropy
        Shape (T,), NaN where not recorded, or None where the log has no such column. ``coefficient`` is only ever a
        logged one, never one worked out from other columns.
    gold_key
        The column that a caller called gold, or None.
    components
        Mean of each reward function, those of weight 0 among them.
    component_weights
        Their weights, if the configuration is known.
    kl
        Every KL of the log; empty is "no KL in this run", which is not a KL of 0.
    losses
        ``loss`` (the whole), ``policy``, ``value``, ``entropy``, and ``kl``: the part of the KL *with* its
        coefficient, where a trainer logs that.
    raw
        Every numeric key as it stands in the log, ``eval_`` keys among them.
    decimals
        Digits behind the point in the source, for each key of ``raw``; -1 is full precision.
    numbered
        Whether the log holds no steps and its rows were counted: the first one need not be the first of the run.
    undefined
        Rows in which the log prints ``nan`` under a key; in ``raw`` these are NaN like those it does not mention.
    config
        What the log, or a file beside it, holds of the configuration: plain names (``beta``, ``kl_loss_coef``,
        ``use_kl_loss``) and their values.
    notes
        What a reader of the numbers has to know: cut lines, guessed steps, ambiguous keys.
    rows
        T.
    sha256
        Of the file's bytes; of a folder that of its files' digests.
    """

    path: str
    trainer: str
    trainer_version: str | None = None
    run: str
    step: Array
    segment: NDArray[np.int64]
    reward: Array | None = None
    gold: Array | None = None
    gold_key: str | None = None
    coefficient: Array | None = None
    length: Array | None = None
    entropy: Array | None = None
    components: dict[str, Array] = field(default_factory=dict)
    component_weights: dict[str, float] | None = None
    kl: tuple[KLColumn, ...] = ()
    losses: dict[str, Array] = field(default_factory=dict)
    raw: dict[str, Array] = field(default_factory=dict)
    decimals: dict[str, int] = field(default_factory=dict)
    numbered: bool = False
    undefined: dict[str, tuple[int, ...]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rows: int
    sha256: str = ""
