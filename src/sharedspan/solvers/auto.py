"""The fast solver that suits a problem's size and shape."""

from __future__ import annotations

import numpy as np

from sharedspan.objective import Objective, Point
from sharedspan.solvers.loop import SolverResult, run
from sharedspan.solvers.quasi_newton import variable_projection
from sharedspan.solvers.scaled import scaled_gd_anderson
from sharedspan.solvers.state import Solver
from sharedspan.solvers.tpgd import phase_one

# From 60 features on, with two rows or more for each, the accelerated solver took 0.5 to 1.0 of the
# time of variable projection at ranks 2 to 8, and 1.0 to 2.2 of it with 10 to 30 features.
MANY_FEATURES = 50
PLENTY = 2.0  # rows per feature

# After 20 iterations the tangent gradient was at most 1e-4 |V| from starts in the basin of the one
# minimum there was, and 7e-4 |V| or more if random starts ended in several minima.
TRIAL = 20
SETTLED = 5e-4
RIVALS = 6  # starts that a poor one is compared with
FEW_TASKS = 50  # with so few, up to seven in a hundred starts from moments end in a higher minimum
FEW_RIVALS = 3
PHASE_ONE = 30  # gradient steps of each: large directions have grown, small ones are still open


def auto(
    objective: Objective, k: int, rng: np.random.Generator, *, max_iter: int, tol: float
) -> Solver:
    """Accelerated ScaledGD if it is the faster one, otherwise variable projection.

    A pass of variable projection makes k + 1 products with each task's data, and it needs fewer
    passes. With 50 features or more, two rows or more for each and k above one, the other's
    cheaper passes win; with few rows per task it needs too many of them.

    Both start from the moments. With scarce rows minima are many and that start may be poor: it is
    if 20 iterations of variable projection leave a tangent gradient above 5e-4 |V|. Six short
    runs of TPGD's Phase I from small random starts, each followed by 40 iterations, then compete
    with it, in about 460 passes that count as one iteration, and the lowest of all continues. With
    few tasks, and a row or more for each feature, three such runs compete with that start before
    its first iteration, too.
    """
    d = objective.n_features
    plenty = np.median(objective.n) >= PLENTY * d
    if plenty and d >= MANY_FEATURES and k > 1:
        yield from scaled_gd_anderson(objective, k)
    solver = variable_projection(objective, k)
    step = yield next(solver)
    few = objective.n_tasks <= FEW_TASKS and np.median(objective.n) >= d
    first = FEW_RIVALS if few else 0
    for trial, rivals in ((0, first), (TRIAL, RIVALS)):
        while step.iteration < trial:
            step = yield solver.send(step)
        # A run that is resumed after a trial does not repeat it.
        if step.iteration == trial and rivals and (trial == 0 or not settled(step.point)):
            best = lowest_of_many(objective, k, rng, step.point, rivals, trial, tol)
            solver = variable_projection(objective, k, warm_start=(best.B, best.W))
            step = yield next(solver)
    while True:
        step = yield solver.send(step)


def settled(point: Point) -> bool:
    """Whether a minimum is near."""
    return point.tangent_gradient() <= SETTLED * point.norm()


def lowest_of_many(
    objective: Objective,
    k: int,
    rng: np.random.Generator,
    point: Point,
    rivals: int,
    trial: int,
    tol: float,
) -> SolverResult:
    """The lowest of short runs: from a point after ``trial`` iterations, and from Phase I."""
    starts = [(point.B, point.W, 2 * TRIAL - trial)]
    for _ in range(rivals):
        descent = phase_one(objective, k, rng, max_iter=PHASE_ONE, tol=0.0)
        warm = run(descent, objective, max_iter=PHASE_ONE, tol=0.0)
        starts.append((warm.B, warm.W, 2 * TRIAL))
    results = [
        run(
            variable_projection(objective, k, warm_start=(B, W)),
            objective,
            max_iter=length,
            tol=tol,
        )
        for B, W, length in starts
    ]
    return min(results, key=lambda result: result.loss)
