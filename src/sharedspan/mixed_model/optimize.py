"""The best covariance of one structure and rank, by marginal likelihood.

The entries of D are optimised by Fisher scoring on their logarithms; D and L together by L-BFGS,
from the directions along which the likelihood rises most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sharedspan.mixed_model.likelihood import Evidence, MixedTasks
from sharedspan.mixed_model.structures import VarianceGroups, variance_groups

PRIOR_STD = 1.0  # prior deviation of the log variances of single slopes around their mean
LOWEST, HIGHEST = -18.0, 12.0  # bounds of a log variance, relative to the noise
NEGLIGIBLE_LOG = -14.0  # log variances below are set to zero variance
FIRST_VARIANCE = 0.03
SCORING_STEPS = 200
SEARCH_STEPS = 60  # of L-BFGS


@dataclass(frozen=True)
class CovarianceFit:
    """A covariance with its evidence.

    ``value`` is the log marginal likelihood and the log prior of the variances, ``penalty`` the
    price of the fitted parameters, in log probability, had they been integrated out.
    """

    structure: str
    variances: np.ndarray  # (p,) diagonal of D
    loadings: np.ndarray  # (p, k) L
    tau: float  # prior variance of the slopes of b, over the noise; infinite is flat
    evidence: Evidence
    value: float
    penalty: float
    n_iter: int
    converged: bool

    @property
    def covariance(self) -> np.ndarray:
        """C = D + LL', (p, p), relative to the noise variance."""
        return np.diag(self.variances) + self.loadings @ self.loadings.T

    @property
    def rank(self) -> int:
        """Columns of L."""
        return self.loadings.shape[1]

    @property
    def task_values(self) -> np.ndarray:
        """Log likelihoods of the tasks at b, (T,)."""
        return self.evidence.terms.log_likelihoods(self.evidence.mean, self.evidence.noise)

    @property
    def score(self) -> float:
        """The criterion by which fits are compared."""
        return self.value - self.penalty


class CovarianceOptimizer:
    """Maximises the marginal likelihood of compressed tasks over one covariance structure.

    Parameters
    ----------
    tasks : MixedTasks
    flat : bool
        No prior on b, which takes its best value, nor on D: maximum likelihood.
    weight : ndarray of shape (T,), optional
        Weights of the tasks in the likelihood; by default one each.
    """

    def __init__(
        self, tasks: MixedTasks, flat: bool = False, weight: np.ndarray | None = None
    ) -> None:
        self.tasks, self.flat = tasks, flat
        self.weight = np.ones(tasks.n_tasks) if weight is None else weight
        self.p, self.intercept = tasks.p, tasks.intercept
        # Schwarz's price of a fitted number, in log likelihood.
        self.parameter_price = 0.5 * math.log(max(tasks.n_tasks, 2))

    def reweighted(self, weight: np.ndarray) -> CovarianceOptimizer:
        """The same optimisation with other weights (T,) of the tasks."""
        return CovarianceOptimizer(self.tasks, self.flat, weight)

    def fit_variances(
        self, structure: str, start: CovarianceFit | None = None, tol: float | None = None
    ) -> CovarianceFit:
        """The best D of a structure without L, by Fisher scoring with damped steps.

        It ends when a step gains less than ``tol`` in the log likelihood; by default what no
        posterior notices, or, for maximum likelihood, what no other software would improve.
        """
        tol = (1e-8 if self.flat else 1e-4) if tol is None else tol
        groups = variance_groups(structure, self.p, self.intercept, self.flat)
        L = np.zeros((self.p, 0))
        at = _Point(self, groups, self._initial_theta(groups, structure, start), L)
        damping, converged, steps = 1e-3, False, 0
        while not converged and steps < SCORING_STEPS:
            steps += 1
            gradient, information = at.derivatives()
            # A variance at its bound whose gradient points outwards stays there.
            stuck = (at.theta <= LOWEST) & (gradient <= 0) | (at.theta >= HIGHEST) & (gradient >= 0)
            free = ~stuck
            if not free.any():
                converged = True
                continue
            H = information[np.ix_(free, free)]
            H = H + np.diag(damping * np.diag(H) + 1e-10)
            step = np.zeros_like(at.theta)
            step[free] = np.clip(np.linalg.lstsq(H, gradient[free], rcond=None)[0], -3.0, 3.0)
            new = _Point(self, groups, np.clip(at.theta + step, LOWEST, HIGHEST), L)
            gain = new.value - at.value
            if gain >= 0:
                at, damping = new, max(damping / 10, 1e-9)
                converged = gain <= max(tol, 1e-12 * abs(at.value))
            else:
                damping = max(damping, 1e-4) * 10
                converged = damping > 1e9  # no step, however small, gains anything
        return at.fit(structure, steps, converged)

    def _initial_theta(
        self, groups: VarianceGroups, structure: str, start: CovarianceFit | None
    ) -> np.ndarray:
        """Log variances of the groups and, unless the prior on b is flat, log tau."""
        theta, tau = np.full(len(groups.entries), math.log(FIRST_VARIANCE)), 0.1
        if start is not None:
            D = start.variances
            typical = float(D[int(self.intercept) :].mean()) or FIRST_VARIANCE
            least = 0.05 * typical if start.structure != structure else math.exp(LOWEST)
            theta = np.array([math.log(max(D[g].mean(), least)) for g in groups.entries])
            tau = start.tau
        return theta if self.flat else np.append(theta, math.log(min(max(tau, 1e-6), 1e4)))

    def fit_loadings(
        self, start: CovarianceFit, k: int, steps: int = SEARCH_STEPS
    ) -> CovarianceFit:
        """D and L of rank k together, from ``start`` and the most promising new directions."""
        from scipy.optimize import minimize

        groups = variance_groups(start.structure, self.p, self.intercept, self.flat)
        L = np.column_stack([start.loadings, self.new_directions(start, k - start.rank)])
        theta = self._initial_theta(groups, start.structure, start)
        m = len(theta)

        def point(x: np.ndarray) -> _Point:
            return _Point(self, groups, x[:m], x[m:].reshape(self.p, k))

        def negative(x: np.ndarray) -> tuple[float, np.ndarray]:
            at = point(x)
            gradient, _ = at.derivatives(information=False)
            slope = 2 * at.evidence.gradient @ at.loadings
            return -at.value, -np.concatenate([gradient, slope.ravel()])

        result = minimize(
            negative, np.concatenate([theta, L.ravel()]), jac=True, method="L-BFGS-B",
            bounds=[(LOWEST, HIGHEST)] * m + [(None, None)] * (self.p * k),
            options={"maxiter": steps, "maxcor": 20},
        )  # fmt: skip
        return point(result.x).fit(start.structure, int(result.nit), bool(result.success))

    def new_directions(self, fit: CovarianceFit, count: int) -> np.ndarray:
        """New columns of L (p, count): where the gradient is steepest, each of a first size.

        Lengths are measured by the information, so units do not matter, and the size is that of
        the best step along the direction.
        """
        mean = np.tensordot(self.weight, fit.evidence.terms.K, 1) / self.weight.sum()
        values, Q = np.linalg.eigh(mean)
        root = Q * (1 / np.sqrt(np.maximum(values, 1e-8 * values[-1])))
        slopes, directions = np.linalg.eigh(root.T @ fit.evidence.gradient @ root)
        columns = []
        for slope, u in zip(slopes[::-1][:count], directions.T[::-1][:count], strict=True):
            column = root @ u
            size = max(slope, 1e-3) / max(0.5 * self._squared_information(fit, column), 1e-12)
            columns.append(math.sqrt(min(max(size, 1e-2), 1e2)) * column)
        return np.array(columns).reshape(count, self.p).T

    def score_test(self, fit: CovarianceFit) -> float:
        """The gain in log likelihood that one more direction promises: its score test."""
        column = self.new_directions(fit, 1)[:, 0]
        slope = float(column @ fit.evidence.gradient @ column)
        return max(slope, 0.0) ** 2 / max(self._squared_information(fit, column), 1e-300)

    def _squared_information(self, fit: CovarianceFit, column: np.ndarray) -> float:
        """Sum over tasks of (l'K_t l)^2 for a column l (p,) of L."""
        along = np.einsum("i,tij,j->t", column, fit.evidence.terms.K, column)
        return float(self.weight @ along**2)

    def standardised_gain(self, fit: CovarianceFit, over: CovarianceFit) -> float:
        """The gain in score of a fit over another, in standard errors over the tasks.

        A gain that comes from a task or two has a large error: it may not be there next time.
        """
        gaps = (fit.task_values - over.task_values) * self.weight
        error = math.sqrt(len(gaps)) * float(gaps.std())
        return (fit.score - over.score) / max(error, 1e-12)


class _Point:
    """Parameters theta (log variances, then log tau unless flat) and L, with the evidence there."""

    def __init__(
        self, optimizer: CovarianceOptimizer, groups: VarianceGroups, theta: np.ndarray,
        loadings: np.ndarray,
    ) -> None:  # fmt: skip
        self.optimizer, self.groups = optimizer, groups
        self.theta, self.loadings = theta, loadings
        self.D = np.zeros(optimizer.p)
        for group, value in zip(groups.entries, np.exp(theta), strict=False):
            self.D[group] = value
        self.tau = math.inf if optimizer.flat else math.exp(theta[-1])
        self.evidence = optimizer.tasks.evaluate(
            np.diag(self.D) + loadings @ loadings.T,
            optimizer.tasks.slope_precision(self.tau),
            optimizer.weight,
            integrated=not optimizer.flat,
        )
        tied = theta[groups.tied]
        self.deviations = (tied - tied.mean()) / PRIOR_STD if len(tied) else tied
        self.value = self.evidence.value - 0.5 * float(np.sum(self.deviations**2))

    def derivatives(self, information: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and expected information of ``value`` in theta."""
        e, tied = self.evidence, self.groups.tied
        slope = np.diag(e.gradient) * self.D
        gradient = np.array([slope[group].sum() for group in self.groups.entries])
        H = self._information() if information else np.zeros((len(gradient), len(gradient)))
        if len(tied):
            gradient[tied] -= self.deviations / PRIOR_STD
            H[np.ix_(tied, tied)] += _centring(len(tied)) / PRIOR_STD**2
        if self.optimizer.flat:
            return gradient, H
        H = np.pad(H, (0, 1))
        H[-1, -1] = e.prior_information
        return np.append(gradient, e.prior_gradient), H

    def _information(self) -> np.ndarray:
        """Expected information on the log variances in the likelihood."""
        K, w = self.evidence.terms.K, self.optimizer.weight
        M = 0.5 * np.einsum("t,tij,tij->ij", w, K, K)
        M *= self.D[:, None] * self.D
        member = np.zeros((len(self.groups.entries), len(M)))
        for i, group in enumerate(self.groups.entries):
            member[i, group] = 1.0
        H = member @ M @ member.T
        # The noise variance is profiled out: what it explains is no information on theta.
        common = 0.5 * member @ (np.einsum("t,tii->i", w, K) * self.D)
        return H - 2 * np.outer(common, common) / float(w @ self.optimizer.tasks.n)

    def fit(self, structure: str, n_iter: int, converged: bool) -> CovarianceFit:
        """The fit at these parameters; negligible variances become zero."""
        D = np.where(math.exp(NEGLIGIBLE_LOG) < self.D, self.D, 0.0)
        return CovarianceFit(
            structure, D, self.loadings, self.tau, self.evidence, self.value, self._penalty(),
            n_iter, converged,
        )  # fmt: skip

    def _penalty(self) -> float:
        """Laplace's price of the tied log variances; log T / 2 for each other number."""
        tied, price = self.groups.tied, self.optimizer.parameter_price
        count, laplace = len(self.groups.entries), 0.0
        if len(tied):
            _, H = self.derivatives()
            centring = _centring(len(tied))
            inside = H[np.ix_(tied, tied)] - centring / PRIOR_STD**2
            scaled = np.eye(len(tied)) + PRIOR_STD**2 * centring @ inside @ centring
            laplace = 0.5 * np.linalg.slogdet(scaled)[1]
            count += 1 - len(tied)
        k = self.loadings.shape[1]
        return laplace + price * count + price * (k * self.optimizer.p - k * (k - 1) // 2)


def _centring(m: int) -> np.ndarray:
    """The projection (m, m) that subtracts the mean."""
    return np.eye(m) - 1 / m
