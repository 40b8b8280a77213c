"""Simulated residuals are uniform if the model is right, and show what is wrong with it if not."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import sharedspan as ss
from sharedspan.diagnosis.residual_tests import p_value_words, residual_tests
from sharedspan.diagnosis.simulated_residuals import (
    probability_step,
    residuals_at_draw,
    simulated_residuals,
)
from sharedspan.families import Binomial, NegativeBinomial, Poisson
from sharedspan.formula.mixed import mixed
from sharedspan.mixed_model.structures import Block, Effects

FULL = (Block("full", (0, 1)),)


def fitted(X, y, task, *, family="gaussian", weighted=False, blocks=FULL, **given):
    effects = Effects((True,) * (1 + X.shape[1]), blocks, weighted_noise=weighted)
    method = "reml" if family == "gaussian" else "ml"
    model = ss.AdaptiveSpanRegressor(slopes=effects, method=method, family=family)
    return model.fit(X, y, task=task, **given)


def rows(rng, family="gaussian", *, n_tasks=30, n=10, std=(0.7, 0.5), slope=0.5):
    task, x = np.repeat(np.arange(n_tasks), n), rng.standard_normal(n_tasks * n)
    u = rng.standard_normal((n_tasks, 2)) * std
    eta = 0.3 + slope * x + u[task, 0] + u[task, 1] * x
    if family == "poisson":
        y = rng.poisson(np.exp(eta)).astype(float)
    elif family == "binomial":
        y = (rng.random(len(x)) < 1 / (1 + np.exp(-eta))).astype(float)
    else:
        y = eta + rng.standard_normal(len(x))
    return x[:, None], y, task


CASES = {
    "slopes": ({"n_tasks": 20}, 120),
    "hardly any effects": ({"std": (0.05, 0), "slope": 0}, 120),
    "three rows each": ({"n": 3}, 120),
    "poisson": ({"family": "poisson", "n": 20}, 40),
    "binomial": ({"family": "binomial", "n": 20}, 20),
}


@pytest.mark.parametrize(("options", "count"), CASES.values(), ids=CASES)
def test_a_right_model_is_rejected_as_often_as_the_level_says(options, count):
    family, p_values = options.get("family", "gaussian"), []
    for i in range(count):
        rng = np.random.default_rng([i, count])
        residuals = simulated_residuals(fitted(*rows(rng, **options), family=family), rng)
        tests = residual_tests(residuals)
        p_values.append([tests.uniformity.p_value, tests.dispersion.p_value])
    p_values = np.array(p_values)
    # Of residuals at estimates they would be far too large.
    assert stats.kstest(p_values[:, 0], "uniform").pvalue > 0.005
    assert (np.mean(p_values < 0.05, axis=0) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / count)).all()


def test_residuals_at_estimates_would_be_too_close_to_one_half(rng):
    X, y, task = rows(rng, n_tasks=100, n=3)
    model = fitted(X, y, task)
    z = (y - model.predict(X, task)) / np.sqrt(model.noise_variance_[0])
    assert np.mean(z**2) < 0.75
    drawn = stats.norm.ppf(simulated_residuals(model))
    assert_allclose(np.mean(drawn**2), 1, atol=0.25)


def test_a_missing_curve_is_seen_in_the_level_of_the_residuals(rng):
    X, y, task = rows(rng, n_tasks=50, n=20)
    model = fitted(X, y + 0.6 * X[:, 0] ** 2, task)
    tests = residual_tests(simulated_residuals(model), X[:, 0])
    assert tests.trend.p_value < 1e-6
    assert "a nonlinear effect, an interaction or a feature may be missing" in tests.trend.sentence
    right = fitted(np.column_stack([X, X**2]), y + 0.6 * X[:, 0] ** 2, task)
    assert not residual_tests(simulated_residuals(right), X[:, 0]).trend.is_significant


def test_noise_that_grows_is_seen_in_the_spread_of_the_residuals(rng):
    X, y, task = rows(rng, n_tasks=50, n=20)
    model = fitted(X, y + np.exp(0.6 * y) * rng.standard_normal(len(y)), task)
    residuals, predicted = residuals_at_draw(model)
    tests = residual_tests(residuals, predicted)
    assert tests.spread.p_value < 1e-6
    assert tests.outliers.p_value < 1e-3
    assert tests.uniformity.p_value < 1e-3
    # Its noise variance is estimated, so that the mean square says nothing.
    assert not tests.dispersion.is_significant


def test_counts_that_vary_too_much_are_seen_in_their_dispersion(rng):
    X, y, task = rows(rng, "poisson", n_tasks=40, n=20)
    assert residual_tests(simulated_residuals(fitted(X, y, task, family="poisson"))).uniformity
    more = rng.poisson(y * rng.gamma(2, 0.5, len(y))).astype(float)
    tests = residual_tests(simulated_residuals(fitted(X, more, task, family="poisson")))
    assert tests.dispersion.p_value < 1e-6
    assert tests.dispersion.statistic > 1.5
    assert "responses vary more than it implies" in str(tests)
    own = residual_tests(simulated_residuals(fitted(X, more, task, family="negative_binomial")))
    assert not own.dispersion.is_significant


def test_a_few_far_responses_are_seen_as_outliers(rng):
    X, y, task = rows(rng, n_tasks=50, n=20)
    y[rng.random(len(y)) < 0.03] += 5
    tests = residual_tests(simulated_residuals(fitted(X, y, task)))
    assert tests.outliers.p_value < 1e-4
    assert tests.trend is None


def test_weights_divide_the_noise_of_residuals(rng):
    X, y, task = rows(rng, n_tasks=50, n=20)
    weight = np.exp(rng.normal(0, 1.2, len(y)))
    y = 0.5 * X[:, 0] + rng.standard_normal(50)[task] + rng.standard_normal(1000) / np.sqrt(weight)
    right = fitted(X, y, task, weighted=True, sample_weight=weight)
    assert not residual_tests(simulated_residuals(right), weight).spread.is_significant
    plain = fitted(X, y, task)
    assert residual_tests(simulated_residuals(plain), weight).spread.p_value < 1e-6


def test_residuals_of_shares_use_the_numbers_of_trials(rng):
    task, trials = np.repeat(np.arange(40), 20), rng.integers(1, 15, 800).astype(float)
    X, u = rng.standard_normal((800, 1)), 0.8 * rng.standard_normal(40)
    y = rng.binomial(trials.astype(int), 1 / (1 + np.exp(-u[task]))) / trials
    options = {"family": "binomial", "sample_weight": trials, "blocks": (Block("full", (0,)),)}
    model = fitted(X, y, task, **options)
    assert residual_tests(simulated_residuals(model)).uniformity.p_value > 0.01
    model = fitted(X, np.round(y, 2), task, **options)
    with pytest.raises(ValueError, match="is not an integer"):
        simulated_residuals(model)


def test_residuals_of_groups_within_groups_are_uniform(rng):
    p_values = []
    for _ in range(40):
        school = np.repeat(np.arange(60), 5)
        x, effects = rng.standard_normal(300), rng.standard_normal(60)
        y = x + rng.standard_normal(15)[school // 4] + effects[school] + rng.standard_normal(300)
        table = pd.DataFrame({"x": x, "y": y, "d": school // 4, "s": school})
        residuals = simulated_residuals(mixed("y ~ x + (1 | d/s)", table), rng)
        p_values.append(residual_tests(residuals).uniformity.p_value)
    assert stats.kstest(p_values, "uniform").pvalue > 0.005
    assert np.mean(np.array(p_values) < 0.05) < 0.16


def test_residuals_follow_the_rows_as_they_were_given(rng):
    X, y, task = rows(rng)
    order = rng.permutation(len(y))
    residuals = simulated_residuals(fitted(X, y, task))
    shuffled = simulated_residuals(fitted(X[order], y[order], task[order]))
    assert_allclose(shuffled, residuals[order], atol=1e-6)
    assert_allclose(simulated_residuals(fitted(X, y, task)), residuals)
    assert np.abs(simulated_residuals(fitted(X, y, task), 1) - residuals).max() > 0.01


def test_residuals_do_not_depend_on_units(rng):
    X, y, task = rows(rng)
    residuals = simulated_residuals(fitted(X, y, task))
    other = simulated_residuals(fitted(1e3 * X, 1e-4 * y + 50, task))
    assert_allclose(other, residuals, atol=1e-4)


@pytest.mark.parametrize("trials", [1.0, 7.0])
def test_steps_of_shares_are_those_of_the_binomial_distribution(trials):
    p = np.array([1e-9, 0.2, 0.5, 1 - 1e-9])
    for successes in range(int(trials) + 1):
        y = np.full(4, successes / trials)
        low, high = probability_step(Binomial(), y, p, np.full(4, trials))
        assert_allclose(low, stats.binom.cdf(successes - 1, int(trials), p), atol=1e-12)
        assert_allclose(high, stats.binom.cdf(successes, int(trials), p), atol=1e-12)


def test_steps_of_counts_are_those_of_their_distributions():
    y, mean = np.array([0.0, 1.0, 5.0, 300.0]), np.array([0.3, 2.0, 5.0, 280.0])
    low, high = probability_step(Poisson(), y, mean, np.ones(4))
    assert_allclose(low, stats.poisson.cdf(y - 1, mean))
    assert_allclose(high, stats.poisson.cdf(y, mean))
    low, high = probability_step(NegativeBinomial(1.5), y, mean, np.ones(4))
    assert_allclose(low, stats.nbinom.cdf(y - 1, 1.5, 1.5 / (1.5 + mean)))
    assert_allclose(high, stats.nbinom.cdf(y, 1.5, 1.5 / (1.5 + mean)))


def test_tests_of_uniform_numbers_hold_their_level(rng):
    p_values = []
    for _ in range(300):
        tests = residual_tests(rng.random(400), rng.standard_normal(400))
        named = (tests.uniformity, tests.dispersion, tests.outliers, tests.trend, tests.spread)
        p_values.append([test.p_value for test in named])
    rates = np.mean(np.array(p_values) < 0.05, axis=0)
    assert (rates < 0.09).all()
    assert (rates[[0, 1, 3, 4]] > 0.02).all()


def test_tests_say_their_results_in_sentences(rng):
    even = rng.permutation(np.arange(500) + 0.5) / 500
    tests = residual_tests(even, np.arange(500))
    assert len(tests.sentences) == 5
    assert all(sentence.endswith(").") for sentence in tests.sentences)
    assert "no evidence that the residuals are not uniform (Kolmogorov-Smirnov, p = " in str(tests)
    wrong = residual_tests(even**2, np.arange(500))
    assert "not uniform" in wrong.uniformity.sentence
    assert (p_value_words(1e-5), p_value_words(0.0321)) == ("p < 0.001", "p = 0.032")


def test_residuals_that_are_not_numbers_are_left_out(rng):
    u = rng.random(100)
    u[7] = np.nan
    tests = residual_tests(u, np.arange(100))
    assert tests.n_rows == 99
    assert tests.uniformity == residual_tests(u[np.isfinite(u)]).uniformity
    with pytest.raises(ValueError, match="There is no residual"):
        residual_tests(np.full(3, np.nan))
    with pytest.raises(ValueError, match="give one number per row"):
        residual_tests(u, np.arange(99))
    assert residual_tests(u, np.ones(100)).trend is None


def test_models_without_rows_have_no_residuals(rng, tmp_path):
    X, y, task = rows(rng)
    fitted(X, y, task).save(tmp_path / "model.span")
    with pytest.raises(ValueError, match="loaded from a file must be fitted again"):
        simulated_residuals(ss.load(tmp_path / "model.span"))
    repeated = fitted(X, y, task, sample_weight=np.full(len(y), 2.0))
    with pytest.raises(ValueError, match="counts its repetitions"):
        simulated_residuals(repeated)
