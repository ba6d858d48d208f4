"""What a trainer's own options do with the KL: which term acts, with which gradient, and what nobody has set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from kleash.audit.engine import Need, check
from kleash.audit.findings import Evidence, Finding, cannot_tell, number
from kleash.audit.gradient import judge_term
from kleash.kl import Estimator, Placement
from kleash.trainers import Trainer
from kleash.trainers.columns import PER_ANSWER, PER_TOKEN
from kleash.trainers.penalty import Penalty

__all__ = ["Configuration", "coefficient", "controller", "gradient", "placement", "unit"]


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A trainer's configuration, stated and by default.

    ``trainer``: Whose. ``values``: Of every option, its default where nothing is stated. ``names``: Under which name
    each stated option stands. ``unread``: Names of those whose value is none that the option takes, such as a variable.
    """

    trainer: Trainer
    values: dict[str, Any]
    names: dict[str, str]
    unread: tuple[str, ...] = ()

    @cached_property
    def penalty(self) -> Penalty:
        """What the options do with the KL, defaults counted."""
        return self.trainer.penalty(self.values)

    @property
    def where(self) -> str:
        """``loss``, ``reward``, ``both`` or ``none``; with a coefficient of 0 none."""
        place = self.penalty.where or self.trainer.place or "none"
        nowhere = self.beta == 0 or self.trainer.unleashed or self.penalty.against == "nothing"
        return "none" if nowhere else place

    @property
    def beta(self) -> float | None:
        """The coefficient that acts."""
        value = self.values.get(self.penalty.coefficient or "")
        return None if value is None else float(value)

    @property
    def idle(self) -> dict[str, float]:
        """Coefficients that somebody set and that act on nothing, under their names."""
        acting = {self.penalty.coefficient} if self.where != "none" else set()
        return {
            self.names[key]: float(self.values[key])
            for key in _coefficients(self.trainer) - acting
            if key in self.names and self.values[key] and self.values[key] != self.trainer.options[key].default
        }

    def said(self, key: str | None) -> str:
        """The name of an option, and that nobody set it where nobody did."""
        return "" if key is None else self.names.get(key) or f"{key} (by default: nobody set it)"


def _coefficients(trainer: Trainer) -> set[str]:
    """The options that are the coefficient under one setting of the switches or another."""
    base = {key: option.default for key, option in trainer.options.items()}
    flags = [key for key, option in trainer.options.items() if option.kind == "flag"]
    tried = [base, *({**base, key: on} for key in flags for on in (True, False))]
    return {name for values in tried if (name := trainer.penalty(values).coefficient) is not None}


READ: Need[Configuration] = Need(
    words="values that can be read",
    met=lambda view: not view.unread,
    hint=lambda view: f", not those of {', '.join(view.unread)}",
)


@check("PLACEMENT", READ, problem="both; a coefficient that somebody set and that acts on nothing")
def placement(view: Configuration, level: float) -> Finding:
    """Where is the penalty, and to what does it tie?

    A coefficient at its default that acts on nothing is no problem: whole configurations hold all defaults.
    """
    penalty, where = view.penalty, view.where
    evidence = Evidence(placement=where, against=penalty.against or "reference", idle=view.idle)
    if view.trainer.unleashed:
        return evidence.ok(f"no leash to a reference ({view.trainer.unleashed})")
    if penalty.inert is not None:
        return evidence.problem(f"{penalty.inert}: no leash", "another option switches it off", fix=_switch(view))
    if where == "both":
        text = "the penalty is in the loss and in the reward, counted twice"
        return evidence.problem(text, "both options are on", fix="switch one of the two off")
    if view.idle:
        named = ", ".join(f"{name} is {number(value)}" for name, value in view.idle.items())
        return evidence.problem(
            f"{named} and acts on nothing: {_acting(view)}",
            "the switch of this place is off",
            "the option belongs to another place of the penalty",
            fix=_switch(view),
        )
    return evidence.ok(_acting(view))


def _acting(view: Configuration) -> str:
    on = {"loss": "the penalty is in the loss", "reward": "the penalty is in the reward", "none": "no penalty"}
    unset = [name for name in view.trainer.switches if name not in view.names]
    default = ", ".join(f"{name} {str(view.values[name]).lower()}" for name in unset)
    if view.where == "none" and view.beta == 0:
        default = f"{view.said(view.penalty.coefficient)} is 0"
    return on[view.where] + (f" ({default}{' by default' if unset and view.beta != 0 else ''})" if default else "")


def _switch(view: Configuration) -> str:
    names = " or ".join(view.trainer.switches)
    return f"set {names}, or take the coefficient out" if names else "take the coefficient out, or switch its place on"


@check("COEFFICIENT", READ, problem="below 0")
def coefficient(view: Configuration, level: float) -> Finding:
    """Which coefficient acts, and who set it?"""
    key, beta = view.penalty.coefficient, view.beta
    if key is None or beta is None or view.where == "none":
        return cannot_tell("no coefficient acts")
    evidence = Evidence(value=beta, name=view.names.get(key, key), by_default=key not in view.names)
    if beta < 0:
        return evidence.problem(
            f"{view.said(key)} is {number(beta)}: drift is paid for", "a slip of the sign", fix="set it above 0"
        )
    moved = f"; a controller moves it to {number(view.penalty.target)} nats" if view.penalty.target else ""
    return evidence.ok(f"{view.said(key)} is {number(beta)}{moved if view.penalty.adaptive else ''}")


@check("GRADIENT", READ, problem="exact gradient is 0 or points away")
def gradient(view: Configuration, level: float) -> Finding:
    """Does this estimator in this place pull back?"""
    if view.where not in ("loss", "reward"):
        return cannot_tell("no penalty is in this run")
    if view.trainer.implicit:
        return Evidence().ok("the loss is a function of beta times the log ratio of whole answers: no estimator in it")
    estimator = view.penalty.estimator or view.trainer.estimator
    if estimator is None:
        return cannot_tell("the configuration does not say the estimator", fix="set it, or see the trainer's default")
    ratio = view.where == "loss" and view.penalty.with_ratio
    place = "loss-with-ratio" if ratio else view.where
    return judge_term(cast("Estimator", estimator), cast("Placement", place))


@check("KL_UNIT", READ, problem="never: it says the unit")
def unit(view: Configuration, level: float) -> Finding:
    """In which unit is the penalty?"""
    if view.where not in ("loss", "reward"):
        return cannot_tell("no penalty is in this run")
    if view.trainer.implicit or view.where == "reward":
        return Evidence(unit=PER_ANSWER).ok("reward units per nat of a whole answer")
    return Evidence(unit=PER_TOKEN).ok("per nat of a token, averaged as the loss averages its tokens")


@check("CONTROLLER", READ, problem="a target or horizon that is not above 0")
def controller(view: Configuration, level: float) -> Finding:
    """Does a controller move the coefficient, and by which KL?"""
    penalty = view.penalty
    if not penalty.adaptive:
        return Evidence(adaptive=False).ok("no adaptive controller is on")
    evidence = Evidence(adaptive=True, target=penalty.target, horizon=penalty.horizon)
    if any(x is not None and x <= 0 for x in (penalty.target, penalty.horizon)):
        text = f"target {penalty.target}, horizon {penalty.horizon}: the update divides by them"
        return evidence.problem(text, "no validation of the settings", fix="set both above 0")
    return evidence.ok(f"the coefficient follows the KL to its target, in {view.trainer.controller}")
