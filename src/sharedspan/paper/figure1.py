"""Figure 1: error against iterations, for three numbers of rows per task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sharedspan.paper import drawing
from sharedspan.paper.methods import TPGD, figure_methods
from sharedspan.paper.problem import PAPER, WELL_SET, Cell, curve, geometric
from sharedspan.paper.table import Row, Table

NAME = "figure1"
TITLE = "error against iterations"
D, T, K, KAPPA = 100, 50, 5, 1.5
ROWS = (200, 500, 1000)


def cells(full: bool, seed: int) -> list[Cell]:
    """Three N; the paper leaves out d, k, T, sigma and kappa."""
    iterations = 1000 if full else 400
    methods = figure_methods(KAPPA)
    return [
        Cell(NAME, "", D, T, K, N, seed + i, kappa=KAPPA, iterations=iterations, methods=methods)
        for i in range(20 if full else 3) for N in ROWS
    ]  # fmt: skip


def run(cell: Cell) -> Iterator[Row]:
    """Every method on the same rows."""
    problem = cell.problem()
    for method in cell.methods:
        yield from curve(cell, problem, method, geometric(cell.iterations))


def shown(table: Table, method: str, setting: str) -> tuple[Table, str]:
    """What the paper plots: rivals by their tail average, but last iterates when well set.

    NSGD's last iterate stays in a ball of noise, so it is averaged in both.
    """
    last = method == TPGD or (setting == WELL_SET and method != "NSGD")
    return table.where(method=method, setting=setting), "error" if last else "tail"


def draw(table: Table, path: Path) -> None:
    """Two rows of panels, by setting; a column for each N."""
    settings, sizes = (PAPER, WELL_SET), sorted(table.values("N"))
    figure, panels = drawing.grid(len(settings), len(sizes))
    for setting, row in zip(settings, panels, strict=True):
        for N, panel in zip(sizes, row, strict=True):
            here = table.where(N=N)
            for method in here.values("method"):
                rows, measure = shown(here, method, setting)
                drawing.band(panel, rows, measure, "iteration", method)
            drawing.floor(panel, here)
            panel.set(title=f"N = {N}, {setting}", xlabel="iteration")
            panel.set_xlim(left=5)
        row[0].set_ylabel("error, mean over tasks")
    drawing.legend(figure, panels[0][0])
    drawing.save(figure, path)
