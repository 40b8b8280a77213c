"""Figures without pyplot, in colours that a colour-blind reader can tell apart, and as SVG."""

from __future__ import annotations

import re
import warnings
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

from sharedspan.diagnosis.text import format_number, short
from sharedspan.persistence.atomic_write import file_appearing

# For names that came with the data: a dollar or a backslash in them is only a character.
AS_IT_IS: dict[str, Any] = {"parse_math": False, "usetex": False}
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
GROUPS = {"blue": BLUE, "green": GREEN, "purple": "#A8558B", "amber": "#A87400", "sky": "#2F8FC4"}
CHUNK = 1500  # points of one path: overlapping points of different paths are darker
CLASSES = ("note", "name", "axis", "tick")  # ids of groups that become classes


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


def new_panel(height: float = 4.0, width: float = 5.2) -> Any:
    """The axes of a new figure with one panel."""
    return blank_figure(1, 1, (width, height))[1][0][0]


def font_label(label: Any, limit: int = 28) -> str:
    """A label on one line of so many characters, a box for those that the font would warn of."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    families = FontProperties().get_family()
    fonts = [get_font(findfont(FontProperties(family=[family]))) for family in families]
    return "".join(
        c if any(font.get_char_index(ord(c)) for font in fonts) else "\N{WHITE SQUARE}"
        for c in short(label, limit)
    )


def plain_ticks(axis: Any) -> None:
    """A few ticks with plain numbers, on a log scale at 1, 2 and 5 times powers of ten."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = axis.get_view_interval()
    if isinstance(axis.get_major_locator(), FixedLocator):  # names, or numbers that were chosen
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
    """A round number without needless zeros."""
    if value == 0 or 1e-4 <= abs(value) < 1e5:
        return f"{value:.6g}".replace("-", "−")
    return format_number(value, 2).replace(".0×", "×").removeprefix("1×")


def save_figure(figure: Any, path: Path) -> None:
    """Write the figure; the ending of the path decides the format."""
    with file_appearing(Path(path)) as hidden:
        figure.savefig(hidden)


def as_svg(panel: Any, key: str, words: str) -> str:
    """The figure of a panel as an element of a page that forbids inline styles.

    Text stays text. Style declarations become attributes, by which the page's style sheet replaces
    colours in dark mode. Ids contain a hash of ``key``; groups with an id in CLASSES get it as a
    class. Points (gid "points") are one path of class "points", a zero-length stroke with round
    ends for each, in their order.
    """
    import matplotlib

    file = StringIO()
    panel.set_title("")
    for axis in (panel.xaxis, panel.yaxis):
        plain_ticks(axis)
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
    look = re.search(r'style="fill: (#\w+)(?:; fill-opacity: ([\d.]+))?', group[1])
    if radius is None or look is None:
        return group[0]
    paths = []
    for lo in range(0, len(places), CHUNK):
        steps = (f"M{float(x):.1f} {float(y):.1f}h0" for x, y in places[lo : lo + CHUNK])
        paths.append(
            f'<path class="points" d="{"".join(steps)}" stroke="{look[1]}" stroke-linecap="round" '
            f'stroke-width="{2 * float(radius[1]):.1f}" stroke-opacity="{look[2] or 1}"/>'
        )
    return "".join(paths)


def _plain_tag(tag: str) -> str:
    """A tag without style attribute, automatic ids, line ends and needless digits."""
    if not tag.startswith("<path class"):
        tag = re.sub(r"(\.\d\d)\d+", r"\1", " ".join(tag.split()))
    tag = re.sub(r'style="([^"]*)"', lambda style: _attributes(style[1]), tag)
    found = re.match(r'<g id="(?:matplotlib\.)?[xy]?([a-z]+)[\d_]*"', tag)
    if found:
        name = found[1]
        return f'<g class="{name}">' if name in CLASSES else tag.replace(found[0], "<g")
    return re.sub(r' transform="rotate\(-0 [^"]*"', "", tag)


def _attributes(style: str) -> str:
    pairs = (one.split(": ", 1) for one in style.split("; "))
    return " ".join(f'{name}="{value}"' for name, value in pairs if name != "font-family")
