"""Folds of rows, each of which can be left out of the statistics for a while.

Rows of a task are ranked by a random hash of their values and assigned to folds in that order, so
the fold of a row does not depend on the order of rows, or on whether a row is written twice or has
weight two. Folds are subtracted from sums and added back, or masked if the statistics are rows, so
no fold needs statistics of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sharedspan.inputs.rows import Block, TaskRows
from sharedspan.kernels import cpu
from sharedspan.statistics.grams import GramStatistics
from sharedspan.statistics.rows import RowStatistics, Statistics

if TYPE_CHECKING:
    from sharedspan.statistics.canonical import Canonical

N_FOLDS = 5  # of every cross-validation within tasks
ROWS_AT_ONCE = 1 << 17  # rows whose folds are drawn together


class Folds(Protocol):
    """The interface of cross-validation to the rows."""

    def sizes(self, fold: int) -> np.ndarray:
        """Sum of weights in a fold of each task, (T,)."""

    def without(
        self, fold: int, statistics: Any, canonical: Canonical
    ) -> AbstractContextManager[Any]:
        """Statistics of all other rows; the given statistics are restored afterwards."""

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
        self.move(fold, statistics, canonical, -1.0)
        try:
            yield statistics
        finally:
            self.move(fold, statistics, canonical, 1.0)

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
        """See Folds."""
        W = W / response
        intercept = remaining.intercepts(B @ W)
        V = np.ascontiguousarray((canonical.widen(B) @ W).T)
        out = np.zeros(len(response))
        for block in self.rows.select(self.fold_of == fold).blocks():
            X, y = canonical.units.rows(block, None)
            cpu.squared_errors(X, y, block.weight, block.starts, block.ids, V, intercept, out)
        return out


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
    folds = np.empty(rows.n_rows, dtype=np.int8)
    for first, last in rows.ranges(ROWS_AT_ONCE):
        hashes = np.concatenate([hash_rows(block, key) for block in rows.blocks(first, last)])
        starts = rows.starts[first : last + 1] - rows.starts[first]
        folds[rows.starts[first] : rows.starts[last]] = folds_by_hash(
            hashes, starts, np.arange(first, last) + offset, n_folds
        )
    return folds


def folds_by_hash(
    hashes: np.ndarray, starts: np.ndarray, ids: np.ndarray, n_folds: int
) -> np.ndarray:
    """Assign the rows of each segment to folds by the order of their hashes, (rows,).

    Segment s, rows starts[s]..starts[s + 1] of task ids[s], begins with fold ids[s], so that small
    tasks do not all fill the same folds.
    """
    counts = np.diff(starts)
    owner = np.repeat(ids, counts)
    order = np.lexsort((hashes, owner))
    new_row = np.append(True, np.diff(hashes[order]) != 0)
    heads = starts[:-1][counts > 0]
    new_row[heads] = True
    number = np.cumsum(new_row)
    number -= np.repeat(number[heads], counts[counts > 0])
    folds = np.empty(len(hashes), dtype=np.int8)
    folds[order] = (number + owner) % n_folds
    return folds


def hash_key(n_features: int, rng: np.random.Generator) -> np.ndarray:
    """Random odd multipliers, one per column and one for the target."""
    return rng.integers(1, 2**63, size=n_features + 1, dtype=np.uint64) * 2 + 1


def hash_rows(block: Block, key: np.ndarray) -> np.ndarray:
    """64 random bits of each row's features and target, (rows,)."""
    bits = (np.column_stack([block.X, block.y]) + 0.0).view(np.uint64)  # -0.0 became 0.0
    return _mix(_mix((bits ^ (bits >> np.uint64(29))) * key).sum(axis=1, dtype=np.uint64))


def _mix(bits: np.ndarray) -> np.ndarray:
    """Spread high bits to low ones and back (a round of a 64-bit finaliser)."""
    bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return bits ^ (bits >> np.uint64(29))
