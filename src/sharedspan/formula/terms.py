"""The parts of a formula after its products are expanded: fixed and random-effects terms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sharedspan.inputs.expressions import Expression, written_name


@dataclass(frozen=True, eq=False)
class Term:
    """A product of columns; their order does not matter.

    Attributes
    ----------
    factors : tuple of Expression
        Columns, functions of columns, ``factor(x)``, or ``s(x)`` alone.
    """

    factors: tuple[Expression, ...]

    @cached_property
    def key(self) -> frozenset[Expression]:
        """The factors without their order."""
        return frozenset(self.factors)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Term) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return ":".join(map(str, self.factors))


@dataclass(frozen=True)
class Bar:
    """Effects that vary between the groups of one or more columns.

    Attributes
    ----------
    groups : tuple of str
        A group is a value of this column, or a combination of the values of these columns.
    intercept : bool
    terms : tuple of Term
    kind : {"full", "diagonal", "low_rank"}
        `|`, `||` and rr().
    rank : int, optional
        Of rr(); None if it is to be chosen.
    """

    groups: tuple[str, ...]
    intercept: bool
    terms: tuple[Term, ...]
    kind: str = "full"
    rank: int | None = None

    def __str__(self) -> str:
        inner = written_terms(self.intercept, self.terms, "1 + ")
        bar = "||" if self.kind == "diagonal" else "|"
        text = f"{inner} {bar} {':'.join(map(written_name, self.groups))}"
        rank = "" if self.rank is None else f", {self.rank}"
        return f"rr({text}{rank})" if self.kind == "low_rank" else f"({text})"


def written_terms(intercept: bool, terms: tuple[Term, ...], one: str) -> str:
    """The text of terms; ``one`` stands before them if there is an intercept."""
    listed = " + ".join(map(str, terms))
    if not terms:
        return "1" if intercept else "0"
    return (one if intercept else "0 + ") + listed
