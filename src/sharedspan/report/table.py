"""The numbers that travel with the page: a column per coefficient, packed and within a budget."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sharedspan.diagnosis.holdout_errors import Gains
from sharedspan.diagnosis.text import count, short, whole
from sharedspan.report.facts import Facts

MOST_TASKS = 50_000  # on the page
NUMBERS = 6_000_000  # bytes of all columns, before base64 makes them a third longer
TEXT = 1_500_000  # characters of all labels, and as many of all names
PLACES = 6  # directions whose places are columns
NAMED_REASONS = {
    "coefficients": "coefficients off the common pattern",
    "off the span": "explained by features off the span, over its noise",
    "noise": "more noise than others",
}


@dataclass(frozen=True)
class Column:
    """Numbers (T,) of the tasks, or texts of a few of them."""

    key: str  # by which the page knows it
    name: str
    values: np.ndarray | None = None
    texts: dict[int, str] = field(default_factory=dict)
    is_coefficient: bool = False


@dataclass(frozen=True)
class Table:
    """Columns of the kept tasks, and sentences on what was left out."""

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


def build_table(facts: Facts, levels: np.ndarray | None = None) -> Table:
    """All columns of the page, cut to its budget; ``levels`` (T,) are predictions at the mean."""
    kept, notes = _kept_tasks(facts)
    labels = [str(facts.labels[t]) for t in kept]
    if sum(map(len, labels)) > TEXT:
        limit = max(TEXT // len(labels), 16)
        labels = [short(label, limit) for label in labels]
        notes.append(f"Names of tasks are cut to {limit} characters, to keep the page small.")
    about = list(_about(facts, kept))
    if levels is not None:
        about.append(Column("level", "level at average features", levels[kept]))
    room = NUMBERS - 8 * len(kept) * len(about)
    d = len(facts.names)
    itemsize = 8 if 8 * len(kept) * (d + 1) <= room else 4
    most = max(room // (itemsize * len(kept)) - 1, 1)  # features beside the intercept
    features = np.arange(d)
    if d > most:
        variation = (facts.model.coef_ * facts.directions.deviation).std(axis=0)
        features = np.sort(np.argsort(-variation, kind="stable")[:most])
        notes.append(
            f"Of {d:,} features the {most:,} whose coefficients vary most are in this table; "
            "model.coef_ has all of them."
        )
    if itemsize == 4:
        notes.append("Numbers are kept to 7 digits, to keep the page small.")
    columns = _coefficients(facts, kept, features) + _own_names(about, facts)
    return Table(kept, labels, columns, notes, itemsize)


def _kept_tasks(facts: Facts) -> tuple[np.ndarray, list[str]]:
    T = len(facts.labels)
    if T <= MOST_TASKS:
        return np.arange(T), []
    even = np.linspace(0, T - 1, MOST_TASKS - len(facts.outliers[:1000])).astype(np.int64)
    kept = np.unique(np.append(even, facts.outliers[:1000]).astype(np.int64))
    return kept, [
        f"Of {count(T, 'task')} this page shows {len(kept):,}, evenly spaced, and those that do "
        "not fit; the model has all of them."
    ]


def _about(facts: Facts, kept: np.ndarray) -> Iterator[Column]:
    """What is known of each task beside its coefficients."""
    found, gains = facts.diagnosis, facts.gains

    def by_label(values: dict[Any, Any]) -> np.ndarray:
        return np.array([values.get(facts.labels[t], np.nan) for t in kept], dtype=float)

    if found.rows_per_task:
        yield Column("rows", "rows", by_label(found.rows_per_task))
    if isinstance(gains, Gains):
        for key in gains.squares:
            name = "held-out error" + ("" if key == "model" else f", {key}")
            values = gains.task_rmse(key)[kept]
            yield Column("rmse" if key == "model" else f"rmse {key}", name, values)
    if facts.groups is not None:
        yield Column("group", facts.groups[0], facts.groups[1][kept].astype(float))
    if found.misfits:
        position = {int(t): i for i, t in enumerate(kept)}
        place = {label: t for t, label in enumerate(facts.labels)}
        reasons: dict[int, list[str]] = {}
        for misfit in found.misfits:
            if place[misfit.task] in position:
                at = position[place[misfit.task]]
                reasons.setdefault(at, []).append(NAMED_REASONS[misfit.what])
        yield Column("odd", "does not fit", texts={i: "; ".join(r) for i, r in reasons.items()})
    for j in range(min(facts.directions.rank, PLACES)):
        yield Column(f"direction {j + 1}", f"direction {j + 1}", facts.directions.places[kept, j])


def _coefficients(facts: Facts, kept: np.ndarray, features: np.ndarray) -> list[Column]:
    """Intercept and slopes."""
    names, model = [whole(facts.names[j]) for j in features], facts.model
    if sum(map(len, names)) > TEXT:
        names = [short(name, max(TEXT // len(names), 16)) for name in names]
    intercept = Column("intercept", "intercept", model.intercept_[kept], is_coefficient=True)
    slopes = [
        Column(f"x{j}", name, model.coef_[kept, j], is_coefficient=True)
        for j, name in zip(features, names, strict=True)
    ]
    return [*_own_names([intercept], facts), *slopes]


def _own_names(columns: list[Column], facts: Facts) -> list[Column]:
    """Our own columns step aside where a feature has their name."""
    taken = {*facts.names, facts.task_name}
    out = []
    for column in columns:
        name = column.name
        while name in taken:
            name = f"({name})"
        out.append(replace(column, name=name))
    return out
