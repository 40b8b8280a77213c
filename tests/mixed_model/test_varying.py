"""Which columns vary by task: a rule by evidence, and what is named."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from sharedspan.inputs.encoders import Encoding, Number
from sharedspan.inputs.splines import SplineBasis
from sharedspan.inputs.table_columns import TableColumns


def with_columns(groups=(), sources=(), **options):
    """An estimator that is told which features belong together."""
    groups = () if groups is None else tuple(map(int, groups))
    columns = tuple(Number(f"x{j}") for j in range(max(len(groups), len(sources))))
    encoding = Encoding(columns, origins=tuple(sources), coded_groups=groups)
    return ss.AdaptiveSpanRegressor(
        columns=TableColumns(None, None, encoding, "VARCHAR"), **options
    )


def simulated(seed, T=60, n=25, d=40, which=(3, 7, 20), family="gaussian"):
    rng = np.random.default_rng(seed)
    V = np.tile(0.3 * rng.standard_normal(d), (T, 1))
    V[:, list(which)] += 0.6 * rng.standard_normal((T, len(which)))
    task, X = np.repeat(np.arange(T), n), rng.standard_normal((T * n, d))
    eta = rng.standard_normal(T)[task] + np.einsum("ij,ij->i", X, V[task])
    if family == "binomial":
        return X, (rng.uniform(size=T * n) < 1 / (1 + np.exp(-eta))).astype(float), task
    return X, eta + rng.standard_normal(T * n), task


@pytest.mark.parametrize("seed", range(3))
def test_with_nothing_said_the_columns_that_vary_are_found(seed):
    X, y, task = simulated(seed)
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    named = ss.AdaptiveSpanRegressor(varying=[3, 7, 20]).fit(X, y, task=task)
    assert list(model.varying_) == ["x3", "x7", "x20"] == list(named.varying_)
    assert_allclose(model.predict(X, task), named.predict(X, task))
    assert (np.ptp(model.coef_, axis=0) > 0).sum() == 3
    assert {fit["n_varying"] for fit in model.candidates_} == {3, 40}


@pytest.mark.parametrize("family", ["binomial", "student_t"])
def test_they_are_found_by_other_families(family):
    X, y, task = simulated(0, T=80, n=60, d=16, which=(1, 2), family=family)
    model = ss.AdaptiveSpanRegressor(family=family).fit(X, y, task=task)
    assert list(model.varying_) == ["x1", "x2"]


def test_columns_that_all_vary_a_little_stay_varying():
    rng = np.random.default_rng(0)
    T, n, d = 80, 30, 20
    task, X = np.repeat(np.arange(T), n), rng.standard_normal((T * n, d))
    coef = 1 + 0.25 * rng.standard_normal((T, d))
    y = np.einsum("ij,ij->i", X, coef[task]) + rng.standard_normal(T * n)
    assert len(ss.AdaptiveSpanRegressor().fit(X, y, task=task).varying_) == d


def test_directions_over_many_columns_are_no_reason_to_fix_any():
    sim = ss.simulate(n_tasks=40, n_features=20, rank=2, n_samples=30, random_state=0)
    model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
    assert (model.rank_, len(model.varying_)) == (2, 20)


@pytest.mark.parametrize("given", [{"rank": 0}, {"slopes": "diagonal"}, {"varying": range(40)}])
def test_what_is_said_is_what_is_fitted(given):
    X, y, task = simulated(0)
    model = ss.AdaptiveSpanRegressor(**given).fit(X, y, task=task)
    assert {fit["n_varying"] for fit in model.candidates_} == {40}


def test_of_few_columns_all_may_vary_or_the_one_that_gains_most():
    X, y, task = simulated(0, d=12, which=(3,))
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    assert {fit["n_varying"] for fit in model.candidates_} == {1, 12}


def factor_table(deviation, seed=0):
    """A number, and a factor of eight levels coded by seven dummies."""
    rng = np.random.default_rng(seed)
    T, n = 60, 80
    task, level = np.repeat(np.arange(T), n), rng.integers(0, 8, T * n)
    x = rng.standard_normal(T * n)
    effects = rng.standard_normal(8) + deviation * rng.standard_normal((T, 8))
    y = x + effects[task, level] + rng.standard_normal(T * n)
    return np.column_stack([x, np.eye(8)[level][:, 1:]]), y, task


@pytest.mark.parametrize("deviation", [0.0, 0.6])
def test_the_levels_of_a_factor_vary_together_if_they_gain_decisively(deviation):
    sources = ["x"] + ["factor"] * 7
    model = with_columns(sources=sources).fit(*factor_table(deviation))
    varying = {fit["n_varying"] for fit in model.candidates_}
    assert varying == ({7, 8} if deviation else {1})  # 7: the factor alone
    dummies = model.coef_[:, 1:]
    assert bool((np.ptp(dummies, axis=0) > 0).all()) == (deviation > 0)


def test_a_named_column_is_all_its_features():
    X, y, task = factor_table(0.6)
    sources = ["x"] + ["factor"] * 7
    model = with_columns(sources=sources, varying="factor", slopes="isotropic").fit(X, y, task=task)
    assert_array_equal(model.slope_std_ > 0, [False] + [True] * 7)
    with pytest.raises(ValueError, match="'other'; the features are 'x', 'factor'"):
        with_columns(sources=sources, varying="other").fit(X, y, task=task)


@pytest.mark.parametrize("deviation", [0.0, 1.0])
@pytest.mark.parametrize("slopes", ["auto", "diagonal"])
def test_a_spline_varies_only_if_its_group_gains_decisively(deviation, slopes):
    rng = np.random.default_rng(1)
    T, n = 40, 60
    task, x = np.repeat(np.arange(T), n), rng.uniform(-2, 2, T * n)
    size = 1 + deviation * rng.standard_normal(T)
    y = size[task] * np.cos(2 * x) + rng.standard_normal(T)[task] + 0.5 * rng.standard_normal(T * n)
    z = SplineBasis.of(x).basis(x)
    groups = np.append(-1, np.zeros(8, dtype=int))
    model = with_columns(groups, ["x"] * 9, slopes=slopes).fit(np.column_stack([x, z]), y, task)
    varies = deviation > 0 and slopes == "auto"
    assert bool((model.slope_std_[1:] > 0).all()) == varies
    truth = size[task] * np.cos(2 * x)
    fitted = np.einsum("ij,ij->i", np.column_stack([x, z]), model.coef_[task])
    error = (fitted - truth) - np.bincount(task, fitted - truth)[task] / n
    assert np.mean(error**2) < (0.05 if varies or not deviation else 1.0)


def test_whitened_features_that_are_collinear_are_no_obstacle():
    X, y, task = simulated(0)
    X = np.column_stack([X, X[:, :2]])
    model = ss.AdaptiveSpanRegressor(whiten=True).fit(X, y, task=task)
    assert len(model.varying_) == 42


def test_outlier_tasks_are_off_in_what_varies_and_share_what_does_not():
    rng = np.random.default_rng(0)
    T, n = 50, 30
    task, X = np.repeat(np.arange(T), n), rng.standard_normal((T * n, 4))
    coef = np.ones((T, 4))
    coef[:, :2] += 0.2 * rng.standard_normal((T, 2))
    coef[:3, :2] += [[6, -6], [-5, 5], [7, 7]]
    y = np.einsum("ij,ij->i", X, coef[task]) + 0.5 * rng.standard_normal(T * n)
    model = ss.AdaptiveSpanRegressor(varying=[0, 1]).fit(X, y, task=task)
    assert (model.outlier_probability_[:3] > 0.99).all()
    assert (model.outlier_probability_[3:] < 0.01).all()
    assert (np.ptp(model.coef_[:, 2:], axis=0) < 1e-12).all()
    assert_allclose(model.coef_[:3, :2], coef[:3, :2], atol=0.5)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("family", ["gaussian", "huber", "binomial"])
def test_tasks_that_do_not_differ_at_all_are_no_obstacle(fit_intercept, family):
    rng = np.random.default_rng(0)
    task, X = np.repeat(np.arange(15), 20), rng.standard_normal((300, 14))
    y = X @ np.linspace(-1, 1, 14) + rng.standard_normal(300)
    y = (y > 0).astype(float) if family == "binomial" else y
    for varying in (None, []):
        model = ss.AdaptiveSpanRegressor(
            fit_intercept=fit_intercept, family=family, varying=varying
        ).fit(X, y, task=task)
        assert not len(model.varying_)
        assert np.isfinite(model.predict(X, task)).all()
