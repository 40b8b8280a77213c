"""The objective in the memory of this process, from Grams or from rows.

Only rows allow batches and splits of them, which some solvers need.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from sharedspan.kernels import cpu, grams
from sharedspan.kernels.threads import over_tasks
from sharedspan.objective.base import Objective
from sharedspan.statistics.grams import GramStatistics, task_blocks
from sharedspan.statistics.rows import RowStatistics

# "auto" takes a GPU from this many bytes of packed Grams on: importing PyTorch and starting CUDA
# takes seconds, in which the CPU makes hundreds of passes over smaller Grams.
WORTHWHILE = 2**28


class BlockObjective(Objective):
    """An objective whose pass runs in this process, over blocks of tasks.

    A subclass names the compiled loops of its pass and the arrays that they read.
    """

    residual_kernel: Callable[..., None]  # of the tasks first <= t < last
    gradient_kernel: Callable[..., None]  # of blocks of tasks; see ``kernels.grams.gram_gradients``
    n_read: float  # numbers that a pass reads

    @abstractmethod
    def kernel_arguments(self) -> tuple[Any, ...]:
        """Data, responses and weights: the first arguments of both kernels."""

    def residuals(
        self, V: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See Objective."""
        rows = np.ascontiguousarray(V.T, dtype=np.float64)
        R, loss = np.empty(rows.shape) if out is None else out, np.empty(self.n_tasks)
        work = partial(self.residual_kernel, *self.kernel_arguments(), rows, R, loss)
        over_tasks(work, self.n_tasks, 2.0 * self.n_read)
        return R.T, loss

    def gradients(self, B: np.ndarray, W: Any) -> tuple[float, np.ndarray, Any]:
        """See Objective."""
        return self._fused(B, W, solve=False)

    def profile(self, B: np.ndarray, W: Any) -> tuple[float, np.ndarray, Any]:
        """See Objective."""
        return self._fused(B, W, solve=True)

    def _fused(
        self, B: np.ndarray, W: np.ndarray, solve: bool
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """The loss, R W' and either B'R or the W of least squares, in one pass."""
        (d, k), T = B.shape, self.n_tasks
        bounds = task_blocks(T)
        blocks = len(bounds) - 1
        B, W = np.ascontiguousarray(B.T, dtype=float), np.ascontiguousarray(W, dtype=float)
        out_W, grad_B, loss = np.empty((k, T)), np.empty((blocks, k, d)), np.empty(blocks)
        arguments = self.kernel_arguments()
        work = partial(self.gradient_kernel, *arguments, B, W, solve, out_W, grad_B, loss, bounds)
        over_tasks(work, blocks, self.n_read * (2.0 * k + 2.0 if solve else 2.0))
        return float(loss.sum()), grad_B.sum(axis=0).T, out_W


class GramObjective(BlockObjective):
    """The objective from the Grams of the tasks."""

    residual_kernel = staticmethod(grams.gram_residuals)
    gradient_kernel = staticmethod(grams.gram_gradients)

    def __init__(
        self, statistics: GramStatistics, noise: np.ndarray | None, dtype: str = "float64"
    ) -> None:
        super().__init__(statistics, noise)
        self.packed = statistics.packed.astype(dtype, copy=False)
        self.n_read = float(self.packed.size)

    def kernel_arguments(self) -> tuple[Any, ...]:
        """See BlockObjective."""
        s = self.statistics
        return self.packed, s.anchor, s.g, s.q, self.response, self.weights

    def normal_matrices(self, B: np.ndarray) -> np.ndarray:
        """See Objective."""
        rows, k = np.ascontiguousarray(B.T), B.shape[1]
        out = np.empty((self.n_tasks, k, k))
        work = partial(grams.gram_normal_matrices, self.packed, self.weights, rows, out)
        over_tasks(work, self.n_tasks, 2.0 * self.n_read * k)
        return out

    def curvature(self, t: int) -> np.ndarray:
        """See Objective."""
        return self.statistics.gram(t) * self.weights[t]


class RowObjective(BlockObjective):
    """The objective from the rows of the tasks.

    Besides the interface it can be split by rows, for the solvers that need that.
    """

    residual_kernel = staticmethod(cpu.row_residuals)
    gradient_kernel = staticmethod(cpu.row_gradients)
    statistics: RowStatistics

    def __init__(
        self, statistics: RowStatistics, noise: np.ndarray | None, dtype: str = "float64"
    ) -> None:
        super().__init__(statistics, noise)
        self.X = statistics.X.astype(dtype, copy=False)
        self.n_read = 2.0 * self.X.size

    def kernel_arguments(self) -> tuple[Any, ...]:
        """See BlockObjective."""
        s = self.statistics
        return self.X, s.y, s.weight, s.starts, s.centred, self.response, self.weights

    def normal_matrices(self, B: np.ndarray) -> np.ndarray:
        """See Objective."""
        s, B, k = self.statistics, np.ascontiguousarray(B), B.shape[1]
        out = np.empty((self.n_tasks, k, k))
        arguments = self.X, s.weight, s.starts, s.centred, self.weights, B, out
        work = partial(cpu.row_normal_matrices, *arguments)
        over_tasks(work, self.n_tasks, 2.0 * self.n_read * k)
        return out

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

        Rows are drawn in proportion to their weights, and are centred at their task's mean in place
        of an intercept.
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


def build_objective(
    statistics: Any,
    noise: np.ndarray | None = None,
    dtype: str = "float64",
    backend: Any = "numpy",
) -> Objective:
    """The objective of statistics, on the CPU, on a backend or on their cluster.

    Parameters
    ----------
    statistics : GramStatistics, RowStatistics or ClusterStatistics
    noise : ndarray of shape (T,), optional
        Noise variances of the tasks, up to a common factor.
    dtype : {"float64", "float32"}
        Precision in which the passes read the statistics.
    backend : {"numpy", "auto", "torch"} or TorchBackend
        The hardware for the passes over Grams.
    """
    if isinstance(statistics, RowStatistics):
        return RowObjective(statistics, noise, dtype)
    if not isinstance(statistics, GramStatistics):
        return statistics.objective(noise, dtype)  # statistics on a cluster have their own
    small = isinstance(backend, str) and backend == "auto" and statistics.packed.nbytes < WORTHWHILE
    if backend != "numpy" and not small:
        from sharedspan.objective.backends import TorchObjective, choose_backend

        chosen = choose_backend(backend)
        if chosen is not None:
            return TorchObjective(statistics, noise, dtype, chosen)
    return GramObjective(statistics, noise, dtype)
