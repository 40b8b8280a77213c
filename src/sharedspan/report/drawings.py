"""The plots of the report, each from the facts it shows, each with the same facts in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.diagnosis.holdout_errors import RIVALS, Gains
from sharedspan.diagnosis.text import count, number, short
from sharedspan.report.facts import Facts
from sharedspan.report.svg import Plot

LARGEST = 20  # loadings that are drawn
NAME = 18  # characters of a feature's name beside a loading
SPECTRUM = 15  # singular values that are drawn
STEPS = 400  # points of a line


@dataclass(frozen=True)
class Drawing:
    """A plot; where tasks can be pointed at, which ones, in the order of their points."""

    svg: str
    caption: str
    tasks: np.ndarray | None = None
    columns: tuple[str, ...] = ()  # of the table, to be told of a task that is pointed at
    hint: str = ""  # what a reader with a pointer can do


def gain_plot(facts: Facts, gains: Gains, rival: str, kept: np.ndarray) -> Drawing:
    """Each task's held-out error by the model against that of a rival."""
    held = kept[gains.rows[kept] > 0]
    mine, other = gains.task_rmse("model")[held], gains.task_rmse(rival)[held]
    both, plot = np.concatenate([mine, other]), Plot(330)
    y = plot.y_scale(both, log=True)
    ticks = [value for value in y.ticks(5) if value >= 0]
    plot.y_axis(y, "error of the model", ticks)
    x = plot.x_scale(both, log=True)
    plot.x_axis(x, f"error of {RIVALS[rival]}", ticks)
    plot.segment(plot.left, plot.bottom, plot.right, plot.top, "equal")
    plot.text(plot.right - 6, plot.bottom - 9, "model better ↘", "note", anchor="end")
    plot.text(plot.left + 6, plot.top + 15, "↖ model worse", "note")
    plot.points(x(other), y(mine))
    change = gains.change(rival)
    caption = (
        f"The error is smaller than that of {RIVALS[rival]} in {count(change.gains, 'task')} and "
        f"larger in {change.losses:,}."
    )
    words = (
        f"Held-out root mean squared error of {count(len(held), 'task')}: the model against "
        f"{RIVALS[rival]}. {caption} Median error {number(float(np.median(mine)))} against "
        f"{number(float(np.median(other)))}."
    )
    return Drawing(plot.render(words), caption, held, ("rmse", f"rmse {rival}"))


def spectrum_plot(facts: Facts) -> Drawing:
    """Singular values of the coefficients, with those of separate regressions."""
    found, separate = facts.directions, facts.separate_spectrum
    own = found.spectrum[:SPECTRUM]
    own = own[: max(int(np.sum(own > 1e-9 * own[0])), found.rank)]
    rest = np.zeros(0) if separate is None else separate[:SPECTRUM]
    n = max(len(own), len(rest))
    plot = Plot(270)
    y = plot.y_scale(np.append(own, [*rest, 0]))
    plot.y_axis(y, "size (root mean square)", [value for value in y.ticks() if value >= 0])
    x = plot.x_scale(np.array([0.5, n + 0.5]), pad=0)
    plot.x_axis(x, "direction", list(range(1, n + 1, 1 if n <= 10 else 2)))
    zero, width = float(y(0)), 0.55 * float(x(2) - x(1))
    for j, value in enumerate(own):
        top, style = float(y(value)), "fill blue" if j < found.rank else "fill grey"
        plot.bar(float(x(j + 1)) - width / 2, top, width, zero - top, style)
    for j, value in enumerate(rest):
        plot.circle(float(x(j + 1)), float(y(value)), 4, "open orange")
    listed_own = ", ".join(number(float(v)) for v in own)
    words = f"Size of the coefficients along each direction, the model's: {listed_own}."
    what = "coefficients’ deviations from the common ones" if found.about_mean else "coefficients"
    size = "by what they predict within tasks, " if found.standardised else ""
    caption = f"Bars: the model’s {what} along each direction, {size}root mean squares over tasks."
    if found.rank < len(own):
        caption += (
            " Grey bars are what tasks have outside the span."
            if found.rank
            else " They are grey as the tasks share none of these directions."
        )
    if len(rest):
        words += f" Separate regressions: {', '.join(number(float(v)) for v in rest)}."
        caption += (
            " Circles: the same for a ridge regression of each task alone. Its noise fills all "
            "directions, also those outside the span, and it shrinks coefficients, so that circles "
            "may lie below bars."
        )
    return Drawing(plot.render(words), caption)


def rank_plot(facts: Facts, path: Any) -> Drawing:
    """What the choice of the rank went by."""
    name, what = {
        "auto": (
            "excess squared error",
            f"Mean squared error on held-out rows, less that of the best rank, in squared units of "
            f"{facts.target}.",
        ),
        "evidence": (
            "misfit per row",
            "Minus the log of the probability of the rows under each rank (the marginal "
            "likelihood), per row.",
        ),
        "threshold": (
            "strength left out",
            "Strength of the strongest direction that each rank leaves out (the singular value).",
        ),
    }[path.method]
    folded = path.method == "auto"
    values = path.difference if folded else path.loss
    bars = path.standard_error if folded else np.zeros(len(values))
    plot = Plot(270)
    ranks = [int(r) for r in path.ranks]
    y = plot.y_scale(np.concatenate([values - bars, values + bars]))
    plot.y_axis(y, name)
    x = plot.x_scale(np.array([min(ranks) - 0.4, max(ranks) + 0.4]), pad=0)
    plot.x_axis(x, "rank", ranks[:: 1 + len(ranks) // 12])
    if path.method == "threshold":
        level = float(y(path.loss[0] - path.difference[0]))
        plot.segment(plot.left, level, plot.right, level, "equal")
        plot.text(plot.right - 4, level - 5, "threshold", "note", anchor="end")
    plot.line(x(path.ranks), y(values))
    for rank, value, bar in zip(ranks, values, bars, strict=True):
        at = float(x(rank))
        if bar > 0:
            plot.segment(at, float(y(value - bar)), at, float(y(value + bar)), "bar blue")
        chosen = rank == path.rank
        plot.circle(
            at, float(y(value)), 6 if chosen else 4, "fill orange" if chosen else "fill blue"
        )
        if chosen:
            plot.text(at, float(y(value)) - 12, "chosen", "mark", anchor="middle")
    shown = ", ".join(f"rank {r}: {number(float(v))}" for r, v in zip(ranks, values, strict=True))
    words = f"{name.capitalize()} by rank: {shown}. Chosen: rank {path.rank}."
    caption = f"{what} Smaller is better." + (" Bars are one standard error." if folded else "")
    return Drawing(plot.render(words), caption)


def loading_plot(facts: Facts, j: int) -> Drawing:
    """The largest loadings of a direction that are determined, by size, with intervals."""
    found = facts.directions
    values = found.loadings[:, j]
    reach = np.zeros(len(values)) if found.reach is None else found.reach[:, j]
    varies, clear = found.deviation > 0, found.determined[:, j]
    shown = np.flatnonzero(varies & clear)
    order = shown[np.argsort(-np.abs(values[shown]), kind="stable")][:LARGEST]
    told = [
        f"{short(facts.names[f])} {number(float(values[f]), 2)}"
        + (f" (±{number(float(reach[f]), 2)})" if reach[f] > 0 else "")
        for f in order
    ]
    plot = _stems(facts, order, values, values - reach, values + reach, "loading")
    words = f"Loadings of direction {j + 1}, the largest first: {', '.join(told)}."
    unclear = int(np.sum(varies & ~clear))
    are = "is" if unclear == 1 else "are"
    caption = f"{count(unclear, 'loading')} {are} not determined and left out." if unclear else ""
    return Drawing(plot.render(words), caption)


def common_plot(facts: Facts) -> Drawing:
    """The coefficients that tasks have in common, and how far those of most tasks reach."""
    found, model = facts.directions, facts.model
    S = found.metric.shared_evenly(model.coef_ * found.deviation)
    mean = getattr(model, "mean_coef_", model.coef_.mean(axis=0))
    values = found.metric.shared_evenly(mean * found.deviation)
    low, high = np.quantile(S, [0.05, 0.95], axis=0)
    order = np.argsort(-np.maximum(np.abs(low), np.abs(high)), kind="stable")[:LARGEST]
    order = order[found.deviation[order] > 0]
    order = order[np.argsort(-np.abs(values[order]), kind="stable")]
    told = [
        f"{short(facts.names[f])} {number(float(values[f]), 2)}"
        + (
            f" ({number(float(low[f]), 2)} to {number(float(high[f]), 2)})"
            if number(float(low[f])) != number(float(high[f]))
            else ""
        )
        for f in order
    ]
    axis = "coefficient" + (" per standard deviation" if found.standardised else "")
    plot = _stems(facts, order, values, low, high, axis)
    reach = ", with the middle 90 % of tasks" if np.any(low != high) else ""
    words = f"Common coefficients{reach}: {', '.join(told)}."
    left = len(order) < len(values)
    caption = f"The {len(order)} largest of {len(values):,} features." if left else ""
    return Drawing(plot.render(words), caption)


def _stems(
    facts: Facts, order: np.ndarray, values: np.ndarray, low: np.ndarray, high: np.ndarray,
    axis: str,
) -> Plot:  # fmt: skip
    """A line per feature: its value from zero, with a bar from low to high.

    Circles are open where the bar holds zero.
    """
    widest = max((len(short(facts.names[f], NAME)) for f in order), default=1)
    plot = Plot(58 + 21 * len(order), left=max(7.8 * widest + 14, 46), top=6, bottom=46)
    x = plot.x_scale(np.concatenate([low[order], high[order], values[order], [0.0]]))
    plot.x_axis(x, axis, x.ticks(5))
    zero = float(x(0))
    plot.segment(zero, plot.top, zero, plot.bottom, "equal")
    for i, f in enumerate(order):
        y, at = plot.top + 14 + 21 * i, float(x(values[f]))
        colour = "blue" if values[f] >= 0 else "orange"
        plot.text(plot.left - 8, y + 4, facts.names[f], "name", anchor="end", limit=NAME)
        plot.segment(zero, y, at, y, f"stem {colour}")
        if high[f] > low[f]:
            plot.segment(float(x(low[f])), y, float(x(high[f])), y, "bar text")
        clear = low[f] > 0 or high[f] < 0
        plot.circle(at, y, 4.5, f"fill {colour}" if clear else f"open {colour}")
    return plot


def trace_plot(facts: Facts) -> Drawing | None:
    """How the fit came to its end: the gradient where it was looked at, or the objective."""
    trace = getattr(facts.model, "trace_", None)
    if trace is None or len(trace["iteration"]) < 2:
        return None
    gradient = np.asarray(trace.get("gradient", np.zeros(0)), dtype=float)
    tol = float(getattr(facts.model, "tol", 0.0))
    if np.sum(np.isfinite(gradient) & (gradient > 0)) >= 2:
        values, name = gradient, "relative gradient"
    else:
        objective = np.asarray(trace["objective"], dtype=float)
        values, name, tol = objective - np.nanmin(objective), "objective above its least", 0.0
    seen = np.flatnonzero(np.isfinite(values) & (values > 0))
    if len(seen) < 2:
        return None
    if len(seen) > STEPS:
        seen = np.unique(seen[np.linspace(0, len(seen) - 1, STEPS).astype(int)])
    steps, values = np.asarray(trace["iteration"], dtype=float)[seen], values[seen]
    plot = Plot(250)
    levels = np.append(values, tol) if tol > 0 else values
    y = plot.y_scale(levels, log=True)
    plot.y_axis(y, name, y.ticks(5))
    x = plot.x_scale(steps)
    plot.x_axis(x, "iteration", x.ticks(5))
    if tol > 0:
        level = float(y(tol))
        plot.segment(plot.left, level, plot.right, level, "equal")
        plot.text(plot.left + 4, level - 5, "tolerance", "note")
    plot.line(x(steps), y(values))
    words = (
        f"{name} by iteration: from {number(float(values[0]))} to {number(float(values[-1]))} in "
        f"{count(int(steps[-1]), 'iteration')}."
    )
    aim = f" The fit ends where it is below the tolerance, {number(tol, 1)}." if tol > 0 else ""
    what = (
        "How much a further step could still change (the gradient of the objective, over the size "
        "of the coefficients)."
    )
    caption = what + aim if "gradient" in name else "What was minimised, above its least value."
    return Drawing(plot.render(words), caption)
