"""The error relative to the floor, along κ and along the size of the weakest direction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sharedspan.diagnosis.text import listed
from sharedspan.paper.drawing import DASHED, STYLES, add_legend, draw_band, log_panels, size_ticks
from sharedspan.paper.experiment import Cell
from sharedspan.paper.findings.finding import TPGD_WELL_SET, Finding, over_floor, run_until_settled
from sharedspan.paper.methods import TPGD, WELL_SET
from sharedspan.paper.problem import SimulatedProblem
from sharedspan.paper.table import ResultRow, ResultTable, spread

FLAT = 0.02  # a power of kappa up to this is taken as zero
CAP = 20_000
SAME = 1.01  # of the error of the lowest loss: the algorithm adds nothing


class Conditioning(Finding):
    """The left panel shows the error of TPGD divided by the floor, for four noise levels.

    κ is from 1 to 100. TPGD takes well-set steps and runs until it has converged. The right panel
    shows the same errors against the ratio of σ_k, the smallest singular value of V*, to
    σ(√d+√T)/√N, which is about the largest singular value of the errors of separate least squares.
    """

    name, title = "conditioning", "does the error relative to the floor depend on κ?"
    n_seeds, pace = (3, 30), (0.3, 0.0)

    def cells(self, full: bool, seeds: Sequence[int]) -> list[Cell]:
        """Condition numbers times noise levels."""
        kappas = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0) if full else (1.0, 3.0, 10.0, 100.0)
        return [
            Cell(self.name, "", 40, 40, 4, 160, seed, noise=noise, kappa=kappa)
            for seed in seeds for noise in (0.01, 0.1, 0.4, 1.0) for kappa in kappas
        ]  # fmt: skip

    def run(self, cell: Cell) -> Iterator[ResultRow]:
        problem = SimulatedProblem(cell)
        end = run_until_settled(problem, TPGD_WELL_SET, CAP)
        largest = cell.noise * (math.sqrt(cell.d) + math.sqrt(cell.T)) / math.sqrt(cell.N)
        yield cell.row(
            method=TPGD, setting=WELL_SET, error=problem.error(end.B @ end.W), iteration=end.n_iter,
            erm=problem.erm, rate=problem.sim.singular_values[-1] / largest,
        )  # fmt: skip

    def draw(self, table: ResultTable) -> Any:
        """The same errors against κ and against the size of the weakest direction."""
        figure, ((left, right),) = log_panels(1, 2, height=3.8, width=5.2)
        table = over_floor(table)
        for i, (noise, rows) in enumerate(table.groups("noise")):
            draw_band(left, rows, "error", "kappa", f"σ = {noise:g}", style=i)
            color, marker = STYLES[i]
            right.plot(*rows.median_curve("error", "rate"), color=color, marker=marker, ls="")
        for panel in (left, right):
            panel.axhline(1.0, label="floor", **DASHED)
            panel.set(ylabel="error over the floor", yscale="linear")
        right.set_ylim(left.get_ylim())
        size_ticks(left, table.values("kappa"))
        left.set_xlabel("κ")
        right.set_xlabel(r"$\sigma_k$ over $\sigma(\sqrt{d}+\sqrt{T})/\sqrt{N}$")
        return add_legend(figure)

    def paragraph(self, table: ResultTable) -> str:
        ratio = over_floor(table)
        powers = {noise: rows.exponent("kappa") for noise, rows in ratio.groups("noise")}
        texts = (f"{power} at σ = {noise:g}" for noise, power in powers.items())
        flat = [noise for noise, power in powers.items() if power.near(0.0, FLAT)]
        text = "The ratio of the error to the floor grows with a fitted power of κ of "
        text += f"{listed(texts)}. If powers of at most {FLAT} are taken as zero, it is "
        text += (
            "independent of κ at every noise level. " if len(flat) == len(powers)
            else f"independent of κ only at σ = {listed(f'{s:g}' for s in flat)}. " if flat
            else "independent of κ at no noise level. "
        )  # fmt: skip
        above, below = (
            [rows.median("error") for rate, rows in ratio.groups("rate") if (rate >= 1) == larger]
            for larger in (True, False)
        )
        if above and below:
            if max(above) < min(below):
                text += "What matters is the size of the weakest direction relative to the noise. "
            text += (
                "Where σ_k is above σ(√d+√T)/√N, medians over seeds "
                f"are {spread(above)} times the floor, and where it is below, "
                f"{spread(below)} times. "
            )
        text += theorem_sentences(ratio)
        same = [row["error"] <= SAME * row["erm"] for row in table.rows]
        often = np.mean(same) >= 0.95
        due = "due to the estimator and not to" if often else "in part due to"
        return text + (
            f"In {sum(same)} of {len(same)} runs the error of TPGD is at most {SAME} times that of "
            f"the fit with the lowest loss, so the excess is {due} the algorithm."
        )


def rows_asked(row: ResultRow) -> float:
    """Rows per task of Theorem 5.1 with a constant of one: sigma^2 (d + T) k kappa^4 / s_k^2."""
    size = row["rate"] * (math.sqrt(row["d"]) + math.sqrt(row["T"]))  # s_k sqrt(N) / sigma
    return float(row["N"] * (row["d"] + row["T"]) * row["k"] * row["kappa"] ** 4 / size**2)


def theorem_sentences(ratio: ResultTable) -> str:
    """The runs with as many rows as Theorem 5.1 asks for, and the medians of these and others."""
    groups = [rows for _, rows in ratio.groups("noise", "kappa")]
    inside, outside = (
        [rows for rows in groups if (rows.rows[0]["N"] >= rows_asked(rows.rows[0])) == enough]
        for enough in (True, False)
    )
    text = (
        "Theorem 5.1 asks, among other things, for N of the order of σ²(d+T)kκ⁴/σ_k² rows per "
        f"task. With a constant of one, {sum(map(len, inside))} of {len(ratio)} runs meet this "
        "condition"
    )
    if inside:
        ratios = spread(rows.median("error") for rows in inside)
        text += f", and their median errors are {ratios} times the floor"
    if inside and outside:
        ratios = spread(rows.median("error") for rows in outside)
        text += f"; those of the other runs are {ratios} times the floor"
    return f"{text}. "
