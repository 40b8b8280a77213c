"""What the table looked like: rows, tasks, the response, the features, factors, missing values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sharedspan.diagnosis.text import count, format_number, listed, percent, short
from sharedspan.estimators.summaries import rows_left_out
from sharedspan.families import Binomial, Counts
from sharedspan.inputs.columns import NO_LEVEL
from sharedspan.inputs.encoders import Factor, Number
from sharedspan.report.facts import Facts

NAMED = 6  # levels or columns named in a sentence
Fact = tuple[str, str, str]  # name, value and explanation


def data_facts(facts: Facts) -> Iterator[Fact]:
    """Facts about the rows, as far as the model or the rows tell them."""
    n_rows = facts.n_rows or int(facts.view.span.extra.get("n_rows") or 0)
    if n_rows:
        yield "rows", f"{n_rows:,}", " ".join(rows_left_out(facts.model)).rstrip(".")
    yield "tasks", f"{len(facts.view.labels):,}", _task_words(facts)
    if facts.view.rows is not None and facts.view.rows.y is not None:
        yield _response(facts, facts.view.rows.y)
    yield _features(facts)
    yield from _columns(facts)


def _task_words(facts: Facts) -> str:
    """The name of the column of tasks, and rows per task."""
    words = [] if facts.task_name == "task" else [f"one per {short(facts.task_name)}"]
    rows = list(facts.diagnosis.rows_per_task.values())
    if rows and min(rows) == max(rows):
        words.append(f"{count(rows[0], 'row')} each")
    elif rows:
        words.append(f"{min(rows):,} to {max(rows):,} rows each, median {np.median(rows):,.0f}")
    return ", ".join(words)


def _response(facts: Facts, y: np.ndarray) -> Fact:
    """The distribution of the response."""
    family, name = facts.view.family, short(facts.target_name or "response")
    mean = format_number(float(y.mean()))
    if isinstance(family, Binomial):
        columns = vars(facts.view.model).get("columns_")
        words: tuple[str, ...] = () if columns is None else columns.classes
        classes: Any = words or getattr(facts.view.model, "classes_", (0, 1))
        if np.isin(y, (0, 1)).all():
            return name, percent(float(y.mean())), f"of the rows are of class {short(classes[1])}"
        return name, mean, "mean proportion"
    if isinstance(family, Counts):
        zeros = percent(float(np.mean(y == 0)))
        return name, mean, f"mean count; largest {y.max():,.0f}, and {zeros} of the rows are zero"
    low, high, deviation = (format_number(float(v)) for v in (y.min(), y.max(), y.std()))
    return name, mean, f"mean; standard deviation {deviation}, from {low} to {high}"


def _features(facts: Facts) -> Fact:
    """The number of features, and those that do not vary within tasks."""
    names, metric = facts.view.names, facts.view.metric
    words, columns = "", facts.columns
    if columns is not None and len(columns) != len(names) and not facts.crossed.any():
        words = f"made of {count(len(columns), 'column')} of the table"
    constant = (metric.deviation == 0) & ~facts.crossed
    still = [] if facts.one_row_each else [names[j] for j in np.flatnonzero(constant)]
    if still:
        verb = "does" if len(still) == 1 else "do"
        words += "; " * bool(words)
        words += f"{listed(map(short, still), NAMED)} {verb} not vary within tasks"
    return "features", f"{facts.n_features:,}", words


def _columns(facts: Facts) -> Iterator[Fact]:
    """Dates, factors with their levels, and columns with missing values."""
    columns = facts.columns or ()
    dates = [c.column for c in columns if isinstance(c, Number) and c.is_date]
    if dates:
        yield "dates", f"{len(dates):,}", listed(map(short, dates), NAMED)
    if facts.learned_before:  # levels and missing values are those of the rows of an earlier fit
        return
    groups = {name for name, _ in facts.summary.groups}
    factors = [c for c in columns if isinstance(c, Factor) and c.column not in groups]
    if factors:
        told = "; ".join(_levels(factor) for factor in factors[:NAMED])
        more = len(factors) - NAMED
        told += f"; and {count(more, 'more column')}" if more > 0 else ""
        yield "factors", f"{len(factors):,}", told
    missing = list(_missing(facts))
    if missing:
        value = count(len(missing), "column")
        yield "missing values", value, listed(missing, NAMED)


def _levels(factor: Factor) -> str:
    """A factor, its largest levels and their shares of the rows."""
    total = sum(factor.counts)
    order = np.argsort(-np.array(factor.counts), kind="stable")
    shares = [
        f"{short(factor.levels[i], 20)} {percent(factor.counts[i] / total)}" if total else
        short(factor.levels[i], 20)
        for i in order
    ]  # fmt: skip
    return f"{short(factor.column)} ({listed(shares, NAMED)})"


def _missing(facts: Facts) -> Iterator[str]:
    """Columns that lacked values in the fit, with the number of rows where it is known."""
    rows, names = facts.view.rows, facts.view.names
    for column in facts.columns or ():
        if isinstance(column, Factor) and NO_LEVEL in column.levels:
            lacking = column.counts[column.levels.index(NO_LEVEL)]
            yield f"{short(column.column)} in {count(lacking, 'row')}"
        elif isinstance(column, Number) and column.indicator:
            feature = f"{column.column} missing"
            if rows is None or feature not in names:
                yield short(column.column)
                continue
            lacking = round(float(rows.X[:, names.index(feature)].sum()))
            yield f"{short(column.column)} in {count(lacking, 'row')}"
