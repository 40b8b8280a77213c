"""The header of a CSV file: its column names, delimiter and line ends, and the lines above it.

DuckDB guesses a dialect from a sample of the rows, and may then skip lines that do not fit. The
line of column names shows the dialect reliably.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from sharedspan.inputs.table_text import TableCopy, decoding, is_plain, open_text

DELIMITERS = (",", ";", "\t", "|")
QUOTED_NAME = re.compile('"[^"]*"')
LONGEST_HEADER = 1 << 24  # characters
SAMPLED_ROWS = 20  # below a line that may be the header
MOST_LINES_ABOVE = 30  # the header, such as a title


@dataclass(frozen=True)
class CsvFormat:
    """The separators of fields and lines in a CSV file, and where its rows begin."""

    delimiter: str
    line_end: str | None  # None if DuckDB can detect it
    skip: int = 0  # lines above the column names
    repeated: tuple[str, ...] = ()  # names of columns whose name in the file an earlier one has
    copy: TableCopy | None = None  # what DuckDB reads in place of the file


@dataclass(frozen=True)
class Header:
    """The line of column names, and what the rows below it look like."""

    names: tuple[str, ...]  # as they are in the file, or "" for none
    delimiter: str
    line_end: str | None
    skip: int  # lines above it
    n_lines: int  # more than one if a name has several
    is_padded: bool  # whether most values have spaces around them, which do not count
    is_plausible: bool  # whether it has names, as many as the rows below have fields
    needs_copy: bool  # whether DuckDB cannot read the rows as they are

    def unique_names(self) -> tuple[list[str], tuple[str, ...]]:
        """A unique name for each column, and the new names of repeated ones; as pandas has them.

        DuckDB does not distinguish capitals from small letters.
        """
        names, taken, repeated = list[str](), {name.lower() for name in self.names}, list[str]()
        seen = set[str]()
        for j, name in enumerate(self.names):
            unique, number = name or f"Unnamed: {j}", 0
            while unique.lower() in (seen if number == 0 else seen | taken):
                number += 1
                unique = f"{name}.{number}"
            if number:
                repeated.append(unique)
            seen.add(unique.lower())
            names.append(unique)
        return names, tuple(repeated)


def read_header(path: Path, *, as_copy: bool = False) -> tuple[list[str], CsvFormat]:
    """Column names of a CSV file or workbook, and its format.

    Names in quotes are taken as they are, others without the spaces around them; columns without a
    name, and later ones of the same name, get names as in pandas. The delimiter is the candidate
    that occurs most between names, a comma if all are absent. Lines above the names, such as a
    title, are recognised by having far fewer fields than all that follow. Line ends are given only
    if a name of several lines would mislead DuckDB. With ``as_copy``, and if DuckDB would not read
    the file, the format has a copy of it.
    """
    header = _find_header(path)
    if header is None:
        raise ValueError(
            f"{path} does not begin with a line of column names: write one as its first line."
        )
    names, repeated = header.unique_names()
    if not header.needs_copy and not as_copy and is_plain(path):
        return names, CsvFormat(header.delimiter, header.line_end, header.skip, repeated)
    first_line = header.skip + header.n_lines
    given = (header.delimiter, first_line, header.is_padded)
    return names, CsvFormat(",", "\n", 0, repeated, TableCopy(str(path), tuple(names), *given))


def _find_header(path: Path) -> Header | None:
    """The first line that can be one of column names, or None in a file without text."""
    with decoding(path), open_text(path) as text:
        records = list(islice(_records(text), MOST_LINES_ABOVE + SAMPLED_ROWS))
    first, n_lines = None, 0
    for at, record in enumerate(records[:MOST_LINES_ABOVE]):
        if record.strip():
            header = _header_of(record, n_lines, records[at + 1 : at + 1 + SAMPLED_ROWS])
            first = first or header
            if header.is_plausible and all(_is_above(line, header) for line in records[:at]):
                return header
        n_lines += _count_lines(record)
    return first


def _records(text: TextIO) -> Iterator[str]:
    """Lines, joined where a value in quotes has several."""
    while record := text.readline():
        while record.count('"') % 2 and len(record) < LONGEST_HEADER:
            if not (line := text.readline()):
                break
            record += line
        yield record


def _count_lines(record: str) -> int:
    return max(len(re.findall(r"\r\n|\r|\n", record)), 1)


def _is_above(line: str, header: Header) -> bool:
    """Whether a line above the column names is empty, a comment, or has few of the fields."""
    filled, width = sum(map(bool, _names(line, header.delimiter))), len(header.names)
    return line.startswith("#") or filled <= width / 2 or filled < width - 1


def _header_of(record: str, skip: int, below: Sequence[str]) -> Header:
    """A line as one of column names."""
    without_quotes = QUOTED_NAME.sub("", record)
    delimiter = max(DELIMITERS, key=without_quotes.count)
    line_end = None
    if any(end in name for name in QUOTED_NAME.findall(record) for end in "\r\n"):
        line_end = next((end for end in ("\r\n", "\n", "\r") if record.endswith(end)), None)
    common = {"line_end": line_end, "skip": skip, "n_lines": _count_lines(record)}
    header = _separated(record, below, delimiter, **common)
    if delimiter not in without_quotes and " " in record.strip():
        by_spaces = _separated(record, below, " ", **common)
        header = by_spaces if by_spaces.is_plausible else header
    return header


def _separated(record: str, below: Sequence[str], delimiter: str, **common: Any) -> Header:
    """A line as one of column names with this delimiter, judged by the lines below."""
    by_spaces = delimiter == " "
    names = _names(record, delimiter)
    if by_spaces:
        names = next(csv.reader([record.strip()], delimiter=" ", skipinitialspace=True))
    text = io.StringIO("".join(below), newline="")
    reader = csv.reader(text, delimiter=delimiter, skipinitialspace=by_spaces)
    rows = [
        row[:-1] if len(row) == len(names) + 1 and not row[-1] else row  # such as "1;2;3;"
        for row in reader
        if any(row)
    ]
    widths = [len(row) for row in rows]
    width = max(widths, key=widths.count, default=len(names))
    has_row_names = width == len(names) + 1  # R's write.table has no name for them
    if has_row_names:
        names = ["", *names]
    values = [value for row in rows for value in row if value]
    is_padded = by_spaces or sum(value != value.strip() for value in values) > len(values) / 2
    n_named = sum(map(bool, names))
    is_plausible = (
        n_named > max(len(names) / 2, 1)
        and width == len(names)
        and sum(map(_is_number, names)) <= n_named / 2
        and not (record.startswith("#") and _has_names(rows))
    )
    return Header(
        tuple(names), delimiter, is_padded=is_padded, is_plausible=is_plausible,
        needs_copy=has_row_names or is_padded, **common,
    )  # fmt: skip


def _has_names(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row has words in all columns, and some row below it numbers."""
    first, below = rows[:1], rows[1:]
    return not any(_is_number(value) for row in first for value in row) and any(
        _is_number(value) for row in below for value in row
    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?[\d.,]+(e[-+]?\d+)?", text.strip(), re.IGNORECASE) is not None


def _names(record: str, delimiter: str) -> list[str]:
    """The fields of a line: those in quotes as they are, others without the spaces around them."""
    end, names, at, text = re.escape(delimiter), list[str](), 0, record.rstrip("\r\n")
    cell = re.compile(rf'\s*"((?:[^"]|"")*)"\s*(?:{end}|$)|([^{end}]*)(?:{end}|$)')
    while at <= len(text) and (match := cell.match(text, at)):
        in_quotes, plain = match.groups()
        names.append(plain.strip() if in_quotes is None else in_quotes.replace('""', '"'))
        at = match.end() if match.end() > at and match[0].endswith(delimiter) else len(text) + 1
    return names
