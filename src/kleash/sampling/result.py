"""What came of sampling: a row per answer, what it cost, and what to do next."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash import _checks, _files
from kleash.errors import OptionError
from kleash.rows import opened
from kleash.sampling.journal import Journal
from kleash.sampling.prompts import Prompt
from kleash.sampling.scoring import Scorer

if TYPE_CHECKING:
    import polars as pl

__all__ = ["REFERENCE", "Sampled", "as_text", "checked_path", "read_frame", "samples_frame", "write_samples"]

REFERENCE = "reference"
"""The ``source`` of answers that the reference drew."""
_KINDS = {".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampled:
    """Scored samples.

    Parameters
    ----------
    frame
        A row per answer, in the order of prompts and draws; :data:`kleash.sampling.scoring.COLUMNS` and a column per
        judge. ``logp`` and ``ref_logp`` are lists, a number a token; ``log_ratio`` is the sum of their differences.
    out
        The file it was written to.
    drawn, tokens
        Answers and their tokens that this call drew; the others were there already.
    prompt_tokens
        Tokens of the prompts of these answers, where they are known.
    seconds
        How long it took.
    sampling
        What is known of how answers were drawn, in words.
    inputs
        ``{"path", "sha256", "rows"}`` of the prompts.
    """

    frame: pl.DataFrame
    out: Path | None
    drawn: int
    tokens: int
    prompt_tokens: int | None
    seconds: float
    sampling: str
    inputs: tuple[Mapping[str, Any], ...] = ()

    def to_frame(self) -> pl.DataFrame:
        """The samples."""
        return self.frame

    def cost(self) -> str:
        """What it cost, and the next command: one line."""
        prompts = self.frame["prompt_id"].n_unique()
        told = f"{self.frame.height:,} answers to {prompts:,} {'prompt' if prompts == 1 else 'prompts'}"
        if self.drawn < self.frame.height:
            told += f", {self.drawn:,} of them drawn now"
        if self.drawn:
            asked = "" if self.prompt_tokens is None else f" and {self.prompt_tokens:,} of prompts"
            rate = self.tokens / max(self.seconds, 1e-9)
            told += f": {self.tokens:,} tokens{asked} in {_duration(self.seconds)} ({rate:,.0f} tokens/s)"
        told += f"; {self.sampling}"
        return told if self.out is None else f"{told}. Next: kleash forecast {shlex.quote(str(self.out))}"

    def __str__(self) -> str:
        return self.cost()


def samples_frame(
    prompts: Sequence[Prompt], journal: Journal, *, k: int, judges: Sequence[Scorer], gold: Scorer | None, source: str
) -> pl.DataFrame:
    """The samples of a journal in which nothing is missing.

    Parameters
    ----------
    prompts, k
        Which answers: the first ``k`` draws of each prompt.
    journal
        Answers and scores.
    judges, gold
        Whose scores.
    source
        Who drew them.

    Returns
    -------
    polars.DataFrame
        ``gold``, ``logp``, ``ref_logp`` are missing where nothing is known of them.
    """
    import polars as pl

    rows = []
    for prompt in prompts:
        for draw in range(k):
            answer = journal.answers[prompt.key, draw]
            scores = {judge.name: journal.scores[judge.key, prompt.key, draw] for judge in judges}
            reward = float(np.dot([judge.weight for judge in judges], list(scores.values())))
            row: dict[str, Any] = {"prompt_id": prompt.id, "prompt": prompt.text, "draw": draw, "answer": answer.text}
            row |= {"reward": reward} | scores
            row["gold"] = None if gold is None else journal.scores[gold.key, prompt.key, draw]
            row |= {"logp": answer.logp, "ref_logp": answer.ref_logp, "n_tokens": answer.n_tokens}
            row |= {
                "finished": answer.finished,
                "source": source,
                "log_ratio": _log_ratio(answer.logp, answer.ref_logp),
            }
            rows.append(row)
    schema: dict[str, Any] = {
        "logp": pl.List(pl.Float64),
        "ref_logp": pl.List(pl.Float64),
        "gold": pl.Float64,
        "n_tokens": pl.Int64,
    }
    frame = pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None)
    optional = [name for name in schema if frame[name].null_count() == frame.height]
    return frame.drop(optional)


def _log_ratio(logp: Sequence[float] | None, ref_logp: Sequence[float] | None) -> float:
    """Log policy - log reference of the answer in nats, 0 where the reference drew it."""
    return 0.0 if logp is None or ref_logp is None else float(np.sum(np.subtract(logp, ref_logp)))


def checked_path(path: Path) -> Path:
    """The path, if its ending is one of a kind of file that can be written."""
    if path.suffix.lower() not in _KINDS:
        fix = f"write to {path.with_suffix('.parquet').name}"
        raise OptionError(_checks.message("out", expected=".parquet or .jsonl", got=repr(path.name), fix=fix))
    return path


def read_frame(path: Path) -> pl.DataFrame:
    """Samples as they were written.

    Raises
    ------
    MissingFileError, DataError
        There are none, or they are another's.
    """
    import polars as pl

    with opened(path) as source:
        frame = pl.DataFrame([row for _, row in source.rows()], infer_schema_length=None)
        missing = [name for name in ("prompt_id", "draw", "reward", "answer", "n_tokens") if name not in frame.columns]
        if missing:
            expected = f"samples of kleash sample with {', '.join(missing)}"
            raise source.error(_checks.message("columns", expected=expected, got=", ".join(frame.columns)))
    return frame


def write_samples(frame: pl.DataFrame, path: Path) -> None:
    """Write samples as their name's ending says, whole or not at all."""
    if _KINDS[path.suffix.lower()] == "jsonl":
        _files.write_atomic(path, as_text(frame))
        return
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    _files.write_atomic(path, buffer.getvalue())


def as_text(frame: pl.DataFrame) -> str:
    """Samples as JSONL."""
    return "".join(_files.dump_json(row) + "\n" for row in frame.iter_rows(named=True))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
