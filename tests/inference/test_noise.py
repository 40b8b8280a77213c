"""Noise levels of tasks: known answers and the likelihood that shrinks them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import sharedspan as ss
from sharedspan.inference.noise import (
    common_level,
    gain_of_noise_levels,
    relative_precision,
    shrink_noise,
)


@pytest.fixture
def tasks(rng):
    """Residual sums of squares of tasks whose variances follow the prior with nu = 6, s0^2 = 4."""
    degrees = rng.integers(3, 12, 400).astype(float)
    variances = 4.0 * 6.0 / rng.chisquare(6.0, 400)
    return variances * rng.chisquare(degrees), degrees


def prior_of(tasks):
    """What ``shrink_noise`` has estimated: its nu, and the level towards which it shrinks."""
    rss, degrees = tasks
    shrunk, counted = shrink_noise(rss, degrees)
    nu = counted - degrees
    level = (shrunk * counted - rss) / nu
    assert_allclose(nu, nu[0])
    assert_allclose(level, level[0])
    return nu[0], level[0]


def test_the_prior_of_the_variances_is_found(tasks):
    nu, level = prior_of(tasks)
    assert 4 < nu < 9
    assert 3.4 < level < 4.7


def test_the_prior_has_the_largest_likelihood_of_all(tasks):
    rss, degrees = tasks
    nu, level = prior_of(tasks)

    def likelihood(nu, level):
        return stats.f.logpdf(rss / degrees, degrees, nu, scale=level).sum()

    best = likelihood(nu, level)
    for factor in (0.9, 0.99, 1.01, 1.1):
        assert likelihood(factor * nu, level) < best
        assert likelihood(nu, factor * level) < best
    h = 1e-4
    slopes = [
        likelihood(nu * (1 + h), level) - likelihood(nu * (1 - h), level),
        likelihood(nu, level * (1 + h)) - likelihood(nu, level * (1 - h)),
    ]
    assert_allclose(slopes, 0, atol=1e-7 * abs(best))


def test_the_gain_is_the_ratio_of_both_likelihoods(tasks):
    rss, degrees = tasks
    nu, level = prior_of(tasks)
    common = rss.sum() / degrees.sum()
    differing = stats.f.logpdf(rss / degrees, degrees, nu, scale=level).sum()
    equal = stats.gamma.logpdf(rss / degrees, degrees / 2, scale=2 * common / degrees).sum()
    assert_allclose(gain_of_noise_levels(rss, degrees), differing - equal, rtol=1e-9)
    assert differing - equal > 50


def test_equal_levels_gain_nothing_and_become_one(rng):
    degrees = np.full(50, 8.0)
    rss = degrees * 3.0
    assert gain_of_noise_levels(rss, degrees) == 0.0
    shrunk, counted = shrink_noise(rss, degrees)
    assert_allclose(shrunk, 3.0)
    assert_allclose(counted, 400.0)
    assert gain_of_noise_levels(rss[:1], degrees[:1]) == 0.0


@pytest.mark.parametrize("unit", [1e-6, 1e8])
def test_levels_follow_the_unit_of_the_responses(tasks, unit):
    rss, degrees = tasks
    (one, n_one), (two, n_two) = shrink_noise(rss, degrees), shrink_noise(unit * rss, degrees)
    assert_allclose(two, unit * one, rtol=1e-6)
    assert_allclose(n_two, n_one, rtol=1e-6)


def test_tasks_without_residual_degrees_share_what_is_left():
    level, degrees = shrink_noise(np.array([2.0, 4.0]), np.zeros(2))
    assert level.tolist() == [6.0, 6.0]
    assert degrees.tolist() == [1.0, 1.0]
    level, degrees = shrink_noise(np.array([5.0, 0.0]), np.array([0.0, 4.0]))
    assert level.tolist() == [1.25, 1.25]
    level, degrees = shrink_noise(np.zeros(3), np.array([2.0, 1.0, 0.0]))
    assert level.tolist() == [0.0, 0.0, 0.0]
    assert degrees.tolist() == [3.0, 3.0, 3.0]


def test_a_task_that_is_fitted_exactly_has_no_more_than_the_least_level():
    rss, degrees = np.array([0.0, 0.3, 450.0, 6000.0, 15.0]), np.full(5, 3.0)
    shrunk, _ = shrink_noise(rss, degrees)
    assert 0 < shrunk[0] < shrunk[1:].min()


def test_the_common_level_is_the_geometric_mean_of_what_is_positive():
    assert_allclose(common_level(np.array([1.0, 0.0, 4.0])), 2.0)
    assert common_level(np.zeros(3)) == 0.0
    assert_allclose(relative_precision(np.array([1.0, 0.0, 4.0]), 3), [2.0, 1.0, 0.5])
    assert_allclose(relative_precision(None, 2), 1.0)


def test_errors_of_coefficients_of_other_shapes_are_refused():
    assert ss.parameter_error([[1.0, 2.0]], [[0.0, 4.0]]) == 5.0
    with pytest.raises(ValueError, match=r"the same shape, not \(1, 2\) and \(2, 1\)"):
        ss.parameter_error([[1.0, 2.0]], [[1.0], [2.0]])


def test_the_floor_counts_the_rank_once_for_each_task():
    sizes = np.array([10, 20])
    assert_allclose(
        ss.error_floor(sizes, 5, 2, 1, np.array([1.0, 2.0])),
        ss.error_floor(sizes, 5, 2, 1, np.array([2.0, 4.0])) / 4,
    )
    assert ss.error_floor(sizes, 5, 2, 1, np.zeros(2)) == 0.0
