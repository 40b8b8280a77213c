"""Fitted models on the command line: the columns of their tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sharedspan.inputs.encoders import Encoding, Number
from sharedspan.inputs.table_columns import TableColumns


def columns_of(
    model: Any, task: str | None = None, target: str | None = None, *, needs_target: bool = False
) -> TableColumns:
    """The columns that a table for a fitted model must have.

    A model that was fitted to files stores them; otherwise the features are ``coef_names_``. Names
    of the task and target columns may differ from the fit.
    """
    columns: TableColumns | None = model.fitted_span.extra.get("columns")
    if columns is None:
        columns = _columns_of_arrays(model, task or model.task_column)
    columns = replace(columns, task=task or columns.task, target=target or columns.target)
    formula = getattr(vars(model).get("slopes"), "formula", "")
    if needs_target and columns.target is None and formula:
        raise ValueError(
            f"The response of the model, {formula.partition('~')[0].strip()}, is an expression "
            "and not a column of a table, so errors cannot be computed: leave --data out."
        )
    if needs_target and columns.target is None:
        raise ValueError(
            "The model does not store the name of its target: give the column to predict "
            "(--target)."
        )
    return columns


def _columns_of_arrays(model: Any, task: Any) -> TableColumns:
    if not isinstance(task, str):
        raise ValueError(
            "The model was not fitted to a table with a task column: give the column of the tasks "
            "(--task)."
        )
    is_text = all(isinstance(label, str) for label in model.tasks_.tolist())
    numbers = {"f": "DOUBLE", "u": "UBIGINT", "i": "BIGINT"}
    label = "VARCHAR" if is_text else numbers.get(model.tasks_.dtype.kind)
    if label is None:
        raise ValueError(
            f"The tasks of the model have labels such as {model.tasks_[0]!r}, which a table cannot "
            "hold: give rows in Python."
        )
    return TableColumns(task, None, Encoding(tuple(map(Number, model.coef_names_))), label)
