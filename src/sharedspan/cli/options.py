"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


json_output = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
tables = click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
model = click.argument("model", metavar="MODEL", type=click.Path(dir_okay=False, path_type=Path))
drop = click.option("--drop", multiple=True, metavar="COL", help="Column to leave out; repeatable.")
missing = click.option(
    "--missing",
    type=click.Choice(["error", "drop"]),
    default="error",
    help="Rows that lack a value: refuse the table, or leave them out.",
)
rank = click.option(
    "--rank", type=int, required=True, metavar="K", help="Dimension of the shared span."
)


def whole_number(name: str, parameter: str, text: str, least: int = 1, **more: Any) -> Decorator:
    """A whole number with a lower bound."""
    return click.option(name, parameter, type=click.IntRange(least), help=text, **more)


n_tasks = whole_number("--tasks", "n_tasks", "Number of tasks T.", required=True)
n_features = whole_number("--features", "n_features", "Number of features d.", required=True)


def seed(purpose: str) -> Decorator:
    """The seed of whatever is random in a command."""
    text = f"Seed of {purpose}."
    return whole_number("--seed", "seed", text, least=0, default=0)


def _column(name: str, text: str, *, required: bool = True) -> Decorator:
    default = "" if required else "  [default: the model's]"
    return click.option(name, required=required, metavar="COL", help=text + default)


task = _column("--task", "Column with the task of each row.")
target = _column("--target", "Column to predict.")
task_of_model = _column("--task", "Column with the task of each row.", required=False)
target_of_model = _column("--target", "Column to predict.", required=False)


def out(text: str, **more: Any) -> Decorator:
    """The path of the result."""
    kind = click.Path(dir_okay=False, path_type=Path)
    settings: dict[str, Any] = {"type": kind, "help": text, "required": True} | more
    return click.option("-o", "--out", **settings)
