"""Answers of a model on this machine, each a function of seed, prompt and draw alone.

What else is in the batch, how it is padded and in how many pieces it was drawn does not change an answer. Two things
make that so. Every draw has a stream of random numbers of its own: a token is the one with the smallest ``E_v / p_v``,
the E exponential, which is a draw from p. And what little a batch does to p cannot decide: where the two smallest are
nearer than :data:`MARGIN` (in logarithms), the token is chosen again from the answer so far, run alone.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kleash import _checks
from kleash.errors import ConfigError, OptionError
from kleash.sampling.journal import Answer
from kleash.sampling.prompts import Prompt
from kleash.train.decoder import Decoder, Prompts, pad_left
from kleash.train.language import ModelSource
from kleash.train.models import load_model, quiet
from kleash.train.streams import Purpose, stream

__all__ = ["MARGIN", "LocalModel"]

MARGIN = 1e-3
"""Nats between the two smallest ``E_v / p_v`` below which a batch does not decide. In float32 a batch moves a
log-probability by up to 8e-5 (SmolLM2-135M, 1 to 64 rows, with and without padding); one token in a thousand is nearer.
"""
_ROWS = 64  # answers drawn at once at most; more gain nothing on a CPU, and a kill loses them
_ROWS_GPU = 512
_SHARE = 0.5  # of the free memory, for keys, values and logits


@dataclass(kw_only=True)
class _Row:
    """An answer on its way."""

    prompt: Prompt
    draw: int
    ids: list[int]
    noise: Any
    tokens: list[int]
    logp: list[float]
    finished: bool = False


class LocalModel:
    """A model of transformers that answers; with an adapter the policy, beside its reference.

    Parameters
    ----------
    source
        The model.
    adapter
        A folder of PEFT's; with it the answers are the policy's, and the model without it is the reference.
    max_new_tokens
        The most tokens of an answer.
    seed
        Start of all randomness.

    Raises
    ------
    ConfigError, MissingFileError
        A model or an adapter that cannot be read.
    """

    def __init__(self, source: ModelSource, *, adapter: Path | None, max_new_tokens: int, seed: int) -> None:
        from kleash.train.lm_sweep import endings

        model, self.tokenizer, self.device = load_model(source)
        self.adapted = None if adapter is None else _with_adapter(model, adapter)
        self.decoder = Decoder(model)
        self.ends = endings(model, self.tokenizer)
        self.chat = (
            source.chat if source.chat is not None else getattr(self.tokenizer, "chat_template", None) is not None
        )
        self.max_new_tokens, self.seed = max_new_tokens, seed
        self._asked = 0
        self.exact = next(model.parameters()).dtype in (torch.float32, torch.float64)

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Tokens of a prompt, through the chat template where there is one.

        Raises
        ------
        OptionError
            A prompt that leaves no room for an answer, or a chat for a model without a template.
        """
        if self.chat:
            text = self.tokenizer.apply_chat_template(prompt.turns, tokenize=False, add_generation_prompt=True)
        elif prompt.messages is not None:
            fix = "give texts"
            raise OptionError(_checks.message("model", expected="a chat template for chats", got="none", fix=fix))
        else:
            text = prompt.text
        ids = [int(i) for i in self.tokenizer(text, add_special_tokens=not self.chat)["input_ids"]]
        room = self.decoder.max_positions
        if room is not None and len(ids) + self.max_new_tokens > room:
            got = f"{len(ids)} of the prompt and {self.max_new_tokens} of the answer"
            fix = "lower --max-new-tokens, or drop the prompt"
            raise OptionError(
                _checks.message(f"prompt {prompt.id!r}", expected=f"at most {room} tokens", got=got, fix=fix)
            )
        return ids

    def draw(self, work: Sequence[tuple[Prompt, int]], *, stopped: Callable[[], bool]) -> Iterator[list[Answer]]:
        """Draw answers, in batches as large as memory allows; a batch is given out when all of it has ended."""
        tokens = {prompt.key: self.prompt_ids(prompt) for prompt, _ in work}
        at, most = 0, self._rows_at_once(max(map(len, tokens.values()), default=1))
        while at < len(work) and not stopped():
            try:
                batch = self._drawn([self._row(p, d, tokens[p.key]) for p, d in work[at : at + most]])
            except torch.OutOfMemoryError:
                if most == 1:
                    raise
                most //= 2
                torch.cuda.empty_cache()
                continue
            self._asked += sum(len(tokens[prompt.key]) for prompt, _ in work[at : at + len(batch)])
            at += len(batch)
            yield batch

    def prompt_tokens(self) -> int:
        """Tokens of the prompts behind the answers drawn."""
        return self._asked

    def sampling(self) -> str:
        """How answers were drawn, in words."""
        told = "temperature 1, whole vocabulary"
        return told if self.exact else f"{told}; in half precision a near tie may depend on the batch"

    def _row(self, prompt: Prompt, draw: int, ids: list[int]) -> _Row:
        noise: Any = stream(self.seed, Purpose.SAMPLES, int(prompt.key, 16), draw)
        if self.device != "cpu":
            noise = torch.Generator(self.device).manual_seed(int(noise.integers(2**63)))
        return _Row(prompt=prompt, draw=draw, ids=ids, noise=noise, tokens=[], logp=[])

    def _drawn(self, rows: list[_Row]) -> list[Answer]:
        with torch.inference_mode():
            self._run(rows)
            reference = [None] * len(rows) if self.adapted is None else self._reference(rows, self.adapted)
        return [
            Answer(
                prompt=row.prompt.key,
                draw=row.draw,
                text=str(self.tokenizer.decode(row.tokens, skip_special_tokens=True)),
                n_tokens=len(row.tokens),
                ids=row.tokens,
                logp=row.logp,
                ref_logp=ref,
                finished=row.finished,
            )
            for row, ref in zip(rows, reference, strict=True)
        ]

    def _run(self, rows: list[_Row]) -> None:
        """Draw token by token; rows that have ended leave the batch once they are half of it."""
        prompts, place = _distinct(rows, self.decoder.device)
        last, cache = self.decoder.prefill(prompts)
        cache.batch_select_indices(place)
        mask = None if prompts.mask is None else prompts.mask[place]
        log_p = self._log_p(last[place])
        batch = list(rows)
        for position in range(self.max_new_tokens):
            if position:
                ids = torch.tensor([[row.tokens[-1]] for row in batch], device=self.decoder.device)
                log_p = self._log_p(self.decoder.extend(ids, cache=cache, prompts=mask, done=position - 1)[:, 0])
            self._choose(batch, log_p)
            alive = [i for i, row in enumerate(batch) if not row.finished]
            if not alive:
                return
            if 2 * len(alive) <= len(batch):
                kept = torch.tensor(alive, device=self.decoder.device)
                cache.batch_select_indices(kept)
                mask = None if mask is None else mask[kept]
                batch = [batch[i] for i in alive]

    def _log_p(self, hidden: Tensor) -> Tensor:
        return torch.log_softmax(self.decoder.head(hidden).double(), dim=-1)

    def _choose(self, batch: list[_Row], log_p: Tensor) -> None:
        for row, mine in zip(batch, log_p, strict=True):
            if row.finished:
                continue
            noise = self._noise(row, mine)
            token, gap = _smallest(noise, mine)
            if self.exact and gap < MARGIN:
                alone = torch.tensor([[*row.ids, *row.tokens]], device=self.decoder.device)
                mine = self._log_p(self.decoder.whole(alone)[:, -1])[0]
                token, _ = _smallest(noise, mine)
            row.tokens.append(token)
            row.logp.append(float(mine[token]))
            row.finished = token in self.ends

    def _noise(self, row: _Row, log_p: Tensor) -> Tensor:
        """Logarithms of exponential numbers, one a token of the vocabulary, float64."""
        if isinstance(row.noise, np.random.Generator):
            return torch.from_numpy(row.noise.standard_exponential(log_p.shape[0])).log_()
        return torch.empty_like(log_p).exponential_(generator=row.noise).log_()

    def _reference(self, rows: list[_Row], adapted: Any) -> list[list[float]]:
        """What the model without its adapter says of the answers, row by row: (T,) nats each."""
        found = []
        with adapted.disable_adapter():
            for row in rows:
                ids = torch.tensor([[*row.ids, *row.tokens]], device=self.decoder.device)
                log_p = self._log_p(self.decoder.whole(ids[:, :-1])[0, len(row.ids) - 1 :])
                found.append(log_p.gather(1, ids[0, len(row.ids) :, None])[:, 0].tolist())
        return found

    def _rows_at_once(self, prompt_length: int) -> int:
        """How many answers fit into half of the free memory, by their keys, values and logits."""
        config = self.decoder.model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kept = 2 * config.num_hidden_layers * heads * width * (prompt_length + self.max_new_tokens)
        row = kept * next(self.decoder.model.parameters()).element_size() + 8 * 4 * self.decoder.vocabulary
        most = _ROWS if self.device == "cpu" else _ROWS_GPU
        return int(min(max(_SHARE * _free(self.device) // row, 1), most))


def _smallest(log_noise: Tensor, log_p: Tensor) -> tuple[int, float]:
    """The token with the smallest noise for its probability, and how much larger the next is, in nats."""
    two = torch.topk(log_noise - log_p, min(2, log_p.shape[0]), largest=False)
    gap = float(two.values[-1] - two.values[0]) if two.values.shape[0] > 1 else float("inf")
    return int(two.indices[0]), gap


def _distinct(rows: Sequence[_Row], device: torch.device) -> tuple[Prompts, Tensor]:
    """The prompts of a batch, each once, and which of them each row's is."""
    order: dict[str, int] = {}
    ids: list[list[int]] = []
    for row in rows:
        if row.prompt.key not in order:
            order[row.prompt.key] = len(ids)
            ids.append(row.ids)
    return pad_left(ids, device=device), torch.tensor([order[row.prompt.key] for row in rows], device=device)


def _with_adapter(model: Any, folder: Path) -> Any:
    """PEFT's wrapper around the model, whose layers it changes in place."""
    from peft import PeftModel

    if not (folder / "adapter_config.json").is_file():
        raise ConfigError(
            _checks.message("adapter", expected="a folder of PEFT's with adapter_config.json", got=f"{folder}")
        )
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers for what it has renamed
            return PeftModel.from_pretrained(model, str(folder)).eval()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigError(f"adapter: {folder} cannot be read: {' '.join(str(error).split())[:200]}") from error


def _free(device: str) -> int:
    """Free memory in bytes; 2 GiB where it cannot be told."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 2 << 30
