"""Warnings of columns that are hardly features: row numbers, dates in digits, -999."""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Sequence

import numpy as np

from sharedspan.inputs.columns import Columns
from sharedspan.inputs.encoders import Encoding, Number
from sharedspan.inputs.files import (
    SourceFile,
    arrow_batches,
    exact_path,
    fetch,
    literal,
    quoted,
    reading,
)
from sharedspan.inputs.recognition import shell
from sharedspan.inputs.table_columns import OpenTable
from sharedspan.inputs.text_format import DATES, FLOATS, INTEGERS

FEWEST_ROWS = 20  # of a table whose column may be found to be row numbers
LEAST_FILLED = 0.1  # share of their range that row numbers fill, if the table is a part of another
MOST_COUNTED = 1_000_000  # rows whose values are counted
NAMES_OF_INDICES = {"rownames", "row", "id", "index", "unnamed: 0"}
DIGITS_OF_DATE = "%Y%m%d"
OPEN_END = datetime.date(9999, 12, 31)  # of a period without an end
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
    for column in encoding.columns:
        if isinstance(column, Number) and column.is_date:
            _warn_of_open_end(table, column, options)
    n_rows, ranges = _ranges(table, names)
    for name, (low, high) in ranges.items():
        advice = None
        if table.types[name] in INTEGERS:
            advice = _dates(table, name, low, high) or _row_numbers(table, name, low, high, n_rows)
        advice = advice or _missing_mark(table, name, low, high, options)
        if advice is not None:
            warnings.warn(f"The column {name!r} {advice}", UserWarning, stacklevel=2)


def _warn_of_open_end(table: OpenTable, column: Number, options: Columns) -> None:
    """Warn of a date that often means that there is none."""
    name, mark = quoted(column.column), OPEN_END.isoformat()
    if column.date_format is not None:
        mark = OPEN_END.strftime(column.date_format)
    if mark in options.na_values:
        return
    n, is_end = 0, f"CAST({name} AS VARCHAR) = {literal(mark)}"
    if table.types[column.column] in DATES:
        is_end = f"{name} >= TIMESTAMP '{mark}'"
    for file in table.files:
        sql = f"SELECT count(*) FROM {file.scan()} WHERE {is_end}"
        ((count,),) = fetch(table.connection, sql, file.path)
        n += count
    if n == 0:
        return
    drop, in_python = "", ""
    if options.missing == "error":
        drop, in_python = " --missing drop", ", missing='drop'"
    warnings.warn(
        f"The column {column.column!r} holds {mark} in {'1 row' if n == 1 else f'{n} rows'}, "
        f"far from its other dates: if this means a missing value, add --na-values {mark}"
        f"{drop}, in Python columns=ss.Columns(na_values=['{mark}']{in_python}).",
        UserWarning,
        stacklevel=2,
    )


def _ranges(table: OpenTable, names: Sequence[str]) -> tuple[int, dict[str, tuple[float, float]]]:
    """The number of rows, and the smallest and largest value of numeric columns.

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
        about = pyarrow.parquet.read_metadata(exact_path(path))
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
    """Advice on integers that number the rows of the table, or of one that it is a part of.

    Each value is there once. They have no gaps, or they increase or have the name of an index.
    """
    range_size = high - low + 1
    if n_rows < FEWEST_ROWS or len(table.files) > 1:
        return None
    if not n_rows <= range_size <= n_rows / LEAST_FILLED:
        return None
    if range_size > n_rows and name.casefold() not in NAMES_OF_INDICES:
        if not _increases(table, name):
            return None
    elif not _all_differ(table, name):
        return None
    numbers = "numbers the rows" if range_size == n_rows else "seems to number rows"
    return (
        f"{numbers} from {low:.0f} to {high:.0f}: leave it out (--drop {shell(name)}; in Python "
        f"drop={name!r}, or drop it from X), unless it is a feature."
    )


def _increases(table: OpenTable, name: str) -> bool:
    """Whether each value of a column of one file is larger than the one before it."""
    file, last = table.files[0], -math.inf
    sql = f"SELECT {quoted(name)} AS value FROM {file.scan()}"
    for batch in arrow_batches(table.connection, sql, file.path):
        if batch.column(0).null_count:
            return False
        values = batch.column(0).to_numpy(zero_copy_only=False)
        if len(values) and (values[0] <= last or np.any(values[1:] <= values[:-1])):
            return False
        last = values[-1] if len(values) else last
    return True


def _all_differ(table: OpenTable, name: str) -> bool:
    """Whether the values of a column are different, in the first rows of one file at least."""
    file = table.files[0]
    values = f"SELECT {quoted(name)} AS value FROM {file.scan()} LIMIT {MOST_COUNTED}"
    sql = f"SELECT count(*), count(DISTINCT value) FROM ({values})"
    ((n_values, distinct),) = fetch(table.connection, sql, file.path)
    return bool(n_values == distinct)


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
                f"holds {mark:.0f} in {rows}, far outside the range of its other values, {low:g} "
                f"to {high:g}: if "
                f"this means a missing value, add --na-values {mark:.0f}{drop}, in Python "
                f"columns=ss.Columns(na_values=['{mark:.0f}']{in_python})."
            )
    return None
