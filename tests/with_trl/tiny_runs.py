"""Real TRL trainers on tiny policies: what the tests of the callback share."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from kleash.integrations.trl import KleashCallback
from kleash.trials.cases import puzzle
from kleash.trials.roots import Puzzle
from kleash.trials.tiny import TinyPolicy


def score_of(world: Puzzle, values: np.ndarray) -> Any:
    """A reward function that gives each listed answer its value."""
    table = {
        tuple(int(x) for x in token[mask]): float(v)
        for token, mask, v in zip(world.tokens.token, world.tokens.mask, values, strict=True)
    }

    def judge(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [table.get(tuple(i for i in ids if i < world.tokens.vocabulary), 0.0) for ids in completion_ids]

    return judge


def gold_values(world: Puzzle) -> np.ndarray:
    return np.random.default_rng(5).normal(size=len(world.reward))


class Run:
    """A trainer on a world with its policy and callback."""

    def __init__(
        self,
        folder: Path,
        *,
        world: str = "words",
        kind: str = "grpo",
        beta: float = 0.0,
        steps: int = 6,
        rate: float = 0.05,
        gold: np.ndarray | None = None,
        reward: np.ndarray | None = None,
        peft: Any = None,
        padding: str = "left",
        dtype: torch.dtype = torch.float32,
        callback: dict[str, Any] | None = None,
        with_callback: bool = True,
        prompts: list[str] | None = None,
        name: str = "reference",
        start: np.ndarray | None = None,
        eval_dataset: int | None = None,
        **settings: Any,
    ) -> None:
        self.world = puzzle(world)
        self.policy = TinyPolicy.build(self.world, folder / name)
        self.policy.tokenizer.padding_side = padding
        if start is not None:
            self.policy.set_logits(start)
        model = self.policy.model.to(dtype)
        common: dict[str, Any] = {
            "output_dir": str(folder / "out"),
            "per_device_train_batch_size": 16,
            "max_steps": steps,
            "learning_rate": rate,
            "lr_scheduler_type": "constant",
            "optim": "sgd",
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "disable_tqdm": True,
            "logging_steps": 2,
            "beta": beta,
        } | settings
        judge = score_of(self.world, self.world.reward if reward is None else reward)
        quality = score_of(self.world, gold_values(self.world) if gold is None else gold)
        quality.__name__ = "quality"
        asked = prompts or ["?"] * 64
        shared = {"model": model, "processing_class": self.policy.tokenizer, "peft_config": peft}
        from datasets import Dataset

        if kind == "dpo":
            from trl import DPOConfig, DPOTrainer

            rows = {"prompt": ["?"] * 64, "chosen": ["a"] * 64, "rejected": ["b"] * 64}
            self.trainer = DPOTrainer(**shared, args=DPOConfig(**common), train_dataset=Dataset.from_dict(rows))
        elif kind == "online-dpo":
            from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

            args = OnlineDPOConfig(**common, max_new_tokens=3, reward_weights=[1.0, 0.0])
            data = Dataset.from_dict({"prompt": asked})
            self.trainer = OnlineDPOTrainer(**shared, args=args, train_dataset=data, reward_funcs=[judge, quality])
        else:
            from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

            config, trainer = (GRPOConfig, GRPOTrainer) if kind == "grpo" else (RLOOConfig, RLOOTrainer)
            length = self.world.tokens.mask.shape[1]
            args = config(**common, num_generations=4, max_completion_length=length, reward_weights=[1.0, 0.0])
            data = Dataset.from_dict({"prompt": asked})
            held = None if eval_dataset is None else Dataset.from_dict({"prompt": ["?"] * eval_dataset})
            self.trainer = trainer(
                **shared, args=args, train_dataset=data, eval_dataset=held, reward_funcs=[judge, quality]
            )
        self.callback: Any = None
        if with_callback:
            options = {"every": 3, "n_prompts": 8, "n_answers": 2} | (callback or {})
            if kind == "dpo":
                options = {"gold": quality, "max_new_tokens": 3} | options
            self.callback = KleashCallback(self.trainer, **options)
            self.trainer.add_callback(self.callback)

    def enumerated_kl(self, prefixes: list[tuple[int, ...]]) -> np.ndarray:
        """KL of the next-token distributions at prefixes, by asking policy and saved reference one by one."""
        from transformers import AutoModelForCausalLM

        before = AutoModelForCausalLM.from_pretrained(self.policy.model.config._name_or_path).to(
            self.policy.model.dtype
        )
        prompt = self.policy.tokenizer.convert_tokens_to_ids("?")
        values = []
        with torch.no_grad():
            for prefix in prefixes:
                ids = torch.tensor([[prompt, *prefix]])
                p, q = (
                    torch.log_softmax(m(input_ids=ids).logits[0, -1].double() / self.callback.temperature, -1)
                    for m in (self.trainer.model.eval(), before.eval())
                )
                values.append(float((p.exp() * (p - q)).sum()))
        return np.array(values)
