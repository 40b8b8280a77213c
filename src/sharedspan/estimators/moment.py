"""Method of moments: the span from averages of x y, then least squares in it.

In a canonical problem (isotropic features) E[x y] = v_t, so the leading directions of averages of
(x y)(x y)' over tasks are the leading directions of V V'. The variants differ in how they avoid
noise on the diagonal.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from sharedspan.estimators.base import SpanTransformer, TaskRegressor
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.fitting import Needs
from sharedspan.estimators.parameters import (
    BOOL,
    as_generator,
    estimator,
    one_of,
    require_rows_to_split,
)
from sharedspan.inference.noise import shared_noise
from sharedspan.inference.rank_selection import select_rank
from sharedspan.inputs.rows import TaskRows
from sharedspan.objective import build_objective
from sharedspan.statistics.canonical import Problem
from sharedspan.statistics.moments import FourthMoment, HalfMoments


@estimator("rank variant symmetrise fit_intercept whiten unseen task_column random_state")
class MomentRegressor(SpanTransformer, TaskRegressor):
    """The span by the method of moments, the task weights by least squares in it.

    It needs neither iterations nor a start, but features that are nearly Gaussian, and its error
    does not vanish with the noise, because x y varies with the design too.

    Parameters
    ----------
    {rank}
    variant : {"duchi", "niu", "tripuraneni"}, default="duchi"
        "duchi" averages (x_i y_i)(x_j y_j)' over all pairs of different rows of a task; "niu" takes
        the mean of x y over one half of the rows times its mean over the other half, which is one
        random split of "duchi"; "tripuraneni" averages y^2 x x', whose sampling error depends on
        fourth moments and is larger.
    symmetrise : bool, default=True
        For "niu": eigenvectors of (Z + Z') / 2 instead of left singular vectors of Z.
    {fit_intercept, whiten}
        Without whitening the features must be isotropic already.
    {unseen, task_column, random_state}
        The halves of "niu" are drawn with it too.

    Attributes
    ----------
    {tasks_, coef_, intercept_, representation_, task_weights_, rank_, rank_path_, noise_variance_}
    {coef_names_, n_features_in_, feature_names_in_}

    References
    ----------
    Duchi, Feldman, Hu and Talwar (2022), "Subspace recovery from heterogeneous data with
    non-isotropic noise". Niu, Su, Xu and Yang (2024), "Collaborative learning with shared linear
    representations". Tripuraneni, Jin and Jordan (2021), "Provable meta-learning of linear
    representations", Algorithm 1.
    """

    incremental = False
    checks: ClassVar = {
        "variant": partial(one_of, known=("duchi", "niu", "tripuraneni")),
        "symmetrise": BOOL,
    }

    variant: str = "duchi"
    symmetrise: bool = True

    def needs(self) -> Needs:
        """The usual statistics, and moments of x y in addition."""
        return replace(super().needs(), moments=self._moments)

    def _moments(self, rows: TaskRows) -> FourthMoment | HalfMoments:
        """The moments to collect while the statistics are built."""
        if self.variant == "niu":
            return HalfMoments(rows, self.fit_intercept, as_generator(self.random_state))
        n = rows.sizes()
        shares = np.ones_like(n) if self.variant == "tripuraneni" else pair_shares(n)
        return FourthMoment(rows.n_features, shares, self.fit_intercept)

    def estimate(self, problem: Problem) -> FittedSpan:
        """B from the leading directions of a matrix of moments, W by least squares."""
        if self.variant == "niu":
            require_rows_to_split(problem, "variant='niu'", "variant='duchi'")
        rank, rank_path = select_rank(problem, self.rank, self.fit_intercept)
        n, moments, P = problem.statistics.n, problem.moments, problem.canonical.P
        P = np.eye(problem.statistics.n_features) if P is None else P
        objective = build_objective(problem.statistics)
        if self.variant == "niu":
            Z = half_matrix(moments.means() @ P, n)
        elif self.variant == "tripuraneni":
            Z = P.T @ moments.total @ P / n.sum()
        else:
            at_zero, _ = objective.residuals(np.zeros((P.shape[1], objective.n_tasks)))
            c = -at_zero.T * (n / objective.response)[:, None]  # X_t'y_t, (T, d')
            Z = pair_matrix(c, P.T @ moments.total @ P, n)
        k = min(rank, problem.largest_rank)
        B = leading_directions(Z, k, self.symmetrise or self.variant != "niu")
        W = objective.solve_W(B)
        noise, _ = shared_noise(objective, objective.gradients(B, W)[0], k, self.fit_intercept)
        return FittedSpan.from_factors(
            problem, objective.response, B, W, rank, rank_path=rank_path,
            variance=np.full(objective.n_tasks, noise),
        )  # fmt: skip


def pair_shares(n: np.ndarray) -> np.ndarray:
    """1 / (n_t - 1) for the tasks that have pairs, (T,)."""
    return np.divide(1.0, n - 1, out=np.zeros_like(n), where=n > 1)


def pair_matrix(c: np.ndarray, own: np.ndarray, n: np.ndarray) -> np.ndarray:
    """All pairs: sum_t [c_t c_t' - sum_i (x_i y_i)(x_i y_i)'] / (n_t - 1) / sum n, (d, d).

    c (T, d) holds sums of x y; ``own`` (d, d) the pairs of a row with itself, with the same shares.
    """
    return ((c * pair_shares(n)[:, None]).T @ c - own) / n.sum()


def half_matrix(means: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Z = sum_t n_t a_t b_t' / sum n, (d, d), of the two halves' means (2, T, d)."""
    return (means[0] * n[:, None]).T @ means[1] / n.sum()


def leading_directions(Z: np.ndarray, k: int, symmetric: bool) -> np.ndarray:
    """The top k eigenvectors of (Z + Z') / 2, or left singular vectors of Z, (d, k)."""
    if symmetric:
        return np.linalg.eigh((Z + Z.T) / 2)[1][:, ::-1][:, :k]
    return np.linalg.svd(Z)[0][:, :k]
