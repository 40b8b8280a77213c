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
SPOKEN = {  # methods in sentences
    POOLED: "pooling", WEIGHTED: "weighted pooling", FROZEN: "keeping the span of level 1",
}  # fmt: skip
PREDICTIONS = {  # of the error of a task of level j, and what it is made of
    POOLED: "(kσ_j² + k(d-k) mean(σ²)/T)/N",
    ALGORITHM_3[0]: "(k + k(d-k)/T_j) σ_j²/(N-N_j), where N_j is the number of rows of each task "
    "that only give the starting weights (none at the first level)",
}  # fmt: skip
CURRICULUM_MODES = {
    WEIGHTED: "weighted", ALGORITHM_3[0]: "pair", ALGORITHM_3[1]: "literal", FROZEN: "freeze",
}  # fmt: skip


TOTAL = 0  # as a level: all tasks


def error_with_B_known(levels: str, level: int = TOTAL) -> float:
    """K mean(sigma_t^2) / N, the bound of the corollary up to a constant."""
    return K * float(np.mean(np.square(_noise(levels, level)))) / N


def _noise(levels: str, level: int) -> tuple[float, ...]:
    return NOISE_LEVELS[levels] if level == TOTAL else (NOISE_LEVELS[levels][level - 1],)


def predicted_error(cell: Cell, method: str, level: int) -> float:
    """The expected error per task to first order: k weights, and a share of the k(d - k) of a span.

    Pooling learns the span from all tasks, with error k (d - k) mean(sigma^2) / N in all; Algorithm
    3 learns the span of every level from its own tasks, with k (d - k) sigma_j^2 / (N - N_j), N_j
    the rows that it takes for the start, none at the first level. NaN for other methods.
    """
    share = K * (cell.d - K) / PER_LEVEL
    variances = np.square(NOISE_LEVELS[cell.part])
    if method == POOLED:
        errors = (K * variances + share * variances.mean() / len(variances)) / N
    elif method == ALGORITHM_3[0]:
        rows = N - np.array([0, *[max(10 * K, N // 5)] * (len(variances) - 1)])
        errors = (K + share) * variances / rows
    else:
        return float("nan")
    return float(errors.mean() if level == TOTAL else errors[level - 1])


class Curriculum(Experiment):
    """The curriculum, Algorithm 3 and its corollary, compared with pooling and weighting.

    Notes
    -----
    Pooling is one fit of rank k to the tasks of all levels together, with equal weights; weighted
    pooling weights the tasks by the inverse of their noise variance. For the levels after the
    first, the variant "B_j w" uses the span after Phase II of that level, and "B_1 w" the span of
    level 1; the paper's description of the output allows both interpretations.
    """

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
            problem.fit_error(model)
            squares = np.sum((model.coef_.T - problem.V) ** 2, axis=0)
            means = squares.reshape(3, PER_LEVEL).mean(axis=1)
            for level, error in enumerate((means.mean(), *means)):  # TOTAL, then 1, 2, 3
                yield cell.row(method=name, level=level, error=float(error),
                               predicted=predicted_error(cell, name, level))  # fmt: skip

    def draw(self, table: ResultTable) -> Any:
        """Errors over that with B known: a row for all tasks and one for each level."""
        parts, levels = table.values("part"), sorted(table.values("level"))
        figure, grid = blank_figure(
            len(levels), len(parts), (4.4 * len(parts), 2.3 * len(levels))
        )  # fmt: skip
        cells = [(level, part) for level in levels for part in parts]
        for (level, part), panel in zip(cells, (p for row in grid for p in row), strict=True):
            rows = table.where(part=part, level=level)
            for i, (name, runs) in enumerate(rows.groups("method")):
                ratio = runs.column("error") / error_with_B_known(part, level)
                low, middle, high = np.percentile(ratio, (10, 50, 90))
                color = ORANGE if name in ALGORITHM_3 else BLUE
                panel.plot([low, high], [i, i], color=color, lw=2)
                panel.plot(middle, i, "o", color=color, ms=7)
                panel.annotate(f"{middle:.2f}", (high, i), xytext=(5, 0), va="center", fontsize=9,
                               textcoords="offset points")  # fmt: skip
            panel.axvline(1.0, color="black", ls="--", lw=1.2)
            names = rows.values("method")
            first = part == parts[0]
            panel.set_yticks(range(len(names)), names if first else [""] * len(names))
            panel.set_ylim(len(names) - 0.5, -0.5)
            panel.set_xscale("log")
            panel.set_xlim(0.8, 80)
            panel.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
            panel.set_xticks([], minor=True)
            which = "all levels" if level == TOTAL else f"level {level}"
            panel.set_title(f"noise {part}: {which}", fontsize=10)
        for panel in grid[-1]:
            panel.set_xlabel("error over that with B known")
        return figure
