from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from conftest import statistics_of
from oracles import per_task_sums
from sharedspan.kernels import cpu, grams
from sharedspan.objective import GramObjective, RowObjective, backends, build_objective
from sharedspan.objective.base import UnevaluatedPoint, task_scale
from sharedspan.statistics.canonical import whitening


@pytest.fixture(params=[True, False], ids=["intercepts", "no intercepts"])
def centred(request):
    return request.param


@pytest.fixture(params=["gram", "rows"])
def objective(request, small, centred):
    noise = np.linspace(0.5, 2.0, 40)
    statistics = statistics_of(small.X, small.y, small.task, centred=centred, kind=request.param)
    return build_objective(statistics, noise)


def test_residuals_are_those_of_dense_grams(small, objective, centred, rng):
    V = rng.standard_normal((8, 40))
    G, c = per_task_sums(small.X, small.y, small.task, centred)
    if not centred:
        # Without intercepts nothing shifts the rows, so the oracle sees the same ones.
        assert not objective.statistics.mean.any()
    expected = np.einsum("tij,jt->ti", G, V) - objective.response[:, None] * c
    R, _ = objective.residuals(V.copy())
    assert_allclose(R.T, expected / objective.n[:, None], rtol=1e-9, atol=1e-9)


def test_gradients_match_finite_differences(objective, rng):
    B, W = rng.standard_normal((8, 3)), rng.standard_normal((3, 40))
    R = objective.evaluate(B, W).R
    dB, dW = rng.standard_normal(B.shape), rng.standard_normal(W.shape)
    h = 1e-6
    slope = (
        objective.evaluate(B + h * dB, W + h * dW).loss
        - objective.evaluate(B - h * dB, W - h * dW).loss
    ) / (2 * h)
    assert_allclose(np.sum(dB * (R @ W.T)) + np.sum(dW * (B.T @ R)), slope, rtol=1e-6)


def test_rotating_the_factors_changes_nothing(objective, rng):
    B, W = rng.standard_normal((8, 3)), rng.standard_normal((3, 40))
    Q, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    here, there = objective.evaluate(B, W), objective.evaluate(B @ Q, Q.T @ W)
    assert_allclose(there.R, here.R, rtol=1e-10, atol=1e-10)
    assert_allclose(there.loss, here.loss, rtol=1e-12)
    assert_allclose(there.tangent_gradient(), here.tangent_gradient(), rtol=1e-9)
    assert_allclose(there.norm(), np.linalg.norm(B @ W), rtol=1e-12)


def test_least_squares_in_a_span_leaves_no_gradient(objective, rng):
    B = rng.standard_normal((8, 3))
    W = objective.solve_W(B)
    assert np.abs(B.T @ objective.evaluate(B, W).R).max() < 1e-10
    assert_allclose(objective.solve_W(B, rng.standard_normal(W.shape)), W, rtol=1e-7, atol=1e-9)


def test_the_tangent_gradient_is_the_norm_of_the_projection(objective, rng):
    point = objective.evaluate(rng.standard_normal((8, 3)), rng.standard_normal((3, 40)))
    P_B = point.B @ np.linalg.pinv(point.B)
    P_W = np.linalg.pinv(point.W) @ point.W
    projected = P_B @ point.R + point.R @ P_W - P_B @ point.R @ P_W
    assert_allclose(point.tangent_gradient(), np.linalg.norm(projected), rtol=1e-9)


def test_grams_and_rows_agree(small, centred, rng):
    V = rng.standard_normal((8, 40))
    results = [
        build_objective(
            statistics_of(small.X, small.y, small.task, centred=centred, kind=kind)
        ).residuals(V.copy())
        for kind in ("gram", "rows")
    ]
    for gram, rows in zip(*results, strict=True):
        assert_allclose(gram, rows, rtol=1e-10, atol=1e-10)


def test_a_fold_by_mask_equals_a_fold_by_subtraction(small, rng):
    from sharedspan.inputs.rows import validate_rows
    from sharedspan.statistics.task_statistics import Units

    kept = rng.random(len(small.y)) < 0.7
    rows = statistics_of(small.X, small.y, small.task, kind="rows")
    grams = statistics_of(small.X, small.y, small.task)
    tasks = validate_rows(small.X, small.y, small.task)
    grams.update(tasks.select(~kept), Units.of(tasks, True), sign=-1.0)
    V = rng.standard_normal((8, 40))
    masked, subtracted = RowObjective(rows.reweighted(kept), None), GramObjective(grams, None)
    for a, b in zip(masked.residuals(V.copy()), subtracted.residuals(V.copy()), strict=True):
        assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    intercepts = [objective.statistics.intercepts(V) for objective in (masked, subtracted)]
    assert_allclose(*intercepts, rtol=1e-9, atol=1e-9)


def test_single_precision_storage_is_close(small, rng):
    statistics = statistics_of(small.X, small.y, small.task)
    V = rng.standard_normal((8, 40))
    exact, _ = build_objective(statistics).residuals(V.copy())
    rounded, _ = build_objective(statistics, dtype="float32").residuals(V.copy())
    assert 0 < np.abs(exact - rounded).max() < 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("kind", ["gram", "rows"])
def test_whitened_features_have_the_identity_as_pooled_covariance(small, kind):
    X = small.X @ np.diag(10.0 ** np.arange(-4, 4)) + 7.0
    statistics = statistics_of(X, small.y, small.task, kind=kind)
    statistics.transform(whitening(statistics))
    assert_allclose(statistics.pooled_gram() / statistics.n.sum(), np.eye(8), atol=1e-7)


@pytest.mark.parametrize("kind", ["gram", "rows"])
def test_collinear_features_fall_out_of_the_whitened_span(small, kind):
    X = np.column_stack([small.X, small.X[:, 0] - 2 * small.X[:, 3], np.full(len(small.y), 5.0)])
    P = whitening(statistics_of(X, small.y, small.task, kind=kind))
    assert P.shape == (10, 8)
    assert not P[9].any()


@pytest.mark.parametrize("d", [1, 2, 7, 8, 10, 15, 16, 17, 30, 33, 64, 101])
@pytest.mark.parametrize("T", [1, 3, 40])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_pass_equals_dense_products(T, d, dtype, rng):
    tall = rng.standard_normal((T, d + 3, d))
    G = np.einsum("tni,tnj->tij", tall, tall)
    i, j = np.triu_indices(d)
    packed = np.ascontiguousarray(G[:, i, j], dtype=dtype)
    G[:, i, j] = G[:, j, i] = packed
    a, g, V = rng.standard_normal((3, T, d))
    q, r, w = 100.0 * d + rng.random(T), rng.random(T), rng.random(T)
    u = V - r[:, None] * a
    Gu = np.einsum("tij,tj->ti", G, u)
    expected = w[:, None] * (Gu - r[:, None] * g)
    squares = r**2 * q + np.einsum("td,td->t", u, Gu - 2 * r[:, None] * g)
    R, loss = np.full((T + 2, d), np.nan), np.full(T, np.nan)
    for first, last in pairwise([0, T // 3, T]):
        grams.gram_residuals(packed, a, g, q, r, w, V, R[1:-1], loss, first, last)
    assert_allclose(R[1:-1], expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max())
    assert_allclose(loss, w / 2 * np.maximum(squares, 0), rtol=1e-10, atol=1e-12 * d)
    assert np.isnan(R[[0, -1]]).all()  # nothing is written outside

    k = min(d, 3)
    B, W = rng.standard_normal((d, k)), rng.standard_normal((k, T))
    normal = np.empty((T, k, k))
    grams.gram_normal_matrices(packed, w, np.ascontiguousarray(B.T), normal, 0, T)
    assert_allclose(normal, w[:, None, None] * (B.T @ G @ B), rtol=1e-10, atol=1e-12)
    grams.gram_residuals(
        packed, a, g, q, r, w, np.ascontiguousarray((B @ W).T), R[1:-1], loss, 0, T
    )
    out_W, sums, losses = np.empty((k, T)), np.empty((2, k, d)), np.empty(2)
    bounds = np.array([0, T // 2, T])
    args = packed, a, g, q, r, w, np.ascontiguousarray(B.T), W
    grams.gram_gradients(*args, False, out_W, sums, losses, bounds, 0, 2)
    assert_allclose(out_W, B.T @ R[1:-1].T, rtol=1e-9, atol=1e-9)
    assert_allclose(sums.sum(axis=0), W @ R[1:-1], rtol=1e-9, atol=1e-9)
    assert_allclose(losses.sum(), loss.sum(), rtol=1e-10)


@pytest.mark.parametrize("n", [2, 40])  # fewer rows than directions, and more
@pytest.mark.parametrize("kind", ["gram", "rows"])
def test_profiling_a_span_is_least_squares_in_it(kind, n, rng):
    T, d, k = 30, 9, 3
    X, y = rng.standard_normal((n * T, d)), rng.standard_normal(n * T)
    objective = build_objective(statistics_of(X, y, np.repeat(np.arange(T), n), kind=kind))
    B, W = rng.standard_normal((d, k)), rng.standard_normal((k, T))
    loss, grad_B, best = objective.profile(B, W)
    point = objective.evaluate(B, best)
    assert_allclose(point.grad_W, 0.0, atol=1e-12)
    assert_allclose(grad_B, point.grad_B, rtol=1e-7, atol=1e-12)
    assert_allclose(loss, point.loss, rtol=1e-9, atol=1e-12)
    assert_allclose(best, objective.solve_W(B, W), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("d", [10, 40])
def test_sums_do_not_depend_on_the_number_of_threads(d, rng, monkeypatch):
    T, n, k = 500, 60, 3
    X, y = rng.standard_normal((n * T, d)), rng.standard_normal(n * T)
    objective = build_objective(statistics_of(X, y, np.repeat(np.arange(T), n)))
    B, W = rng.standard_normal((d, k)), rng.standard_normal((k, T))
    seen = set()
    for threads in ("1", "2", "3", "7"):
        monkeypatch.setenv("NUMBA_NUM_THREADS", threads)
        for call in (objective.gradients, objective.profile):
            loss, grad_B, other = call(B, W)
            seen.add((call.__name__, loss, grad_B.tobytes(), other.tobytes()))
    assert len(seen) == 2


@pytest.mark.parametrize("d", [3, 8, 17, 33])
def test_the_pass_does_not_depend_on_where_its_arrays_lie(d, rng):
    T = 2
    values = {
        "packed": rng.standard_normal((T, cpu.packed_size(d))),
        "anchor": rng.standard_normal((T, d)),
        "g": rng.standard_normal((T, d)),
        "V": rng.standard_normal((T, d)),
    }
    one, results = np.ones(T), set()
    for gap in range(0, 40, 3):
        memory = np.empty(sum(value.size + gap for value in values.values()))
        placed, start = {}, 0
        for name, value in values.items():
            placed[name] = memory[start : start + value.size].reshape(value.shape)
            placed[name][:] = value
            start += value.size + gap
        loss, R = np.empty(T), np.empty((T, d))
        grams.gram_residuals(
            placed["packed"], placed["anchor"], placed["g"], one, one, one, placed["V"],
            R, loss, 0, T,
        )  # fmt: skip
        results.add((R.tobytes(), loss.tobytes()))
    assert len(results) == 1


def test_an_unevaluated_point_makes_a_pass_only_when_it_is_asked_for_one(small, rng):
    objective = RowObjective(statistics_of(small.X, small.y, small.task, kind="rows"), None)
    B, W = rng.standard_normal((8, 2)), rng.standard_normal((2, 40))
    point, passes = UnevaluatedPoint(B, W, objective), []
    objective.gradients = lambda *factors: (
        passes.append(1) or type(objective).gradients(objective, *factors)
    )
    assert_allclose(point.imbalance, B.T @ B - W @ W.T)
    assert not passes
    assert point.loss == objective.evaluate(B, W).loss
    assert point.norm() == objective.evaluate(B, W).norm()
    assert len(passes) == 3
    with pytest.raises(AttributeError, match="unknown"):
        _ = point.unknown


def test_a_point_measures_its_gradient_by_its_size(objective, rng):
    B, W = rng.standard_normal((8, 3)), rng.standard_normal((3, 40))
    point = objective.evaluate(B, W)
    left, right = np.linalg.qr(B)[0], np.linalg.qr(W.T)[0]
    projected = point.R - left @ (left.T @ point.R)
    tangent = point.R - (projected - projected @ right @ right.T)
    relative = np.linalg.norm(tangent) / np.linalg.norm(B @ W)
    assert_allclose(point.relative_gradient(), relative, rtol=1e-9)
    assert objective.evaluate(0 * B, 0 * W).relative_gradient() == 0.0


def test_the_balance_is_a_penalty_on_unequal_factors(objective, rng):
    B, W = rng.standard_normal((8, 3)), rng.standard_normal((3, 40))
    point = objective.evaluate(B, W)
    unequal = np.sum((B.T @ B - W @ W.T) ** 2)
    assert point.value(0.0) == point.loss
    assert_allclose(point.value(0.125), point.loss + 0.125 * unequal, rtol=1e-12)


def test_tasks_weigh_as_their_rows_over_their_noise():
    n, noise = np.array([10.0, 20.0, 0.0, 30.0]), np.array([1.0, 4.0, 1.0, 0.25])
    scale = task_scale(n, noise)
    for i, j in ((0, 1), (0, 3), (1, 3)):
        assert_allclose((scale[i] / scale[j]) ** 2, n[i] / n[j] * noise[j] / noise[i])
    assert_allclose(task_scale(n, 100 * noise), scale, rtol=1e-12)
    assert_allclose(task_scale(n[:2], None) ** 2, [10 / 15, 20 / 15])


def test_curvatures_are_those_of_the_rows_that_count(small, centred, rng):
    """Rows without weight count for nothing, not even for the mean of their task."""
    kept = rng.random(len(small.y)) < 0.7
    options = {"centred": centred, "kind": "rows"}
    statistics = statistics_of(small.X, small.y, small.task, **options).reweighted(kept)
    objective = RowObjective(statistics, None)
    for t in (0, 7, 39):
        X = small.X[kept & (small.task == t)]
        X = X - X.mean(axis=0) if centred else X
        assert_allclose(objective.curvature(t), X.T @ X / len(X), rtol=1e-9, atol=1e-12)


def as_if(rows, dtype="float64", stored=False):
    """Rows of four features as many as given, which need no memory."""
    X = np.broadcast_to(np.zeros(4, dtype), (rows, 4))
    return SimpleNamespace(X=[X] if stored else X, n_rows=rows, n_features=4)


def test_a_gpu_that_was_asked_for_sums_the_rows_in_memory():
    for backend in ("torch", backends.TorchBackend("cuda")):
        assert backends.rows_gain(backend, as_if(100))
        assert not backends.rows_gain(backend, as_if(100, stored=True))


def test_rows_travel_to_a_gpu_if_that_takes_less_time_than_their_sums(monkeypatch):
    """Numbers of half the size travel in half the time, and starting a GPU takes seconds."""
    monkeypatch.setenv("NUMBA_NUM_THREADS", "16")
    monkeypatch.setattr(backends, "_may_have_gpu", lambda: True)
    many = 25_000_000_000
    assert backends.rows_gain("auto", as_if(many, "float32"))
    assert not backends.rows_gain("auto", as_if(many, "float64"))
    assert not backends.rows_gain("auto", as_if(1000, "float32"))
