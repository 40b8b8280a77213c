"""Formulas as lme4 writes them: the response, the terms of all tasks, and those that vary.

    math ~ ses * sex + s(age) + offset(log(size)) + (1 + ses | school)

``parse_formula`` reads them from the text alone: which columns there are, and which of them hold
categories, is known to ``design.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sharedspan.formula.advice import refusal
from sharedspan.formula.expansion import Expansion, require_numeric
from sharedspan.formula.syntax import read_sides
from sharedspan.formula.terms import Bar, Term, written_terms
from sharedspan.inputs.expressions import Call, Expression


@dataclass(frozen=True)
class Formula:
    """A formula whose products of terms are expanded; ``str`` gives its canonical text.

    Terms are in the order of R: main effects first, then products of two columns, and so on.
    """

    text: str = field(compare=False)  # as it was given
    response: Expression  # a column, arithmetic, or ``cbind(successes, failures)``
    intercept: bool
    terms: tuple[Term, ...]  # of all tasks
    bars: tuple[Bar, ...]
    offsets: tuple[Expression, ...]

    def __str__(self) -> str:
        right = written_terms(self.intercept, self.terms, "")
        more = [*(f"offset({offset})" for offset in self.offsets), *map(str, self.bars)]
        return f"{self.response} ~ {' + '.join([right, *more])}"


def parse_formula(text: str) -> Formula:
    """Read a formula.

    Parameters
    ----------
    text : str
        The response, `~` and terms. Operators are `+ - * : / ^` with the meaning they have in R,
        0 and 1 for the intercept, and `|` and `||` before a group: (1 + x | group) has effects
        whose covariance is unrestricted, (1 + x || group) independent ones, and
        rr(1 + x | group, 2) effects along two directions. Functions are log, exp, sqrt, I (for
        arithmetic), factor, s (a spline), offset and, in the response, cbind.

    Returns
    -------
    Formula

    Raises
    ------
    FormulaError
        A ValueError that quotes the place and says what to write instead.
    """
    left, right = read_sides(text)
    response, expansion = _response(left), Expansion()
    terms = expansion.terms_of(right)
    parts = [*terms.terms, *(term for bar in terms.bars for term in bar.terms)]
    if any(response in term.factors for term in parts):
        raise refusal(str(response), "it is the response and a term, so leave the term out")
    return Formula(
        text, response, terms.intercept is not False, terms.ordered(), tuple(terms.bars),
        tuple(terms.offsets),
    )  # fmt: skip


def _response(tree: Expression) -> Expression:
    """The response, if it is one."""
    parts = tree.parts if isinstance(tree, Call) and tree.function == "cbind" else (tree,)
    for part in parts:
        require_numeric(part, "the response")
    return tree
