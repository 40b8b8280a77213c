"""The command line. Each command imports what it needs when it runs, so help is instant."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sharedspan import __version__

if TYPE_CHECKING:
    from sharedspan.report.demo import Demo, Row


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sharedspan")
def main() -> None:
    """Regression over many related tasks that share a low-dimensional span."""


@main.command()
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("sharedspan-demo.png"),
    show_default=True,
    help="Where to write the figure.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the simulation.")
def demo(out: Path, seed: int) -> None:
    """Show the gain on simulated tasks and on real patients.

    Fits separate, pooled and shared-span regressions, prints their errors and writes one figure.

    Example: sharedspan demo -o demo.png
    """
    if not out.parent.is_dir():
        raise click.UsageError(f"There is no folder {out.parent}: make it or give another --out.")
    if out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise click.UsageError(f"The figure {out} must end in .png, .pdf or .svg.")
    if seed < 0:
        raise click.UsageError(f"--seed {seed} must be zero or more.")
    from rich.console import Console

    from sharedspan.report.demo import run_demo

    with Console(stderr=True).status("starting (the first run compiles)") as status:
        try:
            found = run_demo(out, seed, lambda text: status.update(text))
        except OSError as error:
            raise click.UsageError(f"The figure could not be written to {out}: {error}.") from error
    _print_demo(found)


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


if __name__ == "__main__":
    sys.exit(main())
