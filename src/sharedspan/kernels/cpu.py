"""Compiled loops over tasks for the CPU.

A symmetric d x d Gram is stored *packed*: the rows of its upper triangle one after the other,
d (d + 1) / 2 numbers. Each is read once and used twice, so the pass moves half the bytes.

Every kernel releases the interpreter lock and handles the tasks ``first <= t < last``, or blocks
of tasks. The pass itself is in ``grams.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered (so that they vectorise), but NaN and infinity keep their meaning.
_REORDER = {"reassoc", "contract", "nsz"}


def kernel(function: F, **more: Any) -> F:
    """Compile without the interpreter lock; keep the machine code on disk where that is allowed."""
    options: dict[str, Any] = {"nogil": True, "fastmath": _REORDER, "error_model": "numpy"} | more
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no writable place for the cache
        return numba.njit(**options)(function)


def part(function: F) -> F:
    """Compile as part of the kernels that call it: a call costs as much as a small task."""
    return kernel(function, forceinline=True)


def packed_size(d: int) -> int:
    """Numbers in the upper triangle of a d x d matrix."""
    return d * (d + 1) // 2


@kernel
def pack(G, out):  # type: ignore[no-untyped-def]
    """Write the upper triangle of G (d, d) to out (d (d + 1) / 2,)."""
    position = 0
    for i in range(G.shape[0]):
        for j in range(i, G.shape[0]):
            out[position] = G[i, j]
            position += 1


@kernel
def unpack(packed, G):  # type: ignore[no-untyped-def]
    """Write the symmetric matrix of a packed triangle to G (d, d)."""
    position = 0
    for i in range(G.shape[0]):
        for j in range(i, G.shape[0]):
            G[i, j] = packed[position]
            G[j, i] = packed[position]
            position += 1


@kernel
def times(A, x):  # type: ignore[no-untyped-def]
    """A x."""
    out = np.empty(A.shape[0])
    for i in range(A.shape[0]):
        row = A[i]
        total = 0.0
        for j in range(row.shape[0]):
            total += row[j] * x[j]
        out[i] = total
    return out


@kernel
def times_transposed(A, x):  # type: ignore[no-untyped-def]
    """A'x."""
    out = np.zeros(A.shape[1])
    for i in range(A.shape[0]):
        row = A[i]
        x_i = x[i]
        for j in range(row.shape[0]):
            out[j] += row[j] * x_i
    return out


@kernel
def row_residuals(X, y, w, starts, centred, response, weight, V, out, loss, first, last):  # type: ignore[no-untyped-def]
    """R_t = weight_t X_t' diag(w) (X_t v_t - r_t y_t - their mean if centred), (T, d)."""
    d = V.shape[1]
    R = np.empty(d)
    for t in range(first, last):
        begin, end = starts[t], starts[t + 1]
        e = np.empty(end - begin)
        mean = 0.0
        size = 0.0
        v = V[t]
        for i in range(begin, end):
            x = X[i]
            total = 0.0
            for j in range(d):
                total += x[j] * v[j]
            e[i - begin] = total - response[t] * y[i]
            mean += w[i] * e[i - begin]
            size += w[i]
        mean = mean / size if centred and size > 0.0 else 0.0
        R[:] = 0.0
        squares = 0.0
        for i in range(begin, end):
            residual = e[i - begin] - mean
            weighted = w[i] * residual
            squares += weighted * residual
            x = X[i]
            for j in range(d):
                R[j] += weighted * x[j]
        for j in range(d):
            out[t, j] = weight[t] * R[j]
        loss[t] = 0.5 * weight[t] * squares


@kernel
def row_normal_matrices(X, w, starts, centred, weight, B, out, first, last):  # type: ignore[no-untyped-def]
    """out_t = weight_t (X_t B)' diag(w) (X_t B), centred on request, (k, k) for each task."""
    d, k = B.shape
    for t in range(first, last):
        begin, end = starts[t], starts[t + 1]
        Z = np.zeros((end - begin, k))
        mean = np.zeros(k)
        size = 0.0
        for i in range(begin, end):
            for j in range(d):
                for c in range(k):
                    Z[i - begin, c] += X[i, j] * B[j, c]
            for c in range(k):
                mean[c] += w[i] * Z[i - begin, c]
            size += w[i]
        if centred and size > 0.0:
            mean /= size
        else:
            mean[:] = 0.0
        A = np.zeros((k, k))
        for i in range(begin, end):
            for a in range(k):
                for b in range(k):
                    A[a, b] += w[i] * (Z[i - begin, a] - mean[a]) * (Z[i - begin, b] - mean[b])
        out[t] = weight[t] * A


@kernel
def squared_errors(X, y, w, starts, ids, V, intercept, out):  # type: ignore[no-untyped-def]
    """Add to out_t the weighted squared errors of y - intercept_t - x'v_t over segments of rows."""
    for s in range(ids.shape[0]):
        t = ids[s]
        for i in range(starts[s], starts[s + 1]):
            error = y[i] - intercept[t]
            for j in range(X.shape[1]):
                error -= X[i, j] * V[t, j]
            out[t] += w[i] * error * error
