"""The compiled terms of the mixed model against dense matrices."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sharedspan.kernels.mixed_terms import mixed_terms


def terms_of(Z, r, active, root, L, precision, intercept):
    """Terms by the kernel, from plain rows Z (T, n, d) and residuals r (T, n)."""
    T, n, d = Z.shape
    mean = Z.mean(axis=1) if intercept else np.zeros((T, d))
    centred = Z - mean[:, None]
    i, j = np.triu_indices(d)
    packed = (centred.transpose(0, 2, 1) @ centred)[:, i, j].copy()
    score = precision[:, None] * np.einsum("tnd,tn->td", Z, r)
    p = d + intercept
    K, h, log_det, lost = np.empty((T, p, p)), np.empty((T, p)), np.empty(T), np.empty(T)
    mixed_terms(
        packed, np.full(T, float(n)), mean, np.ones(d), precision, score, active, root, L, 0, T,
        K, h, log_det, lost,
    )  # fmt: skip
    return K, h, log_det, lost


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("active", "k"), [((0, 1, 2, 3), 2), ((), 2), ((0,), 0), ((1, 3), 5)])
def test_terms_are_those_of_dense_matrices(active, k, intercept):
    rng = np.random.default_rng(0)
    T, n, d = 11, 6, 4
    Z, r = rng.standard_normal((T, n, d)) + 0.5, rng.standard_normal((T, n))
    if intercept:
        r -= r.mean(axis=1, keepdims=True)
    active = np.array(active, dtype=np.int64)
    root, L = rng.uniform(0.3, 2, len(active)), rng.standard_normal((d + intercept, k))
    precision = rng.uniform(0.5, 2, T)
    K, h, log_det, lost = terms_of(Z, r, active, root, L, precision, intercept)
    C = L @ L.T
    C[active, active] += root**2
    for t in range(T):
        F = np.sqrt(precision[t]) * np.column_stack([np.ones((n, int(intercept))), Z[t]])
        z = np.sqrt(precision[t]) * r[t]
        S = np.eye(n) + F @ C @ F.T
        inverse = np.linalg.inv(S)
        assert_allclose(K[t], F.T @ inverse @ F, atol=1e-10)
        assert_allclose(h[t], F.T @ inverse @ z, atol=1e-10)
        assert_allclose(log_det[t], np.linalg.slogdet(S)[1], atol=1e-10)
        assert_allclose(z @ z - lost[t], z @ inverse @ z, atol=1e-10)


def test_any_covariance_gives_finite_terms():
    """However large the effects are, pivots are at least one."""
    rng = np.random.default_rng(1)
    Z, r = 1e6 * rng.standard_normal((8, 5, 3)), rng.standard_normal((8, 5))
    L = 1e5 * rng.standard_normal((3, 2))
    K, h, log_det, _ = terms_of(Z, r, np.arange(3), np.full(3, 1e4), L, np.ones(8), intercept=False)
    assert np.isfinite(K).all()
    assert np.isfinite(h).all()
    assert (log_det > 0).all()
