"""What all estimators share: the door, predictions, scores and the scikit-learn contract."""

from __future__ import annotations

import numbers
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from sharedspan.estimators.fitted import FittedSpan, Uncertainty
from sharedspan.inputs.frames import split_columns
from sharedspan.inputs.labels import label_array
from sharedspan.inputs.rows import TaskRows, codes_of, is_task_list, validate_rows

if TYPE_CHECKING:
    from sharedspan.inputs.columns import Columns, Selection
    from sharedspan.inputs.files import FilePaths
    from sharedspan.progress import ProgressCallback as Tick

PREDICT_BLOCK = 1 << 16  # rows predicted at a time, so that no copy of all coefficients is made


class TaskRegressor(RegressorMixin, BaseEstimator):
    """Base of all estimators: tasks come as ``task=`` or as the column ``task_column`` of X.

    Subclasses implement ``_fit_tasks`` and set ``coef_`` (T, d) and ``intercept_`` (T,).
    """

    # Metadata routing: task travels to fit, predict and score by default.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"task": True}
    __metadata_request__predict: ClassVar[dict[str, bool]] = {"task": True}
    __metadata_request__score: ClassVar[dict[str, bool]] = {"task": True}

    # What the tasks share: "span", "slopes" (one slope vector), "population" (a mixed model),
    # "nothing" (separate regressions), or "prior" (new tasks with a prior on all slopes).
    shares: ClassVar[str] = "span"

    task_column: Any
    unseen: str
    fit_intercept: bool
    coef_: np.ndarray
    intercept_: np.ndarray
    tasks_: np.ndarray
    coef_names_: np.ndarray
    n_features_in_: int

    @abstractmethod
    def _fit_tasks(self, tasks: TaskRows) -> None:
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
                tasks = validate_rows(X, y, task, sample_weight, task_column=self.task_column)
                self.n_features_in_ = tasks.n_features
            else:
                if getattr(y, "ndim", 1) == 2 and y.shape[1] == 1:
                    y = column_or_1d(np.asarray(y), warn=True)
                tasks = validate_rows(X, y, task, sample_weight, task_column=self.task_column)
                validate_data(self, X, skip_check_array=True)
            self._validate_tasks(tasks)
            self._fit_tasks(tasks)
        except BaseException:
            self._forget()
            raise
        self._name(tasks.labels, tasks.names)
        return self

    def fit_file(
        self,
        path: FilePaths,
        *,
        task: str | None = None,
        target: str | None = None,
        features: str | Iterable[str] | None = None,
        drop: str | Iterable[str] = (),
        memory_limit: int | str | None = None,
        missing: str = "error",
        text: str = "error",
        columns: Columns | None = None,
        tick: Tick | None = None,
    ) -> Self:
        """Fit all tasks of CSV or Parquet files, which may be larger than memory.

        The result is that of ``fit`` to the same rows, files in the order of their names. Rows are
        sorted by task into a temporary file, as large as the used columns in binary form, on the
        disk of the folder that the environment variable TMPDIR names; it is gone after the fit.

        Parameters
        ----------
        path : str, path, or iterable of them
            A file, a pattern such as ``"logs/*.parquet"``, a folder (its CSV or Parquet files;
            names that begin with "." or "_" do not count), or several of them.
        task, target : str
            Column with the task of each row, whose labels become ``int``, ``float`` or ``str``, and
            column to predict.
        features : str or iterable of str, optional
            Columns of X, in this order. None takes all that are neither task, target nor dropped.
        drop : str or iterable of str, optional
            Columns that are no features.
        memory_limit : int or str, optional
            The most memory that the whole process may take, in bytes or as "2GB" or "1.5 GiB".
            Python takes about 0.5 GB of it, DuckDB gets half of the rest for reading, and then
            all of the rest must hold the statistics, about 4 T d (d + 7) bytes for T tasks of d
            features, twice. None reads within 2 GB and lets the fit take what the machine has.
        missing : {"error", "drop"}, default="error"
            "drop" leaves out the rows that lack a value; ``n_rows_dropped_`` says how many.
        text : {"error", "one_hot"}, default="error"
            What to do with a feature of text: refuse it, or replace it by columns of zeros and
            ones, one for each of its levels but the first in sorted order, named such as
            "colour=red". What the first level adds is in the intercepts.
        columns : Columns, optional
            The ``columns_`` of a model that was fitted to files: these are then read as those
            were, levels of text included, and nothing else need be said of columns.
        tick : callable of (what, done, total), optional
            Told now and then what is done and how far it is; a total of 0 is an unknown one.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For what the files hold, with the name of the file or column, and for a memory limit
            that cannot be kept.
        OSError
            Where the disk of the temporary folder is full.
        """
        self._forget()
        try:
            self._validate_parameters()
            chosen = _chosen(
                path, columns, task=task, target=target, features=features, drop=drop, text=text
            )
            if self.task_column not in (None, chosen.task):
                raise ValueError(
                    f"task={chosen.task!r}, but the model has task_column={self.task_column!r}: "
                    "give the same column, or leave task_column out."
                )
            names = chosen.names if self.task_column is None else chosen.names_with_task()
            self._set_feature_names(names)
            self._fit_selection(chosen, missing, memory_limit, tick)
            self.columns_ = chosen.columns
        except BaseException:
            self._forget()
            raise
        return self

    def _fit_selection(
        self, selection: Selection, missing: str, memory_limit: Any, tick: Tick | None
    ) -> None:
        """Fit rows of files; parameters as in ``fit_file``."""
        from sharedspan.inputs.external_sort import spooled

        with spooled(selection, missing=missing, memory_limit=memory_limit, tick=tick) as found:
            tasks, self.n_rows_dropped_ = found
            if tick is not None:
                tick("fitting", 0, 0)
            self._validate_tasks(tasks)
            self._fit_tasks(tasks)
        self._name(tasks.labels, tasks.names)

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
            pairs = self._blocks_to_predict(X, task)
            return [self.predict(block, labels) for block, labels in pairs]
        return self._predict_rows(*self._rows_to_predict(X, task))

    def _predict_rows(self, features: np.ndarray, codes: np.ndarray) -> np.ndarray:
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

    def save(self, path: str | os.PathLike[str], *, statistics: bool = False) -> None:
        """Write the fitted model to a file, to be read by ``ss.load``.

        The file holds arrays and JSON, with a checksum, and no code. The old file of that name is
        replaced once the new one is whole; a file that is no model is never replaced. Settings of
        scikit-learn's own (``set_output``, metadata requests) are not kept.

        Parameters
        ----------
        path : str or path
            By custom it ends in ``.span``.
        statistics : bool, default=False
            Whether to keep the sums that ``partial_fit`` and ``merge`` go on from, too; they are
            d / k times larger than the rest.

        Raises
        ------
        TypeError
            For task labels other than str, int, float, bool, dates and tuples of them, and for
            parameters such as functions.
        """
        from sharedspan.persistence.model_file import save

        check_is_fitted(self)
        save(self, path, statistics)

    def export_onnx(
        self,
        path: str | os.PathLike[str],
        *,
        labels: Iterable[Any] | None = None,
        dtype: str = "float64",
    ) -> None:
        """Write the model as an ONNX graph, for serving (``pip install 'sharedspan[onnx]'``).

        Inputs are ``X`` (rows, d), without the task column, and ``task`` (rows,), int64 or string;
        the output is ``prediction`` (rows,). A task that was not fitted gives NaN, or the mean task
        with ``unseen="mean"``.

        Parameters
        ----------
        path : str or path
        labels : iterable of T int or str, optional
            How the file calls the tasks, in the order of ``tasks_``; needed where these are neither
            all integers nor all strings. None takes ``tasks_``.
        dtype : {"float64", "float32"}, default="float64"
        """
        from sharedspan import __version__
        from sharedspan.persistence.onnx_export import write_onnx

        check_is_fitted(self)
        write_onnx(
            path,
            labels=self.tasks_.tolist() if labels is None else list(labels),
            coef=self.coef_,
            intercept=self.intercept_,
            mean_task=self._mean_task() if self.unseen == "mean" else None,
            names=self.coef_names_.tolist(),
            metadata={"class": type(self).__name__, "sharedspan": __version__},
            dtype=dtype,
        )

    @property
    def fitted_span(self) -> FittedSpan:
        """The fitted quantities in one object, with None for what this estimator lacks."""
        check_is_fitted(self)
        return FittedSpan.of(self)

    def _mean_task(self) -> tuple[np.ndarray, float]:
        """Coefficients and intercept of a task that was not fitted: the mean over tasks."""
        return self.coef_.mean(axis=0), float(self.intercept_.mean())

    def _blocks_to_predict(self, X: Any, task: Any) -> Iterator[tuple[Any, list[Any]]]:
        """The arrays of a list, each with the label of each of its rows."""
        labels = range(len(X)) if task is None else task
        return ((block, [label] * len(block)) for block, label in zip(X, labels, strict=True))

    def _columns_of(self, X: Any) -> tuple[np.ndarray, Any]:
        """Features (rows, d) of rows like those of the fit, and the column of labels if named."""
        features, column, _ = split_columns(X, self.task_column)
        validate_data(self, X, reset=False, skip_check_array=True)
        if len(features) == 0:
            raise ValueError(
                f"Found array with 0 sample(s) (shape={features.shape}) while a minimum of 1 is "
                "required: give at least one row."
            )
        return features, column

    def _rows_to_predict(self, X: Any, task: Any) -> tuple[np.ndarray, np.ndarray]:
        """Features (rows, d) and task codes (rows,), -1 for a task that was not fitted."""
        features, column = self._columns_of(X)
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
                f"knows {len(known)} tasks, such as {known[0]!r}. Fit them too, adapt the model to "
                "them, or use unseen='mean' (--unseen mean) to predict them by the mean over tasks."
            )
        return features, codes

    def _name(self, labels: Sequence[Any], names: Sequence[str]) -> None:
        """Whose coefficients these are."""
        self.tasks_ = label_array(labels)
        self.coef_names_ = np.array(names, dtype=object)

    def _set_feature_names(self, names: Sequence[str]) -> None:
        """The columns of X, where it is no array that scikit-learn could look at."""
        self.n_features_in_ = len(names)
        self.feature_names_in_ = np.array(names, dtype=object)

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        """What a notebook shows of a fitted model, without the properties it would compute.

        scikit-learn 1.9 evaluates them all to show their shapes; earlier ones do not ask.
        """
        kept = {n: v for n, v in vars(self).items() if n.endswith("_") and not n.startswith("_")}
        bare = BaseEstimator()
        vars(bare).update(kept)
        table = bare._get_fitted_attr_html(doc_link)
        table.estimator_class = type(self)
        return table

    def _forget(self) -> None:
        """Drop everything learned, so that a failed fit leaves no half-fitted model."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    def _validate_parameters(self) -> None:
        one_of("unseen", self.unseen, ("error", "mean"))
        one_of("fit_intercept", self.fit_intercept, (True, False))

    def _validate_read(self) -> None:
        """Check what predictions depend on, of a model that was read from a file."""
        TaskRegressor._validate_parameters(self)
        widths = {self.coef_.shape[1], self.coef_.shape[1] + (self.task_column is not None)}
        names = getattr(self, "feature_names_in_", ())
        if self.n_features_in_ not in widths or len(names) not in (0, self.n_features_in_):
            raise ValueError(f"{self.n_features_in_} columns do not go with the coefficients.")

    def _validate_tasks(self, tasks: TaskRows) -> None:
        """Check parameters against the data."""
        self._validate_shape(tasks.n_tasks, tasks.n_features)

    def _validate_shape(self, n_tasks: int, n_features: int) -> None:
        """Check parameters against the numbers of tasks and features (the rank, for one)."""

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")


class IntervalRegressor(TaskRegressor):
    """Base of the estimators that know how far off they may be."""

    noise_variance_: np.ndarray

    @abstractmethod
    def _uncertainty(self) -> Uncertainty:
        """The uncertainty of the fit; AttributeError where there is none."""

    @property
    def coef_std_(self) -> np.ndarray:
        """Standard errors of ``coef_``, (T, d), computed when first asked for."""
        check_is_fitted(self)
        return self._uncertainty().coef_std

    def coef_interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Confidence intervals of the coefficients.

        Parameters
        ----------
        level : float, default=0.95
            Share of the intervals that cover the truth, between 0 and 1. Each interval by
            itself: there is no correction for looking at many.

        Returns
        -------
        low, high : ndarray of shape (T, d)
            ``coef_`` less and plus ``coef_std_`` times a quantile of Student's distribution with
            the degrees of freedom of the task's noise variance.
        """
        reach = self._quantiles(level)[:, None] * self.coef_std_
        return self.coef_ - reach, self.coef_ + reach

    def predict_interval(
        self, X: Any, task: Any = None, level: float = 0.95
    ) -> tuple[np.ndarray, np.ndarray]:
        """Intervals that new responses fall into.

        Parameters
        ----------
        X, task
            As in ``predict``; X is one array or frame.
        level : float, default=0.95
            Share of new responses that fall into their intervals, between 0 and 1.

        Returns
        -------
        low, high : ndarray of shape (rows,)
            The prediction less and plus its standard deviation times a quantile of Student's
            distribution, as in ``coef_interval``; of the normal one for tasks that were not fitted.
        """
        from scipy.stats import norm

        quantiles = np.append(self._quantiles(level), norm.ppf(0.5 + level / 2))
        features, codes = self._rows_to_predict(X, task)
        mean = self._predict_rows(features, codes)
        reach = quantiles[codes] * self._response_std(features, codes)  # code -1 is the last
        return mean - reach, mean + reach

    def _quantiles(self, level: float) -> np.ndarray:
        """Standard errors to either side of an estimate that make an interval, (T,)."""
        from scipy.stats import norm, t

        check_is_fitted(self)
        at_least("level", level, 0.0)
        if not 0 < level < 1:
            raise ValueError(f"level={level!r} must lie between 0 and 1, such as 0.95.")
        degrees, upper = self._uncertainty().degrees, 0.5 + level / 2
        finite = np.isfinite(degrees)
        return np.where(finite, t.ppf(upper, np.where(finite, degrees, 1)), norm.ppf(upper))

    def predict(self, X: Any, task: Any = None, return_std: bool = False) -> Any:
        """Predict responses.

        Parameters
        ----------
        X : array-like or frame of shape (rows, d)
            A list with one array per task gives a list of predictions.
        task : array-like of shape (rows,), optional
            The task of each row, or one label for all rows; may be left out where ``task_column``
            names it or where the model has a single task. For a list, one label per array.
        return_std : bool, default=False
            Whether to return the standard deviation of a new response at each row too: that of
            the prediction and the noise together. For a task that was not fitted
            (``unseen="mean"``) it holds the spread over tasks, and is infinite if there is one
            task only.

        Returns
        -------
        ndarray of shape (rows,), or a pair of them with ``return_std``
        """
        if not return_std:
            return super().predict(X, task)
        check_is_fitted(self)
        if is_task_list(X):
            pairs = self._blocks_to_predict(X, task)
            found = [self.predict(block, labels, return_std=True) for block, labels in pairs]
            return [mean for mean, _ in found], [std for _, std in found]
        features, codes = self._rows_to_predict(X, task)
        return self._predict_rows(features, codes), self._response_std(features, codes)

    def _response_std(self, features: np.ndarray, codes: np.ndarray) -> np.ndarray:
        uncertainty, std, known = self._uncertainty(), np.empty(len(features)), codes >= 0
        if known.any():
            std[known] = uncertainty.response_std(features[known], codes[known])
        if not known.all():
            std[~known] = self._unseen_std(features[~known])
        return std

    def _unseen_std(self, features: np.ndarray) -> np.ndarray:
        """Of responses of one more task of the population that the fitted ones come from."""
        T = len(self.coef_)
        if T == 1:
            return np.full(len(features), np.inf)
        spread = np.column_stack([self.coef_, self.intercept_])
        root = np.linalg.qr(spread - spread.mean(axis=0), mode="r") / np.sqrt(T - 1)
        varied = np.sum((features @ root[:, :-1].T + root[:, -1]) ** 2, axis=1)
        return np.sqrt(varied * (1 + 1 / T) + self.noise_variance_.mean())


def _chosen(path: FilePaths, columns: Columns | None, **said: Any) -> Selection:
    """What to read: the columns that were said, or those of another model."""
    from sharedspan.inputs.selection import match_columns as match
    from sharedspan.inputs.selection import select_columns as resolve

    given = [name for name, value in said.items() if value not in (None, (), "error")]
    if columns is None:
        if said["task"] is None or said["target"] is None:
            raise TypeError("fit_file needs task= and target=, the names of two columns.")
        return resolve(path, **said)
    if given:
        raise ValueError(f"columns= says what all columns are: leave out {', '.join(given)}.")
    if columns.target is None:
        raise ValueError("columns= has no target, and a fit needs one: use replace(columns, ...).")
    return match(path, columns)


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
