"""``sharedspan simulate``: files of tasks with a known answer."""

from __future__ import annotations

from pathlib import Path

import click

from sharedspan.cli import options
from sharedspan.cli.errors import (
    MistakeError,
    echo_json,
    manners,
    require_seed,
    ticking,
    writing,
)


@click.command()
@click.option("--tasks", type=int, required=True, help="Number of tasks T.")
@click.option("--features", type=int, required=True, help="Number of features d.")
@click.option("--rank", type=int, required=True, metavar="K", help="Dimension of the shared span.")
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
@options.seed("all draws")
@click.option(
    "--float64/--float32", "double", default=True, show_default=True, help="Digits of the numbers."
)
@click.option("--csv", is_flag=True, help="Write CSV instead of Parquet.")
@click.option(
    "--rows-per-file", type=int, default=1_000_000, show_default=True, help="Of a folder's files."
)
@click.option("--shuffle", is_flag=True, help="Mix the rows of all tasks over the files.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier simulation.")
@options.as_json
@options.out(
    "A folder, or one file that ends in .parquet or .csv.", type=click.Path(path_type=Path)
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
    as_json: bool,
    out: Path,
) -> None:
    """Write simulated tasks with a known answer to files of any size.

    The columns are task, x0, x1, ... and y. The truth is written beside them, to truth.npz.

    Example: sharedspan simulate --tasks 1000 --features 20 --rank 3 -o simulated
    """
    require_seed(seed)
    for name, count in (("tasks", tasks), ("features", features), ("rows", rows)):
        if count < 1:
            raise MistakeError(f"--{name} {count} must be at least 1.")
    stopped = f"Stopped. Nothing was written to {out}."
    with manners(stopped), writing(out), ticking() as tick:
        from sharedspan.datasets.simulate_files import simulate_files

        found = simulate_files(
            out, n_tasks=tasks, n_features=features, rank=rank, n_samples=rows, noise=noise,
            condition_number=condition_number, random_state=seed, csv=csv,
            dtype="float64" if double else "float32", rows_per_file=rows_per_file,
            shuffle=shuffle, overwrite=overwrite,
            progress=lambda stage, done, total: tick(stage, int(done), int(total)),
        )  # fmt: skip
    if as_json:
        files = [str(file) for file in found.files]
        about = {"n_rows": found.n_rows, "n_tasks": tasks, "n_features": features, "files": files}
        echo_json(about | {"n_bytes": found.n_bytes, "truth": str(found.truth)})
        return
    from sharedspan.inputs.memory_limit import in_words

    count = len(found.files)
    size = f"{count} file{'s' if count > 1 else ''} of {in_words(found.n_bytes)}"
    click.echo(f"{found.n_rows:,} rows of {tasks:,} tasks, {features} features: {size} in {out}")
    click.echo(f"Truth: {found.truth}")
