"""The facts about a model that the page shows, and its table of coefficients.

Numbers are embedded in the page as columns, one per coefficient, packed and within a size limit.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sharedspan.diagnosis.advice import advice_on
from sharedspan.diagnosis.diagnose import diagnose_view
from sharedspan.diagnosis.holdout_errors import NOTHING_TO_PREDICT, HoldoutErrors, holdout_errors
from sharedspan.diagnosis.losses import scores
from sharedspan.diagnosis.model_view import ModelView
from sharedspan.diagnosis.text import count, format_number, short, whole
from sharedspan.diagnosis.verdict import AGAINST, holdout_gains
from sharedspan.estimators import estimator_class
from sharedspan.estimators.directions import shared_directions
from sharedspan.estimators.inference import crossed_features
from sharedspan.families import Counts
from sharedspan.inputs.table_columns import TableColumns
from sharedspan.progress import ProgressCallback

SAME = 1e-9  # relative variation of slopes or levels that is rounding
MOST_TASKS = 50_000  # on the page
NUMBERS = 6_000_000  # bytes of all columns, before base64 makes them a third longer
TEXT = 1_500_000  # characters of all labels, and of all names
PLACES = 6  # directions whose places are columns


class Facts:
    """A fitted model with its diagnosis, held-out errors and shared directions.

    Held-out errors need rows, to which the model and its baselines are fitted again.
    """

    def __init__(
        self,
        view: ModelView,
        task_name: str,
        target_name: str | None,
        progress: ProgressCallback,
        table: TableColumns | None = None,  # of the fit; None takes those of the model
        model: Any = None,  # as it was fitted, if the view has one that takes coded rows
    ) -> None:
        progress("diagnosis", 0, 0)
        self.model = model or view.model
        self.summary = self.model.summary()
        table = table or view.span.extra.get("columns")
        self.columns = None if table is None else table.encoding.columns
        if table is not None:
            target_name = target_name or table.target
            if task_name == "task" and isinstance(table.task, str):
                task_name = table.task
        self.view, self.diagnosis, self.task_name = view, diagnose_view(view), task_name
        self.target_name = target_name
        self.target = "the response" if target_name is None else short(target_name)
        self.n_rows = 0 if view.rows is None else len(view.rows.X)
        place = {label: t for t, label in enumerate(view.labels)}
        self.outliers = [place[label] for label in self.diagnosis.outliers]  # positions of tasks
        errors = "" if view.rows is None else holdout_errors(view, progress)
        self.errors = errors if isinstance(errors, HoldoutErrors) else None
        self.no_errors = errors if isinstance(errors, str) else ""  # the reason; empty without rows
        self.nothing_to_predict = errors == NOTHING_TO_PREDICT
        self.gains = [] if self.errors is None else holdout_gains(self.errors)
        self.directions = view.directions
        if self.nothing_to_predict or self.one_row_each:
            self.directions = shared_directions(view, all_alike=True)
        self.levels: np.ndarray | None = None  # (T,) predicted at average features without a span
        if view.rows is not None and not self.directions.rank:
            self.levels = view.span.intercept + view.span.coef @ view.rows.X.mean(axis=0)
            if not view.is_normal:
                self.levels = view.family.mean(self.levels)

    @cached_property
    def crossed(self) -> np.ndarray:
        """Mask (d,) of the features that are levels of a crossed group of a formula."""
        return crossed_features(self.model)

    @property
    def n_features(self) -> int:
        """Number of the features, without levels of crossed groups."""
        return int(np.sum(~self.crossed))

    @property
    def learned_before(self) -> bool:
        """Whether the columns were learned from other rows, as for tasks that a model adapts to."""
        return isinstance(self.model.get_params(deep=False).get("columns"), TableColumns)

    @property
    def one_row_each(self) -> bool:
        """Whether no task has more than one row, so that nothing is known about single tasks."""
        rows = self.diagnosis.rows_per_task
        return bool(rows) and max(rows.values()) == 1

    @cached_property
    def advice(self) -> list[str]:
        """Advice of the diagnosis, none of which contradicts the errors on held-out rows."""
        good = ~np.isin(np.arange(len(self.view.labels)), self.outliers)
        # A simpler model that beats this one also speaks against the other simpler one.
        best = [gain.against for gain in self.gains if gain.sign < 0]
        worse = [g.against for g in self.gains if g.sign > 0 or (best and g.against not in best)]
        return list(advice_on(self.view, self.diagnosis, good, worse))

    @property
    def simpler(self) -> dict[str, str]:
        """What the models are called that this one is compared with."""
        return AGAINST | {"separate": f"one model per {short(self.task_name)}"}

    @cached_property
    def groups(self) -> tuple[str, np.ndarray] | None:
        """Name and numbers (T,), from 1, of the clusters or noise levels of the tasks."""
        extra = self.view.span.extra
        if extra.get("labels") is not None:
            return "cluster", np.asarray(extra["labels"]) + 1
        return ("noise level", np.asarray(extra["levels"])) if "levels" in extra else None

    @property
    def units(self) -> str:
        """What coefficients are measured in."""
        family = self.view.family
        if self.view.is_normal:
            return "units of the response"
        if isinstance(family, Counts):
            return "the logarithm of the mean"
        return "log odds" if family.name == "binomial" else "normal quantiles"

    @property
    def predictions(self) -> str:
        """What coefficients add up to."""
        return "predictions" if self.view.is_normal else "linear predictors"

    @property
    def glm(self) -> str:
        """The regression of baselines of classes and counts, in words."""
        return "Poisson" if isinstance(self.view.family, Counts) else "logistic"

    @cached_property
    def holdout_scores(self) -> dict[str, float]:
        """Scores of held-out classes and counts; empty for normal responses and without rows."""
        if self.view.is_normal or self.errors is None or self.errors.scored is None:
            return {}
        return scores(self.view.family, self.errors.scored.y, self.errors.scored.mean)

    @cached_property
    def same_slopes(self) -> bool:
        """Whether all tasks have the same slopes."""
        coef = self.view.span.coef
        same = float(np.ptp(coef, axis=0).max()) <= SAME * float(np.abs(coef).max())
        return len(coef) > 1 and same

    @cached_property
    def same_levels(self) -> bool:
        """Whether all tasks have the same intercepts."""
        level = self.view.span.intercept
        return float(np.ptp(level)) <= SAME * float(np.abs(level).max())

    def separate_spectrum(self) -> np.ndarray | None:
        """Singular values of separate regressions of the same rows, by their predictions."""
        rows, metric = self.view.rows, self.view.metric
        if rows is None or rows.y is None or not self.directions.rank or not self.view.is_normal:
            return None
        fits = self.directions.usual[rows.codes]
        if not fits.any():
            return None
        separate = estimator_class("PerTaskRegressor")(fit_intercept=self.view.centred)
        separate.fit(rows.X[fits], rows.y[fits], task=rows.codes[fits])
        S = metric.predictions(separate.coef_ * metric.deviation)
        S = S - S.mean(axis=0) if self.directions.about_mean else S
        return np.linalg.svd(S, compute_uv=False) / np.sqrt(len(S))


@dataclass(frozen=True)
class Column:
    """A column of the table: numbers (T,) of all tasks, or texts of a few of them."""

    key: str  # its identifier on the page
    name: str
    values: np.ndarray | None = None
    texts: dict[int, str] = field(default_factory=dict)
    is_coefficient: bool = False

    def cell(self, i: int) -> str:
        """The value of a task as text."""
        if self.values is None:
            return self.texts.get(i, "")
        value = float(self.values[i])
        if np.isnan(value):
            return ""
        return f"{value:,.0f}" if self.key == "rows" else format_number(value, 4)

    def packed(self, itemsize: int) -> dict[str, Any]:
        """The column as the page's script reads it, ready for JSON, with numbers in base64."""
        if self.values is None:
            return {"key": self.key, "name": self.name, "text": self.texts}
        data = base64.b64encode(self.values.astype(f"<f{itemsize}").tobytes()).decode("ascii")
        return {"key": self.key, "name": self.name, "data": data, "coef": self.is_coefficient}


@dataclass(frozen=True)
class PageTable:
    """Columns of the tasks on the page, and sentences about what was left out."""

    tasks: np.ndarray  # positions of the tasks on the page
    labels: list[str]
    columns: list[Column]
    notes: list[str]
    itemsize: int  # bytes of a number


def build_table(facts: Facts) -> PageTable:
    """All columns of the page, reduced to its size limit."""
    span, names, T = facts.view.span, facts.view.names, len(facts.view.labels)
    tasks, notes = _tasks_on_page(T, facts.outliers[:1000]), []
    if len(tasks) < T:
        notes.append(
            f"This page shows {len(tasks):,} of {count(T, 'task')}, evenly spaced, and all that do "
            "not fit. The model has all of them."
        )
    labels, limit = _within_budget([str(facts.view.labels[t]) for t in tasks])
    if limit:
        notes.append(f"Names of tasks are cut to {limit} characters, so that the page stays small.")
    about = [Column("intercept", "intercept", span.intercept[tasks], is_coefficient=True)]
    about += _about(facts, tasks)
    space, d = NUMBERS - 8 * len(tasks) * (len(about) - 1), len(names)
    itemsize = 8 if 8 * len(tasks) * (d + 1) <= space else 4
    most = max(space // (itemsize * len(tasks)) - 1, 1)  # features beside the intercept
    features = np.arange(d)
    if d > most:
        variation = (span.coef * facts.view.metric.deviation).std(axis=0)
        features = np.sort(np.argsort(-variation, kind="stable")[:most])
        notes.append(
            f"This table has the {most:,} of {d:,} features whose coefficients vary most; "
            "model.coef_ has all of them."
        )
    if itemsize == 4:
        notes.append("Numbers have 7 digits, so that the page stays small.")
    shown, _ = _within_budget([names[j] for j in features])
    slopes = [
        Column(f"x{j}", name, span.coef[tasks, j], is_coefficient=True)
        for j, name in zip(features, shown, strict=True)
    ]
    for i, column in enumerate(about):  # brackets if a feature or the task has the same name
        while about[i].name in {*names, facts.task_name}:
            about[i] = replace(column, name=f"({about[i].name})")
    return PageTable(tasks, labels, [about[0], *slopes, *about[1:]], notes, itemsize)


def _tasks_on_page(n_tasks: int, odd: list[int]) -> np.ndarray:
    """Positions of all tasks, or of MOST_TASKS evenly spaced ones that include ``odd``."""
    if n_tasks <= MOST_TASKS:
        return np.arange(n_tasks)
    even = np.linspace(0, n_tasks - 1, MOST_TASKS - len(odd)).astype(np.int64)
    return np.unique(np.append(even, odd).astype(np.int64))


def _within_budget(names: Sequence[str]) -> tuple[list[str], int]:
    """Names of at most TEXT characters in total, and the length they are cut to, 0 if not cut."""
    if sum(map(len, names)) <= TEXT:
        return [whole(name) for name in names], 0
    limit = max(TEXT // len(names), 16)
    return [short(name, limit) for name in names], limit


def _about(facts: Facts, tasks: np.ndarray) -> Iterator[Column]:
    """Columns of all facts about each task except its coefficients."""
    diagnosis, errors, labels = facts.diagnosis, facts.errors, facts.view.labels
    if diagnosis.rows_per_task:
        rows = [diagnosis.rows_per_task.get(labels[t], np.nan) for t in tasks]
        yield Column("rows", "rows", np.array(rows, dtype=float))
    if errors is not None:
        yield Column("rmse", "held-out error", errors.task_error("model")[tasks])
        for name in errors.baselines:
            values = errors.task_error(name)[tasks]
            yield Column(f"rmse {name}", f"held-out error, {facts.simpler[name]}", values)
    if facts.groups is not None:
        yield Column("group", facts.groups[0], facts.groups[1][tasks].astype(float))
    if diagnosis.misfits:
        reasons: dict[Any, list[str]] = {}
        for misfit in diagnosis.misfits:
            reasons.setdefault(misfit.task, []).append(misfit.reason)
        texts = {i: "; ".join(reasons.get(labels[t], [])) for i, t in enumerate(tasks)}
        yield Column("odd", "does not fit", texts={i: text for i, text in texts.items() if text})
    for j in range(min(facts.directions.rank, PLACES)):
        yield Column(f"direction {j + 1}", f"direction {j + 1}", facts.directions.places[tasks, j])
    if facts.levels is not None and not facts.one_row_each:
        yield Column("level", "level at average features", facts.levels[tasks])
