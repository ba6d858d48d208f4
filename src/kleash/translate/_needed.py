"""What a trainer must be set to for a coefficient to mean what it says, and how that is written where people set it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from kleash.trainers import TARGETS
from kleash.trainers.options import Option, given
from kleash.trainers.penalty import Leash
from kleash.translate._leash import leash_of

__all__ = ["needed_settings", "snippet", "ways_out"]

_WIDTH = 80


def needed_settings(
    name: str, settings: Mapping[str, Any], *, value: float, group_size: int | None = None
) -> dict[str, Any]:
    """The options that a translated coefficient rests on, by the names under which a trainer is given them.

    Those that a person gave, those that the target's name settles, and every one whose change would change what the
    coefficient means: which these are is found by changing them.

    ``name``: One of the targets. ``settings``: What was given. ``value``: The coefficient. ``group_size``: Answers per
    prompt and step, where it is not the trainer's default.

    Returns
    -------
    Names in the trainer's spelling, with values; the coefficient first.
    """
    trainer, target = TARGETS[name]
    options, leash = given(target, trainer.options, settings), leash_of(name, settings)
    size = group_size or leash.group_size
    named: dict[str, Any] = {leash.parameter: float(f"{value:.4g}")}
    if size is not None and (leash.group_mean or leash.scale == "group"):
        named[leash.group_option] = size
    named |= trainer.sampling
    stated = {key for key in target.settable if options[key] != trainer.options[key].default}
    keys = [*target.fixed, *(key for key in target.settable if key not in target.fixed)]
    for key in keys:
        option = trainer.options[key]
        turned = (leash_of(name, change) for change in _changes(name, settings, key))
        matters = key in target.fixed or key in stated or any(other != leash for other in turned)
        if matters and not option.ours and options[key] is not None:
            named.setdefault(option.path or (option.names[0] if option.names else key), _number(options[key]))
    return {_spelled(spelled, leash.parameter): value for spelled, value in named.items()}


def ways_out(name: str, settings: Mapping[str, Any]) -> list[str]:
    """Fewest settings, one or two at a time, under which a trainer that has no translation has one.

    Where rewards are divided by the SD of their group and nothing else is wrong, settings that do not divide.

    Examples
    --------
    >>> ways_out("slime", {})
    ['kl_loss_type=k2', 'use_unbiased_kl=true']
    >>> ways_out("verl-loss", {})
    ['kl_loss_type=mse, adv_estimator=grpo']
    """
    trainer, target = TARGETS[name]
    keys = [key for key in target.settable if trainer.options[key].kind != "number"]
    divided = _leads(leash_of(name, settings))

    def leads(change: Mapping[str, Any]) -> bool:
        leash = leash_of(name, change)
        return _leads(leash) and not (divided and leash.scale == "group")

    single = {key: _changes(name, settings, key) for key in keys}
    leading = [(key, change) for key in keys for change in single[key][::-1] if leads(change)]
    if leading:
        return [f"{key}={change[key]}" for key, change in dict(leading).items()]  # the first value of each
    for first, second in itertools.combinations(keys, 2):
        for change in (both for one in single[first] for both in _changes(name, one, second)):
            if leads(change):
                return [f"{first}={change[first]}, {second}={change[second]}"]
    return []


def snippet(name: str, needed: Mapping[str, Any]) -> str:
    """The settings as a person pastes them: a call of the trainer's configuration, flags, or YAML.

    Examples
    --------
    >>> print(snippet("trl-rloo", {"beta": 0.5, "temperature": 1.0}))
    RLOOConfig(beta=0.5, temperature=1.0)
    >>> print(snippet("trlx", {"method.init_kl_coef": 0.5, "method.scale_reward": "ignored"}))
    method:
      init_kl_coef: 0.5
      scale_reward: ignored
    """
    trainer, _ = TARGETS[name]
    if trainer.classes is not None:
        arguments = [f"{key}={_python(value)}" for key, value in needed.items()]
        line = f"{trainer.classes[0]}({', '.join(arguments)})"
        if len(line) <= _WIDTH:
            return line
        return "\n".join([f"{trainer.classes[0]}(", *(f"    {argument}," for argument in arguments), ")"])
    if next(iter(needed)).startswith("--"):
        switches = {f"--{key.replace('_', '-')}": option for key, option in trainer.options.items()}
        flags = [_flag(key, value, switches.get(key)) for key, value in needed.items()]
        return " \\\n".join(flag for flag in flags if flag)
    return _yaml(needed)


def _changes(name: str, settings: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The settings with each other value of one option."""
    trainer, target = TARGETS[name]
    now = given(target, trainer.options, settings)[key]
    rest = {other: value for other, value in settings.items() if _key(other) != key}
    return [{**rest, key: value} for value in _values(trainer.options[key], now)]


def _leads(leash: Leash) -> bool:
    """Whether a coefficient can be had from samples alone."""
    by_others = leash.scale == "group" and leash.sd_of == "others"
    return leash.refused is None and leash.pull != "forward" and leash.scale != "log" and not by_others


def _key(full: str) -> str:
    return full.strip().lstrip("-").rsplit(".", 1)[-1].replace("-", "_")


def _values(option: Option, now: Any) -> list[Any]:
    if option.kind == "flag":
        return ["false" if now else "true"]
    if option.kind == "word":
        return [word for word in option.choices if word != now]
    return [2 * now if now else 0.5]


def _spelled(name: str, parameter: str) -> str:
    """A name as the coefficient's is written: a flag, or in its folder where it has none of its own."""
    if parameter.startswith("--"):
        return name if name.startswith("--") else f"--{name.replace('_', '-')}"
    folder = parameter.rpartition(".")[0]
    return name if "." in name or not folder else f"{folder}.{name}"


def _number(value: Any) -> Any:
    """An index that is a word among its choices, as the number it is."""
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _python(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _flag(key: str, value: Any, option: Option | None) -> str:
    if value is True:
        return "" if option is not None and option.off else key
    if value is False:
        return option.off if option is not None else ""
    return f"{key} {value}"


def _yaml(needed: Mapping[str, Any]) -> str:
    import yaml

    tree: dict[str, Any] = {}
    for full, value in needed.items():
        *folders, key = full.split(".")
        here = tree
        for folder in folders:
            here = here.setdefault(folder, {})
        here[key] = value
    return str(yaml.safe_dump(tree, sort_keys=False)).rstrip("\n")
