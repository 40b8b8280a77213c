"""Task statistics on a cluster, from rows on the driver, in files or in a Dask DataFrame."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from sharedspan.distributed.engine import ClusterError, Connection, as_engine, connect_engine
from sharedspan.distributed.matrix import Cluster
from sharedspan.distributed.objective import ClusterFolds, ClusterStatistics
from sharedspan.distributed.shard import Shard
from sharedspan.distributed.shuffle import LabelledRows, ShuffledRows, read_or_error
from sharedspan.inputs.external_sort import FileRows
from sharedspan.inputs.files import SourceFile, nearest
from sharedspan.inputs.frames import as_target, split_columns
from sharedspan.inputs.labels import given_labels, label_array, task_codes
from sharedspan.inputs.reader import partitions, read_partition
from sharedspan.inputs.resources import INTERPRETER, in_words
from sharedspan.inputs.rows import TaskRows
from sharedspan.inputs.table_columns import Selection
from sharedspan.statistics.task_statistics import TaskStatistics, Units, cheaper_kind

SHARDS_PER_WORKER = 4


def gather_on_cluster(
    engine: Any,
    rows: TaskRows | DaskFrame | FileRows,
    centred: bool,
    *,
    common_scale: bool,
    kind: str,
    keep_rows: bool,
) -> TaskStatistics:
    """Build task statistics on the workers of a cluster, where they stay.

    Parameters
    ----------
    engine : DaskEngine, Client or str
        A value of the parameter ``engine`` other than "local".
    rows : TaskRows, DaskFrame or FileRows
        Rows in the driver's memory, in a Dask DataFrame or in files. For files, ``rows.n_dropped``
        is set to the number of incomplete rows.
    centred, common_scale, kind
        See ``gather``.
    keep_rows : bool
        Whether the shards retain their rows, for folds.
    """
    resolved = as_engine(engine)
    assert resolved is not None
    connection = connect_engine(resolved)
    source: DriverRows | ShuffledRows
    if isinstance(rows, TaskRows):
        rows.require_finite()
        source = DriverRows(rows)
    elif isinstance(rows, DaskFrame):
        source = ShuffledRows(connection, rows.names, rows.read)
    else:
        selection = rows.selection
        read = partial(_read_files, selection, partitions(selection))
        source = ShuffledRows(
            connection, selection.columns.names, read, partial(_check_files, rows)
        )
    source.bounds = _shard_bounds(connection, source.starts, len(source.names))
    connection.require_package()
    cluster = Cluster(connection, source)
    if kind == "auto":
        n = sum(sizes.sum() for sizes in cluster.run(Shard.call, "rows", "sizes"))
        kind = cheaper_kind(n, len(source.labels), len(source.names))
    units = cluster.run(Shard.call, "rows", Units.of, centred, common_scale)
    common = reduce(Units.including, units)
    statistics = ClusterStatistics(cluster, common, centred, kind, keep_rows)
    retained = ClusterFolds(cluster) if keep_rows else None
    return TaskStatistics(statistics, common, source.labels, source.names, retained)


def _shard_bounds(connection: Connection, starts: np.ndarray, n_features: int) -> np.ndarray:
    """The first task of each shard, and the number of tasks; shards have about equally many rows.

    ``starts`` (T + 1,) is the first row of each task.
    """
    workers = list(connection.workers().values())
    count = connection.engine.shards or SHARDS_PER_WORKER * max(len(workers), 1)
    count = min(count, len(starts) - 1)
    rows = starts[-1] * np.arange(count + 1) / count
    bounds = np.unique(np.searchsorted(starts, rows))
    _require_memory(workers, np.diff(bounds), n_features, float(starts[-1]))
    return bounds


def _require_memory(
    workers: Sequence[dict[str, Any]], tasks: np.ndarray, n_features: int, n_rows: float
) -> None:
    """Raise if the workers' memory cannot hold the rows and the statistics.

    ``tasks`` (shards,) is the number of tasks of each shard.
    """
    # Dask pauses a worker at four fifths of its memory, of which the interpreter takes a part.
    limits = [
        max(0.8 * about["memory_limit"] - INTERPRETER, 0.0) if about["memory_limit"] else np.inf
        for about in workers
    ]
    statistics = 4.0 * n_features * (n_features + 7)  # bytes per task
    rows = 2 * 8.0 * n_rows * (n_features + 2)  # on their way from one worker to another
    needed = statistics * tasks.sum() + rows
    if limits and needed > sum(limits):
        raise ClusterError(
            f"The rows and statistics of {tasks.sum()} tasks with {n_features} features take about "
            f"{in_words(needed)}, but the {len(limits)} workers have only "
            f"{in_words(sum(limits))} for them: start more workers, give them more memory, or "
            "leave features out."
        )
    shard = needed * tasks.max() / tasks.sum()
    if limits and shard > min(limits):
        enough = int(np.ceil(2 * needed / max(min(limits), 1e-3 * needed)))
        raise ClusterError(
            f"A shard takes about {in_words(shard)}, but a worker has only "
            f"{in_words(min(limits))} for it: use more shards, "
            f"engine=ss.DaskEngine(shards={enough})."
        )


class DriverRows:
    """Rows in the driver's memory, a ``ShardSource``: each shard's rows are sent to its worker."""

    bounds: np.ndarray

    def __init__(self, tasks: TaskRows) -> None:
        self.tasks, self.starts = tasks, tasks.starts
        self.labels, self.names = tasks.labels, tasks.names

    def shards(self, connection: Connection, ids: Sequence[int]) -> dict[int, Any]:
        return {i: (Shard, (self._part(*self.bounds[i : i + 2]),)) for i in ids}

    def _part(self, first: int, last: int) -> TaskRows:
        """The rows of the tasks first..last - 1, without the others."""
        tasks, starts = self.tasks, self.starts[first : last + 1]
        rows: Any = slice(starts[0], starts[-1])
        if tasks.order is not None:
            rows = tasks.order[rows]
        weight = None if tasks.weight is None else tasks.weight[rows]
        labels = tuple(range(last - first))
        return TaskRows(
            tasks.X[rows], tasks.y[rows], weight, labels, starts - starts[0], None, tasks.names
        )


@dataclass(frozen=True)
class DaskFrame:
    """The rows of a Dask DataFrame, with the columns of task, target and features."""

    frame: Any
    task: str
    target: str
    names: tuple[str, ...]  # features
    names_in: tuple[str, ...]  # columns of X as passed, without the target

    @classmethod
    def of(cls, X: Any, y: Any, task: Any, task_column: Any, sample_weight: Any) -> DaskFrame:
        """The frame X with y and task: names of its columns, or Dask Series, which are added."""
        if sample_weight is not None:
            raise ValueError("sample_weight is not allowed with a Dask DataFrame: repeat rows.")
        names = tuple(map(str, X.columns))
        task = given_labels(task, task_column, task_column)
        if task is None:
            raise ValueError("task is None: give the name of the column with the task of each row.")
        X, target = _named_column(X, y, "y", "__target__")
        X, label = _named_column(X, task, "task", "__task__")
        features = tuple(name for name in names if name not in (target, label))
        if not features:
            raise ValueError("X has no features: it needs a column besides task and target.")
        return cls(X, label, target, features, tuple(n for n in names if n != target))

    def read(self, client: Any) -> list[Any]:
        """Submit the reading of all partitions, with errors for missing and infinite values."""
        frames = client.compute(self.frame[[self.task, self.target, *self.names]].to_delayed())
        columns = (self.task, self.target, self.names)
        return [client.submit(read_or_error, _frame_rows, f, *columns, pure=False) for f in frames]


def _named_column(X: Any, column: Any, what: str, name: str) -> tuple[Any, str]:
    """The frame and the name of a column of it; a series is added to the frame as ``name``."""
    if isinstance(column, str):
        if column not in X.columns:
            hint = nearest(column, X.columns)
            raise ValueError(f"{what}={column!r} is not a column of X.{hint}")
        return X, column
    if not hasattr(column, "npartitions"):
        raise TypeError(
            f"X is a Dask DataFrame and {what} is a {type(column).__name__}: give the name of a "
            "column, or a Dask Series."
        )
    return X.assign(**{name: column}), name


def _frame_rows(frame: Any, task: str, target: str, features: Sequence[str]) -> LabelledRows:
    """The rows of a partition of a Dask DataFrame, validated."""
    X, _, _ = split_columns(frame[list(features)], None)
    y = as_target(frame[target], len(frame), repr(target))
    distinct, codes = task_codes(frame[task], len(frame), f"the task column {task!r}")
    labels = label_array(distinct)[codes] if len(frame) else np.empty(0)
    if labels.dtype == object:
        raise TypeError(
            f"The task column {task!r} holds labels of several kinds, such as {distinct[0]!r}: on "
            "a cluster all must be numbers, or all text."
        )
    return LabelledRows(labels, X, y)


def _read_files(selection: Selection, parts: Sequence[SourceFile], client: Any) -> list[Any]:
    submit = partial(client.submit, read_or_error, _file_rows, selection, pure=False)
    return [submit(part) for part in parts]


def _check_files(files: FileRows, incomplete: Any) -> None:
    incomplete.require(files.selection, files.missing)
    files.n_dropped = incomplete.n_incomplete


def _file_rows(selection: Selection, partition: SourceFile) -> LabelledRows:
    """The rows of a partition of files."""
    path = partition.path
    if not os.path.exists(path):
        raise ValueError(
            f"{path} does not exist on a worker: every worker must see the file under this path."
        )
    X, y, labels, tally = read_partition(selection, partition)
    return LabelledRows(labels, X, y, tally)
