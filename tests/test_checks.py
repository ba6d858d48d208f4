"""Errors and the validation at the border: one wording, and the builtin that a caller expects."""

import numpy as np
import pytest

from kleash import _checks, errors
from kleash.errors import DataError, KleashError, OptionError, ShapeError


@pytest.mark.parametrize(
    ("leaf", "builtin"),
    [
        (errors.OptionError, ValueError),
        (errors.ShapeError, ValueError),
        (errors.ConfigError, ValueError),
        (errors.DataError, ValueError),
        (errors.MissingColumnError, DataError),
        (errors.MissingFileError, FileNotFoundError),
        (errors.DependencyError, ImportError),
    ],
)
def test_every_leaf_is_a_kleash_error_and_the_builtin(leaf, builtin):
    assert issubclass(leaf, KleashError)
    assert issubclass(leaf, builtin)
    assert str(leaf("what is wrong")) == "what is wrong"


def test_all_errors_are_exported_and_tested():
    leaves = {
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, KleashError)
    }
    assert leaves == set(errors.__all__)


def test_data_error_says_where():
    assert str(DataError("bad", path="a.csv", line=3)) == "a.csv:3: bad"
    assert str(DataError("bad", path="a.csv")) == "a.csv: bad"
    error = DataError("bad", path="a.csv", line=3)
    assert (error.path, error.line) == ("a.csv", 3)
    assert (DataError("bad").path, DataError("bad").line) == (None, None)


def test_message_has_the_fixed_order():
    assert _checks.message("beta", expected="a number", got="'x'") == "beta: expected a number, got 'x'"
    whole = _checks.message("beta", expected="a number", got="'x'", fix="write 0.1")
    assert whole == "beta: expected a number, got 'x'; write 0.1"


def test_nearest_names_the_closest_word_or_lists_all():
    assert _checks.nearest("oversalted", ["oversalt", "love"]) == "did you mean 'oversalt'?"
    assert _checks.nearest("zzz", ["oversalt", "love"]) == "known: oversalt, love"


def test_choice():
    assert _checks.choice("b", ("a", "b"), name="kind") == "b"
    with pytest.raises(OptionError, match=r"kind: expected one of alpha, beta, got 'alpa'; did you mean 'alpha'\?"):
        _checks.choice("alpa", ("alpha", "beta"), name="kind")


@pytest.mark.parametrize(
    ("value", "limits"), [(0, {"at_least": 0}), (2.5, {"above": 2}), (1, {"at_most": 1}), (-3, {})]
)
def test_number_inside_its_limits(value, limits):
    assert _checks.number(value, name="x", **limits) == value


@pytest.mark.parametrize(
    ("value", "limits", "text"),
    [
        (float("nan"), {}, "x: expected a finite number, got nan"),
        (float("nan"), {"infinite": True}, "x: expected a number, got nan"),
        (float("inf"), {}, "x: expected a finite number, got inf"),
        (-1, {"at_least": 0}, "x: expected a finite number at least 0, got -1"),
        (2, {"above": 2}, "x: expected a finite number above 2, got 2"),
        (1.5, {"above": 0, "at_most": 1}, "x: expected a finite number above 0 and at most 1, got 1.5"),
        ("much", {}, "x: expected a finite number, got 'much'"),
        (None, {}, "x: expected a finite number, got None"),
    ],
)
def test_number_outside_its_limits(value, limits, text):
    with pytest.raises(OptionError) as caught:
        _checks.number(value, name="x", **limits)
    assert str(caught.value) == text


def test_number_lets_infinity_pass_only_where_allowed():
    assert _checks.number(np.inf, name="x", infinite=True) == np.inf
    with pytest.raises(OptionError):
        _checks.number(-np.inf, name="x", infinite=True, at_least=0)


def test_integer():
    assert _checks.integer(np.int32(3), name="n", at_least=3) == 3
    assert type(_checks.integer(np.int32(3), name="n", at_least=3)) is int
    for bad in (2, 3.0, True, "3", None):
        with pytest.raises(OptionError, match="n: expected a whole number of at least 3, got "):
            _checks.integer(bad, name="n", at_least=3)
    with pytest.raises(OptionError, match="got True"):
        _checks.integer(True, name="n", at_least=1)


def test_betas_become_one_axis_of_floats():
    assert _checks.betas(1).tolist() == [1.0]
    assert _checks.betas([0, 1, np.inf]).tolist() == [0.0, 1.0, np.inf]
    assert _checks.betas([1, 2]).dtype == np.float64


def test_betas_are_a_copy_without_negative_zero():
    given = np.array([-0.0, 1.0])
    array = _checks.betas(given)
    assert not np.signbit(array[0])
    array[1] = 5.0
    assert given[1] == 1.0


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "got shape (0,)"),
        ([[1.0, 2.0]], "got shape (1, 2)"),
        ([1.0, -0.5], "beta: expected a number at least 0, got -0.5"),
        ([np.nan], "beta: expected a number at least 0, got nan"),
        (["low"], "got ['low']"),
        ([[1.0], [2.0, 3.0]], "got [[1.0], [2.0, 3.0]]"),
    ],
)
def test_betas_refuse(values, text):
    with pytest.raises(OptionError) as caught:
        _checks.betas(values)
    assert text in str(caught.value)


def test_betas_refuse_infinity_where_the_reference_stands_apart():
    with pytest.raises(OptionError, match="got inf"):
        _checks.betas([1.0, np.inf], infinite=False)


def test_same_shape_lists_every_shape():
    _checks.same_shape(a=np.zeros(2), b=np.ones(2))
    with pytest.raises(ShapeError) as caught:
        _checks.same_shape(reward=np.zeros((2, 3)), gold=np.zeros((2, 4)))
    assert str(caught.value) == "reward and gold: expected arrays of one shape, got reward (2, 3), gold (2, 4)"
