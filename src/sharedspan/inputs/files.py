"""Rows of users' CSV and Parquet files as arrays: one small table, or a piece of a large one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.paths import SourceFile, connect, existing, joined, readable
from sharedspan.inputs.schema import Selection, resolve

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PARTITION_ROWS = 1_000_000


@dataclass
class Tally:
    """Rows seen, and how many lack a value or hold infinity, by column; tallies add up.

    Columns are counted in the order task, target, features.
    """

    n_rows: int = 0
    n_incomplete: int = 0
    absent: Any = 0  # (d + 2,)
    infinite: Any = 0  # (d + 2,)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.n_rows + other.n_rows,
            self.n_incomplete + other.n_incomplete,
            self.absent + other.absent,
            self.infinite + other.infinite,
        )

    def require(self, selection: Selection, missing: str) -> None:
        """Raise where there are no rows, infinite values, or missing ones that are not dropped."""
        names = [selection.task, selection.target, *(f.column for f in selection.features)]
        where = selection.files[0].path
        if len(selection.files) > 1:
            where = f"Each of the {len(selection.files)} files, such as {where},"
        if self.n_rows == 0:
            raise ValueError(f"{where} has no rows below its column names.")
        for name, count in zip(names, np.broadcast_to(self.infinite, len(names)), strict=True):
            if count:
                raise ValueError(
                    f"The column {name!r} holds infinity in {count} row(s): correct them, or write "
                    "them as missing."
                )
        if self.n_incomplete == 0:
            return
        by_name = dict(zip(names, self.absent, strict=True))  # levels of a column lack together
        counts = [f"{name!r} {count}" for name, count in by_name.items() if count]
        said = f"{self.n_incomplete} of {self.n_rows} rows lack a value ({joined(counts)})"
        if missing == "error":
            raise ValueError(
                f"{said}: leave these rows out (--missing drop, or missing='drop' in Python), "
                "leave the columns out, or fill them in."
            )
        if self.n_incomplete == self.n_rows:
            raise ValueError(f"{said}: none is left, so leave out the columns that lack most.")


def check_rows(
    has_label: np.ndarray | None, y: np.ndarray, X: np.ndarray
) -> tuple[np.ndarray | None, Tally]:
    """Which rows have everything, (rows,), or None for all; and their tally.

    Parameters
    ----------
    has_label : ndarray of shape (rows,), or None where all rows have one
    y : ndarray of shape (rows,)
    X : ndarray of shape (rows, d)
    """
    with np.errstate(all="ignore"):  # a sum that is finite has finite terms
        if has_label is None and np.isfinite(y.sum()) and np.isfinite(X.sum()):
            return None, Tally(len(y))
    absent = np.column_stack([np.zeros(len(y), dtype=bool), np.isnan(y), np.isnan(X)])
    if has_label is not None:
        absent[:, 0] = ~has_label
    infinite = np.array([0, np.isinf(y).sum(), *np.isinf(X).sum(axis=0)])
    kept: np.ndarray = np.logical_not(absent.any(axis=1))
    tally = Tally(len(y), int(np.sum(~kept)), absent.sum(axis=0), infinite)
    return (None if kept.all() else kept), tally


@dataclass(frozen=True)
class Table:
    """Columns of a file by their part in a regression."""

    X: np.ndarray  # (rows, d)
    y: np.ndarray  # (rows,)
    task: np.ndarray  # (rows,) integers, floats or strings
    feature_names: tuple[str, ...]
    n_dropped: int  # rows left out for a missing value


def read_table(
    path: str | Path,
    *,
    task: str,
    target: str,
    drop: str | Iterable[str] = (),
    missing: str = "error",
) -> Table:
    """Read a CSV or Parquet file: one column of tasks, one target, all others features.

    Parameters
    ----------
    path : str or Path
        Ending in .csv, .tsv or .txt (first line: the names; also with .gz), or in .parquet or .pq.
    task : str
        The column that says which task a row belongs to; numbers or text.
    target : str
    drop : str or iterable of str, optional
        Columns that are no features.
    missing : {"error", "drop"}, default="error"
        "drop" leaves out the rows that lack a value in a used column.

    Returns
    -------
    Table
        Rows in the order of the file.

    Raises
    ------
    ValueError
        In one line: no such file or column, columns that are not numbers, missing values.
    """
    if missing not in ("error", "drop"):
        raise ValueError(f"missing={missing!r} is unknown: use 'error' or 'drop'.")
    file = existing(Path(path))
    selection = resolve([file], task=task, target=target, drop=drop, text=None)
    selection = replace(selection, dtype="float64")
    rows = read_partition(selection, Partition(0, 0, 0, None))
    rows.tally.require(selection, missing)
    labels = rows.labels
    if labels.dtype == object:
        labels = labels.astype(str)
    return Table(rows.X, rows.y, labels, selection.names, rows.tally.n_incomplete)


@dataclass(frozen=True)
class Partition:
    """Neighbouring rows of one file."""

    file: int  # number in ``Selection.files``
    first: int  # row in the file
    start: int  # the same row counted over all files
    n_rows: int | None  # None for a whole file of unknown length


def partitions(selection: Selection, rows: int = PARTITION_ROWS) -> list[Partition]:
    """Pieces that together hold all rows, in their order.

    Parameters
    ----------
    selection : Selection
    rows : int
        Wanted size. Parquet is cut between row groups, which stay whole; a CSV file is one piece,
        and its rows are counted.
    """
    found: list[Partition] = []
    start = 0
    with connect() as connection:
        for number, file in enumerate(selection.files):
            first, size = 0, 0
            for count in [*_group_sizes(connection, file), None]:
                if size and (count is None or size + count > rows):
                    found.append(Partition(number, first, start, size))
                    first, start, size = first + size, start + size, 0
                size += count or 0
    return found


def _group_sizes(connection: DuckDBPyConnection, file: SourceFile) -> list[int]:
    """Rows of each row group of a Parquet file; of a CSV file as a whole."""
    sql = f"SELECT count(*) FROM {file.scan()}"
    if file.is_parquet:
        sql = (
            f"SELECT any_value(row_group_num_rows) FROM parquet_metadata({file.sql_path}) "
            "GROUP BY row_group_id ORDER BY row_group_id"
        )
    with readable(file.path):
        return [count for (count,) in connection.sql(sql).fetchall()]


@dataclass(frozen=True)
class Rows:
    """The complete rows of a partition, in the order of the file."""

    labels: np.ndarray  # (rows,) of int64, uint64, float64 or of str objects
    X: np.ndarray  # (rows, d) of the selection's dtype
    y: np.ndarray  # (rows,)
    numbers: np.ndarray  # (rows,) counted over all files
    tally: Tally  # of all rows, incomplete ones too


def read_partition(
    selection: Selection, partition: Partition, *, memory: int | None = None, threads: int = 1
) -> Rows:
    """Read one piece into memory.

    Rows that lack a value are left out and counted, and infinite values are counted: add the
    tallies of all pieces up and ask ``Tally.require`` whether they may be used.

    Parameters
    ----------
    selection : Selection
    partition : Partition
    memory : int, optional
        Bytes that DuckDB may use; None for its default, most of the machine.
    threads : int
    """
    file, stop = selection.files[partition.file], None
    if file.is_parquet and partition.n_rows is not None:
        stop = partition.first + partition.n_rows
    with connect(memory, threads) as connection, readable(file.path):
        scan = file.scan(partition.first, stop)
        columns = connection.sql(selection.query(scan)).to_arrow_table().columns
    n_rows = len(columns[0])
    y, X = as_matrix(columns, selection.dtype)
    labels = without_nan(columns[0].combine_chunks()).dictionary_encode()
    codes = labels.indices.fill_null(-1).to_numpy()
    kept, tally = check_rows(codes >= 0 if (codes < 0).any() else None, y, X)
    distinct = np.array(labels.dictionary.to_pylist(), dtype=_DTYPES[selection.label])
    numbers = partition.start + np.arange(n_rows)
    if kept is not None:
        codes, X, y, numbers = codes[kept], X[kept], y[kept], numbers[kept]
    return Rows(distinct[codes], X, y, numbers, tally)


_DTYPES = {"BIGINT": "int64", "UBIGINT": "uint64", "DOUBLE": "float64", "VARCHAR": "object"}


def without_nan(labels: Any) -> Any:
    """Arrow's labels with NULL for NaN."""
    import pyarrow.compute as pc

    if str(labels.type) != "double":
        return labels
    return pc.if_else(pc.is_nan(labels), None, labels)


def as_matrix(columns: Sequence[Any], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Target (rows,) and features (rows, d) of the columns of a query; NaN where there is none."""
    X = np.empty((len(columns[0]), len(columns) - 2), dtype=dtype)
    for j, column in enumerate(columns[2:]):
        X[:, j] = _as_numpy(column)
    return np.array(_as_numpy(columns[1])), X


def _as_numpy(column: Any) -> np.ndarray:
    import pyarrow

    if isinstance(column, pyarrow.ChunkedArray):
        return column.to_numpy()
    return column.to_numpy(zero_copy_only=False)
