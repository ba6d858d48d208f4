"""Kill runs at random moments, go on with them, and compare the end with that of a run that nobody killed.

    make kills                                     # 40 kills, 20 pairs of writers: some ten minutes
    python scripts/kills.py --kills 5 --pairs 4 tabular

Five cases in turn: sweeps of a table, of the recipes and of a tiny language model, ``kleash sample``, and TRL's GRPO
under the callback (where the extras are installed). A kill is SIGKILL, or the signal named, at a moment drawn from the
seed; the process is one of its own that runs the command itself. A command that a signal ended by its own exit code may
leave no lock and no temporary file. Equal means: every file byte by byte; of samples every column but for the
last digits of the log-probabilities, which the batch decides. Of two writers that begin in the same moment, fresh or
with ``--resume``, one must end with 0 and the other with 2 and one line, and the folder must hold the run of one.

Exit code 1 if anything differs.
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

WORDS = ["<end>", "salt", "butter", "dill", "thyme", "fish", "roast", "cook", "me"]
CASES = ("tabular", "recipes", "model", "sample", "callback")
STEPS, EVERY = 12, 3  # of the run under the callback: steps, and steps between its checkpoints
LATE = ("read back", " 0 of them drawn")  # who came when everything was done
REFUSED = ("nobody else writing it", "got a run", "expected no journal yet")


# --------------------------------------------------------------------------------------------------- what is killed


def arguments(case: str, work: Path, out: Path, *, seeds: int) -> list[str]:
    """The command of a case; ``seeds`` of the tabular one say how long it takes."""
    return {
        "tabular": ["sweep", "--seeds", str(seeds), "--out", str(out)],
        "recipes": ["sweep", "--world", "recipes", "--beta", "4", "--seeds", "1", "--out", str(out)],
        "model": ["sweep", str(work / "model.toml"), "--out", str(out)],
        "sample": ["sample", str(work / "prompts.csv"), "--model", str(work / "model"), "--judge", "length", "-k", "64",
                   "--max-new-tokens", "48", "-o", str(out / "samples.parquet")],
    }[case]  # fmt: skip


def prepare(work: Path) -> None:
    """A model, prompts and a configuration for the cases that need them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers import set_seed as start_from

    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="me"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<end>", unk_token="me")
    start_from(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=128, **shape, **ends)).save_pretrained(
        work / "model"
    )
    words.save_pretrained(work / "model")
    (work / "prompts.csv").write_text("prompt\n" + "".join(f"cook {word}\n" for word in WORDS[1:]))
    (work / "model.toml").write_text(
        """
        beta = [0, 0.5]
        seeds = 2
        steps = 40
        samples = 4
        [model]
        path = "model"
        chat = false
        device = "cpu"
        [judge]
        use = "length"
        [gold]
        use = "length"
        [prompts]
        file = "prompts.csv"
        held_out = 0.25
        [training]
        max_new_tokens = 8
        learning_rate = 0.01
        final_samples = 16
        evaluate_every = 5
        forecast_samples = 8
        checkpoint_every = 4
        """
    )


def command(case: str, work: str, out: str, resume: bool, errors: str, seeds: int, together) -> None:
    """In a process of its own: a case from its beginning or where it was killed; ends as the command line does."""
    if case != "tabular":
        import torch

        torch.set_num_threads(1)
    os.chdir(work)
    sys.stderr = open(errors, "a", buffering=1)  # noqa: SIM115  until the process ends
    for module in preloaded([case]):
        importlib.import_module(module)
    if together is not None:
        together.wait()
    with contextlib.redirect_stdout(io.StringIO()):
        if case == "callback":
            from kleash.errors import KleashError

            try:
                watched(Path(out))
            except KleashError as error:
                print(f"kleash: {error}", file=sys.stderr)
                sys.exit(2)
            return
        from kleash.cli import main

        sys.argv = ["kleash", *arguments(case, Path(work), Path(out), seeds=seeds), *["--resume"] * resume]
        if case == "sample":
            Path(out).mkdir(exist_ok=True)
        main()


def checkpoints(out: Path) -> list[tuple[int, Path]]:
    """Whole checkpoints but the last one of all, from which transformers trains a step more than was asked."""
    found = [(int(path.name.rpartition("-")[2]), path) for path in out.glob("checkpoint-*")]
    return [(step, path) for step, path in found if step < STEPS and (path / "trainer_state.json").exists()]


def watched(out: Path) -> None:
    """GRPO on a tiny policy under the callback; on from its last whole checkpoint, or afresh where there is none."""
    import warnings

    warnings.simplefilter("ignore")
    from datasets import Dataset
    from transformers import set_seed as start_from
    from trl import GRPOConfig, GRPOTrainer

    from kleash.integrations.trl import KleashCallback
    from kleash.trials.cases import puzzle
    from kleash.trials.tiny import TinyPolicy

    last = max(checkpoints(out), default=(0, None))[1]
    world = puzzle("words")
    with tempfile.TemporaryDirectory() as place:
        policy = TinyPolicy.build(world, Path(place))
        start_from(1)
        settings = GRPOConfig(
            output_dir=str(out), per_device_train_batch_size=16, num_generations=4, max_completion_length=3, beta=0.1,
            max_steps=STEPS, learning_rate=0.05, lr_scheduler_type="constant", optim="sgd", save_steps=EVERY,
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
        )  # fmt: skip

        def judge(completion_ids, **_):
            return [float(ids.count(1)) for ids in completion_ids]

        def gold(completion_ids, **_):
            time.sleep(0.2)  # a little room for the killer
            return [-abs(ids.count(1) - 1.0) for ids in completion_ids]

        trainer = GRPOTrainer(
            model=policy.model, args=settings, reward_funcs=judge, processing_class=policy.tokenizer,
            train_dataset=Dataset.from_dict({"prompt": ["?"] * 64}),
        )  # fmt: skip
        trainer.add_callback(KleashCallback(trainer, gold=gold, every=1, n_prompts=8, n_answers=2))
        trainer.train(resume_from_checkpoint=None if last is None else str(last))


# ------------------------------------------------------------------------------------------------------ what must be


def contents(case: str, out: Path) -> dict[str, object]:
    """What must be the same, by file."""
    if case == "sample":
        import polars as pl

        return {"samples": pl.read_parquet(out / "samples.parquet"), "left": sorted(p.name for p in out.iterdir())}
    folder = out / "kleash" if case == "callback" else out
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name != "dial.json"
    )  # it names its path
    if case == "callback":
        files.append(out / f"checkpoint-{STEPS}" / "model.safetensors")
    elif (folder / "dial.json").exists():
        files.append(folder / "dial.json")
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def same(case: str, one: dict[str, object], two: dict[str, object]) -> list[str]:
    """The names of what differs."""
    if case == "sample":
        a, b = one["samples"], two["samples"]
        near = all(
            math.isclose(x, y, abs_tol=1e-5)
            for x, y in zip(a["logp"].explode().to_list(), b["logp"].explode().to_list(), strict=True)
        )
        equal = a.drop("logp").equals(b.drop("logp")) and near
        return ([] if equal else ["samples.parquet"]) + ([] if one["left"] == two["left"] else ["files"])
    return [name for name in sorted({*one, *two}) if one.get(name) != two.get(name)]


# --------------------------------------------------------------------------------------------------------- the killer


class Killer:
    """Runs of a case, each in a process that may be killed."""

    def __init__(self, case: str, work: Path, *, rng: random.Random, seeds: int = 30) -> None:
        self.case, self.work, self.rng, self.seeds = case, work, rng, seeds
        self.context = multiprocessing.get_context("forkserver")
        self.errors = work / "errors"
        self.number = 0
        self.expected = self.unbroken()
        began = time.monotonic()
        again = self.unbroken()
        self.seconds = time.monotonic() - began
        if differs := same(case, self.expected, again):
            raise SystemExit(f"{case}: two runs that nobody killed differ in {', '.join(differs)}")

    def started(self, out: Path, *, resume: bool, errors: Path | None = None, together=None):
        """A process at work, with ``together`` (a barrier) once another is as far."""
        told = str(errors or self.errors)
        given = (self.case, str(self.work), str(out), resume, told, self.seeds, together)
        process = self.context.Process(target=command, args=given, daemon=True)
        process.start()
        return process

    def fresh(self) -> Path:
        """A folder that is not there."""
        self.number += 1
        return self.work / f"{self.case}-{self.number}"

    def resumable(self, out: Path) -> bool:
        """Whether there is something to go on with; a run of TRL's without a checkpoint begins again."""
        if self.case == "sample":
            return (out / "samples.parquet.journal").exists()
        if self.case == "callback":
            if not checkpoints(out):
                shutil.rmtree(out, ignore_errors=True)
            return out.exists()
        return (out / "run.json").exists()

    def unbroken(self) -> dict[str, object]:
        """What a run comes to that nobody kills."""
        out = self.fresh()
        process = self.started(out, resume=False)
        process.join()
        if process.exitcode != 0:
            raise SystemExit(f"{self.case}: {self.errors.read_text()}")
        return contents(self.case, out)

    def kills(self, wanted: int, *, by: signal.Signals = signal.SIGKILL) -> tuple[int, list[str]]:
        """Kill that many times; how often a run was compared, and what differed."""
        killed, compared, wrong, out = 0, 0, [], self.fresh()
        while killed < wanted or out is not None:
            out = out or self.fresh()
            process = self.started(out, resume=self.resumable(out))
            if killed < wanted:
                process.join(timeout=self.rng.uniform(0.02, self.seconds))
                if process.exitcode is None:
                    os.kill(process.pid, by)
            process.join()
            if process.exitcode in (-by, 128 + by):
                killed += 1
                if process.exitcode > 0 and (left := [*out.glob("**/*.lock"), *out.glob("**/.*.tmp")]):
                    wrong.append(f"left behind: {left[0].name}")
                continue
            compared += 1
            if process.exitcode != 0:
                wrong.append(f"exit {process.exitcode}: {self.errors.read_text()[-300:]}")
            else:
                wrong += same(self.case, self.expected, contents(self.case, out))
            out = None
        return compared, wrong

    def pair(self, *, resume: bool, tries: int = 5) -> str:
        """Two writers in the same moment; what was wrong, or nothing."""
        out = self.fresh()
        if resume and not self.half(out):
            return "no run to go on with"
        told = [self.work / f"pair-{i}" for i in (0, 1)]
        for path in told:
            path.write_text("")
        together = self.context.Barrier(2)
        pair = [self.started(out, resume=resume, errors=path, together=together) for path in told]
        for process in pair:
            process.join()
        codes = sorted(process.exitcode for process in pair)
        said = [path.read_text().strip().splitlines() for path in told]
        loser = next((lines for process, lines in zip(pair, said, strict=True) if process.exitcode == 2), [])
        if codes == [0, 0] and tries > 1 and any(words in str(said) for words in LATE):
            return self.pair(resume=resume, tries=tries - 1)  # one had ended before the other looked: no contest
        if codes != [0, 2]:
            return f"exit codes {codes}: {said}"
        if not loser or not any(words in loser[-1] for words in REFUSED):
            return f"said {loser}"
        return ", ".join(same(self.case, self.expected, contents(self.case, out)))

    def half(self, out: Path) -> bool:
        """A run that was killed and can be gone on with."""
        for _ in range(50):
            process = self.started(out, resume=False)
            process.join(timeout=self.rng.uniform(0.3, 1.0) * self.seconds)
            process.kill()
            process.join()
            if process.exitcode == -signal.SIGKILL and self.resumable(out):
                return True
            shutil.rmtree(out, ignore_errors=True)
        return False


def preloaded(cases: list[str]) -> list[str]:
    """What a server imports once, so that a process begins in a moment."""
    light = ["kleash.cli", "kleash.cli.sweep", "kleash.train.sweep", "kleash.train.tabular"]
    llama = "transformers.models.llama.modeling_llama"
    heavy = ["torch", "kleash.train.lm_sweep", "kleash.sampling.local", "kleash.cli.sample", llama]
    trl = ["trl", "datasets", "kleash.integrations.trl", "kleash.trials.tiny", "kleash.trials.cases"]
    return light + (heavy if {*cases} - {"tabular"} else []) + (trl if "callback" in cases else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="default: all that can be run here")
    parser.add_argument("--kills", type=int, default=40, help="in all")
    parser.add_argument("--pairs", type=int, default=20, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--by", choices=["SIGKILL", "SIGTERM", "SIGINT"], default="SIGKILL")
    asked = parser.parse_args()
    can = [c for c in CASES if c == "tabular" or importlib.util.find_spec("trl" if c == "callback" else "transformers")]
    cases, wrong = asked.cases or can, 0
    multiprocessing.get_context("forkserver").set_forkserver_preload(preloaded(cases))
    print(f"{len(cases)} cases, seed {asked.seed}: {asked.kills} kills by {asked.by}, {asked.pairs} pairs of writers")
    for i, case in enumerate(cases):
        with tempfile.TemporaryDirectory() as place:
            work = Path(place)
            if case != "tabular":
                prepare(work)
            killer = Killer(case, work, rng=random.Random(f"{asked.seed} {case}"))
            kills = asked.kills // len(cases) + (i < asked.kills % len(cases))
            pairs = asked.pairs // len(cases) + (i < asked.pairs % len(cases))
            compared, differs = killer.kills(kills, by=signal.Signals[asked.by]) if kills else (0, [])
            told = [killer.pair(resume=k % 2 == 1) for k in range(pairs)]
        one = sum(not text for text in told)
        print(
            f"{case:9} {kills} kills, {compared} runs compared, {len(differs)} differences; one of two: {one}/{pairs}"
        )
        for text in [*differs, *filter(None, told)]:
            print(f"          {text}")
        wrong += len(differs) + pairs - one
    print(json.dumps({"cases": cases, "kills": asked.kills, "pairs": asked.pairs, "seed": asked.seed, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
