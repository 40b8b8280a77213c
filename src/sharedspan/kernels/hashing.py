"""Random folds of rows: 64-bit hashes of the rows' values, and folds in the order of the hashes."""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel, part


@part
def mix(bits):  # type: ignore[no-untyped-def]
    """Spread high bits to low ones and back (a round of a 64-bit finaliser)."""
    bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return bits ^ (bits >> np.uint64(29))


@kernel
def hash_rows(X, row_stride, column_stride, y, order, begin, end, key, out):  # type: ignore[no-untyped-def]
    """64 random bits of features and target of the rows begin <= i < end of the order.

    The arguments that describe rows are those of ``accumulate.accumulate``; ``key`` (d + 1,) has
    odd multipliers, and ``out`` (rows,) is indexed like the order.
    """
    d = len(key) - 1
    values = np.empty(d + 1)
    bits = values.view(np.uint64)
    for i in range(begin, end):
        row = order[i] if len(order) else i
        if column_stride == 1:  # a loop of its own, as the compiler can vectorise it
            x = X[row * row_stride : row * row_stride + d]
            for j in range(d):
                values[j] = x[j] + 0.0  # -0.0 becomes 0.0
        else:
            for j in range(d):
                values[j] = X[row * row_stride + j * column_stride] + 0.0
        values[d] = y[row] + 0.0
        total = np.uint64(0)
        for j in range(d + 1):
            total += mix((bits[j] ^ (bits[j] >> np.uint64(29))) * key[j])
        out[i] = mix(total)


@kernel
def number_folds(hashes, starts, ids, n_folds, out, first, last):  # type: ignore[no-untyped-def]
    """Folds of the rows of the segments first <= s < last, by the order of their hashes.

    Segment s, rows starts[s]..starts[s + 1] of task ids[s], begins with fold ids[s], so that small
    tasks do not all fill the same folds. Rows of equal hashes have one fold.
    """
    for s in range(first, last):
        begin = starts[s]
        values = hashes[begin : starts[s + 1]]
        sequence = np.argsort(values, kind="mergesort")
        number = 0
        for i in range(len(sequence)):
            if i > 0 and values[sequence[i]] != values[sequence[i - 1]]:
                number += 1
            out[begin + sequence[i]] = (number + ids[s]) % n_folds
