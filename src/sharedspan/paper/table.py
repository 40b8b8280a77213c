"""The table of an experiment: one row per run and checkpoint, saved as CSV.

Figures and pages are made from tables alone. Numbers are written with eight significant digits, so
that the same seeds give the same file. Measured times differ between runs and are in another table.
"""

from __future__ import annotations

import csv
import math
import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan import __version__
from sharedspan.persistence.atomic_write import atomic_path

COLUMN_TYPES = {
    "experiment": str, "part": str, "method": str, "setting": str,
    "d": int, "T": int, "k": int, "N": int, "M": int,
    "noise": float, "kappa": float, "seed": int, "budget": int, "iteration": int,
    "level": int,  # of the curriculum
    "averaged": int,  # iterations by the tail average, where ``iteration`` is by the last iterate
    "error": float,  # mean over tasks of |v - v*|^2, or the excess risk of a new task
    "tail": float,  # the same for the tail average of the iterates
    "erm": float,  # error of empirical risk minimisation on the same rows
    "loss": float,  # training loss of the paper
    "validation": float,  # expected loss on fresh rows
    "distance": float,  # the distance of Theorem 5.1, divided by sqrt(s_k)
    "rate": float,  # a step size or start scale that is swept, or a predicted rate
    "needed": float,  # rows per task that the theorem asks for, with its constants set to one
    "predicted": float,  # the value of ``error`` by the theory, constants included
    "decompositions": float,  # per iteration
    "seconds": float,  # per iteration, in the table of times only
    "version": str, "machine": str,
}  # fmt: skip
ORIGIN = ("version", "machine")  # what made a row
MISSING = {str: "", int: -1, float: math.nan}  # an empty cell of the file
MACHINE = f"{platform.system()} {platform.machine()} {os.cpu_count()} cores"  # without a comma

ResultRow = dict[str, Any]


def machine_text(machine: str) -> str:
    """A machine of the table in a sentence: "a Linux x86_64 machine with 16 cores"."""
    system, _, cores = machine.removesuffix(" cores").rpartition(" ")
    if not system or not cores.isdigit():
        return f"the machine {machine}"
    return f"a {system} machine with {'one core' if cores == '1' else f'{cores} cores'}"


class TableError(ValueError):
    """A run cannot be resumed from a table."""


@dataclass(frozen=True)
class Exponent:
    """The power of a size in an error: mean over seeds, and a 95 percent interval."""

    value: float
    low: float
    high: float
    n_seeds: int

    def __str__(self) -> str:
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"

    def near(self, target: float, tolerance: float) -> bool:
        """Whether the power is within ``tolerance`` of ``target``."""
        return abs(self.value - target) <= tolerance


class ResultTable:
    """Rows with named columns; a missing number is NaN, a missing size -1, a missing text ''."""

    def __init__(self, rows: Iterable[ResultRow]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, **values: Any) -> ResultTable:
        """The rows with these values; a tuple lists alternatives."""
        return ResultTable(
            row for row in self.rows
            if all(row[n] in v if isinstance(v, tuple) else row[n] == v for n, v in values.items())
        )  # fmt: skip

    def column(self, name: str) -> np.ndarray:
        """One column as an array."""
        return np.array([row[name] for row in self.rows])

    def values(self, name: str) -> list[Any]:
        """The distinct values of a column, in the order of their first appearance."""
        return list(dict.fromkeys(row[name] for row in self.rows))

    def groups(self, *names: str) -> Iterator[tuple[Any, ResultTable]]:
        """Tables of equal values in these columns, with the value (a tuple for several columns)."""
        groups: dict[Any, list[ResultRow]] = {}
        for row in self.rows:
            groups.setdefault(tuple(row[n] for n in names), []).append(row)
        for key, rows in groups.items():
            yield (key[0] if len(names) == 1 else key), ResultTable(rows)

    def median(self, measure: str, **values: Any) -> float:
        """Median of a column over the rows with these values; infinite for a count of -1."""
        column = self.where(**values).column(measure).astype(float)
        return float(np.median(np.where(column < 0, np.inf, column)))

    def percentiles(
        self, measure: str, by: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Values of ``by``, sorted, with the 10th, 50th and 90th percentile of ``measure``."""
        x = np.array(sorted(self.values(by)))
        points = [np.percentile(self.where(**{by: v}).column(measure), (10, 50, 90)) for v in x]
        low, middle, high = np.array(points).T
        return x, low, middle, high

    def median_curve(self, measure: str, by: str) -> tuple[np.ndarray, np.ndarray]:
        """Values of ``by``, sorted, and the median of ``measure`` at each."""
        x, _, middle, _ = self.percentiles(measure, by)
        return x, middle

    def exponent(self, by: str, measure: str = "error") -> Exponent:
        """The slope of log ``measure`` in log ``by``, from a line through each seed's points.

        The interval is Student's t over the slopes of the seeds, whose data are independent. With
        one seed it is infinite.
        """
        from scipy.stats import t

        slopes = np.array([
            log_slope(rows.column(by), rows.column(measure)) for _, rows in self.groups("seed")
        ])  # fmt: skip
        mean, n = float(slopes.mean()), len(slopes)
        half = np.inf if n < 2 else float(t.ppf(0.975, n - 1) * slopes.std(ddof=1) / np.sqrt(n))
        return Exponent(mean, mean - half, mean + half, n)


def log_slope(x: np.ndarray, y: np.ndarray) -> float:
    """The slope of log y in log x; NaN if a y is missing, such as a count never reached."""
    x, y = x.astype(float), y.astype(float)
    return float(np.polyfit(np.log(x), np.log(y), 1)[0]) if (y > 0).all() else np.nan


def spread(values: Iterable[float], form: str = ".2f") -> str:
    """The smallest and the largest value, as text."""
    ordered = sorted(values)
    low, high = f"{ordered[0]:{form}}", f"{ordered[-1]:{form}}"
    return low if low == high else f"{low} to {high}"


def result_row(**values: Any) -> ResultRow:
    """A row with these values, and every other column missing."""
    row: ResultRow = {name: MISSING[kind] for name, kind in COLUMN_TYPES.items()}
    return row | {"version": __version__, "machine": MACHINE} | values


def read_results(path: Path) -> ResultTable:
    """The table at ``path``; empty if there is no file."""
    if not path.exists():
        return ResultTable([])
    with path.open(newline="", encoding="utf-8") as file:
        try:
            reader = csv.DictReader(file)
            names = list(reader.fieldnames or ())
            if not names or names != [name for name in COLUMN_TYPES if name in names]:
                raise TableError(f"{path} is not a table of sharedspan {__version__}")
            return ResultTable(_filled(reader))
        except TableError:
            raise
        except (TypeError, ValueError, csv.Error) as error:
            raise TableError(f"{path} cannot be read: {error}") from error


def write_results(path: Path, rows: Iterable[ResultRow]) -> None:
    """Replace the table at ``path`` atomically.

    Columns without values are left out, and what made a row is written where it changes.
    """
    printed = [{name: _printed(row[name]) for name in COLUMN_TYPES} for row in rows]
    names = [name for name in COLUMN_TYPES if any(row[name] for row in printed)]
    with atomic_path(path) as hidden, hidden.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names or list(COLUMN_TYPES), extrasaction="ignore",
                                lineterminator="\n")  # fmt: skip
        writer.writeheader()
        last: tuple[str, ...] = ()
        for row in printed:
            origin = tuple(row[name] for name in ORIGIN)
            writer.writerow(row | dict.fromkeys(ORIGIN, "") if origin == last else row)
            last = origin


def _filled(rows: Iterable[dict[str, str]]) -> Iterator[ResultRow]:
    """Parsed rows, with the columns that were left out."""
    origin = dict.fromkeys(ORIGIN, "")
    for row in rows:
        if any(row.get(name) for name in ORIGIN):
            origin = {name: row[name] for name in ORIGIN}
        yield _parsed(dict.fromkeys(COLUMN_TYPES, "") | row | origin)


def rounded(row: ResultRow) -> ResultRow:
    """The row as it will be read from the file."""
    return _parsed({name: _printed(row[name]) for name in COLUMN_TYPES})


def _printed(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)):
        return "" if value == -1 else str(value)
    return "" if math.isnan(value) else f"{value:.8g}"


def _parsed(cells: dict[str, str]) -> ResultRow:
    return {
        name: kind(cells[name]) if cells[name] else MISSING[kind]
        for name, kind in COLUMN_TYPES.items()
    }
