"""The numbers that travel with the page: a column per coefficient, packed and within a budget."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sharedspan.diagnosis.text import count, format_number, short, whole
from sharedspan.report.facts import Facts

MOST_TASKS = 50_000  # on the page
NUMBERS = 6_000_000  # bytes of all columns, before base64 makes them a third longer
TEXT = 1_500_000  # characters of all labels, and as many of all names
PLACES = 6  # directions whose places are columns


@dataclass(frozen=True)
class Column:
    """Numbers (T,) of the tasks, or texts of a few of them."""

    key: str  # by which the page knows it
    name: str
    values: np.ndarray | None = None
    texts: dict[int, str] = field(default_factory=dict)
    is_coefficient: bool = False

    def cell(self, i: int) -> str:
        """The value of a task as text."""
        if self.values is None:
            return self.texts.get(i, "")
        return "" if np.isnan(self.values[i]) else format_number(float(self.values[i]), 4)


@dataclass(frozen=True)
class PageTable:
    """Columns of the tasks on the page, and sentences on what was left out."""

    tasks: np.ndarray  # positions of the tasks on the page
    labels: list[str]
    columns: list[Column]
    notes: list[str]
    itemsize: int  # bytes of a number

    def packed(self) -> dict[str, Any]:
        """What the page's script needs, ready for JSON: numbers are in base64."""
        columns = []
        for column in self.columns:
            entry: dict[str, Any] = {"key": column.key, "name": column.name}
            if column.values is None:
                entry["text"] = column.texts
            else:
                numbers = column.values.astype(f"<f{self.itemsize}")
                entry["data"] = base64.b64encode(numbers.tobytes()).decode("ascii")
                entry["coef"] = column.is_coefficient
            columns.append(entry)
        return {"tasks": self.labels, "columns": columns, "itemsize": self.itemsize}


def as_json(value: Any) -> str:
    """JSON in ASCII without <, > and &, so that it ends no element and opens none."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def build_table(facts: Facts) -> PageTable:
    """All columns of the page, cut to its budget."""
    tasks, notes = _tasks_on_page(facts)
    labels = [str(facts.view.labels[t]) for t in tasks]
    if sum(map(len, labels)) > TEXT:
        limit = max(TEXT // len(labels), 16)
        labels = [short(label, limit) for label in labels]
        notes.append(f"Names of tasks are cut to {limit} characters, so that the page stays small.")
    about, span, names = list(_about(facts, tasks)), facts.view.span, facts.view.names
    space, d = NUMBERS - 8 * len(tasks) * len(about), len(names)
    itemsize = 8 if 8 * len(tasks) * (d + 1) <= space else 4
    most = max(space // (itemsize * len(tasks)) - 1, 1)  # features beside the intercept
    features = np.arange(d)
    if d > most:
        variation = (span.coef * facts.view.metric.deviation).std(axis=0)
        features = np.sort(np.argsort(-variation, kind="stable")[:most])
        notes.append(
            f"Of {d:,} features the {most:,} whose coefficients vary most are in this table; "
            "model.coef_ has all of them."
        )
    if itemsize == 4:
        notes.append("Numbers have 7 digits, so that the page stays small.")
    limit = max(TEXT // len(features), 16) if sum(len(names[j]) for j in features) > TEXT else TEXT
    slopes = [
        Column(
            f"x{j}",
            whole(names[j]) if limit == TEXT else short(names[j], limit),
            span.coef[tasks, j],
            is_coefficient=True,
        )
        for j in features
    ]
    intercept = Column("intercept", "intercept", span.intercept[tasks], is_coefficient=True)
    first, *rest = (_own_name(column, facts) for column in (intercept, *about))
    return PageTable(tasks, labels, [first, *slopes, *rest], notes, itemsize)


def _tasks_on_page(facts: Facts) -> tuple[np.ndarray, list[str]]:
    T = len(facts.view.labels)
    if T <= MOST_TASKS:
        return np.arange(T), []
    odd = facts.outliers[:1000]
    even = np.linspace(0, T - 1, MOST_TASKS - len(odd)).astype(np.int64)
    tasks = np.unique(np.append(even, odd).astype(np.int64))
    return tasks, [
        f"Of {count(T, 'task')} this page shows {len(tasks):,}, evenly spaced, and all that do not "
        "fit; the model has all of them."
    ]


def _about(facts: Facts, tasks: np.ndarray) -> Iterator[Column]:
    """What is known of each task beside its coefficients."""
    found, errors, labels = facts.diagnosis, facts.errors, facts.view.labels
    if found.rows_per_task:
        rows = [found.rows_per_task.get(labels[t], np.nan) for t in tasks]
        yield Column("rows", "rows", np.array(rows, dtype=float))
    if errors is not None:
        yield Column("rmse", "held-out error", errors.task_rmse("model")[tasks])
        for name in errors.baselines:
            values = errors.task_rmse(name)[tasks]
            yield Column(f"rmse {name}", f"held-out error, {name}", values)
    if facts.groups is not None:
        yield Column("group", facts.groups[0], facts.groups[1][tasks].astype(float))
    if found.misfits:
        reasons: dict[Any, list[str]] = {}
        for misfit in found.misfits:
            reasons.setdefault(misfit.task, []).append(misfit.reason)
        texts = {i: "; ".join(reasons.get(labels[t], [])) for i, t in enumerate(tasks)}
        yield Column("odd", "does not fit", texts={i: said for i, said in texts.items() if said})
    for j in range(min(facts.directions.rank, PLACES)):
        yield Column(f"direction {j + 1}", f"direction {j + 1}", facts.directions.places[tasks, j])
    if facts.levels is not None:
        yield Column("level", "level at average features", facts.levels[tasks])


def _own_name(column: Column, facts: Facts) -> Column:
    """The column, its name in brackets where a feature or the task has the same."""
    name = column.name
    while name in {*facts.view.names, facts.task_name}:
        name = f"({name})"
    return replace(column, name=name)
