"""The mixed model behind the adaptive estimators: structure, covariance, posterior."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from sharedspan.estimators.base import SpanTransformer, TaskEstimator
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.fitting import Needs
from sharedspan.estimators.nested import estimate_nested
from sharedspan.estimators.parameters import as_generator
from sharedspan.estimators.saturation import require_identified
from sharedspan.families import Family, Huber, StudentT
from sharedspan.inference.noise import gain_of_noise_levels, shrink_noise
from sharedspan.inputs.files import nearest
from sharedspan.inputs.frames import find_task_column
from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model import LARGEST_RANK
from sharedspan.mixed_model.effects import dependent_columns, select_effects
from sharedspan.mixed_model.fitted_noise import with_fitted_noise
from sharedspan.mixed_model.held_out import (
    HeldOutRows,
    RowErrors,
    select_by_rows,
    without_hopeless_rivals,
)
from sharedspan.mixed_model.likelihood import MixedTasks, RowVariances
from sharedspan.mixed_model.optimize import CovarianceFit, CovarianceOptimizer
from sharedspan.mixed_model.outliers import FittedEffects
from sharedspan.mixed_model.posterior import Posterior, posterior_of, residual_squares
from sharedspan.mixed_model.refitted_folds import (
    RefittedFolds,
    contenders,
    directions_in_doubt,
    must_trust_evidence,
    rows_are_few,
)
from sharedspan.mixed_model.retained import RetainedFit
from sharedspan.mixed_model.robust import RobustOptimizer, RobustRows
from sharedspan.mixed_model.search import (
    COMPARISON_TOL,
    SelectedModel,
    reconsider,
    select_model,
)
from sharedspan.mixed_model.structures import STRUCTURES, Coefficients, Effects, n_parameters
from sharedspan.mixed_model.terms import Scaling
from sharedspan.mixed_model.varying import only, select_varying, strongest_unit
from sharedspan.statistics.canonical import Canonical, Problem
from sharedspan.subspace import ordered_factors, orthonormal_basis

ROUTED = {"task": True, "offset": True, "exposure": True}
SEARCH_WORK = 1e7  # T p^3 of the tasks that structures are compared on
ROUNDING = 1e-12  # of an entry of an orthonormal basis
# Rows that make up most of the squared errors are told, if they are so few of so many.
DOMINANT_ROWS, DOMINANT_SHARE, FEWEST_TO_JUDGE = 0.005, 0.5, 100
EXACT = 1e-8  # of the variance of y: residuals of a fit that has no noise
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
    stored_axes = "slope_std_:d outlier_probability_:T outer_coef_:gd outer_intercept_:g"

    smallest_rank: ClassVar[int] = 0  # that is considered

    slopes: str | Effects
    noise: str
    method: str
    outliers: bool
    slope_std_: np.ndarray
    outer_tasks_: np.ndarray  # of groups that tasks are nested in
    outer_coef_: np.ndarray
    outer_intercept_: np.ndarray
    candidates_: list[dict[str, Any]]
    _uncertainty_: Posterior

    def response_family(self) -> Family:
        """The family of the responses, with the dispersion if that has been fitted."""
        raise NotImplementedError

    def needs(self) -> Needs:
        """Statistics of any kind; those of families other than the Gaussian depend on the fit."""
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
        coefficients = self.independent_coefficients(statistics)
        require_identified(self, problem, coefficients)
        scaling = self.scaling(statistics, coefficients, canonical)
        candidates: list[dict[str, Any]] = []
        with one_blas_thread():
            variances = None
            if isinstance(self.slopes, Effects) and self.slopes.weighted_noise:
                variances = RowVariances.of_weights(problem.rows)
            options = None, variances, self.method == "reml", coefficients
            tasks = MixedTasks(statistics, scaling, *options)
            if coefficients.outer:
                return estimate_nested(self, problem, tasks)
            ids = self.searched_tasks(tasks.n_tasks, tasks.p)
            searched = tasks if len(ids) == tasks.n_tasks else tasks.take(ids)
            optimizer = CovarianceOptimizer(searched, flat=self.method != "evidence")
            model = self.select(optimizer, candidates)
            tasks = tasks.with_coefficients(model.tasks.coefficients)
            rows = None
            if isinstance(problem.rows, TaskRows):
                rows = HeldOutRows(problem.rows, ids, canonical, model.tasks)
            few = len(ids) == tasks.n_tasks and rows_are_few(model)
            if few or must_trust_evidence(model):
                model = replace(model, rivals=contenders(model)[1:])
            models = self._models(model, tasks, rows)
            if rows is not None and not few:
                models += self._one_slope(optimizer, candidates)
            model = models[0]
            compared = self.method == "evidence" and (len(models) > 1 or model.rivals)
            if rows is not None and compared:
                judge = RefittedFolds(rows) if few else rows
                model = select_by_rows(judge, models)
                warn_of_dominant_rows(judge, model, problem.labels, ids)
                doubted = None if few or len(ids) < tasks.n_tasks else directions_in_doubt(model)
                if doubted is not None:
                    model = select_by_rows(RefittedFolds(rows), [doubted])
            tasks = tasks.with_coefficients(model.tasks.coefficients)
            model, degrees = refined_with_noise(model, tasks)
            function = None if model.row_noise is None else model.row_noise.function
            posterior = posterior_of(model.tasks, canonical, model, degrees, function)
        fit = model.fit
        if not fit.converged:
            warnings.warn(
                f"The search for variances and directions was stopped after {fit.n_iter} steps: "
                "the fit is close to the optimum, but may not have reached it. Nearly collinear "
                "features slow it down: leave some out, or give rank=0.",
                ConvergenceWarning,
                stacklevel=6,
            )
        shift = math.log(canonical.units.y_scale / scaling.y_scale)
        log_likelihood = fit.evidence.value + float(tasks.n.sum()) * shift
        if tasks.restricted:
            log_likelihood += log_volume(canonical, scaling, coefficients)
        extra = {
            "candidates": candidates,
            "log_likelihood": log_likelihood,
            "noise": model.noise if self.noise == "auto" else self.noise,
            "widening": model.widening,
        }
        if isinstance(self.slopes, Effects):
            restricted = tasks.restricted
            extra["_retained"] = RetainedFit(model.tasks, fit, canonical, problem.rows, restricted)
        return mixed_fit(canonical, scaling, fit, posterior, extra)

    def _estimate_robust(self, problem: Problem, family: StudentT | Huber) -> FittedSpan:
        """``estimate`` for robust families: structures are compared again at working responses."""
        rows, canonical, flat = problem.rows, problem.canonical, self.method != "evidence"
        from sharedspan.estimators.generalized import require_one_level

        self._check_robust(rows)
        statistics = problem.statistics.gather_local()
        coefficients = self.independent_coefficients(statistics)
        require_one_level(family, coefficients)
        require_identified(self, problem, coefficients)
        scaling = self.scaling(statistics, coefficients, canonical)
        candidates: list[dict[str, Any]] = []
        with one_blas_thread():
            tasks = MixedTasks(statistics, scaling, coefficients=coefficients)
            ids = self.searched_tasks(tasks.n_tasks, tasks.p)
            turns = RobustOptimizer(RobustRows(rows, canonical, tasks), flat)
            at = turns.start()
            model = self.select(CovarianceOptimizer(at.tasks.take(ids), flat), [])
            at = turns.with_coefficients(model.tasks.coefficients).fit(
                replace(at, fit=model.fit), first=True
            )
            searched = at.tasks.with_coefficients(coefficients).take(ids)
            model = self.select(CovarianceOptimizer(searched, flat), candidates)
            turns = turns.with_coefficients(model.tasks.coefficients)
            if not flat and model.rivals:
                held_out = HeldOutRows(at.rows, ids, canonical, model.tasks)
                few = len(ids) == tasks.n_tasks and rows_are_few(model)
                if few:
                    model = replace(model, rivals=contenders(model)[1:])
                model = select_by_rows(RefittedFolds(held_out) if few else held_out, [model])
            at = turns.fit(replace(at, fit=model.fit, family=family))
            posterior = posterior_of(at.tasks, canonical, FittedEffects(at.fit))
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
        unit = np.float64(scaling.y_scale / canonical.units.y_scale)
        with np.errstate(over="ignore"):  # infinite if the square of y cannot be represented
            noise_variance = variance * unit**2
        return replace(
            fitted,
            noise_variance=noise_variance,
            uncertainty=replace(posterior, noise=variance, new_noise=float(variance[0])),
            n_iter=at.n_turns,
            converged=at.converged,
        )

    def _validate_read(self) -> None:
        """Check the uncertainty, besides the attributes of every estimator."""
        super()._validate_read()
        outer = len(vars(self).get("outer_tasks_", ()))
        if outer and (len(self.outer_coef_), len(self.outer_intercept_)) != (outer, outer):
            raise ValueError("Coefficients of outer groups are missing.")
        posterior = vars(self).get("_uncertainty_")
        if posterior is not None and len(posterior.mean) != len(self.tasks_) + outer:
            raise ValueError("The standard errors are not those of the tasks.")

    def _check_robust(self, rows: Any) -> None:
        """Raise for options that rows with outliers do not have."""
        name = self.response_family().name
        if self.noise not in ("auto", "shared"):
            raise ValueError(
                f"noise={self.noise!r} is only available for Gaussian responses: family={name!r} "
                "has a single noise scale, so give noise='auto' or 'shared'."
            )
        if self.method == "reml":
            raise ValueError(
                f"method='reml' is not available for family={name!r}: give method='evidence', "
                "which integrates the mean coefficients out too, or 'ml'."
            )
        if not isinstance(rows, TaskRows):
            raise ValueError(
                f"family={name!r} makes a pass over the rows in every iteration, but the workers "
                "of a cluster keep only their statistics: fit with engine='local', or use fit_file."
            )

    def scaling(self, statistics: Any, coefficients: Coefficients, canonical: Canonical) -> Scaling:
        """Standard units of the features, which those of a variance group share.

        Features are measured from their means, but from zero if a formula gives another model then.
        """
        first = int(self.fit_intercept)
        scaling = Scaling.of(statistics, first > 0, [g - first for g in coefficients.members])
        if not (isinstance(self.slopes, Effects) and first):
            return scaling
        moved, zero = coefficients.shiftable[1:], canonical.zero()
        alone = ~moved & (coefficients.groups[1:] < 0)
        # Far from zero a variance that is negligible per deviation need not be one.
        size = np.hypot(scaling.scale, scaling.centre - zero)
        return replace(
            scaling,
            centre=np.where(moved, scaling.centre, zero),
            scale=np.where(alone, size, scaling.scale),
            y_centre=scaling.y_centre if coefficients.fixed[0] else 0.0,
        )

    def independent_coefficients(self, statistics: Any) -> Coefficients:
        """``coefficients``, without fixed effects of a formula that are combinations of others.

        Slopes of features that do not vary at all are zero in all tasks: as effects that differ
        between tasks they would explain nothing, and yet count in the price of a covariance.
        """
        coefficients = self.coefficients(statistics.n_features)
        if not isinstance(self.slopes, Effects):
            varies = (statistics.variances() > 0) | (np.ptp(statistics.mean, axis=0) > 0)
            varies = np.append(np.ones(int(self.fit_intercept), dtype=bool), varies)
            return replace(coefficients, varying=coefficients.varying & varies)
        flat = coefficients.fixed & (coefficients.groups < 0)
        dependent = dependent_columns(statistics, flat)
        if dependent.any():
            coefficients = replace(coefficients, fixed=coefficients.fixed & ~dependent)
        return coefficients

    def coefficients(self, d: int) -> Coefficients:
        """Which of d slopes and the intercept differ between tasks, and which form groups."""
        given, first = vars(self).get("varying"), int(self.fit_intercept)
        groups = getattr(vars(self).get("columns_"), "groups", None)
        if groups is None:
            groups = np.full(d, -1)
        elif self.whiten and (np.asarray(groups) >= 0).any():
            raise ValueError(
                "whiten=True mixes all features, but those of a spline must share one scale: leave "
                "whiten out, or the splines."
            )
        groups = np.append(np.full(first, -1), groups[:d]).astype(int)
        if isinstance(self.slopes, Effects):
            return Coefficients.of_effects(self.slopes, groups, self.fit_intercept)
        varying = np.ones(first + d, dtype=bool)
        if given is not None:
            varying[first:] = self._named(given, d)
            # Features of one group vary together or not at all.
            varying |= (groups >= 0) & np.isin(groups, groups[varying])
        return replace(Coefficients.plain(first + d), varying=varying, groups=groups)

    def _named(self, given: Any, d: int) -> np.ndarray:
        """The features that ``varying`` names by their columns or numbers, (d,)."""
        columns = vars(self).get("columns_")
        if columns is not None:
            sources, names = columns.column_of, columns.names
        else:
            names = list(vars(self).get("feature_names_in_", ()))
            if self.task_column is not None and len(names) > d:
                names.remove(find_task_column(names, self.task_column))
            sources = names = names or range(d)
        named = np.zeros(d, dtype=bool)
        for each in [given] if isinstance(given, str) else list(given):
            if isinstance(each, str):
                which = [each in pair for pair in zip(sources, names, strict=True)]
                if not any(which):
                    known = [str(source) for source in dict.fromkeys(sources)]
                    raise ValueError(
                        f"There is no feature {each!r}; the features are "
                        f"{', '.join(map(repr, known[:8]))}: varying takes one of these names."
                        f"{nearest(each, known)}"
                    )
                named |= which
            elif not 0 <= int(each) < d:
                raise ValueError(f"varying={given!r}: features are numbered from 0 to {d - 1}.")
            else:
                named[int(each)] = True
        return named

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
                "noise='fitted' needs the rows, which are not at hand on a cluster and in "
                "partial_fit, merge and fit_statistics: fit all rows on this machine, or give "
                "noise='auto', 'shared' or 'per_task'."
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
        """D, L, the outliers and, if nothing is said of it, which coefficients vary, by evidence.

        The fits that were compared join the list.
        """
        if isinstance(self.slopes, Effects):
            return select_effects(optimizer, partial(self._note, candidates, optimizer))
        if vars(self).get("varying") is not None:
            return self._search(optimizer, candidates, True)
        units = self.units(optimizer.tasks.coefficients)
        if not self._chooses_varying():
            groups = optimizer.tasks.coefficients.groups
            plain = {i for i, unit in enumerate(units) if groups[unit[0]] < 0}
            return self._search(only(optimizer, units, plain), candidates, True)

        def search(restricted: CovarianceOptimizer, outliers: bool) -> SelectedModel:
            return self._search(restricted, candidates, outliers)

        return select_varying(optimizer, units, search)

    def _chooses_varying(self) -> bool:
        """Whether nothing is said about the coefficients that vary and how."""
        free = not isinstance(self.slopes, Effects) and vars(self).get("varying") is None
        return free and self.slopes == "auto" and self.rank == "auto" and not self.whiten

    def _one_slope(
        self, optimizer: CovarianceOptimizer, candidates: list[dict[str, Any]]
    ) -> list[SelectedModel]:
        """The model in which only one slope varies, which held-out rows may prefer, if any."""
        if not self._chooses_varying():
            return []
        units = self.units(optimizer.tasks.coefficients)
        model = strongest_unit(optimizer, units, lambda o, _: self._search(o, candidates, False))
        return [] if model is None else [model]

    def units(self, coefficients: Coefficients) -> list[np.ndarray]:
        """Slopes that may vary, together or not at all: of a number, a factor or a spline."""
        first = int(self.fit_intercept)
        groups = coefficients.groups[first:]
        columns = vars(self).get("columns_")
        sources: Any = range(len(groups)) if columns is None else columns.column_of
        named: dict[Any, list[int]] = {}
        for i, (source, group) in enumerate(zip(sources, groups, strict=True)):
            if coefficients.varying[first + i]:  # those of constant features do not
                named.setdefault((source if group < 0 else None, group), []).append(first + i)
        return [np.array(unit) for unit in named.values()]

    def _search(
        self, optimizer: CovarianceOptimizer, candidates: list[dict[str, Any]], outliers: bool
    ) -> SelectedModel:
        """Select D, L and perhaps the outliers, given the coefficients that vary."""
        tasks = optimizer.tasks
        structures = STRUCTURES if self.slopes == "auto" else (str(self.slopes),)
        ranks = (self.rank, self.rank)
        if isinstance(self.rank, str):
            ranks = (self.smallest_rank, max(largest_rank(tasks), self.smallest_rank))
        if self.slopes == "auto" and (tasks.n_tasks == 1 or not (tasks.n > 1).any()):
            # One task has nothing to differ from, and a row per task does not tell its effects
            # from noise.
            structures, ranks = ("zero",), (ranks[0], ranks[0])

        return select_model(
            optimizer,
            structures,
            ranks,
            outliers=(
                outliers
                and self.outliers
                and self.method == "evidence"
                and not self.response_family().reweighted
            ),
            note=partial(self._note, candidates, optimizer),
        )

    def _note(
        self, candidates: list[dict[str, Any]], optimizer: CovarianceOptimizer, fit: CovarianceFit
    ) -> None:
        """Add a fit to those that were compared."""
        varying = optimizer.tasks.coefficients.varying[int(self.fit_intercept) :]
        row: dict[str, Any] = {
            "slopes": fit.structure, "rank": fit.rank, "n_varying": int(varying.sum()),
            "log_likelihood": fit.evidence.value, "score": fit.score,
        }  # fmt: skip
        candidates.append(row)
        if self.verbose:
            print("{slopes:<10} rank {rank:2d}  score {score:.2f}".format(**row))

    def _models(
        self, model: SelectedModel, tasks: MixedTasks, rows: HeldOutRows | None
    ) -> list[SelectedModel]:
        """The model with the noise that was given; for "auto", with each kind that may pay.

        The first one is preferred.
        """
        if self.noise == "shared" or (self.noise == "auto" and self.method != "evidence"):
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

    def task_effects(self, group: str | None = None) -> Any:
        """How each task differs from the mean, with standard errors, as a pandas frame.

        Parameters
        ----------
        group : str, optional
            Another group of the formula: a crossed one, or one that tasks are nested in.

        Returns
        -------
        pandas.DataFrame
            A row for each task and, for each coefficient that varies, a column of its name and one
            that ends in " std". A model of ``ss.mixed`` gives conditional modes and their standard
            deviations given all other parameters, as lme4 does; other models also count the
            uncertainty of the mean.
        """
        from sharedspan.estimators.inference import task_effects

        check_is_fitted(self)
        return task_effects(self, group)

    def simulate(
        self,
        n_simulations: int = 1,
        X: Any = None,
        task: Any = None,
        *,
        conditional: bool = False,
        offset: Any = None,
        random_state: Any = None,
    ) -> np.ndarray:
        """Responses simulated from a model of ``ss.mixed``.

        Parameters
        ----------
        n_simulations : int, default=1
        X : table or array-like of shape (rows, d), optional
            By default the rows of the fit.
        task : array-like of shape (rows,), optional
            The task of each row in X, as in ``predict``.
        conditional : bool, default=False
            Whether tasks keep their fitted effects; otherwise these are drawn anew.
        offset : array-like of shape (rows,), optional
            Known part of the linear predictor of the rows in X.
        random_state : int, numpy.random.Generator or None, default=None

        Returns
        -------
        ndarray of shape (rows, n_simulations)
            In the order of the rows that were given.
        """
        from sharedspan.estimators.simulation import simulate_responses

        check_is_fitted(self)
        rng = as_generator(random_state)
        return simulate_responses(self, n_simulations, rng, X, task, conditional, offset)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """The formula and the rows of a model that ``ss.mixed`` has fitted; see scikit-learn."""
        if not isinstance(vars(self).get("slopes"), Effects) or "tasks_" not in vars(self):
            return super().__repr__(N_CHAR_MAX)
        from sharedspan.estimators.summaries import short_text

        return short_text(self)

    def complete(self) -> None:
        """See TaskEstimator."""
        super().complete()
        if "_retained_" in vars(self):
            from sharedspan.estimators.inference import infer

            infer(self)

    @property
    def varying_(self) -> np.ndarray:
        """Names of the features whose coefficients differ between tasks."""
        check_is_fitted(self)
        varies = self.slope_std_ > 0
        if self.rank_:
            spread = np.abs(self.representation_).max(axis=1, initial=0.0)
            varies |= spread > ROUNDING if spread.any() else True
        return self.coef_names_[varies]

    @property
    def mean_coef_std_(self) -> np.ndarray:
        """Standard errors of ``mean_coef_``, (d,)."""
        check_is_fitted(self)
        return row_norms(self._mean_root()[int(self.fit_intercept) :])

    @property
    def mean_intercept_std_(self) -> float:
        """The standard error of ``mean_intercept_``, zero without intercepts."""
        check_is_fitted(self)
        return float(row_norms(self._mean_root()[:1])[0]) if self.fit_intercept else 0.0

    def _mean_root(self) -> np.ndarray:
        """R with RR' the covariance of the intercept, if there is one, and the slopes of b."""
        posterior = self._uncertainty_
        first, scaling, canonical = int(self.fit_intercept), posterior.scaling, posterior.canonical
        if not np.isfinite(posterior.b_covariance).all():  # unknown in model files of format 1
            return np.full((first + self.coef_.shape[1], 1), np.nan)
        values, axes = np.linalg.eigh(posterior.b_covariance)
        root = axes * np.sqrt(np.maximum(values, 0.0))
        slopes, level = replace(scaling, y_centre=0.0).from_standard(root.T, bool(first))
        slopes = canonical.to_user(slopes.T)
        level = canonical.intercept_to_user(level, slopes)
        return np.vstack([level, slopes]) if first else slopes

    @property
    def coef_covariance_(self) -> np.ndarray:
        """Covariance of the slopes of a new task, (d, d)."""
        check_is_fitted(self)
        posterior = self._uncertainty_
        first, scaling = int(self.fit_intercept), posterior.scaling
        J = posterior.canonical.to_user(np.diag(scaling.y_scale / scaling.scale))
        return J @ posterior.new[first:, first:] @ J.T


def row_norms(root: np.ndarray) -> np.ndarray:
    """Lengths of the rows of a matrix whose squares might overflow."""
    largest = np.abs(root).max(axis=1, initial=np.finfo(float).tiny)
    return largest * np.linalg.norm(root / largest[:, None], axis=1)


def log_volume(canonical: Canonical, scaling: Scaling, coefficients: Coefficients) -> float:
    """The log of the volume in the user's units of a unit cube of b in standard units.

    A restricted likelihood, in which a flat b is integrated out, depends on the units of b; groups
    have a prior.
    """
    J = canonical.to_user(np.diag(scaling.y_scale / scaling.scale))
    first = len(coefficients.groups) - len(scaling.scale)
    flat = (coefficients.groups < 0) & coefficients.fixed
    if not flat[first:].all():
        J = J[np.ix_(flat[first:], flat[first:])]
    level = flat[:first].sum() * math.log(scaling.y_scale / canonical.units.y_scale)
    return float(np.log(np.linalg.svd(J, compute_uv=False)).sum()) + level


def largest_rank(tasks: MixedTasks) -> int:
    """The largest rank that is tried: L has at most half as many free numbers as there are rows."""
    p = int(tasks.coefficients.directed.sum())
    rank = min(p, max(tasks.n_tasks - 1, 0), LARGEST_RANK)
    while rank and n_parameters(p, rank) > tasks.n.sum() / 2:
        rank -= 1
    return rank


def warn_of_dominant_rows(
    rows: RowErrors, model: SelectedModel, labels: Sequence[Any], ids: np.ndarray
) -> None:
    """Warn if very few of the rows that were left out make up most of the squared errors."""
    if model.row_noise is not None:  # some rows are known to have more noise than others
        return
    squares = rows.squares(model)
    few = max(int(DOMINANT_ROWS * len(squares)), 1)
    largest = np.argsort(squares)[-few:]
    total, theirs = float(squares.sum()), float(squares[largest].sum())
    exact = total <= EXACT * len(squares)  # in units of the variance of y
    weighted = np.ptp(rows.repetitions) > 0  # then some rows are meant to count more
    if len(squares) < FEWEST_TO_JUDGE or exact or weighted or theirs < DOMINANT_SHARE * total:
        return
    which = "1 row makes up" if few == 1 else f"{few} rows make up"
    warnings.warn(
        f"Of {len(squares):,} rows, {which} {100 * theirs / total:.0f}% of the squared errors; the "
        f"largest is in task {labels[ids[rows.owner[largest[-1]]]]!r}. Such rows may decide what "
        "varies between tasks and by how much: check them, or give them less weight by "
        "family='student_t'.",
        UserWarning,
        stacklevel=6,
    )


def levels_pay(noise: str, model: SelectedModel) -> bool:
    """Whether tasks have noise levels of their own: if asked for, or if the gain is decisive."""
    if noise != "auto":
        return noise == "per_task"
    squares, used = residual_squares(model.tasks, model)
    spare = model.tasks.n - used
    if np.median(spare) < FEWEST_SPARE_ROWS:
        return False
    return gain_of_noise_levels(squares, spare) > math.log(model.tasks.n_tasks) + 3


def task_noise_levels(model: SelectedModel) -> tuple[np.ndarray, np.ndarray]:
    """Noise variances of the tasks relative to their mean, and degrees of freedom, both (T,)."""
    squares, used = residual_squares(model.tasks, model)
    n = model.tasks.n
    variances, degrees = shrink_noise(squares, np.maximum(n - used, 0.0))
    levels = variances / (n @ variances / n.sum())
    return np.maximum(levels, model.tasks.smallest_levels(model.fit.covariance)), degrees


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
    own = fit.covariance.loadings[:, fit.rank :] if fit.structure in ("full", "given") else None
    deviation = fit.covariance.diagonal_root
    deviation = deviation if own is None else np.hstack([deviation, own])
    deviation = deviation * math.sqrt(posterior.new_noise) * scaling.y_scale
    root = canonical.to_user(deviation[first:] / scaling.scale[:, None])
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
            "slope_std": row_norms(root),
            "intercept_std": float(np.linalg.norm(deviation[0])) / unit if first else 0.0,
            "outlier_probability": posterior.off,
        },
    )
