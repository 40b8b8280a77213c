"""What a solver and the loop say to each other.

A solver is a generator. It yields an ``Iterate``, a proposal for the factors, and receives the
``Step`` it stands on next: the proposal, or, where the proposal made its objective rise or
overflow, the old place again with half the step. The first iterate is the start, and a solver that
returns has come to the end of its own plan.

Most solvers remember nothing but where they stand, so that a run can go on from a saved ``Step``.
A solver that remembers more says so in ``Iterate.memory``, a function of no arguments that returns
it, as a tuple or list of arrays and numbers. When a run goes on, the solver makes its start, which
is thrown away, and then the first ``Step`` brings that memory back. Arrays of the size of W come
back through ``objective.to_device``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.objective import Point

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
    comes from a solver of few steps: the loop looks after each whether it may stop.

    ``memory`` is for solvers that remember more than where they stand; see the head of this file.
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
    """Where a solver stands: a point, its number, and the factor on all step sizes.

    ``memory`` is None, but for the first step of a run that goes on.
    """

    point: Point
    iteration: int
    damping: float
    memory: Memory = None

    def recall(self, *fresh: Any) -> Memory:
        """The memory of a run that goes on; in a run from its start, ``fresh``."""
        return fresh if self.memory is None else self.memory


Solver = Generator[Iterate, Step, None]
