"""Which fault does a loss have? Questions to its gradient on one batch, each about one way in which leashes come off.

The penalty is what of the gradient depends on beta: the gradient at beta minus the one at 0, per token. What it depends
on says what it ties to; where it is zero says what cuts it off.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from kleash.trials.user_loss import Batch, UserLoss

if TYPE_CHECKING:
    from kleash.estimates import Floats

__all__ = ["CODES", "Fault", "faults_of", "ties_to"]

_LENGTHS = (4, 3, 4, 2)
_SAME = 1e-9
"""Share of the largest entry below which a change is rounding; of the whole gradient, for the penalty itself."""
_NEAR, _FAR = 0.02, (0.3, 1.0, 2.0)
"""Log ratios in nats of a token at which a penalty must pull: those that training shows, from the first steps on. A k3
whose value is clamped at 10, as verl's, stops at 2.6."""

CODES = {
    "UNUSED_COEFFICIENT": (
        "beta changes neither the loss nor its gradient, or only switches the penalty on",
        "pass beta to the penalty",
    ),
    "DETACHED": (
        "beta changes the loss and not its gradient: the penalty is detached",
        "let the gradient through logp in the KL term; on-policy a term that is 0 in value may still have one",
    ),
    "NO_PULL": (
        "the penalty's gradient is the same for every token, policy and reference, so its mean is 0: k1 as a loss",
        "k2 or k3 in the loss, or k1 in the reward",
    ),
    "SAMPLER": (
        "the penalty ties to old_logp, not to ref_logp: it bounds a step and never the drift",
        "compare logp with ref_logp",
    ),
    "ZERO_REFERENCE": (
        "the penalty does not depend on ref_logp: a reference of zeros, an entropy bonus at best",
        "pass the reference's log-probabilities, and look at what is passed",
    ),
    "SHIFTED": (
        "the penalty of a token does not depend on that token's ref_logp, or one position is left out: shifted by one",
        "cut logp, ref_logp and mask to the same positions",
    ),
    "UNMASKED": (
        "what stands under the mask changes the gradient: padding is penalised",
        "multiply the penalty by the mask before it is averaged",
    ),
    "CLAMPED": (
        "the penalty is cut off at log ratios that every run reaches",
        "clamp where k3 overflows (10 to 20), not where it works",
    ),
    "SIGN": (
        "the penalty pushes away from the reference",
        "add beta times the KL to the loss, or take it off the reward",
    ),
}
"""Code -> what is wrong, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with a loss: a code of :data:`CODES`, in words, and what to do."""

    code: str
    message: str
    fix: str

    @classmethod
    def of(cls, code: str) -> Fault:
        """The fault of this code."""
        message, fix = CODES[code]
        return cls(code=code, message=message, fix=fix)

    def to_dict(self) -> dict[str, str]:
        """JSON-ready plain data."""
        return {"code": self.code, "message": self.message, "fix": self.fix}


def batch_of(group_size: int, *, seed: int = 0) -> Batch:
    """Two groups of answers of two to four tokens, on-policy, half a nat a token from the reference."""
    rng = np.random.default_rng(seed)
    n = 2 * group_size
    length = np.resize(np.asarray(_LENGTHS), n)
    mask = np.arange(4)[None, :] < length[:, None]
    logp = np.where(mask, -rng.uniform(0.3, 2.0, mask.shape), 0.0)
    ref = np.where(mask, logp - 0.5 * rng.normal(size=mask.shape), 0.0)
    reward = np.resize(np.array([1.0, 0.0, 0.5, 0.0, 1.0]), n)
    return Batch(logp=logp, old_logp=logp.copy(), ref_logp=ref, reward=reward, mask=mask)


def changed(batch: Batch, **parts: Floats) -> Batch:
    """The batch with other parts."""
    return Batch(**{**vars(batch), **parts})


class _Asked:
    """The penalty of a loss on batches like one: gradient at beta less gradient at 0, and the same of the value."""

    def __init__(self, loss: UserLoss, beta: float) -> None:
        self.loss, self.beta = loss, beta
        self.batch = batch_of(loss.group_size)
        self.whole = float(np.abs(loss(self.batch, beta=beta)[1]).max())
        self.size = float(np.abs(self(self.batch)).max())
        self.tied = False
        level = changed(self.batch, reward=np.zeros_like(self.batch.reward))
        if self.size <= _SAME * self.whole and self.pulls(level):
            # standardised pairs: the larger score wins, and a small penalty decides only where scores are equal
            self.batch, self.size, self.tied = level, float(np.abs(self(level)).max()), True

    def __call__(self, batch: Batch) -> Floats:
        return np.asarray(self.loss(batch, beta=self.beta)[1] - self.loss(batch, beta=0.0)[1])

    def value(self, batch: Batch) -> float:
        """What beta adds to the loss itself; 0 where that is rounding."""
        first, second = (self.loss(batch, beta=beta)[0] for beta in (self.beta, 0.0))
        return first - second if abs(first - second) > 1e-12 * max(self.whole, abs(second)) else 0.0

    def pulls(self, batch: Batch) -> bool:
        """Whether the penalty has a gradient on a batch."""
        return bool(np.abs(self(batch)).max() > _SAME * self.whole)

    def moved(self, first: Batch, second: Batch) -> Floats:
        """How the penalty differs between two batches, as a share of its size."""
        a, b = self(first), self(second)
        return np.abs(a - b) / max(self.size, float(np.abs(a).max()), float(np.abs(b).max()), 1e-300)


def ties_to(loss: UserLoss, *, beta: float) -> str:
    """``reference``, ``sampler`` or ``neither``: what the penalty's gradient depends on beside the policy."""
    asked = _Asked(loss, beta)
    rng = np.random.default_rng(1)
    noise = 0.3 * rng.normal(size=asked.batch.logp.shape) * asked.batch.mask
    off = changed(asked.batch, old_logp=asked.batch.logp + noise)  # the ratios are no longer 1
    if asked.moved(off, changed(off, ref_logp=off.ref_logp - noise)).max() > _SAME:
        return "reference"
    away = changed(off, old_logp=off.old_logp - 2 * noise)
    both = changed(off, logp=off.logp - noise, old_logp=off.old_logp - noise)
    only_their_ratio = asked.moved(off, both).max() <= 1e-6
    return "sampler" if asked.pulls(off) and asked.moved(off, away).max() > _SAME and only_their_ratio else "neither"


def faults_of(loss: UserLoss, *, beta: float) -> tuple[Fault, ...]:
    """What is wrong with the leash of a loss, the first cause alone where one explains the rest.

    Parameters
    ----------
    loss
        The loss and its settings.
    beta
        A coefficient above 0.

    Returns
    -------
    tuple of Fault
        Empty where none was found. SIGN is not among them: it needs the mean over a policy's own answers
        (`kleash.trials.loss_conformance`).
    """
    asked = _Asked(loss, beta)
    where = ties_to(loss, beta=beta)
    if where == "sampler":
        return (Fault.of("SAMPLER"),)
    if not asked.pulls(asked.batch):
        return (Fault.of(_without_gradient(asked)),)
    if not asked.tied and _switched(asked):
        return (Fault.of("UNUSED_COEFFICIENT"),)
    if where == "neither":
        other = changed(asked.batch, logp=0.7 * asked.batch.logp, old_logp=0.7 * asked.batch.logp)
        alike = asked.moved(asked.batch, other).max() <= _SAME
        return (Fault.of("NO_PULL" if alike else "ZERO_REFERENCE"),)
    if _shifted(asked):  # what is shifted may read what stands under the mask as well
        return (Fault.of("SHIFTED"),)
    found = ["UNMASKED"] if _unmasked(asked) else []
    found += ["CLAMPED"] if _clamped(asked) else []
    return tuple(map(Fault.of, found))


def _switched(asked: _Asked) -> bool:
    """Whether the penalty is the same at every beta above 0."""
    others = (_Asked(asked.loss, factor * asked.beta)(asked.batch) for factor in (0.1, 2.0, 10.0))
    own = asked(asked.batch)
    return all(np.abs(other - own).max() <= _SAME * asked.size for other in others)


def _without_gradient(asked: _Asked) -> str:
    """Why a penalty has no gradient half a nat a token from the reference."""
    batch = asked.batch
    for delta in (_NEAR, 1e-3, 1e-5):
        if asked.pulls(changed(batch, ref_logp=batch.logp - delta * batch.mask)):
            return "CLAMPED"
    here, there = asked.value(batch), asked.value(changed(batch, ref_logp=batch.ref_logp - 0.5 * batch.mask))
    if here == there == 0.0:
        return "UNUSED_COEFFICIENT"
    return "CLAMPED" if abs(here - there) <= _SAME * abs(here) else "DETACHED"  # a value that nothing moves


def _unmasked(asked: _Asked) -> bool:
    """Whether numbers under the mask move the penalty, or are moved by it."""
    batch = asked.batch
    junk = ~batch.mask * np.random.default_rng(2).normal(size=batch.mask.shape)
    filled = changed(batch, logp=batch.logp + junk, old_logp=batch.old_logp + junk, ref_logp=batch.ref_logp - 3 * junk)
    found = asked(filled)
    outside = np.abs(np.where(batch.mask, 0.0, found)).max() > _SAME * asked.size
    inside = np.where(batch.mask, asked.moved(batch, filled), 0.0).max() > 1e-6
    return bool(outside or inside)


def _shifted(asked: _Asked) -> bool:
    """Whether a token's penalty ignores that token's reference while it follows another's, or one is never used."""
    far = asked.batch
    near = changed(far, ref_logp=far.logp.copy())  # where a clamp on the whole answer lets the tokens through
    for row in (0, 2):  # answers of four tokens
        follows = np.zeros((4, 4))
        # one of these changes even a slope of two values, or of none but near 0
        for batch, s, delta in product((far, near), range(4), (0.0, _NEAR, -0.7, 1.3)):
            ref = batch.ref_logp.copy()
            ref[row, s] = batch.logp[row, s] - delta
            moved = asked.moved(batch, changed(batch, ref_logp=ref))[row]
            follows[:, s] = np.maximum(follows[:, s], moved)
        used = follows > _SAME
        if used.any() and (not used.any(axis=0).all() or not np.diag(used).any()):
            return True
    return False


def _clamped(asked: _Asked) -> bool:
    """Whether a token's penalty stands still between log ratios, or is 0 at one, where every estimator moves."""
    batch = asked.batch
    own = changed(batch, ref_logp=batch.logp.copy())  # at the reference, then one token away from it

    def pull(delta: float) -> float:
        ref = own.ref_logp.copy()
        ref[0, 0] -= delta
        return float((asked(changed(own, ref_logp=ref)) - rest)[0, 0])

    rest = asked(own)
    largest = max(abs(pull(sign * delta)) for delta in (_NEAR, *_FAR) for sign in (1, -1))
    for sign in (1, -1):
        pulls = [pull(sign * delta) for delta in (_NEAR, *_FAR)]
        if any(abs(x) <= _SAME * largest for x in pulls[1:]):
            return True
        still = all(abs(x - pulls[2]) <= _SAME * largest for x in pulls[2:])
        even = pull(-1.0) * pull(1.0) > 0  # |x| in the loss has a slope of two signs
        if still and even:
            return True
        flat = all(abs(x - pulls[1]) <= 1e-6 * largest for x in pulls[1:])
        grows = abs(pull(sign * 1e-5)) < 0.5 * abs(pulls[1])  # |x| in the loss pulls as much however near it is
        if flat and grows:
            return True
    return False
