"""Tables of tasks from CSV and Parquet files, read by DuckDB."""

from __future__ import annotations

import csv
import difflib
import glob
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

CSV_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
PARQUET_ENDINGS = (".parquet", ".pq")
DELIMITERS = (",", ";", "\t", "|")
MISSING_MARKS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?")  # in CSV
INTEGERS = {"tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger"}
NUMBERS = INTEGERS | {"boolean", "ubigint", "hugeint", "uhugeint", "float", "double", "decimal"}
NOT_UTF8 = "it is not UTF-8 text: save it as UTF-8."
MOST_NAMED = 5  # columns named in one message


@dataclass(frozen=True)
class Table:
    """Columns of a file by their part in a regression."""

    X: np.ndarray  # (rows, d)
    y: np.ndarray  # (rows,)
    task: np.ndarray  # (rows,) integers or strings
    feature_names: tuple[str, ...]
    n_dropped: int  # rows left out for a missing value


def read_table(
    path: str | Path,
    *,
    task: str,
    target: str,
    drop: str | Iterable[str] = (),
    missing: str = "error",
) -> Table:
    """Read a CSV or Parquet file: one column of tasks, one target, all others features.

    Parameters
    ----------
    path : str or Path
        Ending in .csv, .tsv or .txt (first line: the names; also with .gz), or in .parquet or .pq.
    task : str
        The column that says which task a row belongs to; whole numbers or text.
    target : str
    drop : str or iterable of str, optional
        Columns that are no features.
    missing : {"error", "drop"}, default="error"
        "drop" leaves out the rows that lack a value in a used column.

    Returns
    -------
    Table
        Rows in the order of the file.

    Raises
    ------
    ValueError
        In one line: no such file or column, columns that are not numbers, missing values.
    """
    import duckdb

    if missing not in ("error", "drop"):
        raise ValueError(f"missing={missing!r} is unknown: use 'error' or 'drop'.")
    path = _existing(Path(path))
    with duckdb.connect() as connection:
        try:
            source = _open(connection, path)
            features = _features(source.columns, task, target, drop)
            _require_numbers(source, [target, *features])
            kinds = dict(zip(source.columns, (str(kind.id) for kind in source.types), strict=True))
            label_kind = "BIGINT" if kinds[task] in INTEGERS else "VARCHAR"
            chosen = [f"CAST({_quoted(task)} AS {label_kind})"]
            chosen += [f"CAST({_quoted(name)} AS DOUBLE)" for name in (target, *features)]
            # Under numbers for names: no two of them can clash.
            numbered = (f"{column} AS c{i}" for i, column in enumerate(chosen))
            columns = source.project(", ".join(numbered)).to_arrow_table().columns
        except duckdb.Error as error:
            raise ValueError(f"{path} could not be read: {_reason(path, error)}") from error
    labels, values = columns[0], np.empty((len(columns[0]), len(features) + 1))
    for j, column in enumerate(columns[1:]):
        values[:, j] = column.to_numpy()  # NaN where there is none
    labels = labels.combine_chunks().dictionary_encode()
    codes = labels.indices.fill_null(-1).to_numpy()
    kept = _complete_rows(path, codes, values, [task, target, *features], missing)
    values, codes = values[kept], codes[kept]
    return Table(
        X=np.ascontiguousarray(values[:, 1:]),
        y=values[:, 0].copy(),
        task=np.array(labels.dictionary.to_pylist())[codes],
        feature_names=tuple(features),
        n_dropped=int(np.sum(~kept)),
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like this one as a question, or nothing."""
    by_lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f" Did you mean {by_lower[found[0]]!r}?" if found else ""


def _existing(path: Path) -> Path:
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


def _open(connection: DuckDBPyConnection, path: Path) -> DuckDBPyRelation:
    """The file as a relation; nothing but its head is read where the format allows it."""
    file = _literal(glob.escape(str(path)))
    if path.name.lower().endswith(PARQUET_ENDINGS):
        return connection.sql(f"FROM read_parquet({file})")
    marks = ", ".join(map(_literal, MISSING_MARKS))
    # The first line alone says the delimiter, and the whole column its type: a guess from a part
    # of the file would skip lines that do not fit it, or fail far into the file.
    return connection.sql(
        f"FROM read_csv({file}, delim={_literal(_delimiter(path))}, quote='\"', escape='\"', "
        f"comment='', header=true, skip=0, sample_size=-1, nullstr=[{marks}], "
        "auto_type_candidates=['BOOLEAN', 'BIGINT', 'DOUBLE', 'VARCHAR'])"
    )


def _features(names: Sequence[str], task: str, target: str, drop: str | Iterable[str]) -> list[str]:
    """All columns that are neither task nor target nor dropped."""
    drop = [drop] if isinstance(drop, str) else list(drop)
    for part, name in (("task", task), ("target", target), *(("drop", name) for name in drop)):
        if name not in names:
            listed = _listed(names) if len(names) <= MOST_NAMED else f"{len(names)} columns"
            raise ValueError(
                f"There is no column {name!r} ({part}) in this table of {listed}."
                f"{nearest(name, names)}"
            )
    if task == target:
        raise ValueError(f"The column {task!r} is both task and target: give two columns.")
    for part, name in (("task", task), ("target", target)):
        if name in drop:
            raise ValueError(f"The column {name!r} is the {part} and cannot be dropped too.")
    features = [name for name in names if name not in (task, target, *drop)]
    if not features:
        raise ValueError("No column is left as a feature: keep one besides task and target.")
    return features


def _require_numbers(source: DuckDBPyRelation, names: list[str]) -> None:
    """Raise where a column is not of numbers; text that reads as numbers is."""
    kinds = dict(zip(source.columns, (str(kind.id) for kind in source.types), strict=True))
    found = []
    for name in names:
        if kinds[name] == "varchar":
            column = _quoted(name)
            odd = f"{column} IS NOT NULL AND TRY_CAST({column} AS DOUBLE) IS NULL"
            example = source.filter(odd).project(column).limit(1).fetchall()
            if example:
                found.append(f"{name!r} (such as {_shortened(example[0][0])!r})")
        elif kinds[name] not in NUMBERS:
            found.append(f"{name!r} ({kinds[name].split('_')[0]})")
    if found:
        one = len(found) == 1
        raise ValueError(
            f"{'The column' if one else 'The columns'} {_joined(found)} "
            f"{'does' if one else 'do'} not hold numbers: leave {'it' if one else 'them'} out "
            f"(--drop, or drop= in Python), or encode {'it' if one else 'them'} as numbers."
        )


def _complete_rows(
    path: Path, codes: np.ndarray, values: np.ndarray, names: list[str], missing: str
) -> np.ndarray:
    """Which rows (rows,) have everything; raises as ``missing`` says."""
    if len(values) == 0:
        raise ValueError(f"{path} has no rows below its column names.")
    for name, count in zip(names[1:], np.isinf(values).sum(axis=0), strict=True):
        if count:
            raise ValueError(
                f"The column {name!r} holds infinity in {count} row(s): correct them, or write "
                "them as missing."
            )
    absent = np.column_stack([codes < 0, np.isnan(values)])
    kept: np.ndarray = np.logical_not(absent.any(axis=1))
    if kept.all():
        return kept
    counts = [f"{name!r} {n}" for name, n in zip(names, absent.sum(axis=0), strict=True) if n]
    said = f"{np.sum(~kept)} of {len(kept)} rows lack a value ({_joined(counts)})"
    if missing == "error":
        raise ValueError(
            f"{said}: leave these rows out (--missing drop, or missing='drop' in Python), leave "
            "the columns out, or fill them in."
        )
    if not kept.any():
        raise ValueError(f"{said}: none is left, so leave out the columns that lack most.")
    return kept


def _text(path: Path) -> TextIO:
    plain: Any = gzip.open if path.name.lower().endswith(".gz") else open
    return plain(path, "rt", encoding="utf-8-sig", newline="")


def _delimiter(path: Path) -> str:
    """The candidate that the first line has most of; a comma where it has none."""
    try:
        with _text(path) as text:
            first = text.readline()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} could not be read: {NOT_UTF8}") from error
    except (OSError, EOFError) as error:
        raise ValueError(f"{path} could not be read: {_one_line(error)}") from error
    if not first.strip():
        raise ValueError(f"{path} does not begin with a line of column names.")
    return max(DELIMITERS, key=first.count)


def _reason(path: Path, error: Exception) -> str:
    """Why DuckDB could not read a file, in one line: for CSV mostly a line of another length."""
    if path.name.lower().endswith(CSV_ENDINGS):
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
        except (OSError, csv.Error):
            pass
    return _one_line(error)


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".") + "."


def _joined(parts: Sequence[str]) -> str:
    more = len(parts) - MOST_NAMED
    return ", ".join(parts[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _listed(names: Sequence[str]) -> str:
    return _joined([repr(name) for name in names])


def _shortened(text: str, length: int = 20) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
