"""The two baselines that every table needs: everything shared, and nothing shared.

Both are ridge regressions on features standardised by their pooled within-task deviation, with
the penalty chosen by marginal likelihood: y ~ N(0, sigma^2 (I + X X' / alpha)), sigma profiled
out. Sizes are sums of weights, so a weight is the same as a repetition.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any

import numpy as np

from sharedspan.estimators.base import number_or_auto
from sharedspan.estimators.sums import Solution, SumsRegressor
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.statistics.canonical import inverse_deviations
from sharedspan.statistics.sums import Arrays, GramStatistics
from sharedspan.statistics.task_statistics import TaskStatistics

# Penalties looked at, relative to the mean eigenvalue of the Gram.
ALPHAS = np.logspace(-8, 8, 129)
FLAT = 1e-9  # differences of deviance that are rounding


def evidence_ridge(
    G: np.ndarray, anchor: np.ndarray, g: np.ndarray, q: float, n: float, alpha: Any
) -> tuple[np.ndarray, float]:
    """Ridge from anchored sums: coefficients (d,) and the penalty.

    With G = Q diag(l) Q', z = Q'X'y / sqrt(l) and rss what least squares leaves, minus twice the
    profiled log marginal likelihood is

        n log(rss + sum_i z_i^2 alpha / (l_i + alpha)) + sum_i log(1 + l_i / alpha).

    Parameters
    ----------
    G : ndarray of shape (d, d)
    anchor, g : ndarray of shape (d,)
    q : float
    n : float
        Rows beyond the intercepts.
    alpha : "auto" or float
    """
    own = np.ones(len(g))
    if alpha == 0:  # least squares has no scale of its own, so what is collinear is up to the task
        diagonal = np.diag(G)
        own = np.divide(1.0, np.sqrt(diagonal), out=np.zeros_like(diagonal), where=diagonal > 0)
        G, g = own[:, None] * G * own, own * g
        anchor = np.divide(anchor, own, out=np.zeros_like(own), where=own > 0)
    eigenvalues, Q = np.linalg.eigh(G)
    kept = eigenvalues > 1e-12 * max(eigenvalues[-1], 0.0)
    if not kept.any():
        return np.zeros(len(g)), 0.0
    lam, Q = eigenvalues[kept], Q[:, kept]
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
    """The entry of ALPHAS with the least deviance, moved to the vertex of a parabola around it."""
    # Of penalties that differ by rounding alone, the largest: a task may not tell them apart.
    best = int(np.flatnonzero(deviance <= deviance.min() + FLAT)[-1])
    if not 0 < best < len(ALPHAS) - 1:
        return float(ALPHAS[best])
    left, middle, right = deviance[best - 1 : best + 2]
    bend = left - 2 * middle + right
    shift = np.clip(0.5 * (left - right) / bend, -1, 1) if bend > FLAT else 0.0
    return float(ALPHAS[best] * (ALPHAS[1] / ALPHAS[0]) ** shift)


class _RidgeRegressor(SumsRegressor):
    """What the two baselines share."""

    def __init__(
        self,
        alpha: Any = "auto",
        fit_intercept: bool = True,
        unseen: str = "error",
        task_column: Any = None,
        engine: Any = "local",
        keep_statistics: Any = "auto",
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.unseen = unseen
        self.task_column = task_column
        self.engine = engine
        self.keep_statistics = keep_statistics

    def _validate_parameters(self) -> None:
        super()._validate_parameters()
        number_or_auto("alpha", self.alpha, 0.0)

    def _kind(self) -> str:
        return "gram"

    def _fit_gathered(self, gathered: TaskStatistics, last: Solution | None = None) -> None:
        statistics, units = gathered.statistics, gathered.units
        scale = inverse_deviations(statistics)
        with one_blas_thread():
            V = scale[:, None] * self._solve(statistics, scale)  # (d, T)
        inner = statistics.intercepts(V)
        V = units.scale[:, None] * V / units.y_scale
        self.coef_ = np.ascontiguousarray(V.T)
        self.intercept_ = inner / units.y_scale - units.origin @ V

    @abstractmethod
    def _solve(self, statistics: GramStatistics, scale: np.ndarray) -> np.ndarray:
        """Coefficients (d, T) of the standardised features."""


class PooledRegressor(_RidgeRegressor):
    """One slope vector for all tasks, an intercept for each: ridge on rows less their task mean.

    Parameters
    ----------
    alpha : "auto" or float, default="auto"
        Penalty on the slopes of standardised features; "auto" maximises the marginal likelihood.
    fit_intercept : bool, default=True
    unseen : {"error", "mean"}, default="error"
    task_column : str or int, optional
    engine, keep_statistics
        As in SharedSpanRegressor.

    Attributes
    ----------
    tasks_, coef_, intercept_, coef_names_, n_features_in_, feature_names_in_
        As in SharedSpanRegressor; all rows of ``coef_`` are equal.
    alpha_ : float
    """

    shares = "slopes"

    def _solve(self, statistics: GramStatistics, scale: np.ndarray) -> np.ndarray:
        G = scale[:, None] * statistics.pooled_gram() * scale
        n = statistics.n.sum() - statistics.n_tasks * self.fit_intercept
        # All tasks move to one anchor near the pooled least squares, so that nothing cancels.
        zero = np.zeros(len(scale))
        (g, q), _ = statistics.map_shards(partial(pooled_at, anchor=zero))
        anchor, _ = evidence_ridge(G, zero, scale * g, float(q), n, 1e-10 * n)
        (g, q), _ = statistics.map_shards(partial(pooled_at, anchor=scale * anchor))
        v, self.alpha_ = evidence_ridge(G, anchor, scale * g, float(q), n, self.alpha)
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
    engine, keep_statistics
        As in SharedSpanRegressor.

    Attributes
    ----------
    tasks_, coef_, intercept_, coef_names_, n_features_in_, feature_names_in_
        As in SharedSpanRegressor.
    alpha_ : ndarray of shape (T,)
    """

    shares = "nothing"

    def _solve(self, statistics: GramStatistics, scale: np.ndarray) -> np.ndarray:
        ridges = partial(task_ridges, scale=scale, alpha=self.alpha)
        _, (V, self.alpha_) = statistics.map_shards(ridges)
        return V.T


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
