"""The rows of users' files as arrays: batch by batch, as one table, or in parts for a cluster."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.columns import MISSING
from sharedspan.inputs.encoders import UNSEEN_CODE, Encoding, Factor
from sharedspan.inputs.files import (
    FilePaths,
    SourceFile,
    arrow_batches,
    exact_path,
    fetch,
    joined,
    literal,
    open_duckdb,
    quoted,
    reading,
    shortened,
)
from sharedspan.inputs.matching_columns import match_columns
from sharedspan.inputs.table_columns import OpenTable, Selection, TableColumns
from sharedspan.inputs.text_format import TextFormat

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

READ_MEMORY = 1_000_000_000  # bytes that DuckDB takes while batches are read
PARTITION_ROWS = 1_000_000
LABEL_DTYPES = {"BIGINT": "int64", "UBIGINT": "uint64", "DOUBLE": "float64", "VARCHAR": "object"}


@dataclass
class Tally:
    """Numbers of rows, and of missing and infinite values in each column; tallies add up.

    Columns are counted in the order task, target, features.
    """

    n_rows: int = 0
    n_incomplete: int = 0
    n_missing: Any = 0  # (d + 2,)
    n_infinite: Any = 0  # (d + 2,)

    def __add__(self, other: Tally) -> Tally:
        return Tally(*map(add, vars(self).values(), vars(other).values()))

    def count(self, labels: Any, y: np.ndarray, X: np.ndarray) -> np.ndarray | None:
        """Add rows; returns which of them lack nothing, (rows,), or None for all."""
        self.n_rows += len(y)
        no_label = labels.is_null(nan_is_null=True)
        with np.errstate(all="ignore"):  # a sum that is finite has finite terms
            if not no_label.true_count and np.isfinite(y.sum()) and np.isfinite(X.sum()):
                return None
        numbers = np.column_stack([y, X])
        missing = np.column_stack([no_label.to_numpy(zero_copy_only=False), np.isnan(numbers)])
        complete: np.ndarray = np.logical_not(missing.any(axis=1))
        self.n_incomplete += int(np.sum(~complete))
        self.n_missing = self.n_missing + missing.sum(axis=0)
        self.n_infinite = self.n_infinite + np.append(0, np.isinf(numbers).sum(axis=0))
        return None if complete.all() else complete

    def require(self, selection: Selection, missing: str) -> None:
        """Raise if there are no rows, infinite values, or missing ones that are not dropped."""
        columns = selection.columns
        names = [columns.task_name, columns.target, *columns.column_of]
        if self.n_rows == 0:
            where = selection.files[0].path
            if len(selection.files) > 1:
                where = f"Each of the {len(selection.files)} files, such as {where},"
            raise ValueError(f"{where} has no rows below its column names: give a table with rows.")
        for name, count in zip(names, np.broadcast_to(self.n_infinite, len(names)), strict=True):
            if count:
                raise ValueError(
                    f"The column {name!r} holds infinity in {count} row(s): correct them, or write "
                    "them as missing."
                )
        if self.n_incomplete == 0:
            return
        by_name = dict(zip(names, self.n_missing, strict=True))  # levels of a column count once
        counts = [f"{name!r} {count}" for name, count in by_name.items() if count]
        where = selection.files[0].path
        if len(selection.files) > 1:
            where = f"{len(selection.files)} files, such as {where}"
        problem = (
            f"{where}: {self.n_incomplete} of {self.n_rows} rows have missing values "
            f"({joined(counts)})"
        )
        empty = [name for name, count in by_name.items() if count == self.n_rows]
        if empty and set(empty) <= set(columns.column_of):
            typed = " ".join(f"--drop {shlex.quote(str(name))}" for name in empty)
            one = len(empty) == 1
            raise ValueError(
                f"The column{'' if one else 's'} {joined([repr(name) for name in empty])} "
                f"{'has' if one else 'have'} no values: leave {'it' if one else 'them'} out "
                f"({typed}, or drop={empty} in Python)."
            )
        if missing == "error" and selection.is_fitted:
            raise ValueError(
                f"{problem}: leave these rows out (--missing drop), correct them, or fit the model "
                "again with --missing indicator (columns=ss.Columns(missing='indicator') in "
                "Python), which fills values in."
            )
        if missing == "error":
            raise ValueError(
                f"{problem}: leave these rows out (--missing drop, or "
                "columns=ss.Columns(missing='drop') in Python), fill values in and mark them "
                "(--missing indicator, or missing='indicator'), or leave the columns out."
            )
        if self.n_incomplete == self.n_rows:
            raise ValueError(
                f"{problem}: no complete row is left, so leave out the columns with the most "
                "missing values."
            )


@dataclass
class UnseenLevels:
    """Refuses levels that were not in the fit, or warns of them once for each column."""

    columns: dict[str, Factor] = field(default_factory=dict)  # with such levels
    warned: set[str] = field(default_factory=set)

    def note(self, encoding: Encoding, values: Sequence[np.ndarray]) -> None:
        """Note the columns that have such levels in some rows."""
        for column, codes in zip(encoding.columns, values, strict=True):
            if isinstance(column, Factor) and not column.pools and (codes == UNSEEN_CODE).any():
                self.columns[column.column] = column

    def tell(self, connection: DuckDBPyConnection, file: SourceFile, text: TextFormat) -> None:
        """Raise or warn, after the rows of a file have been read."""
        for name, column in self.columns.items():
            if name in self.warned:
                continue
            self.warned.add(name)
            value = column.value_sql(file.types[name], text)
            known = ", ".join(map(literal, column.known))
            sql = f"SELECT v FROM (SELECT {value} AS v FROM {file.scan()}) WHERE v NOT IN ({known})"
            ((level,),) = fetch(connection, f"{sql} LIMIT 1", file.path)
            problem = (
                f"{file.path}: the column {name!r} holds {shortened(level)!r}, which was not in "
                f"the fit, only {joined([repr(known) for known in column.known])}"
            )
            if column.unseen == "error":
                raise ValueError(f"{problem}: leave such rows out, or fit with them.")
            warnings.warn(
                f"{problem}. Such rows are predicted by the mean over the fitted rows.",
                UserWarning,
                stacklevel=2,
            )


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of a file that have all values they need."""

    labels: Any  # Arrow array (rows,) of labels, or of their codes
    y: np.ndarray  # (rows,), NaN where the target is missing
    X: np.ndarray  # (rows, d)
    also: list[Any]  # Arrow arrays (rows,) of the other columns


@dataclass
class RowReader:
    """Reads the rows of files in their order, and leaves out rows that lack a value.

    After the first value that makes the rows unusable, further rows are only counted, so that the
    error can give the number of all such values.
    """

    selection: Selection
    missing: str = "error"  # otherwise rows that still lack a value are left out
    also: Sequence[str] = ()  # other columns to read
    needs_target: bool = True  # whether rows without the target lack a value
    tally: Tally = field(default_factory=Tally)  # of all rows so far
    unseen: UnseenLevels = field(default_factory=UnseenLevels)

    def __post_init__(self) -> None:
        if self.missing not in MISSING:
            listed = ", ".join(map(repr, MISSING))
            raise ValueError(f"missing={self.missing!r} is unknown: use {listed}.")

    def __len__(self) -> int:
        """Rows of all files, incomplete ones too."""
        with open_duckdb() as connection:
            counts = (fetch(connection, f"SELECT count(*) FROM {file.scan()}", file.path)
                      for file in self.selection.files)  # fmt: skip
            return sum(count for ((count,),) in counts)

    def __iter__(self) -> Iterator[RowBatch]:
        """Batches of all files; raises at the end if the rows may not be used."""
        with open_duckdb(READ_MEMORY) as connection:
            for file in self.selection.files:
                yield from self.read(connection, file)
        self.tally.require(self.selection, self.missing)

    def read(
        self,
        connection: DuckDBPyConnection,
        file: SourceFile,
        label_sql: str | None = None,
        batch_rows: int = 1 << 17,
    ) -> Iterator[RowBatch]:
        """Batches of one file; ``label_sql`` selects codes in place of labels."""
        import pyarrow

        columns, encoding = self.selection.columns, self.selection.columns.encoding
        last, sql = len(encoding.columns) + 2, columns.query(file, label_sql, self.also)
        for batch in arrow_batches(connection, sql, file.path, batch_rows):
            labels, also = batch.column(0), batch.columns[last:]
            y = np.array(batch.column(1).to_numpy(zero_copy_only=False))
            values = [column.to_numpy(zero_copy_only=False) for column in batch.columns[2:last]]
            self.unseen.note(encoding, values)
            X = np.empty((len(y), 0))
            if values:
                X = encoding.encode(values, self.selection.dtype)
            complete = self.tally.count(labels, y if self.needs_target else np.zeros(len(y)), X)
            lacking = self.tally.n_incomplete > 0 and self.missing == "error"
            if lacking or np.any(self.tally.n_infinite):
                continue
            if complete is not None:
                mask, y, X = pyarrow.array(complete), y[complete], X[complete]
                labels, also = labels.filter(mask), [column.filter(mask) for column in also]
            if len(y):
                yield RowBatch(labels, y, X, also)
        self.unseen.tell(connection, file, encoding.text)

    def arrays(
        self, batches: Iterable[RowBatch] | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """X (rows, d), y (rows,) and labels (rows,) of batches, or of all rows of all files.

        Labels are int64, uint64, float64, or str objects.
        """
        columns, dtype = self.selection.columns, LABEL_DTYPES[self.selection.columns.label]
        Xs, ys = [np.empty((0, len(columns.names)), self.selection.dtype)], [np.empty(0)]
        labels = [np.empty(0, dtype)]
        for batch in self if batches is None else batches:
            encoded = batch.labels.dictionary_encode()  # so that each text is made once
            distinct = np.array(encoded.dictionary.to_pylist(), dtype=dtype)
            labels.append(distinct[encoded.indices.to_numpy()])
            Xs.append(batch.X)
            ys.append(batch.y)
        return np.concatenate(Xs), np.concatenate(ys), np.concatenate(labels)


def read_matching(
    paths: FilePaths,
    columns: TableColumns,
    missing: str | None = None,
    *,
    also: Sequence[str] = (),
    needs_target: bool = True,
) -> RowReader:
    """A reader of rows in double precision, from files with the columns of an earlier fit.

    Rows that lack a value are treated as in the fit, or as ``missing`` says.
    """
    selection = match_columns(paths, columns, also=also, needs_target=needs_target)
    missing = columns.encoding.missing if missing is None else missing
    return RowReader(replace(selection, dtype="float64"), missing, also, needs_target)


def partitions(selection: Selection, rows: int = PARTITION_ROWS) -> list[SourceFile]:
    """The files in parts of about ``rows`` rows, in their order.

    Parquet is cut between row groups, which stay whole; a CSV file is one part.
    """
    import pyarrow.parquet

    parts: list[SourceFile] = []
    for file in selection.files:
        if file.csv is not None:
            parts.append(file)
            continue
        with reading(file.path):
            groups = pyarrow.parquet.read_metadata(exact_path(file.path))
        first, stop = 0, 0
        for i in range(groups.num_row_groups):
            count = groups.row_group(i).num_rows
            if first < stop and stop + count - first > rows:
                parts.append(replace(file, rows=(first, stop)))
                first = stop
            stop += count
        parts.append(replace(file, rows=(first, stop)))
    return parts


def read_partition(
    selection: Selection, part: SourceFile
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tally]:
    """X (rows, d), y (rows,), labels (rows,) and the tally of one part of the files.

    Rows that lack a value are left out and counted, and infinite values are counted: add up the
    tallies of all parts, and ``Tally.require`` raises if the rows may not be used.
    """
    reader = RowReader(selection, "drop")
    with open_duckdb(None, threads=1) as connection:
        return *reader.arrays(reader.read(connection, part)), reader.tally


def read_columns(paths: FilePaths, names: Sequence[str]) -> Any:
    """Columns of files as an Arrow table, their values as they are.

    If one of them is unknown, the table has all columns of the files and no rows.
    """
    import pyarrow

    with open_duckdb(None) as connection:
        table = OpenTable.of_files(connection, paths)
        if not set(names) <= set(table.types):
            return pyarrow.table({name: pyarrow.array([], "string") for name in table.types})
        listed = ", ".join(map(quoted, names))
        batches = [
            batch
            for file in table.files
            for batch in arrow_batches(connection, f"SELECT {listed} FROM {file.scan()}", file.path)
        ]
    return pyarrow.Table.from_batches(batches)
