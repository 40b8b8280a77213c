"""Messy tables end in a right fit, or in one sentence whose options lead to it.

The right fit is known: each table is made from a clean one (``messy_tables``).
"""

import csv
import re
import shlex

import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from messy_tables import CLEAN, MESSY, clean_parquet
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.cli import main

ESTIMATOR = ("--estimator", "PerTaskRegressor")
PREDICTING = ("--encoding", "--sheet", "--missing")  # options that are not part of a model


def run(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


def fit(path, messy, *more, estimator=ESTIMATOR):
    parts = ("--task", messy.task, "--target", messy.target, *estimator)
    return run("fit", path, *parts, *more, "-o", path.parent / "m.span")


def predictions(path, *more):
    """Predictions of the rows of a table, and their tasks, by the model beside it."""
    out = path.parent / "p.csv"
    done = run("predict", path.parent / "m.span", path, *more, "-o", out)
    assert done.exit_code == 0, done.output
    with open(out, newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    return [float(row[head.index("prediction")]) for row in rows], [row[0] for row in rows]


def suggested(message):
    """The options that a message tells the user to add: the first that it names."""
    found = re.search(r"--.*?(?=,? (?:in Python|or |if )|\)|;|\.$)", message)
    assert found, message
    return shlex.split(found[0])


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """Predictions of the rows of the clean table after a fit to some of them."""
    known = {}

    def of(rows, *more):
        key = (tuple(rows), more)
        if key not in known:
            folder = tmp_path_factory.mktemp("clean")
            path = clean_parquet(folder)
            pq.write_table(pq.read_table(path).take(rows), path)
            done = fit(path, MESSY["clean"], *more)
            assert done.exit_code == 0, done.output
            known[key] = predictions(path)
        return known[key]

    return of


@pytest.mark.parametrize("name", MESSY)
def test_a_messy_table_ends_in_the_fit_of_the_clean_one(name, right, tmp_path):
    messy = MESSY[name]
    path, add = messy.write(tmp_path), []
    done = fit(path, messy)
    if messy.add:
        assert done.exit_code == (0 if messy.warns else 2), done.output
        message = done.stderr.strip()
        assert len(message.splitlines()) == 1, message
        if messy.add.startswith("mv"):
            assert shlex.split(messy.add)[2].rpartition(".")[2] in message
            path = path.rename(path.parent / shlex.split(messy.add)[2])
        else:
            add = suggested(message)
            assert sorted(add) == sorted(shlex.split(messy.add)), message
        done = fit(path, messy, *add)
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    again = [
        part
        for pair in zip(add[::2], add[1::2], strict=True)
        for part in pair
        if pair[0] in PREDICTING
    ]
    values, tasks = predictions(path, *again)
    more = ("--categorical", "code") if messy.categorical else ()
    expected, clean_tasks = right(messy.rows, *more)
    assert tasks == [messy.tasks(task) for task in clean_tasks]
    assert_allclose(values, expected, rtol=1e-10)


@pytest.mark.parametrize("name", ["codes with decimals", "zeros before codes", "numbers in quotes"])
def test_codes_are_the_same_levels_in_the_fit_and_in_predictions(name, right, tmp_path):
    path, more = MESSY[name].write(tmp_path), ("--categorical", "code")
    done = fit(path, MESSY[name], *more)
    assert (done.exit_code, done.stderr) == (0, "")
    assert_allclose(predictions(path)[0], right(MESSY[name].rows, *more)[0], rtol=1e-10)


# ---- other commands ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Latin-1", "a workbook of two sheets", "a German export"])
def test_the_commands_after_fit_read_the_table_in_the_same_way(name, tmp_path):
    messy = MESSY[name]
    path, add = messy.write(tmp_path), shlex.split(messy.add)
    done = fit(path, messy, *add, estimator=("--estimator", "SharedSpanRegressor", "--rank", 2))
    assert done.exit_code == 0, done.output
    following = shlex.split(re.search("Next: sharedspan (.*)", done.output)[1])
    reading = [] if "--decimal" in add else add
    assert [part for part in reading if part not in following] == []
    for command in (
        following,
        ["adapt", tmp_path / "m.span", path, *reading, "-o", tmp_path / "n.span"],
        ["compare", path, "--task", messy.task, "--target", messy.target, "--repeats", 2, *add],
    ):
        done = run(*command)
        assert done.exit_code in (0, 1), done.output  # 1 if no method is better than others
        assert "Error" not in done.output


# ---- the same in Python --------------------------------------------------------------------------


def python_advice(message):
    """The arguments that a message tells the user to give in Python."""
    drop, name = r"drop=(?:\[[^]]*\]|'[^']*')", r"(?:encoding|sheet)='[^']*'"
    found = re.search(rf"columns=ss\.Columns\([^)]*\)|{drop}|{name}", message)
    assert found, message
    return eval(f"dict({found[0]})", {"ss": ss})


IN_PYTHON = [
    "semicolons", "UTF-16", "Latin-1", "two columns of one name", "short lines", "1.234,5",
    "euros", "missing: 'unknown'", "dates as %d/%m/%Y", "a German export", "a French export",
    "a workbook of two sheets", "a column without values", "row names of R's write.table",
]  # fmt: skip


@pytest.mark.parametrize("name", IN_PYTHON)
def test_fit_file_ends_in_the_fit_of_the_clean_table_too(name, right, tmp_path):
    messy = MESSY[name]
    path, model = messy.write(tmp_path), ss.PerTaskRegressor()
    parts = {"task": messy.task, "target": messy.target}
    if messy.add:
        with pytest.raises(ValueError) as caught:
            model.fit_file(path, **parts)
        advice = python_advice(str(caught.value))
        model.set_params(columns=advice.pop("columns", None))
        parts |= advice
    model.fit_file(path, **parts)
    model.save(tmp_path / "m.span")
    again = [part for name in ("encoding", "sheet") if name in parts
             for part in (f"--{name}", parts[name])]  # fmt: skip
    values, tasks = predictions(path, *again)
    expected, clean_tasks = right(messy.rows)
    assert tasks == [messy.tasks(task) for task in clean_tasks]
    assert_allclose(values, expected, rtol=1e-10)


FRAMES = {
    "decimal commas in one column": {"sep": ";"},
    "dates as %d.%m.%Y": {},
    "a constant column": {},
    "ja and nein": {},
    "percent signs": {},
    "text of several lines": {},
    "1 and 0": {},
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_of_pandas_end_in_the_fit_of_the_clean_table(name, right, tmp_path):
    frame = pd.read_csv(MESSY[name].write(tmp_path), **FRAMES[name])
    X, y, model = frame.drop(columns="sales"), frame["sales"], None
    model = ss.PerTaskRegressor(task_column="shop")
    if MESSY[name].add:
        with pytest.raises(ValueError) as caught:
            model.fit(X, y)
        model.set_params(**python_advice(str(caught.value)))
    model.fit(X, y)
    assert_allclose(model.predict(X), right(MESSY[name].rows)[0], rtol=1e-10)


def test_a_total_of_all_numbers_is_told(tmp_path):
    names = ("shop", "price", "visitors", "sales")
    rows = zip(*(CLEAN[name] for name in names), strict=True)
    text = "\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)])
    total = ",".join(["Total", *(str(round(sum(CLEAN[name]), 2)) for name in names[1:])])
    messy, right = tmp_path / "messy", tmp_path / "right"
    for folder, more in ((messy, f"\n{total}\n"), (right, "\n")):
        folder.mkdir()
        (folder / "t.csv").write_text(text + more, encoding="utf-8")
    done = fit(messy / "t.csv", MESSY["clean"])
    assert done.exit_code == 0
    assert suggested(done.stderr) == ["--na-values", "Total", "--missing", "drop"]
    for folder, more in ((messy, suggested(done.stderr)), (right, ())):
        done = fit(folder / "t.csv", MESSY["clean"], *more)
        assert (done.exit_code, done.stderr) == (0, "")
    assert predictions(messy / "t.csv", "--missing", "drop") == predictions(right / "t.csv")
