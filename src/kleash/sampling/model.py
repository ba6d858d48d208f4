"""What it is to answer: a model's face, the address of a server, and the error of answers not drawn as asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kleash.errors import DataError
from kleash.sampling.journal import Answer
from kleash.sampling.prompts import Prompt

__all__ = ["Model", "NotAsAskedError", "Server"]


class Model(Protocol):
    """Something that answers."""

    def draw(self, work: Sequence[tuple[Prompt, int]], *, stopped: Callable[[], bool]) -> Iterator[list[Answer]]:
        """Answers to prompts by number of draw, as they come; begins nothing new once ``stopped`` says so."""
        ...

    def prompt_tokens(self) -> int | None:
        """Tokens of the prompts that were asked, as far as they are known."""
        ...

    def sampling(self) -> str:
        """What is known of how answers were drawn, in words."""
        ...


class NotAsAskedError(DataError):
    """Answers were not drawn as they were to be: they are no samples of the reference."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server with OpenAI's interface.

    Parameters
    ----------
    url
        Its address, with ``/v1``.
    at_once
        How many requests are on their way at a time.
    tries
        How often one is sent again before it counts as failed.
    """

    url: str
    at_once: int = 64
    tries: int = 8
