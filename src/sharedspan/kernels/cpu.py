"""Compiled loops over tasks for the CPU.

A symmetric d x d Gram is stored *packed*: the rows of its upper triangle one after the other,
d (d + 1) / 2 numbers. Each is read once and used twice, so the pass moves half the bytes.

Every kernel handles the tasks ``first <= t < last`` and releases the interpreter lock.

Results must not depend on where arrays lie. A loop that both stores and sums is compiled twice,
vectorised and not, and the choice is made at run time: arrays that lie too close together take the
slow one, which sums in another order. So loops either store or sum; the one that must do both, in
the pass, works on scratch rows kept ``APART``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered (so that they vectorise), but NaN and infinity keep their meaning.
_REORDER = {"reassoc", "contract", "nsz"}

# Anchors solve (G + ridge) a = X'y: any reference near least squares will do, and this one exists
# for every G. From rows the ridge is a share of each diagonal entry, so units do not matter. In the
# canonical problem it is a larger share of n_t: a direction that hardly varies within one task,
# but does in others, would get an anchor so long that the loss loses its digits on the way to it.
ANCHOR_RIDGE = 1e-10
CANONICAL_RIDGE = 1e-6

APART = 64  # numbers between scratch rows, more than a vectorised step touches


def kernel(function: F) -> F:
    """Compile without the interpreter lock; keep the machine code on disk where that is allowed."""
    options: dict[str, Any] = {"nogil": True, "fastmath": _REORDER, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no writable place for the cache
        return numba.njit(**options)(function)


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
def gram_residuals(packed, anchor, g, q, response, weight, V, loss, first, last):  # type: ignore[no-untyped-def]
    """R_t = weight_t [G_t (v_t - r_t a_t) - r_t g_t], written over v_t; r is ``response``.

    The loss of task t is weight_t / 2 [r^2 q - 2 u'(r g) + u'G u] with u = v_t - r_t a_t.
    """
    d = V.shape[1]
    scratch = np.empty((3, d + APART))
    u, Gu = scratch[1, :d], scratch[2, :d]
    for t in range(first, last):
        r = response[t]
        for i in range(d):
            u[i] = V[t, i] - r * anchor[t, i]
            Gu[i] = 0.0
        start = 0
        for i in range(d):
            # Slices that start at zero: with offsets in the index this loop does not vectorise.
            row, u_right, Gu_right = packed[t, start + 1 : start + d - i], u[i + 1 :], Gu[i + 1 :]
            u_i = u[i]
            total = packed[t, start] * u_i
            for j in range(d - i - 1):
                total += row[j] * u_right[j]
                Gu_right[j] += row[j] * u_i
            Gu[i] += total
            start += d - i
        quadratic = r * r * q[t]
        for i in range(d):
            quadratic += u[i] * (Gu[i] - 2.0 * r * g[t, i])
        for i in range(d):
            V[t, i] = weight[t] * (Gu[i] - r * g[t, i])
        if quadratic < 0.0:  # rounding, where the fit is exact; NaN stays NaN
            quadratic = 0.0
        loss[t] = 0.5 * weight[t] * quadratic


@kernel
def row_residuals(X, y, w, starts, centred, response, weight, V, loss, first, last):  # type: ignore[no-untyped-def]
    """R_t = weight_t X_t' diag(w) (X_t v_t - r_t y_t - their mean if centred), written over v_t."""
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
            V[t, j] = weight[t] * R[j]
        loss[t] = 0.5 * weight[t] * squares


@kernel
def gram_normal_matrices(packed, weight, B, out, first, last):  # type: ignore[no-untyped-def]
    """out_t = weight_t B'G_t B, (k, k) for each task."""
    d = B.shape[0]
    G = np.empty((d, d))
    for t in range(first, last):
        unpack(packed[t], G)
        out[t] = weight[t] * np.dot(B.T, np.dot(G, B))


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
def accumulate(X, y, w, starts, ids, sign, centred, n, mean, y_mean, packed, anchor, g, q):  # type: ignore[no-untyped-def]
    """Add (sign = 1) or take away (sign = -1) segments of rows; X and y are overwritten.

    Segment s holds rows starts[s]..starts[s + 1] of task ids[s]. Within it sums are centred at
    its own means; two sets of sums with one anchor a then merge by

        G = G_1 + G_2 + f dx dx',   g = g_1 + g_2 + f dx dr,   q = q_1 + q_2 + f dr^2

    with dx, dy the differences of the means, dr = dy - dx'a and f = n_1 n_2 / (n_1 + n_2)
    (Chan, Golub and LeVeque). The first segment of a task sets its anchor.
    """
    d = X.shape[1]
    for s in range(ids.shape[0]):
        t = ids[s]
        rows = X[starts[s] : starts[s + 1]]
        target = y[starts[s] : starts[s + 1]]
        weights = w[starts[s] : starts[s + 1]]
        size = weights.sum()
        if size == 0.0:
            continue
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
        G = np.dot(rows.T, rows)

        if n[t] == 0.0 and sign > 0.0 and not anchor[t].any():
            ridge = G.copy()
            for j in range(d):
                ridge[j, j] = (1.0 + ANCHOR_RIDGE) * G[j, j] if G[j, j] > 0.0 else 1.0
            anchor[t] = np.linalg.solve(ridge, times_transposed(rows, target))
        residual = target - times(rows, anchor[t])
        gradient = times_transposed(rows, residual)
        squares = 0.0
        for i in range(residual.shape[0]):
            squares += residual[i] * residual[i]

        # Means and factor of the merge; taking away solves the same equations for what is left.
        before = n[t]
        after = before + sign * size
        if after <= 1e-12 * before:
            after = 0.0
        other = before if sign > 0.0 else after
        factor = other * size / (other + size)
        dr = 0.0
        dx = np.zeros(d)
        dy = 0.0
        if other > 0.0:
            scale = 1.0 if sign > 0.0 else before / after
            for j in range(d):
                dx[j] = scale * (x_bar[j] - mean[t, j])
            dy = scale * (y_bar - y_mean[t])
            dr = dy
            for j in range(d):
                dr -= dx[j] * anchor[t, j]
        position = 0
        for i in range(d):
            for j in range(i, d):
                packed[t, position] += sign * (G[i, j] + factor * dx[i] * dx[j])
                position += 1
            g[t, i] += sign * (gradient[i] + factor * dr * dx[i])
        q[t] = max(q[t] + sign * (squares + factor * dr * dr), 0.0)
        share = size / after if after > 0.0 else 0.0
        if before == 0.0:
            mean[t] = x_bar
            y_mean[t] = y_bar
        elif sign > 0.0:
            mean[t] += share * dx
            y_mean[t] += share * dy
        elif after > 0.0:
            # With dx = x_bar - mean_left: mean_left = mean - (size / before) dx.
            mean[t] -= size / before * dx
            y_mean[t] -= size / before * dy
        if after == 0.0:  # nothing is left: no rounding residue either
            packed[t] = 0.0
            g[t] = 0.0
            q[t] = 0.0
        n[t] = after


@kernel
def transform(packed, anchor, g, q, n, P, new_anchor, new_g, first, last):  # type: ignore[no-untyped-def]
    """Sums of the features X P, with a new anchor; Grams and q are written in place.

    ``packed`` is flat: Grams of d' <= d features move towards its front. The old sums move to the
    new anchor before they are mapped, while no large and small features are mixed yet.
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
        solved = np.linalg.solve(ridge, times_transposed(P, times(G, anchor[t]) + g[t]))
        delta = times(P, solved) - anchor[t]
        moved = g[t] - times(G, delta)
        q[t] = max(q[t] - np.sum(delta * (g[t] + moved)), 0.0)
        new_anchor[t] = solved
        new_g[t] = times_transposed(P, moved)
        pack(mapped, packed[t * size : (t + 1) * size])


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
