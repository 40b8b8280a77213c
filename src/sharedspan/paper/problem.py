"""The simulated problem of a cell: its rows, its objective, and solvers run on it."""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from sharedspan.datasets.simulate import simulate
from sharedspan.inputs.rows import validate_rows
from sharedspan.objective import Objective, build_objective
from sharedspan.paper.experiment import Cell
from sharedspan.paper.methods import ETA_1, Method
from sharedspan.paper.table import ResultRow
from sharedspan.solvers import SOLVERS, needs_rows
from sharedspan.solvers.gradient import descend
from sharedspan.solvers.loop import Iterate, Solver, SolverResult, run
from sharedspan.solvers.tpgd import BALANCE, step_sizes
from sharedspan.statistics.task_statistics import Units, collect

COUNTED = 5  # minimum number of iterations from which the cost of one is computed
NEAR_FLOOR = 1.05  # of the error of empirical risk minimisation on the same rows
DECOMPOSITIONS = ("svd", "qr", "eigh", "eig", "eigvalsh", "pinv")


class SimulatedProblem:
    """The rows of a cell; task statistics and the reference fit are computed on first use."""

    def __init__(self, cell: Cell, noise_degrees: float | None = None, **options: Any) -> None:
        """Options of ``simulate``; ``noise_degrees`` are those of noise with a t distribution."""
        settings = {
            "n_tasks": cell.T, "n_features": cell.d, "rank": cell.k, "n_samples": cell.N,
            "noise": cell.noise, "condition_number": cell.kappa or None, "random_state": cell.seed,
        }  # fmt: skip
        self.cell = cell
        self.sim = simulate(**settings | options)
        if noise_degrees is not None:
            quiet = simulate(**settings | options | {"noise": 0.0})
            unit = math.sqrt((noise_degrees - 2) / noise_degrees)
            t = np.random.default_rng([3, cell.seed]).standard_t(noise_degrees, len(quiet.y))
            self.sim = replace(quiet, y=quiet.y + cell.noise * unit * t)
        self.V = self.sim.coef.T  # (d, T)
        self.isotropic = bool((self.sim.covariance == np.eye(cell.d)).all())

    @functools.cached_property
    def gram(self) -> Objective:
        """The loss on task statistics; features are not scaled, as they are isotropic already."""
        return self._objective("gram")

    @functools.cached_property
    def rows(self) -> Objective:
        """The loss on rows, for solvers that sample rows."""
        return self._objective("rows")

    def _objective(self, kind: str) -> Objective:
        sim, d = self.sim, self.cell.d
        rows = validate_rows(sim.X, sim.y, sim.task)
        return build_objective(collect(rows, Units(np.zeros(d), np.ones(d), 1.0), False, kind))

    @functools.cached_property
    def minimiser(self) -> tuple[np.ndarray, np.ndarray]:
        """Factors of the rank-k fit with the smallest loss."""
        budget: dict[str, Any] = {"max_iter": 20_000, "tol": 1e-8}
        solver = SOLVERS["scaled_gd"](self.gram, self.cell.k, np.random.default_rng(0), **budget)
        result = run(solver, self.gram, **budget)
        return result.B, result.W

    @functools.cached_property
    def erm(self) -> float:
        """Error of the fit with the smallest loss."""
        return self.error(np.dot(*self.minimiser))

    def error(self, V: np.ndarray) -> float:
        """The paper's error, the mean over tasks of |v_t - v*_t|^2.

        Correlated features measure it by their covariance, as a prediction does.
        """
        away = V - self.V
        weighed = away if self.isotropic else self.sim.covariance @ away
        return float(np.sum(away * weighed) / self.V.shape[1])

    def fit_error(self, model: Any) -> float:
        """Error of an estimator fitted to the rows; its warnings are not shown."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(self.sim.X, self.sim.y, task=self.sim.task)
        return self.error(model.coef_.T)

    def validation(self, V: np.ndarray) -> float:
        """Expected loss on fresh rows: features are isotropic, so no rows are needed."""
        return 0.5 * self.V.shape[1] * (self.error(V) + self.cell.noise**2)

    def solve(
        self, method: Method, iterations: int, watch: Callable[[dict[str, Any]], Any] | None = None,
        k: int | None = None, tol: float = 0.0,
    ) -> SolverResult:  # fmt: skip
        """Run a method for ``iterations`` iterations, or until ``watch`` returns true."""
        options, k = dict(method.options), k or self.cell.k
        if method.oracle:
            s = self.sim.singular_values
            options["singular_values"] = np.concatenate([s, np.full(k - len(s), s[-1])])
            if options.get("step_size") == ETA_1:
                options["step_size"] = step_sizes(s, "theory", known=True)[0] * s[0]
        objective = self.rows if needs_rows(method.solver, options) else self.gram
        rng = np.random.default_rng([1, self.cell.seed])  # independent of the rows
        solver = SOLVERS[method.solver](objective, k, rng, max_iter=iterations, tol=tol, **options)
        return run(solver, objective, max_iter=iterations, tol=0.0, callback=watch)

    def phase_two(
        self, B: np.ndarray, W: np.ndarray, length: int, watch: Callable[[dict[str, Any]], Any]
    ) -> None:
        """Run Phase II with the paper's step from (B, W) for ``length`` iterations."""
        _, eta = step_sizes(self.sim.singular_values, "theory", known=True)

        def solver() -> Solver:
            step = yield Iterate(B, W, BALANCE)
            yield from descend(step, eta, balance=BALANCE)

        run(solver(), self.gram, max_iter=length, tol=0.0, callback=watch)

    def converged_error(self, method: Method, tolerance: float) -> float:
        """Error once the tangent gradient has fallen to ``tolerance`` times |V|."""
        every = 1 if method.solver in ("als", "svp") else 10

        def stop(at: dict[str, Any]) -> bool:
            point, due = at["point"], at["iteration"] % every == 0
            return due and point.tangent_gradient() <= tolerance * point.norm()

        end = self.solve(method, 20_000, stop, tol=tolerance)
        return self.error(end.B @ end.W)

    def curve(
        self, method: Method, checkpoints: Sequence[int], k: int | None = None, losses: bool = False
    ) -> Iterator[ResultRow]:
        """Rows of one run: errors at the checkpoints, and losses or errors of the tail average."""
        tail, rows = TailAverage(), []

        def watch(at: dict[str, Any]) -> None:
            mean = self.V if losses else tail.add(at["B"], at["W"])
            if at["iteration"] not in checkpoints:
                return
            V = at["B"] @ at["W"]
            measures = {"loss": at["point"].loss, "validation": self.validation(V)}
            rows.append(self.cell.row(
                method=method.name, setting=method.setting, iteration=at["iteration"],
                error=self.error(V), **measures if losses else {"tail": self.error(mean)},
            ))  # fmt: skip

        self.solve(method, max(checkpoints), watch, k=k)
        yield from rows

    def counts(self, method: Method, cap: int, averaged: bool = True) -> dict[str, Any]:
        """Iterations to 1.05 of the error of the fit with the smallest loss, or -1 beyond ``cap``.

        By the last iterate (``iteration``) and by the tail average (``averaged``), with the
        decompositions and the seconds per iteration, counted after the first.
        """
        target, tail = NEAR_FLOOR * self.erm, TailAverage()
        reached = {"iteration": -1} | ({"averaged": -1} if averaged else {})
        marks: list[tuple[int, float]] = []

        def watch(at: dict[str, Any]) -> bool:
            marks.append((counter[0], time.perf_counter()))
            means = {"iteration": at["B"] @ at["W"]}
            if averaged:
                means["averaged"] = tail.add(at["B"], at["W"])
            for name, V in means.items():
                if reached[name] < 0 and self.error(V) <= target:
                    reached[name] = at["iteration"]
            return min(reached.values()) >= 0 and len(marks) > COUNTED

        with counted_decompositions() as counter:
            self.solve(method, cap, watch, tol=1e-7)
        steps = max(len(marks) - 1, 1)
        (first, began), (last, ended) = marks[0], marks[-1]
        costs = {"decompositions": (last - first) / steps, "seconds": (ended - began) / steps}
        return {"erm": self.erm, **costs, **reached}


class TailAverage:
    """The mean of BW over the last half of the iterates so far, iterate by iterate."""

    def __init__(self) -> None:
        self.factors: list[tuple[np.ndarray, np.ndarray]] = []
        self.total: np.ndarray | float = 0.0
        self.dropped = 0

    def add(self, B: np.ndarray, W: np.ndarray) -> np.ndarray:
        """Add an iterate and return the mean."""
        self.factors.append((B, W))
        self.total = self.total + B @ W
        while self.dropped < len(self.factors) // 2:
            old_B, old_W = self.factors[self.dropped]
            self.total -= old_B @ old_W
            self.dropped += 1
        return np.asarray(self.total) / (len(self.factors) - self.dropped)


@contextmanager
def counted_decompositions() -> Iterator[list[int]]:
    """Count all calls of NumPy's matrix decompositions in the block."""
    counter, originals = [0], {name: getattr(np.linalg, name) for name in DECOMPOSITIONS}

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            counter[0] += 1
            return original(*args, **options)

        return counted

    try:
        for name, original in originals.items():
            setattr(np.linalg, name, counting(original))
        yield counter
    finally:
        for name, original in originals.items():
            setattr(np.linalg, name, original)


def geometric(last: int, per_octave: int = 4) -> list[int]:
    """Checkpoints 1..last, evenly spaced on a log scale."""
    steps = np.arange(int(per_octave * math.log2(last)) + 1) / per_octave
    return sorted({*np.round(2.0**steps).astype(int).tolist(), last})
