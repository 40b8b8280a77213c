"""The paper's model: coefficients of all tasks in one span, fitted by likelihood."""

from __future__ import annotations

import inspect
import numbers
import warnings
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from sharedspan.distributed.engine import as_engine
from sharedspan.estimators.base import IntervalRegressor, at_least, one_of
from sharedspan.estimators.resuming import Keeping
from sharedspan.estimators.span import Problem, SpanRegressor
from sharedspan.estimators.sums import Solution, SumsRegressor
from sharedspan.inference.noise import residual_degrees, shrink_noise
from sharedspan.inference.rank_selection import RankPath
from sharedspan.inference.standard_errors import SpanUncertainty, span_uncertainty
from sharedspan.inputs.rows import TaskRows
from sharedspan.objective.backends import TorchBackend, choose_backend, objective_on, require_device
from sharedspan.objective.base import Objective
from sharedspan.persistence.checkpoint import Checkpoints
from sharedspan.solvers import SOLVERS, SUM_SOLVERS, needs_rows
from sharedspan.solvers.accelerated import Factors
from sharedspan.solvers.loop import CALLED_OFF, OUT_OF_ITERATIONS, STALLED, SolverResult, run
from sharedspan.solvers.variable_projection import variable_projection
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.sums import GramStatistics
from sharedspan.statistics.task_statistics import TaskStatistics

if TYPE_CHECKING:
    from sharedspan.inputs.files import FilePaths

NOISE_ROUNDS = 3  # fits with per-task noise after the first one
ENOUGH_NEWS = 2.0  # a refit with so many times the rows starts from scratch
LOOP_OPTIONS = ("callback", "tail_average")  # entries of solver_options that the loop takes
SOLVER_ARGUMENTS = ("objective", "k", "rng", "max_iter", "tol", "warm_start")  # not the user's


class SharedSpanRegressor(SpanRegressor, SumsRegressor, IntervalRegressor):
    """Linear regressions of many tasks whose coefficient vectors lie in one k-dimensional span.

    y_t = intercept_t + X_t v_t + noise,  v_t = B w_t, with B (d x k) shared by all tasks. B and
    all w_t minimise the sum of squares together, by the paper's two-phase gradient descent or
    another solver with the same minimiser.

    Parameters
    ----------
    rank : int, "auto", "evidence" or "threshold", default="auto"
        k. "auto" cross-validates within tasks; among ranks that this cannot tell apart, by one
        paired standard error, the evidence decides. "evidence" goes by marginal likelihood alone,
        faster where tasks are hundreds, not where they are many thousands. "threshold" counts
        singular values of separate fits above the noise, for tasks with at least three rows per
        feature.
    solver : str, default="tpgd"
        A name of ``sharedspan.SOLVERS``. All have the same minimiser; "tpgd" is the paper's, "als"
        the exact reference. "auto" is the fastest: it picks "variable_projection" (the fewest
        passes over the data) or "scaled_gd_anderson" (cheaper passes) by size and shape, and tries
        several starts where one is not enough. "nsgd" is random and never converges in the sense
        of ``tol``: give it ``max_iter`` (3,000 is plenty) and ``tail_average``.
    solver_options : dict, optional
        Options of the solver (for TPGD: ``steps``, ``singular_values``, ``init_scale``), and two
        for all: ``callback``, called after each iteration with a dict (a true return value ends
        the fit), and ``tail_average``, which returns the mean of BW over the second half of
        ``max_iter`` iterations instead of the last iterate.
    fit_intercept : bool, default=True
        Whether each task has its own intercept.
    whiten : bool, default=True
        Whether to whiten the features by their pooled within-task covariance first. This changes
        the path of the solver, not its goal, and it is what makes few iterations enough: without
        it, on features far from isotropic, expect to wait.
        Directions with less than 1e-10 of the largest variance (after standardising) get
        coefficient zero.
    noise : {"shared", "per_task"}, default="shared"
        "per_task" estimates each task's noise level, shrunk towards a common one, and weights the
        tasks by it: four fits, of which ``n_iter_`` and ``trace_`` describe the last.
    unseen : {"error", "mean"}, default="error"
        What to predict for a task that was not fitted.
    task_column : str or int, optional
        The column of X that holds the task labels.
    max_iter : int, default=20000
    tol : float, default=1e-7
        The fit ends when the gradient along the rank-k matrices is at most tol |V|; with 0 it
        makes exactly ``max_iter`` iterations.
    random_state : int, Generator, RandomState or None
        For the random start and the folds.
    backend : {"auto", "numpy", "torch"} or TorchBackend, default="auto"
        Where the passes over the tasks run: "numpy" on the CPU, "torch" on a GPU with PyTorch
        (without a GPU on the CPU, slowly), for the solvers that work with sums over tasks. "auto"
        uses a GPU where there is one and the statistics are large enough to gain, 256 MB.
    dtype : {"float64", "float32"}, default="float64"
        How the statistics are read during the iterations; they are built, and sums are taken, in
        double precision. float32 halves the bytes of a pass and needs a second, smaller copy.
    engine : {"local", "dask"}, Client, str or DaskEngine, default="local"
        Where statistics are built and kept: on this machine, or on a Dask cluster (the current
        client, a client, or the address of a scheduler; ``pip install 'sharedspan[dask]'``). There
        rows are let go once the statistics are built, but for ``rank="auto"``, which needs them.
    verbose : int, default=0
        1 shows progress.
    keep_statistics : "auto" or bool, default="auto"
        Whether the model keeps the sums of its rows, d (d + 7) / 2 numbers per task, so that
        ``partial_fit`` can go on from them and ``merge`` can share them. "auto" keeps them up to
        128 MB. ``partial_fit`` and ``merge`` themselves always do.

    Attributes
    ----------
    tasks_ : ndarray of shape (T,)
        Labels: numbers sorted, strings sorted, others by first appearance.
    coef_ : ndarray of shape (T, d)
    intercept_ : ndarray of shape (T,)
    representation_ : ndarray of shape (d, k)
        Orthonormal basis of the span, by singular value of ``coef_``, largest loading positive.
    task_weights_ : ndarray of shape (k, T)
        ``coef_ = (representation_ @ task_weights_).T``.
    rank_ : int
    rank_path_ : RankPath
        Losses along the ranks, with ``rank="auto"``; None where there was nothing to choose.
    noise_variance_ : ndarray of shape (T,)
    feature_covariance_ : ndarray of shape (d, d)
        S, the pooled covariance of the features within tasks (about zero without intercepts): the
        variance that coefficients v explain within tasks is v'Sv. Kept for up to 500 features, if
        their squares exist.
    coef_std_ : ndarray of shape (T, d)
        Standard errors of ``coef_``, the uncertainty of the span included. They take the fit to
        be the least squares of its rank, and the rank to be right. Where rows do not determine a
        coefficient they are very large. Computed when first asked for.
    representation_covariance_ : ndarray of shape (k * d, k * d) or None
        Covariance of the entries of ``representation_``, its columns one after the other; None
        with more than 2,000 entries, where ``coef_std_`` takes it as a Kronecker product.
    degrees_of_freedom_ : int
        Free numbers of the fit: k (d + T - k), and the intercepts.
    n_iter_ : int
    converged_ : bool
    message_ : str
        Why the solver ended.
    trace_ : dict of ndarray
        ``iteration``, ``loss`` (mean squared residual, weighted where noise is per task),
        ``objective`` (the same plus the phase's balance term), ``gradient`` (tangent gradient
        over |V|, NaN where not looked at), ``phase``, ``seconds``.
    coef_names_ : ndarray of shape (d,)
    n_features_in_, feature_names_in_
        Of X as passed, task column included.

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

    _uncertainty_: SpanUncertainty
    _rows_at_start_: float  # sum of weights that the last fit from scratch had
    _keeping: Keeping | None = None

    def __init__(
        self,
        rank: Any = "auto",
        solver: str = "tpgd",
        solver_options: dict[str, Any] | None = None,
        fit_intercept: bool = True,
        whiten: bool = True,
        noise: str = "shared",
        unseen: str = "error",
        task_column: Any = None,
        max_iter: int = 20_000,
        tol: float = 1e-7,
        random_state: Any = None,
        backend: Any = "auto",
        dtype: str = "float64",
        engine: Any = "local",
        verbose: int = 0,
        keep_statistics: Any = "auto",
    ) -> None:
        self.rank = rank
        self.solver = solver
        self.solver_options = solver_options
        self.fit_intercept = fit_intercept
        self.whiten = whiten
        self.noise = noise
        self.unseen = unseen
        self.task_column = task_column
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.backend = backend
        self.dtype = dtype
        self.engine = engine
        self.verbose = verbose
        self.keep_statistics = keep_statistics

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
        X, y, task, sample_weight
            As in the other estimators.
        checkpoint : path, optional
            A file where the solver keeps its state, so that a fit that is killed can go on.
        resume : path, optional
            A checkpoint to go on from, with the same data and settings; it is also where further
            checkpoints go, unless ``checkpoint`` names another file. The result is that of a fit
            that was not interrupted. Other data are refused with ``ss.CheckpointError``.
        checkpoint_seconds : float, default=60
            Time between two checkpoints.

        Returns
        -------
        self
        """
        with self._kept(checkpoint, resume, checkpoint_seconds):
            return super().fit(X, y, task, sample_weight)

    def fit_file(
        self,
        path: FilePaths,
        *,
        task: str | None = None,
        target: str | None = None,
        features: str | Iterable[str] | None = None,
        memory_limit: int | str | None = None,
        checkpoint: Any = None,
        resume: Any = None,
        checkpoint_seconds: float = 60.0,
        **options: Any,
    ) -> Self:
        """Fit all tasks of CSV or Parquet files, which may be larger than memory.

        Parameters
        ----------
        path, task, target, features, memory_limit
            As in the other estimators.
        checkpoint, resume, checkpoint_seconds
            As in ``fit``.
        **options
            ``drop``, ``missing``, ``text``, ``columns`` and ``tick``, as in the other estimators.

        Returns
        -------
        self
        """
        with self._kept(checkpoint, resume, checkpoint_seconds):
            return super().fit_file(
                path, task=task, target=target, features=features, memory_limit=memory_limit,
                **options,
            )  # fmt: skip

    @contextmanager
    def _kept(self, checkpoint: Any, resume: Any, seconds: float) -> Iterator[None]:
        """Fits in this context keep checkpoints."""
        at_least("checkpoint_seconds", seconds, 0.0)
        self._keeping = Keeping.of(checkpoint, resume, seconds)
        try:
            yield
        finally:
            del self._keeping

    def _fit_gathered(self, gathered: TaskStatistics, last: Solution | None = None) -> None:
        problem, checkpoints = self._opened(gathered)
        backend = self._chosen_backend(problem)
        rows = float(problem.statistics.n.sum())
        if last is not None and rows >= ENOUGH_NEWS * last.rows:
            last = None  # what little data led to may be far off
        self._rows_at_start_ = rows if last is None else last.rows
        done = None if checkpoints is None else checkpoints.caller
        noise, rounds = None, 1 + NOISE_ROUNDS * (self.noise == "per_task")
        for round_ in range(0 if done is None else done["round"], rounds):
            if done is not None:
                rank, noise, path = done["rank"], done["noise"], done["path"]
                self.rank_path_, done = None if path is None else RankPath(**path), None
            elif round_ < 2:  # weights change what the folds say: choose again once they are known
                rank, self.rank_path_ = self._find_rank(problem, noise)
            if checkpoints is not None:
                path = None if self.rank_path_ is None else vars(self.rank_path_)
                checkpoints.caller = {"round": round_, "last": round_ == rounds - 1, "rank": rank,
                                      "noise": noise, "path": path,
                                      "P": problem.canonical.P}  # fmt: skip
            k = min(rank, problem.largest_rank)
            objective = objective_on(backend, problem.statistics, noise, self.dtype)
            start = self._start(last, gathered.labels, problem.canonical, objective, k)
            result = self._solve(objective, k, problem.rng, start, checkpoints)
            variance, degrees = self._noise_variance(objective, result, k)
            if result.ending == CALLED_OFF or not variance.all():
                break
            if self.noise == "per_task":
                noise = variance
        self._store_span(problem, objective.response, result.B, result.W, rank)
        self._store_uncertainty(problem, objective.response, result, variance, degrees)
        self._store_run(result, variance, problem.canonical.units.y_scale**2)

    def _opened(self, gathered: TaskStatistics) -> tuple[Problem, Checkpoints | None]:
        """The canonical problem, and the checkpoints of its fit where any are wanted."""
        keeping = self._keeping
        if keeping is None:
            return self._canonical(gathered), None
        settings = self._settings()
        if keeping.saved is None:
            P = self._feature_map(gathered.statistics)
        else:  # axes may have other signs on another machine: take those of the saved factors
            P = keeping.saved_map(settings, gathered)
        problem = self._mapped(gathered, P)
        return problem, keeping.checkpoints(settings, gathered, problem.canonical, problem.rng)

    def _settings(self) -> dict[str, Any]:
        """What must not change between a fit and its continuation."""
        names = ["rank", "solver", "fit_intercept", "whiten", "noise", "tol", "dtype"]
        if self.tol == 0 or needs_rows(self.solver, self.solver_options or {}):
            names.append("max_iter")  # the plan of phases goes by it
        options = dict(self.solver_options or {})
        options.pop("callback", None)
        return {name: getattr(self, name) for name in names} | {"solver_options": options}

    def _start(
        self,
        last: Solution | None,
        labels: Sequence[Hashable],
        canonical: Canonical,
        objective: Objective,
        k: int,
    ) -> Factors | None:
        """The last solution (d', k) and (k, T) as canonical factors, where its rank is the same."""
        if last is None or last.representation.shape[1] != k:
            return None
        B = last.representation / canonical.units.scale[:, None]
        if canonical.P is not None:
            B = np.linalg.lstsq(canonical.P, B, rcond=None)[0]
        W, place = np.zeros((k, len(labels))), {label: t for t, label in enumerate(labels)}
        W[:, [place[label] for label in last.labels]] = last.task_weights
        return B, W * canonical.units.y_scale * objective.response

    def _solution(self) -> Solution:
        labels = tuple(self.tasks_.tolist())
        return Solution(labels, self.representation_, self.task_weights_, self._rows_at_start_)

    def _kind(self) -> str:
        if needs_rows(self.solver, self.solver_options or {}):
            return "rows"
        return "auto" if self.backend in ("auto", "numpy") else "gram"

    def _chosen_backend(self, problem: Problem) -> TorchBackend | None:
        statistics = problem.statistics
        if self.solver not in SUM_SOLVERS or not isinstance(statistics, GramStatistics):
            return None
        return choose_backend(self.backend, statistics.packed.nbytes)

    def _solve(
        self,
        objective: Objective,
        k: int,
        rng: np.random.Generator,
        start: Factors | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> SolverResult:
        options = dict(self.solver_options or {})
        loop_options = {name: options.pop(name) for name in LOOP_OPTIONS if name in options}
        budget: dict[str, Any] = {"max_iter": self.max_iter, "tol": self.tol}
        if start is None:
            solver = SOLVERS[self.solver](objective, k, rng, **budget, **options)
        else:  # all solvers have one goal, and from near it this one takes a few passes
            solver = variable_projection(objective, k, warm_start=start)
        return run(
            solver, objective, **budget, **loop_options, verbose=self.verbose,
            checkpoint=checkpoints,
        )  # fmt: skip

    def _noise_variance(
        self, objective: Objective, result: SolverResult, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Noise variance of each task (T,) in the units of the statistics, and its degrees."""
        if self.noise == "shared":
            left = residual_degrees(objective.n, objective.n_features, k, self.fit_intercept)
            variance = self._shared_noise(objective, result.B, result.W, k)
            return variance, np.full(len(variance), left)
        degrees = np.maximum(objective.n - k - self.fit_intercept, 0.0)
        return shrink_noise(objective.squares(result.B, result.W), degrees)

    def _store_uncertainty(
        self,
        problem: Problem,
        response: np.ndarray,
        result: SolverResult,
        variance: np.ndarray,
        degrees: np.ndarray,
    ) -> None:
        # The pass over the Grams is made here, at the price of a few iterations, so that a fitted
        # model need not hold them. All that is cubic in k d waits until it is asked for.
        (d, k), T = result.B.shape, len(variance)
        self._uncertainty_ = span_uncertainty(
            problem.statistics, problem.canonical, result.B, result.W / response, variance, degrees
        )
        self.degrees_of_freedom_ = k * (d + T - k) + T * int(self.fit_intercept)

    def _uncertainty(self) -> SpanUncertainty:
        return self._uncertainty_

    @property
    def representation_covariance_(self) -> np.ndarray | None:
        check_is_fitted(self)
        return self._uncertainty_.representation_covariance(self.representation_)

    def _store_run(self, result: SolverResult, variance: np.ndarray, unit: float) -> None:
        """How the solver ended; ``unit`` is a squared response of one."""
        self.noise_variance_ = variance / unit
        self.n_iter_, self.converged_ = result.n_iter, result.converged
        self.message_ = result.message
        # The loss sums over tasks half of each one's mean square, relative to nbar.
        scale = 2 / len(variance) / unit
        in_units = {name: result.trace[name] * scale for name in ("loss", "objective")}
        self.trace_ = result.trace | in_units
        if self.tol > 0 and result.ending in (OUT_OF_ITERATIONS, STALLED):
            warnings.warn(
                f"solver={self.solver!r} did not converge: {result.message} The last iterate is "
                "kept. Raise max_iter, or lower the rank: directions that are hardly there take "
                "long to settle.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _validate_parameters(self) -> None:
        super()._validate_parameters()
        one_of("solver", self.solver, tuple(SOLVERS))
        self._validate_solver_options()
        one_of("noise", self.noise, ("shared", "per_task"))
        self._validate_backend()
        one_of("dtype", self.dtype, ("float64", "float32"))
        self._validate_engine()
        at_least("max_iter", self.max_iter, 1, numbers.Integral)
        if not isinstance(self.verbose, numbers.Integral):
            raise TypeError(f"verbose={self.verbose!r} must be an integer or a bool.")
        at_least("tol", self.tol, 0.0)

    def _validate_engine(self) -> None:
        if as_engine(self.engine) is None:
            return
        if self.solver not in SUM_SOLVERS:
            raise ValueError(
                f"solver={self.solver!r} does not run on a cluster: use one of "
                f"{', '.join(map(repr, SUM_SOLVERS))}, or engine='local'."
            )
        if self.backend not in ("auto", "numpy"):
            raise ValueError(
                f"backend={self.backend!r} does not run on a cluster: use backend='numpy', or "
                "engine='local'."
            )

    def _validate_backend(self) -> None:
        if not isinstance(self.backend, TorchBackend):
            if self.backend not in ("auto", "numpy", "torch"):
                raise ValueError(
                    f"backend={self.backend!r} is unknown: use 'auto', 'numpy', 'torch' or "
                    "ss.TorchBackend(device=..., block_size=...)."
                )
            if self.backend != "torch":
                return
        if self.solver not in SUM_SOLVERS:
            raise ValueError(
                f"solver={self.solver!r} does not run on backend={self.backend!r}: use one of "
                f"{', '.join(map(repr, SUM_SOLVERS))}, or backend='numpy'."
            )
        require_device(self.backend)

    def _validate_solver_options(self) -> None:
        options = self.solver_options
        if options is None:
            return
        if not isinstance(options, dict):
            raise TypeError(f"solver_options={options!r} must be a dict or None.")
        callback = options.get("callback", callable)
        if not callable(callback):
            raise TypeError(f"solver_options: callback={callback!r} must be a function.")
        one_of("tail_average", options.get("tail_average", False), (True, False))
        signature = inspect.signature(SOLVERS[self.solver]).parameters
        known = [n for n in signature if n not in SOLVER_ARGUMENTS] + list(LOOP_OPTIONS)
        for name in options:
            if name not in known:
                raise TypeError(
                    f"solver_options: {name!r} is no option of solver={self.solver!r}: use "
                    f"{', '.join(map(repr, known))}."
                )

    def _validate_tasks(self, tasks: TaskRows) -> None:
        super()._validate_tasks(tasks)
        rows = np.diff(tasks.starts)
        options = self.solver_options or {}
        if self.solver == "altmin_gd" and options.get("split", "none") != "none" and rows.min() < 2:
            raise ValueError(
                f"split={options['split']!r} needs two rows in every task, and task "
                f"{tasks.labels[int(np.argmin(rows))]!r} has one sample: leave such tasks out, or "
                "use split='none'."
            )
