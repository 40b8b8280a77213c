"""Memory and disk of a fit from files: its budget, and arrays in temporary files."""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sharedspan.inputs.files import tells_full_disk

INTERPRETER = 500_000_000  # bytes of Python and its libraries, compiling on their first run
LEAST = 200_000_000  # for everything else
READING = 2_000_000_000  # bytes that reading may take if no limit is given
BATCH = 32 * 2**20  # most bytes of the rows that are read at once
BUCKET = 64 * 2**20  # most bytes of the rows that one thread sorts
LABEL = 100  # bytes of a label in Python
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
         "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}  # fmt: skip
GAP = 16  # unwanted rows between two wanted ones that are read rather than skipped
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Budget:
    """Bytes that a fit from files and its parts may take."""

    total: int
    limit: int | str | None  # as the user gave it; None for what the machine has
    duckdb: int  # for DuckDB, which takes a little more than its limit
    batch: int  # for the rows that are read at once, of which there are about three copies
    bucket: int  # for rows that one thread sorts in memory, of which there is a copy

    @classmethod
    def of(cls, limit: int | str | None) -> Budget:
        """The budget of a limit given by the user, or of this machine for None."""
        total = machine_memory() if limit is None else as_bytes(limit)
        if limit is not None and total < INTERPRETER + LEAST:
            raise ValueError(
                f"memory_limit={limit!r} is too small: Python and its libraries take about "
                f"{in_words(INTERPRETER)} before the first row. Give at least "
                f"{in_words(INTERPRETER + LEAST)!r}."
            )
        reading = total if limit is not None else min(READING, total)
        duckdb = max(reading - INTERPRETER, LEAST) // 2
        return cls(total, limit, duckdb, min(duckdb // 8, BATCH), min(duckdb // 8, BUCKET))

    def require(self, n_tasks: int, n_features: int, n_rows: int) -> None:
        """Raise if the statistics of ``n_tasks`` tasks cannot fit.

        Statistics are sums, T d (d + 7) / 2 numbers, or the rows themselves if these are few. The
        estimators that need most memory take as much again (measured).
        """
        T, d = n_tasks, n_features
        statistics = 8 * min(T * d * (d + 7) // 2, n_rows * (d + 2))
        needed = INTERPRETER + 2 * statistics + LABEL * T
        if needed > self.total:
            limit = f"memory_limit={self.limit!r}"
            if self.limit is None:
                limit = f"this machine's {in_words(self.total)}"
            raise ValueError(
                f"{T} tasks of {d} features need about {in_words(needed)} of memory (statistics of "
                f"{in_words(statistics)}, as much again for the fit, and "
                f"{in_words(INTERPRETER)} for Python), more than {limit}: give more memory, "
                "leave features out, or check that the task column is the right one."
            )


def as_bytes(memory_limit: Any) -> int:
    """Bytes of a number, or of a text such as "2GB" or "1.5 GiB"."""
    problem = (
        f'memory_limit={memory_limit!r} is not understood: give bytes, or a string like "2GB".'
    )
    if isinstance(memory_limit, bool) or not isinstance(memory_limit, (int, float, str)):
        raise TypeError(problem)
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]I?)?B?\s*", str(memory_limit), re.IGNORECASE)
    try:
        size = float(match[1]) * UNITS[(match[2] or "").upper()] if match else float(memory_limit)
    except ValueError:
        raise ValueError(problem) from None
    if not (math.isfinite(size) and size > 0):
        raise ValueError(problem)
    return int(size)


def in_words(size: float) -> str:
    """Bytes to two digits or so: "1.8GB"."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= 0.9995 * factor:
            return f"{size / factor:.{1 if size < 9.95 * factor else 0}f}".removesuffix(".0") + unit
    return f"{size:.0f} bytes"


def machine_memory() -> int:
    """Bytes of memory that this process can have at most."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 8 * 10**9
    try:  # a container may have less
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return min(total, int(file.read()))
    except (OSError, ValueError):
        return total


class DiskRows:
    """An array in a temporary file without a name, whose rows are read when they are indexed.

    Rows are read by position, not mapped into memory: mapped pages would count as memory of the
    process. Any number of threads may read at once.
    """

    def __init__(self, n_rows: int, width: tuple[int, ...], dtype: str) -> None:
        self.shape: tuple[int, ...] = (n_rows, *width)
        self.dtype = np.dtype(dtype)
        self.row_bytes = self.dtype.itemsize * int(np.prod(width))
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (closed by its user)
        self._lock = threading.Lock()
        # Least and largest value of each column, over the rows given to ``update_extremes``.
        self.low: np.ndarray = np.full(width, np.inf)
        self.high: np.ndarray = np.full(width, -np.inf)

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Rows of a slice, or of an ascending array of row numbers."""
        if isinstance(rows, slice):
            first, stop, _ = rows.indices(self.shape[0])
            out = np.empty((max(stop - first, 0), *self.shape[1:]), self.dtype)
            self._transfer("preadv", out, first)
            return out
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        cuts = np.flatnonzero(np.diff(rows) > GAP) + 1
        for lo, hi in itertools.pairwise([0, *cuts.tolist(), len(rows)]):
            if hi > lo:
                near = rows[lo:hi]
                out[lo:hi] = self[int(near[0]) : int(near[-1]) + 1].take(near - near[0], axis=0)
        return out

    def write(self, first: int, rows: np.ndarray) -> None:
        """Write rows from the row number ``first`` on."""
        self._transfer("pwrite", np.ascontiguousarray(rows, self.dtype), first)

    def _transfer(self, call: str, rows: np.ndarray, first: int) -> None:
        """Read into rows, or write them; one thread at a time if the system lacks the call."""
        left: Any = rows.reshape(-1).view(np.uint8).data
        at, is_read = first * self.row_bytes, call == "preadv"
        while left:
            if hasattr(os, call):
                done = getattr(os, call)(self.file.fileno(), [left] if is_read else left, at)
            else:
                with self._lock:
                    self.file.seek(at)
                    done = (self.file.readinto if is_read else self.file.write)(left)
            if done == 0:
                raise OSError(errno.EIO, "The temporary file of the sorted rows is cut off.")
            left, at = left[done:], at + done

    def update_extremes(self, rows: np.ndarray) -> None:
        """Include these rows in the extremes."""
        # Many rows side by side: numpy is slow over many short rows.
        fold = max(min(1024 // max(self.shape[1:], default=1), len(rows)), 1)
        whole = len(rows) - len(rows) % fold
        wide = rows[:whole].reshape(-1, fold, *self.shape[1:])
        for part in (wide.min(axis=0), wide.max(axis=0), rows[whole - fold :]):
            self.low = np.minimum(self.low, part.min(axis=0))
            self.high = np.maximum(self.high, part.max(axis=0))


@dataclass
class TemporaryDisk:
    """The disk of the temporary folder, and the error when it is full."""

    folder: str = field(default_factory=tempfile.gettempdir)
    needed: int | None = None  # bytes, if known

    def require(self, needed: int) -> None:
        """Raise OSError unless ``needed`` bytes are free."""
        self.needed = needed
        if shutil.disk_usage(self.folder).free < needed:
            raise self._full(errno.ENOSPC)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the errors of a full disk into one with advice."""
        import duckdb

        try:
            yield
        except (OSError, duckdb.Error) as error:
            number = getattr(error, "errno", None)
            if number is None and tells_full_disk(error):
                number = errno.ENOSPC
            if number not in DISK_IS_FULL:
                raise
            raise self._full(number) from error

    def _full(self, number: int) -> OSError:
        need = "" if self.needed is None else f"the sorted rows need {in_words(self.needed)} and "
        return OSError(
            number,
            f"The disk of the temporary folder {self.folder} is too small: {need}"
            f"{in_words(shutil.disk_usage(self.folder).free)} are free. "
            "Set the environment variable TMPDIR to a folder on a larger disk.",
        )
