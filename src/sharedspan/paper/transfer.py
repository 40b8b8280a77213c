"""Theorem 5.4: new tasks in a learned span, for several distributions of their features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sharedspan.datasets.simulate import simulate
from sharedspan.estimators.transfer import NewTaskRegressor
from sharedspan.paper import drawing
from sharedspan.paper.experiment import Cell, Experiment
from sharedspan.paper.methods import TPGD, WELL_SET, Method
from sharedspan.paper.problem import SimulatedProblem
from sharedspan.paper.table import ResultRow, ResultTable

SOURCE_TASKS: dict[str, Any] = {"d": 50, "T": 40, "k": 5, "N": 400, "noise": 0.4}
TARGETS = 100  # new tasks
SGD, PRINTED = "Algorithm 2", "Algorithm 2 as printed"
LEAST_SQUARES, BEST = "least squares in the span", "best in the span"
DEGREES = 5.0  # of freedom of the heavy tails
ALPHAS = {"Gaussian": 3.0, "heavy tails": 3 * (DEGREES - 2) / (DEGREES - 4)}  # Assumption 3.3
# Distributions of a new task's features, as options of ``simulate``. The t distribution with 5
# degrees of freedom has kurtosis 9 in every direction and no finite moment of order 5 or more.
LAWS: dict[str, dict[str, float]] = {
    "Gaussian": {},
    "heavy tails": {"degrees_of_freedom": DEGREES},
    "anisotropic": {"feature_condition": 10.0},
    "heavy tails, anisotropic": {"degrees_of_freedom": DEGREES, "feature_condition": 10.0},
}
RANK = "rank"  # the part that varies k with M fixed
SPAN = "span"  # the parts that vary the source tasks and measure the span's error alone


def excess_risk(coef: np.ndarray, truth: np.ndarray, H: np.ndarray) -> float:
    """L(v) - L(v*) = (v - v*)'H(v - v*) / 2, the mean over tasks (rows)."""
    away = coef - truth
    return float(np.mean(np.einsum("ti,ij,tj->t", away, H, away)) / 2)


def span_risk(problem: SimulatedProblem, H: np.ndarray) -> float:
    """The expected risk of the best weights in a span learned by the best fit, to first order.

    The fit moves B* by (I - P) Z W'(WW')^-1, P = B*B*', where Z are the errors of separate
    regressions, with variance sigma^2 / N. In the basis of the singular vectors column j has
    variance sigma^2 / (N s_j^2) in each of d - k directions, and E w_j^2 = 1/k for |w| = 1. For
    H = I this is sigma^2 (d - k) mean(1 / s_j^2) / (2N); for other H the best weights take back a
    part.
    """
    B, s = problem.sim.representation, problem.sim.singular_values
    HB = H @ B
    left = H - HB @ np.linalg.solve(B.T @ HB, HB.T)
    off = np.eye(len(H)) - B @ B.T
    cell = problem.cell
    return float(cell.noise**2 * np.mean(s**-2.0) / (2 * cell.N) * np.sum(off * (left @ off)))


def weights_risk(cell: Cell, M: int, span: float) -> float:
    """The expected risk of least squares with k features and M rows, beyond the best weights.

    What lies off the span adds to the noise, and the Gram of M Gaussian rows to its inverse.
    """
    return (cell.noise**2 / 2 + span) * cell.k / (M - cell.k - 1)


def beyond_span(table: ResultTable) -> ResultTable:
    """Risks minus the risk of the best weights in the span, seed by seed."""
    best = {
        (r["part"], r["M"], r["k"], r["seed"]): r["error"] for r in table.where(method=BEST).rows
    }
    return ResultTable(
        row | {"error": row["error"] - best[row["part"], row["M"], row["k"], row["seed"]]}
        for row in table.where(method=(SGD, PRINTED, LEAST_SQUARES)).rows
        if row["M"] >= 20 * row["k"]
    )


def fits_of_new_tasks(law: str, B: np.ndarray, H: np.ndarray) -> dict[str, dict[str, Any]]:
    """Options of NewTaskRegressor for each method.

    As printed, the step is what Theorem 5.4 asks for, eta_0 = 1 / (alpha trace(B'HB)). The alpha
    of Assumption 3.3 is 3 for Gaussian rows and 3 (nu - 2) / (nu - 4) for t with nu degrees of
    freedom.
    """
    alpha = ALPHAS["heavy tails" if "heavy" in law else "Gaussian"]
    step = float(1 / (alpha * np.trace(B.T @ H @ B)))
    return {
        SGD: {"method": "sgd"},
        PRINTED: {"method": "sgd", "sgd_options": {"as_printed": True, "step_size": step}},
        LEAST_SQUARES: {"method": "least_squares"},
    }


class Transfer(Experiment):
    """Theorem 5.4: the excess risk of a new task is at most of the order of the span's error + k/M.

    The error of the span is the excess risk of the best weights in the learned span; M is the
    number of rows of the new task.

    Notes
    -----
    "Algorithm 2" is run with our safeguard, which clips steps that would enlarge a row's own
    residual, and with a step size that is computed from the first rows. "Algorithm 2 as printed"
    has no safeguard and takes the step size of Theorem 5.4, 1/(α trace), for which the truth is
    needed. The coefficients of new tasks have length one.
    """

    name, title = "transfer", "new tasks in a learned span"
    n_seeds, pace = (3, 20), (0.6, 0.0)

    def cells(self, full: bool, seeds: Sequence[int]) -> list[Cell]:
        """The M-term for four distributions of features; the span's term over d, k, T and N."""
        sweeps = {"d": (25, 50, 100), "k": (2, 4, 8), "T": (20, 40, 80), "N": (200, 400, 800, 1600)}
        if not full:
            sweeps = {name: (values[0], values[-1]) for name, values in sweeps.items()}
        parts: list[tuple[str, dict[str, int]]] = [(law, {}) for law in LAWS]
        parts += [(RANK, {"k": k}) for k in sweeps["k"]]
        parts += [(f"{SPAN} {name}", {name: v}) for name, values in sweeps.items() for v in values]
        return [
            Cell(self.name, part, seed=seed, **SOURCE_TASKS | sizes)
            for part, sizes in parts for seed in seeds
        ]  # fmt: skip

    def run(self, cell: Cell) -> Iterator[ResultRow]:
        """Learn a span, then fit 100 new tasks of unit length in it, with M rows each."""
        problem = SimulatedProblem(cell)
        learned = problem.solve(Method(TPGD, "tpgd", WELL_SET), 400)
        B, truth = np.linalg.qr(learned.B)[0], problem.sim.representation
        rng = np.random.default_rng([2, cell.seed])
        weights = rng.standard_normal((TARGETS, cell.k))
        coef = weights / np.linalg.norm(weights, axis=1, keepdims=True) @ truth.T
        sizes = [50, 100, 200, 400, 800, 1600] if cell.part in LAWS else [400]
        if cell.part.startswith(SPAN):
            sizes = []
        most = max(sizes, default=1)
        new = simulate(n_tasks=TARGETS, n_features=cell.d, rank=1, n_samples=most,
                       random_state=rng, **LAWS.get(cell.part, {}))  # fmt: skip
        H = new.covariance
        # The best weights in the span in the limit of infinitely many rows.
        best = B @ np.linalg.solve(B.T @ H @ B, B.T @ H @ coef.T)
        span = span_risk(problem, H)
        for M in sizes or [-1]:
            yield cell.row(method=BEST, M=M, error=excess_risk(best.T, coef, H), predicted=span)
        noise = cell.noise * rng.standard_normal(len(new.y))
        y = np.einsum("ij,ij->i", new.X, coef[new.task]) + noise
        for M in sizes:
            first = np.arange(len(y)) % most < M  # rows of each task
            for method, options in fits_of_new_tasks(cell.part, B, H).items():
                model = NewTaskRegressor(B, fit_intercept=False, **options)
                model.fit(new.X[first], y[first], task=new.task[first])
                yield cell.row(method=method, M=M, error=excess_risk(model.coef_, coef, H),
                               predicted=weights_risk(cell, M, span))  # fmt: skip

    def draw(self, table: ResultTable) -> Any:
        """The M-term for each distribution above, the span's term along each size below."""
        figure, (top, bottom) = drawing.log_panels(2, 4, height=3.3)
        laws = [law for law in LAWS if len(table.where(part=law))]
        for law, panel in zip(laws, top, strict=False):
            rows = table.where(part=law)
            drawing.draw_sweep(panel, rows, "M", floor=False)
            x, span = rows.where(method=BEST).median_curve("predicted", "M")
            _, rest = rows.where(method=LEAST_SQUARES).median_curve("predicted", "M")
            panel.plot(x, span + rest, label="prediction for least squares", **drawing.DASHED)
            panel.set(title=law, xlabel="rows of the new task, M")
        for size, panel in zip(("d", "k", "T", "N"), bottom, strict=True):
            rows = table.where(part=f"{SPAN} {size}")
            drawing.draw_sweep(panel, rows, size, floor=False)
            panel.plot(*rows.median_curve("predicted", size), label="prediction for the span",
                       color="black", ls=":", lw=1.5)  # fmt: skip
            slope = rows.exponent(size).value
            panel.set(title=f"span's own error, slope {slope:+.2f}", xlabel=f"{size} (source)")
        for row in (top, bottom):
            row[0].set_ylabel("excess risk")
        return drawing.add_legend(figure)
