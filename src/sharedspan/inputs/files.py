"""Users' CSV and Parquet files: the files of a path, and how DuckDB reads them."""

from __future__ import annotations

import difflib
import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharedspan.inputs.csv_header import CsvFormat, read_header
from sharedspan.inputs.table_text import EXCEL_ENDINGS, NOT_READ, read_through
from sharedspan.kernels.threads import n_threads

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FilePaths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

FOLDER_ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")  # a .txt in a folder may be anything
CSV_ENDINGS = (*FOLDER_ENDINGS, ".txt", ".txt.gz")
PARQUET_ENDINGS = (".parquet", ".pq")
CSV_OPTIONS = "quote='\"', escape='\"', comment='', header=true"
CSV_DETECTION = "sample_size=-1, auto_type_candidates=['BOOLEAN', 'BIGINT', 'DOUBLE', 'VARCHAR']"
# A folder named year=2024 would otherwise be a column, in place of the file's own of this name.
NO_COLUMNS_OF_FOLDERS = "hive_partitioning=false"
MISSING_MARKS = (  # in CSV; those with # are errors of a spreadsheet
    "", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?", "<NA>", "NaT",
    "#N/A", "#NA", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!",
)  # fmt: skip
DESCRIBE_MEMORY = 200_000_000  # bytes that are enough to describe columns
THREAD_MEMORY = 50_000_000  # bytes that DuckDB reads with in one thread
MOST_NAMED = 5  # columns named in one message


def find_files(paths: FilePaths) -> list[Path]:
    """The files of paths, folders and patterns, all CSV or all Parquet, sorted by name.

    Parameters
    ----------
    paths : str, path, or iterable of them
        Each a file, a folder (its CSV or Parquet files; names that begin with "." or "_" do not
        count) or a pattern such as ``"logs/**/*.parquet"``.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise ValueError("The list of files is empty: give at least one file, folder or pattern.")
    files = sorted(file for path in given for file in _expand(Path(path)))
    for file, following in itertools.pairwise(files):
        if file == following:
            raise ValueError(
                f"{file} is given twice: its rows would count double, so give it once."
            )
    by_format = {is_csv(file): file for file in files}
    if len(by_format) > 1:
        raise ValueError(
            f"{by_format[True]} is CSV and {by_format[False]} is Parquet: give files of one "
            f"format, for example by a pattern: {str(by_format[False].parent / '*.parquet')!r}."
        )
    return files


def _expand(path: Path) -> list[Path]:
    """The files of a path, a folder or a pattern."""
    if path.is_dir():
        endings = FOLDER_ENDINGS + PARQUET_ENDINGS + EXCEL_ENDINGS
        files = [
            file
            for file in path.iterdir()
            if file.is_file() and file.name[0] not in "._~" and file.name.lower().endswith(endings)
        ]
        if not files:
            advice = "give another folder."
            if any(entry.is_dir() for entry in path.iterdir()):
                pattern = str(path / "**" / "*.parquet")
                advice = f"for files in the folders below it, give a pattern: {pattern!r}."
            raise ValueError(f"The folder {path} has no CSV or Parquet file: {advice}")
        return files
    if not path.is_file() and glob.has_magic(str(path)):
        files = [Path(name) for name in glob.iglob(str(path), recursive=True)]
        files = [require_file(file) for file in files if file.is_file()]
        if not files:
            raise ValueError(f"No file matches {path}: give another pattern.")
        return files
    return [require_file(path)]


def require_file(path: Path) -> Path:
    """The path itself, if it is a CSV or Parquet file."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give one CSV or Parquet file.")
    if not path.is_file():
        others = [other.name for other in path.parent.glob("*")] if path.parent.is_dir() else []
        raise ValueError(f"There is no file {path}.{nearest_file(path.name, others)}")
    if not path.name.lower().endswith(CSV_ENDINGS + PARQUET_ENDINGS + EXCEL_ENDINGS):
        raise ValueError(
            f"{path} is of an unknown format: give a file that ends in .csv, .tsv, .txt (or these "
            "with .gz), .parquet, .pq or .xlsx."
        )
    return path


def exact_path(path: str | os.PathLike[str]) -> str:
    """A path that DuckDB and Arrow do not read as another one, as they do "~" and "file:"."""
    return os.path.abspath(path)


def is_csv(path: Path) -> bool:
    """Whether a file is read as CSV, judging by its extension; otherwise it is Parquet."""
    return path.name.lower().endswith(CSV_ENDINGS + EXCEL_ENDINGS)


@dataclass(frozen=True)
class SourceFile:
    """One file with the types of its columns, by DuckDB's names in lower case."""

    path: str
    types: dict[str, str]  # empty until they are known
    csv: CsvFormat | None  # None for Parquet
    rows: tuple[int, int] | None = None  # of Parquet, to read from the first up to the second

    @property
    def is_parquet(self) -> bool:
        """Whether the end of the file has the range of each column."""
        return self.csv is None

    def unused(self) -> list[str]:
        """Columns that are features only if they are named: indices that pandas and R write.

        Their first column has no name, and neither has what follows a delimiter at the end of each
        line; in Parquet, pandas writes the labels of shuffled rows as a column.
        """
        return [name for name in self.types if re.match(r"Unnamed: \d+$|__index_level_", name)]

    def require_unique(self, names: Iterable[str]) -> None:
        """Raise if a column has the name of an earlier one in the file."""
        repeated = set() if self.csv is None else set(self.csv.repeated)
        for name in names:
            if name in repeated:
                first = name.rpartition(".")[0]
                raise ValueError(
                    f"{self.path} has two columns {first!r}, of which the second is read as "
                    f"{name!r}: leave it out (--drop {name}, or drop={name!r} in Python), or give "
                    "it another name in the file."
                )

    def scan(self) -> str:
        """SQL that reads the rows in the order of the file.

        A CSV file whose types are not known is read as a whole to detect them: a type guessed from
        some rows would fail far into the file.
        """
        copy = None if self.csv is None else self.csv.copy
        file = literal(glob.escape(exact_path(self.path if copy is None else copy.path)))
        if self.csv is not None:
            marks = ", ".join(map(literal, MISSING_MARKS))
            options = f"delim={literal(self.csv.delimiter)}, nullstr=[{marks}], {CSV_OPTIONS}"
            options += f", skip={self.csv.skip}, {NO_COLUMNS_OF_FOLDERS}"
            if self.csv.line_end is not None:
                options += f", new_line={literal(repr(self.csv.line_end)[1:-1])}"
            types = ", ".join(f"{literal(name)}: '{t.upper()}'" for name, t in self.types.items())
            typed = f"auto_detect=false, columns={{{types}}}" if types else CSV_DETECTION
            return f"read_csv({file}, {options}, {typed})"
        if self.rows is None:
            return f"read_parquet({file}, {NO_COLUMNS_OF_FOLDERS})"
        condition = f"file_row_number >= {self.rows[0]} AND file_row_number < {self.rows[1]}"
        numbered = f"{file}, {NO_COLUMNS_OF_FOLDERS}, file_row_number=true"
        return f"(FROM read_parquet({numbered}) WHERE {condition})"


def describe(connection: DuckDBPyConnection, path: Path) -> SourceFile:
    """Names and types of a file's columns; only the end of a Parquet file is read for them."""
    if is_csv(path):
        return _describe_csv(connection, path)
    import pyarrow.parquet

    with reading(path):
        names = pyarrow.parquet.read_schema(exact_path(path)).names
        source = connection.sql(f"FROM {SourceFile(str(path), {}, None).scan()}")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{path} has two columns {name!r}: give them different names.")
    return SourceFile(str(path), dict(zip(source.columns, _types(source), strict=True)), None)


def _describe_csv(connection: DuckDBPyConnection, path: Path) -> SourceFile:
    """The whole file is read. What DuckDB does not read, such as short lines, is copied first."""
    import duckdb

    names, csv = read_header(path)
    if csv.copy is None:
        try:
            with reading(path, duckdb.InvalidInputException, duckdb.ConversionException):
                file = _with_types(connection, path, names, csv)
                # Lines of another length are noticed only when they are read.
                connection.sql(f"SELECT count(*) FROM {file.scan()}").fetchall()
                return file
        except (duckdb.InvalidInputException, duckdb.ConversionException):
            names, csv = read_header(path, as_copy=True)
    with reading(path):
        return _with_types(connection, path, names, csv)


def _with_types(
    connection: DuckDBPyConnection, path: Path, names: Sequence[str], csv: CsvFormat
) -> SourceFile:
    source = connection.sql(f"FROM {SourceFile(str(path), {}, csv).scan()}")
    if len(source.columns) != len(names):
        import duckdb

        raise duckdb.InvalidInputException("another number of columns")
    return SourceFile(str(path), dict(zip(names, _types(source), strict=True)), csv)


def _types(relation: Any) -> list[str]:
    return [str(column_type.id) for column_type in relation.types]


def open_duckdb(
    memory: int | None = DESCRIBE_MEMORY, *, threads: int | None = None, folder: str = ""
) -> DuckDBPyConnection:
    """A connection to DuckDB that reads users' files.

    It takes ``memory`` bytes, or most of the machine's memory for None, and writes to disk only if
    a folder is given.
    """
    import duckdb

    config: dict[str, Any] = {"threads": threads or n_threads(), "temp_directory": folder}
    if memory is not None:  # each thread needs some of it
        config["memory_limit"] = f"{memory}B"
        config["threads"] = min(config["threads"], max(memory // THREAD_MEMORY, 1))
    connection = duckdb.connect(config=config)
    # DuckDB's own bar would print into users' output. Where it is off it must not be set: a kernel
    # without ipywidgets refuses that.
    if connection.sql("SELECT current_setting('enable_progress_bar')").fetchall() != [(False,)]:
        connection.execute("SET enable_progress_bar = false")
    return connection


def fetch(connection: DuckDBPyConnection, sql: str, path: str) -> list[tuple[Any, ...]]:
    """All rows of the result of a query of one file."""
    with reading(path):
        return connection.sql(sql).fetchall()


def arrow_batches(
    connection: DuckDBPyConnection, sql: str, path: str, batch_rows: int = 1 << 17
) -> Iterator[Any]:
    """The result of a query of one file as Arrow batches, while the next ones are read."""
    with reading(path):
        relation: Any = connection.sql(sql)
        source = relation.to_arrow_reader(batch_rows)
    while True:
        with reading(path):
            batch = next(source, None)
        if batch is None:
            return
        yield batch


@contextmanager
def reading(path: str | Path, *but: type[Exception]) -> Iterator[None]:
    """Turn the errors of DuckDB and Arrow, but some, into one line that names the file."""
    import duckdb
    import pyarrow

    try:
        yield
    except but:
        raise
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    # Arrow raises DuckDB's errors in the middle of a stream as OSError without a number.
    except (duckdb.Error, pyarrow.ArrowException, OSError) as error:
        # Errors of the temporary folder, which have a number, are explained by TemporaryDisk.
        if getattr(error, "errno", None) is not None or tells_full_disk(error):
            raise
        if "Out of Memory" in str(error):
            raise ValueError(
                f"{path} could not be read within the memory limit: give a larger one "
                "(--memory-limit, or memory_limit= in Python)."
            ) from error
        raise ValueError(f"{path}{NOT_READ}{_reason(Path(path), error)}") from error
    except RuntimeError as error:
        if "interrupted" in str(error):  # Ctrl-C while DuckDB reads the next rows
            raise KeyboardInterrupt from error
        raise


def tells_full_disk(error: Exception) -> bool:
    """Whether DuckDB, which has no numbers for its errors, ran out of disk."""
    return any(words in str(error) for words in ("No space left", "max_temp_directory_size"))


def _reason(path: Path, error: Exception) -> str:
    """The reason why a file could not be read, as a sentence."""
    if is_csv(path):
        try:
            read_through(path)
        except ValueError as other:
            return str(other).partition(NOT_READ)[2]
    elif any(word in str(error).lower() for word in ("magic bytes", "too small", "footer")):
        return "it is not a Parquet file, or only a part of one: write or copy it again."
    text = re.sub(r'^[A-Z][A-Za-z/ ]* Error: (Failed to read file "[^"]*": )?', "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".") + "."


def nearest(name: str, known: Iterable[str]) -> str:
    """The most similar of the known names, as a question, or nothing."""
    by_lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""


def nearest_file(name: str, others: Iterable[str]) -> str:
    """The most similar name of a file, as a question; endings alone make none similar."""
    others = list(others)
    stem, stems = name.partition(".")[0], [other.partition(".")[0] for other in others]
    similar = nearest(stem, stems) or any(len(stem) == len(other) == 1 for other in stems)
    return nearest(name, others) if similar else ""


def joined(parts: Sequence[str]) -> str:
    """The first few parts, and the number of further ones."""
    more = len(parts) - MOST_NAMED
    return ", ".join(parts[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def shortened(text: str, length: int = 20) -> str:
    """Text of at most ``length`` characters."""
    return text if len(text) <= length else text[: length - 3] + "..."


def literal(text: str) -> str:
    """Text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """The name of a column in SQL."""
    return '"' + name.replace('"', '""') + '"'
