"""Standard errors in an estimated span, intervals and deviations of new responses."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import sharedspan as ss
from conftest import statistics_of
from oracles import exact_als, ordinary_least_squares, relative
from sharedspan.inference import span_errors, span_information
from sharedspan.inference.span_information import span_uncertainty
from sharedspan.inputs.rows import validate_rows
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.task_statistics import Units


def fit(sim, **options):
    options = {"rank": sim.representation.shape[1], "random_state": 0, "tol": 1e-9} | options
    return ss.SharedSpanRegressor(**options).fit(sim.X, sim.y, task=sim.task)


@pytest.fixture(scope="module")
def tiny():
    """Six unequal tasks of rank 2 in four features, with hardly any noise."""
    return ss.simulate(
        n_tasks=6, n_features=4, rank=2, n_samples=[7, 8, 9, 10, 11, 12], noise=1e-5,
        intercept=1.0, random_state=2,
    )  # fmt: skip


def test_full_rank_is_ordinary_least_squares(rng):
    sim = ss.simulate(
        n_tasks=5, n_features=3, rank=3, n_samples=[9, 12, 20, 30, 40], intercept=2.0,
        random_state=0,
    )  # fmt: skip
    model, new = fit(sim), rng.standard_normal((4, 3)) + 1.0
    for t in range(5):
        rows, level = sim.task == t, model.noise_variance_[t]
        slopes, responses = ordinary_least_squares(sim.X[rows], sim.y[rows], new, level)
        assert_allclose(model.coef_std_[t], slopes, rtol=1e-9)
        assert_allclose(model.predict(new, t, return_std=True)[1], responses, rtol=1e-9)
    assert model.degrees_of_freedom_ == 5 * 3 + 5


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_with_little_noise_it_is_the_numerical_delta_method(tiny, fit_intercept):
    """Compared with finite differences of the minimiser in every response."""
    options = {"k": 2, "intercept": fit_intercept, "sweeps": 20_000, "tol": 1e-15}
    level = np.zeros(len(tiny.y)) if fit_intercept else tiny.intercept[tiny.task]
    y = tiny.y - level
    model = ss.SharedSpanRegressor(rank=2, fit_intercept=fit_intercept, random_state=0, tol=1e-10)
    model.fit(tiny.X, y, task=tiny.task)
    step, jacobian = 1e-4, []
    start = model.coef_
    for i in range(len(y)):
        ends = [exact_als(tiny.X, y + sign * step * (np.arange(len(y)) == i), tiny.task,
                          start=start, **options) for sign in (1, -1)]  # fmt: skip
        jacobian.append((ends[0] - ends[1]) / (2 * step))
    expected = np.sqrt(model.noise_variance_[0] * np.sum(np.square(jacobian), axis=0))
    assert relative(model.coef_std_, expected) < 1e-4


def test_other_units_change_standard_errors_as_they_change_coefficients(small):
    model, factor = fit(small), 10.0 ** np.arange(-4, 4)
    other = clone(model).fit(small.X * factor + 3.0, 7 * small.y, task=small.task)
    assert_allclose(other.coef_std_ * factor / 7, model.coef_std_, rtol=1e-5)
    (mean, std), (other_mean, other_std) = (
        one.predict(X, small.task, return_std=True)
        for one, X in ((model, small.X), (other, small.X * factor + 3.0))
    )
    assert_allclose(other_mean / 7, mean, rtol=1e-4, atol=1e-4)
    assert_allclose(other_std / 7, std, rtol=1e-5)
    plain = fit(small, whiten=False, solver="als")
    assert_allclose(plain.coef_std_, model.coef_std_, rtol=1e-4)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_extreme_units_do_not_overflow(small, scale):
    model = fit(small)
    other = clone(model).fit(small.X * scale, small.y, task=small.task)
    assert_allclose(other.coef_std_ * scale, model.coef_std_, rtol=1e-5)


@pytest.mark.parametrize("centred", [True, False])
def test_rows_and_grams_agree(small, centred, monkeypatch):
    """Tasks are processed in several blocks, too."""
    B = np.linalg.qr(small.representation + 0.1)[0]
    noise = np.linspace(0.05, 0.2, 40)
    canonical = Canonical(Units.of(validate_rows(small.X, small.y, small.task), centred), None)
    results = []
    for kind, block in (("gram", 1 << 20), ("gram", 300), ("rows", 300)):
        for module in (span_errors, span_information):
            monkeypatch.setattr(module, "SLICE_NUMBERS", block)
        statistics = statistics_of(small.X, small.y, small.task, centred=centred, kind=kind)
        results.append(
            span_uncertainty(statistics, canonical, B, small.task_weights, noise, np.full(40, 9.0))
        )
        assert results[-1].coef_std.shape == (40, 8)
    for other in results[1:]:
        assert_allclose(other.coef_std, results[0].coef_std, rtol=1e-10)
        assert_allclose(
            other.response_std(small.X, small.task), results[0].response_std(small.X, small.task),
            rtol=1e-10,
        )  # fmt: skip


def test_another_basis_of_the_span_changes_nothing(small, rng):
    mix = rng.standard_normal((2, 2)) + 2 * np.eye(2)
    canonical = Canonical(Units.of(validate_rows(small.X, small.y, small.task), True), None)
    statistics = statistics_of(small.X, small.y, small.task)
    B, W = small.representation, small.task_weights
    one, other = (
        span_uncertainty(
            statistics, canonical, B @ A, np.linalg.solve(A, W), np.full(40, 0.1), np.full(40, 9.0)
        )
        for A in (np.eye(2), mix)
    )
    assert_allclose(other.coef_std, one.coef_std, rtol=1e-10)
    assert_allclose(
        other.representation_covariance(B), one.representation_covariance(B), atol=1e-12
    )


def test_a_row_written_twice_is_a_row_of_weight_two(small):
    twice = np.arange(len(small.y)) % 3 == 0
    at = np.concatenate([np.arange(len(small.y)), np.flatnonzero(twice)])
    model = fit(small)
    weighted = clone(model).fit(small.X, small.y, small.task, sample_weight=1.0 + twice)
    written = clone(model).fit(small.X[at], small.y[at], small.task[at])
    assert_allclose(weighted.coef_std_, written.coef_std_, rtol=1e-6)


def test_large_spans_are_close_to_exact_ones(monkeypatch):
    sim = ss.simulate(
        n_tasks=60, n_features=20, rank=3, n_samples=60, feature_condition=10, random_state=0
    )
    exact = fit(sim)
    expected = exact.coef_std_, exact.predict(sim.X, sim.task, return_std=True)[1]
    monkeypatch.setattr(span_errors, "LARGEST_EXACT", 10)
    rough = fit(sim)
    assert rough.representation_covariance_ is None
    assert_allclose(rough.coef_std_, expected[0], rtol=0.15)
    assert_allclose(np.mean(rough.coef_std_ / expected[0]), 1.0, atol=0.02)
    assert_allclose(rough.predict(sim.X, sim.task, return_std=True)[1], expected[1], rtol=0.02)
    assert ss.NewTaskRegressor.from_model(rough).representation_covariance is None


def test_tasks_that_are_noisier_are_less_certain():
    noise = np.repeat([0.2, 1.0], 15)
    sim = ss.simulate(n_tasks=30, n_features=6, rank=2, n_samples=40, noise=noise, random_state=0)
    model = fit(sim, noise="per_task")
    ratio = np.median(model.coef_std_[15:]) / np.median(model.coef_std_[:15])
    assert 3 < ratio < 6
    low, high = model.coef_interval()
    covered = np.mean((low < sim.coef) & (sim.coef < high), axis=1)
    assert min(covered[:15].mean(), covered[15:].mean()) > 0.9
    _, std = model.predict(sim.X, sim.task, return_std=True)
    assert (std > np.sqrt(model.noise_variance_[sim.task])).all()


def test_intervals_cover_the_truth_where_rows_are_few():
    """Half as many rows as features; `benchmarks/intervals.py` has the whole table."""
    covered = []
    for seed in range(12):
        sim = ss.simulate(
            n_tasks=80, n_features=20, rank=2, n_samples=10, condition_number=1.5,
            random_state=seed,
        )  # fmt: skip
        known = sim.task < 40
        model = ss.SharedSpanRegressor(rank=2, random_state=0, tol=1e-4)
        model.fit(sim.X[known], sim.y[known], task=sim.task[known])
        new = ss.NewTaskRegressor.from_model(model)
        new.fit(sim.X[~known], sim.y[~known], task=sim.task[~known])
        row = []
        for estimator, rows, coef in (
            (model, ~known, sim.coef[:40]), (new, known, sim.coef[40:])
        ):  # fmt: skip
            low, high = estimator.coef_interval(0.95)
            row.append(np.mean((low < coef) & (coef < high)))
            X, label = sim.X[rows], np.repeat(np.arange(40), 10)
            noise = 0.5 * np.random.default_rng(seed).standard_normal(len(X))
            y = np.einsum("ij,ij->i", X, coef[label]) + noise
            mean, std = estimator.predict(X, estimator.tasks_[label], return_std=True)
            row.append(np.mean(np.abs(y - mean) < 1.96 * std))
        covered.append(row)
    means = np.mean(covered, axis=0)
    assert (means > 0.92).all(), means
    assert (means < 0.975).all(), means


def test_lists_unseen_tasks_and_pickles(small):
    model = fit(small, unseen="mean")
    cuts = np.cumsum(np.bincount(small.task))[:-1]
    means, stds = model.predict(np.split(small.X, cuts), return_std=True)
    mean, std = model.predict(small.X, small.task, return_std=True)
    assert np.array_equal(np.concatenate(means), mean)
    assert_allclose(np.concatenate(stds), std, rtol=1e-12)
    assert np.array_equal(mean, model.predict(small.X, small.task))
    labels = np.where(np.arange(len(mean)) % 2, small.task, -5)
    mixed = model.predict(small.X, labels, return_std=True)[1]
    assert_allclose(mixed[1::2], std[1::2], rtol=1e-12)
    alone = model.predict(small.X[::2], -5, return_std=True)[1]
    assert_allclose(mixed[::2], alone, rtol=1e-12)
    of_all = model.intercept_[:, None] + model.coef_ @ small.X[::2].T
    expected = np.var(of_all, axis=0, ddof=1) * (1 + 1 / 40) + model.noise_variance_[0]
    assert_allclose(alone, np.sqrt(expected), rtol=1e-8)
    copy = pickle.loads(pickle.dumps(model))
    assert np.array_equal(copy.coef_std_, model.coef_std_)
    assert len(pickle.dumps(model)) < 8 * model.coef_.nbytes + 60_000


def test_tasks_without_enough_rows_are_very_uncertain_and_others_are_not():
    sim = ss.simulate(
        n_tasks=20, n_features=5, rank=2, n_samples=[1, 2, *[30] * 18], random_state=0
    )
    model = fit(sim, solver="als", tol=1e-6)
    assert np.isfinite(model.coef_std_).all()
    assert model.coef_std_[:2].max(axis=1).min() > 1e3
    assert model.coef_std_[2:].max() < 1.0


def test_an_exact_fit_is_certain(rng):
    X = rng.standard_normal((60, 3))
    task = np.repeat(np.arange(6), 10)
    y = np.full(60, 2.0)
    model = ss.SharedSpanRegressor(rank=1, random_state=0).fit(X, y, task)
    assert_allclose(model.coef_std_, 0.0, atol=1e-12)
    assert_allclose(model.predict(X, task, return_std=True)[1], 0.0, atol=1e-12)


def test_mistakes_are_explained(small):
    model = ss.SharedSpanRegressor(rank=2, random_state=0)
    for ask in (lambda: model.coef_std_, model.coef_interval):
        with pytest.raises(NotFittedError):
            ask()
    assert not hasattr(model, "coef_std_")
    model.fit(small.X, small.y, small.task)
    for level in (0, 1, 95, -0.5):
        with pytest.raises(ValueError, match="level"):
            model.coef_interval(level)
    with pytest.raises(TypeError, match="level"):
        model.coef_interval("95")
    with pytest.raises(ValueError, match="not in the fit"):
        model.predict(small.X[:2], "new", return_std=True)
    new = ss.NewTaskRegressor.from_model(model, "sgd").fit(small.X, small.y, small.task)
    assert not hasattr(new, "coef_std_")
    with pytest.raises(AttributeError, match="least_squares"):
        new.predict(small.X, small.task, return_std=True)
    C = np.eye(16)
    C[0, 1] = 0.5
    for bad, message in ((np.eye(4), "shape"), (C, "symmetric"), (-np.eye(16), "negative")):
        wrong = ss.NewTaskRegressor(model.representation_, representation_covariance=bad)
        with pytest.raises(ValueError, match=message):
            wrong.fit(small.X, small.y, small.task)


@pytest.mark.parametrize("make", [ss.SharedSpanRegressor, ss.AdaptiveSpanRegressor])
def test_intervals_of_predictions_cover_new_responses_at_their_level(make):
    sim = ss.simulate(n_tasks=40, n_features=8, rank=2, n_samples=60, noise=0.5, random_state=1)
    fit = np.arange(len(sim.y)) % 2 == 0
    model = make(random_state=0, unseen="mean").fit(sim.X[fit], sim.y[fit], task=sim.task[fit])
    for level in (0.5, 0.9):
        low, high = model.predict_interval(sim.X[~fit], task=sim.task[~fit], level=level)
        covered = np.mean((low < sim.y[~fit]) & (sim.y[~fit] < high))
        assert covered == pytest.approx(level, abs=0.05)  # three standard errors of 1,200 rows
    mean, std = model.predict(sim.X[:5], task=sim.task[:5], return_std=True)
    low, high = model.predict_interval(sim.X[:5], task=sim.task[:5], level=0.9)
    degrees = model.uncertainty().degrees[sim.task[:5]]
    assert_allclose((high + low) / 2, mean, rtol=1e-9)
    assert_allclose((high - low) / 2 / std, stats.t.ppf(0.95, degrees), rtol=1e-9)
    low, high = model.predict_interval(sim.X[:1], task=["new"], level=0.9)
    _, std = model.predict(sim.X[:1], task=["new"], return_std=True)
    # The spread between tasks is known from 40 of them, if the model has a population.
    expected = stats.t(39) if model.shares == "population" else stats.norm
    assert_allclose((high - low) / 2 / std, expected.ppf(0.95), rtol=1e-9)
    with pytest.raises(ValueError, match="between 0 and 1"):
        model.predict_interval(sim.X[:1], task=["new"], level=95.0)


def test_standard_errors_wait_until_they_are_asked_for(small, monkeypatch):
    passes = []
    compute = span_information.span_uncertainty
    monkeypatch.setattr(
        span_information, "span_uncertainty", lambda *a: passes.append(1) or compute(*a)
    )
    for keep in (True, False):
        passes.clear()
        model = ss.SharedSpanRegressor(rank=2, random_state=0, keep_statistics=keep)
        model.fit(small.X, small.y, task=small.task).predict(small.X, small.task)
        assert passes == []
        stds = model.coef_std_
        model.predict(small.X, small.task, return_std=True)
        assert passes == [1]
        again = pickle.loads(pickle.dumps(clone(model).fit(small.X, small.y, task=small.task)))
        np.testing.assert_array_equal(again.coef_std_, stds)


def test_a_pickled_model_does_not_hold_the_statistics(small):
    model = ss.SharedSpanRegressor(rank=2, random_state=0, keep_statistics=False)
    model.fit(small.X, small.y, task=small.task)
    held = model._uncertainty_.statistics.packed
    assert held.tobytes() not in pickle.dumps(model)
