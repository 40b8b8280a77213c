"""Adaptive Gauss-Hermite quadrature for mixed models of one or two random effects.

Laplace's approximation takes the effects as normal around their mode, and with few rows per task
its variances are too small. With u = Rx, x ~ N(0, I) of one or two dimensions, mode x_t and
A_t = I + R'H_t R, the likelihood of a task is

    |A_t|^(-1/2) sum_k w_k exp(l_t(x_k) - |x_k|^2 / 2 + |z_k|^2 / 2),
    x_k = x_t + A_t^(-1/2) z_k,

where z_k and w_k are nodes and weights of the standard normal distribution. Its gradient is the
mean of that of the log likelihood over the nodes, weighted by their share of the sum (Fisher's
identity).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sharedspan.families import hermite
from sharedspan.kernels.threads import over_tasks
from sharedspan.mixed_model.laplace import FamilyOptimizer
from sharedspan.mixed_model.likelihood import LARGEST_EFFECT
from sharedspan.mixed_model.modes import FamilyRows, StandardRows
from sharedspan.mixed_model.optimize import CovarianceFit
from sharedspan.mixed_model.posterior import Posterior
from sharedspan.mixed_model.terms import Covariance

MOST_EFFECTS = 2
NODES = {1: 25, 2: 9}  # of each dimension
MUCH_INFORMATION = 25.0  # sum of working weights of a task: Laplace's approximation is as good
MOST_WORK = 4e6  # rows times nodes
SMALLEST_DEVIATION = 1e-4  # of an effect, on the scale of the linear predictor
FIRST_DEVIATION = 0.1  # to start from, if Laplace's approximation has none
FEWEST_TASKS = 5  # fewer tell nothing of a variance between tasks
MOST_STEPS = 200


@dataclass(frozen=True)
class Quadrature:
    """A fit by quadrature, and the moments of the effects of all tasks there."""

    fit: CovarianceFit
    value: float  # log likelihood, at b
    mean: np.ndarray  # (T, q) of x
    covariance: np.ndarray  # (T, q, q)

    def corrected(self, posterior: Posterior) -> Posterior:
        """The posterior with means and covariances of the effects by quadrature."""
        R = self.fit.covariance.root
        tasks = self.fit.modes.tasks
        p = len(R)
        H = np.empty((tasks.n_tasks, p, p))
        upper = np.triu_indices(p)
        H[:, upper[0], upper[1]] = H[:, upper[1], upper[0]] = tasks.working.packed
        A = np.eye(R.shape[1]) + R.T @ H @ R
        change = R @ (self.covariance - np.linalg.inv(A)) @ R.T
        skew = self.mean @ R.T + self.fit.evidence.mean - tasks.working.mode
        packed = posterior.packed + change[:, upper[0], upper[1]].astype(posterior.packed.dtype)
        diagonal = np.flatnonzero(upper[0] == upper[1])
        packed[:, diagonal] = np.maximum(packed[:, diagonal], 0.0)
        return replace(posterior, packed=packed, skew=skew)


def quadrature_matters(rows: FamilyRows, fit: CovarianceFit) -> bool:
    """Whether there are one or two effects, little information on each, and not too much work."""
    if rows.n_tasks < FEWEST_TASKS or not quadrature_is_possible(fit):
        return False
    if rows.rows.n_rows * NODES[n_effects(fit)] ** n_effects(fit) > MOST_WORK:
        return False
    p = rows.p
    diagonal = np.cumsum(np.append(0, np.arange(p, 1, -1)))
    information = fit.modes.tasks.working.packed[:, diagonal].max(axis=1)
    return float(information.mean()) <= MUCH_INFORMATION


def quadrature_is_possible(fit: CovarianceFit) -> bool:
    """Whether there are one or two effects, each with a variance of its own."""
    shared = (fit.member.sum(axis=1) > 1).any()
    return 1 <= n_effects(fit) <= MOST_EFFECTS and not shared


def n_effects(fit: CovarianceFit) -> int:
    """Effects of a task to integrate over."""
    return len(varying_entries(fit)) + int(fit.covariance.loadings.shape[1])


def varying_entries(fit: CovarianceFit) -> np.ndarray:
    """Entries of D that quadrature fits: all of the structure if they are few, else those above 0.

    Where rows are few, a variance may be zero by Laplace's approximation alone.
    """
    all_of_them = np.flatnonzero(fit.member.any(axis=0))
    if len(all_of_them) + fit.covariance.loadings.shape[1] <= MOST_EFFECTS:
        return all_of_them
    return np.flatnonzero(fit.covariance.variances > 0)


def fit_by_quadrature(
    rows: FamilyRows, optimizer: FamilyOptimizer, fit: CovarianceFit
) -> Quadrature:
    """The covariance and b of the largest likelihood by quadrature, from those of Laplace.

    The prior on b stays that of Laplace's approximation.
    """
    from scipy.optimize import minimize

    parameters = _Parameters(fit)
    precision = optimizer.tasks.prior_precision(fit.taus)
    state = {"fit": fit}

    def negative(theta: np.ndarray) -> tuple[float, np.ndarray]:
        b, covariance = parameters.of(theta)
        at = _Evaluation(rows.with_family(fit.modes.family), b, covariance, state["fit"])
        state["fit"] = at.start(state["fit"])
        value = at.value - 0.5 * b @ (precision * b)
        gradient = parameters.gradient(at.b_gradient - precision * b, at.root_gradient)
        return -value, -gradient

    found = minimize(
        negative, parameters.start, jac=True, method="L-BFGS-B", bounds=parameters.bounds,
        options={"maxiter": MOST_STEPS, "ftol": 1e-12, "gtol": 1e-4, "maxcor": 30},
    )  # fmt: skip
    b, covariance = parameters.of(found.x)
    final = optimizer.evaluated(fit, b, covariance)
    at = _Evaluation(rows.with_family(fit.modes.family), b, covariance, final)
    return Quadrature(final, at.value, at.mean, at.covariance)


class _Parameters:
    """b, the deviations of D that vary, and L as one vector."""

    def __init__(self, fit: CovarianceFit) -> None:
        D, self.L = fit.covariance.variances, fit.covariance.loadings
        self.p, self.active = len(D), varying_entries(fit)
        deviations = np.maximum(np.sqrt(D[self.active]), FIRST_DEVIATION)
        self.start = np.concatenate([fit.evidence.mean, deviations, self.L.ravel()])
        largest, coefficients = LARGEST_EFFECT, fit.modes.tasks.coefficients
        self.bounds = (
            [(None, None) if fixed else (0.0, 0.0) for fixed in coefficients.fixed]
            + [(SMALLEST_DEVIATION, largest)] * len(self.active)
            + [
                (-largest, largest) if varies else (0.0, 0.0)
                for varies in coefficients.free_loadings(fit.structure, self.L.shape[1]).ravel()
            ]
        )

    def of(self, theta: np.ndarray) -> tuple[np.ndarray, Covariance]:
        """B and the covariance."""
        m, D = len(self.active), np.zeros(self.p)
        D[self.active] = theta[self.p : self.p + m] ** 2
        return theta[: self.p], Covariance(D, theta[self.p + m :].reshape(self.L.shape))

    def gradient(self, by_b: np.ndarray, by_root: np.ndarray) -> np.ndarray:
        """The gradient, from that in b (p,) and in the root R (p, q) of the covariance."""
        m = len(self.active)
        return np.concatenate([by_b, by_root[self.active, np.arange(m)], by_root[:, m:].ravel()])


class _Evaluation:
    """The log likelihood by quadrature at b and a covariance, with its gradient."""

    def __init__(
        self, rows: FamilyRows, b: np.ndarray, covariance: Covariance, near: CovarianceFit
    ) -> None:
        self.rows, self.b, self.C = rows, b, covariance
        self.R = covariance.root
        T, (p, q) = rows.n_tasks, self.R.shape
        one, weight = hermite(NODES[q])
        grids = np.meshgrid(*[one] * q, indexing="ij")
        self.z = np.stack([grid.ravel() for grid in grids])  # (q, nodes)
        products = np.stack(np.meshgrid(*[weight] * q, indexing="ij")).prod(axis=0)
        self.log_weight = np.log(products.ravel()) + 0.5 * (self.z**2).sum(axis=0)
        self.mean, self.covariance = np.empty((T, q)), np.empty((T, q, q))
        values = np.empty(T)
        by_b, by_root = np.zeros((rows.n_chunks, p)), np.zeros((rows.n_chunks, p, q))
        start = near.evidence.scores
        self.turn = rows.turn(b, covariance, start)  # modes, without the error of b

        def work(first: int, last: int) -> None:
            for chunk in range(first, last):
                part = rows.read(chunk)
                ids = slice(part.first, part.first + len(part.starts) - 1)
                values[ids], by_b[chunk], by_root[chunk] = self._part(part, ids)

        over_tasks(work, rows.n_chunks, 50.0 * rows.rows.n_rows * self.z.shape[1])
        self.value = float(values.sum())
        self.b_gradient, self.root_gradient = by_b.sum(axis=0), by_root.sum(axis=0)

    def start(self, fit: CovarianceFit) -> CovarianceFit:
        """A fit whose scores are those of these modes, to start the next evaluation from."""
        return replace(fit, evidence=replace(fit.evidence, scores=self.turn.scores))

    def _part(self, part: StandardRows, ids: slice) -> tuple[Any, ...]:
        """Log likelihoods of some tasks, and their gradients in b and R."""
        statistics, R = self.turn.statistics, self.R
        p, q = R.shape
        m = len(part.starts) - 1
        upper = np.triu_indices(p)
        H = np.empty((m, p, p))
        H[:, upper[0], upper[1]] = H[:, upper[1], upper[0]] = statistics.packed[ids]
        A = np.eye(q) + R.T @ H @ R
        # A = FF' and x = mode + F'^-1 z
        F = np.linalg.cholesky(A)
        mode = self.turn.scores[ids] @ R
        x = mode[:, :, None] + np.linalg.solve(F.transpose(0, 2, 1), self.z[None])
        log_det = 2 * np.log(np.einsum("tii->ti", F)).sum(axis=1)
        owner, Z = part.owner, part.Z[:, :p]
        along = Z @ R
        eta = (part.offset + Z @ self.b)[:, None] + np.einsum("iq,iqk->ik", along, x[owner])
        d = self.rows.family.derivatives(part.y[:, None], eta)
        likelihood = np.add.reduceat(part.weight[:, None] * d.value, part.starts[:-1], axis=0)
        exponent = likelihood - 0.5 * (x**2).sum(axis=1) + self.log_weight
        largest = exponent.max(axis=1, keepdims=True)
        share = np.exp(exponent - largest)
        total = share.sum(axis=1, keepdims=True)
        share /= total
        constant = part.sum_by_task(self.rows.family.constant(part.y, part.weight))
        values = largest[:, 0] + np.log(total[:, 0]) - 0.5 * log_det + constant
        self.mean[ids] = np.einsum("tk,tqk->tq", share, x)
        second = np.einsum("tk,tqk,trk->tqr", share, x, x)
        self.covariance[ids] = second - self.mean[ids][:, :, None] * self.mean[ids][:, None, :]
        slope = part.weight[:, None] * d.first * share[owner]
        by_root = Z.T @ np.einsum("ik,iqk->iq", slope, x[owner])
        return values, Z.T @ slope.sum(axis=1), by_root
