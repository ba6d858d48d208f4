"""Which rows of a dump are answers? Texts that were scored again are set aside, exact copies left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.audit.dumps.rollouts import Chunk
    from kleash.estimates import Floats

    Ints = NDArray[np.int64]

__all__ = ["Faults", "Probes", "Sieve"]

COPY = 40.0  # nats: two of a million draws agree in an answer less likely than exp(-40) with a chance of 2e-6


@dataclass(kw_only=True)
class Faults:
    """What is broken, by column: how often, and the first row of the file."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)

    def note(self, name: str, chunk: Chunk, bad: NDArray[np.bool_], owner: Ints | None = None) -> None:
        """Which rows of a chunk are broken, or which tokens and whose they are."""
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            self.counts[name] += int(bad.sum())
            self.first.setdefault(name, chunk.row(at if owner is None else int(owner[at])))


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Fixed texts, not samples, of which only the reference's score counts; shape (probes,)."""

    label: Ints
    step: Floats
    ref_total: Floats
    n: Ints


@dataclass(kw_only=True)
class Sieve:
    """What was taken out so far: probes, by chunk, and how many copies."""

    faults: Faults
    copies: int = 0
    parts: list[Probes] = field(default_factory=list)
    codes: dict[str, int] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set)

    @property
    def probes(self) -> Probes | None:
        """All probes, None where there is none."""
        names = ("label", "step", "ref_total", "n")
        joined = {name: np.concatenate([getattr(part, name) for part in self.parts]) for name in names if self.parts}
        return Probes(**joined) if joined else None

    def answers(self, chunk: Chunk) -> Chunk:
        """The rows of a chunk that are draws of their own."""
        if "probe_id" in chunk.columns:
            chunk = self._without_probes(chunk)
        return self._without_copies(chunk) if "logp" in chunk.columns else chunk

    def _without_probes(self, chunk: Chunk) -> Chunk:
        labels = chunk.labels["probe_id"]
        rows = np.array([label != "" for label in labels], dtype=bool)
        if rows.any():
            total, n = self._scored(chunk, rows) if "ref_logp" in chunk.tokens else self._summed(chunk, rows)
            coded = [self.codes.setdefault(label, len(self.codes)) for label in labels if label != ""]
            step = chunk.numbers["step"][rows] if "step" in chunk.numbers else np.full(len(coded), np.nan)
            label = np.array(coded, dtype=np.int64)
            self.parts.append(Probes(label=label, step=step, ref_total=total, n=n.astype(np.int64)))
        return _only(chunk, ~rows)

    def _scored(self, chunk: Chunk, rows: NDArray[np.bool_]) -> tuple[Floats, Any]:
        owner = np.repeat(np.arange(chunk.rows), np.diff(chunk.offsets))
        for name in ("logp", "ref_logp"):
            self.faults.note(name, chunk, chunk.mask & rows[owner] & ~np.isfinite(chunk.tokens[name]), owner)
        counted = np.where(chunk.mask, chunk.tokens["ref_logp"], 0.0)
        total = np.bincount(owner, weights=counted, minlength=chunk.rows).astype(np.float64)[rows]
        return total, np.bincount(owner, weights=chunk.mask, minlength=chunk.rows)[rows]

    def _summed(self, chunk: Chunk, rows: NDArray[np.bool_]) -> tuple[Floats, Any]:
        total = chunk.numbers["seq_ref_logp"]
        self.faults.note("ref_logp", chunk, rows & ~np.isfinite(total))
        length = chunk.numbers.get("length", np.zeros(chunk.rows))[rows]
        return total[rows], np.where(np.isfinite(length), length, 0)

    def _without_copies(self, chunk: Chunk) -> Chunk:
        """Leave out exact copies of earlier answers: alike in every digit, too many nats for a second draw.

        Answers likelier than ``exp(-COPY)`` may well be drawn twice and are all kept: taking them once would bias the
        mean.
        """
        owner = np.repeat(np.arange(chunk.rows), np.diff(chunk.offsets))
        logp = np.where(chunk.mask & np.isfinite(chunk.tokens["logp"]), chunk.tokens["logp"], 0.0)
        nats = np.bincount(owner, weights=logp, minlength=chunk.rows)
        fresh = np.ones(chunk.rows, dtype=bool)
        for i in np.flatnonzero(nats < -COPY):
            part = slice(int(chunk.offsets[i]), int(chunk.offsets[i + 1]))
            digest = blake2b(digest_size=8)
            for values in (chunk.mask, *chunk.tokens.values()):
                digest.update(np.ascontiguousarray(values[part]).data)
            fresh[i] = digest.digest() not in self.seen
            self.seen.add(digest.digest())
        self.copies += int((~fresh).sum())
        return chunk if fresh.all() else _only(chunk, fresh)


def _only(chunk: Chunk, rows: NDArray[np.bool_]) -> Chunk:
    """The chunk with some rows only; they keep their places in the file."""
    kept = np.flatnonzero(rows)
    inside = np.repeat(rows, np.diff(chunk.offsets))
    return replace(
        chunk,
        rows=kept.size,
        numbered=chunk.first_row + kept if chunk.numbered is None else chunk.numbered[kept],
        offsets=np.concatenate([[0], np.cumsum(np.diff(chunk.offsets)[kept])]).astype(np.int64),
        tokens={name: values[inside] for name, values in chunk.tokens.items()},
        mask=chunk.mask[inside],
        numbers={name: values[kept] for name, values in chunk.numbers.items()},
        labels={name: [labels[i] for i in kept] for name, labels in chunk.labels.items() if name != "probe_id"},
    )
