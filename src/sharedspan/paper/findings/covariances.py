"""Features whose covariance differs between tasks: pooled whitening against DFW."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sharedspan.estimators.baselines import PerTaskRegressor
from sharedspan.paper.drawing import DASHED, add_legend, log_panels, size_ticks
from sharedspan.paper.experiment import Cell
from sharedspan.paper.findings.finding import (
    TPGD_WELL_SET,
    Finding,
    draw_medians,
    over_floor,
    settled,
)
from sharedspan.paper.findings.rows import ChangedProblem, spectrum, with_rows
from sharedspan.paper.methods import ALTMIN, TPGD, WELL_SET, Method
from sharedspan.paper.problem import SimulatedProblem
from sharedspan.paper.table import ResultRow, ResultTable
from sharedspan.subspace import orthonormal_basis

CAP = 20_000
DFW, WHOLE, SEPARATE = "DFW, our reading", "the same without splitting", "separate"
RAW, WHITENED = "as given", "whitened"
ALTMIN_WELL_SET = Method(ALTMIN, "altmin_gd", WELL_SET)
COMMON = 100.0  # condition number of the part that all covariances share
DFW_ITERATIONS = 300
ENOUGH = 1.1  # of the least median error
LOOK: dict[tuple[str, str], tuple[Any, ...]] = {  # style, width and dash; four curves coincide
    (TPGD, RAW): ("TPGD", 9.0), (ALTMIN, RAW): ("AltMinGD", 5.0),
    (TPGD, WHITENED): ("GD + Loss 1", 2.0), (ALTMIN, WHITENED): ("ERM (ALS)", 1.0, ":"),
    (DFW, RAW): ("NSGD", 1.6, "--"), (DFW, WHITENED): ("ARMUL",), (WHOLE, WHITENED): ("GD + SVD",),
    (SEPARATE, RAW): ("separate",),
}  # fmt: skip


class Covariances(Finding):
    """Excess risk over the floor when each task's features have a covariance of their own.

    It is A^½ Q_t D Q_t' A^½: A, of condition number 100, is common to all tasks; D has the
    condition number of the horizontal axis, in a random basis Q_t for each task. σ = 0.4, κ = 1.5.
    On the right, iterations to 1.05 of the error of the fit with the least loss.
    """

    name, title = "covariances", "does pooled whitening suffice?"
    note = (
        "Whitening is by the pooled covariance, as `whiten=True` does. DFW (de-bias and "
        "feature-whiten; Zhang, Toso, Anderson and Matni, ICLR 2024) is our reading of its "
        "description and not its authors' code: AltMinGD with W from one half of the rows, halves "
        "drawn afresh in each iteration, and the step in B preconditioned by the inverse "
        "covariance of the other half in each task; after 300 iterations W from all rows."
    )
    n_seeds, pace = (3, 30), (1.8, 0.0)

    def cells(self, full: bool, seeds: Sequence[int]) -> list[Cell]:
        """Condition numbers of the tasks' covariances, one part each."""
        conditions = (1, 3, 10, 30, 100, 300) if full else (1, 10, 100)
        return [
            Cell(self.name, f"{condition}", 30, 40, 3, 150, seed)
            for seed in seeds for condition in conditions
        ]  # fmt: skip

    def run(self, cell: Cell) -> Iterator[ResultRow]:
        problem = differing_covariances(cell, float(cell.part))
        white = problem.whitened()
        problem.erm = white.erm  # the same fit, found sooner
        for setting, version in ((RAW, problem), (WHITENED, white)):
            row = {"setting": setting, "rate": float(cell.part)}
            for method in (TPGD_WELL_SET, ALTMIN_WELL_SET):
                end = settled(version, method, CAP)
                yield cell.row(
                    method=method.name, error=version.error(end.B @ end.W), erm=version.erm,
                    iteration=version.counts(method, CAP, averaged=False)["iteration"], **row,
                )  # fmt: skip
            for name, split in ((DFW, True), (WHOLE, False)):
                if (name, setting) in LOOK:
                    error = version.error(dfw(version, DFW_ITERATIONS, split))
                    yield cell.row(method=name, error=error, **row)
        model = PerTaskRegressor(alpha=0.0, fit_intercept=False)
        error = problem.fit_error(model)
        yield cell.row(method=SEPARATE, setting=RAW, rate=float(cell.part), error=error)

    def draw(self, table: ResultTable) -> Any:
        """Errors of all methods, and iterations of those that iterate to the end."""
        figure, ((left, right),) = log_panels(1, 2, height=4.0, width=5.4)
        for (method, setting), rows in over_floor(table).groups("method", "setting"):
            label, look = f"{method}, {setting}", LOOK[method, setting]
            draw_medians(left, rows, "error", "rate", label, *look)
            if method in (TPGD, ALTMIN):
                draw_medians(right, rows, "iteration", "rate", label, *look)
        left.axhline(1.0, label="floor", **DASHED)
        left.set_ylabel("excess risk over the floor")
        right.set_ylabel("iterations to 1.05 of the least loss's error")
        for panel in (left, right):
            panel.set_xlabel("condition number of each task's covariance")
            size_ticks(panel, table.values("rate"))
        return add_legend(figure)

    def paragraph(self, table: ResultTable) -> str:
        ratio = over_floor(table)
        worst, mild = max(table.values("rate")), min(table.values("rate"))
        hard = ratio.where(rate=worst)
        error = {key: rows.median("error") for key, rows in hard.groups("method", "setting")}
        least, own = min(error.values()), error[TPGD, WHITENED]
        texts = "; ".join(f"{name}, {setting}: {e:.2f}" for (name, setting), e in error.items())
        raw, white = (hard.median("iteration", method=TPGD, setting=s) for s in (RAW, WHITENED))
        verdict = "suffices" if own <= ENOUGH * least else "does not suffice"
        before = ratio.where(rate=mild).median("error", method=DFW, setting=WHITENED)
        after = error[DFW, WHITENED]
        text = (
            f"At condition number {worst:g} the median excess risk over the floor is {texts}. "
            f"Pooled whitening {verdict}: TPGD with it is at {own / least:.2f} of the least. It "
            f"changes TPGD's error by a factor of {own / error[TPGD, RAW]:.2f} and its iterations "
            f"from {raw:.0f} to {white:.0f}. DFW in our reading, on whitened features, goes from "
            f"{before:.2f} of the floor at condition number {mild:g} to {after:.2f}, and to "
            f"{error[WHOLE, WHITENED]:.2f} without splitting the rows"
        )
        if min(after, error[WHOLE, WHITENED]) > ENOUGH * own:
            text += (
                ": it gives all directions of a task the same weight, also those of which its rows "
                "say little, where the likelihood weighs them by the rows"
            )
        return f"{text}."


def differing_covariances(cell: Cell, condition: float) -> ChangedProblem:
    """The cell's problem with features of covariance A^(1/2) Q_t D Q_t' A^(1/2) in task t."""
    sim = SimulatedProblem(cell).sim
    rng = np.random.default_rng([2, cell.seed])
    (common, *_), bases = (
        np.linalg.qr(rng.standard_normal((n, cell.d, cell.d)))[0] for n in (1, cell.T)
    )
    half = common * np.sqrt(spectrum(cell.d, COMMON)) @ common.T
    roots = half @ (bases * np.sqrt(spectrum(cell.d, condition)))
    X = np.einsum("nj,nij->ni", sim.X, roots[sim.task])
    return ChangedProblem(cell, with_rows(sim, X), roots)


def dfw(problem: ChangedProblem, iterations: int, split: bool) -> np.ndarray:
    """Coefficients (d, T) by our reading of DFW.

    W = least squares on one half of the rows; B <- Q of QR(B - eta sum_t S_t^-1 r_t w_t'), with
    r_t = S_t B w_t - c_t and S_t, c_t from the other half, and eta = 1 / (2 lmax(WW')). Without
    ``split`` both steps use all rows.
    """
    cell, sim = problem.cell, problem.sim
    X, y = sim.X.reshape(cell.T, -1, cell.d), sim.y.reshape(cell.T, -1)
    rng = np.random.default_rng([3, cell.seed])
    B = orthonormal_basis(rng.standard_normal((cell.d, cell.k)))
    first: Any = slice(None)
    second: Any = slice(None)
    own = None if split else least_squares(X, y)  # S_t^-1 c_t
    for _ in range(iterations):
        if split:
            first, second = np.array_split(rng.permutation(cell.N), 2)
        W = least_squares(X[:, first] @ B, y[:, first])
        target = least_squares(X[:, second], y[:, second]) if own is None else own
        eta = 0.5 / np.linalg.norm(W, 2) ** 2
        B = orthonormal_basis(B - eta * (B @ W.T - target.T) @ W)
    return B @ least_squares(X @ B, y).T


def least_squares(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Coefficients (T, p) of each task, from X (T, n, p) and y (T, n)."""
    Xt = X.transpose(0, 2, 1)
    return np.linalg.solve(Xt @ X, Xt @ y[:, :, None])[:, :, 0]
