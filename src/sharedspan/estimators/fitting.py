"""A fit is a straight line: rows, task statistics, canonical form, estimate, fitted attributes.

    rows       = open_rows(...)            arrays, frames, files and Dask frames, validated once
    statistics = task_statistics(...)      sums per task, built here or on the workers of a cluster
    problem    = canonical(statistics)     scaling and whitening
    fitted     = model.estimate(problem)   the only thing that an estimator defines
    store(model, fitted)                   attributes in the user's units

Families of responses other than the Gaussian need further passes over the rows, within
``estimate``. ``fit`` and ``fit_file`` follow the line from its beginning; ``fit_statistics`` starts
from statistics that a database has made, ``partial_fit`` and ``merge`` from those that a model has
retained. ``needs()`` of an estimator are its requirements for the pass over the rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, column_or_1d

from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.parameters import as_generator, check_parameters
from sharedspan.estimators.preparation import complete_rows, prepare, validate_names
from sharedspan.inputs.columns import Columns
from sharedspan.inputs.external_sort import open_files
from sharedspan.inputs.frame_table import target_numbers
from sharedspan.inputs.frames import (
    as_table,
    is_dask_frame,
    refuse_column_as_label,
    row_count,
    task_column_of,
    text_columns,
)
from sharedspan.inputs.labels import label_array
from sharedspan.inputs.rows import TaskRows, is_task_list, validate_rows
from sharedspan.inputs.table_text import table_options
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.progress import current_progress
from sharedspan.solvers import SUM_SOLVERS
from sharedspan.statistics.canonical import (
    SLOW,
    PreviousFit,
    Problem,
    canonical,
    feature_covariance,
    warn_of_small_directions,
)
from sharedspan.statistics.from_frame import read_statistics
from sharedspan.statistics.grams import GramStatistics
from sharedspan.statistics.rows import RowStatistics
from sharedspan.statistics.task_statistics import TaskStatistics, Units, gather

if TYPE_CHECKING:
    from sharedspan.estimators.base import TaskEstimator

NARROW = 500  # features up to which BLAS has one thread
# Exponents of two: of coefficients with digits to spare, and of numbers whose squares are finite.
SMALLEST_COEFFICIENT, LARGEST_ROOT = -1040, 505
RETAINED_BYTES = 2**27  # of statistics that keep_statistics="auto" retains


@dataclass(frozen=True)
class Needs:
    """Requirements of an estimator for the pass over the rows."""

    kind: str | None = "auto"  # of statistics: "auto", "gram" or "rows"; None to read bare rows
    features: str = "plain"  # how they become canonical: "whitened", "scaled" or "plain"
    common_scale: bool = False  # whether features keep their proportions
    folds: bool = False  # whether rows are left out and put back
    moments: Callable[[TaskRows], Any] | None = None  # makes the collector of further moments
    sums_suffice: bool = True  # whether a fit can be continued from its statistics alone


def fit_rows(model: TaskEstimator, rows: Any, checkpointing: Any = None) -> None:
    """Fit an estimator to rows.

    Parameters
    ----------
    model : TaskEstimator
    rows : TaskRows, for a cluster FileRows or DaskFrame, or the TaskStatistics of rows elsewhere
    checkpointing : CheckpointOptions, optional
        Files in which the solver saves its state, and from which it continues.
    """
    # Threads are over tasks. More of them in BLAS cost time, unless matrices are large.
    with one_blas_thread() if model.n_features_in_ <= NARROW else nullcontext():
        with task_statistics(model, rows) as statistics:
            model.check_shape(len(statistics.labels), len(statistics.names))
            retained = statistics_to_retain(model, statistics)
            fitted = fit_statistics(
                model, statistics, checkpointing=checkpointing, retained=retained is not None
            )
        store(model, fitted, statistics, retained)


def fit_statistics(
    model: TaskEstimator,
    statistics: TaskStatistics,
    previous: PreviousFit | None = None,
    checkpointing: Any = None,
    retained: bool = True,
) -> FittedSpan:
    """Estimate from statistics, which are transformed in place unless they are retained.

    Parameters
    ----------
    model : TaskEstimator
    statistics : TaskStatistics
    previous : PreviousFit, optional
        Result of the last fit, to start from.
    checkpointing : CheckpointOptions, optional
        Files in which the solver saves its state, and from which it continues.
    retained : bool
        Whether the model retains the statistics.
    """
    rng = as_generator(vars(model).get("random_state"))
    if model.needs().kind is None:
        return model.estimate(Problem(None, None, statistics.labels, rng, statistics.rows))
    covariance = feature_covariance(statistics) if model.incremental else None
    P = None if checkpointing is None else checkpointing.saved_map(statistics)
    features = model.needs().features
    if features == "scaled" and len(statistics.names) <= NARROW:
        axes = statistics.statistics.principal_axes()
        if model.shares == "population":  # the mixed model does not follow gradients
            outcome = "are inexact, and effects of such small differences may be lost"
            warn_of_small_directions(statistics, *axes, outcome=outcome)
        else:
            outcome = "take very long to find without whitening, so use whiten=True"
            warn_of_small_directions(statistics, *axes, share=SLOW, outcome=outcome)
    problem = canonical(statistics, features, rng, P, previous=previous, retained=retained)
    if checkpointing is not None:
        mapped = replace(statistics, statistics=problem.statistics)
        checkpoints = checkpointing.checkpoints(mapped, problem.canonical, rng)
        problem = replace(problem, checkpoints=checkpoints)
    # Coefficients in units far from one may overflow, which is refused below.
    overflow = np.errstate(over="ignore", invalid="ignore")
    with overflow if statistics.units.has_scales else nullcontext():
        fitted = replace(model.estimate(problem), feature_covariance=covariance)
    require_range(statistics.units, statistics.names, fitted)
    return fitted


def store(
    model: TaskEstimator,
    fitted: FittedSpan,
    statistics: TaskStatistics,
    retained: TaskStatistics | None = None,
) -> None:
    """Set the fitted attributes of an estimator."""
    model.__dict__.update(fitted.attributes())
    model.tasks_ = label_array(statistics.labels)
    model.coef_names_ = np.array(statistics.names, dtype=object)
    if (n_rows := n_rows_of(statistics)) is not None:
        model.n_rows_ = n_rows
    if retained is not None:
        model._statistics_ = retained


def n_rows_of(statistics: TaskStatistics) -> int | None:
    """The number of rows of a fit; weights count as repetitions if the rows are not at hand."""
    if isinstance(statistics.rows, TaskRows):
        return statistics.rows.n_rows
    if statistics.statistics is None:  # rows of a stream
        return None
    return round(float(statistics.statistics.n.sum()))


def require_range(units: Units, names: tuple[str, ...], fitted: FittedSpan) -> None:
    """Raise for coefficients that no number can hold, and warn of squares that none can."""
    if not units.has_scales:
        return
    advice = "Divide y and the features by numbers near their size first."
    if not (np.isfinite(fitted.coef).all() and np.isfinite(fitted.intercept).all()):
        raise ValueError(
            "The coefficients are about as large as y divided by the features, and some are beyond "
            f"the largest number of double precision. {advice}"
        )
    size = np.log2(units.scale) - np.log2(units.y_scale)
    if (tiny := np.flatnonzero(size < SMALLEST_COEFFICIENT)).size:
        warnings.warn(
            f"The coefficients of {tiny.size} feature(s), such as {names[tiny[0]]}, are about as "
            "large as y divided by the feature, which is below the smallest number of double "
            f"precision: they are inexact or zero. {advice}",
            UserWarning,
            stacklevel=5,
        )
    if abs(np.log2(units.y_scale)) > LARGEST_ROOT:
        outcome = "infinite" if units.y_scale < 1 else "zero or inexact"
        warnings.warn(
            f"The largest response is about {1 / units.y_scale:.0e}, but double precision cannot "
            f"represent its square: noise_variance_ and losses are {outcome}. {advice}",
            UserWarning,
            stacklevel=5,
        )


# ---- the ways in ---------------------------------------------------------------------------------


def fit_arrays(
    model: TaskEstimator,
    X: Any,
    y: Any,
    task: Any,
    sample_weight: Any,
    checkpointing: Any = None,
    offset: Any = None,
) -> None:
    """Fit an estimator to arrays, frames or a Dask DataFrame; see ``TaskEstimator.fit``."""
    with unfitted_on_error(model):
        check_parameters(model)
        offset = None if offset is None else offset_of_rows(offset, row_count(X))
        rows = open_rows(model, X, y, task, sample_weight, offset=offset)
        if (
            isinstance(task, str)
            and isinstance(rows, TaskRows)
            and rows.n_rows > 1
            and model.needs().kind is not None
        ):
            warnings.warn(
                f"task={task!r} is one label, so all rows are fitted as one task: give one label "
                "per row.",
                UserWarning,
                stacklevel=3,
            )
        fit_rows(model, rows, checkpointing)
        if offset is not None:
            model.uses_offset_ = True


def fit_files(model: TaskEstimator, path: Any, checkpointing: Any = None, **options: Any) -> None:
    """Fit an estimator to files; see ``TaskEstimator.fit_file``."""
    given = options.get("progress"), options.pop("tick", None)
    options["progress"] = current_progress(*given, stacklevel=4)
    options |= column_options(model, options)
    text_of_tables = table_options(options.pop("encoding", None), options.pop("sheet", None))
    with text_of_tables, unfitted_on_error(model):
        check_parameters(model)
        rows = open_files(path, **options)
        columns = rows.selection.columns
        if model.task_column not in (None, columns.task):
            raise ValueError(
                f"task={columns.task!r}, but the model has task_column={model.task_column!r}: "
                "give the same column, or leave task_column out."
            )
        with_task, selection = model.task_column is not None, rows.selection
        names = selection.names_with_task() if with_task else selection.raw_names()
        set_feature_names(model, names)
        model.columns_ = columns
        with rows.open() if is_local(model) else nullcontext(rows) as opened:
            fit_rows(model, opened, checkpointing)
        model.n_rows_dropped_ = rows.n_dropped


def column_options(model: TaskEstimator, options: dict[str, Any]) -> dict[str, Any]:
    """How columns are prepared: by the model, or by the deprecated arguments of ``fit_file``."""
    columns, text = vars(model).get("columns"), options.pop("text")
    old = {"missing": options["missing"], "text": text, "columns": options["columns"]}
    if given := [name for name, value in old.items() if value is not None]:
        warnings.warn(
            f"fit_file({', '.join(f'{name}=' for name in given)}) is deprecated: give the "
            "constructor columns=ss.Columns(...), or columns= the columns_ of a fitted model.",
            FutureWarning,
            stacklevel=4,
        )
    if text not in (None, "error", "one_hot"):
        raise ValueError(f"text={text!r} is unknown: use 'error' or 'one_hot'.")
    if columns is None:
        columns = options["columns"]
    missing = options["missing"]
    if missing is not None and isinstance(columns, Columns | None):
        columns, missing = replace(columns or Columns(), missing=missing), None
    return {"columns": columns, "refuse_text": text == "error", "missing": missing}


def fit_frame(model: TaskEstimator, frame: Any, missing: str) -> None:
    """Fit an estimator to statistics in a frame; see ``TaskEstimator.fit_statistics``."""
    with unfitted_on_error(model):
        check_parameters(model)
        if isinstance(model.columns, Columns) and model.columns != Columns():
            raise ValueError(
                "columns= prepares rows, and fit_statistics has their sums only: leave columns "
                "out, and make the features in the query."
            )
        scale = model.needs().common_scale
        read = read_statistics(frame, model.fit_intercept, common_scale=scale, missing=missing)
        statistics, given = read.statistics, model.task_column
        if given is not None and given != read.task:
            named = "has no names" if read.task is None else f"has the task column {read.task!r}"
            raise ValueError(
                f"The model has task_column={given!r}, but the frame {named}: leave task_column "
                "out, or give the same column to sharedspan.statistics_query."
            )
        if read.names is None:
            model.n_features_in_ = len(statistics.names)
        else:
            set_feature_names(model, read.names if given is None else (given, *read.names))
        fit_rows(model, statistics)
        model.n_rows_dropped_ = read.n_dropped


def add_rows(
    model: TaskEstimator, X: Any, y: Any, task: Any, sample_weight: Any, forgetting: float
) -> None:
    """Add rows to the statistics of an estimator and fit again; see ``partial_fit``."""
    if is_dask_frame(X):
        raise TypeError(
            "partial_fit takes rows of this machine, but X is a Dask DataFrame: call compute() on "
            "each part first, or use fit."
        )
    first = not model.__sklearn_is_fitted__()
    with unchanged_on_error(model):
        check_parameters(model)
        if not first:
            require_statistics(model, "partial_fit")
        rows = open_rows(model, X, y, task, sample_weight, reset=first)
        scale = model.needs().common_scale
        if first:
            statistics = gather(rows, model.fit_intercept, common_scale=scale, kind="gram")
            statistics = replace(statistics, rows=None, labels=tuple(statistics.labels))
        else:
            statistics = model._statistics_.plus(rows, forgetting=forgetting, common_scale=scale)
        refit(model, statistics)


def merge_statistics(model: TaskEstimator, others: tuple[Any, ...]) -> None:
    """Add the statistics of other models to those of an estimator and fit again; see ``merge``."""
    with unchanged_on_error(model):
        check_parameters(model)
        require_statistics(model, "merge")
        statistics = model._statistics_
        for other in others:
            require_same_model(model, other)
            statistics = statistics.merged(other._statistics_)
        refit(model, statistics)


def refit(model: TaskEstimator, statistics: TaskStatistics) -> None:
    """Fit from retained statistics, starting from the last fit."""
    model.check_shape(None, len(statistics.names))  # more tasks may come
    previous = previous_fit(model) if model.__sklearn_is_fitted__() else None
    fitted = fit_statistics(model, statistics, previous)
    store(model, fitted, statistics, retained=statistics)


def offset_of_rows(offset: Any, n_rows: int) -> np.ndarray:
    """The offset of each row, from one number or one number per row."""
    offset = np.asarray(offset, dtype=float)
    if offset.ndim == 0:
        offset = np.full(n_rows, float(offset))
    if offset.shape != (n_rows,):
        raise ValueError(f"offset has shape {offset.shape}: give one number per row, {n_rows}.")
    if not np.isfinite(offset).all():
        row = int(np.argmin(np.isfinite(offset)))
        raise ValueError(f"offset is {offset[row]} in row {row}: give finite numbers.")
    return offset


# ---- the steps -----------------------------------------------------------------------------------


def is_local(model: TaskEstimator) -> bool:
    """Whether an estimator works in the memory of this process."""
    engine = vars(model).get("engine", "local")
    return isinstance(engine, str) and engine == "local"


def open_rows(
    model: TaskEstimator,
    X: Any,
    y: Any,
    task: Any,
    sample_weight: Any,
    reset: bool = True,
    offset: np.ndarray | None = None,
) -> Any:
    """Validated rows of arrays, frames or a Dask DataFrame.

    With ``reset`` the model takes over the names of the columns, otherwise they must be the same.
    """
    if not is_local(model) and is_dask_frame(X):
        from sharedspan.distributed.sources import DaskFrame

        if vars(model).get("columns") is not None:
            raise ValueError(
                "columns= prepares frames of this machine and files, but X is a Dask DataFrame: "
                "write it to Parquet files and use fit_file, or encode its columns with Dask first."
            )
        frame = DaskFrame.of(X, y, task, model.task_column, sample_weight)
        set_feature_names(model, frame.names_in)
        return frame
    X, as_list = as_table(X), is_task_list(X)
    if not is_dask_frame(X):  # which is refused below, as such
        refuse_column_as_label(X, task)
    if task is None and model.task_column is None and (likely := text_columns(X)) is not None:
        column = repr(likely[0]) if likely else "..."
        warnings.warn(
            "X is a frame, but neither task nor task_column says which rows belong to which task, "
            f"so all rows are fitted as one task: use {type(model).__name__}(task_column={column})"
            ", or give their labels as task= (task=0 if there is one task).",
            UserWarning,
            stacklevel=4,
        )
    if not as_list and getattr(y, "ndim", 1) == 2 and y.shape[1] == 1:
        y = column_or_1d(np.asarray(y), warn=True)
    prepared = None if as_list else prepare(model, X, task, reset)
    if prepared is None:
        rows = validate_rows(
            X, y, task, sample_weight, check_finite=False,
            task_column=task_column_of(X, model.task_column, task),
        )  # fmt: skip
    else:
        y = target_numbers(y, prepared[0].columns.encoding.text)
        parts, model.n_rows_dropped_ = complete_rows(*prepared, y, sample_weight, offset)
        *parts, offset = parts
        only = not prepared[0].columns.names  # a formula may have none but intercepts
        rows = validate_rows(*parts, check_finite=False, intercepts_only=only)
        rows = replace(rows, names=prepared[0].columns.names)
        model.columns_ = prepared[0].columns
    if offset is not None:
        rows = replace(rows, offset=offset)
    if not as_list:
        validate_names(model, X, reset)
    elif reset:
        model.n_features_in_ = rows.n_features
    elif rows.n_features != model.n_features_in_:
        raise ValueError(
            f"X has {rows.n_features} features, but {type(model).__name__} is expecting "
            f"{model.n_features_in_} features as input."
        )
    return rows


@contextmanager
def task_statistics(model: TaskEstimator, rows: Any) -> Iterator[TaskStatistics]:
    """Statistics of the rows, built in this process, or on a cluster that is freed afterwards."""
    needs = model.needs()
    if isinstance(rows, TaskStatistics):
        yield rows
    elif needs.kind is None:
        rows.require_finite()
        yield TaskStatistics(None, None, rows.labels, rows.names, rows)
    elif is_local(model):
        if needs.moments is None and (on_device := device_statistics(model, rows)) is not None:
            yield on_device
            return
        moments = None if needs.moments is None else needs.moments(rows)
        yield gather(
            rows, model.fit_intercept, common_scale=needs.common_scale, kind=needs.kind,
            moments=moments,
        )  # fmt: skip
    else:
        from sharedspan.distributed.sources import gather_on_cluster

        statistics = gather_on_cluster(
            model.engine, rows, model.fit_intercept, common_scale=needs.common_scale,
            kind=needs.kind, keep_rows=needs.folds,
        )  # fmt: skip
        with closing(statistics.statistics):
            yield statistics


def device_statistics(model: TaskEstimator, rows: Any) -> TaskStatistics | None:
    """Statistics of the rows that stay on a GPU, if the model's backend is one that gains by it."""
    backend = vars(model).get("backend", "numpy")
    if isinstance(backend, str) and backend == "numpy":
        return None
    from sharedspan.objective.backends import choose_backend, rows_gain

    if vars(model).get("solver") not in SUM_SOLVERS or not rows_gain(backend, rows):
        return None
    chosen = choose_backend(backend)
    if chosen is None:
        return None
    from sharedspan.objective.device import gather_on_device

    return gather_on_device(rows, model.fit_intercept, chosen)


def statistics_to_retain(model: TaskEstimator, statistics: TaskStatistics) -> TaskStatistics | None:
    """The statistics for ``partial_fit`` and ``merge``, or None if not to be retained."""
    wanted = model.needs().sums_suffice and vars(model).get("keep_statistics", False)
    if wanted == "auto":
        T, d = len(statistics.labels), len(statistics.names)
        wanted = 8 * T * d * (d + 7) / 2 <= RETAINED_BYTES
    if not wanted:
        return None
    if isinstance(statistics.statistics, GramStatistics):
        return replace(statistics, rows=None, moments=None, labels=tuple(statistics.labels))
    if not isinstance(statistics.statistics, RowStatistics):  # on a cluster or a GPU
        copied = statistics.copy()
        return copied if isinstance(copied.statistics, GramStatistics) else None
    options: dict[str, Any] = {"common_scale": model.needs().common_scale, "kind": "gram"}
    gathered = gather(statistics.rows, model.fit_intercept, **options)
    return replace(gathered, rows=None, labels=tuple(gathered.labels))


def previous_fit(model: TaskEstimator) -> PreviousFit | None:
    """The last fit of an estimator, if a refit can start from it."""
    rows = vars(model).get("_rows_at_start_")
    if rows is None:
        return None
    labels, held = tuple(model.tasks_.tolist()), vars(model)
    return PreviousFit(labels, held["representation_"], held["task_weights_"], rows)


def set_feature_names(model: TaskEstimator, names: tuple[str, ...]) -> None:
    """Take over the names of columns that scikit-learn cannot read from X itself."""
    model.n_features_in_ = len(names)
    model.feature_names_in_ = np.array(names, dtype=object)


# ---- checks, and failed fits ---------------------------------------------------------------------


@contextmanager
def unfitted_on_error(model: TaskEstimator) -> Iterator[None]:
    """Forget the last fit first; a fit that fails leaves no half-fitted model."""
    forget(model)
    try:
        yield
    except BaseException:
        forget(model)
        raise


def forget(model: TaskEstimator) -> None:
    """Remove everything that an estimator has learned."""
    for name in [name for name in vars(model) if name.endswith("_")]:
        delattr(model, name)


@contextmanager
def unchanged_on_error(model: TaskEstimator) -> Iterator[None]:
    """If anything fails, restore the model."""
    before = dict(vars(model))
    try:
        yield
    except BaseException:
        model.__dict__.clear()
        model.__dict__.update(before)
        raise


def require_statistics(model: TaskEstimator, method: str) -> None:
    """Raise if a model has no statistics to continue from."""
    check_is_fitted(model)
    if "_statistics_" not in vars(model):
        raise ValueError(
            f"{method} needs the statistics of the rows so far, but fit did not retain them: fit "
            "with keep_statistics=True, or by partial_fit (one call with all rows is enough)."
        )
    if model._statistics_.statistics.centred != model.fit_intercept:
        raise ValueError(
            f"fit_intercept={model.fit_intercept!r}, but the retained statistics were built with "
            f"{not model.fit_intercept!r}: restore it, or fit again from the rows."
        )


def require_same_model(model: TaskEstimator, other: Any) -> None:
    """Raise unless the statistics of another model can be added to the model's own."""
    if type(other) is not type(model):
        raise TypeError(
            f"merge was given a {type(other).__name__}: give a fitted {type(model).__name__}."
        )
    require_statistics(other, "merge")
    mine, theirs = model._statistics_, other._statistics_
    if mine.names != theirs.names:
        first, second = (
            ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
            for names in (mine.names, theirs.names)
        )
        raise ValueError(
            f"The models have different features, {first} and {second}: fit both to the same "
            "columns in the same order."
        )
    if mine.statistics.centred != theirs.statistics.centred:
        raise ValueError(
            "One model has intercepts and the other has none: fit both with the same fit_intercept."
        )
