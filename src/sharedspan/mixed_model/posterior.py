"""Posterior means and covariances of all tasks, given the covariance of their effects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sharedspan.mixed_model.likelihood import MixedTasks, Scaling, TaskTerms, inverse_precision
from sharedspan.mixed_model.optimize import CovarianceFit
from sharedspan.mixed_model.outliers import OutlierComponent
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.rows import Statistics

BLOCK_ENTRIES = 1 << 22  # numbers T p^2 of the tasks that are processed together
LARGEST_STORED = 1 << 25  # numbers T p^2 of covariances that a model stores

Posteriors = tuple[np.ndarray, np.ndarray, np.ndarray]  # means, covariances, effective parameters


@dataclass(frozen=True)
class Posterior:
    """Means and covariances of the coefficients of all tasks, in standard units."""

    mean: np.ndarray  # (T, p)
    covariance: np.ndarray | None  # (T, p, p), None where that would be too large
    variance: np.ndarray  # (T, p), its diagonal
    b: np.ndarray  # (p,)
    new: np.ndarray  # (p, p), covariance of a task that was not fitted
    noise: float
    off: np.ndarray  # (T,) probability of an outlier
    degrees_of_freedom: float  # effective parameters
    rows: float  # sum of weights
    canonical: Canonical
    scaling: Scaling
    stored_axes = "mean:Tp covariance:Tpp variance:Tp b:p new:pp off:T"

    @property
    def coef_std(self) -> np.ndarray:
        """Standard errors in the user's units, (T, d)."""
        first = self.mean.shape[1] - len(self.scaling.scale)
        J = self.canonical.to_user(np.diag(self.scaling.y_scale / self.scaling.scale))  # (d, d')
        if self.canonical.P is None or not _mixes(self.canonical.P):
            return np.sqrt(self.variance[:, first:]) * np.diag(J)  # a square might overflow
        inner = self._stored_covariance()[:, first:, first:]
        return np.sqrt(np.maximum(np.einsum("di,tij,dj->td", J, inner, J), 0.0))

    @property
    def degrees(self) -> np.ndarray:
        """Degrees of freedom of the noise variance, the same for all tasks, (T,)."""
        return np.full(len(self.mean), max(self.rows - self.degrees_of_freedom, 1.0))

    def representation_covariance(self, representation: np.ndarray) -> None:
        """None: the covariance of the entries of the span is not computed."""

    def response_std(self, X: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Standard deviations of new responses at rows X (m, d) of tasks ``codes`` (m,), (m,)."""
        Z, unit = self._standard(X), self.scaling.y_scale / self.canonical.units.y_scale
        variance = np.empty(len(Z))
        for t in np.unique(codes):
            rows = codes == t
            C = self.new if t < 0 else self._stored_covariance()[t]
            variance[rows] = np.einsum("ij,jk,ik->i", Z[rows], C, Z[rows])
        return unit * np.sqrt(np.maximum(variance, 0.0) + self.noise)

    def _stored_covariance(self) -> np.ndarray:
        if self.covariance is None:
            raise ValueError(
                f"The covariances of {len(self.mean)} tasks and {self.mean.shape[1]} coefficients "
                "are too large to be stored: fit fewer tasks to get standard deviations of "
                "predictions."
            )
        return self.covariance

    def _standard(self, X: np.ndarray) -> np.ndarray:
        """Rows as [1, standardised features], (m, p)."""
        units = self.canonical.units
        features = (X - units.origin) * units.scale
        if self.canonical.P is not None:
            features = features @ self.canonical.P
        Z = (features - self.scaling.centre) / self.scaling.scale
        if self.mean.shape[1] == Z.shape[1]:
            return Z
        return np.column_stack([np.ones(len(Z)), Z])


def _mixes(P: np.ndarray) -> bool:
    return P.shape[0] != P.shape[1] or bool(np.any(P - np.diag(np.diag(P))))


def posterior_of(
    statistics: Statistics,
    canonical: Canonical,
    searched: MixedTasks,
    fit: CovarianceFit,
    outliers: OutlierComponent | None,
) -> Posterior:
    """The posterior of all tasks, with b and the noise estimated from all of them.

    Parameters
    ----------
    statistics : Statistics
        Of all tasks.
    canonical : Canonical
        The way back to the user's units.
    searched : MixedTasks
        The tasks that ``fit`` was selected on, possibly all.
    fit : CovarianceFit
    outliers : OutlierComponent, optional
    """
    C, T, p, k = fit.covariance, statistics.n_tasks, searched.p, fit.rank
    b, inverse, flat, inner, off, residual = _estimate_population(
        statistics, searched, fit, outliers
    )
    mean, variance, used = np.empty((T, p)), np.empty((T, p)), 0.0
    covariance = np.empty((T, p, p)) if T * p**2 <= LARGEST_STORED else None
    for ids, tasks in _blocks(statistics, searched):
        terms = tasks.task_terms(C)
        residual += float((1 - off[ids]) @ terms.squares_about(b))
        means, within, df = task_posteriors(C, terms, b, inverse)
        if k:
            within += span_covariances(fit, terms.K, terms.scores(b), flat, inner)
        if outliers is not None:
            wide = outliers.covariance(C)
            outlying = task_posteriors(wide, tasks.task_terms(wide), b, inverse)
            means, within, df = _mixture(
                (means, within, df), outlying, off[ids], fit.evidence.noise
            )
        mean[ids] = means
        used += float(df.sum())
        variance[ids] = np.einsum("tii->ti", within)
        if covariance is not None:
            covariance[ids] = within
    # The numbers of L were fitted, not integrated out, and take degrees of freedom with them.
    counted = float((1 - off) @ statistics.n)
    spent = min(k * p - k * (k - 1) / 2, counted / 2)
    noise = max(residual / (counted - spent), float(np.finfo(float).tiny))
    if covariance is not None:
        covariance *= noise
    return Posterior(
        mean=mean,
        covariance=covariance,
        variance=np.maximum(variance, 0.0) * noise,
        b=b,
        new=(C + inverse + k * flat) * noise,
        noise=noise,
        off=off,
        degrees_of_freedom=used + spent,
        rows=float(statistics.n.sum()),
        canonical=canonical,
        scaling=searched.scaling,
    )


def _estimate_population(
    statistics: Statistics,
    searched: MixedTasks,
    fit: CovarianceFit,
    outliers: OutlierComponent | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """What all tasks share: b, its covariance, the mean L'KL and the probabilities of outliers.

    Returns b (p,), its covariance over the noise with and without its prior (p, p), the mean of all
    L'K L (k, k), the probability of each task to be an outlier (T,), and b' precision b.
    """
    C, p, e = fit.covariance, searched.p, fit.evidence
    precision = searched.slope_precision(fit.tau)
    off, total, right = np.zeros(statistics.n_tasks), np.zeros((p, p)), np.zeros(p)
    for ids, tasks in _blocks(statistics, searched):
        terms = tasks.task_terms(C)
        if outliers is not None:
            wide = tasks.task_terms(outliers.covariance(C))
            regular, outlying = (x.log_likelihoods(e.mean, e.noise) for x in (terms, wide))
            odds = np.log(outliers.share) - np.log1p(-outliers.share) + outlying - regular
            off[ids] = 1 / (1 + np.exp(-np.clip(odds, -700, 700)))
        total += np.tensordot(1 - off[ids], terms.K, 1)
        right += (1 - off[ids]) @ terms.g
    inverse = inverse_precision(total + np.diag(precision), proper=bool(np.isfinite(fit.tau)))
    b = inverse @ right
    inner = fit.loadings.T @ total @ fit.loadings / float((1 - off).sum())
    flat = np.linalg.pinv(total, hermitian=True)
    return b, inverse, flat, inner, off, float(b @ (precision * b))


def task_posteriors(
    C: np.ndarray, terms: TaskTerms, b: np.ndarray, inverse: np.ndarray
) -> Posteriors:
    """Means (T, p), covariances over the noise (T, p, p), effective parameters (T,), given C."""
    CK = C @ terms.K
    rest = np.eye(len(b)) - CK
    moved = rest @ inverse
    covariance = C - CK @ C + moved @ rest.transpose(0, 2, 1)
    used = np.einsum("tii->t", CK) + np.einsum("tij,tji->t", moved, terms.K)
    return b + terms.scores(b) @ C, covariance, used


def _mixture(regular: Posteriors, outlying: Posteriors, q: np.ndarray, noise: float) -> Posteriors:
    """Posteriors of tasks that are outliers with probability q (T,)."""
    (mean, covariance, used), (other_mean, other_covariance, other_used) = regular, outlying
    gap, p = other_mean - mean, q[:, None, None]
    # Covariances are relative to the noise, the gap is not.
    between = p * (1 - p) * gap[:, :, None] * gap[:, None, :] / noise
    mixed = (1 - p) * covariance + p * other_covariance + between
    return mean + q[:, None] * gap, mixed, (1 - q) * used + q * other_used


def span_covariances(
    fit: CovarianceFit, K: np.ndarray, scores: np.ndarray, flat: np.ndarray, inner: np.ndarray
) -> np.ndarray:
    """What the error of L adds to the covariances of the tasks, over the noise, (T, p, p).

    An error E of L moves u_t by (I - C K_t) (E a_t + L E'e_t), a_t = L'e_t the weights of the task,
    and the information on E is sum_t L'K_t L (x) K_t, taken as the product of its two means. So a
    column of L is as uncertain as b is without a prior, by the weight that the task puts on it.

    Parameters
    ----------
    fit : CovarianceFit
    K : ndarray of shape (T, p, p)
    scores : ndarray of shape (T, p)
    flat : ndarray of shape (p, p)
        The inverse of the sum of all K.
    inner : ndarray of shape (k, k)
        The mean of all L'K L.
    """
    L, noise, inverse = fit.loadings, fit.evidence.noise, np.linalg.pinv(inner)
    weights = scores @ L
    along = np.einsum("ti,ij,tj->t", weights, inverse, weights) / noise
    across = np.einsum("ti,ij,tj->t", scores, flat, scores) / noise
    moved = along[:, None, None] * flat + across[:, None, None] * (L @ inverse @ L.T)
    rest = np.eye(len(L)) - fit.covariance @ K
    return rest @ moved @ rest.transpose(0, 2, 1)


def _blocks(
    statistics: Statistics, searched: MixedTasks
) -> Iterator[tuple[np.ndarray, MixedTasks]]:
    """All tasks, a block at a time, each compressed."""
    T = statistics.n_tasks
    step = max(BLOCK_ENTRIES // searched.p**2, 1)
    if searched.n_tasks == T and step >= T:
        yield np.arange(T), searched
        return
    for begin in range(0, T, step):
        ids = np.arange(begin, min(begin + step, T))
        yield ids, MixedTasks(statistics.take(ids), searched.scaling)
