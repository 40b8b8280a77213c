"""The objective from the rows of the tasks, and what only rows allow: batches and splits."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from sharedspan.kernels import cpu
from sharedspan.objective.base import BlockObjective
from sharedspan.statistics.rows import RowStatistics


class RowObjective(BlockObjective):
    """The objective from rows.

    Besides the interface it can be split by rows, for the solvers that need that.
    """

    statistics: RowStatistics

    def __init__(
        self, statistics: RowStatistics, noise: np.ndarray | None, dtype: str = "float64"
    ) -> None:
        super().__init__(statistics, noise)
        self.X = statistics.X.astype(dtype, copy=False)
        self.n_read = 2.0 * self.X.size

    def _task_residuals(self, V: np.ndarray, *work: Any) -> None:
        s = self.statistics
        cpu.row_residuals(
            self.X, s.y, s.weight, s.starts, s.centred, self.response, self.weights, V, *work
        )

    def _block_gradients(self, *work: Any) -> None:
        s = self.statistics
        cpu.row_gradients(
            self.X, s.y, s.weight, s.starts, s.centred, self.response, self.weights, *work
        )

    def _task_normal_matrices(self, B: np.ndarray, *work: Any) -> None:
        s, B = self.statistics, np.ascontiguousarray(B)
        cpu.row_normal_matrices(self.X, s.weight, s.starts, s.centred, self.weights, B, *work)

    def curvature(self, t: int) -> np.ndarray:
        """See Objective."""
        s = self.statistics
        rows = slice(s.starts[t], s.starts[t + 1])
        X, w, weight = s.X[rows], s.weight[rows], self.weights[t]
        if s.centred:
            X = X - weight * (w @ X)
        return weight * (X.T @ (w[:, None] * X))

    def batch_residuals(
        self, B: np.ndarray, W: np.ndarray, size: int, rng: np.random.Generator
    ) -> np.ndarray:
        """R(BW) (d, T) estimated from ``size`` rows of each task, drawn with replacement.

        A row is drawn as often as its weight says. Rows are less their task's mean, which stands
        for the intercept.
        """
        s, T = self.statistics, self.n_tasks
        upper = np.cumsum(s.weight)
        before = np.append(0.0, upper)[s.starts[:-1]]
        draws = before[:, None] + rng.random((T, size)) * self.n[:, None]
        rows = np.searchsorted(upper, draws.ravel(), side="right").reshape(T, size)
        rows = np.clip(rows, s.starts[:-1, None], s.starts[1:, None] - 1)
        X = self.X[rows]  # (T, size, d)
        errors = np.einsum("tbd,td->tb", X, W.T @ B.T) - self.response[:, None] * s.y[rows]
        return np.einsum("tbd,tb->dt", X, errors / size)

    def reweighted(self, factor: np.ndarray) -> RowObjective:
        """The same tasks with each row's weight times ``factor`` (rows,), and the same r_t."""
        other = copy(self)
        super(RowObjective, other).__init__(self.statistics.reweighted(factor), None)
        other.response = self.response
        return other
