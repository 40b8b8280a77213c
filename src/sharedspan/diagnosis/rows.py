"""Rows that a fitted model is looked at with, task by task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.estimators.base import TaskRegressor
from sharedspan.inputs.frames import as_target
from sharedspan.inputs.rows import is_task_list


@dataclass(frozen=True)
class TaskRows:
    """Rows of fitted tasks, task by task."""

    X: np.ndarray  # (rows, d)
    y: np.ndarray | None  # (rows,)
    codes: np.ndarray  # (rows,) ascending

    @property
    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """Codes of the tasks that have rows, and how many."""
        return np.unique(self.codes, return_counts=True)

    def tasks(self, centred: bool) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Code, features (n, d) and responses (n,) of each task, less their means if centred.

        Where there are no responses they are zero.
        """
        ids, counts = self.sizes
        ends = np.cumsum(counts)
        for t, lo, hi in zip(ids, ends - counts, ends, strict=True):
            X, y = self.X[lo:hi], np.zeros(hi - lo) if self.y is None else self.y[lo:hi]
            if centred:
                X, y = X - X.mean(axis=0), y - y.mean()
            yield int(t), X, y


def read_rows(model: TaskRegressor, X: Any, y: Any, task: Any) -> TaskRows:
    """Rows through the same door as those to predict."""
    if is_task_list(X):
        parts = [model._rows_to_predict(*pair) for pair in model._blocks_to_predict(X, task)]
        features = np.concatenate([part for part, _ in parts])
        codes = np.concatenate([part for _, part in parts])
        y = None if y is None else np.concatenate([np.asarray(part).ravel() for part in y])
    else:
        features, codes = model._rows_to_predict(X, task)
    target = None if y is None else as_target(y, len(features)).astype(float)
    order = np.argsort(codes, kind="stable")
    order = order[codes[order] >= 0]
    if not len(order):
        raise ValueError("No row belongs to a fitted task: give rows of tasks that were fitted.")
    target = None if target is None else target[order]
    return TaskRows(features[order].astype(float), target, codes[order])
