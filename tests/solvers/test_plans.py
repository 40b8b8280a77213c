"""What solvers plan before their first step: starts, lengths, step sizes and which solver runs."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from conftest import statistics_of
from sharedspan.objective import build_objective
from sharedspan.solvers import SOLVERS
from sharedspan.solvers.auto import FEW_TASKS
from sharedspan.solvers.initialization import singular_values, small_random_start
from sharedspan.solvers.loop import run
from sharedspan.solvers.stochastic import _in_unit_ball
from sharedspan.solvers.tpgd import phase_one_length, start_scale, theory_length


def objective(T=40, d=6, k=2, n=30, seed=0):
    sim = ss.simulate(n_tasks=T, n_features=d, rank=k, n_samples=n, noise=0.2, random_state=seed)
    return build_objective(statistics_of(sim.X, sim.y, sim.task, centred=False))


def solved(name, problem, k=2, max_iter=15, **options):
    solver = SOLVERS[name](
        problem, k, np.random.default_rng(0), max_iter=max_iter, tol=0.0, **options
    )
    return run(solver, problem, max_iter=max_iter, tol=0.0)


def test_random_starts_have_the_sizes_of_algorithm_1(rng):
    sizes = np.where(np.arange(2000) % 2, 40, 10)
    sim = ss.simulate(n_tasks=2000, n_features=50, rank=2, n_samples=sizes, random_state=0)
    problem = build_objective(statistics_of(sim.X, sim.y, sim.task, centred=False))
    B, W = small_random_start(problem, 20, 0.3, rng)
    assert B.shape == (50, 20)
    assert W.shape == (20, 2000)
    assert_allclose(np.std(B), 0.3 / math.sqrt(50), rtol=0.1)
    shrunk = np.minimum(problem.response, 1.0)
    assert_allclose(np.std(W / shrunk), 0.1 / math.sqrt(50), rtol=0.05)
    for half in (0, 1):
        expected = 0.1 / math.sqrt(50) * shrunk[half]
        assert_allclose(np.std(W[:, half::2]), expected, rtol=0.05)


def test_the_default_start_is_a_hundredth_of_the_size_of_the_factors():
    s = np.array([16.0, 4.0])
    assert start_scale(s, None) == pytest.approx(0.04)
    assert start_scale(s, 0.5) == 0.5
    with pytest.raises(ValueError, match="init_scale='small' must be a number above zero"):
        start_scale(s, "small")


def test_the_length_of_the_theorem_is_its_formula():
    s, eta, alpha = np.array([8.0, 4.0, 2.0]), 0.05, 1e-4
    expected = 2 * (8 / 2) * math.log(math.sqrt(8.0) / 1e-4) / math.log(1 + 0.05 * 2)
    assert theory_length(s, eta, alpha) == math.ceil(expected)
    assert theory_length(np.array([1.0, 1.0]), 1.0, 0.9) >= 1


@pytest.mark.parametrize("alpha", [1e-2, 1e-6])
def test_phase_one_is_long_enough_for_the_smallest_direction_to_grow(alpha):
    """The mean of both factors grows by 1 + eta s_k until it has the size of sqrt(s_k)."""
    s, eta, d = np.array([9.0, 0.5]), 0.04, 30
    length = phase_one_length(s, eta, alpha, d)
    smallest = 1e-5 * alpha / (2 * math.sqrt(d * 2))
    grown = smallest * (1 + eta * s[-1]) ** length
    assert_allclose(math.log(grown / math.sqrt(s[-1])), 3, atol=0.03)
    assert phase_one_length(s, 0.0, alpha, d) == 100
    assert phase_one_length(s, 0.9, 1.0, d) == 100


@pytest.mark.parametrize("given", [[1.0], [1.0, 0.0], [1.0, -2.0], [True, True], ["a", "b"]])
def test_singular_values_are_as_many_positive_numbers_as_the_rank(rng, given):
    with pytest.raises(ValueError, match="must hold 2 positive numbers, one per rank"):
        singular_values(objective(), 2, rng, given)


def test_singular_values_are_sorted_or_estimated(rng):
    problem = objective(T=200, n=200)
    assert singular_values(problem, 2, rng, [1.0, 3.0]).tolist() == [3.0, 1.0]
    best = solved("als", problem, max_iter=60)
    expected = np.linalg.svd(best.B @ best.W, compute_uv=False)[:2]
    assert_allclose(singular_values(problem, 2, rng), expected, rtol=0.05)


def test_injected_noise_is_uniform_in_the_unit_ball(rng):
    radii = []
    for _ in range(4000):
        a, b = _in_unit_ball((2, 1), (1, 2), rng)
        radii.append(math.hypot(np.linalg.norm(a), np.linalg.norm(b)))
    assert max(radii) <= 1
    # In four dimensions the radius to the fourth power is uniform.
    assert_allclose(np.quantile(np.array(radii) ** 4, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.03)


@pytest.mark.parametrize(
    ("shape", "k", "runs"),
    [
        ({"d": 50, "n": 100}, 2, "scaled_gd_anderson"),
        ({"d": 50, "n": 99}, 2, "variable_projection"),
        ({"d": 60, "n": 9}, 2, "variable_projection"),
        ({"d": 49, "n": 100}, 2, "variable_projection"),
        ({"d": 50, "n": 100}, 1, "variable_projection"),
    ],
)
def test_auto_is_the_solver_that_its_docstring_names(shape, k, runs):
    problem = objective(T=FEW_TASKS + 1, k=k, **shape)
    ours, named = (solved(name, problem, k) for name in ("auto", runs))
    assert_array_equal(ours.trace["loss"], named.trace["loss"])
    assert_array_equal(ours.B @ ours.W, named.B @ named.W)


@pytest.mark.parametrize("max_iter", [9, 10])
def test_the_tail_average_is_the_mean_of_the_second_half(max_iter):
    problem, seen = objective(), []
    result = run(
        SOLVERS["gd"](problem, 2, np.random.default_rng(0), max_iter=max_iter, tol=0.0),
        problem,
        max_iter=max_iter,
        tol=0.0,
        tail_average=True,
        callback=lambda now: seen.append(now["B"] @ now["W"]),
    )
    assert len(seen) == max_iter
    U, s, Vt = np.linalg.svd(np.mean(seen[max_iter // 2 :], axis=0), full_matrices=False)
    assert_allclose(result.B @ result.W, (U[:, :2] * s[:2]) @ Vt[:2], rtol=1e-9, atol=1e-12)


def test_the_message_of_a_run_is_a_sentence():
    message = solved("gd", objective()).message
    assert message.endswith(" of |V|.")
    assert " after 15 iterations, tangent gradient " in message
