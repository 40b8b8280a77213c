"""Statistics and the objective of tasks that lie on the shards of a cluster."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from sharedspan.distributed import shard
from sharedspan.distributed.matrix import Cluster, ClusterMatrix, total_of
from sharedspan.objective.base import Objective, Point
from sharedspan.statistics.canonical import Canonical, task_scale
from sharedspan.statistics.grams import Arrays, TaskMeans
from sharedspan.statistics.rows import RowStatistics, Statistics
from sharedspan.statistics.scaling import Units


class ClusterStatistics(TaskMeans):
    """Statistics of tasks whose Grams or rows are on the shards; sizes and means are here too."""

    def __init__(
        self, cluster: Cluster, units: Units, centred: bool, kind: str, keep_rows: bool
    ) -> None:
        self.cluster, self.centred = cluster, centred
        build = (shard.build_statistics, units, centred, kind, keep_rows)
        self._set_means(cluster.shards.run(*build, lasting=True))

    def _set_means(self, parts: Sequence[Arrays]) -> None:
        self.n, self.mean, self.y_mean = map(np.concatenate, zip(*parts, strict=True))

    def move(self, fold: int, canonical: Canonical, sign: float) -> None:
        """Take a fold of the rows away (sign = -1), or put it back (sign = 1)."""
        command = (shard.move_fold, fold, canonical, sign)
        self._set_means(self.cluster.shards.run(*command, lasting=True))

    def map_shards(
        self, function: Callable[..., tuple[Arrays, Arrays]], *arrays: np.ndarray
    ) -> tuple[Arrays, Arrays]:
        """See TaskMeans."""
        return _map_shards(self.cluster, shard.on_statistics, (function,), arrays)

    def pooled_gram(self) -> np.ndarray:
        """Sum of all tasks' Grams, (d, d)."""
        return self.map_shards(_pooled_gram)[0][0]

    def variances(self) -> np.ndarray:
        """Pooled within-task variance of each feature, (d,)."""
        return np.diag(self.pooled_gram()) / self.n.sum()

    def principal_axes(self, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Variances (d,) and orthonormal axes (d, d) of the pooled features times ``scale``."""
        return np.linalg.eigh(scale[:, None] * (self.pooled_gram() / self.n.sum()) * scale)

    def transform(self, P: np.ndarray) -> None:
        """Statistics of the features X P, P (d, d'), in place."""
        self.cluster.shards.run(shard.transform, P, lasting=True)
        self.mean = self.mean @ P

    def take(self, ids: np.ndarray) -> Statistics:
        """A copy of some tasks' statistics, on the driver."""
        ids = np.asarray(ids)
        bounds = self.cluster.bounds
        wanted = [ids[(ids >= low) & (ids < high)] - low for low, high in pairwise(bounds)]
        parts = self.cluster.shards.run(shard.take_tasks, each=[(part,) for part in wanted])
        order = np.concatenate([part + low for part, low in zip(wanted, bounds, strict=False)])
        joined = _joined([part for part in parts if part is not None])
        places = np.argsort(order)
        return joined.take(places[np.searchsorted(order, ids, sorter=places)])

    def close(self) -> None:
        """Free the workers."""
        self.cluster.shards.close()

    def gather_local(self) -> Statistics:
        """All of them on the driver."""
        return self.take(np.arange(self.n_tasks))

    def objective(self, noise: np.ndarray | None, dtype: str) -> ClusterObjective:
        """The objective that goes with these statistics."""
        return ClusterObjective(self, noise, dtype)


def _freed(cluster: Cluster, number: int) -> None:
    cluster.freed.append(number)


def _pooled_gram(statistics: Statistics) -> tuple[Arrays, Arrays]:
    return (statistics.pooled_gram(),), ()


def _map_shards(
    cluster: Cluster, command: Callable[..., Any], shared: tuple[Any, ...], arrays: Arrays
) -> tuple[Arrays, Arrays]:
    """Sums over shards, and arrays with the rows of all shards' tasks one after the other."""
    cuts = [cluster.cut(array) for array in arrays]
    each = list(zip(*cuts, strict=True)) if cuts else None
    parts = cluster.shards.run(command, *shared, each=each)
    rows = zip(*(rows for _, rows in parts), strict=True)
    return total_of([sums for sums, _ in parts]), tuple(np.concatenate(column) for column in rows)


def _joined(parts: Sequence[Statistics]) -> Statistics:
    """Statistics of several parts' tasks as one."""
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
        self,
        statistics: ClusterStatistics,
        noise: np.ndarray | None,
        dtype: str = "float64",
        left_out: int | None = None,
    ) -> None:
        self.statistics, self.cluster = statistics, statistics.cluster
        self.n, self.n_features = statistics.n, statistics.n_features
        self.response = task_scale(self.n, noise)
        self.number = self.cluster.new()
        weakref.finalize(self, _freed, self.cluster, self.number)
        each = [(part,) for part in self.cluster.cut(self.response)]
        command = (shard.set_objective, self.number, dtype, left_out)
        self.cluster.shards.run(*command, each=each, lasting=True, makes=self.number)

    def map_shards(
        self, function: Callable[..., tuple[Arrays, Arrays]], *arrays: np.ndarray
    ) -> tuple[Arrays, Arrays]:
        """See Objective."""
        return _map_shards(self.cluster, shard.on_objective, (self.number, function), arrays)

    def to_device(self, W: Any) -> ClusterMatrix:
        """See Objective."""
        if isinstance(W, ClusterMatrix):
            return W
        W, number = np.asarray(W, dtype=float), self.cluster.new()
        each = [(np.ascontiguousarray(part.T),) for part in self.cluster.cut(W.T)]
        self.cluster.shards.run(shard.to_device, number, each=each, changes=True)
        return ClusterMatrix(self.cluster, {self.cluster.handle(number): 1.0}, W.shape)

    def evaluate(self, B: np.ndarray, W: Any) -> Point:
        """See Objective."""
        return ClusterPoint(B, self.to_device(W), self)  # type: ignore[arg-type]

    def pass_at(self, B: np.ndarray, W: Any) -> tuple[float, np.ndarray, Any, Any, np.ndarray]:
        """The loss, R W', W as a matrix of its own, B'R and WW'."""
        cluster, W = self.cluster, self.to_device(W)
        made = cluster.new(2)
        sent = cluster.take_freed(), self.number, B, W.sent, made, cluster.compared()
        loss, grad_B, both, others = total_of(
            cluster.shards.run(shard.gradients, *sent, changes=True)
        )
        here, there = cluster.handle(made), cluster.handle(made + 1)
        cluster.know(made, [made, made + 1], both[0])
        cluster.know(made + 1, [made + 1], both[1][1:])
        for new, values in zip((made, made + 1), others, strict=True):
            cluster.know(new, sent[-1], values)
        cluster.count_pass()
        at, slope = ({handle: 1.0} for handle in (here, there))
        return (
            float(loss), grad_B, ClusterMatrix(cluster, at, W.shape),
            ClusterMatrix(cluster, slope, W.shape), both[0][0],
        )  # fmt: skip

    def gradients(self, B: np.ndarray, W: Any) -> tuple[float, np.ndarray, Any]:
        """See Objective."""
        loss, grad_B, _, grad_W, _ = self.pass_at(B, W)
        return loss, grad_B, grad_W

    def profile(self, B: np.ndarray, W: Any) -> tuple[float, np.ndarray, Any]:
        """See Objective."""
        cluster, W = self.cluster, self.to_device(W)
        made = cluster.new()
        sent = cluster.take_freed(), self.number, B, W.sent, made
        loss, grad_B, WWt = total_of(cluster.shards.run(shard.profile, *sent, changes=True))
        handle = cluster.handle(made)
        cluster.know(made, [made], [WWt])
        cluster.count_pass()
        return float(loss), grad_B, ClusterMatrix(cluster, {handle: 1.0}, W.shape)

    def moments(self) -> np.ndarray:
        """See Objective."""
        parts = self.cluster.shards.run(shard.moments, self.number)
        return total_of([(part,) for part in parts])[0]

    def residuals(
        self, V: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See Objective; V goes out and R comes back whole, for solvers that step in V."""
        _, (R, loss) = self.map_shards(_residuals, V.T)
        if out is not None:
            out[...] = R
        return R.T, loss

    def normal_matrices(self, B: np.ndarray) -> np.ndarray:
        """See Objective."""
        return self.map_shards(partial(_normal_matrices, B=B))[1][0]

    def squares(self, B: np.ndarray, W: Any) -> np.ndarray:
        """See Objective."""
        return self.map_shards(partial(_squares, B=B), np.asarray(W).T)[1][0]

    def solve_W(self, B: np.ndarray, W: np.ndarray | None = None) -> np.ndarray:
        """See Objective."""
        start = np.zeros((self.n_tasks, B.shape[1])) if W is None else np.asarray(W).T
        return self.map_shards(partial(_solve_W, B=B), start)[1][0].T

    def curvature(self, t: int) -> np.ndarray:
        """See Objective."""
        return self.statistics.take(np.array([t])).gram(0) * self.weights[t]

    def intercepts(self, V: np.ndarray) -> np.ndarray:
        """See Objective."""
        return self.statistics.intercepts(V)


def _residuals(objective: Objective, V: np.ndarray) -> tuple[Arrays, Arrays]:
    R, loss = objective.residuals(V.T)
    return (), (R.T, loss)


def _normal_matrices(objective: Objective, *, B: np.ndarray) -> tuple[Arrays, Arrays]:
    return (), (objective.normal_matrices(B),)


def _squares(objective: Objective, W: np.ndarray, *, B: np.ndarray) -> tuple[Arrays, Arrays]:
    return (), (objective.squares(B, W.T),)


def _solve_W(objective: Objective, W: np.ndarray, *, B: np.ndarray) -> tuple[Arrays, Arrays]:
    return (), (objective.solve_W(B, W.T).T,)


class ClusterRows:
    """Rows that the shards have kept."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def deal(self, key: np.ndarray, n_folds: int) -> ClusterFolds:
        """Deal them into folds."""
        each = [(int(first),) for first in self.cluster.bounds[:-1]]
        self.cluster.shards.run(shard.deal_out, key, n_folds, each=each, lasting=True)
        return ClusterFolds(self.cluster)


class ClusterFolds:
    """Folds of rows on a cluster; see ``holdout.Folds``."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def sizes(self, fold: int) -> np.ndarray:
        """See Folds."""
        return np.concatenate(self.cluster.shards.run(shard.fold_sizes, fold))

    @contextmanager
    def without(
        self,
        fold: int,
        statistics: ClusterStatistics,
        canonical: Canonical,
        noise: np.ndarray | None,
    ) -> Iterator[Objective]:
        """See Folds."""
        statistics.move(fold, canonical, -1.0)
        try:
            yield ClusterObjective(statistics, noise, left_out=fold)
        finally:
            statistics.move(fold, canonical, 1.0)

    def errors(
        self,
        fold: int,
        objective: ClusterObjective,
        canonical: Canonical,
        B: np.ndarray,
        W: np.ndarray,
    ) -> np.ndarray:
        """See Folds."""
        each = [(part,) for part in self.cluster.cut(W.T)]
        command = (shard.fold_errors, objective.number, fold, canonical, B)
        return np.concatenate(self.cluster.shards.run(*command, each=each))


@dataclass(frozen=True)
class ClusterPoint(Point):
    """A point whose loss, R W' and WW' come from the shards in one message."""

    objective: ClusterObjective = field(repr=False)

    @cached_property
    def _sums(self) -> tuple[float, np.ndarray, Any, Any, np.ndarray]:
        sums = self.objective.pass_at(self.B, self.W)
        # W as a matrix of its own: what comes next need not form it again.
        object.__setattr__(self, "W", sums[2])
        return sums

    @property
    def _gradients(self) -> tuple[float, np.ndarray, Any]:
        loss, grad_B, _, grad_W, _ = self._sums
        return loss, grad_B, grad_W

    @property
    def WWt(self) -> np.ndarray:
        """WW', (k, k)."""
        return self._sums[4]
