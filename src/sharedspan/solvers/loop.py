"""One loop drives every solver.

The loop does the counting, stopping, finiteness checks, trace, callbacks, progress and checkpoints,
and gives the reason why it ended; solvers show the update and nothing else. The messages between
the two are in ``state.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sharedspan.kernels.threads import one_blas_thread
from sharedspan.objective import Objective, Point
from sharedspan.objective.base import UnevaluatedPoint
from sharedspan.persistence.checkpoint import Checkpoints
from sharedspan.progress import ProgressCallback, progress_bar
from sharedspan.solvers.state import (
    CALLED_OFF,
    CONVERGED,
    OUT_OF_ITERATIONS,
    PLANNED,
    STALLED,
    Iterate,
    Record,
    Solver,
    Step,
    Tail,
    Trace,
)

CHECK_EVERY = 10  # iterations between two checks of the tangent gradient, for most solvers
SMALLEST_DAMPING = 2.0**-40

# An objective may rise by rounding alone: by this share of itself, and of its value at the start.
ROUNDING = 1e-10
ROUNDING_OF_START = 1e-20


@dataclass
class SolverResult:
    """Factors, and how the run went."""

    B: np.ndarray  # (d, k)
    W: np.ndarray  # (k, T)
    loss: float
    n_iter: int
    converged: bool
    ending: str  # one of the endings in ``state.py``
    message: str
    n_halved: int
    trace: dict[str, np.ndarray] = field(repr=False)


def run(
    solver: Solver,
    objective: Objective,
    *,
    max_iter: int,
    tol: float,
    stop: Callable[[Point], bool] | None = None,
    callback: Callable[[dict[str, Any]], Any] | None = None,
    tail_average: bool = False,
    verbose: int = 0,
    checkpoint: Checkpoints | None = None,
) -> SolverResult:
    """Drive a solver until its tangent gradient is at most tol |V|_F, or for max_iter steps.

    Parameters
    ----------
    solver : generator
        Yields ``Iterate``, receives ``Step``.
    objective : Objective
    max_iter : int
    tol : float
        With 0, exactly ``max_iter`` iterations are done.
    stop : callable of Point, optional
        Replaces the rule of ``tol``.
    callback : callable of dict, optional
        Called after each iteration with ``iteration``, ``phase``, ``B``, ``W`` and ``point``, which
        gives ``point.loss``; a true return value ends the run.
    tail_average : bool
        Return the mean of the products BW over the second half of ``max_iter`` iterations (the
        rank-k matrix nearest to it) instead of the last iterate.
    verbose : int
        1 shows a progress bar.
    checkpoint : Checkpoints, optional
        Where and how often to save the run, and a saved run to resume, which then ends as it would
        have ended undisturbed. The state is written at the start, now and then, and at the end,
        even if an exception ends the run. A run that is finished returns at once; a run that a
        callback ended continues.

    Returns
    -------
    SolverResult
    """
    if stop is None and tol > 0:

        def stop(point: Point) -> bool:
            return point.tangent_gradient() <= tol * point.norm()

    tail = Tail(max_iter // 2) if tail_average else None
    with (
        one_blas_thread(),
        np.errstate(over="ignore", invalid="ignore"),
        progress_bar(show=verbose > 0, transient=verbose < 2) as progress,
        nullcontext() if checkpoint is None else _flushed(checkpoint),
    ):
        now = _begin(solver, objective, tail, checkpoint)
        if checkpoint is not None:
            checkpoint.update(now.state(), True)
        result = _drive(solver, objective, max_iter, stop, callback, now, progress, checkpoint)
        if checkpoint is not None:
            checkpoint.update(now.state(), True)
        return result


def _begin(
    solver: Solver, objective: Objective, tail: Tail | None, checkpoint: Checkpoints | None
) -> Record:
    """The record at the start of a run, or of the saved run."""
    saved = None if checkpoint is None else checkpoint.begin()
    with nullcontext() if checkpoint is None else checkpoint.interpreting():
        is_new = saved is None or saved.run["iteration"] == 0
    if checkpoint is None or saved is None or is_new:
        first = next(solver)
        step = Step(_point(objective, first), 0, 1.0)
        slack = ROUNDING_OF_START * abs(step.point.loss)
        now = Record(step, tail, slack, Trace(), ending=OUT_OF_ITERATIONS)
        now.trace.add(step, first, math.nan)
        return now
    now = Record.restored(saved, objective, tail)
    if not now.finished:
        next(solver)  # makes its start and its plan; its next step is from the saved point
    checkpoint.set_rng(saved, "now")
    return now


@contextmanager
def _flushed(checkpoint: Checkpoints) -> Iterator[None]:
    """Save the last state of a run that ends with an exception."""
    try:
        yield
    except BaseException:
        checkpoint.flush()
        raise


def _drive(
    solver: Solver,
    objective: Objective,
    max_iter: int,
    stop: Callable[[Point], bool] | None,
    callback: Callable[[dict[str, Any]], Any] | None,
    now: Record,
    progress: ProgressCallback,
    checkpoint: Checkpoints | None,
) -> SolverResult:
    while now.step.iteration < max_iter and not now.finished:
        step = now.step
        remembers = checkpoint is not None and step.memory is not None  # what was read from a file
        try:
            with checkpoint.interpreting() if remembers else nullcontext():  # type: ignore[union-attr]
                proposal = solver.send(step)
        except StopIteration:
            now.ending = PLANNED
            break
        point = _point(objective, proposal)
        if not _acceptable(point, step.point, proposal, now.slack):
            if proposal.watched and stop is not None and stop(step.point):
                now.converged, now.ending = True, CONVERGED  # already there, up to rounding
                break
            now.n_halved += not proposal.full_step
            now.step = Step(step.point, step.iteration, step.damping / 2)
            if now.step.damping < SMALLEST_DAMPING:
                now.ending = STALLED
                break
            continue
        damping = 1.0 if proposal.full_step else step.damping
        now.step = step = Step(point, step.iteration + 1, damping)
        now.made_by = proposal
        if now.tail is not None:
            now.tail.add(step)
        if step.iteration == max_iter and not proposal.monotone:
            now.ending = PLANNED
        check = proposal.watched or step.iteration % CHECK_EVERY == 0 or step.iteration == max_iter
        gradient = math.nan
        if check and stop is not None:
            gradient = point.relative_gradient()
            now.converged = proposal.may_stop and stop(point)
        now.trace.add(step, proposal, gradient)
        progress("fitting", step.iteration, max_iter)
        seen = {"iteration": step.iteration, "phase": proposal.phase, "point": point}
        if callback is not None and callback(seen | {"B": point.B, "W": point.W}):
            now.ending = CALLED_OFF
            break
        if now.converged:
            now.ending = CONVERGED
            break
        if checkpoint is not None:
            checkpoint.update(now.state())
    solver.close()
    result = now.step.point if now.tail is None else now.tail.mean(now.step.point)
    return SolverResult(
        B=result.B,
        W=np.asarray(result.W),
        loss=result.loss,
        n_iter=now.step.iteration,
        converged=now.converged,
        ending=now.ending,
        message=_sentence(now),
        n_halved=now.n_halved,
        trace=now.trace.arrays(),
    )


def _point(objective: Objective, proposal: Iterate) -> Point:
    """The proposal with its loss and gradients."""
    B, W = proposal.B, proposal.W
    if not proposal.monotone:
        return UnevaluatedPoint(B, W, objective)  # type: ignore[return-value]
    if proposal.profiled and np.isfinite(B).all():
        return objective.evaluate_profile(B, W)
    return objective.evaluate(B, W)


def _acceptable(point: Point, last: Point, proposal: Iterate, slack: float) -> bool:
    if not proposal.monotone:
        return bool(np.isfinite(point.B).all() and np.isfinite(point.W).all())
    before = last.value(proposal.balance)
    return point.value(proposal.balance) <= before + ROUNDING * abs(before) + slack


def _sentence(now: Record) -> str:
    """The reason why the run ended, as a sentence."""
    text = (
        f"{now.ending} after {now.step.iteration} iterations, "
        f"tangent gradient {now.step.point.relative_gradient():.1e} of |V|"
    )
    if now.n_halved:
        text += f"; the step was halved {now.n_halved} time{'s' if now.n_halved > 1 else ''}"
    return text + "."
