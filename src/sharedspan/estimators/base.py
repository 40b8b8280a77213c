"""What all estimators share: the door, predictions, scores and the scikit-learn contract."""

from __future__ import annotations

import numbers
from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from sharedspan.data.columns import split_columns
from sharedspan.data.labels import label_array
from sharedspan.data.tasks import Tasks, codes_of, is_task_list, open_tasks

PREDICT_BLOCK = 1 << 16  # rows predicted at a time, so that no copy of all coefficients is made


class TaskRegressor(RegressorMixin, BaseEstimator):
    """Base of all estimators: tasks come as ``task=`` or as the column ``task_column`` of X.

    Subclasses implement ``_fit_tasks`` and set ``coef_`` (T, d) and ``intercept_`` (T,).
    """

    # Metadata routing: task travels to fit, predict and score by default.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"task": True}
    __metadata_request__predict: ClassVar[dict[str, bool]] = {"task": True}
    __metadata_request__score: ClassVar[dict[str, bool]] = {"task": True}

    task_column: Any
    unseen: str
    fit_intercept: bool
    coef_: np.ndarray
    intercept_: np.ndarray
    tasks_: np.ndarray
    coef_names_: np.ndarray
    n_features_in_: int

    @abstractmethod
    def _fit_tasks(self, tasks: Tasks) -> None:
        """Fit validated tasks and set the fitted attributes."""

    def fit(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> Self:
        """Fit all tasks together.

        Parameters
        ----------
        X : array-like or frame of shape (rows, d), or a list of T arrays (n_t, d)
        y : array-like of shape (rows,), or a list of T arrays
        task : array-like of shape (rows,), optional
            The task of each row, labels of any hashable kind. Without it, and without
            ``task_column``, all rows are one task (each array of a list is one).
        sample_weight : array-like of shape (rows,), optional
            Counts as repetition: weight 2 is the row written twice, weight 0 the row left out.
            So the scale of the weights matters wherever the number of rows does.

        Returns
        -------
        self
        """
        self._forget()
        try:
            self._validate_parameters()
            if is_task_list(X):
                tasks = open_tasks(X, y, task, sample_weight, task_column=self.task_column)
                self.n_features_in_ = tasks.n_features
            else:
                if getattr(y, "ndim", 1) == 2 and y.shape[1] == 1:
                    y = column_or_1d(np.asarray(y), warn=True)
                tasks = open_tasks(X, y, task, sample_weight, task_column=self.task_column)
                validate_data(self, X, skip_check_array=True)
            self._validate_tasks(tasks)
            self._fit_tasks(tasks)
        except BaseException:
            self._forget()
            raise
        self.tasks_ = label_array(tasks.labels)
        self.coef_names_ = np.array(tasks.names, dtype=object)
        return self

    def predict(self, X: Any, task: Any = None) -> Any:
        """Predict responses.

        Parameters
        ----------
        X : array-like or frame of shape (rows, d)
            A list with one array per task gives a list of predictions.
        task : array-like of shape (rows,), optional
            The task of each row, or one label for all rows; may be left out where ``task_column``
            names it or where the model has a single task. For a list, one label per array.

        Returns
        -------
        ndarray of shape (rows,)
        """
        check_is_fitted(self)
        if is_task_list(X):
            labels = range(len(X)) if task is None else task
            pairs = zip(X, labels, strict=True)
            return [self.predict(block, [label] * len(block)) for block, label in pairs]
        features, codes = self._rows_to_predict(X, task)
        coef, intercept = self.coef_, self.intercept_
        if (codes < 0).any():
            mean_coef, mean_intercept = self._mean_task()
            coef = np.vstack([coef, mean_coef])  # code -1 is this last row
            intercept = np.append(intercept, mean_intercept)
        out = np.empty(len(features))
        for lo in range(0, len(features), PREDICT_BLOCK):
            rows = slice(lo, lo + PREDICT_BLOCK)
            out[rows] = intercept[codes[rows]] + np.einsum(
                "ij,ij->i", features[rows], coef[codes[rows]]
            )
        return out

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """Coefficient of determination R^2 of the predictions over all rows."""
        if is_task_list(X):
            prediction, y = np.concatenate(self.predict(X, task)), np.concatenate(list(y))
            if sample_weight is not None:
                sample_weight = np.concatenate(list(sample_weight))
            return float(r2_score(y, prediction, sample_weight=sample_weight))
        return float(r2_score(y, self.predict(X, task), sample_weight=sample_weight))

    def _mean_task(self) -> tuple[np.ndarray, float]:
        """Coefficients and intercept of a task that was not fitted: the mean over tasks."""
        return self.coef_.mean(axis=0), float(self.intercept_.mean())

    def _rows_to_predict(self, X: Any, task: Any) -> tuple[np.ndarray, np.ndarray]:
        """Features (rows, d) and task codes (rows,), -1 for a task that was not fitted."""
        features, column, _ = split_columns(X, self.task_column)
        validate_data(self, X, reset=False, skip_check_array=True)
        if len(features) == 0:
            raise ValueError(
                f"Found array with 0 sample(s) (shape={features.shape}) while a minimum of 1 is "
                "required: give at least one row to predict."
            )
        if column is not None and task is not None:
            raise ValueError(
                f"Labels came twice, as task= and as the column {self.task_column!r}: give only "
                "one."
            )
        labels = column if column is not None else task
        known = self.tasks_.tolist() if self.tasks_.dtype != object else list(self.tasks_)
        if labels is None:
            if len(known) > 1:
                raise ValueError(
                    f"The model has {len(known)} tasks: give task=, one label per row, so that "
                    "each row is predicted by its own."
                )
            return features, np.zeros(len(features), dtype=np.int64)
        codes, unknown = codes_of(labels, len(features), known)
        if unknown and self.unseen == "error":
            raise ValueError(
                f"{len(unknown)} task(s) were not in the fit, such as {unknown[0]!r}. The model "
                f"knows {len(known)} tasks, such as {known[0]!r}. Fit them too, or use "
                "unseen='mean' to predict them by the mean over tasks."
            )
        return features, codes

    def _forget(self) -> None:
        """Drop everything learned, so that a failed fit leaves no half-fitted model."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    def _validate_parameters(self) -> None:
        one_of("unseen", self.unseen, ("error", "mean"))
        one_of("fit_intercept", self.fit_intercept, (True, False))

    def _validate_tasks(self, tasks: Tasks) -> None:
        """Check parameters against the data (rank against its size, for one)."""

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")


def one_of(name: str, value: Any, known: tuple[Any, ...]) -> None:
    """Raise unless value is one of the known ones."""
    if not any(value is option or (type(value) is type(option) and value == option)
               for option in known):  # fmt: skip
        raise ValueError(f"{name}={value!r} is unknown: use {', '.join(map(repr, known))}.")


def at_least(name: str, value: Any, smallest: float, kind: type = numbers.Real) -> None:
    """Raise unless value is a finite number of the kind, at least ``smallest``."""
    words = "an integer" if kind is numbers.Integral else "a number"
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{name}={value!r} must be {words}, not {type(value).__name__}.")
    if not smallest <= float(value) < np.inf:  # type: ignore[arg-type]
        raise ValueError(f"{name}={value!r} must be {words} of at least {smallest:g}.")


def number_or_auto(name: str, value: Any, smallest: float, kind: type = numbers.Real) -> None:
    """Raise unless value is "auto" or a number as ``at_least`` wants it."""
    try:
        if isinstance(value, str):
            if value != "auto":
                words = "an integer" if kind is numbers.Integral else "a number"
                raise ValueError(f"{name}={value!r} must be {words}.")
        else:
            at_least(name, value, smallest, kind)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} Or use {name}='auto'.") from None


def as_generator(random_state: Any) -> np.random.Generator:
    """A generator of None, an integer, a Generator or scikit-learn's RandomState."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31 - 1))
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"random_state={random_state!r} must be None, an integer of at least 0, or a numpy "
            "random generator."
        ) from error
