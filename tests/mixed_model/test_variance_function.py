"""Noise whose variance is a function of the fitted value."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.inputs.rows import validate_rows
from sharedspan.mixed_model.fitted_noise import row_noise_of
from sharedspan.mixed_model.held_out import HeldOutRows
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.optimize import CovarianceOptimizer
from sharedspan.mixed_model.search import SelectedModel
from sharedspan.mixed_model.terms import Scaling
from sharedspan.mixed_model.variance_function import VarianceFunction, fit_exponent
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.task_statistics import Units, collect

SEEDS = range(4)


def simulated(seed, exponent, T=60, n=25, d=3, std=0.8):
    """X, y, task, coefficients and a function of X and task that draws new responses."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(T), n)
    X = rng.gamma(2.0, 1.0, (T * n, d))
    coef = [1.0, 0.5, 0.8] + 0.25 * rng.standard_normal((T, d))
    level = 3 + rng.standard_normal(T)
    eta = level[task] + np.einsum("ij,ij->i", X, coef[task])
    low, high = np.quantile(eta, [0.01, 0.99])
    variance = VarianceFunction(exponent, low, high, std**2)

    def respond(X, task):
        eta = level[task] + np.einsum("ij,ij->i", X, coef[task])
        return eta + np.sqrt(variance(eta)) * rng.standard_normal(len(eta))

    return X, respond(X, task), task, coef, respond


def fitted(noise, X, y, task, **options):
    return ss.AdaptiveSpanRegressor(noise=noise, **options).fit(X, y, task=task)


def function_of(model):
    return model._uncertainty_.variance_function


@pytest.mark.parametrize("exponent", [-1.5, 0.0, 2.0])
def test_the_exponent_maximises_the_likelihood_of_the_squares(exponent):
    rng = np.random.default_rng(0)
    s = np.log(0.05 + rng.random(2000))
    squares = 3 * np.exp(exponent * s) * rng.standard_normal(2000) ** 2
    weight = rng.integers(1, 4, 2000).astype(float)

    def value(c):
        s2 = weight @ (squares * np.exp(-c * s)) / weight.sum()
        terms = c * s + np.log(s2) + squares * np.exp(-c * s) / s2
        return -0.5 * weight @ terms

    c, gain = fit_exponent(squares, s, weight)
    assert_allclose(gain, value(c) - value(0.0), rtol=1e-8, atol=1e-8)
    assert value(c) >= max(value(c - 1e-3), value(c + 1e-3))
    assert abs(c - exponent) < 4 * np.sqrt(2 / (2000 * s.var()))
    again = fit_exponent(np.repeat(squares, weight.astype(int)), np.repeat(s, weight.astype(int)),
                         np.ones(int(weight.sum())))  # fmt: skip
    assert_allclose(again, (c, gain), rtol=1e-8)


def test_errors_that_say_nothing_leave_the_variance_constant():
    s = np.linspace(-3.0, 0.0, 50)
    assert fit_exponent(np.zeros(50), s, np.ones(50)) == (0.0, 0.0)
    assert fit_exponent(np.ones(50), np.zeros(50), np.ones(50)) == (0.0, 0.0)
    assert fit_exponent(np.exp(30 * s), s, np.ones(50))[0] == 10.0
    assert fit_exponent(np.exp(-30 * s), s, np.ones(50))[0] == -10.0


@pytest.mark.parametrize("exponent", [1.0, 2.0])
def test_the_exponent_is_recovered(exponent):
    estimates = []
    for seed in SEEDS:
        X, y, task, _, _ = simulated(seed, exponent)
        model = fitted("fitted", X, y, task)
        assert model.noise_ == "fitted"
        estimates.append(function_of(model).exponent)
    error = np.sqrt(2 / (1500 * 0.4))  # the logarithms have a variance of about 0.4
    assert np.abs(np.subtract(estimates, exponent)).max() < 4 * error
    assert abs(np.mean(estimates) - exponent) < 2.5 * error


def test_coefficients_are_better_than_with_one_noise_level():
    ratios = []
    for seed in SEEDS:
        X, y, task, coef, _ = simulated(seed, 2.0)
        errors = [
            ss.parameter_error(fitted(noise, X, y, task).coef_, coef)
            for noise in ("fitted", "shared")
        ]
        ratios.append(errors[0] / errors[1])
    assert np.mean(ratios) < 0.9
    assert max(ratios) < 1.0


def test_intervals_cover_in_the_lowest_and_in_the_highest_third():
    cover = {"fitted": [], "shared": []}
    for seed in SEEDS:
        X, y, task, _, respond = simulated(seed, 2.0)
        rng = np.random.default_rng(100 + seed)
        new, of = rng.gamma(2.0, 1.0, (6000, 3)), rng.integers(0, 60, 6000)
        responses = respond(new, of)
        for noise, covered in cover.items():
            mean, std = fitted(noise, X, y, task).predict(new, task=of, return_std=True)
            inside = np.abs(responses - mean) <= 1.96 * std
            thirds = np.array_split(np.argsort(mean), 3)
            covered.append([inside[third].mean() for third in thirds])
    shared, own = np.mean(cover["shared"], axis=0), np.mean(cover["fitted"], axis=0)
    assert 0.93 <= own[0] <= 0.97
    assert 0.93 <= own[2] <= 0.97
    assert shared[0] > 0.97
    assert shared[2] < 0.93


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_chosen_if_the_noise_grows_and_only_then(seed):
    X, y, task, _, _ = simulated(seed, 2.0)
    assert fitted("auto", X, y, task).noise_ == "fitted"
    X, y, task, _, _ = simulated(seed, 0.0)
    model = fitted("auto", X, y, task)
    assert model.noise_ == "shared"
    assert function_of(model) is None
    assert np.ptp(model.noise_variance_) == 0


def test_units_and_the_order_of_rows_leave_the_exponent_as_it_is():
    X, y, task, _, _ = simulated(0, 1.5)
    order = np.random.default_rng(0).permutation(len(y))
    model = fitted("fitted", X, y, task)
    other = fitted("fitted", 7 * X[order] - 3, 1e3 * y[order] + 5e4, task[order])
    c = function_of(model).exponent
    assert_allclose(function_of(other).exponent, c, rtol=1e-4)
    assert_allclose(other.noise_variance_, 1e6 * model.noise_variance_, rtol=1e-4)
    mean, std = model.predict(X, task=task, return_std=True)
    shifted, scaled = other.predict(7 * X - 3, task=task, return_std=True)
    assert_allclose(shifted, 1e3 * mean + 5e4, rtol=1e-5)
    assert_allclose(scaled, 1e3 * std, rtol=1e-3)


def test_weights_count_as_repetitions():
    X, y, task, _, _ = simulated(1, 2.0)
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    options = {"rank": 0, "slopes": "diagonal", "outliers": False, "noise": "fitted"}
    weighted = ss.AdaptiveSpanRegressor(**options).fit(X, y, task=task, sample_weight=weight)
    repeated = fitted(X=X.repeat(weight, axis=0), y=y.repeat(weight), task=task.repeat(weight),
                      **options)  # fmt: skip
    c = function_of(repeated).exponent
    assert_allclose(function_of(weighted).exponent, c, rtol=1e-5)
    assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-4, atol=1e-5)
    assert_allclose(weighted.noise_variance_, repeated.noise_variance_, rtol=1e-4)
    assert_allclose(weighted.log_likelihood_, repeated.log_likelihood_, rtol=1e-6)


@pytest.fixture(params=["gram", "rows"])
def weighted(request):
    """Held out rows, a fit with known noise variances of the rows, and all rows as one vector."""
    rng = np.random.default_rng(0)
    task = rng.permutation(np.repeat(np.arange(6), [4, 5, 7, 3, 6, 8]))
    X = rng.standard_normal((len(task), 3)) * [1, 2, 0.5] + 1
    y = X @ [1.0, -1.0, 0.5] + 0.4 * task + rng.standard_normal(len(task))
    rows = validate_rows(X, y, task, rng.integers(0, 3, len(task)))
    canonical = Canonical(Units(np.zeros(3), np.ones(3), 1.0), 2 * np.eye(3))
    statistics = collect(rows, canonical.units, True, request.param)
    statistics.transform(canonical.P)
    tasks = MixedTasks(statistics, Scaling.of(statistics, True))
    model = SelectedModel(CovarianceOptimizer(tasks).fit("diagonal"), tasks=tasks, flat=False)
    function = VarianceFunction(1.5, -1.0, 1.0, 1.0)
    held_out = HeldOutRows(rows, np.arange(6), canonical, tasks)
    noise = row_noise_of(model, function, tasks, held_out)
    fit = CovarianceOptimizer(noise.tasks).fit("diagonal")
    model = SelectedModel(fit, tasks=noise.tasks, flat=False, row_noise=noise)
    held_out = HeldOutRows(rows, np.arange(6), canonical, noise.tasks)
    Z, owner = held_out.Z, held_out.owner
    S = np.diag(noise.relative / held_out.weight)
    S += (owner[:, None] == owner) * (Z @ fit.covariance.matrix @ Z.T)
    return model, held_out, S


def test_the_likelihood_is_that_of_the_responses(weighted):
    model, rows, S = weighted
    e = model.tasks.evaluate(model.fit.covariance, np.zeros(4), integrated=False)
    gap = rows.y - rows.Z @ e.mean
    # A row of weight w counts as w rows, whose differences have the variance of the noise.
    log_variances = np.linalg.slogdet(S)[1] + rows.weight.sum() * np.log(2 * np.pi * e.noise)
    log_variances += (rows.weight - 1) @ np.log(model.row_noise.relative) + np.log(
        rows.weight
    ).sum()
    expected = -0.5 * (log_variances + gap @ np.linalg.solve(S, gap) / e.noise)
    assert_allclose(e.value, expected, rtol=1e-9)
    assert_allclose(e.task_values.sum(), expected, rtol=1e-9)
    total = (rows.weight / model.row_noise.relative).sum()
    assert_allclose(total, rows.weight.sum(), rtol=1e-12)


def test_errors_are_those_of_predictions_from_all_other_repetitions_of_rows(weighted):
    model, rows, S = weighted
    prior = model.tasks.prior_precision(model.fit.taus)
    prior[0] = 1e-9  # the intercept of the mean is flat
    S = S + rows.Z @ np.diag(1 / prior) @ rows.Z.T
    squares = rows.squares(model)
    noise, weight = model.row_noise.relative, rows.weight
    for i in range(len(S)):
        # One repetition of the row is left out, and the others stay.
        others = S.copy()
        others[i, i] += noise[i] / max(weight[i] - 1, 1e-9) - noise[i] / weight[i]
        of_one = S[i] - (np.arange(len(S)) == i) * noise[i] / weight[i]
        rest = (np.arange(len(S)) != i) | (weight[i] > 1)
        predicted = of_one[rest] @ np.linalg.solve(others[np.ix_(rest, rest)], rows.y[rest])
        expected = rows.weight[i] * (rows.y[i] - predicted) ** 2
        assert_allclose(squares[i], expected, rtol=1e-4, atol=1e-7)


def test_few_rows_of_many_tasks_are_weighted_too():
    X, y, task, coef, _ = simulated(1, 2.0, T=400, n=3)
    errors = {
        noise: ss.parameter_error(fitted(noise, X, y, task).coef_, coef)
        for noise in ("fitted", "shared")
    }
    assert errors["fitted"] < 0.97 * errors["shared"]


def test_a_task_has_the_mean_variance_of_its_rows():
    X, y, task, _, _ = simulated(3, 2.0)
    model = fitted("fitted", X, y, task)
    posterior = model._uncertainty_
    unit = posterior.scaling.y_scale
    eta = (model.predict(X, task=task) - posterior.scaling.y_centre) / unit
    variance = unit**2 * posterior.variance_function(eta)
    assert_allclose(model.noise_variance_, np.bincount(task, variance) / 25, rtol=0.03)


def test_a_saved_model_predicts_with_the_same_deviations(tmp_path):
    X, y, task, _, _ = simulated(0, 2.0)
    model = fitted("fitted", X, y, task, unseen="mean")
    model.save(tmp_path / "m.span")
    same = ss.load(tmp_path / "m.span")
    assert same.noise_ == "fitted"
    for of in (task, np.full(len(y), -1)):
        for one, other in zip(*(m.predict(X, task=of, return_std=True) for m in (model, same)),
                              strict=True):  # fmt: skip
            assert np.array_equal(one, other)


def test_rows_are_required():
    X, y, task, _, _ = simulated(0, 2.0)
    model = ss.AdaptiveSpanRegressor(noise="fitted", keep_statistics=True)
    with pytest.raises(ValueError, match="noise='fitted' needs the rows"):
        model.partial_fit(X, y, task=task)
    model.fit(X, y, task=task)
    with pytest.raises(ValueError, match="noise='auto'"):
        model.partial_fit(X, y, task=task)
    assert model.noise_ == "fitted"
    model = ss.AdaptiveSpanRegressor().partial_fit(X, y, task=task)
    assert model.noise_ in ("shared", "per_task")


@pytest.mark.parametrize("noise", ["auto", "fitted"])
@pytest.mark.parametrize("y", ["constant", "exact", "one row"])
def test_hard_rows_are_no_obstacle(noise, y):
    rng = np.random.default_rng(0)
    X, task = rng.standard_normal((60, 2)), np.arange(60) // 6
    y, task = {
        "constant": (np.full(60, 3.0), task),
        "exact": (X @ [1.0, 2.0] + task, task),
        "one row": (X @ [1.0, 2.0] + rng.standard_normal(60), np.arange(60)),
    }[y]
    mean, std = fitted(noise, X, y, task).predict(X, task=task, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()


@pytest.mark.parametrize("seed", range(3))
def test_noise_that_moves_its_own_fitted_value_does_not_look_like_a_function_of_it(seed):
    """With four rows a task, much of a row's noise is in its fitted value."""
    rng = np.random.default_rng(seed)
    T, n = 2000, 4
    task = np.repeat(np.arange(T), n)
    X = rng.standard_normal((T * n, 1))
    effects = rng.standard_normal((T, 2)) * [1.0, 0.3]
    y = effects[task, 0] + effects[task, 1] * X[:, 0] + 2 * rng.standard_normal(T * n)
    model = ss.AdaptiveSpanRegressor(noise="fitted").fit(X, y, task=task)
    assert abs(model._uncertainty_.variance_function.exponent) < 0.08
