"""Outlier tasks of a mixed model: a second component with a wide covariance of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.optimize import HIGHEST, CovarianceFit, CovarianceOptimizer
from sharedspan.mixed_model.terms import Covariance, TaskTerms

SURPRISING = 6.0  # deviations beyond which a task may be an outlier
EM_STEPS = 30
INNER_STEPS = 3  # of the covariance, between two steps of EM
LARGEST_SHARE = 0.4  # of outliers among the tasks


@dataclass(frozen=True)
class OutlierComponent:
    """Tasks with u_t ~ N(0, s2 (C + variance I)): any task is one with probability ``share``.

    Coefficients that do not vary are the same in outliers, too.
    """

    probability: np.ndarray  # (T,) of each task to be an outlier
    share: float
    variance: float
    gain: float  # in log likelihood over a model without outliers
    varying: np.ndarray  # (p,) coefficients that differ between tasks

    def covariance(self, regular: Covariance) -> Covariance:
        """Covariance of outlier tasks, given the covariance of the others."""
        return Covariance(regular.variances + self.variance * self.varying, regular.loadings)

    def probabilities(self, regular: np.ndarray, outlying: np.ndarray) -> np.ndarray:
        """Probability of each task to be an outlier, from its log likelihoods (T,) as either."""
        odds = math.log(self.share) - math.log1p(-self.share) + outlying - regular
        return 1 / (1 + np.exp(-np.clip(odds, -700, 700)))


@dataclass(frozen=True)
class FittedEffects:
    """The distribution of the effects of tasks.

    If a few tasks have far larger effects than the others, the covariance of all shrinks them too
    much. ``widening`` is a factor on it that leaves more of every task's own effects.
    """

    fit: CovarianceFit
    outliers: OutlierComponent | None = None
    widening: float = 1.0


def find_outliers(
    optimizer: CovarianceOptimizer, fit: CovarianceFit
) -> tuple[OutlierComponent | None, CovarianceFit]:
    """A component for tasks that do not fit, and the fit of the others; None if it does not pay.

    Expectation maximisation over memberships, the component's share and its variance, while D and L
    follow. Effects have heavy tails in most tables; an outlier is a task decisively beyond them.
    """
    tasks, T = optimizer.tasks, optimizer.tasks.n_tasks
    varying = tasks.coefficients.varying
    p = int(varying.sum())
    if not p:
        return None, fit
    if surprise(tasks, fit).max() < SURPRISING:
        return None, fit
    plain, without = fit, float(fit.evidence.task_values.sum())
    share, total = 0.05, -math.inf
    variance = 10 * max(float(np.trace(fit.covariance.matrix)) / p, 1e-3)
    for step in range(EM_STEPS):
        e, C = fit.evidence, fit.covariance
        wide = Covariance(C.variances + variance * varying, C.loadings)
        regular = tasks.task_values(C, e.mean, e.noise)[0]
        outlying, scores, traces = tasks.task_values(wide, e.mean, e.noise)
        joint = np.logaddexp(math.log1p(-share) + regular, math.log(share) + outlying)
        probability = np.exp(math.log(share) + outlying - joint)
        last, total = total, float(joint.sum())
        component = OutlierComponent(probability, share, variance, total - without, varying)
        # Each coefficient that is set free must bring a factor of e.
        price = math.log(max(T, 2)) + float(probability @ np.minimum(tasks.n, p))
        if probability.sum() < 0.5 or probability.mean() > LARGEST_SHARE:
            return None, plain
        if step > 3 and total - last < 1e-2:
            break
        if step == 2 and component.gain < 0.5 * price:
            return None, plain
        share = float(np.clip(probability.mean(), 0.5 / T, LARGEST_SHARE))
        size = variance**2 * scores**2 @ varying / e.noise
        size += variance * p - variance**2 * traces
        variance = float(probability @ size / (p * probability.sum()))
        variance = min(max(variance, 1e-6), math.exp(HIGHEST))
        if step >= 2:
            inner = optimizer.reweighted(1 - probability)
            columns = fit.covariance.loadings.shape[1]
            fit = inner.fit(fit.structure, columns, fit, steps=INNER_STEPS)
    return (component, fit) if component.gain > price else (None, plain)


def surprise(tasks: MixedTasks, fit: CovarianceFit) -> np.ndarray:
    """How far each task is beyond its covariance, in standard deviations, (T,).

    The larger of two: its effects against C, and, since these may lie outside of C, its residual
    squares against its number of rows.
    """
    e, varying = fit.evidence, np.flatnonzero(tasks.coefficients.varying)
    C = fit.covariance.matrix[np.ix_(varying, varying)]
    out = np.empty(tasks.n_tasks)

    def measure(terms: TaskTerms) -> None:
        n = tasks.n[terms.ids]
        scores, squares = terms.scores_and_squares(e.mean)
        CK, scores = C @ terms.K[:, varying[:, None], varying], scores[:, varying]
        size = np.einsum("ti,ti->t", scores @ C, scores) / e.noise
        expected = np.einsum("tii->t", CK)
        deviation = np.sqrt(np.maximum(2 * np.einsum("tij,tji->t", CK, CK), 1e-12))
        rows = (squares / e.noise - n) / np.sqrt(2 * np.maximum(n, 1.0))
        out[terms.ids] = np.maximum((size - expected) / deviation, rows)

    tasks.map_terms(measure, fit.covariance)
    return out
