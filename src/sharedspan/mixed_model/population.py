"""What all tasks of a mixed model share, and the posterior of a task's coefficients given it.

With C = RR', G_t = Z_t'Z_t and A_t = I + R'G_t R, the effects of a task have the covariance

    V_t = C - C K_t C = R A_t^-1 R',     u_t = C e_t = V_t (Z_t'r_t + G_t (a_t - b)),

over the noise. The first forms need K_t alone. They lose as many digits as n_t C is larger than
one, squared, so effects that are far larger than the noise take the second ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sharedspan.mixed_model.likelihood import (
    LARGEST_RATIO,
    MixedTasks,
    added,
    inverse_precision,
    refined_product,
)
from sharedspan.mixed_model.optimize import CovarianceFit
from sharedspan.mixed_model.outliers import FittedEffects, OutlierComponent
from sharedspan.mixed_model.terms import Covariance, TaskTerms

PRECISE_RATIO = 1e5  # of the squares of effects to the noise, beyond which C - CKC loses digits

Posteriors = tuple[np.ndarray, np.ndarray, np.ndarray]  # means, covariances, effective parameters


@dataclass(frozen=True)
class Population:
    """What all tasks share."""

    b: np.ndarray  # (p,)
    inverse: np.ndarray  # (p, p) covariance of b, over the noise
    flat: np.ndarray  # (p, p) the same without the prior on b, of coefficients that vary
    inner: np.ndarray  # (k, k) mean of L'K L
    prior_squares: float  # b' precision b


def estimate_population(tasks: MixedTasks, fit: CovarianceFit, off: np.ndarray) -> Population:
    """The population, from tasks that are outliers with probabilities ``off`` (T,)."""
    C, weight = fit.covariance, 1 - off
    precision = tasks.prior_precision(fit.taus)

    def sums(terms: TaskTerms) -> tuple[np.ndarray, ...]:
        w = weight[terms.ids]
        return np.tensordot(w, terms.K, 1), w @ terms.right_sides()

    total, right = added(tasks.map_terms(sums, C))
    proper = bool(np.isfinite(fit.tau))
    fixed = tasks.coefficients.fixed
    P = total + np.diag(precision)
    inverse, *_ = inverse_precision(P, proper, fixed)
    b = fit.evidence.mean
    if tasks.working is None:
        b = refined_product(inverse, P, right, fixed)
    varying = np.flatnonzero(tasks.coefficients.varying)
    inside, flat = np.ix_(varying, varying), np.zeros_like(total)
    flat[inside] = np.linalg.pinv(total[inside], hermitian=True)
    return Population(
        b=b,
        inverse=inverse,
        flat=flat,
        inner=C.loadings.T @ total @ C.loadings / float(weight.sum()),
        prior_squares=float(b @ (precision * b)),
    )


def task_posteriors(
    C: np.ndarray, K: np.ndarray, scores: np.ndarray, population: Population
) -> Posteriors:
    """Means (m, p), covariances over the noise (m, p, p), effective parameters (m,), given C."""
    at = np.flatnonzero(C.any(axis=1))
    if len(at) == len(C):
        # K is symmetric. Products with one matrix for all tasks are one product: many small ones
        # take far longer.
        KC = (K.reshape(-1, len(C)) @ C).reshape(K.shape)
        rest = np.ascontiguousarray(np.eye(len(C)) - KC.transpose(0, 2, 1)).reshape(-1, len(C))
        moved = (rest @ population.inverse).reshape(K.shape)
        covariance = (rest @ C).reshape(K.shape)
        covariance += moved @ rest.reshape(K.shape).transpose(0, 2, 1)
        used = np.einsum("tii->t", KC) + np.einsum("tij,tij->t", moved, K)
        return population.b + scores @ C, covariance, used
    # The same, if few coefficients vary and few rows of C are not zero.
    inner = C[np.ix_(at, at)]
    CK = inner @ K[:, at]
    moved = np.repeat(population.inverse[None], len(K), axis=0)
    moved[:, at] -= CK @ population.inverse
    covariance = moved.copy()
    covariance[:, :, at] -= moved @ CK.transpose(0, 2, 1)
    covariance[:, at[:, None], at] += inner - CK[:, :, at] @ inner
    used = np.einsum("tvv->t", CK[:, :, at]) + np.einsum("tij,tji->t", moved, K)
    return population.b + scores @ C, covariance, used


def precise_posteriors(C: Covariance, plain: TaskTerms, population: Population) -> Posteriors:
    """Posteriors from the terms at C = 0, whose K_t is G_t: no difference of large numbers."""
    R, G = C.root, plain.K
    A = np.eye(R.shape[1]) + R.T @ G @ R
    size = np.sqrt(np.einsum("tii->ti", A))
    values, axes = np.linalg.eigh(A / (size[:, :, None] * size[:, None, :]))
    # A is at least the identity, which rounding may hide.
    values = np.maximum(values, 1 / size.max(axis=1, keepdims=True) ** 2)
    half = (axes / np.sqrt(values)[:, None, :]).transpose(0, 2, 1) @ (R / size[:, None, :]).mT
    V = half.mT @ half
    gap = plain.anchor - population.b
    effects = np.einsum("tij,tj->ti", V, np.einsum("tij,tj->ti", G, gap) + plain.h)
    VG = V @ G
    rest = np.eye(len(R)) - VG
    moved = rest @ population.inverse
    shrunk = np.einsum("tii->t", VG)
    # The share of b is at least zero, and what rounding leaves of a large number if effects are far
    # larger than the noise; together they fit no more than all coefficients.
    used = shrunk + np.einsum("tij,tji->t", moved, G @ rest)
    return population.b + effects, V + moved @ rest.mT, np.clip(used, shrunk, float(len(R)))


def plain_covariance(tasks: MixedTasks, covariances: list[Covariance]) -> list[Covariance]:
    """C = 0, whose terms ``posteriors_at`` needs besides; nothing where K_t has the digits."""
    if tasks.working is not None:
        return []
    largest = max(float(np.diag(C.matrix).max(initial=0.0)) for C in covariances)
    if largest / tasks.largest_variance * LARGEST_RATIO < PRECISE_RATIO:
        return []
    return [Covariance(np.zeros(tasks.p), np.zeros((tasks.p, 0)))]


def posteriors_at(
    C: Covariance, terms: TaskTerms, plain: TaskTerms | None, population: Population
) -> Posteriors:
    """Posteriors of the tasks of some terms; ``plain`` are those at C = 0, if they are needed."""
    if plain is not None:
        return precise_posteriors(C, plain, population)
    return task_posteriors(C.matrix, terms.K, terms.scores_and_squares(population.b)[0], population)


def population_of(
    tasks: MixedTasks, effects: FittedEffects
) -> tuple[list[Covariance], np.ndarray, Population]:
    """The covariances that effects are shrunk by, outlier probabilities, and the population.

    b and its error are those of the covariance that fits best: by a wider one, tasks would say so
    little of b that its prior would shrink it.
    """
    fit, widening = effects.fit, effects.widening
    wide = replace(fit, covariance=fit.covariance.scaled(widening))
    covariances, off = outlier_components(tasks, wide, effects.outliers)
    population = estimate_population(tasks, fit, off)
    if widening != 1:
        population = replace(population, inner=estimate_population(tasks, wide, off).inner)
    return covariances, off, population


def outlier_components(
    tasks: MixedTasks, fit: CovarianceFit, outliers: OutlierComponent | None
) -> tuple[list[Covariance], np.ndarray]:
    """Covariances of regular tasks and of outliers, and the probabilities of outliers (T,)."""
    C, e = fit.covariance, fit.evidence
    if outliers is None:
        return [C], np.zeros(tasks.n_tasks)
    wide = outliers.covariance(C)
    regular, outlying = (tasks.task_values(c, e.mean, e.noise)[0] for c in (C, wide))
    return [C, wide], outliers.probabilities(regular, outlying)
