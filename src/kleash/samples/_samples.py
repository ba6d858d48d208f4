"""Samples in memory, grouped by prompt."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash import _files
from kleash._checks import message, short
from kleash.errors import DataError, ShapeError
from kleash.rows.cells import encodes, label, text
from kleash.samples._columns import FLAGS
from kleash.samples._faults import fault, first_fault
from kleash.samples._sources import SourceError, Sources, sources_of

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import ArrayLike, NDArray

__all__ = ["Samples", "grouped", "plural", "were"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Scored answers, of the reference or of known policies, in prompt order; N answers to P prompts, two or more each.

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
    sources
        Who drew each answer, and how much likelier each source makes it than the reference does; None: the reference
        drew them all.
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
    sources: Sources | None = None
    clusters: NDArray[np.int64] | None = None
    """Which group each prompt belongs to, shape (P,); None if prompts were drawn one by one."""
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

    def keeping(self, keep: NDArray[np.bool_]) -> Samples:
        """The answers to be kept; prompts that are left with a single one go too.

        Parameters
        ----------
        keep
            Shape (N,).

        Returns
        -------
        Samples

        Raises
        ------
        DataError
            No prompt has two answers left.
        """
        left = np.add.reduceat(keep.astype(np.int64), self.offsets[:-1])
        if not (left > 1).any():
            raise DataError(message("answers that are left", expected="two to some prompt", got="none"))
        rows = np.flatnonzero(keep & np.repeat(left > 1, self.counts))
        probability = self.label_probability
        return replace(
            self,
            reward=self.reward[rows],
            gold=None if self.gold is None else self.gold[rows],
            answers=None if self.answers is None else self.answers.gather(rows),
            label_probability=None if probability is None else probability[rows],
            offsets=np.concatenate([[0], np.cumsum(left[left > 1])]).astype(np.int64),
            prompts=tuple(name for name, n in zip(self.prompts, left, strict=True) if n > 1),
            sources=None if self.sources is None else self.sources.rows(rows),
            clusters=None if self.clusters is None else self.clusters[left > 1],
        )

    def by_source(self) -> tuple[Samples, NDArray[np.intp]]:
        """A prompt for each prompt and source, so that the answers to one come from one policy; and the rows' order.

        Returns
        -------
        Samples, ndarray
            Itself where the reference drew all answers. Groups may hold a single answer.
        """
        if self.sources is None:
            return self, np.arange(self.n_samples)
        prompt = np.repeat(np.arange(self.n_prompts), self.counts)
        order = np.lexsort((self.sources.code, prompt))
        group = (prompt * len(self.sources.names) + self.sources.code)[order]
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        probability = self.label_probability
        return replace(
            self,
            reward=self.reward[order],
            gold=None if self.gold is None else self.gold[order],
            answers=None if self.answers is None else self.answers.gather(order),
            label_probability=None if probability is None else probability[order],
            offsets=np.append(starts, self.n_samples),
            prompts=tuple(self.prompts[p] for p in prompt[order][starts]),
            sources=None,
            clusters=None,
        ), order

    def to_frame(self) -> pl.DataFrame:
        """A row per answer: ``prompt``, ``reward``, and ``gold``, ``answer``, ``label_probability`` where present.

        With sources also ``source`` and ``log_ratio[NAME]`` for each. What is not known is null.
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
        if self.sources is not None:
            columns["source"] = pl.Series(self.sources.names, dtype=pl.String).gather(self.sources.code)
            for name, values in zip(self.sources.names, self.sources.log_ratio.T, strict=True):
                columns[f"log_ratio[{name}]"] = pl.Series(values).fill_nan(None)
        return pl.DataFrame(columns)

    def save(self, path: str | Path) -> None:
        """Write :meth:`to_frame` as Parquet, atomically."""
        buffer = io.BytesIO()
        self.to_frame().write_parquet(buffer)
        _files.write_atomic(path, buffer.getvalue())

    @classmethod
    def from_arrays(
        cls,
        prompt: Iterable[Any],
        reward: ArrayLike,
        *,
        gold: ArrayLike | None = None,
        answer: Iterable[str | None] | None = None,
        label_probability: ArrayLike | None = None,
        source: Iterable[str | None] | None = None,
        log_ratio: ArrayLike | Mapping[str, ArrayLike] | None = None,
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
        source
            Who drew each answer, N labels; ``reference`` or None: the reference.
        log_ratio
            Log policy - log reference of each answer, summed over its tokens, in nats: N numbers for the source that
            drew it, or N numbers for each source by its name (NaN where unknown).

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
        ratios = log_ratio if isinstance(log_ratio, Mapping) else {}
        own = None if log_ratio is None or isinstance(log_ratio, Mapping) else _array("log_ratio", log_ratio, n)
        named = {name: _array(f"log_ratio[{name}]", values, n) for name, values in ratios.items()}
        try:
            sources = sources_of(None if source is None else list(source), own, named, size=n)
        except SourceError as error:
            raise DataError(f"row {error.row}: {error.text}") from None
        names = list(map(str, labels))
        return grouped(codes, names, rewards, golds, probabilities, answers, sources=sources, notes=[], inputs=())


def grouped(
    codes: NDArray[np.int64],
    labels: list[str],
    reward: NDArray[np.float64],
    gold: NDArray[np.float64] | None,
    probability: NDArray[np.float64] | None,
    answers: pl.Series | None,
    *,
    sources: Sources | None,
    notes: list[str],
    inputs: tuple[dict[str, Any], ...],
) -> Samples:
    """Samples in prompt order; prompts with one sample left out."""
    counts = np.bincount(codes, minlength=len(labels))
    single = np.flatnonzero(counts == 1)
    if not (counts > 1).any():
        got = f"{plural(len(single), 'prompt')} with a single answer" if len(single) else "no samples"
        fix = f"sample more answers per prompt, or check {FLAGS['prompt']}"
        text = "a forecast needs at least two answers to the same prompt"
        path = ", ".join("stdin" if item["path"] == "-" else item["path"] for item in inputs) or None
        raise DataError(f"{text}: got {got}; {fix}", path=path)
    if len(single):
        shown = ", ".join(short(labels[code]) for code in single[:3]) + (", ..." if len(single) > 3 else "")
        noted = f"{plural(len(single), 'prompt')} with a single sample {were(len(single))} left out ({shown})"
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
        sources=None if sources is None else sources.rows(order),
        notes=tuple(notes),
        inputs=inputs,
    )


def _array(name: str, values: ArrayLike, n: int) -> NDArray[np.float64]:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(message(name, expected="numbers", got=short(str(error)))) from error
    if array.shape != (n,):
        raise ShapeError(message(name, expected=f"shape ({n},) as prompt", got=f"{array.shape}"))
    return array


def plural(count: int, noun: str) -> str:
    """``3 rows``, ``1 row``."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def were(count: int) -> str:
    """The verb that goes with a count."""
    return "was" if count == 1 else "were"
