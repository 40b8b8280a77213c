"""Iterations against the condition number: where TPGD stops being the fastest method."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sharedspan.paper import drawing
from sharedspan.paper.experiment import GAUSSIAN, KAPPAS, SIZES, Cell, Experiment
from sharedspan.paper.methods import (
    ABLATION_METHODS,
    FIGURE_METHODS,
    LOSS_1,
    NSGD,
    PAPER,
    PHASE_TWO_ONLY,
    SETTINGS,
    TPGD,
    named,
)
from sharedspan.paper.problem import NEAR_FLOOR, SimulatedProblem
from sharedspan.paper.table import ResultRow, ResultTable

CAP = 2000  # iterations allowed
ROWS = 500  # per task
FINE = {False: (1.6, 1.7, 2.2, 2.4), True: (*np.round(np.arange(1.1, 2.7, 0.1), 1).tolist(), 4.0)}


def fewest_iterations(problem: SimulatedProblem) -> dict[str, int]:
    """The fewest iterations to the target over all K_1, by the last iterate and the tail average.

    Either Phase I gets there, in a run with a large K_1, or Phase II, in the run with the smallest
    K_1 that suffices: since each phase takes half, any other K_1 takes longer.
    """
    phase_one: list[tuple[np.ndarray, np.ndarray]] = []
    loss_1 = named(FIGURE_METHODS, LOSS_1, PAPER)  # takes the steps of Phase I
    problem.solve(loss_1, CAP // 2, lambda at: phase_one.append((at["B"], at["W"])))
    target = NEAR_FLOOR * problem.erm

    def after(half: int) -> dict[str, int]:
        """Iterations to the target in a run of K_1 = 2 half, or -1."""
        total, reached = np.zeros_like(problem.V), {"iteration": -1, "averaged": -1}

        def watch(at: dict[str, Any]) -> None:
            V = at["B"] @ at["W"]
            total[:] += V
            if reached["iteration"] < 0 and problem.error(V) <= target:
                reached["iteration"] = half + at["iteration"]

        problem.phase_two(*phase_one[half - 1], half, watch)
        if problem.error(total / half) <= target:
            reached["averaged"] = 2 * half
        return reached

    def smallest(measure: str) -> int:
        """By bisection over half of K_1."""
        low, high = 1, CAP // 2
        if after(high)[measure] < 0:
            return -1
        while low < high:
            half = (low + high) // 2
            low, high = (low, half) if after(half)[measure] > 0 else (half + 1, high)
        return after(high)[measure]

    alone = problem.counts(loss_1, CAP)
    return {name: min((count for count in (alone[name], smallest(name)) if count > 0), default=-1)
            for name in ("iteration", "averaged")}  # fmt: skip


def crossing(table: ResultTable, own: str, other: str, measures: tuple[str, str]) -> list[float]:
    """For each seed, the κ at which ``own`` begins to need more iterations than ``other``.

    ``measures`` are the columns that count the iterations of the two. Between values of κ the
    logarithm of the ratio is interpolated. A seed without a change of sign is left out.
    """
    found = []
    for _, rows in table.groups("seed"):
        kappas = sorted(kappa for kappa in rows.values("kappa") if kappa != GAUSSIAN)
        logs = []
        for kappa in kappas:
            pair = [
                rows.where(kappa=kappa, method=method).rows[0][measure]
                for method, measure in zip((own, other), measures, strict=True)
            ]
            a, b = (CAP if count < 0 else count for count in pair)
            logs.append(np.log(a / b))
        for x0, x1, y0, y1 in zip(kappas, kappas[1:], logs, logs[1:], strict=False):
            if y0 <= 0 < y1:
                found.append(x0 + (x1 - x0) * -y0 / (y1 - y0))
                break
    return found


def crossing_text(found: list[float]) -> str:
    """Where it is: the median over seeds, and the range."""
    if not found:
        return "at no κ that we ran"
    low, middle, high = min(found), float(np.median(found)), max(found)
    return f"where κ exceeds {middle:.2f} (median over seeds; range {low:.2f} to {high:.2f})"


def count_text(rows: ResultTable, measure: str, method: str) -> str:
    """The median number of iterations of a method."""
    own = rows.where(method=method)
    count = own.median(measure) if len(own) else math.nan
    return f"{count:.0f}" if math.isfinite(count) else f"over {CAP}" if len(own) else "not run"


class Crossover(Experiment):
    """Iterations are counted until the error is at most 1.05 times that of the best fit.

    They are plotted against κ for TPGD and its rivals.

    Notes
    -----
    TPGD is given the best K₁, the one with the fewest iterations. With the paper's steps, GD on
    Loss 1 has the same iterates as a Phase I that never ends. The step of Phase I exceeds that of
    Phase II for κ < 11^(1/5) = 1.615. NSGD injects noise in the first 1000 iterations.
    """

    name, title, n_seeds, pace = "crossover", "where TPGD stops being fastest", (3, 20), (1.5, 0.0)

    def cells(self, full: bool, seeds: Sequence[int]) -> list[Cell]:
        kappas = [*sorted({*KAPPAS, *FINE[full]} - {GAUSSIAN}), GAUSSIAN]
        return [
            Cell(self.name, "", **SIZES, N=ROWS, seed=seed, kappa=kappa, iterations=CAP)
            for seed in seeds for kappa in kappas
        ]  # fmt: skip

    def run(self, cell: Cell) -> Iterator[ResultRow]:
        """NSGD, which is slow, for some κ only."""
        problem = SimulatedProblem(cell)
        yield cell.row(method=TPGD, setting=PAPER, erm=problem.erm, **fewest_iterations(problem))
        others = [m for m in FIGURE_METHODS if (m.name, m.setting) != (TPGD, PAPER)]
        others.append(named(ABLATION_METHODS, PHASE_TWO_ONLY, PAPER))
        for method in others:
            if method.name != NSGD or (method.setting == PAPER and cell.kappa in KAPPAS):
                count = problem.counts(method, CAP) | {"seconds": math.nan}
                yield cell.row(method=method.name, setting=method.setting, **count)

    def draw(self, table: ResultTable) -> Any:
        """Iterations against κ: last iterates and tail averages, for both settings."""
        figure, (panels,) = drawing.log_panels(1, 4, height=3.8, width=4.4)
        counted = ResultTable(
            row | {name: CAP if row[name] < 0 else row[name] for name in ("iteration", "averaged")}
            for row in table.rows if row["kappa"] != GAUSSIAN
        )  # fmt: skip
        measures = (("iteration", "last iterate"), ("averaged", "tail average"))
        shown = [(s, *measure) for s in SETTINGS for measure in measures]
        for panel, (setting, measure, words) in zip(panels, shown, strict=True):
            for method, rows in counted.where(setting=setting).groups("method"):
                drawing.draw_band(panel, rows, measure, "kappa", method)
            panel.set(title=f"{setting}, {words}", xlabel="κ", ylim=(15, 1.2 * CAP))
            panel.axhline(CAP, label=f"not within {CAP}", **drawing.DASHED)
            drawing.size_ticks(panel, (1.0, 1.5, 2.0, 3.0, 5.0))
        panels[0].set_ylabel("iterations to 1.05 times the best fit's error")
        return drawing.add_legend(figure)
