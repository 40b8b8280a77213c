"""How much memory a fit from files may take, and what its parts get of it."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import Any

INTERPRETER = 500_000_000  # bytes of Python and its libraries, compiling on their first run
LEAST = 200_000_000  # for everything else
READING = 2_000_000_000  # bytes that reading stays within where no limit is given
BATCH = 32 * 2**20  # most bytes of the rows that are read at once
BUCKET = 64 * 2**20  # most bytes of the rows that one thread sorts
LABEL = 100  # bytes of a label in Python
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
         "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """Bytes that a fit from files and its parts may take."""

    total: int
    limit: int | str | None  # as the user gave it; None for what the machine has
    duckdb: int  # for DuckDB, which takes a little more than it is told
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
        """Raise where the statistics of so many tasks cannot fit.

        Statistics are sums, T d (d + 7) / 2 numbers, or the rows themselves where these are few.
        The estimators that need most memory take as much again (measured).
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
    problem = f'memory_limit={memory_limit!r} is not understood: give bytes, or a text like "2GB".'
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
