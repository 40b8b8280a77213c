"""The response of a formula, and known parts of the linear predictor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharedspan.formula.advice import FormulaError
from sharedspan.formula.table import FormulaTable
from sharedspan.inputs.column_arrays import categories_of
from sharedspan.inputs.expressions import Call, Expression, Variable
from sharedspan.inputs.files import joined
from sharedspan.inputs.label_paths import coded_column


def response_levels(response: Expression, table: FormulaTable) -> tuple[str, str] | None:
    """The two levels of a response of text or categories, in their order; None for numbers."""
    if not isinstance(response, Variable) or response.name in table.numbers:
        return None
    name = response.name
    codes, texts = coded_column(table.columns[name])
    codes = codes if table.rows is None else codes[table.rows]
    used = {texts[code] for code in np.unique(codes[codes > 0]).tolist()}
    levels = [
        level for level in categories_of(table.columns[name]) or sorted(used) if level in used
    ]
    if len(levels) != 2:
        raise FormulaError(
            f"The response {name!r} has {len(levels)} values that are not numbers, such as "
            f"{joined([repr(level) for level in levels[:2]])}: give numbers, or two classes."
        )
    first, second = levels
    return first, second


def response_values(
    response: Expression, levels: tuple[str, str] | None, table: FormulaTable
) -> tuple[np.ndarray, np.ndarray | None]:
    """The responses of all rows, and the numbers of trials of shares.

    A class is 1 if it is the second level. A response is NaN if it is missing.
    """
    if levels is not None and isinstance(response, Variable):
        return _classes(response.name, levels, table), None
    if not isinstance(response, Call) or response.function != "cbind":
        return table.value(response), None
    successes, failures = (table.value(part) for part in response.arguments)
    for part, counts in zip(response.arguments, (successes, failures), strict=True):
        if (counts < 0).any():
            row = int(np.argmax(counts < 0))
            raise FormulaError(
                f"The formula has `{response}`, but {part} is {counts[row]:g} in row {row}: give "
                "numbers of successes and of failures."
            )
    trials = successes + failures
    with np.errstate(invalid="ignore"):
        shares = np.where(trials == 0, 0.0, successes / trials)  # a row of no trials has no weight
    return shares, np.where(np.isnan(trials), 0.0, trials)


def _classes(name: str, levels: tuple[str, str], table: FormulaTable) -> np.ndarray:
    codes, texts = coded_column(table.columns[name])
    value = dict.fromkeys(table.text.na_values, np.nan) | {levels[0]: 0.0, levels[1]: 1.0}
    if unknown := sorted(set(texts[1:]) - set(value)):
        raise FormulaError(
            f"The response {name!r} holds {unknown[0]!r}, but its classes are "
            f"{levels[0]!r} and {levels[1]!r}."
        )
    return np.array([np.nan, *(value[text] for text in texts[1:])])[codes]


def offset_values(offsets: Sequence[Expression], table: FormulaTable) -> np.ndarray | None:
    """The sum of offsets in all rows, NaN where a value is missing; None without offsets."""
    total = None
    for offset in offsets:
        values = table.value(offset)
        total = values if total is None else total + values
    return total
