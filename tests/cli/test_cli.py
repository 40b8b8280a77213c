"""The commands together, as a new user with a table would use them."""

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from sharedspan.cli import main

LABELS = [
    'quotes " and \' and ""',
    "<script>alert('task')</script>",
    "a,b;c\td|e",
    "two\nlines\r\nand a third",
    "\N{ROCKET}\N{FAMILY}",
    "\u05e9\u05dc\u05d5\u05dd \u202e\u0645\u0631\u062d\u0628\u0627\u202c",
    "=1+1",
    "@SUM(A1)",
    "x" * 10_000,
    "007",
    " spaces ",
]


def run(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


def good(*arguments):
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def write(path, names, columns):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(zip(*columns, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Bundled tables, as a new user gets them, and a model of one."""
    folder = tmp_path_factory.mktemp("user")
    good("demo", "--tables", folder)
    table = folder / "parkinsons.csv"
    good("fit", table, "--task", "subject", "--target", "total_updrs", "--rank", 2, "-o",
         folder / "m.span")  # fmt: skip
    return folder


def test_bundled_tables_come_out_as_they_are(folder):
    for name, data in (
        ("parkinsons", ss.datasets.load_parkinsons()),
        ("communities_crime", ss.datasets.load_communities_crime()),
    ):
        head, *rows = read(folder / f"{name}.csv")
        assert head == [data.task_name, *data.feature_names, data.target_name]
        values = np.array(rows, dtype=float)
        assert_array_equal(values, np.column_stack([data.task, data.X, data.y]))


def test_predictions_are_those_of_the_model_row_by_row(folder, tmp_path):
    data = ss.datasets.load_parkinsons()
    output = good("predict", folder / "m.span", folder / "parkinsons.csv", "--interval", 0.9,
                "--keep", "test_time", "-o", tmp_path / "p.csv")  # fmt: skip
    head, *rows = read(tmp_path / "p.csv")
    assert head == ["subject", "test_time", "total_updrs", "prediction", "low", "high"]
    predicted = np.array(rows, dtype=float).T
    model = ss.AdaptiveSpanRegressor(rank=2, random_state=0)
    model.fit(data.X, data.y, task=data.task)
    mean = model.predict(data.X, task=data.task)
    assert_array_equal(predicted[:3], [data.task, data.X[:, 0], data.y])
    assert_allclose(predicted[3], mean, rtol=1e-6)
    low, high = model.predict_interval(data.X, task=data.task, level=0.9)
    assert_allclose(predicted[4:], [low, high], rtol=1e-5)
    assert np.mean((predicted[4] < data.y) & (data.y < predicted[5])) == pytest.approx(
        0.9, abs=0.05
    )
    rmse = np.sqrt(np.mean((data.y - mean) ** 2))
    assert f"Root mean squared error against total_updrs: {rmse:.5g}" in output
    assert "5,875 rows of 42 tasks predicted." in output


def test_rows_without_a_target_in_another_order_and_format_are_predicted(folder, tmp_path):
    data = ss.datasets.load_parkinsons()
    rows = np.random.default_rng(0).permutation(len(data.y))[:500]
    columns = {name: data.X[rows, j] for j, name in enumerate(data.feature_names)}
    table = pa.table({"extra": ["?"] * 500} | dict(reversed(columns.items()))
                     | {"subject": data.task[rows]})  # fmt: skip
    pq.write_table(table, tmp_path / "new.parquet")
    about = json.loads(good("predict", folder / "m.span", tmp_path / "new.parquet", "--json", "-o",
                            tmp_path / "p.parquet"))  # fmt: skip
    assert (about["n_rows"], about["rmse"]) == (500, None)
    predicted = pq.read_table(tmp_path / "p.parquet")
    assert predicted.column_names == ["subject", "prediction"]
    model = ss.load(folder / "m.span")
    frame = table.to_pandas()[list(data.feature_names)]
    expected = model.predict(frame, task=data.task[rows])
    assert_allclose(predicted["prediction"], expected, rtol=1e-12)


def test_new_tasks_are_adapted_and_predicted(folder, tmp_path):
    data = ss.datasets.load_parkinsons()
    known, few = data.task < 40, np.flatnonzero(data.task >= 40)[::6]
    names = [data.task_name, *data.feature_names, data.target_name]
    for name, rows in (("known", known), ("few", few)):
        write(tmp_path / f"{name}.csv", names, [data.task[rows], *data.X[rows].T, data.y[rows]])
    columns = ("--task", "subject", "--target", "total_updrs")
    good("fit", tmp_path / "known.csv", *columns, "--rank", 2, "-o", tmp_path / "m.span")
    output = good("adapt", tmp_path / "m.span", tmp_path / "few.csv", "-o", tmp_path / "new.span")
    assert "NewTaskRegressor: 3 tasks" in output
    model = ss.load(tmp_path / "m.span")
    new = ss.NewTaskRegressor.from_model(model).fit(data.X[few], data.y[few], task=data.task[few])
    same = ss.load(tmp_path / "new.span")
    assert same.tasks_.tolist() == [40, 41, 42]
    assert same.coef_names_.tolist() == list(data.feature_names)
    assert_allclose(same.coef_, new.coef_, rtol=1e-9)
    good("predict", tmp_path / "new.span", tmp_path / "few.csv", "-o", tmp_path / "p.csv")
    assert len(read(tmp_path / "p.csv")) == len(few) + 1


def test_text_is_encoded_as_in_the_fit_and_unknown_levels_are_told(tmp_path):
    rng = np.random.default_rng(0)
    task, colour = np.repeat(["a", "b", "c"], 40), rng.choice(["01", "1", "red"], 120)
    x = rng.normal(size=120)
    y = x + 3.0 * (colour == "red") + rng.normal(size=120) / 10
    write(tmp_path / "t.csv", ["shop", "colour", "x", "y"], [task, colour, x, y])
    columns = ("--task", "shop", "--target", "y")
    good("fit", tmp_path / "t.csv", *columns, "--estimator", "PooledRegressor", "-o",
         tmp_path / "m.span")  # fmt: skip
    model = ss.load(tmp_path / "m.span")
    assert model.coef_names_.tolist() == ["colour=1", "colour=red", "x"]
    numbers = colour != "red"  # read alone, "01" and "1" would both be the number one
    write(
        tmp_path / "n.csv", ["shop", "colour", "x"], [part[numbers] for part in (task, colour, x)]
    )
    good("predict", tmp_path / "m.span", tmp_path / "n.csv", "-o", tmp_path / "p.csv")
    predicted = np.array([row[1] for row in read(tmp_path / "p.csv")[1:]], dtype=float)
    expected = model.predict(pd.DataFrame({"colour": colour, "x": x})[numbers], task=task[numbers])
    assert_allclose(predicted, expected, rtol=1e-12)
    write(tmp_path / "odd.csv", ["shop", "colour", "x"], [["a"], ["blue"], [1.0]])
    done = run("predict", tmp_path / "m.span", tmp_path / "odd.csv", "-o", tmp_path / "p2.csv")
    assert done.exit_code == 0
    assert "'blue', which was not in the fit" in done.output
    shares = [np.mean(colour == "1"), np.mean(colour == "red"), 1.0]
    expected = model.intercept_[0] + model.coef_[0] @ shares
    assert_allclose(float(read(tmp_path / "p2.csv")[1][1]), expected, rtol=1e-12)


def test_labels_keep_their_kind_whatever_the_next_table_looks_like(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=60), rng.normal(size=60)
    write(tmp_path / "t.csv", ["id", "x", "y"], [np.repeat(["007", "7", "seven"], 20), X, y])
    write(tmp_path / "some.csv", ["id", "x"], [["007", "7"], [1.0, 1.0]])
    columns = ("--task", "id", "--target", "y", "--estimator", "PerTaskRegressor")
    good("fit", tmp_path / "t.csv", *columns, "-o", tmp_path / "m.span")
    good("predict", tmp_path / "m.span", tmp_path / "some.csv", "-o", tmp_path / "p.csv")
    model = ss.load(tmp_path / "m.span")
    rows = read(tmp_path / "p.csv")[1:]
    assert [row[0] for row in rows] == ["007", "7"]
    expected = model.predict(pd.DataFrame({"x": [1.0, 1.0]}), task=["007", "7"])
    assert_allclose([float(row[1]) for row in rows], expected, rtol=1e-12)
    write(tmp_path / "n.csv", ["id", "x", "y"], [np.repeat([1, 2], 30), X, y])
    good("fit", tmp_path / "n.csv", *columns, "-o", tmp_path / "n.span")
    for labels, words in (([1.0, 1.5], r"1\.5"), (["1", "x"], "holds 'x'")):
        write(tmp_path / "odd.csv", ["id", "x"], [labels, [1.0, 1.0]])
        done = run("predict", tmp_path / "n.span", tmp_path / "odd.csv", "-o", tmp_path / "q.csv")
        assert done.exit_code == 2
        assert re.search(words, done.output)


def test_hostile_labels_and_names_pass_through_every_command(tmp_path):
    """Fit, save, predict, adapt and write coefficients without changing names or labels."""
    rng = np.random.default_rng(0)
    names = [f"{label} {j}".strip() for j, label in enumerate(LABELS)]
    task = np.repeat(np.array(LABELS, dtype=object), 40)
    X = rng.normal(size=(len(task), len(names)))
    y = X @ rng.normal(size=len(names)) + rng.normal(size=len(task))
    head = ['the "task",\n<b>', *names, "=target\n"]
    write(tmp_path / "t.csv", head, [task, *X.T, y])
    columns = ("--task", head[0], "--target", head[-1])
    model, coef = tmp_path / "m.span", tmp_path / "c.csv"
    good("fit", tmp_path / "t.csv", *columns, "--rank", 2, "--coefficients", coef, "-o", model)
    fitted = ss.load(model)
    assert set(fitted.tasks_.tolist()) == set(LABELS)
    assert fitted.coef_names_.tolist() == names
    table = read(coef)
    assert table[0] == [head[0], "intercept", *names]
    assert [row[0] for row in table[1:]] == fitted.tasks_.tolist()
    assert_allclose(np.array([row[2:] for row in table[1:]], dtype=float), fitted.coef_)
    for source, out in ((model, tmp_path / "p.csv"), (tmp_path / "a.span", tmp_path / "q.csv")):
        if source != model:
            good("adapt", model, tmp_path / "t.csv", "-o", source)
        good("predict", source, tmp_path / "t.csv", "--keep", names[0], "-o", out)
        rows = read(out)
        assert rows[0] == [head[0], names[0], head[-1], "prediction"]
        assert [row[0] for row in rows[1:]] == task.tolist()
        expected = ss.load(source).predict(pd.DataFrame(X, columns=names), task=task)
        assert_allclose([float(row[3]) for row in rows[1:]], expected, rtol=1e-9, atol=1e-9)
    page = tmp_path / "r.html"
    good("report", model, "--data", tmp_path / "t.csv", "-o", page)
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<b>" not in text.split("</style>")[-1]


def test_columns_of_the_output_do_not_hide_those_of_the_table(tmp_path):
    rng = np.random.default_rng(0)
    write(tmp_path / "t.csv", ["prediction", "x", "low"],
          [np.repeat(["a", "b"], 20), rng.normal(size=40), rng.normal(size=40)])  # fmt: skip
    good("fit", tmp_path / "t.csv", "--task", "prediction", "--target", "low", "--rank", 1, "-o",
         tmp_path / "m.span")  # fmt: skip
    good("predict", tmp_path / "m.span", tmp_path / "t.csv", "--interval", 0.5, "-o",
         tmp_path / "p.csv")  # fmt: skip
    head = read(tmp_path / "p.csv")[0]
    assert head == ["prediction", "low", "(prediction)", "(low)", "high"]


def test_models_made_in_python_serve_on_the_command_line(tmp_path):
    sim = ss.simulate(n_tasks=8, n_features=3, rank=1, n_samples=20, random_state=0)
    frame = pd.DataFrame(sim.X, columns=list("abc")).assign(shop=sim.task, sales=sim.y)
    frame.to_csv(tmp_path / "t.csv", index=False)
    model = ss.SharedSpanRegressor(rank=1, task_column="shop", random_state=0)
    model.fit(frame.drop(columns="sales"), frame["sales"]).save(tmp_path / "m.span")
    good("predict", tmp_path / "m.span", tmp_path / "t.csv", "-o", tmp_path / "p.csv")
    predicted = np.array([row[1] for row in read(tmp_path / "p.csv")[1:]], dtype=float)
    assert_allclose(predicted, model.predict(frame.drop(columns="sales")), rtol=1e-12)
    done = run("adapt", tmp_path / "m.span", tmp_path / "t.csv", "-o", tmp_path / "a.span")
    assert done.exit_code == 2
    assert "--target" in done.output
    good("adapt", tmp_path / "m.span", tmp_path / "t.csv", "--target", "sales", "-o",
         tmp_path / "a.span")  # fmt: skip
    bare = ss.PooledRegressor().fit(sim.X, sim.y, task=sim.task)
    bare.save(tmp_path / "b.span")
    done = run("predict", tmp_path / "b.span", tmp_path / "t.csv", "-o", tmp_path / "q.csv")
    assert done.exit_code == 2
    assert "--task" in done.output


def test_new_tasks_are_counted_or_refused(tmp_path):
    sim = ss.simulate(n_tasks=8, n_features=3, rank=1, n_samples=20, random_state=0)
    frame = pd.DataFrame(sim.X, columns=list("abc")).assign(shop=sim.task, sales=sim.y)
    frame[frame["shop"] < 6].to_csv(tmp_path / "old.csv", index=False)
    frame.to_csv(tmp_path / "all.csv", index=False)
    model, out = tmp_path / "m.span", tmp_path / "p.csv"
    good("fit", tmp_path / "old.csv", "--task", "shop", "--target", "sales", "-o", model)
    assert "not in the fit" not in good("predict", model, tmp_path / "old.csv", "-o", out)
    printed = good("predict", model, tmp_path / "all.csv", "-o", out)
    assert "2 of these tasks were not in the fit" in printed
    done = run(
        "predict", model, tmp_path / "all.csv", "--unseen", "error", "-o", tmp_path / "q.csv"
    )
    assert done.exit_code == 2
    assert "--unseen mean" in done.stderr
    done = run("predict", model, tmp_path / "all.csv", "-o", out, "--json")
    assert json.loads(done.stdout)["n_tasks_unseen"] == 2


def test_rows_that_lack_a_value_are_refused_or_left_out(folder, tmp_path):
    lines = (folder / "parkinsons.csv").read_text().splitlines()[:100]
    lines[5] = re.sub(r",[^,]*,", ",,", lines[5], count=1)
    (tmp_path / "t.csv").write_text("\n".join(lines))
    arguments = ("predict", folder / "m.span", tmp_path / "t.csv", "-o", tmp_path / "p.csv")
    done = run(*arguments)
    assert done.exit_code == 2
    assert "have missing values ('test_time' 1)" in done.output
    assert not (tmp_path / "p.csv").exists()
    assert "1 row with missing values was left out." in good(*arguments, "--missing", "drop")
    assert len(read(tmp_path / "p.csv")) == 99


MISTAKES = {
    "no such model": (["predict", "no.span", "{t}", "-o", "p.csv"], "no.span"),
    "a table as the model": (
        ["predict", "{t}", "{t}", "-o", "p.csv"], "is not a sharedspan model file"),
    "no such table": (["predict", "{m}", "no.csv", "-o", "p.csv"], "There is no file no.csv"),
    "other columns": (["predict", "{m}", "{c}", "-o", "p.csv"], "has no column 'subject'"),
    "odd ending": (["predict", "{m}", "{t}", "-o", "p.txt"], "must end in .csv or .parquet"),
    "output over table": (["predict", "{m}", "{t}", "-o", "{t}"], "one of the files to be read"),
    "no folder": (["predict", "{m}", "{t}", "-o", "no/p.csv"], "There is no folder"),
    "no level": (["predict", "{m}", "{t}", "--interval", "2", "-o", "p.csv"], "0<x<1"),
    "no column to keep": (["predict", "{m}", "{t}", "--keep", "z", "-o", "p.csv"], "'z'"),
    "adapt over the model": (["adapt", "{m}", "{t}", "-o", "{m}"], "one of the files to be read"),
    "adapt over a text": (["adapt", "{m}", "{t}", "-o", "notes.txt"], "exists and is not a model"),
    "adapt without a span": (["adapt", "{b}", "{t}", "-o", "a.span"], "give a model with a span"),
    "interval of none": (["predict", "{b}", "{t}", "--interval", "0.9", "-o", "p.csv"],
                         "leave --interval out"),
    "interval of one pass": (["predict", "{s}", "{t}", "--interval", "0.9", "-o", "p.csv"],
                             "leave --interval out"),
    "report of no model": (["report", "{t}", "-o", "r.html"], "is not a sharedspan model file"),
    "report of other data": (["report", "{m}", "--data", "{c}", "-o", "r.html"], "no column"),
    "report to text": (["report", "{m}", "-o", "r.txt"], "must end in .html"),
    "columns of no data": (["report", "{m}", "--task", "a", "-o", "r.html"], "--data"),
    "tables into a file": (["demo", "--tables", "notes.txt"], "notes.txt"),
    "a misspelt model": (["predict", "bb.span", "{t}", "-o", "p.csv"], "Did you mean 'b.span'?"),
    "nothing to predict": (["predict", "{m}", "-o", "p.csv"], "See sharedspan predict --help"),
    "no such option": (["fit", "{t}", "--tusk", "subject"], "--tusk"),
    "no such command": (["fti"], "See sharedspan --help"),
    "no number": (["predict", "{m}", "{t}", "--interval", "x", "-o", "p.csv"], "'x'"),
    "table beside the model": (["report", "{m}", "{t}", "-o", "r.html"], "--data"),
    "adapt to a table": (["adapt", "{m}", "{t}", "-o", "a.csv"], "end its name in .span"),
    "a file as the folder": (["predict", "{m}", "{t}", "-o", "notes.txt/p.csv"], "is a file"),
    "leaderboard as a page": (["compare", "{t}", "--task", "subject", "--target", "total_updrs",
                               "-o", "lb.html"], "must end in .csv"),
    "no noise": (["simulate", "--tasks", "3", "--features", "2", "--rank", "1", "--noise", "nan",
                  "-o", "s.csv"], "noise"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_exit_with_two_one_line_and_nothing_written(case, folder, tmp_path, monkeypatch):
    arguments, words = MISTAKES[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    sim = ss.simulate(n_tasks=3, n_features=2, rank=1, n_samples=9, random_state=0)
    ss.PooledRegressor().fit(sim.X, sim.y, task=sim.task).save(tmp_path / "b.span")
    new = ss.NewTaskRegressor(method="sgd").fit(sim.X, sim.y, task=sim.task)
    new.save(tmp_path / "s.span")
    paths = {"s": "s.span", "t": folder / "parkinsons.csv", "c": folder / "communities_crime.csv",
             "m": folder / "m.span", "b": "b.span"}  # fmt: skip
    before = {path: path.read_bytes() for path in (*tmp_path.iterdir(), *folder.iterdir())}
    done = run(*(argument.format(**paths) for argument in arguments))
    assert done.exit_code == 2, done.output
    assert words in done.output
    assert done.stdout == ""
    after = {path: path.read_bytes() for path in (*tmp_path.iterdir(), *folder.iterdir())}
    assert after == before
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", list(main.commands))
def test_every_command_has_help_with_an_example_of_its_own_options(name):
    text = run(name, "--help").output
    example = re.search(rf"Example:\s+(sharedspan {name} .*?)\n\n", text, re.DOTALL)
    assert example, text
    used = set(re.findall(r"(?<=\s)--?[a-z-]+", example[1]))
    known = {option for p in main.commands[name].params for option in (*p.opts, *p.secondary_opts)}
    assert used <= known


def test_options_of_one_name_are_one_thing_in_every_command():
    seen = {}
    for name, command in main.commands.items():
        known = {p.opts[-1]: p for p in command.params if isinstance(p, click.Option)}
        for option, p in known.items():
            if option != "--tables":  # a folder of the demo, files elsewhere
                about = (p.opts, p.is_flag, p.multiple, p.metavar)
                assert seen.setdefault(option, about) == about, (name, option)
        assert {"--json", "--out"} <= known.keys() or name in ("plan", "compile")


def test_output_for_machines_is_json_and_nothing_else(folder, tmp_path):
    done = run("fit", folder / "parkinsons.csv", "--task", "subject", "--target", "total_updrs",
               "--estimator", "PooledRegressor", "--json", "-o", tmp_path / "m.span")  # fmt: skip
    assert json.loads(done.stdout)["n_tasks"] == 42
    assert done.stderr == ""
    done = run("report", folder / "m.span", "--json", "-o", tmp_path / "r.html")
    about = json.loads(done.stdout)
    assert about["n_bytes"] == (tmp_path / "r.html").stat().st_size
    done = run("demo", "--tables", tmp_path / "tables", "--json")
    assert [one["n_tasks"] for one in json.loads(done.stdout)] == [42, 46]
    size = ("--tasks", 5, "--features", 3, "--rank", 1)
    done = run("simulate", *size, "--json", "-o", tmp_path / "s.csv")
    assert json.loads(done.stdout)["n_rows"] == 500


def reading(pid):
    """Names of the files that a process has open."""
    return {Path(file.path).name for file in psutil.Process(pid).open_files()}


@pytest.mark.parametrize("command", ["predict", "adapt", "report"])
def test_ctrl_c_ends_with_130_and_nothing_half_written(command, tmp_path):
    good("simulate", "--tasks", 3000, "--features", 30, "--rank", 2, "--rows", 100, "--csv", "-o",
         tmp_path / "t.csv")  # fmt: skip
    good("simulate", "--tasks", 20, "--features", 30, "--rank", 2, "-o", tmp_path / "s.parquet")
    columns = ("--task", "task", "--target", "y", "--rank", 2)
    good("fit", tmp_path / "s.parquet", *columns, "-o", tmp_path / "m.span")
    arguments = {"predict": ["m.span", "t.csv", "--unseen", "mean", "-o", "p.csv"],
                 "adapt": ["m.span", "t.csv", "-o", "a.span"],
                 "report": ["m.span", "--data", "t.csv", "-o", "r.html"]}  # fmt: skip
    before = sorted(tmp_path.iterdir())
    process = subprocess.Popen(
        [sys.executable, "-m", "sharedspan.cli", command, *arguments[command]], cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while "t.csv" not in reading(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert output.strip().startswith("Stopped.")
    assert sorted(tmp_path.iterdir()) == before


def test_output_to_a_closed_pipe_ends_quietly():
    code = "import sys; from sharedspan.cli import main; main(['plan', '--help'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    with process.stderr:
        output = process.stderr.read()
    process.wait(timeout=60)
    assert "Traceback" not in output


def test_help_keeps_its_lines_and_begins_with_what_can_be_typed():
    lines = [line.strip() for line in run("--help").output.splitlines()]
    assert "sharedspan fit school.csv --task school --target score -o school.span" in lines
    assert "\\b" not in "".join(lines)
    text = run("--help").output
    assert text.index("\n  compare ") < text.index("\n  fit ") < text.index("\n  reproduce ")


def test_columns_of_several_csv_files_are_matched_by_name(tmp_path):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 80))
    y, task = a + 100 * b, np.repeat([1, 2, 3, 4], 20)
    first = slice(None, 40)
    (tmp_path / "s").mkdir()
    write(tmp_path / "s" / "1.csv", ["g", "a", "b", "y"], [part[first] for part in (task, a, b, y)])
    write(tmp_path / "s" / "2.csv", ["y", "b", "g", "a"], [part[40:] for part in (y, b, task, a)])
    columns = ("--task", "g", "--target", "y", "--estimator", "PerTaskRegressor")
    good("fit", tmp_path / "s", *columns, "-o", tmp_path / "m.span")
    model = ss.load(tmp_path / "m.span")
    assert_allclose(model.coef_, np.tile([1.0, 100.0], (4, 1)), rtol=1e-3)
    good("predict", tmp_path / "m.span", tmp_path / "s", "--keep", "a", "-o", tmp_path / "p.csv")
    predicted = np.array(read(tmp_path / "p.csv")[1:], dtype=float)
    assert_allclose(predicted[:, 1], a)
    assert_allclose(predicted[:, 3], predicted[:, 2], atol=0.1)


@pytest.mark.parametrize(
    "labels",
    [
        ["18446744073709551615", "18446744073709551616", "18446744073709551617"],
        ["1e5", "100000", "1E5", "10e4"],
        ["true", "True", "TRUE", "f"],
        ["007", "7", "07"],
        ["1.50", "1.5"],
    ],
    ids=lambda labels: labels[0],
)
def test_labels_that_look_like_numbers_are_not_merged(labels, tmp_path):
    rng = np.random.default_rng(0)
    task = np.repeat(labels, 10)
    write(tmp_path / "t.csv", ["g", "x", "y"],
          [task, rng.normal(size=len(task)), rng.normal(size=len(task))])  # fmt: skip
    columns = ("--task", "g", "--target", "y", "--estimator", "PerTaskRegressor")
    good("fit", tmp_path / "t.csv", *columns, "--coefficients", tmp_path / "c.csv", "-o",
         tmp_path / "m.span")  # fmt: skip
    assert sorted(row[0] for row in read(tmp_path / "c.csv")[1:]) == sorted(labels)
    good("predict", tmp_path / "m.span", tmp_path / "t.csv", "-o", tmp_path / "p.csv")
    assert [row[0] for row in read(tmp_path / "p.csv")[1:]] == task.tolist()


def test_large_whole_numbers_of_parquet_are_labels_like_others(tmp_path):
    task = np.repeat(np.array([2**64 - 1, 2**63, 5], dtype=np.uint64), 10)
    rng = np.random.default_rng(0)
    table = pa.table({"g": task, "x": rng.normal(size=30), "y": rng.normal(size=30)})
    pq.write_table(table, tmp_path / "t.parquet")
    columns = ("--task", "g", "--target", "y", "--estimator", "PerTaskRegressor")
    good("fit", tmp_path / "t.parquet", *columns, "--coefficients", tmp_path / "c.csv", "-o",
         tmp_path / "m.span")  # fmt: skip
    assert [int(row[0]) for row in read(tmp_path / "c.csv")[1:]] == [5, 2**63, 2**64 - 1]
    for out in ("p.csv", "p.parquet"):
        good("predict", tmp_path / "m.span", tmp_path / "t.parquet", "-o", tmp_path / out)
    assert pq.read_table(tmp_path / "p.parquet")["g"].to_pylist() == task.tolist()


@pytest.mark.parametrize("head", ["g,a,y,b,y", "g,a,y, a,b", 'g,"a",y,a,b'])
def test_two_columns_of_one_name_are_refused(head, tmp_path):
    """One of them would be a feature under another name, perhaps the target itself."""
    (tmp_path / "t.csv").write_text(f"{head}\n" + "1,2,3,4,5\n" * 9)
    done = run("fit", tmp_path / "t.csv", "--task", "g", "--target", "y", "-o", tmp_path / "m.span")
    assert done.exit_code == 2
    assert "has two columns" in done.output


def test_names_in_quotes_keep_their_spaces_and_others_lose_them(tmp_path):
    rng = np.random.default_rng(0)
    rows = [",".join(map(str, [i % 3, *rng.normal(size=3)])) for i in range(30)]
    (tmp_path / "t.csv").write_text('" g ", a,"b "" ,",y\n' + "\n".join(rows))
    good("fit", tmp_path / "t.csv", "--task", " g ", "--target", "y", "--rank", 1, "-o",
         tmp_path / "m.span")  # fmt: skip
    assert ss.load(tmp_path / "m.span").coef_names_.tolist() == ["a", 'b " ,']


def test_names_do_not_reach_the_terminal_as_commands(tmp_path):
    rng = np.random.default_rng(0)
    target = "\x1b[2Jy\nz" + "x" * 1000
    write(tmp_path / "t.csv", ["g", "x", target],
          [np.repeat(["a", "b"], 9), rng.normal(size=18), rng.normal(size=18)])  # fmt: skip
    good("fit", tmp_path / "t.csv", "--task", "g", "--target", target, "--rank", 1, "-o",
         tmp_path / "m.span")  # fmt: skip
    output = good("predict", tmp_path / "m.span", tmp_path / "t.csv", "-o", tmp_path / "p.csv")
    assert output.isprintable() or "\x1b" not in output
    assert output.count("\n") == 4
    assert len(max(output.splitlines(), key=len)) < 300


def test_predict_says_that_an_error_is_in_sample(folder, tmp_path):
    table, out = folder / "parkinsons.csv", tmp_path / "p.csv"
    warned = "expect a larger error on new rows"
    assert warned in good("predict", folder / "m.span", table, "-o", out)
    lines = table.read_text().splitlines()
    (tmp_path / "other.csv").write_text("\n".join(lines[:-1]))
    assert warned not in good("predict", folder / "m.span", tmp_path / "other.csv", "-o", out)


def test_existing_tables_of_the_users_are_left_alone(tmp_path):
    (tmp_path / "parkinsons.csv").write_text("mine")
    done = run("demo", "--tables", tmp_path)
    assert done.exit_code == 0
    assert "left alone" in done.stderr
    assert (tmp_path / "parkinsons.csv").read_text() == "mine"


def test_rows_of_tasks_that_were_not_fitted_do_not_stop_the_report(folder, tmp_path):
    lines = (folder / "parkinsons.csv").read_text().splitlines()
    more = [re.sub(r"^42,", "99,", line) for line in lines if line.startswith("42,")]
    (tmp_path / "t.csv").write_text("\n".join([*lines, *more]))
    for name, table in (("without", folder / "parkinsons.csv"), ("with", tmp_path / "t.csv")):
        good("report", folder / "m.span", "--data", table, "-o", tmp_path / f"{name}.html")
    assert (tmp_path / "with.html").read_bytes() == (tmp_path / "without.html").read_bytes()


def test_the_plan_command_prints_words_or_json():
    problem = ["plan", "--tasks", "100", "--features", "50", "--rank", "3", "--noise", "0.5"]
    assert "56  with a shared span" in good(*problem, "--error", "0.02")
    planned = json.loads(good(*problem, "--rows", "40", "--json"))
    assert planned["n_samples"] == 40
    assert planned["error_separate"] is None
    for wrong in ([], ["--rows", "3", "--error", "1"], ["--error", "-1"], ["--rows", "0"]):
        result = run(*problem, *wrong)
        assert result.exit_code == 2
        assert len(result.stderr.strip().splitlines()) == 1


def test_columns_that_vary_are_named(tmp_path):
    rng = np.random.default_rng(0)
    task, x, z = rng.integers(0, 10, 200), rng.normal(size=200), rng.normal(size=200)
    y = x * task / 5 + z + rng.normal(size=200) / 10
    write(tmp_path / "t.csv", ["shop", "x", "z", "y"], [task, x, z, y])
    fit = ("fit", tmp_path / "t.csv", "--task", "shop", "--target", "y", "-o", tmp_path / "m.span")
    good(*fit, "--varying", "x")
    model = ss.load(tmp_path / "m.span")
    assert model.varying == ["x"]
    assert np.ptp(model.coef_[:, 1]) < 1e-12 < np.ptp(model.coef_[:, 0])
    done = run(*fit, "--varying", "xx", "--estimator", "AdaptiveSpanRegressor")
    assert "There is no feature 'xx'; the features are 'x', 'z': varying takes" in done.stderr
    assert "varying=" not in done.stderr
    done = run(*fit, "--varying", "x", "--estimator", "PooledRegressor")
    assert done.exit_code == 2
    assert "has no varying parameter: leave --varying out" in done.output


def test_a_command_names_only_its_own_options_for_gaps_and_the_file(folder, tmp_path):
    (tmp_path / "t.csv").write_text("g,x,y\n" + "a,1,2\nb,2,3\na,3,5\nb,4,4\n" * 5)
    (tmp_path / "gap.csv").write_text("g,x\na,1\nb,\n")
    model = tmp_path / "m.span"
    good("fit", tmp_path / "t.csv", "--task", "g", "--target", "y", "-o", model)
    done = run("predict", model, tmp_path / "gap.csv", "-o", tmp_path / "p.csv")
    assert done.exit_code == 2
    assert "gap.csv: 1 of 2 rows have missing values ('x' 1)" in done.stderr
    assert "leave these rows out (--missing drop)" in done.stderr
    assert "fit the model again with --missing indicator" in done.stderr


def test_help_names_all_formats_of_tables():
    for command in ("fit", "compare", "predict", "report"):
        assert "CSV, Parquet or Excel file" in " ".join(good(command, "--help").split())


def test_warnings_of_compare_are_told_in_lines(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"id": np.arange(80), "g": ["a", "b"] * 40, "x": rng.normal(size=80)})
    table.assign(y=table.x + rng.normal(size=80)).to_csv(tmp_path / "t.csv", index=False)
    given = [tmp_path / "t.csv", "--task", "g", "--target", "y"]
    done = run("compare", *given)
    assert done.stderr.startswith("Warning: The column 'id' numbers the rows")
    assert "UserWarning" not in done.stderr
    assert json.loads(good("compare", *given, "--json"))["warnings"]
