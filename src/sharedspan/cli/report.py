"""``sharedspan report``: a page to look at and to show to others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sharedspan.cli import options
from sharedspan.cli.errors import (
    MistakeError,
    collected_warnings,
    echo_json,
    manners,
    read_model,
    require_out,
    ticking,
    writing,
)


@click.command(short_help="Write a page on a kept model, to look at.")
@options.model
@click.argument("tables", nargs=-1, metavar="")
@click.option(
    "--data",
    multiple=True,
    metavar="TABLE",
    help="The rows, for errors, gains over other methods and tasks that do not fit; repeatable.",
)
@options.task(of_model=True)
@options.target(of_model=True)
@options.missing
@click.option("--title", metavar="TEXT", help="Headline of the page.")
@options.as_json
@options.out("Where to write the page: an .html file.")
def report(
    model: Path,
    tables: tuple[str, ...],
    data: tuple[str, ...],
    task: str | None,
    target: str | None,
    missing: str,
    title: str | None,
    as_json: bool,
    out: Path,
) -> None:
    """Write one page on a kept model: what was found, how good it is, and what to do next.

    The page needs no network and no other file. With --data (a CSV or Parquet file, a folder, or a
    pattern in quotes, best that of the fit) it also shows the error on rows left out, against
    separate and pooled regressions.

    Example: sharedspan report school.span --data school.csv -o school.html
    """
    if not data and (task or target):
        raise MistakeError("--task and --target say what the columns of --data are: give it, too.")
    if tables:
        raise MistakeError(
            f"Give the table with --data: sharedspan report {model} --data {tables[0]}."
        )
    require_out(out, ".html", ".htm")
    with (
        manners(f"Stopped. {out} was not written."),
        collected_warnings() as said,
        ticking() as tick,
    ):
        from sharedspan.cli.models import columns_of, without_feature_names
        from sharedspan.inputs.files import find_files
        from sharedspan.inputs.reader import read_matching
        from sharedspan.report.page import write_report

        fitted = read_model(model)
        require_out(out, apart_from=[model, *(find_files(data) if data else ())])
        rows: dict[str, Any] = {}
        named = fitted.fitted_span.extra.get("columns")
        if data:
            named = columns_of(fitted, task, target, needs_target=True)
            tick("reading", 0, 0)
            X, y, labels = read_matching(data, named, missing).arrays()
            rows |= {"X": X, "y": y, "task": labels.tolist()}
        if named is not None:
            rows |= {"task_name": named.task, "target_name": named.target}
        with writing(out):
            # Rows of tasks that were not fitted are passed over.
            shown = without_feature_names(fitted).set_params(unseen="mean")
            write_report(shown, out, **rows, title=title, tick=tick)
    n_bytes = out.stat().st_size
    if as_json:
        echo_json({"out": str(out), "n_bytes": n_bytes, "warnings": said})
        return
    from sharedspan.inputs.memory_limit import in_words

    for warning in said:
        click.echo(f"Warning: {warning}", err=True)
    click.echo(f"Report: {out} ({in_words(n_bytes)})")
