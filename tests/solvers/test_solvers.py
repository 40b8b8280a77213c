"""The registry: every solver reaches the rank-k minimiser, and TPGD does what the paper prints."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

import sharedspan as ss
from conftest import statistics_of
from oracles import exact_als, relative
from sharedspan.objective import build_objective
from sharedspan.solvers import SOLVERS, loop
from sharedspan.solvers.gradient import descend
from sharedspan.solvers.loop import CALLED_OFF, PLANNED, STALLED, Iterate, run
from sharedspan.solvers.tpgd import phase_one_length, step_sizes
from sharedspan.subspace import factor_distance


def canonical_problem(kappa=2.0, n_samples=60, noise=0.3, seed=0):
    """A problem of the paper: isotropic rows, equal sizes, no intercepts."""
    sim = ss.simulate(
        n_tasks=80, n_features=12, rank=2, n_samples=n_samples, noise=noise,
        condition_number=kappa, random_state=seed,
    )  # fmt: skip
    return sim, build_objective(statistics_of(sim.X, sim.y, sim.task, centred=False))


def solve(name, objective, k=2, max_iter=20_000, tol=1e-9, seed=0, **options):
    solver = SOLVERS[name](
        objective, k, np.random.default_rng(seed), max_iter=max_iter, tol=tol, **options
    )
    return run(solver, objective, max_iter=max_iter, tol=tol)


# Deterministic and on all rows: these must agree. nsgd is random.
EXACT = [name for name in SOLVERS if name != "nsgd"]


@pytest.mark.parametrize("n_samples", [60, 9], ids=["n above d", "n below d"])
@pytest.mark.parametrize("kappa", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("name", EXACT)
def test_every_solver_reaches_the_minimiser_of_exact_alternating_least_squares(
    name, kappa, n_samples
):
    sim, objective = canonical_problem(kappa, n_samples)
    result = solve(name, objective)
    assert result.converged
    expected = exact_als(sim.X, sim.y, sim.task, 2, intercept=False, start=sim.coef)
    assert relative((result.B @ result.W).T, expected) < 1e-6


def assert_never_rises(trace):
    for phase in np.unique(trace["phase"]):
        objective = trace["objective"][trace["phase"] == phase]
        assert len(objective) > 1
        assert (np.diff(objective) <= 1e-9 * objective[0]).all()


@pytest.mark.parametrize("name", EXACT)
def test_the_objective_of_each_phase_never_rises(name):
    _, objective = canonical_problem()
    assert_never_rises(solve(name, objective).trace)


@pytest.mark.parametrize("name", EXACT)
def test_zero_tolerance_means_exactly_max_iter_iterations(name):
    _, objective = canonical_problem()
    for max_iter in (7, 60 if name == "als" else 500):
        result = solve(name, objective, max_iter=max_iter, tol=0)
        assert result.n_iter == max_iter
        assert not result.converged


def test_tpgd_takes_the_printed_steps_from_the_printed_start():
    _, objective = canonical_problem()
    s = [8.0, 4.0]
    result = solve(
        "tpgd", objective, max_iter=40, tol=0, steps="theory", singular_values=s, init_scale=0.1
    )
    rng = np.random.default_rng(0)
    B = 0.1 * rng.standard_normal((12, 2)) / np.sqrt(12)
    W = 0.1 / 3 * rng.standard_normal((2, 80)) / np.sqrt(12)
    eta_1, eta_2 = 1.1 / 2**5 / 8.0, 0.1 / 8.0
    for iteration in range(40):
        R = objective.evaluate(B, W).R
        if iteration < 20:
            B, W = B - eta_1 * R @ W.T, W - eta_1 * B.T @ R
        else:
            D = B.T @ B - W @ W.T
            B, W = B - eta_2 * (R @ W.T + B @ D / 2), W - eta_2 * (B.T @ R - D @ W / 2)
    assert_allclose(result.B, B, rtol=1e-12)
    assert_allclose(result.W, W, rtol=1e-12)
    assert list(result.trace["phase"]) == ["I"] * 21 + ["II"] * 20


def population_problem(kappa, k, n_tasks=25, d=30):
    """Tasks whose curvature is exactly the identity, without noise: Theorem 5.1 with delta = 0."""
    sim = ss.simulate(
        n_tasks=n_tasks, n_features=d, rank=k, n_samples=2, noise=0, condition_number=kappa,
        random_state=0,
    )  # fmt: skip
    X = np.sqrt(d) * np.tile(np.eye(d), (n_tasks, 1))
    task = np.repeat(np.arange(n_tasks), d)
    y = np.einsum("ij,ij->i", X, sim.coef[task])
    return sim, build_objective(statistics_of(X, y, task, centred=False))


def phase_one_distance(sim, objective, seed, length, **options):
    """Theorem 5.1's distance over sqrt(s_k) after ``length`` iterations of Phase I."""
    k = len(sim.singular_values)
    end = solve("phase_one", objective, k, length, 0.0, seed, **options)
    away = factor_distance(end.B, end.W, sim.representation, sim.task_weights)
    return away / np.sqrt(sim.singular_values[-1])


@pytest.mark.parametrize(("kappa", "k"), [(1.0, 1), (1.5, 2), (1.5, 4), (1.5, 8), (1.0, 8)])
def test_no_start_ends_phase_one_far_from_the_truth(kappa, k):
    sim, objective = population_problem(kappa, k)
    s = sim.singular_values
    options = {"steps": "theory", "singular_values": s, "init_scale": 0.01 * np.sqrt(s[0])}
    eta, _ = step_sizes(s, "theory", known=True)
    length = phase_one_length(s, eta, options["init_scale"], 30)
    away = [phase_one_distance(sim, objective, seed, length, **options) for seed in range(40)]
    assert max(away) < 1 / 8


def test_phase_one_is_long_enough_for_a_start_with_one_small_direction():
    """A start that is nearly singular within the span grows from p / sqrt(k) of the usual size."""
    sim, objective = population_problem(1.5, 4)
    s, alpha = sim.singular_values, 0.01 * np.sqrt(sim.singular_values[0])
    eta, _ = step_sizes(s, "theory", known=True)
    U, _, Qt = np.linalg.svd(sim.coef.T)
    rng = np.random.default_rng(0)
    B = alpha * rng.standard_normal((30, 4)) / np.sqrt(30)
    W = alpha / 3 * rng.standard_normal((4, 25)) / np.sqrt(30)
    mean = (U[:, :4].T @ B + (W @ Qt[:4].T).T) / 2
    left, values, right = np.linalg.svd(mean)
    smallest = 1e-5 / 2 * alpha / 2 / np.sqrt(30)
    B += U[:, :4] @ np.outer(left[:, -1], right[-1]) * (smallest - values[-1])
    W += (Qt[:4].T @ np.outer(left[:, -1], right[-1])).T * (smallest - values[-1])

    def phase_one():
        step = yield Iterate(B, W)
        yield from descend(step, eta)

    length = phase_one_length(s, eta, alpha, 30)
    for iterations, far in ((length, False), (length - 60, True)):
        end = run(phase_one(), objective, max_iter=iterations, tol=0)
        away = factor_distance(end.B, end.W, sim.representation, sim.task_weights)
        assert (away > np.sqrt(s[-1]) / 8) == far


def test_all_of_the_theory_ends_phase_one_near_the_truth():
    sim, objective = population_problem(1.5, 2)
    s = sim.singular_values
    options = {"steps": "theory", "init_scale": "theory", "phase_length": "theory"}
    solver = SOLVERS["tpgd"](
        objective, 2, np.random.default_rng(0), max_iter=20_000, tol=1e-9,
        singular_values=s, **options,
    )  # fmt: skip
    last = {}

    def watch(at):
        last.setdefault("start", np.linalg.norm(at["B"]))
        if at["phase"] == "I":
            last.update(at)

    result = run(solver, objective, max_iter=20_000, tol=1e-9, callback=watch)
    alpha = np.sqrt(s[0]) / 2**5 / 55**2.75 * (1e-5 / 1.5**2) ** 1.5
    assert 0.5 * alpha < last["start"] / np.sqrt(2) < 2 * alpha
    growth = np.log(1 + 1.1 / 1.5**6)
    assert last["iteration"] == np.ceil(3 * np.log(np.sqrt(s[0]) / alpha) / growth)
    away = factor_distance(last["B"], last["W"], sim.representation, sim.task_weights)
    assert away < np.sqrt(s[-1]) / 8
    assert result.converged


@pytest.mark.parametrize("tol", [0.0, 1e-12])
def test_a_given_phase_length_is_taken(tol):
    _, objective = canonical_problem()
    result = solve("tpgd", objective, max_iter=40, tol=tol, phase_length=33)
    assert list(result.trace["phase"]) == ["I"] * 34 + ["II"] * 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phase_length": "theory"}, "needs the true singular values"),
        ({"init_scale": "theory"}, "needs the true singular values"),
        ({"phase_length": 0}, "phase_length=0 must be an integer of at least 1, or 'theory'"),
        ({"phase_length": 2.5}, "phase_length=2.5 must be an integer"),
        ({"phase_length": "long"}, "phase_length='long' must be an integer"),
        ({"init_scale": "small"}, "init_scale='small' must be a number above zero, or 'theory'"),
        ({"init_scale": "theory", "singular_values": [90.0, 1.0]}, "below the smallest float"),
    ],
    ids=str,
)
def test_bad_options_of_tpgd_say_what_to_do(options, message):
    _, objective = canonical_problem()
    with pytest.raises(ValueError, match=message):
        solve("tpgd", objective, **options)


def test_tpgd_uses_no_decomposition_and_no_solve_in_any_step(monkeypatch):
    _, objective = canonical_problem()
    solver = SOLVERS["tpgd"](
        objective, 2, np.random.default_rng(0), max_iter=300, tol=0, steps="theory",
        singular_values=[8.0, 4.0],
    )  # fmt: skip

    def refuse(*args, **kwargs):
        raise AssertionError("a decomposition or a solve was called")

    for name in ("svd", "qr", "eigh", "eig", "solve", "inv", "pinv", "lstsq", "cholesky"):
        monkeypatch.setattr(np.linalg, name, refuse)
    monkeypatch.setattr(type(objective), "solve_W", refuse)
    monkeypatch.setattr("sharedspan.objective.Point.relative_gradient", lambda point: 0.0)
    result = run(solver, objective, max_iter=300, tol=0)
    assert result.n_iter == 300


def test_theory_steps_are_capped_where_they_are_unstable():
    eta_1, eta_2 = step_sizes(np.array([2.0, 2.0]), "theory", known=True)
    assert eta_1 == 0.25
    assert_allclose(eta_2, 0.05)
    eta_1, _ = step_sizes(np.array([2.0, 1.0]), "theory", known=True)
    assert_allclose(eta_1, 1.1 / 32 / 2)


def test_a_step_that_overshoots_is_taken_back_and_halved():
    _, objective = canonical_problem()
    s_too_small = [0.02, 0.02]  # steps 400 times too long
    result = solve("tpgd", objective, singular_values=s_too_small)
    assert result.n_halved > 0
    assert "halved" in result.message
    assert np.isfinite(result.B).all()
    assert np.isfinite(result.W).all()
    assert_never_rises(result.trace)
    assert result.converged


def test_a_solver_that_proposes_nan_keeps_its_last_good_place():
    _, objective = canonical_problem()

    def broken():
        step = yield Iterate(np.ones((12, 2)), np.ones((2, 80)))
        while True:
            step = yield Iterate(step.point.B * np.nan, step.point.W)

    result = run(broken(), objective, max_iter=100, tol=1e-7)
    assert not result.converged
    assert result.ending == STALLED
    assert np.array_equal(result.B, np.ones((12, 2)))


def test_a_saddle_is_not_called_converged():
    """At a rank-one solution V hardly changes, but the tangent gradient sees the way down."""
    sim = ss.simulate(
        n_tasks=60, n_features=40, rank=5, n_samples=200, noise=0.001, condition_number=300,
        random_state=1,
    )  # fmt: skip
    model = ss.SharedSpanRegressor(rank=5, solver="tpgd", max_iter=1500, random_state=0)
    with pytest.warns(ConvergenceWarning, match="stopped at max_iter after 1500"):
        model.fit(sim.X, sim.y, task=sim.task)
    assert not model.converged_


def test_a_callback_sees_every_iteration_and_can_stop():
    _, objective = canonical_problem()
    seen = []

    def callback(at):
        seen.append(at["iteration"])
        return at["iteration"] == 13

    solver = SOLVERS["tpgd"](objective, 2, np.random.default_rng(0), max_iter=100, tol=1e-7)
    result = run(solver, objective, max_iter=100, tol=1e-7, callback=callback)
    assert seen == list(range(1, 14))
    assert result.ending == CALLED_OFF


def test_no_signal_gives_zero_coefficients_at_once():
    sim, _ = canonical_problem()
    objective = build_objective(statistics_of(sim.X, np.zeros(len(sim.y)), sim.task, centred=False))
    for name in EXACT:
        result = solve(name, objective, tol=1e-7)
        assert np.abs(result.B @ result.W).max() < 1e-7, name


def paper_problem(seed=0):
    return ss.simulate(
        n_tasks=40, n_features=50, rank=3, n_samples=200, noise=0.5, condition_number=1.5,
        random_state=seed,
    )  # fmt: skip


def mean_ratio(seeds=2, **options):
    ratios = []
    for seed in range(seeds):
        sim = paper_problem(seed)
        model = ss.SharedSpanRegressor(rank=3, fit_intercept=False, random_state=0, **options)
        model.fit(sim.X, sim.y, task=sim.task)
        floor = ss.error_floor(200, 50, 40, 3, 0.5)
        ratios.append(ss.parameter_error(model.coef_, sim.coef) / floor)
    return np.mean(ratios)


def test_noisy_sgd_reaches_the_floor_by_its_tail_average():
    options = {"solver": "nsgd", "max_iter": 3000}
    tail = mean_ratio(tail_average=True, **options)
    last = mean_ratio(**options)
    assert tail < 1.15
    assert last > tail


def test_ball_restarts_end_noisy_sgd_on_their_own():
    sim = paper_problem()
    model = ss.SharedSpanRegressor(
        rank=3, solver="nsgd", max_iter=20_000, random_state=0, solver_options={"restart": True}
    ).fit(sim.X, sim.y, task=sim.task)
    assert model.n_iter_ < 20_000
    assert "ended as planned" in model.message_


def test_splitting_the_rows_costs_alternating_descent_accuracy():
    none = mean_ratio(seeds=5, solver="altmin_gd")
    half = mean_ratio(seeds=5, solver="altmin_gd", solver_options={"split": "half"})
    theory = mean_ratio(solver="altmin_gd", solver_options={"split": "theory", "start": "moment"})
    assert 0.90 < none < 1.15
    assert 1.4 < half < 2.0
    assert half < theory < 20


def test_a_split_names_the_task_that_has_too_few_rows():
    model = ss.SharedSpanRegressor(rank=1, solver="altmin_gd", solver_options={"split": "half"})
    with pytest.raises(ValueError, match="'b'"):
        model.fit(np.arange(10.0).reshape(5, 2), np.arange(5.0), task=list("aabcc"))


def test_the_tail_average_is_that_of_the_product(rng):
    _, objective = canonical_problem()
    products = []
    solver = SOLVERS["gd"](objective, 2, np.random.default_rng(0), max_iter=20, tol=0)
    result = run(
        solver, objective, max_iter=20, tol=0, tail_average=True,
        callback=lambda at: products.append(at["B"] @ at["W"]) and False,
    )  # fmt: skip
    U, s, Vt = np.linalg.svd(np.mean(products[10:], axis=0), full_matrices=False)
    assert_allclose(result.B @ result.W, U[:, :2] * s[:2] @ Vt[:2], atol=1e-12)


def test_progress_is_shown_on_request(capfd):
    sim, _ = canonical_problem()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ss.SharedSpanRegressor(rank=2, verbose=1, random_state=0).fit(sim.X, sim.y, task=sim.task)
    captured = capfd.readouterr()
    assert captured.out == ""


@pytest.mark.parametrize("name", ["als", "altmin_gd", "scaled_gd", "variable_projection"])
def test_the_unit_of_the_responses_changes_no_step(name):
    sim, objective = canonical_problem()
    small = build_objective(statistics_of(sim.X, 1e-3 * sim.y, sim.task, centred=False))
    one, other = (solve(name, each, max_iter=5, tol=0) for each in (objective, small))
    assert relative(1e3 * other.B @ other.W, one.B @ one.W) < 1e-9


def test_a_line_search_that_shortened_a_step_tries_the_full_one_next():
    """Measured: 210 iterations; over 380 if a shorter step stays for the rest of the run."""
    _, objective = canonical_problem()
    result = solve("lf_fo", objective, max_iter=300)
    assert result.converged
    assert result.n_halved == 0
    assert "halved" not in result.message


def test_noisy_sgd_ends_when_it_stays_in_its_ball_for_a_thousand_steps():
    rows = build_objective(
        statistics_of(np.eye(3)[[0, 1, 2] * 2], np.ones(6), [0] * 3 + [1] * 3, kind="rows")
    )
    solver = SOLVERS["nsgd"](
        rows, 1, np.random.default_rng(0), max_iter=3000, tol=0, restart=True, step_size=1e-9,
        batch_size=1, singular_values=[1.0],
    )  # fmt: skip
    result = run(solver, rows, max_iter=3000, tol=0)
    assert result.ending == PLANNED
    assert result.n_iter == 1000


def test_the_trace_of_noisy_sgd_has_no_losses_that_nobody_asked_for():
    sim = ss.simulate(n_tasks=20, n_features=4, rank=1, n_samples=8, random_state=0)
    objective = build_objective(statistics_of(sim.X, sim.y, sim.task, centred=False, kind="rows"))
    result = solve("nsgd", objective, k=1, max_iter=20, tol=0)
    assert np.isnan(result.trace["loss"]).all()
    assert np.isfinite(result.loss)


@pytest.mark.parametrize(
    ("verbose", "shown"),
    [(0, None), (1, {"show": True, "transient": True}), (2, {"show": True, "transient": False})],
)
def test_progress_is_silent_by_default_and_stays_visible_on_request(monkeypatch, verbose, shown):
    asked = []
    monkeypatch.setattr(loop, "progress_bar", lambda **given: asked.append(given) or nullcontext(
        lambda *progress: None))  # fmt: skip
    _, objective = canonical_problem()
    solver = SOLVERS["als"](objective, 2)
    run(solver, objective, max_iter=2, tol=0, verbose=verbose)
    (given,) = asked
    assert given == shown if shown else not given["show"]
