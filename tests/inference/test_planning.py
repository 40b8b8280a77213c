"""Plans: rows for a given error, and errors to expect from given rows."""

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose

import sharedspan as ss

PROBLEM = {"n_tasks": 100, "n_features": 50, "rank": 3, "noise": 0.5}


def test_a_plan_knows_its_three_formulas():
    planned = ss.plan(**PROBLEM, n_samples=200)
    assert_allclose(planned.error, 0.25 * 3 * (50 + 100 - 3) / (200 * 100))
    assert_allclose(planned.error_by_rate, 0.25 * 50 * 3 / (200 * 100))
    assert_allclose(planned.error_separate, 0.25 * 50 / (200 - 50 - 1))
    assert ss.plan(**PROBLEM, n_samples=51).error_separate == np.inf


@pytest.mark.parametrize("error", [1e-4, 0.01, 0.0173, 0.1])
def test_a_plan_inverts_itself_with_the_fewest_rows(error):
    plan = ss.plan(**PROBLEM, error=error)
    for name in ("", "_by_rate", "_separate"):
        rows = getattr(plan, f"n_samples{name}")
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
    planned = ss.plan(n_tasks=20, n_features=10, rank=1, noise=1.0, n_samples=30)
    assert_allclose(np.mean(errors), planned.error_separate, rtol=0.06)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ({"error": 0.01}, "11.7 times as many rows"),
        ({"n_samples": 80}, "reduces the error by a factor of"),
        ({"n_samples": 20}, "only 4.5 rows per parameter"),
        ({"n_samples": 3}, "cannot be reached"),
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
