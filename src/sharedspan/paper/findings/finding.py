"""A finding: an experiment with a paragraph computed from its table."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from sharedspan.paper.drawing import STYLES, floor_error
from sharedspan.paper.experiment import Experiment
from sharedspan.paper.methods import TPGD, WELL_SET, Method
from sharedspan.paper.problem import SimulatedProblem
from sharedspan.paper.table import ResultTable
from sharedspan.solvers.loop import SolverResult

TPGD_WELL_SET = Method(TPGD, "tpgd", WELL_SET)
TOLERANCE = 1e-6  # tangent gradient over |V| at which a run has converged
CHECK_EVERY = 10  # iterations
GROWN = 1e-6  # of the largest singular value


class Finding(Experiment):
    """A grid of cells, a figure, and a paragraph; both are made from the table alone."""

    @abstractmethod
    def paragraph(self, table: ResultTable) -> str:
        """What the table says, in sentences computed from it."""

    def medians(self, table: ResultTable) -> list[str]:
        """Lines of the page below the paragraph, computed from the table as well; often none."""
        return []


def run_until_settled(problem: SimulatedProblem, method: Method, cap: int) -> SolverResult:
    """A method run until its tangent gradient is small, or for ``cap`` iterations.

    Directions that are tiny beside the largest are still to grow, and the run is at a saddle.
    """

    def stop(at: dict[str, Any]) -> bool:
        point = at["point"]
        if at["iteration"] % CHECK_EVERY or point.tangent_gradient() > TOLERANCE * point.norm():
            return False
        squares = np.linalg.eigvals(point.B.T @ point.B @ point.WWt).real  # of singular values
        return bool(squares.min() > GROWN**2 * squares.max())

    return problem.solve(method, cap, stop, tol=TOLERANCE)


def over_floor(table: ResultTable) -> ResultTable:
    """The table with errors divided by the floor, sigma^2 k (d + T - k) / (N T)."""
    return ResultTable(row | {"error": row["error"] / floor_error(row)} for row in table.rows)


def draw_medians(
    panel: Any, table: ResultTable, measure: str, by: str, label: str, style: str,
    width: float = 1.6, dash: str = "-",
) -> None:  # fmt: skip
    """The median over seeds against ``by``; broad lines are pale and below, to show under others.

    ``style`` is the key of drawing.STYLES that gives the colour and the marker.
    """
    (color, marker), broad = STYLES[style], width > 2
    panel.plot(
        *table.median_curve(measure, by), color=color, marker=marker, label=label, lw=width,
        ls=dash, ms=4 + width, alpha=0.45 if broad else 1.0, mew=0 if broad else None,
        zorder=3 - width / 10,
    )  # fmt: skip
