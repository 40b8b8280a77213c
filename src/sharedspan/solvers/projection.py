"""Gradient descent on V itself, projected to rank k by a truncated SVD."""

from __future__ import annotations

import numpy as np

from sharedspan.objective import Objective
from sharedspan.solvers.initialization import positive, task_curvatures
from sharedspan.solvers.state import Iterate, Solver
from sharedspan.subspace import balanced_factors

UNIT_STEP_LIMIT = 3.0  # curvature up to which a step of one is stable


def svp(
    objective: Objective,
    k: int,
    rng: np.random.Generator,
    *,
    max_iter: int,
    tol: float,
    fixed_step: float | None = None,
) -> Solver:
    """Singular value projection, the paper's "GD + SVD": V <- H_k(V - eta R(V)) from V = 0.

    Parameters
    ----------
    fixed_step : float, optional
        eta; by default 1, or one over the largest curvature of a task where that is above 3.

    References
    ----------
    Jain, Meka and Dhillon (2010), "Guaranteed rank minimization via singular value projection".
    """
    curvature = task_curvatures(objective, rng).max() if fixed_step is None else 1.0
    eta = 1.0 if curvature <= UNIT_STEP_LIMIT else 1 / curvature
    eta = eta if fixed_step is None else positive("fixed_step", fixed_step)
    step = yield Iterate(np.zeros((objective.n_features, k)), np.zeros((k, objective.n_tasks)))
    while True:
        V = step.point.B @ step.point.W
        step = yield Iterate(*balanced_factors(V - eta * step.damping * step.point.R, k))
