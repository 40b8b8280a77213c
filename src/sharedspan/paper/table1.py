"""Table 1: rates of the error and the cost of an iteration, measured beside the paper's bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from sharedspan.estimators.armul import ARMULRegressor
from sharedspan.estimators.baselines import PerTaskRegressor
from sharedspan.estimators.moment import MomentRegressor
from sharedspan.estimators.penalized import PenalizedERMRegressor
from sharedspan.estimators.spectral import SpectralRegressor
from sharedspan.paper import drawing
from sharedspan.paper.experiment import Cell, Experiment
from sharedspan.paper.methods import LOSS_1, LOSS_2, NSGD, PAPER, TPGD, WELL_SET, likelihood_methods
from sharedspan.paper.problem import SimulatedProblem
from sharedspan.paper.table import ResultRow, ResultTable

COST = "cost"
MAX_ITERATIONS = 4000  # allowed to reach the floor
RATES = {  # the paper's bounds for the error, as powers of (d, k, T, N)
    "MoM (Tripuraneni)": "dk²/(NT)", "MoM (Niu)": "dk/(NT)", "SE": "dk/(NT)",
    "AltMinGD": "dk²/(NT)", "ERM (ALS)": "dk²/(NT)", "ARMUL": "dk²/(NT)", "pERM": "dk²/(NT)",
    "TPGD": "dk/(NT)", "separate": "d/N",
}  # fmt: skip
PAPER_COST = {  # the paper's columns: iteration complexity, decomposition per iteration
    "MoM (Tripuraneni)": ("Õ(1)", "SVD"), "MoM (Niu)": ("Õ(1)", "SVD"), "SE": ("Õ(1)", "SVD"),
    "AltMinGD": ("Õ(1)", "QR"), "ERM (ALS)": ("-", "-"), "ARMUL": ("-", "-"), "pERM": ("-", "-"),
    "TPGD": ("Õ(1)", "-"),
}  # fmt: skip
EXPECTED = {"N": -1.0, "k": 1.0, "d": 1.0, "T": -1.0}  # powers of the error in the four sweeps


def other_estimators(k: int) -> dict[str, Any]:
    """The estimators of Table 1 that do not maximise the likelihood by a solver."""
    plain: dict[str, Any] = {"rank": k, "fit_intercept": False, "random_state": 0, "whiten": False}
    return {
        "MoM (Tripuraneni)": MomentRegressor(variant="tripuraneni", **plain),
        "MoM (Niu)": MomentRegressor(variant="niu", symmetrise=False, **plain),
        "SE": SpectralRegressor(**plain),
        "ARMUL": ARMULRegressor(penalty=1.2, **plain),
        "pERM": PenalizedERMRegressor(**plain),
        "separate": PerTaskRegressor(alpha=0.0, fit_intercept=False),
    }


def iterations_text(value: float) -> str:
    """A number of iterations, or a text that it exceeds the maximum."""
    return f"{value:.0f}" if math.isfinite(value) else f"over {MAX_ITERATIONS}"


class Table1(Experiment):
    """Table 1: how the error grows with d, k, T and N, and what an iteration costs."""

    name, title = "table1", "exponents of the error, cost of an iteration"
    n_seeds, pace = (3, 10), (0.8, 1.2e-6)

    def cells(self, full: bool, seeds: Sequence[int]) -> list[Cell]:
        """Four sweeps, one size at a time; d and T stay in the paper's regime d > T."""
        grids: dict[str, list[dict[str, int]]] = {
            "N": [{"d": 100, "T": 50, "k": 5, "N": N} for N in (200, 400, 800, 1600)],
            "k": [{"d": 100, "T": 50, "k": k, "N": 800} for k in (2, 4, 8, 16)],
            "d": [{"d": d, "T": 20, "k": 5, "N": 1200} for d in (100, 200, 400)],
            "T": [{"d": 400, "T": T, "k": 5, "N": 1200} for T in (20, 40, 80)],
            COST: [{"d": 100, "T": 50, "k": 5, "N": 800}],
        }
        if not full:
            for part in ("d", "T"):
                grids[part] = [grids[part][0], grids[part][-1]]
            grids["N"], grids["k"] = grids["N"][1:], grids["k"][:3]
        iterations, methods = 2000 if full else 800, likelihood_methods(1.5)
        return [
            Cell(self.name, part, **sizes, seed=seed, iterations=iterations, methods=methods)
            for part, grid in grids.items() for sizes in grid
            for seed in (seeds if full or part != "T" else seeds[:2])
        ]  # fmt: skip

    def run(self, cell: Cell) -> Iterator[ResultRow]:
        """Costs of the iterative methods, or final errors of all."""
        problem = SimulatedProblem(cell)
        if cell.part == COST:
            yield from self._costs(problem)
            return
        errors = {}
        for method in cell.methods:
            if method.setting == WELL_SET and method.name == NSGD:  # its iterates never converge
                errors[NSGD] = next(problem.curve(method, [cell.iterations]))["tail"]
            elif method.setting == WELL_SET:
                errors[method.name] = problem.converged_error(method, 1e-5)
        errors |= {name: problem.fit_error(m) for name, m in other_estimators(cell.k).items()}
        for name, error in errors.items():
            yield cell.row(method=name, setting=WELL_SET, error=error, erm=problem.erm)

    def _costs(self, problem: SimulatedProblem) -> Iterator[ResultRow]:
        """Iterations to 1.05 of the floor, by the last iterate and, for rivals, by the average."""
        for method in problem.cell.methods:
            rival = method.setting == PAPER and method.name in (LOSS_1, LOSS_2, NSGD)
            for average in (False, True) if rival or method.name == NSGD else (False,):
                reached, decompositions, seconds = problem.iterations_to_floor(
                    method, MAX_ITERATIONS, average
                )
                yield problem.cell.row(
                    method=method.name + (", tail average" if average else ""),
                    setting=method.setting, iteration=reached, decompositions=decompositions,
                    seconds=seconds, erm=problem.erm,
                )  # fmt: skip

    def draw(self, table: ResultTable) -> Any:
        """The error against each size, one panel per size, with the slope of TPGD."""
        figure, panels = drawing.log_panels(2, 2, height=3.8, width=5.6)
        for size, panel in zip(EXPECTED, panels[0] + panels[1], strict=True):
            rows = table.where(part=size)
            drawing.draw_sweep(panel, rows, size)
            fixed = [f"{n} = {rows.rows[0][n]}" for n in ("d", "T", "k", "N") if n != size]
            slope = rows.where(method=TPGD).exponent(size)
            panel.set_title(f"{', '.join(fixed)}; TPGD's slope {slope.value:+.2f}", fontsize=9)
            panel.set(xlabel=size, ylabel="error, mean over tasks")
        return drawing.add_legend(figure)
