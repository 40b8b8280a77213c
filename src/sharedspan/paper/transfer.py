"""Theorem 2: the risk of a new task is the span's own error plus k / M."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.datasets.simulate import simulate
from sharedspan.estimators.transfer import NewTaskRegressor
from sharedspan.paper import drawing
from sharedspan.paper.exponents import exponent
from sharedspan.paper.problem import Cell, Method
from sharedspan.paper.table import Row, Table

NAME = "transfer"
TITLE = "new tasks in a learned span"
D, T, K, N, NOISE = 50, 40, 5, 400, 0.4
ROWS = (50, 100, 200, 400, 800, 1600)
TARGETS = 100
SGD, LEAST_SQUARES, BEST = "Algorithm 2", "least squares in the span", "best in the span"
# Laws of a new task's features: options of ``simulate``. A t law of 5 degrees of freedom has
# kurtosis 9 in every direction and no moment above the fifth.
LAWS: dict[str, dict[str, float]] = {
    "Gaussian": {},
    "heavy tails": {"degrees_of_freedom": 5.0},
    "anisotropic": {"feature_condition": 10.0},
    "heavy tails, anisotropic": {"degrees_of_freedom": 5.0, "feature_condition": 10.0},
}
SPAN = "span"  # the part that varies the source tasks and looks at the span's error alone
TPGD = Method("TPGD", "tpgd")


def cells(full: bool, seed: int) -> list[Cell]:
    """The M-term for four laws of features; the span's term over d, k, T and N."""
    base: dict[str, Any] = {"d": D, "T": T, "k": K, "N": N}
    sweeps = {"d": (25, 50, 100), "k": (2, 4, 8), "T": (20, 40, 80), "N": (200, 400, 800, 1600)}
    if not full:
        sweeps = {name: (values[0], values[-1]) for name, values in sweeps.items()}
    seeds = range(seed, seed + (20 if full else 3))
    laws = [Cell(NAME, law, **base, seed=s, noise=NOISE) for law in LAWS for s in seeds]
    ranks = [Cell(NAME, "rank", **base | {"k": k}, seed=s, noise=NOISE)
             for k in sweeps["k"] for s in seeds]  # fmt: skip
    spans = [
        Cell(NAME, f"{SPAN} {name}", **base | {name: v}, seed=s, noise=NOISE)
        for name, values in sweeps.items() for v in values for s in seeds
    ]  # fmt: skip
    return laws + ranks + spans


def run(cell: Cell) -> Iterator[Row]:
    """Learn a span, then 100 new tasks of unit length in it, with M rows each."""
    problem = cell.problem()
    last: dict[str, np.ndarray] = {}
    problem.solve(TPGD, 400, last.update, seed=cell.seed)
    B, truth = np.linalg.qr(last["B"])[0], problem.sim.representation
    law = LAWS.get(cell.part, {})
    rng = np.random.default_rng([2, cell.seed])
    weights = rng.standard_normal((TARGETS, cell.k))
    coef = weights / np.linalg.norm(weights, axis=1, keepdims=True) @ truth.T
    sizes = [400] if cell.part == "rank" else [] if cell.part.startswith(SPAN) else list(ROWS)
    new = simulate(n_tasks=TARGETS, n_features=cell.d, rank=1, n_samples=max(sizes, default=1),
                   random_state=rng, **law)  # fmt: skip
    H = new.covariance
    # The best weights in the span for an endless number of rows.
    best = B @ np.linalg.solve(B.T @ H @ B, B.T @ H @ coef.T)
    for M in sizes or [-1]:
        yield cell.row(method=BEST, M=M, error=risk(best.T, coef, H))
    y = np.einsum("ij,ij->i", new.X, coef[new.task]) + cell.noise * rng.standard_normal(len(new.y))
    number = np.arange(len(y)) % max(sizes, default=1)  # of a row within its task
    for M in sizes:
        first = number < M
        for method, name in ((SGD, "sgd"), (LEAST_SQUARES, "least_squares")):
            model = NewTaskRegressor(B, method=name, fit_intercept=False)
            model.fit(new.X[first], y[first], task=new.task[first])
            yield cell.row(method=method, M=M, error=risk(model.coef_, coef, H))


def risk(coef: np.ndarray, truth: np.ndarray, H: np.ndarray) -> float:
    """Excess risk L(v) - L(v*) = (v - v*)'H(v - v*) / 2, the mean over tasks (rows)."""
    away = coef - truth
    return float(np.mean(np.einsum("ti,ij,tj->t", away, H, away)) / 2)


def draw(table: Table, path: Path) -> None:
    """The M-term for each law above, the span's term along each size below."""
    laws = [law for law in LAWS if len(table.where(part=law))]
    figure, panels = drawing.grid(2, 4, height=3.3)
    for law, panel in zip(laws, panels[0], strict=False):
        here = table.where(part=law)
        for method in here.values("method"):
            drawing.band(panel, here.where(method=method), "error", "M", method, marker=True)
        x = sorted(here.values("M"))
        panel.plot(x, [NOISE**2 * K / 2 / m for m in x], "k--", lw=1.2,
                   label=r"$\sigma^2 k/(2M)$")  # fmt: skip
        panel.set(title=law, xlabel="rows of the new task, M")
        drawing.size_ticks(panel, x)
    for size, panel in zip(("d", "k", "T", "N"), panels[1], strict=True):
        here = table.where(part=f"{SPAN} {size}")
        drawing.band(panel, here, "error", size, BEST, marker=True)
        slope = exponent(here, size)
        panel.set(title=f"span's own error, slope {slope.value:+.2f}", xlabel=f"{size} (source)")
        drawing.size_ticks(panel, sorted(here.values(size)))
    for row in panels:
        row[0].set_ylabel("excess risk")
    drawing.legend(figure, panels[0][0])
    drawing.save(figure, path)
