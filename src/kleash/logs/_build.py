"""From the rows of a run to a `RunLog`: which column is the reward, which the KL, and what is odd about them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash import _checks
from kleash.errors import DataError, MissingColumnError
from kleash.kl import KLSpec
from kleash.logs._config import Neighbours
from kleash.logs._numbers import FULL
from kleash.logs._records import STEP_KEYS
from kleash.logs._rows import Rows, names
from kleash.logs._trainers import READERS, bare, detect, kl_columns
from kleash.logs.table import KLColumn, RunLog

if TYPE_CHECKING:
    from kleash.logs.table import Array

__all__ = ["FIELDS", "Origin", "build", "with_gold"]

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
_OLD_GRPO = re.compile(r"completion_length|clip_ratio|rewards/[^/]+")
_ROUNDING = 1e-4
"""How far below 0 a batch's k3 may come out in bfloat16, whose numbers near 1 are 2**-8 apart: above the -6e-5 that
2,000 tokens gave. A k1 that stays above this tells GRPO from RLOO no better."""
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
    config = {**origin.beside.config, **origin.config}
    trainer = origin.trainer or ("table" if origin.mapping else detect(raw))
    if trainer is None:
        trainer = _plain_table(rows, raw)
        if trainer is None:
            return None
    if not origin.trainer and trainer == "trl-grpo":
        trainer = _grpo_or_rloo(raw, origin.beside, notes)
    seen = detect(raw)
    told = origin.trainer not in (None, "table") and {seen, trainer} != {"trl-grpo", "trl-rloo"}
    if origin.trainer is not None and seen != trainer and not _has_keys_of(trainer, raw):
        whose = f"those of {seen}" if seen else ", ".join(list(raw)[:6])
        text = _checks.message("trainer", expected=f"keys of {trainer}", got=whose, fix="leave --trainer out")
        raise DataError(text, path=origin.path)
    if told and seen not in (None, trainer):
        notes.append(f"read as {trainer}, as asked; the keys look like those of {seen}")
    common: dict[str, Any] = {
        "path": str(origin.path),
        "trainer": trainer,
        "trainer_version": origin.beside.version if trainer.startswith("trl") else None,
        "run": rows.run or (origin.name if index == 0 else f"{origin.name}#{index + 1}"),
        "step": np.array(rows.steps, dtype=np.float64),
        "segment": np.array(rows.segments, dtype=np.int64),
        "raw": raw,
        "decimals": _decimals(trainer, rows),
        "numbered": rows.numbered,
        "undefined": {key: tuple(at) for key, at in rows.undefined.items()},
        "config": config,
        "rows": rows.n,
        "sha256": origin.sha256,
    }
    _say(rows, common["step"], common["segment"], notes)
    fields = _table(raw, origin, notes) if trainer == "table" else _known(trainer, raw, config, origin, notes)
    return RunLog(**common, **fields, notes=tuple(notes))


def _has_keys_of(trainer: str, raw: Mapping[str, Array]) -> bool:
    """Whether a log has a reward or a KL under a name that the trainer gives it; any table is a table."""
    if trainer == "table":
        return True
    reader, known = READERS[trainer], names(raw)
    keys = {*reader.reward, *(key for rule in reader.kl for key in rule.keys), *reader.losses.get("policy", ())}
    if not reader.kl:
        keys |= {"rewards/margins", "rewards/chosen", "eval_rewards/margins"}
    return not keys.isdisjoint(known) or not keys.isdisjoint(key.removeprefix("eval_") for key in known)


def _say(rows: Rows, step: Array, segment: Any, notes: list[str]) -> None:
    if rows.numbered:
        notes.append("the log holds no steps: rows are numbered as they come")
    if rows.repeated:
        notes.append(f"{rows.repeated} rows are printed twice, word for word; kept once")
    notes += [
        f"the steps go back from {step[at]:g} to {step[at + 1]:g}: a resume or restart, both parts are kept"
        for at in np.flatnonzero(np.diff(segment))
    ]
    for key, where in list(rows.undefined.items())[:5]:
        shown = ", ".join(f"{step[i]:g}" for i in where[:3]) + (", ..." if len(where) > 3 else "")
        notes.append(f"{key} is printed as nan at step {shown}")


def _decimals(trainer: str, rows: Rows) -> dict[str, int]:
    found = {key: digits.decimals for key, digits in rows.digits.items()}
    if trainer.startswith("trl"):  # Hugging Face's Trainer rounds the loss to 4 decimals, and 0.0007 shows it
        for key in ("loss", "train/loss"):
            if key in found and FULL < found[key] <= 4 and rows.digits[key].short is None:
                found[key] = 4
    return found


# --------------------------------------------------------------------------------------------------- known trainers


def _known(
    trainer: str, raw: Mapping[str, Array], config: Mapping[str, Any], origin: Origin, notes: list[str]
) -> dict[str, Any]:
    reader, known = READERS[trainer], names(raw)

    def first(keys: Sequence[str]) -> Array | None:
        return next((raw[known[key]] for key in keys if key in known), None)

    components: dict[str, Array] = {}
    if reader.component is not None:
        taken = {key for keys in (reader.reward, reader.length) for key in keys}
        for name, key in known.items():
            match = reader.component.fullmatch(name)
            if match is not None and name not in taken and not name.endswith("/std"):
                components[match["name"]] = raw[key]
    kl = kl_columns(trainer, raw, config, notes)
    if trainer in ("trl-grpo", "trl-rloo"):
        kl = _trl_placement(trainer, kl, raw, origin, config, notes)
    if trainer == "nemo-rl" and not kl and "kl_penalty" not in known:
        notes.append("NeMo-RL prints no KL on the console: whether there was one, this text cannot tell")
    if trainer == "trlx" and kl:
        notes.append(
            "trlX logs roots of k3 with the ratio inverted, prompt tokens included: squared back, it still estimates "
            "chi-square minus KL and not the KL of the penalty"
        )
    if trainer == "verl" and {"reward", "loss"} <= {column.spec.placement for column in kl}:
        notes.append("this run logs a KL in the reward and one in the loss; `coefficient` is that of the loss")
    return {
        "reward": first(reader.reward),
        "length": first(reader.length),
        "entropy": first(reader.entropy),
        "coefficient": first(reader.coefficient),
        "losses": {name: found for name, keys in reader.losses.items() if (found := first(keys)) is not None},
        "components": components,
        "component_weights": _weights(components, first(reader.reward), config),
        "kl": tuple(kl),
    }


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


def _grpo_or_rloo(raw: Mapping[str, Array], beside: Neighbours, notes: list[str]) -> str:
    if beside.tag in ("grpo", "rloo"):
        return f"trl-{beside.tag}"
    kl = raw.get("kl", raw.get("train/kl"))
    if kl is not None and np.nanmin(np.append(kl, np.inf)) < -_ROUNDING:
        notes.append("taken for TRL's RLOO: its `kl` is k1 and falls below 0, where GRPO's k3 cannot")
        return "trl-rloo"
    return "trl-grpo"


def _trl_placement(
    trainer: str,
    kl: list[KLColumn],
    raw: Mapping[str, Array],
    origin: Origin,
    config: Mapping[str, Any],
    notes: list[str],
) -> list[KLColumn]:
    """Loss, loss with the ratio (TRL 1.16), or unknown where RLOO could have written the same keys."""
    if "eval_kl" in raw and not kl:
        spec = READERS["trl-grpo"].kl[0].spec
        kl = [KLColumn(key="eval_kl", values=raw["eval_kl"], spec=spec, against="reference")]
    if trainer == "trl-rloo" or not kl:
        return kl
    told = origin.trainer == trainer or origin.beside.tag == "grpo"
    old = any(_OLD_GRPO.fullmatch(bare(key)) for key in raw)
    placement: Any = "loss"
    if isinstance(config.get("use_bias_correction_kl"), bool):
        placement = "loss-with-ratio" if config["use_bias_correction_kl"] else "loss"
    elif (version := _version(origin.beside.version)) is not None:
        placement = "loss-with-ratio" if version >= (1, 16) else "loss"
    elif not old:
        notes.append("version of TRL not known: k3 stands as a plain loss; since 1.16 it is multiplied by the ratio")
    if not (told or old or _loss_is_kl(kl[0].values, raw)):
        placement = "unknown"
        notes.append("taken for TRL's GRPO; RLOO writes the same keys: say which with trainer='trl-grpo' or 'trl-rloo'")
    return [replace(c, spec=replace(c.spec, placement=placement)) for c in kl]


def _version(text: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return None if match is None else (int(match[1]), int(match[2]))


def _loss_is_kl(kl: Array, raw: Mapping[str, Array]) -> bool:
    """Whether the loss moves in proportion to the KL, as GRPO's does on-policy and RLOO's never."""
    loss = raw.get("loss", raw.get("train/loss"))
    if loss is None:
        return False
    both = np.isfinite(kl) & np.isfinite(loss) & (kl > 0)
    if both.sum() < 4:
        return False
    x, y = kl[both], loss[both]
    slope = float(x @ y / (x @ x))
    total = float(np.square(y - y.mean()).sum())
    return slope > 0 and total > 0 and float(np.square(y - slope * x).sum()) < 0.1 * total


# ------------------------------------------------------------------------------------------------------------ tables


def _plain_table(rows: Rows, raw: Mapping[str, Array]) -> str | None:
    """Whether a table that no trainer wrote has names anyone would understand, and a row per step."""
    if rows.numbered or not any(key in raw for key in STEP_KEYS):
        return None
    if not any(name in raw for key in ("reward", "kl") for name in _TABLE[key]):
        return None
    step = np.array(rows.steps, dtype=np.float64)
    again = 1 - np.unique(step).size / max(1, step.size)
    return None if again > _AGAIN and step.size > 2 else "table"


def _table(raw: Mapping[str, Array], origin: Origin, notes: list[str]) -> dict[str, Any]:
    mapping = dict(origin.mapping or {})
    parts = {name: key for name, key in mapping.items() if name.startswith("component:")}
    for name in mapping:
        if name not in parts:
            _checks.choice(name, FIELDS, name="mapping")

    def column(name: str) -> tuple[str, Array] | None:
        if name in mapping:
            return mapping[name], _column(raw, mapping[name], origin.path)
        key = next((key for key in _TABLE.get(name, ()) if key in raw and key not in mapping.values()), None)
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


# -------------------------------------------------------------------------------------------------------------- gold


def with_gold(logs: Sequence[RunLog], gold: str) -> list[RunLog]:
    """The logs with the column a caller calls gold; those that have no such column keep what they have.

    Raises
    ------
    MissingColumnError
        No log has it.
    """
    out, found = [], False
    for log in logs:
        known = names(log.raw)
        keys = (gold, f"rewards/{gold}/mean", f"rewards/{gold}", f"objective/{gold}_reward")
        values = log.components.get(gold)
        if values is None:
            values = next((log.raw[known[key]] for key in keys if key in known), None)
        if values is None:
            values = next((log.raw[key] for key in keys if key in log.raw), None)
        found = found or values is not None
        out.append(log if values is None else replace(log, gold=values))
    if not found:
        columns = sorted({key for log in logs for key in (*log.components, *log.raw)})
        text = _checks.message("gold", expected="a column of the log", got=repr(gold), fix=_nearest(gold, columns))
        raise MissingColumnError(text, path=logs[0].path if logs else None)
    return out


def _nearest(word: str, columns: list[str]) -> str:
    hint = _checks.nearest(word, columns[:30])
    return hint + (", ..." if hint.startswith("known") and len(columns) > 30 else "")


def unrecognised(path: Path, rows: Sequence[Rows]) -> DataError:
    """The error for rows whose keys belong to no trainer."""
    keys = list(dict.fromkeys(key for r in rows for key in r.columns))
    shown = ", ".join(keys[:6]) + (", ..." if len(keys) > 6 else "")
    return DataError(
        _checks.message(
            "training log",
            expected="keys of a trainer (TRL, verl, OpenRLHF, NeMo-RL, slime, open-instruct, trlX) or a row per step "
            "with step and reward or kl",
            got=f"keys {shown}",
            fix="rename columns to step, reward, kl, gold, or map them (columns in --config)",
        ),
        path=path,
    )
