"""Claims of accuracy with fewer seeds; `benchmarks/accuracy.py` prints them with all seeds."""

import numpy as np
import pytest

import sharedspan as ss
from oracles import exact_als, relative


def ratio(model, sim, noise):
    n, (T, d) = sim.n_samples[0], sim.coef.shape
    floor = ss.error_floor(n, d, T, sim.representation.shape[1], noise)
    return ss.parameter_error(model.coef_, sim.coef) / floor


def paper_problem(kappa, seed):
    return ss.simulate(
        n_tasks=100, n_features=100, rank=5, n_samples=1000, noise=0.4, condition_number=kappa,
        random_state=seed,
    )  # fmt: skip


@pytest.mark.parametrize("kappa", [1, 1.5, 3, 10])
def test_the_error_is_at_the_floor_and_the_fit_is_exact(kappa):
    sim = paper_problem(kappa, seed=11)
    given = ss.SharedSpanRegressor(rank=5, random_state=0).fit(sim.X, sim.y, task=sim.task)
    auto = ss.SharedSpanRegressor(random_state=0).fit(sim.X, sim.y, task=sim.task)
    assert given.converged_
    assert auto.rank_ == 5
    assert 0.85 < ratio(given, sim, 0.4) < 1.15
    assert 0.85 < ratio(auto, sim, 0.4) < 1.15
    expected = exact_als(sim.X, sim.y, sim.task, 5, start=sim.coef)
    assert relative(given.coef_, expected) < 1e-6
    assert relative(auto.coef_, expected) < 1e-6


@pytest.mark.parametrize("kappa", [100, 300])
def test_ill_conditioned_spans_are_solved(kappa):
    sim = ss.simulate(
        n_tasks=60, n_features=40, rank=5, n_samples=200, noise=0.001, condition_number=kappa,
        random_state=3,
    )  # fmt: skip
    model = ss.SharedSpanRegressor(rank=5, random_state=0).fit(sim.X, sim.y, task=sim.task)
    assert model.converged_
    assert ratio(model, sim, 0.001) < 1.1


def test_twenty_rows_in_a_hundred_dimensions_are_enough():
    ratios = []
    for seed in range(5):
        sim = ss.simulate(
            n_tasks=500, n_features=100, rank=3, n_samples=20, noise=0.5, random_state=seed
        )
        model = ss.SharedSpanRegressor(rank=3, fit_intercept=False, random_state=0)
        ratios.append(ratio(model.fit(sim.X, sim.y, task=sim.task), sim, 0.5))
    assert np.mean(ratios) < 1.35


@pytest.mark.parametrize("seed", range(3))
def test_unequal_everything_is_as_good_as_knowing_the_noise(seed):
    rng = np.random.default_rng(seed)
    sizes, noise = rng.integers(20, 401, 120), rng.uniform(0.1, 2.0, 120)
    sim = ss.simulate(
        n_tasks=120, n_features=30, rank=3, n_samples=sizes, noise=noise, feature_condition=100,
        intercept=1.0, random_state=seed,
    )  # fmt: skip
    model = ss.SharedSpanRegressor(rank=3, noise="per_task", random_state=0)
    model.fit(sim.X, sim.y, task=sim.task)
    shared = ss.SharedSpanRegressor(rank=3, random_state=0).fit(sim.X, sim.y, task=sim.task)
    oracle = exact_als(sim.X, sim.y, sim.task, 3, weights=noise**-2, start=sim.coef)
    error = ss.parameter_error(model.coef_, sim.coef)
    assert error < 1.1 * ss.parameter_error(oracle, sim.coef)
    assert error < ss.parameter_error(shared.coef_, sim.coef)
    assert np.corrcoef(np.log(model.noise_variance_), np.log(noise**2))[0, 1] > 0.9


def test_the_fit_is_far_better_than_separate_regressions():
    sim = ss.simulate(n_tasks=100, n_features=40, rank=2, n_samples=60, noise=0.5, random_state=0)
    shared = ss.SharedSpanRegressor(random_state=0).fit(sim.X, sim.y, task=sim.task)
    separate = ss.PerTaskRegressor().fit(sim.X, sim.y, task=sim.task)
    assert ss.parameter_error(shared.coef_, sim.coef) * 10 < ss.parameter_error(
        separate.coef_, sim.coef
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # 4 rows for 4 slopes
def test_ten_tiny_tasks_do_not_spoil_the_others_with_per_task_noise():
    sizes = np.r_[np.full(10, 4), np.full(50, 80)]
    sim = ss.simulate(n_tasks=60, n_features=20, rank=3, n_samples=sizes, noise=0.5, random_state=2)
    large = sizes > 4
    errors = {
        noise: np.sum(
            (
                ss.SharedSpanRegressor(rank=3, noise=noise, random_state=0)
                .fit(sim.X, sim.y, task=sim.task)
                .coef_[large]
                - sim.coef[large]
            )
            ** 2
        )
        for noise in ("shared", "per_task")
    }
    assert errors["per_task"] < 1.05 * errors["shared"]
