"""Bundled tables of real tasks."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Dataset:
    """A table of tasks, with where it comes from."""

    X: np.ndarray  # (rows, d)
    y: np.ndarray  # (rows,)
    task: np.ndarray  # (rows,)
    feature_names: tuple[str, ...]
    task_name: str
    target_name: str
    description: str
    licence: str

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
        raise ValueError(f"target={target!r} is unknown: use 'total_updrs' or 'motor_updrs'.")
    names, values = _read("parkinsons.csv.gz")
    column = {name: values[:, j] for j, name in enumerate(names)}
    features = tuple(n for n in names if n not in ("subject", "age", "sex", *targets))
    return Dataset(
        X=np.column_stack([column[name] for name in features]),
        y=column[target].copy(),
        task=column["subject"].astype(int),
        feature_names=features,
        task_name="subject",
        target_name=target,
        description=(
            "Parkinsons Telemonitoring, UCI Machine Learning Repository (Tsanas and Little 2009). "
            "Scores were interpolated linearly between visits to the clinic, so within a patient "
            "they are almost piecewise linear in time."
        ),
        licence="CC BY 4.0",
    )


def _read(name: str) -> tuple[list[str], np.ndarray]:
    path = files("sharedspan.data") / "files" / name
    with path.open("rb") as raw, gzip.open(raw, "rt", encoding="utf-8") as text:
        header = text.readline().strip().split(",")
        return header, np.loadtxt(text, delimiter=",")
