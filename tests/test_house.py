"""The measures of the house: small modules, small functions, few parameters, docstrings that say what comes back.

Each test lists what does not fit yet. Nothing may be added to a list, and what fits is taken off it.
"""

import ast
import statistics
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "kleash"


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function of the package: where it is, how long it is without its docstring, what it takes and says."""

    module: str
    node: ast.FunctionDef

    @property
    def docstring(self):
        return ast.get_docstring(self.node) or ""

    @property
    def lines(self):
        told = self.node.body[0].end_lineno - self.node.body[0].lineno + 1 if self.docstring else 0
        return self.node.end_lineno - self.node.lineno + 1 - told

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

LONG_MODULES = {
    "forecast.py",
    "trl.py",
    "drawing.py",
    "__init__.py",
}
LONG_FUNCTIONS = {"forecast"}
MANY_PARAMETERS = {"__init__"}
SILENT = {
    "animate",
    "best_of_n",
    "blocks",
    "class_probabilities",
    "drift_test",
    "estimate",
    "estimate_prompts",
    "exact_frontier",
    "fit_ratio",
    "from_arrays",
    "frontier_of",
    "frontier_table",
    "full_kl_of",
    "heavy_tail",
    "inline_svg",
    "judge",
    "kitchen",
    "log_e_above",
    "means",
    "moments",
    "open_run",
    "page",
    "pair",
    "penalty_return",
    "plot",
    "read",
    "reweight",
    "row_status",
    "conformance",
    "run_own",
    "run_trl",
    "score",
    "score_tail",
    "settings_of",
    "slope_bounds",
    "sort_inputs",
    "source_of",
    "standardised_beta",
    "two_arm",
    "unseen_cheats",
    "update",
    "view",
}


def found(functions):
    return sorted({function.node.name for function in functions})


def test_no_module_has_more_than_400_lines():
    long = {module for module, text in MODULES.items() if len(text.splitlines()) > 400}
    assert sorted(module for module in long if Path(module).name not in LONG_MODULES) == []


def test_no_function_has_more_than_80_lines():
    assert found(f for f in FUNCTIONS if f.lines > 80 and f.node.name not in LONG_FUNCTIONS) == []


def test_half_of_the_functions_have_at_most_8_lines_and_of_a_hundred_at_most_3_more_than_50():
    lines = [function.lines for function in FUNCTIONS]
    assert statistics.median(lines) <= 8
    assert sum(number > 50 for number in lines) <= 0.03 * len(lines)


def test_no_function_takes_more_than_12_parameters():
    """But for the commands, whose parameters are their flags, and the public forecast."""
    own = [f for f in FUNCTIONS if not f.module.startswith("cli/") and f.node.name != "forecast"]
    assert found(f for f in own if len(f.parameters) > 12 and f.node.name not in MANY_PARAMETERS) == []


def test_who_explains_parameters_explains_what_comes_back():
    explained = [f for f in FUNCTIONS if "\nParameters\n---" in f.docstring and f.returns]
    silent = [f for f in explained if "\nReturns\n---" not in f.docstring and "\nYields\n---" not in f.docstring]
    assert found(f for f in silent if f.node.name not in SILENT) == []
