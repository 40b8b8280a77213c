"""Valid but hard input: fits are finite, without warnings, and equal to the fit of easy input."""

import datetime
import functools
from contextlib import nullcontext

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from oracles import relative
from sharedspan.estimators.saturation import unknown_noise

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def shared(rank):
    def make(rank=rank, **kw):
        return ss.SharedSpanRegressor(rank, **{"random_state": 0, "tol": 1e-9, **kw})

    return make


MODELS = {
    "rank given": shared(2),
    "rank auto": shared("auto"),
    "pooled": ss.PooledRegressor,
    "per task": ss.PerTaskRegressor,
}


@pytest.fixture(params=MODELS)
def make(request):
    return MODELS[request.param]


@pytest.fixture(params=["rank given", "rank auto"])
def make_shared(request):
    return MODELS[request.param]


SIM = ss.simulate(
    n_tasks=12, n_features=4, rank=2, n_samples=15, noise=0.1, intercept=1.0, random_state=1
)


@pytest.fixture
def sim():
    return SIM


def assert_finite(model):
    """Every fitted number; trace_["gradient"] is documented to be NaN.

    So is the noise of all tasks where the fit uses up the rows, and then intervals are refused.
    """
    values = {name: value for name, value in vars(model).items() if name.endswith("_")}
    values.pop("tasks_")
    values |= {f"trace_[{name}]": v for name, v in values.pop("trace_", {}).items()}
    values |= vars(values.pop("rank_path_", None) or type("", (), {})())
    values.pop("trace_[gradient]", None)
    numeric = {n: v for n, v in values.items() if np.asarray(v).dtype.kind in "fiub"}
    assert {"coef_", "intercept_", "n_features_in_"} <= set(numeric)
    if unknown_noise(model) is not None:
        assert np.isnan(numeric.pop("noise_variance_")).all()
        with pytest.raises(ValueError, match="noise and the errors of new rows are unknown"):
            model.coef_interval()
    for name, value in numeric.items():
        assert np.isfinite(value).all(), f"{name}: {value}"
        if name in ("noise_variance_", "trace_[loss]", "loss", "alpha_"):
            assert np.min(value) >= 0, f"{name}: {value}"


def fitted(make, X, y, task=None, sample_weight=None, **parameters):
    model = make(**parameters)
    if getattr(model, "rank", "auto") != "auto" and hasattr(X, "shape"):
        model.rank = min(model.rank, X.shape[1], len(set(np.zeros(1) if task is None else task)))
    model.fit(X, y, task, sample_weight=sample_weight)
    assert_finite(model)
    return model


@functools.cache
def easy(make):
    """The fit of the unchanged simulated rows."""
    return fitted(make, SIM.X, SIM.y, SIM.task)


def tasks_of(T, n, d, seed=0):
    """Rows of T tasks of rank at most 2, in task order."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((T * n, d))
    task = np.repeat(np.arange(T), n)
    coef = rng.standard_normal((T, 2)) @ rng.standard_normal((2, d))
    noise = 0.1 * rng.standard_normal(T * n)
    return X, 1.0 + np.einsum("ij,ij->i", X, coef[task]) + noise, task


def with_column(column, T=6, n=10, d=3):
    X, y, task = tasks_of(T, n, d)
    return np.column_stack([X, column(X, y, task)]), y, task


def with_target(target):
    X, y, task = tasks_of(6, 10, 3)
    return X, target(X, y, task), task


def scaled(factor, of_y=1.0):
    X, y, task = tasks_of(6, 10, 3)
    return X * factor, y * of_y, task


HARD = {
    "one task": tasks_of(1, 20, 3),
    "one task, one row": tasks_of(1, 1, 3),
    "one task, one row, one feature": tasks_of(1, 1, 1),
    "one row per task": tasks_of(12, 1, 3),
    "two rows per task": tasks_of(12, 2, 3),
    "one row in all but one task": (lambda X, y, t: (X, y, np.maximum(t - 40, 0)))(
        *tasks_of(50, 1, 3)
    ),
    "a single feature": tasks_of(6, 10, 1),
    "T far above d": tasks_of(200, 4, 2),
    "T far below d": tasks_of(2, 20, 30),
    "rows far below d": tasks_of(8, 3, 40),
    "as many rows as features": tasks_of(8, 4, 4),
    "constant column": with_column(lambda X, y, task: np.full(len(X), 3.7)),
    "column of zeros": with_column(lambda X, y, task: np.zeros(len(X))),
    "all columns constant": (np.ones((20, 3)), np.arange(20.0), np.arange(20) // 5),
    "all columns zero": (np.zeros((20, 3)), np.arange(20.0), np.arange(20) // 5),
    "duplicated column": with_column(lambda X, y, task: X[:, 0]),
    "nearly duplicated column": with_column(lambda X, y, task: X[:, 0] * (1 + 1e-15)),
    "sum of columns": with_column(lambda X, y, task: X[:, 0] - 2 * X[:, 1]),
    "a column that is the target": with_column(lambda X, y, task: y),
    "one-hot columns": (lambda X, y, t: (np.eye(3)[np.arange(len(X)) % 3], y, t))(
        *tasks_of(6, 10, 3)
    ),
    "dummies of the tasks": (lambda X, y, t: (np.hstack([X, np.eye(6)[t]]), y, t))(
        *tasks_of(6, 10, 3)
    ),
    "constant within tasks": with_column(lambda X, y, task: 5.0 * task),
    "constant within tasks, not exactly a float": with_column(lambda X, y, task: 0.1 * task),
    "varies in one task only": with_column(lambda X, y, task: X[:, 0] * (task == 2)),
    "a rare event": with_column(lambda X, y, task: np.arange(len(X)) == 7),
    "offset 1e9": with_column(lambda X, y, task: 1e9 + y**2),
    "offset 1e15": with_column(lambda X, y, task: 1e15 + X[:, 0]),
    "offset in all": (lambda X, y, t: (X + 1e9, y + 1e9, t))(*tasks_of(6, 10, 3)),
    "an outlier of 1e12": with_column(lambda X, y, task: np.where(np.arange(60) == 3, 1e12, y**2)),
    "an outlier of 1e300": with_column(
        lambda X, y, task: np.where(np.arange(60) == 3, 1e300, y**2)
    ),
    "scales 1e150 and 1e-150": scaled(np.array([1e150, 1.0, 1e-150])),
    "scale 1e300": scaled(1e300),
    "scale 1e-300": scaled(1e-300),
    "end of the range": with_column(lambda X, y, task: np.where(X[:, 0] > 0, 1.7e308, -1.7e308)),
    "y constant": with_target(lambda X, y, task: np.full(len(y), 5.0)),
    "y zero": with_target(lambda X, y, task: np.zeros(len(y))),
    "y constant within tasks": with_target(lambda X, y, task: 3.0 * task),
    "y zero in one task": with_target(lambda X, y, task: np.where(task == 2, 0.0, y)),
    "y without noise": with_target(lambda X, y, task: X @ [1.0, 2.0, 3.0]),
    "y binary": with_target(lambda X, y, task: y > 0),
    "y integer": with_target(lambda X, y, task: (10 * y).astype(int)),
    "y 1e140": scaled(1.0, of_y=1e140),
    "y 1e-150": scaled(1.0, of_y=1e-150),
    "y 1e9 away": with_target(lambda X, y, task: y + 1e9),
    "noise only": with_target(lambda X, y, task: np.random.default_rng(9).standard_normal(60)),
    "every row the same": (np.ones((20, 2)), np.ones(20), np.arange(20) // 5),
    "every row twice": (lambda X, y, t: (X.repeat(2, 0), y.repeat(2), t.repeat(2)))(
        *tasks_of(6, 5, 3)
    ),
    "sizes from 1 to 500": (
        lambda X, y, t: (X, y, np.minimum(np.log2(np.arange(1, 513)).astype(int), 8))
    )(*tasks_of(1, 512, 3)),
}
NO_INTERCEPT = {"fit_intercept": False}
RIDGE_OPTIONS = {"default": {}, "no intercept": NO_INTERCEPT, "least squares": {"alpha": 0.0}}
OPTIONS = {
    "rank given": {
        "default": {},
        "no intercept": NO_INTERCEPT,
        "not whitened": {"whiten": False},
        "not whitened, no intercept": {"whiten": False, **NO_INTERCEPT},
        "scaled_gd": {"solver": "scaled_gd"},
        "float32": {"dtype": "float32"},
    },
    "rank auto": {"default": {}, "no intercept": NO_INTERCEPT},
    "pooled": RIDGE_OPTIONS,
    "per task": RIDGE_OPTIONS,
}


@pytest.mark.parametrize(
    ("model", "option"), [(model, option) for model in MODELS for option in OPTIONS[model]]
)
@pytest.mark.parametrize("case", HARD)
def test_hard_tables_are_fitted_and_predicted_with_finite_numbers(case, model, option):
    X, y, task = HARD[case]
    parameters = OPTIONS[model][option]
    if model.startswith("rank"):
        parameters = {"tol": 1e-7, "max_iter": 60, **parameters}
    lost = case == "offset in all" and model.startswith("rank") and "no intercept" in option
    with pytest.warns(UserWarning, match="nearly linear") if lost else nullcontext():
        model_fitted = fitted(MODELS[model], X, y, task, **parameters)
    assert_predicts(model_fitted, X, y, task)


def assert_predicts(model, X, y, task):
    prediction = model.predict(X, task)
    assert prediction.shape == y.shape
    assert np.isfinite(prediction).all()


@pytest.mark.parametrize(
    "case",
    [
        "one task, one row", "one row per task", "one row in all but one task",
        "rows far below d", "all columns constant", "an outlier of 1e12", "y constant",
        "y zero in one task", "y without noise", "y 1e140", "sizes from 1 to 500",
    ],
)  # fmt: skip
def test_noise_per_task_stays_finite_where_tasks_have_no_rows_or_no_noise_to_spare(case):
    X, y, task = HARD[case]
    model = fitted(shared(2), X, y, task, noise="per_task", tol=1e-7, max_iter=60)
    assert_predicts(model, X, y, task)


@pytest.mark.parametrize(
    "factor",
    [1e150, 1e-150, np.array([1e9, 1.0, 1e-9, 1.0]), np.array([1e150, 1.0, 1e-150, 1e9])],
    ids=["1e150", "1e-150", "1e9 beside 1e-9", "1e150 beside 1e-150"],
)
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_predictions_do_not_depend_on_the_units_of_the_features(make, sim, factor, fit_intercept):
    plain = fitted(make, sim.X, sim.y, sim.task, fit_intercept=fit_intercept)
    moved = fitted(make, sim.X * factor, sim.y, sim.task, fit_intercept=fit_intercept)
    expected = plain.predict(sim.X, sim.task)
    assert relative(moved.predict(sim.X * factor, sim.task), expected) < 1e-6


@pytest.mark.parametrize("factor", [1e150, 1e-150])
def test_predictions_without_whitening_do_not_depend_on_a_common_unit(make_shared, sim, factor):
    plain = fitted(make_shared, sim.X, sim.y, sim.task, whiten=False)
    moved = fitted(make_shared, sim.X * factor, sim.y, sim.task, whiten=False)
    expected = plain.predict(sim.X, sim.task)
    assert relative(moved.predict(sim.X * factor, sim.task), expected) < 1e-6


@pytest.mark.parametrize("factor", [1e140, 1e-150, -3.0])
def test_predictions_follow_the_unit_of_the_target(make, sim, factor):
    plain = easy(make).predict(sim.X, sim.task)
    moved = fitted(make, sim.X, sim.y * factor, sim.task).predict(sim.X, sim.task)
    assert relative(moved / factor, plain) < 1e-6


@pytest.mark.parametrize("factor", [1e150, 1e-150, 1e9])
def test_whitened_features_beside_a_huge_offset_give_the_same_predictions(make, sim, factor):
    """Offset and noise of a column, in any unit."""
    column = 1e9 + np.random.default_rng(2).standard_normal(len(sim.X))
    soft = np.column_stack([sim.X, column - 1e9])  # exact: both are near 1e9
    hard = np.column_stack([sim.X, column * factor])
    expected = fitted(make, soft, sim.y, sim.task).predict(soft, sim.task)
    assert relative(fitted(make, hard, sim.y, sim.task).predict(hard, sim.task), expected) < 1e-5


def test_constant_columns_get_no_weight_and_change_nothing(make, sim):
    plain = easy(make)
    for level in (np.zeros(len(sim.X)), np.full(len(sim.X), 0.1), 0.1 * sim.task):
        wide = np.column_stack([sim.X, level])
        model = fitted(make, wide, sim.y, sim.task)
        assert_array_equal(model.coef_[:, -1], 0.0)
        assert relative(model.predict(wide, sim.task), plain.predict(sim.X, sim.task)) < 1e-6


@pytest.mark.parametrize("alpha", ["auto", 0.0, 1.0])
@pytest.mark.parametrize("make", [ss.PooledRegressor, ss.PerTaskRegressor])
def test_the_twins_of_a_duplicated_column_share_its_coefficient(make, sim, alpha):
    wide = np.column_stack([sim.X, sim.X[:, 0]])
    model = fitted(make, wide, sim.y, sim.task, alpha=alpha)
    assert_allclose(model.coef_[:, 0], model.coef_[:, -1], rtol=1e-6, atol=1e-10)


def test_a_duplicated_column_changes_no_prediction_of_the_shared_span(make_shared, sim):
    wide = np.column_stack([sim.X, sim.X[:, 0]])
    plain = fitted(make_shared, sim.X, sim.y, sim.task).predict(sim.X, sim.task)
    model = fitted(make_shared, wide, sim.y, sim.task)
    assert relative(model.predict(wide, sim.task), plain) < 1e-6
    assert_allclose(model.coef_[:, 0], model.coef_[:, -1], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_one_task_alone_is_least_squares(sim, fit_intercept):
    X, y = sim.X[:50], sim.y[:50]
    design = np.column_stack([X, np.full(50, float(fit_intercept))])
    expected = design @ np.linalg.lstsq(design, y)[0]
    for rank in (1, "auto"):
        model = fitted(shared(rank), X, y, fit_intercept=fit_intercept)
        assert relative(model.predict(X), expected) < 1e-6
    for make in (ss.PooledRegressor, ss.PerTaskRegressor):
        model = fitted(make, X, y, alpha=0.0, fit_intercept=fit_intercept)
        assert relative(model.predict(X), expected) < 1e-6


def test_one_row_per_task_with_intercepts_predicts_each_row_by_itself(make):
    X, y, task = tasks_of(12, 1, 3)
    model = fitted(make, X, y, task)
    assert_array_equal(model.coef_, 0.0)
    assert_allclose(model.predict(X, task), y, rtol=1e-12)


@pytest.mark.parametrize("level", [0.0, 5.0, -1e9])
def test_a_constant_target_is_predicted_exactly(make, level):
    X, _, task = tasks_of(6, 10, 3)
    model = fitted(make, X, np.full(60, level), task)
    assert_allclose(model.predict(X, task), level, rtol=1e-9, atol=1e-12)


TYPES = {
    "integer": lambda X: np.round(10 * X).astype(int),
    "int8": lambda X: np.round(10 * X).astype(np.int8),
    "unsigned": lambda X: np.round(10 * X - (10 * X).min()).astype(np.uint16),
    "float32": lambda X: X.astype(np.float32),
    "float16": lambda X: X.astype(np.float16),
    "longdouble": lambda X: X.astype(np.longdouble),
    "bool": lambda X: X > 0,
    "big-endian": lambda X: X.astype(">f8"),
    "objects": lambda X: X.astype(object),
    "objects of mixed kinds": lambda X: np.column_stack(
        [X[:, :2].astype(object), (X[:, 2] > 0).astype(object), np.round(X[:, 3]).astype(int)]
    ),
    "list of lists": lambda X: X.tolist(),
    "read-only": lambda X: read_only(X),
    "Fortran order": lambda X: np.asfortranarray(X),
    "every second column": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "every second row": lambda X: np.repeat(X, 2, axis=0)[::2],
    "reversed": lambda X: np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1],
    "broadcast": lambda X: np.broadcast_to(X[:, :1], X.shape),
    "pandas": lambda X: pd.DataFrame(X),
    "pandas of mixed types": lambda X: pd.DataFrame(
        {"a": X[:, 0], "b": X[:, 1] > 0, "c": np.round(X[:, 2]).astype(int),
         "d": X[:, 3].astype(np.float32)}
    ),
    "pandas nullable": lambda X: pd.DataFrame(np.round(X)).astype("Int64"),
    "pandas arrow": lambda X: pd.DataFrame(X).astype("float64[pyarrow]"),
    "pandas objects": lambda X: pd.DataFrame(X).astype(object),
    "pandas odd index": lambda X: pd.DataFrame(X, index=[7] * len(X)),
    "pandas two-level columns": lambda X: pd.DataFrame(
        X, columns=pd.MultiIndex.from_product([["u", "v"], [0, 1]])
    ),
    "polars": lambda X: pl.DataFrame(X, schema=list("abcd")),
    "polars of mixed types": lambda X: pl.DataFrame(
        {"a": X[:, 0], "b": X[:, 1] > 0, "c": np.round(X[:, 2]).astype(int),
         "d": X[:, 3].astype(np.float32)}
    ),
    "memory map": lambda X: memory_map(X),
}  # fmt: skip


def read_only(values):
    values = np.array(values)
    values.flags.writeable = False
    return values


def memory_map(values):
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        out = np.memmap(file, dtype=float, mode="w+", shape=values.shape)
    out[:] = values
    return out


@pytest.mark.parametrize("case", TYPES)
def test_any_numeric_table_equals_the_same_numbers_in_a_plain_array(make, sim, case):
    table = TYPES[case](sim.X)
    plain = np.array(np.asarray(table).tolist(), dtype=float)
    model = make().fit(table, sim.y, sim.task)
    assert_finite(model)
    expected = make().fit(plain, sim.y, sim.task)
    assert_allclose(model.coef_, expected.coef_, rtol=1e-8, atol=1e-10)
    assert_allclose(
        model.predict(table, sim.task), expected.predict(plain, sim.task), rtol=1e-8, atol=1e-8
    )


VECTORS = {
    "list": list,
    "tuple": tuple,
    "read-only": read_only,
    "strided": lambda v: np.repeat(v, 2)[::2],
    "pandas odd index": lambda v: pd.Series(v, index=range(len(v), 0, -1)),
    "polars": pl.Series,
    "objects": lambda v: v.astype(object),
    "float32": lambda v: v.astype(np.float32).astype(v.dtype) if v.dtype.kind == "f" else v,
}


@pytest.mark.parametrize("case", VECTORS)
def test_targets_labels_and_weights_may_come_in_any_container(make, sim, case):
    wrap, weight = VECTORS[case], np.arange(len(sim.y)) % 3 + 0.5
    y = np.round(sim.y, 2).astype(np.float32).astype(float)
    model = fitted(make, sim.X, wrap(y), wrap(sim.task), wrap(weight))
    expected = fitted(make, sim.X, y, sim.task, weight)
    assert_allclose(model.coef_, expected.coef_, rtol=1e-9)
    assert_array_equal(model.tasks_, expected.tasks_)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_users_arrays_are_never_written_to(make, sim, shuffled, dtype):
    order = np.random.default_rng(0).permutation(len(sim.y)) if shuffled else np.arange(len(sim.y))
    given = [sim.X[order].astype(dtype), sim.y[order].astype(dtype), sim.task[order]]
    given.append(np.arange(len(sim.y)) % 3.0)
    before = [values.copy() for values in given]
    fitted(make, *given).predict(given[0], given[2])
    for values, copy in zip(given, before, strict=True):
        assert_array_equal(values, copy)


def day(i):
    return datetime.date(2020, 1, 1) + datetime.timedelta(days=7 * i)


NAMES = {
    "strings": [f"s{i * 7 % 12}" for i in range(12)],
    "integers": [i * 7 % 12 * 1000 - 3000 for i in range(12)],
    "integers above 2^53": [2**53 + i for i in range(12)],
    "floats": [i / 7 for i in range(12)],
    "infinite floats": [*range(10), np.inf, -np.inf],
    "1 and '1'": [i // 2 if i % 2 else str(i // 2) for i in range(12)],
    "mixed": [0, "0", 2.5, (0,), (0, 1), day(0), b"0", frozenset([1]), "", "nan", -1, day(1)],
    "tuples": [("clinic", i * 5 % 12) for i in range(12)],
    "tuples of different lengths": [tuple(range(i)) for i in range(12)],
    "dates": [day(i * 5 % 12) for i in range(12)],
    "timestamps": [pd.Timestamp(day(i * 5 % 12)) for i in range(12)],
    "timestamps with a zone": [pd.Timestamp(day(i), tz="Europe/Paris") for i in range(12)],
}
SINGLE_TYPE = ("strings", "integers", "integers above 2^53", "floats", "dates")


def per_row(names, task):
    out = np.empty(len(task), dtype=object)
    for row, t in enumerate(task):
        out[row] = names[t]
    return out.tolist()


def pandas_with(labels):
    return lambda X: pd.DataFrame(X, columns=list("abcd")).assign(site=pd.Series(labels))


LABELLED = {
    **{f"pandas {kind}": (pandas_with, NAMES[kind]) for kind in NAMES},
    "pandas string": (lambda v: pandas_with(pd.array(v, dtype="string")), NAMES["strings"]),
    "pandas nullable integers": (
        lambda v: pandas_with(pd.array(v, dtype="Int64")), NAMES["integers"],
    ),
    "pandas categories with unused levels": (
        lambda v: pandas_with(pd.Categorical(v, categories=["z", *sorted(set(v))[::-1], "a"])),
        NAMES["strings"],
    ),
    "pandas ordered categories of integers": (
        lambda v: pandas_with(pd.Categorical(v, categories=[9**9, *sorted(set(v))], ordered=True)),
        NAMES["integers"],
    ),
    "pandas datetime64": (lambda v: pandas_with(pd.to_datetime(v)), NAMES["dates"]),
    "pandas periods": (lambda v: pandas_with(pd.PeriodIndex(v, freq="D")), NAMES["dates"]),
    "pandas intervals": (
        lambda v: pandas_with(pd.IntervalIndex.from_arrays(v, np.array(v) + 1)), NAMES["floats"],
    ),
    **{
        f"polars {kind}": (
            lambda v: lambda X: pl.DataFrame(X, schema=list("abcd")).with_columns(
                site=pl.Series(v)
            ),
            NAMES[kind],
        )
        for kind in SINGLE_TYPE
    },
    "polars categories": (
        lambda v: lambda X: pl.DataFrame(X, schema=list("abcd")).with_columns(
            site=pl.Series(v, dtype=pl.Categorical)
        ),
        NAMES["strings"],
    ),
    "polars enum with unused levels": (
        lambda v: lambda X: pl.DataFrame(X, schema=list("abcd")).with_columns(
            site=pl.Series(v, dtype=pl.Enum(["z", *sorted(set(v))]))
        ),
        NAMES["strings"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LABELLED)
def test_labels_of_every_kind_in_a_task_column_name_the_same_tasks(make, sim, case):
    column_of, names = LABELLED[case]
    frame = column_of(per_row(names, sim.task))(sim.X)
    model = make(task_column="site").fit(frame, sim.y)
    assert_finite(model)
    assert len(model.tasks_) == 12
    assert list(model.coef_names_) == list("abcd")
    expected = easy(make).predict(sim.X, sim.task)
    assert relative(model.predict(frame), expected) < 1e-6
    assert relative(model.predict(frame[::-1]), expected[::-1]) < 1e-6


@pytest.mark.parametrize("case", NAMES)
def test_labels_of_every_kind_come_back_as_they_were_given(make, sim, case):
    names = NAMES[case]
    labels = per_row(names, sim.task)
    model = fitted(make, sim.X, sim.y, labels)
    assert set(model.tasks_.tolist()) == set(names)
    expected = easy(make).predict(sim.X, sim.task)
    assert relative(model.predict(sim.X, labels), expected) < 1e-6
    assert relative(model.predict(sim.X[:1], labels[:1]), expected[:1]) < 1e-6


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_dates_of_another_resolution_name_the_same_task(make, sim, unit):
    labels = np.array(per_row(NAMES["dates"], sim.task), dtype="M8[D]")
    model = fitted(make, sim.X, sim.y, labels)
    expected = model.predict(sim.X, labels)
    assert_array_equal(model.predict(sim.X, labels.astype(f"M8[{unit}]")), expected)


def test_numpy_integers_next_to_tuples_are_labels_too(make, sim):
    labels = per_row([np.int64(0), *NAMES["tuples"][1:]], sim.task)
    model = fitted(make, sim.X, sim.y, labels)
    expected = easy(make).predict(sim.X, sim.task)
    assert relative(model.predict(sim.X, labels), expected) < 1e-6


def test_one_and_the_text_one_are_two_tasks(make, sim):
    labels = [1 if t < 6 else "1" for t in sim.task]
    model = fitted(make, sim.X, sim.y, labels)
    assert list(model.tasks_) == [1, "1"]
    assert not np.allclose(model.intercept_[0], model.intercept_[1])


def test_an_integer_task_column_of_an_array_is_left_out_of_the_features(make, sim):
    expected = easy(make)
    for place in (0, 2, 4):
        table = np.insert(sim.X, place, sim.task, axis=1)
        model = make(task_column=place).fit(table, sim.y)
        assert_allclose(model.coef_, expected.coef_, rtol=1e-9)
        assert_allclose(model.predict(table), expected.predict(sim.X, sim.task), rtol=1e-9)


@pytest.mark.parametrize(
    ("case", "n"),
    [("integers", 15), ("strings", 15), ("mixed", 15), ("tuples", 15), ("strings", 5)],
)
def test_shuffled_rows_give_the_coefficients_of_sorted_rows(make, case, n):
    X, y, task = tasks_of(12, n, 4)
    labels = per_row(NAMES[case], task)
    order = np.random.default_rng(4).permutation(len(y))
    model = fitted(make, X, y, labels)
    moved = fitted(make, X[order], y[order], [labels[i] for i in order])
    place = {label: t for t, label in enumerate(moved.tasks_.tolist())}
    same = [place[label] for label in model.tasks_.tolist()]
    assert relative(moved.coef_[same], model.coef_) < 1e-6
    assert relative(moved.intercept_[same], model.intercept_) < 1e-6
    assert getattr(moved, "rank_", None) == getattr(model, "rank_", None)


def test_row_order_does_not_matter_where_a_task_has_one_row_to_spare():
    """Two rows and an intercept: the marginal likelihood is the same for every penalty."""
    X, y, task = tasks_of(30, 2, 4, seed=7)
    order = np.random.default_rng(4).permutation(len(y))
    model = fitted(ss.PerTaskRegressor, X, y, task)
    moved = fitted(ss.PerTaskRegressor, X[order], y[order], task[order])
    assert relative(moved.coef_, model.coef_) < 1e-6


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("labels", [None, NAMES["strings"], NAMES["mixed"], NAMES["tuples"]])
def test_lists_of_arrays_equal_stacked_arrays(make, sim, kind, labels):
    X, y = kind(np.split(sim.X, 12)), kind(np.split(sim.y, 12))
    weight = np.arange(len(sim.y)) % 3 + 0.5
    rows = sim.task if labels is None else per_row(labels, sim.task)
    expected = fitted(make, sim.X, sim.y, rows, weight)
    model = fitted(make, X, y, labels, kind(np.split(weight, 12)))
    assert list(model.tasks_) == list(expected.tasks_)
    assert_allclose(model.coef_, expected.coef_, rtol=1e-9)
    assert_allclose(model.intercept_, expected.intercept_, rtol=1e-9)


def test_lists_of_frames_keep_the_names_of_their_columns(make, sim):
    frames = [pd.DataFrame(block, columns=list("abcd")) for block in np.split(sim.X, 12)]
    model = fitted(make, frames, np.split(sim.y, 12))
    assert list(model.coef_names_) == list("abcd")
    assert_allclose(model.coef_, easy(make).coef_, rtol=1e-9)


SIZES = {
    "many rows, several tasks": (8, 20, 4),
    "few rows, several tasks": (30, 8, 12),
    "one task": (1, 30, 3),
    "two tasks": (2, 20, 3),
}


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_weights_equal_repetition_and_zero_equals_removal(make, size, fit_intercept):
    assert_weights_repeat(make, size, fit_intercept=fit_intercept)


@pytest.mark.parametrize("size", ["many rows, several tasks", "one task", "two tasks"])
def test_weights_equal_repetition_with_noise_per_task(size):
    assert_weights_repeat(shared(2), size, 1e-4, tol=1e-8, noise="per_task")


def assert_weights_repeat(make, size, accuracy=1e-6, **parameters):
    X, y, task = tasks_of(*SIZES[size])
    weight = np.random.default_rng(3).integers(0, 4, len(y))
    weight[:2] = 1, 2
    weighted = fitted(make, X, y, task, weight, **parameters)
    repeated = fitted(
        make, X.repeat(weight, axis=0), y.repeat(weight), task.repeat(weight), **parameters
    )
    assert_array_equal(weighted.tasks_, repeated.tasks_)
    assert getattr(weighted, "rank_", None) == getattr(repeated, "rank_", None)
    rows = np.isin(task, weighted.tasks_)
    expected = repeated.predict(X[rows], task[rows])
    assert relative(weighted.predict(X[rows], task[rows]), expected) < accuracy
    if hasattr(weighted, "noise_variance_"):
        assert_allclose(weighted.noise_variance_, repeated.noise_variance_, rtol=100 * accuracy)


def test_weights_of_repeated_rows_and_of_unequal_rows_agree_on_the_rank_path(sim):
    weight = np.random.default_rng(3).integers(0, 4, len(sim.y))
    make = shared("auto")
    weighted = fitted(make, sim.X, sim.y, sim.task, weight).rank_path_
    repeated = fitted(
        make, sim.X.repeat(weight, axis=0), sim.y.repeat(weight), sim.task.repeat(weight)
    ).rank_path_
    assert_allclose(weighted.loss, repeated.loss, rtol=1e-6)
    assert_allclose(weighted.standard_error, repeated.standard_error, rtol=1e-4, atol=1e-12)


def test_tasks_of_weight_zero_are_not_there(make, sim):
    weight = (sim.task != 3).astype(float)
    model = fitted(make, sim.X, sim.y, sim.task, weight)
    expected = fitted(make, *(v[sim.task != 3] for v in (sim.X, sim.y, sim.task)))
    assert list(model.tasks_) == [t for t in range(12) if t != 3]
    assert relative(model.coef_, expected.coef_) < 1e-6


@pytest.mark.parametrize("sentinel", [-9999.0, 1e15, 1e300])
def test_values_of_rows_with_weight_zero_do_not_matter(make, sim, sentinel):
    weight = (np.arange(len(sim.y)) % 7 != 0).astype(float)
    X, y = sim.X.copy(), sim.y.copy()
    X[weight == 0], y[weight == 0] = sentinel, sentinel
    model = fitted(make, X, y, sim.task, weight)
    expected = fitted(make, *(v[weight > 0] for v in (sim.X, sim.y, sim.task)))
    assert relative(model.coef_, expected.coef_) < 1e-6
    assert relative(model.intercept_, expected.intercept_) < 1e-6


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_the_shared_span_of_a_given_rank_does_not_depend_on_the_size_of_all_weights(sim, factor):
    weight = np.random.default_rng(3).uniform(0.5, 2.0, len(sim.y))
    plain = fitted(shared(2), sim.X, sim.y, sim.task, weight)
    moved = fitted(shared(2), sim.X, sim.y, sim.task, factor * weight)
    assert relative(moved.coef_, plain.coef_) < 1e-6


@pytest.mark.parametrize("outlier", [1e5, 1e8])
def test_an_outlier_in_one_task_costs_the_others_no_digits(sim, outlier):
    X = sim.X.copy()
    X[0, 0] = outlier
    model = fitted(ss.PerTaskRegressor, X, sim.y, sim.task, alpha=0.0)
    rows = sim.task > 0
    alone = fitted(ss.PerTaskRegressor, X[rows], sim.y[rows], sim.task[rows], alpha=0.0)
    assert relative(model.coef_[1:], alone.coef_) < 1e-6


@pytest.mark.parametrize("outlier", [1e6, 1e9, 1e12])
def test_a_column_with_an_outlier_does_not_spoil_the_fit_of_the_other_columns(outlier):
    """The narrow fit is among the candidates of the wide one."""
    X, y, task = tasks_of(6, 10, 3)
    wide = np.column_stack([X, np.where(np.arange(60) == 3, outlier, y**2)])
    narrow = fitted(shared(2), X, y, task)
    model = fitted(shared(2), wide, y, task)
    errors = y - model.predict(wide, task)
    assert errors @ errors < 1.01 * np.sum((y - narrow.predict(X, task)) ** 2)


RIVALS = {
    "adaptive": ss.AdaptiveSpanRegressor,
    "duchi": lambda: ss.MomentRegressor(random_state=0),
    "tripuraneni": lambda: ss.MomentRegressor(variant="tripuraneni", rank=1, random_state=0),
    "spectral": lambda: ss.SpectralRegressor(rank=1, outliers=0.2),
    "armul": lambda: ss.ARMULRegressor(rank=1, random_state=0),
    "pERM": lambda: ss.PenalizedERMRegressor(rank=1, random_state=0),
    "freeze": lambda: ss.CurriculumRegressor(rank=1, random_state=0),
} | {
    solver: lambda solver=solver: ss.SharedSpanRegressor(
        rank=1, solver=solver, random_state=0, max_iter=60
    )
    for solver in ss.SOLVERS
}


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("case", HARD)
def test_every_rival_and_solver_stays_finite_on_hard_tables(case, name):
    X, y, task = HARD[case]
    model = RIVALS[name]().fit(X, y, task=task)
    assert np.isfinite(model.coef_).all()
    assert np.isfinite(model.predict(X, task)).all()
