"""The measures of the house: small modules, small functions, few parameters, docstrings that say what comes back."""

import ast
import statistics
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "kleash"


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function of the package: where it is, how long its body is without the docstring, what it takes and says."""

    module: str
    node: ast.FunctionDef

    @property
    def docstring(self):
        return ast.get_docstring(self.node) or ""

    @property
    def lines(self):
        body = self.node.body[1:] if self.docstring else self.node.body
        return body[-1].end_lineno - body[0].lineno + 1 if body else 0

    @property
    def parameters(self):
        given = self.node.args
        several = [one for one in (given.vararg, given.kwarg) if one is not None]
        named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *several]
        return [one.arg for one in named if one.arg not in ("self", "cls")]

    @property
    def returns(self):
        return self.node.returns is not None and ast.unparse(self.node.returns) != "None"


MODULES = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
FUNCTIONS = [
    Function(module=module, node=node)
    for module, text in MODULES.items()
    for node in ast.walk(ast.parse(text))
    if isinstance(node, ast.FunctionDef)
]


def found(functions):
    return sorted({function.node.name for function in functions})


def test_no_module_has_more_than_400_lines():
    assert [module for module, text in MODULES.items() if len(text.splitlines()) > 400] == []


def test_no_function_has_more_than_80_lines():
    assert found(f for f in FUNCTIONS if f.lines > 80) == []


def test_half_of_the_functions_have_at_most_8_lines_and_of_a_hundred_at_most_1_more_than_50():
    lines = [function.lines for function in FUNCTIONS]
    assert statistics.median(lines) <= 8
    assert sum(number > 50 for number in lines) <= 0.01 * len(lines)


def test_no_function_takes_more_than_12_parameters():
    """But for the commands, whose parameters are their flags, and the public forecast."""
    own = [f for f in FUNCTIONS if not f.module.startswith("cli/") and f.node.name != "forecast"]
    assert found(f for f in own if len(f.parameters) > 12) == []


def test_who_explains_parameters_explains_what_comes_back():
    explained = [f for f in FUNCTIONS if "\nParameters\n---" in f.docstring and f.returns]
    silent = [f for f in explained if "\nReturns\n---" not in f.docstring and "\nYields\n---" not in f.docstring]
    assert found(silent) == []
