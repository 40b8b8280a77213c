"""The rows of users' files as arrays: batch by batch, as one table, or in parts for a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.columns import Columns, Selection
from sharedspan.inputs.files import (
    FilePaths,
    SourceFile,
    arrow_batches,
    fetch,
    joined,
    open_duckdb,
    reading,
)
from sharedspan.inputs.selection import match_columns

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
        names = [columns.task, columns.target, *(f.column for f in columns.features)]
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
        problem = f"{self.n_incomplete} of {self.n_rows} rows lack a value ({joined(counts)})"
        if missing == "error":
            raise ValueError(
                f"{problem}: leave these rows out (--missing drop, or missing='drop' in Python), "
                "leave the columns out, or fill them in."
            )
        if self.n_incomplete == self.n_rows:
            raise ValueError(f"{problem}: none is left, so leave out the columns that lack most.")


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
    missing: str = "error"  # "drop" leaves out rows that lack a value
    also: Sequence[str] = ()  # other columns to read
    needs_target: bool = True  # whether rows without the target lack a value
    tally: Tally = field(default_factory=Tally)  # of all rows so far

    def __post_init__(self) -> None:
        if self.missing not in ("error", "drop"):
            raise ValueError(f"missing={self.missing!r} is unknown: use 'error' or 'drop'.")

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

        columns, dtype = self.selection.columns, self.selection.dtype
        d, sql = len(columns.features), columns.query(file, dtype, label_sql, self.also)
        for batch in arrow_batches(connection, sql, file.path, batch_rows):
            labels, also = batch.column(0), batch.columns[d + 2 :]
            y = np.array(batch.column(1).to_numpy(zero_copy_only=False))
            X = np.empty((len(y), d), dtype)
            for j, column in enumerate(batch.columns[2 : d + 2]):
                X[:, j] = column.to_numpy(zero_copy_only=False)
            complete = self.tally.count(labels, y if self.needs_target else np.zeros(len(y)), X)
            lacking = self.tally.n_incomplete > 0 and self.missing == "error"
            if lacking or np.any(self.tally.n_infinite):
                continue
            if complete is not None:
                mask, y, X = pyarrow.array(complete), y[complete], X[complete]
                labels, also = labels.filter(mask), [column.filter(mask) for column in also]
            if len(y):
                yield RowBatch(labels, y, X, also)

    def arrays(
        self, batches: Iterable[RowBatch] | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """X (rows, d), y (rows,) and labels (rows,) of batches, or of all rows of all files.

        Labels are int64, uint64, float64, or str objects.
        """
        columns, dtype = self.selection.columns, LABEL_DTYPES[self.selection.columns.label]
        Xs, ys = [np.empty((0, len(columns.features)), self.selection.dtype)], [np.empty(0)]
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
    columns: Columns,
    missing: str = "error",
    *,
    also: Sequence[str] = (),
    needs_target: bool = True,
) -> RowReader:
    """A reader of rows in double precision, from files with the columns of an earlier fit."""
    selection = match_columns(paths, columns, also=also, needs_target=needs_target)
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
            groups = pyarrow.parquet.read_metadata(file.path)
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
