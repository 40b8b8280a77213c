"""Tasks that are alike, but not exactly of low rank: a mixed model that finds its own shape."""

from __future__ import annotations

import math
import numbers
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from sharedspan.estimators.base import IntervalRegressor, as_generator, number_or_auto, one_of
from sharedspan.estimators.features import SpanFeatures
from sharedspan.estimators.sums import Solution, SumsRegressor
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model.likelihood import MixedTasks, Scaling
from sharedspan.mixed_model.posterior import Posterior, posterior_of
from sharedspan.mixed_model.search import KINDS, Fit, Outliers, Search, adapt
from sharedspan.statistics.canonical import Canonical, common_scaling, whitening
from sharedspan.statistics.sums import Statistics
from sharedspan.statistics.task_statistics import TaskStatistics
from sharedspan.subspace import ordered_factors, orthonormal_basis

LARGEST_RANK = 15
SEARCH_WORK = 4e7  # T p^3 of the tasks that variances and directions are learned from


class AdaptiveSpanRegressor(SpanFeatures, SumsRegressor, IntervalRegressor):
    """Regressions of many tasks, each as far from the others as the data say; nothing to tune.

    v_t = b + u_t, u_t ~ N(0, D + LL') over slopes and intercept together: b is shared, D says how
    much each coefficient varies by itself, L along which k directions they vary together. u_t = 0
    is pooled regression, L = 0 the classical mixed model, D = 0 the paper's shared span. Noise, D,
    L, k and a Gaussian prior on b are found by marginal likelihood, from sums per task. Tasks that
    fit none of it may be outliers, with a wide covariance of their own.

    Use it on real tables. ``SharedSpanRegressor`` is for the paper's model and the largest scales.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        k, the columns of L; 0 for none.
    slopes : {"auto", "zero", "none", "isotropic", "diagonal"}, default="auto"
        D: "diagonal" gives each coefficient its own variance (log variances have a normal prior
        around their mean), "isotropic" one to all slopes of standardised features, "none" only to
        the intercepts, "zero" not even to these.
    method : {"evidence", "ml"}, default="evidence"
        "ml" is maximum likelihood with no prior on b nor on D, as mixed-model software has it.
    outliers : bool, default=True
        Whether to look for tasks off the common covariance.
    fit_intercept : bool, default=True
    whiten : bool, default=False
        Measure D in whitened instead of standardised features.
    unseen : {"error", "mean"}, default="error"
        "mean" predicts new tasks by b.
    task_column : str or int, optional
    random_state : int, numpy.random.Generator or None, default=None
        Draws the tasks that the variances are learned from, where there are very many; None always
        draws the same.
    verbose : int, default=0
        1 prints each fit that was compared.
    engine, keep_statistics
        As in SharedSpanRegressor.

    Attributes
    ----------
    tasks_, coef_, intercept_, coef_names_, n_features_in_, feature_names_in_
        As in SharedSpanRegressor.
    mean_coef_ : ndarray of shape (d,)
    mean_intercept_ : float
        b.
    coef_covariance_ : ndarray of shape (d, d)
        Covariance of the slopes of a new task, the uncertainty of b and L included: the prior that
        ``NewTaskRegressor.from_model`` uses.
    slope_std_ : ndarray of shape (d,)
        Deviation of each slope between tasks by D alone, in the user's units.
    intercept_std_ : float
        The same for the intercept of centred features.
    representation_ : ndarray of shape (d, rank_)
        Orthonormal basis of the slopes of L.
    task_weights_ : ndarray of shape (rank_, T)
        Where ``coef_ - mean_coef_`` lies in this span.
    rank_ : int
    slopes_ : str
        The kind of D that was chosen.
    noise_variance_ : ndarray of shape (T,)
        All equal.
    outlier_probability_ : ndarray of shape (T,)
    log_likelihood_ : float
        Log marginal likelihood of the tasks that were searched, b integrated out (at its best
        value with "ml").
    candidates_ : list of dict
        The fits that were compared: ``slopes``, ``rank``, ``log_likelihood``, ``score``.
    n_iter_ : int
    converged_ : bool
    degrees_of_freedom_ : float
        Effective number of parameters.

    Examples
    --------
    >>> import sharedspan as ss
    >>> sim = ss.simulate(n_tasks=40, n_features=20, rank=2, n_samples=30, random_state=0)
    >>> model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
    >>> model.rank_
    2
    """

    shares = "population"
    stored_axes = "slope_std_:d outlier_probability_:T"

    mean_coef_: np.ndarray
    mean_intercept_: float
    candidates_: list[dict[str, Any]]
    _uncertainty_: Posterior

    def __init__(
        self,
        rank: Any = "auto",
        slopes: str = "auto",
        method: str = "evidence",
        outliers: bool = True,
        fit_intercept: bool = True,
        whiten: bool = False,
        unseen: str = "error",
        task_column: Any = None,
        random_state: Any = None,
        verbose: int = 0,
        engine: Any = "local",
        keep_statistics: Any = "auto",
    ) -> None:
        self.rank = rank
        self.slopes = slopes
        self.method = method
        self.outliers = outliers
        self.fit_intercept = fit_intercept
        self.whiten = whiten
        self.unseen = unseen
        self.task_column = task_column
        self.random_state = random_state
        self.verbose = verbose
        self.engine = engine
        self.keep_statistics = keep_statistics

    def _fit_gathered(self, gathered: TaskStatistics, last: Solution | None = None) -> None:
        statistics = gathered.statistics
        P = whitening(statistics) if self.whiten else common_scaling(statistics)
        if P is not None:
            statistics.transform(P)
        canonical = Canonical(gathered.units, P)
        scaling = Scaling.of(statistics, self.fit_intercept)
        with one_blas_thread():
            searched, fit, outliers = self._search(statistics, scaling)
            posterior = posterior_of(statistics, canonical, searched, fit, outliers)
        self._store(canonical, scaling, fit, posterior)
        if not fit.converged:
            warnings.warn(
                f"The search for variances and directions was stopped after {fit.n_iter} steps: "
                "the fit is close to the best, but may not be it. Features that say nearly the "
                "same make it slow: leave some out, or give rank=0.",
                ConvergenceWarning,
                stacklevel=3,
            )
        shift = math.log(canonical.units.y_scale / scaling.y_scale)
        self.log_likelihood_ = fit.evidence.value + float(searched.n.sum()) * shift

    def _search(
        self, statistics: Statistics, scaling: Scaling
    ) -> tuple[MixedTasks, Fit, Outliers | None]:
        """D, L and the outliers, learned from all tasks or, of very many, from some."""
        p = statistics.n_features + self.fit_intercept
        most = max(int(SEARCH_WORK / p**3), 300)
        if statistics.n_tasks > most:
            rng = as_generator(0 if self.random_state is None else self.random_state)
            statistics = statistics.take(
                np.sort(rng.choice(statistics.n_tasks, most, replace=False))
            )
        tasks = MixedTasks(statistics.gather_local(), scaling)
        self.candidates_ = []
        kinds = KINDS if self.slopes == "auto" else (self.slopes,)
        if self.slopes == "auto" and not (tasks.n > 1).any():
            kinds = ("zero",)  # a row per task does not tell its level from noise
        ranks = (self.rank, self.rank)
        if isinstance(self.rank, str):
            ranks = (0, min(p, max(tasks.n_tasks - 1, 0), LARGEST_RANK))
        search = Search(tasks, flat=self.method == "ml")
        fit, outliers = adapt(search, kinds, ranks, self.outliers, self._note)
        return tasks, fit, outliers

    def _note(self, fit: Fit) -> None:
        row = {
            "slopes": fit.kind, "rank": fit.loadings.shape[1],
            "log_likelihood": fit.evidence.value, "score": fit.score,
        }  # fmt: skip
        self.candidates_.append(row)
        if self.verbose:
            print("{slopes:<10} rank {rank:2d}  score {score:.2f}".format(**row))

    def _store(
        self, canonical: Canonical, scaling: Scaling, fit: Fit, posterior: Posterior
    ) -> None:
        T, first, unit = len(posterior.mean), int(self.fit_intercept), canonical.units.y_scale
        # The last row is b, the mean of all tasks that there might be.
        V = np.vstack([posterior.mean, posterior.b])
        slopes, level = scaling.from_standard(V, self.fit_intercept)
        slopes = canonical.to_user(slopes.T).T
        level = canonical.intercept_to_user(level, slopes.T)
        self.coef_, self.mean_coef_ = slopes[:T].copy(), slopes[T].copy()
        self.intercept_, self.mean_intercept_ = level[:T].copy(), float(level[T])
        self.noise_variance_ = np.full(T, posterior.noise * (scaling.y_scale / unit) ** 2)
        deviation = np.sqrt(fit.variances * posterior.noise) * scaling.y_scale
        # D is diagonal in the features it was measured in; whitened ones mix on the way back.
        root = canonical.to_user(np.diag(deviation[first:] / scaling.scale))
        largest = np.maximum(np.abs(root).max(axis=1), np.finfo(float).tiny)
        self.slope_std_ = largest * np.linalg.norm(root / largest[:, None], axis=1)
        self.intercept_std_ = float(deviation[0] / unit) if self.fit_intercept else 0.0
        self._store_span(canonical.to_user(fit.loadings[first:] / scaling.scale[:, None]))
        self.slopes_ = fit.kind
        self.outlier_probability_ = posterior.off
        self.degrees_of_freedom_ = posterior.degrees_of_freedom
        self.n_iter_, self.converged_ = fit.n_iter, fit.converged
        self._uncertainty_ = posterior

    def _store_span(self, span: np.ndarray) -> None:
        """The directions of L (d, k) and where the tasks lie in them."""
        self.rank_ = int(span.shape[1])
        self.representation_ = np.zeros((len(span), 0))
        self.task_weights_ = np.zeros((0, len(self.coef_)))
        if 0 < self.rank_ <= min(len(span), len(self.coef_)):
            Q = orthonormal_basis(span)
            weights = Q.T @ (self.coef_ - self.mean_coef_).T
            self.representation_, self.task_weights_ = ordered_factors(Q, weights)

    @property
    def coef_covariance_(self) -> np.ndarray:
        """Covariance of the slopes of a new task, (d, d)."""
        check_is_fitted(self)
        posterior = self._uncertainty_
        first, scaling = int(self.fit_intercept), posterior.scaling
        J = posterior.canonical.to_user(np.diag(scaling.y_scale / scaling.scale))
        return J @ posterior.new[first:, first:] @ J.T

    def _uncertainty(self) -> Posterior:
        return self._uncertainty_

    def _mean_task(self) -> tuple[np.ndarray, float]:
        """A new task is predicted by the mean of all that there might be."""
        return self.mean_coef_, self.mean_intercept_

    def _validate_shape(self, n_tasks: int, n_features: int) -> None:
        largest = n_features + self.fit_intercept
        if not isinstance(self.rank, str) and self.rank > largest:
            raise ValueError(
                f"rank={self.rank} is larger than the {largest} coefficients of a task: give a "
                f"rank from 0 to {largest}, or 'auto'."
            )

    def _validate_parameters(self) -> None:
        super()._validate_parameters()
        number_or_auto("rank", self.rank, 0, numbers.Integral)
        one_of("slopes", self.slopes, ("auto", *KINDS))
        one_of("method", self.method, ("evidence", "ml"))
        one_of("outliers", self.outliers, (True, False))
        one_of("whiten", self.whiten, (True, False))
        as_generator(self.random_state)
