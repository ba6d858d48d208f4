"""Many LoRA adapters on one frozen model: a leading group axis, so that all betas and seeds train in one pass.

The base weights are held once. Each adapted layer carries ``A`` of shape (G, in, r) and ``B`` of shape (G, r, out), one
slice per group, and rows come group-major: the first of G equal parts belongs to group 0, and so on. With the adapters
switched off the model is the reference.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kleash import _checks, _files
from kleash.errors import OptionError, ShapeError
from kleash.train.streams import Purpose, stream

__all__ = ["GroupedLinear", "GroupedLoRA", "attach"]

_MERGE_UP_TO = 6
"""A layer of in x out weights is multiplied out to W + s A B per group while in out <= 6 r (in + out).

Counted in multiplications a row, forward and backward: 3 in out merged against 2 in out + 3 r (in + out) apart, which
cross at half of that; the rest pays for the three small matrix products and the additions that merging saves.
"""


class _Switch:
    """Whether the adapters of a model are on; shared by its layers."""

    def __init__(self) -> None:
        self.on = True


class GroupedLinear(nn.Module):  # type: ignore[misc]
    """A frozen linear layer with one LoRA adapter per group.

    Input of shape (G * n, ..., in) or (G, n, in), group-major; the output has ``out`` in the last place.
    """

    def __init__(self, base: nn.Module, *, A: Tensor, B: Tensor, scale: float, switch: _Switch) -> None:
        super().__init__()
        self.base = base
        self.transposed = not isinstance(base, nn.Linear)  # Conv1D keeps its weight as (in, out)
        self.adapter_a, self.adapter_b = A, B  # views of the groups' flat parameters, not registered as parameters
        self.scale = scale
        self.switch = switch
        groups, inner, rank = A.shape
        outer = B.shape[2]
        self.groups, self.outer = groups, outer
        # in half precision W + s A B would lose what of A B lies below the last bit of W
        exact = base.weight.dtype == A.dtype
        self.small = exact and inner * outer <= _MERGE_UP_TO * rank * (inner + outer)
        self.merged: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """The frozen weight, as the layer underneath keeps it."""
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        """The frozen bias."""
        return self.base.bias

    def multiplied_out(self) -> Tensor:
        """Base plus delta per group, shape (G, in, out)."""
        weight = self.weight if self.transposed else self.weight.t()
        return torch.baddbmm(
            weight.to(self.adapter_a.dtype).expand(self.groups, -1, -1),
            self.adapter_a,
            self.adapter_b,
            alpha=self.scale,
        ).to(weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The base layer's output, plus each group's own adapter unless they are switched off."""
        if not self.switch.on:
            return self.base(x)
        rows = x.reshape(self.groups, -1, x.shape[-1])
        if self.small:
            weight = self.multiplied_out() if self.merged is None else self.merged
            bias = self.base.bias
            out = torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias, rows, weight)
            return out.reshape(*x.shape[:-1], self.outer)
        low = torch.bmm(rows, self.adapter_a.to(x.dtype))
        update = torch.bmm(low, self.adapter_b.to(x.dtype))
        return self.base(x) + self.scale * update.reshape(*x.shape[:-1], self.outer)


class GroupedLoRA:
    """The adapters of a model; made by :func:`attach`.

    ``values`` (G, N) holds every adapter of a group in one row, float32, of which the layers hold views; ``gradients``
    has the same shape. An optimiser that works on them element by element keeps groups apart.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Mapping[str, GroupedLinear],
        values: Tensor,
        gradients: Tensor,
        rank: int,
        alpha: float,
        switch: _Switch,
    ) -> None:
        self.model = model
        self.layers = dict(layers)
        self.values, self.gradients = values, gradients
        self.rank, self.alpha = rank, alpha
        self._switch = switch

    @property
    def groups(self) -> int:
        """Number of groups, G."""
        return int(self.values.shape[0])

    @property
    def names(self) -> tuple[str, ...]:
        """Full names of the adapted layers."""
        return tuple(self.layers)

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, the model is the frozen reference and rows need no groups."""
        before, self._switch.on = self._switch.on, False
        try:
            yield
        finally:
            self._switch.on = before

    @contextlib.contextmanager
    def merged(self) -> Iterator[None]:
        """Inside, small layers multiply their adapters out once instead of in every call; values must not change.

        Enter it where gradients are recorded and they flow through; under ``torch.no_grad`` it serves sampling. Inside
        another one it does nothing.
        """
        if any(layer.merged is not None for layer in self.layers.values()):
            yield
            return
        try:
            for layer in self.layers.values():
                layer.merged = layer.multiplied_out() if layer.small else None
            yield
        finally:
            for layer in self.layers.values():
                layer.merged = None

    def backward(self, loss: Tensor, *, add: bool = False) -> None:
        """Differentiate a scalar, the sum of the groups' losses, into :attr:`gradients`.

        What was there is replaced, or with ``add`` added to: the parts of a batch too large for memory.
        """
        parts = [part for layer in self.layers.values() for part in (layer.adapter_a, layer.adapter_b)]
        found = torch.autograd.grad(loss, parts, materialize_grads=True)
        flat = [part.reshape(self.groups, -1) for part in found]
        if add:
            self.gradients += torch.cat(flat, dim=1)
        else:
            torch.cat(flat, dim=1, out=self.gradients)

    def export(self, group: int, folder: Path) -> None:
        """Write one group in PEFT's format: ``adapter_config.json`` and ``adapter_model.safetensors`` in a folder.

        An OptionError without such a group, a KleashError where the folder cannot be made or written to.
        """
        if not 0 <= group < self.groups:
            raise OptionError(_checks.message("group", expected=f"0 to {self.groups - 1}", got=group))
        from safetensors.torch import save

        _files.make_folder(folder)
        tensors = {}
        for name, layer in self.layers.items():
            for letter, part in (("A", layer.adapter_a), ("B", layer.adapter_b)):
                tensors[f"base_model.model.{name}.lora_{letter}.weight"] = part[group].detach().t().contiguous().cpu()
        named = getattr(getattr(self.model, "config", None), "name_or_path", None) or None
        _files.write_atomic(folder / "adapter_model.safetensors", save(tensors, metadata={"format": "pt"}))
        record = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": named,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": any(layer.transposed for layer in self.layers.values()),
            "target_modules": self._peft_targets(),
            "modules_to_save": None,
            "init_lora_weights": True,
            "use_rslora": False,
            "inference_mode": True,
        }
        _files.write_atomic(folder / "adapter_config.json", _files.dump_json(record, indent=2) + "\n")

    def detach(self) -> None:
        """Put the plain layers back; the model is as it was before :func:`attach`, its parameters frozen."""
        for name, layer in self.layers.items():
            _replace(self.model, name, layer.base)

    def _peft_targets(self) -> list[str]:
        """Last parts of the names where they name just these layers, as engines like it; else the full names."""
        last = {name.rpartition(".")[2] for name in self.layers}
        same = {n for n, m in self.model.named_modules() if _is_target(m) and n.rpartition(".")[2] in last}
        return sorted(last) if same == set(self.layers) else list(self.layers)


def attach(
    model: nn.Module,
    *,
    groups: int | Sequence[int],
    rank: int = 16,
    alpha: float | None = None,
    targets: Sequence[str] | str = "all-linear",
    seed: int = 0,
) -> GroupedLoRA:
    """Freeze a causal language model of transformers and put grouped LoRA adapters on its linear layers.

    The model is changed in place (:meth:`GroupedLoRA.detach` undoes it). An OptionError for a target that no linear
    layer has, a ShapeError where the model has adapters already.

    ``groups``: The seed index of each group; a number G means 0 to G - 1. Groups with the same index start alike.
    ``rank``, ``alpha``: Size of the adapters, and the factor ``alpha / rank`` on their output; default alpha: twice the
    rank. ``targets``: Names of layers, in full or their last part (``q_proj``), or ``"all-linear"``: every linear
    layer, the output head included. Without an adapter on the head the logits of a small model stay bounded (see
    :func:`kleash.train.decoder.head_limit`).

    Notes
    -----
    Output ``W x + alpha / rank * B A x``; A is uniform on +-1 / sqrt(in), B is 0, so every group starts as the
    reference. PEFT's own mixed batches loop over adapters and took three times as long as the batched product.

    References
    ----------
    Hu et al. 2021, arXiv 2106.09685, equation 3.
    """
    index = list(range(_checks.integer(groups, name="groups", at_least=1))) if isinstance(groups, int) else list(groups)
    if not index:
        raise OptionError(_checks.message("groups", expected="at least one group", got="none"))
    rank = _checks.integer(rank, name="rank", at_least=1)
    alpha = 2.0 * rank if alpha is None else _checks.number(alpha, name="alpha", above=0)
    if any(isinstance(module, GroupedLinear) for module in model.modules()):
        raise ShapeError(_checks.message("model", expected="no adapters yet", got="some", fix="detach them first"))
    chosen = _choose(model, targets)
    model.requires_grad_(False)
    model.eval()
    sizes = {name: _sizes(module) for name, module in chosen.items()}
    total = sum(rank * (inner + outer) for inner, outer in sizes.values())
    device = next(model.parameters()).device
    values = torch.zeros(len(index), total, device=device)
    gradients = torch.zeros_like(values)
    switch, layers, start = _Switch(), {}, 0
    for number, (name, module) in enumerate(chosen.items()):
        inner, outer = sizes[name]
        parts = []
        for shape in ((inner, rank), (rank, outer)):
            stop = start + shape[0] * shape[1]
            part = values[:, start:stop].view(len(index), *shape).requires_grad_()
            parts.append(part)
            start = stop
        with torch.no_grad():
            for group, which in enumerate(index):
                rng = stream(seed, Purpose.ADAPTERS, which, number)
                drawn = rng.uniform(-1.0, 1.0, size=(inner, rank)) / math.sqrt(inner)
                parts[0][group] = torch.from_numpy(drawn.astype(np.float32))
        layers[name] = GroupedLinear(module, A=parts[0], B=parts[1], scale=alpha / rank, switch=switch)
        _replace(model, name, layers[name])
    return GroupedLoRA(model, layers=layers, values=values, gradients=gradients, rank=rank, alpha=alpha, switch=switch)


def _choose(model: nn.Module, targets: Sequence[str] | str) -> dict[str, nn.Module]:
    """The layers to adapt, in the model's order."""
    known = {name: module for name, module in model.named_modules() if _is_target(module)}
    if targets == "all-linear":
        return known
    wanted = [targets] if isinstance(targets, str) else list(targets)
    if not wanted:
        raise OptionError(_checks.message("targets", expected="names of layers, or all-linear", got="none"))
    last = list(dict.fromkeys(name.rpartition(".")[2] for name in known))
    for target in wanted:
        if not any(name == target or name.endswith("." + target) for name in known):
            raise OptionError(f"targets: the model has no linear layer {target!r}; {_checks.nearest(target, last)}")
    return {
        name: module
        for name, module in known.items()
        if any(name == target or name.endswith("." + target) for target in wanted)
    }


def _is_target(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | GroupedLinear) or _is_conv1d(module)


def _is_conv1d(module: nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


def _sizes(module: Any) -> tuple[int, int]:
    """Width in and width out."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    return int(module.weight.shape[0]), int(module.weight.shape[1])


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
