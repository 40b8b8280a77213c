"""The moment and spectral estimators: what their papers say, and where they stand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.utils.estimator_checks import check_estimator

import sharedspan as ss
from conftest import statistics_of
from oracles import relative
from sharedspan.estimators.moment import half_matrix, pair_matrix
from sharedspan.estimators.spectral import second_step, winsorised
from sharedspan.inputs.rows import validate_rows
from sharedspan.objective import build_objective
from sharedspan.solvers.initialization import separate_fits
from sharedspan.statistics.folds import assign_folds, hash_key

SIZE = {"n_tasks": 40, "n_features": 50, "rank": 3, "n_samples": 200, "noise": 0.5}


def mean_ratio(model, seeds=3):
    ratios = []
    for seed in range(seeds):
        sim = ss.simulate(**SIZE, condition_number=1.5, random_state=seed)
        model.fit(sim.X, sim.y, task=sim.task)
        floor = ss.error_floor(200, 50, 40, 3, 0.5)
        ratios.append(ss.parameter_error(model.coef_, sim.coef) / floor)
    return np.mean(ratios)


@pytest.mark.parametrize(
    ("options", "low", "high"),
    [
        ({"variant": "tripuraneni"}, 20, 35),
        ({"variant": "niu", "symmetrise": False}, 7, 11),
        ({"variant": "niu"}, 4.2, 6.2),
        ({"variant": "duchi"}, 4.2, 6.2),
    ],
    ids=str,
)
def test_moment_methods_are_as_accurate_as_their_theory_says(options, low, high):
    model = ss.MomentRegressor(rank=3, whiten=False, fit_intercept=False, random_state=0, **options)
    assert low < mean_ratio(model, seeds=5) < high


def test_the_spectral_estimator_is_close_to_the_floor():
    assert 1.05 < mean_ratio(ss.SpectralRegressor(rank=3, fit_intercept=False), seeds=5) < 1.35


def test_all_pairs_are_the_average_over_random_splits(rng):
    sim = ss.simulate(n_tasks=6, n_features=4, rank=2, n_samples=8, random_state=0)
    products = sim.X * sim.y[:, None]
    n = np.full(6, 8.0)
    c = np.array([products[sim.task == t].sum(axis=0) for t in range(6)])
    pairs = pair_matrix(c, products.T @ products / 7, n)
    tasks = validate_rows(sim.X, sim.y, sim.task)
    total = np.zeros((4, 4))
    splits = 20_000
    for _ in range(splits):
        half = assign_folds(tasks, hash_key(tasks.n_features, rng), 2)
        means = np.array(
            [
                [products[(sim.task == t) & (half == h)].mean(axis=0) for t in range(6)]
                for h in (0, 1)
            ]
        )
        total += half_matrix(means, n)
    assert np.abs(total / splits - pairs).max() < 0.03 * np.abs(pairs).max()


def test_the_moments_of_one_pass_are_those_of_the_rows():
    """With given halves and no intercepts, the fitted span is that of the matrix from the rows."""
    sim = ss.simulate(n_tasks=30, n_features=6, rank=2, n_samples=25, random_state=1)
    products = sim.X * sim.y[:, None]
    for variant, Z in {
        "tripuraneni": products.T @ products,
        "duchi": sum(
            np.outer(s := products[sim.task == t].sum(axis=0), s)
            - products[sim.task == t].T @ products[sim.task == t]
            for t in range(30)
        ),
    }.items():
        model = ss.MomentRegressor(rank=2, variant=variant, whiten=False, fit_intercept=False)
        model.fit(sim.X, sim.y, task=sim.task)
        expected = np.linalg.eigh(Z)[1][:, -2:]
        assert ss.subspace_distance(model.representation_, expected) < 1e-7, variant


@pytest.mark.parametrize("kind", ["gram", "rows"])
def test_the_exact_second_step_equals_a_long_proximal_run(small, kind, rng):
    objective = build_objective(statistics_of(small.X, small.y, small.task, kind=kind))
    centre = 0.3 * rng.standard_normal((8, 40))
    lam = np.linspace(0.0, 0.6, 40)
    exact = second_step(objective, centre, lam)
    step = 1 / np.array([np.linalg.eigvalsh(objective.curvature(t))[-1] for t in range(40)])
    delta = np.zeros((8, 40))
    for _ in range(20_000):
        moved = delta - step * objective.residuals(centre + delta)[0]
        norms = np.maximum(np.linalg.norm(moved, axis=0), 1e-300)
        delta = moved * np.maximum(0, 1 - step * lam / norms)
    assert relative(exact, centre + delta) < 1e-10
    stays = np.linalg.norm(objective.residuals(centre.copy())[0], axis=0) <= lam
    assert np.array_equal(exact[:, stays], centre[:, stays])


def test_winsorising_keeps_outlier_tasks_from_spoiling_the_span():
    errors = dict.fromkeys(("plain", "winsorised", "separate", "erm"), 0.0)
    for seed in range(3):
        sim = ss.simulate(**SIZE, condition_number=1.5, outliers=0.1, random_state=seed)
        for name, model in {
            "plain": ss.SpectralRegressor(rank=3),
            "winsorised": ss.SpectralRegressor(rank=3, outliers=0.1),
            "separate": ss.PerTaskRegressor(alpha=0.0),
            "erm": ss.SharedSpanRegressor(rank=3, random_state=0),
        }.items():
            coef = model.fit(sim.X, sim.y, task=sim.task).coef_
            errors[name] += np.sum((coef - sim.coef)[~sim.is_outlier] ** 2)
    assert errors["winsorised"] < 0.6 * errors["plain"] < errors["separate"] < errors["erm"]


def test_the_spectral_threshold_finds_the_rank_with_many_rows():
    sim = ss.simulate(n_tasks=60, n_features=15, rank=3, n_samples=300, random_state=0)
    model = ss.SpectralRegressor(rank="threshold").fit(sim.X, sim.y, task=sim.task)
    assert model.rank_ == 3
    noise = np.random.default_rng(0).standard_normal(len(sim.y))
    with pytest.warns(UserWarning, match="no common span"):
        model.fit(sim.X, noise, task=sim.task)


@pytest.mark.parametrize(
    "model",
    [
        ss.MomentRegressor(),
        ss.MomentRegressor(variant="tripuraneni", whiten=False),
        ss.MomentRegressor(variant="niu"),
        ss.SpectralRegressor(),
        ss.SpectralRegressor(outliers=0.2, winsorise="normalise", step_two=False),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore:X is a frame, but neither task")
def test_scikit_learn_finds_no_fault(model):
    results = check_estimator(model, on_skip=None, on_fail=None)
    assert not {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}


def test_a_coefficient_is_the_span_part_plus_what_leaves_it(small):
    model = ss.SpectralRegressor(rank=2, penalty=0.0).fit(small.X, small.y, task=small.task)
    separate = ss.PerTaskRegressor(alpha=0.0).fit(small.X, small.y, task=small.task)
    many = small.n_samples > 15
    assert_allclose(model.coef_[many], separate.coef_[many], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ss.MomentRegressor(variant="x"), "variant='x'"),
        (ss.SpectralRegressor(outliers=1.0), "outliers=1.0"),
        (ss.SpectralRegressor(winsorise="x"), "winsorise='x'"),
        (ss.SpectralRegressor(rank="x"), "rank='x'"),
    ],
    ids=str,
)
def test_bad_options_get_a_clear_error(model, message, small):
    with pytest.raises(ValueError, match=message):
        model.fit(small.X, small.y, task=small.task)


def test_splitting_needs_two_rows_and_names_the_task():
    model = ss.MomentRegressor(variant="niu", rank=1)
    with pytest.raises(ValueError, match="'lonely'"):
        model.fit(np.arange(6.0).reshape(3, 2), np.arange(3.0), task=["a", "a", "lonely"])


@pytest.mark.parametrize("variant", ["duchi", "niu", "tripuraneni"])
def test_moments_do_not_depend_on_blocks_order_or_repetition(variant, small, rng, monkeypatch):
    def coef(X, y, task, weight=None):
        model = ss.MomentRegressor(rank=2, variant=variant, random_state=0)
        return model.fit(X, y, task=task, sample_weight=weight).coef_

    expected = coef(small.X, small.y, small.task)
    order = np.lexsort((small.y, small.task))
    weight = rng.integers(1, 4, len(small.y))
    twice = np.repeat(np.arange(len(small.y)), weight)
    repeated = coef(small.X[twice], small.y[twice], small.task[twice])
    assert_allclose(coef(small.X, small.y, small.task, weight), repeated, rtol=1e-8, atol=1e-10)
    monkeypatch.setattr("sharedspan.inputs.rows.BLOCK", 8 * 10)
    moved = coef(small.X[order], small.y[order], small.task[order])
    assert_allclose(moved, expected, rtol=1e-8, atol=1e-10)


def test_winsorising_clips_the_outlier_and_not_the_large_task():
    sizes = np.r_[np.full(9, 60), 6000]
    sim = ss.simulate(n_tasks=10, n_features=5, rank=2, n_samples=sizes, noise=0.1, random_state=0)
    y = sim.y.copy()
    y[sim.task == 0] *= 6
    objective = build_objective(statistics_of(sim.X, y, sim.task))
    separate, _ = separate_fits(objective)
    norms = np.linalg.norm(separate / objective.response, axis=0)
    clipped = np.linalg.norm(winsorised(separate / objective.response, 0.1, "clip"), axis=0)
    assert np.flatnonzero(clipped < norms - 1e-12).tolist() == [0]
