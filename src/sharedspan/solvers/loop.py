"""One loop drives every solver.

A solver is a generator. It yields an ``Iterate``, a proposal for the factors, and receives the
``Step`` it stands on next: the proposal, or, where the proposal made its objective rise or
overflow, the old place again with half the step. The first iterate is the start, and a solver that
returns has come to the end of its own plan.

The loop owns counting, stopping, finiteness, the trace, callbacks, progress and the reason why
it ended; solvers show the update and nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sharedspan.engine.local import one_blas_thread
from sharedspan.objective import Objective, Point
from sharedspan.subspace import balanced_factors

CHECK_EVERY = 10  # iterations between two looks at the tangent gradient, for most solvers
SMALLEST_DAMPING = 2.0**-40

# Why a run ended. A solver that ends as planned has a plan that knows no convergence.
CONVERGED = "converged"
OUT_OF_ITERATIONS = "stopped at max_iter"
PLANNED = "ended as planned"
CALLED_OFF = "stopped by the callback"
STALLED = "stalled: no step, however small, lowers the objective any further"

# An objective may rise by rounding alone: by this share of itself, and of its value at the start.
ROUNDING = 1e-10
ROUNDING_OF_START = 1e-20


@dataclass(frozen=True)
class Iterate:
    """A solver's proposal.

    ``balance`` is the weight of |B'B - WW'|_F^2 in the objective that the proposal descends on.
    A solver that is still in an early phase sets ``may_stop`` to False. One that searches along a
    line sets ``full_step``: after each success its damping is one again. One whose steps are random
    or see only part of the data is not ``monotone``: its proposals need only be finite.

    A proposal that is ``profiled`` is a B with a guess of W: it becomes the point of that B and of
    the W of least loss, which one pass finds together with the gradient. One that is ``watched``
    comes from a solver of few steps: the loop looks after each whether it may stop.
    """

    B: np.ndarray  # (d, k)
    W: np.ndarray  # (k, T)
    balance: float = 0.0
    phase: str = ""
    may_stop: bool = True
    full_step: bool = False
    monotone: bool = True
    profiled: bool = False
    watched: bool = False


@dataclass(frozen=True)
class ProfiledPoint(Point):
    """A point whose W has the least loss for its B: one pass gave both, and B'R is zero."""

    profile: tuple[float, np.ndarray]  # the loss, and R W' (d, k)

    @property
    def _gradients(self) -> tuple[float, np.ndarray, np.ndarray]:
        return (*self.profile, 0.0 * self.W)


@dataclass(frozen=True)
class Step:
    """Where a solver stands: a point, its number, and the factor on all step sizes."""

    point: Point
    iteration: int
    damping: float


Solver = Generator[Iterate, Step, None]


@dataclass
class SolverResult:
    """Factors, and how the run went."""

    B: np.ndarray  # (d, k)
    W: np.ndarray  # (k, T)
    loss: float
    n_iter: int
    converged: bool
    ending: str  # one of the endings above
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

    Returns
    -------
    SolverResult
    """
    if stop is None and tol > 0:

        def stop(point: Point) -> bool:
            return point.tangent_gradient() <= tol * point.norm()

    tail = _Tail(max_iter // 2 if tail_average else max_iter)
    with (
        one_blas_thread(),
        np.errstate(over="ignore", invalid="ignore"),
        progress_bar("fitting", verbose) as tick,
    ):
        return _drive(solver, objective, max_iter, stop, callback, tail, tick)


def _drive(
    solver: Solver,
    objective: Objective,
    max_iter: int,
    stop: Callable[[Point], bool] | None,
    callback: Callable[[dict[str, Any]], Any] | None,
    tail: _Tail,
    tick: Callable[[int, int], None],
) -> SolverResult:
    first = next(solver)
    step = Step(_point(objective, first), 0, 1.0)
    slack = ROUNDING_OF_START * abs(step.point.loss)
    trace = _Trace()
    n_halved, converged, ending = 0, False, OUT_OF_ITERATIONS
    trace.add(step, first, math.nan)
    while step.iteration < max_iter:
        try:
            proposal = solver.send(step)
        except StopIteration:
            ending = PLANNED
            break
        point = _point(objective, proposal)
        if not _acceptable(point, step.point, proposal, slack):
            if proposal.watched and stop is not None and stop(step.point):
                converged, ending = True, CONVERGED  # already there, but for rounding
                break
            n_halved += not proposal.full_step
            step = Step(step.point, step.iteration, step.damping / 2)
            if step.damping < SMALLEST_DAMPING:
                ending = STALLED
                break
            continue
        step = Step(point, step.iteration + 1, 1.0 if proposal.full_step else step.damping)
        tail.add(step)
        if step.iteration == max_iter and not proposal.monotone:
            ending = PLANNED
        look = proposal.watched or step.iteration % CHECK_EVERY == 0 or step.iteration == max_iter
        gradient = math.nan
        if look and stop is not None:
            gradient = _relative_gradient(point)
            converged = proposal.may_stop and stop(point)
        trace.add(step, proposal, gradient)
        tick(step.iteration, max_iter)
        seen = {"iteration": step.iteration, "phase": proposal.phase, "point": point}
        if callback is not None and callback(seen | {"B": point.B, "W": point.W}):
            ending = CALLED_OFF
            break
        if converged:
            ending = CONVERGED
            break
    solver.close()
    result = tail.mean(step.point)
    return SolverResult(
        B=result.B,
        W=np.asarray(result.W),
        loss=result.loss,
        n_iter=step.iteration,
        converged=converged,
        ending=ending,
        message=_sentence(ending, step, n_halved),
        n_halved=n_halved,
        trace=trace.arrays(),
    )


def _point(objective: Objective, proposal: Iterate) -> Point:
    B, W = proposal.B, proposal.W
    if not proposal.profiled or not np.isfinite(B).all():
        return objective.evaluate(B, W)
    loss, grad_B, W = objective.profile(B, W)
    return ProfiledPoint(B, W, objective, (loss, grad_B))


def _acceptable(point: Point, last: Point, proposal: Iterate, slack: float) -> bool:
    if not proposal.monotone:
        return bool(np.isfinite(point.B).all() and np.isfinite(point.W).all())
    before = last.value(proposal.balance)
    return point.value(proposal.balance) <= before + ROUNDING * abs(before) + slack


class _Tail:
    """The mean of BW over the iterations after ``begin``."""

    def __init__(self, begin: int) -> None:
        self.begin, self.count = begin, 0
        self.total: np.ndarray | float = 0.0

    def add(self, step: Step) -> None:
        if step.iteration > self.begin:
            self.total = self.total + step.point.B @ step.point.W
            self.count += 1

    def mean(self, last: Point) -> Point:
        """The rank-k matrix nearest to the mean, or the last point where there is none."""
        if not self.count:
            return last
        B, W = balanced_factors(np.asarray(self.total) / self.count, last.B.shape[1])
        return last.objective.evaluate(B, W)


class _Trace:
    """One row per accepted iterate; NaN for what was not looked at."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, float, float, str, float]] = []
        self.began = time.perf_counter()

    def add(self, step: Step, made_by: Iterate, gradient: float) -> None:
        loss = objective = math.nan
        if made_by.monotone or not math.isnan(gradient):  # otherwise it would cost a pass
            loss, objective = step.point.loss, step.point.value(made_by.balance)
        seconds = time.perf_counter() - self.began
        self.rows.append((step.iteration, loss, objective, gradient, made_by.phase, seconds))

    def arrays(self) -> dict[str, np.ndarray]:
        names = ("iteration", "loss", "objective", "gradient", "phase", "seconds")
        columns = zip(*self.rows, strict=True)
        return {name: np.array(column) for name, column in zip(names, columns, strict=True)}


def _relative_gradient(point: Point) -> float:
    norm = point.norm()
    return point.tangent_gradient() / norm if norm > 0 else 0.0


def _sentence(ending: str, step: Step, n_halved: int) -> str:
    """Why the run ended, for a person."""
    text = (
        f"{ending} after {step.iteration} iterations, "
        f"tangent gradient {_relative_gradient(step.point):.1e} of |V|"
    )
    if n_halved:
        text += f"; the step was halved {n_halved} time{'s' if n_halved > 1 else ''}"
    return text + "."


@contextmanager
def progress_bar(title: str, verbose: int) -> Iterator[Callable[[int, int], None]]:
    """A function of (done, total) that moves a bar on the error stream, or does nothing."""
    if verbose < 1:
        yield lambda iteration, total: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=verbose < 2) as progress:
        job = progress.add_task(title, total=None)

        def tick(iteration: int, total: int) -> None:
            progress.update(job, completed=iteration, total=total)

        yield tick
