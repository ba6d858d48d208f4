"""Which prompts a run is measured on, and their token ids as the trainer would make them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kleash._checks import message
from kleash.errors import OptionError

__all__ = ["end_ids", "prompt_rows", "token_ids"]

_PICTURES = {"image", "images", "video", "videos", "audio"}


def prompt_rows(trainer: Any, prompts: Any | None, n: int) -> list[dict[str, Any]]:
    """The first ``n`` prompts, a dictionary each: those given, else of ``eval_dataset``, else of ``train_dataset``.

    Raises `OptionError`: Fewer than two, no column ``prompt``, or prompts with pictures or sound.
    """
    source = prompts
    if source is None:
        source = trainer.eval_dataset if trainer.eval_dataset is not None else trainer.train_dataset
    if source is None:
        raise OptionError(message("prompts", expected="at least 2", got="no data set", fix="prompts=[...]"))
    if isinstance(source, dict):
        source = next(iter(source.values()))
    rows: list[dict[str, Any]] = []
    for row in source:
        rows.append(dict(row) if isinstance(row, dict) else {"prompt": row})
        if len(rows) == n:
            break
    if len(rows) < 2:
        raise OptionError(message("prompts", expected="at least 2", got=len(rows), fix="prompts=[...]"))
    if any("prompt" not in row and "prompt_ids" not in row for row in rows):
        fix = "prompts=[...], or a data set with that column"
        raise OptionError(message("prompts", expected="a column prompt", got=", ".join(rows[0]), fix=fix))
    if any(_pictured(row) for row in rows):
        fix = "measure on prompts of text alone: prompts=[...]"
        raise OptionError(message("prompts", expected="text", got="pictures or sound", fix=fix))
    return rows


def token_ids(trainer: Any, tokenizer: Any, row: dict[str, Any]) -> list[int]:
    """A prompt's token ids, as the trainer makes them."""
    if "prompt" not in row:  # a preference data set that the trainer has tokenised
        row["prompt"] = tokenizer.decode(row["prompt_ids"])
        return list(row["prompt_ids"])
    prompt = row["prompt"]
    if isinstance(prompt, str):
        ids = trainer.processing_class(text=[prompt])["input_ids"][0]
    else:
        more = getattr(trainer, "chat_template_kwargs", None) or {}
        ids = tokenizer.apply_chat_template(
            prompt,
            chat_template=getattr(trainer, "chat_template", None),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **more,
        )["input_ids"]
    if not len(ids):
        raise OptionError(message("prompts", expected="at least one token each", got=f"none in {prompt!r}"))
    return [int(i) for i in ids]


def _pictured(row: Mapping[str, Any]) -> bool:
    """Whether a prompt holds more than text: nothing here would show it to the model."""
    if any(row.get(name) is not None for name in _PICTURES):
        return True
    prompt = row.get("prompt")
    parts = [
        part
        for turn in (prompt if isinstance(prompt, list) else [])
        if isinstance(turn, dict) and isinstance(turn.get("content"), list)
        for part in turn["content"]
    ]
    return any(isinstance(part, dict) and part.get("type", "text") != "text" for part in parts)


def end_ids(trainer: Any, tokenizer: Any) -> list[int]:
    """Tokens that end an answer: the trainer's own list, or the tokenizer's and those of the model's settings."""
    known = getattr(trainer, "eos_token_ids", None)
    if known is None:
        settings = getattr(trainer.accelerator.unwrap_model(trainer.model), "generation_config", None)
        more = getattr(settings, "eos_token_id", None)
        known = [tokenizer.eos_token_id, *(more if isinstance(more, list) else [more])]
    return list(dict.fromkeys(int(i) for i in known if i is not None))
