"""SQL that computes the statistics of each task in a database, for ``fit_statistics``.

The means of each task come first. Products are then summed over deviations from them, so that
no precision is lost however far from zero the values are; the means of the deviations, which
would be zero without rounding, are returned as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sharedspan.statistics.folds import N_FOLDS

# The columns of the result, which ``fit_statistics`` reads.
TASK, FOLD, N_ROWS, N_MISSING = "task", "fold", "n_rows", "n_missing"
MEANS, REMAINDERS, PRODUCTS, NAMES = "means", "remainders", "products", "names"


@dataclass(frozen=True)
class Dialect:
    """What differs between databases."""

    name: Callable[[str], str]  # a quoted name
    text: Callable[[str], str]  # a literal text
    double: str  # the type of double precision
    is_number: str  # that {0} is not NaN
    array: str  # of the numbers {0}
    bucket: str  # of a row with the numbers {0}, by a hash of them
    inlined: str = ""  # said of a subquery that is not to be stored


def _doubled(mark: str) -> Callable[[str], str]:
    """Quotes a text by a mark, which is doubled inside."""
    return lambda text: mark + text.replace(mark, 2 * mark) + mark


def _escaped(mark: str, prefix: str = "") -> Callable[[str], str]:
    """Quotes a text by a mark, which has a backslash inside; line ends are written as such."""
    escapes: dict[str, str | int | None] = {
        "\\": r"\\",
        mark: "\\" + mark,
        "\n": r"\n",
        "\r": r"\r",
    }
    return lambda text: prefix + mark + text.translate(str.maketrans(escapes)) + mark


DIALECTS = {
    "duckdb": Dialect(
        _doubled('"'),
        _doubled("'"),
        "DOUBLE",
        "NOT isnan({0})",
        "[{0}]",
        f"CAST(hash({{0}}) % {N_FOLDS} AS INTEGER)",
        "NOT MATERIALIZED ",
    ),
    "postgresql": Dialect(
        _doubled('"'),
        _escaped("'", "E"),
        "DOUBLE PRECISION",
        "{0} <> 'NaN'",
        "ARRAY[{0}]",
        f"CAST(ABS(MOD(hashtextextended(CAST(ROW({{0}}) AS TEXT), 0), {N_FOLDS})) AS INTEGER)",
        "NOT MATERIALIZED ",
    ),
    "bigquery": Dialect(
        _escaped("`"),
        _escaped("'"),
        "FLOAT64",
        "NOT IS_NAN({0})",
        "[{0}]",
        f"ABS(MOD(FARM_FINGERPRINT(TO_JSON_STRING(STRUCT({{0}}))), {N_FOLDS}))",
    ),
}


def statistics_query(
    features: str | Iterable[str],
    *,
    task: str,
    target: str,
    table: str | Sequence[str],
    dialect: str = "duckdb",
    folds: bool = False,
) -> str:
    """SQL that computes the statistics of each task in a database, for ``fit_statistics``.

    The result has a row for each task, with the columns that ``fit_statistics`` documents. Columns
    of the table are converted to double precision. A row with NULL or NaN in a used column is left
    out whole, and counted. The table is read three times, once only for its task column.

    Parameters
    ----------
    features : str or iterable of str
        Columns of the table, in the order of the coefficients.
    task, target : str
        Columns: the task of each row, and what to predict.
    table : str or sequence of str
        Name of the table or view, where dots separate catalog, schema and table. A sequence gives
        these parts one by one, for names that contain dots: ``("sales.parquet",)`` is a file that
        DuckDB reads.
    dialect : {"duckdb", "postgresql", "bigquery"}, default="duckdb"
    folds : bool, default=False
        Whether to make the statistics of five folds of each task's rows, so that ``rank="auto"`` is
        selected by cross-validation. A hash of a row's values decides its fold.

    Returns
    -------
    str
        One SELECT statement.

    Examples
    --------
    >>> import sharedspan as ss
    >>> sql = ss.statistics_query(["age", "sex"], task="school", target="score", table="pupils")
    >>> sql.splitlines()[0]
    'WITH sharedspan_rows AS NOT MATERIALIZED ('
    """
    if dialect not in DIALECTS:
        known = ", ".join(map(repr, DIALECTS))
        raise ValueError(f"dialect={dialect!r} must be one of {known}.")
    if not isinstance(folds, bool):
        raise ValueError(f"folds={folds!r} must be True or False.")
    columns = _checked_columns(features, task, target)
    parts = table.split(".") if isinstance(table, str) else list(table)
    for part in parts or [""]:
        _require_name(part, "table")
    return "\n".join(_lines(DIALECTS[dialect], columns, task, parts, folds))


def _checked_columns(features: str | Iterable[str], task: str, target: str) -> list[str]:
    """The features and the target, after checks of all names."""
    features = [features] if isinstance(features, str) else list(features)
    if not features:
        raise ValueError("features is empty: give the columns that predict the target.")
    for name in features:
        _require_name(name, "features")
    _require_name(task, "task")
    _require_name(target, "target")
    columns = [*features, target]
    for name in columns:
        if columns.count(name) > 1 or name == task:
            raise ValueError(
                f"The column {name!r} is named twice among features, target and task: name each "
                "column once."
            )
    return columns


def _require_name(name: object, argument: str) -> None:
    is_text = isinstance(name, str) and name != "" and "\0" not in name
    if not is_text or any("\ud800" <= character <= "\udfff" for character in str(name)):
        raise ValueError(f"{argument} holds {name!r}, which is not a name: give a string.")


def _lines(
    dialect: Dialect, columns: list[str], task: str, table: list[str], folds: bool
) -> Iterator[str]:
    """The lines of the query; x0, x1, ... are the features, then the target."""
    x = [f"x{j}" for j in range(len(columns))]
    keys = [TASK, FOLD] if folds else [TASK]
    key, inlined, array = ", ".join(keys), dialect.inlined, dialect.array.format

    def listed(values: Iterable[str]) -> str:
        return ", ".join(values)

    def on(left: str, right: str) -> str:
        return " AND ".join(f"{left}.{key} = {right}.{key}" for key in keys)

    numbers = (
        f"CAST(source.{dialect.name(name)} AS {dialect.double}) AS {number}"
        for name, number in zip(columns, x, strict=True)
    )
    yield f"WITH sharedspan_rows AS {inlined}("
    yield f"  SELECT source.{dialect.name(task)} AS {TASK}, {listed(numbers)}"
    yield f"  FROM {'.'.join(map(dialect.name, table))} AS source"
    rows = "sharedspan_rows"
    if folds:
        yield f"), sharedspan_folds AS {inlined}("
        yield f"  SELECT {TASK}, {dialect.bucket.format(listed(x))} AS {FOLD}, {listed(x)}"
        yield f"  FROM {rows}"
        rows = "sharedspan_folds"
    complete = (f"{each} IS NOT NULL AND {dialect.is_number.format(each)}" for each in x)
    yield f"), sharedspan_complete AS {inlined}("
    yield f"  SELECT * FROM {rows}"
    yield f"  WHERE {TASK} IS NOT NULL AND {' AND '.join(complete)}"
    yield "), sharedspan_counts AS ("
    yield f"  SELECT {key}, COUNT(*) AS n FROM {rows} GROUP BY {key}"
    yield "), sharedspan_means AS ("
    averages = [f"AVG({each})" for each in x]
    named = (f"{average} AS {each}" for average, each in zip(averages, x, strict=True))
    yield f"  SELECT {key}, COUNT(*) AS n, {listed(named)}, {array(listed(averages))} AS {MEANS}"
    yield f"  FROM sharedspan_complete GROUP BY {key}"
    yield f"), sharedspan_deviations AS {inlined}("
    centred = (f"r.{each} - m.{each} AS {each}" for each in x)
    yield f"  SELECT {listed(f'r.{each}' for each in keys)}, {listed(centred)}"
    yield f"  FROM sharedspan_complete AS r JOIN sharedspan_means AS m ON {on('r', 'm')}"
    yield "), sharedspan_sums AS ("
    products = (f"SUM({a} * {b})" for i, a in enumerate(x) for b in x[i:])
    yield f"  SELECT {key}, {array(listed(averages))} AS {REMAINDERS},"
    yield f"    {array(listed(products))} AS {PRODUCTS}"
    yield f"  FROM sharedspan_deviations GROUP BY {key}"
    yield ")"
    names = {"task": task, "target": columns[-1], "features": columns[:-1]}
    yield f"SELECT {listed(f'c.{each} AS {each}' for each in keys)},"
    yield f"  COALESCE(m.n, 0) AS {N_ROWS}, c.n - COALESCE(m.n, 0) AS {N_MISSING},"
    yield f"  m.{MEANS} AS {MEANS}, s.{REMAINDERS} AS {REMAINDERS}, s.{PRODUCTS} AS {PRODUCTS},"
    yield f"  {dialect.text(json.dumps(names, ensure_ascii=False))} AS {NAMES}"
    yield "FROM sharedspan_counts AS c"
    yield f"LEFT JOIN sharedspan_means AS m ON {on('c', 'm')}"
    yield f"LEFT JOIN sharedspan_sums AS s ON {on('c', 's')}"
    yield f"ORDER BY {listed(f'c.{each}' for each in keys)}"
