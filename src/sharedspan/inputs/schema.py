"""What to read of users' files: the columns of all files looked at once, and every check of them.

A ``Selection`` is small and can be sent to another process, which then reads rows without asking
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sharedspan.inputs.paths import (
    MOST_NAMED,
    FilePaths,
    SourceFile,
    batches,
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

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

INTEGERS = {"tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger"}
FLOATS = {"float", "double"}
NUMBERS = INTEGERS | FLOATS | {"boolean", "ubigint", "hugeint", "uhugeint", "decimal"}
EXACT_IN_FLOAT32 = {"float", "tinyint", "smallint", "utinyint", "usmallint", "boolean"}
LABELS = ("BIGINT", "UBIGINT", "DOUBLE", "VARCHAR")  # SQL types of labels
MOST_LEVELS = 1000  # of a text column that is encoded


@dataclass(frozen=True)
class Feature:
    """A column of X: a column of numbers, or whether a text column holds a level."""

    column: str
    level: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not isinstance(self.level, str | None):
            raise TypeError(f"A feature is a column and perhaps a level, not {self!r}.")

    @property
    def name(self) -> str:
        return self.column if self.level is None else f"{self.column}={self.level}"

    def sql(self, dtype: str) -> str:
        """Its value as a float; NULL where the column has none."""
        value = quoted(self.column)
        if self.level is not None:
            value = f"(CAST({value} AS VARCHAR) = {literal(self.level)})"
        return f"CAST({value} AS {'FLOAT' if dtype == 'float32' else 'DOUBLE'})"


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are: enough to read more rows as those of the fit were read."""

    task: str
    target: str | None  # None where rows are only to be predicted
    features: tuple[Feature, ...]
    base: tuple[Feature, ...]  # the level of each text column that no feature stands for
    label: str  # SQL type of the labels

    def __post_init__(self) -> None:
        # They become part of SQL, and may come from a file.
        names = (self.task, *([] if self.target is None else [self.target]))
        features = (*self.features, *self.base)
        if not (self.label in LABELS and all(isinstance(name, str) for name in names)
                and all(isinstance(feature, Feature) for feature in features)):  # fmt: skip
            raise ValueError(f"These are no columns of a table: {self!r}.")


@dataclass(frozen=True)
class Selection(Columns):
    """What to read of which files; made by ``resolve``, small, and safe to pickle."""

    files: tuple[SourceFile, ...]  # in the order of their names
    dtype: str  # of X: float32 where that holds every feature exactly, else float64

    @property
    def columns(self) -> Columns:
        return Columns(self.task, self.target, self.features, self.base, self.label)

    @property
    def n_features(self) -> int:
        return len(self.features)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of X, (d,)."""
        return tuple(feature.name for feature in self.features)

    def names_with_task(self) -> tuple[str, ...]:
        """The same with the task column at its place among them."""
        columns = list(self.files[0].kinds)
        before = [columns.index(feature.column) < columns.index(self.task)
                  for feature in self.features]  # fmt: skip
        return (*self.names[: sum(before)], self.task, *self.names[sum(before) :])

    def label_sql(self) -> str:
        """The label of a row; NULL where it has none, or NaN among floats.

        NaN cannot be told apart in SQL: Parquet's statistics, which DuckDB believes, leave it out.
        """
        label = f"CAST({quoted(self.task)} AS {self.label})"
        return f"{label} + 0" if self.label == "DOUBLE" else label  # -0.0 becomes 0.0

    def query(self, scan: str, label: str | None = None, also: Sequence[str] = ()) -> str:
        """SQL of label, target, features and other columns, in the order of the file.

        Under numbers for names: no two of them can clash.
        """
        target = "NULL" if self.target is None else quoted(self.target)
        chosen = [label or self.label_sql(), f"CAST({target} AS DOUBLE)"]
        chosen += [feature.sql(self.dtype) for feature in self.features]
        chosen += map(quoted, also)
        return f"SELECT {', '.join(f'{sql} AS c{i}' for i, sql in enumerate(chosen))} FROM {scan}"


def resolve(
    paths: FilePaths,
    *,
    task: str,
    target: str,
    features: str | Iterable[str] | None = None,
    drop: str | Iterable[str] = (),
    text: str | None = "error",
) -> Selection:
    """Look at the columns of all files and say what is to be read.

    Parquet costs a look at each file's end. CSV is read once, to know the kind of each column, and
    text columns are looked through for a value that is no number, or for their levels.

    Parameters
    ----------
    paths : str, path, or iterable of them
        A file, a folder, a pattern, or several of them; see ``find_files``.
    task, target : str
    features : str or iterable of str, optional
        Columns of X in this order; None for all that are neither task, target nor dropped.
    drop : str or iterable of str
    text : {"error", "one_hot"} or None
        What to do with text among the features: refuse it, or make a column of zeros and ones of
        each level but the first, in sorted order. The first one's share is in the intercepts.
        None refuses it and does not say that it could be encoded.

    Returns
    -------
    Selection

    Raises
    ------
    ValueError
        In one line, with the name of the file or column.
    """
    if text not in ("error", "one_hot", None):
        raise ValueError(f"text={text!r} is unknown: use 'error' or 'one_hot'.")
    with connect() as connection:
        files = [describe(connection, path) for path in find_files(paths)]
        require_same_columns(files)
        names = _features(files[0], task, target, features, drop)
        kinds = common_kinds(files_with_rows(connection, files), files[0].kinds)
        if not files[0].is_parquet:
            kinds[task] = _label_kind(connection, files, task, kinds[task])
            files = [file.with_kinds(kinds) for file in files]
        used = TypedColumns(connection, files, kinds)
        used.require_numbers([target], "target", None)
        base: list[Feature] = []
        if text == "one_hot":
            found = [feature for name in names for feature in used.encoded(name, base)]
        else:
            used.require_numbers(names, "feature", text)
            found = [Feature(name) for name in names]
    if not found:
        raise ValueError(f"The columns {joined([repr(n) for n in names])} hold one level each.")
    columns = (task, target, tuple(found), tuple(base), label_type(kinds[task]))
    return Selection(*columns, tuple(files), feature_dtype(found, kinds))


def feature_dtype(features: Iterable[Feature], kinds: Mapping[str, str]) -> str:
    """The smallest float that holds every feature exactly."""
    exact = all(f.level is not None or kinds[f.column] in EXACT_IN_FLOAT32 for f in features)
    return "float32" if exact else "float64"


def _label_kind(
    connection: DuckDBPyConnection, files: Sequence[SourceFile], task: str, kind: str
) -> str:
    """The kind of a CSV file's labels: text, unless they print again as they were written.

    "1e5" and "100000" are two products, and so are numbers of twenty digits.
    """
    if kind not in ("double", "boolean"):
        return kind
    label = quoted(task)
    for file in files:
        scan = file.with_kinds({task: "varchar"}).scan()
        printed = f"CAST(TRY_CAST({label} AS {kind}) AS VARCHAR)"
        sql = f"SELECT 1 FROM {scan} WHERE {printed} NOT IN ({label}, {label} || '.0')"
        with readable(file.path):
            if connection.sql(f"{sql} LIMIT 1").fetchall():
                return "varchar"
    return kind


def label_type(kind: str) -> str:
    """The SQL type of the labels in a column of this kind."""
    if kind in INTEGERS:
        return "BIGINT"
    return "UBIGINT" if kind == "ubigint" else "DOUBLE" if kind in FLOATS else "VARCHAR"


def require_same_columns(files: Sequence[SourceFile]) -> None:
    """Raise unless all files have the columns of the first."""
    first = files[0]
    for file in files[1:]:
        for one, other in ((first, file), (file, first)):
            lacking = [repr(name) for name in one.kinds if name not in other.kinds]
            if lacking:
                raise ValueError(
                    f"{other.path} has no column {joined(lacking)}, which {one.path} has: give "
                    "files with the same columns."
                )


def _features(
    file: SourceFile,
    task: str,
    target: str,
    features: str | Iterable[str] | None,
    drop: str | Iterable[str],
) -> list[str]:
    """The columns that are features, all of them known and none of them twice."""
    names = list(file.kinds)
    drop = [drop] if isinstance(drop, str) else list(drop)
    wanted = [features] if isinstance(features, str) else list(features or ())
    asked = [("task", task), ("target", target), *(("drop", name) for name in drop)]
    for part, name in (*asked, *(("features", name) for name in wanted)):
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
        if name in drop:
            raise ValueError(f"The column {name!r} is the {part} and cannot be dropped too.")
        if name in wanted:
            raise ValueError(f"The column {name!r} is the {part} and cannot be a feature too.")
    for name in wanted:
        if name in drop or wanted.count(name) > 1:
            other = "dropped too" if name in drop else "given twice"
            raise ValueError(f"The column {name!r} is a feature and {other}: give it once.")
    if features is None:
        left_out = {task, target, *drop}
        # pandas writes the labels of shuffled rows as a column of such a name.
        wanted = [n for n in names if n not in left_out and not n.startswith("__index_level_")]
    if not wanted:
        raise ValueError("No column is left as a feature: keep one besides task and target.")
    return wanted


def files_with_rows(
    connection: DuckDBPyConnection, files: Sequence[SourceFile]
) -> list[SourceFile]:
    """Files that say something of kinds: a CSV file without rows does not."""
    return [
        file
        for file in files
        if file.is_parquet
        or set(file.kinds.values()) != {"varchar"}
        or connection.sql(f"SELECT 1 FROM {file.scan()} LIMIT 1").fetchall()
    ]


def common_kinds(files: Sequence[SourceFile], default: dict[str, str]) -> dict[str, str]:
    """One kind for each column that holds the values of all files."""
    return {
        name: _common_kind({file.kinds[name] for file in files}) if files else kind
        for name, kind in default.items()
    }


def _common_kind(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    odd = kinds - NUMBERS - {"varchar"}
    if odd:
        return min(odd)  # refused later, by its name
    if kinds <= INTEGERS:
        return "bigint"
    return "varchar" if {"varchar", "boolean"} & kinds else "double"


@dataclass
class TypedColumns:
    """Columns over all files with their kinds, and what has to be known of their text."""

    connection: DuckDBPyConnection
    files: Sequence[SourceFile]
    kinds: dict[str, str]
    odd: dict[str, str | None] = field(default_factory=dict)  # a value that is no number
    where: dict[str, str] = field(default_factory=dict)  # the file that holds it

    def problem(self, name: str) -> str | None:
        """Why a column is not of numbers, or None; text that reads as numbers is."""
        if self.kinds[name] in NUMBERS:
            return None
        if self.kinds[name] != "varchar":
            return self.kinds[name].split("_")[0]
        value = self.odd_value(name)
        return None if value is None else f"such as {shortened(value)!r}"

    def odd_value(self, name: str) -> str | None:
        column = f"CAST({quoted(name)} AS VARCHAR)"
        for file in self.files if name not in self.odd else ():
            with readable(file.path):
                found = self.connection.sql(
                    f"SELECT {column} FROM {file.scan()} WHERE {column} IS NOT NULL "
                    f"AND TRY_CAST({column} AS DOUBLE) IS NULL LIMIT 1"
                ).fetchall()
            self.odd[name] = found[0][0] if found else None
            if found:
                self.where[name] = str(file.path)
                break
        return self.odd[name]

    def require_numbers(self, names: Sequence[str], part: str, text: str | None) -> None:
        """Raise where a column is not of numbers."""
        problems = {name: self.problem(name) for name in names}
        found = [f"{name!r} ({problem})" for name, problem in problems.items() if problem]
        if not found:
            return
        it = "it" if len(found) == 1 else "them"
        what = "column" if len(found) == 1 else "columns"
        first = next(name for name in names if problems[name])
        where = self.where.get(first, self.files[0].path)
        does = "does" if len(found) == 1 else "do"
        encode = f", or encode {it} as numbers"
        way = f"leave {it} out (--drop, or drop= in Python)"
        if part == "target":
            what, way = "target", "give another column (--target, or target= in Python)"
        elif part == "fitted":  # in a model that has it
            way, encode = "correct it, as the model was fitted to numbers", ""
        elif text is not None and any(self.kinds[name] == "varchar" for name in names):
            encode = f", or encode {it} (--text one_hot, or text='one_hot' in Python)"
        raise ValueError(
            f"{where}: the {what} {joined(found)} {does} not hold numbers: {way}{encode}."
        )

    def encoded(self, name: str, base: list[Feature]) -> list[Feature]:
        """A column of numbers as it is, a text column level by level; the first goes to base."""
        if self.kinds[name] != "varchar" or self.problem(name) is None:
            self.require_numbers([name], "feature", None)
            return [Feature(name)]
        first, *others = (Feature(name, level) for level in sorted(self.levels(name)))
        base.append(first)
        return others

    def levels(self, name: str) -> set[str]:
        """Distinct values of a text column; the search ends where they are too many."""
        column, levels = f"CAST({quoted(name)} AS VARCHAR)", set[str]()
        for file in self.files:
            sql = f"SELECT {column} FROM {file.scan()} WHERE {column} IS NOT NULL"
            for batch in batches(self.connection, sql, file.path):
                levels.update(batch.column(0).unique().to_pylist())
                if len(levels) > MOST_LEVELS:
                    raise ValueError(
                        f"The text column {name!r} has more than {MOST_LEVELS} levels, such as "
                        f"{shortened(min(levels))!r}: leave it out (--drop, or drop= in Python), "
                        "or join levels first."
                    )
        return levels
