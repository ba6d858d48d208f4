"""What does a dump say? One pass over it, in bounded memory, to the statistics that every check reads.

Token columns are reduced as they stream by; what is kept grows with the number of answers (about 300 bytes each), not
of tokens. The checks are pure functions of the `Tally` that comes out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from kleash import kl
from kleash.audit.chance import log_e_above, log_e_below, log_e_surprisal
from kleash.audit.declared import Declared
from kleash.kl import KLSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kleash.audit.dumps.rollouts import Chunk

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["HEIGHTS", "Tally", "tally"]

HEIGHTS = (3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 14.0, 16.0, 20.0, 30.0, 50.0, 88.7)
"""Values of ref_logp - logp above which tokens are counted: verl, NeMo-RL and slime clamp at 20, exp leaves float32 at
88.7."""

GROUPS = 64  # answers are dealt to this many groups for jackknife errors of slopes
LOWEST, PER_DECADE, BINS = -30.0, 100, 34_000  # bins of log10 k3 (2.3 % wide), for the share of the top tokens
POSITIVE = 0.25
SENTINEL = -1000.0
LEAST_SURPRISAL = 0.1  # nats per token of a very sure policy: how long an answer may be whose length is not given
NEARER = 0.75  # a list one position off is nearer after moving it by a quarter at least
VARIES = 0.1  # nats between neighbours, on average: what a list must vary for its position to be told
CERTAIN = -0.01  # nats: above it a token is (nearly) certain, and one like the next
RAISED = 0.2  # nats by which no scoring noise raises a token: renormalising after truncation only lowers ratios
COPY = 40.0  # nats: two of a million draws agree in an answer less likely than exp(-40) with a chance of 2e-6
SURPRISAL_MARGIN = 0.01
"""Nats per token by which mean surprisal may miss mean entropy: rounding of either; a temperature of .98 moves it more
on text of 1 nat per token. Ours."""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Everything the rollout checks know of a dump. Arrays over answers have shape (rows,).

    ``delta``, ``square`` and ``ratio`` are sums over an answer's counted finite tokens of logp - ref_logp, its square
    and exp(ref_logp - logp). ``drawn`` is the sum under the law that drew the tokens: behavior_logp - ref_logp where
    the dump has it. Exact copies of an answer are counted once. ``counts`` holds plain counts and sums over the dump by
    name, ``bets`` log wealth by test, ``moments`` the grouped sums behind slopes, ``edges`` the values that answers
    repeat at their start and end. ``prompt`` numbers the prompts (-1: not given). ``probes`` are the rows with a
    ``probe_id``: nobody's samples, counted nowhere else (label, step, ref_total, n). ``first_bad`` is the first row
    with a non-finite value by column. ``declared`` is what the run's owner says of it.
    """

    rows: int
    columns: frozenset[str]
    tokens: int
    listed: int
    n: Ints
    delta: Floats
    drawn: Floats
    square: Floats
    ratio: Floats
    surprisal_gap: Floats | None
    numbers: dict[str, Floats]
    prompt: Ints | None
    probes: dict[str, NDArray[Any]] | None
    counts: dict[str, float]  # a name never counted is 0
    bets: dict[str, Floats]
    moments: dict[str, Floats]
    heights: Ints
    drawn_heights: Ints
    k3_histogram: tuple[Ints, Floats]
    edges: dict[tuple[str, str], Counter[float]]
    first_bad: dict[str, int]
    beyond_sums: tuple[int, float]
    declared: Declared = field(default_factory=Declared)

    @property
    def has_tokens(self) -> bool:
        """Whether the dump has log-probabilities per token, not only sums."""
        return "logp" in self.columns

    @property
    def has_sampler(self) -> bool:
        """Whether the sampler's own log-probabilities are there."""
        return self.counts["sampler"] > 0

    @property
    def copies(self) -> int:
        """How many rows are exact copies of an earlier one, too unlikely to be drawn twice."""
        return int(self.counts["copies"])

    @property
    def probe_rows(self) -> int:
        """How many rows are probes."""
        return 0 if self.probes is None else int(self.probes["label"].size)

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


class _Running:
    """The sums that grow while the chunks go by."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Any]] = {}
        self.counts: defaultdict[str, float] = defaultdict(float)
        self.bets: dict[str, Floats] = {}
        self.moments: dict[str, Floats] = {}
        self.heights = np.zeros(len(HEIGHTS), dtype=np.int64)
        self.histogram = (np.zeros(BINS, dtype=np.int64), np.zeros(BINS))
        self.drawn_heights = np.zeros(len(HEIGHTS), dtype=np.int64)
        self.edges: defaultdict[tuple[str, str], Counter[float]] = defaultdict(Counter)
        self.seen: set[bytes] = set()
        self.outcomes: defaultdict[str, set[bytes]] = defaultdict(set)
        self.first_bad: dict[str, int] = {}
        self.label_codes: dict[str, dict[str, int]] = {}
        self.beyond = (0, 0.0)

    def keep(self, name: str, values: Any) -> None:
        self.answers.setdefault(name, []).append(values)

    def bet(self, name: str, log_wealth: Floats) -> None:
        self.bets[name] = self.bets.get(name, np.zeros_like(log_wealth)) + log_wealth

    def bad(self, name: str, row: int, count: int) -> None:
        self.counts[f"bad_{name}"] += count
        self.first_bad.setdefault(name, row)


def tally(chunks: Iterable[Chunk], declared: Declared | None = None) -> Tally:
    """Reduce a stream of chunks to a `Tally`. What leaves the float range is infinite or NaN here, and never ``ok``."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return replace(_tally(chunks), declared=declared or Declared())


def _tally(chunks: Iterable[Chunk]) -> Tally:
    run, columns, rows = _Running(), frozenset[str](), 0
    for whole in chunks:
        columns = frozenset(whole.columns)
        chunk = _without_probes(run, whole) if "probe_id" in columns else whole
        chunk = _without_copies(run, chunk) if "logp" in columns else chunk
        rows += chunk.rows
        if "logp" in columns:
            _tokens(run, chunk)
        if "seq_logp" in columns:
            _sums(run, chunk)
        for name, values in chunk.numbers.items():
            run.keep(name, values)
            if name in ("reward", "gold") and np.isinf(values).any():
                run.bad(name, chunk.row(int(np.flatnonzero(np.isinf(values))[0])), int(np.isinf(values).sum()))
        for name, labels in chunk.labels.items():
            codes = run.label_codes.setdefault(name, {"": -1})
            coded = [codes.setdefault(label, len(codes) - 1) for label in labels]
            run.keep(f"label_{name}", np.array(coded, dtype=np.int64))

    def joined(name: str) -> Any:
        return np.concatenate(run.answers[name]) if name in run.answers else None

    probes = {name: joined(f"probe_{name}") for name in ("label", "step", "ref_total", "n")}

    return Tally(
        rows=rows,
        columns=columns,
        tokens=int(run.counts["tokens"]),
        listed=int(run.counts["listed"]),
        n=joined("n") if "logp" in columns else np.zeros(rows, dtype=np.int64),
        delta=joined("delta"),
        drawn=joined("drawn"),
        square=joined("square") if "logp" in columns else np.zeros(rows),
        ratio=joined("ratio") if "logp" in columns else np.zeros(rows),
        surprisal_gap=joined("surprisal_gap"),
        numbers={name: joined(name) for name in ("reward", "gold", "step") if name in columns},
        prompt=joined("label_prompt_id"),
        probes=None if probes["label"] is None else probes,
        counts=run.counts,
        bets=run.bets,
        moments=run.moments,
        heights=run.heights,
        drawn_heights=run.drawn_heights,
        k3_histogram=run.histogram,
        edges=dict(run.edges),
        first_bad=run.first_bad,
        beyond_sums=run.beyond,
    )


def _without_probes(run: _Running, chunk: Chunk) -> Chunk:
    """Set the rows with a ``probe_id`` aside: fixed texts, not samples, of which only the reference's score counts."""
    rows = np.array([label != "" for label in chunk.labels["probe_id"]], dtype=bool)
    if rows.any():
        codes = run.label_codes.setdefault("probe_id", {})
        coded = [codes.setdefault(label, len(codes)) for label in chunk.labels["probe_id"] if label != ""]
        run.keep("probe_label", np.array(coded, dtype=np.int64))
        run.keep("probe_step", chunk.numbers["step"][rows] if "step" in chunk.numbers else np.full(len(coded), np.nan))
        if "ref_logp" in chunk.tokens:
            owner = np.repeat(np.arange(chunk.rows), np.diff(chunk.offsets))
            counted = np.where(chunk.mask, chunk.tokens["ref_logp"], 0.0)
            for name in ("logp", "ref_logp"):
                bad = chunk.mask & rows[owner] & ~np.isfinite(chunk.tokens[name])
                if bad.any():
                    run.bad(name, chunk.row(int(owner[np.flatnonzero(bad)[0]])), int(bad.sum()))
            run.keep("probe_ref_total", np.bincount(owner, weights=counted, minlength=chunk.rows)[rows])
            run.keep("probe_n", np.bincount(owner, weights=chunk.mask, minlength=chunk.rows).astype(np.int64)[rows])
        else:
            bad = rows & ~np.isfinite(chunk.numbers["seq_ref_logp"])
            if bad.any():
                run.bad("ref_logp", chunk.row(int(np.flatnonzero(bad)[0])), int(bad.sum()))
            run.keep("probe_ref_total", chunk.numbers["seq_ref_logp"][rows])
            length = chunk.numbers.get("length", np.zeros(chunk.rows))[rows]
            run.keep("probe_n", np.where(np.isfinite(length), length, 0).astype(np.int64))
    return _only(chunk, ~rows)


def _without_copies(run: _Running, chunk: Chunk) -> Chunk:
    """Leave out exact copies of earlier answers: the same numbers in every digit, too many nats for a second draw.

    Answers likelier than ``exp(-COPY)`` may well be drawn twice and are all kept: taking them once would bias the mean.
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
        fresh[i] = digest.digest() not in run.seen
        run.seen.add(digest.digest())
    run.counts["copies"] += int((~fresh).sum())
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


def _sums(run: _Running, chunk: Chunk) -> None:
    logp, ref = chunk.numbers["seq_logp"], chunk.numbers["seq_ref_logp"]
    if "logp" in chunk.columns:  # the lists speak; the sums are only held against them
        for name, sums in (("logp_total", logp), ("ref_total", ref)):
            ours, count = run.answers[name][-1], run.answers["n"][-1]
            with np.errstate(invalid="ignore"):
                far = np.abs(sums - ours) > 6 * 0.05 * np.sqrt(np.maximum(count, 1)) + 1e-3 * np.abs(ours)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = float(np.nanmedian(sums / ours)) if ours.any() else 0.0
            run.beyond = (run.beyond[0] + int(far.sum()), ratio if far.any() else run.beyond[1])
        return
    for name, values in (("logp", logp), ("ref_logp", ref)):
        bad = ~np.isfinite(values)
        if bad.any():
            run.bad(name, chunk.row(int(np.flatnonzero(bad)[0])), int(bad.sum()))
    good = np.isfinite(logp) & np.isfinite(ref)
    with np.errstate(invalid="ignore"):
        delta = np.where(good, logp - ref, 0.0)
    run.keep("delta", delta)
    run.keep("drawn", delta)
    run.keep("ref_total", ref)
    run.keep("logp_total", logp)
    with np.errstate(over="ignore"):
        ratio_up, ratio_down = np.where(good, np.exp(-delta), 0.0), np.where(good, np.exp(delta), 0.0)
    length = chunk.numbers.get("length", np.full(chunk.rows, np.nan))
    length = np.where(np.isfinite(length) & (length >= 0), length, np.abs(np.where(good, logp, 0.0)) / LEAST_SURPRISAL)
    run.counts["granted"] += float(length.sum())
    run.bet("identity_answers", log_e_above(ratio_up, length=length))
    run.bet("swapped", log_e_above(ratio_down, length=length))
    run.counts["positive"] += int(((logp > POSITIVE) | (ref > POSITIVE)).sum())
    run.counts["zero_delta"] += int((delta[good] == 0).sum())
    run.counts["finite"] += int(good.sum())


def _tokens(run: _Running, chunk: Chunk) -> None:
    rows, lengths = chunk.rows, np.diff(chunk.offsets)
    run.counts["listed"] += int(chunk.offsets[-1])
    owner_all = np.repeat(np.arange(rows), lengths)
    active = np.flatnonzero(chunk.mask)
    owner = owner_all[active]
    logp, ref = chunk.tokens["logp"][active], chunk.tokens["ref_logp"][active]
    n = np.bincount(owner, minlength=rows)
    run.keep("n", n)
    run.counts["empty"] += int((n == 0).sum())
    if (n == 0).any():
        run.first_bad.setdefault("mask", chunk.row(int(np.flatnonzero(n == 0)[0])))
    if "length" in chunk.numbers:
        length = chunk.numbers["length"]
        run.counts["length_given"] += int(np.isfinite(length).sum())
        run.counts["length_passed"] += int((n > length).sum())
        if (n > length).any():
            run.first_bad.setdefault("length", chunk.row(int(np.flatnonzero(n > length)[0])))
    good = np.isfinite(logp) & np.isfinite(ref)
    for name in chunk.tokens:
        bad = ~np.isfinite(chunk.tokens[name][active])
        if bad.any():
            run.bad(name, chunk.row(int(owner[np.flatnonzero(bad)[0]])), int(bad.sum()))
    _padding(run, logp, ref, owner, n)
    with np.errstate(invalid="ignore"):
        delta = np.where(good, logp - ref, 0.0)
    drew = good
    law = logp
    if "behavior_logp" in chunk.tokens:  # the tokens are the sampler's: its law has the identity, the policy's has not
        law = chunk.tokens["behavior_logp"][active]
        drew = good & np.isfinite(law)
    _identity(run, delta, good, owner, rows)
    _drawn(run, np.where(drew, law - ref, 0.0), delta, drew, owner, rows)
    run.keep("logp_total", np.bincount(owner, weights=np.where(good, logp, 0.0), minlength=rows))
    run.keep("ref_total", np.bincount(owner, weights=np.where(good, ref, 0.0), minlength=rows))
    group = (chunk.first_row + owner) % GROUPS
    if "step" in chunk.numbers:
        first = good & (chunk.numbers["step"][owner] == 0)
        _moments(run, "temperature_step0", logp[first], ref[first], group[first])
    _shift(run, "shift", logp, ref, good, owner, active, rows)
    _optional(run, chunk, active, logp, good, owner, group)


def _identity(run: _Running, delta: Floats, good: NDArray[np.bool_], owner: Ints, rows: int) -> None:
    finite, who = delta[good], owner[good]
    up, third = np.exp(-finite), kl.k3(finite)
    run.counts["tokens"] += int(good.size)
    run.counts["granted"] += int(good.size)
    run.counts["finite"] += int(good.sum())
    run.counts["zero_delta"] += int((finite == 0).sum())
    run.counts["clamped"] += int((third >= 10).sum())
    run.heights += np.array([int((finite <= -h).sum()) for h in HEIGHTS])
    for name, values in (("delta", finite), ("square", np.square(finite)), ("ratio", up)):
        run.keep(name, np.bincount(who, weights=values, minlength=rows))
    with np.errstate(divide="ignore"):
        decades = np.clip(np.log10(third) - LOWEST, 0, BINS / PER_DECADE - 0.5 / PER_DECADE)
    where = (decades * PER_DECADE).astype(np.int64)
    run.histogram[0][:] += np.bincount(where, minlength=BINS)
    run.histogram[1][:] += np.bincount(where, weights=third, minlength=BINS)


def _drawn(run: _Running, drawn: Floats, delta: Floats, good: NDArray[np.bool_], owner: Ints, rows: int) -> None:
    """The ratios of the reference to the law that drew the tokens, and the exchanged ones."""
    up, down = np.exp(-drawn[good]), np.exp(delta[good])  # infinity is told as such; bets and evidence can take it
    for name, values in (("w", up), ("v", down)):
        run.counts[name] += float(values.sum())
        run.counts[name * 2] += float((values * values).sum())
    run.counts["drawn"] += int(good.sum())
    run.bet("identity", log_e_above(np.where(good, np.exp(np.minimum(-drawn, 700.0)), 0.0)))
    run.bet("swapped", log_e_above(np.where(good, np.exp(np.minimum(delta, 700.0)), 0.0)))
    run.drawn_heights += np.array([int((drawn[good] <= -h).sum()) for h in HEIGHTS])
    run.keep("drawn", np.bincount(owner, weights=drawn, minlength=rows))
    run.counts["sampler_to_reference"] += float(np.square(drawn).sum())


def _moments(run: _Running, name: str, x: Floats, y: Floats, group: Ints) -> None:
    parts = (np.ones_like(x), x, y, x * x, x * y, y * y)
    table = np.stack([np.bincount(group, weights=part, minlength=GROUPS) for part in parts], axis=1)
    run.moments[name] = run.moments.get(name, np.zeros((GROUPS, 6))) + table


def _shift(
    run: _Running,
    name: str,
    left: Floats,
    right: Floats,
    good: NDArray[np.bool_],
    owner: Ints,
    position: Ints,
    rows: int,
) -> None:
    """Is ``right`` nearer to ``left`` one position later or earlier? Per answer, over neighbouring active tokens.

    In place only tokens with a neighbour on both sides are compared, moved all pairs of neighbours: every value of the
    first sum stands in the second too, so a first or last token that has drifted cannot speak for moving. Distances are
    cut off at 1 nat, or a few large log ratios would. Answers that say little of positions (fewer than five tokens in a
    row, or hardly any variation in one list) are not judged, and equal outcomes of equal answers count once.
    """
    follows = (owner[1:] == owner[:-1]) & (np.diff(position) == 1) & good[1:] & good[:-1]
    pair = np.flatnonzero(follows)
    inner = np.flatnonzero(follows[1:] & follows[:-1]) + 1

    def total(a: Floats, b: Floats, who: Ints) -> Floats:
        apart = np.minimum(np.abs(a - b), 1.0)
        return np.asarray(np.bincount(who, weights=apart, minlength=rows), dtype=np.float64)

    here = total(left[inner], right[inner], owner[inner])
    many = np.bincount(owner[pair], minlength=rows)
    judged = (np.bincount(owner[inner], minlength=rows) >= 3) & (many >= 4)
    for values in (left, right):
        judged &= total(values[pair], values[pair + 1], owner[pair]) >= VARIES * many
    moved = {
        "later": total(left[pair], right[pair + 1], owner[pair]),
        "earlier": total(left[pair + 1], right[pair], owner[pair]),
    }
    told = np.stack([here, *moved.values()])
    for i in np.flatnonzero(judged):
        outcome = told[:, i].tobytes()
        judged[i] = outcome not in run.outcomes[name]
        run.outcomes[name].add(outcome)
    run.counts[f"{name}_judged"] += int(judged.sum())
    run.counts[f"{name}_pairs"] += int(pair.size)
    run.counts[f"{name}_inner"] += int(inner.size)
    run.counts[f"{name}_distance"] += float(here.sum())
    for label, distance in moved.items():
        run.counts[f"{name}_{label}"] += int((judged & (distance < NEARER * here)).sum())
        run.counts[f"{name}_{label}_distance"] += float(distance.sum())


def _padding(run: _Running, logp: Floats, ref: Floats, owner: Ints, n: Ints) -> None:
    """Values no softmax gives, and answers that end in one value repeated."""
    for name, values in (("logp", logp), ("ref_logp", ref)):
        run.counts[f"positive_{name}"] += int((values > POSITIVE).sum())
        run.counts[f"sentinel_{name}"] += int(((values <= SENTINEL) & np.isfinite(values)).sum())
    if logp.size == 0:
        return
    ends = np.cumsum(n)[n > 0] - 1
    begins = ends - n[n > 0] + 1
    whole = ends[np.isfinite(logp[ends]) & np.isfinite(ref[ends])]
    run.counts["last_delta"] += float((logp[whole] - ref[whole]).sum())
    run.counts["last"] += int(whole.size)
    run.counts["neighbours"] += int(logp.size - begins.size)
    run.counts["edges"] += int((n >= 2).sum())
    inside = owner[1:] == owner[:-1]
    for name, values in (("logp", logp), ("ref_logp", ref)):
        sure = values > CERTAIN
        for kind, same in (
            ("fill", inside & (values[1:] == values[:-1]) & ~sure[1:]),
            ("certain", inside & sure[1:] & sure[:-1]),
        ):
            run.counts[f"{kind}_{name}"] += int(same.sum())
            for side, length, at in (
                ("start", *_run_from(same, begins, ends)),
                ("end", *_run_to(same, begins, ends)),
            ):
                long = length > 0
                run.counts[f"{kind}_{name}_{side}"] += int(length[long].sum())
                found = values[at[long]].tolist() if kind == "fill" else [0.0] * int(long.sum())
                run.edges[f"{kind}_{name}", side].update(found)


def _run_to(same: NDArray[np.bool_], begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """How many neighbours before the end of each answer are alike, and where the answers end."""
    last = np.where(same, -1, np.arange(same.size))  # the last place before which a token differs from the next
    seen = np.maximum.accumulate(last) if same.size else last
    before = np.where(ends > begins, seen[np.maximum(ends - 1, 0)] if same.size else -1, ends - 1)
    return ends - 1 - np.maximum(before, begins - 1), ends


def _run_from(same: NDArray[np.bool_], begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """How many neighbours after the start of each answer are alike, and where the answers start."""
    length, _ = _run_to(same[::-1], same.size - ends[::-1], same.size - begins[::-1])
    return length[::-1], begins


def _optional(
    run: _Running, chunk: Chunk, active: Ints, logp: Floats, good: NDArray[np.bool_], owner: Ints, group: Ints
) -> None:
    rows = chunk.rows
    if "behavior_logp" in chunk.tokens:
        behavior = chunk.tokens["behavior_logp"][active]
        both = np.isfinite(behavior) & np.isfinite(logp)
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.where(both, logp - behavior, 0.0)
            ratio = np.where(both, np.exp(gap), 0.0)
        run.bet("sampler_above", log_e_above(ratio))
        run.bet("sampler_below", log_e_below(ratio[both]))
        run.counts["sampler"] += int(both.sum())
        run.counts["sampler_ratio"] += float(ratio.sum())
        with np.errstate(over="ignore"):
            run.counts["sampler_ratio2"] += float(np.square(ratio).sum())
        capped = np.minimum(ratio[both], 2.0)
        run.counts["sampler_capped"] += float(capped.sum())
        run.counts["sampler_capped2"] += float(np.square(capped).sum())
        run.counts["sampler_raised"] += int((gap > RAISED).sum())
        run.counts["sampler_spread"] += float(np.exp(np.minimum(np.abs(gap[both]), 700.0)).sum())
        run.counts["sampler_square"] += float(np.square(gap).sum())
        _moments(run, "temperature_sampler", logp[both], behavior[both], group[both])
        _shift(run, "sampler_shift", logp, behavior, both, owner, active, rows)
    if "entropy" in chunk.tokens:
        entropy = chunk.tokens["entropy"][active]
        both = np.isfinite(entropy) & np.isfinite(logp)
        with np.errstate(invalid="ignore"):
            gap = np.where(both, -logp - entropy, 0.0)
        run.counts["surprisal"] += int(both.sum())
        run.counts["entropy"] += float(np.where(both, entropy, 0.0).sum())
        run.bet("surprisal", log_e_surprisal(-logp[both], entropy[both], margin=SURPRISAL_MARGIN))
        run.keep("surprisal_gap", np.bincount(owner, weights=gap, minlength=rows))
