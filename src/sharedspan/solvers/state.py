"""The messages between a solver and the loop, and the record of a run.

A solver is a generator. It yields an ``Iterate``, a proposal for the factors, and receives the next
``Step``: the proposal, or, if the proposal made its objective rise or overflow, the old point again
with half the step size. The first iterate is the start, and a solver that returns has completed its
own plan.

Most solvers remember nothing but the current point, so that a run can be resumed from a saved
``Step``. A solver that remembers more gives ``Iterate.memory``, a function of no arguments that
returns it as a tuple or list of arrays and numbers. When a run is resumed, the solver makes its
start, which is discarded, and the first ``Step`` holds the saved memory. Arrays of the size of W
are restored by ``objective.to_device``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import numpy as np

from sharedspan.objective import Objective, Point
from sharedspan.persistence.checkpoint import CHECKPOINT_FORMAT, Checkpoint, CheckpointError
from sharedspan.subspace import balanced_factors

# Why a run ended. A solver that ends as planned has a fixed number of steps, converged or not.
CONVERGED = "converged"
OUT_OF_ITERATIONS = "stopped at max_iter"
PLANNED = "ended as planned"
CALLED_OFF = "stopped by the callback"
STALLED = "stalled: no step, however small, lowers the objective any further"

COLUMNS = ("iteration", "loss", "objective", "gradient", "phase", "seconds")

Factors = tuple[np.ndarray, np.ndarray]  # B (d, k) and W (k, T)
Memory = Any  # a tuple or list of arrays, numbers and lists of them


@dataclass(frozen=True)
class Iterate:
    """A solver's proposal.

    ``balance`` is the weight of |B'B - WW'|_F^2 in the objective that the proposal descends on.
    A solver that is still in an early phase sets ``may_stop`` to False. One that searches along a
    line sets ``full_step``: after each success its damping is one again. One whose steps are random
    or see only part of the data is not ``monotone``: its proposals need only be finite.

    A proposal that is ``profiled`` is a B with a guess of W: it becomes the point of that B and of
    the W of least loss, which one pass finds together with the gradient. One that is ``watched``
    comes from a solver of few steps: the loop checks after each whether it may stop.

    ``memory`` is for solvers that remember more than the current point; see the module's docstring.
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
    memory: Callable[[], Memory] | None = None


@dataclass(frozen=True)
class Step:
    """The current point of a solver, its number, and the factor on all step sizes.

    ``memory`` is None, except in the first step of a resumed run.
    """

    point: Point
    iteration: int
    damping: float
    memory: Memory = None

    def recall(self, *fresh: Any) -> Memory:
        """The memory of a resumed run; in a new run, ``fresh``."""
        return fresh if self.memory is None else self.memory


Solver = Generator[Iterate, Step, None]


def any_budget(solver: Callable[..., Solver]) -> Callable[..., Solver]:
    """Let a solver that uses neither randomness nor its budget be called as all solvers are."""

    @wraps(solver)
    def called(
        objective: Objective, k: int, rng: Any = None, *, max_iter: int = 0, tol: float = 0.0,
        **options: Any,
    ) -> Solver:  # fmt: skip
        return solver(objective, k, **options)

    return called


class Tail:
    """The mean of BW over the iterations after ``begin``."""

    def __init__(self, begin: int) -> None:
        self.begin, self.count = begin, 0
        self.total: np.ndarray | float = 0.0

    def add(self, step: Step) -> None:
        if step.iteration > self.begin:
            self.total = self.total + step.point.B @ step.point.W
            self.count += 1

    def mean(self, last: Point) -> Point:
        """The rank-k matrix nearest to the mean, or the last point if no iterate was added."""
        if not self.count:
            return last
        B, W = balanced_factors(np.asarray(self.total) / self.count, last.B.shape[1])
        return last.objective.evaluate(B, W)


@dataclass
class Trace:
    """One row per accepted iterate, the start included; NaN for values that were not computed."""

    rows: list[tuple[int, float, float, float, str, float]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def add(self, step: Step, made_by: Iterate, gradient: float) -> None:
        loss = objective = math.nan
        if made_by.monotone or not math.isnan(gradient):  # otherwise it would cost a pass
            loss, objective = step.point.loss, step.point.value(made_by.balance)
        seconds = time.perf_counter() - self.began
        self.rows.append((step.iteration, loss, objective, gradient, made_by.phase, seconds))

    def arrays(self, length: int | None = None) -> dict[str, np.ndarray]:
        columns = zip(*self.rows[:length], strict=True)
        return {name: np.array(column) for name, column in zip(COLUMNS, columns, strict=True)}

    @classmethod
    def restored(cls, arrays: Mapping[str, np.ndarray]) -> Trace:
        rows = list(zip(*(arrays[name].tolist() for name in COLUMNS), strict=True))
        return cls(rows, time.perf_counter() - rows[-1][-1])


@dataclass
class Record:
    """The current step of a run and its history."""

    step: Step
    tail: Tail | None  # for the mean of the last iterates
    slack: float  # by which an objective may rise
    trace: Trace
    ending: str
    made_by: Iterate | None = None  # the proposal that became the step
    n_halved: int = 0
    converged: bool = False

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do, however many iterations are allowed."""
        return self.converged or self.ending in (PLANNED, STALLED)

    def state(self) -> dict[str, Any]:
        """The state from which the run can be resumed, right after a step was accepted.

        It holds references to arrays that the run does not change, so it is cheap.
        """
        point = self.step.point
        memory = None if self.made_by is None else self.made_by.memory
        return {
            "B": point.B,
            "W": point.W,
            "profile": (point.loss, point.grad_B) if point.profiled else None,
            "iteration": self.step.iteration,
            "damping": self.step.damping,
            "memory": None if memory is None or self.finished else memory(),
            "tail": (0, 0.0) if self.tail is None else (self.tail.count, self.tail.total),
            "slack": self.slack,
            "trace": partial(self.trace.arrays, self.step.iteration + 1),
            "n_halved": self.n_halved,
            "converged": self.converged,
            "ending": self.ending,
        }

    @classmethod
    def restored(cls, saved: Checkpoint, objective: Objective, tail: Tail | None) -> Record:
        """The record of a saved run; a run that a callback ended continues."""
        with CHECKPOINT_FORMAT.interpreting(saved.path):
            return cls._restored(saved, objective, tail)

    @classmethod
    def _restored(cls, saved: Checkpoint, objective: Objective, tail: Tail | None) -> Record:
        """``restored``, where any error says that the file is damaged."""
        state = saved.run
        _require_state(state)
        B, W = state["B"], state["W"]
        if len(B) != objective.n_features or W.shape != (B.shape[1], objective.n_tasks):
            raise CheckpointError(
                f"{str(saved.path)!r} has {len(B)} directions of the features and {W.shape[1]} "
                f"tasks, but the data have {objective.n_features} and {objective.n_tasks}: give "
                "the data of that fit, or fit without the checkpoint."
            )
        if state["profile"] is None:
            point = objective.evaluate(B, W)
        else:
            W, (loss, grad_B) = objective.to_device(W), state["profile"]
            point = Point(B, W, objective, loss, grad_B, 0.0 * W, W @ W.T, profiled=True)
        if tail is not None:
            tail.count, total = state["tail"]
            tail.total = objective.to_device(total) if tail.count else 0.0
        record = cls(
            step=Step(point, state["iteration"], state["damping"], state["memory"]),
            tail=tail,
            slack=state["slack"],
            trace=Trace.restored(state["trace"]),
            n_halved=state["n_halved"],
            converged=state["converged"],
            ending=state["ending"],
        )
        if not record.finished:
            record.ending = OUT_OF_ITERATIONS
        return record


def _require_state(state: Mapping[str, Any]) -> None:
    """Raise unless a saved state has the types and shapes that ``Record.state`` writes."""
    B, W, profile, (count, total) = (state[name] for name in ("B", "W", "profile", "tail"))
    matrices = [B, W, *([] if profile is None else profile[1:]), *([total] if count else [])]
    if not all(isinstance(M, np.ndarray) and M.ndim == 2 and M.dtype.kind == "f" for M in matrices):
        raise ValueError("These are not factors.")
    if profile is not None and (len(profile) != 2 or profile[1].shape != B.shape):
        raise ValueError("The gradient does not have the shape of B.")
    if count and total.shape != (B.shape[0], W.shape[1]):
        raise ValueError("The sum of iterates does not have the shape of BW.")
    types = {"iteration": int, "n_halved": int, "damping": float, "slack": float,
             "converged": bool, "ending": str}  # fmt: skip
    numbers = {**state, "loss": 0.0 if profile is None else profile[0], "count": count}
    for name, kind in (types | {"loss": float, "count": int}).items():
        if type(numbers[name]) is not kind or (kind is int and numbers[name] < 0):
            raise ValueError(f"{name} is {numbers[name]!r}.")
    trace = [state["trace"][name] for name in COLUMNS]
    kinds = [column.dtype.kind for column in trace]
    if {column.shape for column in trace} != {(state["iteration"] + 1,)} or kinds != list("ifffUf"):
        raise ValueError("The trace does not have a row for each iteration.")
