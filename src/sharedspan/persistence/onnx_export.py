"""Fitted models as ONNX graphs: X (rows, d) and task (rows,) in, prediction (rows,) out.

    code       = LabelEncoder(task)                      position of the task, T for any other
    prediction = sum_j X_j coef[code]_j + intercept[code]

Row T of coefficients and intercepts is the mean task, or NaN where a model refuses new tasks: a
graph cannot raise.
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
    from sharedspan.estimators.base import TaskRegressor

# Opsets and version are older than what onnxruntime 1.17 reads, which is 20, 4 and 9.
GRAPH = """
<ir_version: 7, opset_import: ["" : 13, "ai.onnx.ml" : 2], producer_name: "sharedspan">
sharedspan ({number}[rows, {d}] X, {label}[rows] task) => ({number}[rows] prediction)
{{
    code = ai.onnx.ml.LabelEncoder <default_int64 = {T}> (task)
    slopes = Gather <axis = 0> (coef, code)
    terms = Mul (X, slopes)
    total = ReduceSum <keepdims = 0> (terms, last_axis)
    level = Gather <axis = 0> (intercept, code)
    prediction = Add (total, level)
}}
"""
NUMBERS = {"float64": "double", "float32": "float"}  # dtypes by their names in a graph
LARGEST = 2**31 - 2**16  # bytes: protobuf ends at 2 GiB, and the graph itself takes a little
LABEL_BYTES = 32  # at most, of one label beside its text: its code, lengths and tags


def write_onnx(
    model: TaskRegressor,
    path: str | os.PathLike[str],
    labels: Iterable[Any] | None = None,
    dtype: str = "float64",
) -> None:
    """Write a fitted model as an ONNX file; see ``TaskRegressor.export_onnx``."""
    try:
        import onnx.parser
    except ImportError as error:
        raise ImportError(
            "export_onnx needs the package onnx: pip install 'sharedspan[onnx]'."
        ) from error
    import sharedspan
    from sharedspan.estimators.prediction import population_mean

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
    """The model; ``coef`` (T + 1, d) and ``intercept`` (T + 1,) end with the row of other tasks."""
    number, T, d = NUMBERS[coef.dtype.name], len(keys), coef.shape[1]
    is_text = isinstance(keys[0], bytes)
    label, attribute = ("string", "keys_strings") if is_text else ("int64", "keys_int64s")
    model = onnx.parser.parse_model(GRAPH.format(number=number, label=label, T=T, d=d))
    encoding = {attribute: keys, "values_int64s": range(T)}
    arrays = {"coef": coef, "intercept": intercept, "last_axis": np.array([1], dtype=np.int64)}
    for name, values in encoding.items():
        model.graph.node[0].attribute.append(onnx.helper.make_attribute(name, values))
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def _label_keys(labels: Sequence[Any], n_tasks: int) -> list[Any]:
    """The labels as a LabelEncoder has them: all integers of 64 bits, or all strings in UTF-8."""
    if len(labels) != n_tasks:
        raise ValueError(f"There are {len(labels)} labels for {n_tasks} tasks: give one for each.")
    is_text = all(isinstance(label, str) for label in labels)
    keys = [_as_utf8(label) if is_text else _as_int64(label) for label in labels]
    if len(set(keys)) < n_tasks:
        raise ValueError("Some of the labels are equal: give each task its own.")
    return keys


def _as_int64(label: Any) -> int:
    if isinstance(label, bool) or not isinstance(label, (int, np.integer)):
        raise TypeError(
            f"The task label {label!r} is a {type(label).__name__}: ONNX knows tasks by integers "
            "or by strings, all of one kind. Give labels=, one per task in the order of tasks_, "
            "such as labels=[str(task) for task in model.tasks_]."
        )
    if not -(2**63) <= label < 2**63:
        raise ValueError(
            f"The task label {label!r} has more than 64 bits: give labels= of smaller integers, or "
            "of strings."
        )
    return int(label)


def _as_utf8(label: str) -> bytes:
    try:
        return label.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The task label {label!r} cannot be written as text: {error.reason}. Give "
            "labels=, one per task in the order of tasks_."
        ) from None


def _require_size(keys: Sequence[Any], T: int, d: int, dtype: str) -> None:
    text = sum(len(key) for key in keys if isinstance(key, bytes))
    size = (T + 1) * (d + 1) * np.dtype(dtype).itemsize + text + LABEL_BYTES * T
    if size > LARGEST:
        raise ValueError(
            f"{T:,} tasks of {d:,} features take {size / 2**30:.1f} GiB, and an ONNX file holds "
            "less than 2: use dtype='float32', or serve the tasks from several files."
        )
