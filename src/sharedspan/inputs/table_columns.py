"""Columns of users' tables: their part in a regression, their SQL, and checks of their values."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sharedspan.inputs.classes import class_sql
from sharedspan.inputs.encoders import Encoding, Factor, Number, date_sql
from sharedspan.inputs.files import (
    FilePaths,
    SourceFile,
    describe,
    fetch,
    find_files,
    joined,
    literal,
    quoted,
    shortened,
)
from sharedspan.inputs.label_paths import path_sql
from sharedspan.inputs.text_format import DATES, FLOATS, INTEGERS, NUMBERS, TEXTS, TextFormat

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LABEL_TYPES = {  # SQL types in which labels are read; VARCHAR for all other columns
    **dict.fromkeys(INTEGERS, "BIGINT"), "ubigint": "UBIGINT", **dict.fromkeys(FLOATS, "DOUBLE"),
}  # fmt: skip
ISO_DAY = "2024-12-31"  # by which messages show a form of dates


@dataclass(frozen=True)
class Feature:
    """A column of X in model files of format 2 and older: numbers, or one level of a text."""

    column: str
    level: str | None = None


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table and their parts: enough to read further rows as the fit did."""

    # None if labels are given beside the table; of several columns the label is their path, the
    # outer one first, see label_paths.py
    task: str | tuple[str, ...] | None
    target: str | None  # None if rows are only to be predicted
    encoding: Encoding
    label: str  # SQL type of the labels
    classes: tuple[str, ...] = ()  # of a target of two words: the one that counts as 1 last

    def __post_init__(self) -> None:
        # They become part of SQL, and may come from a model file.
        columns = self.encoding.columns
        names = [column.column for column in columns]
        texts = (*names, *self.task_columns, *self.classes)
        is_text = all(isinstance(text, str) for text in texts) and len(self.classes) in (0, 2)
        is_text = is_text and isinstance(self.target, str | None)
        labels = ("VARCHAR", *LABEL_TYPES.values()) if len(self.task_columns) < 2 else ("VARCHAR",)
        if not is_text or self.label not in labels or self.task == ():
            raise ValueError(f"These are not columns of a table: {self!r}.")

    @staticmethod
    def upgraded(values: dict[str, Any]) -> dict[str, Any]:
        """The attributes from those of a model file of format 2 and older."""
        values = {"classes": (), **values}
        if "features" not in values:
            return values
        columns: list[Number | Factor] = []
        base = {feature.column: feature.level for feature in values.pop("base")}
        for name, features in groupby(values.pop("features"), lambda feature: feature.column):
            levels = tuple(feature.level for feature in features)
            if levels[0] is None:
                columns.append(Number(name))
                continue
            levels = (base[name], *levels)
            counts = (1,) * len(levels)
            columns.append(Factor(name, levels, counts, "reference", base[name], "error"))
        return values | {"encoding": Encoding(tuple(columns))}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of X, (d,)."""
        return self.encoding.names

    @property
    def groups(self) -> Any:
        """For each feature the number of its group of equal variances, or -1, (d,)."""
        return self.encoding.groups

    @property
    def column_of(self) -> tuple[str, ...]:
        """The column of the table that each feature comes from, (d,)."""
        return self.encoding.column_of

    @property
    def task_columns(self) -> tuple[str, ...]:
        """The columns that the label of a row is made of."""
        if isinstance(self.task, tuple):
            return self.task
        return () if self.task is None else (self.task,)

    @property
    def task_name(self) -> str | None:
        """The name of the task column, or of the path of several."""
        return "/".join(self.task_columns) or None

    def label_sql(self, types: Mapping[str, str]) -> str:
        """SQL of the label of a row, by the types of the columns; NULL if the label is missing.

        It may be NaN among floats. SQL cannot test for NaN: DuckDB relies on Parquet's statistics,
        which leave it out.
        """
        if self.task is None:
            return "0"
        if isinstance(self.task, tuple):
            return path_sql([self.encoding.text.text(name, types[name]) for name in self.task])
        label = f"CAST({quoted(self.task)} AS {self.label})"
        if self.encoding.text.strip and self.label == "VARCHAR":
            label = f"trim({label})"
        if marks := self.encoding.text.na_values:
            listed = ", ".join(map(literal, marks))
            value = f"CAST({quoted(self.task)} AS VARCHAR)"
            label = f"CASE WHEN {value} IN ({listed}) THEN NULL ELSE {label} END"
        return f"{label} + 0" if self.label == "DOUBLE" else label  # -0.0 becomes 0.0

    def query(self, file: SourceFile, label: str | None = None, also: Sequence[str] = ()) -> str:
        """SQL of label, target, values of features and other columns, in the order of the file.

        The columns of the result have numbers for names, so that no two of them can clash. A
        value is NULL if its column is NULL.
        """
        target, text = "NULL", self.encoding.text
        if self.target is not None and self.classes:
            target = class_sql(self.target, self.classes)
        elif self.target is not None:
            target = text.of(self.target).number(self.target, file.types.get(self.target, ""))
        parts = [label or self.label_sql(file.types), f"CAST({target} AS DOUBLE)"]
        parts += [*self.encoding.sql(file.types), *map(quoted, also)]
        listed = ", ".join(f"{sql} AS c{i}" for i, sql in enumerate(parts))
        return f"SELECT {listed} FROM {file.scan()}"


@dataclass(frozen=True)
class Selection:
    """Columns and files to read: small, and safe to send to another process that reads them."""

    columns: TableColumns
    files: tuple[SourceFile, ...]  # in the order of their names
    dtype: str  # of X: float32 if that holds every feature exactly, else float64
    is_fitted: bool = False  # whether an earlier fit has learned the columns

    def names_with_task(self) -> tuple[str, ...]:
        """Names of the columns of X, and the task columns at their places among them."""
        order, names = list(self.files[0].types), self.raw_names()
        for task in set(self.columns.task_columns) - set(names):
            place = order.index(task)
            before = sum(order.index(name) < place for name in names)
            names = (*names[:before], task, *names[before:])
        return names

    def raw_names(self) -> tuple[str, ...]:
        """Names of the columns of the table that features are made of."""
        return tuple(dict.fromkeys(column.column for column in self.columns.encoding.columns))


class OpenTable:
    """The columns that all files have, with a type for each that holds the values of all files.

    A frame that DuckDB can read counts as a file.
    """

    def __init__(self, connection: DuckDBPyConnection, files: Sequence[SourceFile]) -> None:
        self.connection, self.files = connection, list(files)
        first = self.files[0]
        for one, other in ((a, b) for f in self.files[1:] for a, b in ((first, f), (f, first))):
            lacking = [repr(name) for name in one.types if name not in other.types]
            if lacking:
                raise ValueError(
                    f"{other.path} has no column {joined(lacking)}, which {one.path} has: give "
                    "files with the same columns."
                )
        # All columns of a CSV file without rows have the type text, whatever they are.
        typed = [
            file
            for file in self.files
            if file.csv is None
            or set(file.types.values()) != {"varchar"}
            or fetch(connection, f"SELECT 1 FROM {file.scan()} LIMIT 1", file.path)
        ]
        self.types = {
            name: _common_type({file.types[name] for file in typed or [first]})
            for name in first.types
        }

    @classmethod
    def of_files(cls, connection: DuckDBPyConnection, paths: FilePaths) -> OpenTable:
        """The table of files, folders or patterns."""
        return cls(connection, [describe(connection, path) for path in find_files(paths)])

    def read_csv_as(self, types: Mapping[str, str]) -> None:
        """Read columns of CSV as these types, and all others as their common type."""
        self.types |= types
        self.files = [
            replace(file, types={name: self.types[name] for name in file.types})
            for file in self.files
        ]

    def read_csv_labels(self, task: str) -> None:
        """Read the task column of CSV as text, unless its numbers print as they were written.

        "1e5" and "100000" are two products, and so are numbers of twenty digits.
        """
        number = self.types[task]
        if number in ("double", "boolean"):
            self.read_csv_as({task: "varchar"})
            printed = f"CAST(TRY_CAST(value AS {number}) AS VARCHAR)"
            if self.value_where(task, f"{printed} NOT IN (value, value || '.0')") is not None:
                return
        self.read_csv_as({task: number})

    def value_where(self, name: str, condition: str) -> tuple[str, str] | None:
        """A value of a column that meets a condition on its text ``value``, and its file."""
        values = f"SELECT CAST({quoted(name)} AS VARCHAR) AS value FROM"
        for file in self.files:
            sql = f"SELECT value FROM ({values} {file.scan()}) WHERE {condition} LIMIT 1"
            if rows := fetch(self.connection, sql, file.path):
                return rows[0][0], file.path
        return None

    def has_spaced_twins(self, name: str) -> bool:
        """Whether texts of a column differ only in the spaces around them."""
        value = f"CAST({quoted(name)} AS VARCHAR)"
        counts = f"SELECT count(DISTINCT {value}), count(DISTINCT trim({value})) FROM"
        pairs = (fetch(self.connection, f"{counts} {f.scan()}", f.path)[0] for f in self.files)
        return any(n_texts != n_trimmed for n_texts, n_trimmed in pairs)

    def not_a_number(self, name: str, text: TextFormat) -> tuple[str, str] | None:
        """A text in a column that does not read as a number, and its file."""
        marks = "".join(f" AND value <> {literal(mark)}" for mark in text.na_values)
        reads = text.of(name).reads_sql("value")
        return self.value_where(name, f"value IS NOT NULL AND NOT {reads}{marks}")

    def not_a_date(self, name: str, form: str | None, text: TextFormat) -> tuple[str, str] | None:
        """A text in a column that does not read as a date, and its file."""
        marks = "".join(f" AND value <> {literal(mark)}" for mark in text.na_values)
        value = "trim(value)" if text.strip else "value"
        return self.value_where(
            name, f"value IS NOT NULL AND {date_sql(value, form)} IS NULL{marks}"
        )

    def require_dates(self, columns: Sequence[Number], text: TextFormat) -> None:
        """Raise if a column of dates of the fit holds something else, or dates in another form.

        Whole numbers are dates if the fit had a form for them. ISO form is always read.
        """
        for column in columns:
            name, form = column.column, column.date_format
            kind = self.types[name]
            if kind in DATES:
                continue
            if kind in TEXTS or (kind in INTEGERS and form is not None):
                odd = self.not_a_date(name, form, text)
            elif kind in NUMBERS:
                odd = self.value_where(name, "value <> 'nan'")
            else:
                odd = f"values of the type {kind}", self.files[0].path
            if odd is None:
                continue
            holds = repr(shortened(odd[0])) if kind in TEXTS else odd[0]
            fitted, advice = f"dates in ISO form, such as {ISO_DAY!r}", "write them in this form"
            if form is not None:
                example = datetime.date.fromisoformat(ISO_DAY).strftime(form)
                fitted = f"dates of the form {form!r}, such as {example!r}"
                advice += f", or in ISO form, such as {ISO_DAY!r}"
            raise ValueError(
                f"{odd[1]}: the column {name!r} holds {holds}, but the model was fitted to "
                f"{fitted}: {advice}."
            )

    def require_numbers(self, names: Sequence[str], part: str, text: TextFormat) -> None:
        """Raise if a column holds neither numbers nor text that reads as numbers.

        ``part`` is "target", or "fitted" for a feature of an earlier fit.
        """
        problems, where = list[str](), self.files[0].path
        for name in names:
            if self.types[name] in TEXTS:
                if (odd := self.not_a_number(name, text)) is not None:
                    where = where if problems else odd[1]
                    problems.append(f"{name!r} (such as {shortened(odd[0])!r})")
            elif self.types[name] not in NUMBERS:
                problems.append(f"{name!r} ({self.types[name].split('_')[0]})")
        if not problems:
            return
        what, does = ("column", "does") if len(problems) == 1 else ("columns", "do")
        advice = "correct it, as the model was fitted to numbers"
        if part == "target":
            what = "target"
            advice = (
                "give another column (--target, or target= in Python), or encode it as numbers; "
                "text may be the target if it has two values, besides missing ones (--na-values, "
                "or na_values= of ss.Columns)"
            )
        raise ValueError(
            f"{where}: the {what} {joined(problems)} {does} not hold numbers: {advice}."
        )


def _common_type(types: set[str]) -> str:
    """A type that holds the values of columns of all these types."""
    if len(types) == 1:
        return next(iter(types))
    if other := types - NUMBERS - {"varchar"}:
        return min(other)  # refused later, by its name
    if types <= INTEGERS:
        return "bigint"
    return "varchar" if {"varchar", "boolean"} & types else "double"
