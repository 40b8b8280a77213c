"""Gradient descent on the factors, with and without a balance term."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np

from sharedspan.objective import Objective
from sharedspan.solvers.init import singular_values, small_random_start
from sharedspan.solvers.loop import Iterate, Solver, Step


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
        B, W, R = step.point.B, step.point.W, step.point.R
        D = 4 * balance * step.point.imbalance if balance else np.zeros((B.shape[1], B.shape[1]))
        moved = eta * step.damping
        step = yield Iterate(
            B - moved * (R @ W.T + B @ D),
            W - moved * (B.T @ R - D @ W),
            balance,
            phase,
            may_stop,
        )
    return step


def gd(
    objective: Objective, k: int, rng: np.random.Generator, *, max_iter: int, tol: float
) -> Solver:
    """Gradient descent on the plain loss (the paper's Loss 1), step 0.5 / s_1, TPGD's start."""
    s = singular_values(objective, k, rng)
    step = yield Iterate(*small_random_start(objective, k, 0.01 * math.sqrt(s[0]), rng))
    yield from descend(step, 0.5 / s[0] if s[0] else 0.0)


def gd_balanced(
    objective: Objective, k: int, rng: np.random.Generator, *, max_iter: int, tol: float
) -> Solver:
    """Gradient descent on loss + |B'B - WW'|_F^2 / 2 (Loss 2), step 0.1 / s_1, TPGD's start.

    At weight 1/2 steps above 0.25 / s_1 are unstable.
    """
    s = singular_values(objective, k, rng)
    step = yield Iterate(*small_random_start(objective, k, 0.01 * math.sqrt(s[0]), rng), 1 / 2)
    yield from descend(step, 0.1 / s[0] if s[0] else 0.0, balance=1 / 2)
