"""Families: derivatives, distributions that sum to one, expectations over a normal predictor."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.stats import binom, nbinom, norm, poisson

from sharedspan.families import (
    FAMILIES,
    NegativeBinomial,
    family_of,
    suggested_family,
)

ETA = np.array([-30.0, -8.0, -2.0, -0.3, 0.0, 0.7, 3.0, 6.0])
REWEIGHTED = ["binomial", "probit", "poisson", "negative_binomial"]
RESPONSES = {"binomial": (0, 0.3, 1), "probit": (0, 0.3, 1)}


@pytest.mark.parametrize("name", REWEIGHTED)
def test_each_derivative_is_that_of_the_one_before(name):
    family, step = family_of(name, 2.5), 1e-5
    for y in RESPONSES.get(name, (0, 1, 7, 300)):
        eta = ETA[1:] if name == "probit" else ETA
        y = np.full_like(eta, y)
        at, low, high = (family.derivatives(y, eta + h) for h in (0, -step, step))
        scale = 1 + np.abs(at.value)
        assert_allclose((high.value - low.value) / (2 * step) / scale, at.first / scale, atol=1e-8)
        change = np.abs(at.first) + 1
        assert_allclose(
            -(high.first - low.first) / (2 * step) / change, at.weight / change, atol=1e-8
        )
        weight = at.weight + 1
        assert_allclose(
            (high.weight - low.weight) / (2 * step) / weight, at.change / weight, atol=1e-8
        )


@pytest.mark.parametrize("name", REWEIGHTED)
def test_far_out_predictors_give_finite_numbers_of_the_right_sign(name):
    family = family_of(name, 0.7)
    eta = np.array([-1e6, -800.0, -40.0, 40.0, 250.0])
    for y in RESPONSES.get(name, (0, 5, 1e9)):
        d = family.derivatives(np.full_like(eta, y), eta)
        assert all(np.isfinite(each).all() for each in d)
        assert (d.weight >= 0).all()


def test_log_likelihoods_are_those_of_scipy():
    y, eta, weight = np.arange(12.0), np.linspace(-1, 3, 12), np.ones(12)
    mean = np.exp(eta)
    for name, expected in (
        ("poisson", poisson.logpmf(y, mean)),
        ("negative_binomial", nbinom.logpmf(y, 2.5, 2.5 / (2.5 + mean))),
    ):
        family = family_of(name, 2.5)
        value = family.derivatives(y, eta).value + family.constant(y, weight)
        assert_allclose(value, expected, rtol=1e-12)
        assert_allclose(family.cdf(y, mean), np.cumsum(
            [np.exp(family.derivatives(np.array([k]), eta).value
                    + family.constant(np.array([k]), weight[:1])) for k in y], axis=0
        ).diagonal(), rtol=1e-10)  # fmt: skip
    trials = np.full(12, 12.0)
    for name, p in (("binomial", 1 / (1 + np.exp(-eta))), ("probit", norm.cdf(eta))):
        family, share = FAMILIES[name], y / 12
        value = trials * family.derivatives(share, eta).value + family.constant(share, trials)
        assert_allclose(value, binom.logpmf(y, 12, p), rtol=1e-10)


def test_a_large_dispersion_is_poisson():
    y, eta = np.arange(30.0), np.linspace(-3, 4, 30)
    close = NegativeBinomial(1e9).derivatives(y, eta)
    exact = FAMILIES["poisson"].derivatives(y, eta)
    # The values differ by a constant of y.
    shift = NegativeBinomial(1e9).derivatives(y, 0 * eta).value
    assert_allclose(close.value - shift, exact.value + 1, atol=1e-5)
    for a, b in zip(close[1:], exact[1:], strict=True):
        assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("name", REWEIGHTED)
@pytest.mark.parametrize("variance", [0.0, 0.4, 3.0])
def test_expected_means_are_integrals(name, variance):
    family = FAMILIES[name]
    for eta in (-2.0, 0.5):

        def weighted(x, eta=eta):
            return family.mean(np.array([eta + x * np.sqrt(variance)]))[0] * norm.pdf(x)

        expected = quad(weighted, -12, 12)[0]
        got = family.expected_mean(np.array([eta]), np.array([variance]))[0]
        assert_allclose(got, expected, rtol=2e-4)


def test_the_predictive_likelihood_of_a_class_is_its_expected_probability():
    family, eta, variance = FAMILIES["binomial"], np.array([-1.0, 0.3, 2.0]), np.full(3, 0.8)
    one = family.predictive_log_likelihood(np.ones(3), eta, variance)
    assert_allclose(np.exp(one), family.expected_mean(eta, variance), rtol=1e-3)


@pytest.mark.parametrize(
    ("y", "name"),
    [
        ([0, 1, 1, 0], "binomial"),
        ([0, 3, 1, 12], "negative_binomial"),
        ([1, 2, 3, 4], "gaussian"),  # codes or amounts rather than counts
        ([0.0, 0.5, 1.0], "gaussian"),
        ([-1, 0, 1], "gaussian"),
    ],
)
def test_the_family_that_a_target_looks_like(y, name):
    assert suggested_family(np.array(y)) == name
