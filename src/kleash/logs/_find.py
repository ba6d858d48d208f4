"""Which files under a path are logs? Finds them, reads each, and says of the others why not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kleash import _checks
from kleash.errors import DataError, MissingFileError
from kleash.logs._gold import with_gold
from kleash.logs._read import read_file
from kleash.logs._tensors import FOLDERS, read_dumps
from kleash.logs.stores import stored_runs
from kleash.logs.table import TRAINERS, RunLog

__all__ = ["Entry", "read_logs", "survey"]

_SUFFIXES = {
    ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".md", ".log", ".txt", ".out", ".err", ".stdout",
    ".wandb", ".swanlab", ".db", ".sqlite", ".sqlite3",
}  # fmt: skip
_PARTS = {"metrics", "params", "tags", "meta.yaml"}
_FINAL = 1 << 62
_NEVER = {"tokenizer.json", "tokenizer_config.json", "vocab.json", "special_tokens_map.json", "package-lock.json"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file of a folder, or a folder in it that is one run.

    Parameters
    ----------
    path
        Which.
    logs
        The runs in it; none: ``why``.
    why
        Why it gives no run, in one line.
    """

    path: Path
    logs: tuple[RunLog, ...] = ()
    why: str = ""


def read_logs(
    path: str | Path,
    *,
    trainer: str | None = None,
    mapping: Mapping[str, str] | None = None,
    gold: str | None = None,
) -> list[RunLog]:
    """The training runs in a file or folder, one `RunLog` each.

    Parameters
    ----------
    path
        A log, or a folder that holds some at any depth. Of a run's checkpoints the last one counts: it holds the
        history of those before.
    trainer
        Who wrote it, one of `TRAINERS`, if the keys alone leave it open. TRL's GRPO and RLOO write the same keys.
    mapping
        For a table no trainer wrote: ``{"reward": "column", ...}``. Names: ``step``, ``run``, ``reward``, ``gold``,
        ``coefficient``, ``length``, ``entropy``, ``loss``, ``policy_loss``, ``kl``, ``component:NAME``, and what the
        KL is: ``kl.unit``, ``kl.estimator``, ``kl.placement``, ``kl.against``.
    gold
        The column that holds the true quality: a key, a reward function (``accuracy`` finds
        ``rewards/accuracy_reward/mean``), or a part of one name only.

    Returns
    -------
    Runs in the order of files and of lines. Steps that go back start a new segment (a resume) of the same run; steps
    that start again at the first one start a new run, as does a new id in a ``run`` column.

    Raises
    ------
    MissingFileError
        Nothing is there.
    DataError
        Nothing in it is a training log, or the file is broken beyond its last line.
    MissingColumnError
        A mapped column or the gold column does not exist, or several may be meant.

    Notes
    -----
    Console text and JSONL are read line by line; memory grows with the number of metrics, not with the text.
    """
    if trainer is not None:
        _checks.choice(trainer, TRAINERS, name="trainer")
    target = Path(path)
    if not target.exists():
        raise MissingFileError(
            _checks.message(str(path), expected="a file or folder", got="nothing there", fix="check the path")
        )
    found = _runs(target, trainer, mapping) if target.is_dir() else read_file(target, trainer, mapping)
    return found if gold is None else with_gold(found, gold)


def _runs(folder: Path, trainer: str | None, mapping: Mapping[str, str] | None) -> list[RunLog]:
    entries = survey(folder, trainer=trainer, mapping=mapping)
    found = [log for entry in entries for log in entry.logs]
    if not found:
        kinds = "a training log (.json, .jsonl, .csv, .log, .txt, .out; also .gz; or what a tracker keeps)"
        got = f"none in {len(entries)} file{'s' * (len(entries) != 1)}"
        raise DataError(_checks.message("folder", expected=kinds, got=got, fix="name the file"), path=folder)
    return found


def survey(folder: Path, *, trainer: str | None = None, mapping: Mapping[str, str] | None = None) -> list[Entry]:
    """Every file of a folder, at any depth, with the runs in it or the reason why there is none.

    Parameters
    ----------
    folder
        Which; what is hidden in it is left out.
    trainer, mapping
        As for `read_logs`; a log of another trainer is read as what it is.

    Returns
    -------
    list of Entry
        In the order of names. The files of a run folder, as TensorBoard and mlflow keep them, are one entry.
    """
    entries = [_entry(path, why, trainer, mapping) for path, why in _files(folder)]
    dumps = sorted({p.parent for p in folder.rglob("*.pt") if p.parent.name in FOLDERS})
    if dumps and not any(entry.logs for entry in entries):
        entries.append(Entry(path=dumps[0], logs=tuple(read_dumps(dumps[0].parent))))
    return entries


def _entry(path: Path, why: str, trainer: str | None, mapping: Mapping[str, str] | None) -> Entry:
    """One file, read as the trainer that was named and then as whose it is: a folder may hold logs of others."""
    for who in dict.fromkeys((trainer, None)) if not why else ():
        try:
            return Entry(path=path, logs=tuple(read_file(path, who, mapping)))
        except DataError as error:
            why = str(error).removeprefix(f"{path}: ")
        except (OSError, RecursionError) as error:
            why = f"cannot be read: {error}"
    return Entry(path=path, why=why)


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files and run folders, each once, with the reason for which one is not read."""
    runs = stored_runs(folder)
    seen: set[Path] = set()
    latest = _checkpoints(folder)
    for path in sorted({*folder.rglob("*"), *runs}):
        below = path.relative_to(folder)
        if path in runs:
            yield path, ""
        if not path.is_file() or any(part.startswith(".") for part in below.parts) or _inside(path, runs):
            continue
        real = path.resolve()
        yield path, "the same file as another" if real in seen else _reason(path, latest)
        seen.add(real)


def _inside(path: Path, runs: Mapping[Path, object]) -> bool:
    """Whether a file is part of a run folder."""
    if "tfevents" in path.name and path.parent in runs:
        return True
    return any(parent in runs and path.relative_to(parent).parts[0] in _PARTS for parent in path.parents)


def _reason(path: Path, latest: Mapping[Path, Path]) -> str:
    name = path.name.lower()
    if name in _NEVER:
        return "part of a tokenizer"
    if Path(name.removesuffix(".gz")).suffix not in _SUFFIXES and "tfevents" not in name:
        return "no ending of a log"
    if name == "trainer_state.json" and latest.get(_home(path), path) != path:
        return "an earlier checkpoint of a run that is read"
    return ""


def _home(state: Path) -> Path:
    """The folder of the run whose state this is."""
    return state.parent.parent if _count(state) < _FINAL else state.parent


def _count(state: Path) -> int:
    found = re.fullmatch(r"checkpoint-(\d+)", state.parent.name)
    return _FINAL if found is None else int(found[1])


def _checkpoints(folder: Path) -> dict[Path, Path]:
    """The latest state of each run: it holds the history of those before."""
    latest: dict[Path, Path] = {}
    for state in sorted(folder.rglob("trainer_state.json"), key=_count):
        latest[_home(state)] = state
    return latest
