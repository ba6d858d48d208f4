"""The losses of kleash's own language-model engine on a table of logits: the two parts that trainers are put to."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.trials.trl_runs import Trace, distinct_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.estimates import Floats
    from kleash.trials.cases import Case
    from kleash.trials.roots import Puzzle

__all__ = ["own_unit", "run_own"]


def run_own(
    case: Case, puzzle: Puzzle, *, start: Floats, steps: int, rate: Floats | None, batch: int, seed: int
) -> Trace:
    """Descend a loss of `kleash.train.objectives` from ``start`` and record every step, as :func:`run_trl` does.

    ``batch`` are answers, for dpo half as many pairs. The loss, its scores and their gradient are the engine's; the
    hidden state of a prefix is a unit vector of its own and the head a table. Adapters, decoder and optimiser are not
    in it.
    """
    import torch

    world, rng = puzzle.tokens, np.random.default_rng(seed)
    reference = torch.tensor(puzzle.reference_logits)
    beta = torch.tensor([float(case.value("beta"))], dtype=torch.float64)
    logits = torch.tensor(start, requires_grad=True)
    updates, path = [], []
    for _ in range(steps):
        rows = _drawn(case, puzzle, logits.detach().numpy(), batch, rng)
        prefixes = torch.nn.functional.one_hot(torch.tensor(world.prefix[rows]), world.n_prefixes).double()[None]
        tokens, mask = (torch.tensor(table[rows])[None] for table in (world.token, world.mask))
        loss = _loss(case, batch, rng)(
            prefixes, tokens, mask, torch.tensor(puzzle.reward[rows])[None], beta, logits, reference
        )
        (gradient,) = torch.autograd.grad(loss, logits)
        updates.append(-gradient.numpy())
        if rate is not None:
            logits = (logits.detach() - torch.tensor(rate)[:, None] * gradient).requires_grad_()
        path.append(logits.detach().numpy().copy())
    return Trace(update=np.array(updates), logits=np.array(path))


def own_unit(case: Case) -> float:
    """What the engine's loss is divided by, against `roots.expected_update`: rloo's by 1 + beta."""
    return 1.0 + float(case.value("beta")) if case.value("objective") == "rloo" else 1.0


def _drawn(case: Case, puzzle: Puzzle, logits: Floats, batch: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Answers of the policy; for dpo pairs of distinct answers of the reference, one after the other."""
    if case.value("objective") != "dpo":
        policy = np.exp(puzzle.log_policy(logits))
        return np.asarray(rng.choice(len(policy), size=batch, p=policy / policy.sum()))
    return np.stack(distinct_pairs(puzzle, batch // 2, rng), axis=1).ravel()


def _loss(case: Case, batch: int, rng: np.random.Generator) -> Any:
    """The engine's loss as a function of states, tokens, mask, reward, beta and the two heads' tables."""
    import torch

    from kleash.train import objectives

    name = case.value("objective")
    group = torch.arange(batch) // (2 if name == "dpo" else int(case.value("samples")))
    if name == "rloo":
        told = partial(objectives.rloo_loss, penalty=case.value("penalty"))
    elif name == "grpo":
        told = partial(
            objectives.grpo_loss, scale_rewards=case.value("scale_rewards"), kl_in_loss=case.value("kl_in_loss")
        )
    else:
        told = partial(objectives.dpo_loss, uniform=torch.tensor(rng.random((1, batch // 2))))

    def loss(states: Any, tokens: Any, mask: Any, reward: Any, beta: Any, logits: Any, reference: Any) -> Any:
        scores = objectives.score(
            states, lambda h: h @ logits, tokens, ref_hidden=states, ref_head=lambda h: h @ reference
        )
        return told(scores, mask, reward, group, beta).sum()

    return loss
