"""``sharedspan compare``: all estimators on one table, and which one to use."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sharedspan.cli import options
from sharedspan.cli.errors import (
    MistakeError,
    echo_json,
    manners,
    progress_bar,
    require_out,
    require_seed,
    writing,
)

if TYPE_CHECKING:
    from sharedspan.diagnosis.comparison import Comparison


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@options.task()
@options.target()
@options.drop
@options.missing
@click.option("--repeats", type=int, default=5, show_default=True, help="Splits, at least two.")
@options.seed("splits and fits")
@options.as_json
@options.out("Write the leaderboard to this CSV file too.", required=False)
def compare(
    table: Path,
    task: str,
    target: str,
    drop: tuple[str, ...],
    missing: str,
    repeats: int,
    seed: int,
    as_json: bool,
    out: Path | None,
) -> None:
    """Rank all estimators on your table, and say which one to use.

    TABLE is a CSV or Parquet file. All columns but task, target and dropped ones are features and
    must hold numbers. Each split fits on three quarters of every task's rows and tests on the rest,
    which takes minutes on tables of thousands of rows; --repeats 2 is quicker.

    Example: sharedspan compare school.csv --task school --target exam_score
    """
    require_seed(seed)
    if repeats < 2:
        raise MistakeError(f"--repeats {repeats} must be at least 2: the errors need two splits.")
    require_out(out, ".csv", apart_from=[table] if table.exists() else [])
    with manners("Stopped." if out is None else f"Stopped. {out} was not written."):
        from sharedspan.datasets.bundled import load_table
        from sharedspan.diagnosis.comparison import compare as run_comparison

        data = load_table(table, task=task, target=target, drop=drop, missing=missing)
        with progress_bar() as progress:
            bar = progress.add_task("starting", total=None)
            found = run_comparison(
                data.X, data.y, data.task, repeats=repeats, seed=seed,
                tick=lambda name, done, total: progress.update(
                    bar, description=name, completed=done, total=total),
            )  # fmt: skip
        if out is not None:
            with writing(out):
                found.write_csv(out)
    if as_json:
        about = {"table": str(table), "task": task, "target": target, "dropped_columns": list(drop)}
        echo_json(about | {"n_rows_missing": data.n_dropped} | found.to_dict())
    else:
        _print_comparison(found, table.name, data.n_dropped, out)
        if found.recommended is not None:
            columns = [shlex.quote(str(part)) for part in (table, task, target)]
            dropped = "".join(f" --drop {shlex.quote(name)}" for name in drop)
            click.echo(
                "Next: sharedspan fit {} --task {} --target {}{} --estimator {} -o {}".format(
                    *columns, dropped, found.recommended, shlex.quote(f"{table.stem}.span")
                )
            )
    if found.recommended is None:
        sys.exit(1)


def _print_comparison(found: Comparison, name: str, n_missing: int, out: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sharedspan.diagnosis.comparison import TEST_SHARE, cells, remarks

    board = Table(
        title=Text(f"{name}: {found.n_tasks} tasks, {found.n_rows} rows, {found.n_features} "
                   "features"),
        caption=f"Means over {found.repeats} splits, {TEST_SHARE:.0%} of each task's rows held "
        "out; ± standard error of the difference.",
        title_justify="left", title_style="bold", caption_justify="left",
    )  # fmt: skip
    for heading in ("rank", "method", "test RMSE", "above the best", "fit seconds"):
        board.add_column(heading, justify="left" if heading == "method" else "right")
    for entry in found.entries:
        style = "bold" if entry.method == found.recommended else None
        board.add_row(*cells(entry), style=style or ("dim" if entry.failure else None))
    console = Console(highlight=False)
    console.print(board)
    lines = remarks(found)
    if n_missing:
        lines.append(f"{n_missing} row(s) with missing values were left out.")
    for line in (*lines, found.advice):
        console.print(line, markup=False, soft_wrap=not console.is_terminal)
    if out is not None:
        console.print(f"Leaderboard: {out}", markup=False, soft_wrap=True)
