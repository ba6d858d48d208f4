"""Are the numbers numbers, and do they belong to answers? NON_FINITE, MASK, PADDING, SUMS."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kleash.audit.chance import SCORING_NOISE, more_at_the_end
from kleash.audit.dumps.needs import SUMS, TOKENS
from kleash.audit.dumps.neighbours import POSITIVE, SENTINEL, SIDES
from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, number

if TYPE_CHECKING:
    from kleash.audit.dumps.neighbours import Edges, Repeats
    from kleash.audit.dumps.statistics import Tally

__all__ = ["mask", "non_finite", "padding", "sums"]


@check("NON_FINITE", problem="any null, NaN or infinity; no chance involved")
def non_finite(tally: Tally, level: float) -> Finding:
    """Is every counted value a number?"""
    first = tally.faults.first
    bad = {name: count for name, count in tally.faults.counts.items() if name not in ("mask", "length")}
    evidence = Evidence(values=bad, first_row=dict(first) if bad else {})
    if bad:
        listed = ", ".join(f"{count} in {name} (first: row {first[name]})" for name, count in bad.items())
        return evidence.problem(
            f"values that are not numbers under the mask: {listed}",
            "tokens filtered by top-k or top-p were scored with the filter on and got -inf",
            "exp of a large log ratio overflowed, or a batch without active tokens was divided by 0",
            fix="score without the filter, or take these tokens out of the mask; then read the other checks",
        )
    return evidence.ok("every counted value is a finite number")


@check("MASK", TOKENS, problem="any answer without one; no chance involved")
def mask(tally: Tally, level: float) -> Finding:
    """Does every answer have a counted token?

    The mean of one without is 0/0.
    """
    empty = tally.faults.counts["mask"]
    evidence = Evidence(empty_answers=empty, answers=tally.rows, tokens_counted=tally.tokens, tokens=tally.listed)
    if empty:
        return evidence.problem(
            f"{empty} of {tally.rows} answers have no counted token (first: row {tally.faults.first['mask']})",
            "answers cut at the length limit are masked out whole",
            "the mask is shifted, inverted or that of the prompt",
            fix="leave such answers out before anything is averaged: a mean over no token is 0/0",
        )
    return evidence.ok(f"every answer has counted tokens ({tally.tokens} of {tally.listed} listed)")


@check(
    "PADDING",
    TOKENS,
    problem="fill values; more tokens than length; one value repeated at an edge of answers, Fisher's exact test",
    chance=True,
)
def padding(tally: Tally, level: float) -> Finding:
    """Is padding counted as text?

    Padding that the mask lets in shows in values no softmax gives, and in answers that begin or end in one value.

    ``problem``: a log-probability above 0.25 (rounding of bfloat16 logits near 32 gives at most that; fills of 1.0 are
    in use) or finite and below -1000 (a fill such as -1e9; logits would have to differ by 1000), or more counted tokens
    than ``length`` says: no chance involved. Or the last token of most answers is exactly 0 where no other token is (a
    model that is so certain of an ending is certain of other tokens too). Or one value of one column, repeated at the
    start or the end of more answers than repeats elsewhere explain (two neighbouring tokens of a model hardly ever
    agree in every digit). Tokens that are certain (above -0.01) agree in honest answers too, a closing tag and the end
    token for one: without a mask or ``length`` they are ``cannot-tell``, never a fault.
    """
    edges, passed = tally.edges, tally.faults.counts["length"]
    fill, sure = _likeliest(edges, edges.fill), _likeliest(edges, edges.certain)
    half = max(
        more_at_the_end(math.ceil(edges.answers / 2), edges.answers, found.pairs, edges.neighbours)
        for found in edges.fill.values()
    )
    evidence = Evidence(
        positive=edges.positive,
        sentinel=edges.sentinel,
        answers_longer_than_length=passed,
        answers_with_a_repeated_value_at_the_edge=fill.times,
        answers_with_certain_tokens_at_the_edge=sure.times,
        exact_zeros_first_last_elsewhere={name: counts.tolist() for name, counts in edges.zeros.items()},
        certain_tokens_at_ends=sum(found.runs["end"] for found in edges.certain.values()),
        p_value=fill.p_value,
        p_value_if_half_were_padded=half,
        level=level,
        kl_per_token=float(tally.delta.sum()) / tally.tokens if tally.tokens else None,
        kl_last_token=edges.last_delta / edges.last if edges.last else None,
        kl_spec=tally.kl_specs(kl_per_token="nats per token", kl_last_token="nats per token"),
    )
    reasons = [f"{edges.positive} log-probabilities above {POSITIVE:g}"] * bool(edges.positive)
    reasons += [f"{edges.sentinel} below {SENTINEL:g}"] * bool(edges.sentinel)
    if passed:
        first = tally.faults.first["length"]
        reasons.append(f"{passed} answers have more counted tokens than length (first: row {first})")
    first_zero, last_zero = (_only_at_edge(edges, side) for side in (0, 1))
    if last_zero:
        reasons.append(f"the last token of {last_zero} answers is exactly 0, and no other token is")
    if fill.p_value < level / fill.looked_at:
        reasons.append(f"{fill.times} answers {fill.side} in the repeated {fill.column} {fill.value:g}")
    if reasons:
        return evidence.problem(
            f"padding is counted as text: {'; '.join(reasons)}",
            "no mask, or a mask of the padded length, in the mean of the KL",
            "a mask that is off by one and takes in the first padding token",
            "padding on the left, and a mask or a slice made for padding on the right",
            fix="mask up to and including the end token, and divide by the number of counted tokens",
        )
    if first_zero:
        return evidence.cannot_tell(
            f"the first token of {first_zero} answers is exactly 0, and no other is: a fill, or forced by the format",
            fix="mask the first token if no model has scored it",
        )
    told = tally.tokens < tally.listed or (tally.rows > 0 and tally.sized >= tally.rows)
    if sure.p_value < level / sure.looked_at and not told:
        return evidence.cannot_tell(
            f"{sure.times} answers {sure.side} in certain tokens of {sure.column}: padding of zeros, or a closing tag "
            f"and the end token",
            fix="give the mask, or length (counted tokens)",
        )
    if half >= level / fill.looked_at:
        message = f"{edges.answers} answers of two tokens or more: too few to tell an ending from chance"
        return evidence.cannot_tell(message, fix="give more answers")
    return evidence.ok("no fill values and no repeated starts or endings under the mask")


def _only_at_edge(edges: Edges, side: int) -> int:
    """In how many answers the first (0) or last (1) token alone is exactly 0, if in most; 1 % elsewhere passes."""
    counts = [(int(zeros[side]), int(zeros[2])) for zeros in edges.zeros.values()]
    return max(edge if edge > max(edges.answers / 2, 7) and 100 * other < edge else 0 for edge, other in counts)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The run of one value at a side of answers that chance explains least, of so many looked at."""

    column: str
    side: str
    value: float
    times: int
    p_value: float
    looked_at: int


def _likeliest(edges: Edges, columns: dict[str, Repeats]) -> _Run:
    found = []
    for column, repeats in columns.items():
        for side in SIDES:
            (value, times), *_ = repeats.values[side].most_common(1) or [(math.nan, 0)]
            elsewhere, places = repeats.pairs - repeats.runs[side], edges.neighbours - repeats.runs[side]
            p = more_at_the_end(times, edges.answers, max(elsewhere, 0), max(places, 0))
            found.append((p, column, side, value, times))
    p, column, side, value, times = min(found, key=lambda run: run[0])
    return _Run(column=column, side=side, value=value, times=times, p_value=p, looked_at=len(found))


@check("SUMS", TOKENS, SUMS, problem="1 % of sums off by 6 standard deviations of scoring noise")
def sums(tally: Tally, level: float) -> Finding:
    """Are the sequence sums the sums of the tokens?

    The noise is 0.05 per token; 0.1 % of the sum is granted too (float32 accumulation).
    """
    off, ratio = tally.sums_off, tally.sums_ratio
    share = off / (2 * tally.rows)
    length = float(tally.n.mean())
    evidence = Evidence(
        share_off=share, median_ratio=ratio if off else 1.0, mean_length=length, noise_per_token=SCORING_NOISE
    )
    if share >= 0.01:
        mean = abs(ratio * length - 1) < 0.25
        what = "they look like means over tokens" if mean else "unmasked tokens or another scoring?"
        return evidence.problem(
            f"seq_logp is not the sum of logp ({share:.0%} of sums off, ratio {number(ratio)}): {what}",
            "a mean over tokens is used where the sum is meant: beta then acts 1/length as strongly",
            "the sum runs over padding or prompt tokens that the mask leaves out",
            fix="sum the counted tokens, and say in the log which of the two it is",
        )
    return evidence.ok("seq_logp and seq_ref_logp are the sums of the counted tokens")
