"""The likelihood and the posterior of the mixed model against dense Gaussians."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import null_space
from scipy.stats import multivariate_normal

import sharedspan as ss
from sharedspan.inputs.rows import validate_rows
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.population import Population, task_posteriors
from sharedspan.mixed_model.structures import Coefficients
from sharedspan.mixed_model.terms import Covariance, Scaling
from sharedspan.statistics.task_statistics import Units, collect


def compressed(X, y, task, kind="gram", intercept=True, weight=None, **options):
    tasks = validate_rows(X, y, task, weight)
    units = Units(np.zeros(X.shape[1]), np.ones(X.shape[1]), 1.0)
    statistics = collect(tasks, units, intercept, kind)
    return MixedTasks(statistics, Scaling.of(statistics, intercept), **options)


@pytest.fixture
def table():
    """Seven tasks of unequal sizes, some smaller than the number of features."""
    rng = np.random.default_rng(0)
    sizes = np.array([2, 3, 5, 9, 12, 20, 4])
    task = np.repeat(np.arange(7), sizes)
    X = rng.standard_normal((len(task), 4)) * [1, 2, 0.5, 3] + 1.5
    coef = 0.5 * rng.standard_normal((7, 4))
    y = 2 + task * 0.3 + np.einsum("ij,ij->i", X, coef[task]) + 0.7 * rng.standard_normal(len(task))
    return X, y, task


def some_covariance(p, seed=1):
    rng = np.random.default_rng(seed)
    L = 0.4 * rng.standard_normal((p, 2))
    return Covariance(rng.uniform(0.05, 0.3, p), L)


def unrestricted(C):
    """Any positive definite matrix as a Covariance."""
    return Covariance(np.zeros(len(C)), np.linalg.cholesky(C))


def scores_of(mixed, C, b, noise):
    return mixed.task_values(C, b, noise)[1]


def dense(mixed, X, y, task, C, precision, noise, intercept=True):
    """All rows as one Gaussian vector in standard units: design, mean-free covariance."""
    scaling = mixed.scaling
    Z = (X - scaling.centre) / scaling.scale
    if intercept:
        Z = np.column_stack([np.ones(len(Z)), Z])
    u = (y - scaling.y_centre) / scaling.y_scale
    S = np.eye(len(u))
    for t in np.unique(task):
        rows = np.flatnonzero(task == t)
        S[np.ix_(rows, rows)] += Z[rows] @ C.matrix @ Z[rows].T
    return Z, u, noise * S


@pytest.mark.parametrize("kind", ["gram", "rows"])
@pytest.mark.parametrize("intercept", [True, False])
def test_the_marginal_likelihood_is_that_of_a_dense_gaussian(table, kind, intercept):
    X, y, task = table
    mixed = compressed(X, y, task, kind, intercept)
    p = mixed.p
    C, precision = some_covariance(p), np.full(p, 2.0)
    e = mixed.evaluate(C, precision)
    Z, u, S = dense(mixed, X, y, task, C, precision, e.noise, intercept)
    whole = S + e.noise * Z @ np.diag(1 / precision) @ Z.T
    assert_allclose(e.value, multivariate_normal(cov=whole).logpdf(u), rtol=1e-9)
    # The noise is at its best value: any other makes the rows less likely.
    for factor in (0.98, 1.02):
        assert multivariate_normal(cov=factor * whole).logpdf(u) < e.value
    inverse = np.linalg.inv(whole)
    b = np.diag(e.noise / precision) @ Z.T @ inverse @ u
    assert_allclose(e.mean, b, atol=1e-9)
    for t in range(7):
        rows = task == t
        cross = np.zeros((p, len(u)))
        cross[:, rows] = e.noise * C.matrix @ Z[rows].T
        assert_allclose(C.matrix @ e.scores[t], cross @ inverse @ u, atol=1e-9)


def test_with_a_flat_prior_it_is_the_likelihood_at_generalised_least_squares(table):
    X, y, task = table
    mixed = compressed(X, y, task)
    C = some_covariance(mixed.p)
    e = mixed.evaluate(C, np.zeros(mixed.p), integrated=False)
    Z, u, S = dense(mixed, X, y, task, C, None, e.noise)
    inverse = np.linalg.inv(S)
    b = np.linalg.solve(Z.T @ inverse @ Z, Z.T @ inverse @ u)
    assert_allclose(e.mean, b, rtol=1e-8)
    assert_allclose(e.value, multivariate_normal(Z @ b, S).logpdf(u), rtol=1e-9)
    assert_allclose(e.task_values.sum(), e.value, rtol=1e-9)


@pytest.mark.parametrize("kind", ["gram", "rows"])
def test_the_restricted_likelihood_is_that_of_contrasts_free_of_b(table, kind):
    X, y, task = table
    mixed = compressed(X, y, task, kind, restricted=True)
    C, p = some_covariance(mixed.p), mixed.p
    e = mixed.evaluate(C, np.zeros(p))
    Z, u, S = dense(mixed, X, y, task, C, None, e.noise)
    A = null_space(Z.T)  # orthonormal contrasts
    likelihood = multivariate_normal(cov=A.T @ S @ A).logpdf(A.T @ u)
    assert_allclose(e.value, likelihood - 0.5 * np.linalg.slogdet(Z.T @ Z)[1], rtol=1e-9)
    for factor in (0.98, 1.02):
        changed = multivariate_normal(cov=factor * (A.T @ S @ A)).logpdf(A.T @ u)
        assert changed < likelihood
    step, E = 1e-6, np.eye(p)
    up, down = (
        mixed.evaluate(unrestricted(C.matrix + s * step * E), np.zeros(p)).value for s in (1, -1)
    )
    assert_allclose((up - down) / (2 * step), np.trace(e.gradient), rtol=1e-4)


@pytest.mark.parametrize("integrated", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("taus", [(0.5, 0.5), (0.2, 3.0), (np.inf, 0.4), (np.inf, np.inf)])
def test_the_gradient_is_that_of_finite_differences(table, integrated, weighted, taus):
    """Features 2 and 3 are a group with a prior variance of its own."""
    coefficients = replace(Coefficients.plain(5), groups=np.array([-1, -1, -1, 0, 0]))
    mixed = compressed(*table, coefficients=coefficients)
    p, taus = mixed.p, np.array(taus)
    C, weight = some_covariance(p), np.linspace(0.2, 1.0, 7) if weighted else None
    e = mixed.evaluate(C, mixed.prior_precision(taus), weight, integrated)
    step = 1e-6

    def slope(covariances, priors):
        up, down = (
            mixed.evaluate(C, mixed.prior_precision(taus), weight, integrated).value
            for C, taus in zip(covariances, priors, strict=True)
        )
        return (up - down) / (2 * step)

    for i in range(p):
        for j in range(i, p):
            E = np.zeros((p, p))
            E[i, j] = E[j, i] = step
            moved = [unrestricted(C.matrix + s * E) for s in (1, -1)]
            expected = e.gradient[i, j] * (1 if i == j else 2)
            assert_allclose(slope(moved, [taus, taus]), expected, rtol=1e-4, atol=1e-4)
    for i in np.flatnonzero(np.isfinite(taus)):
        moved = [taus * np.exp(s * step * (np.arange(2) == i)) for s in (1, -1)]
        assert_allclose(slope([C, C], moved), e.prior_gradient[i], rtol=1e-4, atol=1e-6)


def test_a_group_under_maximum_likelihood_is_a_random_effect_of_all_tasks(table):
    X, y, task = table
    coefficients = replace(Coefficients.plain(5), groups=np.array([-1, -1, -1, 0, 0]))
    for restricted in (False, True):
        mixed = compressed(X, y, task, coefficients=coefficients, restricted=restricted)
        C, tau = some_covariance(mixed.p), 0.3
        e = mixed.evaluate(C, mixed.prior_precision(np.array([np.inf, tau])), None, restricted)
        Z, u, S = dense(mixed, X, y, task, C, None, e.noise)
        S += e.noise * tau * Z[:, 3:] @ Z[:, 3:].T
        flat, inverse = Z[:, :3], np.linalg.inv(S)
        b = np.linalg.solve(flat.T @ inverse @ flat, flat.T @ inverse @ u)
        value = multivariate_normal(flat @ b, S).logpdf(u)
        if restricted:
            value += 1.5 * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(flat.T @ inverse @ flat)[1]
        assert_allclose(e.value, value, rtol=1e-9)
        smooth = e.noise * tau * Z[:, 3:].T @ inverse @ (u - flat @ b)
        assert_allclose(e.mean, np.append(b, smooth), atol=1e-9)


def test_weights_are_repetitions_and_blocks_do_not_matter(table):
    X, y, task = table
    counts = np.arange(len(y)) % 3 + 1
    once = compressed(X, y, task, weight=counts)
    again = compressed(*(np.repeat(a, counts, axis=0) for a in table))
    C = some_covariance(once.p)
    assert_allclose(
        once.evaluate(C, np.zeros(5)).value, again.evaluate(C, np.zeros(5)).value, rtol=1e-10
    )


def test_posteriors_are_those_of_dense_conditioning(table):
    X, y, task = table
    mixed = compressed(X, y, task)
    C, precision = some_covariance(5), np.full(5, 2.0)
    e = mixed.evaluate(C, precision)
    population = Population(e.mean, e.mean_covariance, e.mean_covariance, np.eye(2), 0.0)
    (parts,) = mixed.map_terms(
        lambda terms: task_posteriors(
            C.matrix, terms.K, terms.scores_and_squares(e.mean)[0], population
        ),
        C,
    )
    mean, covariance, used = parts
    Z, u, S = dense(mixed, X, y, task, C, precision, e.noise)
    prior = e.noise * np.diag(1 / precision)
    whole = S + Z @ prior @ Z.T
    trace = 0.0
    for t in range(7):
        rows = task == t
        cross = prior @ Z.T  # of b + u_t with all rows
        cross[:, rows] += e.noise * C.matrix @ Z[rows].T
        gain = cross @ np.linalg.inv(whole)
        assert_allclose(mean[t], gain @ u, atol=1e-9)
        expected = prior + e.noise * C.matrix - gain @ cross.T
        assert_allclose(e.noise * covariance[t], expected, atol=1e-9)
        trace += np.trace((Z[rows] @ gain)[:, rows])
    assert_allclose(used.sum(), trace, rtol=1e-9)


def test_deviations_of_predictions_are_those_of_the_posterior(table):
    X, y, task = table
    model = ss.AdaptiveSpanRegressor(slopes="diagonal", rank=1, outliers=False)
    model.fit(X, y, task=task)
    post, scaling = model._uncertainty_, model._uncertainty_.scaling
    labels = np.array([0, 1, 2, 6, 5, 3])
    rows = np.random.default_rng(3).standard_normal((6, 4)) + 1.5
    mean, std = model.predict(rows, task=labels, return_std=True)
    Z = post.standard_rows(rows)
    unit = scaling.y_scale / post.canonical.units.y_scale
    (i, j), covariance = np.triu_indices(5), np.empty((7, 5, 5))
    covariance[:, i, j] = covariance[:, j, i] = post.packed
    for i, t in enumerate(labels):
        assert_allclose(std[i], unit * np.sqrt(Z[i] @ covariance[t] @ Z[i] + post.noise))
        level = scaling.y_centre / post.canonical.units.y_scale
        assert_allclose(mean[i], level + unit * Z[i] @ post.mean[t], rtol=1e-8)
    # A coefficient's deviation is that of the difference of two rows a unit apart.
    shifted = post.standard_rows(np.eye(4)) - post.standard_rows(np.zeros((4, 4)))
    for j in range(4):
        variance = shifted[j] @ covariance[2] @ shifted[j]
        assert_allclose(model.coef_std_[2, j], unit * np.sqrt(variance), rtol=1e-6)


def test_the_information_is_half_the_trace_of_products(table):
    mixed = compressed(*table)
    p, k = mixed.p, 2
    C, w = some_covariance(p), np.linspace(0.2, 1.0, 7)
    sums = mixed.evaluate(C, np.full(p, 2.0), w, information=True).information
    (K,) = mixed.map_terms(lambda terms: terms.K, C)
    L = C.loadings

    def information(first, second):
        return 0.5 * sum(w[t] * np.trace(K[t] @ first @ K[t] @ second) for t in range(7))

    def by_loading(i, a):
        E = np.zeros((p, k))
        E[i, a] = 1.0
        return E @ L.T + L @ E.T

    def by_variance(i):
        return np.diag(np.eye(p)[i])

    for i in range(p):
        for j in range(p):
            expected = information(by_variance(i), by_variance(j))
            assert_allclose(0.5 * sums.squared[i, j], expected, rtol=1e-9)
            for a in range(k):
                expected = information(by_variance(i), by_loading(j, a))
                assert_allclose(sums.crossed[i, j, a], expected, rtol=1e-9, atol=1e-12)
                for b in range(k):
                    expected = information(by_loading(i, a), by_loading(j, b))
                    got = sums.loadings[i * k + a, j * k + b]
                    assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


def test_noise_levels_are_weights_of_all_rows_of_a_task(table):
    X, y, task = table
    levels = np.linspace(0.5, 2.0, 7)
    mixed, weighted = (
        compressed(X, y, task),
        compressed(X, y, task, weight=1 / levels[task]),
    )
    mixed = MixedTasks(mixed.statistics, weighted.scaling, levels)
    C = some_covariance(5)
    (first,), (second,) = (
        tasks.map_terms(lambda terms: (terms.K, terms.right_sides()), C)
        for tasks in (mixed, weighted)
    )
    for a, b in zip(first, second, strict=True):
        assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_features_that_are_constant_in_a_task_cost_no_digits():
    """Weighted means round, so such a feature has a variance of rounding errors in its task."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(30), 40)
    X = np.column_stack([rng.standard_normal(1200), rng.standard_normal((30, 2))[task]])
    y = X @ [1.0, 0.5, -0.5] + rng.standard_normal(1200)
    rows = validate_rows(X, y, task, rng.uniform(0.5, 1.5, 1200))
    values = []
    for kind in ("gram", "rows"):
        statistics = collect(rows, Units(np.zeros(3), np.ones(3), 1.0), True, kind)
        tasks = MixedTasks(statistics, Scaling.of(statistics, True))
        C = Covariance(np.full(4, 0.1), np.zeros((4, 0)))
        values.append(tasks.evaluate(C, np.full(4, 0.01)).value)
        if kind == "gram":
            assert np.abs(statistics.anchor).max() < 10
    assert_allclose(values[0], values[1], rtol=1e-11)
