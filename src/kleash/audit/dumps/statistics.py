"""What does a dump say? One pass over it, in bounded memory, to the statistics that every check reads.

Token columns are reduced as they stream by; what is kept grows with the number of answers (about 300 bytes each), not
of tokens. The checks are pure functions of the `Tally` that comes out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from kleash.audit.chance import SCORING_NOISE
from kleash.audit.declared import Declared
from kleash.audit.dumps.neighbours import POSITIVE, Edges, Shift
from kleash.audit.dumps.ratios import GROUPS, Ratios, Sampler, Surprisal, moments, no_moments
from kleash.audit.dumps.sieve import Faults, Probes, Sieve
from kleash.kl import KLSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kleash.audit.dumps.rollouts import Chunk
    from kleash.estimates import Floats

    Ints = NDArray[np.int64]

__all__ = ["Tally", "tally"]

LEAST_SURPRISAL = 0.1  # nats per token of a very sure policy: how long an answer may be whose length is not given
LABELLED = ("reward", "gold", "step")


@dataclass(kw_only=True)
class Parts:
    """What grows while the chunks go by.

    ``listed``, ``sized``: Tokens listed, counted or not, and answers whose ``length`` is given. ``faults``: What is no
    number, answers without a counted token (``mask``) or with more than ``length``. ``ratios``, ``edges``, ``sampler``,
    ``surprisal``, ``shift``: Of the counted tokens. ``start``: The moments of ref_logp on logp at step 0. ``sums_off``,
    ``sums_ratio``: Given sums that are not those of the lists, and the median of sum over sum where some are off.
    """

    listed: int = 0
    sized: int = 0
    faults: Faults = field(default_factory=Faults)
    ratios: Ratios = field(default_factory=Ratios)
    edges: Edges = field(default_factory=Edges)
    sampler: Sampler = field(default_factory=Sampler)
    surprisal: Surprisal = field(default_factory=Surprisal)
    shift: Shift = field(default_factory=Shift)
    start: Floats = field(default_factory=no_moments)
    sums_off: int = 0
    sums_ratio: float = 0.0


@dataclass(kw_only=True)
class Tally(Parts):
    """Everything the rollout checks know of a dump. Arrays over answers have shape (rows,).

    ``n`` counts an answer's tokens; ``delta``, ``square`` and ``ratio`` are sums over its counted finite tokens of
    logp - ref_logp, its square and exp(ref_logp - logp), ``sampler_square`` that of the square of logp -
    behavior_logp. ``drawn`` is the sum under the law that drew the tokens:
    behavior_logp - ref_logp where the dump has it. Exact ``copies`` of an answer are counted once. ``prompt`` numbers
    the prompts (-1: not given). ``probes`` are the rows with a ``probe_id``: nobody's samples, counted nowhere else.
    ``declared`` is what the run's owner says of it.
    """

    columns: frozenset[str]
    n: Ints
    delta: Floats
    drawn: Floats
    square: Floats
    ratio: Floats
    surprisal_gap: Floats | None
    sampler_square: Floats | None
    numbers: dict[str, Floats]
    prompt: Ints | None
    probes: Probes | None
    copies: int
    declared: Declared

    @property
    def rows(self) -> int:
        """How many answers there are."""
        return self.n.size

    @property
    def tokens(self) -> int:
        """How many tokens count."""
        return self.ratios.tokens

    @property
    def has_tokens(self) -> bool:
        """Whether the dump has log-probabilities per token, not only sums."""
        return "logp" in self.columns

    @property
    def has_sampler(self) -> bool:
        """Whether the sampler's own log-probabilities are there."""
        return self.sampler.tokens > 0

    @property
    def probe_rows(self) -> int:
        """How many rows are probes."""
        return 0 if self.probes is None else self.probes.label.size

    @property
    def at_start(self) -> NDArray[np.bool_]:
        """Which answers with counted tokens were drawn before the first update."""
        return np.zeros(self.rows, dtype=bool) if self.step is None else (self.step == 0) & (self.n > 0)

    @property
    def step(self) -> Floats | None:
        """Updates before each answer was drawn, NaN where not recorded."""
        return self.numbers.get("step")

    def kl_specs(self, *, sampler: bool = False, **units: str) -> dict[str, Any]:
        """The `KLSpec` of each KL number by its name: k1 of KL(policy || reference), or of the sampler's law.

        Where the dump has ``behavior_logp`` the tokens are the sampler's: a number made of ``logp`` is then no estimate
        of the policy's KL (tokens from ``behavior``), and one made of ``behavior_logp`` is that of the law that was
        sampled.
        """
        drawn: Literal["policy", "behavior"] = "behavior" if self.has_sampler and not sampler else "policy"
        specs = {
            name: KLSpec(estimator="k1", unit=cast("Any", unit), sampler=drawn).to_dict()
            for name, unit in units.items()
        }
        if sampler and self.has_sampler:
            specs = {name: {**spec, "policy_logp": "behavior_logp"} for name, spec in specs.items()}
        return specs


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def tally(chunks: Iterable[Chunk], declared: Declared | None = None) -> Tally:
    """Reduce a stream of chunks to a `Tally`. What leaves the float range is infinite or NaN here, and never ``ok``."""
    parts, columns, codes = Parts(), frozenset[str](), {"": -1}
    sieve = Sieve(faults=parts.faults)
    found: list[dict[str, Any]] = []
    for whole in chunks:
        chunk, columns = sieve.answers(whole), frozenset(whole.columns)
        answers = _tokens(parts, chunk) if "logp" in columns else _sums(parts, chunk)
        answers |= {name: chunk.numbers[name] for name in LABELLED if name in columns}
        for name in ("reward", "gold"):
            if name in columns:
                parts.faults.note(name, chunk, np.isinf(chunk.numbers[name]))
        if "prompt_id" in columns:
            coded = [codes.setdefault(label, len(codes) - 1) for label in chunk.labels["prompt_id"]]
            answers["prompt"] = np.array(coded, dtype=np.int64)
        found.append(answers)
    joined: dict[str, Any] = {name: np.concatenate([answers[name] for answers in found]) for name in found[0]}
    return Tally(
        **vars(parts),
        columns=columns,
        numbers={name: joined.pop(name) for name in LABELLED if name in joined},
        prompt=joined.pop("prompt", None),
        surprisal_gap=joined.pop("surprisal_gap", None),
        sampler_square=joined.pop("sampler_square", None),
        probes=sieve.probes,
        copies=sieve.copies,
        declared=declared or Declared(),
        **joined,
    )


def _sums(parts: Parts, chunk: Chunk) -> dict[str, Any]:
    """The arrays of answers whose lists are not given."""
    logp, ref = chunk.numbers["seq_logp"], chunk.numbers["seq_ref_logp"]
    for name, values in (("logp", logp), ("ref_logp", ref)):
        parts.faults.note(name, chunk, ~np.isfinite(values))
    good = np.isfinite(logp) & np.isfinite(ref)
    delta = np.where(good, logp - ref, 0.0)
    length = chunk.numbers.get("length", np.full(chunk.rows, np.nan))
    length = np.where(np.isfinite(length) & (length >= 0), length, np.abs(np.where(good, logp, 0.0)) / LEAST_SURPRISAL)
    parts.ratios.add_sums(delta, good, length)
    parts.edges.positive += int(((logp > POSITIVE) | (ref > POSITIVE)).sum())
    zeros = np.zeros(chunk.rows)
    return {"n": np.zeros(chunk.rows, dtype=np.int64), "delta": delta, "drawn": delta, "square": zeros, "ratio": zeros}


def _tokens(parts: Parts, chunk: Chunk) -> dict[str, Any]:
    """The arrays of answers whose tokens are listed."""
    rows, active = chunk.rows, np.flatnonzero(chunk.mask)
    owner = np.repeat(np.arange(rows), np.diff(chunk.offsets))[active]
    tokens = {name: values[active] for name, values in chunk.tokens.items()}
    logp, ref = tokens["logp"], tokens["ref_logp"]
    n = np.bincount(owner, minlength=rows)
    _counted(parts, chunk, n)
    for name, values in tokens.items():
        parts.faults.note(name, chunk, ~np.isfinite(values), owner)
    parts.edges.add(logp, ref, owner, n)
    good = np.isfinite(logp) & np.isfinite(ref)
    delta = np.where(good, logp - ref, 0.0)
    law = tokens.get("behavior_logp", logp)  # tokens are the sampler's: its law has the identity, the policy's has not
    drew = good & np.isfinite(law)
    drawn = np.where(drew, law - ref, 0.0) if law is not logp else delta
    parts.ratios.add(delta, good)
    parts.ratios.add_drawn(drawn, delta, drew)
    group = (chunk.first_row + owner) % GROUPS
    if "step" in chunk.numbers:
        first = good & (chunk.numbers["step"][owner] == 0)
        parts.start += moments(logp[first], ref[first], group[first])
    parts.shift.add(logp, ref, good, owner, active, rows=rows)

    def per_answer(values: Floats) -> Floats:
        return np.asarray(np.bincount(owner, weights=values, minlength=rows), dtype=np.float64)

    _hold_against(parts, chunk, n, *(per_answer(np.where(good, values, 0.0)) for values in (logp, ref)))
    found: dict[str, Any] = {"n": n, "delta": per_answer(delta), "drawn": per_answer(drawn)}
    found["square"] = per_answer(np.square(delta))
    found["ratio"] = per_answer(np.where(good, np.exp(-delta), 0.0))
    if "behavior_logp" in tokens:
        gap = parts.sampler.add(logp, law, owner, active, group, rows=rows)
        found["sampler_square"] = per_answer(np.square(gap))
    if "entropy" in tokens:
        found["surprisal_gap"] = per_answer(parts.surprisal.add(logp, tokens["entropy"]))
    return found


def _counted(parts: Parts, chunk: Chunk, n: Ints) -> None:
    """Answers without a counted token, or with more of them than ``length`` says."""
    parts.listed += int(chunk.offsets[-1])
    parts.faults.note("mask", chunk, n == 0)
    if "length" in chunk.numbers:
        length = chunk.numbers["length"]
        parts.sized += int(np.isfinite(length).sum())
        parts.faults.note("length", chunk, n > length)


def _hold_against(parts: Parts, chunk: Chunk, n: Ints, logp: Floats, ref: Floats) -> None:
    """Given sums beside the lists: the lists speak, the sums are only held against them."""
    for name, ours in (("seq_logp", logp), ("seq_ref_logp", ref)):
        if name in chunk.numbers:
            sums = chunk.numbers[name]
            far = np.abs(sums - ours) > 6 * SCORING_NOISE * np.sqrt(np.maximum(n, 1)) + 1e-3 * np.abs(ours)
            parts.sums_off += int(far.sum())
            if far.any():
                parts.sums_ratio = float(np.nanmedian(sums / ours)) if ours.any() else 0.0
