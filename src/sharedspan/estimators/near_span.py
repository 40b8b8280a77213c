"""The parts common to ARMUL and penalised ERM: the noise level, and the fit from a descent."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sharedspan.estimators.fitted import FittedSpan
from sharedspan.inference.noise import shared_noise
from sharedspan.objective import Objective
from sharedspan.solvers.loop import run
from sharedspan.solvers.proximal import ProximalFit
from sharedspan.solvers.scaled import scaled_gd
from sharedspan.statistics.canonical import Problem


def noise_level(
    objective: Objective, separate: np.ndarray, k: int, centred: bool, max_iter: int
) -> float:
    """Standard deviation of the noise, in the units of the statistics.

    It is estimated from the residuals of separate least squares (d, T), which outlier tasks do not
    disturb, or, if tasks have too few rows for that, from a joint fit of rank k.
    """
    spare = np.maximum(objective.n - objective.n_features - centred, 0.0)
    if spare.sum() < objective.n_tasks:
        joint = run(scaled_gd(objective, k), objective, max_iter=max_iter, tol=1e-4)
        return float(np.sqrt(shared_noise(objective, joint.loss, k, centred)[0]))
    squares = objective.squares(np.eye(len(separate)), separate)
    return float(np.sqrt(squares[spare > 0].sum() / spare.sum()))


def fit_of_descent(
    problem: Problem,
    objective: Objective,
    descent: ProximalFit,
    V: np.ndarray,
    rank: int,
    sigma: float,
    **fields: Any,
) -> FittedSpan:
    """The fit with the span of a descent, its trace, and coefficients V (d, T)."""
    B, W, _ = descent.place.parts
    losses = problem.canonical.units.squares_to_user(2 / objective.n_tasks * descent.trace)
    return FittedSpan.from_factors(
        problem, objective.response, B, W, rank,
        off_span=V - B @ W,
        variance=np.full(objective.n_tasks, sigma**2),
        n_iter=len(descent.trace) - 1,
        converged=descent.converged,
        trace={
            "iteration": np.arange(len(descent.trace)), "objective": losses,
        },
        **fields,
    )  # fmt: skip


def warn_unless_converged(name: str, descent: ProximalFit, tol: float) -> None:
    """Warn if a descent stopped at max_iter."""
    if not descent.converged and tol > 0:
        warnings.warn(
            f"{name} did not converge in {len(descent.trace) - 1} iterations. The last iterate is "
            "used. Raise max_iter, or lower the rank.",
            ConvergenceWarning,
            stacklevel=7,
        )
