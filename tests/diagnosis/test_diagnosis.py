"""Diagnoses of fitted models: known answers, and advice only if there is a cause."""

import datetime
import html

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import sharedspan as ss
from sharedspan.diagnosis.holdout_errors import _refits
from sharedspan.diagnosis.model_view import ModelView

COMMON = {"n_tasks": 60, "n_features": 12, "rank": 2, "n_samples": 50, "noise": 0.3}


def span(sim, rank=2, **options):
    model = ss.SharedSpanRegressor(rank=rank, random_state=0, **options)
    return model.fit(sim.X, sim.y, task=sim.task)


def said(diagnosis, words):
    return any(words in sentence for sentence in diagnosis.advice)


@pytest.fixture(scope="module")
def clean():
    return ss.simulate(**COMMON, condition_number=3, random_state=0)


@pytest.fixture(scope="module")
def spoiled():
    return ss.simulate(**COMMON, condition_number=1.5, outliers=0.1, random_state=1)


@pytest.fixture(scope="module")
def adaptive(clean):
    return ss.AdaptiveSpanRegressor().fit(clean.X, clean.y, task=clean.task)


@pytest.fixture(scope="module")
def robust(spoiled):
    return ss.AdaptiveSpanRegressor().fit(spoiled.X, spoiled.y, task=spoiled.task)


def test_sizes_noise_and_condition_number_are_those_of_the_simulation(clean, adaptive):
    spread = clean.coef - clean.coef.mean(axis=0)
    s = np.linalg.svd(spread, compute_uv=False)
    for model, kappa in ((span(clean), 3.0), (adaptive, s[0] / s[1])):
        for rows in ((), (clean.X, clean.y, clean.task)):
            diagnosis = ss.diagnose(model, *rows)
            assert (diagnosis.n_tasks, diagnosis.n_features, diagnosis.rank) == (60, 12, 2)
            assert_allclose(diagnosis.condition_number, kappa, rtol=0.1)
            assert_allclose(diagnosis.noise, 0.3, rtol=0.05)
            assert_allclose(diagnosis.span_share, 1.0, atol=0.01)
            assert diagnosis.outliers == []
            assert diagnosis.advice == []
            assert "Advice" not in str(diagnosis)


def test_rows_give_signal_sizes_and_fit(clean):
    diagnosis = ss.diagnose(span(clean), clean.X, clean.y, clean.task)
    signal = np.mean(np.sum(clean.coef**2, axis=1))
    assert_allclose(diagnosis.signal_to_noise, signal / 0.3**2, rtol=0.15)
    assert set(diagnosis.rows_per_task.values()) == {50}
    rows = clean.task == 7
    fit = span(clean).predict(clean.X[rows], task=clean.task[rows])
    y = clean.y[rows]
    expected = 1 - np.sum((y - fit) ** 2) / np.sum((y - y.mean()) ** 2)
    assert_allclose(diagnosis.task_r2[7], expected, rtol=1e-8)
    assert diagnosis.span_share_by == "rows"
    assert ss.diagnose(span(clean)).span_share_by == "construction"


def test_features_alone_do_without_responses(clean):
    diagnosis = ss.diagnose(span(clean), clean.X, task=clean.task)
    assert diagnosis.task_r2 == {}
    assert diagnosis.isometry > 0
    assert diagnosis.signal_to_noise > 0
    with pytest.raises(ValueError, match="without X"):
        ss.diagnose(span(clean), y=clean.y)


def test_isometry_names_the_task_whose_features_are_stretched(clean):
    X = clean.X.copy()
    X[clean.task == 11] *= 3.0
    y = np.einsum("ij,ij->i", X, clean.coef[clean.task])
    y += 0.3 * np.random.default_rng(0).standard_normal(len(y))
    model = ss.SharedSpanRegressor(rank=2, random_state=0).fit(X, y, task=clean.task)
    diagnosis = ss.diagnose(model, X, y, clean.task)
    assert diagnosis.isometry_task == 11
    assert 5 < diagnosis.isometry < 14  # 9 - 1, and chance
    plain = ss.diagnose(span(clean), clean.X, clean.y, clean.task)
    assert plain.isometry < 2 * plain.isometry_by_chance


def test_isometry_is_zero_for_equal_designs():
    rng = np.random.default_rng(0)
    X = np.tile(rng.standard_normal((20, 5)), (10, 1))
    task = np.repeat(np.arange(10), 20)
    coef = rng.standard_normal((10, 2)) @ rng.standard_normal((2, 5))
    y = np.einsum("ij,ij->i", X, coef[task]) + 0.1 * rng.standard_normal(200)
    model = ss.SharedSpanRegressor(rank=2, random_state=0).fit(X, y, task=task)
    assert_allclose(ss.diagnose(model, X, y, task).isometry, 0, atol=1e-8)


@pytest.mark.parametrize("with_rows", [False, True])
def test_outliers_are_named_exactly(spoiled, robust, with_rows):
    rows = (spoiled.X, spoiled.y, spoiled.task) if with_rows else ()
    diagnosis = ss.diagnose(robust, *rows)
    assert sorted(diagnosis.outliers) == np.flatnonzero(spoiled.is_outlier).tolist()
    assert {misfit.task for misfit in diagnosis.misfits} == set(diagnosis.outliers)
    assert said(diagnosis, "not fit")
    assert str(diagnosis.outliers[0]) in diagnosis.advice[0]
    size = [misfit.surprise for misfit in diagnosis.misfits]
    assert with_rows or size == sorted(size, reverse=True)
    share = ", with 10 % of the rows" if with_rows else ""
    assert f"Tasks that do not fit (6 of 60{share})" in str(diagnosis)


def test_outliers_show_in_the_residuals_of_a_plain_span(spoiled):
    model = span(spoiled)
    assert ss.diagnose(model).outliers == []  # such a model has no information on outliers
    diagnosis = ss.diagnose(model, spoiled.X, spoiled.y, spoiled.task)
    # An outlier may have distorted the span, so not all of them need be found.
    assert len(diagnosis.outliers) >= 4
    assert spoiled.is_outlier[diagnosis.outliers].all()


def test_a_noisy_task_is_named_for_its_noise():
    noise = np.full(60, 0.3)
    noise[17] = 3.0
    sim = ss.simulate(**(COMMON | {"noise": noise}), random_state=0)
    by_rows = ss.diagnose(span(sim), sim.X, sim.y, sim.task)
    by_fit = ss.diagnose(span(sim, noise="per_task"))
    for diagnosis in (by_rows, by_fit):
        assert diagnosis.outliers == [17]
        assert diagnosis.misfits[0].what == "noise"
        assert_allclose(diagnosis.misfits[0].value, 3.0, rtol=0.3)


@pytest.mark.parametrize("name", ["text", "tuple", "date", "mixed"])
def test_labels_may_be_of_any_kind(spoiled, robust, name):
    day = datetime.date(2020, 1, 1)
    rename = {
        "text": lambda t: f"school {t:02d}",
        "tuple": lambda t: ("a", t),
        "date": lambda t: day + datetime.timedelta(days=t),
        "mixed": lambda t: t if t % 2 else f"t{t}",
    }[name]
    labels = np.empty(len(spoiled.task), dtype=object)
    labels[:] = [rename(int(t)) for t in spoiled.task]
    model = ss.AdaptiveSpanRegressor().fit(spoiled.X, spoiled.y, task=labels)
    diagnosis = ss.diagnose(model, spoiled.X, spoiled.y, labels)
    assert set(diagnosis.outliers) == {rename(int(t)) for t in np.flatnonzero(spoiled.is_outlier)}
    assert str(diagnosis.outliers[0]) in str(diagnosis)


def test_frames_and_lists_say_the_same_as_arrays(clean):
    pd = pytest.importorskip("pandas")
    expected = ss.diagnose(span(clean), clean.X, clean.y, clean.task)
    frame = pd.DataFrame(clean.X, columns=[f"f{j}" for j in range(12)]).assign(unit=clean.task)
    model = ss.SharedSpanRegressor(rank=2, random_state=0, task_column="unit").fit(frame, clean.y)
    order = np.random.default_rng(0).permutation(len(clean.y))
    shuffled = ss.diagnose(model, frame.iloc[order], clean.y[order])
    blocks = (
        [clean.X[clean.task == t] for t in range(60)],
        [clean.y[clean.task == t] for t in range(60)],
    )
    listed = ss.diagnose(ss.SharedSpanRegressor(rank=2, random_state=0).fit(*blocks), *blocks)
    for diagnosis in (shuffled, listed):
        for name in ("condition_number", "span_share", "noise", "signal_to_noise", "isometry"):
            assert_allclose(getattr(diagnosis, name), getattr(expected, name), rtol=1e-6)
    assert_allclose(list(shuffled.task_r2.values()), list(expected.task_r2.values()), rtol=1e-6)


def test_units_of_features_do_not_matter(clean, adaptive):
    scale = np.geomspace(1e-4, 1e4, 12)
    other = ss.AdaptiveSpanRegressor().fit(clean.X * scale, clean.y, task=clean.task)
    a, b = ss.diagnose(adaptive), ss.diagnose(other)
    assert_allclose(b.condition_number, a.condition_number, rtol=0.02)
    plain = ss.SharedSpanRegressor(rank=2, random_state=0)
    plain.fit(clean.X * scale, clean.y, task=clean.task)
    assert_allclose(
        ss.diagnose(plain).condition_number, ss.diagnose(span(clean)).condition_number, rtol=1e-3
    )


def test_without_scales_of_the_features_units_are_said_to_matter(clean):
    X = clean.X * [1e-4, *np.ones(11)]
    model = ss.MomentRegressor(rank=2).fit(X, clean.y, task=clean.task)
    diagnosis = ss.diagnose(model)
    assert "in units of the features" in str(diagnosis)
    assert diagnosis.condition_number > 100
    assert not said(diagnosis, "times weaker")
    with_rows = ss.diagnose(model, X, clean.y, clean.task)
    assert "in units of the features" not in str(with_rows)
    assert with_rows.condition_number < 10


@pytest.mark.parametrize("kind", ["SharedSpan", "AdaptiveSpan"])
@pytest.mark.parametrize("with_rows", [True, False])
def test_features_whose_squares_do_not_exist_are_diagnosed(clean, kind, with_rows):
    X = clean.X * np.array([1e200, 1e-200, *np.ones(10)])
    model = getattr(ss, f"{kind}Regressor")(rank=2)
    model.fit(X, clean.y, task=clean.task)
    diagnosis = ss.diagnose(model, *((X, clean.y, clean.task) if with_rows else ()))
    # Without rows the units of the features cannot be removed.
    if with_rows:
        assert diagnosis.condition_number < 100
    else:
        assert diagnosis.condition_number == np.inf
    assert diagnosis.outliers == []


def test_a_weak_direction_is_pointed_out(clean):
    sim = ss.simulate(**(COMMON | {"noise": 0.05}), condition_number=20, random_state=0)
    assert said(ss.diagnose(span(sim)), "times weaker")
    assert not said(ss.diagnose(span(clean)), "times weaker")


def test_variation_off_the_span_is_measured_and_pointed_out():
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(40), 60)
    X = rng.standard_normal((len(task), 10))
    coef = rng.standard_normal((40, 10))  # nothing in common
    y = np.einsum("ij,ij->i", X, coef[task]) + 0.3 * rng.standard_normal(len(task))
    model = ss.SharedSpanRegressor(rank=2, random_state=0).fit(X, y, task=task)
    diagnosis = ss.diagnose(model, X, y, task)
    s = np.linalg.svd(coef - coef.mean(axis=0), compute_uv=False)
    assert_allclose(diagnosis.span_share, np.sum(s[:2] ** 2) / np.sum(s**2), atol=0.05)
    assert said(diagnosis, "use AdaptiveSpanRegressor")
    assert diagnosis.outliers == []
    everything = ss.SharedSpanRegressor(random_state=0).fit(X, y, task=task)
    assert everything.rank_ == 10
    assert said(ss.diagnose(everything), "largest that was tried")


def test_equal_slopes_are_sent_to_pooled_regression_only_if_that_is_the_same(clean, adaptive):
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(40), 30)
    X = rng.standard_normal((len(task), 8))
    y = X @ np.ones(8) + rng.standard_normal(40)[task] + 0.5 * rng.standard_normal(len(task))
    model = ss.SharedSpanRegressor(rank=1, random_state=0).fit(X, y, task=task)
    assert said(ss.diagnose(model), "PooledRegressor, with one slope vector for all")
    model = ss.SharedSpanRegressor(rank=1, random_state=0, unseen="mean").fit(X, y, task=task)
    assert not said(ss.diagnose(model), "PooledRegressor")  # which refuses tasks it has not seen
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    assert said(ss.diagnose(model), "what differs is their level")
    assert not said(ss.diagnose(model), "PooledRegressor")
    pooled = ss.PooledRegressor().fit(X, y, task=task)
    diagnosis = ss.diagnose(pooled, X, y, task)
    assert diagnosis.advice == []
    assert diagnosis.rank is None
    assert_allclose(diagnosis.noise, 0.5, rtol=0.05)
    assert not said(ss.diagnose(adaptive), "PooledRegressor")


@pytest.mark.parametrize("with_rows", [False, True])
def test_shrunk_levels_of_small_tasks_are_not_said_to_be_those_of_pooled_regression(with_rows):
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(200), 2)
    X = rng.standard_normal((400, 3))
    X[:, 2] = X[::2, 2].repeat(2)  # a feature of the tasks
    y = X.sum(axis=1) + (0.5 * rng.standard_normal(200))[task] + 0.6 * rng.standard_normal(400)
    rows = (X, y, task) if with_rows else ()
    diagnosis = ss.diagnose(ss.AdaptiveSpanRegressor().fit(X, y, task=task), *rows)
    assert said(diagnosis, "what differs is their level")
    assert not said(diagnosis, "PooledRegressor")


@pytest.mark.parametrize("with_rows", [False, True])
def test_tasks_of_one_row_are_not_said_to_have_equal_slopes(with_rows):
    rng = np.random.default_rng(0)
    X, task = rng.standard_normal((300, 3)), np.arange(300)
    y = X.sum(axis=1) + rng.standard_normal(300)
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    diagnosis = ss.diagnose(model, *((X, y, task) if with_rows else ()))
    assert said(diagnosis, "No task has more than one row")
    assert not said(diagnosis, "slopes")


def test_the_noise_of_a_diagnosis_is_that_of_the_summary():
    noise = np.geomspace(0.1, 2.0, 60)
    sim = ss.simulate(**(COMMON | {"noise": noise}), random_state=0)
    for model in (span(sim, noise="per_task"), ss.AdaptiveSpanRegressor(noise="per_task")):
        model.fit(sim.X, sim.y, task=sim.task)
        assert_allclose(ss.diagnose(model).noise, model.summary().sigma.value, rtol=1e-12)


# Unusual tasks


def slopes_around_one(seed, n_features, odd):
    """Rows of 60 tasks whose first slopes are 1 +- 0.1, but for the first few tasks -1.5."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(60), 10)
    X, slopes = rng.standard_normal((600, n_features)), 1 + 0.1 * rng.standard_normal(60)
    slopes[:odd] = -1.5
    y = X[:, 0] * slopes[task] + rng.standard_normal(60)[task] + 0.5 * rng.standard_normal(600)
    return X, y, task


@pytest.mark.parametrize("n_features", [1, 3])
@pytest.mark.parametrize("make", [ss.AdaptiveSpanRegressor, lambda: ss.SharedSpanRegressor(rank=1)],
                         ids=["adaptive", "span"])  # fmt: skip
def test_a_few_tasks_far_along_a_direction_are_flagged_and_nothing_in_clean_data(make, n_features):
    for seed in range(10):
        rows = slopes_around_one(seed, n_features, 3)
        diagnosis = ss.diagnose(make().fit(*rows[:2], task=rows[2]), *rows)
        assert sorted(diagnosis.outliers) == [0, 1, 2]
        assert all("far from" in m.reason or "outside" in m.reason for m in diagnosis.misfits)
        rows = slopes_around_one(seed, n_features, 0)
        clean = ss.diagnose(make().fit(*rows[:2], task=rows[2]), *rows)
        assert len(clean.outliers) <= 1


def test_a_task_far_along_a_direction_has_a_reason_and_advice_in_words():
    rows = slopes_around_one(0, 3, 3)
    diagnosis = ss.diagnose(ss.SharedSpanRegressor(rank=1).fit(*rows[:2], task=rows[2]), *rows)
    assert "far from the others along a shared direction, most in x0" in str(diagnosis)
    assert said(diagnosis, "are far from the others in how they respond to features")
    assert not said(diagnosis, "do not fit")


def test_if_no_task_is_odd_the_most_different_ones_are_named():
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(50), 20)
    X = 100 + rng.standard_normal((1000, 1))
    level, slope = 0.4 * rng.uniform(-1, 1, 50), 2 + 0.4 * rng.uniform(-1, 1, 50)
    level[[7, 8]], slope[9] = (1.0, -0.9), 2.8
    y = level[task] + slope[task] * (X[:, 0] - 100) + 0.2 * rng.standard_normal(1000)
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    for rows in ((), (X, y, task)):
        diagnosis = ss.diagnose(model, *rows)
        assert diagnosis.outliers == []
        assert set(diagnosis.most_different) == {7, 8, 9}
        text = " ".join(str(diagnosis).split())
        assert "No task is far from what the model expects of it." in text
        named = dict(zip(diagnosis.most_different, diagnosis.most_different_in, strict=True))
        assert [named[t][0] for t in (7, 8, 9)] == ["level", "level", "slope of x0"]
        assert_allclose([named[t][1] for t in (7, 8)], level[[7, 8]] / level.std(), atol=0.4)
        assert "7 (level +" in text
        assert "8 (level −" in text
        assert "9 (slope of x0 +" in text
        words = "in standard deviations between tasks: among 50 tasks the largest is about 2.5 by"
        assert words in text
        assert "(slope of x0 +" in diagnosis._repr_html_()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_too_few_rows_are_pointed_out(clean):
    sizes = np.full(60, 50)
    sizes[:2] = 2
    sim = ss.simulate(**(COMMON | {"n_samples": sizes}), random_state=0)
    diagnosis = ss.diagnose(span(sim), sim.X, sim.y, sim.task)
    assert said(diagnosis, "2 of 60 tasks have fewer than the 4 rows")
    thin = ss.simulate(**(COMMON | {"n_samples": 5}), random_state=0)
    assert said(ss.diagnose(span(thin), thin.X, thin.y, thin.task), "rows per parameter of a span")


def test_features_that_do_not_vary_in_a_task_are_pointed_out(clean):
    X = clean.X.copy()
    rows = clean.task == 5
    X[rows] = X[rows].mean(axis=0) + 0.01 * X[rows]
    model = ss.AdaptiveSpanRegressor().fit(X, clean.y, task=clean.task)
    assert said(ss.diagnose(model, X, clean.y, clean.task), "task 5 hardly vary")


def test_unequal_noise_is_pointed_out_unless_it_was_modelled():
    noise = np.geomspace(0.1, 2.0, 60)
    sim = ss.simulate(**(COMMON | {"noise": noise}), random_state=0)
    rows = (sim.X, sim.y, sim.task)
    assert said(ss.diagnose(span(sim), *rows), "per_task")
    assert not said(ss.diagnose(span(sim, noise="per_task"), *rows), "per_task")


def test_a_fit_that_did_not_converge_is_pointed_out(clean):
    with pytest.warns(ConvergenceWarning):
        model = span(clean, max_iter=3)
    assert said(ss.diagnose(model), "did not converge")


def test_every_estimator_can_be_diagnosed(clean):
    few = clean.task < 12
    X, y, task = clean.X[few], clean.y[few], clean.task[few]
    for name in (
        "PooledRegressor",
        "PerTaskRegressor",
        "MomentRegressor",
        "SpectralRegressor",
        "ARMULRegressor",
        "PenalizedERMRegressor",
        "CurriculumRegressor",
    ):
        model = getattr(ss, name)().fit(X, y, task=task)
        assert str(ss.diagnose(model)).startswith(name)
        assert "R² within tasks" in str(ss.diagnose(model, X, y, task))
    new = ss.NewTaskRegressor.from_model(span(clean)).fit(X, y, task=task)
    assert ss.diagnose(new, X, y, task).rank == 2


def test_rows_of_other_tasks_are_passed_over(clean):
    model = ss.AdaptiveSpanRegressor(unseen="mean").fit(clean.X, clean.y, task=clean.task)
    labels = clean.task.copy()
    labels[labels == 3] = 99
    diagnosis = ss.diagnose(model, clean.X, clean.y, labels)
    assert 3 not in diagnosis.rows_per_task
    assert 99 not in diagnosis.rows_per_task
    with pytest.raises(ValueError, match="No row"):
        ss.diagnose(model, clean.X[:5], clean.y[:5], [99] * 5)


def test_a_model_must_be_fitted_and_of_this_package(clean):
    from sklearn.linear_model import LinearRegression

    with pytest.raises(NotFittedError):
        ss.diagnose(ss.SharedSpanRegressor())
    with pytest.raises(TypeError, match="LinearRegression"):
        ss.diagnose(LinearRegression().fit(clean.X, clean.y))
    with pytest.raises(ValueError, match="task"):
        ss.diagnose(span(clean), clean.X, clean.y)


# Collinear features


@pytest.fixture(scope="module")
def dummies():
    """Tasks that differ along one feature; three others are shares that sum to nearly one."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(60), 40)
    kind = rng.integers(0, 3, len(task))
    X = np.column_stack([rng.standard_normal((len(task), 2)), np.eye(3)[kind]])
    X[:5, 2:] = 0.0  # of unknown kind
    slopes = np.zeros((60, 5))
    slopes[:, 0] = 2 + 0.4 * rng.standard_normal(60)
    slopes[:, 2:] = [1.0, 0.0, -1.0]
    y = np.einsum("ij,ij->i", X, slopes[task]) + rng.standard_normal(len(task))
    return X, y, task


def test_collinear_noise_does_not_hide_that_slopes_vary(dummies):
    X, y, task = dummies
    model = ss.SharedSpanRegressor(rank=1, random_state=0).fit(X, y, task=task)
    assert np.sum(model.coef_std_**2) > np.sum((model.coef_ - model.coef_.mean(axis=0)) ** 2)
    assert not said(ss.diagnose(model), "hardly vary between tasks")


def test_collinear_features_are_named(dummies):
    X, y, task = dummies
    for model in (ss.SharedSpanRegressor(rank=1, random_state=0), ss.PerTaskRegressor()):
        diagnosis = ss.diagnose(model.fit(X, y, task=task))
        assert said(diagnosis, "coefficients of x2, x3 and x4 cannot be distinguished")
    without = ss.PerTaskRegressor().fit(X[:, :4], y, task=task)
    assert not said(ss.diagnose(without), "cannot be distinguished")
    few = ss.PerTaskRegressor().fit(np.random.default_rng(0).random((20, 40)), y[:20], task[:20])
    assert said(ss.diagnose(few), "do not identify the coefficients of 40 of the 40 features")


@pytest.mark.parametrize("rounding", [0.0, 1e-3])
def test_a_repeated_feature_changes_no_number_of_the_diagnosis(clean, rounding):
    rng = np.random.default_rng(0)
    near = 3 * clean.X[:, :1] + rounding * rng.standard_normal((len(clean.y), 1))
    diagnosis = ss.diagnose(span(clean), clean.X, clean.y, clean.task)
    X = np.column_stack([clean.X, near])
    model = ss.SharedSpanRegressor(rank=2, random_state=0).fit(X, clean.y, task=clean.task)
    other = ss.diagnose(model, X, clean.y, clean.task)
    for name in ("condition_number", "span_share", "noise", "signal_to_noise"):
        assert_allclose(
            getattr(other, name), getattr(diagnosis, name), rtol=0.05 if rounding else 1e-6
        )
    assert not said(other, "times weaker")


def test_ridges_that_nearly_interpolate_are_not_called_noisy():
    rng = np.random.default_rng(0)
    sizes = np.r_[np.full(30, 60), np.full(10, 14)]
    task = np.repeat(np.arange(40), sizes)
    X = rng.standard_normal((len(task), 12))
    y = X @ np.ones(12) + rng.standard_normal(len(task))
    model = ss.PerTaskRegressor().fit(X, y, task=task)
    assert ss.diagnose(model, X, y, task).outliers == []


def test_ridges_pay_for_what_they_use_alone():
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(40), 20)
    X, y = rng.standard_normal((800, 12)), rng.standard_normal(800)  # nothing to predict
    model = ss.PerTaskRegressor().fit(X, y, task=task)
    assert_allclose(ss.diagnose(model, X, y, task).noise, 1.0, rtol=0.1)


def test_what_is_odd_off_the_span_is_larger_than_what_is_typical():
    noise = np.full(60, 1.0)
    noise[7] = 0.01  # so small that the effect outside the span is visible
    sim = ss.simulate(**(COMMON | {"noise": noise}), random_state=0)
    y = sim.y + np.where(sim.task == 7, 0.2 * sim.X[:, 5], 0.0)
    model = ss.SharedSpanRegressor(rank=2, random_state=0).fit(sim.X, y, task=sim.task)
    diagnosis = ss.diagnose(model, sim.X, y, sim.task)
    odd = [misfit for misfit in diagnosis.misfits if misfit.what == "off the span"]
    assert [misfit.task for misfit in odd] == [7]
    assert odd[0].value > 5 * odd[0].typical
    assert_allclose(odd[0].typical, 1.0, atol=0.3)
    assert "over its noise" in str(diagnosis)


def test_a_prior_on_all_slopes_is_no_span():
    sim = ss.simulate(n_tasks=30, n_features=5, rank=2, n_samples=40, random_state=0)
    known = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
    new = ss.NewTaskRegressor.from_model(known).fit(sim.X, sim.y, task=sim.task)
    diagnosis = ss.diagnose(new, sim.X, sim.y, task=sim.task)
    assert (diagnosis.rank, diagnosis.span_share, diagnosis.isometry) == (None, None, None)
    assert not any("span" in said or "rank" in said for said in diagnosis.advice)


def test_held_out_errors_are_those_of_the_model_with_the_columns_it_lets_vary(rng):
    T, n, d = 30, 20, 20
    V = np.tile(rng.standard_normal(d), (T, 1))
    V[:, [2, 5]] += rng.standard_normal((T, 2))
    task, X = np.repeat(np.arange(T), n), rng.standard_normal((T * n, d))
    y = np.einsum("ij,ij->i", X, V[task]) + rng.standard_normal(T * n)
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(d)])
    for options in ({}, {"varying": ["c2"]}):
        model = ss.AdaptiveSpanRegressor(**options).fit(frame, y, task=task)
        assert len(model.varying_) < d
        again = _refits(ModelView(model, frame, y, task))["model"]().fit(X, y, task=task)
        places = [list(model.coef_names_).index(name) for name in model.varying_]
        assert np.flatnonzero(again.slope_std_ > 0).tolist() == places


@pytest.mark.parametrize("kind", [ss.AdaptiveSpanRegressor, ss.SharedSpanRegressor])
def test_summary_diagnosis_and_report_describe_the_same_directions(kind, tmp_path):
    rng = np.random.default_rng(1)
    task, scale = np.repeat(np.arange(40), 30), np.array([1e3, 1.0, 1e-2, 1.0, 5.0])
    X = rng.standard_normal((len(task), 5))
    X[:, 1] += 0.5 * X[:, 0]
    V = 1 + rng.standard_normal((40, 1)) @ np.array([[0.8, -0.5, 0.3, 0.0, 0.1]])
    y = np.einsum("ij,ij->i", X, V[task]) + 0.3 * rng.standard_normal(len(task))
    rows = X * scale, y, task
    model = kind(rank=1, random_state=0).fit(X * scale, y, task=task)
    directions, names = ModelView(model).directions, model.coef_names_
    sentences = directions.sentences(names)
    assert sentences == ss.diagnose(model).directions == ss.diagnose(model, *rows).directions
    assert all(sentence in " ".join(str(model.summary()).split()) for sentence in sentences)
    assert sentences[-1] == "Numbers are coefficients per standard deviation of the feature."
    for f in directions.leading(0):
        assert f"{names[f]} ({directions.loadings[f, 0]:+.3g})" in sentences[0]
    page = html.unescape(ss.write_report(model, tmp_path / "r.html", *rows).read_text("utf-8"))
    assert sentences[0].split(": tasks ")[1] in page


def test_the_summary_says_how_the_noise_differs_between_tasks():
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(60), 20)
    X, deviation = rng.standard_normal((1200, 2)), np.exp(rng.standard_normal(60))
    y = X @ [1.0, 2.0] + deviation[task] * rng.standard_normal(1200)
    model = ss.AdaptiveSpanRegressor(noise="per_task").fit(X, y, task=task)
    low, median, high = np.sqrt(np.quantile(model.noise_variance_, [0, 0.5, 1]))
    text = " ".join(str(model.summary()).split())
    assert f"standard deviation is {low:.3g} to {high:.3g}, with median {median:.3g}" in text
    shared = ss.AdaptiveSpanRegressor(noise="shared").fit(X, y, task=task)
    assert "noise differs" not in str(shared.summary())
