"""Small dense matrices in vector registers: products and ridge systems of a task's size.

Rows of a matrix fill whole lanes (``size`` numbers, a multiple of eight), with zeros at their end.
BLAS spends more time on the calls than on the numbers of such matrices.
"""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import part, subroutine
from sharedspan.kernels.lanes import (
    add_product,
    broadcast,
    from_lane,
    load1,
    load8,
    multiply,
    pointer,
    store1,
    store8,
    subtract_product,
    sum_lanes,
)

PIVOT_TOLERANCE = 1e-13  # relative to the diagonal entry


@subroutine
def products(A, size_A, B, size_B, count, upper, out):  # type: ignore[no-untyped-def]
    """A'B for ``count`` rows of A and B, to out (size_A, size_B), in tiles of 8 x 8.

    With ``upper`` only tiles on the diagonal and above it are computed.
    """
    left, right, result = pointer(A), pointer(B), pointer(out)
    zero = broadcast(0.0)
    a = 0
    while a < size_A:
        b = a if upper else 0
        while b < size_B:
            s_0, s_1, s_2, s_3 = zero, zero, zero, zero
            s_4, s_5, s_6, s_7 = zero, zero, zero, zero
            p, r = a, b
            for _ in range(count):
                x = load8(right, r)
                s_0 = add_product(broadcast(load1(left, p)), x, s_0)
                s_1 = add_product(broadcast(load1(left, p + 1)), x, s_1)
                s_2 = add_product(broadcast(load1(left, p + 2)), x, s_2)
                s_3 = add_product(broadcast(load1(left, p + 3)), x, s_3)
                s_4 = add_product(broadcast(load1(left, p + 4)), x, s_4)
                s_5 = add_product(broadcast(load1(left, p + 5)), x, s_5)
                s_6 = add_product(broadcast(load1(left, p + 6)), x, s_6)
                s_7 = add_product(broadcast(load1(left, p + 7)), x, s_7)
                p += size_A
                r += size_B
            to = a * size_B + b
            store8(result, to, s_0)
            store8(result, to + size_B, s_1)
            store8(result, to + 2 * size_B, s_2)
            store8(result, to + 3 * size_B, s_3)
            store8(result, to + 4 * size_B, s_4)
            store8(result, to + 5 * size_B, s_5)
            store8(result, to + 6 * size_B, s_6)
            store8(result, to + 7 * size_B, s_7)
            b += 8
        a += 8


@part
def combine_rows(A, weights, count, size, out):  # type: ignore[no-untyped-def]
    """A'w for ``count`` rows of A and weights w, to out (size,)."""
    x, result = pointer(A), pointer(out)
    b = 0
    while b < size:
        total = broadcast(0.0)
        for i in range(count):
            total = add_product(broadcast(weights[i]), load8(x, i * size + b), total)
        store8(result, b, total)
        b += 8


@subroutine
def solve_ridge(G, ridge, c, d, size, factor, out):  # type: ignore[no-untyped-def]
    """The solution of (G + diag(ridge)) x = c, to out (size,), for a semidefinite G.

    A direction whose pivot is only rounding error gets zero, as does one with an infinite ridge.
    LAPACK's Cholesky fails on a singular matrix.

    Parameters
    ----------
    G : ndarray of shape (size, size)
        Only the upper triangle is read.
    ridge : ndarray of shape (d,)
    c : ndarray of shape (size,)
    d, size : int
    factor : ndarray of shape ((size + 1) * size,)
        Scratch: U of G + diag(ridge) = U'U in whole lanes and without its diagonal, whose
        reciprocals are the last row.
    out : ndarray of shape (size,)
    """
    U, x, source = pointer(factor), pointer(out), pointer(G)
    reciprocal = size * size
    for i in range(d):
        b = i // 8 * 8
        while b < size:
            store8(U, i * size + b, load8(source, i * size + b))
            b += 8
    for j in range(size):
        out[j] = c[j] if j < d else 0.0
    for j in range(d):
        row, pivot = j * size, load1(U, j * size + j) + ridge[j]
        determined = pivot > PIVOT_TOLERANCE * (G[j, j] + ridge[j])
        inverse = 1.0 / np.sqrt(pivot) if determined else 0.0
        store1(U, reciprocal + j, inverse)
        out[j] *= inverse
        scale, solved = broadcast(inverse), broadcast(out[j])
        b = j // 8 * 8
        u = from_lane(multiply(scale, load8(U, row + b)), j + 1 - b)
        while b < size:
            store8(U, row + b, u)
            store8(x, b, subtract_product(solved, u, load8(x, b)))
            b += 8
            if b < size:
                u = multiply(scale, load8(U, row + b))
        for i in range(j + 1, d):
            u_i = broadcast(load1(U, row + i))
            b = i // 8 * 8
            while b < size:
                at = i * size + b
                store8(U, at, subtract_product(u_i, load8(U, row + b), load8(U, at)))
                b += 8
    for j in range(d - 1, -1, -1):
        along = broadcast(0.0)
        b = j // 8 * 8
        while b < size:
            along = add_product(load8(U, j * size + b), load8(x, b), along)
            b += 8
        out[j] = (out[j] - sum_lanes(along)) * load1(U, reciprocal + j)
