"""The objective from the Grams of the tasks."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharedspan.kernels import grams
from sharedspan.objective.base import BlockObjective
from sharedspan.statistics.grams import GramStatistics


class GramObjective(BlockObjective):
    """The objective from per-task sums."""

    def __init__(
        self, statistics: GramStatistics, noise: np.ndarray | None, dtype: str = "float64"
    ) -> None:
        super().__init__(statistics, noise)
        self.packed = statistics.packed.astype(dtype, copy=False)
        self.n_read = float(self.packed.size)

    def _task_residuals(self, V: np.ndarray, *work: Any) -> None:
        s = self.statistics
        grams.gram_residuals(self.packed, s.anchor, s.g, s.q, self.response, self.weights, V, *work)

    def _block_gradients(self, *work: Any) -> None:
        s = self.statistics
        grams.gram_gradients(self.packed, s.anchor, s.g, s.q, self.response, self.weights, *work)

    def _task_normal_matrices(self, B: np.ndarray, *work: Any) -> None:
        grams.gram_normal_matrices(self.packed, self.weights, np.ascontiguousarray(B.T), *work)

    def curvature(self, t: int) -> np.ndarray:
        """See Objective."""
        return self.statistics.gram(t) * self.weights[t]
