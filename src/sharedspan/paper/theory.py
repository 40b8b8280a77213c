"""The theory's predictions: the end of Phase I, the rate of Phase II, flat iteration counts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sharedspan.estimators.baselines import PerTaskRegressor
from sharedspan.paper import drawing
from sharedspan.paper.experiment import GAUSSIAN, Cell, Experiment, kappa_text
from sharedspan.paper.methods import LOSS_1, LOSS_2, PAPER, TPGD, WELL_SET, Method
from sharedspan.paper.problem import SimulatedProblem
from sharedspan.paper.table import ResultRow, ResultTable
from sharedspan.solvers.tpgd import step_sizes
from sharedspan.subspace import balanced_factors, factor_distance

BASE: dict[str, Any] = {"d": 100, "T": 50, "k": 5, "N": 800}
STARTS: dict[str, Any] = {"d": 50, "T": 30, "k": 4, "N": 2000, "noise": 0.2}  # of Phase I
START_SEEDS = 40  # with --full
PHASE_I, PHASE_II = "Phase I", "Phase II"
FLAT_SWEEPS = {
    "d": (50, 100, 200, 400), "k": (2, 4, 8, 16), "T": (25, 50, 100, 200, 400),
    "N": (200, 400, 800, 1600, 3200),
}  # fmt: skip
MANY_TASKS = "T >= d"
MANY_SWEEPS = {"T": (50, 100, 200, 400, 800), "k": (2, 4, 8, 16), "N": (100, 200, 400, 800)}
START_SCALES = (1e-1, 1e-2, 1e-4, 1e-6)  # alpha over sqrt(s_1)
THEORY_SCALE = 0.0  # as a scale: that of Theorem 5.1
RADIUS = math.sqrt(2) / 8  # of sqrt(s_k), s_k(J) / 8: the distance within which Phase I must end
START_OF_PHASE_TWO = 1 / 8  # of sqrt(s_k), well within
TPGD_WELL_SET = Method(TPGD, "tpgd", WELL_SET)
TPGD_METHODS = (Method(TPGD, "tpgd", PAPER, {"steps": "theory"}, oracle=True), TPGD_WELL_SET)
SEPARATE = "separate"


class Theory(Experiment):
    """The theory's predictions: the end of Phase I, the rate of Phase II, flat iteration counts.

    Notes
    -----
    Phase I is run with the paper's steps only up to κ = 3: beyond that, steps of 1.1/(κ⁵σ₁) need
    hundreds of thousands of iterations.
    """

    name, title = "theory", "what the theorems predict"
    n_seeds, pace = (2, 5), (0.5, 1e-6)

    def cells(self, full: bool, seeds: Sequence[int]) -> list[Cell]:
        """Phase I over kappa and start, Phase II over kappa, counts over d, k, T and N, T >= d."""
        kappas = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, GAUSSIAN)
        starts = [
            Cell(self.name, PHASE_I, seed=seed, kappa=kappa, iterations=500, **STARTS)
            for seed in (range(seeds[0], seeds[0] + START_SEEDS) if full else seeds)
            for kappa in kappas
        ]  # fmt: skip
        grid: list[tuple[str, dict[str, Any]]] = []
        phases = BASE | {"N": 2000, "iterations": 500}
        grid += [(PHASE_II, phases | {"noise": noise, "kappa": kappa})
                 for kappa in kappas[:4] for noise in (0.0, 0.2)]  # fmt: skip
        for name, values in FLAT_SWEEPS.items():
            base = BASE | {"iterations": 150, "methods": TPGD_METHODS}
            base |= {"N": 1600} if name == "d" else {}
            grid += [(f"flat {name}", base | {name: v}) for v in (values if full else values[::2])]
        for name, values in MANY_SWEEPS.items():
            base = {"d": 50, "T": 400, "k": 5, "N": 200, "iterations": 150}
            grid += [(f"{MANY_TASKS}, {name}", base | {name: v})
                     for v in (values if full else values[::2])]  # fmt: skip
        return starts + [
            Cell(self.name, part, seed=s, **sizes) for s in seeds for part, sizes in grid
        ]

    def run(self, cell: Cell) -> Iterator[ResultRow]:
        problem = SimulatedProblem(cell)
        if cell.part == PHASE_I:
            yield from end_of_phase_one(problem)
        elif cell.part == PHASE_II:
            yield from distances_of_phase_two(problem)
        elif cell.part.startswith("flat"):
            for method in cell.methods:
                count = problem.counts(method, 5000, averaged=False)
                yield cell.row(method=TPGD, setting=method.setting, erm=problem.erm,
                               iteration=count["iteration"])  # fmt: skip
        else:
            error = problem.converged_error(TPGD_WELL_SET, 1e-6)
            yield cell.row(method=TPGD, setting=WELL_SET, error=error)
            model = PerTaskRegressor(alpha=0.0, fit_intercept=False)
            yield cell.row(method=SEPARATE, error=problem.fit_error(model))

    def draw(self, table: ResultTable) -> Any:
        """The phases and T >= d above, the counts over d, k, T and N below."""
        figure, (top, bottom) = drawing.log_panels(2, 4, height=3.9, width=4.4)
        _draw_phase_one(top[0], table.where(part=PHASE_I))
        _draw_phase_two(top[1], table.where(part=PHASE_II))
        titles = {"T": "T >= d = 50", "k": "T = 400 >= d = 50"}
        for panel, (size, title) in zip(top[2:], titles.items(), strict=True):
            rows = table.where(part=f"{MANY_TASKS}, {size}")
            drawing.draw_sweep(panel, rows, size)
            x = sorted(rows.values(size))
            y = [weights_error(rows.where(**{size: value}).rows[0]) for value in x]
            panel.plot(x, y, color="black", ls=":", lw=1.2, label=r"$\sigma^2k/N$")
            panel.set(title=title, xlabel=size, ylabel="error, mean over tasks")
        for size, panel in zip(FLAT_SWEEPS, bottom, strict=True):
            rows = table.where(part=f"flat {size}")
            for setting, style in ((PAPER, LOSS_1), (WELL_SET, TPGD)):
                curve = rows.where(setting=setting)
                drawing.draw_band(panel, curve, "iteration", size, setting, style)
            panel.set(xlabel=size, ylabel="iterations", ylim=(10, 1000),
                      title="iterations to 1.05 times the best fit's error")  # fmt: skip
            drawing.size_ticks(panel, rows.values(size))
        for panel in (*top, *bottom):
            panel.legend(fontsize=8, frameon=False, ncols=3, loc="upper center",
                         bbox_to_anchor=(0.5, -0.16))  # fmt: skip
        return figure


def weights_error(row: ResultRow) -> float:
    """sigma^2 k / N, the error with the span known."""
    return float(row["noise"] ** 2 * row["k"] / row["N"])


def truth_distance(problem: SimulatedProblem, B: np.ndarray, W: np.ndarray) -> float:
    """Theorem 5.1's distance to the truth, divided by sqrt(s_k)."""
    sim = problem.sim
    away = factor_distance(B, W, sim.representation, sim.task_weights)
    return away / math.sqrt(sim.singular_values[-1])


def rows_needed(problem: SimulatedProblem) -> float:
    """N of Theorem 5.1 with constants of one: sigma^2 (d + T) k kappa^4 / s_k^2, at least dk."""
    cell, s = problem.cell, problem.sim.singular_values
    noise = cell.noise**2 * (cell.d + cell.T) * cell.k * (s[0] / s[-1]) ** 4 / s[-1] ** 2
    return float(max(noise, cell.d * cell.k))


def end_of_phase_one(problem: SimulatedProblem) -> Iterator[ResultRow]:
    """The distance at the end of Phase I, over start scales; the paper's steps where feasible."""
    s, cell = problem.sim.singular_values, problem.cell
    best = balanced_factors(np.dot(*problem.minimiser), cell.k)  # the limit for all step sizes
    needed, reachable = rows_needed(problem), truth_distance(problem, *best)
    for setting, steps in ((PAPER, "theory"), (WELL_SET, "practical")):
        if setting == PAPER and s[0] > 3.01 * s[-1]:
            continue  # its step, 1.1 / kappa^5, would need hundreds of thousands of iterations
        for scale in start_scales(s):
            alpha = "theory" if scale == THEORY_SCALE else scale * math.sqrt(s[0])
            method = Method(PHASE_I, "tpgd", setting, {"steps": steps, "init_scale": alpha}, True)
            last: dict[str, Any] = {}

            def watch(at: dict[str, Any], last: dict[str, Any] = last) -> bool:
                if at["phase"] == "I":
                    last.update(at)
                return bool(at["phase"] != "I")

            problem.solve(method, 10**7, watch, tol=1e-7)  # ends with Phase I
            yield cell.row(
                method=PHASE_I, setting=setting, rate=scale, iteration=last["iteration"],
                distance=truth_distance(problem, last["B"], last["W"]), erm=reachable,
                needed=needed,
            )  # fmt: skip


def start_scales(s: np.ndarray) -> tuple[float, ...]:
    """Sizes of the start; that of the theorem, which is tiny, for small kappa only."""
    return (*START_SCALES, THEORY_SCALE) if s[0] <= 3.01 * s[-1] else START_SCALES


def distances_of_phase_two(problem: SimulatedProblem) -> Iterator[ResultRow]:
    """Distances in Phase II, started when Phase I has come within an eighth of sqrt(s_k)."""
    s = problem.sim.singular_values

    def inside(at: dict[str, Any]) -> bool:
        return truth_distance(problem, at["B"], at["W"]) <= START_OF_PHASE_TWO

    end = problem.solve(Method(PHASE_I, "phase_one", WELL_SET, oracle=True), 5000, inside)
    _, eta = step_sizes(s, "theory", known=True)
    length = math.ceil(12 / (eta * s[-1]))
    distances = {0: truth_distance(problem, end.B, end.W)}

    def watch(at: dict[str, Any]) -> None:
        if at["iteration"] % max(length // 60, 1) == 0:
            distances[at["iteration"]] = truth_distance(problem, at["B"], at["W"])

    problem.phase_two(end.B, end.W, length, watch)
    predicted = 1 - eta * s[-1] / 4  # of the squared distance, per iteration
    for iteration, distance in distances.items():
        yield problem.cell.row(method=PHASE_II, setting=PAPER, iteration=iteration,
                               distance=distance, rate=predicted)  # fmt: skip


def outside(row: ResultRow) -> str:
    """The hypothesis of Theorem 5.1 that a run of Phase I does not meet, if any."""
    if row["N"] < row["needed"]:
        return "too few rows"
    if row["setting"] != PAPER:
        return "larger steps"
    return "larger start" if row["rate"] != THEORY_SCALE else ""


def far_starts(table: ResultTable) -> list[ResultRow]:
    """Runs of Phase I that end farther from the truth than Theorem 5.1 says."""
    return [row for row in table.where(part=PHASE_I).rows if row["distance"] > RADIUS]


def contraction(table: ResultTable) -> float:
    """Factor on the squared distance per iteration, fitted while it can still be measured."""
    inside = ResultTable(row for row in table.rows if row["distance"] > 1e-9)
    x, y = inside.median_curve("distance", "iteration")
    return float(np.exp(np.polyfit(x, 2 * np.log(y), 1)[0]))


def _draw_phase_one(panel: Any, table: ResultTable) -> None:
    drawn = ResultTable(row for row in table.rows if row["rate"] != THEORY_SCALE)
    for i, kappa in enumerate(sorted(table.values("kappa"), key=lambda kappa: kappa or math.inf)):
        rows = drawn.where(kappa=kappa, setting=WELL_SET)
        drawing.draw_band(panel, rows, "distance", "rate", kappa_text(kappa), style=i)
    panel.axhline(RADIUS, label=r"$\sqrt{2}/8$", **drawing.DASHED)
    panel.set(title="end of Phase I, well set (larger steps)",
              xlabel=r"start, $\tilde\alpha/\sqrt{\sigma_1}$",
              ylabel=r"distance over $\sqrt{\sigma_k}$")  # fmt: skip
    panel.set_xticks([1e-6, 1e-4, 1e-2])
    panel.set_xticks([], minor=True)


def _draw_phase_two(panel: Any, table: ResultTable) -> None:
    rows = table.where(kappa=2.0 if 2.0 in table.values("kappa") else 1.5)
    for noise, label, style in ((0.0, "without noise", LOSS_2), (0.2, "σ = 0.2", TPGD)):
        curve = rows.where(noise=noise)
        drawing.draw_band(panel, curve, "distance", "iteration", label, style, marker=False)
    x, y = rows.where(noise=0.0).median_curve("distance", "iteration")
    row = rows.rows[0]
    panel.plot(
        x, y[0] * row["rate"] ** (x / 2), label="bound of Theorem 5.1, first term", **drawing.DASHED
    )
    panel.set(title=f"Phase II, κ = {row['kappa']:g}", xlabel="iterations of Phase II",
              ylabel=r"distance over $\sqrt{\sigma_k}$", xscale="linear")  # fmt: skip
