"""Rows of frames whose columns are prepared: text, dates, missing values."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import validate_data

from sharedspan.inputs.frame_table import (
    PreparedFrame,
    encode_frame,
    learn_frame,
    needs_preparation,
    row_labels,
    target_numbers,
)
from sharedspan.inputs.frames import (
    REMEDY,
    as_table,
    column_names,
    missing_words,
    package_of,
    task_column_of,
)
from sharedspan.inputs.labels import given_labels, is_missing
from sharedspan.inputs.table_columns import TableColumns

if TYPE_CHECKING:
    from sharedspan.estimators.base import TaskEstimator


def prepare(
    model: TaskEstimator, X: Any, task: Any, reset: bool
) -> tuple[PreparedFrame, Any] | None:
    """The features of a frame and its task labels; None if X is to be taken as it is.

    With ``reset`` the columns are learned, unless the model was given learned ones; otherwise they
    are those of the last fit.
    """
    columns = model.columns if reset else vars(model).get("columns_")
    if columns is None and not reset:
        return None
    task_column = task_column_of(X, model.task_column, task)
    if not needs_preparation(X, columns, task_column):
        if isinstance(columns, TableColumns):
            model.columns_ = columns
        return None
    if not isinstance(columns, TableColumns):
        columns = learn_frame(X, columns, task_column)
    labels = given_labels(task, row_labels(X, task_column), task_column)
    return encode_frame(X, columns), labels


def prepared_rows(
    X: Any, y: Any, task: Any, columns: Any = None
) -> tuple[Any, Any, Any, TableColumns | None]:
    """Rows as they are or, if columns must be prepared, features of the complete rows.

    The last result then says which features belong together.
    """
    if not needs_preparation(X, columns, None):
        return X, y, task, columns
    learned = columns if isinstance(columns, TableColumns) else learn_frame(X, columns)
    y = target_numbers(y, learned.encoding.text)
    (X, y, task, _, _), _ = complete_rows(encode_frame(X, learned), task, y, None, None)
    return X, y, task, replace(learned, encoding=learned.encoding.coded())


def validate_names(model: TaskEstimator, X: Any, reset: bool) -> None:
    """Take over the names of the columns, or raise unless they are those of the fit.

    The task column may be there in one of them only.
    """
    names, known = column_names(X), vars(model).get("feature_names_in_")
    if not reset and model.task_column is not None and names is not None and known is not None:
        rest = ([n for n in each if n != model.task_column] for each in (names, list(known)))
        if next(rest) == next(rest):
            return
    validate_data(model, X, reset=reset, skip_check_array=True)


def without_target(model: TaskEstimator, X: Any, task: Any) -> tuple[Any, Any]:
    """A frame of the table of a fit to files, without its target, and the labels in it.

    The model has no ``task_column`` then, but knows the columns of the table. Labels ``task`` that
    are given are preferred.
    """
    columns = vars(model).get("columns_")
    if columns is None or model.task_column is not None:
        return X, task
    X = as_table(X)
    names = column_names(X)
    if names is None:
        return X, task
    features = {column.column for column in columns.encoding.columns}
    others = {columns.target, *columns.task_columns} - features
    if task is None and columns.task in others.intersection(names):
        task = row_labels(X, columns.task)
    if others.intersection(names):
        rest = [name for name in names if name not in others]
        X = X.select(rest) if package_of(X) == "pyarrow" else X[rest]
    return X, task


def for_coded_rows(model: TaskEstimator) -> TaskEstimator:
    """A copy of a model that takes arrays of its features, with separate task labels."""
    copied = copy(model)
    copied.__dict__.pop("feature_names_in_", None)
    copied.task_column, copied.n_features_in_ = None, len(copied.coef_names_)
    learned = vars(model).get("columns_")
    copied.columns = None
    if learned is not None:
        copied.columns = copied.columns_ = replace(learned, encoding=learned.encoding.coded())
    return copied


def coded_rows(model: TaskEstimator, X: Any, y: Any, task: Any) -> tuple[Any, Any, Any, Any]:
    """A model and rows such that the rows are arrays of its features, if columns are prepared.

    Rows that lack a value are left out if the fit left such rows out.
    """
    learned = vars(model).get("columns_")
    y = read_target(model, y)
    X, task = without_target(model, X, task)
    task_column = task_column_of(X, model.task_column, task)
    if learned is None or not needs_preparation(X, learned, task_column):
        return model, X, y, task
    labels = given_labels(task, row_labels(X, task_column), task_column)
    (X, y, task, _, _), _ = complete_rows(encode_frame(X, learned), labels, y, None, None)
    return for_coded_rows(model), X, y, task


def read_target(model: TaskEstimator, y: Any) -> Any:
    """Responses with text read as numbers as in the columns of the fit; classes as they are."""
    columns = vars(model).get("columns_")
    if y is None or columns is None or "classes_" in vars(model):
        return y
    return target_numbers(y, columns.encoding.text)


def complete_rows(
    frame: PreparedFrame, labels: Any, y: Any, sample_weight: Any, offset: Any
) -> tuple[list[Any], int]:
    """Features, responses, labels, weights and offsets of the rows that lack nothing.

    The second result is the number of rows that were left out.
    """
    parts, missing = [frame.X, y, labels, sample_weight, offset], frame.columns.encoding.missing
    lacking = frame.incomplete()
    if missing == "error":
        if lacking.any():
            words = missing_words(frame.X, frame.columns.column_of)
            raise ValueError(f"Input X contains NaN{words}: {REMEDY}")
        return parts, 0
    for values in (y, labels):
        if values is not None and np.ndim(values) == 1 and len(values) == len(lacking):
            lacking = lacking | missing_values(values)
    if lacking.all():
        words = missing_words(frame.X, frame.columns.column_of)
        raise ValueError(f"X contains NaN{words}: no complete row is left, so leave columns out.")
    if not lacking.any():
        return parts, 0
    kept = ~lacking
    chosen = [part if part is None or np.ndim(part) == 0 else _as_array(part)[kept]
              for part in parts]  # fmt: skip
    return chosen, int(lacking.sum())


def missing_values(values: Any) -> np.ndarray:
    """Which values are missing, (rows,)."""
    array = _as_array(values)
    if array.dtype.kind == "f":
        return np.isnan(array)
    if array.dtype.kind in "biuUS":
        return np.zeros(len(array), dtype=bool)
    return np.array([is_missing(value) for value in array.tolist()], dtype=bool)


def _as_array(values: Any) -> np.ndarray:
    return np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)


def is_prepared(X: Any, columns: TableColumns, task_column: Any) -> bool:
    """Whether features of X are encoded by the learned columns, rather than X itself."""
    return needs_preparation(X, columns, None) or needs_preparation(X, None, task_column)


def encoded_columns(X: Any, columns: TableColumns, task_column: Any) -> tuple[np.ndarray, Any]:
    """Features of rows to predict, as the fit made them, and the task column if named."""
    frame = encode_frame(X, columns)
    if frame.incomplete().any():
        policy = columns.encoding.missing
        words = missing_words(frame.X, columns.column_of)
        raise ValueError(
            f"Input X contains NaN{words}, but the model was fitted with missing={policy!r}: leave "
            "these rows out, or fit with missing='indicator' of ss.Columns, which fills values in."
        )
    return frame.X, row_labels(X, task_column)
