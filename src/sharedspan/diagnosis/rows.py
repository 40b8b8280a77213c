"""The rows for a diagnosis, in the order of the model's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sharedspan.estimators.prediction import blocks_to_predict, rows_to_predict
from sharedspan.estimators.preparation import coded_rows
from sharedspan.inputs.frames import as_target
from sharedspan.inputs.rows import is_task_list


@dataclass(frozen=True)
class RowsByTask:
    """Rows of fitted tasks, sorted by task."""

    X: np.ndarray  # (rows, d)
    y: np.ndarray | None  # (rows,)
    codes: np.ndarray  # (rows,) ascending

    @cached_property
    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """Codes of the tasks that have rows, and their numbers of rows."""
        return np.unique(self.codes, return_counts=True)

    def tasks(self, centred: bool) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Code, features (n, d) and responses (n,) of each task, minus their means if centred.

        Responses are zero if none were given.
        """
        ids, counts = self.sizes
        ends = np.cumsum(counts)
        for t, lo, hi in zip(ids, ends - counts, ends, strict=True):
            X, y = self.X[lo:hi], np.zeros(hi - lo) if self.y is None else self.y[lo:hi]
            if centred:
                X, y = X - X.mean(axis=0), y - y.mean()
            yield int(t), X, y


def _second_class(model: Any, y: Any) -> Any:
    """Ones for the second class of a classifier and zeros for the first; other y as it is."""
    if not hasattr(model, "predict_proba"):
        return y
    y, classes = np.asarray(y).ravel(), model.classes_
    unknown = y[~np.isin(y, classes)]
    if len(unknown):
        raise ValueError(
            f"y has the class {unknown.tolist()[0]!r}, but the classes of the model are "
            f"{classes.tolist()}: give rows of these classes."
        )
    return (y == classes[1]).astype(float)


def rows_by_task(model: Any, X: Any, y: Any, task: Any) -> RowsByTask:
    """Rows validated like rows to predict; rows of tasks that were not fitted are left out."""
    model = copy(model)
    model.unseen = "mean"
    if is_task_list(X):
        parts = [rows_to_predict(model, *pair) for pair in blocks_to_predict(X, task)]
        features = np.concatenate([part for part, _ in parts])
        codes = np.concatenate([part for _, part in parts])
        y = None if y is None else np.concatenate([np.asarray(part).ravel() for part in y])
    else:
        model, X, y, task = coded_rows(model, X, y, task)
        features, codes = rows_to_predict(model, X, task)
    if y is not None:
        y = _second_class(model, y)
    target = None if y is None else as_target(y, len(features)).astype(float)
    order = np.argsort(codes, kind="stable")
    order = order[codes[order] >= 0]
    if not len(order):
        raise ValueError(
            "No row belongs to a task that the model was fitted to: give rows of such tasks."
        )
    target = None if target is None else target[order]
    return RowsByTask(features[order].astype(float), target, codes[order])
