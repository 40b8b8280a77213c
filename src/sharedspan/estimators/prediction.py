"""Predictions of fitted models, row by row, with standard deviations and intervals."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.parameters import at_least
from sharedspan.estimators.preparation import (
    encoded_columns,
    is_prepared,
    validate_names,
    without_target,
)
from sharedspan.estimators.saturation import require_noise
from sharedspan.inputs.frames import (
    as_table,
    refuse_column_as_label,
    require_task_column,
    row_count,
    split_columns,
    task_column_of,
)
from sharedspan.inputs.label_paths import outer_label
from sharedspan.inputs.labels import codes_of, given_labels, hint_on_labels, written_alike
from sharedspan.kernels.cpu import predict_rows
from sharedspan.kernels.threads import over_tasks

if TYPE_CHECKING:
    from sharedspan.estimators.base import TaskEstimator

NOT_FITTED = "task(s) were not in the fit"
COMPARED = 20_000  # labels of the fit that resemble an unknown one are looked for among so many
BLOCK = 1 << 12  # rows that are converted together, if they are not rows of double precision
ROW_COST = 4.0  # operations per number of a row, most of the time waiting for memory


def feature_columns(model: TaskEstimator, X: Any, task: Any = None) -> tuple[np.ndarray, Any]:
    """Features (rows, d) of rows with the columns of the fit, and the task column if named.

    A frame may lack the task column if the labels ``task`` are given.
    """
    X = as_table(X)
    columns, task_column = vars(model).get("columns_"), task_column_of(X, model.task_column, task)
    require_task_column(X, task_column)
    if columns is not None and is_prepared(X, columns, task_column):
        features, column = encoded_columns(X, columns, task_column)
    else:
        features, column, _ = split_columns(X, task_column)
        validate_names(model, X, reset=False)
    if len(features) == 0:
        raise ValueError(
            f"Found array with 0 sample(s) (shape={features.shape}) while a minimum of 1 is "
            "required: give at least one row."
        )
    return features, column


def rows_to_predict(model: TaskEstimator, X: Any, task: Any) -> tuple[np.ndarray, np.ndarray]:
    """Features (rows, d) and task codes (rows,), -1 for a task that was not fitted."""
    X, task = without_target(model, X, task)
    features, column = feature_columns(model, X, task)
    labels = given_labels(task, column, model.task_column)
    known = model.tasks_
    if labels is None:
        if len(known) > 1:
            raise ValueError(
                f"task=None, but the model has {len(known)} tasks: give one label per row."
            )
        return features, np.zeros(len(features), dtype=np.int64)
    codes, unknown = codes_of(labels, len(features), known)
    if unknown:
        refuse_column_as_label(as_table(X), task)
    if unknown and "outer_tasks_" in vars(model):
        codes, unknown = codes_of_outer_groups(model, labels, codes, unknown)
    refuses = model.unseen == "error"
    compares = bool(unknown) and (refuses or len(known) <= COMPARED)
    hint = hint_on_labels(unknown, known) if compares else ""
    if unknown and refuses:
        first = known[:1].tolist()[0]
        raise ValueError(
            f"{len(unknown)} {NOT_FITTED}, {hint or f'such as {unknown[0]!r}'}. The model has "
            f"{len(known)} tasks, such as {first!r}. Fit them too, adapt the model to them, or "
            "use unseen='mean' (--unseen mean) to predict them by the mean over tasks."
        )
    if unknown and (pair := written_alike(unknown, known)) is not None:
        raise ValueError(
            f"Task {pair[0]!r} was not in the fit, but {pair[1]!r} was, a label of another type: "
            "give labels of the same type as in the fit."
        )
    if hint:
        warnings.warn(f"{len(unknown)} {NOT_FITTED}, {hint}.", UserWarning, stacklevel=3)
    return features, codes


def codes_of_outer_groups(
    model: Any, labels: Any, codes: np.ndarray, unknown: Any
) -> tuple[np.ndarray, list[Any]]:
    """Codes of new tasks in outer groups that are known, which follow those of the tasks."""
    place = {label: len(model.tasks_) + i for i, label in enumerate(model.outer_tasks_.tolist())}
    new = {label: place.get(outer_label(str(label)), -1) for label in unknown}
    at = np.flatnonzero(codes < 0)
    own = np.broadcast_to(np.asarray(labels, dtype=object), len(codes))[at]
    codes = codes.copy()
    codes[at] = [new.get(label, -1) for label in own.tolist()]
    return codes, [label for label, code in new.items() if code < 0]


def blocks_to_predict(X: Any, task: Any) -> Iterator[tuple[Any, list[Any]]]:
    """The arrays of a list, each with the label of each of its rows."""
    labels = range(len(X)) if task is None else task
    return ((block, [label] * row_count(block)) for block, label in zip(X, labels, strict=True))


def population_mean(model: TaskEstimator) -> tuple[np.ndarray, float]:
    """Coefficients (d,) and intercept of the mean task, or of the population if it is modelled."""
    fitted = FittedSpan.of(model)
    if fitted.mean_coef is not None and fitted.mean_intercept is not None:
        return fitted.mean_coef, fitted.mean_intercept
    return model.coef_.mean(axis=0), float(model.intercept_.mean())


def predicted_mean(model: TaskEstimator, features: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Predictions (rows,); a task that was not fitted is predicted by the population's mean."""
    mean, level = np.zeros(features.shape[1]), 0.0
    if (codes < 0).any():
        mean, level = population_mean(model)
    coef, intercept = model.coef_, model.intercept_
    if "outer_tasks_" in vars(model):
        coef = np.vstack([coef, vars(model)["outer_coef_"]])
        intercept = np.append(intercept, vars(model)["outer_intercept_"])
    coef, intercept, mean = (np.ascontiguousarray(a, dtype=float) for a in (coef, intercept, mean))
    out = np.empty(len(features))

    def work(first: int, last: int) -> None:
        for lo in range(first, last, BLOCK):
            rows = slice(lo, min(lo + BLOCK, last))
            X = np.ascontiguousarray(features[rows], dtype=float)
            predict_rows(X, codes[rows], coef, intercept, mean, level, out[rows])

    over_tasks(work, len(features), ROW_COST * features.size)
    return out


def response_std(model: TaskEstimator, features: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Standard deviations of new responses, (rows,)."""
    require_noise(model)
    known = codes >= 0
    # A task that was not fitted is drawn from the population, if there is one.
    if model.shares == "population" or known.all():
        return model.uncertainty().response_std(features, codes)
    std = np.empty(len(features))
    if known.any():
        std[known] = model.uncertainty().response_std(features[known], codes[known])
    std[~known] = _unseen_std(model, features[~known])
    return std


def _unseen_std(model: TaskEstimator, features: np.ndarray) -> np.ndarray:
    """Standard deviations of responses of a further task from the population of fitted tasks."""
    T = len(model.coef_)
    if T == 1:
        return np.full(len(features), np.inf)
    center, level = model.coef_.mean(axis=0), model.intercept_.mean()
    root: Any = np.zeros((0, len(center) + 1))
    for lo in range(0, T, BLOCK):  # the triangular factor of all tasks, block by block
        tasks = slice(lo, lo + BLOCK)
        spread = np.column_stack([model.coef_[tasks] - center, model.intercept_[tasks] - level])
        root = np.linalg.qr(np.vstack([root, spread]), mode="r")
    root /= np.sqrt(T - 1)
    varied = np.empty(len(features))
    for lo in range(0, len(features), BLOCK):
        rows = slice(lo, lo + BLOCK)
        varied[rows] = np.sum((features[rows] @ root[:, :-1].T + root[:, -1]) ** 2, axis=1)
    return np.sqrt(varied * (1 + 1 / T) + model.noise_variance_.mean())


def response_reach(
    model: TaskEstimator, features: np.ndarray, codes: np.ndarray, level: float
) -> np.ndarray:
    """Half widths of prediction intervals of new responses, (rows,)."""
    from scipy.special import stdtrit

    quantiles = interval_quantiles(model, level)[codes]  # code -1 is the last
    std = response_std(model, features, codes)
    known = codes >= 0
    if model.shares == "population":
        posterior: Any = model.uncertainty()
        degrees = posterior.response_degrees(codes[known], std[known])
        if degrees is not None:
            quantiles[known] = stdtrit(degrees, 0.5 + level / 2)
    return quantiles * std


def interval_quantiles(model: TaskEstimator, level: float) -> np.ndarray:
    """Half widths of intervals in standard errors, (T + 1,).

    The last is for a task that was not fitted.
    """
    from scipy.special import ndtri, stdtrit

    at_least("level", level, 0.0)
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must be between 0 and 1, such as 0.95.")
    require_noise(model)
    upper = 0.5 + level / 2
    # The covariance of the population, from which a new task is drawn, is known from T tasks.
    new = max(len(model.tasks_) - 1.0, 1.0) if model.shares == "population" else np.inf
    degrees = np.append(model.uncertainty().degrees, new)
    degrees, place = np.unique(degrees, return_inverse=True)  # often all tasks have the same
    finite = np.isfinite(degrees)
    quantiles = np.where(finite, stdtrit(np.where(finite, degrees, 1), upper), ndtri(upper))
    return quantiles[place]
