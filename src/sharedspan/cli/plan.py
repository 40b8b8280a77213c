"""``sharedspan plan``: rows for a wanted error, or the other way round."""

from __future__ import annotations

import click

from sharedspan.cli import options
from sharedspan.cli.errors import MistakeError, echo_json, finite, manners


@click.command(short_help="Say how many rows a wanted error needs.")
@click.option("--tasks", type=int, required=True, help="Number of tasks T.")
@click.option("--features", type=int, required=True, help="Number of features d.")
@click.option("--rank", type=int, required=True, metavar="K", help="Dimension of the shared span.")
@click.option("--noise", type=float, required=True, help="Standard deviation of the noise.")
@click.option("--error", type=float, help="Wanted mean over tasks of |v - v*|^2.")
@click.option("--rows", type=int, help="Rows per task; give this or --error.")
@options.as_json
def plan(
    tasks: int,
    features: int,
    rank: int,
    noise: float,
    error: float | None,
    rows: int | None,
    as_json: bool,
) -> None:
    """Say how many rows per task a wanted error needs, or what error given rows allow.

    Example: sharedspan plan --tasks 100 --features 50 --rank 3 --noise 0.5 --error 0.02
    """
    if (error is None) == (rows is None):
        raise MistakeError("Give either --error or --rows: the other one is computed from it.")
    with manners("Stopped."):
        from dataclasses import asdict

        from sharedspan.inference.planning import plan as make_plan

        found = make_plan(
            n_tasks=tasks, n_features=features, rank=rank, noise=noise, error=error, n_samples=rows
        )
        if as_json:
            echo_json(finite(asdict(found)))
        else:
            from rich.console import Console

            console = Console(highlight=False)
            console.print(str(found), markup=False, soft_wrap=not console.is_terminal)
