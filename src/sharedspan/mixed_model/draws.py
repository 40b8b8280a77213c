"""One draw of all coefficients from their posterior distribution, the covariance being as fitted.

    y_t = Z_t (b + u_t) + noise,     u_t ~ N(0, s2 C),

in the words of ``likelihood.py``. Given C, the unknown numbers are drawn in turn:

    s2  = e'e / chi-square(N - h),
    b   ~ N(its estimate, s2 (precision + sum K_t)^-1),
    u_t ~ N(C e_t, s2 (C - C K_t C)),     e_t = K_t (a_t - b) + h_t.

e are the residuals at the posterior means of all tasks, and h is the number of effective
parameters, the trace of the matrix H that turns responses into fitted values.

Why N - h. If C were known, s2 would be the weighted squares of y_t - Z_t b over a chi-square
variable with N less the rank of b degrees of freedom. But C was fitted to the same responses: where
the restricted likelihood is largest, its derivative by s2 at a constant covariance s2 C of the
effects is zero, and says that e'e = s2 (N - h). Hence s2 is known from the residuals alone. Where
effects are zero, h is the rank of b, and the draw is that of least squares. Where they are so large
that nothing is shrunk, h is the number of independent coefficients of all tasks, e'e does not
depend on C, and e'e / s2 is a chi-square variable with N - h degrees of freedom. Between these two
the mean is right and the distribution is near. By maximum likelihood e'e is the same function of
the fit, so the noise is not too small as its estimate is.

At both ends y - Z_t (b + u_t), in units of the drawn noise, has exactly the distribution of the
noise itself, although all numbers were estimated from the same responses: residuals at a draw need
no correction for the estimation.

Other families than the Gaussian have a noise variance of one and the same formulas for the
quadratics around the modes of their tasks, where the mean of u_t is moved by (C - C K_t C) a_t: the
first order of what the skewness of the likelihood adds to a mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model.likelihood import SMALLEST_NOISE, MixedTasks
from sharedspan.mixed_model.optimize import CovarianceFit
from sharedspan.mixed_model.posterior import estimate_population, residual_squares
from sharedspan.mixed_model.retained import RetainedFit
from sharedspan.mixed_model.terms import TaskTerms


class PosteriorDraw(NamedTuple):
    """Unknown numbers of a model, drawn from their posterior distribution, in standard units."""

    coefficients: np.ndarray  # (T, p) b + u_t
    noise: np.ndarray  # (T,) variances of the noise; one for other families than the Gaussian


def draw_coefficients(retained: RetainedFit, rng: np.random.Generator) -> PosteriorDraw:
    """One draw from the joint posterior of b, the tasks' effects and the noise variance.

    All random numbers are drawn before the tasks are shared among threads, so a draw depends on the
    generator alone.

    Parameters
    ----------
    retained : RetainedFit
    rng : numpy.random.Generator
    """
    require_one_level(retained)
    tasks, fit = retained.tasks, retained.fit
    R, C = fit.covariance.root, fit.covariance.matrix
    coefficients = np.empty((tasks.n_tasks, tasks.p))
    with one_blas_thread():
        s2 = draw_noise(tasks, fit, rng)
        population = estimate_population(tasks, fit, np.zeros(tasks.n_tasks))
        step = draw_normal(population.inverse[None], rng.standard_normal((1, tasks.p)))[0]
        b = population.b + np.sqrt(s2) * step
        z = np.sqrt(s2) * rng.standard_normal((tasks.n_tasks, R.shape[1]))

        def work(terms: TaskTerms) -> None:
            ids = terms.ids
            scores, _ = terms.scores_and_squares(b)
            left = np.eye(R.shape[1]) - R.T @ terms.K @ R  # C - C K C = R left R'
            effects = draw_normal(left, z[ids])
            if tasks.working is not None:
                effects += np.einsum("tij,tj->ti", left, tasks.working.linear[ids] @ R)
            coefficients[ids] = b + scores @ C + effects @ R.T

        tasks.map_terms(work, fit.covariance)
    coefficients[:, : int(tasks.intercept)] += family_level(retained)
    return PosteriorDraw(coefficients, s2 * tasks.levels)


def draw_noise(tasks: MixedTasks, fit: CovarianceFit, rng: np.random.Generator) -> float:
    """A draw of s2; one if the noise is known."""
    if tasks.working is not None:
        return 1.0
    squares, used = residual_squares(tasks, fit, None)
    return drawn_noise(np.sum(squares / tasks.levels), tasks.n.sum() - used.sum(), rng)


def drawn_noise(squares: float, degrees: float, rng: np.random.Generator) -> float:
    """The squares of residuals over a chi-square variable, of at least one degree of freedom."""
    return max(float(squares), SMALLEST_NOISE) / float(rng.chisquare(max(float(degrees), 1.0)))


def draw_normal(covariance: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Normal vectors (m, q) of covariances (m, q, q), from standard normal numbers z (m, q)."""
    values, axes = np.linalg.eigh(covariance)
    lengths = np.sqrt(np.maximum(values, 0.0)) * z
    return np.asarray((axes @ lengths[:, :, None])[:, :, 0])


def family_level(retained: RetainedFit) -> float:
    """What the fit of a family took off the linear predictor of all rows."""
    return 0.0 if retained.optimizer is None else float(retained.optimizer.rows.level)


def require_one_level(retained: RetainedFit) -> None:
    """Raise for tasks that are groups within groups."""
    if retained.nested is not None:
        raise ValueError(
            "Responses of groups within groups, such as (1 | district/school), are not simulated: "
            "fit the model with one level of groups, such as (1 | school)."
        )


class DesignBlock(NamedTuple):
    """Rows in standard units, with their tasks."""

    positions: slice  # of the rows among all
    Z: np.ndarray  # (rows, p)
    owner: np.ndarray  # (rows,) numbers of the tasks
    weight: np.ndarray  # (rows,) sample weights
    offset: np.ndarray  # (rows,) known part of the linear predictor, in the user's units


def fitted_rows(retained: RetainedFit) -> Iterator[tuple[DesignBlock, np.ndarray]]:
    """The rows of a fit in the order of their tasks, block by block, and their responses (rows,).

    Responses are in the user's units.
    """
    for block in retained.rows.blocks():
        design = DesignBlock(
            positions=block.positions,
            Z=standard_features(retained, block.X),
            owner=np.repeat(block.ids, np.diff(block.starts)),
            weight=block.weight,
            offset=np.zeros(len(block.y)) + block.offset,
        )
        yield design, block.y


def standard_features(retained: RetainedFit, X: np.ndarray) -> np.ndarray:
    """Rows X (m, d) in the user's units as [1, standardised features], (m, p)."""
    units, P = retained.canonical.units, retained.canonical.P
    features = (X - units.origin) * units.scale
    features = features if P is None else features @ P
    return retained.tasks.scaling.to_standard(features, bool(retained.tasks.intercept))


def predictor_to_user(retained: RetainedFit, eta: np.ndarray) -> np.ndarray:
    """Linear predictors in the user's units, given those in standard units."""
    scaling, unit = retained.tasks.scaling, retained.canonical.units.y_scale
    return np.asarray((scaling.y_centre + scaling.y_scale * eta) / unit)


def noise_unit(retained: RetainedFit) -> float:
    """The standard unit of responses, in the user's units."""
    return retained.tasks.scaling.y_scale / retained.canonical.units.y_scale


def in_given_order(retained: RetainedFit, values: np.ndarray) -> np.ndarray:
    """Values (rows, ...) in the order of the tasks as the rows of the fit were given.

    Rows of weight zero, which were not fitted, are not a number.
    """
    rows = retained.rows
    if rows.order is None:
        return values
    given = np.full((rows.y.shape[0], *values.shape[1:]), np.nan)
    given[rows.order] = values
    return given
