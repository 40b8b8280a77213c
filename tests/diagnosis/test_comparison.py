"""The comparison of estimators on a table."""

import csv
import json
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from sharedspan.cli import main
from sharedspan.diagnosis import compared_methods, split_runs
from sharedspan.diagnosis.compared_methods import (
    COMPARED,
    DEFAULTS,
    IGNORED,
    POOLED,
    SEPARATE,
    make_estimator,
    python_lines,
)
from sharedspan.diagnosis.holdout_errors import HoldoutErrors, holdout_errors, random_folds
from sharedspan.diagnosis.leaderboard import leaderboard, recommend
from sharedspan.diagnosis.model_view import ModelView
from sharedspan.diagnosis.split_runs import Runs
from sharedspan.diagnosis.verdict import holdout_gains, sharing_verdict
from sharedspan.estimators import ESTIMATORS, glm_baselines
from sharedspan.families import family_of

QUICK = ("PooledRegressor", "PerTaskRegressor", "SharedSpanRegressor")


@pytest.fixture(scope="module")
def sim():
    """Thirty tasks of rank 2, and two that are too small to be split."""
    sizes = np.r_[np.full(30, 14), 1, 1]
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
    monkeypatch.setattr(compared_methods, "DEFAULTS", QUICK)


def run(*arguments):
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def on(table, *more):
    return run(table, "--task", "shop", "--target", "sales", "--drop", "city", *more)


def runs_with(rmse, **more):
    """Runs with these errors of tasks of one held-out row each."""
    errors = np.asarray(rmse, dtype=float)
    return Runs(rmse=list(errors), task_losses=errors**2, n_held=len(errors), **more)


def board(rmse):
    """The leaderboard of methods with these errors of tasks, without failures."""
    return leaderboard({name: runs_with(values) for name, values in rmse.items()})


TASKS = np.array([1.0, 2.0, 1.5, 0.7, 1.1, 3.0])  # errors of six tasks
NOISY = 1 + np.array([0.3, -0.3, 0.25, -0.25, 0.3, 0.1])  # a difference that is not clear
CLOSE_BY = 1 + np.array([0.1, -0.1, 0.1, 0.1, 0.1, 0.02])  # and that is less than two per cent


def test_a_quarter_of_every_task_is_held_out(rng):
    size = np.array([4, 7, 8, 101])
    held = random_folds(size, rng) == 0
    assert np.add.reduceat(held, np.cumsum(size) - size).tolist() == [1, 1, 2, 25]
    assert ((random_folds(size, rng) == 0) != held).any()


def test_tasks_of_two_or_three_rows_hold_out_one_row_or_none(rng):
    for rows in (2, 3):
        n_held = (random_folds(np.full(8, rows), rng) == 0).reshape(8, rows).sum(axis=1)
        assert sorted(n_held) == [0] * (8 - 2 * rows) + [1] * 2 * rows


def test_tables_of_two_rows_per_task_are_compared(rng):
    X = rng.standard_normal((200, 2))
    y = X @ [1.0, -1.0] + 0.1 * rng.standard_normal(200)
    result = ss.compare(X, y, np.repeat(np.arange(100), 2))
    assert result.n_tasks == 100
    assert result.recommended is not None


def test_a_column_of_the_table_names_the_tasks(sim):
    methods = ["PooledRegressor", "PerTaskRegressor"]
    frame = pd.DataFrame(sim.X).rename(columns=str)
    expected = ss.compare(frame, sim.y, sim.task, methods=methods)
    with_task = frame.assign(shop=sim.task)
    result = ss.compare(with_task, sim.y, task_column="shop", methods=methods)
    assert [e.rmse for e in result.entries] == [e.rmse for e in expected.entries]
    words = r"one label per row: .* task_column='shop', or X\['shop'\]"
    with pytest.raises(ValueError, match=words):
        ss.compare(with_task, sim.y, task="shop")


def test_errors_far_above_the_best_are_multiples_of_it_and_never_endless_digits():
    entries = board({"A": [5.0] * 5, "B": [8.0, 9, 8, 9, 8], "C": [905.0] * 5,
                     "D": [19_020.0] * 5, "E": [2.5006e15] * 5})  # fmt: skip
    cells = {entry.method: entry.cells()[2:4] for entry in entries}
    assert re.fullmatch(r"\+3\.\d+ ± 0\.\d+", cells["B"][1])
    assert cells["C"] == ("905.00", "181 times the best")
    assert cells["D"] == ("19,020", "over 1,000 times the best")
    assert cells["E"] == ("far above", "over 1,000 times the best")


@pytest.mark.parametrize("rows", range(4, 12))
def test_held_out_rows_are_a_quarter_on_average_and_leave_three_to_fit(rows, rng):
    n_held = (random_folds(np.full(8, rows), rng) == 0).reshape(8, rows).sum(axis=1)
    assert n_held.mean() == rows / 4
    assert set(n_held) <= {rows // 4, -(-rows // 4)}
    assert (rows - n_held).min() >= 3


def test_differences_are_those_of_the_reports_rule():
    rmse = {"A": TASKS, "B": 1.2 * TASKS, "C": 3 * TASKS[::-1]}
    runs = {name: runs_with(values) for name, values in rmse.items()}
    runs["A"].seconds, runs["B"].warned = [2.0, 4.0], ["hm", "hm"]
    entries = leaderboard(runs)
    assert [entry.method for entry in entries] == ["A", "B", "C"]
    assert [entry.rank for entry in entries] == [1, 2, 3]
    a, b, c = entries
    root = np.sqrt(np.mean(TASKS**2))
    assert_allclose([a.rmse, a.difference, a.standard_error, a.seconds], [root, 0, 0, 3])
    assert_allclose([b.difference, b.standard_error], [0.2 * root, 0], atol=1e-12)
    assert_allclose(c.difference, 2 * root)
    errors = HoldoutErrors(
        {"model": 9 * TASKS[::-1] ** 2, "pooled": TASKS**2}, np.ones(6, int), 1.0, 0, ()
    )
    assert_allclose(c.standard_error, root * errors.change("pooled").standard_error)
    assert b.note == "hm"


def test_few_tasks_have_no_standard_error_in_the_table():
    cells = {e.method: e.cells() for e in board({"A": [1.0, 2, 3], "B": [1.5, 2.5, 3.5]})}
    assert re.fullmatch(r"\+0\.\d+", cells["B"][3])


def test_a_method_whose_error_is_that_of_a_few_tasks_is_called_unstable():
    wild = np.ones(40)
    wild[3] = 20.0
    entries = board({"A": np.ones(40), "B": wild, "C": 9 * np.ones(40)})
    told = {e.method: e.unstable for e in entries}
    assert told == {
        "A": None,
        "B": "1 of 40 tasks accounts for more than half of its error",
        "C": None,
    }
    assert next(e for e in entries if e.method == "B").cells()[3].endswith(", unstable")
    assert all(e.unstable is None for e in board({"A": wild, "B": 1.1 * wild}))


def test_failed_methods_are_last_without_a_rank_and_never_the_best():
    runs = {"A": runs_with([1.0, 1.0], unconverged=["it did not converge"]),
            "B": runs_with([2.0, 2.0]), "C": Runs(rmse=[0.5], error="it broke")}  # fmt: skip
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
        (
            {"ARMULRegressor": TASKS, "PooledRegressor": 1.5 * TASKS},
            "ARMULRegressor",
            "Its test error is clearly the lowest.",
        ),
        (
            {"ARMULRegressor": TASKS, "PooledRegressor": TASKS * CLOSE_BY},
            "PooledRegressor",
            "not clearly above the lowest (ARMULRegressor), and it is simpler",
        ),
        (
            {"PooledRegressor": TASKS, "ARMULRegressor": TASKS * NOISY},
            "PooledRegressor",
            "the lowest, but not clearly below that of ARMULRegressor",
        ),
        (
            {"PooledRegressor": TASKS, "AdaptiveSpanRegressor": TASKS * CLOSE_BY},
            "AdaptiveSpanRegressor",
            "use AdaptiveSpanRegressor, or PooledRegressor, which is simpler but has no prediction "
            "intervals. The test error of AdaptiveSpanRegressor is not clearly above the lowest "
            "(PooledRegressor), and it",
        ),
        (
            {"SharedSpanRegressor": TASKS, "AdaptiveSpanRegressor": 1.0003 * TASKS},
            "AdaptiveSpanRegressor",
            "adapts",
        ),
    ],
    ids=["alone", "simpler", "best and simplest", "preferred", "irrelevant difference"],
)
def test_advice_prefers_the_adaptive_then_the_simplest_of_equals(rmse, chosen, words):
    method, sentence, _ = recommend(board(rmse))
    assert method == chosen
    assert words in sentence


def test_a_model_that_loses_clearly_to_a_baseline_is_not_preferred():
    rmse = {"SharedSpanRegressor": TASKS * NOISY[::-1], "AdaptiveSpanRegressor": 1.05 * TASKS,
            "PooledRegressor": TASKS}  # fmt: skip
    entries = board(rmse)
    assert entries[0].method == "PooledRegressor"
    method, sentence, sharing = recommend(entries)
    assert sharing.outcome == "loss"
    assert method == "PooledRegressor"
    assert sentence.startswith("Sharing does not help here. It raises the error by 5.0")


def test_a_model_whose_error_is_much_larger_is_not_preferred_however_uncertain():
    far = TASKS.copy()
    far[0] *= 5.0  # one task, so that the difference is not clear
    entries = board({"PooledRegressor": TASKS, "AdaptiveSpanRegressor": far})
    method, sentence, _ = recommend(entries)
    assert method == "PooledRegressor"
    assert "use PooledRegressor. Its test error is the lowest. It has no prediction" in sentence


def test_one_model_ignoring_tasks_is_named_as_the_simplest_of_equals():
    rmse = {"one model ignoring tasks": TASKS, "AdaptiveSpanRegressor": TASKS * CLOSE_BY,
            "PooledRegressor": 1.1 * TASKS * NOISY}  # fmt: skip
    method, sentence, sharing = recommend(board(rmse))
    assert method == "AdaptiveSpanRegressor"
    assert sharing.outcome == "even"
    assert sentence.startswith(
        "The tasks hardly differ: one model that ignores them predicts as well. Use "
        "AdaptiveSpanRegressor, or a ridge regression of all rows, ignoring tasks, which is simpler"
    )


def test_no_gain_is_claimed_against_a_model_worse_than_one_that_ignores_tasks():
    rmse = {"AdaptiveSpanRegressor": TASKS, IGNORED: TASKS * (1 + 1e-7),
            "PooledRegressor": 1.035 * TASKS, "PerTaskRegressor": 1.2 * TASKS}  # fmt: skip
    _, sentence, sharing = recommend(board(rmse))
    assert (sharing.outcome, sharing.simpler) == ("even", "ignored")
    assert "cuts" not in sentence
    rmse[IGNORED] = 1.02 * TASKS + 0.01
    _, sentence, sharing = recommend(board(rmse))
    assert sharing.outcome == "gain"
    assert re.match(r"Sharing cuts the error by 2\.\d % against one model ignoring", sentence)


def test_a_simpler_model_of_much_larger_error_is_not_named_however_uncertain():
    rng = np.random.default_rng(0)
    many = 1 + 0.1 * rng.random(40)
    wild = 1.01 * many
    wild[:2] = 4.0
    method, sentence, _ = recommend(board({"AdaptiveSpanRegressor": many, "PooledRegressor": wild}))
    assert method == "AdaptiveSpanRegressor"
    assert "2 of 40 tasks account for most of that, so the difference is not clear" in sentence
    assert "simpler" not in sentence
    method, sentence, _ = recommend(
        board({"AdaptiveSpanRegressor": TASKS, "PooledRegressor": TASKS * NOISY})
    )
    assert method == "AdaptiveSpanRegressor"
    assert "each task), but the difference is not clear of chance: use Adaptive" in sentence


def test_another_method_is_only_preferred_to_the_rule_of_the_report_if_clearly_better():
    rmse = {"SharedSpanRegressor": TASKS * CLOSE_BY, "PerTaskRegressor": 1.05 * TASKS,
            "AdaptiveSpanRegressor": 1.6 * TASKS * NOISY}  # fmt: skip
    assert recommend(board(rmse))[0] == "PerTaskRegressor"
    rmse["SharedSpanRegressor"] = 0.9 * TASKS
    assert recommend(board(rmse))[0] == "SharedSpanRegressor"


def test_the_advice_begins_with_what_sharing_gains():
    rmse = {"AdaptiveSpanRegressor": 0.84 * TASKS, "PooledRegressor": TASKS,
            "PerTaskRegressor": 0.865 * TASKS}  # fmt: skip
    method, sentence, sharing = recommend(board(rmse))
    assert sentence.replace("\u00a0", " ").startswith(
        "Sharing cuts the error by 16 % against common slopes (with an intercept for each task) "
        "and by 2.9 % against separate models: use AdaptiveSpanRegressor. Its test error is "
        "clearly the lowest."
    )
    assert method == "AdaptiveSpanRegressor"
    assert [gain.against for gain in sharing.gains] == ["pooled", "separate"]


def runs_of(**means):
    """Runs of methods with these predictions in each of two splits."""
    return {
        name: runs_with([1 + values[0], 1 + values[0]], means=[np.array(values)] * 2)
        for name, values in means.items()
    }


def test_methods_with_the_same_predictions_share_a_rank_and_a_row():
    runs = runs_of(
        PooledRegressor=[0.1, 1.0], AdaptiveSpanRegressor=[0.1 + 1e-13, 1.0],
        ARMULRegressor=[0.1 + 1e-3, 1.0], MomentRegressor=[0.1, 1.0 + 1e-13],
    )  # fmt: skip
    runs["PerTaskRegressor"] = runs_with([2.0, 2.1], means=[np.array([0.1, 1.0])])
    entries = leaderboard(runs)
    assert [(e.method, e.rank, e.equal_to) for e in entries] == [
        ("AdaptiveSpanRegressor", 1, None),
        ("PooledRegressor", 1, "AdaptiveSpanRegressor"),
        ("MomentRegressor", 1, "AdaptiveSpanRegressor"),
        ("ARMULRegressor", 2, None),
        ("PerTaskRegressor", 3, None),
    ]
    method, sentence, _ = recommend(entries)
    assert method == "AdaptiveSpanRegressor"
    assert "no clear difference against common slopes (with an intercept for each task)" in sentence


def test_tables_show_equal_methods_once_and_files_show_them_all(tmp_path):
    sim = ss.simulate(
        n_tasks=20, n_features=3, rank=3, n_samples=30, noise=1, intercept=1.0, random_state=0
    )
    methods = ["SharedSpanRegressor", "SpectralRegressor", "PooledRegressor", "PerTaskRegressor"]
    result = ss.compare(sim.X, sim.y, sim.task, repeats=2, methods=methods)
    assert {e.method: e.equal_to for e in result.entries} == {
        "SharedSpanRegressor": None, "SpectralRegressor": "SharedSpanRegressor",
        "PooledRegressor": None, "PerTaskRegressor": None,
    }  # fmt: skip
    assert [cells[0] for _, cells in result.rows()] == ["1", "2", "3"]
    assert "SharedSpanRegressor = SpectralRegressor" in str(result)
    assert "SpectralRegressor predicts the same as SharedSpanRegressor." in result.remarks()
    result.write_csv(tmp_path / "board.csv")
    with open(tmp_path / "board.csv", encoding="utf-8") as file:
        rows = {row["method"]: row["equal_to"] for row in csv.DictReader(file)}
    assert rows["SpectralRegressor"] == "SharedSpanRegressor"
    assert len(rows) == 4


def test_five_methods_are_compared_and_the_span_wins_where_there_is_one(sim):
    result = ss.compare(sim.X, sim.y, sim.task, repeats=2)
    assert {entry.method for entry in result.entries} == set(DEFAULTS)
    rmse = {entry.method: entry.rmse for entry in result.entries}
    assert rmse["SharedSpanRegressor"] < rmse["PooledRegressor"]
    assert rmse["SharedSpanRegressor"] < rmse["PerTaskRegressor"]
    assert (result.n_tasks, result.n_small_tasks, result.n_rows) == (30, 2, 420)
    assert result.recommended in str(result)
    assert result.sharing.outcome == "gain"
    assert result.advice.startswith("Sharing cuts the error by ")


def test_all_methods_are_compared_if_asked_for(sim):
    result = ss.compare(sim.X, sim.y, sim.task, repeats=2, methods="all")
    assert {entry.method for entry in result.entries} == {IGNORED, *COMPARED}
    classifiers = {"AdaptiveSpanClassifier", "SharedSpanClassifier"}
    assert set(COMPARED) == set(ESTIMATORS) - classifiers - {"NewTaskRegressor"}


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (["PooledRegressor", "SharedSpanRegresor"], "Did you mean 'SharedSpanRegressor'"),
        (["pooled glm"], "Did you mean 'pooled GLM'"),
        ("al", "Did you mean 'all'"),
        (["xgboost"], "The methods are one model ignoring tasks, PooledRegressor, "),
        ([], "methods is empty"),
    ],
    ids=str,
)
def test_methods_that_do_not_exist_are_refused(sim, methods, words):
    with pytest.raises(ValueError, match=words.replace("?", ".")):
        ss.compare(sim.X, sim.y, sim.task, methods=methods)


def test_a_single_method_may_be_named_without_a_list(sim):
    result = ss.compare(sim.X, sim.y, sim.task, repeats=2, methods="PooledRegressor")
    assert [entry.method for entry in result.entries] == ["PooledRegressor"]
    assert result.sharing is None
    assert result.advice.startswith("Use PooledRegressor: ")


class Clock:
    """A clock that stands still but for fits, each of which takes as long as it is said to."""

    def __init__(self, monkeypatch, **seconds):
        self.now, self.fits = 0.0, []
        fit = split_runs.add_fit

        def timed(run, model, *more):
            self.now += seconds[type(model).__name__]
            self.fits.append(type(model).__name__)
            fit(run, model, *more)

        monkeypatch.setattr(split_runs, "clock", lambda: self.now)
        monkeypatch.setattr(split_runs, "add_fit", timed)


A, B, C = "PooledRegressor", "PerTaskRegressor", "SpectralRegressor"


def limited(sim, monkeypatch, limit, methods=(A, B, C), first=(A, B), **seconds):
    """The comparison within a limit, and the fits in their order."""
    monkeypatch.setattr(compared_methods, "DEFAULTS", first)
    clock = Clock(monkeypatch, **(dict.fromkeys((A, B, C), 1.0) | seconds))
    monkeypatch.setattr(compared_methods, "COMPARED", methods)
    result = ss.compare(sim.X, sim.y, sim.task, methods="all", time_limit=limit)
    return result, clock.fits


def test_without_a_limit_all_splits_are_made(sim, monkeypatch):
    result, fits = limited(sim, monkeypatch, None)
    assert fits == [A, A, B, B, C, C, *[A, B, C] * 2]
    assert (result.repeats, result.left_out, result.notes) == (4, (), ())


def test_a_limit_leaves_out_further_splits_first(sim, monkeypatch):
    result, fits = limited(sim, monkeypatch, 10.5)
    assert fits == [A, A, B, B, C, C, A, B, C]
    assert (result.repeats, result.left_out) == (3, ())
    assert "The time limit of 10.5 s allowed 3 of 4 splits.\n`sharedspan report`" in str(result)
    assert {len(entry.rmse_per_split) for entry in result.entries} == {3}


def test_a_limit_leaves_out_methods_that_are_not_fitted_twice(sim, monkeypatch):
    result, fits = limited(sim, monkeypatch, 10.0, SpectralRegressor=4.0)
    assert fits == [A, A, B, B, C]  # its second fit would end at 12 s
    assert result.left_out == (C,)
    assert f"no room for two fits of {C}: allow more" in str(result)
    assert {entry.method for entry in result.entries} == {A, B}


def test_an_important_method_that_was_fitted_once_is_fitted_twice(sim, monkeypatch):
    result, fits = limited(sim, monkeypatch, 10.0, PerTaskRegressor=7.0)
    assert fits == [A, A, B, B]
    assert (result.repeats, result.left_out) == (2, (C,))


def test_a_limit_that_allows_nothing_recommends_nothing(sim, monkeypatch):
    result, fits = limited(sim, monkeypatch, 1e-9, PooledRegressor=0.5)
    assert (fits, result.entries, result.recommended) == ([A], (), None)
    assert "allow more time" in str(result)
    with pytest.raises(ValueError, match="time_limit=0 must be a positive number"):
        ss.compare(sim.X, sim.y, sim.task, time_limit=0)


def test_progress_counts_fits_and_never_goes_back(sim):
    told = []
    methods = ["PooledRegressor", "PerTaskRegressor"]
    ss.compare(
        sim.X, sim.y, sim.task, repeats=3, methods=methods, progress=lambda *a: told.append(a)
    )
    assert [done for _, done, _ in told] == list(range(6))
    assert {total for _, _, total in told} == {6}


def test_the_notebook_shows_the_table_with_the_chosen_row_in_bold(sim, monkeypatch):
    monkeypatch.setitem(ESTIMATORS, "Broken", __name__)
    result = ss.compare(sim.X, sim.y, sim.task, repeats=2, methods=[*QUICK, "Broken"])
    page = result._repr_html_()
    rows = page.split("<tr")
    bold = [row for row in rows if row.startswith(' class="bold"')]
    assert len(bold) == 1
    assert result.recommended in bold[0]
    assert "30 tasks, 420 rows, 6 features" in page
    assert "Broken failed: no &lt;luck&gt;" in page
    assert "use SharedSpanRegressor" in page


def test_the_error_is_that_of_the_held_out_rows(sim):
    result = ss.compare(sim.X, sim.y, sim.task, repeats=2, seed=4, methods=["PooledRegressor"])
    large = sim.task < 30
    X, y, task = sim.X[large], sim.y[large], sim.task[large]
    for repeat, rmse in enumerate(result.entries[0].rmse_per_split):
        held = random_folds(np.bincount(task), np.random.default_rng(4)) == repeat
        model = ss.PooledRegressor().fit(X[~held], y[~held], task=task[~held])
        errors = y[held] - model.predict(X[held], task=task[held])
        assert_allclose(rmse, np.sqrt(np.mean(errors**2)), rtol=1e-10)


class Broken(ss.PooledRegressor):
    """An estimator that raises."""

    def fit(self, X, y, task=None, sample_weight=None):
        raise RuntimeError("no <luck>. At all.")


class Slow(ss.SharedSpanRegressor):
    """An estimator that does not converge."""

    def __init__(self, random_state=None):
        super().__init__(rank=2, solver="tpgd", max_iter=2, random_state=random_state)


def test_one_that_raises_or_does_not_converge_stops_no_other(sim, monkeypatch):
    for name in ("Broken", "Slow"):
        monkeypatch.setitem(ESTIMATORS, name, __name__)
    methods = ("Broken", "Slow", "PooledRegressor")
    result = ss.compare(sim.X, sim.y, sim.task, repeats=2, methods=methods)
    pooled, broken, slow = result.entries
    assert (pooled.method, pooled.rank, pooled.failure) == ("PooledRegressor", 1, None)
    assert (broken.rank, broken.rmse, broken.failure) == (None, None, "no <luck>")
    assert "did not converge" in slow.failure
    assert slow.failure.endswith(", in 2 of 2 splits")
    assert slow.rmse > 0
    assert slow.note is None


def test_too_little_data_is_refused(sim):
    with pytest.raises(ValueError, match="at least 2"):
        ss.compare(sim.X, sim.y, sim.task, repeats=1)
    words = r"0 of 20 tasks have at least 2 rows.*`sharedspan fit`"
    with pytest.raises(ValueError, match=words):
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
    for words in (*shown, "2 tasks with fewer than 2 rows", "use SharedSpanRegressor"):
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
         "have at least 2 rows"),
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


def test_the_comparison_and_the_report_agree(tmp_path):
    """Their folds are the same, whatever the order of the rows."""
    rng = np.random.default_rng(0)
    sizes = np.r_[rng.integers(2, 12, 40), 1, 1]
    sim = ss.simulate(n_tasks=42, n_features=3, rank=1, n_samples=sizes, noise=1, random_state=0)
    mixed = rng.permutation(len(sim.y))
    X, y, task = sim.X[mixed], sim.y[mixed], sim.task[mixed]
    result = ss.compare(X, y, task)
    entries = {entry.method: entry for entry in result.entries}
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    errors = holdout_errors(ModelView(model, X, y, task))
    for key, method in (("model", "AdaptiveSpanRegressor"), ("pooled", "PooledRegressor"),
                        ("separate", "PerTaskRegressor"), ("ignored", IGNORED)):  # fmt: skip
        assert_allclose(entries[method].rmse, errors.error(key), rtol=1e-6)
    verdict = sharing_verdict(holdout_gains(errors))
    assert verdict.statement == result.sharing.statement
    for gain, shown in zip(verdict.gains, result.sharing.gains, strict=True):
        assert_allclose(gain.interval, shown.interval, rtol=1e-5)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_the_python_that_is_printed_predicts_new_rows_as_the_method_that_was_compared(family, rng):
    chosen = family_of(family)
    X, task = rng.standard_normal((300, 2)) * [1e4, 1e-3] + [1e5, 0], np.repeat(np.arange(10), 30)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    eta = Z[:, 0] + (task - 5) / 10
    y = {"gaussian": eta + rng.standard_normal(300), "poisson": rng.poisson(np.exp(eta)) * 1.0,
         "binomial": (rng.random(300) < 1 / (1 + np.exp(-eta))) * 1.0}[family]  # fmt: skip
    new = np.flatnonzero(task == 3)[:7]
    given = {"np": np, "pd": pd, "ss": ss, "X": X, "y": y, "task": task, "t": 3,
             "X_new": X[new], "task_new": task[new]}  # fmt: skip
    for name in [IGNORED] if family == "gaussian" else [IGNORED, POOLED, SEPARATE]:
        *fit, predict = python_lines(name, chosen).splitlines()
        known = dict(given)
        exec("\n".join(fit), known)
        means = eval(predict, known)
        means = means[:, 1] if family == "binomial" else means
        model = make_estimator(name, 0, chosen).fit(X, y, task)
        assert_allclose(model.predict(X, task)[new], means, rtol=1e-4)
    assert python_lines("PooledRegressor", chosen) == ""


def test_the_python_that_is_printed_takes_columns_of_text(rng):
    frame = pd.DataFrame({"x": rng.standard_normal(90), "colour": rng.choice(["a", "b", "c"], 90)})
    y, task = rng.poisson(np.exp(frame.x)), np.repeat(["s", "t", "u"], 30)
    for name in (IGNORED, POOLED, SEPARATE):
        *fit, predict = python_lines(name, family_of("poisson"), is_coded=True).splitlines()
        known = {"np": np, "pd": pd, "X": frame, "y": y, "task": task, "t": "s",
                 "X_new": frame[:5].assign(colour="new"), "task_new": task[:5]}  # fmt: skip
        exec("\n".join(fit), known)
        assert eval(predict, known).shape == (5,)


def test_a_recommended_model_without_a_name_is_fitted_by_the_lines_below_the_advice(tmp_path, rng):
    X, task = rng.standard_normal((120, 1)), np.repeat(np.arange(6), 20)
    y = rng.poisson(np.exp(X[:, 0]))
    result = ss.compare(X, y, task, methods=[IGNORED], repeats=2)
    assert result.advice.startswith("Use a Poisson regression of all rows, ignoring tasks: its ")
    assert result.advice.endswith("It has no prediction intervals.")
    assert str(result).endswith("model.predict(X_new)")
    pd.DataFrame({"shop": task, "x": X[:, 0], "y": y}).to_csv(tmp_path / "t.csv", index=False)
    shown = run(tmp_path / "t.csv", "--task", "shop", "--target", "y", "--repeats", 2)
    for word in (".fit(", "len(y)", "StandardScaler"):
        assert word not in shown.output


def test_fits_of_scikit_learn_that_do_not_converge_are_marked_in_their_row(monkeypatch, rng):
    X, task = rng.standard_normal((200, 3)), np.repeat(np.arange(10), 20)
    y = rng.poisson(np.exp(X[:, 0] + task / 10))
    result = ss.compare(X, y, task, repeats=2)
    assert not any(entry.unconverged or entry.note for entry in result.entries)
    monkeypatch.setattr(glm_baselines, "MAX_ITER", 2)
    result = ss.compare(X, y, task, repeats=2)
    cells = {entry.method: entry.cells()[3] for entry in result.entries}
    assert cells[POOLED].endswith(", not converged")
    assert "not converged" not in cells["AdaptiveSpanRegressor(family='negative_binomial')"]
    told = f"{POOLED} did not converge in 2 of 2 splits, so its error may be too large."
    assert told in result.remarks()
    assert "warned" not in str(result)


def test_warnings_name_the_columns_of_the_table_and_are_not_cut(rng):
    names = ["Capital (No. A)", "Util. Total"]
    X = np.column_stack([z := rng.standard_normal(400), z + 1e-7 * rng.standard_normal(400)])
    y, task = z + rng.standard_normal(400), np.repeat(np.arange(20), 20)
    methods = ["SharedSpanRegressor", "AdaptiveSpanRegressor"]
    frame = pd.DataFrame(X, columns=names)
    for table in (frame, frame.assign(colour=np.where(y > 0, "red", "blue"))):
        result = ss.compare(table, y, task, repeats=2, methods=methods)
        (told,) = [line for line in result.remarks() if "warned" in line]
        assert re.match(r"\w+Regressor and \w+Regressor warned: Features such as '", told)
        assert all(repr(name) in told for name in names)
        assert told.endswith("of the largest direction.")


@pytest.mark.parametrize("names", [["a", "a"], ["", "\ud800"], [0, 1]], ids=repr)
def test_tables_with_odd_names_are_compared(names, rng):
    X, task = rng.standard_normal((60, 2)), np.repeat(np.arange(6), 10)
    frame = pd.DataFrame(X, columns=pd.Index(names, dtype=object))
    result = ss.compare(frame, X[:, 0], task, repeats=2, methods=["PerTaskRegressor"])
    assert result.recommended == "PerTaskRegressor"


@pytest.mark.parametrize(
    ("words", "second"),
    [(("N", "Y"), "Y"), (("yes", "no"), "yes"), (("grade 1", "grade 2"), "grade 2")],
)
def test_two_words_are_classes_in_python_as_on_the_command_line(words, second, tmp_path, rng):
    X, task = rng.standard_normal((200, 2)), np.repeat(np.arange(10), 20)
    y = np.where(rng.random(200) < 0.5, *words).astype(object)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(shop=task, y=y)
    frame.loc[3, "y"] = None
    frame.loc[4, "y"] = f" {y[4]} "
    frame.to_csv(tmp_path / "t.csv", index=False)
    shown = run(tmp_path / "t.csv", "--task", "shop", "--target", "y", "--missing", "drop",
                "--repeats", 2, "--json")  # fmt: skip
    expected = json.loads(shown.stdout)
    result = ss.compare(frame[["a", "b"]], frame.y, task, repeats=2,
                        columns=ss.Columns(missing="drop"))  # fmt: skip
    assert (result.family, result.n_rows) == ("binomial", 199)
    assert f"{second!r} counts as 1" in str(result)
    assert expected["classes"][1] == second
    found = {entry.method: entry.scores["log loss"] for entry in result.entries}
    for entry in expected["entries"]:
        assert_allclose(entry["scores"]["log loss"], found[entry["method"]], rtol=1e-6)


def test_small_tasks_are_counted_in_words_that_agree(sim):
    for n_small, words in ((1, "1 task with fewer than 2 rows was fitted but not"),
                           (2, "2 tasks with fewer than 2 rows were fitted but not")):  # fmt: skip
        rows = slice(len(sim.y) - 2 + n_small)
        result = ss.compare(sim.X[rows], sim.y[rows], sim.task[rows], repeats=2, methods=[IGNORED])
        assert any(line.startswith(words) for line in result.remarks())
        assert "report" not in str(result)
    with pytest.raises(ValueError, match="1 of 2 tasks has at least 2 rows"):
        ss.compare(sim.X[:3], sim.y[:3], [0, 0, 1])
    with pytest.raises(ValueError, match="0 of 1 task has at least 2 rows"):
        ss.compare(sim.X[:1], sim.y[:1], [0])


def test_a_regression_that_ignores_tasks_is_a_row_of_the_table(sim):
    result = ss.compare(sim.X, sim.y, sim.task, methods=[IGNORED, "PooledRegressor"])
    one = next(entry for entry in result.entries if entry.method == IGNORED)
    X, y, task = sim.X, sim.y, sim.task
    squares, large = 0.0, task < 30  # the two tasks of one row are always fitted
    for fold in range(4):
        held = np.zeros(len(y), dtype=bool)
        folds = random_folds(np.bincount(task[large]), np.random.default_rng(0))
        held[large] = folds == fold
        model = ss.PerTaskRegressor().fit(X[~held], y[~held], task=np.zeros(np.sum(~held), int))
        squares += np.sum((y[held] - model.predict(X[held], task=np.zeros(held.sum(), int))) ** 2)
    assert_allclose(one.rmse, np.sqrt(squares / large.sum()), rtol=1e-10)


def test_where_tasks_do_not_differ_a_model_that_ignores_them_is_named():
    rmse = {"AdaptiveSpanRegressor": 1.1 * TASKS, "PooledRegressor": 1.12 * TASKS, IGNORED: TASKS}
    method, sentence, sharing = recommend(board(rmse))
    assert method == IGNORED
    assert sharing.outcome == "loss"
    assert "raises the error by 10 % against one model ignoring tasks" in sentence
    assert sentence.startswith("The tasks hardly differ. Sharing raises the error")
    assert "use a ridge regression of all rows, ignoring tasks. Its test error" in sentence
