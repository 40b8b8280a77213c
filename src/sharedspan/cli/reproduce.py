"""``sharedspan reproduce``: run the paper's experiments again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sharedspan.cli import errors, options, output
from sharedspan.paper import EXPERIMENTS, FINDINGS

if TYPE_CHECKING:
    from sharedspan.paper.verdicts import Verdict

ALL_FINDINGS = "findings"


@click.command("reproduce", short_help="Repeat the experiments of Ding, Du and Fang (2026).")
@click.argument(
    "names",
    nargs=-1,
    type=click.Choice([*EXPERIMENTS, ALL_FINDINGS, *FINDINGS]),
    metavar="[NAME]...",
)
@click.option(
    "--quick/--full",
    "quick",
    default=True,
    help="--quick runs small grids in a few minutes; --full runs the grids of the results page, "
    "in under an hour.",
)
@options.out(
    "Folder for tables, figures and the page.  [default: reproduction-quick or -full]",
    required=False,
    type=click.Path(file_okay=False, path_type=Path),
)
@options.seed("the first run; the other runs use the integers that follow")
@options.json_output
def reproduce_command(
    names: tuple[str, ...], quick: bool, out: Path | None, seed: int, as_json: bool
) -> None:
    """Repeat the experiments of Ding, Du and Fang (2026), and judge the paper's claims.

    NAME is figure1, figure2, ablation, crossover, table1, table2, transfer, curriculum or theory;
    all of these by default. Findings beyond the paper have a page of their own: give "findings" for
    all of them, or phase, speed, misspecified, conditioning or covariances. To continue a stopped
    run, give the same command again.

    Example: sharedspan reproduce figure1 table2 --quick -o results
    """
    folder = out or Path("reproduction-quick" if quick else "reproduction-full")
    selected = [name for name in EXPERIMENTS if name in names or not names]
    findings = [name for name in FINDINGS if name in names or ALL_FINDINGS in names]
    command = " ".join(["sharedspan reproduce", *names, "--quick" if quick else "--full"])
    if seed:
        command += f" --seed {seed}"
    again = "give the same command again to continue"
    with errors.one_line_errors(), errors.write_errors(folder):
        from concurrent.futures.process import BrokenProcessPool

        from sharedspan.paper.runner import InterruptedRunError, reproduce_all, run_findings

        settings: dict[str, Any] = {
            "full": not quick, "seed": seed, "folder": folder, "command": command
        }  # fmt: skip
        try:
            verdicts = reproduce_all(selected, **settings) if selected else []
            answers = run_findings(findings, **settings) if findings else {}
        except InterruptedRunError as interrupt:
            done, planned = interrupt.args
            errors.exit_interrupted(
                f"Stopped. {done} of {planned} runs are saved in {folder}: {again}."
            )
        except BrokenProcessPool:
            raise click.ClickException(
                "A worker process died, most likely because memory ran out. Finished runs are "
                f"saved in {folder}: {again}, with NUMBA_NUM_THREADS=1 set to use one worker only."
            ) from None
    if as_json:
        rows = [asdict(verdict) | {"outcome": verdict.outcome} for verdict in verdicts]
        told = {"findings": answers} if findings else {}
        output.echo_json({"folder": folder, "verdicts": rows} | told)
        return
    if selected:
        _print_verdicts(verdicts, folder)
    if findings:
        _print_findings(answers, folder)


def _print_verdicts(verdicts: list[Verdict], folder: Path) -> None:
    from sharedspan.paper.verdicts import HOLDS, NOT

    colors = {HOLDS: "green", NOT: "red"}
    rows = [
        (
            verdict.claim.letter,
            verdict.claim.says,
            f"[{colors.get(verdict.outcome, 'yellow')}]{verdict.summary}[/]",
        )
        for verdict in verdicts
    ]
    output.print_table("The paper's claims", ("", "claim", "verdict"), rows)
    click.echo(f"Rules, figures and tables: {folder / 'results.md'}")


def _print_findings(answers: dict[str, str], folder: Path) -> None:
    for name, answer in answers.items():
        click.echo(f"{name}: {answer}\n")
    click.echo(f"Figures and tables: {folder / 'findings.md'}")
