"""Where the rows of a cluster's shards come from, and the way to their statistics."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, getitem
from typing import Any

import numpy as np

from sharedspan.distributed.engine import (
    ClusterError,
    DaskEngine,
    Shards,
    Source,
    connect,
    require_package,
    results,
    workers_of,
)
from sharedspan.distributed.matrix import Cluster
from sharedspan.distributed.objective import ClusterRows, ClusterStatistics
from sharedspan.distributed.shard import Shard, find_units, row_counts
from sharedspan.inputs.columns import Selection
from sharedspan.inputs.files import SourceFile, nearest
from sharedspan.inputs.frames import as_target, split_columns
from sharedspan.inputs.labels import as_labels, label_array, spread
from sharedspan.inputs.memory_limit import INTERPRETER, in_words
from sharedspan.inputs.reader import Tally, partitions, read_partition
from sharedspan.inputs.rows import TaskRows
from sharedspan.statistics.scaling import Units
from sharedspan.statistics.sums import cheaper_kind
from sharedspan.statistics.task_statistics import TaskStatistics

SHARDS_PER_WORKER = 4


@dataclass(frozen=True)
class Rows:
    """Some rows with the label of each."""

    labels: np.ndarray  # (rows,) of numbers or strings
    X: np.ndarray  # (rows, d)
    y: np.ndarray  # (rows,)
    tally: Any = 0  # of rows that lack a value

    def take(self, places: np.ndarray) -> Rows:
        """Some of the rows."""
        return Rows(self.labels[places], self.X[places], self.y[places])


class DriverRows:
    """Rows that lie on the driver: each shard's are sent to its worker."""

    def __init__(self, tasks: TaskRows, bounds: np.ndarray) -> None:
        self.tasks, self.bounds = tasks, bounds

    def shards(self, client: Any, ids: Sequence[int]) -> dict[int, Any]:
        """See Source."""
        ends = self.bounds.tolist()
        return {i: (Shard, (_part(self.tasks, ends[i], ends[i + 1]),)) for i in ids}


def _part(tasks: TaskRows, first: int, last: int) -> TaskRows:
    """The tasks first..last - 1 with rows of their own."""
    low, high = int(tasks.starts[first]), int(tasks.starts[last])
    rows: Any = slice(low, high) if tasks.order is None else tasks.order[low:high]
    weight = None if tasks.weight is None else tasks.weight[rows]
    starts = tasks.starts[first : last + 1] - low
    return TaskRows(
        tasks.X[rows], tasks.y[rows], weight, tuple(range(last - first)), starts, None, tasks.names
    )


class Shuffled:
    """Rows in partitions that the workers read: each goes to the shard of its task.

    Shards hold neighbouring tasks in canonical order, so the first label of each says where a row
    belongs. Partitions are read again for shards that are lost.

    Parameters
    ----------
    read : callable of Client
        Submits the reading of all partitions: a list of futures of ``attempt``.
    edges : ndarray of shape (shards,)
        The first label of each shard.
    rows : list
        What ``read`` has returned, for the first time.
    """

    def __init__(
        self, read: Callable[[Any], list[Any]], edges: np.ndarray, rows: list[Any]
    ) -> None:
        self.read, self.edges, self.rows = read, edges, rows

    def shards(self, client: Any, ids: Sequence[int]) -> dict[int, Any]:
        """See Source."""
        rows, self.rows = self.rows or self.read(client), []
        cut = [client.submit(pieces, part, self.edges, tuple(ids), pure=False) for part in rows]
        workers = sorted(workers_of(client))
        return {
            i: client.submit(
                assemble,
                [client.submit(getitem, part, j, pure=False) for part in cut],
                pure=False,
                workers=workers[j % len(workers)] if workers else None,  # evenly, if they stay
                allow_other_workers=bool(workers),
            )
            for j, i in enumerate(ids)
        }


def pieces(rows: Rows, edges: np.ndarray, ids: Sequence[int]) -> list[Rows]:
    """The rows of some shards, in their order."""
    shard = np.searchsorted(edges, rows.labels, side="right") - 1
    order = np.argsort(shard.astype(np.int32), kind="stable")
    bounds = np.searchsorted(shard[order], np.arange(len(edges) + 1))
    return [rows.take(order[bounds[i] : bounds[i + 1]]) for i in ids]


def assemble(parts: Sequence[Rows]) -> Shard:
    """A shard of pieces of all partitions; rows of a task stay in the order of the partitions."""
    parts = [part for part in parts if len(part.y)]  # empty ones have labels of no kind
    labels, codes = np.unique(np.concatenate([part.labels for part in parts]), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(codes, minlength=len(labels))))
    X, y = (np.concatenate([getattr(part, name) for part in parts]) for name in ("X", "y"))
    names = tuple(f"x{j}" for j in range(X.shape[1]))
    return Shard(TaskRows(X, y, None, tuple(range(len(labels))), starts, order, names))


def attempt(read: Callable[..., Rows], *arguments: Any) -> Rows | Exception:
    """What a reader returns, or the mistake it found: for the driver to raise, not to be logged."""
    try:
        return read(*arguments)
    except (ValueError, TypeError, OSError) as mistake:
        return mistake


def count_labels(rows: Rows | Exception) -> Any:
    """Distinct labels, how often each occurs, and the tally of missing values; or a mistake."""
    if isinstance(rows, Exception):
        return rows
    return *np.unique(rows.labels, return_counts=True), rows.tally


def gather_partitions(
    engine: DaskEngine,
    client: Any,
    read: Callable[[Any], list[Any]],
    names: tuple[str, ...],
    centred: bool,
    *,
    check: Callable[[Any], None],
    **options: Any,
) -> TaskStatistics:
    """Statistics of rows that the workers read.

    Parameters
    ----------
    read : callable of Client
        As in ``Shuffled``.
    check : callable
        Of the tally of all partitions; raises where rows may not be used.
    **options
        Of ``gather_from``.
    """
    partitions = read(client)
    counted = [client.submit(count_labels, rows, pure=False) for rows in partitions]
    found = results(engine, client, counted, "the rows were read")
    for mistake in (part for part in found if isinstance(part, Exception)):
        raise mistake
    check(reduce(add, (tally for _, _, tally in found)))
    found = [part for part in found if len(part[0])]
    _require_one_kind([part for part, _, _ in found])
    labels, places = np.unique(np.concatenate([part for part, _, _ in found]), return_inverse=True)
    counts = np.bincount(places, np.concatenate([count for _, count, _ in found]))
    count = _shard_count(engine, client, len(labels))
    starts = np.append(0, np.cumsum(counts))
    bounds = _even_bounds(starts, count)
    _require_room(client, np.diff(bounds), len(names), float(counts.sum()))
    source = Shuffled(read, labels[bounds[:-1]], partitions)
    del partitions  # what has been dealt out need not stay
    return gather_from(
        engine, client, source, len(bounds) - 1, tuple(labels.tolist()), names, centred, **options
    )


def _require_one_kind(labels: Sequence[np.ndarray]) -> None:
    if not labels:
        raise ValueError("There are no rows: give at least one.")
    numbers = [part.dtype.kind in "biuf" for part in labels]
    if any(numbers) and not all(numbers):
        raise TypeError(
            "Labels of tasks are numbers in some partitions and text in others, such as "
            f"{labels[numbers.index(True)][0]!r} and {labels[numbers.index(False)][0]!r}: on a "
            "cluster all must be of one kind."
        )


def is_dask_frame(X: Any) -> bool:
    """Whether X is a Dask DataFrame."""
    return type(X).__module__.split(".")[0].startswith("dask") and hasattr(X, "columns")


@dataclass(frozen=True)
class DaskFrame:
    """A Dask DataFrame and the parts of its columns."""

    frame: Any
    task: str
    target: str
    features: tuple[str, ...]
    names_in: tuple[str, ...]  # columns of X as passed, without the target

    @classmethod
    def of(cls, X: Any, y: Any, task: Any, task_column: Any, sample_weight: Any) -> DaskFrame:
        """Columns by name, those of other frames added under names of their own."""
        if sample_weight is not None:
            raise ValueError("A Dask DataFrame takes no sample_weight: repeat rows instead.")
        if task is not None and task_column is not None:
            raise ValueError(
                f"Labels came twice, as task= and as the column {task_column!r}: give only one."
            )
        names = tuple(map(str, X.columns))
        task = task_column if task is None else task
        if task is None:
            raise ValueError("Give task=, the name of the column that says the task of each row.")
        X, target = _column(X, y, "y", "__target__")
        X, label = _column(X, task, "task", "__task__")
        features = tuple(name for name in names if name not in (target, label))
        if not features:
            raise ValueError("No column is left as a feature: keep one besides task and target.")
        return cls(X, label, target, features, tuple(n for n in names if n != target))

    def read(self, client: Any) -> list[Any]:
        """Futures of the rows of each partition."""
        parts = client.compute(self.frame[[self.task, self.target, *self.features]].to_delayed())
        rest = (self.task, self.target, self.features)
        return [client.submit(attempt, frame_rows, part, *rest, pure=False) for part in parts]


def _column(X: Any, column: Any, what: str, name: str) -> tuple[Any, str]:
    """The frame and the name of a column of it; a series of its own is added to the frame."""
    if isinstance(column, str):
        if column not in X.columns:
            raise ValueError(
                f"There is no column {column!r} ({what}) in X.{nearest(column, X.columns)}"
            )
        return X, column
    if not hasattr(column, "npartitions"):
        raise TypeError(
            f"X is a Dask DataFrame and {what} is a {type(column).__name__}: give the name of a "
            "column, or a Dask Series."
        )
    return X.assign(**{name: column}), name


def gather_frame(
    engine: DaskEngine, frame: DaskFrame, centred: bool, **options: Any
) -> TaskStatistics:
    """Statistics of the rows of a Dask DataFrame; options of ``gather_from``."""
    return gather_partitions(
        engine, connect(engine), frame.read, frame.features, centred,
        check=lambda tally: None, **options,
    )  # fmt: skip


def gather_files(
    engine: DaskEngine, selection: Selection, missing: str, centred: bool, **options: Any
) -> tuple[TaskStatistics, int]:
    """Statistics of the rows of files, and how many lack a value; options of ``gather_from``.

    All workers must see the files under the same paths.
    """
    client, parts = connect(engine), partitions(selection)
    dropped = 0

    def read(client: Any) -> list[Any]:
        return [client.submit(attempt, file_rows, selection, part, pure=False) for part in parts]

    def check(tally: Tally) -> None:
        nonlocal dropped
        tally.require(selection, missing)
        dropped = tally.n_incomplete

    gathered = gather_partitions(
        engine, client, read, selection.names, centred, check=check, **options
    )
    return gathered, dropped


def file_rows(selection: Selection, partition: SourceFile) -> Rows:
    """The rows of a partition of files."""
    path = partition.path
    if not os.path.exists(path):
        raise ValueError(
            f"{path} is not there on a worker: put it where all workers see it under this path."
        )
    X, y, labels, tally = read_partition(selection, partition)
    return Rows(labels, X, y, tally)


def frame_rows(frame: Any, task: str, target: str, features: Sequence[str]) -> Rows:
    """The rows of a partition of a Dask DataFrame, checked."""
    X, _, _ = split_columns(frame[list(features)], None)
    y = as_target(frame[target], len(frame), repr(target))
    heads, starts = as_labels(frame[task], len(frame), f"the task column {task!r}")
    labels = spread(label_array(heads), starts, len(frame)) if len(frame) else np.empty(0)
    if labels.dtype == object:
        raise TypeError(
            f"The task column {task!r} holds labels of several kinds, such as {heads[0]!r}: on a "
            "cluster all must be numbers, or all text."
        )
    return Rows(labels, X, y)


def gather_rows(
    engine: DaskEngine, tasks: TaskRows, centred: bool, **options: Any
) -> TaskStatistics:
    """Statistics of the driver's rows, on a cluster; options of ``gather_from``."""
    client = connect(engine)
    count = _shard_count(engine, client, tasks.n_tasks)
    bounds = _even_bounds(tasks.starts, count)
    _require_room(client, np.diff(bounds), tasks.n_features, tasks.n_rows)
    source = DriverRows(tasks, bounds)
    return gather_from(
        engine, client, source, len(bounds) - 1, tasks.labels, tasks.names, centred, **options
    )


def gather_from(
    engine: DaskEngine,
    client: Any,
    source: Source,
    count: int,
    labels: tuple[Any, ...],
    names: tuple[str, ...],
    centred: bool,
    *,
    common_scale: bool,
    kind: str,
    keep_rows: bool,
) -> TaskStatistics:
    """Statistics of ``count`` shards, which a source knows how to build.

    Parameters
    ----------
    labels : tuple
        Of all tasks, in canonical order.
    names : tuple of str
        Of the features.
    centred, common_scale, kind
        As in ``gather``.
    keep_rows : bool
        Whether the shards keep their rows, for folds.
    """
    require_package(client)
    cluster = Cluster(Shards(engine, client, source, count))
    cluster.shards.start()
    counts = cluster.shards.run(row_counts)
    cluster.bounds = np.append(0, np.cumsum([tasks for _, tasks in counts]))
    if kind == "auto":
        kind = cheaper_kind(sum(rows for rows, _ in counts), len(labels), len(names))
    units = reduce(Units.including, cluster.shards.run(find_units, centred, common_scale))
    statistics = ClusterStatistics(cluster, units, centred, kind, keep_rows)
    rows = ClusterRows(cluster) if keep_rows else None
    return TaskStatistics(statistics, units, labels, names, rows)


def _require_room(client: Any, tasks: np.ndarray, n_features: int, n_rows: float) -> None:
    """Raise before the work where the workers' memory cannot hold the rows and the sums.

    Parameters
    ----------
    client : Client
    tasks : ndarray of shape (shards,)
        Number of tasks of each shard.
    n_features : int
    n_rows : float
        Of all shards.
    """
    known = workers_of(client).values()
    # Dask pauses a worker at four fifths of its memory, and Python and its libraries come first.
    limits = [
        max(0.8 * about["memory_limit"] - INTERPRETER, 0.0) if about["memory_limit"] else np.inf
        for about in known
    ]
    sums = 4.0 * n_features * (n_features + 7)  # bytes per task
    rows = 2 * 8.0 * n_rows * (n_features + 2)  # on their way from one worker to another
    needed = sums * tasks.sum() + rows
    if limits and needed > sum(limits):
        raise ClusterError(
            f"The rows and sums of {tasks.sum()} tasks with {n_features} features take about "
            f"{in_words(needed)}, and the {len(limits)} workers have {in_words(sum(limits))} for "
            "them: start more workers, give them more memory, or leave features out."
        )
    shard = needed * tasks.max() / tasks.sum()
    if limits and shard > min(limits):
        enough = int(np.ceil(2 * needed / max(min(limits), 1e-3 * needed)))
        raise ClusterError(
            f"A shard takes about {in_words(shard)}, and a worker has {in_words(min(limits))} for "
            f"it: use more shards, engine=ss.DaskEngine(shards={enough})."
        )


def _even_bounds(starts: np.ndarray, count: int) -> np.ndarray:
    """Bounds of at most ``count`` ranges of tasks with about as many rows each.

    ``starts`` (T + 1,) holds the first row of each task.
    """
    rows = starts[-1] * np.arange(count + 1) / count
    return np.unique(np.searchsorted(starts, rows))


def _shard_count(engine: DaskEngine, client: Any, n_tasks: int) -> int:
    workers = max(len(workers_of(client)), 1)
    return min(engine.shards or SHARDS_PER_WORKER * workers, n_tasks)
