"""Fitted models on the command line: the tables that they read, and their use on plain arrays."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from sharedspan.inputs.selection import known_columns

if TYPE_CHECKING:
    from sharedspan.inputs.columns import Columns


def columns_of(
    model: Any, task: str | None = None, target: str | None = None, *, needs_target: bool = False
) -> Columns:
    """What a table for this model must look like; see ``known_columns``."""
    columns = model.fitted_span.extra.get("columns")
    if columns is None and task is None and isinstance(model.task_column, str):
        task = model.task_column
    return known_columns(
        columns, task=task, target=target, labels=model.tasks_, features=model.coef_names_,
        needs_target=needs_target,
    )  # fmt: skip


def without_feature_names(model: Any) -> Any:
    """A copy of a model for arrays of its features, with labels beside them."""
    copied = copy(model)
    copied.__dict__.pop("feature_names_in_", None)
    copied.task_column, copied.n_features_in_ = None, len(copied.coef_names_)
    return copied
