"""Where a covariance has very many entries, its information is a product of means."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.mixed_model import likelihood, optimize, posterior


@pytest.fixture
def sim():
    return ss.simulate(
        n_tasks=60, n_features=6, rank=2, n_samples=15, noise=0.5, intercept=1.0, random_state=3
    )


def fitted(sim):
    model = ss.AdaptiveSpanRegressor(slopes="diagonal", rank=2)
    return model.fit(sim.X, sim.y, task=sim.task)


def test_the_best_covariance_is_the_same_without_the_exact_information(sim, monkeypatch):
    exact = fitted(sim)
    monkeypatch.setattr(optimize, "LARGEST_EXACT", 0)
    monkeypatch.setattr(likelihood, "LARGEST_EXACT", 0)
    other = fitted(sim)
    assert abs(other.log_likelihood_ - exact.log_likelihood_) < 0.3
    assert_allclose(other.coef_, exact.coef_, atol=0.02 * np.abs(exact.coef_).max())


def test_approximate_errors_of_the_covariance_are_near_the_exact_ones(sim, monkeypatch):
    exact = fitted(sim)
    monkeypatch.setattr(posterior, "EXACT_WORK", 0.0)
    approximate = fitted(sim)
    monkeypatch.setattr(posterior, "NEGLIGIBLE_ERROR", np.inf)
    none = fitted(sim)
    added = [np.mean(model.coef_std_**2) - np.mean(none.coef_std_**2) for model in
             (exact, approximate)]  # fmt: skip
    assert added[0] > 0.02 * np.mean(none.coef_std_**2)
    assert 0.5 < added[1] / added[0] < 2
    assert_allclose(approximate.coef_std_, exact.coef_std_, rtol=0.3)
    assert np.mean(approximate.coef_std_ / exact.coef_std_) == pytest.approx(1, abs=0.03)
    assert_allclose(approximate.coef_, none.coef_)
