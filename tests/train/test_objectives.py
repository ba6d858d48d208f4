"""Losses against what they claim to be the gradient of, by enumeration; pieces against the whole."""

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom

torch = pytest.importorskip("torch")

from kleash.errors import OptionError, ShapeError  # noqa: E402
from kleash.train.objectives import Scores, dpo_loss, grpo_loss, rloo_loss, score  # noqa: E402

VOCABULARY, LENGTH = 4, 3  # token 0 ends an answer
DOUBLE = torch.float64


class SmallCook(torch.nn.Module):
    """A recurrent policy over a tiny vocabulary: shared parameters across prefixes, as in a language model."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.start = torch.nn.Parameter(scale * torch.randn(6, dtype=DOUBLE))
        self.move = torch.nn.Parameter(scale * torch.randn(VOCABULARY, 6, dtype=DOUBLE))
        self.mix = torch.nn.Parameter(scale * torch.randn(6, 6, dtype=DOUBLE) / 2)
        self.out = torch.nn.Parameter(scale * torch.randn(6, VOCABULARY, dtype=DOUBLE))

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        """States (..., T, 6) that predict tokens (..., T)."""
        state = self.start.expand(*tokens.shape[:-1], 6)
        states = [state]
        for position in range(tokens.shape[-1] - 1):
            state = torch.tanh(state @ self.mix + self.move[tokens[..., position]])
            states.append(state)
        return torch.stack(states, dim=-2)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.out


def all_answers() -> tuple[torch.Tensor, torch.Tensor]:
    rows = [
        (*body, 0, *[0] * (LENGTH - n - 1)) for n in range(LENGTH) for body in itertools.product((1, 2, 3), repeat=n)
    ]
    full = list(itertools.product((1, 2, 3), repeat=LENGTH))
    tokens = torch.tensor(rows + full)
    ended = (tokens == 0).cumsum(1) - (tokens == 0).long()
    return tokens, ended == 0


TOKENS, MASK = all_answers()
N = len(TOKENS)
REWARD = torch.from_numpy(np.random.default_rng(5).normal(1.0, 2.0, N))


def scored(policy: SmallCook, reference: SmallCook, chunk: int | None = None) -> Scores:
    """Every answer once, as one policy's batch: (1, N, T)."""
    tokens = TOKENS[None]
    return score(
        policy.hidden(tokens),
        policy.head,
        tokens,
        ref_hidden=reference.hidden(tokens).detach(),
        ref_head=reference.head,
        chunk=chunk,
    )


def pick(scores: Scores, rows: torch.Tensor) -> Scores:
    """Batches (G, B) of answers out of the list."""
    return Scores(logp=scores.logp[0][rows], ref_logp=scores.ref_logp[0][rows], kl=scores.kl[0][rows])


def gradient(loss: torch.Tensor, policy: SmallCook) -> torch.Tensor:
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(policy.parameters()), retain_graph=True)])


def log_probabilities(scores: Scores) -> tuple[torch.Tensor, torch.Tensor]:
    return (scores.logp[0] * MASK).sum(1), (scores.ref_logp[0] * MASK).sum(1)


@pytest.fixture
def cooks() -> tuple[SmallCook, SmallCook]:
    return SmallCook(0), SmallCook(1)


def every_pair() -> torch.Tensor:
    return torch.cartesian_prod(torch.arange(N), torch.arange(N))


class TestScore:
    def test_probabilities_sum_to_one_and_kl_is_that_of_answers(self, cooks: tuple[SmallCook, SmallCook]) -> None:
        scores = scored(*cooks)
        log_p, log_q = log_probabilities(scores)
        assert log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-12)
        by_position = (log_p.exp() * (scores.kl[0] * MASK).sum(1)).sum()
        assert by_position.item() == pytest.approx((log_p.exp() * (log_p - log_q)).sum().item(), abs=1e-12)

    def test_in_pieces_as_in_one(self, cooks: tuple[SmallCook, SmallCook]) -> None:
        policy, reference = cooks
        whole, pieces = scored(policy, reference), scored(policy, reference, chunk=7)
        weight = torch.from_numpy(np.random.default_rng(0).normal(size=(2, *whole.kl.shape)))
        for name in ("logp", "ref_logp", "kl"):
            torch.testing.assert_close(getattr(whole, name), getattr(pieces, name), rtol=1e-12, atol=1e-12)
        one, many = (gradient((weight[0] * s.logp + weight[1] * s.kl).sum(), policy) for s in (whole, pieces))
        torch.testing.assert_close(one, many, rtol=1e-10, atol=1e-12)

    def test_gradient_is_that_of_the_plain_form(self, cooks: tuple[SmallCook, SmallCook]) -> None:
        policy, reference = cooks
        log_p = policy.head(policy.hidden(TOKENS)).log_softmax(-1)
        log_q = reference.head(reference.hidden(TOKENS)).log_softmax(-1).detach()
        plain = ((log_p.exp() * (log_p - log_q)).sum(-1) * MASK).sum()
        mine = (scored(policy, reference).kl[0] * MASK).sum()
        assert mine.item() == pytest.approx(plain.item(), rel=1e-12)
        torch.testing.assert_close(gradient(mine, policy), gradient(plain, policy), rtol=1e-10, atol=1e-12)

    def test_float32_keeps_a_tiny_kl(self) -> None:
        rng = np.random.default_rng(1)
        logits = rng.normal(size=(1, 1, 50, 400))
        moved = logits + 1e-4 * rng.normal(size=logits.shape)
        log_p, log_q = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (moved, logits))
        exact = (np.exp(log_p) * (log_p - log_q)).sum(-1)
        single = [torch.from_numpy(x).float() for x in (moved, logits)]
        tokens = torch.zeros(1, 1, 50, dtype=torch.long)
        kl = score(single[0], lambda h: h, tokens, ref_hidden=single[1], ref_head=lambda h: h).kl
        assert (kl >= 0).all()
        np.testing.assert_allclose(kl.numpy(), exact, rtol=0.05)  # sum p (log p - log q) is off by its own size here

    def test_far_apart_is_finite(self) -> None:
        logits, reference = torch.tensor([[[[0.0, 400.0]]]]), torch.tensor([[[[0.0, -400.0]]]])
        tokens = torch.zeros(1, 1, 1, dtype=torch.long)
        scores = score(logits, lambda h: h, tokens, ref_hidden=reference, ref_head=lambda h: h)
        assert scores.kl.item() == pytest.approx(400.0)
        assert scores.logp.item() == pytest.approx(-400.0)

    def test_shapes_are_checked(self) -> None:
        hidden = torch.zeros(1, 2, 3, 4)
        with pytest.raises(ShapeError, match="hidden states"):
            score(hidden, lambda h: h, torch.zeros(1, 2, 2, dtype=torch.long), ref_hidden=hidden, ref_head=lambda h: h)


@pytest.mark.parametrize("penalty", ["k1", "own-k1", "full"])
@pytest.mark.parametrize("beta", [0.0, 0.3, 5.0])
def test_expected_rloo_gradient_is_that_of_the_objective(
    cooks: tuple[SmallCook, SmallCook], penalty: str, beta: float
) -> None:
    policy, reference = cooks
    scores, pairs = scored(policy, reference), every_pair()
    log_p, log_q = log_probabilities(scores)
    weight = (log_p[pairs[:, 0]] + log_p[pairs[:, 1]]).exp().detach()
    coefficient = torch.full((len(pairs),), beta, dtype=DOUBLE)
    loss = rloo_loss(
        pick(scores, pairs),
        MASK[pairs],
        REWARD[pairs],
        torch.zeros(2, dtype=torch.long),
        coefficient,
        penalty=penalty,  # type: ignore[arg-type]
    )
    objective = (log_p.exp() * (REWARD - beta * (log_p - log_q))).sum()
    expected = -gradient(objective, policy) / (1.0 + beta)
    torch.testing.assert_close(gradient((weight * loss).sum(), policy), expected, rtol=0, atol=1e-9)


def test_rloo_siblings_are_of_one_prompt() -> None:
    zero = torch.zeros(1, 4, 1, dtype=DOUBLE)
    logp = zero.clone().requires_grad_()
    scores = Scores(logp=logp, ref_logp=zero, kl=zero)
    reward = torch.tensor([[1.0, 3.0, 10.0, 20.0]], dtype=DOUBLE)
    loss = rloo_loss(
        scores, torch.ones(1, 4, 1, dtype=torch.bool), reward, torch.tensor([0, 0, 1, 1]), torch.zeros(1).double()
    )
    (grad,) = torch.autograd.grad(loss.sum(), logp)
    assert (-4 * grad).ravel().tolist() == [-2.0, 2.0, -10.0, 10.0]
    with pytest.raises(OptionError, match="answers per prompt"):
        rloo_loss(
            scores, torch.ones(1, 4, 1, dtype=torch.bool), reward, torch.tensor([0, 0, 0, 1]), torch.zeros(1).double()
        )


def test_policies_do_not_touch_each_other() -> None:
    rng = np.random.default_rng(3)
    logp, ref, kl = (torch.from_numpy(rng.normal(size=(3, 6, 2))) for _ in range(3))
    logp.requires_grad_()
    reward, beta = torch.from_numpy(rng.normal(size=(3, 6))), torch.tensor([0.5, 1.0, 2.0], dtype=DOUBLE)
    mask, prompt = torch.ones(3, 6, 2, dtype=torch.bool), torch.tensor([0, 0, 0, 1, 1, 1])
    for loss in (rloo_loss, grpo_loss):
        together = loss(Scores(logp=logp, ref_logp=ref, kl=kl), mask, reward, prompt, beta)
        (grad,) = torch.autograd.grad(together[1], logp)
        assert (grad[[0, 2]] == 0).all()
        alone = loss(Scores(logp=logp[1:2], ref_logp=ref[1:2], kl=kl[1:2]), mask[1:2], reward[1:2], prompt, beta[1:2])
        assert alone.item() == together[1].item()


def test_stale_batch_clips_what_pulls_further() -> None:
    logp = torch.log(torch.tensor([[[0.6], [0.6]]], dtype=DOUBLE)).requires_grad_()
    old, mask = torch.log(torch.tensor([[[0.4], [0.4]]], dtype=DOUBLE)), torch.ones(1, 2, 1, dtype=torch.bool)
    scores = Scores(logp=logp, ref_logp=old, kl=torch.zeros(1, 2, 1, dtype=DOUBLE))
    reward, prompt, beta = torch.tensor([[1.0, 0.0]], dtype=DOUBLE), torch.zeros(2, dtype=torch.long), torch.zeros(1)
    free = rloo_loss(scores, mask, reward, prompt, beta.double(), old_logp=old)
    clipped = rloo_loss(scores, mask, reward, prompt, beta.double(), old_logp=old, clip=0.2)
    assert torch.autograd.grad(free.sum(), logp)[0].ravel().tolist() == pytest.approx([-0.75, 0.75])
    assert torch.autograd.grad(clipped.sum(), logp)[0].ravel().tolist() == pytest.approx([0.0, 0.75])
    with pytest.raises(OptionError, match="old_logp"):
        rloo_loss(scores, mask, reward, prompt, beta.double(), clip=0.2)


class TestGRPO:
    @pytest.mark.parametrize("kl_in_loss", ["k3-corrected", "k3"])
    def test_penalty_alone_is_a_kl_at_each_prefix(self, cooks: tuple[SmallCook, SmallCook], kl_in_loss: str) -> None:
        policy, reference = cooks
        scores, pairs = scored(policy, reference), torch.arange(N)[:, None].repeat(1, 2)
        weight = log_probabilities(scores)[0].exp().detach()
        loss = grpo_loss(
            pick(scores, pairs),
            MASK[pairs],
            torch.ones(N, 2, dtype=DOUBLE),
            torch.zeros(2, dtype=torch.long),
            torch.full((N,), 0.7, dtype=DOUBLE),
            kl_in_loss=kl_in_loss,  # type: ignore[arg-type]
        )
        log_p = policy.head(policy.hidden(TOKENS)).log_softmax(-1)
        log_q = reference.head(reference.hidden(TOKENS)).log_softmax(-1).detach()
        there, back = (log_p.exp() * (log_p - log_q)).sum(-1), (log_q.exp() * (log_q - log_p)).sum(-1)
        kl = there if kl_in_loss == "k3-corrected" else back
        expected = 0.7 * (weight * (kl * MASK).sum(1)).sum()
        mine = gradient((weight * loss).sum(), policy)
        torch.testing.assert_close(mine, gradient(expected, policy), rtol=0, atol=1e-9)
        other = 0.7 * (weight * ((back if kl_in_loss == "k3-corrected" else there) * MASK).sum(1)).sum()
        assert not torch.allclose(mine, gradient(other, policy), atol=1e-3)

    @pytest.mark.parametrize(
        ("kl_in_loss", "size", "root"),
        [
            ("k3-corrected", 2, 0.336),
            ("k3-corrected", 8, 0.591),
            ("k3-corrected", 64, 0.669),
            ("k3", 8, 0.618),
            ("k3", 16, 0.646),
        ],
    )
    def test_root_on_two_answers_for_finite_groups(self, kl_in_loss: str, size: int, root: float) -> None:
        # arms: answer 1 has reward 1, reference .2, beta 1; every number of ones in a group, by its probability
        ones = torch.arange(size + 1)
        tokens = (torch.arange(size)[None, :] < ones[:, None]).long()[:, :, None]
        reference = torch.log(torch.tensor([0.8, 0.2], dtype=DOUBLE)).expand(size + 1, size, 1, 2)

        def slope(p: float) -> float:
            logit = torch.tensor(np.log(p / (1 - p)), dtype=DOUBLE, requires_grad=True)
            logits = torch.stack([torch.zeros_like(logit), logit]).expand(size + 1, size, 1, 2)
            scores = score(logits, lambda h: h, tokens, ref_hidden=reference, ref_head=lambda h: h)
            loss = grpo_loss(
                scores,
                torch.ones_like(tokens, dtype=torch.bool),
                tokens[:, :, 0].double(),
                torch.zeros(size, dtype=torch.long),
                torch.ones(size + 1, dtype=DOUBLE),
                kl_in_loss=kl_in_loss,  # type: ignore[arg-type]
            )
            weight = torch.from_numpy(binom.pmf(np.arange(size + 1), size, p))
            return torch.autograd.grad((weight * loss).sum(), logit)[0].item()

        assert brentq(slope, 0.2, 0.75) == pytest.approx(root, abs=6e-4)

    def test_without_scaling_and_corrected_one_token_is_the_tilt(self) -> None:
        p = 0.2 * np.e / (0.8 + 0.2 * np.e)
        logit = torch.tensor(np.log(p / (1 - p)), dtype=DOUBLE, requires_grad=True)
        tokens = torch.tensor([[[a], [b]] for a in (0, 1) for b in (0, 1)])
        logits = torch.stack([torch.zeros_like(logit), logit]).expand(4, 2, 1, 2)
        reference = torch.log(torch.tensor([0.8, 0.2], dtype=DOUBLE)).expand(4, 2, 1, 2)
        scores = score(logits, lambda h: h, tokens, ref_hidden=reference, ref_head=lambda h: h)
        loss = grpo_loss(
            scores,
            torch.ones(4, 2, 1, dtype=torch.bool),
            tokens[:, :, 0].double(),
            torch.zeros(2, dtype=torch.long),
            0.5 * torch.ones(4, dtype=DOUBLE),  # half a beta: the mean of two answers holds half of one's own reward
            scale_rewards="none",
            kl_in_loss="k3-corrected",
        )
        rate = torch.tensor([1 - p, p], dtype=DOUBLE)
        weight = rate[tokens[:, 0, 0]] * rate[tokens[:, 1, 0]]
        assert torch.autograd.grad((weight * loss).sum(), logit)[0].item() == pytest.approx(0.0, abs=1e-12)


class TestDPO:
    LOG_Q = torch.log(torch.tensor([0.5, 0.3, 0.2], dtype=DOUBLE))
    R = torch.tensor([0.3, 1.1, -0.4], dtype=DOUBLE)
    PAIRS = torch.cartesian_prod(torch.arange(3), torch.arange(3))

    def slope(self, logits: torch.Tensor, beta: float, *, bernoulli: bool) -> torch.Tensor:
        """Gradient of the expected loss, answers drawn uniformly, labels by their probability."""
        logits = logits.clone().requires_grad_()
        table = logits.expand(9, 2, 1, 3)
        tokens = self.PAIRS[:, :, None]
        scores = score(table, lambda h: h, tokens, ref_hidden=self.LOG_Q.expand(9, 2, 1, 3), ref_head=lambda h: h)
        reward = self.R[self.PAIRS]
        rest = (torch.ones(9, 2, 1, dtype=torch.bool), reward, torch.zeros(2, dtype=torch.long))
        coefficient = torch.full((9,), beta, dtype=DOUBLE)
        if not bernoulli:
            loss = dpo_loss(scores, *rest, coefficient, uniform=None)
        else:
            first = dpo_loss(scores, *rest, coefficient, uniform=torch.zeros(9, 1, dtype=DOUBLE))
            second = dpo_loss(scores, *rest, coefficient, uniform=torch.ones(9, 1, dtype=DOUBLE))
            wins = torch.sigmoid(reward[:, 0] - reward[:, 1])
            loss = wins * first + (1 - wins) * second
        return torch.autograd.grad(loss.mean(), logits)[0]

    @pytest.mark.parametrize("beta", [0.2, 1.0, 4.0])
    def test_bernoulli_labels_have_the_tilt_as_root(self, beta: float) -> None:
        tilt = self.LOG_Q + self.R / beta
        assert self.slope(tilt, beta, bernoulli=True).abs().max().item() < 1e-12
        assert self.slope(tilt + torch.tensor([0.1, 0, 0]), beta, bernoulli=True).abs().max().item() > 1e-4

    def test_hard_labels_have_no_finite_root(self) -> None:
        for scale in (1.0, 10.0, 100.0, 300.0):
            slope = self.slope(self.LOG_Q + scale * self.R, 1.0, bernoulli=False)
            assert slope[1].item() < 0.0  # the best answer always wants more
            assert slope[2].item() > 0.0

    def test_label_is_drawn_by_the_uniform_number(self) -> None:
        chance = torch.sigmoid(torch.tensor(0.8, dtype=DOUBLE)).item()
        logp = torch.zeros(2, 2, 1, dtype=DOUBLE, requires_grad=True)
        scores = Scores(logp=logp, ref_logp=torch.zeros(2, 2, 1).double(), kl=torch.zeros(2, 2, 1).double())
        uniform = torch.tensor([[chance - 1e-6], [chance + 1e-6]], dtype=DOUBLE)
        reward = torch.tensor([[1.1, 0.3]] * 2, dtype=DOUBLE)
        loss = dpo_loss(
            scores,
            torch.ones(2, 2, 1, dtype=torch.bool),
            reward,
            torch.zeros(2, dtype=torch.long),
            torch.ones(2).double(),
            uniform=uniform,
        )
        (grad,) = torch.autograd.grad(loss.sum(), logp)
        assert grad[:, 0, 0].tolist() == [-0.5, 0.5]

    def test_refusals(self) -> None:
        zero = torch.zeros(1, 2, 1)
        scores, mask = Scores(logp=zero, ref_logp=zero, kl=zero), torch.ones(1, 2, 1, dtype=torch.bool)
        with pytest.raises(OptionError, match="above 0 for dpo"):
            dpo_loss(scores, mask, zero[:, :, 0], torch.tensor([0, 0]), torch.zeros(1), uniform=None)
        with pytest.raises(ShapeError, match="across prompts"):
            dpo_loss(scores, mask, zero[:, :, 0], torch.tensor([0, 1]), torch.ones(1), uniform=None)


_MEASURE = """
import json, resource, sys, torch
from kleash.train.objectives import score
chunk = int(sys.argv[1])
torch.manual_seed(0)
hidden, ref = torch.randn(1, 1, 2048, 32, requires_grad=True), torch.randn(1, 1, 2048, 32)
weight = (0.1 * torch.randn(32, 50_000)).requires_grad_()
tokens = torch.randint(50_000, (1, 1, 2048))
weight.grad, hidden.grad = torch.zeros_like(weight), torch.zeros_like(hidden)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
(torch.randn(1, 8, 32) @ weight.detach()).sum()
before = peak()
if chunk:
    s = score(hidden, lambda h: h @ weight, tokens, ref_hidden=ref, ref_head=lambda h: h @ weight.detach())
    logp, kl = s.logp, s.kl
else:
    log_p, log_q = (hidden @ weight).log_softmax(-1), (ref @ weight.detach()).log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    logp = log_p.gather(-1, tokens[..., None])[..., 0]
(logp.mean() + kl.mean()).backward()
out = {"extra": peak() - before, "logp": logp.mean().item(), "kl": kl.mean().item()}
out |= {"d_hidden": hidden.grad.flatten()[:200].tolist(), "d_weight": weight.grad[:, :20].flatten().tolist()}
print(json.dumps(out))
"""


@pytest.mark.slow
def test_large_vocabulary_takes_a_quarter_of_the_memory() -> None:
    plain, pieces = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", _MEASURE, chunk], capture_output=True, text=True, check=True, env=os.environ
            ).stdout
        )
        for chunk in ("0", "1")
    )
    print(f"extra memory: plain {plain['extra']:.0f} MB, in pieces {pieces['extra']:.0f} MB")
    assert pieces["extra"] < plain["extra"] / 4
    for name in ("logp", "kl"):
        assert pieces[name] == pytest.approx(plain[name], rel=1e-6)
    for name in ("d_hidden", "d_weight"):
        np.testing.assert_allclose(pieces[name], plain[name], rtol=0, atol=1e-6)
