"""Effects of tasks given all other parameters, as mixed-model software prints them."""

from __future__ import annotations

import numpy as np

from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.terms import Covariance, TaskTerms


def group_covariance(tasks: MixedTasks, covariance: Covariance, taus: np.ndarray) -> np.ndarray:
    """Covariance (p, p) over s2 of the variance groups of b, given its fixed effects."""
    precision = tasks.prior_precision(taus)
    if not precision.any():
        return np.zeros((tasks.p, tasks.p))
    return tasks.evaluate(covariance, precision, integrated=False).mean_covariance


def conditional_effects(
    tasks: MixedTasks, covariance: Covariance, b: np.ndarray, noise: float, to_user: np.ndarray,
    groups: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Conditional means u_t and standard deviations of effects in the user's units, both (T, p).

    u_t = C e_t has the covariance s2 (C - C K_t C) given b, C and s2; that of the variance groups
    of b, which are random too, moves it by C K_t.

    Parameters
    ----------
    tasks : MixedTasks
    covariance : Covariance
    b : ndarray of shape (p,)
    noise : float
        s2.
    to_user : ndarray of shape (p, p)
        The map from coefficients in standard units to those in the user's.
    groups : ndarray of shape (p, p)
        See ``group_covariance``.
    """
    C = covariance.matrix
    means, std = np.empty((tasks.n_tasks, tasks.p)), np.empty((tasks.n_tasks, tasks.p))
    half = to_user @ C

    def work(terms: TaskTerms) -> None:
        scores, _ = terms.scores_and_squares(b)
        means[terms.ids] = scores @ half.T
        spent = np.einsum("ip,tpq,iq->ti", half, terms.K, half, optimize=True)
        if groups.any():
            moved = half @ terms.K
            spent -= np.einsum("tip,pq,tiq->ti", moved, groups, moved, optimize=True)
        prior = np.einsum("ip,ip->i", half, to_user)
        std[terms.ids] = np.sqrt(np.maximum(noise * (prior - spent), 0.0))

    tasks.map_terms(work, covariance)
    return means, std
