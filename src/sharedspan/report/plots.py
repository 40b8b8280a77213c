"""Figures of fitted models, one function each; all of them return matplotlib axes.

Without ``ax`` they draw on a new figure, off-screen: ``ax.figure.savefig(...)`` writes it, and a
notebook shows ``ax.figure``. Directions are those of ``representation_`` and ``task_weights_``, in
the units of the features as they were passed: standardise features of different units first.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from sharedspan.estimators.base import check_is_fitted
from sharedspan.inference.rank_selection import RankPath
from sharedspan.report.figures import (
    AS_IT_IS,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    farthest,
    name_point,
    panel_or,
    shown,
)

VALUES = 15  # singular values that are drawn, or two beyond the rank
ROUNDING = 1e-9  # of the largest singular value: what is below is zero but for the arithmetic
DECADES = 100.0  # ratio from which an axis is logarithmic
LONG = 1000  # iterations from which the axis is logarithmic, so that the start can be seen
OUTLIER = 0.5  # probability from which a task is marked
MANY = 10_000  # points from which they are drawn as pixels in vector formats
GOLDEN = 0.618033988749895  # its multiples, modulo one, lie evenly


def plot_spectrum(model: Any, ax: Any = None) -> Any:
    """Singular values of the coefficients, and how many of them the span holds.

    Of the deviations from ``mean_coef_`` where the model has one. A model whose coefficients lie
    in the span has no others.

    Parameters
    ----------
    model : fitted estimator
        Without a span, all values are drawn alike.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
    """
    check_is_fitted(model)
    centre = getattr(model, "mean_coef_", None)
    coef = model.coef_ if centre is None else model.coef_ - centre
    values = np.linalg.svd(coef, compute_uv=False)
    rank = min(int(getattr(model, "rank_", 0)), len(values))
    more = bool(np.any(values[rank:] > ROUNDING * values[0]))
    values = values[: max(VALUES if more else 0, rank + 2)]
    there = values > ROUNDING * values[0]
    panel = panel_or(ax)
    place = np.arange(1, len(values) + 1)
    style: dict[str, Any] = {"ls": "none", "marker": "o", "ms": 6, "zorder": 3, "clip_on": False}
    inside, beyond = there & (place <= rank), there & (place > rank)
    if rank:
        panel.plot(place[inside], values[inside], color=BLUE, label=f"in the span: rank {rank}",
                   **style)  # fmt: skip
    if beyond.any():
        label = "beyond it" if rank else None
        panel.plot(place[beyond], values[beyond], color=GREY, mfc="none", label=label, **style)
    elif len(values) > rank:
        panel.plot([], [], ls="none", label="beyond it: zero" if rank else "all are zero")
    if rank and len(values) > rank:
        panel.axvline(rank + 0.5, color=ORANGE, lw=1, ls=":", zorder=1)
    what = "coefficients" if centre is None else "deviations from the mean"
    panel.set(xlabel="rank", ylabel=f"singular value of the {what}", title="Spectrum")
    panel.set_xlim(0.5, len(values) + 0.5)
    panel.xaxis.get_major_locator().set_params(integer=True)
    drawn = values[there]
    if len(drawn) and drawn[0] > DECADES * drawn[-1]:
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    if panel.get_legend_handles_labels()[1]:
        panel.legend(framealpha=1, edgecolor="none", fontsize=9)
    return panel


def plot_convergence(model: Any, ax: Any = None) -> Any:
    """How the fit came to its end: the loss still to be lost, and the tangent gradient.

    The loss is drawn as the share of its excess over the least one that is left, so it drops at
    the very end of any run; the gradient relative to the coefficients, against ``tol``.

    Parameters
    ----------
    model : fitted estimator
        With a ``trace_``.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
    """
    check_is_fitted(model)
    trace = getattr(model, "trace_", None)
    if trace is None:
        raise ValueError(
            f"A {type(model).__name__} keeps no trace of its iterations: give a fitted "
            "SharedSpanRegressor, ARMULRegressor or PenalizedERMRegressor."
        )
    panel = panel_or(ax)
    name = "loss" if "loss" in trace else "objective"
    left = _share_left(trace[name])
    panel.plot(trace["iteration"], left, color=BLUE, lw=2, label=f"{name}: share of excess left")
    gradient = trace.get("gradient", np.zeros(0))
    looked = np.isfinite(gradient) & (gradient > 0)
    if looked.any():
        panel.plot(trace["iteration"][: len(looked)][looked], gradient[looked], color=GREEN, lw=1.5,
                   marker="o" if looked.sum() < 30 else "", ms=3,
                   label="tangent gradient / coefficients")  # fmt: skip
        if model.tol > 0:
            panel.axhline(model.tol, color=GREY, lw=1, ls=":", label=f"tol: {model.tol:g}")
    if trace["iteration"][-1] >= LONG:
        panel.set_xscale("symlog", linthresh=10)
        panel.set_xlim(left=0)
    else:
        panel.xaxis.get_major_locator().set_params(integer=True)
    _mark_phases(panel, trace)
    panel.set(xlabel="iteration", title="Convergence")
    if np.nanmax(left, initial=0.0) > 0 or looked.any():  # else it was done before it began
        panel.set_yscale("log")
    panel.legend(frameon=False, fontsize=9)
    return panel


def _share_left(values: np.ndarray) -> np.ndarray:
    """The excess over the least value, the first one's being one; NaN where it is rounding."""
    lowest = values.min()
    excess = values - lowest
    rounding = 4 * np.finfo(float).eps * abs(lowest)
    return np.where(excess > rounding, excess, np.nan) / (excess[0] or 1.0)


def _mark_phases(panel: Any, trace: dict[str, np.ndarray]) -> None:
    """A line where a phase begins, with its name."""
    phase = trace.get("phase", np.zeros(0, dtype=str))
    for start in np.flatnonzero(phase[1:] != phase[:-1]) + 1:
        panel.axvline(start, color=ORANGE, lw=1, ls="--", zorder=1)
        late = start > 0.8 * len(phase)
        panel.annotate(
            f"Phase {phase[start]}", (start, 0.02), xycoords=("data", "axes fraction"),
            xytext=(-4 if late else 4, 0), textcoords="offset points", fontsize=9, color=ORANGE,
            ha="right" if late else "left",
        )  # fmt: skip


def plot_rank_path(path: Any, ax: Any = None) -> Any:
    """The loss along the ranks, with error bars where there are any, and the rank chosen.

    Parameters
    ----------
    path : RankPath or fitted estimator
        An estimator gives its ``rank_path_``.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
    """
    if path is not None and not isinstance(path, RankPath):
        check_is_fitted(path)
        path = getattr(path, "rank_path_", None)
    if path is None:
        raise ValueError(
            "There is no path of ranks: the rank was given, or there was nothing to choose. Fit "
            "with rank='auto', 'evidence' or 'threshold'."
        )
    panel = panel_or(ax)
    bars = path.standard_error if path.standard_error.any() else None
    panel.errorbar(
        path.ranks, path.loss, yerr=bars, color=BLUE, marker="o", ms=5, lw=1.5, capsize=3,
        label=path.columns[0] if bars is None else f"{path.columns[0]}, error of excess over best",
    )  # fmt: skip
    chosen = path.loss[path.ranks == path.rank]
    panel.plot([path.rank], chosen, marker="o", ms=12, mew=2, mfc="none", ls="none", color=ORANGE,
               zorder=4, label=f"chosen: rank {path.rank}")  # fmt: skip
    panel.axvline(path.rank, color=ORANGE, lw=1, ls=":", zorder=1)
    if path.method == "threshold":
        panel.axhline(path.loss[0] - path.difference[0], color=GREY, lw=1, ls="--",
                      label="threshold")  # fmt: skip
    panel.set(xlabel="rank", ylabel=path.columns[0], title="Choice of the rank")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend(frameon=False, fontsize=9)
    return panel


def plot_tasks(
    model: Any,
    ax: Any = None,
    *,
    directions: Sequence[int] = (0, 1),
    names: Sequence[Any] | None = None,
) -> Any:
    """The tasks in the span: their weights along two directions, or along one as a strip.

    Parameters
    ----------
    model : fitted estimator
        With ``task_weights_``.
    ax : matplotlib axes, optional
    directions : one or two int, default=(0, 1)
        Which rows of ``task_weights_``. A model with one direction gives a strip.
    names : sequence of task labels, optional
        The tasks to name. None names outliers and the tasks that lie farthest out.

    Returns
    -------
    matplotlib axes
    """
    W = _weights(model)
    axes = [_direction(j, len(W)) for j in (directions[:1] if len(W) == 1 else directions)]
    if len(axes) not in (1, 2):
        raise ValueError(f"directions={directions!r}: give one direction, or two.")
    panel = panel_or(ax, 4.0 if len(axes) == 2 else 2.4)
    T = W.shape[1]
    # Along one direction the height means nothing: it only keeps the tasks apart.
    x, y = W[axes[0]], W[axes[1]] if len(axes) == 2 else np.arange(T) * GOLDEN % 1
    off = getattr(model, "outlier_probability_", np.zeros(T)) > OUTLIER
    style: dict[str, Any] = {"s": float(np.clip(4000 / T, 4, 28)), "lw": 0, "rasterized": T > MANY}
    panel.scatter(x[~off], y[~off], color=BLUE, alpha=0.75 if T < LONG else 0.4, **style)
    if off.any():
        panel.scatter(x[off], y[off], color=ORANGE, label="outlier", **style)
        panel.legend(frameon=False, fontsize=9)
    panel.axvline(0, color=GREY, lw=0.8, zorder=0)
    panel.set(xlabel=f"weight along direction {axes[0]}", title="Tasks in the span")
    if len(axes) == 2:
        panel.axhline(0, color=GREY, lw=0.8, zorder=0)
        panel.set_ylabel(f"weight along direction {axes[1]}")
    else:
        panel.set_yticks([])
    panel.margins(0.12)
    for t in farthest(x, y, off, len(axes) == 1) if names is None else _codes(model, names):
        name_point(panel, x, y, t, model.tasks_[t], len(axes) == 1)
    return panel


def plot_loadings(
    model: Any,
    ax: Any = None,
    *,
    direction: int = 0,
    n_features: int = 15,
    level: float = 0.95,
) -> Any:
    """What a direction of the span is made of: its largest loadings, with intervals if known.

    Parameters
    ----------
    model : fitted estimator
        With ``representation_``. Intervals are drawn where it knows the covariance of its entries:
        ``representation_covariance_``.
    ax : matplotlib axes, optional
    direction : int, default=0
        Which column of ``representation_``.
    n_features : int, default=15
        The most features that are drawn.
    level : float, default=0.95
        Share of the intervals that cover the truth, each by itself.

    Returns
    -------
    matplotlib axes
    """
    from scipy.stats import norm

    _weights(model)
    B = model.representation_
    j = _direction(direction, B.shape[1])
    if operator.index(n_features) < 1:
        raise ValueError(f"n_features={n_features!r}: give at least 1.")
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must lie between 0 and 1, such as 0.95.")
    largest = np.argsort(-np.abs(B[:, j]), kind="stable")[:n_features]
    value, place = B[largest, j], np.arange(len(largest))
    panel = panel_or(ax, 1.3 + 0.24 * len(largest))
    std = _loading_std(model, j)
    panel.axvline(0, color=GREY, lw=0.8, zorder=0)
    if std is None:
        panel.hlines(place, 0, value, color=BLUE, lw=1.5)
    else:
        reach, most = norm.ppf(0.5 + level / 2) * std[largest], np.linalg.norm(B[:, j])
        # No entry is larger than its column.
        low, high = np.maximum(value - reach, -most), np.minimum(value + reach, most)
        panel.errorbar(value, place, xerr=[value - low, high - value], ls="none", color=BLUE,
                       lw=1.5, capsize=2.5)  # fmt: skip
    panel.plot(value, place, ls="none", marker="o", ms=5, color=BLUE)
    panel.set_yticks(place, [shown(model.coef_names_[f]) for f in largest], fontsize=9, **AS_IT_IS)
    panel.set_ylim(len(largest) - 0.5, -0.5)
    panel.locator_params(axis="x", nbins=5)
    some = "" if len(largest) == len(B) else f", {len(largest)} largest of {len(B):,}"
    intervals = "" if std is None else f", {100 * level:g} % intervals"
    panel.set(xlabel=f"loading{intervals}", title=f"Direction {j}{some}")
    return panel


def _loading_std(model: Any, j: int) -> np.ndarray | None:
    """Standard errors of column j of the representation (d,), where the model knows them."""
    covariance = getattr(model, "representation_covariance_", None)
    if covariance is None:  # a span that was given may have come with one
        covariance = getattr(model, "representation_covariance", None)
    if covariance is None:
        return None
    d = len(model.representation_)
    return np.sqrt(np.maximum(np.diag(covariance)[j * d : (j + 1) * d], 0.0))


def _weights(model: Any) -> np.ndarray:
    """``task_weights_`` (k, T) of a fitted model with at least one direction."""
    check_is_fitted(model)
    if not hasattr(model, "task_weights_"):
        raise ValueError(
            f"A {type(model).__name__} has no span: give a model with representation_ and "
            "task_weights_, such as a SharedSpanRegressor."
        )
    if not len(model.task_weights_):
        raise ValueError(
            f"The span of this {type(model).__name__} has no direction: there is nothing to draw. "
            "Its tasks share no more than a mean."
        )
    return model.task_weights_


def _direction(j: Any, k: int) -> int:
    if not 0 <= operator.index(j) < k:
        raise ValueError(f"Direction {j!r} is out of range: the span has 0 to {k - 1}.")
    return operator.index(j)


def _codes(model: Any, names: Sequence[Any]) -> list[int]:
    known = {label: t for t, label in enumerate(model.tasks_.tolist())}
    for name in names:
        if name not in known:
            raise ValueError(
                f"There is no task {name!r} in the model: give labels of its tasks_, such as "
                f"{next(iter(known))!r}."
            )
    return [known[name] for name in names]
