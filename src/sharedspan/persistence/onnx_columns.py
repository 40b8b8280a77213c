"""Columns of a table as inputs of an ONNX graph, which makes the features X of them.

number or date (days since 1970)    double or float, NaN for a missing value
factor                              string, empty for a missing value
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sharedspan.inputs.encoders import HARMONICS, Encoding, Factor, Number
from sharedspan.inputs.splines import SplineBasis

# Names of other inputs, of the output, and within the graph.
RESERVED = {
    "task", "prediction", "X", "_code", "_slopes", "_terms", "_total", "_level", "_coef",
    "_intercept", "_last_axis",
}  # fmt: skip


class FeatureGraph:
    """The nodes that make X (rows, d) of one input for each column."""

    def __init__(self, onnx: Any, encoding: Encoding, dtype: str) -> None:
        self.onnx, self.dtype = onnx, np.dtype(dtype)
        self.inputs: list[Any] = []
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        parts = self._features(encoding)
        if not parts:
            raise ValueError(
                "The model has no features, but an ONNX graph predicts from features: use save and "
                "ss.load."
            )
        self.nodes.append(onnx.helper.make_node("Concat", parts, ["X"], axis=1))

    def _features(self, encoding: Encoding) -> list[str]:
        """All features in their order, (rows, m) each."""
        first: dict[str, str] = {}
        parts = []
        for column in encoding.columns:
            if isinstance(column, Factor):
                table = column.contrasts
                features = [self._rows(column, encoding.fills(column), table, self._codes(column))]
            else:
                features = self._number(column)
            first[column.column] = features[0]
            parts += features
        for a, b in encoding.interactions:
            parts.append(self._products(first[a], first[b], encoding, a, b))
        return parts

    def _name(self) -> str:
        return f"feature/{len(self.nodes) + len(self.initializers)}"

    def _constant(self, value: Any, dtype: Any = None) -> str:
        name = self._name()
        array = np.asarray(value, dtype=self.dtype if dtype is None else dtype)
        self.initializers.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def _node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = self._name()
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def _input(self, column: str, kind: int) -> str:
        """The values of a column, (rows, 1)."""
        name = column if column not in RESERVED else f"{column} (column)"
        if any(info.name == name for info in self.inputs):  # a formula has it as numbers, too
            name = f"{column} (category)"
        info = self.onnx.helper.make_tensor_value_info(name, kind, ["rows"])
        self.inputs.append(info)
        return self._node("Reshape", name, self._constant([-1, 1], np.int64))

    def _number(self, column: Number) -> list[str]:
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(self.dtype)
        x = self._input(column.column, kind)
        missing = None
        if column.fill is not None:
            missing = self._node("IsNaN", x)
            x = self._node("Where", missing, self._constant([[column.fill]]), x)
        features = [x]
        for period in column.periods:
            length, most = HARMONICS[period]
            for k in range(1, most + 1):
                angle = self._node("Mul", x, self._constant([[2 * np.pi * k / length]]))
                features.append(self._node("Sin", angle))
                features.append(self._node("Cos", angle))
        if column.spline is not None and column.spline.n_columns:
            features.append(self._spline(column.spline, x))
        if column.indicator and missing is not None:
            kind = self.onnx.helper.np_dtype_to_tensor_dtype(self.dtype)
            features.append(self._node("Cast", missing, to=kind))
        return features

    def _spline(self, spline: SplineBasis, x: str) -> str:
        """Within the knots k_1 < k_2 < ... the sum of a line and of c_j max(z - k_j, 0)^3.

        Beyond them it is linear. c_j is a sixth of the change of f''' at a knot.
        """
        knots, curvature = spline.knots, spline.curvature
        third = np.diff(curvature, axis=0) / np.diff(knots)[:, None]
        cubes = np.diff(third, axis=0, prepend=0) / 6
        first, last = spline.slopes_at_ends()
        z = self._node("Sub", x, self._constant([[spline.centre]]))
        z = self._node("Div", z, self._constant([[spline.scale]]))
        low, high = self._constant([[knots[0]]]), self._constant([[knots[-1]]])
        inside = self._node("Min", self._node("Max", z, low), high)
        beyond = self._node("Sub", self._node("Max", z, high), high)
        line = self._node("Sub", self._node("Min", z, high), low)
        steps = self._node("Sub", inside, self._constant(knots[None, :-1]))
        steps = self._node("Max", steps, self._constant([[0.0]]))
        steps = self._node("Mul", self._node("Mul", steps, steps), steps)
        value = self._node("MatMul", steps, self._constant(cubes))
        value = self._node("Add", value, self._constant(spline.transform[:1]))
        value = self._node("Add", value, self._node("Mul", line, self._constant(first[None])))
        return self._node("Add", value, self._node("Mul", beyond, self._constant(last[None])))

    def _codes(self, column: Factor) -> str:
        """The row of each level in a table of contrasts, (rows,)."""
        text = self._input(column.column, self.onnx.TensorProto.STRING)
        unseen, missing = len(column.levels), len(column.levels) + 1
        codes = self._node(
            "LabelEncoder", text, domain="ai.onnx.ml",
            keys_strings=[level.encode() for level in (*column.known, "")],
            values_int64s=[*range(len(column.known)), missing], default_int64=unseen,
        )  # fmt: skip
        return self._node("Reshape", codes, self._constant([-1], np.int64))

    def _rows(self, column: Factor, fills: bool, table: np.ndarray, codes: str) -> str:
        """The rows of a table (levels + 2, m) of features, (rows, m)."""
        unseen, missing = len(column.levels), len(column.levels) + 1
        table = table.copy()
        if column.unseen == "error" and not column.pools:
            table[unseen] = np.nan  # a graph cannot raise
        if fills:
            table[missing] = table[unseen]
        return self._node("Gather", self._constant(table), codes, axis=0)

    def _products(self, one: str, other: str, encoding: Encoding, a: str, b: str) -> str:
        """All products of the features of two columns, (rows, m n)."""
        widths = {column.column: column.n_main for column in encoding.columns}
        left = self._node("Reshape", one, self._constant([-1, widths[a], 1], np.int64))
        right = self._node("Reshape", other, self._constant([-1, 1, widths[b]], np.int64))
        shape = self._constant([-1, widths[a] * widths[b]], np.int64)
        return self._node("Reshape", self._node("Mul", left, right), shape)
