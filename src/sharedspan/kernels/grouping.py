"""Compiled loops that number the distinct labels of rows and sort rows by those numbers."""

from __future__ import annotations

from functools import partial

import numpy as np

from sharedspan.kernels.compiling import kernel, part
from sharedspan.kernels.threads import n_threads, over_tasks

FIRST_SIZE = 1024  # of the hash table, a power of two
ROWS_PER_COUNT = 4  # rows for each code that a thread counts, at least
STEP = 16  # rows between two labels that are compared


@kernel
def count_runs(labels, bounds, counts, first, last):  # type: ignore[no-untyped-def]
    """How many runs of equal labels begin in each block of rows; -1 if labels fall somewhere.

    Block b holds the rows bounds[b] <= i < bounds[b + 1]; ``counts`` (blocks,) is written.
    """
    for b in range(first, last):
        part = labels[max(bounds[b] - 1, 0) : bounds[b + 1]]  # with the row before
        count, falls = 0, 0
        for i in range(len(part) - 1):
            count += part[i + 1] != part[i]
            falls += part[i + 1] < part[i]
        counts[b] = -1 if falls else count + (bounds[b] == 0)


@kernel
def find_runs(labels, bounds, places, starts, values, first, last):  # type: ignore[no-untyped-def]
    """Write the first row and the label of each run of equal labels, which ascend.

    The runs of block b are numbered from ``places[b]`` on; see ``count_runs``.
    """
    for b in range(first, last):
        place, row, end = places[b], max(bounds[b] - 1, 0), bounds[b + 1] - 1
        if bounds[b] == 0:
            starts[place], values[place] = 0, labels[0]
            place += 1
        while row < end:
            if labels[min(row + STEP, end)] == labels[row]:  # and so are those in between
                row += STEP
                continue
            while labels[row + 1] == labels[row]:
                row += 1
            row += 1
            starts[place], values[place] = row, labels[row]
            place += 1


@kernel
def number_rows(keys, codes):  # type: ignore[no-untyped-def]
    """Number the distinct rows of ``keys`` (rows, w), of uint32, in the order of their appearance.

    By a hash table with linear probing, at most half full. Writes the number of each row to
    ``codes`` (rows,), and returns the first row of each number, in an array with room for more, and
    how many numbers there are.
    """
    width = keys.shape[1]
    heads = np.empty(FIRST_SIZE // 2, dtype=np.int64)
    table = empty_table(2 * len(heads))
    distinct = np.empty((FIRST_SIZE // 2, width), dtype=np.uint32)  # close together in memory
    count = 0
    for i in range(len(keys)):
        if i > 0 and is_same(keys, i, keys, i - 1):
            codes[i] = codes[i - 1]
            continue
        if count == len(heads):
            table, heads, distinct = enlarged(heads, distinct)
        at = find(keys, i, distinct, table)
        if table[at] < 0:
            table[at] = count
            heads[count] = i
            for j in range(width):
                distinct[count, j] = keys[i, j]
            count += 1
        codes[i] = table[at]
    return heads, count


@kernel
def empty_table(size):  # type: ignore[no-untyped-def]
    """A table without entries, which are -1."""
    table = np.empty(size, dtype=np.int32)
    for i in range(size):
        table[i] = -1
    return table


@part
def is_same(keys, i, others, c):  # type: ignore[no-untyped-def]
    """Whether two keys are equal."""
    for j in range(keys.shape[1]):  # noqa: SIM110
        if keys[i, j] != others[c, j]:
            return False
    return True


@part
def find(keys, i, distinct, table):  # type: ignore[no-untyped-def]
    """The place of a key in the table, or of the gap where it belongs."""
    mixed = np.uint64(0)
    for j in range(keys.shape[1]):
        mixed = (mixed ^ np.uint64(keys[i, j])) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    last = len(table) - 1  # the size is a power of two
    at = np.int64(mixed & np.uint64(last))
    while table[at] >= 0 and not is_same(keys, i, distinct, table[at]):
        at = (at + 1) & last
    return at


@kernel
def enlarged(heads, distinct):  # type: ignore[no-untyped-def]
    """The same entries in a table of twice the size, and room for as many more."""
    count = len(heads)
    table = empty_table(4 * count)
    more_heads = np.empty(2 * count, dtype=np.int64)
    more = np.empty((2 * count, distinct.shape[1]), dtype=np.uint32)
    for c in range(count):
        more_heads[c] = heads[c]
        for j in range(distinct.shape[1]):
            more[c, j] = distinct[c, j]
        table[find(more, c, more, table)] = c
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
def count_codes(codes, bounds, counts, ascends, first, last):  # type: ignore[no-untyped-def]
    """Add the rows of each code to ``counts`` (parts, T), part by part.

    Part b holds the rows bounds[b] <= i < bounds[b + 1]; ``ascends`` (parts,) becomes whether the
    codes of its rows, and of the row before them, ascend.
    """
    for b in range(first, last):
        begin = bounds[b]
        before = codes[begin - 1] if begin > 0 else 0
        ascending, count = True, counts[b]
        for code in codes[begin : bounds[b + 1]]:
            count[code] += 1
            ascending &= code >= before
            before = code
        ascends[b] = ascending


@kernel
def sort_codes(codes, bounds, places, order, first, last):  # type: ignore[no-untyped-def]
    """Write the rows of each part to ``order`` by ascending code, rows of one code as they come.

    ``places`` (parts, T) are those of the first row of each code in each part; it is changed.
    """
    for b in range(first, last):
        place = places[b]
        for i in range(bounds[b], bounds[b + 1]):
            code = codes[i]
            order[place[code]] = i
            place[code] += 1


def order_by_code(codes: np.ndarray, n_codes: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The number of rows of each code (n_codes,), and the rows in a stable order by their code.

    The order is None if they are in it already. It does not depend on the number of threads.
    """
    parts = max(min(n_threads(), len(codes) // (ROWS_PER_COUNT * max(n_codes, 1))), 1)
    bounds = len(codes) * np.arange(parts + 1) // parts
    counts, ascends = np.zeros((parts, n_codes), dtype=np.int64), np.empty(parts, dtype=np.bool_)
    cost = float(len(codes))
    over_tasks(partial(count_codes, codes, bounds, counts, ascends), parts, cost)
    total = counts.sum(axis=0)
    if ascends.all():
        return total, None
    places = np.cumsum(total) - total + np.cumsum(counts, axis=0) - counts
    order = np.empty(len(codes), dtype=np.int64)
    over_tasks(partial(sort_codes, codes, bounds, places, order), parts, cost)
    return total, order
