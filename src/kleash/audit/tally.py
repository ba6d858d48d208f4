"""What does a dump say? One pass over it, in bounded memory, to the statistics that every check reads.

Token columns are reduced as they stream by; what is kept grows with the number of answers (about 100 bytes each), not
of tokens. The checks are pure functions of the `Tally` that comes out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash import kl
from kleash.audit.evidence import log_e_above, log_e_below

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kleash.audit.rollouts import Chunk

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


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Everything the rollout checks know of a dump. Arrays over answers have shape (rows,).

    ``delta``, ``square`` and ``ratio`` are sums over an answer's counted finite tokens of logp - ref_logp, its square
    and exp(ref_logp - logp). ``counts`` holds plain counts and sums over the dump by name, ``bets`` log wealth by test,
    ``moments`` the grouped sums behind slopes. ``prompt`` numbers the prompts (-1: not given). ``probes`` are the rows
    with a ``probe_id``: nobody's samples, counted nowhere else (label, step, ref_total, n). ``first_bad`` is the first
    row with a non-finite value by column.
    """

    rows: int
    columns: frozenset[str]
    tokens: int
    listed: int
    n: Ints
    delta: Floats
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
    k3_histogram: tuple[Ints, Floats]
    list_lengths: tuple[int, int]
    tails: Counter[tuple[float, float]]
    tail_lengths: Counter[int]
    first_bad: dict[str, int]
    beyond_sums: tuple[int, float]

    @property
    def has_tokens(self) -> bool:
        """Whether the dump has log-probabilities per token, not only sums."""
        return "logp" in self.columns

    @property
    def probe_rows(self) -> int:
        """How many rows are probes."""
        return 0 if self.probes is None else int(self.probes["label"].size)

    @property
    def step(self) -> Floats | None:
        """Updates before each answer was drawn, NaN where not recorded."""
        return self.numbers.get("step")


class _Running:
    """The sums that grow while the chunks go by."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Any]] = {}
        self.counts: defaultdict[str, float] = defaultdict(float)
        self.bets: dict[str, Floats] = {}
        self.moments: dict[str, Floats] = {}
        self.heights = np.zeros(len(HEIGHTS), dtype=np.int64)
        self.histogram = (np.zeros(BINS, dtype=np.int64), np.zeros(BINS))
        self.tails: Counter[tuple[float, float]] = Counter()
        self.tail_lengths: Counter[int] = Counter()
        self.first_bad: dict[str, int] = {}
        self.lengths = (2**62, 0)
        self.label_codes: dict[str, dict[str, int]] = {}
        self.beyond = (0, 0.0)

    def keep(self, name: str, values: Any) -> None:
        self.answers.setdefault(name, []).append(values)

    def bet(self, name: str, log_wealth: Floats) -> None:
        self.bets[name] = self.bets.get(name, np.zeros_like(log_wealth)) + log_wealth

    def bad(self, name: str, row: int, count: int) -> None:
        self.counts[f"bad_{name}"] += count
        self.first_bad.setdefault(name, row)


def tally(chunks: Iterable[Chunk]) -> Tally:
    """Reduce a stream of chunks to a `Tally`."""
    run, columns, rows = _Running(), frozenset[str](), 0
    for whole in chunks:
        columns = frozenset(whole.columns)
        chunk = _without_probes(run, whole) if "probe_id" in columns else whole
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
        k3_histogram=run.histogram,
        list_lengths=run.lengths,
        tails=run.tails,
        tail_lengths=run.tail_lengths,
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
            run.keep("probe_ref_total", np.bincount(owner, weights=counted, minlength=chunk.rows)[rows])
            run.keep("probe_n", np.bincount(owner, weights=chunk.mask, minlength=chunk.rows).astype(np.int64)[rows])
        else:
            run.keep("probe_ref_total", chunk.numbers["seq_ref_logp"][rows])
            run.keep("probe_n", np.ones(len(coded), dtype=np.int64))
    kept = np.flatnonzero(~rows)
    inside = np.repeat(~rows, np.diff(chunk.offsets))
    return replace(
        chunk,
        rows=kept.size,
        numbered=chunk.first_row + kept,
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
    if rows:
        run.lengths = (min(run.lengths[0], int(lengths.min())), max(run.lengths[1], int(lengths.max())))
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
    good = np.isfinite(logp) & np.isfinite(ref)
    for name in chunk.tokens:
        bad = ~np.isfinite(chunk.tokens[name][active])
        if bad.any():
            run.bad(name, chunk.row(int(owner[np.flatnonzero(bad)[0]])), int(bad.sum()))
    _padding(run, logp, ref, owner, n)
    with np.errstate(invalid="ignore"):
        delta = np.where(good, logp - ref, 0.0)
    _identity(run, delta, good, owner, rows)
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
    with np.errstate(over="ignore"):  # an infinite ratio is told as such; the bets and the evidence can take it
        up, down = np.exp(-finite), np.exp(finite)
        squares = {"ww": float((up * up).sum()), "vv": float((down * down).sum())}
    third = kl.k3(finite)
    run.counts["tokens"] += int(good.size)
    run.counts["granted"] += int(good.size)
    run.counts["finite"] += int(good.sum())
    for name, values in (("w", up), ("v", down), ("delta", finite)):
        run.counts[name] += float(values.sum())
    for name, total in squares.items():
        run.counts[name] += total
    run.counts["square"] += float(np.square(finite).sum())
    run.counts["absolute"] += float(np.abs(finite).sum())
    run.counts["zero_delta"] += int((finite == 0).sum())
    run.counts["clamped"] += int((third >= 10).sum())
    run.bet("identity", log_e_above(np.where(good, np.exp(np.minimum(-delta, 700.0)), 0.0)))
    run.bet("swapped", log_e_above(np.where(good, np.exp(np.minimum(delta, 700.0)), 0.0)))
    run.heights += np.array([int((finite <= -h).sum()) for h in HEIGHTS])
    for name, values in (("delta", finite), ("square", np.square(finite)), ("ratio", up)):
        run.keep(name, np.bincount(who, weights=values, minlength=rows))
    with np.errstate(divide="ignore"):
        decades = np.clip(np.log10(third) - LOWEST, 0, BINS / PER_DECADE - 0.5 / PER_DECADE)
    where = (decades * PER_DECADE).astype(np.int64)
    run.histogram[0][:] += np.bincount(where, minlength=BINS)
    run.histogram[1][:] += np.bincount(where, weights=third, minlength=BINS)


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

    Distances are cut off at 1 nat, or a few large log ratios would speak for the whole answer.
    """
    pair = np.flatnonzero((owner[1:] == owner[:-1]) & (np.diff(position) == 1) & good[1:] & good[:-1])
    who = owner[pair]
    judged = np.bincount(who, minlength=rows) >= 4

    def distance(a: Ints, b: Ints) -> Floats:
        apart = np.minimum(np.abs(left[a] - right[b]), 1.0)
        return np.asarray(np.bincount(who, weights=apart, minlength=rows), dtype=np.float64)

    here = (distance(pair, pair) + distance(pair + 1, pair + 1)) / 2
    run.counts[f"{name}_judged"] += int(judged.sum())
    run.counts[f"{name}_pairs"] += int(pair.size)
    run.counts[f"{name}_distance"] += float(here.sum())
    for label, a, b in (("later", pair, pair + 1), ("earlier", pair + 1, pair)):
        moved = distance(a, b)
        run.counts[f"{name}_{label}"] += int((judged & (moved < NEARER * here)).sum())
        run.counts[f"{name}_{label}_distance"] += float(moved.sum())


def _padding(run: _Running, logp: Floats, ref: Floats, owner: Ints, n: Ints) -> None:
    """Values no softmax gives, and answers that end in one value repeated."""
    for name, values in (("logp", logp), ("ref_logp", ref)):
        run.counts[f"positive_{name}"] += int((values > POSITIVE).sum())
        run.counts[f"sentinel_{name}"] += int(((values <= SENTINEL) & np.isfinite(values)).sum())
    if logp.size == 0:
        return
    same = np.zeros(logp.size, dtype=bool)
    same[1:] = (owner[1:] == owner[:-1]) & (logp[1:] == logp[:-1]) & (ref[1:] == ref[:-1])
    start = np.where(same, -1, np.arange(logp.size))
    ends = np.cumsum(n)[n > 0] - 1
    begins = ends - n[n > 0] + 1
    length = ends - np.maximum.reduceat(start, begins) + 1
    whole = ends[np.isfinite(logp[ends]) & np.isfinite(ref[ends])]
    last = logp[whole] - ref[whole]
    run.counts["last_delta"] += float(last.sum())
    run.counts["last"] += int(last.size)
    repeated = length >= 2
    for end, run_length in zip(ends[repeated], length[repeated], strict=True):
        run.tails[float(logp[end]), float(ref[end])] += 1
        run.tail_lengths[int(run_length)] += 1
    run.counts["tail_tokens"] += int(length[repeated].sum())
    run.counts["neighbours"] += int(logp.size - begins.size)
    run.counts["repeats"] += int(same.sum())
    run.counts["endings"] += int((n >= 2).sum())
    zero = (logp == 0) & (ref == 0)
    run.counts["zero_pairs"] += int(zero.sum())
    run.counts["zero_tail"] += int(length[repeated & zero[ends]].sum())


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
        run.counts["sampler_capped"] += float(np.minimum(ratio[both], 2.0).sum())
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
        run.keep("surprisal_gap", np.bincount(owner, weights=gap, minlength=rows))
