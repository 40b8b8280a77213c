"""Fitted models as ONNX graphs: X (rows, d) and task (rows,) in, prediction (rows,) out.

    code       = LabelEncoder(task)                      position of the task, T for a new task
    prediction = sum_j X_j coef[code]_j + intercept[code]

Row T of coefficients and intercepts is the mean task, or NaN if the model refuses new tasks, since
a graph cannot raise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.persistence.atomic_write import atomic_path

if TYPE_CHECKING:
    from sharedspan.estimators.base import TaskEstimator
    from sharedspan.inputs.encoders import Encoding

# onnxruntime 1.17 reads opsets up to 20 and 4, and versions up to 9.
GRAPH = """
<ir_version: 7, opset_import: ["" : 13, "ai.onnx.ml" : 2], producer_name: "sharedspan">
sharedspan ({number}[rows, {d}] X, {label}[rows] task) => ({number}[rows] prediction)
{{
    _code = ai.onnx.ml.LabelEncoder <default_int64 = {T}> (task)
    _slopes = Gather <axis = 0> (_coef, _code)
    _terms = Mul (X, _slopes)
    _total = ReduceSum <keepdims = 0> (_terms, _last_axis)
    _level = Gather <axis = 0> (_intercept, _code)
    prediction = Add (_total, _level)
}}
"""
NUMBERS = {"float64": "double", "float32": "float"}  # dtypes and their names in a graph
LARGEST = 2**31 - 2**16  # bytes: the limit of protobuf, minus some for the graph itself
LABEL_BYTES = 32  # at most, for the code, lengths and tags of a label, without its text


def write_onnx(
    model: TaskEstimator,
    path: str | os.PathLike[str],
    labels: Iterable[Any] | None = None,
    dtype: str = "float64",
) -> None:
    """Write a fitted model as an ONNX file; see ``TaskEstimator.export_onnx``."""
    try:
        import onnx.parser
    except ImportError as error:
        raise ImportError(
            "export_onnx needs the package onnx: pip install 'sharedspan[onnx]'."
        ) from error
    import sharedspan
    from sharedspan.estimators.prediction import population_mean
    from sharedspan.families import Gaussian

    family = model.response_family()
    if not isinstance(family, Gaussian):
        raise TypeError(
            f"A model of {family.name} responses cannot be exported to ONNX: its predictions are "
            "means over the posterior distribution of each task, but an ONNX graph holds only "
            "coefficients. Use save and ss.load."
        )
    if dtype not in NUMBERS:
        raise ValueError(f"dtype={dtype!r} is unknown: use {', '.join(map(repr, NUMBERS))}.")
    fitted, (T, d) = model.fitted_span, model.fitted_span.coef.shape
    keys = _label_keys(model.tasks_.tolist() if labels is None else list(labels), T)
    _require_size(keys, T, d, dtype)
    slopes, level = np.full(d, np.nan), np.nan
    if model.unseen == "mean":
        slopes, level = population_mean(model)
    with np.errstate(over="ignore"):
        coef = np.vstack([fitted.coef, slopes]).astype(dtype)
        intercept = np.append(fitted.intercept, level).astype(dtype)
    if np.isinf(coef).any() or np.isinf(intercept).any():
        raise ValueError(f"Some coefficients are too large for {dtype}: use dtype='float64'.")
    graph = _graph(onnx, keys, coef, intercept)
    columns = vars(model).get("columns_")
    if columns is not None and not columns.encoding.is_plain:
        _put_columns(onnx, graph, columns.encoding, dtype)
    properties = {
        "class": type(model).__name__,
        "sharedspan": sharedspan.__version__,
        "features": json.dumps([str(name) for name in model.coef_names_]),
        "other_tasks": "mean" if model.unseen == "mean" else "NaN",
    }
    onnx.helper.set_model_props(graph, properties)
    with atomic_path(Path(path)) as temporary:
        temporary.write_bytes(graph.SerializeToString())


def _graph(onnx: Any, keys: list[Any], coef: np.ndarray, intercept: np.ndarray) -> Any:
    """The model; ``coef`` (T + 1, d) and ``intercept`` (T + 1,) end with the row for new tasks."""
    number, T, d = NUMBERS[coef.dtype.name], len(keys), coef.shape[1]
    is_text = isinstance(keys[0], bytes)
    label, attribute = ("string", "keys_strings") if is_text else ("int64", "keys_int64s")
    model = onnx.parser.parse_model(GRAPH.format(number=number, label=label, T=T, d=d))
    encoding = {attribute: keys, "values_int64s": range(T)}
    arrays = {"_coef": coef, "_intercept": intercept, "_last_axis": np.array([1], dtype=np.int64)}
    for name, values in encoding.items():
        model.graph.node[0].attribute.append(onnx.helper.make_attribute(name, values))
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def _put_columns(onnx: Any, model: Any, encoding: Encoding, dtype: str) -> None:
    """Replace the input X by one input for each column of the table."""
    from sharedspan.inputs.formula_encoding import FormulaEncoding
    from sharedspan.persistence.onnx_columns import FeatureGraph
    from sharedspan.persistence.onnx_formula import FormulaGraph

    kind = FormulaGraph if isinstance(encoding, FormulaEncoding) else FeatureGraph
    made, graph = kind(onnx, encoding, dtype), model.graph
    _, *others = list(graph.input)
    nodes = [*made.nodes, *graph.node]
    for field, values in (("input", [*made.inputs, *others]), ("node", nodes)):
        graph.ClearField(field)
        getattr(graph, field).extend(values)
    graph.initializer.extend(made.initializers)


def _label_keys(labels: Sequence[Any], n_tasks: int) -> list[Any]:
    """The labels as keys of a LabelEncoder: all integers of 64 bits, or all strings in UTF-8."""
    if len(labels) != n_tasks:
        raise ValueError(f"labels has {len(labels)} entries for {n_tasks} tasks: give one each.")
    is_text = all(isinstance(label, str) for label in labels)
    keys = [_as_utf8(label) if is_text else _as_int64(label) for label in labels]
    if len(set(keys)) < n_tasks:
        raise ValueError("Some entries of labels are equal: give each task its own label.")
    return keys


def _as_int64(label: Any) -> int:
    if isinstance(label, bool) or not isinstance(label, (int, np.integer)):
        raise TypeError(
            f"The task label {label!r} is a {type(label).__name__}: ONNX needs integers or "
            "strings, all of one kind. Give labels=, one per task in the order of tasks_, such as "
            "labels=[str(task) for task in model.tasks_]."
        )
    if not -(2**63) <= label < 2**63:
        raise ValueError(
            f"The task label {label!r} exceeds 64 bits: give labels=, with smaller integers or "
            "strings."
        )
    return int(label)


def _as_utf8(label: str) -> bytes:
    try:
        return label.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The task label {label!r} cannot be encoded in UTF-8: {error.reason}. Give labels=, "
            "one per task in the order of tasks_."
        ) from None


def _require_size(keys: Sequence[Any], T: int, d: int, dtype: str) -> None:
    text = sum(len(key) for key in keys if isinstance(key, bytes))
    size = (T + 1) * (d + 1) * np.dtype(dtype).itemsize + text + LABEL_BYTES * T
    if size > LARGEST:
        raise ValueError(
            f"{T:,} tasks with {d:,} features take {size / 2**30:.1f} GiB, but the limit of an "
            "ONNX file is 2 GiB: use dtype='float32', or export the tasks to several files."
        )
