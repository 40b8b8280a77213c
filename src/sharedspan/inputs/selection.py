"""The columns of users' files to read: for a new fit, or as an earlier fit has read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sharedspan.inputs.columns import (
    EXACT_IN_FLOAT32,
    LABEL_TYPES,
    NUMBERS,
    Columns,
    Feature,
    FileColumns,
    Selection,
)
from sharedspan.inputs.files import (
    MOST_NAMED,
    FilePaths,
    SourceFile,
    fetch,
    joined,
    literal,
    nearest,
    open_duckdb,
    quoted,
    shortened,
)


def select_columns(
    paths: FilePaths,
    *,
    task: str,
    target: str,
    features: str | Iterable[str] | None = None,
    drop: str | Iterable[str] = (),
    text: str | None = "error",
) -> Selection:
    """Check the columns of all files and select the ones to read.

    Only the end of each Parquet file is read. CSV is read once, to know the type of each column,
    and text columns are searched for a value that is not a number, or for their levels.

    Parameters
    ----------
    paths : str, path, or iterable of them
        A file, a folder, a pattern, or several of them; see ``find_files``.
    task, target : str
    features : str or iterable of str, optional
        Columns of X in this order; None for all that are neither task, target nor dropped.
    drop : str or iterable of str
    text : {"error", "one_hot"} or None
        Treatment of text among the features: refuse it, or make a column of zeros and ones of each
        level but the first, in sorted order; the intercepts contain the effect of the first. None
        refuses it with a message that does not mention encoding.

    Raises
    ------
    ValueError
        In one line, with the name of the file or column.
    """
    if text not in ("error", "one_hot", None):
        raise ValueError(f"text={text!r} is unknown: use 'error' or 'one_hot'.")
    with open_duckdb() as connection:
        table = FileColumns(connection, paths)
        names = _feature_names(table.files[0], task, target, features, drop)
        if table.files[0].csv is not None:
            table.read_csv_labels(task)
        table.require_numbers([target], "target")
        selected, base = [Feature(name) for name in names], list[Feature]()
        if text == "one_hot":
            selected = [feature for name in names for feature in table.encoded(name, base)]
        else:
            table.require_numbers(names, "feature", can_encode=text is not None)
    if not selected:
        raise ValueError(
            f"The columns {joined([repr(name) for name in names])} hold one level each, so no "
            "feature is left: give a column whose values differ."
        )
    label = LABEL_TYPES.get(table.types[task], "VARCHAR")
    return _selection(Columns(task, target, tuple(selected), tuple(base), label), table)


def range_of_column(paths: FilePaths, name: str) -> tuple[float, float, bool] | None:
    """Least and largest value of a column of numbers, and whether all of them are whole.

    None for a column that is absent, has no value or does not hold numbers: the fit says so.
    """
    with open_duckdb() as connection:
        table = FileColumns(connection, paths)
        if name not in table.types or table.types[name] not in (*NUMBERS, "varchar"):
            return None
        values = f"SELECT TRY_CAST({quoted(name)} AS DOUBLE) AS value FROM"
        parts = []
        for file in table.files:
            sql = f"SELECT min(value), max(value), bool_and(value = floor(value)) FROM ({values}"
            parts += fetch(connection, f"{sql} {file.scan()}) WHERE isfinite(value)", file.path)
    known = [part for part in parts if part[0] is not None]
    if not known:
        return None
    low, high, whole = zip(*known, strict=True)
    return min(low), max(high), all(whole)


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
            known = joined([repr(n) for n in names])
            listed = known if len(names) <= MOST_NAMED else f"{len(names)} columns"
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
        left_out = {task, target, *drop}
        # pandas writes the labels of shuffled rows as a column of such a name.
        wanted = [n for n in names if n not in left_out and not n.startswith("__index_level_")]
    if not wanted:
        raise ValueError("No column is left as a feature: give one besides task and target.")
    return wanted


def match_columns(
    paths: FilePaths, columns: Columns, *, also: Sequence[str] = (), needs_target: bool = True
) -> Selection:
    """Select the columns of an earlier fit; files may have others, which are not read.

    Labels have the type of the fit: "007" stays text if the labels of the fit are text. The columns
    ``also`` must be there too. Without ``needs_target`` the target may be absent; then the
    selection has none. Errors are one line, with the name of the file or column.
    """
    with open_duckdb() as connection:
        table = FileColumns(connection, paths)
        if not needs_target and columns.target not in table.types:
            columns = replace(columns, target=None)
        _require_columns(table.files[0], columns, also)
        if table.files[0].csv is not None:  # what was text in the fit stays text
            texts = {feature.column for feature in columns.base}
            texts |= {columns.task} if columns.label == "VARCHAR" else set()
            table.read_csv_as(dict.fromkeys(texts, "varchar"))
        numbers = [feature.column for feature in columns.features if feature.level is None]
        table.require_numbers(numbers, "fitted")
        if columns.target is not None:
            table.require_numbers([columns.target], "target")
        _require_known_levels(table, columns)
        label = _matching_label(table, columns)
    return _selection(replace(columns, label=label), table)


def _selection(columns: Columns, table: FileColumns) -> Selection:
    exact = all(feature.level is not None or table.types[feature.column] in EXACT_IN_FLOAT32
                for feature in columns.features)  # fmt: skip
    dtype = "float32" if exact else "float64"
    return Selection(columns, tuple(table.files), dtype)


def _require_columns(file: SourceFile, columns: Columns, also: Sequence[str]) -> None:
    for name in also:
        if name not in file.types:
            raise ValueError(
                f"{file.path} has no column {name!r}, which was to be copied to the output: give "
                f"another name (--keep).{nearest(name, file.types)}"
            )
    parts = {columns.task: "task"} | {feature.column: "feature" for feature in columns.features}
    if columns.target is not None:
        parts[columns.target] = "target"
    lacking = [name for name in parts if name not in file.types]
    if lacking:
        raise ValueError(
            f"{file.path} has no column {joined([f'{name!r} ({parts[name]})' for name in lacking])}"
            ": give a table with the columns that the model was fitted to."
            f"{nearest(lacking[0], file.types)}"
        )


def _require_known_levels(table: FileColumns, columns: Columns) -> None:
    """Raise for a text that was not in the fit: it would count as the first level."""
    for base in columns.base:
        levels = [f.level for f in (base, *columns.features) if f.column == base.column and f.level]
        unknown = table.value_where(
            base.column, f"value NOT IN ({', '.join(map(literal, levels))})"
        )
        if unknown is not None:
            raise ValueError(
                f"{unknown[1]}: the column {base.column!r} holds {shortened(unknown[0])!r}, which "
                f"was not in the fit, only {joined([repr(level) for level in levels])}: leave such "
                "rows out, or fit with them."
            )


def _matching_label(table: FileColumns, columns: Columns) -> str:
    """The SQL type to read labels in, so that they equal the labels of the fit."""
    if columns.label == "VARCHAR":
        return "VARCHAR"
    if table.types[columns.task] in NUMBERS - {"boolean"}:
        return LABEL_TYPES.get(table.types[columns.task], "DOUBLE")
    odd = table.not_a_number(columns.task)
    if odd is not None:
        raise ValueError(
            f"{odd[1]}: the task column {columns.task!r} holds {shortened(odd[0])!r}, but the "
            "tasks of the model are numbers: give the column that the model was fitted with."
        )
    return columns.label
