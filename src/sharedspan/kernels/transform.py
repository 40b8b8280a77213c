"""The statistics of mapped features X P, task by task."""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel
from sharedspan.kernels.cpu import inner
from sharedspan.kernels.gram_product import scratch
from sharedspan.kernels.matrices import combine_rows, products, solve_ridge

# An anchor in the canonical problem must not be long: a direction that varies in other tasks but
# hardly in this one would get a coefficient with which the loss loses its digits. The mapped
# anchor is used if n |a|^2 is at most this many times the squares of y. Otherwise it solves
# (G + ridge) a = X'y, with a ridge that is a share of n.
LONG = 100.0
CANONICAL_RIDGE = 1e-6
SMALLEST_SIZE = 1e-10  # of a task in the ridge


@kernel
def transform_grams(  # type: ignore[no-untyped-def]
    packed, anchor, g, q, n, P, inverse, out, new_anchor, new_g, new_q, first, last
):
    """Statistics of the features X P, P (d, d'), for the tasks first <= t < last.

    ``packed`` and ``out`` are flat and may be the same array, with Grams of d' <= d features at its
    front. Anchors are moved before the features are mapped, which may mix large and small ones.

    Parameters
    ----------
    inverse : ndarray of shape (d', d)
        The pseudo-inverse of P.
    """
    d, reduced = P.shape
    size, small = (d + 7) // 8 * 8, (reduced + 7) // 8 * 8
    G, wide = scratch(size, size).reshape(size, size), scratch(d, small).reshape(d, small)
    back, GP = scratch(d, small).reshape(d, small), scratch(size, small)
    mapped, factor = scratch(small, small).reshape(small, small), scratch(small + 1, small)
    Ga, moved = scratch(1, size), scratch(1, size)
    c, solved, ridge = scratch(1, small), scratch(1, small), np.empty(reduced)
    for i in range(d):
        for j in range(reduced):
            wide[i, j] = P[i, j]
            back[i, j] = inverse[j, i]
    for t in range(first, last):
        position = t * (d * (d + 1) // 2)
        for i in range(d):
            for j in range(i, d):
                G[i, j] = packed[position + j - i]
            for j in range(i, d):
                G[j, i] = G[i, j]
            position += d - i
        products(G, size, wide, small, d, False, GP)
        products(wide, small, GP, small, d, True, mapped)
        combine_rows(G, anchor[t], d, size, Ga)
        combine_rows(back, anchor[t], d, small, solved)
        total = q[t] + inner(anchor[t], Ga) + 2.0 * inner(anchor[t], g[t])
        long = not n[t] * inner(solved, solved) <= LONG * total
        if long:
            for j in range(reduced):
                ridge[j] = CANONICAL_RIDGE * max(n[t], SMALLEST_SIZE)
            for i in range(d):
                Ga[i] += g[t, i]
            combine_rows(wide, Ga, d, small, c)
            solve_ridge(mapped, ridge, c, reduced, small, factor, solved)
        if long or reduced < d:  # another anchor than the given one
            for i in range(d):
                Ga[i] = anchor[t, i] - inner(P[i], solved)
            combine_rows(G, Ga, d, size, moved)
            for i in range(d):
                moved[i] += g[t, i]
            new_q[t] = max(q[t] + inner(g[t], Ga) + inner(moved[:d], Ga), 0.0)
        else:
            for i in range(d):
                moved[i] = g[t, i]
            new_q[t] = q[t]
        combine_rows(wide, moved, d, small, c)
        for j in range(reduced):
            new_anchor[t, j] = solved[j]
            new_g[t, j] = c[j]
        position = t * (reduced * (reduced + 1) // 2)
        for i in range(reduced):
            for j in range(i, reduced):
                out[position + j - i] = mapped[i, j]
            position += reduced - i
