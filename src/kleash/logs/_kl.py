"""Which columns of a log are a KL, and what each of them means under the log's own settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.logs.table import KLColumn
from kleash.trainers import trainer_named
from kleash.trainers.columns import bare
from kleash.trainers.options import flatten, stated, version_of
from kleash.trainers.penalty import value_of

if TYPE_CHECKING:
    from kleash.logs.table import Array, RunLog
    from kleash.trainers import Trainer
    from kleash.trainers.columns import KLRule, Raw
    from kleash.trainers.options import Version

__all__ = ["contested", "kl_columns", "relabelled", "with_settings"]


def kl_columns(trainer: Trainer, raw: Mapping[str, Array], notes: list[str]) -> list[KLColumn]:
    """Every KL of a log with its meaning by default; a column without any number is no KL."""
    columns = []
    for rule in _rules(trainer, raw):
        candidates = (key for name in rule.keys for key in (name, f"train/{name}") if key in raw)
        key = next((key for key in candidates if not np.isnan(raw[key]).all()), None)
        if key is None:
            continue
        values = raw[key]
        if rule.zero_is_off and not np.any(values[~np.isnan(values)]):
            notes.append(f"{key} is 0 throughout: this trainer writes that where it computes no such KL; left out")
            continue
        if rule.squared:
            with np.errstate(over="ignore"):  # beyond every float: infinite, which NON_FINITE calls
                values = np.where(values < 0, np.nan, np.square(values))
        transform = "squared from a square root" if rule.squared else ""
        about: dict[str, Any] = {"spec": rule.spec, "against": rule.against, "answers": rule.answers}
        columns.append(KLColumn(key=key, values=values, transform=transform, **about))
    return columns


def _rules(trainer: Trainer, raw: Mapping[str, Array]) -> tuple[KLRule, ...]:
    earlier = trainer.columns.earlier
    return earlier[1] if earlier is not None and earlier[0] not in {bare(key) for key in raw} else trainer.columns.kl


def relabelled(
    trainer: Trainer,
    columns: Sequence[KLColumn],
    raw: Raw,
    config: Mapping[str, Any],
    *,
    version: Version | None,
    notes: list[str],
) -> list[KLColumn]:
    """The columns with the estimator and the place that the settings state, or that the release has by default.

    ``trainer``, ``columns``, ``raw``: Whose they are. ``config``, ``version``: What is stated, and of which release;
    None if that is not known. ``notes``: Takes what is not known.

    Returns
    -------
    The columns in the same order.
    """
    said = stated(trainer.options, config)[0]
    penalty = trainer.penalty(said)
    ratio, _ = trainer.with_ratio(penalty.with_ratio, version, set(raw))
    if columns and ratio is None and trainer.ratio_option is not None:
        notes.append(trainer.ratio_note(version))
    rules = {name: rule for rule in _rules(trainer, raw) for name in rule.keys}
    out = []
    for column in columns:
        rule, spec = rules.get(bare(column.key)), column.spec
        if rule is None:
            out.append(column)
            continue
        estimator: Any = value_of(said.get(rule.named_by)) or spec.estimator
        clamp = rule.spec.clamp if estimator == rule.spec.estimator else None  # a clamp is that of one estimator
        placement: Any = spec.placement
        if rule.spec.placement == "unknown" and penalty.where in ("loss", "reward"):
            placement = penalty.where
        elif placement.startswith("loss") and ratio is not None:
            placement = "loss-with-ratio" if ratio else "loss"
        out.append(replace(column, spec=replace(spec, estimator=estimator, clamp=clamp, placement=placement)))
    return out


def contested(trainer: Trainer, columns: list[KLColumn], raw: Raw, notes: list[str]) -> list[KLColumn]:
    """The columns of a log that a rival may have written: nobody knows where the penalty goes."""
    rival = trainer.rival
    if rival is None or not columns or rival.sure(raw):
        return columns
    notes.append(rival.note)
    return [replace(c, spec=replace(c.spec, placement="unknown")) for c in columns]


def with_settings(log: RunLog, settings: Mapping[str, Any]) -> RunLog:
    """A log under settings that somebody gives besides: what its KL columns are may depend on them.

    ``log``: As it was read. ``settings``: The trainer's own, nested or flat; they win over what the log holds.

    Returns
    -------
    The log with both in ``config``.
    """
    if not settings:
        return log
    config = {**log.config, **flatten(settings)}
    who, version = trainer_named(log.trainer), version_of(log.trainer_version)
    kl = relabelled(who, log.kl, log.raw, config, version=version, notes=[])
    return replace(log, config=config, kl=tuple(kl))
