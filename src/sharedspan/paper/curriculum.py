"""The curriculum, Algorithm 3 of the paper: tasks with little noise are learned first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sharedspan.estimators.curriculum import CurriculumRegressor
from sharedspan.estimators.shared_span import SharedSpanRegressor
from sharedspan.paper.experiment import Cell, Experiment
from sharedspan.paper.problem import SimulatedProblem
from sharedspan.paper.table import ResultRow, ResultTable
from sharedspan.report.figures import BLUE, ORANGE, blank_figure

PER_LEVEL, K, N = 60, 3, 200
NOISE_LEVELS = {
    "0.1, 0.5, 1": (0.1, 0.5, 1.0),
    "0.1, 0.2, 2": (0.1, 0.2, 2.0),
    "0.5, 0.5, 0.5": (0.5, 0.5, 0.5),
}
POOLED, WEIGHTED, FROZEN = "pooled", "pooled, weighted", "span of level 1 kept"
ALGORITHM_3 = ("Algorithm 3 (B_j w)", "Algorithm 3 (B_1 w)")  # two interpretations of its formula
CURRICULUM_MODES = {
    WEIGHTED: "weighted", ALGORITHM_3[0]: "pair", ALGORITHM_3[1]: "literal", FROZEN: "freeze",
}  # fmt: skip


def error_with_B_known(levels: str) -> float:
    """K mean(sigma_t^2) / N, the bound of the corollary up to a constant."""
    return K * float(np.mean(np.square(NOISE_LEVELS[levels]))) / N


class Curriculum(Experiment):
    """The curriculum, Algorithm 3 and its corollary, against pooling and weighting."""

    name, title = "curriculum", "easy tasks first"
    n_seeds, pace = (3, 20), (1.4, 0.0)

    def cells(self, full: bool, seeds: Sequence[int]) -> list[Cell]:
        """Three levels of 60 tasks each, by noise."""
        return [
            Cell(self.name, levels, 50, 3 * PER_LEVEL, K, N, seed)
            for levels in NOISE_LEVELS for seed in seeds
        ]  # fmt: skip

    def run(self, cell: Cell) -> Iterator[ResultRow]:
        """Errors of all methods on the same rows."""
        problem = SimulatedProblem(cell, noise=np.repeat(NOISE_LEVELS[cell.part], PER_LEVEL))
        common: dict[str, Any] = {"rank": K, "fit_intercept": False, "random_state": cell.seed}
        levels = dict(enumerate(np.repeat([1, 2, 3], PER_LEVEL).tolist()))
        models: dict[str, Any] = {POOLED: SharedSpanRegressor(solver="tpgd", **common)}
        for name, mode in CURRICULUM_MODES.items():
            models[name] = CurriculumRegressor(variant=mode, levels=levels, **common)
        for name, model in models.items():
            yield cell.row(method=name, error=problem.fit_error(model))

    def draw(self, table: ResultTable) -> Any:
        """Errors relative to the bound, one panel for each set of levels."""
        parts = table.values("part")
        figure, (panels,) = blank_figure(1, len(parts), (4.4 * len(parts), 3.6))
        for part, panel in zip(parts, panels, strict=True):
            rows = table.where(part=part)
            for i, (name, runs) in enumerate(rows.groups("method")):
                ratio = runs.column("error") / error_with_B_known(part)
                low, middle, high = np.percentile(ratio, (10, 50, 90))
                color = ORANGE if name in ALGORITHM_3 else BLUE
                panel.barh(i, middle, color=color, alpha=0.85, height=0.6)
                panel.plot([low, high], [i, i], color="black", lw=1.5)
                panel.annotate(f"{middle:.2f}", (high, i), xytext=(5, 0), va="center", fontsize=9,
                               textcoords="offset points")  # fmt: skip
            panel.axvline(1.0, color="black", ls="--", lw=1.2)
            names = rows.values("method")
            panel.set_yticks(range(len(names)), names if panel is panels[0] else [""] * len(names))
            panel.invert_yaxis()
            panel.set_xlim(0, panel.get_xlim()[1] * 1.12)
            panel.set(title=f"noise of the levels: {part}", xlabel="error over that with B known")
        return figure
