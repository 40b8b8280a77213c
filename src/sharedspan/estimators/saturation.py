"""Fits that use up their rows: what these leave unknown, in sentences."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharedspan.mixed_model.structures import Block, Effects

SCALES = ("gaussian", "student_t", "huber")  # families whose noise is estimated
MORE = "give more rows per task"


def unknown_noise(model: Any) -> str | None:
    """Why a model has no estimate of its noise, and so no intervals; None if it has one.

    A span is estimated by least squares, and noise from what the rows leave. In the mixed model
    ``degrees_of_freedom_`` counts effective parameters, which all rows are only in a model of more
    fixed coefficients than rows.
    """
    held = vars(model)
    variance, n_rows = held.get("noise_variance_"), held.get("n_rows_")
    if variance is None or model.response_family().name not in SCALES:
        return None
    used = held.get("degrees_of_freedom_") if model.shares == "population" else None
    spent = used is not None and n_rows is not None and used > n_rows - 0.5
    if not spent and not np.isnan(variance).all():
        return None
    other = ", or fit AdaptiveSpanRegressor" * (model.shares != "population")
    rows = "the" if n_rows is None else f"the {n_rows:,}"
    return (
        f"The fit uses up {rows} rows, so that the noise and the errors of new rows are unknown, "
        f"and there are no standard errors or intervals: {MORE}{other}."
    )


def saturation_notes(model: Any) -> tuple[str, ...]:
    """A sentence on what a fit cannot estimate for lack of rows; none if it has rows to spare."""
    words = unknown_noise(model) or _one_row_each(model)
    return () if words is None else (words,)


def _one_row_each(model: Any) -> str | None:
    """What intercepts of tasks with one row each do to a fit."""
    if vars(model).get("n_rows_") != len(model.tasks_) or not model.fit_intercept:
        return None
    if model.shares == "population":
        if model.response_family().name not in SCALES or "outer_tasks_" in vars(model):
            return None
        return (
            "Every task has one row, so the variance of the intercepts cannot be separated from "
            "that of the noise: only the sum of these two variances is known."
        )
    if model.shares in ("nothing", "slopes") and "noise_variance_" not in vars(model):
        return (
            "Every task has one row, which its intercept fits exactly: slopes are not estimated, "
            f"and errors of these rows are zero: {MORE}, or fit AdaptiveSpanRegressor."
        )
    return None


def require_identified(model: Any, problem: Any, coefficients: Any) -> None:
    """Raise ValueError, in a sentence, if the effects of a formula are not identified."""
    from sharedspan.estimators.inference import crossed_groups, group_name, outer_name
    from sharedspan.estimators.nested import outer_groups

    if not isinstance(model.slopes, Effects) or problem.rows is None:
        return
    n_rows, alone = problem.rows.n_rows, (Block("full", (0,)),)
    groups = [(group_name(model), len(problem.labels), coefficients.blocks)]
    groups += [(name, len(at), alone) for name, at in crossed_groups(model)]
    if coefficients.outer:
        n_outer = len(outer_groups(problem.labels)[0])
        groups.append((outer_name(model), n_outer, coefficients.outer))
    for name, n_groups, blocks in groups:
        if n_groups < 2:
            raise ValueError(
                f"All rows are in one group of `{name}`, but random effects need at least two: "
                "group by another column."
            )
        if model.response_family().name in SCALES:
            _require_spare_rows(name, n_groups, blocks, n_rows)
    n_fixed = int((coefficients.fixed & (coefficients.groups < 0)).sum())
    if model.response_family().name in SCALES and n_fixed >= n_rows:
        raise ValueError(
            f"The formula has {n_fixed:,} fixed effects and the table {n_rows:,} rows, which "
            "leaves nothing to estimate the noise from: give more rows, or fewer terms."
        )


def _require_spare_rows(name: str, n_groups: int, blocks: Any, n_rows: int) -> None:
    """Raise unless the effects of each term of a group are fewer than the rows."""
    if n_groups >= n_rows:
        raise ValueError(
            f"`{name}` has {n_groups:,} groups and the table {n_rows:,} rows, so random effects "
            "cannot be distinguished from noise: group by a column with several rows in a group."
        )
    for block in blocks:
        each = len(block.members) if block.kind == "full" else block.n_columns
        if n_groups * each >= n_rows:
            raise ValueError(
                f"The groups of `{name}` have {n_groups * each:,} random effects ({each} in each "
                f"of {n_groups:,} groups) and the table {n_rows:,} rows, so these cannot be "
                f"distinguished from noise: let fewer vary, such as (1 | {name})."
            )


def require_noise(model: Any) -> None:
    """Raise ValueError, in a sentence, if the noise of a model is unknown."""
    if (words := unknown_noise(model)) is not None:
        raise ValueError(words)
