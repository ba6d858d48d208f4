"""Reference samples: answers drawn from the reference, each with the judge's score, grouped by prompt."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from kleash._checks import message, short
from kleash.errors import DataError, OptionError, ShapeError
from kleash.rows import opened
from kleash.rows.cells import encodes, label, text
from kleash.samples._columns import FLAGS, Wanted, reward_specs
from kleash.samples._faults import fault, first_fault
from kleash.samples._first_steps import nothing_left, sampling_note
from kleash.samples._table import Table, read_table

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import ArrayLike, NDArray

__all__ = ["Samples", "read_samples"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Scored answers of the reference in prompt order; N answers to P prompts, at least two to each.

    Prompts stand in the order in which they first appeared, answers of a prompt in the order in which they came.
    Arrays are read-only. Make one with `from_arrays` or `read_samples`: they check what the fields promise.

    Parameters
    ----------
    reward
        Judge's score of each answer, float64 of shape (N,), finite, in reward units.
    gold
        True quality, float64 of shape (N,), NaN where an answer is not labelled; None without a gold column.
    offsets
        int64 of shape (P + 1,): the answers of prompt ``p`` are ``offsets[p]:offsets[p + 1]``.
    prompts
        Label of each prompt, P texts.
    answers
        Answer texts, a polars String Series of length N (null where there is none); None if there is no such column.
    label_probability
        Probability with which each answer was chosen for labelling, float64 of shape (N,), in (0, 1], NaN where it
        is unknown (never on a labelled answer); None if labels are random.
    notes
        What was done to the data, a sentence each.
    inputs
        ``{"path", "sha256", "rows"}`` of each file read.

    Examples
    --------
    >>> samples = Samples.from_arrays(["soup", "stew", "soup", "stew"], [1.0, 0.5, 3.0, 2.0], gold=[1, 0, None, 1])
    >>> samples.prompts, samples.offsets.tolist(), samples.reward.tolist()
    (('soup', 'stew'), [0, 2, 4], [1.0, 3.0, 0.5, 2.0])
    >>> samples.n_gold
    3
    """

    reward: NDArray[np.float64]
    gold: NDArray[np.float64] | None = None
    offsets: NDArray[np.int64]
    prompts: tuple[str, ...]
    answers: pl.Series | None = None
    label_probability: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()
    inputs: tuple[dict[str, Any], ...] = ()

    @property
    def n_prompts(self) -> int:
        """P, the number of prompts."""
        return len(self.prompts)

    @property
    def n_samples(self) -> int:
        """N, the number of answers."""
        return int(self.reward.size)

    @property
    def n_gold(self) -> int:
        """How many answers are labelled."""
        return 0 if self.gold is None else int(np.count_nonzero(~np.isnan(self.gold)))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Answers per prompt, int64 of shape (P,)."""
        return np.diff(self.offsets)

    def to_frame(self) -> pl.DataFrame:
        """A row per answer: ``prompt``, ``reward``, and ``gold``, ``answer``, ``label_probability`` where present.

        What is not labelled is null.
        """
        import polars as pl

        columns: dict[str, Any] = {
            "prompt": pl.Series(self.prompts, dtype=pl.String).gather(
                np.repeat(np.arange(self.n_prompts), self.counts)
            ),
            "reward": pl.Series(self.reward),
        }
        for name, values in (("gold", self.gold), ("label_probability", self.label_probability)):
            if values is not None:
                columns[name] = pl.Series(values).fill_nan(None)
        if self.answers is not None:
            columns["answer"] = self.answers
        return pl.DataFrame(columns)

    @classmethod
    def from_arrays(
        cls,
        prompt: Iterable[Any],
        reward: ArrayLike,
        *,
        gold: ArrayLike | None = None,
        answer: Iterable[str | None] | None = None,
        label_probability: ArrayLike | None = None,
    ) -> Samples:
        """Group samples that are already in memory.

        Use it where the samples come from own code; `read_samples` reads files and says on which line an error is.

        Parameters
        ----------
        prompt
            What tells the prompts apart, N labels: texts, numbers (1, 1.0 and "1" are one prompt) or lists of chat
            messages. Rows of a prompt may be scattered.
        reward
            Judge's score, N finite numbers.
        gold
            True quality, N numbers, NaN or None where not labelled.
        answer
            N texts or None.
        label_probability
            Probability of having been chosen for labelling, N numbers in (0, 1]; NaN or None only where ``gold`` is.

        Returns
        -------
        Samples

        Raises
        ------
        ShapeError
            The arrays differ in length or are not one-dimensional.
        DataError
            A reward that is not finite, an infinite gold, a probability outside (0, 1] or missing on a labelled
            answer, or no prompt with two answers.

        Examples
        --------
        >>> Samples.from_arrays([7, 7, 8], [0.0, 1.0, 0.5]).notes
        ('1 prompt with a single sample was left out (8)',)
        """
        keys = [label(value) for value in (prompt.tolist() if isinstance(prompt, np.ndarray) else prompt)]
        n = len(keys)
        if None in keys:
            raise DataError(f"prompt[{keys.index(None)}] is missing; drop the answer or name its prompt")
        texts = None if answer is None else [text(value) for value in answer]
        if texts is not None and len(texts) != n:
            raise ShapeError(message("answer", expected=f"{n} as in prompt", got=f"{len(texts)}"))
        for role, values in (("prompt", keys), ("answer", texts or [])):
            at = next((i for i, value in enumerate(values) if not encodes(value or "")), None)
            if at is not None:
                raise DataError(message(f"{role}[{at}]", expected="Unicode text", got="half a surrogate pair"))
        rewards = _array("reward", reward, n)
        golds = None if gold is None else _array("gold", gold, n)
        probabilities = None if label_probability is None else _array("label_probability", label_probability, n)
        found = first_fault(rewards, golds, probabilities)
        if found is not None:
            role, at, value = found
            raise DataError(fault(f"{role}[{at}]", role, value))
        answers = None
        if texts is not None:
            import polars as pl

            answers = pl.Series("answer", texts, dtype=pl.String)
        labels: dict[str | None, int] = {}
        codes = np.array([labels.setdefault(key, len(labels)) for key in keys], dtype=np.int64)
        return _grouped(codes, list(map(str, labels)), rewards, golds, probabilities, answers, notes=[], inputs=())


def read_samples(
    paths: str | Path | Sequence[str | Path],
    *,
    prompt_column: str | None = None,
    reward_columns: str | Sequence[str | tuple[str, float]] | None = None,
    gold_column: str | None = None,
    answer_column: str | None = None,
    label_probability_column: str | None = None,
    keep_answers: bool = True,
    stdin: BinaryIO | None = None,
) -> Samples:
    """Read scored samples of the reference from CSV, JSONL, JSON or Parquet files, checked to the last row.

    One row is one answer. A row whose reward is a list is several answers to one prompt: its lists are unrolled,
    its other cells repeated. The content decides what a file is, the extension only in doubt. Rows of one prompt
    may be scattered over rows and files.

    What a trainer wrote while it trained is known by its columns: TRL's completions (Parquet; ``step``, ``prompt``,
    ``completion``, ``advantage``, a column per reward function) and verl's rollouts (JSONL; ``step``, ``input``,
    ``output``, ``score``). Of these only the answers of the first step are read, which the reference drew.

    Parameters
    ----------
    paths
        Files: .csv, .jsonl, .json (one array), .parquet, each also as .gz; ``-`` is standard input.
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
    tables: list[Table] = []
    for name in names:
        with opened(name, stdin=stdin) as source:
            twin = next((t.source.shown for t in tables if t.source.sha256 == source.sha256), None)
            if twin is not None:
                got = f"the content of {twin} again"
                raise OptionError(message(source.shown, expected="other samples", got=got, fix="name each file once"))
            tables.append(read_table(source, wanted, labels))
    if not any(table.size for table in tables):
        late = next((t for t in tables if t.roles.kind is not None and t.dropped), None)
        if late is not None and late.roles.kind is not None:
            raise nothing_left(late.roles.kind, late.source)
    return _merged(tables, list(labels))


def _array(name: str, values: ArrayLike, n: int) -> NDArray[np.float64]:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(message(name, expected="numbers", got=short(str(error)))) from error
    if array.shape != (n,):
        raise ShapeError(message(name, expected=f"shape ({n},) as prompt", got=f"{array.shape}"))
    return array


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
        notes.append(f"{_plural(unrolled, 'row')} with lists {_were(unrolled)} unrolled into {_plural(into, 'sample')}")
    if empty := sum(table.empty for table in tables):
        notes.append(f"{_plural(empty, 'row')} with empty lists had no samples")
    notes += _of_trainers(tables)
    prompts = dict.fromkeys(table.roles.prompt for table in tables)
    if len(prompts) > 1:
        notes.append("files tell prompts apart by different columns: " + ", ".join(prompts))
    return _grouped(
        np.concatenate([part for table in tables for part in table.codes]),
        labels,
        np.concatenate([part for table in tables for part in table.reward]),
        gold,
        probability,
        answers,
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
            left = f"{_plural(table.dropped, 'row')} of later steps {_were(table.dropped)} left out"
            told[f"{table.source.shown}: {left}: the policy was no longer the reference"] = None
        if table.size:
            told[sampling_note(kind, table.source)] = None
    return list(told)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _grouped(
    codes: NDArray[np.int64],
    labels: list[str],
    reward: NDArray[np.float64],
    gold: NDArray[np.float64] | None,
    probability: NDArray[np.float64] | None,
    answers: pl.Series | None,
    *,
    notes: list[str],
    inputs: tuple[dict[str, Any], ...],
) -> Samples:
    """Samples in prompt order; prompts with one sample left out."""
    counts = np.bincount(codes, minlength=len(labels))
    single = np.flatnonzero(counts == 1)
    if not (counts > 1).any():
        got = f"{_plural(len(single), 'prompt')} with a single answer" if len(single) else "no samples"
        fix = f"sample more answers per prompt, or check {FLAGS['prompt']}"
        text = "a forecast needs at least two answers to the same prompt"
        path = ", ".join("stdin" if item["path"] == "-" else item["path"] for item in inputs) or None
        raise DataError(f"{text}: got {got}; {fix}", path=path)
    if len(single):
        shown = ", ".join(short(labels[code]) for code in single[:3]) + (", ..." if len(single) > 3 else "")
        noted = f"{_plural(len(single), 'prompt')} with a single sample {_were(len(single))} left out ({shown})"
        notes = [*notes, noted]
    if probability is not None and gold is None:
        notes = [*notes, "label_probability is not used: there is no gold"]
        probability = None
    order = np.argsort(codes, kind="stable")
    order = order[counts[codes[order]] > 1]
    kept = np.flatnonzero(counts > 1)

    def arranged(values: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        if values is None:
            return None
        values = values[order]
        values.setflags(write=False)
        return values

    offsets = np.concatenate([[0], np.cumsum(counts[kept])]).astype(np.int64)
    offsets.setflags(write=False)
    rewards = arranged(reward)
    assert rewards is not None
    return Samples(
        reward=rewards,
        gold=arranged(gold),
        offsets=offsets,
        prompts=tuple(labels[code] for code in kept),
        answers=None if answers is None else answers.gather(order),
        label_probability=arranged(probability),
        notes=tuple(notes),
        inputs=inputs,
    )
