"""The rank, by cross-validation within tasks.

Each of five folds takes a fifth of every task's rows. Folds are taken away from the statistics
and put back (sums), or masked (rows), so no fold needs statistics of its own. Along the path of
ranks each fit starts from the one before, and scaled gradient descent is run until its error is
small against the statistical error.

The smallest rank wins whose loss exceeds the best one's by at most one standard error of that
difference, over (task, fold) pairs. The difference is *paired*: the noise that both ranks share
drops out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from sharedspan.data.canonical import Canonical
from sharedspan.data.folds import assign_folds
from sharedspan.data.statistics import GramStatistics, Statistics
from sharedspan.data.tasks import Tasks
from sharedspan.engine.local import one_blas_thread
from sharedspan.kernels import cpu
from sharedspan.objective import GramObjective, Objective, Point, RowObjective
from sharedspan.solvers.loop import progress_bar, run
from sharedspan.solvers.scaled import grow, scaled_gd

N_FOLDS = 5
PATIENCE = 3  # ranks without improvement after which a fold's path ends
PRECISION = 0.01  # optimisation error allowed, as a share of the statistical error
MAX_ITER = 3000  # reached only without whitening, or where tasks have hardly more rows than ranks


@dataclass(frozen=True)
class RankPath:
    """Cross-validation losses along the path of ranks."""

    ranks: np.ndarray  # (r,)
    loss: np.ndarray  # (r,) mean squared error on held-out rows, the user's units
    difference: np.ndarray  # (r,) to the best rank, per row
    standard_error: np.ndarray  # (r,) of that difference
    rank: int

    def __str__(self) -> str:
        lines = ["rank  held-out loss  excess over best  standard error"]
        for r, loss, gap, error in zip(
            self.ranks, self.loss, self.difference, self.standard_error, strict=True
        ):
            mark = "  <- chosen" if r == self.rank else ""
            lines.append(f"{r:4d}  {loss:13.6g}  {gap:16.3g}  {error:14.3g}{mark}")
        return "\n".join(lines)


def choose_rank(
    tasks: Tasks,
    statistics: Statistics,
    canonical: Canonical,
    noise: np.ndarray | None,
    rng: np.random.Generator,
    largest: int,
    n_folds: int = N_FOLDS,
    verbose: int = 0,
) -> RankPath:
    """Cross-validated rank between 1 and ``largest``; see the head of this file.

    Parameters
    ----------
    tasks : Tasks
    statistics : Statistics
        Of the canonical features; changed and restored on the way.
    canonical : Canonical
    noise : ndarray of shape (T,) or None
        Relative noise variances: losses of a task are divided by its own.
    rng : numpy.random.Generator
    largest : int
    verbose : int
        1 shows a progress bar over the folds.
    """
    folds = assign_folds(tasks, rng, n_folds)
    importance = np.ones(tasks.n_tasks) if noise is None else np.exp(np.log(noise).mean()) / noise
    paths: list[np.ndarray] = []
    rows_held = 0.0
    with progress_bar("choosing the rank", verbose) as tick:
        for fold in range(n_folds):
            held = tasks.select(folds == fold)
            with without(held, folds != fold, statistics, canonical, noise) as objective:
                scorable = objective.n > 0
                losses = [
                    np.where(scorable, importance * loss, 0.0)
                    for loss in _path(objective, held, canonical, largest, scorable)
                ]
                rows_held += float(held.sizes()[scorable].sum())
            paths.append(np.array(losses))
            tick(fold + 1, n_folds)
    length = min(len(path) for path in paths)
    pairs = np.concatenate([path[:length] for path in paths], axis=1)  # (ranks, folds * T)
    return _one_standard_error(pairs, max(rows_held, 1.0) * canonical.units.y_scale**2)


def _one_standard_error(pairs: np.ndarray, rows: float) -> RankPath:
    total = pairs.sum(axis=1)
    gaps = pairs - pairs[np.argmin(total)]
    difference = gaps.sum(axis=1)
    error = np.sqrt(gaps.shape[1]) * gaps.std(axis=1)
    ranks = np.arange(1, len(total) + 1)
    rank = int(ranks[np.argmax(difference <= error)])
    return RankPath(ranks, total / rows, difference / rows, error / rows, rank)


@contextmanager
def without(
    held: Tasks,
    kept: np.ndarray,
    statistics: Statistics,
    canonical: Canonical,
    noise: np.ndarray | None,
) -> Iterator[Objective]:
    """The objective of all rows but the held ones; the statistics are whole again afterwards."""
    if not isinstance(statistics, GramStatistics):
        yield RowObjective(statistics, noise, mask=kept)
        return
    statistics.update(held, canonical.units, canonical.P, sign=-1.0)
    try:
        yield GramObjective(statistics, noise)
    finally:
        statistics.update(held, canonical.units, canonical.P, sign=1.0)


def _path(
    objective: Objective, held: Tasks, canonical: Canonical, largest: int, scorable: np.ndarray
) -> Iterator[np.ndarray]:
    """Held-out squared errors per task (T,) for rank 1, 2, ... until they stop falling."""
    best, since = np.inf, 0
    B, W = np.zeros((objective.n_features, 0)), np.zeros((0, objective.n_tasks))
    for rank in range(1, largest + 1):
        with one_blas_thread():
            start = grow(objective, B, W)
        solver = scaled_gd(objective, rank, start=start)
        result = run(solver, objective, max_iter=MAX_ITER, tol=0, stop=_precise(objective, rank))
        B, W = result.B, result.W
        errors = held_out_errors(objective, held, canonical, B, W)
        yield errors
        loss = float(errors[scorable].sum())
        best, since = (loss, 0) if loss < best else (best, since + 1)
        if since >= PATIENCE:
            return


def _precise(objective: Objective, k: int) -> Callable[[Point], bool]:
    """Stop once the distance to the minimiser is small against the statistical error.

    In canonical units the squared error of a rank-k fit is about sigma^2 k (d + T) / nbar, and
    sigma^2 / nbar about 2 loss / rows.
    """
    rows = float(objective.n.sum())
    share = k * (objective.n_features + objective.n_tasks) / rows

    def stop(point: Point) -> bool:
        return point.tangent_gradient() <= PRECISION * np.sqrt(2 * point.loss * min(share, 1.0))

    return stop


def held_out_errors(
    objective: Objective, held: Tasks, canonical: Canonical, B: np.ndarray, W: np.ndarray
) -> np.ndarray:
    """Weighted squared errors of each task on held-out rows, (T,)."""
    W = W / objective.response
    intercept = objective.intercepts(B @ W)
    V = np.ascontiguousarray((canonical.widen(B) @ W).T)
    out = np.zeros(objective.n_tasks)
    for block in held.blocks():
        X, y = canonical.units.rows(block, None)
        cpu.squared_errors(X, y, block.weight, block.starts, block.ids, V, intercept, out)
    return out
