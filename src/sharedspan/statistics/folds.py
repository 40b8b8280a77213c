"""Folds and halves that depend on the values of rows alone.

Rows of a task are ranked by a random hash of their values and dealt out in that order, so neither
the order of rows nor writing a row twice instead of giving it weight two changes where it goes.
"""

from __future__ import annotations

import numpy as np

from sharedspan.inputs.rows import Block, TaskRows

ROWS_AT_ONCE = 1 << 17  # rows whose folds are drawn together


def assign_folds(tasks: TaskRows, rng: np.random.Generator, n_folds: int) -> np.ndarray:
    """Fold of each row in task order, (rows,): balanced within tasks, equal for equal rows."""
    return deal_rows(tasks, hash_key(tasks.n_features, rng), n_folds)


def deal_rows(tasks: TaskRows, key: np.ndarray, n_folds: int, offset: int = 0) -> np.ndarray:
    """The same with a given key; the first task is number ``offset`` of all."""
    folds = np.empty(tasks.n_rows, dtype=np.int8)
    for first, last in tasks.ranges(ROWS_AT_ONCE):
        hashes = np.concatenate([hash_rows(b, key) for b in tasks.blocks(first, last)])
        starts = tasks.starts[first : last + 1] - tasks.starts[first]
        folds[tasks.starts[first] : tasks.starts[last]] = deal(
            hashes, starts, np.arange(first, last) + offset, n_folds
        )
    return folds


def deal(hashes: np.ndarray, starts: np.ndarray, ids: np.ndarray, n_folds: int) -> np.ndarray:
    """Deal the rows of each segment into folds by the order of their hashes, (rows,).

    Segment s, rows starts[s]..starts[s + 1] of task ids[s], begins with fold ids[s], so that small
    tasks do not all fill the same folds.
    """
    counts = np.diff(starts)
    owner = np.repeat(ids, counts)
    order = np.lexsort((hashes, owner))
    new_row = np.append(True, np.diff(hashes[order]) != 0)
    heads = starts[:-1][counts > 0]
    new_row[heads] = True
    number = np.cumsum(new_row)
    number -= np.repeat(number[heads], counts[counts > 0])
    folds = np.empty(len(hashes), dtype=np.int8)
    folds[order] = (number + owner) % n_folds
    return folds


def hash_key(n_features: int, rng: np.random.Generator) -> np.ndarray:
    """Random odd multipliers, one per column and one for the target."""
    return rng.integers(1, 2**63, size=n_features + 1, dtype=np.uint64) * 2 + 1


def hash_rows(block: Block, key: np.ndarray) -> np.ndarray:
    """64 random bits of each row's features and target, (rows,)."""
    bits = (np.column_stack([block.X, block.y]) + 0.0).view(np.uint64)  # -0.0 became 0.0
    return _mix(_mix((bits ^ (bits >> np.uint64(29))) * key).sum(axis=1, dtype=np.uint64))


def _mix(bits: np.ndarray) -> np.ndarray:
    """Spread high bits to low ones and back (a round of a 64-bit finaliser)."""
    bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return bits ^ (bits >> np.uint64(29))
