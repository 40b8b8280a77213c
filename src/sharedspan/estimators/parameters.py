"""Parameters of the estimators: shared ones are documented and checked here, once.

``@estimator("rank solver fit_intercept ...")`` makes the constructor of a class from that list, in
that order: a parameter's default is in the class, or in ``SHARED`` below. In a docstring the line
``{fit_intercept, unseen}`` becomes the entries of these parameters; see ``docstrings.py``.
"""

from __future__ import annotations

import inspect
import numbers
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from sharedspan.estimators.docstrings import Entry, complete_docstrings
from sharedspan.inference.rank_selection import RANK_METHODS
from sharedspan.inputs.columns import Columns
from sharedspan.inputs.table_columns import TableColumns
from sharedspan.statistics.canonical import Problem

Check = Callable[[str, Any], object]  # of the name and the value; raises for an invalid value
Estimator = TypeVar("Estimator", bound=type)


def one_of(name: str, value: Any, known: tuple[Any, ...]) -> None:
    """Raise unless value is one of the known ones."""
    if not any(value is option or (type(value) is type(option) and value == option)
               for option in known):  # fmt: skip
        raise ValueError(f"{name}={value!r} is unknown: use {', '.join(map(repr, known))}.")


def at_least(name: str, value: Any, smallest: float, kind: type = numbers.Real) -> None:
    """Raise unless ``value`` is a finite number of the type ``kind`` and at least ``smallest``."""
    words = "an integer" if kind is numbers.Integral else "a number"
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{name}={value!r} must be {words}, not {type(value).__name__}.")
    if not smallest <= float(value) < np.inf:  # type: ignore[arg-type]
        raise ValueError(f"{name}={value!r} must be {words} of at least {smallest:g}.")


def above_zero(name: str, value: Any) -> None:
    """Raise unless value is a finite number above zero."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0 < float(value) < np.inf:
        raise ValueError(f"{name}={value!r} must be a number above zero.")


def option_names(name: str, options: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """The options of a parameter that is a dict or None; raises for an unknown one."""
    if options is not None and not isinstance(options, dict):
        raise TypeError(f"{name}={options!r} must be a dict or None.")
    for option in options or {}:
        if option not in known:
            raise TypeError(f"{name}: {option!r} is unknown: use {', '.join(map(repr, known))}.")
    return dict(options or {})


def number_or_auto(name: str, value: Any, smallest: float, kind: type = numbers.Real) -> None:
    """Raise unless value is "auto" or a number that ``at_least`` accepts."""
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
    """Raise unless value is a rank of at least 1, or the name of a method to select it."""
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


def check_columns(name: str, value: Any) -> None:
    """Raise unless value says how columns become features."""
    if not isinstance(value, Columns | TableColumns | None):
        raise TypeError(
            f"{name}={value!r} must be ss.Columns(...), the columns_ of a fitted model, or None."
        )


def as_generator(random_state: Any) -> np.random.Generator:
    """A generator from None, an integer, a Generator or scikit-learn's RandomState."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31 - 1))
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"random_state={random_state!r} must be None, an integer of at least 0, or a numpy "
            "random generator."
        ) from error


DEPRECATED = "deprecated"  # the default of a parameter that was renamed


def current_value(model: Any, name: str) -> Any:
    """The value of a parameter, given by its current or its old name."""
    for old, new in model.renamed.items():
        if new == name and getattr(model, old) != DEPRECATED:
            return getattr(model, old)
    return getattr(model, name)


def check_parameters(model: Any) -> None:
    """Raise for the first parameter of an estimator with an invalid value."""
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
    """Raise if a task has too few rows for an option that splits the rows of every task."""
    counts = np.diff(problem.rows.starts)
    if counts.min() < 2:
        label = problem.labels[int(np.argmin(counts))]
        raise ValueError(
            f"{option} splits the rows of every task, and task {label!r} has only one "
            f"sample: leave such tasks out, or use {instead}."
        )


@dataclass(frozen=True)
class Parameter:
    """A parameter that several estimators have."""

    kind: str  # its types, as in a docstring
    doc: str
    default: Any = None
    check: Check | None = None


BOOL = partial(one_of, known=(True, False))

SHARED = {
    "rank": Parameter(
        'int, "auto", "evidence" or "threshold"',
        """k, the dimension of the span. "auto" cross-validates within tasks; among ranks that
        differ by less than one paired standard error, the evidence decides. "evidence" uses the
        marginal likelihood alone, and needs no rows. It takes about as long as "auto" with up to
        hundreds of tasks, and much longer with many thousands.
        "threshold" counts singular values of separate fits above the noise, for tasks with at
        least three rows per feature.""",
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
        """What ``predict`` does for a task that was not in the fit: raise an error, or predict with
        the mean of the coefficients and of the intercepts over the fitted tasks.""",
        "error",
        partial(one_of, known=("error", "mean")),
    ),
    "task_column": Parameter(
        "str or int, optional",
        """The column of X that holds the task labels; "school" also finds the only column whose
        name ends in "__school", such as the "remainder__school" of a ColumnTransformer.""",
    ),
    "columns": Parameter(
        "Columns, or the ``columns_`` of a fitted model, optional",
        """How text, dates, missing values and codes become features; see ``Columns``. None applies
        the defaults of ``Columns`` if some columns are not numeric. The ``columns_`` of a fitted
        model are applied without learning levels, means or knots again.""",
        None,
        check_columns,
    ),
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
        """The place of the statistics: this machine, or a Dask cluster (the current client, a
        client, or the address of a scheduler; ``pip install 'sharedspan[dask]'``). The cluster
        frees the rows once the statistics are built, but keeps them for estimators with
        ``rank="auto"``.""",
        "local",
    ),
    "verbose": Parameter("int", "1 shows progress.", 0, check_verbose),
    "keep_statistics": Parameter(
        '"auto" or bool',
        """Whether the model retains the statistics of its rows, d (d + 7) / 2 numbers per task, so
        that ``partial_fit`` and ``merge`` can continue from them. "auto" retains them up to 128 MB.
        ``partial_fit`` and ``merge`` themselves always do.""",
        "auto",
        partial(one_of, known=("auto", True, False)),
    ),
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
        names = [*parameters.split(), "columns"]
        for name in names:
            if name not in cls.__dict__:
                setattr(cls, name, SHARED[name].default)
        cls.__annotations__ = {name: own.pop(name, "Any") for name in names}
        last = "\n\n    Attributes\n"  # every estimator has this parameter, after its own ones
        cls.__doc__ = (cls.__doc__ or "").replace(last, f"\n    {{columns}}{last}", 1)
        complete_docstrings(cls, parameter_entry)
        made: Any = dataclass(eq=False, repr=False)(cls)
        # Of fitted attributes, which are not fields: model files are checked by them.
        made.__annotations__ = made.__annotations__ | own
        return made

    return decorate


def parameter_entry(cls: type, name: str) -> Entry | None:
    """The docstring entry of a shared parameter, with the default of a class."""
    if name not in SHARED:
        return None
    kind, default = SHARED[name].kind, getattr(cls, name)
    if default is not None:
        kind += f", default={default!r}".replace("'", '"')
    return kind, SHARED[name].doc
