"""Shards: the data of some tasks on a worker, and the commands that the driver runs on them.

A shard stores the rows of its tasks, their statistics, objectives of these statistics, and matrices
with a column per task, such as W. The driver numbers objectives and matrices. Each method is a
command that the driver runs on all shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sharedspan.inputs.rows import TaskRows
from sharedspan.objective import Objective, build_objective
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.folds import RowFolds
from sharedspan.statistics.grams import Arrays, GramStatistics
from sharedspan.statistics.rows import Statistics
from sharedspan.statistics.task_statistics import Units, collect

Numbers = Sequence[int]  # numbers of objectives and matrices
Terms = Sequence[tuple[Any, int]]  # factors (a number or a small matrix) and numbers of matrices


def apply_factor(factor: Any, M: np.ndarray) -> np.ndarray:
    """A number or a small matrix times M."""
    return factor * M if np.ndim(factor) == 0 else factor @ M


class Shard:
    """The rows, statistics, objectives and matrices of some tasks."""

    def __init__(self, tasks: TaskRows) -> None:
        self.rows: TaskRows = tasks
        self.statistics: Statistics
        self.folds: RowFolds
        self.objectives: dict[int, Objective] = {}
        self.matrices: dict[int, np.ndarray] = {}  # (k, T)

    def call(self, target: str | int, function: Callable[..., Any] | str, *arguments: Any) -> Any:
        """Call a function of a part of this shard, or the part's method of that name.

        ``target`` is "rows", "statistics", "folds", "matrices", or the number of an objective.
        """
        part = self.objectives[target] if isinstance(target, int) else getattr(self, target)
        if isinstance(function, str):
            return getattr(part, function)(*arguments)
        return function(part, *arguments)

    def build_statistics(self, units: Units, centred: bool, kind: str, keep_rows: bool) -> Arrays:
        """Build the statistics of the rows; returns sizes and means."""
        self.statistics = collect(self.rows, units, centred, kind)
        if not keep_rows:
            del self.rows
        return self.statistics.n, self.statistics.mean, self.statistics.y_mean

    def take_tasks(self, ids: np.ndarray) -> Statistics | None:
        """A copy of the statistics of some tasks, or None for no task."""
        return self.statistics.take(ids) if len(ids) else None

    def assign_folds(self, key: np.ndarray, n_folds: int, first: int) -> None:
        """Assign the rows to folds."""
        self.folds = RowFolds(self.rows, key, n_folds, first)

    def move_fold(self, fold: int, canonical: Canonical, sign: float) -> Arrays:
        """Subtract (sign = -1) or add (sign = 1) a fold; returns sizes and means of the rest."""
        s = self.statistics
        if isinstance(s, GramStatistics):
            self.folds.move(fold, s, canonical, sign)
        elif sign < 0:
            return self.without(fold).n, s.mean, s.y_mean
        return s.n, s.mean, s.y_mean

    def without(self, fold: int | None) -> Statistics:
        """Statistics of the rows outside a fold, which is subtracted from Grams already."""
        s = self.statistics
        if fold is None or isinstance(s, GramStatistics):
            return s
        return s.reweighted(self.folds.fold_of != fold)

    def fold_errors(
        self, fold: int, canonical: Canonical, B: np.ndarray, scaled: np.ndarray
    ) -> np.ndarray:
        """See Folds.errors; the first row of ``scaled`` is the response, the others are W."""
        return self.folds.errors(fold, self.without(fold), scaled[0], canonical, B, scaled[1:])

    def set_objective(
        self, number: int, dtype: str, left_out: int | None, response: np.ndarray
    ) -> None:
        """Create the objective of all rows, or of all but a fold, with a given ``response``."""
        objective = build_objective(self.without(left_out), None, dtype)
        objective.response = response
        self.objectives[number] = objective

    def set_matrix(self, number: int, M: np.ndarray) -> None:
        """Store a matrix (k, T) from the driver."""
        self.matrices[number] = np.ascontiguousarray(M)

    def combine(self, terms: Terms, k: int) -> np.ndarray:
        """The sum of factors times stored matrices, (k, T)."""
        out = np.zeros((k, self.statistics.n_tasks))
        for factor, number in terms:
            out += apply_factor(factor, self.matrices[number])
        return out

    def products(self, pairs: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """MN' for pairs of stored matrices."""
        return [self.matrices[first] @ self.matrices[second].T for first, second in pairs]

    def fused_pass(
        self,
        method: str,
        freed: Numbers,
        at: int,
        B: np.ndarray,
        terms: Terms,
        new: Numbers,
        others: Numbers,
    ) -> tuple[Any, ...]:
        """Run ``gradients`` or ``profile`` of objective ``at``; matrices are stored as ``new``.

        These are W and B'R, or the best W. Returns the loss, R W', and the products MN' of each
        new matrix M with each matrix N of ``others`` and ``new``, (new, others + new, k, k).
        """
        W = self.combine(terms, B.shape[1])
        for number in freed:
            self.matrices.pop(number, None)
            self.objectives.pop(number, None)
        loss, grad_B, result = getattr(self.objectives[at], method)(B, W)
        self.matrices |= zip(new, (W, result) if method == "gradients" else (result,), strict=True)
        pairs = [(first, second) for first in new for second in (*others, *new)]
        products = np.array(self.products(pairs))
        return loss, grad_B, products.reshape(len(new), -1, *products.shape[1:])
