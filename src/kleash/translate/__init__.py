"""What does a trainer's KL coefficient mean? The tilt's beta to and from the coefficient of a named trainer.

The tilt's beta is in reward units per nat of KL per answer. A trainer's coefficient of the same name may stand in the
reward or in the loss, beside rewards that were centred or standardised in a group, and under an estimator whose
gradient is another divergence's or nobody's. Each translation says what it assumes; where there is none, why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from kleash import _checks
from kleash.errors import OptionError
from kleash.trainers import TARGETS
from kleash.trainers.penalty import Leash, Scale
from kleash.translate._forward import forward_of_tilt, tilt_of_forward
from kleash.translate._leash import leash_of
from kleash.translate._needed import needed_settings, snippet, ways_out
from kleash.translate._translation import TILT, Translation

__all__ = [
    "MAX_SPREAD",
    "TILT",
    "Translation",
    "convert",
    "group_size_of",
    "implied_objective",
    "needed_settings",
    "scale_of",
    "snippet",
    "standardised_beta",
    "trainer_names",
    "ways_out",
]

MAX_SPREAD = 0.1
"""SD of the prompts' reward SDs over their mean up to which one SD stands for all: each prompt's own beta is then
within 10 % of the one translated for two prompts in three, which is also what a trained run is held to."""

_ONE_TOKEN_ONLY = (
    "a KL of each token in the loss: early tokens do not pay for the drift of later ones, so on longer answers the "
    "policy goes further than the tilt; the same to first order in 1 / beta"
)
_OTHERS = (
    "rewards are divided by the SD of the group's other answers, whose inverse is ruled by groups that score alike by "
    "chance: no number follows from the SD; switch the scaling or the leave-one-out baseline off"
)


def trainer_names() -> list[str]:
    """The trainers that are known.

    Examples
    --------
    >>> trainer_names()[:4]
    ['trl-grpo', 'trl-rloo', 'trl-dpo', 'verl-reward']
    """
    return list(TARGETS)


def convert(
    beta: float,
    *,
    source: str = TILT,
    target: str = TILT,
    reward_sd: float | None = None,
    reward_sd_spread: float | None = None,
    length: float | None = None,
    group_size: int | None = None,
    p_ref: float | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Translation:
    """The coefficient of a trainer whose root is the tilt at ``beta``, or the tilt's beta of a trainer's coefficient.

    Use it to carry a forecast's recommendation into a trainer. It speaks of where the trainer's expected update
    vanishes, not of a run that stops before.

    Parameters
    ----------
    beta
        The coefficient to translate, above 0.
    source, target
        One is ``tilt``, the other a trainer (`trainer_names`).
    reward_sd
        Where rewards are standardised: SD of the judge's score, in reward units, under the policy that is wanted;
        within a prompt, or over the batch where the trainer divides by that.
    reward_sd_spread
        SD over prompts of the prompts' reward SDs, in reward units.
    length
        Mean tokens per answer, at least 1.
    group_size
        Answers per prompt and step, G; the trainer's default where it has one.
    p_ref
        Binary reward (0 and 1), answers of one token: the reference's success rate, the same in every prompt. With it
        k3 as a loss has a translation.
    settings
        The trainer's options by name where they are not at their defaults.

    Returns
    -------
    Translation

    Raises
    ------
    OptionError
        An unknown trainer or setting, a number out of range, or something needed that was not given.

    Notes
    -----
    Let the reward's part of the expected update be ``s grad E[r]``. Then, with the penalty's coefficient c:

    - penalty of whole answers in the reward (k1): the root is the tilt at c / s, for any answers.
    - unbiased reverse KL of each token in the loss: the tilt at c / s for one token; for longer answers each prefix
      has its own root ``ref exp(E[r | prefix, token] / beta)``, in which nothing pays for later drift.
    - a group's mean as the baseline: s = (G - 1) / G, as each answer is a part of its own baseline. A leave-one-out
      baseline or a critic: s = 1.
    - standardised rewards: s = c4(G) / SD of the policy being trained, prompt by prompt. c4(G) is the mean SD of G
      normal numbers of SD 1 (0.80 for 2, 0.96 for 8): a small group's advantages do not grow with its SD. An answer
      divided by the SD of the others has no such number: the mean of 1 / SD is ruled by groups that score alike.
    - k3 as a loss: the root is that of the forward KL. For a binary reward and one token c = s p (1 - p) / (p - p_ref)
      with p the success rate of the tilt.

    References
    ----------
    k3 as a loss: Tang, Munos, 2025, arXiv 2506.09477; Liu et al., 2025, arXiv 2510.01555. DPO's optimum: Rafailov et
    al., 2023, arXiv 2305.18290, equation 5. The group's factor (G - 1) / G: ours, tested in tests/translate.

    Examples
    --------
    >>> convert(0.5, target="trl-rloo").value
    0.5
    >>> told = convert(0.5, target="trl-grpo", length=1, settings={"scale_rewards": "none"})
    >>> told.parameter, told.value, told.exact
    ('beta', 0.4375, True)
    >>> convert(0.1, target="slime").refused[:46]
    '--kl-loss-type k1: k1 as a loss has no gradien'
    """
    beta = _checks.number(beta, name="beta", above=0)
    ends = [TILT, *TARGETS]
    _checks.choice(source, ends, name="from")
    _checks.choice(target, ends, name="to")
    if (source == TILT) == (target == TILT):
        got = f"{source} to {target}"
        raise OptionError(_checks.message("from and to", expected="the tilt and one trainer", got=got))
    sd = None if reward_sd is None else _checks.number(reward_sd, name="reward_sd", above=0)
    spread = None if reward_sd_spread is None else _checks.number(reward_sd_spread, name="reward_sd_spread", at_least=0)
    tokens = None if length is None else _checks.number(length, name="length", at_least=1)
    size = None if group_size is None else _checks.integer(group_size, name="group_size", at_least=2)
    rate = None if p_ref is None else _checks.number(p_ref, name="p_ref", above=0)
    if rate is not None and rate >= 1:
        raise OptionError(_checks.message("p_ref", expected="a rate between 0 and 1", got=f"{rate:g}"))
    name = target if source == TILT else source
    leash = leash_of(name, settings or {})
    factor, assumes, exact, refused = _reading(name, leash, sd=sd, spread=spread, tokens=tokens, size=size, rate=rate)
    value: float | None = None
    if refused is None:
        if leash.pull == "forward":
            assert rate is not None
            value = forward_of_tilt(beta, rate, factor) if source == TILT else tilt_of_forward(beta, rate, factor)
        else:
            value = beta * factor if source == TILT else beta / factor
        value = _checks.number(value, name="translated beta", above=0)  # neither underflow nor overflow passes
    return Translation(
        source=source,
        target=target,
        beta=beta,
        parameter=leash.parameter if target != TILT else "beta",
        value=value,
        exact=exact and refused is None,
        assumes=tuple(assumes),
        refused=refused,
    )


def scale_of(name: str, settings: Mapping[str, Any] | None = None) -> Scale | None:
    """By what a trainer divides rewards under these settings; None where by nothing."""
    _checks.choice(name, trainer_names(), name="trainer")
    return leash_of(name, settings or {}).scale


def implied_objective(name: str, settings: Mapping[str, Any] | None = None) -> str:
    """The objective of a forecast that a trainer follows under these settings: ``tilt`` or ``group-standardised``.

    Examples
    --------
    >>> implied_objective("trl-grpo"), implied_objective("trl-grpo", {"scale_rewards": "none"})
    ('group-standardised', 'tilt')
    """
    _checks.choice(name, trainer_names(), name="trainer")
    leash = leash_of(name, settings or {})
    divided = leash.scale == "group" and leash.sd_of != "others" and leash.pull != "forward"
    return "group-standardised" if divided and leash.refused is None else "tilt"


def group_size_of(name: str, settings: Mapping[str, Any] | None = None) -> tuple[str, int | None]:
    """The trainer's name for the answers per prompt and step, and its default where it has one."""
    leash = leash_of(name, settings or {})
    return leash.group_option, leash.group_size


def standardised_beta(
    beta: float, *, target: str, group_size: int | None = None, settings: Mapping[str, Any] | None = None
) -> Translation:
    """The coefficient of a trainer whose rewards are standardised within a group, from a forecast of that objective.

    The dial of ``kleash forecast --objective group-standardised`` is the trainer's own beta, so the number stays what
    it is; what can go wrong is that the trainer, under these settings, has another objective.

    ``beta``, ``target``, ``group_size``, ``settings``: As in `convert`; the group size only enters what is assumed.

    Returns
    -------
    Translation
        With a coefficient, or with the reason why there is none.

    Examples
    --------
    >>> standardised_beta(0.3, target="trl-grpo").value
    0.3
    >>> standardised_beta(0.3, target="trl-rloo").refused
    'trl-rloo does not divide rewards by the SD of their group under these settings: forecast the tilt'
    """
    beta = _checks.number(beta, name="beta", above=0)
    _checks.choice(target, trainer_names(), name="trainer")
    leash = leash_of(target, settings or {})
    refused = leash.refused
    if refused is None and leash.scale != "group":
        refused = f"{target} does not divide rewards by the SD of their group under these settings: forecast the tilt"
    if refused is None and leash.pull == "forward":
        refused = "k3 as a loss has the root of the forward KL, which this objective does not forecast"
    if refused is None and leash.sd_of == "others" and group_size is not None:
        refused = _OTHERS
    size = "large groups" if group_size is None else f"{leash.group_option} {group_size}"
    assumes = [*leash.assumes, f"{size}, as forecast", _ONE_TOKEN_ONLY]
    return Translation(
        source="group-standardised",
        target=target,
        beta=beta,
        parameter=leash.parameter,
        value=beta * leash.factor if refused is None else None,
        exact=False,
        assumes=tuple(assumes),
        refused=refused,
    )


def _reading(
    name: str,
    leash: Leash,
    *,
    sd: float | None,
    spread: float | None,
    tokens: float | None,
    size: int | None,
    rate: float | None,
) -> tuple[float, list[str], bool, str | None]:
    """s, the weight of the reward's part beside the penalty's; what that assumes; whether it is exact; why not at all.

    What no number can mend is refused first; then what is needed is asked for.
    """
    assumes = list(leash.assumes)
    one_token = tokens is not None and tokens == 1
    refused = leash.refused
    if refused is None and leash.pull == "forward":
        refused = _no_forward(leash, rate, one_token)
    if refused is not None:
        return 1.0, assumes, False, refused
    factor, exact = leash.factor, True
    if leash.scale == "group" and leash.sd_of == "others":
        return 1.0, assumes, False, _OTHERS
    if leash.scale is not None:
        if sd is None:
            raise OptionError(_needs_sd(name, leash))
        refused = _no_scale(sd, spread) if leash.scale == "group" else None
        if refused is not None:
            return 1.0, assumes, False, refused
        factor /= sd
        exact = False
        if leash.scale == "group":
            size = size or leash.group_size or _needs_size(name, leash)
            factor *= _sd_factor(leash.sd_of, size)
            assumes.append(f"scores within a prompt near normal, which sets how the SD of a group of {size} varies")
        what = {
            "group": "the judge's score has SD {} within a prompt",
            "batch": "the judge's score has SD {} over the batch",
            "log": "the SD that the trainer divides by, as its own log shows it, is {}",
        }[leash.scale]
        assumes.append(what.format(f"{sd:g}") + " under the policy that is wanted, and stays so")
    if leash.group_mean:
        size = size or leash.group_size or _needs_size(name, leash)
        factor *= (size - 1) / size
        assumes.append(f"{leash.group_option} {size}: the answer is part of its own baseline, factor {size - 1}/{size}")
    if leash.per_length:
        if tokens is None:
            fix = "give --length, the mean tokens per answer"
            raise OptionError(_checks.message("length", expected=f"a number for {name}", got="none", fix=fix))
        factor *= tokens
        exact = exact and one_token
        assumes.append(f"log ratios are averaged over {tokens:g} tokens, the same number in every answer")
    if leash.pull == "token" and not one_token:
        exact = False
        assumes.append(_ONE_TOKEN_ONLY)
    if leash.pull == "forward":
        assumes.append(f"a reward of 0 or 1, answers of one token, success rate {rate:g} of the reference everywhere")
    return factor, assumes, exact, None


def _needs_size(name: str, leash: Leash) -> NoReturn:
    fix = f"give --group-size ({leash.group_option})"
    raise OptionError(_checks.message("group size", expected=f"a number for {name}", got="none", fix=fix))


def _sd_factor(sd_of: str, size: int) -> float:
    """What dividing by a group's SD does to the slope of the advantage in the score, for normal scores of SD 1.

    Standardised scores of a normal group do not depend on its SD, so the slope is the mean SD, c4(G).
    """
    mean_sd = math.sqrt(2 / (size - 1)) * math.exp(math.lgamma(size / 2) - math.lgamma((size - 1) / 2))
    return mean_sd * (math.sqrt(size / (size - 1)) if sd_of == "group-n" else 1.0)


def _no_forward(leash: Leash, rate: float | None, one_token: bool) -> str | None:
    if rate is not None and one_token and leash.scale is None:
        return None
    return (
        "k3 as a loss has the gradient of KL(reference || policy), whose optimum is reference / (1 - (r - mean) / beta)"
        ", no tilt at any beta; switch the corrected gradient on where there is one, or take k2. Only for a reward of "
        "0 or 1 that is not standardised, answers of one token and one success rate of the reference in all prompts "
        "is there a number: give --length 1 and --p-ref"
    )


def _needs_sd(name: str, leash: Leash) -> str:
    fix = "give --reward-sd and --reward-sd-spread, or switch the scaling off with --set"
    if leash.scale == "batch":
        fix = "give --reward-sd, the SD of the judge's score over a batch"
    if leash.scale == "log":
        fix = "give --reward-sd, the SD that the run divides by (of its advantages, or its running SD)"
    offer = "; kleash forecast --objective group-standardised needs neither" if leash.scale == "group" else ""
    thing = "reward SD"
    return _checks.message(thing, expected=f"a number, as {name} standardises rewards", got="none", fix=fix + offer)


def _no_scale(sd: float, spread: float | None) -> str | None:
    if spread is not None and spread <= MAX_SPREAD * sd:
        return None
    known = (
        "how much it differs was not said (--reward-sd-spread)"
        if spread is None
        else f"it differs too much (SD {spread:g} over prompts around {sd:g}; up to {MAX_SPREAD:.0%} is taken as equal)"
    )
    return (
        "rewards are divided by the SD within each group, so every prompt has a beta of its own, and "
        f"{known}: no one number translates; kleash forecast --objective group-standardised forecasts this trainer's "
        "own beta, or switch the scaling off"
    )
