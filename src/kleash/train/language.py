"""The TOML file of a sweep over a language model of one's own: model, judge, gold, prompts. Needs no torch to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from kleash import _checks
from kleash.errors import ConfigError, MissingFileError, OptionError
from kleash.samples import _rows
from kleash.samples._cells import text
from kleash.train.judges import JudgeSource

__all__ = ["LanguageConfig", "ModelSource", "PromptSource", "TrainingOptions", "read_prompts"]

_DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """The model: a folder of transformers or a GGUF file, where it runs and in which precision.

    Parameters
    ----------
    path
        A folder that transformers reads.
    gguf
        A GGUF file, or ``package:file`` for one that an installed package brings.
    device
        ``auto`` (a GPU where there is one), ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
    dtype
        ``auto``: bfloat16 on a GPU, float32 elsewhere.
    chat
        Whether prompts are put through the tokenizer's chat template; default: if it has one.
    """

    path: Path | None = None
    gguf: Path | None = None
    device: str = "auto"
    dtype: str = "auto"
    chat: bool | None = None


@dataclass(frozen=True, kw_only=True)
class PromptSource:
    """Prompts: a file with one row each (CSV, JSONL), and those that are held out to measure gold on.

    ``column`` names the prompt's column, further columns go to the judge; ``held_out`` is a share of the rows (the
    last ones) or a file of its own.
    """

    file: Path
    column: str = "prompt"
    held_out: float | Path = 0.25


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How it is trained; see :func:`kleash.train.lm.train_lm`. ``options`` are those of the objective."""

    objective: str = "rloo"
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 1
    clip: float = 0.2
    learning_rate: float = 1e-4
    schedule: str = "linear"
    prompts_per_step: int | None = None
    prompts_at_once: int | None = None
    max_new_tokens: int = 64
    temperature: float = 1.0
    rank: int = 16
    alpha: float | None = None
    targets: str | tuple[str, ...] = "all-linear"
    evaluate_every: int = 25
    final_samples: int = 16
    checkpoint_every: int = 25
    forecast_samples: int = 64


@dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """What a sweep over a language model is asked to do.

    Parameters
    ----------
    model, judge, gold, prompts, training
        The tables of the file; ``gold`` may be missing.
    beta, seeds, seed, steps, samples
        As in :func:`kleash.sweep`; ``samples`` are answers per prompt and step.
    folder
        Where relative paths and modules are looked for.

    Examples
    --------
    >>> LanguageConfig.from_dict({"model": {"path": "m"}, "judge": {"use": "length"}, "prompts": {"fle": "p"}})
    Traceback (most recent call last):
    kleash.errors.ConfigError: unknown key 'prompts.fle'; did you mean 'file'?
    """

    model: ModelSource
    judge: JudgeSource
    prompts: PromptSource
    gold: JudgeSource | None = None
    training: TrainingOptions = TrainingOptions()
    beta: tuple[float, ...] = (0.0, 0.03, 0.1, 0.3, 1.0)
    seeds: int = 2
    seed: int = 0
    steps: int = 200
    samples: int = 8
    folder: Path = Path()

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], *, folder: Path | None = None) -> LanguageConfig:
        """From plain data; relative paths begin at ``folder``.

        Raises
        ------
        ConfigError
            An unknown key, a missing table, or a value of the wrong kind.
        """
        folder = folder or Path()
        _known(content, [f.name for f in fields(cls) if f.name != "folder"], "")
        values: dict[str, Any] = {"folder": folder}
        for name, kind in (("model", ModelSource), ("judge", JudgeSource), ("prompts", PromptSource)):
            if name not in content:
                known = ", ".join(f.name for f in fields(kind))
                raise ConfigError(_checks.message(name, expected=f"a table [{name}] ({known})", got="none"))
            values[name] = _read_table(kind, content[name], name, folder)
        if "gold" in content:
            values["gold"] = _read_table(JudgeSource, content["gold"], "gold", folder)
        if "training" in content:
            values["training"] = _read_table(TrainingOptions, content["training"], "training", folder)
        if "beta" in content:
            beta = content["beta"] if isinstance(content["beta"], list) else [content["beta"]]
            values["beta"] = tuple(_checks.betas([_number(b, "beta") for b in beta], infinite=False).tolist())
        for name, least in (("seeds", 1), ("seed", 0), ("steps", 1), ("samples", 2)):
            if name in content:
                values[name] = _checks.integer(content[name], name=name, at_least=least)
        config = cls(**values)
        if (config.model.path is None) == (config.model.gguf is None):
            got = "neither" if config.model.path is None else "both"
            raise ConfigError(_checks.message("model", expected="path or gguf", got=got))
        return config


def read_prompts(source: PromptSource) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows to train on, rows that are held out, and the files that were read (path, sha256, rows).

    Each row has ``prompt`` and the file's further columns.
    """
    rows, inputs = _read_rows(source.file, source.column)
    if isinstance(source.held_out, Path):
        apart, more = _read_rows(source.held_out, source.column)
        return rows, apart, [inputs, more]
    size = round(source.held_out * len(rows))
    if size == len(rows):
        raise OptionError(_checks.message("prompts.held_out", expected="a share that leaves some", got=source.held_out))
    return rows[: len(rows) - size], rows[len(rows) - size :], [inputs]


def _read_rows(path: Path, column: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with _rows.opened(path) as source:
        if source.format == "parquet":
            raise source.error(_checks.message("prompts", expected="CSV or JSONL", got="Parquet"))
        for lines, rows in _rows.csv_chunks(source) if source.format == "csv" else _rows.jsonl_chunks(source):
            for line, row in zip(lines, rows, strict=True):
                if column not in row:
                    there = ", ".join(map(str, row)) or "none"
                    fix = _checks.nearest(column, list(row)) if row else ""
                    said = _checks.message("columns", expected=repr(column), got=there, fix=fix)
                    raise source.error(said, line)
                prompt = text(row[column])
                if not prompt:
                    raise source.error(_checks.message(f"column {column!r}", expected="a text", got="nothing"), line)
                rest = {name: value for name, value in row.items() if name not in (column, "prompts", "completions")}
                found.append({"prompt": prompt} | rest)
        if not found:
            raise source.error(_checks.message("prompts", expected="a row per prompt", got="no rows"))
        names = set(found[0])
        for number, row in enumerate(found):
            if set(row) != names:
                raise source.error(
                    _checks.message(f"row {number + 1}", expected=f"columns {sorted(names)}", got=sorted(row))
                )
        return found, {"path": source.name, "sha256": source.sha256, "rows": len(found)}


def _read_table(kind: Any, value: Any, name: str, folder: Path) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigError(_checks.message(name, expected="a table", got=repr(value)))
    _known(value, [f.name for f in fields(kind)], f"{name}.")
    read = {key: _value(kind, key, given, f"{name}.{key}", folder) for key, given in value.items()}
    missing = {JudgeSource: "use", PromptSource: "file"}.get(kind)
    if missing is not None and missing not in read:
        raise ConfigError(_checks.message(f"{name}.{missing}", expected="a text", got="none"))
    return kind(**read)


_PATHS = ("path", "file", "gguf")
_TEXTS = ("use", "column", "device", "objective", "schedule")
_WHOLE: Mapping[str, int] = {
    "epochs": 1,
    "prompts_per_step": 1,
    "prompts_at_once": 1,
    "max_new_tokens": 1,
    "rank": 1,
    "evaluate_every": 1,
    "final_samples": 2,
    "checkpoint_every": 1,
    "forecast_samples": 0,
}


def _value(kind: Any, key: str, value: Any, name: str, folder: Path) -> Any:
    """One value, checked by its key."""
    if key in _PATHS:
        return _path(value, name, folder)
    if key in _TEXTS:
        return _text(value, name)
    if key in _WHOLE:
        return _checks.integer(value, name=name, at_least=_WHOLE[key])
    if key == "dtype":
        return _checks.choice(_text(value, name), _DTYPES, name=name)
    if key == "chat":
        if not isinstance(value, bool):
            raise ConfigError(_checks.message(name, expected="true or false", got=repr(value)))
        return value
    if key == "held_out":
        if isinstance(value, str):
            return _path(value, name, folder)
        return _checks.number(_number(value, name), name=name, at_least=0.0, at_most=0.9)
    if key == "options":
        if not isinstance(value, Mapping):
            raise ConfigError(_checks.message(name, expected="a table", got=repr(value)))
        return dict(value)
    if key == "targets":
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        return _text(value, name)
    return _checks.number(_number(value, name), name=name, above=0.0)


def _path(value: Any, name: str, folder: Path) -> Path:
    given = _text(value, name)
    package, colon, file = given.partition(":")
    if name == "model.gguf" and colon and package.isidentifier():
        try:
            found = Path(str(resources.files(package) / file))
        except ModuleNotFoundError:
            fix = f"pip install {package.replace('_', '-')}"
            raise ConfigError(_checks.message(name, expected=f"the package {package}", got="none", fix=fix)) from None
        if not found.exists():
            raise MissingFileError(_checks.message(name, expected=f"{file} in {package}", got="nothing there"))
        return found
    return folder / Path(given).expanduser()


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(_checks.message(name, expected="a text", got=repr(value)))
    return value


def _number(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(_checks.message(name, expected="a number", got=repr(value)))
    return float(value)


def _known(content: Mapping[str, Any], names: list[str], prefix: str) -> None:
    for key in content:
        if key not in names:
            raise ConfigError(f"unknown key {prefix + key!r}; {_checks.nearest(key, names)}")
