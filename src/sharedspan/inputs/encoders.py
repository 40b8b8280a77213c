"""Columns of a table as features: what a fit has learned about each, and the SQL that reads it.

DuckDB reads the *value* of a column as a number: a number itself, the days of a date since 1970, or
the code of a level. ``encode`` turns values into features, for rows of frames and of files alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.columns import NO_LEVEL, OTHER
from sharedspan.inputs.expressions import Expression
from sharedspan.inputs.files import literal, quoted
from sharedspan.inputs.splines import SplineBasis
from sharedspan.inputs.text_format import (
    INTEGERS,
    NUMBERS,
    PLAIN_NUMBER,
    TEXTS,
    TextFormat,
    number_text,
    require_texts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

EXACT_IN_FLOAT32 = {"float", "tinyint", "smallint", "utinyint", "usmallint", "boolean"}
MISSING_CODE, UNSEEN_CODE = -1, -2
DAY = 86_400_000_000.0  # microseconds
FIRST_YEAR = 100  # of dates; "24" alone is not a year
HARMONICS = {"year": (365.2425, 2), "week": (7.0, 3), "day": (1.0, 2)}  # days, sines and cosines


PLAIN = (TextFormat(), "error")


@dataclass(frozen=True)
class Number:
    """A column of numbers or dates: itself, and where asked a season, a spline or an indicator."""

    column: str
    is_date: bool = False
    date_format: str | None = None  # None for ISO
    periods: tuple[str, ...] = ()  # of the season of a date
    spline: SplineBasis | None = None
    fill: float | None = None  # in place of missing values; None if they are not filled in
    indicator: bool = False  # whether there is a feature that is 1 where the value is missing

    def __post_init__(self) -> None:
        require_texts(self.column, self.date_format or "", *self.periods)
        if not set(self.periods) <= set(HARMONICS):
            raise ValueError(f"The periods {self.periods!r} are unknown.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        names = [self.column]
        for period in self.periods:
            orders = range(1, HARMONICS[period][1] + 1)
            names += [f"{self.column} {period} {f} {k}" for k in orders for f in ("sin", "cos")]
        names += [f"{self.column} spline {j + 1}" for j in range(self.n_spline)]
        return (*names, *([f"{self.column} missing"] if self.indicator else []))

    @property
    def n_spline(self) -> int:
        """Features of the spline besides the linear one."""
        return 0 if self.spline is None else self.spline.n_columns

    @property
    def n_main(self) -> int:
        """Features, the first ones, that enter interactions."""
        return 1

    def sql(self, kind: str, text: TextFormat) -> str:
        """SQL of the values of a column of this type."""
        text = text.of(self.column)
        is_text = kind in TEXTS or (kind in INTEGERS and self.date_format is not None)
        if not self.is_date or (kind in NUMBERS and not is_text):  # numbers are days
            return f"CAST({text.number(self.column, kind)} AS DOUBLE)"
        moment = quoted(self.column)
        if is_text:
            moment = date_sql(text.text(self.column, kind), self.date_format)
        elif text.na_values:
            marks = ", ".join(map(literal, text.na_values))
            day = f"strftime({moment}, '%Y-%m-%d')"
            moment = f"CASE WHEN {day} IN ({marks}) THEN NULL ELSE {moment} END"
        return f"epoch_us({moment}) / {DAY}"

    def encode(self, values: np.ndarray) -> Iterator[np.ndarray]:
        """The features of values (rows,)."""
        missing = np.isnan(values) if self.indicator or self.fill is not None else None
        if missing is not None and self.fill is not None:
            values = np.where(missing, self.fill, values)
        yield values
        for period in self.periods:
            length, most = HARMONICS[period]
            for k in range(1, most + 1):
                angle = 2 * np.pi * k / length * values
                yield np.sin(angle)
                yield np.cos(angle)
        if self.spline is not None:
            yield from self.spline.basis(values).T
        if self.indicator and missing is not None:
            yield missing.astype(float)


def date_sql(text: str, date_format: str | None) -> str:
    """SQL of the date that a string is, NULL if it is none; ISO form is read besides any other."""
    moment = f"TRY_CAST({text} AS TIMESTAMP)"
    if date_format is not None:
        own = f"try_strptime({text}, {literal(date_format)})"
        moment = own if date_format.startswith("%Y-%d") else f"coalesce({own}, {moment})"
    return f"CASE WHEN year({moment}) >= {FIRST_YEAR} THEN {moment} END"


@dataclass(frozen=True)
class Factor:
    """A column of categories: the row of its level in a table of contrasts."""

    column: str
    levels: tuple[str, ...]  # the last may be (other) and (missing)
    counts: tuple[int, ...]  # rows of each level
    coding: str  # "reference", "sum" or "ordinal"
    reference: str  # the level without a feature; of "ordinal" the first
    unseen: str = "mean"  # or "error"

    def __post_init__(self) -> None:
        require_texts(self.column, *self.levels)
        if (
            len(self.counts) != len(self.levels)
            or not all(isinstance(n, Real) for n in self.counts)
            or (self.levels and self.reference not in self.levels)
        ):
            raise ValueError(f"These are not levels of a column: {self!r}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        if self.coding == "ordinal":
            return (self.column,)
        return tuple(f"{self.column}={level}" for level in self.levels if level != self.reference)

    @property
    def n_main(self) -> int:
        """Features that enter interactions: all."""
        return len(self.names)

    @property
    def known(self) -> tuple[str, ...]:
        """The levels that are texts of the column."""
        return tuple(level for level in self.levels if level not in (NO_LEVEL, OTHER))

    @property
    def pools(self) -> bool:
        """Whether levels other than the known ones have a level."""
        return OTHER in self.levels

    def value_sql(self, kind: str, text: TextFormat) -> str:
        """SQL of the level of a row: if all levels were numbers in the fit, "1.0" is "1"."""
        value = text.text(self.column, kind)
        if kind in TEXTS and self.known and all(map(PLAIN_NUMBER.fullmatch, self.known)):
            number = f"TRY_CAST({value} AS DOUBLE)"
            value = f"CASE WHEN {number} IS NULL THEN {value} ELSE {number_text(number)} END"
        return value

    def sql(self, kind: str, text: TextFormat) -> str:
        """SQL of the codes of a column of this type."""
        value = self.value_sql(kind, text)
        levels = ", ".join(map(literal, self.known))
        code = f"CAST(enum_code(TRY_CAST({value} AS ENUM({levels}))) AS INTEGER)"
        if not self.known:
            code = "NULL"
        is_missing = f"{value} IS NULL"
        if NO_LEVEL in self.levels:
            is_missing += f" OR {value} = {literal(NO_LEVEL)}"
        return f"CASE WHEN {is_missing} THEN {MISSING_CODE} " \
               f"ELSE coalesce({code}, {UNSEEN_CODE}) END"  # fmt: skip

    @cached_property
    def contrasts(self) -> np.ndarray:
        """Features of each level; then of a level that was not fitted, and of a missing one."""
        L = len(self.levels)
        if self.coding == "ordinal":
            table = np.arange(float(L))[:, None]
        else:
            at = self.levels.index(self.reference)
            table = np.delete(np.eye(L), at, axis=1)
            if self.coding == "sum":
                table[at] = -1.0
        counts = np.array(self.counts, dtype=float)
        unseen = counts @ table / counts.sum() if counts.sum() else np.full(table.shape[1], np.nan)
        unseen = table[self.levels.index(OTHER)] if self.pools else unseen
        missing = np.full(table.shape[1], np.nan)
        missing = table[self.levels.index(NO_LEVEL)] if NO_LEVEL in self.levels else missing
        return np.vstack([table, unseen, missing])

    def encode(self, codes: np.ndarray) -> Iterator[np.ndarray]:
        """The features of codes (rows,)."""
        for column in self.contrasts.T:  # codes -2 and -1 are the last rows
            yield column[codes]


@dataclass(frozen=True)
class Encoding:
    """All columns of X, and how they become features."""

    columns: tuple[Number | Factor, ...]
    interactions: tuple[tuple[str, str], ...] = ()
    text: TextFormat = PLAIN[0]
    missing: str = "error"  # rows that lack a value
    origins: tuple[str, ...] = ()  # of features that are coded already, see ``coded``
    coded_groups: tuple[int, ...] = ()
    offset: tuple[Expression, ...] = ()  # known parts of the linear predictor, see offsets.py

    def __post_init__(self) -> None:
        if not all(isinstance(column, Number | Factor) for column in self.columns):
            raise ValueError(f"These are not columns of a table: {self.columns!r}.")
        d = len(self.columns)
        if len(self.origins) not in (0, d) or len(self.coded_groups) not in (0, d):
            raise ValueError("Features and their columns differ in number.")
        _ = self.names  # raises for interactions of unknown columns

    def coded(self) -> Encoding:
        """The encoding of arrays whose columns are these features already."""
        columns = tuple(Number(name) for name in self.names)
        groups = tuple(self.groups.tolist())
        origins, offset = self.column_of, self.offset
        return Encoding(columns, origins=origins, coded_groups=groups, offset=offset)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the features, (d,)."""
        by_column = {c.column: c.names[: c.n_main] for c in self.columns}
        products = (
            f"{one}:{other}"
            for a, b in self.interactions
            for one in by_column[a]
            for other in by_column[b]
        )
        return (*(name for column in self.columns for name in column.names), *products)

    @cached_property
    def column_of(self) -> tuple[str, ...]:
        """The column of the table that each feature comes from, (d,); both for a product."""
        if self.origins:
            return self.origins
        own = [c.column for c in self.columns for _ in c.names]
        mains = {c.column: c.n_main for c in self.columns}
        for a, b in self.interactions:
            own += [f"{a}:{b}"] * (mains[a] * mains[b])
        return tuple(own)

    @cached_property
    def groups(self) -> np.ndarray:
        """For each feature the number of its group of equal variances, or -1, (d,)."""
        if self.coded_groups:
            return np.array(self.coded_groups)
        groups, at, number = np.full(len(self.names), -1), 0, 0
        for column in self.columns:
            n_spline = column.n_spline if isinstance(column, Number) else 0
            if n_spline:
                first = at + len(column.names) - n_spline - int(column.indicator)  # type: ignore[union-attr]
                groups[first : first + n_spline] = number
                number += 1
            at += len(column.names)
        return groups

    @property
    def is_plain(self) -> bool:
        """Whether every column is one feature, its numbers as they are, and none is missing."""
        numbers = all(isinstance(c, Number) and c == Number(c.column) for c in self.columns)
        return numbers and not self.interactions and (self.text, self.missing) == PLAIN

    def sql(self, types: Any) -> list[str]:
        """SQL of the values of all columns, by the types of the columns."""
        return [column.sql(types[column.column], self.text) for column in self.columns]

    def encode(
        self,
        values: Sequence[np.ndarray],
        dtype: Any = np.float64,
        first_row: int | None = None,
    ) -> np.ndarray:
        """Features (rows, d) of the values of all columns, each (rows,).

        Errors name a row if the number of the first one is given.
        """
        X = np.empty((len(values[0]) if len(values) else 0, len(self.names)), dtype)
        self._fill(X, values, first_row)
        return X

    def _fill(self, X: np.ndarray, values: Sequence[np.ndarray], first_row: int | None) -> None:
        """Write the features into X, (rows, d)."""
        at, firsts = 0, {}
        for column, each in zip(self.columns, values, strict=True):
            firsts[column.column] = (at, column.n_main)
            if isinstance(column, Factor) and self.fills(column):
                each = np.where(each == MISSING_CODE, UNSEEN_CODE, each)
            for feature in column.encode(each):
                X[:, at] = feature
                at += 1
        for a, b in self.interactions:
            (i, m), (j, n) = firsts[a], firsts[b]
            for one in range(i, i + m):
                for other in range(j, j + n):
                    X[:, at] = X[:, one] * X[:, other]
                    at += 1

    def fills(self, factor: Factor) -> bool:
        """Whether missing values of a factor that had none in the fit count as unseen ones."""
        return self.missing == "indicator" and NO_LEVEL not in factor.levels

    def fits_float32(self, types: Any) -> bool:
        """Whether single precision holds every feature exactly."""
        return not self.interactions and all(
            isinstance(c, Factor) or (c == Number(c.column) and types[c.column] in EXACT_IN_FLOAT32)
            for c in self.columns
        )
