"""Are the numbers numbers, and do they belong to answers? NON_FINITE, MASK, PADDING, SUMS."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kleash.audit.chance import SCORING_NOISE, more_at_the_end
from kleash.audit.dumps.needs import SUMS, TOKENS
from kleash.audit.dumps.statistics import POSITIVE, SENTINEL
from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, number

if TYPE_CHECKING:
    from kleash.audit.dumps.statistics import Tally

SIDES = ("start", "end")

__all__ = ["mask", "non_finite", "padding", "sums"]


@check("NON_FINITE", problem="any null, NaN or infinity; no chance involved")
def non_finite(tally: Tally, level: float) -> Finding:
    """Is every counted value a number?"""
    bad = {name[4:]: int(count) for name, count in tally.counts.items() if name.startswith("bad_") and count}
    evidence = Evidence(values=bad, first_row=dict(tally.first_bad) if bad else {})
    if bad:
        listed = ", ".join(f"{count} in {name} (first: row {tally.first_bad[name]})" for name, count in bad.items())
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
    empty = int(tally.counts["empty"])
    evidence = Evidence(empty_answers=empty, answers=tally.rows, tokens_counted=tally.tokens, tokens=tally.listed)
    if empty:
        return evidence.problem(
            f"{empty} of {tally.rows} answers have no counted token (first: row {tally.first_bad['mask']})",
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
    than ``length`` says: no chance involved. Or one value of one column, repeated at the start or the end of more
    answers than repeats elsewhere explain (two neighbouring tokens of a model hardly ever agree in every digit). Tokens
    that are certain (above -0.01) agree in honest answers too, a closing tag and the end token for one: without a mask
    or ``length`` they are ``cannot-tell``, never a fault.
    """
    counts = tally.counts
    positive = int(counts["positive_logp"] + counts["positive_ref_logp"])
    sentinel = int(counts["sentinel_logp"] + counts["sentinel_ref_logp"])
    passed, edges = int(counts["length_passed"]), int(counts["edges"])
    fills = {(name, side): _edge(tally, f"fill_{name}", side, edges) for name in ("logp", "ref_logp") for side in SIDES}
    sure = {
        (name, side): _edge(tally, f"certain_{name}", side, edges) for name in ("logp", "ref_logp") for side in SIDES
    }
    (name, side), (p_fill, fill, times) = min(fills.items(), key=lambda item: item[1][0])
    (sure_name, sure_side), (p_sure, _, sure_times) = min(sure.items(), key=lambda item: item[1][0])
    half = max(
        more_at_the_end(math.ceil(edges / 2), edges, int(counts[f"fill_{n}"]), int(counts["neighbours"]))
        for n in ("logp", "ref_logp")
    )
    total = float(tally.delta.sum())
    evidence = Evidence(
        positive=positive,
        sentinel=sentinel,
        answers_longer_than_length=passed,
        answers_with_a_repeated_value_at_the_edge=times,
        answers_with_certain_tokens_at_the_edge=sure_times,
        certain_tokens_at_ends=int(counts["certain_logp_end"] + counts["certain_ref_logp_end"]),
        p_value=p_fill,
        p_value_if_half_were_padded=half,
        level=level,
        kl_per_token=total / tally.tokens if tally.tokens else None,
        kl_last_token=counts["last_delta"] / counts["last"] if counts["last"] else None,
        kl_spec=tally.kl_specs(kl_per_token="nats per token", kl_last_token="nats per token"),
    )
    reasons = []
    if positive:
        reasons.append(f"{positive} log-probabilities above {POSITIVE:g}")
    if sentinel:
        reasons.append(f"{sentinel} below {SENTINEL:g}")
    if passed:
        reasons.append(
            f"{passed} answers have more counted tokens than length (first: row {tally.first_bad['length']})"
        )
    if p_fill < level / len(fills):
        reasons.append(f"{times} answers {side} in the repeated {name} {fill:g}")
    if reasons:
        return evidence.problem(
            f"padding is counted as text: {'; '.join(reasons)}",
            "no mask, or a mask of the padded length, in the mean of the KL",
            "a mask that is off by one and takes in the first padding token",
            "padding on the left, and a mask or a slice made for padding on the right",
            fix="mask up to and including the end token, and divide by the number of counted tokens",
        )
    told = tally.tokens < tally.listed or (tally.rows > 0 and counts["length_given"] >= tally.rows)
    if p_sure < level / len(sure) and not told:
        message = (
            f"{sure_times} answers {sure_side} in certain tokens of {sure_name}: padding of zeros, or a closing tag "
            f"and the end token"
        )
        return evidence.cannot_tell(message, fix="give the mask, or length (counted tokens)")
    if half >= level / len(fills):
        message = f"{edges} answers of two tokens or more: too few to tell an ending from chance"
        return evidence.cannot_tell(message, fix="give more answers")
    return evidence.ok("no fill values and no repeated starts or endings under the mask")


def _edge(tally: Tally, name: str, side: str, edges: int) -> tuple[float, float, int]:
    """Chance of so many answers with one repeated value at a side, that value, and how many they are."""
    found = tally.edges.get((name, side))
    if not found:
        return 1.0, math.nan, 0
    value, times = found.most_common(1)[0]
    run = int(tally.counts[f"{name}_{side}"])
    elsewhere, places = int(tally.counts[name]) - run, int(tally.counts["neighbours"]) - run
    return more_at_the_end(times, edges, max(elsewhere, 0), max(places, 0)), value, times


@check("SUMS", TOKENS, SUMS, problem="1 % of sums off by 6 standard deviations of scoring noise")
def sums(tally: Tally, level: float) -> Finding:
    """Are the sequence sums the sums of the tokens?

    The noise is 0.05 per token; 0.1 % of the sum is granted too (float32 accumulation).
    """
    off, ratio = tally.beyond_sums
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
