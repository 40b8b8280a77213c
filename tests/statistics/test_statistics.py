import numpy as np
import pytest
from numpy.testing import assert_allclose

from conftest import statistics_of
from sharedspan.inputs import rows as tasks_module
from sharedspan.inputs.rows import validate_rows
from sharedspan.objective import GramObjective
from sharedspan.statistics import folds as folds_module
from sharedspan.statistics import grams as grams_module
from sharedspan.statistics.canonical import whitening
from sharedspan.statistics.grams import GramStatistics
from sharedspan.statistics.rows import RowStatistics
from sharedspan.statistics.task_statistics import Units, collect

FIELDS = ("n", "mean", "y_mean", "packed", "anchor", "g", "q")


def plain_loss(X, y, task, V, centred):
    """Residual sum of squares of each task with its best intercept, from the rows."""
    errors = y - np.einsum("ij,ij->i", X, V[task])
    if centred:
        errors = errors - (np.bincount(task, errors) / np.bincount(task))[task]
    return np.bincount(task, errors**2)


def anchored_loss(statistics, V):
    _, q = statistics.at_anchor(V)
    return q


@pytest.fixture(params=[True, False], ids=["intercepts", "no intercepts"])
def centred(request):
    return request.param


def test_sums_give_the_loss_of_the_rows(small, centred, rng):
    V = rng.standard_normal(small.coef.shape)
    statistics = statistics_of(small.X, small.y, small.task, centred=centred)
    expected = plain_loss(small.X + 0, small.y, small.task, V, centred)
    assert_allclose(anchored_loss(statistics, V), expected, rtol=1e-11)


def test_merged_chunks_equal_one_pass(small, centred, rng):
    one = statistics_of(small.X, small.y, small.task, centred=centred)
    whole = validate_rows(small.X, small.y, small.task)
    units = Units.of(whole, centred)
    merged = GramStatistics(one.n_tasks, one.n_features, centred)
    part = rng.integers(0, 7, whole.n_rows)
    for i in range(7):
        chunk = GramStatistics(one.n_tasks, one.n_features, centred)
        merged.merge(chunk.update(whole.select(part == i), units))
    one.g, one.q = one.at_anchor(merged.anchor)
    one.anchor = merged.anchor
    for name in ("n", "mean", "y_mean", "packed", "q"):
        assert_allclose(getattr(merged, name), getattr(one, name), rtol=1e-12, atol=1e-12)
    scale = np.sqrt(one.q[:, None] * one.packed.max())  # g is a difference: size of its terms
    assert np.abs(merged.g - one.g).max() <= 1e-12 * scale.max()


def test_rows_added_in_chunks_equal_one_pass(small, centred, rng):
    tasks = validate_rows(small.X, small.y, small.task)
    units = Units.of(tasks, centred)
    one = collect(tasks, units, centred, "gram")
    grown = GramStatistics(one.n_tasks, one.n_features, centred)
    part = rng.integers(0, 5, tasks.n_rows)
    for i in range(5):
        grown.update(tasks.select(part == i), units)
    one.g, one.q = one.at_anchor(grown.anchor)
    for name in ("n", "mean", "y_mean", "packed", "q"):
        assert_allclose(getattr(grown, name), getattr(one, name), rtol=1e-12, atol=1e-12)


def test_taking_a_fold_away_and_putting_it_back_restores_everything(small, centred, rng):
    tasks = validate_rows(small.X, small.y, small.task)
    units = Units.of(tasks, centred)
    whole, changed = (collect(tasks, units, centred, "gram") for _ in range(2))
    fold = tasks.select(rng.random(tasks.n_rows) < 0.2)
    changed.update(fold, units, sign=-1.0)
    changed.update(fold, units, sign=1.0)
    for name in FIELDS:
        assert_allclose(getattr(changed, name), getattr(whole, name), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("noise", [1.0, 1e-4, 1e-7])
def test_a_subtracted_fold_keeps_its_digits_at_small_noise(rng, noise, centred):
    n, d = 400, 10
    X = rng.standard_normal((n, d)) + 3.0
    truth = rng.standard_normal(d)
    y = X @ truth + noise * rng.standard_normal(n)
    tasks = validate_rows(X, y)
    units = Units.of(tasks, centred)
    statistics = collect(tasks, units, centred, "gram")
    held = rng.random(n) < 0.2
    statistics.update(tasks.select(held), units, sign=-1.0)
    expected = plain_loss(X[~held], y[~held], np.zeros((~held).sum(), int), truth[None], centred)
    assert_allclose(anchored_loss(statistics, truth[None]), expected, rtol=1e-8)


def test_removing_all_rows_of_a_task_leaves_zeros(small):
    tasks = validate_rows(small.X, small.y, small.task)
    units = Units.of(tasks, True)
    statistics = collect(tasks, units, True, "gram")
    statistics.update(tasks.select(small.task == 3), units, sign=-1.0)
    assert statistics.n[3] == 0
    assert not statistics.packed[3].any()
    assert statistics.n[4] == small.n_samples[4]


def test_tasks_larger_than_a_block_are_merged_from_pieces(small, monkeypatch):
    one = statistics_of(small.X, small.y, small.task)
    monkeypatch.setattr(tasks_module, "BLOCK", 8 * 5)
    cut = statistics_of(small.X, small.y, small.task)
    one.g, one.q = one.at_anchor(cut.anchor)
    for name in ("n", "mean", "y_mean", "packed", "q"):
        assert_allclose(getattr(cut, name), getattr(one, name), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["gram", "rows"])
def test_sums_do_not_depend_on_the_number_of_threads(small, kind, monkeypatch):
    monkeypatch.setattr("sharedspan.kernels.threads.SERIAL_WORK", 0)
    results = []
    for threads in ("1", "3"):
        monkeypatch.setenv("NUMBA_NUM_THREADS", threads)
        results.append(statistics_of(small.X, small.y, small.task, kind=kind))
    for name, value in vars(results[0]).items():
        assert np.array_equal(value, getattr(results[1], name)), name


def test_statistics_choose_rows_where_tasks_are_small(rng):
    X = rng.standard_normal((60, 10))
    few = validate_rows(X, X[:, 0], np.arange(60) // 3)
    many = validate_rows(X, X[:, 0], np.arange(60) // 20)
    assert isinstance(collect(few, Units.of(few, True), True), RowStatistics)
    assert isinstance(collect(many, Units.of(many, True), True), GramStatistics)


@pytest.mark.parametrize("kind", ["gram", "rows"])
def test_transformed_statistics_are_those_of_transformed_rows(small, kind, rng):
    P = rng.standard_normal((8, 5))
    V = rng.standard_normal((5, 40))
    moved = statistics_of(small.X, small.y, small.task, kind=kind)
    moved.transform(P)
    direct = statistics_of(small.X @ P, small.y, small.task)
    tasks = validate_rows(small.X, small.y, small.task)
    origin = Units.of(tasks, True).origin
    if kind == "gram":
        assert_allclose(moved.packed, direct.packed, rtol=1e-10, atol=1e-10)
        assert_allclose(anchored_loss(moved, V.T), anchored_loss(direct, V.T), rtol=1e-9)
    assert moved.n_features == 5
    assert_allclose(
        moved.intercepts(V) - origin @ P @ V,
        [np.mean(small.y[small.task == t] - small.X[small.task == t] @ P @ V[:, t])
         for t in range(40)],
        rtol=1e-9, atol=1e-9,
    )  # fmt: skip


def test_the_loss_never_goes_negative_without_noise(rng):
    X = rng.standard_normal((50, 4))
    truth = rng.standard_normal((1, 4))
    statistics = statistics_of(X, X @ truth[0], None)
    loss = GramObjective(statistics, None).residuals(truth.T)[1]
    assert 0 <= loss[0] < 1e-18


def test_features_near_the_end_of_the_range_do_not_overflow(rng):
    X = rng.standard_normal((40, 3))
    huge = statistics_of(X * np.array([1e155, 1.0, 1e-160]), X[:, 0], None)
    assert np.isfinite(huge.packed).all()
    assert (np.diag(huge.gram(0)) > 1e-3).all()


@pytest.mark.parametrize("seed", range(8))
def test_a_task_without_a_direction_that_others_have_is_fitted(seed):
    """Whitening stretches such a direction until its rounding shows: no definite matrix is left."""
    rng = np.random.default_rng(seed)
    T, d, n = 4, 10, 3000
    task = np.repeat(np.arange(T), n)
    X = rng.standard_normal((T * n, 1)) @ np.abs(rng.standard_normal((1, d)))
    X[task == 0] += 1.5e-5 * rng.standard_normal((n, d))
    statistics = statistics_of(X, X[:, 0] + rng.standard_normal(T * n), task)
    statistics.transform(whitening(statistics))
    for values in (statistics.packed, statistics.anchor, statistics.g, statistics.q):
        assert np.isfinite(values).all()


def test_a_feature_varies_however_far_its_tasks_are_from_each_other(rng):
    """Deviations of one beside levels of 1e9 keep seven digits."""
    task = np.repeat(np.arange(20), 30)
    noise = rng.standard_normal((600, 2))
    X = noise + np.outer(rng.uniform(-1e9, 1e9, 20)[task], [1.0, 0.0])
    statistics = statistics_of(X, X[:, 1], task)
    scale = statistics.inverse_deviations(statistics.variances())
    within = noise - np.array([noise[task == t].mean(axis=0) for t in range(20)])[task]
    assert_allclose(scale, 1 / within.std(axis=0), rtol=1e-5)


def pieces_of(monkeypatch, module, name):
    """The ranges of tasks that a compiled loop was called with, by four threads."""
    calls, loop = [], getattr(module, name)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "4")
    monkeypatch.setattr(module, name, lambda *given: calls.append(given) or loop(*given))
    return calls


@pytest.mark.parametrize("in_place", [True, False])
def test_large_statistics_are_transformed_by_all_threads(rng, monkeypatch, in_place):
    d, T = 40, 60
    task = np.repeat(np.arange(T), 2)
    statistics = statistics_of(rng.standard_normal((2 * T, d)), np.ones(2 * T), task, kind="gram")
    calls = pieces_of(monkeypatch, grams_module, "transform_grams")
    if in_place:
        statistics.transform(rng.standard_normal((d, d)))
    else:
        statistics.transformed(rng.standard_normal((d, d - 1)))
    assert len(calls) >= 4


def test_rows_of_a_large_table_are_assigned_to_folds_by_all_threads(rng, monkeypatch):
    n = 100_000
    rows = validate_rows(rng.standard_normal((n, 2)), np.ones(n), np.arange(n) // 1000)
    calls = pieces_of(monkeypatch, folds_module.hashing, "hash_rows")
    folds_module.assign_folds(rows, folds_module.hash_key(2, rng), 5)
    assert len(calls) >= 4


def test_intercepts_of_centred_rows_need_no_rows(small, rng):
    statistics = statistics_of(small.X, small.y, small.task, kind="rows")
    V = rng.standard_normal((8, 40))
    expected = statistics_of(small.X, small.y, small.task).intercepts(V)
    del statistics.X, statistics.y
    assert_allclose(statistics.intercepts(V), expected, rtol=1e-10)
