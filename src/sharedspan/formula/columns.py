"""What the columns that a formula names hold: numbers, dates, categories and splines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sharedspan.formula.advice import FormulaError
from sharedspan.formula.parse import Formula
from sharedspan.formula.table import FormulaTable
from sharedspan.formula.terms import Term
from sharedspan.inputs.columns import NO_LEVEL, OTHER, Columns
from sharedspan.inputs.encoders import Factor, Number
from sharedspan.inputs.expressions import Call, Constant, Variable
from sharedspan.inputs.files import joined, nearest
from sharedspan.inputs.frame_table import open_frame, raw_names
from sharedspan.inputs.learning import learn_encoding
from sharedspan.inputs.levels import count_texts, level_order
from sharedspan.inputs.splines import N_KNOTS, DistinctSample, SplineBasis
from sharedspan.inputs.text_format import TextFormat

MOST_CROSSED = 400  # levels of a second grouping that is crossed with the first


@dataclass
class ColumnUses:
    """How the terms of a formula use columns; a set of names each."""

    plain: dict[str, None] = field(default_factory=dict)  # by their names alone
    factors: dict[str, None] = field(default_factory=dict)  # in factor()
    arithmetic: dict[str, str] = field(default_factory=dict)  # with the text they are in
    knots: dict[str, int] = field(default_factory=dict)  # of splines

    @classmethod
    def of(cls, formula: Formula) -> ColumnUses:
        """The uses in all terms, also those of groups."""
        uses = cls()
        for term in (*formula.terms, *(term for bar in formula.bars for term in bar.terms)):
            uses.note(term)
        return uses

    def note(self, term: Term) -> None:
        """Note the uses in a term."""
        for part in term.factors:
            if isinstance(part, Variable):
                self.plain[part.name] = None
            elif isinstance(part, Call) and part.function == "factor":
                self.factors[part.names[0]] = None
            elif isinstance(part, Call) and part.function == "s":
                self._note_spline(part)
            else:
                self.arithmetic |= dict.fromkeys(part.names, str(part))

    def _note_spline(self, part: Call) -> None:
        (name,), knots = part.names, N_KNOTS
        if len(part.arguments) == 2:
            assert isinstance(part.arguments[1], Constant)
            knots = int(part.arguments[1].value)
        if self.knots.setdefault(name, knots) != knots:
            raise FormulaError(
                f"The formula has `{part}` with two numbers of knots: write one of them."
            )
        self.arithmetic.setdefault(name, str(part))

    @property
    def names(self) -> list[str]:
        """All columns, in the order of their kinds of use."""
        return list(self.plain | self.factors | self.arithmetic)


@dataclass(frozen=True)
class LearnedColumns:
    """What the columns of a formula hold."""

    numbers: Mapping[str, Number]
    factors: Mapping[str, Factor]
    categorical: frozenset[str]  # whose names alone mean the factor
    text: TextFormat


def require_formula_options(options: Columns, table: FormulaTable) -> None:
    """Raise for options that a formula says itself, and for unknown columns."""
    if options.spline:
        raise FormulaError(
            f"Columns(spline={options.spline!r}) and a formula do not go together: write s(x) in "
            "the formula."
        )
    if options.interactions:
        raise FormulaError(
            f"Columns(interactions={options.interactions!r}) and a formula do not go together: "
            "write x:z in the formula."
        )
    known = raw_names(table.frame)
    for name, part in options.named():
        if name not in known:
            raise FormulaError(
                f"There is no column {name!r} ({part} of Columns) in the table."
                f"{nearest(name, known)}"
            )


def learn_columns(
    table: FormulaTable, uses: ColumnUses, options: Columns, crossed: Sequence[str] = ()
) -> LearnedColumns:
    """Learn levels, means and knots; ``crossed`` are groupings whose levels become features.

    Columns of numbers are read by NumPy, and all others by DuckDB.
    """
    as_factor = {*options.categorical, *options.ordinal, *options.reference} & set(uses.plain)
    factors = [name for name in uses.names if name in uses.factors or name in as_factor]
    by_duckdb = [
        name for name in uses.names
        if name in factors or name not in table.numbers or name in options.dates
    ]  # fmt: skip
    learned, text = _learn_by_duckdb(table, by_duckdb, factors, uses, options)
    numbers = {c.column: c for c in learned if isinstance(c, Number)}
    levels = {c.column: c for c in learned if isinstance(c, Factor)}
    for name in by_duckdb:
        if name not in numbers and name not in levels:
            raise FormulaError(
                f"The column {name!r} has the same value in all rows: leave it out of the formula."
            )
    categorical = frozenset(n for n in levels if n in as_factor or n not in table.numbers)
    for name in uses.names:
        needed = name in uses.arithmetic or (name in uses.plain and name not in categorical)
        if needed and name not in numbers:
            if name not in table.numbers:
                raise FormulaError(
                    f"The formula has `{uses.arithmetic[name]}`, but the column {name!r} holds "
                    f"categories: write only {name}."
                )
            numbers[name] = _number(table, name, uses, options)
    if twice := [name for name in crossed if name in levels]:
        raise FormulaError(
            f"The formula has the levels of {twice[0]!r} in its terms and as groups: leave "
            f"(1 | {twice[0]}) out, or the term."
        )
    levels |= _crossed_factors(table, crossed, options, text)
    return LearnedColumns(numbers, levels, categorical, text)


def _learn_by_duckdb(
    table: FormulaTable,
    names: Sequence[str],
    factors: Sequence[str],
    uses: ColumnUses,
    options: Columns,
) -> tuple[tuple[Number | Factor, ...], TextFormat]:
    """Columns of text, dates and categories."""
    if not names:
        return (), table.text
    splines = {n: k for n, k in uses.knots.items() if n in names and n not in factors}
    if len(set(splines.values())) > 1:
        raise FormulaError(
            f"The splines of {joined([*splines])}, which are not numbers in the table, have "
            "different numbers of knots: give them the same."
        )
    restricted = replace(
        options,
        spline=[*splines],
        knots=max(splines.values(), default=N_KNOTS),
        categorical=[n for n in factors if n not in options.ordinal],
        ordinal={n: levels for n, levels in options.ordinal.items() if n in names},
        reference={n: level for n, level in options.reference.items() if n in names},
        dates={n: form for n, form in options.dates.items() if n in names},
        season={n: periods for n, periods in options.season.items() if n in names},
    )
    arrow, categories = table.arrow(names)
    with open_frame(arrow) as opened:
        encoding = learn_encoding(opened, names, restricted, categories, chosen=True)
    return encoding.columns, encoding.text


def _number(table: FormulaTable, name: str, uses: ColumnUses, options: Columns) -> Number:
    """A column of numbers with its spline, and what stands for missing values."""
    values, spline, fill, lacks = table.number(name), None, None, False
    if name in uses.knots:
        spline = SplineBasis.of(DistinctSample().add(values).values(), uses.knots[name])
    if options.missing == "indicator":
        known = values[np.isfinite(values)]
        if not len(known):
            raise FormulaError(f"The column {name!r} has no values: leave it out of the formula.")
        fill, lacks = math.fsum(known) / len(known), len(known) < len(values)
    return Number(name, spline=spline, fill=fill, indicator=lacks)


def _crossed_factors(
    table: FormulaTable, names: Sequence[str], options: Columns, text: TextFormat
) -> dict[str, Factor]:
    """Groupings as factors with a feature for every level; other levels have none of them."""
    if not names:
        return {}
    arrow, _ = table.arrow(names)
    with open_frame(arrow) as opened:
        texts = count_texts(opened, names, text)
    made = {}
    for name in names:
        counts: Any = texts[name].counts
        levels = level_order(counts)
        if odd := {OTHER, NO_LEVEL} & set(levels):
            raise FormulaError(
                f"The group {odd.pop()!r} of {name!r} has a reserved name: rename it."
            )
        made[name] = Factor(
            name, (*levels, OTHER), (*(counts[level] for level in levels), 0), "reference", OTHER,
            options.unseen,
        )  # fmt: skip
    return made
