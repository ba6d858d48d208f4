"""Answers of a server with OpenAI's interface, many requests at once.

Servers differ in what they understand. Each answer is a request of its own with a seed of its own: ``n`` is ignored by
some and one seed gives others the same answer every time. How top-k is switched off is found out with the first
request. Where log-probabilities come back, the tokens drawn are held against them (:mod:`kleash.sampling.verify`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import openai

from kleash import _checks
from kleash.errors import KleashError
from kleash.sampling.journal import Answer
from kleash.sampling.model import NotAsAskedError, Server
from kleash.sampling.prompts import Prompt
from kleash.sampling.verify import Calibration

__all__ = ["ServerModel"]

_TOP = 20  # the most likely tokens that OpenAI's interface and vLLM give at most
_LOOKED_AT = 32  # the first requests, and the first draw of every prompt, ask for them
_SECONDS = 600.0  # an answer may take; a request may wait in the server's own queue for minutes
_SAME_PROMPTS, _SAME_DRAWS, _SAME_LENGTH = 3, 4, 80
"""So many prompts with so many draws that are all one text of so many characters: that is not temperature 1."""

_OPEN = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""What vLLM, SGLang and llama.cpp understand; they keep the model's own settings where it is not sent."""
_Ask = Mapping[str, Any]


def _dialects(max_new_tokens: int) -> list[dict[str, Any]]:
    """Ways to ask for sampling from the whole vocabulary, the most telling first."""
    config = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": max_new_tokens}
    seen = {"logprobs": True, "top_logprobs": _TOP}
    return [
        seen | {"extra_body": _OPEN},
        {"extra_body": {"generation_config": json.dumps(config)}},  # transformers serve
        seen,
        {"logprobs": True, "top_logprobs": 5},  # TGI
        {},
    ]


class ServerModel:
    """A model behind OpenAI's interface.

    Parameters
    ----------
    server
        Where it is; the key is taken from OPENAI_API_KEY.
    name
        The model's name there.
    max_new_tokens, seed
        As in :func:`kleash.sample`. Answers are the same again only if the server keeps to its seeds.
    """

    def __init__(self, server: Server, name: str, *, max_new_tokens: int, seed: int) -> None:
        self.server, self.name = server, name
        self.max_new_tokens, self.seed = max_new_tokens, seed
        self.calibration = Calibration()
        self._asked: int | None = None
        self._dialect: dict[str, Any] | None = None
        self._requests = 0
        self._texts: dict[str, list[str]] = {}

    def prompt_tokens(self) -> int | None:
        """Tokens of the prompts, as the server counts them; None where it does not."""
        return self._asked

    def sampling(self) -> str:
        """How answers were drawn, in words."""
        if not self.calibration.tokens:
            return "sampling not verified: the server gives no log-probabilities"
        return f"temperature 1, whole vocabulary, verified on {self.calibration.tokens:,} tokens"

    def draw(self, work: Sequence[tuple[Prompt, int]], *, stopped: Callable[[], bool]) -> Iterator[list[Answer]]:
        """Answers as they come.

        Raises
        ------
        KleashError
            The server cannot be reached, or refuses.
        NotAsAskedError
            It does not sample as it was asked to.
        """
        come: queue.Queue[Answer | BaseException | None] = queue.Queue()
        ended = threading.Event()
        thread = threading.Thread(
            target=lambda: asyncio.run(self._go(work, come, lambda: stopped() or ended.is_set())), daemon=True
        )
        thread.start()
        failed: BaseException | None = None
        try:
            while (first := come.get()) is not None:
                several = [first, *_waiting(come)]
                answers = [one for one in several if isinstance(one, Answer)]
                failed = failed or next((one for one in several if isinstance(one, BaseException)), None)
                if answers:
                    yield answers
                    if failed is None:
                        failed = self._fault(answers)
                if failed is not None:
                    ended.set()
        finally:
            ended.set()
        thread.join()
        if failed is not None:
            raise failed

    async def _go(
        self,
        work: Sequence[tuple[Prompt, int]],
        come: queue.Queue[Answer | BaseException | None],
        stopped: Callable[[], bool],
    ) -> None:
        left = iter(work)
        try:
            async with openai.AsyncOpenAI(
                base_url=self.server.url,
                api_key=os.environ.get("OPENAI_API_KEY") or "none",
                max_retries=self.server.tries,
                timeout=_SECONDS,
            ) as client:
                first = next(left, None)
                if first is not None:
                    come.put(await self._answer(client, *first))

                async def worker() -> None:
                    for prompt, draw in left:
                        if stopped():
                            return
                        try:
                            come.put(await self._answer(client, prompt, draw))
                        except KleashError as error:  # the others' answers are still on their way
                            come.put(error)
                            return

                await asyncio.gather(*(worker() for _ in range(self.server.at_once)))
        except BaseException as error:  # noqa: BLE001  told in the thread that waits
            come.put(error)
        finally:
            come.put(None)

    async def _answer(self, client: openai.AsyncOpenAI, prompt: Prompt, draw: int) -> Answer:
        looked_at = draw == 0 or self._requests < _LOOKED_AT
        self._requests += 1
        asked = {
            "model": self.name,
            "messages": prompt.turns,
            "max_tokens": self.max_new_tokens,
            "temperature": 1.0,
            "top_p": 1.0,
            "seed": self._seed(prompt, draw),
        }
        try:
            reply = await self._ask(client, asked, looked_at=looked_at)
        except openai.OpenAIError as error:
            raise KleashError(self._refusal(error)) from error
        if not getattr(reply, "choices", None):
            raise KleashError(_checks.message(self.server.url, expected="a choice", got="none"))
        return self._read(reply, prompt, draw)

    async def _ask(self, client: openai.AsyncOpenAI, asked: _Ask, *, looked_at: bool) -> Any:
        if self._dialect is not None:
            how = dict(self._dialect)
            if not looked_at and "top_logprobs" in how:
                how["top_logprobs"] = 0
            return await client.chat.completions.create(**asked, **how)
        refused: openai.OpenAIError
        for how in _dialects(self.max_new_tokens):
            try:
                reply = await client.chat.completions.create(**asked, **how)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                refused = error
                continue
            self._dialect = how
            return reply
        raise refused

    def _read(self, reply: Any, prompt: Prompt, draw: int) -> Answer:
        choice, usage = reply.choices[0], getattr(reply, "usage", None)
        content = getattr(getattr(choice, "logprobs", None), "content", None) or []
        asked = int((self._dialect or {}).get("top_logprobs", 0))
        for token in content:
            if token.top_logprobs and len(token.top_logprobs) > 1:
                self.calibration.add(token.logprob, [other.logprob for other in token.top_logprobs], asked=asked)
        if usage is not None:
            self._asked = (self._asked or 0) + usage.prompt_tokens
        tokens = len(content) or (None if usage is None else usage.completion_tokens)
        return Answer(
            prompt=prompt.key,
            draw=draw,
            text=choice.message.content or "",
            n_tokens=tokens,
            logp=[float(token.logprob) for token in content] or None,
            finished=choice.finish_reason != "length",
        )

    def _seed(self, prompt: Prompt, draw: int) -> int:
        told = f"{self.seed} {prompt.key} {draw}"
        return int.from_bytes(hashlib.sha256(told.encode()).digest()[:4]) >> 1

    def _fault(self, answers: Sequence[Answer]) -> NotAsAskedError | None:
        """What speaks against the server's sampling so far."""
        fault = self.calibration.fault()
        if not self.calibration.tokens:
            for answer in answers:
                self._texts.setdefault(answer.prompt, []).append(answer.text)
            fault = _alike(self._texts)
        return _refused(self.server.url, fault) if fault else None

    def _refusal(self, error: openai.OpenAIError) -> str:
        told = " ".join(str(getattr(error, "message", error)).split())[:200]
        fix = ""
        if isinstance(error, openai.APIConnectionError):
            fix = "is it running, and does its address end in /v1?"
        elif isinstance(error, openai.AuthenticationError):
            fix = "set OPENAI_API_KEY"
        elif isinstance(error, openai.NotFoundError):
            fix = f"does it serve {self.name!r}, and does its address end in /v1?"
        return _checks.message(self.server.url, expected="an answer", got=told, fix=fix)


def _alike(texts: Mapping[str, Sequence[str]]) -> str:
    """What to say if every prompt that was answered often enough has one long answer only; else the empty text."""
    often = [set(several) for several in texts.values() if len(several) >= _SAME_DRAWS]
    same = all(len(several) == 1 and len(next(iter(several))) >= _SAME_LENGTH for several in often)
    return (
        f"the same answer every time, to each of {len(often)} prompts" if same and len(often) >= _SAME_PROMPTS else ""
    )


def _waiting(come: queue.Queue[Answer | BaseException | None]) -> Iterator[Answer | BaseException]:
    """What has come meanwhile; the end is put back."""
    while True:
        try:
            one = come.get_nowait()
        except queue.Empty:
            return
        if one is None:
            come.put(None)
            return
        yield one


def _refused(url: str, fault: str) -> NotAsAskedError:
    fix = "switch off its own sampling settings (temperature 1, top-p 1, no top-k), and begin anew"
    expected = "sampling at temperature 1 from the whole vocabulary"
    return NotAsAskedError(_checks.message(url, expected=expected, got=fault, fix=fix))
