"""Honest losses and broken ones, written down from their formulas; what the tests and the documentation share."""

import torch


def advantages(reward, group_size, *, scale=False, own=True):
    """Scores less their group's mean (``own``: the answer's own among them), over its SD."""
    groups = reward.reshape(-1, group_size)
    mean = groups.mean(1, keepdim=True)
    centred = groups - mean if own else (groups - mean) * group_size / (group_size - 1)
    if scale:
        centred = centred / (groups.std(1, keepdim=True) + 1e-4)
    return centred.reshape(-1)


def k1(logp, ref):
    return logp - ref


def k2(logp, ref):
    return (logp - ref) ** 2 / 2


def k3(logp, ref):
    return torch.exp(ref - logp) - 1 + logp - ref


def ratio(logp, old):
    return torch.exp(logp - old)


def summed(each, mask):
    return (each * mask).sum() / mask.shape[0]


def by_answer(each, mask):
    return ((each * mask).sum(1) / mask.sum(1)).mean()


def by_token(each, mask):
    return (each * mask).sum() / mask.sum()


def policy_term(logp, old, advantage):
    return -ratio(logp, old) * advantage[:, None]


# ------------------------------------------------------------------------------------------------------------- honest


def rloo_k1_in_reward(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = (k1(logp.detach(), ref_logp) * mask).sum(1)
    return summed(policy_term(logp, old_logp, advantages(reward - beta * kl, group_size, own=False)), mask)


def centred_k2(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    term = policy_term(logp, old_logp, advantages(reward, group_size, own=False)) + beta * k2(logp, ref_logp)
    return summed(term, mask)


def grpo_k3(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    term = policy_term(logp, old_logp, advantages(reward, group_size, scale=True)) + beta * k3(logp, ref_logp)
    return by_answer(term, mask)


def dapo_k3(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    term = policy_term(logp, old_logp, advantages(reward, group_size, scale=True)) + beta * k3(logp, ref_logp)
    return by_token(term, mask)


def k3_with_ratio(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = ratio(logp, old_logp) * k3(logp, ref_logp)
    return summed(policy_term(logp, old_logp, advantages(reward, group_size)) + beta * kl, mask)


def abs_in_loss(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    return summed(policy_term(logp, old_logp, advantages(reward, group_size)) + beta * (logp - ref_logp).abs(), mask)


def k3_clamped_at_20(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    x = torch.clamp(ref_logp - logp, -20, 20)
    return summed(policy_term(logp, old_logp, advantages(reward, group_size)) + beta * (torch.exp(x) - x - 1), mask)


def k1_as_a_mean(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = (k1(logp.detach(), ref_logp) * mask).sum(1) / mask.sum(1)
    return summed(policy_term(logp, old_logp, advantages(reward - beta * kl, group_size, own=False)), mask)


def clipped_k2(logp, old_logp, ref_logp, reward, mask, *, beta, group_size, epsilon=0.2):
    a = advantages(reward, group_size)[:, None]
    r = ratio(logp, old_logp)
    term = -torch.minimum(r * a, torch.clamp(r, 1 - epsilon, 1 + epsilon) * a)
    return by_token(term + beta * k2(logp, ref_logp), mask)


def k1_of_each_token_in_reward(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = k1(logp.detach(), ref_logp) * mask
    to_go = kl.flip(1).cumsum(1).flip(1)
    return summed(-ratio(logp, old_logp) * (advantages(reward, group_size, own=False)[:, None] - beta * to_go), mask)


def in_single_precision(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    single = [x.float() for x in (logp, old_logp, ref_logp, reward)]
    return grpo_k3(*single, mask.to(dtype=torch.float32), beta=beta, group_size=group_size)


def scaled_down(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    return 1e-6 * dapo_k3(logp, old_logp, ref_logp, reward, mask, beta=beta, group_size=group_size)


def standardised_k1_in_reward(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = (k1(logp.detach(), ref_logp) * mask).sum(1)
    groups = (reward - beta * kl).reshape(-1, group_size)
    advantage = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-8)
    return summed(policy_term(logp, old_logp, advantage.reshape(-1)), mask)


def huber(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    term = policy_term(logp, old_logp, advantages(reward, group_size))
    return by_token(term + beta * torch.nn.functional.huber_loss(logp, ref_logp, reduction="none"), mask)


def k3_in_reward(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = (k3(logp.detach(), ref_logp) * mask).sum(1)
    return summed(policy_term(logp, old_logp, advantages(reward - beta * kl, group_size, own=False)), mask)


HONEST = (rloo_k1_in_reward, centred_k2, grpo_k3, dapo_k3, k3_with_ratio, abs_in_loss, k3_clamped_at_20, k1_as_a_mean,
          clipped_k2, k1_of_each_token_in_reward, in_single_precision, scaled_down, standardised_k1_in_reward,
          huber)  # fmt: skip

# ------------------------------------------------------------------------------------------------------------- broken


def detached(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    term = policy_term(logp, old_logp, advantages(reward, group_size)) + beta * k3(logp.detach(), ref_logp)
    return by_token(term, mask)


def wrong_sign(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    term = policy_term(logp, old_logp, advantages(reward, group_size)) - beta * k3(logp, ref_logp)
    return by_token(term, mask)


def to_the_sampler(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    term = policy_term(logp, old_logp, advantages(reward, group_size)) + beta * k3(logp, old_logp)
    return by_token(term, mask)


def always_clamped(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = torch.clamp(k3(logp, ref_logp), max=0.01)
    return by_token(policy_term(logp, old_logp, advantages(reward, group_size)) + beta * kl, mask)


def clamped_from_below(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = torch.clamp(k3(logp, ref_logp), min=10.0)
    return by_token(policy_term(logp, old_logp, advantages(reward, group_size)) + beta * kl, mask)


def clamped_before_it_is_squared(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = torch.clamp(logp - ref_logp, -1e-4, 1e-4) ** 2 / 2
    return by_token(policy_term(logp, old_logp, advantages(reward, group_size)) + beta * kl, mask)


def clamped_on_one_side(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = (torch.clamp(k1(logp.detach(), ref_logp), max=0.0) * mask).sum(1)
    return summed(policy_term(logp, old_logp, advantages(reward - beta * kl, group_size, own=False)), mask)


def rolled(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = k2(logp, torch.roll(ref_logp, 1, dims=1))
    return summed(policy_term(logp, old_logp, advantages(reward, group_size)) + beta * kl, mask)


def paid_for_drift(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = (k1(logp.detach(), ref_logp) * mask).sum(1)
    return summed(policy_term(logp, old_logp, advantages(reward + beta * kl, group_size, own=False)), mask)


def reward_tied_to_the_sampler(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = (k1(logp.detach(), old_logp) * mask).sum(1)
    return summed(policy_term(logp, old_logp, advantages(reward - beta * kl, group_size, own=False)), mask)


def reference_of_zeros(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = k2(logp, torch.zeros_like(ref_logp))
    return by_token(policy_term(logp, old_logp, advantages(reward, group_size)) + beta * kl, mask)


def shifted(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    both = mask[:, 1:] * mask[:, :-1]
    kl = (k3(logp[:, 1:], ref_logp[:, :-1]) * both).sum() / both.sum().clamp(min=1)
    return by_token(policy_term(logp, old_logp, advantages(reward, group_size)), mask) + beta * kl


def coefficient_not_used(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    return by_token(policy_term(logp, old_logp, advantages(reward, group_size)), mask)


def mask_left_out(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    term = by_token(policy_term(logp, old_logp, advantages(reward, group_size)), mask)
    return term + beta * k3(logp, ref_logp).mean()


def k1_in_loss(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    term = policy_term(logp, old_logp, advantages(reward, group_size)) + beta * k1(logp, ref_logp)
    return by_token(term, mask)


def zeros_in_the_reward(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = (logp.detach() * mask).sum(1)
    return summed(policy_term(logp, old_logp, advantages(reward - beta * kl, group_size, own=False)), mask)


def tokens_clamped_in_the_reward(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = (torch.clamp(k1(logp.detach(), ref_logp), -0.05, 0.05) * mask).sum(1)
    return summed(policy_term(logp, old_logp, advantages(reward - beta * kl, group_size, own=False)), mask)


def answer_clamped_in_the_reward(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = torch.clamp((k1(logp.detach(), ref_logp) * mask).sum(1), -0.1, 0.1)
    return summed(policy_term(logp, old_logp, advantages(reward - beta * kl, group_size, own=False)), mask)


def coefficient_as_a_switch(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    term = policy_term(logp, old_logp, advantages(reward, group_size))
    return by_token(term + 0.1 * (beta > 0) * k3(logp, ref_logp), mask)


def shifted_and_divided_by_nothing(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    kl = (k2(logp[:, :-1], ref_logp[:, 1:]) * mask[:, 1:]).sum() / mask[:, 1:].sum()
    return by_token(policy_term(logp, old_logp, advantages(reward, group_size)), mask) + beta * kl


BROKEN = {
    detached: "DETACHED",
    wrong_sign: "SIGN",
    to_the_sampler: "SAMPLER",
    always_clamped: "CLAMPED",
    clamped_from_below: "CLAMPED",
    clamped_before_it_is_squared: "CLAMPED",
    clamped_on_one_side: "CLAMPED",
    rolled: "SHIFTED",
    paid_for_drift: "SIGN",
    reward_tied_to_the_sampler: "SAMPLER",
    reference_of_zeros: "ZERO_REFERENCE",
    shifted: "SHIFTED",
    coefficient_not_used: "UNUSED_COEFFICIENT",
    mask_left_out: "UNMASKED",
    k1_in_loss: "NO_PULL",
    zeros_in_the_reward: "ZERO_REFERENCE",
    tokens_clamped_in_the_reward: "CLAMPED",
    answer_clamped_in_the_reward: "CLAMPED",
    coefficient_as_a_switch: "UNUSED_COEFFICIENT",
    shifted_and_divided_by_nothing: "SHIFTED",
}
