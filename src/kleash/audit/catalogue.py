"""Which checks are there, what does each need, and when does it speak? The one list that everything else reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit import gradient, identity, masks, reference, rewards, sampling, scoring
from kleash.audit.evidence import FAMILY_LEVEL
from kleash.audit.findings import Check, Finding, cannot_tell

if TYPE_CHECKING:
    from kleash.audit.declared import Declared
    from kleash.audit.tally import Tally

__all__ = ["CHECKS", "NEEDS", "run_checks"]


def _steps(tally: Tally) -> int:
    return 0 if tally.step is None else int(np.unique(tally.step[np.isfinite(tally.step)]).size)


def _column(name: str) -> Callable[[Tally, Declared], bool]:
    return lambda tally, declared: name in tally.columns


NEEDS: dict[str, tuple[str, Callable[[Tally, Declared], bool]]] = {
    "tokens": ("logp and ref_logp per token", lambda t, d: t.has_tokens and t.rows > 0),
    "counted": (
        "counted, finite log-probabilities of samples",
        lambda t, d: t.counts["finite" if "drawn" not in t.counts else "drawn"] > 0,
    ),
    "behavior_logp": ("behavior_logp per token", lambda t, d: t.counts["sampler"] > 0),
    "entropy": ("entropy per token", lambda t, d: t.counts["surprisal"] > 0),
    "sums": ("seq_logp and seq_ref_logp beside the lists", _column("seq_logp")),
    "step": ("step", lambda t, d: _steps(t) > 0),
    "step 0": ("answers with step 0", lambda t, d: t.step is not None and bool(((t.step == 0) & (t.n > 0)).any())),
    "steps": ("answers of two steps", lambda t, d: _steps(t) > 1),
    "two sides": (
        "behavior_logp, or answers with step 0",
        lambda t, d: t.counts["sampler"] > 0 or bool(t.step is not None and (t.step == 0).any()),
    ),
    "reward": ("reward", lambda t, d: "reward" in t.numbers and bool(np.isfinite(t.numbers["reward"]).any())),
    "gold": ("gold", lambda t, d: "gold" in t.numbers and bool(np.isfinite(t.numbers["gold"]).any())),
    "prompt_id": ("prompt_id", _column("prompt_id")),
    "probes": ("rows with probe_id and step (texts scored again)", lambda t, d: t.probes is not None),
    "beta": ("the declared beta (--beta)", lambda t, d: d.beta is not None),
    "range": ("the judge's range (--reward-range)", lambda t, d: d.reward_range is not None),
    "term": ("estimator and placement (--config)", lambda t, d: d.estimator is not None and d.placement is not None),
}

CHECKS: tuple[Check, ...] = (
    Check(
        code="NON_FINITE",
        asks="Is every counted value a number?",
        needs=(),
        rule="any null, NaN or infinity; no chance involved",
        run=masks.non_finite,
        chance=False,
    ),
    Check(
        code="MASK",
        asks="Does every answer have a counted token?",
        needs=("tokens",),
        rule="any answer without one; no chance involved",
        run=masks.mask,
        chance=False,
    ),
    Check(
        code="PADDING",
        asks="Is padding counted as text?",
        needs=("tokens",),
        rule="fill values; more tokens than length; one value repeated at an edge of answers, Fisher's exact test",
        run=masks.padding,
    ),
    Check(
        code="SUMS",
        asks="Are the sequence sums the sums of the tokens?",
        needs=("tokens", "sums"),
        rule="1 % of sums off by 6 standard deviations of scoring noise",
        run=masks.sums,
        chance=False,
    ),
    Check(
        code="IDENTITY",
        asks="Is mean exp(ref_logp - logp) 1, as for the policy's own samples?",
        needs=("counted",),
        rule="betting martingale (Ville), exact level, any tail",
        run=identity.identity,
    ),
    Check(
        code="KL_NEGATIVE",
        asks="Is the KL negative beyond chance?",
        needs=("counted",),
        rule="Markov bound on exp(-sum of log ratios), exact level, any tail",
        run=identity.kl_negative,
    ),
    Check(
        code="SIGN",
        asks="Are policy and reference exchanged?",
        needs=("counted",),
        rule="IDENTITY fails and the exchanged identity holds; at most IDENTITY's level",
        run=identity.sign,
        chance=False,
    ),
    Check(
        code="CONCENTRATION",
        asks="Do a few tokens carry the KL, more than chance gives?",
        needs=("tokens", "counted"),
        rule="binomial bound on the number of large ratios, exact level",
        run=identity.concentration,
    ),
    Check(
        code="OVERFLOW",
        asks="Does k3 overflow, or a clamp cut tokens off?",
        needs=("tokens", "counted"),
        rule="a token past float32 (88.7), or past 20 against the binomial bound",
        run=masks.overflow,
    ),
    Check(
        code="SHIFT",
        asks="Does one list fit the other better one position away?",
        needs=("tokens", "counted"),
        rule="exact sign test over answers",
        run=scoring.shift,
    ),
    Check(
        code="KL_ZERO",
        asks="Has the policy moved at all?",
        needs=("counted",),
        rule="every log ratio exactly 0 after five updates; no chance involved",
        run=scoring.kl_zero,
        chance=False,
    ),
    Check(
        code="STEP0_KL",
        asks="Is the policy its reference before the first update?",
        needs=("tokens", "counted", "step 0"),
        rule="t test of the squared log ratio against scoring noise (0.05 on each side)",
        run=scoring.step0_kl,
    ),
    Check(
        code="TEMPERATURE",
        asks="Are both sides scored at one temperature?",
        needs=("tokens", "counted", "two sides"),
        rule="slope between two regressions outside 1 +- 0.03 (sampler: 0.2), jackknife",
        run=scoring.temperature,
    ),
    Check(
        code="TRUNCATION",
        asks="How much of the policy's mass can the sampler reach?",
        needs=("tokens", "behavior_logp"),
        rule="betting martingale against a kept mass of .99, and the plain mean below it",
        run=sampling.truncation,
    ),
    Check(
        code="SAMPLER",
        asks="Do sampler and scorer agree on the tokens' probabilities?",
        needs=("tokens", "behavior_logp"),
        rule="betting martingale against a mean ratio of 1, exact level",
        run=sampling.sampler,
    ),
    Check(
        code="SURPRISAL",
        asks="Is mean surprisal the mean entropy?",
        needs=("tokens", "entropy"),
        rule="betting martingale against +- 0.01 nats per token, exact level",
        run=sampling.surprisal,
    ),
    Check(
        code="REFERENCE_DRIFT",
        asks="Does the reference score the same text alike at every step?",
        needs=("probes",),
        rule="t tests of mean and squared change beyond another kernel's",
        run=reference.reference_drift,
    ),
    Check(
        code="RESUME",
        asks="Does the distance from the reference collapse between steps?",
        needs=("tokens", "counted", "steps"),
        rule="t test over prompts of a tenfold fall of the mean squared log ratio that lasts",
        run=reference.resume,
    ),
    Check(
        code="COEFFICIENT",
        asks="Is the leash as tight as declared? (effective beta)",
        needs=("counted", "reward", "prompt_id", "beta"),
        rule="declared beta above the jackknife interval of the effective one",
        run=rewards.coefficient,
    ),
    Check(
        code="ZERO_VARIANCE",
        asks="In how many groups is the KL the only gradient?",
        needs=("reward", "prompt_id"),
        rule="exact binomial limit of the share above one half",
        run=rewards.zero_variance,
    ),
    Check(
        code="GAIN_BOUND",
        asks="Can this little KL have bought this much reward?",
        needs=("counted", "reward", "steps", "range"),
        rule="gain above (range / 2) sqrt(2 KL), t limits on both",
        run=rewards.gain_bound,
    ),
    Check(
        code="HACKING",
        asks="Does the judge's score rise while true quality falls?",
        needs=("counted", "reward", "gold", "steps"),
        rule="z tests of both, corrected for the choice of the best step",
        run=rewards.hacking,
    ),
    Check(
        code="GRADIENT",
        asks="Does the declared KL term pull towards the reference?",
        needs=("term",),
        rule="exact gradient is 0 or points away; no chance involved",
        run=gradient.gradient,
        chance=False,
    ),
)


def run_checks(tally: Tally, declared: Declared) -> list[Finding]:
    """Every check in the order of the catalogue, each at `FAMILY_LEVEL` divided by the tests that can run.

    A check whose needs are not met is ``not-run`` with the reason; it is never left out.
    """
    missing = {
        check.code: [NEEDS[name][0] for name in check.needs if not NEEDS[name][1](tally, declared)] for check in CHECKS
    }
    tests = sum(check.chance and not missing[check.code] for check in CHECKS)
    findings = []
    for check in CHECKS:
        lacking = missing[check.code]
        if lacking:
            reason = f"needs {' and '.join(lacking)}"
            findings.append(Finding(code=check.code, status="not-run", message=reason, evidence={"missing": lacking}))
        else:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                found = check.run(tally, declared, FAMILY_LEVEL / max(1, tests))
            findings.append(_defined(found))
    return findings


def _defined(finding: Finding) -> Finding:
    """A number that came out undefined is never ``ok``."""
    lost = [name for name, value in finding.evidence.items() if isinstance(value, float) and math.isnan(value)]
    if finding.status != "ok" or not lost:
        return finding
    return cannot_tell(
        finding.code,
        f"{', '.join(lost)} came out undefined: values in the dump leave the float range",
        evidence=finding.evidence,
        fix="mend NON_FINITE and PADDING first",
    )
