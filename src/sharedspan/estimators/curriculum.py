"""Curriculum learning, the paper's Algorithm 3: the span from easy tasks, carried to hard ones."""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from sharedspan.estimators.base import SpanTransformer, TaskRegressor
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.fitting import Needs
from sharedspan.estimators.parameters import (
    DEPRECATED,
    Check,
    above_zero,
    at_least,
    current_value,
    estimator,
    one_of,
    option_names,
    require_rows_to_split,
)
from sharedspan.inference.noise import shrink_noise
from sharedspan.inference.rank_selection import select_rank
from sharedspan.objective import Objective, RowObjective, build_objective
from sharedspan.solvers.gradient import descend
from sharedspan.solvers.loop import SolverResult, run
from sharedspan.solvers.state import Iterate, Solver
from sharedspan.solvers.tpgd import BALANCE, tpgd
from sharedspan.statistics.canonical import Problem

VARIANTS = ("freeze", "pair", "literal", "weighted")
MOST_LEVELS = 5  # that "auto" distinguishes
LEVEL_ITERATIONS = 20_000
EM_ROUNDS = 300


@estimator(
    "rank variant levels level_options fit_intercept whiten unseen task_column random_state "
    "engine keep_statistics verbose mode"
)
class CurriculumRegressor(SpanTransformer, TaskRegressor):
    """Learn the span from the tasks with the lowest noise, then fit the noisier ones with it.

    Use ``variant="freeze"`` if the easy tasks are enough to learn the span from, and
    ``variant="weighted"`` otherwise: it learns the span from all tasks, weighted by the inverse of
    their noise variance. In our measurements its error was never much larger than that of "freeze".
    "pair" and "literal" are Algorithm 3 as printed. They refit the span on noisier rows, and fewer
    of them, which loses the precision of the easy tasks: in our measurements both are worse than a
    joint fit. They are here for comparison.

    Parameters
    ----------
    {rank}
    variant : {"freeze", "pair", "literal", "weighted"}, default="freeze"
        Level 1 is fitted by TPGD on all its rows, which gives B_1. For the tasks of level j > 1

        - "freeze" keeps B_1 and fits w_t by least squares on all rows;
        - "pair" fits w_t by least squares on the first rows, then runs Phase II from there on the
          other rows, moving B as well: v_t = B_j w_t;
        - "literal" does the same and returns v_t = B_1 w_t;
        - "weighted" is one joint fit with tasks weighted by the inverse of the noise variance of
          their level.
    levels : "auto", dict of {task: level} or Series of levels by task, default="auto"
        Levels by increasing noise. "auto" groups the tasks by their noise in a first joint fit.
    level_options : dict, optional
        Inputs of "pair" and "literal" at the levels j = 2, 3, ... of ``levels_``. Each is a number
        for all of them, a sequence with one for each, or a dict of {level: number}, where the
        other levels have the default:

        - "first_rows": N_j, the rows of a task that its first weights are fitted to, in their
          order; by default the larger of 10 k and a fifth of its rows, and at most half of them;
        - "step_size": eta_2j times s_1, the largest singular value of the level's coefficients
          B_1 w_t after that first fit; by default 0.1;
        - "n_iter": K_j, the iterations of Phase II; by default 10 / (eta_2j s_k), and at most
          20,000.
    {fit_intercept, whiten, unseen, task_column, random_state, engine, keep_statistics, verbose}
    mode
        Deprecated: the old name of ``variant``.

    Attributes
    ----------
    levels_ : ndarray of shape (T,)
        The level of each task, 1 for the least noise.
    {tasks_, coef_, intercept_}
    representation_ : ndarray of shape (d, k)
        Orthonormal basis of the span of level 1 (of all tasks with "weighted").
    {task_weights_, rank_, rank_path_}
    noise_variance_ : ndarray of shape (T,)
        Equal within a level.
    {feature_covariance_, coef_names_, n_features_in_, feature_names_in_}

    References
    ----------
    Ding, Du and Fang (2026), Algorithm 3 and its corollary.
    """

    checks: ClassVar = {
        "variant": partial(one_of, known=VARIANTS),
        "level_options": lambda name, value: check_level_options(value),
    }
    renamed: ClassVar = {"mode": "variant"}
    stored_axes = "levels_:T"

    variant: str = "freeze"
    levels: Any = "auto"
    level_options: dict[str, Any] | None = None
    mode: str = DEPRECATED

    @property
    def _variant(self) -> str:
        return current_value(self, "variant")

    def needs(self) -> Needs:
        """Rows for the variants that split them."""
        kind = "rows" if self._variant in ("pair", "literal") else "auto"
        return replace(super().needs(), kind=kind)

    def estimate(self, problem: Problem) -> FittedSpan:
        """The span of the easy tasks, then the others, level by level."""
        if self._variant in ("pair", "literal"):
            require_rows_to_split(problem, f"variant={self._variant!r}", "variant='freeze'")
        if not isinstance(self.levels, str):
            self._require_levels(problem.labels)
        rank, rank_path = select_rank(problem, self.rank, self.fit_intercept, verbose=self.verbose)
        k = min(rank, problem.largest_rank)
        objective = build_objective(problem.statistics)
        free = np.maximum(objective.n - k - self.fit_intercept, 0.0)
        rss = self._squares(problem, k, free)
        levels = self._find_levels(problem, rss, free, k)
        off_span = None
        if self._variant == "weighted":
            noise = level_variances(rss, free, levels)
            objective = build_objective(problem.statistics, noise)
            fit = _tpgd(objective, k, problem.rng, self.verbose)
            B, W = fit.B, fit.W
            rss = objective.squares(B, W)
        else:
            B, V = self._climb(problem, objective, levels, k)
            W = objective.solve_W(B)
            off_span = V - B @ W
            rss = objective.squares(np.eye(objective.n_features), V)
        return FittedSpan.from_factors(
            problem, objective.response, B, W, rank, off_span=off_span, rank_path=rank_path,
            variance=level_variances(rss, free, levels), extra={"levels": levels},
        )  # fmt: skip

    def _find_levels(
        self, problem: Problem, rss: np.ndarray, free: np.ndarray, k: int
    ) -> np.ndarray:
        """The level of each task, (T,), from 1: as given, or by the noise of joint fits."""
        if isinstance(self.levels, str):
            levels = noise_levels(rss, free)
            while np.sum(levels == 1) < k:  # too few to learn a span of k directions from
                levels = np.maximum(levels - 1, 1)
            return levels
        by_task = levels_by_task(self.levels)
        given = [by_task[label] for label in problem.labels]
        levels = np.unique(given, return_inverse=True)[1] + 1
        easy = int(np.sum(levels == 1))
        if easy < k and self._variant != "weighted":
            raise ValueError(
                f"The first level has {easy} task(s), too few for a span of {k} directions: lower "
                "the rank, give more tasks the first level, or use variant='weighted'."
            )
        return levels

    def _require_levels(self, labels: Sequence[Hashable]) -> None:
        levels = levels_by_task(self.levels)
        missing = [label for label in labels if label not in levels]
        if missing:
            raise ValueError(
                f"levels has no entry for {len(missing)} task(s), such as {missing[0]!r}: give "
                "every task a level, or use levels='auto'."
            )
        for label in labels:
            level = levels[label]
            if not isinstance(level, numbers.Real) or not math.isfinite(level):
                raise TypeError(
                    f"levels gives task {label!r} the level {level!r}: give finite numbers, "
                    "smaller ones for less noise."
                )

    def _squares(self, problem: Problem, k: int, free: np.ndarray) -> np.ndarray:
        """Residual sums of squares (T,) of joint fits: first unweighted, then by noise per task.

        In the unweighted fit noisy tasks disturb the span, and quiet tasks show it as noise.
        """
        noise = None
        for _ in range(2):
            objective = build_objective(problem.statistics, noise)
            fit = _tpgd(objective, k, problem.rng, self.verbose)
            rss = objective.squares(fit.B, fit.W)
            noise, _ = shrink_noise(rss, free)
            if not noise.all():
                break
        return rss

    def _climb(
        self, problem: Problem, objective: Objective, levels: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """B_1 (d', k), and the coefficients of all tasks (d', T), level by level."""
        first = np.flatnonzero(levels == 1)
        easy = build_objective(problem.statistics.take(first))
        # Within its own level a task's scale is another one; B does not depend on it.
        B = _tpgd(easy, k, problem.rng, self.verbose).B
        V = B @ objective.solve_W(B)
        if self._variant == "freeze":
            return B, V
        options = options_by_level(self.level_options, int(levels.max()))
        for level, chosen in options.items():
            ids = np.flatnonzero(levels == level)
            _require_remaining_rows(problem, ids, chosen)
            hard = build_objective(problem.statistics.take(ids))
            assert isinstance(hard, RowObjective)
            fit = refit_level(hard, B, chosen)
            span = fit.B if self._variant == "pair" else B
            V[:, ids] = span @ fit.W / hard.response * objective.response[ids]
        return B, V

    def check_combination(self) -> None:
        """Raise for levels that are neither "auto" nor a dict, and for options without a use."""
        if not (isinstance(self.levels, str) and self.levels == "auto"):
            levels_by_task(self.levels)
        if self.level_options and self._variant not in ("pair", "literal"):
            raise ValueError(
                "level_options are only used by variant='pair' and 'literal', not by "
                f"variant={self._variant!r}: leave them out."
            )


def levels_by_task(levels: Any) -> Mapping[Hashable, Any]:
    """The parameter ``levels`` as a mapping: a pandas Series gives its levels by its index."""
    if isinstance(levels, Mapping):
        return levels
    if getattr(levels, "ndim", 0) == 1 and hasattr(levels, "index") and hasattr(levels, "items"):
        if not levels.index.is_unique:
            twice = levels.index[levels.index.duplicated()].tolist()[0]
            raise ValueError(
                f"levels is a Series with several levels for task {twice!r}: give one."
            )
        return dict(levels.items())
    given = repr(levels) if isinstance(levels, (str, list)) else f"a {type(levels).__name__}"
    raise ValueError(
        f"levels={given} does not say which task has which level: give 'auto', a dict "
        "{task: level}, or a pandas Series with the level of each task at its label. For levels "
        "in the order of the tasks, use dict(zip(tasks, levels))."
    )


def _tpgd(objective: Objective, k: int, rng: np.random.Generator, verbose: int) -> SolverResult:
    budget: dict[str, Any] = {"max_iter": LEVEL_ITERATIONS, "tol": 1e-7}
    return run(tpgd(objective, k, rng, **budget), objective, **budget, verbose=verbose)


def refit_level(objective: RowObjective, B: np.ndarray, options: Mapping[str, Any]) -> SolverResult:
    """Algorithm 3 at one level: w_t from the first rows of each task, Phase II on the others.

    Parameters
    ----------
    objective : RowObjective
        The tasks of the level.
    B : ndarray of shape (d, k)
        The span of level 1.
    options : mapping
        "first_rows" (N_j), "step_size" (eta_2j s_1) and "n_iter" (K_j), if not the defaults.
    """
    k = B.shape[1]
    head = np.zeros(len(objective.statistics.weight))
    starts = objective.statistics.starts
    for begin, end in pairwise(starts):
        size = end - begin
        first = min(max(10 * k, size // 5), max(size // 2, 1))
        head[begin : begin + options.get("first_rows", first)] = 1.0
    W = objective.reweighted(head).solve_W(B)
    rest = objective.reweighted(1.0 - head)
    s = np.linalg.svd(B @ W, compute_uv=False)[:k]
    eta = options.get("step_size", 0.1) / s[0] if s[0] > 0 else 0.0
    length = math.ceil(10 / (eta * s[-1])) if eta * s[-1] > 0 else 1
    length = options.get("n_iter", min(length, LEVEL_ITERATIONS))

    def solver() -> Solver:
        step = yield Iterate(B, W, BALANCE, "II")
        yield from descend(step, eta, balance=BALANCE, phase="II")

    return run(solver(), rest, max_iter=length, tol=0)


LEVEL_OPTIONS: dict[str, Check] = {
    "first_rows": partial(at_least, smallest=1, kind=numbers.Integral),
    "n_iter": partial(at_least, smallest=1, kind=numbers.Integral),
    "step_size": above_zero,
}


def check_level_options(options: Any) -> None:
    """Raise for an unknown option or an invalid value at any level."""
    for name, value in option_names("level_options", options, tuple(LEVEL_OPTIONS)).items():
        for number in _values(value):
            LEVEL_OPTIONS[name](name, number)


def _values(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value]


def options_by_level(options: dict[str, Any] | None, last: int) -> dict[int, dict[str, Any]]:
    """The options of each level from 2 to ``last``."""
    chosen: dict[int, dict[str, Any]] = {level: {} for level in range(2, last + 1)}
    there = f"the tasks have levels 2 to {last}" if last > 1 else "the tasks have one level"
    for name, value in (options or {}).items():
        if isinstance(value, Mapping):
            of_level = dict(value)
        elif isinstance(value, (list, tuple, np.ndarray)):
            if len(value) != last - 1:
                raise ValueError(f"{name} has {len(value)} value(s), but {there}: give one each.")
            of_level = dict(zip(chosen, value, strict=True))
        else:
            of_level = dict.fromkeys(chosen, value)
        for level, number in of_level.items():
            if level not in chosen:
                raise ValueError(f"{name} has the level {level!r}, but {there}.")
            chosen[level][name] = number
    return chosen


def _require_remaining_rows(problem: Problem, ids: np.ndarray, options: Mapping[str, Any]) -> None:
    """Raise if the first rows are all rows of a task."""
    sizes = np.diff(problem.rows.starts)[ids]
    first = options.get("first_rows", 1)
    if first >= sizes.min():
        label = problem.labels[ids[int(np.argmin(sizes))]]
        raise ValueError(
            f"first_rows={first} leaves no rows for Phase II: task {label!r} has "
            f"{sizes.min()} rows. Give a smaller number."
        )


def level_variances(rss: np.ndarray, free: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The pooled noise variance of each task's level, (T,)."""
    pooled = np.bincount(levels, rss) / np.maximum(np.bincount(levels, free), 1.0)
    return np.maximum(pooled, np.finfo(float).tiny)[levels]


def noise_levels(rss: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Groups of tasks by noise level, 1 for the least, (T,).

    Log variances are about normal around their level with variance 2 / free_t. The levels are the
    components of a mixture, their number is chosen by the Bayesian information criterion, and each
    task gets its most likely one. Tasks without residual degrees of freedom get the last.
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
