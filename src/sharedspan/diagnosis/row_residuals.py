"""Simulated residuals of any rows of a mixed model, from what a saved model holds.

``simulated_residuals.py`` has them for a model that retains its fit. A model that was read from a
file has the posterior mean and covariance of each task, from which its coefficients are drawn task
by task; that the tasks share the error of their mean is left out.
"""

from __future__ import annotations

import numpy as np

from sharedspan.diagnosis.model_view import ModelView
from sharedspan.diagnosis.simulated_residuals import (
    ResidualsAtDraw,
    normal_probability,
    probability_step,
)
from sharedspan.estimators.directions import covariances_of
from sharedspan.families import Binomial, Counts, Gaussian
from sharedspan.mixed_model.posterior import Posterior

MOST_WORK = 2e9  # operations of the draws of all tasks
FEWEST_ROWS = 20


def residuals_of_rows(view: ModelView, seed: int = 0) -> ResidualsAtDraw | None:
    """Residuals of the rows, uniform between 0 and 1 if the model is right; None without a draw."""
    posterior, rows = vars(view.model).get("_uncertainty_"), view.rows
    if not isinstance(posterior, Posterior) or rows is None or rows.y is None:
        return None
    if len(rows.y) < FEWEST_ROWS or posterior.variance_function is not None:
        return None
    if not isinstance(view.family, Gaussian | Binomial | Counts):
        return None
    T, p = posterior.mean.shape
    if T * float(p) ** 3 > MOST_WORK or not np.isfinite(posterior.packed).all():
        return None
    rng = np.random.default_rng(seed)
    draws, noise = _draws(posterior, rng)
    codes, unit = rows.codes, posterior.user_scale()
    shift = np.einsum("ij,ij->i", posterior.standard_rows(rows.X), (draws - posterior.mean)[codes])
    fitted = np.einsum("ij,ij->i", rows.X, view.span.coef[codes]) + view.span.intercept[codes]
    eta = fitted + unit * shift
    if isinstance(view.family, Gaussian):
        return ResidualsAtDraw(normal_probability(rows.y - eta, unit**2 * noise[codes]), eta)
    mean = view.family.mean(eta)
    try:
        low, high = probability_step(view.family, rows.y, mean, np.ones(len(mean)))
    except ValueError:  # shares whose numbers of trials are not among the rows
        return None
    return ResidualsAtDraw(low + rng.random(len(mean)) * (high - low), mean)


def _draws(posterior: Posterior, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (T, p) and noise variances (T,) drawn from the posterior, in standard units."""
    T, p = posterior.mean.shape
    draws = posterior.mean.copy()
    step = max(int(1e7 / p**2), 1)
    for begin in range(0, T, step):
        values, axes = np.linalg.eigh(covariances_of(posterior, slice(begin, begin + step)))
        lengths = np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(values.shape)
        draws[begin : begin + step] += (axes @ lengths[:, :, None])[:, :, 0]
    degrees = float(np.median(posterior.degrees))
    factor = degrees / rng.chisquare(degrees) if np.isfinite(degrees) else 1.0
    return draws, posterior.noise * factor
