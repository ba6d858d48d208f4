"""Does a KL term pull back at all? GRADIENT, from the exact gradient of estimator and placement."""

from __future__ import annotations

import numpy as np

from kleash.audit.findings import Evidence, Finding, number
from kleash.gradients import TokenWorld, expected_gradient, kl_gradient
from kleash.kl import Estimator, Placement

__all__ = ["judge_term"]

POLICY, REFERENCE = np.log([[0.6, 0.3, 0.1]]), np.log([[0.5, 0.3, 0.2]])


def judge_term(estimator: Estimator, placement: Placement) -> Finding:
    """The exact expected gradient of a term at a policy (.6, .3, .1) and reference (.5, .3, .2), judged: GRADIENT.

    ``problem``: it is 0, or it points away from the gradient of KL(policy || reference), so that descending the penalty
    raises the KL. Exact; no chance involved. Liu et al., 2025, arXiv 2510.01555.
    """
    world = TokenWorld.full(vocabulary=3, length=1)
    term = expected_gradient(world, POLICY, REFERENCE, estimator=estimator, placement=placement).ravel()
    true = kl_gradient(world, POLICY, REFERENCE).ravel()
    forward = kl_gradient(world, POLICY, REFERENCE, direction="reference||policy").ravel()
    product = float(term @ true)
    evidence = Evidence(
        gradient=term.tolist(),
        gradient_of_kl=true.tolist(),
        inner_product=product,
        estimator=estimator,
        placement=placement,
    )
    name = f"{estimator} in the {placement}"
    zero = bool(np.abs(term).max() < 1e-12)
    if zero or product <= 0:
        what = "has no expected gradient" if zero else f"points the wrong way (inner product {number(product)})"
        return evidence.problem(
            f"{name} {what}: no leash",
            "an estimator that is unbiased as a number is used where its gradient is not",
            fix="put k1 in the reward, or k2 in the loss, or k3 in the loss with the importance ratio differentiated",
        )
    if np.allclose(term, forward):
        message = f"{name} pulls, but along KL(reference || policy): beta is not the tilt's beta"
        return evidence.ok(message)
    if not np.allclose(term, true):
        return evidence.ok(f"{name} pulls, but its gradient is that of neither KL: no tilt corresponds at any beta")
    return evidence.ok(f"{name} pulls along KL(policy || reference), token by token")
