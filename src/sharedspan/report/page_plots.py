"""The plots of coefficients, ranks and tasks on the page, each with its content in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from sharedspan.diagnosis.text import count, listed, percent, short
from sharedspan.diagnosis.text import format_number as number
from sharedspan.inference.rank_selection import RankPath
from sharedspan.report import figures
from sharedspan.report.facts import SAME, Facts
from sharedspan.report.figures import BLUE, GREY, GROUPS, new_panel
from sharedspan.report.plots import GOLDEN, plot_convergence
from sharedspan.report.prediction_plots import HINT, WIDTH, PagePlot, prediction_plots

LARGEST = 20  # loadings that are drawn
NAME = 18  # characters of a name beside a loading or a point
RINGED = 300  # tasks that do not fit, marked on a map
MAPPED = 4  # directions whose pairs are drawn, one fewer if there are many tasks
STRIPS, POINTS = 8, 2000  # coefficients whose variation is drawn, and tasks on each strip
RANK_CRITERIA = {
    "auto": ("excess squared error", "Mean squared error on held-out rows, minus the error of "
             "the best rank, in squared units of the response."),
    "evidence": ("misfit per row", "Minus the log of the probability of the rows under each rank "
                 "(the marginal likelihood), per row."),
    "threshold": ("strength left out", "Strength of the strongest direction that each rank leaves "
                  "out (the singular value)."),
}  # fmt: skip


class Axis(NamedTuple):
    """One value per task, (T,), its column in the table, and the label of the axis."""

    values: np.ndarray
    column: str
    label: str


def page_plots(facts: Facts, tasks: np.ndarray) -> Iterator[PagePlot]:
    """All plots of the page; ``tasks`` are the positions of the tasks on the page."""
    path, spans = facts.view.span.rank_path, facts.directions
    yield from prediction_plots(facts, tasks)
    yield from common_plot(facts)
    if spans.rank and spans.spectrum[0] > 0:
        yield spectrum_plot(facts)
    if path is not None:
        yield rank_plot(facts, path)
    for j in range(spans.rank):
        yield loading_plot(facts, j)
    yield from maps(facts, tasks) if spans.rank else differences(facts, tasks)
    yield from convergence_plot(facts)


def spectrum_plot(facts: Facts) -> PagePlot:
    """Singular values of the coefficients, and of separate regressions."""
    spans, separate = facts.directions, facts.separate_spectrum()
    panel = figures.draw_spectrum(new_panel(3.0, WIDTH), spans.spectrum, spans.rank, separate)
    panel.set(xlabel="direction", ylabel="size (root mean square)")
    own = spans.spectrum[: max(int(np.sum(spans.spectrum > SAME * spans.spectrum[0])), spans.rank)]
    sizes = ", ".join(map(number, own[:15]))
    words = f"Size of the coefficients along each direction, the model's: {sizes}."
    what = "coefficients’ deviations from the common ones" if spans.about_mean else "coefficients"
    size = "measured by their predictions within tasks, " if spans.metric.known else ""
    caption = (
        f"Points: the model’s {what} along each direction, {size}root mean squares over tasks."
    )
    if 0 < spans.rank < len(own):
        caption += " Grey points show the tasks’ variation outside the span."
    if separate is not None:
        words += f" Separate regressions: {', '.join(map(number, separate[:15]))}."
        caption += (
            " Orange circles: the same for a ridge regression of each task alone. Its noise fills "
            "all directions, also those outside the span, and it shrinks coefficients, so that "
            "circles may be below points."
        )
    return PagePlot("spectrum", panel, words, caption)


def rank_plot(facts: Facts, path: RankPath) -> PagePlot:
    """The criterion by which the rank was chosen."""
    name, what = RANK_CRITERIA[path.method]
    folded = path.method == "auto"
    losses = path.difference if folded else path.loss
    panel = figures.draw_rank_path(new_panel(3.0, WIDTH), path, losses, name)
    ranks = zip(path.ranks, losses, strict=True)
    values = ", ".join(f"rank {rank}: {number(loss)}" for rank, loss in ranks)
    words = f"{name.capitalize()} by rank: {values}. Chosen: rank {path.rank}."
    caption = f"{what} Smaller is better."
    caption += " Bars are one standard error." if folded else ""
    return PagePlot("rank", panel, words, caption)


def loading_plot(facts: Facts, j: int) -> PagePlot:
    """The largest loadings of a direction that are determined, by size, with intervals."""
    spans = facts.directions
    values, clear = spans.loadings[:, j], spans.determined[:, j]
    reach = 0.0 if spans.reach is None else spans.reach[:, j]
    varies = spans.metric.deviation > 0
    shown = np.flatnonzero(varies & clear)
    order = shown[np.argsort(-np.abs(values[shown]), kind="stable")][:LARGEST]
    panel, told = _stems(facts, order, values, values - reach, values + reach)
    panel.set_xlabel("loading")
    words = f"Loadings of direction {j + 1}, the largest first: {told}."
    unclear = int(np.sum(varies & ~clear))
    are = "is" if unclear == 1 else "are"
    caption = f"{count(unclear, 'loading')} {are} not determined and left out." if unclear else ""
    return PagePlot(f"loadings-{j}", panel, words, caption)


def common_plot(facts: Facts) -> Iterator[PagePlot]:
    """The coefficients that tasks have in common, and the range of most tasks."""
    metric, span, rows = facts.view.metric, facts.view.span, facts.view.rows
    mean = span.coef.mean(axis=0) if span.mean_coef is None else span.mean_coef
    deviation = metric.deviation
    # Some models have effects of features that are constant within tasks.
    constant = (deviation == 0) & ((mean != 0) | span.coef.any(axis=0)) & ~facts.crossed
    if rows is not None:
        deviation = np.where(constant, rows.X.std(axis=0), deviation)
    S = metric.shared_evenly(span.coef * deviation)
    values = metric.shared_evenly(mean * deviation)
    low, high = np.quantile(S, [0.05, 0.95], axis=0)
    order = np.argsort(-np.maximum(np.abs(low), np.abs(high)), kind="stable")
    order = order[(deviation > 0)[order] & ~facts.crossed[order]][:LARGEST]
    if not len(order):
        return
    order = order[np.argsort(-np.abs(values[order]), kind="stable")]
    panel, told = _stems(facts, order, values, low, high)
    panel.set_xlabel(_coefficient(facts))
    reach = ", with the middle 90 % of tasks" if np.any(low != high) else ""
    left = len(order) < facts.n_features
    captions = [f"The {len(order)} largest of {facts.n_features:,} features."] if left else []
    across = [short(facts.view.names[f]) for f in order if constant[f]]
    if across:
        captions.append(
            f"{listed(across, LARGEST)} {_do(across)} not vary within tasks: the effect is per "
            "standard deviation over all rows."
        )
    absent = [short(facts.view.names[f]) for f in np.flatnonzero(constant & (deviation == 0))]
    if absent:
        captions.append(
            f"{listed(absent, LARGEST)} {_do(absent)} not vary within tasks and "
            f"{'is' if len(absent) == 1 else 'are'} left out: give the rows (--data) to see "
            f"{'its effect' if len(absent) == 1 else 'their effects'}."
        )
    words = f"Common coefficients{reach}: {told}."
    yield PagePlot("common", panel, words, " ".join(captions))


def _do(names: Sequence[str]) -> str:
    return "does" if len(names) == 1 else "do"


def _stems(
    facts: Facts, order: np.ndarray, values: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[Any, str]:
    """Stems of features ``order``, with intervals if there are any, and a description."""
    panel = new_panel(0.65 + 0.24 * max(len(order), 1), WIDTH)
    names = [short(facts.view.names[f], NAME) for f in order]
    reach = (low[order], high[order]) if np.any(low < high) else (None, None)
    figures.draw_stems(panel, names, values[order], *reach)
    told = []
    for f in order:
        low_text, high_text = number(low[f], 2), number(high[f], 2)
        span = f" ({low_text} to {high_text})" if low_text != high_text else ""
        told.append(f"{short(facts.view.names[f])} {number(values[f], 2)}{span}")
    return panel, ", ".join(told)


def convergence_plot(facts: Facts) -> Iterator[PagePlot]:
    """The loss and the gradient by iteration, if the model has a trace."""
    trace = facts.view.span.trace
    if trace is None or len(trace["iteration"]) < 2:
        return
    gradient = np.asarray(trace.get("gradient", np.zeros(0)), dtype=float)
    gradient = gradient[np.isfinite(gradient) & (gradient > 0)]
    objective = np.asarray(trace["objective"], dtype=float)
    excess, tol = objective - np.nanmin(objective), float(facts.view.params.get("tol", 0.0))
    if len(gradient) >= 2:
        values, name = gradient, "relative gradient"
        caption = (
            "Gradient: how much a further step could still change (the gradient of the objective, "
            "over the size of the coefficients)."
        )
        if tol > 0:
            caption += f" The fit ends when it is below the tolerance, {number(tol, 1)}."
    else:
        values, name, caption = excess[excess > 0], "objective above its minimum", ""
    if len(values) < 2:
        return
    words = (
        f"{name} by iteration: from {number(values[0])} to {number(values[-1])} in "
        f"{count(int(trace['iteration'][-1]), 'iteration')}."
    )
    panel = plot_convergence(facts.view.model, new_panel(3.0, WIDTH))
    yield PagePlot("trace", panel, words, caption)


def maps(facts: Facts, tasks: np.ndarray) -> Iterator[PagePlot]:
    """The tasks sorted along one direction, or in the planes of pairs of directions."""
    spans = facts.directions
    axes = [
        Axis(spans.places[tasks, j], f"direction {j + 1}", f"direction {j + 1} ({percent(share)})")
        for j, share in enumerate(spans.share)
    ]
    pairs = list(combinations(range(min(spans.rank, MAPPED - (len(tasks) > 5000))), 2))
    for i, pair in enumerate(pairs or [(0,)]):
        title = f"direction{'s' if pairs else ''} {listed([str(j + 1) for j in pair])}"
        by = f"their place along {title}"
        yield _task_map(facts, f"map-{i}", tasks, by, title, *(axes[j] for j in pair))


def differences(facts: Facts, tasks: np.ndarray) -> Iterator[PagePlot]:
    """The levels and slopes of tasks that share no direction."""
    levels = facts.levels
    if facts.one_row_each:
        return
    if levels is not None and np.ptp(levels) > SAME * np.abs(levels).max():
        axis = Axis(levels[tasks], "level", f"{short(facts.target, 20)} at average features")
        by = "what is predicted at the average of all features"
        yield _task_map(facts, "levels", tasks, by, "predictions", axis)
    yield from slopes_plot(facts, tasks)


def slopes_plot(facts: Facts, tasks: np.ndarray) -> Iterator[PagePlot]:
    """The coefficients that vary most between tasks, one strip of points for each."""
    drawn = tasks[:: 1 + (len(tasks) - 1) // POINTS]
    metric, names = facts.view.metric, facts.view.names
    S = metric.shared_evenly(facts.view.span.coef[drawn] * metric.deviation)
    spread = S.std(axis=0)
    varying = np.flatnonzero(spread > SAME * np.abs(S).max(initial=0.0))
    most = varying[np.argsort(-spread[varying], kind="stable")][:STRIPS]
    if not len(most):
        return
    panel, place = new_panel(0.65 + 0.3 * len(most), WIDTH), np.arange(len(most))
    aside = (np.arange(len(drawn)) * GOLDEN % 1 - 0.5) / 2  # so that points are apart
    panel.axvline(0, color=GREY, lw=0.8, zorder=0)
    panel.scatter(S[:, most].T.ravel(), (place[:, None] + aside).ravel(), s=14, color=BLUE,
                  alpha=0.6, lw=0, gid="points")  # fmt: skip
    figures.name_rows(panel, [short(names[f], NAME) for f in most])
    panel.set_xlabel(_coefficient(facts))
    told = [
        f"{short(names[f])} from {number(S[:, f].min(), 2)} to {number(S[:, f].max(), 2)}"
        for f in most
    ]
    words = f"Coefficients of {count(len(drawn), 'task')}, those that vary most: {', '.join(told)}."
    some = "a task" if len(drawn) == len(tasks) else f"one of {len(drawn):,} tasks, evenly spaced"
    caption = f"Each point is the coefficient of {some}."
    if len(most) < len(varying):
        caption += f" The {len(most)} of {len(varying):,} coefficients that vary most."
    columns = tuple(f"x{f}" for f in most)
    yield PagePlot("slopes", panel, words, caption, np.tile(drawn, len(most)), columns, HINT)


def _task_map(
    facts: Facts, key: str, tasks: np.ndarray, by: str, title: str, x: Axis, y: Axis | None = None
) -> PagePlot:
    """Tasks by two values, or by one against the proportion of tasks below it.

    Points have the colours of their groups, tasks that do not fit have rings, and some tasks have
    names; ``by`` describes the values.
    """
    words, strip = f"{count(len(tasks), 'task')} by {by}.", y is None
    for axis in (x,) if y is None else (x, y):
        what = title if strip else axis.column
        words += f" {what.capitalize()}: {_ends(facts, tasks, axis.values)}."
    if y is None:
        place = np.argsort(np.argsort(x.values, kind="stable"), kind="stable")
        y = Axis((place + 0.5) / len(place), "", "proportion of tasks below")
    panel = new_panel(3.4 if strip else 4.2, WIDTH)
    odd, (group, caption) = np.isin(tasks, facts.outliers[:RINGED]), _colours(facts, tasks)
    order = figures.draw_tasks(panel, x.values, y.values, odd, group)
    for i in figures.farthest(x.values, y.values, odd, strip):
        name = short(facts.view.labels[tasks[i]], NAME)
        figures.name_point(panel, x.values, y.values, i, name, strip)
    panel.set(xlabel=x.label, ylabel=y.label, **({"ylim": (-0.08, 1.08)} if strip else {}))
    caption += ["Ringed tasks do not fit."] if odd.any() else []
    columns = (x.column, y.column, "group")
    return PagePlot(key, panel, words, " ".join(caption), tasks[order], columns, HINT, title)


def _colours(facts: Facts, tasks: np.ndarray) -> tuple[np.ndarray | None, list[str]]:
    """Numbers of the tasks' colours, (T,), and a sentence that explains them."""
    if facts.groups is None:
        return None, []
    (name, numbers), keys = facts.groups, []
    values, last = np.unique(numbers), len(GROUPS) - 1
    group = np.minimum(np.searchsorted(values, numbers[tasks]), last)
    for g in np.unique(group):
        more = " and above" if g == last and len(values) > len(GROUPS) else ""
        keys.append(f"{list(GROUPS)[g]}: {name} {values[g]}{more}")
    return group, [f"Colours: {listed(keys)}."]


def _ends(facts: Facts, tasks: np.ndarray, values: np.ndarray) -> str:
    """The tasks with the smallest and the largest value, in words."""
    ends = (int(values.argmin()), int(values.argmax()))
    lo, hi = (f"{number(values[i])} ({short(facts.view.labels[tasks[i]])})" for i in ends)
    return f"from {lo} to {hi}"


def _coefficient(facts: Facts) -> str:
    return "coefficient" + (" per standard deviation" if facts.view.metric.known else "")
