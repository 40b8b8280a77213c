"""Plots of predictions: errors on held-out rows, calibration of means and intervals, residuals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.diagnosis.calibration import (
    INTERVAL_LEVELS,
    reliability_of_bins,
    reliability_of_tasks,
    wilson_interval,
)
from sharedspan.diagnosis.holdout_errors import HoldoutErrors
from sharedspan.diagnosis.residual_tests import p_value_words, residual_tests
from sharedspan.diagnosis.row_residuals import residuals_of_rows
from sharedspan.diagnosis.text import count, listed, percent
from sharedspan.diagnosis.text import format_number as number
from sharedspan.families import Counts
from sharedspan.report import figures
from sharedspan.report.facts import Facts
from sharedspan.report.figures import GREY, new_panel
from sharedspan.report.residual_plots import draw_residual_quartiles, draw_uniform_quantiles

WIDTH = 4.6  # inches, on a phone about as wide as the screen
POINTS = 1500  # rows that are drawn
HINT = "Point at a task, or use the arrow keys, to see its name."


@dataclass(frozen=True)
class PagePlot:
    """A plot with its description, and the tasks of its points if these can be pointed at."""

    key: str
    panel: Any
    words: str  # a description for readers who cannot see it
    caption: str = ""
    tasks: np.ndarray | None = None  # in the order of the points
    columns: tuple[str, ...] = ()  # of the table, shown for the task under the pointer
    hint: str = ""  # instructions for readers with a pointer
    title: str = ""  # of one of several maps


def prediction_plots(facts: Facts, tasks: np.ndarray) -> Iterator[PagePlot]:
    """All plots of predictions; ``tasks`` are the positions of the tasks on the page."""
    errors = facts.errors
    if errors is not None:
        for name in errors.baselines:
            yield holdout_plot(errors, name, tasks, facts.simpler[name])
        if facts.view.is_normal:
            yield from observed_plot(errors, tasks)
        else:
            yield from calibration_plots(facts, errors)
        yield from coverage_plot(facts, errors)
    yield from residual_plots(facts)


def holdout_plot(errors: HoldoutErrors, baseline: str, tasks: np.ndarray, name: str) -> PagePlot:
    """The held-out error of each task by the model against the error by a simpler one."""
    held = tasks[errors.rows[tasks] > 0]
    mine, other = errors.task_error("model")[held], errors.task_error(baseline)[held]
    both, panel = np.concatenate([mine, other]), new_panel(3.6, WIDTH)
    figures.draw_tasks(panel, other, mine, np.zeros(len(held), dtype=bool))
    ends = np.array([0.0, 1.05 * both.max() or 1.0])
    if both.min() > 0:
        panel.set(xscale="log", yscale="log")
        pad = 1.1 * (both.max() / both.min()) ** 0.04
        ends = np.array([both.min() / pad, both.max() * pad])
    panel.plot(ends, ends, color=GREY, ls="--", lw=1, zorder=1)
    error = "error" if errors.loss.is_root else errors.loss.name
    panel.set(xlim=ends, ylim=ends, ylabel=f"{error} of this model")
    panel.set_xlabel(f"{error} with {name}", **figures.AS_IT_IS)
    inside: dict[str, Any] = {"transform": panel.transAxes, "fontsize": 9, "gid": "note"}
    panel.text(0.98, 0.04, "this model better ↘", ha="right", **inside)
    panel.text(0.02, 0.94, "↖ this model worse", **inside)
    change = errors.change(baseline)
    caption = (
        f"Compared with {name}, the {error} is smaller in {count(change.gains, 'task')} and "
        f"larger in {change.losses:,}."
    )
    words = (
        f"Held-out {errors.loss.words} of {count(len(held), 'task')}: this model against "
        f"{name}. {caption} Median error {number(np.median(mine))} against "
        f"{number(np.median(other))}."
    )
    return PagePlot(f"gain-{baseline}", panel, words, caption, held, ("rmse", f"rmse {baseline}"))


def observed_plot(errors: HoldoutErrors, tasks: np.ndarray) -> Iterator[PagePlot]:
    """Observed against predicted responses of held-out rows."""
    if errors.scored is None:
        return
    y, mean, codes = errors.scored.y, errors.scored.mean, errors.scored.codes
    shown = np.linspace(0, len(y) - 1, min(len(y), POINTS)).astype(int)
    panel = new_panel(3.6, WIDTH)
    low, high = (float(end(np.append(y[shown], mean[shown]))) for end in (np.min, np.max))
    pad = 0.04 * (high - low) or 1.0
    ends = np.array([low - pad, high + pad])
    figures.draw_tasks(panel, mean[shown], y[shown], np.zeros(len(shown), dtype=bool))
    panel.plot(ends, ends, color=GREY, ls="--", lw=1, zorder=1)
    panel.set(xlim=ends, ylim=ends, xlabel="predicted response", ylabel="observed response")
    some = f"{len(shown):,} of {len(y):,} rows, evenly spaced" if len(shown) < len(y) else "a row"
    point = f"Each point is {some}," if some == "a row" else f"The points are {some},"
    caption = f"{point} predicted by a fit without it. On the line, prediction and response agree."
    caption = caption if some == "a row" else caption.replace("without it", "without them")
    words = (
        f"Observed against predicted responses of {count(len(y), 'held-out row')}: the correlation "
        f"is {number(float(_correlation(y, mean)), 2)}."
    )
    known = len(shown) and np.isin(codes[shown], tasks).all()
    yield PagePlot("observed", panel, words, caption, codes[shown] if known else None)


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else 0.0


def coverage_plot(facts: Facts, errors: HoldoutErrors) -> Iterator[PagePlot]:
    """The share of held-out responses in prediction intervals, by the level of these."""
    if errors.scored is None or errors.scored.covered is None:
        return
    covered = errors.scored.covered
    levels, observed = np.array(INTERVAL_LEVELS), covered.mean(axis=0)
    low, high = wilson_interval(observed, np.full(len(levels), len(covered)))
    panel = new_panel(3.6, WIDTH)
    figures.draw_calibration(panel, levels, observed, low, high, share=True)
    start = np.floor(10 * min(observed.min(), levels[0])) / 10 - 0.02
    panel.set(xlim=(start, 1.02), ylim=(start, 1.02))
    panel.set(xlabel="level of the interval", ylabel="proportion of responses inside")
    told = listed(f"{percent(level)}: {percent(share)}" for level, share in
                  zip(levels, observed, strict=True))  # fmt: skip
    at = INTERVAL_LEVELS.index(0.95)
    caption = (
        f"95\u00a0% prediction intervals contain {percent(observed[at])} of "
        f"{len(covered):,} held-out responses. "
    )
    if isinstance(facts.view.family, Counts):
        caption += "Intervals of counts should contain at least their level: below the line they "
        caption += "are too narrow."
    else:
        caption += "Above the line intervals are too wide, below it they are too narrow."
    words = f"Held-out responses in prediction intervals, by level: {told}."
    yield PagePlot("coverage", panel, words, caption)


def calibration_plots(facts: Facts, errors: HoldoutErrors) -> Iterator[PagePlot]:
    """Predicted against observed means of held-out classes or counts, by bins and by task."""
    if errors.scored is None:
        return
    family, (y, mean, codes, _) = facts.view.family, errors.scored
    bins, tasks = reliability_of_bins(family, y, mean), reliability_of_tasks(family, y, mean, codes)
    is_share = not isinstance(family, Counts)
    predicted = "predicted probability" if is_share else "predicted mean"
    observed = "observed proportion" if is_share else "observed mean"
    for key, groups, what in (("rows", bins, "the bin"), ("tasks", tasks, "the task")):
        panel = new_panel(3.6, WIDTH)
        reach = (groups.low, groups.high) if key == "rows" else (None, None)
        figures.draw_calibration(panel, groups.predicted, groups.observed, *reach, share=is_share)
        panel.set(xlabel=f"{predicted}, mean of {what}", ylabel=observed)
        inside = (groups.low <= groups.predicted) & (groups.predicted <= groups.high)
        if key == "rows":
            caption = (
                f"Held-out rows in {count(len(inside), 'bin')} by their {predicted}; lines are "
                f"95\u00a0% intervals, {inside.sum()} of which "
                f"{'contains' if inside.sum() == 1 else 'contain'} the prediction."
            )
            pairs = zip(groups.predicted, groups.observed, strict=True)
            told = ", ".join(f"{number(p, 2)}: {number(o, 2)}" for p, o in pairs)
            words = f"Calibration over rows, predicted and {observed}: {told}."
        else:
            caption = (
                f"Each point is a task: the mean of its held-out predictions and its {observed}. "
                f"In {inside.sum():,} of {count(len(inside), 'task')} the 95\u00a0% interval of "
                f"the {observed} contains the prediction."
            )
            words = f"Calibration over tasks. {caption}"
        yield PagePlot(f"calibration-{key}", panel, words, caption)


def residual_plots(facts: Facts) -> Iterator[PagePlot]:
    """Residuals that are uniform if the model is right: their distribution, and by prediction."""
    drawn = residuals_of_rows(facts.view)
    if drawn is None:
        return
    tests = residual_tests(drawn.residuals, drawn.predicted)
    panel = new_panel(3.4, WIDTH)
    draw_uniform_quantiles(panel, drawn.residuals, tests)
    caption = (
        "If the model is right, the line is on the diagonal but for chance, which the band shows. "
        "It is orange if a test says that it is not."
    )
    uniform = p_value_words(tests.uniformity.p_value)
    words = f"Distribution of residuals against the uniform one, test of uniformity {uniform}."
    yield PagePlot("residuals-uniform", panel, words, caption)
    panel = new_panel(3.4, WIDTH)
    draw_residual_quartiles(panel, drawn.residuals, drawn.predicted, tests)
    caption = (
        "Lines are quartiles of the residuals. If the model is right, they are horizontal: a bend "
        "is a nonlinear effect, and a spread that changes is noise that depends on the prediction."
    )
    told = [f"{name} {p_value_words(test.p_value)}" for name, test in
            (("level", tests.trend), ("spread", tests.spread)) if test is not None]  # fmt: skip
    words = f"Residuals by prediction; tests of their {' and '.join(told) or 'level: none'}."
    yield PagePlot("residuals-rank", panel, words, caption)
