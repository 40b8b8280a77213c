"""Groups within groups against lme4: `python benchmarks/nested.py` (R with lme4).

10,000 schools in 500 districts with 20 rows each, `y ~ x + (1 | d/s)` and `y ~ x + (1 + x | d/s)`,
by REML. Times are from arrays in memory to the fitted model, the sums over rows included, without
start-up and without reading the data; lme4 without its check of the convergence, which takes longer
than the fit. Turns alternate, and ratios of medians are printed, with both criteria.
"""

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from sharedspan.inputs.rows import validate_rows
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.nested_fit import fit_nested
from sharedspan.mixed_model.nested_objective import NestedObjective
from sharedspan.mixed_model.nested_posterior import nested_posterior
from sharedspan.mixed_model.objective import EffectNames
from sharedspan.mixed_model.structures import Block
from sharedspan.mixed_model.terms import Scaling
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.task_statistics import Units, collect

FORMULAS = {"y ~ x + (1 | d/s)": (0,), "y ~ x + (1 + x | d/s)": (0, 1)}
R = """
suppressMessages(library(lme4))
columns <- matrix(readBin("{path}", "double", {size}), ncol = 4)
data <- data.frame(x = columns[, 1], y = columns[, 2], s = factor(columns[, 3]),
                   d = factor(columns[, 4]))
control <- lmerControl(calc.derivs = FALSE, check.conv.singular = "ignore")
begin <- proc.time()[3]
m <- lmer({formula}, data, control = control)
cat(proc.time()[3] - begin, sprintf("%.6f", REMLcrit(m)))
"""


def draw(districts, schools, rows, seed=0):
    """Rows x and y, the school of each row, and the district of each school."""
    rng = np.random.default_rng(seed)
    parent = np.repeat(np.arange(districts), schools)
    task = np.repeat(np.arange(len(parent)), rows)
    x = rng.standard_normal(len(task))
    top = rng.multivariate_normal([0, 0], [[0.5, 0.1], [0.1, 0.2]], districts)
    own = rng.multivariate_normal([0, 0], [[0.8, -0.2], [-0.2, 0.3]], len(parent))
    effects = (top[parent] + own)[task]
    y = 1 + 0.5 * x + effects[:, 0] + effects[:, 1] * x + 2 * rng.standard_normal(len(task))
    return x, y, task, parent


def ours(members, x, y, task, parent):
    """Seconds, and the REML criterion."""
    blocks = (Block("full", members),)
    begin = time.perf_counter()
    with one_blas_thread():
        rows = validate_rows(x[:, None], y, task)
        units = Units.of(rows, True)
        statistics = collect(rows, units, True, "gram")
        tasks = MixedTasks(statistics, Scaling.of(statistics, True), restricted=True)
        fit = fit_nested(tasks, parent, blocks, blocks, restricted=True)
        canonical = Canonical(units, None)
        nested_posterior(tasks, parent, fit, canonical)
    seconds = time.perf_counter() - begin
    names = EffectNames(["(Intercept)", "x"], ("d", "s"))
    objective = NestedObjective(tasks, parent, fit, canonical, names)
    return seconds, objective.deviance(objective.theta, restricted=True)[0]


def lme4(formula, x, y, task, parent):
    """Seconds, and the REML criterion."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.bin"
        columns = np.array([x, y, task, parent[task]])
        columns.astype("<f8").tofile(path)
        script = R.format(path=path, size=columns.size, formula=formula)
        run = subprocess.run(["Rscript", "-e", script], capture_output=True, text=True, check=True)
    seconds, criterion = run.stdout.split()[-2:]
    return float(seconds), float(criterion)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--size", type=int, nargs=3, default=(500, 20, 20))
    options = parser.parse_args()
    table = draw(*options.size)
    print("districts, schools of each and rows of each:", *options.size, flush=True)
    for formula, members in FORMULAS.items():
        ours(members, *draw(5, 5, 5))  # compiles what is not compiled yet
        here, there = [], []
        for _ in range(options.turns):
            here.append(ours(members, *table))
            there.append(lme4(formula, *table))
        (fast, value), (slow, peer) = (np.median(each, axis=0) for each in (here, there))
        print(
            f"{formula:<24} {fast:.3f} s, lme4 {slow:.2f} s, ratio {fast / slow:.4f}; "
            f"REML criterion {value:.6f}, lme4 {peer:.6f}, relative difference "
            f"{(value - peer) / abs(peer):.1e}",
            flush=True,
        )
    for factor in (1, 4, 16):
        size = options.size[0] * factor // 4, *options.size[1:]
        rows = draw(*size)
        seconds = np.median([ours((0, 1), *rows)[0] for _ in range(options.turns)])
        print(
            f"{len(rows[0]):>9} rows: {seconds:.3f} s, {1e9 * seconds / len(rows[0]):.0f} ns each"
        )


if __name__ == "__main__":
    main()
