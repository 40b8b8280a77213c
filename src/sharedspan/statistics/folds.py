"""Folds of rows, each of which can be left out of the statistics for a while.

Rows of a task are ranked by a random hash of their values and assigned to folds in that order, so
the fold of a row does not depend on the order of rows, or on whether a row is written twice or has
weight two. A fold is subtracted from a copy of the sums, or masked if the statistics are rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels import cpu, hashing
from sharedspan.kernels.threads import over_tasks
from sharedspan.statistics.grams import NO_INDEX, GramStatistics, flat_view
from sharedspan.statistics.rows import RowStatistics, Statistics

if TYPE_CHECKING:
    from sharedspan.statistics.canonical import Canonical

N_FOLDS = 5  # of every cross-validation within tasks


class Folds(Protocol):
    """The interface of cross-validation to the rows."""

    def sizes(self, fold: int) -> np.ndarray:
        """Sum of weights in a fold of each task, (T,)."""

    def without(
        self, fold: int, statistics: Any, canonical: Canonical
    ) -> AbstractContextManager[Any]:
        """Statistics of all other rows; afterwards the given statistics are what they were."""

    def errors(
        self,
        fold: int,
        remaining: Any,
        response: np.ndarray,
        canonical: Canonical,
        B: np.ndarray,
        W: np.ndarray,
    ) -> np.ndarray:
        """Weighted squared errors of each task on the rows of a fold, (T,).

        Parameters
        ----------
        fold : int
        remaining : Statistics
            Statistics of the other rows, as ``without`` gives them, for the intercepts.
        response : ndarray of shape (T,)
            The task scale r_t of the objective that B and W were fitted to.
        canonical : Canonical
        B, W : ndarray of shape (d', k) and (k, T)
        """


class RowFolds:
    """Folds of rows in this process.

    Parameters
    ----------
    rows : TaskRows
    key : ndarray of shape (d + 1,)
        From ``hash_key``.
    n_folds : int
    first : int
        The number of the first task among all tasks.
    """

    def __init__(self, rows: TaskRows, key: np.ndarray, n_folds: int, first: int = 0) -> None:
        self.rows = rows
        self.fold_of = assign_folds(rows, key, n_folds, first)  # (rows,) in task order
        self.whole: GramStatistics | None = None  # sums that folds are taken from, in copies

    def sizes(self, fold: int) -> np.ndarray:
        """See Folds."""
        return self.rows.select(self.fold_of == fold).sizes()

    @contextmanager
    def without(
        self, fold: int, statistics: Statistics, canonical: Canonical
    ) -> Iterator[Statistics]:
        """See Folds."""
        if isinstance(statistics, RowStatistics):
            yield statistics.reweighted(self.fold_of != fold)
            return
        remaining = statistics.take(np.arange(statistics.n_tasks))
        self.move(fold, remaining, canonical, -1.0)
        self.whole = statistics
        yield remaining

    def move(
        self, fold: int, statistics: GramStatistics, canonical: Canonical, sign: float
    ) -> None:
        """Subtract a fold from the sums (sign = -1), or add it back (sign = 1)."""
        held_out = self.rows.select(self.fold_of == fold)
        statistics.update(held_out, canonical.units, canonical.P, sign=sign)

    def errors(
        self,
        fold: int,
        remaining: Statistics,
        response: np.ndarray,
        canonical: Canonical,
        B: np.ndarray,
        W: np.ndarray,
    ) -> np.ndarray:
        """See Folds; from sums, the squared errors on all rows minus those on the other rows."""
        V = (W / response).T @ B.T  # (T, d')
        intercept = remaining.intercepts(V.T)
        if self.whole is not None:
            assert isinstance(remaining, GramStatistics)
            _, squares = self.whole.at_anchor(V)
            moved = self.whole.n * (self.whole.intercepts(V.T) - intercept) ** 2
            return np.maximum(squares + moved - remaining.at_anchor(V)[1], 0.0)
        V = np.ascontiguousarray(canonical.widen(V.T).T)
        out = np.zeros(len(response))
        for block in self.rows.select(self.fold_of == fold).blocks():
            X, y = canonical.units.rows(block, None)
            cpu.squared_errors(X, y, block.weight, block.starts, block.ids, V, intercept, out)
        return out


class StatisticFolds:
    """Folds of rows that are not at hand, from the statistics of each; see ``Folds``.

    Parameters
    ----------
    parts : sequence of GramStatistics
        Of the rows of each fold, in the units of the statistics and with all tasks.
    """

    def __init__(self, parts: Sequence[GramStatistics]) -> None:
        self.parts = parts

    def make_folds(self, key: np.ndarray, n_folds: int) -> StatisticFolds:
        """The folds that were given, whatever the key."""
        return self

    def sizes(self, fold: int) -> np.ndarray:
        """See Folds."""
        return self.parts[fold].n

    @contextmanager
    def without(self, fold: int, statistics: Any, canonical: Canonical) -> Iterator[GramStatistics]:
        """See Folds; the sum of the other folds."""
        first = self.parts[0]
        remaining = GramStatistics(first.n_tasks, first.n_features, first.centred)
        for other, part in enumerate(self.parts):
            if other != fold:
                remaining.merge(part)
        yield remaining if canonical.P is None else remaining.transformed(canonical.P)

    def errors(
        self,
        fold: int,
        remaining: GramStatistics,
        response: np.ndarray,
        canonical: Canonical,
        B: np.ndarray,
        W: np.ndarray,
    ) -> np.ndarray:
        """See Folds; the squares at the best intercepts, and those of the intercepts' errors."""
        V = B @ (W / response)
        intercept, V = remaining.intercepts(V), canonical.widen(V)
        part = self.parts[fold]
        squares = part.at_anchor(V.T)[1]
        return squares + part.n * (part.intercepts(V) - intercept) ** 2


def assign_folds(rows: TaskRows, key: np.ndarray, n_folds: int, offset: int = 0) -> np.ndarray:
    """Fold of each row in task order, (rows,), balanced within tasks and equal for equal rows.

    Parameters
    ----------
    rows : TaskRows
    key : ndarray of shape (d + 1,)
        From ``hash_key``.
    n_folds : int
    offset : int
        The number of the first task among all tasks.
    """
    hashes = np.empty(rows.n_rows, dtype=np.uint64)
    if isinstance(rows.X, np.ndarray):
        order = NO_INDEX if rows.order is None else rows.order
        where = *flat_view(rows.X), np.ascontiguousarray(rows.y, dtype=float), order

        def work(first: int, last: int) -> None:
            hashing.hash_rows(*where, rows.starts[first], rows.starts[last], key, hashes)

        over_tasks(work, rows.n_tasks, 8.0 * rows.n_rows * len(key))
    else:
        for block in rows.blocks():
            where = *flat_view(block.X), block.y, NO_INDEX
            hashing.hash_rows(*where, 0, len(block.X), key, hashes[block.positions])
    return folds_by_hash(hashes, rows.starts, np.arange(rows.n_tasks) + offset, n_folds)


def folds_by_hash(
    hashes: np.ndarray, starts: np.ndarray, ids: np.ndarray, n_folds: int
) -> np.ndarray:
    """Folds of the rows of each segment, (rows,); see ``hashing.number_folds``."""
    folds = np.empty(len(hashes), dtype=np.int8)
    work = partial(hashing.number_folds, hashes, starts, ids, n_folds, folds)
    over_tasks(work, len(ids), 100.0 * len(hashes))
    return folds


def hash_key(n_features: int, rng: np.random.Generator) -> np.ndarray:
    """Random odd multipliers, one per column and one for the target."""
    return rng.integers(1, 2**63, size=n_features + 1, dtype=np.uint64) * 2 + 1
