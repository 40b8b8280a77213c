"""The columns of users' files to read: for a new fit, or as an earlier fit has read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sharedspan.inputs.classes import find_classes, require_classes
from sharedspan.inputs.columns import Columns
from sharedspan.inputs.encoders import Factor, Number
from sharedspan.inputs.files import (
    FilePaths,
    SourceFile,
    fetch,
    joined,
    nearest,
    open_duckdb,
    shortened,
)
from sharedspan.inputs.learning import learn_encoding, text_format, with_points
from sharedspan.inputs.table_columns import LABEL_TYPES, OpenTable, Selection, TableColumns
from sharedspan.inputs.text_format import NUMBERS, TEXTS, TextFormat

MOST_LISTED = 20  # columns of a table that a message names in full


def select_columns(
    paths: FilePaths,
    *,
    task: str,
    target: str,
    features: str | Iterable[str] | None = None,
    drop: str | Iterable[str] = (),
    columns: Columns | None = None,
    refuse_text: bool = False,
) -> Selection:
    """Check the columns of all files, select the ones to read and learn how to encode them.

    Only the end of a Parquet file of numbers is read. CSV is read once, to know the type of each
    column, and columns of text further times, for their levels.

    Parameters
    ----------
    paths : str, path, or iterable of them
        A file, a folder, a pattern, or several of them; see ``find_files``.
    task, target : str
    features : str or iterable of str, optional
        Columns of X in this order; None for all that are neither task, target nor dropped.
    drop : str or iterable of str
    columns : Columns, optional
        How columns become features.
    refuse_text : bool
        Whether a feature of text is an error.

    Raises
    ------
    ValueError
        In one line, with the name of the file or column.
    """
    options = Columns() if columns is None else columns
    with open_duckdb() as connection:
        table = OpenTable.of_files(connection, paths)
        names = _feature_names(table.files[0], task, target, features, drop)
        if table.files[0].csv is not None:
            table.read_csv_labels(task)
        classes = find_classes(table, target, text_format(options))
        number = None if classes else target
        encoding = learn_encoding(table, names, options, target=number, refuse_text=refuse_text)
        is_text = table.files[0].csv is not None and table.types[task] == "varchar"
        if is_text and table.has_spaced_twins(task):
            encoding = replace(encoding, text=replace(encoding.text, strip=True))
        if not classes:
            table.require_numbers([target], "target", encoding.text)
    if not encoding.names:
        raise ValueError(
            f"The columns {joined([repr(name) for name in names])} hold one level each, so no "
            "feature is left: give a column whose values differ."
        )
    label = LABEL_TYPES.get(table.types[task], "VARCHAR")
    return _selection(TableColumns(task, target, encoding, label, classes), table)


@dataclass(frozen=True)
class ColumnRange:
    """The values of a column of numbers, or of two words that count as 0 and 1."""

    least: float
    largest: float
    is_whole: bool  # whether all values are
    classes: tuple[str, ...] = ()


def range_of_column(
    paths: FilePaths, name: str, columns: Columns | None = None
) -> ColumnRange | None:
    """The range of a column of numbers or of two words.

    None for a column that is absent, has no value or does not hold numbers: the fit says so.
    """
    text = text_format(Columns() if columns is None else columns)
    with open_duckdb() as connection:
        table = OpenTable.of_files(connection, paths)
        if name not in table.types or table.types[name] not in (*NUMBERS, *TEXTS):
            return None
        if classes := find_classes(table, name, text):
            return ColumnRange(0.0, 1.0, True, classes)
        if text.has_marks and table.files[0].csv is not None:
            table.read_csv_as({name: "varchar"})
            text = with_points(table, [name], text)
        number = text.of(name).number(name, table.types[name])
        values = f"SELECT TRY_CAST({number} AS DOUBLE) AS value FROM"
        parts = []
        for file in table.files:
            sql = f"SELECT min(value), max(value), bool_and(value = floor(value)) FROM ({values}"
            parts += fetch(connection, f"{sql} {file.scan()}) WHERE isfinite(value)", file.path)
    known = [part for part in parts if part[0] is not None]
    if not known:
        return None
    low, high, whole = zip(*known, strict=True)
    return ColumnRange(min(low), max(high), all(whole))


def _feature_names(
    file: SourceFile,
    task: str,
    target: str,
    features: str | Iterable[str] | None,
    drop: str | Iterable[str],
) -> list[str]:
    """The columns that are features; raise for unknown columns and for columns given twice."""
    names = list(file.types)
    drop = [drop] if isinstance(drop, str) else list(drop)
    wanted = [features] if isinstance(features, str) else list(features or ())
    parts = [("task", task), ("target", target), *(("drop", name) for name in drop)]
    for part, name in (*parts, *(("features", name) for name in wanted)):
        if name not in names:
            known = ", ".join(map(repr, names))
            listed = known if len(names) <= MOST_LISTED else f"{len(names)} columns"
            raise ValueError(
                f"There is no column {name!r} ({part}) in {file.path}, a table of {listed}."
                f"{nearest(str(name), names)}"
            )
    if task == target:
        raise ValueError(f"The column {task!r} is both task and target: give two columns.")
    for part, name in (("task", task), ("target", target)):
        for other, others in (("dropped", drop), ("a feature", wanted)):
            if name in others:
                raise ValueError(f"The column {name!r} is the {part} and cannot be {other} too.")
    for name in wanted:
        if name in drop or wanted.count(name) > 1:
            other = "dropped too" if name in drop else "given twice"
            raise ValueError(f"The column {name!r} is a feature and {other}: give it once.")
    if features is None:
        left_out = {task, target, *drop, *file.unused()}
        wanted = [name for name in names if name not in left_out]
        file.require_unique(wanted)
    if not wanted:
        raise ValueError("No column is left as a feature: give one besides task and target.")
    return wanted


def match_columns(
    paths: FilePaths, columns: TableColumns, *, also: Sequence[str] = (), needs_target: bool = True
) -> Selection:
    """Select the columns of an earlier fit; files may have others, which are not read.

    Labels have the type of the fit: "007" stays text if the labels of the fit are text. The columns
    ``also`` must be there too. Without ``needs_target`` the target may be absent; then the
    selection has none. Errors are one line, with the name of the file or column.
    """
    with open_duckdb() as connection:
        table = OpenTable.of_files(connection, paths)
        if not needs_target and columns.target not in table.types:
            columns = replace(columns, target=None)
        _require_columns(table.files[0], columns, also)
        text, encoded = columns.encoding.text, columns.encoding.columns
        numbers = [c.column for c in encoded if isinstance(c, Number) and not c.is_date]
        if table.files[0].csv is not None:  # what was text in the fit stays text
            texts = {column.column for column in encoded if isinstance(column, Factor)}
            texts |= set(columns.task_columns) if columns.label == "VARCHAR" else set()
            if columns.classes and columns.target is not None:
                texts.add(columns.target)
            if text.has_marks:
                marked = [*numbers, *([columns.target] if columns.target else [])]
                texts |= {name for name in marked if table.types[name] != "boolean"}
            table.read_csv_as(dict.fromkeys(texts, "varchar"))
        table.require_numbers(numbers, "fitted", text)
        table.require_dates([c for c in encoded if isinstance(c, Number) and c.is_date], text)
        if columns.target is not None and columns.classes:
            require_classes(table, columns.target, columns.classes, text)
        elif columns.target is not None:
            table.require_numbers([columns.target], "target", text)
        label = _matching_label(table, columns)
    return replace(_selection(replace(columns, label=label), table), is_fitted=True)


def _selection(columns: TableColumns, table: OpenTable) -> Selection:
    dtype = "float32" if columns.encoding.fits_float32(table.types) else "float64"
    return Selection(columns, tuple(table.files), dtype)


def _require_columns(file: SourceFile, columns: TableColumns, also: Sequence[str]) -> None:
    for name in also:
        if name not in file.types:
            raise ValueError(
                f"{file.path} has no column {name!r}, which was to be copied to the output: give "
                f"another name (--keep).{nearest(name, file.types)}"
            )
    parts = {column.column: "feature" for column in columns.encoding.columns}
    parts = dict.fromkeys(columns.task_columns, "task") | parts
    if columns.target is not None:
        parts[columns.target] = "target"
    lacking = [name for name in parts if name not in file.types]
    if lacking:
        raise ValueError(
            f"{file.path} has no column {joined([f'{name!r} ({parts[name]})' for name in lacking])}"
            ": give a table with the columns that the model was fitted to."
            f"{nearest(lacking[0], [name for name in file.types if name not in parts])}"
        )


def _matching_label(table: OpenTable, columns: TableColumns) -> str:
    """The SQL type to read labels in, so that they equal the labels of the fit."""
    if columns.label == "VARCHAR" or not isinstance(columns.task, str):
        return columns.label
    if table.types[columns.task] in NUMBERS - {"boolean"}:
        return LABEL_TYPES.get(table.types[columns.task], "DOUBLE")
    odd = table.not_a_number(columns.task, TextFormat())
    if odd is not None:
        raise ValueError(
            f"{odd[1]}: the task column {columns.task!r} holds {shortened(odd[0])!r}, but the "
            "tasks of the model are numbers: give the column that the model was fitted with."
        )
    return columns.label
