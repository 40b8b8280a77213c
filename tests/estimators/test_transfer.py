import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

import sharedspan as ss
from sharedspan.estimators.stream import FIRST_ROWS, Descent
from sharedspan.estimators.transfer import METHODS, NewTaskRegressor

d, k = 50, 3


@pytest.fixture(scope="module")
def source():
    sim = ss.simulate(
        n_tasks=200, n_features=d, rank=k, n_samples=200, noise=0.5, random_state=0
    )  # fmt: skip
    return sim, ss.SharedSpanRegressor(rank=k, random_state=0).fit(sim.X, sim.y, sim.task)


def new_tasks(sim, rows, rng, n_tasks=100):
    """Rows of new tasks of the same population, and their coefficients (n_tasks, d)."""
    weights = sim.task_weights
    W = rng.multivariate_normal(weights.mean(axis=1), np.cov(weights), n_tasks)
    V = W @ sim.representation.T
    task = np.repeat(np.arange(n_tasks), rows)
    X = rng.standard_normal((len(task), d))
    y = np.einsum("ij,ij->i", X, V[task]) + 0.5 * rng.standard_normal(len(task))
    return X, y, task, V


def few_tasks(rng, n_tasks=5, rows=40, width=6, rank=2):
    """Unequal tasks in a span, in mixed order, with intercepts."""
    B = np.linalg.qr(rng.standard_normal((width, rank)))[0]
    task = rng.integers(0, n_tasks, n_tasks * rows)
    X = rng.standard_normal((len(task), width)) + 1.5
    V = rng.standard_normal((n_tasks, rank)) @ B.T
    y = task + np.einsum("ij,ij->i", X, V[task]) + 0.3 * rng.standard_normal(len(task))
    return B, X, y, task


def assert_same_fit(one, other, rtol=1e-10):
    assert one.tasks_.tolist() == other.tasks_.tolist()
    for name in ("coef_", "intercept_", "task_weights_", "noise_variance_"):
        a, b = getattr(one, name), getattr(other, name)
        assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())


@pytest.mark.parametrize("method", ["prior", "least_squares"])
@pytest.mark.filterwarnings("ignore:X is a frame, but neither task")
def test_scikit_learn_finds_no_fault(method):
    results = check_estimator(NewTaskRegressor(method=method), on_skip=None, on_fail=None)
    assert not {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert sum(r["status"] == "passed" for r in results) > 40


def test_excess_risk_on_new_tasks(source):
    sim, model = source
    rng = np.random.default_rng(1)
    for rows in (2, 5, 20, 50, 200, 1000):
        X, y, task, V = new_tasks(sim, rows, rng)
        fits = {name: NewTaskRegressor.from_model(model, name).fit(X, y, task) for name in METHODS}
        risk = {name: np.mean(np.sum((fit.coef_ - V) ** 2, axis=1)) for name, fit in fits.items()}
        print(rows, {name: float(f"{value:.3g}") for name, value in risk.items()})
        assert risk["prior"] <= 1.01 * risk["least_squares"]
        assert risk["sgd"] <= {200: 2, 1000: 1.5}.get(rows, np.inf) * risk["least_squares"]


def test_the_prior_helps_also_where_the_noise_must_be_estimated(source):
    sim, model = source
    rng = np.random.default_rng(2)
    for rows in (2, 4, 5, 20):
        X, y, task, V = new_tasks(sim, rows, rng)
        prior = NewTaskRegressor.from_model(model).set_params(noise_variance=None).fit(X, y, task)
        plain = NewTaskRegressor.from_model(model, "least_squares").fit(X, y, task)
        assert np.sum((prior.coef_ - V) ** 2) < np.sum((plain.coef_ - V) ** 2)
        assert (prior.noise_variance_ >= 0).all()


@pytest.mark.parametrize(("fit_intercept", "offset"), [(True, 0.0), (True, 1e6), (False, 0.0)])
@pytest.mark.parametrize("method", METHODS)
def test_row_by_row_in_chunks_and_at_once_give_one_result(method, fit_intercept, offset, rng):
    B, X, y, task = few_tasks(rng, n_tasks=4)
    task = np.tile(np.arange(4), 40)  # equal sizes, so that one horizon is right for all
    X = X + offset
    model = NewTaskRegressor(
        B, np.ones(2), np.diag([2.0, 0.5]), method=method, horizon=40, fit_intercept=fit_intercept
    )
    at_once = clone(model).fit(X, y, task)
    for size in (1, 7, 64):
        stream = clone(model)
        for lo in range(0, len(y), size):
            chunk = slice(lo, lo + size)
            stream.partial_fit(X[chunk], y[chunk], task[chunk])
        assert_same_fit(stream, at_once)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"step_size": 0.1, "constant_rows": 7, "start": [1.0, -2.0], "clip": False},
        {"start": [1.0, -2.0], "as_printed": True},
    ],
)
def test_options_of_the_stream_do_not_depend_on_chunks_or_a_file(
    options, fit_intercept, rng, tmp_path
):
    B, X, y, _ = few_tasks(rng)
    task = np.tile(np.arange(2), 40)
    model = NewTaskRegressor(
        B, method="sgd", horizon=40, sgd_options=options, fit_intercept=fit_intercept
    )
    at_once = clone(model).fit(X[:80], y[:80], task)
    for size in (1, 7, 64):
        stream = clone(model)
        for lo in range(0, 80, size):
            chunk = slice(lo, min(lo + size, 80))
            stream.partial_fit(X[chunk], y[chunk], task[chunk])
            if lo == 28:
                stream.save(tmp_path / "m.span")
                stream = ss.load(tmp_path / "m.span")
        assert_same_fit(stream, at_once)


@pytest.mark.parametrize("method", METHODS)
def test_new_tasks_may_come_later_and_tasks_do_not_touch_each_other(method, rng):
    B, X, y, task = few_tasks(rng)
    model = NewTaskRegressor(B, None, np.eye(2), 0.1, method=method, horizon=30)
    sizes = np.bincount(task)
    late = task == 0
    rows = np.concatenate([np.flatnonzero(task == t)[:30] for t in range(5)])
    first, second = rows[~late[rows]], rows[late[rows]]
    stream = clone(model).partial_fit(X[first], y[first], task[first])
    assert stream.tasks_.tolist() == [1, 2, 3, 4]
    stream.partial_fit(X[second], y[second], task[second])
    assert (sizes >= 30).all()
    at_once = clone(model).fit(X[rows], y[rows], task[rows])
    assert_same_fit(stream, at_once)
    alone = clone(model).fit(X[second], y[second])
    assert_allclose(at_once.coef_[0], alone.coef_[0], rtol=1e-10)


def test_least_squares_is_least_squares_in_the_span(rng):
    B, X, y, task = few_tasks(rng)
    model = NewTaskRegressor(B, method="least_squares").fit(X, y, task)
    rss, spare = 0.0, 0
    for t in range(5):
        F = np.column_stack([np.ones(np.sum(task == t)), X[task == t] @ B])
        w, squares, *_ = np.linalg.lstsq(F, y[task == t])
        assert_allclose(model.task_weights_[:, t], w[1:], rtol=1e-10)
        assert_allclose(model.intercept_[t], w[0], rtol=1e-10)
        rss, spare = rss + squares[0], spare + len(F) - 3
    assert_allclose(model.coef_, (B @ model.task_weights_).T, rtol=1e-12)
    assert_allclose(model.noise_variance_, rss / spare, rtol=1e-10)
    assert model.rank_ == 2


def test_with_few_rows_least_squares_is_the_shortest_and_needs_only_the_span(rng):
    X, y = rng.standard_normal((3, 8)), rng.standard_normal(3)
    Q = np.linalg.qr(rng.standard_normal((8, 5)))[0]
    shortest = Q @ np.linalg.pinv((X - X.mean(axis=0)) @ Q) @ (y - y.mean())
    for basis in (Q, Q @ rng.standard_normal((5, 5)), np.column_stack([Q, Q[:, :2] * 1e-9])):
        model = NewTaskRegressor(basis, method="least_squares").fit(X, y)
        assert_allclose(model.coef_[0], shortest, rtol=1e-8)
        assert_allclose(model.predict(X), y, rtol=1e-8)


@pytest.mark.parametrize("rows", [1, 2, 3, 30])
def test_the_prior_gives_the_mean_of_the_posterior(rows, rng):
    B, m = rng.standard_normal((6, 3)), rng.standard_normal(3)
    root = rng.standard_normal((3, 3))
    X, y = rng.standard_normal((rows, 6)), rng.standard_normal(rows)
    model = NewTaskRegressor(B, m, root @ root.T, 0.3).fit(X, y)
    F, target = (X - X.mean(axis=0)) @ B, y - y.mean()
    precision = np.linalg.inv(root @ root.T)
    expected = np.linalg.solve(F.T @ F / 0.3 + precision, F.T @ target / 0.3 + precision @ m)
    assert_allclose(model.task_weights_[:, 0], expected, rtol=1e-8)
    assert_allclose(model.intercept_, y.mean() - X.mean(axis=0) @ B @ expected, rtol=1e-8)


def test_a_singular_prior_holds_its_directions(rng):
    B, X, y, task = few_tasks(rng)
    model = NewTaskRegressor(B, [0.5, -1.0], np.diag([4.0, 0.0]), 0.1).fit(X, y, task)
    assert_allclose(model.task_weights_[1], -1.0)
    fixed = NewTaskRegressor(B, [0.5, -1.0], np.zeros((2, 2))).fit(X, y, task)
    assert_allclose(fixed.task_weights_, [[0.5] * 5, [-1.0] * 5])


def test_a_flat_prior_is_least_squares_and_a_vague_one_nearly(rng):
    B, X, y, task = few_tasks(rng)
    plain = NewTaskRegressor(B, method="least_squares").fit(X, y, task)
    assert_same_fit(NewTaskRegressor(B, [3.0, 3.0]).fit(X, y, task), plain)
    vague = NewTaskRegressor(B, [3.0, 3.0], 1e9 * np.eye(2), 0.1).fit(X, y, task)
    assert_allclose(vague.coef_, plain.coef_, atol=1e-7)
    exact = NewTaskRegressor(B, None, np.eye(2), 0.0).fit(X, y, task)
    assert_allclose(exact.coef_, plain.coef_, rtol=1e-9)


@pytest.mark.parametrize("method", ["prior", "least_squares"])
def test_weights_count_as_repetition(method, rng):
    B, X, y, task = few_tasks(rng)
    weight = rng.integers(0, 4, len(y))
    model = NewTaskRegressor(B, None, np.eye(2), method=method)
    repeated = clone(model).fit(*(np.repeat(part, weight, axis=0) for part in (X, y, task)))
    assert_same_fit(clone(model).fit(X, y, task, sample_weight=weight), repeated)


def descent(F, y, eta0, h=0, start=None, clip=False):
    """Algorithm 2 with K2 updates and the step sizes of the paper's display."""
    n, w = len(y), np.zeros(F.shape[1]) if start is None else np.array(start)
    length = int((n - h) / np.log(n - h))
    for i in range(n):
        eta = eta0 / 2 ** (0 if i <= length + h else (i - h) // length)
        w -= (min(eta, 2 / (F[i] @ F[i])) if clip else eta) * (F[i] @ w - y[i]) * F[i]
    return w


def printed_descent(F, y, eta, h, w):
    """The loop of Algorithm 2, line by line."""
    K2, tau = len(y), 0
    length = int((K2 - h) / np.log(K2 - h))
    while tau < K2 - 1:
        if tau + 1 > h and (tau + 1 - h) % length == 0:
            eta = eta / 2
        w = w - eta * (F[tau] @ w - y[tau]) * F[tau]
        tau += 1
    return w


def stream_rows(rng, rows=200):
    """Heavy-tailed rows, so that the safeguard acts, and a span."""
    X, y = rng.standard_t(3, (rows, 6)), rng.standard_normal(rows)
    return np.linalg.qr(rng.standard_normal((6, 2)))[0], X, y


def test_the_stream_is_algorithm_2(rng):
    B, X, y = stream_rows(rng)
    F = X @ B
    eta0 = 1 / (3 * np.mean(np.sum(F[:FIRST_ROWS] ** 2, axis=1)))
    assert np.max(eta0 * np.sum(F**2, axis=1)) > 2
    safe = NewTaskRegressor(B, method="sgd", fit_intercept=False).fit(X, y)
    assert_allclose(safe.task_weights_[:, 0], descent(F, y, eta0, clip=True), rtol=1e-10)
    assert safe.intercept_ == 0
    plain = clone(safe).set_params(sgd_options={"clip": False}).fit(X, y)
    assert_allclose(plain.task_weights_[:, 0], descent(F, y, eta0), rtol=1e-10)


def test_the_inputs_of_algorithm_2_are_options(rng):
    B, X, y = stream_rows(rng)
    options = {"step_size": 0.07, "constant_rows": 60, "start": [3.0, -1.0], "clip": False}
    model = NewTaskRegressor(B, method="sgd", fit_intercept=False, sgd_options=options).fit(X, y)
    expected = descent(X @ B, y, 0.07, 60, [3.0, -1.0])
    assert_allclose(model.task_weights_[:, 0], expected, rtol=1e-10)
    assert options["start"] == [3.0, -1.0]


@pytest.mark.parametrize("h", [0, 50])
def test_as_printed_is_the_loop_of_the_paper(h, rng):
    B, X, y = stream_rows(rng)
    options = {"step_size": 0.05, "constant_rows": h, "start": np.ones(2), "as_printed": True}
    model = NewTaskRegressor(B, method="sgd", fit_intercept=False, sgd_options=options).fit(X, y)
    expected = printed_descent(X @ B, y, 0.05, h, np.ones(2))
    assert_allclose(model.task_weights_[:, 0], expected, rtol=1e-10)
    other = clone(model).fit(X, np.append(y[:-1], 1e3))  # the loop ends before the last row
    assert np.array_equal(other.coef_, model.coef_)


def test_the_safeguard_keeps_heavy_tailed_rows_from_diverging():
    risk = {}
    for clip in (True, False):
        errors = []
        for seed in range(60):
            rng = np.random.default_rng(seed)
            w = rng.standard_normal(5)
            F = rng.standard_normal((100, 5)) / np.sqrt(rng.chisquare(3, (100, 1)))
            y = F @ w + 0.4 * rng.standard_normal(100)
            model = NewTaskRegressor(
                method="sgd", fit_intercept=False, sgd_options={"clip": clip}
            ).fit(F, y)
            errors.append(np.sum((model.coef_[0] - w) ** 2))
        risk[clip] = np.mean(errors)
    assert risk[True] < 0.7 * risk[False]


def test_the_stream_does_not_depend_on_units_or_offsets(rng):
    B, X, y, task = few_tasks(rng)
    model = NewTaskRegressor(B, method="sgd").fit(X, y, task)
    moved = clone(model).fit(1000 * X + 7e3, 10 * y - 4e3, task)
    assert_allclose(moved.coef_ * 100, model.coef_, rtol=1e-7)
    assert_allclose(moved.predict(1000 * X + 7e3, task), 10 * model.predict(X, task) - 4e3)
    assert model.score(X, y, task) > 0.8


def test_rows_after_the_horizon_are_left_out_with_a_warning(rng):
    B, X, y, _ = few_tasks(rng)
    model = NewTaskRegressor(B, method="sgd", horizon=50)
    with pytest.warns(UserWarning, match=r"10 row\(s\) beyond the horizon .* its 50 rows"):
        model.partial_fit(X[:60], y[:60])
    before = model.coef_.copy()
    with pytest.warns(UserWarning, match="beyond the horizon"):
        model.partial_fit(X[60:70], y[60:70])
    assert np.array_equal(model.coef_, before)
    assert_same_fit(model, clone(model).fit(X[:50], y[:50]))


@pytest.mark.parametrize("method", METHODS)
def test_hard_rows_give_finite_answers(method, rng):
    X, y = rng.standard_normal((60, 4)), rng.standard_normal(60)
    B = rng.standard_normal((4, 2))
    late = X.copy()
    late[:40] = 0
    heavy = X * np.exp(3 * rng.standard_normal((60, 1)))
    for table in (np.ones_like(X), late, heavy, X * 1e160, X * 1e-160, X[:1], X.astype("f4")):
        for fit_intercept in (True, False):
            model = NewTaskRegressor(
                B, None, np.eye(2), method=method, fit_intercept=fit_intercept
            ).fit(table, y[: len(table)])
            assert np.isfinite(model.coef_).all()
            assert np.isfinite(model.predict(table)).all()
    assert not NewTaskRegressor(np.zeros((4, 2)), method=method).fit(X, y).coef_.any()


def test_from_model_fills_the_parameters_and_clone_keeps_them(source):
    sim, model = source
    new = NewTaskRegressor.from_model(model)
    assert np.array_equal(new.representation, model.representation_)
    assert_allclose(new.prior_mean, model.task_weights_.mean(axis=1))
    assert_allclose(new.prior_covariance, np.cov(model.task_weights_), atol=0.01)
    assert_allclose(new.noise_variance, 0.25, rtol=0.05)
    assert new.fit_intercept is True
    X, y, task, _ = new_tasks(sim, 10, np.random.default_rng(0), n_tasks=7)
    before = new.representation.copy()
    fits = [clone(new).fit(X, y, task), new.fit(X, y, task), pickle.loads(pickle.dumps(new))]
    for fit in fits:
        assert np.array_equal(fit.coef_, fits[0].coef_)
        assert np.array_equal(fit.representation, before)
        assert np.array_equal(fit.representation_, before)
    again = NewTaskRegressor.from_model(new, "least_squares")
    assert_allclose(again.prior_mean, new.task_weights_.mean(axis=1))


@pytest.mark.parametrize("n_tasks", [1, 2])
def test_a_prior_from_very_few_tasks_is_positive_definite(n_tasks):
    sim = ss.simulate(
        n_tasks=n_tasks, n_features=4, rank=n_tasks, n_samples=30, noise=0.1, random_state=0
    )
    model = ss.SharedSpanRegressor(rank=n_tasks, random_state=0).fit(sim.X, sim.y, sim.task)
    prior = NewTaskRegressor.from_model(model).prior_covariance
    assert np.linalg.eigvalsh(prior).min() > 0


def test_lists_and_labels_stream_like_tables(rng):
    B, X, y, task = few_tasks(rng)
    names = np.array(["a", "b", "c", "d", "e"])[task]
    table = NewTaskRegressor(B).fit(X, y, names)
    order = [X[names == name] for name in "abcde"], [y[names == name] for name in "abcde"]
    lists = NewTaskRegressor(B).partial_fit(*order, list("abcde"))
    assert_same_fit(lists, table)
    assert list(lists.coef_names_) == list(table.coef_names_)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"method": "ridge"}, "method='ridge' is unknown: use 'prior'"),
        ({"representation": np.eye(3)[:2]}, "representation has 2 rows but X has 6 features"),
        ({"representation": np.ones(6)}, r"representation has shape \(6,\): expected \(d, k\)"),
        ({"representation": np.full((6, 1), np.nan)}, "representation contains NaN"),
        ({"prior_mean": np.ones(3)}, r"prior_mean has shape \(3,\): expected \(2,\)"),
        ({"prior_covariance": np.eye(3)}, r"prior_covariance .* expected \(2, 2\)"),
        ({"prior_covariance": np.diag([1.0, -1.0])}, "prior_covariance is not a covariance"),
        ({"prior_covariance": [[1, 0.5], [0, 1]]}, "prior_covariance is not a covariance"),
        ({"representation_covariance": np.eye(6)}, r"expected \(12, 12\)"),
        ({"noise_variance": -1.0}, "noise_variance=-1.0 must be a number of at least 0"),
        ({"horizon": 0}, "horizon=0 must be an integer of at least 1"),
        ({"method": "sgd"}, "horizon=None with method='sgd'"),
    ],
)  # fmt: skip
def test_bad_parameters_say_what_to_do(parameters, message, rng):
    B, X, y, task = few_tasks(rng)
    model = NewTaskRegressor(**{"representation": B} | parameters)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(X, y, task)
    assert not hasattr(model, "n_features_in_")
    if parameters.get("method") != "sgd":
        with pytest.raises(ValueError, match=message):
            model.fit(X, y, task)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ([1], TypeError, r"sgd_options=\[1\] must be a dict or None"),
        ({"eta": 1}, TypeError, "sgd_options: 'eta' is unknown: use 'step_size', 'constant_rows'"),
        ({"step_size": 0}, ValueError, "step_size=0 must be a number above zero"),
        ({"step_size": "x"}, ValueError, "step_size='x' must be a number above zero"),
        ({"step_size": np.inf}, ValueError, "step_size=inf must be a number above zero"),
        ({"constant_rows": -1}, ValueError, "constant_rows=-1 must be an integer of at least 0"),
        ({"constant_rows": 2.5}, TypeError, "constant_rows=2.5 must be an integer"),
        ({"start": [1.0]}, ValueError, r"start has shape \(1,\): expected \(2,\)"),
        ({"start": [1.0, np.nan]}, ValueError, "start contains NaN"),
        ({"clip": 1}, ValueError, "clip=1 is unknown: use True, False"),
        ({"as_printed": "yes"}, ValueError, "as_printed='yes' is unknown"),
        (
            {"as_printed": True, "clip": True},
            ValueError,
            "as_printed=True cannot be combined with clip=True",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_bad_options_of_the_stream_say_what_to_do(options, error, message, rng):
    B, X, y, task = few_tasks(rng)
    for fit in ("fit", "partial_fit"):
        model = NewTaskRegressor(B, method="sgd", horizon=90, sgd_options=options)
        with pytest.raises(error, match=message):
            getattr(model, fit)(X, y, task)
        assert not hasattr(model, "n_features_in_")
    with pytest.raises(ValueError, match=r"sgd_options .* method='sgd'"):
        NewTaskRegressor(B, sgd_options={"clip": False}).fit(X, y, task)


def test_a_pass_that_diverges_is_reported(rng):
    B, X, y, _ = few_tasks(rng)
    model = NewTaskRegressor(B, method="sgd", sgd_options={"step_size": 1e9, "clip": False})
    with pytest.warns(UserWarning, match="diverged .* step_size"):
        model.fit(X, y)


def test_a_pass_of_an_older_file_goes_on_as_it_began(rng):
    """Files of version 0.1 have no options: their passes were clipped, from zero, with h = 0."""
    B, X, y = stream_rows(rng, rows=60)
    model = NewTaskRegressor(B, method="sgd", horizon=60).partial_fit(X[:40], y[:40])
    descent = model._streams_[0].descent
    older = {name: value for name, value in vars(descent).items() if name != "options"}
    vars(descent).clear()
    vars(descent).update(Descent.upgraded(older))
    assert_same_fit(model.partial_fit(X[40:], y[40:]), clone(model).fit(X, y))


def test_other_misuse_says_what_to_do(rng):
    B, X, y, task = few_tasks(rng)
    with pytest.raises(TypeError, match=r"horizon=2.5 must be an integer"):
        NewTaskRegressor(B, method="sgd", horizon=2.5).fit(X, y, task)
    with pytest.raises(ValueError, match="must be 0 or 1 in every row"):
        NewTaskRegressor(B, method="sgd").fit(X, y, task, sample_weight=np.full(len(y), 2.0))
    with pytest.raises(NotFittedError):
        NewTaskRegressor.from_model(ss.SharedSpanRegressor())
    with pytest.raises(TypeError, match="PooledRegressor, which has no representation_"):
        NewTaskRegressor.from_model(ss.PooledRegressor().fit(X, y, task))
    model = NewTaskRegressor(B).partial_fit(X, y, task)
    before = model.coef_.copy()
    with pytest.raises(ValueError, match="5 features"):
        model.partial_fit(X[:, :5], y, task)
    assert np.array_equal(model.coef_, before)
