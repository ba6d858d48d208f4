"""Reference samples: answers drawn from the reference, each with the judge's score, grouped by prompt."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from kleash._checks import message
from kleash.errors import OptionError
from kleash.rows import opened
from kleash.samples._clusters import add_clusters, numbered
from kleash.samples._columns import Wanted, reward_specs
from kleash.samples._first_steps import nothing_left, sampling_note
from kleash.samples._runs import DIAL, ROLLOUTS, SAMPLES, SCORED, answers_in, with_scored
from kleash.samples._samples import Samples, grouped, plural, were
from kleash.samples._sources import REFERENCE, Sources, merged_sources
from kleash.samples._table import Table, read_table

__all__ = ["DIAL", "REFERENCE", "ROLLOUTS", "SAMPLES", "SCORED", "Samples", "Sources", "read_samples"]


def read_samples(
    paths: str | Path | Sequence[str | Path],
    *,
    prompt_column: str | None = None,
    reward_columns: str | Sequence[str | tuple[str, float]] | None = None,
    gold_column: str | None = None,
    answer_column: str | None = None,
    label_probability_column: str | None = None,
    cluster_column: str | None = None,
    keep_answers: bool = True,
    stdin: BinaryIO | None = None,
) -> Samples:
    """Read scored samples of the reference from CSV, JSONL, JSON or Parquet files, checked to the last row.

    One row is one answer. A row whose reward is a list is several answers to one prompt: its lists are unrolled,
    its other cells repeated. The content decides what a file is, the extension only in doubt. Rows of one prompt
    may be scattered over rows and files.

    What a trainer wrote while it trained is known by its columns: TRL's completions (Parquet; ``step``, ``prompt``,
    ``completion``, ``advantage``, a column per reward function) and verl's rollouts (JSONL; ``step``, ``input``,
    ``output``, ``score``). Of these only the answers of the first step are read, which the reference drew. A run folder
    of kleash (of the callback, or of a sweep of language models) stands for the answers that it keeps.

    Parameters
    ----------
    paths
        Files: .csv, .jsonl, .json (one array), .parquet, each also as .gz; ``-`` is standard input. Or run folders.
    prompt_column
        What tells the prompts apart; default ``prompt_id``, else ``prompt``. Texts are taken as they are; a whole
        number is its digits, so 1, 1.0 and "1" are one prompt; chat messages are their JSON with sorted keys.
    reward_columns
        Judge's score; default ``reward``. ``"name"``, ``"name:weight"`` or ``(name, weight)``; of several, the
        weighted sum.
    gold_column
        True quality; default ``gold`` if there is one. true and false are 1 and 0; empty, null and NaN are "not
        labelled".
    answer_column
        Answer texts; default the first of ``answer``, ``completion``, ``response``, if there is one.
    label_probability_column
        Probability with which an answer was chosen for labelling; default ``label_probability`` if there is one.
    cluster_column
        Groups of prompts that share something (a document, a user, a template), the same on all rows of a prompt;
        default: prompts were drawn one by one.
    keep_answers
        False leaves the answer texts in the file, to save memory.
    stdin
        Binary stream to read for ``-``; default the process's own.

    Returns
    -------
    Samples
        Prompts with a single answer are left out, with a note.

    Raises
    ------
    MissingFileError, MissingColumnError
        With the nearest name there is.
    DataError
        Anything in the data that cannot be used, with file and line (Parquet: row).
    OptionError
        A file or a column named twice, a weight that is not a finite number.

    Notes
    -----
    Memory is that of the numbers, the distinct prompts and the answers kept, plus one batch of rows; a million rows
    without answers take about 100 MB beyond the libraries. Files that are not regular (quotes inside unquoted
    fields, blank lines) are read row by row, some times slower.

    Examples
    --------
    >>> import io
    >>> rows = b'{"prompt": "soup", "reward": [1, 3], "gold": [true, null]}'
    >>> samples = read_samples("-", stdin=io.BytesIO(rows))
    >>> samples.reward.tolist(), samples.gold.tolist(), samples.notes
    ([1.0, 3.0], [1.0, nan], ('1 row with lists was unrolled into 2 samples',))
    """
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not names:
        raise OptionError(message("samples", expected="at least one file", got="none"))
    wanted = Wanted(
        prompt=prompt_column,
        rewards=reward_specs(reward_columns),
        gold=gold_column,
        answer=answer_column,
        label_probability=label_probability_column,
        keep_answers=keep_answers,
    )
    labels: dict[str, int] = {}
    clusters: dict[str, str] = {}
    tables: list[Table] = []
    for name in map(answers_in, names):
        with opened(name, stdin=stdin) as source:
            twin = next((t.source.shown for t in tables if t.source.sha256 == source.sha256), None)
            if twin is not None:
                got = f"the content of {twin} again"
                raise OptionError(message(source.shown, expected="other samples", got=got, fix="name each file once"))
            tables.append(read_table(source, wanted, labels))
            tables[-1].sources = with_scored(tables[-1].sources, name)
            if cluster_column is not None:
                add_clusters(source, tables[-1].roles.prompt, cluster_column, clusters)
    if not any(table.size for table in tables):
        late = next((t for t in tables if t.roles.kind is not None and t.dropped), None)
        if late is not None and late.roles.kind is not None:
            raise nothing_left(late.roles.kind, late.source)
    samples = _merged(tables, list(labels))
    if cluster_column is None:
        return samples
    return replace(samples, clusters=numbered(samples.prompts, clusters))


def _merged(tables: Sequence[Table], labels: list[str]) -> Samples:
    """Samples of several files as one; what a file does not have is missing on its answers."""
    import polars as pl

    gold = probability = answers = None
    if any(table.roles.gold is not None for table in tables):
        gold = np.concatenate([part for t in tables for part in t.gold or [np.full(t.size, np.nan)]])
    if any(table.roles.probability is not None for table in tables):
        probability = np.concatenate([part for t in tables for part in t.probability or [np.full(t.size, np.nan)]])
        for table in tables:
            if table.roles.probability is None and any(not np.isnan(part).all() for part in table.gold):
                got = "labelled answers without it, while another file has it"
                raise table.source.error(message("label_probability column", expected="in every file", got=got))
    if any(table.roles.answer is not None for table in tables):
        parts = [part for t in tables for part in t.answers or [pl.Series("answer", [None] * t.size, dtype=pl.String)]]
        answers = pl.concat(parts)
    notes = []
    rewards = tables[0].roles.rewards
    if len(rewards) > 1 or rewards[0][1] != 1.0:
        notes.append("reward is " + " + ".join(f"{weight:g} x {name}" for name, weight in rewards))
    if unrolled := sum(table.unrolled for table in tables):
        into = sum(table.unrolled_to for table in tables)
        notes.append(f"{plural(unrolled, 'row')} with lists {were(unrolled)} unrolled into {plural(into, 'sample')}")
    if empty := sum(table.empty for table in tables):
        notes.append(f"{plural(empty, 'row')} with empty lists had no samples")
    notes += _of_trainers(tables)
    prompts = dict.fromkeys(table.roles.prompt for table in tables)
    if len(prompts) > 1:
        notes.append("files tell prompts apart by different columns: " + ", ".join(prompts))
    return grouped(
        np.concatenate([part for table in tables for part in table.codes]),
        labels,
        np.concatenate([part for table in tables for part in table.reward]),
        gold,
        probability,
        answers,
        sources=merged_sources([(table.sources, table.size, table.source.shown) for table in tables]),
        notes=notes,
        inputs=tuple({"path": t.source.name, "sha256": t.source.sha256, "rows": t.rows} for t in tables),
    )


def _of_trainers(tables: Sequence[Table]) -> list[str]:
    """What to know of files that a trainer wrote: rows left out, and how answers were sampled, each sentence once."""
    told: dict[str, None] = {}
    for table in tables:
        kind = table.roles.kind
        if kind is None:
            continue
        if table.dropped:
            left = f"{plural(table.dropped, 'row')} of later steps {were(table.dropped)} left out"
            told[f"{table.source.shown}: {left}: the policy was no longer the reference"] = None
        if table.size:
            told[sampling_note(kind, table.source)] = None
    return list(told)
