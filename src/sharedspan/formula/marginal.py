"""``ss.effects``: what a column does to the mean response, with the other columns as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.estimators.adaptive import AdaptiveSpanRegressor
from sharedspan.estimators.inference import crossed_features, infer
from sharedspan.inference.fixed_effects import t_quantile, two_sided_p
from sharedspan.inference.likelihood_ratio import p_text
from sharedspan.inputs.files import nearest
from sharedspan.inputs.frame_table import arrow_table, encode_frame, raw_names
from sharedspan.inputs.frames import as_table, row_count
from sharedspan.mixed_model.objective import INTERCEPT, map_to_user

MOST_ROWS = 1000  # over which the other columns are averaged
POINTS = 5  # values of a column of numbers


@dataclass(frozen=True, eq=False)
class MarginalEffects:
    """Mean responses at values of a column, and their differences.

    Attributes
    ----------
    column : str
    values : tuple
        Values of the column, (m,).
    estimate, std_error, low, high : ndarray of shape (m,)
        Mean responses in a task whose effects are zero, averaged over the other columns; on the
        scale of the linear predictor if ``scale`` is "link". Standard errors are on that scale.
    degrees : ndarray of shape (m,)
    differences : tuple of (str, float, float, float, float, float)
        Contrasts with the first value: what is compared, estimate, standard error, bounds, p-value;
        on the scale of the linear predictor.
    scale : {"response", "link"}
    level : float
    """

    column: str
    values: tuple[Any, ...]
    estimate: np.ndarray
    std_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    degrees: np.ndarray
    differences: tuple[tuple[str, float, float, float, float, float], ...]
    scale: str
    level: float

    def to_frame(self, part: str = "means") -> Any:
        """The means, or with "differences" the contrasts, as a pandas frame."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_frame needs pandas: pip install pandas") from error
        if part == "differences":
            names = ["estimate", "std_error", "low", "high", "p_value"]
            index = pd.Index([each[0] for each in self.differences], name=self.column)
            return pd.DataFrame([each[1:] for each in self.differences], index=index, columns=names)
        if part != "means":
            raise ValueError(f"part is {part!r}: give 'means' or 'differences'.")
        return pd.DataFrame(
            {
                "estimate": self.estimate, "std_error": self.std_error, "low": self.low,
                "high": self.high, "degrees": self.degrees,
            },
            index=pd.Index(list(self.values), name=self.column),
        )  # fmt: skip

    def __str__(self) -> str:
        names = [_shown(value) for value in self.values]
        width = max(map(len, (*names, self.column)))
        bounds = [f"{100 * p:g} %" for p in (0.5 - self.level / 2, 0.5 + self.level / 2)]
        lines = [f"Means by {self.column} ({self.scale} scale, {self.level:.0%} intervals)", ""]
        lines.append(f"{self.column:<{width}}{'mean':>12}{bounds[0]:>12}{bounds[1]:>12}")
        for name, *numbers in zip(names, self.estimate, self.low, self.high, strict=True):
            lines.append(f"{name:<{width}}" + "".join(f"{x:12.5g}" for x in numbers))
        wide = max(len(name) for name in ("difference", *(each[0] for each in self.differences)))
        if self.differences:
            lines += ["", f"{'difference':<{wide}}{'estimate':>12}{'std.error':>12}{'p':>12}"]
        for name, estimate, std, _, _, p in self.differences:
            lines.append(f"{name:<{wide}}{estimate:12.5g}{std:12.5g}{p_text(p):>12}")
        return "\n".join(lines)

    __repr__ = __str__


def effects(
    model: AdaptiveSpanRegressor,
    column: str,
    values: Any = None,
    *,
    data: Any = None,
    scale: str = "response",
    level: float = 0.95,
) -> MarginalEffects:
    """Predictions at values of a column, with intervals, and their differences.

    For each value, the column is set to it in the rows of the fit, and the linear predictor with
    random effects of zero is averaged over these rows. In a model with interactions this is the
    effect averaged over the observed values of the other columns. Differences are those of the
    linear predictor.

    Parameters
    ----------
    model : fitted model of ``ss.mixed``
    column : str
    values : sequence, optional
        By default all levels of a factor, and five values of a numeric column.
    data : table, optional
        Rows to average over, if the model was read from a file.
    scale : {"response", "link"}, default="response"
        For families other than the Gaussian: "link" returns the averaged linear predictor, and
        "response" its inverse link, the response at the averaged predictor. This is not the average
        of the responses.
    level : float, default=0.95

    Returns
    -------
    MarginalEffects

    Examples
    --------
    >>> import sharedspan as ss
    >>> table = ss.datasets.load_parkinsons().to_frame()
    >>> model = ss.mixed("total_updrs ~ test_time + hnr + (1 | subject)", table)
    >>> len(ss.effects(model, "test_time").estimate)
    5
    """
    if scale not in ("response", "link"):
        raise ValueError(f"scale={scale!r} is unknown: use 'response' or 'link'.")
    table = _rows(model, vars(model).get("_table") if data is None else data)
    known = table.column_names
    if not known:
        raise ValueError(
            f"The model has no column {column!r}: its formula has no columns but those of groups, "
            "so there is nothing to compare."
        )
    if column not in known:
        raise ValueError(
            f"The model has no column {column!r}: its columns are "
            f"{', '.join(map(repr, known))}.{nearest(column, known)}"
        )
    at = _grid(model, table, column) if values is None else tuple(values)
    L = np.array([_mean_features(model, table, column, value) for value in at])
    b, covariance = _coefficients(model)
    estimate, degrees = L @ b, _degrees(model, L)
    std, reach = _errors(L, covariance, degrees, level)
    low, high = estimate - reach, estimate + reach
    family = model.response_family()
    if scale == "response" and family.reweighted:
        estimate, low, high = family.mean(estimate), family.mean(low), family.mean(high)
    contrasts = L[1:] - L[0]
    between, own = contrasts @ b, _degrees(model, contrasts)
    errors, reaches = _errors(contrasts, covariance, own, level)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = two_sided_p(between / errors, own)
    differences = tuple(
        (
            f"{_shown(value)} - {_shown(at[0])}",
            float(d),
            float(e),
            float(d - r),
            float(d + r),
            float(q),
        )
        for value, d, e, r, q in zip(at[1:], between, errors, reaches, p, strict=True)
    )
    return MarginalEffects(
        column, at, estimate, std, low, high, degrees, differences, scale, level
    )  # fmt: skip


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _rows(model: AdaptiveSpanRegressor, data: Any) -> Any:
    """Some rows with the columns of the formula, as an Arrow table."""
    if data is None:
        raise ValueError(
            "The model was read from a file, which does not hold its rows: give data=, the table "
            "to average over."
        )
    data, names = as_table(data), [c.column for c in model.columns_.encoding.columns]
    table, _ = arrow_table(data, [name for name in dict.fromkeys(names) if name in raw_names(data)])
    n = row_count(data)
    if n <= MOST_ROWS:
        return table
    return table.take(np.linspace(0, n - 1, MOST_ROWS).astype(int))


def _grid(model: AdaptiveSpanRegressor, table: Any, column: str) -> tuple[Any, ...]:
    """Levels of a factor, or values of a column of numbers at equal distances."""
    for each in model.columns_.encoding.columns:
        if each.column == column and hasattr(each, "levels"):
            return tuple(each.levels)
    numbers = table.column(column).to_numpy().astype(float)
    low, high = np.nanmin(numbers), np.nanmax(numbers)
    distinct = np.unique(numbers[np.isfinite(numbers)])
    if len(distinct) <= POINTS:
        return tuple(distinct.tolist())
    return tuple(np.linspace(low, high, POINTS).tolist())


def _mean_features(model: AdaptiveSpanRegressor, table: Any, column: str, value: Any) -> np.ndarray:
    """The mean row [1, x] with the column at a value, (p,)."""
    import pyarrow

    text = isinstance(value, str)
    filled = pyarrow.array([value] * len(table), pyarrow.string() if text else pyarrow.float64())
    place = table.column_names.index(column)
    X = encode_frame(table.set_column(place, column, filled), model.columns_).X
    mean = np.nanmean(X, axis=0)
    mean[crossed_features(model)] = 0.0
    return np.append([1.0] * model.fit_intercept, mean)


def _coefficients(model: AdaptiveSpanRegressor) -> tuple[np.ndarray, np.ndarray]:
    """Mean coefficients (p,) and their covariance (p, p), smooth curves included."""
    posterior = model._uncertainty_
    A, _ = map_to_user(posterior.scaling, posterior.canonical, len(posterior.b))
    b = np.append([model.mean_intercept_] * model.fit_intercept, model.mean_coef_)
    covariance = A @ posterior.b_covariance @ A.T
    fixed = infer(model).fixed  # of families, these errors are those of the joint curvature
    names = np.array([INTERCEPT] * model.fit_intercept + list(map(str, model.coef_names_)))
    at = np.flatnonzero(np.isin(names, fixed.names))
    if len(at) == len(fixed.names):
        covariance[np.ix_(at, at)] = fixed.corrected().covariance
    return b, covariance


def _degrees(model: AdaptiveSpanRegressor, L: np.ndarray) -> np.ndarray:
    """Degrees of freedom of contrasts (m, p); infinite if smooth curves take part."""
    fixed = infer(model).fixed
    names = np.array([INTERCEPT] * model.fit_intercept + list(map(str, model.coef_names_)))
    inside = np.isin(names, fixed.names)
    if inside.sum() != len(fixed.names) or np.abs(L[:, ~inside]).any() or not len(L):
        return np.full(len(L), np.inf)
    return fixed.degrees(L[:, inside])


def _errors(
    L: np.ndarray, covariance: np.ndarray, degrees: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors of contrasts (m, p), and half widths of their intervals, both (m,)."""
    std = np.sqrt(np.maximum(np.einsum("mp,pq,mq->m", L, covariance, L), 0.0))
    return std, std * t_quantile(0.5 + level / 2, degrees)
