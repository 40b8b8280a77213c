"""Columns of users' files: their part in a regression, their SQL, and checks of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sharedspan.inputs.files import (
    FilePaths,
    SourceFile,
    arrow_batches,
    describe,
    fetch,
    find_files,
    joined,
    literal,
    quoted,
    shortened,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

INTEGERS = {"tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger"}
FLOATS = {"float", "double"}
NUMBERS = INTEGERS | FLOATS | {"boolean", "ubigint", "hugeint", "uhugeint", "decimal"}
EXACT_IN_FLOAT32 = {"float", "tinyint", "smallint", "utinyint", "usmallint", "boolean"}
LABEL_TYPES = {  # SQL types in which labels are read; VARCHAR for all other columns
    **dict.fromkeys(INTEGERS, "BIGINT"), "ubigint": "UBIGINT", **dict.fromkeys(FLOATS, "DOUBLE"),
}  # fmt: skip
MOST_LEVELS = 1000  # of a text column that is encoded


@dataclass(frozen=True)
class Feature:
    """A column of X: a column of numbers, or the indicator of a level of a text column."""

    column: str
    level: str | None = None


@dataclass(frozen=True)
class Columns:
    """The columns of a table and their parts: enough to read further rows as the fit did."""

    task: str
    target: str | None  # None if rows are only to be predicted
    features: tuple[Feature, ...]
    base: tuple[Feature, ...]  # the level of each text column that has no feature
    label: str  # SQL type of the labels

    def __post_init__(self) -> None:
        # They become part of SQL, and may come from a model file.
        features = (*self.features, *self.base)
        names = [self.task, *(feature.column for feature in features)]
        optional = [self.target, *(feature.level for feature in features)]
        is_text = all(isinstance(name, str) for name in names)
        is_text = is_text and all(isinstance(name, str | None) for name in optional)
        if not is_text or self.label not in ("VARCHAR", *LABEL_TYPES.values()):
            raise ValueError(f"These are not columns of a table: {self!r}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of X, (d,)."""
        return tuple(f.column if f.level is None else f"{f.column}={f.level}"
                     for f in self.features)  # fmt: skip

    def label_sql(self) -> str:
        """SQL of the label of a row; NULL if the label is missing, or NaN among floats.

        SQL cannot test for NaN: DuckDB relies on Parquet's statistics, which leave it out.
        """
        label = f"CAST({quoted(self.task)} AS {self.label})"
        return f"{label} + 0" if self.label == "DOUBLE" else label  # -0.0 becomes 0.0

    def query(
        self, file: SourceFile, dtype: str, label: str | None = None, also: Sequence[str] = ()
    ) -> str:
        """SQL of label, target, features as floats and other columns, in the order of the file.

        The columns of the result have numbers for names, so that no two of them can clash. A
        feature is NULL if its column is NULL.
        """

        def number(name: str) -> str:
            # DuckDB 2.0 reads the words of a boolean column as floats if these are what is asked.
            is_boolean = file.types.get(name) == "boolean"
            return f"CAST({quoted(name)} AS TINYINT)" if is_boolean else quoted(name)

        target = "NULL" if self.target is None else number(self.target)
        parts = [label or self.label_sql(), f"CAST({target} AS DOUBLE)"]
        for feature in self.features:
            value = number(feature.column)
            if feature.level is not None:
                text = quoted(feature.column)
                value = f"(CAST({text} AS VARCHAR) = {literal(feature.level)})"
            parts.append(f"CAST({value} AS {'FLOAT' if dtype == 'float32' else 'DOUBLE'})")
        parts += map(quoted, also)
        listed = ", ".join(f"{sql} AS c{i}" for i, sql in enumerate(parts))
        return f"SELECT {listed} FROM {file.scan()}"


@dataclass(frozen=True)
class Selection:
    """Columns and files to read: small, and safe to send to another process that reads them."""

    columns: Columns
    files: tuple[SourceFile, ...]  # in the order of their names
    dtype: str  # of X: float32 if that holds every feature exactly, else float64

    def names_with_task(self) -> tuple[str, ...]:
        """Names of the columns of X, and the task column at its place among them, (d + 1,)."""
        order, names = list(self.files[0].types), self.columns.names
        task = order.index(self.columns.task)
        before = sum(order.index(feature.column) < task for feature in self.columns.features)
        return (*names[:before], self.columns.task, *names[before:])


class FileColumns:
    """The columns that all files have, with a type for each that holds the values of all files."""

    def __init__(self, connection: DuckDBPyConnection, paths: FilePaths) -> None:
        self.connection = connection
        self.files = [describe(connection, path) for path in find_files(paths)]
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

    def not_a_number(self, name: str) -> tuple[str, str] | None:
        """A text in a column that does not read as a number, and its file."""
        return self.value_where(name, "value IS NOT NULL AND TRY_CAST(value AS DOUBLE) IS NULL")

    def require_numbers(self, names: Sequence[str], part: str, can_encode: bool = False) -> None:
        """Raise if a column holds neither numbers nor text that reads as numbers.

        ``part`` is "target", "feature", or "fitted" for a feature of an earlier fit.
        """
        problems, where = list[str](), self.files[0].path
        for name in names:
            if self.types[name] == "varchar":
                if (odd := self.not_a_number(name)) is not None:
                    where = where if problems else odd[1]
                    problems.append(f"{name!r} (such as {shortened(odd[0])!r})")
            elif self.types[name] not in NUMBERS:
                problems.append(f"{name!r} ({self.types[name].split('_')[0]})")
        if not problems:
            return
        one = len(problems) == 1
        it, what, does = ("it", "column", "does") if one else ("them", "columns", "do")
        advice, how = f"leave {it} out (--drop, or drop= in Python)", "as numbers"
        if can_encode and any(self.types[name] == "varchar" for name in names):
            how = "(--text one_hot, or text='one_hot' in Python)"
        if part == "target":
            what, advice = "target", "give another column (--target, or target= in Python)"
            how = "as numbers, such as 0 and 1 for two classes"
        advice = f"{advice}, or encode {it} {how}"
        if part == "fitted":
            advice = "correct it, as the model was fitted to numbers"
        raise ValueError(
            f"{where}: the {what} {joined(problems)} {does} not hold numbers: {advice}."
        )

    def encoded(self, name: str, base: list[Feature]) -> list[Feature]:
        """The features of a column: itself, or of text its levels; the first is added to base."""
        if self.types[name] != "varchar":
            self.require_numbers([name], "feature")
            return [Feature(name)]
        if self.not_a_number(name) is None:
            return [Feature(name)]
        column, levels = f"CAST({quoted(name)} AS VARCHAR)", set[str]()
        for file in self.files:
            sql = f"SELECT {column} FROM {file.scan()} WHERE {column} IS NOT NULL"
            for batch in arrow_batches(self.connection, sql, file.path):
                levels.update(batch.column(0).unique().to_pylist())
                if len(levels) > MOST_LEVELS:  # no need to read on
                    raise ValueError(
                        f"The text column {name!r} has more than {MOST_LEVELS} levels, such as "
                        f"{shortened(min(levels))!r}: leave it out (--drop, or drop= in Python), "
                        "or join levels first."
                    )
        first, *others = (Feature(name, level) for level in sorted(levels))
        base.append(first)
        return others


def _common_type(types: set[str]) -> str:
    """A type that holds the values of columns of all these types."""
    if len(types) == 1:
        return next(iter(types))
    if other := types - NUMBERS - {"varchar"}:
        return min(other)  # refused later, by its name
    if types <= INTEGERS:
        return "bigint"
    return "varchar" if {"varchar", "boolean"} & types else "double"
