"""How much the TRL callback slows a run at its default settings (promised: less than 15 %).

    python bench/callback_overhead.py

A small transformer (about a million weights), answers of 32 tokens, 64 answers a step; the same run with and
without the callback, in turns, each three times; the median of each counts. Setting up and the first step are left out.
"""

import contextlib
import io
import statistics
import tempfile
import time
import warnings
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from kleash.trials.tiny import quiet, tokenizer

STEPS, REPEATS, LIMIT = 40, 3, 0.15


class Clock(TrainerCallback):
    """When the first step ended, and the last."""

    start = end = 0.0

    def on_step_end(self, args, state, control, **_):  # noqa: D102
        if state.global_step == 1:
            self.start = time.perf_counter()

    def on_train_end(self, args, state, control, **_):  # noqa: D102
        self.end = time.perf_counter()


def seconds(*, measured: bool, folder: Path) -> float:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from kleash.integrations.trl import KleashCallback

    words = tokenizer(20)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        pad_token_id=words.pad_token_id,
        eos_token_id=words.eos_token_id,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    arguments = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=64,
        per_device_eval_batch_size=64,
        num_generations=8,
        max_completion_length=32,
        max_steps=STEPS,
        learning_rate=1e-4,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )

    def judge(completions, **_):
        return [float(text.count("a")) for text in completions]

    trainer = GRPOTrainer(
        model=model,
        args=arguments,
        reward_funcs=judge,
        processing_class=words,
        train_dataset=Dataset.from_dict({"prompt": ["?ab", "?", "?cd", "?e"] * 64}),
    )
    if measured:
        trainer.add_callback(KleashCallback(trainer))
    clock = Clock()
    trainer.add_callback(clock)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    return clock.end - clock.start


def main() -> None:
    warnings.simplefilter("ignore")
    times: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder, quiet():
        for repeat in range(REPEATS):
            for measured in (False, True):
                times[measured].append(seconds(measured=measured, folder=Path(folder) / f"{repeat}{measured}"))
    without, with_ = (statistics.median(times[key]) for key in (False, True))
    print(f"without {without:.2f} s, with {with_:.2f} s: {with_ / without - 1:+.1%} (promised: below {LIMIT:.0%})")


if __name__ == "__main__":
    main()
