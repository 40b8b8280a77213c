"""Compiled loops over tasks for the CPU.

A symmetric d x d Gram is stored *packed*: the rows of its upper triangle one after the other,
d (d + 1) / 2 numbers. Each is read once and used twice, so the pass moves half the bytes.

Every kernel releases the interpreter lock and handles the tasks ``first <= t < last``, or blocks
of tasks. The pass over Grams is in ``grams.py``, with the product in ``gram_product.py``.

Results must not depend on the addresses of arrays. A loop that both stores and sums is compiled
twice, vectorised and not; arrays that are too close together in memory run the second version,
which sums in another order. So loops in this file either store or sum.
"""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel, subroutine
from sharedspan.kernels.dense import solve_in_place


@kernel
def quadratic_forms(Z, V, of, out):  # type: ignore[no-untyped-def]
    """Write z'V z to out (rows,), for each row z of Z (rows, p) and its matrix V[of] (p, p)."""
    for r in range(Z.shape[0]):
        z, M = Z[r], V[of[r]]
        total = 0.0
        for i in range(z.shape[0]):
            row = M[i]
            along = 0.0
            for j in range(z.shape[0]):
                along += row[j] * z[j]
            total += z[i] * along
        out[r] = total


def packed_size(d: int) -> int:
    """Numbers in the upper triangle of a d x d matrix."""
    return d * (d + 1) // 2


@subroutine
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
def sum_blocks(values, bounds, out, first, last):  # type: ignore[no-untyped-def]
    """Sums of the rows bounds[i] <= t < bounds[i + 1], to out[i], for first <= i < last."""
    for i in range(first, last):
        total = out[i]
        total[:] = 0.0
        for t in range(bounds[i], bounds[i + 1]):
            row = values[t]
            for j in range(row.shape[0]):
                total[j] += row[j]


@subroutine
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


@subroutine
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
    """R_t = weight_t X_t' diag(w) e_t, (T, d), with e_t = X_t v_t - r_t y_t, centred on request."""
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
def row_gradients(  # type: ignore[no-untyped-def]
    X, y, w, starts, centred, response, weight, B, W, solve, out_W, grad_B, loss, bounds, first,
    last,
):  # fmt: skip
    """``grams.gram_gradients`` from rows: with Z = X B, the residuals are e = Z w - r y.

    Without ``solve``, Z is not formed: e = X (B w) - r y is cheaper.
    """
    k, d = B.shape
    longest = 0
    for t in range(bounds[first], bounds[last]):
        longest = max(longest, starts[t + 1] - starts[t])
    e, Z, v, R = np.empty(longest), np.empty((longest, k)), np.empty(d), np.empty(d)
    weights, c, A, F = np.empty(k), np.empty(k), np.empty((k, k)), np.empty((k, k))
    for block in range(first, last):
        grad_B[block].fill(0.0)
        loss[block] = 0.0
        for t in range(bounds[block], bounds[block + 1]):
            begin, n, size = starts[t], starts[t + 1] - starts[t], 0.0
            for i in range(n):
                size += w[begin + i]
            size = size if centred else 0.0
            for j in range(k):
                weights[j] = W[j, t]
            if solve:
                for i in range(n):
                    for j in range(k):
                        Z[i, j] = inner(X[begin + i], B[j])
                    e[i] = inner(Z[i], weights) - response[t] * y[begin + i]
                centre_rows(Z, w[begin : begin + n], size)
                centre_row(e, w[begin : begin + n], size)
                normal_equations(Z, e, w[begin : begin + n], A, c)
                solve_in_place(A, F, c)
                for j in range(k):
                    weights[j] -= c[j]
                for i in range(n):
                    e[i] -= inner(Z[i], c)
            else:
                v.fill(0.0)
                for j in range(k):
                    add_row(weights[j], B[j], v)
                for i in range(n):
                    e[i] = inner(X[begin + i], v) - response[t] * y[begin + i]
                centre_row(e, w[begin : begin + n], size)
            R.fill(0.0)
            squares = 0.0
            for i in range(n):
                weighted = w[begin + i] * e[i]
                squares += weighted * e[i]
                add_row(weight[t] * weighted, X[begin + i], R)
            for j in range(k):
                add_row(weights[j], R, grad_B[block, j])
                out_W[j, t] = weights[j] if solve else inner(B[j], R)
            loss[block] += 0.5 * weight[t] * squares


@subroutine
def inner(x, y):  # type: ignore[no-untyped-def]
    """The inner product of two rows."""
    total = 0.0
    for j in range(len(x)):
        total += x[j] * y[j]
    return total


@subroutine
def add_row(factor, x, y):  # type: ignore[no-untyped-def]
    """Add factor x to y."""
    for j in range(len(x)):
        y[j] += factor * x[j]


@subroutine
def centre_row(e, w, size):  # type: ignore[no-untyped-def]
    """Subtract the mean with weights w, whose sum is ``size``, from e, unless the sum is zero."""
    mean = 0.0
    for i in range(len(w)):
        mean += w[i] * e[i]
    mean = mean / size if size > 0.0 else 0.0
    for i in range(len(w)):
        e[i] -= mean


@subroutine
def centre_rows(Z, w, size):  # type: ignore[no-untyped-def]
    """``centre_row`` for each column of Z."""
    for j in range(Z.shape[1]):
        mean = 0.0
        for i in range(len(w)):
            mean += w[i] * Z[i, j]
        mean = mean / size if size > 0.0 else 0.0
        for i in range(len(w)):
            Z[i, j] -= mean


@subroutine
def normal_equations(Z, e, w, A, c):  # type: ignore[no-untyped-def]
    """A = Z'diag(w)Z and c = Z'diag(w)e, over the first ``len(w)`` rows."""
    k = Z.shape[1]
    for a in range(k):
        c[a] = 0.0
        for b in range(k):
            A[a, b] = 0.0
    for i in range(len(w)):
        for a in range(k):
            weighted = w[i] * Z[i, a]
            c[a] += weighted * e[i]
            for b in range(k):
                A[a, b] += weighted * Z[i, b]


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


@kernel
def predict_rows(X, codes, coef, intercept, mean, level, out):  # type: ignore[no-untyped-def]
    """Write intercept_t + x'v_t to out (rows,), t the code of the row; code -1 is the mean task."""
    for i in range(X.shape[0]):
        t = codes[i]
        if t < 0:
            out[i] = level + inner(X[i], mean)
        else:
            out[i] = intercept[t] + inner(X[i], coef[t])
