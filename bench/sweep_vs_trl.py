"""Eight betas in one run of kleash against eight runs of TRL: seconds a step and peak memory, medians of runs in turn.

The recipes' two-layer Llama (width 64, answers of up to 5 tokens), the same answers per beta and step, the same number
of threads, a fresh process per run. TRL trains one beta and its time is taken eight times; imports and set-up, which
eight processes would pay eight times, count for neither. TRL runs at what is fastest for a model this small: no
logging, saving, checkpointing of activations or progress bar, the plain generate loop with its cache, and the better of
RLOO and GRPO. The comparison is with adapters (TRL puts none on the output head; kleash does); full fine-tuning, which
gives no adapter and needs a second copy of the model, is shown beside it: on 0.1 million weights it is faster.

Run with ``python bench/sweep_vs_trl.py [--runs 5] [--steps 40] [--threads 2]``; needs trl. Times depend on the machine
and its load, ratios less.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence

N_BETAS, N_PROMPTS = 8, 4
LIMITS = {64: 5.0, 16: 8.0}
"""How many times faster than eight runs, by answers per beta and step."""
MEMORY = 1.5
"""Peak memory in units of one TRL run's."""
WARM_UP = 4  # first steps fill caches
TRL = ("rloo-lora", "grpo-lora", "rloo-full", "grpo-full")


class Clock:
    """Wall and processor seconds a step, medians after the warm-up."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def tick(self) -> None:
        """A step is over."""
        self.marks.append((time.perf_counter(), time.process_time()))

    def per_step(self) -> tuple[float, float]:
        """Wall and processor seconds."""
        steps = list(itertools.pairwise(self.marks[WARM_UP:]))
        wall, cpu = (statistics.median(b[i] - a[i] for a, b in steps) for i in (0, 1))
        return wall, cpu


def run_kleash(samples: int, steps: int) -> tuple[float, float]:
    from kleash.train.asking import PromptSet, Task
    from kleash.train.lm import train_lm
    from kleash.train.options import Training
    from kleash.train.recipes import recipes

    world = recipes()
    ids, texts = world.prompt_ids, list(world.prompts)
    prompts = PromptSet(ids=[*ids, ids[0]], texts=[*texts, texts[0]])
    clock = Clock()
    train_lm(
        world.model,
        Task(prompts=prompts, judge=world.judge, decode=world.decode, eos=[world.eos]),
        Training(
            beta=world.betas,
            seeds=1,
            max_new_tokens=world.max_new_tokens,
            learning_rate=3e-3,
            steps=steps,
            samples=samples // N_PROMPTS,
            final_samples=2,
        ),
        progress=lambda *_: clock.tick(),
    )
    return clock.per_step()


def run_trl(name: str, samples: int, steps: int) -> tuple[float, float]:
    from datasets import Dataset
    from peft import LoraConfig
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    from kleash.train.recipes import WORDS, recipes

    world = recipes()
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=WORDS[0], pad_token=WORDS[0])
    clock = Clock()

    class Ticks(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            clock.tick()

    def judge(prompts: list[str], completions: list[str], **_: object) -> list[float]:
        return world.judge(prompts, completions)

    objective, kind = name.split("-")
    make, configure = (RLOOTrainer, RLOOConfig) if objective == "rloo" else (GRPOTrainer, GRPOConfig)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    with tempfile.TemporaryDirectory() as folder:
        settings = configure(
            output_dir=folder,
            per_device_train_batch_size=samples,
            num_generations=samples // N_PROMPTS,
            max_completion_length=world.max_new_tokens,
            max_steps=steps,
            learning_rate=3e-3,
            beta=0.3,
            temperature=1.0,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        world.model.save_pretrained(folder)  # a name, from which the reference of full fine-tuning is loaded
        model = LlamaForCausalLM.from_pretrained(folder)
        trainer = make(
            model=model,
            reward_funcs=judge,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": [*world.prompts, world.prompts[0]] * 64}),
            processing_class=tokenizer,
            peft_config=lora if kind == "lora" else None,
            callbacks=[Ticks()],
        )
        trainer.train()
    return clock.per_step()


def inner(name: str, samples: int, steps: int, threads: int) -> None:
    """One run, in its own process: wall and processor seconds a step, peak memory in MiB as the last line."""
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(threads)
    wall, cpu = run_kleash(samples, steps) if name == "kleash" else run_trl(name, samples, steps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    print("\n" + json.dumps([wall, cpu, peak]))


def measure(name: str, samples: int, steps: int, threads: int) -> tuple[float, float, float]:
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--inner", name, str(samples), str(steps), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | quiet, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.strip()[-2000:]}")
    wall, cpu, peak = json.loads(done.stdout.splitlines()[-1])
    return wall, cpu, peak


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--inner", nargs=4, metavar=("NAME", "SAMPLES", "STEPS", "THREADS"))
    options = parser.parse_args(arguments)
    if options.inner:
        inner(options.inner[0], *(int(value) for value in options.inner[1:]))
        return 0
    good = True
    for samples, limit in LIMITS.items():
        results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ("kleash", *TRL)}
        for _ in range(options.runs):
            for name, values in results.items():
                values.append(measure(name, samples, options.steps, options.threads))
        wall, cpu, peak = ({n: statistics.median(v[i] for v in vs) for n, vs in results.items()} for i in range(3))
        best, full = (min((n for n in TRL if n.endswith(kind)), key=lambda n: wall[n]) for kind in ("lora", "full"))
        print(
            f"{samples} answers per beta and step, {options.threads} thread(s), medians of {options.runs} runs in turn"
        )
        for name in results:
            what = "8 betas" if name == "kleash" else "1 beta"
            times = f"{1e3 * wall[name]:8.1f} ms a step ({1e3 * cpu[name]:.1f} of processor)"
            print(f"  {name:10s} {what:8s} {times} {peak[name]:8.0f} MiB peak")
        speed, memory = N_BETAS * wall[best] / wall["kleash"], peak["kleash"] / peak[best]
        busy = N_BETAS * cpu[best] / cpu["kleash"]
        fast, small = speed >= limit, memory <= MEMORY
        good = good and fast and small
        told = f"{speed:.1f} times, {busy:.1f} by processor time (at least {limit:g})"
        print(f"  8 x {best} / kleash: {told}: {'ok' if fast else 'TOO SLOW'}")
        others = N_BETAS * wall[full] / wall["kleash"], N_BETAS * cpu[full] / cpu["kleash"]
        print(f"  8 x {full} / kleash: {others[0]:.1f} times, {others[1]:.1f} by processor time")
        print(f"  peak memory / one TRL run: {memory:.2f} (at most {MEMORY:g}): {'ok' if small else 'TOO MUCH'}\n")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
