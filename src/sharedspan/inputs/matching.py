"""More files with the columns of a fitted model: read as the rows of the fit were read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sharedspan.inputs.paths import (
    FilePaths,
    SourceFile,
    connect,
    describe,
    find_files,
    joined,
    literal,
    nearest,
    quoted,
    readable,
    shortened,
)
from sharedspan.inputs.schema import (
    NUMBERS,
    Columns,
    Selection,
    TypedColumns,
    common_kinds,
    feature_dtype,
    files_with_rows,
    label_type,
    require_same_columns,
)


def match(
    paths: FilePaths, columns: Columns, *, also: Sequence[str] = (), needs_target: bool = True
) -> Selection:
    """What to read of files that have the columns of a model; others are passed over.

    Parameters
    ----------
    paths : str, path, or iterable of them
        As in ``resolve``.
    columns : Columns
        Those of the model. Labels become what they were in the fit: "007" stays text where the
        model's labels are text.
    also : sequence of str
        Other columns that must be there.
    needs_target : bool
        Whether the target must be there; if it is not, the selection has none.

    Raises
    ------
    ValueError
        In one line, with the name of the file or column.
    """
    with connect() as connection:
        files = [describe(connection, path) for path in find_files(paths)]
        require_same_columns(files)
        if not needs_target and columns.target not in files[0].kinds:
            columns = replace(columns, target=None)
        _require_columns(files[0], columns, also)
        kinds = common_kinds(files_with_rows(connection, files), files[0].kinds)
        if not files[0].is_parquet:
            kinds |= dict.fromkeys(_texts(columns), "varchar")
            files = [file.with_kinds(kinds) for file in files]
        used = TypedColumns(connection, files, kinds)
        numbers = [feature.column for feature in columns.features if feature.level is None]
        used.require_numbers(numbers, "fitted", None)
        if columns.target is not None:
            used.require_numbers([columns.target], "target", None)
        _require_known_levels(used, columns)
        label = _label(used, columns)
    dtype = feature_dtype(columns.features, kinds)
    parts = (columns.task, columns.target, columns.features, columns.base)
    return Selection(*parts, label, tuple(files), dtype)


def _texts(columns: Columns) -> set[str]:
    """Columns that were text in the fit, whatever they look like in these files."""
    texts = {feature.column for feature in columns.base}
    return texts | {columns.task} if columns.label == "VARCHAR" else texts


def _require_columns(file: SourceFile, columns: Columns, also: Sequence[str]) -> None:
    for name in also:
        if name not in file.kinds:
            raise ValueError(
                f"{file.path} has no column {name!r} to keep.{nearest(name, file.kinds)}"
            )
    wanted = {columns.task: "task"} | {f.column: "feature" for f in columns.features}
    if columns.target is not None:
        wanted[columns.target] = "target"
    lacking = [f"{name!r} ({part})" for name, part in wanted.items() if name not in file.kinds]
    if lacking:
        first = next(name for name in wanted if name not in file.kinds)
        raise ValueError(
            f"{file.path} has no column {joined(lacking)}: give a table with the columns that the "
            f"model was fitted to.{nearest(first, file.kinds)}"
        )


def _require_known_levels(used: TypedColumns, columns: Columns) -> None:
    """Raise for a text that the fit has not seen: it would pass for the first level."""
    for base in columns.base:
        levels = [f.level for f in (base, *columns.features) if f.column == base.column and f.level]
        known, text = ", ".join(map(literal, levels)), f"CAST({quoted(base.column)} AS VARCHAR)"
        for file in used.files:
            sql = f"SELECT {text} FROM {file.scan()} WHERE {text} NOT IN ({known}) LIMIT 1"
            with readable(file.path):
                found = used.connection.sql(sql).fetchall()
            if found:
                raise ValueError(
                    f"{file.path}: the column {base.column!r} holds {shortened(found[0][0])!r}, "
                    f"which was not in the fit, only {joined([repr(level) for level in levels])}: "
                    "leave such rows out, or fit with them."
                )


def _label(used: TypedColumns, columns: Columns) -> str:
    """The SQL type to read labels in, so that they equal those of the fit."""
    if columns.label == "VARCHAR":
        return "VARCHAR"
    kind = used.kinds[columns.task]
    if kind in NUMBERS - {"boolean"}:
        return label_type(kind) if label_type(kind) != "VARCHAR" else "DOUBLE"
    odd = used.odd_value(columns.task)
    if odd is not None:
        where = used.where[columns.task]
        raise ValueError(
            f"{where}: the task column {columns.task!r} holds {shortened(odd)!r}, but the tasks of "
            "the model are numbers: give the column that the model was fitted with."
        )
    return columns.label
