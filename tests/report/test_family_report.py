"""The page about models of classes and counts: their own errors, and nothing of normal ones."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression

import sharedspan as ss
from sharedspan.diagnosis.calibration import (
    reliability_of_bins,
    reliability_of_tasks,
    wilson_interval,
)
from sharedspan.diagnosis.holdout_errors import holdout_errors, random_folds
from sharedspan.diagnosis.losses import log_loss
from sharedspan.diagnosis.model_view import ModelView
from sharedspan.families import FAMILIES

NORMAL = ("RMSE", "root mean squared", "standard deviation of the noise", "R²", "variance within")


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(16), 40)
    X = rng.standard_normal((len(task), 3))
    slopes = np.array([1.0, -0.5, 0.3]) + 0.8 * rng.standard_normal((16, 1)) * [1, 1, 0]
    eta = np.einsum("ij,ij->i", X, slopes[task]) + 0.7 * rng.standard_normal(16)[task]
    bought = np.where(rng.random(len(eta)) < 1 / (1 + np.exp(-eta)), "yes", "no")
    return X, task, bought, rng.poisson(np.exp(0.4 * eta + 1)).astype(float)


@pytest.fixture(scope="module")
def classifier(rows):
    X, task, bought, _ = rows
    return ss.AdaptiveSpanClassifier().fit(X, bought, task=task)


def test_the_page_of_a_classifier_shows_its_scores_and_calibration(rows, classifier, tmp_path):
    X, task, bought, _ = rows
    page = ss.write_report(classifier, tmp_path / "r.html", X, bought, task).read_text("utf-8")
    for words in ("log loss", "AUC", "Brier score", "Calibration over tasks", "log odds per",
                  "observed proportion", "less log loss than the means"):  # fmt: skip
        assert words in page
    for words in NORMAL:
        assert words not in page


def test_the_page_of_counts_shows_their_deviance(rows, tmp_path):
    X, task, _, units = rows
    model = ss.AdaptiveSpanRegressor(family="poisson").fit(X, units, task=task)
    page = ss.write_report(model, tmp_path / "r.html", X, units, task).read_text("utf-8")
    for words in (
        "Poisson deviance",
        "observed mean",
        "the logarithm of the mean per",
        "% prediction intervals",
    ):
        assert words in page
    for words in (*NORMAL, "AUC", "log loss"):
        assert words not in page


def test_a_page_without_rows_has_nothing_of_normal_responses_either(classifier, tmp_path):
    page = ss.write_report(classifier, tmp_path / "r.html").read_text("utf-8")
    assert "Calibration" not in page
    for words in NORMAL:
        assert words not in page


def test_the_page_of_a_normal_model_of_classes_gives_the_advice(rows, tmp_path):
    X, task, bought, _ = rows
    y = (bought == "yes").astype(float)
    model = ss.PooledRegressor().fit(X, y, task=task)
    page = ss.write_report(model, tmp_path / "r.html", X, y, task).read_text("utf-8")
    assert page.count("models it as normal") == 1


def test_held_out_losses_are_those_of_fits_to_the_other_rows(rows, classifier):
    X, task, bought, _ = rows
    errors = holdout_errors(ModelView(classifier, X, bought, task))
    y, mean, codes, covered = errors.scored
    assert covered is None
    assert len(y) == len(X)
    assert_allclose(errors.error("model"), log_loss(y, mean).mean(), rtol=1e-10)
    assert_allclose(errors.losses["model"], np.bincount(codes, log_loss(y, mean)), rtol=1e-10)
    fold = random_folds(np.bincount(codes), np.random.default_rng(0))
    known = np.empty(len(y))
    for t, f in zip(*np.unique([codes, fold], axis=1), strict=True):
        others = y[(codes == t) & (fold != f)]
        known[(codes == t) & (fold == f)] = (others.sum() + y.mean()) / (len(others) + 1)
    assert_allclose(errors.total, log_loss(y, known).sum(), rtol=1e-10)
    change = errors.change("separate")
    assert_allclose(change.ratio, errors.error("model") / errors.error("separate"), rtol=1e-10)
    assert change.low < change.ratio < change.high
    # About as good as a regression of all rows with every interaction, which sees all rows.
    design = np.column_stack([np.eye(16)[task], *(np.eye(16)[task] * X[:, [j]] for j in range(3))])
    whole = LogisticRegression(max_iter=2000).fit(design, bought)
    best = log_loss((bought == "yes").astype(float), whole.predict_proba(design)[:, 1]).mean()
    assert best < errors.error("model") < best + 0.15


def test_calibrated_probabilities_are_on_the_line_and_others_are_not(rng):
    p = rng.random(20_000)
    y, codes = (rng.random(20_000) < p).astype(float), np.arange(20_000) % 50
    bins = reliability_of_bins(FAMILIES["binomial"], y, p)
    assert bins.rows.tolist() == [2000] * 10
    assert_allclose(bins.observed, bins.predicted, atol=0.04)
    assert np.sum((bins.low < bins.predicted) & (bins.predicted < bins.high)) >= 8
    wrong = reliability_of_bins(FAMILIES["binomial"], y, p**2)
    assert np.sum((wrong.low < wrong.predicted) & (wrong.predicted < wrong.high)) <= 3
    tasks = reliability_of_tasks(FAMILIES["binomial"], y, p, codes)
    assert_allclose(tasks.observed, np.bincount(codes, y) / 400)
    assert_allclose(tasks.predicted, np.bincount(codes, p) / 400)


def test_intervals_contain_what_was_observed():
    n = np.tile(np.arange(1, 400), 2)
    share = np.repeat([0.0, 1.0], 399)
    low, high = wilson_interval(share, n)
    assert ((low <= share) & (share <= high)).all()
    assert ((low >= 0) & (high <= 1)).all()


def test_wilsons_interval_is_the_published_one():
    """Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20 and 1 of 29."""
    n = np.array([263, 148, 20, 29])
    low, high = wilson_interval(np.array([81, 15, 0, 1]) / n, n)
    assert_allclose(low, [0.2553, 0.0624, 0.0000, 0.0061], atol=5e-5)
    assert_allclose(high, [0.3662, 0.1605, 0.1611, 0.1718], atol=5e-5)
