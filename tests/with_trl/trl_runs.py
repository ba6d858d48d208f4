"""Real TRL trainers on a model of a few thousand weights: what the tests read back and where the golden logs come from.

``python tests/with_trl/trl_runs.py DIR`` writes the golden logs of tests/data/logs anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

os.environ.setdefault("HF_HUB_OFFLINE", "1")

WORDS = ["salt", "pepper", "rice", "soup", "bread", "cook", "taste", "dish", "hot", "cold", "good", "bad"]
LONGEST = 10


def tokenizer():
    """A word is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def model(seed=0):
    """Two layers of Llama, made from a configuration: nothing is downloaded."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = {"vocab_size": len(WORDS) + 3, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(**shape, **tokens, num_attention_heads=2, max_position_embeddings=64))


def stored(folder):
    """The model on disk: TRL loads the reference from there."""
    path = Path(folder).with_name(f"{Path(folder).name}-start")
    model().save_pretrained(path)
    return str(path)


def judge(completions, **_):
    """Share of salt, the judge's taste."""
    return [10.0 * text.split().count("salt") / max(1, len(text.split())) for text in completions]


def quality(completions, **_):
    """What a guest would say: some salt is good, more is not."""
    return [1.0 - abs(text.split().count("salt") / max(1, len(text.split())) - 0.2) for text in completions]


def prompts():
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [f"cook {a} {b}" for a in WORDS for b in WORDS[:4]]})


def arguments(folder, *, steps, learning_rate=5e-3, **more):
    return {
        "output_dir": str(folder), "max_steps": steps, "logging_steps": 1, "report_to": [], "use_cpu": True,
        "learning_rate": learning_rate, "lr_scheduler_type": "constant", "per_device_train_batch_size": 16,
        "save_steps": steps, "disable_tqdm": True, "seed": 1, "bf16": False, **more,
    }  # fmt: skip


class Witness:
    """Keeps the answers and the weights of each step, to compute the KL again without the trainer."""

    def __init__(self):
        self.answers, self.weights = [], []

    def reward(self, prompts, completion_ids, **_):
        self.answers.append((list(prompts), [list(ids) for ids in completion_ids]))
        return [0.0] * len(prompts)

    def callback(self):
        from transformers import TrainerCallback

        weights = self.weights

        class Keep(TrainerCallback):
            def on_step_begin(self, args, state, control, model=None, **_):
                weights.append({k: v.detach().clone() for k, v in model.state_dict().items()})

        return Keep()

    def log_ratios(self):
        """Of each step, log pi - log pi_ref of every token that was drawn, one array per answer."""
        import torch

        policy, words = model(), tokenizer()
        with torch.no_grad():
            for weights, (asked, answers) in zip(self.weights, self.answers, strict=True):
                rows = []
                for prompt, answer in zip(asked, answers, strict=True):
                    start = words(prompt)["input_ids"]
                    ids = torch.tensor([start + answer])
                    scores = []
                    for state in (weights, self.weights[0]):
                        policy.load_state_dict(state)
                        policy.eval()
                        logits = policy(ids).logits[0, len(start) - 1 : -1]
                        logp = torch.log_softmax(logits.double(), -1)
                        scores.append(logp.gather(-1, ids[0, len(start) :, None])[:, 0].numpy())
                    rows.append(scores[0] - scores[1])
                yield rows


@contextlib.contextmanager
def quietly():
    """Other people's warnings are not what is tested here; what they print is given back."""
    out = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield out


def online(kind, folder, *, steps=12, witness=None, resume_at=None, evaluate=False, **more):
    """Train with GRPO or RLOO; ``witness`` sees every step, ``resume_at`` stops there and goes on from the disk."""
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    config, trainer = (GRPOConfig, GRPOTrainer) if kind == "grpo" else (RLOOConfig, RLOOTrainer)
    functions, weights = [judge, quality], [1.0, 0.0]
    if witness is not None:
        functions, weights = [*functions, witness.reward], [*weights, 0.0]
    start = stored(folder)
    for last in (resume_at, steps) if resume_at else (steps,):
        settings = {"num_generations": 4, "max_completion_length": LONGEST, "reward_weights": weights} | more
        if evaluate:
            settings |= {"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 16}
        run = trainer(
            model=start, reward_funcs=functions, args=config(**arguments(folder, steps=last, **settings)),
            train_dataset=prompts(), eval_dataset=prompts().select(range(16)) if evaluate else None,
            processing_class=tokenizer(), callbacks=[witness.callback()] if witness else None,
        )  # fmt: skip
        run.train(resume_from_checkpoint=last == steps and resume_at is not None)
    return Path(folder)


def paired(kind, folder, *, steps=12, evaluate=False, **more):
    """Train with DPO or KTO: salt is chosen."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

    asked = prompts()["prompt"]
    rng = np.random.default_rng(0)
    chosen = [" salt" * int(rng.integers(1, 5)) + " good" for _ in asked]
    rejected = [" rice" * int(rng.integers(1, 5)) + " bad" for _ in asked]
    settings = arguments(folder, steps=steps) | {"learning_rate": 2e-3} | more
    if evaluate:
        settings |= {"eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 16}
    if kind == "dpo":
        config, trainer = DPOConfig, DPOTrainer
        data = Dataset.from_dict({"prompt": asked, "chosen": chosen, "rejected": rejected})
    else:
        config, trainer = KTOConfig, KTOTrainer
        label = [i % 2 == 0 for i in range(len(asked))]
        answers = [a if good else b for a, b, good in zip(chosen, rejected, label, strict=True)]
        data = Dataset.from_dict({"prompt": asked, "completion": answers, "label": label})
    run = trainer(model=stored(folder), args=config(**settings), train_dataset=data, processing_class=tokenizer(),
                  eval_dataset=data.select(range(16)) if evaluate else None)  # fmt: skip
    run.train()
    return Path(folder)


def online_dpo(folder, *, steps=12, **more):
    """Train with Online DPO."""
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    settings = arguments(folder, steps=steps, max_new_tokens=LONGEST, max_length=32, missing_eos_penalty=None) | more
    run = OnlineDPOTrainer(model=stored(folder), reward_funcs=judge, args=OnlineDPOConfig(**settings),
                           train_dataset=prompts(), processing_class=tokenizer())  # fmt: skip
    run.train()
    return Path(folder)


ALIKE = {"generation_kwargs": {"min_new_tokens": LONGEST}}
"""Every answer as long as allowed."""

RUNS = {
    "grpo beta 0": lambda at: online("grpo", at, beta=0.0),
    "grpo": lambda at: online("grpo", at, beta=0.04, loss_type="grpo"),
    "grpo, no bias correction": lambda at: online(
        "grpo", at, beta=0.04, loss_type="grpo", use_bias_correction_kl=False
    ),
    "grpo, rewards not scaled": lambda at: online("grpo", at, beta=0.04, loss_type="grpo", scale_rewards="none"),
    "grpo, two micro-batches": lambda at: online(
        "grpo", at, beta=0.04, loss_type="grpo", gradient_accumulation_steps=2, per_device_train_batch_size=8
    ),
    "grpo, a row in three steps": lambda at: online("grpo", at, beta=0.04, loss_type="grpo", logging_steps=3),
    "grpo, entropy bonus": lambda at: online("grpo", at, beta=0.04, loss_type="grpo", entropy_coef=0.01),
    "grpo, evaluated": lambda at: online("grpo", at, beta=0.04, loss_type="grpo", evaluate=True),
    "grpo, two updates": lambda at: online("grpo", at, beta=0.04, loss_type="grpo", num_iterations=2),
    "dapo": lambda at: online("grpo", at, beta=0.04),
    "bnpo": lambda at: online("grpo", at, beta=0.04, loss_type="bnpo"),
    "dr_grpo": lambda at: online("grpo", at, beta=0.04, loss_type="dr_grpo"),
    "sapo": lambda at: online("grpo", at, beta=0.04, loss_type="sapo", **ALIKE),
    "cispo": lambda at: online("grpo", at, beta=0.04, loss_type="cispo", **ALIKE),
    "dapo, answers of one length": lambda at: online("grpo", at, beta=0.04, **ALIKE),
    "dr_grpo, answers of one length": lambda at: online("grpo", at, beta=0.04, loss_type="dr_grpo", **ALIKE),
    "dapo, resumed": lambda at: online("grpo", at, beta=0.04, resume_at=6),
    "rloo": lambda at: online("rloo", at, beta=0.05),
    "rloo, advantages normalised": lambda at: online("rloo", at, beta=0.05, normalize_advantages=True),
    "rloo beta 0": lambda at: online("rloo", at, beta=0.0),
    "dpo": lambda at: paired("dpo", at, beta=0.2),
    "dpo, evaluated": lambda at: paired("dpo", at, beta=0.2, evaluate=True),
    "kto, evaluated": lambda at: paired("kto", at, beta=0.2, evaluate=True),
    "online dpo": lambda at: online_dpo(at, beta=0.2),
}

GOLDEN = {
    "grpo": "trl_1_16_grpo",
    "dapo": "trl_1_16_dapo",
    "dapo, answers of one length": "trl_1_16_dapo_one_length",
    "rloo": "trl_1_16_rloo",
    "dpo, evaluated": "trl_1_16_dpo",
    "kto, evaluated": "trl_1_16_kto",
    "online dpo": "trl_1_16_online_dpo",
}


def state_of(folder):
    """The trainer state of the last checkpoint."""
    return max(Path(folder).glob("checkpoint-*/trainer_state.json"), key=lambda p: int(p.parent.name.split("-")[1]))


def write_golden(out):
    """The logs of some runs as TRL left them, the model card cut down to what tells trainer and version."""
    for name, stem in GOLDEN.items():
        with tempfile.TemporaryDirectory() as scratch:
            with quietly() as printed:
                RUNS[name](Path(scratch) / "run")
            target = out / stem
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(state_of(Path(scratch) / "run"), target / "trainer_state.json")
            card = (Path(scratch) / "run" / "README.md").read_text(encoding="utf-8").splitlines()
            kept = [
                x for x in card if re.match(r"---|tags:|- (trl|grpo|rloo|dpo|kto|online-dpo)$|- (TRL|Transformers):", x)
            ]
            (target / "README.md").write_text("\n".join(kept) + "\n", encoding="utf-8")
            if name in ("dapo", "online dpo"):
                lines = [line for line in printed.getvalue().splitlines() if line.startswith("{")]
                (out / f"{stem}_console.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_golden(Path(sys.argv[1]))
