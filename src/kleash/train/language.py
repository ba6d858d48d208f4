"""The configuration of a sweep over a language model of one's own: model, judge, gold, prompts. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import util
from pathlib import Path
from typing import Annotated, Any, Literal

from kleash import _checks
from kleash.config import Within, as_path, as_text, fill
from kleash.errors import ConfigError, MissingFileError, OptionError
from kleash.rows import opened
from kleash.rows.cells import text
from kleash.train.judges import JudgeSource
from kleash.train.options import Dial, Training

__all__ = ["LanguageConfig", "ModelSource", "PromptSource", "model_file", "read_prompts"]


def model_file(spec: str, *, name: str = "model", folder: Path | None = None) -> Path:
    """A GGUF file: a path, or ``package:file.gguf`` for one that an installed package brings, as it lies on disk.

    The package is looked for and not imported; a ConfigError without it, a MissingFileError where it has no such file.
    """
    package, colon, file = spec.partition(":")
    if not colon or not package.isidentifier():
        return as_path(spec, name, folder or Path())
    found = util.find_spec(package)
    if found is None:
        fix = f"pip install {package.replace('_', '-')}"
        raise ConfigError(_checks.message(name, expected=f"the package {package}", got="none", fix=fix))
    places = [Path(place) / file for place in found.submodule_search_locations or ()]
    there = next((path for path in places if path.exists()), None)
    if there is None:
        raise MissingFileError(_checks.message(name, expected=f"{file} in {package}", got="nothing there"))
    return there


def _gguf(value: Any, name: str, folder: Path) -> Path:
    return model_file(as_text(value, name), name=name, folder=folder)


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """The model: a folder of transformers (``path``) or a GGUF file (:func:`model_file`), where it runs, how exactly.

    ``device`` is ``auto`` (a GPU where there is one), ``cpu``, ``cuda``, ``cuda:1`` or ``mps``; ``dtype`` ``auto`` is
    bfloat16 on a GPU, float32 elsewhere; ``chat``: whether prompts are put through the tokenizer's chat template
    (default: if it has one).
    """

    path: Path | None = None
    gguf: Annotated[Path | None, _gguf] = None
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    chat: bool | None = None


@dataclass(frozen=True, kw_only=True)
class PromptSource:
    """Prompts: a file with one row each (CSV, JSONL, JSON, Parquet), and those that are held out to measure gold on.

    ``column`` names the prompt's column, further columns go to the judge; ``held_out`` is a share of the rows (the
    last ones) or a file of its own.
    """

    file: Path
    column: str = "prompt"
    held_out: Annotated[float, Within(at_least=0, at_most=0.9)] | Path = 0.25


@dataclass(frozen=True, kw_only=True)
class _File(Dial):
    """The file as it stands: the dial on top, and a table for each of the rest."""

    model: ModelSource
    judge: JudgeSource
    prompts: PromptSource
    gold: JudgeSource | None = None
    training: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """What a sweep over a language model is asked to do: the tables of its file, of which ``gold`` may be missing.

    ``training`` also has what stands above all tables (beta, seeds, seed, steps, samples); ``folder`` is where relative
    paths and modules are looked for.

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
    training: Training = field(default_factory=Training)
    folder: Path = Path()

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], *, folder: Path | None = None) -> LanguageConfig:
        """From plain data, as by :func:`kleash.config.fill`; relative paths begin at ``folder``."""
        folder = folder or Path()
        file = fill(_File, content, folder=folder)
        if (file.model.path is None) == (file.model.gguf is None):
            got = "neither" if file.model.path is None else "both"
            raise ConfigError(_checks.message("model", expected="path or gguf", got=got))
        dial = {each.name: getattr(file, each.name) for each in fields(Dial)}
        training = fill(Training, file.training, name="training", given=dial)
        return cls(
            model=file.model, judge=file.judge, prompts=file.prompts, gold=file.gold, training=training, folder=folder
        )


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
    with opened(path) as source:
        for line, row in source.rows():
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
