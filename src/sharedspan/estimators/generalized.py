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
from sharedspan.families import Counts, Family, NegativeBinomial, hermite
from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model.laplace import fit_family
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.modes import FamilyRows
from sharedspan.mixed_model.posterior import posterior_of
from sharedspan.mixed_model.search import SelectedModel
from sharedspan.mixed_model.terms import Scaling
from sharedspan.statistics.canonical import Problem

if TYPE_CHECKING:
    from sharedspan.estimators.mixed import MixedModel

BISECTIONS = 64  # to find a quantile of a count


def estimate_family(model: MixedModel, problem: Problem) -> FittedSpan:
    """The structure of the strongest evidence by Laplace's approximation, and the posterior."""
    from sharedspan.estimators.mixed import mixed_fit

    rows, family = problem.rows, model.response_family()
    if not isinstance(rows, TaskRows):
        raise ValueError(
            f"family={family.name!r} reads the rows once in every turn of its fit, and the workers "
            "of a cluster keep only their sums: fit with engine='local', or use fit_file."
        )
    check_responses(family, rows)
    statistics = problem.statistics.gather_local()
    scaling = replace(Scaling.of(statistics, model.fit_intercept), y_centre=0.0, y_scale=1.0)
    del statistics
    canonical = replace(problem.canonical, units=replace(problem.canonical.units, y_scale=1.0))
    candidates: list[dict[str, Any]] = []

    def select(tasks: MixedTasks) -> SelectedModel:
        ids = model.searched_tasks(tasks)
        candidates.clear()  # scores at other working weights are not comparable
        return model.select(tasks if len(ids) == tasks.n_tasks else tasks.take(ids), candidates)

    source = FamilyRows(rows, canonical, scaling, family, model.fit_intercept)
    with one_blas_thread():
        flat = model.method != "evidence"
        fitted = fit_family(source, select, flat, restricted=model.method == "reml")
        posterior = posterior_of(fitted.model.tasks, canonical, fitted.model.fit, None)
    if source.level:  # the intercepts of the user's units contain it
        posterior.mean[:, 0] += source.level
        posterior = replace(posterior, b=posterior.b + np.eye(source.p)[0] * source.level)
    if not fitted.converged:
        warnings.warn(
            f"The fit was stopped after {fitted.n_turns} passes over the rows: it is close to the "
            "best, but may not be it. Classes that a feature separates make it slow.",
            ConvergenceWarning,
            stacklevel=7,
        )
    value = fitted.model.fit.evidence.value
    if model.method == "reml":  # b is integrated out in the user's units
        value += 0.5 * source.p * np.log(2 * np.pi) - np.log(scaling.scale).sum()
    extra: dict[str, Any] = {
        "candidates": candidates,
        "log_likelihood": value,
        "approximation": "laplace",
    }
    if isinstance(fitted.family, NegativeBinomial):
        extra["dispersion"] = fitted.family.dispersion
    fit = mixed_fit(canonical, scaling, fitted.model.fit, posterior, extra)
    return replace(fit, noise_variance=None, n_iter=fitted.n_turns, converged=fitted.converged)


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


def mean_interval(
    model: MixedModel, features: np.ndarray, codes: np.ndarray, offset: np.ndarray | None,
    level: float,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Intervals of the mean responses of rows: the task's own mean or probability."""
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
