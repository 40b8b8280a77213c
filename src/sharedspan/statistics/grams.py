"""Sufficient statistics of the rows of each task: sums that merge and subtract.

For each task: its size n_t (sum of weights), feature and target means, the Gram G of the centred
rows, an anchor a, g = X'(y - Xa) and q = |y - Xa|^2, so that

    sum of squares at v  =  q - 2 (v - a)'g + (v - a)'G (v - a).

The anchor is near the task's least squares. Without it (X'y and y'y) the loss is a small
difference of large numbers and loses all its digits once the noise is small.
Without intercepts the means are held at zero and the same formulas hold.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.rows import RowBlock, TaskRows
from sharedspan.kernels import accumulate, cpu, grams
from sharedspan.kernels.threads import one_blas_thread, over_tasks
from sharedspan.kernels.transform import transform_grams

if TYPE_CHECKING:
    from sharedspan.statistics.task_statistics import Units

Watch = Callable[[RowBlock], None]
Arrays = tuple[np.ndarray, ...]

ROW_COST = 16.0  # operations that a row takes apart from its products
# A feature whose spread within tasks is below this many rounding errors of its level is constant.
CONSTANT = 64 * np.finfo(float).eps

BLOCKS = 64  # of tasks, over which sums are made
TASKS_PER_BLOCK = 16
FADED = 1e-100  # rows; tasks of smaller weight count as forgotten


class TaskMeans(ABC):
    """Sizes and means of each task, common to both kinds of statistics."""

    n: np.ndarray  # (T,) sums of weights
    mean: np.ndarray  # (T, d)
    y_mean: np.ndarray  # (T,)

    @property
    def n_tasks(self) -> int:
        return len(self.n)

    @property
    def n_features(self) -> int:
        return int(self.mean.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes in the arrays."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))

    def intercepts(self, V: np.ndarray) -> np.ndarray:
        """Intercepts (T,) for the coefficients V (d, T): ybar_t - xbar_t'v_t."""
        return self.y_mean - np.einsum("td,dt->t", self.mean, V)

    def factor_intercepts(self, B: np.ndarray, W: np.ndarray) -> np.ndarray:
        """Intercepts (T,) for the coefficients BW, B (d, k) and W (k, T)."""
        return self.y_mean - np.einsum("tk,kt->t", self.mean @ B, W)

    def squared_levels(self) -> np.ndarray:
        """Mean square of the tasks' means of each feature, (d,)."""
        return np.einsum("t,tj,tj->j", self.n, self.mean, self.mean) / self.n.sum()

    def largest_levels(self) -> np.ndarray:
        """Largest absolute mean of each feature, (d,)."""
        return np.maximum(self.mean.max(axis=0), -self.mean.min(axis=0))

    def inverse_deviations(self, variances: np.ndarray) -> np.ndarray:
        """One over each feature's deviation within tasks, (d,); zero for constant features.

        ``variances`` (d,) are pooled within tasks.
        """
        varies = variances > CONSTANT**2 * (variances + self.squared_levels())
        return np.divide(1.0, np.sqrt(variances), out=np.zeros_like(variances), where=varies)

    def principal_axes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The scale (d,) that standardises the features, and their principal axes.

        Variances (r,) and orthonormal axes (d, r) are those of the pooled standardised features.
        """
        covariance = self.pooled_gram() / self.n.sum()
        scale = self.inverse_deviations(np.diag(covariance))
        return scale, *np.linalg.eigh(scale[:, None] * covariance * scale)

    @abstractmethod
    def pooled_gram(self) -> np.ndarray:
        """Sum of all tasks' Grams, (d, d)."""

    def map_shards(
        self, function: Callable[..., tuple[Arrays, Arrays]], *arrays: np.ndarray
    ) -> tuple[Arrays, Arrays]:
        """``function(statistics, *arrays)``, shard by shard if the tasks are on a cluster.

        Parameters
        ----------
        function : callable
            Function of statistics and of arrays with a row for each of their tasks. Returns two
            tuples: arrays to sum over shards, and arrays with a row for each task.
        *arrays : ndarray of shape (T, ...)
        """
        return function(self, *arrays)

    def gather_local(self) -> Any:
        """These statistics in this process's memory."""
        return self

    @property
    def outlives_fit(self) -> bool:
        """Whether a fitted model may hold these statistics."""
        return True


class GramStatistics(TaskMeans):
    """Sums per task, a commutative monoid under ``merge``; see the docstring of this module.

    Attributes
    ----------
    n : ndarray of shape (T,)
    mean, anchor, g : ndarray of shape (T, d)
    y_mean, q : ndarray of shape (T,)
    packed : ndarray of shape (T, d (d + 1) / 2)
        Upper triangles of the Grams.
    centred : bool
        Whether tasks have intercepts.
    """

    stored_axes = "centred n:T mean:Td y_mean:T packed:Tp anchor:Td g:Td q:T"

    def __init__(
        self, n_tasks: int, n_features: int, centred: bool, new: Callable[..., Any] | None = None
    ) -> None:
        """Statistics without rows, in arrays from ``new`` (shape), by default of zeros."""
        new = _filled_zeros if new is None else new
        self.centred = centred
        self.n = np.zeros(n_tasks)
        self.mean = new((n_tasks, n_features))
        self.y_mean = new((n_tasks,))
        self.packed = new((n_tasks, cpu.packed_size(n_features)))
        self.anchor = new((n_tasks, n_features))
        self.g = new((n_tasks, n_features))
        self.q = new((n_tasks,))

    @classmethod
    def from_rows(
        cls, tasks: TaskRows, units: Units, centred: bool, watch: Watch | None = None
    ) -> GramStatistics:
        """Statistics of rows; see ``update``."""
        fresh = bool(np.diff(tasks.starts).all())  # every task has rows
        statistics = cls(tasks.n_tasks, tasks.n_features, centred, np.empty if fresh else None)
        return statistics.update(tasks, units, watch=watch, fresh=fresh)

    def update(
        self,
        tasks: TaskRows,
        units: Units,
        P: np.ndarray | None = None,
        sign: float = 1.0,
        watch: Watch | None = None,
        fresh: bool = False,
    ) -> GramStatistics:
        """Add rows (sign = 1) or take rows away (sign = -1), in place.

        Parameters
        ----------
        tasks : TaskRows
            Tasks in the order of these statistics.
        units : Units
        P : ndarray of shape (d_rows, d), optional
            Map of the features, if these statistics are of mapped features.
        sign : float
        watch : callable of RowBlock, optional
            Called with each block of rows in these units, in order; no task is cut.
        fresh : bool
            Whether the arrays other than n are not initialised; every task must have rows then.
        """
        into = (
            sign, fresh, self.centred, self.n, self.mean, self.y_mean, self.packed,
            self.anchor, self.g, self.q,
        )  # fmt: skip
        d = self.n_features
        work: Callable[[int, int], None]
        if P is None and watch is None and isinstance(tasks.X, np.ndarray):
            where = flat_view(tasks.X)
            y = np.ascontiguousarray(tasks.y, dtype=float)
            weight = NONE if tasks.weight is None else np.ascontiguousarray(tasks.weight, float)
            order = NO_INDEX if tasks.order is None else tasks.order
            scales = units.origin * units.scale, units.scale, units.y_scale
            work = partial(
                accumulate.accumulate,
                *where, y, weight, order, tasks.starts, NO_INDEX, tasks.block_rows, *scales, *into,
            )  # fmt: skip
        else:
            plain = np.zeros(d), np.ones(d), 1.0  # blocks are in these units already

            def add_blocks(first: int, last: int) -> None:
                for block in tasks.blocks(first, last, whole=watch is not None):
                    X, y = units.rows(block, P)
                    if watch is not None:
                        watch(block)
                    X = np.ascontiguousarray(X)
                    accumulate.accumulate(
                        X.reshape(-1), d, 1, y, block.weight, NO_INDEX, block.starts, block.ids,
                        len(X), *plain, *into, 0, len(block.ids),
                    )  # fmt: skip

            work = add_blocks

        with one_blas_thread():
            cost = tasks.n_rows * (float(d) ** 2 + ROW_COST)
            over_tasks(work, self.n_tasks, cost if watch is None else 0.0)
        return self

    def merge(self, other: GramStatistics, ids: Any = slice(None)) -> GramStatistics:
        """Add another set of sums, in place: its tasks are tasks ``ids`` of ours, by default all.

        Anchors may differ: sums in ``other`` are moved to our anchors first. A task without rows so
        far takes over the anchor of the other.
        """
        n, mean = self.n[ids], self.mean[ids]
        unseen = (n == 0)[:, None]
        anchor = np.where(unseen, other.anchor, self.anchor[ids])
        g, q = other.at_anchor(anchor)
        total = n + other.n
        share = np.divide(other.n, total, out=np.zeros_like(total), where=total > 0)
        factor = n * share
        dx = other.mean - mean
        dy = other.y_mean - self.y_mean[ids]
        dr = dy - np.einsum("td,td->t", dx, anchor)
        i, j = np.triu_indices(self.n_features)
        self.packed[ids] += other.packed + factor[:, None] * dx[:, i] * dx[:, j]
        self.anchor[ids] = anchor
        self.g[ids] += g + (factor * dr)[:, None] * dx
        self.q[ids] += q + factor * dr**2
        self.mean[ids] += share[:, None] * dx
        self.y_mean[ids] += share * dy
        self.n[ids] = total
        return self

    def placed(self, ids: np.ndarray, n_tasks: int) -> GramStatistics:
        """A copy with our tasks as tasks ``ids`` of ``n_tasks``; the others are empty."""
        other = GramStatistics(n_tasks, self.n_features, self.centred)
        for name in SUMS:
            getattr(other, name)[ids] = getattr(self, name)
        return other

    def weighted(self, factor: float) -> GramStatistics:
        """Multiply the weights of all rows by ``factor``, in place.

        Tasks of total weight below ``FADED`` become empty: such small weights have no digits left.
        """
        gone = self.n * factor < FADED
        for name in ("n", "packed", "g", "q"):
            values = getattr(self, name) * factor
            values[gone] = 0.0
            setattr(self, name, values)
        return self

    def rescaled(self, old: Units, new: Units) -> GramStatistics:
        """Convert the sums to other units, in place."""
        x, y = new.scale / old.scale, new.y_scale / old.y_scale
        i, j = np.triu_indices(self.n_features)
        self.packed = self.packed * (x[i] * x[j])
        self.anchor, self.g, self.q = self.anchor * (y / x), self.g * (x * y), self.q * y**2
        if self.centred:
            self.mean = self.mean * x + (old.origin - new.origin) * new.scale
            self.y_mean = self.y_mean * y
        return self

    def at_anchor(self, anchor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(g, q) after moving to another anchor (T, d): g is minus the residual there."""
        anchor = np.ascontiguousarray(anchor)
        R, half_q, one = np.empty(anchor.shape), np.empty(self.n_tasks), np.ones(self.n_tasks)

        work = partial(
            grams.gram_residuals,
            self.packed, self.anchor, self.g, self.q, one, one, anchor, R, half_q,
        )  # fmt: skip
        over_tasks(work, self.n_tasks, 2.0 * self.packed.size)
        return -R, np.maximum(2 * half_q, 0.0)

    def take(self, ids: np.ndarray) -> GramStatistics:
        """A copy of some tasks' sums."""
        other = copy(self)
        for name in SUMS:
            setattr(other, name, getattr(self, name)[ids])
        return other

    def gram(self, t: int) -> np.ndarray:
        """The Gram of task t, (d, d)."""
        G = np.empty((self.n_features, self.n_features))
        cpu.unpack(self.packed[t], G)
        return G

    def pooled_gram(self) -> np.ndarray:
        """Sum of all tasks' Grams, (d, d)."""
        G = np.empty((self.n_features, self.n_features))
        bounds = task_blocks(self.n_tasks)
        sums = np.empty((len(bounds) - 1, self.packed.shape[1]))
        work = partial(cpu.sum_blocks, self.packed, bounds, sums)
        over_tasks(work, len(sums), float(self.packed.size))
        cpu.unpack(sums.sum(axis=0), G)
        return G

    def variances(self) -> np.ndarray:
        """Pooled within-task variance of each feature, (d,)."""
        return np.diag(self.pooled_gram()) / self.n.sum()

    def transform(self, P: np.ndarray) -> None:
        """Statistics of the features X P, P (d, d'), in place and with anchors of their own."""
        vars(self).update(vars(self.transformed(P, self.packed)))

    def transformed(self, P: np.ndarray, out: np.ndarray | None = None) -> GramStatistics:
        """Statistics of the features X P, P (d, d'), with anchors of their own.

        ``out``, if given, is an array of the packed Grams' size that is written to.
        """
        T, size = self.n_tasks, cpu.packed_size(P.shape[1])
        other = copy(self)
        flat = np.empty(T * size) if out is None else out.reshape(-1)
        other.anchor, other.g = np.empty((2, T, P.shape[1]))
        other.q = np.empty(T)
        work = partial(
            transform_grams,
            self.packed.reshape(-1), self.anchor, self.g, self.q, self.n,
            np.ascontiguousarray(P), left_inverse(P), flat, other.anchor, other.g, other.q,
        )  # fmt: skip
        if out is not None and size < self.packed.shape[1]:
            work(0, T)  # Grams move towards the front, so tasks are transformed in order
        else:
            over_tasks(work, T, T * float(len(P)) ** 3)
        other.packed = flat[: T * size].reshape(T, size)
        other.mean = self.mean @ P
        return other


SUMS = ("n", "mean", "y_mean", "packed", "anchor", "g", "q")  # of GramStatistics, a row per task


# No weights and no order of rows, for compiled loops.
NONE, NO_INDEX = np.empty(0), np.empty(0, dtype=np.int64)


def flat_view(X: np.ndarray) -> tuple[np.ndarray, int, int]:
    """The memory of X (rows, d) as a flat array, and the distances of its rows and columns there.

    Only memory in descending order is copied. The view is of one type for every X, also if it is
    read-only or not contiguous, so that loops over it are compiled once.
    """
    if not X.flags.aligned or any(step < 0 or step % X.itemsize for step in X.strides):
        X = np.ascontiguousarray(X)
    row, column = (step // X.itemsize for step in X.strides)
    count = 1 + (X.shape[0] - 1) * row + (X.shape[1] - 1) * column
    memory = (ctypes.c_char * (count * X.itemsize)).from_address(X.ctypes.data)
    memory.owner = X  # as long as the view lives, so does X
    return np.frombuffer(memory, dtype=X.dtype), row, column


def left_inverse(P: np.ndarray) -> np.ndarray:
    """A matrix (d', d) whose product with P (d, d') is the identity, for any scale of P's rows."""
    scale = np.abs(P).max(axis=1, keepdims=True)
    scale = np.where(scale > 0, scale, 1.0)
    return np.linalg.pinv(P / scale) / scale.T


def task_blocks(n_tasks: int) -> np.ndarray:
    """Bounds of the blocks of tasks over which sums are made, (blocks + 1,).

    They depend on the number of tasks alone, so sums do not depend on the number of threads.
    """
    blocks = max(min(BLOCKS, -(-n_tasks // TASKS_PER_BLOCK)), 1)
    return n_tasks * np.arange(blocks + 1) // blocks


def _filled_zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Zeros, not by np.zeros: its memory is on small pages, which are slower."""
    out = np.empty(shape)
    out.fill(0.0)
    return out
