"""The comparison of estimators on a table."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from sharedspan.cli import main
from sharedspan.diagnosis import comparison
from sharedspan.diagnosis.comparison import COMPARED, Runs, leaderboard, recommend
from sharedspan.diagnosis.holdout_errors import random_folds
from sharedspan.estimators import ESTIMATORS

QUICK = ("PooledRegressor", "PerTaskRegressor", "SharedSpanRegressor")


@pytest.fixture(scope="module")
def sim():
    """Thirty tasks of rank 2, and two that are too small to be split."""
    sizes = np.r_[np.full(30, 14), 3, 1]
    return ss.simulate(
        n_tasks=32, n_features=6, rank=2, n_samples=sizes, noise=0.3, intercept=1.0, random_state=0
    )


@pytest.fixture
def table(sim, tmp_path):
    """The simulation as CSV and as Parquet, with a text column."""
    columns = {"shop": [f"shop {t}" for t in sim.task]}
    columns |= {f"x{j}": sim.X[:, j] for j in range(sim.X.shape[1])}
    columns |= {"city": ["Ulm"] * len(sim.y), "sales": sim.y}
    pq.write_table(pa.table(columns), tmp_path / "shops.parquet")
    with open(tmp_path / "shops.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
    return tmp_path / "shops.csv"


@pytest.fixture
def few_methods(monkeypatch):
    monkeypatch.setattr(comparison.compare, "__kwdefaults__",
                        comparison.compare.__kwdefaults__ | {"methods": QUICK})  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def on(table, *more):
    return run(table, "--task", "shop", "--target", "sales", "--drop", "city", *more)


def board(rmse):
    """The leaderboard of methods with these test errors, without failures."""
    return leaderboard({name: Runs(rmse=list(values)) for name, values in rmse.items()})


def test_a_quarter_of_every_task_is_held_out(rng):
    size = np.array([4, 7, 8, 101])
    held = random_folds(size, rng) == 0
    assert np.add.reduceat(held, np.cumsum(size) - size).tolist() == [1, 1, 2, 25]
    assert ((random_folds(size, rng) == 0) != held).any()


@pytest.mark.parametrize("rows", range(4, 12))
def test_held_out_rows_are_a_quarter_on_average_and_leave_three_to_fit(rows, rng):
    n_held = (random_folds(np.full(8, rows), rng) == 0).reshape(8, rows).sum(axis=1)
    assert n_held.mean() == rows / 4
    assert set(n_held) <= {rows // 4, -(-rows // 4)}
    assert (rows - n_held).min() >= 3


def test_paired_differences_are_those_by_hand():
    rmse = {"A": [1.0, 2.0, 3.0], "B": [1.5, 2.1, 3.3], "C": [0.0, 9.0, 9.0]}
    runs = {name: Runs(rmse=values) for name, values in rmse.items()}
    runs["A"].seconds, runs["B"].warned = [2.0, 4.0], ["hm", "hm"]
    entries = leaderboard(runs)
    assert [entry.method for entry in entries] == ["A", "B", "C"]
    assert [entry.rank for entry in entries] == [1, 2, 3]
    a, b, c = entries
    assert (a.rmse, a.difference, a.standard_error, a.seconds) == (2.0, 0.0, 0.0, 3.0)
    assert_allclose(b.difference, 0.3)  # of 0.5, 0.1 and 0.3
    assert_allclose(b.standard_error, 0.2 / np.sqrt(3))
    assert_allclose(c.difference, 4.0)  # of -1, 7 and 6
    assert_allclose(c.standard_error, np.sqrt((25 + 9 + 4) / 2 / 3))
    assert b.note == "hm"


def test_failed_methods_are_last_without_a_rank_and_never_the_best():
    runs = {"A": Runs(rmse=[1.0, 1.0], unconverged=["it did not converge"]),
            "B": Runs(rmse=[2.0, 2.0]), "C": Runs(rmse=[0.5], error="it broke")}  # fmt: skip
    entries = leaderboard(runs)
    assert [(e.method, e.rank) for e in entries] == [("B", 1), ("A", None), ("C", None)]
    assert_allclose(entries[1].difference, -1.0)
    assert entries[1].failure == "it did not converge, in 1 of 2 splits"
    assert (entries[2].rmse, entries[2].failure) == (None, "it broke")
    assert recommend(entries)[0] == "B"
    assert recommend(entries[1:])[0] is None


@pytest.mark.parametrize(
    ("rmse", "chosen", "words"),
    [
        ({"ARMULRegressor": [1, 2], "PooledRegressor": [2, 3.1]}, "ARMULRegressor", "by more than"),
        ({"ARMULRegressor": [1, 2], "PooledRegressor": [1, 2.1]}, "PooledRegressor", "simpler"),
        (
            {"PooledRegressor": [1, 2], "ARMULRegressor": [1, 2.1]},
            "PooledRegressor",
            "lowest, though ARMULRegressor is within",
        ),
        (
            {"PooledRegressor": [1, 2], "AdaptiveSpanRegressor": [1, 2.1]},
            "AdaptiveSpanRegressor",
            "adapts",
        ),
    ],
    ids=["alone", "simpler", "best and simplest", "preferred"],
)
def test_advice_prefers_the_adaptive_then_the_simplest_of_equals(rmse, chosen, words):
    method, sentence = recommend(board(rmse))
    assert method == chosen
    assert words in sentence
    assert sentence.count(". ") == 0


def test_all_estimators_are_compared_and_the_span_wins_where_there_is_one(sim):
    result = ss.compare(sim.X, sim.y, sim.task, repeats=2)
    assert {entry.method for entry in result.entries} == set(COMPARED)
    classifiers = {"AdaptiveSpanClassifier", "SharedSpanClassifier"}
    assert set(COMPARED) == set(ESTIMATORS) - classifiers - {"NewTaskRegressor"}
    rmse = {entry.method: entry.rmse for entry in result.entries}
    assert rmse["SharedSpanRegressor"] < rmse["PooledRegressor"]
    assert rmse["SharedSpanRegressor"] < rmse["PerTaskRegressor"]
    assert (result.n_tasks, result.n_small_tasks, result.n_rows) == (30, 2, 420)
    assert result.recommended in str(result)


def test_the_error_is_that_of_the_held_out_rows(sim):
    result = ss.compare(sim.X, sim.y, sim.task, repeats=2, seed=4, methods=["PooledRegressor"])
    large = sim.task < 30
    X, y, task = sim.X[large], sim.y[large], sim.task[large]
    for repeat, rmse in enumerate(result.entries[0].rmse_per_split):
        held = random_folds(np.bincount(task), np.random.default_rng([4, repeat])) == 0
        model = ss.PooledRegressor().fit(X[~held], y[~held], task=task[~held])
        errors = y[held] - model.predict(X[held], task=task[held])
        assert_allclose(rmse, np.sqrt(np.mean(errors**2)), rtol=1e-10)


class Broken(ss.PooledRegressor):
    """An estimator that raises."""

    def fit(self, X, y, task=None, sample_weight=None):
        raise RuntimeError("no luck. At all.")


class Slow(ss.SharedSpanRegressor):
    """An estimator that does not converge."""

    def __init__(self, random_state=None):
        super().__init__(rank=2, max_iter=2, random_state=random_state)


def test_one_that_raises_or_does_not_converge_stops_no_other(sim, monkeypatch):
    for name in ("Broken", "Slow"):
        monkeypatch.setitem(ESTIMATORS, name, __name__)
    methods = ("Broken", "Slow", "PooledRegressor", "NoSuchRegressor")
    result = ss.compare(sim.X, sim.y, sim.task, repeats=2, methods=methods)
    pooled, broken, slow = result.entries
    assert (pooled.method, pooled.rank, pooled.failure) == ("PooledRegressor", 1, None)
    assert (broken.rank, broken.rmse, broken.failure) == (None, None, "no luck")
    assert "did not converge" in slow.failure
    assert slow.failure.endswith(", in 2 of 2 splits")
    assert slow.rmse > 0
    assert slow.note is None


def test_too_little_data_is_refused(sim):
    with pytest.raises(ValueError, match="at least 2"):
        ss.compare(sim.X, sim.y, sim.task, repeats=1)
    with pytest.raises(ValueError, match=r"0 of 20 task\(s\) have at least 4 rows"):
        ss.compare(sim.X[:20], sim.y[:20], np.arange(20))


@pytest.mark.usefixtures("few_methods")
def test_csv_and_parquet_give_the_same_numbers_as_json(table):
    boards = []
    for path in (table, table.with_suffix(".parquet")):
        result = on(path, "--repeats", 2, "--json")
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        boards.append(json.loads(result.stdout))
    old, new = ([(e["method"], e["rmse_per_split"]) for e in b["entries"]] for b in boards)
    assert old == new
    assert boards[0]["recommended"] == "SharedSpanRegressor"
    assert boards[0]["dropped_columns"] == ["city"]


@pytest.mark.usefixtures("few_methods")
def test_the_terminal_shows_a_leaderboard_and_a_file_keeps_it(table, tmp_path):
    out = tmp_path / "board.csv"
    result = on(table, "--repeats", 2, "-o", out)
    assert result.exit_code == 0, result.output
    shown = ("30 tasks, 420 rows, 6 features", "test RMSE", "best", "±", "board.csv")
    for words in (*shown, "2 task(s) with fewer than 4 rows", "Use SharedSpanRegressor"):
        assert words in result.stdout
    assert result.stderr == ""
    with open(out, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    assert rows[0]["method"] == "SharedSpanRegressor"
    assert float(rows[0]["difference_to_best"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no.csv", "--task", "shop", "--target", "sales"], "There is no file no.csv"),
        (["{}", "--task", "shp", "--target", "sales"], "Did you mean 'shop'?"),
        (["{}", "--task", "x0", "--target", "sales", "--drop", "shop", "--drop", "city"],
         "have at least 4 rows"),
        (["{}", "--task", "shop", "--target", "sales", "--repeats", "1"], "x>=2"),
        (["{}", "--task", "shop", "--target", "sales", "--seed", "-1"], "x>=0"),
        (["{}", "--task", "shop", "--target", "sales", "-o", "{}"], "one of the files to be read"),
        (["{}", "--task", "shop", "--target", "sales", "-o", "no/such/b.csv"], "no folder"),
    ],
    ids=str,
)  # fmt: skip
def test_mistakes_exit_with_two_and_one_line(table, arguments, words):
    result = run(*(argument.replace("{}", str(table)) for argument in arguments))
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


def test_a_comparison_does_not_depend_on_the_order_of_methods(sim):
    one = ss.compare(sim.X, sim.y, sim.task, repeats=2, methods=QUICK)
    two = ss.compare(sim.X, sim.y, sim.task, repeats=2, methods=QUICK[::-1])
    assert_array_equal([e.rmse for e in one.entries], [e.rmse for e in two.entries])
