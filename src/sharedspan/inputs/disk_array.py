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
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sharedspan.inputs.files import tells_full_disk
from sharedspan.inputs.memory_limit import in_words

GAP = 16  # unwanted rows between two wanted ones that are read rather than skipped
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
        """Read into rows, or write them; one thread at a time where the system has no such call."""
        left: Any = rows.reshape(-1).view(np.uint8).data
        at, is_read = first * self.row_bytes, call == "preadv"
        while left:
            if hasattr(os, call):
                done = getattr(os, call)(self._file.fileno(), [left] if is_read else left, at)
            else:
                with self._lock:
                    self._file.seek(at)
                    done = (self._file.readinto if is_read else self._file.write)(left)
            if done == 0:
                raise OSError(errno.EIO, "The temporary file of the sorted rows is cut off.")
            left, at = left[done:], at + done

    def extremes(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and largest value of each column, over the rows given to ``update_extremes``."""
        return self._low, self._high

    def update_extremes(self, rows: np.ndarray) -> None:
        """Let the extremes hold these rows too."""
        # Many rows side by side: numpy is slow over many short rows.
        fold = max(min(1024 // max(self.shape[1:], default=1), len(rows)), 1)
        whole = len(rows) - len(rows) % fold
        wide = rows[:whole].reshape(-1, fold, *self.shape[1:])
        for part in (wide.min(axis=0), wide.max(axis=0), rows[whole - fold :]):
            self._low = np.minimum(self._low, part.min(axis=0))
            self._high = np.maximum(self._high, part.max(axis=0))

    def close(self) -> None:
        """Give the disk back."""
        self._file.close()


@dataclass
class TemporaryDisk:
    """The disk of the temporary folder, and what to say when it is full."""

    folder: str = field(default_factory=tempfile.gettempdir)
    needed: int | None = None  # bytes, where that is known

    def require(self, needed: int) -> None:
        """Raise OSError where so many bytes are not free."""
        self.needed = needed
        if shutil.disk_usage(self.folder).free < needed:
            raise self._full(errno.ENOSPC)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the errors of a full disk into one that says what can be done about it."""
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
