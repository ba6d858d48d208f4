"""How a causal language model of transformers is run: prompts first, answers after them, hidden states and head apart.

Prompts are run once and their keys and values shared by all answers to them, in sampling as in scoring. Short prompts
of a batch are padded on the left.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kleash import _checks
from kleash.errors import OptionError
from kleash.train.adapters import GroupedLinear

__all__ = ["Decoder", "HeadLimit", "Prompts", "head_limit", "pad_left"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Prompts:
    """Prompts of a batch, padded on the left: ``ids`` (P, L) and ``mask`` (P, L), None where none is shorter."""

    ids: Tensor
    mask: Tensor | None

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def repeat(self, times: int) -> Prompts:
        """The whole batch ``times`` times, group-major."""
        return Prompts(ids=self.ids.repeat(times, 1), mask=None if self.mask is None else self.mask.repeat(times, 1))


def pad_left(prompts: Sequence[Sequence[int]], *, device: torch.device | str = "cpu") -> Prompts:
    """Prompts as lists of token ids, brought to one length; what stands in the padding is never attended to."""
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise OptionError(_checks.message("prompts", expected="at least one token each", got="an empty one"))
    length = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (length - len(p)) + list(p) for p in prompts], dtype=torch.long, device=device)
    if all(len(prompt) == length for prompt in prompts):
        return Prompts(ids=ids, mask=None)
    mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in prompts], dtype=torch.long, device=device)
    return Prompts(ids=ids, mask=mask)


class Decoder:
    """The body of a causal language model and its output head.

    Raises `OptionError`: The logits are not what the head makes of the last hidden states (some models scale or cap
    them afterwards): such a model would be sampled and scored wrongly.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.body: Any = getattr(model, getattr(model, "base_model_prefix", "") or "", None)
        if self.body is None or model.get_output_embeddings() is None:
            raise OptionError(
                _checks.message("model", expected="a causal language model of transformers", got=type(model).__name__)
            )
        known = inspect.signature(self.body.forward).parameters
        self._cache = "cache" if "cache" in known else "past_key_values"
        self._positions = "position_ids" in known
        self._probe()

    @property
    def head(self) -> nn.Module:
        """The output head, with its adapter where it has one."""
        head: nn.Module = self.model.get_output_embeddings()
        return head

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def max_positions(self) -> int | None:
        """How many positions the model has, None if it does not say."""
        config = self.model.config.get_text_config()
        return getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)

    def prefill(self, prompts: Prompts) -> tuple[Tensor, Any]:
        """Run prompts (R, L): the last position's hidden states (R, d), and their cache."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        positions = None
        if prompts.mask is not None and self._positions:
            positions = (prompts.mask.cumsum(dim=1) - 1).clamp_min(0)
        hidden = self._run(prompts.ids, cache=cache, mask=prompts.mask, positions=positions)
        return hidden[:, -1], cache

    def extend(self, ids: Tensor, *, cache: Any, prompts: Tensor | None, done: int = 0) -> Tensor:
        """Run ids (R, n) behind what is in the cache; hidden states (R, n, d).

        ``prompts`` is the mask of the prompts by row (R, L) or None, ``done`` how many answer tokens the cache holds.
        """
        mask = positions = None
        if prompts is not None:
            rows, n = ids.shape
            mask = torch.cat([prompts, prompts.new_ones(rows, done + n)], dim=1)
            if self._positions:
                positions = prompts.sum(dim=1, keepdim=True) + torch.arange(done, done + n, device=ids.device)
        return self._run(ids, cache=cache, mask=mask, positions=positions)

    def whole(self, ids: Tensor) -> Tensor:
        """Run ids (R, n) without padding or cache; hidden states (R, n, d)."""
        return self._run(ids, cache=None, mask=None, positions=None)

    def _run(self, ids: Tensor, *, cache: Any, mask: Tensor | None, positions: Tensor | None) -> Tensor:
        given: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": mask,
            self._cache: cache,
            "use_cache": cache is not None,
        }
        if positions is not None:
            given["position_ids"] = positions
        hidden: Tensor = self.body(**given).last_hidden_state
        return hidden

    def _probe(self) -> None:
        with torch.no_grad():
            groups = next((layer.groups for layer in self.model.modules() if isinstance(layer, GroupedLinear)), 1)
            ids = torch.zeros(groups, 2, dtype=torch.long, device=self.device)
            through = self.head(self._run(ids, cache=None, mask=None, positions=None)).float()
            whole = self.model(input_ids=ids, use_cache=False).logits.float()
        if not torch.allclose(through, whole, rtol=1e-3, atol=1e-3 * float(whole.abs().max())):
            expected = "logits that are the head's output of the last hidden states"
            raise OptionError(
                _checks.message(type(self.model).__name__, expected=expected, got="logits changed after it")
            )


@dataclass(frozen=True, kw_only=True)
class HeadLimit:
    """How far a frozen head and the norm before it let logits go.

    ``logit`` bounds every |logit|; ``probability`` bounds the probability of the token that is worst off.
    """

    logit: float
    probability: float


def head_limit(model: Any) -> HeadLimit | None:
    """Bounds that a frozen output head and a final norm put on logits and probabilities, whatever the layers below do.

    Returns
    -------
    None where the last norm is not found or has another form: then nothing is claimed.

    Notes
    -----
    After a norm with weight w and bias c, hidden states are ``h = w * u + c`` with ``|u| <= sqrt(d)``, so ``|W_v h| <=
    sqrt(d) |W_v * w| + |W_v c|``; of two tokens ``logit_v - logit_v' <= sqrt(d) |(W_v - W_v') * w| + (W_v - W_v') c``.
    The second bounds a token's probability by ``1 / (sum_v' exp(-bound))``; for more than 4,096 tokens it is replaced
    by the sum of the two single bounds, which is looser. A layer adapted below cannot pass either.
    """
    body = getattr(model, getattr(model, "base_model_prefix", "") or "", None)
    norm = next(
        (m for n in ("norm", "ln_f", "final_layer_norm", "final_layernorm") if (m := getattr(body, n, None))), None
    )
    head = model.get_output_embeddings()
    scale = getattr(norm, "weight", None)
    if scale is None or scale.ndim != 1 or head.weight.shape[1] != scale.shape[0]:
        return None
    with torch.no_grad():
        weight = head.weight.detach().double()
        offset = getattr(norm, "bias", None)
        shift = weight @ offset.double() if offset is not None else weight.new_zeros(weight.shape[0])
        if getattr(head, "bias", None) is not None:
            shift = shift + head.bias.double()
        scaled = weight * scale.double() * scale.shape[0] ** 0.5
        single = scaled.norm(dim=1)
        if weight.shape[0] <= 4096:
            bound = torch.cdist(scaled, scaled) + shift[:, None] - shift[None, :]
            bound.fill_diagonal_(0.0)
            top = torch.exp(-torch.logsumexp(-bound, dim=1)).min()
        else:
            reach = single + shift.abs()
            worst = reach.argmin()
            others = torch.cat([reach[:worst], reach[worst + 1 :]])
            top = torch.sigmoid(-torch.logsumexp(-others, dim=0) + reach[worst])
        return HeadLimit(logit=float((single + shift.abs()).max()), probability=float(top))
