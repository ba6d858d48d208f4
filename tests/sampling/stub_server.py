"""A server with OpenAI's interface: a unigram language with known probabilities, and faults to order."""

import asyncio
import contextlib
import json
import threading
from dataclasses import dataclass, field

import numpy as np

WORDS = [f"w{i}" for i in range(400)]
LOG_P = np.log(np.arange(1, 401) ** -1.1 / np.sum(np.arange(1, 401) ** -1.1))


@dataclass(kw_only=True)
class Stub:
    """What it does wrong, and what it was asked."""

    temperature: float = 1.0
    top_k: int | None = None
    reports_cut: bool = False
    logprobs: bool = True
    most_top: int = 20
    refuses: tuple[str, ...] = ()
    fails: int = 0
    status: int = 429
    greedy: bool = False
    no_choices: bool = False
    fails_after: int | None = None
    tokens: int = 40
    seconds: float = 0.0
    requests: list = field(default_factory=list)
    busy: int = 0
    most_busy: int = 0
    url: str = ""

    def reply(self, body):
        """Status and answer to a request."""
        self.requests.append(body)
        for name in self.refuses:
            if name in body:
                return 422, {"error": {"message": f"Unexpected fields in the request: {name}"}}
        if body.get("top_logprobs", 0) > self.most_top:
            return 400, {"error": {"message": "top_logprobs"}}
        if self.fails > 0:
            self.fails -= 1
            return self.status, {"error": {"message": "busy"}}
        if self.fails_after is not None and len(self.requests) > self.fails_after:
            return 400, {"error": {"message": "the model has left"}}
        return 200, self._completion(body)

    def _completion(self, body):
        rng = np.random.default_rng(0 if self.greedy else body["seed"])
        log_q = LOG_P / self.temperature
        if self.top_k is not None:
            log_q = np.where(np.arange(LOG_P.size) < self.top_k, log_q, -np.inf)
        log_q -= np.logaddexp.reduce(log_q)
        size = min(body["max_tokens"], self.tokens)
        drawn = rng.choice(LOG_P.size, size=size, p=np.exp(log_q))
        message = {"role": "assistant", "content": " ".join(WORDS[i] for i in drawn)}
        choice = {"index": 0, "message": message, "finish_reason": "length" if size == body["max_tokens"] else "stop"}
        if self.logprobs and body.get("logprobs"):
            choice["logprobs"] = {"content": self._content(drawn, log_q, body.get("top_logprobs", 0))}
        usage = {"prompt_tokens": 7, "completion_tokens": size, "total_tokens": size + 7}
        head = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"]}
        return head | {"choices": [] if self.no_choices else [choice], "usage": usage}

    def _content(self, drawn, log_q, top):
        shown = np.maximum(log_q if self.reports_cut else LOG_P, -9999.0)
        tops = [{"token": WORDS[i], "logprob": shown[i], "bytes": None} for i in range(top)]
        return [{"token": WORDS[i], "logprob": shown[i], "bytes": None, "top_logprobs": tops} for i in drawn]

    async def serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = int(head.partition("content-length:")[2].split("\r\n")[0])
                body = json.loads(await reader.readexactly(size))
                self.busy += 1
                self.most_busy = max(self.busy, self.most_busy)
                status, answer = self.reply(body)
                await asyncio.sleep(self.seconds)
                self.busy -= 1
                content = json.dumps(answer).encode()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n" % status)
                writer.write(b"retry-after-ms: 1\r\ncontent-length: %d\r\n\r\n" % len(content) + content)
                await writer.drain()
        writer.close()


@contextlib.contextmanager
def serving(**behaviour):
    """A stub in a thread of its own, with its address."""
    stub, ready, loop = Stub(**behaviour), threading.Event(), asyncio.new_event_loop()

    async def run():
        server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
        stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        ready.set()
        async with server:
            await stop.wait()

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=5)
        loop.close()
