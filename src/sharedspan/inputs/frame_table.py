"""Frames and arrays whose columns must be prepared: DuckDB reads them as it reads files."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.column_arrays import (
    as_arrow,
    as_floats,
    categories_of,
    column_at,
    is_number_type,
)
from sharedspan.inputs.columns import Columns
from sharedspan.inputs.encoders import Encoding, Factor, Number
from sharedspan.inputs.files import (
    SourceFile,
    arrow_batches,
    joined,
    nearest,
    open_duckdb,
    reading,
)
from sharedspan.inputs.frames import (
    as_table,
    column_names,
    find_task_column,
    has_sparse_columns,
    package_of,
    row_count,
    task_labels,
)
from sharedspan.inputs.label_paths import path_labels
from sharedspan.inputs.labels import as_numpy
from sharedspan.inputs.learning import learn_encoding
from sharedspan.inputs.reader import UnseenLevels
from sharedspan.inputs.recognition import recognise
from sharedspan.inputs.table_columns import OpenTable, TableColumns
from sharedspan.inputs.text_format import TextFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duckdb import DuckDBPyConnection

TRUE, FALSE = ("true", "yes", "t"), ("false", "no", "f")  # that DuckDB reads in CSV
_shared: dict[int, DuckDBPyConnection] = {}  # by process, since none survives a fork
_lock = threading.Lock()


@dataclass(frozen=True)
class FrameSource(SourceFile):
    """A frame that DuckDB reads under a name of its own."""

    is_parquet = False

    def scan(self) -> str:
        return "frame"


@contextmanager
def open_frame(table: Any) -> Iterator[OpenTable]:
    """An Arrow table as DuckDB sees it."""
    with _lock:
        if os.getpid() not in _shared:
            _shared.clear()
            _shared[os.getpid()] = open_duckdb(None)
        connection = _shared[os.getpid()].cursor()
    connection.register("frame", table)
    try:
        with reading("X"):
            source = connection.sql("FROM frame")
            types = [str(kind.id) for kind in source.types]
        file = FrameSource("X", dict(zip(source.columns, types, strict=True)), None)
        yield OpenTable(connection, [file])
    finally:
        connection.unregister("frame")
        connection.close()


def raw_names(X: Any) -> list[str]:
    """Names of the columns of a frame, or x0, x1, ... of an array."""
    names = column_names(X)
    return [f"x{j}" for j in range(np.shape(X)[1])] if names is None else list(map(str, names))


def row_labels(X: Any, task_column: Any) -> Any:
    """The task column of a frame or array, the paths of several columns of a frame, or None."""
    if isinstance(task_column, tuple) and task_column not in (column_names(X) or [task_column]):
        return path_labels([column_at(X, place) for place in column_places(X, task_column)])
    return task_labels(X, task_column)


def needs_preparation(X: Any, columns: Any, task_column: Any) -> bool:
    """Whether columns of X must be prepared: some are not numbers, or options say so."""
    if columns is not None:
        return not (isinstance(columns, TableColumns) and columns.encoding.is_plain)
    names = column_names(X)
    if names is None or hasattr(X, "npartitions") or has_sparse_columns(X):
        return False
    kinds = [field.type for field in X.schema] if package_of(X) == "pyarrow" else X.dtypes
    task = None if task_column is None else find_task_column(names, task_column)
    pairs = zip(names, kinds, strict=True)
    return any(name != task and not is_number_type(kind) for name, kind in pairs)


def column_places(X: Any, names: Sequence[str], used: Sequence[str] = ()) -> list[int]:
    """The numbers of the columns of these names; a message does not propose ``used`` ones."""
    known = raw_names(X)
    if lacking := [name for name in names if name not in known]:
        raise ValueError(
            f"X has no column {joined([repr(name) for name in lacking])}: give the columns that "
            f"the model was fitted to.{nearest(lacking[0], set(known) - {*names, *used})}"
        )
    if twice := [name for name in names if known.count(name) > 1]:
        raise ValueError(f"X has two columns named {twice[0]!r}: give each its own name.")
    return [known.index(name) for name in names]


def arrow_table(X: Any, names: Sequence[str]) -> tuple[Any, dict[str, list[str]]]:
    """Columns of a frame as an Arrow table, and the order of levels of the categorical ones."""
    import pyarrow

    places = column_places(X, names)
    categories: dict[str, list[str]] = {}
    arrays = []
    for name, place in zip(names, places, strict=True):
        values = column_at(X, place)
        levels = categories_of(values)
        if levels is not None:
            categories[name] = levels
        if levels is not None and package_of(values) == "pandas":
            codes = values.cat.codes.to_numpy()
            texts = pyarrow.array(levels, pyarrow.string())
            arrays.append(texts.take(pyarrow.array(codes, mask=codes < 0)))
        else:
            arrays.append(as_arrow(values))
    return pyarrow.table(arrays, names=list(names)), categories


@dataclass(frozen=True)
class PreparedFrame:
    """Features of a frame, and what was learned about its columns."""

    X: np.ndarray  # (rows, d); NaN where values are missing
    columns: TableColumns

    def incomplete(self) -> np.ndarray:
        """Which rows lack a value, (rows,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(self.X.sum()):
                return np.zeros(len(self.X), dtype=bool)
        return np.isnan(self.X).any(axis=1)


def learn_frame(X: Any, columns: Columns | None, task_column: Any = None) -> TableColumns:
    """Learn how the columns of a frame or array become features."""
    task = _name_of(X, task_column)
    names = [name for name in raw_names(X) if name != task]
    table, categories = arrow_table(X, names)
    with open_frame(table) as opened:
        encoding = learn_encoding(opened, names, columns or Columns(), categories)
    if not encoding.names:
        raise ValueError(
            f"The columns {joined([repr(name) for name in names])} hold one level each, so no "
            "feature is left: give a column whose values differ."
        )
    return TableColumns(task, None, encoding, "VARCHAR")


def _name_of(X: Any, task_column: Any) -> str | None:
    if task_column is None:
        return None
    names = column_names(X)
    return f"x{task_column}" if names is None else str(find_task_column(names, task_column))


def encode_frame(X: Any, columns: TableColumns) -> PreparedFrame:
    """Features of a frame or array, encoded with the learned columns."""
    encoding = columns.encoding
    if not encoding.columns:
        return PreparedFrame(np.empty((row_count(X), 0)), columns)
    values = read_values(X, encoding, used=columns.task_columns)
    return PreparedFrame(encoding.encode(values, first_row=0), columns)


def read_values(X: Any, encoding: Encoding, used: Sequence[str] = ()) -> list[np.ndarray]:
    """The values of all columns, each (rows,): of numbers as they are, of others by DuckDB."""
    places = column_places(X, [column.column for column in encoding.columns], used)
    values = [
        as_floats(column_at(X, place), encoding.text.missing_numbers)
        if isinstance(column, Number) and not column.is_date
        else None
        for column, place in zip(encoding.columns, places, strict=True)
    ]
    others = [c for c, read in zip(encoding.columns, values, strict=True) if read is None]
    if not others:
        return [read for read in values if read is not None]
    table, _ = arrow_table(X, list(dict.fromkeys(column.column for column in others)))
    table = _with_booleans(table, [c for c in others if isinstance(c, Number) and not c.is_date])
    with open_frame(table) as opened:
        file, unseen = opened.files[0], UnseenLevels()
        _require_types(opened, others, encoding.text)
        sqls = [column.sql(file.types[column.column], encoding.text) for column in others]
        sql = "SELECT " + ", ".join(f"{sql} AS c{i}" for i, sql in enumerate(sqls))
        batches = list(arrow_batches(opened.connection, f"{sql} FROM {file.scan()}", "X"))
        parts = (
            [batch.column(i).to_numpy(zero_copy_only=False) for batch in batches]
            for i in range(len(others))
        )
        read_rest = (np.concatenate(part) if part else np.empty(0, dtype=int) for part in parts)
        complete = [next(read_rest) if read is None else read for read in values]
        unseen.note(encoding, complete)
        unseen.tell(opened.connection, file, encoding.text)
    return complete


def _with_booleans(table: Any, numbers: Sequence[Number]) -> Any:
    """The table with columns of numbers as booleans if all are words such as yes, as in CSV."""
    import pyarrow
    import pyarrow.compute as pc

    for column in numbers:
        values, place = table[column.column], table.column_names.index(column.column)
        if not str(values.type).endswith("string"):
            continue
        words = pc.utf8_lower(pc.utf8_trim_whitespace(values.cast("string")))
        if pc.all(pc.is_in(words, pyarrow.array([*TRUE, *FALSE, None]))).as_py():
            booleans = pc.if_else(pc.is_null(words), None, pc.is_in(words, pyarrow.array(TRUE)))
            table = table.set_column(place, column.column, booleans)
    return table


def target_numbers(y: Any, text: TextFormat) -> Any:
    """Responses as floats if they are text that reads as numbers, and as they are otherwise."""
    values = as_numpy(as_table(y))
    if values.ndim != 1 or values.dtype.kind not in "OU":
        return y
    texts = as_arrow(values)
    if not str(texts.type).endswith("string"):
        return y
    counts = Counter(value for value in texts.to_pylist() if value is not None)
    _, text, _ = recognise({"y": counts}, replace(text, points=()), target="y")
    numbers = text.of("y").numbers(texts)
    return y if numbers is None else numbers


def _require_types(table: OpenTable, columns: Sequence[Number | Factor], text: TextFormat) -> None:
    """Raise if a column of numbers or dates holds something else than in the fit."""
    numbers = [column for column in columns if isinstance(column, Number)]
    table.require_numbers([c.column for c in numbers if not c.is_date], "fitted", text)
    table.require_dates([c for c in numbers if c.is_date], text)
