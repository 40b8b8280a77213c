"""Centres of tasks whose deviations are penalised in the norm of their own Grams.

    minimise  sum_t  loss_t(theta_t) + weight |S_t^(1/2) (theta_t - gamma_t)|,     gamma_t = B w_t

with S_t the curvature of the quadratic loss_t and v_t its minimiser. For a given centre the best
theta_t lies between the centre and v_t, by a soft threshold in the length of the difference:

    theta_t = gamma_t + (1 - weight / rho_t)_+ (v_t - gamma_t),
    rho_t   = |S_t^(1/2) (v_t - gamma_t)| = sqrt(2 [loss_t(gamma_t) - loss_t(v_t)]).

The minimum is loss_t(v_t) plus the Huber function of rho_t: rho_t^2 / 2 up to the weight,
weight rho_t - weight^2 / 2 beyond. It is smooth in the centre, where its gradient is that of the
loss times min(1, weight / rho_t). So only B has to be searched for, by L-BFGS.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sharedspan.objective import Objective
from sharedspan.progress import progress_bar
from sharedspan.solvers.initialization import separate_fits
from sharedspan.solvers.loop import SMALLEST_DAMPING
from sharedspan.solvers.proximal import (
    PATIENCE,
    ROUNDING,
    ROUNDING_OF_ZERO,
    Place,
    ProximalFit,
)
from sharedspan.solvers.quasi_newton import LBFGS

WEAKEST = 1e-3  # the smallest scale of a column of B, over the largest


def huber_descent(
    objective: Objective,
    weight: float,
    weights_of: Callable[[np.ndarray], np.ndarray],
    B: np.ndarray,
    separate: tuple[np.ndarray, np.ndarray],
    *,
    max_iter: int,
    tol: float,
    verbose: int = 0,
) -> ProximalFit:
    """Minimise sum_t loss_t(v_t) + huber(rho_t) over B; the objective never rises.

    Parameters
    ----------
    objective : Objective
    weight : float
    weights_of : callable
        The best W (k, T) for a B (d, k), which depends on the structure of the centres.
    B : ndarray of shape (d, k)
        Start.
    separate : tuple of ndarray
        Least squares of each task (d, T) and their ranks (T,), as ``separate_fits`` gives them.
    max_iter, tol, verbose
        As in ``proximal_descent``.
    """
    V, ranks = separate
    least = objective.residuals(V)[1]
    slack = ROUNDING_OF_ZERO * objective.residuals(0 * V)[1].sum()
    # In columns of this scale the Hessian is near the identity, as in variable projection.
    scale = np.linalg.norm(weights_of(B), axis=1)
    scale = np.maximum(scale, WEAKEST * scale.max()) + (scale.max() == 0)

    def evaluate(Z: np.ndarray) -> tuple[Place, np.ndarray, np.ndarray]:
        """The centres of B = Z / scale, the gradient in Z, and min(1, weight / rho_t)."""
        B = Z / scale
        W = weights_of(B)
        R, losses = objective.residuals(B @ W)
        square = 2 * np.maximum(losses - least, 0.0)
        rho = np.sqrt(square)
        share = np.divide(weight, rho, out=np.ones_like(rho), where=rho > weight)
        values = least + share * (1 - share / 2) * square
        place = Place(B, W, 0 * V, values, R * share, np.full_like(rho, weight))
        return place, place.G @ W.T / scale, share

    Z, search = B * scale, LBFGS()
    at, gradient, share = evaluate(Z)
    quiet, trace = 0, [at.values.sum()]
    with progress_bar(show=verbose > 0, transient=verbose < 2) as progress:
        while len(trace) <= max_iter and quiet < PATIENCE:
            step, damping = search.direction(gradient), 1.0
            new, slope, new_share = evaluate(Z + step)
            while not new.values.sum() <= trace[-1] * (1 + ROUNDING) + slack:
                damping /= 2
                if damping < SMALLEST_DAMPING:
                    break
                new, slope, new_share = evaluate(Z + damping * step)
            else:
                search.remember(damping * step, slope - gradient)
                Z, at, gradient, share = Z + damping * step, new, slope, new_share
            trace.append(at.values.sum())
            quiet = quiet + 1 if trace[-2] - trace[-1] <= tol * trace[-1] + slack else 0
            progress("fitting", len(trace) - 1, max_iter)
    centres = at.B @ at.W
    # Along directions in which a task has no rows its coefficients stay those of its centre.
    nearest = V if (ranks == len(V)).all() else separate_fits(objective, centres)[0]
    D = (1 - share) * (nearest - centres)
    place = Place(at.B, at.W, D, at.values, at.G, at.threshold)
    return ProximalFit(place, np.array(trace), quiet >= PATIENCE)


def nearest_centres(objective: Objective, B: np.ndarray) -> np.ndarray:
    """W (K, T) that gives each task its best centre, a column of B: r_t there, zero elsewhere."""
    r, (_, K) = objective.response, B.shape
    label = np.zeros(len(r), dtype=int)
    if K > 1:
        label = np.argmin([objective.residuals(np.outer(b, r))[1] for b in B.T], axis=0)
    return r * (np.arange(K)[:, None] == label)
