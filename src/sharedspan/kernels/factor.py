"""Triangular factors of Grams, one task after the other."""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel


@kernel
def factor_grams(packed, scale, tolerance, first, last, F, order, rank):  # type: ignore[no-untyped-def]
    """Pivoted Cholesky factors: F' F = S G S, S = diag(scale), rows of F above ``rank`` zero.

    Parameters
    ----------
    packed : ndarray of shape (T, d (d + 1) / 2)
        Upper triangles of the Grams.
    scale : ndarray of shape (d,)
    tolerance : float
        Pivots below this share of the largest are rounding.
    first, last : int
        The tasks to do.
    F : ndarray of shape (T, d, d)
        Output, zero before.
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
    """Z (T, d) with F' z = c on the pivots of each task; zero above ``rank``."""
    for t in range(first, last):
        for r in range(rank[t]):
            value = c[t, order[t, r]]
            for s in range(r):
                value -= F[t, s, order[t, r]] * z[t, s]
            z[t, r] = value / F[t, r, order[t, r]]
