"""The fitted effect of one column: a curve over its values, with a band."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.estimators.mixed import MixedModel
from sharedspan.estimators.prediction import interval_quantiles, population_mean
from sharedspan.inputs.encoders import Number

GRID = 200  # values of a curve


@dataclass(frozen=True)
class Curve:
    """Responses over the values of a column, all (m,)."""

    values: np.ndarray  # days since 1970 of a date
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_date: bool


def fitted_curve(model: Any, column: str, task: Any = None, level: float = 0.95) -> Curve:
    """The linear predictor over the values of a column, at the mean of all other features.

    Of the mean task, with the standard error of its coefficients, or of one task, with those of
    their posterior distribution.
    """
    if not isinstance(model, MixedModel):
        raise TypeError(
            f"The model is a {type(model).__name__}, which has no standard errors of a mean task: "
            "fit AdaptiveSpanRegressor."
        )
    columns = vars(model).get("columns_")
    known = [] if columns is None else [c for c in columns.encoding.columns if c.column == column]
    if not known or not isinstance(known[0], Number):
        raise ValueError(
            f"{column!r} is not a numeric or date column that the fit has prepared: give one of "
            "those that columns=ss.Columns(spline=[...]) named."
        )
    encoder = known[0]
    if encoder.spline is not None and encoder.spline.n_columns:
        ends = encoder.spline.centre + encoder.spline.scale * encoder.spline.knots[[0, -1]]
    else:
        raise ValueError(
            f"The effect of the column {column!r} is linear, given by its coefficient: fit with "
            f"columns=ss.Columns(spline=[{column!r}]) for a nonlinear one."
        )
    values = np.linspace(ends[0], ends[1], GRID)
    X = np.tile(model._uncertainty_.feature_means(), (GRID, 1))
    names = model.coef_names_.tolist()
    for name, feature in zip(encoder.names, encoder.encode(values), strict=True):
        X[:, names.index(name)] = feature
    if task is None:
        coef, intercept = population_mean(model)
        std = model._uncertainty_.mean_std(X)
        quantile = interval_quantiles(model, level)[-1]
    else:
        places = np.flatnonzero(model.tasks_ == task)
        if not len(places):
            raise ValueError(f"The task {task!r} was not fitted: give one of tasks_.")
        at = int(places[0])
        coef, intercept = model.coef_[at], float(model.intercept_[at])
        _, variance = model._uncertainty_.linear_predictor(X, np.full(GRID, at))
        std = model._uncertainty_.user_scale() * np.sqrt(variance)
        quantile = interval_quantiles(model, level)[at]
    mean = X @ coef + intercept
    return Curve(values, mean, mean - quantile * std, mean + quantile * std, encoder.is_date)
