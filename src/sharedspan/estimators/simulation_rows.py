"""The rows for which a fitted mixed model simulates responses: those of its fit, or others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.estimators.fitting import offset_of_rows
from sharedspan.estimators.prediction import feature_columns
from sharedspan.families import Binomial, Huber, StudentT
from sharedspan.inputs.label_paths import outer_label
from sharedspan.inputs.labels import codes_of, given_labels, task_codes, written_alike
from sharedspan.inputs.offsets import formula_offset
from sharedspan.inputs.rows import TaskRows
from sharedspan.mixed_model.design_rows import (
    DesignBlock,
    fitted_rows,
    standard_features,
)
from sharedspan.mixed_model.retained import RetainedFit

ROWS_TOGETHER = 1 << 12  # whose features are brought to standard units together
WHOLE = 1e-6  # distance from an integer that is rounding


def fit_with_rows(model: Any) -> RetainedFit:
    """What a model retained of its fit to rows on this machine; raises if it has nothing."""
    family = vars(model).get("family")
    if family in (StudentT.name, Huber.name):
        raise ValueError(
            f"family={family!r} gives rows with large errors less weight, but does not say how "
            "such rows arise, so responses are not simulated: use family='gaussian'."
        )
    retained = vars(model).get("_retained_")
    if not isinstance(retained, RetainedFit):
        raise ValueError(
            f"This {type(model).__name__} does not have the rows of its fit: fit a model with a "
            "formula by ss.mixed(...) first; one that was loaded from a file must be fitted again."
        )
    if not isinstance(retained.rows, TaskRows):
        raise ValueError(
            "The model was fitted to statistics, so its rows are not on this machine: fit rows "
            "with engine='local'."
        )
    if vars(model).get("noise_") == "fitted":
        raise ValueError(
            "The noise of this model grows with the fitted value, which is not simulated: fit it "
            "with noise='shared'."
        )
    return retained


@dataclass(frozen=True)
class TasksToSimulate:
    """Tasks, those of the fit or others, and the outer groups that they are in."""

    known: np.ndarray  # (tasks,) numbers among the tasks of the fit, or -1
    parent: np.ndarray  # (tasks,) numbers of their outer groups
    known_outer: np.ndarray  # (groups,) numbers among the outer groups of the fit, or -1

    @classmethod
    def of_fit(cls, retained: RetainedFit) -> TasksToSimulate:
        """All tasks of a fit; without outer groups they are in a group that has no effects."""
        known = np.arange(retained.rows.n_tasks)
        if retained.nested is None:
            return cls(known, np.zeros_like(known), np.full(1, -1))
        parent = retained.nested.parent
        return cls(known, parent, np.arange(int(parent.max()) + 1))

    @classmethod
    def of_labels(cls, model: Any, labels: Any) -> TasksToSimulate:
        """Tasks with these labels (tasks,), whether or not they were fitted."""
        known, unknown = codes_of(list(labels), len(labels), model.tasks_)
        if unknown and (pair := written_alike(unknown, model.tasks_)) is not None:
            raise ValueError(
                f"Task {pair[0]!r} was not in the fit, but {pair[1]!r} was, a label of another "
                "type: give labels of the type that was fitted."
            )
        if "outer_tasks_" not in vars(model):
            return cls(known, np.zeros_like(known), np.full(1, -1))
        outer = [outer_label(str(label)) for label in labels]
        distinct, parent = task_codes(outer, len(outer))
        return cls(known, parent, codes_of(list(distinct), len(distinct), model.outer_tasks_)[0])


@dataclass(frozen=True)
class RowsToSimulate:
    """Rows whose responses are simulated."""

    n_rows: int
    blocks: Iterator[DesignBlock]
    tasks: TasksToSimulate


def rows_of_fit(model: Any, retained: RetainedFit, offset: Any) -> RowsToSimulate:
    """The rows of the fit, in the order of their tasks."""
    rows = retained.rows
    total = _offset_of_fit(model, retained, offset)
    if total is not None and rows.order is not None:
        total = total[rows.order]

    def blocks() -> Iterator[DesignBlock]:
        for block, _ in fitted_rows(retained):
            yield block if total is None else block._replace(offset=total[block.positions])

    return RowsToSimulate(rows.n_rows, blocks(), TasksToSimulate.of_fit(retained))


def _offset_of_fit(model: Any, retained: RetainedFit, offset: Any) -> np.ndarray | None:
    """The offset of each row of the fit, (rows,), None for what the retained rows hold.

    That of normal responses was taken off them, and what a formula says of it is computed again.
    """
    n_rows = retained.rows.y.shape[0]
    if retained.rows.offset is not None:
        if offset is not None:
            raise ValueError("The offset of the fit is retained: give one only for rows in X.")
        return None
    if offset is None:
        _require_known_offset(model)
    total = None if offset is None else offset_of_rows(offset, n_rows)
    own = formula_offset(vars(model).get("_table"), vars(model).get("columns_"))
    if own is not None and len(own) != n_rows:
        raise ValueError(
            f"The table has {len(own)} rows but the fit {n_rows}, since rows with missing values "
            "were left out, and the formula has an offset: give the rows to simulate as X."
        )
    return own if total is None else total + (0.0 if own is None else own)


def other_rows(model: Any, retained: RetainedFit, X: Any, task: Any, offset: Any) -> RowsToSimulate:
    """Rows that are given, with any tasks."""
    features, column = feature_columns(model, X, task)
    n_rows, n_tasks = len(features), retained.tasks.n_tasks
    labels = given_labels(task, column, model.task_column)
    if labels is None and n_tasks > 1:
        raise ValueError(f"task=None, but the model has {n_tasks} tasks: give one label per row.")
    if labels is None:
        tasks, owner = TasksToSimulate.of_fit(retained), np.zeros(n_rows, dtype=int)
    else:
        distinct, owner = task_codes(labels, n_rows)
        tasks = TasksToSimulate.of_labels(model, distinct)
    if offset is None:
        _require_known_offset(model)
    total = offset_of_rows(0.0 if offset is None else offset, n_rows)
    if (own := formula_offset(X, vars(model).get("columns_"))) is not None:
        total = total + own

    def blocks() -> Iterator[DesignBlock]:
        for begin in range(0, n_rows, ROWS_TOGETHER):
            rows = slice(begin, min(begin + ROWS_TOGETHER, n_rows))
            Z = standard_features(retained, np.asarray(features[rows], dtype=float))
            yield DesignBlock(rows, Z, owner[rows], np.ones(len(Z)), total[rows])

    return RowsToSimulate(n_rows, blocks(), tasks)


def small_blocks(blocks: Iterator[DesignBlock], most: int) -> Iterator[DesignBlock]:
    """Blocks of at most so many rows."""
    for block in blocks:
        first, count = block.positions.start, len(block.owner)
        for begin in range(0, count, most):
            rows = slice(begin, min(begin + most, count))
            positions = slice(first + rows.start, first + rows.stop)
            yield DesignBlock(positions, *(part[rows] for part in block[1:]))


def _require_known_offset(model: Any) -> None:
    """Raise if a model was fitted with an offset that was given separately from the rows."""
    if vars(model).get("uses_offset_", False):
        raise ValueError("The model was fitted with an offset: give that of these rows, too.")


def checked_weight(model: Any, weight: np.ndarray) -> np.ndarray:
    """What noise variances are divided by, or numbers of trials; raises for other weights (m,)."""
    family = model.response_family()
    if isinstance(family, Binomial):
        trials = np.rint(weight)
        wrong = (np.abs(weight - trials) > WHOLE) | (trials < 1)
        if wrong.any():
            raise ValueError(
                "Responses are only simulated for whole numbers of trials, the sample_weight of a "
                f"row, but one is {weight[wrong][0]:g}: give integers of at least 1."
            )
        return trials
    if not (family.name == "gaussian" and model.slopes.weighted_noise) and (weight != 1).any():
        raise ValueError(
            f"The sample_weight of a row counts its repetitions, but one is "
            f"{weight[weight != 1][0]:g}: repeated rows are not simulated, so fit each repetition "
            "as a row of its own."
        )
    return weight
