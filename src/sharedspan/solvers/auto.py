"""The fast solver that suits a problem's size and shape."""

from __future__ import annotations

import numpy as np

from sharedspan.objective import Objective, Point
from sharedspan.solvers.accelerated import scaled_gd_anderson
from sharedspan.solvers.loop import Solver, SolverResult, run
from sharedspan.solvers.tpgd import phase_one
from sharedspan.solvers.variable_projection import variable_projection

# On easy problems of 60 and 100 features the accelerated solver took 0.6 to 1.0 of the time of
# variable projection at rank 8, 0.5 to 0.7 at rank 12; with 20 features it took longer at any rank.
LARGE_RANK = 8
FEATURES_PER_RANK = 4
PLENTY = 2.0  # rows per feature, and the k-th over the next eigenvalue of CC', of an easy problem

# After 20 iterations the tangent gradient was at most 1e-4 |V| from starts in the basin of the one
# minimum there was, and 7e-4 |V| or more where random starts ended in several minima.
TRIAL = 20
SETTLED = 5e-4
RIVALS = 6  # starts that a poor one is compared with
PHASE_ONE = 30  # gradient steps of each: large directions have grown, small ones are still open


def auto(
    objective: Objective, k: int, rng: np.random.Generator, *, max_iter: int, tol: float
) -> Solver:
    """Variable projection or, where k is large and all else is easy, accelerated ScaledGD.

    A pass of variable projection makes k + 1 products with each task's data. With k above 8 and up
    to d / 4, two rows or more per feature and a clear gap after the k-th eigenvalue of the
    moments, both solvers need 10 to 20 passes, and the accelerated one's are cheaper; it is slow
    elsewhere.

    Both start from the moments. That start is poor if 20 iterations leave a tangent gradient above
    5e-4 |V|, as they do where rows are scarce and minima many. Six short runs of TPGD's Phase I
    from small random starts, each followed by 40 iterations, then compete with it, in about 460
    passes that count as one iteration, and the lowest of all goes on.
    """
    d = objective.n_features
    values, U = np.linalg.eigh(objective.moments())
    clear = k == d or values[-k] >= PLENTY * values[-k - 1]
    easy = clear and np.median(objective.n) >= PLENTY * d
    large = LARGE_RANK < k <= d / FEATURES_PER_RANK
    choice = scaled_gd_anderson if easy and large else variable_projection
    solver = choice(objective, k, start=(U[:, : -k - 1 : -1], np.zeros((k, objective.n_tasks))))
    step = yield next(solver)
    while step.iteration < TRIAL:
        step = yield solver.send(step)
    if not settled(step.point):
        best = lowest_of_many(objective, k, rng, step.point, tol)
        solver = variable_projection(objective, k, start=(best.B, best.W))
        step = yield next(solver)
    while True:
        step = yield solver.send(step)


def settled(point: Point) -> bool:
    """Whether a minimum is near."""
    return point.tangent_gradient() <= SETTLED * point.norm()


def lowest_of_many(
    objective: Objective, k: int, rng: np.random.Generator, point: Point, tol: float
) -> SolverResult:
    """The lowest of what a point and several starts by Phase I come to in a while."""
    starts = [(point.B, point.W, TRIAL)]
    for _ in range(RIVALS):
        descent = phase_one(objective, k, rng, max_iter=PHASE_ONE, tol=0.0)
        warm = run(descent, objective, max_iter=PHASE_ONE, tol=0.0)
        starts.append((warm.B, warm.W, 2 * TRIAL))
    results = [
        run(variable_projection(objective, k, start=(B, W)), objective, max_iter=length, tol=tol)
        for B, W, length in starts
    ]
    return min(results, key=lambda result: result.loss)
