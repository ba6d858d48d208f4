"""TRL's own GRPO, RLOO and DPO losses, asked as anybody's: they come to rest where the trained table has them."""

import re
from collections import defaultdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.trl
torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trl import DPOTrainer, GRPOTrainer, RLOOTrainer  # noqa: E402

from kleash.trials.cases import puzzle  # noqa: E402
from kleash.trials.loss_conformance import loss_conformance  # noqa: E402
from kleash.trials.loss_rest import rest_of  # noqa: E402
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


class _Rloo(RLOOTrainer):
    def __init__(self):
        _Trainer.__init__(self, loss_type=None, corrected=None)

    def _get_per_token_logps_and_entropies(self, *_, **__):
        return self.given, torch.zeros_like(self.given), None


def rloo(normalised=False):
    def loss(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
        groups = (reward - beta * ((logp.detach() - ref_logp) * mask).sum(1)).reshape(-1, group_size)
        advantage = ((groups - groups.mean(1, keepdim=True)) * group_size / (group_size - 1)).reshape(-1)
        if normalised:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-4)
        trainer = _Rloo()
        trainer.given = logp
        ids = torch.zeros(mask.shape, dtype=torch.long)
        inputs = {
            "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1] + 1, "completion_ids": ids, "completion_mask": mask,
            "advantages": advantage, "old_logps": (old_logp * mask).sum(1),
        }  # fmt: skip
        return trainer._compute_loss(trainer.model, inputs)

    return loss


class _Dpo(DPOTrainer):
    def __init__(self, beta):
        same = SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
        self.model, self.accelerator, self.args = SimpleNamespace(training=True), same, SimpleNamespace()
        self.aux_loss_enabled, self.ld_alpha, self.precompute_ref_logps = False, None, True
        self.f_divergence_type, self.loss_types, self.loss_weights = "reverse_kl", ["sigmoid"], [1.0]
        self.label_smoothing, self.use_weighting, self.beta = 0.0, False, beta
        self._metrics = {"train": defaultdict(list)}
        self._total_train_tokens, self._tp_size = 0, 1


def dpo(logp, old_logp, ref_logp, reward, mask, *, beta, group_size, label_scale=1.0):
    """Pairs of the reference's answers with labels drawn by their scores: both labels, each with its probability."""
    pairs = torch.combinations(torch.arange(len(reward)))
    total = 0.0
    for first, second in ((0, 1), (1, 0)):
        chosen, rejected = pairs[:, first], pairs[:, second]
        both = torch.cat([chosen, rejected])
        zeros = torch.zeros(len(both), 1, dtype=mask.dtype)
        whole = torch.cat([zeros, mask[both]], dim=1)
        none = torch.zeros_like(whole)
        outputs = SimpleNamespace(log_probs=(logp * mask)[both], entropy=none, mean_logits=none, is_top1=none.bool())
        ref = (ref_logp * mask).sum(1)
        inputs = {"completion_mask": whole, "input_ids": none.long(), "attention_mask": whole,
                  "ref_chosen_logps": ref[chosen], "ref_rejected_logps": ref[rejected]}  # fmt: skip
        wins = torch.sigmoid((reward[chosen] - reward[rejected]) / label_scale)
        for i in range(len(pairs)):
            one = slice(i, None, len(pairs))
            part = SimpleNamespace(**{k: v[one] for k, v in vars(outputs).items()})
            given = {k: v[one] if len(v) == len(both) else v[i : i + 1] for k, v in inputs.items()}
            total = total + wins[i] * _Dpo(beta)._compute_loss(lambda part=part, **_: part, given, False)
    return total / len(pairs)


def trained(case):
    """Judge's score and KL of a row of the trained table, with their intervals."""
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| trl-{case} |"))
    numbers = re.findall(r"([\d.]+)(?: ± ([\d.e-]+))?", row.split("|")[4])
    return [(float(value), float(within or 0)) for value, within in numbers]


ROWS = [
    ("grpo: beta 1.0 | coin", "coin", 1.0, grpo(), 8),
    ("grpo: beta 1.0, use_bias_correction_kl False | coin", "coin", 1.0, grpo(corrected=False), 8),
    ("grpo: beta 1.0, num_generations 2 | coin", "coin", 1.0, grpo(), 2),
    ("grpo: beta 1.0, scale_rewards none | coin", "coin", 1.0, grpo(scale="none"), 8),
    ("grpo: beta 0.5, scale_rewards none | three", "three", 0.5, grpo(scale="none"), 8),
    ("grpo: beta 0.5, scale_rewards none, use_bias_correction_kl False | three", "three", 0.5,
     grpo(scale="none", corrected=False), 8),
    ("grpo: beta 15.0, scale_rewards none | points", "points", 15.0, grpo(scale="none"), 8),
    ("grpo: beta 1.0 | points", "points", 1.0, grpo(), 8),
    ("rloo: beta 1.0 | coin", "coin", 1.0, rloo(), 2),
    ("rloo: beta 15.0 | points", "points", 15.0, rloo(), 2),
    ("rloo: beta 0.5, num_generations 8 | three", "three", 0.5, rloo(), 8),
    ("rloo: beta 0.5, num_generations 4, normalize_advantages True | three", "three", 0.5, rloo(normalised=True), 4),
    ("rloo: beta 0.25, num_generations 4 | words", "words", 0.25, rloo(), 2),
    ("dpo: beta 1.0 | coin", "coin", 1.0, dpo, 2),
    ("dpo: beta 0.5, label_scale 30.0 | points", "points", 0.5, partial(dpo, label_scale=30.0), 2),
]  # fmt: skip


@pytest.mark.parametrize(("case", "world", "beta", "loss", "size"), ROWS, ids=[row[0] for row in ROWS])
def test_it_comes_to_rest_where_training_did(case, world, beta, loss, size):
    asked = UserLoss(function=loss, group_size=size, offline=case.startswith("dpo"))
    found = rest_of("as asked", asked, puzzle(world), beta)
    rounded = 3e-3 if found.kink else 3e-4  # printed to four digits
    for value, (mean, within) in zip((found.reward, found.kl), trained(case), strict=True):
        assert abs(value - mean) <= 1.5 * within + rounded * max(1.0, abs(mean))


@pytest.mark.parametrize(("loss", "offline"), [(rloo(), False), (dpo, True)], ids=["rloo", "dpo"])
def test_the_others_have_no_fault(loss, offline):
    found = loss_conformance(loss, group_size=2, offline=offline, variants=False)
    assert (found.faults, found.pulls_back, found.to) == ((), True, "reference")


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo", "grpo", "dr_grpo"])
@pytest.mark.parametrize("corrected", [True, False])
def test_it_has_no_fault(loss_type, corrected):
    found = loss_conformance(grpo(loss_type, corrected), variants=False)
    assert (found.faults, found.pulls_back, found.to) == ((), True, "reference")
    assert ("reference || policy" in found.gradient) is not corrected
