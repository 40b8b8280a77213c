"""Tasks of few rows whose features move together, in units that differ by powers of ten.

They are like tables of countries by year: every country has the same twelve years, its population
is nearly a straight line of the year, and some countries change a hundred times more than others.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

import sharedspan as ss
from conftest import statistics_of
from oracles import relative
from sharedspan.inference import rank_selection
from sharedspan.inputs.rows import validate_rows
from sharedspan.objective import build_objective
from sharedspan.solvers.slow_directions import curvature_spread
from sharedspan.statistics.folds import assign_folds, hash_key

YEARS = np.arange(1952.0, 2008.0, 5.0)
T = 60


def countries(seed=0):
    """X (T * 12, 3), y and task: years, log population and log income."""
    rng = np.random.default_rng(seed)
    elapsed = np.tile((YEARS - YEARS.mean()) / YEARS.std(), (T, 1))
    bent = np.exp(rng.normal(-3.0, 1.0, (T, 1))) * rng.standard_normal((T, 12))
    people = 15 + rng.lognormal(-1.0, 0.7, (T, 1)) * (elapsed + bent)
    change = np.exp(rng.normal(-1.0, 1.0, (T, 1)))
    income = 8 + change * (elapsed + 0.3 * rng.standard_normal((T, 12)))
    coef = rng.standard_normal((T, 2)) @ np.array([[3.0, 1.0, 2.0], [0.0, 2.0, -1.0]])
    features = np.stack([elapsed, people - 15, income - 8], axis=2)
    y = 60 + np.einsum("tij,tj->ti", features, coef) + 0.5 * rng.standard_normal((T, 12))
    X = np.stack([np.tile(YEARS, (T, 1)), people, income], axis=2)
    return X.reshape(-1, 3), y.ravel(), np.repeat(np.arange(T), 12)


def fit(X, y, task, **options):
    return ss.SharedSpanRegressor(random_state=0, **options).fit(X, y, task=task)


def test_whitening_leaves_tasks_of_collinear_rows_ill_conditioned():
    X, y, task = countries()
    within = X - np.array([X[task == t].mean(axis=0) for t in range(T)])[task]
    root = np.linalg.cholesky(np.linalg.inv(within.T @ within / len(y)))
    objective = build_objective(statistics_of(within @ root, y, task))
    pooled = sum(objective.curvature(t) for t in range(T)) / T
    assert_allclose(pooled, np.eye(3), atol=1e-8)
    assert curvature_spread(objective, np.eye(3)) > 1e4


def test_the_spread_of_curvatures_is_that_of_the_eigenvalues(rng):
    X, y, task = rng.standard_normal((60, 3)), rng.standard_normal(60), np.repeat(np.arange(5), 12)
    objective = build_objective(statistics_of(X, y, task, centred=False))
    values = [np.linalg.eigvalsh(X[task == t].T @ X[task == t]) for t in range(5)]
    assert_allclose(curvature_spread(objective, 7 * np.eye(3)), np.max(values) / np.min(values))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_auto_needs_few_iterations_where_tasks_have_few_collinear_rows(rank):
    for seed in range(3):
        model = fit(*countries(seed), rank=rank)
        assert model.converged_
        assert model.n_iter_ <= 40


@pytest.mark.parametrize("rank", ["auto", 2])
def test_iterations_of_auto_do_not_depend_on_the_scales_of_features(rank):
    X, y, task = countries()
    units = np.array([2.0**-20, 1.0, 2.0**30])
    one, other = (fit(X * scale, y, task, rank=rank) for scale in (np.ones(3), units))
    assert other.rank_ == one.rank_
    assert abs(other.n_iter_ - one.n_iter_) <= 1
    assert relative(other.coef_ * units, one.coef_) < 1e-5


def test_the_path_of_ranks_takes_few_iterations_where_tasks_have_few_collinear_rows(monkeypatch):
    taken, run = [], rank_selection.run

    def watched(*args, **options):
        result = run(*args, **options)
        taken.append(result.n_iter)
        return result

    monkeypatch.setattr(rank_selection, "run", watched)
    fit(*countries(), rank="auto")
    assert sum(taken) < 2500  # six paths of three ranks


def test_the_error_of_the_full_rank_is_that_of_separate_fits_however_slow_descent_is():
    X, y, task = countries()
    model = fit(X, y, task, rank="auto")
    rows = validate_rows(X, y, task, None)
    folds = assign_folds(rows, hash_key(3, np.random.default_rng(0)), 5)
    fold = np.empty(len(y), int)
    fold[np.arange(len(y)) if rows.order is None else rows.order] = folds
    total = 0.0
    for t in range(T):
        for f in range(5):
            kept, left = (task == t) & (fold != f), (task == t) & (fold == f)
            mean = X[kept].mean(axis=0)
            beta = np.linalg.lstsq(X[kept] - mean, y[kept] - y[kept].mean(), rcond=None)[0]
            total += np.sum((y[left] - y[kept].mean() - (X[left] - mean) @ beta) ** 2)
    assert_allclose(model.rank_path_.loss[2], total / len(y), rtol=1e-3)


@pytest.mark.parametrize("solver", ["tpgd", "gd", "scaled_gd"])
def test_gradient_descent_names_collinear_rows_as_the_reason_why_it_is_slow(solver):
    with pytest.warns(
        ConvergenceWarning, match=r"are nearly collinear within tasks.*solver='auto'"
    ):
        model = fit(*countries(), rank=2, solver=solver, max_iter=60)
    assert not model.converged_


def test_weak_directions_and_few_iterations_are_still_answered_by_more_of_them():
    sim = ss.simulate(n_tasks=60, n_features=20, rank=2, n_samples=100, random_state=0)
    for table, solver in (((sim.X, sim.y, sim.task), "tpgd"), (countries(), "auto")):
        with pytest.warns(ConvergenceWarning, match="Raise max_iter") as caught:
            fit(*table, rank=2, solver=solver, max_iter=2)
        assert all("solver='auto', which" not in str(one.message) for one in caught)


def test_the_warning_says_how_far_the_weights_are_from_the_best():
    X, y, task = countries()
    with pytest.warns(ConvergenceWarning, match="lower the loss by") as caught:
        model = fit(X, y, task, rank=3, solver="tpgd", max_iter=300)
    share = float(str(caught[-1].message).split("lower the loss by ")[1].split(" %")[0])
    residual = y - model.predict(X, task)
    best = fit(X, y, task, rank=3)
    least = y - best.predict(X, task)
    gap = 100 * (1 - np.sum(least**2) / np.sum(residual**2))
    assert_allclose(share, gap, rtol=0.5)
