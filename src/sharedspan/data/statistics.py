"""What a fit keeps of the rows: per-task sums that merge, or the rows where these are smaller.

For each task: its size n_t (sum of weights), feature and target means, the Gram G of the centred
rows, an anchor a, g = X'(y - Xa) and q = |y - Xa|^2, so that

    sum of squares at v  =  q - 2 (v - a)'g + (v - a)'G (v - a).

The anchor is near the task's least squares. Without it (X'y and y'y) the loss is a small
difference of large numbers and loses all its digits once the noise is small.
Without intercepts the means are held at zero and the same formulas hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sharedspan.data.tasks import Block, Tasks
from sharedspan.engine.local import one_blas_thread, over_tasks
from sharedspan.kernels import cpu

# Raw rows are the cheaper statistics below this many rows per feature (`benchmarks/crossover.py`).
ROWS_PER_FEATURE = 0.5

# Numbers whose squares and sums are safe in double precision need no rescaling.
SAFE = 2.0**128


@dataclass(frozen=True)
class Units:
    """Rows as the statistics see them: (x - origin) * scale, y * y_scale.

    Scales are powers of two, so they round nothing, and are one unless squares might overflow.
    The origin takes a common large level off the features; it is zero without intercepts.
    """

    origin: np.ndarray  # (d,)
    scale: np.ndarray  # (d,)
    y_scale: float

    @classmethod
    def of(cls, tasks: Tasks, centred: bool, common_scale: bool = False) -> Units:
        """Units that suit the rows; ``common_scale`` keeps the features' proportions."""
        low, high, y_reach = _extremes(tasks)
        origin = _typical(tasks) if centred else np.zeros_like(low)
        with np.errstate(over="ignore"):
            reach = np.maximum(high - origin, origin - low)
        if common_scale:
            reach = np.full_like(reach, reach.max())
        return cls(origin, _power_of_two(reach), float(_power_of_two(np.array(y_reach))))

    def rows(self, block: Block, P: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """The block's features and targets in these units, features mapped by P if given."""
        X = block.X
        X *= self.scale
        X -= self.origin * self.scale
        block.y[...] *= self.y_scale
        return (X if P is None else X @ P), block.y


def _extremes(tasks: Tasks) -> tuple[np.ndarray, np.ndarray, float]:
    """Least and largest value of each feature, (d,), and the largest |y|, over rows that count."""
    if tasks.n_rows == len(tasks.X):
        low, high = tasks.X.min(axis=0), tasks.X.max(axis=0)
        y_reach = max(tasks.y.max(), -tasks.y.min())
    else:
        ends = [(b.X.min(axis=0), b.X.max(axis=0), np.abs(b.y).max()) for b in tasks.blocks()]
        low = np.min([low for low, _, _ in ends], axis=0)
        high = np.max([high for _, high, _ in ends], axis=0)
        y_reach = max(reach for _, _, reach in ends)
    return low.astype(float), high.astype(float), float(y_reach)


def _typical(tasks: Tasks, sample: int = 1000) -> np.ndarray:
    """Median of each feature over some rows, (d,): near the bulk, whatever the outliers."""
    positions = np.linspace(0, tasks.n_rows - 1, min(tasks.n_rows, sample)).astype(int)
    rows = positions if tasks.order is None else tasks.order[positions]
    return np.quantile(tasks.X[rows].astype(float), 0.5, axis=0, method="lower")


def _power_of_two(reach: np.ndarray) -> np.ndarray:
    """1 where reach is safe, otherwise the power of two that brings it near 1."""
    _, exponent = np.frexp(np.minimum(reach, np.finfo(float).max))
    safe = (reach == 0) | ((reach < SAFE) & (reach > 1 / SAFE))
    return np.where(safe, 1.0, np.ldexp(1.0, np.clip(-exponent, -1000, 1000)))


class TaskMeans:
    """What both kinds of statistics know of the level of each task."""

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
        """Bytes held."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))

    def intercepts(self, V: np.ndarray) -> np.ndarray:
        """Intercepts (T,) that go with the coefficients V (d, T): ybar_t - xbar_t'v_t."""
        return self.y_mean - np.einsum("td,dt->t", self.mean, V)


class GramStatistics(TaskMeans):
    """Sums per task, a commutative monoid under ``merge``; see the head of this file.

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

    def __init__(self, n_tasks: int, n_features: int, centred: bool) -> None:
        self.centred = centred
        self.n = np.zeros(n_tasks)
        self.mean = np.zeros((n_tasks, n_features))
        self.y_mean = np.zeros(n_tasks)
        self.packed = np.zeros((n_tasks, cpu.packed_size(n_features)))
        self.anchor = np.zeros((n_tasks, n_features))
        self.g = np.zeros((n_tasks, n_features))
        self.q = np.zeros(n_tasks)

    def update(
        self, tasks: Tasks, units: Units, P: np.ndarray | None = None, sign: float = 1.0
    ) -> GramStatistics:
        """Add rows (sign = 1) or take rows away (sign = -1), in place.

        Parameters
        ----------
        tasks : Tasks
            Tasks in the order of these statistics.
        units : Units
        P : ndarray of shape (d_rows, d), optional
            Map of the features, where these statistics hold mapped features.
        sign : float
        """

        def work(first: int, last: int) -> None:
            for block in tasks.blocks(first, last):
                X, y = units.rows(block, P)
                cpu.accumulate(
                    X, y, block.weight, block.starts, block.ids, sign, self.centred,
                    self.n, self.mean, self.y_mean, self.packed, self.anchor, self.g, self.q,
                )  # fmt: skip

        with one_blas_thread():
            over_tasks(work, self.n_tasks, tasks.n_rows * float(self.n_features) ** 2)
        return self

    def merge(self, other: GramStatistics) -> GramStatistics:
        """Add another set of sums over the same tasks, in place.

        Anchors may differ: those of ``other`` are moved to ours first. A task that we have not
        seen yet takes over the other's anchor.
        """
        unseen = (self.n == 0)[:, None]
        self.anchor = np.where(unseen, other.anchor, self.anchor)
        g, q = other.at_anchor(self.anchor)
        total = self.n + other.n
        share = np.divide(other.n, total, out=np.zeros_like(total), where=total > 0)
        factor = self.n * share
        dx = other.mean - self.mean
        dy = other.y_mean - self.y_mean
        dr = dy - np.einsum("td,td->t", dx, self.anchor)
        i, j = np.triu_indices(self.n_features)
        self.packed += other.packed + factor[:, None] * dx[:, i] * dx[:, j]
        self.g += g + (factor * dr)[:, None] * dx
        self.q += q + factor * dr**2
        self.mean += share[:, None] * dx
        self.y_mean += share * dy
        self.n = total
        return self

    def at_anchor(self, anchor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(g, q) after moving to another anchor (T, d): g is minus the residual there."""
        R, half_q, one = np.array(anchor), np.empty(self.n_tasks), np.ones(self.n_tasks)

        def work(first: int, last: int) -> None:
            cpu.gram_residuals(
                self.packed, self.anchor, self.g, self.q, one, one, R, half_q, first, last
            )

        over_tasks(work, self.n_tasks, 2.0 * self.packed.size)
        return -R, np.maximum(2 * half_q, 0.0)

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

        def work(first: int, last: int) -> None:
            cpu.transform(flat, self.anchor, self.g, self.q, self.n, P, anchor, g, first, last)

        with one_blas_thread():
            if size == self.packed.shape[1]:
                over_tasks(work, self.n_tasks, self.n_tasks * float(len(P)) ** 3)
            else:  # results move towards the front, so tasks must go one after the other
                work(0, self.n_tasks)
        self.packed = flat[: self.n_tasks * size].reshape(self.n_tasks, size)
        self.anchor, self.g, self.mean = anchor, g, self.mean @ P


class RowStatistics(TaskMeans):
    """The rows themselves, for tasks with few rows; same interface, folds by masks.

    Attributes
    ----------
    X : ndarray of shape (rows, d)
        Rows task by task, each less its task's mean if ``centred``.
    y, weight : ndarray of shape (rows,)
    starts : ndarray of shape (T + 1,)
    n, mean, y_mean, centred
        As in GramStatistics.
    """

    def __init__(self, tasks: Tasks, units: Units, centred: bool) -> None:
        self.centred = centred
        self.starts = tasks.starts
        self.X = np.empty((tasks.n_rows, tasks.n_features))
        self.y = np.empty(tasks.n_rows)
        self.weight = np.empty(tasks.n_rows)
        for block in tasks.blocks():
            self.X[block.positions], self.y[block.positions] = units.rows(block, None)
            self.weight[block.positions] = block.weight
        self.n = tasks.sizes()
        self.mean = np.zeros((tasks.n_tasks, tasks.n_features))
        self.y_mean = np.zeros(tasks.n_tasks)
        if centred:
            self._centre()

    def _centre(self) -> None:
        for t in range(self.n_tasks):
            rows = slice(self.starts[t], self.starts[t + 1])
            self.mean[t] = self.weight[rows] @ self.X[rows] / self.n[t]
            self.y_mean[t] = self.weight[rows] @ self.y[rows] / self.n[t]
            self.X[rows] -= self.mean[t]
            self.y[rows] -= self.y_mean[t]

    def variances(self) -> np.ndarray:
        """Pooled within-task variance of each feature, (d,)."""
        return self._sum(lambda X, w: w @ X**2) / self.n.sum()

    def principal_axes(self, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Variances (r,) and orthonormal axes (d, r) of the pooled features times ``scale``.

        With fewer rows than features they come from the rows' singular values.
        """
        if len(self.X) < self.n_features:
            root = np.sqrt(self.weight / self.n.sum())
            _, s, axes = np.linalg.svd(root[:, None] * self.X * scale, full_matrices=False)
            return s**2, axes.T
        G = self._sum(lambda X, w: X.T @ (w[:, None] * X)) / self.n.sum()
        return np.linalg.eigh(scale[:, None] * G * scale)

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


Statistics = GramStatistics | RowStatistics


def collect(tasks: Tasks, units: Units, centred: bool, kind: str = "auto") -> Statistics:
    """One pass over the rows.

    Parameters
    ----------
    tasks : Tasks
    units : Units
    centred : bool
        Whether tasks have intercepts.
    kind : {"auto", "gram", "rows"}
        "auto" takes whichever makes the pass R(V) cheaper.
    """
    if kind == "auto":
        # Sums of weights, not rows: a weight of two must take the path of a row written twice.
        few = tasks.sizes().sum() < ROWS_PER_FEATURE * tasks.n_features * tasks.n_tasks
        kind = "rows" if few else "gram"
    if kind == "rows":
        return RowStatistics(tasks, units, centred)
    return GramStatistics(tasks.n_tasks, tasks.n_features, centred).update(tasks, units)
