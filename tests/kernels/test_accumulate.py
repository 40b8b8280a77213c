"""Rows to sums in one pass, against plain NumPy task by task."""

import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from sharedspan.inputs.labels import ascending_runs, task_codes
from sharedspan.inputs.rows import validate_rows
from sharedspan.kernels import threads
from sharedspan.statistics import task_statistics
from sharedspan.statistics.grams import GramStatistics, left_inverse
from sharedspan.statistics.task_statistics import Units, gather


def plain_sums(X, y, task, weight, centred):
    """Sizes, means, Grams and the least sum of squares of each task."""
    for t in np.unique(task):
        x, r, w = X[task == t].astype(float), y[task == t], weight[task == t]
        mean = w @ x / w.sum() * centred
        y_mean = w @ r / w.sum() * centred
        root = np.sqrt(w)[:, None]
        A, b = root * (x - mean), root[:, 0] * (r - y_mean)
        residual = b - A @ np.linalg.lstsq(A, b, rcond=None)[0]
        yield w.sum(), mean, y_mean, A.T @ A, residual @ residual


LAYOUTS = {
    "as it is": lambda X: X,
    "columns contiguous": np.asfortranarray,
    "every second column": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "backwards": lambda X: X[::-1].copy()[::-1],
    "read-only": lambda X: np.frombuffer(X.tobytes(), X.dtype).reshape(X.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("d", [1, 3, 8, 9, 17])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("centred", [True, False])
def test_sums_are_those_of_each_task(rng, layout, d, dtype, centred):
    task = np.repeat(np.arange(7), rng.integers(d + 2, d + 9, 7))
    order = rng.permutation(len(task))
    X = (rng.standard_normal((len(task), d)) + 5.0).astype(dtype)[order]
    y, task = rng.standard_normal(len(task)), task[order]
    weight = rng.uniform(0.5, 2.0, len(task)) if d % 2 else None
    rows = validate_rows(LAYOUTS[layout](X), y, task, weight, check_finite=False)
    result = gather(rows, centred, kind="gram")
    sums, origin = result.statistics, result.units.origin
    expected = plain_sums(X, y, task, np.ones(len(y)) if weight is None else weight, centred)
    for t, (n, mean, y_mean, G, least) in enumerate(expected):
        assert_allclose(sums.n[t], n)
        assert_allclose(sums.mean[t] + origin * centred, mean, atol=1e-12)
        assert_allclose(sums.y_mean[t], y_mean, atol=1e-13)
        assert_allclose(sums.gram(t), G, rtol=1e-10, atol=1e-10)
        v = sums.anchor[t] + np.linalg.solve(sums.gram(t), sums.g[t])
        assert_allclose(sums.at_anchor(np.tile(v, (7, 1)))[1][t], least, rtol=1e-9)


def test_a_long_task_is_merged_from_parts(rng, monkeypatch):
    X, y = rng.standard_normal((500, 3)) + 100.0, rng.standard_normal(500)
    task = np.repeat([0, 1], [470, 30])
    whole = gather(validate_rows(X, y, task), True, kind="gram").statistics
    monkeypatch.setattr("sharedspan.inputs.rows.BLOCK", 60)
    parts = gather(validate_rows(X, y, task, check_finite=False), True, kind="gram").statistics
    assert_allclose(parts.packed, whole.packed, rtol=1e-11)
    V = rng.standard_normal((2, 3))
    assert_allclose(parts.at_anchor(V)[1], whole.at_anchor(V)[1], rtol=1e-11)


@pytest.mark.parametrize("scales", [1.0, 10.0 ** np.arange(-6, 6)])
@pytest.mark.parametrize("reduced", [12, 9])
def test_mapped_statistics_are_those_of_mapped_rows(rng, scales, reduced):
    task = np.repeat(np.arange(5), 20)
    X, y = rng.standard_normal((100, 12)) * scales, rng.standard_normal(100)
    rows = validate_rows(X, y, task)
    P = (rng.standard_normal((12, reduced)).T / scales).T
    given = GramStatistics.from_rows(rows, Units.plain(rows, True), True)
    before = given.packed.copy()
    mapped = given.transformed(P)
    assert_array_equal(given.packed, before)
    for t in range(5):
        assert_allclose(mapped.gram(t), P.T @ given.gram(t) @ P, rtol=1e-9, atol=1e-9)
    V = rng.standard_normal((5, reduced))
    for a, b in zip(mapped.at_anchor(V), given.at_anchor(V @ P.T), strict=True):
        assert_allclose(a, b if b.ndim == 1 else b @ P, rtol=1e-9, atol=1e-8)
    assert_allclose(left_inverse(P) @ P, np.eye(reduced), atol=1e-11)
    given.transform(P)
    assert_array_equal(given.packed, mapped.packed)


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_fit_has_the_same_bits_with_any_number_of_threads(rng, monkeypatch, shuffled):
    sim = ss.simulate(n_tasks=3000, n_features=20, rank=2, n_samples=30, random_state=0)
    order = rng.permutation(len(sim.y)) if shuffled else np.arange(len(sim.y))
    fits = []
    for count in (1, 2, 3):
        monkeypatch.setattr(threads, "_chosen", count)
        model = ss.SharedSpanRegressor(random_state=0, backend="numpy")
        fits.append(model.fit(sim.X[order], sim.y[order], task=sim.task[order]))
    for other in fits[1:]:
        assert other.rank_ == fits[0].rank_ == 2
        assert_array_equal(other.coef_, fits[0].coef_)
        assert_array_equal(other.intercept_, fits[0].intercept_)
        assert_array_equal(other.coef_std_, fits[0].coef_std_)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named_though_rows_are_read_once(small, value):
    X = small.X.copy()
    X[41, 2] = value
    with pytest.raises(ValueError, match="row 41, column 'x2'"):
        ss.SharedSpanRegressor(rank=1).fit(X, small.y, task=small.task)


def test_ordinary_values_are_read_once_and_extreme_ones_again(small, monkeypatch):
    passes = []
    update = GramStatistics.update
    monkeypatch.setattr(
        GramStatistics, "update", lambda self, *a, **k: passes.append(1) or update(self, *a, **k)
    )
    extremes = []
    of = Units.of.__func__
    monkeypatch.setattr(
        task_statistics.Units, "of", classmethod(lambda c, *a: extremes.append(1) or of(c, *a))
    )
    for scale, n_passes, n_extremes in ((1.0, 1, 0), (1e-60, 2, 1)):
        passes.clear(), extremes.clear()
        ss.PooledRegressor().fit(small.X * scale, small.y, task=small.task)
        assert (len(passes), len(extremes)) == (n_passes, n_extremes)


def test_labels_in_ascending_order_are_those_of_any_order(rng):
    task = np.sort(rng.integers(-5, 2000, 100_000)) * 7
    labels, starts = ascending_runs(task, len(task))
    expected, codes = task_codes(task, len(task))
    assert tuple(labels) == expected
    assert {type(label) for label in labels} == {int}
    assert_array_equal(np.repeat(np.arange(len(labels)), np.diff(starts)), codes)
    task[70_000] = -99
    assert ascending_runs(task, len(task)) is None


def test_a_small_fit_neither_looks_for_a_gpu_nor_imports_torch():
    script = (
        "import subprocess, sys, numpy as np, sharedspan as ss\n"
        "def refuse(*args, **options): raise AssertionError(args)\n"
        "subprocess.Popen = refuse\n"
        "X = np.random.default_rng(0).standard_normal((200, 5))\n"
        "ss.SharedSpanRegressor(random_state=0).fit(X, X[:, 0], task=np.arange(200) // 20)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_row_without_weight_is_checked_too(small):
    X, weight = small.X.copy(), np.ones(len(small.y))
    X[41, 2], weight[41] = np.nan, 0.0
    with pytest.raises(ValueError, match="row 41, column 'x2'"):
        ss.PooledRegressor().fit(X, small.y, task=small.task, sample_weight=weight)
