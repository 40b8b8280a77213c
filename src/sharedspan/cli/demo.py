"""``sharedspan demo``: compare methods in a minute, or write tables for the other commands."""

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
    help="Only write the bundled tables there as CSV, to try the other commands on.",
)
@options.json_output
def demo_command(out: Path, seed: int, tables: Path | None, as_json: bool) -> None:
    """Show the gain on simulated tasks and on real patients.

    Fits separate, pooled and shared-span regressions, prints their errors and writes one figure.

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
    from sharedspan.report.demo import SIZE, TRAIN_SHARE

    size = "{n_tasks} tasks, {n_features} features, true rank {rank}, {n_samples} rows each"
    output.print_table(
        f"Simulated: {size.format(**SIZE)}",
        ("method", "parameter error", "error / floor", "seconds"),
        [
            (row.method, f"{row.error:.4g}", f"{row.ratio:.2f}", f"{row.seconds:.2f}")
            for row in demo.simulated
        ],
    )
    click.echo(f"Rank selected by cross-validation: {demo.simulated_rank}.\n")
    output.print_table(
        f"Parkinsons: 42 patients, fitted on {TRAIN_SHARE:.0%} of their rows",
        ("method", "test RMSE", "seconds"),
        [(row.method, f"{row.error:.4g}", f"{row.seconds:.2f}") for row in demo.real],
    )
    click.echo(
        f"Rank selected: {demo.real_rank}. The floor needs the true coefficients, which a real "
        f"table does not have.\n\nFigure: {demo.figure}\n"
        "Next: `sharedspan demo --tables .` writes tables to try the other commands on; "
        "`sharedspan --help` lists them."
    )
