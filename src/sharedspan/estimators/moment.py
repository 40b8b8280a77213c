"""Method of moments: the span from averages of x y, then least squares in it.

In a canonical problem (isotropic features) E[x y] = v_t, so the leading directions of averages of
(x y)(x y)' over tasks are those of V V'. What differs is how noise is kept off the diagonal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sharedspan.estimators.base import as_generator, one_of
from sharedspan.estimators.span import SpanRegressor
from sharedspan.inputs.rows import TaskRows
from sharedspan.objective.base import build_objective
from sharedspan.statistics.moments import FourthMoment, HalfMoments
from sharedspan.statistics.task_statistics import gather


class MomentRegressor(SpanRegressor):
    """The span by the method of moments, the task weights by least squares in it.

    No iteration and no start; but it needs features like Gaussian ones, and its error does not
    vanish with the noise, because the design itself is noise to x y.

    Parameters
    ----------
    rank : int, "auto", "evidence" or "threshold", default="auto"
    variant : {"duchi", "niu", "tripuraneni"}, default="duchi"
        "duchi" averages (x_i y_i)(x_j y_j)' over all pairs of different rows of a task; "niu" takes
        the mean of x y over one half of the rows times that over the other half, which is one
        random split of "duchi"; "tripuraneni" averages y^2 x x', with noise of fourth moments.
    symmetrise : bool, default=True
        For "niu": eigenvectors of (Z + Z') / 2 instead of left singular vectors of Z.
    fit_intercept, whiten : bool, default=True
        Without whitening the features must be isotropic already.
    unseen, task_column, random_state
        As in SharedSpanRegressor; the seed draws the halves of "niu".

    Attributes
    ----------
    tasks_, coef_, intercept_, representation_, task_weights_, rank_, rank_path_, noise_variance_
        As in SharedSpanRegressor.

    References
    ----------
    Duchi, Feldman, Hu and Talwar (2022), "Subspace recovery from heterogeneous data with
    non-isotropic noise". Niu, Su, Xu and Yang (2024), "Collaborative learning with shared linear
    representations". Tripuraneni, Jin and Jordan (2021), "Provable meta-learning of linear
    representations", Algorithm 1.
    """

    def __init__(
        self,
        rank: Any = "auto",
        variant: str = "duchi",
        symmetrise: bool = True,
        fit_intercept: bool = True,
        whiten: bool = True,
        unseen: str = "error",
        task_column: Any = None,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.variant = variant
        self.symmetrise = symmetrise
        self.fit_intercept = fit_intercept
        self.whiten = whiten
        self.unseen = unseen
        self.task_column = task_column
        self.random_state = random_state

    def _fit_tasks(self, tasks: TaskRows) -> None:
        n = tasks.sizes()
        watched: FourthMoment | HalfMoments
        if self.variant == "niu":
            watched = HalfMoments(tasks, self.fit_intercept, as_generator(self.random_state))
        else:
            shares = np.ones_like(n) if self.variant == "tripuraneni" else pair_shares(n)
            watched = FourthMoment(tasks.n_features, shares, self.fit_intercept)
        gathered = gather(
            tasks, self.fit_intercept, common_scale=self._common_scale(), watch=watched.watch
        )
        problem = self._canonical(gathered)
        rank, self.rank_path_ = self._find_rank(problem)
        k = min(rank, problem.largest_rank)
        P = np.eye(tasks.n_features) if problem.canonical.P is None else problem.canonical.P
        objective = build_objective(problem.statistics)
        if isinstance(watched, HalfMoments):
            Z = half_matrix(watched.means() @ P, n)
        elif self.variant == "tripuraneni":
            Z = P.T @ watched.total @ P / n.sum()
        else:
            at_zero, _ = objective.residuals(np.zeros((P.shape[1], tasks.n_tasks)))
            c = -at_zero.T * (n / objective.response)[:, None]  # X_t'y_t, (T, d')
            Z = pair_matrix(c, P.T @ watched.total @ P, n)
        B = leading_directions(Z, k, self.symmetrise or self.variant != "niu")
        W = objective.solve_W(B)
        self._store_span(problem, objective.response, B, W, rank)
        variance = self._shared_noise(objective, B, W, k)
        self.noise_variance_ = variance / problem.canonical.units.y_scale**2

    def _validate_parameters(self) -> None:
        super()._validate_parameters()
        one_of("variant", self.variant, ("duchi", "niu", "tripuraneni"))
        one_of("symmetrise", self.symmetrise, (True, False))

    def _validate_tasks(self, tasks: TaskRows) -> None:
        super()._validate_tasks(tasks)
        rows = np.diff(tasks.starts)
        if self.variant == "niu" and rows.min() < 2:
            label = tasks.labels[int(np.argmin(rows))]
            raise ValueError(
                f"variant='niu' splits the rows of every task, and task {label!r} has one "
                "sample: leave such tasks out, or use variant='duchi'."
            )


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
