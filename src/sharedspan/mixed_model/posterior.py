"""What is known of every task, given the variances: posterior means and covariances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sharedspan.mixed_model.likelihood import MixedTasks, Scaling
from sharedspan.mixed_model.search import Fit, Outliers
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.sums import Statistics

BLOCK_ENTRIES = 1 << 22  # numbers T p^2 of the tasks that are looked at together
KEPT_ENTRIES = 1 << 25  # numbers T p^2 of covariances that a model keeps


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

    @property
    def coef_std(self) -> np.ndarray:
        """Standard errors in the user's units, (T, d)."""
        first = self.mean.shape[1] - len(self.scaling.scale)
        J = self.canonical.to_user(np.diag(self.scaling.y_scale / self.scaling.scale))  # (d, d')
        if self.canonical.P is None or not _mixes(self.canonical.P):
            return np.sqrt(self.variance[:, first:]) * np.diag(J)  # a square might overflow
        inner = self._kept()[:, first:, first:]
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
            C = self.new if t < 0 else self._kept()[t]
            variance[rows] = np.einsum("ij,jk,ik->i", Z[rows], C, Z[rows])
        return unit * np.sqrt(np.maximum(variance, 0.0) + self.noise)

    def _kept(self) -> np.ndarray:
        if self.covariance is None:
            raise ValueError(
                f"The covariances of {len(self.mean)} tasks and {self.mean.shape[1]} coefficients "
                "were not kept, they would not fit in memory: fit fewer tasks to get standard "
                "deviations of predictions."
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
    fit: Fit,
    outliers: Outliers | None,
) -> Posterior:
    """The posterior of all tasks; b and the noise are learned from all of them.

    Parameters
    ----------
    statistics : Statistics
        Of all tasks.
    canonical : Canonical
        The way back to the user's units.
    searched : MixedTasks
        Those that ``fit`` was learned from, possibly all.
    fit : Fit
    outliers : Outliers, optional
    """
    C, T, p = fit.covariance, statistics.n_tasks, searched.p
    common = _common(statistics, searched, fit, outliers)
    b, off, k = common.b, common.off, fit.loadings.shape[1]
    mean, variance = np.empty((T, p)), np.empty((T, p))
    covariance = np.empty((T, p, p)) if T * p**2 <= KEPT_ENTRIES else None
    left, used = common.prior_squares, 0.0
    for ids, tasks in _blocks(statistics, searched):
        K, g, _, squares = tasks.pieces(C)
        left += float((1 - off[ids]) @ tasks.squares_about(b, K, g, squares))
        mean[ids], spread, df = task_posteriors(C, K, g, b, common.inverse)
        if k:
            spread += span_covariances(fit, C, K, g - K @ b, common.flat, common.inner)
        if outliers is not None:
            wide = outliers.covariance(C)
            K, g, _, _ = tasks.pieces(wide)
            away, outer, df_off = task_posteriors(wide, K, g, b, common.inverse)
            q, gap = off[ids], away - mean[ids]
            mean[ids] += q[:, None] * gap
            df = (1 - q) * df + q * df_off
            q = q[:, None, None]
            # Covariances are relative to the noise here, the gap is not.
            between = q * (1 - q) * gap[:, :, None] * gap[:, None, :] / fit.evidence.noise
            spread = (1 - q) * spread + q * outer + between
        used += float(df.sum())
        variance[ids] = np.einsum("tii->ti", spread)
        if covariance is not None:
            covariance[ids] = spread
    # The numbers of L were fitted, not integrated out, and take degrees of freedom with them.
    counted = float((1 - off) @ statistics.n)
    spent = min(k * p - k * (k - 1) / 2, counted / 2)
    noise = max(left / (counted - spent), float(np.finfo(float).tiny))
    if covariance is not None:
        covariance *= noise
    return Posterior(
        mean=mean,
        covariance=covariance,
        variance=np.maximum(variance, 0.0) * noise,
        b=b,
        new=(C + common.inverse + k * common.flat) * noise,
        noise=noise,
        off=off,
        degrees_of_freedom=used + spent,
        rows=float(statistics.n.sum()),
        canonical=canonical,
        scaling=searched.scaling,
    )


@dataclass(frozen=True)
class _Common:
    """What all tasks together say, before each is looked at."""

    b: np.ndarray  # (p,)
    inverse: np.ndarray  # (p, p) covariance of b, over the noise
    flat: np.ndarray  # (p, p) the same without a prior
    inner: np.ndarray  # (k, k) mean of all L'K L
    off: np.ndarray  # (T,) probability of an outlier
    prior_squares: float  # b' precision b


def _common(
    statistics: Statistics, searched: MixedTasks, fit: Fit, outliers: Outliers | None
) -> _Common:
    C, p = fit.covariance, searched.p
    precision = np.zeros(p)
    proper = bool(np.isfinite(fit.tau))
    if proper:
        precision[searched.intercept :] = 1 / fit.tau
    off, total, right = np.zeros(statistics.n_tasks), np.zeros((p, p)), np.zeros(p)
    for ids, tasks in _blocks(statistics, searched):
        K, g, _, _ = tasks.pieces(C)
        if outliers is not None:
            e = fit.evidence
            own, _, _ = tasks.at_mean(C, e.mean, e.noise)
            other, _, _ = tasks.at_mean(outliers.covariance(C), e.mean, e.noise)
            odds = np.log(outliers.share) - np.log1p(-outliers.share) + other - own
            off[ids] = 1 / (1 + np.exp(-np.clip(odds, -700, 700)))
        total += np.tensordot(1 - off[ids], K, 1)
        right += (1 - off[ids]) @ g
    P = total + np.diag(precision)
    # Features that say the same twice have no inverse without a prior.
    inverse = np.linalg.inv(P) if proper else np.linalg.pinv(P, hermitian=True)
    b = inverse @ right
    inner = fit.loadings.T @ total @ fit.loadings / float((1 - off).sum())
    flat = np.linalg.pinv(total, hermitian=True)
    return _Common(b, inverse, flat, inner, off, float(b @ (precision * b)))


def task_posteriors(
    C: np.ndarray, K: np.ndarray, g: np.ndarray, b: np.ndarray, inverse: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means (T, p), covariances over the noise (T, p, p), effective parameters (T,), given C."""
    CK = C @ K
    rest = np.eye(len(b)) - CK
    spread = rest @ inverse
    covariance = C - CK @ C + spread @ rest.transpose(0, 2, 1)
    used = np.einsum("tii->t", CK) + np.einsum("tij,tji->t", spread, K)
    return b + (g - K @ b) @ C, covariance, used


def span_covariances(
    fit: Fit, C: np.ndarray, K: np.ndarray, scores: np.ndarray, flat: np.ndarray, inner: np.ndarray
) -> np.ndarray:
    """What the error of L adds to the covariances of the tasks, over the noise, (T, p, p).

    An error E of L moves u_t by (I - C K_t) (E a_t + L E'e_t), a_t = L'e_t the weights of the task,
    and the information on E is sum_t L'K_t L (x) K_t, here the product of its two means. So a
    column of L is as uncertain as b is without a prior, by the weight that the task puts on it.

    Parameters
    ----------
    fit : Fit
    C : ndarray of shape (p, p)
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
    rest = np.eye(len(C)) - C @ K
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
