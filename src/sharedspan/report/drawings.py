"""The parts that ss.plot_* and the report's page draw with: spectra, tasks, stems, names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sharedspan.report.figures import AS_IT_IS, BLUE, GREY, GROUPS, ORANGE

VALUES = 15  # singular values that are drawn, or two beyond the rank
ROUNDING = 1e-9  # of the largest singular value: what is below is zero but for the arithmetic
DECADES = 100.0  # ratio from which an axis is logarithmic
DENSE = 1000  # points from which they are paler
MANY = 10_000  # points from which they are drawn as pixels in vector formats
NAMED, CANDIDATES = 6, 500  # points that are named, and that are considered for it
SPACE = ((0.25, 0.08), (0.25, 0.2))  # that a name takes, of a square and of a strip


def draw_spectrum(
    panel: Any, values: np.ndarray, rank: int, separate: np.ndarray | None = None
) -> Any:
    """Singular values, descending, ``rank`` of them in the span, beside values of separate fits."""
    rank = min(rank, len(values))
    more = bool(np.any(values[rank:] > ROUNDING * values[0])) or separate is not None
    values = values[: max(VALUES if more else 0, rank + 2)]
    nonzero, place = values > ROUNDING * values[0], np.arange(1, len(values) + 1)
    style: dict[str, Any] = {"ls": "none", "marker": "o", "ms": 6, "zorder": 3, "clip_on": False}
    inside, beyond = nonzero & (place <= rank), nonzero & (place > rank)
    if rank:
        inner = f"in the span: rank {rank}"
        panel.plot(place[inside], values[inside], color=BLUE, label=inner, **style)
    if beyond.any():
        outer = "beyond it" if rank else None
        panel.plot(place[beyond], values[beyond], color=GREY, mfc="none", label=outer, **style)
    elif len(values) > rank:
        panel.plot([], [], ls="none", label="beyond it: zero" if rank else "all are zero")
    drawn = values[nonzero]
    if separate is not None:
        separate = separate[: len(values)]
        panel.plot(place[: len(separate)], separate, color=ORANGE, mfc="none",
                   label="separate regressions", **style)  # fmt: skip
        drawn = np.append(drawn, separate)
    if rank and len(values) > rank:
        panel.axvline(rank + 0.5, color=ORANGE, lw=1, ls=":", zorder=1)
    panel.set_xlim(0.5, len(values) + 0.5)
    panel.xaxis.get_major_locator().set_params(integer=True)
    if len(drawn) and drawn.max() > DECADES * drawn.min() > 0:
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    if panel.get_legend_handles_labels()[1]:
        panel.legend(framealpha=1, edgecolor="none", fontsize=9)
    return panel


def draw_tasks(
    panel: Any, x: np.ndarray, y: np.ndarray, odd: np.ndarray, group: np.ndarray | None = None
) -> np.ndarray:
    """A point for each task, rings around tasks ``odd`` (T,), colours by ``group`` (T,) from 0.

    Returns the tasks in the order of their points.
    """
    T, colours = len(x), list(GROUPS.values())
    style: dict[str, Any] = {"s": float(np.clip(4000 / T, 4, 28)), "lw": 0, "rasterized": T > MANY}
    group = np.zeros(T, dtype=int) if group is None else group
    for g in np.unique(group):
        alpha = 0.75 if T < DENSE else 0.4
        panel.scatter(x[group == g], y[group == g], color=colours[g], alpha=alpha, gid="points",
                      **style)  # fmt: skip
    if odd.any():
        panel.scatter(x[odd], y[odd], s=style["s"] + 60, facecolor="none", edgecolor=ORANGE, lw=1.5,
                      label="outlier")  # fmt: skip
    panel.margins(0.12)
    for line, (low, high) in ((panel.axvline, panel.get_xlim()), (panel.axhline, panel.get_ylim())):
        if low < 0 < high:
            line(0, color=GREY, lw=0.8, zorder=0)
    return np.argsort(group, kind="stable")


def draw_stems(
    panel: Any, names: Sequence[str], values: np.ndarray, low: np.ndarray | None = None,
    high: np.ndarray | None = None,
) -> None:  # fmt: skip
    """A stem from zero to each value, with an interval; circles are open where it holds zero."""
    place, colour = np.arange(len(values)), np.where(values >= 0, BLUE, ORANGE)
    panel.axvline(0, color=GREY, lw=0.8, zorder=0)
    panel.hlines(place, 0, values, color=colour, lw=2.5, alpha=0.35)
    face = colour
    if low is not None and high is not None:
        panel.errorbar(values, place, xerr=[values - low, high - values], ls="none", color=GREY,
                       lw=1.5, capsize=2.5)  # fmt: skip
        face = np.where((low > 0) | (high < 0), colour, "#FFFFFF")
    panel.scatter(values, place, s=30, color=face, edgecolor=colour, lw=1.5, zorder=3)
    panel.set_yticks(place, names, fontsize=9, gid="name", **AS_IT_IS)
    panel.set_ylim(max(len(values), 1) - 0.5, -0.5)
    panel.locator_params(axis="x", nbins=5)


def name_point(panel: Any, x: np.ndarray, y: np.ndarray, t: int, name: str, strip: bool) -> None:
    """A name above or below a point, away from the others; in a strip at its lower or upper side."""
    share, up = (x[t] - x.min()) / max(np.ptp(x), np.finfo(float).tiny), y[t] >= np.median(y)
    place = {"xytext": (0, 4 if up else -5), "va": "bottom" if up else "top", "ha": "center"}
    if strip:
        place |= {"xytext": (6, -6) if share < 0.5 else (-6, 6), "va": "center"}
    if strip or not 0.2 <= share <= 0.8:  # within the axes
        place["ha"] = "left" if share < 0.5 else "right"
    panel.annotate(
        name, (x[t], y[t]), textcoords="offset points", fontsize=8, gid="note", **place, **AS_IT_IS
    )


def farthest(x: np.ndarray, y: np.ndarray, off: np.ndarray, strip: bool) -> list[int]:
    """Points that are ``off``, then the farthest from the middle, while names have space."""
    at = np.column_stack([x, y])
    at = (at - np.median(at, axis=0)) / np.maximum(np.ptp(at, axis=0), np.finfo(float).tiny)
    far = np.abs(at[:, 0]) if strip else np.hypot(*at.T)
    named: list[int] = []
    for t in np.lexsort([-far, ~off])[:CANDIDATES].tolist():
        if not (off[t] or far[t] > far.max() / 3):
            break
        if not np.any(np.all(np.abs(at[named] - at[t]) < SPACE[strip], axis=1)):
            named.append(t)
        if len(named) == NAMED:
            break
    return named


def mark_phases(panel: Any, trace: dict[str, np.ndarray]) -> None:
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
