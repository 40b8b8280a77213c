"""The text of a table: decoded from its encoding, or taken from a spreadsheet.

DuckDB reads UTF-8 alone. A table in another encoding, a workbook, or text that is not quite CSV is
copied to a temporary file of plain CSV first (``TableCopy``).
"""

from __future__ import annotations

import codecs
import csv
import datetime
import gzip
import io
import shlex
import sys
import weakref
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from sharedspan.inputs.temporary import SharedFolder

EXCEL_ENDINGS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
MARKS = (  # the bytes that begin a text, and its encoding; the longer ones first
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)  # fmt: skip
NOT_READ = " could not be read: "
SAMPLE = 1 << 16  # bytes in which an encoding is recognised


@dataclass(frozen=True)
class TableOptions:
    """How to read the text of tables; no part of a model."""

    encoding: str | None = None  # None for UTF-8, or what a byte order mark says
    sheet: str | None = None  # of a workbook; None if it has one


_CURRENT: ContextVar[TableOptions | None] = ContextVar("table_options", default=None)
_COPIES: ContextVar[list[Any] | None] = ContextVar("table_copies", default=None)
_COPY_FOLDER = SharedFolder()


@contextmanager
def table_options(encoding: str | None = None, sheet: str | None = None) -> Iterator[None]:
    """Read tables with this encoding, or this sheet of a workbook, until the context ends.

    Then copies of tables are removed. Without arguments, options of an outer context hold.
    """
    if encoding is not None:
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise ValueError(
                f"The encoding {encoding!r} is unknown: give one of Python's, such as latin-1, "
                "cp1252 (Windows) or utf-16."
            ) from None
    outer = current_options()
    options = TableOptions(encoding or outer.encoding, sheet or outer.sheet)
    token, copies = _CURRENT.set(options), _COPIES.set([])
    try:
        yield
    finally:
        for remove in _COPIES.get() or ():
            remove()
        _CURRENT.reset(token)
        _COPIES.reset(copies)


def current_options() -> TableOptions:
    """The options within the nearest ``table_options``."""
    return _CURRENT.get() or TableOptions()


def is_workbook(path: Path) -> bool:
    """Whether a file is a spreadsheet workbook, judging by its extension."""
    return path.name.lower().endswith(EXCEL_ENDINGS)


def is_plain(path: Path) -> bool:
    """Whether DuckDB can decode the file: it is UTF-8 as far as can be seen."""
    given = current_options().encoding
    if is_workbook(path):
        return False
    if given is not None and codecs.lookup(given).name not in ("utf-8", "utf-8-sig"):
        return False
    return encoding_of(path) == "utf-8-sig"


def encoding_of(path: Path) -> str:
    """The encoding that a file's byte order mark states, or UTF-8.

    UTF-16 without a mark is recognised too: every other byte of Western letters is zero.
    """
    with decoding(path), _open(path) as file:
        start = file.read(1024)
    for parity, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        if 2 * start[parity::2].count(0) > len(start[parity::2]):
            return next((name for mark, name in MARKS if start.startswith(mark)), name)
    return next((name for mark, name in MARKS if start.startswith(mark)), "utf-8-sig")


def open_text(path: Path) -> TextIO:
    """The text of a table, with its line ends as they are."""
    options = current_options()
    if is_workbook(path):
        return _sheet_text(path, options.sheet)
    encoding = encoding_of(path)
    if encoding == "utf-8-sig" and options.encoding is not None:
        encoding = options.encoding
    return io.TextIOWrapper(_open(path), encoding=encoding, newline="")


def _open(path: Path) -> Any:
    return gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb")


@contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Turn the errors of reading text into one line that names the file."""
    try:
        yield
    except UnicodeError as error:
        raise ValueError(f"{path}{NOT_READ}{_not_decoded(path)}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path}{NOT_READ}it ends in the middle: copy or compress it again."
        ) from error
    except PermissionError as error:
        raise ValueError(f"{path}{NOT_READ}{error.strerror}.") from error


def read_through(path: Path) -> None:
    """Raise, in one line that names the file, if a part of its text cannot be decoded."""
    with decoding(path), open_text(path) as text:
        for _ in text:
            pass


def _not_decoded(path: Path) -> str:
    """The reason why text could not be decoded, and what to type, as the end of a sentence."""
    given = current_options().encoding
    if given is not None:
        return (
            f"it is not text in the encoding {given}: give another one (--encoding, or encoding= "
            "in Python)."
        )
    with _open(path) as file:
        data = file.read(SAMPLE)
    if data.startswith(b"PK\x03\x04") or data.startswith(b"\xd0\xcf\x11\xe0"):
        return "it is a workbook: rename it with the extension .xlsx or .xls, whichever it had."
    if b"\0" in data:
        return "it is not text: give a CSV, Parquet or Excel file."
    bad, encoding, number, n_bad, n_good = data, "latin-1", 0, 0, 0
    for i, line in enumerate(_lines(path), 1):
        if line.isascii():
            continue
        if _is_utf8(line):
            n_good += 1
            continue
        bad, number = (line, i) if n_bad == 0 else (bad, number)
        n_bad += 1
        if any(0x80 <= byte < 0xA0 for byte in line):
            encoding = "cp1252"  # which has letters where Latin-1 has none
    at = next((i for i, byte in enumerate(bad) if byte >= 0x80), 0)
    words = bad[max(at - 12, 0) : at + 12].decode(encoding, "replace")
    word = next((w for w in _words(words) if not w.isascii()), words)
    if n_bad and n_good:
        more = "" if n_bad == 1 else f" and {n_bad - 1} more line{'s' if n_bad > 2 else ''}"
        return (
            f"line {number} (with {word!r} in {encoding}){more} {'is' if n_bad == 1 else 'are'} "
            f"not UTF-8 text, as the others are: correct {'it' if n_bad == 1 else 'them'}, and "
            "save the table as UTF-8."
        )
    return (
        f"it is not UTF-8 text: if {word!r} reads right, add --encoding {encoding}, in Python "
        f"encoding={encoding!r}, otherwise save it as UTF-8."
    )


def _lines(path: Path) -> Iterator[bytes]:
    with _open(path) as file:
        yield from file


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or not c.isascii() else " " for c in text).split()


# ---- workbooks -----------------------------------------------------------------------------------


def _sheet_text(path: Path, sheet: str | None) -> TextIO:
    """A sheet of a workbook as CSV."""
    try:
        from python_calamine import CalamineError, CalamineWorkbook
    except ImportError:
        raise ImportError(
            f"{path} is a workbook, which needs python-calamine: pip install "
            "'sharedspan[excel]', or save the sheet as CSV."
        ) from None
    try:
        book = CalamineWorkbook.from_path(str(path))
        filled = [name for name in book.sheet_names if book.get_sheet_by_name(name).height]
        name = _chosen_sheet(path, sheet, book.sheet_names, filled)
        rows = book.get_sheet_by_name(name).to_python(skip_empty_area=False)
    except CalamineError as error:
        advice = "save the sheet as CSV"
        if not Path(path).read_bytes()[:SAMPLE].count(0):
            advice = "it looks like text, so rename it with the extension .csv"
        reason = str(error).rstrip(".")
        raise ValueError(f"{path} could not be read as a workbook ({reason}): {advice}.") from error
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    text.seek(0)
    return text


def _chosen_sheet(path: Path, sheet: str | None, names: list[str], filled: list[str]) -> str:
    if not names:
        raise ValueError(f"{path} is a workbook without a sheet: save the table as CSV.")
    if sheet is not None and sheet in names:
        return sheet
    listed = ", ".join(map(repr, filled or names))
    if sheet is not None:
        raise ValueError(f"{path} has no sheet {sheet!r}: give one of {listed} (--sheet).")
    if len(filled) > 1:
        raise ValueError(
            f"{path} has the sheets {listed}: add --sheet {shlex.quote(filled[0])}, in Python "
            f"sheet={filled[0]!r}, or the name of another one."
        )
    return (filled or names)[0]


def _cell(value: Any) -> str:
    """A cell as text that reads as what it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if isinstance(value, datetime.datetime):
        return (value.date() if value.time() == datetime.time() else value).isoformat()
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


# ---- copies --------------------------------------------------------------------------------------


class TableCopy:
    """A temporary file of plain CSV with the rows of a table, removed with this object.

    The file is made when it is first needed. In another process, to which only the name of the
    table and the options go, it is made anew.
    """

    def __init__(
        self,
        original: str,
        names: tuple[str, ...],
        delimiter: str,
        first_line: int,
        is_padded: bool,
        options: TableOptions | None = None,
    ) -> None:
        self.original, self.names, self.delimiter = original, names, delimiter
        self.first_line = first_line  # of the rows, counted from 0
        self.is_padded = is_padded  # whether spaces around values do not count
        self.options = options or current_options()
        self._path: str | None = None

    def __reduce__(self) -> Any:
        given = (self.original, self.names, self.delimiter, self.first_line, self.is_padded)
        return TableCopy, (*given, self.options)

    @property
    def path(self) -> str:
        """The name of the temporary file."""
        if self._path is None:
            descriptor, path = _COPY_FOLDER.make(".csv")
            remove = weakref.finalize(self, _COPY_FOLDER.remove, path)
            token = _CURRENT.set(self.options)
            try:
                with open(descriptor, "w", encoding="utf-8", newline="") as out:
                    self._write(csv.writer(out, lineterminator="\n"))
            except BaseException:
                remove()
                raise
            finally:
                _CURRENT.reset(token)
            self._path = path
            if (copies := _COPIES.get()) is not None:
                copies.append(remove)
        return self._path

    def _write(self, writer: Any) -> None:
        original = Path(self.original)
        with decoding(original), open_text(original) as text:
            writer.writerow(self.names)
            writer.writerows(self._rows(text))

    def _rows(self, text: TextIO) -> Iterator[list[str]]:
        """Rows of as many fields as there are names; those of short rows are empty."""
        width = len(self.names)
        for _ in range(self.first_line):
            text.readline()
        limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        try:
            lines = _Lines(text)
            rows = csv.reader(lines, delimiter=self.delimiter, skipinitialspace=self.is_padded)
            end = 0
            for row in rows:
                begin, end, quotes = end, rows.line_num, lines.take_quotes()
                # A quote that is not closed takes in what follows, up to the next or the end.
                if end - begin > 1 and (len(row) < width or quotes % 2):
                    raise ValueError(
                        f"{self.original}{NOT_READ}a double quote that begins in line "
                        f"{self.first_line + begin + 1} is not closed: close or remove it."
                    )
                fields = [field.strip() for field in row] if self.is_padded else row
                if not any(fields):  # an empty line
                    continue
                if any(fields[width:]):
                    first = "first line" if self.first_line == 1 else "line of column names"
                    raise ValueError(
                        f"{self.original}{NOT_READ}line "
                        f"{self.first_line + rows.line_num} has {len(row)} fields, the {first} "
                        f"{width}: correct it, for example by double quotes around a field that "
                        f"holds {self.delimiter!r}."
                    )
                yield fields[:width] + [""] * (width - len(fields))
        except csv.Error as error:
            raise ValueError(f"{self.original}{NOT_READ}{error}.") from error
        finally:
            csv.field_size_limit(limit)


class _Lines:
    """Lines without NUL characters, and the number of double quotes in the latest of them."""

    def __init__(self, text: Iterable[str]) -> None:
        self._text, self._quotes = iter(text), 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._text).replace("\0", "")
        self._quotes += line.count('"')
        return line

    def take_quotes(self) -> int:
        """The double quotes since the last call."""
        quotes, self._quotes = self._quotes, 0
        return quotes
