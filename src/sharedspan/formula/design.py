"""A formula and a table as columns, effects and groups: what a fit of the formula needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.formula.advice import FormulaError
from sharedspan.formula.coding import Feature, TermCoder
from sharedspan.formula.columns import (
    ColumnUses,
    LearnedColumns,
    learn_columns,
    require_formula_options,
)
from sharedspan.formula.grouping import Grouping, grouping_of
from sharedspan.formula.parse import Formula, parse_formula
from sharedspan.formula.response import offset_values, response_levels, response_values
from sharedspan.formula.table import FormulaTable
from sharedspan.formula.terms import Bar
from sharedspan.inputs.column_arrays import as_arrow
from sharedspan.inputs.columns import Columns
from sharedspan.inputs.encoders import HARMONICS, Factor, Number
from sharedspan.inputs.expressions import Expression, Variable
from sharedspan.inputs.files import joined
from sharedspan.inputs.formula_encoding import CONTRASTS_OF, NUMBERS_OF, FormulaEncoding, Piece
from sharedspan.inputs.learning import text_format
from sharedspan.inputs.recognition import recognise
from sharedspan.inputs.table_columns import TableColumns
from sharedspan.mixed_model.structures import Block, Effects

# Without options no levels are pooled, as in R.
DEFAULT_OPTIONS = Columns(rare=0)


@dataclass(frozen=True)
class Design:
    """What a formula says of a table.

    ``columns.task`` is a column, or several whose path is the label of a task. The intercepts of
    crossed groupings are coefficients of 0/1 features in a variance group each.
    """

    formula: Formula
    columns: TableColumns  # how columns become features
    effects: Effects  # which coefficients have a mean, and how they vary between tasks
    groups: tuple[str, ...]  # the columns that tasks are made of, of nested groups the outer first
    nested: str | None  # the column of the outer groups, if tasks are nested in such
    outer_effects: Effects | None  # how coefficients vary between the outer groups
    crossed: tuple[str, ...]  # groupings
    levels: tuple[str, str] | None  # of a response of two classes; the second is 1

    @property
    def offset(self) -> tuple[Expression, ...]:
        """Known parts of the linear predictor."""
        return self.formula.offsets

    def response(self, data: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Responses of rows, (rows,), and numbers of trials if they are shares, or None.

        A response is NaN in a row that lacks its response or its offset.
        """
        table = self._table(data, (*self.formula.response.names, *self._offset_names))
        y, trials = response_values(self.formula.response, self.levels, table)
        offset = offset_values(self.offset, table)
        return y if offset is None else np.where(np.isnan(offset), np.nan, y), trials

    def offsets(self, data: Any) -> np.ndarray | None:
        """The offset of each row, (rows,), None without one; zero in a row that lacks it."""
        offset = offset_values(self.offset, self._table(data, self._offset_names))
        return None if offset is None else np.nan_to_num(offset, posinf=np.inf, neginf=-np.inf)

    def task_labels(self, data: Any) -> Any:
        """The label of each row's task: a column, or paths of several, (rows,)."""
        return self._table(data, self.groups).labels(self.groups)

    @property
    def _offset_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.offset for name in part.names))

    def _table(self, data: Any, names: Sequence[str]) -> FormulaTable:
        return FormulaTable(data, list(dict.fromkeys(names)), self.columns.encoding.text)


def learn_design(
    formula: str | Formula, data: Any, columns: Columns | None = None, *, two_levels: bool = True
) -> Design:
    """Learn what a formula says of a table.

    Parameters
    ----------
    formula : str or Formula
    data : pandas, polars or pyarrow table, or dict of {str: array-like}
    columns : Columns, optional
        Options of single columns: the levels of categories, missing values and dates. Splines and
        products are in the formula. Without it no levels are pooled, and a row that lacks a value
        is an error.
    two_levels : bool, default=True
        Whether groups around the tasks are a level of their own; otherwise they count as crossed.

    Returns
    -------
    Design
        `(1 + x || group)` makes every column of the term independent, also the levels of a factor.

    Raises
    ------
    FormulaError
        A ValueError for what the formula asks and the table or the model does not have.
    """
    formula = parse_formula(formula) if isinstance(formula, str) else formula
    options = DEFAULT_OPTIONS if columns is None else columns
    uses = ColumnUses.of(formula)
    groups = list(dict.fromkeys(name for bar in formula.bars for name in bar.groups))
    offsets = [name for part in formula.offsets for name in part.names]
    others = [*formula.response.names, *offsets, *groups]
    table = FormulaTable(data, list(dict.fromkeys([*uses.names, *others])), text_format(options))
    require_formula_options(options, table)
    said = {*options.categorical, *options.ordinal, *options.reference, *options.dates}
    read = [n for n in (*uses.names, *formula.response.names) if n not in {*uses.factors, *said}]
    _leave_out_incomplete_rows(table, options.missing, read, formula.response.names)
    grouping = grouping_of(formula.bars, table, two_levels=two_levels)
    learned = learn_columns(table, uses, options, grouping.crossed)
    features = DesignFeatures(formula, grouping, learned, uses)
    task = grouping.tasks[0] if len(grouping.tasks) == 1 else grouping.tasks
    return Design(
        formula,
        TableColumns(task, None, features.encoding(options.missing), "VARCHAR"),
        features.effects(grouping.bars),
        grouping.tasks,
        grouping.outer,
        features.effects(grouping.outer_bars) if grouping.outer else None,
        grouping.crossed,
        response_levels(formula.response, table),
    )


def _leave_out_incomplete_rows(
    table: FormulaTable, missing: str, read: Sequence[str], response: Sequence[str]
) -> None:
    """Learn from complete rows alone, or raise if users have not said what to do with others.

    The message then says also how columns that are ``read`` as they are must be read instead.
    """
    if missing == "indicator":
        return
    lacking = table.lacking(list(table.columns))
    if not lacking:
        return
    rows = np.logical_or.reduce(list(lacking.values()))
    counts = joined([f"{name!r} {int(which.sum())}" for name, which in lacking.items()])
    total = f"{int(rows.sum())} of {len(rows)} rows"
    problem = f"{total} have missing values in columns that the formula uses ({counts})"
    if missing == "error":
        raise FormulaError(
            f"{_other_notation(table, read, response)}{problem}: leave these rows out, as lme4 "
            "does (--missing drop, or columns=ss.Columns(missing='drop') in Python), or fill "
            "values in and mark them (--missing indicator, or missing='indicator')."
        )
    if rows.all():
        raise FormulaError(f"{problem}, so none is left: leave columns out of the formula.")
    table.restrict(~rows)


def _other_notation(table: FormulaTable, names: Sequence[str], response: Sequence[str]) -> str:
    """What users must say about numbers and dates in other notations, before a further problem."""
    texts = {name: as_arrow(table.columns[name]) for name in names if name not in table.numbers}
    columns = {
        name: {each["values"]: each["counts"] for each in values.value_counts().to_pylist()}
        for name, values in texts.items()
        if str(values.type).endswith("string")
    }
    counts = {name: {k: n for k, n in found.items() if k is not None}
              for name, found in columns.items()}  # fmt: skip
    target = response[0] if len(response) == 1 else None
    _, _, findings = recognise(counts, table.text, target=target)
    return findings.sentence("The table").removesuffix(".") + ". Besides, " if findings else ""


class DesignFeatures:
    """The features of a formula in their order, and the coefficients of its groups.

    Features of all tasks come first, then the penalised ones of splines, those that mark missing
    values, those of crossed groups, and last those with random effects but no fixed effects.
    """

    def __init__(
        self, formula: Formula, grouping: Grouping, columns: LearnedColumns, uses: ColumnUses
    ) -> None:
        self.formula, self.columns, self.coder = formula, columns, TermCoder(columns)
        fixed = self.coder.features(formula.intercept, formula.terms, seasons=True)
        self.features = list(fixed)
        self.groups = [-1] * len(fixed)
        for name in uses.knots:
            self._add_group(self._spline(columns.numbers[name]))
        for name, number in columns.numbers.items():
            if number.indicator:
                self.features.append((Piece(Variable(name), place=len(number.names) - 1),))
                self.groups.append(-1)
        for name in grouping.crossed:
            n = len(columns.factors[name].names)
            self._add_group([(Piece(Variable(name), CONTRASTS_OF, i),) for i in range(n)])
        self.n_fixed = len(self.features)
        self.place = {frozenset(feature): i for i, feature in enumerate(self.features)}
        bars = dict.fromkeys((*grouping.bars, *grouping.outer_bars))
        self.varying = {bar: self._coefficients(bar) for bar in bars}

    def _add_group(self, features: Sequence[Feature]) -> None:
        """Add features that share a variance."""
        self.groups += [max(self.groups, default=-1) + 1] * len(features)
        self.features += features

    def _spline(self, number: Number) -> list[Feature]:
        """The penalised features of a spline."""
        first = 1 + 2 * sum(HARMONICS[period][1] for period in number.periods)
        return [(Piece(Variable(number.column), place=first + i),) for i in range(number.n_spline)]

    def _coefficients(self, bar: Bar) -> tuple[int, ...]:
        """The numbers of the coefficients that a term lets vary; new features join the others."""
        members = [0] if bar.intercept else []
        for feature in self.coder.features(bar.intercept, bar.terms):
            key = frozenset(feature)
            if key not in self.place:
                self.place[key] = len(self.features)
                self.features.append(feature)
                self.groups.append(-1)
            members.append(1 + self.place[key])
        return tuple(members)

    def encoding(self, missing: str) -> FormulaEncoding:
        """How the table becomes features."""
        pieces = [piece for feature in self.features for piece in feature]
        numbers = dict.fromkeys(n for p in pieces if p.coding == NUMBERS_OF for n in p.source.names)
        factors = dict.fromkeys(n for p in pieces if p.coding != NUMBERS_OF for n in p.source.names)
        read: list[Number | Factor] = [self.columns.numbers[name] for name in numbers]
        read += [self.columns.factors[name] for name in factors]
        made = FormulaEncoding(
            tuple(read), text=self.columns.text, missing=missing, features=tuple(self.features),
            feature_groups=tuple(self.groups), offset=self.formula.offsets,
        )  # fmt: skip
        if twice := [name for name in made.names if made.names.count(name) > 1]:
            raise FormulaError(
                f"Two features would have the name {twice[0]!r}: leave one of them out, or rename "
                "a column of the table."
            )
        return made

    def effects(self, bars: Sequence[Bar]) -> Effects:
        """How the coefficients vary between the groups of random-effects terms."""
        fixed = (self.formula.intercept, *(i < self.n_fixed for i in range(len(self.features))))
        return Effects(fixed, tuple(self._blocks(bars)), formula=str(self.formula))

    def _blocks(self, bars: Sequence[Bar]) -> Iterator[Block]:
        owner = dict[int, Bar]()
        for bar in bars:
            members = self.varying[bar]
            for member in members:
                if member in owner:
                    raise FormulaError(self._twice(owner[member], bar, member))
                owner[member] = bar
            yield Block(bar.kind, members, bar.rank)

    def _twice(self, one: Bar, other: Bar, member: int) -> str:
        if one == other:
            return f"The formula has {one} twice: leave one of them out."
        advice = "leave its column out of one of them"
        if member == 0:
            advice = f"write 0 + at the beginning of {other}"
        return f"Both {one} and {other} have the same effect of a group: {advice}."
