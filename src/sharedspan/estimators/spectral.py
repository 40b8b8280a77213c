"""The spectral estimator: the span from separate regressions, then a fit that may leave it.

Step 1 takes the leading left singular vectors of the separate least squares estimates, their norms
winsorised against outlier tasks, and fits each task inside that span. Step 2 lets a task leave it:

    beta_t = argmin 1/(2 n_t) |y_t - X_t b|^2 + gamma / sqrt(n_t) |b - beta1_t|_2

so that a task that does not share the span is not made worse by it.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from sharedspan.estimators.base import SpanTransformer, TaskRegressor
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.parameters import BOOL, at_least, estimator, one_of
from sharedspan.inference.noise import shared_noise
from sharedspan.inference.rank_selection import (
    RankPath,
    noise_deviation,
    select_rank,
    threshold_path,
)
from sharedspan.kernels.dense import RANK_TOLERANCE
from sharedspan.objective import Objective, build_objective
from sharedspan.solvers.initialization import separate_fits
from sharedspan.statistics.canonical import Problem
from sharedspan.statistics.grams import Arrays

BISECTIONS = 200


@estimator(
    "rank outliers winsorise step_two penalty fit_intercept whiten unseen task_column random_state "
    "engine keep_statistics"
)
class SpectralRegressor(SpanTransformer, TaskRegressor):
    """The span by an SVD of separate regressions (Tian, Gu and Feng's SE).

    Tasks of unequal sizes are weighted by sqrt(n_t) in the SVD, which the method as published does
    not do; with equal sizes there is no difference.

    Parameters
    ----------
    rank : int, "auto", "evidence" or "threshold", default="auto"
        k, the dimension of the span. "threshold" is the method's own rule: singular values of the
        separate estimates over sqrt(T) that exceed a noise level, after winsorising. It needs three
        rows per feature in every task; "auto" (cross-validation within tasks) and "evidence"
        (marginal likelihood) do not.
    outliers : float, default=0.0
        Assumed share of outlier tasks: norms of the separate estimates above the (1 - outliers)
        quantile are brought down to it.
    winsorise : {"clip", "normalise"}, default="clip"
        "normalise" brings all of them to that norm, as the authors' code does.
    step_two : bool, default=True
        Whether a task may leave the span if its rows are evidence against it.
    penalty : float, default=1.0
        The penalty gamma of step two of the paper, divided by sigma sqrt(d + log T), where sigma is
        the estimated noise standard deviation. Below one, step 2 falls back towards separate
        regressions.
    {fit_intercept, whiten, unseen, task_column, random_state, engine, keep_statistics}

    Attributes
    ----------
    {tasks_}
    coef_ : ndarray of shape (T, d)
        Coefficients of each task; with ``step_two`` they may leave the span.
    {intercept_, representation_, task_weights_, rank_, rank_path_, noise_variance_}
    {feature_covariance_, coef_names_, n_features_in_, feature_names_in_}

    References
    ----------
    Tian, Gu and Feng (2025), "Learning from similar linear representations: adaptivity,
    minimaxity, and robustness".
    """

    checks: ClassVar = {
        "outliers": partial(at_least, smallest=0.0),
        "winsorise": partial(one_of, known=("clip", "normalise")),
        "step_two": BOOL,
        "penalty": partial(at_least, smallest=0.0),
    }

    outliers: float = 0.0
    winsorise: str = "clip"
    step_two: bool = True
    penalty: float = 1.0

    def estimate(self, problem: Problem) -> FittedSpan:
        """B from an SVD of separate least squares, W in it, then the step outside the span."""
        objective = build_objective(problem.statistics)
        separate, ranks = separate_fits(objective)
        deviation = noise_deviation(objective, separate, ranks, self.fit_intercept)
        # Norms are of the estimates themselves; in the SVD a task counts by its size.
        clipped = winsorised(separate / objective.response, self.outliers, self.winsorise)
        if self.rank == "threshold":
            path = threshold_path(clipped, objective, deviation, self.outliers)
            selected: tuple[int, RankPath | None] = path.rank, path
        else:
            selected = select_rank(problem, self.rank, self.fit_intercept)
        rank, rank_path = selected
        k = min(rank, problem.largest_rank)
        B = np.linalg.svd(clipped * objective.response, full_matrices=False)[0][:, :k]
        W = objective.solve_W(B)
        noise, _ = shared_noise(objective, objective.gradients(B, W)[0], k, self.fit_intercept)
        off_span = None
        if self.step_two:
            d, T = separate.shape
            gamma = self.penalty * deviation * np.sqrt(d + np.log(T))
            lam = np.full(T, gamma / np.sqrt(objective.n.mean()))
            off_span = second_step(objective, B @ W, lam) - B @ W
        return FittedSpan.from_factors(
            problem, objective.response, B, W, rank, off_span=off_span, rank_path=rank_path,
            variance=np.full(objective.n_tasks, noise),
        )  # fmt: skip

    def check_combination(self) -> None:
        """Raise for a proportion of outliers that leaves no task."""
        if self.outliers >= 1:
            raise ValueError(
                f"outliers={self.outliers!r} is a proportion of the tasks: give a number below 1."
            )


def winsorised(V: np.ndarray, share: float, mode: str) -> np.ndarray:
    """Columns of V (d, T) with norms brought down (or all brought) to the (1 - share) quantile."""
    if share == 0:
        return V
    norms = np.linalg.norm(V, axis=0)
    level = np.quantile(norms, 1 - share)
    factor = level / np.where(norms > 0, norms, 1.0)
    return V * (factor if mode == "normalise" else np.minimum(factor, 1.0))


def second_step(objective: Objective, centre: np.ndarray, lam: np.ndarray) -> np.ndarray:
    """Each task's argmin of its loss + lam_t |v - centre_t|_2, exactly, (d', T).

    With g the gradient at the centre: the centre itself if |g| <= lam; otherwise the deviation
    solves (S + (lam / rho) I) delta = -g with rho = |delta|, found by bisection on rho in the
    eigenbasis of S, where |delta(rho)| - rho has one sign change.

    Parameters
    ----------
    objective : Objective
    centre : ndarray of shape (d', T)
    lam : ndarray of shape (T,)
    """
    return objective.map_shards(_second_step, centre.T, lam)[1][0].T


def _second_step(
    objective: Objective, centre: np.ndarray, lam: np.ndarray
) -> tuple[Arrays, Arrays]:
    V = np.array(centre)
    gradient = objective.residuals(V.T)[0].T
    for t in np.flatnonzero(np.linalg.norm(gradient, axis=1) > lam):
        eigenvalues, Q = np.linalg.eigh(objective.curvature(int(t)))
        V[t] -= Q @ _deviation(np.maximum(eigenvalues, 0.0), Q.T @ gradient[t], lam[t])
    return (), (V,)


def _deviation(eigenvalues: np.ndarray, z: np.ndarray, lam: float) -> np.ndarray:
    """Minus delta in the eigenbasis: z rho / (eigenvalue rho + lam) at the rho of its own norm."""
    if lam == 0:
        positive = eigenvalues > RANK_TOLERANCE * eigenvalues.max()
        return np.divide(z, eigenvalues, out=np.zeros_like(z), where=positive)
    # |z / (eigenvalue rho + lam)| falls in rho and is 1 at the solution.
    low, high = 0.0, 1.0
    while np.sum((z / (eigenvalues * high + lam)) ** 2) > 1 and high < 1e300:
        high *= 2
    for _ in range(BISECTIONS):
        rho = (low + high) / 2
        if np.sum((z / (eigenvalues * rho + lam)) ** 2) > 1:
            low = rho
        else:
            high = rho
    return z * high / (eigenvalues * high + lam)
