"""Iterations of first-order methods against the condition number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sharedspan.diagnosis.text import listed
from sharedspan.paper.drawing import add_legend, log_panels, size_ticks
from sharedspan.paper.experiment import Cell
from sharedspan.paper.findings.finding import TPGD_WELL_SET, Finding, draw_medians
from sharedspan.paper.methods import LOSS_1, LOSS_2, PHASE_TWO_ONLY, TPGD, WELL_SET, Method
from sharedspan.paper.problem import SimulatedProblem
from sharedspan.paper.table import Exponent, ResultRow, ResultTable
from sharedspan.solvers.tpgd import phase_one_length, start_scale, step_sizes

CAP = 100_000
FROM = 2.0  # kappa from which powers are fitted
LINEAR, NEARLY_FREE = 1.5, 0.25  # powers of kappa
PAPER_TPGD, PAPER_TWO = f"{TPGD}, paper's steps", f"{PHASE_TWO_ONLY}, paper's steps"
PAPER_STEPS: dict[str, Any] = {"options": {"steps": "theory"}, "oracle": True}
PROJECTION = "variable projection"
METHODS: tuple[tuple[Method, str, float, str], ...] = (  # with style, width and dash
    (Method(PAPER_TPGD, "tpgd", "", **PAPER_STEPS), TPGD, 1.6, ":"),
    (TPGD_WELL_SET, TPGD, 6.0, "-"),  # others coincide with it
    (Method(LOSS_1, "gd", WELL_SET, {"step_size": 0.5}), LOSS_1, 1.6, "-"),
    (Method(PAPER_TWO, "phase_two", "", **PAPER_STEPS), LOSS_2, 1.6, ":"),  # a balanced loss too
    (Method(PHASE_TWO_ONLY, "phase_two", WELL_SET), LOSS_2, 1.6, "--"),
    (Method("ScaledGD", "scaled_gd", WELL_SET), "MoM (Niu)", 1.6, "-"),
    (Method("Anderson", "scaled_gd_anderson", WELL_SET), "LF-FO", 1.6, "-"),
    (Method(PROJECTION, "variable_projection", WELL_SET), "ERM (ALS)", 1.6, "-"),
)


class Speed(Finding):
    """Iterations are counted until the error is at most 1.05 times that of the lowest-loss fit.

    κ is from 1 to 100, and σ = 0.01, so that noise does not hide small directions. Steps are well
    set, except in the curves labelled "paper's steps", where they are 1.1/(κ⁵σ₁), at most 0.5/σ₁,
    in Phase I and 0.1/σ₁ in Phase II. TPGD is run with the paper's steps only up to κ = 5, and the
    length of its Phase I is the one that our solver chooses.

    Notes
    -----
    Gradient methods start from TPGD's small random factors. ScaledGD starts from factors to which
    each of k eigendecompositions adds one direction. Anderson (accelerated ScaledGD) and variable
    projection start from the leading eigenvectors of a matrix of moments, a single
    eigendecomposition. ScaledGD and Anderson also invert k × k matrices in each iteration. AltMinGD
    and GD + SVD are not in this comparison, because each of their iterations needs a matrix
    decomposition. Variable projection, a quasi-Newton method, needs one as well and is shown for
    reference only: each of its iterations makes k + 1 products with each task's data and a QR
    decomposition of B.
    """

    name, title = "speed", "which first-order method is fastest, and is the factor κ⁻⁵ needed?"
    n_seeds, pace = (3, 20), (1.5, 0.0)

    def cells(self, full: bool, seeds: Sequence[int]) -> list[Cell]:
        """Condition numbers from 1; the paper's Phase I, which needs κ⁶ iterations, up to 5."""
        kappas = [1.0, 2.0, 3.0, 10.0, 100.0]
        kappas += [1.5, 5.0, 20.0, 50.0] if full else []
        methods = tuple(method for method, *_ in METHODS)
        return [
            Cell(self.name, "", 40, 40, 4, N, seed, noise=0.01, kappa=kappa,
                 methods=methods if kappa <= (5 if full else 3) else methods[1:])
            for seed in seeds for N in (120, 400) for kappa in kappas
        ]  # fmt: skip

    def run(self, cell: Cell) -> Iterator[ResultRow]:
        problem = SimulatedProblem(cell)
        for method in cell.methods:
            whole = 2 * paper_phase_one(cell.row()) if method.name == PAPER_TPGD else 0
            cap = CAP + whole  # Phase I may take half of it
            reached = problem.counts(method, cap, averaged=False)["iteration"]
            yield cell.row(method=method.name, iteration=reached, erm=problem.erm)

    def draw(self, table: ResultTable) -> Any:
        """A panel for each N, a curve for each method as far as it was reached."""
        figure, (panels,) = log_panels(1, 2, height=4.4, width=5.0)
        x = np.array(sorted(table.values("kappa")))
        for panel, (N, part) in zip(panels, table.groups("N"), strict=True):
            for method, style, width, dash in METHODS:
                rows, label = reached(part.where(method=method.name)), labelled(method.name, table)
                draw_medians(panel, rows, "iteration", "kappa", label, style, width, dash)
            for label, power, start, dash in (("κ", 1, 18.0, ":"), ("κ⁶", 6, 6.0, "-.")):
                guide = x[start * x**power < 2e5]
                panel.plot(guide, start * guide**power, color="black", ls=dash, lw=1,
                           label=f"the slope of {label}")  # fmt: skip
            size_ticks(panel, x)
            panel.set(title=f"N = {N}", xlabel="κ", ylabel="iterations")
        return add_legend(figure)

    def paragraph(self, table: ResultTable) -> str:
        """Powers of κ, the quickest method, and whether a step independent of κ is enough."""
        powers = {name: power_of_kappa(rows) for name, rows in table.groups("method")}
        last = max(table.values("kappa"))
        counts = {
            m: rows.median("iteration") for m, rows in table.where(kappa=last).groups("method")
        }
        lean = [method for method in counts if method != PROJECTION]
        quickest = min(lean, key=lambda method: counts[method])
        fits = (f"{labelled(name, table)} {power}" for name, power in powers.items() if power)
        text = f"From κ = {FROM:g} on, the numbers of iterations grow with these fitted powers of "
        text += f"κ: {'; '.join(fits)}. At κ = {last:g} TPGD needs {counts[TPGD]:.0f} iterations"
        if quickest != TPGD:
            text += f". {quickest} needs {counts[quickest]:.0f}, the fewest of all methods whose "
            text += "iterations need no decomposition"
        if PROJECTION in counts:
            text += f"; {PROJECTION} needs {counts[PROJECTION]:.0f}"
        text += f". {phase_one_sentence(table)}{well_set_sentences(table, powers[TPGD])}"
        both = max(reached(table.where(method=PAPER_TPGD)).values("kappa"), default=None)
        if both is not None:
            slow, fast = (table.median("iteration", kappa=both, method=name)
                          for name in (PAPER_TPGD, TPGD))  # fmt: skip
            text += f"At κ = {both:g} TPGD takes {slow / fast:.0f} times as many iterations with "
            text += "the paper's steps as with well-set ones. "
        free = [name for name, fit in powers.items() if fit and abs(fit.value) <= NEARLY_FREE]
        if not free:
            return f"{text}No method's iterations are nearly independent of κ."
        return text + (
            f"The iterations of {listed(free)} are nearly independent of κ (a power of at most "
            f"{NEARLY_FREE})."
        )


def paper_phase_one(row: ResultRow) -> int:
    """Iterations of Phase I with the paper's steps, for the sizes and the condition number."""
    s = np.geomspace(1.0, 1.0 / row["kappa"], row["k"])
    s *= np.sqrt(row["T"] / np.sum(s**2))
    return phase_one_length(
        s, step_sizes(s, "theory", known=True)[0], start_scale(s, None), row["d"]
    )


def before_phase_two(table: ResultTable) -> ResultTable:
    """The runs with the paper's steps that reach the level in Phase I."""
    rows = table.where(method=PAPER_TPGD).rows
    return ResultTable(row for row in rows if 0 < row["iteration"] <= paper_phase_one(row))


def labelled(name: str, table: ResultTable) -> str:
    """The name of a method for readers: TPGD in Phase I if none of its counts is beyond it."""
    early = name == PAPER_TPGD and len(before_phase_two(table)) == len(table.where(method=name))
    return f"{name} (in Phase I)" if early else name


def phase_one_sentence(table: ResultTable) -> str:
    """How many runs with the paper's steps reach the target before Phase II begins."""
    runs, early = table.where(method=PAPER_TPGD), before_phase_two(table)
    if not len(runs):
        return ""
    text = "With the paper's steps TPGD reaches the target error before Phase II begins in "
    text += f"{len(early)} of {len(runs)} runs"
    if len(early) < len(runs):
        return f"{text}. "
    last = max(runs.values("kappa"))
    rows = runs.where(kappa=last)
    return text + (
        f" (at κ = {last:g} after {rows.median('iteration'):,.0f} iterations of a Phase I of "
        f"{paper_phase_one(rows.rows[0]):,}), so its iterations grow with κ like those of Phase "
        "I, which needs about 1/(η₁σ_k) = κ⁶/1.1 of them with a step of η₁ = 1.1/(κ⁵σ₁). "
    )


def well_set_sentences(table: ResultTable, power: Exponent | None) -> str:
    """Whether a step of Phase I independent of κ is enough, and what Phase II adds to it."""
    own, plain = (
        {(row["N"], row["kappa"], row["seed"]): row["iteration"] for row in rows.rows}
        for rows in (table.where(method=TPGD), table.where(method=LOSS_1))
    )
    text = ""
    if plain:
        gaps = [abs(count - plain[run]) for run, count in own.items()]
        text = f"With well-set steps, TPGD needs as many iterations as {LOSS_1}, which is TPGD's "
        text += f"own Phase I, in {gaps.count(0)} of {len(gaps)} runs"
        text += (
            f"; in the other runs the numbers differ by at most {max(gaps)}. " if any(gaps)
            else ". "
        )  # fmt: skip
    missed = sum(count < 0 for count in own.values())
    if power and power.value <= LINEAR and not missed:
        return text + (
            "With a Phase I step of 0.5/σ₁, which does not shrink with κ, TPGD's iterations grow "
            f"like κ^{power.value:.2f}: the factor κ⁻⁵ is not needed in these runs; a proof is "
            "another matter. "
        )
    return text + (
        f"With a Phase I step of 0.5/σ₁, {missed} of {len(own)} runs of TPGD do not reach the "
        f"target error or their iterations grow faster than κ^{LINEAR}: a step that shrinks has "
        "its reason. "
    )


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
