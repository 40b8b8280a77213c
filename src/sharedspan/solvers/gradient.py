"""Gradient descent on the factors, with and without a balance term."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from functools import partial

import numpy as np

from sharedspan.objective import Objective
from sharedspan.solvers.initialization import positive, small_random_start
from sharedspan.solvers.initialization import singular_values as estimate_singular_values
from sharedspan.solvers.state import Iterate, Solver, Step


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
