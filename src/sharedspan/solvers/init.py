"""Starts, and what solvers must know of the scale of a problem."""

from __future__ import annotations

import numpy as np

from sharedspan.objective import Objective

POWER_ITERATIONS = 20


def small_random_start(
    objective: Objective, k: int, scale: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """B0 = a N(0, 1/d) (d, k) and W0 = a/3 N(0, 1/d) (k, T): the input of Algorithm 1.

    A column of W0 shrinks with its task's scale r_t where that is below one (equal sizes have
    r_t = 1): what a small task's rows leave undetermined stays as small as the others' start.
    """
    d = objective.n_features
    B = scale * rng.standard_normal((d, k)) / np.sqrt(d)
    W = scale / 3 * rng.standard_normal((k, objective.n_tasks)) / np.sqrt(d)
    return B, W * np.minimum(objective.response, 1.0)


def singular_values(objective: Objective, k: int, rng: np.random.Generator) -> np.ndarray:
    """Estimates of s_1 >= ... >= s_k of V* from the data, (k,), without an SVD.

    Power iterations on C = [X_t'y_t / n_t], whose expectation is V* in a canonical problem. Noise
    makes them a little too large, which for step sizes is the safe side.
    """
    C, _ = objective.residuals(np.zeros((objective.n_features, objective.n_tasks)))
    Q = rng.standard_normal((objective.n_features, k))
    for _ in range(POWER_ITERATIONS):
        Q, _ = np.linalg.qr(C @ (C.T @ Q))
    return np.linalg.norm(C.T @ Q, axis=0)
