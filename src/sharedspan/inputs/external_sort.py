"""Tables larger than memory: the rows of files, sorted by task, in a temporary file.

Rows are read once, in the order of the files, and appended to buckets on disk. A bucket is a range
of tasks whose rows fit in memory, so each can then be sorted separately; the sort is stable, and
within a task rows stay in the order of the files. DuckDB's own sort would need the space twice, for
its runs and for the result, and takes longer (`benchmarks/files.py`).
"""

from __future__ import annotations

import itertools
import shlex
import threading
import warnings
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.columns import Columns
from sharedspan.inputs.files import FilePaths, open_duckdb, reading
from sharedspan.inputs.matching_columns import match_columns, select_columns
from sharedspan.inputs.reader import RowReader, Tally
from sharedspan.inputs.resources import Budget, DiskRows, TemporaryDisk
from sharedspan.inputs.rows import TaskRows
from sharedspan.inputs.table_columns import Selection, TableColumns
from sharedspan.inputs.temporary import temporary_folder
from sharedspan.kernels.threads import over_tasks
from sharedspan.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TOTALS = {
    "total",
    "totals",
    "grand total",
    "sum",
    "summe",
    "gesamt",
    "insgesamt",
    "totale",
    "somme",
}


def open_files(
    path: FilePaths,
    columns: Columns | TableColumns | None = None,
    *,
    task: str | None = None,
    target: str | None = None,
    features: str | Iterable[str] | None = None,
    drop: str | Iterable[str] = (),
    refuse_text: bool = False,
    missing: str | None = None,
    memory_limit: int | str | None = None,
    progress: ProgressCallback | None = None,
) -> FileRows:
    """The rows of files, for a fit; parameters as of ``fit_file``.

    Columns that a model has learned are read as that model read them.
    """
    if isinstance(columns, TableColumns):
        given = {"features": features, "drop": drop}
        given = {name: value for name, value in given.items() if value not in (None, ())}
        if given:
            raise ValueError(f"columns= defines all columns: leave out {', '.join(given)}.")
        columns = replace(columns, task=task or columns.task, target=target or columns.target)
        if columns.target is None or columns.task is None:
            raise ValueError(
                "columns= has no target or no task, but a fit needs both: give task= and target=."
            )
        selection = match_columns(path, columns)
    else:
        if task is None or target is None:
            raise TypeError(
                f"task={task!r}, target={target!r}: fit_file needs the names of both columns."
            )
        selection = select_columns(
            path, task=task, target=target, features=features, drop=drop, columns=columns,
            refuse_text=refuse_text,
        )  # fmt: skip
    missing = selection.columns.encoding.missing if missing is None else missing
    return FileRows(selection, missing, memory_limit, progress or no_progress)


@dataclass
class FileRows:
    """Rows of files for a fit, sorted in a temporary file while they are open."""

    selection: Selection
    missing: str = "error"  # otherwise rows that still lack a value are left out
    memory_limit: int | str | None = None  # of the whole process: bytes, or a text such as "2GB"
    progress: ProgressCallback = no_progress
    n_dropped: int = field(default=0, init=False)  # rows left out, known once ``open`` has read all

    @contextmanager
    def open(self) -> Iterator[TaskRows]:
        """The rows grouped by task, until the context ends.

        Raises
        ------
        ValueError
            If the files hold invalid values, or the memory cannot be enough.
        OSError
            If the disk of the temporary folder is full.
        """
        selection, reader = self.selection, RowReader(self.selection, self.missing)
        columns, d = selection.columns, len(selection.columns.names)
        budget, disk = Budget.of(self.memory_limit), TemporaryDisk()
        row_bytes = d * np.dtype(selection.dtype).itemsize + 12
        with ExitStack() as stack:
            with (
                disk.explained(),
                temporary_folder() as folder,
                open_duckdb(budget.duckdb, folder=folder) as connection,
            ):
                tasks = _Tasks(connection, selection, self.progress)
                Tally(tasks.n_rows).require(selection, self.missing)
                budget.require(len(tasks.labels), d, tasks.n_rows)
                disk.require(int(tasks.sizes.sum()) * row_bytes)
                buckets = _Buckets(selection, tasks, max(budget.bucket // row_bytes, 1))
                for rows in (buckets.X, buckets.y, buckets.code):
                    stack.enter_context(rows.file)
                batch_rows = int(np.clip(budget.batch // row_bytes, 2048, 1 << 18))
                for file in selection.files:
                    for batch in reader.read(connection, file, tasks.code_sql, batch_rows):
                        self.progress("reading", reader.tally.n_rows, tasks.n_rows)
                        buckets.append(tasks.codes(batch.labels), batch.y, batch.X)
            if reader.tally.n_rows != tasks.n_rows:
                raise ValueError(
                    f"The files, such as {selection.files[0].path}, changed while they were read: "
                    "wait until they are complete."
                )
            reader.tally.require(selection, self.missing)
            self.n_dropped = reader.tally.n_incomplete
            with disk.explained():
                counts = buckets.sort(self.progress)
            _warn_of_totals(tasks.labels, counts)
            labels = tuple(label for label, n in zip(tasks.labels, counts, strict=True) if n)
            starts = np.append(0, np.cumsum(counts[counts > 0]))
            yield TaskRows(buckets.X, buckets.y, None, labels, starts, None, columns.names)


def _warn_of_totals(labels: Sequence[Hashable], sizes: np.ndarray) -> None:
    """Warn of a task of one row whose label is a word for a total."""
    for i in np.flatnonzero(sizes == 1).tolist():
        label = labels[i]
        if isinstance(label, str) and label.strip().lower() in TOTALS:
            warnings.warn(
                f"The task {label!r} has one row, which looks like a total: leave it out by "
                f"--na-values {shlex.quote(label)} --missing drop, in Python "
                f"columns=ss.Columns(na_values=[{label!r}], missing='drop').",
                UserWarning,
                stacklevel=2,
            )


class _Tasks:
    """The tasks in canonical order, their numbers of rows, and codes 0..T-1 for their labels.

    DuckDB sorts numbers and text as ``canonical_order`` does: text by code points, which is the
    order of bytes in UTF-8.
    """

    def __init__(
        self, connection: DuckDBPyConnection, selection: Selection, progress: ProgressCallback
    ) -> None:
        columns = selection.columns
        self.code_sql = columns.label_sql(selection.files[0].types)
        connection.execute(f"CREATE TABLE seen (label {columns.label}, n BIGINT)")
        for number, file in enumerate(selection.files):
            progress("finding tasks", number, len(selection.files))
            counts = f"SELECT {self.code_sql}, count(*) FROM {file.scan()} GROUP BY ALL"
            with reading(file.path):
                connection.execute(f"INSERT INTO seen {counts}")
        ordered = "FROM seen WHERE label IS NOT NULL GROUP BY label ORDER BY label"
        with reading(selection.files[0].path):
            ((total,),) = connection.sql("SELECT CAST(sum(n) AS BIGINT) FROM seen").fetchall()
            groups = connection.sql(f"SELECT label, CAST(sum(n) AS BIGINT) {ordered}")
            labels, sizes = groups.to_arrow_table().columns
            if columns.label == "VARCHAR":  # DuckDB finds the codes, in parallel
                connection.execute(f"CREATE TYPE task AS ENUM (SELECT label {ordered})")
                self.code_sql = f"enum_code(CAST({self.code_sql} AS task))"
        is_label = ~labels.is_null(nan_is_null=True).to_numpy()  # NaN is not a label
        self.n_rows = int(total or 0)
        self.sizes: np.ndarray = sizes.to_numpy()[is_label]  # (T,)
        known: np.ndarray = labels.to_numpy()[is_label]
        self.labels: list[Hashable] = known.tolist()
        self._known = known if known.dtype != object else None  # None if DuckDB gives codes
        self._code_of: np.ndarray | None = None  # of each integer from the least label on
        if known.dtype.kind in "iu" and len(known):
            span = self.labels[-1] - self.labels[0] + 1
            if span <= 4 * len(known) + 2**16:
                self._code_of = np.zeros(span, dtype=np.uint32)
                self._code_of[known - known[0]] = np.arange(len(known))

    def codes(self, labels: Any) -> np.ndarray:
        """The code of each row's task, (rows,)."""
        codes = labels.to_numpy()
        if self._code_of is not None and self._known is not None:
            codes = self._code_of[codes - self._known[0]]
        elif self._known is not None:
            codes = np.searchsorted(self._known, codes)
        return codes.astype(np.uint32, copy=False)


class _Buckets:
    """Rows on disk in buckets, each of which is a range of tasks."""

    def __init__(self, selection: Selection, tasks: _Tasks, bucket_rows: int) -> None:
        n_rows = int(tasks.sizes.sum())
        self.X = DiskRows(n_rows, (len(selection.columns.names),), selection.dtype)
        self.y = DiskRows(n_rows, (), "float64")
        self.code = DiskRows(n_rows, (), "uint32")
        starts = np.append(0, np.cumsum(tasks.sizes))  # (T + 1,)
        layout = TaskRows(self.X, self.y, None, tuple(tasks.labels), starts, None, ())
        self.ranges = list(layout.ranges(bucket_rows))
        firsts = np.array([first for first, _ in self.ranges], dtype=np.int64)
        dtype = np.uint16 if len(firsts) < 2**16 else np.uint32
        lengths = np.diff(np.append(firsts, len(tasks.sizes)))
        self.bucket_of = np.repeat(np.arange(len(firsts), dtype=dtype), lengths)  # (T,)
        self.begins = starts[firsts]  # (buckets,)
        self.ends = self.begins.copy()  # of the rows so far

    def append(self, code: np.ndarray, y: np.ndarray, X: np.ndarray) -> None:
        """Append rows to their buckets, in their order."""
        self.X.update_extremes(X)
        self.y.update_extremes(y)
        bucket = self.bucket_of[code]
        if (bucket[1:] < bucket[:-1]).any():
            order = np.argsort(bucket, kind="stable")
            # For rows, ``take`` is several times faster than an index.
            bucket, code, y, X = (array.take(order, axis=0) for array in (bucket, code, y, X))
        cuts = np.flatnonzero(bucket[1:] != bucket[:-1]) + 1
        for lo, hi in itertools.pairwise([0, *cuts.tolist(), len(bucket)]):
            at = int(self.ends[bucket[lo]])
            for stored, rows in ((self.code, code), (self.y, y), (self.X, X)):
                stored.write(at, rows[lo:hi])
            self.ends[bucket[lo]] += hi - lo

    def sort(self, progress: ProgressCallback) -> np.ndarray:
        """Sort each bucket by task; returns the number of rows of each task, (T,)."""
        counts = np.zeros(len(self.bucket_of), dtype=np.int64)
        done, one_at_a_time = itertools.count(), threading.Lock()

        def work(first_bucket: int, last_bucket: int) -> None:
            for b in range(first_bucket, last_bucket):
                with one_at_a_time:
                    progress("sorting", next(done), len(self.ranges))
                (first, last), begin, end = self.ranges[b], int(self.begins[b]), int(self.ends[b])
                if last - first == 1:  # the rows of one task, perhaps larger than memory
                    counts[first] = end - begin
                    continue
                code = self.code[begin:end] - np.uint32(first)
                counts[first:last] = np.bincount(code, minlength=last - first)
                if (code[1:] < code[:-1]).any():
                    if last - first <= 2**16:
                        code = code.astype(np.uint16)  # which numpy sorts by counting
                    order = np.argsort(code, kind="stable")
                    for rows in (self.y, self.X):
                        rows.write(begin, rows[begin:end].take(order, axis=0))

        n_bytes = self.X.shape[0] * (self.X.row_bytes + self.y.row_bytes + self.code.row_bytes)
        over_tasks(work, len(self.ranges), float(n_bytes))
        self._close_gaps()
        self.code.file.close()
        return counts

    def _close_gaps(self) -> None:
        """Close the gaps of rows that were left out, by moving buckets together."""
        at = 0
        step = max((1 << 24) // (self.X.row_bytes + self.y.row_bytes), 1)
        for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True):
            for lo in range(begin, end if at < begin else begin, step):
                hi = min(lo + step, end)
                for rows in (self.y, self.X):
                    rows.write(at + lo - begin, rows[lo:hi])
            at += end - begin
        for rows in (self.y, self.X):
            rows.shape = (at, *rows.shape[1:])
