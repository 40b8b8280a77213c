"""Diagnosis and comparison of classes and counts."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.metrics import brier_score_loss, mean_poisson_deviance, roc_auc_score
from sklearn.metrics import log_loss as reference_log_loss
from statsmodels.genmod.families import NegativeBinomial
from threadpoolctl import threadpool_info

import sharedspan as ss
from sharedspan.diagnosis.compared_methods import DEFAULT_CLASSES, DEFAULT_GLMS
from sharedspan.diagnosis.holdout_errors import random_folds
from sharedspan.diagnosis.losses import COUNTS, POISSON, auc, scores
from sharedspan.estimators.glm_baselines import GLMBaseline
from sharedspan.families import FAMILIES

SLOPES = np.array([1.0, -0.5, 0.3])


def eta_of(rng, n_tasks=25, n=40):
    task = np.repeat(np.arange(n_tasks), n)
    X = rng.standard_normal((len(task), 3))
    return X, task, X @ SLOPES + 0.7 * rng.standard_normal(n_tasks)[task]


@pytest.fixture(scope="module")
def binary():
    rng = np.random.default_rng(0)
    X, task, eta = eta_of(rng)
    return X, (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float), task


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(1)
    X, task, eta = eta_of(rng)
    return X, rng.negative_binomial(1.5, 1.5 / (1.5 + np.exp(0.5 * eta + 1))).astype(float), task


def fit(data, **options):
    X, y, task = data
    return ss.AdaptiveSpanRegressor(**options).fit(X, y, task=task)


def advice(model, data):
    X, y, task = data
    return " ".join(ss.diagnose(model, X, y, task).advice)


def test_scores_are_those_of_scikit_learn(rng):
    y, p = (rng.random(200) < 0.3).astype(float), np.round(rng.random(200), 1) * 0.98 + 0.01
    found = scores(FAMILIES["binomial"], y, p)
    assert_allclose(found["log loss"], reference_log_loss(y, p), rtol=1e-10)
    assert_allclose(found["AUC"], roc_auc_score(y, p), rtol=1e-12)
    assert_allclose(found["Brier score"], brier_score_loss(y, p), rtol=1e-12)
    count, mean = rng.poisson(2.0, 200).astype(float), rng.gamma(2.0, size=200)
    assert_allclose(POISSON.of(count, mean), mean_poisson_deviance(count, mean), rtol=1e-10)
    reference = NegativeBinomial(alpha=1.0).deviance(count, mean) / 200
    assert_allclose(COUNTS.of(count, mean), reference, rtol=1e-10)
    assert np.isnan(auc(np.ones(5), np.arange(5.0)))
    assert "AUC" not in scores(FAMILIES["binomial"], np.ones(5), np.full(5, 0.9))


def test_classes_and_counts_under_a_normal_model_get_one_sentence(binary, counts):
    assert "AdaptiveSpanClassifier" in advice(fit(binary, rank=0), binary)
    assert "family='negative_binomial'" in advice(fit(counts, rank=0), counts)
    X, y, task = binary
    pooled = ss.PooledRegressor().fit(X, y, task=task)
    assert "PooledRegressor models it as normal" in advice(pooled, binary)
    assert "as normal" not in advice(fit((X, y + X[:, 0], task), rank=0), (X, y + X[:, 0], task))


def test_what_is_of_normal_responses_is_left_out_for_classes(binary):
    X, y, task = binary
    found = ss.diagnose(fit(binary, family="binomial", rank=0), X, y, task)
    assert (found.noise, found.signal_to_noise, found.task_r2) == (None, None, {})
    assert found.family == "binomial"
    assert set(found.scores) == {"log loss", "AUC", "Brier score"}
    assert not found.advice
    text = str(found)
    assert "binomial responses" in text
    assert "AUC" in text
    assert "noise" not in text
    assert "R²" not in text


def test_a_classifier_is_diagnosed_with_its_own_labels(binary):
    X, y, task = binary
    model = ss.AdaptiveSpanClassifier(rank=0).fit(X, np.where(y > 0, "yes", "no"), task=task)
    found = ss.diagnose(model, X, np.where(y > 0, "yes", "no"), task)
    assert found.scores == ss.diagnose(fit(binary, family="binomial", rank=0), X, y, task).scores
    with pytest.raises(ValueError, match="the class 'maybe'"):
        ss.diagnose(model, X, np.full(len(y), "maybe"), task)


def test_counts_that_vary_more_than_poisson_counts_are_told(counts):
    assert "vary" in advice(fit(counts, family="poisson", rank=0), counts)
    assert "Pearson" not in advice(fit(counts, family="negative_binomial", rank=0), counts)
    rng = np.random.default_rng(2)
    X, task, eta = eta_of(rng)
    poisson = X, rng.poisson(np.exp(0.3 * eta + 1)).astype(float), task
    assert "Pearson" not in advice(fit(poisson, family="poisson", rank=0), poisson)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_separation_is_told(binary):
    X, y, task = binary
    leak = np.column_stack([X, 2 * y - 1 + 0.01 * X[:, 0]]), y, task
    assert "(separation)" in advice(fit(leak, family="binomial", rank=0), leak)
    exact = X, (X[:, 0] > 0).astype(float), task
    assert "(separation)" in advice(fit(exact, family="binomial", rank=0), exact)
    assert "(separation)" not in advice(fit(binary, family="binomial", rank=0), binary)


def test_tasks_of_one_class_are_told():
    rng = np.random.default_rng(3)
    X, task, eta = eta_of(rng, n_tasks=40, n=8)
    rare = X, (rng.random(len(eta)) < 1 / (1 + np.exp(3.5 - eta))).astype(float), task
    assert "tasks all responses are the same" in advice(fit(rare, family="binomial", rank=0), rare)


def test_rows_of_a_model_with_an_offset_are_refused(counts, tmp_path):
    X, y, task = counts
    for family in ("poisson", "gaussian"):
        model = ss.AdaptiveSpanRegressor(family=family, rank=0)
        model.fit(X, y, task=task, offset=np.linspace(0, 1, len(y)))
        with pytest.raises(ValueError, match="offset or exposure"):
            ss.diagnose(model, X, y, task)
        assert ss.diagnose(model).n_tasks == 25
        model.save(tmp_path / "m.span")
        assert ss.load(tmp_path / "m.span").uses_offset_


def test_classes_are_compared_by_log_loss_auc_and_brier_score(binary, tmp_path):
    X, y, task = binary
    result = ss.compare(X, y, task, repeats=2)
    assert (result.family, result.columns) == ("binomial", ("log loss", "AUC", "Brier score"))
    assert {entry.method for entry in result.entries} == set(DEFAULT_CLASSES)
    assert not any(entry.failure for entry in result.entries)
    losses = [entry.scores["log loss"] for entry in result.entries]
    assert losses == sorted(losses)
    assert all(0 < loss < 1 for loss in losses)
    assert result.recommended in DEFAULT_CLASSES
    assert "because every response is 0 or 1" in str(result)
    assert "test log loss" in str(result)
    result.write_csv(tmp_path / "board.csv")
    assert (tmp_path / "board.csv").read_text().splitlines()[0].endswith("log_loss,auc,brier_score")


def test_the_log_loss_is_that_of_the_held_out_rows(binary):
    X, y, task = binary
    methods = ["AdaptiveSpanClassifier", "pooled GLM"]
    result = ss.compare(X, y, task, repeats=2, methods=methods)
    found = {entry.method: entry.loss_per_split for entry in result.entries}
    for repeat in range(2):
        held = random_folds(np.bincount(task), np.random.default_rng(0)) == repeat
        model = ss.AdaptiveSpanClassifier(random_state=repeat)
        model.fit(X[~held], y[~held], task=task[~held])
        loss = reference_log_loss(y[held], model.predict_proba(X[held], task=task[held])[:, 1])
        assert_allclose(found["AdaptiveSpanClassifier"][repeat], loss, rtol=1e-10)
        hot = np.eye(25)[task]
        Z = np.column_stack([(X - X[~held].mean(axis=0)) / X[~held].std(axis=0), hot])
        glm = LogisticRegression(tol=1e-6, max_iter=1000).fit(Z[~held], y[~held])
        loss = reference_log_loss(y[held], glm.predict_proba(Z[held])[:, 1])
        assert_allclose(found["pooled GLM"][repeat], loss, rtol=1e-4)


def test_all_methods_for_classes_and_counts_add_the_normal_model(binary, counts):
    other = {"AdaptiveSpanRegressor(family='poisson')"}
    for (X, y, task), more in ((binary, set()), (counts, other)):
        few = ss.compare(X, y, task, repeats=2)
        result = ss.compare(X, y, task, repeats=2, methods="all")
        added = {e.method for e in result.entries} - {e.method for e in few.entries}
        assert added == {"AdaptiveSpanRegressor"} | more
        regression = "logistic" if y is binary[1] else "Poisson"
        assert f"scikit-learn's {regression} regression of all tasks" in str(few)
        assert few.sharing.outcome in ("gain", "even", "loss")
        loss = "log loss" if y is binary[1] else "mean negative binomial deviance"
        assert loss in few.sharing.statement or few.sharing.outcome == "even"


def test_counts_are_compared_by_their_deviance(counts):
    X, y, task = counts
    result = ss.compare(X, y, task, repeats=2)
    assert (result.family, result.columns) == ("negative_binomial", ("deviance",))
    model = "AdaptiveSpanRegressor(family='negative_binomial')"
    assert {entry.method for entry in result.entries} == {*DEFAULT_GLMS, model}
    assert not any(entry.failure for entry in result.entries)
    assert result.recommended == model
    assert "Deviance is the mean negative binomial deviance (of counts whose" in str(result)
    result = ss.compare(X, y, task, repeats=2, family="poisson")
    model = "AdaptiveSpanRegressor(family='poisson')"
    assert {entry.method for entry in result.entries} == {*DEFAULT_GLMS, model}
    assert result.recommended == model
    assert "Deviance is the mean Poisson deviance." in str(result)


def test_one_wild_mean_does_not_decide_about_overdispersed_counts():
    """A model that halves all residuals but one, for which it predicts 1,495 in place of 0."""
    y = np.tile([0.0, 2.0, 7.0, 19.0], 40)
    flat = np.full(160, 7.0)
    wild = (y + flat) / 2
    wild[0] = 1495.0
    assert POISSON.of(y, wild) > 2 * POISSON.of(y, flat)
    assert COUNTS.of(y, wild) < COUNTS.of(y, flat)


def test_the_family_of_a_comparison_is_that_of_all_rows(counts):
    """The only 0 among the counts is the response of a task that is left out."""
    X, y, task = counts
    X, y, task = np.vstack([X, X[:1]]), np.append(y + 1, 0), np.append(task, 99)
    result = ss.compare(X, y, task, repeats=2, methods=["pooled GLM"])
    assert (result.family, result.n_small_tasks) == ("negative_binomial", 1)


def test_a_normal_comparison_of_classes_gets_one_sentence(binary):
    X, y, task = binary
    result = ss.compare(X, y, task, repeats=2, family="gaussian", methods=["PooledRegressor"])
    assert result.columns == ("RMSE",)
    assert str(result).count("as normal") == 1
    assert result.entries[0].loss_per_split == result.entries[0].rmse_per_split
    with pytest.raises(ValueError, match="needs counts of 0 and more"):
        ss.compare(X, y - 1, task, repeats=2, family="poisson")
    with pytest.raises(ValueError, match="use one of 'auto'"):
        ss.compare(X, y, task, repeats=2, family="gamma")


def test_baselines_predict_tasks_of_one_class_near_their_share():
    X, task = np.zeros((20, 1)), np.repeat([3, 7], 10)
    y = np.repeat([0.0, 1.0], 10)
    model = GLMBaseline(FAMILIES["binomial"], per_task=True).fit(X, y, task)
    assert_allclose(model.predict(X[9:11], task[9:11]), [0.5 / 11, 10.5 / 11])


def test_regressions_of_scikit_learn_are_fitted_by_one_thread(counts, monkeypatch):
    X, y, task = counts
    threads, fit = [], PoissonRegressor.fit

    def counted(*arguments):
        threads.extend(pool["num_threads"] for pool in threadpool_info())
        return fit(*arguments)

    monkeypatch.setattr(PoissonRegressor, "fit", counted)
    before = threadpool_info()
    GLMBaseline(FAMILIES["poisson"], per_task=True).fit(X, y, task)
    assert set(threads) == {1}
    assert threadpool_info() == before


def test_shares_are_compared_by_log_loss_without_classifiers(binary):
    X, _, task = binary
    share = 1 / (1 + np.exp(-X @ SLOPES)) * 0.9 + 0.05
    result = ss.compare(X, share, task, repeats=2, family="binomial")
    model = "AdaptiveSpanRegressor(family='binomial')"
    assert {entry.method for entry in result.entries} == {*DEFAULT_GLMS, model}
    assert not any(entry.failure for entry in result.entries)


def test_shares_in_a_logistic_baseline_are_repeated_rows(rng):
    X, task = rng.standard_normal((60, 2)), np.repeat([0, 1], 30)
    share = rng.integers(0, 5, 60) / 4
    by_share = GLMBaseline(FAMILIES["binomial"], per_task=False).fit(X, share, task)
    rows = np.repeat(np.arange(60), 4)
    ones = (np.tile(np.arange(4), 60) < np.repeat(4 * share, 4)).astype(float)
    model = by_share.models[0]
    design = by_share._with_tasks(by_share.scaler.transform(X[rows]), task[rows])
    repeated = LogisticRegression(max_iter=1000).fit(design, ones, np.full(240, 0.25))
    assert_allclose(model.coef_, repeated.coef_, atol=1e-3)
