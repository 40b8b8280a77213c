"""Table 1: rates of the error and the cost of an iteration, measured beside the paper's bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sharedspan.estimators.armul import ARMULRegressor
from sharedspan.estimators.baselines import PerTaskRegressor
from sharedspan.estimators.moment import MomentRegressor
from sharedspan.estimators.penalized import PenalizedERMRegressor
from sharedspan.estimators.spectral import SpectralRegressor
from sharedspan.paper import drawing
from sharedspan.paper.experiment import Cell, Experiment
from sharedspan.paper.methods import LIKELIHOOD_METHODS, NSGD, TPGD, WELL_SET, named
from sharedspan.paper.problem import SimulatedProblem
from sharedspan.paper.table import ResultRow, ResultTable
from sharedspan.solvers.initialization import task_curvatures

COST = "cost"
MAX_ITERATIONS = 2000  # allowed to reach the floor
RATES = {  # the paper's bounds for the error, as powers of (d, k, T, N)
    "MoM (Tripuraneni)": "dk²/(NT)", "MoM (Niu)": "dk/(NT)", "SE": "dk/(NT)",
    "AltMinGD": "dk²/(NT)", "ERM (ALS)": "dk²/(NT)", "ARMUL": "dk²/(NT)", "pERM": "dk²/(NT)",
    "TPGD": "dk/(NT)", "separate": "d/N",
}  # fmt: skip
SQUARED = tuple(method for method, rate in RATES.items() if "k²" in rate)
NUCLEAR = "nuclear norm"
# Parts beyond the paper's assumptions, with the hypothesis that each leaves; t distributions have
# five degrees of freedom. Options of SimulatedProblem.
LAWS: dict[str, dict[str, float]] = {
    "noise of a t distribution": {"noise_degrees": 5.0},
    "rows of a t distribution": {"degrees_of_freedom": 5.0},
    "correlated rows": {"feature_condition": 10.0},
}
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
        "MoM (Duchi)": MomentRegressor(variant="duchi", **plain),
        "SE": SpectralRegressor(**plain),
        "ARMUL": ARMULRegressor(penalty=1.2, **plain),
        "pERM": PenalizedERMRegressor(**plain),
        "separate": PerTaskRegressor(alpha=0.0, fit_intercept=False),
    }


def nuclear_norm(problem: SimulatedProblem) -> np.ndarray:
    """V (d, T) that minimises loss + lambda |V|_*, lambda = sigma (sqrt(d) + sqrt(T)) / sqrt(N).

    By proximal gradient steps, which shrink the singular values; lambda is the size of the noise in
    the gradient, by its largest singular value. It stands for the convex methods to which the paper
    refers (Zhang et al. 2024), whose own algorithm is another one.
    """
    cell, objective = problem.cell, problem.gram
    weight = cell.noise * (math.sqrt(cell.d) + math.sqrt(cell.T)) / math.sqrt(cell.N)
    step = 1 / float(task_curvatures(objective, np.random.default_rng(0)).max())
    V = np.zeros_like(problem.V)
    for _ in range(1000):
        U, s, Q = np.linalg.svd(V - step * objective.residuals(V)[0], full_matrices=False)
        last, V = V, U * np.maximum(s - step * weight, 0.0) @ Q
        if np.linalg.norm(V - last) <= 1e-6 * np.linalg.norm(V):
            break
    return V


def as_tpgd(table: ResultTable) -> list[str]:
    """The methods with TPGD's error, up to five percent, at every size."""
    sizes = [rows for size in EXPECTED for _, rows in table.where(part=size).groups(size)]
    return [
        method for method in table.where(part="N").values("method")
        if method != TPGD and all(
            abs(rows.median("error", method=method) / rows.median("error", method=TPGD) - 1) < 0.05
            for rows in sizes
        )
    ]  # fmt: skip


def iterations_text(value: float) -> str:
    """A number of iterations, or a text that it exceeds the maximum."""
    return f"{value:.0f}" if math.isfinite(value) else f"over {MAX_ITERATIONS}"


class Table1(Experiment):
    """Table 1: how the error grows with d, k, T and N, and what an iteration costs.

    Notes
    -----
    The nuclear norm, MoM (Duchi) and the likelihood methods without a bound are not in the paper's
    table. Three parts of the experiment violate the paper's assumptions: in the first the noise
    has a t distribution with 5 degrees of freedom, in the second the features have one, and in the
    third the features have a covariance of condition number 10, and the error is measured in the
    norm that this covariance defines.
    """

    name, title = "table1", "exponents of the error, cost of an iteration"
    n_seeds, pace = (3, 10), (1.0, 2.3e-6)

    def cells(self, full: bool, seeds: Sequence[int]) -> list[Cell]:
        """Four sweeps, one size at a time; d and T stay in the paper's regime d > T."""
        grids: dict[str, list[dict[str, int]]] = {
            "N": [{"d": 100, "T": 50, "k": 5, "N": N} for N in (200, 400, 800, 1600)],
            "k": [{"d": 100, "T": 50, "k": k, "N": 800} for k in (2, 4, 8, 16)],
            "d": [{"d": d, "T": 20, "k": 5, "N": 1200} for d in (100, 200, 400)],
            "T": [{"d": 400, "T": T, "k": 5, "N": 1200} for T in (20, 40, 80)],
            **{law: [{"d": 100, "T": 50, "k": 5, "N": 800}] for law in LAWS},
            COST: [{"d": 100, "T": 50, "k": 5, "N": 800}],
        }
        if not full:
            grids["d"], grids["T"] = grids["d"][:2], grids["T"][:2]
            grids["N"], grids["k"] = grids["N"][1:], grids["k"][:3]
        iterations, methods = 2000 if full else 800, LIKELIHOOD_METHODS
        return [
            Cell(self.name, part, **sizes, seed=seed, iterations=iterations, methods=methods)
            for part, grid in grids.items() for sizes in grid
            for seed in (seeds if full or part != "T" else seeds[:2])
        ]  # fmt: skip

    def run(self, cell: Cell) -> Iterator[ResultRow]:
        """Costs of the iterative methods, or final errors of all."""
        problem = SimulatedProblem(cell, **LAWS.get(cell.part, {}))
        floor = drawing.floor_error(cell.row())
        if cell.part == COST:
            for method in cell.methods:
                count = problem.counts(method, MAX_ITERATIONS)
                yield cell.row(method=method.name, setting=method.setting, **count)
            return
        if cell.part in LAWS:
            error = problem.converged_error(named(cell.methods, TPGD, WELL_SET), 1e-5)
            yield cell.row(method=TPGD, setting=WELL_SET, error=error, predicted=floor)
            return
        errors = {}
        for method in cell.methods:
            if method.setting == WELL_SET and method.name == NSGD:  # its iterates never converge
                errors[NSGD] = next(problem.curve(method, [cell.iterations]))["tail"]
            elif method.setting == WELL_SET:
                errors[method.name] = problem.converged_error(method, 1e-5)
        errors |= {name: problem.fit_error(m) for name, m in other_estimators(cell.k).items()}
        errors[NUCLEAR] = problem.error(nuclear_norm(problem))
        for name, error in errors.items():
            yield cell.row(method=name, setting=WELL_SET, error=error, erm=problem.erm,
                           predicted=floor)  # fmt: skip

    def draw(self, table: ResultTable) -> Any:
        """The error against each size, one panel per size; methods equal to TPGD are one curve."""
        figure, panels = drawing.log_panels(2, 2, height=3.8, width=5.6)
        same = as_tpgd(table)
        names = [TPGD, *same]
        together = "\n".join(", ".join(names[i : i + 3]) for i in range(0, len(names), 3))
        for size, panel in zip(EXPECTED, panels[0] + panels[1], strict=True):
            rows = table.where(part=size)
            for method, curve in rows.groups("method"):
                if method not in same:
                    label = together if method == TPGD else method
                    drawing.draw_band(panel, curve, "error", size, label, style=method)
            drawing.draw_floor(panel, rows, size)
            drawing.size_ticks(panel, rows.values(size))
            fixed = [f"{n} = {rows.rows[0][n]}" for n in ("d", "T", "k", "N") if n != size]
            slope = rows.where(method=TPGD).exponent(size)
            panel.set_title(f"{', '.join(fixed)}; TPGD's slope {slope.value:+.2f}", fontsize=9)
            panel.set(xlabel=size, ylabel="error, mean over tasks")
        return drawing.add_legend(figure)
