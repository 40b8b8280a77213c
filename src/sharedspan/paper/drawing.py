"""Curves of the paper: log scales, medians with bands, colours safe for colour-blind readers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sharedspan.inference.noise import error_floor
from sharedspan.paper.table import ResultRow, ResultTable
from sharedspan.persistence.atomic_write import atomic_path
from sharedspan.report.figures import GREY, blank_figure

# Okabe and Ito's colours. A method has the same colour and marker in every figure.
# TPGD is drawn broad and pale below the others, so that curves that coincide stay visible.
BROAD = "TPGD"
DASHES = {"GD + Loss 2": "--", "Phase II only": (4, (4, 4)), "NSGD": "-.", "GD + SVD": "--"}
STYLES: dict[str | int, tuple[str, str]] = {
    "TPGD": ("#0072B2", "o"),
    "GD + Loss 1": ("#D55E00", "s"),
    "GD + Loss 2": ("#009E73", "^"),
    "NSGD": ("#CC79A7", "D"),
    "AltMinGD": ("#E69F00", "v"),
    "GD + SVD": ("#004D40", "P"),
    "ERM (ALS)": ("#000000", "*"),
    "Phase I only": ("#D55E00", "s"),
    "Phase II only": ("#E69F00", "v"),
    "LF-FO": ("#882255", "X"),
    "MoM (Tripuraneni)": ("#999933", "<"),
    "MoM (Niu)": ("#44AA99", ">"),
    "MoM (Duchi)": ("#117733", "d"),
    "nuclear norm": ("#332288", "H"),
    "SE": ("#CC6677", "h"),
    "ARMUL": ("#AA4499", "p"),
    "pERM": ("#661100", "8"),
    "separate": (GREY, "x"),
    "Algorithm 2": ("#0072B2", "o"),
    "Algorithm 2 as printed": ("#E69F00", "v"),
    "least squares in the span": ("#D55E00", "s"),
    "best in the span": (GREY, "x"),
}
STYLES |= dict(enumerate(list(STYLES.values())[:7]))  # for curves that are not methods
DASHED: dict[str, Any] = {"color": "black", "ls": "--", "lw": 1.2}  # floors and predictions
# Ours: the paper's theory gives dk/(NT) without a constant.
FLOOR = r"floor, $\sigma^2 k(d+T-k)/(NT)$"


def log_panels(
    rows: int, columns: int, height: float = 3.2, width: float = 3.9
) -> tuple[Any, list[list[Any]]]:
    """A figure of rows and columns of panels, all with log scales."""
    figure, panels = blank_figure(rows, columns, (width * columns, height * rows + 0.6))
    for panel in (p for row in panels for p in row):
        panel.set(xscale="log", yscale="log")
    return figure, panels


def draw_band(
    panel: Any, table: ResultTable, measure: str, by: str, label: str,
    style: str | int | None = None, marker: bool = True,
) -> None:  # fmt: skip
    """The median over seeds against ``by``, and a band from 10 to 90 percent.

    ``style`` is the key of STYLES that gives the colour and the marker; the label by default.
    """
    if not len(table):
        return
    style = label if style is None else style
    color, mark = STYLES[style]
    x, low, middle, high = table.percentiles(measure, by)
    broad = style == BROAD
    panel.fill_between(x, low, high, color=color, alpha=0.18, lw=0)
    panel.plot(
        x, middle, color=color, lw=5 if broad else 1.6, alpha=0.55 if broad else 1.0, label=label,
        marker=mark if marker else "", ms=9 if broad else 4.5, mew=0 if broad else None,
        ls=DASHES.get(str(style), "-"), zorder=2 if broad else 3,
    )  # fmt: skip


def draw_dotted(panel: Any, table: ResultTable, measure: str, by: str, style: str) -> None:
    """A second measure of a method: the median in its colour, dotted."""
    broad = style == BROAD
    panel.plot(*table.median_curve(measure, by), color=STYLES[style][0], ls=":",
               lw=4 if broad else 1.4, alpha=0.55 if broad else 1.0,
               zorder=2 if broad else 3)  # fmt: skip


def draw_iterates(panel: Any, table: ResultTable, by: str) -> None:
    """Errors of every method: of the last iterate, and dotted of the tail average."""
    for method, rows in table.groups("method"):
        draw_band(panel, rows, "error", by, method, marker=False)
        draw_dotted(panel, rows, "tail", by, method)


def draw_sweep(panel: Any, table: ResultTable, by: str, floor: bool = True) -> None:
    """The error of every method along a size, with the floor if ``floor`` is true."""
    for method, rows in table.groups("method"):
        draw_band(panel, rows, "error", by, method)
    if floor:
        draw_floor(panel, table, by)
    size_ticks(panel, table.values(by))


def floor_error(row: ResultRow) -> float:
    """The floor sigma^2 k (d + T - k) / (N T) for the sizes of a row."""
    return error_floor(row["N"], row["d"], row["T"], row["k"], row["noise"]) / row["T"]


def draw_floor(panel: Any, table: ResultTable, by: str) -> None:
    """The floor along a size that varies."""
    x = sorted(table.values(by))
    y = [floor_error(table.where(**{by: v}).rows[0]) for v in x]
    panel.plot(x, y, label=FLOOR, **DASHED)


def size_ticks(panel: Any, values: Iterable[float]) -> None:
    """Label a log axis with these sizes."""
    panel.set_xticks(sorted(values), [f"{v:g}" for v in sorted(values)])
    panel.set_xticks([], minor=True)


def add_legend(figure: Any, note: str = "") -> Any:
    """The figure with one legend for all panels, below them; panels without data are hidden."""
    entries: dict[str, Any] = {}
    for panel in figure.axes:
        panel.set_visible(panel.has_data())
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    columns = min(len(entries), max(3, int(figure.get_figwidth() / 2.2)))
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=columns,
        frameon=False, title=note or None, title_fontsize=9, fontsize=9,
    )  # fmt: skip
    return figure


def save_paper_figure(figure: Any, path: Path) -> None:
    """Write the figure, with ticks at 1, 2, 5 times a power of ten on axes of few decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for panel in figure.axes:
        if panel.get_yscale() == "log" and panel.get_visible():
            low, high = panel.get_ylim()
            panel.yaxis.set_minor_formatter(NullFormatter())
            if high / low < 50:
                panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    with atomic_path(path) as hidden:
        figure.savefig(hidden, dpi=110)
