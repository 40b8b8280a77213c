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
POSITIVE = click.IntRange(1)
n_tasks = click.option(
    "--tasks", "n_tasks", type=POSITIVE, required=True, help="Number of tasks T."
)
n_features = click.option(
    "--features", "n_features", type=POSITIVE, required=True, help="Number of features d."
)


def seed(purpose: str) -> Decorator:
    """The seed of whatever is random in a command."""
    return click.option("--seed", type=click.IntRange(0), default=0, help=f"Seed of {purpose}.")


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
