"""Working statistics: quadratic log likelihoods of tasks whose responses are not normal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class WorkingStatistics:
    """Quadratic log likelihoods of the tasks, in standard units."""

    packed: np.ndarray  # (T, p (p + 1) / 2) upper triangles of H_t
    score: np.ndarray  # (T, p) s_t
    mode: np.ndarray  # (T, p) v_t
    linear: np.ndarray  # (T, p) a_t
    value: np.ndarray  # (T,) log likelihoods at the modes
    n: np.ndarray  # (T,) sums of sample weights
    centred: bool  # whether tasks have intercepts

    @property
    def n_tasks(self) -> int:
        return len(self.n)

    @property
    def n_features(self) -> int:
        return self.score.shape[1] - self.centred

    def take(self, ids: np.ndarray) -> WorkingStatistics:
        """The working statistics of the tasks ``ids``."""
        return WorkingStatistics(
            self.packed[ids], self.score[ids], self.mode[ids], self.linear[ids], self.value[ids],
            self.n[ids], self.centred,
        )  # fmt: skip
