"""Errors of rows that were left out of a fit, and the models that they select with few tasks."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.estimators import mixed
from sharedspan.inputs.rows import validate_rows
from sharedspan.mixed_model import held_out, refitted_folds
from sharedspan.mixed_model.held_out import HeldOutRows
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.optimize import CovarianceOptimizer
from sharedspan.mixed_model.refitted_folds import N_FOLDS, RefittedFolds
from sharedspan.mixed_model.search import (
    COMPARISON_TOL,
    SelectedModel,
    moment_covariance,
    truncated,
)
from sharedspan.mixed_model.terms import Scaling
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.task_statistics import Units, collect


def problem(X, y, task, weight=None, kind="gram"):
    """The folds of a table, and a model with one direction."""
    rows = validate_rows(X, y, task, weight)
    d = X.shape[1]
    units = Units(np.zeros(d), np.ones(d), 1.0)
    statistics = collect(rows, units, True, kind)
    tasks = MixedTasks(statistics, Scaling.of(statistics, True))
    optimizer = CovarianceOptimizer(tasks)
    fit = optimizer.fit("isotropic", 1, optimizer.fit("isotropic"))
    held_out = HeldOutRows(rows, np.arange(tasks.n_tasks), Canonical(units, None), tasks)
    return RefittedFolds(held_out), SelectedModel(fit, tasks=tasks, flat=False)


def table(seed=0, T=6, n=11, d=3):
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(T), n)
    X = rng.standard_normal((T * n, d)) * np.linspace(0.5, 2, d) + 1
    y = np.einsum("ij,ij->i", X, rng.standard_normal((T, d))[task]) + rng.standard_normal(T * n)
    return X, y, task


@pytest.mark.parametrize("kind", ["gram", "rows"])
def test_errors_are_those_of_predictions_by_fits_without_the_fold(kind):
    X, y, task = table()
    folds, model = problem(X, y, task, kind=kind)
    assert sorted(np.concatenate(folds.folds)) == list(range(len(y)))
    assert len(folds.folds) == N_FOLDS
    squares, scaling = folds.squares(model), model.tasks.scaling
    Z = scaling.to_standard(X, True)
    u = (y - scaling.y_centre) / scaling.y_scale
    for fold in folds.folds:
        rest = np.setdiff1d(np.arange(len(y)), fold)
        units = Units(np.zeros(3), np.ones(3), 1.0)
        statistics = collect(validate_rows(X[rest], y[rest], task[rest]), units, True, "gram")
        optimizer = CovarianceOptimizer(MixedTasks(statistics, scaling))
        base = optimizer.fit("isotropic", tol=COMPARISON_TOL)
        start = truncated(optimizer, base, moment_covariance(optimizer, base), 1)
        fit = optimizer.fit("isotropic", 1, start, tol=COMPARISON_TOL)
        # The posterior mean of all rows as one Gaussian vector.
        prior = np.append(1e9, np.full(3, fit.tau))
        same = task[:, None] == task
        S = Z @ np.diag(prior) @ Z.T + same * (Z @ fit.covariance.matrix @ Z.T)
        inner = S[np.ix_(rest, rest)] + np.eye(len(rest))
        predicted = S[np.ix_(fold, rest)] @ np.linalg.solve(inner, u[rest])
        assert_allclose(squares[fold], (u[fold] - predicted) ** 2, rtol=1e-3, atol=1e-5)


def test_neither_the_order_of_rows_nor_repeated_rows_matter():
    X, y, task = table(1)
    folds, model = problem(X, y, task)
    order = np.random.default_rng(0).permutation(len(y))
    shuffled, other = problem(X[order], y[order], task[order])
    assert_allclose(shuffled.squares(other).sum(), folds.squares(model).sum(), rtol=1e-6)
    twice = np.append(np.arange(len(y)), np.arange(0, len(y), 3))
    weight = np.bincount(twice).astype(float)
    repeated, other = problem(X[twice], y[twice], task[twice])
    weighted, model = problem(X, y, task, weight)
    assert_allclose(repeated.squares(other).sum(), weighted.squares(model).sum(), rtol=1e-6)


@pytest.mark.parametrize(
    ("d", "T", "k", "n", "seed"),
    [(30, 8, 1, 19, 1701), (27, 8, 1, 23, 402), (21, 11, 1, 26, 1201), (27, 23, 4, 19, 1902)],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_with_few_tasks_the_rank_costs_little_though_it_is_not_known(d, T, k, n, seed):
    sim = ss.simulate(n_tasks=T, n_features=d, rank=k, n_samples=n, noise=0.5, random_state=seed)
    models = ss.AdaptiveSpanRegressor(), ss.SharedSpanRegressor(rank=k)
    ours, known = (
        ss.parameter_error(model.fit(sim.X, sim.y, task=sim.task).coef_, sim.coef) ** 0.5
        for model in models
    )
    assert ours <= 1.15 * known


def test_far_richer_fits_are_not_judged_as_known_where_rows_are_few(monkeypatch):
    """Refits would judge them, but are left out where they take too long."""
    judged = []

    def select(rows, models):
        judged.extend(models)
        return held_out.select_by_rows(rows, models)

    monkeypatch.setattr(mixed, "select_by_rows", select)
    monkeypatch.setattr(refitted_folds, "MOST_WORK", 0.0)
    monkeypatch.setattr(refitted_folds, "LARGEST_GAP", 10.0)
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(20), 12)
    X = rng.standard_normal((240, 14))
    V = rng.standard_normal(14) + 0.5 * rng.standard_normal((20, 2)) @ rng.standard_normal((2, 14))
    y = np.einsum("ij,ij->i", X, V[task]) + 2 * rng.standard_normal(240)
    ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    assert any(fit.penalty < model.fit.penalty for model in judged for fit in model.rivals)
    for model in judged:
        for fit in model.rivals:
            assert fit.penalty <= model.fit.penalty or fit.score > model.fit.score - 10.0
