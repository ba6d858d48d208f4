"""What policies and reference say of answers that were drawn: one pass with gradients, one without.

The prompt's keys and values are computed once per policy and shared by its answers; the reference sees an answer that
several policies gave only once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kleash.train.adapters import GroupedLoRA
from kleash.train.decoder import Decoder, Prompts
from kleash.train.objectives import Scores, score
from kleash.train.rollout import Rollout

__all__ = ["Distinct", "distinct", "reference_hidden", "score_answers"]

_SHORT, _FEW = 2, 256
"""Prompts of up to two tokens are run again with each of up to 512 answers: cheaper there than a pass of their own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Distinct:
    """The different (prompt, answer) pairs of a rollout.

    ``first`` (U,) is where each occurs first among the G * B rows, ``place`` (G, B) which of them each row is.
    """

    first: Tensor
    place: Tensor


def distinct(rolled: Rollout) -> Distinct:
    """Which rows of a rollout are the same answer to the same prompt."""
    groups, rows, length = rolled.tokens.shape
    tokens = torch.where(rolled.mask, rolled.tokens, -1).reshape(-1, length)  # -1: an end is not a token 0
    keys = torch.cat([rolled.prompt.repeat(groups)[:, None], tokens], dim=1).cpu().numpy()
    seen: dict[bytes, int] = {}
    first: list[int] = []
    place = []
    for row, key in enumerate(keys):
        number = seen.setdefault(key.tobytes(), len(first))
        if number == len(first):
            first.append(row)
        place.append(number)
    device = tokens.device
    return Distinct(
        first=torch.tensor(first, device=device), place=torch.tensor(place, device=device).reshape(groups, rows)
    )


def score_answers(
    decoder: Decoder,
    adapters: GroupedLoRA,
    prompts: Prompts,
    rolled: Rollout,
    *,
    same: Distinct | None = None,
    ref_hidden: Tensor | None = None,
    chunk: int | None = None,
) -> Scores:
    """Log-probabilities and KL of a rollout's tokens, (G, B, T); gradients flow into the adapters.

    ``same`` and ``ref_hidden`` are what :func:`distinct` and :func:`reference_hidden` gave for them, where that is
    known already; ``chunk`` as in :func:`kleash.train.objectives.score`.
    """
    groups, rows, length = rolled.tokens.shape
    if ref_hidden is None:
        ref_hidden = reference_hidden(decoder, adapters, prompts, rolled, same=same)
    hidden = _hidden(
        decoder, prompts.repeat(groups), rows // len(prompts), rolled.tokens.reshape(groups * rows, length)
    )

    def reference_head(states: Tensor) -> Tensor:
        with adapters.reference():
            logits: Tensor = decoder.head(states)
        return logits

    return score(
        hidden.reshape(groups, rows, length, -1),
        decoder.head,
        rolled.tokens,
        ref_hidden=ref_hidden,
        ref_head=reference_head,
        chunk=chunk,
    )


def reference_hidden(
    decoder: Decoder, adapters: GroupedLoRA, prompts: Prompts, rolled: Rollout, *, same: Distinct | None = None
) -> Tensor:
    """The reference's hidden states at the positions that predict the answers' tokens, (G, B, T, d), no gradient."""
    groups, rows, length = rolled.tokens.shape
    same = distinct(rolled) if same is None else same
    which = rolled.prompt.repeat(groups)[same.first]
    with torch.no_grad(), adapters.reference():
        answers = rolled.tokens.reshape(groups * rows, length)[same.first]
        return _hidden(decoder, prompts, which, answers)[same.place]


def _hidden(decoder: Decoder, prompts: Prompts, which: Tensor | int, answers: Tensor) -> Tensor:
    """Hidden states (R, T, d) that predict the tokens of answers (R, T).

    ``which`` (R,) is the prompt of each, or how many in turn belong to each prompt: repeated rows have a gradient that
    costs less than that of chosen ones.
    """

    def to_answers(by_prompt: Tensor) -> Tensor:
        return by_prompt.repeat_interleave(which, dim=0) if isinstance(which, int) else by_prompt[which]

    if prompts.mask is None and prompts.ids.shape[1] <= _SHORT and len(answers) <= _FEW:
        ids = torch.cat([to_answers(prompts.ids), answers[:, :-1]], dim=1)
        return decoder.whole(ids)[:, prompts.ids.shape[1] - 1 :]
    last, cache = decoder.prefill(prompts)
    hidden = to_answers(last)[:, None]
    if answers.shape[1] == 1:
        return hidden
    if isinstance(which, int):
        cache.batch_repeat_interleave(which)
    else:
        cache.batch_select_indices(which)
    padding = None if prompts.mask is None else to_answers(prompts.mask)
    return torch.cat([hidden, decoder.extend(answers[:, :-1], cache=cache, prompts=padding)], dim=1)
