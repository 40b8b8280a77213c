"""Sums per task straight from rows, in one pass and in vector registers.

Rows are read once from where they lie, in any order, shifted and scaled into a scratch buffer that
stays in the cache. Everything that a task needs is computed there: means, centred rows, Gram, an
anchor near least squares, and the gradient and squares at that anchor. The numbers of a row fill
whole lanes, with zeros after them.
"""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel, part, subroutine
from sharedspan.kernels.cpu import inner
from sharedspan.kernels.gram_product import scratch
from sharedspan.kernels.lanes import (
    add_product,
    broadcast,
    load8,
    multiply,
    pointer,
    prefetch,
    store8,
    subtract_product,
    sum_lanes,
)
from sharedspan.kernels.matrices import combine_rows, products, solve_ridge

# An anchor solves (G + ridge) a = X'y: any reference near least squares will do, and this one
# exists for every G. The ridge is a share of each diagonal entry, so units do not matter.
ANCHOR_RIDGE = 1e-10
ROWS_AHEAD = 48  # prefetched where rows lie scattered: each is a cache miss or two
CONSTANT = 1e-12  # deviation over level of a feature that varies by the rounding of its mean alone


@kernel
def accumulate(  # type: ignore[no-untyped-def]
    X, row_stride, column_stride, y, weight, order, starts, ids, limit, shift, scale, y_scale,
    sign, fresh, centred, n, mean, y_mean, packed, anchor, g, q, first, last,
):  # fmt: skip
    """Add (sign = 1) or subtract (sign = -1) the segments first <= s < last of rows.

    Parameters
    ----------
    X : ndarray, flat, float32 or float64
        Number j of row i is ``X[i * row_stride + j * column_stride]``.
    y, weight : ndarray of shape (rows,)
        An empty ``weight`` means one for every row.
    order : ndarray of shape (rows,)
        Rows segment by segment; empty if they are in that order already.
    starts : ndarray of shape (segments + 1,)
    ids : ndarray of shape (segments,)
        The task of each segment; empty if segment t is task t.
    limit : int
        Rows of a segment that are taken together; more are merged.
    shift, scale : ndarray of shape (d,)
        Features are used as x scale - shift, responses as y y_scale.
    sign : float
    fresh : bool
        Whether the outputs are not initialised, apart from n, which is zero.
    centred : bool
        Whether rows are centred at the means of their segment.
    n, mean, y_mean, packed, anchor, g, q
        The statistics of the tasks. The first rows of a task set its anchor if it is zero.
    """
    d = mean.shape[1]
    size = (d + 7) // 8 * 8
    most = 1
    for s in range(first, last):
        most = max(most, min(starts[s + 1] - starts[s], limit))
    rows, target, roots = scratch(most, size), np.empty(most), np.empty(most)
    x_bar, cross, solved = scratch(1, size), scratch(1, size), scratch(1, size)
    G, factor = scratch(size, size).reshape(size, size), scratch(size + 1, size)
    ridge = np.empty(d)
    for s in range(first, last):
        t = ids[s] if len(ids) else s
        lo = starts[s]
        while lo < starts[s + 1]:
            hi = min(lo + limit, starts[s + 1])
            for i in range(hi - lo):
                roots[i] = weight[order[lo + i] if len(order) else lo + i] if len(weight) else 1.0
            total = 0.0
            for i in range(hi - lo):
                total += roots[i]
            if total == 0.0:
                lo = hi
                continue
            read_rows(X, row_stride, column_stride, y, order, lo, hi, shift, scale, y_scale,
                      rows, target, d, size)  # fmt: skip
            y_bar = centre_and_weight(
                rows, target, roots, hi - lo, total, len(weight) > 0, centred, x_bar, size
            )
            products(rows, size, rows, size, hi - lo, True, G)
            unseen = n[t] == 0.0 and fresh
            anchored = False
            for j in range(d):
                anchored |= not fresh and anchor[t, j] != 0.0
            if unseen or (n[t] == 0.0 and sign > 0.0 and not anchored):
                combine_rows(rows, target, hi - lo, size, cross)
                for j in range(d):
                    varies = G[j, j] > total * (CONSTANT * x_bar[j]) ** 2
                    ridge[j] = ANCHOR_RIDGE * G[j, j] if varies else np.inf
                solve_ridge(G, ridge, cross, d, size, factor, solved)
                for j in range(d):
                    anchor[t, j] = solved[j]
            else:
                for j in range(d):
                    solved[j] = anchor[t, j]
            squares = residual_sums(rows, target, hi - lo, solved, cross, size)
            if unseen:
                position = 0
                for i in range(d):
                    for j in range(i, d):
                        packed[t, position + j - i] = G[i, j]
                    position += d - i
                    mean[t, i] = x_bar[i]
                    g[t, i] = cross[i]
                n[t], y_mean[t], q[t] = total, y_bar, squares
            else:
                merge(t, sign, total, x_bar, y_bar, G[:d], cross, squares,
                      n, mean, y_mean, packed, anchor, g, q)  # fmt: skip
            lo = hi


@part
def read_rows(  # type: ignore[no-untyped-def]
    X, row_stride, column_stride, y, order, lo, hi, shift, scale, y_scale, rows, target, d, size
):  # fmt: skip
    """Copy the rows at positions lo..hi - 1 of the order to the buffers, in the given units."""
    source, out, origin, unit = pointer(X), pointer(rows), pointer(shift), pointer(scale)
    responses, last = pointer(y), len(order) - 1
    lanes = column_stride == 1 and d >= 8
    one = broadcast(1.0)
    for i in range(hi - lo):
        row = order[lo + i] if len(order) else lo + i
        at, to = row * row_stride, i * size
        if last >= 0:
            ahead = order[min(lo + i + ROWS_AHEAD, last)]
            prefetch(responses, ahead)
            for b in range(0, d + 7, 8):
                prefetch(source, ahead * row_stride + min(b, d - 1) * column_stride)
        if lanes:
            b = 0
            while b < d:
                b = min(b, d - 8)  # the last lanes may overlap those before
                x = multiply(load8(source, at + b), load8(unit, b))
                store8(out, to + b, subtract_product(one, load8(origin, b), x))
                b += 8
        else:
            for j in range(d):
                rows[to + j] = X[at + j * column_stride] * scale[j] - shift[j]
        target[i] = y[row] * y_scale


@part
def centre_and_weight(rows, target, roots, count, total, weighted, centred, x_bar, size):  # type: ignore[no-untyped-def]
    """Subtract the means (if centred), then scale by the roots of the weights; returns y's mean.

    ``roots`` holds the weights, and afterwards their roots.
    """
    x, bar = pointer(rows), pointer(x_bar)
    y_bar = 0.0
    if centred:
        for i in range(count):
            y_bar += roots[i] * target[i]
        y_bar /= total
    if weighted:
        for i in range(count):
            roots[i] = np.sqrt(roots[i])
    for i in range(count):
        target[i] = roots[i] * (target[i] - y_bar)
    inverse = broadcast(1.0 / total if centred else 0.0)
    b = 0
    while b < size:
        mean = broadcast(0.0)
        if centred:
            for i in range(count):
                w = broadcast(roots[i] * roots[i])
                mean = add_product(w, load8(x, i * size + b), mean)
        mean = multiply(inverse, mean)
        store8(bar, b, mean)
        for i in range(count):
            moved = subtract_product(broadcast(1.0), mean, load8(x, i * size + b))
            store8(x, i * size + b, multiply(broadcast(roots[i]), moved))
        b += 8
    return y_bar


@part
def residual_sums(rows, target, count, coef, gradient, size):  # type: ignore[no-untyped-def]
    """X'(y - Xa) to ``gradient`` (size,), and |y - Xa|^2."""
    x, a, out = pointer(rows), pointer(coef), pointer(gradient)
    zero = broadcast(0.0)
    b = 0
    while b < size:
        store8(out, b, zero)
        b += 8
    squares = 0.0
    for i in range(count):
        along = zero
        b = 0
        while b < size:
            along = add_product(load8(x, i * size + b), load8(a, b), along)
            b += 8
        residual = target[i] - sum_lanes(along)
        squares += residual * residual
        r = broadcast(residual)
        b = 0
        while b < size:
            store8(out, b, add_product(r, load8(x, i * size + b), load8(out, b)))
            b += 8
    return squares


@subroutine
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
