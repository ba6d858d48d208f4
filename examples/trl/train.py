"""From scored samples of your model to a TRL run at the beta they recommend, watched from inside.

    python examples/trl/train.py examples/trl/one_gpu.toml
    accelerate launch --num_processes 4 examples/trl/train.py examples/trl/accelerate.toml

The samples are answers of the model to be trained, at temperature 1, scored by the judge, some with true quality;
`kleash forecast SAMPLES` shows the same table. Where it shows no beta that helps, nothing is trained.
"""

import argparse
import importlib
import json
import tomllib
from pathlib import Path

import kleash
from kleash.translate import convert


def function(path: str):
    """A reward function from ``module:name``, with TRL's signature."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def prompts(path: str) -> list[dict]:
    """One JSON object per line with a ``prompt``; further keys are passed on to the reward functions."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def recommended_beta(forecast: dict) -> float:
    """The safe beta of the forecast; stops where none is shown to help."""
    forecast = dict(forecast)
    samples = kleash.read_samples(forecast.pop("samples"), **forecast.pop("columns", {}))
    verdict = kleash.forecast(samples, **forecast).verdict
    if verdict.safe_beta is None:
        raise SystemExit(f"{verdict.kind}: {' '.join(verdict.reasons)}")
    return verdict.safe_beta


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--beta", type=float, help="a beta of the tilt, instead of the forecast's")
    options = parser.parse_args()
    config = tomllib.loads(options.config.read_text(encoding="utf-8"))

    tilt = options.beta if options.beta is not None else recommended_beta(config["forecast"])
    generations = config["trainer"]["num_generations"]
    translated = convert(tilt, target="trl-rloo", group_size=generations)
    if translated.value is None:
        raise SystemExit(f"beta {tilt:g} has no translation: {translated.refused}")
    print(f"tilt's beta {tilt:g}: RLOO's {translated.parameter} {translated.value:g}")

    from datasets import Dataset
    from trl import RLOOConfig, RLOOTrainer

    from kleash.integrations.trl import KleashCallback

    peft_config = None
    if "lora" in config:
        from peft import LoraConfig

        peft_config = LoraConfig(task_type="CAUSAL_LM", **config["lora"])
    arguments = RLOOConfig(beta=translated.value, reward_weights=[1.0, 0.0], **config["trainer"])
    trainer = RLOOTrainer(
        model=config["model"],
        args=arguments,
        reward_funcs=[function(config["judge"]), function(config["gold"])],
        train_dataset=Dataset.from_list(prompts(config["train_prompts"])),
        peft_config=peft_config,
    )
    trainer.add_callback(KleashCallback(trainer, prompts=prompts(config["held_out_prompts"]), **config["kleash"]))
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
