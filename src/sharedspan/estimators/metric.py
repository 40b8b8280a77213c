"""The metric of predictions: coefficients differ by the variance of their predictions' difference.

With S the pooled covariance of the features within tasks, v'Sv is the variance within tasks of the
predictions x'v. In standardised features, s_j = v_j * deviation_j, it is s'Rs = |R^(1/2) s|^2, with
R their correlation. Coefficients of collinear features may differ widely and yet predict the same:
in this metric, in which spans are fitted if features are whitened, their distance is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sharedspan.estimators.fitted import FittedSpan
from sharedspan.statistics.canonical import COLLINEAR
from sharedspan.statistics.grams import CONSTANT
from sharedspan.statistics.task_statistics import SAFE

INFLATED = 100.0  # 1 / (1 - R^2) of a feature given the others, from which they are collinear
LINKED = 0.3  # partial correlation from which collinear features are one group
LARGEST = 2000  # features whose correlations are computed
ENOUGH = 2  # rows per feature from which their correlations are computed


@dataclass(frozen=True)
class Metric:
    """Deviations and correlations of the features within tasks, pooled."""

    # (d,) zero for features that do not vary within tasks; all ones if nothing is known.
    deviation: np.ndarray
    # (d, d); None means the identity, if nothing is known or there are too many features.
    correlation: np.ndarray | None
    known: bool  # whether the deviations are known

    @cached_property
    def root(self) -> np.ndarray:
        """R^(1/2), symmetric, (d, d)."""
        if self.correlation is None:
            return np.eye(len(self.deviation))
        values, axes = np.linalg.eigh(self.correlation)
        return (axes * np.sqrt(np.maximum(values, 0.0))) @ axes.T

    def predictions(self, standardised: np.ndarray) -> np.ndarray:
        """R^(1/2) s of each row s of ``standardised`` (., d); its squared length is s'Rs."""
        return standardised if self.correlation is None else standardised @ self.root

    @cached_property
    def groups(self) -> list[list[int]]:
        """Features that are nearly linear combinations of each other, the most collinear first.

        They are found by the inverse of R: its diagonal is the variance inflation 1 / (1 - R^2),
        and its other entries are, up to scale, partial correlations.
        """
        from scipy.sparse.csgraph import connected_components

        varies = np.flatnonzero(self.deviation > 0)
        if self.correlation is None or len(varies) < 2:
            return []
        values, axes = np.linalg.eigh(self.correlation[np.ix_(varies, varies)])
        inverse = (axes / np.maximum(values, COLLINEAR * values[-1])) @ axes.T
        inflation = np.diag(inverse)
        high = inflation > INFLATED
        if not high.any():
            return []
        partial = np.abs(inverse) / np.sqrt(np.outer(inflation, inflation))
        np.fill_diagonal(partial, 0.0)
        linked = (partial > LINKED) | (partial == partial.max(axis=1, keepdims=True))
        _, label = connected_components(linked & high[:, None], directed=False)
        groups = [np.flatnonzero(label == one) for one in np.unique(label[high])]
        groups.sort(key=lambda group: -inflation[group].max())
        return [varies[group].tolist() for group in groups]

    def shared_evenly(self, standardised: np.ndarray) -> np.ndarray:
        """Coefficients (., d) whose collinear features share their combined effect.

        Among all with nearly the same predictions these are the smallest, without the combinations
        of a group that hardly vary.
        """
        out = np.array(standardised, dtype=float)
        for group in self.groups:
            assert self.correlation is not None
            values, axes = np.linalg.eigh(self.correlation[np.ix_(group, group)])
            axes = axes[:, (axes**2).max(axis=0) > np.maximum(values, 0.0) * INFLATED / 2]
            out[..., group] -= out[..., group] @ axes @ axes.T
        return out


def feature_metric(
    span: FittedSpan, centred: bool, X: np.ndarray | None = None, counts: np.ndarray | None = None
) -> Metric:
    """The metric of the fit if the model stores it, else of the rows, else with unit scales.

    Parameters
    ----------
    span : FittedSpan
    centred : bool
        Whether tasks have intercepts, so that features vary about the means of tasks.
    X : ndarray of shape (rows, d), optional
        Features of rows, sorted by task.
    counts : ndarray of shape (T',), optional
        Numbers of rows of the tasks that have any.
    """
    covariance, largest = span.feature_covariance, np.abs(span.coef).max()
    if covariance is not None and np.isfinite(covariance).all() and largest < SAFE:
        size: Any = 0.0  # of the features, (d,), relative to which a deviation may be rounding
        if X is not None:
            size = np.abs(X).max(axis=0)
        elif (canonical := getattr(span.uncertainty, "canonical", None)) is not None:
            size = np.abs(canonical.units.origin)
        deviation = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        deviation[deviation <= CONSTANT * size] = 0.0
        return Metric(deviation, _correlation(covariance, deviation), True)
    if X is not None and counts is not None:
        return _metric_of_rows(X, counts, centred)
    # Coefficients whose squares would overflow are scaled down: only their proportions matter.
    unit = 1.0 if largest < SAFE else 1 / largest
    return Metric(np.full(span.coef.shape[1], unit), None, False)


def _metric_of_rows(X: np.ndarray, counts: np.ndarray, centred: bool) -> Metric:
    """Deviations and correlations about the means of tasks, or about zero without intercepts."""
    n, d = X.shape
    size = np.abs(X).max(axis=0)
    unit = np.where(size > 0, size, 1.0)  # so that squares neither overflow nor underflow
    Z = X / unit
    if centred:
        starts = np.cumsum(counts) - counts
        Z -= np.repeat(np.add.reduceat(Z, starts) / counts[:, None], counts, axis=0)
    deviation = np.sqrt(np.mean(Z**2, axis=0))
    deviation[deviation <= CONSTANT] = 0.0
    # With few rows, sample correlations are large by chance.
    enough = ENOUGH * d <= n - centred * len(counts) and d <= LARGEST
    return Metric(deviation * unit, _correlation(Z.T @ Z / n, deviation) if enough else None, True)


def _correlation(covariance: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Correlations (d, d); zero for features that do not vary."""
    inverse = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return covariance * inverse * inverse[:, None]
