"""Moments that sums per task do not contain, collected in the same pass over the rows.

They are updated block by block while the statistics are built, in the units of the statistics, and
mapped to canonical features afterwards: all of them are linear in x, or bilinear.
"""

from __future__ import annotations

import numpy as np

from sharedspan.inputs.rows import RowBlock, TaskRows
from sharedspan.statistics.folds import assign_folds, hash_key


class FourthMoment:
    """sum over tasks of share_t times sum over rows of w y^2 x x', (d, d).

    x and y are centred at their task's means if tasks have intercepts.
    """

    def __init__(self, n_features: int, shares: np.ndarray, centred: bool) -> None:
        self.total = np.zeros((n_features, n_features))
        self.shares = shares  # (T,)
        self.centred = centred

    def watch(self, block: RowBlock) -> None:
        """Take in a block, whose rows are in the units of the statistics."""
        X, y = block.X, block.y
        if self.centred:
            owner = np.repeat(np.arange(len(block.ids)), np.diff(block.starts))
            n = _per_segment(block.weight, block)
            X = X - (_per_segment(block.weight[:, None] * X, block) / n[:, None])[owner]
            y = y - (_per_segment(block.weight * y, block) / n)[owner]
        share = np.repeat(self.shares[block.ids], np.diff(block.starts))
        self.total += X.T @ ((share * block.weight * y**2)[:, None] * X)


class HalfMoments:
    """The covariance of x and y over two halves of each task's rows, (2, T, d)."""

    def __init__(self, tasks: TaskRows, centred: bool, rng: np.random.Generator) -> None:
        T, d = tasks.n_tasks, tasks.n_features
        self.halves = assign_folds(tasks, hash_key(d, rng), 2)
        self.centred = centred
        self.n, self.y = np.zeros((2, T)), np.zeros((2, T))
        self.x, self.xy = np.zeros((2, T, d)), np.zeros((2, T, d))

    def watch(self, block: RowBlock) -> None:
        """Take in a block, whose rows are in the units of the statistics."""
        for half in (0, 1):
            w = np.where(self.halves[block.positions] == half, block.weight, 0.0)
            wX = w[:, None] * block.X
            self.n[half, block.ids] += _per_segment(w, block)
            self.y[half, block.ids] += _per_segment(w * block.y, block)
            self.x[half, block.ids] += _per_segment(wX, block)
            self.xy[half, block.ids] += _per_segment(wX * block.y[:, None], block)

    def means(self) -> np.ndarray:
        """The two averages of each task, (2, T, d)."""
        n = np.maximum(self.n, np.finfo(float).tiny)[..., None]
        means = self.xy / n
        return means - self.x / n * (self.y[..., None] / n) if self.centred else means


def _per_segment(values: np.ndarray, block: RowBlock) -> np.ndarray:
    return np.add.reduceat(values, block.starts[:-1], axis=0)
