"""Rows in partitions, which the workers read and send to the shards of their tasks.

Each shard has a range of tasks in canonical order, so the first label of each shard determines the
shard of a row. The partitions are read again for shards that are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, getitem
from typing import Any

import numpy as np

from sharedspan.distributed.engine import Connection
from sharedspan.distributed.shard import Shard
from sharedspan.inputs.rows import TaskRows


@dataclass(frozen=True)
class LabelledRows:
    """Some rows with the label of each."""

    labels: np.ndarray  # (rows,) of numbers or strings
    X: np.ndarray  # (rows, d)
    y: np.ndarray  # (rows,)
    incomplete: Any = 0  # counts of missing and infinite values, which add up

    def take(self, places: np.ndarray) -> LabelledRows:
        """The rows at ``places``."""
        return LabelledRows(self.labels[places], self.X[places], self.y[places])


def read_or_error(read: Callable[..., LabelledRows], *arguments: Any) -> LabelledRows | Exception:
    """The rows that a reader returns, or its error: for the driver to raise, not to be logged."""
    try:
        return read(*arguments)
    except (ValueError, TypeError, OSError) as error:
        return error


class ShuffledRows:
    """The shards of rows in partitions, a ``ShardSource``.

    Parameters
    ----------
    connection : Connection
    names : tuple of str
        Names of the features.
    read : callable of Client
        Submits the reading of all partitions: a list of futures of ``read_or_error``.
    check : callable, optional
        Raises if the sum of ``incomplete`` over the partitions does not allow a fit.

    Attributes
    ----------
    labels : tuple
        Labels of all tasks, in canonical order.
    starts : ndarray of shape (T + 1,)
        The first row of each task, and the number of rows.
    """

    bounds: np.ndarray

    def __init__(
        self,
        connection: Connection,
        names: tuple[str, ...],
        read: Callable[[Any], list[Any]],
        check: Callable[[Any], None] | None = None,
    ) -> None:
        client = connection.client
        self.names, self.read, self.rows = names, read, read(client)
        futures = [client.submit(_count_labels, rows, pure=False) for rows in self.rows]
        counted = connection.wait(futures, "the rows were read", gather=True)
        for error in (part for part in counted if isinstance(part, Exception)):
            raise error
        if check is not None:
            check(reduce(add, (incomplete for _, _, incomplete in counted)))
        labels = [part for part, _, _ in counted if len(part)]
        _require_one_kind(labels)
        self.distinct, places = np.unique(np.concatenate(labels), return_inverse=True)
        counts = np.concatenate([count for _, count, _ in counted])
        self.labels = tuple(self.distinct.tolist())
        self.starts = np.append(0, np.cumsum(np.bincount(places, counts)))

    def shards(self, connection: Connection, ids: Sequence[int]) -> dict[int, Any]:
        client = connection.client
        rows, self.rows = self.rows or self.read(client), []
        first = self.distinct[self.bounds[:-1]]
        parts = [client.submit(_split, part, first, tuple(ids), pure=False) for part in rows]
        workers = sorted(connection.workers())
        return {
            i: client.submit(
                _join,
                [client.submit(getitem, part, j, pure=False) for part in parts],
                pure=False,
                workers=workers[j % len(workers)] if workers else None,  # evenly, if they stay
                allow_other_workers=bool(workers),
            )
            for j, i in enumerate(ids)
        }


def _count_labels(rows: LabelledRows | Exception) -> Any:
    """Distinct labels, their counts, and the incomplete rows; or the error of the reader."""
    if isinstance(rows, Exception):
        return rows
    return *np.unique(rows.labels, return_counts=True), rows.incomplete


def _require_one_kind(labels: Sequence[np.ndarray]) -> None:
    """Raise if there are no rows, or if some labels are numbers and others text."""
    if not labels:
        raise ValueError("There are no rows: give at least one.")
    numbers = [part.dtype.kind in "biuf" for part in labels]
    if any(numbers) and not all(numbers):
        raise TypeError(
            "Task labels are numbers in some partitions and text in others, such as "
            f"{labels[numbers.index(True)][0]!r} and {labels[numbers.index(False)][0]!r}: on a "
            "cluster all must be of the same type."
        )


def _split(rows: LabelledRows, first: np.ndarray, ids: Sequence[int]) -> list[LabelledRows]:
    """The rows of some shards; ``first`` (shards,) is the first label of each shard."""
    shard = np.searchsorted(first, rows.labels, side="right") - 1
    order = np.argsort(shard.astype(np.int32), kind="stable")
    bounds = np.searchsorted(shard[order], np.arange(len(first) + 1))
    return [rows.take(order[bounds[i] : bounds[i + 1]]) for i in ids]


def _join(parts: Sequence[LabelledRows]) -> Shard:
    """The shard of rows of all partitions; rows of a task stay in the order of the partitions."""
    parts = [part for part in parts if len(part.y)]  # labels of no rows have any type
    labels, codes = np.unique(np.concatenate([part.labels for part in parts]), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(codes, minlength=len(labels))))
    X, y = (np.concatenate([getattr(part, name) for part in parts]) for name in ("X", "y"))
    names = tuple(f"x{j}" for j in range(X.shape[1]))
    return Shard(TaskRows(X, y, None, tuple(range(len(labels))), starts, order, names))
