"""Arithmetic of formulas: NumPy's values, errors in words, and nothing else."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sharedspan.inputs.expressions import (
    Call,
    Constant,
    Operation,
    Variable,
    evaluate,
    require_arithmetic,
)

x, z = Variable("x"), Variable("z")
VALUES = {"x": np.array([1.0, 2.0, np.nan, 4.0]), "z": np.array([0.5, np.nan, 3.0, -1.0])}


def op(operator, *operands):
    return Operation(operator, operands)


def call(function, argument):
    return Call(function, (argument,))


@pytest.mark.parametrize(
    ("expression", "expected", "text"),
    [
        (op("+", x, z, Constant(1.0)), VALUES["x"] + VALUES["z"] + 1, "x + z + 1"),
        (op("+", x, op("-", z)), VALUES["x"] - VALUES["z"], "x - z"),
        (op("-", op("*", x, z)), -VALUES["x"] * VALUES["z"], "-x * z"),
        (op("/", x, op("+", z, Constant(9.0))), VALUES["x"] / (VALUES["z"] + 9), "x/(z + 9)"),
        (op("^", x, op("-", Constant(2.0))), VALUES["x"] ** -2.0, "x^(-2)"),
        (call("log", call("I", x)), np.log(VALUES["x"]), "log(I(x))"),
        (call("exp", call("sqrt", x)), np.exp(np.sqrt(VALUES["x"])), "exp(sqrt(x))"),
    ],
)  # fmt: skip
def test_values_are_those_of_numpy(expression, expected, text):
    assert_allclose(evaluate(expression, VALUES), expected)
    assert str(expression) == text


def test_a_missing_value_stays_missing():
    for expression in (
        op("^", x, Constant(0.0)),
        op("^", Constant(1.0), x),
        op("*", x, Constant(0.0)),
    ):
        assert_array_equal(np.isnan(evaluate(expression, VALUES)), np.isnan(VALUES["x"]))


ONE, HALF, THOUSAND, HUGE = map(Constant, (1.0, 0.5, 1000.0, 1e300))


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        (call("log", z), r"^log\(z\) is not defined for -1 in row 103: leave such rows out"),
        (call("log", op("+", x, op("-", ONE))), r"log\(x - 1\) is not .* for 0 in row 100"),
        (call("sqrt", z), r"^sqrt\(z\) is not defined for -1 in row 103"),
        (op("/", x, op("+", z, ONE)), r"^x/\(z \+ 1\) is not defined for 4 and 0 in row 103"),
        (call("exp", op("*", x, THOUSAND)), r"^exp\(x \* 1000\) is too large for 1000 in row"),
        (op("^", z, HALF), r"^z\^0.5 is not defined for -1 and 0.5 in row 103"),
        (op("^", op("*", x, HUGE), Constant(2.0)), r"is too large for 1e\+300 and 2 in row 100"),
    ],
)
def test_a_value_that_is_not_defined_is_named_with_its_row(expression, sentence):
    with pytest.raises(ValueError, match=sentence):
        evaluate(expression, VALUES, first_row=100)


def test_infinite_values_of_users_are_not_blamed_on_the_formula():
    values = {"x": np.array([1.0, np.inf])}
    assert_array_equal(evaluate(op("+", x, Constant(1.0)), values), [2.0, np.inf])


def test_other_functions_and_operators_are_no_arithmetic():
    for odd in (Call("system", (x,)), Call("factor", (x,)), op(":", x, z), op("|", x, z)):
        with pytest.raises(ValueError, match="is not arithmetic"):
            require_arithmetic(op("+", x, odd))


def test_trees_are_not_deep():
    tree = x
    for _ in range(59):
        tree = call("I", tree)
    with pytest.raises(ValueError, match="more than 60 levels"):
        call("I", tree)
