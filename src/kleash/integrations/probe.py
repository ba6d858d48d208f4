"""A measurement: answers of the policy to the same prompts, what policy and reference say of them, and their scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kleash.errors import KleashError
from kleash.integrations.measure import Answer, Reference, full_kl_of, sample_answers
from kleash.integrations.records import mean
from kleash.integrations.scores import Functions, Weighted, score
from kleash.integrations.troubles import told

__all__ = ["QUANTITIES", "Faults", "Probe"]

QUANTITIES = ("reward", "gold", "kl", "length")
_JUDGE, _GOLD = "the judge", "gold"
Faults = list[tuple[str, str]]
"""What was being done, and the error."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Probe:
    """All that a measurement needs and that stays as it is; under accelerate each process takes a share of the prompts.

    ``rows``, ``prompt_ids``: The prompts as rows of a data set and as token ids. ``functions``: Judge and gold.
    ``longest``: Of an answer, in tokens. ``at_a_time``: Answers per forward pass.
    """

    trainer: Any
    model: Any
    reference: Reference
    tokenizer: Any
    end_ids: Sequence[int]
    rows: Sequence[Mapping[str, Any]]
    prompt_ids: Sequence[list[int]]
    functions: Functions
    n_answers: int
    longest: int
    temperature: float
    at_a_time: int

    def look(self, *, seed: int, first: Sequence[Any] = (), strict: bool) -> tuple[dict[str, list[Any]], Faults]:
        """Measure the policy as it is.

        Parameters
        ----------
        seed
            Of the answers.
        first
            Token ids of step 0's answers by prompt, which the policy is asked for too; may be empty.
        strict
            Raise what goes wrong. Otherwise a judge or a gold that fails gives no score in this measurement.

        Returns
        -------
        Per prompt ``reward``, ``gold``, ``kl``, ``length``, ``answers``, ``rewards``, ``golds``, ``first``, and what
        went wrong. Where a process could not measure its share, a KleashError on all of them.
        """
        from accelerate.utils import gather_object

        accelerator = self.trainer.accelerator
        mine = list(range(accelerator.process_index, len(self.rows), accelerator.num_processes))
        faults: Faults = []
        share: dict[int, dict[str, Any]] = {}
        try:
            share = self._share(mine, seed, first, None if strict else faults) if mine else {}
        except Exception as error:
            if strict:
                raise
            faults.append(("measuring", told(error)))
        together = [(share, faults)]
        parts = gather_object(together) if accelerator.num_processes > 1 else together
        found: dict[str, list[Any]] = {
            key: [None] * len(self.rows) for key in (*QUANTITIES, "answers", "rewards", "golds", "first")
        }
        every = [fault for _, some in parts for fault in some]
        for part, _ in parts:
            for i, row in part.items():
                for key, value in row.items():
                    found[key][i] = value
        if None in found["length"]:
            raise KleashError(
                next((error for doing, error in every if doing == "measuring"), "a process has no answers")
            )
        for doing, key in ((_JUDGE, "reward"), (_GOLD, "gold")):
            if doing in dict(every):  # on one process: a mean over the others' prompts would be another quantity
                found[key] = [None] * len(self.rows)
        return found, every

    def _share(
        self, which: list[int], seed: int, first: Sequence[Any], faults: Faults | None
    ) -> dict[int, dict[str, Any]]:
        ids = [self.prompt_ids[i] for i in which]
        drawn = sample_answers(
            self.model,
            ids,
            n=self.n_answers,
            max_new_tokens=self.longest,
            temperature=self.temperature,
            end_ids=self.end_ids,
            pad_id=self.tokenizer.pad_token_id,
            seed=seed + which[0],
            batch=self.at_a_time,
        )
        flat_ids = [p for p in ids for _ in range(self.n_answers)]
        flat = [a for answers in drawn for a in answers]
        measured = self._asked(flat_ids, flat)
        before = [a for i in which for a in first[i]] if first else []
        again = self._asked(flat_ids, before) if before else []
        rewards = self._scores(self.functions.judge, _JUDGE, which, flat, faults)
        gold = self.functions.gold
        golds = self._scores([] if gold is None else [(1.0, gold)], _GOLD, which, flat, faults)
        found = {}
        for k, i in enumerate(which):
            at = slice(k * self.n_answers, (k + 1) * self.n_answers)
            found[i] = {
                "kl": _finite(float(np.mean([a.kl.sum() for a in measured[at]]))),
                "length": float(np.mean([len(a.ids) for a in measured[at]])),
                "reward": _finite(mean(rewards[at])),
                "gold": _finite(mean(golds[at])),
                "answers": measured[at],
                "rewards": rewards[at],
                "golds": golds[at],
                "first": [float(a.logp.sum() - a.ref_logp.sum()) for a in again[at]],
            }
        return found

    def _asked(self, prompt_ids: list[list[int]], answers: list[list[int]]) -> list[Answer]:
        """What policy and reference say of given answers."""
        pad, batch = self.tokenizer.pad_token_id, self.at_a_time
        return full_kl_of(
            self.model, self.reference, prompt_ids, answers, temperature=self.temperature, pad_id=pad, batch=batch
        )

    def _scores(
        self, functions: Weighted, role: str, which: list[int], answers: list[list[int]], faults: Faults | None
    ) -> list[float | None]:
        """Scores of answers; none of them where the functions fail, which goes to the faults."""
        try:
            return score(
                functions,
                rows=[self.rows[i] for i in which for _ in range(self.n_answers)],
                answers=answers,
                tokenizer=self.tokenizer,
                state=self.trainer.state,
            )
        except Exception as error:
            if faults is None:
                raise
            faults.append((role, told(error)))
            return [None] * len(answers)


def _finite(value: float | None) -> float | None:
    """None for what a policy that has blown up gives."""
    return value if value is not None and math.isfinite(value) else None
