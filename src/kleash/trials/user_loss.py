"""A user's loss as a function that can be asked: its value, its gradient, and its mean update over all groups.

The loss is torch and knows nothing of worlds: ``loss(logp, old_logp, ref_logp, reward, mask, *, beta, group_size)``,
arrays (answers, tokens) and (answers,), the answers of a group one behind the other. Everything here is in float64.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from kleash import _checks
from kleash.errors import OptionError
from kleash.kl import log_softmax

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.estimates import Floats
    from kleash.trials.roots import Puzzle

__all__ = ["Batch", "UserLoss"]

Array = "NDArray[np.float64]"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a loss is given: log-probabilities (answers, tokens) in nats, rewards (answers,), the mask of tokens."""

    logp: Floats
    old_logp: Floats
    ref_logp: Floats
    reward: Floats
    mask: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class UserLoss:
    """A loss with its settings.

    Parameters
    ----------
    function
        ``loss(logp, old_logp, ref_logp, reward, mask, *, beta, group_size, **settings)``, a scalar tensor to be
        descended. Keywords that it does not take are not given.
    group_size
        Answers to a prompt, one behind the other.
    settings
        Further keywords.
    offline
        Whether the answers are the reference's, as those of preference data: then ``old_logp`` is ``ref_logp``.
    """

    function: Callable[..., Any]
    group_size: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    offline: bool = False

    def keywords(self, beta: float) -> dict[str, Any]:
        """What it takes of beta, group size and settings; an `OptionError` where it takes no beta."""
        taken = inspect.signature(self.function).parameters
        every = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
        if not every and "beta" not in taken:
            said = _checks.message("loss", expected="a keyword beta", got=", ".join(taken))
            raise OptionError(said)
        strange = [name for name in self.settings if not every and name not in taken]
        if strange:
            raise OptionError(_checks.message("settings", expected=", ".join(taken), got=", ".join(strange)))
        given = {"beta": beta, "group_size": self.group_size, **self.settings}
        return {name: value for name, value in given.items() if every or name in taken}

    def __call__(self, batch: Batch, *, beta: float) -> tuple[float, Floats]:
        """Its value on a batch, and its gradient with respect to ``logp``, shape (answers, tokens).

        Raises `OptionError`: It fails, or returns something else than one number that can be differentiated.
        """
        logp = torch.tensor(batch.logp, dtype=torch.float64, requires_grad=True)
        rest = [torch.tensor(x, dtype=torch.float64) for x in (batch.old_logp, batch.ref_logp, batch.reward)]
        mask = torch.tensor(batch.mask, dtype=torch.float64)
        value = self._asked(logp, *rest, mask, keywords=self.keywords(beta))
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            got = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise OptionError(_checks.message("loss", expected="one number, a scalar tensor", got=got))
        if not value.requires_grad:
            return float(value), np.zeros_like(batch.logp)
        (gradient,) = torch.autograd.grad(value.reshape(()), logp, allow_unused=True)
        found = np.zeros_like(batch.logp) if gradient is None else gradient.numpy()
        if not (np.isfinite(found).all() and math.isfinite(float(value.detach()))):
            raise OptionError(
                _checks.message("loss", expected="finite numbers", got=f"others on answers of {_lengths(batch)} tokens")
            )
        return float(value.detach()), found

    def _asked(self, *tensors: torch.Tensor, keywords: Mapping[str, Any], mode: Any = None) -> Any:
        try:
            with _Double() if mode is None else mode:
                return self.function(*tensors, **keywords)
        except Exception as error:
            told = " ".join(str(error).split())
            got = f"{type(error).__name__}: {told}"
            shapes = "logp, old_logp, ref_logp, mask (answers, tokens) and reward (answers,)"
            raise OptionError(_checks.message("loss", expected=f"to work on {shapes}", got=got)) from error

    def mean_gradient(self, puzzle: Puzzle, logits: Floats, *, beta: float, reward: Floats | None = None) -> Floats:
        """Its gradient with respect to the logits in expectation over groups of answers; exact.

        Parameters
        ----------
        puzzle
            The world; ``reward`` (S,) in place of its scores.
        logits
            The policy, shape (n_prefixes, vocabulary); it has drawn the answers itself (``old_logp`` is ``logp``),
            unless the loss is ``offline``.
        beta
            The coefficient.

        Returns
        -------
        Floats
            Shape (n_prefixes, vocabulary).

        Notes
        -----
        Groups are enumerated by their composition, each with its multinomial probability and as a batch of its own: a
        loss that divides by the tokens of its batch is taken as it is.
        """
        members, count = _compositions(len(puzzle.reward), self.group_size)
        world = puzzle.tokens
        token_logp = world.log_probabilities(logits)
        ref = world.log_probabilities(puzzle.reference_logits)
        old = ref if self.offline else token_logp
        chance = np.exp(count + old.sum(axis=1)[members].sum(axis=1))
        kept = chance > 1e-12
        members, chance = members[kept], chance[kept]
        scores = puzzle.reward if reward is None else reward
        whole = Batch(logp=token_logp, old_logp=old, ref_logp=ref, reward=scores, mask=world.mask)
        gradients = self._gradients(members, whole, beta=beta)
        weight = np.zeros_like(token_logp)
        np.add.at(weight, members.ravel(), (chance[:, None, None] * gradients).reshape(-1, weight.shape[1]))
        return world._score(np.asarray(log_softmax(logits)), weight)

    def _gradients(self, members: NDArray[np.int64], whole: Batch, *, beta: float) -> Floats:
        """The gradients of many groups of the answers, (M, G, T): all at once where torch can, else one by one."""
        keywords = self.keywords(beta)
        tensors = [torch.tensor(x[members], dtype=torch.float64) for x in vars(whole).values()]

        def one(*group: torch.Tensor) -> Any:
            with _Double():
                return self.function(*group, **keywords).reshape(())

        try:
            found = torch.func.vmap(torch.func.grad(one))(*tensors)
        except Exception:  # noqa: BLE001  a loss that branches on values: asked group by group, with its own errors
            found = None
        if found is not None and bool(torch.isfinite(found).all()):
            return np.asarray(found.detach().numpy())
        return self._one_by_one(members, whole, tensors, beta=beta)

    def _one_by_one(
        self, members: NDArray[np.int64], whole: Batch, tensors: list[torch.Tensor], *, beta: float
    ) -> Floats:
        """The same with a call per group and one way back for all of them."""
        logp = tensors[0].requires_grad_()
        keywords, first = self.keywords(beta), _Double()
        values = [self._asked(logp[0], *(x[0] for x in tensors[1:]), keywords=keywords, mode=first)]
        mode = None if first.cast else nullcontext()  # the mode costs as much as the loss
        others = zip(logp[1:], *(x[1:] for x in tensors[1:]), strict=True)
        values += [self._asked(*group, keywords=keywords, mode=mode) for group in others]
        if all(isinstance(x, torch.Tensor) and x.numel() == 1 and x.requires_grad for x in values):
            (found,) = torch.autograd.grad(torch.stack([x.reshape(()) for x in values]).sum(), logp)
            if bool(torch.isfinite(found).all()):
                return np.asarray(found.numpy())
        batches = (Batch(**{name: values[group] for name, values in vars(whole).items()}) for group in members)
        return np.stack([self(batch, beta=beta)[1] for batch in batches])  # with its errors, and where it is constant


class _Double(TorchFunctionMode):  # type: ignore[misc]
    """A loss computes in double precision, whatever it casts to: a change of 1e-9 must not drown in rounding."""

    cast = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _TO_SINGLE:
            self.cast = True
            return args[0].to(torch.float64)
        given = kwargs or {}
        if any(isinstance(x, torch.dtype) and x in _SINGLE for x in (*args, *given.values())):
            self.cast = True
            args, given = map(_double, args), {key: _double(value) for key, value in given.items()}
        return func(*args, **given)


_SINGLE = (torch.float32, torch.float16, torch.bfloat16)
_TO_SINGLE = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)


def _double(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _SINGLE else value


def _lengths(batch: Batch) -> str:
    return ", ".join(str(int(n)) for n in batch.mask.sum(axis=1))


def _compositions(answers: int, size: int) -> tuple[NDArray[np.int64], Floats]:
    """Every group of so many answers without regard to order, (M, G), and the log number of its orders, (M,)."""
    total = math.comb(answers + size - 1, size)
    if total > 20_000:
        fix = "a smaller group_size, or a world of fewer answers"
        raise OptionError(_checks.message("groups", expected="at most 20,000 kinds of group", got=total, fix=fix))
    members = np.array(list(combinations_with_replacement(range(answers), size)), dtype=np.int64)
    counts = np.stack([(members == s).sum(axis=1) for s in range(answers)], axis=1)
    logs = np.array([math.lgamma(n + 1) for n in range(size + 1)])
    return members, logs[size] - logs[counts].sum(axis=1)
