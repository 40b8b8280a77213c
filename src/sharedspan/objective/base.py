"""The seam between data and solvers: the loss, its residual matrix, least squares in a span.

    loss(V)  =  sum_t  weight_t / 2 |r_t y_t - X_t v_t|^2,     V = BW,  v_t = B w_t
    R(V)     =  [weight_t X_t'(X_t v_t - r_t y_t)]_t           (d x T)
    grad_B   =  R W',     grad_W = B'R

with weight_t = 1 / n_t and r_t the task scale of the canonical form, so that every task's
curvature is near the identity. Everything a solver may ask is here; whether it is answered from
Grams, from rows, on a GPU or on a cluster is not its concern.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sharedspan.kernels import cpu, grams
from sharedspan.kernels.dense import RANK_TOLERANCE
from sharedspan.kernels.threads import over_tasks
from sharedspan.statistics.canonical import task_scale
from sharedspan.statistics.sums import Arrays, GramStatistics, RowStatistics, Statistics

# Sums over tasks are sums over blocks of tasks, the same blocks on any number of threads.
BLOCKS = 64
TASKS_PER_BLOCK = 16


@dataclass(frozen=True)
class Point:
    """A pair of factors with what the data says of it, asked for when first needed."""

    B: np.ndarray  # (d, k)
    W: np.ndarray  # (k, T)
    objective: Objective

    @cached_property
    def _gradients(self) -> tuple[float, np.ndarray, np.ndarray]:
        return self.objective.gradients(self.B, self.W)

    @property
    def loss(self) -> float:
        """loss(BW)."""
        return self._gradients[0]

    @property
    def grad_B(self) -> np.ndarray:
        """R W', (d, k)."""
        return self._gradients[1]

    @property
    def grad_W(self) -> np.ndarray:
        """B'R, (k, T)."""
        return self._gradients[2]

    @cached_property
    def R(self) -> np.ndarray:
        """Residual matrix at V = BW, (d, T): a pass of its own, for solvers that step in V."""
        return self.objective.residuals((self.W.T @ self.B.T).T)[0]

    @cached_property
    def WWt(self) -> np.ndarray:
        """WW', (k, k)."""
        return self.W @ self.W.T

    @property
    def imbalance(self) -> np.ndarray:
        """B'B - WW', (k, k)."""
        return self.B.T @ self.B - self.WWt

    def value(self, balance: float) -> float:
        """Loss + balance |B'B - WW'|_F^2."""
        if balance == 0.0:
            return self.loss
        return self.loss + balance * float(np.sum(self.imbalance**2))

    def norm(self) -> float:
        """|BW|_F without forming BW."""
        return float(np.sqrt(max(np.sum((self.B.T @ self.B) * self.WWt), 0.0)))

    def tangent_gradient(self) -> float:
        """|P_T(R)|_F, the part of R that a rank-k change of V can follow.

        |Q_B'R|^2 + |R Q_W|^2 - |Q_B'R Q_W|^2 with Q_B = B M and Q_W = W'N bases of the columns of
        B and of W', so that sums of size d x k and k x k are all it takes.
        """
        M, N = inverse_root(self.B.T @ self.B), inverse_root(self.WWt)
        left = np.trace(M.T @ (self.grad_W @ self.grad_W.T) @ M)
        right = np.sum((self.grad_B @ N) ** 2)
        both = np.sum((M.T @ (self.B.T @ self.grad_B) @ N) ** 2)
        return float(np.sqrt(max(left + right - both, 0.0)))


def inverse_root(A: np.ndarray) -> np.ndarray:
    """M (k, r) with M'AM = I for a Gram matrix A (k, k) of rank r; null directions are left out."""
    eigenvalues, U = np.linalg.eigh(A)
    kept = eigenvalues > RANK_TOLERANCE * max(eigenvalues[-1], np.finfo(float).tiny)
    return U[:, kept] / np.sqrt(eigenvalues[kept])


class Objective(ABC):
    """What a solver may ask of the data.

    Attributes
    ----------
    n : ndarray of shape (T,)
        Sizes (sums of weights).
    response : ndarray of shape (T,)
        r_t, by which the responses of each task are multiplied.
    """

    n: np.ndarray
    response: np.ndarray
    n_features: int

    @property
    def n_tasks(self) -> int:
        return len(self.n)

    @abstractmethod
    def residuals(
        self, V: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """R(V) (d, T) and each task's loss (T,); ``out`` (T, d), if given, takes R'."""

    @abstractmethod
    def gradients(self, B: np.ndarray, W: Any) -> tuple[float, np.ndarray, Any]:
        """loss(BW), R W' (d, k) and B'R (k, T)."""

    @abstractmethod
    def profile(self, B: np.ndarray, W: Any) -> tuple[float, np.ndarray, Any]:
        """The least loss(BW) over W for this B, its gradient R W' (d, k), and that W (k, T).

        W is where to start from, as in ``solve_W``.
        """

    def moments(self) -> np.ndarray:
        """CC' (d, d), C = [weight_t r_t X_t'y_t]: in a canonical problem C is V* plus noise."""
        C, _ = self.residuals(np.zeros((self.n_features, self.n_tasks)))
        return C @ C.T

    @abstractmethod
    def normal_matrices(self, B: np.ndarray) -> np.ndarray:
        """weight_t B'X_t'X_t B for each task, (T, k, k)."""

    @abstractmethod
    def curvature(self, t: int) -> np.ndarray:
        """weight_t X_t'X_t, the Hessian of one task's loss, (d, d)."""

    @abstractmethod
    def intercepts(self, V: np.ndarray) -> np.ndarray:
        """Intercepts (T,) for coefficients V (d, T) of the responses as given, not times r_t."""

    def evaluate(self, B: np.ndarray, W: np.ndarray) -> Point:
        """The point V = BW, with its residual matrix and loss."""
        return Point(B, W, self)

    def map_shards(
        self, function: Callable[..., tuple[Arrays, Arrays]], *arrays: np.ndarray
    ) -> tuple[Arrays, Arrays]:
        """``function(objective, *arrays)``, part by part; see ``TaskMeans.map_shards``."""
        return function(self, *arrays)

    def to_device(self, W: Any) -> Any:
        """A matrix (k, T) on the host to where W and what has its shape live."""
        return W

    def squares(self, B: np.ndarray, W: np.ndarray) -> np.ndarray:
        """Residual sum of squares of each task, of the responses as given, (T,)."""
        _, losses = self.residuals((W.T @ B.T).T)
        return np.maximum(2 * losses * self.n / self.response**2, 0.0)

    def solve_W(self, B: np.ndarray, W: np.ndarray | None = None) -> np.ndarray:
        """Argmin over W of loss(BW), (k, T), nearest to the given W where it is not unique.

        One Newton step on a quadratic is exact, and taken from a good W it keeps the digits that
        the normal equations from zero would lose.
        """
        if W is None:
            W = np.zeros((B.shape[1], self.n_tasks))
        gradient = self.evaluate(B, W).grad_W
        eigenvalues, U = np.linalg.eigh(self.normal_matrices(B))
        kept = eigenvalues > RANK_TOLERANCE * eigenvalues[:, -1:].clip(min=0.0)
        inverse = np.divide(1.0, eigenvalues, out=np.zeros_like(eigenvalues), where=kept)
        return W - np.einsum("tij,tj,tlj,lt->it", U, inverse, U, gradient, optimize=True)

    @cached_property
    def weights(self) -> np.ndarray:
        """weight_t = 1 / n_t, (T,); zero for a task without rows."""
        return np.divide(1.0, self.n, out=np.zeros(len(self.n)), where=self.n > 0)

    def _columns(self, V: np.ndarray) -> np.ndarray:
        """V as contiguous rows per task, (T, d)."""
        return np.ascontiguousarray(V.T, dtype=np.float64)


class BlockObjective(Objective):
    """An objective whose pass runs here, over blocks of tasks."""

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
        blocks = min(BLOCKS, -(-T // TASKS_PER_BLOCK))
        bounds = T * np.arange(blocks + 1) // blocks
        B, W = np.ascontiguousarray(B.T, dtype=float), np.ascontiguousarray(W, dtype=float)
        out_W, grad_B, loss = np.empty((k, T)), np.empty((blocks, k, d)), np.empty(blocks)

        def work(first: int, last: int) -> None:
            self._block_gradients(B, W, solve, out_W, grad_B, loss, bounds, first, last)

        over_tasks(work, blocks, self._numbers * (2.0 * k + 2.0 if solve else 2.0))
        return float(loss.sum()), grad_B.sum(axis=0).T, out_W

    @property
    @abstractmethod
    def _numbers(self) -> float:
        """Numbers that a pass reads."""

    @abstractmethod
    def _block_gradients(
        self,
        B: np.ndarray,
        W: np.ndarray,
        solve: bool,
        out_W: np.ndarray,
        grad_B: np.ndarray,
        loss: np.ndarray,
        bounds: np.ndarray,
        first: int,
        last: int,
    ) -> None:
        """Blocks first <= i < last of the fused pass; see ``kernels.grams.gram_gradients``."""


class GramObjective(BlockObjective):
    """The objective from per-task sums."""

    def __init__(
        self, statistics: GramStatistics, noise: np.ndarray | None, dtype: str = "float64"
    ) -> None:
        self.statistics = statistics
        self.packed = statistics.packed.astype(dtype, copy=False)
        self.n = statistics.n
        self.n_features = statistics.n_features
        self.response = task_scale(statistics.n, noise)

    def residuals(
        self, V: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See Objective."""
        rows, loss, weights = self._columns(V), np.empty(self.n_tasks), self.weights
        s, R = self.statistics, np.empty(rows.shape) if out is None else out

        def work(first: int, last: int) -> None:
            grams.gram_residuals(
                self.packed, s.anchor, s.g, s.q, self.response, weights, rows, R, loss, first, last
            )

        over_tasks(work, self.n_tasks, 2.0 * self.packed.size)
        return R.T, loss

    @property
    def _numbers(self) -> float:
        return float(self.packed.size)

    def _block_gradients(self, *blocks: Any) -> None:
        s = self.statistics
        grams.gram_gradients(self.packed, s.anchor, s.g, s.q, self.response, self.weights, *blocks)

    def normal_matrices(self, B: np.ndarray) -> np.ndarray:
        """See Objective."""
        k = B.shape[1]
        out, weights = np.empty((self.n_tasks, k, k)), self.weights
        B = np.ascontiguousarray(B.T)

        def work(first: int, last: int) -> None:
            grams.gram_normal_matrices(self.packed, weights, B, out, first, last)

        over_tasks(work, self.n_tasks, 2.0 * self.packed.size * k)
        return out

    def curvature(self, t: int) -> np.ndarray:
        """See Objective."""
        return self.statistics.gram(t) * self.weights[t]

    def intercepts(self, V: np.ndarray) -> np.ndarray:
        """See Objective."""
        return self.statistics.intercepts(V)


class RowObjective(BlockObjective):
    """The objective from rows; ``mask`` (rows,) leaves some of them out.

    Besides the seam it can be split by rows, for the solvers that need that.
    """

    def __init__(
        self,
        statistics: RowStatistics,
        noise: np.ndarray | None,
        dtype: str = "float64",
        mask: np.ndarray | None = None,
    ) -> None:
        self.statistics = statistics
        self.X = statistics.X.astype(dtype, copy=False)
        self.weight = statistics.weight if mask is None else statistics.weight * mask
        self.n = statistics.n if mask is None else _segment_sums(self.weight, statistics.starts)
        self.n_features = statistics.n_features
        self.response = task_scale(self.n, noise)

    def residuals(
        self, V: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See Objective."""
        rows, loss, weights = self._columns(V), np.empty(self.n_tasks), self.weights
        s, R = self.statistics, np.empty(rows.shape) if out is None else out

        def work(first: int, last: int) -> None:
            cpu.row_residuals(
                self.X, s.y, self.weight, s.starts, s.centred, self.response, weights,
                rows, R, loss, first, last,
            )  # fmt: skip

        over_tasks(work, self.n_tasks, 4.0 * self.X.size)
        return R.T, loss

    @property
    def _numbers(self) -> float:
        return 2.0 * self.X.size

    def _block_gradients(self, *blocks: Any) -> None:
        s = self.statistics
        cpu.row_gradients(
            self.X, s.y, self.weight, s.starts, s.centred, self.response, self.weights, *blocks
        )

    def batch_residuals(
        self, B: np.ndarray, W: np.ndarray, size: int, rng: np.random.Generator
    ) -> np.ndarray:
        """R(BW) (d, T) estimated from ``size`` rows of each task, drawn with replacement.

        A row is drawn as often as its weight says. Rows are less their task's mean, which stands
        for the intercept.
        """
        s, T = self.statistics, self.n_tasks
        upper = np.cumsum(self.weight)
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
        other.__dict__.pop("weights", None)
        other.weight = self.weight * factor
        other.n = _segment_sums(other.weight, self.statistics.starts)
        return other

    def normal_matrices(self, B: np.ndarray) -> np.ndarray:
        """See Objective."""
        k = B.shape[1]
        out, B, weights = np.empty((self.n_tasks, k, k)), np.ascontiguousarray(B), self.weights
        s = self.statistics

        def work(first: int, last: int) -> None:
            cpu.row_normal_matrices(
                self.X, self.weight, s.starts, s.centred, weights, B, out, first, last
            )

        over_tasks(work, self.n_tasks, 2.0 * self.X.size * k)
        return out

    def curvature(self, t: int) -> np.ndarray:
        """See Objective."""
        s = self.statistics
        rows = slice(s.starts[t], s.starts[t + 1])
        X, w, weight = s.X[rows], self.weight[rows], self.weights[t]
        if s.centred:
            X = X - weight * (w @ X)
        return weight * (X.T @ (w[:, None] * X))

    def intercepts(self, V: np.ndarray) -> np.ndarray:
        """See Objective."""
        s = self.statistics
        if not s.centred:
            return np.zeros(self.n_tasks)
        errors = s.y - np.concatenate(
            [s.X[s.starts[t] : s.starts[t + 1]] @ V[:, t] for t in range(self.n_tasks)]
        )
        shift = _segment_sums(self.weight * errors, s.starts) * self.weights
        return s.intercepts(V) + shift


def _segment_sums(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return np.bincount(owner, values, minlength=len(starts) - 1)


def build_objective(
    statistics: Statistics, noise: np.ndarray | None = None, dtype: str = "float64"
) -> Objective:
    """The objective that goes with these statistics."""
    if isinstance(statistics, GramStatistics):
        return GramObjective(statistics, noise, dtype)
    if isinstance(statistics, RowStatistics):
        return RowObjective(statistics, noise, dtype)
    return statistics.objective(noise, dtype)  # they lie elsewhere and bring their own
