"""``sharedspan compare``: rank methods on one table and recommend one."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sharedspan.cli import errors, options, output

if TYPE_CHECKING:
    from sharedspan.diagnosis.comparison import Comparison

TIME_LIMIT = 120  # seconds


@click.command("compare")
@click.argument("table", type=click.Path(path_type=Path))
@options.task
@options.target
@options.drop
@options.columns
@options.table_text
@options.choice(
    "--family",
    ["auto", "gaussian", "binomial", "poisson", "negative_binomial"],
    "auto",
    "Distribution of the target, which decides how errors are measured: gaussian, binomial, "
    "poisson or negative_binomial.  [default: auto, chosen from the values of the target]",
)
@click.option(
    "--all", "all_methods", is_flag=True, help="Compare every method, not only the main ones."
)
@click.option("--repeats", type=click.IntRange(2), default=4, help="Number of splits.")
@click.option(
    "--time-limit",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    default=TIME_LIMIT,
    help="Start no further fit after this time; the output says what was left out.",
)
@options.seed("the splits and fits")
@options.json_output
@options.out("Write the leaderboard to this CSV file too.", required=False)
def compare_command(
    table: Path,
    task: str,
    target: str,
    drop: tuple[str, ...],
    family: str,
    all_methods: bool,
    repeats: int,
    time_limit: float,
    seed: int,
    as_json: bool,
    out: Path | None,
    **given: Any,
) -> None:
    """Compare joint and separate fits of your tasks on held-out rows, and recommend a method.

    TABLE is a CSV, Parquet or Excel file. All columns except task, target and dropped ones are
    features; text becomes a factor and dates become days, as in `sharedspan fit`. Each split fits
    on three quarters of every task's rows and tests on the rest. The command compares one model
    ignoring tasks, common slopes with an intercept for each task, separate models, the adaptive
    model and the shared span; --all adds the other methods. For a target of two values, such as 0
    and 1, methods are compared by their log loss; for a target of counts, by their mean deviance.
    The family of the models is the one that `sharedspan fit` chooses for the table.

    Example: sharedspan compare school.csv --task school --target exam_score
    """
    with errors.told_work(out) as (messages, progress):
        errors.check_output(out, ".csv", inputs=[table])
        from sharedspan.cli.fit import family_of_column
        from sharedspan.datasets.bundled import load_table
        from sharedspan.diagnosis.comparison import compare
        from sharedspan.inputs.classes import counted

        columns = options.columns_given(given)
        data = load_table(table, task=task, target=target, drop=drop, columns=columns)
        chosen, why = family, ""
        if family == "auto":
            chosen, why = family_of_column((str(table),), target, columns)
        comparison = compare(
            data.X, data.y, data.task, repeats=repeats, seed=seed, progress=progress, family=chosen,
            methods="all" if all_methods else None, time_limit=time_limit,
            columns=replace(data.columns, encoding=data.columns.encoding.coded()),
        )  # fmt: skip
        comparison = replace(
            comparison,
            notes=(*filter(None, [why]), *comparison.notes),
            python="",  # a shell has no X and y
        )
        if out is not None:
            with errors.write_errors(out):
                comparison.write_csv(out)
    if as_json:
        about = {"table": table, "task": task, "target": target, "dropped_columns": list(drop)}
        about |= {"classes": list(data.columns.classes), "n_rows_missing": data.n_dropped}
        output.echo_json(about | comparison.to_dict() | {"warnings": messages})
    else:
        notes = [*counted(data.columns.classes), *output.missing_rows(data.n_dropped)]
        output.echo_result({}, [], as_json=False, warnings=messages)
        _print_comparison(comparison, table.name, notes)
        if out is not None:
            click.echo(output.printable(f"Leaderboard: {out}"))
        estimator = _estimator_options(comparison, family)
        if estimator:
            fit = ["sharedspan", "fit", str(table), "--task", task, "--target", target]
            fit += [part for name in drop for part in ("--drop", name)]
            fit += [
                *options.table_text_typed(),
                *options.as_typed(columns),
                *estimator,
                "-o",
                f"{table.stem}.span",
            ]
            click.echo(output.printable(f"Next: {shlex.join(fit)}"))
    if comparison.recommended is None:
        sys.exit(1)


def _estimator_options(comparison: Comparison, given: str) -> list[str]:
    """Options of `sharedspan fit` for the recommended method; none if that is scikit-learn's.

    ``given`` is the family that the user typed, which the fit would otherwise choose anew.
    """
    from sharedspan.diagnosis.compared_methods import FAMILY_MODELS
    from sharedspan.estimators import ESTIMATORS

    method = comparison.recommended or ""
    if method in FAMILY_MODELS:
        return ["--family", FAMILY_MODELS[method]]
    family = []
    if given == "gaussian" or (
        method == "AdaptiveSpanRegressor" and comparison.family != "gaussian"
    ):
        family = ["--family", "gaussian"]
    return ["--estimator", method, *family] if method in ESTIMATORS else []


def _print_comparison(comparison: Comparison, name: str, notes: list[str]) -> None:
    from rich.text import Text

    rows = []
    for entry, cells in comparison.rows():
        style = "bold" if entry.method == comparison.recommended else "dim" if entry.failure else ""
        rows.append([Text(cell.replace("(", " ("), style) for cell in cells])  # names may break
    output.print_table(
        f"{name}: {comparison.title}",
        comparison.header(),
        rows,
        caption=comparison.caption,
        caption_justify="left",
    )
    output.print_wrapped(*comparison.remarks(), *notes, comparison.advice)
