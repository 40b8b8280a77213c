"""Tables of real tasks: bundled ones, and any CSV or Parquet file."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.inputs.columns import Columns


@dataclass(frozen=True)
class Dataset:
    """A table of tasks with its description and licence."""

    X: np.ndarray  # (rows, d)
    y: np.ndarray  # (rows,)
    task: np.ndarray  # (rows,)
    feature_names: tuple[str, ...]
    task_name: str
    target_name: str
    description: str
    licence: str
    n_dropped: int = 0  # rows of the file that were left out for a missing value
    columns: Any = None  # what was learned about the columns of a file

    def to_frame(self) -> Any:
        """The table as a pandas frame: task column, features, target."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_frame needs pandas: pip install pandas") from error
        frame = pd.DataFrame(self.X, columns=list(self.feature_names))
        frame.insert(0, self.task_name, self.task)
        frame[self.target_name] = self.y
        return frame

    def write_csv(self, path: str | Path) -> None:
        """Write the table as a CSV file: task column, features, target."""
        from sharedspan.persistence.atomic_write import atomic_table

        names = [self.task_name, *self.feature_names, self.target_name]
        with atomic_table(Path(path)) as write:
            write([self.task, *self.X.T, self.y], names)


def load_parkinsons(target: str = "total_updrs") -> Dataset:
    """42 patients, 101 to 168 voice recordings each: predict a symptom score.

    Features are the time since recruitment and 16 measures of the voice. Age and sex are constant
    within a patient and left out, as is the other score.

    Parameters
    ----------
    target : {"total_updrs", "motor_updrs"}

    Returns
    -------
    Dataset
    """
    targets = ("total_updrs", "motor_updrs")
    if target not in targets:
        raise ValueError(f"target={target!r} must be 'total_updrs' or 'motor_updrs'.")
    description = (
        "Parkinsons Telemonitoring, UCI Machine Learning Repository (Tsanas and Little 2009). "
        "Scores were interpolated linearly between visits to the clinic, so within a patient "
        "they are almost piecewise linear in time."
    )
    return _load("parkinsons.csv.gz", "subject", target, {"age", "sex", *targets}, description)


def load_communities_crime() -> Dataset:
    """1,994 communities in 46 states of the USA: predict violent crimes per head.

    100 features of population, income, housing and police, all scaled to [0, 1]. Four states have
    fewer than 4 communities. Some features are sensitive (shares of races and of immigrants): the
    table serves to test methods, not to explain crime.

    Returns
    -------
    Dataset
    """
    description = (
        "Communities and Crime, UCI Machine Learning Repository (Redmond 2002), CC BY 4.0. "
        "Census, police and FBI data of 1990 to 1995. The 22 police columns that are mostly "
        "missing, the names and codes of places and the fold numbers were removed; one missing "
        "OtherPerCap was replaced by the median."
    )
    return _load("communities_crime.csv.gz", "state", "ViolentCrimesPerPop", {"fold"}, description)


def _load(file: str, task: str, target: str, left_out: set[str], description: str) -> Dataset:
    """A bundled table; all columns except task, target and ``left_out`` are features."""
    path = files("sharedspan.datasets") / "files" / file
    with path.open("rb") as raw, gzip.open(raw, "rt", encoding="utf-8") as text:
        names = text.readline().strip().split(",")
        column = dict(zip(names, np.loadtxt(text, delimiter=",").T, strict=True))
    features = tuple(name for name in names if name not in {task, target, *left_out})
    X = np.column_stack([column[name] for name in features])
    y, labels = column[target].copy(), column[task].astype(int)
    return Dataset(X, y, labels, features, task, target, description, "CC BY 4.0")


def load_table(
    path: str | Path,
    *,
    task: str,
    target: str,
    drop: str | Iterable[str] = (),
    missing: str | None = None,
    columns: Columns | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
) -> Dataset:
    """Read a CSV or Parquet file, or a workbook, of your own.

    Parameters
    ----------
    path : str or Path
        Ending in .csv, .tsv or .txt (also with .gz), .parquet, .pq or .xlsx.
    task, target : str
        Columns: the task of each row (whole numbers or text), and what to predict.
    drop : str or iterable of str, optional
        Columns that are not features.
    missing : {"error", "drop"}, optional
        "drop" leaves out the rows with a missing value and counts them in ``n_dropped``; the same
        as ``missing`` of ``columns``.
    columns : Columns, optional
        How columns become features. What was learned about them is the ``columns`` of the result.
    encoding : str, optional
        Encoding of a text file, such as "latin-1"; None is UTF-8, or what its byte order mark says.
    sheet : str, optional
        Sheet of a workbook; not needed if there is one.

    Returns
    -------
    Dataset

    Examples
    --------
    >>> data = ss.datasets.load_table("ames.csv", task="Neighborhood", target="Sale_Price")
    ... # doctest: +SKIP
    """
    from sharedspan.inputs.files import require_file
    from sharedspan.inputs.matching_columns import select_columns
    from sharedspan.inputs.reader import RowReader
    from sharedspan.inputs.table_text import table_options

    file = require_file(Path(path))
    options = Columns() if columns is None else columns
    options = options if missing is None else replace(options, missing=missing)
    with table_options(encoding, sheet):
        selection = select_columns([file], task=task, target=target, drop=drop, columns=options)
        reader = RowReader(replace(selection, dtype="float64"), options.missing)
        X, y, labels = reader.arrays()
    labels = labels.astype(str) if labels.dtype == object else labels
    n_dropped, description = reader.tally.n_incomplete, f"Read from {path}."
    if n_dropped:
        description += f" {n_dropped} rows with missing values were left out."
    about = (selection.columns.names, task, target, description, "not stated", n_dropped)
    return Dataset(X, y, labels, *about, selection.columns)
