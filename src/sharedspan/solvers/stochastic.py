"""Stochastic gradient descent with injected noise."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

import numpy as np

from sharedspan.objective import Objective, RowObjective
from sharedspan.solvers.initialization import positive, small_random_start
from sharedspan.solvers.initialization import singular_values as estimate_singular_values
from sharedspan.solvers.state import Iterate, Memory, Solver

BALANCE = 1 / 2


def nsgd(
    objective: Objective,
    k: int,
    rng: np.random.Generator,
    *,
    max_iter: int,
    tol: float,
    batch_size: int = 16,
    step_size: float = 0.1,
    injected: float = 0.1,
    restart: bool = False,
    singular_values: Sequence[float] | None = None,
) -> Solver:
    """SGD on Loss 2 with noise injected in the first half of the iterations.

    Each iteration draws ``batch_size`` rows of every task, with replacement. Use
    ``tail_average=True``: the last iterate stays in a ball of noise.

    Parameters
    ----------
    batch_size : int
    step_size : float
        eta s_1; above 0.25 it is unstable.
    injected : float
        Size of the injected noise over s_1^(3/2), the unit of the gradient: a point of the unit
        ball times this is added to the gradient.
    restart : bool
        The paper's ball rule: an epoch ends when the factors have left a ball of radius
        0.1 sqrt(s_1 k) around its start; the run ends when an epoch lasts 1,000 steps.

    singular_values : sequence of float, optional
        The true s_1 >= ... >= s_k of V*; estimated from the data by default.

    References
    ----------
    Fang, Lin and Zhang (2019), "Sharp analysis for nonconvex SGD escaping from saddle points".
    """
    assert isinstance(objective, RowObjective)
    if not isinstance(batch_size, numbers.Integral) or batch_size < 1:
        raise ValueError(f"batch_size={batch_size!r} must be an integer of at least 1.")
    s_1 = estimate_singular_values(objective, k, rng, singular_values)[0]
    eta = positive("step_size", step_size) / s_1 if s_1 else 0.0
    B, W = small_random_start(objective, k, 0.01 * math.sqrt(s_1), rng)
    step = yield Iterate(B, W, BALANCE, monotone=False)
    anchor, began = step.recall((B, W), 0)

    def memory() -> Memory:
        return anchor, began

    while True:
        B, W = step.point.B, step.point.W
        if restart:
            away = math.hypot(np.linalg.norm(B - anchor[0]), np.linalg.norm(W - anchor[1]))
            if away > 0.1 * math.sqrt(s_1 * k):
                anchor, began = (B, W), step.iteration
            elif step.iteration - began >= 1000:
                return
        R = objective.batch_residuals(B, W, batch_size, rng)
        D = 4 * BALANCE * step.point.imbalance
        grad_B, grad_W = R @ W.T + B @ D, B.T @ R - D @ W
        if step.iteration < max_iter / 2:
            noise_B, noise_W = _in_unit_ball(B.shape, W.shape, rng)
            grad_B += injected * s_1 * math.sqrt(s_1) * noise_B
            grad_W += injected * s_1 * math.sqrt(s_1) * noise_W
        moved = eta * step.damping
        step = yield Iterate(
            B - moved * grad_B, W - moved * grad_W, BALANCE, monotone=False, memory=memory
        )


def _in_unit_ball(
    first: tuple[int, ...], second: tuple[int, ...], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A point drawn uniformly from the unit ball of both factors together."""
    a, b = rng.standard_normal(first), rng.standard_normal(second)
    radius = rng.random() ** (1 / (a.size + b.size)) / math.hypot(
        np.linalg.norm(a), np.linalg.norm(b)
    )
    return radius * a, radius * b
