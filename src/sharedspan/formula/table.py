"""The columns of a user's table that a formula names, read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sharedspan.formula.advice import FormulaError, excerpt
from sharedspan.inputs.column_arrays import as_arrow, as_floats, column_at
from sharedspan.inputs.expressions import Expression, Variable, evaluate
from sharedspan.inputs.files import nearest
from sharedspan.inputs.frame_table import arrow_table, raw_names
from sharedspan.inputs.frames import as_table, column_names, is_dask_frame
from sharedspan.inputs.label_paths import coded_column, group_numbers, path_labels
from sharedspan.inputs.text_format import TextFormat


def as_frame(data: Any) -> Any:
    """A pandas, polars or pyarrow table as it is; a dict of columns as a pyarrow table."""
    frame = as_table(data)
    names = column_names(frame)
    if names is None or is_dask_frame(frame):
        raise TypeError(
            f"The data are a {type(data).__name__}: give a pandas, polars or pyarrow table, or "
            "a dict of columns, whose names the formula has."
        )
    if other := [name for name in names if not isinstance(name, str)]:
        raise FormulaError(
            f"The table has a column named {other[0]!r}, which is not a string: rename it, for "
            "instance by data.rename(columns=str) in pandas."
        )
    return frame


class FormulaTable:
    """Columns of a table, all or some of its rows.

    Parameters
    ----------
    data : pandas, polars or pyarrow table, or dict of columns
    names : sequence of str
        The columns that are used.
    text : TextFormat
        Which values mean a missing one.
    """

    def __init__(self, data: Any, names: Sequence[str], text: TextFormat) -> None:
        self.frame, self.text = as_frame(data), text
        known = raw_names(self.frame)
        for name in names:
            if name not in known:
                raise FormulaError(
                    f"The formula has `{excerpt(name)}`, but the table has no such column."
                    f"{nearest(name, known)}"
                )
            if known.count(name) > 1:
                raise FormulaError(
                    f"The table has two columns named {name!r}: give each its own name."
                )
        self.columns = {name: column_at(self.frame, known.index(name)) for name in names}
        self.numbers = dict[str, np.ndarray]()
        for name, column in self.columns.items():
            values = as_floats(column, text.missing_numbers)
            if values is None and text.has_marks:
                values = text.numbers(as_arrow(column))
            if values is not None:
                self.numbers[name] = values
        self.rows: np.ndarray | None = None  # a mask; None for all rows

    def lacking(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Which rows lack a value, (rows,), for the columns where some do."""
        rows = dict[str, np.ndarray]()
        for name in names:
            values = self.numbers.get(name)
            if values is None:
                rows[name] = self._lacks_text(name)
            elif np.isnan(np.sum(values)):
                rows[name] = np.isnan(values)
        return {name: missing for name, missing in rows.items() if missing.any()}

    def _lacks_text(self, name: str) -> np.ndarray:
        import pyarrow
        import pyarrow.compute

        values = as_arrow(self.columns[name])
        missing = values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        if self.text.na_values and pyarrow.types.is_string(values.type):
            marks = pyarrow.array(self.text.na_values)
            is_mark = pyarrow.compute.is_in(values, value_set=marks)
            missing = missing | is_mark.to_numpy(zero_copy_only=False)
        return missing

    def restrict(self, rows: np.ndarray) -> None:
        """Learn from these rows alone, a mask (rows,)."""
        self.rows = rows

    def number(self, name: str) -> np.ndarray:
        """A column of numbers, in the rows that are learned from."""
        values = self.numbers[name]
        return values if self.rows is None else values[self.rows]

    def arrow(self, names: Sequence[str]) -> tuple[Any, dict[str, list[str]]]:
        """Columns as an Arrow table, in the rows that are learned from.

        The second result is the order of levels of the categorical ones.
        """
        import pyarrow

        table, categories = arrow_table(self.frame, names)
        if self.rows is not None:
            table = table.filter(pyarrow.array(self.rows))
        return table, categories

    def codes(self, names: Sequence[str]) -> np.ndarray:
        """The number of the group of each row that is learned from, 0 if a value is missing."""
        numbers: Any = 0
        missing: Any = False
        for name in names:
            codes, texts = coded_column(self.columns[name])
            numbers, missing = numbers * len(texts) + codes, missing | (codes == 0)
        numbers = np.where(missing, -1, numbers)
        if self.rows is not None:
            numbers, missing = numbers[self.rows], missing[self.rows]
        return group_numbers(numbers) + (0 if np.any(missing) else 1)

    def labels(self, names: Sequence[str]) -> Any:
        """The label of each row's group: a column as it is, or the paths of several."""
        columns = [self.columns[name] for name in names]
        return columns[0] if len(columns) == 1 else path_labels(columns)

    def value(self, expression: Expression) -> np.ndarray:
        """The values of arithmetic in all rows, NaN where one is missing, (rows,)."""
        for name in expression.names:
            if name not in self.numbers:
                raise FormulaError(
                    f"The formula has `{expression}`, but the column {name!r} does not hold "
                    "numbers: convert it to numbers."
                )
        if isinstance(expression, Variable):
            return self.numbers[expression.name]
        return evaluate(expression, self.numbers, first_row=0)
