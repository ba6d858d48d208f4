"""Judges for language models: what can be named in a configuration, and what happens when a judge fails.

A judge is a callable with TRL's signature for reward functions, ``judge(prompts, completions, **columns)``, that
returns one number per answer.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from kleash import _checks
from kleash.config import Within
from kleash.errors import ConfigError, DataError, DependencyError, MissingFileError
from kleash.train.asking import Judge

__all__ = ["BUILT_IN", "JudgeSource", "guarded", "imported", "length", "lexicon", "load_judge", "reward_model"]

BUILT_IN = ("length", "lexicon", "reward-model")
"""Judges known by name: words in the answer, the VADER lexicon's sentiment, a sequence classifier in a folder."""

_SECONDS = 60.0
_BATCH = 16  # answers a reward model reads at a time
_SHOWN = 60  # characters of a prompt in an error


@dataclass(frozen=True, kw_only=True)
class JudgeSource:
    """Where a judge comes from: ``module:function`` or one of :data:`BUILT_IN`, and the folder of a reward model.

    ``seconds`` is how long one call may take.
    """

    use: str
    path: Path | None = None
    seconds: Annotated[float, Within(above=0)] = _SECONDS


def load_judge(source: JudgeSource, *, name: str, folder: str | Path = ".", device: str = "cpu") -> Judge:
    """The judge that a configuration names, :func:`guarded`; ``name`` is what it is called in errors.

    A module is looked for in ``folder`` beside Python's own path; a reward model runs on ``device``. Raises
    `ConfigError`: No such module, function or built-in judge; what is there is not callable.
    """
    if ":" in source.use:
        judge = imported(source.use, name=name, folder=Path(folder))
    elif source.use == "length":
        judge = length
    elif source.use == "lexicon":
        judge = lexicon()
    elif source.use == "reward-model":
        if source.path is None:
            raise ConfigError(_checks.message(f"{name}.path", expected="the folder of the reward model", got="none"))
        judge = reward_model(source.path, device=device)
    else:
        expected = f"module:function, or one of {', '.join(BUILT_IN)}"
        fix = _checks.nearest(source.use, BUILT_IN)
        raise ConfigError(_checks.message(f"{name}.use", expected=expected, got=repr(source.use), fix=fix))
    return guarded(judge, name=name, seconds=source.seconds)


def guarded(judge: Judge, *, name: str, seconds: float = _SECONDS) -> Judge:
    """The same judge, whose failures are one DataError: what it raised, or that it hung, and for which prompt.

    A call may take ``seconds``. It runs in a thread of its own; one that hangs is left behind, and does not keep the
    process alive.
    """
    seconds = _checks.number(seconds, name=f"{name}.seconds", above=0.0)

    def call(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Sequence[float]:
        outcome = _within(judge, seconds, prompts, completions, columns)
        if isinstance(outcome, tuple):
            return outcome[0]
        where = f"in a call about {len(prompts)} answers, the first to {_short(prompts[0])}"
        if outcome is None:
            fix = "raise its seconds, or mend it"
            raise DataError(
                _checks.message(name, expected=f"an answer within {seconds:g} s", got=f"none {where}", fix=fix)
            )
        culprit = _culprit(judge, seconds, prompts, completions, columns)
        where = where if culprit is None else f"for the answer {_short(culprit[1])} to {_short(culprit[0])}"
        told = " ".join(f"{type(outcome).__name__}: {outcome}".split())[:200]
        raise DataError(_checks.message(name, expected="a score", got=f"{told} {where}")) from outcome

    return call


def _within(
    judge: Judge, seconds: float, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
) -> tuple[Sequence[float]] | BaseException | None:
    """What the judge said, in a tuple, or raised; None if it did not come back in time."""
    found: list[tuple[Sequence[float]] | BaseException] = []

    def ask() -> None:
        try:
            found.append((judge(prompts=prompts, completions=completions, **columns),))
        except BaseException as error:  # noqa: BLE001  whatever a user's function raises is told to the user
            found.append(error)

    thread = threading.Thread(target=ask, name="kleash-judge", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def _culprit(
    judge: Judge, seconds: float, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
) -> tuple[Any, Any] | None:
    """The first answer that makes the judge raise on its own; None if none does, or it takes too long to find."""
    found: list[tuple[Any, Any]] = []

    def search(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Sequence[float]:
        for i, pair in enumerate(zip(prompts, completions, strict=True)):
            try:
                judge(prompts=[pair[0]], completions=[pair[1]], **{k: v[i : i + 1] for k, v in columns.items()})
            except Exception:  # noqa: BLE001
                found.append(pair)
                break
        return []

    _within(search, seconds, prompts, completions, columns)
    return found[0] if found else None


def _short(value: Any) -> str:
    return repr(_checks.short(str(value), width=_SHOWN))


def imported(where: str, *, name: str, folder: Path) -> Judge:
    """The function ``module:function`` from a folder, or a `ConfigError` that says what is there instead."""
    module_name, _, attribute = where.partition(":")
    there = str(folder.resolve())
    sys.path.insert(0, there)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not module_name.startswith(error.name):
            fix = "install it"
            said = _checks.message(f"{name}.use", expected=f"{module_name} to import", got=str(error), fix=fix)
        else:
            fix = "put it there, or on PYTHONPATH"
            said = _checks.message(f"{name}.use", expected=f"a module {module_name!r} in {folder}", got="none", fix=fix)
        raise ConfigError(said) from error
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise ConfigError(_checks.message(f"{name}.use", expected=f"{module_name} to import", got=got)) from error
    finally:
        sys.path.remove(there)
    judge = getattr(module, attribute, None)
    if not callable(judge):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        got = "none" if judge is None else type(judge).__name__
        fix = _checks.nearest(attribute, known) if known else ""
        raise ConfigError(
            _checks.message(f"{name}.use", expected=f"a function {attribute!r} in {module_name}", got=got, fix=fix)
        )
    return judge  # type: ignore[no-any-return]


def length(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """Words in the answer: a judge as easy to please as there is.

    Examples
    --------
    >>> length(["Hi"], ["one two  three"])
    [3.0]
    """
    return [float(len(str(text).split())) for text in completions]


def lexicon() -> Judge:
    """The VADER lexicon's compound sentiment of the answer, -1 to 1; a DependencyError without vaderSentiment."""
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError as error:
        fix = "pip install vaderSentiment"
        raise DependencyError(
            _checks.message("the lexicon judge", expected="vaderSentiment", got="nothing installed", fix=fix)
        ) from error
    analyser = SentimentIntensityAnalyzer()

    def sentiment(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        return [float(analyser.polarity_scores(str(text))["compound"]) for text in completions]

    return sentiment


def reward_model(path: str | Path, *, device: str = "cpu") -> Judge:
    """A sequence classifier with one output, from a folder of transformers; its logit is the score.

    Prompt and answer are put through the tokenizer's chat template if it has one, and one after the other if not. A
    MissingFileError without a folder, a ConfigError where it holds no such model, or one with several outputs.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise MissingFileError(_checks.message(f"{path}", expected="the folder of a reward model", got="nothing there"))
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from kleash.train.models import quiet

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).eval().to(device)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: is not a sequence classifier: {' '.join(str(error).split())[:160]}") from error
    if model.config.num_labels != 1:
        raise ConfigError(_checks.message(f"{path}", expected="one output", got=model.config.num_labels))
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ConfigError(_checks.message(f"{path}", expected="a tokenizer with padding", got="none"))
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id

    def text(prompt: Any, answer: Any) -> str:
        if getattr(tokenizer, "chat_template", None) is None:
            return f"{prompt}{answer}"
        turns = [{"role": "user", "content": str(prompt)}, {"role": "assistant", "content": str(answer)}]
        return str(tokenizer.apply_chat_template(turns, tokenize=False))

    def score(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        scores: list[float] = []
        texts = [text(prompt, answer) for prompt, answer in zip(prompts, completions, strict=True)]
        for start in range(0, len(texts), _BATCH):
            batch = tokenizer(texts[start : start + _BATCH], return_tensors="pt", padding=True, truncation=True)
            with torch.no_grad():
                scores += model(**batch.to(device)).logits[:, 0].float().tolist()
        return scores

    return score
