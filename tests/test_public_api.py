"""The names that users import, and that importing them stays light."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import kleash

HEAVY = ("numpy", "scipy", "polars", "rich", "click", "torch")


def loaded_by(code):
    """Which of the heavy packages a fresh interpreter has loaded after some code."""
    check = f"{code}\nimport sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("name", kleash.__all__)
def test_every_public_name_is_there(name):
    assert getattr(kleash, name) is not None
    assert name in dir(kleash)


@pytest.mark.parametrize("name", [n for n in kleash.__all__ if n != "__version__"])
def test_public_names_are_documented_and_no_modules(name):
    value = getattr(kleash, name)
    assert not isinstance(value, type(sys)), f"{name} is shadowed by a module"
    assert value.__doc__


def test_no_module_can_put_itself_in_the_place_of_a_name():
    for name in kleash.__all__:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"kleash.{name}")


def test_verbs_stay_functions_after_their_modules_are_loaded():
    import kleash.train.sweep

    assert kleash.sweep is kleash.train.sweep.sweep
    assert callable(kleash.sweep)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'swep'"):
        _ = kleash.swep


def test_type_checkers_see_the_same_names():
    text = Path(kleash.__file__).read_text(encoding="utf-8")
    block = text.split("if TYPE_CHECKING:")[1].split("__all__")[0]
    names = {
        word.strip() for line in block.splitlines() if "import" in line for word in line.split("import")[1].split(",")
    }
    assert names | {"__version__"} == set(kleash.__all__)


def test_the_version_is_text():
    assert kleash.__version__[0].isdigit()


def test_importing_is_light():
    assert loaded_by("import kleash") == set()
    assert loaded_by("import kleash.cli") == {"click"}


def test_help_loads_no_command():
    code = "from kleash.cli import cli\ntry:\n    cli.main(['--help'])\nexcept SystemExit: pass"
    assert loaded_by(code) == {"click"}


def test_a_sweep_loads_no_polars():
    code = "from kleash.cli import cli\ntry:\n    cli.main(['sweep', '--seeds', '1'])\nexcept SystemExit: pass"
    assert loaded_by(code) == {"numpy", "scipy", "rich", "click"}
    extra = "\nimport sys; assert not {'scipy.stats', 'scipy.optimize'} & set(sys.modules)"
    loaded_by(code + extra)


@pytest.mark.parametrize(("old", "new"), [("report_page", "report"), ("translate_beta", "convert")])
def test_an_old_name_works_for_one_release_and_says_its_new_one(old, new):
    assert old not in kleash.__all__
    with pytest.warns(DeprecationWarning, match=f"kleash.{old} is now kleash.{new}") as caught:
        assert getattr(kleash, old) is getattr(kleash, new)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("command", ["check", "conformance", "convert", "forecast", "play", "report", "sweep"])
def test_every_command_has_a_function_of_its_name(command):
    assert command in kleash.__all__
    assert callable(getattr(kleash, command))
