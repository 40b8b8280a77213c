"""Standard deviations of responses and coefficients, against a loop over tasks in NumPy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import sharedspan as ss
from conftest import statistics_of
from sharedspan.inference import span_errors, span_information, weight_errors
from sharedspan.inference.span_information import span_uncertainty
from sharedspan.kernels import threads
from sharedspan.mixed_model import posterior


def covariance_of(uncertainty, t):
    """Covariance (d', d') of the canonical coefficients of task t in an estimated span."""
    D, w = uncertainty.span_covariance, uncertainty.W[t]
    error = np.einsum("r,rij->ij", np.outer(w, w).ravel() @ D.mix, D.terms)
    off = uncertainty.Q - uncertainty.B @ uncertainty.inverse[t] @ uncertainty.cross[t]
    inverse, E = uncertainty.inverse[t], D.trace_with(uncertainty.shape)
    taken = uncertainty.spare[t] * inverse @ E @ inverse
    within = uncertainty.noise[t] * (inverse + taken + uncertainty.singular[t])
    return uncertainty.B @ within @ uncertainty.B.T + off @ error @ off.T


def span_reference(uncertainty, X, codes):
    units, P = uncertainty.canonical.units, uncertainty.canonical.P
    out = np.empty(len(X))
    for t in np.unique(codes):
        rows = codes == t
        z = (X[rows] - units.origin) * units.scale
        z = z if P is None else z @ P
        variance = uncertainty.noise[t]
        if uncertainty.mean is not None:
            z = z - uncertainty.mean[t]
            variance = variance * (1 + 1 / uncertainty.n[t])
        out[rows] = np.sqrt(
            np.einsum("ij,jk,ik->i", z, covariance_of(uncertainty, t), z) + variance
        )
    return out / units.y_scale


def jacobian_of(uncertainty, t):
    """Derivative (d, k d) of the coefficients of task t with respect to the entries of B."""
    B, w, error = uncertainty.B, uncertainty.W[t], uncertainty.error
    d, k = B.shape
    columns = []
    for a in range(k):
        for j in range(d):
            D = np.zeros((d, k))
            D[j, a] = 1.0
            change = D.T @ error.score[t] - error.cross[t] @ D @ w
            columns.append(D @ w + B @ uncertainty.inverse[t] @ change)
    return np.array(columns).T


def weights_reference(uncertainty, X, codes):
    out, B, error = np.empty(len(X)), uncertainty.B, uncertainty.error
    for t in np.unique(codes):
        rows, total = codes == t, B @ uncertainty.covariance[t] @ B.T
        z, variance = X[rows] - uncertainty.origin[t], uncertainty.noise[t]
        if uncertainty.centre is not None:
            variance = variance * (1 + 1 / uncertainty.n[t])
        if error is not None:
            J = jacobian_of(uncertainty, t)
            total = total + J @ error.covariance @ J.T
            if uncertainty.shrunk:
                C = error.covariance.reshape(*B.T.shape, *B.T.shape)
                total = total + np.einsum("ab,ajbl->jl", uncertainty.covariance[t], C)
            z = z - error.mean[t]
        elif uncertainty.centre is not None:
            z = z - uncertainty.centre[t] @ np.linalg.pinv(B)
        out[rows] = np.sqrt(np.einsum("ij,jk,ik->i", z, total, z) + variance)
    return out


@pytest.fixture(params=["many rows at once", "few rows at once"])
def blocks(request, monkeypatch):
    if request.param == "few rows at once":
        monkeypatch.setattr(weight_errors, "ROWS_AT_ONCE", 7)
        monkeypatch.setattr(weight_errors, "TASKS_AT_ONCE", 3)
        monkeypatch.setattr(posterior, "ROWS_AT_ONCE", 7)


def shuffled(small, rng, unseen=False):
    rows = rng.permutation(len(small.y))[:300]
    codes = small.task[rows]
    return small.X[rows], np.where(rng.random(300) < 0.2, -1, codes) if unseen else codes


@pytest.mark.parametrize("options", [{}, {"fit_intercept": False}, {"noise": "per_task"},
                                     {"whiten": False}, {"rank": 8}], ids=str)  # fmt: skip
@pytest.mark.parametrize("exact", [True, False])
def test_rows_in_an_estimated_span(small, rng, options, exact, blocks, monkeypatch):
    if not exact:
        monkeypatch.setattr(span_errors, "LARGEST_EXACT", 1)
    model = ss.SharedSpanRegressor(**{"rank": 2, "random_state": 0} | options)
    model.fit(small.X, small.y, small.task)
    X, codes = shuffled(small, rng)
    uncertainty = model.uncertainty()
    expected = span_reference(uncertainty, X, codes)
    assert_allclose(model.predict(X, codes, return_std=True)[1], expected, rtol=1e-12)
    J = uncertainty.canonical.to_user(np.eye(len(uncertainty.B)))
    slopes = [np.sqrt(np.diag(J @ covariance_of(uncertainty, t) @ J.T)) for t in range(40)]
    assert_allclose(model.coef_std_, slopes, rtol=1e-11)


@pytest.mark.parametrize("method", ["prior", "least_squares"])
@pytest.mark.parametrize("sure", [True, False], ids=["a certain span", "an estimated span"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_rows_of_new_tasks(small, rng, method, sure, fit_intercept, blocks):
    model = ss.SharedSpanRegressor(rank=2, random_state=0, fit_intercept=fit_intercept)
    new = ss.NewTaskRegressor.from_model(model.fit(small.X, small.y, small.task), method)
    new.set_params(fit_intercept=fit_intercept)
    if sure:
        new.set_params(representation_covariance=None)
    new.fit(small.X, small.y, small.task)
    X, codes = shuffled(small, rng)
    uncertainty = new.uncertainty()
    expected = weights_reference(uncertainty, X, codes)
    assert_allclose(new.predict(X, codes, return_std=True)[1], expected, rtol=1e-11)
    slopes = []
    for t in range(40):
        total = new.representation_ @ uncertainty.covariance[t] @ new.representation_.T
        if uncertainty.error is not None:
            J, C = jacobian_of(uncertainty, t), uncertainty.error.covariance
            total = total + J @ C @ J.T
            if uncertainty.shrunk:
                total += np.einsum("ab,ajbl->jl", uncertainty.covariance[t], C.reshape(2, 8, 2, 8))
        slopes.append(np.sqrt(np.diag(total)))
    assert_allclose(new.coef_std_, slopes, rtol=1e-11)


@pytest.mark.parametrize(
    "options",
    [{}, {"fit_intercept": False}, {"slopes": "full"}, {"noise": "per_task"}, {"noise": "fitted"}],
    ids=str,
)
@pytest.mark.parametrize("single", [False, True])
def test_rows_of_a_population(small, rng, options, single, blocks, monkeypatch):
    if single:
        monkeypatch.setattr(posterior, "DOUBLE_ENTRIES", 1)
    model = ss.AdaptiveSpanRegressor(random_state=0, unseen="mean", **options)
    model.fit(small.X, small.y, small.task)
    X, codes = shuffled(small, rng, unseen=True)
    p, fitted = len(model.uncertainty().b), model.uncertainty()
    assert fitted.packed.dtype == (np.float32 if single else np.float64)
    unit = fitted.scaling.y_scale / fitted.canonical.units.y_scale
    expected, C = np.empty(len(X)), np.empty((p, p))
    for i, (x, t) in enumerate(zip(X, codes, strict=True)):
        z = fitted.standard_rows(x[None])[0]
        C[np.triu_indices(p)] = fitted.packed[t]
        C = np.triu(C) + np.triu(C, 1).T
        C, mean = (fitted.new, fitted.b) if t < 0 else (C, fitted.mean[t])
        noise = fitted.new_noise if t < 0 else fitted.noise[t]
        if fitted.variance_function is not None:
            noise = fitted.variance_function(np.array([z @ mean]))[0]
        expected[i] = unit * np.sqrt(z @ C @ z + noise)
        C = C.copy()
    labels = np.where(codes < 0, 1000, codes)
    assert_allclose(model.predict(X, labels, return_std=True)[1], expected, rtol=1e-11)
    first, J = (
        p - 8,
        fitted.canonical.to_user(np.diag(fitted.scaling.y_scale / fitted.scaling.scale)),
    )
    for t in range(40):
        C[np.triu_indices(p)] = fitted.packed[t]
        C = np.triu(C) + np.triu(C, 1).T
        slopes = np.sqrt(np.diag(J @ C[first:, first:] @ J.T))
        assert_allclose(model.coef_std_[t], slopes, rtol=1e-11 if not single else 1e-6)


def span_sums_reference(statistics, W, noise, omega, B, Q):
    (d, k), T = B.shape, len(W)
    first, second = np.triu_indices(k)
    pooled, blocks, reference = np.zeros((d, d)), np.zeros((2, len(first), d, d)), 0.0
    inverses, cross, spare, values = [], [], [], []
    for t in range(T):
        G = statistics.gram(t)
        value, vectors = np.linalg.eigh(B.T @ G @ B)
        good = value > 1e-12 * max(value[-1], 0.0)
        inverse = (vectors[:, good] / value[good]) @ vectors[:, good].T
        S = G - G @ B @ inverse @ B.T @ G
        if np.trace(S) <= 1e-12 * np.trace(G):
            S[:] = 0.0
        pooled += omega[t] * S
        for r, (a, b) in enumerate(zip(first, second, strict=True)):
            blocks[0, r] += omega[t] * W[t, a] * W[t, b] * S
            blocks[1, r] += omega[t] * noise[t] * inverse[a, b] * S
        reference += omega[t] * np.trace(G) * W[t] @ W[t] / d
        inverses.append(inverse)
        cross.append(B.T @ G @ Q)
        spare.append(np.trace(S))
        values.append((value, vectors, good))
    huge = 1 / (1e-12 * max(max(value[-1] for value, _, _ in values), 1.0))
    singular = [(v * np.where(good, 0.0, huge)) @ v.T for _, v, good in values]
    return (pooled.ravel(), blocks.reshape(2, -1, d * d), reference), (
        np.array(inverses), np.array(singular), np.array(cross), np.array(spare),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["gram", "rows"])
@pytest.mark.parametrize("slice_numbers", [1 << 16, 300])
def test_sums_over_tasks_are_those_of_a_loop(rng, kind, slice_numbers, monkeypatch):
    """Some tasks have fewer rows than the span has directions, and some have one row."""
    monkeypatch.setattr(span_information, "SLICE_NUMBERS", slice_numbers)
    sizes = np.tile([1, 2, 3, 9, 20], 12)
    task = np.repeat(np.arange(60), sizes)
    X, y = rng.standard_normal((len(task), 7)), rng.standard_normal(len(task))
    statistics = statistics_of(X, y, task, kind=kind, weight=rng.uniform(0.5, 2.0, len(task)))
    basis = np.linalg.qr(rng.standard_normal((7, 7)))[0]
    B, Q = basis[:, :3].copy(), basis[:, 3:].copy()
    W, noise, omega = rng.standard_normal((60, 3)), rng.uniform(1, 2, 60), rng.uniform(1, 2, 60)
    sums, arrays = span_information._span_sums(statistics, W, noise, omega, B=B, Q=Q)
    expected = span_sums_reference(statistics, W, noise, omega, B, Q)
    for one, other in zip((*sums, *arrays), (*expected[0], *expected[1]), strict=True):
        assert np.shape(one) == np.shape(other)
        scale = np.abs(other).max()
        assert_allclose(one, other, rtol=1e-7, atol=1e-9 * scale)


def test_threads_do_not_change_a_bit(rng, monkeypatch):
    monkeypatch.setattr(threads, "SERIAL_WORK", 0)
    for module in (span_errors, span_information):
        monkeypatch.setattr(module, "SLICE_NUMBERS", 300)
    sim = ss.simulate(n_tasks=90, n_features=6, rank=2, n_samples=12, random_state=0)
    results = []
    for count in (1, 3):
        monkeypatch.setattr(threads, "_chosen", count)
        model = ss.SharedSpanRegressor(rank=2, random_state=0).fit(sim.X, sim.y, sim.task)
        order = np.random.default_rng(0).permutation(len(sim.y))
        _, std = model.predict(sim.X[order], sim.task[order], return_std=True)
        uncertainty = model.uncertainty()
        results.append((uncertainty.information, uncertainty.excess, model.coef_std_, std))
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)


def test_a_kernel_of_a_span_without_complement(small):
    """With as many directions as features there is nothing outside the span."""
    statistics = statistics_of(small.X, small.y, small.task)
    canonical = ss.SharedSpanRegressor(rank=2, whiten=False).fit(
        small.X, small.y, small.task
    ).uncertainty().canonical  # fmt: skip
    full = span_uncertainty(
        statistics, canonical, np.eye(8), np.ones((8, 40)), np.ones(40), np.full(40, 9.0)
    )
    assert full.cross.shape == (40, 8, 0)
    assert np.isfinite(full.response_std(small.X, small.task)).all()
