"""NeMo-RL: the penalty in the loss, its coefficient divided out of what is logged."""

from __future__ import annotations

from kleash.trainers._common import FROZEN, NO_CLIP, PLAIN
from kleash.trainers.columns import PER_TOKEN, Columns, kl
from kleash.trainers.facts import Change, Identity, Shows, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Target, gradient_of

__all__ = ["NEMO_RL"]

_OPTIONS = {
    "reference_policy_kl_penalty": Option(
        names=("loss_fn.reference_policy_kl_penalty", "reference_policy_kl_penalty"), default=0.01
    ),
    "reference_policy_kl_type": Option(
        default="k3", choices=("k1", "k2", "k3"), path="loss_fn.reference_policy_kl_type"
    ),
    "kl_score_function": Option(default=True, printed=False, ours=True),
    "use_kl_in_reward": Option(default=False, path="loss_fn.use_kl_in_reward"),
    "normalize_rewards": Option(default=True, printed=False, path="grpo.normalize_rewards"),
    "use_leave_one_out_baseline": Option(default=True, printed=False, path="grpo.use_leave_one_out_baseline"),
}


def _penalty(o: Options) -> Penalty:
    in_reward = o["use_kl_in_reward"]
    return Penalty(
        coefficient="reference_policy_kl_penalty",
        in_loss=None if in_reward is None else not in_reward,
        in_reward=in_reward,
        estimator=gradient_of(o["reference_policy_kl_type"]),
        named=f"reference_policy_kl_type {o['reference_policy_kl_type']}",
        with_ratio=o["kl_score_function"],
    )


def _leash(o: Options) -> Leash:
    ratio, loo = o["kl_score_function"], o["use_leave_one_out_baseline"]
    in_reward = (
        "use_kl_in_reward charges every token with its own KL before the advantages are normalised; use the loss"
    )
    return Leash(
        parameter="loss_fn.reference_policy_kl_penalty",
        group_mean=not loo,
        scale="group" if o["normalize_rewards"] else None,
        sd_of="others" if loo else "group",
        group_option="grpo.num_generations_per_prompt",
        instead="k3" if ratio else "k2 (or a version with the corrected gradient)",
        assumes=(
            PLAIN,
            FROZEN,
            "the KL gradient has its score-function term (since May 2026)" if ratio else "the KL gradient is plain",
            "no token's KL is clamped",
            NO_CLIP,
        ),
        refused=in_reward if o["use_kl_in_reward"] else None,
    )


NEMO_RL = Trainer(
    name="nemo-rl",
    project="NeMo-RL",
    marks=("token_mult_prob_error", "gen_kl_error", "train/kl_penalty"),
    columns=Columns(
        reward=("reward", "total_reward"),
        length=("mean_gen_tokens_per_sample",),
        entropy=("approx_entropy",),
        losses={"loss": ("loss",)},
        kl=(
            kl(
                "kl_penalty",
                estimator="k3",
                unit=PER_TOKEN,
                placement="loss",
                clamp=(-20.0, 20.0),
                zero_is_off=True,
                named_by="reference_policy_kl_type",
            ),
        ),
    ),
    options=_OPTIONS,
    penalty=_penalty,
    targets=(
        Target(
            name="nemo-rl",
            settable=(
                "reference_policy_kl_type", "kl_score_function", "use_kl_in_reward", "normalize_rewards",
                "use_leave_one_out_baseline",
            ),
            leash=_leash,
        ),
    ),
    shows=Shows(zero_outside="kl_penalty", silent_in_reward=True),
    doubt=(
        "{} in the loss has no pull in NeMo-RL before PR 2506 (May 2026), and the right one since",
        "look up the release; k3 pulls in both",
    ),
    identity=Identity(
        kind="none", reason="NeMo-RL divides the coefficient out of kl_penalty and logs no policy loss of its own"
    ),
    token_means=True,
    mismatch={
        "token_mult_prob_error": (1.05, "NeMo-RL's own guidance: about 1.0, suspicious above 1.05"),
        "gen_kl_error": (0.01, "NeMo-RL's guidance is 1e-3; tinker-feedback issue 22 alarms at .01"),
    },
    console={
        "Loss": "loss",
        "Generation KL Error": "gen_kl_error",
        "Avg Reward": "reward",
        "Avg Filtered Reward": "filtered_reward",
        "Avg Total Reward": "total_reward",
        "Mean Generation Length": "mean_gen_tokens_per_sample",
    },
    note_without="NeMo-RL prints no KL on the console: whether there was one, this text cannot tell",
    changes=(
        Change(
            version=(0, 5),
            key=("kl_input_clamp_value",),
            what="the log ratio is clamped to 20 and the KL to 10",
            source="NeMo-RL calculate_kl, 0.4 and 0.5",
        ),
    ),
)  # fmt: skip
