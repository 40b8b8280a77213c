"""Tables larger than memory: the rows of files, sorted by task, in a temporary file.

Rows are read once, in the order of the files, and dealt out into buckets on disk. A bucket is a
range of tasks whose rows fit in memory, so each can then be sorted by itself; the sort is stable,
and within a task the order of the files stays. DuckDB's own sort would need the space twice, for
its runs and for the result, and takes longer (`benchmarks/files.py`).
"""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.disk_array import DiskRows, TemporaryDisk
from sharedspan.inputs.files import Tally, as_matrix, check_rows, without_nan
from sharedspan.inputs.memory_limit import Budget
from sharedspan.inputs.paths import batches, connect, readable
from sharedspan.inputs.rows import TaskRows
from sharedspan.inputs.schema import Selection
from sharedspan.kernels.threads import over_tasks

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Tick = Callable[[str, int, int], object]


@contextmanager
def spooled(
    selection: Selection,
    *,
    missing: str = "error",
    memory_limit: Any = None,
    tick: Tick | None = None,
) -> Iterator[tuple[TaskRows, int]]:
    """The rows of files as tasks on disk, and how many rows were left out; gone at the end.

    Parameters
    ----------
    selection : Selection
    missing : {"error", "drop"}
        "drop" leaves out the rows that lack a value.
    memory_limit : int, str or None
        The most memory that the process may take, as in ``fit_file``.
    tick : callable of (what, done, total), optional
        Told how far the work is.

    Raises
    ------
    ValueError
        For what the files hold, and where the memory cannot be enough.
    OSError
        Where the disk of the temporary folder is full.
    """
    if missing not in ("error", "drop"):
        raise ValueError(f"missing={missing!r} is unknown: use 'error' or 'drop'.")
    budget, disk = Budget.of(memory_limit), TemporaryDisk()
    tick = tick or (lambda what, done, total: None)
    with ExitStack() as stack:
        with (
            disk.watched(),
            tempfile.TemporaryDirectory(prefix="sharedspan-") as folder,
            connect(budget.duckdb, folder=folder) as connection,
        ):
            groups = _Groups(connection, selection, tick)
            Tally(groups.n_rows).require(selection, missing)
            budget.require(len(groups.labels), selection.n_features, groups.n_rows)
            disk.require(int(groups.sizes.sum()) * _row_bytes(selection))
            spool = stack.enter_context(_Spool(selection, groups.sizes, budget))
            tally = _fill(spool, connection, selection, groups, missing, budget, tick)
        tally.require(selection, missing)
        with disk.watched():
            counts = spool.sort(tick)
        labels = tuple(label for label, n in zip(groups.labels, counts, strict=True) if n)
        starts = np.append(0, np.cumsum(counts[counts > 0]))
        tasks = TaskRows(spool.X, spool.y, None, labels, starts, None, selection.names)
        yield tasks, tally.n_incomplete


class _Groups:
    """The tasks in canonical order, their sizes, and how a row finds its task.

    DuckDB sorts numbers and text as we do: text by code points, which is by bytes in UTF-8.
    """

    def __init__(self, connection: DuckDBPyConnection, selection: Selection, tick: Tick) -> None:
        self.code_sql = selection.label_sql()
        self._is_text = selection.label == "VARCHAR"
        connection.execute(f"CREATE TABLE seen (label {selection.label}, n BIGINT)")
        for number, file in enumerate(selection.files):
            tick("finding tasks", number, len(selection.files))
            counts = f"SELECT {self.code_sql}, count(*) FROM {file.scan()} GROUP BY ALL"
            with readable(file.path):
                connection.execute(f"INSERT INTO seen {counts}")
        ordered = "FROM seen WHERE label IS NOT NULL GROUP BY label ORDER BY label"
        with readable(selection.files[0].path):
            ((total,),) = connection.sql("SELECT CAST(sum(n) AS BIGINT) FROM seen").fetchall()
            groups = connection.sql(f"SELECT label, CAST(sum(n) AS BIGINT) {ordered}")
            labels, sizes = groups.to_arrow_table().columns
            if self._is_text:  # DuckDB looks them up, in parallel
                connection.execute(f"CREATE TYPE task AS ENUM (SELECT label {ordered})")
                self.code_sql = f"enum_code(CAST({self.code_sql} AS task))"
        labels = without_nan(labels)
        self.n_rows = int(total or 0)
        self.sizes: np.ndarray = sizes.filter(labels.is_valid()).to_numpy()  # (T,)
        self._known: np.ndarray = labels.drop_null().to_numpy()
        self.labels: list[Hashable] = self._known.tolist()
        self._table = None if self._is_text else _lookup_table(self._known)

    def codes(self, column: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Number of each row's task, and which rows have one (None for all)."""
        column, has_label = without_nan(column), None
        if column.null_count:
            has_label = column.is_valid().to_numpy(zero_copy_only=False)
            column = column.fill_null(0 if self._is_text or not self.labels else self.labels[0])
        codes = column.to_numpy()
        if self._table is not None:
            codes = self._table[codes - self._known[0]]
        elif not self._is_text:
            codes = np.searchsorted(self._known, codes)
        return codes.astype(np.uint32, copy=False), has_label


def _lookup_table(labels: np.ndarray) -> np.ndarray | None:
    """Code of each whole number from the least label on, where that is no large table."""
    if len(labels) == 0 or labels.dtype.kind == "f":
        return None
    span = int(labels[-1]) - int(labels[0]) + 1
    if span > 4 * len(labels) + 2**16:
        return None
    table = np.zeros(span, dtype=np.uint32)
    table[labels - labels[0]] = np.arange(len(labels))
    return table


def _fill(
    spool: _Spool,
    connection: DuckDBPyConnection,
    selection: Selection,
    groups: _Groups,
    missing: str,
    budget: Budget,
    tick: Tick,
) -> Tally:
    """Deal all complete rows out; once it is clear that they may not be used, only count."""
    tally = Tally()
    rows = int(np.clip(budget.batch // _row_bytes(selection), 2048, 1 << 18))
    for file in selection.files:
        sql = selection.query(file.scan(), groups.code_sql)
        for batch in batches(connection, sql, file.path, rows):
            tick("reading", tally.n_rows, groups.n_rows)
            code, has_label = groups.codes(batch.column(0))
            y, X = as_matrix(batch.columns, selection.dtype)
            kept, found = check_rows(has_label, y, X)
            tally += found
            if kept is not None:
                code, y, X = code[kept], y[kept], X[kept]
            refused = np.any(tally.infinite) or (tally.n_incomplete and missing == "error")
            if len(y) and not refused:
                spool.deal(code, y, X)
    if tally.n_rows != groups.n_rows:
        raise ValueError(
            f"The files, such as {selection.files[0].path}, changed while they were read: wait "
            "until they are complete."
        )
    return tally


class _Spool:
    """Rows on disk in buckets, each of which is a range of tasks."""

    def __init__(self, selection: Selection, sizes: np.ndarray, budget: Budget) -> None:
        n_rows, self.row_bytes = int(sizes.sum()), _row_bytes(selection)
        self.X = DiskRows(n_rows, (selection.n_features,), selection.dtype)
        self.y = DiskRows(n_rows, (), "float64")
        self.code = DiskRows(n_rows, (), "uint32")
        self.starts = np.append(0, np.cumsum(sizes))  # (T + 1,)
        layout = TaskRows(self.X, self.y, None, tuple(range(len(sizes))), self.starts, None, ())
        self.ranges = list(layout.ranges(max(budget.bucket // self.row_bytes, 1)))
        firsts = np.array([first for first, _ in self.ranges], dtype=np.int64)
        kind = np.uint16 if len(firsts) < 2**16 else np.uint32
        lengths = np.diff(np.append(firsts, len(sizes)))
        self.bucket_of = np.repeat(np.arange(len(firsts), dtype=kind), lengths)  # (T,)
        self.begins = self.starts[firsts]  # (buckets,)
        self.filled = self.begins.copy()

    def deal(self, code: np.ndarray, y: np.ndarray, X: np.ndarray) -> None:
        """Append rows to their buckets, in their order."""
        self.X.reach(X)
        self.y.reach(y)
        bucket = self.bucket_of[code]
        if (bucket[1:] < bucket[:-1]).any():
            order = np.argsort(bucket, kind="stable")
            # For rows, ``take`` is several times faster than an index.
            bucket, code, y, X = (array.take(order, axis=0) for array in (bucket, code, y, X))
        cuts = np.flatnonzero(bucket[1:] != bucket[:-1]) + 1
        for lo, hi in itertools.pairwise([0, *cuts.tolist(), len(bucket)]):
            at = int(self.filled[bucket[lo]])
            self.code.write(at, code[lo:hi])
            self.y.write(at, y[lo:hi])
            self.X.write(at, X[lo:hi])
            self.filled[bucket[lo]] += hi - lo

    def sort(self, tick: Tick) -> np.ndarray:
        """Sort each bucket by task; returns the size of each task, (T,)."""
        counts = np.zeros(len(self.bucket_of), dtype=np.int64)
        done, one_at_a_time = itertools.count(), threading.Lock()

        def work(first_bucket: int, last_bucket: int) -> None:
            for b in range(first_bucket, last_bucket):
                with one_at_a_time:
                    tick("sorting", next(done), len(self.ranges))
                first, last = self.ranges[b]
                counts[first:last] = self._sort_bucket(b, first, last)

        over_tasks(work, len(self.ranges), float(len(self.X) * self.row_bytes))
        self._close_gaps()
        self.code.close()
        return counts

    def _sort_bucket(self, b: int, first: int, last: int) -> np.ndarray:
        begin, end = int(self.begins[b]), int(self.filled[b])
        if last - first == 1:
            return np.array([end - begin])
        code = self.code[begin:end] - np.uint32(first)
        if (code[1:] < code[:-1]).any():
            if last - first <= 2**16:
                code = code.astype(np.uint16)  # which numpy sorts by counting
            order = np.argsort(code, kind="stable")
            for rows in (self.y, self.X):
                rows.write(begin, rows[begin:end].take(order, axis=0))
        return np.bincount(code, minlength=last - first)

    def _close_gaps(self) -> None:
        """Move buckets together where rows were left out."""
        at = 0
        step = max((1 << 24) // self.row_bytes, 1)
        for begin, end in zip(self.begins.tolist(), self.filled.tolist(), strict=True):
            for lo in range(begin, end if at < begin else begin, step):
                hi = min(lo + step, end)
                for rows in (self.y, self.X):
                    rows.write(at + lo - begin, rows[lo:hi])
            at += end - begin
        self.X.shorten(at)
        self.y.shorten(at)

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *error: object) -> None:
        for rows in (self.X, self.y, self.code):
            rows.close()


def _row_bytes(selection: Selection) -> int:
    """Features, target and code of a row."""
    return selection.n_features * np.dtype(selection.dtype).itemsize + 12
