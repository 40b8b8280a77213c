import numpy as np
import pytest
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.data.folds import assign_folds
from sharedspan.data.tasks import open_tasks


def fold_of_rows(X, y, task, weight=None, seed=0):
    tasks = open_tasks(X, y, task, weight)
    folds = assign_folds(tasks, np.random.default_rng(seed), 5)
    rows = np.arange(len(X)) if tasks.order is None else tasks.order
    out = np.empty(len(X), int)
    out[rows] = folds
    return out


def test_folds_are_balanced_within_every_task(small):
    folds = fold_of_rows(small.X, small.y, small.task)
    for t in range(40):
        counts = np.bincount(folds[small.task == t], minlength=5)
        assert counts.max() - counts.min() <= 1


def test_folds_do_not_depend_on_the_order_of_rows(small, rng):
    order = rng.permutation(len(small.y))
    folds = fold_of_rows(small.X, small.y, small.task)
    shuffled = fold_of_rows(small.X[order], small.y[order], small.task[order])
    assert np.array_equal(shuffled, folds[order])


def test_a_repeated_row_shares_its_copy_fold(small):
    twice = np.repeat(np.arange(len(small.y)), 2)
    folds = fold_of_rows(small.X, small.y, small.task)
    doubled = fold_of_rows(small.X[twice], small.y[twice], small.task[twice])
    assert np.array_equal(doubled, folds[twice])


def test_another_seed_gives_other_folds(small):
    a = fold_of_rows(small.X, small.y, small.task, seed=0)
    b = fold_of_rows(small.X, small.y, small.task, seed=1)
    assert 0.6 < np.mean(a != b) < 0.95


def test_the_path_is_reported_and_reads_well(small):
    model = ss.SharedSpanRegressor(random_state=0).fit(small.X, small.y, task=small.task)
    path = model.rank_path_
    assert path.rank == model.rank_ == 2
    assert path.ranks[0] == 1
    best = np.argmin(path.loss)
    assert path.difference[best] == 0
    assert "chosen" in str(path)


def test_held_out_losses_are_those_of_plain_cross_validation(small, monkeypatch):
    """The whole machinery of subtraction and canonical units against refits on the rows."""
    monkeypatch.setattr("sharedspan.selection.PRECISION", 1e-5)
    model = ss.SharedSpanRegressor(random_state=0).fit(small.X, small.y, task=small.task)
    folds = fold_of_rows(small.X, small.y, small.task)
    total = 0.0
    for fold in range(5):
        kept = folds != fold
        refit = ss.SharedSpanRegressor(rank=2, random_state=0, tol=1e-9)
        refit.fit(small.X[kept], small.y[kept], task=small.task[kept])
        prediction = refit.predict(small.X[~kept], small.task[~kept])
        total += np.sum((small.y[~kept] - prediction) ** 2)
    assert_allclose(model.rank_path_.loss[1], total / len(small.y), rtol=1e-5)


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("n_samples", [24, "unequal"])
def test_rank_auto_finds_three(n_samples, whiten):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(20, 401, 120) if n_samples == "unequal" else n_samples
        sim = ss.simulate(
            n_tasks=120, n_features=30, rank=3, n_samples=sizes, noise=0.5, random_state=seed
        )
        model = ss.SharedSpanRegressor(whiten=whiten, random_state=0)
        assert model.fit(sim.X, sim.y, task=sim.task).rank_ == 3


def test_folds_leave_the_final_fit_as_it_is_without_them(small):
    auto = ss.SharedSpanRegressor(random_state=0, tol=1e-10).fit(small.X, small.y, task=small.task)
    given = ss.SharedSpanRegressor(rank=2, random_state=0, tol=1e-10).fit(
        small.X, small.y, task=small.task
    )
    assert_allclose(auto.coef_, given.coef_, rtol=1e-6, atol=1e-8)


def test_one_row_per_task_gives_rank_one():
    sim = ss.simulate(n_tasks=30, n_features=4, rank=2, n_samples=1, random_state=0)
    for fit_intercept in (True, False):
        model = ss.SharedSpanRegressor(fit_intercept=fit_intercept, random_state=0)
        assert model.fit(sim.X, sim.y, task=sim.task).rank_ == 1
