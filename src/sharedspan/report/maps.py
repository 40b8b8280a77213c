"""Maps of the tasks: where they lie along the shared directions."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from sharedspan.report.drawings import Drawing
from sharedspan.report.facts import Facts
from sharedspan.report.loadings import Directions
from sharedspan.report.svg import COLOURS, Plot
from sharedspan.report.wording import count, listed, number, percent, short

NAMED = 8  # tasks named on a map
RINGED = 300  # tasks that do not fit, marked on a map
MAPPED = 4  # directions whose pairs are drawn


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
    x, y = plot.x_scale(places[:, a]), plot.y_scale(places[:, b])
    plot.x_axis(x, _axis(facts.directions, a))
    plot.y_axis(y, _axis(facts.directions, b))
    _origin(plot, x, y)
    return _tasks_drawn(facts, plot, kept, x(places[:, a]), y(places[:, b]), (a, b))


def _strip(facts: Facts, kept: np.ndarray) -> Drawing:
    places = facts.directions.places[kept, 0]
    below = (np.argsort(np.argsort(places, kind="stable"), kind="stable") + 0.5) / len(places)
    plot = Plot(320)
    x, y = plot.x_scale(places), plot.y_scale(np.array([0, 1.0]), pad=0.02)
    plot.x_axis(x, _axis(facts.directions, 0))
    plot.y_axis(y, "share of tasks below", [0, 0.25, 0.5, 0.75, 1])
    return _tasks_drawn(facts, plot, kept, x(places), y(below), (0,))


def _axis(found: Directions, j: int) -> str:
    return f"direction {j + 1} ({percent(found.share[j])})"


def _origin(plot: Plot, x: Any, y: Any) -> None:
    """Lines through zero, where it is in sight."""
    at_x, at_y = float(x(0)), float(y(0))
    if plot.left < at_x < plot.right:
        plot.segment(at_x, plot.top, at_x, plot.bottom, "zero")
    if plot.top < at_y < plot.bottom:
        plot.segment(plot.left, at_y, plot.right, at_y, "zero")


def _tasks_drawn(
    facts: Facts, plot: Plot, kept: np.ndarray, x: np.ndarray, y: np.ndarray, which: tuple[int, ...]
) -> Drawing:
    """Points by group, tasks that do not fit ringed, and some of them named."""
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
    extreme = [int(i) for i in np.argsort(-far)[:NAMED] if int(i) not in rings]
    lift = 14.0 if len(which) == 1 else 0.0  # off the curve that the points of a strip make
    _name_points(facts, plot, kept, x, y, rings[:NAMED] + extreme[: NAMED // 2], lift)
    said = f"{count(len(kept), 'task')} by their place along {listed([str(j + 1) for j in which])}"
    words = said.replace("along", "along direction" + ("s" if len(which) > 1 else "")) + "."
    for j in which:
        places = facts.directions.places[kept, j]
        lo, hi = int(places.argmin()), int(places.argmax())
        words += (
            f" Direction {j + 1}: from {number(float(places[lo]))} "
            f"({short(facts.labels[kept[lo]])}) to {number(float(places[hi]))} "
            f"({short(facts.labels[kept[hi]])})."
        )
    caption = "Point at a task, or use the arrow keys, to see its name."
    if keys:
        caption += f" Colours: {listed(keys)}."
    if rings:
        caption += " Ringed tasks do not fit."
    columns = (*(f"direction {j + 1}" for j in which), "group")
    return Drawing(plot.render(words), caption, kept[order], columns)


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
