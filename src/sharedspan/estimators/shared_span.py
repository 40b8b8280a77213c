"""The paper's model: coefficients of all tasks in one span, fitted by likelihood."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from sharedspan.estimators import fitting
from sharedspan.estimators.base import SpanTransformer, TaskRegressor
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.fitting import Needs
from sharedspan.estimators.parameters import (
    BOOL,
    at_least,
    estimator,
    one_of,
    require_rows_to_split,
)
from sharedspan.inference.noise import shared_noise, shrink_noise
from sharedspan.inference.rank_selection import RankPath, select_rank
from sharedspan.inference.span_errors import SpanUncertainty
from sharedspan.inference.span_information import DeferredUncertainty, span_uncertainty
from sharedspan.objective import Objective, build_objective
from sharedspan.persistence.checkpoint import Checkpoint, CheckpointOptions
from sharedspan.persistence.codec import axes_of, require_annotated_types, require_shapes
from sharedspan.solvers import SOLVERS, SUM_SOLVERS, needs_rows
from sharedspan.solvers.loop import CALLED_OFF, OUT_OF_ITERATIONS, STALLED, SolverResult, run
from sharedspan.solvers.quasi_newton import variable_projection
from sharedspan.solvers.slow_directions import ways_to_converge
from sharedspan.solvers.state import Factors
from sharedspan.statistics.canonical import PreviousFit, Problem
from sharedspan.statistics.rows import RowStatistics

if TYPE_CHECKING:
    from sharedspan.inputs.files import FilePaths
    from sharedspan.inputs.table_columns import TableColumns
    from sharedspan.progress import ProgressCallback

NOISE_ROUNDS = 3  # fits with per-task noise after the first one
ENOUGH_NEWS = 2.0  # a refit with this many times the rows starts from scratch
LOOP_OPTIONS = ("callback", "tail_average")  # parameters that 0.1 took as solver_options
SOLVER_ARGUMENTS = ("objective", "k", "rng", "max_iter", "tol", "warm_start")  # not the user's


@estimator(
    "rank solver solver_options fit_intercept whiten noise unseen task_column max_iter tol "
    "random_state backend dtype engine verbose keep_statistics callback tail_average"
)
class SharedSpanRegressor(SpanTransformer, TaskRegressor):
    """Linear regressions of many tasks whose coefficient vectors lie in one k-dimensional span.

    y_t = intercept_t + X_t v_t + noise,  v_t = B w_t, with B (d x k) shared by all tasks. B and
    all w_t minimise the sum of squares together, by the paper's two-phase gradient descent or
    another solver with the same minimiser.

    Parameters
    ----------
    {rank}
    solver : str, default="auto"
        A name of ``sharedspan.SOLVERS``. All have the same minimiser; "tpgd" is the paper's, "als"
        the exact reference. "auto" is the fastest: it picks "variable_projection" (the fewest
        passes over the data) or "scaled_gd_anderson" (cheaper passes) by size and shape, and tries
        several starts if one is not enough. "nsgd" is random and never converges in the sense
        of ``tol``: give it ``max_iter`` (3,000 is plenty) and ``tail_average=True``.
    solver_options : dict, optional
        Options of the solver (for TPGD: ``steps``, ``singular_values``, ``init_scale`` and
        ``phase_length``).
    {fit_intercept}
    whiten : bool, default=True
        Whether to whiten the features by their pooled within-task covariance first. This changes
        the iterates, not the minimum. Without it a fit needs many iterations if the features are
        far from isotropic. Directions with less than 1e-10 of the largest variance (after
        standardising) get coefficient zero.
    noise : {"shared", "per_task"}, default="shared"
        "per_task" estimates each task's noise level, shrunk towards a common one, and weights the
        tasks by its inverse square. This takes four fits; ``n_iter_`` and ``trace_`` describe the
        last.
    {unseen, task_column, max_iter}
    tol : float, default=1e-7
        The fit ends when the gradient along the rank-k matrices is at most tol |V|; with 0 it
        makes exactly ``max_iter`` iterations.
    {random_state}
    backend : {"auto", "numpy", "torch"} or TorchBackend, default="auto"
        Hardware of the passes over the tasks: "numpy" for the CPU, "torch" for a GPU with PyTorch
        (without a GPU it runs on the CPU, slowly). "als", "altmin_gd", "svp", "lf_fo" and "nsgd"
        have "numpy" only. "auto" uses a GPU if there is one and the table is large enough to gain.
    dtype : {"float64", "float32"}, default="float64"
        Precision in which the iterations read the statistics; they are built, and summed, in
        double precision. float32 halves the bytes of a pass and needs a second, smaller copy.
    {engine, verbose, keep_statistics}
    callback : callable of dict, optional
        Called after each iteration with ``iteration``, ``phase``, ``B``, ``W`` and ``point``; a
        true return value ends the fit.
    tail_average : bool, default=False
        Return the mean of BW over the second half of ``max_iter`` iterations instead of the last
        iterate.

    Attributes
    ----------
    {tasks_, coef_, intercept_}
    representation_ : ndarray of shape (d, k)
        Orthonormal basis of the span, in descending order of the singular values of ``coef_``; the
        largest loading of each column is positive.
    task_weights_ : ndarray of shape (k, T)
        ``coef_ = (representation_ @ task_weights_).T``.
    {rank_, rank_path_, noise_variance_, feature_covariance_}
    coef_std_ : ndarray of shape (T, d)
        Standard errors of ``coef_``, the uncertainty of the span included. They assume that the
        fit is the least squares solution of rank k, and that k is the true rank. If rows do not
        determine a coefficient they are very large. Computed when first used.
    representation_covariance_ : ndarray of shape (k * d, k * d) or None
        Covariance of the entries of ``representation_``, stacked column by column; None with more
        than 2,000 entries, for which ``coef_std_`` uses a Kronecker product.
    degrees_of_freedom_ : int
        Number of free parameters: k (d + T - k), plus the number of intercepts.
    {n_iter_, converged_}
    message_ : str
        Why the solver ended.
    trace_ : dict of ndarray
        ``iteration``, ``loss`` (mean squared residual, weighted if noise is per task),
        ``objective`` (the same plus the phase's balance term), ``gradient`` (tangent gradient
        over |V|, NaN where not computed), ``phase``, ``seconds``.
    {coef_names_, n_features_in_, feature_names_in_}

    References
    ----------
    Ding, Du and Fang (2026), "Near-optimal and efficient first-order algorithm for multi-task
    learning with shared linear representation".

    Examples
    --------
    >>> import sharedspan as ss
    >>> sim = ss.simulate(n_tasks=40, n_features=20, rank=2, n_samples=30, random_state=0)
    >>> model = ss.SharedSpanRegressor(rank=2, random_state=0).fit(sim.X, sim.y, task=sim.task)
    >>> model.coef_.shape
    (40, 20)
    """

    has_intervals = True
    checks: ClassVar = {
        "noise": partial(one_of, known=("shared", "per_task")),
        "dtype": partial(one_of, known=("float64", "float32")),
        "tail_average": BOOL,
    }

    solver: str = "auto"
    solver_options: dict[str, Any] | None = None
    noise: str = "shared"
    max_iter: int = 20_000
    tol: float = 1e-7
    backend: Any = "auto"
    dtype: str = "float64"
    callback: Callable[[dict[str, Any]], Any] | None = None
    tail_average: bool = False
    _uncertainty_: SpanUncertainty | DeferredUncertainty

    def fit(
        self,
        X: Any,
        y: Any,
        task: Any = None,
        sample_weight: Any = None,
        *,
        checkpoint: Any = None,
        resume: Any = None,
        checkpoint_seconds: float = 60.0,
    ) -> Self:
        """Fit all tasks together.

        Parameters
        ----------
        {X, y, task, sample_weight, checkpoint, resume, checkpoint_seconds}

        Returns
        -------
        self
        """
        checkpointing = self._checkpoint_options(checkpoint, resume, checkpoint_seconds)
        fitting.fit_arrays(self, X, y, task, sample_weight, checkpointing)
        return self

    def fit_file(
        self,
        path: FilePaths,
        *,
        task: str | None = None,
        target: str | None = None,
        features: str | Iterable[str] | None = None,
        memory_limit: int | str | None = None,
        drop: str | Iterable[str] = (),
        missing: str | None = None,
        text: str | None = None,
        columns: TableColumns | None = None,
        encoding: str | None = None,
        sheet: str | None = None,
        progress: ProgressCallback | None = None,
        tick: ProgressCallback | None = None,
        checkpoint: Any = None,
        resume: Any = None,
        checkpoint_seconds: float = 60.0,
    ) -> Self:
        """Fit all tasks of CSV or Parquet files, which may be larger than memory.

        Parameters
        ----------
        {path, file:task, target, features, memory_limit, drop, missing, text, file:columns}
        {encoding, sheet, progress, tick, checkpoint, resume, checkpoint_seconds}

        Returns
        -------
        self
        """
        checkpointing = self._checkpoint_options(checkpoint, resume, checkpoint_seconds)
        fitting.fit_files(
            self, path, checkpointing, task=task, target=target, features=features, drop=drop,
            memory_limit=memory_limit, missing=missing, text=text, columns=columns,
            encoding=encoding, sheet=sheet, progress=progress, tick=tick,
        )  # fmt: skip
        return self

    def needs(self) -> Needs:
        """Grams or rows, whichever is cheaper; rows for a solver that samples or splits them."""
        kind = "auto" if self.backend in ("auto", "numpy") else "gram"
        if needs_rows(self.solver, self.solver_options or {}):
            kind = "rows"
        return replace(super().needs(), kind=kind)

    def estimate(self, problem: Problem) -> FittedSpan:
        """B and W of least squares; if noise is per task, again with tasks weighted by it."""
        split = (self.solver_options or {}).get("split", "none")
        if self.solver == "altmin_gd" and split != "none":
            require_rows_to_split(problem, f"split={split!r}", "split='none'")
        rows, previous = float(problem.statistics.n.sum()), problem.previous
        checkpoints = problem.checkpoints
        if previous is not None and rows >= ENOUGH_NEWS * previous.rows:
            previous = None  # a fit to much fewer rows may be far off
        saved = None if checkpoints is None else checkpoints.caller
        noise, rounds = None, 1 + NOISE_ROUNDS * (self.noise == "per_task")
        if checkpoints is not None and saved is not None:
            with checkpoints.interpreting():
                require_turn(saved, rounds, problem, checkpoints.saved)
        backend = self.backend if self.solver in SUM_SOLVERS else "numpy"
        for turn in range(0 if saved is None else saved["round"], rounds):
            if saved is not None:
                rank, noise, path = saved["rank"], saved["noise"], saved["path"]
                rank_path, saved = None if path is None else RankPath(**path), None
            elif turn < 2:  # weights change the losses of the folds: select again with weights
                rank, rank_path = select_rank(
                    problem, self.rank, self.fit_intercept, noise, self.verbose
                )
            if checkpoints is not None:
                checkpoints.caller = {
                    "round": turn, "last": turn == rounds - 1, "rank": rank, "noise": noise,
                    "path": None if rank_path is None else vars(rank_path),
                    "P": problem.canonical.P,
                }  # fmt: skip
            k = min(rank, problem.largest_rank)
            objective = build_objective(problem.statistics, noise, self.dtype, backend)
            start = None if previous is None else warm_start(problem, previous, objective, k)
            result = self._solve(problem, objective, k, start)
            if not np.isfinite(result.loss):
                raise ValueError(
                    f"solver={self.solver!r} diverged: its steps are too large for these rows. "
                    "Lower step_size in solver_options, or use solver='auto'."
                )
            variance, degrees = self._noise_variance(objective, result)
            if result.ending == CALLED_OFF or not variance.all():
                break
            if self.noise == "per_task":
                noise = variance
        if self.tol > 0 and result.ending in (OUT_OF_ITERATIONS, STALLED):
            warnings.warn(
                f"solver={self.solver!r} did not converge: {result.message} The last iterate is "
                f"used. {ways_to_converge(self.solver, objective, result.B, result.W)}",
                ConvergenceWarning,
                stacklevel=6,
            )
        fitted = FittedSpan.from_factors(
            problem, objective.response, result.B, result.W, rank,
            variance=variance, rank_path=rank_path,
            extra={"_rows_at_start": rows if previous is None else previous.rows},
            **run_fields(problem, result, self.fit_intercept),
        )  # fmt: skip
        if not degrees.any():  # the noise is unknown
            fitted = replace(fitted, noise_variance=np.full_like(variance, np.nan))
        # Afterwards, when the arrays on the way to the user's units are free again.
        W = result.W / objective.response
        uncertainty = self._span_uncertainty(problem, result.B, W, variance, degrees)
        return replace(fitted, uncertainty=uncertainty)

    def _solve(
        self, problem: Problem, objective: Objective, k: int, start: Factors | None
    ) -> SolverResult:
        """Run the solver, or from a warm start the solver that takes the fewest passes."""
        options, loop_options = self._split_options()
        budget: dict[str, Any] = {"max_iter": self.max_iter, "tol": self.tol}
        if start is None:
            solver = SOLVERS[self.solver](objective, k, problem.rng, **budget, **options)
        else:
            solver = variable_projection(objective, k, warm_start=start)
        return run(
            solver, objective, **budget, **loop_options, verbose=self.verbose,
            checkpoint=problem.checkpoints,
        )  # fmt: skip

    def _split_options(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Options of the solver and of the loop, which 0.1 took from solver_options too."""
        options = dict(self.solver_options or {})
        loop: dict[str, Any] = {"callback": self.callback, "tail_average": self.tail_average}
        return options, loop | {name: options.pop(name) for name in LOOP_OPTIONS if name in options}

    def _span_uncertainty(self, problem: Problem, *estimates: np.ndarray) -> Any:
        """The basis of standard errors, for which the statistics are held until its first use.

        Statistics on a cluster end with the fit, so there it is computed now.
        """
        statistics = problem.statistics
        if not statistics.outlives_fit:
            return span_uncertainty(statistics, problem.canonical, *estimates)
        if problem.retained and not isinstance(statistics, RowStatistics):
            statistics = None
        return DeferredUncertainty(statistics, problem.canonical, *estimates)

    def uncertainty(self) -> SpanUncertainty:
        """The basis of standard errors, computed when first used."""
        if isinstance(self._uncertainty_, DeferredUncertainty):
            self._uncertainty_ = self._uncertainty_.compute(vars(self).get("_statistics_"))
        return self._uncertainty_

    @property
    def fitted_span(self) -> FittedSpan:
        """The fitted quantities in one object, standard errors included."""
        check_is_fitted(self)
        self.uncertainty()
        return FittedSpan.of(self)

    def _noise_variance(
        self, objective: Objective, result: SolverResult
    ) -> tuple[np.ndarray, np.ndarray]:
        """Noise variance of each task (T,) in the units of the statistics, and its degrees."""
        k, centred = result.B.shape[1], self.fit_intercept
        if self.noise == "shared":
            noise = shared_noise(objective, result.loss, k, centred)
            return np.full(objective.n_tasks, noise[0]), np.full(objective.n_tasks, noise[1])
        degrees = np.maximum(objective.n - k - centred, 0.0)
        variance, shrunk = shrink_noise(objective.squares(result.B, result.W), degrees)
        return variance, shrunk if degrees.any() else degrees

    @property
    def representation_covariance_(self) -> np.ndarray | None:
        """Covariance of the entries of ``representation_``, stacked column by column."""
        check_is_fitted(self)
        return self.uncertainty().representation_covariance(self.representation_)

    def _checkpoint_options(
        self, checkpoint: Any, resume: Any, seconds: float
    ) -> CheckpointOptions | None:
        """The checkpoints that a fit writes and continues from; None without both."""
        if checkpoint is None and resume is None:
            return None
        at_least("checkpoint_seconds", seconds, 0.0)
        # Parameters that must not change between a fit and its continuation.
        names = ["rank", "solver", "fit_intercept", "whiten", "noise", "tol", "dtype"]
        options, loop_options = self._split_options()
        if loop_options["tail_average"]:
            options["tail_average"] = True
        if self.tol == 0 or loop_options["tail_average"] or needs_rows(self.solver, options):
            names.append("max_iter")  # phases and averages are planned by it
        settings = {name: getattr(self, name) for name in names} | {"solver_options": options}
        return CheckpointOptions.of(checkpoint, resume, seconds, settings)

    def check_combination(self) -> None:
        """Raise if the solver does not accept the given options, backend or engine."""
        one_of("solver", self.solver, tuple(SOLVERS))
        if self.solver_options is not None:
            self._check_solver_options(self.solver_options)
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback={self.callback!r} must be a function.")
        elsewhere = [] if fitting.is_local(self) else ["a cluster"]
        if elsewhere and self.backend not in ("auto", "numpy"):
            raise ValueError(
                f"backend={self.backend!r} does not run on a cluster: use backend='numpy', or "
                "engine='local'."
            )
        if self.backend not in ("auto", "numpy"):
            from sharedspan.objective.backends import require_device

            require_device(self.backend)
            elsewhere.append(f"backend={self.backend!r}")
        if elsewhere and self.solver not in SUM_SOLVERS:
            raise ValueError(
                f"solver={self.solver!r} does not run on {elsewhere[0]}: use one of "
                f"{', '.join(map(repr, SUM_SOLVERS))}, or backend='numpy' and engine='local'."
            )

    def _check_solver_options(self, options: Any) -> None:
        if not isinstance(options, dict):
            raise TypeError(f"solver_options={options!r} must be a dict or None.")
        if not callable(options.get("callback", callable)):
            raise TypeError(f"callback={options['callback']!r} must be a function.")
        one_of("tail_average", options.get("tail_average", False), (True, False))
        signature = inspect.signature(SOLVERS[self.solver]).parameters
        known = [name for name in signature if name not in SOLVER_ARGUMENTS]
        for name in options:
            if name not in (*known, *LOOP_OPTIONS):
                advice = f"use {', '.join(map(repr, known))}" if known else "it has none"
                raise TypeError(
                    f"solver_options: {name!r} is not an option of solver={self.solver!r}: "
                    f"{advice}."
                )
        for name in LOOP_OPTIONS:
            if name in options:
                warnings.warn(
                    f"solver_options={{{name!r}: ...}} is deprecated: use the parameter "
                    f"SharedSpanRegressor({name}=...).",
                    FutureWarning,
                    stacklevel=6,
                )


def warm_start(
    problem: Problem, previous: PreviousFit, objective: Objective, k: int
) -> Factors | None:
    """The canonical factors (d', k) and (k, T) of the previous fit, or None if its rank differs."""
    if previous.representation.shape[1] != k:
        return None
    canonical = problem.canonical
    B = previous.representation / canonical.units.scale[:, None]
    if canonical.P is not None:
        B = np.linalg.lstsq(canonical.P, B, rcond=None)[0]
    W, place = np.zeros((k, len(problem.labels))), {t: i for i, t in enumerate(problem.labels)}
    W[:, [place[label] for label in previous.labels]] = previous.task_weights
    return B, W * canonical.units.y_scale * objective.response


def require_turn(
    caller: Mapping[str, Any], rounds: int, problem: Problem, saved: Checkpoint | None
) -> None:
    """Raise unless the saved state of a fit has the types and shapes that ``estimate`` writes."""
    turn, rank, noise, path = (caller[name] for name in ("round", "rank", "noise", "path"))
    if type(turn) is not int or turn not in range(rounds) or type(rank) is not int or rank < 1:
        raise ValueError(f"There is no round {turn!r} with rank {rank!r}.")
    if saved is not None and saved.run["B"].shape[1] != min(rank, problem.largest_rank):
        raise ValueError(f"The factors do not have rank {rank}.")
    if noise is not None:
        require_shapes({"noise": noise}, {"noise": "T"}, {"T": problem.statistics.n_tasks})
        if not (np.isfinite(noise) & (noise > 0)).all():
            raise ValueError("The noise variances are not positive.")
    if path is not None:
        RankPath(**path)
        require_annotated_types(path, RankPath)
        require_shapes(path, axes_of(RankPath), {})


def run_fields(problem: Problem, result: SolverResult, centred: bool) -> dict[str, Any]:
    """Fields of a FittedSpan that describe the run of the solver, and the degrees of freedom."""
    (d, k), T = result.B.shape, result.W.shape[1]
    # The loss sums over tasks half of each one's mean square, relative to nbar.
    to_user, losses = problem.canonical.units.squares_to_user, ("loss", "objective")
    return {
        "n_iter": result.n_iter,
        "converged": result.converged,
        "message": result.message,
        "trace": result.trace | {name: to_user(2 / T * result.trace[name]) for name in losses},
        "degrees_of_freedom": k * (d + T - k) + T * int(centred),
    }
