"""Extremes end in the right answer, a warning or an error that names the reason."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import sharedspan as ss
from benchmarks.trust import extremes

ROWS = extremes.table(np.random.default_rng(0))
SHARE = {"shapes": 0.1, "sizes": 0.0}  # of the models, 0.15 where it is not given


@pytest.mark.parametrize("kind", extremes.KINDS)
def test_no_extreme_ends_in_a_wrong_answer_without_a_word(kind):
    share = SHARE.get(extremes.KINDS[kind].__name__, 0.15)
    found = list(extremes.outcomes(kind, share, seed=0))
    wrong = {name: result for name, result in found if result.ending == "wrong"}
    assert len(found) >= 5
    assert not wrong


# ---- faults that were found and mended -----------------------------------------------------------


@pytest.mark.parametrize("kind", [list, np.array, pd.Series], ids=["list", "objects", "Series"])
def test_labels_that_differ_by_zeros_at_their_end_are_different_tasks(kind):
    labels = [f"a{t // 2}" + "\0" * (t % 2) for t in ROWS.task]
    if kind is np.array:
        labels = np.array(labels, dtype=object)
    else:
        labels = kind(labels)
    model = ss.PerTaskRegressor().fit(ROWS.X, ROWS.y, labels)
    plain = ss.PerTaskRegressor().fit(ROWS.X, ROWS.y, ROWS.task)
    assert len(model.tasks_) == 8
    assert_allclose(model.predict(ROWS.X, labels), plain.predict(ROWS.X, ROWS.task))


def test_the_name_of_a_column_is_not_taken_as_the_label_of_all_rows():
    frame = pd.DataFrame(ROWS.X, columns=list("abcd")).assign(site=ROWS.task)
    for fit in (ss.PerTaskRegressor().fit, ss.PooledRegressor().partial_fit):
        with pytest.raises(ValueError, match="task_column='site'"):
            fit(frame, ROWS.y, "site")
    model = ss.PooledRegressor(task_column="site", unseen="mean").fit(frame, ROWS.y)
    with pytest.raises(ValueError, match="site"):
        model.predict(frame, "site")


def test_one_label_in_words_for_all_rows_of_a_fit_gets_a_warning():
    with pytest.warns(UserWarning, match="task='site' is one label, so all rows"):
        model = ss.PerTaskRegressor().fit(ROWS.X, ROWS.y, "site")
    assert model.tasks_.tolist() == ["site"]
    ss.NewTaskRegressor().fit(ROWS.X, ROWS.y, "a new task")
    ss.PerTaskRegressor().fit(ROWS.X[:1], ROWS.y[:1], "one row")


@pytest.mark.parametrize("size", [1e-315, 1e-310, 1e-200, 1e200, 1e307])
@pytest.mark.parametrize("name", extremes.REGRESSORS)
def test_responses_whose_squares_have_no_number_are_fitted_with_a_warning(name, size):
    if name == "PenalizedERMRegressor":
        pytest.skip("its penalty depends on the unit of y")
    make = extremes.equivariant(name, extremes.REGRESSORS[name])
    easy = extremes.quietly(make().fit, ROWS.X, ROWS.y, ROWS.task).predict(ROWS.X, ROWS.task)
    model = make()
    if name == "NewTaskRegressor":  # its factors hold no squares
        model.fit(ROWS.X, ROWS.y * size, ROWS.task)
    else:
        with pytest.warns(UserWarning, match="cannot represent its square"):
            model.fit(ROWS.X, ROWS.y * size, ROWS.task)
    assert_allclose(model.predict(ROWS.X, ROWS.task) / size, easy, atol=1e-5 * np.std(easy))


def test_values_near_the_largest_number_are_refused_in_words_for_new_tasks():
    with pytest.raises(ValueError, match=r"too large\. Divide them by a common factor"):
        ss.NewTaskRegressor().fit(ROWS.X, ROWS.y * (1.7e308 / np.abs(ROWS.y).max()), ROWS.task)


def test_coefficients_beyond_the_largest_number_are_refused_in_words():
    with pytest.raises(ValueError, match="beyond the largest number of double precision"):
        ss.PerTaskRegressor().fit(ROWS.X * 1e-200, ROWS.y * 1e200, ROWS.task)


def test_coefficients_below_the_smallest_number_get_a_warning():
    with pytest.warns(UserWarning, match=r"4 feature\(s\), such as x0, .* below the smallest"):
        ss.PerTaskRegressor().fit(ROWS.X * 1e200, ROWS.y * 1e-140, ROWS.task)


@pytest.mark.parametrize("given", [ss.SharedSpanRegressor(2), ss.SharedSpanRegressor])
def test_an_estimator_as_representation_is_refused_by_name(given):
    with pytest.raises(TypeError, match=r"a SharedSpanRegressor: .*from_model\(model\)"):
        ss.NewTaskRegressor(given).fit(ROWS.X, ROWS.y, ROWS.task)


def test_levels_of_a_curriculum_may_be_a_series():
    levels = {t: int(t > 3) for t in range(8)}
    fits = [
        ss.CurriculumRegressor(2, levels=given, random_state=0).fit(ROWS.X, ROWS.y, ROWS.task)
        for given in (levels, pd.Series(levels))
    ]
    assert np.array_equal(fits[0].coef_, fits[1].coef_)
    for given in (np.zeros(8), pd.DataFrame({"level": np.zeros(8)}), [0] * 8):
        with pytest.raises(ValueError, match=r"levels=.* dict\(zip\(tasks, levels\)\)"):
            ss.CurriculumRegressor(2, levels=given).fit(ROWS.X, ROWS.y, ROWS.task)
    twice = pd.Series(np.zeros(9), index=[*range(8), 7])
    with pytest.raises(ValueError, match="several levels for task 7"):
        ss.CurriculumRegressor(2, levels=twice).fit(ROWS.X, ROWS.y, ROWS.task)


@pytest.mark.parametrize("factor", [2.0**-60, 2.0**30, 2.0**60, 2.0**120])
def test_armul_does_not_depend_on_the_unit_of_the_responses(factor):
    fits = [
        ss.ARMULRegressor(2, penalty=1.0, random_state=0).fit(ROWS.X, ROWS.y * unit, ROWS.task)
        for unit in (1.0, factor)
    ]
    assert_allclose(fits[1].coef_ / factor, fits[0].coef_, rtol=1e-6, atol=1e-8)


def test_armul_selects_its_penalty_where_squares_have_no_number():
    fits = []
    for exponent in (40, 600):
        model = ss.ARMULRegressor(2, random_state=0)
        extremes.quietly(model.fit, ROWS.X, ROWS.y * 2.0**exponent, ROWS.task)
        fits.append(model.penalty_)
    assert fits[0] > 0.05
    assert fits[1] > 0.05  # the smallest, which a path of infinite losses would give


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**-10, 2.0**10])
def test_injected_noise_of_nsgd_follows_the_unit_of_the_responses(factor):
    options = {"solver": "nsgd", "max_iter": 400, "tail_average": True, "random_state": 0}
    fits = [
        ss.SharedSpanRegressor(2, **options).fit(ROWS.X, ROWS.y * unit, ROWS.task)
        for unit in (1.0, factor)
    ]
    assert_allclose(fits[1].coef_ / factor, fits[0].coef_, rtol=1e-6, atol=1e-8)


def test_a_solver_that_diverges_says_so():
    model = ss.SharedSpanRegressor(2, solver="nsgd", solver_options={"step_size": 10.0})
    with pytest.raises(ValueError, match=r"solver='nsgd' diverged: .* Lower step_size"):
        extremes.quietly(model.set_params(max_iter=300).fit, ROWS.X, ROWS.y, ROWS.task)


@pytest.mark.parametrize("exponent", [6, 8, 10, 12])
@pytest.mark.parametrize("name", ["SharedSpanRegressor", "SpectralRegressor", "adaptive"])
def test_small_directions_of_the_features_are_not_lost_without_a_word(name, exponent):
    rows = extremes.with_condition(ROWS, np.random.default_rng(1), 10.0**exponent)
    make = extremes.REGRESSORS.get(name, ss.AdaptiveSpanRegressor)
    with pytest.warns(UserWarning, match="nearly linear combinations of others"):
        make().fit(rows.X, rows.y, rows.task)


@pytest.mark.parametrize("level", [0.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_exactly_collinear_features_get_no_warning(level, dtype):
    X = (ROWS.X + level).astype(dtype)
    X = np.column_stack([X, X[:, 0] + X[:, 1], X[:, 2], np.ones(len(X), dtype=dtype)])
    assert X.dtype == dtype
    ss.SharedSpanRegressor(2, random_state=0).fit(X, ROWS.y, ROWS.task)


def test_new_tasks_do_not_lose_small_directions_without_a_word():
    rows = extremes.with_condition(ROWS, np.random.default_rng(1), 1e12)
    with pytest.warns(UserWarning, match="counts as not at all"):
        extremes.new_tasks().fit(rows.X, rows.y, rows.task)
