"""The losses of the trainers, each written down on its own from the facts in docs/convert.md; complex-safe numpy.

A twin takes the log probabilities being trained (N, G, T), complex, and the batch, and returns each group's loss (N,).
"""

import numpy as np
from arena import reward_to_go


def least(a, b):
    return np.where(a.real <= b.real, a, b)


def clamp(x, low, high):
    return np.where(x.real < low, low, np.where(x.real > high, high, x))


def frozen(x):
    return x.real


def surrogate(ratio, advantage, low=0.2, high=0.2):
    return -least(ratio * advantage, clamp(ratio, 1 - low, 1 + high) * advantage)


def k3(logp, ref):
    return np.exp(ref - logp) + (logp - ref) - 1


def leave_one_out(reward):
    return reward - (reward.sum(1, keepdims=True) - reward) / (reward.shape[1] - 1)


def centred(reward):
    return reward - reward.mean(1, keepdims=True)


def total(values, batch, mode, longest=None):
    """Each group's part of the loss from token values (N, G, T)."""
    values = np.where(batch.mask, values, 0.0)
    if mode == "mean of token means":
        return (values.sum(-1) / batch.length).mean(-1)
    if mode == "token mean":  # over a batch so large that its number of tokens is what is expected
        return values.sum((-1, -2)) / (batch.mean(batch.length) * batch.mask.shape[1])
    if mode == "constant":
        return values.sum((-1, -2)) / (batch.mask.shape[1] * longest)
    raise AssertionError(mode)


# -------------------------------------------------------------------------------------------------------------- TRL


def trl_grpo(
    beta, scale_rewards="group", use_bias_correction_kl=True, loss_type="dapo", epsilon=0.2, epsilon_high=None
):
    high = epsilon if epsilon_high is None else epsilon_high

    def loss(logp, batch):
        advantage = centred(batch.reward)
        if scale_rewards == "group":
            advantage = advantage / (batch.reward.std(1, ddof=1, keepdims=True) + 1e-4)
        elif scale_rewards == "batch":
            mean = batch.mean(batch.reward)
            advantage = advantage / (np.sqrt(batch.mean((batch.reward - mean) ** 2)) + 1e-4)
        advantage = advantage[..., None]
        ratio = np.exp(logp - batch.old)
        kl = k3(logp, batch.ref)
        if use_bias_correction_kl:
            kl = kl * ratio
        if loss_type == "cispo":
            policy = -frozen(clamp(ratio, -np.inf, high)) * advantage * logp
        elif loss_type == "sapo":
            heat = np.where(advantage > 0, 1.0, 1.05)
            policy = -4 / heat / (1 + np.exp(-heat * (ratio - 1))) * advantage
        else:
            policy = surrogate(ratio, advantage, epsilon, high)
        mode = {"grpo": "mean of token means", "sapo": "mean of token means", "dr_grpo": "constant"}
        return total(policy + beta * kl, batch, mode.get(loss_type, "token mean"), longest=256)

    return loss


def trl_rloo(beta, normalize_advantages=False):
    def loss(logp, batch):
        reward = batch.reward - beta * (batch.old - batch.ref).sum(-1)
        advantage = leave_one_out(reward)
        if normalize_advantages:
            advantage = advantage / (np.sqrt(batch.mean(advantage**2)) + 1e-4)
        ratio = np.exp((logp - batch.old).sum(-1))
        return surrogate(ratio, advantage).mean(-1)

    return loss


def trl_dpo(beta, loss_type="sigmoid", label_scale=1.0):
    def loss(logp, batch):  # groups are pairs drawn from the reference
        log_ratio = (logp - batch.ref).sum(-1)
        if loss_type == "sigmoid_norm":
            log_ratio = log_ratio / batch.length
        first_wins = 1 / (1 + np.exp(-(batch.reward[:, 0] - batch.reward[:, 1]) / label_scale))
        margin = beta * (log_ratio[:, 0] - log_ratio[:, 1])
        return first_wins * np.log1p(np.exp(-margin)) + (1 - first_wins) * np.log1p(np.exp(margin))

    return loss


# ------------------------------------------------------------------------------------------------- PPO with a critic


def gae(batch, token_reward, lam):
    value = batch.critic(token_reward)
    following = np.concatenate([value[..., 1:], np.zeros_like(value[..., :1])], -1)
    surprise = np.where(batch.mask, token_reward + following - value, 0.0)
    advantage = np.zeros_like(surprise)
    carried = 0.0
    for t in reversed(range(surprise.shape[-1])):
        carried = surprise[..., t] + lam * carried
        advantage[..., t] = carried
    return advantage


def penalised(batch, coefficient, clip=np.inf):
    """Score on the last token minus coefficient times k1 on every token."""
    k1 = np.clip(batch.old - batch.ref, -clip, clip)
    return batch.at_last(batch.reward) - coefficient * np.where(batch.mask, k1, 0.0)


GREEDY = 0.3


def verl_reward(kl_coef, adv_estimator="gae"):
    def loss(logp, batch):
        token_reward = penalised(batch, kl_coef)
        if adv_estimator == "gae":
            advantage = batch.whitened(gae(batch, token_reward, lam=1.0))
        elif adv_estimator == "grpo":
            score = token_reward.sum(-1)
            advantage = (centred(score) / (score.std(1, ddof=1, keepdims=True) + 1e-6))[..., None]
        elif adv_estimator == "rloo":
            advantage = leave_one_out(token_reward.sum(-1))[..., None]
        elif adv_estimator == "remax":  # the baseline is the score of one greedy answer
            advantage = (token_reward.sum(-1) - GREEDY)[..., None]
        else:  # reinforce_plus_plus
            advantage = batch.whitened(reward_to_go(token_reward))
        return total(surrogate(np.exp(logp - batch.old), advantage), batch, "token mean")

    return loss


def verl_kl(kind, logp, ref):
    delta = logp - ref
    k2 = delta**2 / 2
    if kind in {"kl", "k1"}:
        return delta
    if kind in {"mse", "k2"}:
        return k2
    back = clamp(-delta, -20, 20)
    low_var = clamp(np.exp(back) - back - 1, -10, 10)
    return k2 - frozen(k2) + frozen(low_var) if kind == "k3+" else low_var


def verl_loss(kl_loss_coef, kl_loss_type="low_var_kl", adv_estimator="gae", norm_adv_by_std_in_grpo=True):
    def loss(logp, batch):
        if adv_estimator == "grpo":
            advantage = centred(batch.reward)
            if norm_adv_by_std_in_grpo:
                advantage = advantage / (batch.reward.std(1, ddof=1, keepdims=True) + 1e-6)
            advantage = advantage[..., None]
        elif adv_estimator == "rloo":
            advantage = leave_one_out(batch.reward)[..., None]
        elif adv_estimator == "remax":
            advantage = (batch.reward - GREEDY)[..., None]
        else:
            advantage = batch.whitened(gae(batch, batch.at_last(batch.reward), lam=1.0))
        kl = verl_kl(kl_loss_type, logp, batch.ref)
        return total(surrogate(np.exp(logp - batch.old), advantage) + kl_loss_coef * kl, batch, "token mean")

    return loss


def openrlhf(init_coef, advantage_estimator="gae", use_kl_loss=False, kl_estimator="k1"):
    def loss(logp, batch):
        shaped = {
            "rloo": leave_one_out,
            "reinforce_baseline": centred,
            "dr_grpo": centred,
            "group_norm": lambda r: centred(r) / (r.std(1, ddof=1, keepdims=True) + 1e-9),
        }.get(advantage_estimator, lambda r: r)(batch.reward)
        token_reward = batch.at_last(shaped)
        if not use_kl_loss:
            token_reward = token_reward - init_coef * np.where(batch.mask, np.clip(batch.old - batch.ref, -10, 10), 0.0)
        advantage = gae(batch, token_reward, lam=1.0) if advantage_estimator == "gae" else reward_to_go(token_reward)
        if advantage_estimator in {"gae", "reinforce", "reinforce_baseline"}:
            advantage = batch.whitened(advantage)
        values = surrogate(np.exp(logp - batch.old), advantage)
        if use_kl_loss:
            delta = logp - batch.ref
            kl = {"k1": delta, "k2": delta**2 / 2, "k3": np.exp(-delta) - 1 + delta}[kl_estimator]
            values = values + init_coef * clamp(kl, -10, 10)
        return total(values, batch, "token mean")

    return loss


def nemo_rl(penalty, kl_type="k3", normalize_rewards=True, leave_one=True, score_function=True):
    def loss(logp, batch):
        advantage = leave_one_out(batch.reward) if leave_one else centred(batch.reward)
        if normalize_rewards:
            group = batch.reward.shape[1]
            others = np.array([[j for j in range(group) if j != i] for i in range(group)])
            kept = batch.reward[:, others] if leave_one else batch.reward[:, None, :]
            sd = kept.std(-1, ddof=1)
            advantage = np.where(sd > 1e-9, advantage / np.where(sd > 1e-9, sd + 1e-6, 1.0), advantage)
        back = clamp(batch.ref - logp, -20, 20)
        kl = clamp({"k1": -back, "k2": back**2 / 2, "k3": np.exp(back) - 1 - back}[kl_type], -10, 10)
        if score_function:
            kl = kl * np.exp(logp - frozen(logp))
        values = surrogate(np.exp(logp - batch.old), advantage[..., None]) + penalty * kl
        return total(values, batch, "token mean")

    return loss


def slime(coefficient, use_kl_loss=True, kl_loss_type="k1", use_unbiased_kl=False, estimator="grpo", std=True):
    def loss(logp, batch):
        if estimator == "ppo":
            token_reward = penalised(batch, 0.0 if use_kl_loss else coefficient)
            advantage = gae(batch, token_reward, lam=1.0)
        elif estimator == "reinforce_plus_plus":
            advantage = reward_to_go(penalised(batch, 0.0 if use_kl_loss else coefficient))
        else:
            advantage = centred(batch.reward)
            if std:
                advantage = advantage / (batch.reward.std(1, ddof=1, keepdims=True) + 1e-6)
            advantage = advantage[..., None]
        values = surrogate(np.exp(logp - batch.old), advantage)
        if use_kl_loss:
            delta = logp - batch.ref
            kl = {"k1": delta, "k2": delta**2 / 2}.get(kl_loss_type, np.exp(-delta) - 1 + delta)
            if use_unbiased_kl:
                kl = kl * np.exp(logp - batch.old)
            values = values + coefficient * kl
        return total(values, batch, "mean of token means")

    return loss


def open_instruct(beta, kl_estimator=2, standard=False):
    def loss(logp, batch):
        advantage = centred(batch.reward)
        if standard:
            advantage = advantage / (batch.reward.std(1, ddof=0, keepdims=True) + 1e-8)
        delta = clamp(logp - batch.ref, -40, 40)
        ratio = np.exp(logp - batch.old)
        kl = (delta, delta**2 / 2, np.exp(-delta) - 1 + delta, ratio * delta)[kl_estimator]
        values = -least(ratio * advantage[..., None], clamp(ratio, 0.8, 1.272) * advantage[..., None])
        return total(values + beta * kl, batch, "token mean")

    return loss


def trlx(init_kl_coef, running_sd=1.0):
    def loss(logp, batch):
        scaled = penalised(batch, init_kl_coef) + batch.at_last(batch.reward / running_sd - batch.reward)
        advantage = batch.whitened(gae(batch, scaled, lam=0.95))
        return total(surrogate(np.exp(logp - batch.old), advantage), batch, "token mean")

    return loss
