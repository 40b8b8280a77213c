"""Tasks that are alike, but not exactly of low rank: a mixed model that finds its own shape."""

from __future__ import annotations

import math
import numbers
import warnings
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from sharedspan.estimators.base import SpanTransformer, TaskRegressor
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.fitting import Needs
from sharedspan.estimators.parameters import BOOL, as_generator, estimator, number_or_auto, one_of
from sharedspan.inference.noise import gain_of_noise_levels, shrink_noise
from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model import LARGEST_RANK
from sharedspan.mixed_model.fitted_noise import with_fitted_noise
from sharedspan.mixed_model.held_out import HeldOutRows, select_by_rows, without_hopeless_rivals
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.optimize import CovarianceFit
from sharedspan.mixed_model.posterior import Posterior, posterior_of, residual_squares
from sharedspan.mixed_model.refitted_folds import RefittedFolds, contenders, rows_are_few
from sharedspan.mixed_model.search import (
    COMPARISON_TOL,
    SelectedModel,
    reconsider,
    select_model,
)
from sharedspan.mixed_model.structures import STRUCTURES, n_parameters
from sharedspan.mixed_model.terms import Scaling
from sharedspan.statistics.canonical import Canonical, Problem
from sharedspan.subspace import ordered_factors, orthonormal_basis

SEARCH_WORK = 1e7  # T p^3 of the tasks that structures are compared on
NOISE_ROUNDS = 3  # of noise levels and the covariance in turn
FEWEST_SPARE_ROWS = 4.0  # of the median task beyond its coefficients, to tell its noise level
SMALLEST_RELATED_NOISE = (
    1e-6  # over the variance of y: less is an exact fit, with nothing to relate
)
FEWEST_SEARCHED, MOST_SEARCHED = 500, 20_000  # tasks


@estimator(
    "rank slopes noise method outliers fit_intercept whiten unseen task_column random_state "
    "verbose engine keep_statistics"
)
class AdaptiveSpanRegressor(SpanTransformer, TaskRegressor):
    """Regressions of many tasks, each as far from the others as the data say; nothing to tune.

    v_t = b + u_t, u_t ~ N(0, D + LL') over slopes and intercept together: b is shared, D says how
    much each coefficient varies by itself, L along which k directions they vary together. u_t = 0
    is pooled regression, L = 0 the classical mixed model, D = 0 the paper's shared span. Noise, D,
    L, k and a Gaussian prior on b are found by marginal likelihood, from sums per task. Tasks that
    fit none of it may be outliers, with a wide covariance of their own. The noise variance may
    differ between tasks, or grow with the fitted value.

    Use it on real tables. ``SharedSpanRegressor`` is for the paper's model and the largest scales.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        k, the columns of L; 0 for none.
    slopes : {"auto", "zero", "none", "isotropic", "diagonal", "full"}, default="auto"
        D: "diagonal" gives each coefficient its own variance (log variances have a normal prior
        around their mean), "isotropic" one to all slopes of standardised features, "none" only to
        the intercepts, "zero" not even to these. "full" leaves the covariance of the coefficients
        unrestricted, as mixed-model software does, and has no L; "auto" tries it if there are few
        coefficients and many tasks.
    noise : {"auto", "shared", "per_task", "fitted"}, default="auto"
        "per_task" gives each task a noise variance of its own, shrunk towards the common one.
        "fitted" lets the variance of a row be a power of its fitted value, measured from the lower
        end; the rows must be at hand, so not on a cluster, in ``partial_fit`` or ``merge``.
        "auto" takes one of these if residuals show it decisively, unless left out rows are then
        predicted worse, or, for "fitted", no better; not by maximum likelihood.
    method : {"evidence", "ml"}, default="evidence"
        "ml" is maximum likelihood with no prior on b nor on D, as mixed-model software has it.
    outliers : bool, default=True
        Whether to look for tasks off the common covariance; not by maximum likelihood.
    {fit_intercept}
    whiten : bool, default=False
        Measure D in whitened instead of standardised features.
    unseen : {"error", "mean"}, default="error"
        "mean" predicts new tasks by b.
    {task_column}
    random_state : int, numpy.random.Generator or None, default=None
        Draws the tasks that the variances are learned from, where there are very many; None always
        draws the same.
    verbose : int, default=0
        1 prints each fit that was compared.
    {engine, keep_statistics}

    Attributes
    ----------
    {tasks_, coef_, intercept_}
    mean_coef_ : ndarray of shape (d,)
    mean_intercept_ : float
        b.
    mean_coef_std_ : ndarray of shape (d,)
        Standard errors of ``mean_coef_``.
    coef_covariance_ : ndarray of shape (d, d)
        Covariance of the slopes of a new task, the uncertainty of b and L included: the prior that
        ``NewTaskRegressor.from_model`` uses.
    slope_std_ : ndarray of shape (d,)
        Deviation of each slope between tasks by D alone, or by all of an unrestricted covariance,
        in the user's units.
    intercept_std_ : float
        The same for the intercept of centred features.
    representation_ : ndarray of shape (d, rank_)
        Orthonormal basis of the slopes of L.
    task_weights_ : ndarray of shape (rank_, T)
        Where ``coef_ - mean_coef_`` lies in this span.
    rank_ : int
    slopes_ : str
        The kind of D that was chosen.
    noise_ : {"shared", "per_task", "fitted"}
        The kind of noise that was chosen.
    noise_variance_ : ndarray of shape (T,)
        All equal if ``noise_`` is "shared"; the means over each task's rows if it is "fitted".
    outlier_probability_ : ndarray of shape (T,)
    log_likelihood_ : float
        Log marginal likelihood, b integrated out (at its best value with "ml"). Outlier tasks count
        by their probability of being none.
    widening_ : float
        A factor on the covariance of the effects by which those of single tasks are shrunk less
        than it says; 1 unless leave-one-out errors are smaller with a larger one, as they are if a
        few tasks have far larger effects than the others.
    candidates_ : list of dict
        The fits that were compared: ``slopes``, ``rank``, ``log_likelihood``, ``score``, the last
        two in standard units.
    {n_iter_, converged_}
    degrees_of_freedom_ : float
        Effective number of parameters.
    {feature_covariance_, coef_names_, n_features_in_, feature_names_in_}

    Examples
    --------
    >>> import sharedspan as ss
    >>> sim = ss.simulate(n_tasks=40, n_features=20, rank=2, n_samples=30, random_state=0)
    >>> model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
    >>> model.rank_
    2
    """

    shares = "population"
    has_intervals = True
    stored_axes = "slope_std_:d outlier_probability_:T"
    checks: ClassVar = {
        "rank": partial(number_or_auto, smallest=0, kind=numbers.Integral),
        "slopes": partial(one_of, known=("auto", *STRUCTURES)),
        "noise": partial(one_of, known=("auto", "shared", "per_task", "fitted")),
        "method": partial(one_of, known=("evidence", "ml")),
        "outliers": BOOL,
    }

    slopes: str = "auto"
    noise: str = "auto"
    method: str = "evidence"
    outliers: bool = True
    whiten: bool = False
    candidates_: list[dict[str, Any]]
    _uncertainty_: Posterior

    def needs(self) -> Needs:
        """Statistics of any kind."""
        return Needs(features="whitened" if self.whiten else "scaled")

    def estimate(self, problem: Problem) -> FittedSpan:
        """The structure of the strongest evidence, then the posterior of every task."""
        self._check_rows(problem.rows)
        statistics, canonical = problem.statistics.gather_local(), problem.canonical
        scaling = Scaling.of(statistics, self.fit_intercept)
        candidates: list[dict[str, Any]] = []
        with one_blas_thread():
            tasks = MixedTasks(statistics, scaling)
            ids = self._searched_tasks(tasks)
            searched = tasks if len(ids) == tasks.n_tasks else tasks.take(ids)
            rows = None
            if isinstance(problem.rows, TaskRows):
                rows = HeldOutRows(problem.rows, ids, canonical, searched)
            model = self._select(searched, candidates)
            few = searched is tasks and rows_are_few(model)
            if few:
                model = replace(model, rivals=contenders(model)[1:])
            models = self._models(model, tasks, rows)
            model = models[0]
            compared = self.method != "ml" and (len(models) > 1 or model.rivals)
            if rows is not None and compared:
                model = select_by_rows(RefittedFolds(rows) if few else rows, models)
            model, degrees = refined_with_noise(model, tasks)
            function = None if model.row_noise is None else model.row_noise.function
            posterior = posterior_of(
                model.tasks, canonical, model.fit, model.outliers, degrees, model.widening, function
            )
        fit = model.fit
        if not fit.converged:
            warnings.warn(
                f"The search for variances and directions was stopped after {fit.n_iter} steps: "
                "the fit is close to the best, but may not be it. Features that say nearly the "
                "same make it slow: leave some out, or give rank=0.",
                ConvergenceWarning,
                stacklevel=6,
            )
        shift = math.log(canonical.units.y_scale / scaling.y_scale)
        log_likelihood = fit.evidence.value + float(tasks.n.sum()) * shift
        extra = {
            "candidates": candidates,
            "log_likelihood": log_likelihood,
            "noise": model.noise if self.noise == "auto" else self.noise,
            "widening": model.widening,
        }
        return mixed_fit(canonical, scaling, fit, posterior, extra)

    def check_shape(self, n_tasks: int | None, n_features: int) -> None:
        """Raise for a rank that is larger than the number of coefficients of a task."""
        largest = n_features + self.fit_intercept
        if not isinstance(self.rank, str) and self.rank > largest:
            raise ValueError(
                f"rank={self.rank} is larger than the {largest} coefficients of a task: give a "
                f"rank from 0 to {largest}, or 'auto'."
            )

    def _check_rows(self, rows: Any) -> None:
        """Raise if the noise depends on rows that cannot be read again."""
        if self.noise == "fitted" and not isinstance(rows, TaskRows):
            raise ValueError(
                "noise='fitted' needs the rows, which are not at hand on a cluster, in partial_fit "
                "and in merge: fit all rows on this machine, or give noise='auto', 'shared' or "
                "'per_task'."
            )

    def _searched_tasks(self, tasks: MixedTasks) -> np.ndarray:
        """Places of the tasks that structures are compared on: all, or some of very many."""
        most = min(max(int(SEARCH_WORK / tasks.p**3), FEWEST_SEARCHED), MOST_SEARCHED)
        if tasks.n_tasks <= most:
            return np.arange(tasks.n_tasks)
        rng = as_generator(0 if self.random_state is None else self.random_state)
        return np.sort(rng.choice(tasks.n_tasks, most, replace=False))

    def _select(self, tasks: MixedTasks, candidates: list[dict[str, Any]]) -> SelectedModel:
        """D, L and the outliers by their evidence; the fits that were compared join the list."""
        structures = STRUCTURES if self.slopes == "auto" else (self.slopes,)
        ranks = (self.rank, self.rank)
        if isinstance(self.rank, str):
            ranks = (0, largest_rank(tasks))
        if self.slopes == "auto" and not (tasks.n > 1).any():
            # A row per task does not tell its effects from noise.
            structures, ranks = ("zero",), (ranks[0], ranks[0])

        def note(fit: CovarianceFit) -> None:
            row: dict[str, Any] = {
                "slopes": fit.structure, "rank": fit.rank,
                "log_likelihood": fit.evidence.value, "score": fit.score,
            }  # fmt: skip
            candidates.append(row)
            if self.verbose:
                print("{slopes:<10} rank {rank:2d}  score {score:.2f}".format(**row))

        return select_model(
            tasks,
            structures,
            ranks,
            flat=self.method == "ml",
            outliers=self.outliers and self.method != "ml",
            note=note,
        )

    def _models(
        self, model: SelectedModel, tasks: MixedTasks, rows: HeldOutRows | None
    ) -> list[SelectedModel]:
        """The model with the noise that was given; for "auto", with each kind that may pay.

        The first one is preferred.
        """
        if self.noise == "shared" or (self.noise == "auto" and self.method == "ml"):
            return [model]
        models: list[SelectedModel | None] = []
        if levels_pay(self.noise, model):
            levels, _ = task_noise_levels(model)
            near = model if rows is None else without_hopeless_rivals(rows, model)
            models.append(reconsider(near, model.tasks.with_noise(levels)))
        if self.noise == "auto":
            models.append(model)
            decisive = math.log(model.tasks.n.sum()) + 3
            if rows is not None and model.fit.evidence.noise > SMALLEST_RELATED_NOISE:
                alone = replace(model, rivals=())
                models.append(with_fitted_noise(alone, tasks, rows, least_gain=decisive))
        elif self.noise == "fitted" and rows is not None:
            models.append(with_fitted_noise(model, tasks, rows))
        return [each for each in models if each is not None]

    @property
    def mean_coef_std_(self) -> np.ndarray:
        """Standard errors of ``mean_coef_``, (d,)."""
        check_is_fitted(self)
        posterior = self._uncertainty_
        first, scaling = int(self.fit_intercept), posterior.scaling
        J = posterior.canonical.to_user(np.diag(scaling.y_scale / scaling.scale))
        values, axes = np.linalg.eigh(posterior.b_covariance[first:, first:])
        root = J @ (axes * np.sqrt(np.maximum(values, 0.0)))
        largest = np.maximum(np.abs(root).max(axis=1), np.finfo(float).tiny)
        return largest * np.linalg.norm(root / largest[:, None], axis=1)  # squares might overflow

    @property
    def coef_covariance_(self) -> np.ndarray:
        """Covariance of the slopes of a new task, (d, d)."""
        check_is_fitted(self)
        posterior = self._uncertainty_
        first, scaling = int(self.fit_intercept), posterior.scaling
        J = posterior.canonical.to_user(np.diag(scaling.y_scale / scaling.scale))
        return J @ posterior.new[first:, first:] @ J.T


def largest_rank(tasks: MixedTasks) -> int:
    """The largest rank that is tried: L has at most half as many free numbers as there are rows."""
    rank = min(tasks.p, max(tasks.n_tasks - 1, 0), LARGEST_RANK)
    while rank and n_parameters(tasks.p, rank) > tasks.n.sum() / 2:
        rank -= 1
    return rank


def levels_pay(noise: str, model: SelectedModel) -> bool:
    """Whether tasks get noise levels of their own: if told so, or if the gain is decisive."""
    if noise != "auto":
        return noise == "per_task"
    squares, used = residual_squares(model.tasks, model.effective, model.outliers)
    spare = model.tasks.n - used
    if np.median(spare) < FEWEST_SPARE_ROWS:
        return False
    return gain_of_noise_levels(squares, spare) > math.log(model.tasks.n_tasks) + 3


def task_noise_levels(model: SelectedModel) -> tuple[np.ndarray, np.ndarray]:
    """Noise variances of the tasks relative to their mean, and degrees of freedom, both (T,)."""
    squares, used = residual_squares(model.tasks, model.effective, model.outliers)
    n = model.tasks.n
    variances, degrees = shrink_noise(squares, np.maximum(n - used, 0.0))
    return variances / (n @ variances / n.sum()), degrees


def refined_with_noise(
    model: SelectedModel, tasks: MixedTasks
) -> tuple[SelectedModel, np.ndarray | None]:
    """The selected model fitted to all tasks, and the degrees of freedom of their noise levels."""
    if model.noise != "per_task":
        return model.refined(tasks if model.row_noise is None else model.row_noise.tasks), None
    model = model.refined(tasks, COMPARISON_TOL)
    for tol in [COMPARISON_TOL] * (NOISE_ROUNDS - 1) + [None]:
        levels, degrees = task_noise_levels(model)
        model = model.refined(tasks.with_noise(levels), tol)
    return model, degrees


def mixed_fit(
    canonical: Canonical,
    scaling: Scaling,
    fit: CovarianceFit,
    posterior: Posterior,
    extra: dict[str, Any],
) -> FittedSpan:
    """The posterior means of all tasks, and D and L, in the user's units."""
    T, unit = len(posterior.mean), canonical.units.y_scale
    first = len(fit.covariance.variances) - len(scaling.scale)  # 1 with intercepts
    # The last row is b, the mean of all tasks that there might be.
    V = np.vstack([posterior.mean, posterior.b])
    slopes, level = scaling.from_standard(V, bool(first))
    slopes = canonical.to_user(slopes.T).T
    level = canonical.intercept_to_user(level, slopes.T)
    # D is diagonal in the features it was measured in; whitened ones mix on the way back.
    deviation = fit.covariance.root if fit.structure == "full" else fit.covariance.diagonal_root
    deviation = deviation * math.sqrt(posterior.new_noise) * scaling.y_scale
    root = canonical.to_user(deviation[first:] / scaling.scale[:, None])
    largest = np.maximum(np.abs(root).max(axis=1), np.finfo(float).tiny)
    loadings = fit.covariance.loadings[:, : fit.rank]
    span = canonical.to_user(loadings[first:] / scaling.scale[:, None])
    coef, mean_coef = slopes[:T].copy(), slopes[T].copy()
    representation, task_weights = np.zeros((len(span), 0)), np.zeros((0, T))
    if 0 < span.shape[1] <= min(len(span), T):
        Q = orthonormal_basis(span)
        representation, task_weights = ordered_factors(Q, Q.T @ (coef - mean_coef).T)
    return FittedSpan(
        coef=coef,
        intercept=level[:T].copy(),
        mean_coef=mean_coef,
        mean_intercept=float(level[T]),
        representation=representation,
        task_weights=task_weights,
        rank=int(span.shape[1]),
        noise_variance=posterior.noise * (scaling.y_scale / unit) ** 2,
        degrees_of_freedom=posterior.degrees_of_freedom,
        uncertainty=posterior,
        n_iter=fit.n_iter,
        converged=fit.converged,
        extra=extra
        | {
            "slopes": fit.structure,
            "slope_std": largest * np.linalg.norm(root / largest[:, None], axis=1),
            "intercept_std": float(np.linalg.norm(deviation[0])) / unit if first else 0.0,
            "outlier_probability": posterior.off,
        },
    )
