"""How much of a bare asynchronous client's throughput is left with everything that kleash sample does beside.

200 prompts x 24 answers from a server in a process of its own that takes 50 ms for an answer, however many are asked
for at once; the bare client and ``kleash.sample`` (journal, judge, file) send the same requests, by turns. Beside the
clock stands the processor's time, which other work on the machine does not change. Run with
``python bench/sample_throughput.py [--rounds 3] [--prompts 200]``.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai

from kleash.sampling.run import sample
from kleash.sampling.sources import Server

K, AT_ONCE, TOKENS, SECONDS, LIMIT = 24, 64, 40, 0.05, 0.9


def serve(address: Any) -> None:
    """The stand-in of the tests, without log-probabilities (most of the work would be theirs, on both sides)."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sampling"))
    from stub_server import serving

    with serving(seconds=SECONDS, logprobs=False, tokens=TOKENS) as stub:
        address.send(stub.url)
        address.recv()


async def bare(url: str, prompts: Sequence[str]) -> None:
    """All requests, so many at once, and nothing else."""
    left = iter([(prompt, draw) for prompt in prompts for draw in range(K)])
    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:

        async def worker() -> None:
            for prompt, draw in left:
                reply = await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": prompt}],
                    max_tokens=256,
                    temperature=1.0,
                    top_p=1.0,
                    seed=hash((prompt, draw)) & 0x7FFFFFFF,
                    logprobs=True,
                    extra_body={"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
                )
                assert reply.choices

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=200)
    options = parser.parse_args(arguments)
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    server = Server(url=mine.recv(), at_once=AT_ONCE)
    prompts = [f"cook {number}" for number in range(options.prompts)]

    def whole() -> None:
        with tempfile.TemporaryDirectory() as folder:
            sample(prompts, model="m", url=server, judge="length", k=K, out=Path(folder) / "samples.parquet")

    best: dict[str, float] = {}
    for turn in range(options.rounds):
        told = []
        for name, run in (("bare", lambda: asyncio.run(bare(server.url, prompts))), ("kleash sample", whole)):
            clock, busy = time.perf_counter(), time.process_time()
            run()
            clock, busy = time.perf_counter() - clock, time.process_time() - busy
            told.append(f"{name} {len(prompts) * K / clock:.0f} answers/s ({busy:.1f} s of the processor)")
            best[name] = min(best.get(name, clock), clock)
        print(f"round {turn + 1}: " + ", ".join(told), flush=True)
    share = best["bare"] / best["kleash sample"]
    print(f"kleash sample has {share:.2f} of a bare client's throughput (at least {LIMIT})")
    mine.send(None)
    process.join()
    return 0 if share >= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
