"""The losses of six trainers, written down from their formulas, for `kleash conformance trainer_losses:NAME`.

    cd examples
    kleash conformance trainer_losses:verl --beta 0.5
    python trainer_losses.py                              the table of docs/conformance.md

Ours, on-policy and without what shows only off-policy (dual clipping, truncated ratios). What each trainer does was
read in its source in July and August 2026; docs/convert.md names the releases.
"""

import torch


def _advantage(reward, group_size, *, scale, others=False):
    groups = reward.reshape(-1, group_size)
    centred = groups - groups.mean(1, keepdim=True)
    if others:  # the mean of the others: leave one out
        centred = centred * group_size / (group_size - 1)
    return (centred / (groups.std(1, keepdim=True) + 1e-6) if scale else centred).reshape(-1, 1)


def _k3(logp, ref_logp, *, most=20.0, result=10.0):
    x = torch.clamp(ref_logp - logp, -most, most)
    return torch.clamp(torch.exp(x) - x - 1, -result, result)


def _by_token(each, mask):
    return (each * mask).sum() / mask.sum()


def _by_answer(each, mask):
    return ((each * mask).sum(1) / mask.sum(1)).mean()


def verl(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    """`use_kl_loss`, `low_var_kl`, `loss_agg_mode: token-mean`, GRPO's advantages over their SD."""
    ratio = torch.exp(logp - old_logp)
    return _by_token(-ratio * _advantage(reward, group_size, scale=True) + beta * _k3(logp, ref_logp), mask)


def skyrl(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    """`use_kl_loss` with k3, its defaults, GRPO's advantages over their SD, a token mean."""
    ratio = torch.exp(logp - old_logp)
    k3 = torch.exp(ref_logp - logp) - 1 + logp - ref_logp
    return _by_token(-ratio * _advantage(reward, group_size, scale=True) + beta * k3, mask)


def skyrl_before_march_2026(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    """The same with the KL computed without a gradient (NovaSky-AI/SkyRL 1340)."""
    ratio = torch.exp(logp - old_logp)
    with torch.no_grad():
        k3 = torch.exp(ref_logp - logp) - 1 + logp - ref_logp
    return _by_token(-ratio * _advantage(reward, group_size, scale=True) + beta * k3, mask)


def openrlhf(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    """KL in the reward of each token, k1 clamped to 10, summed to the end; advantages of `rloo`."""
    kl = torch.clamp(logp.detach() - ref_logp, -10, 10) * mask
    to_go = kl.flip(1).cumsum(1).flip(1)
    advantage = _advantage(reward, group_size, scale=False, others=True) - beta * to_go
    return _by_token(-torch.exp(logp - old_logp) * advantage, mask)


def nemo_rl(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    """k3 times exp(x - stop(x)), since PR 2506: with the score-function term; leave-one-out over the SD."""
    score = torch.exp(logp - logp.detach())
    advantage = _advantage(reward, group_size, scale=True, others=True)
    return _by_token(-torch.exp(logp - old_logp) * advantage + beta * score * _k3(logp, ref_logp), mask)


def slime(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    """`--use-kl-loss --kl-loss-type low_var_kl`, a mean over tokens of each answer, GRPO's advantages over their SD."""
    ratio = torch.exp(logp - old_logp)
    k3 = _k3(logp, ref_logp, most=torch.inf)
    return _by_answer(-ratio * _advantage(reward, group_size, scale=True) + beta * k3, mask)


def slime_default_type(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    """The same with the default `--kl-loss-type`, k1."""
    ratio = torch.exp(logp - old_logp)
    return _by_answer(-ratio * _advantage(reward, group_size, scale=True) + beta * (logp - ref_logp), mask)


def open_instruct(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
    """Estimator 2 (k3, its input clamped to 40), centred advantages, a token mean."""
    ratio = torch.exp(logp - old_logp)
    k3 = _k3(logp, ref_logp, most=40.0, result=torch.inf)
    return _by_token(-ratio * _advantage(reward, group_size, scale=False) + beta * k3, mask)


LOSSES = (verl, openrlhf, skyrl, skyrl_before_march_2026, nemo_rl, slime, slime_default_type, open_instruct)


def table():
    """A row of Markdown per loss, beta .5, groups of 4: the tilt's beta, also with scores ten times as large."""
    import kleash

    rows = [
        "| loss | gradient of the penalty | tilt's beta at .5 | scores x 10 | groups of 2 | fault |",
        "|---|---|---|---|---|---|",
    ]
    for loss in LOSSES:
        found = kleash.conformance(loss, beta=0.5)
        cells = [f"{v.tilt_beta:.3g}" if v.tilt_beta is not None else "none" for v in found.variants[:3]] or [
            "none"
        ] * 3
        codes = ", ".join(fault.code for fault in found.faults)
        rows.append(f"| `{loss.__name__}` | {found.gradient} | {' | '.join(cells)} | {codes} |".replace("|  |", "| |"))
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
