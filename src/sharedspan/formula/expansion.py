"""Products of terms expanded as R does it, and random-effects terms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sharedspan.formula.advice import FormulaError, refusal
from sharedspan.formula.terms import Bar, Term
from sharedspan.inputs.expressions import (
    FUNCTIONS,
    Call,
    Constant,
    Expression,
    Operation,
    Variable,
    require_arithmetic,
)

MOST_TERMS = 1000
MOST_PRODUCTS = 5000  # of terms, while a formula is expanded


@dataclass
class Terms:
    """What a part of a formula adds; None for an intercept that it says nothing of."""

    terms: dict[Term, None] = field(default_factory=dict)
    intercept: bool | None = None
    bars: list[Bar] = field(default_factory=list)
    offsets: list[Expression] = field(default_factory=list)

    def ordered(self) -> tuple[Term, ...]:
        """The terms as R orders them: by the number of factors, then as written."""
        return tuple(sorted(self.terms, key=lambda term: len(term.factors)))

    def add(self, other: Terms) -> None:
        """Add what another part adds."""
        self.terms |= other.terms
        if len(self.terms) > MOST_TERMS:
            raise _too_many()
        self.intercept = self.intercept if other.intercept is None else other.intercept
        self.bars += other.bars
        self.offsets += other.offsets

    def remove(self, other: Terms, place: Expression) -> None:
        """Take away what another part adds."""
        if other.bars or other.offsets:
            raise refusal(f"- ({place})", "only terms can be subtracted, so leave it out")
        for term in other.terms:
            self.terms.pop(term, None)
        self.intercept = self.intercept if other.intercept is None else not other.intercept

    def factors(self, place: Expression) -> list[Term]:
        """The terms, which a product must consist of."""
        if self.bars or self.offsets or self.intercept is not None:
            raise refusal(
                str(place),
                "random-effects terms, offsets, 0 and 1 can only be added by +, and arithmetic "
                "belongs in I()",
            )
        return list(self.terms)


def _too_many() -> FormulaError:
    return FormulaError(
        f"The formula has more than {MOST_TERMS:,} terms when its products are expanded: write "
        "the terms that you need."
    )


class Expansion:
    """Expands trees into terms, with a limit to its work."""

    def __init__(self) -> None:
        self.n_products = 0
        self.place: dict[Expression, int] = {}  # of each factor in the text

    def terms_of(self, tree: Expression) -> Terms:
        """What a tree adds to a formula."""
        if isinstance(tree, Constant):
            if tree.value not in (0.0, 1.0):
                raise refusal(
                    str(tree), "0 and 1 refer to the intercept, and other numbers belong in I()"
                )
            return Terms(intercept=tree.value == 1.0)
        if isinstance(tree, Variable):
            return self._single(tree)
        if isinstance(tree, Call):
            return self._call(tree)
        assert isinstance(tree, Operation)
        if tree.operator in ("+", "-"):
            return self._sum(tree)
        if tree.operator in ("|", "||"):
            return Terms(bars=list(self._bars(tree)))
        if tree.operator == "^":
            return self._power(tree)
        return self._product(tree)

    def _single(self, factor: Expression) -> Terms:
        self.place.setdefault(factor, len(self.place))
        return Terms({Term((factor,)): None})

    def _call(self, tree: Call) -> Terms:
        name, first = tree.function, tree.arguments[0]
        if name == "cbind":
            raise refusal(str(tree), "cbind() is only allowed before ~, as the response")
        if name == "rr":
            return Terms(bars=list(self._low_rank(tree)))
        if name == "offset":
            require_numeric(first, "offset()")
            return Terms(offsets=[first])
        if name in ("factor", "s"):
            if not isinstance(first, Variable):
                raise refusal(str(tree), f"{name}() takes the name of a column, as in {name}(x)")
            if len(tree.arguments) == 2:
                _integer(tree.arguments[1], 3, "the number of knots", tree)
        else:
            require_numeric(tree, f"{name}()")
        return self._single(tree)

    def _sum(self, tree: Operation) -> Terms:
        total = Terms()
        for operand in tree.operands if tree.operator == "+" else (tree,):
            if isinstance(operand, Operation) and operand.operator == "-":
                inner = operand.operands[0]
                total.remove(self.terms_of(inner), inner)
            else:
                total.add(self.terms_of(operand))
        return total

    def _product(self, tree: Operation) -> Terms:
        left, right = (self.terms_of(part).factors(tree) for part in tree.operands)
        made = Terms()
        if tree.operator in ("*", "/"):
            made.terms |= dict.fromkeys(left)
        if tree.operator == "*":
            made.terms |= dict.fromkeys(right)
        if tree.operator == "/":  # the second varies within the combinations of the first
            left = [Term(tuple(dict.fromkeys(f for term in left for f in term.factors)))]
        made.terms |= self._pairs(left, right, tree)
        return made

    def _power(self, tree: Operation) -> Terms:
        base, exponent = tree.operands
        order = _integer(exponent, 1, "a power of terms", tree)
        terms = self.terms_of(base).factors(tree)
        if len(terms) < 2:
            raise refusal(str(tree), f"write I({tree}) for a power of a column")
        made, latest = dict.fromkeys(terms), terms
        for _ in range(order - 1):
            latest = [term for term in self._pairs(latest, terms, tree) if term not in made]
            if not latest:
                break
            made |= dict.fromkeys(latest)
        return Terms(made)

    def _pairs(self, left: list[Term], right: list[Term], tree: Operation) -> dict[Term, None]:
        """Products of all terms on the left with all on the right."""
        made = dict[Term, None]()
        for one in left:
            for other in right:
                self.n_products += 1
                factors = dict.fromkeys((*one.factors, *other.factors))
                if any(isinstance(f, Call) and f.function == "s" for f in factors):
                    raise refusal(str(tree), "s() cannot be part of a product, so write s(x) + x:z")
                made[Term(tuple(sorted(factors, key=self.place.__getitem__)))] = None
                if len(made) > MOST_TERMS or self.n_products > MOST_PRODUCTS:
                    raise _too_many()
        return made

    # ---- random-effects terms ----

    def _bars(self, tree: Operation) -> Iterator[Bar]:
        """The random effects of a term; (1 | a/b) has those of a and those of a:b."""
        left, right = tree.operands
        inner = self.terms_of(left)
        if inner.bars or inner.offsets:
            raise refusal(
                f"({tree})",
                "a random-effects term contains neither offsets nor other random-effects terms",
            )
        terms = inner.ordered()
        if any(isinstance(f, Call) and f.function == "s" for term in terms for f in term.factors):
            raise refusal(
                f"({tree})", "splines are the same in all groups, so write s(x) + (1 + x | group)"
            )
        intercept = inner.intercept is not False
        if not terms and not intercept:
            raise refusal(f"({tree})", "the term has no random effect, so leave it out")
        kind = "diagonal" if tree.operator == "||" else "full"
        for groups in _groups(right, tree):
            yield Bar(groups, intercept, terms, kind)

    def _low_rank(self, tree: Call) -> Iterator[Bar]:
        first, *others = tree.arguments
        if not isinstance(first, Operation) or first.operator != "|":
            raise refusal(str(tree), "write rr(1 + x | group), or rr(1 + x | group, 2) for rank 2")
        rank = _integer(others[0], 1, "the rank", tree) if others else None
        for bar in self._bars(first):
            yield replace(bar, kind="low_rank", rank=rank)


def _integer(tree: Expression, least: int, what: str, place: Expression) -> int:
    """An integer in a formula."""
    if isinstance(tree, Constant) and tree.value.is_integer() and tree.value >= least:
        return int(tree.value)
    raise refusal(str(place), f"{what} is an integer of at least {least}")


def _groups(tree: Expression, place: Expression) -> list[tuple[str, ...]]:
    """The columns of each of the groupings to the right of | in a random-effects term."""
    if isinstance(tree, Call) and tree.function == "factor":
        tree = tree.arguments[0]
    if isinstance(tree, Variable):
        return [(tree.name,)]
    if isinstance(tree, Operation) and tree.operator in (":", "/"):
        left, right = (_groups(part, place) for part in tree.operands)
        if len(right) == 1 and (tree.operator == "/" or len(left) == 1):
            combined = tuple(dict.fromkeys((*left[-1], *right[0])))
            return [*left, combined] if tree.operator == "/" else [combined]
    raise refusal(
        f"({place})",
        "a grouping factor is a column, a:b or a/b, and further ones need terms of their own",
    )


def require_numeric(tree: Expression, place: str) -> None:
    """Raise unless a tree is arithmetic with at least one column."""
    try:
        require_arithmetic(tree)
    except ValueError:
        raise refusal(
            str(tree),
            f"{place} takes columns, numbers, + - * / ^ and the functions {', '.join(FUNCTIONS)}",
        ) from None
    if not tree.names:
        raise refusal(str(tree), "it has no column, so write the name of one")
