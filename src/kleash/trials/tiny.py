"""A transformer of a few hundred weights whose next-token distribution can be set to any table, and its tokenizer.

Everything but the output layer is frozen, so the hidden state of each prefix is a constant and the logits are the free
parameters: a policy can be set to a predicted fixed point exactly, and the gradient of the output layer read as the
gradient with respect to the logits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from kleash.estimates import Floats
    from kleash.trials.roots import Puzzle

__all__ = ["TinyPolicy", "quiet", "tokenizer"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PAD, _END, _PROMPT = "<pad>", "<end>", "?"
_NEVER = -30.0  # logit of pad and prompt token below the rest: mass under 1e-12, nothing that a run could notice


def tokenizer(letters: int) -> Any:
    """A tokenizer of one token per letter, made in memory: letters first, then end, pad and the prompt's ``?``."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*_LETTERS[:letters], _END, _PAD, _PROMPT]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=_PAD))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token=_PAD, eos_token=_END, padding_side="left")


@dataclass(frozen=True, kw_only=True, eq=False)
class TinyPolicy:
    """A tiny causal language model on a puzzle, and the linear map between its output layer and a table of logits.

    ``model`` is a transformers model, ``hidden`` the hidden state of each prefix, shape (n_prefixes, width); ``ids``
    are the model's ids of the puzzle's vocabulary.
    """

    puzzle: Puzzle
    model: Any
    tokenizer: Any
    hidden: Floats
    ids: NDArray[np.int64]

    @classmethod
    def build(cls, puzzle: Puzzle, folder: Path) -> TinyPolicy:
        """A model at the puzzle's reference, saved in ``folder`` so that a trainer can load its reference again."""
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        vocabulary = puzzle.tokens.vocabulary
        letters = vocabulary if puzzle.one_step else vocabulary - 1
        words = tokenizer(letters)
        config = LlamaConfig(
            vocab_size=len(words),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=1,
            num_attention_heads=4,
            max_position_embeddings=32,
            tie_word_embeddings=False,
            initializer_range=0.7,
            pad_token_id=words.pad_token_id,
            eos_token_id=words.eos_token_id,
            bos_token_id=None,
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)  # of the first seeds the one whose hidden states are least alike
            model = LlamaForCausalLM(config).float().eval()
        for name, weight in model.named_parameters():
            weight.requires_grad_(name == "lm_head.weight")
        prompt = words.convert_tokens_to_ids(_PROMPT)
        texts = _prefixes(puzzle)
        hidden = np.empty((len(texts), config.hidden_size))
        with torch.no_grad():
            for row, text in enumerate(texts):
                state = model.model(input_ids=torch.tensor([[prompt, *text]])).last_hidden_state
                hidden[row] = state[0, -1].double().numpy()
        policy = cls(puzzle=puzzle, model=model, tokenizer=words, hidden=hidden, ids=np.arange(vocabulary))
        policy.set_logits(puzzle.reference_logits)
        with quiet():
            model.save_pretrained(folder)
        words.save_pretrained(folder)
        model.config._name_or_path = str(folder)
        return policy

    def set_logits(self, logits: Floats) -> None:
        """Set the output layer so that the model's next-token distribution at every prefix is softmax(logits)."""
        import torch

        rows = logits - logits.max(axis=1, keepdims=True)
        table = np.full((len(rows), self.model.config.vocab_size), _NEVER)
        table[:, self.ids] = rows
        weight = (np.linalg.pinv(self.hidden) @ table).T
        with torch.no_grad():
            self.model.lm_head.weight.copy_(torch.tensor(weight))

    def logits(self) -> Floats:
        """The table of logits as the output layer gives it, shape (n_prefixes, vocabulary)."""
        weight = self.model.lm_head.weight.detach().double().numpy()
        return np.asarray((self.hidden @ weight.T)[:, self.ids])

    def logit_gradient(self) -> Floats:
        """The gradient that the output layer holds, as a gradient with respect to the logits; same shape."""
        gradient = self.model.lm_head.weight.grad.double().numpy()  # (V, width) = G^T hidden
        return np.asarray((gradient @ np.linalg.pinv(self.hidden)).T[:, self.ids])

    def rescale_gradient(self, rate: Floats) -> None:
        """Change the held gradient so that a step of 1 moves prefix i's logits by rate[i] times their own gradient.

        Any such positive rescaling leaves the fixed point where it is; without it, prefixes with like hidden states
        drag each other along and the way there takes thousands of steps.
        """
        import torch

        weight = self.model.lm_head.weight
        inverse = np.linalg.pinv(self.hidden)  # (width, n_prefixes)
        with torch.no_grad():
            weight.grad.copy_(weight.grad @ torch.tensor(inverse * rate @ inverse.T, dtype=weight.dtype))


def _prefixes(puzzle: Puzzle) -> list[tuple[int, ...]]:
    """The tokens before each prefix, by its number."""
    world = puzzle.tokens
    found: dict[int, tuple[int, ...]] = {}
    for prefixes, tokens, mask in zip(world.prefix, world.token, world.mask, strict=True):
        for t in range(int(mask.sum())):
            found.setdefault(int(prefixes[t]), tuple(int(x) for x in tokens[:t]))
    return [found[i] for i in range(world.n_prefixes)]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and hints, which are meant for models of more than a few hundred weights."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
