"""A language model from disk, on its device and in its dtype; nothing is fetched."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from kleash import _checks
from kleash.errors import ConfigError, MissingFileError, OptionError

if TYPE_CHECKING:
    from kleash.train.language import ModelSource

__all__ = ["load_model", "quiet"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers draws no bars: what kleash has to say stands alone on stderr."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # reading a GGUF draws a bar of its own
            yield
    finally:
        if shown:
            logging.enable_progress_bar()


def load_model(source: ModelSource) -> tuple[Any, Any, str]:
    """The model, its tokenizer, and the device it is on.

    A MissingFileError without such a folder or file, a ConfigError where transformers cannot read it, an OptionError
    for a device that this machine does not have.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = _device(source.device)
    dtype = torch.float32 if not device.startswith("cuda") else torch.bfloat16
    if source.dtype != "auto":
        dtype = getattr(torch, source.dtype)
    path = source.path if source.path is not None else source.gguf
    assert path is not None
    if not path.exists():
        raise MissingFileError(_checks.message("model", expected="a model on disk", got=f"nothing at {path}"))
    where: dict[str, Any] = {"local_files_only": True}
    if source.gguf is not None:
        where["gguf_file"] = path.name
    folder = path.parent if source.gguf is not None else path
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, **where)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **where)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"model: {path} cannot be read: {' '.join(str(error).split())[:200]}") from error
    return model.to(device).eval(), tokenizer, device


def _device(asked: str) -> str:
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = asked.partition(":")[0]
    _checks.choice(kind, ("cpu", "cuda", "mps"), name="model.device")
    number = asked.partition(":")[2]
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}[kind]
    if kind == "cuda" and there and number:
        there = number.isdigit() and int(number) < torch.cuda.device_count()
    if not there:
        fix = 'ask for "cpu", or "auto"'
        raise OptionError(_checks.message("model.device", expected=f"a device {asked}", got="none here", fix=fix))
    return asked
