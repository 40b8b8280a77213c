"""The header of a CSV file: its column names, delimiter and line ends; and lines that are broken.

DuckDB guesses a dialect from a sample of the rows, and may then skip lines that do not fit. The
first line of a table with column names shows the dialect reliably.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

DELIMITERS = (",", ";", "\t", "|")
QUOTED_NAME = re.compile('"[^"]*"')
LONGEST_HEADER = 1 << 24  # characters
NOT_UTF8 = "it is not UTF-8 text: save it as UTF-8."


@dataclass(frozen=True)
class CsvFormat:
    """The separators of fields and lines in a CSV file."""

    delimiter: str
    line_end: str | None  # None if DuckDB can detect it


def read_header(path: Path) -> tuple[list[str], CsvFormat]:
    """Column names of a CSV file, and its format.

    Names in quotes are taken as they are, others without the spaces around them. The delimiter is
    the candidate that occurs most between names, a comma if all are absent. Line ends are given
    only if a name of several lines would mislead DuckDB.
    """
    header = _header(path)
    if not header.strip():
        raise ValueError(
            f"{path} does not begin with a line of column names: write one as its first line."
        )
    delimiter = max(DELIMITERS, key=QUOTED_NAME.sub("", header).count)
    line_end = None
    if any(end in name for name in QUOTED_NAME.findall(header) for end in "\r\n"):
        line_end = next((end for end in ("\r\n", "\n", "\r") if header.endswith(end)), None)

    end, names, at, text = re.escape(delimiter), [], 0, header.rstrip("\r\n")
    cell = re.compile(rf'\s*"((?:[^"]|"")*)"\s*(?:{end}|$)|([^{end}]*)(?:{end}|$)')
    while at <= len(text) and (match := cell.match(text, at)):
        in_quotes, plain = match.groups()
        names.append(plain.strip() if in_quotes is None else in_quotes.replace('""', '"'))
        at = match.end() if match.end() > at and match[0].endswith(delimiter) else len(text) + 1
    return names, CsvFormat(delimiter, line_end)


def _header(path: Path) -> str:
    """The first line, or the first lines if a name in quotes has several."""
    try:
        with _open_text(path) as text:
            header = text.readline()
            while header.count('"') % 2 and len(header) < LONGEST_HEADER:
                if not (line := text.readline()):
                    break
                header += line
            return header
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} could not be read: {NOT_UTF8}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} could not be read: {str(error).rstrip('.')}.") from error


def broken_line(path: Path) -> str | None:
    """The reason why a CSV file cannot be read, such as a line of another length, or None."""
    try:
        delimiter = read_header(path)[1].delimiter
        with _open_text(path) as text:
            rows = csv.reader(text, delimiter=delimiter)
            width = len(next(rows))
            for row in rows:
                if row and len(row) != width:
                    return (
                        f"line {rows.line_num} has {len(row)} fields, the first line {width}: "
                        "correct it."
                    )
    except UnicodeDecodeError:
        return NOT_UTF8
    except EOFError:
        return "it ends in the middle: copy or compress it again."
    except (OSError, csv.Error, zlib.error):
        pass
    return None


def _open_text(path: Path) -> TextIO:
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    return opener(path, "rt", encoding="utf-8-sig", newline="")
