"""The two baselines that every table needs: everything shared, and nothing shared.

Both are ridge regressions on features standardised by their pooled within-task deviation, with
the penalty chosen by marginal likelihood: y ~ N(0, sigma^2 (I + X X' / alpha)), sigma profiled
out. Sizes are sums of weights, so a weight is the same as a repetition.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from sharedspan.data.statistics import GramStatistics, Statistics, Units, collect
from sharedspan.data.tasks import Tasks
from sharedspan.engine.local import one_blas_thread
from sharedspan.estimators.base import TaskRegressor, at_least, one_of

# Penalties looked at, relative to the mean eigenvalue of the Gram.
ALPHAS = np.logspace(-8, 8, 129)


def evidence_ridge(
    G: np.ndarray, c: np.ndarray, yy: float, n: float, alpha: Any
) -> tuple[np.ndarray, float, float]:
    """Ridge from a Gram: coefficients (d,), effective degrees of freedom, and the penalty.

    With G = Q diag(l) Q' and z = Q'c / sqrt(l), minus twice the profiled log marginal likelihood
    is n log(yy - sum_i z_i^2 l_i / (l_i + alpha)) + sum_i log(1 + l_i / alpha).

    Parameters
    ----------
    G : ndarray of shape (d, d)
    c : ndarray of shape (d,)
        X'y.
    yy : float
        y'y.
    n : float
        Rows beyond the intercepts.
    alpha : "auto" or float
    """
    eigenvalues, Q = np.linalg.eigh(G)
    kept = eigenvalues > 1e-12 * max(eigenvalues[-1], 0.0)
    if n <= 0 or not kept.any():
        return np.zeros(len(c)), 0.0, 0.0
    lam, Qc = eigenvalues[kept], Q[:, kept].T @ c
    z2 = Qc**2 / lam
    if isinstance(alpha, str):
        # What least squares leaves; rounding may push it below zero when the fit is exact.
        floor = max(yy - z2.sum(), np.finfo(float).eps * yy, np.finfo(float).tiny)
        grid = ALPHAS * lam.mean()
        shrunk = grid[:, None] / (lam + grid[:, None])
        deviance = n * np.log(floor + shrunk @ z2) - np.log(shrunk).sum(axis=1)
        alpha = float(grid[np.argmin(deviance)])
    return Q[:, kept] @ (Qc / (lam + alpha)), float(np.sum(lam / (lam + alpha))), float(alpha)


class _RidgeRegressor(TaskRegressor):
    """What the two baselines share."""

    def __init__(
        self,
        alpha: Any = "auto",
        fit_intercept: bool = True,
        unseen: str = "error",
        task_column: Any = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.unseen = unseen
        self.task_column = task_column

    def _validate_parameters(self) -> None:
        super()._validate_parameters()
        if isinstance(self.alpha, str):
            one_of("alpha", self.alpha, ("auto",))
        else:
            at_least("alpha", self.alpha, 0.0, numbers.Real)

    def _fit_tasks(self, tasks: Tasks) -> None:
        units = Units.of(tasks, centred=self.fit_intercept)
        statistics = collect(tasks, units, self.fit_intercept, "gram")
        assert isinstance(statistics, GramStatistics)
        variance = np.diag(statistics.pooled_gram()) / statistics.n.sum()
        level = statistics.second_moment() / statistics.n.sum()
        varies = variance > (64 * np.finfo(float).eps) ** 2 * level
        scale = np.divide(1.0, np.sqrt(variance), out=np.zeros_like(variance), where=varies)
        with one_blas_thread():
            V = scale[:, None] * self._solve(statistics, scale)  # (d, T)
        inner = statistics.intercepts(V)
        V = units.scale[:, None] * V / units.y_scale
        self.coef_ = np.ascontiguousarray(V.T)
        self.intercept_ = inner / units.y_scale - units.origin @ V

    def _solve(self, statistics: GramStatistics, scale: np.ndarray) -> np.ndarray:
        """Coefficients (d, T) of the standardised features."""
        raise NotImplementedError


class PooledRegressor(_RidgeRegressor):
    """One slope vector for all tasks, an intercept for each: ridge on rows less their task mean.

    Parameters
    ----------
    alpha : "auto" or float, default="auto"
        Penalty on the slopes of standardised features; "auto" maximises the marginal likelihood.
    fit_intercept : bool, default=True
    unseen : {"error", "mean"}, default="error"
    task_column : str or int, optional

    Attributes
    ----------
    tasks_, coef_, intercept_, coef_names_, n_features_in_, feature_names_in_
        As in SharedSpanRegressor; all rows of ``coef_`` are equal.
    alpha_ : float
    """

    def _solve(self, statistics: GramStatistics, scale: np.ndarray) -> np.ndarray:
        outer = scale[:, None] * scale
        G = outer * statistics.pooled_gram()
        # One common anchor, so that the sum of squares does not cancel.
        n = statistics.n.sum() - statistics.n_tasks * self.fit_intercept
        cross = statistics.cross()
        c = scale * cross.sum(axis=0)
        yy = float(statistics.q.sum() + np.sum(statistics.anchor * (cross + statistics.g)))
        v, _, self.alpha_ = evidence_ridge(G, c, yy, n, self.alpha)
        return np.tile(v[:, None], statistics.n_tasks)


class PerTaskRegressor(_RidgeRegressor):
    """A separate ridge regression for each task.

    Parameters
    ----------
    alpha : "auto" or float, default="auto"
        Penalty on the slopes of standardised features; "auto" maximises each task's marginal
        likelihood. With 0 it is least squares, the shortest one where that is not unique.
    fit_intercept : bool, default=True
    unseen : {"error", "mean"}, default="error"
    task_column : str or int, optional

    Attributes
    ----------
    tasks_, coef_, intercept_, coef_names_, n_features_in_, feature_names_in_
        As in SharedSpanRegressor.
    alpha_ : ndarray of shape (T,)
    """

    def _solve(self, statistics: GramStatistics, scale: np.ndarray) -> np.ndarray:
        V = np.empty((statistics.n_features, statistics.n_tasks))
        self.alpha_ = np.empty(statistics.n_tasks)
        outer = scale[:, None] * scale
        for t in range(statistics.n_tasks):
            G = statistics.gram(t)
            cross = G @ statistics.anchor[t] + statistics.g[t]
            yy = float(statistics.q[t] + statistics.anchor[t] @ (cross + statistics.g[t]))
            n = float(statistics.n[t] - self.fit_intercept)
            V[:, t], _, self.alpha_[t] = evidence_ridge(
                outer * G, scale * cross, yy, n, self.alpha
            )
        return V


__all__ = ["PerTaskRegressor", "PooledRegressor", "Statistics"]
