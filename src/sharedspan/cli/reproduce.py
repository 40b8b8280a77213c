"""``sharedspan reproduce``: the paper again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sharedspan.cli import options
from sharedspan.cli.errors import MistakeError, echo_json, finite, require_seed, stopped

if TYPE_CHECKING:
    from sharedspan.paper.verdicts import Verdict


@click.command(short_help="Run the paper again and judge its claims.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--quick/--full",
    "quick",
    default=True,
    show_default=True,
    help="A few minutes on small grids, or the grids of the results page (under an hour).",
)
@options.out(
    "Folder for tables, figures and the page.  [default: reproduction-quick or -full]",
    required=False,
    type=click.Path(file_okay=False, path_type=Path),
)
@options.seed("all grids, the first one")
@options.as_json
def reproduce(
    names: tuple[str, ...], quick: bool, out: Path | None, seed: int, as_json: bool
) -> None:
    """Run the paper's figures, tables and theory again, and judge its claims.

    NAME is figure1, figure2, ablation, table1, table2, transfer, curriculum or theory; all by
    default. A run that was stopped goes on where it was when the command is given again.

    Example: sharedspan reproduce figure1 table2 --quick -o results
    """
    from sharedspan.paper import EXPERIMENTS

    for name in names:
        if name not in EXPERIMENTS:
            raise MistakeError(
                f"There is no experiment {name!r}: use {', '.join(EXPERIMENTS)}, or none for all."
            )
    require_seed(seed)
    folder = out or Path("reproduction-quick" if quick else "reproduction-full")
    chosen = [name for name in EXPERIMENTS if name in names or not names]
    command = " ".join(
        ["sharedspan reproduce", *names, "--quick" if quick else "--full"]
        + ([f"--seed {seed}"] if seed else [])
    )
    try:
        from concurrent.futures.process import BrokenProcessPool

        from sharedspan.paper.runner import InterruptedRunError, reproduce_all
        from sharedspan.paper.table import TableError
    except KeyboardInterrupt:
        stopped(f"Stopped before any run. Give the same command again to start in {folder}.")
    try:
        verdicts = reproduce_all(chosen, full=not quick, seed=seed, folder=folder, command=command)
    except KeyboardInterrupt:
        stopped(f"Stopped. Give the same command again to go on in {folder}.")
    except InterruptedRunError as interrupt:
        done, planned = interrupt.args
        stopped(
            f"Stopped. {done} of {planned} runs are saved in {folder}; give the same "
            "command again to go on from there."
        )
    except BrokenProcessPool:
        raise click.ClickException(
            f"A worker process died, most likely for want of memory. What was done is saved in "
            f"{folder}: give the same command again to go on, with NUMBA_NUM_THREADS=1 set for one "
            "worker only."
        ) from None
    except TableError as error:
        raise MistakeError(f"{error}.") from error
    except OSError as error:
        raise MistakeError(
            f"The results could not be written to {folder}: {error.strerror or error}. Give "
            "another folder with -o."
        ) from error
    if as_json:
        from dataclasses import asdict

        rows = [asdict(verdict) | {"outcome": verdict.outcome} for verdict in verdicts]
        echo_json(finite({"folder": str(folder), "verdicts": rows}))
    else:
        _print_verdicts(verdicts, folder)


def _print_verdicts(verdicts: list[Verdict], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from sharedspan.paper.verdicts import HOLDS, NOT

    table = Table(title="The paper's claims", title_justify="left", title_style="bold")
    for name in ("", "claim", "verdict"):
        table.add_column(name)
    colors = {HOLDS: "green", NOT: "red"}
    for verdict in verdicts:
        color = colors.get(verdict.outcome, "yellow")
        table.add_row(verdict.claim.letter, verdict.claim.says, f"[{color}]{verdict.summary}[/]")
    console = Console()
    console.print(table)
    console.print(f"Rules, figures and tables: {folder / 'results.md'}", soft_wrap=True)
