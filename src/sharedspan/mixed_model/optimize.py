"""The best covariance of one structure and rank, by marginal likelihood.

The logarithms of the variances in D, the entries of L and the prior of b are optimised together by
Fisher scoring with damped steps (Levenberg and Marquardt): the expected information takes the place
of the second derivatives, and a step that does not gain is shortened.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.mixed_model.likelihood import LARGEST_EXACT, Evidence, MixedTasks
from sharedspan.mixed_model.structures import (
    Coefficients,
    VarianceGroups,
    n_parameters,
    variance_groups,
)
from sharedspan.mixed_model.terms import Covariance, TaskTerms

PRIOR_STD = 1.0  # prior deviation of the log variances of single slopes around their mean
LOWEST, HIGHEST = -18.0, 30.0  # bounds of a log variance, relative to the noise
HIGHEST_TAU = 12.0  # that of a prior variance of b, above the largest variance of an effect
NEGLIGIBLE_LOG = -14.0  # log variances below are set to zero variance
FIRST_VARIANCE = 0.03
FIRST_TAU = 0.1
LONGEST_STRETCH = 16.0  # of a step along a slow ascent
LARGEST_STEP = 3.0  # of a log variance
MAX_STEPS = 1000


@dataclass(frozen=True)
class CovarianceFit:
    """A covariance with its evidence.

    ``value`` is the log marginal likelihood and the log prior of the variances, ``penalty`` the
    price of the fitted parameters, in log probability, had they been integrated out.
    """

    structure: str
    covariance: Covariance
    taus: np.ndarray  # (m,) prior variances of b's slopes and groups, over the noise; inf is flat
    evidence: Evidence
    value: float
    penalty: float
    n_iter: int
    converged: bool
    member: np.ndarray  # (groups, p) one where an entry of D belongs to a group
    varying: np.ndarray  # (v,) coefficients that differ between tasks
    information: np.ndarray  # on the groups' log variances, and on v k entries of L if not too many
    modes: Any = None  # Modes that it was fitted at, if responses are not normal
    n_directions: int = 0  # of a structure that is given: columns of L, the first, of low rank

    @property
    def rank(self) -> int:
        """Directions that coefficients share; an unrestricted covariance has none."""
        if self.structure in ("full", "given"):
            return self.n_directions
        return int(self.covariance.loadings.shape[1])

    @property
    def tau(self) -> float:
        """The prior variance of the slopes of b that are in no group."""
        return float(self.taus[0])

    @property
    def score(self) -> float:
        """The criterion by which fits are compared."""
        return self.value - self.penalty


class CovarianceOptimizer:
    """Maximises the marginal likelihood of tasks over one covariance structure.

    Parameters
    ----------
    tasks : MixedTasks
    flat : bool
        No prior on b but on its groups, nor on D: maximum likelihood.
    weight : ndarray of shape (T,), optional
        Weights of the tasks in the likelihood; by default one each.
    """

    def __init__(
        self, tasks: MixedTasks, flat: bool = False, weight: np.ndarray | None = None
    ) -> None:
        self.tasks, self.flat = tasks, flat
        self.first_tau = int(flat)  # the first prior variance that is fitted
        self.weight = np.ones(tasks.n_tasks) if weight is None else weight
        self.p, self.intercept = tasks.p, tasks.intercept
        self.highest = min(HIGHEST, math.log(tasks.largest_variance))
        # Schwarz's price of a fitted number, in log likelihood.
        self.parameter_price = 0.5 * math.log(max(tasks.n_tasks, 2))

    def reweighted(self, weight: np.ndarray) -> CovarianceOptimizer:
        """A copy with other weights (T,) of the tasks."""
        return CovarianceOptimizer(self.tasks, self.flat, weight)

    def with_coefficients(self, coefficients: Coefficients) -> CovarianceOptimizer:
        """A copy in which other coefficients vary."""
        tasks = self.tasks.with_coefficients(coefficients)
        return CovarianceOptimizer(tasks, self.flat, self.weight)

    def fit(
        self,
        structure: str,
        rank: int = 0,
        start: CovarianceFit | None = None,
        *,
        tol: float | None = None,
        steps: int = MAX_STEPS,
    ) -> CovarianceFit:
        """The best covariance of a structure and a rank, the number of columns of L.

        If the fit to start from has fewer columns, the most promising directions are added. ``tol``
        is the gain in log likelihood of a step that is not worth another one: by default what no
        posterior notices, or, for maximum likelihood, what no other software would improve. At most
        so many steps are made, those that were refused included.
        """
        return self._fit(structure, rank, start, tol, steps)

    def _fit(
        self, structure: str, rank: int, start: CovarianceFit | None, tol: float | None, steps: int
    ) -> CovarianceFit:
        tol = (1e-10 if self.flat else 1e-3) if tol is None else tol
        groups = variance_groups(structure, self.tasks.coefficients, self.intercept, self.flat)
        loadings = self._initial_loadings(structure, rank, start)
        free = self.tasks.coefficients.free_loadings(structure, loadings.shape[1])
        theta = self._initial_theta(groups, structure, start)
        at = _Point(self, groups, theta, loadings, free)
        damping, taken, converged = 1e-3, 0, False
        stretch, last_gain = 1.0, math.inf
        while not converged and taken < steps:
            taken += 1
            step = at.step(damping)
            if not step.any():
                converged = True
                continue
            new = at.moved(stretch * step)
            gain = new.value - at.value
            if gain >= 0:
                converged = stretch == 1 and gain <= max(tol, 1e-12 * abs(at.value))
                at, damping = new, max(damping / 10, 1e-9)
                # Gains that hardly shrink come from one direction: stretch the step.
                slow = gain > 0.5 * last_gain or stretch > 1
                stretch, last_gain = min(2 * stretch, LONGEST_STRETCH) if slow else 1.0, gain
            elif stretch > 1:
                stretch, last_gain = 1.0, math.inf
            else:
                damping = max(damping, 1e-4) * 10
                converged = damping > 1e9  # no step, however small, gains anything
        return at.fit(structure, taken, converged)

    def _initial_theta(
        self, groups: VarianceGroups, structure: str, start: CovarianceFit | None
    ) -> np.ndarray:
        """Log variances of the groups and the logs of the prior variances that are fitted."""
        theta = np.full(len(groups.entries), math.log(FIRST_VARIANCE))
        taus = np.full(len(self.tasks.prior_groups), FIRST_TAU)
        theta = np.minimum(theta, self.highest)
        if start is not None:
            D = start.covariance.variances
            slopes = D[int(self.intercept) :]
            typical = (float(slopes.mean()) if len(slopes) else 0.0) or FIRST_VARIANCE
            least = 0.05 * typical if start.structure != structure else math.exp(LOWEST)
            theta = np.array([math.log(max(D[g].mean(), least)) for g in groups.entries])
            theta, taus = np.minimum(theta, self.highest), start.taus
        least = 1e-6 if self.tasks.working is None else math.exp(LOWEST)
        return np.append(theta, np.log(np.clip(taus[self.first_tau :], least, 1e4)))

    def _initial_loadings(
        self, structure: str, rank: int, start: CovarianceFit | None
    ) -> np.ndarray:
        """L (p, k) to start from."""
        if structure == "given":
            return self._initial_blocks(start)
        if structure == "full" and start is not None and start.structure == "full":
            return start.covariance.loadings
        if structure == "full":
            C = FIRST_VARIANCE * np.eye(self.p) if start is None else start.covariance.matrix
            directed = self.tasks.coefficients.directed
            values, axes = np.linalg.eigh(C[np.ix_(directed, directed)])
            least = 1e-3 * values.max(initial=FIRST_VARIANCE)
            return self.embedded(axes * np.sqrt(np.maximum(values, least)))
        if start is None:
            if rank:
                raise ValueError("Directions are added to a fit: give a start.")
            return np.zeros((self.p, 0))
        L = start.covariance.loadings
        return np.column_stack([L, self.new_directions(start, rank - L.shape[1])])

    def _initial_blocks(self, start: CovarianceFit | None) -> np.ndarray:
        """L (p, k) of the blocks that are given, of a small variance or of that of a start."""
        coefficients = self.tasks.coefficients
        columns = list(coefficients.columns)
        k = columns[-1][1].stop if columns else 0
        if start is not None and start.structure == "given":
            L = start.covariance.loadings
            free = coefficients.free_loadings("given", k)
            if L.shape[1] == k and not L[~free].any():
                return L
        C = FIRST_VARIANCE * np.eye(self.p) if start is None else start.covariance.matrix
        L = np.zeros((self.p, k))
        for block, at in columns:
            members = np.array(block.members)
            values, axes = np.linalg.eigh(C[np.ix_(members, members)])
            least = 1e-3 * max(float(values.max()), FIRST_VARIANCE)
            root = axes * np.sqrt(np.maximum(values, least))
            L[members, at] = root[:, ::-1][:, : block.n_columns]
        return L

    def new_directions(self, fit: CovarianceFit, count: int) -> np.ndarray:
        """New columns of L (p, count): where the gradient is steepest, each of a first size.

        Lengths are measured by the information, so units do not matter, and the size is that of
        the best step along the direction.
        """
        if not count:
            return np.zeros((self.p, 0))
        columns, slopes, squares = self._steepest(fit, count)
        size = np.maximum(slopes, 1e-3) / np.maximum(0.5 * squares, 1e-12)
        return columns * np.sqrt(np.clip(size, 1e-2, 1e2))

    def embedded(self, rows: np.ndarray) -> np.ndarray:
        """Rows of the coefficients that have directions (., k) among those of all, (p, k)."""
        L = np.zeros((self.p, rows.shape[1]))
        L[self.tasks.coefficients.directed] = rows
        return L

    def _steepest(
        self, fit: CovarianceFit, count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Directions l (p, count) of the steepest ascent, their slopes, and sums of (l'K_t l)^2."""
        directed = self.tasks.coefficients.directed
        inside = np.ix_(directed, directed)
        values, Q = np.linalg.eigh(fit.evidence.total[inside] / self.weight.sum())
        root = Q * (1 / np.sqrt(np.maximum(values, 1e-8 * values[-1])))
        slopes, axes = np.linalg.eigh(root.T @ fit.evidence.gradient[inside] @ root)
        columns = self.embedded((root @ axes[:, ::-1])[:, :count])

        def squared(terms: TaskTerms) -> np.ndarray:
            along = np.einsum("ic,tic->tc", columns, terms.K @ columns)
            return self.weight[terms.ids] @ along**2

        squares = np.sum(self.tasks.map_terms(squared, fit.covariance), axis=0)
        return columns, slopes[::-1][:count], squares


class _Point:
    """Parameters theta (logs of variances, then of taus) and L, with the evidence there.

    Rows of L are those of the v coefficients that vary, as far as derivatives are concerned.
    """

    def __init__(
        self, optimizer: CovarianceOptimizer, groups: VarianceGroups, theta: np.ndarray,
        loadings: np.ndarray, free: np.ndarray,
    ) -> None:  # fmt: skip
        self.optimizer, self.groups, self.theta, self.free = optimizer, groups, theta, free
        largest = math.sqrt(optimizer.tasks.largest_variance)
        loadings = loadings * np.minimum(1, largest / (np.linalg.norm(loadings, axis=0) + 1e-300))
        self.varying = np.flatnonzero(optimizer.tasks.coefficients.varying)
        self.member = groups.membership(optimizer.p)
        D = np.exp(theta[: len(self.member)]) @ self.member
        self.covariance = Covariance(D, loadings)
        self.taus = np.full(len(optimizer.tasks.prior_groups), math.inf)
        self.taus[optimizer.first_tau :] = np.exp(theta[len(self.member) :])
        self.evidence = optimizer.tasks.evaluate(
            self.covariance,
            optimizer.tasks.prior_precision(self.taus),
            optimizer.weight,
            integrated=not optimizer.flat or optimizer.tasks.restricted,
            information=True,
        )
        tied = theta[groups.tied]
        self.deviations = (tied - tied.mean()) / PRIOR_STD if len(tied) else tied
        self.value = self.evidence.value - 0.5 * float(np.sum(self.deviations**2))

    def step(self, damping: float) -> np.ndarray:
        """The damped step of Fisher scoring in (theta, L); zeros at a maximum on the bounds."""
        gradient, H = self.gradient(), self.information()
        m = len(self.theta)
        if len(H) > m:
            # A column of L that should vanish has no expected information, but it has curvature.
            inside = np.ix_(self.varying, self.varying)
            values, axes = np.linalg.eigh(self.evidence.gradient[inside])
            curvature = (axes * np.maximum(-2 * values, 0.0)) @ axes.T
            H[m:, m:] += np.kron(curvature, np.eye(self.covariance.loadings.shape[1]))
        # A variance at its bound whose gradient points outwards stays there.
        slope, highest = gradient[:m], self.bounds(self.theta)
        stuck = (self.theta <= LOWEST) & (slope <= 0) | (self.theta >= highest) & (slope >= 0)
        directed = self.free[self.varying].ravel()
        free = np.append(~stuck, directed[: len(H) - m])
        step = np.zeros_like(gradient)
        if free.any():
            at = np.flatnonzero(free)
            H = H[np.ix_(at, at)]
            step[at] = _solve(H + np.diag(damping * np.diag(H) + 1e-10), gradient[at])
        if len(free) < len(gradient):
            step[m:] = self._loadings_step(gradient[m:], damping) * directed
        step[:m] = np.clip(step[:m], -LARGEST_STEP, LARGEST_STEP)
        return step

    def _loadings_step(self, gradient: np.ndarray, damping: float) -> np.ndarray:
        """A step in very many entries of L.

        Their information, sum_t K_t (x) L'K_t L, is taken as the product of its means.
        """
        L = self.covariance.loadings[self.varying]
        total = self.evidence.total[np.ix_(self.varying, self.varying)]
        inner = L.T @ total @ L / float(self.optimizer.weight.sum())
        left, right = ((1 + damping) * np.diag(np.diag(M)) * 1e-6 + M for M in (total, inner))
        step = np.linalg.solve(left, gradient.reshape(L.shape))
        return np.linalg.solve(right, step.T).T.ravel() / (1 + damping)

    def bounds(self, theta: np.ndarray) -> np.ndarray:
        """Upper bounds of theta; that of the prior variances of b rises with those of effects."""
        highest, g = np.full(len(theta), self.optimizer.highest), len(self.member)
        effects = max(float(theta[:g].max(initial=0.0)), 0.0)
        highest[g:] = np.minimum(highest[g:], HIGHEST_TAU + effects)
        return highest

    def moved(self, step: np.ndarray) -> _Point:
        """The point a step further."""
        m, L = len(self.theta), self.covariance.loadings.copy()
        theta = self.theta + step[:m]
        theta = np.clip(theta, LOWEST, self.bounds(theta))
        L[self.varying] += step[m:].reshape(len(self.varying), L.shape[1])
        return _Point(self.optimizer, self.groups, theta, L, self.free)

    def gradient(self) -> np.ndarray:
        """Gradient of ``value`` in theta and the entries of L."""
        e = self.evidence
        slope = self.member @ (np.diag(e.gradient) * self.covariance.variances)
        slope[self.groups.tied] -= self.deviations / PRIOR_STD
        prior = e.prior_gradient[self.optimizer.first_tau :]
        by_loadings = 2 * e.gradient[self.varying] @ self.covariance.loadings
        return np.concatenate([slope, prior, by_loadings.ravel()])

    def information(self) -> np.ndarray:
        """Expected information on theta and on the entries of L, unless these are very many."""
        e, sums, varying = self.evidence, self.evidence.information, self.varying
        L = self.covariance.loadings[varying]
        assert sums is not None
        J = (self.member * self.covariance.variances)[:, varying]  # of dC by theta
        g, m = len(J), len(self.theta)
        pk = L.size if L.size <= LARGEST_EXACT else 0
        H, common = np.zeros((m + pk, m + pk)), np.zeros(m + pk)
        H[:g, :g] = 0.5 * J @ sums.squared @ J.T
        common[:g] = 0.5 * J @ np.diag(e.total)[varying]
        if pk:
            H[:g, m:] = J @ sums.crossed.reshape(len(L), pk)
            H[m:, :g] = H[:g, m:].T
            common[m:] = (e.total[np.ix_(varying, varying)] @ L).ravel()
            H[m:, m:] = sums.loadings
        if self.optimizer.tasks.working is None:
            # The noise is profiled out: what it explains says nothing about the covariance.
            n_rows = float(self.optimizer.weight @ self.optimizer.tasks.n)
            H -= 2 * np.outer(common, common) / n_rows
        tied = self.groups.tied
        if len(tied):
            H[np.ix_(tied, tied)] += _centring(len(tied)) / PRIOR_STD**2
        first = self.optimizer.first_tau
        H[g:m, g:m] = e.prior_information[first:, first:]
        return H

    def fit(self, structure: str, n_iter: int, converged: bool) -> CovarianceFit:
        """The fit at these parameters; negligible variances become zero."""
        D, L = self.covariance.variances, self.covariance.loadings
        D = np.where(math.exp(NEGLIGIBLE_LOG) < D, D, 0.0)
        H, tau = self.information(), np.arange(len(self.member), len(self.theta))
        fixed = ~self.free[self.varying].ravel()
        if fixed.any() and len(H) > len(self.theta):
            H[len(self.theta) :][fixed] = 0.0
            H[:, len(self.theta) :][:, fixed] = 0.0
        information = np.delete(np.delete(H, tau, axis=0), tau, axis=1)
        n_directions = self.optimizer.tasks.coefficients.n_directions if structure == "given" else 0
        return CovarianceFit(
            structure, Covariance(D, L), self.taus, self.evidence, self.value,
            self._penalty(structure, H), n_iter, converged, self.member, self.varying, information,
            n_directions=n_directions,
        )  # fmt: skip

    def _penalty(self, structure: str, information: np.ndarray) -> float:
        """Laplace's price of the tied log variances; log T / 2 for each other number."""
        if structure == "given":
            blocks = self.optimizer.tasks.coefficients.blocks
            return self.optimizer.parameter_price * sum(block.n_parameters for block in blocks)
        tied, price = self.groups.tied, self.optimizer.parameter_price
        count, laplace = len(self.groups.entries), 0.0
        if len(tied):
            centring = _centring(len(tied))
            inside = information[np.ix_(tied, tied)] - centring / PRIOR_STD**2
            scaled = np.eye(len(tied)) + PRIOR_STD**2 * centring @ inside @ centring
            laplace = 0.5 * np.linalg.slogdet(scaled)[1]
            count += 1 - len(tied)
        directed = int(self.optimizer.tasks.coefficients.directed.sum())
        count += n_parameters(directed, self.covariance.loadings.shape[1])
        return float(laplace + price * count)


def _solve(H: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """H^-1 times the gradient, in the least squares sense if rounding makes H indefinite."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    try:
        return cho_solve(cho_factor(H, check_finite=False), gradient, check_finite=False)
    except LinAlgError:
        return np.linalg.lstsq(H, gradient, rcond=None)[0]


def _centring(m: int) -> np.ndarray:
    """The projection (m, m) that subtracts the mean."""
    return np.eye(m) - 1 / m
