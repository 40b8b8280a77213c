"""The tables of a summary, with their numbers as text: fixed effects, variances, correlations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np

from sharedspan.inference.summary import Estimate, FixedTable, Summary, VarianceEntry
from sharedspan.inference.summary_numbers import (
    bound_texts,
    decimals_of,
    estimate_decimals,
    fixed_point,
    format_capped,
    format_column,
    format_p,
    format_rows,
    or_nan,
)

MOST_EFFECTS = 60  # rows of a table
MOST_CORRELATED = 12  # effects whose correlations are shown
MOST_BESIDE = 3  # correlations that have room beside standard deviations and their bounds
MOST_INTERVALS = 10  # correlations whose intervals are shown
ABBREVIATED = 6  # characters of names over columns, as in R
LONGEST_ABBREVIATION = 10  # of names that would otherwise be equal


@dataclass(frozen=True)
class Lines:
    """Lines of a label, which may be empty, and a text."""

    title: str
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SummaryTable:
    """A table of numbers, but for names in its first ``labels`` columns.

    The last ``texts`` columns hold sentences.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1
    notes: tuple[str, ...] = ()
    texts: int = 0
    bold: tuple[int, ...] = ()  # rows that HTML shows in bold type


def fixed_effect_tables(summary: Summary) -> Iterator[Lines | SummaryTable]:
    """The table of coefficients, and the correlations of their estimates."""
    table = summary.fixed
    if table is None or not table.names:
        return
    shown, more = slice(MOST_EFFECTS), len(table.names) - MOST_EFFECTS
    columns = _fixed_columns(table, summary.level, shown)
    yield SummaryTable(
        summary.fixed_title,
        ("", *columns),
        tuple(zip(table.names[shown], *columns.values(), strict=True)),
        notes=(f"{more} more effects are not shown: see to_frame().",) if more > 0 else (),
    )
    if table.correlation is not None:
        yield from _correlations("Correlation of fixed effects", table.names, table.correlation)


def _fixed_columns(table: FixedTable, level: float, shown: slice) -> dict[str, list[str]]:
    """Columns of the table of coefficients; standard errors say how many decimals it has."""
    low, high = bound_texts(level)
    named = (
        ("Estimate", table.estimate), ("Std. Error", table.std_error), (low, table.low),
        (high, table.high),
    )  # fmt: skip
    known = {name: np.asarray(values)[shown] for name, values in named if values is not None}
    decimals = [decimals_of(x) for x in known.get("Std. Error", known["Estimate"]).tolist()]
    cells = zip(*format_rows(list(known.values()), decimals), strict=True)
    columns = {name: list(texts) for name, texts in zip(known, cells, strict=True)}
    letter = "z" if table.degrees is None else "t"
    if table.degrees is not None:
        columns["df"] = format_capped(table.degrees[shown], 2)
    if table.statistic is not None:
        columns[f"{letter} value"] = format_capped(table.statistic[shown], 3)
    if table.p_value is not None:
        columns[f"Pr(>|{letter}|)"] = [format_p(float(p)) for p in table.p_value[shown]]
    return columns


def random_effect_tables(summary: Summary) -> Iterator[Lines | SummaryTable]:
    """Variances and standard deviations with correlations beside or below them."""
    entries, spreads = summary.variances, list(_spreads(summary))
    if not spreads:
        return
    bounded = any(estimate.low is not None for _, _, estimate in spreads)
    beside = _columns_beside(entries)
    bounds = bound_texts(summary.level) if bounded else ()
    corr = ("Corr", *[""] * (beside - 1)) if beside else ()
    yield SummaryTable(
        "Random effects" if entries else "Noise",
        ("Groups", "Name", "Variance", "Std.Dev.", *bounds, *corr),
        tuple(_variance_rows(summary, spreads, bounded, beside)),
        labels=2,
        notes=tuple(_variance_notes(entries, bounded)),
    )
    for entry in entries:
        if entry.correlation is not None and not beside:
            title = f"Correlation of effects of {entry.group}"
            yield from _correlations(title, entry.names, entry.correlation)
    yield from _correlation_intervals(entries, summary.level)


def _spreads(summary: Summary) -> Iterator[tuple[str, str, Estimate]]:
    """Group, name and standard deviation of the random effects that are shown, and of the noise.

    The group is named in its first row only.
    """
    room = MOST_EFFECTS
    for entry in summary.variances:
        for i, name in enumerate(entry.names[:room]):
            yield "" if i else entry.group, name, entry.std_estimate(i)
        room = max(room - len(entry.names), 0)
    if summary.sigma is not None:
        yield "Residual", "", summary.sigma


def _columns_beside(entries: Sequence[VarianceEntry]) -> int:
    """Columns of correlations beside the standard deviations; none if they have no room."""
    most = max((len(e.names) - 1 for e in entries if e.correlation is not None), default=0)
    return most if most <= MOST_BESIDE else 0


def _variance_rows(
    summary: Summary, spreads: list[tuple[str, str, Estimate]], bounded: bool, beside: int
) -> Iterator[tuple[str, ...]]:
    """Rows of the random effects and of the noise, which has no correlations."""
    estimates = [estimate for _, _, estimate in spreads]
    variances = format_column([estimate.value**2 for estimate in estimates])
    columns = list(zip(*([or_nan(x) for x in e] for e in estimates), strict=True))
    stds = format_rows(columns, [estimate_decimals(estimate) for estimate in estimates])
    correlations = [
        [] if e.correlation is None else [fixed_point(r, 3) for r in e.correlation[i, :i]]
        for e in summary.variances
        for i in range(len(e.names))
    ]
    correlations = [*correlations[: len(spreads) - (summary.sigma is not None)], []]
    for k, (group, name, estimate) in enumerate(spreads):
        bounds = ("", "") if estimate.low is None else stds[k][1:]
        corr = [*correlations[k], *[""] * beside][:beside]
        yield group, name, variances[k], stds[k][0], *(bounds if bounded else ()), *corr


def _variance_notes(entries: Sequence[VarianceEntry], bounded: bool) -> Iterator[str]:
    more = sum(len(entry.names) for entry in entries) - MOST_EFFECTS
    if more > 0:
        yield f"{more} more effects are not shown: see to_frame('variances')."
    if bounded:
        yield "Bounds refer to Std.Dev."
    for entry in entries:
        if entry.note:
            yield f"Covariance of {entry.group}: {entry.note}."


def _correlations(
    title: str, names: tuple[str, ...], correlation: np.ndarray
) -> Iterator[Lines | SummaryTable]:
    """The lower triangle of a matrix of correlations, below abbreviated names."""
    if len(names) > MOST_CORRELATED:
        yield Lines("", ((title, f"not shown for more than {MOST_CORRELATED} effects."),))
    elif len(names) > 1:
        rows = [
            (name, *(fixed_point(r, 3) if j < i else "" for j, r in enumerate(row[:-1])))
            for i, (name, row) in enumerate(zip(names, correlation, strict=True))
        ]
        yield SummaryTable(title, ("", *abbreviations(names)[:-1]), tuple(rows[1:]))


def _correlation_intervals(
    entries: Sequence[VarianceEntry], level: float
) -> Iterator[SummaryTable]:
    """Correlations with their intervals, if there are few."""
    pairs = [
        (entry.group, f"{entry.names[j]}, {entry.names[i]}", entry.correlation_estimate(i, j))
        for entry in entries
        if entry.correlation_low is not None
        for i, j in entry.pairs()
    ]
    if 0 < len(pairs) <= MOST_INTERVALS:
        rows = tuple((g, n, *(fixed_point(or_nan(x), 3) for x in e)) for g, n, e in pairs)
        header = ("Groups", "Names", "Corr", *bound_texts(level))
        yield SummaryTable("Correlations of random effects", header, rows, labels=2)


def abbreviations(names: Sequence[str]) -> tuple[str, ...]:
    """Short names for columns, as R's ``abbreviate`` makes them; numbers if they are not unique."""
    whole = [_abbreviation(name) for name in names]
    for length in (ABBREVIATED, LONGEST_ABBREVIATION):
        count = Counter(name[:length] for name in whole)
        whole = [name[:length] if count[name[:length]] == 1 else name for name in whole]
    count = Counter(whole)
    return tuple(
        name if count[name] == 1 and len(name) <= LONGEST_ABBREVIATION else f"#{i + 1}"
        for i, name in enumerate(whole)
    )


def _abbreviation(name: str) -> str:
    """A name without its last lower case vowels and then letters, until it is short enough."""
    letters = list(name[:200])
    for dropped in ("aeiou", ascii_lowercase):
        for i in range(len(letters) - 1, 0, -1):
            if len(letters) > ABBREVIATED and letters[i] in dropped and letters[i - 1] != " ":
                del letters[i]
    return "".join(letters).replace(" ", "")
