"""Draws of groups within groups against dense normal distributions."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from sharedspan.inputs.rows import validate_rows
from sharedspan.mixed_model.design_rows import standard_features
from sharedspan.mixed_model.draws import draw_coefficients
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.nested_fit import fit_nested
from sharedspan.mixed_model.nested_posterior import nested_posterior
from sharedspan.mixed_model.retained import NestedRetained, RetainedFit
from sharedspan.mixed_model.structures import Block, Coefficients
from sharedspan.mixed_model.terms import Scaling
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
    """A fit whose effects are measured at the origin of X."""
    units = Units(np.zeros(1), np.ones(1), 1.0)
    given = validate_rows(X, y, task)
    statistics = collect(given, units, True, "gram")
    scaling = replace(Scaling.of(statistics, True), centre=np.zeros(1))
    tasks = MixedTasks(statistics, scaling, None, None, restricted, Coefficients.plain(2))
    fit = fit_nested(tasks, parent, blocks, blocks, restricted=restricted)
    nested = NestedRetained(fit, parent)
    return RetainedFit(tasks, None, Canonical(units, None), given, restricted, None, nested)


@pytest.mark.parametrize("blocks", [SLOPE, LEVEL], ids=["slopes", "levels"])
def test_draws_have_the_joint_posterior_of_all_tasks(blocks, rng):
    X, y, task, parent = rows(rng)
    retained = fitted(X, y, task, parent, blocks)
    tasks, fit = retained.tasks, retained.nested.fit
    Z = standard_features(retained, X).reshape(32, 6, 2)
    G = np.zeros((64, 64))
    for t in range(32):
        G[2 * t : 2 * t + 2, 2 * t : 2 * t + 2] = Z[t].T @ Z[t]
    same = (parent[:, None] == parent).astype(float)
    prior = np.kron(same, fit.outer.matrix) + np.kron(np.eye(32), fit.inner.matrix)
    left, S = np.linalg.inv(np.eye(64) + prior @ G), np.tile(np.eye(2), (32, 1))
    covariance = left @ prior + left @ S @ np.linalg.inv(S.T @ G @ left @ S) @ S.T @ left.T
    mean = nested_posterior(tasks, parent, fit, retained.canonical).mean
    draws = [draw_coefficients(retained, rng) for _ in range(1500)]
    V = [((draw.coefficients - mean) / np.sqrt(draw.noise[0])).ravel() for draw in draws]
    scaled = np.array(V) / np.sqrt(np.diag(covariance))
    assert np.abs(scaled.mean(axis=0)).max() < 5 / np.sqrt(1500)
    std = np.sqrt(np.diag(covariance))
    expected = covariance / np.outer(std, std)
    assert_allclose(scaled.T @ scaled / 1500, expected, atol=5.5 * np.sqrt(2 / 1500))


@pytest.mark.parametrize("restricted", [True, False])
def test_the_noise_of_draws_has_the_mean_of_the_restricted_likelihood(restricted, rng):
    given = rows(rng)
    reml = fitted(*given, SLOPE).nested.fit.noise
    retained = fitted(*given, SLOPE, restricted)
    draws = [draw_coefficients(retained, rng).noise[0] for _ in range(1500)]
    assert_allclose(np.mean(1 / np.array(draws)) * reml, 1, atol=0.03)


def test_residuals_at_draws_are_those_of_the_noise(rng):
    p_values = []
    for _ in range(60):
        X, y, task, parent = rows(rng)
        retained = fitted(X, y, task, parent, SLOPE)
        scaling = retained.tasks.scaling
        V, noise = draw_coefficients(retained, rng)
        eta = np.einsum("ij,ij->i", standard_features(retained, X), V[task])
        z = ((y - scaling.y_centre) / scaling.y_scale - eta) / np.sqrt(noise[task])
        p_values.append([stats.kstest(z, "norm").pvalue, stats.chi2.sf(np.sum(z**2), len(z))])
    for each in np.array(p_values).T:
        assert stats.kstest(each, "uniform").pvalue > 0.005


def test_draws_depend_on_the_generator_alone(rng):
    retained = fitted(*rows(rng), LEVEL)
    one, same, other = (
        draw_coefficients(retained, np.random.default_rng(seed)).coefficients for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-3
