"""Arithmetic with columns of numbers, as a formula writes it: its tree, its text and its values.

    log(size + 1),     I(x^2),     exp(-t / 10)

A tree holds columns, numbers, the functions of ``FUNCTIONS`` and the operators of ``ARITHMETIC``.
It is evaluated by NumPy over arrays that are given by name, and nothing else is called or looked
up. The parser of formulas uses the same trees, with further functions and operators, for what it
has read; ``require_arithmetic`` refuses these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

DEEPEST = 60  # levels of a tree
PLAIN_NAME = re.compile(r"(?:[^\W\d]|\.(?![0-9]))[\w.]*")  # others stand in backquotes
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "I": np.positive, "log": np.log, "exp": np.exp, "sqrt": np.sqrt,
}  # fmt: skip
ARITHMETIC = ("+", "-", "*", "/", "^")
GROWING = ("+", "-", "*", "exp")  # whose results are infinite only if they are too large
# How tightly operators bind: left and right operands must bind as tightly as the numbers say.
BINDING = {"|": (0, 1, 1), "||": (0, 1, 1), "*": (2, 2, 3), "/": (2, 2, 3), ":": (3, 3, 4),
           "^": (5, 6, 5)}  # fmt: skip


class Expression:
    """A part of a formula: a column, a number, a function or an operator."""

    @property
    def parts(self) -> tuple[Expression, ...]:
        """What a function or an operator is applied to."""
        return ()

    @cached_property
    def depth(self) -> int:
        """Levels of the tree."""
        return 1 + max((part.depth for part in self.parts), default=0)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns, in the order of their first appearance."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.names))

    def __str__(self) -> str:
        return written(self, 0)

    def __post_init__(self) -> None:
        if not all(isinstance(part, Expression) for part in self.parts):
            raise ValueError(f"These are not parts of a formula: {self.parts!r}.")
        if self.depth > DEEPEST:
            raise ValueError(f"An expression has more than {DEEPEST} levels.")


@dataclass(frozen=True)
class Variable(Expression):
    """A column."""

    name: str

    @cached_property
    def names(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True)
class Constant(Expression):
    """A number."""

    value: float


@dataclass(frozen=True)
class Call(Expression):
    """A function of one or more arguments."""

    function: str
    arguments: tuple[Expression, ...]

    @property
    def parts(self) -> tuple[Expression, ...]:
        return self.arguments


@dataclass(frozen=True)
class Operation(Expression):
    """An operator: "+" of two or more operands, "-" of one, all others of two."""

    operator: str
    operands: tuple[Expression, ...]

    @property
    def parts(self) -> tuple[Expression, ...]:
        return self.operands

    def __post_init__(self) -> None:
        super().__post_init__()
        n = len(self.operands)
        if n != (1 if self.operator == "-" else 2) and not (self.operator == "+" and n > 2):
            raise ValueError(f"The operator {self.operator!r} has {n} operands.")


def walk(expression: Expression) -> Iterator[Expression]:
    """An expression and all its parts."""
    yield expression
    for part in expression.parts:
        yield from walk(part)


def require_arithmetic(expression: Expression) -> None:
    """Raise for functions and operators that are not arithmetic."""
    for part in walk(expression):
        if isinstance(part, Call) and (part.function not in FUNCTIONS or len(part.arguments) != 1):
            raise ValueError(f"`{part}` is not arithmetic.")
        if isinstance(part, Operation) and part.operator not in ARITHMETIC:
            raise ValueError(f"`{part}` is not arithmetic.")


# ---- text ----------------------------------------------------------------------------------------


def written(expression: Expression, tightly: int) -> str:
    """The text of an expression, in parentheses unless its operator binds as tightly as asked."""
    if isinstance(expression, Variable):
        return written_name(expression.name)
    if isinstance(expression, Constant):
        return repr(expression.value).removesuffix(".0")
    if isinstance(expression, Call):
        return f"{expression.function}({', '.join(map(str, expression.arguments))})"
    assert isinstance(expression, Operation)
    operator, operands = expression.operator, expression.operands
    if operator in "+-":
        bound, text = 1, _written_sum(operands if operator == "+" else (expression,))
    else:
        bound, *sides = BINDING[operator]
        spaced = f" {operator} " if operator in ("|", "||", "*") else operator
        text = spaced.join(map(written, operands, sides))
    return text if bound >= tightly else f"({text})"


def _written_sum(operands: tuple[Expression, ...]) -> str:
    text = ""
    for operand in operands:
        minus = isinstance(operand, Operation) and operand.operator == "-"
        sign = "-" if minus else "+" if text else ""
        text += f" {sign} " if text else sign
        text += written(operand.parts[0] if minus else operand, 2)
    return text


def written_name(name: str) -> str:
    """The name of a column as a formula has it."""
    return name if PLAIN_NAME.fullmatch(name) and name != "." else f"`{name}`"


# ---- values --------------------------------------------------------------------------------------


@dataclass(eq=False)
class UndefinedError(Exception):
    """A part of an expression that has no value in a row."""

    expression: Expression
    operands: tuple[float, ...]
    row: int
    too_large: bool


def evaluate(
    expression: Expression, values: Mapping[str, np.ndarray], *, first_row: int | None = None
) -> np.ndarray:
    """The values of an expression, (rows,).

    Parameters
    ----------
    expression : Expression
    values : dict of {str: ndarray of shape (rows,)}
        Columns of numbers, NaN where a value is missing; the result is NaN there too.
    first_row : int, optional
        The number of the first of these rows, by which an error names a row.

    Raises
    ------
    ValueError
        If a value is not defined, such as the logarithm of zero.
    """
    try:
        with np.errstate(all="ignore"):
            return np.asarray(_value(expression, values), dtype=float)
    except UndefinedError as error:
        where = "" if first_row is None else f" in row {first_row + error.row}"
        given = " and ".join(f"{operand:.6g}" for operand in error.operands)
        problem = "too large" if error.too_large else "not defined"
        raise ValueError(
            f"{error.expression} is {problem} for {given}{where}: leave such rows out, or change "
            "the formula."
        ) from None


def _value(expression: Expression, values: Mapping[str, np.ndarray]) -> Any:
    """The value of a tree, by recursion."""
    if isinstance(expression, Variable):
        return values[expression.name]
    if isinstance(expression, Constant):
        return expression.value
    operands = [_value(part, values) for part in expression.parts]
    if isinstance(expression, Call):
        name, result = expression.function, FUNCTIONS[expression.function](operands[0])
    else:
        assert isinstance(expression, Operation)
        name, result = expression.operator, _combined(expression.operator, operands)
    if np.isfinite(np.sum(result)):
        return result
    return _require_defined(expression, name, np.asarray(result), operands)


def _combined(operator: str, operands: list[Any]) -> Any:
    if operator == "+":
        total = operands[0]
        for operand in operands[1:]:
            total = total + operand
        return total
    if operator == "-":
        return np.negative(operands[0])
    first, second = operands
    if operator == "^":
        power = np.power(first, second, dtype=float)
        # NaN^0 and 1^NaN are 1 in NumPy, but a missing value stays missing.
        return np.where(np.isnan(first) | np.isnan(second), np.nan, power)
    return np.multiply(first, second) if operator == "*" else np.divide(first, second)


def _require_defined(
    expression: Expression, name: str, result: np.ndarray, operands: list[Any]
) -> np.ndarray:
    """The result, unless it is not finite where all operands are."""
    odd = ~np.isfinite(result)
    for operand in operands:
        odd &= np.isfinite(operand)
    if odd.any():
        row = int(np.argmax(odd))
        given = tuple(float(np.broadcast_to(operand, odd.shape).flat[row]) for operand in operands)
        too_large = bool(np.isinf(result.flat[row])) and (
            name in GROWING or (name == "^" and given[0] != 0)
        )
        raise UndefinedError(expression, given, row, too_large)
    return result
