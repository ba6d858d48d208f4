"""Who answers: a model on this machine or a server, and what its answers hang on. Loads neither."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kleash import _checks
from kleash.errors import DependencyError, MissingFileError, OptionError
from kleash.sampling.model import Model, Server
from kleash.train.language import ModelSource, model_file

__all__ = ["answering"]


def answering(
    model: str | Path | ModelSource,
    *,
    url: str | Server | None,
    adapter: str | Path | None,
    max_new_tokens: int,
    seed: int,
) -> tuple[dict[str, Any], Callable[[], Model]]:
    """What draws hang on, as plain data, and a function that loads who answers.

    Raises
    ------
    MissingFileError, ConfigError
        There is no such model.
    OptionError
        An adapter for a server, or a model that is no name.
    """
    asked: dict[str, Any] = {"seed": seed, "max_new_tokens": max_new_tokens}
    if url is not None:
        if adapter is not None:
            fix = "serve the adapted model, or name its folder by --model"
            raise OptionError(_checks.message("adapter", expected="none with a server", got=f"{adapter}", fix=fix))
        server = Server(url=url) if isinstance(url, str) else url
        name = str(model)

        def connect() -> Model:
            try:
                from kleash.sampling.server import ServerModel
            except ImportError as error:
                raise _needed(error) from error
            return ServerModel(server, name, max_new_tokens=max_new_tokens, seed=seed)

        return asked | {"url": server.url.rstrip("/"), "model": name}, connect
    source = model if isinstance(model, ModelSource) else _local(str(model))
    path = source.path if source.path is not None else source.gguf
    assert path is not None
    folder = None if adapter is None else Path(adapter)

    def load() -> Model:
        try:
            from kleash.sampling.local import LocalModel
        except ImportError as error:
            raise _needed(error) from error
        return LocalModel(source, adapter=folder, max_new_tokens=max_new_tokens, seed=seed)

    asked |= {"model": _fingerprint(path, "model"), "dtype": source.dtype, "chat": source.chat}
    return asked | {"adapter": None if folder is None else _fingerprint(folder, "adapter")}, load


def _local(spec: str) -> ModelSource:
    return ModelSource(gguf=model_file(spec)) if spec.endswith(".gguf") else ModelSource(path=Path(spec).expanduser())


def _fingerprint(path: Path, name: str) -> str:
    """Name and digest of a model: its configuration's content, and names and sizes of its files."""
    if not path.exists():
        fix = "name a folder of transformers or a .gguf file, or a server by --url"
        raise MissingFileError(_checks.message(name, expected="a model on disk", got=f"nothing at {path}", fix=fix))
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    told = [f"{file.name} {file.stat().st_size}" for file in files if file.is_file()]
    told += [file.read_text(encoding="utf-8", errors="replace") for file in files if file.name.endswith("config.json")]
    return f"{path.resolve().name} {hashlib.sha256(chr(10).join(told).encode()).hexdigest()[:16]}"


def _needed(error: ImportError) -> DependencyError:
    fix = "pip install 'kleash[sample]'"
    return DependencyError(
        _checks.message("kleash sample", expected="torch, transformers and openai", got=f"no {error.name}", fix=fix)
    )
