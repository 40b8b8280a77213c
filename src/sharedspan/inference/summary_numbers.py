"""Numbers of a summary as text, with digits as R chooses them.

The numbers of a column have a common number of decimals, with which the one that needs most has
four significant digits. Numbers that would need too many are written as 1.234e-07.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sharedspan.inference.summary import Estimate

DIGITS = 4
MOST_DECIMALS = 6
WIDEST = 10  # characters of a number
LEAST_P = 2.2e-16  # smaller p-values are not distinguished


def fixed_point(value: float, decimals: int) -> str:
    """A number with some decimals; a rounded zero has no sign."""
    if not np.isfinite(value):
        return "NA" if np.isnan(value) else ("Inf" if value > 0 else "-Inf")
    text = f"{value:.{decimals}f}"
    return text if text.strip("-0.") else text.lstrip("-")


def decimals_of(value: float, digits: int = DIGITS) -> int:
    """Decimals with which a number has its significant digits."""
    if not np.isfinite(value) or value == 0:
        return 0
    return max(digits - 1 - int(f"{value:.{digits - 1}e}".split("e")[1]), 0)


def decimals_needed(value: float, digits: int = DIGITS) -> int:
    """The number of decimals that are needed, without zeros at the end of the number."""
    decimals = decimals_of(value, digits)
    text = f"{value:.{decimals}f}"
    return decimals - (len(text) - len(text.rstrip("0"))) if decimals else 0


def format_rows(
    columns: Sequence[Any], needed: Sequence[int], most: int = MOST_DECIMALS
) -> list[tuple[str, ...]]:
    """Columns (c, rows) of numbers as text, row by row, all with the same decimals where they can.

    Parameters
    ----------
    columns : sequence of c arrays of shape (rows,)
    needed : sequence of int
        The decimals that each row needs.
    most : int
        A row that needs more is written with exponents.
    """
    common = max((decimals for decimals in needed if decimals <= most), default=0)
    return [
        tuple(_format(float(value), own, common, most) for value in row)
        for row, own in zip(zip(*columns, strict=True), needed, strict=True)
    ]


def format_column(values: Any, digits: int = DIGITS, most: int = MOST_DECIMALS) -> list[str]:
    """A column of numbers as text."""
    needed = [decimals_needed(float(value), digits) for value in values]
    return [cells[0] for cells in format_rows([values], needed, most)]


def format_capped(values: Any, most: int) -> list[str]:
    """A column of numbers with at most ``most`` decimals, which suffice for small ones."""
    needed = [min(decimals_needed(float(value)), most) for value in values]
    return [cells[0] for cells in format_rows([values], needed)]


def format_p(p: float) -> str:
    """A p-value with three significant digits."""
    if np.isnan(p) or p >= 0.1:
        return fixed_point(p, 3)
    if p < LEAST_P:
        return "<2e-16"
    return f"{p:.2e}" if p < 1e-4 else fixed_point(p, 2 - int(np.floor(np.log10(p))))


def percent_text(level: float) -> str:
    """The level of an interval in per cent."""
    return f"{100 * level:.6g} %"


def bound_texts(level: float) -> tuple[str, str]:
    """The probabilities below the bounds of an interval, in per cent."""
    return percent_text((1 - level) / 2), percent_text((1 + level) / 2)


def estimate_decimals(estimate: Estimate, digits: int = DIGITS) -> int:
    """The decimals of an estimate; if it is nearly zero, those of its upper bound."""
    decimals = decimals_of(estimate.value, digits)
    if estimate.high is None or (estimate.value and decimals <= MOST_DECIMALS):
        return decimals
    return decimals_of(estimate.high, digits)


def estimate_text(estimate: Estimate, level: float) -> str:
    """An estimate, with its interval in brackets if it has one."""
    columns = [[or_nan(x)] for x in estimate]
    value, low, high = format_rows(columns, [estimate_decimals(estimate)])[0]
    if estimate.low is None and estimate.high is None:
        return value
    return f"{value} ({percent_text(level)} interval {low} to {high})"


def or_nan(value: float | None) -> float:
    """A number that may be missing."""
    return np.nan if value is None else value


def _format(value: float, own: int, common: int, most: int) -> str:
    """A number with the common decimals, with its own if it is too long, or with an exponent."""
    if not np.isfinite(value) or value == 0:
        return fixed_point(value, common)
    for decimals in (common, own) if own <= most else ():
        text = fixed_point(value, decimals)
        if len(text) <= WIDEST:
            return text
    return f"{value:.{DIGITS - 1}e}"
