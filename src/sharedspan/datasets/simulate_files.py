"""Simulated tasks as files, in bounded memory: tables of any size with a known answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.datasets.simulate import Truth, draw_truth
from sharedspan.persistence.atomic_write import atomic_folder

BLOCK = 1 << 16  # rows drawn together: the rows do not depend on how they are cut into files
MIXED = 1 << 20  # rows whose tasks are mixed together
MOST_MIXED = 10**9  # rows that can be mixed over files, a limit of the generator
PARTS = re.compile(r"part-\d+\.(parquet|csv)|truth\.npz")
ENDINGS = (".parquet", ".csv")
TRUTH = ("coef", "representation", "task_weights", "intercept", "noise")


@dataclass(frozen=True)
class Written:
    """What ``simulate_files`` wrote."""

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
    tick: Callable[[int, int], object] | None = None,
) -> Written:
    """Draw tasks as ``simulate`` does and write them to Parquet or CSV files.

    Columns are task, x0, x1, ... and y. The coefficients are those of ``simulate`` with the same
    ``random_state``. All files appear at the end, or none.

    Parameters
    ----------
    path : str or Path
        A folder for part-00000.parquet and so on, with truth.npz; or one file that ends in
        .parquet or .csv, with its truth beside it, ending in .truth.npz.
    n_tasks, n_features, rank, n_samples, noise, condition_number, random_state
        As in ``simulate``.
    csv : bool
        CSV parts instead of Parquet.
    dtype : {"float64", "float32"}
        Of the features and the target.
    rows_per_file : int
        Of a folder.
    shuffle : bool
        Whether rows of all tasks are mixed over the files; otherwise they come task by task.
    overwrite : bool
        Whether an earlier simulation may be replaced; other files are never.
    tick : callable of (rows done, rows in all), optional

    Returns
    -------
    Written
    """
    path = Path(path)
    single = path.name.lower().endswith(ENDINGS) and not path.is_dir()
    if dtype not in ("float64", "float32"):
        raise ValueError(f"dtype={dtype!r} is unknown: use 'float64' or 'float32'.")
    if rows_per_file < 1:
        raise ValueError(f"rows_per_file={rows_per_file} must be at least 1.")
    rng = np.random.default_rng(random_state)
    truth = draw_truth(
        rng, n_tasks=n_tasks, n_features=n_features, rank=rank, n_samples=n_samples, noise=noise,
        condition_number=condition_number,
    )  # fmt: skip
    n_rows = int(truth.n_samples.sum())
    if shuffle and n_rows >= MOST_MIXED:
        raise ValueError(f"{n_rows} rows cannot be mixed: leave shuffle out, or take fewer rows.")
    ending = path.suffix.lower() if single else ".csv" if csv else ".parquet"
    size = n_rows if single else rows_per_file
    folder = path.parent if single else path
    old = _in_the_way(path, single)
    if old and not overwrite:
        what = f"{old[0]} is there already" if single else f"The folder {path} is not empty"
        raise ValueError(f"{what}: give another path, or replace it (--overwrite).")
    with atomic_folder(folder, old) as hidden:
        tasks = _mixed_tasks(truth, rng) if shuffle else _ordered_tasks(truth)
        written = 0
        for number, parts in enumerate(_cut(_tables(tasks, truth, rng, dtype), size)):
            name = path.name if single else f"part-{number:05d}{ending}"
            with _writer(hidden / name, ending, dtype, n_features) as write:
                for part in parts:
                    write(part)
                    written += len(part)
                    if tick is not None:
                        tick(written, n_rows)
        name = f"{path.stem}.truth.npz" if single else "truth.npz"
        np.savez(hidden / name, **{field: getattr(truth, field) for field in TRUTH})
        names = sorted(file.name for file in hidden.iterdir() if file.name != name)
        n_bytes = sum((hidden / other).stat().st_size for other in names)
    return Written(tuple(folder / other for other in names), folder / name, n_rows, n_bytes)


def _ordered_tasks(truth: Truth) -> Iterator[np.ndarray]:
    """The task of each row, task by task, in blocks."""
    ends = np.cumsum(truth.n_samples)
    for lo in range(0, int(ends[-1]), BLOCK):
        rows = np.arange(lo, min(lo + BLOCK, int(ends[-1])))
        yield np.searchsorted(ends, rows, side="right")


def _mixed_tasks(truth: Truth, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The same in random order, every order equally likely, without a list of all rows.

    How many rows of each task a block gets is drawn first, as from an urn of those that are left.
    """
    left = truth.n_samples.copy()
    while left.any():
        count = min(MIXED, int(left.sum()))
        drawn = rng.multivariate_hypergeometric(left, count, method="marginals")
        left -= drawn
        task = np.repeat(np.arange(len(left)), drawn)
        rng.shuffle(task)
        yield from (task[lo : lo + BLOCK] for lo in range(0, count, BLOCK))


def _tables(
    tasks: Iterator[np.ndarray], truth: Truth, rng: np.random.Generator, dtype: str
) -> Iterator[Any]:
    """Blocks of rows as Arrow tables."""
    import pyarrow as pa

    d = len(truth.representation)
    for task in tasks:
        X = rng.standard_normal((len(task), d))
        y = truth.intercept[task] + truth.noise[task] * rng.standard_normal(len(task))
        y += np.einsum("ij,ij->i", X, truth.coef[task])
        X = X.astype(dtype)
        columns = [task, *(np.ascontiguousarray(X[:, j]) for j in range(d)), y.astype(dtype)]
        yield pa.table(columns, names=_names(d))


def _names(n_features: int) -> list[str]:
    return ["task", *(f"x{j}" for j in range(n_features)), "y"]


def _cut(tables: Iterator[Any], size: int) -> Iterator[Iterator[Any]]:
    """Tables in groups of ``size`` rows, cut where one goes beyond; groups are used in turn."""
    rest = next(tables, None)

    def group() -> Iterator[Any]:
        nonlocal rest
        room = size
        while rest is not None and room:
            part, rest = rest.slice(0, room), rest.slice(min(room, len(rest)))
            room -= len(part)
            if len(rest) == 0:
                rest = next(tables, None)
            yield part

    while rest is not None:
        yield group()


@contextmanager
def _writer(path: Path, ending: str, dtype: str, d: int) -> Iterator[Callable[[Any], None]]:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    number = pa.float32() if dtype == "float32" else pa.float64()
    kinds = [pa.int64(), *[number] * (d + 1)]
    schema = pa.schema(list(zip(_names(d), kinds, strict=True)))
    if ending == ".csv":
        with pa.csv.CSVWriter(path, schema) as writer:
            yield writer.write_table
    else:  # dictionaries of random numbers would only take space
        with pa.parquet.ParquetWriter(path, schema, use_dictionary=["task"]) as writer:
            yield writer.write_table


def _in_the_way(path: Path, single: bool) -> list[Path]:
    """Files that would have to go; raises for those that are not of a simulation."""
    if not path.parent.is_dir():
        raise ValueError(f"There is no folder {path.parent}: make it, or give another path.")
    if single:
        return [file for file in (path, path.with_suffix(".truth.npz")) if file.exists()]
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: give a folder, or a file that ends in .parquet.")
    found = sorted(path.iterdir()) if path.exists() else []
    for file in found:
        if not PARTS.fullmatch(file.name):
            raise ValueError(
                f"The folder {path} holds {file.name}, which no simulation wrote: give a new or "
                "an empty folder."
            )
    return found
