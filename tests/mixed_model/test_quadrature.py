"""Quadrature against integrals by other means, and the variances that it is for."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import dblquad, quad
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning

import sharedspan as ss


def simulated(n, T=200, seed=0):
    """Binary rows of T tasks with random intercepts of variance 1 and slopes of variance 0.5."""
    rng = np.random.default_rng(seed)
    X, task = rng.standard_normal((T * n, 1)), np.repeat(np.arange(T), n)
    u = rng.standard_normal((T, 2)) * np.sqrt([1, 0.5])
    eta = 0.3 + u[task, 0] + (0.5 + u[task, 1]) * X[:, 0]
    return X, rng.random(T * n) < 1 / (1 + np.exp(-eta)), task


def probability(y, eta):
    return np.prod(np.where(y, 1 / (1 + np.exp(-eta)), 1 / (1 + np.exp(eta))))


def test_one_effect_is_an_integral():
    X, y, task = simulated(4, T=15)
    model = ss.AdaptiveSpanClassifier(slopes="none", rank=0, method="ml").fit(X, y, task=task)
    assert model.approximation_ == "quadrature"
    fixed = model.mean_intercept_ + X @ model.mean_coef_
    total = 0.0
    for t in range(15):
        own = task == t

        def likelihood(u, own=own):
            return probability(y[own], fixed[own] + u * model.intercept_std_) * norm.pdf(u)

        total += np.log(quad(likelihood, -9, 9, epsabs=1e-13)[0])
    assert_allclose(model.log_likelihood_, total, atol=1e-5)


def test_two_effects_are_an_integral():
    X, y, task = simulated(5, T=12, seed=3)
    X = X - X.mean()  # so that the intercept is that of the centre
    model = ss.AdaptiveSpanClassifier(slopes="diagonal", rank=0, method="ml").fit(X, y, task=task)
    assert model.approximation_ == "quadrature"
    fixed = model.mean_intercept_ + X @ model.mean_coef_
    deviation = np.array([model.intercept_std_, model.slope_std_[0]])
    total = 0.0
    for t in range(12):
        own = task == t

        def likelihood(b, a, own=own):
            eta = fixed[own] + deviation[0] * a + deviation[1] * b * X[own, 0]
            return probability(y[own], eta) * norm.pdf(a) * norm.pdf(b)

        total += np.log(dblquad(likelihood, -7, 7, -7, 7, epsabs=1e-9)[0])
    assert_allclose(model.log_likelihood_, total, atol=2e-3)


@pytest.mark.parametrize(("n", "tolerance"), [(5, 0.35), (20, 0.15)])
def test_variances_are_near_the_truth(n, tolerance):
    estimates = []
    for seed in range(8):
        X, y, task = simulated(n, seed=seed)
        model = ss.AdaptiveSpanClassifier(slopes="diagonal", rank=0).fit(X, y, task=task)
        estimates.append([model.intercept_std_**2, model.slope_std_[0] ** 2 / 0.5])
    assert np.all(np.abs(np.mean(estimates, axis=0) - 1) < tolerance)


def test_many_rows_need_none():
    X, y, task = simulated(300, T=10)
    model = ss.AdaptiveSpanClassifier(slopes="none", rank=0).fit(X, y, task=task)
    assert model.approximation_ == "laplace"


def test_posterior_means_are_those_of_the_integral():
    X, y, task = simulated(4, T=30, seed=1)
    model = ss.AdaptiveSpanClassifier(slopes="none", rank=0, method="ml").fit(X, y, task=task)
    own = task == 7
    fixed = model.mean_intercept_ + X @ model.mean_coef_

    def weighted(u, power):
        eta = fixed[own] + u * model.intercept_std_
        predicted = 1 / (1 + np.exp(-(fixed[own][0] + u * model.intercept_std_)))
        return probability(y[own], eta) * norm.pdf(u) * predicted**power

    expected = quad(weighted, -9, 9, args=(1,))[0] / quad(weighted, -9, 9, args=(0,))[0]
    got = model.predict_proba(X[own][:1], task=[7])[0, 1]
    assert_allclose(got, expected, atol=0.02)  # the uncertainty of b is averaged over, too


def test_a_variance_without_a_largest_likelihood_is_told():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(1500), 2)
    x = rng.standard_normal(len(group))
    eta = -3 + 0.5 * x + 3.5 * rng.standard_normal(1500)[group]
    table = {"y": (rng.random(len(group)) < 1 / (1 + np.exp(-eta))) * 1, "x": x, "g": group}
    frame = pd.DataFrame(table)
    with pytest.warns(ConvergenceWarning, match="reached 5.*approximation='quadrature'"):
        model = ss.mixed("y ~ x + (1 | g)", frame, family="binomial")
    summary = " ".join(str(model.summary()).split())
    assert "has no maximum below it" in summary
    assert "The fit converged" not in summary
    by_quadrature = ss.mixed(
        "y ~ x + (1 | g)", frame, family="binomial", approximation="quadrature"
    )
    assert "The fit converged" in " ".join(str(by_quadrature.summary()).split())
