"""One draw of all coefficients from their posterior distribution, given the fitted covariance.

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

Nested groups, whose terms ``nested.py`` has, are drawn from the outer to the inner level:
u_r ~ N(C_r e_r, s2 M_r) at the drawn b, and then u_s as above, at the drawn b + u_r.

Families other than the Gaussian have a noise variance of one and the same formulas for the
quadratics around the modes of their tasks, where the mean of u_t is moved by (C - C K_t C) a_t: the
first order of what the skewness of the likelihood adds to a mode.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model.likelihood import SMALLEST_NOISE, MixedTasks
from sharedspan.mixed_model.nested_posterior import nested_posterior
from sharedspan.mixed_model.optimize import CovarianceFit
from sharedspan.mixed_model.outliers import FittedEffects
from sharedspan.mixed_model.population import estimate_population
from sharedspan.mixed_model.posterior import residual_squares
from sharedspan.mixed_model.retained import NestedRetained, RetainedFit
from sharedspan.mixed_model.terms import Covariance, TaskTerms


class PosteriorDraw(NamedTuple):
    """Unknown numbers of a model, drawn from their posterior distribution, in standard units."""

    coefficients: np.ndarray  # (T, p) b + u_t
    noise: np.ndarray  # (T,) variances of the noise; one for families other than the Gaussian


def draw_coefficients(retained: RetainedFit, rng: np.random.Generator) -> PosteriorDraw:
    """One draw from the joint posterior of b, the tasks' effects and the noise variance.

    All random numbers are drawn before the tasks are shared among threads, so a draw depends on the
    generator alone.

    Parameters
    ----------
    retained : RetainedFit
    rng : numpy.random.Generator
    """
    if retained.nested is not None:
        return _draw_nested(retained, retained.nested, rng)
    tasks, fit = retained.tasks, retained.fit
    assert fit is not None
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


def _draw_nested(
    retained: RetainedFit, nested: NestedRetained, rng: np.random.Generator
) -> PosteriorDraw:
    """The draw for nested groups."""
    tasks, fit, parent = retained.tasks, nested.fit, nested.parent
    e, C, R = fit.evidence, fit.inner.matrix, fit.inner.root
    coefficients = np.empty((tasks.n_tasks, tasks.p))
    with one_blas_thread():
        s2 = _draw_nested_noise(retained, nested, rng)
        std = np.sqrt(s2)
        step = std * draw_normal(e.mean_covariance[None], rng.standard_normal((1, tasks.p)))[0]
        scores = e.scores - e.K @ step
        outer = e.mean + step + scores @ fit.outer.matrix
        outer += std * draw_normal(e.within, rng.standard_normal(outer.shape))
        z = std * rng.standard_normal((tasks.n_tasks, R.shape[1]))

        def work(terms: TaskTerms) -> None:
            ids, v = terms.ids, outer[parent[terms.ids]]
            own, _ = terms.scores_and_squares(v)
            left = np.eye(R.shape[1]) - R.T @ terms.K @ R  # C - C K C = R left R'
            coefficients[ids] = v + own @ C + draw_normal(left, z[ids]) @ R.T

        tasks.map_terms(work, fit.inner)
    return PosteriorDraw(coefficients, s2 * tasks.levels)


def _draw_nested_noise(
    retained: RetainedFit, nested: NestedRetained, rng: np.random.Generator
) -> float:
    """A draw of s2 for nested groups."""
    tasks = retained.tasks
    posterior = nested_posterior(tasks, nested.parent, nested.fit, retained.canonical)

    def squares(terms: TaskTerms) -> float:
        return float(terms.scores_and_squares(posterior.mean[terms.ids])[1].sum())

    none = Covariance(np.zeros(tasks.p), np.zeros((tasks.p, 0)))
    total = sum(tasks.map_terms(squares, none))
    return drawn_noise(total, float(tasks.n.sum()) - posterior.degrees_of_freedom, rng)


def draw_noise(tasks: MixedTasks, fit: CovarianceFit, rng: np.random.Generator) -> float:
    """A draw of s2; one if the noise is known."""
    if tasks.working is not None:
        return 1.0
    squares, used = residual_squares(tasks, FittedEffects(fit))
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
