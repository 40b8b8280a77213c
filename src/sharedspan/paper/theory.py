"""The theory's predictions: the end of Phase I, the rate of Phase II, flat iteration counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.estimators.baselines import PerTaskRegressor
from sharedspan.objective import Objective
from sharedspan.paper import drawing
from sharedspan.paper.methods import TPGD
from sharedspan.paper.problem import (
    PAPER,
    WELL_SET,
    Cell,
    Method,
    Problem,
    iterations_to_floor,
)  # fmt: skip
from sharedspan.paper.table import Row, Table
from sharedspan.solvers.gradient import descend
from sharedspan.solvers.initialization import small_random_start
from sharedspan.solvers.loop import Iterate, Solver
from sharedspan.solvers.loop import run as drive
from sharedspan.solvers.tpgd import BALANCE, phase_one_length, step_sizes
from sharedspan.subspace import balanced_factors, factor_distance

NAME = "theory"
TITLE = "what the theorems predict"
NOTE = (
    "Phase I is run with the paper's steps up to κ = 3 only: beyond, 1.1/κ⁵ asks for hundreds of "
    "thousands of iterations."
)
BASE: dict[str, Any] = {"d": 100, "T": 50, "k": 5, "N": 800}
PHASE_I, PHASE_II, ROWS_NEEDED = "Phase I", "Phase II", "rows needed"
FLAT = {"d": (50, 100, 200, 400), "T": (25, 50, 100, 200, 400), "N": (200, 400, 800, 1600, 3200)}
MANY = {"T": (50, 100, 200, 400, 800), "k": (2, 4, 8, 16), "N": (100, 200, 400, 800)}
START_SCALES = (1e-1, 1e-2, 1e-4, 1e-6)  # alpha over sqrt(s_1)
RADIUS = 1 / 8  # of sqrt(s_k), where Phase I must end
NEEDED = (0.15, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)  # N / d
METHODS = (Method(TPGD, "tpgd", PAPER, oracle=True)(steps="theory"), Method(TPGD, "tpgd", WELL_SET))


def cells(full: bool, seed: int) -> list[Cell]:
    """Phase I over kappa and start, Phase II over kappa, counts over d, T and N, T >= d."""
    n = 5 if full else 2
    found = []
    for i in range(seed, seed + n):
        kappas = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0) if full else (1.5, 3.0)
        found += [Cell(NAME, PHASE_I, **BASE | {"N": 2000}, seed=i, noise=0.2, kappa=kappa,
                       iterations=500) for kappa in kappas]  # fmt: skip
        found += [Cell(NAME, PHASE_II, **BASE | {"N": 2000}, seed=i, noise=noise, kappa=kappa,
                       iterations=500)
                  for kappa in kappas[:4] for noise in (0.0, 0.2)]  # fmt: skip
        for name, values in FLAT.items():
            values = values if full else values[::2]
            base = BASE | ({"N": 1600} if name == "d" else {})
            found += [Cell(NAME, f"flat {name}", **base | {name: v}, seed=i, iterations=150,
                           methods=METHODS) for v in values]  # fmt: skip
        for name, values in MANY.items():
            values = values if full else values[::2]
            base = {"d": 50, "T": 400, "k": 5, "N": 200}
            found += [Cell(NAME, f"T >= d, {name}", **base | {name: v}, seed=i, iterations=150)
                      for v in values]  # fmt: skip
        found += [Cell(NAME, ROWS_NEEDED, **BASE | {"N": round(100 * x)}, seed=i, iterations=2000)
                  for x in (NEEDED if full else NEEDED[1::2])]  # fmt: skip
    return found


def run(cell: Cell) -> Iterator[Row]:
    """Dispatch on the part."""
    problem = cell.problem()
    if cell.part == PHASE_I:
        yield from _phase_one(cell, problem)
    elif cell.part == PHASE_II:
        yield from _phase_two(cell, problem)
    elif cell.part.startswith("flat"):
        for method in cell.methods:
            reached, _, _ = iterations_to_floor(problem, method, 5000, cell.seed)
            yield cell.row(method=TPGD, setting=method.setting, erm=problem.erm,
                           iteration=-1 if math.isnan(reached) else int(reached))  # fmt: skip
    else:
        yield from _error(cell, problem)


def two_phases(
    start: tuple[np.ndarray, np.ndarray], eta_1: float, eta_2: float, switch: int
) -> Solver:
    """TPGD with given steps, from a given start; Phase II begins at iteration ``switch``."""
    step = yield Iterate(*start, phase="I")
    step = yield from descend(step, eta_1, until=switch, phase="I")
    yield from descend(step, eta_2, balance=BALANCE, phase="II")


def _start(objective: Objective, k: int, alpha: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    return small_random_start(objective, k, alpha, np.random.default_rng([1, seed]))


def _distance(problem: Problem, at: dict[str, Any]) -> float:
    """Theorem 1's distance to the truth over sqrt(s_k)."""
    sim = problem.sim
    away = factor_distance(at["B"], at["W"], sim.representation, sim.task_weights)
    return away / math.sqrt(sim.singular_values[-1])


def _phase_one(cell: Cell, problem: Problem) -> Iterator[Row]:
    """The distance where Phase I ends, over start scales; paper's steps while they are feasible."""
    s, objective = problem.sim.singular_values, problem.gram
    B, W = balanced_factors(np.dot(*problem.minimiser), cell.k)
    reachable = _distance(problem, {"B": B, "W": W})  # of the fit that all steps lead to
    for setting, steps in ((PAPER, "theory"), (WELL_SET, "practical")):
        if setting == PAPER and cell.kappa > 3:
            continue  # its step, 1.1 / kappa^5, would need hundreds of thousands of iterations
        eta, _ = step_sizes(s, steps, known=True)
        for scale in START_SCALES:
            alpha = scale * math.sqrt(s[0])
            length = phase_one_length(s, eta, alpha, cell.d)
            last: dict[str, Any] = {}
            solver = two_phases(_start(objective, cell.k, alpha, cell.seed), eta, eta, length + 1)
            drive(solver, objective, max_iter=length, tol=0.0, callback=last.update)
            yield cell.row(method="Phase I", setting=setting, rate=scale, iteration=length,
                           distance=_distance(problem, last), erm=reachable)  # fmt: skip


def _phase_two(cell: Cell, problem: Problem) -> Iterator[Row]:
    """Distances from where Phase I has come within an eighth of sqrt(s_k)."""
    s, objective = problem.sim.singular_values, problem.gram
    eta_1, _ = step_sizes(s, "practical", known=True)
    _, eta_2 = step_sizes(s, "theory", known=True)
    start = _start(objective, cell.k, 0.01 * math.sqrt(s[0]), cell.seed)
    switch = 0

    def inside(at: dict[str, Any]) -> bool:
        nonlocal switch
        switch = at["iteration"]
        return _distance(problem, at) <= RADIUS

    drive(two_phases(start, eta_1, eta_2, 10_000), objective, max_iter=5000, tol=0.0,
          callback=inside)  # fmt: skip
    length = math.ceil(12 / (eta_2 * s[-1]))
    found = []

    def watch(at: dict[str, Any]) -> None:
        since = at["iteration"] - switch
        if since >= 0 and since % max(length // 60, 1) == 0:
            found.append((since, _distance(problem, at)))

    drive(two_phases(start, eta_1, eta_2, switch), objective, max_iter=switch + length, tol=0.0,
          callback=watch)  # fmt: skip
    predicted = 1 - eta_2 * s[-1] / 4  # of the squared distance, per iteration
    for since, distance in found:
        yield cell.row(method="Phase II", setting=PAPER, iteration=since, distance=distance,
                       rate=predicted)  # fmt: skip


def _error(cell: Cell, problem: Problem) -> Iterator[Row]:
    """The error of TPGD at its end, and of separate regressions where there are rows for them."""
    last: dict[str, Any] = {}

    def stop(at: dict[str, Any]) -> bool:
        last.update(at)
        point = at["point"]
        return at["iteration"] % 10 == 0 and point.tangent_gradient() <= 1e-6 * point.norm()

    problem.solve(METHODS[1], 20_000, stop, seed=cell.seed, tol=1e-6)
    yield cell.row(method=TPGD, setting=WELL_SET, error=problem.error(last["B"] @ last["W"]))
    if cell.part != ROWS_NEEDED:
        sim = problem.sim
        model = PerTaskRegressor(alpha=0.0, fit_intercept=False).fit(sim.X, sim.y, task=sim.task)
        yield cell.row(method="separate", error=problem.error(model.coef_.T))


def draw(table: Table, path: Path) -> None:
    """Eight panels, one or more for each prediction."""
    figure, panels = drawing.grid(2, 4, height=3.5)
    _draw_phase_one(panels[0][0], table.where(part=PHASE_I))
    _draw_phase_two(panels[0][1], table.where(part=PHASE_II))
    _draw_rows_needed(panels[0][2], table.where(part=ROWS_NEEDED))
    many = table.where(part="T >= d, T")
    for method, label in ((TPGD, "TPGD"), ("separate", "separate regressions")):
        drawing.band(panels[0][3], many.where(method=method), "error", "T", label, marker=True,
                     name=method)  # fmt: skip
    drawing.floor_along(panels[0][3], many, "T")
    panels[0][3].axhline(0.4**2 * 5 / 200, color="black", ls=":", lw=1.2, label=r"$\sigma^2k/N$")
    drawing.size_ticks(panels[0][3], sorted(many.values("T")))
    panels[0][3].set(title="T >= d = 50", xlabel="tasks, T", ylabel="error, mean over tasks")
    panels[0][3].legend(fontsize=8, frameon=False)
    for size, panel in zip(FLAT, panels[1], strict=False):
        here = table.where(part=f"flat {size}")
        for setting, name in ((PAPER, "GD + Loss 1"), (WELL_SET, TPGD)):
            drawing.band(panel, here.where(setting=setting), "iteration", size, setting,
                         marker=True, name=name)  # fmt: skip
        panel.set(xlabel=size, ylabel="iterations", title="iterations to 1.05 of the floor",
                  ylim=(10, 1000))  # fmt: skip
        drawing.size_ticks(panel, sorted(here.values(size)))
        panel.legend(fontsize=8, frameon=False)
    ranks, panel = table.where(part="T >= d, k"), panels[1][3]
    for method, label in ((TPGD, "TPGD"), ("separate", "separate regressions")):
        drawing.band(panel, ranks.where(method=method), "error", "k", label, marker=True,
                     name=method)  # fmt: skip
    drawing.floor_along(panel, ranks, "k")
    drawing.size_ticks(panel, sorted(ranks.values("k")))
    panel.set(title="T = 400 >= d = 50", xlabel="rank, k", ylabel="error, mean over tasks")
    drawing.save(figure, path)


def _draw_phase_one(panel: Any, table: Table) -> None:
    for i, kappa in enumerate(sorted(table.values("kappa"))):
        here = table.where(kappa=kappa, setting=WELL_SET)
        drawing.band(panel, here, "distance", "rate", f"κ = {kappa:g}", marker=True,
                     name=str(i))  # fmt: skip
    panel.axhline(RADIUS, color="black", ls="--", lw=1.2, label="1/8")
    panel.set(title="end of Phase I", xlabel=r"start, $\tilde\alpha/\sqrt{\sigma_1}$",
              ylabel=r"distance over $\sqrt{\sigma_k}$")  # fmt: skip
    panel.legend(fontsize=8, frameon=False, ncols=2)


def _draw_phase_two(panel: Any, table: Table) -> None:
    panel.set_xscale("linear")
    here = table.where(kappa=2.0 if 2.0 in table.values("kappa") else 1.5)
    for noise, name in ((0.0, "without noise"), (0.2, "σ = 0.2")):
        rows = here.where(noise=noise)
        drawing.band(panel, rows, "distance", "iteration", name,
                     name=TPGD if noise else "GD + Loss 2")  # fmt: skip
    x, y = here.where(noise=0.0).median("distance", "iteration")
    rate = here.rows[0]["rate"]
    panel.plot(x, y[0] * rate ** (x / 2), "k--", lw=1.2, label="bound of Theorem 1")
    panel.set(title=f"Phase II, κ = {here.rows[0]['kappa']:g}", xlabel="iterations of Phase II",
              ylabel=r"distance over $\sqrt{\sigma_k}$")  # fmt: skip
    panel.legend(fontsize=8, frameon=False)


def _draw_rows_needed(panel: Any, table: Table) -> None:
    ratio = Table(
        {**row, "error": row["error"] / drawing.theory(Table([row])), "rate": row["N"] / row["d"]}
        for row in table.rows
    )
    drawing.band(panel, ratio, "error", "rate", TPGD, marker=True)
    panel.axhline(1.0, color="black", ls="--", lw=1.2, label="theory")
    panel.set(title="rows needed", xlabel="rows per task over features, N/d",
              ylabel="error over theory")  # fmt: skip
    drawing.size_ticks(panel, sorted(ratio.values("rate")))
    panel.legend(fontsize=8, frameon=False)
