"""Prediction sets: thresholds, coverage within tasks and on average, invariances, messages."""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sharedspan as ss


class Softmax:
    """Probabilities by the softmax of the features, in all tasks."""

    def __init__(self, classes=(0, 1, 2), decimals=17):
        self.classes_, self.decimals = np.array(classes), decimals

    def predict_proba(self, X, task=None):
        each = np.exp(X)
        return np.round(each / each.sum(axis=1, keepdims=True), self.decimals)


def draw(rng, sizes):
    """Rows of tasks in which the softmax is wrong, by a factor that differs between them."""
    task = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.standard_normal((len(task), 3))
    return X, noisy_classes(rng, X, task), task


def noisy_classes(rng, X, task):
    return (2.0 * (task % 3)[:, None] * X + rng.gumbel(size=X.shape)).argmax(axis=1)


def covered(found, y):
    """Whether each row's set has its class, for classes 0, 1, 2."""
    return found.sets[np.arange(len(y)), y]


def expected_sets(model, calibration, new, level):
    """Classes whose p-value exceeds 1 - level.

    Tasks of too few rows are tested by the rows of all such tasks, or by all rows.
    """
    X, y, task = calibration
    level = Fraction(str(level))
    scores = 1 - model.predict_proba(X)[np.arange(len(y)), y]
    few = np.bincount(task)[task] < level / (1 - level)
    shared = scores[few] if few.sum() >= level / (1 - level) else scores
    rows = []
    for p, label in zip(1 - model.predict_proba(new[0]), new[1], strict=True):
        own = scores[task == label]
        used = own if len(own) >= level / (1 - level) else shared
        larger = [1 + int(np.sum(used >= score)) for score in p]
        rows.append([n > (1 - level) * (len(used) + 1) for n in larger])
    return np.array(rows)


@pytest.mark.parametrize("decimals", [17, 1], ids=["no ties", "ties"])
@pytest.mark.parametrize("level", [0.05, 0.5, 0.55, 0.8, 0.9, 0.95, 0.99])
def test_sets_are_the_classes_that_a_conformal_test_does_not_reject(rng, level, decimals):
    model = Softmax(decimals=decimals)
    X, y, task = draw(rng, [1, 2, 3, 4, 5, 8, 9, 10, 18, 19, 20, 29, 98, 99, 100])
    X_new, _, task_new = draw(rng, [8] * 16)
    found = ss.conformal_sets(model, X, y, X_new, task=task, task_new=task_new, level=level)
    expected = expected_sets(model, (X, y, task), (X_new, task_new), level)
    assert_array_equal(found.sets, expected)
    assert found.sets.dtype == bool
    enough = [t for t, n in enumerate(np.bincount(task)) if n >= level / (1 - level) - 1e-9]
    assert list(found.thresholds) == enough
    assert found.n_tasks == 15
    assert_array_equal(found.own_threshold, np.isin(task_new, enough))
    scores = 1 - model.predict_proba(X)[np.arange(len(y)), y]
    for label, threshold in found.thresholds.items():
        own = sorted(scores[task == label])
        assert threshold == own[math.ceil((len(own) + 1) * Fraction(str(level))) - 1]


def test_each_task_with_enough_rows_is_covered_at_the_level():
    rng, sizes, level, n_new = np.random.default_rng(1), np.array([9, 13, 19, 30, 60]), 0.9, 40
    shares = np.empty((1500, len(sizes)))
    for i in range(len(shares)):
        X, y, task = draw(rng, sizes)
        X_new, y_new, task_new = draw(rng, np.full(len(sizes), n_new))
        found = ss.conformal_sets(Softmax(), X, y, X_new, task=task, task_new=task_new)
        assert found.own_threshold.all()
        shares[i] = covered(found, y_new).reshape(-1, n_new).mean(axis=1)
    coverage, error = shares.mean(axis=0), shares.std(axis=0) / np.sqrt(len(shares))
    assert error.max() < 0.005
    assert (coverage > level - 4 * error).all()
    assert (coverage < level + 1 / (sizes + 1) + 4 * error).all()
    exact = np.ceil(np.round(level * (sizes + 1), 9)) / (sizes + 1)
    assert (np.abs(coverage - exact) < 4 * error).all()


def test_the_shared_threshold_covers_rows_on_average_but_not_in_each_task():
    rng, n, n_tasks, level = np.random.default_rng(2), 59, 30, 0.9
    shares = np.empty((1500, 4))
    for i in range(len(shares)):
        rows, new = (rng.integers(n_tasks, size=size) for size in (n, 90))
        X, X_new = rng.standard_normal((n, 3)), rng.standard_normal((90, 3))
        y, y_new = noisy_classes(rng, X, rows), noisy_classes(rng, X_new, new)
        found = ss.conformal_sets(Softmax(), X, y, X_new, task=rows, task_new=new)
        inside = covered(found, y_new)[~found.own_threshold]
        kinds = new[~found.own_threshold] % 3
        shares[i] = inside.mean(), *(inside[kinds == kind].mean() for kind in range(3))
    coverage, error = shares.mean(axis=0), shares.std(axis=0) / np.sqrt(len(shares))
    assert level - 4 * error[0] < coverage[0] < level + 1 / (n + 1) + 4 * error[0]
    assert coverage[1] < level - 10 * error[1]
    assert coverage[3] > level + 10 * error[3]


def test_tasks_of_few_rows_are_covered_beside_large_tasks_that_are_easier():
    rng, level = np.random.default_rng(3), 0.9
    task = np.concatenate([np.repeat([2, 5], 60), np.repeat(np.arange(20) * 3, 6)])
    shares = np.empty(400)
    for i in range(len(shares)):
        X, X_new = (rng.standard_normal((len(task), 3)) for _ in range(2))
        y, y_new = (noisy_classes(rng, rows, task) for rows in (X, X_new))
        found = ss.conformal_sets(Softmax(), X, y, X_new, task=task, task_new=task, level=level)
        assert_array_equal(~found.own_threshold, task % 3 == 0)
        shares[i] = covered(found, y_new)[~found.own_threshold].mean()
    error = shares.std() / np.sqrt(len(shares))
    assert level - 4 * error < shares.mean() < level + 1 / 121 + 4 * error


def test_tasks_of_too_few_rows_and_new_tasks_have_the_threshold_of_all_rows(rng):
    X, y, task = draw(rng, [8, 9, 40])
    X_new, task_new = np.repeat(rng.standard_normal((20, 3)), 4, axis=0), np.tile(range(4), 20)
    found = ss.conformal_sets(Softmax(), X, y, X_new, task=task, task_new=task_new)
    assert_array_equal(found.own_threshold, np.isin(task_new, [1, 2]))
    scores = np.sort(1 - Softmax().predict_proba(X)[np.arange(57), y])
    assert found.shared_threshold == scores[int(np.ceil(0.9 * 58)) - 1]
    assert list(found.thresholds) == [1, 2]
    assert_array_equal(found.sets[task_new == 0], found.sets[task_new == 3])
    pooled = ss.conformal_sets(Softmax(), X, y, X_new)  # without labels all rows are of one task
    assert pooled.own_threshold.all()
    assert_array_equal(found.sets[task_new == 0], pooled.sets[task_new == 0])


def test_with_too_few_rows_in_all_every_class_is_in_the_set(rng):
    X, y, task = draw(rng, [4, 4])
    found = ss.conformal_sets(Softmax(), X, y, X, task=task, task_new=task)
    assert found.sets.all()
    assert not found.own_threshold.any()
    assert found.shared_threshold == np.inf
    assert found.thresholds == {}
    assert "too few" in str(found)


def test_neither_the_order_of_rows_nor_the_kind_of_labels_matters(rng):
    X, y, task = draw(rng, [5, 12, 30, 9])
    X_new, _, task_new = draw(rng, [10] * 5)
    found = ss.conformal_sets(Softmax(), X, y, X_new, task=task, task_new=task_new)
    order = rng.permutation(len(y))
    words, names = np.array(["no", "perhaps", "yes"]), np.array(["z", "b", "10", "9", "new"])
    others = [
        ss.conformal_sets(
            Softmax(), X[order], y[order], X_new, task=task[order], task_new=task_new
        ),
        ss.conformal_sets(
            Softmax(words), X, words[y], X_new, task=names[task], task_new=names[task_new]
        ),
        ss.conformal_sets(
            Softmax([0.0, 1.0, 2.0]), X, y.tolist(), X_new, task=list(task), task_new=task_new
        ),
        ss.conformal_sets(
            Softmax(words), X, pd.Series(words[y], dtype="category"), X_new,
            task=pd.Series(names[task], dtype="category"), task_new=pd.Series(names[task_new]),
        ),
        ss.conformal_sets(
            Softmax(), X, y[:, None], X_new, task=[("a", int(t)) for t in task],
            task_new=[("a", int(t)) for t in task_new],
        ),
    ]  # fmt: skip
    for other in others:
        assert_array_equal(other.sets, found.sets)
        assert_array_equal(other.own_threshold, found.own_threshold)
        assert other.shared_threshold == found.shared_threshold
        assert sorted(other.thresholds.values()) == sorted(found.thresholds.values())
    assert_array_equal(others[1].labels()[0], words[found.labels()[0]])


def test_labels_are_the_classes_of_each_set_and_the_text_says_their_shares(rng):
    model = Softmax(["a", "b", "c"])
    X, y, task = draw(rng, [40, 40, 1])
    X_new, _, task_new = draw(rng, [60, 30, 10])
    found = ss.conformal_sets(
        model, X, model.classes_[y], X_new, task=task, task_new=task_new, level=0.55
    )
    assert [list(row) for row in found.labels()] == [
        [label for label, inside in zip("abc", row, strict=True) if inside] for row in found.sets
    ]
    sizes = found.sets.sum(axis=1)
    assert set(sizes) == {0, 1, 2}
    text = str(found).replace("\u00a0", " ")
    for part in (
        "level 0.55: ", f"{np.sum(sizes == 1)} % of 100 rows have one class",
        f"{np.sum(sizes == 2)} % several", f"{np.sum(sizes == 0)} % none",
        "2 of 3 tasks", "10 % of the rows",
    ):  # fmt: skip
        assert part in text
    own = ss.conformal_sets(Softmax(), X, y, X[:1], task=task, task_new=[0])
    assert str(own).endswith("2 of 3 tasks of the calibration rows have a threshold of their own.")


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(4)
    task = np.repeat([f"s{t}" for t in range(8)], 40)
    X = rng.standard_normal((320, 2))
    level = np.repeat(rng.standard_normal(8), 40)
    y = np.where(X[:, 0] + level + rng.logistic(size=320) > 0, "yes", "no")
    fit, held = np.arange(320) % 2 == 0, np.arange(320) % 2 == 1
    return X, y, task, fit, held


def test_classifiers_take_labels_in_every_form(fitted):
    X, y, task, fit, held = fitted
    model = ss.SharedSpanClassifier(rank=1).fit(X[fit], y[fit], task=task[fit])
    options = {"task": task[held], "task_new": task[fit]}
    found = ss.conformal_sets(model, X[held], y[held], X[fit], **options)
    assert found.own_threshold.all()
    assert list(found.classes) == ["no", "yes"]
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(school=task)
    named = ss.SharedSpanClassifier(rank=1, task_column="school").fit(frame[fit], y[fit])
    lists = [[values[rows & (task == label)] for label in np.unique(task)]
             for values, rows in ((X, held), (y, held), (X, fit))]  # fmt: skip
    one = {"task": np.unique(task), "task_new": np.unique(task)}
    again = [
        ss.conformal_sets(named, frame[held], y[held], frame[fit]),
        ss.conformal_sets(named, frame[held].to_dict("list"), y[held], frame[fit]),
        ss.conformal_sets(named, frame[["a", "b"]][held], y[held], frame[fit], task=task[held]),
        ss.conformal_sets(model, *lists, **one),
    ]
    for other in again:
        assert_array_equal(other.sets, found.sets)
        assert other.thresholds == pytest.approx(found.thresholds)


def test_pipelines_and_models_without_tasks_are_calibrated_too(fitted):
    X, y, task, fit, held = fitted
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(school=task)
    scale = StandardScaler().fit(X[fit])
    model = ss.AdaptiveSpanClassifier(rank=0).fit(scale.transform(X[fit]), y[fit], task=task[fit])
    options = {"task": task[held], "task_new": task[fit]}
    pipe = make_pipeline(scale, model)
    found = ss.conformal_sets(pipe, X[held], y[held], X[fit], **options)
    X = scale.transform(X)
    assert_array_equal(
        found.sets, ss.conformal_sets(model, X[held], y[held], X[fit], **options).sets
    )
    named = ss.AdaptiveSpanClassifier(rank=0, task_column="school").fit(frame[fit], y[fit])
    alone = ss.conformal_sets(make_pipeline(named), frame[held], y[held], frame[fit])
    assert list(alone.thresholds) == list(np.unique(task))
    pooled = LogisticRegression().fit(X[fit], y[fit])
    assert ss.conformal_sets(pooled, X[held], y[held], X[fit]).own_threshold.all()


def test_more_than_two_classes_and_tasks_that_were_not_fitted(fitted):
    X, _, task, fit, held = fitted
    y = np.digitize(X[:, 0] + np.random.default_rng(5).logistic(size=320), [-1, 1])
    model = ss.SharedSpanClassifier(rank=1).fit(X[fit], y[fit], task=task[fit])
    new = np.where(task == "s0", "new", task)
    found = ss.conformal_sets(model, X[held], y[held], X[fit], task=new[held], task_new=new[fit])
    assert found.sets.shape == (160, 3)
    assert "new" in found.thresholds  # calibrated by its rows, although the fit had none of them
    assert 0.8 < np.mean(covered(found, y[fit])) <= 1


def refusals():
    rng = np.random.default_rng(0)
    X, y, task = draw(rng, [20, 20])
    sim = ss.simulate(n_tasks=4, n_features=3, rank=1, n_samples=20, random_state=0)
    regressor = ss.PooledRegressor().fit(sim.X, sim.y, task=sim.task)
    given = {"model": Softmax(), "X": X, "y": y, "X_new": X, "task": task, "task_new": task}
    for change, error, message in (
        ({"y": np.where(y == 0, 7, y)}, ValueError, r"not fitted to, 7; .*\[0, 1, 2\]"),
        ({"y": np.array(["a", "b", "c"])[y]}, ValueError, "'[abc]', '[abc]' and '[abc]'"),
        ({"y": y[1:]}, ValueError, "y has 39 labels but X has 40 rows"),
        ({"y": np.where(y == 0, np.nan, y)}, ValueError, "y is missing in row"),
        ({"y": None}, TypeError, "y is None"),
        ({"task": task[1:]}, ValueError, "task has 39 labels"),
        ({"task_new": task[1:]}, ValueError, "task_new has 39 labels"),
        ({"level": 1.0}, ValueError, "level=1.0 must be between 0 and 1, such as 0.9"),
        ({"level": 0}, ValueError, "level=0 must be between 0 and 1"),
        ({"level": -0.5}, ValueError, "level=-0.5 must be"),
        ({"level": float("nan")}, ValueError, "level=nan must be"),
        ({"level": 90}, ValueError, "level=90 must be between 0 and 1"),
        ({"level": "0.9"}, TypeError, "level='0.9' must be a number"),
        ({"model": regressor}, TypeError, "PooledRegressor.*predict_interval"),
        ({"model": None}, TypeError, "NoneType"),
        ({"model": ss.AdaptiveSpanClassifier()}, NotFittedError, "AdaptiveSpanClassifier"),
    ):
        yield pytest.param({**given, **change}, error, message, id=message)


@pytest.mark.parametrize(("given", "error", "message"), list(refusals()))
def test_what_cannot_be_calibrated_is_refused_in_words(given, error, message):
    model, X, y, X_new = (given.pop(name) for name in ("model", "X", "y", "X_new"))
    with pytest.raises(error, match=message):
        ss.conformal_sets(model, X, y, X_new, **given)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_models_with_an_offset_are_refused(fitted, n_classes):
    X, _, task, fit, held = fitted
    y = np.arange(320) // 2 % n_classes
    model = ss.SharedSpanClassifier(rank=1)
    model.fit(X[fit], y[fit], task=task[fit], offset=np.full(160, 0.1))
    with pytest.raises(ValueError, match="offset"):
        ss.conformal_sets(model, X[held], y[held], X, task=task[held], task_new=task)


def test_the_sets_cannot_be_changed(rng):
    X, y, task = draw(rng, [20])
    found = ss.conformal_sets(Softmax(), X, y, X, task=task, task_new=task)
    with pytest.raises(AttributeError):
        found.level = 0.5
    assert_allclose(found.level, 0.9)
