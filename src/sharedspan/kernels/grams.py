"""The pass over packed Grams: residuals, gradients of the factors, least squares in a span.

Grams are read in the order in which they lie, once: at sizes beyond the cache only a plain stream
runs at the speed of memory. A task's vectors live in scratch rows of whole lanes, after ``pad``
zeros, so that a column has the same lane in every row of the triangle. A row begins in the middle
of eight lanes; what lies before it in memory, numbers of another row, is read and set to zero. The
first tasks, which have nothing before them, are copied to a place where they have.
"""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel, part
from sharedspan.kernels.dense import solve_in_place
from sharedspan.kernels.lanes import (
    add_product,
    add_to_lane,
    from_lane,
    load,
    number,
    pointer,
    prefetch,
    put,
    spread,
    store,
    store_from,
    total,
)

PAIRED = 48  # up to this many features two rows of a Gram are taken at once
AHEAD = 1024  # numbers; the processor's own guesses fail where rows are short
LEAD = 16  # zeros before the copies of the first tasks


@part
def padded_size(d):  # type: ignore[no-untyped-def]
    """Length of a scratch row: whole lanes, and at least two of them."""
    return max((d + 7) // 8 * 8, 16)


@kernel
def scratch(rows, size):  # type: ignore[no-untyped-def]
    """Zeros (rows * size,) at a boundary of cache lines: lanes that straddle it are slow."""
    buffer = np.zeros(rows * size + 8)
    begin = -(buffer.ctypes.data // 8) % 8
    return buffer[begin : begin + rows * size]


@part
def gram_times(packed, start, d, u, from_u, y, from_y, sums):  # type: ignore[no-untyped-def]
    """The product y = G u, for the Gram at ``packed[start]``; u and y are scratch rows.

    They begin at ``from_u`` and ``from_y``. All arrays are pointers.
    """
    if padded_size(d) == 16:
        times_in_registers(packed, start, d, u, from_u, y, from_y)
    else:
        times_in_scratch(packed, start, d, u, from_u, y, from_y, sums)


@part
def times_in_registers(packed, start, d, u, from_u, y, from_y):  # type: ignore[no-untyped-def]
    """``gram_times`` up to 16 features; row sums are kept apart, so that no chain gets long."""
    zero, one = spread(0.0), spread(1.0)
    u_0, u_1 = load(u, from_u), load(u, from_u + 8)
    y_0, y_1, sums_0, sums_1 = zero, zero, zero, zero
    i = 16 - d
    while i < 8:
        x_0, x_1 = load(packed, start - i), load(packed, start - i + 8)
        u_i = spread(number(u, from_u + i))
        row = add_product(x_1, u_1, add_product(from_lane(x_0, i), u_0, zero))
        y_0 = add_product(from_lane(x_0, i + 1), u_i, y_0)
        y_1 = add_product(x_1, u_i, y_1)
        sums_0 = add_to_lane(sums_0, total(row), i)
        prefetch(packed, start + AHEAD)
        prefetch(packed, start + AHEAD + 8)
        start += 16 - i
        i += 1
    while i < 16:
        x_1, u_i = load(packed, start - i + 8), spread(number(u, from_u + i))
        row = add_product(from_lane(x_1, i - 8), u_1, zero)
        y_1 = add_product(from_lane(x_1, i - 7), u_i, y_1)
        sums_1 = add_to_lane(sums_1, total(row), i - 8)
        prefetch(packed, start + AHEAD)
        start += 16 - i
        i += 1
    store(y, from_y, add_product(one, sums_0, y_0))
    store(y, from_y + 8, add_product(one, sums_1, y_1))


@part
def times_in_scratch(packed, start, d, u, from_u, y, from_y, sums):  # type: ignore[no-untyped-def]
    """``gram_times`` above 16 features, with y and the row sums in scratch rows."""
    size = padded_size(d)
    zero, one = spread(0.0), spread(1.0)
    b = 0
    while b < size:
        store(y, from_y + b, zero)
        b += 8
    # A plain stream is what memory likes best. Short rows go in pairs that begin in the same lanes:
    # y is moved half as often, and what a row costs besides is shared.
    i = size - d
    single = i + (i & 1) if d <= PAIRED else size
    while i < single:
        lane = i & 7
        b, p = i - lane, start - lane
        x, u_i = load(packed, p), spread(number(u, from_u + i))
        row = add_product(from_lane(x, lane), load(u, from_u + b), zero)
        store(y, from_y + b, add_product(from_lane(x, lane + 1), u_i, load(y, from_y + b)))
        b, p = b + 8, p + 8
        while b < size:
            x = load(packed, p)
            row = add_product(x, load(u, from_u + b), row)
            store(y, from_y + b, add_product(x, u_i, load(y, from_y + b)))
            b, p = b + 8, p + 8
        put(sums, i, total(row))
        start += size - i
        i += 1
    while i < size:
        lane = i & 7
        b, p, p_1 = i - lane, start - lane, start + size - i - lane - 1
        x, x_1, u_b = load(packed, p), load(packed, p_1), load(u, from_u + b)
        u_i, u_1 = spread(number(u, from_u + i)), spread(number(u, from_u + i + 1))
        row = add_product(from_lane(x, lane), u_b, zero)
        row_1 = add_product(from_lane(x_1, lane + 1), u_b, zero)
        y_b = add_product(from_lane(x, lane + 1), u_i, load(y, from_y + b))
        store(y, from_y + b, add_product(from_lane(x_1, lane + 2), u_1, y_b))
        ahead = start + AHEAD
        prefetch(packed, ahead)
        prefetch(packed, ahead + 8)
        b, p, p_1 = b + 8, p + 8, p_1 + 8
        while b < size:
            x, x_1, u_b = load(packed, p), load(packed, p_1), load(u, from_u + b)
            row = add_product(x, u_b, row)
            row_1 = add_product(x_1, u_b, row_1)
            y_b = add_product(x, u_i, load(y, from_y + b))
            store(y, from_y + b, add_product(x_1, u_1, y_b))
            ahead += 16
            prefetch(packed, ahead)
            prefetch(packed, ahead + 8)
            b, p, p_1 = b + 8, p + 8, p_1 + 8
        put(sums, i, total(row))
        put(sums, i + 1, total(row_1))
        start += 2 * (size - i) - 1
        i += 2
    b = 0
    while b < size:
        store(y, from_y + b, add_product(one, load(sums, b), load(y, from_y + b)))
        b += 8


@kernel
def call_gram_times(packed, start, d, u, from_u, y, from_y, sums):  # type: ignore[no-untyped-def]
    """``gram_times`` by a call, where that does not matter: shorter to compile."""
    gram_times(packed, start, d, u, from_u, y, from_y, sums)


@kernel
def head_of(d, first, last):  # type: ignore[no-untyped-def]
    """The task up to which there may be fewer numbers before a task than zeros in a row."""
    return min(max(first, 1 if d >= 8 else LEAD), last)


@kernel
def with_lead(x, count):  # type: ignore[no-untyped-def]
    """The first ``count`` numbers of x, with zeros before them."""
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
    zero = spread(0.0)
    for t in range(first, last):
        at = lead + t * d - pad
        r, w = spread(-response[t]), spread(weight[t])
        b = 0
        while b < size:
            u_b = add_product(r, load(a, at + b), load(v, at + b))
            store(u, b, from_lane(u_b, pad - b) if b < pad else u_b)
            b += 8
        gram_times(P, lead + t * triangle, d, u, 0, y, 0, sums)
        squares = zero
        b = 0
        while b < size:
            g_b = load(c, at + b)
            if b < pad:
                g_b = from_lane(g_b, pad - b)
            e = add_product(r, g_b, load(y, b))
            squares = add_product(load(u, b), add_product(r, g_b, e), squares)
            store_from(out, at + b, add_product(w, e, zero), pad - b)
            b += 8
        loss[t] = half_weighted(weight[t], total(squares) + response[t] ** 2 * q[t])


@part
def half_weighted(weight, squares):  # type: ignore[no-untyped-def]
    """A loss is not negative but for rounding, where the fit is exact; NaN stays NaN."""
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
        Whether to move to the least squares W of each task first: one Newton step from the given W,
        on a k x k system, is exact.
    out_W : ndarray of shape (k, T)
        Output: B'R, or with ``solve``, where that is zero, the W found.
    grad_B : ndarray of shape (blocks, k, d)
        Output, transposed like B. Sums by block, whatever thread does it, make results independent
        of the number of threads.
    loss : ndarray of shape (blocks,)
    bounds : ndarray of shape (blocks + 1,)
        Block i holds the tasks bounds[i] <= t < bounds[i + 1].
    first, last : int
        Blocks to do.
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
    packed,
    anchor,
    g,
    q,
    response,
    weight,
    factor,
    W,
    solve,
    out_W,
    sums,
    work,
    d,
    lead,
    first,
    last,
):
    """Add R W' to ``sums``, scratch rows like those of B in ``factor``; returns the loss."""
    k = W.shape[0]
    size = padded_size(d)
    pad, triangle = size - d, d * (d + 1) // 2
    P, a, e, rows, out = (
        pointer(packed),
        pointer(anchor),
        pointer(g),
        pointer(factor),
        pointer(sums),
    )
    u, y = pointer(work), pointer(work[size:])
    inner, Z = pointer(work[2 * size :]), pointer(work[3 * size :])
    w, c, A, F = np.empty(k), np.empty(k), np.empty((k, k)), np.empty((k, k))
    zero = spread(0.0)
    losses = 0.0
    for t in range(first, last):
        at, start = lead + t * d - pad, lead + t * triangle
        r = spread(-response[t])
        for j in range(k):
            w[j] = W[j, t]
        b = 0
        while b < size:  # u = B w - r a
            a_b = load(a, at + b)
            u_b = add_product(r, from_lane(a_b, pad - b) if b < pad else a_b, zero)
            for j in range(k):
                u_b = add_product(spread(w[j]), load(rows, j * size + b), u_b)
            store(u, b, u_b)
            b += 8
        gram_times(P, start, d, u, 0, y, 0, inner)
        squares = zero
        b = 0
        while b < size:  # e = G u - r g, over y
            g_b = load(e, at + b)
            g_b = from_lane(g_b, pad - b) if b < pad else g_b
            y_b = add_product(r, g_b, load(y, b))
            squares = add_product(load(u, b), add_product(r, g_b, y_b), squares)
            store(y, b, y_b)
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
                g_b = load(e, at + b)
                g_b = from_lane(g_b, pad - b) if b < pad else g_b
                squares = add_product(load(u, b), add_product(r, g_b, load(y, b)), squares)
                b += 8
        for j in range(k):
            factor_j, dot, b = spread(weight[t] * w[j]), zero, 0
            while b < size:
                y_b, row = load(y, b), j * size + b
                store(out, row, add_product(factor_j, y_b, load(out, row)))
                dot = add_product(y_b, load(rows, row), dot)
                b += 8
            out_W[j, t] = w[j] if solve else weight[t] * total(dot)
        losses += half_weighted(weight[t], total(squares) + response[t] ** 2 * q[t])
    return losses


@part
def product(x, from_x, y, from_y, size):  # type: ignore[no-untyped-def]
    """The inner product of two scratch rows."""
    sum_ = spread(0.0)
    b = 0
    while b < size:
        sum_ = add_product(load(x, from_x + b), load(y, from_y + b), sum_)
        b += 8
    return total(sum_)


@part
def add_multiple(factor, x, from_x, y, from_y, size):  # type: ignore[no-untyped-def]
    """Add factor x to y, for scratch rows."""
    f = spread(factor)
    b = 0
    while b < size:
        store(y, from_y + b, add_product(f, load(x, from_x + b), load(y, from_y + b)))
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
