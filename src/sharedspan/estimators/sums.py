"""Estimators that need nothing of the rows but sums per task: streams, sites and clusters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from sharedspan.distributed.engine import as_engine, portable
from sharedspan.distributed.sources import (
    DaskFrame,
    gather_files,
    gather_frame,
    gather_rows,
    is_dask_frame,
)
from sharedspan.estimators.base import TaskRegressor, at_least, one_of
from sharedspan.inputs.rows import TaskRows, is_task_list, validate_rows
from sharedspan.statistics.canonical import inverse_deviations
from sharedspan.statistics.sums import GramStatistics
from sharedspan.statistics.task_statistics import TaskStatistics, gather

if TYPE_CHECKING:
    from sharedspan.inputs.columns import Selection
    from sharedspan.progress import ProgressCallback as Tick

KEPT_BYTES = 2**27  # sums that keep_statistics="auto" keeps
MOST_COVARIANCES = 500  # features whose covariance matrix is kept


@dataclass(frozen=True)
class Solution:
    """Where the last fit ended, in the user's units: a refit may start there."""

    labels: tuple[Any, ...]
    representation: np.ndarray  # (d, k)
    task_weights: np.ndarray  # (k, T)
    rows: float  # sum of weights that the last fit from scratch had


def _needs_no_rows(model: SumsRegressor) -> bool:
    if model._kind() == "rows":
        raise AttributeError(
            "partial_fit and merge keep sums and no rows, but the chosen solver or mode splits or "
            "draws rows: choose another, or use fit."
        )
    return True


class SumsRegressor(TaskRegressor):
    """Base of the estimators that work on sums per task; with ``engine``, ``keep_statistics``.

    Subclasses implement ``_fit_gathered``.
    """

    __metadata_request__partial_fit: ClassVar[dict[str, bool]] = {"task": True}

    engine: Any
    keep_statistics: Any
    feature_covariance_: np.ndarray
    _sums_: TaskStatistics

    def __sklearn_clone__(self) -> Self:
        # A client can be neither copied nor pickled, and need not be.
        parameters = self.get_params(deep=False) | {"engine": "local"}
        copied = {name: clone(value, safe=False) for name, value in parameters.items()}
        other = type(self)(**copied).set_params(engine=self.engine)
        for name in ("_metadata_request", "_sklearn_output_config"):
            if hasattr(self, name):
                setattr(other, name, deepcopy(getattr(self, name)))
        return other

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"engine": portable(self.engine)}

    @abstractmethod
    def _fit_gathered(self, gathered: TaskStatistics, last: Solution | None = None) -> None:
        """Fit from statistics, which may be changed in place, and set the fitted attributes."""

    def fit(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> Self:
        """Fit all tasks together; parameters as in ``TaskRegressor.fit``.

        On a cluster X may also be a Dask DataFrame, with y and task (or ``task_column``) names of
        its columns, or Dask Series. Its rows are never on the driver.
        """
        if not is_dask_frame(X):
            return super().fit(X, y, task, sample_weight)
        self._forget()
        engine = as_engine(self.engine)
        if engine is None:
            raise ValueError(
                "X is a Dask DataFrame, and engine='local' works on this machine's memory: use "
                "engine='dask' or a client, or call compute() first."
            )
        try:
            self._validate_parameters()
            frame = DaskFrame.of(X, y, task, self.task_column, sample_weight)
            self._set_feature_names(frame.names_in)
            gathered = gather_frame(engine, frame, self.fit_intercept, **self._gather_options())
            self._fit_remote(gathered)
        except BaseException:
            self._forget()
            raise
        return self

    def _fit_selection(
        self, selection: Selection, missing: str, memory_limit: Any, tick: Tick | None
    ) -> None:
        engine = as_engine(self.engine)
        if engine is None:
            super()._fit_selection(selection, missing, memory_limit, tick)
            return
        gathered, self.n_rows_dropped_ = gather_files(
            engine, selection, missing, self.fit_intercept, **self._gather_options()
        )
        self._fit_remote(gathered)

    def _gather_options(self) -> dict[str, Any]:
        return {
            "common_scale": self._common_scale(),
            "kind": self._kind(),
            "keep_rows": self._needs_folds(),
        }

    def _fit_remote(self, gathered: TaskStatistics) -> None:
        """Fit statistics that a cluster has built."""
        T, d = len(gathered.labels), len(gathered.names)
        with closing(gathered):
            self._validate_shape(T, d)
            if self._keeps(T, d):
                kept = gathered.copy()
                if isinstance(kept.statistics, GramStatistics):  # rows are nothing to keep
                    self._sums_ = kept
            self._fit_sums(gathered)
        self._name(gathered.labels, gathered.names)

    def _fit_tasks(self, tasks: TaskRows) -> None:
        with closing(self._gather(tasks)) as gathered:
            if self._keeps(tasks.n_tasks, tasks.n_features):
                kept = gathered.copy()
                if not isinstance(kept.statistics, GramStatistics):
                    scale = self._common_scale()
                    kept = gather(tasks, self.fit_intercept, common_scale=scale, kind="gram")
                    kept = replace(kept, rows=None)
                self._sums_ = kept
            self._fit_sums(gathered)

    def _fit_sums(self, gathered: TaskStatistics, last: Solution | None = None) -> None:
        """Fit, and keep what reports need to know of the features."""
        statistics, scale = gathered.statistics, gathered.units.scale
        if statistics.n_features <= MOST_COVARIANCES:
            covariance = statistics.pooled_gram() / statistics.n.sum()
            still = inverse_deviations(statistics) == 0  # but for rounding
            covariance[still] = covariance[:, still] = 0.0
            with np.errstate(over="ignore"):
                covariance = covariance / scale / scale[:, None]
            if np.isfinite(covariance).all():  # squares of very large features do not exist
                self.feature_covariance_ = covariance
        self._fit_gathered(gathered, last)

    def _gather(self, tasks: TaskRows) -> TaskStatistics:
        """One pass over the rows, here or on a cluster."""
        engine = as_engine(self.engine)
        if engine is not None:
            return gather_rows(engine, tasks, self.fit_intercept, **self._gather_options())
        kind, scale = self._kind(), self._common_scale()
        return gather(tasks, self.fit_intercept, common_scale=scale, kind=kind)

    def _keeps(self, n_tasks: int, n_features: int) -> bool:
        """Whether the model keeps its sums."""
        if self.keep_statistics == "auto":
            return 8 * n_tasks * n_features * (n_features + 7) / 2 <= KEPT_BYTES
        return bool(self.keep_statistics)

    def _kind(self) -> str:
        """The kind of statistics that the fit needs, as in ``collect``."""
        return "auto"

    def _needs_folds(self) -> bool:
        """Whether the fit leaves rows out and puts them back."""
        return False

    def _common_scale(self) -> bool:
        """Whether features keep their proportions, as in ``Units.of``."""
        return False

    def _solution(self) -> Solution | None:
        """The last fit, where a refit can start from it."""
        return None

    @available_if(_needs_no_rows)
    def partial_fit(
        self,
        X: Any,
        y: Any,
        task: Any = None,
        sample_weight: Any = None,
        *,
        forgetting: float = 1.0,
    ) -> Self:
        """Add rows, of known or of new tasks, and fit again from all sums.

        The order of rows, and how they are cut into chunks, does not matter, but for tasks with no
        more rows than rank and intercept, which have many best weights. The model keeps sums of
        d (d + 7) / 2 numbers per task and no rows, so ``rank="auto"`` goes by evidence here.

        Parameters
        ----------
        X, y, task, sample_weight
            As in ``fit``.
        forgetting : float, default=1.0
            What all earlier rows count from now on, as a factor on their weights: 0.99 lets a
            chunk fade to half its weight in about 70 calls.

        Returns
        -------
        self
        """
        at_least("forgetting", forgetting, 0.0)
        if not 0 < forgetting <= 1:
            raise ValueError(f"forgetting={forgetting!r} must lie in (0, 1], 1 to forget nothing.")
        first = not self.__sklearn_is_fitted__()
        with self._unchanged_on_error():
            self._require_sums_enough("partial_fit", first)
            tasks = validate_rows(X, y, task, sample_weight, task_column=self.task_column)
            if is_task_list(X):
                self._check_width(tasks, first)
            else:
                validate_data(self, X, reset=first, skip_check_array=True)
            scale = self._common_scale()
            if first:
                sums = gather(tasks, self.fit_intercept, common_scale=scale, kind="gram")
            else:
                sums = self._sums_.plus(tasks, forgetting=forgetting, common_scale=scale)
            return self._refit(sums)

    @available_if(_needs_no_rows)
    def merge(self, *others: TaskRegressor) -> Self:
        """Add the sums of other fitted models to this one's, and fit again.

        For sites that may share sums but not rows: the result is that of one fit to the rows of
        all. Tasks of the same label are one task. All models must have kept their sums, as
        ``partial_fit`` does and ``keep_statistics`` says; the others are not changed.

        Parameters
        ----------
        *others : estimators of the same class

        Returns
        -------
        self
        """
        check_is_fitted(self)
        with self._unchanged_on_error():
            self._require_sums_enough("merge", first=False)
            sums = self._sums_
            for other in others:
                self._require_alike(other)
                sums = sums.merged(other._sums_)
            return self._refit(sums)

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        """If anything fails, the model is what it was."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _refit(self, sums: TaskStatistics) -> Self:
        """Fit from kept sums."""
        last = self._solution() if self.__sklearn_is_fitted__() else None
        self._fit_sums(sums.copy(), last)
        self._sums_ = sums
        self._name(sums.labels, sums.names)
        return self

    def _require_sums(self, method: str) -> None:
        check_is_fitted(self)
        if not hasattr(self, "_sums_"):
            raise ValueError(
                f"{method} needs the sums of the rows so far, and fit did not keep them: fit with "
                "keep_statistics=True, or by partial_fit (all rows at once will do)."
            )

    def _require_sums_enough(self, method: str, first: bool) -> None:
        """Raise where there are no sums to go on from."""
        self._validate_parameters()
        if first:
            return
        self._require_sums(method)
        if self._sums_.statistics.centred != self.fit_intercept:
            raise ValueError(
                f"fit_intercept={self.fit_intercept!r} is not what the kept sums were built with: "
                "set it back, or fit again from the rows."
            )

    def _require_alike(self, other: Any) -> None:
        if type(other) is not type(self):
            raise TypeError(
                f"merge was given a {type(other).__name__}: give a fitted {type(self).__name__}."
            )
        other._require_sums("merge")
        mine, theirs = self._sums_, other._sums_
        if mine.names != theirs.names:
            raise ValueError(
                f"The models have different features, {_first(mine.names)} and "
                f"{_first(theirs.names)}: fit both to the same columns in the same order."
            )
        if mine.statistics.centred != theirs.statistics.centred:
            raise ValueError(
                "One model has intercepts and the other has none: fit both with the same "
                "fit_intercept."
            )

    def _check_width(self, tasks: TaskRows, first: bool) -> None:
        if first:
            self.n_features_in_ = tasks.n_features
        elif tasks.n_features != self.n_features_in_:
            raise ValueError(
                f"X has {tasks.n_features} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )

    def _validate_parameters(self) -> None:
        super()._validate_parameters()
        as_engine(self.engine)
        one_of("keep_statistics", self.keep_statistics, ("auto", True, False))


def _first(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
