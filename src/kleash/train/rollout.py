"""Answers drawn from all policies at once, exactly: whole vocabulary, float64, and randomness that needs no state.

The uniform number behind a token depends on (seed, seed index, step, row, position) alone. The betas of one seed share
it, so their differences are paired; a beta beside others draws what it draws alone; a run that goes on after a kill
draws what it would have drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kleash import _checks
from kleash.errors import OptionError
from kleash.train.adapters import GroupedLoRA
from kleash.train.decoder import Decoder, Prompts
from kleash.train.streams import Purpose, stream

__all__ = ["Rollout", "rollout", "uniforms"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """Answers of G policies, B each, up to T tokens.

    ``tokens`` (G, B, T) int64, 0 after the end; ``mask`` (G, B, T) bool, the end token included; ``behavior_logp``
    (G, B, T) log-probability in nats under the distribution that was sampled (temperature included), 0 after the end;
    ``finished`` (G, B), whether the answer ended by itself; ``prompt`` (B,), the prompt's place in the batch.
    """

    tokens: Tensor
    mask: Tensor
    behavior_logp: Tensor
    finished: Tensor
    prompt: Tensor


def uniforms(
    *,
    seed: int,
    index: Sequence[int],
    step: int,
    rows: int,
    length: int,
    piece: int = 0,
    purpose: Purpose = Purpose.TRAINING,
) -> Tensor:
    """Numbers on [0, 1) of shape (G, rows, length), float64; ``index`` (G,) is each group's seed index."""
    drawn = {}
    for which in dict.fromkeys(index):
        drawn[which] = stream(seed, purpose, which, step, piece).random((rows, length))
    return torch.from_numpy(np.stack([drawn[which] for which in index]))


def rollout(
    decoder: Decoder,
    adapters: GroupedLoRA,
    prompts: Prompts,
    *,
    uniform: Tensor,
    eos: Sequence[int],
    temperature: float = 1.0,
) -> Rollout:
    """Draw answers from every group's policy with a key-value cache.

    ``prompts``: P prompts, the same for every group. ``uniform``: Shape (G, B, T), B a multiple of P: the first B / P
    rows are answers to the first prompt, and so on. T is the most tokens an answer may have, the end token among them.
    ``eos``: Token ids that end an answer; none is fine, then every answer has T tokens. ``temperature``: Divides the
    logits. At 1 the policy itself is sampled; at any other value the tokens come from another distribution than the one
    that is scored, and `behavior_logp` says so.

    Returns
    -------
    Rollout
        T is cut to the longest answer drawn.

    Notes
    -----
    Inverse transform: the token is the first whose cumulative probability exceeds the uniform number, in float64, so
    a token of probability 0 is never drawn.
    """
    groups, rows, limit = uniform.shape
    if rows % len(prompts):
        expected = f"rows in a multiple of {len(prompts)} prompts"
        raise OptionError(_checks.message("uniform", expected=expected, got=rows))
    temperature = _checks.number(temperature, name="temperature", above=0)
    samples = rows // len(prompts)
    device, uniform = decoder.device, uniform.to(decoder.device)
    ends = torch.tensor(list(eos), dtype=torch.long, device=device)
    tokens = torch.zeros(groups * rows, limit, dtype=torch.long, device=device)
    logp = torch.zeros(groups * rows, limit, dtype=torch.float64, device=device)
    mask = torch.zeros(groups * rows, limit, dtype=torch.bool, device=device)
    alive = torch.ones(groups * rows, dtype=torch.bool, device=device)
    with torch.inference_mode(), adapters.merged():
        batch = prompts.repeat(groups)
        last, cache = decoder.prefill(batch)
        padding = None if batch.mask is None else batch.mask.repeat_interleave(samples, dim=0)
        log_p = _log_probabilities(decoder.head(last[:, None])[:, 0], temperature)
        log_p = log_p.repeat_interleave(samples, dim=0)
        cache.batch_repeat_interleave(samples)
        used = limit
        for position in range(limit):
            if position > 0:
                ids = tokens[:, position - 1 : position]
                last = decoder.extend(ids, cache=cache, prompts=padding, done=position - 1)
                log_p = _log_probabilities(decoder.head(last)[:, 0], temperature)
            drawn = _pick(log_p, uniform[:, :, position].reshape(-1))
            mask[:, position] = alive
            tokens[:, position] = torch.where(alive, drawn, 0)
            logp[:, position] = torch.where(alive, log_p.gather(1, drawn[:, None])[:, 0], 0.0)
            if ends.numel():
                alive = alive & (drawn[:, None] != ends).all(dim=1)
                if not bool(alive.any()):
                    used = position + 1
                    break
    tokens, mask, logp = (table[:, :used].reshape(groups, rows, used) for table in (tokens, mask, logp))
    return Rollout(
        tokens=tokens,
        mask=mask,
        behavior_logp=logp,
        finished=~alive.reshape(groups, rows),
        prompt=torch.arange(len(prompts), device=device).repeat_interleave(samples),
    )


def _log_probabilities(logits: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax(logits.double() / temperature, dim=-1)


def _pick(log_p: Tensor, uniform: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds the uniform number; shapes (R, V) and (R,) to (R,)."""
    cumulative = log_p.exp().cumsum(dim=-1)
    total = cumulative[:, -1:]
    # rounding must not take the product up to the total, where there is no token left
    target = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]
