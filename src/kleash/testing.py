"""The leash of a loss as a test in its author's own suite: :func:`assert_leash`, and a fixture of that name for pytest.

pytest finds the fixture by itself once kleash is installed; nothing is imported before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from kleash.trials.loss_conformance import LossConformance

__all__ = ["assert_leash"]

To = Literal["tilt", "reference"]


def assert_leash(
    loss: Callable[..., Any],
    *,
    beta: float = 0.5,
    to: To = "tilt",
    within: float = 0.02,
    group_size: int = 4,
    settings: Mapping[str, Any] | None = None,
) -> LossConformance:
    """Assert that a loss pulls the policy back to its reference, and, by default, to the tilt of this beta.

    Parameters
    ----------
    loss
        ``loss(logp, old_logp, ref_logp, reward, mask, *, beta, group_size, **settings)`` in torch, as for
        :func:`kleash.conformance`.
    beta
        The coefficient, reward units per nat.
    to
        ``tilt``: the mean update must come to rest at the optimum of reward - beta KL. ``reference``: it must have no
        fault and pull back, wherever it comes to rest.
    within
        With ``tilt``: how far the tilt's beta may lie from ``beta``, as a share, and the two policies apart in
        probability (total variation).
    group_size, settings
        Answers to a prompt; further keywords of the loss.

    Returns
    -------
    LossConformance
        What was found.

    Raises
    ------
    AssertionError
        With each fault and what to do about it, or with the beta whose tilt the loss has instead.
    """
    __tracebackhide__ = True
    from kleash.trials.loss_conformance import loss_conformance

    found = loss_conformance(loss, beta=beta, group_size=group_size, settings=settings, variants=to == "tilt")
    if found.faults:
        said = "\n".join(f"  {fault.code}: {fault.message}\n    do: {fault.fix}" for fault in found.faults)
        raise AssertionError(f"{found.name} has no leash that holds:\n{said}")
    if not found.pulls_back:
        raise AssertionError(f"{found.name} does not pull back: the penalty's gradient is {found.gradient}")
    if to == "tilt":
        _at_the_tilt(found, beta, within)
    return found


def _at_the_tilt(found: LossConformance, beta: float, within: float) -> None:
    __tracebackhide__ = True
    own = found.variants[0]
    if own.tilt_beta is None or own.apart is None:
        raise AssertionError(f"{found.name} does not come to rest: no finite policy at beta {beta:g}")
    off = own.tilt_beta / beta - 1
    if abs(off) > within or own.apart > within:
        raise AssertionError(
            f"{found.name} at beta {beta:g} comes to rest near the tilt of beta {own.tilt_beta:.4g} ({off:+.1%}), "
            f"{own.apart:.2g} apart in probability; allowed {within:g}\n"
            f"  the penalty's gradient is {found.gradient}\n"
            "  do: k1 of the whole answer in the reward gives the tilt; or state to='reference', and what beta means"
        )
