"""From the rows of a run to a `RunLog`: which column is the reward, which the KL, and what is odd about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash import _checks
from kleash.errors import DataError, MissingColumnError
from kleash.kl import KLSpec
from kleash.logs._config import Neighbours
from kleash.logs._kl import contested, kl_columns, relabelled
from kleash.logs._numbers import FULL
from kleash.logs._rows import Rows, names
from kleash.logs.table import KLColumn, RunLog
from kleash.trainers import TABLE, TRAINERS, Trainer, detect, projects, trainer_named
from kleash.trainers.options import version_of

if TYPE_CHECKING:
    from kleash.logs.table import Array

__all__ = ["FIELDS", "Origin", "build"]

FIELDS = (
    "step", "run", "reward", "gold", "coefficient", "length", "entropy", "loss", "policy_loss", "kl", "kl.unit",
    "kl.estimator", "kl.placement", "kl.against",
)  # fmt: skip
_TABLE = {
    "reward": ("reward", "reward_mean", "mean_reward"),
    "gold": ("gold", "gold_mean"),
    "coefficient": ("coefficient", "beta", "kl_coef"),
    "length": ("length", "mean_length", "response_length"),
    "entropy": ("entropy", "policy_entropy"),
    "loss": ("loss",),
    "policy_loss": ("policy_loss",),
    "kl": ("kl", "kl_mean", "mean_kl"),
}
_MOST_WEIGHTS = 6
_AGAIN = 0.5  # of rows that repeat a step: more is a table of answers, not of steps


@dataclass
class Origin:
    """Where rows came from and what the caller said about them."""

    path: Path
    sha256: str
    name: str
    trainer: str | None = None
    mapping: Mapping[str, str] | None = None
    beside: Neighbours = field(default_factory=Neighbours)
    config: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def build(rows: Rows, origin: Origin, *, index: int = 0) -> RunLog | None:
    """The `RunLog` of one run, or None if the keys are nobody's."""
    raw = rows.raw()
    notes = list(origin.notes)
    name = origin.trainer or (TABLE.name if origin.mapping else detect(raw)) or _plain_table(rows, raw)
    if name is None:
        return None
    trainer = trainer_named(name)
    if origin.trainer:
        _asked(trainer, raw, origin, notes)
    elif trainer.rival is not None:
        trainer = _of_rivals(trainer, raw, origin.beside, notes)
    version = origin.beside.versions.get(trainer.project)
    common: dict[str, Any] = {
        "path": str(origin.path),
        "trainer": trainer.name,
        "trainer_version": version,
        "run": rows.run or (origin.name if index == 0 else f"{origin.name}#{index + 1}"),
        "step": np.array(rows.steps, dtype=np.float64),
        "segment": np.array(rows.segments, dtype=np.int64),
        "raw": raw,
        "decimals": _decimals(trainer, rows),
        "numbered": rows.numbered,
        "undefined": {key: tuple(at) for key, at in rows.undefined.items()},
        "config": {**origin.beside.config, **origin.config},
        "rows": rows.n,
        "sha256": origin.sha256,
    }
    _say(rows, common["step"], common["segment"], notes)
    known = _table(raw, origin, notes) if trainer is TABLE else _known(trainer, raw, common["config"], origin, notes)
    return RunLog(**common, **known, notes=tuple(notes))


def _asked(trainer: Trainer, raw: Mapping[str, Array], origin: Origin, notes: list[str]) -> None:
    """Whether a log can be read as the trainer that somebody named; any table is a table."""
    if trainer is TABLE:
        return
    seen = detect(raw)
    if seen != trainer.name and not _has_keys_of(trainer, raw):
        whose = f"those of {seen}" if seen else ", ".join(list(raw)[:6])
        text = _checks.message("trainer", expected=f"keys of {trainer.name}", got=whose, fix="leave --trainer out")
        raise DataError(text, path=origin.path)
    rivals = {other.rival.name: other.name for other in TRAINERS.values() if other.rival is not None}
    if seen not in (None, trainer.name, rivals.get(trainer.name)):
        notes.append(f"read as {trainer.name}, as asked; the keys look like those of {seen}")


def _has_keys_of(trainer: Trainer, raw: Mapping[str, Array]) -> bool:
    """Whether a log has a reward or a KL under a name that the trainer gives it."""
    columns, known = trainer.columns, names(raw)
    keys = {*columns.reward, *(key for rule in columns.kl for key in rule.keys), *columns.losses.get("policy", ())}
    if not columns.kl:
        keys |= {word for mark in trainer.marks for word in mark.split()}
    return not keys.isdisjoint(known) or not keys.isdisjoint(key.removeprefix("eval_") for key in known)


def _of_rivals(trainer: Trainer, raw: Mapping[str, Array], beside: Neighbours, notes: list[str]) -> Trainer:
    """Which of two trainers that write the same keys: as the model card says, or as the numbers show."""
    assert trainer.rival is not None
    other = TRAINERS[trainer.rival.name]
    if beside.tag in (trainer.card, other.card):
        return trainer if beside.tag == trainer.card else other
    if trainer.rival.shows(raw):
        notes.append(trainer.rival.why)
        return other
    return trainer


def _say(rows: Rows, step: Array, segment: Any, notes: list[str]) -> None:
    if rows.numbered:
        notes.append("the log holds no steps: rows are numbered as they come")
    if rows.crowded:
        notes.append(f"{rows.n} rows of {len(set(rows.steps))} steps: several a step, each a row here")
    if rows.repeated:
        notes.append(f"{rows.repeated} rows are printed twice, word for word; kept once")
    notes += [
        f"the steps go back from {step[at]:g} to {step[at + 1]:g}: a resume or restart, both parts are kept"
        for at in np.flatnonzero(np.diff(segment))
    ]
    for key, where in list(rows.undefined.items())[:5]:
        shown = ", ".join(f"{step[i]:g}" for i in where[:3]) + (", ..." if len(where) > 3 else "")
        notes.append(f"{key} is printed as nan at step {shown}")


def _decimals(trainer: Trainer, rows: Rows) -> dict[str, int]:
    found = {key: digits.decimals for key, digits in rows.digits.items()}
    places = trainer.loss_places  # a loss that was rounded to four is known to four, and 0.0007 shows it
    for key in ("loss", "train/loss"):
        if places is not None and FULL < found.get(key, FULL) <= places and rows.digits[key].short is None:
            found[key] = places
    return found


# --------------------------------------------------------------------------------------------------- known trainers


def _known(
    trainer: Trainer, raw: Mapping[str, Array], config: Mapping[str, Any], origin: Origin, notes: list[str]
) -> dict[str, Any]:
    columns, known = trainer.columns, names(raw)

    def first(keys: Sequence[str]) -> Array | None:
        return next((raw[known[key]] for key in keys if key in known), None)

    components = _components(trainer, raw)
    kl = kl_columns(trainer, raw, notes)
    kl = relabelled(
        trainer, kl, raw, config, version=version_of(origin.beside.versions.get(trainer.project)), notes=notes
    )
    if not (origin.trainer == trainer.name or origin.beside.tag == trainer.card != ""):
        kl = contested(trainer, kl, raw, notes)
    coefficient = first(columns.coefficient)
    if kl:
        notes += [trainer.note] * bool(trainer.note)
    elif known.keys().isdisjoint(key for rule in columns.kl for key in rule.keys):
        notes += [trainer.note_without] * bool(trainer.note_without)
    if coefficient is not None and {"reward", "loss"} <= {column.spec.placement for column in kl}:
        notes.append("this run logs a KL in the reward and one in the loss; `coefficient` is that of the loss")
    return {
        "reward": first(columns.reward),
        "length": first(columns.length),
        "entropy": first(columns.entropy),
        "coefficient": coefficient,
        "losses": {name: found for name, keys in columns.losses.items() if (found := first(keys)) is not None},
        "components": components,
        "component_weights": _weights(components, first(columns.reward), config),
        "kl": tuple(kl),
    }


def _components(trainer: Trainer, raw: Mapping[str, Array]) -> dict[str, Array]:
    """The mean of each reward function."""
    columns, found = trainer.columns, {}
    for name, key in names(raw).items():
        match = None if columns.component is None else columns.component.fullmatch(name)
        if match is not None and name not in (*columns.reward, *columns.length) and not name.endswith("/std"):
            found[match["name"]] = raw[key]
    return found


def _weights(
    components: Mapping[str, Array], reward: Array | None, config: Mapping[str, Any]
) -> dict[str, float] | None:
    """Which weight belongs to which component: the one order in which they add up to the reward, or None.

    A trainer state sorts its keys, so their order is not that of the configuration.
    """
    weights = config.get("reward_weights")
    if not isinstance(weights, list) or len(weights) != len(components) or reward is None:
        return None
    if not all(isinstance(weight, int | float) for weight in weights) or not 0 < len(weights) <= _MOST_WEIGHTS:
        return None
    table = np.array(list(components.values()))
    rows = np.isfinite(reward) & np.isfinite(table).all(axis=0)
    if not rows.any():
        return None
    orders = sorted({tuple(float(weight) for weight in order) for order in permutations(weights)})
    fits = [order for order in orders if np.allclose(np.array(order) @ table[:, rows], reward[rows], atol=2e-3)]
    return dict(zip(components, fits[0], strict=True)) if len(fits) == 1 else None


# ------------------------------------------------------------------------------------------------------------ tables


def _plain_table(rows: Rows, raw: Mapping[str, Array]) -> str | None:
    """Whether a table that no trainer wrote has names anyone would understand, and a row per step."""
    known = names(raw)
    if rows.numbered or not any(name in known for key in ("reward", "kl") for name in _TABLE[key]):
        return None
    step = np.array(rows.steps, dtype=np.float64)
    again = 1 - np.unique(step).size / max(1, step.size)
    return None if again > _AGAIN and step.size > 2 else "table"


def _table(raw: Mapping[str, Array], origin: Origin, notes: list[str]) -> dict[str, Any]:
    mapping, known = dict(origin.mapping or {}), names(raw)
    parts = {name: key for name, key in mapping.items() if name.startswith("component:")}
    for name in mapping:
        if name not in parts:
            _checks.choice(name, FIELDS, name="mapping")

    def column(name: str) -> tuple[str, Array] | None:
        if name in mapping:
            return mapping[name], _column(raw, mapping[name], origin.path)
        own = (known[key] for key in _TABLE.get(name, ()) if key in known)
        key = next((key for key in own if key not in mapping.values()), None)
        return None if key is None else (key, raw[key])

    def values(name: str) -> Array | None:
        found = column(name)
        return None if found is None else found[1]

    kl: tuple[KLColumn, ...] = ()
    if (found := column("kl")) is not None and not np.isnan(found[1]).all():
        unit = mapping.get("kl.unit", "nats per answer")
        against = _checks.choice(
            mapping.get("kl.against", "unknown"), ("reference", "old-policy", "unknown"), name="kl.against"
        )
        spec = KLSpec(
            estimator=mapping.get("kl.estimator", "k1"),  # type: ignore[arg-type]
            unit=unit,  # type: ignore[arg-type]
            placement=mapping.get("kl.placement", "unknown"),  # type: ignore[arg-type]
            sampler="unknown",
        )
        said = "kl.unit" in mapping
        kl = (KLColumn(key=found[0], values=found[1], spec=spec, against=against, unit_known=said),)  # type: ignore[arg-type]
        unsaid = [name for name in ("kl.unit", "kl.estimator", "kl.against") if name not in mapping]
        if unsaid:
            notes.append(f"{found[0]}: {', '.join(unsaid)} not said; taken for {spec}, against {against}")
    return {
        "reward": values("reward"),
        "gold": values("gold"),
        "coefficient": values("coefficient"),
        "length": values("length"),
        "entropy": values("entropy"),
        "losses": {
            name: loss
            for name, key in (("loss", "loss"), ("policy", "policy_loss"))
            if (loss := values(key)) is not None
        },
        "components": {name.split(":", 1)[1]: _column(raw, key, origin.path) for name, key in parts.items()},
        "kl": kl,
    }


def _column(raw: Mapping[str, Array], key: str, path: Path) -> Array:
    if key in raw:
        return raw[key]
    got = f"none of that name among {len(raw)} columns"
    text = _checks.message("column", expected=repr(key), got=got, fix=_checks.nearest(key, list(raw)[:40]))
    raise MissingColumnError(text, path=path)


def unrecognised(path: Path, rows: Sequence[Rows]) -> DataError:
    """The error for rows whose keys belong to no trainer."""
    keys = list(dict.fromkeys(key for r in rows for key in r.columns))
    shown = ", ".join(keys[:6]) + (", ..." if len(keys) > 6 else "")
    return DataError(
        _checks.message(
            "training log",
            expected=f"keys of a trainer ({', '.join(projects())}) or a row per step with step and reward or kl",
            got=f"keys {shown}",
            fix="rename columns to step, reward, kl, gold, or map them (columns in --config)",
        ),
        path=path,
    )
