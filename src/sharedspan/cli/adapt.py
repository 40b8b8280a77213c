"""``sharedspan adapt``: new tasks from few rows, with what a kept model has learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sharedspan.cli import options
from sharedspan.cli.errors import (
    Counted,
    collected_warnings,
    echo_json,
    finite,
    manners,
    read_model,
    require_model_out,
    require_out,
    ticking,
)
from sharedspan.cli.fit import facts, print_fit


@click.command(short_help="Fit new tasks from few rows each.")
@options.model
@options.tables
@options.task(of_model=True)
@options.target(of_model=True)
@options.missing
@click.option(
    "--method",
    type=click.Choice(["prior", "least_squares", "sgd"]),
    default="prior",
    show_default=True,
    help="Ridge with the prior of the known tasks, best for few rows; least squares in the span; "
    "or one pass over the rows.",
)
@options.as_json
@options.out("Where to keep the model of the new tasks, by custom a .span file.")
def adapt(
    model: Path,
    tables: tuple[str, ...],
    task: str | None,
    target: str | None,
    missing: str,
    method: str,
    as_json: bool,
    out: Path,
) -> None:
    """Fit new tasks from few rows each, with the span and the prior of a kept model.

    TABLE has the columns that MODEL was fitted to. The result is a model of its tasks alone, for
    `sharedspan predict` and `sharedspan report`; MODEL is not changed.

    Example: sharedspan adapt sales.span new_shops.csv -o new_shops.span
    """
    require_model_out(out)
    with manners(f"Stopped. {out} was not written."), ticking() as tick:
        from sharedspan.inputs.files import find_files

        require_out(out, apart_from=[model, *find_files(tables)])
        about = _adapt(model, tables, task, target, missing, method, out, Counted(tick))
    if as_json:
        echo_json(finite(about))
    else:
        print_fit(about)


def _adapt(
    model: Path,
    tables: tuple[str, ...],
    task: str | None,
    target: str | None,
    missing: str,
    method: str,
    out: Path,
    tick: Counted,
) -> dict[str, Any]:
    """Fit, keep the model, and say what was done."""
    import time

    from sharedspan.cli.models import columns_of
    from sharedspan.estimators.transfer import NewTaskRegressor
    from sharedspan.persistence.model_file import MODEL_FORMAT

    known = read_model(model)
    MODEL_FORMAT.require_writable(out)
    began = time.perf_counter()
    with collected_warnings() as said:
        new = NewTaskRegressor.from_model(known, method).set_params(task_column=None)
        columns = columns_of(known, task, target, needs_target=True)
        new.fit_file(tables, columns=columns, missing=missing, tick=tick)
        new.save(out)
    return facts(new) | {
        "n_rows": tick.n_rows - new.n_rows_dropped_,
        "n_rows_dropped": new.n_rows_dropped_,
        "seconds": round(time.perf_counter() - began, 3),
        "out": str(out),
        "warnings": said,
    }
