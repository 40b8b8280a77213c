"""One draw of all coefficients of groups within groups, the covariances being as fitted.

    v_s = b + u_r + u_s for a task s,     v_r = b + u_r for its outer group r

As in ``draws.py``, with the terms of ``nested.py``, the unknown numbers are drawn in turn:

    s2  = e'e / chi-square(N - h),
    b   ~ N(its estimate, s2 (precision + sum K_r)^-1),
    u_r ~ N(C_r e_r, s2 M_r),                     e_r = K_r (a_r - b) + h_r,
    u_s ~ N(C_s e_s, s2 (C_s - C_s K_s C_s)),     e_s = K_s (a_s - v_r) + h_s.
"""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model.draws import PosteriorDraw, draw_normal, drawn_noise
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.nested_fit import NestedFit
from sharedspan.mixed_model.nested_posterior import nested_posterior
from sharedspan.mixed_model.terms import Covariance, TaskTerms
from sharedspan.statistics.canonical import Canonical


def draw_nested_coefficients(
    tasks: MixedTasks,
    parent: np.ndarray,
    fit: NestedFit,
    canonical: Canonical,
    rng: np.random.Generator,
) -> PosteriorDraw:
    """One draw from the joint posterior of b, the effects of both levels and the noise variance.

    Parameters
    ----------
    tasks : MixedTasks
    parent : ndarray of int of shape (T,)
        Number of the outer group of each task, from zero.
    fit : NestedFit
    canonical : Canonical
    rng : numpy.random.Generator
    """
    e, C, R = fit.evidence, fit.inner.matrix, fit.inner.root
    parent, coefficients = np.asarray(parent, dtype=np.intp), np.empty((tasks.n_tasks, tasks.p))
    with one_blas_thread():
        s2 = _draw_noise(tasks, parent, fit, canonical, rng)
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


def _draw_noise(
    tasks: MixedTasks, parent: np.ndarray, fit: NestedFit, canonical: Canonical,
    rng: np.random.Generator,
) -> float:  # fmt: skip
    """A draw of s2."""
    posterior = nested_posterior(tasks, parent, fit, canonical)

    def squares(terms: TaskTerms) -> float:
        return float(terms.scores_and_squares(posterior.mean[terms.ids])[1].sum())

    none = Covariance(np.zeros(tasks.p), np.zeros((tasks.p, 0)))
    total = sum(tasks.map_terms(squares, none))
    return drawn_noise(total, float(tasks.n.sum()) - posterior.degrees_of_freedom, rng)
