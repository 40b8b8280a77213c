"""Statistics, objective and folds of tasks on the shards of a cluster.

They have the interfaces of their local counterparts. Each method runs a command on all shards; the
results are summed, or concatenated in the order of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np

from sharedspan.distributed.matrix import Cluster, ClusterMatrix, sum_over_shards
from sharedspan.distributed.shard import Shard
from sharedspan.objective import Objective, Point
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.grams import Arrays, TaskMeans
from sharedspan.statistics.rows import RowStatistics, Statistics
from sharedspan.statistics.task_statistics import Units


def _map_shards(
    cluster: Cluster, target: str | int, function: Callable[..., Any], arrays: Arrays
) -> tuple[Arrays, Arrays]:
    """``TaskMeans.map_shards`` for a part of each shard, as named by ``Shard.call``."""
    per_shard = cluster.split(*arrays)
    parts = cluster.run(Shard.call, target, function, per_shard=per_shard)
    rows = zip(*(rows for _, rows in parts), strict=True)
    return sum_over_shards(totals for totals, _ in parts), tuple(map(np.concatenate, rows))


class ClusterStatistics(TaskMeans):
    """Statistics with the Grams or rows on the shards, and sizes and means also on the driver.

    The methods have the same meaning as in ``GramStatistics``.
    """

    def __init__(
        self, cluster: Cluster, units: Units, centred: bool, kind: str, keep_rows: bool
    ) -> None:
        self.cluster, self.centred = cluster, centred
        self.left_out: int | None = None  # the fold that is subtracted at present
        self._set_means(Shard.build_statistics, units, centred, kind, keep_rows)

    @property
    def outlives_fit(self) -> bool:
        """See TaskMeans: the cluster is freed after the fit."""
        return False

    def _set_means(self, *command: Any) -> None:
        """Run a command that changes the statistics and returns sizes and means."""
        parts = self.cluster.run(*command, replay="always")
        self.n, self.mean, self.y_mean = map(np.concatenate, zip(*parts, strict=True))

    def move_fold(self, fold: int, canonical: Canonical, sign: float) -> None:
        """Subtract (sign = -1) or add (sign = 1) the rows of a fold."""
        self.left_out = fold if sign < 0 else None
        self._set_means(Shard.move_fold, fold, canonical, sign)

    def map_shards(self, function: Callable[..., Any], *arrays: Any) -> tuple[Arrays, Arrays]:
        return _map_shards(self.cluster, "statistics", function, arrays)

    def pooled_gram(self) -> np.ndarray:
        return reduce(np.add, self.cluster.run(Shard.call, "statistics", "pooled_gram"))

    def variances(self) -> np.ndarray:
        return np.diag(self.pooled_gram()) / self.n.sum()

    def transform(self, P: np.ndarray) -> None:
        self.cluster.run(Shard.call, "statistics", "transform", P, replay="always")
        self.mean = self.mean @ P

    def take(self, ids: np.ndarray) -> Statistics:
        """A copy of the statistics of some tasks, on the driver."""
        ids, bounds = np.asarray(ids), self.cluster.source.bounds
        shard = np.searchsorted(bounds, ids, side="right") - 1
        per_shard = [(ids[shard == i] - bounds[i],) for i in range(len(bounds) - 1)]
        parts = self.cluster.run(Shard.take_tasks, per_shard=per_shard)
        joined = _concatenate([part for part in parts if part is not None])
        by_shard = np.argsort(shard, kind="stable")
        return joined.take(np.argsort(by_shard))

    def close(self) -> None:
        """Free the workers."""
        self.cluster.close()

    def gather_local(self) -> Statistics:
        """A copy of the statistics of all tasks, on the driver."""
        return self.take(np.arange(self.n_tasks))

    def objective(self, noise: np.ndarray | None, dtype: str) -> ClusterObjective:
        return ClusterObjective(self, noise, dtype)


def _concatenate(parts: Sequence[Statistics]) -> Statistics:
    """The statistics of all tasks of several parts."""
    first = parts[0]
    out = first.take(np.arange(first.n_tasks))
    names = [name for name, value in vars(first).items() if isinstance(value, np.ndarray)]
    for name in names:
        if name != "starts":
            setattr(out, name, np.concatenate([getattr(part, name) for part in parts]))
    if isinstance(out, RowStatistics):
        counts = [np.diff(part.starts) for part in parts if isinstance(part, RowStatistics)]
        out.starts = np.append(0, np.cumsum(np.concatenate(counts)))
    return out


class ClusterObjective(Objective):
    """The objective with its passes on the shards."""

    def __init__(
        self, statistics: ClusterStatistics, noise: np.ndarray | None, dtype: str = "float64"
    ) -> None:
        super().__init__(statistics, noise)
        self.cluster = statistics.cluster
        (self.number,) = self.cluster.new_numbers()
        self.cluster.free_with(self, self.number)
        self.cluster.run(
            Shard.set_objective, self.number, dtype, statistics.left_out,
            per_shard=self.cluster.split(self.response), replay="always", creates=self.number,
        )  # fmt: skip

    def map_shards(self, function: Callable[..., Any], *arrays: Any) -> tuple[Arrays, Arrays]:
        return _map_shards(self.cluster, self.number, function, arrays)

    def _call(self, method: str, *shared: Any, columns: Any = None) -> list[Any]:
        """Results of a method of the shards' objectives; ``columns`` (., T) is split by task."""
        per_shard = None if columns is None else self.cluster.split(np.asarray(columns), axis=1)
        return self.cluster.run(Shard.call, self.number, method, *shared, per_shard=per_shard)

    def to_device(self, W: Any) -> ClusterMatrix:
        if isinstance(W, ClusterMatrix):
            return W
        W, (number,) = np.asarray(W, dtype=float), self.cluster.new_numbers()
        per_shard = self.cluster.split(W, axis=1)
        self.cluster.run(Shard.set_matrix, number, per_shard=per_shard, replay="until_checkpoint")
        return self.cluster.matrix(number, W.shape)

    def evaluate(self, B: np.ndarray, W: Any) -> Point:
        loss, grad_B, (W, grad_W) = self.fused_pass("gradients", B, W)
        return Point(B, W, self, loss, grad_B, grad_W, W @ W.T)

    def fused_pass(
        self, method: str, B: np.ndarray, W: Any
    ) -> tuple[float, np.ndarray, list[ClusterMatrix]]:
        """The loss, R W', and matrices: W and B'R, or for "profile" the best W."""
        cluster, W, others = self.cluster, self.to_device(W), []
        new = cluster.new_numbers(2 if method == "gradients" else 1)
        freed = cluster.take_freed()
        if cluster.across_passes and method == "gradients":
            others = sorted(cluster.matrices)
        command = (Shard.fused_pass, method, freed, self.number, B, W.terms, new, others)
        loss, grad_B, products = sum_over_shards(cluster.run(*command, replay="until_checkpoint"))
        matrices = [cluster.matrix(number, W.shape) for number in new]
        for number, values in zip(new, products, strict=True):
            cluster.add_products(number, [*others, *new], values)
        cluster.count_pass()
        return float(loss), grad_B, matrices

    def gradients(self, B: np.ndarray, W: Any) -> tuple[float, np.ndarray, Any]:
        loss, grad_B, (_, grad_W) = self.fused_pass("gradients", B, W)
        return loss, grad_B, grad_W

    def profile(self, B: np.ndarray, W: Any) -> tuple[float, np.ndarray, Any]:
        loss, grad_B, (best,) = self.fused_pass("profile", B, W)
        return loss, grad_B, best

    def moments(self) -> np.ndarray:
        return reduce(np.add, self._call("moments"))

    def residuals(
        self, V: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See Objective; V and R are sent whole, for solvers that step in V."""
        parts, losses = zip(*self._call("residuals", columns=V), strict=True)
        R = np.concatenate([part.T for part in parts], out=out)
        return R.T, np.concatenate(losses)

    def normal_matrices(self, B: np.ndarray) -> np.ndarray:
        return np.concatenate(self._call("normal_matrices", B))

    def squares(self, B: np.ndarray, W: Any) -> np.ndarray:
        return np.concatenate(self._call("squares", B, columns=W))

    def solve_W(self, B: np.ndarray, W: np.ndarray | None = None) -> np.ndarray:
        return np.concatenate(self._call("solve_W", B, columns=W), axis=1)

    def curvature(self, t: int) -> np.ndarray:
        return self.statistics.take(np.array([t])).gram(0) * self.weights[t]


class ClusterFolds:
    """Rows that the shards have retained, and their folds; see ``Folds``."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def make_folds(self, key: np.ndarray, n_folds: int) -> ClusterFolds:
        """Assign the rows to folds."""
        per_shard = [(int(first),) for first in self.cluster.source.bounds[:-1]]
        self.cluster.run(Shard.assign_folds, key, n_folds, per_shard=per_shard, replay="always")
        return self

    def sizes(self, fold: int) -> np.ndarray:
        return np.concatenate(self.cluster.run(Shard.call, "folds", "sizes", fold))

    @contextmanager
    def without(
        self, fold: int, statistics: ClusterStatistics, canonical: Canonical
    ) -> Iterator[ClusterStatistics]:
        statistics.move_fold(fold, canonical, -1.0)
        try:
            yield statistics
        finally:
            statistics.move_fold(fold, canonical, 1.0)

    def errors(
        self,
        fold: int,
        remaining: ClusterStatistics,
        response: np.ndarray,
        canonical: Canonical,
        B: np.ndarray,
        W: np.ndarray,
    ) -> np.ndarray:
        parts = self.cluster.split(np.vstack([response, np.asarray(W)]), axis=1)
        command = (Shard.fold_errors, fold, canonical, B)
        return np.concatenate(self.cluster.run(*command, per_shard=parts))
