import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from sklearn.utils.estimator_checks import check_estimator

import sharedspan as ss
from conftest import statistics_of
from oracles import relative
from sharedspan.estimators.armul import ARMULRegressor, Centres, distance_penalty
from sharedspan.estimators.penalized import PenalizedERMRegressor
from sharedspan.objective import build_objective
from sharedspan.solvers.initialization import separate_fits
from sharedspan.solvers.proximal import proximal_descent

SIZES = {"n_tasks": 40, "n_features": 50, "rank": 3, "n_samples": 200, "condition_number": 1.5}
OPTIONS = {"rank": 3, "fit_intercept": False, "random_state": 0}
VARIANTS = ["lowrank", "clustered", "vanilla"]
NORMS = ["euclidean", "gram"]


def paper(seed, **options):
    return ss.simulate(**SIZES, noise=0.5, random_state=seed, **options)


def clusters(seed=0, n_samples=40):
    """Thirty tasks around three slopes, and their clusters."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, 30)
    coef = 2 * rng.standard_normal((3, 6))[label]
    task = np.repeat(np.arange(30), n_samples)
    X = rng.standard_normal((len(task), 6))
    y = np.einsum("ij,ij->i", X, coef[task]) + 0.5 * rng.standard_normal(len(task))
    return X, y, task, coef, label


@pytest.mark.parametrize("norm", NORMS)
def test_error_is_at_the_floor_with_the_penalty_cross_validated(norm):
    ratios = []
    for seed in range(2):
        sim = paper(seed)
        model = ARMULRegressor(penalty_norm=norm, **OPTIONS).fit(sim.X, sim.y, task=sim.task)
        floor = ss.error_floor(200, 50, 40, 3, 0.5)
        ratios.append(ss.parameter_error(model.coef_, sim.coef) / floor)
        path = model.penalty_path_
        assert model.penalty_ == path["penalty"][np.argmin(path["loss"])]
        assert_allclose(path["loss"].min(), 0.25, rtol=0.1)
    assert 0.90 <= np.mean(ratios) <= 1.15


@pytest.mark.parametrize("norm", NORMS)
def test_outlier_tasks_do_not_turn_the_span(norm):
    for seed in range(2):
        sim = paper(seed, outliers=0.1, outlier_norm=3)
        inlier = ~sim.is_outlier
        separate = ss.PerTaskRegressor(alpha=0, fit_intercept=False)
        errors = [
            ss.parameter_error(m.fit(sim.X, sim.y, sim.task).coef_[inlier], sim.coef[inlier])
            for m in (ARMULRegressor(penalty_norm=norm, **OPTIONS), separate)
        ]
        assert errors[0] <= 0.3 * errors[1]


@pytest.mark.parametrize("norm", NORMS)
def test_a_large_penalty_is_the_fit_in_the_span(norm, small):
    sim = paper(0)
    for data, rank, tol in ((sim, 3, 1e-7), (small, 2, 1e-10)):
        options = {"rank": rank, "random_state": 0}
        model = ARMULRegressor(penalty=1e3, penalty_norm=norm, tol=tol, **options)
        model.fit(data.X, data.y, task=data.task)
        erm = ss.SharedSpanRegressor(solver="als", **options).fit(data.X, data.y, task=data.task)
        assert relative(model.coef_, erm.coef_) < 1e-4
        assert_allclose((model.representation_ @ model.task_weights_).T, model.coef_, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_penalty_is_separate_least_squares(variant, norm):
    sim = ss.simulate(
        n_tasks=12, n_features=8, rank=2, n_samples=[20, 30, 60] * 4, intercept=1.0, random_state=0
    )
    options = {"rank": 2, "variant": variant, "penalty_norm": norm}
    model = ARMULRegressor(penalty=0.0, random_state=0, **options)
    model.fit(sim.X, sim.y, task=sim.task)
    separate = ss.PerTaskRegressor(alpha=0).fit(sim.X, sim.y, task=sim.task)
    assert relative(model.coef_, separate.coef_) < 1e-6
    assert_allclose(model.intercept_, separate.intercept_, atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("penalty", [0.2, 1.0, 5.0])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_objective_never_rises(variant, penalty, norm, small):
    model = ARMULRegressor(
        rank=2, variant=variant, n_clusters=3, penalty=penalty, penalty_norm=norm, random_state=0
    ).fit(small.X, small.y, task=small.task)
    trace = model.trace_["objective"]
    assert len(trace) == model.n_iter_ + 1
    assert (np.diff(trace) <= 1e-11 * trace[:-1]).all()


def test_vanilla_ends_at_the_minimum_of_its_convex_objective():
    """No gradient in the centre; in each task the subgradient of the deviation holds zero."""
    sim = ss.simulate(n_tasks=20, n_features=5, rank=2, n_samples=40, random_state=0)
    objective = build_objective(statistics_of(sim.X, sim.y, sim.task))
    weight, r = 0.4, objective.response
    V = separate_fits(objective)[0]
    B, W = np.zeros((5, 1)), r[None, :]
    descent = proximal_descent(
        objective, distance_penalty(weight), Centres(objective, weight), (B, W, V),
        np.full(20, 2.5), max_iter=5000, tol=1e-14,
    )  # fmt: skip
    at = descent.place
    length = np.linalg.norm(at.D, axis=0)
    moved = length > 1e-9
    assert 0 < moved.sum() < 20
    assert np.abs(at.G @ r).max() < 1e-4
    assert (np.linalg.norm(at.G, axis=0)[~moved] <= weight).all()
    assert_allclose(at.G[:, moved], -weight * (at.D / np.maximum(length, 1e-300))[:, moved],
                    atol=1e-4)  # fmt: skip


@pytest.mark.parametrize("norm", NORMS)
def test_clusters_are_found_and_pooled(norm):
    X, y, task, coef, label = clusters()
    options = {"variant": "clustered", "n_clusters": 3, "penalty_norm": norm}
    model = ARMULRegressor(random_state=0, **options)
    model.fit(X, y, task=task)
    assert len(set(zip(label, model.labels_, strict=True))) == 3
    assert model.rank_ == 3
    assert model.representation_.shape == (6, 3)
    separate = ss.PerTaskRegressor(alpha=0).fit(X, y, task=task)
    error = ss.parameter_error(model.coef_, coef)
    assert error < 0.3 * ss.parameter_error(separate.coef_, coef)


def test_a_wrong_start_is_mended_by_reassignment():
    X, y, task, coef, label = clusters()
    objective = build_objective(statistics_of(X, y, task))
    wrong = label.copy()
    wrong[:6] = (wrong[:6] + 1) % 3
    centres = np.array([coef[label == c][0] for c in range(3)]).T
    W = objective.response * (np.arange(3)[:, None] == wrong)
    for weight in (0.1, 1e3):
        start = centres, W, np.zeros((6, 30))
        descent = proximal_descent(
            objective, distance_penalty(weight), Centres(objective, weight), start,
            np.full(30, 3.0), max_iter=200, tol=1e-8,
        )  # fmt: skip
        assert_array_equal(np.argmax(descent.place.W, axis=0), label)


def test_the_units_of_the_data_do_not_matter(small):
    def fit(X, y):
        model = ARMULRegressor(rank=2, penalty=1.0, random_state=0)
        return model.fit(X, y, task=small.task)

    scale = np.geomspace(0.01, 100, 8)
    plain, scaled = fit(small.X, small.y), fit(small.X * scale, 1e3 * small.y)
    assert relative(scaled.coef_ * scale / 1e3, plain.coef_) < 1e-5
    assert_allclose(scaled.noise_variance_, 1e6 * plain.noise_variance_, rtol=1e-6)


# The norm of each task's Gram.


def unlike_designs(seed, T=8, d=3, n=15, *, spread=5.0, outliers=1):
    """T tasks of n rows, near one slope, whose designs are narrow along axes of their own.

    Outliers have a slope of their own along the axis in which their design is narrowest.
    """
    rng = np.random.default_rng(seed)
    task, X = np.repeat(np.arange(T), n), rng.standard_normal((T, n, d))
    axes = np.linalg.qr(rng.standard_normal((T, d, d)))[0]
    X = ((X * np.geomspace(1.0, 1 / spread, d)) @ axes.transpose(0, 2, 1)).reshape(T * n, d)
    coef = rng.standard_normal(d) + 0.3 * rng.standard_normal((T, d))
    coef[:outliers] += 3 * spread * axes[:outliers, :, -1]
    y = np.einsum("ij,ij->i", X, coef[task]) + 0.5 * rng.standard_normal(T * n)
    return X, y, task, coef


def kim_objective(model, X, y, task, theta, gamma):
    """sum_t n_t [f_t(theta_t) + lambda_t |S_t^(1/2) (theta_t - gamma_t)|] from the rows."""
    total = 0.0
    for t, n in zip(*np.unique(task, return_counts=True), strict=True):
        x, target = X[task == t], y[task == t]
        scale = model.penalty_ * np.sqrt(model.noise_variance_[0] * X.shape[1] / n)
        distance = np.sqrt(np.mean((x @ (theta[t] - gamma[t])) ** 2))
        total += n * (np.mean((target - x @ theta[t]) ** 2) / 2 + scale * distance)
    return total


@pytest.mark.parametrize("whiten", [True, False])
def test_one_centre_in_the_gram_norm_is_the_minimum_that_a_convex_solver_finds(whiten):
    """BFGS on all theta_t and the centre, with distances sqrt(q + e^2) for e towards zero."""
    T, d, n = 8, 3, 15
    X, y, task, _ = unlike_designs(0, T, d, n)
    model = ARMULRegressor(
        variant="vanilla", penalty_norm="gram", penalty=0.8, fit_intercept=False, whiten=whiten,
        tol=1e-13,
    ).fit(X, y, task=task)  # fmt: skip
    weight = 0.8 * np.sqrt(model.noise_variance_[0] * d / n)
    rows, targets = X.reshape(T, n, d), y.reshape(T, n)

    def smoothed(z, e):
        theta, gamma = z[:-d].reshape(T, d), z[-d:]
        residual = np.einsum("tnd,td->tn", rows, theta) - targets
        moved = np.einsum("tnd,td->tn", rows, theta - gamma)
        distance = np.sqrt((moved**2).mean(axis=1) + e**2)
        pull = np.einsum("tn,tnd->td", weight / distance[:, None] * moved, rows) / n
        slope = np.einsum("tn,tnd->td", residual, rows) / n + pull
        value = (residual**2).sum() / (2 * n) + weight * distance.sum()
        return value, np.r_[slope.ravel(), -pull.sum(axis=0)]

    z = np.zeros(T * d + d)
    for e in np.geomspace(1.0, 1e-6, 13):
        z = minimize(smoothed, z, (e,), "BFGS", jac=True, options={"gtol": 1e-9}).x
    theta, gamma = z[:-d].reshape(T, d), np.tile(z[-d:], (T, 1))
    centre = (model.representation_ @ model.task_weights_).T
    ours = kim_objective(model, X, y, task, model.coef_, centre)
    assert ours <= kim_objective(model, X, y, task, theta, gamma)
    assert_allclose(ours, kim_objective(model, X, y, task, theta, gamma), rtol=1e-6)
    assert_allclose(model.coef_, theta, atol=1e-4)
    on_centre = np.abs(model.coef_ - centre).max(axis=1) < 1e-9
    assert 0 < on_centre.sum() < T


def test_no_step_of_a_generic_solver_lowers_a_fit_near_a_span_in_the_gram_norm():
    sim = ss.simulate(n_tasks=12, n_features=5, rank=2, n_samples=20, outliers=0.2, random_state=0)
    model = ARMULRegressor(
        rank=2, penalty_norm="gram", penalty=0.7, fit_intercept=False, whiten=False, tol=1e-14,
    ).fit(sim.X, sim.y, task=sim.task)  # fmt: skip
    separate = ss.PerTaskRegressor(alpha=0, fit_intercept=False).fit(sim.X, sim.y, sim.task).coef_

    def value(z):
        B, W = z[:10].reshape(5, 2), z[10:].reshape(2, 12)
        gamma = (B @ W).T
        theta = np.empty_like(gamma)
        for t in range(12):  # the best theta_t lies between the centre and least squares
            x = sim.X[sim.task == t]
            distance = np.sqrt(np.mean((x @ (separate[t] - gamma[t])) ** 2))
            weight = 0.7 * np.sqrt(model.noise_variance_[0] * 5 / len(x))
            theta[t] = gamma[t] + max(0.0, 1 - weight / distance) * (separate[t] - gamma[t])
        return kim_objective(model, sim.X, sim.y, sim.task, theta, gamma)

    centres = (model.representation_ @ model.task_weights_).T
    ours = kim_objective(model, sim.X, sim.y, sim.task, model.coef_, centres)
    at = np.r_[model.representation_.ravel(), model.task_weights_.ravel()]
    assert_allclose(value(at), ours, rtol=1e-9)
    assert minimize(value, at, method="BFGS").fun >= ours * (1 - 1e-7)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("penalty", [0.5, 2.0])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_in_the_gram_norm_no_task_leaves_its_separate_fit_by_more_than_lambda(variant, penalty):
    """|X_t (theta_t - v_t)|^2 / n_t <= C^2 sigma^2 d / n_t, however the designs are stretched."""
    X, y, task, _ = unlike_designs(0, 20, 6, 30, spread=30, outliers=4)
    options = {"rank": 2, "variant": variant, "penalty": penalty, "whiten": False, "tol": 1e-4}
    separate = ss.PerTaskRegressor(alpha=0).fit(X, y, task=task)

    def largest(norm):
        model = ARMULRegressor(penalty_norm=norm, random_state=0, **options).fit(X, y, task=task)
        moved = model.predict(X, task=task) - separate.predict(X, task=task)
        bound = penalty**2 * model.noise_variance_[0] * 6
        return np.bincount(task, moved**2).max() / bound

    assert 0.9 < largest("gram") <= 1 + 1e-6
    if variant == "lowrank":  # the Euclidean norm has no such bound
        assert largest("euclidean") > 10


def test_in_the_gram_norm_unrelated_tasks_lose_at_most_the_guaranteed_factor():
    """The risk of a task is at most (1 + C)^2 times that of its separate fit, on average."""
    C, ratios = 0.5, []
    for seed in range(5):
        X, y, task, coef = unlike_designs(seed, 20, 6, 30, spread=30, outliers=20)
        truth = np.einsum("ij,ij->i", X, coef[task])
        gram = ARMULRegressor(variant="vanilla", penalty_norm="gram", penalty=C)
        separate = ss.PerTaskRegressor(alpha=0)
        errors = [
            np.mean((m.fit(X, y, task=task).predict(X, task=task) - truth) ** 2)
            for m in (gram, separate)
        ]
        ratios.append(errors[0] / errors[1])
    assert np.mean(ratios) <= (1 + C) ** 2


@pytest.mark.parametrize("variant", ["lowrank", "vanilla"])  # k-means starts in coordinates
def test_in_the_gram_norm_the_coordinates_of_the_features_do_not_matter(variant, small):
    A = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))[0] * np.geomspace(1, 30, 8)
    options = {"rank": 2, "variant": variant, "penalty": 0.5, "whiten": False, "tol": 1e-13}
    model = ARMULRegressor(penalty_norm="gram", random_state=0, **options)
    fits = [model.fit(X, small.y, small.task).coef_ for X in (small.X, small.X @ A)]
    assert relative(fits[1] @ A.T, fits[0]) < 1e-5


def test_a_task_with_too_few_rows_keeps_its_centre_where_its_rows_say_nothing():
    rng = np.random.default_rng(0)
    n = np.r_[4, np.full(11, 40)]
    sim = ss.simulate(n_tasks=12, n_features=6, rank=2, n_samples=n, noise=0.1, random_state=3)
    y = sim.y + np.where(sim.task == 0, 5.0 * rng.standard_normal(len(sim.y)), 0.0)
    model = ARMULRegressor(
        rank=2, penalty=0.5, penalty_norm="gram", fit_intercept=False, whiten=False
    ).fit(sim.X, y, task=sim.task)
    deviation = model.coef_[0] - model.representation_ @ model.task_weights_[:, 0]
    rows = sim.X[sim.task == 0]
    assert np.linalg.norm(deviation) > 0
    assert_allclose(deviation - np.linalg.pinv(rows) @ (rows @ deviation), 0.0, atol=1e-9)


def hard_tables():
    def table(T, n, **options):
        options = {"n_features": 4, "rank": 1, "noise": 0.1, "intercept": 1.0} | options
        sim = ss.simulate(n_tasks=T, n_samples=n, random_state=1, **options)
        return sim.X, sim.y, sim.task

    X, y, task = table(12, 15)
    constant = X.copy()
    constant[:, 1] = 3.0
    return {
        "one task": table(1, 20),
        "one row": table(1, 1),
        "one row in each of two tasks": table(2, 1),
        "one row per task": table(12, 1),
        "sizes from 1 to 30": table(12, np.r_[1, 2, 3, np.full(9, 30)]),
        "fewer rows than features": table(12, 6, n_features=15),
        "no noise": table(12, 15, noise=0.0),
        "a constant column": (constant, y, task),
        "constant columns only": (np.ones_like(X), y, task),
        "constant responses": (X, np.full_like(y, 2.0), task),
    }


@pytest.mark.parametrize("name", hard_tables())
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_hard_tables_give_finite_fits(name):
    X, y, task = hard_tables()[name]
    models = [ARMULRegressor(variant=s, max_iter=50, random_state=0) for s in VARIANTS]
    models += [ARMULRegressor(rank=1, variant=s, penalty_norm="gram") for s in VARIANTS]
    models += [ARMULRegressor(rank=1, penalty=1.0, whiten=False, fit_intercept=False)]
    models += [PenalizedERMRegressor(random_state=0), PenalizedERMRegressor(rank=1, whiten=False)]
    for model in models:
        model.fit(X, y, task=task)
        for attribute in ("coef_", "intercept_", "noise_variance_", "task_weights_"):
            assert np.isfinite(getattr(model, attribute)).all()
        assert np.isfinite(model.trace_["objective"]).all()


@pytest.mark.parametrize(
    "estimator",
    # The way a penalty is found is the same for all of them.
    [
        ARMULRegressor(),
        *(ARMULRegressor(variant=s, penalty=1.0) for s in VARIANTS[1:]),
        ARMULRegressor(penalty_norm="gram", penalty=1.0),
    ],
    ids=[*VARIANTS, "gram"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:X is a frame, but neither task")
def test_scikit_learn_finds_no_fault(estimator):
    results = check_estimator(estimator, on_skip=None, on_fail=None)
    assert not {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert sum(r["status"] == "passed" for r in results) > 40


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"variant": "tree"}, "variant='tree' is unknown: use 'lowrank', 'clustered'"),
        ({"penalty_norm": "l1"}, "penalty_norm='l1' is unknown: use 'euclidean', 'gram'"),
        ({"penalty": "cv"}, "penalty='cv' must be a number. Or use penalty='auto'"),
        ({"penalty": -0.5}, "penalty=-0.5 must be a number of at least 0"),
        ({"n_clusters": 0}, "n_clusters=0 must be an integer of at least 1"),
        ({"tol": -1.0}, "tol=-1.0 must be a number of at least 0"),
        ({"rank": 9}, "rank=9 is larger than min"),
    ],
)
def test_bad_options_say_what_to_do(options, words, small):
    with pytest.raises((TypeError, ValueError), match=words):
        ARMULRegressor(**options).fit(small.X, small.y, task=small.task)
