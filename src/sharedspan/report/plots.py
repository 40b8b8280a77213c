"""Figures of fitted models, one function each; all of them return matplotlib axes.

Without ``ax`` they draw on a new figure, off-screen: ``ax.figure.savefig(...)`` writes it, and a
notebook shows the axes as a picture. Directions are columns of ``representation_`` and rows of
``task_weights_``, in the units of the features as they were passed: standardise features of
different units first. They are indices from 0 in calls and "direction 1", "direction 2" in figures.
The report's page draws with the same functions.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from sharedspan.diagnosis.curves import fitted_curve
from sharedspan.diagnosis.text import short
from sharedspan.estimators.base import fitted_span_of
from sharedspan.inference.rank_selection import RankPath
from sharedspan.report import figures
from sharedspan.report.figures import BLUE, GREEN, GREY, font_label, new_panel

LONG = 1000  # iterations from which the axis is logarithmic, so that the start can be seen
OUTLIER = 0.5  # probability from which a task is marked
CRITERIA = {  # by which ranks are chosen
    "auto": "mean squared error on held-out rows",
    "evidence": "minus log evidence per row",
    "threshold": "largest singular value left out",
}
GOLDEN = 0.618033988749895  # its multiples, modulo one, are evenly spread


def plot_spectrum(model: Any, ax: Any = None) -> Any:
    """Singular values of the coefficients, and how many of them belong to the span.

    For a model with a ``mean_coef_``, these are singular values of the deviations from it. If all
    coefficients are in the span, the values beyond its rank are zero.

    Parameters
    ----------
    model : fitted estimator
        Without a span, all values are drawn alike.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
    """
    span = fitted_span_of(model)
    coef = span.coef if span.mean_coef is None else span.coef - span.mean_coef
    panel = figures.draw_spectrum(
        ax or new_panel(), np.linalg.svd(coef, compute_uv=False), span.rank or 0
    )
    what = "coefficients" if span.mean_coef is None else "deviations from the mean"
    panel.set(xlabel="direction, the strongest first", ylabel="singular value",
              title=f"Singular values of the {what}")  # fmt: skip
    return panel


def plot_convergence(model: Any, ax: Any = None) -> Any:
    """The convergence of a fit: the excess loss and the tangent gradient by iteration.

    The loss is drawn as its excess over the smallest loss, relative to the first iteration, so it
    drops at the very end of any run. The gradient is relative to the coefficients, like ``tol``.

    Parameters
    ----------
    model : fitted estimator
        With a ``trace_``.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
    """
    trace = fitted_span_of(model).trace
    if trace is None:
        raise ValueError(
            f"{type(model).__name__} has no trace of its iterations: give a fitted "
            "SharedSpanRegressor, ARMULRegressor or PenalizedERMRegressor."
        )
    panel = ax or new_panel()
    name = "loss" if "loss" in trace else "objective"
    # The excess over the smallest value, relative to the first; NaN if it is rounding.
    lowest, excess = trace[name].min(), trace[name] - trace[name].min()
    left = np.where(excess > 4 * np.finfo(float).eps * abs(lowest), excess, np.nan)
    left = left / (excess[0] or 1.0)
    label = f"{name}: distance to its minimum, relative to the start"
    panel.plot(trace["iteration"], left, color=BLUE, lw=2, label=label)
    gradient = trace.get("gradient", np.zeros(0))
    known = np.isfinite(gradient) & (gradient > 0)
    if known.any():
        panel.plot(trace["iteration"][: len(known)][known], gradient[known], color=GREEN, lw=1.5,
                   marker="o" if known.sum() < 30 else "", ms=3,
                   label="gradient, relative to the coefficients")  # fmt: skip
        tol = model.get_params(deep=False)["tol"]
        if tol > 0:
            panel.axhline(tol, color=GREY, lw=1, ls=":", label=f"tol: {tol:g}, where the fit ends")
    if trace["iteration"][-1] >= LONG:
        panel.set_xscale("symlog", linthresh=10)
        panel.set_xlim(left=0)
    else:
        panel.xaxis.get_major_locator().set_params(integer=True)
    figures.mark_phases(panel, trace)
    panel.set(xlabel="iteration", ylabel="relative size", title="Convergence of the fit")
    if np.nanmax(left, initial=0.0) > 0 or known.any():  # else the fit needed no iteration
        panel.set_yscale("log")
    panel.legend(frameon=False, fontsize=9)
    return panel


def plot_rank_path(path: Any, ax: Any = None) -> Any:
    """The loss along the ranks, with error bars if there are any, and the rank chosen.

    Parameters
    ----------
    path : RankPath or fitted estimator
        For an estimator, its ``rank_path_`` is drawn.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
    """
    if path is not None and not isinstance(path, RankPath):
        path = fitted_span_of(path).rank_path
    if path is None:
        raise ValueError(
            "There is no path of ranks: the rank was given, or there was nothing to choose. Fit "
            "with rank='auto', 'evidence' or 'threshold'."
        )
    return figures.draw_rank_path(ax or new_panel(), path, path.loss, CRITERIA[path.method])


def plot_curve(model: Any, column: str, ax: Any = None, *, task: Any = None,
               level: float = 0.95) -> Any:  # fmt: skip
    """The fitted effect of a numeric or date column, with its band.

    Draws the response against the values that the column had in the fit, with all other features
    at their means, for a task with the mean coefficients or for one task. The band is pointwise.

    Parameters
    ----------
    model : fitted AdaptiveSpanRegressor or classifier
        The linear predictor is drawn for families other than the normal one.
    column : str
        A column of X, usually one of ``columns=ss.Columns(spline=...)``.
    ax : matplotlib axes, optional
    task : label of a task, optional
        None draws a task with the mean coefficients.
    level : float, default=0.95
        Coverage of the band at each value.

    Returns
    -------
    matplotlib axes
    """
    curve = fitted_curve(model, column, task, level)
    panel = ax or new_panel()
    panel.fill_between(curve.values, curve.low, curve.high, color=BLUE, alpha=0.2, lw=0)
    panel.plot(curve.values, curve.mean, color=BLUE, lw=2)
    if curve.is_date:
        panel.xaxis_date()
        panel.figure.autofmt_xdate()
    whose = "the mean task" if task is None else f"task {task}"
    what = "linear predictor" if model.response_family().reweighted else "response"
    panel.set(xlabel=font_label(column), ylabel=f"{what} at the mean of other features",
              title=font_label(f"Effect of {short(column, 28)} in {whose}, {100 * level:g} % band",
                               60))  # fmt: skip
    return panel


def plot_tasks(
    model: Any, ax: Any = None, *, directions: Sequence[int] = (0, 1),
    names: Sequence[Any] | None = None,
) -> Any:  # fmt: skip
    """The tasks in the span: their weights along two directions, or along one as a strip.

    Parameters
    ----------
    model : fitted estimator
        With ``task_weights_``.
    ax : matplotlib axes, optional
    directions : one or two int, default=(0, 1)
        Rows of ``task_weights_``. A model with one direction gives a strip.
    names : sequence of task labels, optional
        The tasks to name. None names outliers and the tasks farthest from the centre.

    Returns
    -------
    matplotlib axes
    """
    W = _weights(model)
    axes = [_direction(j, len(W)) for j in (directions[:1] if len(W) == 1 else directions)]
    if len(axes) not in (1, 2):
        raise ValueError(f"directions={directions!r} must be one or two integers.")
    strip, T = len(axes) == 1, W.shape[1]
    panel = ax or new_panel(2.4 if strip else 4.0)
    # Along one direction the height has no meaning: it only separates the tasks.
    x, y = W[axes[0]], np.arange(T) * GOLDEN % 1 + 1 if strip else W[axes[1]]
    off = fitted_span_of(model).extra.get("outlier_probability", np.zeros(T)) > OUTLIER
    figures.draw_tasks(panel, x, y, off)
    if off.any():
        panel.legend(frameon=False, fontsize=9)
    panel.set(
        xlabel=f"weight along direction {axes[0] + 1}", title="Tasks along the shared directions"
    )
    if strip:
        panel.set_yticks([])
        panel.spines["left"].set_visible(False)
    else:
        panel.set_ylabel(f"weight along direction {axes[1] + 1}")
    for t in figures.farthest(x, y, off, strip) if names is None else _codes(model, names):
        figures.name_point(panel, x, y, t, font_label(model.tasks_[t], 20), strip)
    return panel


def plot_loadings(
    model: Any, ax: Any = None, *, direction: int = 0, n_features: int = 15, level: float = 0.95
) -> Any:
    """The largest loadings of a direction of the span, with intervals if they are known.

    Parameters
    ----------
    model : fitted estimator
        With ``representation_``. Intervals are drawn if it has the covariance of the entries,
        ``representation_covariance_``.
    ax : matplotlib axes, optional
    direction : int, default=0
        Column of ``representation_``.
    n_features : int, default=15
        Maximum number of features that are drawn.
    level : float, default=0.95
        Coverage probability of each interval.

    Returns
    -------
    matplotlib axes
    """
    from scipy.stats import norm

    W, span = _weights(model), cast(Any, fitted_span_of(model))
    B = span.representation
    j = _direction(direction, len(W))
    if operator.index(n_features) < 1:
        raise ValueError(f"n_features={n_features!r} must be at least 1.")
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must be between 0 and 1, such as 0.95.")
    largest = np.argsort(-np.abs(B[:, j]), kind="stable")[:n_features]
    value, low, high = B[largest, j], None, None
    covariance = model.get_params(deep=False).get("representation_covariance")
    uncertainty: Any = span.uncertainty
    if covariance is None and uncertainty is not None:
        covariance = uncertainty.representation_covariance(B)
    if covariance is not None:
        variance = np.maximum(np.diag(covariance)[j * len(B) :][largest], 0.0)
        reach, most = norm.ppf(0.5 + level / 2) * np.sqrt(variance), np.linalg.norm(B[:, j])
        # No entry is larger than the norm of its column.
        low, high = np.maximum(value - reach, -most), np.minimum(value + reach, most)
    panel = ax or new_panel(1.3 + 0.24 * len(largest))
    figures.draw_stems(panel, [font_label(model.coef_names_[f]) for f in largest], value, low, high)
    some = "" if len(largest) == len(B) else f", {len(largest)} largest of {len(B):,}"
    intervals = "" if low is None else f", {100 * level:g} % intervals"
    panel.set(xlabel=f"coefficient of a task with weight one{intervals}",
              title=f"Loadings of direction {j + 1}{some}")  # fmt: skip
    return panel


def _weights(model: Any) -> np.ndarray:
    """``task_weights_`` (k, T) of a fitted model with at least one direction."""
    W: np.ndarray | None = fitted_span_of(model).task_weights
    if W is None:
        raise ValueError(
            f"{type(model).__name__} has no span: give a model with representation_ and "
            "task_weights_, such as a SharedSpanRegressor."
        )
    if not len(W):
        raise ValueError(
            f"The span of this {type(model).__name__} has no direction: there is nothing to draw. "
            "Its tasks share only a mean."
        )
    return W


def _direction(j: Any, k: int) -> int:
    if not 0 <= operator.index(j) < k:
        raise ValueError(f"Direction {j!r} is out of range: give an integer from 0 to {k - 1}.")
    return operator.index(j)


def _codes(model: Any, names: Sequence[Any]) -> list[int]:
    known = {label: t for t, label in enumerate(model.tasks_.tolist())}
    for name in names:
        if name not in known:
            raise ValueError(
                f"There is no task {name!r} in the model: names must be labels of tasks_, such as "
                f"{next(iter(known))!r}."
            )
    return [known[name] for name in names]
