"""The base of all estimators: the public methods, over functions that do the work."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable
from copy import copy
from functools import update_wrapper
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
    clone,
)
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from sharedspan.estimators import fitting
from sharedspan.estimators.docstrings import complete_docstrings
from sharedspan.estimators.fitted import FittedSpan, Uncertainty
from sharedspan.estimators.fitting import Needs
from sharedspan.estimators.parameters import SHARED, Check, at_least, parameter_entry
from sharedspan.estimators.prediction import (
    blocks_to_predict,
    feature_columns,
    interval_quantiles,
    predicted_mean,
    response_reach,
    response_std,
    rows_to_predict,
)
from sharedspan.estimators.preparation import read_target
from sharedspan.estimators.saturation import unknown_noise
from sharedspan.families import FAMILIES, Family
from sharedspan.inputs.rows import is_task_list
from sharedspan.statistics.canonical import Problem
from sharedspan.statistics.task_statistics import TaskStatistics

if TYPE_CHECKING:
    from sharedspan.inference.summary import Summary
    from sharedspan.inputs.files import FilePaths
    from sharedspan.inputs.table_columns import TableColumns
    from sharedspan.progress import ProgressCallback


class available_if:  # noqa: N801
    """Methods for some estimators only, whose AttributeError says why, unlike scikit-learn's.

    The argument is a function that raises it for the other estimators.
    """

    def __init__(self, check: Callable[[TaskEstimator], Any]) -> None:
        self.check = check

    def __call__(self, method: Callable[..., Any]) -> Self:
        self.method = method
        update_wrapper(self, method)
        return self

    def __get__(self, model: TaskEstimator | None, kind: type | None = None) -> Any:
        if model is None:
            return self.method
        self.check(model)
        return MethodType(self.method, model)


def _retains_statistics(model: TaskEstimator) -> bool:
    if not model.needs().sums_suffice:
        raise AttributeError(
            "partial_fit, merge and fit_statistics are not available: the statistics of the rows "
            "depend on the fit, unless responses are Gaussian. Fit all rows together by fit or "
            "fit_file."
        )
    if not model.incremental or model.needs().kind == "rows":
        raise AttributeError(
            "partial_fit, merge and fit_statistics are not available: this estimator, solver or "
            "variant needs the rows, but these methods have only statistics. Use fit, or another "
            "solver or variant."
        )
    return True


def _has_intervals(model: TaskEstimator) -> bool:
    if not model.has_intervals:
        raise AttributeError(
            f"{type(model).__name__} has no standard errors: use AdaptiveSpanRegressor, "
            "SharedSpanRegressor or NewTaskRegressor."
        )
    return True


class TaskEstimator(BaseEstimator):
    """Base of all estimators: tasks are given as ``task=`` or as the column ``task_column`` of X.

    A subclass implements ``estimate``, from a canonical problem to a FittedSpan, and ``needs``, its
    requirements for the pass over the rows.
    """

    # Metadata routing: task is passed to these methods by default.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"task": True}
    __metadata_request__partial_fit: ClassVar[dict[str, bool]] = {"task": True}
    __metadata_request__predict: ClassVar[dict[str, bool]] = {"task": True}
    __metadata_request__score: ClassVar[dict[str, bool]] = {"task": True}

    # What the tasks share: "span", "slopes" (one slope vector), "population" (a mixed model),
    # "nothing" (separate regressions), or "prior" (new tasks with a prior on all slopes).
    shares: ClassVar[str] = "span"
    has_intervals: ClassVar[bool] = False
    incremental: ClassVar[bool] = True  # whether it needs statistics alone, and no rows
    checks: ClassVar[dict[str, Check]] = {}  # of parameters, besides the shared ones
    renamed: ClassVar[dict[str, str]] = {}  # old names of parameters and their new ones

    rank: Any
    whiten: bool
    task_column: Any
    unseen: str
    fit_intercept: bool
    max_iter: int
    tol: float
    random_state: Any
    engine: Any
    verbose: int
    keep_statistics: Any
    coef_: np.ndarray
    intercept_: np.ndarray
    noise_variance_: np.ndarray
    tasks_: np.ndarray
    coef_names_: np.ndarray
    n_features_in_: int
    feature_names_in_: np.ndarray
    columns: Any
    columns_: TableColumns
    n_rows_: int
    n_rows_dropped_: int
    uses_offset_: bool  # set if the fit had an offset or exposure
    _statistics_: TaskStatistics

    # ---- what an estimator defines ---------------------------------------------------------------

    @abstractmethod
    def estimate(self, problem: Problem) -> FittedSpan:
        """Estimate from a canonical problem, whose statistics may be changed in place."""

    def needs(self) -> Needs:
        """Requirements for the pass over the rows, by default for a span."""
        return Needs(
            features="whitened" if self.whiten else "scaled",
            common_scale=not self.whiten,
            folds=isinstance(self.rank, str) and self.rank == "auto",
        )

    def response_family(self) -> Family:
        """The family of the responses: normal, unless an estimator models others."""
        return FAMILIES["gaussian"]

    def check_combination(self) -> None:
        """Raise for a combination of parameters that is not allowed."""

    def check_shape(self, n_tasks: int | None, n_features: int) -> None:
        """Raise for a rank larger than the numbers of features and, if it is final, of tasks."""
        rank, largest, words = vars(self).get("rank", 0), n_features, f"the {n_features} features"
        if n_tasks is not None:
            largest = min(n_features, n_tasks)
            words = f"min({n_features} features, {n_tasks} tasks) = {largest}"
        if not isinstance(rank, str) and rank > largest:
            raise ValueError(
                f"rank={rank} is larger than {words}: give a rank from 1 to {largest}, or 'auto'."
            )

    # ---- fitting ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> Self:
        """Fit all tasks together.

        Parameters
        ----------
        {X, y, task, sample_weight}

        Returns
        -------
        self
        """
        fitting.fit_arrays(self, X, y, task, sample_weight)
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
        missing: str | None = None,
        text: str | None = None,
        columns: TableColumns | None = None,
        encoding: str | None = None,
        sheet: str | None = None,
        progress: ProgressCallback | None = None,
        tick: ProgressCallback | None = None,
    ) -> Self:
        """Fit all tasks of CSV or Parquet files, which may be larger than memory.

        The result is the same as of ``fit`` to the same rows, files in the order of their names.
        Rows are sorted by task into a temporary file, as large as the used columns in binary form,
        in the folder that the environment variable TMPDIR names; it is deleted after the fit.

        Parameters
        ----------
        {path, file:task, target, features, drop, memory_limit, missing, text, file:columns}
        {encoding, sheet, progress, tick}

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For invalid values in the files, with the name of the file or column, and for a memory
            limit that is too small.
        OSError
            If the disk of the temporary folder is full.
        """
        fitting.fit_files(
            self, path, task=task, target=target, features=features, drop=drop,
            memory_limit=memory_limit, missing=missing, text=text, columns=columns,
            encoding=encoding, sheet=sheet, progress=progress, tick=tick,
        )  # fmt: skip
        return self

    @available_if(_retains_statistics)
    def fit_statistics(self, frame: Any, *, missing: str = "error") -> Self:
        """Fit all tasks from their statistics, which a database has made.

        ``sharedspan.statistics_query`` returns the SQL that makes the frame. The result is that of
        ``fit`` to the same rows, except where these are needed: ``rank="auto"`` uses the evidence,
        unless the query made folds, and the structure and the noise of ``AdaptiveSpanRegressor``
        are not checked on held-out rows. If the model retains the statistics, ``partial_fit`` and
        ``merge`` continue from them.

        Parameters
        ----------
        frame : pandas, polars or pyarrow table
            A row for each task, in any order, with these columns; the arrays may be written as
            text, as in CSV:

            - ``task``: the label;
            - ``n_rows``: number of rows used;
            - ``means``: array of the d means of the features, and that of the target;
            - ``products``: array of the sums of products of deviations from ``means``, the upper
              triangle of d + 1 by d + 1 row by row, the target last;
            - ``remainders``, optional: means of these deviations, array of d + 1 numbers that are
              zero but for rounding;
            - ``n_missing``, optional: number of rows left out for a missing value;
            - ``names``, optional: in every row the same JSON text, with the names ``task``,
              ``target`` and ``features``;
            - ``fold``, optional: from 0 to 4, with a row for each task and fold.
        missing : {"error", "drop"}, default="error"
            "error" refuses a frame whose ``n_missing`` says that rows were left out; "drop" takes
            it, and counts them in ``n_rows_dropped_``.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For a frame that cannot be statistics of rows, with the name of the column and task.
        """
        fitting.fit_frame(self, frame, missing)
        return self

    @available_if(_retains_statistics)
    def partial_fit(
        self,
        X: Any,
        y: Any,
        task: Any = None,
        sample_weight: Any = None,
        *,
        forgetting: float = 1.0,
    ) -> Self:
        """Add rows, of known or new tasks, and fit again from all statistics.

        The result does not depend on the order of rows and chunks, except for tasks with fewer
        rows than weights and intercept, whose best weights are not unique. The model retains
        d (d + 7) / 2 numbers per task and no rows, so ``rank="auto"`` uses the evidence here.

        Parameters
        ----------
        X, y, task, sample_weight
            The rows, given as to ``fit``.
        forgetting : float, default=1.0
            Factor on the weights of all earlier rows: with 0.99 a chunk has half its weight after
            about 70 calls.

        Returns
        -------
        self
        """
        at_least("forgetting", forgetting, 0.0)
        if not 0 < forgetting <= 1:
            raise ValueError(f"forgetting={forgetting!r} must be in (0, 1], 1 to forget nothing.")
        fitting.add_rows(self, X, y, task, sample_weight, forgetting)
        return self

    @available_if(_retains_statistics)
    def merge(self, *others: TaskEstimator) -> Self:
        """Add the statistics of other fitted models to this one's, and fit again.

        For sites that may share sums over rows but not the rows: the result is the same as of one
        fit to all rows. Tasks of the same label are one task. All models must have retained their
        statistics, by ``partial_fit`` or ``keep_statistics``; the others are not changed.

        Parameters
        ----------
        *others : estimators of the same class

        Returns
        -------
        self
        """
        check_is_fitted(self)
        fitting.merge_statistics(self, others)
        return self

    # ---- the fitted model ------------------------------------------------------------------------

    @property
    def fitted_span(self) -> FittedSpan:
        """The fitted quantities in one object, with None for those that are not estimated."""
        check_is_fitted(self)
        return FittedSpan.of(self)

    def complete(self) -> None:
        """Compute what was deferred until it is used, such as standard errors."""
        _ = self.fitted_span

    def predict(self, X: Any, task: Any = None, return_std: bool = False) -> Any:
        """Predict responses.

        Parameters
        ----------
        {predict:X, predict:task}
        return_std : bool, default=False
            Whether to return also the standard deviation of a new response at each row, of
            prediction and noise together. For a task that was not fitted (``unseen="mean"``) it
            includes the spread over tasks, and is infinite if there is one task only.

        Returns
        -------
        ndarray of shape (rows,), or a pair of them with ``return_std``
        """
        check_is_fitted(self)
        if return_std:
            _has_intervals(self)
        if is_task_list(X):
            blocks = [self.predict(*pair, return_std) for pair in blocks_to_predict(X, task)]
            return tuple(map(list, zip(*blocks, strict=True))) if return_std else blocks
        features, codes = rows_to_predict(self, X, task)
        mean = predicted_mean(self, features, codes)
        return (mean, response_std(self, features, codes)) if return_std else mean

    @available_if(_has_intervals)
    def predict_interval(
        self, X: Any, task: Any = None, level: float = 0.95
    ) -> tuple[np.ndarray, np.ndarray]:
        """Prediction intervals for new responses.

        Parameters
        ----------
        {rows:X, rows:task}
        level : float, default=0.95
            Share of new responses that fall into their intervals, between 0 and 1.

        Returns
        -------
        low, high : ndarray of shape (rows,)
            The prediction minus and plus its standard deviation times a quantile of Student's
            distribution, as in ``coef_interval``. For tasks that were not fitted its degrees of
            freedom are the number of fitted tasks minus one if the population of tasks is
            modelled, and infinite otherwise.
        """
        check_is_fitted(self)
        features, codes = rows_to_predict(self, X, task)
        mean = predicted_mean(self, features, codes)
        reach = response_reach(self, features, codes, level)
        return mean - reach, mean + reach

    @property
    def coef_std_(self) -> np.ndarray:
        """Standard errors of ``coef_``, (T, d), computed when first used; NaN if there are none."""
        _has_intervals(self)
        check_is_fitted(self)
        std = self.uncertainty().coef_std[: len(self.tasks_)]
        return std if unknown_noise(self) is None else np.full_like(std, np.nan)

    @available_if(_has_intervals)
    def coef_interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Confidence intervals for the coefficients.

        Parameters
        ----------
        level : float, default=0.95
            Nominal coverage of each single interval, between 0 and 1; there is no correction for
            multiplicity.

        Returns
        -------
        low, high : ndarray of shape (T, d)
            ``coef_`` minus and plus ``coef_std_`` times a quantile of Student's distribution with
            the degrees of freedom of the task's noise variance.
        """
        check_is_fitted(self)
        reach = interval_quantiles(self, level)[: len(self.tasks_), None] * self.coef_std_
        return self.coef_ - reach, self.coef_ + reach

    def uncertainty(self) -> Uncertainty:
        """The object that standard errors are computed from; AttributeError if there is none."""
        return self._uncertainty_

    def summary(self, level: float = 0.95) -> Summary:
        """Estimates, variance components and measures of the fit, to be printed.

        A model of ``ss.mixed`` has tests of its fixed effects, with Satterthwaite's degrees of
        freedom for Gaussian responses, and its likelihood. They are computed when first used.

        Parameters
        ----------
        level : float, default=0.95
            Nominal coverage of the intervals, between 0 and 1.

        Returns
        -------
        Summary
            ``print`` shows it, and notebooks as HTML; ``to_frame``, ``to_markdown``, ``to_latex``
            and ``in_words`` give it in other forms.
        """
        from sharedspan.estimators.summaries import summary_of

        return summary_of(self, level)

    def save(self, path: str | os.PathLike[str], *, statistics: bool = False) -> None:
        """Write the fitted model to a file, to be read by ``ss.load``.

        The file holds arrays and JSON, with a checksum, and no code. An old file of that name is
        replaced once the new one is complete; a file that is not a model is never replaced.
        Scikit-learn's own settings (``set_output``, metadata requests) are not saved. A classifier
        of more than two classes is saved class by class: see its ``estimators_``.

        Parameters
        ----------
        path : str or path
            By custom it ends in ``.span``.
        statistics : bool, default=False
            Whether to save also the statistics from which ``partial_fit`` and ``merge`` continue;
            they take 4 d (d + 7) bytes per task.

        Raises
        ------
        TypeError
            For task labels other than str, int, float, bool, dates and tuples of them, and for
            parameters such as functions.
        """
        from sharedspan.persistence.model_file import save_model

        check_is_fitted(self)
        save_model(self, path, statistics)

    def export_onnx(
        self,
        path: str | os.PathLike[str],
        *,
        labels: Iterable[Any] | None = None,
        dtype: str = "float64",
    ) -> None:
        """Write the model as an ONNX graph, for serving (``pip install 'sharedspan[onnx]'``).

        Inputs are ``X`` (rows, d), without the task column, and ``task`` (rows,), int64 or string;
        the output is ``prediction`` (rows,). If columns of the table were prepared (``columns_``),
        each is an input (rows,) of its own name instead of X: numbers and dates (days since 1970)
        with NaN for missing values, and text for factors, empty if it is missing. A task that was
        not fitted gives NaN, or the mean task with ``unseen="mean"``. Only for normal responses:
        the predictions of other families are means over the posterior distribution, which a graph
        does not hold.

        Parameters
        ----------
        path : str or path
        labels : iterable of T int or str, optional
            Labels of the tasks in the file, in the order of ``tasks_``; needed if these are neither
            all integers nor all strings. None takes ``tasks_``.
        dtype : {"float64", "float32"}, default="float64"
        """
        from sharedspan.persistence.onnx_export import write_onnx

        check_is_fitted(self)
        write_onnx(self, path, labels, dtype)

    # ---- the scikit-learn contract ---------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return "coef_" in vars(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True  # they become dense
        return tags

    def __sklearn_clone__(self) -> Self:
        if fitting.is_local(self):
            return super().__sklearn_clone__()
        local = copy(self)  # the client of a cluster can be neither copied nor pickled
        local.engine = "local"
        return clone(local).set_params(engine=self.engine)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if not fitting.is_local(self):
            from sharedspan.distributed.engine import portable

            state = state | {"engine": portable(self.engine)}
        return state

    def _validate_read(self) -> None:
        """Check the attributes that predictions depend on, after reading a model from a file."""
        for name in ("unseen", "fit_intercept"):
            SHARED[name].check(name, getattr(self, name))  # type: ignore[misc]
        for name in ("family", "link"):
            if name in self.checks:
                self.checks[name](name, getattr(self, name))
        d, columns = self.coef_.shape[1], vars(self).get("columns_")
        if columns is not None:
            if len(columns.names) != d:
                raise ValueError(f"{len(columns.names)} columns do not match the coefficients.")
            raw = {column.column for column in columns.encoding.columns}
            known = set(vars(self).get("feature_names_in_", raw))
            if not raw <= known:  # format 2 named features, not columns
                self.__dict__.pop("feature_names_in_", None)
                self.n_features_in_ = len(raw) + (self.task_column is not None)
            d = max(len(raw), self.n_features_in_)  # columns of one level have no feature
        widths = {d, d + (self.task_column is not None)}
        names = vars(self).get("feature_names_in_", ())
        if self.n_features_in_ not in widths or len(names) not in (0, self.n_features_in_):
            raise ValueError(f"{self.n_features_in_} columns do not match the coefficients.")

    def _repr_html_inner(self) -> str:
        """HTML for notebooks: the card of a fitted model, or scikit-learn's diagram."""
        if not self.__sklearn_is_fitted__():
            return str(super()._repr_html_inner())
        from sharedspan.estimators.card import card_html

        return card_html(self)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """What notebooks show; HTML unless scikit-learn is set to display text."""
        page = {"text/html": self._repr_html_inner()} if hasattr(self, "_repr_html_") else {}
        return {"text/plain": repr(self)} | page

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        """The attributes of a fitted model in a notebook, without properties to be computed.

        scikit-learn 1.9 evaluates them all to show their shapes; earlier releases do not.
        """
        fitted = {n: v for n, v in vars(self).items() if n.endswith("_") and n[0] != "_"}
        bare = BaseEstimator()
        vars(bare).update(fitted)
        table = bare._get_fitted_attr_html(doc_link)
        table.estimator_class = type(self)
        return table


class TaskRegressor(RegressorMixin, TaskEstimator):
    """Base of all regressors."""

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """Coefficient of determination R^2 of the predictions over all rows."""
        prediction = self.predict(X, task)
        if is_task_list(X):
            prediction, y = np.concatenate(prediction), np.concatenate(list(y))
            if sample_weight is not None:
                sample_weight = np.concatenate(list(sample_weight))
        y = read_target(self, y)
        return float(r2_score(y, prediction, sample_weight=sample_weight))


complete_docstrings(TaskEstimator, parameter_entry)


def fitted_span_of(model: Any) -> FittedSpan:
    """The fitted quantities of a model of this package; TypeError for anything else."""
    if not isinstance(model, TaskEstimator):
        raise TypeError(
            f"The model is a {type(model).__name__} and not an estimator of this package: give a "
            "sharedspan estimator."
        )
    return model.fitted_span


class SpanTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin):
    """Adds ``transform`` to the estimators that have a span."""

    representation_: np.ndarray

    def transform(self, X: Any) -> Any:
        """The features that all tasks share: the rows in the k directions of the span.

        They are the same for all tasks, so labels are not needed, and the column ``task_column``
        is left out. Predictions are these features times ``task_weights_``, if the coefficients
        are in the span, plus intercepts. A model of rank 0 gives no features.

        Parameters
        ----------
        X : array-like or frame of shape (rows, d)
            With the columns of the fit; for a list of arrays, all rows one after the other.

        Returns
        -------
        ndarray of shape (rows, k), or a frame after ``set_output``
            ``X @ representation_``.
        """
        check_is_fitted(self)
        blocks = X if is_task_list(X) else [X]
        features = [feature_columns(self, block)[0] for block in blocks]
        return np.concatenate([rows @ self.representation_ for rows in features])

    def fit_transform(
        self, X: Any, y: Any, task: Any = None, sample_weight: Any = None, **options: Any
    ) -> Any:
        """Fit, and return the shared features of the same rows; see ``fit`` for the arguments."""
        self.fit(X, y, task=task, sample_weight=sample_weight, **options)
        return self.transform(X)

    @property
    def _n_features_out(self) -> int:
        return self.representation_.shape[1]
