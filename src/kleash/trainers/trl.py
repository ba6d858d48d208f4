"""TRL's GRPO and RLOO, which write the same keys; translation read in TRL 1.16, logs in 0.14 to 1.16."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.trainers._common import EPOCHS, FROZEN, PLAIN, SAME_LENGTH, clipping, whole
from kleash.trainers.columns import PER_ANSWER, PER_TOKEN, Columns, FirstSteps, Rival, bare, kl, old
from kleash.trainers.facts import Averages, Change, Identity, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Leash, Penalty, Target, value_of
from kleash.trainers.trl_trials import GRPO_TRIAL, RLOO_TRIAL

if TYPE_CHECKING:
    from kleash.trainers.columns import Array, Raw

__all__ = ["BETA", "GRPO", "OWN", "RLOO", "grpo_leash", "trl_penalty"]

OWN: dict[str, Any] = {"project": "TRL", "command": "trl", "loss_places": 4}
BETA = ("beta", "kl_coef", "init_kl_coef")
_GRPO: dict[str, Any] = {
    "reward": ("reward",),
    "length": ("completions/mean_length", "completion_length"),
    "entropy": ("entropy",),
    "losses": {"loss": ("loss",), "policy": ("policy_loss",)},
    "component": re.compile(r"rewards/(?P<name>.+?)(?:/mean)?"),
}
_SAMPLED: dict[str, Any] = {
    "token_means": True,
    "mismatch": {
        "sampling/sampling_logp_difference/mean": (0.1, "twice the .0499 of bfloat16 kernels (trl issue 6789)"),
    },
    "cut": ("completions/clipped_ratio",),
    "sampling": {"temperature": 1.0},
}

# ------------------------------------------------------------------------------------------------ GRPO or RLOO

_OLD_GRPO = re.compile(r"completion_length|clip_ratio|rewards/[^/]+")
_ROUNDING = 1e-4
"""How far below 0 a batch's k3 may come out in bfloat16, whose numbers near 1 are 2**-8 apart: above the -6e-5 that
2,000 tokens gave. A k1 that stays above this tells GRPO from RLOO no better."""


def _is_rloo(raw: Raw) -> bool:
    kl = raw.get("kl", raw.get("train/kl"))
    return kl is not None and bool(np.nanmin(np.append(kl, np.inf)) < -_ROUNDING)


def _is_grpo(raw: Raw) -> bool:
    """Keys that RLOO never wrote, or a loss in proportion to the KL, as GRPO's is on-policy and RLOO's never."""
    if any(_OLD_GRPO.fullmatch(bare(key)) for key in raw):
        return True
    kl = raw.get("kl", raw.get("train/kl", raw.get("eval_kl")))
    loss = raw.get("loss", raw.get("train/loss"))
    return kl is not None and loss is not None and _proportional(kl, loss)


def _proportional(kl: Array, loss: Array) -> bool:
    both = np.isfinite(kl) & np.isfinite(loss) & (kl > 0)
    if both.sum() < 4:
        return False
    x, y = kl[both] / kl[both].max(), loss[both] / max(float(np.abs(loss[both]).max()), 1e-300)  # squares stay floats
    slope = float(x @ y / (x @ x))
    total = float(np.square(y - y.mean()).sum())
    return slope > 0 and total > 0 and float(np.square(y - slope * x).sum()) < 0.1 * total


# ---------------------------------------------------------------------------------------------------- what options do


def trl_penalty(o: Options) -> Penalty:
    """What the options of any of TRL's trainers state."""
    return Penalty(
        coefficient="beta",
        with_ratio=o.get("use_bias_correction_kl"),
        estimator=value_of(o.get("kl_estimator")),
        loss_type=o.get("loss_type"),
        iterations=whole(o.get("num_iterations")),
        adaptive=o.get("adap_kl_ctrl"),
        target=o.get("target"),
        horizon=o.get("horizon"),
    )


def grpo_leash(o: Options) -> Leash:
    """GRPO's side of the update."""
    loss, refused, factor = o["loss_type"], None, 1.0
    assumes = [PLAIN, FROZEN, "reward_weights and entropy_coef as in the forecast: no other term in the reward"]
    if loss == "vespo":
        refused = "loss_type vespo weights answers by a function of their ratio that has no counterpart in the tilt"
    if loss == "luspo" or o["importance_sampling_level"] == "sequence":
        refused = refused or (
            "with ratios of whole sequences, which loss_type luspo is made for, the penalty's correction is shared out "
            "over the answer's tokens, and the root is that of no KL; use importance_sampling_level token and another "
            "loss_type"
        )
    if o["multi_objective_aggregation"] != "sum_then_normalize":
        refused = refused or "normalize_then_sum standardises every reward function on its own, which no beta undoes"
    if loss == "cispo":
        high = o["epsilon"] if o["epsilon_high"] is None else o["epsilon_high"]
        factor = min(1.0, high)
        assumes.append(f"cispo caps ratios at epsilon_high itself ({high:g}): rewards count {factor:g} times")
    if loss in {"grpo", "sapo"}:
        assumes.append(SAME_LENGTH)
    if loss in {"bnpo", "dapo", "cispo"}:
        assumes.append("batches large enough that their number of tokens hardly varies")
    assumes.append(clipping(o["num_iterations"]))
    if not o["use_bias_correction_kl"] and refused is None:
        assumes.append("use_bias_correction_kl is off: k3 as a loss, whose root is that of the forward KL")
    scale = o["scale_rewards"]
    return Leash(
        parameter="beta",
        group_mean=True,
        scale=None if scale in {"none", "false"} else "batch" if scale == "batch" else "group",
        factor=factor,
        group_option="num_generations",
        group_size=8,
        assumes=tuple(assumes),
        refused=refused,
    )


def _rloo(o: Options) -> Leash:
    assumes = [PLAIN, FROZEN, "no reward_clip_range", "rewards of all functions weighted as in the forecast"]
    if o["normalize_advantages"]:
        assumes.append("normalize_advantages divides reward and penalty alike: only the step changes")
    return Leash(parameter="beta", assumes=(*assumes, clipping(o["num_iterations"])))


_GRPO_OPTIONS = {
    "beta": Option(names=BETA, default=0.0, history=(((0,), 0.04), ((0, 19), 0.0))),
    "num_generations": Option(default=8),
    "scale_rewards": Option(default="group", choices=("group", "batch", "none", "true", "false")),
    "use_bias_correction_kl": Option(default=True, history=(((0,), False), ((1, 10), None), ((1, 16), True))),
    "loss_type": Option(default="dapo", choices=("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")),
    "importance_sampling_level": Option(default="token", choices=("token", "sequence")),
    "multi_objective_aggregation": Option(
        default="sum_then_normalize", choices=("sum_then_normalize", "normalize_then_sum"), printed=False
    ),
    "epsilon": Option(default=0.2, above=0, printed=False),
    "epsilon_high": Option(above=0, printed=False),
    "num_iterations": EPOCHS,
}
_RLOO_OPTIONS = {
    "beta": Option(names=BETA, default=0.05),
    "num_generations": Option(default=2),
    "normalize_advantages": Option(default=False, printed=False),
    "num_iterations": EPOCHS,
    "token_level_kl": Option(default=False),
}

# ------------------------------------------------------------------------------------------------------- the trainers

GRPO = Trainer(
    **OWN,
    name="trl-grpo",
    card="grpo",
    classes=("GRPOConfig", "GRPOTrainer"),
    marks=(
        "completions/*",
        "rewards/*",
        "clip_ratio*",
        "eval_rewards/*",
        "eval_completions/*",
        "completion_length",
        "frac_reward_zero_std",
        "kl reward_std",
        "kl loss epoch",
        "kl loss grad_norm",
        "eval_kl eval_loss",
    ),
    columns=Columns(**_GRPO, kl=(kl("kl", "eval_kl", estimator="k3", unit=PER_TOKEN, placement="loss"),)),
    rival=Rival(
        name="trl-rloo",
        shows=_is_rloo,
        why="taken for TRL's RLOO: its `kl` is k1 and falls below 0, where GRPO's k3 cannot",
        sure=_is_grpo,
        note="taken for TRL's GRPO; RLOO writes the same keys: say which with trainer='trl-grpo' or 'trl-rloo'",
        question="GRPO and RLOO of TRL write the same keys: say which with --trainer",
    ),
    options=_GRPO_OPTIONS,
    penalty=trl_penalty,
    targets=(
        Target(
            name="trl-grpo",
            settable=tuple(k for k in _GRPO_OPTIONS if k not in {"beta", "num_generations"}),
            leash=grpo_leash,
        ),
    ),
    place="loss",
    estimator="k3",
    trial=GRPO_TRIAL,
    ratio_option="use_bias_correction_kl",
    eras=(("completion_length", (0, 18)), ("clip_ratio", (0, 18))),
    identity=Identity(
        kind="loss",
        averages=Averages(
            alike="grpo",
            tokens=("bnpo", "dapo"),
            others=("dr_grpo", "luspo", "sapo", "cispo", "vespo"),
            default="bnpo and dapo, the defaults since TRL 0.17",
            drawn=("dapo",),  # num_items_in_batch; divided into windows in 1.16.0, not in 1.10.0.dev0
            mended=((1, 10), (1, 16)),
        ),
    ),
    **_SAMPLED,
    first_steps=FirstSteps(
        name="TRL's completions",
        columns=frozenset({"step", "prompt", "completion", "advantage"}),
        prompt="prompt",
        answer="completion",
        reward=None,
        first=0,  # an evaluation before the first step
        last=1,
        how="log_completions=True with logging_steps=1 or logging_first_step=True",
    ),
    changes=(
        Change(
            version=(0, 19),
            key=("beta",),
            visible="kl-gone",
            what="beta defaults to 0.0 instead of 0.04: no penalty, no reference model, no kl in the log",
            source="trl grpo_config.py, v0.18 and v0.19",
        ),
        Change(
            version=(0, 17),
            key=("loss_type",),
            what="the loss is a token mean (bnpo) instead of a mean of answers' means: loss is no longer beta * kl",
            source="trl grpo_config.py, v0.16 and v0.17",
        ),
        Change(
            version=(0, 22),
            key=("loss_type",),
            what="loss_type defaults to dapo (all active tokens) instead of bnpo",
            source="trl grpo_config.py, v0.22",
        ),
        Change(
            version=(0, 18),
            key=("temperature",),
            what="temperature defaults to 1.0 instead of 0.9",
            source="trl grpo_config.py, v0.18",
        ),
        Change(
            version=(1, 16),
            key=("use_bias_correction_kl",),
            what="use_bias_correction_kl defaults to True (somewhere after 1.10, by PR 6503): the gradient is that "
            "of the reverse KL, not of the forward KL",
            source="trl 1.16.0 as installed, 1.10.0.dev0",
        ),
    ),
)
RLOO = Trainer(
    **OWN,
    name="trl-rloo",
    card="rloo",
    classes=("RLOOConfig", "RLOOTrainer"),
    marks=("objective/rlhf_reward policy/approxkl_avg !loss/value_avg !rewards/margins !beta !logps/chosen",),
    columns=Columns(
        **{
            **_GRPO,
            "reward": ("reward", "objective/scores"),
            "entropy": ("entropy", "policy/entropy_avg", "objective/entropy"),
        },
        kl=(
            kl("kl", "eval_kl", estimator="k1", unit=PER_TOKEN, placement="reward"),
            kl("objective/kl", estimator="k1", unit=PER_ANSWER, placement="reward"),
            old("policy/approxkl_avg"),
        ),
    ),
    options=_RLOO_OPTIONS,
    penalty=trl_penalty,
    targets=(Target(name="trl-rloo", settable=("normalize_advantages", "num_iterations"), leash=_rloo),),
    place="reward",
    estimator="k1",
    trial=RLOO_TRIAL,
    identity=Identity(
        kind="none", reason="TRL's RLOO logs the reward before the KL is taken off, and no loss without it"
    ),
    **_SAMPLED,
    changes=(
        Change(
            version=(0, 22),
            key=("token_level_kl",),
            what="kl is logged as a mean per token, it was a sum per answer; the penalty still takes the sum",
            source="trl rloo_trainer.py; the older class up to 0.2x",
        ),
    ),
)
