"""The table of an experiment: one row per run and checkpoint, kept as CSV.

Figures and pages read only tables. Numbers are written with eight significant digits: the same
seeds give the same file. What a clock says is kept apart, in a table of its own, since it never
comes out twice.
"""

from __future__ import annotations

import csv
import functools
import math
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan import __version__

TEXT = ("experiment", "part", "method", "setting", "version", "machine")
SIZES = ("d", "T", "k", "N", "M", "seed", "budget", "iteration")
NUMBERS = (
    "noise",
    "kappa",
    "error",  # mean over tasks of |v - v*|^2, or the excess risk of a new task
    "tail",  # the same for the tail average of the iterates
    "erm",  # error of empirical risk minimisation on the same rows
    "loss",  # training loss of the paper
    "validation",  # expected loss on fresh rows
    "distance",  # Theorem 1's, over sqrt(s_k)
    "rate",  # a step size or start scale that is swept, or a predicted rate
    "decompositions",  # per iteration
    "seconds",  # per iteration, in the table of times only
)
COLUMNS = (
    "experiment", "part", "method", "setting", "d", "T", "k", "N", "M", "noise", "kappa", "seed",
    "budget", "iteration", "error", "tail", "erm", "loss", "validation", "distance", "rate",
    "decompositions", "seconds", "version", "machine",
)  # fmt: skip

Row = dict[str, Any]


class TableError(ValueError):
    """A table that cannot be gone on with, and why."""


class Table:
    """Rows with named columns; a missing number is NaN, a missing size -1, a missing text ''."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, **wanted: Any) -> Table:
        """The rows with these values; a tuple lists alternatives."""
        return Table(
            row for row in self.rows
            if all(row[n] in v if isinstance(v, tuple) else row[n] == v for n, v in wanted.items())
        )  # fmt: skip

    def column(self, name: str) -> np.ndarray:
        """One column as an array."""
        return np.array([row[name] for row in self.rows])

    def values(self, name: str) -> list[Any]:
        """The distinct values of a column, in the order they first appear."""
        return list(dict.fromkeys(row[name] for row in self.rows))

    def groups(self, *names: str) -> Iterator[tuple[Any, Table]]:
        """Tables of equal values in these columns, with the value (a tuple if there are more)."""
        found: dict[Any, list[Row]] = {}
        for row in self.rows:
            found.setdefault(tuple(row[n] for n in names), []).append(row)
        for key, rows in found.items():
            yield (key[0] if len(names) == 1 else key), Table(rows)

    def median(self, measure: str, by: str) -> tuple[np.ndarray, np.ndarray]:
        """Values of ``by``, sorted, and the median of ``measure`` at each."""
        x, _, middle, _ = self.band(measure, by)
        return x, middle

    def band(self, measure: str, by: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Values of ``by``, sorted, with the 10, 50 and 90 percent points of ``measure``."""
        x = np.array(sorted(self.values(by)))
        points = [np.percentile(self.where(**{by: v}).column(measure), (10, 50, 90)) for v in x]
        low, middle, high = np.array(points).T
        return x, low, middle, high


def blank(**values: Any) -> Row:
    """A full row with these values."""
    row: Row = dict.fromkeys(TEXT, "") | dict.fromkeys(SIZES, -1) | dict.fromkeys(NUMBERS, math.nan)
    return row | {"version": __version__, "machine": machine()} | values


@functools.cache
def machine() -> str:
    """What the numbers were computed on, in a few words without a comma."""
    return f"{platform.system()} {platform.machine()} {os.cpu_count()} cores"


def read(path: Path) -> Table:
    """The table at ``path``, empty where there is no file."""
    if not path.exists():
        return Table([])
    with path.open(newline="", encoding="utf-8") as file:
        try:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise TableError(f"{path} is not a table of sharedspan {__version__}")
            return Table(_parsed(row) for row in reader)
        except TableError:
            raise
        except (TypeError, ValueError, csv.Error) as error:
            raise TableError(f"{path} cannot be read: {error}") from error


def write(path: Path, rows: Iterable[Row]) -> None:
    """Replace the table at ``path`` in one step: a reader never sees half of it."""
    draft = path.with_name(f".{path.name}.part")
    try:
        with draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows([_printed(row[name]) for name in COLUMNS] for row in rows)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def rounded(row: Row) -> Row:
    """The row as it will be read back."""
    return _parsed({name: _printed(row[name]) for name in COLUMNS})


def _printed(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)):
        return "" if value == -1 else str(value)
    return "" if math.isnan(value) else f"{value:.8g}"


def _parsed(cells: dict[str, str]) -> Row:
    row: Row = {name: cells[name] for name in TEXT}
    row |= {name: int(cells[name]) if cells[name] else -1 for name in SIZES}
    return row | {name: float(cells[name]) if cells[name] else math.nan for name in NUMBERS}
