"""Generalised mixed models by Laplace's approximation: reweighted rows, turn by turn.

A turn reads the rows once and finds the modes of all tasks (``modes.py``). The covariance of the
effects is then optimised on the quadratics around these modes by the code of the Gaussian model.
Their linear terms make the fixed point the maximum of Laplace's approximation of the marginal
likelihood. Structures and ranks are compared at their own modes: at those of a smaller covariance
a larger one looks worse than it is.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import numpy as np

from sharedspan.families import Family, NegativeBinomial
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.modes import FamilyRows
from sharedspan.mixed_model.optimize import CovarianceFit, CovarianceOptimizer
from sharedspan.mixed_model.structures import Coefficients
from sharedspan.mixed_model.terms import Covariance

MOST_TURNS = 100
SEARCH_TURNS = 8  # of a fit that is compared with others
POOLED_STEPS = 60
MOST_HALVINGS = 12  # of a step
FIRST_TAU = 1.0  # prior variances of b in the pooled fit
FIRST_LOSS = 5.0  # of the objective, that another structure may begin with
SMALLEST_START = 0.02  # of a variance of D, at the modes of other covariances
SMALLEST_DISPERSION, LARGEST_DISPERSION = 1e-3, 1e6


@dataclass(frozen=True)
class Modes:
    """Tasks at the modes of a covariance."""

    tasks: MixedTasks
    family: Family  # with the dispersion of the next turn
    dispersion_gain: float  # what that promises to the log likelihood
    b: np.ndarray  # (p,) mean of the tasks

    @property
    def log_likelihood(self) -> float:
        """Of all rows, at the modes of their tasks."""
        assert self.tasks.working is not None
        return float(self.tasks.working.value.sum())


class FamilyOptimizer(CovarianceOptimizer):
    """Maximises the marginal likelihood of tasks whose responses are not normal.

    Parameters
    ----------
    rows : FamilyRows
    flat : bool
        Maximum likelihood, with no prior on b nor on D.
    restricted : bool
        Whether b is integrated out although its prior is flat.
    start : CovarianceFit, optional
        A fit to some of the tasks, to start from; by default a fit without effects.
    """

    def __init__(
        self, rows: FamilyRows, flat: bool, restricted: bool, start: CovarianceFit | None = None
    ) -> None:
        self.rows, self.restricted, self.n_turns = rows, restricted, 0
        self.integrated = restricted or not flat
        self.grouped = bool(rows.coefficients.members)  # groups of b are always integrated out
        p = rows.p
        none = Covariance(np.zeros(p), np.zeros((p, 0)))
        zeros = np.zeros((rows.n_tasks, p))
        if start is None:
            taus = np.full(len(rows.coefficients.members) + 1, FIRST_TAU)
            taus[0] = math.inf if flat else FIRST_TAU
            self.first_modes = self._pooled(none, zeros, taus, 1e-6 if flat else 1e-3)
            tasks = self.first_modes.tasks
            precision = tasks.prior_precision(taus)
            self.first_value = tasks.evaluate(none, precision, integrated=self.integrated).value
        else:
            e, self.first_value = start.evidence, -math.inf
            self.first_modes = self._turn(
                start.modes.family, e.mean, start.covariance, zeros, e.mean_covariance
            )
        super().__init__(self.first_modes.tasks, flat)

    def _fit(
        self, structure: str, rank: int, start: CovarianceFit | None, tol: float | None, steps: int
    ) -> CovarianceFit:
        """At its own modes; without steps the covariance is evaluated at the modes of the start."""
        modes = self.first_modes
        if start is not None and start.modes.tasks.n_tasks == modes.tasks.n_tasks:
            tasks = start.modes.tasks.with_coefficients(self.rows.coefficients)
            modes = replace(start.modes, tasks=tasks)
        inner = CovarianceOptimizer(modes.tasks, self.flat)
        begin = inner.fit(structure, rank, start, steps=0)
        if not steps:
            return replace(begin, modes=modes)
        columns = begin.covariance.loadings.shape[1]
        turns, inner_tol = SEARCH_TURNS, tol
        if tol is None:
            tol, turns = (1e-7 if self.flat else 1e-3), MOST_TURNS
            inner_tol = tol / 10
        fit = lifted(inner.fit(structure, columns, begin, tol=inner_tol, steps=steps))
        taken, converged, halvings = fit.n_iter, False, 0
        last = replace(begin, evidence=replace(begin.evidence, mean=modes.b))
        # The start is no worse than it was at its own modes, or than no effects at all.
        best = self.first_value if start is None or modes is self.first_modes else start.value
        best, family, last_family = best - FIRST_LOSS, modes.family, modes.family
        for _ in range(turns):
            e = fit.evidence
            tried = self._turn(family, e.mean, fit.covariance, e.scores, e.mean_covariance)
            inner = CovarianceOptimizer(tried.tasks, self.flat)
            before = inner.fit(structure, columns, fit, steps=0)
            reached = objective(before, tried)
            if self._lost(tried) or not reached > best - max(tol, 1e-6 * abs(best)):
                if halvings == MOST_HALVINGS:
                    fit = last  # nothing near it is better
                    break
                fit, halvings = midpoint(last, fit), halvings + 1
                family = mean_dispersion(last_family, family)
                continue
            modes, last, halvings, best = tried, fit, 0, reached
            family, last_family = modes.family, family
            fit = inner.fit(structure, columns, fit, tol=inner_tol, steps=steps)
            taken += fit.n_iter
            converged = fit.value - before.value + modes.dispersion_gain < tol
            if converged:
                break
        return replace(fit, modes=modes, n_iter=taken, converged=converged)

    def with_coefficients(self, coefficients: Coefficients) -> FamilyOptimizer:
        """See CovarianceOptimizer."""
        other = copy.copy(self)
        other.tasks = self.tasks.with_coefficients(coefficients)
        other.rows = self.rows.with_coefficients(coefficients)
        other.first_modes = replace(self.first_modes, tasks=other.tasks)
        return other

    def is_lost(self, fit: CovarianceFit) -> bool:
        """Whether the rows are far less likely at the modes of a fit than without effects."""
        return self._lost(fit.modes)

    def _lost(self, modes: Modes) -> bool:
        """Whether the rows are far less likely at some modes than without effects.

        The objective there may be any number, since its linear terms are of first order.
        """
        without = self.first_modes.log_likelihood
        return not modes.log_likelihood > without - 10 - 0.01 * abs(without)

    def evaluated(self, fit: CovarianceFit, b: np.ndarray, covariance: Covariance) -> CovarianceFit:
        """A fit with other parameters: the tasks at their modes, nothing optimised."""
        e = fit.evidence
        modes = self._turn(fit.modes.family, b, covariance, e.scores, e.mean_covariance)
        tasks = modes.tasks
        new = tasks.evaluate(
            covariance,
            tasks.prior_precision(fit.taus),
            integrated=self.integrated,
            information=True,
        )
        _, scores, _ = tasks.task_values(covariance, b, 1.0)
        new = replace(new, mean=b, scores=scores)
        modes = replace(modes, family=fit.modes.family)
        return replace(fit, covariance=covariance, evidence=new, modes=modes)

    def new_directions(self, fit: CovarianceFit, count: int) -> np.ndarray:
        """See CovarianceOptimizer; at the modes of the fit."""
        tasks = fit.modes.tasks.with_coefficients(self.rows.coefficients)
        return CovarianceOptimizer(tasks, self.flat).new_directions(fit, count)

    def _turn(
        self, family: Family, b: np.ndarray, covariance: Covariance, scores: np.ndarray,
        b_covariance: np.ndarray | None,
    ) -> Modes:  # fmt: skip
        """Read the rows: the tasks at their modes, near those that the scores (T, p) give."""
        self.n_turns += 1
        turn = self.rows.with_family(family).turn(
            b, covariance, scores, b_covariance if self.integrated or self.grouped else None
        )
        information = turn.statistics.packed.max()
        if not (np.isfinite(turn.statistics.score).all() and 0 < information < math.inf):
            raise np.linalg.LinAlgError("The likelihood has no curvature at these values.")
        tasks = MixedTasks(
            turn.statistics, self.rows.scaling, restricted=self.restricted,
            coefficients=self.rows.coefficients,
        )  # fmt: skip
        gain = 0.0
        if isinstance(family, NegativeBinomial):
            family, gain = next_dispersion(family, *turn.dispersion)
        return Modes(tasks, family, gain, b)

    def _pooled(self, none: Covariance, zeros: np.ndarray, taus: np.ndarray, tol: float) -> Modes:
        """The fit without effects of tasks, by Newton's method with step halving.

        The dispersion changes only where b is the best for the present one.
        """
        best, b, family = -math.inf, np.zeros(self.rows.p), self.rows.family
        at, inverse, halvings = b, None, 0
        for _ in range(POOLED_STEPS):
            modes = self._turn(family, b, none, zeros, None)
            tasks = modes.tasks
            assert tasks.working is not None
            precision = tasks.prior_precision(taus)
            value = float(tasks.working.value.sum() - 0.5 * b @ (precision * b))
            if not value > best - 1e-9 * abs(best) and halvings < MOST_HALVINGS:
                b, halvings = 0.5 * (b + at), halvings + 1
                continue
            evidence = tasks.evaluate(none, precision, integrated=self.integrated)
            step = evidence.mean - b
            gain = 0.5 * float(step @ (evidence.total + np.diag(precision)) @ step)
            best, at, b, halvings = value, b, evidence.mean, 0
            inverse = evidence.mean_covariance
            if gain < max(tol, 0.1 * modes.dispersion_gain):
                if modes.dispersion_gain < tol:
                    break
                family, best = modes.family, -math.inf
        return self._turn(family, b, none, zeros, inverse)


def objective(fit: CovarianceFit, modes: Modes) -> float:
    """The objective at the covariance of a fit and the b of the modes that it was evaluated at.

    That of the fit is at the b which is the best for the quadratics around the modes.
    """
    e, tasks = fit.evidence, modes.tasks
    gap = e.mean - modes.b
    curvature = e.total + np.diag(tasks.prior_precision(fit.taus))
    return fit.value - 0.5 * float(gap @ curvature @ gap)


def midpoint(last: CovarianceFit, fit: CovarianceFit) -> CovarianceFit:
    """Parameters half-way between those of two fits."""

    def half(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return 0.5 * (a + b)

    C, D = last.covariance, fit.covariance
    covariance = Covariance(half(C.variances, D.variances), half(C.loadings, D.loadings))
    mean = half(last.evidence.mean, fit.evidence.mean)
    scores = half(last.evidence.scores, fit.evidence.scores)
    evidence = replace(fit.evidence, mean=mean, scores=scores)
    return replace(fit, covariance=covariance, evidence=evidence)


def lifted(fit: CovarianceFit) -> CovarianceFit:
    """The fit with no variance of D too small to recover.

    At the modes of other covariances a variance may seem to be zero, and zero has no way back.
    """
    D, free = fit.covariance.variances, fit.member.any(axis=0)
    if not (D[free] < SMALLEST_START).any():
        return fit
    D = np.where(free, np.maximum(D, SMALLEST_START), D)
    return replace(fit, covariance=replace(fit.covariance, variances=D))


def mean_dispersion(first: Family, second: Family) -> Family:
    """The family with the geometric mean of two dispersions."""
    if isinstance(first, NegativeBinomial) and isinstance(second, NegativeBinomial):
        return first.with_dispersion(math.sqrt(first.dispersion * second.dispersion))
    return second


def next_dispersion(
    family: NegativeBinomial, slope: float, curvature: float
) -> tuple[NegativeBinomial, float]:
    """The family after a step of Newton's method for the log of the dispersion, and its gain.

    The step has a bounded length, and goes uphill where the log likelihood is not concave.
    """
    step = slope / max(-curvature, 0.1 * abs(slope), 1e-12)
    step = min(max(step, -2.0), 2.0)
    low, high = math.log(SMALLEST_DISPERSION), math.log(LARGEST_DISPERSION)
    before = math.log(family.dispersion)
    after = min(max(before + step, low), high)
    return family.with_dispersion(math.exp(after)), 0.5 * abs(slope * (after - before))
