"""The features of a formula in an ONNX graph: products of columns."""

from __future__ import annotations

from functools import reduce

from sharedspan.inputs.encoders import Encoding, Factor
from sharedspan.inputs.expressions import Call, Constant, Expression, Operation, Variable
from sharedspan.inputs.formula_encoding import (
    CONTRASTS_OF,
    NUMBERS_OF,
    FormulaEncoding,
    Piece,
    level_table,
)
from sharedspan.persistence.onnx_columns import FeatureGraph

NODES = {"I": "Identity", "log": "Log", "exp": "Exp", "sqrt": "Sqrt", "+": "Add", "-": "Neg",
         "*": "Mul", "/": "Div", "^": "Pow"}  # fmt: skip


class FormulaGraph(FeatureGraph):
    """The nodes that make X (rows, d) as a formula says it."""

    def _features(self, encoding: Encoding) -> list[str]:
        assert isinstance(encoding, FormulaEncoding)
        self.encoding = encoding
        self.made: dict[Expression, list[str]] = {}
        self.codes: dict[str, str] = {}
        self.pieces: dict[Piece, str] = {}
        for column in encoding.columns:
            if isinstance(column, Factor):
                self.codes[column.column] = self._codes(column)
            else:
                self.made[Variable(column.column)] = self._number(column)
        return [self._times(list(map(self._piece, feature))) for feature in encoding.features]

    def _times(self, factors: list[str]) -> str:
        return reduce(lambda one, other: self._node("Mul", one, other), factors)

    def _piece(self, piece: Piece) -> str:
        """A factor of a product, (rows, 1)."""
        if piece not in self.pieces:
            self.pieces[piece] = self._made_piece(piece)
        return self.pieces[piece]

    def _made_piece(self, piece: Piece) -> str:
        source = piece.source
        if piece.coding == NUMBERS_OF:
            if not piece.place:
                return self._value(source)
            whole = self._node("Concat", *self.made[source], axis=1)
            return self._node("Gather", whole, self._constant([piece.place], "int64"), axis=1)
        assert isinstance(source, Variable)
        column = self.encoding.columns[self.encoding.factors[source.name]]
        assert isinstance(column, Factor)
        table = column.contrasts if piece.coding == CONTRASTS_OF else level_table(column)
        one = table[:, [piece.place]]
        return self._rows(column, self.encoding.fills(column), one, self.codes[source.name])

    def _value(self, source: Expression) -> str:
        """The value of arithmetic, (rows, 1), or of a number alone, (1, 1)."""
        if source not in self.made:
            self.made[source] = [self._operation(source)]
        return self.made[source][0]

    def _operation(self, source: Expression) -> str:
        if isinstance(source, Constant):
            return self._constant([[source.value]])
        assert isinstance(source, Call | Operation)
        node = NODES[source.function if isinstance(source, Call) else source.operator]
        operands = [self._value(part) for part in source.parts]
        if len(operands) == 1:
            return self._node(node, operands[0])
        return reduce(lambda one, other: self._node(node, one, other), operands)
