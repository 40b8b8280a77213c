"""Sufficient statistics of the rows of each task: sums that merge and subtract.

For each task: its size n_t (sum of weights), feature and target means, the Gram G of the centred
rows, an anchor a, g = X'(y - Xa) and q = |y - Xa|^2, so that

    sum of squares at v  =  q - 2 (v - a)'g + (v - a)'G (v - a).

The anchor is near the task's least squares. Without it (X'y and y'y) the loss is a small
difference of large numbers and loses all its digits once the noise is small.
Without intercepts the means are held at zero and the same formulas hold.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.rows import Block, TaskRows
from sharedspan.kernels import accumulate, cpu, grams
from sharedspan.kernels.threads import one_blas_thread, over_tasks

if TYPE_CHECKING:
    from sharedspan.statistics.task_statistics import Units

Watch = Callable[[Block], None]
Arrays = tuple[np.ndarray, ...]

ROW_COST = 16.0  # operations that a row takes apart from its products
FADED = 1e-100  # rows; tasks of smaller weight count as forgotten


class TaskMeans:
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

    def __init__(self, n_tasks: int, n_features: int, centred: bool) -> None:
        self.centred = centred
        self.n = np.zeros(n_tasks)
        self.mean = np.zeros((n_tasks, n_features))
        self.y_mean = np.zeros(n_tasks)
        self.packed = _filled_zeros(n_tasks, cpu.packed_size(n_features))
        self.anchor = _filled_zeros(n_tasks, n_features)
        self.g = _filled_zeros(n_tasks, n_features)
        self.q = np.zeros(n_tasks)

    def update(
        self,
        tasks: TaskRows,
        units: Units,
        P: np.ndarray | None = None,
        sign: float = 1.0,
        watch: Watch | None = None,
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
        watch : callable of Block, optional
            Called with each block of rows in these units, in order; no task is cut.
        """

        def work(first: int, last: int) -> None:
            for block in tasks.blocks(first, last, whole=watch is not None):
                X, y = units.rows(block, P)
                if watch is not None:
                    watch(block)
                accumulate.accumulate(
                    X, y, block.weight, block.starts, block.ids, sign, self.centred,
                    self.n, self.mean, self.y_mean, self.packed, self.anchor, self.g, self.q,
                )  # fmt: skip

        with one_blas_thread():
            cost = tasks.n_rows * (float(self.n_features) ** 2 + ROW_COST)
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
        cpu.unpack(self.packed.sum(axis=0), G)
        return G

    def variances(self) -> np.ndarray:
        """Pooled within-task variance of each feature, (d,)."""
        return np.diag(self.pooled_gram()) / self.n.sum()

    def principal_axes(self, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Variances (r,) and orthonormal axes (d, r) of the pooled features times ``scale``."""
        return np.linalg.eigh(scale[:, None] * (self.pooled_gram() / self.n.sum()) * scale)

    def transform(self, P: np.ndarray) -> None:
        """Statistics of the features X P, P (d, d'), in place and with anchors of their own."""
        flat = self.packed.reshape(-1)
        size = cpu.packed_size(P.shape[1])
        P = np.ascontiguousarray(P)
        anchor, g = np.empty((2, self.n_tasks, P.shape[1]))

        work = partial(
            accumulate.transform_grams, flat, self.anchor, self.g, self.q, self.n, P, anchor, g
        )
        with one_blas_thread():
            if size == self.packed.shape[1]:
                over_tasks(work, self.n_tasks, self.n_tasks * float(len(P)) ** 3)
            else:  # results move towards the front, so tasks are transformed in order
                work(0, self.n_tasks)
        self.packed = flat[: self.n_tasks * size].reshape(self.n_tasks, size)
        self.anchor, self.g, self.mean = anchor, g, self.mean @ P


SUMS = ("n", "mean", "y_mean", "packed", "anchor", "g", "q")  # of GramStatistics, a row per task


def _filled_zeros(rows: int, columns: int) -> np.ndarray:
    """Zeros, (rows, columns), not by np.zeros: its memory is on small pages, which are slower."""
    out = np.empty((rows, columns))
    out.fill(0.0)
    return out
