"""The curvature of a likelihood: its inverse, and coordinates in which it is one."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sharedspan.inference.curvature import LikelihoodCurvature, minimised


@pytest.fixture
def hessian(rng):
    A = rng.standard_normal((6, 4)) * [1.0, 30.0, 0.01, 5.0]
    return A.T @ A


def curvature(hessian):
    scale = 1 / np.sqrt(np.diag(hessian))
    return LikelihoodCurvature(hessian, scale, np.zeros((len(hessian), 0)), np.zeros(0))


def test_the_covariance_is_the_inverse_of_half_the_hessian_of_the_deviance(hessian):
    expected = np.linalg.inv(hessian / 2)
    units = np.sqrt(np.diag(expected))
    covariance = curvature(hessian).theta_covariance
    assert_allclose(covariance / np.outer(units, units), expected / np.outer(units, units))


def test_directions_without_curvature_have_no_covariance(hessian):
    flat = hessian.copy()
    flat[1] = flat[:, 1] = 0
    flat[1, 1] = 1e-30
    scale = 1 / np.sqrt(np.diag(hessian))  # of effects that vary; of the others, any
    covariance = LikelihoodCurvature(flat, scale, np.zeros((4, 0)), np.zeros(0)).theta_covariance
    rest = [0, 2, 3]
    assert_allclose(covariance[1] / scale, 0, atol=1e-12)
    assert_allclose(
        covariance[np.ix_(rest, rest)] @ (hessian[np.ix_(rest, rest)] / 2), np.eye(3), atol=1e-6
    )


def test_whitened_coordinates_have_curvature_one(hessian, rng):
    jacobian = rng.standard_normal((4, 3)) / np.sqrt(np.diag(hessian))[:, None] * [1, 1e3, 1e-4]
    R = curvature(hessian).whitening(jacobian)
    H = jacobian.T @ (hessian / 2) @ jacobian
    assert_allclose(R.T @ H @ R, np.eye(3), atol=1e-8)


def test_a_quadratic_is_minimised_from_any_start(hessian):
    best = np.array([1.0, -0.2, 300.0, 0.5])
    R = curvature(hessian).whitening(np.eye(4))

    def function(at):
        return float((at - best) @ hessian @ (at - best)) + 7.0, 2 * hessian @ (at - best)

    at, least = minimised(function, np.zeros(4), R)
    assert_allclose(at, best, rtol=1e-5)
    assert_allclose(least, 7.0)
