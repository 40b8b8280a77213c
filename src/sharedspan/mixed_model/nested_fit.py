"""The covariances of both levels of nested groups, by maximum or restricted likelihood.

All entries of the factors F of C = FF', block by block, and the standard deviations of b's variance
groups are optimised together by Newton's method with damped steps (Levenberg and Marquardt). The
average information takes the place of the second derivatives, with what it misses where a variance
vanishes: there F is zero, C changes with the square of F, and the gradient in C is the curvature.
So a variance of zero is an ordinary maximum. If that is slow, as it may be with few rows or with
effects of deficient rank, differences of gradients give the second derivatives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.nested import NestedDerivatives, NestedEvidence, NestedTasks
from sharedspan.mixed_model.nested_factors import BlockFactors, FactorEntries
from sharedspan.mixed_model.optimize import LOWEST
from sharedspan.mixed_model.structures import Block
from sharedspan.mixed_model.terms import Covariance

# Standard deviations of the outer and the inner effects over the noise, to start from. With few
# tasks the likelihood may have several maxima, and all starts are used.
STARTS = (0.5, 0.5), (3.0, 0.3), (0.3, 3.0)
FEW_TASKS = 500
SMALLEST_STD = math.exp(LOWEST / 2)  # of a variance group of b, over the noise
MOST_STEPS = 300
AVERAGE_STEPS = 8  # by the average information, before second derivatives are computed
LARGEST_DIFFERENCED = 40  # parameters whose second derivatives are computed
DIFFERENCE = 1e-4  # of a parameter, for the second derivatives
TOLERANCE = 1e-8  # gain in log likelihood of a step that is not worth another one
ROUNDING_SHARE = 1e-12  # of the log likelihood that is rounding
FLAT = 1e-9  # curvature over the largest, below which a direction is a rotation of columns
MOST_RESTARTS = 5
ADDED_VARIANCES = 1e-1, 1e-3  # that are tried where a vanished variance should grow


Levels = tuple[BlockFactors, BlockFactors]  # of the outer and of the inner covariance


@dataclass(frozen=True)
class NestedFit:
    """The covariances of both levels, relative to the noise, with the evidence there."""

    outer_blocks: tuple[Block, ...]
    inner_blocks: tuple[Block, ...]
    outer: Covariance
    inner: Covariance
    taus: np.ndarray  # (m,) prior variances of b's slopes, infinite, and groups, over the noise
    evidence: NestedEvidence
    restricted: bool
    n_iter: int
    converged: bool

    @property
    def value(self) -> float:
        """The log likelihood in standard units."""
        return self.evidence.value

    @property
    def noise(self) -> float:
        """The variance s2 of the noise in standard units."""
        return self.evidence.noise

    @property
    def mean(self) -> np.ndarray:
        """Fixed effects b in standard units, (p,)."""
        return self.evidence.mean

    @property
    def mean_covariance(self) -> np.ndarray:
        """Covariance of b in standard units, over the noise, (p, p)."""
        return self.evidence.mean_covariance


class _NestedPoint:
    """Parameters theta, with the likelihood there.

    They are the free entries of the outer and of the inner factor, and the standard deviations of
    the variance groups of b.
    """

    def __init__(
        self, nested: NestedTasks, levels: Levels, theta: np.ndarray, restricted: bool
    ) -> None:
        self.nested, self.levels, self.restricted = nested, levels, restricted
        cuts = np.cumsum([len(level.rows) for level in levels])
        parts = np.split(theta, cuts)
        outer, inner = (level.matrix(part) for level, part in zip(levels, parts[:2], strict=True))
        largest = math.sqrt(nested.tasks.largest_variance)
        inner *= np.minimum(1, largest / (np.linalg.norm(inner, axis=0) + 1e-300))
        self.factors = outer, inner
        self.stds = np.maximum(np.abs(parts[2]), SMALLEST_STD)
        self.theta = self.theta_of(self.factors)
        self.covariances = levels[0].covariance(outer), levels[1].covariance(inner)
        self.taus = np.append(math.inf, self.stds**2)
        precision = nested.tasks.prior_precision(self.taus)
        self.evidence = nested.evaluate(*self.covariances, precision, restricted=restricted)

    @property
    def value(self) -> float:
        """The log likelihood."""
        return self.evidence.value

    def theta_of(self, factors: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Theta with other factors."""
        parts = [level.entries(F) for level, F in zip(self.levels, factors, strict=True)]
        return np.concatenate([*parts, self.stds])

    def moved(self, theta: np.ndarray) -> _NestedPoint:
        """The point at other parameters."""
        return _NestedPoint(self.nested, self.levels, theta, self.restricted)

    @cached_property
    def derivatives(self) -> NestedDerivatives:
        """The gradients in both covariances, and the average information on their factors."""
        outer, inner = (
            FactorEntries(F, level.rows, level.columns)
            for F, level in zip(self.factors, self.levels, strict=True)
        )
        return self.nested.derivatives(self.evidence, (outer, inner))

    def gradient(self, derivatives: NestedDerivatives) -> np.ndarray:
        """The gradient of the log likelihood in theta, (q,)."""
        gradients = derivatives.outer, derivatives.inner
        parts = [
            level.gradient(G, F)
            for level, G, F in zip(self.levels, gradients, self.factors, strict=True)
        ]
        return np.concatenate([*parts, 2 * derivatives.prior[1:] / self.stds])

    def information(self) -> np.ndarray:
        """The average information on theta, with the curvature of vanishing variances, (q, q)."""
        d, first = self.derivatives, len(self.levels[0].rows)
        assert d.information is not None
        last = first + len(self.levels[1].rows)
        used = np.r_[0:last, last + 1 : len(d.information)]  # slopes of b have no prior
        J = np.append(np.ones(last), 2 / self.stds)
        H = d.information[np.ix_(used, used)] * J[:, None] * J
        H[:first, :first] += self.levels[0].curvature(d.outer)
        H[first:last, first:last] += self.levels[1].curvature(d.inner)
        H[last:, last:] += np.diag(np.maximum(-2 * d.prior[1:] / self.stds**2, 0.0))
        return H

    def second_derivatives(self) -> np.ndarray:
        """Second derivatives of -log L in theta, by differences of gradients, (q, q)."""
        H = np.empty((len(self.theta), len(self.theta)))
        sizes = DIFFERENCE * (np.abs(self.theta) + 1e-2 * np.abs(self.theta).max() + 1e-6)
        for i, size in enumerate(sizes):
            step = np.zeros(len(sizes))
            step[i] = size
            below, above = (self.moved(self.theta + sign * step) for sign in (-1, 1))
            slopes = [at.gradient(at.nested.derivatives(at.evidence)) for at in (below, above)]
            H[i] = (slopes[0] - slopes[1]) / (2 * size)
        return 0.5 * (H + H.T)


def fit_nested(
    tasks: MixedTasks,
    parent: np.ndarray,
    outer: tuple[Block, ...],
    inner: tuple[Block, ...],
    *,
    restricted: bool,
) -> NestedFit:
    """The covariances of the effects of outer groups and of tasks, of the largest likelihood.

    Parameters
    ----------
    tasks : MixedTasks
        Of Gaussian responses; ``tasks.coefficients`` says which coefficients are fixed effects and
        which form variance groups of b.
    parent : ndarray of int of shape (T,)
        Number of the outer group of each task, from zero.
    outer, inner : tuple of Block
        How coefficients vary between outer groups, and between the tasks of one, in the standard
        units of the tasks. Blocks of low rank have a rank here.
    restricted : bool
        Whether to maximise the restricted likelihood (REML).
    """
    nested = NestedTasks(tasks, parent)
    levels = BlockFactors(outer, tasks.p), BlockFactors(inner, tasks.p)
    starts = [_start(nested, levels, restricted, *stds) for stds in STARTS]
    if tasks.n_tasks > FEW_TASKS:
        starts = [max(starts, key=lambda at: at.value)]
    ends = [_climb_beyond_saddles(at) for at in starts]
    at, _, converged = max(ends, key=lambda end: end[0].value)
    at = _without_negligible(at)
    taken = sum(steps for _, steps, _ in ends)
    return NestedFit(
        outer, inner, *at.covariances, at.taus, at.evidence, restricted, taken, converged
    )


def _start(
    nested: NestedTasks, levels: Levels, restricted: bool, outer: float, inner: float
) -> _NestedPoint:
    """Independent effects of given standard deviations over the noise."""
    factors = [level.independent(std) for level, std in zip(levels, (outer, inner), strict=True)]
    parts = [level.entries(F) for level, F in zip(levels, factors, strict=True)]
    stds = np.full(len(nested.tasks.prior_groups) - 1, outer)
    return _NestedPoint(nested, levels, np.concatenate([*parts, stds]), restricted)


def _climb_beyond_saddles(at: _NestedPoint) -> tuple[_NestedPoint, int, bool]:
    """The maximum above a point, the steps taken, and whether it was reached."""
    taken, converged = 0, False
    for _ in range(MOST_RESTARTS):
        at, steps, converged = _climb(at, MOST_STEPS - taken)
        taken += steps
        higher = _higher(at)
        if higher is None or not converged:
            break
        at = higher
    return at, taken, converged


def _climb(at: _NestedPoint, steps: int) -> tuple[_NestedPoint, int, bool]:
    """The stationary point above a point, the steps taken, and whether it was reached."""
    damping, taken, converged, accepted = 1e-4, 0, not len(at.theta), 0
    model: _Quadratic | None = None
    while not converged and taken < steps:
        taken += 1
        if model is None:
            model = _Quadratic(at, accepted >= AVERAGE_STEPS)
        new = at.moved(at.theta + model.step(damping))
        gain = new.value - at.value
        promised = 0.5 * float((new.theta - at.theta) @ model.gradient)
        tolerance = max(TOLERANCE, ROUNDING_SHARE * abs(at.value))
        if gain >= 0:
            converged = gain <= tolerance and promised <= 10 * tolerance
            at, model, accepted = new, None, accepted + 1
            damping = max(damping / 10, 1e-9)
        else:
            damping = max(damping, 1e-4) * 10
            # No step, however small, gains anything, or none is worth it.
            converged = damping > 1e9 or promised <= tolerance
    return at, taken, converged


class _Quadratic:
    """A quadratic approximation of the log likelihood near a point."""

    def __init__(self, at: _NestedPoint, exact: bool) -> None:
        self.gradient, H = at.gradient(at.derivatives), at.information()
        scale = np.diag(H)
        self.scale = 1 / np.sqrt(np.maximum(scale, 1e-10 * scale.max() + 1e-300))
        if exact and len(H) <= LARGEST_DIFFERENCED:
            H = at.second_derivatives()
        values, self.axes = np.linalg.eigh(H * self.scale[:, None] * self.scale)
        # Where the likelihood is convex, the way up is as long as where it is as concave.
        self.curvatures = np.abs(values)

    def step(self, damping: float) -> np.ndarray:
        """The step to the maximum, shortened by the damping."""
        along = self.axes.T @ (self.scale * self.gradient)
        bent = self.curvatures > FLAT * self.curvatures.max()
        along = np.where(bent, along / (self.curvatures + damping + 1e-300), 0.0)
        return np.asarray(self.scale * (self.axes @ along))


def _higher(at: _NestedPoint) -> _NestedPoint | None:
    """A better point with more variance in a direction that has none, if there is one.

    Where a factor is zero its gradient vanishes, even if the likelihood rises with the variance.
    """
    d, e = at.derivatives, at.evidence
    totals, counts = (e.K.sum(axis=0), e.H.sum(axis=0)), (at.nested.n_outer, at.nested.n_tasks)
    for i, by_covariance in enumerate((d.outer, d.inner)):
        slope, direction = at.levels[i].ascent(by_covariance, totals[i])
        if slope <= math.sqrt(TOLERANCE / counts[i]):
            continue
        for share in ADDED_VARIANCES:
            more = math.sqrt(share * counts[i]) * direction[:, None]
            factors = list(at.factors)
            factors[i] = at.levels[i].factored(np.hstack([factors[i], more]))
            new = at.moved(at.theta_of((factors[0], factors[1])))
            if new.value > at.value + 10 * TOLERANCE:
                return new
    return None


def _without_negligible(at: _NestedPoint) -> _NestedPoint:
    """The point with triangular factors, and without variances that add nothing."""
    levels = at.levels
    tidy = [level.factored(F) for level, F in zip(levels, at.factors, strict=True)]
    fewer = [level.without_negligible(F) for level, F in zip(levels, at.factors, strict=True)]
    fewer = [level.factored(F) for level, F in zip(levels, fewer, strict=True)]
    new = at.moved(at.theta_of((fewer[0], fewer[1])))
    return new if new.value >= at.value - TOLERANCE else at.moved(at.theta_of((tidy[0], tidy[1])))
