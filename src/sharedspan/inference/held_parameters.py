"""One parameter of a mixed model held at a given value, with the others free.

Free coordinates are as many as there are entries of theta. They are entries of factors of
covariances, which stay smooth where variances vanish. A standard deviation is held by giving its
row of the factor that length; a correlation, by giving the second row of the factor a direction,
where the rows of its two effects come first; and a fixed effect b_j = c, by adding

    (b_j(theta) - c)^2 / V_jj(theta)

to the deviance at the best fixed effects.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharedspan.inference.variance_intervals import (
    VarianceParameter,
    component_factor,
    theta_slices,
)
from sharedspan.mixed_model.objective import MixedObjective, VarianceComponent

STEP = 1e-5  # for derivatives of a fixed effect, in standard errors of theta
SMALLEST_START = 1e-2  # of a standard deviation, in standard errors


class HeldParameter:
    """What is common to all: free coordinates that are those of theta, and no penalty."""

    def start(self, theta: np.ndarray, value: float) -> np.ndarray:
        """Free coordinates at theta (q,), where the parameter has this value."""
        return theta.copy()

    def theta(self, free: np.ndarray, value: float) -> np.ndarray:
        """Theta (q,) at free coordinates."""
        return free

    def pull_back(self, free: np.ndarray, value: float, gradient: np.ndarray) -> np.ndarray:
        """The gradient in the free coordinates of a function with this gradient in theta."""
        return gradient

    def penalty(self, theta: np.ndarray, value: float) -> tuple[float, np.ndarray | float]:
        """What holding the parameter adds to the deviance at theta, and its gradient."""
        return 0.0, 0.0

    def jacobian(self, free: np.ndarray, value: float) -> np.ndarray:
        """Derivatives of theta (q, q) in the free coordinates."""
        return np.array([self.pull_back(free, value, row) for row in np.eye(len(free))])


class HeldResidual(HeldParameter):
    """The standard deviation of the noise."""

    def theta(self, free: np.ndarray, value: float) -> np.ndarray:
        return np.append(free[:-1], np.log(value))

    def pull_back(self, free: np.ndarray, value: float, gradient: np.ndarray) -> np.ndarray:
        return np.append(gradient[:-1], 0.0)


class HeldStd(HeldParameter):
    """The standard deviation of an effect: ``entries`` of theta are its row of the factor."""

    def __init__(self, entries: np.ndarray, scale: float) -> None:
        self.entries, self.scale = entries, scale

    def start(self, theta: np.ndarray, value: float) -> np.ndarray:
        free = theta.copy()
        if not free[self.entries].any():
            free[self.entries[-1]] = self.scale
        return free

    def theta(self, free: np.ndarray, value: float) -> np.ndarray:
        theta = free.copy()
        row = free[self.entries]
        theta[self.entries] = value * row / np.linalg.norm(row)
        return theta

    def pull_back(self, free: np.ndarray, value: float, gradient: np.ndarray) -> np.ndarray:
        row, pulled = free[self.entries], gradient.copy()
        length = np.linalg.norm(row)
        unit, slope = row / length, gradient[self.entries]
        pulled[self.entries] = value / length * (slope - unit * (unit @ slope))
        return pulled


class HeldCorrelation(HeldParameter):
    """The correlation of two effects of a component, whose ``at`` is its part of theta."""

    def __init__(
        self, component: VarianceComponent, at: slice, rows: tuple[int, ...], scale: np.ndarray
    ) -> None:
        self.component, self.at = component, at
        others = [i for i in range(len(component.names)) if i not in rows]
        self.order = np.array([*rows, *others])
        self.back = np.argsort(self.order)
        self.entries = component.free_entries
        row, column = self.entries
        first, second, unused = (
            int(np.flatnonzero((row == i) & (column == j))[0]) for i, j in ((0, 0), (1, 0), (1, 1))
        )
        self.logs, self.unused = [at.start + first, at.start + second], at.start + unused
        own = scale[at]
        self.least = SMALLEST_START * np.array([own[row == i].max() for i in rows])

    def start(self, theta: np.ndarray, value: float) -> np.ndarray:
        free = theta.copy()
        factor, _ = _triangular(component_factor(theta[self.at], self.component)[self.order])
        free[self.at] = factor[self.entries]
        free[self.logs] = np.log(np.maximum(np.linalg.norm(factor[:2], axis=1), self.least))
        free[self.unused] = 0.0
        return free

    def _ordered(self, free: np.ndarray, value: float) -> np.ndarray:
        """The factor (m, k), its first two rows those of effects with the correlation ``value``."""
        factor = component_factor(free[self.at], self.component)
        first, second = np.exp(free[self.logs])
        factor[0, 0], factor[1, 0] = first, second * value
        factor[1, 1] = second * np.sqrt(1 - value**2)
        return factor

    def theta(self, free: np.ndarray, value: float) -> np.ndarray:
        theta = free.copy()
        factor, _ = _triangular(self._ordered(free, value)[self.back])
        theta[self.at] = factor[self.entries]
        return theta

    def pull_back(self, free: np.ndarray, value: float, gradient: np.ndarray) -> np.ndarray:
        pulled, ordered = gradient.copy(), self._ordered(free, value)
        factor, rotation = _triangular(ordered[self.back])
        by_factor = np.zeros_like(factor)
        by_factor[self.entries] = gradient[self.at]
        by_ordered = (full_gradient(factor, by_factor) @ rotation)[self.order]
        pulled[self.at] = by_ordered[self.entries]
        pulled[self.logs] = np.einsum("ij,ij->i", by_ordered[:2, :2], ordered[:2, :2])
        pulled[self.unused] = 0.0
        return pulled


class HeldFixedEffect(HeldParameter):
    """The fixed effect with the number j."""

    def __init__(self, objective: MixedObjective, j: int, scale: np.ndarray) -> None:
        self.objective, self.j, self.steps = objective, j, STEP * scale

    def _squares(self, theta: np.ndarray, value: float) -> float:
        estimates, covariance = self.objective.fixed(theta)
        return float((estimates[self.j] - value) ** 2 / covariance[self.j, self.j])

    def penalty(self, theta: np.ndarray, value: float) -> tuple[float, np.ndarray]:
        more = self._squares(theta, value)
        moved = [self._squares(theta + row, value) for row in np.diag(self.steps)]
        return more, (np.array(moved) - more) / self.steps


def hold(
    parameter: VarianceParameter, components: Sequence[VarianceComponent], scale: np.ndarray
) -> HeldParameter:
    """A variance parameter to be held; ``scale`` (q,) are standard errors of theta, or so."""
    component, at = components[parameter.component], theta_slices(components)[parameter.component]
    if parameter.kind == "residual":
        return HeldResidual()
    if parameter.kind == "correlation":
        return HeldCorrelation(component, at, parameter.rows, scale)
    entries = at.start + np.flatnonzero(component.free_entries[0] == parameter.rows[0])
    return HeldStd(entries, float(scale[entries].max()))


def _triangular(root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """F (m, k) and an orthogonal Q (k, k) with R = FQ: F is lower triangular, as R may be."""
    if not np.triu(root, 1).any():
        return root, np.eye(root.shape[1])
    Q, upper = np.linalg.qr(root.T)
    signs = np.where(np.diag(upper) < 0, -1.0, 1.0)
    return np.tril(upper.T * signs), signs[:, None] * Q.T


def full_gradient(factor: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """All entries (m, k) of the gradient D in F of a function of FF', from its lower triangle.

    D is GF with a symmetric G, so F'D is symmetric, and its lower triangle needs only that of D.
    """
    if len(factor) == 2:  # of two effects the first two rows are the factor itself
        return gradient
    k = factor.shape[1]
    lower = np.tril(factor.T @ gradient)
    inner = lower + np.tril(lower, -1).T
    rest = inner - factor[k:].T @ gradient[k:]
    above = np.linalg.lstsq(factor[:k].T, rest, rcond=None)[0]
    full = gradient.copy()
    full[:k] += np.triu(above, 1)
    return full
