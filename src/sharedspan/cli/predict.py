"""``sharedspan predict``: a kept model on more rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sharedspan.cli import options
from sharedspan.cli.errors import (
    MistakeError,
    Tick,
    echo_json,
    finite,
    manners,
    read_model,
    require_out,
    shown,
    ticking,
    writing,
)

if TYPE_CHECKING:
    from sharedspan.inputs.reader import RowBatch, RowReader


@click.command(short_help="Predict rows by a kept model.")
@options.model
@options.tables
@options.task(of_model=True)
@options.missing
@click.option(
    "--unseen",
    type=click.Choice(["error", "mean"]),
    help="Tasks that were not fitted: refuse them, or predict by the mean over tasks.  "
    "[default: the model's]",
)
@click.option(
    "--interval",
    type=float,
    metavar="LEVEL",
    help="Add low and high: an interval that this share of responses fall into, such as 0.95.",
)
@click.option(
    "--keep", multiple=True, metavar="COL", help="Column to copy to the output; repeatable."
)
@options.as_json
@options.out("Where to write the predictions: a .csv or .parquet file.")
def predict(
    model: Path,
    tables: tuple[str, ...],
    task: str | None,
    missing: str,
    unseen: str | None,
    interval: float | None,
    keep: tuple[str, ...],
    as_json: bool,
    out: Path,
) -> None:
    """Predict the rows of your files by a model that `sharedspan fit` has kept.

    TABLE is a CSV or Parquet file, a folder of them, or a pattern in quotes, with the columns that
    the model was fitted to; it may be larger than memory. The output has a row for each row, in
    their order: the task, the columns to keep, the target where the table has it, and the
    prediction. With a target the error is printed, too. Rows left out by --missing drop are missing
    there as well: keep a column that names the rows.

    Example: sharedspan predict sales.span next_week.csv --interval 0.9 -o predicted.csv
    """
    if interval is not None and not 0 < interval < 1:
        raise MistakeError(f"--interval {interval} must lie between 0 and 1, such as 0.95.")
    require_out(out, ".csv", ".parquet")
    with manners(f"Stopped. {out} was not written."), ticking() as tick:
        from sharedspan.cli.models import columns_of, without_feature_names
        from sharedspan.inputs.files import find_files
        from sharedspan.inputs.reader import read_matching

        fitted = read_model(model)
        require_out(out, apart_from=[model, *find_files(tables)])
        if unseen is not None:
            fitted.set_params(unseen=unseen)
        if interval is not None and not hasattr(fitted, "predict_interval"):
            raise MistakeError(
                f"{type(fitted).__name__} does not know how far off it may be: leave --interval "
                "out, or fit SharedSpanRegressor or AdaptiveSpanRegressor."
            )
        columns = columns_of(fitted, task)
        rows = read_matching(tables, columns, missing, also=keep, needs_target=False)
        about = _predict(without_feature_names(fitted), rows, interval, out, tick)
    if as_json:
        echo_json(finite(about))
        return
    click.echo(f"{about['n_rows']:,} rows of {about['n_tasks']:,} tasks predicted.")
    if about["n_rows_dropped"]:
        click.echo(f"{about['n_rows_dropped']:,} row(s) with missing values were left out.")
    if about["rmse"] is not None:
        click.echo(f"Root mean squared error against {shown(about['target'])}: {about['rmse']:.5g}")
    click.echo(f"Predictions: {about['out']}")


def _predict(
    model: Any, rows: RowReader, interval: float | None, out: Path, tick: Tick
) -> dict[str, Any]:
    """Predict batch by batch, and say what was done."""
    import math

    from sharedspan.persistence.atomic_write import atomic_table

    seen: set[Any] = set()
    n_rows, n_known, squares, total = 0, 0, 0.0, len(rows)
    with writing(out), atomic_table(out) as write:
        for batch in rows:
            labels = batch.labels.to_pylist()
            given, found = _given(batch, rows), {"prediction": model.predict(batch.X, task=labels)}
            if interval is not None:
                bounds = model.predict_interval(batch.X, task=labels, level=interval)
                found |= dict(zip(("low", "high"), bounds, strict=True))
            names = [f"({name})" if name in given else name for name in found]
            write([*given.values(), *found.values()], [*given, *names])
            residual = batch.y - found["prediction"]
            known = residual == residual  # where there is a target
            squares += float(residual[known] @ residual[known])
            n_known += int(known.sum())
            n_rows += len(labels)
            seen.update(labels)
            tick("predicting", n_rows, total)
    return {
        "n_rows": n_rows,
        "n_rows_dropped": rows.tally.n_incomplete,
        "n_tasks": len(seen),
        "target": rows.selection.target,
        "rmse": math.sqrt(squares / n_known) if n_known else None,
        "out": str(out),
    }


def _given(batch: RowBatch, rows: RowReader) -> dict[str, Any]:
    """The columns of the table that the output has as well."""
    given: dict[str, Any] = {rows.selection.task: batch.labels}
    given |= dict(zip(rows.also, batch.also, strict=True))
    if rows.selection.target is not None:
        given.setdefault(rows.selection.target, batch.y)
    return given
