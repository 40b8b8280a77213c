"""Figures, drawn off-screen, in colours that a colour-blind reader can tell apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.diagnosis.text import short
from sharedspan.persistence.atomic_write import atomic_path

NAMED, CANDIDATES = 6, 500  # points that are named, and that are looked at
ROOM = ((0.25, 0.08), (0.25, 0.2))  # that a name takes, of a square and of a strip
# For names that came with the data: a dollar or a backslash in them is only a character.
AS_IT_IS: dict[str, Any] = {"parse_math": False, "usetex": False}
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"


def new_figure(n_panels: int) -> tuple[Any, list[Any]]:
    """A figure of panels side by side."""
    figure, panels = blank_figure(1, n_panels, (5.2 * n_panels, 4.0))
    return figure, panels[0]


def blank_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[list[Any]]]:
    """A figure of rows of panels, without touching matplotlib's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25, linewidth=0.6)
    return figure, panels.tolist()


def panel_or(ax: Any, height: float = 4.0) -> Any:
    """The axes given, or those of a new figure with one panel."""
    return blank_figure(1, 1, (5.2, height))[1][0][0] if ax is None else ax


def shown(label: Any, limit: int = 28) -> str:
    """A label on one line of so many characters, a box for those that the font would warn of."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    families = FontProperties().get_family()
    fonts = [get_font(findfont(FontProperties(family=[family]))) for family in families]
    return "".join(
        c if any(font.get_char_index(ord(c)) for font in fonts) else "\N{WHITE SQUARE}"
        for c in short(label, limit)
    )


def name_point(panel: Any, x: np.ndarray, y: np.ndarray, t: int, label: Any, strip: bool) -> None:
    """A name above or below a point, away from the others; in a strip beside it."""
    share, up = (x[t] - x.min()) / max(np.ptp(x), np.finfo(float).tiny), y[t] >= np.median(y)
    place = {"xytext": (0, 4 if up else -5), "va": "bottom" if up else "top", "ha": "center"}
    if strip:
        place |= {"xytext": (6 if share < 0.5 else -6, 0), "va": "center"}
    if strip or not 0.2 <= share <= 0.8:  # within the axes
        place["ha"] = "left" if share < 0.5 else "right"
    name = shown(label, 20)
    panel.annotate(name, (x[t], y[t]), textcoords="offset points", fontsize=8, **place, **AS_IT_IS)


def farthest(x: np.ndarray, y: np.ndarray, off: np.ndarray, strip: bool) -> list[int]:
    """Points that are ``off``, then those farthest from the middle, as far as names have room."""
    at = np.column_stack([x, y])
    at = (at - np.median(at, axis=0)) / np.maximum(np.ptp(at, axis=0), np.finfo(float).tiny)
    far = np.abs(at[:, 0]) if strip else np.hypot(*at.T)
    named: list[int] = []
    for t in np.lexsort([-far, ~off])[:CANDIDATES].tolist():
        if not (off[t] or far[t] > far.max() / 3):
            break
        if not np.any(np.all(np.abs(at[named] - at[t]) < ROOM[strip], axis=1)):
            named.append(t)
        if len(named) == NAMED:
            break
    return named


def save(figure: Any, path: Path) -> None:
    """Write the figure; the ending of the path decides the format."""
    with atomic_path(Path(path)) as temporary:
        figure.savefig(temporary)
