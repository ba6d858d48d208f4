"""Seeded mutations of every kind of file that kleash reads, through every command that reads it.

    python tests/fuzz/fuzz.py --inputs 20000 --seeds 10      what `make fuzz` runs
    python tests/fuzz/fuzz.py --keep FOLDER                  keep the inputs that failed

Each input is a valid small file with one to four mutations (bytes, text, numbers, structure, coding, columns of
Parquet), handed to a command in a process of a pool. What must hold of each: an exit code of 0, 1 or 2 within ten
seconds; on 2 one line on stderr that blames the input and not kleash, nothing on stdout and no file written; never a
traceback or a warning; no file left in the temporary folder; less than 1 GB of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl

HERE = Path(__file__).parent
DATA = HERE.parent / "data"
EXAMPLES = HERE.parents[1] / "examples"
SECONDS, BYTES = 10, 1_000_000_000

NUMBERS = (
    *("1e400", "-1e400", "NaN", "-Infinity", "null", "0", "-1", "1e308", "5e-324", '"x"', "[]", "{}", "true", '""'),
    *("1" + "0" * 400, "0.1.2", "--3", "1_000", "\u0661\u0662", "0x10", "1e", "[1,[2,[3]]]", '"1/120"', "9" * 18),
)
TEXTS = (
    *("\x1b[31m", "\x1b]0;pwn\x07", "[/red]", "<script>alert(1)</script>", "\ufeff", "\x00", "=1+1", "\u202e", "',"),
    *('"', "\\", "\xe9" * 40, "x" * 70_000, "\r\n\r\n", "\t", "%s%n", "{{7*7}}", "$(touch pwned)", "../../etc/passwd"),
    *("\ud7ff", "]]>", "#"),
)


@dataclass(frozen=True)
class Input:
    """A small valid file: its name, its bytes and the commands that read it (``{}`` is its path)."""

    name: str
    data: bytes
    commands: tuple[tuple[str, ...], ...]


# -------------------------------------------------------------------------------------------------------- valid files

FORECAST = (
    ("forecast", "{}"),
    ("forecast", "{}", "--format", "csv"),
    ("forecast", "{}", "--trainer", "trl-rloo", "--plan"),
)
CHECK = (("check", "{}"), ("check", "{}", "--format", "json"), ("check", "{}", "--beta", "0.1", "--format", "csv"))
REPORT = (("report", "{}"), ("report", "{}", "-o", "{out}"), ("report", "{}", "--format", "json"))


def samples(rows: int = 40) -> list[dict[str, object]]:
    """Answers of four prompts with judge's score, gold, group and text."""
    rng = random.Random(0)
    return [
        {"prompt": f"p{i % 4}", "answer": f"a {i}", "reward": round(rng.gauss(0, 1), 3), "gold": round(rng.random(), 3)}
        for i in range(rows)
    ]


def sourced(rows: int = 40) -> list[dict[str, object]]:
    """The same of a policy, with sums of log-probabilities."""
    rng = random.Random(1)
    return [
        {**row, "source": ("policy", "reference")[i % 2], "logp": -20.0 + (rng.gauss(0.3, 0.5) if i % 2 == 0 else 0.0),
         "ref_logp": -20.0}
        for i, row in enumerate(samples(rows))
    ]  # fmt: skip


def dump(rows: int = 24) -> list[dict[str, object]]:
    """Rollouts with log-probabilities of every token."""
    rng = random.Random(2)
    made = []
    for i in range(rows):
        logp = [round(-rng.expovariate(1.0), 4) for _ in range(rng.randint(1, 9))]
        made.append({"logp": logp, "ref_logp": [round(x - rng.gauss(0, 0.1), 4) for x in logp], "reward": rng.random(),
                     "prompt_id": i // 4, "step": i // 12, "mask": [1] * len(logp)})  # fmt: skip
    return made


def as_csv(rows: list[dict[str, object]]) -> bytes:
    """The rows as CSV."""
    return pl.DataFrame(rows).write_csv().encode()


def as_jsonl(rows: list[dict[str, object]]) -> bytes:
    """The rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(rows: list[dict[str, object]]) -> bytes:
    """The rows as Parquet."""
    into = io.BytesIO()
    pl.DataFrame(rows).write_parquet(into)
    return into.getvalue()


def inputs() -> list[Input]:
    """Every kind of file that a command reads, from rows made here and from the files of the tests."""
    found = [
        Input("s.csv", as_csv(samples()), FORECAST),
        Input("s.jsonl", as_jsonl(samples()), FORECAST),
        Input("s.json", json.dumps(samples()).encode(), FORECAST),
        Input("s.parquet", as_parquet(samples()), FORECAST),
        Input("s.jsonl.gz", gzip.compress(as_jsonl(samples()), mtime=0), FORECAST),
        Input("p.jsonl", as_jsonl(sourced()), FORECAST),
        Input("p.parquet", as_parquet(sourced()), FORECAST),
        Input("d.jsonl", as_jsonl(dump()), (*CHECK, FORECAST[0])),
        Input("d.parquet", as_parquet(dump()), (*CHECK, FORECAST[0])),
        Input("w.csv", (EXAMPLES / "small_world.csv").read_bytes(), ()),
    ]
    logs = [p for p in sorted((DATA / "logs").rglob("*")) if p.is_file() and p.suffix not in {".md", ".yaml"}]
    logs += [p for p in sorted((DATA / "kinds").iterdir()) if p.suffix in {".csv", ".log", ".json"}]
    found += [Input(path.name, path.read_bytes(), CHECK) for path in logs]
    shown = [DATA / "schema1" / f"{name}.json" for name in ("check", "forecast", "frontier", "recipes", "sweep")]
    found += [Input(p.name, p.read_bytes(), REPORT) for p in (*shown, DATA / "schema1" / "frontier.parquet")]
    log = str(DATA / "logs" / "verl.jsonl")
    for name, text in CONFIGS.items():
        found.append(Input(name, text.encode(), (("check", "{}"), ("check", log, "--config", "{}"))))
    found.append(Input("world.toml", WORLD.encode(), (("sweep", "{}", "--seeds", "1", "--format", "json"),)))
    return [one for one in found if one.commands]


CONFIGS = {
    "c.yaml": "actor:\n  use_kl_loss: true\n  kl_loss_coef: 0.001\nalgorithm:\n  use_kl_in_reward: false\n",
    "c.toml": 'beta = 0.04\nreward_min = 0\nreward_max = 1\n[columns]\nstep = "round"\nkl_unit = "nats per token"\n',
    "c.json": '{"beta": 0.04, "loss_type": "dapo", "num_generations": 8, "scale_rewards": "none"}',
    "c.sh": "python -m verl.trainer.main_ppo \\\n  actor.use_kl_loss=True \\\n  actor.kl_loss_coef=0.001\n",
}
WORLD = (
    f'[world]\nfile = "{EXAMPLES / "small_world.csv"}"\n\n[sweep]\nbetas = [0.0, 1.0]\n'
    if not (EXAMPLES / "small_world.toml").exists()
    else (EXAMPLES / "small_world.toml").read_text().replace('"small_world.csv"', f'"{EXAMPLES / "small_world.csv"}"')
)
"""Configurations, a trainer's and our own; a sweep of a small world."""

# ---------------------------------------------------------------------------------------------------------- mutations


def _flip(rng: random.Random, data: bytes) -> bytes:
    b = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        b[rng.randrange(len(b))] ^= 1 << rng.randrange(8)
    return bytes(b)


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def _drop(rng: random.Random, data: bytes) -> bytes:
    a = rng.randrange(len(data))
    return data[:a] + data[a + rng.randint(1, 60) :]


def _twice(rng: random.Random, data: bytes) -> bytes:
    a = rng.randrange(len(data))
    b = min(len(data), a + rng.randint(1, 400))
    return data[:b] + data[a:b] * rng.choice((1, 2, 30)) + data[b:]


def _number(rng: random.Random, data: bytes) -> bytes:
    """A number of the text becomes another value."""
    places = [i for i, c in enumerate(data) if 48 <= c <= 57]
    if not places:
        return _flip(rng, data)
    a = b = rng.choice(places)
    while a > 0 and chr(data[a - 1]) in "0123456789.eE+-":
        a -= 1
    while b < len(data) and chr(data[b]) in "0123456789.eE+-":
        b += 1
    return data[:a] + rng.choice(NUMBERS).encode() + data[b:]


def _text(rng: random.Random, data: bytes) -> bytes:
    a = rng.randrange(len(data) + 1)
    return data[:a] + rng.choice(TEXTS).encode("utf-8", "surrogatepass") + data[a:]


def _name(rng: random.Random, data: bytes) -> bytes:
    """One name, wherever it stands, becomes another."""
    names = (b"reward", b"prompt", b"kl", b"loss", b"step", b"logp", b"beta", b"gold", b"schema", b"rows")
    there = [name for name in names if name in data]
    if not there:
        return _flip(rng, data)
    return data.replace(rng.choice(there), rng.choice((b"", b"prompt", b"kl", b"[/x]", b"\x1b[1m", b"reward")))


def _lines(rng: random.Random, data: bytes) -> bytes:
    """Lines in another order, without one, or one many times."""
    lines = data.split(b"\n")
    way = rng.randrange(4)
    if way == 0:
        rng.shuffle(lines)
    elif way == 1:
        del lines[rng.randrange(len(lines))]
    elif way == 2:
        lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    else:
        lines = lines[:2]
    return b"\n".join(lines)


def _coding(rng: random.Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    way = rng.choice(("utf-16", "utf-8-sig", "crlf", "cr", "latin", "gzip", "tail"))
    if way == "gzip":
        return gzip.compress(data, mtime=0)
    if way == "latin":
        return text.replace("e", "é", 3).encode("latin-1", "replace")
    if way == "tail":
        return data + b"\x00" * rng.choice((1, 5_000))
    if way in {"crlf", "cr"}:
        return data.replace(b"\n", b"\r\n" if way == "crlf" else b"\r")
    return text.encode(way)


def _nest(rng: random.Random, data: bytes) -> bytes:
    depth = rng.choice((50, 5_000, 100_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    a = rng.randrange(len(data) + 1)
    return data[:a] + opening * depth + b"1" + closing * depth + data[a:]


def _structure(rng: random.Random, data: bytes) -> bytes:
    """A value anywhere in a JSON document (or in one of its lines) becomes another, goes, or comes twice."""
    lines = data.split(b"\n")
    try:
        whole, at = json.loads(data), None
    except (ValueError, RecursionError):
        at = rng.randrange(len(lines))
        try:
            whole = json.loads(lines[at])
        except (ValueError, RecursionError):
            return _number(rng, data)
    node, holder, key = whole, None, None
    for _ in range(rng.randint(1, 6)):
        if isinstance(node, dict) and node:
            holder, key = node, rng.choice(list(node))
        elif isinstance(node, list) and node:
            holder, key = node, rng.randrange(len(node))
        else:
            break
        node = holder[key]
    if holder is None:
        return _flip(rng, data)
    way = rng.randrange(5)
    if way == 0:
        del holder[key]
    elif way == 1:
        holder[key] = [node, node]
    elif way == 2:
        holder[key] = {"a": node}
    else:
        others = (None, True, "", "x", [], {}, -1, 0, 10**30, 1e300, -1e-300, [None], float("nan"), "\x1b[1m", "[/x]")
        holder[key] = rng.choice(others)
    text = json.dumps(whole).encode()
    return text if at is None else b"\n".join([*lines[:at], text, *lines[at + 1 :]])


def _columns(rng: random.Random, data: bytes) -> bytes:
    """A Parquet file whose columns have other names, types, nulls or no rows."""
    try:
        frame = pl.read_parquet(io.BytesIO(data))
    except BaseException:  # noqa: BLE001  mutated before; the reader's panics are no Exception
        return _flip(rng, data)
    if not frame.width:
        return data
    name = rng.choice(frame.columns)
    way = rng.randrange(7)
    with contextlib.suppress(BaseException):
        if way == 0:
            frame = frame.drop(name)
        elif way == 1:
            frame = frame.rename({name: rng.choice(["x", "kl", "[/x]", "source", "log_ratio"])})
        elif way == 2:
            frame = frame.clear()
        elif way == 3:
            frame = frame.with_columns(pl.lit(None).alias(name))
        elif way == 4:
            kind = rng.choice([pl.String, pl.Int8, pl.Float32, pl.Boolean])
            frame = frame.with_columns(pl.col(name).cast(kind, strict=False))
        elif way == 5:
            frame = frame.with_columns(pl.concat_list(pl.col(name), pl.col(name)).alias(name))
        else:
            frame = frame.with_columns(pl.lit(rng.choice([1e308, float("inf"), float("nan"), -1.0])).alias(name))
    into = io.BytesIO()
    frame.write_parquet(into)
    return into.getvalue()


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _flip, _cut, _drop, _twice, _number, _number, _text, _name, _lines, _coding, _nest, _structure, _structure,
)  # fmt: skip


def mutated(rng: random.Random, one: Input) -> bytes:
    """The input after one to four mutations."""
    data = one.data
    for _ in range(rng.randint(1, 4)):
        if not data:
            break
        table = one.name.endswith(".parquet") and rng.random() < 0.6
        data = _columns(rng, data) if table else rng.choice(MUTATIONS)(rng, data)
    return data[:4_000_000]


# ------------------------------------------------------------------------------------------------------------- running


@dataclass(frozen=True)
class Outcome:
    """What one input did: which seed and command, its exit code, and what was wrong with that."""

    seed: int
    name: str
    command: tuple[str, ...]
    code: int
    wrong: str
    seconds: float


class _Late(BaseException):
    """The time is over; no handler of kleash catches it."""


def _ring(*_: object) -> None:
    raise _Late


@contextlib.contextmanager
def _captured(folder: Path) -> Iterator[list[str]]:
    """What goes to file descriptors 1 and 2, in a list once it is over: a library's own words too."""
    said: list[str] = []
    paths = [folder / f"{name}{os.getpid()}" for name in ("out", "err")]
    kept = [os.dup(1), os.dup(2)]
    streams = sys.stdout, sys.stderr
    for fd, path in zip((1, 2), paths, strict=True):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, fd)
        os.close(opened)
    sys.stdout, sys.stderr = (open(fd, "w", encoding="utf-8", closefd=False) for fd in (1, 2))  # noqa: SIM115
    try:
        yield said
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError):
                stream.flush()
        sys.stdout, sys.stderr = streams
        for fd, old in zip((1, 2), kept, strict=True):
            os.dup2(old, fd)
            os.close(old)
        said += [path.read_text("utf-8", "replace") for path in paths]


def run_one(seed: int, every: list[Input], folder: Path, keep: Path | None = None) -> Outcome:
    """Mutate, run in this process, judge."""
    rng = random.Random(seed)
    one = rng.choice(every)
    command = rng.choice(one.commands)
    return run_on(mutated(rng, one), one, command, folder, seed=seed, keep=keep)


def run_on(
    data: bytes, one: Input, command: tuple[str, ...], folder: Path, *, seed: int = 0, keep: Path | None = None
) -> Outcome:
    """Run a command on such bytes in place of those of an input, in this process, and judge."""
    from kleash.cli import cli

    work = folder / f"w{os.getpid()}"
    shutil.rmtree(work, ignore_errors=True)
    (work / "tmp").mkdir(parents=True)
    path = work / one.name
    path.write_bytes(data)
    arguments = [part.replace("{}", str(path)).replace("{out}", str(work / "page.html")) for part in command]
    before = {p.name for p in work.iterdir()}
    tempfile.tempdir = str(work / "tmp")
    old = signal.signal(signal.SIGALRM, _ring)
    wrong, code, start = "", -1, time.perf_counter()
    signal.alarm(SECONDS)
    try:
        with _captured(folder) as said, warnings.catch_warnings():
            warnings.simplefilter("always")
            cli.main(arguments)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else -1
    except _Late:
        wrong = f"longer than {SECONDS} s"
    except BaseException as error:  # noqa: BLE001  nothing may leave the command line but an exit code
        wrong = f"left with {type(error).__name__}: {traceback.format_exc()[-300:]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
        tempfile.tempdir = None
    seconds = time.perf_counter() - start
    wrong = wrong or judged(code, *said, {p.name for p in work.iterdir()} - before, os.listdir(work / "tmp"))
    if wrong and keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, keep / f"{seed}-{one.name}")
    return Outcome(seed, one.name, command, code, wrong, seconds)


def judged(code: int, out: str, err: str, written: set[str], left: list[str]) -> str:
    """What is wrong with what a command said and wrote; empty if nothing is."""
    if left:
        return f"left in the temporary folder: {left}"
    if "Traceback" in err or "fault of kleash" in err or "Warning" in err:
        return err.strip()[-300:]
    if any(c in out + err for c in "\x1b\x07\x9b\u202e"):
        return "escape characters of the file on the terminal"
    if code == 2 and (err.count("\n") != 1 or not err.startswith("kleash: ") or len(err) > 2_000):
        return f"not one line: {err[:300]!r}"
    if code == 2 and (out or written):
        return f"refused, and wrote {sorted(written) or out[:100]!r}"
    return "" if code in {0, 1, 2} else f"exit code {code}"


def _many(seeds: list[int], folder: str, keep: str | None) -> tuple[list[Outcome], int]:
    every = inputs()
    done = [run_one(seed, every, Path(folder), None if keep is None else Path(keep)) for seed in seeds]
    return done, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(count: int, seed: int = 0, *, workers: int = 1, keep: str | None = None) -> tuple[list[Outcome], int]:
    """Run ``count`` inputs; the outcomes, and the peak memory of a worker in bytes."""
    seeds = [seed * 1_000_000 + i for i in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        if workers == 1:
            return _many(seeds, folder, keep)
        blocks = [seeds[i : i + 200] for i in range(0, count, 200)]
        outcomes: list[Outcome] = []
        peak = 0
        # new processes for each block, so that a block's peak is its own; one that is killed ends the run with an error
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=spawn, max_tasks_per_child=1) as pool:
            for done, most in pool.map(_many, blocks, [folder] * len(blocks), [keep] * len(blocks)):
                outcomes += done
                peak = max(peak, most)
        return outcomes, peak


def main() -> int:
    """Run, and print what failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=2_000, help="in all")
    parser.add_argument("--seeds", type=int, default=1, help="start seeds that share them")
    parser.add_argument("--first", type=int, default=0, help="first start seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", help="folder for inputs that failed")
    options = parser.parse_args()
    start = time.perf_counter()
    wrong: list[Outcome] = []
    codes: Counter[int] = Counter()
    peak, slowest = 0, 0.0
    for seed in range(options.first, options.first + options.seeds):
        done, most = fuzz(options.inputs // options.seeds, seed, workers=options.workers, keep=options.keep)
        codes.update(one.code for one in done)
        slowest = max([slowest, *(one.seconds for one in done)])
        wrong += [one for one in done if one.wrong]
        peak = max(peak, most)
        print(f"seed {seed}: {len(done)} inputs, {sum(bool(one.wrong) for one in done)} failed", flush=True)
    for one in wrong[:60]:
        print(f"\n{one.seed} {one.name} {' '.join(one.command)}: exit {one.code}\n  {one.wrong}")
    print(f"\n{sum(codes.values())} inputs, exit codes {dict(sorted(codes.items()))}; {len(wrong)} failed; slowest "
          f"{slowest:.1f} s; peak {peak / 1e6:.0f} MB; {time.perf_counter() - start:.0f} s")  # fmt: skip
    return int(bool(wrong) or peak > BYTES)


if __name__ == "__main__":
    sys.exit(main())
