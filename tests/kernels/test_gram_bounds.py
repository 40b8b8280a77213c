"""The pass over Grams reads lanes of eight numbers, and none outside of its arrays."""

import ctypes
import mmap
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sharedspan.kernels import grams

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="protects pages by mprotect")


class Guarded:
    """Copies of arrays between two pages that end the process when they are touched."""

    def __init__(self, at_end):
        self.at_end, self.maps = at_end, []

    def __call__(self, array):
        page = mmap.PAGESIZE
        inside = -(-array.nbytes // page) * page
        memory = mmap.mmap(-1, inside + 2 * page)
        self.maps.append(memory)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (address, address + page + inside):
            assert libc.mprotect(ctypes.c_void_p(guard), page, 0) == 0
        begin = page + (inside - array.nbytes if self.at_end else 0)
        copy = np.frombuffer(memory, array.dtype, array.size, begin).reshape(array.shape)
        copy[...] = array
        return copy


@pytest.mark.parametrize("at_end", [False, True], ids=["guard before", "guard after"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("d", [1, 3, 7, 8, 13, 16, 17, 30, 50])
@pytest.mark.parametrize(("first", "last"), [(0, 40), (0, 1), (1, 20), (14, 17), (39, 40)])
def test_each_range_of_tasks_is_right_and_nothing_else_is_touched(
    rng, d, first, last, dtype, at_end
):
    guarded, (T, k) = Guarded(at_end), (40, 2)
    rows = rng.standard_normal((T, d + 3, d))
    G = np.einsum("tni,tnj->tij", rows, rows).astype(dtype)
    upper = np.triu_indices(d)
    packed = guarded(G[:, upper[0], upper[1]])
    anchor, g, V = (guarded(rng.standard_normal((T, d))) for _ in range(3))
    q, response, weight = (guarded(rng.uniform(1, 2, T)) for _ in range(3))
    R, loss = guarded(np.full((T, d), np.nan)), guarded(np.full(T, np.nan))
    grams.gram_residuals(packed, anchor, g, q, response, weight, V, R, loss, first, last)
    tasks = slice(first, last)

    def residuals(V):
        u = V - response[:, None] * anchor
        return weight[:, None] * (np.einsum("tij,tj->ti", G, u) - response[:, None] * g)

    assert_allclose(R[tasks], residuals(V)[tasks], rtol=1e-9, atol=1e-9)
    assert np.isnan(R[:first]).all()
    assert np.isnan(R[last:]).all()

    B, W = guarded(rng.standard_normal((k, d))), guarded(rng.standard_normal((k, T)))
    out_W, grad_B = guarded(np.full((k, T), np.nan)), guarded(np.empty((1, k, d)))
    arguments = B, W, False, out_W, grad_B, guarded(np.empty(1)), np.array([first, last])
    grams.gram_gradients(packed, anchor, g, q, response, weight, *arguments, 0, 1)
    expected = residuals(W.T @ B)[tasks]
    assert_allclose(out_W[:, tasks], B @ expected.T, rtol=1e-9, atol=1e-9)
    assert_allclose(grad_B[0], W[:, tasks] @ expected, rtol=1e-9, atol=1e-9)
    assert np.isnan(out_W[:, :first]).all()
    assert np.isnan(out_W[:, last:]).all()

    out = guarded(np.full((T, k, k), np.nan))
    grams.gram_normal_matrices(packed, weight, B, out, first, last)
    expected = weight[:, None, None] * np.einsum("ai,tij,bj->tab", B, G, B)
    assert_allclose(out[tasks], expected[tasks], rtol=1e-9, atol=1e-9)
