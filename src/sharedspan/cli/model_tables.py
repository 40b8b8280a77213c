"""Fitted models and users' files: rows to predict, in their order, and rows to look at again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sharedspan.estimators.base import TaskRegressor
from sharedspan.inputs.files import Tally, as_matrix, check_rows, without_nan
from sharedspan.inputs.matching import match
from sharedspan.inputs.paths import FilePaths, batches, connect
from sharedspan.inputs.schema import Columns, Feature

MEMORY = 1_000_000_000  # bytes for reading


def columns_of(
    model: TaskRegressor,
    task: str | None = None,
    target: str | None = None,
    *,
    needs_target: bool = False,
) -> Columns:
    """What a table for this model must look like.

    Parameters
    ----------
    model : fitted estimator
        One that was fitted to files knows it; of another the features are ``coef_names_``.
    task, target : str, optional
        Names of these columns, where they are not those of the fit.
    needs_target : bool
        Whether it is an error if the target is not known.
    """
    known = getattr(model, "columns_", None) or _guessed(model, task)
    columns = replace(known, task=task or known.task, target=target or known.target)
    if needs_target and columns.target is None:
        raise ValueError(
            "The model does not know which column it predicts: say which one (--target)."
        )
    return columns


def _guessed(model: TaskRegressor, task: str | None) -> Columns:
    task = task or (model.task_column if isinstance(model.task_column, str) else None)
    if task is None:
        raise ValueError(
            "The model was not fitted to a table with a task column: say which column holds the "
            "tasks (--task)."
        )
    texts = all(isinstance(label, str) for label in model.tasks_.tolist())
    kind = "U" if texts else model.tasks_.dtype.kind
    if kind not in "iufU":
        raise ValueError(
            f"The tasks of the model have labels such as {model.tasks_[0]!r}, which a table cannot "
            "hold: give rows in Python."
        )
    label = {"U": "VARCHAR", "f": "DOUBLE", "u": "UBIGINT", "i": "BIGINT"}[kind]
    return Columns(task, None, tuple(map(Feature, model.coef_names_)), (), label)


@dataclass(frozen=True)
class Chunk:
    """Neighbouring rows of a file that have all values they need."""

    labels: list[Any]  # (rows,)
    column: Any  # the same as an Arrow array
    X: np.ndarray  # (rows, d)
    y: np.ndarray  # (rows,), NaN where there is none
    also: list[Any]  # Arrow arrays of the columns that were asked for, too


class Rows:
    """Rows of files in their order, for a model.

    Parameters
    ----------
    paths : str, path, or iterable of them
    columns : Columns
    also : sequence of str
        Columns to hand on.
    missing : {"error", "drop"}
        What to do with rows that lack a label or a feature.
    needs_target : bool
        Whether they must have the target as well.

    Attributes
    ----------
    tally : Tally
        Of the rows so far; ``n_incomplete`` of them were left out.
    """

    def __init__(
        self,
        paths: FilePaths,
        columns: Columns,
        *,
        also: Sequence[str] = (),
        missing: str = "error",
        needs_target: bool = True,
    ) -> None:
        self.selection = match(paths, columns, also=also, needs_target=needs_target)
        self.also, self.missing, self.needs_target = list(also), missing, needs_target
        self.tally = Tally()

    def __len__(self) -> int:
        """Rows of all files, incomplete ones too."""
        with connect() as connection:
            counts = (connection.sql(f"SELECT count(*) FROM {file.scan()}").fetchall()[0][0]
                      for file in self.selection.files)  # fmt: skip
            return sum(counts)

    def __iter__(self) -> Iterator[Chunk]:
        selection = self.selection
        with connect(MEMORY) as connection:
            for file in selection.files:
                sql = selection.query(file.scan(), also=self.also)
                for batch in batches(connection, sql, file.path):
                    chunk = self._chunk(batch.columns)
                    if chunk.labels:
                        yield chunk
        self.tally.require(selection, self.missing)

    def _chunk(self, columns: Sequence[Any]) -> Chunk:
        d = self.selection.n_features
        labels = without_nan(columns[0])
        y, X = as_matrix(columns[: d + 2], self.selection.dtype)
        has_label = None if labels.null_count == 0 else ~np.asarray(labels.is_null())
        kept, tally = check_rows(has_label, y if self.needs_target else np.zeros(len(y)), X)
        self.tally += tally
        if self.missing == "error" and (tally.n_incomplete or np.any(tally.infinite)):
            tally.require(self.selection, self.missing)
        also = list(columns[d + 2 :])
        if kept is not None:
            import pyarrow

            mask = pyarrow.array(kept)
            X, y = X[kept], y[kept]
            labels, also = labels.filter(mask), [column.filter(mask) for column in also]
        return Chunk(labels.to_pylist(), labels, X, y, also)


def for_arrays(model: Any) -> Any:
    """The same model for arrays of its features, without names, and labels beside them."""
    made = copy(model)
    made.__dict__.pop("feature_names_in_", None)
    made.task_column, made.n_features_in_ = None, len(made.coef_names_)
    return made


def predictions(model: Any, chunk: Chunk, level: float | None) -> dict[str, np.ndarray]:
    """``prediction`` of each row of a chunk; with a level, ``low`` and ``high`` too."""
    X = chunk.X.astype(float, copy=False)
    found = {"prediction": model.predict(X, task=chunk.labels)}
    if level is not None:
        found["low"], found["high"] = model.predict_interval(X, task=chunk.labels, level=level)
    return found


def read_rows(
    paths: FilePaths, columns: Columns, missing: str = "error"
) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """All rows of files with their target: X (rows, d), y (rows,) and the label of each row."""
    chunks = list(Rows(paths, columns, missing=missing))
    labels = [label for chunk in chunks for label in chunk.labels]
    X = np.concatenate([chunk.X for chunk in chunks]).astype(float, copy=False)
    return X, np.concatenate([chunk.y for chunk in chunks]), labels
