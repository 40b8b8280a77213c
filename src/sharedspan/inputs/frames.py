"""Users' tables as numbers, with all checks of their values and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sharedspan.inputs.labels import is_missing
from sharedspan.kernels.threads import extremes

FINITE_BLOCK = 1 << 19  # numbers checked together in the search for one that is not finite


def is_dask_frame(X: Any) -> bool:
    """Whether X is a Dask DataFrame."""
    return type(X).__module__.split(".")[0].startswith("dask") and hasattr(X, "columns")


def split_columns(
    X: Any, task_column: Any, check_finite: bool = True
) -> tuple[np.ndarray, Any, tuple[str, ...]]:
    """Features (rows, d) as finite floats, the task column (or None), and the features' names.

    Arrays of floats are returned as they are; everything else is converted to float64. Without
    ``check_finite`` they may contain NaN and infinity.
    """
    if hasattr(X, "tocsr") or type(X).__module__.startswith("scipy.sparse"):
        raise TypeError(
            "A sparse matrix was passed, but dense data is required: use X.toarray() if it fits."
        )
    if hasattr(X, "npartitions"):
        raise ValueError(
            "X is a Dask DataFrame, and engine='local' works on this machine's memory: use "
            "engine='dask' or a client, or call compute() first."
        )
    if hasattr(X, "column_names") or hasattr(X, "collect"):
        raise TypeError(
            f"X is a {type(X).__name__} of {type(X).__module__.split('.')[0]}: use its to_pandas() "
            "or collect() first, so that it is a frame of pandas or polars."
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
                "give its number, or pass a frame that has column names."
            )
        numbers.remove(int(task_column))
        column = array[:, task_column]
        array = array[:, numbers]
    return array, column, tuple(f"x{j}" for j in numbers)


def _split_frame(frame: Any, task_column: Any) -> tuple[np.ndarray, Any, tuple[str, ...]]:
    columns = list(frame.columns)
    column = None
    if task_column is not None:
        if task_column not in columns:
            shown = ", ".join(map(repr, columns[:20])) + (", ..." if len(columns) > 20 else "")
            raise ValueError(
                f"There is no task column {task_column!r} in X: give one of its columns, {shown}."
            )
        if columns.count(task_column) > 1:
            raise ValueError(
                f"X has {columns.count(task_column)} columns {task_column!r}: give each its own "
                "name."
            )
        column = frame[task_column]
        columns.remove(task_column)
        frame = frame[columns]
    names = tuple(str(name) for name in columns)
    if hasattr(frame, "schema"):  # polars would turn dates among floats into numbers
        values = [frame[name].to_numpy() for name in columns]
        if any(value.dtype.kind not in "biuf" for value in values):
            return _stack_columns(values, names), column, names
    return frame.to_numpy(), column, names


def _stack_columns(values: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Columns of any dtype as one float64 matrix, each checked under its own name."""
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
            value = features[lo + row, column]
            raise ValueError(
                f"Input X contains {'NaN' if np.isnan(value) else 'infinity'} in row {lo + row}, "
                f"column {names[column]!r}: drop or fill such values first."
            )


def as_target(y: Any, n_rows: int, name: str = "y") -> np.ndarray:
    """One finite float per row, (rows,)."""
    if y is None:
        raise ValueError(
            "This estimator requires y to be passed, but the target y is None: give one number "
            "per row."
        )
    if np.ma.isMaskedArray(y):
        y = np.ma.filled(y.astype(np.float64), np.nan)
    values = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"{name} has shape {values.shape}: expected one number per row.")
    if len(values) != n_rows:
        raise ValueError(
            f"{name} has {len(values)} values but X has {n_rows} rows: give one number per row."
        )
    values = _as_numbers(values, name)
    finite = not len(values) or np.isfinite(extremes(values)).all()
    bad = np.empty(0) if finite else np.flatnonzero(~np.isfinite(values))
    if len(bad):
        kind = "NaN" if np.isnan(values[bad[0]]) else "infinity"
        raise ValueError(
            f"Input {name} contains {kind} in row {bad[0]} ({len(bad)} such row(s)): "
            "drop or fill such rows first."
        )
    return values


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
            "sample_weight is zero in every row, so no data is left: give at least one row weight."
        )
    return weight
