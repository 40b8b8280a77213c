"""What is known of a model before any of it is told or drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sharedspan.diagnosis.diagnose import Diagnosis, diagnose_view
from sharedspan.diagnosis.holdout_errors import NOTHING_TO_PREDICT, HoldoutErrors, holdout_errors
from sharedspan.diagnosis.loadings import SharedDirections, shared_directions
from sharedspan.diagnosis.model_view import ModelView
from sharedspan.diagnosis.text import short
from sharedspan.estimators.baselines import PerTaskRegressor
from sharedspan.progress import ProgressCallback

SAME = 1e-9  # variation of slopes between tasks, over their size, that is rounding


@dataclass(frozen=True)
class Facts:
    """A fitted model, and what the page tells of it."""

    view: ModelView
    diagnosis: Diagnosis
    outliers: list[int]  # positions of the tasks that do not fit
    directions: SharedDirections
    errors: HoldoutErrors | None
    no_errors: str  # why there are none; empty without rows
    separate_spectrum: np.ndarray | None  # of separate regressions of the same rows
    levels: np.ndarray | None  # (T,) predictions at average features, where there is no span
    task_name: str
    target_name: str | None

    @property
    def n_rows(self) -> int:
        """Number of rows that were given."""
        return 0 if self.view.rows is None else len(self.view.rows.X)

    @property
    def target(self) -> str:
        """The response, in a sentence."""
        return "the response" if self.target_name is None else short(self.target_name)

    @cached_property
    def groups(self) -> tuple[str, np.ndarray] | None:
        """Clusters or noise levels of the tasks, from 1, (T,), and what they are called."""
        extra = self.view.span.extra
        if extra.get("labels") is not None:
            return "cluster", np.asarray(extra["labels"]) + 1
        return ("noise level", np.asarray(extra["levels"])) if "levels" in extra else None

    @cached_property
    def same_slopes(self) -> bool:
        """Whether all tasks have the same slopes."""
        coef = self.view.span.coef
        same = float(np.ptp(coef, axis=0).max()) <= SAME * float(np.abs(coef).max())
        return len(coef) > 1 and same


def collect_facts(
    model: Any, X: Any, y: Any, task: Any, *, task_name: str, target_name: str | None,
    progress: ProgressCallback,
) -> Facts:  # fmt: skip
    """Diagnose the model, and fit it and its baselines to the rows where they are given."""
    view = ModelView(model, X, y, task)
    progress("diagnosis", 0, 0)
    diagnosis = diagnose_view(view)
    place = {label: t for t, label in enumerate(view.labels)}
    odd = [place[label] for label in diagnosis.outliers]
    directions = shared_directions(view, odd)
    errors: HoldoutErrors | str = "" if view.rows is None else holdout_errors(view, progress)
    if errors == NOTHING_TO_PREDICT:  # all directions are alike then
        none = slice(0, 0)
        directions = replace(
            directions, loadings=directions.loadings[:, none], places=directions.places[:, none],
            strength=directions.strength[none], share=directions.share[none], reach=None,
        )  # fmt: skip
    levels = None
    if view.rows is not None and not directions.rank:
        levels = view.span.intercept + view.span.coef @ view.rows.X.mean(axis=0)
    return Facts(
        view=view,
        diagnosis=diagnosis,
        outliers=odd,
        directions=directions,
        errors=None if isinstance(errors, str) else errors,
        no_errors=errors if isinstance(errors, str) else "",
        separate_spectrum=_separate_spectrum(view, directions, odd),
        levels=levels,
        task_name=task_name,
        target_name=target_name,
    )


def _separate_spectrum(
    view: ModelView, directions: SharedDirections, odd: list[int]
) -> np.ndarray | None:
    """Singular values of separate regressions of the same rows, by what they predict."""
    rows = view.rows
    if rows is None or rows.y is None or not directions.rank:
        return None
    fits = ~np.isin(rows.codes, odd)
    if not fits.any():
        return None
    separate = PerTaskRegressor(fit_intercept=view.centred)
    separate.fit(rows.X[fits], rows.y[fits], task=rows.codes[fits])
    S = view.metric.predictions(separate.coef_ * view.metric.deviation)
    S = S - S.mean(axis=0) if directions.about_mean else S
    return np.linalg.svd(S, compute_uv=False) / np.sqrt(len(S))
