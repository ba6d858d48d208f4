"""Judges and gold by name and weight, asked about the answers to one prompt at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kleash import _checks
from kleash.errors import ConfigError, OptionError
from kleash.sampling.journal import Answer
from kleash.sampling.prompts import Prompt
from kleash.train.asking import Judge, PromptSet, ask
from kleash.train.judges import BUILT_IN, JudgeSource, guarded, load_judge

__all__ = ["COLUMNS", "Given", "Scorer", "load_scorers", "parse_judge"]

Given = str | JudgeSource | Judge
"""How a judge may be given: in text (:func:`parse_judge`), as a source, or as a function with TRL's signature."""

COLUMNS = (
    *("prompt_id", "prompt", "draw", "answer", "reward", "gold", "label_probability"),
    *("logp", "ref_logp", "n_tokens", "finished", "source", "log_ratio"),
)
"""Columns of the samples; no judge can be called like one of them."""

_SECONDS = 600.0
"""How long a judge may take over the answers to one prompt; a language model that judges may need minutes."""
_WEIGHT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A judge or gold, ready to be asked.

    Parameters
    ----------
    name
        Its column in the samples.
    key
        What its scores hang on in a journal: where it comes from. A change of its weight or name asks nothing anew.
    weight
        What its score is multiplied by in the reward.
    call
        The function, guarded.
    plain
        Whether it wants texts where the prompt is a chat; TRL gives its reward functions messages there.
    """

    name: str
    key: str
    weight: float
    call: Judge
    plain: bool

    def ask(self, prompt: Prompt, answers: Sequence[Answer]) -> dict[int, float]:
        """Scores of answers to a prompt, by draw.

        Raises
        ------
        DataError
            It raised, hung, or gave something else than a finite number for each.
        """
        chat = prompt.messages is not None and not self.plain
        asked: Any = prompt.turns if chat else prompt.text
        said: list[Any] = [[{"role": "assistant", "content": a.text}] if chat else a.text for a in answers]
        ids = [list(a.ids) for a in answers if a.ids is not None]
        one = PromptSet(ids=[[]], texts=[asked], columns={name: [value] for name, value in prompt.columns.items()})

        def who(*, completion_ids: Sequence[Sequence[int]], **given: Any) -> Sequence[float]:
            return self.call(**given, **({"completion_ids": completion_ids} if len(ids) == len(answers) else {}))

        scores = ask(who, self.name, one, [0] * len(answers), answers=said, ids=ids)
        return {answer.draw: score for answer, score in zip(answers, scores.tolist(), strict=True)}


def load_scorers(given: Given | Sequence[Given] | Mapping[str, Given], *, role: str) -> list[Scorer]:
    """Judges, imported and guarded.

    Parameters
    ----------
    given
        One, several, or several by name.
    role
        ``judge`` or ``gold``, for errors.

    Returns
    -------
    list of Scorer

    Raises
    ------
    ConfigError, OptionError
        One that cannot be found, or two of one name.
    """
    if isinstance(given, Mapping):
        found = [_scorer(one, role=role, named=name) for name, one in given.items()]
    else:
        several = [given] if isinstance(given, str | JudgeSource) or callable(given) else list(given)
        found = [_scorer(one, role=role) for one in several]
    if not found:
        raise OptionError(_checks.message(role, expected="at least one", got="none"))
    names = [scorer.name for scorer in found]
    for name in names:
        if names.count(name) > 1:
            fix = f"name them: {role} A=module:function"
            raise OptionError(_checks.message(role, expected="names that differ", got=f"{name!r} twice", fix=fix))
        if role == "judge" and name in COLUMNS:
            fix = "name it otherwise: NAME=module:function"
            raise OptionError(_checks.message(role, expected="a name of its own", got=repr(name), fix=fix))
    return found


def parse_judge(text: str) -> tuple[str, JudgeSource, float]:
    """Name, source and weight from ``[NAME=]MODULE:FUNCTION[:WEIGHT]``, ``length``, ``lexicon``, ``reward-model:DIR``.

    Raises
    ------
    ConfigError
        None of these.

    Examples
    --------
    >>> name, source, weight = parse_judge("kind=my_judges:kind:0.5")
    >>> name, source.use, weight
    ('kind', 'my_judges:kind', 0.5)
    >>> parse_judge("reward-model:models/rm:-1")[1].path
    PosixPath('models/rm')
    """
    name, equals, rest = text.partition("=")
    if not equals:
        name, rest = "", text
    head, colon, last = rest.rpartition(":")
    weight = 1.0
    if colon and _WEIGHT.fullmatch(last):
        rest, weight = head, _checks.number(last, name=f"weight of {text!r}")
    use, _, path = rest.partition(":")
    if use == "reward-model":
        if not path:
            raise ConfigError(_checks.message(text, expected="reward-model:FOLDER", got="no folder"))
        return name or Path(path).name, JudgeSource(use=use, path=Path(path), seconds=_SECONDS), weight
    if rest not in BUILT_IN and not (use and path):
        fix = _checks.nearest(rest, BUILT_IN)
        raise ConfigError(_checks.message("judge", expected="[NAME=]MODULE:FUNCTION[:WEIGHT]", got=repr(text), fix=fix))
    return name or path or rest, JudgeSource(use=rest, seconds=_SECONDS), weight


def _scorer(given: Given, *, role: str, named: str | None = None) -> Scorer:
    weight, plain = 1.0, False
    if isinstance(given, str):
        name, source, weight = parse_judge(given)
    elif isinstance(given, JudgeSource):
        name, source = given.use.rpartition(":")[2], given
    else:
        name = getattr(given, "__name__", type(given).__name__)
        key = f"{getattr(given, '__module__', '')}:{getattr(given, '__qualname__', name)}"
        call = guarded(given, name=named or name, seconds=_SECONDS)
        return Scorer(name=named or name, key=key, weight=weight, call=call, plain=plain)
    name = named or name
    call = load_judge(source, name=name if role == "judge" else role)
    key = source.use if source.path is None else f"{source.use}:{source.path}"
    return Scorer(name=name, key=key, weight=weight, call=call, plain=source.use in BUILT_IN)
