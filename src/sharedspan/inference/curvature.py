"""Curvature of the likelihood of a mixed model in its variance parameters.

Gradients are exact, so central differences of them give second derivatives to eight digits or so,
if the steps suit the parameters: a small share of the standard deviation that a parameter belongs
to, or, for one near zero, of what the curvature itself says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model.objective import MixedObjective, VarianceComponent

FIRST_STEP = 1e-4  # relative to the standard deviation that a parameter belongs to
SUITABLE = 1e-6, 0.05  # steps times the root of the curvature
NEXT_STEP = 1e-3  # of a step that was not suitable, times the root of the curvature
MOST_TRIES = 6
NULL = 1e-7  # scaled curvature that rounding cannot be told from
LEAST_CURVATURE = 1e-4  # of a direction in which a function is minimised
GRADIENT_TOL = 1e-3  # of a minimum per standard error: it is then exact to the square of this
START = 0.1  # standard errors of a variance of zero at which a minimisation starts


@dataclass(frozen=True)
class LikelihoodCurvature:
    """Derivatives at some variance parameters theta (q,)."""

    hessian: np.ndarray  # (q, q) of the deviance -2 log L
    scale: np.ndarray  # (q,) one over the root of the curvature of theta's rows
    fixed: np.ndarray  # (q, f) derivatives of the estimates of the fixed effects
    fixed_covariance: np.ndarray  # (q, f, f) derivatives of their covariance

    @property
    def theta_covariance(self) -> np.ndarray:
        """Covariance of theta (q, q): the inverse of the Hessian of -log L.

        Directions without curvature, as at variances of zero, have none here.
        """
        scaled = 0.5 * self.hessian * self.scale * self.scale[:, None]
        values, axes = np.linalg.eigh(scaled)
        used = values > NULL * max(values[-1], 0.0)
        root = self.scale[:, None] * (axes[:, used] / np.sqrt(values[used]))
        return root @ root.T

    def whitening(self, jacobian: np.ndarray) -> np.ndarray:
        """R (r, r) with R'HR = I, where H is half the Hessian in r other coordinates.

        ``jacobian`` (q, r) has the derivatives of theta in them. Directions of hardly any curvature
        are treated as if they had some.
        """
        H = jacobian.T @ (0.5 * self.hessian) @ jacobian
        size = np.linalg.norm(jacobian / self.scale[:, None], axis=0)
        scale = 1 / np.where(size > 0, size, 1.0)
        values, axes = np.linalg.eigh(H * scale * scale[:, None])
        return scale[:, None] * (axes / np.sqrt(np.maximum(values, LEAST_CURVATURE)))


@one_blas_thread()
def likelihood_curvature(
    objective: MixedObjective, theta: np.ndarray, *, restricted: bool
) -> LikelihoodCurvature:
    """Second derivatives of the likelihood and first ones of the fixed effects."""
    rows, stds = theta_rows(objective.components(theta))
    steps, q = np.maximum(FIRST_STEP * stds, np.finfo(float).tiny), len(theta)
    steps[stds <= 0] = FIRST_STEP * np.exp(theta[-1])
    estimate, covariance = objective.fixed(theta)
    hessian, scale = np.empty((q, q)), np.empty(q)
    fixed, fixed_covariance = np.empty((q, *estimate.shape)), np.empty((q, *covariance.shape))

    def differences(i: int, step: float) -> None:
        change = np.zeros(q)
        change[i] = step
        sides = []
        for at in (theta + change, theta - change):
            sides.append((objective.deviance(at, restricted=restricted)[1], *objective.fixed(at)))
        for out, up, down in zip((hessian, fixed, fixed_covariance), *sides, strict=True):
            out[i] = (up - down) / (2 * step)

    for row in range(rows[-1] + 1):
        entries, step = np.flatnonzero(rows == row), float(steps[row])
        for _ in range(MOST_TRIES):
            for i in entries.tolist():
                differences(i, step)
            root = np.sqrt(np.abs(hessian[entries, entries]).max())
            if SUITABLE[0] <= step * root <= SUITABLE[1]:
                break
            step = NEXT_STEP / root if root > 0 else step / NEXT_STEP
        scale[entries] = 1 / root if root > 0 else 1.0
    return LikelihoodCurvature((hessian + hessian.T) / 2, scale, fixed, fixed_covariance)


@one_blas_thread()
def minimised(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray, R: np.ndarray
) -> tuple[np.ndarray, float]:
    """The minimum of a function with its gradient, from ``start``, in coordinates R^-1 theta."""
    from scipy.optimize import minimize

    def whitened(at: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = function(start + R @ at)
        return value, R.T @ gradient

    options = {"gtol": GRADIENT_TOL}
    result = minimize(whitened, np.zeros(R.shape[1]), jac=True, method="BFGS", options=options)
    return start + R @ result.x, float(result.fun)


def off_zero(
    theta: np.ndarray, components: list[VarianceComponent], scale: np.ndarray
) -> np.ndarray:
    """Theta, but variances of zero a little larger; ``scale`` (q,) are standard errors, or so.

    The deviance is even in the diagonal of a factor: at zero it would not seem to fall, though zero
    need not be the best once another parameter has moved.
    """
    diagonal = np.concatenate([np.equal(*component.free_entries) for component in components])
    diagonal &= np.concatenate(
        [np.full(len(each.free_entries[0]), each.kind != "residual") for each in components]
    )
    small = diagonal & (np.abs(theta) < START * scale)
    return np.where(small, np.where(theta < 0, -START, START) * scale, theta)


def theta_rows(components: list[VarianceComponent]) -> tuple[np.ndarray, np.ndarray]:
    """The number of the effect that each entry of theta belongs to (q,), and their deviations.

    The deviation of the noise, whose logarithm theta holds, is given as one.
    """
    rows: list[np.ndarray] = []
    stds: list[np.ndarray] = []
    count = 0
    for component in components:
        own, _ = component.free_entries
        rows.append(count + own)
        stds.append(np.ones(1) if component.kind == "residual" else component.std)
        count += len(component.names)
    return np.concatenate(rows), np.concatenate(stds)
