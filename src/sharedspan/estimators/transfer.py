"""New tasks in a span that is already known: ridge with a prior, least squares, or a stream."""

from __future__ import annotations

import math
import numbers
import warnings
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sharedspan.estimators import fitting
from sharedspan.estimators.base import SpanTransformer, TaskEstimator, TaskRegressor
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.fitting import Needs
from sharedspan.estimators.parameters import at_least, check_parameters, estimator, one_of
from sharedspan.estimators.span_prior import SpanPrior, given_covariance, given_representation
from sharedspan.estimators.stream import DescentOptions, Stream
from sharedspan.families import Gaussian
from sharedspan.inference.span_errors import SpanUncertainty
from sharedspan.inference.weight_errors import (
    CrossSums,
    SpanError,
    WeightsUncertainty,
    weights_covariance,
)
from sharedspan.inputs.labels import canonical_order
from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.statistics.canonical import Problem
from sharedspan.statistics.task_statistics import TaskStatistics

METHODS = ("prior", "least_squares", "sgd")


def _number_or_none(name: str, value: Any, smallest: float, kind: type = numbers.Real) -> None:
    if value is not None:
        at_least(name, value, smallest, kind)


@estimator(
    "representation prior_mean prior_covariance noise_variance representation_covariance method "
    "horizon sgd_options fit_intercept unseen task_column"
)
class NewTaskRegressor(SpanTransformer, TaskRegressor):
    """New tasks y_t = intercept_t + X_t B w_t + noise in a known span: only w_t is learned.

    ``NewTaskRegressor.from_model(model)`` takes B and the prior from a fitted model.

    Parameters
    ----------
    representation : array-like of shape (d, k), optional
        B. None is the identity: all d features. A fit never changes it.
    prior_mean : array-like of shape (k,), optional
        Mean m of the task weights; None is zero.
    prior_covariance : array-like of shape (k, k), optional
        Covariance Sigma of the task weights, possibly singular. None is a flat prior, with which
        "prior" is the same as "least_squares".
    noise_variance : float, optional
        sigma^2. None estimates it from the residuals of least squares in the span, pooled over
        tasks, with degrees of freedom for rank and intercepts; if no degrees of freedom are left,
        from the part of the variance of the responses that the prior does not explain.
    representation_covariance : array-like of shape (k * d, k * d), optional
        Covariance of the entries of B, its columns one after the other, which standard errors
        then include. None takes B as exact.
    method : {"prior", "least_squares", "sgd"}, default="prior"
        "prior" minimises |y - intercept - XBw|^2 / sigma^2 + (w - m)' Sigma^-1 (w - m), which is
        best for few rows. "least_squares" is least squares in the span, with v = Bw of minimum
        norm if it is not unique. "sgd" is the paper's Algorithm 2: one pass in the order of rows,
        w <- w - eta (f'w - y) f with f = B'x, whose step is constant at first and then halved
        repeatedly; ``sgd_options`` has its inputs. With an intercept, features and responses are
        centred at their means over a task's first min(K2, 32) rows, and f gets a constant feature
        of the size of the others. Its sample weights must be 0 or 1.
    horizon : int, optional
        K2, the rows that "sgd" expects of each task. ``fit`` uses the rows of the task instead;
        ``partial_fit`` requires it. Later rows of a task are left out, with a warning.
    sgd_options : dict, optional
        Inputs of "sgd", for tasks that are new:

        - "step_size": eta_0, by default 1 / (3 trace), where the trace is the mean of |f|^2 over a
          task's first min(K2, 32) rows;
        - "constant_rows": h, by default 0. The step is constant for h + K2' + 1 rows,
          with K2' = floor((K2 - h) / ln(K2 - h)), and then halved every K2' rows;
        - "start": w^(0), of shape (k,), by default zero;
        - "clip": whether no step exceeds 2 / |f|^2, beyond which it enlarges the residual of its
          own row. The paper does not have this safeguard. By default True: Gaussian rows almost
          never need it (the same risks with and without it from 30 to 1000 rows, k = 5), and it
          keeps single rows of heavy-tailed features from undoing the pass. Mean risks with and
          without it were 0.030 and 0.041 for 100 rows from a multivariate t distribution with
          5 degrees of freedom, 0.060 and 0.347 with 3;
        - "as_printed": True runs the loop of Algorithm 2 as the paper prints it: K2 - 1 updates,
          the first halving at update h + K2', and no clip. By default False: K2 updates, as in
          Theorem 5.4, with the step sizes of the display below Algorithm 2.
    {fit_intercept, unseen, task_column}

    Attributes
    ----------
    {tasks_, coef_, intercept_, coef_names_, n_features_in_, feature_names_in_}
    representation_ : ndarray of shape (d, k)
    task_weights_ : ndarray of shape (k, T)
        ``coef_ = (representation_ @ task_weights_).T``.
    rank_ : int
        k.
    noise_variance_ : ndarray of shape (T,)
        All equal; NaN if no task has enough rows.
    coef_std_ : ndarray of shape (T, d)
        Standard errors of ``coef_``, computed when first used; with a prior the standard
        deviations of its posterior. "sgd" has none.

    References
    ----------
    Ding, Du and Fang (2026), "Near-optimal and efficient first-order algorithm for multi-task
    learning with shared linear representation", Algorithm 2.
    """

    has_intervals = True
    incremental = False  # merge has nothing to add up: a task's rows stay with it
    checks: ClassVar = {
        "method": partial(one_of, known=METHODS),
        "noise_variance": partial(_number_or_none, smallest=0.0),
        "horizon": partial(_number_or_none, smallest=1, kind=numbers.Integral),
        "sgd_options": lambda name, value: DescentOptions.of(value),
    }

    representation: Any = None
    prior_mean: Any = None
    prior_covariance: Any = None
    noise_variance: Any = None
    representation_covariance: Any = None
    method: str = "prior"
    horizon: int | None = None
    sgd_options: dict[str, Any] | None = None
    _prior_: SpanPrior
    _streams_: dict[Any, Stream]
    _span_covariance_: np.ndarray | None
    _cross_sums_: dict[Any, CrossSums]
    _uncertainty_: WeightsUncertainty | None

    @property
    def shares(self) -> str:  # type: ignore[override]
        """The tasks share a prior if the span has all features, otherwise the span."""
        d, k = self.representation_.shape
        return "prior" if k == d else "span"

    @classmethod
    def from_model(cls, model: Any, method: str = "prior") -> Self:
        """An estimator for new tasks with the span, prior and noise of a fitted model.

        The prior has the mean and the covariance C of the T fitted task weights, with trace(C) / T
        added to the diagonal of C: T tasks determine C only to about this accuracy, and the sum is
        positive definite. The estimation noise of the weights is not subtracted, so the prior is a
        little wide. ``fit_intercept`` and ``task_column`` are the model's, and so is the covariance
        of the entries of B if the model has it. A model of the distribution of slopes between tasks
        (AdaptiveSpanRegressor) gives this distribution as the prior, on all d slopes.

        Parameters
        ----------
        model : estimator
            With ``representation_`` and ``task_weights_``, or with ``mean_coef_`` and
            ``coef_covariance_``.
        method : {"prior", "least_squares", "sgd"}, default="prior"
        """
        check_is_fitted(model)
        if isinstance(model, TaskEstimator) and not isinstance(model.response_family(), Gaussian):
            name = model.response_family().name
            raise TypeError(
                f"The model is of {name} responses, but new tasks are fitted by least squares: fit "
                "new and old tasks together with the same estimator, or predict new tasks by the "
                "population with unseen='mean' (--unseen mean)."
            )
        fitted = model.fitted_span if isinstance(model, TaskEstimator) else FittedSpan.of(model)
        if fitted.representation is None or fitted.task_weights is None:
            raise TypeError(
                f"The model is a {type(model).__name__}, which has no representation_ and "
                "task_weights_: give a model with a span, such as a SharedSpanRegressor or an "
                "AdaptiveSpanRegressor, or pass representation= yourself."
            )
        noise = math.nan if fitted.noise_variance is None else float(fitted.noise_variance.mean())
        settings = model.get_params(deep=False)
        common: dict[str, Any] = {
            "noise_variance": noise if math.isfinite(noise) else None,
            "method": method,
            "fit_intercept": settings.get("fit_intercept", True),
            "task_column": settings.get("task_column"),
            "columns": vars(model).get("columns_"),
        }
        if fitted.mean_coef is not None:  # a model of the population of tasks
            return cls(
                representation=np.eye(len(model.mean_coef_)),
                prior_mean=np.array(model.mean_coef_),
                prior_covariance=np.array(model.coef_covariance_),
                **common,
            )
        W = np.asarray(fitted.task_weights, dtype=float)
        k, T = W.shape
        mean = W.mean(axis=1)
        spread = W - mean[:, None] if T > 1 else W  # a single task: about zero
        C = spread @ spread.T / max(T - 1, 1)
        return cls(
            representation=np.array(fitted.representation, dtype=float),
            prior_mean=mean,
            prior_covariance=C + np.trace(C) / T * np.eye(k) if C.any() else None,
            representation_covariance=_representation_covariance(fitted),
            **common,
        )

    def check_combination(self) -> None:
        """Raise for options of Algorithm 2 without it."""
        if self.sgd_options and self.method != "sgd":
            raise ValueError(
                f"sgd_options are only used by method='sgd', not by method={self.method!r}: leave "
                "them out."
            )

    def needs(self) -> Needs:
        """The rows themselves, task by task."""
        return Needs(kind=None)

    def partial_fit(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> Self:
        """Add rows, of known or new tasks.

        Rows one by one and in chunks give the same result. All parameters are read at the first
        call (of this method or of ``fit``), except ``horizon`` and ``sgd_options``, which new tasks
        take from the call that has their first rows.

        Parameters
        ----------
        {X, y, task, sample_weight}

        Returns
        -------
        self
        """
        first = "_prior_" not in vars(self)
        method = self.method if first else self._prior_.method
        if method == "sgd" and self.horizon is None:
            raise ValueError(
                "horizon=None with method='sgd': partial_fit needs the number of rows to expect. "
                "Give horizon=, the number of rows expected of each task, or use fit."
            )
        with fitting.unfitted_on_error(self) if first else nullcontext():
            check_parameters(self)
            rows = fitting.open_rows(self, X, y, task, sample_weight, reset=first)
            self._require_columns(rows)
            if first:
                self._begin(rows.n_features)
            fitted = self._add(rows, np.full(rows.n_tasks, self.horizon or 0))
        statistics = TaskStatistics(None, None, self._labels(), rows.names)
        fitting.store(self, fitted, statistics)
        return self

    def estimate(self, problem: Problem) -> FittedSpan:
        """The weights of each task from its own rows."""
        rows = problem.rows
        self._require_columns(rows)
        self._begin(rows.n_features)
        return self._add(rows, np.diff(rows.starts))

    def _labels(self) -> tuple[Any, ...]:
        return tuple(canonical_order(list(self._streams_)))

    def _begin(self, d: int) -> None:
        """Convert the parameters to arrays, without rows so far."""
        self._prior_ = SpanPrior.of(self.get_params(deep=False), d)
        self._streams_, self._cross_sums_ = {}, {}
        self._span_covariance_ = None
        if self.representation_covariance is not None:
            covariance = given_covariance(self.representation_covariance, self._prior_.B.size)
            self._span_covariance_ = covariance if self.method != "sgd" else None

    def _add(self, tasks: TaskRows, horizons: np.ndarray) -> FittedSpan:
        """Add rows to the streams of their tasks and solve."""
        prior, streams = self._prior_, self._streams_
        options = DescentOptions.of(self.sgd_options, prior.B.shape[1])
        late: dict[Any, int] = {}
        # Sums that overflow are refused below.
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            for block in tasks.blocks():
                for lo, hi, t in zip(block.starts[:-1], block.starts[1:], block.ids, strict=True):
                    X, y, weight = block.X[lo:hi], block.y[lo:hi], block.weight[lo:hi]
                    label = tasks.labels[t]
                    if label not in streams:
                        horizon = int(horizons[t])
                        streams[label] = Stream(prior, X[0], float(y[0]), horizon, options)
                    if self._span_covariance_ is not None:
                        self._cross_sums_.setdefault(label, CrossSums(prior.B))
                        x0, y0 = streams[label].x0, streams[label].y0
                        self._cross_sums_[label].add(X - x0, y - y0, weight, prior.B)
                    late[label] = late.get(label, 0) + streams[label].add(prior, X, y, weight)
            fitted = self._solve([streams[label] for label in self._labels()])
        if any(late.values()):
            label = next(label for label, count in late.items() if count)
            warnings.warn(
                f"{sum(late.values())} row(s) beyond the horizon were left out, such as "
                f"{late[label]} of task {label!r}, which had its {streams[label].descent.horizon} "  # type: ignore[union-attr]
                "rows. Give a larger horizon, or use method='prior'.",
                UserWarning,
                stacklevel=3,
            )
        if not np.isfinite(fitted.coef).all():
            warnings.warn(
                "The pass of method='sgd' diverged for some tasks: give a smaller step_size in "
                "sgd_options, or leave its clip on.",
                UserWarning,
                stacklevel=3,
            )
        return fitted

    def _solve(self, streams: list[Stream]) -> FittedSpan:
        """The weights of each task from the factor of its rows."""
        self._uncertainty_ = None
        prior = self._prior_
        R, one = np.stack([stream.R for stream in streams]), int(prior.intercept)
        if not np.isfinite(R).all():
            raise ValueError(
                "Squares of the values cannot be added up in double precision: X, y or "
                "representation= are too large. Divide them by a common factor."
            )
        weights, noise = prior.solve(R[:, one:, one:], np.array([s.n for s in streams]))
        inner = np.zeros(len(streams))
        if prior.intercept:
            inner = (R[:, 0, -1] - np.sum(R[:, 0, 1:-1] * weights, axis=1)) / R[:, 0, 0]
        if prior.method == "sgd":
            solutions = [stream.descent.solution() for stream in streams if stream.descent]
            weights, inner = (
                np.stack([w for w, _ in solutions]),
                np.array([a for _, a in solutions]),
            )
        coef = weights @ prior.B.T
        origins = np.stack([stream.x0 for stream in streams])
        centres = np.array([stream.y0 for stream in streams])
        return FittedSpan(
            coef=coef,
            intercept=centres + inner - np.sum(origins * coef, axis=1),
            representation=prior.B,
            rank=prior.B.shape[1],
            task_weights=np.ascontiguousarray(weights.T),
            noise_variance=np.full(len(streams), noise),
        )

    def uncertainty(self) -> WeightsUncertainty:
        """The basis of standard errors, computed when first used."""
        if self._prior_.method == "sgd":
            raise AttributeError(
                "method='sgd' has no standard errors: use method='prior' or 'least_squares'."
            )
        if self._uncertainty_ is None:
            self._uncertainty_ = self._find_uncertainty()
        return self._uncertainty_

    def _find_uncertainty(self) -> WeightsUncertainty:
        prior, labels = self._prior_, self._labels()
        B, one = prior.B, int(prior.intercept)
        streams = [self._streams_[label] for label in labels]
        R, W = np.stack([stream.R for stream in streams]), self.task_weights_.T
        n, noise = np.array([stream.n for stream in streams]), self.noise_variance_
        root = prior.root if prior.method == "prior" else None
        covariance, inverse = weights_covariance(
            R[:, one:, one:-1], float(noise[0]), root, prior.unit
        )
        spare = np.maximum(n - one - prior.unit.shape[1], 0.0).sum()
        degrees = np.full(len(n), max(spare, 1.0) if prior.noise is None else np.inf)
        error = None
        if self._span_covariance_ is not None:
            moments = [
                self._cross_sums_[label].moments(B, w, prior.intercept)
                for label, w in zip(labels, W, strict=True)
            ]
            parts = (np.stack(part) for part in zip(*moments, strict=True))
            error = SpanError(self._span_covariance_, *parts)
        origin = np.stack([stream.x0 for stream in streams])
        centre = R[:, 0, 1:-1] / R[:, 0, :1] if one else None
        return WeightsUncertainty(
            B, W, noise, degrees, n, origin, centre, covariance, inverse, root is not None, error
        )

    def _require_columns(self, rows: TaskRows) -> None:
        """Raise for rows that do not fit the representation or the method."""
        prior = vars(self).get("_prior_")
        method = self.method if prior is None else prior.method
        B = None if prior is None else prior.B
        if prior is None and self.representation is not None:
            B = given_representation(self.representation)
        if B is not None and len(B) != rows.n_features:
            raise ValueError(
                f"representation has {len(B)} rows but X has {rows.n_features} features: give one "
                "row per feature, in the order of the columns, the task column left out."
            )
        if method == "sgd" and rows.weight is not None and not np.isin(rows.weight, (0, 1)).all():
            raise ValueError(
                "With method='sgd', sample_weight must be 0 or 1 in every row. Use method='prior' "
                "or 'least_squares' for other weights."
            )


def _representation_covariance(fitted: FittedSpan) -> np.ndarray | None:
    """Covariance of the entries of a fitted span, if the fit has one."""
    if not isinstance(fitted.uncertainty, SpanUncertainty):
        return None
    assert fitted.representation is not None
    return fitted.uncertainty.representation_covariance(fitted.representation)
