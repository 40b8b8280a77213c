"""Scaled gradient descent: steps preconditioned by the factors, at a rate free of kappa."""

from __future__ import annotations

import numpy as np

from sharedspan.objective import Objective
from sharedspan.solvers.state import Iterate, Solver

STEP = 0.5  # with curvature near the identity this solves the part seen by both factors exactly
RIDGE = 1e-12  # of the trace, where a factor has a null direction


def scaled_gd(
    objective: Objective,
    k: int,
    rng: np.random.Generator | None = None,
    *,
    max_iter: int = 0,
    tol: float = 0.0,
    warm_start: tuple[np.ndarray, np.ndarray] | None = None,
) -> Solver:
    """B <- B - eta R W'(WW')^-1,  W <- W - eta (B'B)^-1 B'R.

    Without a warm start, the rank grows one by one from zero along the leading direction of R.
    Nothing is random here, and nothing depends on the budget of iterations.

    References
    ----------
    Tong, Ma and Chi (2021), "Accelerating ill-conditioned low-rank matrix estimation via scaled
    gradient descent".
    """
    step = yield Iterate(*(grown_start(objective, k) if warm_start is None else warm_start))
    while True:
        B, W, RWt, BtR = step.point.B, step.point.W, step.point.grad_B, step.point.grad_W
        eta = STEP * step.damping
        step = yield Iterate(
            B - eta * np.linalg.solve(ridged(step.point.WWt), RWt.T).T,
            W - eta * (np.linalg.inv(ridged(B.T @ B)) @ BtR),
        )


def grown_start(objective: Objective, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors of rank k grown from zero, one direction at a time."""
    factors = np.zeros((objective.n_features, 0)), np.zeros((0, objective.n_tasks))
    for _ in range(k):
        factors = grow(objective, *factors)
    return factors


def grow(objective: Objective, B: np.ndarray, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factors of one rank more: V less the leading singular pair of R(V), balanced."""
    R, _ = objective.residuals((W.T @ B.T).T)
    _, vectors = np.linalg.eigh(R @ R.T)
    u = vectors[:, -1]
    right = R.T @ u
    root = np.sqrt(max(np.linalg.norm(right), np.finfo(float).tiny))
    return np.column_stack([B, root * u]), np.vstack([W, -right / root])


def ridged(A: np.ndarray) -> np.ndarray:
    """A Gram matrix (k, k) that can be inverted."""
    return A + (RIDGE * np.trace(A) + np.finfo(float).tiny) * np.eye(len(A))
