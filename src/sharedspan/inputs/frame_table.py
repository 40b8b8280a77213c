"""Frames and arrays whose columns must be prepared: DuckDB reads them as it reads files."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.columns import Columns, level_text
from sharedspan.inputs.encoders import Encoding, Number
from sharedspan.inputs.files import (
    SourceFile,
    arrow_batches,
    joined,
    nearest,
    open_duckdb,
    reading,
)
from sharedspan.inputs.frames import column_names, find_task_column, has_sparse_columns, package_of
from sharedspan.inputs.labels import is_missing
from sharedspan.inputs.learning import learn_encoding
from sharedspan.inputs.reader import UnseenLevels
from sharedspan.inputs.table_columns import OpenTable, TableColumns
from sharedspan.inputs.text_format import DATES, NUMBERS, TEXTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duckdb import DuckDBPyConnection

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
    return any(name != task and not _is_number(kind) for name, kind in pairs)


def _is_number(kind: Any) -> bool:
    """Whether a type of pandas, polars or pyarrow is one of numbers or booleans."""
    if package_of(kind) == "polars" or hasattr(kind, "is_numeric"):
        return bool(kind.is_numeric()) or str(kind) == "Boolean"
    if package_of(kind) == "pyarrow":
        return str(kind).startswith(("int", "uint", "float", "double", "halffloat", "bool"))
    return getattr(kind, "kind", "O") in "biuf" or getattr(kind, "_is_numeric", False)


def arrow_table(X: Any, names: Sequence[str]) -> tuple[Any, dict[str, list[str]]]:
    """Columns of a frame as an Arrow table, and the order of levels of the categorical ones."""
    import pyarrow

    known = raw_names(X)
    if lacking := [name for name in names if name not in known]:
        raise ValueError(
            f"X has no column {joined([repr(name) for name in lacking])}: give the columns that "
            f"the model was fitted to.{nearest(lacking[0], known)}"
        )
    if twice := [name for name in names if known.count(name) > 1]:
        raise ValueError(f"X has two columns {twice[0]!r}: give each its own name.")
    categories: dict[str, list[str]] = {}
    arrays = []
    for name in names:
        values = _column(X, known.index(name))
        levels = _categories(values)
        if levels is not None:
            categories[name] = levels
        if levels is not None and package_of(values) == "pandas":
            codes = values.cat.codes.to_numpy()
            texts = pyarrow.array(levels, pyarrow.string())
            arrays.append(texts.take(pyarrow.array(codes, mask=codes < 0)))
        else:
            arrays.append(_as_arrow(pyarrow, values))
    return pyarrow.table(arrays, names=list(names)), categories


def _column(X: Any, place: int) -> Any:
    if package_of(X) == "pyarrow":
        return X.column(place)
    if package_of(X) == "polars":
        return X.to_series(place)
    return X.iloc[:, place] if hasattr(X, "iloc") else np.asarray(X)[:, place]


def _categories(values: Any) -> list[str] | None:
    """The levels of a categorical column in the order that users gave them; [] if they gave none.

    The categories of polars, unless they are an Enum, and of Arrow are in the order of the rows.
    """
    kind = getattr(values, "dtype", None)
    levels = getattr(kind, "categories", None)
    if package_of(kind) == "polars":
        name = str(kind)
        levels = levels if name.startswith("Enum") else [] if name.startswith("Cat") else None
    elif package_of(values) == "pyarrow":
        levels = [] if str(values.type).startswith("dictionary") else None
    return None if levels is None else [level_text(level) for level in list(levels)]


def _as_arrow(pyarrow: Any, values: Any) -> Any:
    """A column of any kind as an Arrow array; a mixture of types as text."""
    if hasattr(values, "to_arrow"):
        values = values.to_arrow()
    if isinstance(values, (pyarrow.Array, pyarrow.ChunkedArray)):
        return values.cast(pyarrow.string()) if pyarrow.types.is_null(values.type) else values
    try:
        array = pyarrow.array(values, from_pandas=True)
        return array.cast(pyarrow.string()) if pyarrow.types.is_null(array.type) else array
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        texts = [None if is_missing(value) else str(value) for value in np.asarray(values, object)]
        return pyarrow.array(texts, pyarrow.string())


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
    """Features of a frame or array, by what was learned about its columns."""
    encoding = columns.encoding
    table, _ = arrow_table(X, [column.column for column in encoding.columns])
    with open_frame(table) as opened:
        file = opened.files[0]
        _require_types(opened, encoding)
        listed = ", ".join(f"{sql} AS c{i}" for i, sql in enumerate(encoding.sql(file.types)))
        sql, unseen, blocks = f"SELECT {listed} FROM {file.scan()}", UnseenLevels(), []
        for batch in arrow_batches(opened.connection, sql, "X"):
            values = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
            unseen.note(encoding, values)
            blocks.append(encoding.encode(values))
        unseen.tell(opened.connection, file, encoding.text)
    X = np.concatenate(blocks) if blocks else np.empty((0, len(encoding.names)))
    return PreparedFrame(X, columns)


def _require_types(table: OpenTable, encoding: Encoding) -> None:
    """Raise if a column of numbers or dates holds something else than in the fit."""
    numbers = [c for c in encoding.columns if isinstance(c, Number)]
    table.require_numbers([c.column for c in numbers if not c.is_date], "fitted", encoding.text)
    for column in numbers:
        kind = table.types[column.column]
        if column.is_date and kind not in NUMBERS | TEXTS | DATES:
            raise ValueError(
                f"X: the column {column.column!r} holds values of the type {kind}, and the model "
                "was fitted to dates."
            )
