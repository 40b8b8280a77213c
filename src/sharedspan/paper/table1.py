"""Table 1: how the error grows with d, k, T and N, and what an iteration costs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sharedspan.estimators.armul import ARMULRegressor
from sharedspan.estimators.baselines import PerTaskRegressor
from sharedspan.estimators.moment import MomentRegressor
from sharedspan.estimators.penalized import PenalizedERMRegressor
from sharedspan.estimators.spectral import SpectralRegressor
from sharedspan.paper import drawing
from sharedspan.paper.exponents import exponent
from sharedspan.paper.methods import LOSS_1, LOSS_2, NSGD, TPGD, likelihood_methods
from sharedspan.paper.problem import (
    PAPER,
    WELL_SET,
    Cell,
    Method,
    Problem,
    Tail,
    iterations_to_floor,
)  # fmt: skip
from sharedspan.paper.table import Row, Table

NAME = "table1"
TITLE = "exponents of the error, cost of an iteration"
SWEEPS = ("N", "k", "d", "T")
COST = "cost"
CAP = 4000  # iterations
TOLERANCE = 1e-5  # of |V|, the tangent gradient where a run has converged
FEW_ITERATIONS = ("als", "svp")
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
EXPECTED = {"N": -1.0, "k": 1.0, "d": 1.0, "T": -1.0}


def statistics(k: int) -> dict[str, Callable[[], Any]]:
    """The estimators of Table 1 that are no solvers of the likelihood."""
    common: dict[str, Any] = {"rank": k, "fit_intercept": False, "random_state": 0}
    plain = {**common, "whiten": False}
    return {
        "MoM (Tripuraneni)": lambda: MomentRegressor(variant="tripuraneni", **plain),
        "MoM (Niu)": lambda: MomentRegressor(variant="niu", symmetrise=False, **plain),
        "SE": lambda: SpectralRegressor(**plain),
        "ARMUL": lambda: ARMULRegressor(penalty=1.2, **plain),
        "pERM": lambda: PenalizedERMRegressor(**plain),
        "separate": lambda: PerTaskRegressor(alpha=0.0, fit_intercept=False),
    }


def cells(full: bool, seed: int) -> list[Cell]:
    """Four sweeps, one size at a time; d and T where the paper's regime d > T holds."""
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
    methods = likelihood_methods(1.5)
    return [
        Cell(NAME, part, **sizes, seed=seed + i, iterations=2000 if full else 800, methods=methods)
        for part, grid in grids.items() for sizes in grid for i in range(10 if full else 3)
        if full or part != "T" or i < 2
    ]  # fmt: skip


def run(cell: Cell) -> Iterator[Row]:
    """Costs of the iterative methods, or final errors of all."""
    problem = cell.problem()
    if cell.part == COST:
        for method in cell.methods:
            yield from _cost(cell, problem, method)
        return
    for method in cell.methods:
        if method.setting == WELL_SET:
            error = converged_error(problem, method, cell)
            yield cell.row(method=method.name, setting=WELL_SET, error=error, erm=problem.erm)
    sim = problem.sim
    for name, make in statistics(cell.k).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = make().fit(sim.X, sim.y, task=sim.task)
        yield cell.row(method=name, setting=WELL_SET, error=problem.error(model.coef_.T),
                       erm=problem.erm)  # fmt: skip


def converged_error(problem: Problem, method: Method, cell: Cell) -> float:
    """Error where the method has converged; of its tail average where it never does."""
    if method.name == NSGD:
        tail, mean = Tail(), problem.V

        def average(at: dict[str, Any]) -> None:
            nonlocal mean
            mean = tail.add(at["B"], at["W"])

        problem.solve(method, cell.iterations, average, seed=cell.seed)
        return problem.error(mean)
    last = problem.V

    def stop(at: dict[str, Any]) -> bool:
        nonlocal last
        last = at["B"] @ at["W"]
        point = at["point"]
        looked = at["iteration"] % 10 == 0 or method.solver in FEW_ITERATIONS
        return looked and point.tangent_gradient() <= TOLERANCE * point.norm()

    problem.solve(method, 5 * CAP, stop, seed=cell.seed, tol=TOLERANCE)
    return problem.error(last)


def _cost(cell: Cell, problem: Problem, method: Method) -> Iterator[Row]:
    """Iterations to 1.05 of the floor, by the last iterate and, for rivals, by the tail average."""
    rival = method.setting == PAPER and method.name in (LOSS_1, LOSS_2, NSGD)
    for average in (False, True) if rival or method.name == NSGD else (False,):
        reached, decompositions, seconds = iterations_to_floor(
            problem, method, CAP, cell.seed, average
        )
        yield cell.row(
            method=method.name + (", tail average" if average else ""), setting=method.setting,
            iteration=-1 if math.isnan(reached) else int(reached), decompositions=decompositions,
            seconds=seconds, erm=problem.erm,
        )  # fmt: skip


def draw(table: Table, path: Path) -> None:
    """The error against each size, one panel a size, with the slope of TPGD."""
    figure, panels = drawing.grid(2, 2, height=3.8, width=5.6)
    for size, panel in zip(SWEEPS, [p for row in panels for p in row], strict=True):
        here = table.where(part=size)
        for method in here.values("method"):
            drawing.band(panel, here.where(method=method), "error", size, method, marker=True)
        drawing.floor_along(panel, here, size)
        fixed = [f"{n} = {here.rows[0][n]}" for n in ("d", "T", "k", "N") if n != size]
        slope = exponent(here.where(method=TPGD), size)
        panel.set_title(f"{', '.join(fixed)}; TPGD's slope {slope.value:+.2f}", fontsize=9)
        panel.set(xlabel=size, ylabel="error, mean over tasks")
        drawing.size_ticks(panel, sorted(here.values(size)))
    drawing.legend(figure, panels[0][0])
    drawing.save(figure, path)
