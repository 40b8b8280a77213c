"""The comparison of estimators on a table, and planning."""

import csv
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from sharedspan.cli import main
from sharedspan.diagnosis import comparison
from sharedspan.diagnosis.comparison import METHODS, advise, hold_out, leaderboard

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
    columns |= {"city": ["here"] * len(sim.y), "sales": sim.y}
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


def test_a_quarter_of_every_task_is_held_out(rng):
    code = rng.permutation(np.repeat([0, 1, 2, 3], [4, 7, 8, 101]))
    held = hold_out(code, rng)
    assert np.bincount(code[held]).tolist() == [1, 1, 2, 25]
    assert (hold_out(code, rng) != held).any()


def test_paired_differences_are_those_by_hand():
    rmse = {"A": [1.0, 2.0, 3.0], "B": [1.5, 2.1, 3.3], "C": [0.0, 9.0, 9.0]}
    board = leaderboard(rmse, dict.fromkeys(rmse), {"A": [2.0, 4.0]}, {"B": "hm"})
    assert [entry.method for entry in board] == ["A", "B", "C"]
    assert [entry.rank for entry in board] == [1, 2, 3]
    a, b, c = board
    assert (a.rmse, a.difference, a.standard_error, a.seconds) == (2.0, 0.0, 0.0, 3.0)
    assert_allclose(b.difference, 0.3)  # of 0.5, 0.1 and 0.3
    assert_allclose(b.standard_error, 0.2 / np.sqrt(3))
    assert_allclose(c.difference, 4.0)  # of -1, 7 and 6
    assert_allclose(c.standard_error, np.sqrt((25 + 9 + 4) / 2 / 3))
    assert b.note == "hm"


def test_failed_methods_are_last_without_a_rank_and_never_the_best():
    rmse = {"A": [1.0, 1.0], "B": [2.0, 2.0]}
    failures = {"A": "did not converge.", "B": None, "C": "broke."}
    board = leaderboard(rmse, failures, {}, {})
    assert [(e.method, e.rank) for e in board] == [("B", 1), ("A", None), ("C", None)]
    assert_allclose(board[1].difference, -1.0)
    assert board[2].rmse is None
    assert advise(board)[0] == "B"
    assert advise(board[1:])[0] is None


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
    found, sentence = advise(leaderboard(rmse, dict.fromkeys(rmse), {}, {}))
    assert found == chosen
    assert words in sentence
    assert sentence.count(". ") == 0


def test_all_estimators_are_compared_and_the_span_wins_where_there_is_one(sim):
    found = ss.compare(sim.X, sim.y, sim.task, repeats=2)
    present = {name for name in METHODS if hasattr(ss, name)}
    assert {entry.method for entry in found.entries} == present
    assert len(present) >= 8
    rmse = {entry.method: entry.rmse for entry in found.entries}
    assert rmse["SharedSpanRegressor"] < rmse["PooledRegressor"]
    assert rmse["SharedSpanRegressor"] < rmse["PerTaskRegressor"]
    assert (found.n_tasks, found.n_small_tasks, found.n_rows) == (30, 2, 420)
    assert found.recommended in str(found)


def test_the_error_is_that_of_the_held_out_rows(sim):
    found = ss.compare(sim.X, sim.y, sim.task, repeats=2, seed=4, methods=["PooledRegressor"])
    kept = sim.task < 30
    X, y, task = sim.X[kept], sim.y[kept], sim.task[kept]
    for repeat, rmse in enumerate(found.entries[0].rmse_per_split):
        held = hold_out(task, np.random.default_rng([4, repeat]))
        model = ss.PooledRegressor().fit(X[~held], y[~held], task=task[~held])
        errors = y[held] - model.predict(X[held], task=task[held])
        assert_allclose(rmse, np.sqrt(np.mean(errors**2)), rtol=1e-10)


def test_one_that_raises_or_does_not_converge_stops_no_other(sim, monkeypatch):
    class Broken(ss.PooledRegressor):
        def _fit_tasks(self, tasks):
            raise RuntimeError("no luck. At all.")

    class Slow(ss.SharedSpanRegressor):
        def __init__(self, random_state=None):
            super().__init__(rank=2, max_iter=2, random_state=random_state)

    monkeypatch.setattr(ss, "Broken", Broken, raising=False)
    monkeypatch.setattr(ss, "Slow", Slow, raising=False)
    methods = ("Broken", "Slow", "PooledRegressor", "NoSuchRegressor")
    found = ss.compare(sim.X, sim.y, sim.task, repeats=2, methods=methods)
    pooled, broken, slow = found.entries
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
        (["{}", "--task", "shop", "--target", "sales"], "'city' (such as 'here')"),
        (["{}", "--task", "x0", "--target", "sales", "--drop", "shop", "--drop", "city"],
         "have at least 4 rows"),
        (["{}", "--task", "shop", "--target", "sales", "--repeats", "1"], "at least 2"),
        (["{}", "--task", "shop", "--target", "sales", "--seed", "-1"], "zero or more"),
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


PROBLEM = {"n_tasks": 100, "n_features": 50, "rank": 3, "noise": 0.5}


def test_a_plan_knows_its_three_formulas():
    found = ss.plan(**PROBLEM, n_samples=200)
    assert_allclose(found.error, 0.25 * 3 * (50 + 100 - 3) / (200 * 100))
    assert_allclose(found.error_by_rate, 0.25 * 50 * 3 / (200 * 100))
    assert_allclose(found.error_separate, 0.25 * 50 / (200 - 50 - 1))
    assert ss.plan(**PROBLEM, n_samples=51).error_separate == np.inf


@pytest.mark.parametrize("error", [1e-4, 0.01, 0.0173, 0.1])
def test_a_plan_inverts_itself_with_the_fewest_rows(error):
    wanted = ss.plan(**PROBLEM, error=error)
    for name in ("", "_by_rate", "_separate"):
        rows = getattr(wanted, f"n_samples{name}")
        assert getattr(ss.plan(**PROBLEM, n_samples=rows), f"error{name}") <= error * (1 + 1e-9)
        assert getattr(ss.plan(**PROBLEM, n_samples=rows - 1), f"error{name}") > error
    exact = ss.plan(**PROBLEM, n_samples=80)
    assert ss.plan(**PROBLEM, error=exact.error).n_samples == 80


def test_planned_rows_give_the_planned_error():
    size = {"n_tasks": 60, "n_features": 20, "rank": 2, "noise": 0.5}
    rows = ss.plan(**size, error=0.01).n_samples
    ratios = []
    for seed in range(5):
        sim = ss.simulate(**size, n_samples=rows, random_state=seed)
        model = ss.SharedSpanRegressor(rank=2, random_state=0).fit(sim.X, sim.y, task=sim.task)
        ratios.append(ss.parameter_error(model.coef_, sim.coef) / 60 / 0.01)
    assert 0.9 < np.mean(ratios) < 1.2


def test_separate_regressions_need_the_rows_that_the_plan_says():
    rng, errors = np.random.default_rng(0), []
    for _ in range(2000):
        X = rng.standard_normal((30, 10))
        errors.append(np.sum(np.linalg.lstsq(X, rng.standard_normal(30), rcond=None)[0] ** 2))
    found = ss.plan(n_tasks=20, n_features=10, rank=1, noise=1.0, n_samples=30)
    assert_allclose(np.mean(errors), found.error_separate, rtol=0.06)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ({"error": 0.01}, "11.7 times fewer rows"),
        ({"n_samples": 80}, "times smaller"),
        ({"n_samples": 20}, "only 4.5 rows for each number"),
        ({"n_samples": 3}, "out of reach"),
        ({"n_samples": 80, "noise": 0}, "Without noise"),
        ({"n_samples": 49}, "Separate regressions need more than 51 rows"),
    ],
    ids=str,
)
def test_a_plan_explains_itself(problem, words):
    assert re.search(words, str(ss.plan(**(PROBLEM | problem))))


@pytest.mark.parametrize(
    ("change", "words"),
    [({}, "either error or n_samples"), ({"error": 1, "n_samples": 2}, "either error or n_samples"),
     ({"error": 0}, "error=0 must be"), ({"error": 1, "rank": 51}, "rank=51"),
     ({"error": 1, "noise": -1}, "noise=-1"), ({"n_samples": 0}, "n_samples=0"),
     ({"n_samples": 2.5}, "n_samples=2.5"), ({"error": float("nan")}, "error=nan"),
     ({"error": 1, "n_tasks": True}, "n_tasks=True")],
    ids=str,
)  # fmt: skip
def test_impossible_plans_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        ss.plan(**(PROBLEM | change))


def test_the_plan_command_prints_words_or_json():
    problem = ["plan", "--tasks", "100", "--features", "50", "--rank", "3", "--noise", "0.5"]
    words = CliRunner().invoke(main, [*problem, "--error", "0.02"])
    assert words.exit_code == 0
    assert "56  with a shared span" in words.output
    found = json.loads(CliRunner().invoke(main, [*problem, "--rows", "40", "--json"]).output)
    assert found["n_samples"] == 40
    assert found["error_separate"] is None
    for wrong in ([], ["--rows", "3", "--error", "1"], ["--error", "-1"]):
        result = CliRunner().invoke(main, problem + wrong)
        assert result.exit_code == 2
        assert len(result.stderr.strip().splitlines()) == 1


def test_a_comparison_does_not_depend_on_the_order_of_methods(sim):
    one = ss.compare(sim.X, sim.y, sim.task, repeats=2, methods=QUICK)
    two = ss.compare(sim.X, sim.y, sim.task, repeats=2, methods=QUICK[::-1])
    assert_array_equal([e.rmse for e in one.entries], [e.rmse for e in two.entries])
