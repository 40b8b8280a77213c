"""The pass over packed Grams: residuals, gradients of the factors, least squares in a span.

Each task's Gram is multiplied by ``gram_product.gram_times``, which reads up to 15 numbers before
the Gram. So the first tasks of the array are copied behind zeros.
"""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel, part
from sharedspan.kernels.dense import solve_in_place
from sharedspan.kernels.gram_product import call_gram_times, gram_times, padded_size, scratch
from sharedspan.kernels.lanes import (
    add_product,
    broadcast,
    from_lane,
    load8,
    pointer,
    store8,
    store8_from,
    sum_lanes,
)

LEAD = 16  # zeros before the copies of the first tasks


@kernel
def head_of(d, first, last):  # type: ignore[no-untyped-def]
    """The first task from which enough numbers precede each task in memory."""
    return min(max(first, 1 if d >= 8 else LEAD), last)


@kernel
def with_lead(x, count):  # type: ignore[no-untyped-def]
    """The first ``count`` numbers of x, after ``LEAD`` zeros."""
    out = np.zeros(count + LEAD, dtype=x.dtype)
    for i in range(count):
        out[LEAD + i] = x[i]
    return out


@kernel
def gram_residuals(packed, anchor, g, q, response, weight, V, R, loss, first, last):  # type: ignore[no-untyped-def]
    """R_t = weight_t [G_t (v_t - r_t a_t) - r_t g_t], (T, d) like V; r is ``response``.

    The loss of task t is weight_t / 2 [r^2 q - 2 u'(r g) + u'G u] with u = v_t - r_t a_t.
    """
    d = V.shape[1]
    P, a, b = packed.reshape(-1), anchor.reshape(-1), g.reshape(-1)
    v, out = V.reshape(-1), R.reshape(-1)
    work = scratch(3, padded_size(d))
    middle = head_of(d, first, last)
    if first < middle:
        m = middle * d
        head = np.zeros(m + LEAD)
        triangles = with_lead(P, middle * (d * (d + 1) // 2))
        residuals_between(
            triangles, with_lead(a, m), with_lead(b, m), q, response, weight,
            with_lead(v, m), head, loss, work, d, LEAD, first, middle,
        )  # fmt: skip
        for i in range(first * d, m):
            out[i] = head[LEAD + i]
    residuals_between(P, a, b, q, response, weight, v, out, loss, work, d, 0, middle, last)


@kernel
def residuals_between(  # type: ignore[no-untyped-def]
    packed, anchor, g, q, response, weight, V, R, loss, work, d, lead, first, last
):
    """``gram_residuals`` for flat arrays whose tasks begin after ``lead`` numbers."""
    size = padded_size(d)
    pad, triangle = size - d, d * (d + 1) // 2
    P, a, c, v, out = pointer(packed), pointer(anchor), pointer(g), pointer(V), pointer(R)
    u, y, sums = pointer(work), pointer(work[size:]), pointer(work[2 * size :])
    zero = broadcast(0.0)
    for t in range(first, last):
        at = lead + t * d - pad
        r, w = broadcast(-response[t]), broadcast(weight[t])
        b = 0
        while b < size:
            u_b = add_product(r, load8(a, at + b), load8(v, at + b))
            store8(u, b, from_lane(u_b, pad - b) if b < pad else u_b)
            b += 8
        gram_times(P, lead + t * triangle, d, u, 0, y, 0, sums)
        squares = zero
        b = 0
        while b < size:
            g_b = load8(c, at + b)
            if b < pad:
                g_b = from_lane(g_b, pad - b)
            e = add_product(r, g_b, load8(y, b))
            squares = add_product(load8(u, b), add_product(r, g_b, e), squares)
            store8_from(out, at + b, add_product(w, e, zero), pad - b)
            b += 8
        loss[t] = half_weighted(weight[t], sum_lanes(squares) + response[t] ** 2 * q[t])


@part
def half_weighted(weight, squares):  # type: ignore[no-untyped-def]
    """Half of weight times squares; negative squares are rounding errors, and NaN stays NaN."""
    return 0.0 if squares < 0.0 else 0.5 * weight * squares


@kernel
def gram_gradients(  # type: ignore[no-untyped-def]
    packed, anchor, g, q, response, weight, B, W, solve, out_W, grad_B, loss, bounds, first, last
):
    """R W' and the loss, summed over blocks of tasks, and B'R, at V = BW; or at the best W.

    Parameters
    ----------
    B : ndarray of shape (k, d)
        The transpose of the factor.
    W : ndarray of shape (k, T)
    solve : bool
        Whether to move to the least squares W of each task first, by one Newton step from the
        given W, which is exact.
    out_W : ndarray of shape (k, T)
        Output: B'R; with ``solve``, for which B'R is zero, the best W.
    grad_B : ndarray of shape (blocks, k, d)
        Output, transposed like B. Sums by block make the results independent of the number of
        threads.
    loss : ndarray of shape (blocks,)
    bounds : ndarray of shape (blocks + 1,)
        Block i holds the tasks bounds[i] <= t < bounds[i + 1].
    first, last : int
        Blocks first <= i < last are computed.
    """
    k, d = B.shape
    P, a, b = packed.reshape(-1), anchor.reshape(-1), g.reshape(-1)
    size = padded_size(d)
    rows, sums, work = scratch(k, size), scratch(k, size), scratch(k + 3, size)
    for c in range(k):
        for i in range(d):
            rows[c * size + size - d + i] = B[c, i]
    for block in range(first, last):
        begin, end = bounds[block], bounds[block + 1]
        middle = head_of(d, begin, end)
        sums.fill(0.0)
        loss[block] = 0.0
        if begin < middle:
            m = middle * d
            triangles = with_lead(P, middle * (d * (d + 1) // 2))
            loss[block] = gradients_between(
                triangles, with_lead(a, m), with_lead(b, m), q, response, weight,
                rows, W, solve, out_W, sums, work, d, LEAD, begin, middle,
            )  # fmt: skip
        loss[block] += gradients_between(
            P, a, b, q, response, weight, rows, W, solve, out_W, sums, work, d, 0, middle, end
        )
        for c in range(k):
            for i in range(d):
                grad_B[block, c, i] = sums[c * size + size - d + i]


@kernel
def gradients_between(  # type: ignore[no-untyped-def]
    packed, anchor, g, q, response, weight, factor, W, solve, out_W, sums, work, d, lead, first,
    last,
):  # fmt: skip
    """Add R W' to ``sums`` and return the loss; ``sums`` and ``factor`` hold scratch rows."""
    k = W.shape[0]
    size = padded_size(d)
    pad, triangle = size - d, d * (d + 1) // 2
    P, a, e = pointer(packed), pointer(anchor), pointer(g)
    rows, out = pointer(factor), pointer(sums)
    u, y = pointer(work), pointer(work[size:])
    inner, Z = pointer(work[2 * size :]), pointer(work[3 * size :])
    w, c, A, F = np.empty(k), np.empty(k), np.empty((k, k)), np.empty((k, k))
    zero = broadcast(0.0)
    losses = 0.0
    for t in range(first, last):
        at, start = lead + t * d - pad, lead + t * triangle
        r = broadcast(-response[t])
        for j in range(k):
            w[j] = W[j, t]
        b = 0
        while b < size:  # u = B w - r a
            a_b = load8(a, at + b)
            u_b = add_product(r, from_lane(a_b, pad - b) if b < pad else a_b, zero)
            for j in range(k):
                u_b = add_product(broadcast(w[j]), load8(rows, j * size + b), u_b)
            store8(u, b, u_b)
            b += 8
        gram_times(P, start, d, u, 0, y, 0, inner)
        squares = zero
        b = 0
        while b < size:  # e = G u - r g, over y
            g_b = load8(e, at + b)
            g_b = from_lane(g_b, pad - b) if b < pad else g_b
            y_b = add_product(r, g_b, load8(y, b))
            squares = add_product(load8(u, b), add_product(r, g_b, y_b), squares)
            store8(y, b, y_b)
            b += 8
        if solve:  # B'GB c = B'e, then w - c, and with it u - B c and e - G B c
            for j in range(k):
                call_gram_times(P, start, d, rows, j * size, Z, j * size, inner)
                c[j] = product(rows, j * size, y, 0, size)
                for i in range(j + 1):
                    A[j, i] = A[i, j] = product(rows, i * size, Z, j * size, size)
            solve_in_place(A, F, c)
            for j in range(k):
                w[j] -= c[j]
                add_multiple(-c[j], rows, j * size, u, 0, size)
                add_multiple(-c[j], Z, j * size, y, 0, size)
            squares = zero
            b = 0
            while b < size:
                g_b = load8(e, at + b)
                g_b = from_lane(g_b, pad - b) if b < pad else g_b
                squares = add_product(load8(u, b), add_product(r, g_b, load8(y, b)), squares)
                b += 8
        for j in range(k):
            factor_j, dot, b = broadcast(weight[t] * w[j]), zero, 0
            while b < size:
                y_b, row = load8(y, b), j * size + b
                store8(out, row, add_product(factor_j, y_b, load8(out, row)))
                dot = add_product(y_b, load8(rows, row), dot)
                b += 8
            out_W[j, t] = w[j] if solve else weight[t] * sum_lanes(dot)
        losses += half_weighted(weight[t], sum_lanes(squares) + response[t] ** 2 * q[t])
    return losses


@part
def product(x, from_x, y, from_y, size):  # type: ignore[no-untyped-def]
    """The inner product of two scratch rows."""
    sum_ = broadcast(0.0)
    b = 0
    while b < size:
        sum_ = add_product(load8(x, from_x + b), load8(y, from_y + b), sum_)
        b += 8
    return sum_lanes(sum_)


@part
def add_multiple(factor, x, from_x, y, from_y, size):  # type: ignore[no-untyped-def]
    """Add factor x to y, for scratch rows."""
    f = broadcast(factor)
    b = 0
    while b < size:
        store8(y, from_y + b, add_product(f, load8(x, from_x + b), load8(y, from_y + b)))
        b += 8


@kernel
def gram_normal_matrices(packed, weight, B, out, first, last):  # type: ignore[no-untyped-def]
    """out_t = weight_t B'G_t B, (k, k) for each task; B is (k, d), the transpose of the factor."""
    k, d = B.shape
    P = packed.reshape(-1)
    size = padded_size(d)
    rows, work = scratch(k, size), scratch(2, size)
    for j in range(k):
        for i in range(d):
            rows[j * size + size - d + i] = B[j, i]
    middle = head_of(d, first, last)
    if first < middle:
        head = with_lead(P, middle * (d * (d + 1) // 2))
        normal_between(head, weight, rows, out, work, d, LEAD, first, middle)
    normal_between(P, weight, rows, out, work, d, 0, middle, last)


@kernel
def normal_between(packed, weight, factor, out, work, d, lead, first, last):  # type: ignore[no-untyped-def]
    """``gram_normal_matrices`` for flat Grams that begin after ``lead`` numbers."""
    k, size = out.shape[1], padded_size(d)
    P, rows, Z, inner = pointer(packed), pointer(factor), pointer(work), pointer(work[size:])
    for t in range(first, last):
        for j in range(k):
            call_gram_times(P, lead + t * (d * (d + 1) // 2), d, rows, j * size, Z, 0, inner)
            for i in range(j + 1):
                out[t, i, j] = out[t, j, i] = weight[t] * product(rows, i * size, Z, 0, size)
