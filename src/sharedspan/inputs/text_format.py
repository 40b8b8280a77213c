"""How numbers and missing values are written as text, and the types of DuckDB."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sharedspan.inputs.files import literal, quoted

INTEGERS = {"tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger"}
FLOATS = {"float", "double"}
NUMBERS = INTEGERS | FLOATS | {"boolean", "ubigint", "hugeint", "uhugeint", "decimal"}
TEXTS = {"varchar", "enum"}
DATES = {
    "date", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns",
    "timestamp with time zone", "timestamptz",
}  # fmt: skip
SIGNS = ("%", "$", "€", "£", "¥", "CHF", "EUR", "USD", "GBP")  # of units, beside a number
SPACES = " \u00a0\u202f\u2009"  # the other three do not break a line
PLAIN_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d*[1-9])?")  # as DuckDB writes it
APOSTROPHES = "'\u2019"
MINUS = "\u2212"


@dataclass(frozen=True)
class TextFormat:
    """How numbers and missing values are written as text."""

    decimal: str = "."
    thousands: str = ""
    na_values: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()  # of units, which do not count
    strip: bool = False  # whether spaces around text do not count
    points: tuple[str, ...] = ()  # columns with decimal points beside others with commas

    def __post_init__(self) -> None:
        # The marks become part of regular expressions, and all of them of SQL.
        require_texts(self.thousands, *self.na_values, *self.signs, *self.points)
        if self.decimal not in (".", ",") or len(self.thousands) > 1:
            raise ValueError(f"These are not marks of numbers: {self!r}.")

    @staticmethod
    def upgraded(values: dict[str, Any]) -> dict[str, Any]:
        """The attributes from those of earlier model files of format 2."""
        return {"points": (), **values}

    def of(self, name: str) -> TextFormat:
        """The format of one column, which may have decimal points although others have commas."""
        return replace(self, decimal=".", thousands="") if name in self.points else self

    @property
    def has_marks(self) -> bool:
        """Whether numbers are written in another way than DuckDB reads them."""
        return self.decimal != "." or self.thousands != ""

    @property
    def missing_numbers(self) -> list[float]:
        """Numbers that mean a missing value."""
        return [float(mark) for mark in self.na_values if is_number(mark)]

    def text(self, name: str, kind: str) -> str:
        """SQL of the text of a value; a whole number has no decimals, whatever its type."""
        column = quoted(name)
        if kind in FLOATS | {"decimal"}:
            column = number_text(column)
        else:
            column = f"CAST({column} AS VARCHAR)"
        if self.strip and kind == "varchar":
            column = f"trim({column})"
        if self.na_values:
            marks = ", ".join(map(literal, self.na_values))
            column = f"CASE WHEN {column} IN ({marks}) THEN NULL ELSE {column} END"
        return column

    def number(self, name: str, kind: str) -> str:
        """SQL of a number."""
        if kind == "boolean":
            # DuckDB 2.0 reads the words of a boolean column as floats if these are what is asked.
            return f"CAST({quoted(name)} AS TINYINT)"
        if kind in TEXTS:
            return self.as_number(self.text(name, kind))
        if marks := self.missing_numbers:
            return f"CASE WHEN {quoted(name)} IN ({', '.join(map(repr, marks))}) THEN NULL " \
                   f"ELSE {quoted(name)} END"  # fmt: skip
        return quoted(name)

    def as_number(self, text: str) -> str:
        """SQL of the number that a text is, without its thousands marks and the sign of a unit."""
        text = self._bare_sql(text)
        if omitted := self._omitted():
            text = f"translate({text}, {literal(omitted)}, '')"
        if self.decimal != ".":
            text = f"replace({text}, {literal(self.decimal)}, '.')"
        return text

    def numbers(self, texts: Any) -> np.ndarray | None:
        """Arrow text as floats, NaN where a value is missing; None if one is not a number."""
        import pyarrow.compute as pc

        if not str(texts.type).endswith("string"):
            return None
        known = pc.utf8_trim_whitespace(texts.cast("string"))
        known = pc.if_else(pc.is_in(known, value_set=_texts(self.na_values)), None, known)
        known = pc.replace_substring(known, MINUS, "-")
        for sign in self.signs:
            known = pc.replace_substring(known, sign, "")
        matches = pc.match_substring_regex(known, f"^(?:{self.pattern})$")
        if not pc.all(matches, min_count=0).as_py():
            return None
        for mark in self._omitted():
            known = pc.replace_substring(known, mark, "")
        number = pc.replace_substring(known, self.decimal, ".").cast("float64")
        return number.to_numpy(zero_copy_only=False)

    def _bare_sql(self, text: str) -> str:
        """SQL of a text without the signs of units."""
        text = f"replace({text}, '{MINUS}', '-')"
        for sign in self.signs:
            text = f"replace({text}, {literal(sign)}, '')"
        return text

    def without_signs(self, text: str) -> str:
        """A text without the signs of units."""
        text = text.replace(MINUS, "-")
        for sign in self.signs:
            text = text.replace(sign, "")
        return text

    def _omitted(self) -> str:
        """Characters that are left out of numbers."""
        spaces = SPACES if self.signs else ""
        for alike in (SPACES, APOSTROPHES):
            if self.thousands and self.thousands in alike:
                return spaces + alike
        return spaces + self.thousands

    def reads_sql(self, text: str) -> str:
        """SQL of whether a text is a number; groups of thousands have three digits."""
        number = f"TRY_CAST({self.as_number(text)} AS DOUBLE) IS NOT NULL"
        if not self.has_marks:
            return number
        text = self._bare_sql(text)
        return f"({number} AND regexp_full_match({text}, {literal(self.pattern)}))"

    def reads(self, text: str) -> bool:
        """Whether a text is a number."""
        text = self.without_signs(text)
        if self.has_marks:
            return re.fullmatch(self.pattern, text) is not None
        try:
            float(text)
        except ValueError:
            return False
        return "_" not in text

    @cached_property
    def pattern(self) -> str:
        """Regular expression of numbers with these marks.

        With decimal commas, a point is one of thousands if three digits follow it and the number
        does not begin with 0, and a decimal point otherwise.
        """
        space, digits = f"[{SPACES}]*", r"\d+"
        if self.thousands:
            mark = next((a for a in (SPACES, APOSTROPHES) if self.thousands in a), self.thousands)
            digits = rf"(?:[1-9]\d{{0,2}}(?:[{re.escape(mark)}]\d{{3}})+|\d+)"
        number = rf"(?:{digits}(?:[{self.decimal}]\d*)?|[{self.decimal}]\d+)"
        if self.decimal == "," and self.thousands != ".":
            number = rf"(?:{number}|\d*\.(?:\d{{1,2}}|\d{{4,}})|(?:0\d*|\d{{4,}})\.\d*)"
        return rf"{space}[-+]?{number}(?:[eE][-+]?\d+)?{space}"


def _texts(texts: Iterable[str]) -> Any:
    import pyarrow

    return pyarrow.array(texts, pyarrow.string())


def require_texts(*texts: Any) -> None:
    """Raise unless all are strings: they become part of SQL, and may come from a model file."""
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"These are not strings: {texts!r}.")


def number_text(number: str) -> str:
    """SQL of the text of a number; a whole one has no decimals."""
    whole = f"{number} = trunc({number}) AND abs({number}) < 1e15"
    return f"CASE WHEN {whole} THEN CAST(CAST({number} AS BIGINT) AS VARCHAR) " \
           f"WHEN isnan(CAST({number} AS DOUBLE)) THEN NULL " \
           f"ELSE CAST(CAST({number} AS DOUBLE) AS VARCHAR) END"  # fmt: skip


def is_number(text: str) -> bool:
    """Whether a text is a finite number with a decimal point."""
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
