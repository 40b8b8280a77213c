"""The pass over packed Grams: residuals, gradients of the factors, least squares in a span.

Each task's Gram is multiplied by ``gram_product.gram_times``, which reads up to 15 numbers before
the Gram. So the first tasks of the array are copied behind zeros.
"""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel, part, subroutine
from sharedspan.kernels.dense import solve_in_place
from sharedspan.kernels.gram_product import call_gram_times, gram_times, padded_size, scratch
from sharedspan.kernels.lanes import (
    add_product,
    broadcast,
    from_lane,
    keep,
    load1,
    load8,
    pointer,
    shifted,
    store1,
    store8,
    store8_from,
    sum_lanes,
)

LEAD = 16  # zeros before the copies of the first tasks


@part
def tasks_to_copy(d, first, last):  # type: ignore[no-untyped-def]
    """How many of the first tasks have too few numbers before them, if any of these is wanted."""
    few = 1 if d >= 8 else LEAD
    return min(few, last) if first < few else 0


@subroutine
def with_lead(x, count):  # type: ignore[no-untyped-def]
    """A copy of the first ``count`` numbers of x, which ``LEAD`` zeros precede in memory."""
    out = np.zeros(count + LEAD, dtype=x.dtype)
    for i in range(count):
        out[LEAD + i] = x[i]
    return out[LEAD:]


@kernel
def gram_residuals(packed, anchor, g, q, response, weight, V, R, loss, first, last):  # type: ignore[no-untyped-def]
    """R_t = weight_t [G_t (v_t - r_t a_t) - r_t g_t], (T, d) like V; r is ``response``.

    The loss of task t is weight_t / 2 [r^2 q - 2 u'(r g) + u'G u] with u = v_t - r_t a_t.
    """
    d = V.shape[1]
    size = padded_size(d)
    pad, triangle = size - d, d * (d + 1) // 2
    copies = tasks_to_copy(d, first, last)
    flat_P, flat_a = packed.reshape(-1), anchor.reshape(-1)
    flat_g, flat_V = g.reshape(-1), V.reshape(-1)
    head_P, head_a = with_lead(flat_P, copies * triangle), with_lead(flat_a, copies * d)
    head_g, head_V = with_lead(flat_g, copies * d), with_lead(flat_V, copies * d)
    work = scratch(3, size)
    u, y, sums = pointer(work), pointer(work[size:]), pointer(work[2 * size :])
    out = pointer(R.reshape(-1))
    zero = broadcast(0.0)
    for copied in (True, False):
        if copied:
            P, a, c, v = pointer(head_P), pointer(head_a), pointer(head_g), pointer(head_V)
            begin, end = first, max(first, copies)
        else:
            P, a, c, v = pointer(flat_P), pointer(flat_a), pointer(flat_g), pointer(flat_V)
            begin, end = max(first, copies), last
        for t in range(begin, end):
            at = t * d - pad
            r, w = broadcast(-response[t]), broadcast(weight[t])
            b = 0
            while b < size:
                u_b = add_product(r, load8(a, at + b), load8(v, at + b))
                store8(u, b, from_lane(u_b, pad - b) if b < pad else u_b)
                b += 8
            gram_times(P, t * triangle, d, u, y, sums)
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
    keep((work, head_P, head_a, head_g, head_V))


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
    size = padded_size(d)
    pad, triangle = size - d, d * (d + 1) // 2
    copies = tasks_to_copy(d, bounds[first], bounds[last])
    flat_P, flat_a, flat_g = packed.reshape(-1), anchor.reshape(-1), g.reshape(-1)
    head_P, head_a = with_lead(flat_P, copies * triangle), with_lead(flat_a, copies * d)
    head_g = with_lead(flat_g, copies * d)
    factor, sums, work = scratch(k, size), scratch(k, size), scratch(k + 3, size)
    rows, out, u, y = pointer(factor), pointer(sums), pointer(work), pointer(work[size:])
    inner, Z = pointer(work[2 * size :]), pointer(work[3 * size :])
    w, c, A, F = np.empty(k), np.empty(k), np.empty((k, k)), np.empty((k, k))
    from_W, to_W, T = pointer(W), pointer(out_W), W.shape[1]
    zero = broadcast(0.0)
    for j in range(k):
        for i in range(d):
            factor[j * size + pad + i] = B[j, i]
    for block in range(first, last):
        sums.fill(0.0)
        losses = 0.0
        middle = min(max(copies, bounds[block]), bounds[block + 1])
        for copied in (True, False):
            if copied:
                P, a, e = pointer(head_P), pointer(head_a), pointer(head_g)
                begin, end = bounds[block], middle
            else:
                P, a, e = pointer(flat_P), pointer(flat_a), pointer(flat_g)
                begin, end = middle, bounds[block + 1]
            for t in range(begin, end):
                at, start = t * d - pad, t * triangle
                r = broadcast(-response[t])
                for j in range(k):
                    w[j] = load1(from_W, j * T + t)
                b = 0
                while b < size:  # u = B w - r a
                    a_b = load8(a, at + b)
                    u_b = add_product(r, from_lane(a_b, pad - b) if b < pad else a_b, zero)
                    for j in range(k):
                        u_b = add_product(broadcast(w[j]), load8(rows, j * size + b), u_b)
                    store8(u, b, u_b)
                    b += 8
                gram_times(P, start, d, u, y, inner)
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
                        B_j, Z_j = shifted(rows, j * size), shifted(Z, j * size)
                        call_gram_times(P, start, d, B_j, Z_j, inner)
                        c[j] = product(B_j, y, size)
                        for i in range(j + 1):
                            A[j, i] = A[i, j] = product(shifted(rows, i * size), Z_j, size)
                    solve_in_place(A, F, c)
                    for j in range(k):
                        w[j] -= c[j]
                        add_multiple(-c[j], shifted(rows, j * size), u, size)
                        add_multiple(-c[j], shifted(Z, j * size), y, size)
                    squares = zero
                    b = 0
                    while b < size:
                        g_b = load8(e, at + b)
                        g_b = from_lane(g_b, pad - b) if b < pad else g_b
                        squares = add_product(
                            load8(u, b), add_product(r, g_b, load8(y, b)), squares
                        )
                        b += 8
                for j in range(k):
                    factor_j, dot, b = broadcast(weight[t] * w[j]), zero, 0
                    while b < size:
                        y_b, row = load8(y, b), j * size + b
                        store8(out, row, add_product(factor_j, y_b, load8(out, row)))
                        dot = add_product(y_b, load8(rows, row), dot)
                        b += 8
                    store1(to_W, j * T + t, w[j] if solve else weight[t] * sum_lanes(dot))
                losses += half_weighted(weight[t], sum_lanes(squares) + response[t] ** 2 * q[t])
        loss[block] = losses
        for j in range(k):
            for i in range(d):
                grad_B[block, j, i] = sums[j * size + pad + i]
    keep((factor, sums, work, head_P, head_a, head_g))


@part
def product(x, y, size):  # type: ignore[no-untyped-def]
    """The inner product of two scratch rows."""
    sum_ = broadcast(0.0)
    b = 0
    while b < size:
        sum_ = add_product(load8(x, b), load8(y, b), sum_)
        b += 8
    return sum_lanes(sum_)


@part
def add_multiple(factor, x, y, size):  # type: ignore[no-untyped-def]
    """Add factor x to y, for scratch rows."""
    f = broadcast(factor)
    b = 0
    while b < size:
        store8(y, b, add_product(f, load8(x, b), load8(y, b)))
        b += 8


@kernel
def gram_normal_matrices(packed, weight, B, out, first, last):  # type: ignore[no-untyped-def]
    """out_t = weight_t B'G_t B, (k, k) for each task; B is (k, d), the transpose of the factor."""
    k, d = B.shape
    size, triangle = padded_size(d), d * (d + 1) // 2
    copies = tasks_to_copy(d, first, last)
    flat_P = packed.reshape(-1)
    head_P = with_lead(flat_P, copies * triangle)
    factor, work = scratch(k, size), scratch(2, size)
    rows, Z, inner = pointer(factor), pointer(work), pointer(work[size:])
    for j in range(k):
        for i in range(d):
            factor[j * size + size - d + i] = B[j, i]
    for t in range(first, last):
        P = pointer(head_P) if t < copies else pointer(flat_P)
        for j in range(k):
            call_gram_times(P, t * triangle, d, shifted(rows, j * size), Z, inner)
            for i in range(j + 1):
                along = product(shifted(rows, i * size), Z, size)
                out[t, i, j] = out[t, j, i] = weight[t] * along
    keep((factor, work, head_P))
