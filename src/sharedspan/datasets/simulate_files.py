"""Simulated tasks as files of any size, written in bounded memory, with known coefficients."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.datasets.simulate import Truth, draw_truth
from sharedspan.inputs.temporary import remove_leftovers
from sharedspan.persistence.atomic_write import atomic_folder, table_writer
from sharedspan.progress import ProgressCallback, no_progress

BLOCK_ROWS = 1 << 16  # drawn together: the rows do not depend on how they are cut into files
SHUFFLED_ROWS = 1 << 20  # rows whose tasks are shuffled together
MOST_SHUFFLED = 10**9  # rows from which NumPy's generator cannot shuffle them
PART_NAME = re.compile(r"part-\d+\.(parquet|csv)|truth\.npz")
TRUTH = ("coef", "representation", "task_weights", "intercept", "noise")


@dataclass(frozen=True)
class SimulatedFiles:
    """The files that ``simulate_files`` has written."""

    files: tuple[Path, ...]
    truth: Path
    n_rows: int
    n_bytes: int


def simulate_files(
    path: str | Path,
    *,
    n_tasks: int,
    n_features: int,
    rank: int,
    n_samples: Any = 100,
    noise: Any = 0.5,
    condition_number: float = 1.0,
    random_state: Any = None,
    csv: bool = False,
    dtype: str = "float64",
    rows_per_file: int = 1_000_000,
    shuffle: bool = False,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> SimulatedFiles:
    """Draw tasks as ``simulate`` does and write them to Parquet or CSV files.

    Columns are task, x0, x1, ... and y. The coefficients are what ``simulate`` draws with the same
    ``random_state``. All files appear at the end, or none.

    Parameters
    ----------
    path : str or Path
        A folder for part-00000.parquet and so on, with truth.npz; or one file that ends in
        .parquet or .csv, with its truth beside it, ending in .truth.npz.
    n_tasks, n_features, rank, n_samples, noise, condition_number, random_state
        See ``simulate``.
    csv : bool
        Whether to write CSV files instead of Parquet.
    dtype : {"float64", "float32"}
        Type of the features and the target.
    rows_per_file : int
        Rows in each file of a folder.
    shuffle : bool
        Whether rows of all tasks are shuffled over the files; otherwise they come task by task.
    overwrite : bool
        Whether an earlier simulation may be replaced; other files are never replaced.
    progress : ProgressCallback

    Returns
    -------
    SimulatedFiles
    """
    path = Path(path)
    single = path.suffix.lower() in (".parquet", ".csv") and not path.is_dir()
    if dtype not in ("float64", "float32"):
        raise ValueError(f"dtype={dtype!r} must be 'float64' or 'float32'.")
    if rows_per_file < 1:
        raise ValueError(f"rows_per_file={rows_per_file} must be at least 1.")
    rng = np.random.default_rng(random_state)
    truth = draw_truth(
        rng, n_tasks=n_tasks, n_features=n_features, rank=rank, n_samples=n_samples, noise=noise,
        condition_number=condition_number,
    )  # fmt: skip
    n_rows = int(truth.n_samples.sum())
    if shuffle and n_rows >= MOST_SHUFFLED:
        raise ValueError(f"shuffle=True needs fewer than {MOST_SHUFFLED:,} rows, not {n_rows:,}.")
    ending = path.suffix.lower() if single else ".csv" if csv else ".parquet"
    size = n_rows if single else rows_per_file
    folder = path.parent if single else path
    old = _earlier_files(path, single)
    if old and not overwrite:
        what = f"{old[0]} exists already" if single else f"The folder {path} is not empty"
        raise ValueError(f"{what}: give another path, or replace it (--overwrite).")
    with atomic_folder(folder, old) as hidden:
        tasks = _shuffled_tasks(truth, rng) if shuffle else _ordered_tasks(truth)
        schema, written = _schema(n_features, dtype), 0
        tables = _cut(_tables(tasks, truth, rng, schema), size)
        for number, parts in itertools.groupby(tables, key=lambda numbered: numbered[0]):
            name = path.name if single else f"part-{number:05d}{ending}"
            # Dictionaries of random numbers would only take space.
            with table_writer(hidden / name, schema, use_dictionary=["task"]) as writer:
                for _, table in parts:
                    writer.write_table(table)
                    written += len(table)
                    progress("writing rows", written, n_rows)
        name = f"{path.stem}.truth.npz" if single else "truth.npz"
        np.savez(hidden / name, **{field: getattr(truth, field) for field in TRUTH})
        names = sorted(file.name for file in hidden.iterdir() if file.name != name)
        n_bytes = sum((hidden / other).stat().st_size for other in names)
    return SimulatedFiles(tuple(folder / other for other in names), folder / name, n_rows, n_bytes)


def _ordered_tasks(truth: Truth) -> Iterator[np.ndarray]:
    """The task of each row, task by task, in blocks."""
    ends = np.cumsum(truth.n_samples)
    for lo in range(0, int(ends[-1]), BLOCK_ROWS):
        rows = np.arange(lo, min(lo + BLOCK_ROWS, int(ends[-1])))
        yield np.searchsorted(ends, rows, side="right")


def _shuffled_tasks(truth: Truth, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The task of each row in random order, in blocks and without a list of all rows.

    The number of rows of each task in a block is drawn first, as from an urn of the remaining rows.
    """
    left = truth.n_samples.copy()
    while left.any():
        count = min(SHUFFLED_ROWS, int(left.sum()))
        drawn = rng.multivariate_hypergeometric(left, count, method="marginals")
        left -= drawn
        task = np.repeat(np.arange(len(left)), drawn)
        rng.shuffle(task)
        yield from (task[lo : lo + BLOCK_ROWS] for lo in range(0, count, BLOCK_ROWS))


def _schema(d: int, dtype: str) -> Any:
    import pyarrow as pa

    number = pa.float32() if dtype == "float32" else pa.float64()
    features = [(f"x{j}", number) for j in range(d)]
    return pa.schema([("task", pa.int64()), *features, ("y", number)])


def _tables(
    tasks: Iterator[np.ndarray], truth: Truth, rng: np.random.Generator, schema: Any
) -> Iterator[Any]:
    """Blocks of rows as Arrow tables."""
    import pyarrow as pa

    for task in tasks:
        X = rng.standard_normal((len(task), len(truth.representation)))
        y = truth.intercept[task] + truth.noise[task] * rng.standard_normal(len(task))
        y += np.einsum("ij,ij->i", X, truth.coef[task])
        numbers = [values.astype(schema.field("y").type.to_pandas_dtype()) for values in (*X.T, y)]
        yield pa.table([task, *numbers], schema=schema)


def _cut(tables: Iterator[Any], size: int) -> Iterator[tuple[int, Any]]:
    """Tables cut after every ``size`` rows, each with the number of its file."""
    row = 0
    for table in tables:
        while len(table):
            part = table.slice(0, size - row % size)
            yield row // size, part
            row, table = row + len(part), table.slice(len(part))


def _earlier_files(path: Path, single: bool) -> list[Path]:
    """Files that would be replaced; raises for a file that no simulation wrote."""
    if not path.parent.is_dir():
        raise ValueError(f"There is no folder {path.parent}: make it, or give another path.")
    if single:
        return [file for file in (path, path.with_suffix(".truth.npz")) if file.exists()]
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: give a folder, or a file that ends in .parquet.")
    if path.exists():
        remove_leftovers(path)  # of a simulation that was killed
    files = sorted(path.iterdir()) if path.exists() else []
    for file in files:
        if not PART_NAME.fullmatch(file.name):
            raise ValueError(
                f"The folder {path} holds {file.name}, which no simulation wrote: give a new or "
                "an empty folder."
            )
    return files
