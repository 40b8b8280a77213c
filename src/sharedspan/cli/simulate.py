"""``sharedspan simulate``: write files of simulated tasks whose coefficients are known."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sharedspan.cli import errors, options, output
from sharedspan.progress import progress_bar


@click.command("simulate", short_help="Write simulated tasks with known coefficients.")
@options.n_tasks
@options.n_features
@options.rank
@click.option("--rows", "n_samples", type=options.POSITIVE, default=100, help="Rows per task.")
@click.option("--noise", type=float, default=0.5, help="Standard deviation of the noise.")
@click.option(
    "--condition-number",
    type=float,
    default=1.0,
    help="Ratio of the largest to the smallest singular value of the coefficients.",
)
@options.seed("the random numbers")
@click.option("--float64/--float32", "double", default=True, help="Precision of the numbers.")
@click.option("--csv", is_flag=True, help="Write CSV instead of Parquet.")
@click.option("--rows-per-file", type=int, default=1_000_000, help="Rows in each file of a folder.")
@click.option("--shuffle", is_flag=True, help="Shuffle the rows of all tasks across files.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier simulation.")
@options.json_output
@options.out(
    "A folder, or one file that ends in .parquet or .csv.", type=click.Path(path_type=Path)
)
def simulate_command(seed: int, double: bool, as_json: bool, out: Path, **problem: Any) -> None:
    """Write simulated tasks, whose true coefficients are known, to files of any size.

    The columns are task, x0, x1, ... and y. The true coefficients are written beside the
    files, to truth.npz, or to NAME.truth.npz for one file NAME.csv.

    Example: sharedspan simulate --tasks 1000 --features 20 --rank 3 -o simulated
    """
    with errors.one_line_errors(out), errors.write_errors(out), progress_bar() as progress:
        from sharedspan.datasets.simulate_files import simulate_files
        from sharedspan.diagnosis.text import count
        from sharedspan.inputs.resources import in_words

        written = simulate_files(
            out,
            **problem,
            random_state=seed,
            dtype="float64" if double else "float32",
            progress=progress,
        )
    n_tasks, n_features = problem["n_tasks"], problem["n_features"]
    result = asdict(written) | {"n_tasks": n_tasks, "n_features": n_features}
    size = f"{count(len(written.files), 'file')} of {in_words(written.n_bytes)}"
    lines = [
        f"{written.n_rows:,} rows of {n_tasks:,} tasks, {n_features} features: {size} in {out}",
        f"Truth: {written.truth}",
    ]
    output.echo_result(result, lines, as_json=as_json)
