"""Rows per feature at which Grams become cheaper than rows: `python benchmarks/crossover.py`.

Times one pass R(V) from each kind of statistics, taking turns, and prints the ratio of the medians.
"""

import time

import numpy as np

from sharedspan.inputs.rows import validate_rows
from sharedspan.objective import build_objective
from sharedspan.statistics.task_statistics import Units, collect

SHARES = (0.25, 0.4, 0.5, 0.6, 0.75, 1.0)  # rows per feature
SIZES = ((20000, 20), (4000, 50), (1000, 100), (200, 300))


def seconds_per_pass(objectives, repeats=30):
    times = [[] for _ in objectives]
    V = np.random.default_rng(0).standard_normal((objectives[0].n_features, objectives[0].n_tasks))
    for _ in range(repeats):
        for seconds, objective in zip(times, objectives, strict=True):
            copy = V.T.copy().T
            began = time.perf_counter()
            objective.residuals(copy)
            seconds.append(time.perf_counter() - began)
    return [np.median(seconds[3:]) for seconds in times]


if __name__ == "__main__":
    print("time of a pass from rows over a pass from Grams; below 1 rows are faster")
    print(f"{'T':>6} {'d':>4}  " + "  ".join(f"n/d={share:<5}" for share in SHARES))
    for T, d in SIZES:
        ratios = []
        for share in SHARES:
            n = max(int(share * d), 1)
            rng = np.random.default_rng(0)
            X = rng.standard_normal((n * T, d))
            tasks = validate_rows(X, X[:, 0], np.repeat(np.arange(T), n))
            units = Units.of(tasks, True)
            rows, grams = seconds_per_pass(
                [build_objective(collect(tasks, units, True, kind)) for kind in ("rows", "gram")]
            )
            ratios.append(rows / grams)
        print(f"{T:>6} {d:>4}  " + "  ".join(f"{ratio:<9.2f}" for ratio in ratios), flush=True)
