"""``ss.mixed``: the mixed model that a formula describes, fitted to a table."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.estimators.adaptive import AdaptiveSpanRegressor
from sharedspan.formula.advice import FormulaError
from sharedspan.formula.columns import ColumnUses
from sharedspan.formula.design import learn_design
from sharedspan.formula.parse import Formula, parse_formula
from sharedspan.formula.table import as_frame
from sharedspan.inputs.columns import Columns
from sharedspan.inputs.expressions import Variable
from sharedspan.inputs.files import nearest
from sharedspan.inputs.frame_table import raw_names
from sharedspan.inputs.frames import row_count
from sharedspan.inputs.reader import read_columns

LABEL_TYPES = {"i": "BIGINT", "u": "UBIGINT", "f": "DOUBLE"}


def mixed(
    formula: str,
    data: Any,
    *,
    family: str = "gaussian",
    reml: bool | None = None,
    weights: Any = None,
    offset: Any = None,
    exposure: Any = None,
    columns: Columns | None = None,
    approximation: str = "laplace",
    verbose: int = 0,
    **unknown: Any,
) -> AdaptiveSpanRegressor:
    """Fit a mixed model that a formula describes, as lme4 and glmmTMB do.

    Fixed effects have no penalty, and the covariance of the random effects is what the formula says
    and nothing else. ``print(model.summary())`` shows estimates, tests and variance components.

    Parameters
    ----------
    formula : str
        Such as ``"math ~ ses * sex + (1 + ses | school)"``. Random effects: ``(1 + x | g)`` with an
        unrestricted covariance, ``(1 + x || g)`` independent, ``rr(1 + x + z | g, 2)`` along two
        directions (without a number, as many as the likelihood supports), ``(1 | a/b)`` for groups
        b within groups a, and ``(1 | a) + (1 | b)`` for crossed groups. ``s(x)`` is a smooth curve,
        ``factor(x)`` makes categories of numbers, ``offset(x)`` has a coefficient of one, and
        ``cbind(successes, failures)`` is a response of counts. Arithmetic goes into ``I(...)``;
        ``log``, ``exp`` and ``sqrt`` are known. Nothing else is evaluated.
    data : pandas, polars or pyarrow table, dict of {str: array-like}, or path
        A path, or a list of them, is read into memory: CSV, Parquet or a workbook.
    family : str, default="gaussian"
        See ``AdaptiveSpanRegressor``.
    reml : bool, optional
        Restricted instead of maximum likelihood; by default for "gaussian" alone.
    weights : str or array-like of shape (rows,), optional
        A column, or numbers, by which the noise variance of a row is divided; for other families
        than the Gaussian, they multiply its log likelihood.
    offset, exposure : array-like of shape (rows,), optional
        See ``AdaptiveSpanRegressor.fit``; ``predict`` then needs those of its rows.
    columns : Columns, optional
        How single columns are read: reference levels, missing values, dates, decimal commas. Rare
        levels are pooled only if ``rare`` has another value than its default.
    approximation : {"laplace", "quadrature", "auto"}, default="laplace"
        See ``AdaptiveSpanRegressor``; the default is that of lme4 and glmmTMB.
    verbose : int, default=0
        1 prints each fit that was compared.

    Returns
    -------
    AdaptiveSpanRegressor
        Fitted. It retains the rows for tests and simulations, which ``save`` does not write.

    Examples
    --------
    >>> import sharedspan as ss
    >>> table = ss.datasets.load_parkinsons().to_frame()
    >>> model = ss.mixed("total_updrs ~ test_time + (1 + test_time | subject)", table)
    >>> len(model.tasks_)
    42
    """
    for name in unknown:
        known = [n for n, p in signature(mixed).parameters.items() if p.kind is p.KEYWORD_ONLY]
        raise TypeError(
            f"mixed has no option {name!r}: its options are {', '.join(known)}."
            f"{nearest(name, known)}"
        )
    parsed = parse_formula(formula)
    data = as_frame(read_files(data, parsed, weights) if is_path(data) else data)
    if columns is not None and columns.rare == Columns().rare:
        columns = replace(columns, rare=0)  # no levels are pooled unless told, as in R
    design = learn_design(parsed, data, columns, two_levels=family == "gaussian")
    if design.levels is not None and family not in ("binomial", "probit"):
        first, second = design.levels
        raise FormulaError(
            f"The response {str(parsed.response)!r} holds {first!r} and {second!r}, but "
            f"family={family!r} needs numbers: give family='binomial', or a numeric column."
        )
    y, trials = design.response(data)
    restricted = family == "gaussian" if reml is None else reml
    weight = _weights(weights, data)
    effects = replace(
        design.effects,
        formula=" ".join(formula.split()),
        weighted_noise=weight is not None and family == "gaussian",
        weights=weights if isinstance(weights, str) else "" if weights is None else "an array",
    )
    if design.outer_effects is not None:
        effects = replace(effects, outer=design.outer_effects.blocks)
    if trials is not None:
        if family == "gaussian":
            raise FormulaError(
                "cbind(successes, failures) is a binomial response: give family='binomial'."
            )
        weight = trials if weight is None else trials * weight
    learned = design.columns
    if design.levels is None and isinstance(parsed.response, Variable):
        learned = replace(learned, target=parsed.response.name)
    if design.levels is not None:
        learned = replace(learned, classes=design.levels)
    model = AdaptiveSpanRegressor(
        slopes=effects,
        columns=learned,
        task_column=design.columns.task,
        family=family,
        method="reml" if restricted else "ml",
        fit_intercept=effects.has_intercept,
        approximation=approximation,
        verbose=verbose,
    )
    model.fit(data, y, sample_weight=weight, offset=offset, exposure=exposure)
    kind = LABEL_TYPES.get(model.tasks_.dtype.kind)  # by which further rows are read from files
    if kind is not None and isinstance(learned.task, str):
        model.columns = model.columns_ = replace(learned, label=kind)
    model._table = data
    return model


def is_path(data: Any) -> bool:
    """Whether the data are a file, or a list of files."""
    parts = data if isinstance(data, list) and data else [data]
    return all(isinstance(part, str | Path) for part in parts)


def read_files(paths: Any, formula: Formula, weights: Any) -> Any:
    """The columns of files that a formula uses, as an Arrow table."""
    names = [*ColumnUses.of(formula).names, *formula.response.names]
    names += [name for bar in formula.bars for name in bar.groups]
    names += [name for part in formula.offsets for name in part.names]
    names += [weights] if isinstance(weights, str) else []
    return read_columns(paths, list(dict.fromkeys(names)))


def _weights(weights: Any, data: Any) -> np.ndarray | None:
    """The weights of the rows, which may be a column of the table."""
    if isinstance(weights, str):
        names = raw_names(data)
        if weights not in names:
            raise FormulaError(
                f"weights={weights!r} is not a column of the table.{nearest(weights, names)}"
            )
        weights = data[weights]
    if weights is None:
        return None
    weights = np.asarray(weights, dtype=float)
    if weights.shape != (row_count(data),):
        raise FormulaError(
            f"weights have shape {weights.shape}: give one number per row, {row_count(data)}."
        )
    return weights
