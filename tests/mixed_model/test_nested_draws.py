"""Draws of groups within groups against dense normal distributions."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from sharedspan.inputs.rows import validate_rows
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.nested_draws import draw_nested_coefficients
from sharedspan.mixed_model.nested_fit import fit_nested
from sharedspan.mixed_model.nested_posterior import nested_posterior
from sharedspan.mixed_model.structures import Block, Coefficients
from sharedspan.mixed_model.terms import Covariance, Scaling
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.task_statistics import Units, collect

LEVEL, SLOPE = (Block("full", (0,)),), (Block("full", (0, 1)),)


def rows(rng, *, outer=8, per=4, n=6):
    task = np.repeat(np.arange(outer * per), n)
    parent = np.repeat(np.arange(outer), per)
    x = rng.standard_normal(len(task))
    u, v = 0.7 * rng.standard_normal((outer, 2)), 0.5 * rng.standard_normal((outer * per, 2))
    v += u[parent]
    y = 1 + 0.5 * x + v[task, 0] + v[task, 1] * x + rng.standard_normal(len(task))
    return x[:, None], y, task, parent


def fitted(X, y, task, parent, blocks, restricted=True):
    """Tasks, fit and canonical map; effects are measured at the origin of X."""
    units = Units(np.zeros(1), np.ones(1), 1.0)
    statistics = collect(validate_rows(X, y, task), units, True, "gram")
    scaling = replace(Scaling.of(statistics, True), centre=np.zeros(1))
    tasks = MixedTasks(statistics, scaling, None, None, restricted, Coefficients.plain(2))
    fit = fit_nested(tasks, parent, blocks, blocks, restricted=restricted)
    return tasks, fit, Canonical(units, None)


def standard_design(tasks, X):
    return tasks.scaling.to_standard(X, True)


@pytest.mark.parametrize("blocks", [SLOPE, LEVEL], ids=["slopes", "levels"])
def test_draws_have_the_joint_posterior_of_all_tasks(blocks, rng):
    X, y, task, parent = rows(rng)
    tasks, fit, canonical = fitted(X, y, task, parent, blocks)
    Z = standard_design(tasks, X).reshape(32, 6, 2)
    T, p = 32, 2
    G = np.zeros((T * p, T * p))
    for t in range(T):
        G[t * p : (t + 1) * p, t * p : (t + 1) * p] = Z[t].T @ Z[t]
    same = (parent[:, None] == parent).astype(float)
    prior = np.kron(same, fit.outer.matrix) + np.kron(np.eye(T), fit.inner.matrix)
    left, S = np.linalg.inv(np.eye(T * p) + prior @ G), np.tile(np.eye(p), (T, 1))
    covariance = left @ prior + left @ S @ np.linalg.inv(S.T @ G @ left @ S) @ S.T @ left.T
    mean = nested_posterior(tasks, parent, fit, canonical).mean
    draws = [draw_nested_coefficients(tasks, parent, fit, canonical, rng) for _ in range(1500)]
    V = np.array(
        [((draw.coefficients - mean) / np.sqrt(draw.noise[0])).ravel() for draw in draws]
    )
    std = np.sqrt(np.diag(covariance))
    assert np.abs(V.mean(axis=0) / std).max() < 5 / np.sqrt(1500)
    correlation = V.T @ V / 1500 / np.outer(std, std)
    assert_allclose(correlation, covariance / np.outer(std, std), atol=5.5 * np.sqrt(2 / 1500))


@pytest.mark.parametrize("restricted", [True, False])
def test_the_noise_of_draws_has_the_mean_of_the_restricted_likelihood(restricted, rng):
    X, y, task, parent = rows(rng)
    reml = fitted(X, y, task, parent, SLOPE)[1].noise
    given = fitted(X, y, task, parent, SLOPE, restricted)
    options = parent, *given[1:]
    draws = [draw_nested_coefficients(given[0], *options, rng).noise[0] for _ in range(1500)]
    assert_allclose(np.mean(1 / np.array(draws)) * reml, 1, atol=0.03)


def test_residuals_at_draws_are_those_of_the_noise(rng):
    p_values = []
    for _ in range(60):
        X, y, task, parent = rows(rng)
        tasks, fit, canonical = fitted(X, y, task, parent, SLOPE)
        V, noise = draw_nested_coefficients(tasks, parent, fit, canonical, rng)
        eta = np.einsum("ij,ij->i", standard_design(tasks, X), V[task])
        z = ((y - tasks.scaling.y_centre) / tasks.scaling.y_scale - eta) / np.sqrt(noise[task])
        p_values.append([stats.kstest(z, "norm").pvalue, stats.chi2.sf(np.sum(z**2), len(z))])
    for each in np.array(p_values).T:
        assert stats.kstest(each, "uniform").pvalue > 0.005


def test_draws_of_one_outer_level_without_variance_are_those_of_one_level(rng):
    X, y, task, parent = rows(rng)
    tasks, fit, canonical = fitted(X, y, task, parent, LEVEL)
    none = Covariance(np.zeros(2), np.zeros((2, 0)))
    nested = fit.evidence
    assert nested.outer.matrix.any()
    assert not none.matrix.any()
    one, other = (
        draw_nested_coefficients(tasks, parent, fit, canonical, np.random.default_rng(i))
        for i in (0, 0)
    )
    assert_allclose(one.coefficients, other.coefficients, rtol=0, atol=0)
