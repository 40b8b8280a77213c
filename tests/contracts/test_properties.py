"""Properties of every estimator and solver, with few tables; benchmarks.trust runs many."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import sharedspan as ss
from benchmarks.trust.properties import cases, examine
from oracles import relative
from sharedspan.estimators import ESTIMATORS

CLAIMS: dict[str, list] = {}
for case in cases():
    CLAIMS.setdefault(case.claim, []).append(case)
MOST_COST = 3  # of a case that is tried in every run of the tests


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_changes_a_table_in_a_known_way_changes_the_fit_in_that_way(claim):
    """All fast estimators of a claim, and in turn one of those that take longer."""
    fast = [case for case in CLAIMS[claim] if case.cost <= MOST_COST]
    slow = [case for case in CLAIMS[claim] if case.cost > MOST_COST]
    turn = list(CLAIMS).index(claim)
    for case in (*fast, *slow[turn % max(len(slow), 1) :][:1]):
        failure = examine(case, 1, 0).failure
        assert not failure, failure


def test_every_estimator_has_properties():
    subjects = " ".join(case.subject for group in CLAIMS.values() for case in group)
    for name in ESTIMATORS:
        assert name.removesuffix("Regressor").removesuffix("Span") in subjects, name
    for solver in set(ss.SOLVERS) - {"nsgd", "phase_two"}:
        assert f"solver {solver}" in subjects


def few_rows(seed, T, noise):
    """A table in which left out rows decide on the structure."""
    rng = np.random.default_rng([77, seed])
    task = np.repeat(np.arange(T), rng.integers(6, 15, T))
    X = rng.standard_normal((len(task), 3)) + rng.standard_normal(3)
    coef = rng.standard_normal(3) + rng.standard_normal((T, 2)) @ rng.standard_normal((2, 3))
    coef += 0.5 * rng.standard_normal((T, 3))
    y = rng.standard_normal(T)[task] + np.einsum("ij,ij->i", X, coef[task])
    return X, y + noise * rng.standard_normal(len(task)), task


@pytest.mark.parametrize("seed", [0, 3, 6])
def test_the_adaptive_structure_is_the_same_for_repeated_and_for_weighted_rows(seed):
    X, y, task = few_rows(seed, 6 + 6 * (seed % 2), [0.3, 1.0][seed % 2])
    times = np.where(np.random.default_rng(seed).random(len(y)) < 0.3, 4, 1)
    weighted = ss.AdaptiveSpanRegressor().fit(X, y, task, sample_weight=times)
    repeated = ss.AdaptiveSpanRegressor().fit(*(v.repeat(times, axis=0) for v in (X, y, task)))
    for name in ("slopes_", "rank_", "noise_", "widening_"):
        assert getattr(weighted, name) == getattr(repeated, name)
    assert relative(weighted.predict(X, task), repeated.predict(X, task)) < 1e-8


@pytest.mark.parametrize("seed", range(3))
def test_a_constant_feature_does_not_change_the_adaptive_structure(seed):
    X, y, task = few_rows(seed, 6 + 6 * (seed % 2), [0.3, 1.0][seed % 2])
    plain = ss.AdaptiveSpanRegressor().fit(X, y, task)
    wide = np.column_stack([X, np.full(len(y), 0.3)])
    model = ss.AdaptiveSpanRegressor().fit(wide, y, task)
    for name in ("slopes_", "rank_", "noise_", "widening_"):
        assert getattr(model, name) == getattr(plain, name)
    assert_allclose(model.coef_[:, -1], 0.0)
    assert relative(model.predict(wide, task), plain.predict(X, task)) < 1e-8


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_rank_above_the_features_that_vary_is_fitted(rank):
    X, y, task = few_rows(0, 6, 0.3)
    wide = np.column_stack([X[:, 0], np.full(len(y), 0.3)])
    model = ss.AdaptiveSpanRegressor(rank=rank).fit(wide, y, task)
    assert np.isfinite(model.predict(wide, task)).all()
    assert_allclose(model.coef_[:, 1], 0.0)


@pytest.mark.parametrize("labels", [(0, 1, 2), ("a", "b", "c")])
def test_classes_that_only_rows_of_weight_zero_have_are_absent(labels):
    X, y, task = few_rows(1, 6, 1.0)
    named = np.array(labels)[(y > np.median(y)).astype(int)]
    weight = np.ones(len(y))
    named[::9], weight[::9] = labels[2], 0.0
    model = ss.AdaptiveSpanClassifier(rank=0).fit(X, named, task, sample_weight=weight)
    kept = weight > 0
    expected = ss.AdaptiveSpanClassifier(rank=0).fit(X[kept], named[kept], task[kept])
    assert model.classes_.tolist() == list(labels[:2])
    assert_allclose(model.coef_, expected.coef_, rtol=1e-8)
