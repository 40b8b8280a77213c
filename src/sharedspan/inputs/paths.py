"""Users' CSV and Parquet files: which ones are meant, what columns they have, why one is broken."""

from __future__ import annotations

import csv
import difflib
import glob
import gzip
import itertools
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sharedspan.kernels.threads import n_threads

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FilePaths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

FOLDER_ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")  # a .txt in a folder may be anything
CSV_ENDINGS = (*FOLDER_ENDINGS, ".txt", ".txt.gz")
PARQUET_ENDINGS = (".parquet", ".pq")
DELIMITERS = (",", ";", "\t", "|")
MISSING_MARKS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?")  # in CSV
NOT_UTF8 = "it is not UTF-8 text: save it as UTF-8."
NO_PARQUET = "it is no Parquet file, or only a part of one: write or copy it again."
HEADS_MEMORY = 200_000_000  # bytes are enough to look at columns
THREAD_MEMORY = 50_000_000  # bytes that DuckDB reads with in one thread
MOST_NAMED = 5  # columns named in one message
LONGEST_HEAD = 1 << 24  # characters of the column names of a CSV file
QUOTED = re.compile('"[^"]*"')


@dataclass(frozen=True)
class SourceFile:
    """One file and the kinds of its columns, in DuckDB's words and in lower case."""

    path: str
    kinds: dict[str, str]
    delimiter: str | None = None  # None for Parquet
    line_end: str | None = None  # of CSV, where DuckDB could not tell it

    @property
    def is_parquet(self) -> bool:
        return self.delimiter is None

    def with_kinds(self, kinds: Mapping[str, str]) -> SourceFile:
        """The same file with other kinds of these columns, which stay in its order."""
        return replace(self, kinds=self.kinds | {n: kinds[n] for n in self.kinds if n in kinds})

    @property
    def sql_path(self) -> str:
        return literal(glob.escape(self.path))

    def scan(self, first: int = 0, stop: int | None = None) -> str:
        """SQL of its rows, in the order of the file; a range of them only for Parquet."""
        file = self.sql_path
        if self.delimiter is not None:
            columns = ", ".join(f"{literal(k)}: '{v.upper()}'" for k, v in self.kinds.items())
            types = f"auto_detect=false, columns={{{columns}}}"
            return f"read_csv({file}, {_csv_options(self.delimiter, self.line_end)}, {types})"
        if stop is None:
            return f"read_parquet({file})"
        rows = f"file_row_number >= {first} AND file_row_number < {stop}"
        return f"(FROM read_parquet({file}, file_row_number=true) WHERE {rows})"


def connect(
    memory: int | None = HEADS_MEMORY, threads: int | None = None, folder: str = ""
) -> DuckDBPyConnection:
    """DuckDB with so many bytes of memory (None: its default), and a folder if it may need more."""
    import duckdb

    config: dict[str, Any] = {"threads": threads or n_threads(), "temp_directory": folder}
    if memory is not None:  # which each thread needs some of
        config["memory_limit"] = f"{memory}B"
        config["threads"] = min(config["threads"], max(memory // THREAD_MEMORY, 1))
    connection = duckdb.connect(config=config)
    connection.execute("SET enable_progress_bar = false")  # it would print into users' output
    return connection


def batches(
    connection: DuckDBPyConnection, sql: str, path: str, rows: int = 1 << 17
) -> Iterator[Any]:
    """The result of a query of one file as Arrow batches, while the next ones are read."""
    with readable(path):
        relation: Any = connection.sql(sql)
        # The older name is all that releases before 1.4 know.
        reader = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
        source = reader(rows)
    while True:
        with readable(path):
            batch = next(source, None)
        if batch is None:
            return
        yield batch


def describe(connection: DuckDBPyConnection, path: Path) -> SourceFile:
    """A file's columns and their kinds; nothing but its head is read where the format allows it."""
    file = literal(glob.escape(str(path)))
    delimiter, line_end, scan = None, None, f"read_parquet({file})"
    if is_csv(path):
        # The first line alone says the delimiter, and the whole column its kind: a guess from a
        # part of the file would skip lines that do not fit it, or fail far into the file.
        delimiter, line_end = _delimiter(path), _line_end(path)
        candidates = "['BOOLEAN', 'BIGINT', 'DOUBLE', 'VARCHAR']"
        guess = f"sample_size=-1, auto_type_candidates={candidates}"
        scan = f"read_csv({file}, {_csv_options(delimiter, line_end)}, {guess})"
    with readable(path):
        source = connection.sql(f"FROM {scan}")
    kinds = (str(kind.id) for kind in source.types)
    names = _parquet_names(path) if delimiter is None else _csv_names(path, delimiter)
    for name in names:
        if name and names.count(name) > 1:
            raise ValueError(f"{path} has two columns {name!r}: give them different names.")
    if delimiter is None or len(names) != len(source.columns):
        names = source.columns
    # DuckDB has names for columns without one.
    named = (name or other for name, other in zip(names, source.columns, strict=True))
    return SourceFile(str(path), dict(zip(named, kinds, strict=True)), delimiter, line_end)


def _parquet_names(path: Path) -> list[str]:
    import pyarrow.parquet

    with readable(path):
        return pyarrow.parquet.read_schema(path).names


def _csv_names(path: Path, delimiter: str) -> list[str]:
    """Names in the first line: those in quotes as they are, others without spaces around."""
    end = re.escape(delimiter)
    cell = re.compile(rf'\s*"((?:[^"]|"")*)"\s*(?:{end}|$)|([^{end}]*)(?:{end}|$)')
    found, at, text = [], 0, _column_names(path).rstrip("\r\n")
    while at <= len(text) and (match := cell.match(text, at)):
        inner, plain = match.groups()
        found.append(plain.strip() if inner is None else inner.replace('""', '"'))
        at = match.end() if match.end() > at and match[0].endswith(delimiter) else len(text) + 1
    return found


def _csv_options(delimiter: str, line_end: str | None) -> str:
    marks = ", ".join(map(literal, MISSING_MARKS))
    ends = "" if line_end is None else f", new_line={literal(repr(line_end)[1:-1])}"
    return (
        f"delim={literal(delimiter)}, quote='\"', escape='\"', comment='', header=true, skip=0, "
        f"nullstr=[{marks}]{ends}"
    )


def find_files(paths: FilePaths) -> list[Path]:
    """The files meant, all CSV or all Parquet, sorted by name.

    Parameters
    ----------
    paths : str, path, or iterable of them
        Each a file, a folder (its CSV or Parquet files; names that begin with "." or "_" do not
        count) or a pattern such as ``"logs/**/*.parquet"``.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise ValueError("The list of files is empty: give at least one file, folder or pattern.")
    found = sorted(file for path in given for file in _meant(Path(path)))
    for file, following in itertools.pairwise(found):
        if file == following:
            raise ValueError(f"{file} is meant twice: its rows would count double.")
    if len({is_csv(file) for file in found}) > 1:
        one, other = (next(f for f in found if is_csv(f) == kind) for kind in (True, False))
        raise ValueError(
            f"{one} is CSV and {other} is Parquet: give files of one kind, for example by a "
            f"pattern such as {str(other.parent / '*.parquet')!r}."
        )
    return found


def _meant(path: Path) -> list[Path]:
    if path.is_dir():
        return _in_folder(path)
    if not path.is_file() and glob.has_magic(str(path)):
        found = [Path(name) for name in glob.iglob(str(path), recursive=True)]
        found = [file for file in found if file.is_file()]
        if not found:
            raise ValueError(f"No file matches {path}.")
        return [existing(file) for file in found]
    return [existing(path)]


def _in_folder(folder: Path) -> list[Path]:
    endings = FOLDER_ENDINGS + PARQUET_ENDINGS
    found = [
        file
        for file in folder.iterdir()
        if file.is_file() and file.name[0] not in "._" and file.name.lower().endswith(endings)
    ]
    if not found:
        deeper = any(entry.is_dir() for entry in folder.iterdir())
        way = f" For files in its folders use a pattern: {str(folder / '**' / '*.parquet')!r}."
        raise ValueError(f"The folder {folder} has no CSV or Parquet file.{way if deeper else ''}")
    return found


def existing(path: Path) -> Path:
    """The path itself, if it is a file of a known kind."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give one CSV or Parquet file.")
    if not path.is_file():
        near = [other.name for other in path.parent.glob("*")] if path.parent.is_dir() else []
        raise ValueError(f"There is no file {path}.{nearest(path.name, near)}")
    if not path.name.lower().endswith(CSV_ENDINGS + PARQUET_ENDINGS):
        raise ValueError(
            f"{path} is of an unknown kind: give a file that ends in .csv, .tsv, .txt (or these "
            "with .gz), .parquet or .pq."
        )
    return path


def is_csv(path: Path) -> bool:
    """Whether a file is CSV by its name; otherwise it is Parquet."""
    return path.name.lower().endswith(CSV_ENDINGS)


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Turn the errors of DuckDB and Arrow into one line that names the file."""
    import duckdb
    import pyarrow

    try:
        yield
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    # Arrow hands on DuckDB's errors in the middle of a stream as OSError without a number.
    except (duckdb.Error, pyarrow.ArrowException, OSError) as error:
        # What the system says (with a number) of the temporary folder is told by who uses it.
        if getattr(error, "errno", None) is not None or tells_full_disk(error):
            raise
        if "Out of Memory" in str(error):
            raise ValueError(
                f"{path} could not be read within the memory limit: give a larger one "
                "(--memory-limit, or memory_limit= in Python)."
            ) from error
        raise ValueError(f"{path} could not be read: {_reason(Path(path), error)}") from error
    except RuntimeError as error:
        if "interrupted" in str(error):  # the same, where DuckDB is asked for the next rows
            raise KeyboardInterrupt from error
        raise


def tells_full_disk(error: Exception) -> bool:
    """Whether DuckDB, which has no numbers for its errors, ran out of disk."""
    return any(words in str(error) for words in ("No space left", "max_temp_directory_size"))


def _reason(path: Path, error: Exception) -> str:
    """Why a file could not be read, in one line: for CSV mostly a line of another length."""
    if is_csv(path):
        try:
            with _text(path) as text:
                rows = csv.reader(text, delimiter=_delimiter(path))
                width = len(next(rows))
                for row in rows:
                    if row and len(row) != width:
                        return (
                            f"line {rows.line_num} has {len(row)} fields, the first line "
                            f"{width}: correct it."
                        )
        except UnicodeDecodeError:
            return NOT_UTF8
        except EOFError:
            return "it ends in the middle: copy or compress it again."
        except (OSError, csv.Error, zlib.error):
            pass
    elif any(word in str(error).lower() for word in ("magic bytes", "too small", "footer")):
        return NO_PARQUET
    return one_line(error)


def _text(path: Path) -> TextIO:
    plain: Any = gzip.open if path.name.lower().endswith(".gz") else open
    return plain(path, "rt", encoding="utf-8-sig", newline="")


def _delimiter(path: Path) -> str:
    """The candidate that the column names have most of between them; a comma where none is."""
    first = _column_names(path)
    if not first.strip():
        raise ValueError(f"{path} does not begin with a line of column names.")
    return max(DELIMITERS, key=QUOTED.sub("", first).count)


def _line_end(path: Path) -> str | None:
    """How lines end, where a name of several lines would mislead DuckDB; else it can tell."""
    first = _column_names(path)
    if not any(end in name for name in QUOTED.findall(first) for end in "\r\n"):
        return None
    return next((end for end in ("\r\n", "\n", "\r") if first.endswith(end)), None)


def _column_names(path: Path) -> str:
    """The first line of a CSV file, or the first lines, where a name in quotes has several."""
    try:
        with _text(path) as text:
            first = text.readline()
            while first.count('"') % 2 and len(first) < LONGEST_HEAD and (more := text.readline()):
                first += more
            return first
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} could not be read: {NOT_UTF8}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} could not be read: {one_line(error)}") from error


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like this one as a question, or nothing."""
    by_lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f" Did you mean {by_lower[found[0]]!r}?" if found else ""


def one_line(error: BaseException) -> str:
    """The first line of an error's message, as a sentence and without the kind of error."""
    text = re.sub(r'^[A-Z][A-Za-z/ ]* Error: (Failed to read file "[^"]*": )?', "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".") + "."


def joined(parts: Sequence[str]) -> str:
    """The first few parts, and how many more there are."""
    more = len(parts) - MOST_NAMED
    return ", ".join(parts[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def shortened(text: str, length: int = 20) -> str:
    """Text of at most so many characters."""
    return text if len(text) <= length else text[: length - 3] + "..."


def literal(text: str) -> str:
    """Text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """The name of a column in SQL."""
    return '"' + name.replace('"', '""') + '"'
