"""Bad input raises an error with a remedy, and never leaves a fitted model behind."""

import copy
import datetime
import functools
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

import sharedspan as ss

MODELS = {
    "rank given": lambda **kw: ss.SharedSpanRegressor(**{"rank": 2, "random_state": 0, **kw}),
    "rank auto": lambda **kw: ss.SharedSpanRegressor(random_state=0, **kw),
    "adaptive": lambda **kw: ss.AdaptiveSpanRegressor(**{"unseen": "error", **kw}),
    "pooled": ss.PooledRegressor,
    "per task": ss.PerTaskRegressor,
}
ADVICE = (
    r"(?i)\b(give|drop|fill|use|leave|encode|pass|fit|reshape|remove|must be|expected|expecting"
    r"|required|requires)\b"
)
RAW = (  # messages of numpy, pandas and Python for input that was not validated
    r"ambiguous|broadcast|ufunc|out of bounds|unsupported operand|unhashable type|not callable"
    r"|zero-dimensional|math domain"
)

SIM = ss.simulate(
    n_tasks=5, n_features=3, rank=2, n_samples=8, noise=0.1, intercept=1.0, random_state=0
)
X, Y, TASK = SIM.X, SIM.y, SIM.task
FRAME = pd.DataFrame(X, columns=["age", "bmi", "dose"]).assign(site=TASK)
PL_FRAME = pl.DataFrame({name: FRAME[name].to_numpy() for name in FRAME})
BLOCKS, TARGETS = np.split(X, 5), np.split(Y, 5)


@pytest.fixture(params=MODELS)
def make(request):
    return MODELS[request.param]


def put(values, where, value, dtype=None):
    values = np.array(values, dtype=dtype)
    values[where] = value
    return values


def objects(values):
    out = np.empty(len(values), dtype=object)
    out[:] = list(values)
    return out


def labels_with(value):
    return put(objects(TASK), slice(5, 6), objects([value]))


def given(X=X, y=Y, task=TASK, sample_weight=None):
    return {"X": X, "y": y, "task": task, "sample_weight": sample_weight}


def framed(y=Y, task=None, table=FRAME, **columns):
    if isinstance(table, pl.DataFrame):
        return given(table.with_columns(**columns), y, task)
    return given(table.assign(**columns), y, task)


def assert_helpful(error, *patterns):
    message = str(error.value)
    for pattern in patterns:
        assert re.search(pattern, message), message
    assert re.search(ADVICE, message), f"contains no remedy: {message}"
    assert not re.search(RAW, message), f"does not name the input: {message}"


def assert_unfitted(model):
    with pytest.raises(NotFittedError):
        check_is_fitted(model)
    assert not [name for name in vars(model) if name.endswith("_")]


@functools.cache
def fitted_before(kind):
    return kind(**{"rank": 2} if kind is ss.SharedSpanRegressor else {}).fit(X, Y, TASK)


def assert_fit_refuses(model, arguments, error, *patterns):
    """With a new model, and with a model that has been fitted before."""
    fitted = copy.deepcopy(fitted_before(type(model))).set_params(**model.get_params())
    for candidate in (model, fitted):
        with pytest.raises(error) as caught:
            candidate.fit(**arguments)
        assert_helpful(caught, *patterns)
        assert_unfitted(candidate)


NOT_FINITE = {
    "NaN in X": (given(put(X, (4, 1), np.nan)), "X", "NaN", "row 4", "column.*1"),
    "infinity in X": (given(put(X, (39, 2), np.inf)), "X", "infinity", "row 39", "column.*2"),
    "minus infinity in X": (given(put(X, (0, 0), -np.inf)), "X", "infinity", "row 0", "column.*0"),
    "NaN in float32 X": (
        given(put(X, (4, 1), np.nan, np.float32)), "X", "NaN", "row 4", "column.*1",
    ),
    "None in object X": (given(put(X, (4, 1), None, object)), "X", "NaN", "row 4", "column.*1"),
    "NaN in y": (given(y=put(Y, 7, np.nan)), "y", "NaN", "row 7"),
    "infinity in y": (given(y=put(Y, 7, -np.inf)), "y", "infinity", "row 7"),
    "None in object y": (given(y=put(Y, 7, None, object)), "y", "NaN", "row 7"),
    "masked value in X": (given(np.ma.masked_array(X, X[4, 1] == X)), "X", "mask|NaN", "row 4"),
    "masked value in y": (given(y=np.ma.masked_array(Y, Y[7] == Y)), "y", "mask|NaN", "row 7"),
    "NaN in weights": (
        given(sample_weight=put(np.ones(40), 3, np.nan)), "sample_weight", "NaN", "row 3",
    ),
    "infinity in weights": (
        given(sample_weight=put(np.ones(40), 3, np.inf)), "sample_weight", "infinity", "row 3",
    ),
    "negative weight": (
        given(sample_weight=put(np.ones(40), 3, -0.5)), "sample_weight", "negative", "row 3",
        r"-0\.5",
    ),
    "all weights zero": (given(sample_weight=np.zeros(40)), "sample_weight", "zero", "every row"),
    "NaN in a list": (
        given([put(b, (3, 1), np.nan) if i == 2 else b for i, b in enumerate(BLOCKS)], TARGETS,
              None),
        "X", "NaN", "column.*1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_FINITE)
def test_values_that_cannot_be_fitted_are_refused_with_their_place(make, case):
    arguments, *patterns = NOT_FINITE[case]
    assert_fit_refuses(make(), arguments, ValueError, *patterns)


HOLES = {
    "pandas NaN": framed(bmi=put(X[:, 1], 4, np.nan)),
    "pandas nullable": framed(bmi=pd.array([1.5] * 4 + [None] + [2.0] * 35, dtype="Float64")),
    "pandas None": framed(bmi=put(X[:, 1], 4, None, object)),
    "polars null": framed(table=PL_FRAME, bmi=pl.Series([1] * 4 + [None] + [2] * 35)),
    "polars NaN": framed(table=PL_FRAME, bmi=pl.Series(put(X[:, 1], 4, np.nan))),
}


@pytest.mark.parametrize("case", HOLES)
def test_a_hole_in_a_frame_is_named_by_row_and_column_name(make, case):
    assert_fit_refuses(
        make(task_column="site"), HOLES[case], ValueError, "NaN", "row 4", "column 'bmi'"
    )


NO_LABEL = {
    "None": labels_with(None),
    "NaN object": labels_with(np.nan),
    "pd.NA": labels_with(pd.NA),
    "NaT": labels_with(pd.NaT),
    "NaN float": put(TASK, 5, np.nan, float),
    "pandas nullable integer": pd.Series([0] * 5 + [None] + [1] * 34, dtype="Int64"),
    "pandas string": pd.Series(["a"] * 5 + [None] + ["b"] * 34, dtype="string"),
    "pandas str": pd.Series(["a"] * 5 + [None] + ["b"] * 34),
    "pandas categorical": pd.Series(pd.Categorical(["a"] * 5 + [None] + ["b"] * 34)),
    "polars string": pl.Series(["a"] * 5 + [None] + ["b"] * 34),
    "polars integer": pl.Series([0] * 5 + [None] + [1] * 34),
    "polars date": pl.Series([datetime.date(2020, 1, 1)] * 5 + [None] * 35),
    "datetime64": np.array(["2020-01-01"] * 5 + ["NaT"] * 35, dtype="M8[D]"),
    "list": ["a"] * 5 + [None] + ["b"] * 34,
}


@pytest.mark.parametrize("case", NO_LABEL)
def test_a_missing_label_is_refused_with_its_row(make, case):
    arguments = given(task=NO_LABEL[case])
    assert_fit_refuses(make(), arguments, ValueError, "task", "missing", "row 5")


@pytest.mark.parametrize("case", ["None", "pd.NA", "pandas string", "NaN float"])
@pytest.mark.parametrize("unseen", ["error", "mean"])
def test_a_missing_label_is_refused_at_predict_too(make, case, unseen):
    model = make(unseen=unseen).fit(X, Y, TASK)
    with pytest.raises(ValueError) as caught:
        model.predict(X, NO_LABEL[case])
    assert_helpful(caught, "task", "missing", "row 5")


@pytest.mark.parametrize("case", ["None", "pd.NA", "pandas categorical"])
def test_a_missing_label_in_a_task_column_names_the_column(make, case):
    arguments = framed(site=NO_LABEL[case])
    assert_fit_refuses(
        make(task_column="site"), arguments, ValueError, "'site'", "missing", "row 5"
    )


LENGTHS = {
    "short y": (given(y=Y[:-1]), "y", "39", "40"),
    "long y": (given(y=np.append(Y, 0.0)), "y", "41", "40"),
    "short task": (given(task=TASK[:-1]), "task", "39", "40"),
    "short weights": (given(sample_weight=np.ones(39)), "sample_weight", "39", "40"),
    "two columns of y": (given(y=np.column_stack([Y, Y])), "y", r"\(40, 2\)"),
    "two columns of task": (given(task=np.column_stack([TASK, TASK])), "task", r"\(40, 2\)"),
    "two columns of weights": (given(sample_weight=np.ones((40, 2))), "weight", "1D|one"),
    "no y": (given(y=None), "y", "None"),
    "list and short y": (
        given(BLOCKS, [*TARGETS[:4], TARGETS[4][:-1]], None), "Task 4", "8 rows", "7",
    ),
    "list and too few y": (given(BLOCKS, TARGETS[:4], None), "5 arrays", "4"),
    "list and flat y": (given(BLOCKS, Y, None), "5 arrays", "y", "40"),
    "list and no y": (given(BLOCKS, None, None), "list of", "None"),
    "list and too few labels": (given(BLOCKS, TARGETS, list("abcd")), "5 arrays", "task", "4"),
    "list of unequal widths": (
        given([*BLOCKS[:4], BLOCKS[4][:, :2]], TARGETS, None), "columns", "2",
    ),
    "list and weights of other lengths": (
        given([X[:10], X[10:]], [Y[:10], Y[10:]], None, [np.ones(30), np.ones(10)]),
        "weight", "[Tt]ask 0", "30", "10",
    ),
    "list and too few weights": (
        given(BLOCKS, TARGETS, None, [np.ones(40)]), "weight", "5 arrays", "1",
    ),
    "list and flat weights": (
        given(BLOCKS, TARGETS, None, np.ones(40)), "weight", "5 arrays", "40",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LENGTHS)
def test_lengths_that_differ_are_refused_with_both_numbers(make, case):
    arguments, *patterns = LENGTHS[case]
    assert_fit_refuses(make(), arguments, ValueError, *patterns)


EMPTY = {
    "no rows": (given(X[:0], Y[:0], TASK[:0]), "0 sample", "at least one row"),
    "no columns": (given(X[:, :0]), "0 feature", "at least one.* column"),
    "empty frame": (given(FRAME[["age"]][:0], Y[:0], TASK[:0]), "0 sample", "at least one row"),
    "a task without rows": (
        given([*BLOCKS[:4], X[:0]], [*TARGETS[:4], Y[:0]], list("abcde")), "'e'", "no rows",
    ),
    "empty list": (given([], [], None), "empty|0 sample|at least one"),
    "one dimension": (given(X[:, 0]), "2D", r"\(40,\)", "reshape"),
    "three dimensions": (given(X[:, :, None]), "2D", r"\(40, 3, 1\)"),
    "no X": (given(None), "None"),
    "ragged rows": (given([[1.0, 2.0], [3.0]], [1.0, 2.0], None), "row 1|equal length"),
}  # fmt: skip


@pytest.mark.parametrize("case", EMPTY)
def test_tables_without_rows_columns_or_shape_are_refused(make, case):
    arguments, *patterns = EMPTY[case]
    assert_fit_refuses(make(), arguments, ValueError, *patterns)


DATES = [datetime.datetime(2020, 1, 1 + i % 28) for i in range(40)]
NOT_FEATURES = {
    "one word among numbers": (framed(dose=put(X[:, 2], 9, "high", object)), "--na-values high"),
    "durations": (framed(dose=pd.to_timedelta(np.arange(40), "D")), "interval"),
    "lists": (framed(dose=objects([[1]] * 40)), "list"),
    "polars durations": (
        framed(table=PL_FRAME, dose=pl.Series([datetime.timedelta(days=i) for i in range(40)])),
        "interval",
    ),
}
NOT_NUMERIC = {
    "text": framed(dose=list("ml" * 20)),
    "digits as text": framed(dose=["1", "2"] * 20),
    "categories": framed(dose=pd.Categorical(list("ml" * 20))),
    "dates": framed(dose=pd.to_datetime(DATES)),
    "polars text": framed(table=PL_FRAME, dose=pl.Series(list("ml" * 20))),
    "polars categories": framed(
        table=PL_FRAME, dose=pl.Series(list("ml" * 20), dtype=pl.Categorical)
    ),
    "polars dates": framed(table=PL_FRAME, dose=pl.Series(DATES)),
}


@pytest.mark.parametrize("case", NOT_FEATURES)
def test_columns_that_cannot_be_features_are_refused_by_name(make, case):
    arguments, words = NOT_FEATURES[case]
    assert_fit_refuses(make(task_column="site"), arguments, ValueError, "'dose'", words)


@pytest.mark.parametrize("case", NOT_NUMERIC)
def test_columns_that_are_not_numbers_become_features(make, case):
    model = make(task_column="site").fit(**NOT_NUMERIC[case])
    name = "dose" if "dates" in case or "digits" in case else "dose=m"
    assert name in model.coef_names_.tolist()
    assert np.isfinite(model.predict(NOT_NUMERIC[case]["X"])).all()


WRONG_KIND = {
    "text array": (given(np.full((40, 3), "a")), ValueError, "x0", "numeric"),
    "text y": (given(y=["high"] * 40), ValueError, "y", "numeric"),
    "text weights": (given(sample_weight=["a"] * 40), ValueError, "sample_weight", "numeric"),
    "complex X": (given(X + 1j), ValueError, "X", "[Cc]omplex"),
    "complex y": (given(y=Y + 1j), ValueError, "y", "[Cc]omplex"),
}


@pytest.mark.parametrize("case", WRONG_KIND)
def test_data_of_the_wrong_kind_is_refused(make, case):
    arguments, error, *patterns = WRONG_KIND[case]
    assert_fit_refuses(make(), arguments, error, *patterns)


UNHASHABLE = {
    "list": labels_with([1]),
    "dict": labels_with({}),
    "set": labels_with({1}),
    "tuple of a list": labels_with((1, [2])),
}


@pytest.mark.parametrize("case", UNHASHABLE)
def test_labels_that_cannot_be_hashed_are_refused(make, case):
    arguments = given(task=UNHASHABLE[case])
    assert_fit_refuses(make(), arguments, TypeError, "row 5", "hash", "numbers, strings")


COLUMNS = {
    "not in a pandas frame": ("clinic", framed(), "'clinic'", "'age'", "'site'"),
    "not in a polars frame": ("clinic", given(PL_FRAME, task=None), "'clinic'", "'age'", "'site'"),
    "a name for an array": ("clinic", given(task=None), "'clinic'", "3 columns"),
    "a number beyond an array": (3, given(task=None), r"\b3\b", "3 columns"),
    "a boolean": (True, given(task=None), "True", "column"),
    "a list of names": (["site"], framed(), r"\['site'\]", "'age'"),
    "there twice": ("site", given(pd.concat([FRAME, FRAME["site"]], axis=1), task=None),
                    "'site'", "twice|2|two|several"),
    "and labels too": ("site", framed(task=TASK), "task", "'site'", "only one"),
    "in a list of frames": (
        "clinic", given([FRAME[:8], FRAME[8:]], [Y[:8], Y[8:]], None), "'clinic'", "frame",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COLUMNS)
def test_a_task_column_that_cannot_be_used_is_refused(make, case):
    column, arguments, *patterns = COLUMNS[case]
    assert_fit_refuses(make(task_column=column), arguments, (ValueError, TypeError), *patterns)


def test_frames_of_a_list_with_other_columns_are_refused(make):
    features = FRAME[["age", "bmi", "dose"]]
    for other in (features[["bmi", "age", "dose"]], features.rename(columns={"bmi": "height"})):
        arguments = given([features[:8], other[8:]], [Y[:8], Y[8:]], None)
        assert_fit_refuses(make(), arguments, ValueError, "columns", "bmi")


RANKS = {
    0: (ValueError, "rank=0", "at least 1"),
    -1: (ValueError, "rank=-1", "at least 1"),
    4: (ValueError, "rank=4", "3 features", "5 tasks", "1 to 3", "auto"),
    10**30: (ValueError, "rank=10", "3"),
    2.5: (TypeError, r"rank=2\.5", "integer", "float", "auto"),
    "three": (ValueError, "rank='three'", "integer", "auto"),
    True: (TypeError, "rank=True", "integer", "bool"),
    None: (TypeError, "rank=None", "integer", "auto"),
    (2,): (TypeError, "rank=", "integer"),
    np.nan: (TypeError, "rank=nan", "integer"),
}


@pytest.mark.parametrize(("rank", "expected"), RANKS.items(), ids=map(repr, RANKS))
def test_an_impossible_rank_is_refused(rank, expected):
    assert_parameter_refused({"rank": rank}, *expected)


def test_a_rank_above_the_number_of_tasks_is_refused():
    model, arguments = ss.SharedSpanRegressor(rank=2), given(task=np.zeros(40))
    assert_fit_refuses(model, arguments, ValueError, "rank=2", "1 task", "auto")


def assert_parameter_refused(parameters, error, *patterns, make=ss.SharedSpanRegressor):
    for candidate in (make(), copy.deepcopy(fitted_before(make))):
        candidate.set_params(**parameters)
        with pytest.raises(error) as caught:
            candidate.fit(X, Y, TASK)
        assert_helpful(caught, *patterns)
        assert_unfitted(candidate)


PARAMETERS = {
    "solver": ("newton", ValueError, "solver='newton'", *(f"'{name}'" for name in ss.SOLVERS)),
    "solver None": (None, ValueError, "solver=None", "'tpgd'"),
    "solver list": (["tpgd"], (ValueError, TypeError), "solver=", "'tpgd'"),
    "solver_options": (3, TypeError, "solver_options=3", "dict"),
    "solver_options name": ({"eta": 3}, TypeError, "solver_options", "'eta'", "steps"),
    "solver_options value": ({"init_scale": -1}, ValueError, "init_scale", "-1"),
    "solver_options steps": ({"steps": "x"}, ValueError, "steps='x'", "practical", "theory"),
    "solver_options callback": ({"callback": 3}, TypeError, "callback", "3"),
    "callback": (3, TypeError, "callback", "3"),
    "tail_average": ("no", (ValueError, TypeError), "tail_average='no'", "True|bool"),
    "noise": ("x", ValueError, "noise='x'", "shared", "per_task"),
    "dtype": ("float16", ValueError, "dtype='float16'", "float64"),
    "backend": ("abacus", ValueError, "backend='abacus'", "auto"),
    "engine": ("steam", ValueError, "engine='steam'", "local"),
    "max_iter": (0, ValueError, "max_iter=0", "at least 1"),
    "max_iter float": (1e4, TypeError, "max_iter=10000.0", "integer"),
    "tol": (-1.0, ValueError, r"tol=-1\.0", "at least 0"),
    "tol NaN": (np.nan, ValueError, "tol=nan"),
    "random_state": ("x", (ValueError, TypeError), "random_state='x'", "integer"),
    "random_state negative": (-1, ValueError, "random_state=-1"),
    "unseen": ("skip", ValueError, "unseen='skip'", "error", "mean"),
    "fit_intercept": ("no", (ValueError, TypeError), "fit_intercept='no'", "True|bool"),
    "whiten": ("no", (ValueError, TypeError), "whiten='no'", "True|bool"),
}


@pytest.mark.parametrize("case", PARAMETERS)
def test_a_parameter_out_of_its_range_is_refused_with_the_known_ones(case):
    value, error, *patterns = PARAMETERS[case]
    paper = {"solver": "tpgd"} if case.startswith("solver_options") else {}
    assert_parameter_refused({case.split()[0]: value} | paper, error, *patterns)


@pytest.mark.parametrize("make", [ss.PooledRegressor, ss.PerTaskRegressor])
@pytest.mark.parametrize(
    ("name", "value", "error", "pattern"),
    [
        ("alpha", -1.0, ValueError, "at least 0"),
        ("alpha", np.nan, ValueError, "number"),
        ("alpha", "big", ValueError, "number"),
        ("alpha", None, TypeError, "number"),
        ("unseen", "skip", ValueError, "mean"),
        ("fit_intercept", "no", (ValueError, TypeError), "True|bool"),
    ],
)
def test_a_parameter_of_the_baselines_out_of_its_range_is_refused(
    make, name, value, error, pattern
):
    assert_parameter_refused({name: value}, error, f"{name}={value!r}", pattern, make=make)


def test_nothing_works_before_fit(make):
    for method in (lambda m: m.predict(X, TASK), lambda m: m.score(X, Y, TASK)):
        with pytest.raises(NotFittedError, match="fit"):
            method(make())


PREDICT = {
    "fewer features": ((X[:, :2], TASK), "2 features", "3 features"),
    "more features": ((np.hstack([X, X]), TASK), "6 features", "3 features"),
    "an unseen task": ((X[:2], [0, 99]), "99", "unseen='mean'"),
    "labels of another type": ((X[:2], ["0", "1"]), "'0'", "such as 0"),
    "NaN": ((put(X, (4, 1), np.nan), TASK), "NaN", "row 4", "column.*1"),
    "infinity": ((put(X, (4, 1), np.inf), TASK), "infinity", "row 4", "column.*1"),
    "no labels": ((X, None), "5 tasks", "task="),
    "too few labels": ((X, TASK[:-1]), "39", "40"),
    "one dimension": ((X[0], 0), "2D", r"\(3,\)"),
    "text": ((np.full((40, 3), "a"), TASK), "x0", "numeric"),
    "no rows": ((X[:0], TASK[:0]), "0 sample"),
}


@pytest.mark.parametrize("case", PREDICT)
def test_bad_input_of_predict_is_refused_and_the_model_survives(make, case):
    arguments, *patterns = PREDICT[case]
    model = make().fit(X, Y, TASK)
    before = model.predict(X, TASK)
    with pytest.raises(ValueError) as caught:
        model.predict(*arguments)
    assert_helpful(caught, *patterns)
    assert np.array_equal(model.predict(X, TASK), before)


PREDICT_FRAMES = {
    "a hole": (FRAME.assign(bmi=put(X[:, 1], 4, np.nan)), None, "row 4", "column 'bmi'"),
    "a hole in polars": (
        PL_FRAME.with_columns(bmi=pl.Series([1.0] * 4 + [None] * 36)), None, "row 4", "'bmi'",
    ),
    "a column too few": (FRAME.drop(columns="bmi"), None, "bmi"),
    "columns in another order": (FRAME[["bmi", "age", "dose", "site"]], None, "order"),
    "no task column": (FRAME.drop(columns="site"), None, "'site'", "'age'"),
    "labels twice": (FRAME, TASK, "twice", "'site'"),
    "an unseen task": (FRAME.assign(site=TASK + 1), None, "5", "unseen='mean'"),
}  # fmt: skip


@pytest.mark.parametrize("case", PREDICT_FRAMES)
def test_bad_frames_of_predict_are_refused_by_name(make, case):
    table, task, *patterns = PREDICT_FRAMES[case]
    model = make(task_column="site").fit(FRAME, Y)
    with pytest.raises(ValueError) as caught:
        model.predict(table, task)
    assert_helpful(caught, *patterns)


def test_a_failed_fit_raises_what_went_wrong_inside_and_forgets():
    def interrupt(event):
        raise KeyboardInterrupt

    model = ss.SharedSpanRegressor(rank=2, random_state=0).fit(X, Y, TASK)
    model.set_params(callback=interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, TASK)
    assert_unfitted(model)
