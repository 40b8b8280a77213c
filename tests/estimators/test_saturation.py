"""No interval and no error is told where the fit leaves no rows to measure the noise by."""

import warnings

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import sharedspan as ss
from sharedspan.cli import main

UNKNOWN = "noise and the errors of new rows are unknown"


def one_row_each(n_tasks=200, n_features=3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_tasks, n_features))
    return X, X.sum(axis=1) + rng.normal(size=n_tasks), np.arange(n_tasks)


def as_many_coefficients_as_rows():
    X, y, _ = one_row_each(100, 1)
    return X, y, np.repeat(np.arange(50), 2)


def more_features_than_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 50))
    return X, X[:, 0] + rng.normal(size=20), np.repeat(np.arange(4), 5)


SATURATED = {
    "one row": (ss.SharedSpanRegressor(rank=1), one_row_each()),
    "two rows": (ss.SharedSpanRegressor(rank=1), as_many_coefficients_as_rows()),
    "own noise": (ss.SharedSpanRegressor(rank=1, noise="per_task"), one_row_each()),
    "wide": (ss.AdaptiveSpanRegressor(), more_features_than_rows()),
}


@pytest.mark.parametrize("case", SATURATED)
def test_a_fit_that_uses_up_its_rows_has_no_intervals(case):
    model, (X, y, task) = SATURATED[case]
    model.fit(X, y, task=task)
    for method in (
        lambda: model.predict(X, task, return_std=True),
        lambda: model.predict_interval(X, task),
        model.coef_interval,
    ):
        with pytest.raises(ValueError, match=UNKNOWN):
            method()
    assert np.isnan(model.coef_std_).all()
    assert np.isfinite(model.predict(X, task)).all()
    words = " ".join(str(model.summary()).split())
    assert UNKNOWN in words
    if model.shares != "population":
        assert np.isnan(model.noise_variance_).all()
        assert "Residual" not in words
        assert "fit AdaptiveSpanRegressor" in words


def test_a_saturated_fit_is_saved_loaded_diagnosed_and_passed_on(tmp_path):
    X, y, task = one_row_each()
    model = ss.SharedSpanRegressor(rank=1).fit(X, y, task=task)
    model.save(tmp_path / "m.span")
    loaded = ss.load(tmp_path / "m.span")
    with pytest.raises(ValueError, match=UNKNOWN):
        loaded.predict_interval(X, task)
    new = ss.NewTaskRegressor.from_model(loaded).fit(X[:9], y[:9], task=np.zeros(9))
    assert np.isfinite(new.noise_variance_).all()
    assert np.isfinite(new.predict_interval(X[:9], np.zeros(9))).all()


def test_one_row_of_each_task_still_has_intervals_if_the_mixed_model_pools_them():
    X, y, task = one_row_each()
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    low, high = model.predict_interval(X, task)
    assert 0.9 < np.mean((low < y) & (y < high)) < 0.99
    assert "only the sum of these two variances is known" in " ".join(str(model.summary()).split())


@pytest.mark.parametrize("estimator", [ss.PerTaskRegressor, ss.PooledRegressor])
def test_intercepts_that_fit_one_row_each_are_told(estimator):
    X, y, task = one_row_each()
    model = estimator().fit(X, y, task=task)
    assert "which its intercept fits exactly" in " ".join(str(model.summary()).split())
    twice = estimator().fit(np.vstack([X, X]), np.append(y, y), task=np.append(task, task))
    assert "fits exactly" not in " ".join(str(twice.summary()).split())


def test_a_random_intercept_of_one_row_is_refused_but_for_counts():
    X, y, task = one_row_each()
    table = pd.DataFrame({"g": task, "x": X[:, 0], "y": y, "n": np.rint(np.exp(X[:, 0]))})
    with pytest.raises(ValueError, match="random effects cannot be distinguished from noise"):
        ss.mixed("y ~ x + (1 | g)", table)
    counts = ss.mixed("n ~ x + (1 | g)", table, family="poisson")  # an excess of the variance
    assert "only the sum" not in str(counts.summary())


def test_a_perfect_fit_with_rows_to_spare_has_intervals_of_no_width():
    sim = ss.simulate(n_tasks=9, n_features=3, rank=1, n_samples=20, noise=0.0, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ss.SharedSpanRegressor(rank=1).fit(sim.X, sim.y, task=sim.task)
    low, high = model.predict_interval(sim.X, sim.task)
    assert np.abs(high - low).max() < 1e-5


def run(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.mark.parametrize("estimator", ["SharedSpanRegressor", "PooledRegressor"])
def test_the_commands_say_that_the_noise_is_unknown(estimator, tmp_path):
    X, y, task = one_row_each()
    table, model = tmp_path / "t.csv", tmp_path / "m.span"
    pd.DataFrame(X, columns=list("abc")).assign(g=task, y=y).to_csv(table, index=False)
    done = run("fit", table, "--task", "g", "--target", "y", "--estimator", estimator, "-o", model)
    assert done.exit_code == 0, done.output
    words = UNKNOWN if estimator == "SharedSpanRegressor" else "fits exactly"
    assert words in done.stdout
    assert "noise 0" not in done.stdout
    assert "noise nan" not in done.stdout
    done = run("predict", model, table, "--interval", 0.9, "-o", tmp_path / "p.csv")
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "p.csv").exists()
    done = run("report", model, "--data", table, "-o", tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert words in " ".join(page.split())
