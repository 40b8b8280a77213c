"""Maps of the tasks: where they lie along the shared directions, or else in what they differ."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from sharedspan.diagnosis.loadings import Directions
from sharedspan.diagnosis.text import count, listed, number, percent, short
from sharedspan.report.drawings import NAME, Drawing
from sharedspan.report.facts import Facts
from sharedspan.report.svg import COLOURS, Plot, Scale

NAMED = 8  # tasks named on a map
RINGED = 300  # tasks that do not fit, marked on a map
MAPPED = 4  # directions whose pairs are drawn
STRIPS = 8  # coefficients whose variation is drawn
STRIP = 26  # height of each
POINTS = 2000  # tasks on each strip
SAME = 1e-9  # variation of slopes, over their size, that is rounding
HINT = "Point at a task, or use the arrow keys, to see its name."


def maps(facts: Facts, kept: np.ndarray) -> list[tuple[str, Drawing]]:
    """Where the tasks lie: a strip for one direction, pairs of directions for more."""
    found = facts.directions
    if found.rank == 1:
        return [("direction 1", _strip(facts, kept))]
    shown = min(found.rank, MAPPED if len(kept) <= 5000 else MAPPED - 1)
    return [
        (f"directions {a + 1} and {b + 1}", _map(facts, kept, a, b))
        for a, b in combinations(range(shown), 2)
    ]


def _map(facts: Facts, kept: np.ndarray, a: int, b: int) -> Drawing:
    places = facts.directions.places[kept]
    plot = Plot(400)
    y = plot.y_scale(places[:, b])
    plot.y_axis(y, _axis(facts.directions, b))
    x = plot.x_scale(places[:, a])
    plot.x_axis(x, _axis(facts.directions, a))
    _origin(plot, x, y)
    drawn, caption = _tasks_drawn(facts, plot, kept, x(places[:, a]), y(places[:, b]))
    words = f"{count(len(kept), 'task')} by their place along directions {a + 1} and {b + 1}."
    words += "".join(_ends(facts, kept, places[:, i], f"Direction {i + 1}") for i in (a, b))
    columns = (f"direction {a + 1}", f"direction {b + 1}", "group")
    return Drawing(plot.render(words), caption, drawn, columns, HINT)


def _strip(facts: Facts, kept: np.ndarray) -> Drawing:
    places = facts.directions.places[kept, 0]
    words = f"{count(len(kept), 'task')} by their place along direction 1."
    words += _ends(facts, kept, places, "Direction 1")
    return _in_order(facts, kept, places, _axis(facts.directions, 0), words, "direction 1")


def level_plot(facts: Facts, kept: np.ndarray, levels: np.ndarray) -> Drawing:
    """The tasks in the order of their predictions at average features, (T,)."""
    name = f"{short(facts.target, 20)} at average features"
    words = f"{count(len(kept), 'task')} by what is predicted at the average of all features."
    words += _ends(facts, kept, levels[kept], "Predictions")
    return _in_order(facts, kept, levels[kept], name, words, "level")


def slopes_plot(facts: Facts, kept: np.ndarray) -> Drawing | None:
    """The coefficients that vary most between tasks, a strip of points for each."""
    drawn = kept[:: 1 + (len(kept) - 1) // POINTS]
    found = facts.directions
    S = found.metric.shared_evenly(facts.model.coef_[drawn] * found.deviation)
    spread = S.std(axis=0)
    varying = np.flatnonzero(spread > SAME * np.abs(S).max(initial=0.0))
    most = varying[np.argsort(-spread[varying], kind="stable")][:STRIPS]
    if not len(most):
        return None
    widest = max(len(short(facts.names[f], NAME)) for f in most)
    plot = Plot(58 + STRIP * len(most), left=max(7.8 * widest + 14, 46), top=6, bottom=46)
    x = plot.x_scale(np.append(S[:, most], 0.0))
    plot.x_axis(x, _unit(facts), x.ticks(5))
    zero = float(x(0))
    plot.segment(zero, plot.top, zero, plot.bottom, "zero")
    aside = ((np.arange(len(drawn)) * 0.618) % 1 - 0.5) * 0.5 * STRIP  # so that points lie apart
    middle = plot.top + STRIP * (np.arange(len(most)) + 0.5)
    for y, f in zip(middle, most, strict=True):
        plot.text(plot.left - 8, float(y) + 4, facts.names[f], "name", anchor="end", limit=NAME)
    at_x, at_y = x(S[:, most].T).ravel(), (middle[:, None] + aside).ravel()
    plot.points(at_x, at_y)
    told = [
        f"{short(facts.names[f])} from {number(float(S[:, f].min()), 2)} to "
        f"{number(float(S[:, f].max()), 2)}"
        for f in most
    ]
    words = f"Coefficients of {count(len(drawn), 'task')}, those that vary most: {', '.join(told)}."
    caption = "Each point is the coefficient of a task."
    if len(drawn) < len(kept):
        caption = f"Each point is the coefficient of one of {len(drawn):,} tasks, evenly spaced."
    if len(most) < len(varying):
        caption += f" The {len(most)} of {len(varying):,} coefficients that vary most."
    columns = tuple(f"x{f}" for f in most)
    return Drawing(plot.render(words), caption, np.tile(drawn, len(most)), columns, HINT)


def _unit(facts: Facts) -> str:
    return "coefficient" + (" per standard deviation" if facts.directions.standardised else "")


def _in_order(
    facts: Facts, kept: np.ndarray, values: np.ndarray, name: str, words: str, column: str
) -> Drawing:
    """Tasks by a value, against the share of tasks below it."""
    below = (np.argsort(np.argsort(values, kind="stable"), kind="stable") + 0.5) / len(values)
    plot = Plot(320)
    y = plot.y_scale(np.array([0, 1.0]), pad=0.02)
    plot.y_axis(y, "share of tasks below", [0, 0.25, 0.5, 0.75, 1])
    x = plot.x_scale(values)
    plot.x_axis(x, name)
    # Names stand off the curve that the points make.
    drawn, caption = _tasks_drawn(facts, plot, kept, x(values), y(below), lift=14.0)
    return Drawing(plot.render(words), caption, drawn, (column, "group"), HINT)


def _ends(facts: Facts, kept: np.ndarray, values: np.ndarray, what: str) -> str:
    """The tasks with the least and the largest value, in words."""
    lo, hi = int(values.argmin()), int(values.argmax())
    return (
        f" {what}: from {number(float(values[lo]))} ({short(facts.labels[kept[lo]])}) to "
        f"{number(float(values[hi]))} ({short(facts.labels[kept[hi]])})."
    )


def _axis(found: Directions, j: int) -> str:
    return f"direction {j + 1} ({percent(found.share[j])})"


def _origin(plot: Plot, x: Scale, y: Scale) -> None:
    """Lines through zero, where it is in sight."""
    at_x, at_y = float(x(0)), float(y(0))
    if plot.left < at_x < plot.right:
        plot.segment(at_x, plot.top, at_x, plot.bottom, "zero")
    if plot.top < at_y < plot.bottom:
        plot.segment(plot.left, at_y, plot.right, at_y, "zero")


def _tasks_drawn(
    facts: Facts, plot: Plot, kept: np.ndarray, x: np.ndarray, y: np.ndarray, lift: float = 0.0
) -> tuple[np.ndarray, str]:
    """Points by group, tasks that do not fit ringed, and some of them named.

    Returns the tasks in the order of their points, and a caption.
    """
    order, keys = np.arange(len(kept)), []
    if facts.groups is not None:
        name, group = facts.groups
        values = [int(value) for value in np.unique(group)]
        style = [min(values.index(int(v)), len(COLOURS) - 1) for v in group[kept]]
        order = np.argsort(style, kind="stable")
        for s in sorted(set(style)):
            here = order[np.asarray(style)[order] == s]
            plot.points(x[here], y[here], COLOURS[s])
            more = " and above" if s == len(COLOURS) - 1 and len(values) > len(COLOURS) else ""
            keys.append(f"{COLOURS[s]}: {name} {values[s]}{more}")
    else:
        plot.points(x, y)
    odd = set(facts.outliers)
    rings = [i for i in range(len(kept)) if int(kept[i]) in odd][:RINGED]
    for i in rings:
        plot.circle(float(x[i]), float(y[i]), 7, "open orange")
    far = np.hypot((x - np.median(x)) / plot.width, (y - np.median(y)) / plot.height)
    ends = [x.argmax(), x.argmin()] if lift else np.argsort(-far)[:NAMED]
    extreme = [int(i) for i in ends if int(i) not in rings]
    _name_points(facts, plot, kept, x, y, rings[:NAMED] + extreme[: NAMED // 2], lift)
    said = [f"Colours: {listed(keys)}."] if keys else []
    said += ["Ringed tasks do not fit."] if rings else []
    return kept[order], " ".join(said)


def _name_points(
    facts: Facts, plot: Plot, kept: np.ndarray, x: np.ndarray, y: np.ndarray, chosen: list[int],
    lift: float,
) -> None:  # fmt: skip
    """Names beside points, those left out that would cover another."""
    boxes: list[tuple[float, float, float]] = []
    for i in chosen:
        name = short(facts.labels[kept[i]], 16)
        width, left = 7.2 * len(name) + 12, float(x[i]) > plot.width * 0.6
        start = float(x[i]) - width if left else float(x[i])
        at = float(y[i]) + (lift if left else -lift)
        if any(abs(at - b) < 14 and start < e and s < start + width for s, e, b in boxes):
            continue
        boxes.append((start, start + width, at))
        shift, anchor = (-10, "end") if left else (10, "start")
        style = "mark" if int(kept[i]) in set(facts.outliers) else "note"
        plot.text(float(x[i]) + shift, at + 4, name, style, anchor=anchor, limit=16)
