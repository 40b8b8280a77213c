"""The rows for which a fitted mixed model simulates responses: those of its fit, or others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.estimators.fitting import offset_of_rows
from sharedspan.estimators.prediction import feature_columns
from sharedspan.families import Binomial, Huber, StudentT
from sharedspan.inputs.frames import as_weight
from sharedspan.inputs.labels import codes_of, given_labels, task_codes, written_alike
from sharedspan.inputs.rows import TaskRows
from sharedspan.mixed_model.design_rows import (
    DesignBlock,
    fitted_rows,
    noise_unit,
    standard_features,
)
from sharedspan.mixed_model.retained import RetainedFit

ROWS_TOGETHER = 1 << 12  # whose features are brought to standard units together
WHOLE = 1e-6  # distance from an integer that is rounding


def retained_fit(model: Any) -> RetainedFit:
    """What a model retained of its fit to rows on this machine; raises if it has nothing."""
    family = vars(model).get("family")
    if family in (StudentT.name, Huber.name):
        raise ValueError(
            f"family={family!r} weighs rows with large errors down and does not say how such rows "
            "arise, so responses are not simulated: use family='gaussian'."
        )
    retained = vars(model).get("_retained_")
    if not isinstance(retained, RetainedFit):
        raise ValueError(
            f"This {type(model).__name__} does not have the rows of its fit: fit a model with a "
            "formula by ss.mixed(...) first; one that was loaded from a file must be fitted again."
        )
    if not isinstance(retained.rows, TaskRows):
        raise ValueError(
            "The model was fitted to sums, and its rows are not on this machine: fit rows with "
            "engine='local'."
        )
    if vars(model).get("noise_") == "fitted":
        raise ValueError(
            "The noise of this model grows with the fitted value, which is not simulated: fit it "
            "with noise='shared'."
        )
    return retained


@dataclass(frozen=True)
class RowsToSimulate:
    """Rows whose responses are simulated."""

    n_rows: int
    blocks: Iterator[DesignBlock]
    known: np.ndarray  # (tasks,) numbers among the tasks of the fit, or -1
    noise: np.ndarray  # (tasks,) variances, in the user's units


def rows_of_fit(model: Any, retained: RetainedFit, offset: Any) -> RowsToSimulate:
    """The rows of the fit, in the order of their tasks."""
    rows = retained.rows
    if offset is None:
        _require_known_offset(model, rows.offset)
    else:
        offset = offset_of_rows(offset, rows.y.shape[0])
        offset = offset if rows.order is None else offset[rows.order]

    def blocks() -> Iterator[DesignBlock]:
        for block, _ in fitted_rows(retained):
            yield block if offset is None else block._replace(offset=offset[block.positions])

    known = np.arange(rows.n_tasks)
    return RowsToSimulate(rows.n_rows, blocks(), known, _noise_variances(retained, known))


def other_rows(
    model: Any, retained: RetainedFit, X: Any, task: Any, sample_weight: Any, offset: Any
) -> RowsToSimulate:
    """Rows that are given, with any tasks."""
    features, column = feature_columns(model, X)
    n_rows, tasks = len(features), retained.tasks
    labels = given_labels(task, column, model.task_column)
    if labels is None and tasks.n_tasks > 1:
        raise ValueError(
            f"task=None, but the model has {tasks.n_tasks} tasks: give one label per row."
        )
    if labels is None:
        known, owner = np.zeros(1, dtype=int), np.zeros(n_rows, dtype=int)
    else:
        distinct, owner = task_codes(labels, n_rows)
        known, unknown = codes_of(list(distinct), len(distinct), model.tasks_)
        if unknown and (pair := written_alike(unknown, model.tasks_)) is not None:
            raise ValueError(
                f"Task {pair[0]!r} was not in the fit, but {pair[1]!r} was, a label of another "
                "type: give labels of the type that was fitted."
            )
    weight = np.ones(n_rows) if sample_weight is None else as_weight(sample_weight, n_rows)
    if not weight.all():
        row = int(np.argmin(weight))
        raise ValueError(f"sample_weight is zero in row {row}: leave such rows out of X.")
    if offset is None:
        _require_known_offset(model, None)
    total = offset_of_rows(0.0 if offset is None else offset, n_rows)

    def blocks() -> Iterator[DesignBlock]:
        for begin in range(0, n_rows, ROWS_TOGETHER):
            rows = slice(begin, min(begin + ROWS_TOGETHER, n_rows))
            Z = standard_features(retained, np.asarray(features[rows], dtype=float))
            yield DesignBlock(rows, Z, owner[rows], weight[rows].astype(float), total[rows])

    return RowsToSimulate(n_rows, blocks(), known, _noise_variances(retained, known))


def _noise_variances(retained: RetainedFit, known: np.ndarray) -> np.ndarray:
    """Noise variances in the user's units of tasks (tasks,), -1 for those that were not fitted."""
    tasks = retained.tasks
    mean_level = float(tasks.n @ tasks.levels / tasks.n.sum())
    levels = np.where(known < 0, mean_level, tasks.levels[known])
    return np.asarray(retained.fit.evidence.noise * noise_unit(retained) ** 2 * levels)


def small_blocks(blocks: Iterator[DesignBlock], most: int) -> Iterator[DesignBlock]:
    """Blocks of at most so many rows."""
    for block in blocks:
        first, count = block.positions.start, len(block.owner)
        for begin in range(0, count, most):
            rows = slice(begin, min(begin + most, count))
            positions = slice(first + rows.start, first + rows.stop)
            yield DesignBlock(positions, *(part[rows] for part in block[1:]))


def _require_known_offset(model: Any, retained: np.ndarray | None) -> None:
    """Raise if a model was fitted with an offset, and that of the rows is not known."""
    if vars(model).get("uses_offset_", False) and retained is None:
        raise ValueError("The model was fitted with an offset: give that of these rows, too.")


def checked_weight(model: Any, weight: np.ndarray) -> np.ndarray:
    """What noise variances are divided by, or numbers of trials; raises for other weights (m,)."""
    family = model.response_family()
    if isinstance(family, Binomial):
        trials = np.rint(weight)
        wrong = (np.abs(weight - trials) > WHOLE) | (trials < 1)
        if wrong.any():
            raise ValueError(
                "Responses are simulated for whole numbers of trials, the sample_weight of a row, "
                f"and one is {weight[wrong][0]:g}: give integers of at least 1."
            )
        return trials
    if not (family.name == "gaussian" and model.slopes.weighted_noise) and (weight != 1).any():
        raise ValueError(
            f"The sample_weight of a row counts its repetitions, and one is "
            f"{weight[weight != 1][0]:g}: rows that stand for others are not simulated, so fit "
            "each row by itself."
        )
    return weight
