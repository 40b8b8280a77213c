"""The curriculum, Algorithm 3 and its corollary, against pooling and weighting."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.estimators.curriculum import CurriculumRegressor
from sharedspan.estimators.shared_span import SharedSpanRegressor
from sharedspan.paper import drawing
from sharedspan.paper.problem import Cell
from sharedspan.paper.table import Row, Table

NAME = "curriculum"
TITLE = "easy tasks first"
D, PER_LEVEL, K, N = 50, 60, 3, 200
LEVELS = {  # noise of the three levels
    "0.1, 0.5, 1": (0.1, 0.5, 1.0),
    "0.1, 0.2, 2": (0.1, 0.2, 2.0),
    "0.5, 0.5, 0.5": (0.5, 0.5, 0.5),
}
POOLED, WEIGHTED = "pooled", "pooled, weighted"
ALGORITHM_3 = ("Algorithm 3 (B_j w)", "Algorithm 3 (B_1 w)")  # its two readings
MODES = {
    "Algorithm 3 (B_j w)": "pair",
    "Algorithm 3 (B_1 w)": "literal",
    "span of level 1 kept": "freeze",
}


def cells(full: bool, seed: int) -> list[Cell]:
    """Three levels of 60 tasks each, by noise."""
    return [
        Cell(NAME, levels, D, 3 * PER_LEVEL, K, N, seed + i)
        for levels in LEVELS for i in range(20 if full else 3)
    ]  # fmt: skip


def run(cell: Cell) -> Iterator[Row]:
    """Every mode on the same rows."""
    levels = np.repeat([1, 2, 3], PER_LEVEL)
    problem = cell.problem(noise=np.repeat(LEVELS[cell.part], PER_LEVEL))
    common: dict[str, Any] = {"rank": K, "fit_intercept": False, "random_state": cell.seed}
    given: dict[str, Any] = {"levels": dict(enumerate(levels.tolist())), **common}
    models: dict[str, Any] = {
        POOLED: SharedSpanRegressor(**common),
        WEIGHTED: CurriculumRegressor(mode="weighted", **given),
    }
    models |= {name: CurriculumRegressor(mode=mode, **given) for name, mode in MODES.items()}
    sim = problem.sim
    for name, model in models.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(sim.X, sim.y, task=sim.task)
        yield cell.row(method=name, error=problem.error(model.coef_.T))


def oracle(levels: str) -> float:
    """Error with B known: k mean(sigma_t^2) / N, which the corollary promises up to a constant."""
    return K * float(np.mean(np.square(LEVELS[levels]))) / N


def draw(table: Table, path: Path) -> None:
    """Errors over the promise, one panel for each set of levels."""
    from sharedspan.report.figures import blank_figure

    parts = table.values("part")
    figure, panels = blank_figure(1, len(parts), (4.4 * len(parts), 3.6))
    for part, panel in zip(parts, panels[0], strict=True):
        here = table.where(part=part)
        names = here.values("method")
        for i, name in enumerate(names):
            ratio = here.where(method=name).column("error") / oracle(part)
            low, middle, high = np.percentile(ratio, (10, 50, 90))
            color = "#D55E00" if name.startswith("Algorithm 3") else "#0072B2"
            panel.barh(i, middle, color=color, alpha=0.85, height=0.6)
            panel.plot([low, high], [i, i], color="black", lw=1.5)
            panel.annotate(f"{middle:.2f}", (high, i), xytext=(5, 0), va="center", fontsize=9,
                           textcoords="offset points")  # fmt: skip
        panel.axvline(1.0, color="black", ls="--", lw=1.2)
        panel.set_yticks(range(len(names)), names)
        panel.invert_yaxis()
        panel.set_xlim(0, panel.get_xlim()[1] * 1.12)
        panel.set(title=f"noise of the levels: {part}", xlabel="error over that with B known")
        if panel is not panels[0][0]:
            panel.set_yticklabels([])
    drawing.save(figure, path)
