"""Users' tables as numbers, with all checks of their values and shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sharedspan.inputs.files import nearest, shortened
from sharedspan.inputs.labels import as_numpy, is_missing
from sharedspan.inputs.recognition import recognise
from sharedspan.inputs.resources import in_words, machine_memory
from sharedspan.inputs.text_format import TextFormat
from sharedspan.kernels.threads import extremes

MOST_COLUMNS = 5  # that a message names
REMEDY = (  # for rows that lack a value
    "leave these rows out (columns=ss.Columns(missing='drop')), fill values in and mark them "
    "(missing='indicator'), or leave the columns out."
)
FINITE_BLOCK = 1 << 19  # numbers checked together in the search for one that is not finite
DENSE_SHARE = 0.5  # of the machine's memory that a sparse table may take once it is dense


def is_dask_frame(X: Any) -> bool:
    """Whether X is a Dask DataFrame."""
    return package_of(X).startswith("dask") and hasattr(X, "columns")


def package_of(X: Any) -> str:
    """The package of X's class; attributes of a pandas frame may be columns of that name."""
    return type(X).__module__.split(".")[0]


def as_table(X: Any) -> Any:
    """X itself, but lazy frames collected, and record batches and dicts as pyarrow tables."""
    if isinstance(X, np.ndarray):
        return X
    if isinstance(X, Mapping) and not hasattr(type(X), "tocsr"):  # some sparse matrices are dicts
        return _table_of_columns(X)
    kind = package_of(X), type(X).__name__
    if kind == ("polars", "LazyFrame"):
        return X.collect()
    if kind == ("pyarrow", "RecordBatch"):
        import pyarrow

        return pyarrow.Table.from_batches([X])
    return X


def _table_of_columns(columns: Mapping[Any, Any]) -> Any:
    """A dict of columns as a pyarrow table."""
    import pyarrow

    from sharedspan.inputs.column_arrays import as_arrow

    for name, column in columns.items():
        if isinstance(column, str | bytes) or not hasattr(column, "__len__"):
            raise TypeError(f"The column {name!r} is {column!r}: give one value per row.")
    lengths = {name: len(column) for name, column in columns.items()}
    first = next(iter(lengths), None)
    for name, length in lengths.items():
        if length != lengths[first]:
            raise ValueError(
                f"The columns have different lengths, {first!r} has {lengths[first]} values and "
                f"{name!r} {length}: give one value per row."
            )
    return pyarrow.table({str(name): as_arrow(column) for name, column in columns.items()})


def column_names(X: Any) -> list[Any] | None:
    """Names of the columns of a pandas, polars or pyarrow frame; None for arrays."""
    names = getattr(X, "column_names" if package_of(X) == "pyarrow" else "columns", None)
    return None if names is None else list(names)


def text_columns(X: Any) -> list[str] | None:
    """Names of the columns of a frame whose first value is text; None unless it is in memory."""
    names = column_names(X)
    if names is None or is_dask_frame(X):
        return None
    first = X.slice(0, 1) if package_of(X) == "pyarrow" else X.head(1)
    values = {name: as_numpy(first[name]) for name, n in Counter(names).items() if n == 1}
    return [str(name) for name, value in values.items() if value.size and type(value[0]) is str]


def refuse_column_as_label(X: Any, task: Any) -> None:
    """Raise if ``task`` is a text and a column of the frame X has this name."""
    if isinstance(task, str) and task in (column_names(X) or ()):
        raise ValueError(
            f"task={task!r} would be one label for all rows, but X has a column of that name: for "
            f"the labels in the column use task_column={task!r} of the constructor, or if all rows "
            "are of one task, give its label once per row."
        )


def row_count(X: Any) -> int:
    """Rows of an array, sparse matrix or frame."""
    X = as_table(X)
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def without_columns(X: Any, names: Sequence[Any]) -> Any:
    """The other columns of a frame."""
    others = [name for name in column_names(X) or [] if name not in names]
    return X.select(others) if package_of(X) == "pyarrow" else X[others]


def find_task_column(names: Sequence[Any], task_column: Any) -> Any:
    """The name among the columns' names that ``task_column`` means.

    It may have the prefix of a ColumnTransformer: "remainder__school" is "school" if no other
    column ends in "__school".
    """
    count = names.count(task_column)
    if count == 1:
        return task_column
    if count > 1:
        raise ValueError(f"X has {count} columns {task_column!r}: give each its own name.")
    prefixed = []
    if isinstance(task_column, str):
        prefixed = [name for name in names if str(name).endswith(f"__{task_column}")]
    if len(prefixed) == 1:
        return prefixed[0]
    if prefixed:
        listed = ", ".join(map(repr, prefixed))
        raise ValueError(
            f"Several columns of X may be the task column {task_column!r}, {listed}: give one of "
            "these names, or pass that column through one transformer only."
        )
    raise ValueError(
        f"There is no task column {task_column!r} in X: give one of its columns, "
        f"{first_names(names)}."
        f"{nearest(str(task_column), map(str, names))}"
    )


def first_names(names: Sequence[Any]) -> str:
    """The first names of columns, for a message."""
    return ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")


def require_task_column(X: Any, task_column: Any) -> None:
    """Raise if new rows lack the column that held the tasks in the fit."""
    names = column_names(X)
    if names is None or task_column is None or isinstance(task_column, tuple):
        return
    if not any(n == task_column or str(n).endswith(f"__{task_column}") for n in names):
        raise ValueError(
            f"There is no task column {task_column!r} in X, which held the tasks in the fit: add "
            "it to the new rows, or give the labels as task=. The columns are "
            f"{first_names(names)}.{nearest(str(task_column), map(str, names))}"
        )


def task_column_of(X: Any, task_column: Any, task: Any) -> Any:
    """``task_column``, or None for a frame without it beside which the labels ``task`` are given.

    Of several columns, which make a path, all must be absent.
    """
    names = column_names(X)
    if task is None or task_column is None or names is None:
        return task_column
    parts = (task_column,)
    if isinstance(task_column, tuple) and task_column not in names:
        parts = task_column
    endings = tuple(f"__{part}" for part in parts)
    known = any(name in parts or str(name).endswith(endings) for name in names)
    return task_column if known else None


def split_columns(
    X: Any, task_column: Any, check_finite: bool = True
) -> tuple[np.ndarray, Any, tuple[str, ...]]:
    """Features (rows, d) as finite floats, the task column (or None), and the features' names.

    Arrays of floats are returned as they are; everything else is converted to float64, sparse
    matrices and columns to dense ones unless these would take more than half of the machine's
    memory. Without ``check_finite`` they may contain NaN and infinity.
    """
    X = as_table(X)
    if hasattr(type(X), "tocsr"):
        require_dense_fits(X.shape)
        X = X.tocsr().toarray(order="C")
    if hasattr(type(X), "npartitions"):
        raise ValueError(
            "X is a Dask DataFrame, and engine='local' works on this machine's memory: use "
            "engine='dask' or a client, or call compute() first."
        )
    if hasattr(type(X), "collect"):
        raise TypeError(
            f"X is a {type(X).__name__} of {package_of(X)}: convert it with to_pandas() or "
            "to_arrow() first."
        )
    if hasattr(X, "columns"):
        features, column, names = _split_frame(X, task_column)
    else:
        features, column, names = _split_array(_as_array(X), task_column)
    if features.dtype.kind not in "biuf":
        features = _stack_columns(list(features.T), names)
    elif features.dtype not in (np.float32, np.float64):
        features = features.astype(np.float64)
    if check_finite:
        require_finite(features, names)
    return features, column, names


def task_labels(X: Any, task_column: Any) -> Any:
    """The task column of a frame or array, or None."""
    if task_column is None:
        return None
    names = column_names(X)
    if names is not None:
        return X[find_task_column(names, task_column)]
    return _split_array(_as_array(X), task_column)[1]


def _as_array(X: Any) -> np.ndarray:
    if np.ma.isMaskedArray(X):
        return np.ma.filled(X.astype(np.float64), np.nan)
    try:
        array = X if isinstance(X, np.ndarray) else np.asarray(X)
    except ValueError as error:
        lengths = [np.size(row) for row in X]
        odd = next((i for i, length in enumerate(lengths) if length != lengths[0]), 0)
        raise ValueError(
            f"X is not a table: row {odd} has {lengths[odd]} values, row 0 has {lengths[0]}. Give "
            "rows of equal length, or a list of 2D arrays, one per task."
        ) from error
    if X is not None and array.size == 0 and array.ndim < 2:
        array = np.empty((0, 1))  # an empty list is a table without rows
    if array.ndim != 2:
        given = "None" if X is None else f"{array.ndim}D array of shape {array.shape}"
        raise ValueError(
            f"Expected 2D array, got {given} instead. "
            "Reshape your data using array.reshape(-1, 1) if it has a single feature or "
            "array.reshape(1, -1) if it contains a single sample."
        )
    return array


def _split_array(array: np.ndarray, task_column: Any) -> tuple[np.ndarray, Any, tuple[str, ...]]:
    numbers = list(range(array.shape[1]))
    column = None
    if task_column is not None:
        if isinstance(task_column, bool) or task_column not in numbers:
            raise ValueError(
                f"There is no task column {task_column!r} in an array of {len(numbers)} columns: "
                "give its number, or pass a frame, which has names. scikit-learn transformers "
                "return frames after set_output(transform='pandas'), OneHotEncoder only with "
                "sparse_output=False."
            )
        numbers.remove(int(task_column))
        column = array[:, task_column]
        array = array[:, numbers]
    return array, column, tuple(f"x{j}" for j in numbers)


def _split_frame(frame: Any, task_column: Any) -> tuple[np.ndarray, Any, tuple[str, ...]]:
    columns, column = column_names(frame) or [], None
    is_arrow, is_polars = (package_of(frame) == name for name in ("pyarrow", "polars"))
    if task_column is not None:
        task_column = find_task_column(columns, task_column)
        column = frame[task_column]
        columns.remove(task_column)
        frame = frame.select(columns) if is_arrow else frame[columns]
    names = tuple(str(name) for name in columns)
    if is_arrow or is_polars:  # polars would turn dates among floats into numbers
        values = [column.to_numpy() for column in (frame.columns if is_arrow else frame)]
        if is_arrow or any(value.dtype.kind not in "biuf" for value in values):
            return _stack_columns(values, names), column, names
    elif has_sparse_columns(frame):
        require_dense_fits(frame.shape)
        values = [np.asarray(frame.iloc[:, j]) for j in range(len(columns))]
        return _stack_columns(values, names), column, names
    return frame.to_numpy(), column, names


def has_sparse_columns(frame: Any) -> bool:
    """Whether a pandas frame has sparse columns."""
    return any(hasattr(dtype, "fill_value") for dtype in getattr(frame, "dtypes", ()))


def require_dense_fits(shape: tuple[int, int]) -> None:
    """Raise if a sparse table of this shape takes more than DENSE_SHARE of the memory as dense."""
    needed, memory = 8 * shape[0] * shape[1], machine_memory()
    if needed > DENSE_SHARE * memory:
        raise ValueError(
            f"X is sparse, with {shape[0]:,} rows and {shape[1]:,} columns, and takes "
            f"{in_words(needed)} once it is dense, more than half of this machine's "
            f"{in_words(memory)}: use fewer columns, for example "
            "OneHotEncoder(max_categories=30), or fewer rows."
        )


def _stack_columns(values: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Columns of any dtype as one float64 matrix, each checked under its own name."""
    if not values:
        return np.empty((0, 0))
    return np.column_stack(
        [
            _as_numbers(value, f"Column {name!r} (number {j}) of X").astype(np.float64)
            for j, (value, name) in enumerate(zip(values, names, strict=True))
        ]
    )


def _as_numbers(values: np.ndarray, what: str) -> np.ndarray:
    """Values of any dtype as floats; missing ones become NaN, text and dates are refused."""
    advice = "Encode it as numbers (for example one-hot) or leave it out."
    if values.dtype.kind in "biuf":
        return values.astype(np.promote_types(values.dtype, np.float32), copy=False)
    if values.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {what} has dtype {values.dtype}. {advice}")
    if values.dtype.kind != "O":
        raise ValueError(f"{what} is not numeric: its dtype is {values.dtype}. {advice}")
    numbers = np.empty(len(values))
    for row, value in enumerate(values):
        if isinstance(value, (str, bytes)):
            raise ValueError(f"{what} is not numeric: row {row} holds the text {value!r}. {advice}")
        try:
            numbers[row] = np.nan if is_missing(value) else value
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{what} is not numeric: row {row} holds {value!r}, a {type(value).__name__}, but "
                f"each argument must be a number, not a string or another object. {advice}"
            ) from error
    return numbers


def require_finite(features: np.ndarray, names: Sequence[str]) -> None:
    """Raise for NaN or infinity; maxima and minima are checked first, as they need no memory."""
    if not features.size:
        return
    whole = features if features.flags.c_contiguous else features.T
    flat = whole.reshape(-1) if whole.flags.c_contiguous else features.ravel()
    with np.errstate(invalid="ignore"):
        if np.isfinite(extremes(flat)).all():
            return
    step = max(FINITE_BLOCK // features.shape[1], 1)
    for lo in range(0, len(features), step):
        bad = np.argwhere(~np.isfinite(features[lo : lo + step]))
        if len(bad):
            row, column = bad[0]
            if np.isnan(features[lo + row, column]):
                raise ValueError(f"Input X contains NaN{missing_words(features, names)}: {REMEDY}")
            raise ValueError(
                f"Input X contains infinity in row {lo + row}, column {names[column]!r}: drop or "
                "fill such values first."
            )


def missing_words(X: np.ndarray, columns: Sequence[str]) -> str:
    """The place of the first missing value, the number of rows and the columns that lack one."""
    rows, n_missing, first = 0, np.zeros(X.shape[1], dtype=int), None
    step = max(FINITE_BLOCK // X.shape[1], 1)
    for lo in range(0, len(X), step):
        lacking = np.isnan(X[lo : lo + step])
        rows, n_missing = rows + int(lacking.any(axis=1).sum()), n_missing + lacking.sum(axis=0)
        if first is None and lacking.any():
            row, column = np.argwhere(lacking)[0]
            first = f" in row {lo + row}, column {columns[column]!r}"
    counts = {name: n for name, n in zip(columns, n_missing.tolist(), strict=True) if n}
    listed = ", ".join(f"{name!r} {n}" for name, n in list(counts.items())[:MOST_COLUMNS])
    more = f" and {len(counts) - MOST_COLUMNS} more" if len(counts) > MOST_COLUMNS else ""
    return f"{first} ({rows} of {len(X)} rows have missing values: {listed}{more})"


def as_target(y: Any, n_rows: int, name: str = "y") -> np.ndarray:
    """One finite float per row, (rows,)."""
    if y is None:
        raise ValueError(
            "This estimator requires y to be passed, but the target y is None: give one number "
            "per row."
        )
    if np.ma.isMaskedArray(y):
        y = np.ma.filled(y.astype(np.float64), np.nan)
    values = as_numpy(as_table(y))
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"{name} has shape {values.shape}: expected one number per row.")
    if len(values) != n_rows:
        raise ValueError(
            f"{name} has {len(values)} values but X has {n_rows} rows: give one number per row."
        )
    if name == "y" and values.dtype.kind in "OU":
        _require_no_text(values)
    values = _as_numbers(values, name)
    finite = not len(values) or np.isfinite(extremes(values)).all()
    bad = np.empty(0) if finite else np.flatnonzero(~np.isfinite(values))
    if len(bad):
        kind, advice = "infinity", "correct or drop such rows first."
        if np.isnan(values[bad[0]]):
            kind, advice = "NaN", "drop or fill such rows first."
            if name == "y":
                advice = "leave these rows out (columns=ss.Columns(missing='drop')), or fill them."
        raise ValueError(
            f"Input {name} contains {kind} in row {bad[0]} ({len(bad)} such row(s)): {advice}"
        )
    return values


def _require_no_text(y: np.ndarray) -> None:
    """Raise, with what to do, if a response is text."""
    texts = {row: value for row, value in enumerate(y.tolist()) if isinstance(value, str)}
    if not texts:
        return
    row = next(iter(texts))
    kinds, _, findings = recognise({"y": Counter(texts.values())}, TextFormat(), target="y")
    advice = "Give numbers, or use a classifier, such as AdaptiveSpanClassifier, for classes."
    if kinds.get("y") == "number":
        options = findings.in_python() if findings else "columns=ss.Columns()"
        advice = f"Add {options}, which reads y as it reads the columns of X."
    raise ValueError(
        f"y is not numeric: row {row} holds the text {shortened(texts[row])!r}. {advice}"
    )


def as_weight(sample_weight: Any, n_rows: int) -> np.ndarray:
    """One weight of zero or more per row, not all zero, (rows,)."""
    if np.ndim(np.asarray(sample_weight)) == 0:
        sample_weight = np.full(n_rows, sample_weight)
    if np.ndim(np.asarray(sample_weight)) != 1:
        raise ValueError("Sample weights must be 1D array or scalar: give one number per row.")
    weight = as_target(sample_weight, n_rows, "sample_weight")
    if (weight < 0).any():
        row = int(np.argmax(weight < 0))
        raise ValueError(
            f"sample_weight is negative in row {row} ({weight[row]}): weights count as repetitions "
            "and must be zero or more."
        )
    if not weight.any():
        raise ValueError(
            "sample_weight is zero in every row, so no data is left: at least one weight must be "
            "positive."
        )
    return weight
