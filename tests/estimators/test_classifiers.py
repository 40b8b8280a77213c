"""Classifiers and families through their public methods: recovery, files, hostile input."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

import sharedspan as ss


def classes(seed=0, T=40, n=40, d=6, rank=2):
    """Rows to fit and as many to predict, of tasks whose slopes lie in a span."""
    rng = np.random.default_rng(seed)
    B = np.linalg.qr(rng.standard_normal((d, rank)))[0]
    V = 1.5 * rng.standard_normal((T, rank)) @ B.T / np.sqrt(rank)
    X, task = rng.standard_normal((2, T * n, d)), np.repeat(np.arange(T), n)
    p = 1 / (1 + np.exp(-np.einsum("sij,ij->si", X, V[task])))
    return X, rng.random(p.shape) < p, task, p, B


def log_loss(y, p):
    return -np.mean(np.log(np.where(y, p, 1 - p)))


def test_the_span_is_found_and_predictions_are_near_the_truth():
    (X, X_new), (y, y_new), task, (_, truth), B = classes(T=150)
    for model in (ss.AdaptiveSpanClassifier(), ss.SharedSpanClassifier(rank=2)):
        model.fit(X, y, task=task)
        assert model.rank_ == 2
        assert ss.subspace_distance(model.representation_, B) < 0.35
        excess = log_loss(y_new, model.predict_proba(X_new, task)[:, 1]) - log_loss(y_new, truth)
        pooled = ss.AdaptiveSpanClassifier(slopes="zero", rank=0).fit(X, y, task=task)
        worst = log_loss(y_new, pooled.predict_proba(X_new, task)[:, 1]) - log_loss(y_new, truth)
        assert excess < 0.4 * worst


def test_the_regressor_of_shares_is_the_classifier():
    (X, _), (y, _), task, _, _ = classes()
    classifier = ss.AdaptiveSpanClassifier().fit(X, np.where(y, "b", "a"), task=task)
    regressor = ss.AdaptiveSpanRegressor(family="binomial").fit(X, y.astype(float), task=task)
    assert_allclose(classifier.coef_, regressor.coef_)
    assert_allclose(classifier.predict_proba(X, task)[:, 1], regressor.predict(X, task))
    assert classifier.classes_.tolist() == ["a", "b"]


def test_intervals_of_probabilities_cover_them():
    covered = []
    for seed in range(3):
        (X, X_new), (y, _), task, (_, truth), _ = classes(seed, T=100)
        low, high = ss.AdaptiveSpanClassifier().fit(X, y, task=task).proba_interval(X_new, task)
        covered.append(np.mean((low <= truth) & (truth <= high)))
    assert 0.92 < np.mean(covered) < 0.98


def test_three_classes_share_the_rows():
    rng = np.random.default_rng(0)
    X, task = rng.standard_normal((600, 2)), np.repeat(np.arange(10), 60)
    scores = np.column_stack([X[:, 0], X[:, 1], -X.sum(axis=1)]) + rng.gumbel(size=(600, 3))
    y = np.array(["red", "green", "blue"])[scores.argmax(axis=1)]
    model = ss.AdaptiveSpanClassifier().fit(X, y, task=task)
    p = model.predict_proba(X, task)
    assert_allclose(p.sum(axis=1), 1)
    assert model.score(X, y, task) > 0.5
    assert (model.predict(X, task) == model.classes_[p.argmax(axis=1)]).all()


@pytest.mark.parametrize("family", ["binomial", "negative_binomial"])
def test_files_give_the_same_fit(family, tmp_path):
    rng = np.random.default_rng(1)
    task, X = np.repeat(np.arange(12), 25), rng.standard_normal((300, 2))
    eta = X[:, 0] + 0.5 * rng.standard_normal(12)[task]
    y = rng.poisson(np.exp(eta)) if family != "binomial" else (eta + rng.logistic(size=300) > 0)
    frame = pd.DataFrame({"t": task, "a": X[:, 0], "b": X[:, 1], "y": y.astype(float)})
    frame.to_parquet(tmp_path / "rows.parquet")
    options = {"family": family, "slopes": "none", "rank": 0}
    memory = ss.AdaptiveSpanRegressor(**options).fit(X, y.astype(float), task=task)
    file = ss.AdaptiveSpanRegressor(**options).fit_file(
        tmp_path / "rows.parquet", task="t", target="y"
    )
    assert_allclose(file.coef_, memory.coef_, rtol=1e-8)
    assert_allclose(file.log_likelihood_, memory.log_likelihood_, rtol=1e-10)


# ---- hostile input -------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
TASK = np.repeat(np.arange(20), 12)
X = RNG.standard_normal((240, 3))
Y = (X[:, 0] + RNG.standard_normal(240) > 0).astype(float)
COUNTS = RNG.poisson(np.exp(0.5 * X[:, 0])).astype(float)

HOSTILE = {
    "all ones in a task": ("binomial", X, np.where(TASK == 3, 1.0, Y), {}),
    "all ones": ("binomial", X, np.ones(240), {}),
    "all zeros": ("binomial", X, np.zeros(240), {}),
    "separation": ("binomial", X, (X[:, 0] > 0).astype(float), {}),
    "separation, probit": ("probit", X, (X[:, 0] > 0).astype(float), {}),
    "separation in every task": (
        "binomial",
        X,
        (np.einsum("ij,ij->i", X, RNG.standard_normal((20, 3))[TASK]) > 0).astype(float),
        {},
    ),
    "a row per task": ("binomial", X, Y, {"task": np.arange(240)}),
    "a row per task, counts": ("negative_binomial", X, COUNTS, {"task": np.arange(240)}),
    "a constant feature": ("binomial", X * [1, 0, 1] + [0, 7, 0], Y, {}),
    "constant features": ("binomial", np.ones((240, 3)), Y, {}),
    "huge features": ("binomial", X * 1e200, Y, {}),
    "tiny features": ("binomial", X * 1e-200, Y, {}),
    "one huge row": (
        "negative_binomial",
        np.where(np.arange(240)[:, None] == 3, 1e8, X),
        COUNTS,
        {},
    ),
    "a huge offset": ("binomial", X, Y, {"offset": 1e6}),
    "huge offsets": ("binomial", X, Y, {"offset": 1e3 * RNG.standard_normal(240)}),
    "a huge offset of counts": ("poisson", X, COUNTS, {"offset": 500.0}),
    "large counts": ("negative_binomial", X, COUNTS * 1e9, {}),
    "one large count": (
        "negative_binomial",
        X,
        np.where(np.arange(240) == 5, 1e9, COUNTS),
        {},
    ),
    "no counts": ("poisson", X, np.zeros(240), {}),
    "weights of zero": ("binomial", X, Y, {"sample_weight": np.arange(240) % 3}),
    "more features than rows": ("binomial", RNG.standard_normal((240, 300)), Y, {"slopes": "none"}),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:Features such as:UserWarning")  # nearly collinear ones
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_gives_finite_answers(name):
    family, features, y, options = HOSTILE[name]
    options = {"task": TASK} | options
    settings = {"slopes": options.pop("slopes")} if "slopes" in options else {}
    if settings:
        settings["rank"] = 0
    model = ss.AdaptiveSpanRegressor(family=family, **settings).fit(features, y, **options)
    known = {key: options[key] for key in ("task", "offset") if key in options}
    mean, std = model.predict(features, return_std=True, **known)
    low, high = model.mean_interval(features, **known)
    for each in (mean, std, low, high, model.coef_, model.intercept_, model.coef_std_):
        assert np.isfinite(each).all()
    assert (low <= high).all()
    if np.abs(features).max() < 1e6 and "offset" not in options:
        assert np.abs(model.coef_ * features.std(axis=0)).max() < 100


@pytest.mark.parametrize(
    ("family", "y", "words"),
    [
        ("poisson", COUNTS - 1, "counts of 0 and more, in whole numbers; row 0 has"),
        ("negative_binomial", COUNTS + 0.5, "counts of 0 and more"),
        ("binomial", 2 * Y, "classes 0 and 1, or proportions between them"),
    ],
)
def test_responses_that_the_family_does_not_have(family, y, words):
    with pytest.raises(ValueError, match=words):
        ss.AdaptiveSpanRegressor(family=family).fit(X, y, task=TASK)


def test_the_row_that_is_named_is_the_users():
    y = COUNTS.copy()
    y[17] = -1
    order = np.argsort(-TASK, kind="stable")
    with pytest.raises(ValueError, match="row 17 has -1"):
        ss.AdaptiveSpanRegressor(family="poisson").fit(X, y, task=TASK)
    with pytest.raises(ValueError, match=f"row {np.flatnonzero(order == 17)[0]} has -1"):
        ss.AdaptiveSpanRegressor(family="poisson").fit(X[order], y[order], task=TASK[order])


def test_weights_out_of_all_proportion_are_fitted_or_refused_in_words():
    weight = 10.0 ** np.random.default_rng(0).uniform(-12, 12, 240)
    refused = ""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ConvergenceWarning)
        try:
            model = ss.AdaptiveSpanClassifier().fit(X, Y, task=TASK, sample_weight=weight)
        except ValueError as problem:
            refused = str(problem)
    if refused:  # which of these it is depends on the last digits of the processor
        assert "Weights count as repetitions" in refused
        return
    assert np.isfinite(model.coef_).all()
    assert told or np.abs(model.coef_).max() < 1e6
    shares = model.predict_proba(X, TASK)
    assert ((shares >= 0) & (shares <= 1)).all()


def test_noise_of_families_follows_from_their_means():
    with pytest.raises(ValueError, match="follows from its mean"):
        ss.AdaptiveSpanRegressor(family="poisson", noise="per_task").fit(X, COUNTS, task=TASK)


def test_log_density_is_a_distribution():
    model = ss.AdaptiveSpanRegressor(family="negative_binomial").fit(X, COUNTS, task=TASK)
    row = np.repeat(X[:1], 400, axis=0)
    total = np.exp(model.log_density(row, np.arange(400.0), task=[0] * 400)).sum()
    assert_allclose(total, 1, atol=1e-6)
    low, high = model.predict_interval(X[:1], task=[0], level=0.8)
    inside = np.exp(model.log_density(row, np.arange(400.0), task=[0] * 400))
    assert inside[int(low[0]) : int(high[0]) + 1].sum() >= 0.8 - 0.01


def test_weights_are_repetitions_of_rows():
    rng = np.random.default_rng(6)
    task, x = np.repeat(np.arange(15), 30), rng.standard_normal((450, 2))
    slopes = np.array([1, -0.5]) + 0.5 * rng.standard_normal((15, 2))
    eta = 0.5 * rng.standard_normal(15)[task] + np.einsum("ij,ij->i", x, slopes[task])
    y = rng.random(450) < 1 / (1 + np.exp(-eta))
    for weight in (np.full(450, 20), rng.integers(0, 6, 450)):
        rows = np.repeat(np.arange(450), weight)
        short = ss.AdaptiveSpanClassifier().fit(x, y, task=task, sample_weight=weight)
        long = ss.AdaptiveSpanClassifier().fit(x[rows], y[rows], task=task[rows])
        assert (short.slopes_, short.rank_) == (long.slopes_, long.rank_)
        assert_allclose(short.predict_proba(x, task), long.predict_proba(x, task), atol=1e-4)


def test_labels_must_be_there_and_of_one_type():
    for bad, error in ((None, ValueError), (np.nan, ValueError), (3, TypeError)):
        y = np.array(["a", "b"] * 120, dtype=object)
        y[7] = bad
        with pytest.raises(error, match=r"row 7|several types"):
            ss.AdaptiveSpanClassifier().fit(X, y, task=TASK)


def test_a_class_has_no_interval():
    model = ss.AdaptiveSpanClassifier().fit(X, Y, task=TASK)
    with pytest.raises(AttributeError, match="proba_interval"):
        model.predict_interval(X, TASK)


def test_scores_need_the_offset_of_the_fit():
    model = ss.AdaptiveSpanRegressor(family="poisson")
    model.fit(X, COUNTS, task=TASK, exposure=np.full(240, 2.0))
    with pytest.raises(ValueError, match="offset or exposure"):
        model.score(X, COUNTS, task=TASK)
    assert model.score(X, COUNTS, task=TASK, exposure=np.full(240, 2.0)) > 0


def test_log_density_is_of_possible_responses():
    model = ss.AdaptiveSpanRegressor(family="poisson").fit(X, COUNTS, task=TASK)
    with pytest.raises(ValueError, match="whole numbers"):
        model.log_density(X, COUNTS + 0.5, task=TASK)
