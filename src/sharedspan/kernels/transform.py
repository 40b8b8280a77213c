"""The statistics of mapped features X P, task by task."""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel
from sharedspan.kernels.cpu import inner
from sharedspan.kernels.gram_product import scratch
from sharedspan.kernels.matrices import products, solve_ridge

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
    GP, mapped = scratch(size, small), scratch(small, small).reshape(small, small)
    c, solved, ridge = scratch(1, small), scratch(1, small), np.empty(reduced)
    factor = scratch(small + 1, small)
    Ga, delta, moved = np.empty(d), np.empty(d), np.empty(d)
    for i in range(d):
        for j in range(reduced):
            wide[i, j] = P[i, j]
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
        total, length = q[t], 0.0
        for i in range(d):
            Ga[i] = inner(G[i, :d], anchor[t])
            total += anchor[t, i] * (Ga[i] + 2.0 * g[t, i])
        for j in range(reduced):
            solved[j] = inner(inverse[j], anchor[t])
            length += solved[j] * solved[j]
        if not n[t] * length <= LONG * total:
            for j in range(reduced):
                c[j] = 0.0
                ridge[j] = CANONICAL_RIDGE * max(n[t], SMALLEST_SIZE)
            for i in range(d):
                for j in range(reduced):
                    c[j] += P[i, j] * (Ga[i] + g[t, i])
            solve_ridge(mapped, ridge, c, reduced, small, factor, solved)
        for i in range(d):
            delta[i] = inner(P[i], solved) - anchor[t, i]
        squares = q[t]
        for i in range(d):
            moved[i] = g[t, i] - inner(G[i, :d], delta)
            squares -= delta[i] * (g[t, i] + moved[i])
        new_q[t] = max(squares, 0.0)
        for j in range(reduced):
            new_anchor[t, j] = solved[j]
            new_g[t, j] = 0.0
        for i in range(d):
            for j in range(reduced):
                new_g[t, j] += P[i, j] * moved[i]
        position = t * (reduced * (reduced + 1) // 2)
        for i in range(reduced):
            for j in range(i, reduced):
                out[position + j - i] = mapped[i, j]
            position += reduced - i
