"""``sharedspan adapt``: fit new tasks from a few rows with the span and prior of a saved model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from sharedspan.cli import errors, options
from sharedspan.cli.fit import echo_fit, fit_and_save


@click.command("adapt", short_help="Fit new tasks from a few rows each.")
@options.model
@options.tables
@options.task_of_model
@options.target_of_model
@options.missing_of_model
@options.table_text
@click.option(
    "--method",
    type=click.Choice(["prior", "least_squares", "sgd"]),
    default="prior",
    help="How to fit the new tasks: prior (ridge with the prior of the known tasks, best for few "
    "rows), least_squares (in the span) or sgd (one pass over the rows).",
)
@options.json_output
@options.out("Where to save the model of the new tasks, usually a .span file.")
def adapt_command(
    model: Path,
    tables: tuple[str, ...],
    task: str | None,
    target: str | None,
    missing: str | None,
    method: str,
    as_json: bool,
    out: Path,
) -> None:
    """Fit new tasks from a few rows each, with what a saved model has learned about its tasks.

    TABLE has the columns that MODEL was fitted to. The result is a model of the tasks in TABLE
    only, for use with `sharedspan predict` and `sharedspan report`; MODEL is not changed.

    Example: sharedspan adapt sales.span new_shops.csv -o new_shops.span
    """
    with errors.one_line_errors(out):
        from sharedspan.cli.models import columns_of
        from sharedspan.estimators.transfer import NewTaskRegressor

        known = errors.read_model(model)
        errors.check_model_output(out, tables, [model])
        new = NewTaskRegressor.from_model(known, method).set_params(task_column=None)
        columns = columns_of(known, task, target, needs_target=True)
        if missing is not None:
            columns = replace(columns, encoding=replace(columns.encoding, missing=missing))
        result = fit_and_save(new.set_params(columns=columns), out, path=tables)
    echo_fit(result, as_json)
