"""Errors on held-out rows, task by task: the model against simple regressions.

Rows of each task are assigned to folds, and each fold is predicted by fits to the others: the model
with its own parameters, one regression per task, one with the same slopes for all, and one that
ignores the tasks. Errors are those of the family of the responses (losses.py).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sharedspan.diagnosis.calibration import INTERVAL_LEVELS, covered_rows
from sharedspan.diagnosis.changes import Change, compared
from sharedspan.diagnosis.losses import RMSE, Loss, loss_of
from sharedspan.diagnosis.model_view import ModelView
from sharedspan.diagnosis.text import whole
from sharedspan.estimators import estimator_class
from sharedspan.estimators.glm_baselines import GLMBaseline, IgnoringTasks
from sharedspan.estimators.mixed import MixedModel
from sharedspan.estimators.preparation import for_coded_rows
from sharedspan.progress import ProgressCallback, no_progress
from sharedspan.statistics.folds import folds_by_hash

N_FOLDS = 4
FEWEST_ROWS = 2  # of a task: one to hold out, one to fit
STEADY = 1e-24  # share of the response's sum of squares within tasks that is rounding
NOTHING_TO_PREDICT = (
    "The response does not vary within tasks: there is nothing for features to predict."
)
# Parameters of the refits, if the model has them.
REFIT_OPTIONS = {"engine": "local", "verbose": 0, "keep_statistics": False, "task_column": None,
         "random_state": 0, "callback": None}  # fmt: skip


class Baseline(NamedTuple):
    """A simple model that others are compared with."""

    name: str
    verb: str  # singular or plural, as the name
    fit: str  # description of the fit
    estimator: str  # its name in the registry, of normal responses, if it has one
    glm: str  # description of the fit of classes and counts


BASELINES = {
    "separate": Baseline(
        "separate regressions",
        "do",
        "by one ridge regression per task",
        "PerTaskRegressor",
        "by one {} regression per task",
    ),
    "pooled": Baseline(
        "pooled regression",
        "does",
        "by pooled slopes with an intercept per task",
        "PooledRegressor",
        "by one {} regression of all tasks with an intercept per task",
    ),
    "ignored": Baseline(
        "one regression of all rows",
        "does",
        "by one ridge regression that ignores tasks",
        "",
        "by one {} regression that ignores tasks",
    ),
}
MOST_GLMS = 2000  # tasks up to which classes and counts are regressed task by task


class ScoredRows(NamedTuple):
    """Rows that were held out, (n,) each: responses, means by the model, and codes of tasks.

    ``covered`` (n, levels) says which rows lie in the model's intervals of each level of
    ``calibration.INTERVAL_LEVELS``; None if the model has no intervals.
    """

    y: np.ndarray
    mean: np.ndarray
    codes: np.ndarray
    covered: np.ndarray | None = None


@dataclass(frozen=True)
class HoldoutErrors:
    """Held-out losses; ``losses`` maps "model" and keys of BASELINES to (T,) sums.

    ``rows`` (T,) counts the rows held out of each task, 0 if a task has too few; ``small`` is the
    number of such tasks, and ``notes`` are the warnings of the fits. ``total`` is the sum of the
    losses of the tasks' means, which like the models know only the rows of the fits. ``scored`` are
    the rows that were held out.
    """

    losses: dict[str, np.ndarray]
    rows: np.ndarray
    total: float
    small: int
    notes: tuple[str, ...]
    loss: Loss = RMSE
    scored: ScoredRows | None = None

    @property
    def baselines(self) -> list[str]:
        """Names of the baselines that the model was compared with."""
        return [name for name in BASELINES if name in self.losses]

    def error(self, name: str) -> float:
        """The error over all rows, such as the root mean squared error."""
        return self.loss.shown(float(self.losses[name].sum() / self.rows.sum()))

    def task_error(self, name: str) -> np.ndarray:
        """The error of each task, (T,); NaN for tasks with too few rows."""
        mean = self.losses[name] / np.where(self.rows > 0, self.rows, np.nan)
        return np.sqrt(mean) if self.loss.is_root else mean

    @property
    def explained(self) -> float:
        """Share by which the loss is below that of the tasks' means; below zero it is above it."""
        return 1 - float(self.losses["model"].sum()) / self.total if self.total > 0 else math.nan

    def change(self, baseline: str) -> Change:
        """The model against a baseline."""
        held = self.rows > 0
        return compared(self.losses["model"][held], self.losses[baseline][held], self.loss)


def holdout_errors(
    view: ModelView, progress: ProgressCallback = no_progress
) -> HoldoutErrors | str:
    """Cross-validated errors of each task, or a sentence with the reason why there are none."""
    rows = view.rows
    assert rows is not None
    assert rows.y is not None
    y, T = rows.y, len(view.labels)
    size = np.bincount(rows.codes, minlength=T)
    large = size >= FEWEST_ROWS
    if not large.any() or np.sum(size > 0) < 2:
        return (
            f"Held-out errors need rows of two tasks, one of which has at least {FEWEST_ROWS}: "
            "give more rows."
        )
    # Rows of small tasks are always fitted, and never held out.
    fold = np.full(len(rows.codes), -1)
    fold[large[rows.codes]] = folds_of_partition(size[large], 0)
    scored = np.where(fold >= 0, rows.codes, T)

    def per_task(values: np.ndarray) -> np.ndarray:
        return np.bincount(scored, values, minlength=T + 1)[:T]

    held_rows = per_task(np.ones(len(scored)))
    mean = (per_task(y) / np.maximum(held_rows, 1))[rows.codes]
    if float(per_task((y - mean) ** 2).sum()) <= STEADY * float(np.sum(y**2)):
        return NOTHING_TO_PREDICT
    try:
        means, covered, notes = _means_in_folds(view, fold, progress)
    except (ValueError, ArithmeticError, np.linalg.LinAlgError) as problem:
        return f"Held-out errors could not be computed: {problem}"
    loss, small, held = loss_of(view.family), int(np.sum(~large & (size > 0))), fold >= 0
    known = _means_of_tasks(y, rows.codes, fold, 0.0 if loss.is_root else 1.0)
    return HoldoutErrors(
        losses={name: per_task(loss.of_rows(y, values)) for name, values in means.items()},
        rows=held_rows.astype(np.int64),
        total=float(per_task(loss.of_rows(y, known)).sum()),
        small=small,
        notes=tuple(notes),
        loss=loss,
        scored=ScoredRows(
            y[held],
            means["model"][held],
            rows.codes[held],
            None if covered is None else covered[held],
        ),
    )


def _means_of_tasks(y: np.ndarray, codes: np.ndarray, fold: np.ndarray, prior: float) -> np.ndarray:
    """The mean of each row's task over its rows in other folds, (rows,).

    ``prior`` rows with the mean of all rows are added: without them a task of only one class would
    be certain of it.
    """
    cell, shape = codes * N_FOLDS + fold, (codes[-1] + 1, N_FOLDS)
    scored = fold >= 0

    def others(values: np.ndarray) -> np.ndarray:
        inside = np.bincount(cell[scored], values[scored], minlength=math.prod(shape))
        return (inside.reshape(shape).sum(axis=1)[codes] - inside[cell])[scored]

    means = np.full(len(y), y.mean())
    means[scored] = (others(y) + prior * y.mean()) / (others(np.ones(len(y))) + prior)
    return means


def _means_in_folds(
    view: ModelView, fold: np.ndarray, progress: ProgressCallback
) -> tuple[dict[str, np.ndarray], np.ndarray | None, list[str]]:
    """Means (rows,) by the model and its baselines, and what the model's fits add to these.

    These are the rows in the model's intervals, (rows, levels) or None, and warnings.
    """
    rows, makers, labels = view.rows, _refits(view), np.empty(len(view.labels), dtype=object)
    assert rows is not None
    assert rows.y is not None
    labels[:] = view.labels
    means, notes = {name: np.full(len(fold), rows.y.mean()) for name in makers}, []
    covered: np.ndarray | None = np.zeros((len(fold), len(INTERVAL_LEVELS)), dtype=bool)
    for i in range(N_FOLDS):
        held = fold == i
        for j, (name, make) in enumerate(makers.items()):
            progress("held-out errors", i * len(makers) + j, N_FOLDS * len(makers))
            task = labels[rows.codes] if name == "model" else rows.codes
            model = make()
            means[name][held], _, caught = fit_and_predict(model, rows.X, rows.y, task, held)
            if name == "model":
                notes += [" ".join(str(warning.message).split()) for warning in caught]
                inside = covered_rows(model, rows.X[held], rows.y[held], task[held])
                covered = None if covered is None or inside is None else covered
                if covered is not None:
                    covered[held] = inside
    return means, covered, notes


def random_folds(size: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Random folds (rows,) for the rows of tasks of these sizes, sorted by task.

    Of a task of two or three rows no fold has more than one, and some folds have none.
    """
    starts = np.append(0, np.cumsum(size))
    hashes = rng.random(starts[-1]).view(np.uint64)  # the bits have the order of the numbers
    return folds_by_hash(hashes, starts, np.arange(len(size)), N_FOLDS)


def folds_of_partition(size: np.ndarray, seed: int, partition: int = 0) -> np.ndarray:
    """The folds (rows,) of the report, and of the splits of a comparison (split_runs.py)."""
    return random_folds(size, np.random.default_rng([seed, partition]))


def fit_and_predict(
    model: Any,
    X: np.ndarray,
    y: np.ndarray,
    task: np.ndarray,
    held: np.ndarray,
    names: Sequence[str] = (),
) -> tuple[np.ndarray, float, list[warnings.WarningMessage]]:
    """Fit the other rows; return the means of rows ``held``, the seconds and the warnings.

    With ``names`` the features are passed on as a frame, so that warnings name them.
    """
    fitted, predicted = (_with_names(X[rows], names) for rows in (~held, held))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        began = time.perf_counter()
        model.fit(fitted, y[~held], task=task[~held])
        seconds = time.perf_counter() - began
        return mean_responses(model, predicted, task[held]), seconds, caught


def _with_names(X: np.ndarray, names: Sequence[str]) -> Any:
    """A frame of features X (rows, d) with these names; without names X itself."""
    if not names:
        return X
    import pyarrow

    columns = [pyarrow.array(column) for column in X.T]
    return pyarrow.Table.from_arrays(columns, [whole(name) for name in names])


def mean_responses(model: Any, X: Any, task: Any) -> np.ndarray:
    """Mean responses (rows,) of a model; of a classifier the probabilities of the second class."""
    if hasattr(model, "predict_proba"):
        return model.predict_proba(X, task=task)[:, 1]
    return model.predict(X, task=task)


def _refits(view: ModelView) -> dict[str, Callable[[], Any]]:
    """Constructors of the model with its parameters, and of baselines that differ from it."""
    model, params = view.model, view.params
    again = params | {name: value for name, value in REFIT_OPTIONS.items() if name in params}
    again["columns"] = for_coded_rows(model).columns  # the rows are features already
    if isinstance(model, MixedModel) and params.get("varying") is not None:
        varying = np.isin(model.coef_names_, model.varying_)
        again["varying"] = np.flatnonzero(varying).tolist()  # the rows have no names
    makers: dict[str, Callable[[], Any]] = {"model": partial(type(model), **again)}
    if not view.is_normal:
        if len(view.labels) <= MOST_GLMS:
            makers["separate"] = partial(GLMBaseline, view.family, per_task=True)
        makers["pooled"] = partial(GLMBaseline, view.family, per_task=False)
        makers["ignored"] = lambda: IgnoringTasks(GLMBaseline(view.family, per_task=True))
        return makers
    for key in ("separate", "pooled"):
        estimator: Any = estimator_class(BASELINES[key].estimator)
        if model.shares != estimator.shares:
            makers[key] = partial(estimator, fit_intercept=view.centred)
    separate: Any = estimator_class("PerTaskRegressor")
    makers["ignored"] = lambda: IgnoringTasks(separate(fit_intercept=view.centred))
    return makers
