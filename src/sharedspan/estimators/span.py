"""What estimators with a span share: the canonical problem, the rank, and the way back."""

from __future__ import annotations

import numbers
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.estimators.base import TaskRegressor, as_generator, at_least, one_of
from sharedspan.estimators.features import SpanFeatures
from sharedspan.inference.noise import residual_degrees
from sharedspan.inference.rank_selection import (
    N_FOLDS,
    RANK_METHODS,
    RankPath,
    choose_rank,
    evidence_path,
    noise_deviation,
    threshold_path,
)
from sharedspan.objective.base import Objective, build_objective
from sharedspan.objective.held_out import Folds, deal
from sharedspan.solvers.initialization import separate_fits
from sharedspan.statistics.canonical import Canonical, common_scaling, whitening
from sharedspan.statistics.sums import Statistics
from sharedspan.statistics.task_statistics import TaskStatistics
from sharedspan.subspace import ordered_factors


@dataclass(frozen=True)
class Problem:
    """A canonical problem: what a fit works on once the rows have been read."""

    rows: Any  # Tasks, or those of a cluster, where they can be read again
    statistics: Statistics
    canonical: Canonical
    rng: np.random.Generator

    @property
    def largest_rank(self) -> int:
        """No rank above this can be told from the data."""
        return min(self.statistics.n_features, self.statistics.n_tasks)

    def folds(self, rng: np.random.Generator) -> Folds:
        """The rows in ``N_FOLDS`` folds."""
        return deal(self.rows, len(self.canonical.units.scale), rng, N_FOLDS)


class SpanRegressor(SpanFeatures, TaskRegressor):
    """Base of the estimators that have ``rank``, ``whiten`` and ``random_state``."""

    rank: Any
    whiten: bool
    random_state: Any
    representation_: np.ndarray
    task_weights_: np.ndarray
    rank_: int
    rank_path_: RankPath | None
    noise_variance_: np.ndarray

    def _needs_folds(self) -> bool:
        return isinstance(self.rank, str) and self.rank == "auto"

    def _common_scale(self) -> bool:
        return not self.whiten

    def _canonical(self, gathered: TaskStatistics) -> Problem:
        """The canonical problem; the statistics are transformed in place."""
        return self._mapped(gathered, self._feature_map(gathered.statistics))

    def _feature_map(self, statistics: Statistics) -> np.ndarray | None:
        """P (d, d'), None for the identity."""
        return whitening(statistics) if self.whiten else common_scaling(statistics)

    def _mapped(self, gathered: TaskStatistics, P: np.ndarray | None) -> Problem:
        """The problem in the features X P; the statistics are transformed in place."""
        statistics = gathered.statistics
        if P is not None:
            statistics.transform(P)
        canonical = Canonical(gathered.units, P)
        return Problem(gathered.rows, statistics, canonical, as_generator(self.random_state))

    def _find_rank(
        self, problem: Problem, noise: np.ndarray | None = None
    ) -> tuple[int, RankPath | None]:
        """The rank asked for, or the one found, with its path."""
        if not isinstance(self.rank, str):
            return int(self.rank), None
        if problem.largest_rank == 1:
            return 1, None
        statistics, canonical = problem.statistics, problem.canonical
        if self.rank == "threshold":
            objective = build_objective(statistics)
            separate, ranks = separate_fits(objective)
            deviation = noise_deviation(objective, separate, ranks, self.fit_intercept)
            path = threshold_path(separate / objective.response, objective, deviation)
        elif self.rank == "evidence" or problem.rows is None:  # no rows, no folds
            path = evidence_path(statistics, canonical, noise, problem.largest_rank)
        else:
            rng = deepcopy(problem.rng)  # the fit starts as if its rank had been given
            path = choose_rank(
                problem.folds(rng),
                statistics,
                canonical,
                noise,
                problem.largest_rank,
                verbose=getattr(self, "verbose", 0),
            )
        return path.rank, path

    def _shared_noise(
        self, objective: Objective, B: np.ndarray, W: np.ndarray, k: int
    ) -> np.ndarray:
        """One noise variance for all tasks, (T,), in the units of the statistics."""
        degrees = residual_degrees(objective.n, objective.n_features, k, self.fit_intercept)
        return np.full(objective.n_tasks, objective.squares(B, W).sum() / degrees)

    def _store_span(
        self,
        problem: Problem,
        response: np.ndarray,
        B: np.ndarray,
        W: np.ndarray,
        rank: int,
        off_span: np.ndarray | None = None,
    ) -> None:
        """Canonical factors back to the user's units.

        Parameters
        ----------
        problem : Problem
        response : ndarray of shape (T,)
            The task scale r_t of the objective that was fitted.
        B, W : ndarray of shape (d', k) and (k, T)
        rank : int
            As asked for; larger than k where the features have fewer independent directions.
        off_span : ndarray of shape (d', T), optional
            What the coefficients have beyond BW.
        """
        W = W / response
        inner = B @ W
        span = problem.canonical.to_user(B)
        # Not the product of the ordered factors: where features differ in scale by more than the
        # precision of a number, rotating the factors would lose the small coefficients.
        V = span @ W
        if off_span is not None:
            inner = inner + off_span / response
            V = V + problem.canonical.to_user(off_span / response)
        missing = rank - B.shape[1]
        if missing > 0:
            span = np.column_stack([span, np.eye(len(span))])[:, :rank]
            W = np.vstack([W, np.zeros((missing, W.shape[1]))])
        self.representation_, self.task_weights_ = ordered_factors(span, W)
        self.coef_ = np.ascontiguousarray(V.T)
        self.intercept_ = problem.canonical.intercept_to_user(
            problem.statistics.intercepts(inner), V
        )
        self.rank_ = int(rank)

    def _validate_parameters(self) -> None:
        super()._validate_parameters()
        one_of("whiten", self.whiten, (True, False))
        as_generator(self.random_state)
        self._validate_rank()

    def _validate_rank(self) -> None:
        methods = "'auto', 'evidence' or 'threshold'"
        if isinstance(self.rank, str):
            if self.rank not in RANK_METHODS:
                raise ValueError(f"rank={self.rank!r} is unknown: use an integer, {methods}.")
            return
        try:
            at_least("rank", self.rank, 1, numbers.Integral)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error} Or use rank={methods}.") from None

    def _validate_shape(self, n_tasks: int, n_features: int) -> None:
        largest = min(n_features, n_tasks)
        if not isinstance(self.rank, str) and self.rank > largest:
            raise ValueError(
                f"rank={self.rank} is larger than min({n_features} features, {n_tasks} tasks) = "
                f"{largest}: give a rank from 1 to {largest}, or 'auto'."
            )
