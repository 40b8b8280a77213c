"""Leave-one-out errors against fits without the row, and the model that they select."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import trapezoid
from scipy.special import gammaln
from scipy.stats import norm, poisson

import sharedspan as ss
from sharedspan.families import family_of
from sharedspan.inputs.rows import validate_rows
from sharedspan.mixed_model import likelihood
from sharedspan.mixed_model.held_out import HeldOutRows, _gain, select_by_rows
from sharedspan.mixed_model.held_out_responses import HeldOutResponses
from sharedspan.mixed_model.laplace import FamilyOptimizer
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.modes import FamilyRows
from sharedspan.mixed_model.optimize import CovarianceOptimizer
from sharedspan.mixed_model.search import SelectedModel
from sharedspan.mixed_model.terms import Covariance, Scaling
from sharedspan.statistics.canonical import Canonical, canonical
from sharedspan.statistics.task_statistics import Units, collect, gather


@pytest.mark.parametrize("levels", [False, True])
def test_errors_are_those_of_predictions_from_all_other_rows(levels):
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(6), [4, 5, 7, 3, 6, 8])
    X = rng.standard_normal((len(task), 3)) * [1, 2, 0.5] + 1
    y = X @ [1.0, -1.0, 0.5] + 0.4 * task + rng.standard_normal(len(task))
    rows = validate_rows(X, y, task, None)
    units = Units(np.zeros(3), np.ones(3), 1.0)
    statistics = collect(rows, units, True, "gram")
    noise = rng.uniform(0.5, 2.0, 6) if levels else np.ones(6)
    tasks = MixedTasks(statistics, Scaling.of(statistics, True), noise)
    fit = CovarianceOptimizer(tasks).fit("diagonal")
    fit = CovarianceOptimizer(tasks).fit("diagonal", 1, fit)
    held_out = HeldOutRows(rows, np.arange(6), Canonical(units, None), tasks)
    squares = held_out.squares(SelectedModel(fit, tasks=tasks, flat=False))
    # All rows as one Gaussian vector; each is predicted from the others.
    Z, u = held_out.Z, held_out.y
    prior = tasks.prior_precision(fit.taus)
    prior[0] = 1e-9  # the intercept of the mean is flat
    S = np.diag(noise[task]) + Z @ np.diag(1 / prior) @ Z.T
    for t in range(6):
        own = np.flatnonzero(task == t)
        S[np.ix_(own, own)] += Z[own] @ fit.covariance.matrix @ Z[own].T
    for i in range(len(u)):
        rest = np.arange(len(u)) != i
        predicted = S[i, rest] @ np.linalg.solve(S[np.ix_(rest, rest)], u[rest])
        assert_allclose(squares[i], (u[i] - predicted) ** 2, rtol=1e-4, atol=1e-7)


@pytest.mark.filterwarnings("ignore:Of 2,700 rows")  # the noisiest rows make up most errors
@pytest.mark.parametrize("seed", [0, 1])
def test_noise_that_grows_with_the_fitted_value_is_not_taken_for_directions(seed):
    """The likelihood alone prefers several directions here; the true effects have none."""
    rng = np.random.default_rng(seed)
    T, n, d = 300, 12, 8
    task = np.repeat(np.arange(T), n)
    size = np.exp(rng.standard_normal(T)[task] + 0.7 * rng.standard_normal(T * n))
    X = rng.poisson(3 * size[:, None] * np.linspace(0.3, 2, d)).astype(float)
    mean = X @ np.linspace(0.1, 0.5, d)
    level = 0.3 * rng.standard_normal(T)[task]
    y = mean + level + np.sqrt(0.05 * mean**2 + 0.1 * mean) * rng.standard_normal(T * n)
    train = np.tile(np.arange(n) < 9, T)
    model = ss.AdaptiveSpanRegressor(noise="shared").fit(X[train], y[train], task=task[train])
    best = max(model.candidates_, key=lambda candidate: candidate["score"])
    assert best["rank"] > 0
    assert model.rank_ == 0
    forced = ss.AdaptiveSpanRegressor(noise="shared", rank=best["rank"], slopes=best["slopes"])
    forced.fit(X[train], y[train], task=task[train])
    errors = [
        np.sqrt(np.mean((m.predict(X[~train], task=task[~train]) - y[~train]) ** 2))
        for m in (model, forced)
    ]
    assert errors[0] <= 1.002 * errors[1]


def searched(seed, T=80, n=10):
    """Rows and a model of tasks whose effects have unit variance, as the noise has."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(T), n)
    X = rng.standard_normal((T * n, 2))
    y = np.einsum("ij,ij->i", X, rng.standard_normal((T, 2))[task]) + rng.standard_normal(T * n)
    rows = validate_rows(X, y, task, None)
    units = Units(np.zeros(2), np.ones(2), 1.0)
    statistics = collect(rows, units, True, "gram")
    tasks = MixedTasks(statistics, Scaling.of(statistics, True))
    fit = CovarianceOptimizer(tasks).fit("diagonal")
    held_out = HeldOutRows(rows, np.arange(T), Canonical(units, None), tasks)
    return held_out, SelectedModel(fit, tasks=tasks, flat=False)


@pytest.mark.parametrize("seed", range(5))
def test_a_covariance_that_shrinks_too_much_is_widened_and_a_right_one_is_not(seed):
    rows, model = searched(seed)
    assert select_by_rows(rows, [model]).widening == 1
    narrow = replace(model, fit=replace(model.fit, covariance=model.fit.covariance.scaled(0.02)))
    widened = select_by_rows(rows, [narrow])
    assert widened.widening >= 10
    assert rows.squares(widened).sum() < rows.squares(narrow).sum()


@pytest.mark.parametrize("seed", range(5))
def test_a_simpler_fit_needs_less_of_a_lead_than_a_richer_one(seed):
    rows, model = searched(seed)
    pooled = CovarianceOptimizer(model.tasks).fit("zero")
    assert select_by_rows(rows, [replace(model, rivals=(pooled,))]).fit is model.fit
    assert select_by_rows(rows, [replace(model, fit=pooled, rivals=(model.fit,))]).fit is model.fit


def test_a_covariance_is_d_plus_the_square_of_its_loadings():
    rng = np.random.default_rng(0)
    C = Covariance(np.array([0.5, 0.0, 2.0]), rng.standard_normal((3, 2)))
    assert_allclose(C.root @ C.root.T, C.matrix, atol=1e-14)
    assert C.root.shape == (3, 4)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("factor", [3, 10, 30])
def test_a_covariance_is_widened_by_as_much_as_it_was_too_small(seed, factor):
    rows, model = searched(seed)
    small = model.fit.covariance.scaled(1 / factor)
    narrow = replace(model, fit=replace(model.fit, covariance=small))
    assert select_by_rows(rows, [narrow]).widening == factor


@pytest.mark.parametrize("parameters", [1, 2])
def test_a_parameter_must_save_two_noise_variances(parameters):
    """Mallows' price: rows that took part in a fit have errors that are too small by as much."""
    rows, model = searched(0)
    price = 0.5 * np.log(rows.n_tasks)
    rival = replace(model, fit=replace(model.fit, penalty=model.fit.penalty + parameters * price))
    noise = rows.noise(rows.squares(model))
    for saved, pays in ((1.9, False), (2.1, True)):
        # The same share of the savings in each row, so that they have no standard error.
        rows._squares.clear()
        fewer = rows.squares(model) - saved * parameters * noise / len(rows.y)
        rows._squares[id(rival.fit), id(rival.tasks), rival.widening] = rival, fewer
        gain = _gain(rows, rows.squares(model), model, rival, 0.0)
        assert (gain > 0) == pays


def test_left_out_counts_are_predicted_as_from_the_other_rows(monkeypatch):
    """Against the mode and curvature of b and all effects at once, without the row."""
    rng, (T, n) = np.random.default_rng(0), (20, 5)
    monkeypatch.setattr(likelihood, "CHUNK_ENTRIES", 32)  # tasks of several chunks
    task, X = np.repeat(np.arange(T), n), rng.standard_normal((T * n, 1))
    effects = rng.standard_normal((T, 2))[task] * [0.5, 0.3]
    y = rng.poisson(np.exp(7 + 0.3 * X[:, 0] + effects[:, 0] + effects[:, 1] * X[:, 0]))
    rows = replace(validate_rows(X, y.astype(float), task, None), offset=np.zeros(len(y)))
    problem = canonical(gather(rows, True), "scaled", rng)
    scaling = replace(Scaling.of(problem.statistics, True), y_centre=0.0, y_scale=1.0)
    source = FamilyRows(rows, problem.canonical, scaling, family_of("poisson"), True)
    source.centre()
    optimizer = FamilyOptimizer(source, False, False)
    fit = optimizer.fit("diagonal", start=optimizer.fit("diagonal"))
    responses = HeldOutResponses(source)
    losses = responses.squares(SelectedModel(fit, tasks=fit.modes.tasks, flat=False))
    prior = fit.modes.tasks.prior_precision(fit.taus)
    Z, own = responses.Z, responses.Z @ fit.covariance.root
    of_task = (task[:, None] == np.arange(T)).astype(float)
    G = np.hstack([Z, np.einsum("it,ij->itj", of_task, own).reshape(len(y), -1)])
    precision = np.diag(np.append(prior, np.ones(G.shape[1] - len(prior))))
    for i in range(0, len(y), 7):
        rest, at = np.arange(len(y)) != i, np.zeros(G.shape[1])
        for _ in range(30):
            mean = rest * np.exp(responses.offset + G @ at)
            H = precision + G.T @ (mean[:, None] * G)
            at = at + np.linalg.solve(H, G.T @ (rest * y - mean) - precision @ at)
        spread = np.sqrt(G[i] @ np.linalg.solve(H, G[i]))
        around = np.linspace(-8, 8, 4001)
        means = np.exp(responses.offset[i] + G[i] @ at + spread * around)
        expected = -2 * np.log(trapezoid(poisson.pmf(y[i], means) * norm.pdf(around), around))
        assert losses[i] + 2 * gammaln(y[i] + 1) == pytest.approx(expected, abs=0.08)
