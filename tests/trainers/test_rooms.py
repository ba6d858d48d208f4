"""Rooms above the trainers read their facts and name none of them."""

import ast
import re
from pathlib import Path

import pytest

from kleash.trainers import TRAINERS, projects

SRC = Path(__file__).parents[2] / "src" / "kleash"
ROOMS = ("logs", "audit", "translate", "samples")
WORDS = {*TRAINERS, *projects(), *(name.partition("-")[0] for name in TRAINERS), "grpo", "rloo", "kto"}
NAMED = re.compile(rf"(?<![a-z])({'|'.join(map(re.escape, sorted(WORDS, key=len, reverse=True)))})(?![a-z])", re.I)
PROSE = {"lm", "open", "ms", "llama", "prime", "art", "roll"}  # words, and first parts that are words


def code_of(tree):
    """Every name and string of a module that is no docstring."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.lineno, node.value
        elif isinstance(node, ast.Name | ast.FunctionDef | ast.ClassDef | ast.arg | ast.alias | ast.Attribute):
            yield (
                node.lineno,
                getattr(node, "id", None) or getattr(node, "name", None) or getattr(node, "arg", None) or node.attr,
            )


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_above_names_a_trainer(room):
    found = []
    for path in [*(SRC / room).rglob("*.py"), *SRC.glob(f"{room}.py")]:
        spots = [(0, path.stem), *code_of(ast.parse(path.read_text(encoding="utf-8")))]
        found += [f"{path.name}:{line} {text[:60]!r}" for line, text in spots
                  if any(m[1].lower() not in PROSE for m in NAMED.finditer(text.replace("_", " ")))]  # fmt: skip
    assert found == []


@pytest.mark.parametrize("room", ["trials", "integrations"])
def test_rooms_that_run_a_trainer_take_its_names_from_its_facts(room):
    """They import the package itself, so its own name is in them; which trainers there are is not."""
    classes = {name for trainer in TRAINERS.values() for name in trainer.classes or ()}
    found = []
    for path in (SRC / room).rglob("*.py"):
        for line, text in code_of(ast.parse(path.read_text(encoding="utf-8"))):
            found += [f"{path.name}:{line} {text[:60]!r}"] * any(
                name in text for name in {*TRAINERS, *classes} - {"verl", *PROSE}
            )
    assert found == []
