"""Tasks that are named because they do not fit, or as the most different ones."""

import numpy as np
import pandas as pd
import pytest

import sharedspan as ss


def said(diagnosis, words):
    return any(words in sentence for sentence in diagnosis.advice)


def levels_around_zero(seed, odd):
    """A table of 30 tasks with similar slopes and the levels 150 +- 8, but for the first one."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(30), 9)
    x, level = rng.uniform(-1, 1, 270), 8 * rng.standard_normal(30)
    level[0] += odd
    slope = 6 + rng.standard_normal(30)
    y = 150 + level[task] + slope[task] * x + 0.7 * rng.standard_normal(270)
    return pd.DataFrame({"x": x, "task": task, "y": y})


@pytest.mark.parametrize("formula", ["", "y ~ x + (1 | task)", "y ~ x + (1 + x | task)"])
def test_a_task_whose_level_is_far_from_the_others_is_named(formula):
    for odd in (60, 0):
        table = levels_around_zero(1, odd)
        X, y = table[["x", "task"]], table["y"]
        if formula:
            model = ss.mixed(formula, table)
        else:
            model = ss.AdaptiveSpanRegressor(task_column="task").fit(X, y)
        for given in ((), (X, y)):
            diagnosis = ss.diagnose(model, *given)
            assert diagnosis.outliers == [0] * bool(odd)
        if odd:
            (misfit,) = diagnosis.misfits
            assert misfit.what == "level"
            assert 40 < misfit.value < 80
            assert 4 < misfit.typical < 12
            assert said(diagnosis, "Task 0 is far from the others in its level")


def test_a_level_is_not_odd_because_a_task_has_more_rows_or_other_features():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        task = np.repeat(np.arange(60), np.where(np.arange(60) < 6, 100, 2))
        centre = np.where(np.arange(60) < 3, 30.0, 0.0)  # of features: slopes differ, too
        X = (centre[task] + rng.standard_normal(len(task)))[:, None]
        slope = 1 + 0.2 * rng.standard_normal(60)
        level = rng.standard_normal(60) - slope * centre
        y = level[task] + slope[task] * X[:, 0] + 2 * rng.standard_normal(len(task))
        model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
        assert "level" not in {m.what for m in ss.diagnose(model, X, y, task).misfits}


def test_equal_tasks_are_not_named_as_the_most_different():
    rng = np.random.default_rng(0)
    task, X = np.repeat(np.arange(200), 4), np.tile([[-2.0], [-1.0], [1.0], [2.0]], (200, 1))
    chance = 1 / (1 + np.exp(1 - 1.5 * rng.standard_normal(200)[task] - 0.3 * X[:, 0]))
    y = (rng.random(800) < chance).astype(float)
    model = ss.AdaptiveSpanRegressor(family="binomial")
    diagnosis = ss.diagnose(model.fit(X, y, task=task), X, y, task)
    assert diagnosis.outliers == diagnosis.most_different == []
    assert diagnosis.n_alike > 10
    text = " ".join(str(diagnosis).split())
    assert f"{diagnosis.n_alike} tasks are about equally different." in text


def test_tasks_of_equal_responses_have_no_r2():
    rng = np.random.default_rng(0)
    task, X = np.repeat(np.arange(20), 6), rng.standard_normal((120, 2))
    y = X @ [1.0, 0.5] + rng.standard_normal(20)[task] + 0.3 * rng.standard_normal(120)
    y[task == 4] = 1.1  # whose mean is rounded
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    found = ss.diagnose(model, X, y, task).task_r2
    assert set(found) == set(range(20)) - {4}
    assert min(found.values()) > -10


def with_narrow_features(scale):
    """Rows of 40 tasks whose features vary narrowly, by ``scale``, in all but the first six."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(40), 100)
    X = rng.standard_normal((len(task), 3)) * np.where(task < 6, 1.0, scale)[:, None]
    V = np.array([1.0, 2.0, -1.0]) + 3 * rng.standard_normal((40, 3))
    y = rng.standard_normal(40)[task] + np.einsum("ij,ij->i", X, V[task])
    return X, y + 0.1 * rng.standard_normal(len(task)), task


def test_features_that_vary_little_are_told_only_if_rows_do_not_determine_their_coefficients():
    for scale in (0.1, 0.003):  # of most tasks
        rows = with_narrow_features(scale)
        model = ss.AdaptiveSpanRegressor(rank=3).fit(*rows[:2], task=rows[2])
        assert not said(ss.diagnose(model, *rows), "hardly vary")
    X, y, task = with_narrow_features(1.0)
    few = np.isin(task, [3, 4])
    for scale, told in ((0.1, False), (0.001, True)):
        Z = np.where(few[:, None], scale * X, X)
        z = np.where(few, 0.1 * np.random.default_rng(1).standard_normal(len(y)), y)
        for model in (ss.AdaptiveSpanRegressor(rank=3), ss.SharedSpanRegressor(rank=3)):
            diagnosis = ss.diagnose(model.fit(Z, z, task=task), Z, z, task)
            assert said(diagnosis, "The features of tasks 3 and 4 hardly vary") == told
            if told:
                remedy = "read these as those of the other tasks"
                if isinstance(model, ss.SharedSpanRegressor):
                    remedy = "use AdaptiveSpanRegressor"
                assert said(diagnosis, remedy)


def test_columns_of_one_spline_are_not_called_collinear():
    rng = np.random.default_rng(0)
    day = pd.Series(pd.date_range("2000-01-01", periods=120, freq="MS"))
    table = pd.DataFrame({"shop": np.repeat(np.arange(4), 120), "day": pd.concat([day] * 4)})
    table["x"] = rng.standard_normal(480)
    y = np.sin(np.arange(480) / 10) + table["x"] + 0.1 * rng.standard_normal(480)
    columns = ss.Columns(spline=["day"])
    model = ss.AdaptiveSpanRegressor(task_column="shop", columns=columns).fit(table, y)
    assert not said(ss.diagnose(model, table, y), "cannot be distinguished")
    # A column beside the spline that says the same is named, with the column of the spline.
    age = (table["day"] - day[0]).dt.days
    table["age"] = age + 0.5 * rng.standard_normal(480)
    model = ss.AdaptiveSpanRegressor(task_column="shop", columns=columns).fit(table, y)
    assert said(ss.diagnose(model, table, y), "coefficients of day and age cannot be distinguished")


def one_slope_planted(seed):
    """Rows of 40 tasks, of which one has one slope that is far off; the task and the feature."""
    rng = np.random.default_rng(seed)
    d = 3 + seed % 3
    mean = np.array([2.0, -1.0, 0.5, 0.0, 1.0])[:d]
    V = mean + np.array([0.5, 0.3, 0.0, 0.2, 0.4])[:d] * rng.standard_normal((40, d))
    odd, feature = int(rng.integers(40)), int(rng.integers(d))
    V[odd, feature] = mean[feature] + rng.choice([-4.0, 4.0])
    task, X = np.repeat(np.arange(40), 15), rng.standard_normal((600, d))
    if seed % 2:
        X[:, 1] = 0.6 * X[:, 0] + 0.8 * X[:, 1]
    level = 50 + 3 * rng.standard_normal(40)
    y = level[task] + np.einsum("ij,ij->i", X, V[task]) + 1.5 * rng.standard_normal(600)
    return X, y, task, {odd: feature}


def two_slopes_planted(seed):
    """Rows of 40 tasks, of which two have one odd slope each; the last slope varies in none."""
    rng = np.random.default_rng(seed)
    V = np.array([2.0, -1.0, 0.5]) + rng.standard_normal((40, 3)) * [0.5, 0.3, 0.0]
    V[11], V[28] = [-2.5, -1.0, 0.5], [2.0, 2.5, 0.5]
    task, X = np.repeat(np.arange(40), 15), rng.standard_normal((600, 3))
    level = 50 + 3 * rng.standard_normal(40)
    y = level[task] + np.einsum("ij,ij->i", X, V[task]) + 1.5 * rng.standard_normal(600)
    return X, y, task, {11: 0, 28: 1}


@pytest.mark.parametrize("planted", [one_slope_planted, two_slopes_planted])
def test_the_feature_that_is_named_is_the_one_whose_slope_was_planted(planted):
    named, right = 0, 0
    for seed in range(130, 150):
        X, y, task, truth = planted(seed)
        model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
        for misfit in ss.diagnose(model, X, y, task).misfits:
            if misfit.task in truth and misfit.what != "noise":
                named += 1
                right += misfit.feature == f"x{truth[misfit.task]}"
    assert named >= 15
    assert right >= named - 1


def test_a_feature_that_does_not_vary_in_a_task_is_not_its_reason_nor_a_slope_of_two_rows():
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(30), np.where(np.arange(30) == 7, 2, 25))
    X = rng.standard_normal((len(task), 3))
    X[task == 5, 2] = 0.0
    place = 3 + 0.3 * rng.standard_normal(30)
    place[[5, 7]] = 30.0
    y = place[task] * (X @ [1.0, 0.7, 3.0]) + 0.5 * rng.standard_normal(len(task))
    model = ss.SharedSpanRegressor(rank=1, fit_intercept=False, random_state=0)
    misfits = ss.diagnose(model.fit(X, y, task=task), X, y, task).misfits
    assert {m.task: m.feature for m in misfits if m.what == "place"} == {5: "x0"}


def test_the_sentence_on_the_most_different_tasks_says_what_far_is():
    rng = np.random.default_rng(3)
    task, X = np.repeat(np.arange(40), 10), rng.standard_normal((400, 1))
    level = rng.standard_normal(40)
    level[4] = 3.5  # more than the largest by chance, and yet not far
    y = level[task] + X[:, 0] + 0.5 * rng.standard_normal(400)
    diagnosis = ss.diagnose(ss.AdaptiveSpanRegressor().fit(X, y, task=task), X, y, task)
    assert diagnosis.most_different_in[0][1] > 2.6
    assert "by chance, and only a task beyond 5, in robust standard" in diagnosis.none_is_odd


def small_and_large_tasks(noise_of_large, noise_of_small):
    """Rows of 60 tasks of 12 rows and of 8 tasks of 300 rows, the last ones."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(68), np.where(np.arange(68) < 60, 12, 300))
    X, noise = rng.standard_normal((len(task), 1)), np.full(68, noise_of_small)
    noise[60:] = noise_of_large
    y = rng.standard_normal(68)[task] + X[:, 0] + noise[task] * rng.standard_normal(len(task))
    return X, y, task


@pytest.mark.parametrize("noise", ["shared", "per_task"])
def test_the_noise_of_most_rows_is_the_usual_one(noise):
    X, y, task = small_and_large_tasks(3.0, 1.0)
    model = ss.AdaptiveSpanRegressor(noise=noise).fit(X, y, task=task)
    assert ss.diagnose(model, X, y, task).outliers == []
    y[task == 67] += 9 * np.random.default_rng(1).standard_normal(300)
    diagnosis = ss.diagnose(model.fit(X, y, task=task), X, y, task)
    (misfit,) = diagnosis.misfits
    assert (misfit.task, misfit.what) == (67, "noise")
    assert 2.5 < misfit.typical < 3.5
    assert "Tasks that do not fit (1 of 68, with 9.6 % of the rows)" in str(diagnosis)
