"""The package against ``independent.py``, which was written from the paper's text alone."""

import itertools
import warnings

import independent
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import sharedspan as ss
from conftest import statistics_of
from sharedspan.objective import build_objective
from sharedspan.solvers import SOLVERS
from sharedspan.solvers.loop import run

DIGITS = 1e-10


def relative(ours, expected):
    return np.linalg.norm(ours - expected) / np.linalg.norm(expected)


def by_task(sim):
    """Rows as lists with one entry per task."""
    tasks = range(len(sim.coef))
    return [sim.X[sim.task == t] for t in tasks], [sim.y[sim.task == t] for t in tasks]


def simulated(n_tasks, n_features, rank, n_samples, **options):
    return ss.simulate(
        n_tasks=n_tasks, n_features=n_features, rank=rank, n_samples=n_samples,
        random_state=1, noise=0.4, **options,
    )  # fmt: skip


def sizes(low, high, n_tasks, seed=0):
    return np.random.default_rng(seed).integers(low, high, n_tasks)


# ---------------------------------------------------------------- the independent code itself


def test_both_phases_descend_the_losses_that_the_paper_prints():
    """Steps against central differences of eq. (1) and of its sum with |B'B - WW'|^2 / 8."""
    X, y = by_task(simulated(4, 5, 2, 9))
    rng = np.random.default_rng(0)
    B, W = rng.normal(size=(5, 2)), rng.normal(size=(2, 4))

    def loss(B, W, weight):
        squares = sum(np.sum((y[t] - X[t] @ B @ W[:, t]) ** 2) for t in range(4))
        return squares / (2 * 9) + weight * np.sum((B.T @ B - W @ W.T) ** 2)

    def slope(change_B, change_W, weight, h=1e-5):
        up, down = ((B + sign * h * change_B, W + sign * h * change_W) for sign in (1, -1))
        return (loss(*up, weight) - loss(*down, weight)) / (2 * h)

    for step, weight in ((independent.phase_one_step, 0), (independent.phase_two_step, 1 / 8)):
        new_B, new_W = step(X, y, B, W, 1.0)
        for _ in range(5):
            direction = rng.normal(size=B.shape), rng.normal(size=W.shape)
            expected = np.sum((B - new_B) * direction[0]) + np.sum((W - new_W) * direction[1])
            assert abs(slope(*direction, weight) - expected) < 1e-6 * abs(expected)


def test_the_second_spectral_step_satisfies_its_optimality_condition():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 6))
    S, g = X.T @ X / 30, rng.normal(size=6)
    for lam in (0.01, 0.5, 0.99 * np.linalg.norm(g)):
        delta = independent.deviation(S, g, lam)
        assert np.abs(S @ delta + g + lam * delta / np.linalg.norm(delta)).max() < 1e-12
    assert not independent.deviation(S, g, 1.01 * np.linalg.norm(g)).any()


# ---------------------------------------------------------------- Algorithm 1


def tpgd_start(d, k, n_tasks, alpha, seed):
    """Algorithm 1's input: entries of variance 1/d in both factors, W a third of the size."""
    rng = np.random.default_rng(seed)
    B0 = alpha * rng.normal(size=(d, k)) / np.sqrt(d)
    return B0, alpha / 3 * rng.normal(size=(k, n_tasks)) / np.sqrt(d)


def run_tpgd(objective, k, s, alpha, K1, **options):
    """TPGD from seed 7 with the steps 0.3 / s_1 and 0.2 / s_1."""
    budget = {"max_iter": K1, "tol": 0}
    solver = SOLVERS["tpgd"](
        objective, k, np.random.default_rng(7), steps=(0.3, 0.2), singular_values=s,
        init_scale=alpha, **budget,
    )  # fmt: skip
    return run(solver, objective, **budget, **options)


SIZES = {  # T, d, k, rows per task
    "wide": (12, 20, 3, 60),
    "tall": (40, 8, 2, 30),
    "few rows": (30, 15, 2, 10),
    "rank one": (9, 6, 1, 25),
}


@pytest.mark.parametrize("kind", ["gram", "rows"])
@pytest.mark.parametrize("kappa", [1.5, 3.0])
@pytest.mark.parametrize("name", SIZES)
def test_every_iterate_of_tpgd_is_that_of_algorithm_1(name, kappa, kind):
    T, d, k, _ = SIZES[name]
    sim = simulated(*SIZES[name], condition_number=kappa)
    s, alpha, K1 = sim.singular_values, 0.1, 300
    objective = build_objective(statistics_of(sim.X, sim.y, sim.task, centred=False, kind=kind))
    ours = []

    def record(now):
        ours.append((now["B"], now["W"]))

    result = run_tpgd(objective, k, s, alpha, K1, callback=record)
    assert result.n_halved == 0  # the loop's safeguard, which the paper does not have

    start = tpgd_start(d, k, T, alpha, seed=7)
    expected = independent.tpgd(*by_task(sim), *start, 0.3 / s[0], 0.2 / s[0], K1)[1:]
    assert len(ours) == len(expected) == K1
    for (B, W), (B_expected, W_expected) in zip(ours, expected, strict=True):
        assert relative(B, B_expected) < DIGITS
        assert relative(W, W_expected) < DIGITS
        assert relative(B @ W, B_expected @ W_expected) < DIGITS


def test_the_estimator_runs_algorithm_1_with_the_papers_steps():
    sim = simulated(25, 10, 2, 40, condition_number=2.0)
    s, alpha, K1 = sim.singular_values, 0.05, 200
    options = {"steps": "theory", "singular_values": s, "init_scale": alpha}
    model = ss.SharedSpanRegressor(
        rank=2, solver="tpgd", solver_options=options, fit_intercept=False, whiten=False,
        max_iter=K1, tol=0, random_state=5,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(sim.X, sim.y, task=sim.task)
    start = tpgd_start(10, 2, 25, alpha, seed=5)
    eta_1, eta_2 = 1.1 / (2.0**5 * s[0]), 0.1 / s[0]
    B, W = independent.tpgd(*by_task(sim), *start, eta_1, eta_2, K1)[-1]
    assert relative(model.coef_, (B @ W).T) < DIGITS


def test_tpgd_with_unequal_tasks_is_algorithm_1_on_responses_scaled_by_the_root_of_size():
    n = sizes(12, 50, 20)
    sim = simulated(20, 9, 2, n, condition_number=2.0)
    s, alpha, K1 = sim.singular_values, 0.1, 200
    objective = build_objective(statistics_of(sim.X, sim.y, sim.task, centred=False))
    result = run_tpgd(objective, 2, s, alpha, K1)

    X, y = by_task(sim)
    scale = np.sqrt(n / n.mean())
    scaled = [values * factor for values, factor in zip(y, scale, strict=True)]
    B0, W0 = tpgd_start(9, 2, 20, alpha, seed=7)
    W0 = W0 * np.minimum(scale, 1)  # the start of a small task shrinks with its responses
    B, W = independent.tpgd(X, scaled, B0, W0, 0.3 / s[0], 0.2 / s[0], K1)[-1]
    assert result.n_halved == 0
    assert relative(result.B @ result.W, B @ W) < DIGITS


# ---------------------------------------------------------------- moments and spectral estimator

PROBLEMS = {  # T, d, k, rows per task
    "equal": (30, 8, 2, 25),
    "unequal": (25, 7, 3, sizes(12, 60, 25)),
    "fewer rows than features": (30, 12, 2, sizes(5, 20, 30)),
    "more features than tasks": (10, 15, 2, sizes(20, 40, 10)),
}
ROWS_AS_GIVEN = {"fit_intercept": False, "whiten": False, "random_state": 0}


def assert_same_span(ours, expected):
    """Two bases, not necessarily orthonormal, of one span."""
    P, Q = (basis @ np.linalg.pinv(basis) for basis in (ours, expected))
    assert np.abs(P - Q).max() < DIGITS


@pytest.mark.parametrize("variant", ["tripuraneni", "duchi"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_moment_estimates_agree(name, variant):
    sim = simulated(*PROBLEMS[name])
    k = PROBLEMS[name][2]
    method = {"tripuraneni": independent.mom_tripuraneni, "duchi": independent.mom_duchi}
    B, V = method[variant](*by_task(sim), k)
    model = ss.MomentRegressor(rank=k, variant=variant, **ROWS_AS_GIVEN)
    model.fit(sim.X, sim.y, task=sim.task)
    assert_same_span(model.representation_, B)
    assert relative(model.coef_, V.T) < DIGITS


def all_halves(n):
    """Every split of n rows in two halves, the odd row on either side."""
    rows = set(range(n))
    for size in {n // 2, n - n // 2}:
        for first in itertools.combinations(range(n), size):
            yield list(first), sorted(rows - set(first))


@pytest.mark.parametrize("symmetrise", [False, True])
@pytest.mark.parametrize("n", [(4, 4, 4), (5, 2, 4), (2,) * 7])
def test_niu_is_the_svd_of_the_cross_moment_of_one_random_split(n, symmetrise):
    """The package draws the halves at random, so that one split of all must give its result."""
    sim = simulated(len(n), 6, 2, n)
    X, y = by_task(sim)
    model = ss.MomentRegressor(rank=2, variant="niu", symmetrise=symmetrise, **ROWS_AS_GIVEN)
    model.fit(sim.X, sim.y, task=sim.task)
    errors = [
        relative(model.coef_, independent.mom_niu(X, y, 2, halves, symmetrise)[1].T)
        for halves in itertools.product(*(list(all_halves(size)) for size in n))
    ]
    assert min(errors) < DIGITS


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_first_step_of_the_spectral_estimator_agrees(name):
    sim = simulated(*PROBLEMS[name])
    k = PROBLEMS[name][2]
    for share in (0.0, 0.2):
        model = ss.SpectralRegressor(rank=k, outliers=share, step_two=False, **ROWS_AS_GIVEN)
        model.fit(sim.X, sim.y, task=sim.task)
        A, V = independent.spectral_step_one(*by_task(sim), k, share, by_size=True)
        assert_same_span(model.representation_, A)
        assert relative(model.coef_, V.T) < DIGITS


@pytest.mark.parametrize("penalty", [1.0, 0.5])
@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "fewer rows than features"])
def test_both_steps_of_the_spectral_estimator_agree(name, penalty):
    """With tasks off the span, so that some of them leave it in step 2 and some do not."""
    sim = simulated(*PROBLEMS[name], outliers=0.2)
    k = PROBLEMS[name][2]
    X, y = by_task(sim)
    model = ss.SpectralRegressor(rank=k, outliers=0.2, penalty=penalty, **ROWS_AS_GIVEN)
    model.fit(sim.X, sim.y, task=sim.task)
    C2 = penalty * independent.noise_level(X, y)
    _, V = independent.spectral(X, y, k, C2, 0.2, by_size=True)
    _, first = independent.spectral_step_one(X, y, k, 0.2, by_size=True)
    assert (first != V).any()
    assert relative(model.coef_, V.T) < DIGITS


# ---------------------------------------------------------------- Algorithm 2


def new_task(n_rows, seed=0):
    """Heavy-tailed rows of one new task and a representation that is not orthonormal."""
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(7, 3))
    X = rng.standard_t(3.0, size=(n_rows, 7))
    return B, X, X @ B @ rng.normal(size=3) + 0.3 * rng.normal(size=n_rows)


def fit_new_task(B, X, y, **options):
    model = ss.NewTaskRegressor(representation=B, method="sgd", fit_intercept=False, **options)
    return model.fit(X, y, task=np.zeros(len(y), dtype=int)).coef_[0]


def step_of_first_rows(B, X):
    """eta_0 = 1 / (3 trace(B'HB)) with the trace estimated from at most 32 rows."""
    return 1 / (3 * np.mean(np.sum((X[:32] @ B) ** 2, axis=1)))


LENGTHS = [1, 2, 3, 7, 20, 100, 400]


@pytest.mark.parametrize("n_rows", LENGTHS)
def test_sgd_by_default_is_the_displayed_schedule_with_an_update_for_each_row(n_rows):
    B, X, y = new_task(n_rows)
    eta_0 = step_of_first_rows(B, X)
    candidates = [
        B @ independent.sgd(X, y, B, eta_0, clip=clip, schedule="formula", n_updates=n_rows)
        for clip in (True, False)
    ]
    ours = fit_new_task(B, X, y)
    # The default of the clip is decided by figures; its two settings are tested below.
    assert min(relative(ours, expected) for expected in candidates) < DIGITS


@pytest.mark.parametrize("share", [0, 0.25])
@pytest.mark.parametrize("n_rows", LENGTHS)
def test_sgd_as_printed_is_algorithm_2(n_rows, share):
    """The pseudo-code: K2 - 1 updates, the step halved before update K2' + h, and no clip."""
    B, X, y = new_task(n_rows)
    h, w0 = int(share * n_rows), np.array([0.5, -1.0, 2.0])
    eta_0 = 2 * step_of_first_rows(B, X)
    options = {"step_size": eta_0, "constant_rows": h, "start": w0, "as_printed": True}
    ours = fit_new_task(B, X, y, sgd_options=options)
    assert relative(ours, B @ independent.sgd(X, y, B, eta_0, h, w0)) < DIGITS


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("n_rows", LENGTHS)
def test_the_options_of_sgd_are_those_of_algorithm_2(n_rows, clip):
    """Without ``as_printed``: the displayed schedule, and an update for each row."""
    B, X, y = new_task(n_rows, seed=1)
    h, w0 = n_rows // 4, np.array([0.5, -1.0, 2.0])
    eta_0 = 2 * step_of_first_rows(B, X)
    options = {"step_size": eta_0, "constant_rows": h, "start": w0, "clip": clip}
    ours = fit_new_task(B, X, y, sgd_options=options)
    expected = independent.sgd(X, y, B, eta_0, h, w0, clip, "formula", n_updates=n_rows)
    assert relative(ours, B @ expected) < DIGITS


def test_the_clip_matters_for_these_rows():
    """Otherwise the tests above could not tell a clip from none."""
    B, X, y = new_task(400)
    eta_0 = 2 * step_of_first_rows(B, X)
    clipped, printed = (independent.sgd(X, y, B, eta_0, clip=clip) for clip in (True, False))
    assert relative(clipped, printed) > 1e-3


@pytest.mark.parametrize("schedule", ["pseudocode", "formula", "proof"])
def test_the_paper_gives_three_schedules_that_differ_by_one_or_two_rows(schedule):
    K2, h = 200, 30
    K = independent.decay_length(K2, h)
    assert K == 33  # 170 / log 170
    full = {"pseudocode": K + h - 1, "formula": K + h + 1, "proof": K + h}[schedule]
    steps = independent.sgd_steps(1.0, K2, h, schedule)
    assert steps[:full] == [1.0] * full
    assert steps[full] == 0.5
    second = steps.index(0.25)
    assert second == 2 * K + h - (schedule == "pseudocode")


# ---------------------------------------------------------------- Algorithm 3

LEVEL_TASKS, LEVEL_ROWS = (15, 20, 12), (70, 60, 133)


@pytest.fixture
def curriculum(monkeypatch):
    """Three levels, a fit of Algorithm 3, and the factors of its first level."""
    import sharedspan.estimators.curriculum as module

    rng = np.random.default_rng(5)
    B = np.linalg.qr(rng.normal(size=(8, 2)))[0]
    levels, X, y = {}, [], []
    for level, (n_tasks, n_rows) in enumerate(zip(LEVEL_TASKS, LEVEL_ROWS, strict=True), start=1):
        for _ in range(n_tasks):
            levels[len(X)] = level
            X.append(rng.normal(size=(n_rows, 8)))
            noise = (0.1, 0.5, 1.0)[level - 1] * rng.normal(size=n_rows)
            y.append(X[-1] @ B @ rng.normal(size=2) + noise)
    labels = np.repeat(np.arange(len(X)), [len(values) for values in y])
    results, actual_run = [], module.run

    def recorded(*arguments, **options):
        results.append(actual_run(*arguments, **options))
        return results[-1]

    monkeypatch.setattr(module, "run", recorded)

    def fit(variant, **options):
        results.clear()
        model = ss.CurriculumRegressor(
            rank=2, variant=variant, levels=levels, fit_intercept=False, whiten=False,
            random_state=0, **options,
        )  # fmt: skip
        model.fit(np.concatenate(X), np.concatenate(y), task=labels)
        first = next(result for result in results if result.W.shape[1] == LEVEL_TASKS[0])
        return model.coef_, first.B

    def level(j):
        tasks = [t for t in levels if levels[t] == j]
        return tasks, [X[t] for t in tasks], [y[t] for t in tasks]

    return fit, level


def first_singular_values(X, y, B1, N_j):
    """s_1 and s_k of the level's coefficients B_1 w_t after the fit to the first rows."""
    W = independent.fit_in_span([rows[:N_j] for rows in X], [v[:N_j] for v in y], B1)
    s = np.linalg.svd(B1 @ W, compute_uv=False)
    return s[0], s[B1.shape[1] - 1]


@pytest.mark.parametrize("variant", ["pair", "literal"])
def test_the_curriculum_is_algorithm_3(curriculum, variant):
    fit, level = curriculum
    coef, B1 = fit(variant)
    for j in (2, 3):
        tasks, X, y = level(j)
        N = LEVEL_ROWS[j - 1]
        N_j, _, _ = independent.curriculum_defaults(1, 1, 2, N)
        s = first_singular_values(X, y, B1, N_j)
        settings = independent.curriculum_defaults(*s, 2, N)
        expected = independent.curriculum_level(X, y, B1, *settings, variant)
        assert relative(coef[tasks], expected.T) < DIGITS


def test_the_first_level_of_the_curriculum_is_least_squares_in_its_span(curriculum):
    fit, level = curriculum
    coef, B1 = fit("pair")
    tasks, X, y = level(1)
    assert relative(coef[tasks], (B1 @ independent.fit_in_span(X, y, B1)).T) < DIGITS


@pytest.mark.parametrize("variant", ["pair", "literal"])
@pytest.mark.parametrize(
    ("first_rows", "n_iter", "step_size"),
    [(25, 40, 0.2), ((10, 50), (30, 7), (0.15, 0.3)), ((30, 30), 25, (0.1, 0.25))],
    ids=["numbers", "one per level", "mixed"],
)
def test_algorithm_3_with_given_settings(curriculum, variant, first_rows, n_iter, step_size):
    """The step size is given as eta_2j s_1, as for TPGD."""
    fit, level = curriculum
    options = {"first_rows": first_rows, "n_iter": n_iter, "step_size": step_size}
    coef, B1 = fit(variant, level_options=options)
    for j in (2, 3):
        tasks, X, y = level(j)
        N_j, K_j, step = (np.broadcast_to(v, 2)[j - 2] for v in (first_rows, n_iter, step_size))
        eta_2j = step / first_singular_values(X, y, B1, N_j)[0]
        expected = independent.curriculum_level(X, y, B1, N_j, K_j, eta_2j, variant)
        assert relative(coef[tasks], expected.T) < DIGITS
