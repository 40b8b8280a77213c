"""Tables of every kind that people have: pandas, polars, pyarrow, sparse matrices, objects."""

import re
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sharedspan as ss
from sharedspan.inputs import frames

SIM = ss.simulate(
    n_tasks=6, n_features=3, rank=1, n_samples=12, noise=0.1, intercept=1.0, random_state=0
)
X, Y = SIM.X, SIM.y
SCHOOL = np.array([f"school {t}" for t in SIM.task])
DATA = {"age": X[:, 0], "school": SCHOOL, "ses": X[:, 1], "size": X[:, 2]}
PANDAS = pd.DataFrame(DATA)
ARROW = pa.table({name: pa.array(values) for name, values in DATA.items()})
TABLES = {
    "pandas": PANDAS,
    "pandas of arrow": PANDAS.convert_dtypes(dtype_backend="pyarrow"),
    "pandas of nullable numbers": PANDAS.convert_dtypes(),
    "polars": pl.DataFrame(DATA),
    "lazy polars": pl.LazyFrame(DATA),
    "pyarrow table": ARROW,
    "pyarrow batch": ARROW.to_batches()[0],
    "pyarrow table of two chunks": pa.concat_tables([ARROW[:20], ARROW[20:]]),
    "pyarrow dictionary": ARROW.set_column(1, "school", ARROW["school"].dictionary_encode()),
}
COLUMNS = {
    "list": list,
    "pandas": pd.Series,
    "pandas of arrow": lambda a: pd.Series(a).convert_dtypes(dtype_backend="pyarrow"),
    "pandas of nullable numbers": lambda a: pd.Series(a).convert_dtypes(),
    "pandas object": lambda a: pd.Series(a, dtype=object),
    "polars": pl.Series,
    "pyarrow": pa.array,
    "pyarrow chunks": lambda a: pa.chunked_array([a[:20], a[20:]]),
}
MODELS = {
    "adaptive": ss.AdaptiveSpanRegressor,
    "shared": lambda **kw: ss.SharedSpanRegressor(rank=1, random_state=0, **kw),
    "pooled": ss.PooledRegressor,
}


@pytest.fixture(params=MODELS)
def make(request):
    return MODELS[request.param]


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_of_any_kind_gives_the_fit_of_its_array(make, kind):
    expected = make().fit(X, Y, task=SCHOOL)
    model = make(task_column="school").fit(TABLES[kind], Y)
    assert_allclose(model.coef_, expected.coef_, rtol=1e-12)
    assert model.feature_names_in_.tolist() == list(DATA)
    assert model.coef_names_.tolist() == ["age", "ses", "size"]
    assert model.tasks_.tolist() == expected.tasks_.tolist()
    for other in TABLES.values():  # a fit to one kind predicts every other
        assert_allclose(model.predict(other), expected.predict(X, SCHOOL), rtol=1e-10)
    assert_allclose(model.score(TABLES[kind], Y), expected.score(X, Y, SCHOOL), rtol=1e-12)


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("labels", [SCHOOL, SIM.task], ids=["text", "integers"])
def test_columns_of_any_kind_are_responses_labels_and_weights(make, kind, labels):
    column, weight = COLUMNS[kind], 1.0 + np.arange(72) % 2
    expected = make().fit(X, Y, labels, weight)
    model = make().fit(X, column(Y), column(labels), column(weight))
    assert_allclose(model.coef_, expected.coef_, rtol=1e-12)
    assert model.tasks_.tolist() == expected.tasks_.tolist()
    assert_allclose(model.predict(X, column(labels)), expected.predict(X, labels), rtol=1e-12)
    score = expected.score(X, Y, labels, weight)
    assert_allclose(model.score(X, column(Y), column(labels), column(weight)), score, rtol=1e-12)


@pytest.mark.parametrize("kind", [name for name in COLUMNS if name != "pandas object"])
@pytest.mark.parametrize("words", [("no", "yes"), (False, True), (0, 1)], ids=str)
def test_columns_of_any_kind_are_classes(kind, words):
    y = np.array(words)[(Y > 0).astype(int)]
    expected = ss.AdaptiveSpanClassifier(slopes="none", rank=0).fit(X, y, SCHOOL)
    model = ss.AdaptiveSpanClassifier(slopes="none", rank=0).fit(X, COLUMNS[kind](y), SCHOOL)
    assert model.classes_.tolist() == list(words)
    assert_allclose(model.coef_, expected.coef_, rtol=1e-12)
    assert model.score(X, COLUMNS[kind](y), SCHOOL) == expected.score(X, y, SCHOOL)


@pytest.mark.parametrize("kind", [name for name in TABLES if "pyarrow" in name or "lazy" in name])
def test_tables_of_any_kind_have_offsets_densities_and_intervals(kind):
    counts = np.random.default_rng(0).poisson(np.exp(0.3 * X[:, 0] + 1.0))
    model = ss.AdaptiveSpanRegressor(
        family="poisson", slopes="none", rank=0, task_column="school"
    ).fit(TABLES[kind], counts, exposure=pa.array(np.full(72, 2.0)))
    table, given = TABLES[kind], {"exposure": np.full(72, 2.0)}
    plain = model.predict(PANDAS, **given)
    assert_allclose(model.predict(table, **given), plain)
    assert_allclose(model.log_density(table, counts, **given),
                    model.log_density(PANDAS, counts, **given))  # fmt: skip
    low, high = model.predict_interval(table, **given)
    assert ((low <= plain) & (plain <= high)).all()


def test_missing_values_of_arrow_are_named_like_those_of_pandas():
    holes = ARROW.set_column(2, "ses", pa.array([None, *X[1:, 1]]))
    with pytest.raises(ValueError, match="NaN in row 0, column 'ses'"):
        ss.PooledRegressor(task_column="school").fit(holes, Y)
    unlabelled = ARROW.set_column(1, "school", pa.array([*SCHOOL[:3], None, *SCHOOL[4:]]))
    with pytest.raises(ValueError, match="task column 'school' is missing in row 3"):
        ss.PooledRegressor(task_column="school").fit(unlabelled, Y)
    with pytest.raises(ValueError, match="y contains NaN in row 1"):
        ss.PooledRegressor().fit(X, pa.array([1.0, None, *Y[2:]]), SCHOOL)


@pytest.mark.parametrize("name", ["schema", "collect", "column_names", "tocsr", "npartitions"])
def test_columns_may_have_the_names_of_attributes(make, name):
    table = PANDAS.rename(columns={"ses": name})
    model = make(task_column="school").fit(table, Y)
    assert_allclose(model.coef_, make().fit(X, Y, SCHOOL).coef_, rtol=1e-12)
    assert model.coef_names_.tolist() == ["age", name, "size"]


FORMATS = {
    kind.__name__: kind
    for kind in (sparse.csr_array, sparse.csc_array, sparse.coo_array, sparse.csr_matrix)
}


@pytest.fixture(scope="module")
def one_hot():
    """Sums of a number and of one of four levels."""
    rng = np.random.default_rng(0)
    level, number = rng.integers(4, size=72), rng.standard_normal(72)
    dense = np.column_stack([number, level[:, None] == np.arange(1, 4)]).astype(float)
    return dense, number + level + 0.1 * rng.standard_normal(72)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_sparse_matrix_is_the_dense_one(make, one_hot, kind):
    dense, y = one_hot
    X = FORMATS[kind](dense)
    expected, model = make().fit(dense, y, SCHOOL), make().fit(X, y, SCHOOL)
    assert np.array_equal(model.coef_, expected.coef_)
    assert np.array_equal(model.predict(X, SCHOOL), expected.predict(dense, SCHOOL))
    assert model.n_features_in_ == 4
    with pytest.raises(ValueError, match=r"3 features, .* expecting 4"):
        model.predict(FORMATS[kind](dense[:, :3]), SCHOOL)


def test_sparse_rows_are_compared_diagnosed_and_given_as_lists(one_hot):
    dense, y = one_hot
    X, methods = sparse.csr_array(dense), ["PooledRegressor", "PerTaskRegressor"]
    model = ss.AdaptiveSpanRegressor().fit(X, y, SCHOOL)
    assert ss.diagnose(model, X, y, SCHOOL).noise == ss.diagnose(model, dense, y, SCHOOL).noise
    both = [ss.compare(rows, y, SCHOOL, repeats=2, methods=methods) for rows in (X, dense)]
    assert [e.rmse for e in both[0].entries] == [e.rmse for e in both[1].entries]
    blocks, targets = [X[:12], X[12:24]], [y[:12], y[12:24]]
    pooled, task = ss.PooledRegressor().fit(blocks, targets), SIM.task[:24]
    expected = ss.PooledRegressor().fit(dense[:24], y[:24], task)
    assert_allclose(pooled.coef_, expected.coef_, rtol=1e-12)
    assert_allclose(np.concatenate(pooled.predict(blocks)), expected.predict(dense[:24], task))
    classes = ss.SharedSpanClassifier(rank=1).fit(X, y > 1, SCHOOL, offset=np.zeros(72))
    assert classes.predict_proba([X[:12]], task=["school 0"])[0].shape == (12, 2)


def test_sparse_columns_of_pandas_are_dense_columns(make, one_hot):
    dense, y = one_hot
    table = pd.DataFrame({"school": SCHOOL, "number": dense[:, 0]})
    for j, fill in enumerate((0.0, 0.0, np.nan)):
        table[f"level {j}"] = pd.arrays.SparseArray(dense[:, j + 1], fill_value=fill)
    table["level 0"] = pd.arrays.SparseArray(dense[:, 1].astype(int))
    model = make(task_column="school").fit(table, y)
    expected = make().fit(dense, y, SCHOOL)
    assert_allclose(model.coef_, expected.coef_, rtol=1e-12)
    assert_allclose(model.predict(table), expected.predict(dense, SCHOOL), rtol=1e-12)


def test_a_sparse_table_too_large_for_memory_is_refused(monkeypatch, one_hot):
    dense, y = one_hot
    wide = sparse.csr_array((72, 10**11))
    with pytest.raises(ValueError, match=r"72 rows and 100,000,000,000 columns.*use fewer columns"):
        ss.PooledRegressor().fit(wide, y, SCHOOL)
    model = ss.PooledRegressor().fit(dense, y, SCHOOL)
    needed = 8 * dense.size  # at most half of the memory
    monkeypatch.setattr(frames, "machine_memory", lambda: 2 * needed)
    model.predict(sparse.csr_array(dense), SCHOOL)
    monkeypatch.setattr(frames, "machine_memory", lambda: 2 * needed - 1)
    with pytest.raises(ValueError, match="more than half of this machine's"):
        model.predict(sparse.csr_array(dense), SCHOOL)
    columns = pd.DataFrame.sparse.from_spmatrix(sparse.csr_matrix(dense))
    with pytest.raises(ValueError, match="more than half of this machine's"):
        model.predict(columns, SCHOOL)


def test_an_array_of_objects_that_are_numbers_is_one_of_numbers(make):
    mixed = np.column_stack([X.astype(object), SCHOOL])
    mixed[:, 1] = [int(1000 * value) for value in X[:, 1]]
    expected = make().fit(mixed[:, :3].astype(float), Y, SCHOOL)
    model = make(task_column=3).fit(mixed, Y)
    assert_allclose(model.coef_, expected.coef_, rtol=1e-12)
    assert_allclose(model.predict(mixed), expected.predict(mixed[:, :3], SCHOOL), rtol=1e-12)


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow table"])
def test_a_frame_without_labels_warns_that_it_is_one_task(make, kind):
    table = TABLES[kind]
    columns = ["age", "ses"]
    numbers = table.select(columns) if hasattr(table, "select") else table[columns]
    with pytest.warns(UserWarning, match=r"all rows are fitted as one task: use \w+\(task_column="):
        model = make().fit(numbers, Y)
    assert len(model.tasks_) == 1
    with pytest.warns(UserWarning, match=r"Regressor\(task_column='school'\), or .* task="):
        model = make().fit(table, Y)
    assert any(name.startswith("school=") for name in model.coef_names_)


def test_arrays_lists_and_labelled_frames_do_not_warn(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make().fit(X, Y)
        make().fit(sparse.csr_array(X), Y)
        make().fit(X.tolist(), Y.tolist())
        make().fit(PANDAS[["age", "ses"]], Y, task=SCHOOL)
        make().fit(PANDAS[["age", "ses"]], Y, task=0)
        make().fit([PANDAS[["age", "ses"]]] * 2, [Y, Y])
        make(task_column="school").fit(PANDAS, Y)


def test_the_warning_points_to_the_line_of_the_fit():
    with pytest.warns(UserWarning, match="one task") as caught:
        ss.PooledRegressor().fit(PANDAS[["age"]], Y)
    with pytest.warns(UserWarning, match="one task") as again:
        ss.AdaptiveSpanRegressor().fit(PANDAS[["age"]], Y)
    assert {w.filename for w in [*caught, *again]} == {__file__}


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_transform_returns_frames_of_the_kind_that_was_asked_for(kind):
    model = ss.SharedSpanRegressor(rank=1, random_state=0, task_column="school")
    for table in TABLES.values():
        out = model.set_output(transform=kind).fit(table, Y).transform(table)
        assert type(out).__module__.startswith(kind)
        assert list(out.columns) == ["sharedspanregressor0"]


def test_labels_of_another_type_than_the_fit_are_refused_though_new_tasks_are_not():
    model = ss.AdaptiveSpanRegressor().fit(X, Y, SIM.task)
    assert np.isfinite(model.predict(X[:2], ["new", "0.5"])).all()
    with pytest.raises(ValueError, match=r"Task '3' was not in the fit, but 3 was"):
        model.predict(X[:2], ["new", "3"])
    model = ss.AdaptiveSpanRegressor().fit(X, Y, SIM.task.astype(str))
    with pytest.raises(ValueError, match=r"Task 3 was not in the fit, but '3' was"):
        model.predict(X[:2], [9, 3])
    with pytest.raises(ValueError, match=r"Task 3 was not in the fit, but '3' was"):
        model.predict(X, SIM.task + 3)


def test_a_pipeline_over_a_table_of_pyarrow_and_labels():
    table = ARROW.drop(["school"])
    model = make_pipeline(StandardScaler(), ss.PooledRegressor())
    model.fit(table, Y, pooledregressor__task=ARROW["school"])
    scaled = StandardScaler().fit_transform(X)
    expected = ss.PooledRegressor().fit(scaled, Y, SCHOOL)
    assert_allclose(model[-1].coef_, expected.coef_, rtol=1e-10)
    assert_allclose(model.predict(table, task=SCHOOL), expected.predict(scaled, SCHOOL))


COMMAS = pd.Series([f"{value:.3f}".replace(".", ",") for value in Y])
TEXT_TARGETS = {
    "decimal commas": (COMMAS, {"decimal": ","}),
    "points": (pd.Series([f"{value:.3f}" for value in Y]), {}),
    "units": (COMMAS + " kg", {"decimal": ","}),
    "missing": (COMMAS.where(COMMAS.index > 0, "n/k"),
                {"decimal": ",", "na_values": ["n/k"], "missing": "drop"}),
    "polars": (pl.Series(COMMAS.tolist()), {"decimal": ","}),
    "pyarrow": (pa.array(COMMAS.tolist()), {"decimal": ","}),
}  # fmt: skip


@pytest.mark.parametrize("kind", TEXT_TARGETS)
def test_a_target_of_text_is_read_as_the_columns_are_and_the_message_says_how(make, kind):
    y, options = TEXT_TARGETS[kind]
    listed = ", ".join(f"{name}={value!r}" for name, value in options.items())
    words = re.escape(f"columns=ss.Columns({listed})")
    with pytest.raises(ValueError, match=rf"y is not numeric: row 0 holds .*\. Add {words}"):
        make(task_column="school").fit(PANDAS, y)
    model = make(task_column="school", columns=ss.Columns(**options)).fit(PANDAS, y)
    kept = slice(int("missing" in options), None)
    expected = make(task_column="school").fit(PANDAS[kept], np.round(Y, 3)[kept])
    assert_allclose(model.coef_, expected.coef_, rtol=1e-8)
    if "missing" not in options:
        assert_allclose(model.score(PANDAS, y), expected.score(PANDAS, np.round(Y, 3)))
        assert ss.diagnose(model, PANDAS, y).n_features == 3


def test_a_target_that_holds_no_numbers_is_told_in_words_of_its_own():
    with pytest.raises(ValueError, match=r"row 0 holds the text 'up'\. .*Classifier"):
        ss.PooledRegressor(task_column="school").fit(PANDAS, ["up", "down"] * 36)
    holes = np.where(np.arange(72) == 3, np.nan, Y)
    with pytest.raises(ValueError, match=r"y contains NaN in row 3 .*missing='drop'"):
        ss.PooledRegressor(task_column="school").fit(PANDAS, holes)
    columns = ss.Columns(missing="drop")
    model = ss.PooledRegressor(task_column="school", columns=columns).fit(PANDAS, holes)
    assert model.n_rows_dropped_ == 1
    with pytest.raises(ValueError, match=r"y contains infinity in row 3 .*: correct or drop"):
        ss.PooledRegressor(task_column="school").fit(PANDAS, np.nan_to_num(holes, nan=np.inf))


CITY = np.where(X[:, 0] > 0, "Ulm", "Bonn")


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow table"])
@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
def test_labels_may_be_given_beside_a_frame_that_lacks_the_task_column(make, kind, text):
    whole = PANDAS.assign(city=CITY) if text else PANDAS
    convert = {"pandas": pd.DataFrame, "polars": pl.from_pandas}.get(kind, pa.Table.from_pandas)
    rows, table = convert(whole.drop(columns="school")), convert(whole)
    model = make(task_column="school").fit(table, Y)
    expected = model.predict(table)
    assert_allclose(model.predict(rows, task=SCHOOL), expected)
    assert_allclose(model.score(rows, Y, task=SCHOOL), model.score(table, Y))
    facts = [ss.diagnose(model, *given).noise for given in ((rows, Y, SCHOOL), (table, Y))]
    assert facts[0] == facts[1]
    beside = make(task_column="school").fit(rows, Y, task=SCHOOL)
    assert_allclose(beside.coef_, model.coef_, rtol=1e-8)
    for given in ((rows, SCHOOL), (table, None)):
        assert_allclose(beside.predict(*given), expected, rtol=1e-8)
    with pytest.raises(ValueError, match="given twice"):
        model.predict(table, task=SCHOOL)
    with pytest.raises(ValueError, match="no task column 'school' in X"):
        model.predict(rows)
    with pytest.raises(ValueError, match="ses"):
        model.predict(whole.drop(columns=["school", "ses"]), task=SCHOOL)


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
def test_new_tasks_are_fitted_by_labels_beside_a_frame_without_the_task_column(text):
    whole = PANDAS.assign(city=CITY) if text else PANDAS
    known = ss.AdaptiveSpanRegressor(task_column="school").fit(whole, Y)
    rows = whole.drop(columns="school")
    by_column, by_labels = (ss.NewTaskRegressor.from_model(known) for _ in range(2))
    by_column.fit(whole, Y)
    by_labels.fit(rows, Y, task=SCHOOL)
    assert_allclose(by_labels.coef_, by_column.coef_)
    assert_allclose(by_labels.predict(rows, task=SCHOOL), by_column.predict(whole))
