"""Parameters of the estimators: what several of them share is documented and checked here, once.

``@estimator("rank solver fit_intercept ...")`` makes the constructor of a class from that list, in
that order: a parameter's default stands in the class, or in ``SHARED`` below. In a docstring the
line ``{fit_intercept, unseen}`` becomes the entries of these parameters, and ``{coef_}`` the entry
of an attribute, so that the page of every estimator stands alone.
"""

from __future__ import annotations

import inspect
import numbers
import re
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from sharedspan.inference.rank_selection import RANK_METHODS
from sharedspan.statistics.canonical import Problem

Check = Callable[[str, Any], object]  # of the name and the value; raises for a value that is wrong
Estimator = TypeVar("Estimator", bound=type)


def one_of(name: str, value: Any, known: tuple[Any, ...]) -> None:
    """Raise unless value is one of the known ones."""
    if not any(value is option or (type(value) is type(option) and value == option)
               for option in known):  # fmt: skip
        raise ValueError(f"{name}={value!r} is unknown: use {', '.join(map(repr, known))}.")


def at_least(name: str, value: Any, smallest: float, kind: type = numbers.Real) -> None:
    """Raise unless value is a finite number of the kind, at least ``smallest``."""
    words = "an integer" if kind is numbers.Integral else "a number"
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{name}={value!r} must be {words}, not {type(value).__name__}.")
    if not smallest <= float(value) < np.inf:  # type: ignore[arg-type]
        raise ValueError(f"{name}={value!r} must be {words} of at least {smallest:g}.")


def number_or_auto(name: str, value: Any, smallest: float, kind: type = numbers.Real) -> None:
    """Raise unless value is "auto" or a number as ``at_least`` wants it."""
    try:
        if isinstance(value, str):
            if value != "auto":
                words = "an integer" if kind is numbers.Integral else "a number"
                raise ValueError(f"{name}={value!r} must be {words}.")
        else:
            at_least(name, value, smallest, kind)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} Or use {name}='auto'.") from None


def check_rank(name: str, value: Any) -> None:
    """Raise unless value is a rank of 1 and more, or the name of a way to select it."""
    methods = "'auto', 'evidence' or 'threshold'"
    if isinstance(value, str):
        if value not in RANK_METHODS:
            raise ValueError(f"{name}={value!r} is unknown: use an integer, {methods}.")
        return
    try:
        at_least(name, value, 1, numbers.Integral)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} Or use {name}={methods}.") from None


def check_verbose(name: str, value: Any) -> None:
    """Raise unless value is an integer or a bool."""
    if not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}={value!r} must be an integer or a bool.")


def as_generator(random_state: Any) -> np.random.Generator:
    """A generator of None, an integer, a Generator or scikit-learn's RandomState."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31 - 1))
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"random_state={random_state!r} must be None, an integer of at least 0, or a numpy "
            "random generator."
        ) from error


DEPRECATED = "deprecated"  # the default of a parameter that has another name now


def current_value(model: Any, name: str) -> Any:
    """The value of a parameter, or that of its old name where a user still gives that."""
    for old, new in model.renamed.items():
        if new == name and getattr(model, old) != DEPRECATED:
            return getattr(model, old)
    return getattr(model, name)


def check_parameters(model: Any) -> None:
    """Raise for the first parameter of an estimator whose value is wrong."""
    for name, value in model.get_params(deep=False).items():
        if name in model.renamed:
            if value == DEPRECATED:
                continue
            new = model.renamed[name]
            warnings.warn(
                f"{type(model).__name__}({name}=...) is deprecated: use {new}={value!r}.",
                FutureWarning,
                stacklevel=4,
            )
            name = new
        shared = SHARED.get(name)
        check = model.checks.get(name, None if shared is None else shared.check)
        if check is not None:
            check(name, value)
    model.check_combination()


def require_rows_to_split(problem: Problem, option: str, instead: str) -> None:
    """Raise where a task has too few rows for an option that splits the rows of every task."""
    counts = np.diff(problem.rows.starts)
    if counts.min() < 2:
        label = problem.labels[int(np.argmin(counts))]
        raise ValueError(
            f"{option} splits the rows of every task, and task {label!r} has one sample: leave "
            f"such tasks out, or use {instead}."
        )


@dataclass(frozen=True)
class Parameter:
    """A parameter that several estimators have."""

    kind: str  # its types, as a docstring has them
    doc: str
    default: Any = None
    check: Check | None = None


BOOL = partial(one_of, known=(True, False))

SHARED = {
    "rank": Parameter(
        'int, "auto", "evidence" or "threshold"',
        """k, the dimension of the span. "auto" cross-validates within tasks; among ranks that
        this cannot tell apart, by one paired standard error, the evidence decides. "evidence"
        goes by marginal likelihood alone, faster where tasks are hundreds, not where they are
        many thousands. "threshold" counts singular values of separate fits above the noise, for
        tasks with at least three rows per feature.""",
        "auto",
        check_rank,
    ),
    "fit_intercept": Parameter("bool", "Whether each task has its own intercept.", True, BOOL),
    "whiten": Parameter(
        "bool",
        """Whether to whiten the features by their pooled within-task covariance first. Lengths
        and angles are then measured in whitened features, so that the units of the features
        do not matter. Directions with less than 1e-10 of the largest variance (after
        standardising) get coefficient zero.""",
        True,
        BOOL,
    ),
    "unseen": Parameter(
        '{"error", "mean"}',
        "What to predict for a task that was not fitted: nothing, or by the mean over tasks.",
        "error",
        partial(one_of, known=("error", "mean")),
    ),
    "task_column": Parameter("str or int, optional", "The column of X that holds the task labels."),
    "max_iter": Parameter(
        "int", "The most iterations.", None, partial(at_least, smallest=1, kind=numbers.Integral)
    ),
    "tol": Parameter("float", "", None, partial(at_least, smallest=0.0)),
    "random_state": Parameter(
        "int, Generator, RandomState or None",
        "Seed or generator for random starts and folds.",
        None,
        lambda name, value: as_generator(value),
    ),
    "engine": Parameter(
        '{"local", "dask"}, Client, str or DaskEngine',
        """Where statistics are built and stay: on this machine, or on a Dask cluster (the current
        client, a client, or the address of a scheduler; ``pip install 'sharedspan[dask]'``). The
        rows are freed there once the statistics are built, except for ``rank="auto"``, which
        needs them.""",
        "local",
    ),
    "verbose": Parameter("int", "1 shows progress.", 0, check_verbose),
    "keep_statistics": Parameter(
        '"auto" or bool',
        """Whether the model retains the statistics of its rows, d (d + 7) / 2 numbers per task, so
        that ``partial_fit`` can go on from them and ``merge`` can share them. "auto" retains them
        up to 128 MB. ``partial_fit`` and ``merge`` themselves always do.""",
        "auto",
        partial(one_of, known=("auto", True, False)),
    ),
}

ATTRIBUTES = {
    "tasks_": (
        "ndarray of shape (T,)",
        "Labels: numbers sorted, strings sorted, others by first appearance.",
    ),
    "coef_": ("ndarray of shape (T, d)", "Coefficients of each task."),
    "intercept_": ("ndarray of shape (T,)", "Intercept of each task."),
    "representation_": (
        "ndarray of shape (d, k)",
        "Orthonormal basis of the span, by singular value, largest loading positive.",
    ),
    "task_weights_": (
        "ndarray of shape (k, T)",
        "Coordinates of the tasks in the span: ``representation_ @ task_weights_`` is the part of "
        "``coef_.T`` in it.",
    ),
    "rank_": ("int", "k."),
    "rank_path_": (
        "RankPath",
        """Losses along the ranks where the rank was selected; None where there was nothing to
        select.""",
    ),
    "noise_variance_": ("ndarray of shape (T,)", "Noise variance of each task."),
    "feature_covariance_": (
        "ndarray of shape (d, d)",
        """S, the pooled covariance of the features within tasks (about zero without intercepts):
        the variance that coefficients v explain within tasks is v'Sv. Stored for up to 500
        features, if their squares can be represented.""",
    ),
    "n_iter_": ("int", "Iterations made."),
    "converged_": ("bool", "Whether the fit ended by ``tol``."),
    "coef_names_": ("ndarray of shape (d,)", "Names of the features."),
    "n_features_in_": ("int", "Columns of X as passed, task column included."),
    "feature_names_in_": (
        "ndarray of shape (n_features_in_,)",
        "Names of the columns of X as passed, where it had names.",
    ),
}


ARGUMENTS = {  # of fit and fit_file; what stands before a colon is not part of the name
    "X": (
        "array-like or frame of shape (rows, d), or a list of T arrays (n_t, d)",
        """With ``engine="dask"`` also a Dask DataFrame; y and task are then names of its columns,
        or Dask Series, and its rows never come to this machine.""",
    ),
    "y": ("array-like of shape (rows,), or a list of T arrays", "Responses."),
    "task": (
        "array-like of shape (rows,), optional",
        """The task of each row, labels of any hashable kind. Without it, and without
        ``task_column``, all rows are one task (each array of a list is one).""",
    ),
    "sample_weight": (
        "array-like of shape (rows,), optional",
        """Counts as repetition: weight 2 is the row written twice, weight 0 the row left out. So
        the scale of the weights matters wherever the number of rows does.""",
    ),
    "checkpoint": (
        "path, optional",
        "A file where the solver saves its state, so that a fit that is killed can go on.",
    ),
    "resume": (
        "path, optional",
        """A checkpoint to go on from, with the same data and settings; it is also where further
        checkpoints go, unless ``checkpoint`` names another file. The result is that of a fit that
        was not interrupted. Other data are refused with ``ss.CheckpointError``.""",
    ),
    "checkpoint_seconds": ("float, default=60", "Time between two checkpoints."),
    "path": (
        "str, path, or iterable of them",
        """A file, a pattern such as ``"logs/*.parquet"``, a folder (its CSV or Parquet files; names
        that begin with "." or "_" do not count), or several of them.""",
    ),
    "file:task": (
        "str",
        """Column with the task of each row, whose labels become ``int``, ``float`` or ``str``.""",
    ),
    "target": ("str", "Column to predict."),
    "features": (
        "str or iterable of str, optional",
        """Columns of X, in this order. None takes all that are neither task, target nor
        dropped.""",
    ),
    "drop": ("str or iterable of str, optional", "Columns that are not features."),
    "memory_limit": (
        "int or str, optional",
        """The most memory that the whole process may take, in bytes or as "2GB" or "1.5 GiB".
        Python takes about 0.5 GB of it, DuckDB gets half of the rest for reading, and then all of
        the rest must hold the statistics, about 4 T d (d + 7) bytes for T tasks of d features,
        twice. None reads within 2 GB and lets the fit take what the machine has.""",
    ),
    "missing": (
        '{"error", "drop"}, default="error"',
        '"drop" leaves out the rows that lack a value; ``n_rows_dropped_`` says how many.',
    ),
    "text": (
        '{"error", "one_hot"}, default="error"',
        """What to do with a feature of text: refuse it, or replace it by columns of zeros and
        ones, one for each of its levels but the first in sorted order, named such as "colour=red".
        What the first level adds is in the intercepts.""",
    ),
    "columns": (
        "Columns, optional",
        """The ``columns_`` of a model that was fitted to files: these files are then read in the
        same way, levels of text included, and nothing else need be said of columns.""",
    ),
    "progress": (
        "callable of (stage, done, total), optional",
        "Called now and then with the stage and how far it is; a total of 0 is unknown.",
    ),
    "tick": ("callable, optional", "Deprecated: the old name of ``progress``."),
}


def estimator(parameters: str) -> Callable[[Estimator], Estimator]:
    """A class decorator that makes the constructor and completes the docstring.

    Parameters
    ----------
    parameters : str
        Names of the constructor's parameters, in their order.
    """

    def decorate(cls: Estimator) -> Estimator:
        own = inspect.get_annotations(cls)
        names = parameters.split()
        for name in names:
            if name not in cls.__dict__:
                setattr(cls, name, SHARED[name].default)
        cls.__annotations__ = {name: own.pop(name, "Any") for name in names}
        complete_docstrings(cls)
        return dataclass(eq=False, repr=False)(cls)  # type: ignore[return-value]

    return decorate


def complete_docstrings(cls: type) -> None:
    """Replace lines such as ``{coef_, intercept_}`` in the docstrings of a class by entries."""
    for part in (cls, *(value for value in vars(cls).values() if inspect.isfunction(value))):
        if part.__doc__:
            part.__doc__ = re.sub(r"(?m)^( +)\{([\w:, ]+)\}$", partial(_entries, cls), part.__doc__)


def _entries(cls: type, match: re.Match[str]) -> str:
    """The docstring's entries of the parameters and attributes that a line names."""
    entries = []
    for name in match[2].split(", "):
        if name in SHARED:
            kind, doc = SHARED[name].kind, SHARED[name].doc
            default = getattr(cls, name)
            if default is not None:
                kind += f", default={default!r}".replace("'", '"')
        else:
            kind, doc = ATTRIBUTES.get(name) or ARGUMENTS[name]
        body = textwrap.indent(textwrap.fill(" ".join(doc.split()), 90), "    ")
        entries.append(f"{name.split(':')[-1]} : {kind}\n{body}")
    return textwrap.indent("\n".join(entries), match[1])
