"""Warnings of columns that are hardly features: row numbers, dates in digits, -999."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from sharedspan.inputs.columns import Columns
from sharedspan.inputs.encoders import Encoding, Number
from sharedspan.inputs.files import (
    SourceFile,
    fetch,
    literal,
    quoted,
    reading,
)
from sharedspan.inputs.recognition import shell
from sharedspan.inputs.table_columns import OpenTable
from sharedspan.inputs.text_format import FLOATS, INTEGERS

FEWEST_ROWS = 20  # of a table whose column may be found to be row numbers
DIGITS_OF_DATE = "%Y%m%d"
MISSING_NUMBERS = {-99.0, -999.0, -9999.0, -99999.0, 999.0, 9999.0, 99999.0}


def warn_of_odd_columns(table: OpenTable, encoding: Encoding, options: Columns) -> None:
    """Warn of integers that number the rows or are dates, and of numbers for missing values."""
    names = [
        column.column
        for column in encoding.columns
        if isinstance(column, Number)
        and not column.is_date
        and table.types[column.column] in INTEGERS | FLOATS
    ]
    n_rows, ranges = _ranges(table, names)
    for name, (low, high) in ranges.items():
        advice = None
        if table.types[name] in INTEGERS:
            advice = _row_numbers(table, name, low, high, n_rows) or _dates(table, name, low, high)
        advice = advice or _missing_mark(table, name, low, high, options)
        if advice is not None:
            warnings.warn(f"The column {name!r} {advice}", UserWarning, stacklevel=2)


def _ranges(table: OpenTable, names: Sequence[str]) -> tuple[int, dict[str, tuple[float, float]]]:
    """The number of rows, and the least and largest value of columns of numbers.

    The end of a Parquet file has both.
    """
    if not names:
        return 0, {}
    n_rows, ranges = 0, dict[str, tuple[float, float]]()
    for file in table.files:
        n, found = (
            _parquet_ranges(file.path, names)
            if file.is_parquet
            else _scanned_ranges(table, file, names)
        )
        n_rows += n
        for name, (low, high) in found.items():
            least, largest = ranges.get(name, (low, high))
            ranges[name] = (min(low, least), max(high, largest))
    return n_rows, ranges


def _parquet_ranges(path: str, names: Sequence[str]) -> tuple[int, dict[str, tuple[float, float]]]:
    import pyarrow.parquet

    with reading(path):
        about = pyarrow.parquet.read_metadata(path)
    wanted, ranges = set(names), dict[str, tuple[float, float]]()
    for i in range(about.num_row_groups):
        group = about.row_group(i)
        for column in map(group.column, range(group.num_columns)):
            name, found = column.path_in_schema, column.statistics
            if name in wanted and found is not None and found.has_min_max:
                least, largest = ranges.get(name, (found.min, found.max))
                ranges[name] = (min(found.min, least), max(found.max, largest))
    return about.num_rows, ranges


def _scanned_ranges(
    table: OpenTable, file: SourceFile, names: Sequence[str]
) -> tuple[int, dict[str, tuple[float, float]]]:
    ends = ", ".join(
        f"{end}({quoted(name)}) FILTER (isfinite(CAST({quoted(name)} AS DOUBLE)))"
        for name in names
        for end in ("min", "max")
    )
    sql = f"SELECT count(*), {ends} FROM {file.scan()}"
    ((n_rows, *found),) = fetch(table.connection, sql, file.path)
    pairs = zip(names, found[::2], found[1::2], strict=True)
    return n_rows, {name: (low, high) for name, low, high in pairs if low is not None}


def _row_numbers(table: OpenTable, name: str, low: float, high: float, n_rows: int) -> str | None:
    """Advice on integers that number the rows: each value once, without gaps."""
    if n_rows < FEWEST_ROWS or high - low + 1 != n_rows or len(table.files) > 1:
        return None
    file = table.files[0]
    sql = f"SELECT count(DISTINCT {quoted(name)}) FROM {file.scan()}"
    ((distinct,),) = fetch(table.connection, sql, file.path)
    if distinct < n_rows:
        return None
    return (
        f"numbers the rows from {low:.0f} to {high:.0f}: leave it out (--drop {shell(name)}, or "
        f"drop={name!r} in Python), unless it is a feature."
    )


def _dates(table: OpenTable, name: str, low: float, high: float) -> str | None:
    """Advice on integers that are dates such as 20241231."""
    if not 19000101 <= low < high <= 21001231:
        return None
    if table.value_where(name, f"try_strptime(value, {literal(DIGITS_OF_DATE)}) IS NULL"):
        return None
    form = f"{name}={DIGITS_OF_DATE}"
    return (
        f"holds dates such as {low:.0f}, which are taken for numbers: add --date {shell(form)}, "
        f"in Python columns=ss.Columns(dates={{{name!r}: {DIGITS_OF_DATE!r}}})."
    )


def _missing_mark(
    table: OpenTable, name: str, low: float, high: float, options: Columns
) -> str | None:
    """Advice on a number far from all others that often means a missing value, such as -999."""
    marks = [v for v in {low, high} & MISSING_NUMBERS if f"{v:.0f}" not in options.na_values]
    for mark in marks:
        column, n, low, high = quoted(name), 0, math.inf, -math.inf
        for file in table.files:
            other = f"FILTER ({column} <> {mark:.0f} AND isfinite(CAST({column} AS DOUBLE)))"
            sql = f"SELECT count(*) FILTER ({column} = {mark:.0f}), min({column}) {other}, " \
                  f"max({column}) {other} FROM {file.scan()}"  # fmt: skip
            ((count, least, largest),) = fetch(table.connection, sql, file.path)
            n += count
            if least is not None:
                low, high = min(low, least), max(high, largest)
        if low <= high and max(low - mark, mark - high) > high - low:
            rows, drop, in_python = ("1 row" if n == 1 else f"{n} rows"), "", ""
            if options.missing == "error":
                drop, in_python = " --missing drop", ", missing='drop'"
            return (
                f"holds {mark:.0f} in {rows}, far from its other values, {low:g} to {high:g}: if "
                f"this means a missing value, add --na-values {mark:.0f}{drop}, in Python "
                f"columns=ss.Columns(na_values=['{mark:.0f}']{in_python})."
            )
    return None
