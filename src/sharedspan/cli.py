"""The command line. Each command imports what it needs when it runs, so help is instant."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sharedspan import __version__

if TYPE_CHECKING:
    from sharedspan.experiments.claims import Verdict
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


@main.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--quick/--full",
    "quick",
    default=True,
    help="A few minutes on small grids, or the grids of the results page (under an hour).",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for tables, figures and the page.  [default: reproduction-quick or -full]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The first seed of all grids.")
def reproduce(names: tuple[str, ...], quick: bool, out: Path | None, seed: int) -> None:
    """Run the paper's figures, tables and theory again, and judge its claims.

    NAME is figure1, figure2, ablation, table1, table2, transfer, curriculum or theory; all by
    default. A run that was stopped goes on where it was when the command is given again.

    Example: sharedspan reproduce figure1 table2 --quick -o results
    """
    from sharedspan.experiments import EXPERIMENTS

    for name in names:
        if name not in EXPERIMENTS:
            raise click.UsageError(
                f"There is no experiment {name!r}: use {', '.join(EXPERIMENTS)}, or none for all."
            )
    if seed < 0:
        raise click.UsageError(f"--seed {seed} must be zero or more.")
    folder = out or Path("reproduction-quick" if quick else "reproduction-full")
    chosen = [name for name in EXPERIMENTS if name in names or not names]
    command = " ".join(
        ["sharedspan reproduce", *names, "--quick" if quick else "--full"]
        + ([f"--seed {seed}"] if seed else [])
    )
    from sharedspan.experiments.run_all import InterruptedRunError, reproduce_all
    from sharedspan.experiments.table import TableError

    try:
        found = reproduce_all(chosen, full=not quick, seed=seed, folder=folder, command=command)
    except TableError as error:
        raise click.UsageError(f"{error}.") from error
    except OSError as error:
        raise click.UsageError(
            f"The results could not be written to {folder}: {error.strerror or error}. Give "
            "another folder with -o."
        ) from error
    except InterruptedRunError as stopped:
        click.echo(
            f"\nStopped. {stopped.done} of {stopped.planned} runs are kept in {folder}; give the "
            "same command again to go on from there.",
            err=True,
        )
        sys.exit(130)
    _print_verdicts(found, folder)


def _print_verdicts(found: list[Verdict], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from sharedspan.experiments.claims import HOLDS, NOT
    from sharedspan.experiments.page import terminal_rows

    table = Table(title="The paper's claims", title_justify="left", title_style="bold")
    for name in ("", "claim", "verdict"):
        table.add_column(name)
    colors = {HOLDS: "green", NOT: "red"}
    for (letter, says, text), verdict in zip(terminal_rows(found), found, strict=True):
        table.add_row(letter, says, f"[{colors.get(verdict.outcome, 'yellow')}]{text}[/]")
    console = Console()
    console.print(table)
    console.print(f"Rules, figures and tables: {folder / 'results.md'}", soft_wrap=True)


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
