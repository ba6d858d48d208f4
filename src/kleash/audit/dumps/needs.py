"""What can a check of a dump not do without? Each need with its words and whether a dump meets it."""

from __future__ import annotations

import numpy as np

from kleash.audit.dumps.statistics import Tally
from kleash.audit.engine import Need


def _column(name: str, words: str | None = None) -> Need[Tally]:
    return Need(words=words or name, met=lambda t: name in t.columns)


def _number(name: str) -> Need[Tally]:
    return Need(words=name, met=lambda t: name in t.numbers and bool(np.isfinite(t.numbers[name]).any()))


def _steps(t: Tally) -> int:
    return 0 if t.step is None else int(np.unique(t.step[np.isfinite(t.step)]).size)


def _at_start(t: Tally) -> bool:
    return t.step is not None and bool((t.step == 0).any())


TOKENS: Need[Tally] = Need(words="logp and ref_logp per token", met=lambda t: t.has_tokens and t.rows > 0)
COUNTED: Need[Tally] = Need(
    words="counted, finite log-probabilities of samples",
    met=lambda t: (t.ratios.identity.n if t.has_tokens else t.ratios.finite) > 0,
)
BEHAVIOR_LOGP: Need[Tally] = Need(words="behavior_logp per token", met=lambda t: t.has_sampler)
ENTROPY: Need[Tally] = Need(words="entropy per token", met=lambda t: t.surprisal.tokens > 0)
SUMS = _column("seq_logp", "seq_logp and seq_ref_logp beside the lists")
STEP_0: Need[Tally] = Need(
    words="answers with step 0", met=lambda t: t.step is not None and bool(((t.step == 0) & (t.n > 0)).any())
)
STEPS: Need[Tally] = Need(words="answers of two steps", met=lambda t: _steps(t) > 1)
TWO_SIDES: Need[Tally] = Need(
    words="behavior_logp, or answers with step 0", met=lambda t: t.has_sampler or _at_start(t)
)
REWARD, GOLD = _number("reward"), _number("gold")
PROMPT_ID = _column("prompt_id")
PROBES: Need[Tally] = Need(words="rows with probe_id and step (texts scored again)", met=lambda t: t.probes is not None)
BETA: Need[Tally] = Need(words="the declared beta (--beta)", met=lambda t: t.declared.beta is not None)
RANGE: Need[Tally] = Need(words="the judge's range (--reward-range)", met=lambda t: t.declared.reward_range is not None)
TERM: Need[Tally] = Need(
    words="estimator and placement (--config)",
    met=lambda t: t.declared.estimator is not None and t.declared.placement is not None,
)
