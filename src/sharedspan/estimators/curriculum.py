"""Curriculum learning, the paper's Algorithm 3: the span from easy tasks, carried to hard ones."""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sharedspan.estimators.base import one_of
from sharedspan.estimators.span import Problem, SpanRegressor
from sharedspan.estimators.sums import Solution, SumsRegressor
from sharedspan.inference.noise import shrunken_noise
from sharedspan.inputs.rows import TaskRows
from sharedspan.objective.base import Objective, RowObjective, build_objective
from sharedspan.solvers.gradient import descend
from sharedspan.solvers.loop import Iterate, Solver, SolverResult, run
from sharedspan.solvers.tpgd import BALANCE, tpgd
from sharedspan.statistics.task_statistics import TaskStatistics

MODES = ("freeze", "pair", "literal", "weighted")
MOST_LEVELS = 5  # looked for in the noise
LEVEL_ITERATIONS = 20_000
EM_ROUNDS = 300


class CurriculumRegressor(SpanRegressor, SumsRegressor):
    """Learn the span from the tasks with the least noise, then fit the noisier ones with it.

    Use ``mode="freeze"`` where the easy tasks are enough to learn the span from, and
    ``mode="weighted"`` otherwise: it learns the span from all tasks, each as far as its noise
    allows, and is never much worse. "pair" and "literal" are Algorithm 3 as printed. They refit the
    span on noisier rows, and fewer of them, which loses what the easy tasks taught: in our
    measurements both do worse than pooling everything. They are here for comparison.

    Parameters
    ----------
    rank : int, "auto", "evidence" or "threshold", default="auto"
    mode : {"freeze", "pair", "literal", "weighted"}, default="freeze"
        Level 1 is fitted by TPGD on all its rows, which gives B_1. For the tasks of level j > 1

        - "freeze" keeps B_1 and fits w_t by least squares on all rows;
        - "pair" fits w_t by least squares on the first rows, then runs Phase II from there on the
          other rows, moving B as well: v_t = B_j w_t;
        - "literal" does the same and returns v_t = B_1 w_t;
        - "weighted" is one joint fit with tasks weighted by the inverse noise of their level.
    levels : "auto" or dict of {task: level}, default="auto"
        Levels by increasing noise. "auto" groups the tasks by their noise in a first joint fit.
    fit_intercept, whiten, unseen, task_column, random_state, engine, keep_statistics
        As in SharedSpanRegressor.

    Attributes
    ----------
    levels_ : ndarray of shape (T,)
        The level of each task, 1 for the least noise.
    tasks_, coef_, intercept_, representation_, task_weights_, rank_, rank_path_
        As in SharedSpanRegressor; ``representation_`` is that of level 1 (of all with "weighted").
    noise_variance_ : ndarray of shape (T,)
        Equal within a level.

    References
    ----------
    Ding, Du and Fang (2026), Algorithm 3 and its corollary.
    """

    stored_axes = "levels_:T"

    def __init__(
        self,
        rank: Any = "auto",
        mode: str = "freeze",
        levels: Any = "auto",
        fit_intercept: bool = True,
        whiten: bool = True,
        unseen: str = "error",
        task_column: Any = None,
        random_state: Any = None,
        engine: Any = "local",
        keep_statistics: Any = "auto",
    ) -> None:
        self.rank = rank
        self.mode = mode
        self.levels = levels
        self.fit_intercept = fit_intercept
        self.whiten = whiten
        self.unseen = unseen
        self.task_column = task_column
        self.random_state = random_state
        self.engine = engine
        self.keep_statistics = keep_statistics

    def _kind(self) -> str:
        return "rows" if self.mode in ("pair", "literal") else "auto"

    def _fit_gathered(self, gathered: TaskStatistics, last: Solution | None = None) -> None:
        if isinstance(self.levels, Mapping):
            self._require_levels(gathered.labels)
        problem = self._canonical(gathered)
        rank, self.rank_path_ = self._find_rank(problem)
        k = min(rank, problem.largest_rank)
        objective = build_objective(problem.statistics)
        free = np.maximum(objective.n - k - self.fit_intercept, 0.0)
        rss = self._squares(problem, k, free)
        if isinstance(self.levels, str):
            self.levels_ = noise_levels(rss, free)
            while np.sum(self.levels_ == 1) < k:  # too few to learn a span of k directions from
                self.levels_ = np.maximum(self.levels_ - 1, 1)
        else:
            given = [self.levels[label] for label in gathered.labels]
            self.levels_ = np.unique(given, return_inverse=True)[1] + 1
            self._require_enough_easy_tasks(k)
        if self.mode == "weighted":
            objective = build_objective(
                problem.statistics, level_variances(rss, free, self.levels_)
            )
            fit = _tpgd(objective, k, problem.rng)
            self._store_span(problem, objective.response, fit.B, fit.W, rank)
            rss = objective.squares(fit.B, fit.W)
        else:
            B, V = self._climb(problem, objective, k)
            W = objective.solve_W(B)
            self._store_span(problem, objective.response, B, W, rank, V - B @ W)
            eye = np.eye(objective.n_features)
            rss = objective.squares(eye, V)
        unit = problem.canonical.units.y_scale**2
        self.noise_variance_ = level_variances(rss, free, self.levels_) / unit

    def _require_levels(self, labels: Sequence[Hashable]) -> None:
        missing = [label for label in labels if label not in self.levels]
        if missing:
            raise ValueError(
                f"levels has no entry for {len(missing)} task(s), such as {missing[0]!r}: give "
                "every task a level, or use levels='auto'."
            )
        for label in labels:
            level = self.levels[label]
            if not isinstance(level, numbers.Real) or not math.isfinite(level):
                raise TypeError(
                    f"levels gives task {label!r} the level {level!r}: give finite numbers, "
                    "smaller ones for less noise."
                )

    def _require_enough_easy_tasks(self, k: int) -> None:
        easy = int(np.sum(self.levels_ == 1))
        if easy < k and self.mode != "weighted":
            raise ValueError(
                f"The first level has {easy} task(s), too few for a span of {k} directions: lower "
                "the rank, give more tasks the first level, or use mode='weighted'."
            )

    def _squares(self, problem: Problem, k: int, free: np.ndarray) -> np.ndarray:
        """Residual sums of squares (T,) of joint fits: first unweighted, then by noise per task.

        In the unweighted fit noisy tasks disturb the span, and quiet tasks show it as noise.
        """
        noise = None
        for _ in range(2):
            objective = build_objective(problem.statistics, noise)
            fit = _tpgd(objective, k, problem.rng)
            rss = objective.squares(fit.B, fit.W)
            noise = shrunken_noise(rss, free)
            if not noise.all():
                break
        return rss

    def _climb(
        self, problem: Problem, objective: Objective, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """B_1 (d', k), and the coefficients of all tasks (d', T), level by level."""
        first = np.flatnonzero(self.levels_ == 1)
        easy = build_objective(problem.statistics.take(first))
        # Within its own level a task's scale is another one; B does not depend on it.
        B = _tpgd(easy, k, problem.rng).B
        V = B @ objective.solve_W(B)
        if self.mode == "freeze":
            return B, V
        for level in range(2, self.levels_.max() + 1):
            ids = np.flatnonzero(self.levels_ == level)
            hard = build_objective(problem.statistics.take(ids))
            assert isinstance(hard, RowObjective)
            fit = _refit(hard, B)
            span = fit.B if self.mode == "pair" else B
            V[:, ids] = span @ fit.W / hard.response * objective.response[ids]
        return B, V

    def _validate_parameters(self) -> None:
        super()._validate_parameters()
        one_of("mode", self.mode, MODES)
        if not isinstance(self.levels, Mapping) and self.levels != "auto":
            raise ValueError(
                f"levels={self.levels!r} must be 'auto' or a dict that gives every task a level."
            )

    def _validate_tasks(self, tasks: TaskRows) -> None:
        super()._validate_tasks(tasks)
        if self.mode in ("pair", "literal") and np.diff(tasks.starts).min() < 2:
            label = tasks.labels[int(np.argmin(np.diff(tasks.starts)))]
            raise ValueError(
                f"mode={self.mode!r} splits the rows of every task, and task {label!r} has one "
                "sample: leave such tasks out, or use mode='freeze'."
            )


def _tpgd(objective: Objective, k: int, rng: np.random.Generator) -> SolverResult:
    budget: dict[str, Any] = {"max_iter": LEVEL_ITERATIONS, "tol": 1e-7}
    return run(tpgd(objective, k, rng, **budget), objective, **budget)


def _refit(objective: RowObjective, B: np.ndarray) -> SolverResult:
    """Algorithm 3 at one level: w_t from the first rows of each task, Phase II on the others."""
    k = B.shape[1]
    head = np.zeros(len(objective.weight))
    starts = objective.statistics.starts
    for begin, end in pairwise(starts):
        size = end - begin
        head[begin : begin + min(max(10 * k, size // 5), max(size // 2, 1))] = 1.0
    W = objective.reweighted(head).solve_W(B)
    rest = objective.reweighted(1.0 - head)
    s = np.linalg.svd(B @ W, compute_uv=False)[:k]
    eta = 0.1 / s[0] if s[0] > 0 else 0.0
    length = math.ceil(10 / (eta * s[-1])) if eta * s[-1] > 0 else 1

    def solver() -> Solver:
        step = yield Iterate(B, W, BALANCE, "II")
        yield from descend(step, eta, balance=BALANCE, phase="II")

    return run(solver(), rest, max_iter=min(length, LEVEL_ITERATIONS), tol=0)


def level_variances(rss: np.ndarray, free: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The pooled noise variance of each task's level, (T,)."""
    pooled = np.bincount(levels, rss) / np.maximum(np.bincount(levels, free), 1.0)
    return np.maximum(pooled, np.finfo(float).tiny)[levels]


def noise_levels(rss: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Groups of tasks by noise level, 1 for the least, (T,).

    Log variances are about normal around their level with variance 2 / free_t. The levels are those
    of a mixture, their number is chosen by the Bayesian information criterion, and each task goes
    to its most likely one. Tasks without rows to spare go to the last.
    """
    levels = np.ones(len(rss), dtype=int)
    used = (free > 0) & (rss > 0)
    if used.sum() < 2:
        return levels
    z, variance = np.log(rss[used] / free[used]), 2 / free[used]
    best = math.inf
    for count in range(1, min(MOST_LEVELS, len(z)) + 1):
        likelihood, groups = mixture(z, variance, count)
        score = (2 * count - 1) * math.log(len(z)) - 2 * likelihood
        if score < best - 1e-9:
            best, chosen = score, groups
    levels[:] = chosen.max()
    levels[used] = chosen
    return levels


def mixture(z: np.ndarray, variance: np.ndarray, count: int) -> tuple[float, np.ndarray]:
    """Normal mixture with known variances, by EM: log likelihood and groups 1, 2, ... by mean."""
    mean = np.quantile(z, (np.arange(count) + 0.5) / count)
    share = np.full(count, 1 / count)
    for _ in range(EM_ROUNDS):
        logs = np.log(share) - (z[:, None] - mean) ** 2 / (2 * variance[:, None])
        logs -= np.log(2 * np.pi * variance[:, None]) / 2
        total = np.logaddexp.reduce(logs, axis=1)
        member = np.exp(logs - total[:, None])
        share = np.maximum(member.mean(axis=0), np.finfo(float).tiny)
        weight = member / variance[:, None]
        mean = weight.T @ z / np.maximum(weight.sum(axis=0), np.finfo(float).tiny)
    place = np.argsort(np.argsort(mean))[np.argmax(member, axis=1)]
    return float(total.sum()), np.unique(place, return_inverse=True)[1] + 1
