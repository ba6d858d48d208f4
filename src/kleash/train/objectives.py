"""What a policy is trained to do: pure functions from scored answers to one loss per policy.

:func:`score` turns hidden states into log-probabilities and full-vocabulary KL, in pieces, so that no tensor over
positions x vocabulary ever lives as a whole. :func:`rloo_loss`, :func:`grpo_loss` and :func:`dpo_loss` turn those
into losses. G is the number of policies trained side by side, (beta, seed) pairs; B answers each, of T tokens.
Answers are sums of tokens here, never means: beta is per nat of the whole answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kleash import _checks
from kleash.errors import OptionError, ShapeError

__all__ = [
    "GRPOPenalty",
    "Head",
    "RLOOPenalty",
    "RewardScale",
    "Scores",
    "dpo_loss",
    "grpo_loss",
    "rloo_loss",
    "score",
]

Head = Callable[[Tensor], Tensor]
"""Hidden states (G, M, d) to logits (G, M, V)."""
RLOOPenalty = Literal["k1", "own-k1", "full"]
"""How :func:`rloo_loss` estimates the gradient of the KL."""
GRPOPenalty = Literal["k3", "k3-corrected"]
"""The KL term of :func:`grpo_loss`."""
RewardScale = Literal["group", "none"]
"""Whether :func:`grpo_loss` divides advantages by the SD within their prompt."""

_PIECE = 2**23
"""Logits that live at a time by default, 32 MB in float32: as small as it can be while the C library hands memory back
at once, small beside any model with so large a vocabulary, and more than a step of a small world has."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Sampled tokens as policy and reference see them; each of shape (G, B, T), in nats.

    ``logp`` and ``ref_logp`` are the token's log-probabilities, ``kl`` is KL(policy || reference) of the next-token
    distributions over the whole vocabulary. Gradients flow through ``logp`` and ``kl``.
    """

    logp: Tensor
    ref_logp: Tensor
    kl: Tensor


class _TokenScores(torch.autograd.Function):  # type: ignore[misc]
    """Logits to (logp, ref_logp, kl), the gradient written out: two tensors of the logits' size are kept, not six."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ref_logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_p, log_q = logits.log_softmax(-1), ref_logits.log_softmax(-1)
        ratio, p = log_p - log_q, log_p.exp()
        # p k3(ratio) keeps its digits where policy and reference all but agree; far below, exp(-ratio) would overflow
        near = p * (ratio + torch.expm1(-ratio.clamp(min=-1.0)))
        kl = torch.where(ratio > -1.0, near, p * ratio - p + log_q.exp()).sum(-1)
        index = tokens.unsqueeze(-1)
        logp, ref_logp = log_p.gather(-1, index).squeeze(-1), log_q.gather(-1, index).squeeze(-1)
        ctx.save_for_backward(log_p, log_q, index, kl)
        ctx.mark_non_differentiable(ref_logp)
        return logp, ref_logp, kl

    @staticmethod
    def backward(ctx: Any, d_logp: Tensor, _: Tensor, d_kl: Tensor) -> tuple[Tensor, None, None]:
        log_p, log_q, index, kl = ctx.saved_tensors
        d_logp = d_logp.unsqueeze(-1)
        # d kl / d logit_v = p_v (log(p_v / q_v) - kl); d logp / d logit_v = [v is the token] - p_v
        grad = (log_p - log_q).sub_(kl.unsqueeze(-1)).mul_(d_kl.unsqueeze(-1)).sub_(d_logp)
        return grad.mul_(log_p.exp()).scatter_add_(-1, index, d_logp), None, None


def score(
    hidden: Tensor,
    head: Head,
    tokens: Tensor,
    *,
    ref_hidden: Tensor,
    ref_head: Head,
    chunk: int | None = None,
) -> Scores:
    """Log-probabilities of sampled tokens and the full-vocabulary KL at their positions, in pieces.

    Parameters
    ----------
    hidden
        Final hidden states of the policies at the positions that predict ``tokens``, shape (G, B, T, d).
    head
        The output head, adapters and final scaling included: (G, M, d) to logits (G, M, V). Called once per piece, and
        once more in the backward pass where there is more than one.
    tokens
        Token ids, shape (G, B, T), int64; anything valid where an answer has ended.
    ref_hidden, ref_head
        The same of the reference. No gradient flows there.
    chunk
        Positions per policy in one piece; default: as many as give eight million logits.

    Returns
    -------
    Scores

    Notes
    -----
    Logits are compared in float32 at least. Extra memory is a few times G x chunk x V whatever the number of
    positions; the price of more than one piece is a second pass through the heads. Logits must be finite.
    """
    groups, batch, length = tokens.shape
    shapes = f"hidden {tuple(hidden.shape)}, ref_hidden {tuple(ref_hidden.shape)}, tokens {tuple(tokens.shape)}"
    if hidden.shape[:3] != tokens.shape or ref_hidden.shape[:3] != tokens.shape:
        raise ShapeError(_checks.message("score", expected="hidden states (G, B, T, d), tokens (G, B, T)", got=shapes))
    h, ref_h, index = (x.reshape(groups, batch * length, *x.shape[3:]) for x in (hidden, ref_hidden, tokens))
    if chunk is None:
        with torch.no_grad():
            vocabulary = ref_head(ref_h[:, :1]).shape[-1]
        chunk = -(-_PIECE // (groups * vocabulary))
    chunk = _checks.integer(chunk, name="chunk", at_least=1)

    def piece(h: Tensor, ref_h: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            ref_logits = _wide(ref_head(ref_h))
        scores: tuple[Tensor, Tensor, Tensor] = _TokenScores.apply(_wide(head(h)), ref_logits, index)
        return scores

    cuts = [slice(start, start + chunk) for start in range(0, batch * length, chunk)]
    if len(cuts) == 1:
        parts = [piece(h, ref_h, index)]
    else:
        parts = [
            checkpoint(piece, h[:, cut], ref_h[:, cut], index[:, cut], use_reentrant=False, preserve_rng_state=False)
            for cut in cuts
        ]
    logp, ref_logp, kl = (torch.cat(part, dim=1).reshape(tokens.shape) for part in zip(*parts, strict=True))
    return Scores(logp=logp, ref_logp=ref_logp, kl=kl)


def rloo_loss(
    scores: Scores,
    mask: Tensor,
    reward: Tensor,
    prompt: Tensor,
    beta: Tensor,
    *,
    penalty: RLOOPenalty = "k1",
    old_logp: Tensor | None = None,
    clip: float | None = None,
) -> Tensor:
    """REINFORCE with a leave-one-out baseline and the KL as part of the objective: its gradient is the objective's own.

    Parameters
    ----------
    scores
        From :func:`score`.
    mask
        Which positions belong to the answer, its end of sequence included, shape (G, B, T), bool.
    reward
        Judge's score of each answer, shape (G, B).
    prompt
        Which prompt each answer belongs to, shape (B,), int64; at least two answers per prompt.
    beta
        Coefficients, reward units per nat, shape (G,).
    penalty
        ``k1``: the log ratio of the whole answer in the reward, as published. ``full``: the KL of later positions
        stands in a token's return, that of its own position is differentiated. ``own-k1``: the same, with the log
        ratio of the token itself in the return. All three are right on average.
    old_logp, clip
        For several steps on one batch: log-probabilities when the answers were drawn, (G, B, T), and how far from 1
        the probability ratio of a token may count.

    Returns
    -------
    Loss per policy, shape (G,): their sum may be differentiated at once, no policy's gradient depends on another's.

    Raises
    ------
    OptionError
        An unknown penalty, or a prompt with one answer, which leaves no baseline.

    Notes
    -----
    Per answer, with r the reward, x_t the token's log ratio, k_t the full KL at its position, sg stopping the gradient
    and b the mean of the same return over the other answers to the prompt,

        k1:      loss (1 + beta) = -sum_t logp_t sg(r - beta sum_s x_s - b)
        full:    loss (1 + beta) = -sum_t logp_t sg(r - beta sum_{s > t} k_s - b_t) + beta sum_t k_t
        own-k1:  loss (1 + beta) = -sum_t logp_t sg(r - beta (x_t + sum_{s > t} k_s) - b_t)

    averaged over answers. On average each is the gradient of ``E[r] - beta KL`` over whole answers: the KL of a whole
    answer is the expected sum of its positions' (chain rule), and each of those depends on the tokens before it and on
    the distribution it is taken of. What tells them apart is noise. At the optimum ``r - beta sum x`` is one
    number for all answers to a prompt, so the noise of ``k1`` vanishes where training is to arrive; the other two are
    less noisy far from it. On the recipes ``k1`` came nearest to the optimum at every beta (docs/training.md).
    Dividing by 1 + beta keeps losses of very different betas of one size; it moves no optimum.
    With clipping or a stale batch the gradient is that of the usual surrogate, not of the objective.

    References
    ----------
    Ahmadian et al. 2024, "Back to Basics", arXiv 2402.14740; Amini, Vieira, Cotterell 2025, arXiv 2504.10637 (the KL of
    each position in full).
    """
    _checks.choice(penalty, get_args(RLOOPenalty), name="penalty")
    active, b = mask.to(scores.logp.dtype), beta[:, None, None].to(scores.logp.dtype)
    others = _Siblings(prompt, least=2, dtype=scores.logp.dtype)
    with torch.no_grad():
        ratio = (scores.logp - scores.ref_logp) * active
        if penalty == "k1":
            cost = ratio.sum(-1, keepdim=True).expand_as(ratio)
        else:
            kl = scores.kl * active
            cost = kl.flip(-1).cumsum(-1).flip(-1) - kl
            cost = cost + ratio if penalty == "own-k1" else cost
        returns = reward[:, :, None].to(active.dtype) - b * cost
        advantage = returns - others.mean_of_others(returns)
    loss = (_surrogate(scores.logp, advantage, old_logp, clip) * active).sum(-1)
    if penalty == "full":
        loss = loss + beta[:, None] * (scores.kl * active).sum(-1)
    return loss.mean(-1) / (1.0 + beta)


def grpo_loss(
    scores: Scores,
    mask: Tensor,
    reward: Tensor,
    prompt: Tensor,
    beta: Tensor,
    *,
    scale_rewards: RewardScale = "group",
    kl_in_loss: GRPOPenalty = "k3",
    old_logp: Tensor | None = None,
    clip: float | None = None,
) -> Tensor:
    """GRPO as trainers have it: advantages standardised within a prompt, a KL estimate per token in the loss.

    Use it to see what a trainer's own beta does; for the tilt's beta use :func:`rloo_loss`.

    Parameters
    ----------
    scores, mask, reward, prompt, beta, old_logp, clip
        As in :func:`rloo_loss`.
    scale_rewards
        ``group``: divide by the SD of the prompt's answers, with K - 1 in the denominator; where all scores are equal
        the advantage is 0. ``none``: centre only.
    kl_in_loss
        ``k3``: as first published; its gradient is that of the other direction, KL(reference || policy), at each
        position. ``k3-corrected``: times the token's probability ratio, which gives KL(policy || reference) at each
        position.

    Returns
    -------
    Loss per policy, shape (G,).

    Notes
    -----
    Both penalties move only the distribution at each sampled prefix; the part of the KL's gradient that runs through
    which prefixes are reached is missing from the loss form. Tokens are summed over an answer and averaged over
    answers, without division by length. No epsilon stands beside the SD.

    References
    ----------
    Shao et al. 2024, arXiv 2402.03300; Liu et al. 2025 (no division), arXiv 2503.20783; Tang, Munos 2025 (gradients of
    KL estimators), arXiv 2506.09477.
    """
    _checks.choice(scale_rewards, get_args(RewardScale), name="scale_rewards")
    _checks.choice(kl_in_loss, get_args(GRPOPenalty), name="kl_in_loss")
    active = mask.to(scores.logp.dtype)
    siblings = _Siblings(prompt, least=2, dtype=scores.logp.dtype)
    with torch.no_grad():
        scored = reward.to(active.dtype)
        advantage = scored - siblings.mean(scored)
        if scale_rewards == "group":
            sd = siblings.sd(scored)
            same = siblings.spread(scored) == 0
            advantage = torch.where(same, torch.zeros_like(advantage), advantage / torch.where(same, 1.0, sd))
    delta = scores.ref_logp - scores.logp
    k3 = torch.expm1(delta) - delta
    if kl_in_loss == "k3-corrected":
        k3 = k3 * torch.exp(scores.logp - (scores.logp.detach() if old_logp is None else old_logp))
    tokens = _surrogate(scores.logp, advantage[:, :, None], old_logp, clip) + beta[:, None, None] * k3
    return (tokens * active).sum(-1).mean(-1)


def dpo_loss(
    scores: Scores, mask: Tensor, reward: Tensor, prompt: Tensor, beta: Tensor, *, uniform: Tensor | None
) -> Tensor:
    """DPO on pairs of answers, labelled by a coin of probability sigmoid(r1 - r2): its minimum is exactly the tilt.

    Parameters
    ----------
    scores, mask, reward, prompt, beta
        As in :func:`rloo_loss`; answers 2i and 2i + 1 are a pair and belong to one prompt. Beta above 0.
    uniform
        Uniform numbers in [0, 1), one per pair, shape (G, B / 2): the first answer wins where its number lies below
        sigmoid(r1 - r2). None: the larger score always wins (first at a tie); that objective has no finite minimum,
        all mass runs to the best answer.

    Returns
    -------
    Loss per policy, shape (G,).

    Raises
    ------
    OptionError
        Beta 0, at which the loss does not depend on the policy.
    ShapeError
        An odd number of answers, or a pair across prompts.

    References
    ----------
    Rafailov et al. 2023, arXiv 2305.18290, equation 7.
    """
    if not bool((beta > 0).all()):
        fix = "train beta 0 with rloo"
        raise OptionError(_checks.message("beta", expected="above 0 for dpo", got=f"{float(beta.min()):g}", fix=fix))
    if prompt.shape[0] % 2 or bool((prompt[0::2] != prompt[1::2]).any()):
        got = f"{prompt.shape[0]} answers" if prompt.shape[0] % 2 else "a pair across prompts"
        raise ShapeError(_checks.message("dpo", expected="pairs of answers to one prompt", got=got))
    ratio = ((scores.logp - scores.ref_logp) * mask.to(scores.logp.dtype)).sum(-1)
    ahead = reward[:, 0::2] - reward[:, 1::2]
    wins = ahead >= 0 if uniform is None else uniform < torch.sigmoid(ahead)
    margin = beta[:, None] * (ratio[:, 0::2] - ratio[:, 1::2])
    return -torch.nn.functional.logsigmoid(torch.where(wins, margin, -margin)).mean(-1)


class _Siblings:
    """Statistics over the answers to one prompt, along axis 1 of (G, B, ...); sums as products with a 0/1 matrix."""

    def __init__(self, prompt: Tensor, *, least: int, dtype: torch.dtype) -> None:
        self.same = prompt[:, None] == prompt[None, :]
        count = self.same.sum(1)
        if int(count.min()) < least:
            got = f"{int(count.min())} for prompt {int(prompt[count.argmin()])}"
            raise OptionError(_checks.message("answers per prompt", expected=f"at least {least}", got=got))
        self.weight = self.same.to(dtype)
        self.count = count.to(dtype)

    def _sum(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.einsum("bc,gc...->gb...", weight, x)

    def _per_answer(self, x: Tensor, like: Tensor) -> Tensor:
        return x.reshape(1, -1, *[1] * (like.ndim - 2))

    def mean(self, x: Tensor) -> Tensor:
        return self._sum(x, self.weight) / self._per_answer(self.count, x)

    def mean_of_others(self, x: Tensor) -> Tensor:
        weight = self.weight - torch.eye(len(self.weight), dtype=x.dtype, device=x.device)
        return self._sum(x, weight) / self._per_answer(self.count - 1.0, x)

    def sd(self, x: Tensor) -> Tensor:
        return (self._sum((x - self.mean(x)) ** 2, self.weight) / self._per_answer(self.count - 1.0, x)).sqrt()

    def spread(self, x: Tensor) -> Tensor:
        """Largest minus smallest, (G, B): whether all are equal is asked of this, not of a rounded SD."""
        return ((x[:, :, None] - x[:, None, :]).abs() * self.weight).amax(-1)


def _surrogate(logp: Tensor, advantage: Tensor, old_logp: Tensor | None, clip: float | None) -> Tensor:
    """Minus the advantage-weighted log-probability, or on a stale batch the (clipped) ratio form of it."""
    if old_logp is None:
        if clip is not None:
            raise OptionError(_checks.message("clip", expected="old_logp beside it", got="none"))
        return -logp * advantage
    ratio = torch.exp(logp - old_logp)
    if clip is None:
        return -ratio * advantage
    clip = _checks.number(clip, name="clip", above=0.0)
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def _wide(logits: Tensor) -> Tensor:
    """Half-precision logits in float32; others as they are."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
