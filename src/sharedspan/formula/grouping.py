"""Which grouping has the tasks, which one they are nested in, and which are crossed with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sharedspan.formula.advice import FormulaError
from sharedspan.formula.columns import MOST_CROSSED
from sharedspan.formula.table import FormulaTable
from sharedspan.formula.terms import Bar


@dataclass(frozen=True)
class Grouping:
    """The parts of the groupings of a formula.

    Attributes
    ----------
    tasks : tuple of str
        Columns whose values, together, are a task; of nested groups the outer one is first.
    bars : tuple of Bar
        The random-effects terms of tasks.
    outer : str, optional
        The column of the groups that tasks are nested in.
    outer_bars : tuple of Bar
        Their effects.
    crossed : tuple of str
        Columns of further groups, whose intercepts are coefficients that all tasks share.
    """

    tasks: tuple[str, ...]
    bars: tuple[Bar, ...]
    outer: str | None = None
    outer_bars: tuple[Bar, ...] = ()
    crossed: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupingFactor:
    """One grouping of a formula: its columns, its terms, and the group of each row."""

    names: tuple[str, ...]
    bars: tuple[Bar, ...]
    codes: np.ndarray  # (rows,), 0 if a value is missing
    n_groups: int

    @property
    def has_slopes(self) -> bool:
        return any(bar.terms for bar in self.bars)

    @property
    def text(self) -> str:
        return ":".join(self.names)

    def is_within(self, other: GroupingFactor) -> bool:
        """Whether each of the groups is in one group of the other."""
        both = (self.codes > 0) & (other.codes > 0)
        one = np.zeros(self.n_groups + 1, dtype=int)  # a group of the other for each group
        one[self.codes[both]] = other.codes[both]
        return bool((one[self.codes[both]] == other.codes[both]).all())


def grouping_of(bars: Sequence[Bar], table: FormulaTable, *, two_levels: bool = True) -> Grouping:
    """The parts of the groupings; raises a FormulaError for those that cannot be fitted.

    Without ``two_levels`` groups around the tasks count as crossed ones.
    """
    if not bars:
        raise FormulaError(
            "The formula has no random effects: write + (1 | group), or fit PooledRegressor, or "
            "the formula by statsmodels."
        )
    by_group = dict[frozenset[str], list[Bar]]()
    for bar in bars:
        by_group.setdefault(frozenset(bar.groups), []).append(bar)
    if len(by_group) == 1:
        return Grouping(bars[0].groups, tuple(bars))
    groupings = [_grouping_factor(tuple(same), table) for same in by_group.values()]
    groupings.sort(key=lambda each: (len(each.names), each.n_groups), reverse=True)
    problems = []
    for tasks in groupings:
        others = [each for each in groupings if each is not tasks]
        try:
            return _with_tasks(tasks, others, two_levels)
        except FormulaError as problem:
            problems.append(problem)
    raise problems[0]


def _grouping_factor(bars: tuple[Bar, ...], table: FormulaTable) -> GroupingFactor:
    codes, text = table.codes(bars[0].groups), ":".join(bars[0].groups)
    if codes.max(initial=0) < 2:
        raise FormulaError(
            f"All rows are in one group of `{text}`: leave out its random-effects term."
        )
    return GroupingFactor(bars[0].groups, bars, codes, int(codes.max()))


def _with_tasks(
    tasks: GroupingFactor, others: Iterable[GroupingFactor], two_levels: bool
) -> Grouping:
    """The parts if one grouping has the tasks."""
    nests, crossed = [], []
    for each in others:
        if tasks.is_within(each):
            if each.is_within(tasks):
                raise FormulaError(
                    f"The groups of `{each.text}` are those of `{tasks.text}`: leave out the "
                    "random-effects term of one of them."
                )
            nests.append(each)
        else:
            crossed.append(each)
    # Of several groupings around the tasks, the one that only a second level can hold is the outer.
    nests.sort(key=lambda each: (each.has_slopes, each.n_groups), reverse=True)
    if two_levels and len(nests) > 1 and len(nests[0].names) > 1:
        raise FormulaError(_three_levels(tasks, nests[0], nests[1]))
    crossed += nests[1:] if two_levels else nests
    for each in crossed:
        _require_intercepts(each, tasks, is_nested=each in nests)
    names = tuple(each.names[0] for each in crossed)
    if not nests or not two_levels:
        return Grouping(tasks.names, tasks.bars, crossed=names)
    outer = nests[0]
    if len(outer.names) > 1:
        raise FormulaError(
            f"The groups of `{tasks.text}` are nested in those of `{outer.text}`, which combines "
            "several columns: make one column of them in the table."
        )
    inner = tuple(name for name in tasks.names if name not in outer.names)
    return Grouping((*outer.names, *inner), tasks.bars, outer.names[0], outer.bars, names)


def _three_levels(tasks: GroupingFactor, middle: GroupingFactor, outer: GroupingFactor) -> str:
    """What to do about three nested grouping factors."""
    joined = "_".join(middle.names)
    inner = ":".join(name for name in tasks.names if name not in middle.names)
    return (
        f"At most two nested grouping factors are supported, but `{outer.text}`, `{middle.text}` "
        f"and `{tasks.text}` are three: make one column of `{middle.text}` in "
        f"the table, such as {joined}, and write (1 | {outer.text}) + (1 | {joined}/{inner}), for "
        "intercepts on all three."
    )


def _require_intercepts(each: GroupingFactor, tasks: GroupingFactor, is_nested: bool) -> None:
    """Raise unless a further grouping has a few intercepts alone."""
    relation = "also around" if is_nested else "crossed with"
    where = f"The groups of `{each.text}` are {relation} those of `{tasks.text}`"
    if each.has_slopes or not all(bar.intercept for bar in each.bars):
        raise FormulaError(
            f"{where}, and only intercepts are supported for them: write (1 | {each.text})."
        )
    if len(each.bars) > 1:
        raise FormulaError(f"The formula has (1 | {each.text}) more than once: write it once.")
    if len(each.names) > 1:
        raise FormulaError(
            f"{where}, but combine several columns: make one column of them in the table."
        )
    if each.n_groups > MOST_CROSSED:
        raise FormulaError(
            f"{where}, but at most {MOST_CROSSED} of them are supported, not {each.n_groups:,}: "
            "leave out their random-effects term, or join groups in the table."
        )
