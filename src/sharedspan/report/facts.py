"""What is known of a model before any of it is told or drawn."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sharedspan.diagnosis.diagnose import Diagnosis, diagnose
from sharedspan.diagnosis.holdout_errors import Gains, Tick, find_gains
from sharedspan.diagnosis.loadings import Directions, find_directions
from sharedspan.diagnosis.rows import TaskRows, read_rows
from sharedspan.diagnosis.text import short
from sharedspan.estimators.base import TaskRegressor, check_is_fitted
from sharedspan.estimators.baselines import PerTaskRegressor

LONG = 60  # characters from which a name is cut in a sentence


@dataclass(frozen=True)
class Facts:
    """A fitted model, with what was found of it."""

    model: Any
    labels: list[Hashable]
    names: list[str]
    diagnosis: Diagnosis
    outliers: list[int]  # positions of the tasks that do not fit
    directions: Directions
    gains: Gains | str | None  # the sentence says why there are none; None without rows
    separate_spectrum: np.ndarray | None
    n_rows: int
    task_name: str
    target_name: str | None

    @property
    def kind(self) -> str:
        """Name of the model's class."""
        return type(self.model).__name__

    @property
    def target(self) -> str:
        """The response, in a sentence."""
        return "the response" if self.target_name is None else short(self.target_name)

    @cached_property
    def groups(self) -> tuple[str, np.ndarray] | None:
        """Clusters or noise levels of the tasks (T,), and what they are called."""
        for name, attribute in (("cluster", "labels_"), ("noise level", "levels_")):
            found = getattr(self.model, attribute, None)
            if found is not None:
                return name, np.asarray(found) + (attribute == "labels_")
        return None

    @cached_property
    def advice(self) -> list[str]:
        """What diagnose advises, names in it no longer than a line."""
        long = [str(label) for label in self.labels if len(str(label)) > LONG]
        found = []
        for sentence in self.diagnosis.advice:
            for label in long:
                sentence = sentence.replace(label, short(label))
            found.append(short(sentence, 2000))
        return found


def find_facts(
    model: Any, X: Any, y: Any, task: Any, *, task_name: str, target_name: str | None,
    tick: Tick | None,
) -> Facts:  # fmt: skip
    """Look at the model, and at rows where they are given."""
    if not isinstance(model, TaskRegressor):
        raise TypeError(f"The model is a {type(model).__name__}: give an estimator of sharedspan.")
    check_is_fitted(model)
    if (X is None) != (y is None):
        given, missing = ("y", "X") if X is None else ("X", "y")
        raise ValueError(f"{given} was given without {missing}: give both, or neither.")
    if X is None and task is not None:
        raise ValueError("task was given without X and y: give all of them, or none.")
    if tick is not None:
        tick("diagnosis", 0, 0)
    found = diagnose(model, X, y, task)
    rows = None if X is None else read_rows(model, X, y, task)
    known = model.tasks_
    labels = list(known) if known.dtype == object else known.tolist()
    place = {label: t for t, label in enumerate(labels)}
    odd = [place[label] for label in found.outliers]
    directions = find_directions(model, rows, odd)
    return Facts(
        model=model,
        labels=labels,
        names=[str(name) for name in model.coef_names_],
        diagnosis=found,
        outliers=odd,
        directions=directions,
        gains=None if rows is None else find_gains(model, rows, tick),
        separate_spectrum=None
        if rows is None
        else _separate_spectrum(rows, directions, odd, bool(model.fit_intercept)),
        n_rows=0 if rows is None else len(rows.X),
        task_name=task_name,
        target_name=target_name,
    )


def _separate_spectrum(
    rows: TaskRows, directions: Directions, odd: list[int], intercept: bool
) -> np.ndarray | None:
    """Singular values of separate regressions of the same rows, as those of the model."""
    assert rows.y is not None
    if not directions.rank:
        return None
    fits = ~np.isin(rows.codes, odd)
    if not fits.any():
        return None
    separate = PerTaskRegressor(fit_intercept=intercept).fit(
        rows.X[fits], rows.y[fits], task=rows.codes[fits]
    )
    S = directions.metric.predictions(separate.coef_ * directions.deviation)
    S = S - S.mean(axis=0) if directions.about_mean else S
    return np.linalg.svd(S, compute_uv=False) / np.sqrt(len(S))
