"""The mixed model behind the adaptive estimators: structure, covariance, posterior."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from sharedspan.estimators.base import SpanTransformer, TaskEstimator
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.fitting import Needs
from sharedspan.estimators.parameters import as_generator
from sharedspan.families import Family, Huber, StudentT
from sharedspan.inference.noise import gain_of_noise_levels, shrink_noise
from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model import LARGEST_RANK
from sharedspan.mixed_model.fitted_noise import with_fitted_noise
from sharedspan.mixed_model.held_out import HeldOutRows, select_by_rows, without_hopeless_rivals
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.optimize import CovarianceFit, CovarianceOptimizer
from sharedspan.mixed_model.posterior import Posterior, posterior_of, residual_squares
from sharedspan.mixed_model.refitted_folds import RefittedFolds, contenders, rows_are_few
from sharedspan.mixed_model.robust import RobustOptimizer, RobustRows
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

ROUTED = {"task": True, "offset": True, "exposure": True}
SEARCH_WORK = 1e7  # T p^3 of the tasks that structures are compared on
NOISE_ROUNDS = 3  # of noise levels and the covariance in turn
FEWEST_SPARE_ROWS = 4.0  # of the median task beyond its coefficients, to tell its noise level
SMALLEST_RELATED_NOISE = (
    1e-6  # over the variance of y: less is an exact fit, with nothing to relate
)
FEWEST_SEARCHED, MOST_SEARCHED = 500, 20_000  # tasks


class MixedModel(SpanTransformer, TaskEstimator):
    """Base of the estimators that fit v_t = b + u_t, u_t ~ N(0, D + LL')."""

    # Metadata routing: these are passed to the methods by default.
    __metadata_request__fit: ClassVar[dict[str, bool]] = ROUTED
    __metadata_request__predict: ClassVar[dict[str, bool]] = ROUTED
    __metadata_request__score: ClassVar[dict[str, bool]] = ROUTED

    shares = "population"
    has_intervals = True
    stored_axes = "slope_std_:d outlier_probability_:T"

    smallest_rank: ClassVar[int] = 0  # that is considered

    slopes: str
    noise: str
    method: str
    outliers: bool
    candidates_: list[dict[str, Any]]
    _uncertainty_: Posterior

    def response_family(self) -> Family:
        """The family of the responses, with the dispersion if that has been fitted."""
        raise NotImplementedError

    def needs(self) -> Needs:
        """Statistics of any kind; those of other families than the Gaussian depend on the fit."""
        return Needs(
            features="whitened" if self.whiten else "scaled",
            sums_suffice=not self.response_family().reweighted,
        )

    def estimate(self, problem: Problem) -> FittedSpan:
        """The structure of the strongest evidence, then the posterior of every task."""
        family = self.response_family()
        if isinstance(family, StudentT | Huber):
            return self._estimate_robust(problem, family)
        if family.reweighted:
            from sharedspan.estimators.generalized import estimate_family

            return estimate_family(self, problem)
        self._check_rows(problem.rows)
        statistics, canonical = problem.statistics.gather_local(), problem.canonical
        scaling = Scaling.of(statistics, self.fit_intercept)
        candidates: list[dict[str, Any]] = []
        with one_blas_thread():
            tasks = MixedTasks(statistics, scaling, varying=self.varying_coefficients())
            ids = self.searched_tasks(tasks.n_tasks, tasks.p)
            searched = tasks if len(ids) == tasks.n_tasks else tasks.take(ids)
            rows = None
            if isinstance(problem.rows, TaskRows):
                rows = HeldOutRows(problem.rows, ids, canonical, searched)
            optimizer = CovarianceOptimizer(searched, flat=self.method != "evidence")
            model = self.select(optimizer, candidates)
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

    def _estimate_robust(self, problem: Problem, family: StudentT | Huber) -> FittedSpan:
        """The same for rows with outliers: structures are compared again at working responses."""
        rows, canonical, flat = problem.rows, problem.canonical, self.method != "evidence"
        self._check_robust(rows)
        statistics = problem.statistics.gather_local()
        scaling = Scaling.of(statistics, self.fit_intercept)
        candidates: list[dict[str, Any]] = []
        with one_blas_thread():
            tasks = MixedTasks(statistics, scaling, varying=self.varying_coefficients())
            ids = self.searched_tasks(tasks.n_tasks, tasks.p)
            turns = RobustOptimizer(RobustRows(rows, canonical, tasks), flat)
            at = turns.start()
            model = self.select(CovarianceOptimizer(at.tasks.take(ids), flat), [])
            at = turns.fit(replace(at, fit=model.fit), first=True)
            searched = at.tasks.take(ids)
            model = self.select(CovarianceOptimizer(searched, flat), candidates)
            if not flat and model.rivals:
                held_out = HeldOutRows(at.rows, ids, canonical, searched)
                few = len(ids) == tasks.n_tasks and rows_are_few(model)
                if few:
                    model = replace(model, rivals=contenders(model)[1:])
                model = select_by_rows(RefittedFolds(held_out) if few else held_out, [model])
            at = turns.fit(replace(at, fit=model.fit, family=family))
            posterior = posterior_of(at.tasks, canonical, at.fit, None)
            tails, scale = turns.response_noise(at)
        if not at.converged:
            warnings.warn(
                f"The fit was stopped after {at.n_turns} passes over the rows: it is close to the "
                "best, but may not be it.",
                ConvergenceWarning,
                stacklevel=7,
            )
        shift = math.log(canonical.units.y_scale / scaling.y_scale)
        extra = {
            "candidates": candidates,
            "log_likelihood": at.log_likelihood + float(tasks.n.sum()) * shift,
            "noise": "shared",
            "widening": 1.0,
            "noise_degrees_of_freedom": tails.degrees,
        }
        fitted = mixed_fit(canonical, scaling, at.fit, posterior, extra)
        variance = np.full(tasks.n_tasks, scale**2 * tails.variance_ratio)
        unit = scaling.y_scale / canonical.units.y_scale
        return replace(
            fitted,
            noise_variance=variance * unit**2,
            uncertainty=replace(posterior, noise=variance, new_noise=float(variance[0])),
            n_iter=at.n_turns,
            converged=at.converged,
        )

    def _check_robust(self, rows: Any) -> None:
        """Raise for options that rows with outliers do not have."""
        name = self.response_family().name
        if self.noise not in ("auto", "shared"):
            raise ValueError(
                f"noise={self.noise!r} is for Gaussian responses: family={name!r} has one noise "
                "scale, so give noise='auto' or 'shared'."
            )
        if self.method == "reml":
            raise ValueError(
                f"method='reml' is not available for family={name!r}: give method='evidence', "
                "which integrates the mean coefficients out too, or 'ml'."
            )
        if not isinstance(rows, TaskRows):
            raise ValueError(
                f"family={name!r} reads the rows once in every turn of its fit, and the workers of "
                "a cluster keep only their sums: fit with engine='local', or use fit_file."
            )

    def varying_coefficients(self) -> np.ndarray | None:
        """Which of the p coefficients differ between tasks; None for all."""
        given = vars(self).get("varying")
        if given is None:
            return None
        d = self.n_features_in_ - (self.task_column is not None)
        names = list(vars(self).get("feature_names_in_", ()))
        if self.task_column is not None and self.task_column in names:
            names.remove(self.task_column)
        places = []
        for each in [given] if isinstance(given, str) else list(given):
            if isinstance(each, str):
                if each not in names:
                    known = ", ".join(map(repr, names[:8])) or "numbers, since X has no names"
                    raise ValueError(f"varying={given!r} names {each!r}, and features are {known}.")
                places.append(names.index(each))
            else:
                places.append(int(each))
                if not 0 <= places[-1] < d:
                    raise ValueError(f"varying={given!r}: features are numbered from 0 to {d - 1}.")
        varying = np.zeros(d + self.fit_intercept, dtype=bool)
        varying[: int(self.fit_intercept)] = True
        varying[np.array(places, dtype=int) + int(self.fit_intercept)] = True
        return varying

    def check_combination(self) -> None:
        """Raise for features that vary in directions which mix all of them."""
        if vars(self).get("varying") is not None and self.whiten:
            raise ValueError(
                "whiten=True mixes all features, and varying names some of them: leave one out."
            )

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

    def searched_tasks(self, n_tasks: int, p: int) -> np.ndarray:
        """Places of the tasks that structures are compared on: all, or some of very many."""
        most = min(max(int(SEARCH_WORK / p**3), FEWEST_SEARCHED), MOST_SEARCHED)
        if n_tasks <= most:
            return np.arange(n_tasks)
        rng = as_generator(0 if self.random_state is None else self.random_state)
        return np.sort(rng.choice(n_tasks, most, replace=False))

    def select(
        self, optimizer: CovarianceOptimizer, candidates: list[dict[str, Any]]
    ) -> SelectedModel:
        """D, L and the outliers by their evidence; the fits that were compared join the list."""
        tasks = optimizer.tasks
        structures = STRUCTURES if self.slopes == "auto" else (self.slopes,)
        ranks = (self.rank, self.rank)
        if isinstance(self.rank, str):
            ranks = (self.smallest_rank, max(largest_rank(tasks), self.smallest_rank))
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
            optimizer,
            structures,
            ranks,
            outliers=(
                self.outliers
                and self.method == "evidence"
                and bool(tasks.varying.all())
                and not self.response_family().reweighted
            ),
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
    p = int(tasks.varying.sum())
    rank = min(p, max(tasks.n_tasks - 1, 0), LARGEST_RANK)
    while rank and n_parameters(p, rank) > tasks.n.sum() / 2:
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
    with np.errstate(over="ignore"):  # infinite if the square of y cannot be represented
        noise_variance = posterior.noise * np.float64(scaling.y_scale / unit) ** 2
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
        noise_variance=noise_variance,
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
