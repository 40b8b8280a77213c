"""The adaptive estimator: its likelihood against dense Gaussians, and what it adapts to."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

import sharedspan as ss
from sharedspan.inputs.rows import validate_rows
from sharedspan.mixed_model.likelihood import MixedTasks, Scaling
from sharedspan.mixed_model.posterior import task_posteriors
from sharedspan.statistics.scaling import Units
from sharedspan.statistics.sums import collect


def compressed(X, y, task, kind="gram", intercept=True, weight=None):
    tasks = validate_rows(X, y, task, weight)
    units = Units(np.zeros(X.shape[1]), np.ones(X.shape[1]), 1.0)
    statistics = collect(tasks, units, intercept, kind)
    return MixedTasks(statistics, Scaling.of(statistics, intercept))


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
    return np.diag(rng.uniform(0.05, 0.3, p)) + L @ L.T


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
        S[np.ix_(rows, rows)] += Z[rows] @ C @ Z[rows].T
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
        cross[:, rows] = e.noise * C @ Z[rows].T
        assert_allclose(C @ e.scores[t], cross @ inverse @ u, atol=1e-9)


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


@pytest.mark.parametrize("integrated", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_gradient_is_that_of_finite_differences(table, integrated, weighted):
    mixed = compressed(*table)
    p = mixed.p
    C, weight = some_covariance(p), np.linspace(0.2, 1.0, 7) if weighted else None
    precision = np.full(p, 2.0)
    precision[0] = 0.0
    e = mixed.evaluate(C, precision, weight, integrated)
    step = 1e-6
    for i in range(p):
        for j in range(i, p):
            E = np.zeros((p, p))
            E[i, j] = E[j, i] = step
            up, down = (
                mixed.evaluate(C + s * E, precision, weight, integrated).value for s in (1, -1)
            )
            slope = e.gradient[i, j] * (1 if i == j else 2)
            assert_allclose((up - down) / (2 * step), slope, rtol=1e-4, atol=1e-4)
    if integrated:
        proper = precision > 0
        up, down = (
            mixed.evaluate(C, np.where(proper, precision * np.exp(-s * step), 0), weight).value
            for s in (1, -1)
        )
        assert_allclose((up - down) / (2 * step), e.prior_gradient, rtol=1e-5)


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
    mean, covariance, used = task_posteriors(C, mixed.task_terms(C), e.mean, e.mean_covariance)
    Z, u, S = dense(mixed, X, y, task, C, precision, e.noise)
    prior = e.noise * np.diag(1 / precision)
    whole = S + Z @ prior @ Z.T
    trace = 0.0
    for t in range(7):
        rows = task == t
        cross = prior @ Z.T  # of b + u_t with all rows
        cross[:, rows] += e.noise * C @ Z[rows].T
        gain = cross @ np.linalg.inv(whole)
        assert_allclose(mean[t], gain @ u, atol=1e-9)
        expected = prior + e.noise * C - gain @ cross.T
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
    Z = post._standard(rows)
    unit = scaling.y_scale / post.canonical.units.y_scale
    for i, t in enumerate(labels):
        assert_allclose(std[i], unit * np.sqrt(Z[i] @ post.covariance[t] @ Z[i] + post.noise))
        level = scaling.y_centre / post.canonical.units.y_scale
        assert_allclose(mean[i], level + unit * Z[i] @ post.mean[t], rtol=1e-8)
    # A coefficient's deviation is that of the difference of two rows a unit apart.
    shifted = post._standard(np.eye(4)) - post._standard(np.zeros((4, 4)))
    for j in range(4):
        variance = shifted[j] @ post.covariance[2] @ shifted[j]
        assert_allclose(model.coef_std_[2, j], unit * np.sqrt(variance), rtol=1e-8)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("d", "T", "k", "N"), [(30, 40, 3, 100), (20, 20, 4, 100), (30, 30, 5, 40), (20, 40, 3, 15)]
)
def test_tasks_of_exact_rank_are_fitted_as_well_as_with_the_true_rank(d, T, k, N, seed):
    sim = ss.simulate(
        n_tasks=T, n_features=d, rank=k, n_samples=N, noise=0.5, condition_number=1.5,
        random_state=seed,
    )  # fmt: skip
    model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
    truth = ss.SharedSpanRegressor(rank=k, random_state=0).fit(sim.X, sim.y, task=sim.task)
    assert model.rank_ == k
    assert model.converged_
    ratio = ss.parameter_error(model.coef_, sim.coef) / ss.parameter_error(truth.coef_, sim.coef)
    assert ratio <= 1.05
    assert ss.subspace_distance(model.representation_, sim.representation) < 0.3


def tasks_with(coef, n, noise, seed):
    rng = np.random.default_rng(seed)
    T, d = coef.shape
    task = np.repeat(np.arange(T), n)
    X = rng.standard_normal((len(task), d))
    y = 1.0 + np.einsum("ij,ij->i", X, coef[task]) + noise * rng.standard_normal(len(task))
    return X, y, task


def expected_rmse(model, coef, noise):
    """Root mean squared error of new rows, features standard normal."""
    gap = model.coef_ - coef
    level = model.intercept_ - 1.0
    return np.sqrt(noise**2 + np.mean(np.sum(gap**2, axis=1) + level**2))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_unrelated_tasks_are_fitted_as_well_as_separately(seed):
    coef = np.random.default_rng(10 + seed).standard_normal((60, 15)) / np.sqrt(15)
    X, y, task = tasks_with(coef, 40, 0.5, seed)
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    separate = ss.PerTaskRegressor().fit(X, y, task=task)
    assert expected_rmse(model, coef, 0.5) <= 1.005 * expected_rmse(separate, coef, 0.5)
    assert model.rank_ == 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_identical_tasks_are_pooled(seed):
    v = np.random.default_rng(20 + seed).standard_normal(15) / np.sqrt(15)
    coef = np.tile(v, (40, 1))
    X, y, task = tasks_with(coef, 20, 0.5, seed)
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    pooled = ss.PooledRegressor().fit(X, y, task=task)
    assert expected_rmse(model, coef, 0.5) <= 1.005 * expected_rmse(pooled, coef, 0.5)
    errors = [ss.parameter_error(m.coef_, coef) for m in (model, pooled)]
    assert errors[0] <= 1.2 * errors[1]
    assert model.converged_
    assert np.ptp(model.coef_, axis=0).max() < 1e-6 * np.abs(v).max() or model.slopes_ != "zero"


def test_no_variance_between_tasks_gives_the_pooled_fit_finite_and_converged():
    rng = np.random.default_rng(5)
    task = np.repeat(np.arange(6), 20)
    table = rng.standard_normal((120, 5))
    # Task means are equal, closer than by chance.
    table -= np.array([table[task == t].mean(axis=0) for t in range(6)])[task]
    X = table[:, :4]
    y = X @ [1.0, -1.0, 0.5, 0.0] + 0.1 * table[:, 4]
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    assert model.converged_
    assert model.slopes_ == "zero"
    assert np.isfinite(model.coef_).all()
    assert_allclose(model.coef_, np.tile(model.mean_coef_, (6, 1)), rtol=1e-10)


@pytest.mark.parametrize("n", [15, 50])
def test_outlier_tasks_are_named_and_cost_the_others_little(n):
    ratios = []
    for seed in (0, 1, 401, 402):
        common = {"n_tasks": 60, "n_features": 20, "rank": 2, "n_samples": n, "noise": 0.5,
                  "condition_number": 1.5, "random_state": seed}  # fmt: skip
        clean, spoiled = ss.simulate(**common), ss.simulate(outliers=0.1, **common)
        inlier = ~spoiled.is_outlier
        model = ss.AdaptiveSpanRegressor().fit(spoiled.X, spoiled.y, task=spoiled.task)
        reference = ss.AdaptiveSpanRegressor().fit(clean.X, clean.y, task=clean.task)
        assert ((model.outlier_probability_ > 0.5) == spoiled.is_outlier).all()
        assert not (reference.outlier_probability_ > 0.5).any()
        error = np.sum((model.coef_ - spoiled.coef)[inlier] ** 2)
        ratios.append(error / np.sum((reference.coef_ - clean.coef)[inlier] ** 2))
    assert np.mean(ratios) <= 1.25


@pytest.mark.parametrize("method", ["evidence", "ml"])
@pytest.mark.parametrize("value", [0.0, 1.0, 3.0, -2.0, 0.1])
def test_constant_features_copies_and_targets_are_no_obstacle(method, value):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 4))
    X[:, 1], X[:, 3] = 5.0, X[:, 2]
    task = np.repeat(np.arange(10), 12)
    for y in (np.full(120, value), X[:, 0] + value * X[:, 2] + 0.1 * rng.standard_normal(120)):
        model = ss.AdaptiveSpanRegressor(method=method).fit(X, y, task=task)
        assert np.isfinite(model.coef_).all()
        assert np.abs(model.predict(X, task=task) - y).max() < 1.0


def test_a_row_per_task_is_pooled_with_honest_noise():
    rng = np.random.default_rng(701)
    X = rng.standard_normal((120, 4))
    y = X @ [1.0, -1.0, 0.5, 0.0] + 0.5 * rng.standard_normal(120)
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=np.arange(120))
    assert model.slopes_ == "zero"
    assert_allclose(np.sqrt(model.noise_variance_[0]), 0.5, rtol=0.2)


def test_features_and_responses_may_have_any_units(small):
    scale = np.array([1e-6, 1.0, 1e5, 3.0, 1e-3, 7.0, 1e2, 0.1])
    plain = ss.AdaptiveSpanRegressor().fit(small.X, small.y, task=small.task)
    other = ss.AdaptiveSpanRegressor().fit(
        small.X * scale + 3 * scale, 1e4 * small.y - 7.0, task=small.task
    )
    assert plain.rank_ == other.rank_
    assert_allclose(other.coef_ * scale / 1e4, plain.coef_, rtol=2e-3, atol=2e-4)
    assert_allclose(other.coef_std_ * scale / 1e4, plain.coef_std_, rtol=2e-2)


def test_the_order_of_rows_does_not_matter(small):
    order = np.random.default_rng(0).permutation(len(small.y))
    a = ss.AdaptiveSpanRegressor().fit(small.X, small.y, task=small.task)
    b = ss.AdaptiveSpanRegressor().fit(small.X[order], small.y[order], task=small.task[order])
    assert_allclose(a.coef_, b.coef_, rtol=1e-4, atol=1e-6)


def test_new_tasks_are_predicted_by_the_mean_with_a_wide_interval(small):
    model = ss.AdaptiveSpanRegressor(unseen="mean").fit(small.X, small.y, task=small.task)
    mean, std = model.predict(small.X[:5], task=["new"] * 5, return_std=True)
    assert_allclose(mean, small.X[:5] @ model.mean_coef_ + model.mean_intercept_)
    _, known = model.predict(small.X[:5], task=small.task[:5], return_std=True)
    assert (std > known).all()


@pytest.mark.parametrize("n", [10, 40])
def test_intervals_cover_what_they_promise(n):
    inside, predicted = [], []
    for seed in range(12):
        sim = ss.simulate(n_tasks=40, n_features=20, rank=2, n_samples=n, noise=0.5,
                          condition_number=1.5, random_state=100 + seed)  # fmt: skip
        model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
        low, high = model.coef_interval()
        inside.append(np.mean((low <= sim.coef) & (sim.coef <= high)))
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((400, 20))
        task = rng.integers(0, 40, 400)
        y = np.einsum("ij,ij->i", X, sim.coef[task]) + 0.5 * rng.standard_normal(400)
        mean, std = model.predict(X, task=task, return_std=True)
        predicted.append(np.mean(np.abs(y - mean) <= 1.96 * std))
    assert (0.89 if n == 10 else 0.92) <= np.mean(inside) <= 0.985
    assert (0.9 if n == 10 else 0.93) <= np.mean(predicted) <= 0.97


def test_maximum_likelihood_agrees_with_mixed_model_software():
    sm = pytest.importorskip("statsmodels.api")
    from statsmodels.regression.mixed_linear_model import MixedLMParams

    rng = np.random.default_rng(2)
    task = np.repeat(np.arange(30), rng.integers(8, 30, 30))
    X = rng.standard_normal((len(task), 3))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    coef = [1.0, -1.0, 0.5] + rng.standard_normal((30, 3)) * [0.7, 0.0, 0.3]
    level = rng.standard_normal(30)
    y = level[task] + np.einsum("ij,ij->i", X, coef[task]) + 0.6 * rng.standard_normal(len(task))
    design = sm.add_constant(X)
    for slopes, random in (("none", design[:, :1]), ("diagonal", design)):
        model = ss.AdaptiveSpanRegressor(rank=0, slopes=slopes, method="ml", outliers=False)
        model.fit(X, y, task=task)
        p = random.shape[1]
        free = MixedLMParams.from_components(np.ones(4), cov_re=np.eye(p))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it complains of variances at zero
            peer = sm.MixedLM(y, design, groups=task, exog_re=random).fit(
                reml=False, free=free, method="cg"
            )
        assert model.log_likelihood_ >= peer.llf - 1e-6 * abs(peer.llf)
        ours = np.append(model.intercept_std_, model.slope_std_)[:p] ** 2
        theirs = np.diag(peer.cov_re)
        large = theirs > 0.01 * peer.scale
        assert large.any()
        assert_allclose(ours[large], theirs[large], rtol=1e-3)
        assert_allclose(model.noise_variance_[0], peer.scale, rtol=1e-3)


@pytest.mark.parametrize(
    "bad",
    [{"rank": -1}, {"rank": True}, {"rank": "many"}, {"slopes": "some"}, {"method": "reml"},
     {"outliers": 1}, {"whiten": "yes"}, {"rank": 99}],
    ids=str,
)  # fmt: skip
def test_bad_parameters_are_named(bad, small):
    with pytest.raises((ValueError, TypeError), match=next(iter(bad))):
        ss.AdaptiveSpanRegressor(**bad).fit(small.X, small.y, task=small.task)


def test_a_new_task_with_few_rows_starts_from_what_the_others_taught():
    sim = ss.simulate(n_tasks=61, n_features=20, rank=2, n_samples=40, noise=0.5, random_state=3)
    known = sim.task < 60
    model = ss.AdaptiveSpanRegressor().fit(sim.X[known], sim.y[known], task=sim.task[known])
    few = np.flatnonzero(~known)[:8]
    new = ss.NewTaskRegressor.from_model(model).fit(sim.X[few], sim.y[few], task=sim.task[few])
    alone = ss.PerTaskRegressor().fit(sim.X[few], sim.y[few], task=sim.task[few])
    errors = [np.sum((m.coef_[0] - sim.coef[60]) ** 2) for m in (new, alone)]
    assert errors[0] < 0.3 * errors[1]
    low, high = new.coef_interval()
    assert np.mean((low <= sim.coef[60]) & (sim.coef[60] <= high)) > 0.8
