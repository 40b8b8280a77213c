"""Compiled loops over tasks and rows for standard errors.

Symmetric matrices are packed as in ``cpu.py``. Names are those of ``inference/span_errors.py``.
"""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel
from sharedspan.kernels.cpu import add_row, inner


@kernel
def row_grams(X, w, starts, first, out):  # type: ignore[no-untyped-def]
    """Packed Grams X_t' diag(w) X_t of the tasks from ``first`` on, a row of ``out`` for each."""
    d = X.shape[1]
    for t in range(len(out)):
        out[t].fill(0.0)
        for i in range(starts[first + t], starts[first + t + 1]):
            position = 0
            for j in range(d):
                add_row(w[i] * X[i, j], X[i, j:], out[t, position : position + d - j])
                position += d - j


@kernel
def span_products(G, B, BG):  # type: ignore[no-untyped-def]
    """B'G_t for the transpose B (k, d) of the basis, in BG (k, d, m).

    Entries of the m tasks are neighbours in G (d (d + 1) / 2, m), so that loops are long even if
    Grams are small.
    """
    k, d = B.shape
    m = G.shape[1]
    BG.fill(0.0)
    position = 0
    for i in range(d):
        for j in range(i, d):
            for a in range(k):
                factor = B[a, i]
                for t in range(m):
                    BG[a, j, t] += factor * G[position, t]
                if j > i:
                    factor = B[a, j]
                    for t in range(m):
                        BG[a, i, t] += factor * G[position, t]
            position += 1


@kernel
def invert(M, largest_condition, inverse, regular):  # type: ignore[no-untyped-def]
    """Inverses of M (m, k, k) by Cholesky, and whether each is far from singular.

    The product of the traces of M and of its inverse bounds the condition number.
    """
    k = M.shape[1]
    F = np.zeros((k, k))
    for t in range(len(M)):
        regular[t] = True
        trace, inverse_trace = 0.0, 0.0
        for i in range(k):
            trace += M[t, i, i]
            for j in range(i + 1):
                value = M[t, i, j]
                for c in range(j):
                    value -= F[i, c] * F[j, c]
                if i > j:
                    F[i, j] = value / F[j, j]
                elif value > 0.0:
                    F[i, i] = np.sqrt(value)
                else:
                    regular[t] = False
                    F[i, i] = 1.0
        for i in range(k):  # F^-1 in place, row by row
            for j in range(i):
                value = 0.0
                for c in range(j, i):
                    value -= F[i, c] * F[c, j]
                F[i, j] = value / F[i, i]
            F[i, i] = 1.0 / F[i, i]
        for i in range(k):
            for j in range(i + 1):
                value = 0.0
                for c in range(i, k):
                    value += F[c, i] * F[c, j]
                inverse[t, i, j] = value
                inverse[t, j, i] = value
            inverse_trace += inverse[t, i, i]
        if not trace * inverse_trace < largest_condition:
            regular[t] = False


@kernel
def spare_grams(G, BG, inverse):  # type: ignore[no-untyped-def]
    """S_t = G_t - G_t B M_t^-1 B'G_t, written to G; see ``span_products``; inverse is (k, k, m)."""
    k, d, m = BG.shape
    solved = np.zeros((k, d, m))
    for a in range(k):
        for b in range(k):
            for j in range(d):
                for t in range(m):
                    solved[a, j, t] += inverse[a, b, t] * BG[b, j, t]
    position = 0
    for i in range(d):
        for j in range(i, d):
            for a in range(k):
                for t in range(m):
                    G[position, t] -= BG[a, i, t] * solved[a, j, t]
            position += 1


@kernel
def task_terms(t, W, inverse, cross, mix, terms, c, V, taken):  # type: ignore[no-untyped-def]
    """M_t^-1 B'G_t Q in ``taken`` (k, q), c(w_t) in c (r,), and Cov(D w_t) packed in V."""
    k = len(taken)
    for a in range(k):
        taken[a].fill(0.0)
        for b in range(k):
            add_row(inverse[t, a, b], cross[t, b], taken[a])
    c.fill(0.0)
    for a in range(k):
        for b in range(k):
            add_row(W[t, a] * W[t, b], mix[a * k + b], c)
    V.fill(0.0)
    for r in range(len(c)):
        if c[r] != 0.0:
            add_row(c[r], terms[r], V)


@kernel
def packed_form(V, x):  # type: ignore[no-untyped-def]
    """The quadratic form x'V x of a packed V."""
    n = len(x)
    diagonal, rest = 0.0, 0.0
    position = 0
    for i in range(n):
        diagonal += V[position] * x[i] * x[i]
        rest += x[i] * inner(V[position + 1 : position + n - i], x[i + 1 :])
        position += n - i
    return diagonal + 2 * rest


@kernel
def span_row_variances(Z, codes, out, W, inverse, cross, within, mix, terms):  # type: ignore[no-untyped-def]
    """Variances of predictions at rows Z (m, k + q), in the basis [B, Q], of tasks ``codes``.

    They are fastest if the rows of a task are neighbours.

    Parameters
    ----------
    within : ndarray of shape (T, k, k)
        Covariance of w_t in the given span.
    mix, terms : ndarray of shape (k^2, r) and (r, q (q + 1) / 2)
        See ``SpanCovariance``; terms are packed.
    """
    k, q = cross.shape[1:]
    taken, outer = np.empty((k, q)), np.empty(q)
    c, V = np.empty(len(terms)), np.empty(q * (q + 1) // 2)
    last = -1
    for i in range(len(Z)):
        t = codes[i]
        if t != last:
            task_terms(t, W, inverse, cross, mix, terms, c, V, taken)
            last = t
        for j in range(q):
            outer[j] = Z[i, k + j]
        variance = 0.0
        for a in range(k):
            add_row(-Z[i, a], taken[a], outer)
            variance += Z[i, a] * inner(within[t, a], Z[i, :k])
        out[i] = variance + packed_form(V, outer)


@kernel
def packed_row_forms(Z, codes, packed, out):  # type: ignore[no-untyped-def]
    """Quadratic forms z'C z of each row of Z (m, p) and the packed matrix C of its code."""
    for i in range(len(Z)):
        out[i] = packed_form(packed[codes[i]], Z[i])


@kernel
def packed_task_forms(J, packed, out, first, last):  # type: ignore[no-untyped-def]
    """Quadratic forms z'C_t z of each task and each row z of J (d, p), (T, d)."""
    for t in range(first, last):
        for j in range(len(J)):
            out[t, j] = packed_form(packed[t], J[j])
