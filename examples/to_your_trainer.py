"""From scored samples to what to set in a trainer: one forecast, and its safe beta in every trainer that is known.

    python examples/to_your_trainer.py

Prints the option to set, or why no number translates. Settings that are not the trainer's default are what makes most
of them translate: penalties that have the gradient of a KL, and rewards that are not divided by a group's SD.
"""

from pathlib import Path

import kleash
from kleash.translate import trainer_names

SAMPLES = Path(__file__).parent / "word_problems.csv"
GROUP = 8
HELPFUL = {
    "trl-grpo": {"scale_rewards": "none"},
    "verl-loss": {"kl_loss_type": "k3+", "adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False},
    "nemo-rl": {"normalize_rewards": False},
    "slime": {"kl_loss_type": "k2", "grpo_std_normalization": False},
    "open-instruct": {"kl_estimator": 1},
    "unsloth": {"scale_rewards": "none"},
    "axolotl": {"scale_rewards": "none"},
    "easyr1-loss": {"kl_penalty": "mse", "adv_estimator": "rloo"},
    "skyrl": {"kl_estimator_type": "k2", "grpo_norm_by_std": False},
    "tinker": {"kl_discount_factor": 1},
    "miles": {"kl_loss_type": "k2", "grpo_std_normalization": False},
}


def main():
    samples = kleash.read_samples(SAMPLES, prompt_column="task_id", reward_columns="judge_score", gold_column="correct")
    verdict = kleash.forecast(samples, reward_max=100, gold_min=0).verdict
    beta = verdict.safe_beta
    print(f"safe beta of the tilt: {beta:g} points of the judge per nat\n")
    for name in trainer_names():
        settings = HELPFUL.get(name, {})
        found = kleash.convert(beta, target=name, group_size=GROUP, settings=settings)
        how = "exactly" if found.exact else "approximately"
        what = f"{found.parameter} = {found.value:.4g}, {how}" if found.refused is None else found.refused
        given = f" with {', '.join(f'{key}={value}' for key, value in settings.items())}" if settings else ""
        print(f"{name}{given}\n    {what}")


if __name__ == "__main__":
    main()
