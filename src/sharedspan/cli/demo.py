"""``sharedspan demo``: the gain in a minute, and tables to try the other commands on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sharedspan.cli import options
from sharedspan.cli.errors import (
    echo_json,
    finite,
    manners,
    require_out,
    require_seed,
    writing,
)

if TYPE_CHECKING:
    from sharedspan.report.demo import Demo, Row


@click.command()
@options.out(
    "Where to write the figure: .png, .pdf or .svg.",
    required=False,
    default=Path("sharedspan-demo.png"),
    show_default=True,
)
@options.seed("the simulation")
@click.option(
    "--tables",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Only write the bundled tables there as CSV, to try the other commands on.",
)
@options.as_json
def demo(out: Path, seed: int, tables: Path | None, as_json: bool) -> None:
    """Show the gain on simulated tasks and on real patients.

    Fits separate, pooled and shared-span regressions, prints their errors and writes one figure.

    Example: sharedspan demo -o demo.png
    """
    if tables is not None:
        _write_tables(tables, as_json)
        return
    require_out(out, ".png", ".pdf", ".svg")
    require_seed(seed)
    with manners("Stopped."), writing(out):
        from rich.console import Console

        from sharedspan.report.demo import run_demo

        with Console(stderr=True).status("starting (the first run compiles)") as status:
            found = run_demo(out, seed, lambda text: status.update(text))
    if as_json:
        from dataclasses import asdict

        echo_json(finite(asdict(found) | {"figure": str(found.figure)}))
    else:
        _print_demo(found)


def _write_tables(folder: Path, as_json: bool) -> None:
    """The bundled tables as CSV files, and what can be done with them."""
    with manners("Stopped."), writing(folder):
        from sharedspan.datasets.bundled import load_communities_crime, load_parkinsons

        folder.mkdir(exist_ok=True)
        bundled = {"parkinsons": load_parkinsons(), "communities_crime": load_communities_crime()}
        written = []
        for name, data in bundled.items():
            path = folder / f"{name}.csv"
            if path.exists():
                click.echo(f"{path} is there already and was left alone.", err=True)
            else:
                data.write_csv(path)
            written.append(
                {
                    "path": str(path),
                    "task": data.task_name,
                    "target": data.target_name,
                    "n_rows": len(data.y),
                    "n_tasks": len(set(data.task.tolist())),
                }
            )
    if as_json:
        echo_json(written)
        return
    for one in written:
        click.echo(
            f"{one['path']}: {one['n_rows']:,} rows, {one['n_tasks']} tasks (column "
            f"{one['task']}), target {one['target']}"
        )
    first = written[0]
    click.echo(
        f"\nTry: sharedspan fit {first['path']} --task {first['task']} --target {first['target']} "
        "-o model.span"
    )


def _print_demo(found: Demo) -> None:
    from rich.console import Console

    from sharedspan.report.demo import SIZE, TRAIN_SHARE

    console = Console()
    size = "{n_tasks} tasks, {n_features} features, true rank {rank}, {n_samples} rows each"
    console.print(
        _table(
            f"Simulated: {size.format(**SIZE)}", "parameter error", "error / floor", found.simulated
        )
    )
    console.print(f"The rank was found by cross-validation: {found.simulated_rank}.\n")
    console.print(
        _table(
            f"Parkinsons: 42 patients, fitted on {TRAIN_SHARE:.0%} of their rows",
            "test RMSE",
            None,
            found.real,
        )
    )
    console.print(
        f"Rank found: {found.real_rank}. The floor needs the truth, so a real table has none.\n"
    )
    console.print(f"Figure: {found.figure}", soft_wrap=True)
    console.print(
        "Next: `sharedspan demo --tables .` writes tables to try the other commands on; "
        "`sharedspan --help` lists them.",
        soft_wrap=True,
    )


def _table(title: str, error: str, ratio: str | None, rows: list[Row]) -> object:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("method")
    for name in (error, ratio, "seconds"):
        if name is not None:
            table.add_column(name, justify="right")
    for row in rows:
        cells = [row.method, f"{row.error:.4g}"]
        if ratio is not None:
            cells.append(f"{row.ratio:.2f}")
        table.add_row(*cells, f"{row.seconds:.2f}")
    return table
