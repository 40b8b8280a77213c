"""The likelihood of mixed models at any variance parameters, in the user's units."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from mixed_objectives import INTERCEPTS, SLOPES, dense_deviance, one_level
from sharedspan.mixed_model.objective import (
    VarianceComponent,
    free_entries,
    map_to_user,
    triangular_factor,
)
from sharedspan.mixed_model.structures import Block
from sharedspan.mixed_model.terms import Scaling
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.task_statistics import Units

MODELS = {
    "intercept": {},
    "full": {"blocks": (Block("full", (0, 1, 2)),)},
    "diagonal": {"blocks": (Block("diagonal", (0, 1)),)},
    "two blocks": {"blocks": (Block("full", (0, 1)), Block("diagonal", (2,)))},
    "low rank": {"blocks": (Block("low_rank", (0, 1, 2), 1),)},
    "variance group": {"blocks": SLOPES, "groups": np.array([-1, -1, 0, 0])},
    "two variance groups": {"groups": np.array([-1, -1, 0, 1])},
    "means of zero": {"blocks": SLOPES, "fixed": [True, False, True, False, True]},
    "no intercept": {"blocks": (Block("full", (1, 2)),), "fixed": [False, True, True, True, True]},
}


@pytest.fixture(scope="module")
def table():
    """Eight tasks of unequal sizes with features of different units, far from their origin."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(8), [2, 3, 5, 9, 12, 20, 4, 7])
    X = rng.standard_normal((len(task), 4)) * [1, 20, 0.5, 3] + [1.5, 30, 2, 0]
    coef = 0.5 * rng.standard_normal((8, 4)) / [1, 20, 0.5, 3]
    y = 2 + 0.3 * task + np.einsum("ij,ij->i", X, coef[task])
    return X, y + 0.7 * rng.standard_normal(len(task)), task


def oracle(table, objective, theta, restricted, model):
    options = {"blocks": INTERCEPTS} | model
    return dense_deviance(
        *table, options.pop("blocks"), theta, objective.components(theta), restricted=restricted,
        **options,
    )  # fmt: skip


def some_thetas(objective):
    rng = np.random.default_rng(1)
    theta = objective.theta
    return [theta, theta * np.exp(0.2 * rng.standard_normal(len(theta)))]


@pytest.mark.parametrize("kind", ["gram", "rows"])
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_deviance_and_fixed_effects_are_those_of_a_dense_gaussian(table, model, kind):
    for fitted in (True, False):
        objective = one_level(*table, **model, restricted=fitted, kind=kind)
        for theta in some_thetas(objective):
            for restricted in (True, False):
                value, _ = objective.deviance(theta, restricted=restricted)
                expected = oracle(table, objective, theta, restricted, model)
                assert_allclose(value, expected[0], rtol=1e-10)
                for ours, dense in zip(objective.fixed(theta), expected[1:], strict=True):
                    assert_allclose(ours, dense, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_the_gradient_is_that_of_finite_differences(table, model):
    objective = one_level(*table, **model)
    for theta in some_thetas(objective):
        for restricted in (True, False):
            _, gradient = objective.deviance(theta, restricted=restricted)
            for i, step in enumerate(1e-4 * np.maximum(np.abs(theta), 0.1)):
                up, down = (
                    objective.deviance(theta + s * step * np.eye(len(theta))[i],
                                       restricted=restricted)[0]
                    for s in (1, -1)
                )  # fmt: skip
                assert_allclose((up - down) / (2 * step), gradient[i], rtol=1e-6, atol=1e-4)


def test_the_fit_is_where_the_gradient_vanishes(table):
    for restricted in (True, False):
        objective = one_level(*table, SLOPES, restricted=restricted)
        _, gradient = objective.deviance(objective.theta, restricted=restricted)
        assert_allclose(gradient * objective.theta, 0, atol=1e-3)


def test_centred_features_give_the_same_objective_where_the_model_is_the_same(table):
    plain, shifted = (one_level(*table, SLOPES, shifted=each) for each in (False, True))
    assert_allclose(plain.theta, shifted.theta, rtol=1e-4, atol=1e-9)
    theta = some_thetas(plain)[1]
    for restricted in (True, False):
        value, gradient = plain.deviance(theta, restricted=restricted)
        other, other_gradient = shifted.deviance(theta, restricted=restricted)
        assert_allclose(value, other, rtol=1e-12)
        assert_allclose(gradient, other_gradient, rtol=1e-6, atol=1e-6)
    for ours, expected in zip(shifted.fixed(theta), plain.fixed(theta), strict=True):
        assert_allclose(ours, expected, rtol=1e-9)


def test_the_features_of_the_statistics_do_not_matter(table):
    plain = one_level(*table, SLOPES)
    units = Units(np.zeros(4), np.ones(4), 1.0)
    other = one_level(*table, SLOPES, canonical=Canonical(units, 2 * np.eye(4)))
    for restricted in (True, False):
        value, gradient = plain.deviance(plain.theta, restricted=restricted)
        scaled, scaled_gradient = other.deviance(plain.theta, restricted=restricted)
        assert_allclose(scaled, value, rtol=1e-12)
        assert_allclose(scaled_gradient, gradient, rtol=1e-6, atol=1e-6)


def test_variances_of_zero_have_a_deviance_without_a_slope(table):
    objective = one_level(*table, groups=np.array([-1, -1, 0, 0]))
    theta = np.array([0.0, 0.0, objective.theta[-1]])
    _, gradient = objective.deviance(theta, restricted=True)
    assert_allclose(gradient[:2], 0, atol=1e-9)
    X, y, _ = table
    Z = np.column_stack([np.ones(len(y)), X[:, :2]])
    b = np.linalg.lstsq(Z, y, rcond=None)[0]
    assert_allclose(objective.fixed(theta)[0], b, rtol=1e-6)


@pytest.mark.parametrize(("kind", "rank"), [("full", 0), ("low_rank", 2), ("diagonal", 0)])
def test_a_factor_has_the_covariance_of_any_root(kind, rank):
    root = np.random.default_rng(2).standard_normal((4, 2 if rank else 6))
    F = triangular_factor(root, kind, rank)
    expected = root @ root.T
    if kind == "diagonal":
        expected = np.diag(np.diag(expected))
    assert_allclose(F @ F.T, expected, atol=1e-12)
    rows, columns = free_entries(kind, 4, rank)
    rest = F.copy()
    rest[rows, columns] = 0.0
    assert not rest.any()
    assert len(rows) == {"full": 10, "low_rank": 7, "diagonal": 4}[kind]


def test_components_have_deviations_and_correlations():
    component = VarianceComponent("g", ("a", "b", "c"), np.diag([4.0, 9.0, 0.0]), "full")
    component.covariance[0, 1] = component.covariance[1, 0] = 3.0
    assert_allclose(component.std, [2, 3, 0])
    assert_allclose(component.correlation[:2, :2], [[1, 0.5], [0.5, 1]])
    assert np.isnan(component.correlation[2]).all()


def test_coefficients_are_mapped_to_those_of_the_same_predictions():
    rng = np.random.default_rng(3)
    units = Units(rng.standard_normal(3), np.array([2.0, 1.0, 0.5]), 4.0)
    scaling = Scaling(rng.standard_normal(3), np.array([1.0, 3.0, 0.1]), 0.7, 2.5)
    canonical, x, v = (
        Canonical(units, 2 * np.eye(3)),
        rng.standard_normal(3),
        rng.standard_normal(4),
    )
    A, shift = map_to_user(scaling, canonical, 4)
    features = ((x - units.origin) * units.scale) @ canonical.P
    standard = np.append(1.0, (features - scaling.centre) / scaling.scale) @ v
    expected = (standard * scaling.y_scale + scaling.y_centre) / units.y_scale
    assert_allclose(np.append(1.0, x) @ (A @ v + shift), expected)
