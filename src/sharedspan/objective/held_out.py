"""Rows dealt into folds, each of which can be left out of the statistics for a while.

Folds are taken away from sums and put back, or masked where the statistics are rows, so no fold
needs statistics of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np

from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels import cpu
from sharedspan.objective.base import GramObjective, Objective, RowObjective
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.folds import deal_rows, hash_key
from sharedspan.statistics.sums import GramStatistics, Statistics


class Folds(Protocol):
    """What cross-validation asks of the rows."""

    def sizes(self, fold: int) -> np.ndarray:
        """Sum of weights in a fold of each task, (T,)."""

    def without(
        self, fold: int, statistics: Any, canonical: Canonical, noise: np.ndarray | None
    ) -> AbstractContextManager[Objective]:
        """The objective of all other rows; the statistics are whole again afterwards."""

    def errors(
        self, fold: int, objective: Objective, canonical: Canonical, B: np.ndarray, W: np.ndarray
    ) -> np.ndarray:
        """Weighted squared errors of each task on the rows of a fold, (T,)."""


def deal(rows: Any, n_features: int, rng: np.random.Generator, n_folds: int) -> Folds:
    """Deal rows, here or on a cluster, into folds."""
    key = hash_key(n_features, rng)
    return LocalFolds(rows, key, n_folds) if isinstance(rows, TaskRows) else rows.deal(key, n_folds)


class LocalFolds:
    """Folds of rows that lie here.

    Parameters
    ----------
    tasks : TaskRows
    key : ndarray
        Of ``hash_key``.
    n_folds : int
    first : int
        The number of the first task among all tasks.
    """

    def __init__(self, tasks: TaskRows, key: np.ndarray, n_folds: int, first: int = 0) -> None:
        self.tasks = tasks
        self.fold_of = deal_rows(tasks, key, n_folds, first)  # (rows,) in task order

    def held(self, fold: int) -> TaskRows:
        """The rows of a fold."""
        return self.tasks.select(self.fold_of == fold)

    def sizes(self, fold: int) -> np.ndarray:
        """See Folds."""
        return self.held(fold).sizes()

    @contextmanager
    def without(
        self, fold: int, statistics: Statistics, canonical: Canonical, noise: np.ndarray | None
    ) -> Iterator[Objective]:
        """See Folds."""
        if not isinstance(statistics, GramStatistics):
            yield RowObjective(statistics, noise, mask=self.fold_of != fold)
            return
        self.move(fold, statistics, canonical, -1.0)
        try:
            yield GramObjective(statistics, noise)
        finally:
            self.move(fold, statistics, canonical, 1.0)

    def move(
        self, fold: int, statistics: GramStatistics, canonical: Canonical, sign: float
    ) -> None:
        """Take a fold away from the sums (sign = -1), or put it back (sign = 1)."""
        statistics.update(self.held(fold), canonical.units, canonical.P, sign=sign)

    def errors(
        self, fold: int, objective: Objective, canonical: Canonical, B: np.ndarray, W: np.ndarray
    ) -> np.ndarray:
        """See Folds."""
        W = W / objective.response
        intercept = objective.intercepts(B @ W)
        V = np.ascontiguousarray((canonical.widen(B) @ W).T)
        out = np.zeros(objective.n_tasks)
        for block in self.held(fold).blocks():
            X, y = canonical.units.rows(block, None)
            cpu.squared_errors(X, y, block.weight, block.starts, block.ids, V, intercept, out)
        return out
