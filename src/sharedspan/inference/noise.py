"""Noise levels, degrees of freedom, and the error of the best possible fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharedspan.kernels.threads import one_blas_thread
from sharedspan.objective import Objective


def parameter_error(coef: Any, true_coef: Any) -> float:
    """Sum over tasks of the squared distance between coefficients, both of shape (T, d)."""
    coef, true_coef = np.asarray(coef, dtype=float), np.asarray(true_coef, dtype=float)
    if coef.shape != true_coef.shape:
        shapes = f"{coef.shape} and {true_coef.shape}"
        raise ValueError(f"coef and true_coef must have the same shape, not {shapes}.")
    return float(np.sum((coef - true_coef) ** 2))


def error_floor(n_samples: Any, n_features: int, n_tasks: int, rank: int, noise: Any) -> float:
    """Expected parameter error of the best fit of rank k: sigma^2 k (d + T - k) / N.

    With unequal sizes or noise levels (one value per task) the k weights of each task contribute
    k sigma_t^2 / n_t, and the k (d - k) parameters of the span, learned from all tasks together,
    k (d - k) / mean(n_t / sigma_t^2); for equal values this is the formula above.

    Parameters
    ----------
    n_samples : float or array-like of shape (T,)
        Rows per task.
    n_features, n_tasks, rank : int
    noise : float or array-like of shape (T,)
        Standard deviations.
    """
    variance = np.broadcast_to(np.square(np.asarray(noise, dtype=float)), (n_tasks,))
    size = np.broadcast_to(np.asarray(n_samples, dtype=float), (n_tasks,))
    if not (variance > 0).all():
        return 0.0 if not variance.any() else rank * float(np.sum(variance / size))
    weights = rank * np.sum(variance / size)
    span = rank * (n_features - rank) / np.mean(size / variance)
    return float(weights + span)


def residual_degrees(n: np.ndarray, d: int, k: int, centred: bool) -> float:
    """Rows minus the numbers of intercepts, task weights and span parameters, zero if negative."""
    span = k * max(d - k, 0)
    if len(n) and n.min() >= k + centred:
        return float(max(n.sum() - len(n) * (k + centred) - span, 0.0))
    free = np.maximum(n - centred, 0)
    return float(max(free.sum() - np.minimum(free, k).sum() - span, 0.0))


def shared_noise(objective: Objective, loss: float, k: int, centred: bool) -> tuple[float, float]:
    """The noise variance of all tasks, from the residuals of a fit of rank k, and its degrees.

    A fit that leaves no degrees of freedom has residuals of zero, and then this is zero.

    Parameters
    ----------
    objective : Objective
        Of tasks with equal noise, so that the loss is the sum of squares over twice the mean size.
    loss : float
        At the fit.
    k : int
        Its rank.
    centred : bool
        Whether tasks have intercepts.
    """
    degrees = residual_degrees(objective.n, objective.n_features, k, centred)
    squares = 2 * loss * objective.n[objective.n > 0].mean()
    return max(squares, 0.0) / max(degrees, 1.0), degrees


def common_level(noise: np.ndarray) -> float:
    """Geometric mean of the positive noise variances; zero if there are none."""
    positive = noise[noise > 0]
    return float(np.exp(np.log(positive).mean())) if len(positive) else 0.0


def relative_precision(noise: np.ndarray | None, n_tasks: int) -> np.ndarray:
    """Inverse noise variances (T,), scaled to a geometric mean of one; one for zero variances."""
    if noise is None:
        return np.ones(n_tasks)
    return np.divide(common_level(noise), noise, out=np.ones(n_tasks), where=noise > 0)


def shrink_noise(rss: np.ndarray, degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per-task noise variances shrunk towards a common level, and their degrees of freedom.

    sigma_t^2 = (nu s0^2 + rss_t) / (nu + df_t). Under sigma_t^2 ~ scaled inverse chi-square
    (nu, s0^2), rss_t / (df_t s0^2) follows an F distribution with (df_t, nu) degrees of freedom;
    nu and s0^2 maximise that likelihood. A task without residual degrees of freedom gets the common
    level. The degrees of freedom are nu + df_t, but at most those of all tasks together.

    Parameters
    ----------
    rss, degrees : ndarray of shape (T,)
        Residual sums of squares and residual degrees of freedom of each task.

    Returns
    -------
    variances, degrees : ndarray of shape (T,)
    """
    used = degrees > 0
    total = max(float(degrees.sum()), 1.0)
    if not used.any() or not rss[used].any():
        level = max(float(rss.sum()) / total, 0.0)
        return np.full(len(rss), level), np.full(len(rss), total)
    # A task that is fitted exactly would make the likelihood unbounded.
    mean = rss[used].sum() / degrees[used].sum()
    floor = 1e-12 * mean
    variances = np.maximum(rss[used] / degrees[used], floor)
    nu, s0 = _fit_prior(variances, degrees[used])
    with np.errstate(invalid="ignore"):
        shrunk = (nu * s0 + rss) / (nu + degrees)
    shrunk = np.maximum(shrunk if np.isfinite(nu) else np.full(len(rss), s0), floor)
    return shrunk, np.minimum(nu + degrees, total)


def gain_of_noise_levels(rss: np.ndarray, degrees: np.ndarray) -> float:
    """The gain in log likelihood of noise variances that differ between tasks over a common one.

    Parameters
    ----------
    rss, degrees : ndarray of shape (T,)
        See ``shrink_noise``.
    """
    from scipy.stats import chi2, f

    used = (degrees > 0) & (rss > 0)
    if used.sum() < 2:
        return 0.0
    rss, degrees = rss[used], degrees[used]
    common = rss.sum() / degrees.sum()
    nu, s0 = _fit_prior(rss / degrees, degrees)
    if not np.isfinite(nu):
        return 0.0
    differing = f.logpdf(rss / degrees, degrees, nu, scale=s0)
    equal = chi2.logpdf(rss / common, degrees) + np.log(degrees / common)
    return float(np.sum(differing - equal))


def _fit_prior(variances: np.ndarray, degrees: np.ndarray) -> tuple[float, float]:
    """Maximum likelihood of (nu, s0^2); nu is infinite if the tasks show no difference."""
    from scipy.optimize import minimize, root
    from scipy.special import betaln, digamma

    center = float(np.log(np.average(variances, weights=degrees)))

    # The variances over s0^2 have an F distribution; a term without parameters is left out.
    def negative(parameters: np.ndarray) -> float:
        nu, scale = np.exp(parameters[0]), np.exp(parameters[1])
        ratio = degrees * variances / (nu * scale)
        logs = degrees / 2 * np.log(ratio) - (degrees + nu) / 2 * np.log1p(ratio)
        return float(np.sum(betaln(degrees / 2, nu / 2) - logs))

    def slope(parameters: np.ndarray) -> np.ndarray:
        nu, scale = np.exp(parameters[0]), np.exp(parameters[1])
        ratio = degrees * variances / (nu * scale)
        pull = (degrees + nu) / 2 * ratio / (1 + ratio) - degrees / 2
        gammas = digamma((degrees + nu) / 2) - digamma(nu / 2) - np.log1p(ratio)
        return -np.array([np.sum(nu / 2 * gammas + pull), np.sum(pull)])

    bounds = [(np.log(0.1), np.log(1e6)), (center - 40, center + 10)]
    starts = [(0.7, float(np.median(np.log(variances)))), (3.0, center)]
    with one_blas_thread():
        fits = [
            minimize(negative, start, jac=slope, method="L-BFGS-B", bounds=bounds)
            for start in starts
        ]
    best = min(fits, key=lambda fit: fit.fun)
    # If the tasks do not differ, the likelihood is flat in nu and the search stops anywhere.
    if negative(np.array([bounds[0][1], center])) <= best.fun + 1e-5:
        return np.inf, float(np.exp(center))

    # A root of the gradient, because the end of a search on a flat top amplifies rounding errors.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # on its way
        exact = root(slope, best.x, options={"xtol": 1e-14}).x
    inside = all(low < x < high for x, (low, high) in zip(exact, bounds, strict=True))
    best_x = exact if inside and negative(exact) <= best.fun + 1e-9 * abs(best.fun) else best.x
    nu, s0 = np.exp(best_x)
    return float(nu), float(s0)
