"""Columns of a table as the features that a formula asks for: products of columns.

Columns are learned and read as for ``Encoding``. A feature is then a product of pieces, and a piece
is arithmetic with columns of numbers, a further feature of such a column (of a spline, a season, or
that marks missing values), or a feature of a factor: by contrasts, which lack the reference level,
or the 0/1 feature of a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sharedspan.inputs.encoders import MISSING_CODE, UNSEEN_CODE, Encoding, Factor, Number
from sharedspan.inputs.expressions import (
    Expression,
    Variable,
    evaluate,
    require_arithmetic,
)

NUMBERS_OF, CONTRASTS_OF, LEVELS_OF = "numbers", "contrasts", "levels"


@dataclass(frozen=True)
class Piece:
    """A factor of a product.

    Attributes
    ----------
    source : Expression
        A column, or arithmetic with columns of numbers.
    coding : {"numbers", "contrasts", "levels"}
        "contrasts" and "levels" are for columns that are factors.
    place : int
        The number of the feature among those of the column.
    """

    source: Expression
    coding: str = NUMBERS_OF
    place: int = 0

    def __post_init__(self) -> None:
        if self.coding not in (NUMBERS_OF, CONTRASTS_OF, LEVELS_OF) or self.place < 0:
            raise ValueError(f"This is not part of a feature: {self!r}.")
        require_arithmetic(self.source)


def level_table(factor: Factor) -> np.ndarray:
    """The 0/1 features of all levels, in rows as ``Factor.contrasts`` has them."""
    plain = Factor(factor.column, factor.levels, factor.counts, "reference", factor.reference)
    others, at = plain.contrasts, factor.levels.index(factor.reference)
    return np.insert(others, at, 1.0 - others.sum(axis=1), axis=1)


@dataclass(frozen=True)
class FormulaEncoding(Encoding):
    """All columns that the features of a formula are made of, and how.

    A column that a formula has as numbers and as a factor is among the columns twice.
    """

    features: tuple[tuple[Piece, ...], ...] = ()
    feature_groups: tuple[int, ...] = ()  # of equal variances, or -1

    def __post_init__(self) -> None:
        pieces = [piece for feature in self.features for piece in feature]
        if not all(isinstance(piece, Piece) for piece in pieces) or not all(self.features):
            raise ValueError(f"These are not features of a formula: {self.features!r}.")
        if len(self.feature_groups) != len(self.features):
            raise ValueError("Features and their groups differ in number.")
        known = {False: self.numbers, True: self.factors}
        for piece in pieces:
            columns = known[piece.coding != NUMBERS_OF]
            if not set(piece.source.names) <= set(columns):
                raise ValueError(f"The columns of {piece.source} are unknown.")
        super().__post_init__()

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Places of the columns of numbers."""
        return {c.column: i for i, c in enumerate(self.columns) if isinstance(c, Number)}

    @cached_property
    def factors(self) -> dict[str, int]:
        """Places of the columns that are factors."""
        return {c.column: i for i, c in enumerate(self.columns) if isinstance(c, Factor)}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the features, (d,)."""
        return tuple(":".join(map(self.piece_name, feature)) for feature in self.features)

    def piece_name(self, piece: Piece) -> str:
        """The name of a factor of a product."""
        if not isinstance(piece.source, Variable):
            return str(piece.source)
        name = piece.source.name
        if piece.coding == NUMBERS_OF:
            return self.columns[self.numbers[name]].names[piece.place]
        factor = self.columns[self.factors[name]]
        assert isinstance(factor, Factor)
        if piece.coding == CONTRASTS_OF:
            return factor.names[piece.place]
        # A contrast with the mean has the name of its level already.
        mark = " (level)" if factor.coding == "sum" else ""
        return f"{name}={factor.levels[piece.place]}{mark}"

    @cached_property
    def column_of(self) -> tuple[str, ...]:
        """The column of the table that each feature comes from, (d,); all for a product."""
        return tuple(
            ":".join(dict.fromkeys(name for piece in feature for name in piece.source.names))
            for feature in self.features
        )

    @cached_property
    def groups(self) -> np.ndarray:
        """For each feature the number of its group of equal variances, or -1, (d,)."""
        return np.array(self.feature_groups, dtype=int)

    @property
    def is_plain(self) -> bool:
        """False: a table may have columns other than those of a formula."""
        return False

    def _fill(self, X: np.ndarray, values: Sequence[np.ndarray], first_row: int | None) -> None:
        read = ReadColumns(self, values, first_row)
        for j, feature in enumerate(self.features):
            X[:, j] = read.feature(feature)

    def fits_float32(self, types: Any) -> bool:
        """Whether single precision holds every feature exactly, which is not known of products."""
        return False


class ReadColumns:
    """Values of columns, and the pieces of features made of them."""

    def __init__(
        self, encoding: FormulaEncoding, values: Sequence[np.ndarray], first_row: int | None
    ) -> None:
        self.encoding, self.first_row = encoding, first_row
        self.values, self.made = values, dict[Expression, list[np.ndarray]]()
        self.tables: dict[tuple[str, str], np.ndarray] = {}

    def feature(self, feature: tuple[Piece, ...]) -> np.ndarray:
        """A product of pieces, (rows,)."""
        product = self.piece(feature[0])
        for piece in feature[1:]:
            product = product * self.piece(piece)
        return product

    def piece(self, piece: Piece) -> np.ndarray:
        """A factor of a product, (rows,)."""
        if piece.coding == NUMBERS_OF:
            return self._numbers(piece.source)[piece.place]
        assert isinstance(piece.source, Variable)
        name, encoding = piece.source.name, self.encoding
        factor, codes = (each[encoding.factors[name]] for each in (encoding.columns, self.values))
        assert isinstance(factor, Factor)
        key = (name, piece.coding)
        if key not in self.tables:
            table = factor.contrasts if piece.coding == CONTRASTS_OF else level_table(factor)
            if encoding.fills(factor):
                table = table.copy()
                table[MISSING_CODE] = table[UNSEEN_CODE]
            self.tables[key] = np.ascontiguousarray(table.T)
        return self.tables[key][piece.place][codes]

    def _numbers(self, source: Expression) -> list[np.ndarray]:
        """The features of a column of numbers, or the value of arithmetic alone."""
        if source not in self.made:
            if isinstance(source, Variable):
                place = self.encoding.numbers[source.name]
                column = self.encoding.columns[place]
                self.made[source] = list(column.encode(self.values[place]))
            else:
                columns = {name: self._numbers(Variable(name))[0] for name in source.names}
                self.made[source] = [evaluate(source, columns, first_row=self.first_row)]
        return self.made[source]
