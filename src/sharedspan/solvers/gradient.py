"""Gradient descent: on the factors, with and without a balance term, and on V by projection."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from functools import partial

import numpy as np

from sharedspan.objective import Objective
from sharedspan.solvers.initialization import positive, small_random_start, task_curvatures
from sharedspan.solvers.initialization import singular_values as estimate_singular_values
from sharedspan.solvers.state import Iterate, Solver, Step
from sharedspan.subspace import balanced_factors

UNIT_STEP_LIMIT = 3.0  # curvature up to which a step of one is stable


def descend(
    step: Step,
    eta: float,
    *,
    balance: float = 0.0,
    until: float = math.inf,
    phase: str = "",
    may_stop: bool = True,
) -> Generator[Iterate, Step, Step]:
    """Gradient steps on loss + balance |B'B - WW'|_F^2 up to iteration ``until``.

    B <- B - eta [R W' + 4 balance B (B'B - WW')],  W <- W - eta [B'R - 4 balance (B'B - WW') W].
    """
    while step.iteration < until:
        B, W, RWt, BtR = step.point.B, step.point.W, step.point.grad_B, step.point.grad_W
        D = 4 * balance * step.point.imbalance if balance else np.zeros((B.shape[1], B.shape[1]))
        moved = eta * step.damping
        step = yield Iterate(
            B - moved * (RWt + B @ D),
            W - moved * (BtR - D @ W),
            balance,
            phase,
            may_stop,
        )
    return step


def gd(
    objective: Objective,
    k: int,
    rng: np.random.Generator,
    *,
    max_iter: int,
    tol: float,
    step_size: float = 0.5,
    singular_values: Sequence[float] | None = None,
    balance: float = 0.0,
) -> Solver:
    """Gradient descent on loss + balance |B'B - WW'|_F^2 from TPGD's start.

    The paper's "GD + Loss 1" has no balance term; its "GD + Loss 2", ``gd_balanced``, has 1/2.

    Parameters
    ----------
    step_size : float
        eta s_1. Stable below 1 without a balance term, below 1/4 with balance = 1/2.
    singular_values : sequence of float, optional
        The true s_1 >= ... >= s_k of V*; estimated from the data by default.
    """
    s = estimate_singular_values(objective, k, rng, singular_values)
    eta = positive("step_size", step_size) / s[0] if s[0] else 0.0
    step = yield Iterate(*small_random_start(objective, k, 0.01 * math.sqrt(s[0]), rng), balance)
    yield from descend(step, eta, balance=balance)


gd_balanced = partial(gd, balance=1 / 2, step_size=0.1)


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
        eta; by default 1, or one over the largest curvature of a task if that is above 3.

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
