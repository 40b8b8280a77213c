"""The ablation: training and validation loss of TPGD and of each of its phases alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sharedspan.paper import drawing
from sharedspan.paper.methods import ablation_methods
from sharedspan.paper.problem import PAPER, WELL_SET, Cell, curve, geometric
from sharedspan.paper.table import Row, Table

NAME = "ablation"
TITLE = "the two phases, together and alone"
NOTE = (
    "The paper prints k = 70 = d, where nothing is of low rank and every variant ends at separate "
    "least squares; k = 7 is our reading, and a rank of 70 for a truth of 7 shows what a rank set "
    "too high does."
)
D, T = 70, 191
ROWS = (500, 1000, 1500, 2000)
# The paper prints k = 70 = d, where nothing is low-rank. Its k was probably 7.
LOW, LITERAL, TOO_HIGH = "k = 7", "k = 70", "k = 70, truth 7"
MODEL_RANK = {LOW: 7, LITERAL: 70, TOO_HIGH: 70}


def cells(full: bool, seed: int) -> list[Cell]:
    """Four N for each rank."""
    methods = ablation_methods()
    return [
        Cell(NAME, part, D, T, 7 if part != LITERAL else 70, N, seed + i,
             iterations=1000 if full else 300, methods=methods)
        for part in MODEL_RANK for i in range(5 if full else 1) for N in ROWS
    ]  # fmt: skip


def run(cell: Cell) -> Iterator[Row]:
    """Losses of every variant; the validation loss is the expected one on fresh rows."""
    problem = cell.problem()
    for method in cell.methods:
        yield from curve(
            cell, problem, method, geometric(cell.iterations, 8),
            k=MODEL_RANK[cell.part], losses=True, average=False,
        )  # fmt: skip


def draw(table: Table, path: Path) -> None:
    """A row of panels for each rank and setting: validation loss in colour, training loss thin."""
    lines = [(part, setting) for part in table.values("part") for setting in (PAPER, WELL_SET)]
    sizes = sorted(table.values("N"))
    figure, panels = drawing.grid(len(lines), len(sizes), height=2.5)
    for (part, setting), row in zip(lines, panels, strict=True):
        for N, panel in zip(sizes, row, strict=True):
            here = table.where(part=part, setting=setting, N=N)
            for method in here.values("method"):
                drawing.band(panel, here.where(method=method), "validation", "iteration", method)
                drawing.thin(panel, here.where(method=method), "loss", "iteration", method)
            panel.set_title(f"{part}, N = {N}, {setting}", fontsize=9)
            panel.set_xlim(left=5)
        row[0].set_ylabel("loss")
    for panel in panels[-1]:
        panel.set_xlabel("iteration")
    drawing.legend(
        figure, panels[0][0], note="thick: expected loss on fresh rows; thin dots: training loss"
    )
    drawing.save(figure, path)
