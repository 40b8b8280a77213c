"""Figure 2: error against the number of rows per task, for three iteration budgets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sharedspan.paper import drawing
from sharedspan.paper.figure1 import KAPPA, D, K, T, shown
from sharedspan.paper.methods import figure_methods
from sharedspan.paper.problem import PAPER, WELL_SET, Cell, curve
from sharedspan.paper.table import Row, Table

NAME = "figure2"
TITLE = "error against rows per task"
BUDGETS = (50, 200, 800)


def cells(full: bool, seed: int) -> list[Cell]:
    """The problem of Figure 1 over a range of N."""
    sizes = (150, 200, 300, 500, 800, 1200, 2000) if full else (150, 500, 1600)
    methods = figure_methods(KAPPA)
    return [
        Cell(NAME, "", D, T, K, N, seed + i, kappa=KAPPA, iterations=sum(BUDGETS), methods=methods)
        for i in range(20 if full else 2) for N in sizes
    ]  # fmt: skip


def run(cell: Cell) -> Iterator[Row]:
    """A run for each budget: TPGD changes phase after half of it."""
    problem = cell.problem()
    for method in cell.methods:
        for budget in BUDGETS:
            yield from curve(cell, problem, method, [budget])


def draw(table: Table, path: Path) -> None:
    """Two rows of panels, by setting; a column for each budget."""
    settings, budgets = (PAPER, WELL_SET), sorted(table.values("iteration"))
    figure, panels = drawing.grid(len(settings), len(budgets))
    for setting, row in zip(settings, panels, strict=True):
        for budget, panel in zip(budgets, row, strict=True):
            here = table.where(iteration=budget)
            for method in here.values("method"):
                rows, measure = shown(here, method, setting)
                drawing.band(panel, rows, measure, "N", method, marker=True)
            drawing.floor_along(panel, here, "N")
            drawing.size_ticks(panel, sorted(here.values("N")))
            panel.set(title=f"{budget} iterations, {setting}", xlabel="rows per task, N")
        row[0].set_ylabel("error, mean over tasks")
    drawing.legend(figure, panels[0][0])
    drawing.save(figure, path)
