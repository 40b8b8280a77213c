"""Compiled loops that number the distinct labels of rows and sort rows by those numbers."""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.compiling import kernel

FIRST_SIZE = 1024  # of the hash table, a power of two


@kernel
def number_rows(keys, codes):  # type: ignore[no-untyped-def]
    """Number the distinct rows of ``keys`` (rows, w), of uint32, in the order of their appearance.

    By a hash table with linear probing, at most half full. Writes the number of each row to
    ``codes`` (rows,) and returns the first row of each number, (numbers,).
    """
    width = keys.shape[1]
    table = np.full(FIRST_SIZE, -1, dtype=np.int32)
    heads = np.empty(FIRST_SIZE // 2, dtype=np.int64)
    distinct = np.empty((FIRST_SIZE // 2, width), dtype=np.uint32)  # close together in memory
    count = 0
    for i in range(len(keys)):
        key = keys[i]
        if i > 0 and is_same(key, keys[i - 1]):
            codes[i] = codes[i - 1]
            continue
        at = slot(key, len(table))
        while table[at] >= 0 and not is_same(key, distinct[table[at]]):
            at = (at + 1) & (len(table) - 1)
        if table[at] < 0:
            if count == len(heads):
                table, heads, distinct = enlarged(heads, distinct)
                at = slot(key, len(table))
                while table[at] >= 0:
                    at = (at + 1) & (len(table) - 1)
            table[at] = count
            heads[count] = i
            for j in range(width):
                distinct[count, j] = key[j]
            count += 1
        codes[i] = table[at]
    return heads[:count].copy()


@kernel
def is_same(key, other):  # type: ignore[no-untyped-def]
    """Whether two keys are equal."""
    for j in range(len(key)):  # noqa: SIM110
        if key[j] != other[j]:
            return False
    return True


@kernel
def slot(key, size):  # type: ignore[no-untyped-def]
    """The place of a key in a table whose size is a power of two."""
    mixed = np.uint64(0)
    for j in range(len(key)):
        mixed = (mixed ^ np.uint64(key[j])) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed & np.uint64(size - 1))


@kernel
def enlarged(heads, distinct):  # type: ignore[no-untyped-def]
    """The same entries in a table of twice the size, and room for as many more."""
    count = len(heads)
    table = np.full(4 * count, -1, dtype=np.int32)
    more_heads = np.empty(2 * count, dtype=np.int64)
    more = np.empty((2 * count, distinct.shape[1]), dtype=np.uint32)
    more_heads[:count] = heads
    more[:count] = distinct
    for c in range(count):
        at = slot(distinct[c], len(table))
        while table[at] >= 0:
            at = (at + 1) & (len(table) - 1)
        table[at] = c
    return table, more_heads, more


@kernel
def mark(values, low, table):  # type: ignore[no-untyped-def]
    """Set the entries of the table that belong to the integers ``values`` to one."""
    for i in range(len(values)):
        table[values[i] - low] = 1


@kernel
def look_up(values, low, table, codes, first, last):  # type: ignore[no-untyped-def]
    """Entries of the table for the integers ``values``, -1 for those outside of it."""
    size = np.uint64(len(table))
    for i in range(first, last):
        place = np.uint64(values[i] - low)  # a negative difference becomes a very large one
        codes[i] = table[np.int64(place)] if place < size else -1


@kernel
def count_codes(codes, counts):  # type: ignore[no-untyped-def]
    """Add the rows of each code to ``counts``; returns whether the codes ascend."""
    ascending = True
    before = 0
    for i in range(len(codes)):
        code = codes[i]
        counts[code] += 1
        ascending &= code >= before
        before = code
    return ascending


@kernel
def sort_codes(codes, starts, order):  # type: ignore[no-untyped-def]
    """Write the rows to ``order`` by ascending code, rows of one code as they come.

    ``starts`` (codes,) is the place of the first row of each code; it is changed.
    """
    for i in range(len(codes)):
        code = codes[i]
        order[starts[code]] = i
        starts[code] += 1
