"""The rows themselves as statistics, for tasks with too few rows for Grams to pay."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from sharedspan.inputs.rows import TaskRows
from sharedspan.statistics.grams import GramStatistics, TaskMeans, Watch

if TYPE_CHECKING:
    from sharedspan.statistics.task_statistics import Units


class RowStatistics(TaskMeans):
    """The rows themselves, for tasks with few rows; same interface, folds by masks.

    Attributes
    ----------
    X : ndarray of shape (rows, d)
        Rows task by task, centred at their task's mean if ``centred``.
    y, weight : ndarray of shape (rows,)
    starts : ndarray of shape (T + 1,)
    n, mean, y_mean, centred
        As in GramStatistics.
    """

    def __init__(
        self, tasks: TaskRows, units: Units, centred: bool, watch: Watch | None = None
    ) -> None:
        self.centred = centred
        self.is_centred = True  # whether the weighted mean of the rows of each task is zero
        self.starts = tasks.starts
        self.X = np.empty((tasks.n_rows, tasks.n_features))
        self.y = np.empty(tasks.n_rows)
        self.weight = np.empty(tasks.n_rows)
        for block in tasks.blocks(whole=watch is not None):
            self.X[block.positions], self.y[block.positions] = units.rows(block, None)
            self.weight[block.positions] = block.weight
            if watch is not None:
                watch(block)
        self.n = tasks.sizes()
        self.mean = np.zeros((tasks.n_tasks, tasks.n_features))
        self.y_mean = np.zeros(tasks.n_tasks)
        if centred:
            self._centre()

    def take(self, ids: np.ndarray) -> RowStatistics:
        """A copy of some tasks' rows."""
        other = copy(self)
        rows = np.concatenate([np.arange(self.starts[t], self.starts[t + 1]) for t in ids])
        for name in ("X", "y", "weight"):
            setattr(other, name, getattr(self, name)[rows])
        for name in ("n", "mean", "y_mean"):
            setattr(other, name, getattr(self, name)[ids])
        other.starts = np.append(0, np.cumsum(np.diff(self.starts)[ids]))
        return other

    def reweighted(self, factor: np.ndarray) -> RowStatistics:
        """A copy with each weight times ``factor`` (rows,); means stay the centres."""
        other = copy(self)
        other.is_centred = False
        other.weight = self.weight * factor
        other.n = _segment_sums(other.weight, self.starts)
        return other

    def intercepts(self, V: np.ndarray) -> np.ndarray:
        """Intercepts (T,) for the coefficients V (d, T): mean residuals of each task."""
        if self.is_centred or not self.centred:
            return super().intercepts(V)
        errors = self.y - np.concatenate(
            [self.X[self.starts[t] : self.starts[t + 1]] @ V[:, t] for t in range(self.n_tasks)]
        )
        weights = np.divide(1.0, self.n, out=np.zeros(self.n_tasks), where=self.n > 0)
        shift = _segment_sums(self.weight * errors, self.starts) * weights
        return super().intercepts(V) + shift

    def factor_intercepts(self, B: np.ndarray, W: np.ndarray) -> np.ndarray:
        """See TaskMeans."""
        return self.intercepts(B @ W)

    def _centre(self) -> None:
        for t in range(self.n_tasks):
            rows = slice(self.starts[t], self.starts[t + 1])
            self.mean[t] = self.weight[rows] @ self.X[rows] / self.n[t]
            self.y_mean[t] = self.weight[rows] @ self.y[rows] / self.n[t]
            self.X[rows] -= self.mean[t]
            self.y[rows] -= self.y_mean[t]

    def gram(self, t: int) -> np.ndarray:
        """The Gram of task t, (d, d)."""
        rows = slice(self.starts[t], self.starts[t + 1])
        return self.X[rows].T @ (self.weight[rows, None] * self.X[rows])

    def pooled_gram(self) -> np.ndarray:
        """Sum of all tasks' Grams, (d, d)."""
        return self._sum(lambda X, w: X.T @ (w[:, None] * X))

    def variances(self) -> np.ndarray:
        """Pooled within-task variance of each feature, (d,)."""
        return self._sum(lambda X, w: w @ X**2) / self.n.sum()

    def principal_axes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See TaskMeans; with fewer rows than features, from the rows' singular values."""
        if len(self.X) >= self.n_features:
            return super().principal_axes()
        scale = self.inverse_deviations(self.variances())
        root = np.sqrt(self.weight / self.n.sum())
        _, s, axes = np.linalg.svd(root[:, None] * self.X * scale, full_matrices=False)
        return scale, s**2, axes.T

    def _sum(self, term: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        blocks = self._row_blocks()
        return np.sum([term(self.X[rows], self.weight[rows]) for rows in blocks], axis=0)

    def transform(self, P: np.ndarray) -> None:
        """Statistics of the features X P, P (d, d'), in place."""
        for rows in self._row_blocks():
            self.X[rows, : P.shape[1]] = self.X[rows] @ P
        if P.shape[1] < P.shape[0]:
            self.X = np.ascontiguousarray(self.X[:, : P.shape[1]])
        self.mean = self.mean @ P

    def _row_blocks(self) -> list[slice]:
        step = max((1 << 19) // max(self.n_features, 1), 1)
        return [slice(lo, lo + step) for lo in range(0, len(self.X), step)]


def _segment_sums(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return np.bincount(owner, values, minlength=len(starts) - 1)


Statistics = GramStatistics | RowStatistics
