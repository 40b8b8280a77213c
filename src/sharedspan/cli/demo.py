"""``sharedspan demo``: what sharing gains, in a minute, or tables for the other commands."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sharedspan.cli import errors, options, output
from sharedspan.progress import progress_bar

if TYPE_CHECKING:
    from sharedspan.report.demo import Demo


@click.command("demo")
@options.out(
    "Where to write the figure: .png, .pdf or .svg.",
    required=False,
    default=Path("sharedspan-demo.png"),
)
@options.seed("the simulation")
@click.option(
    "--tables",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Only write the bundled tables to this folder as CSV, to try the other commands on them.",
)
@options.json_output
def demo_command(out: Path, seed: int, tables: Path | None, as_json: bool) -> None:
    """Show how much a joint fit of all tasks gains, on real and on simulated data.

    The command fits growing numbers of rows of 42 patients by the same slopes for all patients
    (with an intercept for each of them), one model per patient and AdaptiveSpanRegressor. Then it
    fits simulated tasks with TPGD, the algorithm of Ding, Du and Fang (2026). It prints the errors
    and writes one figure.

    Example: sharedspan demo -o demo.png
    """
    if tables is not None:
        _write_tables(tables, as_json)
        return
    with errors.one_line_errors(out), errors.write_errors(out), progress_bar() as progress:
        errors.check_output(out, ".png", ".pdf", ".svg")
        from sharedspan.report.demo import run_demo

        demo = run_demo(out, seed, lambda stage: progress(stage, 0, 0))
    if as_json:
        output.echo_json(asdict(demo))
    else:
        _print_demo(demo)


def _write_tables(folder: Path, as_json: bool) -> None:
    """Write the bundled tables as CSV files, and print an example command."""
    with errors.one_line_errors(folder), errors.write_errors(folder):
        from sharedspan.datasets.bundled import load_communities_crime, load_parkinsons

        folder.mkdir(exist_ok=True)
        bundled = {"parkinsons": load_parkinsons(), "communities_crime": load_communities_crime()}
        written = []
        for name, data in bundled.items():
            path = folder / f"{name}.csv"
            if path.exists():
                click.echo(f"{path} exists already and was left alone.", err=True)
            else:
                data.write_csv(path)
            sizes = {"n_rows": len(data.y), "n_tasks": len(set(data.task.tolist()))}
            written.append(
                {"path": path, "task": data.task_name, "target": data.target_name} | sizes
            )
    lines = [
        "{path}: {n_rows:,} rows, {n_tasks} tasks (column {task}), target {target}".format(**table)
        for table in written
    ]
    example = "sharedspan fit {path} --task {task} --target {target}".format(**written[0])
    output.echo_result(written, [*lines, f"\nTry: {example} -o model.span"], as_json=as_json)


def _print_demo(demo: Demo) -> None:
    from sharedspan.report.demo import DRAWS, SIZE

    fewest = demo.rows_per_patient[0]
    output.print_table(
        "A real table: 42 patients with Parkinson's disease recorded their voice at home\n"
        f"Error of predicted symptom scores on held-out rows (RMSE, mean of {DRAWS} draws)",
        ("method", *(f"{n} rows each" for n in demo.rows_per_patient)),
        [
            (name, *(f"{error:.2f}" for error in errors))
            for name, errors in demo.real.items()
        ],
    )  # fmt: skip
    output.print_wrapped(f"{demo.verdict} This is with {fewest} rows of each patient.", "")
    size = "{n_tasks} tasks, {n_features} features, true rank {rank}, {n_samples} rows each"
    output.print_table(
        f"Simulated: {size.format(**SIZE)}",
        ("method", "parameter error", "error / floor", "seconds"),
        [
            (row.method, f"{row.error:.4g}", f"{row.ratio:.2f}", f"{row.seconds:.2f}")
            for row in demo.simulated
        ],
    )
    output.print_wrapped(
        "TPGD is the algorithm of the paper that this project grew from. The floor is the "
        "smallest error that any method can expect, given the true rank of the span; "
        f"cross-validation selected rank {demo.simulated_rank}.",
        "",
    )
    click.echo(f"Figure: {demo.figure}")
    click.echo("Next: sharedspan demo --tables tables")
