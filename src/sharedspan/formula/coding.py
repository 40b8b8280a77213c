"""Terms as features: which factors are coded by contrasts, and the products of their columns.

R's rule: a factor in a term is coded by contrasts if the term without it is in the formula, or if
it stands alone, and otherwise by a 0/1 feature for each level. Without an intercept, the first
factor has a feature for each level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from sharedspan.formula.advice import FormulaError
from sharedspan.formula.columns import LearnedColumns
from sharedspan.formula.terms import Term
from sharedspan.inputs.encoders import HARMONICS, Factor
from sharedspan.inputs.expressions import Call, Expression, Variable
from sharedspan.inputs.formula_encoding import CONTRASTS_OF, LEVELS_OF, Piece

MOST_FEATURES = 5000

Feature = tuple[Piece, ...]


class TermCoder:
    """Makes the features of terms from what is known of the columns."""

    def __init__(self, columns: LearnedColumns) -> None:
        self.columns = columns

    def features(
        self, intercept: bool, terms: Sequence[Term], *, seasons: bool = False
    ) -> list[Feature]:
        """The features of terms in R's order; of equal ones the first.

        With ``seasons``, a date alone has its periodic features too.
        """
        listed = [self._alike(term) for term in terms]
        levels = self._coded_by_levels(intercept, listed)
        made = dict[frozenset[Piece], Feature]()
        for i, term in enumerate(listed):
            pieces = [self._pieces(part, (i, part) in levels) for part in term]
            if seasons and len(term) == 1:
                pieces = [[*pieces[0], *self._harmonics(term[0])]]
            if len(made) + math.prod(map(len, pieces)) > MOST_FEATURES:
                raise FormulaError(
                    f"The formula has more than {MOST_FEATURES:,} features, most of them by "
                    f"`{terms[i]}`: leave it out, or join levels in the table."
                )
            for feature in product(*reversed(pieces)):  # the first factor varies fastest
                made.setdefault(frozenset(feature), feature[::-1])
        return list(made.values())

    def _alike(self, term: Term) -> tuple[Expression, ...]:
        """The factors of a term, equal if they mean the same."""
        return tuple(dict.fromkeys(self._as_column(part) for part in term.factors))

    def _as_column(self, part: Expression) -> Expression:
        if isinstance(part, Call) and part.function == "s":
            return part.arguments[0]
        if isinstance(part, Variable) and part.name in self.columns.categorical:
            return Call("factor", (part,))
        return part

    def _factor(self, part: Expression) -> Factor | None:
        """The factor that a part of a term is, None for numbers."""
        if isinstance(part, Call) and part.function == "factor":
            return self.columns.factors[part.names[0]]
        return None

    def _is_nominal(self, part: Expression) -> bool:
        factor = self._factor(part)
        return factor is not None and factor.coding != "ordinal"

    def _coded_by_levels(
        self, intercept: bool, terms: Sequence[tuple[Expression, ...]]
    ) -> set[tuple[int, Expression]]:
        """The factors, by the numbers of their terms, that have a feature for each level."""
        known = {frozenset[Expression](), *map(frozenset, terms)}
        levels, first = set(), not intercept
        for i, term in enumerate(terms):
            for part in filter(self._is_nominal, term):
                if first or frozenset(term) - {part} not in known:
                    levels.add((i, part))
                first = False
        return levels

    def _pieces(self, part: Expression, by_levels: bool) -> list[Piece]:
        """The columns of a part of a term."""
        factor = self._factor(part)
        if factor is None:
            return [Piece(part)]
        column, levels = Variable(factor.column), range(len(factor.levels))
        if by_levels:
            return [Piece(column, LEVELS_OF, i) for i in levels]
        if factor.coding == "reference":  # the same columns as by levels, which terms may share
            reference = factor.levels.index(factor.reference)
            return [Piece(column, LEVELS_OF, i) for i in levels if i != reference]
        return [Piece(column, CONTRASTS_OF, i) for i in range(len(factor.names))]

    def _harmonics(self, part: Expression) -> Iterator[Piece]:
        """The periodic features of a date."""
        number = self.columns.numbers.get(part.name) if isinstance(part, Variable) else None
        if number is not None:
            n = 2 * sum(HARMONICS[period][1] for period in number.periods)
            yield from (Piece(part, place=1 + i) for i in range(n))
