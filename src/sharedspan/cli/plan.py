"""``sharedspan plan``: rows for a target error, or the error to expect for a number of rows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from sharedspan.cli import errors, options, output


@click.command("plan", short_help="Compute how many rows a target error needs.")
@options.n_tasks
@options.n_features
@options.rank
@click.option("--noise", type=float, required=True, help="Standard deviation of the noise.")
@click.option(
    "--error",
    type=float,
    help="Target for the squared error of a task's coefficients, |v - v*|^2, averaged over tasks.",
)
@click.option(
    "--rows", "n_samples", type=options.POSITIVE, help="Rows per task; give this or --error."
)
@options.json_output
def plan_command(as_json: bool, **problem: Any) -> None:
    """Compute how many rows per task a target error needs, or the error for a number of rows.

    Example: sharedspan plan --tasks 100 --features 50 --rank 3 --noise 0.5 --error 0.02
    """
    if (problem["error"] is None) == (problem["n_samples"] is None):
        raise errors.MistakeError("Give either --error or --rows: the other is computed.")
    with errors.one_line_errors():
        from sharedspan.inference.planning import plan

        planned = plan(**problem)
    if as_json:
        output.echo_json(asdict(planned))
    else:
        output.print_wrapped(str(planned))
