"""Learn how the columns of a table become features: kinds, levels, means and knots.

Everything is learned from counts, sums and sets of values, so that files and frames, in any order
of their rows, give the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sharedspan.inputs.columns import Columns
from sharedspan.inputs.encoders import Encoding, Factor, Number
from sharedspan.inputs.files import (
    arrow_batches,
    fetch,
    joined,
    literal,
    nearest,
    shortened,
)
from sharedspan.inputs.levels import Texts, count_texts, factor, warn_of_codes, without_spaces
from sharedspan.inputs.odd_columns import warn_of_odd_columns
from sharedspan.inputs.recognition import GROUPED, Findings, has_decimal_points, recognise
from sharedspan.inputs.splines import DistinctSample, SplineBasis
from sharedspan.inputs.table_columns import OpenTable
from sharedspan.inputs.text_format import DATES, FLOATS, INTEGERS, NUMBERS, TEXTS, TextFormat

FEWEST_CURVED = 4  # different values of a column that spline="all" makes curved
SAMPLED_ROWS = 10_000  # of a column with more texts than can be counted


def learn_encoding(
    table: OpenTable,
    names: Sequence[str],
    options: Columns,
    categories: Mapping[str, Sequence[str]] | None = None,
    *,
    target: str | None = None,
    refuse_text: bool = False,
    chosen: bool = False,
) -> Encoding:
    """Learn how the columns of X, which are named, become features.

    Categories are columns that are categorical by their type, with the order of their levels. The
    table may hold the target, the column to predict. Text is an error with ``refuse_text``, as it
    was before factors. If users have chosen each column by its name, there is no warning of columns
    that are hardly features, such as row numbers.
    """
    for name, part in options.named():
        if name not in names:
            raise ValueError(
                f"There is no feature {name!r} ({part} of Columns), and the features are "
                f"{joined([repr(n) for n in names])}.{nearest(name, names)}"
            )
    categories = dict(categories or {})
    text = text_format(options)
    if text.has_marks and table.files[0].csv is not None:
        marked = [n for n in (*names, target) if n is not None and table.types[n] != "boolean"]
        table.read_csv_as(dict.fromkeys(marked, "varchar"))
    factors = {*options.categorical, *options.ordinal, *options.reference, *categories}
    texts = count_texts(table, [n for n in names if table.types[n] in TEXTS or n in factors], text)
    texts, text = without_spaces(table, texts, text)
    unsaid = {n: texts[n] for n in texts if n not in factors and n not in options.dates}
    kinds, text = _kinds_of_texts(table, unsaid, target, text, options.missing)
    warn_of_codes({name: found for name, found in unsaid.items() if kinds[name] == "number"})
    columns: list[Number | Factor] = []
    for name in names:
        kind = table.types[name]
        if name in factors:
            order = categories.get(name)
            columns.append(factor(name, texts[name], options, order, chosen=chosen))
        elif kind in DATES or name in options.dates:
            columns.append(_date(table, name, options, text))
        elif kind in NUMBERS:
            columns.append(Number(name))
        elif kind in TEXTS:
            if kinds[name] == "text":
                columns.append(factor(name, texts[name], options, None, chosen=chosen))
            elif kinds[name] == "date":
                columns.append(_date(table, name, options, text))
            else:
                columns.append(Number(name))
            if refuse_text and isinstance(columns[-1], Factor):
                raise ValueError(
                    f"{table.files[0].path}: the column {name!r} does not hold numbers: leave it "
                    "out (--drop, or drop= in Python), or leave text='error' out."
                )
        else:
            raise ValueError(
                f"{table.files[0].path}: the column {name!r} holds values of the type {kind}, "
                "which are neither numbers, text nor dates: leave it out (--drop, or drop= in "
                "Python)."
            )
    if not text.has_marks:
        numbers = [c.column for c in columns if isinstance(c, Number) and not c.is_date]
        warn_of_points(table, numbers if target is None else [*numbers, target])
    columns = [column for column in columns if column.names]  # a factor of one level has none
    encoding = Encoding(tuple(columns), (), text, options.missing)
    encoding = _with_seasons_and_splines(table, encoding, options)
    if options.missing == "indicator":
        encoding = _with_means(table, encoding)
    present = {column.column for column in columns}
    pairs = tuple(pair for pair in options.interactions if set(pair) <= present)
    if not chosen:
        warn_of_odd_columns(table, encoding, options)
    encoding = replace(encoding, interactions=pairs)
    if twice := [name for name in encoding.names if encoding.names.count(name) > 1]:
        raise ValueError(
            f"Two features would have the name {twice[0]!r}: rename a column of the table."
        )
    return encoding


def text_format(options: Columns) -> TextFormat:
    """How numbers and missing values are written, as far as the user has said."""
    return TextFormat(options.decimal, options.thousands, tuple(options.na_values))


# ---- text ----------------------------------------------------------------------------------------


def _kinds_of_texts(
    table: OpenTable,
    texts: Mapping[str, Texts],
    target: str | None,
    text: TextFormat,
    missing: str,
) -> tuple[dict[str, str], TextFormat]:
    """The kinds of columns of text, as ``recognise`` tells them; raises if the user must say."""
    columns = {
        name: _sample(table, name, text) if found.counts is None else found.counts
        for name, found in texts.items()
    }
    if target is not None and table.types[target] in TEXTS:
        columns |= {target: _sample(table, target, text)}
    kinds, text, findings = recognise(columns, text, target=target, drops_rows=missing == "error")
    if findings:
        _add_thousands(table, findings)
        raise ValueError(findings.sentence(table.files[0].path))
    return kinds, text


def _sample(table: OpenTable, name: str, text: TextFormat) -> dict[str, int]:
    """Some strings of a column with their numbers of rows, and one that is not a number, if any."""
    file, value = table.files[0], text.text(name, table.types[name])
    inner = f"SELECT {value} AS value FROM {file.scan()} LIMIT {SAMPLED_ROWS}"
    sql = f"SELECT value, count(*) FROM ({inner}) WHERE value IS NOT NULL GROUP BY value"
    counts = dict(fetch(table.connection, sql, file.path))
    odd = table.not_a_number(name, text)
    return counts if odd is None else counts | {odd[0]: counts.get(odd[0], 1)}


def _add_thousands(table: OpenTable, findings: Findings) -> None:
    """Find points between thousands in columns that DuckDB took for numbers, if commas are decimal.

    In such a table 1.234 is a whole number.
    """
    if findings.marks != {"decimal": ","} or table.files[0].csv is None:
        return
    numbers = [name for name, kind in table.types.items() if kind in FLOATS]
    table.read_csv_as(dict.fromkeys(numbers, "varchar"))
    for name in numbers:
        if (example := _grouped_example(table, name)) is not None:
            findings.marks["thousands"] = "."
            findings.instead.append(
                f"; if {name!r} has decimal points, as in {example!r}, write commas instead"
            )


def _grouped_example(table: OpenTable, name: str) -> str | None:
    """A value with a point of a column of text, if all of them may be grouped thousands."""
    has_point = "value LIKE '%.%'"
    grouped = f"regexp_full_match(value, {literal(GROUPED.pattern)})"
    if table.value_where(name, f"{has_point} AND NOT {grouped}") is not None:
        return None
    found = table.value_where(name, has_point)
    return None if found is None else found[0]


def warn_of_points(table: OpenTable, names: Sequence[str]) -> None:
    """Warn of CSV or text in which points may be between thousands, though read as decimal."""
    types = dict(table.types)
    if table.files[0].csv is not None:
        table.read_csv_as(dict.fromkeys((n for n in names if types[n] in FLOATS), "varchar"))
    for name in names:
        example = _grouped_example(table, name) if table.types[name] in TEXTS else None
        if example is None:
            continue
        if whole := table.value_where(name, r"regexp_full_match(value, '[-+]?\d{1,3}')"):
            warnings.warn(
                f"The column {name!r} holds {example!r} as well as whole numbers such as "
                f"{whole[0]!r}, and the point is read as a decimal point: if it separates "
                "thousands, add "
                "--decimal ',' --thousands '.', in Python columns=ss.Columns(decimal=',', "
                "thousands='.').",
                UserWarning,
                stacklevel=2,
            )
    table.read_csv_as(types)


def with_points(table: OpenTable, names: Sequence[str], text: TextFormat) -> TextFormat:
    """The format with the columns that have decimal points beside others with commas."""
    texts = [name for name in names if text.decimal == "," and table.types[name] in TEXTS]
    found = (n for n in texts if has_decimal_points(_sample(table, n, text), text))
    return replace(text, points=tuple(found))


# ---- numbers and dates ---------------------------------------------------------------------------


def _date(table: OpenTable, name: str, options: Columns, text: TextFormat) -> Number:
    """A column of dates; raises if a text is none."""
    form, kind = options.dates.get(name), table.types[name]
    if kind in TEXTS:
        if (odd := table.not_a_date(name, form, text)) is not None:
            written = "in ISO form" if form is None else f"of the form {form!r}"
            raise ValueError(
                f"{odd[1]}: the column {name!r} holds {shortened(odd[0])!r}, which is not a date "
                f"{written}: correct it, or give another form (--date, or dates= of Columns)."
            )
    elif kind in INTEGERS and form is not None:
        return Number(name, is_date=True, date_format=form)
    elif kind not in DATES:
        raise ValueError(
            f"The column {name!r} holds values of the type {kind}, not dates: leave its form out."
        )
    return Number(name, is_date=True, date_format=form)


def _with_seasons_and_splines(table: OpenTable, encoding: Encoding, options: Columns) -> Encoding:
    columns = list(encoding.columns)
    seasons: Any = options.season
    for i, column in enumerate(columns):
        periods = seasons.get(column.column)
        if periods:
            if not isinstance(column, Number) or not column.is_date:
                raise ValueError(
                    f"The column {column.column!r} has a season, but does not hold dates: leave it "
                    "out of season, or give the form of its dates (dates= of Columns)."
                )
            columns[i] = replace(column, periods=tuple(periods))
    wanted = []
    for i, column in enumerate(columns):
        if isinstance(column, Number):
            if column.column in options.spline or (
                options.spline == "all" and table.types[column.column] != "boolean"
            ):
                wanted.append(i)
        elif options.spline != "all" and column.column in options.spline:
            raise ValueError(
                f"The column {column.column!r} holds categories, but a spline needs numbers: "
                "leave it out of spline."
            )
    if not wanted:
        return replace(encoding, columns=tuple(columns))
    samples = [DistinctSample() for _ in wanted]
    for file in table.files:
        sqls = [columns[i].sql(file.types[columns[i].column], encoding.text) for i in wanted]
        listed = ", ".join(f"{sql} AS c{i}" for i, sql in enumerate(sqls))
        query = f"SELECT {listed} FROM {file.scan()}"
        for batch in arrow_batches(table.connection, query, file.path):
            for sample, values in zip(samples, batch.columns, strict=True):
                numbers = values.to_numpy(zero_copy_only=False)
                sample.add(numbers[np.isfinite(numbers)])
    for i, sample in zip(wanted, samples, strict=True):
        values = sample.values()
        if options.spline == "all" and len(values) < FEWEST_CURVED:
            continue
        basis = SplineBasis.of(values, options.knots)
        columns[i] = replace(columns[i], spline=basis)  # type: ignore[arg-type]
    return replace(encoding, columns=tuple(columns))


def _with_means(table: OpenTable, encoding: Encoding) -> Encoding:
    """Means of numbers and dates in place of missing values, and indicators of these."""
    numbers = [column for column in encoding.columns if isinstance(column, Number)]
    if not numbers:
        return encoding
    totals = np.zeros((len(numbers), 3))  # sums, rows with a value, all rows
    for file in table.files:
        inner = ", ".join(
            f"{column.sql(file.types[column.column], encoding.text)} AS c{i}"
            for i, column in enumerate(numbers)
        )
        sums = ", ".join(
            f"fsum(c{i}) FILTER (isfinite(c{i})), count(*) FILTER (isfinite(c{i})), count(*)"
            for i in range(len(numbers))
        )
        sql = f"SELECT {sums} FROM (SELECT {inner} FROM {file.scan()})"
        ((*found,),) = fetch(table.connection, sql, file.path)
        totals += np.reshape([value or 0.0 for value in found], (-1, 3))
    filled = {}
    for column, (total, n, n_rows) in zip(numbers, totals, strict=True):
        if n == 0:
            raise ValueError(
                f"The column {column.column!r} has no values: leave it out (--drop, or drop= in "
                "Python)."
            )
        filled[column.column] = replace(column, fill=float(total / n), indicator=bool(n < n_rows))
    return replace(encoding, columns=tuple(filled.get(c.column, c) for c in encoding.columns))
