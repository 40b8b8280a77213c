"""Sums of rows with working weights, task by task: the passes of a generalised mixed model.

Rows Z fill whole lanes, with zeros at their end (``size`` numbers, p of them in use).
"""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel
from sharedspan.kernels.cpu import add_row, inner
from sharedspan.kernels.gram_product import scratch
from sharedspan.kernels.lanes import (
    LANES,
    add_product,
    broadcast,
    keep,
    load1,
    load8,
    multiply,
    pointer,
    store8,
)
from sharedspan.kernels.matrices import products

PIECE = 256  # rows whose products are formed together


@kernel
def row_products(Z, starts, V, first, last, out):  # type: ignore[no-untyped-def]
    """z'v_t of each row of the tasks first..last - 1 and the coefficients V (T, p) of its task."""
    p = V.shape[1]
    for t in range(first, last):
        for i in range(starts[t], starts[t + 1]):
            out[i] = inner(Z[i, :p], V[t])


@kernel
def weighted_products(Z, starts, weight, first, last, packed, p):  # type: ignore[no-untyped-def]
    """Upper triangles (T, p (p + 1) / 2) of Z_t' W_t Z_t, for weights (rows,) of zero and more."""
    size = Z.shape[1]
    rows, G = scratch(PIECE, size), scratch(size, size).reshape(size, size)
    for t in range(first, last):
        packed[t].fill(0.0)
        lo = starts[t]
        while lo < starts[t + 1]:
            hi = min(lo + PIECE, starts[t + 1])
            for i in range(hi - lo):
                root, z = np.sqrt(weight[lo + i]), Z[lo + i]
                for j in range(size):
                    rows[i * size + j] = root * z[j]
            products(rows, size, rows, size, hi - lo, True, G)
            position = 0
            for i in range(p):
                for j in range(i, p):
                    packed[t, position + j - i] += G[i, j]
                position += p - i
            lo = hi


@kernel
def weighted_sums(Z, starts, weight, first, last, out):  # type: ignore[no-untyped-def]
    """Z_t' w_t of the tasks first..last - 1, (T, p)."""
    p = out.shape[1]
    for t in range(first, last):
        out[t].fill(0.0)
        for i in range(starts[t], starts[t + 1]):
            add_row(weight[i], Z[i, :p], out[t])


@kernel
def row_forms(Z, starts, V, first, last, out):  # type: ignore[no-untyped-def]
    """z'V_t z of each row of the tasks first..last - 1, eight rows at a time; V is (T, p, p)."""
    p = V.shape[1]
    columns, sums = scratch(p, LANES), scratch(1, LANES)
    z, total, matrix = pointer(columns), pointer(sums), pointer(V.reshape(-1))
    two = broadcast(2.0)
    for t in range(first, last):
        for block in range(starts[t], starts[t + 1], LANES):
            count = min(LANES, starts[t + 1] - block)
            for lane in range(count):
                for a in range(p):
                    columns[a * LANES + lane] = Z[block + lane, a]
            form = broadcast(0.0)
            for a in range(p):
                at = (t * p + a) * p
                rest = broadcast(0.0)
                for b in range(a + 1, p):
                    rest = add_product(broadcast(load1(matrix, at + b)), load8(z, b * LANES), rest)
                own = load8(z, a * LANES)
                rest = add_product(two, rest, multiply(broadcast(load1(matrix, at + a)), own))
                form = add_product(own, rest, form)
            store8(total, 0, form)
            for lane in range(count):
                out[block + lane] = sums[lane]
    keep((columns, sums))
