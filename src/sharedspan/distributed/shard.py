"""Some tasks on a worker, and the commands that the driver gives there.

Each shard builds and keeps the statistics of its tasks, and W lives beside them. A command is a
function of a shard, known to the workers by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sharedspan.inputs.rows import TaskRows
from sharedspan.objective.base import Objective, RowObjective, build_objective
from sharedspan.objective.held_out import LocalFolds
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.grams import Arrays, GramStatistics
from sharedspan.statistics.rows import RowStatistics, Statistics, collect
from sharedspan.statistics.scaling import Units

Term = tuple[Any, int]  # a number or a small matrix, and the number of a matrix on the shards


class Shard:
    """Some tasks on a worker: their rows, then their statistics, and matrices beside them."""

    def __init__(self, tasks: TaskRows) -> None:
        self.rows: TaskRows | None = tasks
        self.statistics: Statistics
        self.folds: LocalFolds
        self.objectives: dict[int, Objective] = {}
        self.matrices: dict[int, np.ndarray] = {}  # (k, T)

    def combined(self, terms: Sequence[Term], k: int) -> np.ndarray:
        """The sum of small matrices times our matrices, (k, T)."""
        out = np.zeros((k, self.statistics.n_tasks))
        for factor, number in terms:
            M = self.matrices[number]
            out += factor * M if np.ndim(factor) == 0 else factor @ M
        return out

    def free(self, numbers: Sequence[int]) -> None:
        """Let matrices and objectives go."""
        for number in numbers:
            self.matrices.pop(number, None)
            self.objectives.pop(number, None)


def find_units(shard: Shard, centred: bool, common_scale: bool) -> Units:
    """Units that suit the shard's rows."""
    assert shard.rows is not None
    return Units.of(shard.rows, centred, common_scale)


def build_statistics(
    shard: Shard, units: Units, centred: bool, kind: str, keep_rows: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Statistics of the shard's rows; sizes and means come back."""
    assert shard.rows is not None
    shard.statistics = collect(shard.rows, units, centred, kind)
    if not keep_rows:
        shard.rows = None
    return shard.statistics.n, shard.statistics.mean, shard.statistics.y_mean


def row_counts(shard: Shard) -> tuple[float, int]:
    """Sum of weights and number of tasks."""
    assert shard.rows is not None
    return float(shard.rows.sizes().sum()), shard.rows.n_tasks


def transform(shard: Shard, P: np.ndarray) -> None:
    """Statistics of mapped features."""
    shard.statistics.transform(P)


def on_statistics(shard: Shard, function: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """A function of the statistics."""
    return function(shard.statistics, *arrays)


def take_tasks(shard: Shard, ids: np.ndarray) -> Statistics | None:
    """A copy of some tasks' statistics."""
    return shard.statistics.take(ids) if len(ids) else None


def deal_out(shard: Shard, key: np.ndarray, n_folds: int, first: int) -> None:
    """Deal the rows into folds."""
    assert shard.rows is not None
    shard.folds = LocalFolds(shard.rows, key, n_folds, first)


def fold_sizes(shard: Shard, fold: int) -> np.ndarray:
    """See Folds.sizes."""
    return shard.folds.sizes(fold)


def move_fold(
    shard: Shard, fold: int, canonical: Canonical, sign: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Take a fold away from sums, or put it back; sizes and means of what is left come back."""
    s = shard.statistics
    if isinstance(s, GramStatistics):
        shard.folds.move(fold, s, canonical, sign)
        return s.n, s.mean, s.y_mean
    n = s.n if sign > 0 else RowObjective(s, None, mask=shard.folds.fold_of != fold).n
    return n, s.mean, s.y_mean


def fold_errors(
    shard: Shard, number: int, fold: int, canonical: Canonical, B: np.ndarray, W: np.ndarray
) -> np.ndarray:
    """See Folds.errors; W (T, k) has a row for each task."""
    return shard.folds.errors(fold, shard.objectives[number], canonical, B, W.T)


def set_objective(
    shard: Shard, number: int, dtype: str, left_out: int | None, response: np.ndarray
) -> None:
    """The objective, of all rows or without a fold, with the task scales of all tasks' problem."""
    statistics = shard.statistics
    if left_out is not None and isinstance(statistics, RowStatistics):
        mask = shard.folds.fold_of != left_out
        objective: Objective = RowObjective(statistics, None, dtype, mask)
    else:
        objective = build_objective(statistics, None, dtype)
    objective.response = response
    shard.objectives[number] = objective


def on_objective(
    shard: Shard, number: int, function: Callable[..., Any], *arrays: np.ndarray
) -> Any:
    """A function of an objective."""
    return function(shard.objectives[number], *arrays)


def to_device(shard: Shard, number: int, columns: np.ndarray) -> None:
    """Take in a matrix of the driver's."""
    shard.matrices[number] = np.ascontiguousarray(columns)


def fetch(shard: Shard, terms: Sequence[Term], k: int) -> np.ndarray:
    """A matrix for the driver."""
    return shard.combined(terms, k)


def gradients(
    shard: Shard,
    freed: Sequence[int],
    at: int,
    B: np.ndarray,
    terms: Sequence[Term],
    made: int,
    others: Sequence[int],
) -> Arrays:
    """The fused pass at BW: W and B'R stay here as ``made`` and ``made + 1``, sums come back.

    These are the loss, R W', and the products of the two with each other and with ``others``.
    """
    W = shard.combined(terms, B.shape[1])
    shard.free(freed)
    loss, grad_B, grad_W = shard.objectives[at].gradients(B, W)
    shard.matrices[made], shard.matrices[made + 1] = W, grad_W
    new, old = (W, grad_W), [shard.matrices[number] for number in others]
    own = np.array([[M @ N.T for N in new] for M in new])
    k = len(W)
    with_old = np.array([[M @ N.T for N in old] for M in new]).reshape(2, len(old), k, k)
    return np.array(loss), grad_B, own, with_old


def profile(
    shard: Shard, freed: Sequence[int], at: int, B: np.ndarray, terms: Sequence[Term], made: int
) -> Arrays:
    """The pass at the best W for B, which stays here as ``made``."""
    W = shard.combined(terms, B.shape[1])
    shard.free(freed)
    loss, grad_B, W = shard.objectives[at].profile(B, W)
    shard.matrices[made] = W
    return np.array(loss), grad_B, W @ W.T


def products(shard: Shard, pairs: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """MN' of pairs of our matrices."""
    return [shard.matrices[first] @ shard.matrices[second].T for first, second in pairs]


def moments(shard: Shard, at: int) -> np.ndarray:
    """See Objective.moments."""
    return shard.objectives[at].moments()


def save_matrices(shard: Shard) -> dict[int, np.ndarray]:
    """All matrices, for the driver's checkpoint."""
    return dict(shard.matrices)


def restore_matrices(shard: Shard, saved: dict[int, np.ndarray]) -> None:
    """Matrices of a checkpoint."""
    shard.matrices = dict(saved)
