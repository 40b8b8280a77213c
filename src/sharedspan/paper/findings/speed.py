"""Iterations of first-order methods against the condition number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sharedspan.paper.drawing import add_legend, log_panels, size_ticks
from sharedspan.paper.experiment import Cell
from sharedspan.paper.findings.finding import TPGD_WELL_SET, Finding, draw_medians, listed
from sharedspan.paper.methods import LOSS_1, PHASE_TWO_ONLY, TPGD, WELL_SET, Method
from sharedspan.paper.problem import SimulatedProblem
from sharedspan.paper.table import Exponent, ResultRow, ResultTable
from sharedspan.solvers.tpgd import phase_one_length, start_scale, step_sizes

CAP = 100_000
FROM = 2.0  # kappa from which powers are fitted
LINEAR, NEARLY_FREE = 1.5, 0.25  # powers of kappa
PAPER_TPGD, PAPER_TWO = f"{TPGD}, paper's steps", f"{PHASE_TWO_ONLY}, paper's steps"
PAPER_STEPS: dict[str, Any] = {"options": {"steps": "theory"}, "oracle": True}
METHODS = (  # each with the style of drawing.STYLES that it is drawn in
    (Method(PAPER_TPGD, "tpgd", "", **PAPER_STEPS), "AltMinGD"),
    (TPGD_WELL_SET, "TPGD"),
    (Method(LOSS_1, "gd", WELL_SET, {"step_size": 0.5}), LOSS_1),
    (Method(PAPER_TWO, "phase_two", "", **PAPER_STEPS), "separate"),
    (Method(PHASE_TWO_ONLY, "phase_two", WELL_SET), PHASE_TWO_ONLY),
    (Method("ScaledGD", "scaled_gd", WELL_SET), "GD + SVD"),
    (Method("Anderson", "scaled_gd_anderson", WELL_SET), "NSGD"),
    (Method("variable projection", "variable_projection", WELL_SET), "ERM (ALS)"),
)


class Speed(Finding):
    """Iterations to 1.05 of the error of the fit with the least loss, for κ from 1 to 100.

    σ = 0.01, so that noise does not hide small directions. Steps are well set unless they are
    named the paper's, 1.1/(κ⁵σ₁) in Phase I and 0.1/σ₁ in Phase II.
    """

    name, title = "speed", "which first-order method, and is κ⁻⁵ needed?"
    note = (
        "Gradient methods start from TPGD's small random factors, ScaledGD from factors grown in k "
        "passes, Anderson (accelerated ScaledGD) and variable projection from moments. An "
        "iteration of variable projection makes k + 1 products with each task's data."
    )
    n_seeds, pace = (3, 20), (1.5, 0.0)

    def cells(self, full: bool, seeds: Sequence[int]) -> list[Cell]:
        """Condition numbers from 1; the paper's Phase I, which needs κ⁶ iterations, up to 5."""
        kappas = [1.0, 2.0, 3.0, 10.0, 100.0]
        kappas += [1.5, 5.0, 20.0, 50.0] if full else []
        methods = tuple(method for method, _ in METHODS)
        return [
            Cell(self.name, "", 40, 40, 4, N, seed, noise=0.01, kappa=kappa,
                 methods=methods if kappa <= (5 if full else 3) else methods[1:])
            for seed in seeds for N in (120, 400) for kappa in kappas
        ]  # fmt: skip

    def run(self, cell: Cell) -> Iterator[ResultRow]:
        problem = SimulatedProblem(cell)
        s = problem.sim.singular_values
        length = phase_one_length(
            s, step_sizes(s, "theory", known=True)[0], start_scale(s, None), cell.d
        )
        for method in cell.methods:
            cap = CAP + 2 * length if method.name == PAPER_TPGD else CAP  # for all of its Phase I
            reached = problem.counts(method, cap, averaged=False)["iteration"]
            yield cell.row(method=method.name, iteration=reached, erm=problem.erm)

    def draw(self, table: ResultTable) -> Any:
        """A panel for each N, a curve for each method as far as it was reached."""
        figure, (panels,) = log_panels(1, 2, height=4.4, width=5.0)
        x = np.array(sorted(table.values("kappa")))
        for panel, (N, part) in zip(panels, table.groups("N"), strict=True):
            for method, style in METHODS:
                rows = reached(part.where(method=method.name))
                width = 6.0 if method is TPGD_WELL_SET else 1.6  # others coincide with it
                dash = "--" if PHASE_TWO_ONLY in method.name else "-"
                draw_medians(panel, rows, "iteration", "kappa", method.name, style, width, dash)
            for label, power, start, dash in (("κ", 1, 18.0, ":"), ("κ⁶", 6, 6.0, "-.")):
                guide = x[start * x**power < 2e5]
                panel.plot(guide, start * guide**power, color="black", ls=dash, lw=1,
                           label=f"the slope of {label}")  # fmt: skip
            size_ticks(panel, x)
            panel.set(title=f"N = {N}", xlabel="κ", ylabel="iterations")
        return add_legend(figure)

    def paragraph(self, table: ResultTable) -> str:
        """Powers of κ, the quickest method, and whether a step free of κ does."""
        powers = {name: power_of_kappa(rows) for name, rows in table.groups("method")}
        last = max(table.values("kappa"))
        counts = {
            m: rows.median("iteration") for m, rows in table.where(kappa=last).groups("method")
        }
        best = min(counts, key=lambda method: counts[method])
        text = (
            f"Fitted powers of κ from κ = {FROM:g} on: "
            f"{'; '.join(f'{name} {power}' for name, power in powers.items() if power)}. At κ = "
            f"{last:g} {best} needs the fewest iterations, {counts[best]:.0f}, and TPGD "
            f"{counts[TPGD]:.0f}. "
        )
        own, power = table.where(method=TPGD), powers[TPGD]
        missed = int(np.sum(own.column("iteration") < 0))
        if power and power.value <= LINEAR and not missed:
            text += (
                f"With a Phase I step of 0.5/σ₁, which does not shrink with κ, all {len(own)} runs "
                f"of TPGD arrive, in iterations that grow like κ^{power.value:.2f}: in these runs "
                "the factor κ⁻⁵ is an artefact of the analysis. "
            )
        else:
            text += (
                f"With a Phase I step of 0.5/σ₁, {missed} of {len(own)} runs of TPGD do not arrive "
                "or their iterations grow faster than κ^1.5: a step that shrinks has its reason. "
            )
        both = max(reached(table.where(method=PAPER_TPGD)).values("kappa"), default=None)
        if both is not None:
            slow, fast = (table.median("iteration", kappa=both, method=name)
                          for name in (PAPER_TPGD, TPGD))  # fmt: skip
            text += f"At κ = {both:g} the paper's steps take {slow / fast:.1f} times as many. "
        free = [name for name, fit in powers.items() if fit and abs(fit.value) <= NEARLY_FREE]
        return text + (f"Nearly free of κ: {listed(free)}." if free else "None is free of κ.")


def reached(table: ResultTable) -> ResultTable:
    """The rows of condition numbers at which every run reached the level."""
    return ResultTable(
        row for _, rows in table.groups("kappa") if (rows.column("iteration") > 0).all()
        for row in rows.rows
    )  # fmt: skip


def power_of_kappa(table: ResultTable) -> Exponent | None:
    """The fitted power of kappa in the iterations; None with fewer than two condition numbers."""
    rows = ResultTable(row for row in reached(table).rows if row["kappa"] >= FROM)
    return rows.exponent("kappa", "iteration") if len(rows.values("kappa")) > 1 else None
