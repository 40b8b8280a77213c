"""The door: users' rows in, validated once, grouped by task, never copied.

Nothing behind this file checks its input again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sharedspan.data.labels import as_labels, canonical_order, is_missing, spread

# Rows are handed on in blocks of about this many numbers (4 MB), small enough for the cache.
BLOCK = 1 << 19


@dataclass(frozen=True)
class Block:
    """A copy of some rows in double precision, in segments that each belong to one task."""

    X: np.ndarray  # (rows, d)
    y: np.ndarray  # (rows,)
    weight: np.ndarray  # (rows,)
    starts: np.ndarray  # (segments + 1,)
    ids: np.ndarray  # (segments,) the task of each segment
    positions: np.ndarray | slice  # the rows in task order


@dataclass(frozen=True)
class Tasks:
    """Validated rows of T tasks.

    ``order`` lists the rows task by task (None where they already lie so); task t owns the
    positions ``starts[t]`` to ``starts[t + 1]`` of that list.
    """

    X: np.ndarray  # (rows, d), float32 or float64, the user's own memory
    y: np.ndarray  # (rows,)
    weight: np.ndarray | None  # (rows,), positive
    labels: tuple[Hashable, ...]  # (T,) in canonical order
    starts: np.ndarray  # (T + 1,)
    order: np.ndarray | None
    names: tuple[str, ...]  # (d,)

    @property
    def n_tasks(self) -> int:
        return len(self.labels)

    @property
    def n_features(self) -> int:
        return int(self.X.shape[1])

    @property
    def n_rows(self) -> int:
        return int(self.starts[-1])

    def sizes(self) -> np.ndarray:
        """Sum of weights in each task, (T,)."""
        if self.weight is None:
            return np.diff(self.starts).astype(float)
        weight = self.weight if self.order is None else self.weight[self.order]
        return np.bincount(self.task_of_position(), weight, minlength=self.n_tasks)

    def task_of_position(self) -> np.ndarray:
        """The task of each position, (rows,)."""
        return np.repeat(np.arange(self.n_tasks), np.diff(self.starts))

    def select(self, mask: np.ndarray) -> Tasks:
        """The rows at the masked positions; all tasks stay, some may become empty."""
        kept = np.flatnonzero(mask)
        order = kept if self.order is None else self.order[kept]
        return replace(self, starts=np.searchsorted(kept, self.starts), order=order)

    def blocks(self, first: int = 0, last: int | None = None) -> Iterator[Block]:
        """Rows of the tasks first..last - 1 in blocks; only a task larger than a block is cut.

        Cuts depend on the task alone, so sums do not depend on who else shares the work.
        """
        limit = max(BLOCK // max(self.n_features, 1), 1)
        for t, end in self.ranges(limit, first, last):
            for lo in range(int(self.starts[t]), int(self.starts[end]), limit):
                hi = min(lo + limit, int(self.starts[end]))
                yield self._block(lo, hi, t, end)

    def ranges(
        self, limit: int, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Ranges of whole tasks with at most ``limit`` rows, or one task where it has more."""
        last = self.n_tasks if last is None else last
        while first < last:
            end = int(np.searchsorted(self.starts, self.starts[first] + limit, side="right")) - 1
            end = min(max(end, first + 1), last)
            yield first, end
            first = end

    def _block(self, lo: int, hi: int, first: int, last: int) -> Block:
        rows = slice(lo, hi) if self.order is None else self.order[lo:hi]
        bounds = np.clip(self.starts[first : last + 1], lo, hi) - lo
        filled = np.flatnonzero(np.diff(bounds))
        weight = np.ones(hi - lo) if self.weight is None else self.weight[rows].astype(float)
        shared = self.order is None  # a slice is a view of the user's memory, a list of rows is not
        return Block(
            X=self.X[rows].astype(np.float64, order="C", copy=shared),
            y=self.y[rows].astype(np.float64, copy=shared),
            weight=weight,
            starts=np.append(bounds[filled], hi - lo),
            ids=filled + first,
            positions=slice(lo, hi),
        )


def open_tasks(
    X: Any,
    y: Any,
    task: Any = None,
    sample_weight: Any = None,
    *,
    task_column: Any = None,
) -> Tasks:
    """Validate rows, targets, labels and weights, and group the rows by task.

    Parameters
    ----------
    X : array-like or frame of shape (rows, d), or a sequence of T arrays (n_t, d)
        A sequence of two-dimensional arrays means one array per task; y is then a sequence too.
    y : array-like of shape (rows,), or a sequence of T arrays
    task : array-like of shape (rows,) or (T,), optional
        One label per row (per array for a sequence); without it all rows are one task 0
        (arrays are tasks 0..T-1).
    sample_weight : array-like of shape (rows,), optional
        Counts as repetition; rows of weight zero count as absent.
    task_column : str or int, optional
        The column of X that holds the labels.
    """
    if is_task_list(X):
        X, y, task, sample_weight = _stack(X, y, task, sample_weight)
    features, column, names = split_columns(X, task_column)
    if column is not None:
        if task is not None:
            raise ValueError(
                f"Labels came twice, as task= and as the column {task_column!r}: give only one."
            )
        task = column
    n_rows, d = features.shape
    if n_rows == 0:
        raise ValueError(
            f"Found array with 0 sample(s) (shape={features.shape}) while a minimum of 1 is "
            "required: give at least one row."
        )
    if d == 0:
        raise ValueError(
            f"Found array with 0 feature(s) (shape={features.shape}) while a minimum of 1 is "
            "required: give at least one column besides the task column."
        )
    _require_finite(features, "X", names)
    y = as_target(y, n_rows)
    weight = _as_weight(sample_weight, n_rows)
    name = "task" if column is None else f"the task column {task_column!r}"
    heads, run_starts = as_labels(np.zeros(n_rows, int) if task is None else task, n_rows, name)
    return _group(features, y, weight, heads, run_starts, names)


def is_task_list(X: Any) -> bool:
    """Whether X is a sequence of two-dimensional arrays or frames, one per task."""
    return (
        isinstance(X, Sequence)
        and not isinstance(X, (str, bytes))
        and len(X) > 0
        and all(getattr(block, "ndim", 0) == 2 or hasattr(block, "columns") for block in X)
    )


def split_columns(X: Any, task_column: Any) -> tuple[np.ndarray, Any, tuple[str, ...]]:
    """Features as a matrix, the task column (or None) and the names of the features.

    Float arrays are returned as they are; everything else is converted to float64.
    """
    if _is_sparse(X):
        raise TypeError(
            "A sparse matrix was passed, but dense data is required: use X.toarray() if it fits."
        )
    if hasattr(X, "columns"):
        return _split_frame(X, task_column)
    array = X if isinstance(X, np.ndarray) else np.asarray(X)
    if array.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {array.ndim}D array of shape {array.shape} instead. "
            "Reshape your data using array.reshape(-1, 1) if it has a single feature or "
            "array.reshape(1, -1) if it contains a single sample."
        )
    column = None
    kept = list(range(array.shape[1]))
    if task_column is not None:
        if not isinstance(task_column, (int, np.integer)) or task_column not in kept:
            raise ValueError(
                f"There is no column {task_column!r} in an array of {array.shape[1]} columns: "
                "give its number, or pass a frame that has column names."
            )
        kept.remove(int(task_column))
        column = array[:, task_column]
        array = array[:, kept]
    names = tuple(f"x{j}" for j in kept)
    return as_float_matrix(array, names), column, names


def _split_frame(frame: Any, task_column: Any) -> tuple[np.ndarray, Any, tuple[str, ...]]:
    columns = list(frame.columns if not hasattr(frame, "column_names") else frame.column_names)
    column = None
    if task_column is not None:
        if task_column not in columns:
            raise ValueError(
                f"There is no task column {task_column!r}: the columns are "
                f"{', '.join(map(repr, columns[:20]))}{', ...' if len(columns) > 20 else ''}."
            )
        column = frame[task_column]
        columns.remove(task_column)
    names = tuple(str(name) for name in columns)
    if hasattr(frame, "select"):  # polars and pyarrow
        part = frame.select(columns)
        if hasattr(part, "to_numpy"):
            return as_float_matrix(part.to_numpy(), names), column, names
        stacked = [np.asarray(part[name]) for name in columns]
    else:
        part = frame if column is None else frame[columns]
        return as_float_matrix(part.to_numpy(), names), column, names
    matrix = np.column_stack(stacked) if stacked else np.empty((len(frame), 0))
    return as_float_matrix(matrix, names), column, names


def _is_sparse(X: Any) -> bool:
    return hasattr(X, "tocsr") or type(X).__module__.startswith("scipy.sparse")


def as_float_matrix(array: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The array itself if it holds floats of 4 or 8 bytes, otherwise a float64 copy."""
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind == "c":
        raise ValueError(
            f"Complex data not supported: X has dtype {array.dtype}. Use real columns."
        )
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    converted = np.empty(array.shape, dtype=np.float64)
    for j, name in enumerate(names):
        converted[:, j] = _as_numbers(array[:, j], f"Column {name!r} (number {j}) of X")
    return converted


def _as_numbers(values: np.ndarray, what: str) -> np.ndarray:
    """Objects as floats; missing values become NaN, text and dates are refused."""
    advice = "Encode such columns as numbers (for example one-hot) or leave them out."
    if values.dtype.kind != "O":
        raise ValueError(f"{what} is not numeric: its dtype is {values.dtype}. {advice}")
    for row, value in enumerate(values):
        if isinstance(value, (str, bytes)):
            raise ValueError(f"{what} is not numeric: row {row} holds the text {value!r}. {advice}")
    try:
        return np.array([np.nan if is_missing(value) else value for value in values], dtype=float)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what} is not numeric: {error}. {advice}") from error


def _require_finite(features: np.ndarray, what: str, names: Sequence[str]) -> None:
    """Look at column maxima and minima first: they need no memory, and NaN survives them."""
    with np.errstate(invalid="ignore"):
        extremes = features.max(axis=0) - features.min(axis=0)
        if np.isfinite(extremes).all() or np.isfinite(features.max() / 2 - features.min() / 2):
            return
    step = max(BLOCK // max(features.shape[1], 1), 1)
    for lo in range(0, len(features), step):
        bad = np.argwhere(~np.isfinite(features[lo : lo + step]))
        if len(bad):
            row, column = bad[0]
            value = features[lo + row, column]
            raise ValueError(
                f"Input {what} contains {'NaN' if np.isnan(value) else 'infinity'} in row "
                f"{lo + row}, column {names[column]!r}: drop or fill such values first."
            )


def as_target(y: Any, n_rows: int, name: str = "y") -> np.ndarray:
    """Targets as a finite float vector of the right length."""
    if y is None:
        raise ValueError("This estimator requires y to be passed, but the target y is None.")
    target = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y)
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    if target.ndim != 1:
        raise ValueError(f"{name} has shape {target.shape}: expected one number per row.")
    if len(target) != n_rows:
        raise ValueError(f"{name} has {len(target)} values but X has {n_rows} rows.")
    if target.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} has dtype {target.dtype}.")
    if target.dtype.kind in "biuf":
        target = target.astype(np.promote_types(target.dtype, np.float32), copy=False)
    else:
        target = _as_numbers(target, name)
    bad = np.flatnonzero(~np.isfinite(target))
    if len(bad):
        kind = "NaN" if np.isnan(target[bad[0]]) else "infinity"
        raise ValueError(
            f"Input {name} contains {kind} in row {bad[0]} ({len(bad)} such rows): "
            "drop or fill such rows first."
        )
    return target


def _as_weight(sample_weight: Any, n_rows: int) -> np.ndarray | None:
    if sample_weight is None:
        return None
    sample_weight = np.asarray(sample_weight)
    if sample_weight.ndim == 0:
        sample_weight = np.full(n_rows, sample_weight)
    if sample_weight.ndim != 1:
        raise ValueError("Sample weights must be 1D array or scalar: give one number per row.")
    weight = as_target(sample_weight, n_rows, "sample_weight")
    if (weight < 0).any():
        row = int(np.argmax(weight < 0))
        raise ValueError(
            f"sample_weight is negative in row {row} ({weight[row]}): weights count as repetitions "
            "and must be zero or more."
        )
    if not weight.any():
        raise ValueError("sample_weight is zero in every row: no data is left to fit.")
    return weight


def _stack(X: Sequence[Any], y: Any, task: Any, weight: Any) -> tuple[Any, Any, Any, Any]:
    """One table of a sequence of per-task arrays."""
    if y is None or len(y) != len(X):
        given = "None" if y is None else f"{len(y)} arrays"
        raise ValueError(f"X is a list of {len(X)} arrays, y is {given}: give one y per array.")
    labels = list(range(len(X))) if task is None else list(task)
    if len(labels) != len(X):
        raise ValueError(f"X is a list of {len(X)} arrays, task has {len(labels)} labels.")
    for label, block, target in zip(labels, X, y, strict=True):
        if len(block) == 0:
            raise ValueError(f"Task {label!r} has no rows: leave it out or give it some.")
        if len(block) != len(target):
            raise ValueError(f"Task {label!r} has {len(block)} rows in X and {len(target)} in y.")
    widths = {np.shape(block)[1] for block in X}
    if len(widths) > 1:
        raise ValueError(f"The arrays of X differ in their number of columns: {sorted(widths)}.")
    sizes = [len(block) for block in X]
    owners = np.empty(len(labels), dtype=object)
    owners[:] = labels
    stacked_weight = None if weight is None else np.concatenate([np.asarray(w) for w in weight])
    return (
        np.concatenate([np.asarray(block) for block in X]),
        np.concatenate([np.asarray(target).ravel() for target in y]),
        np.repeat(owners, sizes),
        stacked_weight,
    )


def _group(
    X: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray | None,
    heads: list[Hashable],
    run_starts: np.ndarray,
    names: tuple[str, ...],
) -> Tasks:
    """Sort runs by task; rows of weight zero, and tasks made only of them, fall away."""
    code_of = {label: code for code, label in enumerate(canonical_order(heads))}
    run_codes = np.array([code_of[label] for label in heads], dtype=np.int64)
    codes = spread(run_codes, run_starts, len(X))
    labels = tuple(code_of)
    order = None
    if (np.diff(run_codes) < 0).any():
        order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=len(labels))
    if weight is not None and not weight.all():
        kept = np.arange(len(X)) if order is None else order
        order = kept[weight[kept] > 0]
        counts = np.bincount(codes[order], minlength=len(labels))
        labels = tuple(label for label, count in zip(labels, counts, strict=True) if count)
        counts = counts[counts > 0]
    starts = np.concatenate([[0], np.cumsum(counts)])
    return Tasks(X, y, weight, labels, starts, order, names)


def codes_of(
    task: Any, n_rows: int, known: Sequence[Hashable], name: str = "task"
) -> tuple[np.ndarray, list[Hashable]]:
    """Codes of known labels for each row, -1 for others, and the list of the others."""
    code_of = {label: code for code, label in enumerate(known)}
    heads, starts = as_labels(task, n_rows, name)
    codes = np.array([code_of.get(head, -1) for head in heads], dtype=np.int64)
    unknown = list(dict.fromkeys(head for head in heads if head not in code_of))
    return spread(codes, starts, n_rows), unknown
