"""Statistics that a database makes, and fits from them."""

import json

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from postgres import find_program, running_server

import sharedspan as ss
from sharedspan.inputs.rows import validate_rows
from sharedspan.statistics import from_frame
from sharedspan.statistics.canonical import canonical
from sharedspan.statistics.database import DIALECTS
from sharedspan.statistics.from_frame import read_statistics
from sharedspan.statistics.task_statistics import gather

duckdb = pytest.importorskip("duckdb")

NO_SERVER = "no PostgreSQL server is installed (apt-get install postgresql)"


def duckdb_sums(frame, features, **options):
    """The statistics of a frame with the columns school, features and score."""
    names = {"task": "school", "target": "score"} | options
    with duckdb.connect() as connection:
        connection.register("pupils", frame)
        query = ss.statistics_query(features, table="pupils", **names)
        return connection.sql(query).df()


@pytest.fixture(scope="module")
def server():
    if find_program("initdb") is None or find_program("psql") is None:
        pytest.skip(NO_SERVER)
    with running_server() as running:
        yield running


@pytest.fixture
def in_postgresql(server):
    """A function like ``duckdb_sums``."""

    def sums(frame, features, table="pupils", kinds=None, **options):
        names = {"task": "school", "target": "score"} | options
        kinds = kinds or ["double precision"] * frame.shape[1]
        server.write(frame, table, kinds)
        try:
            query = ss.statistics_query(features, table=table, dialect="postgresql", **names)
            return server.read(query)
        finally:
            server.run(f"DROP TABLE {table}")

    return sums


@pytest.fixture(params=["duckdb", "postgresql"])
def sums_of(request):
    """A function from a frame of rows to the frame of its statistics, in each database."""
    if request.param == "duckdb":
        return duckdb_sums
    return request.getfixturevalue("in_postgresql")


def table_of(X, y, task):
    frame = pd.DataFrame(X, columns=[f"f{j}" for j in range(X.shape[1])])
    frame.insert(0, "school", task)
    return frame.assign(score=y), list(frame.columns[1:])


def table(rng, level=0.0, n_tasks=12, d=4):
    """Rows of unequal tasks whose means are ``level`` times the spread within tasks."""
    task = np.repeat(np.arange(n_tasks), rng.integers(3, 40, n_tasks))
    spread = 10.0 ** np.arange(-2, d - 2)
    X = spread * (level * (1 + 0.1 * task[:, None]) + rng.standard_normal((len(task), d)))
    y = level + X @ rng.standard_normal(d) + rng.standard_normal(len(task))
    order = rng.permutation(len(task))
    return X[order], y[order], task[order]


def exact_sums(X, y, task, centred):
    """Means (T, d + 1) and products (T, d + 1, d + 1), in extended precision."""
    Z = np.column_stack([X, y]).astype(np.longdouble)
    for label in np.unique(task):
        rows = Z[task == label]
        mean = rows.mean(axis=0) if centred else np.zeros(Z.shape[1], np.longdouble)
        yield mean, (rows - mean).T @ (rows - mean)


def full_products(statistics, t):
    """Products (d + 1, d + 1) of a task from sums at an anchor of zero."""
    g, q = statistics.at_anchor(np.zeros_like(statistics.anchor))
    return np.block([[statistics.gram(t), g[t][:, None]], [g[t][None], np.array([[q[t]]])]])


# ---- the statistics ------------------------------------------------------------------------------


@pytest.mark.parametrize("centred", [True, False], ids=["intercepts", "no intercepts"])
@pytest.mark.parametrize(("level", "folds"), [(0.0, False), (1e3, True), (1e6, False), (1e6, True)])
def test_statistics_are_those_of_the_rows(sums_of, rng, level, folds, centred):
    X, y, task = table(rng, level)
    read = read_statistics(sums_of(*table_of(X, y, task), folds=folds), centred).statistics
    from_rows = gather(validate_rows(X, y, task), centred, kind="gram")
    for each in (read, from_rows):
        statistics, origin = each.statistics, each.units.origin
        assert_array_equal(statistics.n, np.bincount(task))
        for t, (mean, products) in enumerate(exact_sums(X, y, task, centred)):
            deviation = np.sqrt(np.diag(products)).astype(float)
            error = np.abs(full_products(statistics, t) - products)
            assert (error / np.outer(deviation, deviation)).max() < 1e-12
            distance = (mean[:-1] - origin).astype(float)
            error = np.abs(statistics.mean[t] - distance)
            assert (error / (deviation[:-1] + np.abs(distance))).max() < 1e-12
            assert abs(statistics.y_mean[t] - mean[-1]) <= 1e-12 * abs(mean[-1])


@pytest.mark.parametrize("folds", [False, True])
def test_constant_features_stay_constant_however_far_from_zero(sums_of, rng, folds):
    X, y, task = table(rng)
    X[:, 1] = 1e6 + 0.1
    X[:, 2] = 1e6 + 0.1 * task
    sums = sums_of(*table_of(X, y, task), folds=folds)
    model = ss.SharedSpanRegressor(rank=1, random_state=0).fit_statistics(sums)
    assert_array_equal(model.coef_[:, 1:3], 0.0)


@pytest.mark.parametrize("size", [1e-60, 1e60])
def test_very_large_and_small_features_need_no_care(rng, size):
    X, y, task = table(rng)
    X[:, 0] *= size
    frame, features = table_of(X, y, task)
    model = ss.SharedSpanRegressor(rank=1, random_state=0, tol=1e-10)
    expected = model.fit(X, y, task=task).coef_
    coef = model.fit_statistics(duckdb_sums(frame, features)).coef_
    assert_allclose(coef * X.std(axis=0), expected * X.std(axis=0), rtol=1e-6, atol=1e-8)


def test_columns_of_any_numeric_type_are_converted(in_postgresql, rng):
    X, y, task = table(rng)
    frame, features = table_of(np.round(X), np.round(y), task)
    kinds = ["smallint", "integer", "numeric", "real", "bigint", "numeric(20, 3)"]
    found = in_postgresql(frame.astype(int), features, kinds=kinds)
    expected = duckdb_sums(frame, features).sort_values("task")
    found = read_statistics(found.sort_values("task"), True).statistics.statistics
    expected = read_statistics(expected, True).statistics.statistics
    for name in ("n", "mean", "y_mean", "packed"):
        assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-12)


# ---- fits ----------------------------------------------------------------------------------------

GIVEN = {  # models whose rank and structure are given
    "pooled": lambda: ss.PooledRegressor(),
    "per task": lambda: ss.PerTaskRegressor(),
    "shared span": lambda: ss.SharedSpanRegressor(rank=2, tol=1e-12, max_iter=5000, random_state=0),
    "noise levels": lambda: ss.SharedSpanRegressor(
        rank=1, noise="per_task", tol=1e-12, max_iter=5000, random_state=0
    ),
    "spectral": lambda: ss.SpectralRegressor(rank=2),
    "mixed": lambda: ss.AdaptiveSpanRegressor(
        rank=1, slopes="diagonal", noise="shared", outliers=False
    ),
}


@pytest.fixture(scope="module")
def bundled():
    """The bundled tables with their statistics by DuckDB."""
    tables = {}
    for load in (ss.datasets.load_parkinsons, ss.datasets.load_communities_crime):
        data = load()
        names = {"task": data.task_name, "target": data.target_name}
        tables[data.task_name] = data, duckdb_sums(data.to_frame(), data.feature_names, **names)
    return tables


def assert_same_coefficients(model, expected, X, tolerance=1e-8):
    scale = X.std(axis=0)
    size = np.abs(expected.coef_ * scale).max()
    assert np.abs((model.coef_ - expected.coef_) * scale).max() < tolerance * size
    level = np.abs(expected.intercept_).max()
    assert np.abs(model.intercept_ - expected.intercept_).max() < tolerance * max(level, size)


def moved_by_rounding(make, data, expected):
    """The largest change of a coefficient when the rows are permuted, relative to the largest."""
    scale, moves = data.X.std(axis=0), []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(data.y))
        again = make().fit(data.X[order], data.y[order], task=np.asarray(data.task)[order])
        assert_array_equal(again.tasks_, expected.tasks_)
        moves.append(np.abs((again.coef_ - expected.coef_) * scale).max())
    return max(moves) / np.abs(expected.coef_ * scale).max()


@pytest.mark.parametrize("make", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("name", ["subject", "state"])
def test_coefficients_are_those_of_the_rows(bundled, name, make):
    data, sums = bundled[name]
    expected = make().fit(data.X, data.y, task=data.task)
    model = make().fit_statistics(sums)
    tolerance = 1e-8
    if isinstance(model, ss.SharedSpanRegressor):  # tasks with few rows hardly determine weights
        tolerance = max(tolerance, 2 * moved_by_rounding(make, data, expected))
    assert_same_coefficients(model, expected, data.X, tolerance)
    assert_array_equal(model.tasks_, expected.tasks_)
    assert tuple(model.feature_names_in_) == data.feature_names


@pytest.mark.parametrize(
    "make",
    [
        lambda: ss.ARMULRegressor(rank=2, penalty=1.0, tol=1e-10, max_iter=20_000, random_state=0),
        lambda: ss.AdaptiveSpanRegressor(
            rank=0, slopes="diagonal", noise="shared", method="ml"
        ),
        lambda: ss.SharedSpanRegressor(rank=2, tol=1e-12, fit_intercept=False, random_state=0),
    ],
    ids=["armul", "maximum likelihood", "no intercepts"],
)  # fmt: skip
def test_predictions_are_those_of_the_rows(bundled, make):
    # One of two features is nearly three times the other: coefficients are not identified.
    data, sums = bundled["subject"]
    expected = make().fit(data.X, data.y, task=data.task)
    model = make().fit_statistics(sums)
    X = pd.DataFrame(data.X, columns=data.feature_names)
    found, known = model.predict(X, data.task), expected.predict(data.X, data.task)
    assert np.abs(found - known).max() < 1e-8 * np.abs(known).max()
    assert_allclose(model.noise_variance_, expected.noise_variance_, rtol=1e-7)


@pytest.mark.parametrize("name", ["subject", "state"])
def test_a_server_and_duckdb_give_the_same_fit(bundled, in_postgresql, name):
    data, sums = bundled[name]
    names = {"task": data.task_name, "target": data.target_name}
    others = in_postgresql(data.to_frame(), data.feature_names, **names)
    make = GIVEN["shared span"]
    model, expected = make().fit_statistics(others), make().fit_statistics(sums)
    assert_same_coefficients(model, expected, data.X)
    assert_array_equal(model.tasks_, expected.tasks_)


def test_statistics_can_be_added_to_and_merged_and_saved(tmp_path, small):
    frame, features = table_of(small.X, small.y, small.task)
    whole = ss.SharedSpanRegressor(rank=2, random_state=0, tol=1e-12).fit(
        small.X, small.y, task=small.task
    )
    halves = [duckdb_sums(frame[i::2], features) for i in range(2)]
    make = GIVEN["shared span"]
    merged = make().fit_statistics(halves[0]).merge(make().fit_statistics(halves[1]))
    assert_same_coefficients(merged, whole, small.X)
    grown = make().fit_statistics(halves[0])
    grown.save(tmp_path / "half.span", statistics=True)
    grown = ss.load(tmp_path / "half.span")
    grown.partial_fit(frame.loc[1::2, features], small.y[1::2], task=small.task[1::2])
    assert_same_coefficients(grown, whole, small.X)


def test_frames_of_all_kinds_are_read(small):
    pytest.importorskip("polars")
    frame, features = table_of(small.X, small.y, small.task)
    frame["school"] = "school " + frame["school"].astype(str)
    query = ss.statistics_query(features, task="school", target="score", table="frame")
    relation = duckdb.sql(query)
    expected = ss.PerTaskRegressor().fit_statistics(relation.df())
    as_text = relation.df()
    for name in ("means", "remainders", "products"):
        as_text[name] = [json.dumps(list(each)) for each in as_text[name]]
    shuffled = relation.df().sample(frac=1, random_state=0)
    frames = [relation.pl(), relation.to_arrow_table(), as_text, shuffled]
    frames += [relation] * hasattr(relation, "__arrow_c_stream__")
    for given in frames:
        model = ss.PerTaskRegressor().fit_statistics(given)
        assert_array_equal(model.tasks_, expected.tasks_)
        assert_allclose(model.coef_, expected.coef_, rtol=1e-10)
    assert expected.tasks_[0] == "school 0"


def test_a_frame_by_hand_needs_few_columns(small):
    rows = pd.DataFrame(np.column_stack([small.X, small.y])).groupby(small.task)
    upper = np.triu_indices(small.X.shape[1] + 1)
    sums = pd.DataFrame({
        "task": [label for label, _ in rows],
        "n_rows": [len(each) for _, each in rows],
        "means": [each.mean().to_numpy() for _, each in rows],
        "products": [(len(each) - 1) * each.cov().to_numpy()[upper] for _, each in rows],
    })  # fmt: skip
    model = ss.PerTaskRegressor().fit_statistics(sums)
    expected = ss.PerTaskRegressor().fit(small.X, small.y, task=small.task)
    assert_same_coefficients(model, expected, small.X)
    assert not hasattr(model, "feature_names_in_")


def test_the_task_column_of_a_model_is_that_of_the_table(small):
    frame, features = table_of(small.X, small.y, small.task)
    sums = duckdb_sums(frame, features)
    model = ss.PerTaskRegressor(task_column="school").fit_statistics(sums)
    assert_allclose(
        model.predict(frame[["school", *features]]),
        ss.PerTaskRegressor().fit(small.X, small.y, task=small.task).predict(small.X, small.task),
    )
    with pytest.raises(ValueError, match=r"task_column='class', but the frame has .* 'school'"):
        ss.PerTaskRegressor(task_column="class").fit_statistics(sums)


# ---- folds ---------------------------------------------------------------------------------------


def fold_of_rows(frame, features):
    """The fold of each row, by DuckDB."""
    with duckdb.connect() as connection:
        connection.register("pupils", frame)
        values = ", ".join(f"CAST({name} AS DOUBLE)" for name in [*features, "score"])
        bucket = DIALECTS["duckdb"].bucket.format(values)
        return connection.sql(f"SELECT {bucket} FROM pupils").fetchnumpy().popitem()[1]


@pytest.mark.parametrize("centred", [True, False], ids=["intercepts", "no intercepts"])
def test_folds_have_the_errors_of_their_rows(rng, small, centred):
    frame, features = table_of(small.X, small.y, small.task)
    sums = duckdb_sums(frame, features, folds=True)
    model = ss.SharedSpanRegressor(rank=2, fit_intercept=centred)
    read = read_statistics(sums, centred).statistics
    whole = gather(validate_rows(small.X, small.y, small.task), centred, kind="gram").statistics
    assert_allclose(read.statistics.packed, whole.packed, rtol=1e-9, atol=1e-9)
    problem = canonical(read, model.needs().features, rng)
    folds, fold_of = problem.make_folds(rng), fold_of_rows(frame, features)
    assert len(np.unique(fold_of)) == 5
    T, d = len(read.labels), problem.statistics.n_features
    response = rng.uniform(1, 2, T)
    B, W = rng.standard_normal((d, 2)), rng.standard_normal((2, T))
    V = problem.canonical.to_user(B @ W / response)
    for fold in range(5):
        with folds.without(fold, problem.statistics, problem.canonical) as remaining:
            kept = fold_of != fold
            assert_array_equal(remaining.n, np.bincount(small.task[kept], minlength=T))
            found = folds.errors(fold, remaining, response, problem.canonical, B, W)
        residual = small.y - np.einsum("ij,ji->i", small.X, V[:, small.task])
        level = np.zeros(T)
        if centred:
            level = np.bincount(small.task[kept], residual[kept]) / remaining.n
        squares = np.where(kept, 0.0, (residual - level[small.task]) ** 2)
        assert_allclose(found, np.bincount(small.task, squares), rtol=1e-9, atol=1e-9)
        assert_array_equal(folds.sizes(fold), np.bincount(small.task[~kept], minlength=T))


def test_the_rank_is_cross_validated_if_there_are_folds(sums_of):
    sim = ss.simulate(n_tasks=40, n_features=6, rank=2, n_samples=40, noise=0.3, random_state=0)
    frame, features = table_of(sim.X, sim.y, sim.task)
    model = ss.SharedSpanRegressor(random_state=0)
    for folds, method in ((False, "evidence"), (True, "auto")):
        model.fit_statistics(sums_of(frame, features, folds=folds))
        assert (model.rank_, model.rank_path_.method) == (2, method)
    rows = ss.SharedSpanRegressor(random_state=0).fit(sim.X, sim.y, task=sim.task)
    assert_allclose(model.rank_path_.loss[1], rows.rank_path_.loss[1], rtol=0.1)


def test_folds_select_a_penalty_too(small):
    frame, features = table_of(small.X, small.y, small.task)
    model = ss.ARMULRegressor(rank=2, random_state=0)
    assert model.fit_statistics(duckdb_sums(frame, features, folds=True)).penalty_path_ is not None


# ---- missing values ------------------------------------------------------------------------------


def test_incomplete_rows_are_left_out_and_counted(sums_of, small):
    frame, features = table_of(small.X, small.y, small.task.astype(float))
    frame.loc[[3, 50], "f1"] = np.nan
    frame.loc[[3, 77], "score"] = np.nan
    frame.loc[frame["school"] == 5, "f0"] = np.nan
    frame.loc[[90, 91], "school"] = np.nan
    sums = sums_of(frame, features)
    complete = frame.dropna()
    n_dropped = len(frame) - len(complete)
    assert sums["n_missing"].sum() == n_dropped
    assert sums["n_rows"].sum() == len(complete)
    with pytest.raises(ValueError, match=rf"{n_dropped} row\(s\) of .* NULL or NaN .*'drop'"):
        ss.PerTaskRegressor().fit_statistics(sums)
    model = ss.PerTaskRegressor().fit_statistics(sums, missing="drop")
    expected = ss.PerTaskRegressor().fit(
        complete[features], complete["score"], task=complete["school"]
    )
    assert_same_coefficients(model, expected, small.X)
    assert_array_equal(model.tasks_, expected.tasks_)
    assert model.n_rows_dropped_ == n_dropped


@pytest.mark.parametrize("dialect", ["duckdb", "postgresql"])
def test_nan_is_as_missing_as_null(request, dialect):
    values = [("a", "1", "2"), ("a", "'NaN'", "2"), ("a", "NULL", "3"), ("a", "4", "'NaN'")]
    rows = ", ".join(f"('{t}', CAST({x} AS FLOAT), CAST({y} AS FLOAT))" for t, x, y in values)
    make = f"CREATE TABLE gaps AS SELECT * FROM (VALUES {rows}) AS v (t, x, y)"
    query = ss.statistics_query("x", task="t", target="y", table="gaps", dialect=dialect)
    if dialect == "postgresql":
        server = request.getfixturevalue("server")
        server.run(make)
        sums = server.read(query)
    else:
        with duckdb.connect() as connection:
            connection.execute(make)
            sums = connection.sql(query).df()
    assert_array_equal(sums[["n_rows", "n_missing"]], [[1, 3]])


# ---- the query -----------------------------------------------------------------------------------

ODD = [
    'a "quoted" name',
    "back`tick \\ slash",
    "select",
    "task",
    "x0",
    "naïve 'café'",
    "a; --",
    "t.x",
]


@pytest.mark.parametrize("folds", [False, True])
def test_every_name_is_quoted(sums_of, rng, folds):
    X, y, _ = table(rng, n_tasks=1, d=len(ODD))
    frame = pd.DataFrame(X, columns=ODD).assign(**{"from": y, 'ta"sk': 7.0})
    options = {"task": 'ta"sk', "target": "from", "folds": folds}
    model = ss.PerTaskRegressor().fit_statistics(sums_of(frame, ODD, **options))
    assert model.feature_names_in_.tolist() == ODD
    assert_array_equal(model.tasks_, [7])


def test_a_table_may_have_a_schema_and_be_a_file(tmp_path, small):
    frame, features = table_of(small.X, small.y, small.task)
    names = {"features": features, "task": "school", "target": "score"}
    with duckdb.connect() as connection:
        connection.execute('CREATE SCHEMA "my ""schema"""')
        connection.execute('CREATE TABLE "my ""schema"""."t" AS SELECT * FROM frame')
        connection.execute("CREATE TABLE sharedspan_rows AS SELECT * FROM frame")
        path = str(tmp_path / "pupils.parquet")
        frame.to_parquet(path)
        for table in ('my "schema".t', ("sharedspan_rows",), (path,)):
            sums = connection.sql(ss.statistics_query(table=table, **names)).df()
            assert sums["n_rows"].sum() == len(frame)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_products_are_one_column_and_names_are_short(dialect):
    long = ["x" * 200 + str(j) for j in range(60)]
    query = ss.statistics_query(
        long, task="school", target="score", table="pupils", dialect=dialect, folds=True
    )
    sqlglot = pytest.importorskip("sqlglot")
    name = "postgres" if dialect == "postgresql" else dialect
    tree = sqlglot.parse_one(query, read=name)
    assert tree.named_selects == [
        "task", "fold", "n_rows", "n_missing", "means", "remainders", "products", "names"
    ]  # fmt: skip
    aliases = {alias.alias for alias in tree.find_all(sqlglot.exp.Alias)}
    assert max(len(alias.encode()) for alias in aliases) <= 63


def test_the_text_for_bigquery_parses_and_means_the_same(small):
    sqlglot = pytest.importorskip("sqlglot")
    frame, features = table_of(small.X, small.y, small.task)
    frame.loc[[3, 4], "f1"] = np.nan
    odd = [name.replace(".", "_") for name in ODD]  # columns of BigQuery have no dots
    frame = frame.rename(columns=dict(zip(features, odd, strict=True)))
    query = ss.statistics_query(
        odd, task="school", target="score", table="pupils", dialect="bigquery"
    )
    tree = sqlglot.parse_one(query, read="bigquery")
    assert {c.name for c in tree.find_all(sqlglot.exp.Column)} >= {*odd, "school", "score"}
    with duckdb.connect() as connection:
        connection.register("pupils", frame)
        found = connection.sql(tree.sql("duckdb")).df()
    expected = duckdb_sums(frame, odd)
    found, expected = (each.sort_values("task") for each in (found, expected))
    for name in ("task", "n_rows", "n_missing", "names"):
        assert_array_equal(found[name], expected[name])
    for name in ("means", "products"):
        assert_allclose(np.stack(found[name]), np.stack(expected[name]), rtol=1e-12, atol=1e-12)


def test_bigquery_text_quotes_by_backticks():
    query = ss.statistics_query(
        ["a`b"], task="t", target="y\\", table="my-project.data.rows", dialect="bigquery"
    )
    assert r"source.`a\`b`" in query
    assert r"source.`y\\`" in query
    assert "FROM `my-project`.`data`.`rows` AS source" in query
    assert '"' not in query.split("SELECT c.task")[0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"features": []}, "features is empty"),
        ({"features": ["a", "a"]}, "'a' is named twice"),
        ({"features": ["a", "y"]}, "'y' is named twice"),
        ({"task": "a"}, "'a' is named twice"),
        ({"features": [""]}, "features holds ''"),
        ({"features": [3]}, "features holds 3"),
        ({"target": "a\0b"}, "target holds"),
        ({"table": ""}, "table holds ''"),
        ({"table": "a..b"}, "table holds ''"),
        ({"table": ()}, "table holds ''"),
        ({"dialect": "oracle"}, "must be one of 'duckdb', 'postgresql', 'bigquery'"),
        ({"folds": 5}, "folds=5 must be True or False"),
    ],
    ids=str,
)
def test_queries_that_make_no_sense_are_refused(changed, message):
    given = {"features": ["a", "b"], "task": "t", "target": "y", "table": "rows"} | changed
    with pytest.raises(ValueError, match=message):
        ss.statistics_query(**given)


# ---- frames that are not statistics --------------------------------------------------------------


@pytest.fixture
def sums(rng):
    frame, features = table_of(*table(rng, n_tasks=6, d=2))
    return duckdb_sums(frame, features).sort_values("task", ignore_index=True)


def changed_array(column, row, change):
    def apply(frame):
        values = list(frame[column])
        values[row] = change(np.array(values[row]))
        return frame.assign(**{column: values})

    return apply


def changed_value(column, row, value):
    def apply(frame):
        values = frame[column].astype(object).tolist()
        values[row] = value
        return frame.assign(**{column: pd.Series(values, dtype=object)})

    return apply


def indefinite(products):
    return products * np.array([1, 100, 1, 1, 1, 1])


def with_nan(values):
    return np.where(np.arange(len(values)) == 1, np.nan, values)


HOSTILE = {
    "no label": (lambda f: f.drop(columns="task"), "no column 'task', only 'n_rows'"),
    "no sizes": (lambda f: f.drop(columns="n_rows"), "no column 'n_rows'"),
    "no means": (lambda f: f.drop(columns="means"), "no column 'means'"),
    "no products": (lambda f: f.drop(columns="products"), "no column 'products'"),
    "two columns": (
        lambda f: pd.concat([f, f[["means"]]], axis=1), "two columns 'means'"
    ),
    "short products": (
        changed_array("products", 2, lambda p: p[:-1]), "'products' has 5 numbers for task 2"
    ),
    "no array": (changed_value("products", 2, None), "'products' is NULL for task 2"),
    "no first array": (changed_value("means", 0, None), "'means' is NULL for task 0: give 3"),
    "long means": (
        changed_array("means", 0, lambda m: np.append(m, 1.0)), "'means' has 4 .* task 0: give 3"
    ),
    "no arrays": (lambda f: f.assign(means=None), "'means' is of type null"),
    "arrays in arrays": (
        lambda f: f.assign(means=[[list(m)] * 3 for m in f["means"]]), "'means' holds list.* values"
    ),
    "short means": (changed_array("means", 3, lambda m: m[:-1]), "'means' has 2 .* task 3"),
    "short remainders": (
        changed_array("remainders", 3, lambda m: m[:-1]), "'remainders' has 2 .* task 3"
    ),
    "one mean": (
        lambda f: f.assign(means=[m[:1] for m in f["means"]]), "'means' has 1 number"
    ),
    "no numbers": (lambda f: f.assign(means=[[]] * len(f)), "'means' has 0 number"),
    "numbers": (lambda f: f.assign(products=1.0), "'products' is of type double"),
    "text": (lambda f: f.assign(products="one"), "'products' holds the text 'one' for task 0"),
    "other arrays": (lambda f: f.assign(means='["a", "b", "c"]'), "'means' holds arrays of other"),
    "words": (lambda f: f.assign(means=[["a", "b", "c"]] * len(f)), "'means' holds string values"),
    "mixed": (changed_value("means", 1, "one"), "'means' holds values of several kinds"),
    "negative size": (changed_value("n_rows", 4, -3), "'n_rows' is -3 for task 4"),
    "NaN size": (changed_value("n_rows", 4, float("nan")), "'n_rows' is .* for task 4"),
    "text size": (lambda f: f.assign(n_rows="3"), "'n_rows' holds .*string values"),
    "negative count": (changed_value("n_missing", 1, -1), "'n_missing' is -1 for task 1"),
    "same task": (changed_value("task", 3, 2), "'task' has two rows of task 2"),
    "NaN mean": (changed_array("means", 5, with_nan), "'means' has nan at place 1 for task 5"),
    "NaN product": (changed_array("products", 5, with_nan), "'products' has nan .* task 5"),
    "infinity": (
        changed_array("products", 0, lambda p: p / 0.0), "'products' has inf at place 0 for task 0"
    ),
    "negative square": (
        changed_array("products", 1, lambda p: -p), "'products' is not positive semidef.* task 1"
    ),
    "indefinite": (
        changed_array("products", 4, indefinite), "'products' is not positive semidef.* task 4"
    ),
    "zero square": (
        changed_array("products", 4, lambda p: p * np.array([0, 1, 1, 1, 1, 1])),
        "'products' is not positive semidef.* task 4",
    ),
    "remainders": (
        changed_array("remainders", 2, lambda r: r + 1e3), "'products' is not positive .* task 2"
    ),
    "huge remainders": (
        changed_array("remainders", 2, lambda r: r + 1e300), "'products' is not positive .* task 2"
    ),
    "no tasks": (lambda f: f[:0], "'n_rows' has no positive number"),
    "no rows": (lambda f: f.assign(n_rows=0), "'n_rows' has no positive number"),
    "bad names": (lambda f: f.assign(names="f0, f1"), "'names' must hold the same text .* JSON"),
    "two names": (changed_value("names", 2, "{}"), "'names' must hold the same text"),
    "lists of names": (lambda f: f.assign(names="[1]"), "'names' must hold the same text"),
    "few names": (
        lambda f: f.assign(names='{"task": "t", "features": ["a"]}'), "'names' names 1 features"
    ),
    "fold": (lambda f: f.assign(fold=7), "'fold' is 7 for task 0: .* from 0 to 4"),
    "half fold": (lambda f: f.assign(fold=0.5), "'fold' is 0.5 for task 0"),
    "label twice": (lambda f: f.assign(task=[(1, 2)] * len(f)), r"two rows of task \(1, 2\)"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(("change", "message"), HOSTILE.values(), ids=HOSTILE)
def test_frames_that_are_no_statistics_are_refused_in_one_sentence(sums, change, message):
    model = ss.PerTaskRegressor()
    with pytest.raises(ValueError, match=message) as refusal:
        model.fit_statistics(change(sums))
    assert "\n" not in str(refusal.value)
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize("given", [None, [1, 2], {"task": [1]}, "sums.csv", np.ones((2, 2))])
def test_what_is_no_frame_is_refused(given):
    with pytest.raises(TypeError, match="give a pandas, polars or pyarrow table"):
        ss.PerTaskRegressor().fit_statistics(given)


def test_lazy_frames_and_wrong_options_are_refused(sums):
    polars = pytest.importorskip("polars")
    lazy = polars.LazyFrame({"task": [1]})
    with pytest.raises(TypeError, match="is a LazyFrame"):
        ss.PerTaskRegressor().fit_statistics(lazy)
    with pytest.raises(ValueError, match="missing='skip' must be 'error' or 'drop'"):
        ss.PerTaskRegressor().fit_statistics(sums, missing="skip")


@pytest.mark.parametrize(
    "model",
    [
        ss.AdaptiveSpanRegressor(family="poisson"),
        ss.AdaptiveSpanRegressor(family="huber"),
        ss.AdaptiveSpanClassifier(),
        ss.MomentRegressor(),
        ss.NewTaskRegressor(),
        ss.SharedSpanRegressor(solver="nsgd"),
        ss.CurriculumRegressor(variant="pair"),
    ],
    ids=str,
)
def test_models_that_need_the_rows_have_no_fit_from_statistics(model, sums):
    assert not hasattr(model, "fit_statistics")
    with pytest.raises(AttributeError) as refusal:
        model.fit_statistics(sums)
    assert "fit_statistics" in str(refusal.value.__cause__ or refusal.value)


def test_noise_that_grows_with_the_fitted_value_needs_the_rows(sums):
    with pytest.raises(ValueError, match=r"noise='fitted' needs the rows.*fit_statistics"):
        ss.AdaptiveSpanRegressor(noise="fitted").fit_statistics(sums)


def test_each_feature_has_a_unit_of_its_own_unless_one_is_asked_for(rng):
    X, y, task = table(rng)
    sums = duckdb_sums(*table_of(X * [1e100, 1.0, 1.0, 1e-100], y, task))
    own = read_statistics(sums, True).statistics.units.scale
    common = read_statistics(sums, True, common_scale=True).statistics.units.scale
    assert own[0] < own[1] == own[2] == 1 < own[3]
    assert len(set(common)) == 1


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
def test_products_may_be_indefinite_by_rounding_errors_and_no_more(size):
    """Two features of correlation 1 + e have the smallest eigenvalue -e, in any units."""
    i, j = np.triu_indices(2)
    for excess, first in ((0.5, None), (2.0, 1)):
        good, bad = np.eye(2), np.full((2, 2), 1.0 + excess * from_frame.INDEFINITE)
        bad[0, 0] = bad[1, 1] = 1.0
        products = np.array([size * good[i, j], size * bad[i, j]])
        assert from_frame.first_indefinite(products, np.full((2, 2), size)) == first


@pytest.mark.parametrize("width", [2, 9, 40])
def test_matrices_are_unpacked_within_the_memory_that_is_set(width, monkeypatch, rng):
    monkeypatch.setattr(from_frame, "BLOCK", 4000)
    packed = rng.standard_normal((300, width * (width + 1) // 2))
    parts = list(from_frame._matrices(packed, width))
    assert max(part.size for _, part in parts) <= 4000
    whole, (i, j) = np.concatenate([part for _, part in parts]), np.triu_indices(width)
    assert_array_equal(whole[:, i, j], packed)
    assert_array_equal(whole[:, j, i], packed)
