"""ARMUL: each task fitted near a centre, and the centres share a structure.

    minimise  sum_t n_t [ |y_t - X_t theta_t|^2 / (2 n_t) + lambda_t |theta_t - gamma_t| ],
    lambda_t = C sigma sqrt(d / n_t)

over all theta_t and all gamma_t in the structure: one common vector ("vanilla"), one of K vectors
("clustered"), or a span of dimension k ("lowrank"). A task whose own least squares is within the
noise of its centre gets the centre itself; one far from it pays only the length of its deviation.

In the canonical problem (theta'_t = r_t theta_t, r_t^2 = n_t / nbar) the objective over nbar is
sum_t loss_t(theta'_t) + C sigma sqrt(d / nbar) |theta'_t - gamma'_t|: one weight for all tasks.

With ``penalty_norm="gram"`` the length of a deviation is measured by what it does to the task's own
predictions, |S_t^(1/2) (theta_t - gamma_t)| with S_t = X_t'X_t / n_t (Kim 2026); ``solvers.huber``
says why that is a Huber function of the centres.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from sharedspan.estimators.base import SpanTransformer, TaskRegressor
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.fitting import Needs
from sharedspan.estimators.near_span import fit_of_descent, noise_level, warn_unless_converged
from sharedspan.estimators.parameters import (
    DEPRECATED,
    at_least,
    current_value,
    estimator,
    number_or_auto,
    one_of,
)
from sharedspan.inference.rank_selection import select_rank
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.objective import Objective, build_objective
from sharedspan.solvers.alternating import solve_B
from sharedspan.solvers.huber import huber_descent, nearest_centres
from sharedspan.solvers.initialization import separate_fits, task_curvatures
from sharedspan.solvers.proximal import (
    Parts,
    Penalty,
    Place,
    ProximalFit,
    Span,
    near_median_span,
    proximal_descent,
)
from sharedspan.statistics.canonical import Problem
from sharedspan.statistics.folds import N_FOLDS

PENALTIES = np.geomspace(0.05, 2.0, 10)  # of C, from separate fits to the structure alone
FALLBACK = 1.2  # C if there are too few rows to choose it
FOLD_TOLERANCE = 1e-5  # of the fits that only choose C


def distance_penalty(weight: float) -> Penalty:
    """The penalty weight |delta_t|: its values, smooth slope (zero) and threshold."""

    def penalty(V: np.ndarray, D: np.ndarray) -> Parts:
        return weight * np.linalg.norm(D, axis=0), np.zeros_like(D), np.full(D.shape[1], weight)

    return penalty


class Centres:
    """K centres: W holds r_t in the row of the task's centre and zeros elsewhere."""

    def __init__(self, objective: Objective, weight: float) -> None:
        self.objective, self.weight = objective, weight

    def free(self, B: np.ndarray, D: np.ndarray) -> np.ndarray:
        """See CentreStructure: deviations may have any direction."""
        return D

    def step(self, at: Place, damping: float) -> Parts:
        """Least squares for each centre, the deviations fixed, then new labels."""
        B = at.B + damping * (solve_B(self.objective, at.B, at.W, at.D) - at.B)
        return (B, at.W, at.D) if B.shape[1] == 1 else self._assign(B, at.W, at.D)

    def _assign(self, B: np.ndarray, W: np.ndarray, D: np.ndarray) -> Parts:
        """Move each task to its best centre; its deviation or its coefficients are unchanged."""
        r, T, theta = self.objective.response, W.shape[1], B @ W + D
        _, own = self.objective.residuals(theta.copy())
        moved = [np.outer(b, r) for b in B.T]  # (d, T) for each centre
        losses = [self.objective.residuals(M + D)[1] for M in moved]
        values = [loss + self.weight * np.linalg.norm(D, axis=0) for loss in losses]
        values += [own + self.weight * np.linalg.norm(theta - M, axis=0) for M in moved]
        best = np.argmin(values, axis=0)
        stays = np.min(values, axis=0) >= own + self.weight * np.linalg.norm(D, axis=0)
        label = np.where(stays, np.argmax(W, axis=0), best % B.shape[1])
        W = np.zeros_like(W)
        W[label, np.arange(T)] = r
        return B, W, np.where(stays | (best < B.shape[1]), D, theta - B @ W)


@estimator(
    "rank variant n_clusters penalty fit_intercept whiten unseen task_column max_iter tol "
    "random_state engine keep_statistics verbose structure penalty_norm"
)
class ARMULRegressor(SpanTransformer, TaskRegressor):
    """Adaptive and robust multi-task learning: tasks near a common vector, clusters or a span.

    Parameters
    ----------
    {rank}
        Only ``variant="lowrank"`` uses it.
    variant : {"lowrank", "clustered", "vanilla"}, default="lowrank"
        Structure of the centres: a span of dimension k, K vectors, or one vector.
    n_clusters : int, default=2
        K of ``variant="clustered"``; at most one per task is used.
    penalty : "auto" or float, default="auto"
        C in units of the noise standard deviation, which is estimated. With 0 each task is fitted
        separately, and with a large value all tasks follow the structure exactly; with values near
        1, noise alone does not move a task off its centre. "auto" cross-validates it within tasks
        (5 folds, 10 values from 0.05 to 2).
    {fit_intercept, whiten, unseen, task_column, max_iter}
    tol : float, default=1e-7
        The fit ends when the objective changes by less than this share, three times in a row.
    {random_state, engine, keep_statistics, verbose}
    structure
        Deprecated: the old name of ``variant``.
    penalty_norm : {"euclidean", "gram"}, default="euclidean"
        Norm of the deviation of a task from its centre: Euclidean, or the root mean square of
        X_t (theta_t - gamma_t), the change of the task's predictions. "gram" suits tasks whose
        features have different covariances, which a common whitening cannot remove: see Notes.

    Attributes
    ----------
    {tasks_, coef_, intercept_, rank_path_}
    representation_ : ndarray of shape (d, rank_)
        Orthonormal basis of the span of the centres.
    task_weights_ : ndarray of shape (rank_, T)
        The centres are ``representation_ @ task_weights_``; ``coef_`` has the deviations too.
    rank_ : int
        k, or the number of centres (at most d).
    labels_ : ndarray of shape (T,)
        Cluster of each task, in the order of ``tasks_``; None for other variants.
    penalty_ : float
        C.
    penalty_path_ : dict of ndarray or None
        ``penalty`` and ``loss``, the mean squared error on held-out rows, if C was selected.
    noise_variance_ : ndarray of shape (T,)
        The same for all tasks.
    {n_iter_, converged_}
    trace_ : dict of ndarray
        ``iteration`` and ``objective``, which never rises.
    {feature_covariance_, coef_names_, n_features_in_, feature_names_in_}

    Notes
    -----
    ``penalty_norm="gram"`` never moves a task's predictions far from those of its separate least
    squares v_t: X_t (theta_t - v_t) has a mean square of at most lambda_t^2 = C^2 sigma^2 d / n_t,
    whatever the other tasks and the conditioning of X_t. If sigma is right and n_t > d, that is C^2
    times the expected mean squared error of X_t v_t, so that of X_t theta_t is at most (1 + C)^2
    times as large, and smaller where the centres help. The Euclidean norm has no such bound: it
    divides by the smallest eigenvalue of X_t'X_t / n_t. The minimiser is the same in any
    coordinates of the features, whitened or not.

    The objective with one centre (``variant="vanilla"``), lambda_t proportional to sqrt(d / n_t)
    and its choice by five-fold cross-validation are Kim's, as read from the abstract and from the
    published code; the text of the paper was not at hand. The low-rank and clustered structures,
    lambda_t in units of the estimated noise, the weights n_t of the tasks, the solver and the
    bounds above are ours.

    References
    ----------
    Duan and Wang (2023), "Adaptive and robust multi-task learning". Kim (2026), "Multi-task linear
    regression without eigenvalue lower bounds: adaptivity, robustness and safety",
    arXiv:2605.17126, for ``penalty_norm="gram"``.
    """

    checks: ClassVar = {
        "variant": partial(one_of, known=("lowrank", "clustered", "vanilla")),
        "n_clusters": partial(at_least, smallest=1, kind=numbers.Integral),
        "penalty": partial(number_or_auto, smallest=0.0),
        "penalty_norm": partial(one_of, known=("euclidean", "gram")),
    }
    renamed: ClassVar = {"structure": "variant"}
    stored_axes = "labels_:T"

    variant: str = "lowrank"
    n_clusters: int = 2
    penalty: Any = "auto"
    max_iter: int = 600
    tol: float = 1e-7
    structure: str = DEPRECATED
    penalty_norm: str = "euclidean"

    @property
    def _variant(self) -> str:
        return current_value(self, "variant")

    def needs(self) -> Needs:
        """The needs of a span, with folds if the rank or the penalty is selected."""
        folds = (self._variant == "lowrank" and self.rank == "auto") or self.penalty == "auto"
        return replace(super().needs(), folds=folds)

    def estimate(self, problem: Problem) -> FittedSpan:
        """Proximal descent from separate fits, with the penalty selected first."""
        if self._variant == "lowrank":
            rank, rank_path = select_rank(
                problem, self.rank, self.fit_intercept, verbose=self.verbose
            )
        else:
            d, T = len(problem.canonical.units.scale), problem.statistics.n_tasks
            rank, rank_path = min(self._n_centres(T), d), None
        k = min(rank, problem.largest_rank)
        objective = build_objective(problem.statistics)
        with one_blas_thread():
            separate = separate_fits(objective)
            sigma = noise_level(objective, separate[0], k, self.fit_intercept, self.max_iter)
            penalty, penalty_path = self._select_penalty(problem, sigma, k)
            start = self._start(objective, separate[0], sigma, k, problem.rng)
            descend = self._descent(objective, separate, problem.rng)
            descent = descend(penalty * sigma, start, tol=self.tol, verbose=self.verbose)
        B, W, D = descent.place.parts
        warn_unless_converged(type(self).__name__, descent, self.tol)
        labels = np.argmax(W, axis=0) if self._variant == "clustered" else None
        extra = {"labels": labels, "penalty": penalty, "penalty_path": penalty_path}
        return fit_of_descent(
            problem, objective, descent, B @ W + D, rank, sigma, rank_path=rank_path, extra=extra
        )

    def _n_centres(self, n_tasks: int) -> int:
        return min(int(self.n_clusters), n_tasks) if self._variant == "clustered" else 1

    def _start(
        self,
        objective: Objective,
        separate: np.ndarray,
        sigma: float,
        k: int,
        rng: np.random.Generator,
    ) -> Parts:
        """B, W and deviations that add up to the separate fits (d, T)."""
        if self._variant == "lowrank":
            return near_median_span(objective, separate, k, sigma)
        K = self._n_centres(objective.n_tasks)
        B, W = _nearest_centres(separate, objective.response, K, rng)
        return B, W, separate - B @ W

    def _descent(
        self,
        objective: Objective,
        separate: tuple[np.ndarray, np.ndarray],
        rng: np.random.Generator,
    ) -> Callable[..., ProximalFit]:
        """The function that minimises the objective with a given C sigma, from a given start."""
        unit = np.sqrt(objective.n_features / objective.n[objective.n > 0].mean())
        lowrank, max_iter = self._variant == "lowrank", self.max_iter
        if self.penalty_norm == "gram":
            weights_of = objective.solve_W if lowrank else partial(nearest_centres, objective)

            def descend(strength: float, start: Parts, **options: Any) -> ProximalFit:
                return huber_descent(
                    objective, strength * unit, weights_of, start[0], separate,
                    max_iter=max_iter, **options,
                )  # fmt: skip

            return descend
        curvature = task_curvatures(objective, rng)

        def descend_euclidean(strength: float, start: Parts, **options: Any) -> ProximalFit:
            weight = strength * unit
            structure = Span() if lowrank else Centres(objective, weight)
            return proximal_descent(
                objective, distance_penalty(weight), structure, start, curvature,
                max_iter=max_iter, **options,
            )  # fmt: skip

        return descend_euclidean

    def _select_penalty(
        self, problem: Problem, sigma: float, k: int
    ) -> tuple[float, dict[str, np.ndarray] | None]:
        """C as given, or the C with the smallest cross-validated loss, with the losses."""
        if self.penalty != "auto":
            return float(self.penalty), None
        if problem.rows is None:
            return FALLBACK, None
        statistics, canonical = problem.statistics, problem.canonical
        folds, total, rows = problem.make_folds(problem.rng), np.zeros(len(PENALTIES)), 0.0
        held = [folds.sizes(fold) for fold in range(N_FOLDS)]
        if np.count_nonzero([sizes.sum() for sizes in held]) < 2:
            return FALLBACK, None
        for fold in (fold for fold in range(N_FOLDS) if held[fold].any()):
            with folds.without(fold, statistics, canonical) as remaining:
                objective = build_objective(remaining)
                scorable = objective.n > 0
                held_out = partial(folds.errors, fold, remaining, objective.response, canonical)
                errors = self._path(objective, held_out, problem.rng, sigma, k)
                total += [error[scorable].sum() for error in errors]
                rows += float(held[fold][scorable].sum())
        if not rows:
            return FALLBACK, None
        loss = problem.canonical.units.squares_to_user(total / rows)
        return float(PENALTIES[np.argmin(total)]), {"penalty": PENALTIES.copy(), "loss": loss}

    def _path(
        self,
        objective: Objective,
        held_out: Callable[[np.ndarray, np.ndarray], np.ndarray],
        rng: np.random.Generator,
        sigma: float,
        k: int,
    ) -> Iterator[np.ndarray]:
        """Held-out squared errors per task (T,) for each C; each fit starts from the last.

        C increases, because the start is the solution for C near zero.
        """
        separate = separate_fits(objective)
        at = self._start(objective, separate[0], sigma, k, rng)
        descend = self._descent(objective, separate, rng)
        identity = np.eye(objective.n_features)
        for C in PENALTIES:
            at = descend(C * sigma, at, tol=max(self.tol, FOLD_TOLERANCE)).place.parts
            B, W, D = at
            yield held_out(identity, B @ W + D)


def _nearest_centres(
    V: np.ndarray, response: np.ndarray, K: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Centres B (d, K) and W (K, T) that minimise |V - BW|: k-means of v_t / r_t, weights r_t^2."""
    if K == 1:
        return (V @ response / (response @ response))[:, None], response[None, :].copy()
    means = KMeans(K, n_init=10, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():  # fewer distinct tasks than clusters: some stay empty
        warnings.simplefilter("ignore", ConvergenceWarning)
        means.fit((V / response).T, sample_weight=response**2)
    W = np.zeros((K, len(response)))
    W[means.labels_, np.arange(len(response))] = response
    return means.cluster_centers_.T, W
