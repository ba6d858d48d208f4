"""One reader of configuration: a TOML, YAML or JSON file as plain data, and plain data as a frozen dataclass.

A file is small, a regular file, and nested no deeper than people write it; what is not is one line of error. A
dataclass says by its annotations what it takes: ``bool``, ``int``, ``float``, ``str``, ``Path``, ``Literal``,
``tuple[X, ...]``, ``Mapping[str, X]``, another dataclass, ``Any``, a union of these; `Within` states limits, and a
function of ``(value, name, folder)`` in ``Annotated`` reads what these cannot say.
"""

from __future__ import annotations

import json
import re
import tomllib
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, cast

from kleash import _checks
from kleash._files import must_be_file
from kleash.errors import ConfigError, KleashError

__all__ = ["Within", "about", "as_path", "as_text", "fill", "read_table", "settle"]

T = TypeVar("T")

_LARGEST = 1 << 20  # bytes; written by people or dumped by trainers, a configuration has some thousands
_MOST = 100_000  # values, aliases written out
_DEEPEST = 50
_EXPONENT = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+")  # YAML 1.1 takes 1e-3, without a point, for a word
_DIGITS = 308  # a longer whole number is beyond the range of floats


@dataclass(frozen=True, kw_only=True)
class Within:
    """Limits of a number, as an annotation: ``Annotated[float, Within(above=0)]``."""

    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None


@contextmanager
def about(path: str | Path) -> Iterator[None]:
    """Whatever is wrong inside is a `ConfigError` about this file."""
    try:
        yield
    except KleashError as error:
        raise ConfigError(f"{path}: {error}") from error


# -------------------------------------------------------------------------------------------------------------- files


def read_table(path: str | Path) -> dict[str, Any]:
    """The table that a TOML, YAML (``.yaml``, ``.yml``) or JSON (``.json``) file holds.

    ``path``: The ending decides; a file of another name is taken for TOML.

    Returns
    -------
    dict
        Keys and values as they stand. Whole numbers fit into a float.

    Raises
    ------
    MissingFileError
        There is no such file.
    ConfigError
        A folder, a pipe, a file of more than a megabyte, none of the format, or no table; aliases of YAML that stand
        for more than 100,000 values, lists nested more than 50 deep, a whole number of more than 308 digits.
    """
    file = Path(path)
    must_be_file(file, expected="a TOML, YAML or JSON file", error=ConfigError)
    kind = {".json": "JSON", ".yaml": "YAML", ".yml": "YAML"}.get(file.suffix.lower(), "TOML")
    try:
        table = _parsed(_content(file), kind)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (RecursionError, ValueError) as error:  # all three decoders' errors are ValueErrors
        got = "nested too deep" if isinstance(error, RecursionError) else _checks.short(str(error), width=200)
        fix = "name it .yaml or .json if it is one" if isinstance(error, tomllib.TOMLDecodeError) else ""
        raise ConfigError(_checks.message(str(path), expected=kind, got=got, fix=fix)) from None
    if not isinstance(table, dict):
        raise ConfigError(_checks.message(str(path), expected="a table of settings", got=type(table).__name__))
    return table


def _content(file: Path) -> str:
    with open(file, "rb") as stream:
        data = stream.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError("a file of more than a megabyte")
    return data.decode("utf-8-sig")


def _parsed(text: str, kind: str) -> Any:
    if kind == "YAML":
        return _yaml(text)
    table = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    _must_be_bounded(table)
    return table


def _yaml(text: str) -> Any:
    """YAML, whose aliases are followed only after what they stand for has been counted; hydra's overrides a table."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        pass

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        _must_be_bounded(node)
        value = None if node is None else loader.construct_document(node)
        if isinstance(value, list) and value and all(isinstance(item, str) and "=" in item for item in value):
            pairs = (item.lstrip("+~").partition("=") for item in value)
            value = {key: yaml.load(shown, Loader) for key, _, shown in pairs}
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    _must_be_bounded(value)
    return _with_text_keys(value)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def _must_be_bounded(value: Any) -> None:
    """ValueError for data, or the nodes of a YAML document, that would outgrow what reads them."""
    stack, count = [(value, 0)], 1
    while stack:
        value, depth = stack.pop()
        if isinstance(value, int) and abs(value) >= 10**_DIGITS:
            raise ValueError(f"a whole number of more than {_DIGITS} digits")
        inside = _inside(value)
        count += len(inside)
        if depth > 2 * _DEEPEST:  # a YAML mapping holds pairs, which hold its values
            raise ValueError(f"tables nested more than {_DEEPEST} deep")
        if count > _MOST:
            raise ValueError(f"aliases that stand for more than {_MOST:,} values, which are not expanded")
        stack += [(item, depth + 1) for item in inside]


def _inside(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    nodes = getattr(value, "value", ())
    return nodes if isinstance(nodes, list) else ()


# -------------------------------------------------------------------------------------------------------- dataclasses


def fill(
    kind: type[T],
    content: Mapping[str, Any],
    *,
    name: str = "",
    folder: Path | None = None,
    given: Mapping[str, Any] | None = None,
) -> T:
    """A frozen dataclass from plain data.

    Parameters
    ----------
    kind
        The dataclass; its annotations say what each key takes.
    content
        Keys and values as `read_table` returns them.
    name
        Name of the table, in messages.
    folder
        Where relative paths begin; default: the working folder.
    given
        Fields that are no keys, with their values.

    Returns
    -------
    An instance of ``kind``.

    Raises
    ------
    ConfigError
        An unknown key (the nearest is named), a missing one, or a value of the wrong kind.
    OptionError
        A number outside its limits.

    Examples
    --------
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Dial:
    ...     beta: float
    ...     seeds: int = 3
    >>> fill(Dial, {"beta": 1})
    Dial(beta=1.0, seeds=3)
    >>> fill(Dial, {"beta": 1, "sedes": 3}, name="dial")
    Traceback (most recent call last):
    kleash.errors.ConfigError: unknown key 'dial.sedes'; did you mean 'seeds'?
    """
    hints, given = typing.get_type_hints(kind, include_extras=True), given or {}
    known = {field.name: field for field in fields(cast("Any", kind)) if field.init and field.name not in given}
    prefix = f"{name}." if name else ""
    for key in content:
        if key not in known:
            raise ConfigError(f"unknown key {prefix + key!r}; {_checks.nearest(key, known)}")
    for key, field in known.items():
        if key not in content and _is_required(field):
            expected = _described(hints[key], prefix + key)
            raise ConfigError(_checks.message(prefix + key, expected=expected, got="none"))
    read = {key: _value(hints[key], value, prefix + key, folder or Path()) for key, value in content.items()}
    return kind(**given, **read)


def settle(made: Any) -> None:
    """Bring a frozen dataclass that was made in Python to the kinds its annotations name, or refuse it.

    Raises `ConfigError`, `OptionError`: As by `fill`.
    """
    for name, hint in typing.get_type_hints(type(made), include_extras=True).items():
        value = getattr(made, name)
        if value is not None:
            plain = list(value) if isinstance(value, tuple) else value
            object.__setattr__(made, name, _value(hint, plain, name, Path()))


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


_NAMES: Mapping[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _described(hint: Any, name: str) -> str:
    """What is expected of an annotation."""
    hint, _ = _bare(hint)
    if is_dataclass(hint):
        return f"a table [{name}] ({', '.join(field.name for field in fields(hint))})"
    if typing.get_origin(hint) is not None and issubclass(_origin(hint), Mapping):
        return "a table"
    return _NAMES.get(hint, "a path" if hint is Path else "a value")


def _bare(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """An annotation without its ``Annotated``, and what was in it."""
    extras = getattr(hint, "__metadata__", ())
    return (typing.get_args(hint)[0] if extras else hint), extras


def _origin(hint: Any) -> type:
    origin = typing.get_origin(hint) or hint
    return origin if isinstance(origin, type) else object


def _value(hint: Any, value: Any, name: str, folder: Path) -> Any:
    """One value, read as its annotation says."""
    bare, extras = _bare(hint)
    for extra in extras:
        if callable(extra):
            return cast("Callable[..., Any]", extra)(value, name, folder)
    origin = typing.get_origin(bare)
    if origin in {typing.Union, UnionType}:
        arms = [arm for arm in typing.get_args(bare) if arm is not NoneType]
        return _value(next((arm for arm in arms if _suits(arm, value)), arms[0]), value, name, folder)
    if origin is typing.Literal:
        return _checks.choice(_of(str, value, name), typing.get_args(bare), name=name)
    if origin is tuple:
        items = value if isinstance(value, list) else [value]
        if not items:
            raise ConfigError(_checks.message(name, expected="at least one", got="an empty list"))
        return tuple(_value(typing.get_args(bare)[0], item, name, folder) for item in items)
    if is_dataclass(bare):
        made = isinstance(value, cast("type[Any]", bare))
        return value if made else fill(cast("type[Any]", bare), _table(value, name), name=name, folder=folder)
    if issubclass(_origin(bare), Mapping):
        inner = typing.get_args(bare)[1]
        return {key: _value(inner, item, f"{name}.{key}", folder) for key, item in _table(value, name).items()}
    return _scalar(bare, value, name, folder, next((e for e in extras if isinstance(e, Within)), Within()))


def _scalar(kind: Any, value: Any, name: str, folder: Path, limits: Within) -> Any:
    if kind is Path:
        return as_path(value, name, folder)
    if kind is int:
        least = None if limits.at_least is None else int(limits.at_least)
        most = {} if limits.at_most is None else {"at_most": int(limits.at_most)}
        return _checks.integer(value, name=name, at_least=least, **most)
    if kind is float:
        return _checks.number(_of(float, value, name), name=name, **asdict(limits))
    return _of(kind, value, name)


def as_text(value: Any, name: str) -> str:
    """A text, or an error."""
    return str(_of(str, value, name))


def as_path(value: Any, name: str, folder: Path) -> Path:
    """A path; a relative one begins at ``folder``."""
    return folder / Path(as_text(value, name)).expanduser()


def _suits(arm: Any, value: Any) -> bool:
    """Whether a value is of the kind that one arm of a union takes."""
    bare, _ = _bare(arm)
    origin = _origin(bare)
    if is_dataclass(bare) or issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if origin is tuple:
        return isinstance(value, list)
    return _is(str if bare is Path or typing.get_origin(bare) is typing.Literal else bare, value)


def _is(kind: Any, value: Any) -> bool:
    """Whole numbers are numbers; true and false, which Python counts among them, are not."""
    if kind is Any:
        return True
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _of(kind: Any, value: Any, name: str) -> Any:
    if not _is(kind, value):
        raise ConfigError(_checks.message(name, expected=_described(kind, name), got=_checks.short(repr(value))))
    return value


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(_checks.message(name, expected="a table", got=_checks.short(repr(value))))
    return value
