"""The look of the paper's curves: log scales, a median with a band, colours for every eye."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sharedspan.inference.noise import error_floor
from sharedspan.paper.table import Table
from sharedspan.report.figures import GREY, blank_figure

# Okabe and Ito's colours. A method keeps its colour and marker in every figure.
# TPGD is broad and pale and lies below the others: curves that coincide all stay visible.
BROAD = ("TPGD",)
DASHES = {"GD + Loss 2": "--", "Phase II only": "--", "NSGD": "-."}
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
    """Colour and marker of a method, or of the number of a curve."""
    return SPARE[int(name) % len(SPARE)] if name.isdigit() else STYLES[name]


def grid(
    rows: int, columns: int, height: float = 3.2, width: float = 3.9
) -> tuple[Any, list[list[Any]]]:
    """A figure of rows and columns of panels, all with log scales."""
    figure, panels = blank_figure(rows, columns, (width * columns, height * rows + 0.6))
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
    broad = (name or label) in BROAD
    panel.fill_between(x, low, high, color=color, alpha=0.18, lw=0)
    panel.plot(
        x, middle, color=color, lw=5 if broad else 1.6, alpha=0.55 if broad else 1.0, label=label,
        marker=mark if marker else "", ms=9 if broad else 4.5, mew=0 if broad else None,
        ls=DASHES.get(name or label, "-"), zorder=2 if broad else 3,
    )  # fmt: skip


def thin(panel: Any, table: Table, measure: str, by: str, method: str) -> None:
    """A dotted median, for what stands beside the main curve."""
    x, middle = table.median(measure, by)
    broad = method in BROAD
    panel.plot(x, middle, color=style(method)[0], lw=4 if broad else 1.2, ls=":",
               alpha=0.55 if broad else 1.0)  # fmt: skip


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
    """Ticks at 1, 2, 5 times a power of ten where a log axis spans few decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = panel.get_ylim()
    panel.yaxis.set_minor_formatter(NullFormatter())
    if high / low < 50:
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def size_ticks(panel: Any, values: Any) -> None:
    """Label a log axis with the sizes that were run."""
    panel.set_xticks(list(values), [f"{v:g}" for v in values])
    panel.set_xticks([], minor=True)


def legend(figure: Any, panel: Any, note: str = "") -> None:
    """One legend for all panels, below them."""
    handles, labels = panel.get_legend_handles_labels()
    columns = min(len(labels), max(3, int(figure.get_figwidth() / 2.2)))
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False,
        title=note or None, title_fontsize=9, fontsize=9,
    )  # fmt: skip


def save(figure: Any, path: Path) -> None:
    """Write the figure."""
    for panel in figure.axes:
        if panel.get_yscale() == "log" and panel.get_visible():
            plain_ticks(panel)
    figure.savefig(path, dpi=110)
