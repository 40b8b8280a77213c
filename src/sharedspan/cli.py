"""The command line. Each command imports what it needs when it runs, so help is instant."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from sharedspan import __version__

if TYPE_CHECKING:
    from rich.progress import Progress

    from sharedspan.comparison import Comparison
    from sharedspan.experiments.claims import Verdict
    from sharedspan.report.demo import Demo, Row


# Estimators of `fit`, the default first.
ESTIMATORS = (
    "SharedSpanRegressor",
    "AdaptiveSpanRegressor",
    "PooledRegressor",
    "PerTaskRegressor",
    "CurriculumRegressor",
    "MomentRegressor",
    "SpectralRegressor",
    "ARMULRegressor",
    "PenalizedERMRegressor",
)


class MistakeError(click.ClickException):
    """What the user can mend, said in one line."""

    exit_code = 2


def _of_columns(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what the columns of a table are, for every command that reads one."""
    options = (
        click.option(
            "--task", required=True, metavar="COL", help="Column that says the task of a row."
        ),
        click.option("--target", required=True, metavar="COL", help="Column to predict."),
        click.option(
            "--drop", multiple=True, metavar="COL", help="Column to leave out; repeatable."
        ),
        click.option(
            "--missing",
            type=click.Choice(["error", "drop"]),
            default="error",
            show_default=True,
            help="Rows that lack a value: refuse the table, or leave them out.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


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
    try:
        from sharedspan.experiments.run_all import InterruptedRunError, reproduce_all
        from sharedspan.experiments.runner import LostWorkerError
        from sharedspan.experiments.table import TableError
    except KeyboardInterrupt:
        _stopped(f"Stopped before any run. Give the same command again to start in {folder}.")
    try:
        found = reproduce_all(chosen, full=not quick, seed=seed, folder=folder, command=command)
    except KeyboardInterrupt:
        _stopped(f"Stopped. Give the same command again to go on in {folder}.")
    except InterruptedRunError as stopped:
        _stopped(
            f"Stopped. {stopped.done} of {stopped.planned} runs are kept in {folder}; give the "
            "same command again to go on from there."
        )
    except LostWorkerError:
        raise click.ClickException(
            f"A worker process died, most likely for want of memory. What was done is kept in "
            f"{folder}: give the same command again to go on, with NUMBA_NUM_THREADS=1 set for one "
            "worker only."
        ) from None
    except TableError as error:
        raise click.UsageError(f"{error}.") from error
    except OSError as error:
        raise click.UsageError(
            f"The results could not be written to {folder}: {error.strerror or error}. Give "
            "another folder with -o."
        ) from error
    _print_verdicts(found, folder)


def _stopped(message: str) -> NoReturn:
    """Say how to go on after Ctrl-C; another one changes nothing any more."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    click.echo(f"\n{message}", err=True)
    sys.exit(130)


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


@main.command()
@click.argument("table", type=click.Path(path_type=Path))
@_of_columns
@click.option("--repeats", type=int, default=5, show_default=True, help="Splits, at least two.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of splits and fits.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the leaderboard to this CSV file too.",
)
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
    must hold numbers. Each split fits on three quarters of every task's rows and tests on the rest.

    Example: sharedspan compare school.csv --task school --target exam_score
    """
    if seed < 0:
        raise MistakeError(f"--seed {seed} must be zero or more.")
    if repeats < 2:
        raise MistakeError(f"--repeats {repeats} must be at least 2: the errors need two splits.")
    if out is not None and not out.parent.is_dir():
        raise MistakeError(f"There is no folder {out.parent}: make it or give another --out.")
    if out is not None and out.resolve() == table.resolve():
        raise MistakeError(f"--out {out} is the table itself: give another file.")
    from sharedspan.comparison import compare as run_comparison
    from sharedspan.data.files import read_table

    try:
        data = read_table(table, task=task, target=target, drop=drop, missing=missing)
        with _fit_progress() as progress:
            bar = progress.add_task("starting", total=None)
            found = run_comparison(
                data.X, data.y, data.task, repeats=repeats, seed=seed,
                tick=lambda name, done, total: progress.update(
                    bar, description=name, completed=done, total=total),
            )  # fmt: skip
        if out is not None:
            found.write_csv(out)
    except ValueError as error:
        raise MistakeError(str(error)) from error
    except OSError as error:
        raise MistakeError(f"{out} could not be written: {error.strerror or error}.") from error
    if as_json:
        import json

        about = {"table": str(table), "task": task, "target": target, "dropped_columns": list(drop)}
        about |= {"n_rows_missing": data.n_dropped} | found.to_dict()
        click.echo(json.dumps(about, indent=2, allow_nan=False))
    else:
        _print_comparison(found, table.name, data.n_dropped, out)
    if found.recommended is None:
        sys.exit(1)


def _fit_progress() -> Progress:
    """A bar on the standard error, where that is a terminal; gone when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _print_comparison(found: Comparison, name: str, n_missing: int, out: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sharedspan.comparison import TEST_SHARE, cells, remarks

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
        console.print(line, markup=False, soft_wrap=True)
    if out is not None:
        console.print(f"Leaderboard: {out}", markup=False, soft_wrap=True)


@main.command()
@click.option("--tasks", type=int, required=True, help="Number of tasks T.")
@click.option("--features", type=int, required=True, help="Number of features d.")
@click.option("--rank", type=int, required=True, help="Dimension k of the shared span.")
@click.option("--noise", type=float, required=True, help="Standard deviation of the noise.")
@click.option("--error", type=float, help="Wanted mean over tasks of |v - v*|^2.")
@click.option("--rows", type=int, help="Rows per task; give this or --error.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def plan(
    tasks: int,
    features: int,
    rank: int,
    noise: float,
    error: float | None,
    rows: int | None,
    as_json: bool,
) -> None:
    """Say how many rows per task a wanted error needs, or what error given rows allow.

    Example: sharedspan plan --tasks 100 --features 50 --rank 3 --noise 0.5 --error 0.02
    """
    if (error is None) == (rows is None):
        raise MistakeError("Give either --error or --rows: the other one is computed from it.")
    from sharedspan.planning import plan as make_plan

    try:
        found = make_plan(
            n_tasks=tasks, n_features=features, rank=rank, noise=noise, error=error, n_samples=rows
        )
    except ValueError as mistake:
        raise MistakeError(str(mistake)) from mistake
    if as_json:
        import json
        import math
        from dataclasses import asdict

        finite = {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in asdict(found).items()
        }
        click.echo(json.dumps(finite, indent=2, allow_nan=False))
    else:
        click.echo(found)


@main.command()
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@_of_columns
@click.option(
    "--text",
    type=click.Choice(["error", "one_hot"]),
    default="error",
    show_default=True,
    help="Features of text: refuse the table, or a column of zeros and ones for each level.",
)
@click.option(
    "--estimator",
    type=click.Choice(ESTIMATORS),
    default=ESTIMATORS[0],
    show_default=True,
    help="What to fit.",
)
@click.option("--rank", metavar="K|auto", help="Dimension of the span.  [default: auto]")
@click.option("--solver", metavar="NAME", help="How to fit; see the documentation for names.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the fit.")
@click.option("--memory-limit", metavar="SIZE", help="Most memory to take, such as 2GB.")
@click.option("--checkpoint", metavar="FILE", help="Keep the state of a long fit in this file.")
@click.option("--resume", metavar="FILE", help="Go on from this checkpoint of a killed fit.")
@click.option(
    "--engine",
    metavar="ADDRESS",
    help="Fit on the Dask cluster of this scheduler, such as tcp://host:8786.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to write the coefficients: a .csv or .parquet file.",
)
def fit(
    tables: tuple[str, ...],
    task: str,
    target: str,
    drop: tuple[str, ...],
    missing: str,
    text: str,
    estimator: str,
    rank: str | None,
    solver: str | None,
    seed: int,
    memory_limit: str | None,
    checkpoint: str | None,
    resume: str | None,
    engine: str | None,
    as_json: bool,
    out: Path,
) -> None:
    """Fit all tasks of your files together, and write their coefficients.

    TABLE is a CSV or Parquet file, a folder of them, or a pattern in quotes; the files together may
    be larger than memory. All columns but task, target and dropped ones are features. Sorted rows
    lie in the folder of the environment variable TMPDIR meanwhile.

    Example: sharedspan fit "sales/*.parquet" --task shop --target units --rank 3 -o coef.csv
    """
    if seed < 0:
        raise MistakeError(f"--seed {seed} must be zero or more.")
    if not out.parent.is_dir():
        raise MistakeError(f"There is no folder {out.parent}: make it or give another --out.")
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise MistakeError(f"--out {out} must end in .csv or .parquet.")
    with _manners(f"Stopped. {out} was not written."):
        _require_apart(out, tables)
        about = _fit(
            {"estimator": estimator, "rank": rank, "solver": solver, "seed": seed,
             "engine": engine, "checkpoint": checkpoint, "resume": resume},
            {"path": tables, "task": task, "target": target, "drop": drop, "missing": missing,
             "text": text, "memory_limit": memory_limit},
            out,
        )  # fmt: skip
    if as_json:
        import json

        click.echo(json.dumps(about, indent=2, allow_nan=False))
    else:
        _print_fit(about)


def _require_apart(out: Path, tables: tuple[str, ...]) -> None:
    from sharedspan.data.sources import find_files

    if out.exists() and any(out.samefile(table) for table in find_files(tables)):
        raise MistakeError(f"--out {out} is one of the tables: give another file.")


@contextmanager
def _manners(when_stopped: str) -> Iterator[None]:
    """Mistakes in one line and with exit code 2, Ctrl-C with what became of the work."""
    try:
        yield
    except KeyboardInterrupt:
        _stopped(when_stopped)
    except (ValueError, TypeError, ImportError) as error:
        raise MistakeError(str(error)) from error
    except RuntimeError as error:
        if type(error).__name__ != "ClusterError":
            raise
        raise MistakeError(str(error)) from error
    except OSError as error:
        said = (error.strerror or str(error)).rstrip(".")
        if error.filename is not None and str(error.filename) not in said:
            said = f"{error.filename}: {said}"
        raise MistakeError(f"{said}.") from error


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Say why a file could not be written."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise MistakeError(f"{out} could not be written: {reason.rstrip('.')}.") from error


def _fit(method: dict[str, Any], data: dict[str, Any], out: Path) -> dict[str, Any]:
    """Fit, write the coefficients, and say what was done."""
    import time
    import warnings
    from inspect import signature

    import sharedspan

    maker = getattr(sharedspan, method["estimator"])
    known, rank = maker().get_params(), method["rank"]
    options = {"rank": int(rank) if rank and rank.isdigit() else rank, "solver": method["solver"]}
    options["engine"] = method["engine"]
    options = {name: value for name, value in options.items() if value is not None}
    kept = {name: method[name] for name in ("checkpoint", "resume") if method[name] is not None}
    known_to_fit = signature(maker.fit).parameters
    for name in (*options, *kept):
        if name not in known and name not in known_to_fit:
            raise ValueError(f"{method['estimator']} has no {name}: leave --{name} out.")
    if "random_state" in known:
        options["random_state"] = method["seed"]
    began, n_rows = time.perf_counter(), 0
    with warnings.catch_warnings(record=True) as caught, _fit_progress() as progress:
        warnings.simplefilter("always")
        bars = {"starting": progress.add_task("starting", total=None)}

        def tick(what: str, done: int, total: int) -> None:
            nonlocal n_rows
            n_rows = total if what == "reading" else n_rows
            if what not in bars:
                progress.remove_task(bars.popitem()[1])
                bars[what] = progress.add_task(what, total=total or None)
            progress.update(bars[what], completed=done)

        model = maker(**options).fit_file(**data, **kept, tick=tick)
        with _writing(out):
            _write_coefficients(model, data["task"], out)
    noise = getattr(model, "noise_variance_", None)
    return {
        "estimator": method["estimator"],
        "n_tasks": len(model.tasks_),
        "n_rows": n_rows - model.n_rows_dropped_ if n_rows else None,  # a cluster does not say
        "n_rows_dropped": model.n_rows_dropped_,
        "n_features": len(model.coef_names_),
        "rank": int(model.rank_) if hasattr(model, "rank_") else None,
        "noise": None if noise is None else float(noise.mean() ** 0.5),
        "seconds": round(time.perf_counter() - began, 3),
        "out": str(out),
        "warnings": list(dict.fromkeys(str(warning.message) for warning in caught)),
    }


def _write_coefficients(model: Any, task: str, out: Path) -> None:
    """A table with a row for each task, under its name or not at all."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from sharedspan.data.writing import file_appearing

    names = list(model.coef_names_)
    level = "intercept" if "intercept" not in (task, *names) else "(intercept)"
    columns = [pa.array(model.tasks_.tolist()), model.intercept_, *model.coef_.T]
    table = pa.table(columns, names=[task, level, *names])
    write = pa.csv.write_csv if out.suffix.lower() == ".csv" else pa.parquet.write_table
    with file_appearing(out) as hidden:
        write(table, hidden)


def _print_fit(about: dict[str, Any]) -> None:
    parts = [f"{about['n_tasks']:,} tasks", f"{about['n_features']} features"]
    if about["n_rows"] is not None:
        parts.insert(1, f"{about['n_rows']:,} rows")
    if about["rank"] is not None:
        parts.append(f"rank {about['rank']}")
    if about["noise"] is not None:
        parts.append(f"noise {about['noise']:.3g}")
    click.echo(f"{about['estimator']}: {', '.join(parts)}; {about['seconds']:.1f} seconds")
    if about["n_rows_dropped"]:
        click.echo(f"{about['n_rows_dropped']:,} row(s) with missing values were left out.")
    for warning in about["warnings"]:
        click.echo(f"Warning: {warning}", err=True)
    click.echo(f"Coefficients: {about['out']}")


@main.command()
@click.option("--tasks", type=int, required=True, help="Number of tasks T.")
@click.option("--features", type=int, required=True, help="Number of features d.")
@click.option("--rank", type=int, required=True, help="Dimension k of the shared span.")
@click.option("--rows", type=int, default=100, show_default=True, help="Rows per task.")
@click.option(
    "--noise", type=float, default=0.5, show_default=True, help="Standard deviation of the noise."
)
@click.option(
    "--condition-number",
    type=float,
    default=1.0,
    show_default=True,
    help="Largest over least singular value of the coefficients.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all draws.")
@click.option(
    "--float64/--float32", "double", default=True, show_default=True, help="Digits of the numbers."
)
@click.option("--csv", is_flag=True, help="Write CSV instead of Parquet.")
@click.option(
    "--rows-per-file", type=int, default=1_000_000, show_default=True, help="Of a folder's files."
)
@click.option("--shuffle", is_flag=True, help="Mix the rows of all tasks over the files.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier simulation.")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="A folder, or one file that ends in .parquet or .csv.",
)
def simulate(
    tasks: int,
    features: int,
    rank: int,
    rows: int,
    noise: float,
    condition_number: float,
    seed: int,
    double: bool,
    csv: bool,
    rows_per_file: int,
    shuffle: bool,
    overwrite: bool,
    out: Path,
) -> None:
    """Write simulated tasks with a known answer to files of any size.

    The columns are task, x0, x1, ... and y. The truth is written beside them, to truth.npz.

    Example: sharedspan simulate --tasks 1000 --features 20 --rank 3 -o simulated
    """
    if seed < 0:
        raise MistakeError(f"--seed {seed} must be zero or more.")
    for name, count in (("tasks", tasks), ("features", features), ("rows", rows)):
        if count < 1:
            raise MistakeError(f"--{name} {count} must be at least 1.")
    stopped = f"Stopped. Nothing was written to {out}."
    with _manners(stopped), _writing(out), _fit_progress() as progress:
        from sharedspan.data.synthetic_files import simulate_files

        bar = progress.add_task("writing rows", total=tasks * rows)
        found = simulate_files(
            out, n_tasks=tasks, n_features=features, rank=rank, n_samples=rows, noise=noise,
            condition_number=condition_number, random_state=seed, csv=csv,
            dtype="float64" if double else "float32", rows_per_file=rows_per_file,
            shuffle=shuffle, overwrite=overwrite,
            tick=lambda done, total: progress.update(bar, completed=done),
        )  # fmt: skip
    from sharedspan.data.budget import in_words

    count = len(found.files)
    size = f"{count} file{'s' if count > 1 else ''} of {in_words(found.n_bytes)}"
    click.echo(f"{found.n_rows:,} rows of {tasks:,} tasks, {features} features: {size} in {out}")
    click.echo(f"Truth: {found.truth}")


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
