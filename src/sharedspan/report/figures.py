"""Elements of figures that ``ss.plot_*`` and the report share, and conversion to SVG.

Nothing here uses pyplot. Colour-blind readers can distinguish the colours.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import partial
from html import escape
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.diagnosis.text import format_number, short
from sharedspan.inference.rank_selection import RankPath
from sharedspan.persistence.atomic_write import atomic_path

# For names from users' data: a dollar or a backslash in them is only a character.
AS_IT_IS: dict[str, Any] = {"parse_math": False, "usetex": False}
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
GROUPS = {"blue": BLUE, "green": GREEN, "purple": "#A8558B", "amber": "#A87400", "sky": "#2F8FC4"}
TITLE_SIZE, PAD = 11, 0.08  # points, and inches around each panel
VALUES = 15  # singular values that are drawn, or two beyond the rank
ROUNDING = 1e-9  # of the largest singular value: smaller values are zero up to rounding
DECADES = 100.0  # ratio from which an axis is logarithmic
DENSE = 1000  # points from which they are paler
MANY = 10_000  # points from which they are drawn as pixels in vector formats
NAMED, CANDIDATES = 6, 500  # points that are named, and points that are considered
SPACE = ((0.25, 0.08), (0.25, 0.2))  # width and height of a name in a square and in a strip
CHUNK = 1500  # points of one path: overlapping points of different paths are darker
CLASSES = ("note", "name", "axis", "tick")  # ids of groups that become classes


def blank_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[list[Any]]]:
    """A figure of rows of panels, without touching matplotlib's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", dpi=150)
    figure.get_layout_engine().set(w_pad=PAD, h_pad=PAD)  # type: ignore[union-attr, call-arg]
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25, linewidth=0.6)
        panel.title.set_fontsize(TITLE_SIZE)
    for shown in (figure, *panels.flat):
        shown._repr_png_ = partial(notebook_picture, figure)
    return figure, panels.tolist()


def notebook_picture(figure: Any) -> tuple[bytes, dict[str, int]]:
    """A figure as PNG for a notebook, with its width and height there in pixels."""
    file = BytesIO()
    figure.savefig(file, format="png")
    width, height = figure.get_size_inches()
    return file.getvalue(), {"width": round(100 * width), "height": round(100 * height)}


def new_panel(height: float = 4.0, width: float = 5.2) -> Any:
    """The axes of a new figure with one panel."""
    return blank_figure(1, 1, (width, height))[1][0][0]


def font_label(label: Any, limit: int = 28) -> str:
    """A label on one line of at most ``limit`` characters, with a box for those without a glyph."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    families = FontProperties().get_family()
    fonts = [get_font(findfont(FontProperties(family=[family]))) for family in families]
    return "".join(
        c if any(font.get_char_index(ord(c)) for font in fonts) else "\N{WHITE SQUARE}"
        for c in short(label, limit)
    )


def page_ticks(axis: Any) -> None:
    """Set a few ticks with plain numbers, on a log scale at 1, 2 and 5 times powers of ten."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = axis.get_view_interval()
    if isinstance(axis.get_major_locator(), FixedLocator):  # names, or chosen numbers
        return
    if axis.get_scale() == "log" and high < 10 * low:
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    elif axis.get_scale() == "log":
        steps = (1, 2, 5) if high < 300 * low else (1,)
        axis.set_major_locator(LogLocator(subs=steps, numticks=6))
    elif axis.get_scale() == "linear":
        axis.get_major_locator().set_params(nbins=6)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: axis_number(value)))


def axis_number(value: float) -> str:
    """A number of an axis without trailing zeros."""
    if value == 0 or 1e-4 <= abs(value) < 1e5:
        return f"{value:.6g}".replace("-", "−")
    return format_number(value, 2).replace(".0×", "×").removeprefix("1×")


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
        panel.set_ylim(0, 1.08 * max(drawn, default=1.0))
    if panel.get_legend_handles_labels()[1]:
        panel.legend(framealpha=1, edgecolor="none", fontsize=9)
    return panel


def draw_rank_path(panel: Any, path: RankPath, losses: np.ndarray, name: str) -> Any:
    """Losses along the ranks of a path, with error bars if there are any, and the chosen rank."""
    bars = path.standard_error if path.standard_error.any() else None
    panel.errorbar(
        path.ranks, losses, yerr=bars, color=BLUE, marker="o", ms=5, lw=1.5, capsize=3,
        label=None if bars is None else "± standard error of the excess over the best",
    )  # fmt: skip
    chosen = losses[path.ranks == path.rank]
    panel.plot([path.rank], chosen, marker="o", ms=12, mew=2, mfc="none", ls="none", color=ORANGE,
               zorder=4, label=f"chosen: rank {path.rank}")  # fmt: skip
    panel.axvline(path.rank, color=ORANGE, lw=1, ls=":", zorder=1)
    if path.method == "threshold":
        panel.axhline(path.loss[0] - path.difference[0], color=GREY, lw=1, ls="--",
                      label="threshold")  # fmt: skip
    panel.set(xlabel="rank: number of shared directions", ylabel=name,
              title="How the rank was chosen")  # fmt: skip
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend(frameon=False, fontsize=9)
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


def draw_calibration(
    panel: Any, predicted: np.ndarray, observed: np.ndarray, low: np.ndarray | None,
    high: np.ndarray | None, *, share: bool,
) -> None:  # fmt: skip
    """Observed against predicted means, with intervals if given, beside the line of equality.

    ``share`` says that they are between 0 and 1.
    """
    largest = max(float(predicted.max()), float(observed.max() if high is None else high.max()))
    ends = np.array([0.0, 1.0 if share else 1.05 * largest or 1.0])
    panel.plot(ends, ends, color=GREY, ls="--", lw=1, zorder=1)
    if low is not None and high is not None:
        reach = [observed - low, high - observed]
        panel.errorbar(predicted, observed, yerr=reach, ls="none", color=GREY, lw=1.5, capsize=2.5)
        panel.plot(predicted, observed, color=BLUE, lw=1.5, marker="o", ms=5, zorder=3)
    else:
        alpha = 0.75 if len(predicted) < DENSE else 0.4
        panel.scatter(predicted, observed, s=float(np.clip(4000 / len(predicted), 4, 28)), lw=0,
                      color=BLUE, alpha=alpha, rasterized=len(predicted) > MANY)  # fmt: skip
    pad = 0.03 * (ends[1] - ends[0])
    panel.set(xlim=(ends[0] - pad, ends[1] + pad), ylim=(ends[0] - pad, ends[1] + pad))


def draw_stems(
    panel: Any, names: Sequence[str], values: np.ndarray, low: np.ndarray | None = None,
    high: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Draw stems from zero to each value, with intervals; open circles if these contain zero."""
    place, colour = np.arange(len(values)), np.where(values >= 0, BLUE, ORANGE)
    panel.axvline(0, color=GREY, lw=0.8, zorder=0)
    panel.hlines(place, 0, values, color=colour, lw=2.5, alpha=0.35)
    face = colour
    if low is not None and high is not None:
        # A coefficient that is the same in all tasks has no width, and rounding must not matter.
        middle, reach = (low + high) / 2, np.abs(high - low) / 2
        panel.errorbar(middle, place, xerr=reach, ls="none", color=GREY, lw=1.5, capsize=2.5)
        face = np.where((low > 0) | (high < 0), colour, "#FFFFFF")
    panel.scatter(values, place, s=30, color=face, edgecolor=colour, lw=1.5, zorder=3)
    name_rows(panel, names)
    panel.locator_params(axis="x", nbins=5)


def name_rows(panel: Any, names: Sequence[str]) -> None:
    """Names at 0, 1, ... down the vertical axis."""
    panel.set_yticks(np.arange(len(names)), names, fontsize=9, gid="name", **AS_IT_IS)
    panel.set_ylim(max(len(names), 1) - 0.5, -0.5)
    panel.tick_params(axis="y", left=False)
    panel.grid(visible=False, axis="y")


def name_point(panel: Any, x: np.ndarray, y: np.ndarray, t: int, name: str, strip: bool) -> None:
    """Write a name above or below a point, away from the others, or beside it in a strip."""
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
    """Points that are ``off``, then the farthest from the median, as long as names have space."""
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


def mark_phases(panel: Any, trace: dict[str, np.ndarray], height: float = 0.02) -> None:
    """Draw a line at the start of each phase, its name at the fraction ``height`` of the axis."""
    phase = trace.get("phase", np.zeros(0, dtype=str))
    for start in np.flatnonzero(phase[1:] != phase[:-1]) + 1:
        panel.axvline(start, color=ORANGE, lw=1, ls="--", zorder=1)
        late = start > 0.8 * len(phase)
        panel.annotate(
            f"Phase {phase[start]}", (start, height), xycoords=("data", "axes fraction"),
            xytext=(-4 if late else 4, 0), textcoords="offset points", fontsize=9, color=ORANGE,
            ha="right" if late else "left",
        )  # fmt: skip


def save_figure(figure: Any, path: Path) -> None:
    """Write the figure; the ending of the path decides the format."""
    with atomic_path(Path(path)) as hidden:
        figure.savefig(hidden)


def as_svg(panel: Any, key: str, words: str) -> str:
    """The figure of a panel as an element of a page that forbids inline styles.

    Text stays text. Style declarations become attributes, so that the page's style sheet can
    replace colours in dark mode. Ids contain a hash of ``key``; groups with an id in CLASSES get it
    as a class. Points (gid "points") become one path of class "points", with a zero-length stroke
    with round ends for each point, in their order.
    """
    import matplotlib

    file = StringIO()
    panel.set_title("")
    for points in panel.collections:
        points.set_rasterized(False)
    for axis in (panel.xaxis, panel.yaxis):
        page_ticks(axis)
    with (
        warnings.catch_warnings(),
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": key}),
    ):
        warnings.filterwarnings("ignore", "Glyph")  # browsers have fonts for all characters
        panel.figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    drawn = file.getvalue()
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn).groups()  # type: ignore[union-attr]
    drawn = drawn[drawn.index('<g id="figure_1">') : drawn.rindex("</svg>")]
    drawn = re.sub(r'<g id="points">(.*?)</g>\s*</g>', _points_path, drawn, flags=re.DOTALL)
    drawn = re.sub(r"<[^<>]+>", lambda tag: _plain_tag(tag[0]), drawn)
    drawn = re.sub(r">\s+<", "><", drawn)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(words)}">{drawn}</svg>'
    )


def _points_path(group: re.Match[str]) -> str:
    """Paths that draw the markers of a group."""
    places = re.findall(r'<use [^>]*x="([-\d.]+)" y="([-\d.]+)"', group[1])
    radius = re.search(r'd="M 0 ([\d.]+)', group[1])
    fill = re.search(r'style="fill: (#\w+)(?:; fill-opacity: ([\d.]+))?', group[1])
    if radius is None or fill is None:
        return group[0]
    paths = []
    for lo in range(0, len(places), CHUNK):
        steps = (f"M{float(x):.1f} {float(y):.1f}h0" for x, y in places[lo : lo + CHUNK])
        paths.append(
            f'<path class="points" d="{"".join(steps)}" stroke="{fill[1]}" stroke-linecap="round" '
            f'stroke-width="{2 * float(radius[1]):.1f}" stroke-opacity="{fill[2] or 1}"/>'
        )
    return "".join(paths)


def _plain_tag(tag: str) -> str:
    """A tag without style attribute, automatic ids, line ends and needless digits."""
    if not tag.startswith("<path class"):
        tag = re.sub(r"(\.\d\d)\d+", r"\1", " ".join(tag.split()))
    if style := re.search(r'style="([^"]*)"', tag):
        pairs = (one.split(": ", 1) for one in style[1].split("; "))
        plain = " ".join(f'{name}="{value}"' for name, value in pairs if name != "font-family")
        tag = tag.replace(style[0], plain)
    group = re.match(r'<g id="(?:matplotlib\.)?[xy]?([A-Za-z]+)\w*"', tag)
    if group:
        return f'<g class="{group[1]}">' if group[1] in CLASSES else tag.replace(group[0], "<g")
    return re.sub(r' transform="rotate\(-0 [^"]*"', "", tag)
