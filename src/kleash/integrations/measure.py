"""What a policy does now: answers drawn from it, and the KL to its reference over the whole vocabulary."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kleash.estimates import Floats

__all__ = ["Answer", "Reference", "full_kl_of", "sample_answers"]

_POSITIONS = 64  # positions whose float64 log-probabilities are held at once: 64 x 150,000 words are 77 MB each


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """An answer's token ids, and per token the KL (nats) and both log-probabilities, shape (T,)."""

    ids: list[int]
    kl: Floats
    logp: Floats
    ref_logp: Floats


class Reference:
    """The policy as it was when this was made, whatever training does to it later.

    ``model`` is the policy (unwrapped). With ``frozen`` a model that is never trained, that is the reference; otherwise
    a copy of the trainable weights is kept and put in their place while the reference is asked. With adapters that is
    a copy of the adapters alone.
    """

    def __init__(self, model: Any, *, frozen: Any | None = None) -> None:
        self._model, self._frozen = model, frozen
        self._kept: list[tuple[Any, Any]] = []
        if frozen is None:
            trained = [p for p in model.parameters() if p.requires_grad]
            self._kept = [(p, p.detach().clone()) for p in trained]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[Any]:
        """The reference as a model; inside the block the policy itself must not be asked."""
        if self._frozen is not None:
            yield self._frozen
            return
        held = [p.data for p, _ in self._kept]
        try:
            for p, kept in self._kept:
                p.data = kept.to(p.device)
            yield self._model
        finally:
            for (p, _), data in zip(self._kept, held, strict=True):
                p.data = data

    def fingerprint(self, prompt: Sequence[int]) -> list[float]:
        """Log-probabilities (nats) that the reference gives its first words after a prompt: to know it again by."""
        with self.in_place() as model, torch.no_grad(), evaluating(model):
            device = next(model.parameters()).device
            logits = model(input_ids=torch.tensor([list(prompt)], device=device)).logits[0, -1].double()
        values: list[float] = torch.log_softmax(logits, -1)[:16].tolist()
        return values


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Dropout off, and back to what it was."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


@contextlib.contextmanager
def _own_settings_off(model: Any) -> Iterator[None]:
    """Without the model's generation settings, which ``generate`` puts wherever it was not told otherwise."""
    from transformers import GenerationConfig

    holders = [model, *([model.get_base_model()] if hasattr(model, "get_base_model") else [])]  # adapters around it
    was = [holder.generation_config for holder in holders]
    try:
        for holder in holders:
            holder.generation_config = GenerationConfig()
        yield
    finally:
        for holder, settings in zip(holders, was, strict=True):
            holder.generation_config = settings


def sample_answers(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    n: int,
    max_new_tokens: int,
    temperature: float,
    end_ids: Sequence[int],
    pad_id: int,
    seed: int,
    batch: int,
) -> list[list[list[int]]]:
    """``n`` answers per prompt, drawn from the policy itself: no top-k, no top-p, the end token included.

    What the model's own generation settings say (a repetition penalty, a least length) is not done: answers drawn so
    are not the policy's. The trainer's random numbers are left where they were; the same seed gives the same numbers at
    every measurement, so that differences between steps are paired.
    """
    from transformers import GenerationConfig

    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=True,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        eos_token_id=list(end_ids),
        pad_token_id=pad_id,
        disable_compile=True,
    )
    device = next(model.parameters()).device
    flat = [list(prompt) for prompt in prompts for _ in range(n)]
    answers: list[list[int]] = []
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad(), evaluating(model), _own_settings_off(model):
        torch.manual_seed(seed)
        for start in range(0, len(flat), batch):
            rows = flat[start : start + batch]
            longest = max(map(len, rows))
            ids = torch.tensor([[pad_id] * (longest - len(row)) + row for row in rows], device=device)
            mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
            drawn = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, longest:].tolist()
            answers += [_until_end(row, end_ids) for row in drawn]
    return [answers[i * n : (i + 1) * n] for i in range(len(prompts))]


def full_kl_of(
    model: Any,
    reference: Reference,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    *,
    temperature: float,
    pad_id: int,
    batch: int,
) -> list[Answer]:
    """KL(policy || reference) at every position of given answers, over the whole vocabulary, in float64.

    ``prompts``, ``answers``: Token ids, one prompt per answer.

    Returns
    -------
    list of Answer
        In the order of the answers given.

    Notes
    -----
    The sum over an answer's positions is an unbiased estimate of the KL per answer when the answer was drawn from the
    policy (Rao-Blackwellised: 2504.10637); it has no part that is due to which token was drawn at its own position.
    Rows are padded on the right, whatever side the tokenizer pads on: no position is shifted and no padding is seen.
    """
    found: list[Answer] = []
    device = next(model.parameters()).device
    for start in range(0, len(answers), batch):
        asked = list(prompts[start : start + batch])
        given = list(answers[start : start + batch])
        rows = [[*p, *a] for p, a in zip(asked, given, strict=True)]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [pad_id] * (longest - len(row)) for row in rows], device=device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=device)
        with torch.no_grad():
            with evaluating(model):
                policy = model(input_ids=ids, attention_mask=mask).logits
            with reference.in_place() as frozen, evaluating(frozen):
                before = frozen(input_ids=ids, attention_mask=mask).logits
        for row, (p, a) in enumerate(zip(asked, given, strict=True)):
            first, tokens = len(p) - 1, torch.tensor(a)  # the logits one position before a token are its own
            parts = [
                _positions(
                    policy[row, first + i : first + j], before[row, first + i : first + j], tokens[i:j], temperature
                )
                for i, j in _chunks(len(a))
            ]
            kl, logp, ref_logp = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
            found.append(Answer(ids=list(a), kl=kl, logp=logp, ref_logp=ref_logp))
    return found


def _positions(policy: Any, before: Any, tokens: Any, temperature: float) -> tuple[Any, Any, Any]:
    log_p = torch.log_softmax(policy.double() / temperature, -1)
    log_q = torch.log_softmax(before.double() / temperature, -1)
    at = tokens.to(log_p.device)[:, None]
    return (log_p.exp() * (log_p - log_q)).sum(-1), log_p.gather(1, at)[:, 0], log_q.gather(1, at)[:, 0]


def _chunks(length: int) -> Iterator[tuple[int, int]]:
    for i in range(0, length, _POSITIONS):
        yield i, min(i + _POSITIONS, length)


def _until_end(ids: list[int], end_ids: Sequence[int]) -> list[int]:
    for i, token in enumerate(ids):
        if token in end_ids:
            return ids[: i + 1]
    return ids
