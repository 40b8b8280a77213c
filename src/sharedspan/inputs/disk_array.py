"""Arrays in temporary files, and the disk that they lie on."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sharedspan.inputs.memory_limit import in_words
from sharedspan.inputs.paths import tells_full_disk

GAP = 16  # rows that are read along rather than asked for apart
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskRows:
    """An array in a temporary file without a name: rows are read when they are asked for.

    By position, not mapped into memory: mapped pages would count as memory of the process. Any
    number of threads may read at once.
    """

    def __init__(self, n_rows: int, width: tuple[int, ...], dtype: str) -> None:
        self.shape: tuple[int, ...] = (n_rows, *width)
        self.dtype = np.dtype(dtype)
        self.row_bytes = self.dtype.itemsize * int(np.prod(width))
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (closed by ``close``)
        self._lock = threading.Lock()
        self._low: np.ndarray = np.full(width, np.inf)
        self._high: np.ndarray = np.full(width, -np.inf)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Rows of a slice, or of an ascending array of row numbers."""
        if isinstance(rows, slice):
            first, stop, _ = rows.indices(len(self))
            return self._read(first, stop)
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        cuts = np.flatnonzero(np.diff(rows) > GAP) + 1
        for lo, hi in itertools.pairwise([0, *cuts.tolist(), len(rows)]):
            if hi > lo:
                near = rows[lo:hi]
                out[lo:hi] = self._read(int(near[0]), int(near[-1]) + 1).take(
                    near - near[0], axis=0
                )
        return out

    def extremes(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and largest value of each column."""
        return self._low, self._high

    def reach(self, rows: np.ndarray) -> None:
        """Let the extremes hold these rows too."""
        # Many rows side by side: numpy is slow over many short rows.
        fold = max(min(1024 // max(self.shape[1:], default=1), len(rows)), 1)
        whole = len(rows) - len(rows) % fold
        wide = rows[:whole].reshape(-1, fold, *self.shape[1:])
        for part in (wide.min(axis=0), wide.max(axis=0), rows[whole - fold :]):
            self._low = np.minimum(self._low, part.min(axis=0))
            self._high = np.maximum(self._high, part.max(axis=0))

    def shorten(self, n_rows: int) -> None:
        """Let only the first rows count."""
        self.shape = (n_rows, *self.shape[1:])

    def close(self) -> None:
        """Give the disk back."""
        self._file.close()

    def write(self, first: int, rows: np.ndarray) -> None:
        """Put rows at a place."""
        left = _bytes(np.ascontiguousarray(rows, self.dtype))
        at = first * self.row_bytes
        while left:
            done = self._transfer("pwrite", left, at)
            left, at = left[done:], at + done

    def _read(self, first: int, stop: int) -> np.ndarray:
        out = np.empty((max(stop - first, 0), *self.shape[1:]), self.dtype)
        left, at = _bytes(out), first * self.row_bytes
        while left:
            done = self._transfer("preadv", left, at)
            if done == 0:
                raise OSError(errno.EIO, "The temporary file of the sorted rows is cut off.")
            left, at = left[done:], at + done
        return out

    def _transfer(self, call: str, view: memoryview, at: int) -> int:
        """Read or write some of the bytes; one at a time where the system has no such call."""
        if hasattr(os, call):
            given = [view] if call == "preadv" else view
            return getattr(os, call)(self._file.fileno(), given, at)
        with self._lock:
            self._file.seek(at)
            plain: Any = self._file.readinto if call == "preadv" else self._file.write
            return plain(view)


def _bytes(array: np.ndarray) -> memoryview:
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)


class TemporaryDisk:
    """The disk of the temporary folder, and what to say when it is full."""

    def __init__(self) -> None:
        self.folder = tempfile.gettempdir()
        self.needed: int | None = None

    def require(self, needed: int) -> None:
        """Raise OSError where there are not so many bytes."""
        self.needed = needed
        if self.free() < needed:
            raise self._full(errno.ENOSPC)

    def free(self) -> int:
        """Bytes left."""
        return shutil.disk_usage(self.folder).free

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Say of a full disk what can be done about it."""
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
            f"{in_words(self.free())} are free. "
            "Set the environment variable TMPDIR to a folder on a larger disk.",
        )
