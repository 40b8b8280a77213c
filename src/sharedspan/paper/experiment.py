"""An experiment, and the cells of its grid."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sharedspan.paper import experiment_named
from sharedspan.paper.methods import Method
from sharedspan.paper.table import ResultRow, ResultTable, result_row, rounded

# Condition numbers of V*, the last of which stands for Gaussian factors, whose κ varies by draw.
GAUSSIAN = 0.0
KAPPAS = (1.0, 1.5, 1.84, 2.0, 3.0, 5.0, GAUSSIAN)
FEW_KAPPAS = (1.0, 1.5, 2.0, 3.0, GAUSSIAN)  # with --quick, where runs are long
# The paper leaves out d, T and k of its figures.
SIZES: dict[str, Any] = {"d": 60, "T": 40, "k": 4}
IDENTIFYING = ("experiment", "part", "d", "T", "k", "N", "noise", "kappa", "seed")


@dataclass(frozen=True)
class Cell:
    """One simulated problem of a grid: the unit that is run, saved and resumed."""

    experiment: str
    part: str
    d: int
    T: int
    k: int
    N: int
    seed: int
    noise: float = 0.4
    kappa: float = 1.5  # or GAUSSIAN
    iterations: int = 0
    methods: tuple[Method, ...] = field(default=(), repr=False)

    @property
    def key(self) -> tuple[Any, ...]:
        """The values that identify the rows of this cell in a table."""
        return row_key(self.row())

    def row(self, **values: Any) -> ResultRow:
        """A row of this cell."""
        own = {name: getattr(self, name) for name in IDENTIFYING}
        return result_row(**own | {"budget": self.iterations or -1} | values)


def kappa_text(kappa: float) -> str:
    """The name of a condition number."""
    return f"κ = {kappa:g}" if kappa else "Gaussian factors"


def row_key(row: ResultRow) -> tuple[Any, ...]:
    """The values of a row that identify its cell."""
    return tuple(row[name] for name in (*IDENTIFYING, "budget"))


class Experiment(ABC):
    """A grid of cells, a function that runs one of them, and a figure drawn from the table alone.

    The docstring of a subclass opens its section of the results page; its notes end the paragraph.
    """

    name: str  # also of the command's argument, the table and the figure
    title: str
    n_seeds: tuple[int, int]  # with --quick, with --full
    # Measured seconds per cell and per entry of its Grams, to estimate the time remaining.
    pace = (1.0, 0.0)

    def about(self) -> tuple[str, str]:
        """What opens the section, and the notes."""
        about, _, notes = inspect.cleandoc(self.__doc__ or "").partition("Notes\n-----\n")
        return " ".join(about.split()), " ".join(notes.split())

    def grid(self, full: bool, seed: int) -> list[Cell]:
        """All cells, seeds counted from ``seed``."""
        return self.cells(full, range(seed, seed + self.n_seeds[full]))

    def seconds(self, cell: Cell) -> float:
        """The estimated time of a cell in seconds."""
        fixed, per_entry = self.pace
        return fixed + per_entry * cell.T * cell.d**2

    @abstractmethod
    def cells(self, full: bool, seeds: Sequence[int]) -> list[Cell]:
        """The cells for these seeds, on the grid of the results page or on a small one."""

    @abstractmethod
    def run(self, cell: Cell) -> Iterator[ResultRow]:
        """Rows of the table, for one cell."""

    @abstractmethod
    def draw(self, table: ResultTable) -> Any:
        """The figure, from the table alone."""


def run_cell(cell: Cell) -> list[ResultRow]:
    """The rows of one cell, rounded as in the written table."""
    return [rounded(row) for row in experiment_named(cell.experiment).run(cell)]
