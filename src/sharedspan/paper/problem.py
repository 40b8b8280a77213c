"""Data, objective and solver: what every experiment is made of."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sharedspan.datasets.simulate import Simulation, simulate
from sharedspan.inputs.rows import validate_rows
from sharedspan.objective import Objective, build_objective
from sharedspan.paper.table import Row, blank
from sharedspan.solvers import SOLVERS, needs_rows
from sharedspan.solvers.loop import run
from sharedspan.statistics.rows import collect
from sharedspan.statistics.scaling import Units

PAPER = "paper's steps"
WELL_SET = "well set"
COUNTED = 5  # iterations at least, to tell what one of them costs
# Seconds of a cell, and for each entry of its Grams, as once measured.
PACE = {
    "figure1": (1.0, 0.0), "figure2": (2.0, 0.0), "ablation": (1.5, 0.0), "table1": (0.8, 1.2e-6),
    "table2": (1.0, 4e-6), "transfer": (0.6, 0.0), "curriculum": (1.4, 0.0), "theory": (0.5, 1e-6),
}  # fmt: skip
NEAR_FLOOR = 1.05  # of the error of empirical risk minimisation on the same rows


@dataclass(frozen=True)
class Cell:
    """One simulated problem of a grid: the unit that is run, kept and gone on with."""

    experiment: str
    part: str
    d: int
    T: int
    k: int
    N: int
    seed: int
    noise: float = 0.4
    kappa: float = 1.5
    iterations: int = 0
    methods: tuple[Method, ...] = field(default=(), repr=False)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells its rows from those of other cells."""
        return (self.experiment, self.part, self.d, self.T, self.k, self.N, self.noise, self.kappa,
                self.seed, self.iterations or -1)  # fmt: skip

    @property
    def cost(self) -> float:
        """About how many seconds it takes, for the time that remains."""
        fixed, per_entry = PACE.get(self.experiment, (1.0, 0.0))
        return fixed + per_entry * self.T * self.d**2

    def row(self, **values: Any) -> Row:
        """A row of this cell."""
        names = ("experiment", "part", "d", "T", "k", "N", "seed", "noise", "kappa")
        own = {name: getattr(self, name) for name in names} | {"budget": self.iterations or -1}
        return blank(**own | values)

    def problem(self, **options: Any) -> Problem:
        """The rows of this cell, and what is known of them."""
        settings = {
            "n_tasks": self.T, "n_features": self.d, "rank": self.k, "n_samples": self.N,
            "noise": self.noise, "condition_number": self.kappa, "random_state": self.seed,
        }  # fmt: skip
        return Problem(simulate(**settings | options), self.noise)


@dataclass(frozen=True)
class Method:
    """A solver with its settings; ``oracle`` gives it the true singular values."""

    name: str
    solver: str
    setting: str = ""
    oracle: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, **options: Any) -> Method:
        """The same with more options."""
        return replace(self, options=self.options + tuple(options.items()))


class Problem:
    """Simulated rows; statistics and the reference fit are made when first asked for."""

    def __init__(self, sim: Simulation, noise: float) -> None:
        self.sim, self.noise = sim, noise
        self.V = sim.coef.T  # (d, T)
        self.k = sim.representation.shape[1]

    @functools.cached_property
    def gram(self) -> Objective:
        """The loss on sums per task, features as they are: isotropic already."""
        return self._objective("gram")

    @functools.cached_property
    def rows(self) -> Objective:
        """The loss on rows, for solvers that draw them."""
        return self._objective("rows")

    def _objective(self, kind: str) -> Objective:
        sim = self.sim
        tasks = validate_rows(sim.X, sim.y, sim.task)
        d = sim.X.shape[1]
        return build_objective(collect(tasks, Units(np.zeros(d), np.ones(d), 1.0), False, kind))

    @functools.cached_property
    def minimiser(self) -> tuple[np.ndarray, np.ndarray]:
        """Factors of the rank-k fit of least loss."""
        rng = np.random.default_rng(0)
        budget = {"max_iter": 20_000, "tol": 1e-8}
        result = run(SOLVERS["scaled_gd"](self.gram, self.k, rng, **budget), self.gram, **budget)  # type: ignore[arg-type]
        return result.B, result.W

    @functools.cached_property
    def erm(self) -> float:
        """Error of the fit of least loss."""
        return self.error(np.dot(*self.minimiser))

    def error(self, V: np.ndarray) -> float:
        """The paper's error, the mean over tasks of |v_t - v*_t|^2."""
        return float(np.sum((V - self.V) ** 2) / self.V.shape[1])

    def validation(self, V: np.ndarray) -> float:
        """Expected loss on fresh rows: features are isotropic, so no rows are needed."""
        return 0.5 * self.V.shape[1] * (self.error(V) + self.noise**2)

    def solve(
        self, method: Method, iterations: int, watch: Callable[[dict[str, Any]], Any],
        k: int | None = None, tol: float = 0.0, seed: int = 0,
    ) -> int:  # fmt: skip
        """Run a method for so many iterations, or until ``watch`` says so; the number done."""
        options = dict(method.options)
        k = k or self.k
        if method.oracle:
            s = self.sim.singular_values
            options["singular_values"] = np.concatenate([s, np.full(k - len(s), s[-1])])
        objective = self.rows if needs_rows(method.solver, options) else self.gram
        rng = np.random.default_rng([1, seed])  # not the stream that drew the rows
        budget = {"max_iter": iterations, "tol": tol}
        solver = SOLVERS[method.solver](objective, k, rng, **budget, **options)
        done = run(solver, objective, max_iter=iterations, tol=0.0, callback=watch)
        return done.n_iter


class Tail:
    """The mean of BW over the last half of the iterates so far, iterate by iterate."""

    def __init__(self) -> None:
        self.factors: list[tuple[np.ndarray, np.ndarray]] = []
        self.total: np.ndarray | float = 0.0
        self.dropped = 0

    def add(self, B: np.ndarray, W: np.ndarray) -> np.ndarray:
        self.factors.append((B, W))
        self.total = self.total + B @ W
        while self.dropped < len(self.factors) // 2:
            old_B, old_W = self.factors[self.dropped]
            self.total -= old_B @ old_W
            self.dropped += 1
        return np.asarray(self.total) / (len(self.factors) - self.dropped)


def curve(
    cell: Cell, problem: Problem, method: Method, checkpoints: Sequence[int],
    k: int | None = None, losses: bool = False, average: bool = True,
) -> Iterator[Row]:  # fmt: skip
    """Rows of one run: errors (and losses) at the checkpoints."""
    wanted, tail, found = set(checkpoints), Tail(), []

    def watch(at: dict[str, Any]) -> None:
        mean = tail.add(at["B"], at["W"]) if average else None
        if at["iteration"] not in wanted:
            return
        V = at["B"] @ at["W"]
        row = cell.row(
            method=method.name, setting=method.setting, iteration=at["iteration"],
            error=problem.error(V),
        )  # fmt: skip
        if mean is not None:
            row["tail"] = problem.error(mean)
        if losses:
            row |= {"loss": at["point"].loss, "validation": problem.validation(V)}
        found.append(row)

    problem.solve(method, max(checkpoints), watch, k=k, seed=cell.seed)
    yield from found


def iterations_to_floor(
    problem: Problem, method: Method, cap: int, seed: int, average: bool = False
) -> tuple[float, float, float]:
    """Iterations to 1.05 of the error of the fit of least loss (NaN beyond ``cap``).

    Also the decompositions and the seconds per iteration, both counted after the first.
    """
    target = NEAR_FLOOR * problem.erm
    tail, reached = Tail(), math.nan
    marks: list[tuple[int, float]] = []

    def watch(at: dict[str, Any]) -> bool:
        nonlocal reached
        marks.append((counter[0], time.perf_counter()))
        V = tail.add(at["B"], at["W"]) if average else at["B"] @ at["W"]
        if math.isnan(reached) and problem.error(V) <= target:
            reached = at["iteration"]
        return not math.isnan(reached) and len(marks) > COUNTED

    with counted_decompositions() as counter:
        problem.solve(method, cap, watch, seed=seed, tol=1e-7)
    steps = max(len(marks) - 1, 1)
    (first, began), (last, ended) = marks[0], marks[-1]
    return reached, (last - first) / steps, (ended - began) / steps


DECOMPOSITIONS = ("svd", "qr", "eigh", "eig", "eigvalsh", "pinv")


@contextmanager
def counted_decompositions() -> Iterator[list[int]]:
    """Count calls of NumPy's matrix decompositions, however deep they are made."""
    counter, kept = [0], {name: getattr(np.linalg, name) for name in DECOMPOSITIONS}

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            counter[0] += 1
            return original(*args, **options)

        return counted

    try:
        for name, original in kept.items():
            setattr(np.linalg, name, counting(original))
        yield counter
    finally:
        for name, original in kept.items():
            setattr(np.linalg, name, original)


def geometric(last: int, per_octave: int = 4) -> list[int]:
    """Checkpoints 1..last, evenly spaced on a log scale."""
    steps = np.arange(int(per_octave * math.log2(last)) + 1) / per_octave
    return sorted({*np.round(2.0**steps).astype(int).tolist(), last})
