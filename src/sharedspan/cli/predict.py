"""``sharedspan predict``: predict rows with a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sharedspan.cli import errors, options, output
from sharedspan.progress import ProgressCallback

if TYPE_CHECKING:
    from sharedspan.inputs.reader import RowBatch, RowReader


@click.command("predict", short_help="Predict the target for new rows with a saved model.")
@options.model
@options.tables
@options.task_of_model
@options.missing_of_model
@options.table_text
@click.option(
    "--unseen",
    type=click.Choice(["error", "mean"]),
    help="What to do with tasks that were not in the fit: refuse them (error), or predict them "
    "with the mean coefficients of all tasks (mean).  [default: the setting of the model]",
)
@click.option(
    "--interval",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="LEVEL",
    help="Add columns low and high, an interval with this coverage, such as 0.95.",
)
@options.repeatable("--keep", "COL", "Column to copy to the output")
@options.json_output
@options.out("Where to write the predictions: a .csv or .parquet file.")
def predict_command(
    model: Path,
    tables: tuple[str, ...],
    task: str | None,
    missing: str | None,
    unseen: str | None,
    interval: float | None,
    keep: tuple[str, ...],
    as_json: bool,
    out: Path,
) -> None:
    """Predict the target for each row of your files, with a model that `sharedspan fit` has saved.

    TABLE is a CSV, Parquet or Excel file, a folder of them, or a pattern in quotes, with the
    columns that the model was fitted to; it may be larger than memory. The output has a line for
    each row, in the same order: the task, copied columns, the target if the table has it, and the
    prediction. For two classes the prediction is the probability of the one that counts as 1, and
    for counts it is the mean count. If there is a target, the error is printed, too. The output
    lacks rows that --missing drop leaves out: use --keep to copy a column that identifies rows.

    Example: sharedspan predict sales.span next_week.csv --interval 0.9 -o predicted.csv
    """
    with errors.told_work(out) as (messages, progress):
        from sharedspan.cli.models import columns_of
        from sharedspan.diagnosis.text import count, short
        from sharedspan.estimators.preparation import for_coded_rows
        from sharedspan.inputs.classes import counted
        from sharedspan.inputs.reader import read_matching

        fitted = errors.read_model(model)
        errors.check_output(out, ".csv", ".parquet", inputs=[model], tables=tables)
        if unseen is not None:
            fitted.set_params(unseen=unseen)
        by_sgd = fitted.get_params().get("method") == "sgd"
        if interval is not None and (by_sgd or not fitted.has_intervals):
            raise errors.MistakeError(
                f"The model, a {type(fitted).__name__}, has no prediction intervals: leave "
                "--interval out, or fit SharedSpanRegressor or AdaptiveSpanRegressor (new tasks "
                "with --method prior or least_squares)."
            )
        columns = columns_of(fitted, task)
        rows = read_matching(tables, columns, missing, also=keep, needs_target=False)
        result = _predict(for_coded_rows(fitted), rows, interval, out, progress)
    rows_and_tasks = f"{count(result['n_rows'], 'row')} of {count(result['n_tasks'], 'task')}"
    lines = [f"{rows_and_tasks} predicted."]
    if unseen := result["n_tasks_unseen"]:
        was, it = ("was", "is") if unseen == 1 else ("were", "are")
        lines.append(
            f"{unseen:,} of these tasks {was} not in the fit, and {it} predicted with the mean "
            "over tasks; --unseen error refuses unseen tasks."
        )
    lines += counted(columns.classes)
    lines += output.missing_rows(result["n_rows_dropped"])
    if result["rmse"] is not None:
        target, scored = short(result["target"]), result["n_rows_scored"]
        over = f" (of the {count(scored, 'row')} that have it)"
        lines.append(
            f"{result['loss_name']} against {target}{over * (scored < result['n_rows'])}: "
            f"{result['loss']:.5g}"
        )
        if result["in_sample"]:
            lines.append("These seem to be the rows of the fit: expect a larger error on new rows.")
    result["warnings"] = messages
    lines.append(f"Predictions: {out}")
    output.echo_result(result, lines, as_json=as_json, warnings=messages)


def _predict(
    model: Any, rows: RowReader, interval: float | None, out: Path, progress: ProgressCallback
) -> dict[str, Any]:
    """Write the predictions batch by batch, and return their number and error."""
    import math
    import re
    import warnings

    from sharedspan.diagnosis.losses import loss_of
    from sharedspan.estimators.prediction import NOT_FITTED
    from sharedspan.inputs.labels import hint_on_labels
    from sharedspan.persistence.atomic_write import atomic_table

    tasks: set[Any] = set()
    n_rows, n_known, squares, losses, total = 0, 0, 0.0, 0.0, len(rows)
    loss, (mean_of, interval_of) = loss_of(model.response_family()), _methods(model)
    with errors.write_errors(out), atomic_table(out) as write, warnings.catch_warnings():
        warnings.filterwarnings("ignore", rf"\d+ {re.escape(NOT_FITTED)}")  # told once, below
        for batch in rows:
            labels = batch.labels.to_pylist()
            copied = _copied(batch, rows)
            predicted = {"prediction": mean_of(batch.X, task=labels)}
            if interval is not None:
                bounds = interval_of(batch.X, task=labels, level=interval)
                predicted |= dict(zip(("low", "high"), bounds, strict=True))
            names = [f"({name})" if name in copied else name for name in predicted]
            write([*copied.values(), *predicted.values()], [*copied, *names])
            residual = batch.y - predicted["prediction"]
            known = residual == residual  # NaN if the table has no target
            squares += float(residual[known] @ residual[known])
            if known.any():
                each = loss.of_rows(batch.y[known], predicted["prediction"][known])
                losses += float(each.sum())
            n_known += int(known.sum())
            n_rows += len(labels)
            tasks.update(labels)
            progress("predicting", n_rows, total)
    unseen = sorted(tasks.difference(model.tasks_.tolist()), key=str)
    if unseen and (hint := hint_on_labels(unseen, model.tasks_)):
        warnings.warn(f"{len(unseen)} {NOT_FITTED}, {hint}.", UserWarning, stacklevel=2)
    # As many rows of the same tasks as were fitted are hardly other rows.
    in_sample = n_rows == vars(model).get("n_rows_") and tasks == set(model.tasks_.tolist())
    return {
        "n_rows": n_rows,
        "in_sample": in_sample,
        "n_rows_dropped": rows.tally.n_incomplete,
        "n_tasks": len(tasks),
        "n_tasks_unseen": len(unseen),
        "target": rows.selection.columns.target,
        "n_rows_scored": n_known,
        "rmse": math.sqrt(squares / n_known) if n_known else None,
        "loss_name": loss.words[0].upper() + loss.words[1:],
        "loss": loss.shown(losses / n_known) if n_known else None,
        "out": out,
    }


def _methods(model: Any) -> tuple[Any, Any]:
    """The methods of a model for means and for their intervals."""
    from functools import partial

    from sharedspan.diagnosis.holdout_errors import mean_responses
    from sharedspan.families import Binomial

    interval_of = getattr(model, "predict_interval", None)
    if isinstance(model.response_family(), Binomial):  # a class has no interval
        is_classifier = hasattr(model, "proba_interval")
        interval_of = model.proba_interval if is_classifier else model.mean_interval
    return partial(mean_responses, model), interval_of


def _copied(batch: RowBatch, rows: RowReader) -> dict[str, Any]:
    """The columns of the table that are copied to the output."""
    columns = rows.selection.columns
    copied: dict[str, Any] = {columns.task_name or "task": batch.labels}
    copied |= dict(zip(rows.also, batch.also, strict=True))
    if columns.target is not None:
        copied.setdefault(columns.target, _words(batch.y, columns.classes))
    return copied


def _words(y: Any, classes: tuple[str, ...]) -> Any:
    """The target as the table has it: words for classes, none where it is missing."""
    if not classes:
        return y
    import pyarrow

    return pyarrow.array([classes[int(each)] if each == each else None for each in y], "string")
