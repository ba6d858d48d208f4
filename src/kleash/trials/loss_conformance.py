"""What does beta mean in anybody's loss? Its faults, its pull, its fixed point and the tilt's beta of that, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash import _checks
from kleash._version import version
from kleash.envelope import envelope
from kleash.errors import OptionError
from kleash.gradients import expected_gradient, kl_gradient
from kleash.kl import derivative, log_softmax
from kleash.trials.loss_clipping import Clipping, clipping_of
from kleash.trials.loss_faults import Fault, faults_of, ties_to
from kleash.trials.loss_rest import AS_ASKED, Variant, loss_world, variants_of
from kleash.trials.user_loss import UserLoss

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kleash.estimates import Floats
    from kleash.trials.roots import Puzzle

__all__ = ["LossConformance", "Variant", "loss_conformance", "loss_world"]

_PROBES = 4
"""Policies at which the penalty's mean gradient is compared with those of the known divergences."""
_LIKE = 0.1
"""Share of the penalty's mean gradient that may be left over where it is called one of the known ones. Ours."""


@dataclass(frozen=True, kw_only=True)
class LossConformance:
    """What a loss does with its leash.

    Parameters
    ----------
    name
        The loss, as it was named.
    beta, group_size
        As asked.
    pulls_back
        Whether the penalty's mean gradient opposes the drift from the reference.
    to
        ``reference``, ``sampler`` or ``neither``.
    gradient
        Which divergence's gradient the penalty has in the mean, in words.
    faults
        What is wrong.
    variants
        The fixed point as asked, with rewards ten times as large, with other groups.
    unbiased
        Whether groups of the asked size move the policy on average as groups of twice the size do: no bias by sampling.
    clipping
        From which ratio on the policy term has no gradient, and whether the penalty goes on there.
    """

    name: str
    beta: float
    group_size: int
    pulls_back: bool
    to: str
    gradient: str
    faults: tuple[Fault, ...]
    variants: tuple[Variant, ...]
    unbiased: bool | None
    clipping: Clipping

    @property
    def passed(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    @property
    def tilt_beta(self) -> dict[str, float] | None:
        """The tilt's beta of the fixed point as asked, and the smallest and largest over the variants that have one."""
        found = [v.tilt_beta for v in self.variants if v.tilt_beta is not None]
        own = next((v.tilt_beta for v in self.variants if v.name == AS_ASKED), None)
        return None if own is None else {"value": own, "lo": min(found), "hi": max(found)}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data, as ``kleash conformance MODULE:LOSS --format json`` prints it."""
        return {
            **envelope("conformance", version=version(), seed=0),
            "name": self.name,
            "beta": self.beta,
            "group_size": self.group_size,
            "pulls_back": self.pulls_back,
            "to": self.to,
            "gradient": self.gradient,
            "tilt_beta": self.tilt_beta,
            "unbiased": self.unbiased,
            "clipping": self.clipping.to_dict(),
            "faults": [fault.to_dict() for fault in self.faults],
            "variants": [variant.to_dict() for variant in self.variants],
            "passed": self.passed,
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row per variant, for CSV."""
        return [{"loss": self.name, "beta": self.beta, **variant.to_dict()} for variant in self.variants]

    def __rich__(self) -> RenderableType:
        from kleash.trials.table import loss_table

        return loss_table(self)


def loss_conformance(
    loss: str | Callable[..., Any],
    *,
    beta: float = 0.5,
    group_size: int = 4,
    settings: Mapping[str, Any] | None = None,
    offline: bool = False,
    folder: str | Path = ".",
    variants: bool = True,
) -> LossConformance:
    """What a loss of one's own does with its leash, without training: :func:`kleash.conformance` on a loss.

    Parameters
    ----------
    loss
        ``loss(logp, old_logp, ref_logp, reward, mask, *, beta, group_size, **settings)`` in torch: arrays (answers,
        tokens) in nats, rewards (answers,); a scalar to be descended. Or ``module:function``, looked for in ``folder``.
    beta
        The coefficient, above 0, reward units per nat.
    group_size
        Answers to a prompt.
    settings
        Further keywords of the loss.
    offline
        Whether it is trained on answers of the reference, as on preference data, and not on its own.
    variants
        Whether to find the fixed points too, not the faults alone.

    Returns
    -------
    LossConformance
        Faults, what the penalty ties to and with which gradient, and where the mean update comes to rest.

    Raises
    ------
    OptionError
        The loss fails on the arrays, returns no number, or takes no beta.
    ConfigError
        There is no such function.

    Notes
    -----
    Everything is exact: on a world of seven answers groups are enumerated with their probabilities, on-policy, one
    update per batch. The penalty is the gradient at beta less the gradient at 0. Clipping is asked off-policy, of one
    token at a time.

    References
    ----------
    Tang, Munos, 2025, arXiv 2506.09477 and Liu et al., 2025, arXiv 2510.01555, for the gradients of the estimators.
    """
    number = _checks.number(beta, name="beta", above=0.0)
    size = _checks.integer(group_size, name="group_size", at_least=2)
    function, name = _function(loss, Path(folder))
    asked = UserLoss(function=function, group_size=size, settings=dict(settings or {}), offline=offline)
    world = loss_world()
    faults = list(faults_of(asked, beta=number))
    to = ties_to(asked, beta=number)
    gradient, along, defined = _of_the_mean(asked, world, number, bool(faults))
    if not faults and max(along) < 0:
        faults.append(Fault.of("SIGN"))
    broken = {"UNUSED_COEFFICIENT", "DETACHED", "SAMPLER", "NO_PULL"} & {fault.code for fault in faults}
    found = variants_of(asked, world, number) if variants and defined and not broken else []
    return LossConformance(
        name=name,
        beta=number,
        group_size=size,
        pulls_back=not broken and min(along) > 0,
        to=to,
        gradient=gradient,
        faults=tuple(faults),
        variants=tuple(found),
        unbiased=_unbiased(asked, world, number) if variants and defined else None,
        clipping=clipping_of(asked, beta=number),
    )


def _function(loss: str | Callable[..., Any], folder: Path) -> tuple[Callable[..., Any], str]:
    if not isinstance(loss, str):
        if not callable(loss):
            raise OptionError(
                _checks.message("loss", expected="a function or module:function", got=type(loss).__name__)
            )
        return loss, getattr(loss, "__name__", "loss")
    from kleash.train.judges import imported

    return imported(loss, name="loss", folder=folder), loss


def _policies(world: Puzzle) -> list[Floats]:
    rng = np.random.default_rng(5)
    start = log_softmax(world.reference_logits)
    return [np.asarray(log_softmax(start + 0.7 * rng.normal(size=start.shape))) for _ in range(_PROBES)]


def _penalty(loss: UserLoss, world: Puzzle, logits: Floats, beta: float, reward: Floats | None) -> Floats:
    at, without = (loss.mean_gradient(world, logits, beta=b, reward=reward) for b in (beta, 0.0))
    return np.asarray(at - without)


def _of_the_mean(loss: UserLoss, world: Puzzle, beta: float, faulty: bool) -> tuple[str, list[float], bool]:
    """`_gradient`, and whether it is defined: a loss with a fault may divide by 0 on answers of one token."""
    try:
        return *_gradient(loss, world, beta), True
    except OptionError:
        if not faulty:
            raise
        return "none: its mean is no finite number", [0.0], False


def _gradient(loss: UserLoss, world: Puzzle, beta: float) -> tuple[str, list[float]]:
    """Whose gradient the penalty has in the mean, in words; and its cosine with a KL's at each of the policies."""
    nothing = np.zeros_like(world.reward)
    policies = _policies(world)
    found = [_penalty(loss, world, logits, beta, nothing) for logits in policies]
    if max(np.abs(x).max() for x in found) < 1e-12:  # a penalty that is standardised with equal rewards is lost
        found = [_penalty(loss, world, logits, beta, None) for logits in policies]
    size = float(np.sqrt(sum(np.square(x).sum() for x in found)))
    if size < 1e-12:
        return "none: its mean is 0", [0.0]
    along = [_along(world, logits, x) for logits, x in zip(policies, found, strict=True)]
    stacked = np.concatenate([x.ravel() for x in found])
    left = {}
    for words, candidate in _candidates(world).items():
        other = np.concatenate([candidate(logits).ravel() for logits in policies])
        factor = float(stacked @ other) / float(other @ other)
        left[words] = float(np.linalg.norm(stacked - factor * other)) / size if factor > 0 else np.inf
    best = min(left, key=lambda words: left[words])
    if left[best] > _LIKE:
        return "that of no known divergence", along
    return best if left[best] < 1e-6 else f"about {best}", along


def _along(world: Puzzle, logits: Floats, penalty: Floats) -> float:
    """The better of the penalty's two cosines with the gradients of both KLs."""
    cosines = []
    for direction in ("policy||reference", "reference||policy"):
        other = kl_gradient(world.tokens, logits, world.reference_logits, direction=direction)
        size = float(np.linalg.norm(penalty) * np.linalg.norm(other))
        cosines.append(float((penalty * other).sum()) / size if size > 0 else 0.0)
    return max(cosines)


def _candidates(world: Puzzle) -> dict[str, Callable[[Floats], Floats]]:
    tokens, reference = world.tokens, world.reference_logits
    length = tokens.mask.sum(axis=1, keepdims=True).astype(np.float64)

    def in_loss(estimator: str, mean: bool, logits: Floats) -> Floats:
        """`kleash.gradients.expected_gradient` of an estimator in the loss, every token or every answer alike."""
        logp = tokens.log_probabilities(logits)
        delta = np.where(tokens.mask, logp - tokens.log_probabilities(reference), 0.0)
        weight = np.exp(logp.sum(axis=1, keepdims=True)) * derivative(delta, estimator=estimator)  # type: ignore[arg-type]
        return tokens._score(logits, weight / length if mean else weight)

    def in_reward(estimator: str, logits: Floats) -> Floats:
        return expected_gradient(tokens, logits, reference, estimator=estimator, placement="reward")  # type: ignore[arg-type]

    def mean_in_reward(logits: Floats) -> Floats:
        logp = tokens.log_probabilities(logits)
        whole = (logp - tokens.log_probabilities(reference)).sum(axis=1, keepdims=True)
        return tokens._score(
            logits, np.broadcast_to(np.exp(logp.sum(axis=1, keepdims=True)) * whole / length, logp.shape)
        )

    reverse, forward = "KL(policy || reference)", "KL(reference || policy)"
    return {
        f"{reverse} of whole answers": partial(in_reward, "k1"),
        f"{reverse}, token by token": partial(in_loss, "k2", False),
        f"{reverse}, token by token, every answer alike": partial(in_loss, "k2", True),
        f"{forward}, token by token": partial(in_loss, "k3", False),
        f"{forward}, token by token, every answer alike": partial(in_loss, "k3", True),
        "the log ratio's size, token by token": partial(in_loss, "abs", False),
        "the log ratio's size, token by token, every answer alike": partial(in_loss, "abs", True),
        f"{reverse} of whole answers over their length": mean_in_reward,
        "k3 in the reward: of neither KL": partial(in_reward, "k3"),
    }


def _unbiased(loss: UserLoss, world: Puzzle, beta: float) -> bool | None:
    """Whether twice the group gives the same mean update, up to its size; if not, sampling itself moves the target."""
    try:
        twice = replace(loss, group_size=2 * loss.group_size)
        pairs = [
            (loss.mean_gradient(world, logits, beta=beta), twice.mean_gradient(world, logits, beta=beta))
            for logits in _policies(world)[:1]
        ]
    except OptionError:
        return None
    for first, second in pairs:
        factor = float((first * second).sum()) / float((second * second).sum())
        if np.linalg.norm(first - factor * second) > 1e-6 * np.linalg.norm(first):
            return False
    return True
