"""Everything a run of training is asked, in one place: which betas, how long, with which objective and adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from kleash import _checks
from kleash.config import Within, settle

__all__ = ["Dial", "Objective", "Schedule", "Training"]

Count = Annotated[int, Within(at_least=1)]
Several = Annotated[int, Within(at_least=2)]
FromZero = Annotated[int, Within(at_least=0)]
AboveZero = Annotated[float, Within(above=0)]

Objective = Literal["rloo", "grpo", "dpo"]
Schedule = Literal["linear", "constant"]
"""How the learning rate goes: down to 0 in a straight line, or not at all."""

_NO_MATTER = ("checkpoint_every", "prompts_at_once", "chunk", "forecast_samples")
"""An interrupted run may go on with others of these."""


@dataclass(frozen=True, kw_only=True)
class Dial:
    """Where the dial stands, and what is spent on each of its settings.

    ``beta``: Finite coefficients in reward units per nat (``grpo``: the trainer's own), in any order; kept sorted, each
    once. ``seeds``, ``seed``: Independent runs per beta (one gives no standard errors), and the start of all
    randomness. ``steps``, ``samples``: Updates, and answers per prompt, step and policy.
    """

    beta: tuple[Annotated[float, Within(at_least=0)], ...] = (0.0, 0.03, 0.1, 0.3, 1.0)
    seeds: Count = 2
    seed: FromZero = 0
    steps: Count = 200
    samples: Several = 8

    def __post_init__(self) -> None:
        betas = np.unique(_checks.betas(self.beta, infinite=False))
        object.__setattr__(self, "beta", tuple(betas.tolist()))
        settle(self)

    def settled(self) -> dict[str, Any]:
        """Plain data of what settles the result: how often a checkpoint is made and how memory is saved do not."""
        plain = {name: value for name, value in vars(self).items() if name not in _NO_MATTER}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


@dataclass(frozen=True, kw_only=True)
class Training(Dial):
    """How a language model is trained, apart from the model, its prompts and its judges.

    Parameters
    ----------
    prompts_per_step
        Prompts a step, by a permutation per pass; None: all.
    max_new_tokens
        How many tokens an answer may have, its end among them.
    objective, options, epochs, clip
        ``rloo``, ``grpo`` or ``dpo`` with their options (:mod:`kleash.train.objectives`); updates per batch, and the
        limit on probability ratios where there are several.
    learning_rate, schedule, clip_above
        See :mod:`kleash.train.optimiser`.
    temperature
        Of sampling. At another value than 1 the answers are not the policy's own: the gradient is no longer that of
        the objective.
    evaluate_every, final_samples
        Steps between two measurements of gold; answers per prompt behind the last rows and rollouts.parquet.
    rank, alpha, targets
        See :func:`kleash.train.adapters.attach`.
    checkpoint_every
        Steps between checkpoints; one is also made on Ctrl-C and when a judge fails.
    prompts_at_once
        How many of a step's prompts are sampled, judged and differentiated at a time; None: all. The gradient is the
        same to rounding, the memory that of the part.
    chunk
        See :func:`kleash.train.objectives.score`.
    forecast_samples
        Answers of the reference to each prompt for the forecast that stands beside a sweep; 0: none.

    Examples
    --------
    >>> Training(beta=[1, 0.5, 1], steps=3).beta
    (0.5, 1.0)
    >>> Training(samples=1)
    Traceback (most recent call last):
    kleash.errors.OptionError: samples: expected a whole number of at least 2, got 1
    """

    prompts_per_step: Count | None = None
    max_new_tokens: Count = 64
    objective: Objective = "rloo"
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: Count = 1
    clip: AboveZero = 0.2
    learning_rate: AboveZero = 1e-4
    schedule: Schedule = "linear"
    temperature: AboveZero = 1.0
    evaluate_every: Count = 25
    final_samples: Several = 16
    rank: Count = 16
    alpha: AboveZero | None = None
    targets: str | tuple[str, ...] = "all-linear"
    clip_above: AboveZero | None = 3.0
    checkpoint_every: Count = 25
    prompts_at_once: Count | None = None
    chunk: Count | None = None
    forecast_samples: FromZero = 64

    @property
    def seed_index(self) -> list[int]:
        """The seed of each policy, (G,): policies are group-major, all seeds of the first beta first."""
        return [which for _ in self.beta for which in range(self.seeds)]

    @property
    def policy_beta(self) -> NDArray[np.float64]:
        """The coefficient of each policy, (G,)."""
        return np.repeat(self.beta, self.seeds)
