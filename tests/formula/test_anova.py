"""``ss.anova``: models of formulas compared by their likelihoods."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from reference import comparison, table
from scipy import stats

import sharedspan as ss


def crossed_counts():
    rng = np.random.default_rng(0)
    a, b = np.repeat(np.arange(12), 20), np.tile(np.arange(10), 24)
    rate = np.exp(1 + 0.5 * rng.standard_normal(12)[a] + 0.6 * rng.standard_normal(10)[b])
    return pd.DataFrame({"a": a, "b": b, "n": rng.poisson(rate)})


@pytest.mark.parametrize("left_out", ["plate", "sample"])
def test_each_of_two_crossed_factors_can_be_tested(left_out):
    rows = table("Penicillin")
    kept = {"plate": "sample", "sample": "plate"}[left_out]
    small = ss.mixed(f"diameter ~ 1 + (1 | {kept})", rows)
    large = ss.mixed("diameter ~ 1 + (1 | plate) + (1 | sample)", rows)
    result = ss.anova(small, large)
    assert result.p_value < 1e-10
    assert f"The variance of (Intercept) between levels of {left_out} is zero" in result.null


def test_a_crossed_factor_of_counts_can_be_tested():
    rows = crossed_counts()
    models = [ss.mixed(f"n ~ 1 + {each}", rows, family="poisson") for each in
              ("(1 | b)", "(1 | a) + (1 | b)")]  # fmt: skip
    assert ss.anova(*models).p_value < 1e-10


def test_what_is_not_two_models_is_refused_in_a_sentence():
    model = ss.mixed("diameter ~ 1 + (1 | plate)", table("Penicillin"))
    with pytest.raises(TypeError, match="compares two models, but 3 were given"):
        ss.anova(model, model, model)
    with pytest.raises(TypeError, match="but got a int"):
        ss.anova(model, 5)


def sleep(fixed, groups="(1 | Subject)", **options):
    return ss.mixed(f"Reaction ~ {fixed} + {groups}", table("sleepstudy"), **options)


@pytest.mark.parametrize("reml", [False, True])
def test_covariances_are_compared_as_in_lme4(reml):
    """R: anova(m1, m2, refit = FALSE) of both fits."""
    known = comparison("reml" if reml else "ml")
    models = sleep("Days", reml=reml), sleep("Days", "(Days | Subject)", reml=reml)
    for pair in (models, models[::-1]):
        result = ss.anova(*pair)
        assert_allclose(result.statistic, known["chi_squared"], atol=2e-4)
        assert result.degrees == 2


@pytest.mark.parametrize("reml", [(True, True), (True, False), (False, False)])
def test_fixed_effects_are_compared_by_maximum_likelihood(reml):
    models = [sleep(fixed, reml=r) for fixed, r in zip(("1", "Days"), reml, strict=True)]
    by_ml = [sleep(fixed, reml=False).log_likelihood_ for fixed in ("1", "Days")]
    result = ss.anova(*models)
    assert_allclose(result.statistic, 2 * (by_ml[1] - by_ml[0]), rtol=1e-6)
    assert_allclose(result.p_value, stats.chi2.sf(result.statistic, 1), rtol=1e-9)


@pytest.mark.parametrize("reml", [False, True])
def test_one_model_is_compared_with_least_squares(reml):
    rows, model = table("sleepstudy"), sleep("Days", reml=reml)
    X = np.column_stack([np.ones(len(rows)), rows.Days])
    squares = np.sum((rows.Reaction - X @ np.linalg.lstsq(X, rows.Reaction)[0]) ** 2)
    n = len(rows) - 2 * reml
    deviance = n * np.log(2 * np.pi * squares / n) + n
    deviance += np.linalg.slogdet(X.T @ X)[1] * reml
    result = ss.anova(model)
    assert_allclose(result.statistic, deviance + 2 * model.log_likelihood_, rtol=1e-6)
    # One variance at its edge: half of a chi-square with one degree of freedom.
    assert_allclose(result.p_value, stats.chi2.sf(result.statistic, 1) / 2, rtol=1e-6)


def test_simulated_null_counts_the_fits_with_a_larger_statistic():
    small, large = sleep("1"), sleep("Days")
    result = ss.anova(small, large, n_simulations=19, random_state=0)
    assert_allclose(result.p_value, 1 / 20)
    rows = table("sleepstudy").assign(noise=np.random.default_rng(3).standard_normal(180))
    large = ss.mixed("Reaction ~ Days + noise + (1 | Subject)", rows)
    result = ss.anova(sleep("Days"), large, n_simulations=19, random_state=0)
    assert 0.1 < result.p_value <= 1
    assert abs(result.p_value - stats.chi2.sf(result.statistic, 1)) < 0.3


def test_models_that_cannot_be_compared_are_refused_in_a_sentence():
    rows = crossed_counts()
    gaussian, poisson = ss.mixed("n ~ 1 + (1 | a)", rows), "poisson"
    counts = ss.mixed("n ~ 1 + (1 | a)", rows, family=poisson)
    with pytest.raises(ValueError, match="have the families gaussian and poisson"):
        ss.anova(gaussian, counts)
    other = ss.mixed("n ~ 1 + (1 | a)", rows.assign(n=rows.n + 1))
    with pytest.raises(ValueError, match="fitted to different responses"):
        ss.anova(gaussian, other)
    with pytest.raises(ValueError, match="only available for Gaussian responses: give anova two"):
        ss.anova(counts)
    restricted = [
        ss.mixed(f"n ~ {fixed} + (1 | a)", rows.assign(x=rows.b), family=poisson, reml=True)
        for fixed in ("1", "x")
    ]
    with pytest.raises(ValueError, match=r"compared by maximum likelihood: .* reml=False"):
        ss.anova(*restricted)
