"""Starts, and estimates of the scale of a problem."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sharedspan.kernels.dense import RANK_TOLERANCE
from sharedspan.objective import Objective, RowObjective
from sharedspan.solvers.state import Factors
from sharedspan.statistics.grams import Arrays

POWER_ITERATIONS = 20


def small_random_start(
    objective: Objective, k: int, scale: float, rng: np.random.Generator
) -> Factors:
    """B0 = a N(0, 1/d) (d, k) and W0 = a/3 N(0, 1/d) (k, T): the input of Algorithm 1.

    A column of W0 shrinks with its task's scale r_t if that is below one (equal sizes have
    r_t = 1): weights that the rows of a small task do not determine stay as small as the others'
    start.
    """
    d = objective.n_features
    B = scale * rng.standard_normal((d, k)) / np.sqrt(d)
    W = scale / 3 * rng.standard_normal((k, objective.n_tasks)) / np.sqrt(d)
    return B, W * np.minimum(objective.response, 1.0)


def spectral_start(objective: Objective, k: int) -> tuple[np.ndarray, Any]:
    """The k leading directions of CC' (d, k), C = [X_t'y_t / n_t], and W = 0 (k, T).

    For solvers that take the best W of a given B from the data.
    """
    _, U = np.linalg.eigh(objective.moments())
    return U[:, : -k - 1 : -1], objective.zero_weights(k)


def positive(name: str, value: Any) -> float:
    """The option ``name``, a number above zero."""
    if not isinstance(value, numbers.Real) or not float(value) > 0:
        raise ValueError(f"{name}={value!r} must be a number above zero.")
    return float(value)


def task_curvatures(objective: Objective, rng: np.random.Generator) -> np.ndarray:
    """The largest eigenvalue of each task's curvature X_t'X_t / n_t, (T,), by power iterations."""
    shape = (objective.n_features, objective.n_tasks)
    at_zero, _ = objective.residuals(np.zeros(shape))
    # Of the size of the responses: differences of residuals would lose the digits of smaller V.
    size = np.linalg.norm(at_zero, axis=0)
    size = np.where(size > 0, size, 1.0)
    V = rng.standard_normal(shape)
    norms = np.linalg.norm(V, axis=0)
    for _ in range(POWER_ITERATIONS):
        V = V / np.where(norms > 0, norms, 1.0) * size
        V = (objective.residuals(V)[0] - at_zero) / size
        norms = np.linalg.norm(V, axis=0)
    return norms


def separate_fits(
    objective: Objective, near: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Least-squares coefficients of each task (d, T) and its rank (T,).

    Where the solution is not unique it is the one nearest to ``near`` (d, T), by default to zero.
    """
    near = np.zeros((objective.n_features, objective.n_tasks)) if near is None else near
    _, (V, ranks) = objective.map_shards(_separate_fits, near.T)
    return V.T, ranks


def _separate_fits(objective: Objective, near: np.ndarray) -> tuple[Arrays, Arrays]:
    R = objective.residuals(near.T)[0]
    V, ranks = near.copy(), np.empty(len(near))
    for t in range(len(near)):
        eigenvalues, Q = np.linalg.eigh(objective.curvature(t))
        positive = eigenvalues > RANK_TOLERANCE * max(eigenvalues[-1], 0.0)
        ranks[t] = positive.sum()
        Q, eigenvalues = Q[:, positive], eigenvalues[positive]
        V[t] -= Q @ ((Q.T @ R[:, t]) / eigenvalues)
    return (), (V, ranks)


def random_halves(objective: RowObjective, rng: np.random.Generator) -> np.ndarray:
    """One for the rows of a random half of each task, zero for the others, (rows,)."""
    starts = objective.statistics.starts
    half = np.zeros(starts[-1])
    for first, last in pairwise(starts):
        half[rng.permutation(np.arange(first, last))[: (last - first) // 2]] = 1.0
    return half


def singular_values(
    objective: Objective,
    k: int,
    rng: np.random.Generator,
    given: Sequence[float] | None = None,
) -> np.ndarray:
    """s_1 >= ... >= s_k of V*, (k,): as given, or estimated from the data without an SVD.

    Power iterations on CC', C = [X_t'y_t / n_t], whose expectation is V* in a canonical problem.
    Noise makes them a little too large, which for step sizes is the safe side.
    """
    if given is not None:
        s = np.asarray(given)
        if s.shape != (k,) or s.dtype.kind not in "iuf" or not (s > 0).all():
            raise ValueError(
                f"singular_values={given!r} must hold {k} positive numbers, one per rank."
            )
        return np.sort(s.astype(float))[::-1]
    CCt = objective.moments()
    Q = rng.standard_normal((objective.n_features, k))
    for _ in range(POWER_ITERATIONS):
        Q, _ = np.linalg.qr(CCt @ Q)
    return np.sqrt(np.maximum(np.einsum("ij,ij->j", Q, CCt @ Q), 0.0))
