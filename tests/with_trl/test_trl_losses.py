"""TRL's own GRPO loss, asked as anybody's: it comes to rest where the trained table of docs/conformance.md has it."""

import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.trl
torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trl import GRPOTrainer  # noqa: E402

from kleash.trials.cases import puzzle  # noqa: E402
from kleash.trials.loss_conformance import _rest, loss_conformance  # noqa: E402
from kleash.trials.user_loss import UserLoss  # noqa: E402

PAGE = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text(encoding="utf-8")


class _Trainer(GRPOTrainer):
    """The trainer without a model: what its loss reads, and log-probabilities that are given."""

    def __init__(self, *, loss_type, corrected):
        self.loss_type, self.importance_sampling_level = loss_type, "token"
        self.epsilon_low = self.epsilon_high = 0.2
        self.top_entropy_quantile, self.off_policy_mask_threshold = 1.0, None
        self.aux_loss_enabled = self.use_vllm = False
        self.max_completion_length, self.current_gradient_accumulation_steps = 3, 1
        self.args = SimpleNamespace(
            use_bias_correction_kl=corrected, delta=None, steps_per_generation=1, entropy_coef=0.0
        )
        self.entropy_coef, self._entropy_bonus_enabled = 0.0, False
        self.model = SimpleNamespace(training=True)
        self.accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, *_, **__: x)
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}

    def _get_per_token_logps_and_entropies(self, *_, **__):
        return self.given, torch.zeros_like(self.given), None


def grpo(loss_type="dapo", corrected=True, scale="group"):
    def loss(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
        groups = reward.reshape(-1, group_size)
        advantage = groups - groups.mean(1, keepdim=True)
        if scale == "group":
            advantage = advantage / (groups.std(1, keepdim=True) + 1e-4)
        trainer = _Trainer(loss_type=loss_type, corrected=corrected)
        trainer.beta, trainer.given = beta, logp
        ids = torch.zeros(mask.shape, dtype=torch.long)
        inputs = {
            "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1] + 1, "completion_ids": ids, "completion_mask": mask,
            "advantages": advantage.reshape(-1), "old_per_token_logps": old_logp, "ref_per_token_logps": ref_logp,
            "num_items_in_batch": mask.sum(),
        }  # fmt: skip
        return trainer._compute_loss(trainer.model, inputs)

    return loss


def trained(case):
    """Judge's score and KL of a row of the trained table, with their intervals."""
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| trl-grpo: {case} |"))
    numbers = re.findall(r"([\d.]+) ± ([\d.]+)", row.split("|")[4])
    return [(float(value), float(within)) for value, within in numbers]


@pytest.mark.parametrize(
    ("case", "world", "beta", "settings"),
    [
        ("beta 1.0 | coin", "coin", 1.0, {}),
        ("beta 1.0, use_bias_correction_kl False | coin", "coin", 1.0, {"corrected": False}),
        ("beta 1.0, scale_rewards none | coin", "coin", 1.0, {"scale": "none"}),
        ("beta 0.5, scale_rewards none | three", "three", 0.5, {"scale": "none"}),
        ("beta 0.5, scale_rewards none, use_bias_correction_kl False | three", "three", 0.5,
         {"scale": "none", "corrected": False}),
        ("beta 15.0, scale_rewards none | points", "points", 15.0, {"scale": "none"}),
        ("beta 1.0 | points", "points", 1.0, {}),
    ],
)  # fmt: skip
def test_it_comes_to_rest_where_training_did(case, world, beta, settings):
    found = _rest("as asked", UserLoss(function=grpo(**settings), group_size=8), puzzle(world), beta)
    for value, (mean, within) in zip((found.reward, found.kl), trained(case), strict=True):
        assert abs(value - mean) <= 1.5 * within + 1e-4


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo", "grpo", "dr_grpo"])
@pytest.mark.parametrize("corrected", [True, False])
def test_it_has_no_fault(loss_type, corrected):
    found = loss_conformance(grpo(loss_type, corrected), variants=False)
    assert (found.faults, found.pulls_back, found.to) == ((), True, "reference")
    assert ("reference || policy" in found.gradient) is not corrected
