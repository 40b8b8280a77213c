"""The product G u with a packed Gram, in vector registers.

Each Gram is read once, in memory order: beyond the size of the cache only a sequential read runs at
the speed of memory. The vectors of a task are scratch rows of whole lanes, after ``pad`` zeros, so
that a column has the same lane in every row of the triangle. A row of the triangle may begin in the
middle of eight lanes; the numbers before it, which belong to another row, are set to zero.
"""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import part, subroutine
from sharedspan.kernels.lanes import (
    add_product,
    add_to_lane,
    broadcast,
    from_lane,
    load1,
    load8,
    prefetch,
    store1,
    store8,
    sum_lanes,
)

PAIRED = 48  # up to this many features two rows of a Gram are taken at once
AHEAD = 1024  # distance of prefetches: the hardware prefetcher misses short rows


@part
def padded_size(d):  # type: ignore[no-untyped-def]
    """Length of a scratch row: whole lanes, and at least two of them."""
    return max((d + 7) // 8 * 8, 16)


@subroutine
def scratch(rows, size):  # type: ignore[no-untyped-def]
    """Zeros (rows * size,) aligned to cache lines: lanes that straddle two lines are slow."""
    buffer = np.zeros(rows * size + 8)
    begin = -(buffer.ctypes.data // 8) % 8
    return buffer[begin : begin + rows * size]


@part
def gram_times(packed, start, d, u, y, sums):  # type: ignore[no-untyped-def]
    """The product y = G u, for the Gram at ``packed[start]``.

    All arrays are pointers; u, y and sums are scratch rows.
    """
    if padded_size(d) == 16:
        times_in_registers(packed, start, d, u, y)
    else:
        times_in_scratch(packed, start, d, u, y, sums)


@part
def times_in_registers(packed, start, d, u, y):  # type: ignore[no-untyped-def]
    """``gram_times`` up to 16 features; separate row sums keep the chains of additions short."""
    zero, one = broadcast(0.0), broadcast(1.0)
    u_0, u_1 = load8(u, 0), load8(u, 8)
    y_0, y_1, sums_0, sums_1 = zero, zero, zero, zero
    i = 16 - d
    while i < 8:
        x_0, x_1 = load8(packed, start - i), load8(packed, start - i + 8)
        u_i = broadcast(load1(u, i))
        row = add_product(x_1, u_1, add_product(from_lane(x_0, i), u_0, zero))
        y_0 = add_product(from_lane(x_0, i + 1), u_i, y_0)
        y_1 = add_product(x_1, u_i, y_1)
        sums_0 = add_to_lane(sums_0, sum_lanes(row), i)
        prefetch(packed, start + AHEAD)
        prefetch(packed, start + AHEAD + 8)
        start += 16 - i
        i += 1
    while i < 16:
        x_1, u_i = load8(packed, start - i + 8), broadcast(load1(u, i))
        row = add_product(from_lane(x_1, i - 8), u_1, zero)
        y_1 = add_product(from_lane(x_1, i - 7), u_i, y_1)
        sums_1 = add_to_lane(sums_1, sum_lanes(row), i - 8)
        prefetch(packed, start + AHEAD)
        start += 16 - i
        i += 1
    store8(y, 0, add_product(one, sums_0, y_0))
    store8(y, 8, add_product(one, sums_1, y_1))


@part
def times_in_scratch(packed, start, d, u, y, sums):  # type: ignore[no-untyped-def]
    """``gram_times`` above 16 features, with y and the row sums in scratch rows."""
    size = padded_size(d)
    zero, one = broadcast(0.0), broadcast(1.0)
    b = 0
    while b < size:
        store8(y, b, zero)
        b += 8
    # Long rows are read one by one, which memory serves fastest. Short rows are read in pairs that
    # begin in the same lanes: y is moved half as often, and a pair shares the cost per row.
    i = size - d
    single = i + (i & 1) if d <= PAIRED else size
    while i < single:
        lane = i & 7
        b, p = i - lane, start - lane
        x, u_i = load8(packed, p), broadcast(load1(u, i))
        row = add_product(from_lane(x, lane), load8(u, b), zero)
        store8(y, b, add_product(from_lane(x, lane + 1), u_i, load8(y, b)))
        b, p = b + 8, p + 8
        while b < size:
            x = load8(packed, p)
            row = add_product(x, load8(u, b), row)
            store8(y, b, add_product(x, u_i, load8(y, b)))
            b, p = b + 8, p + 8
        store1(sums, i, sum_lanes(row))
        start += size - i
        i += 1
    while i < size:
        lane = i & 7
        b, p, p_1 = i - lane, start - lane, start + size - i - lane - 1
        x, x_1, u_b = load8(packed, p), load8(packed, p_1), load8(u, b)
        u_i, u_1 = broadcast(load1(u, i)), broadcast(load1(u, i + 1))
        row = add_product(from_lane(x, lane), u_b, zero)
        row_1 = add_product(from_lane(x_1, lane + 1), u_b, zero)
        y_b = add_product(from_lane(x, lane + 1), u_i, load8(y, b))
        store8(y, b, add_product(from_lane(x_1, lane + 2), u_1, y_b))
        ahead = start + AHEAD
        prefetch(packed, ahead)
        prefetch(packed, ahead + 8)
        b, p, p_1 = b + 8, p + 8, p_1 + 8
        while b < size:
            x, x_1, u_b = load8(packed, p), load8(packed, p_1), load8(u, b)
            row = add_product(x, u_b, row)
            row_1 = add_product(x_1, u_b, row_1)
            y_b = add_product(x, u_i, load8(y, b))
            store8(y, b, add_product(x_1, u_1, y_b))
            ahead += 16
            prefetch(packed, ahead)
            prefetch(packed, ahead + 8)
            b, p, p_1 = b + 8, p + 8, p_1 + 8
        store1(sums, i, sum_lanes(row))
        store1(sums, i + 1, sum_lanes(row_1))
        start += 2 * (size - i) - 1
        i += 2
    b = 0
    while b < size:
        store8(y, b, add_product(one, load8(sums, b), load8(y, b)))
        b += 8


@subroutine
def call_gram_times(packed, start, d, u, y, sums):  # type: ignore[no-untyped-def]
    """``gram_times`` as a call, which compiles faster, for loops in which its cost is small."""
    gram_times(packed, start, d, u, y, sums)
