"""What stands where on the page: facts, sentences and drawings as the template wants them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from sharedspan.diagnosis.holdout_errors import NOTHING_TO_PREDICT, RIVALS, Gains
from sharedspan.diagnosis.metric import named_groups
from sharedspan.diagnosis.text import listed, number, percent, setting
from sharedspan.report import drawings, gain_words, rank_words, sentences
from sharedspan.report.drawings import Drawing
from sharedspan.report.facts import Facts
from sharedspan.report.maps import level_plot, maps, slopes_plot
from sharedspan.report.table import NAMED_REASONS, Table

OPEN = 6  # directions that are shown at once; the others unfold
MISFITS = 100  # lines of the table of tasks that do not fit
ALL_LOADINGS = 200  # lines of the table of loadings
FIRST_ROWS, FIRST_COLUMNS = 10, 8  # of the table, for a reader without scripts
SAME = 1e-9  # variation of levels, over their size, that is rounding
SUMMED_UP = 3  # loadings named in the sentence on a direction


class _Figures:
    """Drawings as the template wants them, and what the script must know of each."""

    def __init__(self, table: Table) -> None:
        self.place = {int(t): i for i, t in enumerate(table.tasks)}
        self.keys = {column.key: i for i, column in enumerate(table.columns)}
        self.all = np.arange(len(table.tasks))
        self.plots: dict[str, Any] = {}

    def add(self, key: str, drawing: Drawing) -> dict[str, Any]:
        from markupsafe import Markup

        if drawing.tasks is not None:
            order = np.array([self.place[int(t)] for t in drawing.tasks])
            columns = [self.keys[name] for name in drawing.columns if name in self.keys]
            same = np.array_equal(order, self.all)
            self.plots[key] = {"tasks": None if same else order.tolist(), "columns": columns}
        return {
            "key": key if drawing.tasks is not None else "",
            "svg": Markup(drawing.svg),
            "caption": drawing.caption,
            "hint": drawing.hint,
        }


def without_false_span(found: Facts) -> Facts:
    """Less the directions where there is nothing to predict: all are alike there."""
    if found.gains != NOTHING_TO_PREDICT:
        return found
    spans, none = found.directions, slice(0, 0)
    directions = replace(
        spans, loadings=spans.loadings[:, none], places=spans.places[:, none],
        strength=spans.strength[none], share=spans.share[none], reach=None,
    )  # fmt: skip
    return replace(found, directions=directions, separate_spectrum=None)


def contents(found: Facts, table: Table, levels: np.ndarray | None = None) -> dict[str, Any]:
    """Everything that the template shows."""
    figures, model = _Figures(table), found.model
    gains = found.gains if isinstance(found.gains, Gains) else None
    path, trace = getattr(model, "rank_path_", None), drawings.trace_plot(found)
    return {
        "facts": found,
        "headline": list(sentences.headline(found)),
        "summary": list(sentences.summary(found)),
        "numbers": list(sentences.numbers(found)),
        "advice": list(sentences.advice(found)),
        "settings": [(k, setting(v)) for k, v in model.get_params(deep=False).items()],
        "gain_table": [] if gains is None else _gain_table(gains),
        "gain_method": "" if gains is None else gain_words.gain_method(found, gains),
        "gain_notes": [] if gains is None else list(gain_words.gains_notes(gains)),
        "gain_reading": [] if gains is None else list(gain_words.gain_reading(found, gains)),
        "gain_figures": [
            figures.add(f"gain-{rival}", drawings.gain_plot(found, gains, rival, table.tasks))
            for rival in RIVALS
            if gains is not None and rival in gains.squares
        ],
        "no_gains": "" if gains is not None else gain_words.no_gains(found),
        "common": figures.add("common", drawings.common_plot(found)),
        "same_slopes": sentences.same_slopes(found),
        "rank_reason": list(rank_words.rank_reason(found)),
        "spectrum": figures.add("spectrum", drawings.spectrum_plot(found))
        if found.diagnosis.rank is not None and found.directions.spectrum[0] > 0
        else None,
        "rank_figure": None
        if path is None
        else figures.add("rank", drawings.rank_plot(found, path)),
        "candidates": _candidates(model),
        "directions": _directions(found, figures),
        "all_loadings": _all_loadings(found),
        "alike": [
            listed([str(j + 1) for j in range(first, last + 1)])
            for first, last in found.directions.hard_to_tell_apart()
        ],
        "constant": [
            n for n, s in zip(found.names, found.directions.deviation, strict=True) if s == 0
        ],
        "collinear": named_groups(found.directions.metric.groups, found.names),
        "open_directions": OPEN,
        "maps": [
            (name, figures.add(f"map-{i}", drawing))
            for i, (name, drawing) in enumerate(maps(found, table.tasks))
        ]
        if found.directions.rank
        else [],
        "no_directions": sentences.no_directions(found),
        "varying": [] if found.directions.rank else list(_varying(found, figures, table, levels)),
        "misfits": found.diagnosis.misfits[:MISFITS],
        "more_misfits": max(len(found.diagnosis.misfits) - MISFITS, 0),
        "reasons": NAMED_REASONS,
        "convergence": list(sentences.convergence(found)),
        "trace": None if trace is None else figures.add("trace", trace),
        "table": table,
        "first_rows": _first_rows(table),
        "first_columns": [column.name for column in table.columns[:FIRST_COLUMNS]],
        "plots": figures.plots,
    }


def _varying(
    found: Facts, figures: _Figures, table: Table, levels: np.ndarray | None
) -> Iterator[dict[str, Any]]:
    """What tasks differ in where they share no direction."""
    if levels is not None and np.ptp(levels) > SAME * np.abs(levels).max():
        yield figures.add("levels", level_plot(found, table.tasks, levels))
    slopes = slopes_plot(found, table.tasks)
    if slopes is not None:
        yield figures.add("slopes", slopes)


def _gain_table(gains: Gains) -> list[dict[str, Any]]:
    """A line for the model and one for each rival."""
    lines: list[dict[str, Any]] = [
        {"name": "the model", "rmse": number(gains.rmse("model"), 4), "change": None}
    ]
    for rival, words in RIVALS.items():
        if rival in gains.squares:
            found = gains.change(rival)
            line = {"name": words, "rmse": number(gains.rmse(rival), 4), "change": found}
            lines.append(line)
    return lines


def _candidates(model: Any) -> list[dict[str, Any]]:
    """The fits that an adaptive model compared, the best first."""
    tried = sorted(getattr(model, "candidates_", []), key=lambda row: -row["score"])
    best = max((row["score"] for row in tried), default=0.0)
    return [
        {**row, "behind": number(float(best - row["score"])),
         "chosen": (row["slopes"], row["rank"]) == (model.slopes_, model.rank_)}
        for row in tried
    ]  # fmt: skip


def _directions(found: Facts, figures: _Figures) -> list[dict[str, Any]]:
    """What the page says of each direction."""
    spans, out = found.directions, []
    for j in range(spans.rank):
        places, values = spans.places[:, j], spans.loadings[:, j]
        known = np.where(spans.determined[:, j], np.abs(values), 0.0)
        order = np.argsort(-known, kind="stable")[:SUMMED_UP]
        reach = np.zeros(len(values)) if spans.reach is None else spans.reach[:, j]
        order = order if places.any() else order[:0]
        out.append({
            "number": j + 1,
            "share": percent(spans.share[j]),
            "more": [found.names[f] for f in order if values[f] > reach[f]],
            "less": [found.names[f] for f in order if values[f] < -reach[f]],
            "empty": not places.any(),
            "mean": number(float(places.mean())),
            "deviation": number(float(places.std())),
            "figure": figures.add(f"loadings-{j}", drawings.loading_plot(found, j)),
        })  # fmt: skip
    return out


def _all_loadings(found: Facts) -> dict[str, Any]:
    """All loadings as a table, features by their largest one."""
    spans = found.directions
    if not spans.rank:
        return {"rows": [], "left_out": 0, "largest_left": ""}
    size = np.where(spans.determined, np.abs(spans.loadings), 0.0).max(axis=1)
    order = np.argsort(-size, kind="stable")

    def cell(f: int, j: int) -> tuple[str, str]:
        if not spans.determined[f, j]:
            return "", "not determined"
        span = "" if spans.reach is None else f"±{number(float(spans.reach[f, j]), 2)}"
        return number(float(spans.loadings[f, j]), 3), span

    rows = [(found.names[f], [cell(f, j) for j in range(spans.rank)]) for f in order[:ALL_LOADINGS]]
    rest = order[ALL_LOADINGS:]
    largest = number(float(size[rest[0]]), 2) if len(rest) else ""
    return {"rows": rows, "left_out": len(rest), "largest_left": largest}


def _first_rows(table: Table) -> list[tuple[str, list[str]]]:
    """The first lines of the table as text."""

    def cell(column: Any, i: int) -> str:
        if column.values is None:
            return column.texts.get(i, "")
        value = float(column.values[i])
        return "" if np.isnan(value) else number(value, 4)

    return [
        (label, [cell(column, i) for column in table.columns[:FIRST_COLUMNS]])
        for i, label in enumerate(table.labels[:FIRST_ROWS])
    ]
