"""How each trainer's options make its leash. Read in the trainers' own sources; docs/convert.md names the versions."""

from __future__ import annotations

from typing import Any

from kleash.translate._leash import Leash, Pull, Scale, Setting, Trainer

__all__ = ["TRAINERS"]

_YES = ("true", "false")
_FROZEN = "the reference stays frozen"
_PLAIN = "answers sampled from the policy itself at temperature 1, without top-k, top-p or filtering of groups"
_NO_CLIP = "one update per batch, so that clipping and importance ratios do nothing"
_SAME_LENGTH = "answers of about one length: this loss weights a token of a long answer less"
_ONE_LENGTH = (
    "answers of exactly one length: what has no mean of 0 in each answer, averaged over its tokens, pushes the length"
)
_LOSS: dict[str, Pull] = {"k1": "none", "k2": "token", "k3": "forward", "abs": "other"}
_WITH_RATIO: dict[str, Pull] = {"k1": "token", "k2": "other", "k3": "token"}
_ALIKE = {"kl": "k1", "mse": "k2", "low_var_kl": "k3", "k1+": "k2", "k3+": "k2"}

_NO_PULL = (
    "{option}: k1 as a loss has no gradient on average, so there is no leash at any coefficient; use {instead} instead"
)
_MOVES = (
    "the coefficient is moved by a controller, so no fixed beta corresponds; fix it, or set the controller's target "
    "to the KL you want, in {unit}"
)


def _in_loss(estimator: str, option: str, instead: str, *, ratio: bool = False) -> tuple[Pull, str | None]:
    """What a per-token KL term in the loss descends, and why there is no translation where it descends no KL."""
    pull = (_WITH_RATIO if ratio else _LOSS)[estimator]
    if pull == "none":
        return pull, _NO_PULL.format(option=option, instead=instead)
    if pull == "other":
        return pull, f"{option}: the gradient is that of neither KL, so no tilt corresponds; use {instead} instead"
    return pull, None


def _k1_in_reward(estimator: str, option: str) -> str | None:
    if estimator == "k1":
        return None
    return f"{option}: in the reward only k1 pulls towards the reference as KL does; {estimator} can pull away from it"


# -------------------------------------------------------------------------------------------------------------- TRL


def _trl_grpo(s: dict[str, Any]) -> Leash:
    corrected = s["use_bias_correction_kl"] == "true"
    loss, refused, factor = s["loss_type"], None, 1.0
    assumes = [_PLAIN, _FROZEN, "reward_weights and entropy_coef as in the forecast: no other term in the reward"]
    if s["loss_type"] == "vespo":
        refused = "loss_type vespo weights answers by a function of their ratio that has no counterpart in the tilt"
    if loss == "luspo" or s["importance_sampling_level"] == "sequence":
        refused = refused or (
            "with ratios of whole sequences the penalty's correction is shared out over the answer's tokens, and the "
            "root is that of no KL; use importance_sampling_level token and another loss_type"
        )
    if s["multi_objective_aggregation"] != "sum_then_normalize":
        refused = refused or "normalize_then_sum standardises every reward function on its own, which no beta undoes"
    if loss == "cispo":
        high = s["epsilon"] if s["epsilon_high"] is None else s["epsilon_high"]
        factor = min(1.0, high)
        assumes.append(f"cispo caps ratios at epsilon_high itself ({high:g}): rewards count {factor:g} times")
    if loss in {"grpo", "sapo"}:
        assumes.append(_SAME_LENGTH)
    if loss in {"bnpo", "dapo", "cispo"}:
        assumes.append("batches large enough that their number of tokens hardly varies")
    assumes.append(_NO_CLIP if s["num_iterations"] == 1 else "the root of the first update of each batch")
    if not corrected and refused is None:
        assumes.append("use_bias_correction_kl is off: k3 as a loss, whose root is that of the forward KL")
    scale = s["scale_rewards"]
    return Leash(
        parameter="beta",
        pull="token" if corrected else "forward",
        group_mean=True,
        scale=None if scale in {"none", "false"} else "batch" if scale == "batch" else "group",
        factor=factor,
        group_option="num_generations",
        group_size=8,
        assumes=tuple(assumes),
        refused=refused,
    )


def _trl_rloo(s: dict[str, Any]) -> Leash:
    assumes = [_PLAIN, _FROZEN, "no reward_clip_range", "rewards of all functions weighted as in the forecast"]
    if s["normalize_advantages"] == "true":
        assumes.append("normalize_advantages divides reward and penalty alike: only the step changes")
    assumes.append(_NO_CLIP if s["num_iterations"] == 1 else "the root of the first update of each batch")
    return Leash(parameter="beta", pull="answer", assumes=tuple(assumes))


def _trl_dpo(s: dict[str, Any]) -> Leash:
    refused = None
    odds = "reward difference" if s["label_scale"] == 1 else f"reward difference / {s['label_scale']:g}"
    if s["labels"] == "hard":
        refused = (
            "with hard labels (the better-scored answer always wins) the loss has no finite optimum: what stops the "
            "policy is the number of steps, not beta; draw labels with probability sigmoid(reward difference)"
        )
    elif s["loss_type"] not in {"sigmoid", "sigmoid_norm"}:
        refused = f"loss_type {s['loss_type']}: its optimum is not the tilt of a Bradley-Terry reward"
    elif s["f_divergence_type"] != "reverse_kl":
        refused = f"f_divergence_type {s['f_divergence_type']}: the optimum is that of another divergence"
    elif s["label_smoothing"] > 0:
        refused = "label_smoothing flattens the labels' log odds unevenly: the optimum is no tilt of the reward"
    return Leash(
        parameter="beta",
        pull="answer",
        factor=1.0 / s["label_scale"],
        per_length=s["loss_type"] == "sigmoid_norm",
        assumes=(
            f"labels drawn anew for each pair with probability sigmoid({odds})",
            "pairs of answers of the reference that cover what the policy may say, trained to convergence",
            "dropout off",
        ),
        refused=refused,
    )


# ------------------------------------------------------------------------------------------------------------- verl

_VERL_ESTIMATORS = ("gae", "grpo", "rloo", "remax", "reinforce_plus_plus")
_VERL_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "k3+")


def _verl_reward(s: dict[str, Any]) -> Leash:
    kind = s["kl_penalty"].removesuffix("+")
    refused = _k1_in_reward(_ALIKE.get(kind, kind), f"kl_penalty {s['kl_penalty']}")
    if s["use_kl_loss"] == "true":
        refused = "use_kl_loss and use_kl_in_reward are both on: two penalties that add up; turn one off"
    if s["type"] == "adaptive":
        refused = _MOVES.format(unit="nats per token (the KL per answer divided by the mean length)")
    if s["gamma"] != 1:
        refused = "gamma below 1 discounts the penalty of a token by its place; use gamma 1"
    assumes = [_PLAIN, _FROZEN, "no token's k1 is clamped"]
    if s["adv_estimator"] == "gae":
        assumes.append("lam 1, or a critic that has learnt the returns")
    if s["adv_estimator"] in {"gae", "grpo", "reinforce_plus_plus"}:
        assumes.append("standardised returns contain the penalty: only the step changes")
    if s["loss_agg_mode"] == "seq-mean-token-mean":
        assumes.append(_ONE_LENGTH if s["adv_estimator"] in {"remax", "reinforce_plus_plus"} else _SAME_LENGTH)
    assumes.append(_NO_CLIP if s["ppo_epochs"] == 1 else "the root of the first update of each batch")
    return Leash(parameter="algorithm.kl_ctrl.kl_coef", pull="answer", assumes=tuple(assumes), refused=refused)


def _verl_loss(s: dict[str, Any]) -> Leash:
    kind = _ALIKE.get(s["kl_loss_type"], s["kl_loss_type"])
    pull, refused = _in_loss(kind, f"kl_loss_type {s['kl_loss_type']}", "k3+ (the gradient of k2)")
    if s["use_kl_in_reward"] == "true":
        refused = "use_kl_loss and use_kl_in_reward are both on: two penalties that add up; turn one off"
    estimator = s["adv_estimator"]
    grouped = estimator == "grpo"
    whitened = estimator in {"gae", "reinforce_plus_plus"}
    scale: Scale | None = "log" if whitened else None
    if grouped and s["norm_adv_by_std_in_grpo"] == "true":
        scale = "group"
    assumes = [_PLAIN, _FROZEN, "no token's KL is clamped"]
    if whitened:
        assumes.append(
            f"{estimator} divides advantages by their SD over the batch: reward SD is that of the advantages"
        )
    if s["loss_agg_mode"] == "seq-mean-token-mean":
        assumes.append(_ONE_LENGTH if s["adv_estimator"] in {"remax", "reinforce_plus_plus"} else _SAME_LENGTH)
    assumes.append(_NO_CLIP if s["ppo_epochs"] == 1 else "the root of the first update of each batch")
    return Leash(
        parameter="actor_rollout_ref.actor.kl_loss_coef",
        pull=pull,
        group_mean=grouped,
        scale=scale,
        group_option="actor_rollout_ref.rollout.n",
        assumes=tuple(assumes),
        refused=refused,
    )


# -------------------------------------------------------------------------------------- OpenRLHF, NeMo-RL, slime, ...


def _openrlhf(s: dict[str, Any]) -> Leash:
    estimator, kind = s["advantage_estimator"], s["kl_estimator"]
    in_loss = s["use_kl_loss"] == "true"
    assumes = [_PLAIN, _FROZEN, "raw rewards within reward_clip_range (10 either way), no token's KL beyond 10"]
    scale: Scale | None = "group" if estimator == "group_norm" else None
    if in_loss:
        pull, refused = _in_loss(kind, f"kl.estimator {kind}", "k2")
        if estimator in {"gae", "reinforce", "reinforce_baseline"}:
            scale = "log"
            assumes.append(f"{estimator} divides advantages by their SD over the batch: reward SD is that of these")
    else:
        pull, refused = "answer", _k1_in_reward(kind, f"kl.estimator {kind}")
        assumes.append("batches large enough that dividing all advantages by their SD only changes the step")
    if s["kl_target"] is not None:
        refused = _MOVES.format(unit="nats per token (the KL per answer divided by the mean length)")
    assumes.append(_NO_CLIP)
    return Leash(
        parameter="algo.kl.init_coef",
        pull=pull,
        group_mean=estimator in {"reinforce_baseline", "dr_grpo", "group_norm"},
        scale=scale,
        group_option="n_samples_per_prompt",
        assumes=tuple(assumes),
        refused=refused,
    )


def _nemo_rl(s: dict[str, Any]) -> Leash:
    kind = s["reference_policy_kl_type"]
    ratio = s["kl_score_function"] == "true"
    pull, refused = _in_loss(
        kind, f"reference_policy_kl_type {kind}", "k3" if ratio else "k2 (or a version with the corrected gradient)",
        ratio=ratio,
    )  # fmt: skip
    if s["use_kl_in_reward"] == "true":
        refused = (
            "use_kl_in_reward charges every token with its own KL before the advantages are normalised; use the loss"
        )
    loo = s["use_leave_one_out_baseline"] == "true"
    return Leash(
        parameter="loss_fn.reference_policy_kl_penalty",
        pull=pull,
        group_mean=not loo,
        scale="group" if s["normalize_rewards"] == "true" else None,
        sd_of="others" if loo else "group",
        group_option="grpo.num_generations_per_prompt",
        assumes=(
            _PLAIN,
            _FROZEN,
            "the KL gradient has its score-function term (since May 2026)" if ratio else "the KL gradient is plain",
            "no token's KL is clamped",
            _NO_CLIP,
        ),
        refused=refused,
    )


def _slime(s: dict[str, Any]) -> Leash:
    kind, estimator = _ALIKE.get(s["kl_loss_type"], s["kl_loss_type"]), s["advantage_estimator"]
    grouped = estimator in {"grpo", "gspo", "cispo"}
    centred = s["rewards_normalization"] == "true" and (grouped or estimator == "reinforce_plus_plus_baseline")
    standard = centred and grouped and s["grpo_std_normalization"] == "true"
    refused: str | None
    pull: Pull
    if s["use_kl_loss"] == "true":
        parameter = "--kl-loss-coef"
        ratio = s["use_unbiased_kl"] == "true"
        instead = "k1 or k3" if ratio else "--kl-loss-type k2, or --use-unbiased-kl"
        pull, refused = _in_loss(kind, f"--kl-loss-type {s['kl_loss_type']}", instead, ratio=ratio)
        if estimator == "gspo":
            refused = refused or "gspo takes ratios of whole sequences: not covered; use grpo"
    else:
        parameter, pull = "--kl-coef", "answer"
        refused = _k1_in_reward(kind, f"--kl-loss-type {s['kl_loss_type']}")
        if grouped:
            refused = f"--kl-coef has no effect with --advantage-estimator {estimator}; use --use-kl-loss"
        elif estimator == "reinforce_plus_plus_baseline":
            refused = "reinforce_plus_plus_baseline charges every token with its own KL only; use ppo or --use-kl-loss"
    batch = s["normalize_advantages"] == "true" and s["use_kl_loss"] == "true"
    k1_with_ratio = s["use_kl_loss"] == "true" and s["use_unbiased_kl"] == "true" and kind == "k1"
    no_baseline = estimator == "reinforce_plus_plus" and not centred
    lengths = _ONE_LENGTH if k1_with_ratio or no_baseline else _SAME_LENGTH
    return Leash(
        parameter=parameter,
        pull=pull,
        group_mean=centred,
        scale="group" if standard else "log" if batch else None,
        group_option="--n-samples-per-prompt",
        assumes=(_PLAIN, _FROZEN, "no token's KL is clamped", lengths, _NO_CLIP),
        refused=refused,
    )


def _open_instruct(s: dict[str, Any]) -> Leash:
    index = int(s["kl_estimator"])
    if index == 3:  # the ratio times k1, differentiated through both
        pull, refused = _in_loss("k1", "kl_estimator 3", "", ratio=True)
    else:
        pull, refused = _in_loss(("k1", "k2", "k3")[index], f"kl_estimator {index}", "1 (k2) or 3 (ratio times k1)")
    return Leash(
        parameter="beta",
        pull=pull,
        group_mean=True,
        scale="group" if s["advantage_normalization_type"] == "standard" else None,
        sd_of="group-n",
        group_option="num_samples_per_prompt_rollout",
        assumes=(_PLAIN, _FROZEN, "no log ratio beyond 40", "loss_denominator token", _NO_CLIP),
        refused=refused,
    )


def _trlx(s: dict[str, Any]) -> Leash:
    unit = "nats per answer (trlX feeds the square of its logged sqrt_kl, which is no estimate of the KL)"
    return Leash(
        parameter="method.init_kl_coef",
        pull="answer",
        scale=None if s["scale_reward"] == "ignored" else "log",
        assumes=(
            _PLAIN,
            _FROZEN,
            "rewards within cliprange_reward (10 either way)",
            "a critic that has learnt the returns (lam 0.95), gamma 1",
            _NO_CLIP,
        ),
        refused=None if s["target"] is None else _MOVES.format(unit=unit),
    )


def _flag(default: bool) -> Setting:
    return Setting(default="true" if default else "false", choices=_YES)


_EPOCHS = Setting(default=1, at_least=1)

TRAINERS: dict[str, Trainer] = {
    "trl-grpo": Trainer(
        leash=_trl_grpo,
        settings={
            "scale_rewards": Setting(default="group", choices=("group", "batch", "none", "true", "false")),
            "use_bias_correction_kl": _flag(True),
            "loss_type": Setting(
                default="dapo",
                choices=("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"),
            ),
            "importance_sampling_level": Setting(default="token", choices=("token", "sequence")),
            "multi_objective_aggregation": Setting(
                default="sum_then_normalize", choices=("sum_then_normalize", "normalize_then_sum")
            ),
            "epsilon": Setting(default=0.2, above=0),
            "epsilon_high": Setting(default=None, above=0),
            "num_iterations": _EPOCHS,
        },
    ),
    "trl-rloo": Trainer(leash=_trl_rloo, settings={"normalize_advantages": _flag(False), "num_iterations": _EPOCHS}),
    "trl-dpo": Trainer(
        leash=_trl_dpo,
        settings={
            "labels": Setting(default="bernoulli", choices=("bernoulli", "hard")),
            "label_scale": Setting(default=1.0, above=0),
            "label_smoothing": Setting(default=0.0, at_least=0),
            "loss_type": Setting(
                default="sigmoid",
                choices=(
                    "sigmoid",
                    "sigmoid_norm",
                    "hinge",
                    "ipo",
                    "exo_pair",
                    "nca_pair",
                    "robust",
                    "bco_pair",
                    "sppo_hard",
                    "aot",
                    "aot_unpaired",
                    "apo_zero",
                    "apo_down",
                    "discopop",
                    "sft",
                ),
            ),
            "f_divergence_type": Setting(
                default="reverse_kl", choices=("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence")
            ),
        },
    ),
    "verl-reward": Trainer(
        leash=_verl_reward,
        settings={
            "kl_penalty": Setting(default="kl", choices=_VERL_KL),
            "type": Setting(default="fixed", choices=("fixed", "adaptive")),
            "adv_estimator": Setting(default="gae", choices=_VERL_ESTIMATORS),
            "use_kl_loss": _flag(False),
            "gamma": Setting(default=1.0, above=0),
            "loss_agg_mode": Setting(
                default="token-mean",
                choices=(
                    "token-mean",
                    "token-sum",
                    "seq-mean-token-sum",
                    "seq-mean-token-mean",
                    "seq-mean-token-sum-norm",
                ),
            ),
            "ppo_epochs": _EPOCHS,
        },
    ),
    "verl-loss": Trainer(
        leash=_verl_loss,
        settings={
            "kl_loss_type": Setting(default="low_var_kl", choices=_VERL_KL),
            "adv_estimator": Setting(default="gae", choices=_VERL_ESTIMATORS),
            "norm_adv_by_std_in_grpo": _flag(True),
            "use_kl_in_reward": _flag(False),
            "loss_agg_mode": Setting(
                default="token-mean",
                choices=(
                    "token-mean",
                    "token-sum",
                    "seq-mean-token-sum",
                    "seq-mean-token-mean",
                    "seq-mean-token-sum-norm",
                ),
            ),
            "ppo_epochs": _EPOCHS,
        },
    ),
    "openrlhf": Trainer(
        leash=_openrlhf,
        settings={
            "kl_estimator": Setting(default="k1", choices=("k1", "k2", "k3")),
            "use_kl_loss": _flag(False),
            "advantage_estimator": Setting(
                default="gae",
                choices=("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo"),
            ),
            "kl_target": Setting(default=None, above=0),
        },
    ),
    "nemo-rl": Trainer(
        leash=_nemo_rl,
        settings={
            "reference_policy_kl_type": Setting(default="k3", choices=("k1", "k2", "k3")),
            "kl_score_function": _flag(True),
            "use_kl_in_reward": _flag(False),
            "normalize_rewards": _flag(True),
            "use_leave_one_out_baseline": _flag(True),
        },
    ),
    "slime": Trainer(
        leash=_slime,
        settings={
            "use_kl_loss": _flag(True),
            "kl_loss_type": Setting(default="k1", choices=("k1", "k2", "k3", "low_var_kl")),
            "use_unbiased_kl": _flag(False),
            "advantage_estimator": Setting(
                default="grpo",
                choices=("grpo", "gspo", "cispo", "ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"),
            ),
            "rewards_normalization": _flag(True),
            "grpo_std_normalization": _flag(True),
            "normalize_advantages": _flag(False),
        },
    ),
    "open-instruct": Trainer(
        leash=_open_instruct,
        settings={
            "kl_estimator": Setting(default="2", choices=("0", "1", "2", "3")),
            "advantage_normalization_type": Setting(default="centered", choices=("centered", "standard")),
        },
    ),
    "trlx": Trainer(
        leash=_trlx,
        settings={
            "target": Setting(default=None, above=0),
            "scale_reward": Setting(default="ignored", choices=("ignored", "running", "ref")),
        },
    ),
}
