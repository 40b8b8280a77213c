"""Fits and predictions of families other than the Gaussian, for the adaptive estimators."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.fitting import offset_of_rows
from sharedspan.estimators.prediction import interval_quantiles, predicted_mean
from sharedspan.estimators.saturation import require_identified
from sharedspan.families import Binomial, Counts, Family, NegativeBinomial, hermite
from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model.held_out import select_by_rows
from sharedspan.mixed_model.held_out_responses import HeldOutResponses
from sharedspan.mixed_model.laplace import FamilyOptimizer
from sharedspan.mixed_model.likelihood import LARGEST_EFFECT
from sharedspan.mixed_model.modes import FamilyRows
from sharedspan.mixed_model.optimize import CovarianceFit
from sharedspan.mixed_model.outliers import FittedEffects
from sharedspan.mixed_model.posterior import posterior_of
from sharedspan.mixed_model.quadrature import (
    fit_by_quadrature,
    quadrature_is_possible,
    quadrature_matters,
)
from sharedspan.mixed_model.retained import RetainedFit
from sharedspan.mixed_model.structures import Coefficients, Effects
from sharedspan.mixed_model.terms import Covariance, Scaling
from sharedspan.statistics.canonical import Canonical, Problem

if TYPE_CHECKING:
    from sharedspan.estimators.mixed import MixedModel

SEPARATED = 15.0  # largest coefficient of a standardised feature that data without separation show
COARSE_DECREMENT = 1e-5  # of the log likelihood of a task, that ends Newton's method
BISECTIONS = 64  # to find a quantile of a count
REACHED = 0.998  # of the largest standard deviation, that counts as reached


def estimate_family(model: MixedModel, problem: Problem) -> FittedSpan:
    """The structure of the strongest evidence by Laplace's approximation, and the posterior."""
    rows, family = problem.rows, model.response_family()
    if not isinstance(rows, TaskRows):
        raise ValueError(
            f"family={family.name!r} makes a pass over the rows in every iteration, but the "
            "workers of a cluster keep only their statistics: fit with engine='local', or use "
            "fit_file."
        )
    check_responses(family, rows)
    statistics = problem.statistics.gather_local()
    coefficients = model.independent_coefficients(statistics)
    require_one_level(family, coefficients)
    require_identified(model, problem, coefficients)
    canonical = replace(problem.canonical, units=replace(problem.canonical.units, y_scale=1.0))
    scaling = model.scaling(statistics, coefficients, canonical)
    scaling = replace(scaling, y_centre=0.0, y_scale=1.0)
    del statistics
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            fitted = _estimate(model, rows, canonical, scaling, coefficients)
        if not (np.isfinite(fitted.coef).all() and np.isfinite(fitted.intercept).all()):
            raise np.linalg.LinAlgError("Coefficients are not finite.")
        return fitted
    except np.linalg.LinAlgError:
        raise ValueError(
            f"The likelihood of family={family.name!r} cannot be computed for these numbers: "
            "responses, offsets or sample weights are too large, or differ too much between rows. "
            "Weights count as repetitions of a row: divide them by a common factor."
        ) from None


def _estimate(
    model: MixedModel, rows: TaskRows, canonical: Canonical, scaling: Scaling,
    coefficients: Coefficients,
) -> FittedSpan:  # fmt: skip
    from sharedspan.estimators.mixed import log_volume, mixed_fit

    candidates: list[dict[str, Any]] = []
    family = model.response_family()
    source = FamilyRows(rows, canonical, scaling, family, model.fit_intercept)
    flat, restricted = model.method != "evidence", model.method == "reml"
    if not flat:  # the modes need not be known better than the objective
        source.mode_tol = min(1e-3 / source.n_tasks, COARSE_DECREMENT)
    source.coefficients = coefficients
    with one_blas_thread():
        if coefficients.fixed[0]:
            source.centre()
        ids = model.searched_tasks(source.n_tasks, source.p)
        searched = source if len(ids) == source.n_tasks else source.take(ids)
        optimizer = FamilyOptimizer(searched, flat, restricted)
        selected = model.select(optimizer, candidates)
        optimizer = optimizer.with_coefficients(selected.tasks.coefficients)
        source = source.with_coefficients(selected.tasks.coefficients)
        if not flat and selected.rivals:
            selected = select_by_rows(HeldOutResponses(searched), [selected])
        fit = selected.fit
        if optimizer.is_lost(fit):
            raise np.linalg.LinAlgError("The fit is worse than one without random effects.")
        if len(ids) < source.n_tasks:
            optimizer = FamilyOptimizer(source, flat, restricted, fit)
        fit = optimizer.fit(fit.structure, fit.covariance.loadings.shape[1], fit)
        value, approximation = fit.evidence.value, "laplace"
        quadrature = None
        if takes_quadrature(model, source, fit):
            quadrature = fit_by_quadrature(source, optimizer, fit)
            prior = (
                0.0
                if flat and not coefficients.members
                else value - float(fit.evidence.task_values.sum())
            )
            value = quadrature.value + prior
            fit, approximation = quadrature.fit, "quadrature"
        posterior = posterior_of(fit.modes.tasks, canonical, FittedEffects(fit))
        if quadrature is not None:
            posterior = quadrature.corrected(posterior)
    if source.level:  # the intercepts of the user's units contain it
        posterior.mean[:, 0] += source.level
        posterior = replace(posterior, b=posterior.b + np.eye(source.p)[0] * source.level)
    doubts: list[str] = []
    if flat and isinstance(family, Binomial) and np.abs(fit.evidence.mean).max() > SEPARATED:
        doubts.append(
            f"Some features separate the classes, so method={model.method!r} has no finite "
            "coefficients, and these are where the fit was stopped: use method='evidence'."
        )
    if flat and (unbounded := unbounded_variance(fit.covariance, approximation)) is not None:
        doubts.append(unbounded)
    for doubt in doubts:
        warnings.warn(doubt, ConvergenceWarning, stacklevel=7)
    if not fit.converged:
        warnings.warn(
            f"The fit was stopped after {optimizer.n_turns} passes over the rows: it is close to "
            "the optimum, but may not have reached it. Nearly separable classes slow it down.",
            ConvergenceWarning,
            stacklevel=7,
        )
    if model.method == "reml":  # b is integrated out in the user's units
        flat_means = (coefficients.groups < 0) & coefficients.fixed
        value += 0.5 * np.count_nonzero(flat_means) * np.log(2 * np.pi)
        value += log_volume(canonical, scaling, coefficients)
    extra: dict[str, Any] = {
        "candidates": candidates,
        "log_likelihood": value,
        "approximation": approximation,
    }
    if isinstance(fit.modes.family, NegativeBinomial):
        extra["dispersion"] = fit.modes.family.dispersion
    if isinstance(model.slopes, Effects):
        restricted = model.method == "reml"
        tasks = fit.modes.tasks
        extra["_retained"] = RetainedFit(tasks, fit, canonical, rows, restricted, optimizer)
    fitted = mixed_fit(canonical, scaling, fit, posterior, extra)
    return replace(
        fitted, noise_variance=None, n_iter=optimizer.n_turns, message=" ".join(doubts) or None
    )


def unbounded_variance(covariance: Covariance, approximation: str) -> str | None:
    """What it means that effects have the largest standard deviation that is tried, if they do."""
    sizes = np.append(np.sqrt(covariance.variances), np.abs(covariance.loadings))
    if sizes.max() < REACHED * LARGEST_EFFECT:
        return None
    advice = "the likelihood has no maximum below it"
    if approximation == "laplace":
        advice = (
            "Laplace's approximation, which is poor where groups have few rows, has no maximum "
            "below it: give approximation='quadrature', if one or two effects vary"
        )
    return (
        f"A standard deviation of the random effects reached {LARGEST_EFFECT:g}, the largest that "
        f"is tried, and {advice}. All estimates depend on it."
    )


def require_one_level(family: Family, coefficients: Coefficients) -> None:
    """Raise for nested groups, which only Gaussian responses have."""
    if coefficients.outer:
        raise ValueError(
            f"Nested random effects, such as (1 + x | a/b), are only available for Gaussian "
            f"responses, but family={family.name!r} has one level of them: write (1 + x | a:b), "
            "or (1 | a:b) + (1 | a) for intercepts of both."
        )


def takes_quadrature(model: MixedModel, rows: FamilyRows, fit: CovarianceFit) -> bool:
    """Whether the effects are integrated out by quadrature."""
    approximation = vars(model).get("approximation", "auto")
    if approximation == "laplace" or (approximation == "auto" and model.method == "reml"):
        return False
    if approximation == "auto":
        return quadrature_matters(rows, fit)
    if model.method == "reml" or not quadrature_is_possible(fit):
        raise ValueError(
            "approximation='quadrature' integrates over one or two effects of a task that have "
            "variances of their own, by maximum likelihood or the evidence: give "
            "approximation='laplace'."
        )
    return True


def check_responses(family: Family, rows: TaskRows) -> None:
    """Raise ValueError for a response that the family does not have."""
    for block in rows.blocks():
        valid = family.is_valid(block.y)
        if not valid.all():
            position = block.positions.start + int(np.argmin(valid))
            row = position if rows.order is None else int(rows.order[position])
            raise ValueError(
                f"family={family.name!r} needs {family.needs}; row {row} has "
                f"{block.y[position - block.positions.start]:g}."
            )


def log_exposure(family: Family, offset: Any, exposure: Any, n_rows: int) -> np.ndarray | None:
    """The offset of each row, with the logarithm of its exposure; None without either."""
    if exposure is None:
        return None if offset is None else offset_of_rows(offset, n_rows)
    if not isinstance(family, Counts):
        raise ValueError(
            f"exposure is the time or size that counts refer to, and family={family.name!r} has no "
            "counts: use family='poisson' or 'negative_binomial', or give an offset."
        )
    exposure = np.asarray(exposure, dtype=float)
    if not (exposure > 0).all() or not np.isfinite(exposure).all():
        raise ValueError("exposure must be finite and above zero in every row.")
    total = offset_of_rows(np.log(exposure), n_rows)
    return total if offset is None else total + offset_of_rows(offset, n_rows)


def require_offset(model: MixedModel, *given: Any) -> None:
    """Raise if a model that was fitted with an offset is to be scored without one."""
    if vars(model).get("uses_offset_", False) and all(each is None for each in given):
        raise ValueError(
            "The model was fitted with an offset or exposure: give those of these rows, too."
        )


def linear_predictor(
    model: MixedModel, features: np.ndarray, codes: np.ndarray, offset: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Posterior mean and variance of the linear predictor, both (rows,)."""
    eta = predicted_mean(model, features, codes)
    added, variance = model._uncertainty_.linear_predictor(features, codes)
    eta = eta + added
    return (eta if offset is None else eta + offset), variance


def predict_family(
    model: MixedModel, features: np.ndarray, codes: np.ndarray, offset: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of new responses, both (rows,)."""
    family = model.response_family()
    eta, variance = linear_predictor(model, features, codes, offset)
    mean = family.expected_mean(eta, variance)
    spread = np.zeros_like(mean)
    for x, weight in zip(*hermite(15), strict=True):
        at = family.mean(eta + x * np.sqrt(variance))
        spread += weight * (family.variance(at) + (at - mean) ** 2)
    return mean, np.sqrt(spread)


def log_density(
    model: MixedModel, features: np.ndarray, codes: np.ndarray, offset: np.ndarray | None,
    y: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Log of the posterior predictive probability of responses y (rows,)."""
    family = model.response_family()
    valid = family.is_valid(y)
    if not valid.all():
        row = int(np.argmin(valid))
        raise ValueError(f"family={family.name!r} needs {family.needs}; row {row} has {y[row]:g}.")
    eta, variance = linear_predictor(model, features, codes, offset)
    constant = family.constant(y, np.ones(len(y)))
    return family.predictive_log_likelihood(y, eta, variance) + constant


def mean_interval(
    model: MixedModel, features: np.ndarray, codes: np.ndarray, offset: np.ndarray | None,
    level: float,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Confidence intervals for the mean responses of rows: the task's own mean or probability."""
    family = model.response_family()
    eta, variance = linear_predictor(model, features, codes, offset)
    reach = interval_quantiles(model, level)[codes] * np.sqrt(variance)
    return family.mean(eta - reach), family.mean(eta + reach)


def response_interval(
    model: MixedModel, features: np.ndarray, codes: np.ndarray, offset: np.ndarray | None,
    level: float,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Intervals that contain a new count with at least the given probability."""
    family = model.response_family()
    if not isinstance(family, Counts):
        raise AttributeError(
            "A response that is 0 or 1 has no interval: use mean_interval for its probability."
        )
    eta, variance = linear_predictor(model, features, codes, offset)
    interval_quantiles(model, level)  # checks the level
    nodes, weights = hermite(15)
    means = family.mean(eta + nodes[:, None] * np.sqrt(variance))

    def quantile(share: float) -> np.ndarray:
        low, high = np.full(len(eta), -1.0), np.full(len(eta), 4.0)
        while (short := weights @ family.cdf(high, means) < share).any() and high.max() < 1e15:
            high[short] *= 4
        for _ in range(BISECTIONS):
            middle = np.floor((low + high) / 2)
            enough = weights @ family.cdf(middle, means) >= share
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
            if (high - low <= 1).all():
                break
        return high

    return quantile(0.5 - level / 2), quantile(0.5 + level / 2)
