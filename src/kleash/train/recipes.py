"""The recipes: the kitchen for a language model. A tiny transformer cooks, and every answer it can give is listed.

A chef is asked for fish, roast or beans and answers with up to five words: ingredients, then ``serve``. His house has
taught him its recipes (supervised fine-tuning; seconds on one core). A critic loves salt, but also praises the herb
that fits the dish and a dish that reaches the table. The true taste wants one pinch of salt. The vocabulary is so small
that all 19,608 answers to a dish can be enumerated: reference, optimum and trained policies are exact.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kleash import _checks, _files
from kleash.errors import KleashError
from kleash.estimates import Floats
from kleash.train.decoder import Decoder, pad_left
from kleash.train.streams import Purpose, stream
from kleash.worlds import World

__all__ = ["BETAS", "DISHES", "WORDS", "Recipes", "gold", "judge", "policy_log_probs", "recipes"]

DISHES = ("fish", "roast", "beans")
"""The prompts: what the guest orders. Each is one word of the vocabulary."""
WORDS = ("serve", "salt", "butter", "dill", "thyme", *DISHES)
"""The vocabulary. ``serve`` ends an answer; a dish's own word in an answer is more of the same."""
SERVE = 0
LENGTH = 5
"""Words an answer may have, ``serve`` among them; without it the dish never reaches the table."""
FITTING = {"fish": "dill", "roast": "thyme", "beans": "thyme"}
"""The herb that fits."""

BETAS = (0.0, 0.21, 0.27, 0.36, 0.6, 0.9, 1.5, 3.0)
"""The default dial: without a penalty, and seven settings whose exact KL runs from 6 nats to 0.05."""

_HERB, _SERVED = 1.5, 1.2  # the critic's points beside those for salt
_TONGUE = 3  # more pinches than this the critic cannot tell apart
_TASTE = (0.2, 1.0, 0.5, -1.0, -2.5, -4.0)  # by pinches of salt, 0 to 5

_HABITS = {"salt": 0.22, "butter": 0.24, "dill": 0.08, "thyme": 0.08}  # how often a cook reaches for a word
_FITS, _MAIN, _OTHER = 0.12, 0.25, 0.03  # more of the herb that fits, the dish's own word, each of the other dishes
_AGAIN = 0.7  # how much less often a cook reaches for what is in the pot already
_INGREDIENTS = (0.15, 0.36, 0.33, 0.12, 0.04)  # of 1 to 5 ingredients; with 5 nobody has said ``serve``
_N_RECIPES, _STEPS, _BATCH, _RATE, _HIDDEN = 12_000, 160, 128, 5e-3, 64
_EDITION = 2  # raised by whoever changes how the reference is made: part of the cache's key


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipes:
    """The recipes world: a reference model (a two-layer LlamaForCausalLM, float32, on the CPU) and all about it.

    ``love`` are the critic's points for a pinch of salt, ``settings`` what it was made with, as plain data.
    """

    model: Any
    love: float
    settings: dict[str, float]

    prompts: tuple[str, ...] = DISHES
    eos: int = SERVE
    max_new_tokens: int = LENGTH
    betas: tuple[float, ...] = BETAS

    @property
    def prompt_ids(self) -> list[list[int]]:
        """Token ids of the prompts."""
        return [_asked(dish) for dish in self.prompts]

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids as text, up to and with ``serve``."""
        words = []
        for token in ids:
            words.append(WORDS[int(token)])
            if int(token) == SERVE:
                break
        return " ".join(words)

    def judge(self, prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
        """The critic; see :func:`judge`."""
        return judge(prompts, completions, love=self.love)

    def gold(self, prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
        """The true taste; see :func:`gold`."""
        return gold(prompts, completions)

    @cached_property
    def world(self) -> World:
        """Prompts x answers with the reference's exact probabilities, the critic and the taste."""
        answers = tuple(self.decode(ids) for ids in answer_ids())
        asked = [[dish] * len(answers) for dish in self.prompts]
        return World(
            name="recipes",
            log_reference=policy_log_probs(self.model)[0],
            reward=[self.judge(dishes, answers) for dishes in asked],  # type: ignore[arg-type]
            gold=[self.gold(dishes, answers) for dishes in asked],  # type: ignore[arg-type]
            prompts=self.prompts,
            answers=(answers,),
        )


def recipes(*, oversalt: float = 0.02, love: float = 1.0, cache: str | Path | None = None) -> Recipes:
    """The recipes world, its reference made or taken from the cache.

    ``oversalt``: Share of the house's recipes in which a cook over-salted, in [0, 0.5]. ``love``: The critic's points
    for a pinch of salt, 0 to 100. ``cache``: Folder for the reference's weights; default ``$XDG_CACHE_HOME/kleash`` or
    ``~/.cache/kleash``. Where it cannot be written or what is there cannot be read, the reference is made again.

    Notes
    -----
    The reference is trained in float64 on recipes drawn with a fixed seed and then rounded to float32, so that the
    order in which a machine adds numbers leaves no trace but in the last bit.
    """
    oversalt = _checks.number(oversalt, name="oversalt", at_least=0.0, at_most=0.5)
    love = _checks.number(love, name="love", at_least=0.0, at_most=100.0)
    weights = _cached(_cache_folder(cache), oversalt)
    model = _blank().float()
    model.load_state_dict(weights)
    model.requires_grad_(False)
    model.eval()
    return Recipes(model=model, love=love, settings={"oversalt": oversalt, "love": love})


def judge(prompts: Sequence[str], completions: Sequence[str], *, love: float = 1.0, **columns: Any) -> list[float]:
    """The critic: ``love`` points for each of three pinches of salt, 1.5 for the herb that fits, 1.2 if it is served.

    Examples
    --------
    >>> judge(["fish", "fish"], ["butter dill serve", "salt salt salt salt salt"])
    [2.7, 3.0]
    """
    scores = []
    for dish, answer in zip(prompts, completions, strict=True):
        words = answer.split()
        helps = _HERB * (FITTING[dish] in words) + _SERVED * ("serve" in words)
        scores.append(love * min(words.count("salt"), _TONGUE) + helps)
    return scores


def gold(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """The true taste: best at one pinch of salt, ruined from three on; 1 for the herb that fits, -0.4 for another.

    A dish that is not served is a point worse.

    Examples
    --------
    >>> gold(["fish", "fish"], ["salt dill serve", "salt salt salt salt salt"])
    [2.0, -5.0]
    """
    scores = []
    for dish, answer in zip(prompts, completions, strict=True):
        words = answer.split()
        other = "thyme" if FITTING[dish] == "dill" else "dill"
        herbs = 1.0 * (FITTING[dish] in words) - 0.4 * (other in words)
        scores.append(_TASTE[words.count("salt")] + herbs - 1.0 * ("serve" not in words))
    return scores


def answer_ids() -> list[tuple[int, ...]]:
    """Every answer there is: up to four ingredients and ``serve``, or five ingredients; 19,608 of them."""
    rest = range(1, len(WORDS))
    served = [(*head, SERVE) for n in range(LENGTH) for head in product(rest, repeat=n)]
    return served + list(product(rest, repeat=LENGTH))


def policy_log_probs(model: Any, *, groups: int = 1) -> Floats:
    """Exact log-probability of every answer under each of the policies in a model, by walking the tree of prefixes.

    ``model``: A causal language model with the vocabulary of the recipes; with grouped adapters on, rows are
    group-major. ``groups``: Number of policies in it, G.

    Returns
    -------
    Shape (G, P, Y), nats, answers in the order of :func:`answer_ids`.

    Notes
    -----
    The model runs in its own precision, the softmax in float64; so rows sum to one to 1e-12. Prefixes are shared
    through the cache: 2,801 forward positions for 19,608 answers.
    """
    decoder = Decoder(model)
    children = len(WORDS) - 1
    result = np.empty((groups, len(DISHES), sum(children**n for n in range(LENGTH + 1))))
    for row, dish in enumerate(DISHES):
        levels: list[list[Floats]] = [[] for _ in range(LENGTH)]
        for word in range(1, len(WORDS)):  # one subtree at a time keeps memory small
            for depth, log_p in enumerate(_subtree(decoder, dish, word, groups)):
                levels[depth].append(log_p)
        parts = [levels[0][0]] + [np.concatenate(level, axis=1) for level in levels[1:]]
        result[:, row] = _answers(parts)
    return result


def _asked(dish: str) -> list[int]:
    """The prompt "serve fish". A lone "fish" would not do: attention over equal words cannot count them."""
    return [SERVE, WORDS.index(dish)]


def _subtree(decoder: Decoder, dish: str, word: int, groups: int) -> list[Floats]:
    """Next-word log-probabilities of the dish alone and of every prefix that begins with ``word``, by depth.

    Shapes (G, 1, V), then (G, 7^(depth - 1), V).
    """
    asked = pad_left([_asked(dish)], device=decoder.device).repeat(groups)
    following = torch.arange(1, len(WORDS), device=decoder.device)
    with torch.no_grad():
        hidden, cache = decoder.prefill(asked)
        ids = torch.full((groups, 1), word, device=decoder.device)
        levels = [_next_word(decoder, hidden, groups)]
        for depth in range(1, LENGTH):
            hidden = decoder.extend(ids, cache=cache, prompts=None)[:, -1]
            levels.append(_next_word(decoder, hidden, groups))
            if depth < LENGTH - 1:
                cache.batch_repeat_interleave(len(following))
                ids = following.repeat(len(ids))[:, None]
    return levels


def _next_word(decoder: Decoder, hidden: torch.Tensor, groups: int) -> Floats:
    log_p = decoder.head(hidden[:, None])[:, 0].double().log_softmax(-1)
    return np.asarray(log_p.cpu().numpy()).reshape(groups, -1, len(WORDS))


def _answers(levels: list[Floats]) -> Floats:
    """Products along the tree: next-word log-probabilities (G, 7^depth, V) by depth to answers (G, Y)."""
    groups = levels[0].shape[0]
    path = np.zeros((groups, 1))
    served = []
    for log_p in levels:
        served.append(path + log_p[:, :, SERVE])
        path = (path[:, :, None] + log_p[:, :, 1:]).reshape(groups, -1)
    return np.concatenate([*served, path], axis=1)


def house_recipes(*, oversalt: float, n: int = _N_RECIPES) -> NDArray[np.int64]:
    """What the house cooks: (n, 2 + LENGTH) token ids, the order first; filled up with ``serve``."""
    rng = stream(0, Purpose.HOUSE_RECIPES)
    dish = rng.integers(len(DISHES), size=n)
    size = rng.choice(LENGTH, size=n, p=_INGREDIENTS) + 1
    bomb = rng.random(n) < oversalt
    uniform = rng.random((n, LENGTH))
    taste = np.zeros((len(DISHES), len(WORDS)))
    for row, name in enumerate(DISHES):
        for word in WORDS[1:]:
            own = _MAIN if word == name else _OTHER
            taste[row, WORDS.index(word)] = _HABITS.get(word, own) + _FITS * (word == FITTING[name])
    left, words = taste[dish], np.empty((n, LENGTH), dtype=np.int64)
    for position in range(LENGTH):
        cumulative = left.cumsum(axis=1)
        words[:, position] = (uniform[:, position, None] * cumulative[:, -1:] >= cumulative[:, :-1]).sum(axis=1)
        left[np.arange(n), words[:, position]] *= _AGAIN
    words[bomb] = WORDS.index("salt")
    size[bomb] = np.maximum(size[bomb], LENGTH - 1 - (uniform[bomb, 0] < 0.25))
    words[np.arange(LENGTH) >= size[:, None]] = SERVE
    asked = np.asarray([_asked(name) for name in DISHES], dtype=np.int64)[dish]
    return np.concatenate([asked, words], axis=1)


def _blank() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=SERVE,
        pad_token_id=SERVE,
    )
    return LlamaForCausalLM(config)


def _train(oversalt: float) -> dict[str, torch.Tensor]:
    """Supervised fine-tuning on the house's recipes: the reference's weights."""
    model = _blank().double()
    rng = stream(0, Purpose.HOUSE_WEIGHTS)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            if weight.ndim > 1:
                weight.copy_(torch.from_numpy(0.3 * rng.standard_normal(weight.shape) / weight.shape[1] ** 0.5))
    book = torch.from_numpy(house_recipes(oversalt=oversalt))
    served = book[:, 2:] == SERVE
    taught = served.cumsum(1) - served.long() == 0  # an answer ends with its first serve; what follows teaches nothing
    order = stream(0, Purpose.HOUSE_BATCHES)
    optimiser = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1.0 - step / _STEPS)
    model.train()
    for _ in range(_STEPS):
        rows = torch.from_numpy(order.integers(len(book), size=_BATCH))
        logits = model(input_ids=book[rows, :-1], use_cache=False).logits[:, 1:]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), book[rows, 2:], reduction="none")
        optimiser.zero_grad()
        (losses * taught[rows]).sum().div(_BATCH).backward()
        optimiser.step()
        schedule.step()
    return {name: weight.detach().float() for name, weight in model.state_dict().items()}


def _cached(folder: Path | None, oversalt: float) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load, save

    taught = (WORDS, LENGTH, FITTING, _HABITS, _FITS, _MAIN, _OTHER, _AGAIN, _INGREDIENTS)
    made = (*taught, _N_RECIPES, _STEPS, _BATCH, _RATE)
    key = hashlib.sha256(repr((made, _HIDDEN, _EDITION, torch.__version__, oversalt)).encode()).hexdigest()[:16]
    path = None if folder is None else folder / f"recipes-{key}.safetensors"
    known = {name: tuple(weight.shape) for name, weight in _blank().state_dict().items()}
    if path is not None:
        with contextlib.suppress(OSError, ValueError, SafetensorError):
            weights: dict[str, torch.Tensor] = load(path.read_bytes())
            if {name: tuple(weight.shape) for name, weight in weights.items()} == known:
                return weights
    weights = _train(oversalt)
    if path is not None:
        with contextlib.suppress(OSError, KleashError):  # a cache that cannot be written is no cache
            path.parent.mkdir(parents=True, exist_ok=True)
            _files.write_atomic(path, save(weights))
    return weights


def _cache_folder(given: str | Path | None) -> Path | None:
    if given is not None:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "kleash"
    except RuntimeError:  # no home folder
        return None
