"""Imports go one way, late ones and those by name too, and no modules need each other in a circle."""

import ast
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import kleash

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "kleash"
LATE = {"import_module", "__import__"}


def name_of(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
FLOORS = {
    room.strip(): floor for floor, rooms in enumerate(reversed(CONTRACTS[0]["layers"])) for room in rooms.split("|")
}


def known(name):
    """The module that a dotted name is, or is in; a public name's is where it is at home. None outside the package."""
    if name.startswith("kleash.") and name not in MODULES:
        name = kleash._MODULE.get(name.removeprefix("kleash."), name)
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name if name != "kleash" else None


def runs(node):
    """Every part of a program that runs: all but what stands there for a type checker."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    yield node
    for part in ast.iter_child_nodes(node):
        yield from runs(part)


def late(tree):
    """Modules of the package that are named in a call which imports, as far as the text of the name goes."""
    for node in runs(tree):
        if isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for part in ast.walk(node.args[0]) if called in LATE else ():
                if isinstance(part, ast.Constant) and str(part.value).startswith("kleash"):
                    yield str(part.value).rstrip(".")


def stated(tree):
    """Names that import statements bring in, wherever the statements stand."""
    for node in runs(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def needs(module, text):
    tree = ast.parse(text)
    names = {name for name in (*stated(tree), *late(tree)) if name.split(".")[0] == "kleash"}
    return {known(name) for name in names} - {None, module}


def up(module, text):
    """Rooms on a higher floor, or on the same one, that a module needs, however late."""
    if "kleash" in stated(ast.parse(text)):
        return ["kleash"]  # the root hands out the names of every room
    room = module.split(".")[1]
    rooms = {name.split(".")[1] for name in needs(module, text)}
    return sorted(name for name in rooms - {room} if FLOORS[name] >= FLOORS[room])


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"kleash"}))  # which hands out the names of all rooms
def test_what_a_module_needs_is_below_it(module):
    assert up(module, MODULES[module]) == []


def test_no_modules_need_each_other_in_a_circle():
    try:
        TopologicalSorter({module: needs(module, text) for module, text in MODULES.items()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize(
    "text",
    [
        "from importlib import import_module\nimport_module('kleash.reporting.drawing')",
        "import importlib\ndef f(name):\n    importlib.import_module(f'kleash.reporting.{name}')",
        "def f():\n    __import__('kleash.cli')",
        "def f():\n    from kleash import forecast",
        "def f():\n    import kleash\n    kleash.forecast([])",
    ],
)
def test_an_arrow_up_is_seen(text):
    assert up("kleash.frontier", text)
