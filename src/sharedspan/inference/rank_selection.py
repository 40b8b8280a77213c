"""Rank selection: by cross-validation within tasks, by evidence, or by a spectral threshold.

``rank="auto"`` cross-validates. Each of five folds has a fifth of every task's rows, which are
subtracted from the statistics (Grams) or masked (rows). Along the path of ranks each fit starts
from the previous one, and runs until its error is small relative to the statistical error: by
variable projection if every task has three rows or more for each feature, and else by scaled
gradient descent. If that takes long although every task has rows to spare, variable projection
finishes the fit: the rows of tasks determine some directions far better than others.

The fit of a fold has a fifth fewer rows than the final fit, so held-out losses are biased against
directions that all rows together support. Burman's correction removes that bias. Cross-validation
cannot distinguish the ranks whose excess over the best one is below one standard error of that
difference, over (task, fold) pairs. The difference is *paired*: the noise that both ranks share
cancels. Among these ranks the one with the largest evidence is selected.

If every other rank is worse than the selected one by more than ``DECISIVE`` standard errors, more
folds or more tasks would change nothing: the standard errors only fall. So the first fold may be
the only one, and of very many tasks a random sample comes first, with ten tasks or more for each
feature, so that a direction which pays in all tasks is found in the sample too. A direction of a
few tasks may be missing in the sample: it is missed no longer if the fit of the selected rank to
all tasks leaves residuals with a direction that is stronger than in the sample. Without a clear
answer all folds of all tasks are used.

``rank="evidence"`` uses the marginal likelihood of all rows alone, with weights w_t ~ N(0, C) in
the span of the fit and its axes uniform: see ``log_evidence``. It is the cheapest method, and the
most precise one if its model holds. ``rank="threshold"`` counts the singular values of the separate
fits above a noise level, and needs tasks with many more rows than features.

References
----------
Burman (1989), "A comparative study of ordinary cross-validation, v-fold cross-validation and the
repeated learning-testing methods". Minka (2000), "Automatic choice of dimensionality for PCA".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sharedspan.inference.noise import relative_precision
from sharedspan.inference.rank_evidence import ROUNDING, log_evidence, sum_of_squares
from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.objective import Objective, Point, build_objective
from sharedspan.progress import ProgressCallback, progress_bar
from sharedspan.solvers.initialization import separate_fits
from sharedspan.solvers.loop import OUT_OF_ITERATIONS, SolverResult, run
from sharedspan.solvers.quasi_newton import variable_projection
from sharedspan.solvers.scaled import grow, scaled_gd
from sharedspan.solvers.state import Factors
from sharedspan.statistics.canonical import Problem
from sharedspan.statistics.folds import N_FOLDS

RANK_METHODS = ("auto", "evidence", "threshold")
PATIENCE = 3  # ranks without improvement after which a path ends
DECISIVE = 4.0  # standard errors
FEWEST_PAIRS = 200  # squared errors from which a standard error is trusted that far
SAMPLE = 1000  # tasks
SAMPLE_PER_FEATURE = 10  # tasks
STEPS = 1  # of the fit to all tasks whose residuals are compared with those of the sample
STRONGER = 1.2  # the largest eigenvalue of the residuals per task, over that in the sample
PRECISION = 0.01  # largest optimisation error, as a share of the statistical error
STEPS_OF_DESCENT = 100  # most fits need 20 to 100
MAX_ITER = 3000  # of descent, where tasks have hardly more rows than ranks or very different noise
STEPS_OF_PROJECTION = 300
ROWS_TO_SPARE = 1.0  # per feature, in the smallest task, for variable projection
ROWS_FOR_EXACT_WEIGHTS = 3.0  # per feature, for variable projection from the start
ROWS_PER_FEATURE = 3  # with fewer in any task, the threshold mistakes noise for directions


@dataclass(frozen=True)
class RankPath:
    """The criterion of a selection method along the ranks; a smaller ``loss`` is better.

    Attributes
    ----------
    ranks : ndarray of shape (r,)
    loss : ndarray of shape (r,)
        "auto": mean squared error on held-out rows, in the user's units. "evidence": minus the log
        evidence per row. "threshold": the largest singular value that the rank leaves out.
    difference : ndarray of shape (r,)
        "auto": excess over the best rank, corrected for the smaller number of rows in the folds.
        "evidence": excess over the best rank, of all rows, in logs. "threshold": excess over the
        threshold.
    standard_error : ndarray of shape (r,)
        "auto": standard error of the difference. Zero for the other methods.
    rank : int
        The selected rank.
    method : {"auto", "evidence", "threshold"}
    """

    ranks: np.ndarray
    loss: np.ndarray
    difference: np.ndarray
    standard_error: np.ndarray
    rank: int
    method: str = "auto"
    stored_axes = "ranks:r loss:r difference:r standard_error:r"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of loss, difference and, if there is one, standard error."""
        return {
            "auto": ("held-out loss", "excess over best", "standard error"),
            "evidence": ("-log evidence per row", "below best, in logs"),
            "threshold": ("singular value left out", "excess over threshold"),
        }[self.method]

    def __str__(self) -> str:
        lines = ["  ".join(("rank", *self.columns))]
        for i, r in enumerate(self.ranks):
            numbers = (self.loss[i], self.difference[i], self.standard_error[i])
            cells = [
                f"{number:{len(name)}.{6 if j == 0 else 3}g}"
                for j, (name, number) in enumerate(zip(self.columns, numbers, strict=False))
            ]
            mark = "  <- chosen" if r == self.rank else ""
            lines.append("  ".join((f"{r:4d}", *cells)) + mark)
        return "\n".join(lines)


def select_rank(
    problem: Problem,
    rank: Any,
    centred: bool,
    noise: np.ndarray | None = None,
    verbose: int = 0,
) -> tuple[int, RankPath | None]:
    """The given rank, or the selected one with its path.

    Parameters
    ----------
    problem : Problem
    rank : int, "auto", "evidence" or "threshold"
    centred : bool
        Whether tasks have intercepts.
    noise : ndarray of shape (T,), optional
        Relative noise variances of the tasks.
    verbose : int
        1 shows a progress bar.
    """
    if not isinstance(rank, str):
        return int(rank), None
    if problem.largest_rank == 1:
        return 1, None
    if rank == "threshold":
        objective = build_objective(problem.statistics)
        separate, ranks = separate_fits(objective)
        deviation = noise_deviation(objective, separate, ranks, centred)
        path = threshold_path(separate / objective.response, objective, deviation)
    elif rank == "evidence" or problem.rows is None:  # without rows there are no folds
        path = evidence_path(problem, noise)
    else:
        path = cross_validated_path(problem, noise, verbose)
    return path.rank, path


def cross_validated_path(problem: Problem, noise: np.ndarray | None, verbose: int = 0) -> RankPath:
    """The path of ranks with the cross-validated rank; see the module docstring.

    Parameters
    ----------
    problem : Problem
    noise : ndarray of shape (T,) or None
        Relative noise variances, by which the losses of the tasks are divided.
    verbose : int
        1 shows a progress bar over the folds.
    """
    # A copy of the generator, so that the fit starts as if its rank had been given.
    rng = deepcopy(problem.rng)
    with progress_bar(show=verbose > 0, transient=verbose < 2) as progress:
        count = max(SAMPLE, SAMPLE_PER_FEATURE * problem.statistics.n_features)
        if 2 * count <= problem.statistics.n_tasks and isinstance(problem.rows, TaskRows):
            ids = np.sort(rng.choice(problem.statistics.n_tasks, count, replace=False))
            sampled = Folded(problem.take(ids), None if noise is None else noise[ids], rng)
            path, decisive = sampled.path(progress)
            if decisive and sampled.is_representative(path.rank, problem, noise):
                return path
        if isinstance(problem.rows, TaskRows):  # not on a cluster, but maybe on a GPU
            problem = replace(problem, statistics=problem.statistics.gather_local())
        return Folded(problem, noise, rng).path(progress)[0]


class Folded:
    """Cross-validation of the rank of a problem, fold by fold."""

    def __init__(
        self, problem: Problem, noise: np.ndarray | None, rng: np.random.Generator
    ) -> None:
        self.problem, self.noise = problem, noise
        self.importance = relative_precision(noise, problem.statistics.n_tasks)
        self.folds = problem.make_folds(rng)
        self.objective = build_objective(problem.statistics, noise)
        self.fits = Fits(self.objective, problem.largest_rank)  # to all rows
        self.held_out: list[np.ndarray] = []  # squared errors (ranks, T) of each fold so far
        self.excess_fits: list[np.ndarray] = []  # the same fits on all rows
        self.scored = np.ones(problem.statistics.n_tasks, dtype=bool)  # in every fold
        self.rows_held = 0.0

    def path(self, progress: ProgressCallback) -> tuple[RankPath, bool]:
        """The path of ranks, and whether it is decisive; then not all folds may have been used."""
        for fold in range(N_FOLDS):
            self.add(fold)
            progress("choosing the rank", fold + 1, N_FOLDS)
            if fold in (0, N_FOLDS - 1):
                path = self.selected()
                if is_decisive(path, self.held_out, self.problem.largest_rank):
                    return path, True
        return path, False

    def is_representative(self, rank: int, problem: Problem, noise: np.ndarray | None) -> bool:
        """Whether residuals of all tasks have no stronger direction than those of this sample."""
        whole = build_objective(problem.statistics.gather_local(), noise)
        start = self.fits[rank][0], np.zeros((rank, whole.n_tasks))
        solver = variable_projection(whole, rank, warm_start=start)
        fitted = run(solver, whole, max_iter=STEPS, tol=0)
        here = _leading_residual(self.objective, *self.fits[rank])
        there = _leading_residual(whole, fitted.B, fitted.W)
        return there <= STRONGER * here

    def add(self, fold: int) -> None:
        """Fit the path of ranks without a fold, and collect the errors on its rows."""
        statistics, canonical = self.problem.statistics, self.problem.canonical
        with self.folds.without(fold, statistics, canonical) as remaining:
            objective = build_objective(remaining, self.noise)
            scorable = objective.n > 0
            fits = Fits(objective, self.problem.largest_rank)
            errors = partial(self.folds.errors, fold, remaining, objective.response, canonical)
            path = list(_path(fits, errors, scorable))
            self.rows_held += float(self.folds.sizes(fold)[scorable].sum())
        held_out, fitted = np.array(path).swapaxes(0, 1)
        self.held_out.append(np.where(scorable, self.importance * held_out, 0.0))
        self.excess_fits.append(self.importance * (held_out + fitted))
        self.scored &= scorable

    def selected(self) -> RankPath:
        """The path of ranks from the folds so far."""
        objective, importance = self.objective, self.importance
        length = min(len(path) for path in self.held_out)
        pairs = np.concatenate([path[:length] for path in self.held_out], axis=1)
        fits = [self.fits[rank] for rank in range(1, length + 1)]
        final = np.array([importance * objective.squares(B, W) for B, W in fits])
        lacking = np.mean([path[:length] for path in self.excess_fits], axis=0) - final
        share = len(self.held_out) / N_FOLDS  # of Burman's correction, which is for all rows
        excess, error = corrected_excess(pairs, share * lacking[:, self.scored].sum(axis=1))
        rows, units = max(self.rows_held, 1.0), self.problem.canonical.units
        # Losses that differ only by rounding errors count as equal.
        equal = ROUNDING * float(importance @ sum_of_squares(objective)) if self.rows_held else 0.0
        candidates = np.flatnonzero(excess <= np.maximum(error, equal))
        logs = np.full(length, -np.inf)
        logs[candidates] = 0.0
        if len(candidates) > 1:
            centred = self.problem.statistics.centred
            for i in candidates:
                logs[i] = log_evidence(objective, *fits[i], importance, centred)
        rank = int(np.argmax(logs)) + 1 if self.rows_held else 1
        ranks = np.arange(1, length + 1)
        loss, difference, deviation = (
            units.squares_to_user(sums / rows) for sums in (pairs.sum(axis=1), excess, error)
        )
        return RankPath(ranks, loss, difference, deviation, rank)


def _leading_residual(objective: Objective, B: np.ndarray, W: np.ndarray) -> float:
    """The largest eigenvalue of RR' per task, with R the residual matrix at BW."""
    R, _ = objective.residuals((W.T @ B.T).T)
    return float(np.linalg.eigvalsh(R @ R.T)[-1]) / objective.n_tasks


def is_decisive(path: RankPath, held_out: list[np.ndarray], largest: int) -> bool:
    """Whether more folds or tasks could not change the selected rank."""
    if sum(errors.shape[1] for errors in held_out) < FEWEST_PAIRS:
        return False
    others = path.ranks != path.rank
    worse = path.difference > DECISIVE * path.standard_error
    return bool(worse[others].all()) and (path.rank < path.ranks[-1] or path.rank == largest)


def corrected_excess(pairs: np.ndarray, lacking: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Excess of each rank over the best, (ranks,), and the standard error of that difference.

    Parameters
    ----------
    pairs : ndarray of shape (ranks, folds * T)
        Held-out squared errors.
    lacking : ndarray of shape (ranks,)
        Burman's correction: squared errors of the folds' fits on all rows, averaged over folds,
        minus the squared errors of the fit to all rows.
    """
    total = pairs.sum(axis=1) - lacking
    best = np.argmin(total)
    gaps = pairs - pairs[best]
    return total - total[best], np.sqrt(gaps.shape[1]) * gaps.std(axis=1)


def evidence_path(problem: Problem, noise: np.ndarray | None) -> RankPath:
    """The path of ranks with the rank of largest evidence, from fits to all rows.

    Parameters
    ----------
    problem : Problem
    noise : ndarray of shape (T,) or None
        Relative noise variances.
    """
    objective, centred = build_objective(problem.statistics, noise), problem.statistics.centred
    importance = relative_precision(noise, objective.n_tasks)
    logs: list[float] = []
    for B, W in Fits(objective, problem.largest_rank):
        logs.append(log_evidence(objective, B, W, importance, centred))
        if len(logs) - 1 - int(np.argmax(logs)) >= PATIENCE:
            break
    values = np.array(logs)
    rows = max(float(np.maximum(objective.n - centred, 0.0).sum()), 1.0)
    loss = -values / rows - np.log(problem.canonical.units.y_scale)
    ranks = np.arange(1, len(logs) + 1)
    excess = values.max() - values
    rank = int(np.argmax(values)) + 1
    return RankPath(ranks, loss, excess, np.zeros(len(logs)), rank, "evidence")


def threshold_path(
    V: np.ndarray, objective: Objective, deviation: float, outliers: float = 0.0
) -> RankPath:
    """The rank by Tian, Gu and Feng's threshold on the singular values of V / sqrt(T).

    sigma / 2 sqrt((d + log T) / n) + level / 4 sqrt(outliers), with level the (1 - outliers)
    quantile of the norms. n is the harmonic mean of the sizes, which is the authors' n for equal
    sizes: small tasks make separate fits noisy.

    Parameters
    ----------
    V : ndarray of shape (d, T)
        Separate fits, winsorised if outlier tasks are possible.
    objective : Objective
    deviation : float
        Standard deviation sigma of the noise.
    outliers : float
        Assumed share of outlier tasks.
    """
    d, T = V.shape
    if objective.n.min() < ROWS_PER_FEATURE * d:
        raise ValueError(
            f"rank='threshold' needs {ROWS_PER_FEATURE} rows per feature in every task, for its "
            f"separate fits, and the smallest task has {objective.n.min():g} rows for {d} "
            "features. Use rank='auto' or rank='evidence', which need fewer."
        )
    values = np.linalg.svd(V / np.sqrt(T), compute_uv=False)
    level = np.quantile(np.linalg.norm(V, axis=0), 1 - outliers)
    noise = 0.5 * deviation * np.sqrt((d + np.log(T)) * np.mean(1 / objective.n))
    threshold = noise + 0.25 * level * np.sqrt(outliers)
    threshold = max(threshold, np.sqrt(ROUNDING) * values[0])
    if values[0] <= threshold:
        warnings.warn(
            "No singular value exceeds the threshold: the tasks show no common span. Rank 1 is "
            "used.",
            UserWarning,
            stacklevel=8,
        )
    left_out = np.append(values[1:], 0.0)
    rank = int(np.argmax(left_out <= threshold)) + 1
    ranks = np.arange(1, len(values) + 1)
    return RankPath(ranks, left_out, left_out - threshold, np.zeros(len(values)), rank, "threshold")


def noise_deviation(objective: Objective, V: np.ndarray, ranks: np.ndarray, centred: bool) -> float:
    """The standard deviation of the noise, from the residuals of separate fits V (d', T).

    The median over tasks with residual degrees of freedom, or if there are none, over all rows.
    """
    rss = objective.squares(np.eye(len(V)), V)
    spare = objective.n - ranks - centred
    usable = spare >= 1
    if not usable.any():
        return float(np.sqrt(rss.sum() / max(objective.n.sum(), 1.0)))
    return float(np.sqrt(np.median(rss[usable] / spare[usable])))


class Fits:
    """Factors (d, k) and (k, T) of rank k = 1, 2, ..., each fit started at the previous one.

    They are computed when first used. Where tasks have few rows, variable projection only finishes
    a fit: exact weights of a few tasks would turn an early span towards them. No fit without a fold
    starts from the fit to all rows, which knows the rows that are left out.
    """

    def __init__(self, objective: Objective, largest: int) -> None:
        self.objective, self.largest = objective, largest
        self.known: list[Factors] = []
        smallest = float(objective.n[objective.n > 0].min(initial=np.inf)) - 1
        self.rows_per_feature = smallest / objective.n_features

    def __iter__(self) -> Iterator[Factors]:
        return (self[rank] for rank in range(1, self.largest + 1))

    def __getitem__(self, rank: int) -> Factors:
        objective = self.objective
        d, T = objective.n_features, objective.n_tasks
        while len(self.known) < rank:
            k = len(self.known) + 1
            known = self.known[-1] if self.known else (np.zeros((d, 0)), np.zeros((0, T)))
            with one_blas_thread():
                start = grow(objective, *known)
            stop = partial(is_precise, share=min(k * (d + T) / float(objective.n.sum()), 1.0))
            result = self._fit(k, start, stop)
            self.known.append((result.B, result.W))
        return self.known[rank - 1]

    def _fit(self, k: int, start: Factors, stop: Callable[..., bool]) -> SolverResult:
        """A fit by variable projection where its minimum is well determined, else by descent."""
        objective = self.objective
        if self.rows_per_feature < ROWS_FOR_EXACT_WEIGHTS:
            solver = scaled_gd(objective, k, warm_start=start)
            result = run(solver, objective, max_iter=STEPS_OF_DESCENT, tol=0, stop=stop)
            if result.ending != OUT_OF_ITERATIONS:
                return result
            if self.rows_per_feature < ROWS_TO_SPARE:
                solver = scaled_gd(objective, k, warm_start=start)
                return run(solver, objective, max_iter=MAX_ITER, tol=0, stop=stop)
            start = result.B, result.W
        solver = variable_projection(objective, k, warm_start=start)
        return run(solver, objective, max_iter=STEPS_OF_PROJECTION, tol=0, stop=stop)


def _path(
    fits: Fits, held_out: Callable[[np.ndarray, np.ndarray], np.ndarray], scorable: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Squared errors per task (T,) on held-out and on fitted rows, for rank 1, 2, ...

    The path ends when the errors on held-out rows stop falling, at once if they rise decisively.
    """
    best, since = np.full(int(scorable.sum()), np.inf), 0
    for B, W in fits:
        errors = held_out(B, W)
        yield errors, fits.objective.squares(B, W)
        errors = errors[scorable]
        if errors.sum() < best.sum():
            best, since = errors, 0
            continue
        since += 1
        gaps = errors - best
        surely = len(gaps) >= FEWEST_PAIRS and (
            gaps.sum() > DECISIVE * np.sqrt(len(gaps)) * gaps.std()
        )
        if since >= PATIENCE or surely:
            return


def is_precise(point: Point, share: float) -> bool:
    """Whether the distance to the minimiser is small relative to the statistical error.

    In canonical units the squared error of a rank-k fit is about sigma^2 k (d + T) / nbar, and
    sigma^2 / nbar about 2 loss / rows; ``share`` is k (d + T) / rows.
    """
    return point.tangent_gradient() <= PRECISION * np.sqrt(2 * point.loss * share)
