"""Penalised empirical risk minimisation: each task's span near a common one.

Each task has v_t = B w_t + delta_t, and its deviation from the span is penalised:

    minimise  sum_t  loss_t(v_t) + penalty_t

ARMUL charges the length of the deviation, lambda |delta_t|. pERM (Tian, Gu and Feng) gives each
task its own A_t (d x k) and charges the largest principal angle between the spans of A_t and B,

    mu_t |P(A_t) - P(B)|_2  with v_t = A_t theta_t.

Among all k-dimensional spans that contain v_t, the nearest to B consists of v_t and the part of
span(B) orthogonal to P(B) v_t: its only nonzero angle is the angle of v_t itself. So A_t need not
be stored, and the penalty is the sine of the angle between v_t and the span,

    mu_t |(I - P(B)) v_t| / |v_t|  =  mu_t |delta_t| / |v_t|,     delta_t orthogonal to B.

``solvers.proximal`` minimises both.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from sharedspan.estimators.base import SpanTransformer, TaskRegressor
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.near_span import fit_of_descent, noise_level, warn_unless_converged
from sharedspan.estimators.parameters import BOOL, at_least, estimator
from sharedspan.estimators.spectral import second_step
from sharedspan.inference.rank_selection import select_rank
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.objective import Objective, build_objective
from sharedspan.solvers.initialization import separate_fits, task_curvatures
from sharedspan.solvers.proximal import (
    TINY,
    Parts,
    Penalty,
    ProximalFit,
    Span,
    near_median_span,
    proximal_descent,
)
from sharedspan.statistics.canonical import Problem


def sine_penalty(weight: np.ndarray) -> Penalty:
    """The sine, weight_t |delta_t| / |v_t|: its values, smooth slope and threshold.

    The gradient in v_t is delta_t / (|delta_t| |v_t|) - |delta_t| v_t / |v_t|^3, times the weight.
    The first part has the kink at delta_t = 0 and becomes a threshold, the second is the slope.
    """

    def penalty(V: np.ndarray, D: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        length = np.maximum(np.linalg.norm(V, axis=0), TINY)
        sine = np.linalg.norm(D, axis=0) / length
        return weight * sine, -weight * sine / length**2 * V, weight / length

    return penalty


@estimator(
    "rank penalty penalty_two step_two fit_intercept whiten unseen task_column max_iter tol "
    "random_state engine keep_statistics verbose"
)
class PenalizedERMRegressor(SpanTransformer, TaskRegressor):
    """Tasks in spans of their own, held near a common one: pERM of Tian, Gu and Feng.

    Step one minimises sum_t |y_t - X_t A_t theta_t|^2 / 2 + mu sqrt(n_t) |P(A_t) - P(B)|_2 with
    mu = C1 sigma sqrt(k (d + log T)), step two lets each task leave its fit v_t if its rows are
    evidence against it: minimise |y_t - X_t b|^2 / (2 n_t) + C2 sigma sqrt((d + log T) / n_t)
    |b - v_t|. The penalty that a task can incur for leaving the span is bounded, so a few such
    tasks hardly change the estimated span.

    As published, the penalty is linear and the loss quadratic in the scale of y, so the fit depends
    on the unit of y. Scale y so that the coefficients of the whitened features are about one.

    Parameters
    ----------
    {rank}
    penalty, penalty_two : float, default=1.0
        C1 and C2, in units of the noise standard deviation sigma, which is estimated.
    step_two : bool, default=True
        Whether a task may leave its fit if its rows are evidence against it.
    {fit_intercept, whiten, unseen, task_column, max_iter}
    tol : float, default=1e-6
        Step one ends when the objective changes by less than this share, three times in a row.
    {random_state, engine, keep_statistics, verbose}

    Attributes
    ----------
    {tasks_, coef_, intercept_, representation_, task_weights_, rank_, rank_path_}
    noise_variance_ : ndarray of shape (T,)
        sigma^2, the same for all tasks.
    {n_iter_, converged_}
    trace_ : dict of ndarray
        ``iteration`` and ``objective`` of step one, which never rises.
    {feature_covariance_, coef_names_, n_features_in_, feature_names_in_}

    References
    ----------
    Tian, Gu and Feng (2025), "Learning from similar linear representations: adaptivity,
    minimaxity, and robustness".
    """

    checks: ClassVar = {
        "penalty": partial(at_least, smallest=0.0),
        "penalty_two": partial(at_least, smallest=0.0),
        "step_two": BOOL,
    }

    penalty: float = 1.0
    penalty_two: float = 1.0
    step_two: bool = True
    max_iter: int = 2000
    tol: float = 1e-6

    def estimate(self, problem: Problem) -> FittedSpan:
        """Step one from the median span of separate fits, then step two."""
        centred, rng = self.fit_intercept, problem.rng
        rank, rank_path = select_rank(problem, self.rank, centred, verbose=self.verbose)
        k = min(rank, problem.largest_rank)
        objective = build_objective(problem.statistics)
        with one_blas_thread():
            separate = separate_fits(objective)[0]
            sigma = noise_level(objective, separate, k, centred, self.max_iter)
            start = near_median_span(objective, separate, k, sigma)
            descent = self._step_one(objective, start, sigma, rng)
            B, W, D = descent.place.parts
            V = B @ W + D
            if self.step_two:
                V = self._step_two(objective, V, sigma)
        warn_unless_converged(type(self).__name__, descent, self.tol)
        return fit_of_descent(problem, objective, descent, V, rank, sigma, rank_path=rank_path)

    def _step_one(
        self, objective: Objective, start: Parts, sigma: float, rng: np.random.Generator
    ) -> ProximalFit:
        # The objective times n_t / nbar, whose loss is the canonical one: an angle keeps its value.
        (d, k), n = start[0].shape, objective.n
        mu = self.penalty * sigma * np.sqrt(k * (d + np.log(len(n))))
        return proximal_descent(
            objective,
            sine_penalty(mu * np.sqrt(n) / n.mean()),
            Span(),
            start,
            task_curvatures(objective, rng),
            max_iter=self.max_iter,
            tol=self.tol,
            verbose=self.verbose,
        )

    def _step_two(self, objective: Objective, V: np.ndarray, sigma: float) -> np.ndarray:
        d, n = objective.n_features, objective.n
        weight = self.penalty_two * sigma * np.sqrt((d + np.log(len(n))) / n.mean())
        return second_step(objective, V, np.full(len(n), weight))
