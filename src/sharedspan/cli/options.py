"""Options that several commands have, under one name and with one meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

# Estimators of `fit`, the default first.
ESTIMATORS = (
    "SharedSpanRegressor",
    "AdaptiveSpanRegressor",
    "PooledRegressor",
    "PerTaskRegressor",
    "CurriculumRegressor",
    "MomentRegressor",
    "SpectralRegressor",
    "ARMULRegressor",
    "PenalizedERMRegressor",
)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
tables = click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
model = click.argument(
    "model", metavar="MODEL", type=click.Path(dir_okay=False, path_type=Path)
)  # fmt: skip
drop = click.option("--drop", multiple=True, metavar="COL", help="Column to leave out; repeatable.")
missing = click.option(
    "--missing",
    type=click.Choice(["error", "drop"]),
    default="error",
    show_default=True,
    help="Rows that lack a value: refuse the table, or leave them out.",
)


def seed(of: str) -> Decorator:
    """The seed of what is random in a command."""
    return click.option("--seed", type=int, default=0, show_default=True, help=f"Seed of {of}.")


def task(of_model: bool = False) -> Decorator:
    """The column of the tasks; of a model it is known."""
    return _column("--task", "Column that says the task of a row.", of_model)


def target(of_model: bool = False) -> Decorator:
    """The column to predict; of a model it is known."""
    return _column("--target", "Column to predict.", of_model)


def _column(name: str, words: str, of_model: bool) -> Decorator:
    default = "  [default: the model's]" if of_model else ""
    return click.option(name, required=not of_model, metavar="COL", help=words + default)


def out(what: str, **more: Any) -> Decorator:
    """Where the result goes."""
    kind = click.Path(dir_okay=False, path_type=Path)
    options: dict[str, Any] = {"type": kind, "help": what, "required": True} | more
    return click.option("-o", "--out", **options)
