"""An experiment, the cells of its grid, and the methods that it compares.

"Paper's steps" are what the paper states: 1.1 / (kappa^5 s_1) in Phase I and for GD on Loss 1,
0.1 / s_1 in Phase II; where it points to the defaults of others, 0.1 / s_1 for Loss 2 and NSGD.
They need the true singular values. "Well set" steps are the largest that are safely stable, with
s_1 estimated from the data, as a user would run them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sharedspan.paper import experiment_named
from sharedspan.paper.table import ResultRow, ResultTable, result_row, rounded

PAPER, WELL_SET = SETTINGS = ("paper's steps", "well set")
TPGD, LOSS_1, LOSS_2, NSGD = "TPGD", "GD + Loss 1", "GD + Loss 2", "NSGD"
LFFO, ALTMIN, SVP, ERM = "LF-FO", "AltMinGD", "GD + SVD", "ERM (ALS)"
PHASE_ONE_ONLY, PHASE_TWO_ONLY = "Phase I only", "Phase II only"


@dataclass(frozen=True)
class Method:
    """A solver with its settings; ``oracle`` gives it the true singular values."""

    name: str
    solver: str
    setting: str
    options: dict[str, Any] = field(default_factory=dict)
    oracle: bool = False


def figure_methods(kappa: float) -> tuple[Method, ...]:
    """TPGD and its three rivals of Figures 1 and 2, with the paper's steps and well set."""
    first = min(1.1 / kappa**5, 0.5)  # the cap that TPGD itself applies
    return (
        Method(TPGD, "tpgd", PAPER, {"steps": "theory"}, oracle=True),
        Method(LOSS_1, "gd", PAPER, {"step_size": first}, oracle=True),
        Method(LOSS_2, "gd_balanced", PAPER, {"step_size": 0.1}, oracle=True),
        Method(NSGD, "nsgd", PAPER, {"step_size": 0.1}, oracle=True),
        Method(TPGD, "tpgd", WELL_SET),
        Method(LOSS_1, "gd", WELL_SET, {"step_size": 0.5}),
        Method(LOSS_2, "gd_balanced", WELL_SET, {"step_size": 0.2}),
        Method(NSGD, "nsgd", WELL_SET, {"step_size": 0.2, "injected": 0.0}),
    )


def likelihood_methods(kappa: float) -> tuple[Method, ...]:
    """All solvers of the likelihood that Table 1 lists or the figures show."""
    others = {LFFO: "lf_fo", ALTMIN: "altmin_gd", SVP: "svp", ERM: "als"}
    return figure_methods(kappa) + tuple(Method(n, s, WELL_SET) for n, s in others.items())


def ablation_methods() -> tuple[Method, ...]:
    """TPGD and each of its phases alone, with the paper's steps and with equal ones."""
    solvers = {TPGD: "tpgd", PHASE_ONE_ONLY: "phase_one", PHASE_TWO_ONLY: "phase_two"}
    return (
        *(Method(n, s, PAPER, {"steps": "theory"}, oracle=True) for n, s in solvers.items()),
        *(Method(n, s, WELL_SET) for n, s in solvers.items()),
    )


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
    kappa: float = 1.5
    iterations: int = 0
    methods: tuple[Method, ...] = field(default=(), repr=False)

    @property
    def key(self) -> tuple[Any, ...]:
        """The values that identify its rows in a table."""
        return row_key(self.row())

    def row(self, **values: Any) -> ResultRow:
        """A row of this cell."""
        names = ("experiment", "part", "d", "T", "k", "N", "seed", "noise", "kappa")
        own = {name: getattr(self, name) for name in names} | {"budget": self.iterations or -1}
        return result_row(**own | values)


def row_key(row: ResultRow) -> tuple[Any, ...]:
    """The values of a row that identify its cell."""
    names = ("experiment", "part", "d", "T", "k", "N", "noise", "kappa", "seed", "budget")
    return tuple(row[name] for name in names)


class Experiment(ABC):
    """A grid of cells, a function that runs one of them, and a figure drawn from the table alone.

    The docstring of a subclass opens its section of the results page.
    """

    name: str  # of the command's argument, the table and the figure
    title: str
    note = ""  # a remark that closes the opening of the section
    n_seeds: tuple[int, int]  # with --quick, with --full
    # Seconds of a cell, and of each entry of its Grams, as once measured: for the time remaining.
    pace = (1.0, 0.0)

    def grid(self, full: bool, seed: int) -> list[Cell]:
        """All cells, seeds counted from ``seed``."""
        return self.cells(full, range(seed, seed + self.n_seeds[full]))

    def seconds(self, cell: Cell) -> float:
        """About how long a cell takes."""
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
    """The rows of one cell, with the digits that a table has."""
    return [rounded(row) for row in experiment_named(cell.experiment).run(cell)]
