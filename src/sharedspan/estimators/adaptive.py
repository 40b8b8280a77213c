"""Tasks that are alike, but not exactly of low rank: a mixed model that finds its own shape."""

from __future__ import annotations

import numbers
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from sharedspan.estimators import fitting
from sharedspan.estimators.base import TaskRegressor
from sharedspan.estimators.generalized import (
    log_density,
    log_exposure,
    mean_interval,
    predict_family,
    require_offset,
    response_interval,
)
from sharedspan.estimators.mixed import MixedModel
from sharedspan.estimators.parameters import BOOL, estimator, number_or_auto, one_of
from sharedspan.estimators.prediction import interval_quantiles, predicted_mean, rows_to_predict
from sharedspan.families import FAMILIES, Family, StudentT, family_of
from sharedspan.inputs.frames import as_target, row_count
from sharedspan.inputs.offsets import formula_offset
from sharedspan.inputs.rows import is_task_list
from sharedspan.mixed_model.structures import STRUCTURES, Effects

ROBUST = ("gaussian", "student_t", "huber")  # families whose linear predictor is the mean


def structure(name: str, value: Any) -> None:
    """Raise unless a value names a structure of D, or is that of a formula."""
    if not isinstance(value, Effects):
        one_of(name, value, ("auto", *STRUCTURES))


@estimator(
    "rank slopes noise method outliers fit_intercept whiten unseen task_column random_state "
    "verbose engine keep_statistics family varying approximation"
)
class AdaptiveSpanRegressor(MixedModel, TaskRegressor):
    """Mixed model of many tasks that selects its random effects and covariance; nothing to tune.

    v_t = b + u_t, u_t ~ N(0, D + LL') over slopes and intercept together: b is shared, D says how
    much each coefficient varies independently, L along which k directions they vary together.
    Without u_t all tasks have the same coefficients. With L = 0 this is the classical mixed model,
    and with D = 0 and b in the span of L the paper's shared span. Noise, D, L, k and a Gaussian
    prior on b are found by marginal likelihood, from sums per task. Tasks that do not follow this
    distribution may be treated as outliers, with a wider covariance. The noise variance may differ
    between tasks, or grow with the fitted value.

    Use it on real tables. ``SharedSpanRegressor`` is for the paper's model and the largest scales.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        k, the columns of L; 0 for none.
    slopes : {"auto", "zero", "none", "isotropic", "diagonal", "full"}, default="auto"
        D: "diagonal" gives each coefficient its own variance (log variances have a normal prior
        around their mean). "isotropic" gives all slopes of standardised features one variance.
        With "none" D has a variance for the intercepts only, and with "zero" D = 0. "full" leaves
        the covariance of the coefficients unrestricted, as mixed-model software does, and has no
        L; "auto" tries it if there are few coefficients and many tasks.
    noise : {"auto", "shared", "per_task", "fitted"}, default="auto"
        "per_task" gives each task a noise variance of its own, shrunk towards the common one.
        "fitted" makes the variance of a row a power of the distance of its fitted value from the
        lower end of all fitted values (their 1 % quantile), as varPower of nlme does. It needs the
        rows, so it is not available on a cluster, in ``partial_fit`` or in ``merge``. "auto"
        selects one of these if the residuals show it decisively and held-out rows are then
        predicted no worse (for "fitted": better). With ``method="ml"`` or "reml", "auto" is
        "shared".
    method : {"evidence", "ml", "reml"}, default="evidence"
        "ml" is maximum likelihood with no prior on b nor on D, as mixed-model software has it.
        "reml" is the same with b integrated out; not for "student_t" and "huber".
    outliers : bool, default=True
        Whether to look for outlier tasks, which do not follow the common covariance. It has no
        effect with ``method="ml"`` or "reml".
    {fit_intercept}
    {mixed:whiten}
    unseen : {"error", "mean"}, default="mean"
        "mean" predicts a task that was not in the fit by the mean response over the population of
        tasks, which for Gaussian responses is the prediction with b; standard deviations and
        intervals then include the variation between tasks. "error" raises an error.
    {task_column, mixed:random_state, mixed:verbose, engine, keep_statistics}
    family : str, default="gaussian"
        The distribution of the responses. "binomial": classes 0 and 1, or proportions with the
        numbers of trials as ``sample_weight``, with linear log odds ("probit" with linear normal
        quantiles; see ``AdaptiveSpanClassifier`` for other labels). "poisson" and
        "negative_binomial": counts with linear log means; the second has a variance larger than
        the mean, whose dispersion is estimated. "student_t" and "huber": numbers with outliers
        among the rows, which count less; "huber" suits errors that are normal but for a few, and
        "student_t" gives gross ones hardly any weight. Noise that differs between tasks or rows
        and outlier tasks are only modelled for "gaussian".
    varying : list of str or int, optional
        Names or numbers of the features whose coefficients may differ between tasks; those of the
        others are the same in all. Intercepts vary as ``slopes`` says. With None, all of up to 12
        numeric features may vary. With more than 12, either all of them may vary or a selected few,
        if the marginal likelihood of the latter model is decisively better. Coefficients of factors
        and splines vary only if the marginal likelihood gains decisively. Nothing is selected if
        ``slopes`` or ``rank`` is given, or with ``whiten``: all coefficients except those of
        splines may then vary. See ``varying_``.
    approximation : {"auto", "laplace", "quadrature"}, default="auto"
        How the effects of binomial and count responses are integrated out. "auto" takes quadrature
        for one or two effects with few rows per task, where Laplace's approximation is biased;
        lme4 and glmmTMB use Laplace's approximation by default.

    Attributes
    ----------
    {tasks_, coef_, intercept_}
    mean_coef_ : ndarray of shape (d,)
    mean_intercept_ : float
        b.
    mean_coef_std_ : ndarray of shape (d,)
    mean_intercept_std_ : float
        Standard errors of ``mean_coef_`` and ``mean_intercept_``.
    coef_covariance_ : ndarray of shape (d, d)
        Covariance of the slopes of a new task, the uncertainty of b and L included: the prior that
        ``NewTaskRegressor.from_model`` uses.
    slope_std_ : ndarray of shape (d,)
        Standard deviation of each slope between tasks, by D alone (by the whole covariance if
        ``slopes_`` is "full"), in the user's units.
    intercept_std_ : float
        The same for the intercept of centred features.
    representation_ : ndarray of shape (d, rank_)
        Orthonormal basis of the slopes of L.
    task_weights_ : ndarray of shape (rank_, T)
        Coordinates, in this basis, of the part of ``coef_ - mean_coef_`` in the span.
    rank_ : int
    slopes_ : str
        The kind of D that was chosen.
    noise_ : {"shared", "per_task", "fitted"}
        The kind of noise that was chosen.
    noise_variance_ : ndarray of shape (T,)
        All equal if ``noise_`` is "shared"; the means over each task's rows if it is "fitted".
    noise_degrees_of_freedom_ : float
        For family="student_t" and "huber": degrees of freedom, between 2.1 and 100, of the t
        distribution of the noise of new responses.
    outlier_probability_ : ndarray of shape (T,)
    log_likelihood_ : float
        Log marginal likelihood with b integrated out (in the user's units with "reml"); with "ml"
        at the best b. Each task is weighted by one minus its outlier probability. For families
        other than the Gaussian it is an approximation, see ``approximation_``.
    dispersion_ : float
        Of family="negative_binomial": the variance is mean + mean^2 / dispersion.
    approximation_ : {"laplace", "quadrature"}
        How effects were integrated out; not for families whose likelihood is normal.
    widening_ : float
        Factor by which the fitted covariance of the effects is multiplied before the effects of
        the tasks are shrunk with it. It is 1 unless a larger factor gives smaller leave-one-out
        errors, for example because a few tasks have far larger effects than the others.
    varying_ : ndarray of str
        Names of the features whose coefficients differ between tasks.
    candidates_ : list of dict
        The fits that were compared: ``slopes``, ``rank``, ``n_varying`` (features that may vary),
        ``log_likelihood``, ``score``, the last two for standardised features and responses.
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

    checks: ClassVar = {
        "rank": partial(number_or_auto, smallest=0, kind=numbers.Integral),
        "slopes": structure,
        "noise": partial(one_of, known=("auto", "shared", "per_task", "fitted")),
        "method": partial(one_of, known=("evidence", "ml", "reml")),
        "outliers": BOOL,
        "family": partial(one_of, known=tuple(FAMILIES)),
        "approximation": partial(one_of, known=("auto", "laplace", "quadrature")),
    }

    slopes: str | Effects = "auto"
    noise: str = "auto"
    method: str = "evidence"
    outliers: bool = True
    whiten: bool = False
    family: str = "gaussian"
    unseen: str = "mean"
    varying: Any = None
    approximation: str = "auto"

    noise_degrees_of_freedom_: float
    dispersion_: float

    def response_family(self) -> Family:
        """See MixedModel."""
        return family_of(self.family, vars(self).get("dispersion_"))

    def check_combination(self) -> None:
        """Raise for options that the family does not have."""
        super().check_combination()
        if self.family not in ROBUST and self.noise in ("per_task", "fitted"):
            raise ValueError(
                f"noise={self.noise!r} is only available for Gaussian responses: the variance of "
                f"family={self.family!r} follows from its mean, so leave noise='auto'."
            )
        if self.response_family().reweighted and not fitting.is_local(self):
            raise ValueError(
                f"family={self.family!r} makes a pass over the rows in every iteration, but the "
                "workers of a cluster keep only their statistics: fit with engine='local', or use "
                "fit_file."
            )

    def fit(
        self,
        X: Any,
        y: Any,
        task: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
    ) -> Self:
        """Fit all tasks together.

        Parameters
        ----------
        {X, y, task, sample_weight, offset, exposure}

        Returns
        -------
        self
        """
        uses_offset = offset is not None or exposure is not None
        offset = self._offset(X, offset, exposure)
        if offset is not None and self.family in ROBUST:
            y, offset = np.asarray(y, dtype=float) - offset, None
        fitting.fit_arrays(self, X, y, task, sample_weight, offset=offset)
        self.__dict__.pop("uses_offset_", None)  # that of a formula needs not be given again
        if uses_offset:
            self.uses_offset_ = True
        return self

    def predict(
        self,
        X: Any,
        task: Any = None,
        return_std: bool = False,
        offset: Any = None,
        exposure: Any = None,
    ) -> Any:
        """Predict mean responses.

        For families other than the Gaussian, this is the mean over the posterior distribution of
        each task's coefficients.

        Parameters
        ----------
        {predict:X, predict:task}
        return_std : bool, default=False
            Whether to return also the standard deviation of a new response at each row.
        {offset, exposure}

        Returns
        -------
        ndarray of shape (rows,), or a pair of them with ``return_std``
        """
        offset = self._offset(X, offset, exposure)
        if is_task_list(X) or self.family in ROBUST:
            predicted = super().predict(X, task, return_std)
            if offset is None:
                return predicted
            return (predicted[0] + offset, predicted[1]) if return_std else predicted + offset
        check_is_fitted(self)
        mean, std = predict_family(self, *rows_to_predict(self, X, task), offset)
        return (mean, std) if return_std else mean

    def log_density(
        self, X: Any, y: Any, task: Any = None, offset: Any = None, exposure: Any = None
    ) -> np.ndarray:
        """The log of the predictive density, or probability, of responses.

        It is averaged over the uncertainty of each task's coefficients, so the mean over held-out
        rows is a proper score of the predictive distribution.

        Parameters
        ----------
        {rows:X, rows:task}
        y : array-like of shape (rows,)
            Responses.
        {offset, exposure}

        Returns
        -------
        ndarray of shape (rows,)
        """
        check_is_fitted(self)
        y = as_target(y, row_count(X))
        if self.family in ROBUST:
            mean, std = self.predict(X, task, return_std=True, offset=offset, exposure=exposure)
            return -0.5 * (((y - mean) / std) ** 2 + np.log(2 * np.pi * std**2))
        rows = rows_to_predict(self, X, task)
        return log_density(self, *rows, self._offset(X, offset, exposure), y)

    def mean_interval(
        self, X: Any, task: Any = None, level: float = 0.95, offset: Any = None,
        exposure: Any = None,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Confidence intervals for the mean response of each row in its task.

        Parameters
        ----------
        {rows:X, rows:task}
        level : float, default=0.95
            Share of the intervals that cover the mean, between 0 and 1.
        {offset, exposure}

        Returns
        -------
        low, high : ndarray of shape (rows,)
        """
        check_is_fitted(self)
        offset = self._offset(X, offset, exposure)
        if self.family not in ROBUST:
            return mean_interval(self, *rows_to_predict(self, X, task), offset, level)
        mean, reach = mean_and_reach(self, *rows_to_predict(self, X, task), level)
        mean = mean if offset is None else mean + offset
        return mean - reach, mean + reach

    def predict_interval(
        self, X: Any, task: Any = None, level: float = 0.95, offset: Any = None,
        exposure: Any = None,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Prediction intervals for new responses.

        Parameters
        ----------
        {rows:X, rows:task}
        level : float, default=0.95
            Share of new responses that fall into their intervals, between 0 and 1. Intervals for
            counts contain at least this share.
        {offset, exposure}

        Returns
        -------
        low, high : ndarray of shape (rows,)
        """
        check_is_fitted(self)
        offset = self._offset(X, offset, exposure)
        if self.family not in ROBUST:
            return response_interval(self, *rows_to_predict(self, X, task), offset, level)
        if self.family == "gaussian":
            low, high = super().predict_interval(X, task, level)
        else:
            mean, reach = mean_and_reach(self, *rows_to_predict(self, X, task), level)
            tails = StudentT(self.noise_degrees_of_freedom_)
            scale = np.sqrt(self.noise_variance_[0] / tails.variance_ratio)
            # The reach of the mean and that of the noise are added as deviations are.
            reach = np.hypot(reach, tails.quantile(0.5 + level / 2) * scale)
            low, high = mean - reach, mean + reach
        return (low, high) if offset is None else (low + offset, high + offset)

    def score(
        self,
        X: Any,
        y: Any,
        task: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
    ) -> float:
        """Coefficient of determination R^2 of the predicted means over all rows."""
        if offset is None and exposure is None:
            require_offset(self, offset, exposure)
            return super().score(X, y, task, sample_weight)
        predicted = self.predict(X, task, offset=offset, exposure=exposure)
        return float(r2_score(y, predicted, sample_weight=sample_weight))

    def _offset(self, X: Any, offset: Any, exposure: Any) -> np.ndarray | None:
        """The offset of each row, that of a formula included; None for none."""
        own = formula_offset(X, vars(self).get("columns_", self.columns))
        if offset is None and exposure is None:
            return own
        if is_task_list(X):
            raise ValueError("An offset needs X to be one array or frame, not a list of arrays.")
        one_of("family", self.family, tuple(FAMILIES))
        given = log_exposure(family_of(self.family), offset, exposure, row_count(X))
        return given if own is None or given is None else given + own


def mean_and_reach(
    model: AdaptiveSpanRegressor, features: np.ndarray, codes: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """Means of rows whose linear predictor is the mean, and half widths of their intervals."""
    posterior = model._uncertainty_
    quantiles = interval_quantiles(model, level)[codes]
    _, variance = posterior.linear_predictor(features, codes)
    unit = posterior.scaling.y_scale / posterior.canonical.units.y_scale
    return predicted_mean(model, features, codes), quantiles * unit * np.sqrt(variance)
