"""Small dense systems inside kernels, and triangular factors of Grams task by task."""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel, subroutine

# Eigenvalues of a task's k x k normal matrix below this share of the largest count as zero.
RANK_TOLERANCE = 1e-12


@subroutine
def solve_in_place(A, F, c):  # type: ignore[no-untyped-def]
    """Set c to the minimum-norm solution of A x = c, A (k, k) positive semidefinite.

    By Cholesky, A = F F'; F is scratch.
    """
    k = len(c)
    largest = 0.0
    for i in range(k):
        largest = max(largest, A[i, i])
    for i in range(k):
        for j in range(i + 1):
            value = A[i, j]
            for m in range(j):
                value -= F[i, m] * F[j, m]
            if i > j:
                F[i, j] = value / F[j, j]
            elif value > k * RANK_TOLERANCE * largest:
                F[i, i] = np.sqrt(value)
            else:  # singular or nearly singular
                solve_singular(A, c)
                return
    for i in range(k):
        for m in range(i):
            c[i] -= F[i, m] * c[m]
        c[i] /= F[i, i]
    for i in range(k - 1, -1, -1):
        for m in range(i + 1, k):
            c[i] -= F[m, i] * c[m]
        c[i] /= F[i, i]


@subroutine
def solve_singular(A, c):  # type: ignore[no-untyped-def]
    """``solve_in_place`` by an eigendecomposition, in which small eigenvalues count as zero."""
    k = len(c)
    for i in range(k):
        for j in range(k):
            if not np.isfinite(A[i, j]):
                c.fill(np.nan)
                return
    eigenvalues, U = np.linalg.eigh(A)
    right = c.copy()
    c.fill(0.0)
    for m in range(k):
        if eigenvalues[m] > RANK_TOLERANCE * max(eigenvalues[k - 1], 0.0):
            along = 0.0
            for i in range(k):
                along += U[i, m] * right[i]
            for i in range(k):
                c[i] += U[i, m] * along / eigenvalues[m]


@kernel
def factor_grams(packed, scale, tolerance, first, last, F, order, rank):  # type: ignore[no-untyped-def]
    """Pivoted Cholesky factors: F' F = S G S, S = diag(scale), rows of F beyond ``rank`` are zero.

    Parameters
    ----------
    packed : ndarray of shape (T, d (d + 1) / 2)
        Upper triangles of the Grams.
    scale : ndarray of shape (d,)
    tolerance : float
        Pivots below this share of the largest count as zero.
    first, last : int
        Tasks first <= t < last are factored.
    F : ndarray of shape (T, d, d)
        Output; must be zero on entry.
    order : ndarray of shape (T, d)
        Output: the pivot of each row of F.
    rank : ndarray of shape (T,)
        Output.
    """
    d = len(scale)
    left = np.empty(d)
    used = np.empty(d, dtype=np.bool_)
    for t in range(first, last):
        position = 0
        for i in range(d):
            left[i] = packed[t, position] * scale[i] * scale[i]
            used[i] = False
            position += d - i
        limit = tolerance * left.max()
        for r in range(d):
            pivot, largest = -1, limit
            for i in range(d):
                if not used[i] and left[i] > largest:
                    pivot, largest = i, left[i]
            if pivot < 0:
                break
            used[pivot] = True
            order[t, r] = pivot
            rank[t] = r + 1
            root = np.sqrt(largest)
            for j in range(d):
                if used[j] and j != pivot:
                    continue
                low, high = min(pivot, j), max(pivot, j)
                value = packed[t, low * d - low * (low - 1) // 2 + high - low]
                value *= scale[pivot] * scale[j]
                for s in range(r):
                    value -= F[t, s, pivot] * F[t, s, j]
                F[t, r, j] = value / root
                left[j] -= F[t, r, j] ** 2


@kernel
def solve_factors(F, order, rank, c, first, last, z):  # type: ignore[no-untyped-def]
    """Z (T, d) with F' z = c on the pivots of each task; zero beyond ``rank``."""
    for t in range(first, last):
        for r in range(rank[t]):
            value = c[t, order[t, r]]
            for s in range(r):
                value -= F[t, s, order[t, r]] * z[t, s]
            z[t, r] = value / F[t, r, order[t, r]]
