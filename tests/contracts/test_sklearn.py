import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from numpy.testing import assert_allclose
from sklearn.base import clone, is_classifier
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import sharedspan as ss

ESTIMATORS = [
    ss.SharedSpanRegressor(),
    # The checks do not require convergence, which takes long on their tables.
    ss.SharedSpanRegressor(
        rank=1, solver="scaled_gd", noise="per_task", whiten=False, max_iter=200
    ),
    ss.AdaptiveSpanRegressor(),
    ss.PooledRegressor(),
    ss.PerTaskRegressor(),
    ss.AdaptiveSpanClassifier(),
    ss.SharedSpanClassifier(),
]


@pytest.fixture
def frame(small):
    table = pd.DataFrame(small.X, columns=[f"feature {j}" for j in range(8)])
    table.insert(2, "school", np.array([f"school {t}" for t in small.task]))
    return table


@pytest.fixture(autouse=True)
def _no_routing_left_on():
    yield
    sklearn.set_config(enable_metadata_routing=False)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:X is a frame, but neither task")
def test_scikit_learn_finds_no_fault(estimator):
    results = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert not failed
    assert sum(r["status"] == "passed" for r in results) > 40


def test_grid_search_over_rank_on_a_frame_with_any_scorer(frame, small):
    search = GridSearchCV(
        ss.SharedSpanRegressor(task_column="school", random_state=0),
        {"rank": [1, 2, 3]},
        scoring="r2",
        cv=KFold(4, shuffle=True, random_state=0),
    ).fit(frame, small.y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_params_["rank"] == 2
    assert search.predict(frame).shape == small.y.shape


def test_grid_search_over_rank_on_arrays_with_task(small):
    sklearn.set_config(enable_metadata_routing=True)
    for scorer in (
        ss.task_scorer(),
        ss.task_scorer("neg_root_mean_squared_error"),
        ss.task_scorer(mean_squared_error, greater_is_better=False),
    ):
        search = GridSearchCV(
            ss.SharedSpanRegressor(random_state=0),
            {"rank": [1, 2, 3]},
            scoring=scorer,
            cv=KFold(4, shuffle=True, random_state=0),
        ).fit(small.X, small.y, task=small.task)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        assert search.best_params_["rank"] == 2


def test_grid_search_without_shuffling_needs_the_mean_for_unseen_tasks(small):
    sklearn.set_config(enable_metadata_routing=True)
    scores = cross_val_score(
        ss.SharedSpanRegressor(rank=1, unseen="mean", random_state=0), small.X, small.y,
        scoring=ss.task_scorer(), cv=KFold(3), params={"task": small.task},
    )  # fmt: skip
    assert np.isfinite(scores).all()


def test_a_pipeline_hands_the_task_on(small):
    sklearn.set_config(enable_metadata_routing=True)
    pipeline = make_pipeline(StandardScaler(), ss.SharedSpanRegressor(rank=2, random_state=0))
    pipeline.fit(small.X, small.y, task=small.task)
    direct = ss.SharedSpanRegressor(rank=2, random_state=0).fit(small.X, small.y, small.task)
    assert_allclose(
        pipeline.predict(small.X, task=small.task),
        direct.predict(small.X, small.task),
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip
    assert pipeline.score(small.X, small.y, task=small.task) > 0.9


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_clone_and_pickle_keep_what_they_should(estimator, small):
    model = clone(estimator)
    if "random_state" in model.get_params():
        model.set_params(random_state=0)
    y = small.y > 0 if is_classifier(model) else small.y
    again = clone(model).fit(small.X, y, task=small.task)
    model.fit(small.X, y, task=small.task)
    copy = pickle.loads(pickle.dumps(model))
    for other in (again, copy):
        assert np.array_equal(
            other.predict(small.X, small.task), model.predict(small.X, small.task)
        )


def test_the_same_seed_gives_bit_identical_coefficients(small):
    fits = [
        ss.SharedSpanRegressor(random_state=7).fit(small.X, small.y, small.task).coef_
        for _ in range(3)
    ]
    assert np.array_equal(fits[0], fits[1])
    assert np.array_equal(fits[0], fits[2])


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("rank", 1), ("fit_intercept", False), ("max_iter", 3), ("tol", 1e-1)],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_set_params_changes_the_result(parameter, value, small):
    model = ss.SharedSpanRegressor(rank=2, random_state=0, solver="scaled_gd")
    before = model.fit(small.X, small.y, task=small.task).coef_
    model.set_params(**{parameter: value}).fit(small.X, small.y, task=small.task)
    assert not np.allclose(model.coef_, before, rtol=1e-9)


def test_frames_of_pandas_and_polars_and_arrays_give_one_answer(frame, small):
    labels = frame["school"].to_numpy()
    by_array = ss.SharedSpanRegressor(rank=2, random_state=0).fit(small.X, small.y, task=labels)
    for table in (frame, pl.DataFrame({name: frame[name].to_numpy() for name in frame.columns})):
        by_frame = ss.SharedSpanRegressor(rank=2, task_column="school", random_state=0)
        by_frame.fit(table, small.y)
        assert np.array_equal(by_frame.coef_, by_array.coef_)
        assert by_frame.n_features_in_ == 9
        assert list(by_frame.feature_names_in_) == list(frame.columns)
        assert list(by_frame.coef_names_) == [n for n in frame.columns if n != "school"]
        assert_allclose(by_frame.predict(table), by_array.predict(small.X, labels))


def test_the_fitted_attributes_are_what_the_documentation_says(small):
    model = ss.SharedSpanRegressor(rank=2, random_state=0).fit(small.X, small.y, small.task)
    B, W = model.representation_, model.task_weights_
    assert_allclose(B.T @ B, np.eye(2), atol=1e-12)
    assert_allclose((B @ W).T, model.coef_, rtol=1e-12)
    assert_allclose(W @ W.T, np.diag(np.linalg.svd(model.coef_)[1][:2] ** 2), atol=1e-8)
    assert (B[np.abs(B).argmax(axis=0), [0, 1]] > 0).all()
    assert model.tasks_.tolist() == list(range(40))
    assert model.noise_variance_.shape == (40,)
    assert_allclose(model.noise_variance_, 0.09, rtol=0.15)
    assert len(set(model.noise_variance_)) == 1
    assert len(model.trace_["loss"]) == model.n_iter_ + 1
    residuals = small.y - model.predict(small.X, small.task)
    sizes = np.bincount(small.task)
    assert_allclose(model.trace_["loss"][-1], np.sum(residuals**2) / sizes.sum(), rtol=1e-8)
    assert_allclose(np.bincount(small.task, residuals) / sizes, 0, atol=1e-10)
    assert model.message_.startswith("converged after")


def test_unseen_tasks_get_the_mean_on_request(small):
    model = ss.SharedSpanRegressor(rank=2, unseen="mean", random_state=0)
    model.fit(small.X, small.y, task=small.task)
    expected = model.intercept_.mean() + small.X[:5] @ model.coef_.mean(axis=0)
    assert_allclose(model.predict(small.X[:5], task=["new"] * 5), expected)
    assert_allclose(model.predict(small.X[:5], task="new"), expected)


def test_a_single_label_predicts_all_rows(small):
    model = ss.SharedSpanRegressor(rank=2, random_state=0).fit(small.X, small.y, small.task)
    assert_allclose(model.predict(small.X[:4], 3), model.predict(small.X[:4], [3] * 4))


def test_baselines_are_the_ridge_regressions_they_claim_to_be(small):
    """With a given penalty, compared with scikit-learn's Ridge on standardised centred rows."""
    from sklearn.linear_model import Ridge

    means = np.array([small.X[small.task == t].mean(axis=0) for t in range(40)])[small.task]
    y_means = (np.bincount(small.task, small.y) / np.bincount(small.task))[small.task]
    deviation = np.sqrt(np.mean((small.X - means) ** 2, axis=0))
    Z, target = (small.X - means) / deviation, small.y - y_means
    pooled = ss.PooledRegressor(alpha=3.0).fit(small.X, small.y, task=small.task)
    ridge = Ridge(alpha=3.0, fit_intercept=False).fit(Z, target)
    assert_allclose(pooled.coef_, np.tile(ridge.coef_ / deviation, (40, 1)), rtol=1e-8)
    separate = ss.PerTaskRegressor(alpha=3.0).fit(small.X, small.y, task=small.task)
    for t in range(40):
        rows = small.task == t
        ridge = Ridge(alpha=3.0, fit_intercept=False).fit(Z[rows], target[rows])
        assert_allclose(separate.coef_[t], ridge.coef_ / deviation, rtol=1e-7, atol=1e-9)


def test_the_penalty_maximises_the_marginal_likelihood(rng):
    from scipy.stats import multivariate_normal

    X = rng.standard_normal((40, 3))
    y = X @ np.array([1.0, -0.5, 0.2]) + rng.standard_normal(40)
    model = ss.PerTaskRegressor(fit_intercept=False).fit(X, y)
    Z = X / np.sqrt(np.mean(X**2, axis=0))

    def evidence(alpha):
        K = np.eye(40) + Z @ Z.T / alpha
        variance = y @ np.linalg.solve(K, y) / 40
        return multivariate_normal(cov=variance * K).logpdf(y)

    best = evidence(model.alpha_[0])
    assert best >= max(evidence(model.alpha_[0] * factor) for factor in (0.7, 0.9, 1.1, 1.4))


def test_lists_predict_and_score_like_tables(small):
    model = ss.SharedSpanRegressor(rank=2, random_state=0).fit(small.X, small.y, small.task)
    cuts = np.cumsum(np.bincount(small.task))[:-1]
    X, y = np.split(small.X, cuts), np.split(small.y, cuts)
    predictions = model.predict(X)
    assert np.array_equal(np.concatenate(predictions), model.predict(small.X, small.task))
    assert_allclose(model.score(X, y), model.score(small.X, small.y, small.task), rtol=1e-12)


def test_fits_in_several_threads_agree_and_leave_blas_as_it_was(small):
    from concurrent.futures import ThreadPoolExecutor

    from threadpoolctl import threadpool_info

    def blas_threads():
        return [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]

    def fit(_):
        return ss.SharedSpanRegressor(random_state=0).fit(small.X, small.y, small.task).coef_

    alone = fit(0)
    before = blas_threads()
    with ThreadPoolExecutor(4) as pool:
        fits = list(pool.map(fit, range(8)))
    assert all(np.array_equal(coef, alone) for coef in fits)
    assert blas_threads() == before


def test_a_callback_that_stops_ends_all_rounds_of_per_task_noise(small):
    calls = []
    model = ss.SharedSpanRegressor(
        rank=2, solver="tpgd", noise="per_task", random_state=0,
        callback=lambda at: calls.append(1) or at["iteration"] == 5,
    )  # fmt: skip
    model.fit(small.X, small.y, small.task)
    assert len(calls) == 5
    assert "callback" in model.message_


ADAPTIVE = {
    "gaussian": lambda **kw: ss.AdaptiveSpanRegressor(slopes="none", rank=0, **kw),
    "poisson": lambda **kw: ss.AdaptiveSpanRegressor(family="poisson", slopes="none", rank=0, **kw),
    "classes": lambda **kw: ss.AdaptiveSpanClassifier(slopes="none", rank=0, **kw),
    "classes in a span": lambda **kw: ss.SharedSpanClassifier(rank=1, **kw),
}


def responses(kind, small):
    if kind == "gaussian":
        return small.y
    if kind == "poisson":
        return np.random.default_rng(0).poisson(np.exp(0.3 * small.y).clip(0, 30))
    return np.where(small.y > 2, "yes", "no")


@pytest.mark.parametrize("kind", ADAPTIVE)
def test_tasks_left_out_are_predicted_whether_routed_or_in_a_column(kind, frame, small):
    make, y, groups = ADAPTIVE[kind], responses(kind, small), frame["school"]
    in_column = cross_val_score(
        make(task_column="school"), frame, y, cv=GroupKFold(3), groups=groups, error_score="raise"
    )
    sklearn.set_config(enable_metadata_routing=True)
    routed = cross_val_score(
        make(), frame.drop(columns="school"), y, cv=GroupKFold(3), error_score="raise",
        params={"task": groups, "groups": groups},
    )  # fmt: skip
    assert_allclose(routed, in_column, rtol=1e-10)
    assert np.isfinite(in_column).all()


def test_cross_validation_and_a_search_work_with_all_defaults(frame, small):
    model = ss.AdaptiveSpanRegressor(task_column="school")
    plain = cross_val_score(model, frame, small.y, cv=3, error_score="raise")
    assert np.isfinite(plain).all()
    search = GridSearchCV(
        model, {"rank": [0, 2]}, cv=GroupKFold(2), error_score="raise"
    ).fit(frame, small.y, groups=frame["school"])  # fmt: skip
    assert np.isfinite(search.best_score_)
    sklearn.set_config(enable_metadata_routing=True)
    routed = GridSearchCV(
        ss.AdaptiveSpanRegressor(), {"rank": [0, 2]}, cv=GroupKFold(2), error_score="raise"
    ).fit(small.X, small.y, task=frame["school"], groups=frame["school"])
    assert_allclose(routed.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"])


def test_a_new_task_is_predicted_by_the_mean_of_the_population(small):
    """By Monte Carlo over tasks drawn from the fitted population, mean coefficients included."""
    x, rng = small.X[:3], np.random.default_rng(0)
    gaussian = ADAPTIVE["gaussian"]().fit(small.X, small.y, small.task)
    expected = gaussian.mean_intercept_ + x @ gaussian.mean_coef_
    assert_allclose(gaussian.predict(x, "new"), expected)
    drawn = rng.standard_normal(400_000)
    for kind, mean in (("poisson", np.exp), ("classes", lambda eta: 1 / (1 + np.exp(-eta)))):
        model = ADAPTIVE[kind]().fit(small.X, responses(kind, small), small.task)
        eta = model.mean_intercept_ + x @ model.mean_coef_
        _, variance = model._uncertainty_.linear_predictor(x, np.full(3, -1))
        assert (np.sqrt(variance) > 0.9 * model.intercept_std_).all()
        means = mean(eta[:, None] + np.sqrt(variance)[:, None] * drawn).mean(axis=1)
        predicted = model.predict(x, "new") if kind == "poisson" else model.predict_proba(x, "new")
        assert_allclose(predicted if kind == "poisson" else predicted[:, 1], means, atol=0.006)


def test_new_tasks_are_refused_on_request(small):
    for make in ADAPTIVE.values():
        model = make(unseen="error").fit(small.X, small.y > 2, small.task)
        with pytest.raises(ValueError, match="were not in the fit"):
            model.predict(small.X[:2], ["new", "newer"])
