"""In which unit does the penalty count the KL, and how much of the loss is it? KL_UNIT and LOSS of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, cannot_tell, number
from kleash.audit.logs.coefficient import recover
from kleash.audit.logs.needs import KL, LOSS
from kleash.audit.logs.placement import placed
from kleash.audit.logs.ratio_fit import fit_ratio

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["kl_unit", "loss_explained", "penalty_unit"]


EXACT = 0.01
"""Disagreement of rows, as a share of the typical loss, up to which it is the penalty and nothing else. Ours."""


def penalty_unit(view: LogView) -> str | None:
    """The unit of the KL that the coefficient multiplies: per token in a loss, the sum over the answer in a reward."""
    where = placed(view).where
    if where == "unknown":
        where = view.settings.where or "unknown"
    if view.trainer.implicit:
        return "nats per answer"
    return {"loss": "nats per token", "reward": "nats per answer"}.get(where)


@check("KL_UNIT", KL, problem="the coefficient is off by the mean length, or is 1")
def kl_unit(view: LogView, level: float) -> Finding:
    """Is the logged KL in the penalty's unit, without the coefficient?

    Off by the mean length: the label of the unit is wrong. 1 where another coefficient is stated: the logged KL already
    has the coefficient in it.
    """
    kl = view.kl
    assert kl is not None
    logged, penal = kl.spec.unit, penalty_unit(view)
    evidence = Evidence(logged=logged, penalty=penal, column=kl.key, transform=kl.transform)
    found, stated = recover(view), view.settings.beta
    if stated is None and view.coefficient.size:
        stated = float(view.coefficient.values[0])
    if (
        found.resolved
        and found.fit is not None
        and stated
        and not (found.fits(stated) or found.unless or found.factor != 1.0)
    ):
        ratio = found.fit.value / stated
        evidence |= {"ratio": ratio}
        fix = "correct the unit in the mapping, or divide the column by the coefficient, before anything is compared"
        if found.lo <= 1 <= found.hi and not np.isclose(stated, 1.0):
            return evidence.problem(
                f"{found.identity} is 1, not {number(stated)}: the logged KL has the coefficient in it",
                "the log holds coefficient * kl under the name of kl",
                fix=fix,
            )
        if view.length.size:
            length = float(np.median(view.length.values))
            evidence |= {"length": length}
            for value, text in ((ratio / length, "a mean per token"), (ratio * length, "a sum over the answer")):
                if abs(np.log(abs(value))) < np.log(1.25) and length > 2:
                    return evidence.problem(
                        f"the coefficient is off by the mean length ({number(length)}): "
                        f"{kl.key} is {text}, not {logged}",
                        "the column is labelled with the wrong unit",
                        "the penalty takes the mean, not the sum",
                        fix=fix,
                    )
    if not kl.unit_known:
        fix = "say it: columns = { kl_unit = ... } in --config"
        return Evidence(evidence | {"logged": None}).cannot_tell(f"the unit of {kl.key} is not known", fix=fix)
    if penal is None:
        return evidence.cannot_tell(f"{kl.key} is in {logged}; where the penalty goes is not known")
    if logged == penal:
        return evidence.ok(f"{kl.key} and the penalty are both in {logged}")
    times = "multiply" if penal == "nats per answer" else "divide"
    length_text = f" ({number(np.median(view.length.values))})" if view.length.size else ""
    text = f"{kl.key} is in {logged}, the penalty takes {penal}: {times} by the mean length{length_text} to compare"
    return evidence.ok(text)


@check("LOSS", KL, LOSS, problem="never; it explains")
def loss_explained(view: LogView, level: float) -> Finding:
    """Is the loss nothing but beta * KL?

    Then a loss that starts at 0 and grows is the KL growing, not a failure.
    """
    found = recover(view)
    key = view.loss_key
    if key is None or view.kl is None:
        return cannot_tell("no loss beside the KL")
    loss = np.asarray(view.log.raw[key])
    evidence = Evidence(identity=found.identity)
    whole = view.trainer.identity.kind == "loss" and found.each_row
    if whole and found.fit is not None and found.fit.slack <= 0.05:
        bound = found.fit.hi
        evidence |= {"beta": found.fit.value, "beta_hi": bound}
        if not np.nanmax(np.abs(loss)) > 0:
            text = f"the loss prints as 0 because beta * kl is below its digits (beta at most {number(bound)})"
            return evidence.ok(f"{text}: not a failure")
        if found.holds:
            about = "about " if found.loose else ""
            text = f"the loss is {about}{number(found.fit.value)} * kl: it starts at 0 and grows with the KL"
            return evidence.ok(text)
    if found.resolved and found.place == "loss" and found.fit is not None and not whole:
        kl = np.asarray(view.kl.values)
        size = float(np.nanmedian(np.abs(loss)))
        share = float(np.nanmedian(np.abs(found.fit.value * kl))) / size if size > 0 else np.inf
        evidence |= {"share": share}
        return evidence.ok(f"the penalty is {number(share)} of the loss")
    alone = fit_ratio(
        loss,
        view.kl.values,
        target_error=view.error(key, loss),
        regressor_error=view.error(view.kl.key, np.asarray(view.kl.values)),
        relative=1e-3,
    )
    if alone is not None and alone.rows >= 10 and alone.slack <= EXACT and alone.lo > 0:
        evidence |= {"beta": alone.value, "beta_lo": alone.lo, "beta_hi": alone.hi}
        text = f"the loss is nothing but beta KL: {number(alone.value)} * {view.kl.key} in each of {alone.rows} rows"
        return evidence.ok(f"{text}, so its policy term is 0")
    return evidence.cannot_tell("the loss has other terms than the penalty, which the log does not tell apart")
