"""The look of the paper's curves: log scales, a median with a band, colours for every eye."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.experiments.table import Table
from sharedspan.inference import error_floor
from sharedspan.report.figures import GREY, blank_figure

# Okabe and Ito's colours. A method keeps its colour and marker in every figure.
STYLES = {
    "TPGD": ("#0072B2", "o"),
    "GD + Loss 1": ("#D55E00", "s"),
    "GD + Loss 2": ("#009E73", "^"),
    "NSGD": ("#CC79A7", "D"),
    "Phase I only": ("#D55E00", "s"),
    "Phase II only": ("#009E73", "^"),
    "AltMinGD": ("#E69F00", "v"),
    "GD + SVD": ("#56B4E9", "P"),
    "LF-FO": ("#882255", "X"),
    "ERM (ALS)": ("#000000", "*"),
    "MoM (Tripuraneni)": ("#999933", "<"),
    "MoM (Niu)": ("#44AA99", ">"),
    "SE": ("#CC6677", "h"),
    "ARMUL": ("#AA4499", "p"),
    "pERM": ("#661100", "8"),
    "separate": (GREY, "x"),
    "Algorithm 2": ("#0072B2", "o"),
    "least squares in the span": ("#D55E00", "s"),
    "best in the span": (GREY, "x"),
}
SPARE = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"),
         ("#56B4E9", "P"), ("#000000", "*"))  # fmt: skip


def style(name: str) -> tuple[str, str]:
    """Colour and marker of a method."""
    return STYLES.get(name) or SPARE[sum(map(ord, name)) % len(SPARE)]


def grid(rows: int, columns: int, height: float = 3.2) -> tuple[Any, list[list[Any]]]:
    """A figure of rows and columns of panels, all with log scales."""
    figure, panels = blank_figure(rows, columns, (3.9 * columns, height * rows + 0.6))
    for panel in (p for row in panels for p in row):
        panel.set(xscale="log", yscale="log")
    return figure, panels


def band(
    panel: Any, table: Table, measure: str, by: str, label: str, marker: bool = False,
    name: str = "",
) -> None:  # fmt: skip
    """The median over seeds against ``by``, and a band from 10 to 90 percent."""
    if not len(table):
        return
    color, mark = style(name or label)
    x, low, middle, high = table.band(measure, by)
    panel.fill_between(x, low, high, color=color, alpha=0.18, lw=0)
    panel.plot(x, middle, color=color, lw=1.8, label=label, marker=mark if marker else "", ms=5)


def thin(panel: Any, table: Table, measure: str, by: str, method: str) -> None:
    """A dotted median, for what stands beside the main curve."""
    x, middle = table.median(measure, by)
    panel.plot(x, middle, color=style(method)[0], lw=1.0, ls=":")


def theory(table: Table) -> float:
    """sigma^2 k (d + T - k) / (N T) of the first row's configuration."""
    row = table.rows[0]
    return error_floor(row["N"], row["d"], row["T"], row["k"], row["noise"]) / row["T"]


def floor(panel: Any, table: Table) -> None:
    """The theory line where N is fixed."""
    panel.axhline(theory(table), color="black", ls="--", lw=1.2, label=THEORY)


def floor_along(panel: Any, table: Table, by: str) -> None:
    """The theory line along a size that varies."""
    x = sorted(table.values(by))
    y = [theory(table.where(**{by: v})) for v in x]
    panel.plot(x, y, color="black", ls="--", lw=1.2, label=THEORY)


THEORY = r"theory, $\sigma^2 k(d+T-k)/(NT)$"


def plain_ticks(panel: Any) -> None:
    """Ticks as numbers where a log axis spans less than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    low, high = panel.get_ylim()
    if high / low < 50:
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))


def size_ticks(panel: Any, values: Any) -> None:
    """Label a log axis with the sizes that were run."""
    panel.set_xticks(list(values), [f"{v:g}" for v in values])
    panel.set_xticks([], minor=True)


def legend(figure: Any, panel: Any, note: str = "") -> None:
    """One legend for all panels, below them."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False,
        title=note or None, title_fontsize=9, fontsize=9,
    )  # fmt: skip


def table_figure(rows: list[list[str]], header: list[str], widths: list[float]) -> tuple[Any, Any]:
    """A figure that holds a table, for what is read rather than seen."""
    figure, panels = blank_figure(1, 1, (sum(widths), 0.32 * (len(rows) + 1) + 0.4))
    panel = panels[0][0]
    panel.axis("off")
    total = sum(widths)
    drawn = panel.table(
        rows, colLabels=header, colWidths=[w / total for w in widths], loc="center",
        cellLoc="center", edges="horizontal",
    )  # fmt: skip
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(9)
    drawn.scale(1, 1.35)
    return figure, panel


def save(figure: Any, path: Path) -> None:
    """Write the figure."""
    figure.savefig(path, dpi=110)


def line_through(panel: Any, x: Any, y0: float, slope: float, label: str) -> None:
    """A guide of known slope through the first point."""
    x = np.array([min(x), max(x)], dtype=float)
    panel.plot(x, y0 * (x / x[0]) ** slope, color="black", ls="--", lw=1.2, label=label)
