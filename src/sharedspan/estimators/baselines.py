"""The two baselines for every table: everything shared, and nothing shared.

Both are ridge regressions on features standardised by their pooled within-task standard deviation,
with the penalty chosen by marginal likelihood: y ~ N(0, sigma^2 (I + X X' / alpha)), sigma profiled
out. Sizes are sums of weights, so a weight counts as a repetition.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from sharedspan.estimators.base import TaskRegressor
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.fitting import Needs
from sharedspan.estimators.parameters import estimator, number_or_auto
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.statistics.canonical import Problem
from sharedspan.statistics.grams import Arrays, GramStatistics

# Penalties tried, relative to the mean eigenvalue of the Gram.
ALPHAS = np.logspace(-8, 8, 129)
FLAT = 1e-9  # differences of deviance that are rounding


def evidence_ridge(
    G: np.ndarray, anchor: np.ndarray, g: np.ndarray, q: float, n: float, alpha: Any
) -> tuple[np.ndarray, float]:
    """Ridge from anchored sums: coefficients (d,) and the penalty.

    With G = Q diag(l) Q', z = Q'X'y / sqrt(l) and rss the residual sum of squares of least squares,
    minus twice the profiled log marginal likelihood is

        n log(rss + sum_i z_i^2 alpha / (l_i + alpha)) + sum_i log(1 + l_i / alpha).

    Parameters
    ----------
    G : ndarray of shape (d, d)
    anchor, g : ndarray of shape (d,)
    q : float
    n : float
        Rows minus intercepts.
    alpha : "auto" or float
    """
    own = np.ones(len(g))
    if alpha == 0:  # least squares has no scale, so collinearity is judged within the task
        diagonal = np.diag(G)
        own = np.divide(1.0, np.sqrt(diagonal), out=np.zeros_like(diagonal), where=diagonal > 0)
        G, g = own[:, None] * G * own, own * g
        anchor = np.divide(anchor, own, out=np.zeros_like(own), where=own > 0)
    eigenvalues, Q = np.linalg.eigh(G)
    positive = eigenvalues > 1e-12 * max(eigenvalues[-1], 0.0)
    if not positive.any():
        return np.zeros(len(g)), 0.0
    lam, Q = eigenvalues[positive], Q[:, positive]
    Qc = lam * (Q.T @ anchor) + Q.T @ g
    z2 = Qc**2 / lam
    if isinstance(alpha, str):
        rss = q - np.sum((Q.T @ g) ** 2 / lam)
        floor = max(rss, np.finfo(float).eps ** 2 * z2.sum(), np.finfo(float).tiny)
        grid = ALPHAS * lam.mean()
        shrunk = grid[:, None] / (lam + grid[:, None])
        deviance = max(n, 0.0) * np.log(floor + shrunk @ z2) - np.log(shrunk).sum(axis=1)
        alpha = float(lam.mean() * _minimum(deviance))
    return own * (Q @ (Qc / (lam + alpha))), float(alpha)


def _minimum(deviance: np.ndarray) -> float:
    """The entry of ALPHAS with the smallest deviance, moved to the vertex of a parabola there."""
    # The largest among penalties whose deviances differ by rounding alone.
    best = int(np.flatnonzero(deviance <= deviance.min() + FLAT)[-1])
    if not 0 < best < len(ALPHAS) - 1:
        return float(ALPHAS[best])
    left, middle, right = deviance[best - 1 : best + 2]
    bend = left - 2 * middle + right
    shift = np.clip(0.5 * (left - right) / bend, -1, 1) if bend > FLAT else 0.0
    return float(ALPHAS[best] * (ALPHAS[1] / ALPHAS[0]) ** shift)


def in_user_units(problem: Problem, scale: np.ndarray, V: np.ndarray, alpha: Any) -> FittedSpan:
    """The fit with coefficients V (d, T) of features times ``scale`` (d,)."""
    V = scale[:, None] * V
    inner = problem.statistics.intercepts(V)
    V = problem.canonical.to_user(V)
    return FittedSpan(
        coef=np.ascontiguousarray(V.T),
        intercept=problem.canonical.intercept_to_user(inner, V),
        extra={"alpha": alpha},
    )


class RidgeRegressor(TaskRegressor):
    """Base of ridge regressions, whose penalty ``alpha`` may be chosen by the likelihood."""

    checks: ClassVar = {"alpha": partial(number_or_auto, smallest=0.0)}

    def needs(self) -> Needs:
        """Grams, as they are."""
        return Needs(kind="gram")


@estimator("alpha fit_intercept unseen task_column engine keep_statistics")
class PooledRegressor(RidgeRegressor):
    """One slope vector for all tasks, an intercept for each: ridge on rows minus their task mean.

    Parameters
    ----------
    alpha : "auto" or float, default="auto"
        Penalty on the slopes of standardised features; "auto" maximises the marginal likelihood.
    {fit_intercept, unseen, task_column, engine, keep_statistics}

    Attributes
    ----------
    {tasks_}
    coef_ : ndarray of shape (T, d)
        Coefficients of each task, all rows equal.
    {intercept_}
    alpha_ : float
        The penalty.
    {feature_covariance_, coef_names_, n_features_in_, feature_names_in_}
    """

    shares = "slopes"
    alpha: Any = "auto"

    def estimate(self, problem: Problem) -> FittedSpan:
        """Ridge from the sum of all tasks' Grams."""
        statistics = problem.statistics
        scale = statistics.inverse_deviations(statistics.variances())
        G = scale[:, None] * statistics.pooled_gram() * scale
        n = statistics.n.sum() - statistics.n_tasks * self.fit_intercept
        with one_blas_thread():
            # All tasks move to one anchor near the pooled least squares, so that nothing cancels.
            zero = np.zeros(len(scale))
            (g, q), _ = statistics.map_shards(partial(pooled_at, anchor=zero))
            anchor, _ = evidence_ridge(G, zero, scale * g, float(q), n, 1e-10 * n)
            (g, q), _ = statistics.map_shards(partial(pooled_at, anchor=scale * anchor))
            v, alpha = evidence_ridge(G, anchor, scale * g, float(q), n, self.alpha)
        return in_user_units(problem, scale, np.tile(v[:, None], statistics.n_tasks), alpha)


@estimator("alpha fit_intercept unseen task_column engine keep_statistics")
class PerTaskRegressor(RidgeRegressor):
    """A separate ridge regression for each task.

    Parameters
    ----------
    alpha : "auto" or float, default="auto"
        Penalty on the slopes of standardised features; "auto" maximises each task's marginal
        likelihood. 0 gives least squares, of minimum norm if it is not unique.
    {fit_intercept, unseen, task_column, engine, keep_statistics}

    Attributes
    ----------
    {tasks_, coef_, intercept_}
    alpha_ : ndarray of shape (T,)
        The penalty of each task.
    {feature_covariance_, coef_names_, n_features_in_, feature_names_in_}
    """

    shares = "nothing"
    alpha: Any = "auto"

    def estimate(self, problem: Problem) -> FittedSpan:
        """Ridge from each task's own Gram."""
        scale = problem.statistics.inverse_deviations(problem.statistics.variances())
        ridges = partial(task_ridges, scale=scale, alpha=self.alpha)
        with one_blas_thread():
            _, (V, alpha) = problem.statistics.map_shards(ridges)
        return in_user_units(problem, scale, V.T, alpha)


def pooled_at(statistics: GramStatistics, *, anchor: np.ndarray) -> tuple[Arrays, Arrays]:
    """Sums over all tasks of g (d,) and q at one anchor (d,)."""
    g, q = statistics.at_anchor(np.tile(anchor, (statistics.n_tasks, 1)))
    return (g.sum(axis=0), q.sum()), ()


def task_ridges(
    statistics: GramStatistics, *, scale: np.ndarray, alpha: Any
) -> tuple[Arrays, Arrays]:
    """Coefficients of standardised features (T, d) and the penalty of each task (T,)."""
    V, alphas = np.empty(statistics.mean.shape), np.empty(statistics.n_tasks)
    anchor = np.divide(
        statistics.anchor, scale, out=np.zeros_like(statistics.anchor), where=scale > 0
    )
    for t in range(statistics.n_tasks):
        V[t], alphas[t] = evidence_ridge(
            scale[:, None] * statistics.gram(t) * scale,
            anchor[t],
            scale * statistics.g[t],
            float(statistics.q[t]),
            float(statistics.n[t] - statistics.centred),
            alpha,
        )
    return (), (V, alphas)
