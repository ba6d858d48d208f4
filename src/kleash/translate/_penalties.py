"""What the trainers have in common: where an estimator leads, what is assumed, the wording of refusals."""

from __future__ import annotations

from kleash.translate._leash import Pull, Setting

__all__ = [
    "ALIKE",
    "EPOCHS",
    "FROZEN",
    "MOVES",
    "NO_CLIP",
    "ONE_LENGTH",
    "PLAIN",
    "SAME_LENGTH",
    "flag",
    "in_loss",
    "k1_in_reward",
]

YES = ("true", "false")
FROZEN = "the reference stays frozen"
PLAIN = "answers sampled from the policy itself at temperature 1, without top-k, top-p or filtering of groups"
NO_CLIP = "one update per batch, so that clipping and importance ratios do nothing"
SAME_LENGTH = "answers of about one length: this loss weights a token of a long answer less"
ONE_LENGTH = (
    "answers of exactly one length: what has no mean of 0 in each answer, averaged over its tokens, pushes the length"
)
_LOSS: dict[str, Pull] = {"k1": "none", "k2": "token", "k3": "forward", "abs": "other"}
_WITH_RATIO: dict[str, Pull] = {"k1": "token", "k2": "other", "k3": "token"}
ALIKE = {"kl": "k1", "mse": "k2", "low_var_kl": "k3", "k1+": "k2", "k3+": "k2"}

_NO_PULL = (
    "{option}: k1 as a loss has no gradient on average, so there is no leash at any coefficient; use {instead} instead"
)
MOVES = (
    "the coefficient is moved by a controller, so no fixed beta corresponds; fix it, or set the controller's target "
    "to the KL you want, in {unit}"
)


def in_loss(estimator: str, option: str, instead: str, *, ratio: bool = False) -> tuple[Pull, str | None]:
    """What a per-token KL term in the loss descends, and why there is no translation where it descends no KL."""
    pull = (_WITH_RATIO if ratio else _LOSS)[estimator]
    if pull == "none":
        return pull, _NO_PULL.format(option=option, instead=instead)
    if pull == "other":
        return pull, f"{option}: the gradient is that of neither KL, so no tilt corresponds; use {instead} instead"
    return pull, None


def k1_in_reward(estimator: str, option: str) -> str | None:
    """Why a per-token estimate in the reward has no translation; None for the one that has."""
    if estimator == "k1":
        return None
    return f"{option}: in the reward only k1 pulls towards the reference as KL does; {estimator} can pull away from it"


def flag(default: bool) -> Setting:
    """An option that is on or off."""
    return Setting(default="true" if default else "false", choices=YES)


EPOCHS = Setting(default=1, at_least=1)
