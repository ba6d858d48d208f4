"""Can a KL have these values? KL_NEGATIVE, KL_ZERO and STEP0_KL of a log, read without a model of the run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.chance import SCORING_NOISE
from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, cannot_tell, number
from kleash.audit.logs.needs import KL, MOVES, STARTS
from kleash.audit.logs.view import series
from kleash.kl import ESTIMATORS
from kleash.trainers import TABLE

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView
    from kleash.logs.table import KLColumn

__all__ = ["kl_negative", "kl_zero", "step0_kl"]

STEP0_PER_TOKEN = 0.02
"""Nats per token that the first row may show. Ours: scoring noise of 0.05 gives 0.00125, one update little more;
.03 was called too large for a 4B model (PrimeIntellect-ai/prime-rl issue 2671)."""
STEP0_PER_ANSWER = 1.0
LATE, REACH, DPO_REWARD = 5.0, 1e-4, 0.1
"""Of a first row after some steps: times the limit above, and how far each weight may have moved by then (weights are
some hundredths); and of DPO a reward, beta times nats of an answer. Ours."""
START_CAUSES = (
    "the reference is not the model that training starts from (the base model, an adapter left on or off)",
    "dropout is on while log-probabilities are scored",
    "temperature or precision differ between policy and reference",
)
START_FIX = "score one text with both models before training: the log-probabilities must agree"
FLOAT32, BFLOAT16 = 2.0**-22, 2.0**-8
"""How far below 0 the k3 of a token, exp(x) - x - 1, may come out: the spacing of the numbers near 1, four units of it
in float32 (a batch of 2,000 tokens gave -7e-10)."""
LN2_MARGIN = 5e-4
NEGATIVE_CAUSES = (
    "the tokens were not drawn from the scored distribution: temperature, top-p, top-k, a suppressed end token",
    "sampler and scorer hold different weights or scores (quantised base, dropout, adapters)",
    "padding or prompt tokens are counted",
)
NEGATIVE_FIX = "dump logp and ref_logp of sampled tokens and check them: kleash check rollouts.jsonl"


@check(
    "KL_NEGATIVE", KL, problem="Markov bound on the sum over rows, exact level; k3 by more than rounding", chance=True
)
def kl_negative(view: LogView, level: float) -> Finding:
    """Is the KL negative beyond chance?

    ``problem``: k2 or k3 below 0 by more than rounding; k1 that sums over the rows to less than ``log(level)``. For
    honest samples ``exp(-mean log ratio)`` of a batch has mean at most 1 (Markov, Jensen), and so has the product over
    rows, whatever the batch size; scoring noise of 0.05 nats per token is granted. Where a row is known to be a mean of
    several answers, ``exp(-their sum)`` has it too.

    Notes
    -----
    That holds for sums over answers, and for means over all tokens of a batch times the mean length. The mean of
    answers' own token means (verl in the reward, OpenRLHF, slime) may be negative in an honest run: where short answers
    become rare, each has a negative log ratio that counts as much as the small positive ones of long answers. With
    ``E exp(-m; m < 0) <= 1`` its ``exp(-m)`` has a mean of at most 2, which is the bound then; what is negative and
    inside it is ``cannot-tell``.
    """
    kl = view.kl
    assert kl is not None
    x = view.kl_series.values
    grant = float(view.error(kl.key, x).max())
    evidence = Evidence(column=kl.key, least=float(x.min()), rows=int(x.size))
    if kl.spec.estimator == "full" or not ESTIMATORS[kl.spec.estimator].signed:
        return _never_below_0(kl, float(x.min()), grant, evidence)
    # per token, at least one token each, is a weaker test of the same hypothesis
    answers = view.per_answer if view.per_answer.size else view.kl_series
    length = view.log.length
    tokens = np.ones(answers.size) if length is None else np.asarray(length)[answers.rows]
    noise = SCORING_NOISE**2 / 2 * np.where(np.isfinite(tokens), tokens, 1.0)
    total, allowed = (kl.answers * float((answers.values + side * noise).sum()) + grant for side in (-1, 1))
    own_means = (kl.spec.unit == "nats per token" or not kl.unit_known) and not view.trainer.token_means
    evidence |= {"sum": total, "limit": math.log(level), "mean": float(x.mean()), "level": level}
    mean = f"{kl.key} is {number(x.mean())} in the mean"
    least = float(x.sum()) + grant + x.size * (SCORING_NOISE**2 / 2 + math.log(2))
    if own_means and allowed < math.log(level) <= least:
        return evidence.cannot_tell(
            f"{mean}, as a mean of answers' means may be",
            "short answers become rare: each counts as much as a long one",
            *NEGATIVE_CAUSES,
            fix=NEGATIVE_FIX,
        )
    if allowed < math.log(level):
        return evidence.problem(f"{mean}: a KL cannot be negative", *NEGATIVE_CAUSES, fix=NEGATIVE_FIX)
    return evidence.ok(f"{mean}: not negative beyond chance")


def _never_below_0(kl: KLColumn, least: float, grant: float, evidence: Evidence) -> Finding:
    """Of estimators that are no less than 0 token by token, up to rounding."""
    coarse, fine = (BFLOAT16, FLOAT32) if kl.spec.estimator == "k3" else (0.0, 0.0)
    evidence |= {"rounding": fine + grant}
    if least < -coarse - grant:
        return evidence.problem(
            f"{kl.key} is {number(least)}, which {kl.spec.estimator} cannot be",
            "another estimator, k1, is logged",
            *NEGATIVE_CAUSES,
            fix=NEGATIVE_FIX,
        )
    if least < -fine - grant:
        return evidence.cannot_tell(
            f"{kl.key} is {number(least)} at the least: exp(x) - x - 1 in bfloat16, or k1 under this name",
            fix="score in float32; the trainer's estimator option says which it is",
        )
    below = "never below 0" if least >= 0 else f"{number(least)} at the least: 0 in float32"
    return evidence.ok(f"{kl.key} is {below}")


@check("KL_ZERO", MOVES, problem="KL exactly 0 after the first row; DPO's loss stays at ln 2")
def kl_zero(view: LogView, level: float) -> Finding:
    """Has the policy moved at all?

    Five rows or more, printed with enough digits to tell; for DPO the margins stay at 0 too. No chance is involved.
    """
    causes = (
        "policy and reference share their weights (an adapter that is not disabled, one model object twice)",
        "the weights do not move: frozen adapter, learning rate 0, an engine that is never synchronised",
        "beta is 0 (DPO)",
    )
    fix = "compare a weight before and after an update; score one text with both models"
    if view.trainer.logs_no_kl:
        return _dpo_zero(view, causes, fix)
    if view.kl is None:
        return cannot_tell("no KL in this run")
    x = view.kl_series.values[1:]
    if x.size < 4:
        return cannot_tell(f"{x.size + 1} rows with a KL", fix="give five rows or more")
    places = view.log.decimals.get(view.kl.key, -1)
    evidence = Evidence(rows=int(x.size), largest=float(np.abs(x).max()), decimals=places)
    if np.abs(x).max() > 0:
        return evidence.ok(f"the KL reaches {number(np.abs(x).max())}: not 0 throughout")
    if 1 < places < 5:
        message = f"{view.kl.key} prints as 0 with {places} decimals in every row"
        return evidence.cannot_tell(message, fix="log more digits")
    return evidence.problem(
        f"{view.kl.key} is exactly 0 in {x.size} rows after the first: nothing moves", *causes, fix=fix
    )


def _dpo_zero(view: LogView, causes: tuple[str, ...], fix: str) -> Finding:
    loss, margin = view.raw("loss"), view.raw("rewards/margins")
    if loss is None:
        return cannot_tell("no loss in this log")
    x = loss[np.isfinite(loss)]
    if x.size < 5:
        return cannot_tell(f"{x.size} rows", fix="give five rows or more")
    late = x[x.size // 2 :]
    evidence = Evidence(rows=int(x.size), loss_last=float(x[-1]), ln2=math.log(2))
    still = float(np.abs(late - math.log(2)).max()) < LN2_MARGIN
    if margin is not None:
        m = margin[np.isfinite(margin)]
        evidence["margin_largest"] = float(np.abs(m).max()) if m.size else 0.0
        still = still and (m.size == 0 or float(np.abs(m[m.size // 2 :]).max()) < 2 * LN2_MARGIN)
    if still:
        return evidence.problem(
            f"the loss stays at ln 2 = .6931 ({number(x[-1])}): policy is reference", *causes, fix=fix
        )
    return evidence.ok(f"the loss leaves ln 2 ({number(x[-1])}): not still")


SOON = 20
"""Steps in which no penalty takes a wrong reference's KL away, twice the default of Hugging Face's logging. Ours."""
LATER = "log the first step (logging_first_step in trainers of Hugging Face): step 0 or 1 decides"


@check("STEP0_KL", STARTS, problem="first row, of step 0 or 1, above 0.02 nats per token; a later one as below")
def step0_kl(view: LogView, level: float) -> Finding:
    """Is the policy its reference at the start?

    Of a plain table: of step 0. 1 nat per answer without a length. A log without steps may begin anywhere: cannot-tell.
    A first row up to step `SOON` that is not above the limit is ok: what is wrong from the start does not go in a few
    steps. To be a problem a late one must be above `LATE` times that, at the level that the next rows keep, and the
    steps before it too small for it: the learning rate times their number, which is how far Adam moves a weight, below
    `REACH`. Of DPO: its rewards, which are beta times a log ratio, above `DPO_REWARD`.
    """
    if view.trainer.logs_no_kl:
        return _dpo_start(view)
    x = view.per_token
    first = float(x.step[0])
    gap = float(x.step[1] - x.step[0]) if x.size > 1 else 1.0
    value = float(x.values[0])
    limit = view.level(STEP0_PER_TOKEN, STEP0_PER_ANSWER)
    unit = "nats per token" if view.token_unit else "nats per answer"
    evidence = Evidence(step=first, kl=value, limit=limit, unit=unit)
    if (first > 1 or (first == 1 and gap > 5)) and _already_there(view, limit):
        return evidence.problem(
            f"KL {number(value)} {unit} at step {first:g}, the first logged, and level from there on",
            *START_CAUSES,
            fix=START_FIX,
        )
    if (first > 1 or (first == 1 and gap > 5)) and not (first <= SOON and 0 <= value <= limit):
        message = f"the first row with a KL is of step {first:g}: {number(value)} {unit} may have been reached by then"
        return evidence.cannot_tell(message, fix=LATER)
    if abs(value) > limit and (view.log.numbered or (view.trainer is TABLE and first != 0)):
        first_row = "the log holds no steps" if view.log.numbered else f"step {first:g} of a table may follow updates"
        message = f"KL {number(value)} {unit} in the first row; {first_row}"
        return evidence.cannot_tell(message, fix="log the KL before the first update, as step 0")
    if abs(value) > limit:
        return evidence.problem(
            f"KL {number(value)} {unit} at step {first:g}, before the policy has moved",
            *START_CAUSES,
            fix=START_FIX,
        )
    return evidence.ok(f"KL {number(value)} {unit} at step {first:g}, not above {number(limit)}")


def _already_there(view: LogView, limit: float) -> bool:
    """Whether the first rows stand at one level, too high for the steps before them."""
    x, rate = view.per_token, view.raw("learning_rate", "actor/lr", "lr")
    if x.size < 6 or rate is None or view.log.numbered or not np.isfinite(rate[: x.rows[0] + 1]).any():
        return False
    first, after = float(x.values[0]), float(np.median(x.values[1:6]))
    near = float(np.nanmax(rate[: x.rows[0] + 1])) * float(x.step[0]) <= REACH
    return near and first > LATE * limit and 0.5 * first < after < 1.5 * first


def _dpo_start(view: LogView) -> Finding:
    keys = [key for name in ("chosen", "rejected", "margins") if (key := view.key(f"rewards/{name}")) is not None]
    seen = {key: series(view.log, view.raw(key)) for key in keys}
    seen = {key: x for key, x in seen.items() if x.size}
    if not seen:
        return cannot_tell("DPO's rewards have no number")
    key = max(seen, key=lambda k: abs(float(seen[k].values[0])))
    first, value = float(seen[key].step[0]), float(seen[key].values[0])
    evidence = Evidence(step=first, reward=value, limit=DPO_REWARD, column=key)
    if view.log.numbered or (first > 1 and (first > SOON or abs(value) > DPO_REWARD)):
        at = "the log holds no steps" if view.log.numbered else f"the first row is of step {first:g}"
        return evidence.cannot_tell(f"{at}: {key} {number(value)} may have been reached by then", fix=LATER)
    if abs(value) > DPO_REWARD:
        return evidence.problem(
            f"{key} is {number(value)} at step {first:g}, before the policy has moved", *START_CAUSES, fix=START_FIX
        )
    return evidence.ok(f"{key} is {number(value)} at step {first:g}, not above {DPO_REWARD:g}")
