"""What solvers ask of the data: the loss, its gradients, and least squares in a span."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharedspan.objective.base import Objective, Point
from sharedspan.objective.grams import GramObjective
from sharedspan.objective.rows import RowObjective
from sharedspan.statistics.grams import GramStatistics
from sharedspan.statistics.rows import RowStatistics

__all__ = ["GramObjective", "Objective", "Point", "RowObjective", "build_objective"]


# "auto" takes a GPU from this many bytes of packed Grams on: importing PyTorch and starting CUDA
# takes seconds, in which the CPU makes hundreds of passes over less.
WORTHWHILE = 2**28


def build_objective(
    statistics: Any,
    noise: np.ndarray | None = None,
    dtype: str = "float64",
    backend: Any = "numpy",
) -> Objective:
    """The objective of these statistics, where they lie or on a backend.

    Parameters
    ----------
    statistics : GramStatistics, RowStatistics or ClusterStatistics
    noise : ndarray of shape (T,), optional
        Noise variances of the tasks, up to a common factor.
    dtype : {"float64", "float32"}
        How the statistics are read during the passes.
    backend : {"numpy", "auto", "torch"} or TorchBackend
        Where the passes over Grams run.
    """
    if isinstance(statistics, RowStatistics):
        return RowObjective(statistics, noise, dtype)
    if not isinstance(statistics, GramStatistics):
        return statistics.objective(noise, dtype)  # statistics on a cluster bring their own
    small = isinstance(backend, str) and backend == "auto" and statistics.packed.nbytes < WORTHWHILE
    if backend != "numpy" and not small:
        from sharedspan.objective.backends import TorchObjective, choose_backend

        chosen = choose_backend(backend)
        if chosen is not None:
            return TorchObjective(statistics, noise, dtype, chosen)
    return GramObjective(statistics, noise, dtype)
