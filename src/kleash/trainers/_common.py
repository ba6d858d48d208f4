"""What several trainers have in common: options spelled alike, and the wording of what is assumed."""

from __future__ import annotations

from kleash.trainers.options import Option

__all__ = ["ALARM", "EPOCHS", "FROZEN", "NO_CLIP", "ONE_LENGTH", "PLAIN", "SAME_LENGTH", "clipping", "whole"]

FROZEN = "the reference stays frozen"
PLAIN = "answers sampled from the policy itself at temperature 1, without top-k, top-p or filtering of groups"
NO_CLIP = "one update per batch, so that clipping and importance ratios do nothing"
SAME_LENGTH = "answers of about one length: this loss weights a token of a long answer less"
ONE_LENGTH = (
    "answers of exactly one length: what has no mean of 0 in each answer, averaged over its tokens, pushes the length"
)
ALARM = (0.01, "tinker-feedback issue 22 alarms at .01")
"""The largest healthy KL of engine against trainer, nats per token, and who says so."""
EPOCHS = Option(default=1, at_least=1)


def clipping(updates: float) -> str:
    """What is assumed about updates per batch."""
    return NO_CLIP if updates == 1 else "the root of the first update of each batch"


def whole(value: float | None) -> int | None:
    """A number of things."""
    return None if value is None else int(value)
