"""Penalised empirical risk minimisation: each task's span near a common one.

Each task has v_t = B w_t + delta_t, and its deviation from the span is penalised:

    minimise  sum_t  loss_t(v_t) + penalty_t

ARMUL charges the length of the deviation, lambda |delta_t|. pERM (Tian, Gu and Feng) gives each
task its own A_t (d x k) and charges the largest principal angle between the spans of A_t and B,

    mu_t |P(A_t) - P(B)|_2  with v_t = A_t theta_t.

Of all k-dimensional spans that contain v_t, the nearest to B is the one of v_t and of the part of
span(B) orthogonal to P(B) v_t: its only nonzero angle is that of v_t itself. So A_t need not be
stored, and the penalty is the sine of the angle between v_t and the span,

    mu_t |(I - P(B)) v_t| / |v_t|  =  mu_t |delta_t| / |v_t|,     delta_t orthogonal to B.

Both are solved by turns: a proximal gradient step in the deviations, then a step in (B, W) with the
deviations fixed. A step that makes the objective rise is taken back and halved.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sharedspan.estimators.base import at_least, one_of
from sharedspan.estimators.near_span import NearSpanRegressor
from sharedspan.estimators.sums import Solution
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.objective.base import Objective, build_objective
from sharedspan.solvers.initialization import separate_fits, task_curvatures
from sharedspan.solvers.proximal import (
    TINY,
    Descent,
    Penalty,
    Span,
    descend,
    median_span,
)
from sharedspan.statistics.task_statistics import TaskStatistics


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


class PenalizedERMRegressor(NearSpanRegressor):
    """Tasks in spans of their own, held near a common one: pERM of Tian, Gu and Feng.

    Step one minimises sum_t |y_t - X_t A_t theta_t|^2 / 2 + mu sqrt(n_t) |P(A_t) - P(B)|_2 with
    mu = C1 sigma sqrt(k (d + log T)), step two lets each task leave its fit v_t where its rows
    insist: minimise |y_t - X_t b|^2 / (2 n_t) + C2 sigma sqrt((d + log T) / n_t) |b - v_t|. A task
    off the span pays a bounded price, so a few of them do not turn the span.

    Parameters
    ----------
    rank : int, "auto", "evidence" or "threshold", default="auto"
        k, as in SharedSpanRegressor.
    penalty, penalty_two : float, default=1.0
        C1 and C2, in units of the noise standard deviation sigma, which is estimated.
    step_two : bool, default=True
    fit_intercept, whiten, unseen, task_column, random_state, engine, keep_statistics
        As in SharedSpanRegressor. With ``whiten`` lengths and angles are those of whitened
        features, so the units of the features do not matter.
    max_iter : int, default=2000
    tol : float, default=1e-6
        Step one ends when the objective changes by less than this share, three times in a row.

    Attributes
    ----------
    tasks_, coef_, intercept_, rank_, rank_path_, coef_names_, n_features_in_, feature_names_in_
        As in SharedSpanRegressor.
    representation_ : ndarray of shape (d, k)
        Orthonormal basis of the common span.
    task_weights_ : ndarray of shape (k, T)
        Of the part of ``coef_`` in the span.
    noise_variance_ : ndarray of shape (T,)
        sigma^2, the same for all tasks.
    n_iter_, converged_, trace_
        Of step one; ``trace_["objective"]`` never rises.

    References
    ----------
    Tian, Gu and Feng (2025), "Learning from similar linear representations: adaptivity,
    minimaxity, and robustness".
    """

    def __init__(
        self,
        rank: Any = "auto",
        penalty: float = 1.0,
        penalty_two: float = 1.0,
        step_two: bool = True,
        fit_intercept: bool = True,
        whiten: bool = True,
        unseen: str = "error",
        task_column: Any = None,
        max_iter: int = 2000,
        tol: float = 1e-6,
        random_state: Any = None,
        engine: Any = "local",
        keep_statistics: Any = "auto",
    ) -> None:
        self.rank = rank
        self.penalty = penalty
        self.penalty_two = penalty_two
        self.step_two = step_two
        self.fit_intercept = fit_intercept
        self.whiten = whiten
        self.unseen = unseen
        self.task_column = task_column
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.engine = engine
        self.keep_statistics = keep_statistics

    def _fit_gathered(self, gathered: TaskStatistics, last: Solution | None = None) -> None:
        problem = self._canonical(gathered)
        rank, self.rank_path_ = self._find_rank(problem)
        k = min(rank, problem.largest_rank)
        objective = build_objective(problem.statistics)
        with one_blas_thread():
            separate = separate_fits(objective)[0]
            sigma = self._noise_level(objective, separate, k)
            descent = self._step_one(objective, separate, sigma, k, problem.rng)
            B, W, D = descent.place.parts
            V = B @ W + D
            if self.step_two:
                V = self._step_two(objective, V, sigma)
        self._store_descent(problem, objective, descent, V, rank, sigma)

    def _step_one(
        self,
        objective: Objective,
        separate: np.ndarray,
        sigma: float,
        k: int,
        rng: np.random.Generator,
    ) -> Descent:
        # The objective times n_t / nbar, whose loss is the canonical one: an angle keeps its value.
        d, n, span = objective.n_features, objective.n, Span()
        mu = self.penalty * sigma * np.sqrt(k * (d + np.log(len(n))))
        B = median_span(separate, k, sigma * np.sqrt(d / n.mean()))
        return descend(
            objective,
            sine_penalty(mu * np.sqrt(n) / n.mean()),
            span,
            span.split(B, separate),
            task_curvatures(objective, rng),
            max_iter=self.max_iter,
            tol=self.tol,
        )

    def _step_two(self, objective: Objective, V: np.ndarray, sigma: float) -> np.ndarray:
        from sharedspan.estimators.spectral import second_step

        d, n = objective.n_features, objective.n
        weight = self.penalty_two * sigma * np.sqrt((d + np.log(len(n))) / n.mean())
        return second_step(objective, V, np.full(len(n), weight))

    def _validate_parameters(self) -> None:
        super()._validate_parameters()
        at_least("penalty", self.penalty, 0.0)
        at_least("penalty_two", self.penalty_two, 0.0)
        one_of("step_two", self.step_two, (True, False))
