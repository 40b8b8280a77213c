"""Fits from files larger than memory: as from arrays, in bounded memory, with clear errors.

Each test runs with its own temporary folder, which must be empty at the end.
"""

import csv
import gzip
import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from sharedspan.cli import main
from sharedspan.cli.fit import FITTED_TO_TABLES
from sharedspan.datasets.simulate_files import simulate_files
from sharedspan.diagnosis.compared_methods import COMPARED
from sharedspan.inputs.external_sort import FileRows, open_files
from sharedspan.inputs.files import find_files
from sharedspan.inputs.matching_columns import select_columns
from sharedspan.inputs.reader import Tally, partitions, read_partition
from sharedspan.inputs.resources import Budget

pytestmark = pytest.mark.usefixtures("temporary")

DROP = ss.Columns(missing="drop")
PARTS = {"task": "g", "target": "y"}
REGRESSORS = [name for name in ss.__all__ if name.endswith("Regressor")]


@pytest.fixture(scope="module")
def sim():
    """Twenty-five unequal tasks of rank 2, their rows shuffled."""
    sizes = np.random.default_rng(1).integers(14, 30, 25)
    sim = ss.simulate(
        n_tasks=25, n_features=5, rank=2, n_samples=sizes, noise=0.3, intercept=1.0, random_state=0
    )
    order = np.random.default_rng(0).permutation(len(sim.y))
    return sim.X[order], sim.y[order], sim.task[order]


def columns_of(X, y, task):
    return {"g": task, "y": y} | {f"x{j}": X[:, j] for j in range(X.shape[1])}


def write(path, columns):
    """A CSV or Parquet file; text and numbers as they are."""
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return path
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="", encoding="utf-8") as file:
        rows = zip(*(np.asarray(value).tolist() for value in columns.values()), strict=True)
        csv.writer(file).writerows([list(columns), *rows])
    return path


def write_parts(folder, columns, ending, n_files=3):
    n_rows = len(next(iter(columns.values())))
    for i, rows in enumerate(np.array_split(np.arange(n_rows), n_files)):
        part = {name: np.asarray(value)[rows] for name, value in columns.items()}
        write(folder / f"part-{i}{ending}", part)
    return folder


def model_of(name, **options):
    known = inspect.signature(getattr(ss, name)).parameters
    options = {"tol": 1e-10, "random_state": 0} | options
    return getattr(ss, name)(**{key: value for key, value in options.items() if key in known})


def assert_same_fit(new, old, tol=1e-8):
    assert_array_equal(new.tasks_, old.tasks_)
    assert_allclose(new.coef_, old.coef_, rtol=0, atol=tol)
    assert_allclose(new.intercept_, old.intercept_, rtol=0, atol=tol)


@pytest.mark.parametrize("name", REGRESSORS)
@pytest.mark.filterwarnings("ignore")
def test_every_estimator_learns_the_same_from_files_as_from_arrays(name, sim, tmp_path):
    folder = write_parts(tmp_path / "parts", columns_of(*sim), ".parquet")
    X, y, task = sim
    for options in ({}, {"rank": 2}):
        old = model_of(name, **options).fit(X, y, task=task)
        new = model_of(name, **options).fit_file(folder, **PARTS)
        assert_same_fit(new, old)
        assert (
            new.coef_names_.tolist()
            == new.feature_names_in_.tolist()
            == [f"x{j}" for j in range(5)]
        )
        assert new.n_features_in_ == 5
        assert new.n_rows_dropped_ == 0
        assert_allclose(new.predict(X, task=task), old.predict(X, task=task), atol=1e-7)


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".csv.gz"])
@pytest.mark.parametrize("given", ["folder", "pattern", "list", "one"])
def test_files_may_come_in_any_number_and_form(ending, given, sim, tmp_path):
    folder = write_parts(tmp_path / "p", columns_of(*sim), ending, 1 if given == "one" else 4)
    (folder / "_SUCCESS.csv").write_text("no table")
    (folder / ".part.parquet").write_text("no table")
    (folder / "truth.npz").write_text("no table")
    (folder / "README.txt").write_text("no table")
    files = sorted(folder.glob("part-*"))
    paths = {"folder": folder, "pattern": str(folder / "part-*"), "list": files[::-1],
             "one": str(files[0])}[given]  # fmt: skip
    X, y, task = sim
    old = ss.SharedSpanRegressor(rank=2, random_state=0).fit(X, y, task=task)
    new = ss.SharedSpanRegressor(rank=2, random_state=0).fit_file(paths, **PARTS)
    assert_same_fit(new, old)


def test_single_precision_stays_single_on_disk_and_small_integers_fit_into_it(sim, tmp_path):
    X, y, task = sim
    columns = columns_of(X.astype(np.float32), y, task.astype(np.int16))
    columns |= {
        "small": np.arange(len(y))[::-1].astype(np.int16) // 2,
        "flag": np.arange(len(y)) % 2 == 0,
    }
    path = write(tmp_path / "t.parquet", columns)
    with FileRows(select_columns(path, **PARTS)).open() as tasks:
        assert tasks.X.dtype == np.float32
    frame = np.column_stack([X.astype(np.float32), columns["small"], columns["flag"]])
    old = ss.PooledRegressor().fit(frame, y, task=task)
    assert_same_fit(ss.PooledRegressor().fit_file(path, **PARTS), old)
    write(path, columns | {"whole": np.arange(len(y)) // 2})
    assert select_columns(path, **PARTS).dtype == "float64"


@pytest.fixture
def tiny_buckets(monkeypatch):
    """Buckets of a few rows and small batches, so that little data takes the way of much."""
    monkeypatch.setattr("sharedspan.inputs.resources.BUCKET", 2000)
    monkeypatch.setattr("sharedspan.inputs.resources.BATCH", 1)


@pytest.mark.usefixtures("tiny_buckets")
@pytest.mark.parametrize("ending", [".parquet", ".csv"])
@pytest.mark.parametrize("mixed", [True, False])
def test_rows_of_a_task_stay_in_the_order_of_the_files(ending, mixed, tmp_path, rng):
    n = 30_000
    task = rng.integers(0, 300, n) ** 2 // 300  # unequal tasks, one of them larger than a bucket
    task = task if mixed else np.sort(task)
    columns = {"g": task, "x": np.arange(n), "y": rng.standard_normal(n)}
    folder = tmp_path / "p"
    for i, rows in enumerate(np.array_split(np.arange(n), 3)):
        part = {name: value[rows] for name, value in columns.items()}
        write(folder / f"part-{i}{ending}", part)
        if ending == ".parquet":  # many row groups, read by two threads
            pq.write_table(pa.table(part), folder / f"part-{i}{ending}", row_group_size=1000)
    order = np.argsort(task, kind="stable")
    for _ in range(3):
        rows = FileRows(select_columns(folder, **PARTS))
        with rows.open() as tasks:
            assert rows.n_dropped == 0
            assert_array_equal(tasks.X[:][:, 0], order)
            assert_array_equal(tasks.y[:], columns["y"][order])
            assert tasks.labels == tuple(np.unique(task).tolist())
            assert_array_equal(np.diff(tasks.starts), np.unique(task, return_counts=True)[1])
            low, high, reach = tasks.extremes()
            assert (low, high) == (0, n - 1)
            assert reach == np.abs(columns["y"]).max()


def test_open_files_gives_the_rows_of_a_fit_and_of_later_files_with_its_columns(tmp_path):
    columns = {"x": [1.0, None, 3.0, 4.0], "g": [2, 1, 1, 2], "z": ["a", "b", "b", "a"],
               "y": [5.0, 6.0, 7.0, 8.0]}  # fmt: skip
    path, stages = write(tmp_path / "t.parquet", columns), []
    rows = open_files(path, ss.Columns(missing="drop"), **PARTS,
                      progress=lambda stage, done, total: stages.append(stage))  # fmt: skip
    assert rows.selection.columns.names == ("x", "z=b")
    assert rows.selection.names_with_task() == ("x", "g", "z")
    with rows.open() as tasks:
        assert rows.n_dropped == 1
        assert tasks.labels == (1, 2)
        assert_array_equal(tasks.X[:], [[3, 1], [1, 0], [4, 0]])
        assert_array_equal(tasks.y[:], [7, 5, 8])
    assert list(dict.fromkeys(stages)) == ["finding tasks", "reading", "sorting"]
    fitted = rows.selection.columns
    later = write(tmp_path / "u.csv", {"y": [1], "z": ["a"], "g": ["07"], "x": [2]})
    with open_files(later, fitted).open() as tasks:
        assert tasks.labels == (7,)
        assert_array_equal(tasks.X[:], [[2, 0]])
    with pytest.raises(TypeError, match="target=None: fit_file needs the names"):
        open_files(path, task="g")
    with pytest.raises(ValueError, match="defines all columns: leave out drop"):
        open_files(path, fitted, drop="x")
    with pytest.raises(ValueError, match="columns= has no target"):
        open_files(path, replace(fitted, target=None))


@pytest.mark.usefixtures("tiny_buckets")
def test_rows_without_a_value_are_dropped_and_counted(tmp_path, rng):
    n = 6000
    columns = {"g": rng.integers(0, 50, n).astype(float), "x": rng.standard_normal(n),
               "z": rng.standard_normal(n), "y": rng.standard_normal(n)}  # fmt: skip
    columns["y"][columns["g"] == 7] = np.nan  # a whole task
    for name in ("g", "x", "z"):
        columns[name][rng.permutation(n)[:200]] = np.nan
    path = write(tmp_path / "t.parquet", columns)
    complete = ~np.isnan(np.column_stack(list(columns.values()))).any(axis=1)
    X = np.column_stack([columns["x"], columns["z"]])[complete]
    old = ss.PerTaskRegressor().fit(X, columns["y"][complete], task=columns["g"][complete])
    new = ss.PerTaskRegressor(columns=DROP).fit_file(path, **PARTS)
    assert new.n_rows_dropped_ == np.sum(~complete)
    assert_same_fit(new, old)
    assert 7.0 not in new.tasks_
    counts = r"'g' 200, 'y' \d+, 'x' 200, 'z' 200"
    words = rf"{np.sum(~complete)} of 6000 rows have missing values \({counts}\)"
    with pytest.raises(ValueError, match=words):
        ss.PerTaskRegressor().fit_file(path, **PARTS)


LABELS = {
    "text": [
        "it's",
        'a "quoted" one',
        "two\nlines",
        "🦊",
        "é",
        "～",
        "",
        "a,b",
        "\t",
        "NA",
        "~",
        "Z",
    ],
    "integers": [2**63 - 1, -(2**63), 0, 17, -1],
    "unsigned": [2**64 - 1, 0, 2**63],
    "far apart": [10**12, 5, -(10**15)],
    "floats": [0.1, -0.0, 1e300, -np.inf, 2.0, 0.0],
    "booleans": [True, False],
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_all_kinds_come_back_as_fit_has_them(kind, tmp_path, rng):
    label_type = pa.uint64() if kind == "unsigned" else None
    distinct = pa.array(LABELS[kind], type=label_type)
    task = distinct.take(pa.array(rng.permutation(np.repeat(np.arange(len(distinct)), 6))))
    x, y = rng.standard_normal((2, len(task)))
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"g": task, "x": x, "y": y}), path)
    labels = task.to_numpy(zero_copy_only=False)
    if kind == "booleans":
        labels = [str(value).lower() for value in labels]
    old = ss.PerTaskRegressor().fit(x[:, None], y, task=labels)
    new = ss.PerTaskRegressor().fit_file(path, **PARTS)
    assert new.tasks_.tolist() == old.tasks_.tolist()
    assert_same_fit(new, old, 1e-12)
    if kind == "text":
        labels = pa.table({"g": task, "x": x, "y": y})
        present = [value not in ("", "NA") for value in task.to_pylist()]  # missing in CSV
        pyarrow.csv.write_csv(labels.filter(pa.array(present)), tmp_path / "t.csv")
        again = ss.PerTaskRegressor().fit_file(tmp_path / "t.csv", **PARTS)
        assert again.tasks_.tolist() == [v for v in new.tasks_.tolist() if v not in ("", "NA")]


def test_kinds_of_a_column_may_differ_between_csv_files(tmp_path):
    for name, rows in {
        "a": "1,0.5,1\n2,NA,2\n", "b": "07,1,1.5\n3,2,2\n", "c": "", "d": ",,\n",
    }.items():  # fmt: skip
        (tmp_path / f"{name}.csv").write_text(f"g,x,y\n{rows}")
    model = ss.PooledRegressor(columns=DROP).fit_file(tmp_path, **PARTS)
    assert model.tasks_.tolist() == ["07", "1", "3"]
    assert model.n_rows_dropped_ == 2
    (tmp_path / "b.csv").write_text("g,y,x\n4.5,1.0,1\n3,2,2\n")  # another order of columns
    (tmp_path / "d.csv").unlink()
    model = ss.PooledRegressor(columns=DROP).fit_file(tmp_path, **PARTS)
    assert model.tasks_.tolist() == [1.0, 3.0, 4.5]


def test_text_becomes_a_column_for_each_level_but_the_first(tmp_path, rng):
    colour = np.array(["red", "green", "blue"])[rng.integers(0, 3, 200)]
    task, x, y = rng.integers(0, 4, 200), rng.standard_normal(200), rng.standard_normal(200)
    columns = {"colour": colour, "g": task, "size": x, "y": y, "const": ["same"] * 200}
    folder = write_parts(tmp_path / "p", columns, ".csv")
    X = np.column_stack([colour == "green", colour == "red", x])
    old = ss.PerTaskRegressor().fit(X, y, task=task)
    new = ss.PerTaskRegressor(task_column="g").fit_file(folder, **PARTS)
    assert_same_fit(new, old, 1e-10)
    assert new.coef_names_.tolist() == ["colour=green", "colour=red", "size"]
    assert new.feature_names_in_.tolist() == ["colour", "g", "size"]
    with pytest.warns(FutureWarning), pytest.raises(ValueError, match="'colour' does not hold"):
        ss.PerTaskRegressor().fit_file(folder, **PARTS, text="error")
    with pytest.warns(FutureWarning, match="columns=ss.Columns"):
        old = ss.PerTaskRegressor().fit_file(folder, **PARTS, text="one_hot")
    assert_same_fit(new, old, 1e-12)


def test_a_text_column_of_too_many_levels_is_named(tmp_path):
    n = 1500
    columns = {"g": np.zeros(n), "y": np.ones(n), "id": [f"row {i}" for i in range(n)]}
    with pytest.raises(ValueError, match="'id' has 1,500 levels, such as 'row 0'"):
        select_columns(write(tmp_path / "t.parquet", columns), **PARTS)


def test_features_can_be_chosen_in_their_order_and_the_task_column_keeps_its_place(sim, tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y, task = sim
    columns = columns_of(X, y, task)
    columns = {name: columns[name] for name in ("x0", "y", "x1", "g", "x2", "x3", "x4")}
    path = write(tmp_path / "t.parquet", columns)
    model = ss.PooledRegressor(task_column="g").fit_file(path, **PARTS, drop="x3")
    assert model.feature_names_in_.tolist() == ["x0", "x1", "g", "x2", "x4"]
    frame = pandas.DataFrame(columns).drop(columns=["y", "x3"])
    again = ss.PooledRegressor(task_column="g").fit(frame, y)
    assert_array_equal(model.predict(frame), again.predict(frame))
    model = ss.PooledRegressor().fit_file(path, **PARTS, features=["x2", "x0"])
    assert model.feature_names_in_.tolist() == ["x2", "x0"]
    with pytest.raises(ValueError, match="task='g', but the model has task_column='h'"):
        ss.PooledRegressor(task_column="h").fit_file(path, **PARTS)


def broken_csv(folder):
    (folder / "t.csv").write_text("g,x,y\n1,2,3\n1,2,3,4\n")


def broken_second_csv(folder):
    (folder / "a.csv").write_text("g,x,y\n1,2,3\n")
    (folder / "b.csv").write_text("g,x,y\n" + "1,2,3\n" * 5000 + "1,2,3,4\n")


def short_csv(folder):
    (folder / "a.csv").write_text("g,x,y\n1,2,3\n")
    (folder / "b.csv").write_text("g,x,y\n" + "1,2,3\n" * 5000 + "1,2\n")


def truncated_parquet(folder):
    data = write(folder / "t.parquet", {"g": [1], "x": [2.0], "y": [3.0]}).read_bytes()
    (folder / "t.parquet").write_bytes(data[: len(data) // 2])


def damaged_parquet(folder):
    n = 50_000
    values = np.random.default_rng(0).standard_normal((2, n))
    path = folder / "t.parquet"
    columns = {"g": np.zeros(n), "x": values[0], "y": values[1]}
    pq.write_table(pa.table(columns), path, compression="gzip")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 60_000] = bytes(60_000)
    path.write_bytes(bytes(data))


def truncated_gzip(folder):
    path = write(
        folder / "t.csv.gz", {"g": np.zeros(5000), "x": np.arange(5000.0), "y": [1] * 5000}
    )
    path.write_bytes(path.read_bytes()[:3000])


def other_columns(folder):
    write(folder / "a.parquet", {"g": [1], "x": [2.0], "y": [3.0]})
    write(folder / "b.parquet", {"g": [1], "z": [2.0], "y": [3.0]})


def two_kinds(folder):
    write(folder / "a.parquet", {"g": [1], "x": [2.0], "y": [3.0]})
    write(folder / "b.csv", {"g": [1], "x": [2.0], "y": [3.0]})


def table(**changes):
    def make(folder):
        columns = {"g": [1, 1, 2], "x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 1.0]} | changes
        write(folder / "t.parquet", {name: pa.array(value) for name, value in columns.items()})

    return make


def nothing(folder):
    pass


DAYS = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], dtype="datetime64[D]")
EMPTY = pa.array([], pa.float64())
ERRORS = {
    "a broken line": (broken_csv, {}, r"t\.csv could not be read: line 3 has 4 fields"),
    "a broken line far down": (broken_second_csv, {}, r"b\.csv .*line 5002 has 4 fields"),
    "a short line": (short_csv, {}, r"1 of 5002 rows have missing values \('y' 1\)"),
    "half a Parquet file": (truncated_parquet, {}, r"t\.parquet .*only a part of one"),
    "a damaged Parquet file": (damaged_parquet, {}, r"t\.parquet could not be read"),
    "half a gzip file": (truncated_gzip, {}, r"t\.csv\.gz could not be read: .*middle"),
    "a target of text": (table(y=["low", "high", "mid"]), {}, r"target 'y' \(such as '\w+'\)"),
    "lists": (table(x=[[1], [2], [3]]), {}, "'x' holds values of the type list"),
    "text": (table(kind=["a", "b", "a"]), {"text": "error"}, r"'kind' does not hold numbers"),
    "an empty folder": (nothing, {}, "has no CSV or Parquet file"),
    "no match": (nothing, {"path": "*.parquet"}, r"No file matches .*\*\.parquet"),
    "no file": (table(), {"path": "u.parquet"}, r"no file .*Did you mean 't\.parquet'"),
    "an empty list": (nothing, {"path": []}, "list of files is empty"),
    "other columns": (other_columns, {}, r"b\.parquet has no column 'x', which .*a\.parquet has"),
    "two kinds": (two_kinds, {}, r"b\.csv is CSV and .*a\.parquet is Parquet"),
    "an unknown task": (table(), {"task": "G1"}, r"'G1' \(task\) in .*t\.parquet"),
    "an unknown target": (table(), {"target": "yy"}, r"'yy' \(target\).*Did you mean 'y'"),
    "an unknown feature": (table(), {"features": ["x", "xy"]}, r"'xy' \(features\)"),
    "a feature twice": (table(), {"features": ["x", "x"]}, "given twice"),
    "the target as feature": (table(), {"features": "y"}, "'y' is the target"),
    "no features": (table(), {"drop": "x"}, "No column is left"),
    "only constants": (
        table(x=["a"] * 3), {}, "'x' hold.* one level"),
    "no rows": (
        table(g=EMPTY, x=EMPTY, y=EMPTY), {}, r"t\.parquet has no rows"),
    "infinity": (table(x=[1.0, np.inf, 2.0]), {}, "'x' holds infinity in 1 row"),
    "infinity, dropped": (
        table(x=[1.0, np.inf, 2.0]), {"missing": "drop"}, "'x' holds infinity"),
    "missing values": (
        table(x=[1.0, None, np.nan]), {}, r"2 of 3 rows have missing values \('x' 2\)"),
    "nothing left": (
        table(g=[None, None, None]), {"missing": "drop"}, "3 of 3 rows .*no complete row is left"),
    "unknown missing": (table(), {"missing": "fill"}, "use 'error', 'drop'"),
    "unknown text": (table(), {"text": "hash"}, "use 'error' or 'one_hot'"),
    "too little memory": (
        table(), {"memory_limit": "300MB"}, "'300MB' is too small.*at least '700MB'"),
    "no memory": (table(), {"memory_limit": "much"}, 'give bytes, or a string like "2GB"'),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
@pytest.mark.filterwarnings("ignore:fit_file:FutureWarning")
def test_mistakes_are_told_in_one_line_and_leave_nothing_behind(case, tmp_path):
    make, options, words = ERRORS[case]
    make(tmp_path)
    options = {"path": tmp_path} | PARTS | options
    if isinstance(options["path"], str):
        options["path"] = str(tmp_path / options["path"])
    model = ss.PooledRegressor()
    with pytest.raises(ValueError, match=words) as caught:
        model.fit_file(**options)
    assert "\n" not in str(caught.value)
    assert not hasattr(model, "coef_")
    assert not hasattr(model, "n_features_in_")


def test_a_file_given_twice_is_refused(tmp_path):
    path = write(tmp_path / "t.csv", {"g": [1], "x": [2], "y": [3]})
    with pytest.raises(ValueError, match="is given twice"):
        find_files([path, tmp_path])


def test_files_of_deeper_folders_need_a_pattern(sim, tmp_path):
    write_parts(tmp_path / "deep" / "er", columns_of(*sim), ".parquet")
    with pytest.raises(ValueError, match=r"has no CSV or Parquet file.*\*\*/\*\.parquet"):
        find_files(tmp_path / "deep")
    assert len(find_files(tmp_path / "**" / "*.parquet")) == 3


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_partitions_hold_all_rows_once_and_survive_a_pickle(ending, sim, tmp_path):
    X, y, task = sim
    labels = np.array([f"task {t}" for t in task])
    X = X.copy()
    X[5, 2] = np.nan
    columns = columns_of(X, y, labels) | {"kind": np.array(["a", "b"])[task % 2]}
    folder = tmp_path / "p"
    for i, rows in enumerate(np.array_split(np.arange(len(y)), 3)):
        part = {name: value[rows] for name, value in columns.items()}
        write(folder / f"part-{i}{ending}", part)
        if ending == ".parquet":
            pq.write_table(pa.table(part), folder / f"part-{i}{ending}", row_group_size=30)
    selection = pickle.loads(pickle.dumps(select_columns(folder, **PARTS)))
    pieces = partitions(selection, rows=70)
    assert len(pieces) == 3 if ending == ".csv" else len(pieces) > 3
    ends = {}  # of the parts of each file so far
    for piece in pieces if ending == ".parquet" else ():
        first, stop = piece.rows
        assert first == ends.get(piece.path, 0)
        assert 0 < stop - first <= 70
        ends[piece.path] = stop
    assert sum(ends.values()) == (len(y) if ending == ".parquet" else 0)
    parts = [read_partition(selection, piece) for piece in pieces]
    X_read, y_read, labels_read = (
        np.concatenate(arrays) for arrays in list(zip(*parts, strict=True))[:3]
    )
    numbers = np.delete(np.arange(len(y)), 5)
    whole = np.column_stack([X, task % 2 == 1])
    assert_array_equal(X_read, whole[numbers])
    assert_array_equal(y_read, y[numbers])
    assert labels_read.tolist() == labels[numbers].tolist()
    tally = sum((tally for _, _, _, tally in parts), Tally())
    assert (tally.n_rows, tally.n_incomplete) == (len(y), 1)
    tally.require(selection, "drop")
    with pytest.raises(ValueError, match=r"1 of \d+ rows have missing values \('x2' 1\)"):
        tally.require(selection, "error")


def test_statistics_that_cannot_fit_are_told_before_the_rows_are_read(tmp_path, rng):
    n = 40_000
    columns = {"g": np.arange(n) // 20, "y": np.ones(n)}
    columns |= {f"x{j}": np.ones(n, dtype=np.float32) for j in range(40)}
    path = write(tmp_path / "t.parquet", columns)
    Budget.of("700MB").require(2000, 40, n)
    with pytest.raises(
        ValueError, match=r"10000000 tasks of 40 features need about .* than memory"
    ):
        Budget.of("2GB").require(10**7, 40, 10**9)
    with pytest.raises(ValueError, match=r"need about 9.\dGB.*of 4.\dGB.*than this machine's 3GB"):
        replace(Budget.of(None), total=3 * 10**9).require(10**6, 30, 10**8)
    ss.PooledRegressor().fit_file(path, **PARTS, memory_limit=700_000_000)


# Not getrusage, which counts the process that started this one too.
CODE = """
import sys
import sharedspan as ss
model = ss.SharedSpanRegressor(rank=2, solver="auto", random_state=0)
model.fit_file(sys.argv[1], task="task", target="y", memory_limit=sys.argv[2])
with open("/proc/self/status") as file:
    print(next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_stays_within_the_limit_where_the_table_is_larger(tmp_path):
    written = simulate_files(
        tmp_path / "large", n_tasks=2000, n_features=60, rank=2, n_samples=1000, random_state=0,
        dtype="float32", shuffle=True, rows_per_file=500_000,
    )  # fmt: skip
    limit = 700_000_000
    in_memory = 400_000_000 + written.n_rows * (60 * 4 + 12)
    assert in_memory > 1.25 * limit
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "large"), str(limit)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < limit


@pytest.fixture
def tiny_disk(temporary, monkeypatch):
    """A temporary folder of two megabytes."""
    disk = temporary / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)],
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        disk.rmdir()
        pytest.skip("mounting a small disk is not allowed")
    monkeypatch.setenv("TMPDIR", str(disk))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield disk
    left = list(disk.iterdir())
    free = os.statvfs(disk)
    subprocess.run(["umount", str(disk)], check=True)
    disk.rmdir()
    assert left == []
    assert free.f_bfree == free.f_blocks


def large_table(path, n=60_000):
    return write(path, {"g": np.arange(n) % 50, "x": np.arange(n) * 0.1, "y": np.ones(n)})


@pytest.mark.parametrize("noticed", ["before", "while writing"])
def test_a_full_disk_is_told_with_the_way_out(noticed, tiny_disk, tmp_path, monkeypatch):
    path = large_table(tmp_path / "t.parquet", 150_000)
    if noticed == "while writing":
        roomy = SimpleNamespace(free=10**9)
        monkeypatch.setattr("sharedspan.inputs.resources.shutil.disk_usage", lambda path: roomy)
    model = ss.PooledRegressor()
    with pytest.raises(OSError, match=r"disk of the temporary folder .*need 3MB.*TMPDIR") as caught:
        model.fit_file(path, **PARTS)
    assert caught.value.errno == 28
    assert "\n" not in str(caught.value)
    assert not hasattr(model, "coef_")


def test_a_disk_that_duckdb_fills_is_told_alike(tiny_disk, tmp_path, monkeypatch):
    n = 300_000  # names of tasks that do not fit into DuckDB's memory
    columns = {
        "g": [f"a long name of task {i}" for i in range(n)],
        "x": np.ones(n),
        "y": np.ones(n),
    }
    path = write(tmp_path / "t.parquet", columns)
    monkeypatch.setattr("sharedspan.inputs.resources.READING", 0)
    monkeypatch.setattr("sharedspan.inputs.resources.LEAST", 60_000_000)  # half for DuckDB
    with pytest.raises(OSError, match=r"disk of the temporary folder .*TMPDIR") as caught:
        ss.PooledRegressor().fit_file(path, **PARTS)
    assert caught.value.errno == 28


def test_a_limit_on_the_size_of_files_is_told_alike(tmp_path):
    path = large_table(tmp_path / "t.parquet")
    code = (
        "import resource, sys, sharedspan as ss; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
        f"ss.PooledRegressor().fit_file({str(path)!r}, task='g', target='y')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "too small: the sorted rows need 1.2MB" in done.stderr.splitlines()[-1]


def test_an_interrupt_leaves_nothing_behind(sim, tmp_path):
    path = write(tmp_path / "t.parquet", columns_of(*sim))
    for stage in ("finding tasks", "reading", "sorting"):

        def interrupt(current, done, total, stage=stage):
            if current == stage:
                raise KeyboardInterrupt

        model = ss.PooledRegressor()
        with pytest.raises(KeyboardInterrupt):
            model.fit_file(path, **PARTS, progress=interrupt)
        assert not hasattr(model, "n_features_in_")


# The command line


def run(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


SIZE = ("--tasks", 30, "--features", 4, "--rank", 2, "--rows", 20)


def test_simulate_writes_what_fit_reads(tmp_path):
    done = run("simulate", *SIZE, "--noise", 0.01, "--csv", "-o", tmp_path / "s")
    assert done.exit_code == 0, done.output
    assert "600 rows of 30 tasks, 4 features: 1 file of" in done.output
    out, more = tmp_path / "coef.csv", ("--rank", 2, "-o", tmp_path / "m.span")
    done = fit(tmp_path / "s", "--coefficients", out, *more)
    assert done.exit_code == 0, done.output
    assert "AdaptiveSpanRegressor: 30 tasks, 600 rows, 4 features, rank 2, noise 0.0" in done.output
    written = pyarrow.csv.read_csv(out)
    assert written.column_names == ["task", "intercept", "x0", "x1", "x2", "x3"]
    with np.load(tmp_path / "s" / "truth.npz") as truth:
        coef = np.column_stack([written[f"x{j}"].to_numpy() for j in range(4)])
        assert_allclose(coef, truth["coef"], atol=0.02)


SHARED = "SharedSpanRegressor"


def fit(folder, *more, target="y"):
    return run("fit", folder, "--task", "task", "--target", target, *more)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--target", "z", "-o", "c.span"), "--target was given twice"),
        (("-o", "c.csv"), "would hold a model, not a table"),
        (("-o", "c.span", "--coefficients", "c.txt"), "must end in .csv or .parquet"),
        (("-o", "no/c.span"), "There is no folder"),
        (("--seed", "-1", "-o", "c.span"), "x>=0"),
        (("--rank", "many", "-o", "c.span"), "rank='many' must be an integer"),
        (("--estimator", SHARED, "--rank", "many", "-o", "c.span"), "rank='many' is unknown"),
        (("--estimator", "PooledRegressor", "--rank", "2", "-o", "c.span"), "has no rank"),
        (("--estimator", SHARED, "--solver", "magic", "-o", "c.span"), "magic"),
        (("--solver", "tpgd", "-o", "c.span"), "add --estimator SharedSpanRegressor"),
        (
            ("--estimator", "PooledRegressor", "--noise-per-task", "-o", "c.span"),
            "--noise-per-task",
        ),
        (("--estimator", SHARED, "--max-iter", "0", "-o", "c.span"), "max_iter=0"),
        (("--memory-limit", "1MB", "-o", "c.span"), "too small"),
        (("-o", "c.span", "--coefficients", "s/part-00000.parquet"), "one of the files to be read"),
        (("-o", "s/truth.npz"), "exists and is not a model file"),
    ],
    ids=str,
)
def test_mistakes_of_fit_exit_with_two_and_write_nothing(more, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    simulate_files("s", n_tasks=5, n_features=3, rank=1, n_samples=9, random_state=0)
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    table = "s/part-00000.parquet" if more[-1].startswith("s/") else "s"
    done = fit(table, *more)
    assert done.exit_code == 2, done.output
    assert words in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_a_target_that_no_column_has_is_named(tmp_path):
    simulate_files(tmp_path / "s", n_tasks=5, n_features=3, rank=1, n_samples=9, random_state=0)
    done = fit(tmp_path / "s", "-o", tmp_path / "c.span", target="z")
    assert done.exit_code == 2
    assert "There is no column 'z'" in done.output
    assert not (tmp_path / "c.span").exists()


@pytest.mark.parametrize("estimator", ["AdaptiveSpanRegressor", "PooledRegressor"])
def test_fit_takes_other_estimators_and_prints_json(estimator, tmp_path):
    simulate_files(tmp_path / "s", n_tasks=20, n_features=3, rank=1, n_samples=19, random_state=0)
    out, model = tmp_path / "c.parquet", tmp_path / "m.span"
    done = fit(
        tmp_path / "s", "--estimator", estimator, "--json", "--coefficients", out, "-o", model
    )
    assert done.exit_code == 0, done.output
    about = json.loads(done.stdout)
    assert (about["estimator"], about["n_tasks"], about["n_rows"]) == (estimator, 20, 380)
    assert (about["n_rows_dropped"], about["warnings"]) == (0, [])
    assert pq.read_table(out).num_rows == 20


def test_all_estimators_of_the_comparison_can_be_fitted():
    assert set(COMPARED) <= set(FITTED_TO_TABLES)
    others = set(FITTED_TO_TABLES) - set(COMPARED)
    assert others == {"AdaptiveSpanClassifier", "SharedSpanClassifier"}  # for other targets


@pytest.mark.parametrize("command", ["fit", "simulate"])
def test_ctrl_c_ends_with_130_and_nothing_half_written(command, tmp_path, temporary):
    if command == "fit":
        simulate_files(
            tmp_path / "s", n_tasks=20_000, n_features=30, rank=2, n_samples=40, shuffle=True,
            random_state=0,
        )  # fmt: skip
        arguments = ["fit", "s", "--task", "task", "--target", "y", "-o", "c.span"]
    else:
        size = ("--tasks", "100000", "--features", "30", "--rank", "2", "--rows", "100")
        arguments = ["simulate", *size, "-o", "new"]
    before = sorted(tmp_path.rglob("*"))
    process = subprocess.Popen(
        [sys.executable, "-m", "sharedspan.cli", *arguments], cwd=tmp_path,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def begun():
        folders = temporary if command == "fit" else tmp_path
        return any(folders.iterdir()) if command == "fit" else (folders / "new").exists()

    deadline = time.monotonic() + 60
    while not begun() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130, message
    assert message.strip().startswith("Stopped.")
    assert "Traceback" not in message
    assert sorted(tmp_path.rglob("*")) == before


def test_ctrl_c_inside_an_exec_of_an_import_ends_with_130(tmp_path):
    (tmp_path / "interrupted.py").write_text(
        "from sharedspan.cli.errors import one_line_errors\n"
        "with one_line_errors():\n"
        "    exec('raise KeyboardInterrupt')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    assert (done.returncode, done.stderr.strip()) == (130, "Stopped.")


def test_warnings_of_a_fit_are_told_in_lines(tmp_path, monkeypatch):
    simulate_files(tmp_path / "s", n_tasks=8, n_features=3, rank=1, n_samples=9, random_state=0)
    estimate = ss.PooledRegressor.estimate

    def warn(self, problem):
        warnings.warn("This is odd.", UserWarning, stacklevel=2)
        return estimate(self, problem)

    monkeypatch.setattr(ss.PooledRegressor, "estimate", warn)
    out = tmp_path / "c.span"
    done = fit(tmp_path / "s", "--estimator", "PooledRegressor", "-o", out)
    assert done.exit_code == 0, done.output
    assert done.stderr == "Warning: This is odd.\n"
    assert done.stdout.count("\n") == 3
    done = fit(tmp_path / "s", "--estimator", "PooledRegressor", "--json", "-o", out)
    assert json.loads(done.stdout)["warnings"] == ["This is odd."]


def test_a_misspelt_option_of_fit_file_leaves_the_old_fit_alone(small, tmp_path):
    model = ss.SharedSpanRegressor(rank=2).fit(small.X, small.y, task=small.task)
    with pytest.raises(TypeError, match="mising"):
        model.fit_file(tmp_path / "t.csv", task="g", target="y", mising="drop")
    assert model.coef_.shape == (40, 8)


@pytest.mark.parametrize("n_bad", [1, 3])
def test_a_line_in_another_encoding_than_the_others_is_named(n_bad, tmp_path):
    lines = [f"{city},{i},{i}.5".encode() for i, city in enumerate(["Köln", "Zürich", "Ulm"] * 5)]
    for i in range(n_bad):
        lines[4 + i] = "Düren,7,7.5".encode("latin-1")
    (tmp_path / "t.csv").write_bytes(b"\n".join([b"city,x,y", *lines]))
    more = "" if n_bad == 1 else " and 2 more lines"
    words = rf"line 6 \(with 'Düren' in latin-1\){more} .* not UTF-8 text, as the others are: "
    with pytest.raises(ValueError, match=words) as caught:
        ss.PooledRegressor().fit_file(tmp_path / "t.csv", task="city", target="y")
    assert "--encoding" not in str(caught.value)
