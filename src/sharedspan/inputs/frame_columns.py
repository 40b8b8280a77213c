"""Columns of a pandas, polars or pyarrow frame: labels, numbers and arrays of numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from sharedspan.inputs.labels import is_missing


class FrameColumns:
    """Columns of a frame, checked when they are read; errors name the column and the task.

    Parameters
    ----------
    frame : pandas, polars or pyarrow table, or one that has the Arrow stream interface
    task : str
        The column of labels by which errors name a row.
    required : sequence of str
        Columns that the frame must have.
    """

    def __init__(self, frame: Any, task: str, required: Sequence[str]) -> None:
        self.frame, self.names = _as_table(frame)
        for name in required:
            if name not in self.names:
                given = ", ".join(map(repr, self.names[:12]))
                raise ValueError(
                    f"The frame has no column {name!r}, only {given}: give the result of "
                    "sharedspan.statistics_query."
                )
        for name in self.names:
            if self.names.count(name) > 1:
                raise ValueError(f"The frame has two columns {name!r}: leave one out.")
        labels = np.asarray(self.frame[task].to_numpy())
        if labels.ndim != 1:
            raise ValueError(f"The column {task!r} has shape {labels.shape}: give a label per row.")
        self.labels = labels
        self.known = ~np.fromiter(map(is_missing, labels.tolist()), bool, len(labels))
        self.rows = np.arange(len(labels))  # that are read

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def select(self, mask: np.ndarray) -> None:
        """Read only some rows of the frame from now on."""
        self.rows = np.flatnonzero(mask)

    def where(self, row: int) -> str:
        """The task of a row, in words."""
        place = self.rows[row]
        (label,) = self.labels[place : place + 1].tolist()
        return f"task {label!r}" if self.known[place] else "the task NULL"

    def numbers(self, name: str) -> np.ndarray:
        """A column of finite numbers of zero or more, (rows,)."""
        column = self._arrow(name)
        values = self._as_floats(column, name)
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            row = int(np.argmax(bad))
            value = "NULL" if not column[row].is_valid else f"{values[row]:g}"
            raise ValueError(
                f"The column {name!r} is {value} for {self.where(row)}: give a number of zero or "
                "more."
            )
        return values

    def arrays(self, name: str, width: int | None = None) -> np.ndarray:
        """A column of arrays of equally many finite numbers, (rows, width)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self._arrow(name)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = self._parsed(column, name)
        kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        if not any(is_kind(column.type) for is_kind in kinds):
            raise ValueError(
                f"The column {name!r} is of type {column.type}: give an array of numbers for each "
                "task."
            )
        lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
        if width is None:  # that of most tasks
            width = int(np.bincount(lengths + 1).argmax()) - 1
        odd = (lengths != width) | (lengths < 0)
        if odd.any():
            row = int(np.argmax(odd))
            has = "is NULL" if lengths[row] < 0 else f"has {lengths[row]} numbers"
            raise ValueError(
                f"The column {name!r} {has} for {self.where(row)}: give {max(width, 0)} for every "
                "task, by the number of features and the target."
            )
        values = self._as_floats(column.flatten(), name).reshape(len(self.rows), width)
        bad = ~np.isfinite(values)
        if bad.any():
            row, place = np.argwhere(bad)[0]
            raise ValueError(
                f"The column {name!r} has {values[row, place]:g} at place {place} for "
                f"{self.where(row)}: its rows hold NULL, infinite or very large values."
            )
        return values

    def texts(self, name: str) -> list[Any]:
        """The distinct values of a column."""
        return list(self._arrow(name).unique().to_pylist())

    def _arrow(self, name: str) -> Any:
        """The rows of a column that are read, as an Arrow array."""
        import pyarrow as pa

        column = self.frame[name]
        try:
            if not isinstance(column, pa.ChunkedArray):
                column = column.to_arrow() if hasattr(column, "to_arrow") else pa.array(column)
            if isinstance(column, pa.ChunkedArray):
                column = column.combine_chunks()
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ValueError(
                f"The column {name!r} holds values of several kinds ({error}): give those of "
                "sharedspan.statistics_query."
            ) from None
        return column if len(self.rows) == len(column) else column.take(pa.array(self.rows))

    def _parsed(self, column: Any, name: str) -> Any:
        """Arrays that are written as text, as [1, 2] or as {1,2}."""
        import pyarrow as pa

        values = []
        for row, text in enumerate(column.to_pylist()):
            try:
                values.append(json.loads((text or "").replace("{", "[").replace("}", "]")))
                if not isinstance(values[-1], list):
                    raise ValueError
            except ValueError:
                raise ValueError(
                    f"The column {name!r} holds the text {text!r:.40} for {self.where(row)}: give "
                    "an array of numbers."
                ) from None
        try:
            return pa.array(values, pa.list_(pa.float64()))
        except (pa.ArrowException, TypeError):
            raise ValueError(f"The column {name!r} holds arrays of other than numbers.") from None

    @staticmethod
    def _as_floats(column: Any, name: str) -> np.ndarray:
        """Numbers of an Arrow array, NaN for NULL; a copy."""
        import pyarrow as pa

        kind = column.type
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not is_number and not pa.types.is_decimal(kind) and not pa.types.is_null(kind):
            raise ValueError(f"The column {name!r} holds {kind} values: give numbers.")
        floats = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.array(floats, dtype=float)


def _as_table(frame: Any) -> tuple[Any, list[str]]:
    """A frame whose columns can be taken by name, and their names."""
    import pyarrow as pa

    home = type(frame).__module__.split(".")[0]
    known = home in ("pandas", "polars") and type(frame).__name__ == "DataFrame"
    if not known and not isinstance(frame, pa.Table) and hasattr(frame, "__arrow_c_stream__"):
        frame = pa.table(frame)
    if isinstance(frame, pa.Table):
        return frame, list(frame.column_names)
    if not known:
        raise TypeError(
            f"The frame is a {type(frame).__name__}: give a pandas, polars or pyarrow table, with "
            "a row for each task."
        )
    return frame, [str(name) for name in frame.columns]
