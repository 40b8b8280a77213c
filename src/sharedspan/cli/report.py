"""``sharedspan report``: write an HTML page about a saved model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sharedspan.cli import errors, options, output

if TYPE_CHECKING:
    from sharedspan.report.facts import Facts


@click.command("report", short_help="Write a page about a saved model.")
@options.model
@click.argument("tables", nargs=-1, metavar="")
@options.repeatable(
    "--data",
    "TABLE",
    "Table of rows, from which the page computes errors, gains over other methods and which "
    "tasks the model does not fit",
)
@options.task_of_model
@options.target_of_model
@options.missing_of_model
@options.table_text
@click.option("--title", metavar="TEXT", help="Headline of the page.")
@options.json_output
@options.out("Where to write the page: an .html file.")
def report_command(
    model: Path,
    tables: tuple[str, ...],
    data: tuple[str, ...],
    task: str | None,
    target: str | None,
    missing: str | None,
    title: str | None,
    as_json: bool,
    out: Path,
) -> None:
    """Write one page about a saved model: what was fitted, how good it is, and what to do next.

    The page needs no network and no other file. Its verdict and the unusual tasks are also printed.
    With --data (a CSV, Parquet or Excel file, a
    folder, or a pattern in quotes, preferably the data of the fit) it also shows errors on held-out
    rows, compared with separate models and the same slopes for all tasks.

    Example: sharedspan report school.span --data school.csv -o school.html
    """
    if not data and (task or target):
        raise errors.MistakeError("--task and --target name columns of --data: give --data, too.")
    if formula := next(filter(options.is_formula, (str(model), *tables)), None):
        typed = [each for each in (str(model), *tables) if each != formula][:1]
        fit = shlex.join(["sharedspan", "fit", *typed, formula, "-o", "model.span"])
        raise errors.MistakeError(
            f"A report needs a saved model: run {fit}, and then the command that it prints."
        )
    if tables:
        raise errors.MistakeError(
            f"Give the table with --data: sharedspan report {model} --data {tables[0]}."
        )
    with errors.told_work(out) as (messages, progress):
        from sharedspan.cli.models import columns_of
        from sharedspan.diagnosis.model_view import ModelView
        from sharedspan.estimators.preparation import for_coded_rows
        from sharedspan.inputs.reader import read_matching
        from sharedspan.report.page import write_page

        fitted = errors.read_model(model)
        errors.check_output(out, ".html", ".htm", inputs=[model], tables=data)
        rows: dict[str, Any] = {}
        columns = fitted.fitted_span.extra.get("columns")  # if the model was fitted to files
        if data:
            columns = columns_of(fitted, task, target, needs_target=True)
            progress("reading", 0, 0)
            X, y, labels = read_matching(data, columns, missing).arrays()
            rows |= {"X": X, "y": y, "task": labels.tolist()}
        names: dict[str, Any] = {"task_name": "task", "target_name": None, "title": title}
        if columns is not None:
            names |= {"task_name": columns.task_name, "target_name": columns.target}
        with errors.write_errors(out):
            # Rows of tasks that were not fitted are left out of the page.
            reported = for_coded_rows(fitted).set_params(unseen="mean")
            names |= {"table": columns, "model": fitted, "progress": progress}
            facts = write_page(ModelView(reported, **rows), out, **names)
    from sharedspan.inputs.resources import in_words

    n_bytes = out.stat().st_size
    result = {"out": out, "n_bytes": n_bytes, **_found(facts), "warnings": messages}
    lines = [*_told(facts), f"Report: {out} ({in_words(n_bytes)})"]
    output.echo_result(result, lines, as_json=as_json, warnings=messages)


def _found(facts: Facts) -> dict[str, Any]:
    """The verdict and the unusual tasks, for JSON."""
    from sharedspan.report.headline import headline

    verdict, diagnosis = headline(facts), facts.diagnosis
    return {
        "outcome": verdict.outcome,
        "verdict": verdict.sentence.replace("\u00a0", " "),
        "unusual_tasks": [vars(one) | {"reason": one.reason} for one in diagnosis.misfits],
        "judged_from_model_alone": diagnosis.rows_would_tell,
    }


def _told(facts: Facts) -> list[str]:
    """The verdict and the unusual tasks, as the page has them."""
    from sharedspan.diagnosis.diagnose import misfit_lines

    diagnosis = facts.diagnosis
    lines = [_found(facts)["verdict"]]
    if diagnosis.misfits:
        lines += [f"{diagnosis.misfit_title}:", *misfit_lines(diagnosis.misfits)]
    return [line for line in (*lines, diagnosis.none_is_odd, diagnosis.judged_from) if line]
