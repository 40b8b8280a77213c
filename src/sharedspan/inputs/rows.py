"""Validation: users' rows, checked once and grouped by task; arrays of floats are not copied.

Other modules do not check their input again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.frames import as_target, as_weight, require_finite, split_columns
from sharedspan.inputs.labels import ascending_runs, coded_labels, given_labels, object_array
from sharedspan.kernels.grouping import order_by_code

if TYPE_CHECKING:
    from sharedspan.inputs.resources import DiskRows

# Rows are passed on in blocks of about this many numbers (2 MB), small enough for the cache.
BLOCK = 1 << 18


@dataclass(frozen=True)
class RowBlock:
    """A copy of some rows in double precision, in segments that each belong to one task."""

    X: np.ndarray  # (rows, d)
    y: np.ndarray  # (rows,)
    weight: np.ndarray  # (rows,)
    starts: np.ndarray  # (segments + 1,)
    ids: np.ndarray  # (segments,) the task of each segment
    positions: slice  # of the rows in task order
    offset: np.ndarray | float = 0.0  # (rows,) known part of the linear predictor


@dataclass(frozen=True)
class TaskRows:
    """Validated rows of T tasks.

    ``order`` lists the rows task by task (None if they are in that order already); task t has the
    positions ``starts[t]`` to ``starts[t + 1]`` of that list.
    """

    X: np.ndarray | DiskRows  # (rows, d), float32 or float64, the user's own memory
    y: np.ndarray | DiskRows  # (rows,)
    weight: np.ndarray | None  # (rows,), positive in the rows that count
    labels: Sequence[Hashable]  # (T,) in canonical order
    starts: np.ndarray  # (T + 1,)
    order: np.ndarray | None
    names: tuple[str, ...]  # (d,)
    checked: bool = True  # whether the features are known to be finite
    offset: np.ndarray | None = None  # (rows,) known part of the linear predictor

    @property
    def n_tasks(self) -> int:
        return len(self.labels)

    @property
    def n_features(self) -> int:
        return int(self.X.shape[1])

    @property
    def n_rows(self) -> int:
        return int(self.starts[-1])

    @property
    def block_rows(self) -> int:
        """Rows that fill a block."""
        return max(BLOCK // max(self.n_features, 1), 1)

    def require_finite(self) -> None:
        """Raise for NaN or infinity among the features, unless they have been checked."""
        if not self.checked and isinstance(self.X, np.ndarray):
            require_finite(self.X, self.names)

    def sizes(self) -> np.ndarray:
        """Sum of weights in each task, (T,)."""
        if self.weight is None:
            return np.diff(self.starts).astype(float)
        weight = self.weight if self.order is None else self.weight[self.order]
        owner = np.repeat(np.arange(self.n_tasks), np.diff(self.starts))
        return np.bincount(owner, weight, minlength=self.n_tasks)

    def extremes(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Least and largest value of each feature, (d,), and the largest |y|, over these rows."""
        if self.n_rows == self.X.shape[0]:
            (low, high), (y_low, y_high) = (
                (a.min(axis=0), a.max(axis=0)) if isinstance(a, np.ndarray) else (a.low, a.high)
                for a in (self.X, self.y)
            )
            y_reach = max(y_high, -y_low)
        else:
            ends = [(b.X.min(axis=0), b.X.max(axis=0), np.abs(b.y).max()) for b in self.blocks()]
            low = np.min([low for low, _, _ in ends], axis=0)
            high = np.max([high for _, high, _ in ends], axis=0)
            y_reach = max(reach for _, _, reach in ends)
        return low.astype(float), high.astype(float), float(y_reach)

    def sample(self, count: int) -> np.ndarray:
        """Features of ``count`` rows at equal distances, or of all rows if there are fewer."""
        positions = np.linspace(0, self.n_rows - 1, min(self.n_rows, count)).astype(int)
        rows = positions if self.order is None else self.order[positions]
        return self.X[rows].astype(float)

    def select(self, mask: np.ndarray) -> TaskRows:
        """The rows at the masked positions; all tasks stay, some may become empty."""
        positions = np.flatnonzero(mask)
        order = positions if self.order is None else self.order[positions]
        return replace(self, starts=np.searchsorted(positions, self.starts), order=order)

    def take(self, ids: np.ndarray) -> TaskRows:
        """The rows of some tasks."""
        counts = np.diff(self.starts)[ids]
        starts = np.append(0, np.cumsum(counts))
        order = np.repeat(self.starts[ids] - starts[:-1], counts) + np.arange(starts[-1])
        order = order if self.order is None else self.order[order]
        return replace(self, labels=tuple(self.labels[t] for t in ids), starts=starts, order=order)

    def blocks(
        self, first: int = 0, last: int | None = None, whole: bool = False
    ) -> Iterator[RowBlock]:
        """Rows of the tasks first..last - 1 in blocks; only a task larger than a block is cut.

        Cuts depend on the task alone, so sums do not depend on the number of threads. With
        ``whole`` no task is cut.
        """
        limit = self.block_rows
        shared = self.order is None  # a slice is a view of the user's memory, a list of rows is not
        for t, end in self.ranges(limit, first, last):
            begin, stop = int(self.starts[t]), int(self.starts[end])
            step = max(stop - begin, 1) if whole else limit
            for lo in range(begin, stop, step):
                hi = min(lo + step, stop)
                rows = slice(lo, hi) if self.order is None else self.order[lo:hi]
                bounds = np.clip(self.starts[t : end + 1], lo, hi) - lo
                filled = np.flatnonzero(np.diff(bounds))
                yield RowBlock(
                    X=self.X[rows].astype(np.float64, order="C", copy=shared),
                    y=self.y[rows].astype(np.float64, copy=shared),
                    weight=(
                        np.ones(hi - lo) if self.weight is None else self.weight[rows].astype(float)
                    ),
                    starts=np.append(bounds[filled], hi - lo),
                    ids=filled + t,
                    positions=slice(lo, hi),
                    offset=0.0 if self.offset is None else self.offset[rows],
                )

    def ranges(
        self, limit: int, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Ranges of whole tasks with at most ``limit`` rows, or of one task if it has more."""
        last = self.n_tasks if last is None else last
        while first < last:
            end = int(np.searchsorted(self.starts, self.starts[first] + limit, side="right")) - 1
            end = min(max(end, first + 1), last)
            yield first, end
            first = end


def validate_rows(
    X: Any,
    y: Any,
    task: Any = None,
    sample_weight: Any = None,
    *,
    task_column: Any = None,
    check_finite: bool = True,
    intercepts_only: bool = False,
) -> TaskRows:
    """Validate rows, targets, labels and weights, and group the rows by task.

    Parameters
    ----------
    X : array-like or frame of shape (rows, d), or a sequence of T arrays or frames (n_t, d)
        A sequence of two-dimensional arrays means one array per task; y is then a sequence too.
    y : array-like of shape (rows,), or a sequence of T arrays
    task : array-like of shape (rows,) or (T,), optional
        One label per row (per array for a sequence); without it all rows are one task 0
        (arrays are tasks 0..T-1).
    sample_weight : array-like of shape (rows,), or a sequence of T arrays, optional
        Weights count as repetitions; rows of weight zero count as absent.
    task_column : str or int, optional
        The column of X that holds the labels.
    check_finite : bool
        Whether features are checked for NaN and infinity now; the pass that builds statistics
        checks them too, while they are in the cache.
    intercepts_only : bool
        Whether X may have no columns besides the task column.
    """
    if is_task_list(X):
        features, y, column, sample_weight, names = _stack(X, y, task, sample_weight, task_column)
        task, name = None, "task"
    else:
        features, column, names = split_columns(X, task_column, check_finite)
        name = "task" if task_column is None else f"the task column {task_column!r}"
    labels = given_labels(task, column, task_column)
    n_rows, d = features.shape
    for count, things in ((n_rows, "sample(s)"), (d, "feature(s)")):
        if count == 0 and (things != "feature(s)" or not intercepts_only):
            raise ValueError(
                f"Found array with 0 {things} (shape={features.shape}) while a minimum of 1 is "
                "required: give at least one row, and one column besides the task column."
            )
    y = as_target(y, n_rows)
    weight = None if sample_weight is None else as_weight(sample_weight, n_rows)
    runs = ascending_runs(labels, n_rows)
    if runs is not None and (weight is None or weight.all()):
        return TaskRows(features, y, weight, *runs, None, names, checked=check_finite)
    coded = coded_labels(0 if labels is None else labels, n_rows, name)
    return replace(_group(features, y, weight, *coded, names), checked=check_finite)


def is_task_list(X: Any) -> bool:
    """Whether X is a sequence of two-dimensional arrays or frames, one per task."""
    return (
        isinstance(X, Sequence)
        and not isinstance(X, (str, bytes))
        and len(X) > 0
        and all(getattr(block, "ndim", 0) == 2 or hasattr(block, "columns") for block in X)
    )


def _stack(
    X: Sequence[Any], y: Any, task: Any, weight: Any, task_column: Any
) -> tuple[np.ndarray, Any, np.ndarray, Any, tuple[str, ...]]:
    """One table of a sequence of per-task arrays: features, y, labels, weights and names."""
    if task_column is not None:
        raise ValueError(
            f"X is a list with one array per task, so task_column={task_column!r} is not needed: "
            "leave it None, or pass one frame."
        )
    labels = list(range(len(X))) if task is None else list(task)
    for what, values in (("y", y), ("task", labels), ("sample_weight", weight)):
        if what == "y" and values is None:
            raise ValueError("X is a list of arrays, but y is None: give one y per array.")
        if values is not None and np.ndim(np.asarray(values, dtype=object)) == 0:
            raise ValueError(
                f"X is a list of arrays, but {what} is {values!r}: give one per array."
            )
        if values is not None and len(values) != len(X):
            raise ValueError(
                f"X is a list of {len(X)} arrays, {what} has {len(values)} entries: give one "
                "entry per array."
            )
    parts = [split_columns(block, None) for block in X]
    names = parts[0][2]
    weights = y if weight is None else weight
    for label, (features, _, others), target, part in zip(labels, parts, y, weights, strict=True):
        if len(features) == 0:
            raise ValueError(f"Task {label!r} has no rows: leave it out or give it some.")
        if others != names:
            raise ValueError(
                f"Task {label!r} has the columns {list(others)}, the first one {list(names)}: give "
                "all arrays the same columns in the same order."
            )
        for what, values in (("y", target), ("sample_weight", part)):
            if np.size(values) != len(features):
                raise ValueError(
                    f"Task {label!r} has {len(features)} rows in X and {np.size(values)} in {what}"
                    ": give one number per row."
                )
    return (
        np.concatenate([features for features, _, _ in parts]),
        np.concatenate([np.asarray(target).ravel() for target in y]),
        np.repeat(object_array(labels), [len(features) for features, _, _ in parts]),
        None if weight is None else np.concatenate([np.asarray(part) for part in weight]),
        names,
    )


def _group(
    X: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray | None,
    labels: Sequence[Hashable],
    codes: np.ndarray,
    names: tuple[str, ...],
) -> TaskRows:
    """Sort rows by task; rows of weight zero, and tasks of such rows only, are left out."""
    rows = None
    if weight is not None and not weight.all():
        rows = np.flatnonzero(weight)
        codes = codes[rows]
    counts, order = order_by_code(codes, len(labels))
    if rows is not None:
        order = rows if order is None else rows[order]
        if not counts.all():
            labels = tuple(labels[t] for t in np.flatnonzero(counts).tolist())
            counts = counts[counts > 0]
    starts = np.concatenate([[0], np.cumsum(counts)])
    return TaskRows(X, y, weight, labels, starts, order, names)
