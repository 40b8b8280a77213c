"""Small dense systems, for use inside kernels."""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel

# Eigenvalues of a task's k x k normal matrix below this share of its largest count as zero.
RANK_TOLERANCE = 1e-12


@kernel
def solve_in_place(A, F, c):  # type: ignore[no-untyped-def]
    """Set c to the shortest solution of A x = c, by Cholesky, A = F F'.

    A (k, k) is symmetric, without negative curvature.
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
            else:  # singular, or nearly
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


@kernel
def solve_singular(A, c):  # type: ignore[no-untyped-def]
    """As ``solve_in_place``, by eigenvalues: small ones count as zero."""
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
