"""Compiled sums over rows: building, merging and mapping the statistics of tasks.

The kernels loop over numbers because array expressions take seconds longer to compile.
"""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel
from sharedspan.kernels.cpu import inner, pack, times, times_transposed, unpack

# An anchor solves (G + ridge) a = X'y: any reference near least squares will do, and this one
# exists for every G. When statistics are built from rows, the ridge is a share of each diagonal
# entry, so units do not matter. In the canonical problem it is a larger share of n_t: a direction
# that varies in other tasks but hardly in this one would get an anchor so long that the loss loses
# its digits.
ANCHOR_RIDGE = 1e-10
CANONICAL_RIDGE = 1e-6
PIVOT_TOLERANCE = 1e-13  # relative to the diagonal entry
CONSTANT = 1e-12  # deviation over level of a feature that varies by the rounding of its mean alone


@kernel
def accumulate(X, y, w, starts, ids, sign, centred, n, mean, y_mean, packed, anchor, g, q):  # type: ignore[no-untyped-def]
    """Add (sign = 1) or subtract (sign = -1) segments of rows; X and y are overwritten.

    Segment s holds rows starts[s]..starts[s + 1] of task ids[s]. The first segment of a task sets
    its anchor.
    """
    for s in range(ids.shape[0]):
        t = ids[s]
        rows, target = X[starts[s] : starts[s + 1]], y[starts[s] : starts[s + 1]]
        weights = w[starts[s] : starts[s + 1]]
        size = weights.sum()
        if size == 0.0:
            continue
        x_bar, y_bar = centre(rows, target, weights, size, centred)
        G = np.dot(rows.T, rows)
        if n[t] == 0.0 and sign > 0.0 and not anchor[t].any():
            start = near_least_squares(G, times_transposed(rows, target), size, x_bar)
            for i in range(len(start)):
                anchor[t, i] = start[i]
        residual = times(rows, anchor[t])
        for i in range(len(target)):
            residual[i] = target[i] - residual[i]
        squares = inner(residual, residual)
        gradient = times_transposed(rows, residual)
        merge(t, sign, size, x_bar, y_bar, G, gradient, squares,
              n, mean, y_mean, packed, anchor, g, q)  # fmt: skip


@kernel
def centre(rows, target, weights, size, centred):  # type: ignore[no-untyped-def]
    """Subtract the means (if centred) from rows and targets, then scale by the root of the weights.

    Both are changed in place; returns the means.
    """
    d = rows.shape[1]
    x_bar = np.zeros(d)
    y_bar = 0.0
    if centred:
        for i in range(rows.shape[0]):
            for j in range(d):
                x_bar[j] += weights[i] * rows[i, j]
            y_bar += weights[i] * target[i]
        x_bar /= size
        y_bar /= size
    for i in range(rows.shape[0]):
        root = np.sqrt(weights[i])
        for j in range(d):
            rows[i, j] = root * (rows[i, j] - x_bar[j])
        target[i] = root * (target[i] - y_bar)
    return x_bar, y_bar


@kernel
def near_least_squares(G, c, size, x_bar):  # type: ignore[no-untyped-def]
    """The solution of (G + ridge) a = c, with zeros for features that are constant in the task."""
    ridge = G.copy()
    for j in range(G.shape[0]):
        varies = G[j, j] > size * (CONSTANT * x_bar[j]) ** 2
        ridge[j, j] = (1.0 + ANCHOR_RIDGE) * G[j, j] if varies else np.inf
    return solve_definite(ridge, c)


@kernel
def solve_definite(A, c):  # type: ignore[no-untyped-def]
    """The solution of A x = c for a positive semidefinite A (d, d), by Cholesky.

    A direction whose pivot is only rounding error gets zero, by an infinite pivot. np.linalg.solve
    takes seconds to compile, and LAPACK's Cholesky fails on a singular matrix.
    """
    d = len(c)
    L, x = np.zeros((d, d)), c.copy()
    for i in range(d):
        for j in range(i + 1):
            row, other = L[i], L[j]
            value = A[i, j]
            for m in range(j):
                value -= row[m] * other[m]
            if j < i:
                row[j] = value / other[j]
            else:
                row[i] = np.sqrt(value) if value > PIVOT_TOLERANCE * A[i, i] else np.inf
    for i in range(d):
        total = 0.0
        for j in range(i):
            total += L[i, j] * x[j]
        x[i] = (x[i] - total) / L[i, i]
    for i in range(d - 1, -1, -1):
        x[i] /= L[i, i]
        for j in range(i):
            x[j] -= L[i, j] * x[i]
    return x


@kernel
def merge(t, sign, size, x_bar, y_bar, G, gradient, squares, n, mean, y_mean, packed, anchor, g, q):  # type: ignore[no-untyped-def]
    """Merge the statistics of a segment, centred at its own means, into task t.

    Two sets of statistics with one anchor a merge by (Chan, Golub and LeVeque)

        G = G_1 + G_2 + f dx dx',   g = g_1 + g_2 + f dx dr,   q = q_1 + q_2 + f dr^2

    with dx, dy the differences of the means, dr = dy - dx'a and f = n_1 n_2 / (n_1 + n_2).
    Subtraction solves the same equations for the rest: dx = (n / n_rest) (x_bar - mean).
    """
    d = G.shape[0]
    before = n[t]
    after = before + sign * size
    if after <= 1e-12 * before:
        after = 0.0
    other = before if sign > 0.0 else after
    factor = other * size / (other + size)
    dx, dy, dr = np.zeros(d), 0.0, 0.0
    if other > 0.0:
        scale = 1.0 if sign > 0.0 else before / after
        dy = scale * (y_bar - y_mean[t])
        for i in range(d):
            dx[i] = scale * (x_bar[i] - mean[t, i])
        dr = dy - inner(dx, anchor[t])
    position = 0
    for i in range(d):
        for j in range(i, d):
            packed[t, position] += sign * (G[i, j] + factor * dx[i] * dx[j])
            position += 1
        g[t, i] += sign * (gradient[i] + factor * dr * dx[i])
    q[t] = max(q[t] + sign * (squares + factor * dr * dr), 0.0)
    if before == 0.0:
        for i in range(d):
            mean[t, i] = x_bar[i]
        y_mean[t] = y_bar
    elif after > 0.0:
        # Adding moves the mean by (size / after) dx, subtracting by -(size / before) dx.
        share = size / after if sign > 0.0 else -size / before
        for i in range(d):
            mean[t, i] += share * dx[i]
        y_mean[t] += share * dy
    else:  # the task is empty: remove the rounding errors as well
        packed[t].fill(0.0)
        g[t].fill(0.0)
        q[t] = 0.0
    n[t] = after


@kernel
def transform_grams(packed, anchor, g, q, n, P, new_anchor, new_g, first, last):  # type: ignore[no-untyped-def]
    """Statistics of the features X P, with a new anchor; Grams and q are written in place.

    ``packed`` is flat, and Grams of d' <= d features move towards its front. The anchor is moved
    before the features are mapped, which may mix large and small ones.
    """
    d, reduced = P.shape
    old_size, size = d * (d + 1) // 2, reduced * (reduced + 1) // 2
    G = np.empty((d, d))
    for t in range(first, last):
        unpack(packed[t * old_size : (t + 1) * old_size], G)
        mapped = np.dot(P.T, np.dot(G, P))
        ridge = mapped.copy()
        for j in range(reduced):
            ridge[j, j] += CANONICAL_RIDGE * max(n[t], ANCHOR_RIDGE)
        c = times(G, anchor[t])
        for i in range(d):
            c[i] += g[t, i]
        solved = solve_definite(ridge, times_transposed(P, c))
        delta = times(P, solved)
        for i in range(d):
            delta[i] -= anchor[t, i]
        moved = times(G, delta)
        for i in range(d):
            moved[i] = g[t, i] - moved[i]
        q[t] = max(q[t] - inner(delta, g[t]) - inner(delta, moved), 0.0)
        mapped_g = times_transposed(P, moved)
        for j in range(reduced):
            new_anchor[t, j] = solved[j]
            new_g[t, j] = mapped_g[j]
        pack(mapped, packed[t * size : (t + 1) * size])
